//! Messages of the core, on their way to a connection.
//!
//! Owns: the lines that a frame becomes, and the echo of a client's action in its own words.
//! Never: translates an action again for another connection; the version's translation has it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{json, Value};

use super::{CoreAnswer, DeferredMessage, EdgeConnection, Edges, RequestBatch};
use crate::host::effects::{ConnectionId, Frame, LargeStates, LoadedTurns};
use crate::versions::node::{self, Object};
use crate::versions::quirks::Quirks;
use crate::versions::step::OutgoingNotice;
use crate::versions::translation::{self, Origin, VersionTranslation};
use crate::versions::Outgoing;
use crate::wire::action_lines::split_lines;
use crate::wire::methods::Method;
use crate::wire::rpc::{error_line, notification_line, request_line, result_line, sorted, RequestId};
use crate::wire::uris;

impl Edges {
    /// Translates a frame to lines, all of which are written now.
    pub fn down(&mut self, connection: ConnectionId, frame: &Frame, lines: &mut Vec<Bytes>) {
        let mut outgoing = Vec::new();
        self.translate_frame(connection, frame, &mut outgoing);
        lines.extend(
            outgoing
                .into_iter()
                .map(Outgoing::now)
                .flat_map(|outgoing| split_lines(&outgoing).collect::<Vec<_>>()),
        );
    }

    /// Translates a frame to messages, in order. Large ones are not written.
    pub fn translate_frame(&mut self, connection: ConnectionId, frame: &Frame, outgoing: &mut Vec<Outgoing>) {
        let before = outgoing.len();
        self.translate_down(connection, frame, outgoing);
        let has = self.quirks_of(connection);
        if has.sessions_by_provider {
            self.spelling.learn(frame);
        }
        self.apply_quirks(has, &mut outgoing[before..]);
    }

    /// Translates an answer with large states.
    pub fn translate_states(
        &mut self,
        connection: ConnectionId,
        id: RequestId,
        states: LargeStates,
        outgoing: &mut Vec<Outgoing>,
    ) {
        let before = outgoing.len();
        if let Some(inner) = id.inner_number() {
            self.receive_answer(connection, inner, Ok(CoreAnswer::Large(Box::new(states))), outgoing);
        } else {
            let peer = self.peers.entry(connection).or_default();
            peer.open |= matches!(states.method, Method::Initialize | Method::Reconnect);
            outgoing.push(Outgoing::Unwritten(Box::new(DeferredMessage::plain(
                id,
                states,
                peer.answer.clone(),
            ))));
        }
        self.apply_quirks(self.quirks_of(connection), &mut outgoing[before..]);
    }

    /// Translates loaded turns, which take long to write.
    pub fn translate_turns(
        &mut self,
        connection: ConnectionId,
        turns: LoadedTurns,
        outgoing: &mut Vec<Outgoing>,
    ) {
        let before = outgoing.len();
        let peer = self.peers.entry(connection).or_default();
        if peer.is_plain() {
            outgoing.push(Outgoing::Unwritten(Box::new(DeferredMessage::turns(turns))));
        } else if let Some(translation) = self.translations.get_mut(&peer.dialect) {
            translation.load(&turns);
            let unwritten = DeferredMessage::translated_turns(turns, translation.detach());
            behind_return(peer).unwrap_or(outgoing).push(Outgoing::Unwritten(Box::new(unwritten)));
        }
        self.apply_quirks(self.quirks_of(connection), &mut outgoing[before..]);
    }

    fn quirks_of(&self, connection: ConnectionId) -> Quirks {
        self.peers.get(&connection).map(|peer| peer.quirks).unwrap_or_default()
    }

    fn apply_quirks(&mut self, has: Quirks, outgoing: &mut [Outgoing]) {
        if !has.remote_files && !has.sessions_by_provider {
            return;
        }
        for outgoing in outgoing {
            match outgoing {
                Outgoing::Line(line) => has.apply(line, &self.spelling),
                Outgoing::Deltas(run, _) => has.apply_to_deltas(run, &self.spelling),
                Outgoing::Unwritten(unwritten) => unwritten.apply_quirks(has, &mut self.spelling),
            }
        }
    }

