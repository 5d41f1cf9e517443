//! Messages of clients, on their way to the core.
//!
//! Owns: the core's requests in place of an older version's, and the implied subscriptions.
//! Never: answers; the core's answers pass through `down` and `answers`.

use std::collections::BTreeSet;

use serde_json::{json, Value};

use super::{message_of, unsubscribe, Edges, RequestBatch};
use crate::host::effects::{ClientMessage, ConnectionId, DispatchMode, InternalRequest, SessionOptions};
use crate::versions::dialect::Dialect;
use crate::versions::node::{self, Object};
use crate::versions::step::{IncomingAction, IncomingCall, Reply};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, Params, RequestId};
use crate::wire::uris;
use crate::wire::watches::is_watch;

impl Edges {
    pub(super) fn translate_up(
        &mut self,
        connection: ConnectionId,
        id: Option<RequestId>,
        mut call: IncomingCall,
        fed: &mut Vec<ClientMessage>,
    ) -> Result<(), RpcError> {
        self.resolve_doubt(connection, &call.method, &call.params);
        if call.method == Method::DispatchAction.name() {
            return self.action_up(connection, id, call.params, fed);
        }
        let params = &mut call.params;
        let peer = self.peers.entry(connection).or_default();
        let Some(translation) = self.translations.get_mut(&peer.dialect) else { return Ok(()) };
        let subscribes = matches!(call.method.as_str(), "initialize" | "reconnect" | "subscribe");
        for member in ["channel", "resource", "initialSubscriptions", "subscriptions"] {
            node::texts_in(params, member).for_each(|uri| peer.root_up(uri, subscribes));
        }
        let client_names = spelled_in(params);
        let channel = node::text(&call.params, "channel").unwrap_or_default().to_owned();
        let (chain, mut context) = translation.context(&channel, &peer.client_id);
        chain.call_up(&mut call, &mut context)?;
        let is_needed =
            call.method == Method::Unsubscribe.name() && self.forget_channel(connection, &call, fed);
        match id {
            Some(id) => {
                if is_needed {
                    // The answer is the same, and the core's subscription stays.
                    Method::Ping.name().clone_into(&mut call.method);
                }
                self.ask(connection, id, call, client_names, fed);
            }
            None if is_needed => {}
            None => fed.push(message_of(None, call.method, params_of(&call.params)).into()),
        }
        Ok(())
    }

    /// Sends the requests from whose answers that to a client's request is made.
    fn ask(
        &mut self,
        connection: ConnectionId,
        id: RequestId,
        mut call: IncomingCall,
        client_names: Vec<String>,
        fed: &mut Vec<ClientMessage>,
    ) {
        let peer = self.peers.entry(connection).or_default();
        let dialect = peer.dialect;
        let fetches = matches!(call.reply, Reply::Turns { .. });
        let listed = match call.method.as_str() {
            "initialize" => Some("initialSubscriptions"),
            "reconnect" => Some("subscriptions"),
            _ => None,
        };
        let requested: Vec<String> = match (listed, node::text(&call.params, "channel")) {
            (Some(member), _) => {
                let uris = call.params.get(member).cloned().unwrap_or_default();
                serde_json::from_value(uris).unwrap_or_default()
            }
            (None, Some(channel)) if call.method == "subscribe" && !fetches => vec![channel.to_owned()],
            _ => Vec::new(),
        };
        let implied = implied_by(&requested, dialect, listed.is_some());
        let all = requested_and_implied(&requested, &implied);
        if let Some(member) = listed {
            if !all.is_empty() || call.params.contains_key(member) {
                call.params.insert(member.to_owned(), json!(all));
            }
        }
        self.last_inner += 1;
        let inner = RequestId::inner(self.last_inner);
        let mut requests = requests_for(&mut call, dialect, &inner, (&all, &implied));
        if listed.is_some() && !dialect.names_channels() {
            // Names of the sessions in memory; the store's were looked up
            // (`MessageReferences::sessions`).
            let request = Box::new(InternalRequest::Summaries(None));
            requests.push(ClientMessage::Internal(Some(inner.clone()), request));
        } else if dialect.has_summaries_in_states() {
            let sessions: Vec<String> = requested.iter().filter(|uri| is_session(uri)).cloned().collect();
            if !sessions.is_empty() {
                let request = Box::new(InternalRequest::Summaries(Some(sessions)));
                requests.push(ClientMessage::Internal(Some(inner.clone()), request));
            }
        }
        if !requested.is_empty() {
            requests
                .push(ClientMessage::Internal(Some(inner.clone()), Box::new(InternalRequest::Names(all))));
        }
        let peeked = node::text(&call.params, "channel").filter(|_| fetches);
        let peeked = peeked.map(|chat| peer.aliases.get(chat).cloned().unwrap_or_else(|| chat.to_owned()));
        let batch = RequestBatch {
            id,
            method: call.method,
            reply: call.reply,
            requested,
            client_names,
            implied,
            unsubscribed: BTreeSet::new(),
            answers: Vec::new(),
            expected: requests.len(),
            queued: Vec::new(),
        };
        let peeked = peeked.filter(|chat| !peer.follows(chat));
        peer.batches.insert(self.last_inner, batch);
        fed.append(&mut requests);
        if let Some(chat) = peeked {
            // The subscription was only for the state.
            fed.push(unsubscribe(&chat).into());
        }
    }

