//! 0.7.0, as it differs from 0.8.0: a customization is on or off for everyone; and a resource that
//! needs authentication is named, not described.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, StepFacts, VersionStep,
};
use super::translation::replaced;
use crate::wire::customizations::OTHER_SCOPES;
use crate::wire::errors::RpcError;

pub struct V0_7_0;

impl VersionStep for V0_7_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_7_0,
            losses: &[
                "for whom a customization is on; a working directory that is replaced is removed and set",
            ],
            lacks: &["session/workingDirectoryReplaced"],
            drops: &[],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        node::objects_in(&mut call.params, "activeClient").for_each(decide_about_plugins);
        Ok(())
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        node::objects_in(&mut incoming.action, "activeClient").for_each(decide_about_plugins);
        if incoming.name() == "session/customizationToggled" && !incoming.action.contains_key("enablement") {
            let enabled = incoming.action.get("enabled").cloned().unwrap_or(Value::Bool(true));
            incoming.action.insert(
                "enablement".to_owned(),
                json!([{ "kind": "session", "enabled": enabled }, { "kind": OTHER_SCOPES }]),
            );
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Agent => each_customization(object),
            Node::Session => {
                each_customization(object);
                node::objects_in(object, "activeClients").for_each(each_customization);
            }
            _ => {}
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        match outgoing.name() {
            "session/customizationToggled" => enable(&mut outgoing.action),
            "session/customizationsChanged" => each_customization(&mut outgoing.action),
            "session/customizationUpdated" => {
                node::objects_in(&mut outgoing.action, "customization").for_each(enable_with_children);
            }
            "session/activeClientSet" => {
                node::objects_in(&mut outgoing.action, "activeClient").for_each(each_customization);
            }
            "session/workingDirectoryReplaced" => {
                let change = |name: &str, directory: &Value| {
                    let name = format!("session/workingDirectory{name}");
                    OutgoingAction::new(&outgoing.channel, json!({ "type": name, "directory": directory }))
                };
                // Removes all directories from the replaced one on, and adds them again in order.
                let member = |name| outgoing.action.get(name).unwrap_or(&Value::Null);
                let before = context.directories;
                let after = replaced(before, member("directory"), member("replacement"));
                let same = before.iter().zip(&after).take_while(|(before, after)| before == after).count();
                let removed = before[same..].iter().map(|directory| change("Removed", directory));
                let set = after[same..].iter().map(|directory| change("Set", directory));
                return removed.chain(set).collect();
            }
            _ => {}
        }
        vec![outgoing]
    }

    fn notice_down(&self, mut notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        if notice.method == "auth/required" {
            let name = notice.params.get("resource").and_then(|resource| resource.get("resource")).cloned();
            notice.params.extend(name.map(|name| ("resource".to_owned(), name)));
        }
        Some(notice)
    }
}

/// Turns off for the session what a client has published as off.
fn decide_about_plugins(client: &mut Object) {
    for plugin in node::objects_in(client, "customizations") {
        let is_off = plugin.get("enabled") == Some(&Value::Bool(false));
        if is_off && !plugin.contains_key("enablement") {
            plugin.insert("enablement".to_owned(), json!([{ "kind": "session", "enabled": false }]));
        }
    }
}

fn each_customization(holder: &mut Object) {
    node::objects_in(holder, "customizations").for_each(enable_with_children);
}

fn enable_with_children(customization: &mut Object) {
    enable(customization);
    let children = node::objects_in(customization, "children");
    children.filter(|child| node::text(child, "type") == Some("mcpServer")).for_each(enable);
}

/// Sets `enabled` to the first decision, or to true if there is none.
fn enable(object: &mut Object) {
    let first = object.get("enablement").and_then(|enablement| enablement.get(0));
    let enabled = first.and_then(|decision| decision.get("enabled")).cloned().unwrap_or(Value::Bool(true));
    object.entry("enabled").or_insert(enabled);
}
