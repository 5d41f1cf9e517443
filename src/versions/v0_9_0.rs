//! 0.9.0, as it differs from 1.0.0: no canvases, no background work, and chats are neither moved
//! nor reordered; only the session's list shows whether a chat was read; a changeset that is
//! computed again has the status of the first time; and automations have no conditions.

use serde_json::Value;

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, OutgoingState, StepFacts,
    VersionStep,
};
use crate::wire::canvases::is_canvas;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;

pub struct V0_9_0;

impl VersionStep for V0_9_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_9_0,
            losses: &[
                "a chat's own state keeps its read and archived flags until the next snapshot; its row \
                 in the session has them",
                "that a session's chats are put into another order, until the next snapshot",
                "that a changeset was computed before",
                "the conditions under which an automation disables itself, and the number of its scheduled runs",
            ],
            lacks: &[
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
            ],
            drops: &[
                (Node::SessionSummary, &["chats", "defaultChat"]),
                (Node::Chat, &["backgroundWork", "canvases", "changes", "changesets", "movable"]),
                (Node::ChatSummary, &["changes", "movable"]),
                (Node::Automation, &["customizations", "runCount"]),
                (Node::AutomationDefinition, &["disableConditions"]),
            ],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        if call.method == "moveChat" {
            return Err(RpcError::method_not_found(&call.method));
        }
        if let Some(uri) = node::text(&call.params, "channel").filter(|uri| is_canvas(uri)) {
            if call.method == "subscribe" {
                return Err(RpcError::resource_not_found(uri));
            }
        }
        for member in ["initialSubscriptions", "subscriptions"] {
            node::retain(&mut call.params, member, |uri| !uri.as_str().is_some_and(is_canvas));
        }
        node::objects_in(&mut call.params, "activeClient").for_each(name_plugins);
        Ok(())
    }

    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {
        for outgoing in outgoing_states.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Changeset)
        {
            name_computing(&mut outgoing.state);
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        if outgoing.name() == "changeset/statusChanged" {
            name_computing(&mut outgoing.action);
        }
        let changes = outgoing.action.get("changes").and_then(Value::as_object);
        // All changed members may have been removed.
        if outgoing.name() == "session/chatUpdated" && changes.is_some_and(|changes| changes.is_empty()) {
            return Vec::new();
        }
        vec![outgoing]
    }

    fn notice_down(&self, notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        let changes = notice.params.get("changes").and_then(Value::as_object);
        // All changed members may have been removed.
        changes.is_none_or(|changes| !changes.is_empty()).then_some(notice)
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        node::objects_in(&mut incoming.action, "activeClient").for_each(name_plugins);
        for member in ["definition", "changes"] {
            node::objects_in(&mut incoming.action, member).for_each(|definition| {
                definition.remove("disableConditions");
                node::objects_in(definition, "session").for_each(|template| {
                    template.remove("customizations");
                });
            });
        }
    }
}

/// Replaces a status that the crates before 1.0.0 do not know.
fn name_computing(changeset: &mut Object) {
    if node::text(changeset, "status") == Some("recomputing") {
        changeset.insert("status".to_owned(), "computing".into());
    }
}

/// Adds the type of a client's customizations, which crates before 1.0.0 omit: always a plugin.
fn name_plugins(client: &mut Object) {
    for plugin in node::objects_in(client, "customizations") {
        plugin.entry("type").or_insert_with(|| "plugin".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::step;
    use serde_json::json;

    #[test]
    fn members_that_are_there_since_1_0_0_are_left_out() {
        let all = json!({ "resource": "c:/1", "title": "t", "status": 1, "backgroundWork": [], "canvases": [],
            "changes": {}, "changesets": [], "movable": true });
        let outgoing = |node: Node| {
            let mut object = all.as_object().cloned().unwrap();
            step::node_down(&V0_9_0, node, &mut object);
            Value::Object(object)
        };
        assert_eq!(outgoing(Node::Chat), json!({ "resource": "c:/1", "title": "t", "status": 1 }));
        let summary = outgoing(Node::ChatSummary);
        assert!(summary.get("movable").is_none() && summary.get("changes").is_none(), "{summary}");
    }

    #[test]
    fn conditions_of_automations_are_left_out_in_both_directions() {
        let definition = || json!({ "title": "t", "session": {}, "disableConditions": [] });
        let entry =
            json!({ "resource": "a", "definition": definition(), "runCount": 1, "customizations": [] });
        let short = json!({ "resource": "a", "definition": { "title": "t", "session": {} } });
        let mut state = node::members(json!({ "entries": [entry] }));
        node::each(Node::Automations, &mut state, &mut |node, object| step::node_down(&V0_9_0, node, object));
        assert_eq!(Value::Object(state), json!({ "entries": [short] }));
        let mut set = node::members(json!({ "type": "automation/set", "automation": entry }));
        node::each_of_action(&mut set, &mut |node, object| step::node_down(&V0_9_0, node, object));
        assert_eq!(Value::Object(set), json!({ "type": "automation/set", "automation": short }));
    }
}
