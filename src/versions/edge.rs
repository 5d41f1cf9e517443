//! Translation between each connection and the core.
//!
//! Owns: which version each connection speaks, its requests that are on their way, what it
//! subscribed to as it sees it, and the version that each client id spoke last. What passes through
//! it is `up`, `down`, `answers`, and `deferred` (answers that take long to write).
//! Never: says what differs between versions (the steps do), and never holds up a connection of the
//! newest version, whose messages pass as they are.

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
use crate::wire::methods::Method;
use crate::wire::references::MessageReferences;
use crate::wire::rpc::{to_json, Incoming, MethodName, Params, RequestId};
use crate::wire::uris;

/// Other spellings of the root channel's URI, besides those that the core knows.
const OLD_ROOTS: [&str; 3] = ["agenthost:/root", "agenthost:root", "root:/"];

/// Maximum number of a client's actions remembered in its own spelling until they are answered.
const ACTIONS_MAX: usize = 256;

/// Every connection's side of the core.
#[derive(Debug, Default)]
pub struct Edges {
    peers: BTreeMap<ConnectionId, EdgeConnection>,
    translations: BTreeMap<Dialect, VersionTranslation>,
    /// Version that each client spoke last.
    clients: HashMap<String, Dialect>,
    providers: Vec<String>,
    records: Vec<Record>,
    later: VecDeque<(ConnectionId, Incoming)>,
    last_inner: u64,
    /// Names of sessions for clients with quirks.
    spelling: ProviderNames,
}

/// One connection.
#[derive(Debug, Default)]
struct EdgeConnection {
    dialect: Dialect,
    /// The negotiated version, as it is answered.
    answer: Value,
    /// The handshake is over: the version stands.
    open: bool,
    /// Another version may be meant; what comes next may tell.
    doubtful: bool,
    /// Set once the assumption was logged.
    is_assumed: bool,
    /// Version to assume if the first messages do not tell it.
    assumed: Option<Dialect>,
    client_id: String,
    /// Abilities of the client, as the core knows them.
    abilities: Abilities,
    quirks: Quirks,
    /// Name of the root channel for the client, if it differs from the core's.
    root: Option<String>,
    /// Channels that the client subscribed to, as the core names them, each with the number of the
    /// request that did it: requests are answered out of order.
    shown: BTreeMap<String, u64>,
    /// Channels that were subscribed to for its sake besides, likewise.
    shadows: BTreeMap<String, u64>,
    /// Requests that are on their way, by the number that the core was given for the first.
    batches: BTreeMap<u64, RequestBatch>,
    /// Actions that are on their way, as the client said them.
    said: VecDeque<(i64, Object)>,
}

/// An answer of the core.
#[derive(Debug)]
enum CoreAnswer {
    /// One that is written.
    Written {
        /// The result; JSON text.
        result: Bytes,
        /// The kinds of the channels whose states are in it, in their order.
        states: Vec<ChannelKind>,
    },
    /// One that takes long to write.
    Large(Box<LargeStates>),
}

/// A client's request, and the requests that the core gets instead of it.
#[derive(Debug)]
struct RequestBatch {
    /// Whom to answer; nobody when it is a request of ours.
    id: Option<RequestId>,
    /// The method, as the core calls it.
    method: String,
    reply: Reply,
    /// The channels that the client asks for, as the core names them.
    asked: Vec<String>,
    /// Channels in the client's spelling.
    spelled: Vec<String>,
    /// The channels that are asked for besides.
    besides: Vec<String>,
    /// Channels that were unsubscribed before the answer.
    given_up: BTreeSet<String>,
    /// Answers of the core so far, in the order of asking.
    answers: Vec<Result<CoreAnswer, RpcError>>,
    wants: usize,
    /// Messages that the core sent behind its first answer, and that must follow the client's own.
    behind: Vec<Outgoing>,
}

impl EdgeConnection {
    /// Speaks the newest version, and calls the root channel what the core does: nothing is to be
    /// translated.
    fn is_plain(&self) -> bool {
        self.dialect == Dialect::NEWEST && self.root.is_none()
    }

    /// Returns whether a message of its client goes to the core as it is.
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

