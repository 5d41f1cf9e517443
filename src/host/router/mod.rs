//! The router: from an input to the owner that deals with it, and from what has happened to the
//! owners that react.
//!
//! Owns: the order of reactions, written down in one place.
//! Never: holds state of its own, or decides anything.

mod kinds;
