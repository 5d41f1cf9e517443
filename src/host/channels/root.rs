//! The root channel.
//!
//! Owns: its state when the host starts.
//! Never: knows what sessions there are.

use ahp_types::state::RootState;

use crate::host::model::Channel;
use crate::host::Config;
use crate::wire::uris;

/// The root channel.
#[derive(Debug)]
pub(in crate::host) struct Root {
    pub(in crate::host) channel: Channel,
    pub(in crate::host) state: RootState,
}

impl Root {
    /// As it is when a host starts.
    pub(in crate::host) fn at_start(config: &Config) -> Self {
        let state = RootState {
            agents: config.agents.iter().map(|agent| agent.info.clone()).collect(),
            active_sessions: Some(i64::try_from(config.start.sessions).unwrap_or(i64::MAX)),
            terminals: None,
            config: None,
            meta: None,
        };
        Self { channel: Channel::new(uris::ROOT.to_owned(), 0), state }
    }
}
