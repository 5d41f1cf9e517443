//! Checks of a session's rows, and its size, without reading its texts.
//!
//! Owns: the check of its rows, of its numbers of chats and turns, and that each turn has a text.
//! Never: reads a text. A damaged one is found when it is read.

use rusqlite::Connection;

use super::errors::StoreError;
use super::{rows, turns};
use crate::host::effects::SessionKey;

/// Size of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Number of turns in its chats, completed and running.
    pub turns: u64,
    /// Approximate size in the database, in bytes; a text that several chats share counts for each
    /// of them.
    pub bytes: u64,
}

/// Returns the size of a session, or fails if its rows are damaged.
pub(super) fn extent(connection: &Connection, key: SessionKey) -> Result<Extent, StoreError> {
    let Some(session) = rows::session(connection, key)? else {
        return Err(StoreError::Damaged(format!("the session {}", key.0)));
    };
    let mut extent = Extent { turns: 0, bytes: (session.summary.len() + session.body.len()) as u64 };
    for chat in rows::all_chat_keys(connection, key)? {
        let row = rows::chat(connection, key, chat)?;
        let (with_text, bytes) = turns::with_text(connection, chat)?;
        if (turns::there(connection, chat)?, with_text) != (row.turns, row.turns) {
            return Err(StoreError::Damaged(format!("the list of turns of the chat {}", row.saved.row.uri)));
        }
        extent.turns += row.turns + u64::from(row.saved.row.running);
        extent.bytes += bytes + row.saved.row.body.len() as u64;
    }
    Ok(extent)
}
