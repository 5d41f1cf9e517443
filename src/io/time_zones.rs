//! Time zones of schedules.
//!
//! Owns: the database of the system, or the copy in the program if the system has none; and the
//! zones that were read of it, each when a schedule first names it.
//! Never: reads a zone again: a new version of it counts from the next start on.

use std::collections::HashMap;
use std::sync::Mutex;

use jiff::tz::TimeZone;

use crate::host::{TimeZones, ZoneDatabase};

/// Returns the time zones of the system, of which none is read yet.
pub fn of_system() -> TimeZones {
    TimeZones::new(ReadZones::default())
}

/// Zones that were read, by their names in lower case. There are no more than the database has.
#[derive(Debug, Default)]
struct ReadZones(Mutex<HashMap<String, TimeZone>>);

impl ZoneDatabase for ReadZones {
    fn zone(&self, name: &str) -> Option<TimeZone> {
        let lower = name.to_ascii_lowercase();
        let mut known = self.0.lock().ok()?;
        if let Some(zone) = known.get(&lower) {
            return Some(zone.clone());
        }
        // `Etc/Unknown` is no zone of the database.
        let zone = jiff::tz::db().get(name).ok().filter(|zone| !zone.is_unknown())?;
        known.insert(lower, zone.clone());
        Some(zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_names_in_any_case() {
        let zones = of_system();
        for name in ["UTC", "Europe/Berlin", "america/new_york"] {
            assert!(zones.get(name).is_some(), "{name}");
        }
        for name in ["Mars/Olympus", "Etc/Unknown", "zone.tab", "../zoneinfo/UTC", ""] {
            assert!(zones.get(name).is_none(), "{name}");
        }
    }

    #[test]
    fn zones_are_read_when_they_are_named() {
        let zones = ReadZones::default();
        for name in ["Europe/Berlin", "europe/berlin", "Mars/Olympus"] {
            let _ = zones.zone(name);
        }
        assert_eq!(zones.0.lock().unwrap().keys().collect::<Vec<_>>(), ["europe/berlin"]);
    }
}
