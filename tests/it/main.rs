//! All tests that need more than one module: one binary, so that it is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by failing"
)]

mod acp;
mod active_clients;
mod agents;
mod annotations;
mod at_once;
mod automations;
mod bad_days;
mod canvases;
mod changesets;
mod chats;
mod client;
mod client_files;
mod client_plugins;
mod commands;
mod config_file;
mod conform;
mod crash;
mod credentials;
mod debts;
mod described;
mod diagnosis;
mod directories;
mod durability;
mod files;
mod git;
mod guard;
mod home;
mod judges;
mod keeping;
mod large_states;
mod laws;
mod layouts;
mod leaving;
mod limits;
mod listen;
mod missed;
mod models;
mod pending;
mod preview;
mod process;
mod ptys;
mod quarantine;
mod relays;
mod resources;
mod ruins;
mod run;
mod runaway;
mod sessions;
mod sights;
mod store;
mod support;
mod terminals;
mod tidy;
mod transcripts;
mod updates;
mod upgrades;
mod upstream;
mod watches;
mod windows;
