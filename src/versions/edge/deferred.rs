//! Messages that take long to write: answers with large states or replays, and loaded turns.
//!
//! Owns: the content of such a message, and its line. The line can be made at any time in any
//! thread, because the content includes all state as of its request. It is written in pieces, turn
//! by turn, so that a long chat is not in memory as a whole.
//! Never: changes the state of a connection or of a version's translation; that was done before.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{json, Value};

use super::answers::{client_name, SubscribeRequest};
use super::detached::{DetachedLine, DetachedTurns};
use super::{CoreAnswer, EdgeConnection};
use crate::host::effects::{ChannelSnapshot, LargeStates, LoadedTurns, Rope, LARGE_BYTES};
use crate::state::history::CompletedTurn;
use crate::versions::node::{self, Object};
use crate::versions::quirks::{ProviderNames, Quirks};
use crate::versions::step::{OutgoingState, Reply};
use crate::versions::translation::{self, CoreState, Envelope, FoundState, VersionTranslation};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{
    begin_result, error_line, notification_line, result_line, sorted, RequestId, RESULT_TAIL,
};

/// Message that takes long to write.
#[derive(Debug)]
pub struct DeferredMessage {
    /// Request that it answers; `None` if it is no answer.
    pub id: Option<RequestId>,
    /// Approximate size of its line, in bytes.
    pub bytes: usize,
    /// Sessions that it names, each with its provider.
    sessions: Vec<(String, String)>,
    content: Content,
    /// Quirks of its client, with the names that they need.
    quirks: Option<(Quirks, ProviderNames)>,
}

enum Content {
    /// Answer to this request, with the negotiated version.
    States(RequestId, LargeStates, Value),
    Turns(LoadedTurns),
    /// Line that is translated when it is written; `None` if the version has no such line.
    Translated(Box<dyn FnOnce() -> Option<DetachedLine> + Send>),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::States(..) => "States",
            Self::Turns(_) => "Turns",
            Self::Translated(_) => "Translated",
        })
    }
}

impl DeferredMessage {
    /// Makes an answer for a client of the newest version.
    pub(super) fn plain(id: RequestId, states: LargeStates, version: Value) -> Self {
        let of_sessions = |it: &ChannelSnapshot| Some((it.channel.clone(), it.provider()?.to_owned()));
        let sessions = states.states.iter().filter_map(of_sessions).collect();
        let (answers, bytes) = (Some(id.clone()), states.bytes);
        Self { id: answers, bytes, sessions, content: Content::States(id, states, version), quirks: None }
    }

    /// Makes a message with turns for a client of the newest version.
    pub(super) fn turns(turns: LoadedTurns) -> Self {
        let bytes = turns.bytes();
        Self { id: None, bytes, sessions: Vec::new(), content: Content::Turns(turns), quirks: None }
    }

    /// Makes an answer that is translated later. It lists these sessions, each with its provider.
    pub(super) fn translated(
        parts: AnswerParts,
        bytes: usize,
        listed: Vec<(String, String)>,
        mut translation: VersionTranslation,
        peer: EdgeConnection,
    ) -> Self {
        let id = Some(parts.id.clone());
        let of_sessions = |found: &FoundState| Some((found.channel.clone(), found.provider()?.to_owned()));
        let sessions = parts.found.iter().filter_map(of_sessions).chain(listed).collect();
        let write = Box::new(move || {
            if parts.result.is_replay() {
                translation.note_states(&parts.found);
            }
            Some(parts.write(&mut translation, &peer))
        });
        Self { id, bytes, sessions, content: Content::Translated(write), quirks: None }
    }

    /// Makes a message with turns that are translated later.
    pub(super) fn translated_turns(mut turns: LoadedTurns, mut translation: VersionTranslation) -> Self {
        let bytes = turns.bytes();
        let write = Box::new(move || {
            let (loaded, chat) = (std::mem::take(&mut turns.turns), turns.chat.clone());
            let line = turns.line();
            let mut apart = DetachedTurns::new(translation.chain(), &[line.to_vec()]);
            let word = apart.set(&chat, loaded);
            let mut envelope = translation::read(&line)?;
            envelope.action.as_object_mut()?.insert("turns".to_owned(), word.into_iter().collect());
            // All versions send loaded turns in one line.
            let (_, envelope) = translation.envelopes(envelope, false).into_iter().next()?;
            Some(DetachedLine { line: notification_line("action", &sorted(envelope)), apart })
        });
        Self { id: None, bytes, sessions: Vec::new(), content: Content::Translated(write), quirks: None }
    }

