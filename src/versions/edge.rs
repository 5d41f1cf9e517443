//! What stands between each connection and the core.
//!
//! Owns: which version each connection speaks, its requests that are on their way, what it subscribed to as
//! it sees it, and the version that each client id spoke last.
//! Never: says what differs between versions (the steps do), and never holds up a connection of the newest
//! version, whose messages pass as they are.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{json, Value};

use super::dialect::{integer_sign, negotiate, reconnect_sign, Choice, Dialect};
use super::lane::{Envelope, Lane, Origin};
use super::node::{self, Object};
use super::step::{Call, Notice, Reply, Shot, Told};
use super::Line;
use crate::host::effects::{ConnectionId, Frame, Record};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{error_line, notification_line, result_line, to_json, Incoming, Params, RequestId};
use crate::wire::uris;

/// Other spellings of the root channel's URI, besides those that the core knows.
const OLD_ROOTS: [&str; 3] = ["agenthost:/root", "agenthost:root", "root:/"];

/// So many actions of a client are remembered as it said them, until they are answered.
const SAID_MAX: usize = 256;

/// Every connection's side of the core.
#[derive(Debug)]
pub struct Edges {
    peers: BTreeMap<ConnectionId, Peer>,
    lanes: BTreeMap<Dialect, Lane>,
    /// Which version each client spoke last.
    clients: HashMap<String, Dialect>,
    providers: Vec<String>,
    assumed: Option<Dialect>,
    records: Vec<Record>,
    later: VecDeque<(ConnectionId, Incoming)>,
    last_inner: u64,
}

/// One connection.
#[derive(Debug)]
struct Peer {
    dialect: Dialect,
    /// The negotiated version, as it is answered.
    answer: Value,
    /// The handshake is over: the version stands.
    open: bool,
    /// Another version may be meant; what comes next may tell.
    doubtful: bool,
    client_id: String,
    /// What the client calls the root channel.
    root: String,
    /// Channels that the client subscribed to, as the core names them.
    shown: BTreeSet<String>,
    /// Channels that were subscribed to for its sake besides.
    shadows: BTreeSet<String>,
    /// Requests that are on their way, by the number that the core was given for the first.
    batches: BTreeMap<u64, Batch>,
    /// Actions that are on their way, as the client said them.
    said: VecDeque<(i64, Object)>,
    /// Actions that wait until no turn runs in a chat.
    deferred: Vec<(String, Object)>,
}

/// A client's request, and the requests that the core gets instead of it.
#[derive(Debug)]
struct Batch {
    /// Whom to answer; nobody when it is a request of ours.
    id: Option<RequestId>,
    /// The method, as the core calls it.
    method: String,
    reply: Reply,
    /// The channels that the client asks for, as the core names them.
    asked: Vec<String>,
    /// The channels that are asked for besides.
    besides: Vec<String>,
    /// What the core has answered so far, in the order of asking.
    answers: Vec<Result<Bytes, RpcError>>,
    wants: usize,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            dialect: Dialect::NEWEST,
            answer: Value::Null,
            open: false,
            doubtful: false,
            client_id: String::new(),
            root: uris::ROOT.to_owned(),
            shown: BTreeSet::new(),
            shadows: BTreeSet::new(),
            batches: BTreeMap::new(),
            said: VecDeque::new(),
            deferred: Vec::new(),
        }
    }
}

impl Peer {
    /// Speaks the newest version, and calls the root channel what the core does: nothing is to be translated.
    fn is_plain(&self) -> bool {
        self.dialect == Dialect::NEWEST && self.root == uris::ROOT
    }

    /// Whether what the core tells on a channel is for the client. All of it, unless channels were subscribed to
    /// that it did not ask for.
    fn is_shown(&self, channel: &str) -> bool {
        !self.dialect.has_summaries_in_states() || self.shown.contains(channel)
    }

    /// The core's name of the root channel for the client's.
    fn root_up(&mut self, uri: &mut String) {
        if uris::is_root(uri) || OLD_ROOTS.contains(&uri.as_str()) {
            self.root = std::mem::replace(uri, uris::ROOT.to_owned());
        }
    }

    fn root_down(&self, uri: &str) -> String {
        if uri == uris::ROOT {
            self.root.clone()
        } else {
            uri.to_owned()
        }
    }
}

