//! The format of an exported session, its export and its import.
//!
//! An export is JSON Lines: a line with format and version, then `session`, then for each chat
//! `chat` and its `turn`s, then the `envelope`s that the store still has (for people only), and
//! `end`.
//!
//! Owns: that format.
//! Never: holds the turns of a session in memory, or leaves an incomplete export behind.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use ahp_types::state::{SessionSummary, Turn};
use anyhow::{bail, ensure, Context};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{chat_created_at_seq, session_created_at_seq, up_to_date};
use crate::host::effects::{ChatKey, ChatRow, SavedChat, SessionKey, SessionRow};
use crate::host::rows::ChatBody;
use crate::os::{private, write};
use crate::state::history::CompletedTurn;
use crate::store::archive::{Archive, Import, SessionPiece};
use crate::wire::action_lines::envelope_of;
use crate::wire::rpc::to_sorted_json;

/// Name of the format in the first line of an export.
const FORMAT: &str = "ahp-sidecar session";

const FORMAT_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
}

/// Other line of an export.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
enum ExportLine {
    Session {
        uri: String,
        modified_at: String,
        summary: Box<RawValue>,
        saved: Box<RawValue>,
    },
    Chat {
        uri: String,
        running: bool,
        progress: Option<u64>,
        saved: Box<RawValue>,
    },
    /// Turn of the latest chat.
    Turn(Box<RawValue>),
    Envelope(Box<RawValue>),
    End {
        lines: usize,
    },
}

pub(super) fn export_to(archive: &Archive, uri: &str, path: &Path) -> anyhow::Result<()> {
    let name = || format!("cannot write {}", path.display());
    archive.find(uri)?;
    // Conversations are private, and no file is overwritten.
    let file = private::options().write(true).create_new(true).open(path).with_context(name)?;
    let mut out = BufWriter::new(file);
    let written = export(archive, uri, &mut out)
        .and_then(|()| out.flush().with_context(name))
        .and_then(|()| write::sync_all(out.get_ref()).with_context(name));
    // An incomplete export could be mistaken for a complete one.
    match written.is_err().then(|| fs::remove_file(path)) {
        Some(Err(why)) => {
            written.with_context(|| format!("an incomplete export is left at {}: {why}", path.display()))
        }
        _ => written,
    }
}

/// Writes a session piece by piece. Writes nothing if the session is damaged.
pub(super) fn export(archive: &Archive, uri: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let key = archive.find(uri)?;
    archive.check(key)?;
    let actions = archive.actions(key)?;
    let header = Header { format: FORMAT.to_owned(), version: FORMAT_VERSION };
    writeln!(out, "{}", serde_json::to_string(&header)?)?;
    let mut lines = 0;
    let mut write = |line: ExportLine| -> anyhow::Result<()> {
        lines += 1;
        Ok(writeln!(out, "{}", serde_json::to_string(&line)?)?)
    };
    // Turns without rows of their own; they follow those with rows.
    let mut ended: Vec<Turn> = Vec::new();
    archive.walk(key, &mut |piece| match piece {
        SessionPiece::Session(row) => write(session_line(&row)?),
        SessionPiece::Chat(chat) => {
            std::mem::take(&mut ended)
                .iter()
                .try_for_each(|turn| write(turn_line(&to_sorted_json(turn))?))?;
            let mut body = up_to_date(&chat)?;
            ended = std::mem::take(&mut body.state.to_mut().turns);
            write(chat_line(&chat, &body)?)
        }
        SessionPiece::Turn(turn) => write(turn_line(&turn.text())?),
    })?;
    ended.iter().try_for_each(|turn| write(turn_line(&to_sorted_json(turn))?))?;
    for action in actions {
        write(ExportLine::Envelope(serde_json::from_slice(&envelope_of(&action.line))?))?;
    }
    writeln!(out, "{}", serde_json::to_string(&ExportLine::End { lines })?)?;
    Ok(())
}

