//! What some clients need that the protocol does not say, by what they call themselves.
//!
//! Owns: the table of quirks, which of them a connection has, and what they do to its messages.
//! Never: does what is right for every client; that is done for every client.

use std::collections::{BTreeMap, BTreeSet};

use memchr::memmem;
use serde_json::{json, Value};

use super::node::{text, Object};
use super::Line;
use crate::wire::rpc::{notification_line, to_json, Incoming, Params};
use crate::wire::uris;

/// What is done for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quirk {
    /// Sessions that are called `ahp-session:/<id>` are called `<provider>:/<id>`: it shows no others.
    SessionsByProvider,
    /// A session that it makes is shown to such clients when something begins in it: it makes one ahead for each window
    /// and each empty chat, whether anything is said there or not.
    SessionsAhead,
    /// Attached files of its own remote scheme are `file:` URIs: they are on this machine, where its server runs.
    RemoteFiles,
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// What `clientInfo.name` begins with.
    pub client: &'static str,
    /// The release that it was seen in.
    pub seen_in: &'static str,
    /// What is done.
    pub quirk: Quirk,
}

/// All quirks.
pub const QUIRKS: &[Row] = &[
    Row { client: "vscode-", seen_in: "Visual Studio Code 1.139.1", quirk: Quirk::SessionsByProvider },
    Row { client: "vscode-", seen_in: "Visual Studio Code 1.139.1", quirk: Quirk::SessionsAhead },
    Row { client: "vscode-", seen_in: "Visual Studio Code 1.139.1", quirk: Quirk::RemoteFiles },
];

/// What Visual Studio Code's own members of `_meta` begin with. It says its name when it initializes only.
const META: &str = "vscode.";

/// Whether its window is on another machine than its files, in `_meta`.
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
    /// The quirks of a client that says this when it initializes or comes back.
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

/// The scheme of files on the machine where the server of Visual Studio Code runs.
const REMOTE_SCHEME: &str = "vscode-remote://";

/// A message in which the files of [`REMOTE_SCHEME`] are `file:` URIs.
pub fn with_files(message: Incoming) -> Incoming {
    with_uris(message, |uri| {
        let path = uri.strip_prefix(REMOTE_SCHEME)?;
        Some(format!("file://{}", &path[path.find('/')?..]))
    })
}

