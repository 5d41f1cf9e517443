//! Secrets that this process has given to others and that no log may show: tokens and keys.
//!
//! Owns: which texts those are at the moment, and what stands in their place.
//! Never: gives one away, or changes what anybody but a reader of the log is told.
//!
//! There is one log for the process, and whoever has been given a secret may say it back at any
//! time and in any place, such as an error: so there is one list, which every entry of the log is
//! held against.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Text that replaces a secret in the log.
const HIDDEN: &str = "(secret)";

/// Texts to hide, each with the number of [`Secret`]s that hold it.
static KEPT: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<String, usize>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A secret that no log shows while this is there.
#[derive(PartialEq, Eq)]
pub struct Secret(Vec<String>);

impl Secret {
    /// Keeps a text secret, also as JSON writes it.
    pub fn register(text: &str) -> Self {
        let json = serde_json::Value::from(text).to_string();
        let mut spelled = vec![text.to_owned(), json.trim_matches('"').to_owned()];
        spelled.dedup();
        spelled.retain(|text| !text.is_empty());
        let mut kept = kept();
        for text in &spelled {
            *kept.entry(text.clone()).or_default() += 1;
        }
        Self(spelled)
    }
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
        let said = "c0ffee-\"1 and {\"key\":\"c0ffee-\\\"1\"}, c0ffee-2";
        assert_eq!(redact(said), "(secret) and {\"key\":\"(secret)\"}, c0ffee-2");
        drop(one);
        assert!(redact(said).starts_with("(secret)"));
        drop(same);
        assert!(matches!(redact(said), Cow::Borrowed(shown) if shown == said));
        drop(Secret::register(""));
        assert_eq!(redact(""), "");
    }

    #[test]
    fn secret_that_contains_another_is_hidden_whole() {
        let _kept = ["7ea-p07", "a7ea-p07-1", "7ea-p07-23"].map(Secret::register);
        assert_eq!(redact("7ea-p07, a7ea-p07-1, 7ea-p07-23"), "(secret), (secret), (secret)");
    }
}
