//! Cost of any program between an agent and its reader: a relay that passes bytes on and, if given
//! a folder, first commits each piece to a SQLite database.
//!
//! Owns: that program, which is this one in another mode.
//! Never: looks at what it passes on.

use std::env::current_exe;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rusqlite::Connection;

use super::{bridged, Outcome};

/// First argument that makes this program the relay; the second is the folder, if any.
pub const RELAY: &str = "be-a-relay";

/// Is the relay, with an agent of its own, which is told on stdin what to do.
pub fn be_a_relay(folder: Option<&str>) -> Outcome<()> {
    let database = folder.map(|folder| open(Path::new(folder))).transpose()?;
    let mut agent = Command::new(current_exe()?).arg(bridged::AGENT).stdout(Stdio::piped()).spawn()?;
    let mut pipe = agent.stdout.take().ok_or("no stdout")?;
    let (mut buffer, mut stdout) = (vec![0; 64 << 10], io::stdout().lock());
    loop {
        let count = pipe.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        if let Some(database) = &database {
            database.prepare_cached("INSERT INTO pieces (piece) VALUES (?1)")?.execute([&buffer[..count]])?;
        }
        stdout.write_all(&buffer[..count])?;
        stdout.flush()?;
    }
    agent.wait()?;
    Ok(())
}

/// A database that commits as ours does while text streams: a log that is not synced.
fn open(folder: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(folder.join("relay.sqlite"))?;
    database.pragma_update(None, "journal_mode", "wal")?;
    database.pragma_update(None, "synchronous", "normal")?;
    database.execute_batch("CREATE TABLE pieces (number INTEGER PRIMARY KEY, piece BLOB NOT NULL)")?;
    Ok(database)
}
