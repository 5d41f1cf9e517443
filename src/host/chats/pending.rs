//! Pending messages: the queue, and steering messages, which the agent gets while it works. Clients
//! of 1.1.0 have a list of these beside the single one of all versions.
//!
//! Owns: consuming each in the two steps of the protocol ("Pending Message Consumption" on the chat
//! channel page of the specification), and requeuing messages that an agent was sent but never
//! accepted.
//! Never: sends queued messages to an agent; the router starts the next one between turns.

use ahp_types::actions::{
    ChatPendingMessageRemovedAction, ChatPendingMessageSetAction, ChatQueuedMessagesReorderedAction,
    StateAction,
};
use ahp_types::state::{PendingMessage, PendingMessageKind};

use crate::host::agents::AgentRegistry;
use crate::host::chats::turns::message_for_agent;
use crate::host::effects::{ChatKey, Command};
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, RunPhase};
use crate::host::terminals::commands;
use crate::host::Step;
use crate::state::steering::SteeringChange;

pub(crate) fn steers(ledger: &Ledger, agents: &AgentRegistry, key: ChatKey) -> bool {
    agents.agent_of(ledger, key).is_none_or(|agent| agent.steers)
}

/// Place of a pending message in the state of its chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingPlace {
    /// Single steering message.
    Slot,
    /// List of steering messages.
    List,
    /// Queue.
    Queue,
}

/// Returns the steering messages that wait, with their places, in the order in which the agent gets
/// them.
pub(crate) fn steering_of(
    ledger: &Ledger,
    chat: &Chat,
) -> impl Iterator<Item = (PendingPlace, PendingMessage)> {
    // Without clients that can see it, the list waits.
    let listed = ledger.next.map(|_| chat.conversation.steering_messages()).unwrap_or_default();
    let slot = chat.conversation.state().steering_message.iter().map(|it| (PendingPlace::Slot, it.clone()));
    slot.chain(listed.iter().map(|it| (PendingPlace::List, it.clone()))).collect::<Vec<_>>().into_iter()
}

/// Sends the steering messages to the agent if a turn is running and the agent accepts them.
pub(crate) fn send_steering(ledger: &mut Ledger, agents: &AgentRegistry, step: &mut Step<'_>, key: ChatKey) {
    if !steers(ledger, agents, key) {
        return;
    }
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    for (place, pending) in steering_of(ledger, chat) {
        send_one(ledger, agents, step, key, place, pending);
    }
}

fn send_one(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
    place: PendingPlace,
    pending: PendingMessage,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    // A command of the host, or a message that the agent refused, waits for the end of the turn.
    if commands::command_in(ledger, &pending.message.text).is_some()
        || chat.undelivered_steering.contains(&pending.id)
    {
        return;
    }
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let Some(run) = chat.run.as_ref().filter(|run| run.phase == RunPhase::Started) else { return };
    let run = run.id;
    let sent = if place == PendingPlace::List { &mut chat.sent_listed } else { &mut chat.sent_steering };
    sent.push(pending.clone());
    let PendingMessage { id, message } = pending;
    let attached = chat.attached.pending.get(&id).cloned().unwrap_or_default();
    let message = message_for_agent(agents.agent_of(ledger, key).map(|agent| &agent.info), &message);
    consume(ledger, step, key, place, id.clone());
    ledger.chat_row_due(key);
    step.send_to_agent(key, Command::Steer { run, id, message, attached });
}

/// Records the client that has set a pending message: the turn that it starts is that client's.
pub(crate) fn note_sender(ledger: &mut Ledger, key: ChatKey, id: &str, client_id: String) {
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        chat.senders.insert(id.to_owned(), client_id);
    }
}

/// Drops the senders of messages that no longer exist.
pub(crate) fn prune_senders(chat: &mut Chat) {
    if !chat.senders.is_empty() {
        let unconsumed = chat.unconsumed();
        chat.senders.retain(|id, _| unconsumed.contains(id));
    }
}

/// Returns the message in the slot that the agent has not accepted, if one with the id `by` is
/// about to replace it.
pub(crate) fn undelivered_in_slot(ledger: &Ledger, key: ChatKey, by: &str) -> Option<PendingMessage> {
    let chat = ledger.channels.chats.known(key)?;
    let slot = chat.conversation.state().steering_message.as_ref()?;
    (slot.id != by && chat.undelivered_steering.contains(&slot.id)).then(|| slot.clone())
}

/// Lets the queue continue after a stop, because a client has requested something on this chat.
pub(crate) fn release_queue(ledger: &mut Ledger, key: ChatKey) {
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        chat.queue_held = false;
    }
}

/// Returns the id of the turn that a queued message starts: the client's own if the message was a
/// turn whose start had to wait, else a fresh one.
pub(crate) fn turn_id_of_queued(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, id: &str) -> String {
    let chat = ledger.channels.chats.known_mut(key);
    let is_turn = chat.is_some_and(|chat| chat.turns_queued.remove(id) && !chat.has_had_turn(id));
    if is_turn {
        return id.to_owned();
    }
    fresh_turn_id(ledger, step, key)
}

/// Returns an id that no turn of the chat has had. Generated ids restart with each process, so they
/// may collide with stored turns.
pub(crate) fn fresh_turn_id(ledger: &Ledger, step: &mut Step<'_>, key: ChatKey) -> String {
    let known = |id: &String| ledger.channels.chats.known(key).is_some_and(|chat| chat.has_had_turn(id));
    loop {
        let id = step.ids.fresh();
        if !known(&id) {
            return id;
        }
    }
}

