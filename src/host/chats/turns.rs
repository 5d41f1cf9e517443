//! Turns as messages: the message that an agent gets, and the end of a turn.
//!
//! Owns: the message that an agent gets for a turn, the message of a turn that an agent begins by
//! itself, and the end of a turn in the state of its chat.
//! Never: decides when a turn begins or ends: the router does, never the agent.

use std::time::Duration;

use ahp_types::actions::{
    ActionOrigin, ChatErrorAction, ChatTurnCancelledAction, ChatTurnCompleteAction, ChatTurnStartedAction,
    StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{AgentInfo, ErrorResponsePart, Message, MessageKind, MessageOrigin};

use crate::host::agents::conversations;
use crate::host::chats::{calls, pending};
use crate::host::configuration::selection;
use crate::host::configuration::values::is_no_choice;
use crate::host::effects::{ChatKey, Command, Output, Record, TurnCause};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, RunPhase};
use crate::host::terminals::commands;
use crate::host::{catalogue, refusal, Step};
use crate::wire::channels::ChannelKind;

/// Time that the process must survive a resumed turn for the turn to count as safe.
pub(crate) const TRIAL: Duration = Duration::from_secs(2);

/// Outcome of a turn, as clients see it.
#[derive(Debug)]
pub(crate) enum Ending {
    Complete,
    Cancelled { meta: Option<JsonObject> },
    Failed { kind: String, message: String, resumable: bool },
}

/// Returns the start of a turn; the router fills in the time.
pub(crate) fn turn_started(
    turn_id: String,
    message: Message,
    queued_message_id: Option<String>,
) -> ChatTurnStartedAction {
    ChatTurnStartedAction { turn_id, started_at: String::new(), message, queued_message_id, meta: None }
}

/// Removes a model choice that means "no choice": clients show it, agents do not know it.
pub(crate) fn message_for_agent(agent: Option<&AgentInfo>, message: &Message) -> Message {
    let mut message = message.clone();
    message.model = message.model.filter(|model| !agent.is_some_and(|agent| is_no_choice(agent, model)));
    message
}

/// Returns the message of a turn that an agent begins by itself. VS Code shows its origin, a system
/// notification, as such, and any other origin as a message of the user.
pub(crate) fn message_of(cause: TurnCause) -> Message {
    let text = match cause {
        TurnCause::Agent => "The agent continues by itself.",
        TurnCause::Background => "A background task of the agent has ended.",
    };
    Message {
        text: text.to_owned(),
        origin: MessageOrigin { kind: MessageKind::SystemNotification },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

/// Returns whether an agent began the turn of this message by itself.
pub(crate) fn is_begun_by_agent(message: &Message) -> bool {
    message.origin.kind == MessageKind::SystemNotification
}

/// Ends the running turn once, after closing its open parts.
pub(crate) fn end_turn_without_advance(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    ending: Ending,
    origin: Option<ActionOrigin>,
) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let Some(run) = chat.run.take() else { return };
    ledger.touch(ChannelKind::Terminal);
    commands::end_commands_of(ledger, step, key);
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    if !matches!(ending, Ending::Failed { resumable: true, .. }) {
        chat.progress.remove(&run.turn_id);
    }
    calls::close_open_parts(ledger, step, key, &run.turn_id);
    catalogue::set_activity(ledger, step, key, None);
    let elapsed_ms = step.now.monotonic_ms.saturating_sub(run.accepted_ms);
    let duration = i64::try_from(run.lasted_ms.saturating_add(elapsed_ms)).unwrap_or(i64::MAX);
    let turn_id = run.turn_id;
    let cancelled = matches!(ending, Ending::Cancelled { .. });
    let action = match ending {
        Ending::Complete => {
            StateAction::ChatTurnComplete(ChatTurnCompleteAction { turn_id, duration, meta: None })
        }
        Ending::Cancelled { meta } => {
            StateAction::ChatTurnCancelled(ChatTurnCancelledAction { turn_id, duration, meta })
        }
        Ending::Failed { kind, message, resumable } => StateAction::ChatError(ChatErrorAction {
            turn_id,
            duration,
            part: ErrorResponsePart {
                error: refusal::error_info(kind, &message),
                resumable: Some(resumable),
            },
            meta: None,
        }),
    };
    ledger.sequence(step, key, action, origin);
    step.facts.push_back(Fact::TurnEnded(key));
    catalogue::mark_unread(ledger, step, key);
    catalogue::sync_chat(ledger, step, key);
    pending::requeue_sent(ledger, step, key);
    selection::clear_followers(ledger, key);
    selection::apply_pending_selections(ledger, step, key);
    if let Some(chat) = ledger.channels.chats.known(key).filter(|_| !run.interrupted) {
        step.emit(Output::Record(Record::Survived(chat.session)));
    }
    if cancelled
        && ledger.channels.chats.known(key).is_some_and(|chat| chat.opening_waits)
        && !conversations::is_creating(ledger, key)
    {
        // The opening waits for the user on behalf of this turn only.
        conversations::close_conversation(ledger, step, key);
    }
    let open = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open);
    // An agent that has begun a turn by itself waits for it, and cancels only a turn that it has.
    let is_awaited = run.is_own && matches!(run.phase, RunPhase::Waiting { .. });
    if let Some(chat) = open.filter(|_| is_awaited || run.phase == RunPhase::Started) {
        if is_awaited {
            step.send_to_agent(key, Command::OwnTurn { run: run.id });
        }
        // The agent does not know yet that the turn is over.
        chat.cancelled_run = Some(run.id);
        step.send_to_agent(key, Command::Cancel { run: run.id });
    }
}