    /// Returns a message of a client of the newest version for the core.
    fn plain_message(&self, id: Option<RequestId>, method: MethodName, params: Params) -> ClientMessage {
        if self.quirks.sessions_ahead && id.is_some() && method.served() == Some(Method::CreateSession) {
            let options = SessionOptions { ahead: true, ..SessionOptions::default() };
            return ClientMessage::Internal(id, Box::new(InternalRequest::CreateSession(params, options)));
        }
        message_of(id, method, params).into()
    }

    /// Returns whether messages of a channel are for the client: all, unless channels were
    /// subscribed to that it did not ask for.
    fn is_shown(&self, channel: &str) -> bool {
        !self.dialect.has_summaries_in_states() || self.shown.contains_key(channel)
    }

    /// The core's name of the root channel for the client's.
    fn root_up(&mut self, uri: &mut String) {
        if uris::is_root(uri) || OLD_ROOTS.contains(&uri.as_str()) {
            self.root = Some(std::mem::replace(uri, uris::ROOT.to_owned())).filter(|it| it != uris::ROOT);
        }
    }

    /// Keeps what its client says of an action, to be echoed in its own words.
    fn note(&mut self, params: Object) {
        if let Some(seq) = params.get("clientSeq").and_then(Value::as_i64) {
            if self.said.len() == ACTIONS_MAX {
                self.said.pop_front();
            }
            self.said.push_back((seq, params));
        }
    }

    /// Returns whether a channel is subscribed to, or will be once the requests in flight are
    /// answered.
    fn follows(&self, channel: &String) -> bool {
        let is_asked =
            |batch: &RequestBatch| batch.asked.contains(channel) || batch.besides.contains(channel);
        let mut batches = self.batches.values().filter(|batch| !batch.given_up.contains(channel));
        self.shown.contains_key(channel) || self.shadows.contains_key(channel) || batches.any(is_asked)
    }

    /// Returns a copy of what later translation of an answer needs.
    fn apart(&self) -> Self {
        Self {
            dialect: self.dialect,
            answer: self.answer.clone(),
            client_id: self.client_id.clone(),
            root: self.root.clone(),
            shown: self.shown.clone(),
            ..Self::default()
        }
    }

    /// Returns the client's name of the root channel.
    fn root(&self) -> &str {
        self.root.as_deref().unwrap_or(uris::ROOT)
    }

    fn root_down(&self, uri: &str) -> String {
        (if uri == uris::ROOT { self.root() } else { uri }).to_owned()
    }
}

impl Edges {
    /// Begins without connections. `providers` are the agents that there are, the default one
    /// first.
    pub fn new(providers: Vec<String>) -> Self {
        Self { providers, ..Self::default() }
    }

    /// Takes in which agents are offered from now on, the default one first. Sessions of others are
    /// still called by theirs.
    pub fn offer(&mut self, mut providers: Vec<String>) {
        let before = self.providers.iter().filter(|before| !providers.contains(before));
        providers.extend(before.cloned().collect::<Vec<_>>());
        for translation in self.translations.values_mut() {
            translation.names.offer(providers.clone());
        }
        self.providers = providers;
    }

    /// A message with the files of this machine called as everybody calls them, whatever its client
    /// does. That comes before anything else is done with it.
    pub fn with_files(&self, connection: ConnectionId, message: Incoming) -> Incoming {
        match self.peers.get(&connection) {
            Some(peer) if peer.quirks.remote_files => quirks::with_files(message),
            _ => message,
        }
    }

