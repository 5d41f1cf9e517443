//! How the versions differ in what a client says, and in where it looks.
//!
//! Owns: URIs, the members of params and actions, and where a conversation and its questions live,
//! for every version. Everything here is about the newest spelling and what older versions have in
//! its place.
//! Never: decides what is said, or reads what the host says.

use serde_json::{json, Map, Value};

/// A released version of the protocol, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dialect(pub u16, pub u16, pub u16);

/// Versions at which something became different.
pub const V0_1_0: Dialect = Dialect(0, 1, 0);
pub const V0_2_0: Dialect = Dialect(0, 2, 0);
pub const V0_4_0: Dialect = Dialect(0, 4, 0);
pub const V0_5_0: Dialect = Dialect(0, 5, 0);
pub const V0_5_2: Dialect = Dialect(0, 5, 2);
pub const V0_6_0: Dialect = Dialect(0, 6, 0);
pub const V0_7_0: Dialect = Dialect(0, 7, 0);
pub const V0_8_0: Dialect = Dialect(0, 8, 0);
pub const V0_9_0: Dialect = Dialect(0, 9, 0);
pub const V1_0_0: Dialect = Dialect(1, 0, 0);

/// A time that a client claims; the host puts its own in its place.
const CLAIMED: &str = "2026-01-01T00:00:00Z";

impl Dialect {
    /// The version as it is offered.
    pub fn name(self) -> String {
        format!("{}.{}.{}", self.0, self.1, self.2)
    }

    /// Returns the version in the result of `initialize`: a number in 0.1.0, where a crate offers
    /// one.
    pub fn answered(self) -> Value {
        if self == V0_1_0 {
            json!(1)
        } else {
            json!(self.name())
        }
    }

