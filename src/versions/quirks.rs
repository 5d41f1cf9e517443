//! Needs of certain clients beyond the protocol, by client name.
//!
//! Owns: the table of quirks, which of them a connection has, and their effects on its messages.
//! Never: contains what is right for every client.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use memchr::memmem;
use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
use serde::Deserialize;
use serde_json::Value;

use super::node::{text, Object};
use crate::host::effects::{DeltaRun, Frame};
use crate::wire::annotations::session_of_subchannel;
use crate::wire::channels::ChannelKind;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, Incoming, Params};
use crate::wire::uris::{self, SESSION_SCHEME};

/// Adjustment for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quirk {
    /// Sessions `ahp-session:/<id>` are named `<provider>:/<id>`: the client shows no others.
    SessionsByProvider,
    /// A session that the client creates is announced, listed and stored once something begins in
    /// it, and disposed of after a minute without subscribers: the client creates one in advance
    /// for each window and each empty chat.
    SessionsAhead,
    /// Files of the client's remote scheme are `file:` URIs: its server runs on this machine.
    /// `defaultDirectory` is omitted: with it, the client ignores its window's folders, whose
    /// scheme differs. Changed files get another scheme than `file:`: the client asks the host for
    /// all others, and a browser has no files to show or revert. URIs of contents begin with the
    /// path: the client shows them as the file's location.
    RemoteFiles,
}

/// Row of [`QUIRKS`].
#[derive(Debug)]
pub struct QuirkRow {
    /// Prefix of `clientInfo.name`.
    pub client: &'static str,
    /// Release of the client in which the need was observed.
    pub seen_in: &'static str,
    /// Adjustment that such clients get.
    pub quirk: Quirk,
}

/// All quirks.
pub const QUIRKS: &[QuirkRow] = &[
    QuirkRow { client: "vscode-", seen_in: "Visual Studio Code 1.139.1", quirk: Quirk::SessionsByProvider },
    QuirkRow { client: "vscode-", seen_in: "Visual Studio Code 1.139.1", quirk: Quirk::SessionsAhead },
    QuirkRow { client: "vscode-", seen_in: "Visual Studio Code 1.139.1", quirk: Quirk::RemoteFiles },
];

/// Prefix of Visual Studio Code's members of `_meta`: its `reconnect` has no `clientInfo`.
const META: &str = "vscode.";

/// Member of `_meta` that shows whether a window's files are on another machine.
const CONNECTION_KIND: &str = "vscode.clientConnectionKind";
const REMOTE: &str = "remote_extension_host";

/// The quirks of a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Quirks {
    /// [`Quirk::SessionsByProvider`]
    pub sessions_by_provider: bool,
    /// [`Quirk::SessionsAhead`]
    pub sessions_ahead: bool,
    /// [`Quirk::RemoteFiles`]
    pub remote_files: bool,
}

impl Quirks {
    /// Returns the quirks of a client from the params of its `initialize` or `reconnect`.
    pub fn of(params: &Object) -> Self {
        let name = params.get("clientInfo").and_then(|info| info.get("name")).and_then(Value::as_str);
        let meta = params.get("_meta").and_then(Value::as_object);
        let is_vscode = || meta.is_some_and(|meta| meta.keys().any(|key| key.starts_with(META)));
        let name = name.unwrap_or(if is_vscode() { "vscode-" } else { "" });
        let is_remote = meta.and_then(|meta| text(meta, CONNECTION_KIND)) == Some(REMOTE);
        let has = |quirk| QUIRKS.iter().any(|row| row.quirk == quirk && name.starts_with(row.client));
        Self {
            sessions_by_provider: has(Quirk::SessionsByProvider),
            sessions_ahead: has(Quirk::SessionsAhead),
            remote_files: has(Quirk::RemoteFiles) && is_remote,
        }
    }
}

/// Scheme of files on the machine where the server of Visual Studio Code runs.
const REMOTE_SCHEME: &str = "vscode-remote://";

/// Scheme of files that such a client asks the host for. The URI of a content has a query that
/// changes with the content, because the client reads each URI only once.
const ASKED_SCHEME: &str = "ahp-file:";

