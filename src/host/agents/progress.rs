//! Progress of opening a session, for the client that has asked for it.
//!
//! Owns: what is told under a client's `progressToken`: never less than before, and complete
//! exactly once.
//! Never: makes progress up; a token under which nothing was reported is never used.

use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::notifications::ProgressParams;
use bytes::Bytes;

use crate::host::effects::{ChatKey, ConnectionId, Frame, Output};
use crate::host::ledger::Ledger;
use crate::host::model::AgentLink;
use crate::host::{catalogue, Step};
use crate::wire::rpc::to_sorted_json;

/// The wish of a client to be told.
#[derive(Debug)]
pub(crate) struct Opening {
    token: String,
    pub(crate) connection: ConnectionId,
    /// Progress last sent: done, and of how much.
    told: Option<(u64, Option<u64>)>,
}

impl Opening {
    pub(crate) fn new(token: String, connection: ConnectionId) -> Self {
        Self { token, connection, told: None }
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Sends the progress of opening a conversation.
pub(crate) fn opening_progressed(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    done: u64,
    total: Option<u64>,
    message: Option<String>,
) {
    let opening = ledger.channels.chats.known_mut(key).and_then(|chat| chat.opening.as_mut());
    let Some(Opening { token, connection, told }) = opening else { return };
    let done = told.map_or(done, |(before, _)| before.max(done));
    *told = Some((done, total));
    // That it is complete is said when the conversation is open.
    if total.is_some_and(|total| done >= total) {
        return;
    }
    let (token, connection) = (token.clone(), *connection);
    send_progress(step, connection, token, done, total, message);
}

/// Shows that the opening of a conversation waits for the user: to the client that asked for
/// progress as such, to all others as the activity of the chat.
pub(crate) fn opening_waits_for_user(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, what: String) {
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Opening)
    else {
        return;
    };
    chat.awaits = true;
    let (done, total) = chat.opening.as_ref().and_then(|opening| opening.told).unwrap_or_default();
    opening_progressed(ledger, step, key, done, total, Some(what.clone()));
    catalogue::set_activity(ledger, step, key, Some(what));
}

/// Ends the notifications of progress: a conversation is open, or will not be.
pub(crate) fn opening_finished(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let opening = ledger.channels.chats.known_mut(key).and_then(|chat| chat.opening.take());
    let Some(Opening { token, connection, told: Some((done, total)) }) = opening else { return };
    let all = total.unwrap_or(done).max(done);
    send_progress(step, connection, token, all, Some(all), None);
}

fn send_progress(
    step: &mut Step<'_>,
    connection: ConnectionId,
    progress_token: String,
    done: u64,
    total: Option<u64>,
    message: Option<String>,
) {
    let params = ProgressParams {
        channel: ROOT_RESOURCE_URI.to_owned(),
        progress_token,
        progress: count(done),
        total: total.map(count),
        message,
    };
    let params = Bytes::from(to_sorted_json(&params));
    step.emit(Output::Frame(connection, Frame::Notification { method: "root/progress", params }));
}

/// Shows that the opening of a conversation does not wait for the user any more.
pub(crate) fn clear_opening_wait(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    if ledger.channels.chats.known_mut(key).is_some_and(|chat| std::mem::take(&mut chat.awaits)) {
        catalogue::set_activity(ledger, step, key, None);
    }
}