    pub(super) fn apply_quirks(&mut self, has: Quirks, spelling: &mut ProviderNames) {
        for (session, provider) in &self.sessions {
            spelling.note(session, provider);
        }
        self.quirks = Some((has, spelling.clone()));
    }

    /// Passes the line to `take` in pieces, until that returns false. `holds` receives the number
    /// of bytes that are in memory for this line alone.
    pub fn write(self, take: &mut dyn FnMut(Bytes) -> bool, holds: &dyn Fn(usize)) {
        let (has, spelling) = self.quirks.unwrap_or_default();
        match self.content {
            Content::States(id, mut states, version) => {
                if states.method == Method::Initialize {
                    states.members.insert("protocolVersion".to_owned(), version);
                }
                has.leave_out(&mut states.members);
                let mut before = Vec::new();
                begin_result(&mut before, &id);
                let mut line = Rope::from(before);
                line.append(states.rope(&mut |value| has.apply_to_value(value, &spelling)));
                line.text(RESULT_TAIL);
                line.write(&mut |turn| has.apply_to_text(turn, &spelling), take);
            }
            Content::Turns(turns) => {
                let channel = has.called(&turns.chat, &spelling).unwrap_or_else(|| turns.chat.clone());
                turns.rope(&channel).write(&mut |turn| has.apply_to_text(turn, &spelling), take);
            }
            Content::Translated(write) => {
                let Some(DetachedLine { mut line, apart }) = write() else { return };
                has.apply(&mut line, &spelling);
                holds(line.len());
                apart.write(line, &mut |turn| has.apply_to_text(apart.translated(turn), &spelling), take);
            }
        }
    }

    /// Returns the line as one text, in memory as a whole.
    pub fn text(self) -> Bytes {
        let mut whole = BytesMut::new();
        let mut take = |piece: Bytes| {
            whole.extend_from_slice(&piece);
            true
        };
        self.write(&mut take, &|_| {});
        whole.freeze()
    }
}

#[derive(Debug)]
pub(super) enum CoreResult {
    Read(Value),
    /// Text that takes long to parse.
    Text(Bytes),
}

impl CoreResult {
    fn is_replay(&self) -> bool {
        match self {
            Self::Read(value) => value.get("actions").is_some(),
            Self::Text(_) => true,
        }
    }

    fn into_value(self) -> Value {
        match self {
            Self::Read(value) => value,
            Self::Text(text) => serde_json::from_slice(&text).unwrap_or_default(),
        }
    }
}

/// Answer of the core, parsed as far as that is fast.
#[derive(Debug)]
pub(super) struct ReceivedAnswer {
    /// Result, without the states in `found`.
    pub(super) result: CoreResult,
    pub(super) found: Vec<FoundState>,
    /// Approximate size of the parts that take long to write, in bytes.
    pub(super) large_bytes: usize,
}

impl ReceivedAnswer {
    pub(super) fn of(answered: CoreAnswer) -> Self {
        match answered {
            CoreAnswer::Large(states) => {
                let found = states.states.into_iter().map(|told| FoundState {
                    kind: told.kind,
                    channel: told.channel.clone(),
                    from_seq: told.from_seq.into(),
                    state: CoreState::Core(Box::new(told)),
                    summary: None,
                });
                let result = CoreResult::Read(Value::Object(states.members));
                Self { result, found: found.collect(), large_bytes: states.bytes }
            }
            CoreAnswer::Written { result, states } if result.len() >= LARGE_BYTES && states.is_empty() => {
                let large_bytes = result.len();
                Self { result: CoreResult::Text(result), found: Vec::new(), large_bytes }
            }
            CoreAnswer::Written { result, states } => {
                let mut result: Value = serde_json::from_slice(&result).unwrap_or_default();
                let mut snapshots = Vec::new();
                if !states.is_empty() {
                    snapshots.extend(result.get_mut("snapshot").map(Value::take));
                    let several = result.get_mut("snapshots").and_then(Value::as_array_mut);
                    snapshots.extend(several.into_iter().flat_map(std::mem::take));
                }
                let found = snapshots.into_iter().zip(states).filter_map(|(mut snapshot, kind)| {
                    Some(FoundState {
                        kind,
                        channel: snapshot.get("resource")?.as_str()?.to_owned(),
                        from_seq: snapshot.get("fromSeq")?.clone(),
                        state: match snapshot.get_mut("state")?.take() {
                            Value::Object(state) => CoreState::Parsed(state),
                            _ => return None,
                        },
                        summary: None,
                    })
                });
                let found = found.collect();
                Self { result: CoreResult::Read(result), found, large_bytes: 0 }
            }
        }
    }