    /// Ends a client's subscription, with those that it caused. Returns whether the core's
    /// subscription to the channel must stay, because other messages need it.
    fn forget_channel(
        &mut self,
        connection: ConnectionId,
        call: &IncomingCall,
        fed: &mut Vec<ClientMessage>,
    ) -> bool {
        let peer = self.peers.entry(connection).or_default();
        let Some(named) = node::text(&call.params, "channel") else { return false };
        // Versions that do not name channels have one name for each, which is translated already. A
        // name that a request in flight has is no other name.
        let is_exact = !peer.dialect.names_channels()
            || peer.subscribed.contains_key(named)
            || peer.batches.values().any(|batch| batch.requested.iter().any(|uri| uri == named));
        let plain = || uris::plain_form(named).filter(|plain| peer.subscribed.contains_key(plain));
        let other = if is_exact { None } else { plain() };
        let channel = peer.aliases.remove(named).or(other).unwrap_or_else(|| named.to_owned());
        peer.subscribed.remove(&channel);
        let chat = uris::default_chat_of(&channel);
        let mut is_asked_for = false;
        for batch in peer.batches.values_mut() {
            // A request in flight has the client's name.
            for name in
                [named, &channel].into_iter().filter(|name| batch.requested.iter().any(|uri| uri == name))
            {
                is_asked_for |= batch.implied.contains(&uris::default_chat_of(name));
                batch.unsubscribed.insert(name.to_owned());
            }
        }
        let is_heard_by_all = channel == uris::ROOT && peer.dialect.notifies_everybody();
        let mut batches = peer.batches.values();
        let is_implied = peer.implied.contains_key(&channel) || batches.any(|batch| batch.implies(&channel));
        if is_implied || is_heard_by_all {
            return true;
        }
        if (peer.implied.remove(&chat).is_some() || is_asked_for) && !peer.follows(&chat) {
            fed.push(unsubscribe(&chat).into());
        }
        self.sweep();
        false
    }

    pub(super) fn action_up(
        &mut self,
        connection: ConnectionId,
        id: Option<RequestId>,
        params: Object,
        fed: &mut Vec<ClientMessage>,
    ) -> Result<(), RpcError> {
        let peer = self.peers.entry(connection).or_default();
        let Some(translation) = self.translations.get_mut(&peer.dialect) else { return Ok(()) };
        let mut call = IncomingCall {
            method: Method::DispatchAction.name().to_owned(),
            params: params.clone(),
            options: SessionOptions::default(),
            reply: Reply::Same,
            session: None,
        };
        // In versions whose actions name their channel, a step sets `channel`.
        let (chain, mut context) = translation.context("", &peer.client_id);
        chain.call_up(&mut call, &mut context)?;
        let mut channel = node::text(&call.params, "channel").unwrap_or_default().to_owned();
        peer.root_up(&mut channel, false);
        let action = match call.params.remove("action") {
            Some(Value::Object(action)) => action,
            // The core refuses a value that is no action.
            other => {
                peer.note(params);
                call.params.extend(other.map(|value| ("action".to_owned(), value)));
                call.params.insert("channel".to_owned(), channel.into());
                fed.push(message_of(id, call.method, params_of(&call.params)).into());
                return Ok(());
            }
        };
        let mut incoming = IncomingAction { channel, action, mode: DispatchMode::Plain, session: None };
        let (chain, mut context) = translation.context(&incoming.channel.clone(), &peer.client_id);
        chain.action_up(&mut incoming, &mut context);
        peer.note(params);
        call.params.insert("channel".to_owned(), incoming.channel.into());
        call.params.insert("action".to_owned(), Value::Object(incoming.action));
        let params = params_of(&call.params);
        fed.push(match (incoming.mode, incoming.session) {
            (DispatchMode::Plain, None) => message_of(id, call.method, params).into(),
            (mode, session) => {
                ClientMessage::Internal(id, Box::new(InternalRequest::Dispatch(params, mode, session)))
            }
        });
        Ok(())
    }
}

