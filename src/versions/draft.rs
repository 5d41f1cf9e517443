//! Integer version 1 as its first page describes it, and how it differs from what the crate 0.1.0
//! speaks: text, reasoning and tool calls of a turn are separate lists without a common order; a
//! tool call begins when its input is complete, and a separate request asks for its permission;
//! actions come in an `envelope`; the answer to `listSessions` is the bare list; a status is a word
//! and a model its id; and attachments are paths.
//!
//! The version drops all but a few actions. A second permission decides whether to keep a result.

use std::borrow::Cow;

use ahp_types::state::{ChatState, ResponsePart};
use percent_encoding::{percent_decode_str, percent_encode, AsciiSet, NON_ALPHANUMERIC};
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, StepFacts, VersionStep,
};
use super::v0_1_0::flatten_snapshot;
use crate::state::reduce::Conversation;
use crate::wire::errors::RpcError;
use crate::wire::terminals::parse_terminal_uri;
use crate::wire::tool_calls::tool_call_id;

pub struct Draft;

/// Suffix of the call id in the request for the second permission.
pub(super) const RESULT: &str = "#result";

/// Members of the actions that are sent unchanged.
const MEMBERS: [&str; 10] =
    ["type", "session", "turnId", "agents", "content", "error", "model", "title", "usage", "userMessage"];

/// Bits of a status that have a word.
const ERROR: u64 = 1 << 1;
const IN_PROGRESS: u64 = 1 << 3;

/// Characters that are not escaped in a URI's path.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

impl VersionStep for Draft {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::Draft,
            losses: &[
            "in which order the text and the tool calls of a turn came",
            "what a turn that is over had thought",
            "a tool call before its input is complete, and what it produces before it is done",
            "questions: where no other client is there to answer, they are declined",
            "queued and steering messages, and that turns were taken back",
            "what a permission can be answered besides yes and no",
            "that a summary changes: the list must be fetched again",
            "read and archived flags, activities, settings, and everything else that its page does not name",
        ],
            lacks: &[],
            drops: &[],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        match call.method.as_str() {
            "createSession" => model_of_id(&mut call.params),
            "fetchTurns" => flatten_range(&mut call.params)?,
            "subscribe" => {
                // Terminals have no actions in this version.
                let channel =
                    node::text(&call.params, "resource").filter(|uri| parse_terminal_uri(uri).is_some());
                if let Some(terminal) = channel {
                    return Err(RpcError::channel_not_found(terminal));
                }
            }
            "fetchContent" => call.method = "resourceRead".to_owned(),
            "browseDirectory" => call.method = "resourceList".to_owned(),
            "resourceWrite" | "resourceCopy" | "resourceMove" | "resourceDelete" | "resourceRequest" => {
                return Err(RpcError::method_not_found(&call.method));
            }
            _ => {}
        }
        Ok(())
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        match incoming.name() {
            "session/modelChanged" => model_of_id(&mut incoming.action),
            "session/turnStarted" => {
                node::objects_in(&mut incoming.action, "userMessage").for_each(uris_of_paths);
            }
            _ => {}
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Root => object.retain(|member, _| member == "agents"),
            Node::Agent => keep(object, &["provider", "displayName", "description", "models"]),
            Node::Session => {
                keep(object, &["summary", "lifecycle", "creationError", "turns", "activeTurn"]);
            }
            Node::SessionSummary => {
                keep(
                    object,
                    &["resource", "provider", "title", "status", "createdAt", "modifiedAt", "model"],
                );
                id_of_model(object);
                if let Some(bits) = object.get("status").and_then(Value::as_u64) {
                    object.insert("status".to_owned(), status_of(bits).into());
                }
            }
            Node::Message => {
                keep(object, &["text", "attachments"]);
                paths_of_uris(object);
            }
            Node::Part if node::text(object, "kind") == Some("contentRef") => {
                node::rename(object, "contentType", "mimeType");
            }
            Node::Turn => {
                *object = if object.contains_key("state") { turn_of(object) } else { active_turn_of(object) };
            }
            _ => {}
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        let chat = context.chat.map(Conversation::state);
        match outgoing.name() {
            "session/responsePart" => return part_actions(&outgoing),
            "session/toolCallReady" => return ready_actions(&outgoing, chat),
            "session/toolCallConfirmed" => {
                return vec![resolution(
                    &outgoing,
                    call_id(&outgoing).into(),
                    is(&outgoing.action, "approved"),
                )];
            }
            "session/toolCallComplete" => return completion_actions(&outgoing, chat),
            "session/toolCallResultConfirmed" => return review_actions(&outgoing, chat),
            "session/modelChanged" => id_of_model(&mut outgoing.action),
            "root/agentsChanged"
            | "session/ready"
            | "session/creationFailed"
            | "session/turnStarted"
            | "session/delta"
            | "session/reasoning"
            | "session/turnComplete"
            | "session/turnCancelled"
            | "session/error"
            | "session/titleChanged"
            | "session/usage" => {}
            _ => return Vec::new(),
        }
        keep(&mut outgoing.action, &MEMBERS);
        vec![outgoing]
    }

