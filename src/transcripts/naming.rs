//! Choice of names for values that differ from run to run, while a conversation is recorded.
//!
//! A value gets a name if the host has chosen it, and if its form or its field says that another
//! run has another one. Values that the client has chosen are the same in each replay.
//!
//! Owns: which value gets which name.
//! Never: compares values, or looks at a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde_json::{Map, Value};

use super::names::{is_time, numbered, NameTable, DOLLAR, FILE_URI, NAME_START, TIME};
use super::tokens::{is_hidden, messages_of, spellings, tokens_in, without_broken_token};
use crate::files::uris::path_of;

/// Fields with a number that says when something was.
const TIME_FIELDS: [&str; 3] = ["mtime", "ctime", "timestamp"];

/// End of the name of a field with such a number.
const AT: &str = "At";

/// Fields with a number that says how long something took, or which process did it.
const NUMBER_FIELDS: [&str; 7] =
    ["duration", "durationMs", "duration_ms", "elapsedMs", "pid", "processId", "timeToFirstToken"];

/// Fields with the number of an action.
pub(super) const SEQUENCE_FIELDS: [&str; 3] = ["serverSeq", "fromSeq", "lastSeenServerSeq"];

/// Fields with a folder that a session works in, or that browsing begins at.
const FOLDER_FIELDS: [&str; 4] =
    ["workingDirectory", "workingDirectories", "defaultDirectory", "primaryWorkingDirectory"];

/// Length of a UUID.
const UUID_CHARS: usize = 36;

/// Minimum length of a hexadecimal number that counts as the hash of something.
const HASH_CHARS_MIN: usize = 20;

/// Hosts before the port of a listener.
const LOCAL_HOSTS: [&str; 3] = ["127.0.0.1:", "localhost:", "[::1]:"];

/// Names that were given.
#[derive(Debug, Default)]
pub(super) struct Naming {
    /// Texts that have a name, with what is written instead of each.
    known: BTreeMap<String, String>,
    /// Last number of each kind of names.
    counts: BTreeMap<String, usize>,
    /// Texts among them that are tokens.
    tokens: BTreeSet<String>,
    /// Ids and hashes that the client has said first.
    said: BTreeSet<String>,
    /// Ids of the host's requests as JSON, with their names.
    requests: BTreeMap<String, String>,
    /// Numbers of actions with their names; `None` if the first number is 0, as with each fresh
    /// host.
    sequence: Option<BTreeMap<String, String>>,
}

/// Part of a text that may get a name.
struct Found {
    start: usize,
    end: usize,
    kind: &'static str,
}

impl Naming {
    /// Notes a name that is in use, so that it is not given again.
    pub(super) fn reserve(&mut self, name: &str) {
        if let Some((kind, number)) = numbered(name) {
            let count = self.counts.entry(kind.to_owned()).or_default();
            *count = number.max(*count);
        }
    }

    /// Takes over the values that names have.
    pub(super) fn learn(&mut self, names: &NameTable) {
        for (name, value) in names.iter() {
            let written = format!("{NAME_START}{name}}}");
            match (numbered(name), value) {
                (Some(("folder", _)), Value::String(path)) => self.learn_folder(path, &written),
                (Some(("request", _)), id) => {
                    self.requests.insert(id.to_string(), written);
                }
                (Some(("seq", _)), number) => {
                    self.sequence.get_or_insert_default().insert(number.to_string(), written);
                }
                (Some(("token", _)), Value::String(token)) => self.learn_token(token, &written),
                (_, Value::String(text)) if !text.is_empty() => {
                    self.known.insert(text.clone(), written);
                }
                _ => {}
            }
        }
    }

    fn learn_folder(&mut self, path: &str, written: &str) {
        // The root and a drive are parts of too much.
        if path.len() > 3 {
            self.known.insert(path.to_owned(), written.to_owned());
            let uri = crate::files::uris::uri_of(std::path::Path::new(path));
            self.known.insert(uri, format!("{FILE_URI}{written}"));
        }
    }

    fn learn_token(&mut self, token: &str, written: &str) {
        for spelling in spellings(token) {
            self.tokens.insert(spelling.clone());
            self.known.insert(spelling, written.to_owned());
        }
    }

