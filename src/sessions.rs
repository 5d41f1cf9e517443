//! `ahp-sidecar sessions`: the sessions of a state folder, for people, while no host is using it.
//!
//! Owns: what is printed of sessions, the format in which they are exported, and bringing them back from it.
//! Never: serves; stdout is for people and pipes here.
//!
//! An export is JSON Lines: a line that says format and version, then `session`, then for each chat `chat` and
//! its `turn`s, then the `envelope`s that the store still has, which are there to be read only, and `end`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ahp::reducers::apply_action_to_chat;
use ahp_types::state::{Message, ResponsePart, SessionSummary, Turn};
use anyhow::{bail, ensure, Context, Error};
use bytes::Bytes;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::host::effects::{ChatKey, ChatRow, SavedChat, SessionKey, SessionRow};
use crate::host::rows::{self, ChatBody, SessionBody};
use crate::state::history::CompletedTurn;
use crate::store::archive::{Archive, ArchivedSession, Import, Salvaged, SessionPiece};
use crate::store::check::Extent;
use crate::store::errors::StoreError;
use crate::store::folder::{self, StateFolder};
use crate::store::sqlite;
use crate::wire::action_lines::envelope_of;
use crate::wire::rpc::to_sorted_json;

/// What the first line of an export says.
const FORMAT: &str = "ahp-sidecar session";

/// The version of that format.
const FORMAT_VERSION: u32 = 1;

/// The arguments of `sessions`.
#[derive(Debug, Args)]
pub struct Sessions {
    #[command(subcommand)]
    verb: SessionsVerb,
}

#[derive(Debug, Subcommand)]
enum SessionsVerb {
    /// Print a line per session: URI, title, when it was modified, number of turns or `damaged`, `trash` or `-`, and the
    /// bytes that it takes
    List(StateDir),
    /// Print what was said in a session
    Show {
        /// The session's URI
        uri: String,
        #[command(flatten)]
        place: StateDir,
    },
    /// Write a session as JSON Lines
    Export {
        /// The session's URI
        uri: String,
        /// Write to this new file rather than to stdout
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        place: StateDir,
    },
    /// Bring a session back from the trash, or in from an export
    Restore {
        /// The URI of a session in the trash
        #[arg(required_unless_present = "from", conflicts_with = "from")]
        uri: Option<String>,
        /// An exported session
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        #[command(flatten)]
        place: StateDir,
    },
    /// Remove sessions from the trash for good, and make the database smaller
    Purge {
        /// The URI of a session in the trash; all of them if none is given
        uri: Option<String>,
        #[command(flatten)]
        place: StateDir,
    },
}

