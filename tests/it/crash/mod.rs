//! The crash test: the real program is killed at any instant and started again on the same folder,
//! and a client that kept what it was told finds everything as it must be.
//!
//! Owns: how many kills, in how many worlds at once, and the seed that makes a world again.
//! Never: sleeps to be lucky; where a process dies is a number of lines that were said or heard.
//!
//! `CRASH_KILLS` is how many kills there are in all (`make soak` sets it), `CRASH_SEED` the seed of
//! the first world; `ACP_CRASH_KILLS` is how many there are with an agent that is a program of its
//! own. What a process manages to do before it dies is not in the seed, so a failure may need some
//! tries.

// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod cast;
mod dice;
mod driver;
mod history;
mod mirror;

use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use cast::Cast;
use driver::Driver;
use history::Counts;

/// Kills in the default run.
const KILLS: usize = 300;

/// Number of kills where each life must start an agent first.
const ACP_KILLS: usize = 50;

/// Kills in one world, which is one state folder.
const KILLS_PER_WORLD: usize = 25;

/// Number of worlds that run in parallel.
const WORKERS: usize = 2;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

#[test]
fn killed_hosts_lose_and_repeat_nothing_for_their_clients() {
    let kills = kills("CRASH_KILLS", KILLS);
    let counts = crash(kills, |_| Cast::Script);
    let Counts { interrupted, resumed, completed, started_again, replays, snapshots, lagging, .. } = counts;
    let few = [interrupted, resumed, completed, started_again, replays, snapshots, lagging];
    assert!(kills < KILLS || few.iter().all(|&count| count > 10), "the schedules are dull: {counts:?}");
}

/// No agent process is left either, and the agent receives no prompt twice.
#[test]
fn killed_hosts_with_acp_agents_lose_and_repeat_nothing_and_leave_no_process() {
    let kills = kills("ACP_CRASH_KILLS", ACP_KILLS);
    let can = ["load", "nothing", "resume", "load"];
    let counts = crash(kills, |world| Cast::Acp(can[world % can.len()]));
    let Counts { interrupted, completed, prompts, replays, .. } = counts;
    let few = [interrupted, completed, prompts, replays];
    assert!(kills < ACP_KILLS || few.iter().all(|&count| count > 10), "the schedules are dull: {counts:?}");
}

fn kills(name: &str, default: usize) -> usize {
    setting(name).map_or(default, |kills| usize::try_from(kills).unwrap())
}

/// Kills the host so many times, in worlds with these casts.
fn crash(kills: usize, cast: impl Fn(usize) -> Cast + Sync) -> Counts {
    let clock = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let first = setting("CRASH_SEED").unwrap_or_else(clock);
    // At once, and not only when it has failed: who hangs says nothing later.
    let test = thread::current().name().unwrap_or("crash::").to_owned();
    let again = format!("CRASH_SEED={first} cargo test --test it -- --exact {test}");
    std::io::stderr().write_all(format!("to repeat it: {again}\n").as_bytes()).unwrap();
    let waiting = Mutex::new(0..kills.div_ceil(KILLS_PER_WORLD));
    let counts = Mutex::new(Counts::default());
    let failures = thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            while failures.is_empty() {
                let Some(world) = waiting.lock().unwrap().next() else { break };
                let (seed, cast) = (first + world as u64, cast(world));
                match catch_unwind(AssertUnwindSafe(|| Driver::new(seed, cast).run(KILLS_PER_WORLD))) {
                    Ok(world) => counts.lock().unwrap().add(&world),
                    Err(panic) => {
                        let why = panic.downcast_ref::<String>().map(String::as_str);
                        let why = why.or_else(|| panic.downcast_ref().copied()).unwrap_or("panicked");
                        failures.push(format!("CRASH_SEED={seed}, {cast:?}: {why}"));
                    }
                }
            }
            failures
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failures.is_empty(), "{}\n\nto repeat it: {again}", failures.join("\n\n"));
    let counts = counts.into_inner().unwrap();
    assert!(counts.kills >= kills, "{counts:?}");
    counts
}
