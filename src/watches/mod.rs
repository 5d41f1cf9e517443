//! Files and folders that are watched for clients.
//!
//! What is known of a watched folder is a picture of it ([`tree`]): its names, folder by folder.
//! What the system says ([`system`]) is only where to look again; what is told is how the picture
//! differs from what is there then. So nothing is told that is not so, whatever happens between a
//! folder's coming into being and its being watched, what is made and removed at once is nothing,
//! and what the system has forgotten to say is found by looking at everything again.
//!
//! On Linux the system is asked for one folder at a time, so that what is excluded costs nothing
//! there. (The crate `notify` hears of every file that is opened, follows links, and takes a
//! registration away when it hears late of the end of a folder that was at the same place before.)
//! Elsewhere, and where the system has no more room, small folders are looked at every few seconds.
//!
//! Owns: [`globs`] (what is not to be told of), [`changes`] (what is to be told, and how it becomes
//! less), [`path_resolution`] (where a path leads), `tree`, `system`, and [`engine`] (all watches,
//! step by step).
//! Never: follows a link but on the way to what is watched, watches what is the host's own, waits,
//! starts a thread, or knows who is told: that is `io`.

pub mod changes;
pub mod engine;
pub mod globs;
pub mod path_resolution;
pub mod system;
#[cfg(test)]
mod tests;
pub mod tree;
