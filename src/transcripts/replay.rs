//! `replay`: plays transcripts to a host, and reports what differs.
//!
//! Owns: which host is started, reading and rewriting the files, and printing the reports.
//! Never: compares a line.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure, Context};
use clap::Args;

use super::differences::{junit, TranscriptReport};
use super::form::TranscriptFile;
use super::player::{play, HostNeeds, PlayConditions};
use super::{host_command, is_address, jsonl, unreachable, HostFailure, STATE};
use crate::listening::print;
use crate::os::exe;
use crate::os::paths::NULL_DEVICE;
use crate::os::process::GuardProgram;

/// Default time limit, in seconds: longer than a host lets turns run after the end of its stdin.
const TIMEOUT: u64 = 90;

/// Say what the client says in transcripts to a host, and report what the host says differently.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Transcripts, and logs of one message per line
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Rewrite the transcripts to what the host sends now
    #[arg(long)]
    bless: bool,

    /// Write the result as XML of JUnit into this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Value of a name, such as folder-1=/home/me/project; repeatable
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = read_value)]
    given: Vec<(String, String)>,

    /// Time that the host may take to send what follows from a line of the client, or to end
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT)]
    timeout: u64,

    /// Command that starts the host, or its address: ws://HOST:PORT or unix:PATH. `{state}` in it
    /// is a folder that is kept during a transcript [default: this program, with a fixed clock]
    #[arg(last = true, value_name = "HOST COMMAND")]
    host: Vec<OsString>,
}

fn read_value(said: &str) -> Result<(String, String), String> {
    let (name, value) = said.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// The host said the same as each transcript.
    Same,
    /// The host said something else, or a transcript cannot be played.
    Different,
}

/// Plays transcripts, and prints a report on each. The hosts run under these guards.
///
/// # Errors
/// When the host cannot be started, or a report cannot be written.
pub fn replay(arguments: &ReplayArgs, guards: &GuardProgram) -> anyhow::Result<Replayed> {
    let result = arguments.junit.as_deref();
    let named = |file: &Path| format!("--junit: `{}`", file.display());
    if let Some(file) = result {
        check_overwritten(file).with_context(|| named(file))?;
    }
    let (mut reports, mut failure) = (Vec::new(), None);
    for file in &arguments.files {
        let mut report = report_of(file);
        if failure.is_none() {
            match replay_file(file, arguments, guards) {
                Ok(played) => {
                    report = played;
                    print(&report.to_string())?;
                }
                Err(error) => failure = Some(error),
            }
        }
        // Files after a failure are not played, and the result must not count them as passed.
        report.error = report.error.or(failure.as_ref().map(|error| format!("{error:#}")));
        reports.push(report);
    }
    if let Some(file) = result {
        fs::write(file, junit(&reports)).with_context(|| named(file))?;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let is_same = reports.iter().all(TranscriptReport::is_same);
    Ok(if is_same { Replayed::Same } else { Replayed::Different })
}

/// Checks that writing a result there destroys no transcript, which a forgotten argument of
/// `--junit` would put in its place.
fn check_overwritten(file: &Path) -> anyhow::Result<()> {
    if file.is_file() {
        let text = fs::read(file).context("it cannot be read")?;
        let is_result = text.is_empty() || text.trim_ascii_start().starts_with(b"<");
        ensure!(is_result, "it exists, and is no result of tests: it is left as it is");
    }
    Ok(())
}

fn report_of(file: &Path) -> TranscriptReport {
    TranscriptReport { name: file.display().to_string(), ..TranscriptReport::default() }
}

fn replay_file(
    file: &Path,
    arguments: &ReplayArgs,
    guards: &GuardProgram,
) -> anyhow::Result<TranscriptReport> {
    let mut report = report_of(file);
    let played = read(file).and_then(|(transcript, before)| {
        let starter = |needs: &HostNeeds| start(needs, &arguments.host);
        let conditions = PlayConditions {
            limit: Duration::from_secs(arguments.timeout),
            waits: !arguments.host.is_empty(),
            given: &arguments.given,
            guards,
            unreachable: is_address(&arguments.host).then(|| unreachable(&arguments.host)),
        };
        let mut played = play(&transcript, &starter, &conditions)?;
        played.differences.iter_mut().for_each(|difference| difference.count_from(before));
        if arguments.bless && played.is_whole() && played.text != transcript.to_string() {
            ensure!(before == 0, "a log is not rewritten");
            fs::write(file, &played.text).context("it cannot be rewritten")?;
            played.differences.clear();
            report.rewritten = true;
        }
        Ok(played.differences)
    });
    match played {
        Ok(differences) => report.differences = differences,
        Err(error) if error.is::<HostFailure>() => return Err(error),
        Err(error) => report.error = Some(format!("{error:#}")),
    }
    Ok(report)
}

/// Reads a transcript; returns it with the number of its lines that are not in the file.
fn read(file: &Path) -> anyhow::Result<(TranscriptFile, usize)> {
    let text = fs::read_to_string(file).context("it cannot be read")?;
    if text.trim_start().starts_with('{') {
        return Ok((jsonl::read(&text)?, jsonl::LINES_BEFORE));
    }
    Ok((TranscriptFile::parse(&text)?, 0))
}

/// Returns the command that starts the host of a transcript.
fn start(needs: &HostNeeds, host: &[OsString]) -> anyhow::Result<Command> {
    if host.is_empty() {
        let mut command = exe::command();
        match &needs.state {
            Some(folder) => command.arg("--state-dir").arg(folder).arg("--exclusive"),
            None => command.arg("--ephemeral"),
        };
        let configuration = needs.configuration.as_deref().unwrap_or(Path::new(NULL_DEVICE));
        command.arg("--config").arg(configuration);
        command.args(["--deterministic", "--default-directory", "/"]);
        command.args(needs.arguments);
        return Ok(command);
    }
    if needs.configuration.is_some() {
        bail!("`@ config` is for the host of this program: leave out the host command");
    }
    let has_state = host.iter().any(|word| word.to_string_lossy().contains(STATE));
    if needs.state.is_some() && !has_state {
        bail!("`@ state` needs a host that keeps its state in a folder: name that `{STATE}` in the host command");
    }
    let mut command = host_command(host, needs.state.as_deref());
    command.args(needs.arguments);
    Ok(command)
}
