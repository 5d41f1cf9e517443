//! A message that waits for lookups.
//!
//! Owns: the results so far, and whether they are valid after other messages and evictions.
//! Never: looks anything up, or decides what is needed; the core does.

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

#[derive(Debug)]
pub struct HeldMessage {
    pub message: Incoming,
    pub named: MessageReferences,
    /// Findings about its directories; `None` until they were checked.
    pub findings: Option<Findings>,
    /// Set once idle watches were released to make room for its watches.
    pub made_room: bool,
    /// Watches that were started for it, or the reasons why they were not.
    pub watches: StartedWatches,
    /// Last version of its client; the outer `None` means not looked up, the inner one unknown.
    pub version: Option<Option<Dialect>>,
    /// Stored sessions, each with its provider; `None` until they were looked up.
    pub sessions_kept: Option<Vec<(String, String)>>,
    /// Set while evicted state that it needs has not reached the store.
    pub waits_for_store: bool,
    /// Start of the read in progress.
    began: Tick,
    /// Time at which the lookup of each URI began.
    looked_up: BTreeMap<String, Tick>,
    sessions: Vec<(Tick, LoadedSession)>,
    unreadable: BTreeMap<String, String>,
    /// Actions that the replay log has evicted. The outer `None` means not read, the inner one that
    /// the store lacks some. Those evicted during the read are too old for any client to replay.
    past: Option<Option<Past>>,
    /// Texts of turns that it needs, in memory until it is handled; `None` until they were read.
    texts: Option<Vec<Bytes>>,
}

impl HeldMessage {
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

    /// Returns the URIs of channels to look up, also those that have changed since their lookup.
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

    /// Returns the number after which evicted actions must be read, if any.
    pub fn unknown_past(&self, host: &Host) -> Option<u64> {
        host.cursor_before_memory(&self.named).filter(|_| self.past.is_none())
    }

    /// Returns the texts of turns that it needs and that are not in memory.
    pub fn texts_to_read(&self, host: &Host) -> Vec<TurnText> {
        if self.texts.is_some() {
            return Vec::new();
        }
        host.texts_needed(&self.named, self.sessions.iter().map(|(_, loaded)| loaded))
    }

    pub fn take_texts(&mut self) -> Vec<Bytes> {
        self.texts.take().unwrap_or_default()
    }

    pub fn cannot_read(&mut self, uri: String, reason: String, now: &ChangedSince) {
        self.looked_up.insert(uri.clone(), now.tick);
        self.unreadable.insert(uri, reason);
    }

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

    pub fn take_in(&mut self, found: ReadResult) {
        self.version = self.version.or(found.version);
        self.sessions_kept = self.sessions_kept.take().or(found.kept);
        self.unreadable.extend(found.unreadable);
        self.sessions.extend(found.sessions.into_iter().map(|loaded| (self.began, loaded)));
        self.past = self.past.take().or(found.past);
        self.texts = self.texts.take().map(|_| found.texts);
    }

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

/// Logical time, in steps that change sessions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u64);

/// Sessions and chats that have changed since the oldest pending read.
#[derive(Debug, Default)]
pub struct ChangedSince {
    tick: Tick,
    changed: HashMap<String, Tick>,
    list: Tick,
}

impl ChangedSince {
    /// Records the sessions and chats that a step changes.
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

    /// Clears the changes, because no read is pending.
    pub fn forget(&mut self) {
        self.changed.clear();
    }

    pub fn now(&self) -> Tick {
        self.tick
    }

    pub fn list_has_changed(&self, since: Tick) -> bool {
        self.list > since
    }

    fn has_changed(&self, uri: &str, since: Tick) -> bool {
        self.changed.get(uri).is_some_and(|at| *at > since)
    }
}
