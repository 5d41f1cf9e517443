//! Conversations of agents that stored sessions go on with.
//!
//! Owns: finding them in the rows of all chats, those of removed sessions included.
//! Never: reads a turn, or fails because of one damaged row.

use rusqlite::{Connection, Row};
use serde::Deserialize;

use super::errors::StoreError;
use super::rows::Blob;
use crate::host::effects::KnownConversation;

#[derive(Deserialize)]
struct NamedConversation {
    #[serde(default)]
    handle: Option<String>,
}

#[derive(Deserialize)]
struct NamedProvider {
    provider: String,
}

/// Returns the conversations of all stored chats that have one.
pub(super) fn all(connection: &Connection) -> Result<Vec<KnownConversation>, StoreError> {
    let sql = "SELECT c.body, s.summary, s.uri, s.removed_at IS NOT NULL
        FROM chats c JOIN sessions s ON s.key = c.session";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        match conversation(row) {
            Some(Some(known)) => all.push(known),
            Some(None) => {}
            None => tracing::error!("a chat cannot be read: its conversation with the agent is not known"),
        }
    }
    Ok(all)
}

/// Returns the conversation of a chat's row, if it has one; `None` if the row is damaged.
fn conversation(row: &Row<'_>) -> Option<Option<KnownConversation>> {
    let body: Blob = row.get(0).ok()?;
    let Some(name) = serde_json::from_slice::<NamedConversation>(&body.0).ok()?.handle else {
        return Some(None);
    };
    let summary: Blob = row.get(1).ok()?;
    let provider = serde_json::from_slice::<NamedProvider>(&summary.0).ok()?.provider;
    let (session, is_removed) = (row.get(2).ok()?, row.get(3).ok()?);
    Some(Some(KnownConversation { provider, name, session, is_removed }))
}
