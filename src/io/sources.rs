//! Time and ids.
//!
//! Owns: the clock and the dice of the process, and their fixed stand-ins for fixtures.
//! Never: is called by the core, which is handed what it needs.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::host::effects::{Ids, Now};

/// The time that a fixed clock shows: the first millisecond of 2026.
const FIXED_UNIX_MS: i64 = 1_767_225_600_000;

/// A clock.
#[derive(Debug)]
pub enum Clock {
    /// Shows the time; began to count at this instant.
    Real(Instant),
    /// Stands still.
    Fixed,
}

impl Clock {
    /// The time now.
    pub fn now(&self) -> Now {
        match self {
            Self::Real(start) => {
                let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Now {
                    unix_ms: i64::try_from(unix.as_millis()).unwrap_or(i64::MAX),
                    monotonic_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
                }
            }
            Self::Fixed => Now { unix_ms: FIXED_UNIX_MS, monotonic_ms: 0 },
        }
    }
}

/// Ids that nobody can guess.
#[derive(Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn fresh(&mut self) -> String {
        Uuid::new_v4().to_string()
    }
}

/// Ids that are the same each time: `id-1`, `id-2` …
#[derive(Debug, Default)]
pub struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("id-{}", self.0)
    }
}
