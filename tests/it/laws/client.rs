//! Client of a schedule: the mirror of every channel that it is subscribed to.
//!
//! Owns: taking what arrives into the mirrors, as a real client must. Its rule: a snapshot replaces
//! what it had of a channel; an action is applied, with the official reducers, if it carries no
//! `rejectionReason` and its `serverSeq` is greater than that of everything applied to its channel
//! before (its snapshot's `fromSeq` first), or the same where older turns are loaded. So a replay
//! that overlaps with what arrived does no harm. An acknowledgement of an action that changed
//! nothing looks like any other envelope and may pass this rule: it must do no harm either.
//! Never: asks the host anything by itself, or knows what has not arrived.

use std::collections::BTreeMap;

use ahp_sidecar::conform::mirror::ChannelMirror;
use ahp_types::actions::ActionEnvelope;
use ahp_types::commands::ReconnectResult;
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::notifications::{PartialSessionSummary, ProgressParams};
use ahp_types::state::{SessionSummary, Snapshot};
use anyhow::{bail, ensure, Context, Result};

use super::lines::{self, Asked, Line};

/// Since when a channel is wanted.
#[derive(Debug, Clone, Copy)]
struct Want {
    /// The request since which it has been, without a break: older answers are about an earlier
    /// time.
    since: u64,
    /// The newest request for it.
    latest: u64,
}

/// Mirrors of a client, which outlive its connections.
#[derive(Debug, Default)]
pub struct Mirror {
    /// The channels that it has the state of.
    pub channels: BTreeMap<String, ChannelMirror>,
    /// The channels that it wants.
    wanted: BTreeMap<String, Want>,
    /// The newest `serverSeq` that it was shown.
    pub cursor: i64,
    /// The summaries that it lists, while it follows the root channel.
    pub summaries: Option<BTreeMap<String, SessionSummary>>,
    /// The request whose answer begins the list.
    list: Option<u64>,
    asked: BTreeMap<u64, Asked>,
    pub last_request: u64,
    /// Latest progress of each request of the client.
    progress: BTreeMap<String, ProgressParams>,
}

impl Mirror {
    /// Notes a request, and gives it a number.
    pub fn ask(&mut self, asked: Asked) -> u64 {
        self.last_request += 1;
        self.asked.insert(self.last_request, asked);
        self.last_request
    }

    /// From this request on the channel is wanted.
    pub fn want(&mut self, channel: &str, request: u64) {
        let first = Want { since: request, latest: request };
        self.wanted.entry(channel.to_owned()).or_insert(first).latest = request;
    }

    /// The channel is wanted no more.
    pub fn leave(&mut self, channel: &str) {
        self.wanted.remove(channel);
        self.channels.remove(channel);
        if channel == ROOT_RESOURCE_URI {
            (self.summaries, self.list) = (None, None);
        }
    }

    /// Drops all channels but these, and the notifications about the others.
    pub fn keep(&mut self, channels: &[String], request: u64) {
        let gone: Vec<String> = self.wanted.keys().filter(|it| !channels.contains(it)).cloned().collect();
        gone.iter().for_each(|channel| self.leave(channel));
        channels.iter().for_each(|channel| self.want(channel, request));
        (self.summaries, self.list) = (None, None);
    }

    /// The list begins with the answer to this request.
    pub fn list_from(&mut self, request: u64) {
        (self.summaries, self.list) = (None, Some(request));
    }

    /// The connection is lost. What was on its way does not arrive; notifications are not said
    /// again.
    pub fn lose(&mut self) {
        self.asked.clear();
        (self.summaries, self.list) = (None, None);
        let held = &self.channels;
        self.wanted.retain(|channel, _| held.contains_key(channel));
    }

    /// Begins anew, with nothing.
    pub fn forget(&mut self) {
        *self = Self { last_request: self.last_request, ..Self::default() };
    }

