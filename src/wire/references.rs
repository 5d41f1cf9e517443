//! Names in a message that must be looked up before it is handled.
//!
//! Owns: the members of each method that name channels, attached chats, directories, a cursor and a
//! returning client. They are read once, in the client's spelling, before any lookup.
//! Never: knows which of them exist. Invalid members name nothing and are reported elsewhere.
//!
//! Members that only older protocol versions have are read too, because they have the same meaning.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::annotations::{annotations_uri, parse_annotations_uri, session_of_subchannel};
use super::members::visit_members;
use super::methods::Method;
use super::rpc::Incoming;
use super::terminals::parse_terminal_uri;
use super::uris::{canonical_file, default_chat_of, parse_content_uri};
use super::watches::is_watch;

/// Maximum number of chats attached to a message.
pub const ATTACHED_MAX: usize = 16;

/// Names in a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageReferences {
    /// URIs of the channels that the message concerns.
    pub channels: BTreeSet<String>,
    /// URIs of attached chats, and of sessions with attached annotations; at most [`ATTACHED_MAX`].
    pub attached: BTreeSet<String>,
    /// URIs of the watches that it subscribes to.
    pub watches: BTreeSet<String>,
    /// Completed turns whose texts are needed.
    pub turns: Vec<ReferencedTurns>,
    /// Canonical URIs of the directories that must be checked.
    pub directories: BTreeSet<String>,
    /// Last sequence number that a returning client has received.
    pub cursor: Option<u64>,
    /// Id of the returning client.
    pub client: Option<String>,
    /// Set if the list of sessions is needed, because the client has other names for them.
    pub sessions: bool,
}

/// Completed turns of a chat that a message refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReferencedTurns {
    /// Turn behind which all turns are removed.
    CutBehind {
        /// URI of the chat.
        chat: String,
        /// Id of the turn.
        turn: String,
    },
    /// Turns that another chat begins with.
    Through {
        /// URI of the chat.
        chat: String,
        /// Id of the last turn.
        turn: String,
    },
    /// Turns of this chat that may contain a content.
    WithContents(String),
    /// Turns of this chat that may show a terminal.
    WithTerminals(String),
}

impl MessageReferences {
    /// Collects the names in a message.
    pub fn of(message: &Incoming) -> Self {
        let (Incoming::Request { method, params, .. } | Incoming::Notification { method, params }) = message
        else {
            return Self::default();
        };
        let method = method.served();
        if method == Some(Method::Ping) {
            return Self::default();
        }
        let members = Members::of(params.as_json());
        let mut named = Self::default();
        named.read_channels(method, &members);
        let (watches, channels) =
            std::mem::take(&mut named.channels).into_iter().partition(|uri| is_watch(uri));
        named.channels = channels;
        // The chat has the stored output of a terminal.
        let chats =
            named.channels.iter().filter_map(|uri| Some(parse_terminal_uri(uri)?.0)).collect::<Vec<_>>();
        if method == Some(Method::Subscribe) {
            named.turns.extend(chats.iter().cloned().map(ReferencedTurns::WithTerminals));
        }
        named.channels.extend(chats);
        // A changeset is made of the chats of its session, and annotations are stored with theirs.
        let sessions = named.channels.iter().filter_map(|uri| session_of_subchannel(uri).map(str::to_owned));
        let sessions = sessions.collect::<Vec<_>>();
        named.channels.extend(sessions);
        if matches!(method, Some(Method::Initialize | Method::Reconnect | Method::Subscribe)) {
            named.watches = watches;
        }
        match method {
            Some(Method::Reconnect) if matches!(message, Incoming::Request { .. }) => {
                named.cursor = members.read("lastSeenServerSeq");
                named.client = members.read("clientId");
            }
            Some(Method::CreateSession) => {
                let several = members.read::<Vec<String>>("workingDirectories").into_iter().flatten();
                named.add_directories(several.chain(members.read("workingDirectory")));
                // No other channel may have the URI of its annotations, or of its default chat.
                let uri = members.read::<String>("channel");
                named.channels.extend(uri.iter().map(|uri| annotations_uri(uri)));
                named.channels.extend(uri.iter().map(|uri| default_chat_of(uri)));
                // Source of a fork, up to 0.8.0.
                named.channels.extend(members.inside("fork").read::<String>("session"));
            }
            Some(Method::ResourceRead) => {
                let content = members.read::<String>("uri").and_then(|uri| parse_content_uri(&uri));
                let chat = content.map(|(chat, _)| chat);
                named.turns.extend(chat.clone().map(ReferencedTurns::WithContents));
                named.channels.extend(chat);
            }
            Some(Method::CreateChat) => {
                let source = members.inside("source");
                let from = source.read("chat").zip(source.read("turnId"));
                named.turns.extend(from.map(|(chat, turn)| ReferencedTurns::Through { chat, turn }));
                named.read_attached(&members.inside("initialMessage"));
            }
            Some(Method::CreateTerminal) => {
                named.add_directories(members.read("cwd").into_iter());
                named.read_claim(&members);
            }
            Some(Method::DispatchAction) => {
                let action = members.inside("action");
                named.channels.extend(action.read::<String>("session"));
                named.read_attached(&action.inside("message"));
                named.read_claim(&action);
                let member = match action.read::<String>("type").as_deref() {
                    Some("chat/truncated") => {
                        let cut = members.read("channel").zip(action.read("turnId"));
                        named.turns.extend(cut.map(|(chat, turn)| ReferencedTurns::CutBehind { chat, turn }));
                        return named;
                    }
                    Some("session/workingDirectorySet") => "directory",
                    Some("session/workingDirectoryReplaced") => "replacement",
                    _ => return named,
                };
                named.add_directories(action.read(member).into_iter());
            }
            _ => {}
        }
        named
    }

