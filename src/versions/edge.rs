//! Translation between each connection and the core.
//!
//! Owns: each connection's version, subscriptions and requests in flight, and the last version of
//! each client id. Its parts are `up`, `down`, `answers`, `deferred` (answers long to
//! write) and `detached` (their turns).
//! Never: defines the differences between versions (the steps do), or delays a connection of the
//! newest version, whose messages pass unchanged.

mod answers;
mod deferred;
mod detached;
mod down;
mod up;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{json, Value};

pub use self::deferred::DeferredMessage;
use super::dialect::{integer_sign, negotiate, reconnect_sign, Dialect, Negotiation};
use super::names;
use super::node::{self, Object};
use super::quirks::{self, ProviderNames, Quirks};
use super::step::{IncomingCall, Reply};
use super::translation::VersionTranslation;
use super::Outgoing;
use crate::host::effects::{
    Abilities, ClientMessage, ConnectionId, InternalRequest, LargeStates, Record, SessionOptions,
};
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::{check_client_id, InitializeParams, Method, ReconnectParams};
use crate::wire::references::MessageReferences;
use crate::wire::rpc::{to_json, Incoming, MethodName, Params, RequestId};
use crate::wire::uris;

/// Former spellings of the root channel's URI, which the core does not know.
const OLD_ROOTS: [&str; 3] = ["agenthost:/root", "agenthost:root", "root:/"];

/// Maximum number of unanswered actions of a client whose original text is retained.
const ACTIONS_MAX: usize = 256;

/// Number of client ids in memory above which those without a connection are evicted to the store.
const CLIENTS_MAX: usize = 10_000;

/// All connections, with the translations that they share.
#[derive(Debug, Default)]
pub struct Edges {
    /// Version that the core speaks, the newest that is served.
    newest: Dialect,
    peers: BTreeMap<ConnectionId, EdgeConnection>,
    translations: BTreeMap<Dialect, VersionTranslation>,
    /// Last version of each client id.
    clients: HashMap<String, Dialect>,
    providers: Vec<String>,
    /// Records of received messages; see [`Edges::take_records`].
    records: Vec<Record>,
    /// Messages to the core that translated answers have caused.
    follow_ups: VecDeque<(ConnectionId, Incoming)>,
    /// Number of the last request to the core in place of a client's.
    last_inner: u64,
    /// Names for clients with [`quirks::Quirk::SessionsByProvider`].
    spelling: ProviderNames,
}

#[derive(Debug, Default)]
struct EdgeConnection {
    dialect: Dialect,
    /// Version that the core speaks.
    newest: Dialect,
    /// Negotiated version, exactly as the client offered it.
    answer: Value,
    /// Set once the handshake is over.
    open: bool,
    /// Id of the core's `initialize` in flight.
    begins: Option<RequestId>,
    /// Set while a later message may show that another version is meant.
    doubtful: bool,
    /// Set once the assumption was logged.
    is_assumed: bool,
    /// Version to assume if the first messages do not tell it.
    assumed: Option<Dialect>,
    client_id: String,
    /// Abilities of the client that were last sent to the core.
    abilities: Abilities,
    quirks: Quirks,
    /// Client's name of the root channel; `None` if it is the core's.
    root: Option<String>,
    /// Subscribed channels by the core's names, each with the number of the request that
    /// subscribed: requests may be answered out of order.
    subscribed: BTreeMap<String, u64>,
    /// Channels that the client needs in addition, such as default chats, with numbers as above.
    implied: BTreeMap<String, u64>,
    /// Names by which the client last subscribed to channels, if they are not the core's, with
    /// those.
    aliases: BTreeMap<String, String>,
    /// Requests in flight, by the number of the first request to the core.
    batches: BTreeMap<u64, RequestBatch>,
    /// Actions in flight by `clientSeq`, as the client sent them.
    unanswered_actions: VecDeque<(i64, Object)>,
}

#[derive(Debug)]
enum CoreAnswer {
    Written {
        /// JSON text of the result.
        result: Bytes,
        /// Kinds of the channels whose states the result contains, in order.
        states: Vec<ChannelKind>,
    },
    /// Answer that takes long to write.
    Large(Box<LargeStates>),
}

/// Maximum length of another name of a channel that is remembered, in bytes.
const ALIAS_BYTES_MAX: usize = 4096;

/// A client's request, with the requests that the core receives in its place.
#[derive(Debug)]
struct RequestBatch {
    id: RequestId,
    /// Method name that the core received.
    method: String,
    reply: Reply,
    /// Channels that the client asked for: by its own names until the answer, then by the core's.
    requested: Vec<String>,
    /// Client's names of the channels that it asked for.
    client_names: Vec<String>,
    /// Channels that are subscribed to in addition.
    implied: Vec<String>,
    /// Requested channels that were unsubscribed before the answer.
    unsubscribed: BTreeSet<String>,
    /// Answers of the core so far, in the order of the requests.
    answers: Vec<Result<CoreAnswer, RpcError>>,
    expected: usize,
    /// Messages of the core after its first answer, which must follow the client's answer.
    queued: Vec<Outgoing>,
}

/// Returns whether a channel is the default chat of one of these sessions.
fn is_chat_of_any(channel: &str, sessions: &BTreeSet<String>) -> bool {
    uris::session_of_default_chat(channel).is_some_and(|session| sessions.contains(&session))
}

