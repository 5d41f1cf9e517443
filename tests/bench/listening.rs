//! Cost of a host with many clients: deliveries over WebSockets, memory per connection, and the
//! latency of one client while another one requests large states.
//!
//! Owns: clients over WebSockets that cost little, and the host that they connect to, also for
//! other parts.
//! Never: unmasks or checks anything: what comes is taken for what a server says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::client::{self, chat_of, create, turn, DeltaLines, Memory, CHAT, PING};
use super::stored::folder;
use super::{milliseconds, per_second, Outcome, Table, DELTA_BYTES};

/// Number of deltas delivered in each measurement, over all clients; at most the size of a turn for
/// a single client.
const DELIVERIES: usize = 3_000_000;
/// Number of idle connections.
const IDLE: u64 = 200;
/// Repetitions of replays of the whole window, subscriptions to a large chat, and session lists.
const ASKED: usize = 3;
/// The size of what is streamed to make a chat large, in bytes: a turn holds less than that.
const PIECE: usize = 500_000;
const PIECES: usize = 100;
/// Number of listed sessions.
const LISTED: usize = 10_000;

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    for clients in [1, 10, 50] {
        let delivered = deliver(clients)?;
        let measure = format!("deliveries a second, WebSocket clients: {clients}");
        let (aim, reference) = if clients == 50 { ("1,000,000", "70,000") } else { ("", "") };
        table.row(&measure, per_second(DELIVERIES, delivered), aim, reference)?;
    }
    let memory = idle().map(|bytes| format!("{:.0} kB", bytes as f64 / 1e3));
    table.row("memory of an idle WebSocket", memory.unwrap_or("unknown here".to_owned()), "100 kB", "")?;
    table.row("ping p99 while another one", String::new(), "", "")?;
    table.row("  comes back over 32 MiB", milliseconds(during(Busy::Replay)?), "2 ms", "")?;
    table.row("  opens a chat of 100 MB", milliseconds(during(Busy::Open)?), "2 ms", "")?;
    table.row("  lists 10,000 sessions", milliseconds(during(Busy::List)?), "2 ms", "")
}

/// The time from the first delta to the last one that each of so many clients is told.
fn deliver(clients: usize) -> Outcome<Duration> {
    let host = Host::start(&["--ephemeral"])?;
    let mut first = host.connect("first")?;
    first.say(create("s").as_bytes())?;
    let mut all = vec![first];
    for number in 1..clients {
        all.push(host.connect(&number.to_string())?);
    }
    for client in &mut all {
        client.ask(&subscribe(CHAT))?;
    }
    let deltas = DELIVERIES / clients;
    let script = format!("/stream {deltas} {DELTA_BYTES}");
    let begun = Arc::new(Barrier::new(clients + 1));
    all[0].say(turn(CHAT, &script).as_bytes())?;
    let reading: Vec<_> = all
        .into_iter()
        .map(|mut client| {
            let begun = Arc::clone(&begun);
            thread::spawn(move || -> Result<(), String> {
                let (mut lines, mut bytes) = (DeltaLines::default(), 0);
                begun.wait();
                while bytes < deltas * DELTA_BYTES {
                    bytes += lines.text(client.message().map_err(|error| error.to_string())?).unwrap_or(0);
                }
                Ok(())
            })
        })
        .collect();
    begun.wait();
    let start = Instant::now();
    for client in reading {
        client.join().map_err(|_| "a client has failed")??;
    }
    Ok(start.elapsed())
}

/// Measures the memory of an idle connection, in bytes.
fn idle() -> Outcome<u64> {
    let host = Host::start(&["--ephemeral"])?;
    let mut some = vec![host.connect("0")?];
    let before = host.memory()?.proportional_kb;
    for number in 1..=IDLE {
        some.push(host.connect(&number.to_string())?);
    }
    Ok(host.memory()?.proportional_kb.saturating_sub(before) * 1024 / IDLE)
}

