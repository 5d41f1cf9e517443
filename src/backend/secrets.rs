//! Secrets that the host has passed to other processes and that must not appear in the log: tokens
//! and keys.
//!
//! Owns: the current set of secret texts, and their replacement in the log.
//! Never: passes a secret on, or changes anything but log entries.
//!
//! The set is global because the log is: a process that knows a secret may repeat it at any time,
//! for example in an error, so every log entry is checked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::sync::lock;

/// Text that replaces a secret in the log.
const HIDDEN: &str = "(secret)";

/// Minimum size of a literal value, or of one line of a secret, that is hidden for itself, in
/// bytes: shorter ones, such as `1`, would hide too much else.
pub const HIDDEN_BYTES_MIN: usize = 8;

/// Texts to hide, with the number of [`Secret`]s that hold each.
static KEPT: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<String, usize>> {
    lock(&KEPT)
}

/// Secret text, hidden from the log until this is dropped.
#[derive(PartialEq, Eq)]
pub struct Secret(Vec<String>);

impl Secret {
    /// Hides a text from the log: in plain form, as escaped in JSON, and as in a JSON text that is
    /// quoted in another one; each with other characters than ASCII as they are, and escaped. Of a
    /// text of several lines, each longer line is hidden alone, too, as programs print it.
    pub fn register(text: &str) -> Self {
        let escaped = |text: &str| {
            let json = serde_json::Value::from(text).to_string();
            json[1..json.len() - 1].to_owned()
        };
        let once = escaped(text);
        let mut spelled = vec![text.to_owned(), escaped(&once), once];
        if text.trim_end().contains('\n') {
            let lines = text.lines().map(str::trim).filter(|line| line.len() >= HIDDEN_BYTES_MIN);
            spelled.extend(lines.map(str::to_owned));
        }
        // Programs that write ASCII escape other characters each time that they quote.
        let spelled_in_ascii: Vec<String> = spelled
            .iter()
            .filter(|text| !text.is_ascii())
            .flat_map(|text| [false, true].map(|uppercase| in_ascii(text, uppercase)))
            .flat_map(|text| [escaped(&text), text])
            .collect();
        spelled.extend(spelled_in_ascii);
        spelled.sort();
        spelled.dedup();
        spelled.retain(|text| !text.is_empty());
        let mut kept = kept();
        for text in &spelled {
            *kept.entry(text.clone()).or_default() += 1;
        }
        Self(spelled)
    }
}

/// Returns a text with each UTF-16 code unit outside of ASCII as JSON escapes it.
fn in_ascii(text: &str, uppercase: bool) -> String {
    let escaped = |unit: u16| match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
        _ if uppercase => format!("\\u{unit:04X}"),
        _ => format!("\\u{unit:04x}"),
    };
    text.encode_utf16().map(escaped).collect()
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let mut kept = kept();
        for text in &self.0 {
            match kept.get_mut(text) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(kept.remove(text)),
            }
        }
    }
}

/// Returns the text with each secret in it replaced.
pub fn redact(text: &str) -> Cow<'_, str> {
    let kept = kept();
    let mut found: Vec<&String> = kept.keys().filter(|secret| text.contains(secret.as_str())).collect();
    // A secret that is a part of another one would break it up, and its rest would be shown.
    found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    found.iter().fold(Cow::Borrowed(text), |shown, secret| shown.replace(secret.as_str(), HIDDEN).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_hidden_as_long_as_anybody_keeps_it() {
        let (one, same) = (Secret::register("c0ffee-\"1"), Secret::register("c0ffee-\"1"));
        let text = "c0ffee-\"1 and {\"key\":\"c0ffee-\\\"1\"}, c0ffee-2";
        assert_eq!(redact(text), "(secret) and {\"key\":\"(secret)\"}, c0ffee-2");
        drop(one);
        assert!(redact(text).starts_with("(secret)"));
        drop(same);
        assert!(matches!(redact(text), Cow::Borrowed(shown) if shown == text));
        drop(Secret::register(""));
        assert_eq!(redact(""), "");
    }

    #[test]
    fn secret_is_hidden_in_quoted_messages_and_line_by_line() {
        let _kept = Secret::register("-----BEGIN-----\nbase64-of-it\"\nend");
        let quoted = serde_json::json!({ "key": "-----BEGIN-----\nbase64-of-it\"\nend" }).to_string();
        let twice = serde_json::json!({ "message": quoted }).to_string();
        assert_eq!(redact(&twice), r#"{"message":"{\"key\":\"(secret)\"}"}"#);
        assert_eq!(redact("it reads base64-of-it\", and the end"), "it reads (secret), and the end");
    }

    #[test]
    fn secret_is_hidden_in_json_that_is_written_in_ascii() {
        let _kept = Secret::register("grün-\u{1f511}\"");
        let quoted = r#"{"message":"{\"a\":\"gr\\u00fcn-\\ud83d\\udd11\\\"\"}"}"#;
        assert_eq!(redact(quoted), r#"{"message":"{\"a\":\"(secret)\"}"}"#);
        let text = r#"{"a":"gr\u00fcn-\ud83d\udd11\"","b":"gr\u00FCn-\uD83D\uDD11\"","c":"gr\u00fcnlich"}"#;
        assert_eq!(redact(text), r#"{"a":"(secret)","b":"(secret)","c":"gr\u00fcnlich"}"#);
    }

    #[test]
    fn secret_that_contains_another_is_hidden_whole() {
        let _kept = ["7ea-p07", "a7ea-p07-1", "7ea-p07-23"].map(Secret::register);
        assert_eq!(redact("7ea-p07, a7ea-p07-1, 7ea-p07-23"), "(secret), (secret), (secret)");
    }
}
