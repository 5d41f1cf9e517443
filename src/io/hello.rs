//! Messages between a front and its host, besides the client's: a line of JSON each.
//!
//! A front sends [`Hello`], with its stdin and stdout attached to the first byte. The host answers
//! [`HelloLine::Welcome`] or [`HelloLine::Refused`], and from then on reads and writes the two
//! itself. Later data from the front ([`LEAVE`]) and the end of the stream both end the client.
//!
//! A hello carries all settings of its front. Those of its connection ([`SettingsMessage`]) and of
//! the requested listeners ([`Listening`]) apply to the front alone. Those of the host
//! ([`Hello::settings`]) must equal the host's. If the front has read other content of the same
//! configuration file ([`ConfigurationSeen`]), the host rereads the file.
//!
//! Owns: the messages, their version, and the comparison of settings.
//! Never: reads or writes the stream.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::link::ConnectionSettings;
use super::listen::Listening;
use crate::config::ConfigurationSeen;
use crate::host::effects::Shutdown;
use crate::versions::dialect::Dialect;

/// Version of these messages. Versions are mutually incompatible.
pub const LINK: u32 = 2;

/// Maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Beginning of the name of a setting that describes an agent; its value begins with a number.
pub const AGENT_SETTING: &str = "the agent ";

/// Line by which a front asks to have its client's turns cancelled and its connection closed.
pub const LEAVE: &[u8] = b"\"leave\"\n";

/// First line of a front.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// Version of these messages: [`LINK`].
    pub link: u32,
    /// Version of the program.
    pub version: String,
    /// Settings of the front's connection.
    pub terms: SettingsMessage,
    /// Filter for log lines to send to the front.
    pub log: String,
    /// Settings that must equal the host's, by the names that users know.
    pub settings: BTreeMap<String, String>,
    /// Set if only the agents among the settings must equal the host's, and no others.
    #[serde(default)]
    pub guest: bool,
    /// Configuration file as the front has read it.
    pub configuration: ConfigurationSeen,
    /// Addresses to listen on; `None` for no listener.
    pub listening: Option<Listening>,
    /// Checksums of environment variables that agents depend on; `None` for an unset variable.
    pub environment: BTreeMap<String, Option<u32>>,
}

/// Part of a hello that all versions share.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HelloVersion {
    /// Version of these messages, compared with [`LINK`].
    pub link: u32,
    /// Version of the program; empty if not given.
    #[serde(default)]
    pub version: String,
}

/// [`ConnectionSettings`] as they are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingsMessage {
    default_directory: Option<String>,
    line_bytes_max: usize,
    /// `None` if turns are cancelled at the end of input.
    drain_ms: Option<u64>,
    assume_version: Option<String>,
    /// `None` for the host's default.
    #[serde(rename = "patience_ms")]
    stall_limit_ms: Option<u64>,
}

impl From<&ConnectionSettings> for SettingsMessage {
    fn from(terms: &ConnectionSettings) -> Self {
        Self {
            default_directory: terms.default_directory.clone(),
            line_bytes_max: terms.line_bytes_max,
            stall_limit_ms: terms.stall_limit.map(milliseconds),
            drain_ms: match terms.on_eof {
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
            stall_limit: wishes.stall_limit_ms.map(Duration::from_millis),
            on_eof: match wishes.drain_ms {
                Some(limit) => Shutdown::Drain(Duration::from_millis(limit)),
                None => Shutdown::Cancel,
            },
            assume_version: wishes.assume_version.as_deref().and_then(Dialect::from_name),
            // A client whose pipes close does not come back.
            returns_within: None,
        }
    }
}

/// Line that a host sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HelloLine {
    /// First line: the client is served.
    Welcome {
        /// Version of the host's program.
        version: String,
        /// Process id of the host.
        process: u32,
        /// Environment variables that differ between front and host.
        differs: Vec<String>,
        /// URLs of the requested listeners, to be printed.
        listening: Vec<String>,
        /// Reason why the host does not use the front's configuration file, for people.
        outdated: Option<String>,
    },
    /// First line: the client is not served.
    Refused {
        /// Reason, for people.
        why: String,
        /// Exit status of the front.
        status: u8,
    },
    /// A line of the log.
    Log(String),
    /// Last line: the client's connection is closed.
    Over {
        /// Exit status of the front.
        status: u8,
        /// Reason of a failure, for people; `None` without a failure.
        why: Option<String>,
    },
}

impl HelloLine {
    /// Returns the message as a line with a line feed.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = crate::wire::rpc::to_json(self);
        line.push(b'\n');
        line
    }
}

/// Returns the names whose values differ or that only one side has.
pub fn differences<V: PartialEq>(here: &BTreeMap<String, V>, there: &BTreeMap<String, V>) -> Vec<String> {
    let mut names: Vec<&String> = here.keys().chain(there.keys()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter(|name| here.get(*name) != there.get(*name)).cloned().collect()
}

/// Returns the names of a guest's agents that the host does not have, or has otherwise. Their
/// places in the list of agents do not count.
pub fn differences_of_guest(
    guest: &BTreeMap<String, String>,
    host: &BTreeMap<String, String>,
) -> Vec<String> {
    let agent = |value: &String| value.split_once(' ').map(|(_, agent)| agent.to_owned());
    let agents = guest.iter().filter(|(name, _)| name.starts_with(AGENT_SETTING));
    let differ = agents.filter(|(name, value)| host.get(*name).and_then(agent) != agent(value));
    differ.map(|(name, _)| name.clone()).collect()
}

/// Returns the checksums of these environment variables; `None` for an unset variable.
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
    fn settings_survive_the_hello() {
        let all = [Shutdown::Cancel, Shutdown::Drain(Duration::from_secs(60))];
        for (on_eof, assume_version) in all.into_iter().zip([None, Dialect::from_name("0.4.0")]) {
            let terms = ConnectionSettings {
                default_directory: Some("file:///a".to_owned()),
                line_bytes_max: 7,
                on_eof,
                assume_version,
                returns_within: None,
                stall_limit: assume_version.map(|_| Duration::from_secs(7)),
            };
            let json = serde_json::to_string(&SettingsMessage::from(&terms)).unwrap();
            assert_eq!(
                ConnectionSettings::from(serde_json::from_str::<SettingsMessage>(&json).unwrap()),
                terms
            );
        }
    }

    #[test]
    fn guest_differs_only_in_agents_that_it_names() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let host = map(&[("--git", "true"), ("the agent `a`", "0 A"), ("the agent `b`", "1 B")]);
        for (guest, differ) in [
            (map(&[("--git", "false")]), vec![]),
            (map(&[("the agent `b`", "0 B")]), vec![]),
            (map(&[("the agent `b`", "1 C")]), vec!["the agent `b`"]),
            (map(&[("the agent `c`", "0 C")]), vec!["the agent `c`"]),
        ] {
            assert_eq!(differences_of_guest(&guest, &host), differ);
        }
    }

    #[test]
    fn each_difference_is_named_once() {
        let map = |pairs: &[(&str, u8)]| -> BTreeMap<String, u8> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let (here, there) = (map(&[("a", 1), ("b", 2), ("c", 3)]), map(&[("b", 2), ("c", 4), ("d", 5)]));
        assert_eq!(differences(&here, &there), ["a", "c", "d"]);
    }
}
