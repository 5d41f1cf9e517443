//! The answers to requests that the core was asked something else for.
//!
//! Owns: putting one answer together of all that the core said, states and replays included.
//! Never: asks for more: what is needed was asked for at once, so that nothing happens in between.

use std::collections::{BTreeSet, HashMap};

use serde_json::{json, Value};

use super::{message_of, Answered, Batch, Edges, Peer};
use crate::host::effects::ConnectionId;
use crate::versions::lane::{Envelope, Lane};
use crate::versions::names::Names;
use crate::versions::node::{self, Object};
use crate::versions::quirks::called_otherwise;
use crate::versions::step::{Reply, Shot};
use crate::versions::Line;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{error_line, result_line, sorted, to_json, Params};
use crate::wire::uris;

/// What is asked for by a method that subscribes.
struct Asked {
    /// The number of the request.
    number: u64,
    method: String,
    /// The channels, as the core names them.
    channels: Vec<String>,
    /// The channels that are asked for besides.
    besides: Vec<String>,
    /// What of that was given up again.
    given_up: BTreeSet<String>,
}

impl Edges {
    /// Takes one of the core's answers; when all of a request's are there, its client is answered.
    pub(super) fn hear_answer(
        &mut self,
        connection: ConnectionId,
        inner: u64,
        answer: Result<Answered, RpcError>,
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
        let answered = self.answer(connection, inner, &batch);
        let peer = self.peers.entry(connection).or_default();
        lines.push(Line::of(match answered {
            Ok(result) => result_line(&id, &sorted(result)),
            Err(mut error) => {
                if let Some(lane) = self.lanes.get_mut(&peer.dialect) {
                    let (chain, mut scene) = lane.scene("", &peer.client_id);
                    chain.error_down(&mut error, &mut scene);
                }
                error_line(Some(&id), &error)
            }
        }));
        lines.append(&mut batch.behind);
    }

    /// The answer to a client's request, made of the core's.
    fn answer(&mut self, connection: ConnectionId, inner: u64, batch: &Batch) -> Result<Value, RpcError> {
        let mut results = batch.answers.iter();
        let first = match results.next() {
            Some(Ok(answered)) => (read(answered), answered.states.as_slice()),
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(RpcError::internal()),
        };
        let rest: Vec<(Value, &[ChannelKind])> =
            results.flatten().map(|answered| (read(answered), answered.states.as_slice())).collect();
        let subscribes = matches!(batch.method.as_str(), "initialize" | "subscribe" | "reconnect");
        let fetches = matches!(batch.reply, Reply::Turns { .. });
        let mut result = if subscribes && !fetches {
            let summaries = summaries_in(&rest);
            let shots = shots_in(&first, &rest, &summaries);
            let mut meant = self.meant(connection, batch, &shots, &summaries)?;
            meant.number = inner;
            let peer = self.peers.get(&connection);
            let by_provider = peer.is_some_and(|peer| peer.quirks.sessions_by_provider);
            for uri in meant.channels.iter_mut().filter(|_| by_provider) {
                // It is called by its provider here, and was not told of before.
                let is_told = |uri: &str| shots.iter().any(|shot| shot.channel == uri);
                if let Some(other) = called_otherwise(uri).filter(|other| !is_told(uri) && is_told(other)) {
                    *uri = other;
                }
            }
            self.take_up(connection, &meant, first.0, shots)
        } else {
            first.0
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
        }
        let (chain, mut scene) = lane.scene("", &peer.client_id);
        chain.result_down(method, &mut result, &mut scene);
        Ok(result)
    }

