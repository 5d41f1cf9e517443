//! Fetch of one plugin from its client.
//!
//! Owns: the requests of one fetch and their order: all folders are listed, the files that the
//! parser needs are read, and all folders are listed again. If the entries differ by then, or one
//! was gone in between, everything is fetched again, once. If the client denies access and says
//! that it can be requested, it is (`resourceRequest`), once, and then everything is fetched.
//! Never: sends a request, or counts time.

use std::collections::{BTreeMap, VecDeque};

use ahp_types::commands::{ContentEncoding, ResourceListResult, ResourceReadResult};
use ahp_types::errors::ahp_error_codes::{NOT_FOUND, PERMISSION_DENIED};
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use bytes::Bytes;
use serde_json::Value;

use super::layouts::{parse, ParsedPlugin, Parsing};
use super::tree::{shown, Tree};
use super::PluginKey;
use crate::host::effects::ConnectionId;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::read_json;
use crate::wire::text;
use crate::wire::uris::encode_segment;

/// Maximum number of requests of one fetch in flight.
const ASKED_MAX: usize = 2;

/// Request of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    /// Path of a folder.
    List(String),
    /// Path of a file.
    Read(String),
    /// Access to the whole plugin, which the client's user may be asked for.
    Access,
}

/// Step of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Listing,
    Reading,
    Checking,
}

/// Result of an answer.
#[derive(Debug)]
pub(super) enum FetchProgress {
    /// More answers are needed.
    Open,
    /// The fetch begins anew, with all of its time: access is requested, or granted.
    Anew,
    /// The fetch is over.
    Over(Fetched),
}

/// Outcome of a fetch; the error is a sentence for people.
pub(super) type Fetched = Result<ParsedPlugin, String>;

/// Fetch of a plugin.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) key: PluginKey,
    /// Connection that is asked.
    pub(super) connection: ConnectionId,
    /// Set when its time runs.
    pub(super) has_begun: bool,
    phase: Phase,
    /// Set if the plugin has changed once while it was fetched.
    repeated: bool,
    /// Set once access was requested.
    has_requested_access: bool,
    waiting: VecDeque<Asked>,
    asked: BTreeMap<u64, Asked>,
    tree: Tree,
    /// Entries as listed again; empty before.
    listed_again: Tree,
    parsed: ParsedPlugin,
}

impl Fetch {
    pub(super) fn new(key: PluginKey, connection: ConnectionId) -> Self {
        Self {
            key,
            connection,
            has_begun: false,
            phase: Phase::Listing,
            repeated: false,
            has_requested_access: false,
            waiting: VecDeque::from([Asked::List(String::new())]),
            asked: BTreeMap::new(),
            tree: Tree::default(),
            listed_again: Tree::default(),
            parsed: ParsedPlugin::default(),
        }
    }

