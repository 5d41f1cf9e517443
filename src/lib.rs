//! Agent Host Protocol host that a parent process starts and talks to in JSON lines over stdin and
//! stdout.
//!
//! In reading order: [`wire`] (messages), [`codec`] (framing of lines), [`state`] (the state of a
//! chat, and its reducers), [`host`] (the core: all state, no I/O), [`versions`] (translation
//! between protocol versions), [`os`] (what differs between operating systems), [`files`] (file
//! access below folders), [`watches`] (file watching), [`git`] (checkpoints of repositories),
//! [`backend`] (the agents), [`store`] (persistence), [`io`] (pipes, threads, timers, and the loop
//! that drives the core), [`front`] (joins an editor's process to the host of a state folder),
//! [`cli`], [`settings`] (the owner of each setting), [`config`] and [`places`] (configuration, and
//! standard folders), [`status`] (exit status), [`sessions`] (stored sessions, for people),
//! [`check`] (a test of the configured agents), [`installing`] (agents that are added),
//! [`adopting`] (sessions that agents have from elsewhere), [`demo`] (an example conversation),
//! [`run`] (turns from a shell or a CI job), [`help`] (documentation),
//! [`transcripts`] (recording and replaying conversations), [`conform`] (judging hosts), [`trace`]
//! (what takes how long),
//! [`shapes`] (messages without their texts), [`bundle`] (one file for a bug report), [`listening`]
//! and [`connect`] (connections of other programs, and of this one as a client), `line_diff`
//! (comparisons of texts).
//! `src/FIRST_MESSAGE.md` follows one message through all of it, and `src/GLOSSARY.md` defines the
//! terms.
//!
//! Invariants: actions change the state in one function of `host` only; `host`, `state`, `versions`
//! and `wire` do no I/O and read no clock; stdout carries only protocol messages.

pub mod adopting;
pub mod backend;
pub mod bundle;
pub mod check;
pub mod cli;
pub mod codec;
pub mod config;
pub mod conform;
pub mod connect;
pub mod demo;
pub mod files;
pub mod front;
pub mod git;
pub mod help;
pub mod host;
pub mod installing;
pub mod io;
pub(crate) mod line_diff;
pub mod listening;
pub mod os;
pub mod places;
pub mod run;
pub mod sessions;
pub mod settings;
pub mod shapes;
pub mod state;
pub mod status;
pub mod store;
pub mod sync;
pub mod trace;
pub mod transcripts;
pub mod versions;
pub mod watches;
pub mod wire;
