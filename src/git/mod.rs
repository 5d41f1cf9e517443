//! Git repositories: checkpoints and comparisons of folders, made with the user's own program
//! `git`.
//!
//! A repository's configuration and attributes can name programs, and opening a folder is no
//! consent to run them. So git runs with a git directory of the host's own ([`isolation`]) that
//! names no program, and settings that could run one are switched off besides ([`program`]).
//! Checkpoints are in the repository's object store, under refs of the host's own. The user's index
//! is copied and never written, nor are HEAD, branches, the stash, hooks or the configuration; the
//! exception is a commit that the user asks for ([`commit`]).
//!
//! All of it runs in a separate process ([`worker`]) under a guard, which ends it, and `git` with
//! it, when the host ends.
//!
//! Owns: `program` (running git), [`repository`] (finding a repository and deciding whether it is
//! used), [`settings`] (the configuration, read as data), [`isolation`] (the part of it that git
//! sees), [`scan`] (changed files), [`index`] (the tree of a folder), [`large`] (large files),
//! [`grafts`] (the tree of a folder with a large index), [`flags`] (files marked assume-unchanged
//! or skip-worktree), [`incomparable`] (files that are ignored or outside the repository),
//! [`checkpoints`], [`compare`] (differences between checkpoints), [`status`] (branches and
//! uncommitted changes), [`conversions`] (bytes that git would not give back), [`contents`]
//! (reading contents), [`backups`] (copies of files before they change), [`reverting`], [`steps`]
//! (steps that are not interrupted), and `worker` (requests and answers, as lines).
//! Never: decides what is checkpointed or shown, asks the user anything, or uses the network.

pub mod backups;
pub mod checkpoints;
pub mod commit;
pub mod compare;
pub mod contents;
pub mod conversions;
pub mod flags;
pub mod grafts;
pub mod incomparable;
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
pub mod worker;
