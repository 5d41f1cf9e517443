//! Channels that a client follows, and their states as it holds them.
//!
//! Owns: which channels a connection is subscribed to, by what the client has said; the mirrors;
//! the numbers of actions; and the law that nothing comes from another channel.
//! Never: sends or receives a message.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::state::{Snapshot, SnapshotState};
use memchr::memmem;
use serde_json::Value;

use super::client::quoted;
use super::mirror::{check_equal, without_times, ChannelMirror};
use super::stop::{broken, must, Judged};

/// Channels that a client follows.
#[derive(Debug)]
pub struct FollowedChannels {
    /// Mirrors of the channels that it is subscribed to.
    pub mirrors: BTreeMap<String, ChannelMirror>,
    /// Highest number of an action or snapshot.
    pub head: i64,
    /// Actions of others that were new to this connection, by their numbers.
    pub actions: BTreeMap<i64, Value>,
    /// True if the host speaks the version of the reducers: others set times differently.
    has_times: bool,
    /// Number of the last action on this connection.
    last: i64,
    /// Channels whose messages may come.
    followed: BTreeSet<String>,
    /// Channels that were unsubscribed from, with the last request before that: messages may come
    /// until a later one is answered.
    left: BTreeMap<String, u64>,
}

impl Default for FollowedChannels {
    fn default() -> Self {
        Self {
            mirrors: BTreeMap::new(),
            head: 0,
            actions: BTreeMap::new(),
            has_times: true,
            last: 0,
            followed: BTreeSet::new(),
            left: BTreeMap::new(),
        }
    }
}

impl FollowedChannels {
    /// Returns what the same client holds on another connection: it follows nothing there yet.
    pub fn on_another_connection(self) -> Self {
        Self { mirrors: self.mirrors, head: self.head, has_times: self.has_times, ..Self::default() }
    }

    /// Notes which channels a line of the client subscribes to, or unsubscribes from.
    pub fn note_line(&mut self, line: &[u8], last_request: u64) {
        // The one part that all of these members and methods have.
        if memmem::find(line, b"ubscri").is_none() {
            return;
        }
        let message: Value = serde_json::from_slice(line).unwrap_or_default();
        let params = &message["params"];
        let channel = params["channel"].as_str().map(str::to_owned);
        match (message["method"].as_str(), channel) {
            (Some("subscribe"), Some(channel)) => _ = self.followed.insert(channel),
            (Some("unsubscribe"), Some(channel)) => {
                self.followed.remove(&channel);
                self.left.insert(channel, last_request);
            }
            (Some("initialize" | "reconnect"), _) => {
                let lists = [&params["initialSubscriptions"], &params["subscriptions"]];
                let channels = lists.into_iter().filter_map(Value::as_array).flatten();
                self.followed.extend(channels.filter_map(Value::as_str).map(str::to_owned));
            }
            _ => {}
        }
    }

    /// Notes that the request with this id was answered.
    pub fn note_answer(&mut self, id: u64) {
        self.left.retain(|_, before| id <= *before);
    }

    /// Notes the number and the version that the host has answered `initialize` with.
    pub fn begin(&mut self, head: Option<i64>, version: Option<&str>) {
        self.has_times = version.is_none_or(|version| version.starts_with("1."));
        if let Some(head) = head {
            self.head = self.head.max(head);
            self.last = head;
        }
    }

    /// Returns whether messages of a channel may come to this client.
    pub fn follows(&self, channel: &str) -> bool {
        self.followed.contains(channel) || self.left.contains_key(channel)
    }

    /// Checks that a message of a channel may come to this client.
    pub fn check_follows(&self, channel: &str, message: &Value) -> Judged<()> {
        must!(
            self.follows(channel),
            "a message of a channel that this client does not follow: {}",
            quoted(message)
        );
        Ok(())
    }

    /// Applies an accepted action, of this client itself or not.
    pub fn apply(&mut self, envelope: &ActionEnvelope, action: &Value, is_own: bool) -> Judged<()> {
        if !is_own {
            self.check_follows(&envelope.channel, action)?;
        }
        let seq = i64::try_from(envelope.server_seq).unwrap_or(i64::MAX);
        let last = self.last;
        // An acknowledgement of an own action may have the number of another one, as loaded turns
        // and changes of watched files, which change no state.
        let shares =
            matches!(envelope.action, StateAction::ChatTurnsLoaded(_) | StateAction::ResourceWatchChanged(_));
        let is_new = !is_own && !shares;
        let grows = if is_new { seq > last } else { seq >= last };
        must!(grows, "the number {seq} came after {last}: numbers grow: {}", quoted(action));
        self.last = seq;
        if is_new {
            self.actions.insert(seq, action.clone());
        }
        self.head = self.head.max(seq);
        if let Some(mirror) = self.mirrors.get_mut(&envelope.channel) {
            mirror.apply(envelope).or_else(|error| broken(format!("{error:#}")))?;
        }
        Ok(())
    }

    /// Begins the mirror of a channel with its snapshot.
    pub fn store_snapshot(&mut self, snapshot: &Value) -> Judged<()> {
        let snapshot: Snapshot = match serde_json::from_value(snapshot.clone()) {
            Ok(snapshot) => snapshot,
            Err(error) => return broken(format!("a snapshot is none ({error}): {}", quoted(snapshot))),
        };
        self.head = self.head.max(snapshot.from_seq);
        self.mirrors.insert(snapshot.resource.clone(), ChannelMirror::new(snapshot));
        Ok(())
    }

    /// Checks that a mirror equals the snapshot that has replaced it.
    pub fn check_same(&self, channel: &str, held: ChannelMirror, shown: ChannelMirror) -> Judged<()> {
        must!(
            held.seen <= shown.seen,
            "the snapshot of `{channel}` is of {}, and an action of {} came before it",
            shown.seen,
            held.seen
        );
        let [held, shown] = [held.state, shown.state].map(|state| match self.has_times {
            true => state,
            false => without_times(state),
        });
        check_equal(&held, &shown)
            .or_else(|error| broken(format!("the mirror of `{channel}` is not its snapshot: {error:#}")))
    }

    /// Returns the state of a mirrored channel, as JSON; null if there is none.
    pub fn state_of(&self, channel: &str) -> Value {
        let state = self.mirrors.get(channel).map(|mirror| &mirror.state);
        state.and_then(|state| serde_json::to_value(state).ok()).unwrap_or_default()
    }

    /// Returns whether a turn of a mirrored chat runs.
    pub fn is_running(&self, channel: &str) -> bool {
        match self.mirrors.get(channel).map(|mirror| &mirror.state) {
            Some(SnapshotState::Chat(chat)) => chat.active_turn.is_some(),
            _ => false,
        }
    }
}
