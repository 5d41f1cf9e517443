//! 0.8.0, as it differs from 0.9.0: a failed turn has its error beside its parts and cannot be
//! resumed; only an exit code shows that a terminal has ended, and a session claims it for no
//! particular chat; an annotation names its turn, but not its chat; and there are no automations.

use ahp_types::state::ResponsePart;
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingState, StepFacts, VersionStep,
};
use crate::host::effects;
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;
use crate::wire::annotations::parse_annotations_uri;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::uris::{self, is_of_automations};

pub struct V0_8_0;

/// Exit code for a command that has ended without one: a terminal without an exit code is running.
const NO_EXIT_CODE: i64 = -1;

/// Methods that the version does not have.
const AUTOMATION_METHODS: [&str; 3] =
    ["listAutomationTriggerDefinitions", "runAutomation", "fetchAutomationRuns"];

impl VersionStep for V0_8_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_8_0,
            losses: &[
                "that a turn can be resumed; one that is resumed is reverted and sent again",
                "that a command has ended without an exit code: it is sent as `-1`",
                "in which chat an annotation came up",
            ],
            lacks: &[
                "automation/set",
                "automation/createRequested",
                "automation/updateRequested",
                "automation/removed",
                "automationRun/lifecycleChanged",
                "automationRun/sessionSet",
                "automationRun/sessionRemoved",
                "automationRun/primarySessionChanged",
                "automationRun/cancelRequested",
                "chat/turnResume",
            ],
            drops: &[(Node::Session, &["origin"]), (Node::SessionSummary, &["origin"])],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        if AUTOMATION_METHODS.contains(&call.method.as_str()) {
            return Err(RpcError::method_not_found(&call.method));
        }
        if let Some(uri) = node::text(&call.params, "channel").filter(|uri| is_of_automations(uri)) {
            if call.method == "subscribe" {
                return Err(RpcError::channel_not_found(uri));
            }
        }
        for member in ["initialSubscriptions", "subscriptions"] {
            node::retain(&mut call.params, member, |uri| !uri.as_str().is_some_and(is_of_automations));
        }
        if call.method == "createSession" {
            call.options.fork = call.params.remove("fork").filter(|fork| !fork.is_null());
        }
        if call.method == "createTerminal" {
            name_chat(&mut call.params);
        }
        Ok(())
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        match incoming.name() {
            name if name.starts_with("automation") => {
                // Unknown names are refused: what becomes of the action could not be sent.
                let name = format!("{name} (there since 0.9.0)");
                incoming.rename(&name);
            }
            "terminal/claimed" => name_chat(&mut incoming.action),
            "annotations/set" => {
                for annotation in node::objects_in(&mut incoming.action, "annotation") {
                    set_origin(annotation, &incoming.channel);
                }
            }
            "annotations/updated" if incoming.action.contains_key("turnId") => {
                set_origin(&mut incoming.action, &incoming.channel);
            }
            _ => {}
        }
    }

    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {
        let is_new = |kind| matches!(kind, ChannelKind::Automations | ChannelKind::AutomationRun);
        outgoing_states.retain(|outgoing| !is_new(outgoing.kind));
    }

    fn result_down(&self, method: &str, result: &mut Value, _context: &mut Context<'_>) {
        if let ("initialize", Value::Object(result)) = (method, result) {
            result.remove("automations");
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Session if node::text(object, "lifecycle") == Some("failed") => {
                object.insert("lifecycle".to_owned(), "creationFailed".into());
            }
            Node::Turn => {
                let parts = object.get("responseParts").and_then(Value::as_array);
                // The last part of a resumed and then cancelled turn may be its former error.
                let last = parts.and_then(|parts| parts.last()).filter(|part| is_error(part));
                let last = last.filter(|_| node::text(object, "state") == Some("error"));
                if let Some(error) = last.and_then(|part| part.get("error")).cloned() {
                    object.insert("error".to_owned(), error);
                }
                node::retain(object, "responseParts", |part| !is_error(part));
            }
            Node::Terminal => {
                let lifecycle = object.get("lifecycle").and_then(Value::as_object);
                let ended = lifecycle.filter(|lifecycle| node::text(lifecycle, "status") == Some("exited"));
                let code = ended.map(|ended| ended.get("exitCode").cloned().unwrap_or(NO_EXIT_CODE.into()));
                object.extend(code.map(|code| ("exitCode".to_owned(), code)));
            }
            Node::Annotation => set_turn(object),
            Node::Message => {
                let origin = node::objects_in(object, "origin");
                for origin in origin.filter(|origin| node::text(origin, "kind") == Some("automation")) {
                    origin.insert("kind".to_owned(), "systemNotification".into());
                }
            }
            _ => {}
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        match (outgoing.name(), context.chat) {
            ("chat/error", _) => {
                if let Some(error) = outgoing.action.get("part").and_then(|part| part.get("error")).cloned() {
                    outgoing.action.insert("error".to_owned(), error);
                }
                vec![outgoing]
            }
            ("annotations/updated", _) if outgoing.action.contains_key("origin") => {
                set_turn(&mut outgoing.action);
                vec![outgoing]
            }
            ("terminal/exited", _) => {
                outgoing.action.entry("exitCode").or_insert(NO_EXIT_CODE.into());
                vec![outgoing]
            }
            ("chat/turnResume", Some(chat)) => restart_last_turn(self, &outgoing.channel, chat),
            _ => vec![outgoing],
        }
    }
}