    fn notice_down(&self, mut notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        if notice.method == "action" {
            notice.params = with("envelope", Value::Object(notice.params));
            return Some(notice);
        }
        let Some(Value::Object(inner)) = notice.params.get_mut("notification") else { return None };
        match node::text(inner, "type") {
            Some("notify/sessionAdded") => {
                for summary in node::objects_in(inner, "summary") {
                    self.node_down(Node::SessionSummary, summary);
                }
                Some(notice)
            }
            Some("notify/sessionRemoved") => Some(notice),
            _ => None,
        }
    }

    fn result_down(&self, method: &str, result: &mut Value, _context: &mut Context<'_>) {
        match (method, &mut *result) {
            ("listSessions", Value::Object(list)) => *result = list.remove("items").unwrap_or(json!([])),
            ("subscribe", Value::Object(result)) => flatten_snapshot(result),
            ("resourceRead", Value::Object(result)) => node::rename(result, "contentType", "mimeType"),
            _ => {}
        }
    }

    fn error_down(&self, error: &mut RpcError, _context: &mut Context<'_>) {
        error.code = match error.code {
            // `NOT_FOUND` becomes `CONTENT_NOT_FOUND`.
            -32008 => -32006,
            // `ALREADY_EXISTS` becomes `SESSION_ALREADY_EXISTS`.
            -32010 => -32003,
            // `AUTH_REQUIRED` and `PERMISSION_DENIED` have no similar code.
            -32007 | -32009 => -32603,
            code => code,
        };
    }
}

fn model_of_id(holder: &mut Object) {
    if let Some(id @ Value::String(_)) = holder.get("model").cloned() {
        holder.insert("model".to_owned(), json!({ "id": id }));
    }
}

fn id_of_model(holder: &mut Object) {
    if let Some(id) = holder.get("model").and_then(|model| model.get("id")).cloned() {
        holder.insert("model".to_owned(), id);
    }
}

fn status_of(bits: u64) -> &'static str {
    match bits {
        bits if bits & ERROR != 0 => "error",
        bits if bits & IN_PROGRESS != 0 => "in-progress",
        _ => "idle",
    }
}

fn uris_of_paths(message: &mut Object) {
    for attachment in node::objects_in(message, "attachments") {
        let Some(path) = node::text(attachment, "path") else { continue };
        let uri = if path.contains("://") {
            path.to_owned()
        } else {
            let path = path.replace('\\', "/");
            format!("file:///{}", percent_encode(path.trim_start_matches('/').as_bytes(), PATH))
        };
        attachment.remove("path");
        attachment.entry("uri").or_insert(uri.into());
    }
}

