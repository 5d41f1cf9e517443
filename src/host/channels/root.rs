//! The root channel.
//!
//! Owns: what the root channel is: its state, and that clients change nothing in it.
//! Never: knows what sessions there are.

use ahp::reducers::{apply_action_to_root, ReduceOutcome};
use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::state::{RootState, SnapshotState};

use super::{Channels, Keyed, Kind};
use crate::host::actions::{actions_of, ClientAction, Refusal, Verdict};
use crate::host::effects::ChannelId;
use crate::host::model::Channel;
use crate::host::{Config, Host, Step};
use crate::wire::asides::Aside;
use crate::wire::channels::ChannelKind;
use crate::wire::uris;

const NO_CONFIG: &str = "this host has no configuration of its own";

/// The root channel.
#[derive(Debug)]
pub(in crate::host) struct Root {
    pub(in crate::host) channel: Channel,
    pub(in crate::host) state: RootState,
}

/// There is one, so nothing tells it from others.
#[derive(Clone, Copy)]
pub(in crate::host) struct TheOne;

impl From<u64> for TheOne {
    fn from(_: u64) -> Self {
        Self
    }
}

impl From<TheOne> for ChannelId {
    fn from(_: TheOne) -> Self {
        Self::ROOT
    }
}

impl Keyed<Self> for Root {
    fn at(&self, _: u64) -> Option<&Self> {
        Some(self)
    }

    fn at_mut(&mut self, _: u64) -> Option<&mut Self> {
        Some(self)
    }

    fn each<'a>(&'a self) -> impl Iterator<Item = (u64, &'a Self)>
    where
        Self: 'a,
    {
        std::iter::once((ChannelId::ROOT.key, self))
    }
}

impl Kind for Root {
    const KIND: ChannelKind = ChannelKind::Root;
    const CALLED: &'static str = "the root channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Root;
        "root/configChanged" => RootConfigChangedAction, refused: NO_CONFIG;
    };
    type Key = TheOne;
    type All = Self;

    fn at_start(config: &Config) -> Self {
        let state = RootState {
            agents: config.agents.iter().map(|agent| agent.info.clone()).collect(),
            active_sessions: Some(i64::try_from(config.start.sessions).unwrap_or(i64::MAX)),
            terminals: None,
            config: None,
            meta: None,
        };
        Self { channel: Channel::new(uris::ROOT.to_owned(), 0), state }
    }

    fn channel(&self) -> &Channel {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_root(&mut self.state, action)
    }

    fn snapshot(&mut self, _: TheOne, _: usize) -> Option<SnapshotState> {
        Some(SnapshotState::Root(Box::new(self.state.clone())))
    }

    /// It is known in the forms that URI libraries turn it into.
    fn called_otherwise(_: &Channels, uri: &str) -> Option<TheOne> {
        uris::is_root(uri).then_some(TheOne)
    }

    fn change(
        _: &mut Host,
        _: &mut Step<'_>,
        _: TheOne,
        _: StateAction,
        _: ActionOrigin,
        _: Option<&Aside>,
    ) -> Result<Verdict, Refusal> {
        Err("nothing on the root channel can be changed by clients".to_owned())
    }

    fn after_action(_: &mut Host, _: &mut Step<'_>, _: TheOne, _: &StateAction, _: usize) {}
}
