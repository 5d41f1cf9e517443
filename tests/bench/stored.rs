//! Cost of a store: starts with many sessions, committed deltas, and recovery after a kill.
//!
//! Owns: the folders, filled through the program itself.
//! Never: measures a folder in memory; they lie beside the build.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tempfile::TempDir;

use super::client::{self, Client, DeltaLines, CHAT};
use super::{
    excerpt, handshake, median, milliseconds, per_second, stream, thousands, Outcome, Streamed, Table,
    DELTAS, DELTA_BYTES,
};

/// Numbers of stored sessions for which the start is measured.
const STORED: [usize; 3] = [0, 1_000, 10_000];
/// Number of sessions created concurrently.
const FILLED_AT_ONCE: usize = 50;
/// Number of sessions on a page of the list.
const PAGE: usize = 50;
/// Number of requests of the page.
const LISTS: usize = 100;
/// Repetitions of streaming deltas alternately with and without a store.
const RACES: usize = 3;
/// Number of streamed deltas, and interval of the pings meanwhile.
const STREAMED: usize = 3_000_000;
const PING_EVERY: Duration = Duration::from_millis(10);
/// Number of deltas in the turn that a kill interrupts, and repetitions.
const INTERRUPTED_DELTAS: usize = 100_000;
const KILLS: usize = 5;

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    for count in STORED {
        let folder = folder()?;
        fill(folder.path(), count)?;
        let time = handshake(|| Client::open_in(folder.path()))?;
        let measure = format!("handshake, stored sessions: {}", thousands(count));
        table.row(&measure, milliseconds(time), "as with 0", "")?;
        if count == STORED[STORED.len() - 1] {
            let time = first_page(&mut Client::open_in(folder.path())?)?;
            let measure = format!("  listSessions, the first {PAGE}");
            table.row(&measure, milliseconds(time), "", "")?;
        }
    }
    let Raced { ephemeral, stored, bytes } = race()?;
    table.row("deltas a second, --ephemeral", per_second(DELTAS, ephemeral), "", "")?;
    table.row("deltas a second, --state-dir", per_second(DELTAS, stored), "", "")?;
    let share = ephemeral.as_secs_f64() / stored.as_secs_f64() * 100.0;
    table.row("  of --ephemeral", format!("{share:.0} %"), "70 %", "")?;
    let folder = folder()?;
    for (place, mut client) in
        [("--ephemeral", Client::open()?), ("--state-dir", Client::open_in(folder.path())?)]
    {
        let (p50, p99, count) = pings_during_stream(&mut client)?;
        let measure = format!("ping while deltas stream, {place}, p50");
        table.row(&measure, format!("{} of {count}", milliseconds(p50)), "", "")?;
        table.row("  p99", milliseconds(p99), "5 ms", "")?;
    }
    let per_million = bytes as f64 / DELTAS as f64;
    let text = format!("{per_million:.1} MB ({DELTA_BYTES} MB of text)");
    table.row("on disk after a million deltas", text, "", "")?;
    let measure = format!("handshake after a kill at {} deltas", thousands(INTERRUPTED_DELTAS));
    table.row(&measure, milliseconds(recovery()?), "", "")?;
    Ok(())
}

/// A folder beside the build.
pub fn folder() -> Outcome<TempDir> {
    Ok(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?)
}

/// Stores so many sessions of one turn each, a few at a time.
fn fill(folder: &Path, count: usize) -> Outcome<()> {
    let mut client = Client::open_in(folder)?;
    let names: Vec<String> = (0..count).map(|number| format!("session-{number}")).collect();
    for names in names.chunks(FILLED_AT_ONCE) {
        let (mut lines, mut chats) = (String::new(), Vec::new());
        for name in names {
            let chat = client::chat_of(name);
            lines.push_str(&client::create(name));
            lines.push_str(&about("subscribe", &chat, ""));
            lines.push_str(&client::turn(&chat, "Here is an answer of a few words"));
            chats.push(chat);
        }
        client.say(lines.as_bytes())?;
        for _ in names {
            client.line_with(b"chat/turnComplete")?;
        }
        let lines: String = chats.iter().map(|chat| about("unsubscribe", chat, "")).collect();
        client.say(lines.as_bytes())?;
    }
    drop(client);
    let kept: i64 = open(folder)?.query_row("SELECT count(*) FROM turns", [], |row| row.get(0))?;
    if usize::try_from(kept)? != count {
        return Err(format!("{kept} of {count} turns were stored").into());
    }
    Ok(())
}

