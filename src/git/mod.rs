//! Repositories of git: what is in a folder, kept and compared, by the user's own program `git`.
//!
//! A repository's configuration and attributes can name programs, and opening a folder is no
//! consent to run them; so git runs with a git directory of the host's own ([`isolation`]), in
//! which none is named, and what would run one is off besides ([`program`]). What is kept stands in
//! the repository's store of objects, under refs of our own; the user's index is copied, and never
//! written, as little as HEAD, branches, the stash, hooks or the configuration; but for what the
//! user has committed ([`commit`]).
//!
//! All of it runs in a process of its own ([`worker`]) under a guard, which ends with the host, and
//! `git` with it.
//!
//! Owns: `program` (running git), [`repository`] (which one it is, and whether it is used),
//! [`settings`] (what is configured, read as data), [`isolation`] (what of that git sees),
//! [`scan`] (which files have changed), [`index`] (what is in the folder now), [`large`] (files
//! that are kept with care, and those that
//! are not kept), [`grafts`] (the same where the index is large), [`flags`] (files marked
//! assume-unchanged or skip-worktree), [`unseen`] (files that are ignored, or outside of the
//! repository), [`checkpoints`] (keeping
//! that), [`compare`] (what differs), [`status`] (branches, and what is not committed),
//! [`conversions`] (bytes that git would not give back), [`contents`] (reading them), [`backups`]
//! (what is about to be changed), [`reverting`] (files become what they were), [`steps`] (what is
//! not broken off), and `worker` (what is asked, and answered, line by line).
//! Never: decides what is kept or shown, asks the user anything, or uses the network.

pub mod backups;
pub mod checkpoints;
pub mod commit;
pub mod compare;
pub mod contents;
pub mod conversions;
pub mod flags;
pub mod grafts;
pub mod index;
pub mod isolation;
pub mod large;
pub mod program;
pub mod repository;
pub mod reverting;
pub mod scan;
pub mod settings;
pub mod status;
pub mod steps;
pub mod unseen;
pub mod worker;
