//! Lookups in the store of state that is not in memory.
//!
//! Owns: looking up what a message names, again after changes; and handling results of commits.
//! Never: decides what is needed, or blocks, except at the start: other connections are served
//! while a message waits.

use tokio::time::Instant;

use super::{Events, Sidecar};
use crate::host::effects::{
    ConnectionId, Failing, Input, Output, Prefetched, Record, SessionKey, Timer, NOT_STORED_YET,
};
use crate::host::limits::ReplayFilter;
use crate::host::{Findings, LoadedSession, StoredSummary};
use crate::io::directories::CheckFor;
use crate::io::held::HeldMessage;
use crate::io::persistence::CommitEvent;
use crate::io::readers::{FinishedRead, ListRead, ListRequest, ReadRequest};
use crate::io::store_failure::FailureAnswer;
use crate::io::watches::{StartedWatches, WatchLease};
use crate::store::reader::Reader;
use crate::trace;
use crate::watches::engine::WatchRefusal;
use crate::wire::methods::Method;
use crate::wire::rpc::Incoming;

impl Sidecar {
    /// Ends the turns that the last process left running. Sessions that have ended an earlier
    /// process before are restored last, one at a time, with all else committed, so that each start
    /// gets further than the one before.
    pub(super) async fn end_interrupted_turns(&mut self, events: &mut Events) {
        let interrupted = match self.reader().map(Reader::interrupted) {
            Some(Ok(interrupted)) => interrupted,
            Some(Err(error)) => {
                tracing::error!(%error, "the turns that the end of the previous host interrupted cannot be listed");
                return;
            }
            None => return,
        };
        for (deaths, key) in interrupted {
            if deaths > 0 {
                self.flush(events).await;
                self.end_trials();
                self.outputs.push(Output::Record(Record::Trial(key)));
                self.flush(events).await;
            }
            self.load_interrupted(key);
        }
    }

    /// Waits until all steps are committed or commits fail.
    async fn flush(&mut self, events: &mut Events) {
        self.end_step();
        while !self.persistence.is_settled() && !self.persistence.is_failing() {
            let Some(kept) = events.committed.recv().await else { return };
            self.receive_commit_event(kept);
        }
    }

    /// Confirms that the sessions restored so far have not ended the process.
    fn end_trials(&mut self) {
        let survives = |timer: &Timer| matches!(timer, Timer::Recovered(_) | Timer::Trial(_));
        let (survived, later) = self.timers.drain(..).partition(|(_, timer)| survives(timer));
        self.timers = later;
        let survived: Vec<(Instant, Timer)> = survived;
        for (_, timer) in survived {
            self.feed(Input::Timer(timer));
        }
    }

    fn load_interrupted(&mut self, key: SessionKey) {
        let mut sieve = ReplayFilter::new(self.options.limits);
        let read = self.reader().map(|reader| reader.load_sifted(key, |row, line| sieve.admits(row, line)));
        match read {
            Some(Ok(Some(saved))) => {
                let loaded = LoadedSession::of(saved, &self.options.limits);
                if !loaded.is_readable() {
                    self.outputs.push(Output::Record(Record::Unreadable(key)));
                }
                self.feed(Input::Restored(Box::new(loaded)));
            }
            Some(Err(error)) => {
                tracing::error!(%error, key = key.0, "an interrupted session cannot be read");
                self.outputs.push(Output::Record(Record::Unreadable(key)));
            }
            Some(Ok(None)) | None => {}
        }
    }

    fn reader(&self) -> Option<&Reader> {
        self.readers.as_ref()?.at_rest()
    }

    /// Handles a message if all its lookups are done; otherwise holds it.
    pub(super) fn handle_or_hold(&mut self, connection: ConnectionId, mut held: HeldMessage) {
        if self.start_lookup(connection, &mut held) {
            self.receive_held(connection, held);
        } else if let Some(link) = self.links.get_mut(connection) {
            link.held = Some(Box::new(held));
        }
    }

    /// Starts missing lookups for a message. Returns true if there are none.
    fn start_lookup(&mut self, connection: ConnectionId, held: &mut HeldMessage) -> bool {
        // A commit must not take up a message that waits for anything else.
        held.waits_for_store = false;
        if held.findings.is_none() && !held.named.directories.is_empty() {
            self.directories
                .check(CheckFor::Message(connection), held.named.directories.iter().cloned().collect());
            return false;
        }
        let mut watches = self.host.watches_to_begin(&held.named);
        watches.retain(|channel| !held.watches.iter().any(|(known, _)| known == channel));
        if !watches.is_empty() {
            self.watches.begin(connection, watches);
            return false;
        }
        let Some(readers) = &mut self.readers else { return true };
        let client = held.named.client.as_ref();
        let client = client.filter(|client| held.version.is_none() && self.edges.is_stranger(client));
        let mut wanted = ReadRequest {
            client: client.cloned(),
            past: held.unknown_past(&self.host),
            uris: held.unknown(&self.host, &self.changes),
            kept: held.named.sessions && held.sessions_kept.is_none(),
            texts: Vec::new(),
        };
        // Recently evicted state reaches the store only when its step is committed.
        if !self.persistence.is_failing() && wanted.uris.iter().any(|uri| self.persistence.holds(uri)) {
            held.waits_for_store = true;
            return false;
        }
        wanted.uris.retain(|uri| {
            let is_held = self.persistence.holds(uri);
            if is_held {
                held.cannot_read(uri.clone(), NOT_STORED_YET.to_owned(), &self.changes);
            }
            !is_held
        });
        if wanted.is_nothing() {
            wanted.texts = held.texts_to_read(&self.host);
        }
        if wanted.is_nothing() {
            return true;
        }
        held.begin(&wanted, &self.changes);
        readers.recall(connection, wanted);
        false
    }

