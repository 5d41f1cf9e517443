//! Cost of the bridge to ACP agents: one agent, read alternately directly, through a program that
//! only relays (see `relay`), and through ours.
//!
//! Owns: that agent, which is this program in another mode and writes as fast as its pipe takes it.
//! Never: lets the agent make anything up while it is measured, or parses what is not looked at.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{json, Value};

use super::client::{Client, DeltaLines, CHAT};
use super::relay::RELAY;
use super::{excerpt, median, microseconds, per_second, Outcome, Table};

/// First argument that makes this program the agent.
pub const AGENT: &str = "be-an-agent";

/// Number of chunks sent at full speed, bytes of text in each, and repetitions.
const CHUNKS: usize = 500_000;
const CHUNK_BYTES: usize = 20;
const RACES: usize = 5;

/// Number of chunks per write.
const CHUNKS_AT_ONCE: usize = 1_000;

/// Number of chunks sent one by one, and the pause between them.
const DRIPS: usize = 1_000;
const DRIP_EVERY: Duration = Duration::from_millis(1);

const SESSION: &str = "bench-session";

/// Adds the rows.
pub fn measure(table: &mut Table) -> Outcome<()> {
    let (mut direct, mut bridged) = (Vec::new(), Vec::new());
    let (mut direct_drips, mut bridged_drips, mut stored_drips) = (Vec::new(), Vec::new(), Vec::new());
    let (mut relayed_drips, mut kept_drips) = (Vec::new(), Vec::new());
    for _ in 0..RACES {
        direct.push(blast_directly()?);
        bridged.push(blast_through_the_bridge()?);
        direct_drips.push(drip_directly(&[AGENT])?);
        relayed_drips.push(drip_directly(&[RELAY])?);
        bridged_drips.push(drip_through_the_bridge(None)?);
        let folder = super::stored::folder()?;
        stored_drips.push(drip_through_the_bridge(Some(folder.path()))?);
        let folder = super::stored::folder()?;
        kept_drips.push(drip_directly(&[RELAY, &folder.path().to_string_lossy()])?);
    }
    let (direct, bridged) = (median(direct), median(bridged));
    table.row("chunks a second, from an ACP agent's pipe", per_second(CHUNKS, direct), "", "")?;
    table.row("chunks a second, through the bridge", per_second(CHUNKS, bridged), "200,000", "")?;
    let added = bridged.saturating_sub(direct) / u32::try_from(CHUNKS)?;
    table.row("  which adds to each", microseconds(added), "", "")?;
    let direct = median(direct_drips);
    table.row("a chunk alone, from the agent's pipe", microseconds(direct), "", "")?;
    for (way, times, aim) in [
        ("a relay that does nothing else", relayed_drips, ""),
        ("the bridge, --ephemeral", bridged_drips, "25 µs"),
        ("a relay that keeps it in SQLite", kept_drips, ""),
        ("the bridge, --state-dir", stored_drips, "60 µs"),
    ] {
        let time = median(times);
        table.row(&format!("a chunk alone, through {way}"), microseconds(time), "", "")?;
        table.row("  which adds", microseconds(time.saturating_sub(direct)), aim, "")?;
    }
    Ok(())
}

/// The time from the first chunk to the last, as the agent's parent reads them.
fn blast_directly() -> Outcome<Duration> {
    let mut agent = Direct::start("blast", &[AGENT])?;
    let (mut buffer, mut lines, mut start) = (vec![0; 256 << 10], 0, None);
    // The answer is the last line.
    while lines < CHUNKS + 1 {
        match agent.stdout.read(&mut buffer)? {
            0 => return Err("the agent has ended".into()),
            count => {
                start.get_or_insert_with(Instant::now);
                lines += memchr::memchr_iter(b'\n', &buffer[..count]).count();
            }
        }
    }
    Ok(start.map(|start| start.elapsed()).unwrap_or_default())
}

/// The time from the first chunk to the last, as a client of the program reads them.
fn blast_through_the_bridge() -> Outcome<Duration> {
    let mut client = bridge("blast", None)?;
    client.line_with(b"\"chat/responsePart\"")?;
    let start = Instant::now();
    let (mut lines, mut bytes) = (DeltaLines::default(), CHUNK_BYTES);
    while bytes < CHUNKS * CHUNK_BYTES {
        bytes += lines.text(client.line()?).unwrap_or(0);
    }
    let time = start.elapsed();
    client.line_with(b"\"chat/turnComplete\"")?;
    Ok(time)
}

