//! Tokens that a client says in `authenticate`: no recording repeats them.
//!
//! A token is found in whatever the client sends: in a message, in an array of messages, or in a
//! line that is no JSON. It is hidden in each later line of both sides, too.
//!
//! Owns: which texts are tokens, and hiding them in a log.
//! Never: chooses the names that a transcript has for them.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::naming::is_apart;

/// Method whose params have a token.
const METHOD: &str = "authenticate";

/// Minimum size of a token that is hidden inside of words, too, in bytes: shorter ones are parts of
/// other words.
const INSIDE_BYTES_MIN: usize = 8;

/// Text in place of what follows the member `token` in a line that is no JSON.
const REMOVED: &str = " removed";

/// Returns the messages of a line: those of an array, or the only one.
pub(super) fn messages_of(line: &Value) -> &[Value] {
    match line {
        Value::Array(messages) => messages,
        message => std::slice::from_ref(message),
    }
}

/// Returns the tokens in a line of the client.
pub(super) fn tokens_in(line: &Value) -> impl Iterator<Item = &str> {
    let asking = messages_of(line).iter().filter(|message| message["method"] == METHOD);
    let tokens = asking.filter_map(|message| message["params"]["token"].as_str());
    tokens.filter(|token| !token.is_empty())
}

/// Returns the spellings of a token: plain, and escaped as in a JSON text that is quoted in another
/// one.
pub(super) fn spellings(token: &str) -> impl Iterator<Item = String> {
    let json = Value::from(token).to_string();
    let escaped = json[1..json.len() - 1].to_owned();
    let other = (escaped != token).then_some(escaped);
    std::iter::once(token.to_owned()).chain(other)
}

/// Returns whether a token at this place of a text is hidden: a short one only as a word.
pub(super) fn is_hidden(text: &str, start: usize, end: usize) -> bool {
    end - start >= INSIDE_BYTES_MIN || is_apart(text, start, end)
}

/// Returns a line of the client that is no JSON without what may be a token, or a part of one.
pub(super) fn without_broken_token(line: &[u8]) -> Cow<'_, [u8]> {
    let finds = |word: &str| memchr::memmem::find(line, word.as_bytes());
    match finds(METHOD).and(finds("\"token\"")) {
        Some(at) => [&line[..at + "\"token\"".len()], REMOVED.as_bytes()].concat().into(),
        None => line.into(),
    }
}

/// Tokens that are hidden in a log.
#[derive(Debug, Default)]
pub(super) struct HiddenTokens {
    /// Spellings of tokens, with the text in place of each; longer ones come first.
    known: Vec<(String, String)>,
    count: usize,
}

impl HiddenTokens {
    /// Hides the tokens of a line of the client from now on.
    pub(super) fn learn(&mut self, line: &Value) {
        for token in tokens_in(line) {
            if self.known.iter().any(|(known, _)| known == token) {
                continue;
            }
            self.count += 1;
            let shown = format!("removed-token-{}", self.count);
            self.known.extend(spellings(token).map(|spelling| (spelling, shown.clone())));
        }
        // A token that is a part of another one would break it up.
        self.known.sort_by_key(|(token, _)| std::cmp::Reverse(token.len()));
    }

    /// Hides the tokens in all texts of a value.
    pub(super) fn hide(&self, value: &mut Value) {
        match value {
            _ if self.known.is_empty() => {}
            Value::String(text) => *text = self.hidden(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(members) => {
                let shown = std::mem::take(members).into_iter().map(|(key, mut value)| {
                    self.hide(&mut value);
                    (self.hidden(&key), value)
                });
                *members = shown.collect::<Map<_, _>>();
            }
            _ => {}
        }
    }

    /// Returns a text in which tokens are hidden.
    pub(super) fn hidden(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (token, shown) in &self.known {
            let places = text.match_indices(token.as_str()).map(|(at, _)| at);
            let places: Vec<usize> = places.filter(|at| is_hidden(&text, *at, at + token.len())).collect();
            for at in places.into_iter().rev() {
                text.replace_range(at..at + token.len(), shown);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_is_hidden_wherever_it_is_repeated() {
        let mut tokens = HiddenTokens::default();
        tokens.learn(&json!([{ "method": "authenticate", "params": { "token": "s3cr\"et-7" } }, 1]));
        tokens.learn(&json!({ "method": "authenticate", "params": { "token": "ab" } }));
        let mut said = json!({ "xs3cr\"et-7y": ["{\"a\":\"s3cr\\\"et-7\"}", "ab", "cab"] });
        tokens.hide(&mut said);
        let (one, two) = ("removed-token-1", "removed-token-2");
        assert_eq!(said, json!({ format!("x{one}y"): [format!("{{\"a\":\"{one}\"}}"), two, "cab"] }));
    }

    #[test]
    fn token_of_a_broken_line_is_cut_off() {
        let broken = br#"{"method":"authenticate","params":{"token":"s3cr"#;
        assert_eq!(
            *without_broken_token(broken),
            br#"{"method":"authenticate","params":{"token" removed"#[..]
        );
        assert_eq!(*without_broken_token(b"\"token\""), b"\"token\""[..]);
    }
}
