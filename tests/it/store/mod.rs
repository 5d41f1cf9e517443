//! The store alone: what it keeps, what it gives back, and what it says when its files fail it.
//!
//! Owns: records made by hand, and files that are cut, changed, filled up and taken away.
//! Never: runs a host.
// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic)]

mod at_once;
mod contents;
mod damage;
mod faults;
mod folder;
pub mod mending;
mod numbers;
mod sharing;
mod space;
mod texts;
mod trash;
mod trials;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use ahp_sidecar::host::effects::{
    ActionLine, ChannelId, ChatKey, ChatRow, Page, Record, SavedSession, SessionKey, SessionRow,
};
use ahp_sidecar::host::log::ReplayWindow;
use ahp_sidecar::host::Start;
use ahp_sidecar::state::history::CompletedTurn;
use ahp_sidecar::store::errors::StoreError;
use ahp_sidecar::store::reader::Reader;
use ahp_sidecar::store::sqlite::{Writer, FILE_NAME};
use ahp_sidecar::store::StoreOptions;
use bytes::Bytes;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a database that is not there yet.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    (folder, path)
}

fn open(path: &Path) -> (Writer, Start) {
    Writer::open(path, StoreOptions::default()).unwrap()
}

fn open_with(path: &Path, actions_max: usize, bytes_max: usize) -> (Writer, Start) {
    let window = ReplayWindow { actions_max, bytes_max };
    Writer::open(path, StoreOptions { window, trash: Duration::from_secs(60), ..StoreOptions::default() })
        .unwrap()
}

fn reader(path: &Path) -> Reader {
    Reader::open(path, ReplayWindow::default()).unwrap()
}

/// A file beside the database: `-wal` or `-shm`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// Copies a database with its log to another folder, as if the machine had stopped now.
fn copy(path: &Path) -> (TempDir, PathBuf) {
    let (folder, to) = place();
    fs::copy(path, &to).unwrap();
    let log = beside(path, "-wal");
    if log.exists() {
        fs::copy(log, beside(&to, "-wal")).unwrap();
    }
    (folder, to)
}

fn uri(session: u64) -> String {
    format!("ahp-session:/{session}")
}

fn session_row(key: u64) -> SessionRow {
    let modified_at = format!("2026-01-01T00:00:00.{key:03}Z");
    let summary = serde_json::json!({ "resource": uri(key), "title": format!("session {key}"),
        "modifiedAt": modified_at, "status": 1 });
    SessionRow {
        key: SessionKey(key),
        uri: uri(key),
        modified_at,
        summary: summary.to_string().into(),
        body: Bytes::from(format!("body of {key}, and then some more of it")),
    }
}

fn session(key: u64) -> Record {
    Record::Session(session_row(key))
}

/// The chat 1000 + key of the session `key`.
fn chat(key: u64, running: bool, as_of: u64) -> Record {
    Record::Chat(ChatRow {
        key: ChatKey(1000 + key),
        session: SessionKey(key),
        uri: format!("ahp-chat:/{key}"),
        running,
        as_of,
        body: Bytes::from(format!("chat of {key}")),
    })
}

fn turn(key: u64, place: u64) -> Record {
    Record::Turn(ChatKey(1000 + key), place, turn_text(key, place))
}

fn turn_text(key: u64, place: u64) -> CompletedTurn {
    CompletedTurn::new(&format!("t{place}"), Bytes::from(format!(r#"{{"id":"t{place}","of":{key}}}"#)))
}

/// A megabyte that takes a megabyte on the disk.
fn large_turn() -> CompletedTurn {
    static NOISE: LazyLock<Bytes> =
        LazyLock::new(|| (0..1 << 18).flat_map(|number| noise(number).to_le_bytes()).collect());
    CompletedTurn::new("t", NOISE.clone())
}

/// A number that looks like any other.
fn noise(number: u32) -> u32 {
    crc32fast::hash(&number.to_le_bytes())
}

/// A session with one chat of three turns.
fn whole(key: u64) -> Vec<Record> {
    vec![session(key), turn(key, 0), turn(key, 1), turn(key, 2), chat(key, false, 0)]
}

fn action(target: ChannelId, seq: u64, size: usize) -> Record {
    let line = Bytes::from(format!("{seq:0size$}"));
    Record::Action(target, ActionLine { line, server_seq: seq, delta: None })
}

/// Consecutive actions on the root channel, ten bytes each.
fn actions(numbers: impl IntoIterator<Item = u64>) -> Vec<Record> {
    numbers.into_iter().map(|seq| action(ChannelId::ROOT, seq, 10)).collect()
}

fn everything() -> Page {
    Page { after: None, limit: usize::MAX }
}

fn listed(reader: &Reader) -> Vec<Value> {
    let listed = reader.list(&everything()).unwrap();
    listed.sessions.iter().map(|(_, json)| serde_json::from_slice(json).unwrap()).collect()
}

fn titles(reader: &Reader) -> Vec<String> {
    listed(reader).iter().map(|summary| summary["title"].as_str().unwrap().to_owned()).collect()
}

fn load(reader: &Reader, key: u64) -> Result<Option<SavedSession>, StoreError> {
    reader.load(SessionKey(key))
}

fn numbers(reader: &Reader, cursor: u64) -> Option<Vec<u64>> {
    let actions = reader.actions_since(cursor).unwrap();
    actions.map(|actions| actions.iter().map(|(_, action)| action.server_seq).collect())
}

/// Checks that a loaded session equals that of `whole`.
fn assert_whole(saved: &SavedSession, key: u64) {
    assert_eq!(saved.row, session_row(key));
    assert_eq!(saved.chats.len(), 1, "the chats of {key}");
    let turns: Vec<CompletedTurn> = (0..3).map(|place| turn_text(key, place)).collect();
    assert_eq!(saved.chats[0].turns, turns);
    assert_eq!(Record::Chat(saved.chats[0].row.clone()), chat(key, false, 0));
}
