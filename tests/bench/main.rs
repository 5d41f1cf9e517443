//! Benchmarks of the release binary, measured from outside over real pipes: `cargo bench` prints
//! one table, and `cargo bench -- PART…` only the named parts (see `PARTS`).
//!
//! Measures: the time from spawning to an answered handshake, `ping` alone and in a pipeline,
//! deltas of turns with few and many parts, a replay, memory, what a store costs (see `stored`) and
//! a long chat in it (see `histories`), what several windows cost (see `windows`) and clients of
//! listeners (see `listening`), what an agent behind the bridge costs (see `bridged`), what files
//! cost (see `files`), what it costs to keep a folder (see `repositories`), what terminals cost
//! (see `terminals`), and, in this process, what clients of older versions cost (see `versions`).
//! Beside each figure stand the aim and what the reference host (VS Code's, on Node) did, both for
//! a quiet machine of two cores.
//! Never: fails on a number, or judges what is answered beyond what it needs to count; tests do.

mod bridged;
mod client;
mod cost;
mod files;
mod histories;
mod listening;
mod relay;
mod repositories;
mod stored;
mod terminals;
mod versions;
mod windows;

use std::io::Write;
use std::time::{Duration, Instant};

use client::{Client, DeltaLines, Memory, CHAT};

/// Number of measured starts.
const SPAWNS: usize = 30;
/// Number of sequential pings.
const PINGS: usize = 10_000;
/// Number of pipelined pings.
const PIPELINED_PINGS: usize = 500_000;
/// Number of deltas of a turn, and bytes of each.
const DELTAS: usize = 1_000_000;
const DELTA_BYTES: usize = 20;
/// Number of actions missed by a client.
const MISSED: u64 = 10_000;
/// Number of stored sessions.
const SESSIONS: usize = 200;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Measures something and adds its rows to the table.
type Measure = fn(&mut Table) -> Outcome<()>;

/// The parts of the table, by the names that they can be asked for.
const PARTS: [(&str, Measure); 10] = [
    ("pipe", measure),
    ("stored", stored::measure),
    ("histories", histories::measure),
    ("windows", windows::measure),
    ("listening", listening::measure),
    ("bridged", bridged::measure),
    ("files", files::measure),
    ("repositories", repositories::measure),
    ("terminals", terminals::measure),
    ("versions", versions::measure),
];

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(bridged::AGENT) => return bridged::be_an_agent(),
        Some(relay::RELAY) => return relay::be_a_relay(arguments.next().as_deref()),
        _ => {}
    }
    if std::env::args().any(|argument| argument == cost::COST) {
        if cost::can_count() {
            return cost::run();
        }
        writeln!(std::io::stdout(), "skipped: valgrind, which counts instructions, is not installed")?;
        return Ok(());
    }
    // `cargo test --benches` runs this too, and wants no figures.
    if !std::env::args().any(|argument| argument == "--bench") {
        writeln!(std::io::stdout(), "nothing was measured: `cargo bench` does")?;
        return Ok(());
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let Some(unknown) = named.iter().find(|name| !PARTS.iter().any(|(part, _)| part == name)) {
        let parts: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
        return Err(format!("there is no part {unknown:?}, but {}", parts.join(", ")).into());
    }
    let mut table = Table::new()?;
    for (part, measure) in PARTS {
        if named.is_empty() || named.iter().any(|name| name == part) {
            measure(&mut table)?;
        }
    }
    Ok(())
}

/// One client on one pipe, without a store.
fn measure(table: &mut Table) -> Outcome<()> {
    table.row("handshake after spawn, median", milliseconds(handshake(Client::open)?), "10 ms", "454 ms")?;
    let (p50, p99) = ping()?;
    table.row("ping, p50", microseconds(p50), "40 µs", "63 µs")?;
    table.row("ping, p99", microseconds(p99), "", "")?;
    table.row(
        "pipelined pings a second",
        per_second(PIPELINED_PINGS, pipelined_pings()?),
        "300,000",
        "71,000",
    )?;
    for parts in [1, 1_000, 10_000] {
        let Streamed { frames, deltas, time } = stream(&mut Client::open()?, parts)?;
        let measure = format!("deltas a second, parts in the turn: {}", thousands(parts));
        table.row(&measure, per_second(deltas, time), "500,000", if parts == 1 { "12,800" } else { "" })?;
        table.row("  in so many frames a second", per_second(frames, time), "", "")?;
    }
    table.row("replay of 10,000 actions", milliseconds(replay()?), "20 ms", "(1,000 at most)")?;
    let idle = Client::open()?.memory();
    table.row("memory, idle", megabytes(idle), "8 MB", "150 MB")?;
    table.row(
        "memory, 200 sessions of one turn each",
        megabytes(sessions(SESSIONS)?.memory()),
        "30 MB",
        "580 MB",
    )?;
    Ok(())
}

/// The median time from spawning to an answered handshake.
fn handshake(mut open: impl FnMut() -> Outcome<Client>) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..SPAWNS {
        let start = Instant::now();
        let client = open()?;
        times.push(start.elapsed());
        drop(client);
    }
    Ok(median(times))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The times that half and all but one in a hundred pings stay within.
