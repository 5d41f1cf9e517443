//! `ahp-sidecar debug-bundle`: one file for a bug report.
//!
//! The file is JSON, so that its sender can read all of it before it is sent, and its receiver can
//! search it with the usual tools. All that it has of texts passes a [`Redactor`].
//!
//! Owns: what is in the bundle, and where it is written.
//! Never: shows a text of a person, an agent, a file, a path or a token, or changes the state
//! folder.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::{json, Map, Value};

use crate::check;
use crate::cli::WhichAgents;
use crate::files::small;
use crate::listening::{self, print};
use crate::os::private;
use crate::os::process::GuardProgram;
use crate::sessions;
use crate::shapes::{shown, Redactor, Shape};
use crate::store::archive::{Archive, ArchiveError, ArchivedSession, SessionPiece};
use crate::store::{folder, sqlite};
use crate::trace;
use crate::versions::dialect::Dialect;

/// Version of the bundle's form.
const FORMAT_VERSION: u32 = 1;

/// Name of the file that is written where none is named.
const FILE: &str = "ahp-sidecar-debug.json";

/// Name of the host's log, in the state folder.
const HOST_LOG: &str = "host.log";

/// Maximum number of sessions of which the summary is shown.
const SUMMARIES_MAX: usize = 50;

/// Maximum number of sessions of which the channels are shown: the newest ones.
const SESSIONS_MAX: usize = 5;

/// Maximum number of the latest turns that are shown of a session.
const TURNS_MAX: usize = 5;

/// Maximum number of the latest actions that are shown of a session, and messages of a trace.
const FRAMES_MAX: usize = 200;

/// Maximum size of the end of a log or a trace that is read, in bytes.
const TAIL_BYTES: u64 = 256 << 10;

/// Write one file for a bug report: versions, platform, settings, agents, the log, and the states
/// of channels, in which each text is replaced by its length and a salted hash.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// File that is written; it must not exist
    #[arg(value_name = "FILE", default_value = FILE)]
    file: PathBuf,

    /// Print what would be written, and write nothing
    #[arg(long)]
    show: bool,

    #[command(flatten)]
    which: WhichAgents,

    /// Do not start the agents to see whether they work
    #[arg(long)]
    no_agents: bool,

    /// Time limit for each agent
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,

    /// State folder [default: the default state folder]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// File of `--trace`, or log of `record --jsonl` or VS Code, of which the last messages are
    /// added
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Writes the bundle, or prints it.
///
/// # Errors
/// When the file cannot be written. What cannot be found out is noted in the bundle.
pub fn run(arguments: &BundleArgs, guard: &GuardProgram) -> anyhow::Result<()> {
    let bundle = Bundle::default().collect(arguments, guard);
    let text = serde_json::to_string_pretty(&bundle)? + "\n";
    if arguments.show {
        return print(&text);
    }
    let name = arguments.file.display();
    let context = || format!("`{name}` cannot be written");
    private::write_new(&arguments.file, text.as_bytes()).with_context(context)?;
    print(&format!("{name}: {} bytes; read it before you send it\n", text.len()))
}

/// Bundle in the making.
#[derive(Debug, Default)]
struct Bundle {
    redactor: Redactor,
    parts: Map<String, Value>,
    timings: Map<String, Value>,
}

impl Bundle {
    fn collect(mut self, arguments: &BundleArgs, guard: &GuardProgram) -> Value {
        self.parts.insert("format".to_owned(), "ahp-sidecar debug bundle".into());
        self.parts.insert("version".to_owned(), FORMAT_VERSION.into());
        self.add("program", |_| Ok(program()));
        self.add("platform", |_| Ok(platform()));
        self.add("settings", |redactor| settings(redactor, &arguments.which));
        if !arguments.no_agents {
            let limit = Duration::from_secs(arguments.timeout);
            self.add("agents", |redactor| agents(redactor, &arguments.which, guard, limit));
        }
        let state_dir = arguments.state_dir.as_deref();
        self.add("folder", |_| state_folder(state_dir));
        self.add("sessions", |redactor| stored_sessions(redactor, state_dir));
        self.add("log", |redactor| log(redactor, state_dir));
        if let Some(file) = &arguments.trace {
            self.add("trace", |_| traced(file));
        }
        self.parts.insert("milliseconds".to_owned(), self.timings.into());
        self.parts.into()
    }

    /// Adds a part, or the reason why there is none, and how long it took.
    fn add(&mut self, name: &str, part: impl FnOnce(&Redactor) -> anyhow::Result<Value>) {
        let begun = Instant::now();
        let part = part(&self.redactor)
            .unwrap_or_else(|why| json!({ "failure": self.redactor.text(&format!("{why:#}")) }));
        self.timings.insert(name.to_owned(), millis(begun.elapsed()));
        self.parts.insert(name.to_owned(), part);
    }
}

