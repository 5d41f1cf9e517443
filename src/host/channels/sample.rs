//! A test kind of channel, as an example of the code that a kind needs.
//!
//! Owns: two channels that exist as long as the host; each contains annotations that clients set
//! and remove.
//! Never: is known to any code but the list of kinds.

use ahp::reducers::{apply_action_to_annotations, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{AnnotationsState, SnapshotState};

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::{Kind, Table};
use crate::host::effects::{ChannelId, ChannelRow, Output, Record};
use crate::host::ledger::RowNote;
use crate::host::model::Channel;
use crate::host::{Config, Step};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::to_sorted_json;

const SAMPLES: u64 = 2;

#[derive(Debug)]
pub(crate) struct Sample {
    pub(super) channel: Channel,
    state: AnnotationsState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SampleKey(u64);

impl From<u64> for SampleKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

impl From<SampleKey> for ChannelId {
    fn from(SampleKey(key): SampleKey) -> Self {
        Self { kind: Sample::KIND, key }
    }
}

impl Kind for Sample {
    const KIND: ChannelKind = ChannelKind::Sample;
    const LABEL: &'static str = "a sample's channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Sample;
        "annotations/set" => AnnotationsSetAction;
        "annotations/removed" => AnnotationsRemovedAction;
        "annotations/updated" => AnnotationsUpdatedAction, refused: "a sample is not updated";
    };
    type Key = SampleKey;
    type All = Table<SampleKey, Self>;

    fn at_start(config: &Config) -> Vec<(SampleKey, Self)> {
        let sample = |key| {
            let kept = config.start.channels.iter().find(|row| row.id == SampleKey(key).into());
            let state = kept.and_then(|row| serde_json::from_slice(&row.body).ok());
            let state = state.unwrap_or(AnnotationsState { annotations: Vec::new() });
            (SampleKey(key), Self { channel: Channel::new(format!("ahp-sample:/{key}"), 0), state })
        };
        (1..=SAMPLES).map(sample).collect()
    }

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_annotations(&mut self.state, action)
    }

    fn snapshot(&self, _: SampleKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Annotations(Box::new(self.state.clone())), &[]))
    }

    fn note_row(&mut self, _: &StateAction, _: usize) -> RowNote {
        RowNote { is_due: true, is_sync: false }
    }
}

impl Sample {
    pub(crate) fn is_change(&self, action: &StateAction) -> bool {
        let mut after = self.state.clone();
        apply_action_to_annotations(&mut after, action);
        after != self.state
    }

    /// Emits the record that stores the channel.
    pub(crate) fn save(&self, step: &mut Step<'_>, id: ChannelId) {
        let body = to_sorted_json(&self.state).into();
        step.emit(Output::Record(Record::Channel(ChannelRow { id, body })));
    }
}
