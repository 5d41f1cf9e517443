//! Changes of files, as sessions, chats and turns show them.
//!
//! Owns: [`Changes`]: changesets with their reviews and operations, checkpoints of folders, and the
//! status of repositories.
//! Never: runs git, or writes a file: it requests both, and receives the results.
//!
//! In reading order: `sides` (a changed file), `edits` (changes that tool calls report),
//! `checkpointed`, `checkpoints` and `overlaps` (git checkpoints of folders), `comparisons`
//! (changes between two checkpoints), `observed` and `statuses` (repository status), `files` (which
//! of these a changeset shows), `offers` and `changesets` (the view of clients), and `operations`,
//! `reverts` and `commits` (requests of clients).

pub(in crate::host) mod changesets;
pub(in crate::host) mod checkpointed;
pub(in crate::host) mod checkpoints;
mod commits;
mod comparisons;
pub(in crate::host) mod edits;
mod files;
mod observed;
mod offers;
mod operations;
mod overlaps;
mod reverts;
pub(in crate::host) mod sides;
pub(in crate::host) mod statuses;
#[cfg(test)]
mod tests;

use self::checkpoints::Checkpoints;
use self::edits::CountedLines;
use self::operations::Operations;
use self::statuses::RepositoryStatuses;
use super::effects::ConnectionId;
use super::ledger::Ledger;
use super::Step;

/// Owner of the changes of files.
#[derive(Debug)]
pub(in crate::host) struct Changes {
    /// Line counts that were computed.
    pub(in crate::host) counted: CountedLines,
    /// Git jobs in flight, and comparisons.
    pub(in crate::host) checkpoints: Checkpoints,
    /// Status of each session's repository.
    pub(in crate::host) statuses: RepositoryStatuses,
    /// Unfinished operations of clients.
    pub(in crate::host) operations: Operations,
}

impl Changes {
    /// Creates the owner with git's time limit for a checkpoint before a turn; 0 disables git.
    pub(in crate::host) fn new(within_ms: u64) -> Self {
        Self {
            counted: CountedLines::default(),
            checkpoints: Checkpoints::new(within_ms),
            statuses: RepositoryStatuses::new(within_ms > 0),
            operations: Operations::default(),
        }
    }

    /// Does what is due: changesets follow the files of edited sessions, operations start whose
    /// files are known, and git is asked for comparisons and statuses that are wanted.
    pub(in crate::host) fn settle(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        while let Some((session, have_changed)) = ledger.next_edited() {
            self.sync_edited_session(ledger, step, session, have_changed);
        }
        self.start_ready_operations(ledger, step);
        self.checkpoints.start_comparisons(ledger, step);
        self.start_due_refreshes(ledger, step);
        self.checkpoints.compared.evict(ledger);
        self.evict_changesets(ledger);
    }

    /// Drops the requests of a closed connection: they are not answered.
    pub(in crate::host) fn connection_closed(&mut self, connection: ConnectionId) {
        self.operations.remove_requester(connection);
    }
}
