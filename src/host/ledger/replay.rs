//! Answers to clients that subscribe or reconnect: states, and replays of missed actions.
//!
//! Owns: which states may be sent, and the envelopes of a replay, from memory and from the store.
//! Never: decides which channels a client may access.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::common::JsonObject;
use serde_json::json;

use crate::host::effects::{ActionLine, ChannelId, ChannelSnapshot, LargeStates, Past};
use crate::host::ledger::contents::{envelope_for_clients, prepare_state_for_clients};
use crate::host::ledger::windows::by_channel;
use crate::host::ledger::Ledger;
use crate::state::steering::MEMBER;
use crate::wire::action_lines::envelope_of;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;

impl Ledger {
    /// Returns `-32603` with the reason if part of a channel's state is not committed. Such a state
    /// must not be sent: it would be unknown after a restart.
    pub(in crate::host) fn check_committed(&self, target: ChannelId) -> Result<(), RpcError> {
        match self.failing() {
            Some(failing)
                if self.channels.get(target).is_some_and(|channel| channel.last_seq > failing.safe) =>
            {
                Err(RpcError::unavailable(&failing.reason))
            }
            _ => Ok(()),
        }
    }

    /// Runs [`Self::check_committed`] for those of the channels that exist.
    pub(in crate::host) fn check_all_committed(&self, uris: &[String]) -> Result<(), RpcError> {
        uris.iter().try_for_each(|uri| match self.find(uri) {
            Some(target) => self.check_committed(target),
            // It is not missing: its newest state is not stored yet.
            None if self.failing.is_some() && self.why_unreadable(uri).is_some() => Err(self.not_found(uri)),
            None => Ok(()),
        })
    }

    /// Returns the state of a channel; for a chat, with its completed turns from `first_turn` on.
    fn channel_snapshot(&self, target: ChannelId, first_turn: usize) -> Option<ChannelSnapshot> {
        let (mut state, turns) = self.channels.state(target, first_turn)?;
        prepare_state_for_clients(&mut state);
        let channel = self.channels.get(target)?.uri.clone();
        let beside = self.members_beside(target);
        let from_seq = i64::try_from(self.committed_head()).unwrap_or(i64::MAX);
        Some(ChannelSnapshot { kind: target.kind, channel, state, beside, turns: turns.to_vec(), from_seq })
    }

    /// Returns the members of a channel's state that only 1.1.0 has.
    fn members_beside(&self, target: ChannelId) -> JsonObject {
        let chat = target.chat().filter(|_| self.next.is_some());
        let chat = chat.and_then(|key| self.channels.chats.known(key));
        let listed = chat.map(|chat| chat.conversation.steering_messages()).unwrap_or_default();
        let member = (!listed.is_empty()).then(|| (MEMBER.to_owned(), json!(listed)));
        member.into_iter().collect()
    }

    /// Returns the states of channels in the form in which `method` answers them; chats have their
    /// completed turns from `first_turn` on.
    pub(in crate::host) fn states_of(
        &self,
        method: Method,
        targets: &[ChannelId],
        first_turn: usize,
    ) -> LargeStates {
        let states: Vec<_> =
            targets.iter().filter_map(|&target| self.channel_snapshot(target, first_turn)).collect();
        let chats = targets.iter().filter_map(|target| self.channels.chats.known(target.chat()?));
        let running: usize = chats.map(|chat| chat.conversation.turn_bytes()).sum();
        let bytes = running + states.iter().map(ChannelSnapshot::turns_bytes).sum::<usize>();
        LargeStates { method, members: JsonObject::default(), states, bytes }
    }

    /// Returns `head` followed by the envelopes of the channels after `cursor`, as the content of a
    /// JSON array; `None` if some are unavailable. `past` holds stored actions for a cursor older
    /// than memory.
    pub(in crate::host) fn replay(
        &self,
        head: &[u8],
        cursor: u64,
        past: Option<Past>,
        wanted: &[ChannelId],
    ) -> Option<Vec<u8>> {
        let wanted: BTreeSet<_> = wanted.iter().collect();
        let floor = self.log.floor();
        let past = if cursor < floor {
            let past = past?;
            let all_written = wanted.iter().all(|target| self.channels.is_persistent(**target));
            if !all_written || !self.continues_in_memory(&past) {
                return None;
            }
            past.actions
        } else {
            Vec::new()
        };
        let old = past.iter().filter(|(_, line)| line.server_seq <= floor);
        let actions = old.chain(self.log.since(cursor.max(floor))?);
        let actions: Vec<_> = actions
            .filter(|(target, _)| wanted.contains(target))
            .map(|(target, line)| (*target, line))
            .collect();
        let mut loadings = BTreeMap::new();
        for (channel, lines) in by_channel(&actions) {
            let loading = self.channels.loading_in_replay(channel, &lines).ok()?;
            loadings.extend(loading.map(|loading| (loading.before, loading.envelope)));
        }
        let bytes = actions.iter().map(|(_, line)| line.line.len()).sum::<usize>();
        let mut replayed = Vec::with_capacity(head.len() + bytes);
        replayed.extend_from_slice(head);
        let mut add = |envelope: &[u8]| {
            replayed.extend_from_slice(if replayed.len() == head.len() { b"" } else { b"," });
            replayed.extend_from_slice(envelope);
        };
        for (_, line) in actions {
            if let Some(loading) = loadings.get(&line.server_seq) {
                add(loading);
            }
            add(&envelope_for_clients(line, envelope_of(&line.line)));
        }
        Some(replayed)
    }

    /// Returns the actions in memory after `cursor`, with their channels.
    pub(in crate::host) fn actions_since(
        &self,
        cursor: u64,
    ) -> impl Iterator<Item = &(ChannelId, ActionLine)> + '_ {
        self.log.since(cursor.max(self.log.floor())).into_iter().flatten()
    }

    /// Returns the sequence number before that of the oldest action in memory.
    pub(in crate::host) fn floor(&self) -> u64 {
        self.log.floor()
    }

    /// Returns whether actions from the store continue without a gap in memory: every action that
    /// memory has dropped must have reached the store.
    pub(in crate::host) fn continues_in_memory(&self, past: &Past) -> bool {
        let floor = self.log.floor();
        floor == self.first_head || past.actions.iter().any(|(_, line)| line.server_seq == floor)
    }
}