    fn fresh(&mut self, kind: &str) -> String {
        let count = self.counts.entry(kind.to_owned()).or_default();
        *count += 1;
        format!("{NAME_START}{kind}-{count}}}")
    }

    /// Returns a line of the client with names for what has one. Bytes that are no text stay.
    pub(super) fn client_bytes(&mut self, line: &[u8]) -> Vec<u8> {
        if let Ok(text) = std::str::from_utf8(line) {
            return self.client_line(text).into_bytes();
        }
        let mut named = Vec::new();
        for chunk in without_broken_token(line).utf8_chunks() {
            named.extend(self.in_text(chunk.valid(), false).into_bytes());
            named.extend(chunk.invalid());
        }
        named
    }

    /// Returns a line of the client with names for what has one.
    pub(super) fn client_line(&mut self, line: &str) -> String {
        let Ok(mut message) = serde_json::from_str::<Value>(line) else {
            let line = without_broken_token(line.as_bytes());
            return self.in_text(&String::from_utf8_lossy(&line), false);
        };
        let before = message.clone();
        self.learn_folders("", &message);
        let mut has_token = false;
        for token in tokens_in(&before) {
            has_token = true;
            if !self.tokens.contains(token) {
                let name = self.fresh("token");
                self.learn_token(token, &name);
            }
        }
        self.name_requests(&mut message, |message| message.get("method").is_none());
        self.note_said(line);
        self.replace(&mut message, "", false);
        // A message may have a member twice; what is written has the last one alone.
        if message == before && !has_token {
            line.to_owned()
        } else {
            message.to_string()
        }
    }

    /// Returns a line of the host with names for what has one, or needs one.
    pub(super) fn host_line(&mut self, line: &str) -> String {
        let Ok(mut message) = serde_json::from_str::<Value>(line) else { return self.in_text(line, false) };
        let before = message.clone();
        self.learn_folders("", &message);
        let is_request = |message: &Value| message.get("method").is_some();
        for one in messages_of(&before) {
            if let Some(id) = one.get("id").filter(|_| is_request(one)).map(Value::to_string) {
                if !self.requests.contains_key(&id) {
                    let name = self.fresh("request");
                    self.requests.insert(id, name);
                }
            }
            let result = &one["result"];
            let first = result.get("protocolVersion").and(result.get("serverSeq")).and_then(Value::as_u64);
            if first.is_some_and(|first| first > 0) {
                self.sequence.get_or_insert_default();
            }
        }
        self.name_requests(&mut message, is_request);
        self.replace(&mut message, "", true);
        if message == before {
            line.to_owned()
        } else {
            message.to_string()
        }
    }

    /// Puts the names of the host's requests in place of the ids of these messages.
    fn name_requests(&self, line: &mut Value, of: impl Fn(&Value) -> bool) {
        let messages = match line {
            Value::Array(messages) => messages.as_mut_slice(),
            message => std::slice::from_mut(message),
        };
        for id in messages.iter_mut().filter(|message| of(message)).filter_map(|it| it.get_mut("id")) {
            if let Some(name) = self.requests.get(&id.to_string()) {
                *id = Value::from(name.as_str());
            }
        }
    }

    /// Gives names to the folders of sessions.
    fn learn_folders(&mut self, field: &str, value: &Value) {
        match value {
            Value::String(uri) if FOLDER_FIELDS.contains(&field) && uri.starts_with(FILE_URI) => {
                let path = path_of(uri).ok().map(|path| path.display().to_string());
                let Some(path) = path.filter(|path| !self.known.contains_key(path) && path.len() > 3) else {
                    return;
                };
                let name = self.fresh("folder");
                self.learn_folder(&path, &name);
                self.known.insert(uri.clone(), format!("{FILE_URI}{name}"));
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn_folders(field, item)),
            Value::Object(members) => {
                members.iter().for_each(|(field, value)| self.learn_folders(field, value));
            }
            _ => {}
        }
    }

    /// Notes the ids that the client has chosen.
    fn note_said(&mut self, line: &str) {
        for found in found_in(line) {
            let text = &line[found.start..found.end];
            if !self.known.contains_key(text) {
                self.said.insert(text.to_owned());
            }
        }
    }

