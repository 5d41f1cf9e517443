//! Time zones of schedules.
//!
//! Owns: the database of the system, or the copy in the program if the system has none.
//! Never: reads it again: a new version of it counts from the next start on.

use crate::host::TimeZones;

/// Reads all time zones. Those that cannot be read are left out.
pub fn read() -> TimeZones {
    let database = jiff::tz::db();
    let names = database.available();
    names.filter_map(|name| Some((name.as_str().to_owned(), database.get(name.as_str()).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_names_in_any_case() {
        let zones = read();
        for name in ["UTC", "Europe/Berlin", "america/new_york"] {
            assert!(zones.get(name).is_some(), "{name}");
        }
        assert!(zones.get("Mars/Olympus").is_none());
    }
}
