//! Clients of several versions over real sockets and pipes at once, each acting, and every mirror
//! holds: also when connections are lost, windows are killed, and the host is.
//!
//! Owns: a host that listens, two to five clients of it over WebSockets, sockets in the file system
//! and as windows that are spawned on its folder, and random schedules of all of them.
//! Never: waits for a time to pass. A client hears when it has asked something; until then it is
//! behind the others. Never names a version: whoever includes this says which take part.
//!
//! `JUDGE_SEED` begins elsewhere, `JUDGE_CASES` tries more.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};
use tokio_tungstenite::tungstenite::{client, Message, WebSocket};

use super::shared::dice::Dice;
use super::shared::hung;
use super::shared::moves;
use super::shared::official::Official;
use super::shared::party::Party;
use super::shared::process::{Folder, Listening, Process};
use super::shared::schedules::asked;
use super::stage::{self, Stage as _};

/// Seed of the random choices, unless another one is requested, and the default number of
/// schedules.
const SEED: u64 = 23;
const CASES: u64 = 6;
const MOVES: usize = 60;

/// Minimum and maximum number of concurrent clients.
const SEATS: std::ops::Range<usize> = 2..6;

/// In one of so many moves the host is killed, and started again.
const DEATHS: usize = 30;

/// Number of the latest messages printed when a schedule fails.
const SHOWN: usize = 60;

