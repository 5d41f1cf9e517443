//! Time and ids.
//!
//! Owns: the clock and the random numbers of the process, and their deterministic replacements.
//! Never: is called by the core, which receives times and ids from the loop.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::host::effects::{Ids, Now};

/// Time of the fixed clock: the first millisecond of 2026, in Unix milliseconds.
const FIXED_UNIX_MS: i64 = 1_767_225_600_000;

/// Source of the current time.
#[derive(Debug)]
pub enum Clock {
    /// System clock, with the start of the monotonic time.
    Real(Instant),
    /// Clock that always shows the same time.
    Fixed,
}

impl Clock {
    /// Returns the current time.
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

/// Source of ids that cannot be guessed.
#[derive(Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn fresh(&mut self) -> String {
        Uuid::new_v4().to_string()
    }
}

/// Source of deterministic ids: `id-1`, `id-2` …, counted from the number after this one.
#[derive(Debug)]
pub struct CountedIds(pub u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("id-{}", self.0)
    }
}