/// Adds the origin of an annotation: a turn of this session, or none.
fn set_origin(annotation: &mut Object, channel: &str) {
    if annotation.get("origin").is_some_and(Value::is_object) {
        return;
    }
    let mut origin = json!({ "session": parse_annotations_uri(channel).unwrap_or(channel) });
    if let Some(turn) = annotation.get("turnId").filter(|turn| turn.as_str() != Some("")) {
        origin["turnId"] = turn.clone();
    }
    annotation.insert("origin".to_owned(), origin);
}

/// Adds the turn that an annotation came up in; the member is required.
fn set_turn(annotation: &mut Object) {
    let turn = annotation.get("origin").and_then(|origin| origin.get("turnId"));
    let turn = turn.cloned().unwrap_or_else(|| "".into());
    annotation.insert("turnId".to_owned(), turn);
}

/// Adds the session's default chat to a claim that names no chat.
fn name_chat(claims: &mut Object) {
    let Some(Value::Object(claim)) = claims.get_mut("claim") else { return };
    let session = node::text(claim, "session").filter(|_| node::text(claim, "kind") == Some("session"));
    if let Some(chat) = session.map(uris::default_chat_of) {
        claim.entry("chat").or_insert(chat.into());
    }
}

fn is_error(part: &Value) -> bool {
    part["kind"] == "error"
}

/// Returns the actions that remove a chat's last turn and start it again.
fn restart_last_turn(step: &V0_8_0, channel: &str, chat: &Conversation) -> Vec<OutgoingAction> {
    let Some((turn, earlier)) = chat.history().turns().split_last() else { return Vec::new() };
    let mut actions = vec![cut_after(earlier.last())];
    let Some(turn) = effects::turn_to_send(channel, turn) else { return Vec::new() };
    actions.push(json!({
        "type": "chat/turnStarted",
        "turnId": turn.id,
        "startedAt": turn.started_at.as_ref().unwrap_or(&chat.state().modified_at),
        "message": turn.message,
    }));
    let parts = turn.response_parts.iter().filter(|part| !matches!(part, ResponsePart::Error(_)));
    actions.extend(parts.map(|part| json!({ "type": "chat/responsePart", "turnId": turn.id, "part": part })));
    if let Some(usage) = &turn.usage {
        actions.push(json!({ "type": "chat/usage", "turnId": turn.id, "usage": usage }));
    }
    let outgoing = actions.into_iter().map(|action| {
        let mut outgoing = OutgoingAction::new(channel, action);
        node::each_of_action(&mut outgoing.action, &mut |node, object| step.node_down(node, object));
        outgoing
    });
    outgoing.collect()
}

/// Returns the truncation behind a turn; without one, of all turns.
fn cut_after(turn: Option<&CompletedTurn>) -> Value {
    match turn {
        Some(turn) => json!({ "type": "chat/truncated", "turnId": turn.id() }),
        None => json!({ "type": "chat/truncated" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_without_an_exit_code_is_told_all_the_same() {
        for (lifecycle, code) in [
            (json!({ "status": "running" }), Value::Null),
            (json!({ "status": "exited", "exitCode": 0 }), json!(0)),
            (json!({ "status": "exited" }), json!(-1)),
        ] {
            let mut terminal = node::members(json!({ "lifecycle": lifecycle }));
            V0_8_0.node_down(Node::Terminal, &mut terminal);
            assert_eq!(terminal.get("exitCode").unwrap_or(&Value::Null), &code, "{lifecycle}");
        }
    }

    #[test]
    fn a_session_has_a_terminal_for_its_default_chat() {
        let named = |claim: Value| {
            let mut claims = node::members(json!({ "claim": claim }));
            name_chat(&mut claims);
            claims["claim"]["chat"].clone()
        };
        let default = json!("ahp-chat://default/YWhwLXNlc3Npb246L3M");
        assert_eq!(named(json!({ "kind": "session", "session": "ahp-session:/s" })), default);
        assert_eq!(named(json!({ "kind": "session", "session": "ahp-session:/s", "chat": "c" })), "c");
        assert_eq!(named(json!({ "kind": "client", "clientId": "me" })), Value::Null);
    }

    #[test]
    fn an_annotation_says_its_turn_and_where_it_came_up() {
        let channel = "ahp-session:/s/annotations";
        for (sent, meant, received) in [
            (json!({}), json!({ "session": "ahp-session:/s" }), ""),
            (json!({ "turnId": "" }), json!({ "session": "ahp-session:/s" }), ""),
            (json!({ "turnId": "t" }), json!({ "session": "ahp-session:/s", "turnId": "t" }), "t"),
            (
                json!({ "turnId": "t", "origin": { "session": "s", "turnId": "u" } }),
                json!({ "session": "s", "turnId": "u" }),
                "u",
            ),
        ] {
            let mut annotation = node::members(sent);
            set_origin(&mut annotation, channel);
            assert_eq!(annotation["origin"], meant);
            V0_8_0.node_down(Node::Annotation, &mut annotation);
            assert_eq!(annotation["turnId"], received);
        }
    }

    #[test]
    fn only_a_turn_that_failed_has_an_error() {
        for (state, has_error) in [("error", true), ("cancelled", false), ("complete", false)] {
            let error = json!({ "kind": "error", "error": { "message": "no" }, "resumable": true });
            let mut turn = node::members(json!({ "state": state, "responseParts": [error] }));
            V0_8_0.node_down(Node::Turn, &mut turn);
            assert_eq!(turn.contains_key("error"), has_error, "{state}");
            assert_eq!(turn["responseParts"], json!([]), "{state}");
        }
    }
}
