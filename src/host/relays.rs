//! Files that clients serve: what somebody asks of them is asked of the client that has them.
//!
//! Owns: which client serves a URI, the requests that are on their way to clients, by ids of the host's own, and the end of
//! each: the client's answer, or an error when it answers nothing in time, nothing that can be read, or is gone.
//! Never: waits for a client, or decides what it lets others see: each client does that itself.
//!
//! A client serves the URIs that have its id for an authority (`virtual://<clientId>/…`), and those that it has published as
//! customizations, with all that is below them. A client that has come again is asked on its newest connection: the one before
//! may be dead without anybody knowing it yet.

use std::collections::BTreeMap;
use std::time::Duration;

use ahp_types::commands::{
    ContentEncoding, ResourceCopyParams, ResourceListResult, ResourceMoveParams, ResourceReadResult,
    ResourceResolveResult,
};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::effects::{ConnectionId, Frame, Output, Timer};
use super::{Host, Step};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{read_json, to_sorted_json, ClientReply, Params, RequestId};
use crate::wire::uris::ROOT;

/// A client must answer within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// So many requests to one client are on their way.
const ASKED_MAX: usize = 16;

/// So many clients are remembered that are gone.
const GONE_MAX: usize = 1024;

/// None is remembered whose id has more bytes.
const NAME_BYTES_MAX: usize = 256;

/// The longest file that a client's answer may bring, in bytes: as of one of this machine.
const FILE_BYTES_MAX: usize = 16 << 20;

/// So many entries of a folder it may bring, for the same reason.
const ENTRIES_MAX: usize = 100_000;

/// What else an answer may bring, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The schemes that are nobody's but the host's, or that nobody serves.
const NO_CLIENTS: [&str; 5] = ["file", "data", "ahp-content", "http", "https"];

/// Who serves a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServedBy {
    /// The client of this connection.
    Client(ConnectionId),
    /// A client that was here, and is not any more.
    Gone,
    /// No client: the host, or nobody.
    Nobody,
}

/// A request that a client is to answer.
#[derive(Debug)]
pub(super) struct Relay {
    /// Who is asked.
    asked: ConnectionId,
    method: Method,
    uri: String,
    /// Its params; JSON text.
    params: Bytes,
}

/// A request that a client was asked, and that waits for its answer.
#[derive(Debug)]
pub(super) struct Awaited {
    relay: Relay,
    /// Whose request it is.
    by: ConnectionId,
    id: RequestId,
}

impl Host {
    /// Whether a request about a file or folder is one for a client.
    ///
    /// # Errors
    /// When the client that it is for cannot be asked.
    pub(super) fn relay(&self, method: Method, params: &Params) -> Result<Option<Relay>, RpcError> {
        #[derive(Deserialize)]
        struct Names {
            uri: Option<String>,
            source: Option<String>,
        }
        // Changes in what clients serve are not watched.
        if method == Method::CreateResourceWatch {
            return Ok(None);
        }
        let Ok(Names { uri, source }) = params.read() else { return Ok(None) };
        let two = matches!(method, Method::ResourceMove | Method::ResourceCopy);
        let Some(uri) = (if two { source } else { uri }) else { return Ok(None) };
        let destination = match method {
            Method::ResourceMove => Some(params.read::<ResourceMoveParams>()?.destination),
            Method::ResourceCopy => Some(params.read::<ResourceCopyParams>()?.destination),
            _ => None,
        };
        let asked = self.who_serves(&uri);
        let also = destination.as_deref().map_or(asked, |destination| self.who_serves(destination));
        if asked != also {
            return Err(RpcError::invalid_params(format_args!(
                "`{uri}` and its destination are not in one place"
            )));
        }
        let asked = match asked {
            ServedBy::Client(asked) => asked,
            ServedBy::Gone => return Err(RpcError::unavailable(format_args!("`{uri}`: its client is gone"))),
            ServedBy::Nobody => return Ok(None),
        };
        let on_its_way = self.awaited.values().filter(|awaited| awaited.relay.asked == asked);
        if on_its_way.count() >= ASKED_MAX {
            return Err(RpcError::unavailable(format_args!("`{uri}`: its client has too much to answer")));
        }
        let mut params: Map<String, Value> = params.read()?;
        params.insert("channel".to_owned(), ROOT.into());
        let params = to_sorted_json(&params).into();
        Ok(Some(Relay { asked, method, uri, params }))
    }