/// Turns files of both schemes above into `file:` URIs, and puts the names of contents first.
pub fn with_files(message: Incoming) -> Incoming {
    with_uris(message, &FILES, |uri| {
        if let Some(path) = uri.strip_prefix(ASKED_SCHEME) {
            let path = path.split(['?', '#']).next().unwrap_or(path);
            return Some(format!("file:///{}", path.trim_start_matches('/')));
        }
        let Some(path) = uri.strip_prefix(REMOTE_SCHEME) else { return uris::content_with_name_first(uri) };
        Some(format!("file://{}", &path[path.find('/')?..]))
    })
}

/// Returns whether JSON text may mention a changed file.
fn may_name_changed_file(text: &[u8]) -> bool {
    [b"\"content\":{".as_slice(), b"\"file:///"].iter().all(|what| memmem::find(text, what).is_some())
}

/// Gives both sides of changed files the [`ASKED_SCHEME`], and puts the path of contents first.
fn ask_for_edits(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(ask_for_edits),
        Value::Object(members) => {
            members.iter_mut().for_each(|(name, member)| match member.as_object_mut() {
                Some(side) if name == "before" || name == "after" => ask_for_side(side),
                _ => ask_for_edits(member),
            });
        }
        _ => {}
    }
}

fn ask_for_side(side: &mut Object) {
    let Some(content) = side.get_mut("content").and_then(Value::as_object_mut) else { return };
    if let Some(shown) = text(content, "uri").and_then(uris::content_with_path_first) {
        content.insert("uri".to_owned(), shown.into());
    } else {
        let nonce = text(content, "nonce").unwrap_or_default();
        let nonce = format!("?{}", utf8_percent_encode(nonce, NON_ALPHANUMERIC));
        ask_for_uri(content, &nonce);
    }
    ask_for_uri(side, "");
}

fn ask_for_uri(named: &mut Object, query: &str) {
    let Some(path) = text(named, "uri").and_then(|uri| uri.strip_prefix("file://")) else { return };
    let asked = format!("{ASKED_SCHEME}{path}{query}");
    named.insert("uri".to_owned(), asked.into());
}

fn line_of(message: &Value) -> Bytes {
    let mut bytes = to_json(message);
    bytes.push(b'\n');
    bytes.into()
}

/// Applies `other` to the URIs in these members of a message; `None` keeps the URI.
fn with_uris(message: Incoming, members: &[&str], mut other: impl FnMut(&str) -> Option<String>) -> Incoming {
    let mut changed = |params: Params| {
        let Ok(mut value) = params.read::<Value>() else { return params };
        let mut is_other = false;
        each_uri(&mut value, members, &mut |uri| {
            let other = other(uri);
            is_other |= other.is_some();
            other
        });
        if is_other {
            Params::from_json(to_json(&value))
        } else {
            params
        }
    };
    match message {
        Incoming::Request { id, method, params } => Incoming::Request { id, method, params: changed(params) },
        Incoming::Notification { method, params } => {
            Incoming::Notification { method, params: changed(params) }
        }
        other => other,
    }
}

/// Maximum number of session names remembered from clients' messages.
const GUESSED_MAX: usize = 1024;

/// Maximum number of removed sessions remembered.
const REMOVED_MAX: usize = 256;

/// Members that hold URIs of channels, one or several.
const CHANNELS: [&str; 10] = [
    "channel",
    "resource",
    "session",
    "chat",
    "defaultChat",
    "uri",
    "uriTemplate",
    "missing",
    "subscriptions",
    "sessions",
];

/// Members that hold URIs of files and folders, one or several.
const FILES: [&str; 8] = [
    "uri",
    "workingDirectory",
    "workingDirectories",
    "directory",
    "replacement",
    "resource",
    "source",
    "destination",
];

/// Applies `other` to the URIs in these members of a value; `None` keeps the URI.
fn each_uri(value: &mut Value, members: &[&str], other: &mut impl FnMut(&str) -> Option<String>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_uri(item, members, other)),
        Value::Object(object) => {
            for (name, member) in object {
                if !members.contains(&name.as_str()) {
                    each_uri(member, members, other);
                    continue;
                }
                match member {
                    Value::String(uri) => *uri = other(uri).unwrap_or(std::mem::take(uri)),
                    Value::Array(uris) => {
                        for uri in uris {
                            match uri {
                                Value::String(uri) => *uri = other(uri).unwrap_or(std::mem::take(uri)),
                                item => each_uri(item, members, other),
                            }
                        }
                    }
                    member => each_uri(member, members, other),
                }
            }
        }
        _ => {}
    }
}

