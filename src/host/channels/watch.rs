//! The channel of a watch.
//!
//! Owns: what such a channel is: what is watched and how, which never changes. It is there while
//! somebody follows it, and a while longer for one who comes back; its URI says all of it, so that
//! it can be made again.
//! Never: keeps what has changed, or lets clients change anything: what is told on it is no state.

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
    /// The number of the time for which it stays although nobody follows it, while that runs.
    pub(crate) unsubscribed: Option<u64>,
}

impl Watch {
    /// The channel of what is watched, under the URI that says so.
    pub(crate) fn new(uri: String, watched: Watched) -> Self {
        let mut patterns = watched.patterns();
        let (excludes, includes) = (patterns.remove("excludes"), patterns.remove("includes"));
        let state =
            ResourceWatchState { root: watched.uri, recursive: watched.recursive, excludes, includes };
        // It has no history: whoever has followed it before knows all of it.
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