impl Edges {
    /// Begins without connections. `providers` are the agents that there are, the default one first; where the
    /// first messages of a client do not tell its version, it is `assumed`.
    pub fn new(providers: Vec<String>, assumed: Option<Dialect>) -> Self {
        Self {
            peers: BTreeMap::new(),
            lanes: BTreeMap::new(),
            clients: HashMap::new(),
            providers,
            assumed,
            records: Vec::new(),
            later: VecDeque::new(),
            last_inner: 0,
        }
    }

    /// The client id of a `reconnect` whose version is not known here, but may be in the store.
    pub fn stranger(&self, message: &Incoming) -> Option<String> {
        let Incoming::Request { method, params, .. } = message else { return None };
        if method != Method::Reconnect.name() {
            return None;
        }
        let client_id = params.read::<ClientId>().ok()?.client_id;
        (!self.clients.contains_key(&client_id)).then_some(client_id)
    }

    /// Remembers which version a client spoke last.
    pub fn remember(&mut self, client_id: String, dialect: Dialect) {
        self.clients.insert(client_id, dialect);
    }

    /// What is to be kept of what was heard: must be safe before the answer goes out.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// What the core is to hear now because of something that it said.
    pub fn take_later(&mut self) -> Option<(ConnectionId, Incoming)> {
        self.later.pop_front()
    }

    /// Forgets a connection.
    pub fn close(&mut self, connection: ConnectionId) {
        self.peers.remove(&connection);
        self.sweep();
    }

    /// Translates a message up, to what the core is fed: all at once, with nothing in between.
    pub fn up(&mut self, connection: ConnectionId, message: Incoming, fed: &mut Vec<Incoming>) {
        let peer = self.peers.entry(connection).or_default();
        let (id, method, params) = match message {
            Incoming::Request { id, method, params } => (Some(id), method, params),
            Incoming::Notification { method, params } => (None, method, params),
            other => return fed.push(other),
        };
        let begins = id.is_some() && method == Method::Initialize.name() && !peer.open;
        let returns = id.is_some() && method == Method::Reconnect.name();
        if !begins && !returns && peer.is_plain() && !names_root_otherwise(&method, &params) {
            return fed.push(message_of(id, method, params));
        }
        let heard = params.read::<Object>().and_then(|object| {
            if begins {
                self.begin(connection, &object)?;
            } else if returns {
                self.come_back(connection, &object)?;
            }
            let plain = self.peers.entry(connection).or_default().is_plain();
            if plain && !names_root_otherwise(&method, &params) {
                fed.push(message_of(id.clone(), method.clone(), params.clone()));
                return Ok(());
            }
            self.translate_up(connection, id.clone(), method.clone(), object, fed)
        });
        match (heard, id) {
            (Ok(()), _) => {}
            (Err(error), Some(id)) => fed.push(Incoming::Malformed { id: Some(id), error }),
            (Err(error), None) => tracing::warn!(method, %error, "a notification was ignored"),
        }
    }

