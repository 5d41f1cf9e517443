//! The channels of the host, and the differences between their kinds.
//!
//! Owns: every channel, by its URI and by its kind, and the trait [`Kind`], through which generic
//! code handles all kinds.
//! Never: changes a state other than by the reducer of its kind, which only `sequence` calls.
//!
//! To add a kind: implement [`Kind`] in a module here, declare the module below, add a line to the
//! list in `wire::channels`, and handle the client actions in `router::kinds`. The test kind
//! `sample` needs nothing else: its channels can be subscribed to, changed and replayed, and are
//! stored and restored in the next process.

mod annotations;
mod automations;
mod canvas;
mod changeset;
mod chat;
mod root;
#[cfg(test)]
mod sample;
mod session;
mod summaries;
mod terminal;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;

use crate::host::actions::ClientAction;
use crate::host::effects::{ActionLine, ChannelId, ChatKey, SessionKey};
use crate::host::ledger::{Loading, RowNote, SnapshotRequired};
use crate::host::model::{Channel, Chat, Session, Subscription};
use crate::host::Config;
use crate::state::history::CompletedTurn;
use crate::wire::channels::{with_channel_kinds, ChannelKind};
use crate::wire::errors::RpcError;

pub(super) use annotations::{
    named_in as annotation_named_in, summary_of as annotations_summary, Annotations,
};
pub(super) use automations::{summary_of_run, AutomationRun, Automations};
pub(super) use canvas::Canvas;
pub(super) use changeset::Changeset;
pub(super) use root::Root;
#[cfg(test)]
pub(super) use sample::Sample;
pub(super) use terminal::{running_state, CommandCall, Pty, ReportedCommand, Terminal};
pub(super) use watch::Watch;

/// Behaviour in which kinds of channels differ. The defaults fit most kinds.
pub(super) trait Kind: Sized {
    const KIND: ChannelKind;

    /// Name of a channel of this kind in messages for people.
    const LABEL: &'static str;

    const ACTIONS: &'static [ClientAction];

    type Key: Copy + Ord + From<u64> + Into<ChannelId>;

    type All: Keyed<Self>;

    fn at_start(_config: &Config) -> Vec<(Self::Key, Self)> {
        Vec::new()
    }

    /// Applies an action with the reducer that clients use.
    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome;

    /// Returns the state for clients and, for a chat, its completed turns from `first_turn` on;
    /// `None` if there is no state to send.
    fn snapshot(&self, key: Self::Key, first_turn: usize) -> Option<(SnapshotState, &[CompletedTurn])>;

    /// Returns the first turn in the snapshot for this subscription.
    fn first_turn(&self, _how: &Subscription) -> usize {
        0
    }

    /// Finds a channel by a URI other than its own that some clients use.
    fn find_by_alias(_channels: &Channels, _uri: &str) -> Option<Self::Key> {
        None
    }

    fn takes(action: &ClientAction) -> bool {
        action.kind == Self::KIND
    }

    fn session_of(_channels: &Channels, _key: Self::Key) -> Option<SessionKey> {
        None
    }

    fn note_subscribed(&mut self) {}

    /// Notes an applied action with the size of its stored line, in bytes. Returns the consequences
    /// for the channel's row in the store; the default for channels without a row.
    fn note_row(&mut self, _action: &StateAction, _line_bytes: usize) -> RowNote {
        RowNote::default()
    }

    /// Returns whether actions on the channel are stored. If not, a reconnecting client receives a
    /// snapshot, unless memory has all actions that it missed.
    fn is_persistent(&self) -> bool {
        true
    }

    /// Returns the loading of turns that a client with an unknown window needs within a replay;
    /// `_actions` are all actions on this channel in the replay.
    fn loading_in_replay(&self, _actions: &[&ActionLine]) -> Result<Option<Loading>, SnapshotRequired> {
        Ok(None)
    }
}

pub(super) trait Keyed<K> {
    fn at_start(config: &Config) -> Self;

    fn at(&self, key: u64) -> Option<&K>;

    fn at_mut(&mut self, key: u64) -> Option<&mut K>;

    fn uris(&self) -> Vec<(String, ChannelId)>;
}

/// Channels of one kind, by key. A key that must exist is looked up by [`Table::known`], which logs
/// a missing one; a key that may be stale by `get` of the map.
#[derive(Debug)]
pub(super) struct Table<Key, K>(BTreeMap<Key, K>);

