//! Finding, reading and changing files below the working folders, for agents and clients.
//!
//! Owns: [`folders`] (resolution of paths below the folders), [`writing`] (writing files),
//! [`replacement`] (atomic replacement), [`reverting`] (reverting texts), [`trees`] (creating,
//! moving, copying and removing folders), [`facts`] (version tokens), [`unfinished`] (recovery of
//! interrupted operations), [`small`] and [`named`] (files that the operator names, to be read and
//! to be written), [`links`] (paths behind links), and [`uris`] (`file:` URIs).
//! Changes use the descriptors that resolution has opened; only the source of a copy and a
//! recovered folder are opened by path.
//! Never: answers a request, runs a program, or waits for anything but a disk, except for up to two
//! seconds in [`small`]. Callers use a thread that may block.

pub mod facts;
pub mod folders;
pub mod links;
pub mod named;
pub mod replacement;
pub mod reverting;
pub mod small;
#[cfg(test)]
mod tests;
pub mod trees;
pub mod unfinished;
pub mod uris;
pub mod writing;
