//! Selection of model and agent for a chat, where a client selects them once and not with each
//! message.
//!
//! Owns: changing the selection, which is stored in the chat's draft; delaying such a change while
//! a turn runs; applying the selection to messages without a model when their turn begins; and the
//! selection in a session's summary.
//! Never: overrides a selection that a message carries.

use std::mem::discriminant;

use ahp_types::actions::{ActionOrigin, ChatDraftChangedAction, ChatTruncatedAction, StateAction};
use ahp_types::state::{AgentInfo, AgentSelection, Message, ModelSelection};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::Value;

use crate::host::actions::{Verdict, ACTION_NESTING_MAX};
use crate::host::agents::AgentRegistry;
use crate::host::configuration::values::check_model;
use crate::host::effects::{ChatKey, ConnectionId, SessionKey};
use crate::host::ledger::Ledger;
use crate::host::model::ChannelId;
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::state::history::empty_message;
use crate::state::reduce::Conversation;
use crate::wire::errors::RpcError;
use crate::wire::rpc::{json_bytes, nesting_fits, read_json, read_json_at, to_json, TypeMismatch};
use crate::wire::selection::{Selection, SelectionChange};

/// Name of a chat's state in refusals, as far as its size is limited.
pub(crate) const CHAT_WITHOUT_TURNS: &str = "the chat (without its turns)";

/// Number of selections that a chat delays; of more, those that a later one replaces are dropped.
const PENDING_SELECTIONS_MAX: usize = 8;

/// Maximum JSON size of a selection in a session's summary, in bytes; a larger one is left out.
pub(crate) const IN_SUMMARY_BYTES_MAX: usize = 4096;

#[derive(Debug, Clone)]
pub(crate) struct PendingAction {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: String,
    pub(crate) action: Box<RawValue>,
    pub(crate) origin: ActionOrigin,
}

/// Selection that is delayed until no turn runs in its chat.
#[derive(Debug)]
pub(crate) struct PendingSelection {
    pub(crate) change: SelectionChange,
    /// `None` if the change follows from one in the session's own chat, or was requested before the
    /// process started.
    pub(crate) asked: Option<PendingAction>,
}

/// Selects a model or an agent for a session: in the session's own chat, and with `for_all_chats`
/// also in chats with the same selection. While a turn runs, the selection applies from the next
/// turn on. Fails if the agent has no such model, or if the chat would become too large.
pub(crate) fn client_selects(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    target: ChannelId,
    asked: PendingAction,
    change: &SelectionChange,
    for_all_chats: bool,
) -> Result<Verdict, Refusal> {
    let session = target.session().and_then(|key| Some((key, ledger.channels.sessions.known(key)?)));
    let Some((key, session)) = session else {
        return Err(Refusal::SelectsOnSessions);
    };
    if !nesting_fits(asked.action.get().as_bytes(), ACTION_NESTING_MAX) {
        return Err(Refusal::NestedTooDeeply(ACTION_NESTING_MAX));
    }
    let change = checked(agents, &session.state.provider, change)?;
    let Some(own) = ledger.channels.own_chat(key) else { return Err(Refusal::ChatGone) };
    check_room(ledger, own, &asked)?;
    let before = ledger.channels.selected_in(own);
    let others: Vec<ChatKey> =
        ledger.channels.chats_in(key).into_iter().filter(|chat| *chat != own).collect();
    for chat in others.into_iter().filter(|_| for_all_chats) {
        let has = ledger.channels.selected_in(chat);
        let follows = match &change {
            SelectionChange::Model(_) => has.model.is_some() && has.model == before.model,
            SelectionChange::Agent(_) => has != Selection::default() && has.agent == before.agent,
        };
        if follows {
            select_when_idle(ledger, step, chat, change.clone(), None);
        }
    }
    select_when_idle(ledger, step, own, change, Some(asked));
    Ok(Verdict::Done)
}

/// Checks that a selection fits into a chat's state, with those that are delayed.
fn check_room(ledger: &mut Ledger, key: ChatKey, asked: &PendingAction) -> Result<(), Refusal> {
    let max = ledger.limits.state_bytes;
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return Ok(()) };
    let pending = chat.pending_selections.iter().map(|pending| json_bytes(&pending.change));
    let there = pending.sum::<usize>();
    let there = there.saturating_add(chat.conversation.bytes_without_turns(true));
    if there.saturating_add(asked.action.get().len()) > max {
        return Err(Refusal::StateFull { what: CHAT_WITHOUT_TURNS, there, max });
    }
    Ok(())
}