impl<Key, K> Deref for Table<Key, K> {
    type Target = BTreeMap<Key, K>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<Key, K> DerefMut for Table<Key, K> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<Key: Ord + Copy + Debug, K> Table<Key, K> {
    /// Returns the channel of a key that must exist. A missing channel is a bug of the host, which
    /// is logged; the caller skips its work.
    #[track_caller]
    pub(super) fn known(&self, key: Key) -> Option<&K> {
        let found = self.0.get(&key);
        if found.is_none() {
            log_unknown_key(&key, Location::caller());
        }
        found
    }

    /// Returns the channel of a key for a request. Fails with `-32603` if it does not exist.
    #[track_caller]
    pub(super) fn needed(&self, key: Key) -> Result<&K, RpcError> {
        match self.0.get(&key) {
            Some(found) => Ok(found),
            None => Err(RpcError::internal(format_args!(
                "the channel with the key {key:?} does not exist, although the request's state refers to it"
            ))),
        }
    }

    /// Mutable variant of [`Table::known`].
    #[track_caller]
    pub(super) fn known_mut(&mut self, key: Key) -> Option<&mut K> {
        let found = self.0.get_mut(&key);
        if found.is_none() {
            log_unknown_key(&key, Location::caller());
        }
        found
    }
}

impl<K: Placed> Keyed<K> for Table<K::Key, K> {
    fn at_start(config: &Config) -> Self {
        Self(K::at_start(config).into_iter().collect())
    }

    fn at(&self, key: u64) -> Option<&K> {
        self.0.get(&key.into())
    }

    fn at_mut(&mut self, key: u64) -> Option<&mut K> {
        self.0.get_mut(&key.into())
    }

    fn uris(&self) -> Vec<(String, ChannelId)> {
        self.0.iter().map(|(key, of_kind)| (of_kind.channel().uri.clone(), (*key).into())).collect()
    }
}

fn log_unknown_key(key: &impl Debug, caller: &Location<'_>) {
    tracing::error!(?key, %caller, "bug in this program: a channel that must exist does not; the operation on it is skipped");
}

/// Access to the common members of a channel, and to the table of its kind.
pub(super) trait Placed: Kind {
    fn channel(&self) -> &Channel;

    fn channel_mut(&mut self) -> &mut Channel;

    fn all(channels: &Channels) -> &Self::All;