fn millis(time: Duration) -> Value {
    (time.as_micros() as f64 / 1000.0).into()
}

fn program() -> Value {
    let versions: Vec<&str> = Dialect::released().map(Dialect::name).collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "protocolVersions": versions })
}

fn platform() -> Value {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    json!({ "system": std::env::consts::OS, "processor": std::env::consts::ARCH, "processors": processors })
}

/// Returns the configuration file, with its members and without its texts.
fn settings(redactor: &Redactor, which: &WhichAgents) -> anyhow::Result<Value> {
    let Some(file) = which.file() else { return Ok(json!({ "file": false })) };
    if !file.exists() {
        return Ok(json!({ "file": false }));
    }
    let text = small::open(&file).and_then(small::read)?;
    let settings: toml::Table = text.parse()?;
    let mut settings = serde_json::to_value(settings)?;
    // Numbers of a program's arguments or environment may be secrets, too.
    hide_numbers(redactor, &mut settings);
    Ok(json!({ "file": true, "bytes": text.len(), "content": redactor.value(&settings) }))
}

/// Hides the numbers that the configuration passes on to other programs.
fn hide_numbers(redactor: &Redactor, settings: &mut Value) {
    let Value::Object(members) = settings else { return };
    for (name, value) in members {
        match (name.as_str(), &mut *value) {
            ("env" | "args" | "headers" | "config", value) => {
                *value = redactor.text(&value.to_string()).into()
            }
            (_, value) => hide_numbers(redactor, value),
        }
    }
}

/// Returns the agents as `agents check` sees them.
fn agents(
    redactor: &Redactor,
    which: &WhichAgents,
    guard: &GuardProgram,
    limit: Duration,
) -> anyhow::Result<Value> {
    let checked = check::probe_silently(which, guard, limit)?;
    let agents = checked.iter().map(|agent| {
        let failure = agent.failure.as_ref();
        json!({
            "name": redactor.text(&agent.name),
            "usable": agent.usable,
            "milliseconds": millis(agent.took),
            "failureKind": failure.map(|(kind, _)| kind),
            "failure": failure.map(|(_, why)| redactor.text(why)),
            "needsLogin": agent.needs_login,
            "config": agent.config.as_ref().map(|config| redactor.value(config)),
        })
    });
    Ok(agents.collect())
}

/// Returns whether a host runs on the state folder, and the sizes of the files in it.
fn state_folder(asked: Option<&Path>) -> anyhow::Result<Value> {
    let folder = folder::chosen(asked)?;
    if !folder.is_dir() {
        return Ok(json!({ "exists": false }));
    }
    let (process, _) = listening::host_of(&folder)?;
    let mut files: Vec<(String, u64)> = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        // Files of the program's own alone: others may have any name.
        let name = entry.file_name().to_string_lossy().into_owned();
        let of_store = name.strip_prefix(sqlite::FILE_NAME);
        let is_own = name == HOST_LOG || of_store.is_some_and(|end| ["", "-wal", "-shm"].contains(&end));
        files.push((if is_own { name } else { "other".to_owned() }, entry.metadata()?.len()));
    }
    files.sort();
    let files: Vec<Value> =
        files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
    Ok(json!({ "exists": true, "running": process.is_some(), "files": files }))
}

/// Returns the summaries of sessions, and the states of the newest ones' channels.
fn stored_sessions(redactor: &Redactor, asked: Option<&Path>) -> anyhow::Result<Value> {
    let (_folder, archive) = sessions::open(asked, true)?;
    let all = archive.list()?;
    let shown = all.iter().take(SUMMARIES_MAX).enumerate().map(|(at, session)| {
        let mut shown = json!({ "summary": redactor.value(&parsed(&session.summary)),
            "inTrash": session.removed_at.is_some(), "bytes": session.summary.len() });
        if at < SESSIONS_MAX {
            let channels = channels(redactor, &archive, session);
            let failure = |why: anyhow::Error| json!({ "failure": redactor.text(&format!("{why:#}")) });
            shown["channels"] = channels.unwrap_or_else(failure);
            let frames = frames(&archive, session);
            shown["frames"] = frames.unwrap_or_else(failure);
        }
        shown
    });
    Ok(json!({ "count": all.len(), "shown": shown.collect::<Vec<_>>() }))
}

/// Failure to read a session.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Unreadable(#[from] ArchiveError);

