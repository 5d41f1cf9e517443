//! Changes of files, as sessions, chats and turns show them.
//!
//! Owns: [`Changes`], that is, changesets with their reviews and operations, checkpoints of
//! folders, and the status of repositories.
//! Never: runs git, or writes a file: it asks for both, and is told what came of it.
//!
//! In reading order: `edits` (changes that calls have said), `checkpoints` (what git keeps of
//! folders), `statuses` (what is in repositories now), `changesets` (what clients are shown of all
//! that), and `operations` and `commits` (what clients have done about it).

pub(in crate::host) mod changesets;
pub(in crate::host) mod checkpoints;
pub(in crate::host) mod commits;
pub(in crate::host) mod edits;
pub(in crate::host) mod operations;
pub(in crate::host) mod statuses;

pub(in crate::host) use changesets::Changes;