    fn all_mut(channels: &mut Channels) -> &mut Self::All;
}

macro_rules! make_channels {
    ({} $($(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $Kind:ident, $channels:ident, $name:literal;)+) => {
        #[derive(Debug)]
        pub(super) struct Channels {
            pub(super) by_uri: HashMap<String, ChannelId>,
            $($(#[cfg($cfg)])? pub(super) $channels: <$Kind as Kind>::All,)+
        }

        impl Channels {
            pub(super) fn at_start(config: &Config) -> Self {
                let mut channels = Self {
                    by_uri: HashMap::new(),
                    $($(#[cfg($cfg)])? $channels: Keyed::<$Kind>::at_start(config),)+
                };
                $($(#[cfg($cfg)])? channels.by_uri.extend(channels.$channels.uris());)+
                channels
            }
        }

        $($(#[cfg($cfg)])?
        impl Placed for $Kind {
            fn channel(&self) -> &Channel {
                &self.channel
            }

            fn channel_mut(&mut self) -> &mut Channel {
                &mut self.channel
            }

            fn all(channels: &Channels) -> &Self::All {
                &channels.$channels
            }

            fn all_mut(channels: &mut Channels) -> &mut Self::All {
                &mut channels.$channels
            }
        })+

    };
}
with_channel_kinds!(make_channels);

macro_rules! match_kind {
    (
        { $of:expr, $K:ident => $does:expr }
        $($(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $Kind:ident, $channels:ident, $name:literal;)+
    ) => {
        match $of {
            $($(#[cfg($cfg)])? ChannelKind::$Kind => {
                type $K = $Kind;
                $does
            })+
        }
    };
}

/// Evaluates an expression for the type of a kind: `by_kind!(id.kind, K => K::LABEL)`.
macro_rules! by_kind {
    ($of:expr, $K:ident => $does:expr) => {
        with_channel_kinds!(match_kind $of, $K => $does)
    };
}

/// Returns every action that clients may dispatch, for all kinds of channels.
pub fn client_actions() -> impl Iterator<Item = &'static ClientAction> {
    ChannelKind::ALL.iter().flat_map(|kind| by_kind!(*kind, K => K::ACTIONS))
}

pub(super) fn label(kind: ChannelKind) -> &'static str {
    by_kind!(kind, K => K::LABEL)
}

impl Channels {
    /// Returns the channel of this URI, which may be an alias.
    pub(super) fn find(&self, uri: &str) -> Option<ChannelId> {
        let otherwise = |kind: &ChannelKind| by_kind!(*kind, K => K::find_by_alias(self, uri).map(Into::<ChannelId>::into));
        self.by_uri.get(uri).copied().or_else(|| ChannelKind::ALL.iter().find_map(otherwise))
    }

    /// Returns the common members of a channel; `None` if it is not in memory.
    pub(super) fn get(&self, id: ChannelId) -> Option<&Channel> {
        by_kind!(id.kind, K => K::all(self).at(id.key).map(K::channel))
    }

    pub(super) fn is_persistent(&self, id: ChannelId) -> bool {
        by_kind!(id.kind, K => K::all(self).at(id.key).is_none_or(K::is_persistent))
    }

    pub(super) fn get_mut(&mut self, id: ChannelId) -> Option<&mut Channel> {
        by_kind!(id.kind, K => K::all_mut(self).at_mut(id.key).map(K::channel_mut))
    }

    /// Applies an action to a channel's state; `None` if the channel is not in memory.
    pub(super) fn reduce(
        &mut self,
        id: ChannelId,
        action: &StateAction,
    ) -> Option<(ReduceOutcome, &mut Channel)> {
        by_kind!(id.kind, K => {
            let of_kind = K::all_mut(self).at_mut(id.key)?;
            Some((of_kind.reduce(action), of_kind.channel_mut()))
        })
    }

    pub(super) fn state(
        &self,
        id: ChannelId,
        first_turn: usize,
    ) -> Option<(SnapshotState, &[CompletedTurn])> {
        by_kind!(id.kind, K => K::all(self).at(id.key)?.snapshot(id.key.into(), first_turn))
    }

    pub(super) fn first_turn(&self, id: ChannelId, how: &Subscription) -> usize {
        by_kind!(id.kind, K => K::all(self).at(id.key).map_or(0, |of_kind| of_kind.first_turn(how)))
    }

    pub(super) fn note_subscribed(&mut self, id: ChannelId) {
        by_kind!(id.kind, K => {
            if let Some(of_kind) = K::all_mut(self).at_mut(id.key) {
                of_kind.note_subscribed();
            }
        });
    }

    pub(super) fn note_row(&mut self, id: ChannelId, action: &StateAction, line_bytes: usize) -> RowNote {
        by_kind!(id.kind, K => {
            K::all_mut(self).at_mut(id.key).map_or(RowNote::default(), |of_kind| of_kind.note_row(action, line_bytes))
        })
    }

    pub(super) fn loading_in_replay(
        &self,
        id: ChannelId,
        actions: &[&ActionLine],
    ) -> Result<Option<Loading>, SnapshotRequired> {
        by_kind!(id.kind, K => match K::all(self).at(id.key) {
            Some(of_kind) => of_kind.loading_in_replay(actions),
            None => Ok(None),
        })
    }

    pub(super) fn chats_of<'a>(&'a self, session: &'a Session) -> impl Iterator<Item = ChatKey> + 'a {
        session.state.chats.iter().filter_map(|row| self.by_uri.get(&row.resource)?.chat())
    }

    pub(super) fn chats_in(&self, key: SessionKey) -> Vec<ChatKey> {
        let session = self.sessions.known(key);
        session.map(|session| self.chats_of(session).collect()).unwrap_or_default()
    }

    pub(super) fn folders_of_sessions(&self) -> Vec<String> {
        let folders =
            self.sessions.values().flat_map(|session| session.state.working_directories.iter().flatten());
        folders.collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    pub(super) fn is_default(&self, key: ChatKey) -> bool {
        let Some(chat) = self.chats.known(key) else { return false };
        let session = self.sessions.known(chat.session);
        session.is_some_and(|session| session.state.default_chat.as_ref() == Some(&chat.channel.uri))
    }

    pub(super) fn session_of(&self, id: ChannelId) -> Option<SessionKey> {
        by_kind!(id.kind, K => K::session_of(self, id.key.into()))
    }
}
