//! Files that clients serve: requests for them are passed on to the client that serves them.
//!
//! Owns: [`Relays`], that is, which client serves a URI, the requests in flight to clients, by ids
//! of the host's own, and the end of each: the client's answer, or an error on a timeout, an
//! invalid answer or a disconnect. Among them are the host's own requests for `plugins`.
//! Never: blocks on a client, decides what it lets others see (each client does that itself), or
//! reads sessions and connections other than through [`FileServers`].
//!
//! A client serves the URIs whose authority is its id (`virtual://<clientId>/…`), and those that it
//! has published as customizations, with everything below them. A client with several connections
//! is asked on its newest one: an older one may be dead without notice.

pub(super) mod resources;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ahp_types::commands::{
    ContentEncoding, ResourceCopyParams, ResourceListResult, ResourceMoveParams, ResourceReadResult,
    ResourceResolveResult,
};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{json, Map, Value};

use crate::host::effects::{ConnectionId, Frame, Output, Timer};
use crate::host::Step;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{read_json, to_sorted_json, ClientReply, Params, RequestId};
use crate::wire::uris::{rest_below, ROOT};

/// Deadline for a client's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of requests in flight to one client, without those for access.
const PENDING_PER_CLIENT_MAX: usize = 16;

/// Maximum number of requests for access in flight to one client. Those for plugins wait for its
/// user without limit.
const ACCESS_PER_CLIENT_MAX: usize = 256;

/// Maximum length of a URI that is passed on, in bytes; it is kept until the answer.
const URI_BYTES_MAX: usize = 64 << 10;

/// Maximum number of disconnected clients that are remembered.
const DISCONNECTED_MAX: usize = 1024;

/// Maximum length of the id of a client that is remembered, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Maximum size of a file in a client's answer, in bytes; equal to that of local files.
const FILE_BYTES_MAX: usize = 16 << 20;

/// Maximum number of entries of a folder in a client's answer.
const ENTRIES_MAX: usize = 100_000;

/// Maximum size of any other answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Schemes that no client serves.
const SCHEMES_NOT_OF_CLIENTS: [&str; 5] = ["file", "data", "ahp-content", "http", "https"];

/// Server of a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServedBy {
    Client(ConnectionId),
    /// A client that has disconnected.
    Gone,
    /// The host itself, or no one.
    Nobody,
}

#[derive(Debug)]
pub(super) struct Relay {
    asked: ConnectionId,
    method: Method,
    uri: String,
    /// JSON text.
    params: Bytes,
}

/// Request in flight to a client.
#[derive(Debug)]
struct PendingRelay {
    asked: ConnectionId,
    method: Method,
    uri: String,
    by: RequestedBy,
}

/// Requests that are counted together: those to a client for access, or its others.
type Lane = (ConnectionId, bool);

fn lane_of(asked: ConnectionId, method: Method) -> Lane {
    (asked, method == Method::ResourceRequest)
}

#[derive(Debug, PartialEq)]
enum RequestedBy {
    Client(ConnectionId, RequestId),
    /// Fetch of a plugin, by its number.
    Fetch(u64),
}

impl RequestedBy {
    fn is_client(&self, connection: ConnectionId) -> bool {
        matches!(self, Self::Client(by, _) if *by == connection)
    }
}

/// Answer to a request of a fetch.
#[derive(Debug)]
pub(super) struct FetchAnswer {
    pub(super) fetch: u64,
    pub(super) request: u64,
    /// Result, as checked JSON text.
    pub(super) result: Result<Bytes, RpcError>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FileServer<'a> {
    pub(super) connection: ConnectionId,
    /// `None` before `initialize`.
    pub(super) client_id: Option<&'a str>,
    /// Set if the client answers no requests.
    pub(super) answers_nothing: bool,
    /// Set if the client can no longer send.
    pub(super) is_leaving: bool,
}

/// Connected clients, and URIs published as customizations, each with its client's id.
#[derive(Debug, Default)]
pub(super) struct FileServers<'a> {
    pub(super) clients: Vec<FileServer<'a>>,
    pub(super) published: Vec<(&'a str, &'a str)>,
}