#[derive(Debug, Args)]
struct StateDir {
    /// The state folder [default: the one that sessions are kept in when nothing is said]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Why nothing was done, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum SessionsFailure {
    /// The state folder is unusable or held by another process.
    #[error("{0:#}")]
    Folder(anyhow::Error),
    /// There is no such session, or it cannot be read, or written to where it should go.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// Does what the arguments ask for.
///
/// # Errors
/// See [`SessionsFailure`]. That nobody reads what is printed is no failure.
pub fn run(sessions: &Sessions) -> Result<(), SessionsFailure> {
    let place = match &sessions.verb {
        SessionsVerb::List(place)
        | SessionsVerb::Show { place, .. }
        | SessionsVerb::Export { place, .. }
        | SessionsVerb::Restore { place, .. }
        | SessionsVerb::Purge { place, .. } => place,
    };
    let looks = matches!(
        sessions.verb,
        SessionsVerb::List(_) | SessionsVerb::Show { .. } | SessionsVerb::Export { .. }
    );
    let (_folder, mut archive) = open(place.state_dir.as_deref(), looks).map_err(SessionsFailure::Folder)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let done = act(&sessions.verb, &mut archive, &mut out);
    let done = done.and_then(|()| Ok(out.flush()?));
    match done {
        Err(error) if is_closed_pipe(&error) => Ok(()),
        done => done.map_err(SessionsFailure::Failed),
    }
}

/// Takes hold of a state folder that is there. Nothing is made: the folder may be a slip of the pen. Nor is anything
/// changed for one who only looks into it.
fn open(asked: Option<&Path>, looks: bool) -> anyhow::Result<(StateFolder, Archive)> {
    let folder = folder::chosen(asked)?;
    let there = folder.join(sqlite::FILE_NAME);
    if !Archive::was_at(&there) {
        fs::metadata(&there).with_context(|| format!("there are no sessions in {}", folder.display()))?;
    }
    if looks {
        let folder = StateFolder::look_into(&folder)?;
        return Ok((folder, Archive::look_into(&there)?));
    }
    let folder = StateFolder::hold_existing(&folder)?;
    let database = folder.private_file(sqlite::FILE_NAME)?;
    if folder.was_held() {
        sqlite::refuse_what_was_cut(&database)?;
    }
    let archive = Archive::open(&database)?;
    Ok((folder, archive))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn act(verb: &SessionsVerb, archive: &mut Archive, out: &mut dyn Write) -> anyhow::Result<()> {
    match verb {
        SessionsVerb::List(_) => {
            for entry in archive.list()? {
                writeln!(out, "{}", list_line(&entry)?)?;
            }
            Ok(())
        }
        SessionsVerb::Show { uri, .. } => show(archive, uri, out),
        SessionsVerb::Export { uri, output: None, .. } => export(archive, uri, out),
        SessionsVerb::Export { uri, output: Some(path), .. } => export_to(archive, uri, path),
        SessionsVerb::Restore { from: Some(path), .. } => {
            let uri = restore_from(archive, path)?;
            Ok(writeln!(out, "brought in: {}", one_line(&uri))?)
        }
        SessionsVerb::Restore { uri, .. } => {
            let uri = uri.as_deref().unwrap_or_default();
            restore(archive, uri)?;
            Ok(writeln!(out, "brought back: {}", one_line(uri))?)
        }
        SessionsVerb::Purge { uri, .. } => {
            let count = archive.purge(uri.as_deref())?;
            writeln!(out, "removed for good: {count}")?;
            out.flush()?;
            archive.give_back_space().context("removed, but their disk space cannot be given back")
        }
    }
}

fn list_line(entry: &ArchivedSession) -> anyhow::Result<String> {
    let summary: SessionSummary = serde_json::from_slice(&entry.summary)
        .with_context(|| format!("the summary of the session {} is none", entry.key.0))?;
    let mark = if entry.removed_at.is_some() { "trash" } else { "-" };
    let said = |number: fn(Extent) -> u64| {
        entry.extent.map_or("damaged".to_owned(), |extent| number(extent).to_string())
    };
    let (turns, bytes) = (said(|extent| extent.turns), said(|extent| extent.bytes));
    let fields =
        [&summary.resource, &summary.title, &summary.modified_at, &turns, mark, &bytes].map(one_line);
    Ok(fields.join("\t"))
}

/// Text that stays on its line and does nothing to a terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Text that does nothing to a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Prints a session as far as it can be read.
fn show(archive: &Archive, uri: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let key = archive.find(uri)?;
    let mut damage = 0;
    let entry = archive.list()?.into_iter().find(|entry| entry.key == key);
    let entry = entry.with_context(|| format!("the session {uri} is not in the list"))?;
    let summary: SessionSummary = serde_json::from_slice(&entry.summary).context("the summary")?;
    let place = if entry.removed_at.is_some() { ", in the trash" } else { "" };
    writeln!(out, "{}", one_line(&summary.title))?;
    let parts = [&summary.resource, &summary.provider, &summary.modified_at].map(|part| one_line(part));
    writeln!(out, "{}{place}", parts.join(", "))?;
    for chat in archive.salvage(key)? {
        let shown = match chat {
            Ok(chat) => show_chat(&chat, out, &mut damage),
            Err(error) => show_damage(error, out, &mut damage),
        };
        shown?;
    }
    out.flush()?;
    ensure!(archive.check(key).is_ok() && damage == 0, "not everything of {uri} can be read");
    Ok(())
}

fn show_damage(error: impl std::fmt::Display, out: &mut dyn Write, damage: &mut u32) -> anyhow::Result<()> {
    *damage += 1;
    Ok(writeln!(out, "\n[not shown: {}]", one_line(&error.to_string()))?)
}

fn show_chat(salvaged: &Salvaged, out: &mut dyn Write, damage: &mut u32) -> anyhow::Result<()> {
    let ChatBody { state: chat, context_turns, .. } = match up_to_date(&salvaged.chat) {
        Ok(body) => body,
        Err(error) => {
            show_damage(format!("{error:#}"), out, damage)?;
            return show_turns(&salvaged.turns, out, damage);
        }
    };
    writeln!(out, "\n== {} ({})", one_line(&chat.title), one_line(&chat.resource))?;
    if context_turns > 0 {
        writeln!(out, "\n[goes on from {context_turns} turns of another chat]")?;
    }
    show_turns(salvaged.turns.get(context_turns..).unwrap_or_default(), out, damage)?;
    if let Some(error) = &salvaged.behind {
        show_damage(error, out, damage)?;
    }
    // Those that have ended since the row was saved.
    for turn in &chat.turns {
        show_turn(turn, out)?;
    }
    if let Some(turn) = &chat.active_turn {
        writeln!(out, "\n-- {}, running", one_line(&turn.started_at))?;
        show_said(&turn.message, &turn.response_parts, out)?;
    }
    for waiting in chat.queued_messages.iter().flatten() {
        writeln!(out, "\n-- queued\n{}", quoted(&waiting.message.text))?;
    }
    if let Some(draft) = &chat.draft {
        writeln!(out, "\n-- draft\n{}", quoted(&draft.text))?;
    }
    Ok(())
}

fn show_turns(
    turns: &[Result<CompletedTurn, StoreError>],
    out: &mut dyn Write,
    damage: &mut u32,
) -> anyhow::Result<()> {
    for turn in turns {
        match turn {
            Ok(turn) => match serde_json::from_slice(&turn.text()) {
                Ok(turn) => show_turn(&turn, out)?,
                Err(error) => show_damage(error, out, damage)?,
            },
            Err(error) => show_damage(error, out, damage)?,
        }
    }
    Ok(())
}

fn show_turn(turn: &Turn, out: &mut dyn Write) -> anyhow::Result<()> {
    let state = serde_json::to_value(turn.state)?;
    let started = turn.started_at.as_deref().unwrap_or("some time");
    writeln!(out, "\n-- {}, {}", one_line(started), state.as_str().unwrap_or("ended"))?;
    show_said(&turn.message, &turn.response_parts, out)
}

fn show_said(message: &Message, parts: &[ResponsePart], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", quoted(&message.text))?;
    for part in parts {
        writeln!(out, "{}", shown(part))?;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    let lines: Vec<String> = plain(text).lines().map(|line| format!("> {line}")).collect();
    lines.join("\n")
}

fn shown(part: &ResponsePart) -> String {
    let in_brackets = |what: &str, text: &str| format!("[{what}: {}]", plain(text.trim_end()));
    match part {
        ResponsePart::Markdown(part) => plain(&part.content),
        ResponsePart::Reasoning(part) => in_brackets("thinking", &part.content),
        ResponsePart::Error(part) => in_brackets("error", &part.error.message),
        ResponsePart::ToolCall(part) => {
            let call = serde_json::to_value(&part.tool_call).unwrap_or_default();
            let field = |name: &str| call[name].as_str().unwrap_or_default().to_owned();
            let input = field("toolInput");
            let name = format!("{} {input}", field("toolName"));
            in_brackets("tool", &format!("{}, {}", name.trim_end(), field("status")))
        }
        ResponsePart::InputRequest(part) => {
            let message = part.request.message.as_ref();
            in_brackets("question", message.map_or("", |message| message.as_str()))
        }
        other => {
            let kind = serde_json::to_value(other).unwrap_or_default();
            in_brackets("part", kind["kind"].as_str().unwrap_or("of an unknown kind"))
        }
    }
}

/// What a chat's row says, with what was said since it was written. Turns that have ended since are in the state;
/// those that have rows of their own are not.
fn up_to_date(chat: &SavedChat) -> anyhow::Result<ChatBody<'static>> {
    let name = || format!("the chat {}", chat.row.uri);
    let mut body = ChatBody::read(&chat.row.body).map_err(Error::msg).with_context(name)?;
    for line in &chat.actions {
        let envelope = rows::read_action(line).map_err(Error::msg).with_context(name)?;
        apply_action_to_chat(body.state.to_mut(), &envelope.action);
        body.consumed.extend(rows::consumed_by(&envelope).map(str::to_owned));
    }
    Ok(body)
}

/// The first line of an export.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
}

/// Every other line of an export.
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
    /// Of the chat that was named last.
    Turn(Box<RawValue>),
    Envelope(Box<RawValue>),
    End {
        lines: usize,
    },
}