    fn translate_down(&mut self, connection: ConnectionId, frame: &Frame, outgoing: &mut Vec<Outgoing>) {
        let peer = self.peers.entry(connection).or_default();
        peer.begins.take_if(|id| frame.answers() == Some(id));
        let inner = match frame {
            Frame::Result { id, .. } | Frame::Error { id: Some(id), .. } => id.inner_number(),
            _ => None,
        };
        if let Some(inner) = inner {
            let answer = match frame {
                Frame::Result { result, states, .. } => {
                    Ok(CoreAnswer::Written { result: result.clone(), states: states.clone() })
                }
                Frame::Error { error, .. } => Err(error.clone()),
                _ => return,
            };
            return self.receive_answer(connection, inner, answer, outgoing);
        }
        if matches!(frame, Frame::Result { method: Method::Initialize | Method::Reconnect, .. }) {
            peer.open = true;
        }
        if peer.is_plain() {
            outgoing.push(plain(frame, &peer.answer));
            return;
        }
        let Some(translation) = self.translations.get_mut(&peer.dialect) else { return };
        match frame {
            Frame::Deltas(run, delay_ms) => {
                let spoken = translation.translate_deltas(run);
                if spoken.same_on.as_ref().is_some_and(|channel| peer.is_shown(channel)) {
                    outgoing.push(Outgoing::Deltas(run.clone(), delay_ms.map(Duration::from_millis)));
                }
                let visible = spoken.lines.iter().filter(|line| peer.is_shown(&line.shown_on));
                outgoing.extend(visible.map(|line| Outgoing::Line(line.line.clone())));
            }
            Frame::Action(action) => {
                let spoken = translation.translate_action(action);
                let before = outgoing.len();
                for line in spoken.lines.iter().filter(|line| peer.is_shown(&line.shown_on)) {
                    outgoing.push(Outgoing::Line(with_root(&line.line, &line.shown_on, peer.root())));
                }
                let own = spoken.origin.clone().filter(|origin| origin.client_id == peer.client_id);
                if let Some(origin) = own {
                    let sent = take_client_action(&mut peer.unanswered_actions, origin.client_seq);
                    if let (Some(sent), true) = (sent, outgoing.len() == before) {
                        let server_seq = action.server_seq;
                        outgoing.push(echo(translation, peer.root(), sent, server_seq, &origin, None));
                    }
                }
            }
            Frame::Answer(line) => {
                let mut alone = Vec::new();
                answer_alone(translation, peer, line, &mut alone);
                behind_return(peer).unwrap_or(outgoing).append(&mut alone);
            }
            Frame::Notification { method, params } => {
                let Ok(mut params) = serde_json::from_slice::<Object>(params) else { return };
                if let Some(Value::String(channel)) = params.get_mut("channel") {
                    *channel = peer.root_down(channel);
                }
                let notice = OutgoingNotice { method: (*method).to_owned(), params };
                let (chain, mut context) = translation.context("", &peer.client_id);
                if let Some(notice) = chain.notice_down(notice, &mut context) {
                    let line = notification_line(&notice.method, &sorted(notice.params));
                    behind_return(peer).unwrap_or(outgoing).push(line.into());
                }
            }
            Frame::Error { id, error } => {
                let mut error = error.clone();
                let (chain, mut context) = translation.context("", &peer.client_id);
                chain.error_down(&mut error, &mut context);
                outgoing.push(error_line(id.as_ref(), &error).into());
            }
            // Requests are the same in all versions whose clients answer them.
            Frame::Result { .. } | Frame::Request { .. } => outgoing.push(plain(frame, &peer.answer)),
        }
    }
}

/// Returns the buffer for messages before the last answer to a `reconnect`, if one is partly in.
fn behind_return(peer: &mut EdgeConnection) -> Option<&mut Vec<Outgoing>> {
    let returns = |batch: &&mut RequestBatch| batch.method == "reconnect" && !batch.answers.is_empty();
    peer.batches.values_mut().find(returns).map(|batch| &mut batch.queued)
}

