//! URIs of watches.
//!
//! Owns: the subject and options of a watch ([`Watched`]), their limits, and the URI that contains
//! them. A watch without subscribers needs no memory, and its URI outlives a restart.
//! Never: reads files, or knows which watches exist.

use std::collections::BTreeMap;

use ahp_types::commands::CreateResourceWatchParams;
use ahp_types::common::AnyValue;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;
use globset::{Glob, GlobBuilder};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::errors::RpcError;
use super::rpc::to_json;
use super::uris::rest_below;

const SCHEME: &str = "ahp-resource-watch:/";

/// Maximum number of watches that one connection subscribes to.
pub const WATCHES_MAX: usize = 64;

/// Maximum number of patterns of a watch.
const PATTERNS_MAX: usize = 64;

/// Maximum length of all patterns of a watch together, in bytes.
const PATTERN_BYTES_MAX: usize = 4 << 10;

/// Subject of a watch, with its options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watched {
    /// URI of the file or folder, in the client's spelling.
    pub uri: String,
    /// Set if the watch includes everything below the folder.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recursive: bool,
    /// Patterns of paths that are not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excludes: Option<Vec<String>>,
    /// Patterns of the only paths that are reported; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub includes: Option<Vec<String>>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

/// Patterns in a request.
#[derive(Deserialize)]
struct Patterns {
    items: Vec<String>,
}

impl Watched {
    /// Makes a watch from a client's request.
    ///
    /// # Errors
    /// `-32602` when patterns are invalid or too many.
    pub fn asked_for(params: CreateResourceWatchParams) -> Result<Self, RpcError> {
        let folder = path_of_uri(&params.uri);
        let watched = Self {
            excludes: patterns("excludes", params.excludes, &folder)?,
            includes: patterns("includes", params.includes, &folder)?,
            recursive: params.recursive == Some(true),
            uri: params.uri,
        };
        watched.check()?;
        Ok(watched)
    }

    /// Parses the URI of a watch; `None` if it is of another form, or exceeds the limits.
    pub fn from_channel(channel: &str) -> Option<Self> {
        let json = URL_SAFE_NO_PAD.decode(channel.strip_prefix(SCHEME)?).ok()?;
        let watched: Self = serde_json::from_slice(&json).ok()?;
        watched.check().ok()?;
        // Each watch has exactly one URI.
        (watched.channel() == channel).then_some(watched)
    }

    /// Returns the URI of the watch.
    pub fn channel(&self) -> String {
        format!("{SCHEME}{}", URL_SAFE_NO_PAD.encode(to_json(self)))
    }

    /// Returns the patterns by their name, `excludes` or `includes`, as far as they are set.
    pub fn patterns(&self) -> BTreeMap<&'static str, AnyValue> {
        let named = [("excludes", &self.excludes), ("includes", &self.includes)];
        let there = named.into_iter().filter_map(|(name, items)| Some((name, items.as_ref()?)));
        there.map(|(name, items)| (name, json!({ "items": items }))).collect()
    }

    fn check(&self) -> Result<(), RpcError> {
        let all: Vec<&String> = self.excludes.iter().chain(&self.includes).flatten().collect();
        if all.len() > PATTERNS_MAX {
            let message = format_args!("a watch has at most {PATTERNS_MAX} patterns");
            return Err(RpcError::invalid_params(message));
        }
        if all.iter().map(|pattern| pattern.len()).sum::<usize>() > PATTERN_BYTES_MAX {
            let message = format_args!("the patterns of a watch have at most {PATTERN_BYTES_MAX} bytes");
            return Err(RpcError::invalid_params(message));
        }
        for pattern in all {
            glob(pattern).map_err(|why| RpcError::invalid_params(format_args!("`{pattern}`: {why}")))?;
        }
        Ok(())
    }
}

/// Returns whether a URI has the scheme of watches.
pub fn is_watch(channel: &str) -> bool {
    channel.starts_with(SCHEME)
}

/// Parses a pattern of paths below the watched folder: `*` stays in one name, `**` does not.
///
/// # Errors
/// When the pattern is invalid.
pub fn glob(pattern: &str) -> Result<Glob, globset::Error> {
    let relative = pattern.trim_start_matches("./").trim_start_matches('/').trim_end_matches('/');
    GlobBuilder::new(relative).literal_separator(true).backslash_escape(true).build()
}

/// Returns the path of a URI, decoded as text.
fn path_of_uri(uri: &str) -> String {
    let path = uri.split_once(':').map_or(uri, |(_, rest)| rest);
    let path = path.strip_prefix("//").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or(path);
    percent_decode_str(path).decode_utf8_lossy().trim_end_matches('/').to_owned()
}

