//! Descriptions that agents have given of themselves.
//!
//! Owns: keeping it, by the agent's provider id, and giving all of it back at the start.
//! Never: knows what it means, or keeps a host from starting. What is damaged is left out: the
//! agent says it again.

use bytes::Bytes;
use rusqlite::{params, Connection};

use super::errors::StoreError;
use super::rows;

/// Keeps what an agent has said.
pub(super) fn put(connection: &Connection, provider: &str, said: &[u8]) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO agents (provider, sum, said) VALUES (?1, ?2, ?3)")?
        .execute(params![provider, sum(provider, said), said])?;
    Ok(())
}

/// Returns the descriptions of all agents that were ever here, by provider id, as far as they can
/// be read.
pub(super) fn all(connection: &Connection) -> Vec<(String, Bytes)> {
    let read = || -> rusqlite::Result<Vec<_>> {
        let mut statement = connection.prepare("SELECT provider, sum, said FROM agents ORDER BY provider")?;
        let rows = statement.query_map([], |row| {
            let said: Vec<u8> = row.get(2)?;
            Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?, Bytes::from(said)))
        })?;
        Ok(rows.collect())
    };
    let rows = read().unwrap_or_else(|error| vec![Err(error)]);
    let sound = rows.into_iter().filter_map(|row| match row {
        Ok((provider, expected, said)) if sum(&provider, &said) == expected => Some((provider, said)),
        Ok((provider, ..)) => {
            tracing::warn!(provider, "what an agent has said of itself is damaged");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "what an agent has said of itself cannot be read");
            None
        }
    });
    sound.collect()
}

fn sum(provider: &str, said: &[u8]) -> u32 {
    rows::sum(&[provider.as_bytes(), &[0], said])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_last_comes_back_and_what_is_damaged_does_not() {
        let connection = Connection::open_in_memory().unwrap();
        crate::store::schema::migrate(&connection).unwrap();
        put(&connection, "b", b"first").unwrap();
        put(&connection, "a", b"of a").unwrap();
        put(&connection, "b", b"second").unwrap();
        let pair = |name: &str, said: &'static str| (name.to_owned(), Bytes::from(said));
        assert_eq!(all(&connection), [pair("a", "of a"), pair("b", "second")]);
        connection.execute_batch("UPDATE agents SET said = x'00' WHERE provider = 'a'").unwrap();
        assert_eq!(all(&connection), [pair("b", "second")]);
        connection.execute_batch("UPDATE agents SET sum = 'x'").unwrap();
        assert_eq!(all(&connection), []);
        connection.execute_batch("DROP TABLE agents").unwrap();
        assert_eq!(all(&connection), []);
    }
}
