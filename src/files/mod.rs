//! Files below the folders that somebody works in: one way of finding, reading and changing them,
//! for agents and clients.
//!
//! Owns: [`folders`] (where a path leads that must stay below), [`writing`] (what a file becomes),
//! [`replacement`] (what takes its place in one step), [`reverting`] (texts that files had),
//! [`trees`] (folders that are made, moved, copied and removed), [`facts`] (what tells a version of
//! a file from another one), [`unfinished`] (what a host that ends leaves to the next one),
//! [`small`] (a file that the operator names), and [`uris`] (what a file is called in the
//! protocol). Everything is done on the descriptors that the way has led to, never by a path again.
//! Never: answers anybody, runs anything, or waits for what is no file of a disk, but for two
//! seconds in [`small`]. Whoever calls it
//! does so on a thread that may wait.

mod attributes;
pub mod facts;
pub mod folders;
pub mod replacement;
pub mod reverting;
pub mod small;
#[cfg(test)]
mod tests;
pub mod trees;
pub mod unfinished;
pub mod uris;
pub mod writing;
