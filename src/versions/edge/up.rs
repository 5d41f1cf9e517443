//! What clients say, on its way up to the core.
//!
//! Owns: which requests the core is asked instead of one of an older version, what is subscribed to besides,
//! and which actions wait until a turn has ended.
//! Never: answers; what the core says comes back through `down` and `answers`.

use serde_json::{json, Value};

use super::{message_of, object, Batch, Edges};
use crate::host::effects::ConnectionId;
use crate::versions::node::{self, Object};
use crate::versions::step::{Call, Reply, Told};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, Incoming, Params, RequestId};
use crate::wire::uris;

impl Edges {
    pub(super) fn translate_up(
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

    pub(super) fn enqueue(
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

    /// Translates a client's action up.
    pub(super) fn action_up(
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
        peer.root_up(&mut channel);
        let action = match call.params.remove("action") {
            Some(Value::Object(action)) => action,
            // Not an action at all: the core says so.
            other => {
                peer.note(params);
                call.params.extend(other.map(|value| ("action".to_owned(), value)));
                call.params.insert("channel".to_owned(), channel.into());
                fed.push(message_of(id, call.method, Params::from_json(to_json(&call.params))));
                return Ok(());
            }
        };
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
        peer.note(params);
        call.params.insert("channel".to_owned(), told.channel.into());
        call.params.insert("action".to_owned(), Value::Object(told.action));
        fed.push(message_of(id, call.method, Params::from_json(to_json(&call.params))));
        Ok(())
    }
}
