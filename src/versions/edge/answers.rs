//! Answers to requests for which the core received others.
//!
//! Owns: making one answer of all the core's, with their states and replays.
//! Never: asks the core for more. All requests go out at once, so that nothing happens in between.

use std::collections::{BTreeSet, HashMap};

use ahp_types::errors::ahp_error_codes::SESSION_NOT_FOUND;
use serde_json::Value;

use super::deferred::{AnswerParts, ReceivedAnswer};
use super::{is_chat_of_any, unsubscribe, CoreAnswer, DeferredMessage, EdgeConnection, Edges, RequestBatch};
use crate::host::effects::ConnectionId;
use crate::versions::names::SessionNames;
use crate::versions::node::{self, Object};
use crate::versions::step::Reply;
use crate::versions::translation::{FoundState, VersionTranslation};
use crate::versions::Outgoing;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::error_line;
use crate::wire::uris;

/// Channels requested by a method that subscribes.
#[derive(Debug, Default)]
pub(super) struct SubscribeRequest {
    number: u64,
    pub(super) channels: Vec<String>,
    implied: Vec<String>,
    unsubscribed: BTreeSet<String>,
}

impl SubscribeRequest {
    /// Replaces other names of channels by the core's.
    fn rename(&mut self, names: &HashMap<String, String>) {
        let core_name = |uri: String| names.get(&uri).cloned().unwrap_or(uri);
        for list in [&mut self.channels, &mut self.implied] {
            let mut seen = BTreeSet::new();
            let named = std::mem::take(list).into_iter().map(core_name);
            *list = named.filter(|uri| seen.insert(uri.clone())).collect();
        }
        self.unsubscribed = std::mem::take(&mut self.unsubscribed).into_iter().map(core_name).collect();
    }
}

impl RequestBatch {
    /// Returns the answers to the subscriptions in addition, each with its channel: `subscribe` has
    /// one channel, whereas other methods list them.
    fn implied_answers<'a>(
        &self,
        answers: &'a [Result<CoreAnswer, RpcError>],
    ) -> impl Iterator<Item = (&String, &'a Result<CoreAnswer, RpcError>)> + use<'a, '_> {
        let implied: &[String] =
            if self.method == Method::Subscribe.name() { &self.implied[..] } else { &[] };
        implied.iter().zip(answers.iter().skip(1))
    }

    /// Returns the error of the whole request. A channel in addition may be missing, but one that
    /// the core cannot show now is no empty one.
    fn error_in(&self, answers: &[Result<CoreAnswer, RpcError>]) -> Option<RpcError> {
        let implied = self.implied_answers(answers).filter(|(_, answer)| !is_missing(answer));
        let mut all = answers.iter().take(1).chain(implied.map(|(_, answer)| answer));
        all.find_map(|answer| answer.as_ref().err().cloned())
    }

    /// Removes the channels in addition that do not exist.
    fn drop_missing(&mut self, answers: &[Result<CoreAnswer, RpcError>]) {
        let missing = self.implied_answers(answers).filter(|(_, answer)| is_missing(answer));
        let missing: BTreeSet<String> = missing.map(|(uri, _)| uri.clone()).collect();
        self.implied.retain(|uri| !missing.contains(uri));
    }
}

fn is_missing(answer: &Result<CoreAnswer, RpcError>) -> bool {
    answer.as_ref().is_err_and(|error| error.code == SESSION_NOT_FOUND)
}

impl Edges {
    /// Adds an answer of the core; answers the client once all of its request's have arrived.
    pub(super) fn receive_answer(
        &mut self,
        connection: ConnectionId,
        inner: u64,
        answer: Result<CoreAnswer, RpcError>,
        outgoing: &mut Vec<Outgoing>,
    ) {
        let peer = self.peers.entry(connection).or_default();
        let Some(batch) = peer.batches.get_mut(&inner) else { return };
        batch.answers.push(answer);
        if batch.answers.len() < batch.expected {
            return;
        }
        let Some(mut batch) = peer.batches.remove(&inner) else { return };
        let (id, mut queued) = (batch.id.clone(), std::mem::take(&mut batch.queued));
        outgoing.push(self.answer(connection, inner, batch).unwrap_or_else(|mut error| {
            let peer = self.peers.entry(connection).or_default();
            if let Some(translation) = self.translations.get_mut(&peer.dialect) {
                let (chain, mut context) = translation.context("", &peer.client_id);
                chain.error_down(&mut error, &mut context);
            }
            error_line(Some(&id), &error).into()
        }));
        outgoing.append(&mut queued);
    }

