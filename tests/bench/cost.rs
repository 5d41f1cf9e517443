//! Instructions that the program executes for one unit of work, counted by valgrind's cachegrind,
//! which gives nearly the same count on a busy machine: `cargo bench --bench sidecar -- cost`
//! prints them beside the figures of `cost.toml` and fails where one is more than
//! [`TOLERANCE_PERCENT`] over its figure.
//!
//! Owns: the scenes that are counted, and the comparison with `cost.toml`.
//! Never: measures time. Cachegrind counts the user-space instructions of one process with all of
//! its threads; what its children execute (agents, git) and what the kernel does for it is not
//! counted. No scene has an agent: its guard is this program again, and valgrind starts no
//! `/proc/self/exe`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::client::{self, Client, CHAT, PING};
use super::{stored, thousands, Outcome, DELTA_BYTES};

/// Name of this part on the command line.
pub const COST: &str = "cost";

/// Figures that a run is compared with, in instructions, bytes, lines and crates.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/cost.toml");

/// Percentage by which a count may exceed its figure.
const TOLERANCE_PERCENT: u64 = 5;

/// Numbers of units in the two runs whose difference is divided by the difference of the units.
const FEW: usize = 1_000;
const MANY: usize = 6_000;

/// Number of clients in the scene of many clients.
const CLIENTS: usize = 50;

/// Number of sessions of one turn each, for the memory that they occupy.
const SESSIONS: usize = 200;

/// Counts one row of the table.
type Count = fn() -> Outcome<u64>;

/// Rows that are counted, by the names of their figures.
const ROWS: [(&str, Count); 10] = [
    ("start to the answer of initialize", start),
    ("durable handshake", durable_handshake),
    ("ping", ping),
    ("subscribe", subscribe),
    ("delta of script", || delta(None)),
    ("delta of script, stored", || delta(Some(stored::folder()?))),
    ("delta to 50 clients", delta_to_many),
    ("bytes of the program", program_size),
    ("lines of source", source_lines),
    ("crates in the tree", crates),
];

/// Rows that are printed and not held: memory varies from run to run.
const MEMORY_ROWS: [(&str, Count); 3] = [
    ("bytes resident, idle", idle_memory),
    ("bytes resident, 200 sessions", sessions_memory),
    ("bytes resident, a window beside the host", front_memory),
];

/// Prints the table.
///
/// # Errors
/// Names the counts that exceed their figures, the rows without one, or the scene that could not be
/// counted.
pub fn run() -> Outcome<()> {
    let figures: BTreeMap<String, u64> = toml::from_str(&fs::read_to_string(FIGURES)?)?;
    let mut out = std::io::stdout();
    writeln!(out, "{:<36} {:>14} {:>14} {:>8}", "one unit of", "this run", "figure", "")?;
    let mut exceeded = Vec::new();
    for (name, count) in ROWS {
        let counted = count().map_err(|error| format!("`{name}` could not be counted: {error}"))?;
        let figure = *figures.get(name).ok_or_else(|| format!("`{FIGURES}` has no figure `{name}`"))?;
        let percent = (counted as f64 / figure as f64 - 1.0) * 100.0;
        writeln!(
            out,
            "{name:<36} {:>14} {:>14} {percent:>+7.1} %",
            thousands(usize::try_from(counted)?),
            thousands(usize::try_from(figure)?)
        )?;
        if counted * 100 > figure * (100 + TOLERANCE_PERCENT) {
            exceeded.push(name);
        }
    }
    for (name, count) in MEMORY_ROWS {
        writeln!(out, "{name:<36} {:>14}", thousands(usize::try_from(count()?)?))?;
    }
    if exceeded.is_empty() {
        return Ok(());
    }
    Err(format!(
        "more than {TOLERANCE_PERCENT} % over its figure: {}. Make it cheaper, or raise the figure in \
         `tests/bench/cost.toml` in a commit of its own that says why",
        exceeded.join(", ")
    )
    .into())
}

fn start() -> Outcome<u64> {
    instructions(&["--ephemeral"], |_| Ok(()))
}

fn durable_handshake() -> Outcome<u64> {
    let folder = stored::folder()?;
    let arguments = in_folder(&folder)?;
    // The first start makes the folder.
    drop(Client::open_with(arguments)?);
    instructions(&arguments, |_| Ok(()))
}

fn ping() -> Outcome<u64> {
    each(&["--ephemeral"], |client, count| {
        client.send_in_background(PING.repeat(count));
        lines(client, count)
    })
}

fn subscribe() -> Outcome<u64> {
    each(&["--ephemeral"], |client, count| {
        client.create("s")?;
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"subscribe\",\"params\":{{\"channel\":\"{CHAT}\"}}}}\n"
        );
        client.send_in_background(line.repeat(count).into_bytes());
        (0..count).try_for_each(|_| client.line_with(b"\"id\":9"))
    })
}

