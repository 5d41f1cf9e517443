//! What a chat costs in which much was said, beside one in which little was: what is done with it must not take longer
//! because of what nobody looks at.
//!
//! Owns: the chats, made through the program itself.
//! Never: measures what memory holds from before; the program is started anew for each.

use std::path::Path;
use std::time::{Duration, Instant};

use super::client::{Client, Memory};
use super::stored::folder;
use super::{excerpt, median, megabytes, milliseconds, Outcome, Table};

/// The chats: how many turns, of how many deltas, of how many bytes.
const CHATS: [(&str, usize, usize, usize); 4] = [
    ("1 MB in 100 turns", 100, 10, 1_000),
    ("100 MB in 100 turns", 100, 1_000, 1_000),
    ("1 GB in 100 turns", 100, 10_000, 1_000),
    ("1 MB in 10,000 turns", 10_000, 1, 100),
];
/// How often each thing is done.
const TIMES: usize = 5;

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    for (name, turns, deltas, bytes) in CHATS {
        let folder = folder()?;
        let chat = fill(folder.path(), turns, &format!("/stream {deltas} {bytes}"))?;
        let mut costs = Costs::default();
        for number in 0..TIMES {
            costs.measure(folder.path(), &chat, number)?;
        }
        let Costs { opened, fetched, drafted, said, forked, memory } = costs;
        table.row(&format!("a chat of {name}: its newest turn"), milliseconds(median(opened)), "", "")?;
        table.row("  the 20 turns before that", milliseconds(median(fetched)), "", "")?;
        table.row("  a draft", milliseconds(median(drafted)), "", "")?;
        table.row("  a small turn", milliseconds(median(said)), "", "")?;
        table.row("  a fork", milliseconds(median(forked)), "", "")?;
        table.row("  memory then", megabytes(memory.ok_or_else(|| "nothing was done".into())), "", "")?;
    }
    Ok(())
}

#[derive(Default)]
struct Costs {
    opened: Vec<Duration>,
    fetched: Vec<Duration>,
    drafted: Vec<Duration>,
    said: Vec<Duration>,
    forked: Vec<Duration>,
    memory: Option<Memory>,
}

impl Costs {
    fn measure(&mut self, folder: &Path, chat: &str, number: usize) -> Outcome<()> {
        let mut client = Client::open_in(folder)?;
        let view = r#","view":{"turns":20}"#;
        self.opened.push(timed(&mut client, &request("subscribe", chat, r#","view":{"turns":1}"#))?);
        client.say(request("subscribe", chat, view).as_bytes())?;
        client.line_with(b"\"id\":5")?;
        self.fetched.push(timed(&mut client, &request("fetchTurns", chat, ""))?);
        let draft = r#"{"type":"chat/draftChanged","draft":{"text":"a","origin":{"kind":"user"}}}"#;
        self.drafted.push(until(&mut client, &dispatch(chat, draft), b"chat/draftChanged")?);
        let id = format!("measured-{number}");
        self.said.push(until(&mut client, &turn(chat, &id, "/say a"), b"chat/turnComplete")?);
        let fork = format!(
            r#","chat":"ahp-chat:/fork-{number}","source":{{"kind":"fork","chat":"{chat}","turnId":"{id}"}}"#
        );
        self.forked.push(timed(&mut client, &request("createChat", "ahp-session:/s", &fork))?);
        self.memory = Some(client.memory()?);
        Ok(())
    }
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

/// How long it takes until this request is answered.
fn timed(client: &mut Client, request: &str) -> Outcome<Duration> {
    until(client, request, b"\"id\":5")
}

/// How long it takes until a line with this comes back.
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