/// Judges by random schedules, in each of which clients of some of these versions take part, and in
/// all of them each of these.
pub fn run(officials: &[&'static dyn Official]) {
    let (seed, cases) = (asked("JUDGE_SEED", SEED), asked("JUDGE_CASES", CASES));
    let mut took_part = BTreeSet::new();
    for case in seed..seed + cases {
        let mut dice = Dice::new(case);
        let mut stage = Stage::new(case).unwrap();
        let outcome = stage
            .begin(officials, &mut dice)
            .and_then(|()| stage.play(&mut dice))
            .and_then(|()| stage.finish());
        if let Err(why) = outcome {
            let from = stage.said.len().saturating_sub(SHOWN);
            panic!("{}\n\nJUDGE_SEED={case} JUDGE_CASES=1: {why:#}", stage.said[from..].join("\n"));
        }
        took_part.extend(stage.seats.iter().map(|seat| seat.party.dialect().name()));
    }
    if cases >= CASES {
        assert_eq!(took_part.len(), officials.len(), "only these took part: {took_part:?}");
    }
}

/// A stream whose reads go on after a signal: with a time limit, the system does not do that.
struct Uninterrupted(TcpStream);

impl Read for Uninterrupted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Write for Uninterrupted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// How a client is connected.
enum Wire {
    WebSocket(Box<WebSocket<Uninterrupted>>),
    Socket(BufReader<UnixStream>),
    Window(Process),
}

impl Wire {
    /// Connects in one of the ways that there are.
    fn open(kind: usize, host: &Listening, folder: &Path) -> Result<Self> {
        Ok(match kind % 3 {
            0 => {
                let place = host.url.strip_prefix("ws://").and_then(|rest| rest.split('/').next());
                let stream = TcpStream::connect(place.context("no place to connect to")?)?;
                stream.set_read_timeout(Some(hung()))?;
                Self::WebSocket(Box::new(client(&host.url, Uninterrupted(stream))?.0))
            }
            1 => {
                let stream = UnixStream::connect(socket_in(folder))?;
                stream.set_read_timeout(Some(hung()))?;
                Self::Socket(BufReader::new(stream))
            }
            _ => Self::Window(Process::start_sharing(&folder.to_string_lossy())?),
        })
    }

    /// Says a line, to somebody who may be gone.
    fn say(&mut self, line: &str) -> Result<()> {
        match self {
            Self::WebSocket(socket) => socket.send(Message::text(line.to_owned()))?,
            Self::Socket(stream) => writeln!(stream.get_mut(), "{line}")?,
            Self::Window(process) => process.say(line)?,
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<String> {
        match self {
            Self::WebSocket(socket) => loop {
                if let Message::Text(text) = socket.read()? {
                    return Ok(text.as_str().to_owned());
                }
            },
            Self::Socket(stream) => {
                let mut line = String::new();
                ensure!(stream.read_line(&mut line)? > 0, "the host has hung up");
                Ok(line)
            }
            Self::Window(process) => process.hear()?.context("the window has ended"),
        }
    }
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.with_extension("socket")
}

fn listen_on(folder: &Path) -> Result<Listening> {
    let socket = format!("unix:{}", socket_in(folder).display());
    Listening::start(&folder.to_string_lossy(), &["ws://127.0.0.1:0", &socket])
}

/// A client, and its connection if it has one.
struct Seat {
    party: Party,
    kind: usize,
    wire: Option<Wire>,
}

/// The host, and all who are connected.
struct Stage {
    _outer: Folder,
    folder: PathBuf,
    host: Option<Listening>,
    seats: Vec<Seat>,
    at: usize,
    /// Messages of all sides, each with its version.
    said: Vec<String>,
}

impl Stage {
    fn new(case: u64) -> Result<Self> {
        let outer = Folder::named(&format!("sockets-{case}"));
        std::fs::create_dir_all(&outer.0)?;
        let folder = outer.0.join("state");
        let host = Some(listen_on(&folder)?);
        Ok(Self { _outer: outer, folder, host, seats: Vec::new(), at: 0, said: Vec::new() })
    }

    /// Clients of different versions shake hands; one creates a session, all follow it.
    fn begin(&mut self, officials: &[&'static dyn Official], dice: &mut Dice) -> Result<()> {
        let kind = dice.from(0..3);
        let mut left = Vec::new();
        for number in 0..dice.from(SEATS) {
            if left.is_empty() {
                left = officials.to_vec();
            }
            let official = left.swap_remove(dice.from(0..left.len()));
            let party = Party::new(official, &format!("judge-{number}"));
            self.seats.push(Seat { party, kind: kind + number, wire: None });
            self.enter(number)?;
        }
        self.share_a_session(dice.from(0..self.seats.len()))
    }

    fn play(&mut self, dice: &mut Dice) -> Result<()> {
        for _ in 0..MOVES {
            self.at += 1;
            if dice.from(0..DEATHS) == 0 {
                self.kill_the_host()?;
            }
            let seat = dice.from(0..self.seats.len());
            let chosen = moves::choose(dice, &self.seats[seat].party, true, self.at)?;
            let name = self.seats[seat].party.dialect().name();
            self.step(seat, &chosen).with_context(|| format!("at move {}, {chosen:?} by {name}", self.at))?;
        }
        Ok(())
    }

    /// At last everybody is there, and sees the same.
    fn finish(&mut self) -> Result<()> {
        self.gather()?;
        for seat in 0..self.seats.len() {
            self.compare(seat)?;
            self.seats[seat].party.check_all_answered()?;
        }
        Ok(())
    }

    fn kill_the_host(&mut self) -> Result<()> {
        // Dropping it kills it.
        self.host = None;
        for seat in 0..self.seats.len() {
            self.drop_out(seat)?;
        }
        self.said.push("the host is killed".to_owned());
        self.host = Some(listen_on(&self.folder)?);
        Ok(())
    }
}

impl stage::Stage for Stage {
    fn count(&self) -> usize {
        self.seats.len()
    }

    fn party(&mut self, seat: usize) -> &mut Party {
        &mut self.seats[seat].party
    }

    fn is_connected(&self, seat: usize) -> bool {
        self.seats[seat].wire.is_some()
    }

    fn open(&mut self, seat: usize) -> Result<()> {
        let host = self.host.as_ref().context("no host")?;
        self.seats[seat].wire = Some(Wire::open(self.seats[seat].kind, host, &self.folder)?);
        Ok(())
    }

    /// A window is killed.
    fn lose(&mut self, seat: usize) -> Result<()> {
        self.seats[seat].wire = None;
        Ok(())
    }

    fn say(&mut self, seat: usize, line: String) -> Result<()> {
        let Seat { party, wire, .. } = &mut self.seats[seat];
        self.said.push(format!("{} {seat} > {line}", party.dialect().name()));
        wire.as_mut().context("not connected")?.say(&line)
    }

    fn ask(&mut self, seat: usize, method: &str, params: &Value) -> Result<Value> {
        let (id, line) = self.seats[seat].party.request(method, params)?;
        self.say(seat, line)?;
        loop {
            let Seat { party, wire, .. } = &mut self.seats[seat];
            let line = wire.as_mut().context("not connected")?.hear()?;
            let name = party.dialect().name();
            self.said.push(format!("{name} {seat} < {}", line.trim_end()));
            if let Some((answered, answer)) = party.hear(&line).context(name)? {
                ensure!(answered == id, "{answered} was answered instead of {id}");
                return answer.map_err(|(code, why)| anyhow::anyhow!("{method} is refused: {code} {why}"));
            }
        }
    }

    /// Receives all pending messages: those before the answer to a request sent now.
    fn hear_all(&mut self, seat: usize) -> Result<()> {
        let dialect = self.seats[seat].party.dialect();
        self.ask(seat, "listSessions", &dialect.params("listSessions", dialect.root(), json!({})))?;
        Ok(())
    }

    fn listen(&mut self, seat: usize) -> Result<()> {
        self.hear_all(seat)
    }

    fn at(&self) -> usize {
        self.at
    }
}