    /// Who serves a URI.
    fn who_serves(&self, uri: &str) -> ServedBy {
        let Some((scheme, rest)) = uri.split_once(':') else { return ServedBy::Nobody };
        let is_one = scheme.starts_with(|first: char| first.is_ascii_alphabetic());
        if !is_one || NO_CLIENTS.iter().any(|other| other.eq_ignore_ascii_case(scheme)) {
            return ServedBy::Nobody;
        }
        let can_be_asked = |connection: &ConnectionId| {
            let answers = self.connections.get(connection).is_some_and(|client| !client.answers_nothing);
            answers && !self.departures.contains_key(connection)
        };
        let authority =
            rest.strip_prefix("//").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(rest));
        let named = authority.map(|name| percent_decode_str(name).decode_utf8_lossy());
        let publishers: BTreeMap<&str, usize> = self.publishers_of(uri);
        // URI libraries write an authority in small letters; an id that is written so is meant before others.
        let serves = |id: &str| {
            let is_named = |how: fn(&str, &str) -> bool| named.as_deref().is_some_and(|named| how(named, id));
            let ways = [
                is_named(|named, id| named.to_lowercase() == id.to_lowercase()),
                publishers.contains_key(id),
                is_named(|named, id| named == id),
            ];
            // Who has published most of the way there is nearest to it.
            ways.iter().rposition(|way| *way).map(|way| (way, publishers.get(id).copied()))
        };
        let clients = self.connections.iter().filter(|(connection, _)| can_be_asked(connection));
        let ranked = clients
            .filter_map(|(connection, client)| Some((serves(client.client_id.as_deref()?)?, *connection)));
        match ranked.max() {
            Some((_, connection)) => ServedBy::Client(connection),
            // One that answers nothing serves nothing.
            None if self.is_gone(serves) => ServedBy::Gone,
            None => ServedBy::Nobody,
        }
    }

    /// Whether a client that this is said of has been here and can be asked nothing any more.
    fn is_gone<T>(&self, serves: impl Fn(&str) -> Option<T>) -> bool {
        let leaving =
            self.connections.iter().filter(|(connection, _)| self.departures.contains_key(connection));
        let leaving = leaving.filter(|(_, client)| !client.answers_nothing);
        let mut leaving = leaving.filter_map(|(_, client)| client.client_id.as_ref());
        let is_here = |id: &String| self.connections.values().any(|it| it.client_id.as_ref() == Some(id));
        let mut gone = self.gone_clients.iter().filter(|id| !is_here(id));
        leaving.any(|id| serves(id).is_some()) || gone.any(|id| serves(id).is_some())
    }

    /// A client is gone: what is asked of it is answered so from now on.
    pub(super) fn note_gone_client(&mut self, client_id: String) {
        if client_id.len() <= NAME_BYTES_MAX {
            self.gone_clients.insert(client_id);
        }
        while self.gone_clients.len() > GONE_MAX {
            self.gone_clients.pop_first();
        }
    }

    /// The active clients that have published this, or something that it is below; with how much of the way there it is.
    fn publishers_of(&self, uri: &str) -> BTreeMap<&str, usize> {
        let length_of = |published: &str| {
            let published = published.trim_end_matches('/');
            let rest = uri.strip_prefix(published)?;
            (rest.is_empty() || rest.starts_with('/')).then_some(published.len())
        };
        let sessions = self.channels.sessions.values();
        let mut publishers = BTreeMap::new();
        for client in sessions.flat_map(|session| &session.state.active_clients) {
            let published = client.customizations.iter().flatten();
            if let Some(length) = published.filter_map(|published| length_of(&published.uri)).max() {
                let longest = publishers.entry(client.client_id.as_str()).or_insert(length);
                *longest = length.max(*longest);
            }
        }
        publishers
    }

    /// Asks a client for what somebody wants from it.
    pub(super) fn ask_client(&mut self, step: &mut Step<'_>, by: ConnectionId, id: RequestId, relay: Relay) {
        self.last_asked += 1;
        let number = self.last_asked;
        let (method, params) = (relay.method.name(), relay.params.clone());
        step.say(Output::Frame(relay.asked, Frame::Request { number, method, params }));
        step.say(Output::Timer(Timer::Asked(number), ANSWER_WITHIN));
        self.awaited.insert(number, Awaited { relay, by, id });
    }

    /// A client has answered something.
    pub(super) fn client_replies(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        reply: ClientReply,
    ) {
        let number = reply.id.as_ref().and_then(|id| serde_json::from_slice::<u64>(id.as_json()).ok());
        let is_asked =
            |number: &u64| self.awaited.get(number).is_some_and(|awaited| awaited.relay.asked == connection);
        let Some(number) = number.filter(is_asked) else {
            return tracing::debug!("a client's answer was ignored: no request of its id is open");
        };
        let Some(Awaited { relay, by, id }) = self.awaited.remove(&number) else { return };
        step.say(Output::Frame(by, answer(relay, id, reply)));
    }

    /// The time of a client to answer is up.
    pub(super) fn answer_is_overdue(&mut self, step: &mut Step<'_>, number: u64) {
        self.give_up(step, "its client does not answer", |other, _| other == number);
    }

    /// A client can say nothing any more: nothing waits for it.
    pub(super) fn give_up_relays_to(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        self.give_up(step, "its client is gone", |_, awaited| awaited.relay.asked == connection);
    }

    /// A client can be told nothing any more: it waits for nothing.
    pub(super) fn give_up_relays_for(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        self.give_up(step, "who asks for it is gone", |_, awaited| awaited.by == connection);
    }

    /// Whether a client is to answer what was asked for on this connection.
    pub(super) fn waits_for_a_client(&self, connection: ConnectionId) -> bool {
        self.awaited.values().any(|awaited| awaited.by == connection)
    }

    /// Nobody can say anything any more.
    pub(super) fn give_up_relays(&mut self, step: &mut Step<'_>) {
        self.give_up(step, "its client is gone", |_, _| true);
    }

    fn give_up(&mut self, step: &mut Step<'_>, why: &str, is_over: impl Fn(u64, &Awaited) -> bool) {
        let over = self.awaited.iter().filter(|(number, awaited)| is_over(**number, awaited));
        for number in over.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Some(Awaited { relay, by, id }) = self.awaited.remove(&number) else { continue };
            let error = RpcError::unavailable(format_args!("`{}`: {why}", relay.uri));
            step.say(Output::Frame(by, Frame::Error { id: Some(id), error }));
        }
    }
}