/// A message with other URIs in the place of some.
fn with_uris(message: Incoming, mut other: impl FnMut(&str) -> Option<String>) -> Incoming {
    let mut changed = |params: Params| {
        let Ok(mut value) = params.read::<Value>() else { return params };
        let mut is_other = false;
        each_uri(&mut value, &mut |uri| {
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

/// So many names are remembered that clients say sessions have.
const GUESSED_MAX: usize = 1024;

/// Members that hold URIs, one or several.
const URIS: [&str; 9] =
    ["channel", "resource", "session", "chat", "defaultChat", "uri", "missing", "subscriptions", "sessions"];

/// Puts other URIs in the place of some.
fn each_uri(value: &mut Value, other: &mut impl FnMut(&str) -> Option<String>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_uri(item, other)),
        Value::Object(members) => {
            for (name, member) in members {
                if !URIS.contains(&name.as_str()) {
                    each_uri(member, other);
                    continue;
                }
                match member {
                    Value::String(uri) => *uri = other(uri).unwrap_or(std::mem::take(uri)),
                    Value::Array(uris) => {
                        for uri in uris {
                            match uri {
                                Value::String(uri) => *uri = other(uri).unwrap_or(std::mem::take(uri)),
                                item => each_uri(item, other),
                            }
                        }
                    }
                    member => each_uri(member, other),
                }
            }
        }
        _ => {}
    }
}

/// The scheme of sessions that are not called by their provider, and what it is encoded.
const SCHEME: &str = "ahp-session:";
const ENCODED_SCHEME: &str = "YWhwLXNlc3Npb246";

/// Which provider sessions are of, for [`Quirk::SessionsByProvider`].
#[derive(Debug, Default)]
pub struct Spelling {
    providers: BTreeMap<String, String>,
    /// The same as clients say it that are back, of sessions that were not told of since the process began.
    guessed: BTreeMap<String, String>,
    /// Sessions that are called by their provider, by everybody.
    taken: BTreeSet<String>,
}

impl Spelling {
    /// A message in which sessions that were told of are called as the core calls them.
    pub fn take_up(&mut self, message: Incoming) -> Incoming {
        with_uris(message, |uri| self.core_name(uri))
    }

    /// Notes what a client that is back, or subscribes, calls sessions.
    pub fn guess(&mut self, message: &Object) {
        let lists = ["subscriptions", "initialSubscriptions"]
            .into_iter()
            .filter_map(|name| message.get(name)?.as_array());
        let uris = lists.flatten().chain(message.get("channel")).filter_map(Value::as_str);
        for uri in uris {
            let session = uris::session_of_default_chat(uri);
            if let Some((provider, plain)) = uris::plain_session(session.as_deref().unwrap_or(uri)) {
                if self.guessed.len() < GUESSED_MAX {
                    self.guessed.insert(plain, provider.to_owned());
                }
            }
        }
    }

    fn core_name(&self, uri: &str) -> Option<String> {
        match uris::session_of_default_chat(uri) {
            Some(session) => self.core_name(&session).map(|session| uris::default_chat_of(&session)),
            None => {
                let (provider, plain) = uris::plain_session(uri)?;
                let is_it =
                    self.providers.get(&plain).is_some_and(|of| of == provider) && !self.taken.contains(uri);
                is_it.then_some(plain)
            }
        }
    }

    /// Calls sessions in a line by their providers, as far as those are known; learns them from it first.
    pub fn respell(&mut self, line: &mut Line) {
        let has = |what: &str| memmem::find(&line.bytes, what.as_bytes()).is_some();
        if !has(SCHEME) && !has(ENCODED_SCHEME) && !has("\"provider\":") {
            return;
        }
        if line.delta.is_some() {
            // Its members stay in their order: it may be merged with others.
            if let Some(bytes) = self.with_channel(&line.bytes) {
                line.bytes = bytes.into();
            }
            return;
        }
        let Ok(mut message) = serde_json::from_slice::<Value>(&line.bytes) else { return };
        self.learn(&message);
        each_uri(&mut message, &mut |uri| self.spelled(uri));
        let mut bytes = to_json(&message);
        bytes.push(b'\n');
        line.bytes = bytes.into();
    }

    /// Whether a session or default chat of this name was told of, and is called otherwise to clients with this quirk.
    pub fn knows(&self, uri: &str) -> bool {
        match uris::session_of_default_chat(uri) {
            Some(session) => self.providers.contains_key(&session),
            None => self.providers.contains_key(uri),
        }
    }

    fn with_channel(&self, line: &[u8]) -> Option<Vec<u8>> {
        const BEFORE: &[u8] = b"\"channel\":\"";
        let start = memmem::find(line, BEFORE)? + BEFORE.len();
        let end = start + memchr::memchr(b'"', &line[start..])?;
        let spelled = self.spelled(std::str::from_utf8(&line[start..end]).ok()?)?;
        Some([&line[..start], spelled.as_bytes(), &line[end..]].concat())
    }

    fn learn(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            Value::Object(members) => {
                let of_state = members.get("state").and_then(|state| state.get("provider"));
                let provider = members.get("provider").or(of_state).and_then(Value::as_str);
                if let (Some(session), Some(provider)) = (text(members, "resource"), provider) {
                    if session.starts_with(SCHEME) {
                        self.providers.insert(session.to_owned(), provider.to_owned());
                    } else if session.split(':').next() == Some(provider) {
                        self.taken.insert(session.to_owned());
                    }
                }
                members.values().for_each(|member| self.learn(member));
            }
            _ => {}
        }
    }

    fn spelled(&self, uri: &str) -> Option<String> {
        if let Some(path) = uri.strip_prefix(SCHEME) {
            let spelled = format!("{}:{path}", self.providers.get(uri).or(self.guessed.get(uri))?);
            return Some(spelled).filter(|spelled| !self.taken.contains(spelled));
        }
        uris::session_of_default_chat(uri)
            .and_then(|session| self.spelled(&session))
            .map(|session| uris::default_chat_of(&session))
    }
}

/// Sessions that were made ahead, and in which nothing has begun, for [`Quirk::SessionsAhead`].
#[derive(Debug, Default, Clone)]
pub struct Ahead {
    /// The summary of each, once it was to be told.
    sessions: BTreeMap<String, Option<Object>>,
}

impl Ahead {
    /// A client with this quirk makes a session.
    pub fn make(&mut self, session: &str) {
        if self.sessions.len() < AHEAD_MAX {
            self.sessions.insert(session.to_owned(), None);
        }
    }

    /// A line as clients with this quirk are told it: none of these sessions, until something begins in one. None when
    /// nothing is left of it.
    pub fn hide(&mut self, line: Line) -> Option<Line> {
        let concerns = |session: &String| memmem::find(&line.bytes, session.as_bytes()).is_some();
        if line.delta.is_some() || !self.sessions.keys().any(concerns) {
            return Some(line);
        }
        let Ok(mut message) = serde_json::from_slice::<Value>(&line.bytes) else { return Some(line) };
        let params = &message["params"];
        match message["method"].as_str() {
            Some("root/sessionAdded") => {
                let summary = params["summary"].as_object().cloned().unwrap_or_default();
                let session = text(&summary, "resource").and_then(|session| self.sessions.get_mut(session));
                let Some(session) = session else { return Some(line) };
                *session = Some(summary);
                None
            }
            Some("root/sessionSummaryChanged") => {
                let name = params["session"].as_str().unwrap_or_default().to_owned();
                let Some(Some(summary)) = self.sessions.get_mut(&name) else { return Some(line) };
                let before = summary.clone();
                summary.extend(params["changes"].as_object().cloned().unwrap_or_default());
                // Its first message names it, and everything else that is worth a word changes its status.
                if ["title", "status"].iter().all(|member| before.get(*member) == summary.get(*member)) {
                    return None;
                }
                let summary = std::mem::take(summary);
                self.sessions.remove(&name);
                let params = json!({ "channel": params["channel"], "summary": summary });
                Some(Line::of(notification_line("root/sessionAdded", &to_json(&params))))
            }
            Some("root/sessionRemoved") => {
                let session = params["session"].as_str().unwrap_or_default();
                self.sessions.remove(session).flatten().is_none().then_some(line)
            }
            Some(_) => Some(line),
            None => {
                let Some(Value::Array(items)) = message.pointer_mut("/result/items") else {
                    return Some(line);
                };
                items.retain(|item| {
                    let session = item["resource"].as_str().and_then(|uri| self.sessions.get(uri));
                    !matches!(session, Some(Some(_)))
                });
                let mut bytes = to_json(&message);
                bytes.push(b'\n');
                Some(Line::of(bytes.into()))
            }
        }
    }
}

/// So many sessions are hidden at most.
const AHEAD_MAX: usize = 1024;

/// What else may be called by this: a session by its provider, or the default chat of one.
pub fn called_otherwise(uri: &str) -> Option<String> {
    match uris::session_of_default_chat(uri) {
        Some(session) => uris::plain_session(&session).map(|(_, plain)| uris::default_chat_of(&plain)),
        None => uris::plain_session(uri).map(|(_, plain)| plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respelled(spelling: &mut Spelling, message: &Value) -> Value {
        let mut line = Line::of((message.to_string() + "\n").into());
        spelling.respell(&mut line);
        serde_json::from_slice(&line.bytes).unwrap()
    }

    #[test]
    fn sessions_are_called_by_their_providers_in_every_place() {
        let mut spelling = Spelling::default();
        let chat = uris::default_chat_of("ahp-session:/1");
        let listed = json!({ "result": { "items": [
            { "resource": "ahp-session:/1", "provider": "script", "defaultChat": chat },
            { "resource": "ahp-session:/2", "provider": "script" },
            { "resource": "script:/2", "provider": "script" },
        ] } });
        let theirs = uris::default_chat_of("script:/1");
        let told = json!({ "result": { "items": [
            { "resource": "script:/1", "provider": "script", "defaultChat": theirs },
            // There is one of that name.
            { "resource": "ahp-session:/2", "provider": "script" },
            { "resource": "script:/2", "provider": "script" },
        ] } });
        assert_eq!(respelled(&mut spelling, &listed), told);
        let action = |channel: &str, text: &str| json!({ "params": { "channel": channel, "action": { "text": text }, "serverSeq": 1 } });
        assert_eq!(
            respelled(&mut spelling, &action(&chat, "ahp-session:/1")),
            action(&theirs, "ahp-session:/1")
        );
        let unknown = action("ahp-session:/3", "");
        assert_eq!(respelled(&mut spelling, &unknown), unknown);
    }

    #[test]
    fn a_session_that_is_made_ahead_is_shown_when_something_begins_in_it() {
        let mut ahead = Ahead::default();
        ahead.make("script:/1");
        let mut told = |message: Value| {
            let line = ahead.hide(Line::of((message.to_string() + "\n").into()));
            line.map(|line| serde_json::from_slice::<Value>(&line.bytes).unwrap())
        };
        let summary = |title: &str| json!({ "resource": "script:/1", "title": title, "status": 1 });
        let added = |summary: Value| {
            json!({ "jsonrpc": "2.0", "method": "root/sessionAdded",
            "params": { "channel": "ahp-root://", "summary": summary } })
        };
        let changed = |changes: Value| {
            json!({ "method": "root/sessionSummaryChanged",
            "params": { "channel": "ahp-root://", "session": "script:/1", "changes": changes } })
        };
        let list = |items: Value| json!({ "id": 1, "result": { "items": items } });
        let other = json!({ "resource": "script:/2" });
        assert_eq!(told(added(summary("New Session"))), None);
        assert_eq!(told(list(json!([summary("New Session"), other]))), Some(list(json!([other]))));
        assert_eq!(told(changed(json!({ "modifiedAt": "later" }))), None);
        // What a client that is back has missed names all of it.
        assert_eq!(told(changed(json!({ "title": "New Session", "status": 1 }))), None);
        let mut whole = summary("Hello");
        whole["modifiedAt"] = json!("later");
        assert_eq!(told(changed(json!({ "title": "Hello" }))), Some(added(whole)));
        let plain = changed(json!({ "title": "Another" }));
        assert_eq!(told(plain.clone()), Some(plain));
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
    fn remote_files_are_files() {
        let said =
            |uri: &str| json!({ "action": { "message": { "text": uri, "attachments": [{ "uri": uri }] } } });
        let message = |params: Value| Incoming::Notification {
            method: "dispatchAction".to_owned(),
            params: Params::from_json(params.to_string()),
        };
        let Incoming::Notification { params, .. } =
            with_files(message(said("vscode-remote://localhost:9000/a%20b")))
        else {
            panic!("another message");
        };
        let read: Value = params.read().unwrap();
        assert_eq!(read["action"]["message"]["attachments"][0]["uri"], "file:///a%20b");
        assert_eq!(read["action"]["message"]["text"], "vscode-remote://localhost:9000/a%20b");
    }
}
