//! Completeness of a chat's log since its row was written.
//!
//! Owns: the check that no row of the log after a number is missing, is duplicated, or names
//! another channel by mistake.
//! Never: interprets an action.
//!
//! Each row of the log has a checksum, but a missing row has none: a page of the database that is a
//! copy of another one removes the rows that it had. Sequence numbers are consecutive, so missing
//! rows leave a gap.

use rusqlite::{params, Connection, OptionalExtension};

use super::errors::StoreError;
use super::rows::{self, signed, unsigned, ChannelName};
use crate::host::effects::ChannelId;

struct LoggedRow<'a> {
    last: u64,
    first: u64,
    channel: ChannelName<'a>,
    sum: i64,
    packed: &'a [u8],
}

impl LoggedRow<'_> {
    /// Returns whether the checksum fits a row that begins with this number, on this channel.
    fn was(&self, first: u64, channel: ChannelName<'_>) -> bool {
        i64::from(rows::actions_sum(first, self.last, channel, self.packed)) == self.sum
    }
}

/// Checks that all actions on a channel after this number are in the log. Damage that affects only
/// other channels is ignored.
pub(super) fn check(connection: &Connection, target: ChannelId, after: u64) -> Result<(), StoreError> {
    let damaged = |number: u64| StoreError::Damaged(format!("the log after the action {number}"));
    let ours = ChannelName::of(target);
    // Numbers up to this one may be missing: they were pruned.
    let pruned = rows::number(connection, "pruned")?.unwrap_or(0);
    let sql = "SELECT last, first, kind, key, sum, packed FROM actions WHERE last >= ?1 ORDER BY last";
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(params![signed(after)])?;
    let mut before = None;
    while let Some(row) = found.next()? {
        let row = LoggedRow {
            last: unsigned(row.get(0)?),
            first: row.get(1).map(unsigned).unwrap_or_default(),
            channel: ChannelName {
                kind: row.get_ref(2)?.as_str().unwrap_or_default(),
                key: row.get(3).unwrap_or_default(),
            },
            sum: row.get(4).unwrap_or_default(),
            packed: row.get_ref(5)?.as_blob().unwrap_or_default(),
        };
        if before.is_some_and(|before| row.last <= before) {
            return Err(damaged(after));
        }
        let expected = before.unwrap_or(after) + 1;
        let is_next = row.first <= expected || row.first <= pruned + 1;
        // A process begins its numbers after a gap. The last number of the process before it is not
        // stored, so the gap counts only if a row was read before it, or nothing can be missing
        // between `after` and the gap.
        let begins_a_life = || -> Result<bool, StoreError> {
            let is_known = before.is_some() || after <= pruned || rows::is_process_start(connection, after)?;
            Ok(is_known && rows::is_process_start(connection, row.first - 1)?)
        };
        if !is_next && !begins_a_life()? {
            // A row of another channel with a damaged `first` is no gap.
            let names_another = row.channel != ours && row.was(expected, row.channel);
            if !names_another {
                return Err(damaged(expected - 1));
            }
        }
        // Rows of this channel are verified when they are read.
        if row.channel != ours && !row.was(row.first, row.channel) && row.was(row.first, ours) {
            return Err(damaged(row.last));
        }
        before = Some(row.last);
    }
    let sql = "SELECT last FROM actions ORDER BY last DESC LIMIT 1";
    let newest = connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    let newest: u64 = newest.map(unsigned).unwrap_or_default();
    let is_whole = match before {
        Some(last) => last == newest,
        // No row follows: right if the number was pruned, or a process began after it and logged
        // nothing.
        None => after <= pruned || newest <= after && rows::is_process_start(connection, after)?,
    };
    is_whole.then_some(()).ok_or_else(|| damaged(after))
}