    /// Puts names in place of values; with `gives`, also of values that have none yet.
    fn replace(&mut self, value: &mut Value, field: &str, gives: bool) {
        match value {
            Value::String(text) => {
                if gives && is_time(text) {
                    *text = TIME.to_owned();
                } else if gives
                    && field == "etag"
                    && !text.is_empty()
                    && !self.known.contains_key(text.as_str())
                {
                    let name = self.fresh("etag");
                    self.known.insert(std::mem::replace(text, name.clone()), name);
                } else if !(text.starts_with(NAME_START) && self.is_request_name(text)) {
                    *text = self.in_text(text, gives);
                }
            }
            Value::Number(number) => {
                let number = number.to_string();
                if SEQUENCE_FIELDS.contains(&field) {
                    if let Some(name) = self.sequence_name(&number, gives) {
                        *value = name.into();
                    }
                } else if gives && (TIME_FIELDS.contains(&field) || field.ends_with(AT)) {
                    *value = TIME.into();
                } else if gives && NUMBER_FIELDS.contains(&field) {
                    *value = format!("{NAME_START}number}}").into();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item, field, gives)),
            Value::Object(members) => {
                let mut replaced = Map::new();
                for (key, mut value) in std::mem::take(members) {
                    self.replace(&mut value, &key, gives);
                    replaced.insert(self.in_text(&key, gives), value);
                }
                *members = replaced;
            }
            _ => {}
        }
    }

    fn is_request_name(&self, text: &str) -> bool {
        self.requests.values().any(|name| name == text)
    }

    fn sequence_name(&mut self, number: &str, gives: bool) -> Option<String> {
        let known = self.sequence.as_ref()?.get(number).cloned();
        if known.is_some() || !gives {
            return known;
        }
        let name = self.fresh("seq");
        self.sequence.as_mut()?.insert(number.to_owned(), name.clone());
        Some(name)
    }

    /// Returns a text with names for its parts.
    fn in_text(&mut self, text: &str, gives: bool) -> String {
        if gives {
            for found in found_in(text) {
                let part = text[found.start..found.end].to_owned();
                if !self.said.contains(&part) && !self.known.contains_key(&part) {
                    let name = self.fresh(found.kind);
                    self.known.insert(part, name);
                }
            }
        }
        let (mut replaced, mut at) = (String::new(), 0);
        while at < text.len() {
            let rest = &text[at..];
            let length = rest.chars().next().map_or(1, char::len_utf8);
            let known = self.known.range::<str, _>((Bound::Included(&rest[..length]), Bound::Unbounded));
            let known = known.take_while(|(part, _)| part.starts_with(&rest[..length]));
            let stands_here = |part: &str| {
                let end = at + part.len();
                let is_token = self.tokens.contains(part) && is_hidden(text, at, end);
                is_token || is_apart(text, at, end)
            };
            let known = known.filter(|(part, _)| rest.starts_with(part.as_str()) && stands_here(part));
            if let Some((part, name)) = known.max_by_key(|(part, _)| part.len()) {
                replaced += name;
                at += part.len();
            } else if rest.starts_with(NAME_START) {
                replaced += DOLLAR;
                at += 1;
            } else {
                replaced += &rest[..length];
                at += length;
            }
        }
        replaced
    }
}

/// Returns whether a part of a text is no part of a longer word.
pub(super) fn is_apart(text: &str, start: usize, end: usize) -> bool {
    let is_of_words = |char: char| char.is_alphanumeric() || char == '_';
    let (before, after) = (text[..start].chars().next_back(), text[end..].chars().next());
    let (first, last) = (text[start..].chars().next(), text[..end].chars().next_back());
    let joins = |some: Option<char>, other: Option<char>| {
        some.is_some_and(is_of_words) && other.is_some_and(is_of_words)
    };
    !joins(before, first) && !joins(last, after)
}

