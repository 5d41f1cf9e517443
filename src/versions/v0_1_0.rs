//! 0.1.0 as its pages describe it, and how it differs from 0.2.0: a session's URI has its provider
//! as scheme; each method names its channel by another member (`resource`, `session`, `terminal`),
//! and an action names its session or terminal itself; every connection is notified of sessions, by
//! a `notification` with another one inside; and there are no changesets or customization trees.
//!
//! The pages put actions into an `envelope` and answer `subscribe` with the bare state; the crate
//! does neither. Clients get both forms. The crate's version 1 removes the pages' form.

use percent_encoding::percent_decode_str;
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::draft::RESULT;
use super::names::SessionNames;
use super::node::{self, Node, Object};
use super::step::{
    Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, OutgoingState, StepFacts,
    VersionStep,
};
use crate::state::reduce::Conversation;
use crate::wire::changesets::parse_changeset_uri;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::telemetry::is_logs;
use crate::wire::uris;
use crate::wire::watches::is_watch;

pub struct V0_1_0;

/// Error code of a resource that has changed.
const CONFLICT: i32 = -32011;
/// Error code of a resource that exists already: the closest one before 0.2.0.
const ALREADY_EXISTS: i32 = -32010;

/// Members of a customization that are in a reference to it.
const REFERENCE: [&str; 4] = ["uri", "description", "icons", "nonce"];

/// Returns whether a channel is of a kind that 0.1.0 does not have.
fn is_unknown(uri: &str) -> bool {
    is_watch(uri) || is_logs(uri) || parse_changeset_uri(uri).is_some()
}

