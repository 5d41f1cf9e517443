//! `conform`: judges a host by the laws of the protocol.
//!
//! In reading order: [`checks`] (the laws, by chapters of the specification), `bench` (what checks
//! begin with), `client` (a client, and the laws that hold for every message), [`mirror`], `host`
//! (processes), `report`, `guarded`.
//!
//! Owns: the laws, how each is tried with a host that is not known, and the report.
//! Never: asks for more than the specification and JSON-RPC say, or knows a host by its name.

mod bench;
pub mod checks;
mod client;
pub mod dice;
mod followed;
mod guarded;
mod host;
pub mod mirror;
mod report;
mod stop;
mod summaries;
mod types;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use self::bench::{Bench, BenchSettings};
use self::checks::{HostCheck, CHECKS};
use self::client::ROOT;
use self::host::HostPlan;
use self::report::{CheckOutcome, CheckResult, ConformReport};
use self::stop::{CheckStop, Judged};
use crate::listening::print;
use crate::os::process::GuardProgram;
use crate::transcripts::recorder::NOTE;
use crate::transcripts::{HostFailure, STATE};

/// Versions that clients offer unless one is named: those whose types the judge has.
const VERSIONS: [&str; 2] = ["1.0.0", "0.9.0"];

/// Time limit of each check, if the host does not answer `initialize`.
const SILENT: Duration = Duration::from_secs(5);

/// Judge a host of the Agent Host Protocol: which laws of the specification it keeps.
#[derive(Debug, Clone, Args)]
pub struct ConformArgs {
    /// Version of the protocol that clients offer [default: 1.0.0 and 0.9.0]
    #[arg(long, value_name = "VERSION", value_parser = read_version)]
    version: Option<String>,

    /// Address where the host listens: ws://HOST:PORT or unix:PATH. `{port}` is a free port, here
    /// and in the host command [default: the host speaks on its stdin and stdout]
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,

    /// Several processes of the host command with the same `{state}` serve the same sessions
    #[arg(long)]
    shared: bool,

    /// A host that is killed has its sessions when it is started again [default: if `{state}` is in
    /// the host command]
    #[arg(long)]
    keeps_state: bool,

    /// Agent of the sessions [default: the first one]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,

    /// Message that begins a turn
    #[arg(long, value_name = "TEXT", default_value = "Say hello, and nothing else.")]
    prompt: String,

    /// Seed of what is chosen at random [default: another one each time; it is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Number of random plays
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Only this check; repeatable
    #[arg(long, value_name = "NAME", value_parser = read_name)]
    only: Vec<String>,

    /// Print JSON in place of the table
    #[arg(long)]
    json: bool,

    /// Write the result as XML of JUnit into this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Write what shows each broken law into this folder, as transcripts that `replay` plays
    #[arg(long, value_name = "FOLDER")]
    transcripts: Option<PathBuf>,

    /// Time limit of each check
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,

    /// Show what hosts write to stderr
    #[arg(long)]
    stderr: bool,

    /// This process has a guard, which ends what it has started; the folder for what checks keep
    #[arg(long, hide = true, value_name = "FOLDER")]
    guarded: Option<PathBuf>,

    /// Command that starts the host. `{state}` in it is a folder that is kept during a check
    /// [default: this program]
    #[arg(last = true, value_name = "HOST COMMAND")]
    host: Vec<OsString>,
}

/// Result of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conformed {
    /// No law is broken.
    Held,
    /// A law is broken.
    Broken,
    /// The guarded process has judged, and ended with this status.
    Exited(u8),
    /// A signal has ended the judgement.
    Stopped,
}

/// Judges a host, and prints the result.
///
/// # Errors
/// When the host cannot be started, or the result cannot be written.
pub fn conform(arguments: &ConformArgs, guard: &GuardProgram) -> anyhow::Result<Conformed> {
    let Some(folder) = &arguments.guarded else { return guarded::run(guard) };
    let mut settings = settings(arguments, folder)?;
    let (host, version) = match identity(&settings) {
        Err(CheckStop::Failed(error)) => return Err(error),
        Err(_) => {
            settings.limit = settings.limit.min(SILENT);
            (Value::Null, Value::Null)
        }
        Ok(said) => said,
    };
    let results = chosen(&arguments.only).into_iter().map(|check| judge(check, &settings));
    let results = results.collect::<anyhow::Result<Vec<_>>>()?;
    let report = ConformReport { host, version, seed: settings.seed, results };
    if let Some(file) = &arguments.junit {
        let name = file.display();
        fs::write(file, report.junit()).with_context(|| format!("`{name}` cannot be written"))?;
    }
    if let Some(folder) = &arguments.transcripts {
        write_transcripts(folder, &report)?;
    }
    print(&if arguments.json { format!("{:#}\n", report.json()) } else { report.table() })?;
    Ok(if report.is_held() { Conformed::Held } else { Conformed::Broken })
}