/// Validates a selection and returns it in its saved form.
fn checked(
    agents: &AgentRegistry,
    provider: &str,
    change: &SelectionChange,
) -> Result<SelectionChange, Refusal> {
    match change {
        SelectionChange::Model(model) => {
            let mut model: ModelSelection = read("model", model)?;
            let agent = agents.of(provider);
            if let Some(agent) = agent {
                read_settings(&agent.info, &mut model);
                check_model(&agent.info, &model)?;
            }
            Ok(SelectionChange::Model(json_of(&model)))
        }
        SelectionChange::Agent(Some(agent)) => {
            Ok(SelectionChange::Agent(Some(json_of(&read::<AgentSelection>("agent", agent)?))))
        }
        SelectionChange::Agent(None) => Ok(SelectionChange::Agent(None)),
    }
}

/// Sets the current selection on a message without model or agent: that of its chat, or else of the
/// session's own chat. An invalid selection, such as a model that the agent no longer has, is not
/// applied.
pub(crate) fn address(ledger: &Ledger, agents: &AgentRegistry, key: ChatKey, message: &mut Message) {
    let Some(session) = ledger.channels.chats.known(key).map(|chat| chat.session) else { return };
    let own = ledger.channels.own_chat(session);
    let mut selected = ledger.channels.selected_in(key);
    if selected == Selection::default() {
        selected = own.map(|own| ledger.channels.selected_in(own)).unwrap_or_default();
    }
    let mut addressed = message.clone();
    addressed.model = addressed.model.or_else(|| typed(selected.model.as_ref()));
    addressed.agent = addressed.agent.or_else(|| typed(selected.agent.as_ref()));
    if check_message(ledger, agents, session, &addressed).is_ok() {
        *message = addressed;
    }
}

/// Returns the draft of a new chat with this selection; `None` if nothing is selected. Fails with
/// `-32602` if the agent of this provider has no such model.
pub(crate) fn first_draft(
    agents: &AgentRegistry,
    provider: &str,
    selection: &Selection,
) -> Result<Option<Message>, RpcError> {
    let model = selection.model.clone().map(SelectionChange::Model);
    let agent = selection.agent.clone().map(|agent| SelectionChange::Agent(Some(agent)));
    let mut selected = Selection::default();
    for change in model.into_iter().chain(agent) {
        selected = selected.with(&checked(agents, provider, &change).map_err(RpcError::invalid_params)?);
    }
    Ok((selected != Selection::default()).then(|| Message {
        model: typed(selected.model.as_ref()),
        agent: typed(selected.agent.as_ref()),
        ..empty_message()
    }))
}

fn select_when_idle(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    change: SelectionChange,
    asked: Option<PendingAction>,
) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    if chat.conversation.state().active_turn.is_none() {
        return select(ledger, step, key, &change, asked);
    }
    chat.pending_selections.push(PendingSelection { change, asked });
    let is_full = chat.pending_selections.len() > PENDING_SELECTIONS_MAX;
    let superseded = superseded(&chat.pending_selections).filter(|_| is_full);
    let superseded = superseded.map(|place| chat.pending_selections.remove(place));
    ledger.chat_row_due(key);
    if let Some(asked) = superseded.and_then(|pending| pending.asked) {
        acknowledge(ledger, step, &asked);
    }
}

/// Returns the place of the first selection that a later one replaces.
fn superseded(pending: &[PendingSelection]) -> Option<usize> {
    let members: Vec<_> = pending.iter().map(|pending| discriminant(&pending.change)).collect();
    let mut places = members.iter().enumerate();
    places.position(|(place, member)| members.iter().skip(place + 1).any(|later| later == member))
}

/// Applies the delayed selections of a chat in which no turn runs.
pub(crate) fn apply_pending_selections(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    for waiting in std::mem::take(&mut chat.pending_selections) {
        select(ledger, step, key, &waiting.change, waiting.asked);
    }
}

/// Changes the selection, or acknowledges an action that changes nothing.
fn select(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    change: &SelectionChange,
    asked: Option<PendingAction>,
) {
    let before = ledger.channels.selected_in(key);
    let after = before.clone().with(change);
    if after != before {
        return put_into_draft(ledger, step, key, &after, asked.map(|asked| asked.origin));
    }
    if let Some(asked) = asked {
        acknowledge(ledger, step, &asked);
    }
}

