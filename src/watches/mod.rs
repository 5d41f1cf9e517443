//! Files and folders that are watched for clients.
//!
//! The state of a watched folder is known as a tree of names ([`tree`]). A notification of the
//! system ([`system`]) only says which path to scan again; clients get the difference between the
//! known tree and the scan. Thus each reported change is real, even if it happened between the
//! creation of a folder and its registration. An entry that is created and removed at once causes
//! no report, and lost notifications are made up for by a full scan.
//!
//! Folders are registered one at a time, so that excluded folders cost nothing on Linux
//! ([`crate::os::watch`]). Where the system's limit is exhausted, small folders are polled every
//! few seconds.
//!
//! Owns: [`globs`] (exclusions), [`changes`] (pending changes, and how they are merged),
//! [`path_resolution`] (where a path leads), `tree`, `system`, and [`engine`] (all watches, as a
//! state machine).
//! Never: follows a link but on the path to a watched file, watches the host's own files, waits,
//! starts a thread, or knows who receives the changes: that is `io`.

pub mod changes;
pub mod engine;
pub mod globs;
pub mod path_resolution;
pub mod system;
#[cfg(test)]
mod tests;
pub mod tree;