fn plain(frame: &Frame, version: &Value) -> Outgoing {
    let line = match frame {
        Frame::Action(action) => action.line.clone(),
        Frame::Deltas(run, delay_ms) => {
            return Outgoing::Deltas(run.clone(), delay_ms.map(Duration::from_millis));
        }
        Frame::Answer(line) => line.clone(),
        Frame::Request { number, method, params } => request_line(*number, method, params),
        Frame::Notification { method, params } => notification_line(method, params),
        Frame::Error { id, error } => error_line(id.as_ref(), error),
        Frame::Result { id, method: Method::Initialize, result, .. } => {
            let mut result: Value = serde_json::from_slice(result).unwrap_or_default();
            result["protocolVersion"] = version.clone();
            result_line(id, &sorted(result))
        }
        Frame::Result { id, result, .. } => result_line(id, result),
    };
    line.into()
}

/// Translates a message for one client: the outcome of its action, or turns that it asked for.
fn answer_alone(
    translation: &mut VersionTranslation,
    peer: &mut EdgeConnection,
    line: &Bytes,
    outgoing: &mut Vec<Outgoing>,
) {
    let Some(envelope) = translation::read(line) else { return };
    let (server_seq, origin) = (envelope.server_seq, envelope.origin.clone());
    let sent =
        origin.as_ref().and_then(|own| take_client_action(&mut peer.unanswered_actions, own.client_seq));
    let before = outgoing.len();
    let mut reason = envelope.rejection_reason.clone();
    // A refused action can be any value; it goes back unchanged.
    if sent.is_none() || reason.is_none() {
        // Only loaded turns have no origin.
        if origin.is_none() {
            translation.apply(line);
        }
        if let Some(Value::Object(action)) = sent.as_ref().and_then(|sent| sent.get("action")) {
            let (chain, context) = translation.context(&envelope.channel, &peer.client_id);
            reason = chain.refusal(action, &context);
        }
        if sent.is_none() || reason.is_none() {
            for (_, mut envelope) in translation.envelopes(envelope, false) {
                node::texts_in(&mut envelope, "channel").for_each(|it| *it = peer.root_down(it));
                outgoing.push(notification_line("action", &sorted(envelope)).into());
            }
        }
    }
    if let (Some(origin), Some(sent), true) = (origin, sent, outgoing.len() == before) {
        outgoing.push(echo(translation, peer.root(), sent, server_seq, &origin, reason.as_deref()));
    }
}

/// Replaces the root channel's name in a translated action by the client's.
fn with_root(line: &Bytes, shown_on: &str, root: &str) -> Bytes {
    if shown_on != uris::ROOT || root == uris::ROOT {
        return line.clone();
    }
    let Ok(mut message) = serde_json::from_slice::<Value>(line) else { return line.clone() };
    let Some(Value::String(channel)) = message.pointer_mut("/params/channel") else { return line.clone() };
    *channel = root.to_owned();
    notification_line("action", &sorted(message["params"].take()))
}

/// Makes the outcome of a client's action, in the client's own words.
fn echo(
    translation: &mut VersionTranslation,
    root: &str,
    sent: Object,
    server_seq: u64,
    origin: &Origin,
    reason: Option<&str>,
) -> Outgoing {
    let (channel, action) = (sent.get("channel"), sent.get("action"));
    let mut envelope = node::members(json!({ "serverSeq": server_seq, "origin": origin }));
    envelope.extend(action.map(|action| ("action".to_owned(), action.clone())));
    envelope.extend(channel.map(|channel| ("channel".to_owned(), channel.clone())));
    node::texts_in(&mut envelope, "channel")
        .filter(|it| uris::is_root(it))
        .for_each(|it| *it = root.to_owned());
    envelope.extend(reason.map(|reason| ("rejectionReason".to_owned(), reason.into())));
    let (chain, mut context) = translation.context("", &origin.client_id);
    notification_line("action", &sorted(translation::frame(chain, envelope, false, &mut context))).into()
}

pub(super) fn take_client_action(sent: &mut VecDeque<(i64, Object)>, client_seq: i64) -> Option<Object> {
    let at = sent.iter().position(|(seq, _)| *seq == client_seq)?;
    sent.remove(at).map(|(_, params)| params)
}
