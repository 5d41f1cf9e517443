//! The only place that waits: pipes, threads, timers, signals, and the loop that feeds the core.
//!
//! Owns: bytes to lines and back ([`codec`]), what waits to be safe ([`keeper`]) and to be written ([`outbox`]),
//! the threads on the pipes ([`stdio`]), what clients see of files ([`resources`]), the watch over those we
//! depend on ([`watch`]), time and ids ([`sources`]), the log on stderr ([`log`]),
//! signals ([`signals`]), and the loop ([`run`]).
//! Never: makes a decision of the protocol.

pub mod codec;
mod directories;
pub mod keeper;
pub mod log;
pub mod outbox;
pub mod resources;
pub mod run;
pub mod signals;
pub mod sources;
pub mod stdio;
pub mod trouble;
pub mod watch;