    /// Takes a line in.
    pub fn hear(&mut self, line: &[u8]) -> Result<()> {
        let message = lines::parse(line)?;
        let request = lines::answered(&message);
        let asked = request.and_then(|request| self.asked.remove(&request));
        let request = request.unwrap_or_default();
        match lines::read(&message, asked.as_ref())? {
            Line::Action(envelope) => self.act(&envelope)?,
            Line::Initialized(result) => {
                self.cursor = self.cursor.max(result.server_seq);
                result.snapshots.into_iter().for_each(|snapshot| self.take(snapshot, request));
            }
            Line::Subscribed(result) => self.take(result.snapshot.context("no snapshot")?, request),
            Line::Reconnected(ReconnectResult::Replay(replay)) => {
                replay.actions.iter().try_for_each(|envelope| self.act(envelope))?;
                replay.missing.iter().for_each(|channel| self.miss(channel, request));
            }
            Line::Reconnected(ReconnectResult::Snapshot(result)) => {
                let there: Vec<_> = result.snapshots.iter().map(|shot| shot.resource.clone()).collect();
                result.snapshots.into_iter().for_each(|snapshot| self.take(snapshot, request));
                let asked_for = self.wanted.iter().filter(|(_, want)| want.since <= request);
                let missing = asked_for.map(|(channel, _)| channel.clone());
                let missing: Vec<_> = missing.filter(|channel| !there.contains(channel)).collect();
                missing.iter().for_each(|channel| self.miss(channel, request));
            }
            Line::Listed(result) if self.list == Some(request) => {
                let items = result.items.into_iter();
                self.summaries = Some(items.map(|item| (item.resource.clone(), item)).collect());
            }
            Line::SessionAdded(added) => {
                if let Some(summaries) = &mut self.summaries {
                    let old = summaries.insert(added.summary.resource.clone(), added.summary);
                    ensure!(old.is_none(), "a session was added twice");
                }
            }
            Line::SessionRemoved(removed) => {
                if let Some(summaries) = &mut self.summaries {
                    ensure!(summaries.remove(&removed.session).is_some(), "an unknown session was removed");
                }
            }
            Line::SummaryChanged(changed) => {
                if let Some(summaries) = &mut self.summaries {
                    let summary = summaries.get_mut(&changed.session);
                    patch(summary.context("the summary of an unknown session changed")?, changed.changes);
                }
            }
            Line::Progress(told) => {
                let before = self.progress.insert(told.progress_token.clone(), told.clone());
                let Some(before) = before else { return Ok(()) };
                ensure!(before.progress <= told.progress, "less than before: {before:?}, {told:?}");
                ensure!(
                    before.total != Some(before.progress),
                    "it was complete before: {before:?}, {told:?}"
                );
            }
            Line::Listed(_) | Line::Moved | Line::Nothing | Line::Error => {}
        }
        Ok(())
    }

    /// Handles a notice that these channels are gone. The protocol sends it on the root channel
    /// only; a client without it cannot know, and would take a new session under the old name for
    /// the old one. `request` is the latest request at that time.
    pub fn forget_removed(&mut self, channels: &[&str], request: u64) {
        channels.iter().for_each(|channel| self.miss(channel, request));
    }

    /// The channel that was wanted up to this request is not there.
    fn miss(&mut self, channel: &str, request: u64) {
        match self.wanted.get_mut(channel) {
            Some(want) if want.since > request => {}
            // It has been asked for again, and may be there again.
            Some(want) if want.latest > request => {
                want.since = want.latest;
                self.channels.remove(channel);
            }
            _ => self.leave(channel),
        }
    }

    fn take(&mut self, snapshot: Snapshot, request: u64) {
        self.cursor = self.cursor.max(snapshot.from_seq);
        if self.wanted.get(&snapshot.resource).is_some_and(|want| want.since <= request) {
            self.channels.insert(snapshot.resource.clone(), ChannelMirror::new(snapshot));
        }
    }

    fn act(&mut self, envelope: &ActionEnvelope) -> Result<()> {
        self.cursor = self.cursor.max(i64::try_from(envelope.server_seq)?);
        match self.channels.get_mut(&envelope.channel) {
            Some(held) if envelope.rejection_reason.is_none() => {
                held.apply(envelope).with_context(|| format!("on {}", envelope.channel)).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Checks that every request was answered.
    pub fn check_all_answered(&self) -> Result<()> {
        if let Some(unanswered) = self.asked.first_key_value() {
            bail!("never answered: {unanswered:?}");
        }
        Ok(())
    }
}

/// Changes what a partial summary names. An activity that is empty is none.
fn patch(summary: &mut SessionSummary, changes: PartialSessionSummary) {
    let PartialSessionSummary {
        title,
        status,
        activity,
        modified_at,
        working_directories,
        default_chat,
        annotations,
        changes,
        chats,
        meta,
        ..
    } = changes;
    title.into_iter().for_each(|title| summary.title = title);
    status.into_iter().for_each(|status| summary.status = status);
    activity.into_iter().for_each(|it| summary.activity = Some(it).filter(|it| !it.is_empty()));
    modified_at.into_iter().for_each(|at| summary.modified_at = at);
    working_directories.into_iter().for_each(|them| summary.working_directories = Some(them));
    annotations.into_iter().for_each(|it| summary.annotations = Some(it));
    changes.into_iter().for_each(|it| summary.changes = Some(it));
    chats.into_iter().for_each(|chats| summary.chats = Some(chats));
    meta.into_iter().for_each(|meta| summary.meta = Some(meta));
    default_chat.into_iter().for_each(|chat| summary.default_chat = Some(chat));
}
