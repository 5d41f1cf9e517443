//! A message that waits until what it names has been looked up.
//!
//! Owns: what was found so far, and whether that is still so: others are heard meanwhile, and
//! sessions come and go.
//! Never: looks anything up, or decides what is needed; the core says that.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::readers::{ReadRequest, ReadResult};
use super::watches::{StartedWatches, WatchLease};
use crate::host::effects::{Output, Past, Prefetched, Record};
use crate::host::{Findings, Host, LoadedSession};
use crate::state::texts::TurnText;
use crate::versions::dialect::Dialect;
use crate::wire::references::MessageReferences;
use crate::wire::rpc::Incoming;

/// A message, and what was looked up for it.
#[derive(Debug)]
pub struct HeldMessage {
    /// The message.
    pub message: Incoming,
    /// Names in it.
    pub named: MessageReferences,
    /// Findings about its directories; `None` if they were not looked at.
    pub findings: Option<Findings>,
    /// Watches that nobody follows were given up for those that it follows.
    pub made_room: bool,
    /// The watches that it follows and that were begun for it, or why they were not.
    pub watches: StartedWatches,
    /// The version that its client spoke last, once that was looked up.
    pub version: Option<Option<Dialect>>,
    /// The sessions that are kept, each with its provider, once that was looked up.
    pub sessions_kept: Option<Vec<(String, String)>>,
    /// Set while it waits for the store to have what memory has evicted.
    pub waits_for_store: bool,
    /// When the reading of what is read now began.
    began: Tick,
    /// The URIs that were looked up, and when that began.
    looked_up: BTreeMap<String, Tick>,
    sessions: Vec<(Tick, LoadedSession)>,
    unreadable: BTreeMap<String, String>,
    /// The actions that memory has forgotten, once they were read; none when not all of them are
    /// there. What memory forgets while they are read lies too far back for anybody to catch up
    /// with.
    past: Option<Option<Past>>,
    /// The texts of turns that it needs, once they were read: they stay in memory until it was
    /// handled.
    texts: Option<Vec<Bytes>>,
}

impl HeldMessage {
    /// Holds a message for which nothing was looked up yet.
    pub fn new(message: Incoming, named: MessageReferences) -> Self {
        Self {
            message,
            named,
            findings: None,
            made_room: false,
            watches: StartedWatches::new(),
            version: None,
            sessions_kept: None,
            waits_for_store: false,
            began: Tick::default(),
            looked_up: BTreeMap::new(),
            sessions: Vec::new(),
            unreadable: BTreeMap::new(),
            past: None,
            texts: None,
        }
    }

    /// The URIs of channels that must be looked up, again if they have changed since they were.
    pub fn unknown(&mut self, host: &Host, changes: &ChangedSince) -> Vec<String> {
        let mut absent = host.absent_channels(&self.named);
        if absent.is_empty() {
            return absent;
        }
        let mut stale = Vec::new();
        self.sessions.retain(|(began, loaded)| {
            let keeps = !loaded.uris().iter().any(|uri| changes.has_changed(uri, *began));
            if !keeps {
                stale.extend(loaded.uris().iter().cloned());
            }
            keeps
        });
        self.looked_up.retain(|uri, began| !changes.has_changed(uri, *began) && !stale.contains(uri));
        absent.retain(|uri| !self.looked_up.contains_key(uri));
        absent
    }

    /// The number after which actions must be read that memory has forgotten.
    pub fn unknown_past(&self, host: &Host) -> Option<u64> {
        host.cursor_before_memory(&self.named).filter(|_| self.past.is_none())
    }

    /// The texts of turns that it needs and that are not in memory.
    pub fn texts_to_read(&self, host: &Host) -> Vec<TurnText> {
        if self.texts.is_some() {
            return Vec::new();
        }
        host.texts_needed(&self.named, self.sessions.iter().map(|(_, loaded)| loaded))
    }

    /// The texts of turns that were read for it.
    pub fn take_texts(&mut self) -> Vec<Bytes> {
        self.texts.take().unwrap_or_default()
    }

    /// Notes why a channel cannot be read.
    pub fn cannot_read(&mut self, uri: String, reason: String, now: &ChangedSince) {
        self.looked_up.insert(uri.clone(), now.tick);
        self.unreadable.insert(uri, reason);
    }

    /// The reading of this begins.
    pub fn begin(&mut self, wanted: &ReadRequest, now: &ChangedSince) {
        self.began = now.tick;
        if !wanted.texts.is_empty() {
            self.texts = Some(Vec::new());
        }
        for uri in &wanted.uris {
            self.unreadable.remove(uri);
            self.looked_up.insert(uri.clone(), now.tick);
        }
    }

    /// Takes in what was read.
    pub fn take_in(&mut self, found: ReadResult) {
        self.version = self.version.or(found.version);
        self.sessions_kept = self.sessions_kept.take().or(found.kept);
        self.unreadable.extend(found.unreadable);
        self.sessions.extend(found.sessions.into_iter().map(|loaded| (self.began, loaded)));
        self.past = self.past.take().or(found.past);
        self.texts = self.texts.take().map(|_| found.texts);
    }

    /// The message, and what was found for it.
    pub fn into_message(self) -> (Incoming, Prefetched) {
        let prefetched = Prefetched {
            past: self.past.flatten(),
            findings: self.findings.unwrap_or_default(),
            watches: self
                .watches
                .into_iter()
                .map(|(uri, begun)| (uri, begun.map(WatchLease::hand_over).map_err(|refused| refused.error)))
                .collect(),
            restored: self.sessions.into_iter().map(|(_, loaded)| loaded).collect(),
            unreadable: self.unreadable.into_iter().collect(),
        };
        (self.message, prefetched)
    }
}

/// A time, counted in steps that change sessions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u64);

/// Sessions and chats that have changed since the oldest pending read.
#[derive(Debug, Default)]
pub struct ChangedSince {
    tick: Tick,
    changed: HashMap<String, Tick>,
    /// When the list of sessions has changed last.
    list: Tick,
}

impl ChangedSince {
    /// Takes note of what a step leaves to be kept.
    pub fn note(&mut self, outputs: &[Output]) {
        self.tick.0 += 1;
        for output in outputs {
            let Output::Record(record) = output else { continue };
            if matches!(record, Record::Session(_) | Record::SessionRemoved(_)) {
                self.list = self.tick;
            }
            let uri = match record {
                Record::Session(row) => &row.uri,
                Record::Chat(row) => &row.uri,
                Record::ChatRemoved { uri, .. } => uri,
                _ => continue,
            };
            self.changed.insert(uri.clone(), self.tick);
        }
    }

    /// Forgets the changes, because nothing is being read.
    pub fn forget(&mut self) {
        self.changed.clear();
    }

    /// Now.
    pub fn now(&self) -> Tick {
        self.tick
    }

    /// Returns whether the list of sessions has changed since.
    pub fn list_has_changed(&self, since: Tick) -> bool {
        self.list > since
    }

    fn has_changed(&self, uri: &str, since: Tick) -> bool {
        self.changed.get(uri).is_some_and(|at| *at > since)
    }
}
