//! Properties of operations on folders.
//!
//! Owns: nothing but the list of its parts.
//! Never: speaks a protocol.

mod changes;
mod elsewhere;
mod model;
mod own;
mod ways;