/// Measures the median latency of a single chunk, as read by the parent of the agent or of a relay.
fn drip_directly(arguments: &[&str]) -> Outcome<Duration> {
    let mut agent = Direct::start("drip", arguments)?;
    let (mut times, mut line) = (Vec::new(), Vec::new());
    let mut stdout = BufReader::new(&mut agent.stdout);
    while times.len() < DRIPS {
        line.clear();
        stdout.read_until(b'\n', &mut line)?;
        times.push(age(&line, b"\"text\":\"")?);
    }
    Ok(median(times))
}

/// Measures the median latency of a single chunk, as read by a client of the program, which stores
/// it in `folder`, if given.
fn drip_through_the_bridge(folder: Option<&Path>) -> Outcome<Duration> {
    let mut client = bridge("drip", folder)?;
    client.line_with(b"\"chat/responsePart\"")?;
    let mut times = Vec::new();
    while times.len() < DRIPS - 1 {
        let line = client.line()?;
        if memchr::memmem::find(line, b"\"chat/delta\"").is_some() {
            times.push(age(line, b"\"content\":\"")?);
        }
    }
    Ok(median(times))
}

/// Returns the age of the timestamp that follows `before` in a line.
fn age(line: &[u8], before: &[u8]) -> Outcome<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let at = memchr::memmem::find(line, before).ok_or_else(|| excerpt(line))? + before.len();
    let digits: String = line[at..].iter().map(|&b| b as char).take_while(char::is_ascii_digit).collect();
    Ok(now.saturating_sub(Duration::from_nanos(digits.parse()?)))
}

/// A client of the program that has told the agent behind it what to do.
fn bridge(what: &str, folder: Option<&Path>) -> Outcome<Client> {
    let program = std::env::current_exe()?;
    let agent = format!("agent={} {AGENT}", shell_words::quote(&program.to_string_lossy()));
    let mut client = match folder {
        Some(folder) => Client::open_with(["--state-dir", &folder.to_string_lossy(), "--agent", &agent])?,
        None => Client::open_with(["--ephemeral", "--agent", &agent])?,
    };
    client.say(
        br#"{"jsonrpc":"2.0","id":2,"method":"createSession","params":{"channel":"ahp-session:/s","provider":"agent"}}
"#,
    )?;
    client.line_with(b"\"id\":2")?;
    client.subscribe(CHAT)?;
    client.start_turn(CHAT, what)?;
    Ok(client)
}

/// The agent, or a relay with one, as a child of ours, told what to do.
struct Direct {
    agent: Child,
    _stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Direct {
    fn start(what: &str, arguments: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut agent = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdin = agent.stdin.take().ok_or("no stdin")?;
        let stdout = agent.stdout.take().ok_or("no stdout")?;
        let prompt = json!({ "sessionId": SESSION, "prompt": [{ "type": "text", "text": what }] });
        writeln!(
            stdin,
            "{}",
            json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": prompt })
        )?;
        Ok(Self { agent, _stdin: stdin, stdout })
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.agent.kill().ok();
        self.agent.wait().ok();
    }
}

/// Is the agent, until the input ends.
pub fn be_an_agent() -> Outcome<()> {
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let result = match message["method"].as_str() {
            Some("initialize") => json!({ "protocolVersion": 1, "agentCapabilities": {} }),
            Some("session/new") => json!({ "sessionId": SESSION }),
            Some("session/prompt") => {
                match message["params"]["prompt"][0]["text"].as_str() {
                    Some("drip") => drip()?,
                    Some(count) if count.starts_with("count ") => blast(count[6..].parse()?)?,
                    _ => blast(CHUNKS)?,
                }
                json!({ "stopReason": "end_turn" })
            }
            _ => continue,
        };
        let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
        io::stdout().lock().write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

fn blast(count: usize) -> Outcome<()> {
    let chunks = chunk("twenty bytes of text").repeat(CHUNKS_AT_ONCE);
    for _ in 0..count / CHUNKS_AT_ONCE {
        io::stdout().lock().write_all(chunks.as_bytes())?;
    }
    Ok(())
}

fn drip() -> Outcome<()> {
    for _ in 0..DRIPS {
        thread::sleep(DRIP_EVERY);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        io::stdout().lock().write_all(chunk(&now.to_string()).as_bytes())?;
    }
    Ok(())
}

fn chunk(text: &str) -> String {
    let update =
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
    let params = json!({ "sessionId": SESSION, "update": update });
    format!("{}\n", json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
}
