//! What the store knows and the core does not remember.
//!
//! Owns: bringing sessions, old actions and clients' versions into memory before the message that needs them is
//! handled, and hearing what became of what was given to the store.
//! Never: decides what is needed; the core says so.

use super::{Events, Sidecar, STDIO};
use crate::host;
use crate::host::effects::{Failing, Frame, Input, Recalled, SessionKey};
use crate::io::keeper::Kept;
use crate::store::reader::Reader;
use crate::versions::dialect::Dialect;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::names::Named;
use crate::wire::rpc::Incoming;

impl Sidecar {
    /// Ends, once, what ran when the process before this one ended.
    pub(super) fn end_interrupted_turns(&mut self) {
        let interrupted = match self.keeper.reader().map(Reader::interrupted) {
            Some(Ok(keys)) => keys,
            Some(Err(error)) => {
                tracing::error!(%error, "interrupted turns cannot be looked for");
                return;
            }
            None => return,
        };
        for key in interrupted {
            self.bring_back(key, "an interrupted session".to_owned());
        }
    }

    /// Brings a session from the store into memory.
    pub(super) fn bring_back(&mut self, key: SessionKey, uri: String) {
        let Some(reader) = self.keeper.reader() else { return };
        let input = match reader.load(key) {
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

    /// Looks up what a message needs from the store.
    pub(super) async fn prepare(&mut self, message: &Incoming, events: &mut Events) -> Recalled {
        let mut recalled = Recalled::default();
        if self.keeper.reader().is_none() {
            return recalled;
        }
        let named = Named::of(message);
        let absent = self.host.absent(&named);
        let cursor = self.host.cursor_into_the_past(&named);
        if absent.is_empty() && cursor.is_none() {
            return recalled;
        }
        // What was let out of memory a moment ago is not in the store before its step is.
        self.end_step();
        while absent.iter().any(|uri| self.keeper.holds(uri)) && !self.keeper.is_failing() {
            let Some(kept) = events.kept.recv().await else { return recalled };
            self.hear_keeper(kept);
        }
        let Some(reader) = self.keeper.reader() else { return recalled };
        if let Some(cursor) = cursor {
            recalled.past = reader.actions_since(cursor).unwrap_or_else(|error| {
                tracing::error!(%error, "old actions cannot be read");
                None
            });
        }
        for uri in absent {
            if self.keeper.holds(&uri) {
                recalled.unreadable.push((uri, "its newest state is not kept yet".to_owned()));
                continue;
            }
            let found = reader.find(&uri).and_then(|key| key.map(|key| reader.load(key)).transpose());
            match found {
                Ok(saved) => recalled.restored.extend(saved.flatten()),
                Err(error) => {
                    tracing::error!(%error, uri, "a session cannot be read");
                    recalled.unreadable.push((uri, error.to_string()));
                }
            }
        }
        recalled
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
            Kept::Failing(reason) => {
                let safe = self.keeper.fail();
                self.feed(Input::Failing(Some(Failing { reason, safe })));
            }
        }
    }
}
