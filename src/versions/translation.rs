//! Translation state that all connections of one version share.
//!
//! Owns: the translation of each sequenced action, made once for all of them; the states that some
//! translations need; and the clients' names of sessions.
//! Never: knows which connection gets what.

use std::collections::{BTreeSet, HashMap};

use ahp_types::actions::StateAction;
use ahp_types::state::SessionStatus;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use super::chain::Chain;
use super::dialect::Dialect;
use super::names::SessionNames;
use super::node::{self, Object};
use super::step::{Context, OutgoingAction, OutgoingNotice};
use crate::host::effects::{ActionLine, ChannelSnapshot, DeltaRun, LoadedTurns};
use crate::state::history::{CompletedTurn, History};
use crate::state::reduce::Conversation;
use crate::wire::action_lines::envelope_of;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::{notification_line, sorted, to_json};
use crate::wire::uris;

/// Translation to one version, shared by all its connections.
#[derive(Debug, Default)]
pub struct VersionTranslation {
    dialect: Dialect,
    /// Version that the core speaks.
    newest: Dialect,
    pub names: SessionNames,
    /// Chats that clients of the version are subscribed to, before the next action.
    chats: HashMap<String, Conversation>,
    /// Sessions that these clients are subscribed to, before the next action.
    sessions: HashMap<String, SessionFacts>,
    /// Latest translated action, which the other connections get too.
    last: TranslatedAction,
}

/// Facts about a session that translations need.
#[derive(Debug, Default, Clone)]
struct SessionFacts {
    is_read: bool,
    /// URIs of its chats.
    chats: BTreeSet<String>,
    /// Active clients.
    active: Vec<Value>,
    /// Working directories.
    directories: Vec<Value>,
}

/// A channel's state as the core sends it.
#[derive(Debug)]
pub struct FoundState {
    pub kind: ChannelKind,
    pub channel: String,
    pub state: CoreState,
    /// Summary in the list; set only for a session in a version that needs it.
    pub summary: Option<Object>,
    /// Sequence number of the last action that the state includes.
    pub from_seq: Value,
}

/// State of a channel, parsed or not yet written as text.
#[derive(Debug)]
pub enum CoreState {
    /// State parsed from JSON text.
    Parsed(Object),
    /// State as the core sends it, which may be large.
    Core(Box<ChannelSnapshot>),
}

impl FoundState {
    /// Returns the provider, if the channel is a session.
    pub fn provider(&self) -> Option<&str> {
        match &self.state {
            CoreState::Parsed(state) => node::text(state, "provider"),
            CoreState::Core(state) => state.provider(),
        }
    }
}

impl CoreState {
    /// Returns the state as JSON; of a chat that may be large, without its completed turns.
    fn to_object(&self) -> Object {
        match self {
            Self::Parsed(state) => state.clone(),
            Self::Core(state) => state.to_object(),
        }
    }
}

/// A sequenced action, translated.
#[derive(Debug, Default)]
pub struct TranslatedAction {
    server_seq: u64,
    pub origin: Option<Origin>,
    /// Lines to send, in order.
    pub lines: Vec<TranslatedLine>,
    /// Channel whose subscribers get the deltas unchanged; `None` if they are translated.
    pub same_on: Option<String>,
}

/// Origin of an action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    pub client_id: String,
    /// Client's own number of the action.
    pub client_seq: i64,
}

#[derive(Debug)]
pub struct TranslatedLine {
    /// Channel whose subscribers get the line, by the core's name.
    pub shown_on: String,
    pub line: Bytes,
}

/// Envelope as the core sends it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    pub channel: String,
    /// Any value if it was refused.
    pub action: Value,
    pub server_seq: u64,
    pub origin: Option<Origin>,
    /// Reason of the refusal, if the action was refused.
    pub rejection_reason: Option<String>,
}

/// Reads the envelope in an action's line.
pub fn read(line: &Bytes) -> Option<Envelope> {
    let unread = |error| tracing::error!(%error, "an action that the host has written cannot be read: clients of older versions do not get it");
    serde_json::from_slice(&envelope_of(line)).map_err(unread).ok()
}

impl VersionTranslation {
    pub fn new(dialect: Dialect, providers: Vec<String>) -> Self {
        Self { dialect, names: SessionNames::new(providers), ..Self::default() }
    }

