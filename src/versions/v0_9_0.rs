//! 0.9.0, as it differs from 1.0.0: no canvases, no work in the background, and chats are neither
//! moved nor put in order; whether one was read is shown by its session's list alone; and a
//! changeset that is computed anew is told as one that is computed for the first time.

use serde_json::Value;

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    IncomingAction, IncomingCall, OutgoingAction, OutgoingNotification, OutgoingState, TranslationContext,
    VersionStep,
};
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;

/// See the module.
pub struct V0_9_0;

impl VersionStep for V0_9_0 {
    fn dialect(&self) -> Dialect {
        Dialect::V0_9_0
    }

    fn losses(&self) -> &'static [&'static str] {
        &[
            "a chat's own state keeps its read and archived flags until the next snapshot; its row in the session has them",
            "that a session's chats are put into another order, until the next snapshot",
            "that a changeset was computed before",
        ]
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "session/chatsReordered",
            "session/mcpServerBackgroundRequested",
            "chat/backgroundWorkSet",
            "chat/backgroundWorkRemoved",
            "chat/movableChanged",
            "chat/changesetsChanged",
            "chat/canvasesChanged",
            "chat/isReadChanged",
            "chat/isArchivedChanged",
            "canvas/stateChanged",
        ]
    }

    fn call_up(
        &self,
        call: &mut IncomingCall,
        _context: &mut TranslationContext<'_>,
    ) -> Result<(), RpcError> {
        if call.method == "moveChat" {
            return Err(RpcError::method_not_found(&call.method));
        }
        if let Some(Value::Object(client)) = call.params.get_mut("activeClient") {
            name_plugins(client);
        }
        Ok(())
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        let later: &[&str] = match node {
            Node::SessionSummary => &["chats", "defaultChat"],
            Node::Chat => &["backgroundWork", "canvases", "changes", "changesets", "movable"],
            Node::ChatSummary => &["changes", "movable"],
            _ => return,
        };
        for member in later {
            object.remove(*member);
        }
    }

    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, _context: &mut TranslationContext<'_>) {
        for outgoing in outgoing_states.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Changeset)
        {
            name_computing(&mut outgoing.state);
        }
    }

    fn action_down(
        &self,
        mut told: OutgoingAction,
        _context: &mut TranslationContext<'_>,
    ) -> Vec<OutgoingAction> {
        if told.name() == "changeset/statusChanged" {
            name_computing(&mut told.action);
        }
        let changes = told.action.get("changes").and_then(Value::as_object);
        // What has changed of a chat's row may be what is left out.
        if told.name() == "session/chatUpdated" && changes.is_some_and(|changes| changes.is_empty()) {
            return Vec::new();
        }
        vec![told]
    }

    fn notice_down(
        &self,
        notice: OutgoingNotification,
        _context: &mut TranslationContext<'_>,
    ) -> Option<OutgoingNotification> {
        let changes = notice.params.get("changes").and_then(Value::as_object);
        // What has changed may be what is left out.
        changes.is_none_or(|changes| !changes.is_empty()).then_some(notice)
    }

    fn action_up(&self, said: &mut IncomingAction, _context: &mut TranslationContext<'_>) {
        if let Some(Value::Object(client)) = said.action.get_mut("activeClient") {
            name_plugins(client);
        }
    }
}

/// The crates before 0.9.0 do not know the word for a changeset that is computed anew.
fn name_computing(changeset: &mut Object) {
    if node::text(changeset, "status") == Some("recomputing") {
        changeset.insert("status".to_owned(), "computing".into());
    }
}

/// The crates before 1.0.0 leave out what kind of customization a client brings: it is always a
/// plugin.
fn name_plugins(client: &mut Object) {
    if let Some(Value::Array(plugins)) = client.get_mut("customizations") {
        for plugin in plugins.iter_mut().filter_map(Value::as_object_mut) {
            plugin.entry("type").or_insert_with(|| "plugin".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_that_are_there_since_1_0_0_are_left_out() {
        let all = json!({ "resource": "c:/1", "title": "t", "status": 1, "backgroundWork": [], "canvases": [],
            "changes": {}, "changesets": [], "movable": true });
        let told = |node: Node| {
            let mut object = all.as_object().cloned().unwrap();
            V0_9_0.node_down(node, &mut object);
            Value::Object(object)
        };
        assert_eq!(told(Node::Chat), json!({ "resource": "c:/1", "title": "t", "status": 1 }));
        let summary = told(Node::ChatSummary);
        assert!(summary.get("movable").is_none() && summary.get("changes").is_none(), "{summary}");
    }
}