    /// Chooses the version of a connection by its `initialize`.
    fn begin(&mut self, connection: ConnectionId, params: &Object) -> Result<(), RpcError> {
        let Choice { dialect, answer, doubtful } = negotiate(params, self.assumed)?;
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
        let dialect = match told.or(self.assumed) {
            Some(dialect) => dialect,
            None => {
                return Err(RpcError::invalid_request(
                    "this client is not known, so its protocol version is not: initialize first",
                ))
            }
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
        self.lanes.entry(dialect).or_insert_with(|| Lane::new(dialect, providers.clone()));
        if self.clients.insert(client_id.clone(), dialect) != Some(dialect) {
            self.records.push(Record::Client { id: client_id.clone(), version: dialect.name() });
        }
        let peer = self.peers.entry(connection).or_default();
        *peer = Peer {
            dialect,
            client_id,
            open: peer.open,
            answer: peer.answer.take(),
            batches: std::mem::take(&mut peer.batches),
            ..Peer::default()
        };
    }

    /// Which of the versions that call themselves 1 is meant, when that was open and this message tells.
    fn resolve_doubt(&mut self, connection: ConnectionId, method: &str, params: &Object) {
        let peer = self.peers.entry(connection).or_default();
        if !peer.doubtful || matches!(method, "initialize" | "ping") {
            return;
        }
        peer.doubtful = false;
        let told = integer_sign(method, params);
        let dialect = told.unwrap_or(Dialect::Integer);
        if told.is_none() {
            tracing::warn!(
                client = peer.client_id,
                "a client of version 1 does not show which; taken for that of the crate 0.1.0 (--assume-version)"
            );
        }
        if dialect != peer.dialect {
            let (client_id, root) = (peer.client_id.clone(), peer.root.clone());
            let (shown, shadows) = (peer.shown.clone(), peer.shadows.clone());
            let taken_for = self.lanes.remove(&peer.dialect);
            self.settle_version(connection, client_id, dialect);
            let peer = self.peers.entry(connection).or_default();
            (peer.root, peer.shown, peer.shadows) = (root, shown, shadows);
            if let (Some(lane), Some(taken_for)) = (self.lanes.get_mut(&dialect), taken_for) {
                lane.adopt(&taken_for);
                self.lanes.insert(taken_for.dialect(), taken_for);
            }
        }
    }

    fn translate_up(
        &mut self,
        connection: ConnectionId,
        id: Option<RequestId>,
        method: String,
        mut params: Object,
        fed: &mut Vec<Incoming>,
    ) -> Result<(), RpcError> {
        self.resolve_doubt(connection, &method, &params);
        if method == Method::DispatchAction.name() {
            return self.action_up(connection, id, params, fed);
        }
        let peer = self.peers.entry(connection).or_default();
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return Ok(()) };
        for member in ["channel", "resource"] {
            if let Some(Value::String(uri)) = params.get_mut(member) {
                peer.root_up(uri);
            }
        }
        for member in ["initialSubscriptions", "subscriptions"] {
            if let Some(Value::Array(uris)) = params.get_mut(member) {
                for uri in uris {
                    if let Value::String(uri) = uri {
                        peer.root_up(uri);
                    }
                }
            }
        }
        let mut call = Call { method, params, reply: Reply::Same };
        let channel = node::text(&call.params, "channel").unwrap_or_default().to_owned();
        let (chain, mut scene) = lane.scene(&channel, &peer.client_id);
        chain.call_up(&mut call, &mut scene)?;
        match id {
            Some(id) => self.ask(connection, id, call, fed),
            None => {
                let is_needed =
                    call.method == Method::Unsubscribe.name() && self.forget_channel(connection, &call, fed);
                if !is_needed {
                    fed.push(message_of(None, call.method, Params::from_json(to_json(&call.params))));
                }
            }
        }
        Ok(())
    }

    /// Has the core asked for all that the answer to a request is made of.
    fn ask(&mut self, connection: ConnectionId, id: RequestId, mut call: Call, fed: &mut Vec<Incoming>) {
        let peer = self.peers.entry(connection).or_default();
        let dialect = peer.dialect;
        let fetches = matches!(call.reply, Reply::Turns { .. });
        let listed = match call.method.as_str() {
            "initialize" => Some("initialSubscriptions"),
            "reconnect" => Some("subscriptions"),
            _ => None,
        };
        let asked: Vec<String> = match (listed, node::text(&call.params, "channel")) {
            (Some(member), _) => {
                let uris = call.params.get(member).cloned().unwrap_or_default();
                serde_json::from_value(uris).unwrap_or_default()
            }
            (None, Some(channel)) if call.method == "subscribe" && !fetches => vec![channel.to_owned()],
            _ => Vec::new(),
        };
        let sessions: Vec<&String> =
            asked.iter().filter(|uri| **uri != uris::ROOT && !uri.starts_with("ahp-chat:")).collect();
        let mut besides: Vec<String> = Vec::new();
        if dialect.has_summaries_in_states() {
            let chats = sessions.iter().map(|session| uris::default_chat_of(session));
            besides.extend(chats.filter(|chat| !asked.contains(chat)));
        }
        if listed.is_some() && dialect.notifies_everybody() && !asked.iter().any(|uri| uri == uris::ROOT) {
            besides.push(uris::ROOT.to_owned());
        }
        let mut requests = Vec::new();
        if let Some(member) = listed {
            let all: Vec<&String> = asked.iter().chain(&besides).collect();
            if !all.is_empty() || call.params.contains_key(member) {
                call.params.insert(member.to_owned(), json!(all));
            }
        }
        requests.push((call.method.clone(), call.params.clone()));
        match call.method.as_str() {
            "reconnect" if dialect.needs_states() => {
                // In case that not all that was missed can be said, and for what is to be known from now on.
                let mut params = call.params.clone();
                params.insert("lastSeenServerSeq".to_owned(), json!(-1));
                params.insert("onlyLooks".to_owned(), json!(true));
                requests.push((call.method.clone(), params));
            }
            "subscribe" => {
                for chat in besides.iter() {
                    let params = json!({ "channel": chat });
                    requests.push((call.method.clone(), object(params)));
                }
            }
            _ => {}
        }
        if listed.is_some() && !dialect.names_channels() {
            // What its clients call the sessions that there are is known from here on.
            requests.push(("listSessions".to_owned(), object(json!({ "channel": uris::ROOT }))));
        } else if dialect.has_summaries_in_states() && !sessions.is_empty() {
            let params = json!({ "channel": uris::ROOT, "only": sessions });
            requests.push(("listSessions".to_owned(), object(params)));
        }
        let batch = Batch {
            id: Some(id),
            method: call.method,
            reply: call.reply,
            asked,
            besides,
            answers: Vec::new(),
            wants: requests.len(),
        };
        let peeked = node::text(&call.params, "channel").filter(|_| fetches).map(str::to_owned);
        let peeked = peeked.filter(|chat| !peer.shown.contains(chat) && !peer.shadows.contains(chat));
        self.enqueue(connection, batch, requests, fed);
        if let Some(chat) = peeked {
            // It was only to be looked at.
            let params = Params::from_json(to_json(&json!({ "channel": chat })));
            fed.push(message_of(None, Method::Unsubscribe.name().to_owned(), params));
        }
    }

