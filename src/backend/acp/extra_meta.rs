//! Unplaced members: parts of agents' messages without a counterpart in the host's protocol, stored
//! in `_meta` under names of their own.
//!
//! Owns: these names, the extraction of such members, and their size limit.
//! Never: stores anything that is shown in another way.

use ahp_types::common::JsonObject;
use serde_json::{json, Value};

use crate::host::effects::{CallExtras, TurnEvent};
use crate::wire::tool_calls::OMITTED;
pub use crate::wire::tool_calls::{KIND, LOCATIONS, OPTIONS, RAW_INPUT, TOOL_KIND};

/// Unplaced members of a tool call's content, with the index of the content.
pub const CONTENT: &str = "acp.content";
/// The agent's own `_meta`.
pub const META: &str = "acp.meta";
/// Machine-readable output of a call, if it is not an object.
pub const RAW_OUTPUT: &str = "acp.rawOutput";
/// Members reported about the agent's own terminal, besides the output.
pub const TERMINAL: &str = "acp.terminal";
/// Id of the message to which a part of the answer belongs.
pub const MESSAGE_ID: &str = "acp.messageId";
/// Unplaced members of a chunk of the answer.
pub const CHUNK: &str = "acp.chunk";
/// Severity of a notice: `info`, `warning`, `error`, or another word of the agent.
pub const SEVERITY: &str = "acp.severity";
/// Size and use of the context window, and the cost.
pub const CONTEXT: &str = "acp.context";
/// Token counts without a counterpart in the host's protocol.
pub const USAGE: &str = "acp.usage";
pub const PLAN: &str = "acp.plan";
/// Members of the session info, besides the title.
pub const SESSION_INFO: &str = "acp.sessionInfo";
/// Reason for which client tools do not reach the agent.
pub const CLIENT_TOOLS: &str = "acp.clientTools";
/// Last update of each unknown kind.
pub const UPDATES: &str = "acp.updates";

/// Maximum size of the value under one name, as JSON, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 10;

const MEMBERS_MAX: usize = 32;

/// Returns a value, or only its size if it is too large to store.
pub fn kept(value: Value) -> Value {
    let bytes = value.to_string().len();
    if bytes > KEPT_BYTES_MAX {
        return json!({ OMITTED: bytes });
    }
    value
}

/// Returns the members that are neither null nor placed elsewhere; `None` if none are left.
pub fn rest(value: Value, placed: &[&str]) -> Option<JsonObject> {
    let Value::Object(mut members) = value else { return None };
    members.retain(|name, value| !value.is_null() && !placed.contains(&name.as_str()));
    (!members.is_empty()).then_some(members)
}

/// Adds members, replacing those with the same names; new names beyond the limit are dropped.
pub fn add(members: &mut JsonObject, more: JsonObject) {
    for (name, value) in more {
        if members.len() < MEMBERS_MAX || members.contains_key(&name) {
            members.insert(name, kept(value));
        }
    }
}

/// Adds extras to an event, if there are any.
pub fn with(event: TurnEvent, extras: CallExtras) -> TurnEvent {
    if extras == CallExtras::default() {
        return event;
    }
    TurnEvent::With(Box::new(event), extras)
}

/// Returns an event without its extras.
pub fn bare(event: &TurnEvent) -> &TurnEvent {
    match event {
        TurnEvent::With(event, _) => event,
        event => event,
    }
}

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
        let members = json!({ "a": 1, "b": null, "c": { "d": null } });
        assert_eq!(rest(members.clone(), &["a"]).map(Value::Object), Some(json!({ "c": { "d": null } })));
        assert_eq!(rest(members, &["a", "c"]), None);
    }
}