/// Returns the channels that a client of this version follows besides the requested ones; `begins`
/// if the request begins or resumes a connection.
fn implied_by(requested: &[String], dialect: Dialect, begins: bool) -> Vec<String> {
    let mut implied: Vec<String> = Vec::new();
    if dialect.has_summaries_in_states() {
        let sessions = requested.iter().filter(|uri| is_session(uri));
        let chats = sessions.map(|session| uris::default_chat_of(session));
        // A requested chat, too: it is still needed when the client unsubscribes it alone.
        implied.extend(chats);
    }
    if begins && dialect.notifies_everybody() && !requested.iter().any(|uri| uri == uris::ROOT) {
        implied.push(uris::ROOT.to_owned());
    }
    implied
}

/// Returns the requested channels, and those of the implied ones that are not among them. A client
/// can request very many, so none is searched for in the other list.
fn requested_and_implied<T: Ord + Clone>(requested: &[T], implied: &[T]) -> Vec<T> {
    let known: BTreeSet<&T> = requested.iter().collect();
    let further = implied.iter().filter(|uri| !known.contains(uri));
    requested.iter().chain(further).cloned().collect()
}

/// Returns the core's requests in place of a client's, which concerns `all` channels; takes the
/// options of the call.
fn requests_for(
    call: &mut IncomingCall,
    dialect: Dialect,
    inner: &RequestId,
    (all, implied): (&[String], &[String]),
) -> Vec<ClientMessage> {
    let internal = |request| ClientMessage::Internal(Some(inner.clone()), Box::new(request));
    let method = call.method.clone();
    let plain = |params: &Object| message_of(Some(inner.clone()), method.clone(), params_of(params)).into();
    let mut requests: Vec<ClientMessage> = vec![match method.as_str() {
        "createSession" => {
            let options = std::mem::take(&mut call.options);
            internal(InternalRequest::CreateSession(params_of(&call.params), options))
        }
        "createChat" if dialect.has_summaries_in_states() => {
            let selection = std::mem::take(&mut call.options.selection);
            internal(InternalRequest::CreateChat(params_of(&call.params), selection))
        }
        _ => match (Method::from_name(&method), call.session.take()) {
            (Some(served), Some(session)) => {
                internal(InternalRequest::OfSession(served, params_of(&call.params), session))
            }
            _ => plain(&call.params),
        },
    }];
    match method.as_str() {
        // States for later translations, and for the answer if the replay cannot be translated.
        "reconnect" if dialect.needs_states() => {
            requests.push(internal(InternalRequest::Preview(all.to_vec())));
        }
        "subscribe" => {
            requests.extend(implied.iter().map(|chat| plain(&node::members(json!({ "channel": chat })))));
        }
        _ => {}
    }
    requests
}

fn params_of(params: &Object) -> Params {
    Params::from_json(to_json(params))
}

/// Returns whether a URI may be a session's, because it is of no other kind.
fn is_session(uri: &str) -> bool {
    uri != uris::ROOT && !uri.starts_with("ahp-chat:") && !is_watch(uri)
}

/// Returns the channels that a message subscribes to, in the client's spelling.
fn spelled_in(params: &Object) -> Vec<String> {
    let lists =
        ["initialSubscriptions", "subscriptions"].into_iter().filter_map(|name| params.get(name)?.as_array());
    let all = lists.flatten().chain(params.get("resource")).filter_map(Value::as_str);
    all.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;
    use std::ops::Range;

    use super::*;

    /// Stands for a channel, and counts comparisons.
    #[derive(Clone)]
    struct Counted<'a>(usize, &'a Cell<usize>);

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted<'_> {}

    #[test]
    fn requested_channels_are_not_compared_with_each_implied_one() {
        let compared = Cell::new(0);
        let channels = |numbers: Range<usize>| {
            numbers.map(|number| Counted(number, &compared)).collect::<Vec<Counted<'_>>>()
        };
        let all = requested_and_implied(&channels(0..2000), &channels(1000..3000));
        assert!(all.iter().map(|channel| channel.0).eq(0..3000));
        assert!(compared.get() < 3000 * 50, "{} comparisons", compared.get());
    }
}