/// The line of a request about a channel.
fn about(method: &str, channel: &str, more: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":5,"method":"{method}","params":{{"channel":"{channel}"{more}}}}}
"#
    )
}

/// The median time that the first page of the list takes.
fn first_page(client: &mut Client) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let line = about("listSessions", "ahp-root://", &format!(r#","limit":{PAGE}"#));
        let start = Instant::now();
        client.say(line.as_bytes())?;
        let answer = client.line()?;
        times.push(start.elapsed());
        if memchr::memmem::find_iter(answer, b"\"createdAt\":").count() != PAGE {
            return Err(format!("that is no page: {}", excerpt(answer)).into());
        }
    }
    Ok(median(times))
}

struct Raced {
    ephemeral: Duration,
    stored: Duration,
    /// Bytes of the folder after one turn and a checkpoint.
    bytes: u64,
}

/// Streams a turn alternately with and without a store, so that other load on the machine affects
/// both.
fn race() -> Outcome<Raced> {
    let (mut ephemeral, mut stored, mut bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..RACES {
        let Streamed { time, .. } = stream(&mut Client::open()?, 1)?;
        ephemeral.push(time);
        let folder = folder()?;
        let mut client = Client::open_in(folder.path())?;
        let Streamed { time, .. } = stream(&mut client, 1)?;
        stored.push(time);
        client.line_with(b"chat/turnComplete")?;
        drop(client);
        bytes = size(folder.path())?;
    }
    Ok(Raced { ephemeral: median(ephemeral), stored: median(stored), bytes })
}

/// The times that half and all but one in a hundred pings stay within while deltas stream as fast
/// as they can and are read as fast, and how many pings there were.
fn pings_during_stream(client: &mut Client) -> Outcome<(Duration, Duration, usize)> {
    client.create("s")?;
    client.subscribe(CHAT)?;
    client.start_turn(CHAT, &format!("/stream {STREAMED} {DELTA_BYTES}"))?;
    client.line_with(b"chat/responsePart")?;
    let pong = memchr::memmem::Finder::new(b"\"id\":7");
    let (mut times, mut asked, mut pause) = (Vec::new(), None, Instant::now());
    loop {
        if asked.is_none() && pause.elapsed() > PING_EVERY {
            client.say(client::PING)?;
            asked = Some(Instant::now());
        }
        let line = client.line()?;
        if memchr::memmem::find(line, b"\"chat/turnComplete\"").is_some() {
            break;
        }
        if memchr::memmem::find(line, b"\"chat/error\"").is_some() {
            return Err(format!("the turn failed: {}", excerpt(line)).into());
        }
        // An answer is short; text need not be searched.
        if line.len() < 100 && pong.find(line).is_some() {
            times.extend(asked.take().map(|asked: Instant| asked.elapsed()));
            pause = Instant::now();
        }
    }
    times.sort();
    if times.is_empty() {
        return Err("no ping was answered".into());
    }
    Ok((times[times.len() / 2], times[times.len() * 99 / 100], times.len()))
}

/// Returns the bytes of a folder after a checkpoint.
fn size(folder: &Path) -> Outcome<u64> {
    let connection = open(folder)?;
    let truncate = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, u32>(0))?;
    if truncate != 0 {
        return Err("somebody else is at the database".into());
    }
    drop(connection);
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// The median time from spawning to an answered handshake when a kill has interrupted a long turn.
fn recovery() -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..KILLS {
        let folder = folder()?;
        let mut client = Client::open_in(folder.path())?;
        client.create("s")?;
        client.subscribe(CHAT)?;
        client.start_turn(CHAT, &format!("/stream {INTERRUPTED_DELTAS} {DELTA_BYTES}\\n/hang"))?;
        let (mut lines, mut bytes) = (DeltaLines::default(), 0);
        while bytes < INTERRUPTED_DELTAS * DELTA_BYTES {
            bytes += lines.text(client.line()?).unwrap_or(0);
        }
        drop(client);
        let start = Instant::now();
        let mut client = Client::open_in(folder.path())?;
        times.push(start.elapsed());
        // It was a recovery.
        client.say(about("subscribe", CHAT, "").as_bytes())?;
        let chat = client.line()?;
        if memchr::memmem::find(chat, b"\"interrupted\"").is_none() {
            return Err(format!("no turn was interrupted: {}", excerpt(chat)).into());
        }
    }
    Ok(median(times))
}

fn open(folder: &Path) -> Outcome<Connection> {
    Ok(Connection::open(folder.join("sessions.sqlite"))?)
}
