//! Logs of one message per line, as VS Code writes them and `ahp-inspector` reads them.
//!
//! Each line is a message with one more member, `_ahpLog`: the time, the direction (`c2s` is from
//! the client to the host), the connection and its transport, and the length of the message in
//! bytes. A line that was no message is its member `invalid`.
//!
//! Owns: writing such a line, and reading a log as a transcript.
//! Never: plays it.

use anyhow::{bail, ensure, Context};
use serde_json::{json, Map, Value};

use super::form::{TranscriptFile, TranscriptLine};
use super::naming::Naming;
use super::recorder::{said_line, Side, NOTE};
use super::tokens::{without_broken_token, HiddenTokens};

/// Name of the member besides the message.
const METADATA: &str = "_ahpLog";

/// Number of lines of a transcript before those of the log.
pub(super) const LINES_BEFORE: usize = 3;

/// Metadata of a logged message.
#[derive(Debug)]
pub(super) struct Metadata {
    time: String,
    side: Side,
    connection: String,
    bytes: usize,
}

impl Metadata {
    /// Returns the metadata of a message that is passed on now.
    pub(super) fn now(side: Side, connection: String, bytes: usize) -> Self {
        Self { time: format!("{:.3}", jiff::Timestamp::now()), side, connection, bytes }
    }

    fn members(&self) -> Map<String, Value> {
        let direction = if self.side == Side::Client { "c2s" } else { "s2c" };
        let mut members = Map::new();
        members.insert("ts".to_owned(), self.time.as_str().into());
        members.insert("dir".to_owned(), direction.into());
        members.insert("connectionId".to_owned(), self.connection.as_str().into());
        members.insert("transport".to_owned(), "stdio".into());
        members.insert("byteLength".to_owned(), self.bytes.into());
        members
    }
}

/// Returns the line of the log for a line of a conversation. Tokens of clients are removed, which
/// this line may add.
pub(super) fn entry(line: &[u8], metadata: &Metadata, tokens: &mut HiddenTokens) -> String {
    let mut members = metadata.members();
    let is_said = metadata.side == Side::Client;
    let parsed = serde_json::from_slice::<Value>(line);
    let shown = parsed.as_ref().map(|parsed| {
        if is_said {
            tokens.learn(parsed);
        }
        let mut shown = parsed.clone();
        tokens.hide(&mut shown);
        shown
    });
    let mut message = match shown {
        Ok(message @ Value::Object(_)) => message,
        other => {
            let text = match other {
                Ok(other) if parsed.as_ref().is_ok_and(|parsed| *parsed != other) => other.to_string(),
                Ok(_) => String::from_utf8_lossy(line).into_owned(),
                Err(_) => {
                    let line = if is_said { without_broken_token(line) } else { line.into() };
                    tokens.hidden(&String::from_utf8_lossy(&line))
                }
            };
            members.insert("invalid".to_owned(), text.into());
            json!({})
        }
    };
    if let Some(message) = message.as_object_mut() {
        message.insert(METADATA.to_owned(), members.into());
    }
    message.to_string()
}

/// Reads a log as a transcript, in which line `n` of the log is line `n + LINES_BEFORE`.
///
/// # Errors
/// When a line is no entry, or the log has several connections.
pub(super) fn read(text: &str) -> anyhow::Result<TranscriptFile> {
    let mut lines =
        vec![TranscriptLine::Note(NOTE.to_owned()), TranscriptLine::Names, TranscriptLine::AnyPace];
    let (mut naming, mut connection) = (Naming::default(), None);
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        if line.trim().is_empty() {
            lines.push(TranscriptLine::Note(String::new()));
            continue;
        }
        let mut entry: Map<String, Value> =
            serde_json::from_str(line).with_context(|| format!("line {number} is no logged message"))?;
        let metadata = entry.shift_remove(METADATA).unwrap_or_default();
        ensure!(
            metadata["truncated"] != true,
            "line {number}: the log has only a part of this message, so it cannot be replayed"
        );
        let its = metadata["connectionId"].as_str().map(str::to_owned);
        let known = connection.get_or_insert_with(|| its.clone());
        ensure!(
            *known == its,
            "line {number}: the log has several connections: keep the lines of one of them"
        );
        let said = match metadata["invalid"].as_str() {
            Some(invalid) => invalid.to_owned(),
            None => Value::from(entry).to_string(),
        };
        lines.push(match metadata["dir"].as_str() {
            Some("c2s") => said_line(&mut naming, said.as_bytes(), true),
            Some("s2c") => TranscriptLine::Host(naming.host_line(&said)),
            _ => bail!("line {number}: `{METADATA}.dir` is neither `c2s` nor `s2c`"),
        });
    }
    TranscriptFile::of_lines(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_messages_are_read_as_they_were_sent() {
        let metadata = |side| Metadata::now(side, "c".to_owned(), 9);
        let token = br#"{"id":1,"method":"authenticate","params":{"token":"secret"}}"#;
        let mut tokens = HiddenTokens::default();
        let entries = [
            entry(token, &metadata(Side::Client), &mut tokens),
            entry(br#"{"id":1,"result":{"b":1,"a":2}}"#, &metadata(Side::Host), &mut tokens),
            entry(b"junk, removed", &metadata(Side::Host), &mut tokens),
        ];
        let text = entries.join("\n");
        assert!(!text.contains("secret"), "{text}");
        let read = read(&text).unwrap();
        let written = read.lines[LINES_BEFORE..].iter().map(|line| format!("{line}\n"));
        assert_eq!(
            written.collect::<String>(),
            "> {\"id\":1,\"method\":\"authenticate\",\"params\":{\"token\":\"${token-1}\"}}\n\
             < {\"id\":1,\"result\":{\"b\":1,\"a\":2}}\n< junk, removed\n"
        );
        let first: Value = serde_json::from_str(&entries[1]).unwrap();
        assert_eq!(first["_ahpLog"]["dir"], "s2c");
    }

    #[test]
    fn log_that_cannot_be_replayed_is_refused_with_its_line() {
        for (text, why) in [
            ("[]", "line 1 is no logged message"),
            (r#"{"id":1}"#, "line 1: `_ahpLog.dir`"),
            (r#"{"_ahpLog":{"dir":"c2s","truncated":true}}"#, "line 1: the log has only a part"),
            (
                "{\"_ahpLog\":{\"dir\":\"c2s\"}}\n\n{\"_ahpLog\":{\"dir\":\"c2s\",\"connectionId\":\"x\"}}",
                "line 3: the log has several",
            ),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.starts_with(why), "{error}");
        }
    }
}
