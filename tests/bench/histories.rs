//! Cost of a chat with a long history compared with a short one: operations must not take longer
//! because of turns outside of the window, and other clients must not wait for them.
//!
//! Owns: the chats, made through the program itself.
//! Never: measures what memory holds from before; the program is started anew for each.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::client::{Client, Memory, PING};
use super::stored::folder;
use super::{excerpt, median, megabytes, milliseconds, Outcome, Table};

/// The chats: how many turns, of how many deltas, of how many bytes.
const CHATS: [(&str, usize, usize, usize); 8] = [
    ("2 kB in 20 turns", 20, 1, 100),
    ("2 MB in 20,000 turns", 20_000, 1, 100),
    ("1 MB in 100 turns", 100, 10, 1_000),
    ("100 MB in 10,000 turns", 10_000, 10, 1_000),
    ("1 GB in 100,000 turns", 100_000, 10, 1_000),
    ("100 MB in 100 turns", 100, 1_000, 1_000),
    ("1 GB in 100 turns", 100, 10_000, 1_000),
    ("10 MB in 100,000 turns", 100_000, 1, 100),
];
/// Repetitions of each measurement.
const TIMES: usize = 5;
/// Sessions that are looked at one after the other, and what is said in each.
const LOOKED_AT: usize = 64;
const SAID_IN_EACH: &str = "/stream 500 100000";
/// Interval of the pings of another client.
const PING_EVERY: Duration = Duration::from_millis(1);

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    for (name, turns, deltas, bytes) in CHATS {
        let folder = folder()?;
        let chat = fill(folder.path(), turns, &format!("/stream {deltas} {bytes}"))?;
        let mut costs = Costs::default();
        for number in 0..TIMES {
            costs.measure(folder.path(), &chat, number)?;
        }
        let Costs {
            started,
            opened,
            fetched,
            drafted,
            said,
            returned,
            forked,
            branched,
            truncated,
            killed,
            memory,
        } = costs;
        table.row(&format!("a chat of {name}: a start"), milliseconds(median(started)), "", "")?;
        table.row("  its newest turn", milliseconds(median(opened)), "", "")?;
        table.row("  a draft", milliseconds(median(drafted)), "", "")?;
        table.row("  a small turn", milliseconds(median(said)), "", "")?;
        table.row("  a reconnect that missed that", milliseconds(median(returned)), "", "")?;
        table.row("  a fork", milliseconds(median(forked)), "", "")?;
        table.row("  a side chat", milliseconds(median(branched)), "", "")?;
        table.row("  a truncation by one turn", milliseconds(median(truncated)), "", "")?;
        table.row("  a start behind a kill in a turn", milliseconds(median(killed)), "", "")?;
        table.row("  20 turns before the newest 20", milliseconds(median(fetched)), "", "")?;
        let memory = memory.ok_or_else(|| "nothing was done".into());
        table.row("  memory then", megabytes(memory), "158 MB", "")?;
        let Whole { time, memory, mut pings } = read_whole(folder.path(), &chat)?;
        table.row("  all of it, without a window", milliseconds(time), "", "")?;
        table.row("    memory meanwhile", megabytes(Ok(memory)), "158 MB", "")?;
        pings.sort();
        let p99 = pings.get(pings.len() * 99 / 100).copied().unwrap_or_default();
        let measure = format!("    ping meanwhile, p99 of {}", pings.len());
        table.row(&measure, milliseconds(p99), "2 ms", "")?;
    }
    let memory = subscribe_to_many();
    table.row(&format!("memory, {LOOKED_AT} sessions of 50 MB looked at"), megabytes(memory), "158 MB", "")
}

#[derive(Default)]
struct Costs {
    started: Vec<Duration>,
    opened: Vec<Duration>,
    fetched: Vec<Duration>,
    drafted: Vec<Duration>,
    said: Vec<Duration>,
    returned: Vec<Duration>,
    forked: Vec<Duration>,
    branched: Vec<Duration>,
    truncated: Vec<Duration>,
    killed: Vec<Duration>,
    memory: Option<Memory>,
}

