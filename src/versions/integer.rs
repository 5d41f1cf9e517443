//! Integer version 1 of the crate 0.1.0, and how it differs from the pages of 0.1.0: its name is 1;
//! actions have no `envelope`, and `subscribe` answers a `snapshot`, as in all later versions;
//! attachments are files, folders and selections; and a turn contains no system notifications.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{Context, OutgoingNotice, StepFacts, VersionStep};

pub struct Integer;

impl VersionStep for Integer {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::Integer,
            losses: &[
                "attachments but files, folders and selections",
                "notices of the system in a turn: they are shown as text of the agent",
            ],
            lacks: &[],
            drops: &[],
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            // An unknown kind would make the whole message unreadable.
            Node::Message => {
                if let Some(Value::Array(attachments)) = object.get_mut("attachments") {
                    *attachments = attachments.iter().filter_map(file_of_resource).collect();
                }
            }
            Node::Part if node::text(object, "kind") == Some("systemNotification") => {
                let content = node::plain_text(object.get("content"));
                object.clear();
                object.insert("kind".to_owned(), "markdown".into());
                // Any id will do: nothing is appended to this part.
                object.insert("id".to_owned(), "notice".into());
                object.insert("content".to_owned(), content.into());
            }
            _ => {}
        }
    }

    fn notice_down(&self, mut notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        notice.params.remove("envelope");
        Some(notice)
    }

    fn result_down(&self, method: &str, result: &mut Value, _context: &mut Context<'_>) {
        if let ("subscribe", Value::Object(result)) = (method, result) {
            result.retain(|member, _| member == "snapshot");
        }
    }
}

/// Returns the original form of an attached resource; `None` for other attachments.
fn file_of_resource(attachment: &Value) -> Option<Value> {
    let attachment = attachment.as_object()?;
    if node::text(attachment, "type")? != "resource" {
        return None;
    }
    let kind = node::text(attachment, "displayKind");
    let kind = kind.filter(|kind| matches!(*kind, "directory" | "selection")).unwrap_or("file");
    let uri = node::text(attachment, "uri")?;
    Some(json!({ "type": kind, "uri": uri, "displayName": node::text(attachment, "label") }))
}
