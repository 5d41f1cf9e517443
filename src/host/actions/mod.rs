//! Actions that clients may dispatch, and their conditions.
//!
//! Owns: parsing an action (each kind of channel has its own table, in `channels`), the conditions
//! of the tables "Server Validation of Client Actions" on the session and chat channel pages of the
//! specification, and additional rules of this host.
//! Never: needs more than the ledger and the agents: the router checks the other conditions, and
//! answers the sender.

pub(super) mod answers;
pub(super) mod chat;
pub(super) mod steering;
pub(super) mod tools;

use ahp_types::actions::StateAction;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::host::channels::{client_actions, label, Kind};
use crate::host::refusal::Refusal;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::{nesting_fits, read_json, to_json};

/// Action that the protocol lets clients dispatch.
#[derive(Debug, Clone, Copy)]
pub struct ClientAction {
    /// Name on the wire.
    pub name: &'static str,
    /// Kind of the channels that accept the action.
    pub kind: ChannelKind,
    /// Reason why the action is always refused; `None` if it is served.
    pub not_served: Option<&'static str>,
    /// Returns why the payload cannot be parsed, naming the member; `None` if it can.
    pub(super) problem: fn(&Value) -> Option<String>,
}

/// Lists the actions that clients may dispatch on channels of one kind, each with its payload type,
/// and the reason for refusal if it is not served.
macro_rules! actions_of {
    ($kind:ident; $($name:literal => $payload:ident $(, refused: $reason:expr)?;)*) => {
        &[$($crate::host::actions::ClientAction {
            name: $name,
            kind: $crate::wire::channels::ChannelKind::$kind,
            not_served: $crate::host::actions::actions_of!(@reason $($reason)?),
            problem: $crate::host::actions::problem_with::<ahp_types::actions::$payload>,
        }),*]
    };
    (@reason) => { None };
    (@reason $reason:expr) => { Some($reason) };
}
pub(super) use actions_of;

/// Maximum nesting of arrays and objects in an action. Less than the limit of a line: the payload
/// lies up to seven levels deeper in a snapshot, and clients that parse at most
/// [`NESTING_MAX`](crate::wire::members::NESTING_MAX) levels must be able to read that.
pub(super) const ACTION_NESTING_MAX: usize = 100;

/// Outcome of an action that is not refused.
pub(super) enum Verdict {
    /// Sequenced, with its consequences.
    Done,
    /// No change to the channel's state; only the sender is notified.
    Unchanged,
}

/// Parses an action, and checks that clients may dispatch it on this kind of channel and that it is
/// served. `complete` adds members that an action of this name may lack.
pub(super) fn read_action<K: Kind>(
    raw: &RawValue,
    complete: impl FnOnce(&str, &mut Map<String, Value>),
) -> Result<StateAction, Refusal> {
    if !nesting_fits(raw.get().as_bytes(), ACTION_NESTING_MAX) {
        return Err(Refusal::NestedTooDeeply(ACTION_NESTING_MAX));
    }
    let mut members: Map<String, Value> =
        serde_json::from_str(raw.get()).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    let name = match members.get("type") {
        Some(Value::String(name)) => name.clone(),
        _ => return Err(Refusal::WithoutType),
    };
    let mut known = K::ACTIONS.iter().chain(client_actions());
    let Some(entry) = known.find(|entry| entry.name == name) else {
        return Err(match serde_json::from_value(Value::String(name.clone())) {
            Ok(ahp_types::actions::ActionType::Unknown(_)) | Err(_) => Refusal::UnknownAction(name),
            Ok(_) => Refusal::NotForClients(name),
        });
    };
    if !K::takes(entry) {
        return Err(Refusal::OtherKindOfChannel { name, on: label(entry.kind), this: K::LABEL });
    }
    if let Some(reason) = entry.not_served {
        return Err(Refusal::NotServed(reason));
    }
    complete(&name, &mut members);
    let value = Value::Object(members);
    match StateAction::deserialize(&value) {
        Ok(StateAction::Unknown(_)) | Err(_) => {
            let problem = (entry.problem)(&value).unwrap_or_else(|| "its members do not fit".to_owned());
            Err(Refusal::Payload { name, problem })
        }
        Ok(action) => Ok(action),
    }
}

/// Returns why a value cannot be read as `T`. It is read as text, since reading a [`Value`] would
/// be further code for each type, and each of its members.
pub(super) fn problem_with<T: DeserializeOwned>(value: &Value) -> Option<String> {
    read_json::<T>(&to_json(value)).err()
}