fn acknowledge(ledger: &Ledger, step: &mut Step<'_>, asked: &PendingAction) {
    ledger.answer_action(step, asked.connection, &asked.channel, &asked.action, &asked.origin, None);
}

fn put_into_draft(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    selection: &Selection,
    origin: Option<ActionOrigin>,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let draft = chat.conversation.state().draft.clone().unwrap_or_else(empty_message);
    let draft = Some(Message {
        model: typed(selection.model.as_ref()),
        agent: typed(selection.agent.as_ref()),
        ..draft
    });
    let action = StateAction::ChatDraftChanged(ChatDraftChangedAction { draft });
    ledger.sequence(step, key, action, origin);
}

/// Stores the selection in the draft before turns that carry it are removed.
pub(crate) fn save_selection(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: &ChatTruncatedAction,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let state = chat.conversation.state();
    let before = selection_of(&chat.conversation);
    let running = state.active_turn.as_ref();
    let last = match &action.turn_id {
        None => None,
        Some(id) => match (chat.conversation.history().get(id), running.filter(|turn| turn.id == *id)) {
            (Some(turn), _) => turn.message(),
            (None, Some(turn)) => Some(turn.message.clone()),
            (None, None) => return,
        },
    };
    if Selection::of(&json_of(&state.draft), &json_of(&last)) != before {
        put_into_draft(ledger, step, key, &before, None);
    }
}

/// Records whether a pending message uses the selection at the time when its turn begins.
pub(crate) fn set_following_selection(ledger: &mut Ledger, key: ChatKey, id: &str, follows: bool) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let changed = if follows { chat.following.insert(id.to_owned()) } else { chat.following.remove(id) };
    if changed {
        ledger.chat_row_due(key);
    }
}

pub(crate) fn clear_followers(ledger: &mut Ledger, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| !chat.following.is_empty()) else {
        return;
    };
    let unconsumed = chat.unconsumed();
    chat.following.retain(|id| unconsumed.contains(id));
}

/// Drops the pending answers to a closed connection.
pub(crate) fn connection_closed(ledger: &mut Ledger, connection: ConnectionId) {
    for chat in ledger.channels.chats.values_mut() {
        for waiting in &mut chat.pending_selections {
            waiting.asked.take_if(|asked| asked.connection == connection);
        }
        chat.opening.take_if(|opening| opening.connection == connection);
    }
}

/// Parses numbers and booleans in a model's settings from text: clients of older versions send all
/// settings as text.
fn read_settings(agent: &AgentInfo, model: &mut ModelSelection) {
    let known = agent.models.iter().find(|known| known.id == model.id);
    let Some(schema) = known.and_then(|known| known.config_schema.as_ref()) else { return };
    for (name, value) in model.config.iter_mut().flatten() {
        let is_text = schema.properties.get(name).is_none_or(|property| property.r#type == "string");
        if let (false, Some(text)) = (is_text, value.as_str()) {
            let meant = serde_json::from_str(text).ok();
            *value =
                meant.filter(|meant: &Value| meant.is_number() || meant.is_boolean()).unwrap_or(value.take());
        }
    }
}

pub(crate) fn selection_of(conversation: &Conversation) -> Selection {
    let state = conversation.state();
    let running = state.active_turn.as_ref().map(|turn| &turn.message);
    let last = running.or_else(|| conversation.history().last_message());
    Selection::of(&json_of(&state.draft), &json_of(&last))
}

/// Reads a member of an action, as text like params: reading a [`Value`] would be further code for
/// each type.
fn read<T: DeserializeOwned>(member: &str, value: &Value) -> Result<T, Refusal> {
    read_json_at(&to_json(value)).map_err(|TypeMismatch { path, cause }| Refusal::Member {
        member: path.map_or_else(|| member.to_owned(), |path| format!("{member}.{path}")),
        problem: cause,
    })
}

fn typed<T: DeserializeOwned>(value: Option<&Value>) -> Option<T> {
    value.and_then(|value| read_json(&to_json(value)).ok())
}

fn json_of(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

pub(crate) fn check_message(
    ledger: &Ledger,
    agents: &AgentRegistry,
    session: SessionKey,
    message: &Message,
) -> Result<(), Refusal> {
    let provider = ledger.channels.sessions.known(session).map(|session| &session.state.provider);
    let agent = provider.and_then(|provider| agents.of(provider));
    match (agent, &message.model) {
        (Some(agent), Some(model)) => check_model(&agent.info, model),
        _ => Ok(()),
    }
}