fn export_to(archive: &Archive, uri: &str, path: &Path) -> anyhow::Result<()> {
    let name = || format!("cannot write {}", path.display());
    archive.find(uri)?;
    // What people said is for nobody else to read, and no file is overwritten.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(name)?;
    let mut out = BufWriter::new(file);
    let written = export(archive, uri, &mut out)
        .and_then(|()| Ok(out.flush()?))
        .and_then(|()| Ok(out.get_ref().sync_all()?))
        .with_context(name);
    if written.is_err() {
        // Half an export would be mistaken for one.
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    written
}

/// Writes a session, piece by piece. Nothing is written of one that is damaged.
fn export(archive: &Archive, uri: &str, out: &mut dyn Write) -> anyhow::Result<()> {
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
    // Turns that have no rows of their own yet: they come behind those that have.
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

/// The line of a chat, whose body is up to date and has no completed turns.
fn chat_line(chat: &SavedChat, body: &ChatBody<'_>) -> anyhow::Result<ExportLine> {
    let running = chat.row.running && body.state.active_turn.is_some();
    let saved = serde_json::from_slice(&body.to_json())?;
    Ok(ExportLine::Chat { uri: chat.row.uri.clone(), running, progress: chat.progress, saved })
}

fn turn_line(json: &[u8]) -> anyhow::Result<ExportLine> {
    Ok(ExportLine::Turn(serde_json::from_slice(json)?))
}

/// Brings a session back from the trash, if all of it can be read.
fn restore(archive: &mut Archive, uri: &str) -> anyhow::Result<()> {
    let head = archive.next_head()?;
    let (mut session, mut chats) = (None, Vec::new());
    archive.walk(archive.find_removed(uri)?, &mut |piece| {
        match piece {
            SessionPiece::Session(mut row) => {
                row.body = session_born_at(head, &row.body)?;
                session = Some(row);
            }
            SessionPiece::Chat(mut chat) => {
                chat.row.body = chat_born_at(head, &chat.row.body)?;
                chats.push(chat);
            }
            SessionPiece::Turn(_) => {}
        }
        anyhow::Ok(())
    })?;
    let session = session.context("there is no session")?;
    Ok(archive.bring_back(&session, &chats)?)
}

/// A session's body whose channel came into being now. A client that knew it before, or knew another of its name, is
/// told its state rather than what has changed.
fn session_born_at(head: u64, body: &[u8]) -> anyhow::Result<Bytes> {
    let mut body = SessionBody::read(body).map_err(Error::msg)?;
    body.born_at = head;
    Ok(body.to_json())
}

/// The same for a chat.
fn chat_born_at(head: u64, body: &[u8]) -> anyhow::Result<Bytes> {
    let mut body = ChatBody::read(body).map_err(Error::msg)?;
    body.born_at = head;
    Ok(body.to_json())
}

/// Brings in an exported session, piece by piece. Returns its URI.
fn restore_from(archive: &mut Archive, path: &Path) -> anyhow::Result<String> {
    let name = || path.display().to_string();
    let file = File::open(path).with_context(name)?;
    let head = archive.next_head()?;
    let reading = Reading { head, import: archive.begin_import()?, uri: None };
    read_export(BufReader::new(file), reading).with_context(name)
}

fn read_export(export: impl BufRead, mut reading: Reading<'_>) -> anyhow::Result<String> {
    let mut lines = export.lines().enumerate();
    let first = lines.next().context("it is empty")?.1?;
    let header: Header = serde_json::from_str(&first).context("it is no exported session")?;
    ensure!(header.format == FORMAT, "it is no exported session");
    ensure!(header.version <= FORMAT_VERSION, "it was written by a newer version of this program");
    for (number, line) in lines.by_ref() {
        let at = || format!("line {}", number + 1);
        let line = serde_json::from_str(&line.with_context(at)?).with_context(at)?;
        if let ExportLine::End { lines } = line {
            ensure!(lines == number - 1, "lines are missing");
            let uri = reading.uri.context("there is no session in it")?;
            reading.import.finish()?;
            return Ok(uri);
        }
        reading.take(line).with_context(at)?;
    }
    bail!("it is cut off: its last line is missing")
}

/// A session that is being read from an export.
struct Reading<'a> {
    head: u64,
    import: Import<'a>,
    /// The session's URI, when its line was read.
    uri: Option<String>,
}

impl Reading<'_> {
    fn take(&mut self, line: ExportLine) -> anyhow::Result<()> {
        let is_in_place = match line {
            ExportLine::Session { uri, modified_at, summary, saved } if self.uri.is_none() => {
                check::<SessionSummary>(&summary)?;
                let summary = Bytes::from(summary.get().to_owned());
                let body = session_born_at(self.head, saved.get().as_bytes())?;
                self.uri = Some(uri.clone());
                self.import.session(SessionRow { key: SessionKey(0), uri, modified_at, summary, body })?;
                true
            }
            ExportLine::Chat { uri, running, progress, saved } => {
                let body = chat_born_at(self.head, saved.get().as_bytes())?;
                let (key, session) = (ChatKey(0), SessionKey(0));
                let row = ChatRow { key, session, uri, running, as_of: self.head, body };
                self.import.chat(row, progress)?
            }
            ExportLine::Turn(turn) => {
                check::<Turn>(&turn)?;
                let turn = CompletedTurn::kept(turn.get().to_owned().into());
                self.import.turn(&turn.map_err(anyhow::Error::msg)?)?
            }
            ExportLine::Envelope(_) => self.uri.is_some(),
            ExportLine::Session { .. } | ExportLine::End { .. } => false,
        };
        ensure!(is_in_place, "it is in the wrong place");
        Ok(())
    }
}

/// Checks that a host can read this.
fn check<T: for<'a> Deserialize<'a>>(json: &RawValue) -> anyhow::Result<()> {
    serde_json::from_str::<T>(json.get())?;
    Ok(())
}
