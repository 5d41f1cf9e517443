//! Golden transcripts: whole conversations with the real program, each a file in
//! `fixtures/<topic>/`.
//!
//! Owns: running them as `replay` does, and rewriting them on demand. They are also compared byte
//! by byte; that every line of the host is what the protocol's types say is checked by [`shapes`].
//! Never: sleeps, or looks at the time.
//!
//! `BLESS=1` rewrites what the host says instead of comparing it (never when `CI` is set);
//! `FIXTURE=part-of-a-name` runs only those whose path contains it.

#![allow(clippy::unwrap_used)]

mod demo;
mod recording;
mod replaying;
mod shapes;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use ahp_sidecar::os::process::{self, GuardProgram};
use ahp_sidecar::transcripts::form::TranscriptFile;
use ahp_sidecar::transcripts::player::{play, HostNeeds, PlayConditions};

use crate::support::{program, sidecar, sidecar_on, HUNG};

/// Number of transcripts that run in parallel.
const WORKERS: usize = 4;

/// Every transcript, by its path below `fixtures/`.
fn transcripts() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let mut found = Vec::new();
    let mut topics = entries(&root);
    while let Some(topic) = topics.pop() {
        assert!(topic.is_dir(), "{} is not in the folder of a topic", topic.display());
        for path in entries(&topic) {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            // A topic may have topics of its own.
            if path.is_dir() {
                topics.push(path);
                continue;
            }
            // What a command prints for people; its test knows it.
            if name.ends_with(".out") {
                continue;
            }
            let is_transcript = path.is_file() && name.ends_with(".txt");
            assert!(is_transcript, "{name} is not a transcript: its name must end in .txt");
            found.push((name, path));
        }
    }
    assert!(!found.is_empty(), "no transcript in {}", root.display());
    found.sort();
    found
}

/// Tells whether the output of the host is recorded instead of compared.
fn blessing() -> bool {
    std::env::var_os("BLESS").is_some_and(|value| value == "1") && std::env::var_os("CI").is_none()
}

#[test]
fn every_transcript_equals_the_output_of_the_host() {
    let wanted = std::env::var("FIXTURE").unwrap_or_default();
    let mut found = transcripts();
    found.retain(|(name, _)| name.contains(&wanted));
    let ran = found.len();
    // Some wait for real timers: several at once.
    let waiting = Mutex::new(found.into_iter());
    let mut failures = thread::scope(|scope| {
        let work = || {
            let next = || waiting.lock().unwrap().next();
            std::iter::from_fn(next).filter_map(|(name, path)| run(&name, &path).err()).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    failures.sort();
    assert!(ran > 0, "FIXTURE={wanted} is part of no transcript's name");
    assert!(
        failures.is_empty(),
        "{}\n\n{} of {ran} transcripts differ; run `make bless` to accept what can be accepted\n",
        failures.join("\n\n"),
        failures.len()
    );
}

/// Runs one transcript; the error says how it differs.
fn run(name: &str, path: &Path) -> Result<(), String> {
    let written = fs::read_to_string(path).unwrap();
    let (now, differences) = replay(&written).map_err(|why| format!("fixtures/{name}: {why}"))?;
    if now == written && differences.is_empty() {
        return Ok(());
    }
    if blessing() {
        return fs::write(path, now).map_err(|error| format!("fixtures/{name}: {error}"));
    }
    Err(format!("fixtures/{name} (- written, + now):\n{}\n{differences}", diff(&written, &now)))
}

#[test]
fn every_transcript_line_matches_the_types_of_the_protocol() {
    if blessing() {
        // They are being rewritten; the next run looks at them.
        return;
    }
    let mut failures = Vec::new();
    // What is said in older versions is not for the types of the newest.
    for (name, path) in transcripts().into_iter().filter(|(name, _)| !name.starts_with("versions/")) {
        let transcript = match TranscriptFile::parse(&fs::read_to_string(&path).unwrap()) {
            Ok(transcript) => transcript,
            Err(why) => {
                failures.push(format!("fixtures/{name}: {why:#}"));
                continue;
            }
        };
        if !transcript.lines.iter().any(|line| line.is_host()) {
            failures.push(format!("fixtures/{name}: the host says nothing in it"));
        }
        for (number, why) in shapes::check(&transcript) {
            failures.push(format!("fixtures/{name}:{number}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Plays a transcript; returns it as it would be written now, and the report on what differs.
fn replay(written: &str) -> Result<(String, String), String> {
    let transcript = TranscriptFile::parse(written).map_err(|why| format!("{why:#}"))?;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let start = |needs: &HostNeeds| {
        let mut command = needs.state.as_deref().map_or_else(sidecar, sidecar_on);
        command.args(["--deterministic", "--default-directory", "/"]).args(needs.arguments);
        if let Some(file) = &needs.configuration {
            command.arg("--config").arg(file);
        }
        // Errors only: they are mistakes of the host's own.
        command.env("RUST_LOG", "error");
        command.stderr(File::options().create(true).append(true).open(&log)?);
        Ok(command)
    };
    let guards = GuardProgram::new(program().get_program().into(), process::arguments(None));
    let conditions =
        PlayConditions { limit: HUNG, waits: false, given: &[], guards: &guards, unreachable: None };
    let played = play(&transcript, &start, &conditions).map_err(|error| format!("{error:#}"))?;
    let differences: Vec<String> = played.differences.iter().map(ToString::to_string).collect();
    let differences = differences.join("\n");
    let log = fs::read_to_string(&log).unwrap();
    if !log.is_empty() {
        return Err(format!("the host says on stderr:\n{log}{differences}"));
    }
    if played.is_whole() {
        Ok((played.text, differences))
    } else {
        Err(format!("{differences}\n{}", diff(written, &played.text)))
    }
}

/// The lines that differ, with a line around them.
fn diff(old: &str, new: &str) -> String {
    const AROUND: usize = 1;
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    // common[i][j]: how many lines the rests from `i` and `j` have in common.
    let mut common = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    let differs = |at: usize| lines[at].0 != ' ';
    let near = |at: usize| (at.saturating_sub(AROUND)..=(at + AROUND).min(lines.len() - 1)).any(differs);
    let mut shown = Vec::new();
    for (at, (mark, line)) in lines.iter().enumerate() {
        if near(at) {
            shown.push(format!("{mark} {line}"));
        } else if at > 0 && near(at - 1) {
            shown.push("  …".to_owned());
        }
    }
    shown.join("\n")
}

#[test]
fn difference_is_shown_line_by_line() {
    assert_eq!(diff("a\nb\nc\nd\ne\nf\n", "a\nb\nx\nd\ne\nf\n"), "  b\n- c\n+ x\n  d\n  …");
    assert_eq!(diff("a\n", "a\nb\n"), "  a\n+ b");
}
