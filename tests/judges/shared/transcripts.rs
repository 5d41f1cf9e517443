//! The golden transcripts of a version, read by its crate.
//!
//! Owns: which lines of `fixtures/versions` a client of the version receives, and that its crate
//! reads each of them strictly.
//! Never: judges whether a line is the right one: the host is compared with them elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::dialect::{Dialect, V0_1_0, V0_4_0};
use super::official::Official;

/// Methods and notifications that only some crates have: only the message is read.
const READ_AS_MESSAGES: [&str; 7] = [
    "runAutomation",
    "fetchAutomationRuns",
    "listAutomationTriggerDefinitions",
    "root/progress",
    // The pages of 0.1.0 have them, and its crate does not.
    "completions",
    "resourceRequest",
    "fetchContent",
];

/// Action that clients with newer types say in a version that lacks it; its echo is theirs alone.
const NEWER: (Dialect, &str) = (V0_4_0, "chat/draftChanged");

/// Part of each transcript with a client of the pages before the crate of 0.1.0, which calls itself
/// `1`, too: a status that is a word.
const OF_FIRST_PAGES: &str = r#""status":"idle""#;

/// Members that only one kind of state requires. A state without a tag is read as the first kind
/// that fits, which then lacks them.
const MARKS_OF_KINDS: [&str; 6] = ["turns", "agents", "claim", "files", "recursive", "entries"];

/// Returns the lines that the crate does not read, each with its place.
pub fn unread_lines(official: &'static dyn Official) -> Vec<String> {
    let mut problems = Vec::new();
    for path in transcripts(official.dialect()) {
        let text = fs::read_to_string(&path).expect("a transcript");
        if text.contains(OF_FIRST_PAGES) {
            continue;
        }
        let mut reader = Reader::new(official);
        for (at, line) in text.lines().enumerate() {
            if let Err(why) = reader.read(line) {
                problems.push(format!("{}:{}: {why:#}", path.display(), at + 1));
            }
        }
    }
    problems
}

/// Judges the transcripts of a version.
pub fn run(official: &'static dyn Official) {
    let problems = unread_lines(official);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Returns the transcripts of a version. Those of the newest one are all that are in no folder of
/// a version; another test compares them with its types.
fn transcripts(dialect: Dialect) -> Vec<PathBuf> {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|it| it.join("fixtures/versions"));
    let versions = above.find(|folder| folder.is_dir()).expect("the transcripts are in the repository");
    let mut folders = vec![versions.join(dialect.name())];
    if dialect == V0_1_0 {
        folders.push(versions.join("1"));
    }
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let mut files: Vec<PathBuf> = files.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Reads a transcript, line by line.
struct Reader {
    official: &'static dyn Official,
    asked: BTreeMap<String, String>,
    /// Client id of the connection, and whether each client speaks the version.
    client_id: String,
    speaks: BTreeMap<String, bool>,
}

impl Reader {
    fn new(official: &'static dyn Official) -> Self {
        Self { official, asked: BTreeMap::new(), client_id: String::new(), speaks: BTreeMap::new() }
    }

    fn read(&mut self, line: &str) -> Result<()> {
        match line.split_once(' ') {
            Some((">", line)) => self.note(line),
            Some(("<", line)) => self.receive(line).with_context(|| line.to_owned()),
            _ => Ok(()),
        }
    }

    /// Notes what the client asks for.
    fn note(&mut self, line: &str) -> Result<()> {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return Ok(()) };
        let Some(method) = message["method"].as_str() else { return Ok(()) };
        if let Some(client_id) = message["params"]["clientId"].as_str() {
            self.client_id = client_id.to_owned();
        }
        self.asked.insert(message["id"].to_string(), method.to_owned());
        Ok(())
    }

    fn receive(&mut self, line: &str) -> Result<()> {
        let mut message: Value = serde_json::from_str(line)?;
        let id = message["id"].to_string();
        let asked = self.asked.get(&id).cloned().unwrap_or_default();
        if asked == "initialize" && message.get("result").is_some() {
            let answered = &mut message["result"]["protocolVersion"];
            let dialect = self.official.dialect();
            let is_ours = *answered == dialect.name() || *answered == dialect.answered();
            if is_ours {
                // The crate of 0.1.0 numbers the version that its pages name.
                *answered = dialect.answered();
            }
            self.speaks.insert(self.client_id.clone(), is_ours);
        }
        if self.speaks.get(&self.client_id) == Some(&false) {
            return Ok(());
        }
        let is_newer = self.official.dialect() == NEWER.0 && message["params"]["action"]["type"] == NEWER.1;
        if message["method"] == "action" && (is_newer || message["params"].get("rejectionReason").is_some()) {
            // A refused action comes back as it was, whatever that was.
            message["params"]["action"] =
                json!({ "type": "root/activeSessionsChanged", "activeSessions": 0 });
        }
        if !message["id"].is_null() && !message["id"].is_u64() {
            // The crates use numbers alone.
            message["id"] = 0.into();
        }
        self.official.reads_message(&message.to_string())?;
        match message["method"].as_str() {
            Some(method) if READ_AS_MESSAGES.contains(&method) || message.get("id").is_some() => {}
            Some(method) => {
                let read = self.official.reads_notification(method, &message["params"])?;
                check_kinds(&message["params"], &read)?;
            }
            None if message.get("error").is_some() || READ_AS_MESSAGES.contains(&&*asked) => {}
            None => {
                let read = self.official.reads_result(&asked, &message["result"])?;
                check_kinds(&message["result"], &read)?;
            }
        }
        Ok(())
    }
}

/// Checks that each state was read as its own kind.
fn check_kinds(sent: &Value, read: &Value) -> Result<()> {
    let snapshots = |value: &Value| -> Vec<Value> {
        let all = value["snapshots"].as_array().into_iter().flatten();
        all.chain(value.get("snapshot")).filter(|it| !it.is_null()).cloned().collect()
    };
    let (sent, read) = (snapshots(sent), snapshots(read));
    ensure!(sent.len() == read.len(), "{} of {} states were read", read.len(), sent.len());
    for (sent, read) in sent.iter().zip(&read) {
        for mark in MARKS_OF_KINDS {
            let is_sent = sent["state"].get(mark).is_some();
            ensure!(!is_sent || read["state"].get(mark).is_some(), "a state without `{mark}`: {read}");
        }
    }
    Ok(())
}