#[derive(Debug, Default)]
pub(super) struct Relays {
    /// Requests in flight, by number.
    pending: BTreeMap<u64, PendingRelay>,
    /// Number of requests in flight, if not zero.
    in_flight: BTreeMap<Lane, usize>,
    last_number: u64,
    /// Ids of disconnected clients, the latest last: requests for their files fail.
    gone: VecDeque<String>,
    /// Answers to requests of fetches that were not taken yet.
    fetched: Vec<FetchAnswer>,
}

impl Relays {
    /// Returns a request about a file or folder as one for the client that serves it; `None` if the
    /// host handles it. Calls `servers` only if the result depends on it.
    pub(super) fn route<'a>(
        &self,
        method: Method,
        params: &Params,
        servers: impl FnOnce() -> FileServers<'a>,
    ) -> Result<Option<Relay>, RpcError> {
        #[derive(Deserialize)]
        struct Names {
            uri: Option<String>,
            source: Option<String>,
        }
        // Changes of files that clients serve are not watched.
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
        if !std::iter::once(&uri).chain(&destination).any(|uri| may_be_served(uri)) {
            return Ok(None);
        }
        let servers = &servers();
        let asked = self.server_of(&uri, servers);
        let also = destination.as_deref().map_or(asked, |destination| self.server_of(destination, servers));
        if asked != also {
            return Err(RpcError::invalid_params(format_args!(
                "`{uri}` and its destination are served by different clients: read the one and write the other"
            )));
        }
        let asked = match asked {
            ServedBy::Client(asked) => asked,
            ServedBy::Gone => {
                return Err(RpcError::unavailable(format_args!("`{uri}`: its client has disconnected")))
            }
            ServedBy::Nobody => return Ok(None),
        };
        if uri.len() > URI_BYTES_MAX {
            return Err(RpcError::invalid_params(format_args!("`uri` is longer than {URI_BYTES_MAX} bytes")));
        }
        let lane = lane_of(asked, method);
        let max = if lane.1 { ACCESS_PER_CLIENT_MAX } else { PENDING_PER_CLIENT_MAX };
        if self.in_flight.get(&lane).is_some_and(|count| *count >= max) {
            return Err(RpcError::unavailable(format_args!(
                "`{uri}`: the client that serves it has {max} unanswered requests, the maximum: try again later"
            )));
        }
        let mut params: Map<String, Value> = params.read()?;
        params.insert("channel".to_owned(), ROOT.into());
        let params = to_sorted_json(&params).into();
        Ok(Some(Relay { asked, method, uri, params }))
    }

    fn server_of(&self, uri: &str, servers: &FileServers<'_>) -> ServedBy {
        let Some((_, rest)) = uri.split_once(':').filter(|_| may_be_served(uri)) else {
            return ServedBy::Nobody;
        };
        let authority =
            rest.strip_prefix("//").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(rest));
        let named = authority.map(|name| percent_decode_str(name).decode_utf8_lossy());
        let publishers = publishers_of(uri, servers);
        // URI libraries write an authority in lower case; an exactly equal id has precedence. A
        // client that is named has precedence over those that publish a URI above its files.
        let serves = |id: &str| {
            let is_named = |how: fn(&str, &str) -> bool| named.as_deref().is_some_and(|named| how(named, id));
            let ways = [
                publishers.contains_key(id),
                is_named(|named, id| named.to_lowercase() == id.to_lowercase()),
                is_named(|named, id| named == id),
            ];
            // Among publishers, the one with the longest published URI is nearest.
            ways.iter().rposition(|way| *way).map(|way| (way, publishers.get(id).copied()))
        };
        let there = servers.clients.iter().filter(|client| !client.is_leaving && !client.answers_nothing);
        let ranked = there.filter_map(|client| Some((serves(client.client_id?)?, client.connection)));
        let best = ranked.max();
        let found = best.map(|((way, _), _)| way);
        match best {
            Some(((1.., _), connection)) => ServedBy::Client(connection),
            // A client that answers nothing serves nothing.
            _ if self.is_disconnected(servers, |id| serves(id).map(|(way, _)| way) > found) => ServedBy::Gone,
            Some((_, connection)) => ServedBy::Client(connection),
            None => ServedBy::Nobody,
        }
    }

    /// Returns whether a client that `serves` was connected and can no longer be asked.
    fn is_disconnected(&self, servers: &FileServers<'_>, serves: impl Fn(&str) -> bool) -> bool {
        let leaving = servers.clients.iter().filter(|client| client.is_leaving && !client.answers_nothing);
        let is_in_memory = |id: &String| servers.clients.iter().any(|client| client.client_id == Some(id));
        let mut gone = self.gone.iter().filter(|id| !is_in_memory(id));
        leaving.filter_map(|client| client.client_id).any(&serves) || gone.any(|id| serves(id))
    }

    /// Notes that a client is disconnected: requests for its files fail from now on. Beyond the
    /// limit, the client that was disconnected longest ago is evicted.
    pub(super) fn note_disconnected(&mut self, client_id: String) {
        if client_id.len() > NAME_BYTES_MAX {
            return;
        }
        self.gone.retain(|id| *id != client_id);
        self.gone.push_back(client_id);
        if self.gone.len() > DISCONNECTED_MAX {
            self.gone.pop_front();
        }
    }

    pub(super) fn ask(&mut self, step: &mut Step<'_>, by: ConnectionId, id: RequestId, relay: Relay) {
        let number = self.send(step, relay, RequestedBy::Client(by, id));
        step.emit(Output::Timer(Timer::Relay(number), ANSWER_TIMEOUT));
    }

    /// Sends a request of a fetch, which has a deadline of its own. Returns the request's number.
    pub(super) fn ask_for_fetch(
        &mut self,
        step: &mut Step<'_>,
        fetch: u64,
        (asked, method): (ConnectionId, Method),
        uri: String,
    ) -> u64 {
        let params = to_sorted_json(&json!({ "channel": ROOT, "uri": uri })).into();
        self.send(step, Relay { asked, method, uri, params }, RequestedBy::Fetch(fetch))
    }

    /// Sends a request, without keeping its params: they may be as large as a file.
    fn send(&mut self, step: &mut Step<'_>, relay: Relay, by: RequestedBy) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        let Relay { asked, method, uri, params } = relay;
        step.emit(Output::Frame(asked, Frame::Request { number, method: method.name(), params }));
        self.pending.insert(number, PendingRelay { asked, method, uri, by });
        *self.in_flight.entry(lane_of(asked, method)).or_default() += 1;
        number
    }

    fn take(&mut self, number: u64) -> Option<PendingRelay> {
        let pending = self.pending.remove(&number)?;
        if let Entry::Occupied(mut count) = self.in_flight.entry(lane_of(pending.asked, pending.method)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(pending)
    }

    /// Returns the numbers of the requests that meet a condition.
    fn numbers(&self, is_one: impl Fn(&PendingRelay) -> bool) -> Vec<u64> {
        self.pending.iter().filter(|(_, pending)| is_one(pending)).map(|(number, _)| *number).collect()
    }

    /// Forgets the requests of a fetch that is over.
    pub(super) fn drop_fetch(&mut self, fetch: u64) {
        for number in self.numbers(|pending| pending.by == RequestedBy::Fetch(fetch)) {
            self.take(number);
        }
    }

    /// Returns the answers to requests of fetches since the last call.
    pub(super) fn take_fetched(&mut self) -> Vec<FetchAnswer> {
        std::mem::take(&mut self.fetched)
    }

    /// Answers the request that a client's answer belongs to.
    pub(super) fn reply(&mut self, step: &mut Step<'_>, connection: ConnectionId, reply: ClientReply) {
        let number = reply.id.as_ref().and_then(|id| serde_json::from_slice::<u64>(id.as_json()).ok());
        let is_asked =
            |number: &u64| self.pending.get(number).is_some_and(|pending| pending.asked == connection);
        let Some(number) = number.filter(is_asked) else {
            return tracing::debug!("a client's answer was ignored: no request of its id is open");
        };
        let Some(pending) = self.take(number) else { return };
        let result = checked(&pending, reply);
        self.pass_on(step, number, pending, result);
    }

    fn pass_on(
        &mut self,
        step: &mut Step<'_>,
        request: u64,
        PendingRelay { method, by, .. }: PendingRelay,
        result: Result<Bytes, RpcError>,
    ) {
        match (by, result) {
            (RequestedBy::Client(by, id), Ok(result)) => {
                step.emit(Output::Frame(by, Frame::result(id, method, result)));
            }
            (RequestedBy::Client(by, id), Err(error)) => {
                step.emit(Output::Frame(by, Frame::Error { id: Some(id), error }));
            }
            (RequestedBy::Fetch(fetch), result) => self.fetched.push(FetchAnswer { fetch, request, result }),
        }
    }

    pub(super) fn time_out(&mut self, step: &mut Step<'_>, number: u64) {
        let why =
            format!("the client that serves it has not answered for {} seconds", ANSWER_TIMEOUT.as_secs());
        self.fail(step, &why, [number]);
    }

    /// Fails the requests to a client that can no longer send.
    pub(super) fn end_to(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        let over = self.numbers(|pending| pending.asked == connection);
        self.fail(step, "its client has disconnected", over);
    }

    /// Fails the requests of a client that can no longer receive.
    pub(super) fn end_for(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        let over = self.numbers(|pending| pending.by.is_client(connection));
        self.fail(step, "the client that requested it has disconnected", over);
    }

    /// Fails all requests: no client can send any more.
    pub(super) fn end_all(&mut self, step: &mut Step<'_>) {
        let over = self.numbers(|_| true);
        self.fail(step, "its client has disconnected", over);
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn has_pending_of(&self, connection: ConnectionId) -> bool {
        self.pending.values().any(|pending| pending.by.is_client(connection))
    }

    fn fail(&mut self, step: &mut Step<'_>, why: &str, over: impl IntoIterator<Item = u64>) {
        for number in over {
            let Some(pending) = self.take(number) else { continue };
            let error = RpcError::unavailable(format_args!("`{}`: {why}", pending.uri));
            self.pass_on(step, number, pending, Err(error));
        }
    }
}

/// Returns whether a client may serve files under a URI's scheme.
fn may_be_served(uri: &str) -> bool {
    let Some((scheme, _)) = uri.split_once(':') else { return false };
    let is_one = scheme.starts_with(|first: char| first.is_ascii_alphabetic());
    is_one && !SCHEMES_NOT_OF_CLIENTS.iter().any(|other| other.eq_ignore_ascii_case(scheme))
}

/// Returns the publishers of a URI or one above it, with the longest such URI's length.
fn publishers_of<'a>(uri: &str, servers: &FileServers<'a>) -> BTreeMap<&'a str, usize> {
    let mut publishers = BTreeMap::new();
    for (client_id, published) in &servers.published {
        let published = published.trim_end_matches('/');
        if rest_below(uri, published).is_some() {
            let longest = publishers.entry(*client_id).or_insert(published.len());
            *longest = published.len().max(*longest);
        }
    }
    publishers
}