/// [`SESSION_SCHEME`] in base64.
const ENCODED_SCHEME: &str = "YWhwLXNlc3Npb246";

impl Quirks {
    /// Adjusts a line for a client with these quirks.
    pub fn apply(self, line: &mut Bytes, spelling: &ProviderNames) {
        let has = |text: &str| memmem::find(line, text.as_bytes()).is_some();
        let has_files = self.remote_files && (has("\"defaultDirectory\":") || may_name_changed_file(line));
        let has_sessions = self.sessions_by_provider && names_sessions(line);
        if !has_files && !has_sessions {
            return;
        }
        let Ok(mut message) = serde_json::from_slice::<Value>(line) else { return };
        if let Some(result) = message.get_mut("result").and_then(Value::as_object_mut) {
            self.leave_out(result);
        }
        self.apply_to_value(&mut message, spelling);
        *line = line_of(&message);
    }

    /// Adjusts the channel of deltas, which may still be merged with others.
    pub fn apply_to_deltas(self, run: &mut DeltaRun, spelling: &ProviderNames) {
        let head = self.sessions_by_provider.then(|| spelling.with_channel(run.lines.head())).flatten();
        if let Some(head) = head {
            run.lines = run.lines.with_head(&head);
        }
    }

    /// Removes members of an answer that such clients must not get.
    pub fn leave_out(self, answer: &mut Object) {
        if self.remote_files {
            answer.shift_remove("defaultDirectory");
        }
    }

    /// Adjusts a part of a message, as [`Self::apply`] adjusts the line.
    pub fn apply_to_value(self, value: &mut Value, spelling: &ProviderNames) {
        if self.remote_files {
            ask_for_edits(value);
        }
        if self.sessions_by_provider {
            each_uri(value, &CHANNELS, &mut |uri| spelling.spelled(uri));
        }
    }

    /// Adjusts a part of a message that is JSON text.
    pub fn apply_to_text(self, text: Bytes, spelling: &ProviderNames) -> Bytes {
        let has_sessions = self.sessions_by_provider && names_sessions(&text);
        let has_files = self.remote_files && may_name_changed_file(&text);
        if !has_sessions && !has_files {
            return text;
        }
        let Ok(mut value) = serde_json::from_slice::<Value>(&text) else { return text };
        self.apply_to_value(&mut value, spelling);
        to_json(&value).into()
    }

    /// Returns the name of a channel for such clients; `None` if it is the core's.
    pub fn called(self, channel: &str, spelling: &ProviderNames) -> Option<String> {
        spelling.spelled(channel).filter(|_| self.sessions_by_provider)
    }
}

fn names_sessions(text: &[u8]) -> bool {
    [SESSION_SCHEME, ENCODED_SCHEME].iter().any(|what| memmem::find(text, what.as_bytes()).is_some())
}

#[derive(Deserialize, Default)]
struct ListedPage {
    items: Vec<ListedSession>,
}

#[derive(Deserialize)]
struct ListedSession {
    resource: String,
    provider: String,
}

/// Result with one state, or with several.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ShownStates {
    snapshot: Option<Snapshot>,
    snapshots: Vec<Snapshot>,
}

#[derive(Deserialize)]
struct Snapshot {
    resource: String,
    state: ShownState,
}

#[derive(Deserialize)]
struct ShownState {
    /// `None` if the channel is no session.
    provider: Option<String>,
}

#[derive(Deserialize)]
struct Added {
    summary: ListedSession,
}

#[derive(Deserialize)]
struct Removed {
    session: String,
}

/// Providers of sessions, for [`Quirk::SessionsByProvider`].
#[derive(Debug, Default, Clone)]
pub struct ProviderNames {
    providers: BTreeMap<String, String>,
    /// Providers in messages of returning clients, of sessions that this process has not mentioned.
    guessed: BTreeMap<String, String>,
    /// Sessions that the core itself names by their provider.
    taken: BTreeSet<String>,
    /// Removed sessions, oldest first. Their names stay for clients that must still be notified.
    removed: VecDeque<String>,
}

impl ProviderNames {
    /// Replaces the names of sessions in a message by the core's.
    pub fn take_up(&mut self, message: Incoming) -> Incoming {
        with_uris(message, &CHANNELS, |uri| self.core_name(uri))
    }