impl Costs {
    fn measure(&mut self, folder: &Path, chat: &str, number: usize) -> Outcome<()> {
        let start = Instant::now();
        let mut client = Client::open_in(folder)?;
        self.started.push(start.elapsed());
        self.opened.push(timed(&mut client, &request("subscribe", chat, r#","view":{"turns":1}"#))?);
        let head = client.head("ahp-root://")?;
        let draft = r#"{"type":"chat/draftChanged","draft":{"text":"a","origin":{"kind":"user"}}}"#;
        self.drafted.push(until(&mut client, &dispatch(chat, draft), b"chat/draftChanged")?);
        let id = format!("measured-{number}");
        self.said.push(until(&mut client, &turn(chat, &id, "/say a"), b"chat/turnComplete")?);
        let missed = format!(
            r#","clientId":"bench","lastSeenServerSeq":{head},"subscriptions":["ahp-root://","{chat}"]"#
        );
        self.returned.push(timed(&mut client, &request("reconnect", "ahp-root://", &missed))?);
        for (kind, times) in [("fork", &mut self.forked), ("sideChat", &mut self.branched)] {
            let source = format!(
                r#","chat":"ahp-chat:/{kind}-{number}","source":{{"kind":"{kind}","chat":"{chat}","turnId":"{id}"}}"#
            );
            times.push(timed(&mut client, &request("createChat", "ahp-session:/s", &source))?);
        }
        until(&mut client, &turn(chat, &format!("{id}-last"), "/say a"), b"chat/turnComplete")?;
        let truncate = format!(r#"{{"type":"chat/truncated","turnId":"{id}"}}"#);
        self.truncated.push(until(&mut client, &dispatch(chat, &truncate), b"chat/truncated")?);
        // What is long comes last: memory that has just held 200 MB makes everything behind it
        // slower.
        let view = r#","view":{"turns":20}"#;
        client.say(request("subscribe", chat, view).as_bytes())?;
        client.line_with(b"\"id\":5")?;
        self.fetched.push(timed(&mut client, &request("fetchTurns", chat, ""))?);
        self.memory = Some(client.memory()?);
        until(&mut client, &turn(chat, &format!("{id}-killed"), "/say a\\n/hang"), b"chat/responsePart")?;
        drop(client);
        let start = Instant::now();
        drop(Client::open_in(folder)?);
        self.killed.push(start.elapsed());
        Ok(())
    }
}

/// Cost of receiving the whole state of a chat.
struct Whole {
    time: Duration,
    /// When half of it had come.
    memory: Memory,
    /// Latencies of the pings meanwhile.
    pings: Vec<Duration>,
}

fn read_whole(folder: &Path, chat: &str) -> Outcome<Whole> {
    let socket = folder.join("others");
    let listen = format!("unix:{}", socket.display());
    let mut client =
        Client::open_with(["--exclusive", "--state-dir", &folder.to_string_lossy(), "--listen", &listen])?;
    let others = Others::ask(socket)?;
    let start = Instant::now();
    client.say(request("subscribe", chat, "").as_bytes())?;
    let mut memory = None;
    let mut bytes = 0;
    // The answer is all that comes.
    loop {
        let chunk = client.chunk()?;
        let is_end = chunk.ends_with(b"\n");
        bytes += chunk.len();
        client.forget_chunk();
        if is_end {
            break;
        }
        if memory.is_none() && bytes > 500_000 {
            memory = Some(client.memory()?);
        }
    }
    let time = start.elapsed();
    let memory = memory.map_or_else(|| client.memory(), Ok)?;
    Ok(Whole { time, memory, pings: others.stop()? })
}

/// Another client, which asks whether the host is there as long as something else goes on.
struct Others {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Vec<Duration>>>,
}

impl Others {
    fn ask(socket: PathBuf) -> Outcome<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut lines = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"others","protocolVersions":["1.0.0"]}}
"#)?;
        lines.read_line(&mut line)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut times = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let start = Instant::now();
                stream.write_all(PING)?;
                line.clear();
                lines.read_line(&mut line)?;
                times.push(start.elapsed());
                thread::sleep(PING_EVERY);
            }
            Ok(times)
        });
        Ok(Self { is_over, thread })
    }

    fn stop(self) -> Outcome<Vec<Duration>> {
        self.is_over.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| "the other client has panicked")??)
    }
}

/// Measures the memory use after subscribing to many sessions, one after another.
fn subscribe_to_many() -> Outcome<Memory> {
    let folder = folder()?;
    let mut client = Client::open_in(folder.path())?;
    let mut chats = Vec::new();
    for number in 0..LOOKED_AT {
        let chat = client.create(&format!("session-{number}"))?;
        client.say(request("subscribe", &chat, r#","view":{"turns":1}"#).as_bytes())?;
        client.line_with(b"\"id\":5")?;
        client.say(turn(&chat, "large", SAID_IN_EACH).as_bytes())?;
        client.line_with(b"chat/turnComplete")?;
        client.say(request("unsubscribe", &chat, "").as_bytes())?;
        chats.push(chat);
    }
    drop(client);
    let mut client = Client::open_in(folder.path())?;
    for chat in chats {
        client.say(request("subscribe", &chat, "").as_bytes())?;
        client.line_with(b"\"id\":5")?;
        client.say(request("unsubscribe", &chat, "").as_bytes())?;
    }
    client.memory()
}

/// Makes a chat of so many turns.
fn fill(folder: &Path, turns: usize, script: &str) -> Outcome<String> {
    let mut client = Client::open_in(folder)?;
    let chat = client.create("s")?;
    client.say(request("subscribe", &chat, r#","view":{"turns":1}"#).as_bytes())?;
    client.line_with(b"\"id\":5")?;
    for number in 0..turns {
        client.say(turn(&chat, &format!("turn-{number}"), script).as_bytes())?;
        client.line_with(b"chat/turnComplete")?;
    }
    Ok(chat)
}

/// Measures the time until this request is answered.
fn timed(client: &mut Client, request: &str) -> Outcome<Duration> {
    until(client, request, b"\"id\":5")
}

/// Measures the time until a line with `wanted` arrives.
fn until(client: &mut Client, said: &str, wanted: &[u8]) -> Outcome<Duration> {
    let start = Instant::now();
    client.say(said.as_bytes())?;
    loop {
        let line = client.line()?;
        if memchr::memmem::find(line, b"\"rejectionReason\":").is_some()
            || memchr::memmem::find(&line[..line.len().min(60)], b"\"error\":").is_some()
        {
            return Err(format!("that was refused: {}", excerpt(line)).into());
        }
        if memchr::memmem::find(line, wanted).is_some() {
            return Ok(start.elapsed());
        }
    }
}

fn request(method: &str, channel: &str, more: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":5,"method":"{method}","params":{{"channel":"{channel}"{more}}}}}
"#
    )
}

fn dispatch(chat: &str, action: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"channel":"{chat}","clientSeq":1,"action":{action}}}}}
"#
    )
}

fn turn(chat: &str, id: &str, script: &str) -> String {
    let message = format!(r#"{{"text":"{script}","origin":{{"kind":"user"}}}}"#);
    dispatch(chat, &format!(r#"{{"type":"chat/turnStarted","turnId":"{id}","message":{message}}}"#))
}
