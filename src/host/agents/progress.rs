//! Progress of opening a session, for the client that has requested it.
//!
//! Owns: the notifications under a client's `progressToken`: they never decrease, and report
//! completion exactly once.
//! Never: invents progress; a token without reported progress is never used.

use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::notifications::ProgressParams;
use bytes::Bytes;

use crate::host::effects::{ChatKey, ConnectionId, Frame, Output};
use crate::host::ledger::Ledger;
use crate::host::model::AgentLink;
use crate::host::{catalogue, Step};
use crate::wire::rpc::to_sorted_json;

#[derive(Debug)]
pub(crate) struct Opening {
    token: String,
    pub(crate) connection: ConnectionId,
    /// Progress last sent: amount done, and the total.
    last_sent: Option<(u64, Option<u64>)>,
}

impl Opening {
    pub(crate) fn new(token: String, connection: ConnectionId) -> Self {
        Self { token, connection, last_sent: None }
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn opening_progressed(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    done: u64,
    total: Option<u64>,
    message: Option<String>,
) {
    let opening = ledger.channels.chats.known_mut(key).and_then(|chat| chat.opening.as_mut());
    let Some(Opening { token, connection, last_sent }) = opening else { return };
    let done = last_sent.map_or(done, |(before, _)| before.max(done));
    *last_sent = Some((done, total));
    // Completion is sent when the conversation is open.
    if total.is_some_and(|total| done >= total) {
        return;
    }
    let (token, connection) = (token.clone(), *connection);
    send_progress(step, connection, token, done, total, message);
}

/// Shows that the opening waits for the user: as progress to the client that requested it, and
/// as the chat's activity to all clients.
pub(crate) fn opening_waits_for_user(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, what: String) {
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Opening)
    else {
        return;
    };
    chat.opening_waits = true;
    let (done, total) = chat.opening.as_ref().and_then(|opening| opening.last_sent).unwrap_or_default();
    opening_progressed(ledger, step, key, done, total, Some(what.clone()));
    catalogue::set_activity(ledger, step, key, Some(what));
}

/// Ends the progress notifications: the conversation is open, or has failed to open.
pub(crate) fn opening_finished(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let opening = ledger.channels.chats.known_mut(key).and_then(|chat| chat.opening.take());
    let Some(Opening { token, connection, last_sent: Some((done, total)) }) = opening else { return };
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

pub(crate) fn clear_opening_wait(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    if ledger.channels.chats.known_mut(key).is_some_and(|chat| std::mem::take(&mut chat.opening_waits)) {
        catalogue::set_activity(ledger, step, key, None);
    }
}