fn paths_of_uris(message: &mut Object) {
    let Some(Value::Array(attachments)) = message.get_mut("attachments") else { return };
    attachments.retain_mut(|attachment| {
        let Some(attachment) = attachment.as_object_mut() else { return false };
        let uri = node::text(attachment, "uri").and_then(|uri| uri.strip_prefix("file://"));
        let path = uri.and_then(|path| percent_decode_str(path).decode_utf8().ok().map(Cow::into_owned));
        // Only files have a path.
        let Some(path) = path else { return false };
        attachment.remove("uri");
        attachment.insert("path".to_owned(), path.into());
        true
    });
}

/// Moves the members of `range` to the params. The page does not define what a range is.
fn flatten_range(params: &mut Object) -> Result<(), RpcError> {
    match params.remove("range") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(range)) if range.keys().all(|key| matches!(key.as_str(), "before" | "limit")) => {
            for (member, value) in range {
                params.entry(member).or_insert(value);
            }
            Ok(())
        }
        Some(_) => Err(RpcError::invalid_params("`range` is an object of `before` and `limit`")),
    }
}

fn turn_of(turn: &Object) -> Object {
    let mut over = node::some_of(turn, &["id", "userMessage", "usage", "state", "error"]);
    let parts = parts_of(turn);
    let calls = parts.iter().filter_map(|part| part.get("toolCall")?.as_object()).map(completed_call);
    let shown = parts.iter().filter(|part| matches!(kind_of(part), "markdown" | "contentRef"));
    over.insert("toolCalls".to_owned(), calls.collect());
    over.insert("responseParts".to_owned(), shown.cloned().collect());
    over.insert("responseText".to_owned(), text_in(parts, "markdown").into());
    over
}

fn active_turn_of(turn: &Object) -> Object {
    let mut active = node::some_of(turn, &["id", "userMessage", "usage"]);
    let parts = parts_of(turn);
    let (mut calls, mut permissions) = (Object::new(), Object::new());
    for call in parts.iter().filter_map(|part| part.get("toolCall")?.as_object()) {
        let id = node::text(call, "toolCallId").unwrap_or_default();
        match node::text(call, "status") {
            // The call begins when its input is complete.
            Some("streaming") | None => continue,
            Some("pending-confirmation") => {
                permissions.insert(id.to_owned(), request_of(call, id));
            }
            Some("pending-result-confirmation") => {
                let id = format!("{id}{RESULT}");
                let request = request_of(call, &id);
                permissions.insert(id, request);
            }
            Some(_) => {}
        }
        calls.insert(id.to_owned(), Value::Object(flat_call(call)));
    }
    let shown = parts.iter().filter(|part| kind_of(part) == "contentRef");
    active.insert("responseParts".to_owned(), shown.cloned().collect());
    active.insert("streamingText".to_owned(), text_in(parts, "markdown").into());
    active.insert("reasoning".to_owned(), text_in(parts, "reasoning").into());
    active.insert("toolCalls".to_owned(), Value::Object(calls));
    active.insert("pendingPermissions".to_owned(), Value::Object(permissions));
    active
}