impl RequestBatch {
    /// Returns whether the client needs a channel besides the requested ones that it still wants.
    fn implies(&self, channel: &String) -> bool {
        self.implied.contains(channel) && !is_chat_of_any(channel, &self.unsubscribed)
    }
}

impl EdgeConnection {
    /// Notes other names of channels with those of the core. Of each channel that the client
    /// receives one name is known, which is not too long: a channel has endless names.
    fn note_aliases(&mut self, names: HashMap<String, String>) {
        for (alias, name) in names.into_iter().filter(|(alias, _)| alias.len() <= ALIAS_BYTES_MAX) {
            self.aliases.retain(|_, known| *known != name);
            self.aliases.insert(alias, name);
        }
        self.aliases.retain(|_, name| self.subscribed.contains_key(name) || self.implied.contains_key(name));
    }

    /// Returns whether nothing needs translation, not even the name of the root channel.
    fn is_plain(&self) -> bool {
        self.dialect == self.newest && self.root.is_none()
    }

    fn passes(&self, message: &Incoming) -> bool {
        let (Incoming::Request { method, params, .. } | Incoming::Notification { method, params }) = message
        else {
            return true;
        };
        let is_translated =
            self.quirks.sessions_by_provider || self.quirks.sessions_ahead || !self.is_plain();
        match method.served() {
            Some(Method::Initialize | Method::Reconnect) => false,
            served => !is_translated && !names_root_otherwise(served, params),
        }
    }

    fn plain_message(&self, id: Option<RequestId>, method: MethodName, params: Params) -> ClientMessage {
        if self.quirks.sessions_ahead && id.is_some() && method.served() == Some(Method::CreateSession) {
            let options = SessionOptions { ahead: true, ..SessionOptions::default() };
            return ClientMessage::Internal(id, Box::new(InternalRequest::CreateSession(params, options)));
        }
        message_of(id, method, params).into()
    }

    /// Returns whether the client receives messages of a channel. In older versions some channels
    /// are subscribed to that the client did not ask for.
    fn is_shown(&self, channel: &str) -> bool {
        !self.dialect.has_summaries_in_states() || self.subscribed.contains_key(channel)
    }

    /// Replaces the client's name of the root channel by the core's. If the message subscribes,
    /// the client receives messages under that name from now on.
    fn root_up(&mut self, uri: &mut String, subscribes: bool) {
        if uris::is_root(uri) || OLD_ROOTS.contains(&uri.as_str()) {
            let named = std::mem::replace(uri, uris::ROOT.to_owned());
            if subscribes {
                self.root = Some(named).filter(|it| it != uris::ROOT);
            }
        }
    }

    /// Retains an action as its client sent it, for the echo.
    fn note(&mut self, params: Object) {
        if let Some(seq) = params.get("clientSeq").and_then(Value::as_i64) {
            if self.unanswered_actions.len() == ACTIONS_MAX {
                self.unanswered_actions.pop_front();
            }
            self.unanswered_actions.push_back((seq, params));
        }
    }

    /// Returns whether a channel is subscribed to, or will be by a request in flight.
    fn follows(&self, channel: &String) -> bool {
        let is_asked = |batch: &RequestBatch| {
            batch.implies(channel)
                || batch.requested.contains(channel) && !batch.unsubscribed.contains(channel)
        };
        self.subscribed.contains_key(channel)
            || self.implied.contains_key(channel)
            || self.batches.values().any(is_asked)
    }

    /// Returns a copy of the members that a deferred answer needs for its translation.
    fn apart(&self) -> Self {
        Self {
            dialect: self.dialect,
            newest: self.newest,
            answer: self.answer.clone(),
            client_id: self.client_id.clone(),
            root: self.root.clone(),
            subscribed: self.subscribed.clone(),
            ..Self::default()
        }
    }

    fn root(&self) -> &str {
        self.root.as_deref().unwrap_or(uris::ROOT)
    }

    fn root_down(&self, uri: &str) -> String {
        (if uri == uris::ROOT { self.root() } else { uri }).to_owned()
    }
}

impl Edges {
    /// Creates the translation. `providers` are the names of the agents, the default one first.
    pub fn new(providers: Vec<String>) -> Self {
        Self { providers, ..Self::default() }
    }

    /// Serves versions up to `newest`, which the core speaks.
    #[must_use]
    pub fn speaking(self, newest: Dialect) -> Self {
        Self { newest, ..self }
    }

    /// Sets the names of the agents that are offered now, the default one first. Former ones stay
    /// known, because their sessions keep their names.
    pub fn offer(&mut self, mut providers: Vec<String>) {
        let before = self.providers.iter().filter(|before| !providers.contains(before));
        providers.extend(before.cloned().collect::<Vec<_>>());
        for translation in self.translations.values_mut() {
            translation.names.offer(providers.clone());
        }
        self.providers = providers;
    }

    /// Makes the files of this machine in a message `file:` URIs. Must run before anything else.
    pub fn with_files(&self, connection: ConnectionId, message: Incoming) -> Incoming {
        match self.peers.get(&connection) {
            Some(peer) if peer.quirks.remote_files => quirks::with_files(message),
            _ => message,
        }
    }

