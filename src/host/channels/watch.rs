//! The channel of a watch.
//!
//! Owns: the channel type: the watched resources and options, which never change. The channel
//! exists while it has subscribers, and for a grace period after; its URI contains all parameters,
//! so that it can be restored.
//! Never: stores changes, or lets clients change anything: the actions on this channel carry no
//! state.

use ahp::reducers::{apply_action_to_resource_watch, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{ResourceWatchState, SnapshotState};

use crate::host::actions::ClientAction;
use crate::host::channels::{Kind, Table};
use crate::host::effects::WatchKey;
use crate::host::model::Channel;
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::watches::Watched;

#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) channel: Channel,
    pub(crate) state: ResourceWatchState,
    /// Number of the running expiry timer; `None` while the watch has subscribers.
    pub(crate) unsubscribed: Option<u64>,
}

impl Watch {
    /// Creates the channel for a URI and its parameters.
    pub(crate) fn new(uri: String, watched: Watched) -> Self {
        let mut patterns = watched.patterns();
        let (excludes, includes) = (patterns.remove("excludes"), patterns.remove("includes"));
        let state =
            ResourceWatchState { root: watched.uri, recursive: watched.recursive, excludes, includes };
        // The state never changes, so clients with any earlier state are up to date.
        Self { channel: Channel::new(uri, 0), state, unsubscribed: None }
    }
}

impl Kind for Watch {
    const KIND: ChannelKind = ChannelKind::Watch;
    const LABEL: &'static str = "a watch's channel";
    const ACTIONS: &'static [ClientAction] = &[];
    type Key = WatchKey;
    type All = Table<WatchKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_resource_watch(&mut self.state, action)
    }

    fn snapshot(&self, _: WatchKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::ResourceWatch(Box::new(self.state.clone())), &[]))
    }
}