    /// Returns the result, if it is parsed.
    pub(super) fn value(&self) -> Option<&Value> {
        match &self.result {
            CoreResult::Read(value) => Some(value),
            CoreResult::Text(_) => None,
        }
    }

    /// Returns the sessions of a list that is translated later, each with its provider: their names
    /// must be known before any other message.
    pub(super) fn listed(&self, method: &str) -> Vec<(String, String)> {
        #[derive(Deserialize, Default)]
        struct Listed {
            items: Vec<Session>,
        }
        #[derive(Deserialize)]
        struct Session {
            resource: String,
            provider: String,
        }
        match &self.result {
            CoreResult::Text(text) if method == Method::ListSessions.name() => {
                let listed: Listed = serde_json::from_slice(text).unwrap_or_default();
                listed.items.into_iter().map(|session| (session.resource, session.provider)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the core's names of channels, by other names (`InternalRequest::Names`).
    pub(super) fn names(&self) -> HashMap<String, String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Names {
            names: HashMap<String, String>,
        }
        let names = match &self.result {
            CoreResult::Read(value) => Names::deserialize(value),
            CoreResult::Text(text) => serde_json::from_slice(text),
        };
        names.unwrap_or_default().names
    }

    /// Returns the requested channels that do not exist.
    pub(super) fn missing(&self) -> BTreeSet<String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Missing {
            missing: BTreeSet<String>,
        }
        let missing = match &self.result {
            CoreResult::Read(value) => Missing::deserialize(value),
            CoreResult::Text(text) => serde_json::from_slice(text),
        };
        missing.unwrap_or_default().missing
    }
}

/// Components of the answer to a client's request.
#[derive(Debug)]
pub(super) struct AnswerParts {
    pub(super) id: RequestId,
    /// Method name that the core received.
    pub(super) method: String,
    pub(super) reply: Reply,
    /// Requested channels; `None` if the method does not subscribe.
    pub(super) request: Option<SubscribeRequest>,
    /// Result of the core, without its states.
    pub(super) result: CoreResult,
    /// Requested channels that do not exist.
    pub(super) missing: BTreeSet<String>,
    pub(super) found: Vec<FoundState>,
}

impl AnswerParts {
    pub(super) fn write(self, translation: &mut VersionTranslation, peer: &EdgeConnection) -> DetachedLine {
        let id = self.id.clone();
        let (line, apart) = match self.translate(translation, peer) {
            Ok((result, apart)) => (result_line(&id, &sorted(result)), apart),
            Err(mut error) => {
                let (chain, mut context) = translation.context("", &peer.client_id);
                chain.error_down(&mut error, &mut context);
                (error_line(Some(&id), &error), DetachedTurns::new(chain, &[]))
            }
        };
        DetachedLine { line, apart }
    }

    fn translate(
        self,
        translation: &mut VersionTranslation,
        peer: &EdgeConnection,
    ) -> Result<(Value, DetachedTurns), RpcError> {
        let Self { id, method, reply, request, result, missing, found } = self;
        let result = result.into_value();
        let mut apart = DetachedTurns::new(translation.chain(), &[id.as_json().to_vec()]);
        let (method, mut result) = match (&reply, &request) {
            (Reply::Turns { before, limit }, _) => {
                ("fetchTurns", page_of_turns(found, before.as_deref(), *limit, &mut apart)?)
            }
            (Reply::Same, Some(request)) => {
                let outgoing_states;
                (outgoing_states, apart) = DetachedTurns::of_states(translation.chain(), found, &id, &result);
                (
                    method.as_str(),
                    with_states(translation, peer, &method, request, result, &missing, outgoing_states),
                )
            }
            (Reply::Same, None) => (method.as_str(), result),
        };
        let (chain, mut context) = translation.context("", &peer.client_id);
        chain.result_down(method, &mut result, &mut context);
        Ok((result, apart))
    }
}

/// Returns the result of a method that subscribes, with its states or actions translated, and
/// without the channels that the client did not ask for.
fn with_states(
    translation: &mut VersionTranslation,
    peer: &EdgeConnection,
    method: &str,
    request: &SubscribeRequest,
    mut result: Value,
    missing: &BTreeSet<String>,
    mut outgoing_states: Vec<OutgoingState>,
) -> Value {
    let replayed = replay(translation, peer, &result);
    if let (Some(actions), Value::Object(result)) = (replayed, &mut result) {
        result.insert("actions".to_owned(), json!(actions));
        result.insert("missing".to_owned(), json!(names_of_missing(translation, peer, request, missing)));
        return Value::Object(std::mem::take(result));
    }
    let (chain, mut context) = translation.context("", &peer.client_id);
    chain.shots_down(&mut outgoing_states, &mut context);
    let requested: BTreeSet<&String> = request.channels.iter().collect();
    outgoing_states.retain(|outgoing| requested.contains(&outgoing.channel));
    let snapshots: Vec<Value> = outgoing_states
        .into_iter()
        .map(|outgoing| {
            let resource = peer.root_down(&outgoing.resource);
            json!({ "resource": resource, "state": outgoing.state, "fromSeq": outgoing.from_seq })
        })
        .collect();
    match method {
        "subscribe" => match snapshots.into_iter().next() {
            Some(snapshot) => json!({ "snapshot": snapshot }),
            // The version has no state of this kind.
            None => json!({}),
        },
        "reconnect" => json!({ "type": "snapshot", "snapshots": Value::Array(snapshots) }),
        _ => {
            result["snapshots"] = Value::Array(snapshots);
            result["protocolVersion"] = peer.answer.clone();
            result
        }
    }
}

/// Returns the requested channels that do not exist, in the client's spelling. A name with several
/// meanings is missing only if all are.
fn names_of_missing(
    translation: &mut VersionTranslation,
    peer: &EdgeConnection,
    request: &SubscribeRequest,
    missing: &BTreeSet<String>,
) -> Vec<String> {
    let (gone, there): (Vec<&String>, Vec<&String>) =
        request.channels.iter().partition(|uri| missing.contains(*uri));
    let mut known: BTreeSet<String> =
        there.into_iter().map(|uri| client_name(translation, peer, uri)).collect();
    gone.into_iter()
        .map(|uri| client_name(translation, peer, uri))
        .filter(|name| known.insert(name.clone()))
        .collect()
}

/// Returns the translated actions of a replay; `None` if there are none, or one has no translation.
fn replay(
    translation: &mut VersionTranslation,
    peer: &EdgeConnection,
    result: &Value,
) -> Option<Vec<Object>> {
    let mut told = Vec::new();
    for envelope in result.get("actions")?.as_array()? {
        let envelope: Envelope = serde_json::from_value(envelope.clone()).ok()?;
        if !peer.dialect.can_replay(envelope.action["type"].as_str().unwrap_or_default()) {
            return None;
        }
        let all = translation.envelopes(envelope, true);
        told.extend(all.into_iter().filter(|(shown_on, _)| peer.is_shown(shown_on)).map(
            |(_, mut envelope)| {
                node::texts_in(&mut envelope, "channel").for_each(|it| *it = peer.root_down(it));
                envelope
            },
        ));
    }
    Some(told)
}

/// Returns a page of a chat's completed turns, oldest first.
fn page_of_turns(
    mut found: Vec<FoundState>,
    before: Option<&str>,
    limit: Option<usize>,
    apart: &mut DetachedTurns,
) -> Result<Value, RpcError> {
    let page_of = |ids: Vec<&str>| {
        let end = match before {
            None => ids.len(),
            Some(before) => {
                let at = ids.iter().position(|id| *id == before);
                at.ok_or_else(|| RpcError::invalid_params(format_args!("`before`: no turn `{before}`")))?
            }
        };
        Ok(limit.map_or(0, |limit| end.saturating_sub(limit))..end)
    };
    let (turns, has_more) = match found.first_mut().map(|found| &mut found.state) {
        Some(CoreState::Core(told)) => {
            let page = page_of(told.turns.iter().map(CompletedTurn::id).collect())?;
            let turns = apart.set(&told.channel, told.turns[page.clone()].to_vec());
            (turns.into_iter().collect(), page.start > 0)
        }
        Some(CoreState::Parsed(state)) => {
            let mut turns = match state.get_mut("turns").map(Value::take) {
                Some(Value::Array(turns)) => turns,
                _ => Vec::new(),
            };
            let page = page_of(turns.iter().map(|turn| turn["id"].as_str().unwrap_or_default()).collect())?;
            (turns.drain(page.clone()).collect(), page.start > 0)
        }
        None => (Vec::new(), false),
    };
    Ok(json!({ "turns": Value::Array(turns), "hasMore": has_more }))
}
