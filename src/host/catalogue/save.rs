//! Rows of chats.
//!
//! Owns: when the row of a chat is saved, and which of its turns are copied from another chat's
//! rows. `rows` has their format, `loaded` reads them. The router writes the row of a session, to
//! which several owners contribute.
//! Never: writes anything itself; rows go out as records.
//!
//! A changed session's row is saved whole. A chat's row is its state without its completed turns,
//! which are rows of their own; `ledger::rows` determines when it is due.

use std::borrow::Cow;
use std::ops::Range;

use ahp_types::state::ChatOrigin;

use crate::host::catalogue::rows::ChatBody;
use crate::host::chats::{attached, pending};
use crate::host::effects::{ChatRow, Output, Record};
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::host::{ChatKey, Step};

/// Saves a chat's row if it is due: the stored actions do not make up for its changes.
pub(in crate::host) fn save_chat(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let is_stored = ledger.channels.sessions.known(chat.session).is_some_and(|session| !session.ahead);
    if is_stored && chat.saved.row_due {
        save_whole_chat(ledger, step, key);
    }
}

pub(in crate::host) fn save_whole_chat(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let shared = turns_stored_elsewhere(ledger, key);
    let head = ledger.head();
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        save_chat_row(step, key, chat, shared, head);
    }
}

/// Returns a fork's or side chat's source, and the positions of shared turns already stored.
fn turns_stored_elsewhere(ledger: &Ledger, key: ChatKey) -> Option<(ChatKey, Vec<Range<usize>>)> {
    let chat = ledger.channels.chats.known(key).filter(|chat| !chat.saved.context)?;
    let Some(ChatOrigin::Fork { chat: uri, .. } | ChatOrigin::SideChat { chat: uri, .. }) =
        &chat.conversation.state().origin
    else {
        return None;
    };
    let from = ledger.find_chat(uri)?;
    let source = ledger.channels.chats.known(from).filter(|source| source.saved.context)?;
    let kept = source.context.len() + source.saved.turns.min(source.saved.turns_valid);
    let mut places: Vec<Range<usize>> = Vec::new();
    for (place, (theirs, ours)) in source.all_turns().take(kept).zip(chat.all_turns()).enumerate() {
        match places.last_mut() {
            _ if !theirs.shares_text(ours) => {}
            Some(last) if last.end == place => last.end += 1,
            _ => places.push(place..place + 1),
        }
    }
    Some((from, places))
}

fn save_chat_row(
    step: &mut Step<'_>,
    key: ChatKey,
    chat: &mut Chat,
    shared: Option<(ChatKey, Vec<Range<usize>>)>,
    head: u64,
) {
    attached::prune(chat);
    pending::prune_senders(chat);
    let saved = &mut chat.saved;
    let context_turns = chat.context.len();
    if saved.turns_valid < saved.turns {
        step.emit(Output::Record(Record::TurnsCut(key, (context_turns + saved.turns_valid) as u64)));
        saved.turns = saved.turns_valid;
    }
    let known = if saved.context { context_turns + saved.turns } else { 0 };
    let (from, shared) = shared.unwrap_or((key, Vec::new()));
    let mut shared = shared.into_iter().peekable();
    let history = chat.conversation.history();
    for (turn, place) in chat.context.iter().chain(history.turns()).skip(known).zip(known..) {
        let range = shared.peek().filter(|range| range.contains(&place)).cloned();
        match range {
            Some(range) if range.start == place => {
                let places = range.start as u64..range.end as u64;
                step.emit(Output::Record(Record::TurnsShared { from, to: key, places }));
            }
            Some(_) => {}
            None => step.emit(Output::Record(Record::Turn(key, place as u64, turn.clone()))),
        }
        shared.next_if(|range| range.end == place + 1);
    }
    saved.context = true;
    (saved.turns, saved.turns_valid) = (history.len(), history.len());
    let body = ChatBody {
        state: Cow::Borrowed(chat.conversation.state()),
        born_at: chat.channel.born_at,
        title_by: chat.title_by,
        removed_turns: Cow::Borrowed(&chat.removed_turns),
        consumed: chat.consumed.iter().cloned().collect(),
        selecting: chat.pending_selections.iter().map(|waiting| waiting.change.clone()).collect(),
        following: chat.following.clone(),
        senders: chat.senders.clone(),
        turns_queued: chat.turns_queued.clone(),
        undelivered_steering: chat.undelivered_steering.clone(),
        sent_steering: chat.sent_steering.clone(),
        sent_listed: chat.sent_listed.clone(),
        steering_messages: chat.conversation.steering_messages().to_vec(),
        progress: chat.progress.clone(),
        context_turns,
        attached: Cow::Borrowed(&chat.attached),
        handle: chat.handle.as_ref().map(|handle| handle.name.clone()),
        resumes: chat.handle.as_ref().is_some_and(|handle| handle.resumes),
    };
    let body = body.to_json();
    chat.saved.row_due = false;
    chat.saved.unsaved_bytes = 0;
    chat.saved.row_bytes = body.len();
    step.emit(Output::Record(Record::Chat(ChatRow {
        key,
        session: chat.session,
        uri: chat.channel.uri.clone(),
        running: chat.run.is_some(),
        as_of: head,
        body,
    })));
}