/// Returns the states of a session and its chats, as they are stored, and their latest turns.
fn channels(redactor: &Redactor, archive: &Archive, session: &ArchivedSession) -> anyhow::Result<Value> {
    let (mut channels, mut turns, mut count) = (Vec::new(), Vec::new(), 0usize);
    let end_turns = |channels: &mut Vec<Value>, turns: &mut Vec<Value>, count: &mut usize| {
        if *count > 0 {
            channels.push(json!({ "turns": *count, "latest": std::mem::take(turns) }));
        }
        *count = 0;
    };
    archive.walk(session.key, &mut |piece| -> Result<(), Unreadable> {
        match piece {
            SessionPiece::Session(row) => {
                channels.push(json!({ "channel": "session", "bytes": row.body.len(),
                    "state": redactor.value(&parsed(&row.body)) }));
            }
            SessionPiece::Chat(chat) => {
                end_turns(&mut channels, &mut turns, &mut count);
                channels.push(json!({ "channel": "chat", "running": chat.row.running,
                    "bytes": chat.row.body.len(), "state": redactor.value(&parsed(&chat.row.body)) }));
            }
            SessionPiece::Turn(turn) => {
                count += 1;
                if turns.len() == TURNS_MAX {
                    turns.remove(0);
                }
                let text = turn.text();
                turns.push(json!({ "bytes": text.len(), "turn": redactor.value(&parsed(&text)) }));
            }
        }
        Ok(())
    })?;
    end_turns(&mut channels, &mut turns, &mut count);
    Ok(channels.into())
}

/// Returns the latest actions that the store has of a session, by shape and size.
fn frames(archive: &Archive, session: &ArchivedSession) -> anyhow::Result<Value> {
    let actions = archive.actions(session.key)?;
    let latest = actions.iter().skip(actions.len().saturating_sub(FRAMES_MAX));
    let shown = latest.map(|action| shape(&parsed(&action.line), action.line.len()));
    Ok(shown.collect())
}

fn shape(message: &Value, bytes: usize) -> Value {
    let shape = Shape::of(message, bytes);
    json!({ "name": shape.name, "channel": shape.channel, "bytes": shape.bytes })
}

fn parsed(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_default()
}

/// Returns the lines at the end of a file, without one that is cut.
fn tail(path: &Path) -> anyhow::Result<Vec<String>> {
    let mut file = private::options().read(true).open(path)?;
    let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().skip(usize::from(from > 0)).map(str::to_owned).collect())
}

/// Returns the end of the host's log: when, how severe and from which module each line is.
fn log(redactor: &Redactor, asked: Option<&Path>) -> anyhow::Result<Value> {
    let path = folder::chosen(asked)?.join(HOST_LOG);
    if !path.exists() {
        return Ok(Value::Array(Vec::new()));
    }
    let lines = tail(&path)?;
    let latest = lines.iter().skip(lines.len().saturating_sub(FRAMES_MAX));
    Ok(latest.map(|line| log_line(redactor, line)).collect())
}

fn log_line(redactor: &Redactor, line: &str) -> Value {
    let word = |text: &str| -> Option<(String, String)> {
        text.trim_start().split_once(' ').map(|(word, rest)| (word.to_owned(), rest.to_owned()))
    };
    let parts = || -> Option<Value> {
        let (time, rest) = word(line)?;
        let (level, rest) = word(&rest)?;
        let (module, message) = word(&rest)?;
        let module = module.strip_suffix(':')?;
        let is_of_modules = |char: char| char.is_ascii_lowercase() || char == '_' || char == ':';
        let is_own = module.starts_with("ahp_sidecar::") && module.chars().all(is_of_modules);
        let is_entry = time.parse::<jiff::Timestamp>().is_ok() && level.parse::<tracing::Level>().is_ok();
        (is_own && is_entry).then(
            || json!({ "time": time, "level": level, "module": module, "message": redactor.text(&message) }),
        )
    };
    parts().unwrap_or_else(|| json!({ "line": redactor.text(line) }))
}

/// Returns the last messages of a trace or a log, by shape, size and time.
fn traced(file: &Path) -> anyhow::Result<Value> {
    let lines = tail(file)?;
    let latest = lines.iter().skip(lines.len().saturating_sub(FRAMES_MAX));
    let events = latest.filter_map(|line| {
        let event: Value = serde_json::from_str(line.trim_end_matches(',')).ok()?;
        let (log, details) = (&event["_ahpLog"], &event["args"]);
        if log.is_object() {
            let bytes = log["byteLength"].as_u64().and_then(|it| usize::try_from(it).ok());
            let mut shown = shape(&event, bytes.unwrap_or(line.len()));
            let time = log["ts"].as_str().filter(|time| time.parse::<jiff::Timestamp>().is_ok());
            shown["time"] = time.into();
            shown["saidByClient"] = (log["dir"] == "c2s").into();
            return Some(shown);
        }
        let words = |value: &Value| {
            let words = value.as_str().unwrap_or_default().split(' ').map(shown);
            words.collect::<Vec<_>>().join(" ")
        };
        let number = |value: &Value| value.as_f64();
        Some(
            json!({ "name": words(&event["name"]), "stage": event["cat"].as_str().and_then(trace::known_stage), "at": number(&event["ts"]),
            "microseconds": number(&event["dur"]), "bytes": number(&details["bytes"]) }),
        )
    });
    Ok(events.collect())
}