    fn enqueue(
        &mut self,
        connection: ConnectionId,
        batch: Batch,
        requests: Vec<(String, Object)>,
        fed: &mut Vec<Incoming>,
    ) {
        self.last_inner += 1;
        let inner = self.last_inner;
        for (method, params) in requests {
            let params = Params::from_json(to_json(&params));
            fed.push(Incoming::Request { id: RequestId::inner(inner), method, params });
        }
        self.peers.entry(connection).or_default().batches.insert(inner, batch);
    }

    /// What goes with the subscription to a channel goes with it. Returns whether the channel itself stays
    /// subscribed to, because more is told of it than its actions.
    fn forget_channel(&mut self, connection: ConnectionId, call: &Call, fed: &mut Vec<Incoming>) -> bool {
        let peer = self.peers.entry(connection).or_default();
        let Some(channel) = node::text(&call.params, "channel") else { return false };
        peer.shown.remove(channel);
        if peer.shadows.contains(channel) {
            return true;
        }
        let chat = uris::default_chat_of(channel);
        if peer.shadows.remove(&chat) && !peer.shown.contains(&chat) {
            let params = Params::from_json(to_json(&json!({ "channel": chat })));
            fed.push(message_of(None, Method::Unsubscribe.name().to_owned(), params));
        }
        self.sweep();
        false
    }

    /// Forgets states that no connection is told of.
    fn sweep(&mut self) {
        let peers = &self.peers;
        for (dialect, lane) in &mut self.lanes {
            let mut of_lane = peers.values().filter(|peer| peer.dialect == *dialect).peekable();
            if of_lane.peek().is_none() {
                lane.retain(|_| false);
                continue;
            }
            let told: BTreeSet<&String> =
                of_lane.flat_map(|peer| peer.shown.iter().chain(&peer.shadows)).collect();
            lane.retain(|channel| told.contains(&channel.to_owned()));
        }
    }

