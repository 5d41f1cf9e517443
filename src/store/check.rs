//! Whether a session is what was written, as far as this can be told without reading what was said in it.
//!
//! Owns: its rows, its number of chats and turns, and that there is something in each turn's row.
//! Never: reads a turn. One that is damaged is found when somebody wants to read it.

use rusqlite::Connection;

use super::errors::StoreError;
use super::{rows, turns};
use crate::host::effects::{ChatKey, SessionKey};

/// How many turns there are in a session's chats: the completed ones, and those that run.
///
/// # Errors
/// When something in the session is damaged, or it cannot be read.
pub(super) fn turns(connection: &Connection, key: SessionKey) -> Result<u64, StoreError> {
    let Some(_) = rows::session(connection, key)? else {
        return Err(StoreError::Damaged(format!("the session {}", key.0)));
    };
    let mut turns = 0;
    for chat in rows::all_chat_keys(connection, key)? {
        let row = rows::chat(connection, key, chat)?;
        if whole_turns(connection, chat)? != (row.turns, row.turns) {
            return Err(StoreError::Damaged(format!("the list of turns of the chat {}", row.saved.row.uri)));
        }
        turns += row.turns + u64::from(row.saved.row.running);
    }
    Ok(turns)
}

/// How many turns there are by their places, and how many have a text.
fn whole_turns(connection: &Connection, chat: ChatKey) -> Result<(u64, u64), StoreError> {
    Ok((turns::there(connection, chat)?, turns::with_text(connection, chat)?))
}