    /// Notes the names of sessions in the message of a client that subscribes or returns.
    pub fn guess(&mut self, message: &Object) {
        let lists = ["subscriptions", "initialSubscriptions"]
            .into_iter()
            .filter_map(|name| message.get(name)?.as_array());
        let uris = lists.flatten().chain(message.get("channel")).filter_map(Value::as_str);
        for uri in uris {
            let uri = session_of_subchannel(uri).unwrap_or(uri);
            let of_chat = uris::session_of_chat(uri);
            let session = of_chat.as_ref().map_or(uri, |(_, session)| session);
            if let Some((provider, plain)) = uris::plain_session(session) {
                if self.guessed.len() < GUESSED_MAX {
                    self.guessed.insert(plain, provider.to_owned());
                }
            }
        }
    }

    fn core_name(&self, uri: &str) -> Option<String> {
        with_session(uri, &|uri| {
            let (provider, plain) = uris::plain_session(uri)?;
            let is_it =
                self.providers.get(&plain).is_some_and(|of| of == provider) && !self.taken.contains(uri);
            is_it.then_some(plain)
        })
    }

    /// Returns whether a session, or a chat's, is known to have another name for such clients.
    pub fn knows(&self, uri: &str) -> bool {
        let of_chat = uris::session_of_chat(uri);
        self.providers.contains_key(of_chat.as_ref().map_or(uri, |(_, session)| session))
    }

    fn with_channel(&self, line: &[u8]) -> Option<Vec<u8>> {
        const BEFORE: &[u8] = b"\"channel\":\"";
        let start = memmem::find(line, BEFORE)? + BEFORE.len();
        let end = start + memchr::memchr(b'"', &line[start..])?;
        let spelled = self.spelled(std::str::from_utf8(&line[start..end]).ok()?)?;
        Some([&line[..start], spelled.as_bytes(), &line[end..]].concat())
    }

    /// Notes the provider of a session.
    pub fn note(&mut self, session: &str, provider: &str) {
        if !self.removed.is_empty() {
            self.removed.retain(|removed| removed != session);
        }
        if session.starts_with(SESSION_SCHEME) {
            self.providers.insert(session.to_owned(), provider.to_owned());
        } else if session.split(':').next() == Some(provider) {
            self.taken.insert(session.to_owned());
        }
    }

    /// Notes the sessions that a frame adds or removes. Reads only what the core itself writes:
    /// the rest of a frame may be data of agents and clients.
    pub fn learn(&mut self, frame: &Frame) {
        match frame {
            Frame::Result { method: Method::ListSessions, result, .. } => {
                let listed: ListedPage = serde_json::from_slice(result).unwrap_or_default();
                listed.items.iter().for_each(|session| self.note(&session.resource, &session.provider));
            }
            Frame::Result { result, states, .. } if states.contains(&ChannelKind::Session) => {
                let shown: ShownStates = serde_json::from_slice(result).unwrap_or_default();
                for Snapshot { resource, state } in shown.snapshot.iter().chain(&shown.snapshots) {
                    if let Some(provider) = &state.provider {
                        self.note(resource, provider);
                    }
                }
            }
            Frame::Notification { method: "root/sessionAdded", params } => {
                if let Ok(Added { summary }) = serde_json::from_slice(params) {
                    self.note(&summary.resource, &summary.provider);
                }
            }
            Frame::Notification { method: "root/sessionRemoved", params } => {
                if let Ok(Removed { session }) = serde_json::from_slice(params) {
                    self.forget_removed(session);
                }
            }
            _ => {}
        }
    }

    /// Notes a removed session, and drops the oldest one.
    fn forget_removed(&mut self, removed: String) {
        // Each of several clients is notified.
        if self.removed.contains(&removed) {
            return;
        }
        self.removed.push_back(removed);
        if self.removed.len() > REMOVED_MAX {
            let longest_ago = self.removed.pop_front().unwrap_or_default();
            self.providers.remove(&longest_ago);
            self.taken.remove(&longest_ago);
        }
    }

    fn spelled(&self, uri: &str) -> Option<String> {
        with_session(uri, &|uri| {
            let path = uri.strip_prefix(SESSION_SCHEME)?;
            let spelled = format!("{}:{path}", self.providers.get(uri).or(self.guessed.get(uri))?);
            Some(spelled).filter(|spelled| !self.taken.contains(spelled))
        })
    }
}