    /// The root channel, as the version's crate delivers its actions.
    pub fn root(self) -> &'static str {
        if self == V0_1_0 {
            "root:/"
        } else {
            "ahp-root://"
        }
    }

    /// A session's URI.
    pub fn session(self, id: &str) -> String {
        if self == V0_1_0 {
            format!("script:/{id}")
        } else {
            format!("ahp-session:/{id}")
        }
    }

    /// Conversations live in chats; before, each session was one.
    pub fn has_chats(self) -> bool {
        self >= V0_4_0
    }

    /// A turn that ended in a resumable error can be resumed.
    pub fn can_resume(self) -> bool {
        self >= V0_9_0
    }

    /// Open questions are response parts; before, they stood next to the turns.
    pub fn asks_in_turns(self) -> bool {
        self >= V0_6_0
    }

    /// The member that names the channel in the params of this method; 0.1.0 had a name for each.
    fn channel_member(self, method: &str) -> Option<&'static str> {
        match method {
            _ if self > V0_1_0 => Some("channel"),
            "subscribe" | "unsubscribe" => Some("resource"),
            "createSession" | "disposeSession" => Some("session"),
            "createTerminal" | "disposeTerminal" => Some("terminal"),
            _ => None,
        }
    }

    /// Params on a channel.
    pub fn params(self, method: &str, channel: &str, more: Value) -> Value {
        let mut params = more;
        if let (Some(name), Some(members)) = (self.channel_member(method), params.as_object_mut()) {
            members.insert(name.to_owned(), channel.into());
        }
        params
    }

    /// The params of `initialize`.
    pub fn initialize(self, client_id: &str, channels: &[String]) -> Value {
        let mut params = json!({ "clientId": client_id, "initialSubscriptions": channels });
        if self == V0_1_0 {
            params["protocolVersion"] = json!(1);
        } else {
            params["protocolVersions"] = json!([self.name()]);
        }
        self.params("initialize", self.root(), params)
    }

    /// The params of `dispatchAction`. Before 0.2.0 the action itself names its session or
    /// terminal.
    pub fn dispatch(self, channel: &str, client_seq: i64, action: &Value) -> Value {
        let mut action = action.clone();
        if self == V0_1_0 && channel != self.root() {
            let is_of_terminal = action["type"].as_str().is_some_and(|it| it.starts_with("terminal/"));
            action[if is_of_terminal { "terminal" } else { "session" }] = channel.into();
        }
        self.params("dispatchAction", channel, json!({ "clientSeq": client_seq, "action": action }))
    }

    /// The channel that an action's envelope is about.
    pub fn channel_of(self, envelope: &Value) -> String {
        let action = &envelope["action"];
        let named = match self {
            V0_1_0 => action.get("session").or(action.get("terminal")),
            _ => envelope.get("channel"),
        };
        named.and_then(Value::as_str).unwrap_or(self.root()).to_owned()
    }

    /// A user's message, under the name that it has as a member.
    fn message(self, text: &str) -> (&'static str, Value) {
        match self {
            V0_1_0 | V0_2_0 => ("userMessage", json!({ "text": text })),
            _ => ("message", json!({ "text": text, "origin": { "kind": "user" } })),
        }
    }

    /// The text of the user's message in a turn or a pending message.
    pub fn text_of(self, holder: &Value) -> &str {
        holder[self.message("").0]["text"].as_str().unwrap_or_default()
    }

    /// An action of the conversation.
    pub fn act(self, name: &str, members: Value) -> Value {
        let family = if self.has_chats() { "chat" } else { "session" };
        self.act_of(family, name, members)
    }

    /// An action of a family.
    pub fn act_of(self, family: &str, name: &str, members: Value) -> Value {
        let mut action = Map::from_iter([("type".to_owned(), json!(format!("{family}/{name}")))]);
        if let Value::Object(members) = members {
            action.extend(members);
        }
        Value::Object(action)
    }

    /// Starts a turn.
    pub fn turn_started(self, turn: &str, text: &str) -> Value {
        let (member, message) = self.message(text);
        let mut members = json!({ "turnId": turn, member: message });
        if self >= V0_6_0 {
            members["startedAt"] = CLAIMED.into();
        }
        self.act("turnStarted", members)
    }

    /// Cancels a turn.
    pub fn turn_cancelled(self, turn: &str) -> Value {
        let mut members = json!({ "turnId": turn });
        if self >= V0_6_0 {
            members["duration"] = json!(0);
        }
        self.act("turnCancelled", members)
    }

    /// Sets a queued or steering message.
    pub fn pending_message_set(self, kind: &str, id: &str, text: &str) -> Value {
        let (member, message) = self.message(text);
        self.act("pendingMessageSet", json!({ "kind": kind, "id": id, member: message }))
    }

    /// Returns the parameters of a subscription besides its channel: a window of `turns` turns in
    /// versions that have windows.
    pub fn window(self, turns: usize) -> Value {
        if self > V0_5_0 {
            json!({ "view": { "turns": turns } })
        } else {
            json!({})
        }
    }

    /// Takes part in a session, with the tool `look`.
    pub fn take_part(self, client_id: &str, title: &str) -> Value {
        let tool = json!({ "name": "look", "title": title });
        let name = if self >= V0_5_0 { "activeClientSet" } else { "activeClientChanged" };
        let client = json!({ "clientId": client_id, "tools": [tool] });
        self.act_of("session", name, json!({ "activeClient": client }))
    }

    /// Takes part in it no more.
    pub fn leave_off(self, client_id: &str) -> Value {
        if self >= V0_5_0 {
            self.act_of("session", "activeClientRemoved", json!({ "clientId": client_id }))
        } else {
            self.act_of("session", "activeClientChanged", json!({}))
        }
    }

    /// The members of a session that its summary had in it before 0.5.0.
    pub fn session_member(self, session: &Value, name: &str) -> Value {
        if self < V0_5_0 {
            session["summary"][name].clone()
        } else {
            session[name].clone()
        }
    }

    /// Builds the action that annotates a file.
    pub fn annotation(self, id: &str, session: &str, entries: &[Value]) -> Value {
        let mut annotation =
            json!({ "id": id, "resource": "file:///x", "resolved": false, "entries": entries });
        match self >= V0_9_0 {
            true => annotation["origin"] = json!({ "session": session }),
            false => annotation["turnId"] = "".into(),
        }
        annotation
    }

    /// The open questions of a conversation.
    pub fn questions(self, conversation: &Value) -> Vec<Value> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        if !self.asks_in_turns() {
            return list(&conversation["inputRequests"]);
        }
        let open = list(&conversation["activeTurn"]["responseParts"]).into_iter();
        let open = open.filter(|part| part["kind"] == "inputRequest" && part.get("response").is_none());
        open.map(|part| part["request"].clone()).collect()
    }

    /// Tells whether a finished turn can be resumed.
    pub fn is_resumable(self, turn: &Value) -> bool {
        let last = turn["responseParts"].as_array().and_then(|parts| parts.last());
        self.can_resume() && last.is_some_and(|part| part["kind"] == "error" && part["resumable"] == true)
    }
}
