//! Messages between a front and its host, other than the client's: a line of JSON each.
//!
//! A front says [`Hello`], with its stdin and stdout beside the first byte of it, and is answered
//! with [`HelloLine::Welcome`] or [`HelloLine::Refused`]. From then on the host reads and writes
//! the two by itself. What the front says later asks for the end of its client ([`LEAVE`]), and so
//! does the end of the stream.
//!
//! A hello carries every setting of its front. Those of its connection ([`SettingsMessage`]) and of
//! the listeners that it asks for ([`Listening`]) are its own. Those of the host
//! ([`Hello::settings`]) must be equal to the host's. The agents of the configuration file
//! ([`ConfigurationSeen`]) need not: where the front has read another content of the same file, the
//! host reads it anew.
//!
//! Owns: the words, their version, and what differs between what a front wants and what its host
//! runs with.
//! Never: reads or writes them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::link::ConnectionSettings;
use super::listen::Listening;
use crate::config::ConfigurationSeen;
use crate::host::effects::Shutdown;
use crate::versions::dialect::Dialect;

/// The version of these words. Another one is another language.
pub const LINK: u32 = 2;

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Line by which a front asks to have its client's turns cancelled and its connection closed.
pub const LEAVE: &[u8] = b"\"leave\"\n";

/// The first line of a front.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// The version of these words: [`LINK`].
    pub link: u32,
    /// The version of the program.
    pub version: String,
    /// Settings of its connection.
    pub terms: SettingsMessage,
    /// Filter for the lines of the log that it wants to receive.
    pub log: String,
    /// Settings that must be equal to the host's, each under the name that people know it by.
    pub settings: BTreeMap<String, String>,
    /// The configuration file as the front has read it.
    pub configuration: ConfigurationSeen,
    /// Addresses that the host is asked to listen on; `None` for no listener.
    pub listening: Option<Listening>,
    /// Checksums of variables of the environment that agents depend on; none for one that is not
    /// set.
    pub environment: BTreeMap<String, Option<u32>>,
}

/// Beginning of a hello, which every version of these words has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HelloVersion {
    /// The version of these words, compared with [`LINK`].
    pub link: u32,
    /// The version of the program.
    #[serde(default)]
    pub version: String,
}

/// [`ConnectionSettings`] as they are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingsMessage {
    default_directory: Option<String>,
    line_bytes_max: usize,
    /// None: turns are cancelled.
    drain_ms: Option<u64>,
    assume_version: Option<String>,
    /// `None` for that of all connections.
    patience_ms: Option<u64>,
}

impl From<&ConnectionSettings> for SettingsMessage {
    fn from(terms: &ConnectionSettings) -> Self {
        Self {
            default_directory: terms.default_directory.clone(),
            line_bytes_max: terms.line_bytes_max,
            patience_ms: terms.patience.map(milliseconds),
            drain_ms: match terms.at_end {
                Shutdown::Drain(limit) => Some(milliseconds(limit)),
                Shutdown::Cancel => None,
            },
            assume_version: terms.assume_version.map(|version| version.name().to_owned()),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<SettingsMessage> for ConnectionSettings {
    fn from(wishes: SettingsMessage) -> Self {
        Self {
            default_directory: wishes.default_directory,
            line_bytes_max: wishes.line_bytes_max,
            patience: wishes.patience_ms.map(Duration::from_millis),
            at_end: match wishes.drain_ms {
                Some(limit) => Shutdown::Drain(Duration::from_millis(limit)),
                None => Shutdown::Cancel,
            },
            assume_version: wishes.assume_version.as_deref().and_then(Dialect::from_name),
            // Whoever has its pipes to itself ends them for good.
            returns_within: None,
        }
    }
}

/// A line of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HelloLine {
    /// The first line: the client is served.
    Welcome {
        /// The version of the host's program.
        version: String,
        /// The host's process.
        process: u32,
        /// Variables of the environment that are other ones for the host.
        differs: Vec<String>,
        /// URLs of the listeners that the front has asked for, as they are to be printed.
        listening: Vec<String>,
        /// Reason why the host goes on with other agents than the front's configuration file names,
        /// for people.
        outdated: Option<String>,
    },
    /// The first line: the client is not served.
    Refused {
        /// Why, for people.
        why: String,
        /// The exit status that says so.
        status: u8,
    },
    /// A line of the log.
    Log(String),
    /// The client's connection is over.
    Over {
        /// The exit status that says how.
        status: u8,
        /// Why, for people, where it failed.
        why: Option<String>,
    },
}

impl HelloLine {
    /// The line.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// The names of what is not the same here and there.
pub fn differences<V: PartialEq>(here: &BTreeMap<String, V>, there: &BTreeMap<String, V>) -> Vec<String> {
    let mut names: Vec<&String> = here.keys().chain(there.keys()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter(|name| here.get(*name) != there.get(*name)).cloned().collect()
}

/// Checksums of these variables of the environment.
pub fn environment(names: impl IntoIterator<Item = String>) -> BTreeMap<String, Option<u32>> {
    let sum = |name: &String| {
        std::env::var_os(name).map(|value| crc32fast::hash(value.as_os_str().as_encoded_bytes()))
    };
    names.into_iter().map(|name| (name.clone(), sum(&name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_comes_through() {
        let at_ends = [Shutdown::Cancel, Shutdown::Drain(Duration::from_secs(60))];
        for (at_end, assume_version) in at_ends.into_iter().zip([None, Dialect::from_name("0.4.0")]) {
            let terms = ConnectionSettings {
                default_directory: Some("file:///a".to_owned()),
                line_bytes_max: 7,
                at_end,
                assume_version,
                returns_within: None,
                patience: assume_version.map(|_| Duration::from_secs(7)),
            };
            let said = serde_json::to_string(&SettingsMessage::from(&terms)).unwrap();
            assert_eq!(
                ConnectionSettings::from(serde_json::from_str::<SettingsMessage>(&said).unwrap()),
                terms
            );
        }
    }

    #[test]
    fn what_differs_is_named_once() {
        let map = |pairs: &[(&str, u8)]| -> BTreeMap<String, u8> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let (here, there) = (map(&[("a", 1), ("b", 2), ("c", 3)]), map(&[("b", 2), ("c", 4), ("d", 5)]));
        assert_eq!(differences(&here, &there), ["a", "c", "d"]);
    }
}