/// Returns the name without the provider of a session, or of a channel of one.
pub fn called_otherwise(uri: &str) -> Option<String> {
    with_session(uri, &|uri| uris::plain_session(uri).map(|(_, plain)| plain))
}

/// Applies `name` to the session in a URI: its own, or that of a chat, changeset or annotations.
fn with_session(uri: &str, name: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let below = session_of_subchannel(uri)
        .and_then(|session| Some(format!("{}{}", with_session(session, name)?, &uri[session.len()..])));
    below.or_else(|| match uris::session_of_chat(uri) {
        Some((before, session)) => Some(uris::chat_of(before, &with_session(&session, name)?)),
        None => name(uri),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::rpc::RequestId;

    fn respelled(spelling: &ProviderNames, message: &Value) -> Value {
        let mut line = (message.to_string() + "\n").into();
        Quirks { sessions_by_provider: true, ..Quirks::default() }.apply(&mut line, spelling);
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn sessions_are_called_by_their_providers_in_every_place() {
        let mut spelling = ProviderNames::default();
        let chat = uris::default_chat_of("ahp-session:/1");
        let listed = json!({ "result": { "items": [
            { "resource": "ahp-session:/1", "provider": "script", "defaultChat": chat },
            { "resource": "ahp-session:/2", "provider": "script" },
            { "resource": "script:/2", "provider": "script" },
        ] } });
        let theirs = uris::default_chat_of("script:/1");
        let told = json!({ "result": { "items": [
            { "resource": "script:/1", "provider": "script", "defaultChat": theirs },
            // The name is taken.
            { "resource": "ahp-session:/2", "provider": "script" },
            { "resource": "script:/2", "provider": "script" },
        ] } });
        let result = listed["result"].to_string().into();
        spelling.learn(&Frame::result(RequestId::inner(1), Method::ListSessions, result));
        assert_eq!(respelled(&spelling, &listed), told);
        let action = |channel: &str, text: &str| json!({ "params": { "channel": channel, "action": { "text": text }, "serverSeq": 1 } });
        assert_eq!(respelled(&spelling, &action(&chat, "ahp-session:/1")), action(&theirs, "ahp-session:/1"));
        let fork = |session: &str| action(&uris::chat_of("ahp-chat://f/", session), "");
        assert_eq!(respelled(&spelling, &fork("ahp-session:/1")), fork("script:/1"));
        let unknown = action("ahp-session:/3", "");
        assert_eq!(respelled(&spelling, &unknown), unknown);
    }

    #[test]
    fn what_sessions_are_called_is_forgotten_some_time_after_they_are_removed() {
        let mut spelling = ProviderNames::default();
        let uri = |number: usize| format!("ahp-session:/{number}");
        let notified =
            |method, params: &Value| Frame::Notification { method, params: params.to_string().into() };
        let added = |number: usize| {
            let summary = json!({ "resource": uri(number), "provider": "script" });
            notified("root/sessionAdded", &json!({ "channel": "ahp-root://", "summary": summary }))
        };
        for number in 0..10 * REMOVED_MAX {
            spelling.learn(&added(number));
            let removed = json!({ "channel": "ahp-root://", "session": uri(number) });
            // Two clients are notified, each in the same words.
            for _ in 0..2 {
                spelling.learn(&notified("root/sessionRemoved", &removed));
                let told = respelled(&spelling, &json!({ "params": removed }));
                assert_eq!(told["params"]["session"], format!("script:/{number}"));
            }
        }
        assert_eq!(spelling.providers.len(), REMOVED_MAX);
        // A session that exists again is not removed any more.
        let last = 10 * REMOVED_MAX - 1;
        spelling.learn(&added(last));
        assert!(spelling.knows(&uri(last)) && !spelling.removed.contains(&uri(last)));
    }

    #[test]
    fn a_client_has_the_quirks_of_its_name() {
        let quirks = |params: Value| Quirks::of(params.as_object().unwrap());
        let kind = json!({ "vscode.clientConnectionKind": "remote_extension_host" });
        let both = Quirks { sessions_by_provider: true, sessions_ahead: true, remote_files: true };
        let window = json!({ "name": "vscode-editor-window" });
        assert_eq!(quirks(json!({ "clientInfo": window, "_meta": kind })), both);
        assert_eq!(quirks(json!({ "_meta": kind })), both, "it comes back");
        let local = Quirks { remote_files: false, ..both };
        assert_eq!(quirks(json!({ "clientInfo": window })), local);
        for other in
            [json!({}), json!({ "clientInfo": { "name": "other" }, "_meta": kind }), json!({ "_meta": 5 })]
        {
            assert_eq!(quirks(other), Quirks::default());
        }
    }

    #[test]
    fn a_remote_window_is_not_told_where_to_begin() {
        let told = |message: &str| {
            let mut line = format!("{message}\n").into();
            let remote = Quirks { remote_files: true, ..Quirks::default() };
            remote.apply(&mut line, &ProviderNames::default());
            String::from_utf8(line.to_vec()).unwrap()
        };
        let result = r#"{"id":1,"result":{"defaultDirectory":"file:///","protocolVersion":"0.9.0"}}"#;
        assert_eq!(told(result), "{\"id\":1,\"result\":{\"protocolVersion\":\"0.9.0\"}}\n");
        let text = r#"{"params":{"action":{"content":"x","defaultDirectory":5}}}"#;
        assert_eq!(told(text), format!("{text}\n"));
    }

    #[test]
    fn a_remote_window_asks_the_host_for_files() {
        let file = |uri: &str, before: &str, after: &str| {
            let side = |read: &str| json!({ "uri": uri, "content": { "nonce": "0a/", "uri": read } });
            json!({ "id": "file:///w/a%20b", "edit": { "before": side(before), "after": side(after) } })
        };
        let told = |file: Value| json!({ "params": { "action": { "files": [file] } } });
        let (kept, shown) = ("ahp-content:/x.1/before/w/a%20b", "ahp-content:/w/a%20b?x.1/before");
        let remote = Quirks { remote_files: true, ..Quirks::default() };
        let spelling = ProviderNames::default();
        let mut value = told(file("file:///w/a%20b", kept, "file:///w/a%20b"));
        let mut line = format!("{value}\n").into();
        remote.apply(&mut line, &spelling);
        let asked = "ahp-file:/w/a%20b?0a%2F";
        assert_eq!(
            serde_json::from_slice::<Value>(&line).unwrap(),
            told(file("ahp-file:/w/a%20b", shown, asked))
        );
        assert!(line.ends_with(b"\n"));
        let text = remote.apply_to_text(value.to_string().into(), &spelling);
        assert_eq!(
            serde_json::from_slice::<Value>(&text).unwrap(),
            told(file("ahp-file:/w/a%20b", shown, asked))
        );
        remote.apply_to_value(&mut value, &spelling);
        assert_eq!(value, told(file("ahp-file:/w/a%20b", shown, asked)));
        let read = |uri: &str| {
            let params = Params::from_json(json!({ "channel": "ahp-root://", "uri": uri }).to_string());
            let request = Incoming::Notification { method: "resourceRead".into(), params };
            let Incoming::Notification { params, .. } = with_files(request) else {
                panic!("another message")
            };
            params.read::<Value>().unwrap()["uri"].take()
        };
        // URI libraries write an empty authority in several ways.
        for spelled in [asked, "ahp-file:///w/a%20b?0a%2F", "ahp-file:/w/a%20b"] {
            assert_eq!(read(spelled), "file:///w/a%20b", "{spelled}");
        }
        for spelled in [kept, shown] {
            assert_eq!(read(spelled), kept, "{spelled}");
        }
    }

    #[test]
    fn remote_files_are_files() {
        let said = |uri: &str| {
            json!({ "action": { "message": { "text": uri, "attachments": [{ "uri": uri }] } },
                "workingDirectories": [uri], "workingDirectory": uri })
        };
        let message = |params: Value| Incoming::Notification {
            method: "dispatchAction".into(),
            params: Params::from_json(params.to_string()),
        };
        let Incoming::Notification { params, .. } =
            with_files(message(said("vscode-remote://localhost:9000/a%20b")))
        else {
            panic!("another message");
        };
        let read: Value = params.read().unwrap();
        assert_eq!(read["action"]["message"]["attachments"][0]["uri"], "file:///a%20b");
        assert_eq!(read["workingDirectories"], json!(["file:///a%20b"]));
        assert_eq!(read["workingDirectory"], "file:///a%20b");
        assert_eq!(read["action"]["message"]["text"], "vscode-remote://localhost:9000/a%20b");
    }
}