    fn read_channels(&mut self, method: Option<Method>, members: &Members<'_>) {
        let takes_resource = matches!(method, Some(Method::Subscribe | Method::Unsubscribe));
        let single = ["channel", "chat", "session"].into_iter().chain(takes_resource.then_some("resource"));
        self.channels.extend(single.filter_map(|member| members.read::<String>(member)));
        for member in ["initialSubscriptions", "subscriptions"] {
            self.channels.extend(members.read::<Vec<String>>(member).into_iter().flatten());
        }
        // Only a moved chat has a destination of this form.
        self.channels.extend(members.inside("destination").read::<String>("session"));
    }

    fn read_claim(&mut self, members: &Members<'_>) {
        let claim = members.inside("claim");
        self.channels.extend(["session", "chat"].iter().filter_map(|member| claim.read::<String>(member)));
    }

    fn read_attached(&mut self, message: &Members<'_>) {
        let attachments = message.read::<Vec<Box<RawValue>>>("attachments").unwrap_or_default();
        let attachments = attachments.iter().map(|attachment| Members::of(attachment.get().as_bytes()));
        let resources = attachments.filter_map(|it| {
            let resource = it.read::<String>("resource")?;
            match it.read::<String>("type")?.as_str() {
                "chat" => Some(resource),
                "annotations" => parse_annotations_uri(&resource).map(str::to_owned),
                _ => None,
            }
        });
        self.attached.extend(resources.take(ATTACHED_MAX));
    }

    fn add_directories(&mut self, uris: impl Iterator<Item = String>) {
        self.directories.extend(uris.filter_map(|uri| canonical_file(&uri).ok()));
    }
}

/// Members of an object as JSON text; of a repeated member, the last one counts.
#[derive(Default)]
struct Members<'a>(Vec<(Cow<'a, [u8]>, &'a [u8])>);

impl<'a> Members<'a> {
    fn of(json: &'a [u8]) -> Self {
        let mut members = Vec::new();
        let is_object = visit_members(json, |name, value| members.push((name, value)));
        Self(if is_object { members } else { Vec::new() })
    }

    fn inside(&self, member: &str) -> Self {
        self.get(member).map(Self::of).unwrap_or_default()
    }

    /// Returns a member; `None` if it is missing or of another type.
    fn read<T: DeserializeOwned>(&self, member: &str) -> Option<T> {
        serde_json::from_slice(self.get(member)?).ok()
    }