    /// Translates a client's action up.
    fn action_up(
        &mut self,
        connection: ConnectionId,
        id: Option<RequestId>,
        params: Object,
        fed: &mut Vec<Incoming>,
    ) -> Result<(), RpcError> {
        let peer = self.peers.entry(connection).or_default();
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return Ok(()) };
        let mut call = Call {
            method: Method::DispatchAction.name().to_owned(),
            params: params.clone(),
            reply: Reply::Same,
        };
        // Where the action says what it is about itself, the step that knows so makes it the channel.
        let (chain, mut scene) = lane.scene("", &peer.client_id);
        chain.call_up(&mut call, &mut scene)?;
        let mut channel = node::text(&call.params, "channel").unwrap_or_default().to_owned();
        let Some(Value::Object(action)) = call.params.remove("action") else {
            // Not an action at all: the core says so.
            fed.push(message_of(id, call.method, Params::from_json(to_json(&params))));
            return Ok(());
        };
        peer.root_up(&mut channel);
        let runs = lane.chat(&channel).is_some_and(|chat| chat.active_turn.is_some());
        let mut told = Told { channel, action };
        let waits = matches!(told.name(), "session/modelChanged" | "session/agentChanged");
        if waits && runs && id.is_none() && peer.dialect.has_summaries_in_states() {
            // "MUST defer": the server validation tables of 0.1.0 to 0.4.0.
            peer.deferred.push((uris::default_chat_of(&told.channel), params));
            return Ok(());
        }
        let (chain, mut scene) = lane.scene(&told.channel.clone(), &peer.client_id);
        chain.action_up(&mut told, &mut scene);
        if let Some(seq) = params.get("clientSeq").and_then(Value::as_i64) {
            if peer.said.len() == SAID_MAX {
                peer.said.pop_front();
            }
            peer.said.push_back((seq, params));
        }
        call.params.insert("channel".to_owned(), told.channel.into());
        call.params.insert("action".to_owned(), Value::Object(told.action));
        fed.push(message_of(id, call.method, Params::from_json(to_json(&call.params))));
        Ok(())
    }

    /// Translates a frame down, to the lines that go out.
    pub fn down(&mut self, connection: ConnectionId, frame: &Frame, lines: &mut Vec<Line>) {
        let peer = self.peers.entry(connection).or_default();
        let inner = match frame {
            Frame::Result { id, .. } | Frame::Error { id: Some(id), .. } => id.inner_number(),
            _ => None,
        };
        if let Some(inner) = inner {
            let answer = match frame {
                Frame::Result { result, .. } => Ok(result.clone()),
                Frame::Error { error, .. } => Err(error.clone()),
                _ => return,
            };
            return self.hear_answer(connection, inner, answer, lines);
        }
        if matches!(frame, Frame::Result { method: Method::Initialize | Method::Reconnect, .. }) {
            peer.open = true;
        }
        if peer.is_plain() {
            lines.push(plain(frame, &peer.answer));
            return;
        }
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return };
        match frame {
            Frame::Action(action) | Frame::Delta(action, _) => {
                let spoken = lane.speak(action);
                let before = lines.len();
                for line in &spoken.lines {
                    if peer.is_shown(&line.shown_on) {
                        lines.push(with_root(&line.line, &line.shown_on, &peer.root));
                    }
                }
                if let Frame::Delta(_, delay_ms) = frame {
                    for line in &mut lines[before..] {
                        line.delay = Some(Duration::from_millis(*delay_ms)).filter(|_| line.delta.is_some());
                    }
                }
                let own = spoken.origin.clone().filter(|origin| origin.client_id == peer.client_id);
                let ended = spoken.chat.clone().filter(|(_, runs)| !runs).map(|(chat, _)| chat);
                if let Some(origin) = own {
                    let said = take_said(&mut peer.said, origin.client_seq);
                    if let (Some(said), true) = (said, lines.len() == before) {
                        lines.push(echo(lane, peer.root.clone(), said, action.server_seq, &origin, None));
                    }
                }
                if let Some(chat) = ended {
                    self.release(connection, &chat);
                }
            }
            Frame::Answer(line) => {
                let Some(envelope) = Envelope::of_line(line) else { return };
                let origin = envelope.origin.clone();
                let said = origin.as_ref().and_then(|own| take_said(&mut peer.said, own.client_seq));
                if let (Some(origin), Some(said)) = (origin, said) {
                    let (seq, reason) = (envelope.server_seq, envelope.rejection_reason.as_deref());
                    lines.push(echo(lane, peer.root.clone(), said, seq, &origin, reason));
                    return;
                }
                // Older turns, that are loaded.
                lane.apply(line);
                for (_, envelope) in lane.envelopes(envelope, false) {
                    lines.push(Line::of(notification_line("action", &to_json(&envelope))));
                }
            }
            Frame::Notification { method, params } => {
                let Ok(mut params) = serde_json::from_slice::<Object>(params) else { return };
                if let Some(Value::String(channel)) = params.get_mut("channel") {
                    *channel = peer.root_down(channel);
                }
                let notice = Notice { method: (*method).to_owned(), params };
                let (chain, mut scene) = lane.scene("", &peer.client_id);
                if let Some(notice) = chain.notice_down(notice, &mut scene) {
                    lines.push(Line::of(notification_line(&notice.method, &to_json(&notice.params))));
                }
            }
            Frame::Error { id, error } => {
                let mut error = error.clone();
                let (chain, mut scene) = lane.scene("", &peer.client_id);
                chain.error_down(&mut error, &mut scene);
                lines.push(Line::of(error_line(id.as_ref(), &error)));
            }
            Frame::Result { id, result, .. } => lines.push(Line::of(result_line(id, result))),
        }
    }

    /// Lets the actions go on that waited until no turn runs in a chat.
    fn release(&mut self, connection: ConnectionId, chat: &str) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        let (due, rest) = std::mem::take(&mut peer.deferred).into_iter().partition(|(of, _)| of == chat);
        peer.deferred = rest;
        let due: Vec<(String, Object)> = due;
        for (_, params) in due {
            let mut fed = Vec::new();
            if let Err(error) = self.action_up(connection, None, params, &mut fed) {
                tracing::warn!(%error, "an action that waited was ignored");
            }
            self.later.extend(fed.into_iter().map(|message| (connection, message)));
        }
    }

    /// Takes one of the core's answers; when all of a request's are there, its client is answered.
    fn hear_answer(
        &mut self,
        connection: ConnectionId,
        inner: u64,
        answer: Result<Bytes, RpcError>,
        lines: &mut Vec<Line>,
    ) {
        let peer = self.peers.entry(connection).or_default();
        let Some(batch) = peer.batches.get_mut(&inner) else { return };
        batch.answers.push(answer);
        if batch.answers.len() < batch.wants {
            return;
        }
        let Some(mut batch) = peer.batches.remove(&inner) else { return };
        let Some(id) = batch.id.take() else { return };
        let answered = self.answer(connection, &batch);
        let peer = self.peers.entry(connection).or_default();
        lines.push(Line::of(match answered {
            Ok(result) => result_line(&id, &to_json(&result)),
            Err(mut error) => {
                if let Some(lane) = self.lanes.get_mut(&peer.dialect) {
                    let (chain, mut scene) = lane.scene("", &peer.client_id);
                    chain.error_down(&mut error, &mut scene);
                }
                error_line(Some(&id), &error)
            }
        }));
    }

    /// The answer to a client's request, made of the core's.
    fn answer(&mut self, connection: ConnectionId, batch: &Batch) -> Result<Value, RpcError> {
        let mut results = batch.answers.iter();
        let first = match results.next() {
            Some(Ok(result)) => serde_json::from_slice(result).unwrap_or_default(),
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(RpcError::internal()),
        };
        let rest: Vec<Value> =
            results.flatten().filter_map(|result| serde_json::from_slice(result).ok()).collect();
        let mut result = match batch.method.as_str() {
            "initialize" | "subscribe" | "reconnect" => self.take_up(connection, batch, first, &rest),
            _ => first,
        };
        let peer = self.peers.entry(connection).or_default();
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return Err(RpcError::internal()) };
        let mut method = batch.method.as_str();
        match &batch.reply {
            Reply::Same => {}
            Reply::Turns { before, limit } => {
                method = "fetchTurns";
                result = page_of_turns(&result, before.as_deref(), *limit)?;
            }
            Reply::Selects { chat, draft } => {
                let action = json!({ "type": "chat/draftChanged", "draft": draft });
                let params = json!({ "channel": chat, "clientSeq": 0, "action": action });
                let name = Method::DispatchAction.name().to_owned();
                let message = message_of(None, name, Params::from_json(to_json(&params)));
                self.later.push_back((connection, message));
            }
        }
        let (chain, mut scene) = lane.scene("", &peer.client_id);
        chain.result_down(method, &mut result, &mut scene);
        Ok(result)
    }

    /// The result of a method that subscribes: its states or actions translated, what was asked for besides
    /// taken out.
    fn take_up(&mut self, connection: ConnectionId, batch: &Batch, first: Value, rest: &[Value]) -> Value {
        let peer = self.peers.entry(connection).or_default();
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return first };
        let summaries = rest.iter().filter_map(|result| result.get("items")?.as_array()).flatten();
        let summaries: HashMap<&str, &Object> = summaries
            .filter_map(Value::as_object)
            .filter_map(|summary| Some((node::text(summary, "resource")?, summary)))
            .collect();
        let mut shots: Vec<Shot> = std::iter::once(&first)
            .chain(rest)
            .flat_map(|result| {
                result
                    .get("snapshots")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .chain(result.get("snapshot"))
            })
            .filter_map(|snapshot| shot_of(snapshot, &summaries))
            .collect();
        if matches!(batch.reply, Reply::Turns { .. }) {
            return first;
        }
        // What could not be replayed was answered with the states at once, and asked for besides.
        let mut taken = BTreeSet::new();
        shots.retain(|shot| taken.insert(shot.channel.clone()));
        lane.learn(&shots);
        if batch.method != "subscribe" {
            peer.open = true;
            peer.shown.clear();
            peer.shadows.clear();
            if peer.dialect.notifies_everybody() {
                peer.shadows.insert(uris::ROOT.to_owned());
            }
        }
        if !peer.dialect.names_channels() {
            lane.names.meet(summaries.values().filter_map(|summary| {
                Some((node::text(summary, "resource")?, node::text(summary, "provider")))
            }));
        }
        let missing: BTreeSet<&str> = first
            .get("missing")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let there = |uri: &&String| !missing.contains(uri.as_str());
        peer.shown.extend(batch.asked.iter().filter(there).cloned());
        peer.shadows.extend(batch.besides.iter().filter(there).cloned());
        let mut result = first.clone();
        let replayed = replay(lane, peer, &first);
        if let (Some(actions), Value::Object(result)) = (&replayed, &mut result) {
            result.insert("actions".to_owned(), json!(actions));
            result.insert("missing".to_owned(), json!(names_of_missing(lane, peer, batch, &missing)));
            return Value::Object(std::mem::take(result));
        }
        let (chain, mut scene) = lane.scene("", &peer.client_id);
        chain.shots_down(&mut shots, &mut scene);
        shots.retain(|shot| batch.asked.contains(&shot.channel));
        let snapshots: Vec<Value> = shots
            .into_iter()
            .map(|shot| {
                let resource = peer.root_down(&shot.resource);
                json!({ "resource": resource, "state": shot.state, "fromSeq": shot.from_seq })
            })
            .collect();
        match batch.method.as_str() {
            "subscribe" => json!({ "snapshot": snapshots.into_iter().next() }),
            "reconnect" => json!({ "type": "snapshot", "snapshots": snapshots }),
            _ => {
                result["snapshots"] = json!(snapshots);
                result["protocolVersion"] = peer.answer.clone();
                result
            }
        }
    }
}