    /// Returns the names in a message, as the core may spell them. May contain more channels than
    /// the message means: only the translation resolves a former spelling for sure.
    pub fn named(&self, connection: ConnectionId, message: &Incoming) -> MessageReferences {
        let peer = self.peers.get(&connection);
        let mut named = MessageReferences::of(message);
        // The version of a client that connects or returns is not known yet.
        let speaks_newest = peer.is_some_and(|peer| peer.open && peer.dialect.names_channels());
        if !named.channels.is_empty() && (!speaks_newest || named.client.is_some()) {
            let translations =
                self.translations.values().filter(|translation| !translation.dialect().names_channels());
            let mut plain_names: BTreeSet<String> = translations
                .flat_map(|translation| named.channels.iter().filter_map(|uri| translation.names.known(uri)))
                .collect();
            plain_names
                .extend(named.channels.iter().filter_map(|uri| names::plain_name(&self.providers, uri)));
            named.channels.extend(plain_names);
        }
        named.sessions = self.begins_without_channels(connection, message);
        let begins = peer.is_none_or(|peer| !peer.open) || named.client.is_some();
        if begins || peer.is_some_and(|peer| peer.quirks.sessions_by_provider) {
            let subscribes = begins || is_subscribe(message);
            let otherwise = named.channels.iter().filter_map(|uri| quirks::called_otherwise(uri));
            // Other messages add only sessions that were mentioned, which saves reads of the store.
            let otherwise: Vec<String> =
                otherwise.filter(|uri| subscribes || self.spelling.knows(uri)).collect();
            named.channels.extend(otherwise);
        }
        named.channels.retain(|uri| !uris::is_root(uri) && !OLD_ROOTS.contains(&uri.as_str()));
        named
    }

    /// Returns whether a message begins or resumes a connection in a version that may have its own
    /// names for sessions (one whose messages name no channels).
    fn begins_without_channels(&self, connection: ConnectionId, message: &Incoming) -> bool {
        let Incoming::Request { method, params, .. } = message else { return false };
        let peer = self.peers.get(&connection).filter(|peer| peer.open);
        let returns = method.served() == Some(Method::Reconnect);
        if !(returns || peer.is_none() && method.served() == Some(Method::Initialize)) {
            return false;
        }
        let Ok(params) = params.read::<Object>() else { return false };
        if !returns {
            let offers = params.get("protocolVersions").and_then(Value::as_array).into_iter().flatten();
            let mut offers = offers.filter_map(Value::as_str);
            return params.contains_key("protocolVersion") || offers.any(|offer| offer.starts_with("0.1."));
        }
        let known = node::text(&params, "clientId").and_then(|id| self.clients.get(id)).copied();
        let known = known.or(peer.map(|peer| peer.dialect));
        known.map_or(!params.contains_key("channel"), |known| !known.names_channels())
    }

    /// Learns sessions, each with its provider, for versions that name sessions by providers.
    pub fn learn_sessions(&mut self, sessions: &[(String, String)]) {
        for dialect in Dialect::released().filter(|dialect| !dialect.names_channels()) {
            let named = sessions.iter().map(|(uri, provider)| (uri.as_str(), Some(provider.as_str())));
            self.translation_to(dialect).names.learn_sessions(named);
        }
    }

    fn translation_to(&mut self, dialect: Dialect) -> &mut VersionTranslation {
        let (providers, newest) = (&self.providers, self.newest);
        let new = || VersionTranslation::new(dialect, providers.clone()).from(newest);
        self.translations.entry(dialect).or_insert_with(new)
    }