    /// Translates from `newest`, which the core speaks.
    #[must_use]
    pub fn from(self, newest: Dialect) -> Self {
        Self { newest, ..self }
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Takes over the state of another version, one of whose clients turned out to speak this one.
    pub fn adopt(&mut self, other: &Self) {
        self.names.adopt(&other.names);
        for (channel, chat) in &other.chats {
            let known = Conversation::new(chat.state().clone(), chat.history().clone());
            self.chats.entry(channel.clone()).or_insert(known);
        }
        for (session, facts) in &other.sessions {
            self.sessions.entry(session.clone()).or_insert_with(|| facts.clone());
        }
    }

    /// Returns the chain and the context for translating something on this channel.
    pub fn context<'a>(&'a mut self, channel: &str, client_id: &'a str) -> (Chain, Context<'a>) {
        let about = chat_of(channel);
        let facts = uris::session_of_default_chat(&about).and_then(|uri| self.sessions.get(&uri));
        (
            Chain::to(self.dialect, self.newest),
            Context {
                chat: self.chats.get(&about),
                at_end: None,
                is_read: facts.is_some_and(|facts| facts.is_read),
                is_first_chat_elsewhere: facts.is_some_and(|facts| !facts.chats.contains(&about)),
                has_further_chats: facts.is_some_and(|facts| facts.chats.iter().any(|chat| *chat != about)),
                active: facts.map(|facts| facts.active.as_slice()).unwrap_or_default(),
                directories: facts.map(|facts| facts.directories.as_slice()).unwrap_or_default(),
                knows_chats: !self.dialect.has_turns_in_sessions(),
                names: &mut self.names,
                client_id,
                newer: &[],
            },
        )
    }

    pub fn chain(&self) -> Chain {
        Chain::to(self.dialect, self.newest)
    }

    /// Retains states that are about to be sent, as far as later translations need them.
    pub fn note_states(&mut self, found: &[FoundState]) {
        if !self.dialect.needs_states() {
            return;
        }
        for FoundState { kind, channel, state, .. } in found {
            match (kind, state) {
                (ChannelKind::Chat, CoreState::Core(state)) => {
                    if let Some(chat) = state.to_conversation() {
                        self.note_chat(channel, chat);
                    }
                }
                (ChannelKind::Chat, CoreState::Parsed(state)) => {
                    match serde_json::from_slice(&to_json(state)) {
                        Ok(state) => self.note_chat(channel, Conversation::new(state, History::default())),
                        Err(error) => {
                            tracing::error!(%error, channel, "a state that the host has written cannot be read")
                        }
                    }
                }
                (ChannelKind::Session, state) => {
                    let state = state.to_object();
                    let status = state.get("status").and_then(Value::as_u64).unwrap_or_default();
                    let list = |name| state.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                    let chats = list("chats");
                    let chats = chats.iter().filter_map(|row| row["resource"].as_str());
                    let facts = SessionFacts {
                        is_read: status & u64::from(SessionStatus::IsRead.bits()) != 0,
                        chats: chats.map(str::to_owned).collect(),
                        active: list("activeClients"),
                        directories: list("workingDirectories"),
                    };
                    self.sessions.insert(channel.clone(), facts);
                }
                _ => {}
            }
        }
    }

    fn note_chat(&mut self, channel: &str, chat: Conversation) {
        // A chat that is known with at least these turns is current: all actions are applied to it.
        // With other turns, it is a former chat of this URI, which was disposed of.
        let is_part = chat.state().turns_next_cursor.is_some();
        let holds_more = |known: &Conversation| {
            let (known, sent) = (known.history().turns(), chat.history().turns());
            let of_known = known.len().checked_sub(sent.len()).and_then(|start| known.get(start..));
            let ids =
                |turns: &[CompletedTurn]| turns.iter().map(|turn| turn.id().to_owned()).collect::<Vec<_>>();
            of_known.is_some_and(|known| ids(known) == ids(sent))
        };
        if is_part && self.chats.get(channel).is_some_and(holds_more) {
            return;
        }
        self.chats.insert(channel.to_owned(), chat);
    }