impl VersionStep for V0_1_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_1_0,
            losses: &[
                "changesets, and which files a session changed",
                "what is inside of a customization, and that a single one changes",
                "which agent is chosen",
                "watches of files, and telemetry",
            ],
            lacks: &[
                "session/agentChanged",
                "session/changesetsChanged",
                "session/customizationUpdated",
                "session/customizationRemoved",
                "changeset/statusChanged",
                "changeset/fileSet",
                "changeset/fileRemoved",
                "changeset/operationsChanged",
                "changeset/cleared",
                "resourceWatch/changed",
            ],
            drops: &[(Node::Session, &["changesets"]), (Node::SessionSummary, &["changesets", "changes"])],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, context: &mut Context<'_>) -> Result<(), RpcError> {
        if matches!(
            call.method.as_str(),
            "resourceResolve" | "resourceMkdir" | "createResourceWatch" | "invokeChangesetOperation"
        ) {
            return Err(RpcError::method_not_found(&call.method));
        }
        let member = match call.method.as_str() {
            "subscribe" | "unsubscribe" => "resource",
            "createSession" | "disposeSession" | "fetchTurns" | "completions" => "session",
            "createTerminal" | "disposeTerminal" => "terminal",
            "dispatchAction" => {
                name_target(&mut call.params);
                "channel"
            }
            _ => "channel",
        };
        node::rename(&mut call.params, member, "channel");
        if !call.params.contains_key("channel") {
            if member != "channel" {
                return Err(RpcError::invalid_params(format_args!("missing field `{member}`")));
            }
            call.params.insert("channel".to_owned(), uris::ROOT.into());
        }
        if call.method == "createSession" {
            name_provider(&mut call.params, context.names);
            for session in
                node::objects_in(&mut call.params, "fork").flat_map(|it| node::texts_in(it, "session"))
            {
                *session = context.names.up(session);
            }
            node::objects_in(&mut call.params, "activeClient").for_each(plugins_of_references);
        }
        if let Some(Value::String(channel)) = call.params.get_mut("channel") {
            *channel = context.names.up(channel);
        }
        each_claim(&mut call.params, &mut |session| context.names.up(session));
        if call.method == "subscribe" {
            if let Some(uri) = node::text(&call.params, "channel").filter(|uri| is_unknown(uri)) {
                return Err(RpcError::resource_not_found(uri));
            }
        }
        for member in ["initialSubscriptions", "subscriptions"] {
            node::retain(&mut call.params, member, |uri| !uri.as_str().is_some_and(is_unknown));
            if let Some(Value::Array(uris)) = call.params.get_mut(member) {
                *uris = uris.iter().flat_map(|uri| candidates(uri, context.names)).collect();
            }
        }
        Ok(())
    }

    fn action_up(&self, incoming: &mut IncomingAction, context: &mut Context<'_>) {
        for member in ["session", "terminal"] {
            incoming.action.remove(member);
        }
        each_claim(&mut incoming.action, &mut |session| context.names.up(session));
        for member in ["userMessage", "message", "userSuggestion"] {
            node::objects_in(&mut incoming.action, member).for_each(resources_of_files);
        }
        match incoming.name() {
            // The pages' text still has this former name of `toolCallConfirmed`.
            "session/permissionResolved" => answer_of_permission(incoming, context.chat),
            "session/customizationToggled" => node::rename(&mut incoming.action, "uri", "id"),
            "session/activeClientChanged" => {
                node::objects_in(&mut incoming.action, "activeClient").for_each(plugins_of_references);
            }
            _ => {}
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Agent => references_of_customizations(object),
            Node::Session => {
                entries_of_customizations(object);
                node::objects_in(object, "activeClient").for_each(references_of_customizations);
            }
            _ => {}
        }
    }

    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, context: &mut Context<'_>) {
        for outgoing in &mut *outgoing_states {
            if matches!(outgoing.kind, ChannelKind::Root | ChannelKind::Terminal) {
                each_claim(&mut outgoing.state, &mut |session| context.names.down(session, None));
            }
        }
        for outgoing in outgoing_states.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Session) {
            let provider = node::text(&outgoing.state, "provider");
            outgoing.resource = context.names.down(&outgoing.channel, provider);
            for summary in node::objects_in(&mut outgoing.state, "summary") {
                summary.insert("resource".to_owned(), outgoing.resource.clone().into());
            }
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        match outgoing.name() {
            "session/customizationsChanged" => entries_of_customizations(&mut outgoing.action),
            "session/customizationToggled" => node::alias(&mut outgoing.action, "id", "uri"),
            "session/activeClientChanged" => {
                node::objects_in(&mut outgoing.action, "activeClient").for_each(references_of_customizations);
            }
            _ => {}
        }
        match outgoing.name().split_once('/') {
            Some(("session", _)) => {
                let session = context.names.down(&outgoing.channel, None);
                outgoing.action.insert("session".to_owned(), session.into());
            }
            Some(("terminal", _)) => {
                each_claim(&mut outgoing.action, &mut |session| context.names.down(session, None));
                outgoing.action.insert("terminal".to_owned(), outgoing.channel.clone().into());
            }
            Some(("root", _)) => {
                each_claim(&mut outgoing.action, &mut |session| context.names.down(session, None))
            }
            _ => {}
        }
        vec![outgoing]
    }

    fn notice_down(&self, notice: OutgoingNotice, context: &mut Context<'_>) -> Option<OutgoingNotice> {
        let OutgoingNotice { method, mut params } = notice;
        if method == "action" {
            let envelope = Value::Object(params.clone());
            params.insert("envelope".to_owned(), envelope);
            return Some(OutgoingNotice { method, params });
        }
        let kind = match method.as_str() {
            "root/sessionAdded" => {
                node::objects_in(&mut params, "summary").for_each(|it| name_summary(it, context.names));
                "notify/sessionAdded"
            }
            "root/sessionRemoved" | "root/sessionSummaryChanged" => {
                let session = node::text(&params, "session").unwrap_or_default().to_owned();
                params.insert("session".to_owned(), context.names.down(&session, None).into());
                if method == "root/sessionRemoved" {
                    context.names.forget(&session);
                    "notify/sessionRemoved"
                } else {
                    "notify/sessionSummaryChanged"
                }
            }
            "auth/required" => "notify/authRequired",
            _ => return None,
        };
        params.remove("channel");
        params.insert("type".to_owned(), kind.into());
        let params = node::members(json!({ "notification": params }));
        Some(OutgoingNotice { method: "notification".to_owned(), params })
    }

    fn result_down(&self, method: &str, result: &mut Value, context: &mut Context<'_>) {
        match (method, result) {
            ("listSessions", Value::Object(result)) => {
                let listed = result.get("items").and_then(Value::as_array).into_iter().flatten();
                let named = listed.filter_map(Value::as_object).filter_map(identity);
                context.names.learn_sessions(named);
                node::objects_in(result, "items").for_each(|it| name_summary(it, context.names));
            }
            ("initialize", Value::Object(result)) => {
                result.remove("completionTriggerCharacters");
                result.remove("telemetry");
            }
            ("subscribe", Value::Object(result)) => flatten_snapshot(result),
            _ => {}
        }
    }

    fn envelope_down(&self, envelope: &mut Object, _in_replay: bool) {
        envelope.remove("channel");
    }

    fn error_down(&self, error: &mut RpcError, context: &mut Context<'_>) {
        if error.code == CONFLICT {
            error.code = ALREADY_EXISTS;
        }
        error.message = context.names.down_in(&error.message);
    }
}

/// Turns the answer to a permission into that of its tool call, by default of the running turn.
fn answer_of_permission(incoming: &mut IncomingAction, chat: Option<&Conversation>) {
    let action = &mut incoming.action;
    let running = chat.and_then(|chat| chat.state().active_turn.as_ref());
    action.entry("turnId").or_insert_with(|| running.map_or("", |turn| &turn.id).into());
    node::rename(action, "requestId", "toolCallId");
    let request = node::text(action, "toolCallId").unwrap_or_default();
    let (call, name) = match request.strip_suffix(RESULT) {
        Some(call) => (call.to_owned(), "session/toolCallResultConfirmed"),
        None => (request.to_owned(), "session/toolCallConfirmed"),
    };
    if name == "session/toolCallConfirmed" {
        let approved = action.get("approved").and_then(Value::as_bool).unwrap_or_default();
        let (member, value) = if approved { ("confirmed", "user-action") } else { ("reason", "denied") };
        action.entry(member).or_insert_with(|| value.into());
    }
    action.insert("toolCallId".to_owned(), call.into());
    incoming.rename(name);
}

