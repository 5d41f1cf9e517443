//! A kind of channels that is in no program, to show what a kind needs.
//!
//! Owns: two channels that are there as long as the host is; each holds annotations that clients
//! set and remove.
//! Never: is known to anything but the list of the kinds.

use std::collections::BTreeMap;

use ahp::reducers::{apply_action_to_annotations, ReduceOutcome};
use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::state::{AnnotationsState, SnapshotState};

use super::Kind;
use crate::host::actions::{actions_of, ClientAction, Verdict};
use crate::host::effects::{ChannelId, ChannelRow, Output, Record};
use crate::host::model::Channel;
use crate::host::refusal::Refusal;
use crate::host::{Config, Host, Step};
use crate::state::history::CompletedTurn;
use crate::wire::asides::Aside;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::to_sorted_json;

/// How many there are.
const SAMPLES: u64 = 2;

#[derive(Debug)]
pub(in crate::host) struct Sample {
    channel: Channel,
    state: AnnotationsState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::host) struct SampleKey(u64);

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
    const CALLED: &'static str = "a sample's channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Sample;
        "annotations/set" => AnnotationsSetAction;
        "annotations/removed" => AnnotationsRemovedAction;
        "annotations/updated" => AnnotationsUpdatedAction, refused: "a sample is not updated";
    };
    type Key = SampleKey;
    type All = BTreeMap<SampleKey, Self>;

    fn at_start(config: &Config) -> Self::All {
        let sample = |key| {
            let kept = config.start.channels.iter().find(|row| row.id == SampleKey(key).into());
            let state = kept.and_then(|row| serde_json::from_slice(&row.body).ok());
            let state = state.unwrap_or(AnnotationsState { annotations: Vec::new() });
            (SampleKey(key), Self { channel: Channel::new(format!("ahp-sample:/{key}"), 0), state })
        };
        (1..=SAMPLES).map(sample).collect()
    }

    fn channel(&self) -> &Channel {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_annotations(&mut self.state, action)
    }

    fn snapshot(&self, _: SampleKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Annotations(Box::new(self.state.clone())), &[]))
    }

    fn change(
        host: &mut Host,
        step: &mut Step<'_>,
        key: SampleKey,
        action: StateAction,
        origin: ActionOrigin,
        _: Option<&Aside>,
    ) -> Result<Verdict, Refusal> {
        let Some(sample) = host.channels.samples.get(&key) else {
            return Err(Refusal::SampleGone);
        };
        let mut after = sample.state.clone();
        apply_action_to_annotations(&mut after, &action);
        if after == sample.state {
            return Ok(Verdict::Unchanged);
        }
        host.sequence(step, key, action, Some(origin));
        Ok(Verdict::Done)
    }

    fn after_action(host: &mut Host, _: &mut Step<'_>, key: SampleKey, _: &StateAction, _: usize) {
        host.unsaved.insert(key.into());
    }

    fn save(host: &mut Host, step: &mut Step<'_>, key: SampleKey) {
        if let Some(sample) = host.channels.samples.get(&key) {
            let body = to_sorted_json(&sample.state).into();
            step.say(Output::Record(Record::Channel(ChannelRow { id: key.into(), body })));
        }
    }
}
