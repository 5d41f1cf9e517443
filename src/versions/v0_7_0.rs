//! 0.7.0, as it differs from 0.8.0: a customization is on or off, and nothing says for whom; and
//! what is to be authenticated for is named, not described.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{IncomingAction, OutgoingAction, OutgoingNotification, TranslationContext, VersionStep};
use super::translation::replaced;

/// See the module.
pub struct V0_7_0;

impl VersionStep for V0_7_0 {
    fn dialect(&self) -> Dialect {
        Dialect::V0_7_0
    }

    fn losses(&self) -> &'static [&'static str] {
        &["for whom a customization is on; a working directory that is replaced is removed and set"]
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["session/workingDirectoryReplaced"]
    }

    fn action_up(&self, said: &mut IncomingAction, _context: &mut TranslationContext<'_>) {
        if said.name() == "session/customizationToggled" && !said.action.contains_key("enablement") {
            let enabled = said.action.get("enabled").cloned().unwrap_or(Value::Bool(true));
            said.action.insert("enablement".to_owned(), json!([{ "kind": "session", "enabled": enabled }]));
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Agent => each_customization(object),
            Node::Session => {
                each_customization(object);
                if let Some(Value::Array(clients)) = object.get_mut("activeClients") {
                    clients.iter_mut().filter_map(Value::as_object_mut).for_each(each_customization);
                }
            }
            _ => {}
        }
    }

    fn action_down(
        &self,
        mut told: OutgoingAction,
        context: &mut TranslationContext<'_>,
    ) -> Vec<OutgoingAction> {
        match told.name() {
            "session/customizationToggled" => enable(&mut told.action),
            "session/customizationsChanged" => each_customization(&mut told.action),
            "session/customizationUpdated" => {
                if let Some(Value::Object(customization)) = told.action.get_mut("customization") {
                    enable_with_children(customization);
                }
            }
            "session/activeClientSet" => {
                if let Some(Value::Object(client)) = told.action.get_mut("activeClient") {
                    each_customization(client);
                }
            }
            "session/workingDirectoryReplaced" => {
                let change = |name: &str, directory: &Value| {
                    let mut action = Object::new();
                    action.insert("type".to_owned(), format!("session/workingDirectory{name}").into());
                    action.insert("directory".to_owned(), directory.clone());
                    OutgoingAction { channel: told.channel.clone(), action }
                };
                // What follows it is taken away and put back behind its replacement.
                let member = |name| told.action.get(name).unwrap_or(&Value::Null);
                let before = context.directories;
                let after = replaced(before, member("directory"), member("replacement"));
                let same = before.iter().zip(&after).take_while(|(before, after)| before == after).count();
                let removed = before[same..].iter().map(|directory| change("Removed", directory));
                let set = after[same..].iter().map(|directory| change("Set", directory));
                return removed.chain(set).collect();
            }
            _ => {}
        }
        vec![told]
    }

    fn notice_down(
        &self,
        mut notice: OutgoingNotification,
        _context: &mut TranslationContext<'_>,
    ) -> Option<OutgoingNotification> {
        if notice.method == "auth/required" {
            let name = notice.params.get("resource").and_then(|resource| resource.get("resource")).cloned();
            notice.params.extend(name.map(|name| ("resource".to_owned(), name)));
        }
        Some(notice)
    }
}

fn each_customization(holder: &mut Object) {
    if let Some(Value::Array(customizations)) = holder.get_mut("customizations") {
        customizations.iter_mut().filter_map(Value::as_object_mut).for_each(enable_with_children);
    }
}

fn enable_with_children(customization: &mut Object) {
    enable(customization);
    if let Some(Value::Array(children)) = customization.get_mut("children") {
        let servers = children.iter_mut().filter_map(Value::as_object_mut);
        servers.filter(|child| node::text(child, "type") == Some("mcpServer")).for_each(enable);
    }
}

/// Says whether it is on: what is decided first counts, and what nobody decided on is on.
fn enable(object: &mut Object) {
    let first = object.get("enablement").and_then(|enablement| enablement.get(0));
    let enabled = first.and_then(|decision| decision.get("enabled")).cloned().unwrap_or(Value::Bool(true));
    object.entry("enabled").or_insert(enabled);
}
