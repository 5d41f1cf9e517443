//! 0.3.0, as it differs from 0.4.0: a session is one conversation, that of its default chat. Only
//! the session's status shows the activity of other chats.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::names::rename_in;
use super::node::{self, Node, Object};
use super::step::{
    Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingState, StepFacts, VersionStep,
};
use super::translation::lists_first_chat;
use crate::state::reduce::Conversation;
use crate::wire::annotations::parse_annotations_uri;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::uris;

pub struct V0_3_0;

/// Actions on a chat that were actions on its session.
const MOVED: [&str; 22] = [
    "turnStarted",
    "delta",
    "responsePart",
    "toolCallStart",
    "toolCallDelta",
    "toolCallReady",
    "toolCallConfirmed",
    "toolCallComplete",
    "toolCallResultConfirmed",
    "toolCallContentChanged",
    "turnComplete",
    "turnCancelled",
    "error",
    "usage",
    "reasoning",
    "pendingMessageSet",
    "pendingMessageRemoved",
    "queuedMessagesReordered",
    "inputRequested",
    "inputAnswerChanged",
    "inputCompleted",
    "truncated",
];

/// Actions that mark a session as unread in 0.3.0, and only the chat in later versions.
const UNREAD_BY: [&str; 2] = ["turnStarted", "inputRequested"];

/// Members of a chat's state that were members of its session's.
const CONVERSATION: [&str; 5] = ["turns", "activeTurn", "steeringMessage", "queuedMessages", "inputRequests"];

/// Activity bits of a status; the others are flags that users set.
const ACTIVITY: u64 = 0x1f;

impl VersionStep for V0_3_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_3_0,
            losses: &[
                "chats but the default one, and the turns of that one when it comes back from another \
                 session, until the next snapshot",
                "annotations",
                "what a watch of files is about; it tells what changes",
            ],
            lacks: &[
                "session/chatAdded",
                "session/chatRemoved",
                "session/chatUpdated",
                "session/defaultChatChanged",
                "annotations/set",
                "annotations/updated",
                "annotations/removed",
                "annotations/entrySet",
                "annotations/entryRemoved",
            ],
            drops: &[(Node::Session, &["annotations"]), (Node::SessionSummary, &["annotations"])],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        let channel = node::text(&call.params, "channel").unwrap_or_default();
        match call.method.as_str() {
            "createChat" | "disposeChat" => return Err(RpcError::method_not_found(&call.method)),
            "fetchTurns" | "completions" => {
                let session = channel.to_owned();
                call.params.insert("channel".to_owned(), uris::default_chat_of(&session).into());
                call.session = Some(session);
            }
            "subscribe" if is_unknown(channel) => {
                return Err(RpcError::channel_not_found(channel));
            }
            "initialize" | "reconnect" => {
                for member in ["initialSubscriptions", "subscriptions"] {
                    node::retain(&mut call.params, member, |uri| !uri.as_str().is_some_and(is_unknown));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        if incoming.name().starts_with("annotations/") {
            // Makes the name unknown, so that the action is refused: its outcome could not be sent.
            let name = format!("{} (there since 0.4.0)", incoming.name());
            return incoming.rename(&name);
        }
        let Some(name) = incoming.name().strip_prefix("session/").filter(|name| MOVED.contains(name)) else {
            return;
        };
        let name = format!("chat/{name}");
        let session = std::mem::take(&mut incoming.channel);
        incoming.channel = uris::default_chat_of(&session);
        incoming.session = Some(session);
        incoming.action.insert("type".to_owned(), name.into());
        // The origin of a message may have any form.
        for message in node::objects_in(&mut incoming.action, "message") {
            if !message.get("origin").is_some_and(|origin| origin["kind"].is_string()) {
                message.insert("origin".to_owned(), json!({ "kind": "user" }));
            }
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        if node == Node::Attachment && node::text(object, "type") == Some("annotations") {
            // Only its label can be shown.
            object.insert("type".to_owned(), "simple".into());
        }
    }

    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {
        let (mut chats, mut rest): (Vec<OutgoingState>, Vec<OutgoingState>) = std::mem::take(outgoing_states)
            .into_iter()
            .partition(|outgoing| outgoing.kind == ChannelKind::Chat);
        for outgoing in rest.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Session) {
            let has_first_chat = lists_first_chat(&outgoing.state, &outgoing.channel);
            for member in ["chats", "defaultChat"] {
                outgoing.state.remove(member);
            }
            outgoing.state.insert("turns".to_owned(), json!([]));
            let chat = uris::default_chat_of(&outgoing.channel);
            let chat = chats.iter_mut().find(|outgoing| outgoing.channel == chat);
            let Some(chat) = chat.filter(|_| has_first_chat) else { continue };
            for member in CONVERSATION {
                let value = chat.state.remove(member);
                outgoing.state.extend(value.map(|value| (member.to_owned(), value)));
            }
            let activity = chat.state.get("status").and_then(Value::as_u64).unwrap_or_default();
            with_activity(&mut outgoing.state, activity);
            node::objects_in(&mut outgoing.state, "summary").for_each(|it| with_activity(it, activity));
        }
        for outgoing in rest.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Changeset) {
            leave_out_disabled(&mut outgoing.state);
        }
        // Watches and annotations have states since 0.4.0.
        rest.retain(|outgoing| !matches!(outgoing.kind, ChannelKind::Watch | ChannelKind::Annotations));
        *outgoing_states = rest;
    }

    fn envelope_down(&self, envelope: &mut Object, _in_replay: bool) {
        if let Some(Value::String(reason)) = envelope.get_mut("rejectionReason") {
            *reason = rename_in(reason, |word| Some(format!("session/{}", word.strip_prefix("chat/")?)));
        }
    }

    fn error_down(&self, error: &mut RpcError, _context: &mut Context<'_>) {
        error.message = rename_in(&error.message, uris::session_of_default_chat);
    }

    fn action_down(&self, mut outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        leave_out_disabled(&mut outgoing.action);
        match outgoing.name() {
            "changeset/contentChanged" => return one_by_one(outgoing),
            // The chats of a session that is disposed of are removed, too; that needs no action.
            "session/chatRemoved"
                if context.has_further_chats
                    && node::text(&outgoing.action, "chat")
                        == Some(&uris::default_chat_of(&outgoing.channel)) =>
            {
                return without_conversation(&outgoing.channel, context.chat);
            }
            _ => {}
        }
        let Some(name) = outgoing.name().strip_prefix("chat/").map(str::to_owned) else {
            return vec![outgoing];
        };
        let is_shown = MOVED.contains(&name.as_str()) && !context.is_first_chat_elsewhere;
        let Some(session) = uris::session_of_default_chat(&outgoing.channel).filter(|_| is_shown) else {
            return Vec::new();
        };
        outgoing.action.insert("type".to_owned(), format!("session/{name}").into());
        outgoing.channel = session;
        let mut all = vec![outgoing];
        if context.is_read && UNREAD_BY.contains(&name.as_str()) {
            let read = json!({ "type": "session/isReadChanged", "isRead": true });
            all.push(OutgoingAction::new(&all[0].channel, read));
        }
        all
    }
}

