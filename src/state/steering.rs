//! List of steering messages: a part of 1.1.0 that the official crates do not have yet.
//!
//! Owns: the two actions on the list, which are unknown ones to the crates, and their effect.
//! Never: decides whether an action is allowed.

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::StateAction;
use ahp_types::state::PendingMessage;
use serde::{Deserialize, Serialize};

/// Names of the actions.
pub(crate) const ACTIONS: [&str; 2] = ["chat/steeringMessageSet", "chat/steeringMessageRemoved"];

/// Member of a chat's state that has the list.
pub(crate) const MEMBER: &str = "steeringMessages";

/// Change of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub(crate) enum SteeringChange {
    /// Appends a message, or replaces the one with its id.
    #[serde(rename = "chat/steeringMessageSet", rename_all = "camelCase")]
    Set { steering_message: Box<PendingMessage> },
    /// Removes the message with this id.
    #[serde(rename = "chat/steeringMessageRemoved")]
    Removed { id: String },
}

impl SteeringChange {
    /// Returns the change that an action makes; `None` if it is about something else.
    pub(crate) fn of(action: &StateAction) -> Option<Self> {
        let StateAction::Unknown(action) = action else { return None };
        Self::deserialize(action).ok()
    }

    /// Returns the change as an action.
    pub(crate) fn to_action(&self) -> StateAction {
        // Serialization cannot fail: all keys are text.
        StateAction::Unknown(serde_json::to_value(self).unwrap_or_default())
    }

    /// Applies the change, as the reducer of 1.1.0 does.
    pub(crate) fn apply(self, list: &mut Vec<PendingMessage>) -> ReduceOutcome {
        match self {
            Self::Set { steering_message } => {
                match list.iter_mut().find(|known| known.id == steering_message.id) {
                    Some(known) => *known = *steering_message,
                    None => list.push(*steering_message),
                }
                ReduceOutcome::Applied
            }
            Self::Removed { id } => match list.iter().position(|known| known.id == id) {
                Some(at) => {
                    list.remove(at);
                    ReduceOutcome::Applied
                }
                None => ReduceOutcome::NoOp,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list_after(actions: &[serde_json::Value]) -> (Vec<(String, String)>, ReduceOutcome) {
        let (mut list, mut last) = (Vec::new(), ReduceOutcome::NoOp);
        for action in actions {
            let action: StateAction = serde_json::from_value(action.clone()).unwrap();
            let change = SteeringChange::of(&action).unwrap();
            assert_eq!(SteeringChange::of(&change.to_action()), Some(change.clone()));
            last = change.apply(&mut list);
        }
        (list.into_iter().map(|it| (it.id, it.message.text)).collect(), last)
    }

    fn set(id: &str, text: &str) -> serde_json::Value {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        json!({ "type": ACTIONS[0], "steeringMessage": { "id": id, "message": message } })
    }

    fn removed(id: &str) -> serde_json::Value {
        json!({ "type": ACTIONS[1], "id": id })
    }

    fn pair(id: &str, text: &str) -> (String, String) {
        (id.to_owned(), text.to_owned())
    }

    #[test]
    fn message_with_a_known_id_is_replaced_in_its_place_and_others_are_appended() {
        let (list, last) = list_after(&[set("a", "1"), set("b", "2"), set("a", "3")]);
        assert_eq!((list, last), (vec![pair("a", "3"), pair("b", "2")], ReduceOutcome::Applied));
    }

    #[test]
    fn only_a_listed_message_is_removed() {
        let (list, last) = list_after(&[set("a", "1"), set("b", "2"), removed("a")]);
        assert_eq!((list, last), (vec![pair("b", "2")], ReduceOutcome::Applied));
        let (list, last) = list_after(&[set("a", "1"), removed("b")]);
        assert_eq!((list, last), (vec![pair("a", "1")], ReduceOutcome::NoOp));
    }

    #[test]
    fn other_actions_are_no_change_of_the_list() {
        for other in [json!({ "type": "chat/other", "id": "a" }), json!({ "type": ACTIONS[1] })] {
            let other: StateAction = serde_json::from_value(other).unwrap();
            assert_eq!(SteeringChange::of(&other), None);
        }
    }
}
