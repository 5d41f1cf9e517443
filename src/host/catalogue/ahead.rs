//! Sessions that clients make ahead of use: one for each window and each empty chat, even if no
//! turn ever begins there.
//!
//! Owns: turning such a session into an ordinary one, which is announced, listed and stored; and
//! disposing of those without subscribers.
//! Never: knows which clients make them: such sessions are marked.

use std::time::Duration;

use ahp_types::actions::{RootActiveSessionsChangedAction, StateAction};
use ahp_types::notifications::SessionAddedParams;

use crate::host::effects::{ChannelId, Output, Timer};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;

/// Maximum number of sessions made ahead; further ones are ordinary sessions.
const AHEAD_MAX: usize = 256;

/// Time after which a session made ahead without subscribers is disposed of. A client that lost its
/// connection returns within it.
const UNSUBSCRIBED_MAX: Duration = Duration::from_secs(60);

/// Makes a session that was made ahead an ordinary one, since something begins in it.
pub(in crate::host) fn begin_session(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
    let Some(session) = ledger.channels.sessions.known_mut(key).filter(|session| session.ahead) else {
        return;
    };
    session.ahead = false;
    ledger.mark_dirty(key.into());
    let chats = ledger.channels.chats_in(key);
    for chat in chats {
        ledger.mark_dirty(chat.into());
    }
    show_session(ledger, step, key);
}

/// Counts and announces a session that clients do not know.
pub(in crate::host) fn show_session(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
    count_sessions(ledger, step, 1);
    let head = ledger.head();
    if let Some(session) = ledger.channels.sessions.known_mut(key) {
        session.shown_at = head;
    }
    announce(ledger, step, key);
}

/// Sends a session's summary as that of a new session.
pub(in crate::host) fn announce(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
    let Some(summary) = ledger.channels.summary(key) else { return };
    let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
    session.sent_summary = summary.clone();
    let channel = ledger.channels.root.channel.uri.clone();
    ledger.notify_root(step, "root/sessionAdded", SessionAddedParams { channel, summary });
}

/// Returns whether one more session may be made ahead of use.
pub(in crate::host) fn has_room(ledger: &Ledger) -> bool {
    ledger.channels.sessions.values().filter(|session| session.ahead).count() < AHEAD_MAX
}

/// Starts the timers of sessions made ahead that have lost their last subscriber; they are disposed
/// of when it expires.
pub(in crate::host) fn start_unsubscribed_timers(ledger: &mut Ledger, step: &mut Step<'_>) {
    let unsubscribed = ledger.channels.sessions.iter().filter(|(_, session)| {
        session.ahead && session.channel.subscribers.is_empty() && session.unsubscribed.is_none()
    });
    for key in unsubscribed.map(|(key, _)| *key).collect::<Vec<_>>() {
        let number = ledger.fresh_key();
        if let Some(session) = ledger.channels.sessions.known_mut(key) {
            session.unsubscribed = Some(number);
            step.emit(Output::Timer(Timer::UnsubscribedSession(key, number), UNSUBSCRIBED_MAX));
        }
    }
}

/// Changes the number of sessions by `more`.
pub(in crate::host) fn count_sessions(ledger: &mut Ledger, step: &mut Step<'_>, more: i64) {
    let before = ledger.channels.root.state.active_sessions.unwrap_or_default();
    let active_sessions = before.saturating_add(more).max(0);
    let action = StateAction::RootActiveSessionsChanged(RootActiveSessionsChangedAction { active_sessions });
    ledger.sequence(step, ChannelId::ROOT, action, None);
}