    /// Learns the providers of these sessions, some of which may be disposed of: a client that
    /// returns may still receive their names.
    pub fn learn<'a>(&mut self, sessions: impl Iterator<Item = (&'a str, &'a str)>) {
        let sessions: Vec<(&str, Option<&str>)> = sessions
            .inspect(|(uri, provider)| self.spelling.note(uri, provider))
            .map(|(uri, provider)| (uri, Some(provider)))
            .collect();
        let translations =
            self.translations.values_mut().filter(|translation| !translation.dialect().names_channels());
        for VersionTranslation { names, .. } in translations {
            // One that exists may have another provider than the removed one of that id.
            let unknown: Vec<_> = sessions.iter().copied().filter(|(uri, _)| !names.is_named(uri)).collect();
            names.learn_sessions(unknown.into_iter());
        }
    }

    /// Returns whether the last version of this client id is not in memory; the store may have it.
    pub fn is_stranger(&self, client_id: &str) -> bool {
        !self.clients.contains_key(client_id)
    }

    /// Sets the last version of a client id. Returns the one before.
    pub fn remember(&mut self, client_id: String, dialect: Dialect) -> Option<Dialect> {
        if self.clients.len() >= CLIENTS_MAX {
            let connected: BTreeSet<&str> = self.peers.values().map(|peer| peer.client_id.as_str()).collect();
            self.clients.retain(|id, _| connected.contains(id.as_str()));
        }
        self.clients.insert(client_id, dialect)
    }

    /// Takes the records of received messages, which must be durable before the answer goes out.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Takes the next message to the core that a translated answer has caused.
    pub fn take_later(&mut self) -> Option<(ConnectionId, Incoming)> {
        self.follow_ups.pop_front()
    }

    /// Adds a connection; `assumed` is its version if the first messages do not tell it.
    pub fn open(&mut self, connection: ConnectionId, assumed: Option<Dialect>) {
        let newest = self.newest;
        let peer = EdgeConnection { assumed, newest, dialect: newest, ..EdgeConnection::default() };
        self.peers.insert(connection, peer);
    }

    /// Removes a connection.
    pub fn close(&mut self, connection: ConnectionId) {
        self.peers.remove(&connection);
        if !self.peers.values().any(|peer| peer.quirks.sessions_by_provider) {
            // The next such client is sent its sessions again.
            self.spelling = ProviderNames::default();
        }
        self.sweep();
    }

    /// Translates a message to those for the core, which must be handled without others between.
    pub fn up(&mut self, connection: ConnectionId, message: Incoming, fed: &mut Vec<ClientMessage>) {
        let peer = self.peers.entry(connection).or_default();
        if peer.passes(&message) {
            return fed.push(message.into());
        }
        let message = if peer.quirks.sessions_by_provider { self.spelling.take_up(message) } else { message };
        let (id, method, params) = match message {
            Incoming::Request { id, method, params } => (Some(id), method, params),
            Incoming::Notification { method, params } => (None, method, params),
            other => return fed.push(other.into()),
        };
        let served = method.served();
        let begins =
            id.is_some() && served == Some(Method::Initialize) && !peer.open && peer.begins.is_none();
        let returns = id.is_some() && served == Some(Method::Reconnect);
        let subscribes = begins || returns || served == Some(Method::Subscribe);
        if !subscribes && peer.is_plain() {
            return fed.push(peer.plain_message(id, method, params));
        }
        let first = fed.len();
        let heard = params.read::<Object>().and_then(|object| {
            if begins {
                self.begin(connection, &object, &params)?;
            } else if returns {
                self.come_back(connection, &object, &params)?;
            }
            if begins || returns {
                self.peers.entry(connection).or_default().quirks = Quirks::of(&object);
            }
            let peer = self.peers.entry(connection).or_default();
            if subscribes && peer.quirks.sessions_by_provider {
                self.spelling.guess(&object);
            }
            if peer.is_plain() && !names_root_otherwise(served, &params) {
                fed.push(peer.plain_message(id.clone(), method.clone(), params.clone()));
                return Ok(());
            }
            let options = SessionOptions { ahead: peer.quirks.sessions_ahead, ..SessionOptions::default() };
            let method = method.as_str().to_owned();
            let call = IncomingCall { method, params: object, options, reply: Reply::Same, session: None };
            self.translate_up(connection, id.clone(), call, fed)
        });
        match (heard, id) {
            (Ok(()), _) => {}
            (Err(error), Some(id)) => fed.push(Incoming::Malformed { id: Some(id), error }.into()),
            (Err(error), None) => {
                let (method, version) =
                    (method.as_str(), self.peers.entry(connection).or_default().dialect.name());
                tracing::warn!(method, %error, "a notification cannot be translated from version {version}: it is ignored");
            }
        }
        let peer = self.peers.entry(connection).or_default();
        if begins {
            peer.begins = fed.iter().skip(first).find_map(|message| match message {
                ClientMessage::Protocol(Incoming::Request { id, .. }) => Some(id.clone()),
                _ => None,
            });
        }
        let abilities = peer.dialect.abilities();
        if std::mem::replace(&mut peer.abilities, abilities) != abilities {
            let note = || ClientMessage::Internal(None, Box::new(InternalRequest::Note(abilities)));
            // They hold for what the message sets off, and then for the open questions.
            fed.insert(first, note());
            fed.push(note());
        }
    }

    /// Returns whether a message goes to the core unchanged.
    pub fn passes(&self, connection: ConnectionId, message: &Incoming) -> bool {
        self.peers.get(&connection).is_some_and(|peer| peer.passes(message))
    }

    /// Chooses the version of a connection from its `initialize`.
    fn begin(&mut self, connection: ConnectionId, params: &Object, raw: &Params) -> Result<(), RpcError> {
        let assumed = self.peers.get(&connection).and_then(|peer| peer.assumed);
        let Negotiation { dialect, answer, doubtful } = negotiate(params, assumed, self.newest)?;
        // What the core would refuse must not be recorded.
        let InitializeParams { client_id, .. } = raw.read()?;
        check_client_id(&client_id)?;
        self.settle_version(connection, client_id, dialect);
        let peer = self.peers.entry(connection).or_default();
        peer.answer = answer;
        peer.doubtful = doubtful;
        Ok(())
    }

    /// Chooses the version of a connection from its `reconnect`, which does not name one.
    fn come_back(&mut self, connection: ConnectionId, params: &Object, raw: &Params) -> Result<(), RpcError> {
        let Some(client_id) = node::text(params, "clientId") else { return Ok(()) };
        check_client_id(client_id)?;
        let known = self.clients.get(client_id).copied();
        // An open connection of an unknown client id keeps its version.
        let spoken = self.peers.get(&connection).filter(|peer| peer.open).map(|peer| peer.dialect);
        let known = known.or(spoken).or_else(|| reconnect_sign(params));
        let assumed = self.peers.get(&connection).and_then(|peer| peer.assumed);
        let dialect = match known.or(assumed) {
            // A preview that the client knew may be off now.
            Some(dialect) => dialect.min(self.newest),
            None => return Err(RpcError::unknown_client()),
        };
        raw.read::<ReconnectParams>()?;
        if known.or(spoken).is_none() {
            tracing::warn!(
                client = client_id,
                assumed = dialect.name(),
                "a client that is not known is back; its version is taken from the shape of its message, or assumed"
            );
        }
        self.settle_version(connection, client_id.to_owned(), dialect);
        Ok(())
    }

    fn settle_version(&mut self, connection: ConnectionId, client_id: String, dialect: Dialect) {
        self.translation_to(dialect);
        if self.remember(client_id.clone(), dialect) != Some(dialect) {
            self.records.push(Record::Client { id: client_id.clone(), version: dialect.name() });
        }
        let newest = self.newest;
        let peer = self.peers.entry(connection).or_default();
        peer.newest = newest;
        // Output before the answer keeps the former subscriptions; the answer replaces them.
        (peer.dialect, peer.client_id, peer.doubtful) = (dialect, client_id, false);
    }

    /// Decides between the two versions that call themselves 1, if this message tells.
    fn resolve_doubt(&mut self, connection: ConnectionId, method: &str, params: &Object) {
        let peer = self.peers.entry(connection).or_default();
        if !peer.doubtful || matches!(method, "initialize" | "ping") {
            return;
        }
        let Some(dialect) = integer_sign(method, params) else {
            if !std::mem::replace(&mut peer.is_assumed, true) {
                tracing::warn!(
                    client = peer.client_id,
                    "a client of version 1 does not show which; until it does, that of the crate 0.1.0 is assumed \
                     (--assume-version)"
                );
            }
            return;
        };
        peer.doubtful = false;
        if dialect != peer.dialect {
            let client_id = peer.client_id.clone();
            let taken_for = self.translations.remove(&peer.dialect);
            self.settle_version(connection, client_id, dialect);
            if let (Some(translation), Some(taken_for)) = (self.translations.get_mut(&dialect), taken_for) {
                translation.adopt(&taken_for);
                self.translations.insert(taken_for.dialect(), taken_for);
            }
        }
    }

    /// Drops the retained states of channels that no connection is subscribed to.
    fn sweep(&mut self) {
        let peers = &self.peers;
        for (dialect, translation) in &mut self.translations {
            let of_version = peers.values().filter(|peer| peer.dialect == *dialect);
            let channels = of_version.flat_map(|peer| peer.subscribed.keys().chain(peer.implied.keys()));
            let channels: BTreeSet<&str> = channels.map(String::as_str).collect();
            translation.retain_channels(|channel| channels.contains(channel));
        }
    }
}

