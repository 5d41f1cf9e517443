//! The process around the core: pipes, threads, timers, signals, and the loop that feeds it.
//!
//! Owns: connections ([`link`]); their transports ([`stdio`], [`sockets`], `control_frames`),
//! listeners ([`listen`]), fronts ([`fronts`], [`hello`]) and handshakes (`half_open`); output
//! queues ([`outbox`], [`backlog`]), large answers (`states`) and answers made elsewhere
//! (`unanswered`); jobs that wait for threads ([`queue`]); commits ([`persistence`]), reads
//! ([`readers`]) and the messages that wait for them (`held`), also while commits fail
//! ([`store_failure`]); files ([`resources`], `completions`, [`watches`]) and working directories
//! (`directories`); git ([`git`]) and terminals ([`ptys`]); time and ids ([`sources`]), time zones
//! (`time_zones`), the log ([`log`]), also as records for clients ([`telemetry`]), open files
//! ([`descriptors`]), changes under a running host ([`upkeep`], [`configuration`]); all events
//! ([`events`]), and the loop ([`run`]).
//! Never: makes a decision of the protocol.
#![doc = include_str!("README.md")]

pub mod backlog;
mod completions;
pub mod configuration;
mod control_frames;
pub mod descriptors;
mod directories;
pub mod events;
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
pub mod queue;
pub mod readers;
pub mod resources;
pub mod run;
pub mod sockets;
pub mod sources;
mod states;
pub mod stdio;
pub mod store_failure;
pub mod telemetry;
mod time_zones;
mod unanswered;
pub mod upkeep;
pub mod watches;