/// The client's name of a channel.
fn lane_name(lane: &mut Lane, peer: &Peer, uri: &str) -> String {
    if uri == uris::ROOT {
        return peer.root.clone();
    }
    if peer.dialect.names_channels() {
        uri.to_owned()
    } else {
        lane.names.down(uri, None)
    }
}

/// What a client asked for and does not get, in its words; one that may mean several channels gets any.
fn names_of_missing(lane: &mut Lane, peer: &Peer, batch: &Batch, missing: &BTreeSet<&str>) -> Vec<String> {
    let (gone, there): (Vec<&String>, Vec<&String>) =
        batch.asked.iter().partition(|uri| missing.contains(uri.as_str()));
    let mut known: BTreeSet<String> = there.into_iter().map(|uri| lane_name(lane, peer, uri)).collect();
    gone.into_iter().map(|uri| lane_name(lane, peer, uri)).filter(|name| known.insert(name.clone())).collect()
}

/// The actions of a replay, translated; none when it is no replay, or not all that happened can be told so.
fn replay(lane: &mut Lane, peer: &Peer, result: &Value) -> Option<Vec<Object>> {
    let mut told = Vec::new();
    for envelope in result.get("actions")?.as_array()? {
        let envelope: Envelope = serde_json::from_value(envelope.clone()).ok()?;
        let name = node::text(&envelope.action, "type").unwrap_or_default();
        if !peer.dialect.can_replay(name) {
            return None;
        }
        let all = lane.envelopes(envelope, true);
        told.extend(all.into_iter().filter(|(shown_on, _)| peer.is_shown(shown_on)).map(
            |(_, mut envelope)| {
                if let Some(Value::String(channel)) = envelope.get_mut("channel") {
                    *channel = peer.root_down(channel);
                }
                envelope
            },
        ));
    }
    Some(told)
}