/// Returns whether a channel is of a kind that 0.3.0 does not have.
fn is_unknown(uri: &str) -> bool {
    uri.starts_with("ahp-chat:") || parse_annotations_uri(uri).is_some()
}

/// Returns the actions that leave a session without its conversation, which was `chat`.
fn without_conversation(session: &str, chat: Option<&Conversation>) -> Vec<OutgoingAction> {
    let state = chat.map(Conversation::state);
    let steering = state.and_then(|state| state.steering_message.as_ref()).map(|it| ("steering", it));
    let queued = state.and_then(|state| state.queued_messages.as_ref()).into_iter().flatten();
    let pending = steering.into_iter().chain(queued.map(|it| ("queued", it)));
    let removals = pending
        .map(|(kind, it)| json!({ "type": "session/pendingMessageRemoved", "kind": kind, "id": it.id }));
    // Without a turn, all turns are removed, and the running one with its questions.
    let truncated = json!({ "type": "session/truncated" });
    let all = removals.chain([truncated]);
    all.map(|action| OutgoingAction::new(session, action)).collect()
}

/// Removes disabled operations: the crates before 0.4.0 do not know that status.
fn leave_out_disabled(changeset: &mut Object) {
    node::retain(changeset, "operations", |operation| operation["status"] != "disabled");
}

/// Returns an action for each file of a changeset.
fn one_by_one(mut outgoing: OutgoingAction) -> Vec<OutgoingAction> {
    let mut actions = vec![json!({ "type": "changeset/cleared" })];
    if let Some(Value::Array(files)) = outgoing.action.remove("files") {
        actions.extend(files.into_iter().map(|file| json!({ "type": "changeset/fileSet", "file": file })));
    }
    if let Some(operations) = outgoing.action.remove("operations") {
        actions.push(json!({ "type": "changeset/operationsChanged", "operations": operations }));
    }
    actions.into_iter().map(|action| OutgoingAction::new(&outgoing.channel, action)).collect()
}

/// Replaces the activity bits of a session's status by those of its one conversation.
fn with_activity(object: &mut Object, activity: u64) {
    if let Some(status) = object.get("status").and_then(Value::as_u64) {
        object.insert("status".to_owned(), (status & !ACTIVITY | activity & ACTIVITY).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_is_not_done_now_is_not_offered() {
        let changed = json!({
            "type": "changeset/operationsChanged",
            "operations": [{ "id": "a", "status": "disabled" }, { "id": "b", "status": "running" }],
        });
        let mut action = node::members(changed);
        leave_out_disabled(&mut action);
        assert_eq!(action["operations"], json!([{ "id": "b", "status": "running" }]));
    }

    #[test]
    fn all_files_of_a_changeset_are_told_one_by_one() {
        let changed = json!({ "type": "changeset/contentChanged", "files": [{ "id": "a" }, { "id": "b" }], "operations": [] });
        let outgoing = one_by_one(OutgoingAction::new("c", changed));
        let actions: Vec<Value> =
            outgoing.into_iter().map(|outgoing| Value::Object(outgoing.action)).collect();
        assert_eq!(
            actions,
            [
                json!({ "type": "changeset/cleared" }),
                json!({ "type": "changeset/fileSet", "file": { "id": "a" } }),
                json!({ "type": "changeset/fileSet", "file": { "id": "b" } }),
                json!({ "type": "changeset/operationsChanged", "operations": [] }),
            ]
        );
    }
}
