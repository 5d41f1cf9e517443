//! The process around the core: pipes, threads, timers, signals, and the loop that feeds it.
//!
//! Owns: connections ([`link`]), what waits to be safe ([`persistence`]), to be written
//! ([`outbox`], shared in `backlog`) and for the store (`held`, [`readers`]), the threads on the
//! pipes ([`stdio`]) and the tasks on other streams ([`sockets`]; `control_frames` between
//! messages), where others connect ([`listen`]), the processes that lend us theirs ([`fronts`], in
//! the words of [`hello`]), who is about to be let in (`half_open`), what clients see of files
//! ([`resources`]) and of their changes ([`watches`]), large answers (`states`), the watch over
//! those we depend on ([`watch`]), requests that are answered elsewhere (`unanswered`), time and
//! ids ([`sources`]), the log on stderr ([`log`]), signals ([`signals`]), how many files may be
//! open ([`descriptors`]), what others may change under a running host ([`upkeep`],
//! [`configuration`]), everything that can happen ([`events`]), and the loop ([`run`]).
//! Never: makes a decision of the protocol.
#![doc = include_str!("README.md")]

pub mod backlog;
pub mod configuration;
mod control_frames;
pub mod descriptors;
mod directories;
pub mod events;
mod files;
pub mod fronts;
pub mod git;
mod half_open;
mod held;
pub mod hello;
pub mod link;
pub mod listen;
pub mod log;
pub mod outbox;
pub mod persistence;
pub mod ptys;
pub mod readers;
pub mod resources;
pub mod run;
pub mod signals;
pub mod sockets;
pub mod sources;
mod states;
pub mod stdio;
pub mod store_failure;
mod unanswered;
pub mod upkeep;
pub mod watch;
pub mod watches;