    /// Returns the names in a message, as the core may spell them. There may be more channels than
    /// the message turns out to mean: an old spelling is resolved for sure only when the message is
    /// translated.
    pub fn named(&self, connection: ConnectionId, message: &Incoming) -> MessageReferences {
        let peer = self.peers.get(&connection);
        let mut named = MessageReferences::of(message);
        // The version of a client that comes, or comes back, is not known yet.
        let speaks_newest = peer.is_some_and(|peer| peer.open && peer.dialect.names_channels());
        if !named.channels.is_empty() && (!speaks_newest || named.client.is_some()) {
            let translations =
                self.translations.values().filter(|translation| !translation.dialect().names_channels());
            let mut spelled: BTreeSet<String> = translations
                .flat_map(|translation| named.channels.iter().filter_map(|uri| translation.names.known(uri)))
                .collect();
            spelled.extend(named.channels.iter().filter_map(|uri| names::plain_name(&self.providers, uri)));
            named.channels.extend(spelled);
        }
        named.sessions = self.begins_without_channels(connection, message);
        let begins = peer.is_none_or(|peer| !peer.open) || named.client.is_some();
        if begins || peer.is_some_and(|peer| peer.quirks.sessions_by_provider) {
            let subscribes = begins || is_subscribe(message);
            let otherwise = named.channels.iter().filter_map(|uri| quirks::called_otherwise(uri));
            // What was told of is known; of other messages' sessions the store is not asked in vain
            // each time.
            let otherwise = otherwise.filter(|uri| subscribes || self.spelling.knows(uri));
            let otherwise: Vec<String> = otherwise.collect();
            named.channels.extend(otherwise);
        }
        named.channels.retain(|uri| !uris::is_root(uri) && !OLD_ROOTS.contains(&uri.as_str()));
        named
    }

    /// Returns whether a client begins or returns whose version may have session names of its own:
    /// its messages name no channels.
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

    /// Learns what clients of versions that have names of their own call these sessions, each with
    /// its provider.
    pub fn learn_sessions(&mut self, sessions: &[(String, String)]) {
        for dialect in Dialect::ALL.iter().copied().filter(|dialect| !dialect.names_channels()) {
            let providers = &self.providers;
            let translation = self
                .translations
                .entry(dialect)
                .or_insert_with(|| VersionTranslation::new(dialect, providers.clone()));
            translation.names.learn_sessions(
                sessions.iter().map(|(uri, provider)| (uri.as_str(), Some(provider.as_str()))),
            );
        }
    }