    /// Makes the answer to a client's request. Its effects on later messages apply at once.
    fn answer(
        &mut self,
        connection: ConnectionId,
        inner: u64,
        mut batch: RequestBatch,
    ) -> Result<Outgoing, RpcError> {
        let answers = std::mem::take(&mut batch.answers);
        if let Some(error) = batch.error_in(&answers) {
            self.undo(connection, &batch, answers);
            return Err(error);
        }
        batch.drop_missing(&answers);
        let mut answers = answers.into_iter();
        let Some(first) = answers.next() else {
            return Err(RpcError::internal(format_args!("`{}` has no answer of the core's", batch.method)));
        };
        let mut first = ReceivedAnswer::of(first?);
        let rest = answers.flatten().map(ReceivedAnswer::of);
        let mut rest: Vec<ReceivedAnswer> = rest.collect();
        let large_bytes = first.large_bytes + rest.iter().map(|heard| heard.large_bytes).sum::<usize>();
        let subscribes = matches!(batch.method.as_str(), "initialize" | "subscribe" | "reconnect");
        let fetches = matches!(batch.reply, Reply::Turns { .. });
        let mut summaries = summaries_in(&rest);
        let mut found = std::mem::take(&mut first.found);
        found.extend(rest.iter_mut().flat_map(|heard| std::mem::take(&mut heard.found)));
        let missing = if subscribes { first.missing() } else { BTreeSet::new() };
        let mut request = None;
        if subscribes && !fetches {
            let mut meant = self.meant(connection, inner, &batch, &found, &summaries)?;
            let names: HashMap<String, String> = rest.iter().flat_map(ReceivedAnswer::names).collect();
            meant.rename(&names);
            for found in &mut found {
                found.summary = summaries.remove(&found.channel);
            }
            self.take_up(connection, &batch.method, &meant, &missing, &mut found);
            let peer = self.peers.entry(connection).or_default();
            peer.note_aliases(names);
            if batch.method != "subscribe" {
                self.sweep();
            }
            request = Some(meant);
        }
        let RequestBatch { id, method, reply, .. } = batch;
        let listed = first.listed(&method);
        let parts = AnswerParts { id, method, reply, request, result: first.result, missing, found };
        let peer = self.peers.entry(connection).or_default();
        let Some(translation) = self.translations.get_mut(&peer.dialect) else {
            let version = peer.dialect.name();
            return Err(RpcError::internal(format_args!("there is no translation to version {version}")));
        };
        translation
            .names
            .learn_sessions(listed.iter().map(|(uri, provider)| (uri.as_str(), Some(provider.as_str()))));
        Ok(if large_bytes > 0 {
            Outgoing::Unwritten(Box::new(DeferredMessage::translated(
                parts,
                large_bytes,
                listed,
                translation.detach(),
                peer.apart(),
            )))
        } else {
            parts.write(translation, peer).into_text().into()
        })
    }

    /// Ends the subscriptions that the core has begun for a failed `subscribe`, unless the client
    /// has them by another request.
    fn undo(
        &mut self,
        connection: ConnectionId,
        batch: &RequestBatch,
        answers: Vec<Result<CoreAnswer, RpcError>>,
    ) {
        if batch.method != Method::Subscribe.name() {
            return;
        }
        let channels = batch.requested.iter().chain(&batch.implied).zip(&answers);
        let begun: Vec<&String> = channels.filter(|(_, answer)| answer.is_ok()).map(|(uri, _)| uri).collect();
        let heard = answers.into_iter().flatten().map(ReceivedAnswer::of);
        let names: HashMap<String, String> = heard.flat_map(|heard| heard.names()).collect();
        let peer = self.peers.entry(connection).or_default();
        for uri in begun.into_iter().filter(|uri| !peer.follows(names.get(*uri).unwrap_or(uri))) {
            self.follow_ups.push_back((connection, unsubscribe(uri)));
        }
    }

