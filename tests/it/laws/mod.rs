//! The laws of the core as properties: what must hold whatever anybody says, in whatever order.
//!
//! Owns: the four properties, how many cases each tries, and the seed. In reading order:
//! [`schedule`] (what can happen), [`world`] (the core with everything around it, carrying a
//! schedule out), [`client`] (what a client holds), [`agent`] (what a backend says), [`speech`]
//! (what a client says), [`truth`] (the state as the records tell it), [`bridged`] (backends that
//! are programs), [`lines`] (that every line is what the protocol says), [`checks`] (what must hold
//! at the end), and [`reducers`] (the reducers of our own against the official ones).
//! Never: uses a clock, a pipe, a thread or chance that is not proptest's, but for [`bridged`].
//!
//! `PROPTEST_CASES` tries more cases and `PROPTEST_RNG_SEED` others; without them every run tries
//! the same.
// A mistake of a test's own helper may panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod bridged;
mod checks;
mod client;
mod lines;
mod reducers;
mod schedule;
mod speech;
mod truth;
mod world;

use std::cell::Cell;
use std::fmt::Debug;
use std::io::Write as _;

use ahp_sidecar::host::effects::{Output, Record};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use schedule::{schedules, Schedule};
use world::World;

/// Seed of the random choices, unless another one is requested.
const SEED: u64 = 7;

/// A client that takes a snapshot and applies what it is sent holds what a fresh snapshot shows,
/// and everything that is derived from a chat agrees with it.
#[test]
fn every_mirror_equals_a_fresh_snapshot() {
    check_schedules(400, |schedule| World::run(schedule).map(|_| ()));
}

/// Mirrors stay correct also with programs that speak ACP, whose timing the schedule does not
/// control.
#[test]
fn every_mirror_equals_a_fresh_snapshot_with_acp_agents() {
    const KINDS: [&str; 5] =
        ["chat/delta", "chat/toolCallComplete", "chat/turnComplete", "chat/error", "chat/turnCancelled"];
    let seen = Cell::new([0; KINDS.len()]);
    check_schedules(20, |schedule| {
        for output in World::run_bridged(schedule)? {
            let Output::Record(Record::Action(_, action)) = output else { continue };
            let line = String::from_utf8_lossy(&action.line);
            let is = |kind: &str| line.contains(&format!("\"type\":\"{kind}\""));
            let mut counts = seen.get();
            counts.iter_mut().zip(KINDS).for_each(|(count, kind)| *count += usize::from(is(kind)));
            seen.set(counts);
        }
        Ok(())
    });
    assert!(seen.get().iter().all(|&count| count > 1), "the schedules are dull: {KINDS:?} {seen:?}");
}

/// Equal inputs give equal outputs, byte for byte.
#[test]
fn repeated_inputs_give_byte_identical_outputs() {
    check_schedules(60, |schedule| {
        let (once, again) = (World::run(schedule)?, World::run(schedule)?);
        let differing = once.iter().zip(&again).position(|(a, b)| a != b);
        anyhow::ensure!(differing.is_none(), "output {differing:?} differs");
        anyhow::ensure!(once.len() == again.len(), "there are {} outputs and {}", once.len(), again.len());
        Ok(())
    });
}

/// The reducers that are ours for speed mean what the official ones do.
#[test]
fn fast_reducers_equal_the_official_ones() {
    check(600, &reducers::histories(), reducers::run, |history| history);
}

/// Tries a property of schedules and shows the smallest one that breaks it: proptest shrinks what
/// it chose, then single steps are left out.
fn check_schedules(cases: u32, property: impl Fn(&Schedule) -> anyhow::Result<()>) {
    check(cases, &schedules(), &property, |mut schedule| {
        let mut steps = schedule.steps.len() / 2;
        while steps > 0 {
            let starts = (0..schedule.steps.len()).rev();
            for start in starts {
                let smaller = schedule.without(start..start + steps);
                if smaller.steps.len() < schedule.steps.len() && property(&smaller).is_err() {
                    schedule = smaller;
                }
            }
            steps /= 2;
        }
        schedule
    });
}

/// Tries a property and shows the smallest case that breaks it.
fn check<T: Debug>(
    cases: u32,
    strategy: &impl Strategy<Value = T>,
    property: impl Fn(&T) -> anyhow::Result<()>,
    reduce: impl Fn(T) -> T,
) {
    let asked = |name| std::env::var_os(name).is_some();
    let mut config = Config { failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    if !asked("PROPTEST_CASES") {
        config.cases = cases;
    }
    if !asked("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => unreachable!("the seed is asked for, or ours"),
    };
    let test = std::thread::current().name().unwrap_or("laws::").to_owned();
    let again = format!(
        "To repeat it: PROPTEST_RNG_SEED={seed} PROPTEST_CASES={} cargo test --test it -- --exact {test}\n",
        config.cases
    );
    let outcome = TestRunner::new(config)
        .run(strategy, |case| property(&case).map_err(|why| TestCaseError::fail(format!("{why:#}"))));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, case)) => {
            let why = why.to_string();
            // Making it smaller may take longer than anybody waits.
            let said = format!("{why}\nin\n{case:#?}\n{again}A smaller case is looked for.\n");
            std::io::stderr().write_all(said.as_bytes()).unwrap();
            let case = reduce(case);
            let why = property(&case).err().map_or(why, |why| format!("{why:#}"));
            panic!("{why}\nin\n{case:#?}\n{again}");
        }
        Err(TestError::Abort(why)) => panic!("given up: {why}\n{again}"),
    }
}

#[test]
fn failed_law_prints_how_to_repeat_it() {
    let small = |case: &u8| if *case < 50 { Ok(()) } else { Err(anyhow::anyhow!("too large")) };
    let broken = || check(20, &(0..100u8), small, |case| case);
    let panic = std::panic::catch_unwind(broken).unwrap_err();
    let said = panic.downcast_ref::<String>().unwrap();
    for word in ["too large\nin\n50\n", "PROPTEST_RNG_SEED=", "PROPTEST_CASES=", "failed_law_prints_how"] {
        assert!(said.contains(word), "{said}");
    }
}
