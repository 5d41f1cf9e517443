//! Cost of a host shared by several windows, compared with an exclusive process.
//!
//! Owns: measuring both in turns, in the same run.
//! Never: measures a host that another measurement has left.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::client::{Client, PING};
use super::stored::folder;
use super::{
    handshake, median, microseconds, milliseconds, per_second, stream, Outcome, Streamed, Table, DELTAS,
    PINGS,
};

/// Repetitions of measuring pings and deltas alternately with a shared and an exclusive host.
const RACES: usize = 3;

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    let mut folders: Vec<TempDir> = Vec::new();
    let mut anew = |open: &dyn Fn(&TempDir) -> Outcome<Client>| {
        let folder = folder()?;
        let client = open(&folder);
        folders.push(folder);
        client
    };
    let exclusive = handshake(|| anew(&|folder| Client::open_in(folder.path())))?;
    let started = handshake(|| anew(&|folder| Client::join_in(folder.path())))?;
    table.row("handshake, --exclusive, an empty folder", milliseconds(exclusive), "", "")?;
    table.row("  through a host that is started", milliseconds(started), "5 ms more", "")?;
    let shared = folder()?;
    let stays = Client::join_in(shared.path())?;
    let joined = handshake(|| Client::join_in(shared.path()))?;
    table.row("  through a host that is there", milliseconds(joined), "", "")?;
    drop(stays);
    let (mut alone, mut through) = (Raced::default(), Raced::default());
    for _ in 0..RACES {
        let (own, shared) = (folder()?, folder()?);
        alone.run(&mut Client::open_in(own.path())?)?;
        through.run(&mut Client::join_in(shared.path())?)?;
    }
    table.row("ping with a store, --exclusive, p50", microseconds(median(alone.pings)), "", "")?;
    table.row("  through a host", microseconds(median(through.pings)), "25 µs more", "")?;
    let (alone, through) = (median(alone.deltas), median(through.deltas));
    table.row("deltas a second with a store, --exclusive", per_second(DELTAS, alone), "", "")?;
    table.row("  through a host", per_second(DELTAS, through), "", "")?;
    let share = alone.as_secs_f64() / through.as_secs_f64() * 100.0;
    table.row("  of --exclusive", format!("{share:.0} %"), "80 %", "")
}

#[derive(Default)]
struct Raced {
    pings: Vec<Duration>,
    deltas: Vec<Duration>,
}

impl Raced {
    fn run(&mut self, client: &mut Client) -> Outcome<()> {
        let mut times = Vec::new();
        for _ in 0..PINGS / RACES {
            let start = Instant::now();
            client.say(PING)?;
            client.line()?;
            times.push(start.elapsed());
        }
        self.pings.push(median(times));
        let Streamed { time, .. } = stream(client, 1)?;
        self.deltas.push(time);
        client.line_with(b"chat/turnComplete")
    }
}