    /// Learns which providers these sessions are of, some of which may be gone: a client that is
    /// back may be told of them.
    pub fn learn<'a>(&mut self, sessions: impl Iterator<Item = (&'a str, &'a str)>) {
        sessions.for_each(|(uri, provider)| self.spelling.note(uri, provider));
    }

    /// Returns whether the version that this client spoke last is unknown here, and may be in the
    /// store.
    pub fn is_stranger(&self, client_id: &str) -> bool {
        !self.clients.contains_key(client_id)
    }

    /// Remembers which version a client spoke last.
    pub fn remember(&mut self, client_id: String, dialect: Dialect) {
        self.clients.insert(client_id, dialect);
    }

    /// Takes the records of what was received; they must be durable before the answer goes out.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Takes the next message for the core that follows from one of its own.
    pub fn take_later(&mut self) -> Option<(ConnectionId, Incoming)> {
        self.later.pop_front()
    }

    /// A connection begins. Where the first messages of its client do not tell its version, it is
    /// `assumed`.
    pub fn open(&mut self, connection: ConnectionId, assumed: Option<Dialect>) {
        self.peers.insert(connection, EdgeConnection { assumed, ..EdgeConnection::default() });
    }

    /// Forgets a connection.
    pub fn close(&mut self, connection: ConnectionId) {
        self.peers.remove(&connection);
        if !self.peers.values().any(|peer| peer.quirks.sessions_by_provider) {
            // The next one is told of its sessions again.
            self.spelling = ProviderNames::default();
        }
        self.sweep();
    }

    /// Translates a message up, to what the core is fed: all at once, with nothing in between.
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
        let begins = id.is_some() && served == Some(Method::Initialize) && !peer.open;
        let returns = id.is_some() && served == Some(Method::Reconnect);
        if !begins && !returns && peer.is_plain() && !names_root_otherwise(served, &params) {
            return fed.push(peer.plain_message(id, method, params));
        }
        let heard = params.read::<Object>().and_then(|object| {
            if begins {
                self.begin(connection, &object)?;
            } else if returns {
                self.come_back(connection, &object)?;
            }
            if begins || returns {
                self.peers.entry(connection).or_default().quirks = Quirks::of(&object);
            }
            if self.peers.get(&connection).is_some_and(|peer| peer.quirks.sessions_by_provider) {
                let subscribes = begins || returns || served == Some(Method::Subscribe);
                subscribes.then(|| self.spelling.guess(&object));
            }
            let peer = self.peers.entry(connection).or_default();
            if peer.is_plain() && !names_root_otherwise(served, &params) {
                fed.push(peer.plain_message(id.clone(), method.clone(), params.clone()));
                return Ok(());
            }
            let options = SessionOptions { ahead: peer.quirks.sessions_ahead, ..SessionOptions::default() };
            let method = method.as_str().to_owned();
            let call = IncomingCall { method, params: object, options, reply: Reply::Same };
            self.translate_up(connection, id.clone(), call, fed)
        });
        match (heard, id) {
            (Ok(()), _) => {}
            (Err(error), Some(id)) => fed.push(Incoming::Malformed { id: Some(id), error }.into()),
            (Err(error), None) => {
                tracing::warn!(method = method.as_str(), %error, "a notification was ignored");
            }
        }
        let peer = self.peers.entry(connection).or_default();
        let abilities = peer.dialect.abilities();
        if std::mem::replace(&mut peer.abilities, abilities) != abilities {
            fed.push(ClientMessage::Internal(None, Box::new(InternalRequest::Note(abilities))));
        }
    }

    /// Returns whether a message goes to the core as it is.
    pub fn passes(&self, connection: ConnectionId, message: &Incoming) -> bool {
        self.peers.get(&connection).is_some_and(|peer| peer.passes(message))
    }

    /// Chooses the version of a connection by its `initialize`.
    fn begin(&mut self, connection: ConnectionId, params: &Object) -> Result<(), RpcError> {
        let assumed = self.peers.get(&connection).and_then(|peer| peer.assumed);
        let Negotiation { dialect, answer, doubtful } = negotiate(params, assumed)?;
        let client_id = node::text(params, "clientId").unwrap_or_default().to_owned();
        self.settle_version(connection, client_id, dialect);
        let peer = self.peers.entry(connection).or_default();
        peer.answer = answer;
        peer.doubtful = doubtful;
        Ok(())
    }

    /// Chooses the version of a connection by its `reconnect`, which says nothing of it.
    fn come_back(&mut self, connection: ConnectionId, params: &Object) -> Result<(), RpcError> {
        let Some(client_id) = node::text(params, "clientId") else { return Ok(()) };
        let known = self.clients.get(client_id).copied();
        // A connection that is open goes on in its version, whoever it is now.
        let spoken = self.peers.get(&connection).filter(|peer| peer.open).map(|peer| peer.dialect);
        let told = known.or(spoken).or_else(|| reconnect_sign(params));
        let assumed = self.peers.get(&connection).and_then(|peer| peer.assumed);
        let dialect = match told.or(assumed) {
            Some(dialect) => dialect,
            None => return Err(RpcError::unknown_client()),
        };
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
        let providers = &self.providers;
        self.translations
            .entry(dialect)
            .or_insert_with(|| VersionTranslation::new(dialect, providers.clone()));
        if self.clients.insert(client_id.clone(), dialect) != Some(dialect) {
            self.records.push(Record::Client { id: client_id.clone(), version: dialect.name() });
        }
        let peer = self.peers.entry(connection).or_default();
        // What was said before it comes back is still told: what it is shown changes with the
        // answer.
        (peer.dialect, peer.client_id, peer.doubtful) = (dialect, client_id, false);
    }

    /// Settles which of the versions that call themselves 1 is meant, if that was open and this
    /// message tells.
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

    /// Forgets states that no connection is told of.
    fn sweep(&mut self) {
        let peers = &self.peers;
        for (dialect, translation) in &mut self.translations {
            let mut of_lane = peers.values().filter(|peer| peer.dialect == *dialect).peekable();
            if of_lane.peek().is_none() {
                translation.retain_channels(|_| false);
                continue;
            }
            let told: BTreeSet<&String> =
                of_lane.flat_map(|peer| peer.shown.keys().chain(peer.shadows.keys())).collect();
            translation.retain_channels(|channel| told.contains(&channel.to_owned()));
        }
    }
}

/// Returns whether a message of the newest version spells the root channel differently from the
/// core: a subscription must be answered in the same words.
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

/// Returns the message that ends a subscription.
fn unsubscribe(channel: &str) -> Incoming {
    let params = Params::from_json(to_json(&json!({ "channel": channel })));
    message_of(None, Method::Unsubscribe.name().to_owned(), params)
}