    /// Returns the size of the contents that it holds, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.tree.bytes()
    }

    /// Sends the next requests; `ask` sends the one for a URI and returns its number.
    pub(super) fn ask_next(&mut self, ask: &mut dyn FnMut(Method, String) -> u64) {
        while self.asked.len() < ASKED_MAX {
            let Some(next) = self.waiting.pop_front() else { return };
            let (method, path) = match &next {
                Asked::List(path) => (Method::ResourceList, path),
                Asked::Read(path) => (Method::ResourceRead, path),
                Asked::Access => (Method::ResourceRequest, &String::new()),
            };
            let number = ask(method, uri_in(&self.key.uri, path));
            self.asked.insert(number, next);
        }
    }

    /// Returns whether the client decides about access, for which its user may take any time.
    pub(super) fn waits_for_access(&self) -> bool {
        self.asked.values().chain(&self.waiting).any(|asked| *asked == Asked::Access)
    }

    /// Begins anew, without what was fetched. Answers that are still open no longer count.
    fn begin_anew(&mut self) {
        let (repeated, has_requested_access) = (self.repeated, self.has_requested_access);
        *self = Self { repeated, has_requested_access, ..Self::new(self.key.clone(), self.connection) };
    }

    /// Takes the answer to a request.
    pub(super) fn answered(&mut self, number: u64, result: Result<Bytes, RpcError>) -> FetchProgress {
        // A fetch that has begun again awaits no earlier answer.
        let Some(asked) = self.asked.remove(&number) else { return FetchProgress::Open };
        let taken = match (&asked, result) {
            (Asked::Access, Ok(_)) => {
                self.begin_anew();
                return FetchProgress::Anew;
            }
            (Asked::Access, Err(error)) => {
                Err(format!("its client does not allow to read it: {}", text::message(&error.message)))
            }
            (_, Err(error)) if !self.has_requested_access && is_requestable(&error) => {
                self.begin_anew();
                self.has_requested_access = true;
                self.waiting = VecDeque::from([Asked::Access]);
                return FetchProgress::Anew;
            }
            (Asked::List(path), Err(error)) if path.is_empty() => {
                Err(format!("it cannot be listed: {}", text::message(&error.message)))
            }
            (_, Err(error)) if error.code == NOT_FOUND => return self.changed(),
            (Asked::List(path) | Asked::Read(path), Err(error)) => {
                Err(format!("{} cannot be read: {}", shown(path), text::message(&error.message)))
            }
            (Asked::List(path), Ok(result)) => self.take_list(path, &result),
            (Asked::Read(path), Ok(result)) => self.take_file(path, &result),
        };
        match taken {
            Err(why) => FetchProgress::Over(Err(why)),
            Ok(()) if self.asked.is_empty() && self.waiting.is_empty() => self.go_on(),
            Ok(()) => FetchProgress::Open,
        }
    }

    fn take_list(&mut self, folder: &str, result: &Bytes) -> Result<(), String> {
        let list: ResourceListResult =
            read_json(result).map_err(|why| format!("the answer of its client is invalid: {why}"))?;
        let tree = if self.phase == Phase::Checking { &mut self.listed_again } else { &mut self.tree };
        for entry in list.entries {
            let below = tree.add(folder, &entry.name, &entry.r#type)?;
            self.waiting.extend(below.map(Asked::List));
        }
        Ok(())
    }

    fn take_file(&mut self, path: &str, result: &Bytes) -> Result<(), String> {
        let file: ResourceReadResult =
            read_json(result).map_err(|why| format!("the answer of its client is invalid: {why}"))?;
        let content = match file.encoding {
            ContentEncoding::Base64 => STANDARD.decode(&file.data).ok(),
            ContentEncoding::Utf8 => Some(file.data.into_bytes()),
        };
        match content.and_then(|content| String::from_utf8(content).ok()) {
            Some(content) => self.tree.add_content(path, content),
            None => {
                self.tree.refuse_content(path);
                Ok(())
            }
        }
    }

    /// Begins the next phase when everything has been answered.
    fn go_on(&mut self) -> FetchProgress {
        if self.phase == Phase::Checking {
            return match self.tree.has_entries_of(&self.listed_again) {
                true => FetchProgress::Over(Ok(std::mem::take(&mut self.parsed))),
                false => self.changed(),
            };
        }
        match parse(&self.tree) {
            Parsing::Needs(files) => {
                self.phase = Phase::Reading;
                self.waiting.extend(files.into_iter().map(Asked::Read));
            }
            Parsing::Done(parsed) => {
                self.phase = Phase::Checking;
                self.parsed = parsed;
                self.waiting.push_back(Asked::List(String::new()));
            }
        }
        FetchProgress::Open
    }

    /// Begins anew because the plugin has changed, once.
    fn changed(&mut self) -> FetchProgress {
        if self.repeated {
            return FetchProgress::Over(Err("it changed twice while it was fetched".to_owned()));
        }
        let has_begun = self.has_begun;
        self.begin_anew();
        (self.repeated, self.has_begun) = (true, has_begun);
        FetchProgress::Open
    }
}

/// Returns whether a client denies access that it may grant on request.
fn is_requestable(error: &RpcError) -> bool {
    let request = error.data.as_ref().and_then(|data| data.get("request"));
    error.code == PERMISSION_DENIED && request.is_some_and(Value::is_object)
}

/// Returns the URI of a file or folder of a plugin.
pub(in crate::host) fn uri_in(plugin: &str, path: &str) -> String {
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    let trimmed = plugin.trim_end_matches('/');
    // The slashes behind a scheme are its root.
    let is_root = trimmed.ends_with(':');
    if names.peek().is_none() {
        return if is_root { plugin } else { trimmed }.to_owned();
    }
    let folder = if is_root { plugin.strip_suffix('/').unwrap_or(plugin) } else { trimmed };
    names.fold(folder.to_owned(), |uri, name| format!("{uri}/{}", encode_segment(name)))
}

#[cfg(test)]
mod tests {
    use super::uri_in;

    #[test]
    fn file_of_a_plugin_is_below_its_uri_also_at_the_root() {
        for (plugin, folder, file) in [
            ("virtual:/p", "virtual:/p", "virtual:/p/a%20b/c"),
            ("virtual:/p/", "virtual:/p", "virtual:/p/a%20b/c"),
            ("virtual:/", "virtual:/", "virtual:/a%20b/c"),
            ("file:///", "file:///", "file:///a%20b/c"),
            ("x://host/", "x://host", "x://host/a%20b/c"),
        ] {
            assert_eq!(uri_in(plugin, ""), folder);
            assert_eq!(uri_in(plugin, "a b/c"), file);
        }
    }
}
