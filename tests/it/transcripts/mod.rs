//! Golden transcripts: whole conversations with the real program, each a file in
//! `fixtures/<topic>/`.
//!
//! Owns: running them, comparing what came with what is written, and rewriting them on demand. The
//! file's format is that of [`format`]; that every line of the host is what the protocol's types
//! say is checked by [`shapes`].
//! Never: sleeps, or looks at the time.
//!
//! `BLESS=1` rewrites what the host says instead of comparing it (never when `CI` is set);
//! `FIXTURE=part-of-a-name` runs only those whose path contains it.

#![allow(clippy::unwrap_used)]

mod demo;
mod folder;
mod format;
mod shapes;

use std::fs::{self, File};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use folder::Shown;
use format::{Step, Transcript};

use crate::support::{sidecar, sidecar_on, Process};

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
    let replayed = Transcript::parse(&written).and_then(|transcript| {
        catch_unwind(AssertUnwindSafe(|| replay(&transcript))).unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            Err(why.or_else(|| panic.downcast_ref().copied()).unwrap_or("panicked").to_owned())
        })
    });
    match replayed {
        Err(why) => Err(format!("fixtures/{name}: {why}")),
        Ok(now) if now == written => Ok(()),
        Ok(now) if blessing() => fs::write(path, now).map_err(|error| format!("fixtures/{name}: {error}")),
        Ok(now) => Err(format!("fixtures/{name} (- written, + now):\n{}", diff(&written, &now))),
    }
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
        let transcript = match Transcript::parse(&fs::read_to_string(&path).unwrap()) {
            Ok(transcript) => transcript,
            Err(why) => {
                failures.push(format!("fixtures/{name}: {why}"));
                continue;
            }
        };
        if !transcript.shows_something() {
            failures.push(format!("fixtures/{name}: the host says nothing in it"));
        }
        for (number, why) in shapes::check(&transcript) {
            failures.push(format!("fixtures/{name}:{number}: {why}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Says what the client says, and writes the transcript anew with what comes.
fn replay(transcript: &Transcript) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let (state, log) = (folder.path().join("state"), folder.path().join("log"));
    let start = || {
        let mut command = if transcript.keeps_state() { sidecar_on(&state) } else { sidecar() };
        command.args(["--deterministic", "--default-directory", "/"]);
        command.args(transcript.arguments());
        if transcript.has_repository() {
            command.envs(crate::git::environment(folder.path()));
        }
        // Errors only: they are mistakes of the host's own.
        command.env("RUST_LOG", "error");
        command.stderr(File::options().create(true).append(true).open(&log).unwrap());
        Process::spawn(command)
    };
    let shown = Shown::new(transcript.has_folder());
    if transcript.has_repository() {
        shown.make_repository(folder.path());
    }
    let replayed = converse(transcript, start, shown);
    let log = fs::read_to_string(&log).unwrap();
    if log.is_empty() {
        return replayed;
    }
    Err(format!("the host says on stderr:\n{log}{}", replayed.unwrap_or_else(|why| why)))
}

fn converse(transcript: &Transcript, start: impl Fn() -> Process, shown: Shown) -> Result<String, String> {
    let steps: Vec<&Step> = transcript.steps.iter().filter(|step| !step.is_host()).collect();
    let mut now = Rebuilt { process: start(), text: String::new(), syncs: 0, shown };
    let mut said = String::new();
    // Of the program that runs now.
    let (mut ended, mut exited) = (false, false);
    for (at, step) in steps.iter().enumerate() {
        if ended && step.needs_input() {
            return Err(format!("stdin has ended before `{step}`"));
        }
        now.write(&step.to_string());
        let next = steps[at + 1..].iter().find(|step| !step.is_comment());
        match step {
            Step::Comment(_)
            | Step::Run(_)
            | Step::State
            | Step::Folder
            | Step::Repository
            | Step::Host(_) => continue,
            Step::Say(line) => {
                said.push_str(&now.shown.meant(line));
                said.push('\n');
                // Lines in a row are one write, so that no timer runs out between them, and what
                // belongs to them is read after the last.
                if matches!(steps.get(at + 1), Some(Step::Say(_))) {
                    continue;
                }
                now.say(std::mem::take(&mut said).as_bytes())?;
            }
            Step::SayRaw(bytes) => now.say(bytes)?,
            Step::SayRepeat(count, bytes) => now.say(&bytes.repeat(*count))?,
            Step::Until(text) => now.until(|line| line.contains(text))?,
            Step::End => {
                now.process.end();
                now.rest();
                ended = true;
            }
            Step::Kill => {
                now.process.child.kill().map_err(|error| error.to_string())?;
                now.process.wait();
                now.rest();
                (ended, exited) = (true, true);
            }
            Step::Start => {
                if !ended {
                    return Err("`@ start` needs a `@ kill` or `@ end` before it".to_owned());
                }
                if !exited {
                    now.text.truncate(now.text.len() - step.to_string().len() - 1);
                    now.finish_unasked();
                    now.write(&step.to_string());
                }
                now.process = start();
                (ended, exited) = (false, false);
                continue;
            }
            Step::Exit(_) => {
                if !ended {
                    return Err("`@ exit` needs an `@ end` before it".to_owned());
                }
                // The status that it has instead of the one that is written.
                let status = now.process.wait();
                now.text.truncate(now.text.len() - step.to_string().len() - 1);
                now.write(&Step::Exit(status.code().unwrap_or(-1)).to_string());
                exited = true;
            }
        }
        let line_is_open = step.leaves_line_open();
        let is_read_later =
            matches!(next, Some(Step::Until(_))) || matches!((step, next), (Step::Until(_), Some(Step::End)));
        if !(ended || line_is_open || is_read_later) {
            now.sync()?;
        }
    }
    if !ended {
        now.process.end();
        let claimed = now.text.len();
        now.rest();
        if now.text.len() > claimed {
            // Nobody has claimed it: it is written down so that it shows.
            now.text.insert_str(claimed, "@ end\n");
        }
    }
    if !exited {
        now.finish_unasked();
    }
    Ok(now.text)
}

/// A transcript as it comes out now.
struct Rebuilt {
    process: Process,
    text: String,
    syncs: usize,
    shown: Shown,
}

impl Rebuilt {
    fn write(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Waits for the program to end; a status that nobody has asked for shows when it is none of
    /// success.
    fn finish_unasked(&mut self) {
        let status = self.process.wait().code().unwrap_or(-1);
        if status != 0 {
            self.write(&Step::Exit(status).to_string());
        }
    }

    fn record(&mut self, line: String) {
        let line = self.shown.shown(line);
        self.write(&Step::Host(line).to_string());
    }

    /// Writes bytes to the program.
    ///
    /// # Errors
    /// When the program has ended; with its status, which names a signal.
    fn say(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.process.try_say_bytes(bytes).map_err(|error| {
            let status = self.process.wait();
            format!("the program has ended ({status}; {error}) after:\n{}", self.text)
        })
    }

    /// Takes everything that follows from what was said: up to the answer to a `ping` of our own,
    /// which is not written down.
    fn sync(&mut self) -> Result<(), String> {
        self.syncs += 1;
        let id = format!("sync-{}", self.syncs);
        self.say(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"ping\"}}\n").as_bytes())?;
        let answer = format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":null}}"#);
        while let Some(line) = self.process.next_line() {
            if line == answer {
                return Ok(());
            }
            self.record(line);
        }
        Err(format!("the output has ended after:\n{}", self.text))
    }

    fn until(&mut self, wanted: impl Fn(&str) -> bool) -> Result<(), String> {
        while let Some(line) = self.process.next_line() {
            let found = wanted(&line);
            self.record(line);
            if found {
                return Ok(());
            }
        }
        Err(format!("the output has ended after:\n{}", self.text))
    }

    fn rest(&mut self) {
        while let Some(line) = self.process.next_line() {
            self.record(line);
        }
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