    /// Returns a copy without the chats, to translate one answer later and elsewhere.
    pub fn detach(&self) -> Self {
        Self {
            dialect: self.dialect,
            newest: self.newest,
            names: self.names.clone(),
            sessions: self.sessions.clone(),
            ..Self::default()
        }
    }

    /// Drops the state of channels that no client is subscribed to.
    pub fn retain_channels(&mut self, is_told: impl Fn(&str) -> bool) {
        self.chats.retain(|channel, _| is_told(channel));
        self.sessions.retain(|channel, _| is_told(channel));
    }

    /// Returns the translation of a sequenced action, made once for all connections.
    pub fn translate_action(&mut self, action: &ActionLine) -> &TranslatedAction {
        if self.last.server_seq != action.server_seq {
            self.last = self.translate(action);
        }
        &self.last
    }

    /// Returns the translation of consecutive deltas, made once for all connections.
    pub fn translate_deltas(&mut self, run: &DeltaRun) -> &TranslatedAction {
        if self.last.server_seq == run.first_seq {
            return &self.last;
        }
        let mut spoken = TranslatedAction { server_seq: run.first_seq, ..TranslatedAction::default() };
        if self.dialect.has_turns_in_sessions() {
            spoken.lines.extend(run.actions().flat_map(|action| self.translate(&action).lines));
        } else {
            // Deltas are the same in every version that has chats.
            let followed = if self.dialect.needs_states() { usize::MAX } else { 1 };
            for line in run.lines.each().take(followed) {
                spoken.same_on = self.apply(&line).or(spoken.same_on);
            }
        }
        self.last = spoken;
        &self.last
    }

    fn translate(&mut self, action: &ActionLine) -> TranslatedAction {
        let mut spoken = TranslatedAction { server_seq: action.server_seq, ..TranslatedAction::default() };
        let Some(envelope) = read(&action.line) else { return spoken };
        spoken.origin = envelope.origin.clone();
        self.follow_clients(&envelope);
        for (shown_on, envelope) in self.envelopes(envelope, false) {
            let line = notification_line("action", &sorted(envelope));
            spoken.lines.push(TranslatedLine { shown_on, line });
        }
        self.apply(&action.line);
        spoken
    }

    /// Updates the active clients of a session from an action.
    fn follow_clients(&mut self, envelope: &Envelope) {
        let Some(SessionFacts { active, .. }) = self.sessions.get_mut(&envelope.channel) else { return };
        let id_of = |client: &Value| client.get("clientId").cloned();
        match envelope.action["type"].as_str() {
            Some("session/activeClientSet") => {
                let Some(client) = envelope.action.get("activeClient") else { return };
                match active.iter_mut().find(|known| id_of(known) == id_of(client)) {
                    Some(known) => *known = client.clone(),
                    None => active.push(client.clone()),
                }
            }
            Some("session/activeClientRemoved") => {
                let gone = envelope.action.get("clientId").cloned();
                active.retain(|known| id_of(known) != gone);
            }
            _ => {}
        }
    }

    /// Returns the envelopes that replace one, each with the channel whose subscribers get it.
    pub fn envelopes(&mut self, envelope: Envelope, in_replay: bool) -> Vec<(String, Object)> {
        let Value::Object(action) = envelope.action else { return Vec::new() };
        let from = envelope.channel.clone();
        let origin = envelope.origin.as_ref();
        let server_seq = envelope.server_seq;
        let reason = envelope.rejection_reason.as_deref();
        let outgoing = OutgoingAction { channel: envelope.channel, action };
        let (chain, mut context) = self.context(&from, origin.map_or("", |origin| &origin.client_id));
        if in_replay {
            context.at_end = context.chat.take();
        }
        let all = chain.action_down(outgoing, &mut context);
        all.into_iter()
            .enumerate()
            .map(|(at, outgoing)| {
                let shown_on = outgoing.channel.clone();
                // Only the first envelope has the origin: a client's action is echoed once.
                let envelope = build(outgoing, server_seq, origin.filter(|_| at == 0), reason);
                (shown_on, frame(chain, envelope, in_replay, &mut context))
            })
            .collect()
    }

    /// Adds turns of a chat that are about to be sent.
    pub fn load(&mut self, turns: &LoadedTurns) {
        if let Some(chat) = self.chats.get_mut(&turns.chat) {
            chat.load(&turns.turns, turns.next_cursor.clone());
        }
    }