/// Returns the ids, hashes and ports in a text.
fn found_in(text: &str) -> Vec<Found> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let is_uuid = |bytes: &[u8]| {
        bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    let mut at = 0;
    while at < bytes.len() {
        let run = bytes[at..].iter().take_while(|byte| is_hex(byte)).count();
        let mixed = bytes[at..at + run].iter().any(u8::is_ascii_digit)
            && bytes[at..at + run].iter().any(u8::is_ascii_alphabetic);
        let (length, kind) = if bytes.get(at..at + UUID_CHARS).is_some_and(is_uuid) {
            (UUID_CHARS, "id")
        } else if run >= HASH_CHARS_MIN && mixed {
            (run, "hash")
        } else {
            at += 1;
            continue;
        };
        if is_apart(text, at, at + length) {
            found.push(Found { start: at, end: at + length, kind });
            at += length;
        } else {
            at += 1;
        }
    }
    for host in LOCAL_HOSTS {
        for (start, _) in text.match_indices(host) {
            let start = start + host.len();
            let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if (2..=5).contains(&digits) {
                found.push(Found { start, end: start + digits, kind: "port" });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const OTHER: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    #[test]
    fn value_chosen_by_the_host_gets_a_name_and_keeps_it() {
        let mut naming = Naming::default();
        let said = format!(r#"{{"method":"x","params":{{"turnId":"{OTHER}","cost":"${{5}}"}}}}"#);
        assert_eq!(naming.client_line(&said), said.replace("${", "${$}{"));
        let line = format!(
            r#"{{"params":{{"{ID}":"a:/{ID}","turnId":"{OTHER}","at":"2026-01-01T00:00:00Z","duration":5}}}}"#
        );
        assert_eq!(
            naming.host_line(&line),
            format!(
                r#"{{"params":{{"${{id-1}}":"a:/${{id-1}}","turnId":"{OTHER}","at":"${{time}}","duration":"${{number}}"}}}}"#
            )
        );
        assert_eq!(naming.client_line(&format!(r#"["a:/{ID}"]"#)), r#"["a:/${id-1}"]"#);
    }

    #[test]
    fn folder_port_hash_token_and_request_get_names() {
        let mut naming = Naming::default();
        let line = r#"{"method":"createSession","params":{"workingDirectories":["file:///home/me/a%20b"]}}"#;
        assert!(naming.client_line(line).contains(r#"["file://${folder-1}"]"#));
        let line = r#"{"method":"authenticate","params":{"token":"secret"}}"#;
        assert!(naming.client_line(line).contains(r#""token":"${token-1}""#));
        let line = r#"{"id":4,"method":"resourceRead","params":{"uri":"file:///home/me/a%20b/c","at":"http://127.0.0.1:4711/","commit":"da39a3ee5e6b4b0d3255bfef95601890afd80709","path":"/home/me/a b/c /home/me/a bc secret"}}"#;
        assert_eq!(
            naming.host_line(line),
            r#"{"id":"${request-1}","method":"resourceRead","params":{"uri":"file://${folder-1}/c","at":"http://127.0.0.1:${port-1}/","commit":"${hash-1}","path":"${folder-1}/c /home/me/a bc ${token-1}"}}"#
        );
        assert_eq!(naming.client_line(r#"{"id":4,"result":{}}"#), r#"{"id":"${request-1}","result":{}}"#);
        assert_eq!(naming.client_line(r#"{"id":4,"method":"x"}"#), r#"{"id":4,"method":"x"}"#);
    }

    #[test]
    fn numbers_of_actions_get_names_if_the_host_is_not_fresh() {
        let (fresh, used) = (
            r#"{"id":1,"result":{"protocolVersion":"1.0.0","serverSeq":0}}"#,
            r#"{"id":1,"result":{"protocolVersion":"1.0.0","serverSeq":7}}"#,
        );
        assert_eq!(Naming::default().host_line(fresh), fresh);
        let mut naming = Naming::default();
        assert_eq!(naming.host_line(used), used.replace('7', "\"${seq-1}\""));
        assert_eq!(
            naming.host_line(r#"{"fromSeq":7,"serverSeq":8}"#),
            r#"{"fromSeq":"${seq-1}","serverSeq":"${seq-2}"}"#
        );
        assert_eq!(naming.client_line(r#"{"lastSeenServerSeq":8}"#), r#"{"lastSeenServerSeq":"${seq-2}"}"#);
    }
}