/// Sets the channel to the session or terminal that the action names.
fn name_target(params: &mut Object) {
    let action = params.get("action");
    let target = ["session", "terminal"].iter().find_map(|member| action?.get(*member).cloned());
    if let Some(target) = target {
        params.entry("channel").or_insert(target);
    }
}

/// Sets the provider to the scheme of the session's URI, unless the client names one.
fn name_provider(params: &mut Object, names: &mut SessionNames) {
    let Some(uri) = node::text(params, "channel").map(str::to_owned) else { return };
    let Some((scheme, _)) = uri.split_once(':') else { return };
    names.make(&uri, node::text(params, "provider"));
    if node::text(params, "provider").is_none() && !scheme.starts_with("ahp-") {
        params.insert("provider".to_owned(), scheme.into());
    }
}

fn candidates(uri: &Value, names: &mut SessionNames) -> Vec<Value> {
    match uri {
        Value::String(uri) => names.candidates(uri).into_iter().map(Value::String).collect(),
        other => vec![other.clone()],
    }
}

/// Renames the sessions that claim a terminal, or the listed terminals.
fn each_claim(object: &mut Object, name: &mut dyn FnMut(&str) -> String) {
    for session in node::objects_in(object, "claim").flat_map(|claim| node::texts_in(claim, "session")) {
        *session = name(session);
    }
    node::objects_in(object, "terminals").for_each(|terminal| each_claim(terminal, name));
}

fn identity(summary: &Object) -> Option<(&str, Option<&str>)> {
    Some((node::text(summary, "resource")?, node::text(summary, "provider")))
}

fn name_summary(summary: &mut Object, names: &mut SessionNames) {
    let Some((uri, provider)) = identity(summary) else { return };
    let name = names.down(uri, provider);
    summary.insert("resource".to_owned(), name.into());
}

/// Turns attached files and folders in their original form into resources.
fn resources_of_files(message: &mut Object) {
    for attachment in node::objects_in(message, "attachments") {
        let kind = match node::text(attachment, "type") {
            Some(kind @ ("file" | "directory" | "selection")) => kind.to_owned(),
            _ => continue,
        };
        let uri = node::text(attachment, "uri").unwrap_or_default().trim_end_matches('/');
        let last = percent_decode_str(uri.rsplit('/').next().unwrap_or_default());
        let last = last.decode_utf8_lossy().into_owned();
        node::rename(attachment, "displayName", "label");
        attachment.entry("label").or_insert(last.into());
        attachment.insert("type".to_owned(), "resource".into());
        if kind != "file" {
            attachment.entry("displayKind").or_insert(kind.into());
        }
    }
}

/// Adds the members of the snapshot in an answer, which the version has beside each other.
pub(super) fn flatten_snapshot(result: &mut Object) {
    if let Some(Value::Object(snapshot)) = result.get("snapshot").cloned() {
        result.extend(snapshot);
    }
}

fn plugins_of_references(client: &mut Object) {
    for reference in node::objects_in(client, "customizations") {
        node::rename(reference, "displayName", "name");
        node::alias(reference, "uri", "id");
    }
}

fn reference_of(customization: &Object) -> Object {
    let mut reference = node::some_of(customization, &REFERENCE);
    let name = customization.get("name").or(customization.get("uri")).cloned();
    reference.insert("displayName".to_owned(), name.unwrap_or_default());
    reference
}

fn references_of_customizations(holder: &mut Object) {
    node::objects_in(holder, "customizations").for_each(|it| *it = reference_of(it));
}

/// Turns customizations into entries of a session's list.
fn entries_of_customizations(holder: &mut Object) {
    node::objects_in(holder, "customizations").for_each(|it| *it = entry_of(it));
}

fn entry_of(customization: &Object) -> Object {
    let mut entry = Object::new();
    let mut reference = reference_of(customization);
    // Toggles name the entry by its URI, and several servers are described in one file.
    reference.extend(customization.get("id").map(|id| ("uri".to_owned(), id.clone())));
    entry.insert("customization".to_owned(), Value::Object(reference));
    let enabled = customization.get("enabled").cloned().unwrap_or(json!(true));
    entry.insert("enabled".to_owned(), enabled);
    let load = customization.get("load");
    let members = [
        ("clientId", customization.get("clientId")),
        ("status", load.and_then(|load| load.get("kind"))),
        ("statusMessage", load.and_then(|load| load.get("message"))),
    ];
    entry.extend(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.clone()))));
    entry
}