/// Marks a steering message as undelivered if nothing runs or is queued: the next turn starts with
/// it. A message that was requeued waits for the next run instead.
pub(crate) fn note_undelivered_steering(ledger: &mut Ledger, key: ChatKey, id: &str) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let state = chat.conversation.state();
    let listed = chat.conversation.steering_messages();
    let waits = state.steering_message.iter().chain(listed).any(|it| it.id == id);
    let is_queued = state.queued_messages.iter().flatten().next().is_some();
    if chat.run.is_none() && chat.own_turn_cause.is_none() && !waits && !is_queued {
        chat.undelivered_steering.insert(id.to_owned());
    }
}

/// Records that the agent has accepted a steering message.
pub(crate) fn steering_arrived(ledger: &mut Ledger, key: ChatKey, id: &str) {
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        let before = chat.sent_steering.len() + chat.sent_listed.len();
        chat.sent_steering.retain(|pending| pending.id != id);
        chat.sent_listed.retain(|pending| pending.id != id);
        if chat.sent_steering.len() + chat.sent_listed.len() < before {
            ledger.chat_row_due(key);
        }
    }
}

/// Requeues a steering message that the agent has refused; the next turn starts with it.
pub(crate) fn steering_was_refused(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, id: &str) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let take = |sent: &mut Vec<PendingMessage>| {
        sent.iter().position(|pending| pending.id == id).map(|at| sent.remove(at))
    };
    let (slot, listed) = (take(&mut chat.sent_steering), take(&mut chat.sent_listed));
    if slot.is_none() && listed.is_none() {
        return;
    }
    chat.undelivered_steering.insert(id.to_owned());
    ledger.chat_row_due(key);
    requeue_steering(ledger, step, key, slot.into_iter().collect());
    requeue_listed(ledger, step, key, listed.into_iter().collect());
}

/// Requeues all messages that the agent of a run that has ended has not accepted.
pub(super) fn requeue_sent(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let (steering, listed) = (std::mem::take(&mut chat.sent_steering), std::mem::take(&mut chat.sent_listed));
    requeue_steering(ledger, step, key, steering);
    requeue_listed(ledger, step, key, listed);
}

/// Lists messages again that a run's agent was sent and has not accepted, for the next run.
fn requeue_listed(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, sent_listed: Vec<PendingMessage>) {
    for message in sent_listed {
        let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
        chat.consumed.remove(&message.id);
        let set = SteeringChange::Set { steering_message: Box::new(message) };
        ledger.sequence(step, key, set.to_action(), None);
    }
}

/// Requeues messages that a run's agent was sent and has not accepted, oldest first. The slot takes
/// a single one; others are put at the head of the queue, behind those that were requeued before.
fn requeue_steering(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    sent_steering: Vec<PendingMessage>,
) {
    let Some(chat) = ledger.channels.chats.known(key).filter(|_| !sent_steering.is_empty()) else { return };
    let state = chat.conversation.state();
    let queued = state.queued_messages.iter().flatten();
    let requeued = queued.take_while(|queued| chat.undelivered_steering.contains(&queued.id)).count();
    if sent_steering.len() > 1 || requeued > 0 || state.steering_message.is_some() {
        return queue_steering(ledger, step, key, sent_steering, requeued);
    }
    for PendingMessage { id, message } in sent_steering {
        let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
        chat.consumed.remove(&id);
        let set = ChatPendingMessageSetAction { kind: PendingMessageKind::Steering, id, message };
        ledger.sequence(step, key, StateAction::ChatPendingMessageSet(set), None);
    }
}

/// Puts messages that the agent has not accepted into the queue, from this place on.
pub(crate) fn queue_steering(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    undelivered: Vec<PendingMessage>,
    place: usize,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let state = chat.conversation.state();
    let mut order: Vec<String> =
        state.queued_messages.iter().flatten().map(|queued| queued.id.clone()).collect();
    let is_reordered = !undelivered.is_empty() && place < order.len();
    for (PendingMessage { id, message }, place) in undelivered.into_iter().zip(place..) {
        let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
        chat.consumed.remove(&id);
        chat.undelivered_steering.insert(id.clone());
        order.insert(place, id.clone());
        let set = ChatPendingMessageSetAction { kind: PendingMessageKind::Queued, id, message };
        ledger.sequence(step, key, StateAction::ChatPendingMessageSet(set), None);
    }
    if is_reordered {
        let reordered = ChatQueuedMessagesReorderedAction { order };
        ledger.sequence(step, key, StateAction::ChatQueuedMessagesReordered(reordered), None);
    }
}

pub(crate) fn consume(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    place: PendingPlace,
    id: String,
) {
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        chat.consumed.insert(id.clone());
        chat.undelivered_steering.remove(&id);
    }
    let removed =
        |kind, id| StateAction::ChatPendingMessageRemoved(ChatPendingMessageRemovedAction { kind, id });
    let action = match place {
        PendingPlace::Slot => removed(PendingMessageKind::Steering, id),
        PendingPlace::Queue => removed(PendingMessageKind::Queued, id),
        PendingPlace::List => SteeringChange::Removed { id }.to_action(),
    };
    ledger.sequence(step, key, action, None);
}
