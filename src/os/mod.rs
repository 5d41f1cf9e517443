//! Differences between operating systems: one module per concern.
//!
//! A module has the same signatures on every system, a half for each kind of system side by side,
//! and one test suite, which runs on the half that is built. With the feature `portable`, Linux
//! gets the halves of the other Unix systems, so that these are tested where the tests run.
//!
//! Owns: every use of an interface that not all systems have.
//! Never: knows of clients, sessions or agents, or decides what a failure means.

// A contract is written once, at the half for Unix.
#![cfg_attr(windows, allow(missing_docs))]

mod allocator;
pub mod blocking;
pub mod exe;
pub mod facts;
pub mod hangup;
pub mod homes;
pub mod lending;
pub mod limits;
pub mod links;
pub mod paths;
pub mod pipes;
pub mod private;
pub mod process;
pub mod programs;
pub mod pty;
pub mod shell;
pub mod signals;
pub mod sockets;
pub mod stderr;
pub mod stdio;
pub mod walk;
pub mod watch;
pub mod write;
