//! Changes of files, as sessions, chats and turns show them.
//!
//! Owns: [`Changes`], that is, changesets with their reviews and operations, checkpoints of
//! folders, and the status of repositories.
//! Never: runs git, or writes a file: it asks for both, and is told what came of it.
//!
//! In reading order: `sides` (a changed file), `edits` (changes that calls have said),
//! `checkpointed`, `checkpoints` and `overlaps` (what git keeps of folders), `comparisons` (the
//! changes between two checkpoints), `statuses` (what is in repositories now), `changesets` (what
//! clients are shown of all that), and `operations`, `reverts` and `commits` (what clients have done
//! about it).

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