fn parts_of(turn: &Object) -> &[Value] {
    turn.get("responseParts").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn kind_of(part: &Value) -> &str {
    part["kind"].as_str().unwrap_or_default()
}

fn text_in(parts: &[Value], kind: &str) -> String {
    let of_kind = parts.iter().filter(|part| kind_of(part) == kind);
    of_kind.filter_map(|part| part.get("content")?.as_str()).collect()
}

/// Makes one object from a tool call, whatever its status.
fn flat_call(call: &Object) -> Object {
    let mut flat = node::some_of(call, &["toolCallId", "toolName", "displayName", "confirmed", "error"]);
    if let Some(input) = node::text(call, "toolInput") {
        flat.insert("toolInput".to_owned(), input.into());
        flat.insert("toolArguments".to_owned(), input.into());
    }
    let message = node::plain_text(call.get("invocationMessage").or(call.get("displayName")));
    flat.insert("invocationMessage".to_owned(), message.into());
    flat.extend(outcome_of(call).into_iter().filter(|(member, _)| member != "success"));
    flat.extend(call.get("reason").map(|reason| ("cancellationReason".to_owned(), reason.clone())));
    let status = match node::text(call, "status") {
        Some("pending-confirmation" | "pending-result-confirmation") => "pending-permission",
        Some("completed") if is(call, "success") => "completed",
        Some("completed") => "failed",
        Some("cancelled") => "cancelled",
        _ => "running",
    };
    flat.insert("status".to_owned(), status.into());
    flat
}

fn completed_call(call: &Object) -> Value {
    let mut flat = flat_call(call);
    flat.insert("success".to_owned(), is(call, "success").into());
    node::alias(&mut flat, "invocationMessage", "pastTenseMessage");
    Value::Object(flat)
}

/// Returns the result of a tool call; empty if it has none yet.
fn outcome_of(call: &Object) -> Object {
    let mut outcome = node::some_of(call, &["success", "error"]);
    if call.contains_key("pastTenseMessage") {
        let message = node::plain_text(call.get("pastTenseMessage"));
        outcome.insert("pastTenseMessage".to_owned(), message.into());
        let content = call.get("content").and_then(Value::as_array).into_iter().flatten();
        let texts: Vec<&str> = content.filter_map(|content| content.get("text")?.as_str()).collect();
        if !texts.is_empty() {
            outcome.insert("toolOutput".to_owned(), texts.join("\n").into());
        }
    }
    outcome
}

/// Makes the request for a tool call's permission.
fn request_of(call: &Object, request_id: &str) -> Value {
    let is_mcp = call.get("contributor").is_some_and(|it| it["kind"] == "mcp");
    let mut request = node::some_of(call, &["toolCallId", "toolName"]);
    request.insert("requestId".to_owned(), request_id.into());
    request.insert("permissionKind".to_owned(), if is_mcp { "mcp" } else { "shell" }.into());
    if let Some(input) = node::text(call, "toolInput") {
        request.insert("fullCommandText".to_owned(), input.into());
    }
    let intention = call.get("pastTenseMessage").or(call.get("invocationMessage"));
    request.insert("intention".to_owned(), node::plain_text(intention).into());
    Value::Object(request)
}

fn part_actions(outgoing: &OutgoingAction) -> Vec<OutgoingAction> {
    let Some(Value::Object(part)) = outgoing.action.get("part") else { return Vec::new() };
    let content = node::text(part, "content").unwrap_or_default();
    match node::text(part, "kind") {
        Some("markdown" | "reasoning") if content.is_empty() => Vec::new(),
        Some("markdown") => vec![derived(outgoing, "session/delta", with("content", content.into()))],
        Some("reasoning") => vec![derived(outgoing, "session/reasoning", with("content", content.into()))],
        Some("contentRef") => {
            vec![derived(outgoing, "session/responsePart", with("part", Value::Object(part.clone())))]
        }
        Some("toolCall") => match part.get("toolCall") {
            Some(Value::Object(call)) if node::text(call, "status") != Some("streaming") => {
                vec![start(outgoing, call)]
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Translates the end of a tool call's input: the call begins, and may ask for permission.
fn ready_actions(outgoing: &OutgoingAction, chat: Option<&ChatState>) -> Vec<OutgoingAction> {
    let mut call = call_before(outgoing, chat);
    let asked = node::text(&call, "status") == Some("pending-confirmation");
    let runs = outgoing.action.get("confirmed").is_some_and(|confirmed| !confirmed.is_null());
    for member in ["invocationMessage", "toolInput", "contributor", "confirmed"] {
        let given = outgoing.action.get(member).filter(|value| !value.is_null()).cloned();
        call.extend(given.map(|value| (member.to_owned(), value)));
    }
    call.insert("status".to_owned(), if runs { "running" } else { "pending-confirmation" }.into());
    let mut all = Vec::new();
    if asked && runs {
        all.push(resolution(outgoing, call_id(outgoing).into(), true));
    }
    all.push(start(outgoing, &call));
    if !runs {
        all.push(request(outgoing, &call, call_id(outgoing)));
    }
    all
}

/// Translates the end of a tool call: its result, or the question whether to keep it.
fn completion_actions(outgoing: &OutgoingAction, chat: Option<&ChatState>) -> Vec<OutgoingAction> {
    let mut call = call_before(outgoing, chat);
    let mut all = Vec::new();
    if node::text(&call, "status") == Some("pending-confirmation") {
        all.push(resolution(outgoing, call_id(outgoing).into(), true));
    }
    call.extend(outgoing.action.get("result").and_then(Value::as_object).cloned().unwrap_or_default());
    all.push(if is(&outgoing.action, "requiresResultConfirmation") {
        request(outgoing, &call, &format!("{}{RESULT}", call_id(outgoing)))
    } else {
        complete(outgoing, &call)
    });
    all
}

/// Translates the decision whether to keep a result.
fn review_actions(outgoing: &OutgoingAction, chat: Option<&ChatState>) -> Vec<OutgoingAction> {
    let approved = is(&outgoing.action, "approved");
    let mut all = vec![resolution(outgoing, format!("{}{RESULT}", call_id(outgoing)), approved)];
    if approved {
        all.push(complete(outgoing, &call_before(outgoing, chat)));
    }
    all
}

fn start(outgoing: &OutgoingAction, call: &Object) -> OutgoingAction {
    derived(outgoing, "session/toolStart", with("toolCall", Value::Object(flat_call(call))))
}

fn request(outgoing: &OutgoingAction, call: &Object, id: &str) -> OutgoingAction {
    derived(outgoing, "session/permissionRequest", with("request", request_of(call, id)))
}

fn resolution(outgoing: &OutgoingAction, id: String, approved: bool) -> OutgoingAction {
    derived(
        outgoing,
        "session/permissionResolved",
        node::members(json!({ "requestId": id, "approved": approved })),
    )
}

fn complete(outgoing: &OutgoingAction, call: &Object) -> OutgoingAction {
    let members = json!({ "toolCallId": call_id(outgoing), "result": outcome_of(call) });
    derived(outgoing, "session/toolComplete", node::members(members))
}

/// Returns the tool call that an action changes, as it was before.
fn call_before(outgoing: &OutgoingAction, chat: Option<&ChatState>) -> Object {
    let id = call_id(outgoing);
    let parts = chat.and_then(|chat| chat.active_turn.as_ref()).map(|turn| turn.response_parts.as_slice());
    let known = parts.unwrap_or_default().iter().find_map(|part| match part {
        ResponsePart::ToolCall(part) if tool_call_id(&part.tool_call) == id => {
            serde_json::to_value(&part.tool_call).ok()
        }
        _ => None,
    });
    match known {
        Some(Value::Object(call)) => call,
        _ => node::some_of(&outgoing.action, &["toolCallId"]),
    }
}

fn call_id(outgoing: &OutgoingAction) -> &str {
    node::text(&outgoing.action, "toolCallId").unwrap_or_default()
}

/// Makes another action of the same session and turn.
fn derived(outgoing: &OutgoingAction, name: &str, members: Object) -> OutgoingAction {
    let mut action = node::some_of(&outgoing.action, &["session", "turnId"]);
    action.insert("type".to_owned(), name.into());
    action.extend(members);
    OutgoingAction { channel: outgoing.channel.clone(), action }
}

fn with(member: &str, value: Value) -> Object {
    Object::from_iter([(member.to_owned(), value)])
}

fn is(object: &Object, member: &str) -> bool {
    object.get(member).and_then(Value::as_bool).unwrap_or_default()
}

fn keep(object: &mut Object, members: &[&str]) {
    object.retain(|member, _| members.contains(&member.as_str()));
}