/// Returns the checks of these names; all without a name.
fn chosen(names: &[String]) -> Vec<&'static HostCheck> {
    let is_chosen = |check: &&HostCheck| names.is_empty() || names.iter().any(|name| name == check.name);
    CHECKS.iter().filter(is_chosen).collect()
}

/// Reads the name of a check.
fn read_name(said: &str) -> Result<String, String> {
    if CHECKS.iter().any(|check| check.name == said) {
        return Ok(said.to_owned());
    }
    let known: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    Err(format!("there is no check `{said}`; there are: {}", known.join(", ")))
}

/// Reads a version whose types the judge has.
fn read_version(said: &str) -> Result<String, String> {
    if ["1.", "0.9."].iter().any(|known| said.starts_with(known)) {
        return Ok(said.to_owned());
    }
    Err("hosts are judged by the types of 1.0.0 and 0.9.0".to_owned())
}

fn settings(arguments: &ConformArgs, folder: &Path) -> anyhow::Result<BenchSettings> {
    let has_state = arguments.host.iter().any(|word| word.to_string_lossy().contains(STATE));
    let mut command = arguments.host.clone();
    let mut connect = arguments.connect.clone();
    // A host command that is an address means a host that runs already.
    let address = command.first().and_then(|word| word.to_str()).map(str::to_owned);
    if let Some(address) = address.filter(|word| word.starts_with("ws://") || word.starts_with("unix:")) {
        connect = Some(address);
        command.clear();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is wrong")?;
    let versions = match &arguments.version {
        Some(version) => vec![version.clone()],
        None => VERSIONS.map(str::to_owned).to_vec(),
    };
    Ok(BenchSettings {
        plan: HostPlan {
            folder: folder.to_owned(),
            command,
            connect,
            shared: arguments.shared,
            keeps_state: arguments.keeps_state || has_state,
            shows_stderr: arguments.stderr,
        },
        limit: Duration::from_secs(arguments.timeout),
        versions,
        agent: arguments.agent.clone(),
        prompt: arguments.prompt.clone(),
        seed: arguments.seed.unwrap_or(u64::from(now.subsec_nanos())),
        rounds: arguments.rounds,
        no_session: Rc::default(),
    })
}

/// Makes one check.
fn judge(check: &'static HostCheck, settings: &BenchSettings) -> anyhow::Result<CheckResult> {
    let (outcome, transcripts) = match check.judge(settings) {
        (Ok(()), _) => (CheckOutcome::Held, Vec::new()),
        (Err(CheckStop::NotOffered(why)), _) => (CheckOutcome::NotOffered(why), Vec::new()),
        (Err(CheckStop::Broken(why)), transcripts) => {
            let title = format!("# {}: {}", check.name, why.lines().next().unwrap_or_default());
            let named = transcripts.into_iter().map(|text| {
                let needs_state = settings.plan.names_state() || text.contains("\n@ start\n");
                let keeps = if needs_state { "\n@ state" } else { "" };
                text.replacen(NOTE, &format!("{title}{keeps}"), 1)
            });
            (CheckOutcome::Broken(why), named.collect())
        }
        (Err(CheckStop::Failed(error)), _) if error.is::<HostFailure>() => return Err(error),
        (Err(CheckStop::Failed(error)), _) => {
            return Err(error.context(format!("`{}` cannot be checked", check.name)))
        }
    };
    Ok(CheckResult { name: check.name, chapter: check.chapter, law: check.law, outcome, transcripts })
}

/// Returns what the host says of itself, and the version that it chooses; null where it says
/// nothing.
fn identity(settings: &BenchSettings) -> Judged<(Value, Value)> {
    let mut bench = Bench::new(settings, false)?;
    let mut result = bench.client()?.initialize(&settings.versions, &[ROOT])?;
    Ok((result["serverInfo"].take(), result["protocolVersion"].take()))
}

fn write_transcripts(folder: &Path, report: &ConformReport) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("`{}` cannot be created", folder.display()))?;
    for result in &report.results {
        for (at, text) in result.transcripts.iter().enumerate() {
            let number = if at == 0 { String::new() } else { format!("-{}", at + 1) };
            let path = folder.join(format!("{}{number}.txt", result.name));
            fs::write(&path, text).with_context(|| format!("`{}` cannot be written", path.display()))?;
        }
    }
    Ok(())
}