fn delta(folder: Option<TempDir>) -> Outcome<u64> {
    let stream = |client: &mut Client, count: usize| {
        client.create("s")?;
        client.subscribe(CHAT)?;
        client.start_turn(CHAT, &format!("/stream {count} {DELTA_BYTES}"))?;
        client.line_with(b"chat/turnComplete")
    };
    match folder {
        None => each(&["--ephemeral"], stream),
        // The folder is emptied between the two runs: the session must be new in each.
        Some(folder) => {
            let few = instructions(&in_folder(&folder)?, |client| stream(client, FEW))?;
            let folder = stored::folder()?;
            let many = instructions(&in_folder(&folder)?, |client| stream(client, MANY))?;
            Ok(per_unit(few, many))
        }
    }
}

fn delta_to_many() -> Outcome<u64> {
    let deliver = |count: usize| -> Outcome<u64> {
        let counted = Counted::new()?;
        let host = super::listening::Host::start_as(counted.command(), &["--ephemeral"])?;
        let mut first = host.connect("first")?;
        first.say(client::create("s").as_bytes())?;
        let mut all = vec![first];
        for number in 1..CLIENTS {
            all.push(host.connect(&number.to_string())?);
        }
        for client in &mut all {
            client.ask(&super::listening::subscribe(CHAT))?;
        }
        all[0].say(client::turn(CHAT, &format!("/stream {count} {DELTA_BYTES}")).as_bytes())?;
        let reading: Vec<_> = all
            .into_iter()
            .map(|mut client| {
                std::thread::spawn(move || {
                    client.until(b"chat/turnComplete").map(|()| client).map_err(|error| error.to_string())
                })
            })
            .collect();
        let mut clients = Vec::new();
        for client in reading {
            clients.push(client.join().map_err(|_| "a client has failed")??);
        }
        host.stop()?;
        drop(clients);
        counted.instructions()
    };
    Ok(per_unit(deliver(FEW)?, deliver(MANY)?) / u64::try_from(CLIENTS)?)
}

fn program_size() -> Outcome<u64> {
    Ok(fs::metadata(client::path())?.len())
}

fn source_lines() -> Outcome<u64> {
    let mut total = 0;
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                total += fs::read_to_string(path)?.lines().count();
            }
        }
    }
    Ok(u64::try_from(total)?)
}

fn crates() -> Outcome<u64> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let arguments = ["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none", "--no-dedupe"];
    let tree = Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    if !tree.status.success() {
        return Err(String::from_utf8_lossy(&tree.stderr).into());
    }
    let tree = String::from_utf8(tree.stdout)?;
    Ok(u64::try_from(tree.lines().collect::<std::collections::BTreeSet<_>>().len())?)
}

fn idle_memory() -> Outcome<u64> {
    Ok(Client::open()?.memory()?.resident_kb * 1024)
}

fn sessions_memory() -> Outcome<u64> {
    Ok(super::sessions(SESSIONS)?.memory()?.resident_kb * 1024)
}

fn front_memory() -> Outcome<u64> {
    let folder = stored::folder()?;
    Ok(Client::join_in(folder.path())?.memory()?.resident_kb * 1024)
}

fn in_folder(folder: &TempDir) -> Outcome<[&str; 3]> {
    Ok(["--exclusive", "--state-dir", folder.path().to_str().ok_or("the folder's path is not UTF-8")?])
}

/// Reads `count` lines.
fn lines(client: &mut Client, count: usize) -> Outcome<()> {
    (0..count).try_for_each(|_| client.line().map(|_| ()))
}

/// Counts the instructions of one unit, of which `work` does as many as it is told.
fn each(arguments: &[&str], work: impl Fn(&mut Client, usize) -> Outcome<()>) -> Outcome<u64> {
    let few = instructions(arguments, |client| work(client, FEW))?;
    let many = instructions(arguments, |client| work(client, MANY))?;
    Ok(per_unit(few, many))
}

fn per_unit(few: u64, many: u64) -> u64 {
    many.saturating_sub(few) / (MANY - FEW) as u64
}

/// Counts the instructions of the program from its start to its end, with `work` in between.
fn instructions(arguments: &[&str], work: impl FnOnce(&mut Client) -> Outcome<()>) -> Outcome<u64> {
    let counted = Counted::new()?;
    let mut client = Client::start(counted.command(), arguments)?;
    work(&mut client)?;
    client.end()?;
    counted.instructions()
}

/// One run of the program under cachegrind.
struct Counted {
    folder: TempDir,
}

impl Counted {
    fn new() -> Outcome<Self> {
        Ok(Self { folder: stored::folder()? })
    }

    /// Returns the program under cachegrind, to be given its arguments.
    fn command(&self) -> Command {
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
            .arg(format!("--log-file={}", self.folder.path().join("log").display()))
            .arg(client::path());
        command
    }

    /// Returns the number of instructions of the run, which has ended.
    fn instructions(self) -> Outcome<u64> {
        let log = fs::read_to_string(self.folder.path().join("log"))?;
        let line = log.lines().find(|line| line.contains("refs:")).ok_or_else(|| log.clone())?;
        let digits: String =
            line.rsplit(':').next().unwrap_or("").chars().filter(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    }
}

/// Tells whether valgrind can be run.
pub fn can_count() -> bool {
    let valgrind =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    valgrind.is_ok_and(|status| status.success())
}
