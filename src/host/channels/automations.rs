//! The channels of automations: their list, and one for each run.
//!
//! Owns: the two channel types, and their rows in the store. The list exists if the operator's
//! configuration turns automations on.
//! Never: decides when something runs (`host::automations` does).

use std::collections::BTreeMap;

use ahp::reducers::{apply_action_to_automation, apply_action_to_automation_run, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{
    AutomationEntry, AutomationRunState, AutomationRunSummary, AutomationState, SnapshotState,
};
use serde::{Deserialize, Serialize};

use crate::host::actions::{actions_of, ClientAction};
use crate::host::automations::{AutomationSettings, Bookkeeping};
use crate::host::channels::{Channels, Kind, Table};
use crate::host::effects::{AutomationRunKey, AutomationsKey, ChannelRow, Output, Record};
use crate::host::ledger::RowNote;
use crate::host::model::Channel;
use crate::host::{Config, Step};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::to_sorted_json;
use crate::wire::uris::{is_automations, AUTOMATIONS};

/// The list of all automations.
#[derive(Debug)]
pub(crate) struct Automations {
    pub(crate) channel: Channel,
    state: AutomationState,
    pub(crate) settings: AutomationSettings,
    pub(crate) bookkeeping: Bookkeeping,
}

/// Stored form of the list; the rows of runs have the runs of its entries.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AutomationsBody {
    born_at: u64,
    entries: Vec<AutomationEntry>,
    #[serde(rename = "books")]
    bookkeeping: Bookkeeping,
}

/// A run of an automation.
#[derive(Debug)]
pub(crate) struct AutomationRun {
    pub(crate) channel: Channel,
    pub(crate) state: AutomationRunState,
}

/// Stored form of a run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AutomationRunBody {
    born_at: u64,
    state: AutomationRunState,
}

/// Reads the row of a channel; `None` if it is damaged, which is logged.
fn read_row<T: for<'a> Deserialize<'a>>(row: &ChannelRow) -> Option<T> {
    let body = serde_json::from_slice(&row.body);
    body.map_err(
        |error| tracing::error!(id = ?row.id, %error, "stored automations cannot be read and are lost"),
    )
    .ok()
}

/// Returns the stored runs, oldest first.
fn stored_runs(config: &Config) -> BTreeMap<AutomationRunKey, AutomationRunBody> {
    let rows = config.start.channels.iter().filter(|_| config.automations.is_some());
    rows.filter_map(|row| Some((row.id.automation_run()?, read_row(row)?))).collect()
}

/// Returns a run as its automation lists it.
pub(crate) fn summary_of_run(run: &AutomationRunState) -> AutomationRunSummary {
    AutomationRunSummary {
        resource: run.resource.clone(),
        automation: run.automation.clone(),
        origin: run.origin.clone(),
        lifecycle: run.lifecycle.clone(),
        primary_session: run.primary_session.clone(),
        session_count: i64::try_from(run.sessions.len()).unwrap_or(i64::MAX),
        meta: run.meta.clone(),
    }
}

impl Channels {
    /// Returns the list of automations; `None` if they are off.
    pub(crate) fn automation_list(&self) -> Option<&Automations> {
        self.automations.get(&AutomationsKey::LIST)
    }

    /// Returns the list of automations; `None` if they are off.
    pub(crate) fn automation_list_mut(&mut self) -> Option<&mut Automations> {
        self.automations.get_mut(&AutomationsKey::LIST)
    }
}

impl Automations {
    pub(crate) fn entries(&self) -> &[AutomationEntry] {
        &self.state.entries
    }

    pub(crate) fn get(&self, resource: &str) -> Option<&AutomationEntry> {
        self.entries().iter().find(|entry| entry.resource == resource)
    }

    /// Emits the record that stores the list.
    pub(crate) fn save(&self, step: &mut Step<'_>) {
        let entries =
            self.entries().iter().map(|entry| AutomationEntry { runs: Vec::new(), ..entry.clone() });
        let body = AutomationsBody {
            born_at: self.channel.born_at,
            entries: entries.collect(),
            bookkeeping: self.bookkeeping.clone(),
        };
        let body = to_sorted_json(&body).into();
        step.emit(Output::Record(Record::Channel(ChannelRow { id: AutomationsKey::LIST.into(), body })));
    }
}

impl AutomationRun {
    /// Emits the record that stores the run.
    pub(crate) fn save(&self, step: &mut Step<'_>, key: AutomationRunKey) {
        let body = AutomationRunBody { born_at: self.channel.born_at, state: self.state.clone() };
        let body = to_sorted_json(&body).into();
        step.emit(Output::Record(Record::Channel(ChannelRow { id: key.into(), body })));
    }
}

impl Kind for Automations {
    const KIND: ChannelKind = ChannelKind::Automations;
    const LABEL: &'static str = "the list of automations";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Automations;
        "automation/createRequested" => AutomationCreateRequestedAction;
        "automation/updateRequested" => AutomationUpdateRequestedAction;
        "automation/removed" => AutomationRemovedAction;
    };
    type Key = AutomationsKey;
    type All = Table<AutomationsKey, Self>;

    fn at_start(config: &Config) -> Vec<(AutomationsKey, Self)> {
        let Some(settings) = config.automations.clone() else { return Vec::new() };
        let row = config.start.channels.iter().find(|row| row.id == AutomationsKey::LIST.into());
        let body = row.and_then(read_row).unwrap_or_else(|| AutomationsBody {
            born_at: config.start.head,
            entries: Vec::new(),
            bookkeeping: Bookkeeping::default(),
        });
        let (mut entries, runs) = (body.entries, stored_runs(config));
        for run in runs.values().rev() {
            let automation = entries.iter_mut().find(|entry| entry.resource == run.state.automation);
            automation.into_iter().for_each(|entry| entry.runs.push(summary_of_run(&run.state)));
        }
        let channel = Channel::new(AUTOMATIONS.to_owned(), body.born_at);
        let state = AutomationState { entries, meta: None };
        vec![(AutomationsKey::LIST, Self { channel, state, settings, bookkeeping: body.bookkeeping })]
    }

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_automation(&mut self.state, action)
    }

    fn snapshot(&self, _: AutomationsKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Automations(Box::new(self.state.clone())), &[]))
    }

    /// Accepts the forms that URI libraries produce for the list's URI.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<AutomationsKey> {
        let exists = is_automations(uri) && channels.automation_list().is_some();
        exists.then_some(AutomationsKey::LIST)
    }

    fn note_row(&mut self, _: &StateAction, _: usize) -> RowNote {
        RowNote { is_due: true, is_sync: false }
    }
}

impl Kind for AutomationRun {
    const KIND: ChannelKind = ChannelKind::AutomationRun;
    const LABEL: &'static str = "the channel of a run of an automation";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        AutomationRun;
        "automationRun/cancelRequested" => AutomationRunCancelRequestedAction;
    };
    type Key = AutomationRunKey;
    type All = Table<AutomationRunKey, Self>;

    fn at_start(config: &Config) -> Vec<(AutomationRunKey, Self)> {
        let run = |(key, body): (AutomationRunKey, AutomationRunBody)| {
            let channel = Channel::new(body.state.resource.clone(), body.born_at);
            (key, Self { channel, state: body.state })
        };
        stored_runs(config).into_iter().map(run).collect()
    }

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_automation_run(&mut self.state, action)
    }

    fn snapshot(&self, _: AutomationRunKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::AutomationRun(Box::new(self.state.clone())), &[]))
    }

    fn note_row(&mut self, _: &StateAction, _: usize) -> RowNote {
        RowNote { is_due: true, is_sync: false }
    }
}