/// Returns whether a subscription of the newest version spells the root channel differently from
/// the core; the answer must have the same spelling.
fn names_root_otherwise(method: Option<Method>, params: &Params) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Names {
        channel: Option<String>,
        initial_subscriptions: Vec<String>,
        subscriptions: Vec<String>,
    }
    let Some(method @ (Method::Initialize | Method::Reconnect | Method::Subscribe)) = method else {
        return false;
    };
    let names: Names = params.read().unwrap_or_default();
    let subscribed = if method == Method::Subscribe { names.channel } else { None };
    let mut all = names.initial_subscriptions.iter().chain(&names.subscriptions).chain(&subscribed);
    all.any(|uri| uri != uris::ROOT && uris::is_root(uri))
}

fn is_subscribe(message: &Incoming) -> bool {
    matches!(message, Incoming::Request { method, .. } if method.served() == Some(Method::Subscribe))
}

fn message_of(id: Option<RequestId>, method: impl Into<MethodName>, params: Params) -> Incoming {
    let method = method.into();
    match id {
        Some(id) => Incoming::Request { id, method, params },
        None => Incoming::Notification { method, params },
    }
}

fn unsubscribe(channel: &str) -> Incoming {
    let params = Params::from_json(to_json(&json!({ "channel": channel })));
    message_of(None, Method::Unsubscribe.name().to_owned(), params)
}

#[cfg(test)]
mod tests {
    use ahp_types::state::SnapshotState;

    use super::*;
    use crate::host::effects::{ChannelSnapshot, Frame};
    use crate::state::history::CompletedTurn;
    use crate::wire::methods::CLIENT_ID_BYTES_MAX;
    use crate::wire::rpc::notification_line;

    const ONE: ConnectionId = ConnectionId(1);

    /// Sends a request of the newest version. Returns the messages for the core.
    fn ask(edges: &mut Edges, method: Method, params: &Value) -> Vec<ClientMessage> {
        let (id, params) = (RequestId::inner(1), Params::from_json(params.to_string()));
        let mut fed = Vec::new();
        edges.up(ONE, Incoming::Request { id, method: method.name().into(), params }, &mut fed);
        fed
    }