    fn get(&self, member: &str) -> Option<&'a [u8]> {
        let mut last_first = self.0.iter().rev();
        last_first.find(|(name, _)| name.as_ref() == member.as_bytes()).map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn named(method: &str, params: Value) -> MessageReferences {
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        MessageReferences::of(&Incoming::parse(&line.to_string().into()))
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn channels_are_named_in_several_places() {
        let all = json!({ "channel": "a", "chat": "b", "destination": { "session": "c" },
            "initialSubscriptions": ["d"], "subscriptions": ["e", "a"] });
        assert_eq!(named("moveChat", all).channels, set(&["a", "b", "c", "d", "e"]));
        assert_eq!(named("subscribe", json!({ "resource": "a" })).channels, set(&["a"]));
        assert_eq!(named("authenticate", json!({ "resource": "a" })).channels, set(&[]));
        assert_eq!(named("disposeSession", json!({ "session": "a" })).channels, set(&["a"]));
        let forked = json!({ "channel": "a", "fork": { "session": "b", "turnId": "c" } });
        assert_eq!(
            named("createSession", forked).channels,
            set(&["a", "a/annotations", "ahp-chat://default/YQ", "b"])
        );
        let old = json!({ "action": { "type": "session/turnStarted", "session": "a" } });
        assert_eq!(named("dispatchAction", old).channels, set(&["a"]));
        assert_eq!(named("ping", json!({ "channel": "a" })), MessageReferences::default());
    }

    #[test]
    fn a_client_that_comes_back_names_itself_and_its_cursor() {
        let back = json!({ "clientId": "me", "lastSeenServerSeq": 7, "subscriptions": ["a"] });
        let MessageReferences { channels, cursor, client, .. } = named("reconnect", back);
        assert_eq!((channels, cursor, client.as_deref()), (set(&["a"]), Some(7), Some("me")));
        let content = json!({ "channel": "ahp-root://", "uri": "ahp-content:/YWhwLWNoYXQ6LzE.0a/after/x" });
        assert_eq!(named("resourceRead", content).channels, set(&["ahp-chat:/1", "ahp-root://"]));
        let annotations = json!({ "channel": "ahp-session:/s/annotations" });
        assert_eq!(
            named("subscribe", annotations).channels,
            set(&["ahp-session:/s", "ahp-session:/s/annotations"])
        );
        let before_all = json!({ "clientId": 5, "lastSeenServerSeq": -1 });
        assert_eq!(named("reconnect", before_all), MessageReferences::default());
        assert_eq!(named("initialize", json!({ "clientId": "me" })), MessageReferences::default());
    }

    #[test]
    fn directories_have_their_one_spelling() {
        let created =
            json!({ "workingDirectories": ["file:///a/./b", "nowhere"], "workingDirectory": "file:/c" });
        assert_eq!(named("createSession", created).directories, set(&["file:///a/b", "file:///c"]));
        for (name, found) in [
            ("session/workingDirectorySet", set(&["file:///d"])),
            ("session/workingDirectoryReplaced", set(&["file:///r"])),
            ("session/workingDirectoryRemoved", set(&[])),
        ] {
            let action = json!({ "type": name, "directory": "file:///d", "replacement": "file:///r" });
            assert_eq!(named("dispatchAction", json!({ "action": action })).directories, found, "{name}");
        }
    }

    #[test]
    fn attached_chats_are_named_as_far_as_they_may_be_attached() {
        let chat = |resource: String| json!({ "type": "chat", "resource": resource });
        let mut attachments = vec![json!({ "type": "resource", "resource": "file:///x" }), json!(5)];
        attachments.extend((10..40).map(|number| chat(format!("c{number}"))));
        let message = json!({ "text": "", "attachments": attachments });
        let turn = json!({ "channel": "a", "action": { "type": "chat/turnStarted", "message": message } });
        let MessageReferences { channels, attached, .. } = named("dispatchAction", turn);
        assert_eq!((channels, attached.len()), (set(&["a"]), ATTACHED_MAX));
        let review = json!({ "type": "annotations", "resource": "ahp-session:/s/annotations" });
        let turn = json!({ "action": { "message": { "attachments": [review] } } });
        assert_eq!(named("dispatchAction", turn).attached, set(&["ahp-session:/s"]));
        let begun = named("createChat", json!({ "initialMessage": message }));
        assert_eq!(begun.attached, attached);
    }

    #[test]
    fn a_member_that_is_not_what_it_should_be_hides_no_other() {
        let odd = json!({ "channel": 5, "subscriptions": [1], "initialSubscriptions": ["a"], "chat": "b",
            "destination": [], "action": 7 });
        assert_eq!(named("reconnect", odd).channels, set(&["a", "b"]));
        assert_eq!(named("subscribe", json!([])), MessageReferences::default());
        let twice = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"channel":"a","channel":"b"}}"#;
        assert_eq!(MessageReferences::of(&Incoming::parse(&twice[..].to_vec().into())).channels, set(&["b"]));
    }
}
