//! Stored descriptions of agents.
//!
//! Owns: storing a description by the agent's provider id, and returning all of them at the start.
//! Never: interprets a description, or fails because of a damaged row: it is skipped, and the agent
//! sends its description again.

use bytes::Bytes;
use rusqlite::{params, Connection};

use super::errors::StoreError;
use super::rows::{self, Blob};

pub(super) fn put(connection: &Connection, provider: &str, description: &[u8]) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO agents (provider, sum, said) VALUES (?1, ?2, ?3)")?
        .execute(params![provider, sum(provider, description), description])?;
    Ok(())
}

pub(super) fn all(connection: &Connection) -> Vec<(String, Bytes)> {
    let sql = "SELECT provider, sum, said FROM agents ORDER BY provider";
    rows::readable(connection, sql, |row| {
        let (provider, Blob(description)): (String, _) = (row.get(0)?, row.get(2)?);
        match sum(&provider, &description) == row.get::<_, u32>(1)? {
            true => Ok((provider, description)),
            false => Err(StoreError::Damaged(format!("the description of the agent `{provider}`"))),
        }
    })
}

fn sum(provider: &str, description: &[u8]) -> u32 {
    rows::sum(&[provider.as_bytes(), &[0], description])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_descriptions_are_loaded_and_damaged_ones_are_not() {
        let connection = Connection::open_in_memory().unwrap();
        crate::store::schema::migrate(&connection).unwrap();
        put(&connection, "b", b"first").unwrap();
        put(&connection, "a", b"of a").unwrap();
        put(&connection, "b", b"second").unwrap();
        let pair = |name: &str, description: &'static str| (name.to_owned(), Bytes::from(description));
        assert_eq!(all(&connection), [pair("a", "of a"), pair("b", "second")]);
        connection.execute_batch("UPDATE agents SET said = x'00' WHERE provider = 'a'").unwrap();
        assert_eq!(all(&connection), [pair("b", "second")]);
        connection.execute_batch("UPDATE agents SET sum = 'x'").unwrap();
        assert_eq!(all(&connection), []);
        connection.execute_batch("DROP TABLE agents").unwrap();
        assert_eq!(all(&connection), []);
    }
}