/// Kind of requests of the busy client.
#[derive(Clone, Copy)]
enum Busy {
    Replay,
    Open,
    List,
}

/// The time that all but one in a hundred pings of a client stay within while another one asks for
/// much.
fn during(busy: Busy) -> Outcome<Duration> {
    let folder = folder()?;
    let mut host = Host::on(folder.path())?;
    let mut maker = host.connect("maker")?;
    match busy {
        Busy::Replay => {
            maker.ask(&create("s"))?;
            maker.ask(&subscribe(CHAT))?;
            maker.stream("t", 400, 80_000)?;
        }
        Busy::Open => {
            maker.ask(&create("s"))?;
            maker.ask(&subscribe(CHAT))?;
            for name in ["t1", "t2"] {
                maker.stream(name, PIECES, PIECE)?;
            }
        }
        Busy::List => {
            let names: Vec<String> = (0..LISTED).map(|number| format!("session-{number}")).collect();
            for names in names.chunks(100) {
                for name in names {
                    maker.say(create(name).as_bytes())?;
                }
                for name in names {
                    maker.until(format!("\"resource\":\"ahp-session:/{name}\"").as_bytes())?;
                }
            }
        }
    }
    drop(maker);
    let mut times = Vec::new();
    for _ in 0..ASKED {
        // What is opened is not in memory then.
        drop(host);
        host = Host::on(folder.path())?;
        let (mut pings, mut asks) = (host.connect("pings")?, host.connect("maker")?);
        let request = match busy {
            Busy::Replay => format!(
                r#"{{"jsonrpc":"2.0","id":9,"method":"reconnect","params":{{"channel":"ahp-root://","clientId":"maker","lastSeenServerSeq":10,"subscriptions":["{CHAT}"]}}}}"#
            ),
            Busy::Open => subscribe(CHAT),
            Busy::List => {
                r#"{"jsonrpc":"2.0","id":9,"method":"listSessions","params":{"channel":"ahp-root://"}}"#
                    .to_owned()
            }
        };
        let asking = thread::spawn(move || asks.ask(&request).map_err(|error| error.to_string()));
        let mut is_last = false;
        while !is_last {
            is_last = asking.is_finished();
            let start = Instant::now();
            pings.ask(std::str::from_utf8(PING)?)?;
            times.push(start.elapsed());
        }
        asking.join().map_err(|_| "a client has failed")??;
    }
    times.sort();
    Ok(times[(times.len() * 99 / 100).min(times.len() - 1)])
}

/// The request that subscribes to a channel.
pub fn subscribe(channel: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":3,"method":"subscribe","params":{{"channel":"{channel}"}}}}"#)
}

/// A host that listens, and nothing else.
pub struct Host {
    child: Child,
    place: String,
}

impl Host {
    /// With these arguments.
    pub fn start(arguments: &[&str]) -> Outcome<Self> {
        Self::start_as(client::program(), arguments)
    }

    /// Starts it as `command` does, with these arguments.
    pub fn start_as(mut command: Command, arguments: &[&str]) -> Outcome<Self> {
        command.args(["serve", "--config", "/dev/null", "--no-token", "--listen", "ws://127.0.0.1:0"]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // In its terminals, the plainest of all.
        command.env("SHELL", "/bin/sh");
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stderr.take().ok_or("no stderr")?).read_line(&mut line)?;
        let place = line.trim().strip_prefix("listening on ws://").ok_or(line.clone())?;
        let place = place.trim_end_matches('/').to_owned();
        Ok(Self { child, place })
    }

    fn on(folder: &Path) -> Outcome<Self> {
        Self::start(&["--state-dir", folder.to_str().ok_or("no such path")?])
    }

