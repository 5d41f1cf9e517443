//! Protocol versions that clients spoke last.
//!
//! Owns: storing them, for the newest [`CLIENTS_MAX`] clients.
//! Never: interprets a version.

use rusqlite::{params, Connection, OptionalExtension};

use super::errors::StoreError;

const CLIENTS_MAX: u32 = 10_000;

pub(super) fn put(connection: &Connection, client: &str, version: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO clients (id, version) VALUES (?1, ?2)")?
        .execute(params![client, version])?;
    // A replaced row gets a new place, so places grow, with gaps.
    connection
        .prepare_cached(
            "DELETE FROM clients WHERE place <= (SELECT place FROM clients ORDER BY place DESC LIMIT 1 OFFSET ?1)",
        )?
        .execute(params![CLIENTS_MAX])?;
    Ok(())
}

pub(super) fn get(connection: &Connection, client: &str) -> Result<Option<String>, StoreError> {
    Ok(connection
        .prepare_cached("SELECT version FROM clients WHERE id = ?1")?
        .query_row(params![client], |row| row.get(0))
        .optional()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_clients_are_remembered() {
        let connection = Connection::open_in_memory().unwrap();
        crate::store::schema::migrate(&connection).unwrap();
        put(&connection, "first", "0.3.0").unwrap();
        put(&connection, "first", "0.4.0").unwrap();
        assert_eq!(get(&connection, "first").unwrap().as_deref(), Some("0.4.0"));
        for number in 0..CLIENTS_MAX {
            put(&connection, &number.to_string(), "1.0.0").unwrap();
        }
        assert_eq!(get(&connection, "first").unwrap(), None);
        assert_eq!(get(&connection, "0").unwrap().as_deref(), Some("1.0.0"));
    }
}