/// The line of a frame of the newest version.
fn plain(frame: &Frame, version: &Value) -> Line {
    match frame {
        Frame::Action(action) => Line { delta: action.delta, ..Line::of(action.line.clone()) },
        Frame::Delta(action, delay_ms) => Line {
            delta: action.delta,
            delay: Some(Duration::from_millis(*delay_ms)),
            ..Line::of(action.line.clone())
        },
        Frame::Answer(line) => Line::of(line.clone()),
        Frame::Notification { method, params } => Line::of(notification_line(method, params)),
        Frame::Error { id, error } => Line::of(error_line(id.as_ref(), error)),
        Frame::Result { id, method: Method::Initialize, result } => {
            let mut result: Object = serde_json::from_slice(result).unwrap_or_default();
            result.insert("protocolVersion".to_owned(), version.clone());
            Line::of(result_line(id, &to_json(&result)))
        }
        Frame::Result { id, result, .. } => Line::of(result_line(id, result)),
    }
}

/// A translated action for a client that calls the root channel something else than the core does.
fn with_root(line: &Line, shown_on: &str, root: &str) -> Line {
    if shown_on != uris::ROOT || root == uris::ROOT {
        return line.clone();
    }
    let Ok(mut message) = serde_json::from_slice::<Value>(&line.bytes) else { return line.clone() };
    let Some(Value::String(channel)) = message.pointer_mut("/params/channel") else { return line.clone() };
    *channel = root.to_owned();
    Line::of(notification_line("action", &to_json(&message["params"])))
}