    /// Applies an action to the retained states. Returns its channel.
    pub fn apply(&mut self, line: &Bytes) -> Option<String> {
        #[derive(Deserialize)]
        struct Change {
            channel: String,
            action: StateAction,
        }
        #[derive(Deserialize)]
        struct Channel {
            channel: String,
        }
        if !self.dialect.needs_states() {
            return serde_json::from_slice::<Channel>(&envelope_of(line))
                .ok()
                .map(|envelope| envelope.channel);
        }
        match serde_json::from_slice::<Change>(&envelope_of(line)) {
            Ok(change) => {
                if let Some(facts) = self.sessions.get_mut(&change.channel) {
                    facts.follow(&change.action);
                }
                if let Some(chat) = self.chats.get_mut(&change.channel) {
                    chat.apply(&change.action);
                }
                Some(change.channel)
            }
            Err(error) => {
                tracing::error!(%error, "an action that the host has written cannot be read");
                None
            }
        }
    }
}

impl SessionFacts {
    /// Applies an action on the session; that of an active client is applied before its
    /// translation.
    fn follow(&mut self, action: &StateAction) {
        let directories = &mut self.directories;
        match action {
            StateAction::SessionIsReadChanged(a) => self.is_read = a.is_read,
            StateAction::SessionChatAdded(a) => {
                self.chats.insert(a.summary.resource.clone());
            }
            StateAction::SessionChatRemoved(a) => {
                self.chats.remove(&a.chat);
            }
            StateAction::SessionWorkingDirectorySet(a)
                if !directories.iter().any(|one| *one == a.directory) =>
            {
                directories.push(a.directory.as_str().into());
            }
            StateAction::SessionWorkingDirectoryRemoved(a) => directories.retain(|one| *one != a.directory),
            StateAction::SessionWorkingDirectoryReplaced(a) => {
                *directories =
                    replaced(directories, &a.directory.as_str().into(), &a.replacement.as_str().into());
            }
            _ => {}
        }
    }
}

/// Returns whether the state of a session lists the chat that the session began with.
pub fn lists_first_chat(state: &Object, session: &str) -> bool {
    let chat = uris::default_chat_of(session);
    let chats = state.get("chats").and_then(Value::as_array);
    chats.into_iter().flatten().any(|row| row["resource"] == *chat)
}

/// Replaces one of the directories, as the official reducers do.
pub fn replaced(directories: &[Value], gone: &Value, new: &Value) -> Vec<Value> {
    let at = directories.iter().position(|directory| directory == gone);
    let keeps_its_place = directories.iter().position(|directory| directory == new) < at;
    let keeps_its_place = keeps_its_place && directories.contains(new);
    let all = directories.iter().filter_map(|directory| match directory {
        directory if directory == gone => (!keeps_its_place).then_some(new),
        directory if directory == new => keeps_its_place.then_some(new),
        directory => Some(directory),
    });
    all.cloned().collect()
}

fn build(outgoing: OutgoingAction, server_seq: u64, origin: Option<&Origin>, reason: Option<&str>) -> Object {
    let mut envelope = node::members(
        json!({ "channel": outgoing.channel, "action": outgoing.action, "serverSeq": server_seq }),
    );
    envelope.extend(origin.map(|origin| ("origin".to_owned(), json!(origin))));
    envelope.extend(reason.map(|reason| ("rejectionReason".to_owned(), reason.into())));
    envelope
}

/// Returns the params of an action's notification, or its entry in a replay.
pub fn frame(chain: Chain, mut envelope: Object, in_replay: bool, context: &mut Context<'_>) -> Object {
    chain.envelope_down(&mut envelope, in_replay);
    if in_replay {
        return envelope;
    }
    let notice = OutgoingNotice { method: "action".to_owned(), params: envelope };
    chain.notice_down(notice, context).map_or_else(Object::new, |notice| notice.params)
}

/// Returns the chat that a channel stands for: a session stands for its default chat.
fn chat_of(channel: &str) -> String {
    match channel.split_once(':') {
        Some(("ahp-chat", _)) => channel.to_owned(),
        _ => uris::default_chat_of(channel),
    }
}
