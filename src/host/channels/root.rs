//! The root channel.
//!
//! Owns: the state of the root channel, and the host's configuration by clients, which is stored.
//! Never: tracks sessions; acts on a value that its schema does not contain, or lets a value name a
//! program.

use ahp::reducers::{apply_action_to_root, ReduceOutcome};
use ahp_types::actions::{RootConfigChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{RootConfigState, RootState, SnapshotState};
use serde::{Deserialize, Serialize};

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::{Channels, Keyed, Kind};
use crate::host::configuration::values::check_root_change;
use crate::host::customizations::Decisions;
use crate::host::effects::ClientMcp;
use crate::host::effects::{ChannelId, ChannelRow, Output, Record};
use crate::host::ledger::RowNote;
use crate::host::model::Channel;
use crate::host::refusal::Refusal;
use crate::host::{Config, Step};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::{to_json, to_sorted_json};
use crate::wire::uris;

/// Maximum number of values in the host's configuration.
const VALUES_MAX: usize = 256;

/// Maximum size of all values and their names as JSON text, in bytes.
const VALUES_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) channel: Channel,
    pub(crate) state: RootState,
    /// Decisions of clients about customizations of all sessions, or of those of a workspace.
    pub(crate) decisions: Decisions,
    /// MCP servers of clients' plugins that the operator allows.
    pub(crate) client_mcp: ClientMcp,
    /// Set if the store had the channel when the host started.
    pub(crate) was_saved: bool,
    /// Set if the previous process has sent a list of terminals, which ended with it.
    pub(crate) has_sent_terminals: bool,
}

/// Stored part of the root channel.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RootBody {
    /// First sequence number with the configuration; clients with an earlier state need a snapshot.
    born_at: u64,
    values: JsonObject,
    /// Set if clients have received a list with terminals, which end with the process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_terminals: bool,
    /// Set if clients have received a list of terminals, possibly empty, so that their state has
    /// one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lists_terminals: bool,
    #[serde(default, skip_serializing_if = "Decisions::is_empty")]
    decisions: Decisions,
}

impl RootBody {
    /// Reads the stored row; `None` if it is missing or invalid.
    fn from_stored(config: &Config) -> Option<Self> {
        let row = config.start.channels.iter().find(|row| row.id == ChannelId::ROOT)?;
        let body = serde_json::from_slice(&row.body);
        body.map_err(
            |error| tracing::error!(%error, "the stored configuration of the host cannot be read: the values that clients have set are lost"),
        )
        .ok()
    }
}

/// Key of the only root channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RootKey;

impl From<u64> for RootKey {
    fn from(_: u64) -> Self {
        Self
    }
}

impl From<RootKey> for ChannelId {
    fn from(_: RootKey) -> Self {
        Self::ROOT
    }
}

impl Keyed<Self> for Root {
    fn at_start(config: &Config) -> Self {
        let kept = RootBody::from_stored(config);
        let was_saved = kept.is_some();
        let body = kept.unwrap_or(RootBody {
            born_at: config.start.head,
            values: JsonObject::new(),
            has_terminals: false,
            lists_terminals: false,
            decisions: Decisions::default(),
        });
        let state = RootState {
            // Set by the host after it has read the self-descriptions of agents.
            agents: Vec::new(),
            active_sessions: Some(i64::try_from(config.start.sessions).unwrap_or(i64::MAX)),
            // If clients know terminals of the previous process, an action empties the list.
            terminals: (body.lists_terminals && !body.has_terminals).then(Vec::new),
            config: Some(RootConfigState { schema: config.root_schema.clone(), values: body.values }),
            meta: None,
        };
        let channel = Channel::new(uris::ROOT.to_owned(), body.born_at);
        Self {
            channel,
            state,
            decisions: body.decisions,
            client_mcp: config.client_mcp,
            was_saved,
            has_sent_terminals: body.has_terminals,
        }
    }

    fn at(&self, _: u64) -> Option<&Self> {
        Some(self)
    }

    fn at_mut(&mut self, _: u64) -> Option<&mut Self> {
        Some(self)
    }

    fn uris(&self) -> Vec<(String, ChannelId)> {
        vec![(self.channel.uri.clone(), ChannelId::ROOT)]
    }
}

impl Kind for Root {
    const KIND: ChannelKind = ChannelKind::Root;
    const LABEL: &'static str = "the root channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Root;
        "root/configChanged" => RootConfigChangedAction;
    };
    type Key = RootKey;
    type All = Self;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_root(&mut self.state, action)
    }

    fn snapshot(&self, _: RootKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Root(Box::new(self.state.clone())), &[]))
    }

    /// Accepts the forms that URI libraries produce for the root's URI.
    fn find_by_alias(_: &Channels, uri: &str) -> Option<RootKey> {
        uris::is_root(uri).then_some(RootKey)
    }

    fn note_row(&mut self, action: &StateAction, _: usize) -> RowNote {
        let is_due =
            matches!(action, StateAction::RootConfigChanged(_) | StateAction::RootTerminalsChanged(_));
        RowNote { is_due, is_sync: false }
    }
}

impl Root {
    pub(crate) fn check_change(&self, action: &StateAction) -> Result<bool, Refusal> {
        let StateAction::RootConfigChanged(RootConfigChangedAction { config: values, replace }) = action
        else {
            return Err(Refusal::OnlyRootConfig);
        };
        let mut after = self.state.clone();
        if let Some(config) = &after.config {
            check_root_change(config, values, *replace == Some(true))?;
        }
        apply_action_to_root(&mut after, action);
        if after == self.state {
            return Ok(false);
        }
        if let Some(config) = &after.config {
            check_limit(&config.values)?;
        }
        Ok(true)
    }

    /// Emits the record that stores the root channel.
    pub(crate) fn save(&self, step: &mut Step<'_>) {
        let values = self.state.config.as_ref().map(|config| config.values.clone()).unwrap_or_default();
        let has_terminals = self.state.terminals.as_ref().is_some_and(|terminals| !terminals.is_empty());
        let lists_terminals = self.state.terminals.is_some();
        let (born_at, decisions) = (self.channel.born_at, self.decisions.clone());
        let body = RootBody { born_at, values, has_terminals, lists_terminals, decisions };
        let body = to_sorted_json(&body).into();
        step.emit(Output::Record(Record::Channel(ChannelRow { id: ChannelId::ROOT, body })));
    }
}

fn check_limit(values: &JsonObject) -> Result<(), Refusal> {
    if values.len() > VALUES_MAX {
        return Err(Refusal::TooManyRootValues(VALUES_MAX));
    }
    if to_json(values).len() > VALUES_BYTES_MAX {
        return Err(Refusal::RootValuesTooLarge(VALUES_BYTES_MAX));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_have_room_up_to_the_limits() {
        let many = |count: usize| (0..count).map(|at| (at.to_string(), json!(at))).collect::<JsonObject>();
        assert_eq!(check_limit(&many(VALUES_MAX)), Ok(()));
        assert!(check_limit(&many(VALUES_MAX + 1)).is_err());
        // `{"x":"…"}`
        let large = |bytes: usize| JsonObject::from_iter([("x".to_owned(), json!("a".repeat(bytes - 8)))]);
        assert_eq!(check_limit(&large(VALUES_BYTES_MAX)), Ok(()));
        let refused = check_limit(&large(VALUES_BYTES_MAX + 1)).unwrap_err().to_string();
        assert!(refused.contains("262144 bytes"), "{refused}");
    }
}