/// Tells a client what became of its action, in its own words.
fn echo(
    lane: &mut Lane,
    root: String,
    said: Object,
    server_seq: u64,
    origin: &Origin,
    reason: Option<&str>,
) -> Line {
    let mut envelope = Object::new();
    for member in ["channel", "action"] {
        envelope.extend(said.get(member).map(|value| (member.to_owned(), value.clone())));
    }
    if let Some(Value::String(channel)) = envelope.get_mut("channel") {
        if uris::is_root(channel) {
            *channel = root;
        }
    }
    envelope.insert("serverSeq".to_owned(), server_seq.into());
    envelope
        .insert("origin".to_owned(), json!({ "clientId": origin.client_id, "clientSeq": origin.client_seq }));
    if let Some(reason) = reason {
        envelope.insert("rejectionReason".to_owned(), reason.into());
    }
    let (chain, mut scene) = lane.scene("", &origin.client_id);
    chain.envelope_down(&mut envelope, false);
    let notice = Notice { method: "action".to_owned(), params: envelope };
    let params = chain.notice_down(notice, &mut scene).map(|notice| notice.params).unwrap_or_default();
    Line::of(notification_line("action", &to_json(&params)))
}

fn take_said(said: &mut VecDeque<(i64, Object)>, client_seq: i64) -> Option<Object> {
    let at = said.iter().position(|(seq, _)| *seq == client_seq)?;
    said.remove(at).map(|(_, params)| params)
}

fn shot_of(snapshot: &Value, summaries: &HashMap<&str, &Object>) -> Option<Shot> {
    let resource = snapshot.get("resource")?.as_str()?.to_owned();
    Some(Shot {
        summary: summaries.get(resource.as_str()).map(|summary| (*summary).clone()),
        channel: resource.clone(),
        resource,
        state: snapshot.get("state")?.as_object()?.clone(),
        from_seq: snapshot.get("fromSeq")?.clone(),
    })
}

/// Some of a chat's turns that are over, oldest first.
fn page_of_turns(result: &Value, before: Option<&str>, limit: Option<usize>) -> Result<Value, RpcError> {
    let turns =
        result.pointer("/snapshot/state/turns").and_then(Value::as_array).cloned().unwrap_or_default();
    let end = match before {
        None => turns.len(),
        Some(before) => {
            let at = turns.iter().position(|turn| turn.get("id").and_then(Value::as_str) == Some(before));
            at.ok_or_else(|| RpcError::invalid_params(format_args!("`before`: no turn `{before}`")))?
        }
    };
    let start = limit.map_or(0, |limit| end.saturating_sub(limit));
    Ok(json!({ "turns": turns[start..end], "hasMore": start > 0 }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientId {
    client_id: String,
}

/// Whether a message of the newest version calls the root channel something else than the core does: those
/// that subscribe must be answered in the same words.
fn names_root_otherwise(method: &str, params: &Params) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Names {
        channel: Option<String>,
        initial_subscriptions: Vec<String>,
        subscriptions: Vec<String>,
    }
    if !matches!(method, "initialize" | "reconnect" | "subscribe") {
        return false;
    }
    let names: Names = params.read().unwrap_or_default();
    let subscribed = if method == "subscribe" { names.channel } else { None };
    let mut all = names.initial_subscriptions.iter().chain(&names.subscriptions).chain(&subscribed);
    all.any(|uri| uri != uris::ROOT && uris::is_root(uri))
}

fn message_of(id: Option<RequestId>, method: String, params: Params) -> Incoming {
    match id {
        Some(id) => Incoming::Request { id, method, params },
        None => Incoming::Notification { method, params },
    }
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}
