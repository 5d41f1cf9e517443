//! Parts of an agent's messages that the host's protocol has no member for: kept in `_meta`, under
//! names of their own.
//!
//! Owns: those names, what is left of something when its placed members are taken out, and the
//! bound on what is kept.
//! Never: keeps what is shown in another way.

use ahp_types::common::JsonObject;
use serde_json::{json, Value};

use crate::host::effects::{CallExtras, TurnEvent};

pub const KIND: &str = "acp.kind";
pub const LOCATIONS: &str = "acp.locations";
/// Members of a tool call's content that the protocol has no member for, by the index of the
/// content.
pub const CONTENT: &str = "acp.content";
/// The agent's own `_meta`.
pub const META: &str = "acp.meta";
/// Members of a command's input besides the command line.
pub const RAW_INPUT: &str = "acp.rawInput";
/// Output of a call for programs, if it is not an object.
pub const RAW_OUTPUT: &str = "acp.rawOutput";
/// Members that the agent reports of its own terminal besides the output.
pub const TERMINAL: &str = "acp.terminal";
/// The name of the message that a part of the answer belongs to.
pub const MESSAGE_ID: &str = "acp.messageId";
/// Members of a piece of the answer that the protocol has no member for.
pub const CHUNK: &str = "acp.chunk";
/// Severity of a notice: `info`, `warning`, `error`, or another word of the agent's.
pub const SEVERITY: &str = "acp.severity";
/// The size of the context, what is used of it, and the cost.
pub const CONTEXT: &str = "acp.context";
/// Counts of tokens that have no place.
pub const USAGE: &str = "acp.usage";
pub const PLAN: &str = "acp.plan";
/// Members of the session's info besides its title.
pub const SESSION_INFO: &str = "acp.sessionInfo";
/// Why the tools of clients do not reach the agent.
pub const CLIENT_TOOLS: &str = "acp.clientTools";
/// The last update of each kind that nobody knows.
pub const UPDATES: &str = "acp.updates";

/// Kind of a tool call in the words of clients that follow VS Code, where they have one.
pub const TOOL_KIND: &str = "toolKind";

/// Whatever is kept under one name is no longer than this as JSON, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Maximum number of members collected under one name.
const MEMBERS_MAX: usize = 32;

/// Returns a value, or how long it is if it is too long to be kept.
pub fn kept(value: Value) -> Value {
    let bytes = value.to_string().len();
    if bytes > KEPT_BYTES_MAX {
        return json!({ "omittedBytes": bytes });
    }
    value
}

/// Members of permission options that the protocol has no member for, by the options' ids.
pub const OPTIONS: &str = "acp.options";

/// Returns the members of an object without those that are placed elsewhere; `None` if none are
/// left.
pub fn rest(value: Value, placed: &[&str]) -> Option<JsonObject> {
    let Value::Object(mut members) = value else { return None };
    members.retain(|name, value| !value.is_null() && !placed.contains(&name.as_str()));
    (!members.is_empty()).then_some(members)
}

/// Adds members to others that are kept, in place of those of the same names.
pub fn add(members: &mut JsonObject, more: JsonObject) {
    for (name, value) in more {
        if members.len() < MEMBERS_MAX || members.contains_key(&name) {
            members.insert(name, kept(value));
        }
    }
}

/// Returns an event with what is told besides, if there is any.
pub fn with(event: TurnEvent, extras: CallExtras) -> TurnEvent {
    if extras == CallExtras::default() {
        return event;
    }
    TurnEvent::With(Box::new(event), extras)
}

/// Returns an event without what is told besides.
pub fn bare(event: &TurnEvent) -> &TurnEvent {
    match event {
        TurnEvent::With(event, _) => event,
        event => event,
    }
}

/// Puts a value under a name, if there is any.
pub fn put(meta: &mut JsonObject, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        meta.insert(name.to_owned(), kept(value.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_only_counted() {
        let long = Value::String("x".repeat(KEPT_BYTES_MAX - 2));
        assert_eq!(kept(long.clone()), long);
        let longer = Value::String("x".repeat(KEPT_BYTES_MAX - 1));
        assert_eq!(kept(longer), json!({ "omittedBytes": KEPT_BYTES_MAX + 1 }));
    }

    #[test]
    fn members_are_replaced_and_no_more_than_a_few_collected() {
        let mut members = JsonObject::new();
        for number in 0..100 {
            add(&mut members, [(format!("{}", number % 50), number.into())].into_iter().collect());
        }
        assert_eq!((members.len(), &members["31"]), (MEMBERS_MAX, &json!(81)));
    }

    #[test]
    fn the_rest_is_what_has_no_place() {
        let said = json!({ "a": 1, "b": null, "c": { "d": null } });
        assert_eq!(rest(said.clone(), &["a"]).map(Value::Object), Some(json!({ "c": { "d": null } })));
        assert_eq!(rest(said, &["a", "c"]), None);
    }
}
