//! Summaries of sessions, as sent to the subscribers of the root channel.
//!
//! Owns: [`Summaries`], that is, sending changes of summaries, and holding back those of streaming
//! sessions to merge them.
//! Never: changes the data that a summary is derived from.

use std::collections::BTreeSet;
use std::time::Duration;

use ahp_types::notifications::{PartialSessionSummary, SessionSummaryChangedParams};
use ahp_types::state::{SessionStatus, SessionSummary};

use crate::host::catalogue::changed;
use crate::host::effects::{Output, SessionKey, Timer};
use crate::host::ledger::Ledger;
use crate::host::Step;
use crate::state::status::status_is;

/// Time for which changes of a streaming session's summary are held back to be merged.
const SUMMARY_HOLD: Duration = Duration::from_millis(200);

/// Changed summaries that wait to be sent together.
#[derive(Debug, Default)]
pub(in crate::host) struct Summaries {
    /// Sessions whose change can wait for the timer.
    held: BTreeSet<SessionKey>,
    /// Set if a timer is running that will send the held summaries.
    timed: bool,
}

impl Summaries {
    /// Returns whether a session's summary has unsent changes.
    pub(in crate::host) fn is_pending(&self, ledger: &Ledger, key: SessionKey) -> bool {
        ledger.has_changed(key) || self.held.contains(&key)
    }

    pub(in crate::host) fn remove(&mut self, ledger: &mut Ledger, key: SessionKey) {
        ledger.clear_change(key);
        self.held.remove(&key);
    }

    /// Sends the changed summaries, except those of streaming sessions whose change can wait.
    pub(in crate::host) fn settle(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if ledger.failing().is_some() {
            return;
        }
        for key in ledger.take_changed_sessions() {
            let Some(mut summary) = ledger.channels.summary(key) else { continue };
            let Some(session) = ledger.channels.sessions.known(key) else { continue };
            let streams = status_is(summary.status, SessionStatus::InProgress);
            let (activity, modified_at) =
                (session.sent_summary.activity.clone(), session.sent_summary.modified_at.clone());
            let activity = std::mem::replace(&mut summary.activity, activity);
            let modified_at = std::mem::replace(&mut summary.modified_at, modified_at);
            if !(streams && summary == session.sent_summary) {
                self.send_this(ledger, step, key, SessionSummary { activity, modified_at, ..summary });
                continue;
            }
            if !std::mem::replace(&mut self.timed, true) {
                step.emit(Output::Timer(Timer::Summaries, SUMMARY_HOLD));
            }
            self.held.insert(key);
        }
    }

    pub(in crate::host) fn send_held(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        self.timed = false;
        if ledger.failing().is_some() {
            return;
        }
        for key in std::mem::take(&mut self.held) {
            self.send(ledger, step, key);
        }
    }

    /// Sends every changed summary, held back or not. Must precede a listing of sessions: later
    /// changes are relative to the summary that was last sent, so the list must contain that one.
    pub(in crate::host) fn send_all(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if ledger.failing().is_some() {
            return;
        }
        for key in ledger.take_changed_sessions() {
            self.send(ledger, step, key);
        }
        self.send_held(ledger, step);
    }

    fn send(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
        match ledger.channels.summary(key) {
            Some(summary) => self.send_this(ledger, step, key, summary),
            None => self.remove(ledger, key),
        }
    }

    fn send_this(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: SessionKey,
        summary: SessionSummary,
    ) {
        self.held.remove(&key);
        let head = ledger.head();
        let Some(session) = ledger.channels.sessions.known_mut(key).filter(|session| !session.ahead) else {
            return;
        };
        let Some(changes) = summary_changes(&session.sent_summary, &summary) else { return };
        let params = SessionSummaryChangedParams {
            channel: ledger.channels.root.channel.uri.clone(),
            session: summary.resource.clone(),
            changes,
        };
        let params = session.written_rows.summary_changes(params);
        (session.sent_summary, session.summary_sent_at) = (summary, Some(head));
        ledger.notify_root_of(step, "root/sessionSummaryChanged", &params);
    }
}

/// Returns the changed members, except those that identify a session; `None` if all are equal. The
/// protocol cannot express removal: a removed activity or `_meta` is sent as an empty one.
fn summary_changes(old: &SessionSummary, new: &SessionSummary) -> Option<PartialSessionSummary> {
    if old == new {
        return None;
    }
    Some(PartialSessionSummary {
        title: changed(&old.title, &new.title),
        status: changed(&old.status, &new.status),
        activity: changed(&old.activity, &new.activity).map(Option::unwrap_or_default),
        modified_at: changed(&old.modified_at, &new.modified_at),
        working_directories: changed(&old.working_directories, &new.working_directories).flatten(),
        chats: changed(&old.chats, &new.chats).flatten(),
        default_chat: changed(&old.default_chat, &new.default_chat).flatten(),
        annotations: changed(&old.annotations, &new.annotations).flatten(),
        changes: changed(&old.changes, &new.changes).flatten(),
        meta: changed(&old.meta, &new.meta).map(Option::unwrap_or_default),
        ..PartialSessionSummary::default()
    })
}