    /// Returns the requested channels without sessions of another provider that have the same id:
    /// until a session's name is known, both are requested.
    ///
    /// # Errors
    /// When no channel remains of a `subscribe`.
    fn meant(
        &mut self,
        connection: ConnectionId,
        inner: u64,
        batch: &RequestBatch,
        found: &[FoundState],
        summaries: &HashMap<String, Object>,
    ) -> Result<SubscribeRequest, RpcError> {
        let mut request = SubscribeRequest {
            number: inner,
            channels: batch.requested.clone(),
            implied: batch.implied.clone(),
            unsubscribed: batch.unsubscribed.clone(),
        };
        let peer = self.peers.entry(connection).or_default();
        let Some(translation) = self.translations.get_mut(&peer.dialect) else { return Ok(request) };
        if peer.dialect.names_channels() {
            return Ok(request);
        }
        let outgoing = found.iter().map(|found| (found.channel.as_str(), found.provider()));
        let listed = summaries.iter().map(|(uri, summary)| (uri.as_str(), node::text(summary, "provider")));
        let outgoing: Vec<_> = outgoing.chain(listed).filter(|(_, provider)| provider.is_some()).collect();
        translation.names.learn_sessions(outgoing.into_iter());
        let client_names: BTreeSet<&String> = batch.client_names.iter().collect();
        let is_meant = |uri: &String, names: &mut SessionNames| {
            uri == uris::ROOT || client_names.contains(uri) || client_names.contains(&names.down(uri, None))
        };
        let (channels, strange): (Vec<String>, Vec<String>) =
            request.channels.into_iter().partition(|uri| is_meant(uri, &mut translation.names));
        request.channels = channels;
        let strange_chats: BTreeSet<String> =
            strange.iter().map(|session| uris::default_chat_of(session)).collect();
        request.implied.retain(|uri| !strange_chats.contains(uri));
        for uri in strange.iter().chain(&strange_chats) {
            if !peer.follows(uri) {
                self.follow_ups.push_back((connection, unsubscribe(uri)));
            }
        }
        match (batch.method.as_str(), batch.client_names.first()) {
            ("subscribe", Some(uri)) if !strange.is_empty() => Err(RpcError::channel_not_found(uri)),
            _ => Ok(request),
        }
    }

    /// Applies the answer to a method that subscribes, with its states.
    fn take_up(
        &mut self,
        connection: ConnectionId,
        method: &str,
        request: &SubscribeRequest,
        missing: &BTreeSet<String>,
        found: &mut Vec<FoundState>,
    ) {
        let peer = self.peers.entry(connection).or_default();
        let Some(translation) = self.translations.get_mut(&peer.dialect) else { return };
        // States that answer a `reconnect` are repeated by the preview.
        let mut taken = BTreeSet::new();
        found.retain(|found| taken.insert(found.channel.clone()));
        translation.note_states(found);
        if method != "subscribe" {
            peer.open = true;
            // A later request may have been answered before this one.
            peer.subscribed.retain(|_, number| *number > request.number);
            peer.implied.retain(|_, number| *number > request.number);
            if peer.dialect.notifies_everybody() {
                peer.implied.insert(uris::ROOT.to_owned(), request.number);
            }
        }
        let with_number = |uri: &String| (uri.clone(), request.number);
        let channels = request.channels.iter().filter(|uri| !request.unsubscribed.contains(*uri));
        let implied = request.implied.iter().filter(|uri| !is_chat_of_any(uri, &request.unsubscribed));
        peer.subscribed.extend(channels.filter(|uri| !missing.contains(*uri)).map(with_number));
        peer.implied.extend(implied.filter(|uri| !missing.contains(*uri)).map(with_number));
    }
}

pub(super) fn client_name(translation: &mut VersionTranslation, peer: &EdgeConnection, uri: &str) -> String {
    if uri == uris::ROOT || peer.dialect.names_channels() {
        peer.root_down(uri)
    } else {
        translation.names.down(uri, None)
    }
}

fn summaries_in(answers: &[ReceivedAnswer]) -> HashMap<String, Object> {
    let summaries = answers.iter().filter_map(|heard| heard.value()?.get("items")?.as_array()).flatten();
    summaries
        .filter_map(Value::as_object)
        .filter_map(|summary| Some((node::text(summary, "resource")?.to_owned(), summary.clone())))
        .collect()
}