/// Makes an absolute pattern below the watched folder relative to it.
fn below(folder: &str, pattern: String) -> String {
    let rest = rest_below(&pattern, folder).filter(|rest| pattern.starts_with('/') && !rest.is_empty());
    rest.map(str::to_owned).unwrap_or(pattern)
}

fn patterns(name: &str, asked: Option<AnyValue>, folder: &str) -> Result<Option<Vec<String>>, RpcError> {
    let Some(asked) = asked.filter(|asked| !asked.is_null()) else { return Ok(None) };
    let read = serde_json::from_value::<Patterns>(asked);
    let read = read.map_err(|why| RpcError::invalid_params(format_args!("`{name}`: {why}")))?;
    if let Some(uri) = read.items.iter().find(|pattern| pattern.to_ascii_lowercase().starts_with("file:")) {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is a URI, and no pattern of paths")));
    }
    Ok(Some(read.items.into_iter().map(|pattern| below(folder, pattern)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(params: serde_json::Value) -> Result<Watched, i32> {
        Watched::asked_for(serde_json::from_value(params).unwrap()).map_err(|error| error.code)
    }

    fn with_excludes(items: &[String]) -> Result<Watched, i32> {
        asked(json!({ "channel": "ahp-root://", "uri": "file:///a", "excludes": { "items": items } }))
    }

    #[test]
    fn uri_of_a_watch_holds_its_settings_and_has_no_other_spelling() {
        let all = json!({ "channel": "ahp-root://", "uri": "file:///a b/", "recursive": true,
            "excludes": { "items": ["**/x/**"] }, "includes": { "items": [] } });
        let watched = asked(all).unwrap();
        let channel = watched.channel();
        assert_eq!(Watched::from_channel(&channel), Some(watched));
        let plain = asked(json!({ "channel": "ahp-root://", "uri": "file:///a" })).unwrap();
        let encoded = |json: &str| format!("{SCHEME}{}", URL_SAFE_NO_PAD.encode(json));
        assert_eq!(plain.channel(), encoded(r#"{"uri":"file:///a"}"#));
        for other in [
            encoded(r#"{ "uri":"file:///a"}"#),
            encoded(r#"{"uri":"file:///a","recursive":false}"#),
            encoded(r#"{"uri":"file:///a","more":1}"#),
            encoded(r#"{"uri":"file:///a","excludes":["[x"]}"#),
            format!("{SCHEME}?"),
            "ahp-session:/s".to_owned(),
        ] {
            assert_eq!(Watched::from_channel(&other), None, "{other}");
        }
    }

    #[test]
    fn an_absolute_path_below_the_watch_is_one_from_there() {
        let excludes = |uri: &str, pattern: &str| {
            let params = json!({ "channel": "ahp-root://", "uri": uri, "excludes": { "items": [pattern] } });
            asked(params).map(|watched| watched.excludes.unwrap().remove(0))
        };
        for (uri, pattern, from_there) in [
            ("file:///a%20b/c/", "/a b/c/out/**", "out/**"),
            ("file://localhost/a", "/a/b", "b"),
            ("file:///a", "/ab", "/ab"),
            ("file:///a", "/a", "/a"),
            ("file:///a", "**/b", "**/b"),
            ("file:///", "/b", "b"),
        ] {
            assert_eq!(excludes(uri, pattern).as_deref(), Ok(from_there), "{uri} {pattern}");
        }
        assert_eq!(excludes("file:///a", "file:///a/b"), Err(-32602));
    }

    #[test]
    fn patterns_have_room_up_to_the_limits() {
        let many = |count: usize| vec!["x".to_owned(); count];
        assert!(with_excludes(&many(PATTERNS_MAX)).is_ok());
        assert_eq!(with_excludes(&many(PATTERNS_MAX + 1)), Err(-32602));
        let long = |bytes: usize| vec!["x".repeat(bytes - 1), "y".to_owned()];
        assert!(with_excludes(&long(PATTERN_BYTES_MAX)).is_ok());
        assert_eq!(with_excludes(&long(PATTERN_BYTES_MAX + 1)), Err(-32602));
        assert_eq!(with_excludes(&["{a".to_owned()]), Err(-32602));
        let wrong = json!({ "channel": "ahp-root://", "uri": "file:///a", "excludes": ["x"] });
        assert_eq!(asked(wrong), Err(-32602));
    }
}
