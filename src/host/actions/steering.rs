//! Client actions on a chat's list of steering messages, which only 1.1.0 has.
//!
//! Owns: reading them, their conditions, and the effect of each accepted one.
//! Never: sends a message to an agent; `pending` does.

use ahp_types::actions::{ActionOrigin, StateAction};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::Value;

use crate::host::actions::chat::{speak_as, QUEUED_MAX};
use crate::host::actions::{problem_with, tools, Verdict, ACTION_NESTING_MAX};
use crate::host::agents::AgentRegistry;
use crate::host::chats::{attached, pending};
use crate::host::configuration::selection;
use crate::host::effects::{ChannelId, ChatKey};
use crate::host::ledger::Ledger;
use crate::host::limits::{check_id, ID_BYTES_MAX};
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::state::steering::{SteeringChange, ACTIONS};
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::nesting_fits;

/// Reads an action on the list; `None` if it is another action, or clients get nothing of 1.1.0.
///
/// # Errors
/// When its members do not fit.
pub(crate) fn read_change(
    ledger: &Ledger,
    target: ChannelId,
    raw: &RawValue,
) -> Result<Option<StateAction>, Refusal> {
    #[derive(Deserialize)]
    struct Named {
        r#type: String,
    }
    if ledger.next.is_none() || target.kind != ChannelKind::Chat {
        return Ok(None);
    }
    let named = serde_json::from_str::<Named>(raw.get()).ok();
    let Some(name) = named.map(|named| named.r#type).filter(|name| ACTIONS.contains(&name.as_str())) else {
        return Ok(None);
    };
    if !nesting_fits(raw.get().as_bytes(), ACTION_NESTING_MAX) {
        return Err(Refusal::NestedTooDeeply(ACTION_NESTING_MAX));
    }
    let value: Value =
        serde_json::from_str(raw.get()).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    match problem_with::<SteeringChange>(&value) {
        Some(problem) => Err(Refusal::Payload { name, problem }),
        None => Ok(Some(StateAction::Unknown(value))),
    }
}

pub(crate) fn client_changes_list(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
    change: SteeringChange,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = tools::known_chat(ledger, key)?;
    let listed = chat.conversation.steering_messages();
    let mut message = match change {
        SteeringChange::Set { steering_message } => *steering_message,
        SteeringChange::Removed { ref id } => {
            if !listed.iter().any(|message| message.id == *id) {
                return Err(Refusal::NoSuchPending(id.clone()));
            }
            ledger.sequence(step, key, change.to_action(), Some(origin));
            return Ok(Verdict::Done);
        }
    };
    check_id("steeringMessage.id", &message.id, ID_BYTES_MAX)?;
    if chat.consumed.contains(&message.id) {
        return Err(Refusal::PendingTakenUp(message.id));
    }
    // A turn that starts with this id would remove both messages.
    let state = chat.conversation.state();
    let mut others = state.queued_messages.iter().flatten().chain(&state.steering_message);
    if others.any(|other| other.id == message.id) {
        return Err(Refusal::PendingOfOtherKind(message.id));
    }
    let known = listed.iter().find(|known| known.id == message.id).cloned();
    if known.is_none() && listed.len() >= QUEUED_MAX {
        return Err(Refusal::QueueFull(QUEUED_MAX));
    }
    agents.check_tokens_for_turn(ledger, step, key, &origin.client_id)?;
    selection::check_message(ledger, agents, chat.session, &message.message)?;
    let as_sent = message.clone();
    let transcripts = attached::resolve_attached(ledger, &mut message.message)?;
    let id = message.id.clone();
    attached::check_room(ledger, key, &id, &transcripts)?;
    speak_as(ledger, key, &origin.client_id);
    pending::note_undelivered_steering(ledger, key, &id);
    // An acknowledgement would show the client's message instead of the adjusted one.
    let changes = known.as_ref() != Some(&message) || as_sent != message;
    if changes {
        pending::note_sender(ledger, key, &id, origin.client_id.clone());
        let set = SteeringChange::Set { steering_message: Box::new(message) };
        ledger.sequence(step, key, set.to_action(), Some(origin));
    }
    attached::attach_to_pending(ledger, key, &id, transcripts);
    pending::release_queue(ledger, key);
    pending::send_steering(ledger, agents, step, key);
    Ok(if changes { Verdict::Done } else { Verdict::Unchanged })
}
