//! Forms of messages and values, without what people and agents say.
//!
//! A word is shown only if it is one of the protocols' own, all of which are in `words.txt`: any
//! other text, and any other name of a member, is hidden.
//!
//! Owns: these words, the shape of a line, and values in which texts are hidden.
//! Never: reads or writes a file.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use serde_json::{Map, Value};

/// Names of methods, actions, members and kinds of AHP, of ACP and of the configuration.
const WORDS: &str = include_str!("words.txt");

/// Word in place of an unknown one.
const OTHER: &str = "other";

/// Members whose texts are one of a few words.
const CHOICES: [&str; 8] =
    ["type", "kind", "method", "status", "state", "transport", "confirmed", "response"];

/// Returns the word if it is one of the protocols, or of the configuration.
fn known(word: &str) -> Option<&'static str> {
    static KNOWN: LazyLock<BTreeSet<&str>> = LazyLock::new(|| WORDS.lines().collect());
    KNOWN.get(word).copied()
}

/// Returns a word that may be shown: the given one, or a general one.
pub fn shown(word: &str) -> &'static str {
    known(word).unwrap_or(OTHER)
}

/// Shape of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Method and action, or that it is an answer, such as `dispatchAction chat/turnStarted`.
    pub name: String,
    /// Scheme of the channel, such as `ahp-chat`; `None` for a message without one.
    pub channel: Option<&'static str>,
    /// Id of a request or an answer, as JSON text. It may be a text of a person.
    pub id: Option<String>,
    /// True for an answer.
    pub is_answer: bool,
    /// Size of the message, in bytes.
    pub bytes: usize,
}

impl Shape {
    /// Returns the shape of a line.
    pub fn of_line(line: &[u8]) -> Self {
        let message = serde_json::from_slice(line).unwrap_or_default();
        Self::of(&message, line.len())
    }

    /// Returns the shape of a message with this size.
    pub fn of(message: &Value, bytes: usize) -> Self {
        let params = &message["params"];
        let method = message["method"].as_str();
        let is_answer = method.is_none() && message.get("id").is_some();
        let mut name = match method {
            Some(method) => shown(method).to_owned(),
            None if !is_answer => "no message".to_owned(),
            None if message.get("error").is_some() => "answer with an error".to_owned(),
            None => "answer".to_owned(),
        };
        if let Some(action) = params["action"]["type"].as_str() {
            name = format!("{name} {}", shown(action));
        }
        let update = params["update"]["sessionUpdate"].as_str();
        if let Some(update) = update.and_then(known) {
            name = format!("{name} {update}");
        }
        let channel = params["channel"].as_str();
        let channel = channel.map(|uri| shown(uri.split_once(':').map_or("", |(scheme, _)| scheme)));
        let id = message.get("id").map(Value::to_string);
        Self { name, channel, id, is_answer, bytes }
    }
}

/// Hides texts: each becomes its length and a hash with a salt that is kept nowhere, so that equal
/// texts can be distinguished from different ones, and nothing else.
#[derive(Debug, Default)]
pub struct Redactor {
    salt: RandomState,
}

impl Redactor {
    /// Returns what is shown of a text.
    pub fn text(&self, text: &str) -> String {
        format!("text {} {:016x}", text.len(), self.salt.hash_one(text))
    }

    /// Returns a value in which all texts are hidden, but for known words and points in time.
    pub fn value(&self, value: &Value) -> Value {
        self.below("", value)
    }

    fn below(&self, member: &str, value: &Value) -> Value {
        match value {
            Value::String(text) => match known(text).filter(|_| CHOICES.contains(&member)) {
                Some(word) => word.into(),
                None if text.len() <= 35 && text.parse::<jiff::Timestamp>().is_ok() => text.as_str().into(),
                None => self.text(text).into(),
            },
            Value::Array(items) => items.iter().map(|item| self.below(member, item)).collect(),
            Value::Object(members) => {
                let shown = members.iter().map(|(name, value)| {
                    let shown = known(name).map_or_else(|| self.text(name), str::to_owned);
                    (shown, self.below(name, value))
                });
                Value::Object(shown.collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_method_is_a_known_word() {
        for method in crate::wire::methods::Method::ALL {
            assert_eq!(shown(method.name()), method.name());
        }
        let mut words: Vec<&str> = WORDS.lines().collect();
        let before = words.clone();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words, before, "the words are sorted, and none comes twice");
    }

    #[test]
    fn shape_shows_known_words_only() {
        let line = br#"{"id":"s3cret","method":"dispatchAction","params":{"channel":"ahp-chat:/s3cret","action":{"type":"chat/turnStarted","message":{"text":"s3cret"}}}}"#;
        let shape = Shape::of_line(line);
        assert_eq!(shape.name, "dispatchAction chat/turnStarted");
        assert_eq!((shape.channel, shape.bytes, shape.is_answer), (Some("ahp-chat"), line.len(), false));
        let strange = br#"{"method":"s3cret","params":{"channel":"s3cret:/x","action":{"type":"s3cret"}}}"#;
        let shape = Shape::of_line(strange);
        assert_eq!((shape.name.as_str(), shape.channel), ("other other", Some("other")));
        assert_eq!(Shape::of_line(b"s3cret").name, "no message");
    }

    #[test]
    fn veil_hides_texts_and_names_and_keeps_what_is_equal() {
        let redactor = Redactor::default();
        let value = json!({ "type": "chat/delta", "text": "chat/delta", "s3cret": ["s3cret", 7, true],
            "createdAt": "2026-01-01T00:00:00Z", "status": "s3cret" });
        let shown = redactor.value(&value);
        let text = shown.to_string();
        assert!(!text.contains("s3cret") && text.contains("2026-01-01"), "{text}");
        assert_eq!(shown["type"], "chat/delta");
        assert_ne!(shown["text"], "chat/delta");
        let hidden = redactor.text("s3cret");
        assert_eq!((&shown[&hidden][0], &shown["status"]), (&json!(hidden), &json!(hidden)));
        assert!(hidden.starts_with("text 6 "));
        assert_ne!(hidden, Redactor::default().text("s3cret"), "each bundle has a salt of its own");
    }
}
