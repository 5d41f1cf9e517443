//! `ahp-sidecar sessions`: commands of people on the sessions of a state folder. Restoring and
//! purging require that no host uses it.
//!
//! `shown` prints a session, and `exports` defines the export format.
//!
//! Owns: the arguments, the list of sessions, and restoring from the trash.
//! Never: serves; stdout is for people and pipes here.

mod exports;
mod shown;

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use ahp::reducers::apply_action_to_chat;
use ahp_types::state::SessionSummary;
use anyhow::{Context, Error};
use bytes::Bytes;
use clap::{Args, Subcommand};

use crate::host::effects::SavedChat;
use crate::host::rows::{self, ChatBody, SessionBody};
use crate::os::stdio;
use crate::state::steering::SteeringChange;
use crate::store::archive::{Archive, ArchivedSession, SessionPiece};
use crate::store::check::Extent;
use crate::store::folder::{self, StateFolder};
use crate::store::sqlite;
use crate::wire::text::one_line;

/// List, export, restore and purge the sessions of a state folder; restore and purge require that
/// no ahp-sidecar uses it.
#[derive(Debug, Args)]
pub struct Sessions {
    #[command(subcommand)]
    verb: SessionsVerb,
}

#[derive(Debug, Subcommand)]
enum SessionsVerb {
    /// Print a line per session: URI, title, time of the last change, number of turns or `damaged`,
    /// `trash` or `-`, and size in bytes
    List(StateDir),
    /// Print the conversation of a session
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
    /// Restore a session from the trash, or import an export
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
    /// Remove sessions from the trash for good, and shrink the database
    Purge {
        /// The URI of a session in the trash; all of them if none is given
        uri: Option<String>,
        #[command(flatten)]
        place: StateDir,
    },
}