    /// What is asked for, without what a client means something else by: a session of another provider, whose id
    /// is the same. That was taken for what is meant only before it was told of.
    ///
    /// # Errors
    /// When nothing else is asked for.
    fn meant(
        &mut self,
        connection: ConnectionId,
        batch: &Batch,
        shots: &[Shot],
        summaries: &HashMap<String, Object>,
    ) -> Result<Asked, RpcError> {
        let mut asked = Asked {
            number: 0,
            method: batch.method.clone(),
            channels: batch.asked.clone(),
            besides: batch.besides.clone(),
            given_up: batch.given_up.clone(),
        };
        let peer = self.peers.entry(connection).or_default();
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return Ok(asked) };
        if peer.dialect.names_channels() {
            return Ok(asked);
        }
        let told = shots.iter().map(|shot| (shot.channel.as_str(), &shot.state));
        let told = told.chain(summaries.iter().map(|(uri, summary)| (uri.as_str(), summary)));
        let told: Vec<_> =
            told.filter_map(|(uri, it)| Some((uri, Some(node::text(it, "provider")?)))).collect();
        lane.names.meet(told.into_iter());
        let is_meant = |uri: &String, names: &mut Names| {
            uri == uris::ROOT || batch.spelled.contains(uri) || batch.spelled.contains(&names.down(uri, None))
        };
        let (channels, strange): (Vec<String>, Vec<String>) =
            asked.channels.into_iter().partition(|uri| is_meant(uri, &mut lane.names));
        asked.channels = channels;
        for session in &strange {
            let chat = uris::default_chat_of(session);
            asked.besides.retain(|uri| *uri != chat);
            for uri in [session, &chat] {
                if !peer.follows(uri) {
                    let params = Params::from_json(to_json(&json!({ "channel": uri })));
                    let message = message_of(None, Method::Unsubscribe.name().to_owned(), params);
                    self.later.push_back((connection, message));
                }
            }
        }
        match (batch.method.as_str(), batch.spelled.first()) {
            ("subscribe", Some(uri)) if !strange.is_empty() => Err(RpcError::channel_not_found(uri)),
            _ => Ok(asked),
        }
    }

    /// The result of a method that subscribes: its states or actions translated, what was asked for besides
    /// taken out.
    fn take_up(
        &mut self,
        connection: ConnectionId,
        asked: &Asked,
        first: Value,
        mut shots: Vec<Shot>,
    ) -> Value {
        let peer = self.peers.entry(connection).or_default();
        let Some(lane) = self.lanes.get_mut(&peer.dialect) else { return first };
        // What could not be replayed was answered with the states at once, and asked for besides.
        let mut taken = BTreeSet::new();
        shots.retain(|shot| taken.insert(shot.channel.clone()));
        lane.learn(&shots);
        if asked.method != "subscribe" {
            peer.open = true;
            // What was asked for behind it may have been answered before it.
            peer.shown.retain(|_, number| *number > asked.number);
            peer.shadows.retain(|_, number| *number > asked.number);
            if peer.dialect.notifies_everybody() {
                peer.shadows.insert(uris::ROOT.to_owned(), asked.number);
            }
        }
        let missing: BTreeSet<&str> = first
            .get("missing")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let there = |uri: &&String| !missing.contains(uri.as_str()) && !asked.given_up.contains(*uri);
        let with_number = |uri: &String| (uri.clone(), asked.number);
        peer.shown.extend(asked.channels.iter().filter(there).map(with_number));
        peer.shadows.extend(asked.besides.iter().filter(there).map(with_number));
        let mut result = first.clone();
        let replayed = replay(lane, peer, &first);
        if let (Some(actions), Value::Object(result)) = (&replayed, &mut result) {
            result.insert("actions".to_owned(), json!(actions));
            result.insert("missing".to_owned(), json!(names_of_missing(lane, peer, asked, &missing)));
            return Value::Object(std::mem::take(result));
        }
        let (chain, mut scene) = lane.scene("", &peer.client_id);
        chain.shots_down(&mut shots, &mut scene);
        shots.retain(|shot| asked.channels.contains(&shot.channel));
        let snapshots: Vec<Value> = shots
            .into_iter()
            .map(|shot| {
                let resource = peer.root_down(&shot.resource);
                json!({ "resource": resource, "state": shot.state, "fromSeq": shot.from_seq })
            })
            .collect();
        match asked.method.as_str() {
            "subscribe" => match snapshots.into_iter().next() {
                Some(snapshot) => json!({ "snapshot": snapshot }),
                // Its version has no state of this kind.
                None => json!({}),
            },
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
pub(super) fn lane_name(lane: &mut Lane, peer: &Peer, uri: &str) -> String {
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
fn names_of_missing(lane: &mut Lane, peer: &Peer, asked: &Asked, missing: &BTreeSet<&str>) -> Vec<String> {
    let (gone, there): (Vec<&String>, Vec<&String>) =
        asked.channels.iter().partition(|uri| missing.contains(uri.as_str()));
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

fn read(answered: &Answered) -> Value {
    serde_json::from_slice(&answered.result).unwrap_or_default()
}

/// The summaries of sessions that are among the core's answers.
fn summaries_in(answers: &[(Value, &[ChannelKind])]) -> HashMap<String, Object> {
    let summaries = answers.iter().filter_map(|(result, _)| result.get("items")?.as_array()).flatten();
    summaries
        .filter_map(Value::as_object)
        .filter_map(|summary| Some((node::text(summary, "resource")?.to_owned(), summary.clone())))
        .collect()
}

/// The states that are among the core's answers.
fn shots_in(
    first: &(Value, &[ChannelKind]),
    rest: &[(Value, &[ChannelKind])],
    summaries: &HashMap<String, Object>,
) -> Vec<Shot> {
    let snapshots = std::iter::once(first).chain(rest).flat_map(|(result, kinds)| {
        let several = result.get("snapshots").and_then(Value::as_array);
        several.into_iter().flatten().chain(result.get("snapshot")).zip(*kinds)
    });
    snapshots.filter_map(|(snapshot, kind)| shot_of(snapshot, *kind, summaries)).collect()
}

fn shot_of(snapshot: &Value, kind: ChannelKind, summaries: &HashMap<String, Object>) -> Option<Shot> {
    let resource = snapshot.get("resource")?.as_str()?.to_owned();
    Some(Shot {
        kind,
        summary: summaries.get(&resource).cloned(),
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