/// Returns the result in a client's answer, or the error that stands for it.
fn checked(pending: &PendingRelay, reply: ClientReply) -> Result<Bytes, RpcError> {
    let PendingRelay { method, uri, .. } = pending;
    let error = reply.error.filter(|error| error != "null");
    match (reply.result, error) {
        (Some(result), None) if is_too_large(*method, &result) => {
            Err(RpcError::invalid_params(format_args!(
                "`{uri}`: the answer of the client that serves it is larger than the host passes on"
            )))
        }
        (Some(result), None) => match check(*method, &result) {
            Ok(()) => Ok(result),
            Err(why) => Err(RpcError::unavailable(format_args!(
                "`{uri}`: the answer of its client is invalid: {why}"
            ))),
        },
        (_, Some(error)) => Err(match read_json::<RpcError>(&error) {
            Ok(error) => RpcError::of_client(uri, error),
            Err(_) => RpcError::unavailable(format_args!(
                "`{uri}`: the client that serves it answered with an invalid error"
            )),
        }),
        (None, None) => Err(RpcError::unavailable(format_args!(
            "`{uri}`: the client that serves it answered with neither a result nor an error"
        ))),
    }
}

/// Returns whether an answer exceeds the host's own limits.
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

fn check(method: Method, result: &Bytes) -> Result<(), String> {
    match method {
        Method::ResourceRead => read_json::<ResourceReadResult>(result).map(drop),
        Method::ResourceList => read_json::<ResourceListResult>(result).map(drop),
        Method::ResourceResolve => read_json::<ResourceResolveResult>(result).map(drop),
        _ => read_json::<Map<String, Value>>(result).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::outputs_of;
    use crate::wire::rpc::Incoming;

    const ASKS: ConnectionId = ConnectionId(1);
    const SERVES: ConnectionId = ConnectionId(2);

    fn server(client_id: &str) -> FileServers<'_> {
        let client_id = Some(client_id);
        let there = FileServer { connection: SERVES, client_id, answers_nothing: false, is_leaving: false };
        FileServers { clients: vec![there], published: Vec::new() }
    }

    fn route(relays: &Relays, uri: &str, servers: FileServers<'_>) -> Result<Option<Relay>, RpcError> {
        route_to(relays, Method::ResourceRead, uri, servers)
    }

    fn route_to(
        relays: &Relays,
        method: Method,
        uri: &str,
        servers: FileServers<'_>,
    ) -> Result<Option<Relay>, RpcError> {
        let params = format!(r#"{{"channel":"ahp-root://","uri":"{uri}"}}"#);
        relays.route(method, &Params::from_json(params), || servers)
    }

    /// An answer of a client to the request of this number.
    fn reply(number: u64, result: &str) -> ClientReply {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{result}}}"#);
        match Incoming::parse(&line.into()) {
            Incoming::Response(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Passes a request on. Returns its number.
    fn ask(relays: &mut Relays) -> u64 {
        ask_for(relays, Method::ResourceRead)
    }

    fn ask_for(relays: &mut Relays, method: Method) -> u64 {
        let relay = route_to(relays, method, "virtual://me/x", server("me")).unwrap().unwrap();
        let outputs = outputs_of(|step| relays.ask(step, ASKS, RequestId::inner(7), relay));
        match &outputs[..] {
            [Output::Frame(SERVES, Frame::Request { number, params, .. }), Output::Timer(Timer::Relay(timed), _)] =>
            {
                assert_eq!(number, timed);
                assert!(params.is_unique(), "nothing else holds the params");
                *number
            }
            _ => panic!("{outputs:?}"),
        }
    }

    #[test]
    fn request_is_answered_once_by_whatever_comes_first() {
        type End = fn(&mut Relays, &mut Step<'_>, u64);
        let reply: End = |relays, step, number| {
            relays.reply(step, SERVES, reply(number, r#"{"data":"x","encoding":"utf-8"}"#));
        };
        let ends: [End; 5] = [
            reply,
            |relays, step, number| relays.time_out(step, number),
            |relays, step, _| relays.end_to(step, SERVES),
            |relays, step, _| relays.end_for(step, ASKS),
            |relays, step, _| relays.end_all(step),
        ];
        for (first, end) in ends.iter().enumerate() {
            let mut relays = Relays::default();
            let number = ask(&mut relays);
            assert!(relays.has_pending_of(ASKS) && !relays.has_pending_of(SERVES));
            let answers = outputs_of(|step| end(&mut relays, step, number));
            assert!(matches!(answers[..], [Output::Frame(ASKS, _)]), "{first}: {answers:?}");
            assert!(!relays.has_pending_of(ASKS));
            for other in ends {
                assert!(outputs_of(|step| other(&mut relays, step, number)).is_empty(), "behind {first}");
            }
        }
    }

    #[test]
    fn answer_of_another_client_ends_nothing() {
        let mut relays = Relays::default();
        let number = ask(&mut relays);
        assert!(outputs_of(|step| relays.reply(step, ASKS, reply(number, "{}"))).is_empty());
        assert!(relays.has_pending_of(ASKS));
    }

    #[test]
    fn client_that_is_gone_serves_nothing_and_nobody_else_does() {
        let mut relays = Relays::default();
        assert!(matches!(route(&relays, "virtual://me/x", FileServers::default()), Ok(None)));
        relays.note_disconnected("me".to_owned());
        let refused = route(&relays, "virtual://me/x", FileServers::default()).unwrap_err();
        assert!(refused.message.contains("its client has disconnected"), "{refused:?}");
        assert!(route(&relays, "virtual://me/x", server("me")).unwrap().is_some(), "it has come back");
        assert!(matches!(route(&relays, "file:///me/x", server("me")), Ok(None)));
    }

    #[test]
    fn client_that_was_disconnected_longest_ago_is_evicted_first() {
        let mut relays = Relays::default();
        // The newest ids are the first ones by the alphabet.
        for number in (0..=DISCONNECTED_MAX).rev() {
            relays.note_disconnected(format!("c{number:04}"));
        }
        let is_refused =
            |id: &str| route(&relays, &format!("virtual://{id}/x"), FileServers::default()).is_err();
        assert!(is_refused("c0000") && is_refused("c1023") && !is_refused("c1024"));
    }

    #[test]
    fn requests_in_flight_to_one_client_are_limited() {
        let mut relays = Relays::default();
        let last = (0..PENDING_PER_CLIENT_MAX).map(|_| ask(&mut relays)).last().unwrap();
        assert!(route(&relays, "virtual://me/x", server("me")).is_err());
        outputs_of(|step| relays.time_out(step, last));
        assert_eq!(relays.pending(), PENDING_PER_CLIENT_MAX - 1);
        assert!(route(&relays, "virtual://me/x", server("me")).is_ok());
    }

    #[test]
    fn requests_for_access_are_limited_apart_from_others() {
        let mut relays = Relays::default();
        let requests: Vec<u64> = (0..256).map(|_| ask_for(&mut relays, Method::ResourceRequest)).collect();
        let request = |relays: &Relays, uri: &str| {
            route_to(relays, Method::ResourceRequest, uri, server("me")).map(|relay| relay.is_some())
        };
        assert!(request(&relays, "virtual://me/x").unwrap_err().message.contains("256 unanswered"));
        ask(&mut relays);
        outputs_of(|step| relays.reply(step, SERVES, reply(requests[7], "{}")));
        assert_eq!((relays.pending(), request(&relays, "virtual://me/x")), (256, Ok(true)));
        outputs_of(|step| relays.end_to(step, SERVES));
        assert_eq!(relays.pending(), 0);
        for _ in 0..256 {
            ask_for(&mut relays, Method::ResourceRequest);
        }
        let long = format!("virtual://me/{}", "x".repeat(URI_BYTES_MAX));
        assert!(request(&Relays::default(), &long).unwrap_err().message.len() < 1000);
    }

    #[test]
    fn publisher_of_a_uri_above_does_not_get_what_another_client_serves() {
        const EVIL: ConnectionId = ConnectionId(3);
        let servers = |is_named_there| {
            let mut servers = server("ABC");
            servers.clients[0].client_id = Some("ABC").filter(|_| is_named_there);
            servers.clients.push(FileServer {
                connection: EVIL,
                client_id: Some("evil"),
                ..servers.clients[0]
            });
            servers.published.push(("evil", "virtual:"));
            servers
        };
        let asked = |relays: &Relays, uri: &str, is_named_there| {
            route(relays, uri, servers(is_named_there)).map(|relay| relay.map(|relay| relay.asked))
        };
        let mut relays = Relays::default();
        for uri in ["virtual://abc/x", "virtual://ABC/x"] {
            assert_eq!(asked(&relays, uri, true), Ok(Some(SERVES)), "{uri}");
        }
        assert_eq!(asked(&relays, "virtual://abc/x", false), Ok(Some(EVIL)), "no client has that name");
        relays.note_disconnected("ABC".to_owned());
        assert!(asked(&relays, "virtual://abc/x", false).is_err(), "the client may come back");
        assert_eq!(asked(&relays, "virtual://other/x", false), Ok(Some(EVIL)));
    }
}
