//! The crash test: the real program is killed at any instant and started again on the same folder, and a
//! client that kept what it was told finds everything as it must be.
//!
//! Owns: how many kills, in how many worlds at once, and the seed that makes a world again.
//! Never: sleeps to be lucky; where a process dies is a number of lines that were said or heard.
//!
//! `CRASH_KILLS` is how many kills there are in all (`make soak` sets it), `CRASH_SEED` the seed of the first
//! world. What a process manages to do before it dies is not in the seed, so a failure may need some tries.

// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod dice;
mod driver;
mod history;
mod mirror;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use driver::Driver;
use history::Counts;

/// Kills in the default run.
const KILLS: usize = 300;

/// Kills in one world, which is one state folder.
const KILLS_PER_WORLD: usize = 25;

/// How many worlds are tried at the same time.
const WORKERS: usize = 2;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[test]
fn nobody_notices_that_the_host_was_killed() {
    let kills = setting("CRASH_KILLS").map_or(KILLS, |kills| usize::try_from(kills).unwrap());
    let clock = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let first = setting("CRASH_SEED").unwrap_or_else(clock);
    let worlds = kills.div_ceil(KILLS_PER_WORLD) as u64;
    let waiting = Mutex::new(first..first + worlds);
    let counts = Mutex::new(Counts::default());
    let failures = thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            while failures.is_empty() {
                let Some(seed) = waiting.lock().unwrap().next() else { break };
                match catch_unwind(AssertUnwindSafe(|| Driver::new(seed).run(KILLS_PER_WORLD))) {
                    Ok(world) => counts.lock().unwrap().add(&world),
                    Err(panic) => {
                        let why = panic.downcast_ref::<String>().map(String::as_str);
                        let why = why.or_else(|| panic.downcast_ref().copied()).unwrap_or("panicked");
                        failures.push(format!("CRASH_SEED={seed} CRASH_KILLS={KILLS_PER_WORLD}: {why}"));
                    }
                }
            }
            failures
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let counts = counts.into_inner().unwrap();
    assert!(counts.kills >= kills, "{counts:?}");
    let Counts { interrupted, resumed, completed, started_again, replays, snapshots, lagging, .. } = counts;
    let few = [interrupted, resumed, completed, started_again, replays, snapshots, lagging];
    assert!(kills < KILLS || few.iter().all(|&count| count > 10), "the schedules are dull: {counts:?}");
}
