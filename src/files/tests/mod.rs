//! What must hold below folders, and of them.
//!
//! Owns: nothing but the list of its parts.
//! Never: speaks a protocol.

mod changes;
mod elsewhere;
mod model;
mod own;
mod ways;