    fn receive_held(&mut self, connection: ConnectionId, mut held: HeldMessage) {
        if let Some(sessions) = held.sessions_kept.take() {
            self.edges.learn_sessions(&sessions);
        }
        if let (Some(client), Some(Some(dialect))) = (&held.named.client, held.version) {
            if self.edges.is_stranger(client) {
                self.edges.remember(client.clone(), dialect);
            }
        }
        // The texts must stay in memory until the message is handled.
        let texts = held.take_texts();
        let (message, recalled) = held.into_message();
        let past = recalled.past.iter().flat_map(|past| past.sessions.values().flatten());
        self.edges.learn(past.map(StoredSummary::uri_and_provider));
        self.receive_message(connection, message, Some(Box::new(recalled)));
        drop(texts);
    }

    /// Translates and feeds a message, without other inputs in between.
    pub(super) fn receive_message(
        &mut self,
        connection: ConnectionId,
        message: Incoming,
        mut prefetched: Option<Box<Prefetched>>,
    ) {
        if self.edges.passes(connection, &message) {
            return self.feed(Input::Received { connection, message: message.into(), prefetched });
        }
        let mut fed = std::mem::take(&mut self.fed);
        self.edges.up(connection, message, &mut fed);
        self.outputs.extend(self.edges.take_records().into_iter().map(Output::Record));
        for message in fed.drain(..) {
            let prefetched = if message.is_note() { None } else { prefetched.take() };
            self.feed(Input::Received { connection, message, prefetched });
        }
        self.fed = fed;
    }

    pub(super) fn receive_directories(&mut self, connection: ConnectionId, findings: Findings) {
        if let Some(mut held) = self.take_held(connection) {
            held.findings = Some(findings);
            self.handle_or_hold(connection, held);
        }
    }

    pub(super) fn receive_watches(&mut self, connection: ConnectionId, begun: StartedWatches) {
        if let Some(mut held) = self.take_held(connection) {
            let lacks_room = |begun: &Result<WatchLease, WatchRefusal>| {
                matches!(begun, Err(WatchRefusal { lacks_room: true, .. }))
            };
            let is_short = begun.iter().any(|(_, begun)| lacks_room(begun));
            if is_short && !std::mem::replace(&mut held.made_room, true) {
                // Refused watches are retried once after the core has released idle ones.
                held.watches.extend(begun.into_iter().filter(|(_, begun)| !lacks_room(begun)));
                if let Some(link) = self.links.get_mut(connection) {
                    link.held = Some(Box::new(held));
                }
                return self.feed(Input::WatchesLackRoom(connection));
            }
            held.watches.extend(begun);
            self.handle_or_hold(connection, held);
        }
    }

    pub(super) fn receive_read(&mut self, connection: ConnectionId, read: FinishedRead) {
        if let Some(readers) = &mut self.readers {
            readers.answered();
        }
        match read {
            FinishedRead::Answer(frame) => self.answer(connection, &frame),
            FinishedRead::Conversations(answered, known) => self.feed_agent_sessions(*answered, known),
            FinishedRead::Listed(read) => self.receive_list(connection, *read),
            FinishedRead::Found(found) => {
                if let Some(mut held) = self.take_held(connection) {
                    held.take_in(found);
                    self.handle_or_hold(connection, held);
                }
            }
        }
    }

    /// Answers with a page of the list. If sessions may have changed since the read began, the core
    /// makes the answer from its current state.
    fn receive_list(&mut self, connection: ConnectionId, read: ListRead) {
        let ListRead { asked: ListRequest { id, page, began }, listed, answer } = read;
        if began.is_some_and(|began| !self.changes.list_has_changed(began)) {
            return self.answer(connection, &answer);
        }
        if self.links.get_mut(connection).is_some() {
            self.feed_answer(connection, &id.clone(), Input::Listed { connection, id, page, listed });
        }
    }

    fn take_held(&mut self, connection: ConnectionId) -> Option<HeldMessage> {
        Some(*self.links.get_mut(connection)?.held.take()?)
    }

    pub(super) fn receive_commit_event(&mut self, kept: CommitEvent) {
        let was_failing = self.persistence.is_failing();
        match kept {
            CommitEvent::Safe(step, records) => {
                drop(records);
                if trace::is_on() {
                    trace::steps_are_committed(step);
                }
                for output in self.persistence.release(step) {
                    self.carry_out(output);
                }
                if was_failing {
                    tracing::warn!("the store can be written again");
                    self.feed(Input::Failing(None));
                }
            }
            CommitEvent::Failing(trouble) => {
                let reason = trouble.reason.clone();
                let safe = self.persistence.fail(trouble);
                self.feed(Input::Failing(Some(Failing { reason, safe })));
                self.answer_what_waits();
            }
        }
        let waits = self.links.iter().filter(|link| link.held.as_ref().is_some_and(|it| it.waits_for_store));
        let waits: Vec<ConnectionId> = waits.map(|link| link.id).collect();
        for connection in waits {
            if let Some(held) = self.take_held(connection) {
                self.handle_or_hold(connection, held);
            }
        }
    }

    pub(super) fn answer_what_waits(&mut self) {
        for answer in self.persistence.take_answers() {
            match answer {
                FailureAnswer::Whole(output) => self.carry_out(output),
                FailureAnswer::Refused(connection, frame, method) => {
                    self.send_frame(connection, &frame);
                    if matches!(method, Method::Initialize | Method::Reconnect) {
                        // The client may try again.
                        self.feed(Input::NotAdmitted(connection));
                    }
                }
            }
        }
    }
}