/// What somebody is answered whose request a client has answered so.
fn answer(relay: Relay, id: RequestId, reply: ClientReply) -> Frame {
    let Relay { method, uri, .. } = relay;
    let failed = |error| Frame::Error { id: Some(id.clone()), error };
    let error = reply.error.filter(|error| error != "null");
    match (reply.result, error) {
        (Some(result), None) if is_too_large(method, &result) => failed(RpcError::invalid_params(
            format_args!("`{uri}`: what its client has answered is larger than what is answered here"),
        )),
        (Some(result), None) => match check(method, &result) {
            Ok(()) => Frame::result(id, method, result),
            Err(why) => failed(RpcError::unavailable(format_args!(
                "`{uri}`: what its client has answered cannot be read: {why}"
            ))),
        },
        (_, Some(error)) => match read_json::<RpcError>(&error) {
            Ok(error) => failed(RpcError::of_client(&uri, error)),
            Err(_) => failed(RpcError::unavailable(format_args!("`{uri}`: its client has failed"))),
        },
        (None, None) => failed(RpcError::unavailable(format_args!("`{uri}`: its client has failed"))),
    }
}

/// Whether a client answers with more than the host itself would.
fn is_too_large(method: Method, result: &Bytes) -> bool {
    match method {
        Method::ResourceRead if result.len() > FILE_BYTES_MAX => read_json::<ResourceReadResult>(result)
            .is_ok_and(|read| match read.encoding {
                ContentEncoding::Base64 => read.data.len() / 4 * 3 > FILE_BYTES_MAX + 2,
                _ => read.data.len() > FILE_BYTES_MAX,
            }),
        Method::ResourceList if result.len() > ENTRIES_MAX => {
            read_json::<ResourceListResult>(result).is_ok_and(|list| list.entries.len() > ENTRIES_MAX)
        }
        Method::ResourceRead | Method::ResourceList => false,
        _ => result.len() > ANSWER_BYTES_MAX,
    }
}

/// Whether a result is what the method answers.
fn check(method: Method, result: &Bytes) -> Result<(), String> {
    match method {
        Method::ResourceRead => read_json::<ResourceReadResult>(result).map(drop),
        Method::ResourceList => read_json::<ResourceListResult>(result).map(drop),
        Method::ResourceResolve => read_json::<ResourceResolveResult>(result).map(drop),
        _ => read_json::<Map<String, Value>>(result).map(drop),
    }
}
