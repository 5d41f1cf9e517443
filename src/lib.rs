//! An Agent Host Protocol host that a parent process spawns and speaks to in JSON lines over stdin
//! and stdout.
//!
//! In reading order: [`wire`] (what a line says), [`codec`] (where one ends), [`state`] (what the
//! state of a chat is and how actions change it), [`host`] (the core: all state, no I/O),
//! [`versions`] (what stands between a connection and the core), [`files`] (below which folders
//! what can be done), [`watches`] (what changes there), [`git`] (what is kept of repositories),
//! [`backend`] (the agents), [`store`] (what outlives the process), [`io`] (pipes, threads, timers,
//! and the loop that feeds the core), [`front`] (what joins the process of an editor to the host of
//! a state folder), [`cli`], [`settings`] (whose setting is whose), [`config`] and [`places`] (what
//! is asked for, and where), [`status`] (how the process ends), [`sessions`] (the store, for
//! people), [`demo`] (a conversation to look at), [`help`] (chapters to read), [`listening`] and
//! [`connect`] (how other programs connect, and this one as one of them). `src/FIRST_MESSAGE.md`
//! follows one message through all of it, and `src/GLOSSARY.md` has the words.
//!
//! Invariants: actions change the state in one function of `host` only; `host`, `state`, `versions`
//! and `wire` do no I/O and read no clock; stdout carries nothing but frames.

#[cfg(not(unix))]
compile_error!("ahp-sidecar runs on Unix only so far: see `io::stdio` and `io::watch`");

pub mod backend;
pub mod check;
pub mod cli;
pub mod codec;
pub mod config;
pub mod connect;
pub mod demo;
pub mod files;
pub mod front;
pub mod git;
pub mod help;
pub mod host;
pub mod io;
pub mod listening;
pub mod places;
pub mod sessions;
pub mod settings;
pub mod state;
pub mod status;
pub mod store;
pub mod versions;
pub mod watches;
pub mod wire;