#[derive(Debug, Args)]
struct StateDir {
    /// The state folder [default: the default state folder]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Reason why the command failed, or was completed only in part.
#[derive(Debug, thiserror::Error)]
pub enum SessionsFailure {
    /// The state folder is unusable or held by another process.
    #[error("{0:#}")]
    Folder(anyhow::Error),
    /// The session does not exist or cannot be read, or the output cannot be written.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// Runs the command that the arguments select.
///
/// # Errors
/// See [`SessionsFailure`]. A closed stdout is no failure.
pub fn run(sessions: &Sessions) -> Result<(), SessionsFailure> {
    let place = match &sessions.verb {
        SessionsVerb::List(place)
        | SessionsVerb::Show { place, .. }
        | SessionsVerb::Export { place, .. }
        | SessionsVerb::Restore { place, .. }
        | SessionsVerb::Purge { place, .. } => place,
    };
    let read_only = matches!(
        sessions.verb,
        SessionsVerb::List(_) | SessionsVerb::Show { .. } | SessionsVerb::Export { .. }
    );
    let (_held, mut archive) =
        open(place.state_dir.as_deref(), read_only).map_err(SessionsFailure::Folder)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let done = act(&sessions.verb, &mut archive, &mut out);
    let done = done.and_then(|()| Ok(out.flush()?));
    match done {
        Err(error) if is_closed_pipe(&error) => Ok(()),
        done => done.map_err(SessionsFailure::Failed),
    }
}

/// Opens an existing state folder, locked unless `read_only` is set. A missing one is not created,
/// since its path may be a typing error. With `read_only`, nothing in it is changed, and hosts may
/// use it meanwhile unless its schema is older.
pub(crate) fn open(asked: Option<&Path>, read_only: bool) -> anyhow::Result<(Option<StateFolder>, Archive)> {
    let folder = folder::chosen(asked)?;
    let there = folder.join(sqlite::FILE_NAME);
    if !Archive::was_at(&there) {
        fs::metadata(&there).with_context(|| format!("there are no sessions in {}", folder.display()))?;
    }
    if read_only {
        let held = StateFolder::look_into(&folder)?;
        let archive = Archive::look_into(&there)?;
        return Ok((Some(held).filter(|_| archive.excludes_hosts()), archive));
    }
    let folder = StateFolder::hold_existing(&folder)?;
    let database = folder.private_file(sqlite::FILE_NAME)?;
    if folder.was_held() {
        sqlite::refuse_emptied_database(&database)?;
    }
    let archive = Archive::open(&database)?;
    Ok((Some(folder), archive))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(stdio::is_closed)
}

fn act(verb: &SessionsVerb, archive: &mut Archive, out: &mut dyn Write) -> anyhow::Result<()> {
    match verb {
        SessionsVerb::List(_) => {
            for entry in archive.list()? {
                writeln!(out, "{}", list_line(&entry)?)?;
            }
            Ok(())
        }
        SessionsVerb::Show { uri, .. } => shown::show(archive, uri, out),
        SessionsVerb::Export { uri, output: None, .. } => exports::export(archive, uri, out),
        SessionsVerb::Export { uri, output: Some(path), .. } => exports::export_to(archive, uri, path),
        SessionsVerb::Restore { from: Some(path), .. } => {
            let uri = exports::restore_from(archive, path)?;
            Ok(writeln!(out, "imported: {}", one_line(&uri))?)
        }
        SessionsVerb::Restore { uri, .. } => {
            let uri = uri.as_deref().unwrap_or_default();
            restore(archive, uri)?;
            Ok(writeln!(out, "restored: {}", one_line(uri))?)
        }
        SessionsVerb::Purge { uri, .. } => {
            let count = archive.purge(uri.as_deref())?;
            writeln!(out, "purged: {count} session{}", if count == 1 { "" } else { "s" })?;
            out.flush()?;
            archive.give_back_space().context(
                "purged, but the database cannot be shrunk: run it again when there is free disk space",
            )
        }
    }
}

fn list_line(entry: &ArchivedSession) -> anyhow::Result<String> {
    let summary: SessionSummary = serde_json::from_slice(&entry.summary)
        .with_context(|| format!("the summary of the session {} is invalid", entry.key.0))?;
    let mark = if entry.removed_at.is_some() { "trash" } else { "-" };
    let shown = |number: fn(Extent) -> u64| {
        entry.extent.map_or("damaged".to_owned(), |extent| number(extent).to_string())
    };
    let (turns, bytes) = (shown(|extent| extent.turns), shown(|extent| extent.bytes));
    let fields =
        [&summary.resource, &summary.title, &summary.modified_at, &turns, mark, &bytes].map(one_line);
    Ok(fields.join("\t"))
}

fn restore(archive: &mut Archive, uri: &str) -> anyhow::Result<()> {
    let head = archive.next_head()?;
    let (mut session, mut chats) = (None, Vec::new());
    archive.walk(archive.find_removed(uri)?, &mut |piece| {
        match piece {
            SessionPiece::Session(mut row) => {
                row.body = session_created_at_seq(head, &row.body)?;
                session = Some(row);
            }
            SessionPiece::Chat(mut chat) => {
                chat.row.body = chat_created_at_seq(head, &chat.row.body)?;
                chats.push(chat);
            }
            SessionPiece::Turn(_) => {}
        }
        anyhow::Ok(())
    })?;
    let session = session.with_context(|| format!("the trash has no row for the session `{uri}`"))?;
    Ok(archive.restore(&session, &chats)?)
}

/// Returns a session's body with its channel created now, so that a client that knew the session,
/// or another of its URI, receives a snapshot and no replay.
fn session_created_at_seq(head: u64, body: &[u8]) -> anyhow::Result<Bytes> {
    let mut body = SessionBody::read(body).map_err(Error::msg)?;
    body.born_at = head;
    body.mark_imported();
    Ok(body.to_json())
}

/// Returns a chat's body with its channel created now: see [`session_created_at_seq`].
fn chat_created_at_seq(head: u64, body: &[u8]) -> anyhow::Result<Bytes> {
    let mut body = ChatBody::read(body).map_err(Error::msg)?;
    body.born_at = head;
    Ok(body.to_json())
}

/// Returns a chat's body, with the actions applied that were saved since its row was written. The
/// state includes turns that ended since, but not those with rows of their own.
fn up_to_date(chat: &SavedChat) -> anyhow::Result<ChatBody<'static>> {
    let name = || format!("the chat {}", chat.row.uri);
    let mut body = ChatBody::read(&chat.row.body).map_err(Error::msg).with_context(name)?;
    for line in &chat.actions {
        let envelope = rows::read_action(line).map_err(Error::msg).with_context(name)?;
        match SteeringChange::of(&envelope.action) {
            Some(change) => drop(change.apply(&mut body.steering_messages)),
            None => drop(apply_action_to_chat(body.state.to_mut(), &envelope.action)),
        }
        rows::note_consumed(&mut body.consumed, &envelope);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use super::*;
    use crate::host::effects::{ChatKey, ChatRow, SessionKey};
    use crate::wire::rpc::notification_line;

    #[test]
    fn chat_is_shown_with_steering_messages_since_its_row() {
        let chat = "ahp-chat:/c";
        let state = json!({ "resource": chat, "title": "", "status": 1,
            "modifiedAt": "2026-01-01T00:00:00Z", "turns": [] });
        let body = json!({ "state": state, "bornAt": 0, "titleBy": "user", "removedTurns": [],
            "consumed": [], "progress": {} });
        let line = |(number, action): (usize, &Value)| {
            let envelope = json!({ "channel": chat, "action": action, "serverSeq": number });
            notification_line("action", envelope.to_string().as_bytes())
        };
        let message = json!({ "text": "steer", "origin": { "kind": "user" } });
        let set = |id: &str| {
            let steering = json!({ "id": id, "message": message });
            json!({ "type": "chat/steeringMessageSet", "steeringMessage": steering })
        };
        let actions = [set("a"), set("b"), json!({ "type": "chat/steeringMessageRemoved", "id": "a" })];
        let row = ChatRow {
            key: ChatKey(2),
            session: SessionKey(1),
            uri: chat.to_owned(),
            running: true,
            as_of: 0,
            body: body.to_string().into(),
        };
        let actions = actions.iter().enumerate().map(line).collect();
        let saved = SavedChat { row, turns: Vec::new(), actions, sifted: false, progress: None };
        let body = up_to_date(&saved).unwrap();
        let listed: Vec<_> = body.steering_messages.iter().map(|listed| listed.id.as_str()).collect();
        assert_eq!(listed, ["b"]);
    }
}
