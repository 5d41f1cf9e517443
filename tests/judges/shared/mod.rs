//! The judge: the official crates of a released protocol version, applied to what the host says.
//!
//! Owns: one source for all versions. In reading order: [`dialect`] (how the versions differ in
//! what a client says), [`official`] (a crate pair behind one trait, and what parsing strictly
//! means), [`ears`] (every line that the host says is read), [`masks`] (what is left out of a
//! comparison, and why), [`mirror`] (the states that the crate's reducers build), [`party`] (a
//! client of one version), [`process`] (the program as a child), [`moves`] (what a client may do
//! next), [`conversation`], [`files`], [`terminals`], [`schedules`], [`returns`] and
//! [`transcripts`] (the judgements). Beside it lie `stage` and `sockets`, for judgements of several
//! clients at once.
//! Never: names a version's crate. Whoever includes this module says which crates there are, with
//! [`official!`] and [`judgements!`], and has a `program()` next to it that tells where the host's
//! program is.

pub mod conversation;
pub mod dialect;
#[allow(clippy::duplicate_mod, reason = "where the crash tests are built too, they have their own")]
#[path = "../../it/crash/dice.rs"]
pub mod dice;
pub mod ears;
pub mod files;
pub mod masks;
pub mod mirror;
pub mod moves;
#[macro_use]
pub mod official;
pub mod party;
pub mod process;
pub mod returns;
pub mod schedules;
pub mod terminals;
pub mod transcripts;

use std::time::Duration;

/// After this time a judgement has hung. Not a measure of speed; `JUDGE_PATIENCE` gives it in
/// seconds.
pub fn hung() -> Duration {
    Duration::from_secs(schedules::asked("JUDGE_PATIENCE", 120))
}

/// Judges a version: `$module` gets the judgements as tests. See [`official!`] for the words.
macro_rules! judgements {
    ($($module:ident: $dialect:expr, $ahp:ident, $types:ident, $family:ident;)*) => {
        $(
            mod $module {
                use super::shared::dialect::Dialect;

                official!(Crates, $dialect, $ahp, $types, $family);

                #[test]
                fn official_client_runs_a_conversation_from_start_to_end() {
                    super::shared::conversation::run(&Crates);
                }

                #[test]
                fn official_client_changes_and_watches_files() {
                    super::shared::files::run(&Crates);
                }

                #[test]
                fn returning_older_client_has_the_state_left_by_a_newer_one() {
                    super::shared::returns::run(&Crates);
                }

                #[test]
                fn official_client_follows_a_shell() {
                    super::shared::terminals::run(&Crates);
                }

                #[test]
                fn every_golden_line_of_the_version_is_read_by_its_crate() {
                    super::shared::transcripts::run(&Crates);
                }

                #[test]
                fn mirror_of_a_random_client_equals_a_fresh_snapshot() {
                    super::shared::schedules::run(&Crates);
                }
            }
        )*
    };
}
