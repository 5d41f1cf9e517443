//! Changes of files, as sessions, chats and turns show them.
//!
//! Owns: [`Changes`]: changesets with their reviews and operations, checkpoints of folders, and the
//! status of repositories.
//! Never: runs git, or writes a file: it requests both, and receives the results.
//!
//! In reading order: `sides` (a changed file), `edits` (changes that tool calls report),
//! `checkpointed`, `checkpoints` and `overlaps` (git checkpoints of folders), `comparisons`
//! (changes between two checkpoints), `statuses` (repository status), `changesets` (the view of
//! clients), and `operations`, `reverts` and `commits` (requests of clients).

pub(in crate::host) mod changesets;
pub(in crate::host) mod checkpointed;
pub(in crate::host) mod checkpoints;
mod commits;
mod comparisons;
pub(in crate::host) mod edits;
mod operations;
mod overlaps;
mod reverts;
pub(in crate::host) mod sides;
pub(in crate::host) mod statuses;
#[cfg(test)]
mod tests;

pub(in crate::host) use changesets::Changes;
