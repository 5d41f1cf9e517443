//! The replacement for a store in a host that keeps everything in memory.
//!
//! Owns: the order of the list of sessions.
//! Never: holds other state; such a host never evicts a session.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};

use bytes::Bytes;

use crate::host::effects::{ListPosition, Listed, Page, Record, SessionKey};

/// Summaries of all sessions, newest first.
#[derive(Debug, Default)]
pub struct Memory {
    summaries: BTreeMap<Reverse<ListPosition>, Bytes>,
    places: HashMap<SessionKey, ListPosition>,
}

impl Memory {
    /// Applies a record of a step to the list.
    pub fn keep(&mut self, record: Record) {
        match record {
            Record::Session(row) => {
                self.forget(row.key);
                let place = ListPosition { modified_at: row.modified_at, key: row.key };
                self.places.insert(row.key, place.clone());
                self.summaries.insert(Reverse(place), row.summary);
            }
            Record::SessionRemoved(key) => self.forget(key),
            _ => {}
        }
    }

    /// Returns a page of the list.
    pub fn list(&self, page: &Page) -> Listed {
        let start = page.after.clone().map_or(Unbounded, |place| Excluded(Reverse(place)));
        let mut rest = self.summaries.range((start, Unbounded));
        let sessions = rest.by_ref().take(page.limit);
        let sessions: Vec<_> = sessions.map(|(Reverse(place), json)| (place.clone(), json.clone())).collect();
        let next = sessions.last().map(|(place, _)| place.clone()).filter(|_| rest.next().is_some());
        Listed { sessions, next }
    }

    fn forget(&mut self, key: SessionKey) {
        if let Some(place) = self.places.remove(&key) {
            self.summaries.remove(&Reverse(place));
        }
    }
}