    /// Returns the id of a client's request, of this JSON text.
    fn parsed_id(json: &str) -> RequestId {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{json},"method":"ping"}}"#);
        match Incoming::parse(&line.into()) {
            Incoming::Request { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    fn id_of_request(message: &ClientMessage) -> Option<RequestId> {
        match message {
            ClientMessage::Protocol(Incoming::Request { id, .. }) => Some(id.clone()),
            _ => None,
        }
    }

    fn initialize(client_id: &str) -> Value {
        let version = Dialect::NEWEST.name();
        json!({ "channel": uris::ROOT, "protocolVersions": [version], "clientId": client_id })
    }

    fn reconnect(client_id: &str) -> Value {
        json!({ "channel": uris::ROOT, "clientId": client_id, "lastSeenServerSeq": 0, "subscriptions": [] })
    }

    #[test]
    fn refused_handshake_does_not_set_the_version_of_a_client() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        let mut wrong = [initialize("c"), initialize("c"), json!({ "clientId": "c", "channel": uris::ROOT })];
        wrong[0]["initialSubscriptions"] = json!(5);
        wrong[1]["clientId"] = Value::Null;
        let long = "x".repeat(CLIENT_ID_BYTES_MAX + 1);
        let ids = ["", &long].map(|id| [initialize(id), reconnect(id)]);
        for params in wrong.iter().chain(ids.as_flattened()) {
            edges.open(ONE, Some(Dialect::NEWEST));
            let begins = params.get("protocolVersions").is_some();
            let fed = ask(&mut edges, if begins { Method::Initialize } else { Method::Reconnect }, params);
            assert!(matches!(&fed[0], ClientMessage::Protocol(Incoming::Malformed { .. })), "{fed:?}");
            let id = params["clientId"].as_str().unwrap_or("c");
            assert_eq!((edges.take_records(), edges.is_stranger(id)), (Vec::new(), true), "{params}");
            edges.close(ONE);
        }
        edges.open(ONE, None);
        ask(&mut edges, Method::Initialize, &initialize("c"));
        assert_eq!((edges.take_records().len(), edges.is_stranger("c")), (1, false));
    }

    #[test]
    fn refused_reconnect_does_not_change_the_version_of_an_open_connection() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        edges.remember(String::new(), Dialect::V0_5_1);
        edges.open(ONE, None);
        ask(&mut edges, Method::Initialize, &initialize("c"));
        edges.peers.entry(ONE).or_default().open = true;
        let fed = ask(&mut edges, Method::Reconnect, &reconnect(""));
        assert!(matches!(&fed[0], ClientMessage::Protocol(Incoming::Malformed { .. })), "{fed:?}");
        assert_eq!(edges.peers[&ONE].dialect, Dialect::NEWEST);
    }

    #[test]
    fn second_initialize_in_flight_does_not_change_the_version_of_the_first() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        edges.open(ONE, None);
        let mut first = initialize("a");
        first["protocolVersions"] = json!(["0.4.0"]);
        let fed = ask(&mut edges, Method::Initialize, &first);
        ask(&mut edges, Method::Initialize, &initialize("b"));
        assert_eq!((edges.peers[&ONE].dialect, edges.is_stranger("b")), (Dialect::V0_4_0, true));
        // After a refusal, the next one is the first again.
        let id = fed.iter().find_map(id_of_request).expect("it goes to the core");
        edges.down(ONE, &Frame::Error { id: Some(id), error: RpcError::unknown_client() }, &mut Vec::new());
        ask(&mut edges, Method::Initialize, &initialize("b"));
        assert_eq!((edges.peers[&ONE].dialect, edges.is_stranger("b")), (Dialect::NEWEST, false));
    }

    #[test]
    fn versions_of_clients_without_a_connection_are_evicted() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        edges.open(ONE, None);
        ask(&mut edges, Method::Initialize, &initialize("c"));
        for number in 0..=CLIENTS_MAX {
            edges.remember(number.to_string(), Dialect::NEWEST);
        }
        assert!(edges.clients.len() < CLIENTS_MAX);
        assert!(edges.is_stranger("0") && !edges.is_stranger("c"));
    }

    #[test]
    fn client_of_a_preview_that_is_off_now_is_served_as_of_the_newest_release() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        edges.remember("c".to_owned(), Dialect::V1_1_0);
        edges.open(ONE, None);
        let fed = ask(&mut edges, Method::Reconnect, &reconnect("c"));
        assert!(matches!(&fed[0], ClientMessage::Protocol(Incoming::Request { .. })), "{fed:?}");
        assert_eq!(edges.peers[&ONE].dialect, Dialect::NEWEST);
    }

    #[test]
    fn abilities_of_an_older_client_hold_for_its_handshake_and_for_what_is_open_then() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        edges.remember("c".to_owned(), Dialect::V0_5_1);
        let handshakes = [
            (Method::Initialize, json!({ "protocolVersions": ["0.5.1"] })),
            (Method::Reconnect, json!({ "lastSeenServerSeq": 0, "subscriptions": [] })),
        ];
        for (method, mut params) in handshakes {
            (params["channel"], params["clientId"]) = (json!(uris::ROOT), json!("c"));
            edges.open(ONE, None);
            let fed = ask(&mut edges, method, &params);
            let [first, .., last] = &fed[..] else { panic!("{fed:?}") };
            assert!(fed.len() > 2 && first.is_note() && last.is_note(), "{fed:?}");
            edges.close(ONE);
        }
    }

    #[test]
    fn acknowledged_action_names_the_root_channel_as_its_client_does() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        edges.open(ONE, None);
        let mut params = initialize("c");
        params["initialSubscriptions"] = json!(["ahp-root:/"]);
        ask(&mut edges, Method::Initialize, &params);
        // Only a subscription names the channel for messages to the client.
        ask(&mut edges, Method::ListSessions, &json!({ "channel": uris::ROOT }));
        let origin = json!({ "clientId": "c", "clientSeq": 1 });
        let action = json!({ "type": "root/configChanged", "config": {} });
        let envelope = json!({ "channel": uris::ROOT, "action": action, "serverSeq": 1, "origin": origin });
        let line = notification_line("action", envelope.to_string().as_bytes());
        let mut told = Vec::new();
        edges.down(ONE, &Frame::Answer(line), &mut told);
        let told: Value = serde_json::from_slice(&told[0]).unwrap();
        assert_eq!(told["params"]["channel"], "ahp-root:/", "{told}");
    }

    /// Answers the core's requests in place of a client's, as `answer` does for each channel.
    /// Returns the messages to the client, and the channels that the core is to unsubscribe.
    fn answer_core(
        edges: &mut Edges,
        fed: Vec<ClientMessage>,
        answer: &dyn Fn(&str) -> Result<Value, RpcError>,
    ) -> (Vec<Value>, Vec<Value>) {
        let mut lines = Vec::new();
        for message in fed {
            let frame = match message {
                ClientMessage::Protocol(Incoming::Request { id, params, .. }) => {
                    let params: Object = params.read().unwrap();
                    match answer(node::text(&params, "channel").unwrap()) {
                        Ok(result) => Frame::Result {
                            id,
                            method: Method::Subscribe,
                            result: result.to_string().into(),
                            states: vec![if result["snapshot"]["state"]["chats"].is_null() {
                                ChannelKind::Chat
                            } else {
                                ChannelKind::Session
                            }],
                        },
                        Err(error) => Frame::Error { id: Some(id), error },
                    }
                }
                ClientMessage::Internal(Some(id), _) => {
                    Frame::result(id, Method::Subscribe, Bytes::from_static(b"{}"))
                }
                other => panic!("{other:?}"),
            };
            edges.down(ONE, &frame, &mut lines);
        }
        let ended = std::iter::from_fn(|| edges.take_later()).map(|(_, message)| match message {
            Incoming::Notification { params, .. } => params.read::<Value>().unwrap()["channel"].take(),
            other => panic!("{other:?}"),
        });
        (lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect(), ended.collect())
    }

    #[test]
    fn subscribe_whose_chat_cannot_be_shown_now_fails_and_subscribes_to_nothing() {
        let session = "ahp-session:/1";
        let chat = uris::default_chat_of(session);
        let state = json!({ "provider": "script", "chats": [{ "resource": chat }] });
        let shown = json!({ "snapshot": { "resource": session, "state": state, "fromSeq": 1 } });
        let full = || RpcError::unavailable("the disk is full");
        for version in ["0.2.0", "0.3.0", "0.4.0"] {
            let mut edges = Edges::new(vec!["script".to_owned()]);
            edges.open(ONE, None);
            let mut params = initialize("c");
            params["protocolVersions"] = json!([version]);
            ask(&mut edges, Method::Initialize, &params);
            edges.peers.entry(ONE).or_default().batches.clear();
            let subscribe = |edges: &mut Edges| {
                let params = Params::from_json(json!({ "channel": session }).to_string());
                let mut fed = Vec::new();
                let id = parsed_id("7");
                edges.up(ONE, Incoming::Request { id, method: "subscribe".into(), params }, &mut fed);
                fed
            };
            let fed = subscribe(&mut edges);
            let of = |uri: &str| if uri == session { Ok(shown.clone()) } else { Err(full()) };
            let (told, ended) = answer_core(&mut edges, fed, &of);
            assert_eq!(told[0]["error"]["code"], full().code, "{version}: {told:?}");
            assert_eq!(ended, [session], "{version}");
            let peer = &edges.peers[&ONE];
            assert!(peer.subscribed.is_empty() && !peer.implied.contains_key(&chat), "{version}");

            // The other way round: only the chat exists, in another session.
            let gone = |uri: &str| match uri == session {
                true => Err(RpcError::channel_not_found(uri)),
                false => Ok(json!({ "snapshot": null })),
            };
            let fed = subscribe(&mut edges);
            let (told, ended) = answer_core(&mut edges, fed, &gone);
            assert!(told[0]["error"].is_object(), "{version}: {told:?}");
            assert_eq!(ended, [json!(chat)], "{version}");

            // A session without its first chat has no conversation.
            let alone = |uri: &str| match uri == session {
                true => Ok(shown.clone()),
                false => Err(RpcError::channel_not_found(uri)),
            };
            let fed = subscribe(&mut edges);
            let (told, ended) = answer_core(&mut edges, fed, &alone);
            assert!(told[0]["result"].is_object(), "{version}: {told:?}");
            assert!(ended.is_empty(), "{version}");
            let peer = &edges.peers[&ONE];
            assert!(peer.subscribed.contains_key(session) && !peer.implied.contains_key(&chat), "{version}");
        }
    }

    #[test]
    fn returning_client_receives_the_name_of_a_session_that_was_removed_before_a_restart() {
        let mut edges = Edges::new(vec!["script".to_owned(), "other".to_owned()]);
        edges.remember("c".to_owned(), Dialect::V0_1_0);
        // As the store has them: the sessions there are, then those there were.
        edges.learn_sessions(&[("ahp-session:/2".to_owned(), "script".to_owned())]);
        let past = [("ahp-session:/1", "other"), ("ahp-session:/2", "other")];
        edges.learn(past.into_iter());
        edges.open(ONE, None);
        let params = json!({ "clientId": "c", "lastSeenServerSeq": 0, "subscriptions": [] });
        ask(&mut edges, Method::Reconnect, &params);
        for (session, name) in [("ahp-session:/1", "other:/1"), ("ahp-session:/2", "script:/2")] {
            let params = json!({ "channel": uris::ROOT, "session": session }).to_string().into();
            let removed = Frame::Notification { method: "root/sessionRemoved", params };
            let mut told = Vec::new();
            edges.down(ONE, &removed, &mut told);
            let told: Value = serde_json::from_slice(&told[0]).unwrap();
            assert_eq!(told["params"]["notification"]["session"], name, "{told}");
        }
    }

    /// Opens a connection of a window of an editor.
    fn window(edges: &mut Edges) {
        edges.open(ONE, None);
        let mut params = initialize("c");
        params["clientInfo"] = json!({ "name": "vscode-editor-window", "version": "1" });
        ask(edges, Method::Initialize, &params);
        edges.peers.entry(ONE).or_default().open = true;
    }

    #[test]
    fn names_of_sessions_are_learned_only_where_the_core_writes_them() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        window(&mut edges);
        let session = |provider: &str| json!({ "resource": "ahp-session:/1", "provider": provider });
        let result =
            |method: Method, value: Value| Frame::result(parsed_id("1"), method, value.to_string().into());
        let action = |channel: &str, action: Value| {
            let params = json!({ "channel": channel, "action": action, "serverSeq": 1 });
            Frame::Answer(notification_line("action", params.to_string().as_bytes()))
        };
        let chat = uris::default_chat_of("ahp-session:/1");
        let other = session("other");
        let snapshot = json!({ "resource": "ahp-session:/1", "state": { "provider": "other" } });
        let foreign = [
            action(&chat, json!({ "type": "chat/toolCallStart", "_meta": { "acp.meta": other } })),
            action(uris::ROOT, json!({ "type": "root/configChanged", "config": { "x": other } })),
            // Answer of another client that serves files.
            result(Method::ResourceRead, json!({ "items": [other], "snapshot": snapshot })),
            Frame::Notification {
                method: "root/progress",
                params: json!({ "summary": other }).to_string().into(),
            },
        ];
        let listed = result(Method::ListSessions, json!({ "items": [session("script")] }));
        for frame in [listed].iter().chain(&foreign) {
            edges.down(ONE, frame, &mut Vec::new());
            let called = edges.peers[&ONE].quirks.called("ahp-session:/1", &edges.spelling);
            assert_eq!(called.as_deref(), Some("script:/1"), "{frame:?}");
        }
    }

    #[test]
    fn request_id_that_looks_like_a_placeholder_of_turns_comes_back() {
        let chat = "ahp-chat:/1";
        let state = json!({ "resource": chat, "title": "", "status": 1, "modifiedAt": "2026-01-01T00:00:00Z", "turns": [] });
        let turns =
            ["a", "b"].map(|id| CompletedTurn::from_stored(format!(r#"{{"id":"{id}"}}"#).into()).unwrap());
        for (version, method) in [("0.9.0", "subscribe"), ("0.5.0", "fetchTurns")] {
            let mut edges = Edges::new(vec!["script".to_owned()]);
            edges.open(ONE, None);
            let mut params = initialize("c");
            params["protocolVersions"] = json!([version]);
            ask(&mut edges, Method::Initialize, &params);
            let id = parsed_id(r#""turns apart 0, 0""#);
            let params = Params::from_json(json!({ "channel": chat, "limit": 9 }).to_string());
            let mut fed = Vec::new();
            edges.up(ONE, Incoming::Request { id, method: method.into(), params }, &mut fed);
            let snapshot = ChannelSnapshot {
                kind: ChannelKind::Chat,
                channel: chat.to_owned(),
                state: SnapshotState::Chat(serde_json::from_value(state.clone()).unwrap()),
                beside: Object::default(),
                turns: turns.to_vec(),
                from_seq: 1,
            };
            let states = LargeStates {
                method: Method::Subscribe,
                members: Object::default(),
                states: vec![snapshot],
                bytes: 1,
            };
            let mut outgoing = Vec::new();
            let inner = fed.iter().find_map(id_of_request).expect("it goes to the core");
            edges.translate_states(ONE, inner.clone(), states, &mut outgoing);
            // No channel has another name.
            let names = Frame::result(inner, Method::Subscribe, Bytes::from_static(b"{}"));
            edges.translate_frame(ONE, &names, &mut outgoing);
            let line = outgoing.remove(0).now();
            let answer: Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(answer["id"], "turns apart 0, 0", "{answer}");
        }
    }

    #[test]
    fn session_that_a_window_subscribes_to_by_its_provider_keeps_that_name() {
        let mut edges = Edges::new(vec!["script".to_owned()]);
        window(&mut edges);
        let chat = uris::default_chat_of("script:/1");
        ask(&mut edges, Method::Subscribe, &json!({ "channel": chat }));
        let quirks = edges.peers[&ONE].quirks;
        assert_eq!(quirks.called("ahp-session:/1", &edges.spelling).as_deref(), Some("script:/1"));
    }
}