fn session_line(row: &SessionRow) -> anyhow::Result<ExportLine> {
    let name = || format!("the session {}", row.uri);
    Ok(ExportLine::Session {
        uri: row.uri.clone(),
        modified_at: row.modified_at.clone(),
        summary: serde_json::from_slice(&row.summary).with_context(name)?,
        saved: serde_json::from_slice(&row.body).with_context(name)?,
    })
}

/// Returns the line of a chat whose body is up to date and has no completed turns.
fn chat_line(chat: &SavedChat, body: &ChatBody<'_>) -> anyhow::Result<ExportLine> {
    let running = chat.row.running && body.state.active_turn.is_some();
    let saved = serde_json::from_slice(&body.to_json())?;
    Ok(ExportLine::Chat { uri: chat.row.uri.clone(), running, progress: chat.progress, saved })
}

fn turn_line(json: &[u8]) -> anyhow::Result<ExportLine> {
    Ok(ExportLine::Turn(serde_json::from_slice(json)?))
}

/// Imports an exported session piece by piece. Returns its URI.
pub(super) fn restore_from(archive: &mut Archive, path: &Path) -> anyhow::Result<String> {
    let name = || path.display().to_string();
    let file = File::open(path).with_context(name)?;
    let head = archive.next_head()?;
    let reading = Reading { head, import: archive.begin_import()?, uri: None };
    read_export(BufReader::new(file), reading).with_context(name)
}

fn read_export(export: impl BufRead, mut reading: Reading<'_>) -> anyhow::Result<String> {
    let mut lines = export.lines().enumerate();
    let first = lines.next().context("it is empty")?.1?;
    let header: Header = serde_json::from_str(&first).context("it is not an exported session")?;
    ensure!(header.format == FORMAT, "it is not an exported session");
    ensure!(header.version <= FORMAT_VERSION, "it was written by a newer version of this program");
    while let Some((number, line)) = lines.next() {
        let at = || format!("line {}", number + 1);
        let line = serde_json::from_str(&line.with_context(at)?).with_context(at)?;
        if let ExportLine::End { lines: expected } = line {
            let there = number - 1;
            ensure!(expected == there, "lines are missing: the export says {expected}, there are {there}");
            let uri = reading.uri.context("there is no session in it")?;
            ensure!(lines.next().is_none(), "something follows its last line");
            reading.import.finish()?;
            return Ok(uri);
        }
        reading.take(line).with_context(at)?;
    }
    bail!("it is cut off: its last line is missing")
}

struct Reading<'a> {
    head: u64,
    import: Import<'a>,
    /// URI of the session; `None` before its line was read.
    uri: Option<String>,
}

impl Reading<'_> {
    fn take(&mut self, line: ExportLine) -> anyhow::Result<()> {
        let is_in_place = match line {
            ExportLine::Session { uri, modified_at, summary, saved } if self.uri.is_none() => {
                check::<SessionSummary>(&summary)?;
                let summary = Bytes::from(summary.get().to_owned());
                let body = session_created_at_seq(self.head, saved.get().as_bytes())?;
                self.uri = Some(uri.clone());
                self.import.session(SessionRow { key: SessionKey(0), uri, modified_at, summary, body })?;
                true
            }
            ExportLine::Chat { uri, running, progress, saved } => {
                let body = chat_created_at_seq(self.head, saved.get().as_bytes())?;
                let (key, session) = (ChatKey(0), SessionKey(0));
                let row = ChatRow { key, session, uri, running, as_of: self.head, body };
                self.import.chat(row, progress)?
            }
            ExportLine::Turn(turn) => {
                check::<Turn>(&turn)?;
                let turn = CompletedTurn::from_stored(turn.get().to_owned().into());
                self.import.turn(&turn.map_err(anyhow::Error::msg)?)?
            }
            ExportLine::Envelope(_) => self.uri.is_some(),
            ExportLine::Session { .. } | ExportLine::End { .. } => false,
        };
        ensure!(
            is_in_place,
            "this line must not stand here: `session` comes first and once, a `turn` after its `chat`"
        );
        Ok(())
    }
}

fn check<T: for<'a> Deserialize<'a>>(json: &RawValue) -> anyhow::Result<()> {
    serde_json::from_slice::<T>(json.get().as_bytes())?;
    Ok(())
}