fn ping() -> Outcome<(Duration, Duration)> {
    let mut client = Client::open()?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let start = Instant::now();
        client.say(client::PING)?;
        client.line()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok((times[PINGS / 2], times[PINGS * 99 / 100]))
}

/// The time from the first byte of many pings to the last byte of their answers.
fn pipelined_pings() -> Outcome<Duration> {
    let mut client = Client::open()?;
    let pings = client::PING.repeat(PIPELINED_PINGS);
    let start = Instant::now();
    client.send_in_background(pings);
    let mut answered = 0;
    while answered < PIPELINED_PINGS {
        answered += memchr::memchr_iter(b'\n', client.chunk()?).count();
        client.forget_chunk();
    }
    Ok(start.elapsed())
}

struct Streamed {
    /// Frames that carried deltas; fewer than deltas when the pipe was behind and some were merged.
    frames: usize,
    /// Deltas by the bytes of text that came.
    deltas: usize,
    time: Duration,
}

/// Streams into the last of so many parts. Timed from that part's frame to the last delta's.
fn stream(client: &mut Client, parts: usize) -> Outcome<Streamed> {
    client.create("s")?;
    client.subscribe(CHAT)?;
    let mut script = "/say x\\n".repeat(parts - 1);
    script.push_str(&format!("/stream {DELTAS} {DELTA_BYTES}"));
    client.start_turn(CHAT, &script)?;
    let opened = format!("\"id\":\"part-{}\"", parts - 1);
    client.line_with(opened.as_bytes())?;
    let start = Instant::now();
    let (mut lines, mut frames, mut bytes) = (DeltaLines::default(), 0, 0);
    while bytes < DELTAS * DELTA_BYTES {
        if let Some(text) = lines.text(client.line()?) {
            frames += 1;
            bytes += text;
        }
    }
    Ok(Streamed { frames, deltas: bytes / DELTA_BYTES, time: start.elapsed() })
}

/// The time from asking for many missed actions to the last byte of them.
fn replay() -> Outcome<Duration> {
    let mut client = Client::open()?;
    client.create("s")?;
    client.subscribe(CHAT)?;
    client.start_turn(CHAT, &format!("/stream {} {DELTA_BYTES}", 2 * MISSED))?;
    client.line_with(b"chat/turnComplete")?;
    let head = client.head(CHAT)?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let cursor = head - MISSED;
        let start = Instant::now();
        client.say(
            format!(
                r#"{{"jsonrpc":"2.0","id":9,"method":"reconnect","params":{{"channel":"ahp-root://","clientId":"bench","lastSeenServerSeq":{cursor},"subscriptions":["ahp-root://","ahp-session:/s","{CHAT}"]}}}}
"#
            )
            .as_bytes(),
        )?;
        let answer = client.line()?;
        times.push(start.elapsed());
        let actions = memchr::memmem::find_iter(answer, b"\"serverSeq\":").count();
        if actions as u64 != MISSED {
            return Err(format!("{actions} actions were replayed: {}", excerpt(answer)).into());
        }
        // What the summary of the session is now comes behind the answer.
        client.line_with(b"root/sessionSummaryChanged")?;
    }
    Ok(median(times))
}

/// A program with many sessions, each of which has had a turn.
fn sessions(count: usize) -> Outcome<Client> {
    let mut client = Client::open()?;
    for number in 0..count {
        let name = format!("session-{number}");
        let chat = client.create(&name)?;
        client.subscribe(&chat)?;
        client.start_turn(
            &chat,
            "/think let me see\\nHere is an answer of a few words\\n/tool shell {\\\"command\\\":\\\"ls\\\"}",
        )?;
        client.line_with(b"chat/turnComplete")?;
    }
    Ok(client)
}

/// A table that is printed row by row.
struct Table {
    out: std::io::Stdout,
}

impl Table {
    fn new() -> Outcome<Self> {
        let mut table = Self { out: std::io::stdout() };
        table.row("measure", "this run".to_owned(), "aim", "reference host")?;
        Ok(table)
    }

    fn row(&mut self, measure: &str, run: String, aim: &str, reference: &str) -> Outcome<()> {
        writeln!(self.out, "{measure:<44} {run:>26} {aim:>10} {reference:>17}")?;
        Ok(())
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn microseconds(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

fn megabytes(memory: Outcome<Memory>) -> String {
    // Only Linux tells.
    let Ok(memory) = memory else { return "unknown here".to_owned() };
    let megabytes = |kilobytes: u64| kilobytes as f64 * 1024.0 / 1e6;
    format!("{:.1} MB (Pss {:.1} MB)", megabytes(memory.resident_kb), megabytes(memory.proportional_kb))
}

fn per_second(count: usize, time: Duration) -> String {
    thousands((count as f64 / time.as_secs_f64()) as usize)
}

/// A number with a comma between each three digits.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn excerpt(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned()
}