    /// Another client, of this name.
    pub fn connect(&self, name: &str) -> Outcome<Socket> {
        let mut stream = TcpStream::connect(&self.place)?;
        stream.set_nodelay(true)?;
        let place = &self.place;
        write!(
            stream,
            "GET / HTTP/1.1\r\nHost: {place}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            answer.push(byte[0]);
        }
        let mut socket = Socket { stream, buffer: vec![0; 64 << 10], unread: 0..0 };
        socket.ask(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"channel":"ahp-root://","clientId":"{name}","protocolVersions":["1.0.0"],"initialSubscriptions":["ahp-root://"]}}}}"#
        ))?;
        Ok(socket)
    }

    /// Returns the memory use of the host.
    pub fn memory(&self) -> Outcome<Memory> {
        client::memory_of(self.process())
    }

    /// Asks it to leave, and waits until it has.
    pub fn stop(mut self) -> Outcome<()> {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns the process id of the host.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A client over a WebSocket that is shaken hands with.
pub struct Socket {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes read and not consumed yet.
    unread: Range<usize>,
}

impl Socket {
    /// Says a message. The mask leaves it as it is.
    pub fn say(&mut self, message: &[u8]) -> Outcome<()> {
        let message = message.trim_ascii_end();
        let mut frame = vec![0x81];
        match message.len() {
            short @ ..126 => frame.push(0x80 | u8::try_from(short)?),
            long => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&u16::try_from(long)?.to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(message);
        self.stream.write_all(&frame)?;
        Ok(())
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &str) -> Outcome<()> {
        let id = request.split(",\"method\"").next().and_then(|head| head.rsplit(',').next());
        let id = id.ok_or("a request has an id")?.to_owned();
        self.say(request.as_bytes())?;
        self.until(id.as_bytes())
    }

    /// Waits for a message that has this in its beginning.
    pub fn until(&mut self, wanted: &[u8]) -> Outcome<()> {
        loop {
            let message = self.message()?;
            let head = &message[..message.len().min(2_000)];
            if memchr::memmem::find(head, b"\"error\":").is_some() {
                return Err(super::excerpt(head).into());
            }
            if memchr::memmem::find(head, wanted).is_some() {
                return Ok(());
            }
        }
    }

    /// Has a turn stream so many pieces of this size, and waits for its end.
    fn stream(&mut self, name: &str, pieces: usize, bytes: usize) -> Outcome<()> {
        let script = format!("/stream {pieces} {bytes}");
        self.say(turn(&chat_of("s"), &script).replace("turn-1", name).as_bytes())?;
        loop {
            let message = self.message()?;
            if memchr::memmem::find(&message[..message.len().min(500)], b"chat/turnComplete").is_some() {
                return Ok(());
            }
        }
    }

    /// The next message.
    pub fn message(&mut self) -> Outcome<&[u8]> {
        let header = self.has(2)?;
        let (skip, length) = match self.buffer[header.start + 1] {
            short @ ..126 => (2, usize::from(short)),
            126 => {
                let at = self.has(4)?.start;
                (4, usize::from(u16::from_be_bytes([self.buffer[at + 2], self.buffer[at + 3]])))
            }
            _ => {
                let at = self.has(10)?.start;
                let bytes = self.buffer[at + 2..at + 10].try_into()?;
                (10, usize::try_from(u64::from_be_bytes(bytes))?)
            }
        };
        let frame = self.has(skip + length)?;
        self.unread.start = frame.end;
        Ok(&self.buffer[frame.start + skip..frame.end])
    }

    /// Reads until this number of bytes is buffered and returns their range.
    fn has(&mut self, wanted: usize) -> Outcome<Range<usize>> {
        while self.unread.len() < wanted {
            if self.unread.start > 0 {
                self.buffer.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            if self.unread.end == self.buffer.len() {
                self.buffer.resize(2 * self.buffer.len(), 0);
            }
            match self.stream.read(&mut self.buffer[self.unread.end..])? {
                0 => return Err("the host has hung up".into()),
                read => self.unread.end += read,
            }
        }
        Ok(self.unread.start..self.unread.start + wanted)
    }
}
