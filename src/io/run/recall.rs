//! What the store knows and the core does not remember.
//!
//! Owns: bringing sessions, old actions and clients' versions into memory before the message that needs them is
//! handled, and hearing what became of what was given to the store.
//! Never: decides what is needed; the core says so.

use tokio::time::Instant;

use super::{Events, Sidecar, STDIO};
use crate::host;
use crate::host::effects::{Failing, Frame, Input, Output, Record, SessionKey, Timer};
use crate::host::limits::Sieve;
use crate::io::keeper::Kept;
use crate::io::trouble::Answer;
use crate::store::reader::Reader;
use crate::versions::dialect::Dialect;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::Incoming;

impl Sidecar {
    /// Ends, once, what ran when the process before this one ended. What has ended a process before is taken up when
    /// all else is safe, one session after the other: so each start gets further than the one before it.
    pub(super) async fn end_interrupted_turns(&mut self, events: &mut Events) {
        let interrupted = match self.keeper.reader().map(Reader::interrupted) {
            Some(Ok(interrupted)) => interrupted,
            Some(Err(error)) => {
                tracing::error!(%error, "interrupted turns cannot be looked for");
                return;
            }
            None => return,
        };
        for (deaths, key) in interrupted {
            if deaths > 0 {
                self.be_safe(events).await;
                self.note_survivals();
                self.outputs.push(Output::Record(Record::Trial(key)));
                self.be_safe(events).await;
            }
            self.bring_back(key, "an interrupted session".to_owned());
        }
    }

    /// Waits until everything so far is safe, unless nothing can be made safe now.
    async fn be_safe(&mut self, events: &mut Events) {
        self.end_step();
        while !self.keeper.is_settled() && !self.keeper.is_failing() {
            let Some(kept) = events.kept.recv().await else { return };
            self.hear_keeper(kept);
        }
    }

    /// The process is still there: sessions that were taken up so far have not ended it.
    fn note_survivals(&mut self) {
        let survives = |timer: &Timer| matches!(timer, Timer::Recovered(_) | Timer::Trial(_));
        let (survived, later) = self.timers.drain(..).partition(|(_, timer)| survives(timer));
        self.timers = later;
        let survived: Vec<(Instant, Timer)> = survived;
        for (_, timer) in survived {
            self.feed(Input::Timer(timer));
        }
    }

    /// Brings a session from the store into memory.
    pub(super) fn bring_back(&mut self, key: SessionKey, uri: String) {
        let Some(reader) = self.keeper.reader() else { return };
        let mut sieve = Sieve::new(self.options.limits);
        let input = match reader.load_sifted(key, |row, line| sieve.admits(row, line)) {
            Ok(Some(saved)) => Input::Restored(Box::new(saved)),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, uri, "a session cannot be read");
                Input::Unreadable { uris: vec![uri], reason: error.to_string() }
            }
        };
        self.feed(input);
    }

    /// Looks in the store for the version that a client spoke last.
    pub(super) fn look_up_client(&mut self, client: String) {
        match self.keeper.reader().map(|reader| reader.client_version(&client)) {
            Some(Ok(version)) => {
                if let Some(dialect) = version.as_deref().and_then(Dialect::from_name) {
                    self.edges.remember(client, dialect);
                }
            }
            Some(Err(error)) => tracing::error!(%error, "the version of a client cannot be looked up"),
            None => {}
        }
    }

    /// Brings what a message needs from the store into memory.
    pub(super) async fn prepare(&mut self, message: &Incoming, events: &mut Events) {
        if self.keeper.reader().is_none() {
            return;
        }
        let absent = self.host.absent(message);
        let cursor = self.host.cursor_into_the_past(message);
        if absent.is_empty() && cursor.is_none() {
            return;
        }
        // What was let out of memory a moment ago is not in the store before its step is.
        self.end_step();
        while absent.iter().any(|uri| self.keeper.holds(uri)) && !self.keeper.is_failing() {
            let Some(kept) = events.kept.recv().await else { return };
            self.hear_keeper(kept);
        }
        let Some(reader) = self.keeper.reader() else { return };
        if let Some(cursor) = cursor {
            let past = reader.actions_since(cursor).unwrap_or_else(|error| {
                tracing::error!(%error, "old actions cannot be read");
                None
            });
            self.feed(Input::Past(past));
        }
        for uri in absent {
            if self.keeper.holds(&uri) {
                let reason = "its newest state is not kept yet".to_owned();
                self.feed(Input::Unreadable { uris: vec![uri], reason });
                continue;
            }
            match self.keeper.reader().map(|reader| reader.find(&uri)) {
                Some(Ok(Some(key))) => self.bring_back(key, uri),
                Some(Err(error)) => {
                    let reason = error.to_string();
                    self.feed(Input::Unreadable { uris: vec![uri], reason });
                }
                _ => {}
            }
        }
    }

    pub(super) fn hear_keeper(&mut self, kept: Kept) {
        let was_failing = self.keeper.is_failing();
        match kept {
            Kept::Safe(step) => {
                for output in self.keeper.release(step) {
                    self.carry_out(output);
                }
                if was_failing {
                    tracing::warn!("everything is kept again");
                    self.feed(Input::Failing(None));
                }
            }
            Kept::Listed(id, listed) => {
                self.keeper.listed();
                let frame = match listed {
                    Ok(listed) => {
                        let result = host::listing(&listed.summaries, listed.next.as_ref());
                        Frame::Result { id, method: Method::ListSessions, result }
                    }
                    Err(error) => {
                        tracing::error!(%error, "the list of sessions cannot be read");
                        Frame::Error { id: Some(id), error: RpcError::unavailable(error) }
                    }
                };
                self.tell(STDIO, &frame);
            }
            Kept::Failing(trouble) => {
                let reason = trouble.reason.clone();
                let safe = self.keeper.fail(trouble);
                self.feed(Input::Failing(Some(Failing { reason, safe })));
                self.answer_what_waits();
            }
        }
    }

    /// Answers requests while nothing can be kept.
    pub(super) fn answer_what_waits(&mut self) {
        for answer in self.keeper.take_answers() {
            match answer {
                Answer::Whole(output) => self.carry_out(output),
                Answer::Refused(connection, frame, method) => {
                    self.tell(connection, &frame);
                    if method == Method::Initialize {
                        // It may try again.
                        self.feed(Input::Closed(connection));
                        self.feed(Input::Opened(connection));
                    }
                }
            }
        }
    }
}
