//! Fuzzing of what outsiders reach: random changes of real texts against laws.
//!
//! The corpus of a target is derived from `fixtures`; a file in `tests/fuzz/corpus/TARGET` is an
//! input that was a finding once, and is tried first. There is no guidance by coverage, and in turn
//! nothing to install: the targets are plain functions of bytes, which any fuzzer can call.
//!
//! `FUZZ_SECONDS` is the time for each target; without it, each gets as many executions as every
//! run of the tests can afford. `FUZZ_TARGETS` names some targets, `FUZZ_SEED` another seed.
//!
//! Owns: the corpus, the changes, and the count of executions.
//! Never: judges an input; a target panics if a law is broken.
// A broken law panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod targets;

use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ahp_sidecar::conform::dice::Dice;

use targets::{Target, TARGETS};

/// Executions of each target without a time limit.
const EXECUTIONS: u64 = 3000;

/// Maximum size of an input, in bytes.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Texts that inputs are extended with: what parsers look for.
const WORDS: [&str; 24] = [
    "{", "}", "[", "]", "\"", "\\", "\\u0000", "\\ud83d", ",", ":", "null", "-1", "1e999", "\u{1b}[",
    "\u{1b}]", "\u{7}", "\r\n", "\0", "%2f", "..", "://", "\u{feff}", "ä", "\u{9b}",
];

/// Changes an input at random places.
fn changed(input: &[u8], corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=dice.below(5) {
        let (at, end) = (dice.below(bytes.len() + 1), bytes.len());
        let until = (at + dice.below(32)).min(end);
        match dice.below(8) {
            0 if at < end => bytes[at] ^= 1 << dice.below(8),
            1 if at < end => bytes[at] = dice.roll().to_le_bytes()[0],
            2 => drop(bytes.drain(at..until)),
            3 => bytes.truncate(at),
            4 => {
                let copied = bytes[at..until].to_vec();
                let to = dice.below(end + 1);
                bytes.splice(to..to, copied);
            }
            5 => {
                let other = &corpus[dice.below(corpus.len())];
                let from = dice.below(other.len());
                let piece = &other[from..(from + dice.below(256)).min(other.len())];
                bytes.splice(at..until, piece.iter().copied());
            }
            _ => {
                let word = WORDS[dice.below(WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let all = paths.into_iter().map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
    all.flatten().collect()
}

/// Runs a target. Returns whether no law was broken.
fn run(target: &Target, transcripts: &[String], limit: Option<Duration>, seed: u64) -> bool {
    let findings = files_below(&root().join("tests/fuzz/corpus").join(target.name));
    let mut corpus: Vec<Vec<u8>> = findings.iter().map(|path| fs::read(path).unwrap()).collect();
    let found = corpus.len();
    corpus.extend((target.seeds)(transcripts));
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    let (mut dice, mut count, begin) = (Dice::new(seed), 0, Instant::now());
    loop {
        let next = usize::try_from(count).unwrap();
        let input = match corpus.get(next).filter(|_| next < found) {
            Some(finding) => finding.clone(),
            None => changed(&corpus[dice.below(corpus.len())].clone(), &corpus, &mut dice),
        };
        if catch_unwind(AssertUnwindSafe(|| (target.check)(&input))).is_err() {
            let file = root().join("target").join(format!("finding-{}", target.name));
            fs::create_dir_all(root().join("target")).and_then(|()| fs::write(&file, &input)).unwrap();
            println!("{}: a law is broken by {}; FUZZ_SEED={seed}", target.name, file.display());
            return false;
        }
        count += 1;
        if limit.map_or(count >= EXECUTIONS / target.cost, |limit| begin.elapsed() >= limit) {
            break;
        }
    }
    let each = count as f64 / begin.elapsed().as_secs_f64();
    println!("{:<12} {count:>10} executions, {each:>9.0} a second, {} seeds", target.name, corpus.len());
    true
}

fn main() -> ExitCode {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let limit = number("FUZZ_SECONDS").map(Duration::from_secs);
    let wanted = std::env::var("FUZZ_TARGETS").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split_whitespace().collect();
    let texts =
        files_below(&root().join("fixtures")).into_iter().filter_map(|path| fs::read_to_string(path).ok());
    let transcripts: Vec<String> = texts.collect();
    let chosen = TARGETS.iter().filter(|target| wanted.is_empty() || wanted.contains(&target.name));
    let ran: Vec<bool> =
        chosen.map(|target| run(target, &transcripts, limit, number("FUZZ_SEED").unwrap_or(7))).collect();
    if !ran.is_empty() && ran.iter().all(|held| *held) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
