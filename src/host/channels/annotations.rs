//! The channel of a session's annotations.
//!
//! Owns: the channel type: comments on locations in files, of one session. The channel exists while
//! its session is in memory, and has the session's key.
//! Never: validates an annotation (`host::annotations` does), or is stored by itself: the session's
//! row contains it.

use ahp::reducers::{apply_action_to_annotations, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{Annotation, AnnotationsState, AnnotationsSummary, SnapshotState};

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::{Channels, Kind, Table};
use crate::host::effects::{AnnotationsKey, SessionKey};
use crate::host::model::Channel;
use crate::state::history::CompletedTurn;
use crate::wire::annotations::{annotations_uri, parse_annotations_uri};
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::json_bytes;

#[derive(Debug)]
pub(crate) struct Annotations {
    pub(crate) channel: Channel,
    state: AnnotationsState,
    /// Size of the annotations as JSON text, in bytes.
    bytes: usize,
}

impl Annotations {
    pub(crate) fn new(channel: Channel, annotations: Vec<Annotation>) -> Self {
        let bytes = annotations.iter().map(json_bytes).sum();
        Self { channel, state: AnnotationsState { annotations }, bytes }
    }

    /// Returns all annotations, oldest first.
    pub(crate) fn list(&self) -> &[Annotation] {
        &self.state.annotations
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Annotation> {
        self.list().iter().find(|annotation| annotation.id == id)
    }

    /// Returns the size of the annotations as JSON text, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn bytes_of(&self, id: &str) -> usize {
        self.get(id).map_or(0, json_bytes)
    }
}

pub(crate) fn summary_of(session: &str, annotations: &[Annotation]) -> AnnotationsSummary {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    AnnotationsSummary {
        resource: annotations_uri(session),
        annotation_count: number(annotations.len()),
        entry_count: number(annotations.iter().map(|annotation| annotation.entries.len()).sum()),
    }
}

/// Returns the id of the annotation that an action changes.
pub(crate) fn named_in(action: &StateAction) -> Option<&str> {
    match action {
        StateAction::AnnotationsSet(action) => Some(&action.annotation.id),
        StateAction::AnnotationsUpdated(action) => Some(&action.annotation_id),
        StateAction::AnnotationsRemoved(action) => Some(&action.annotation_id),
        StateAction::AnnotationsEntrySet(action) => Some(&action.annotation_id),
        StateAction::AnnotationsEntryRemoved(action) => Some(&action.annotation_id),
        _ => None,
    }
}

impl Kind for Annotations {
    const KIND: ChannelKind = ChannelKind::Annotations;
    const LABEL: &'static str = "the channel of a session's annotations";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Annotations;
        "annotations/set" => AnnotationsSetAction;
        "annotations/updated" => AnnotationsUpdatedAction;
        "annotations/removed" => AnnotationsRemovedAction;
        "annotations/entrySet" => AnnotationsEntrySetAction;
        "annotations/entryRemoved" => AnnotationsEntryRemovedAction;
    };
    type Key = AnnotationsKey;
    type All = Table<AnnotationsKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        let id = named_in(action).unwrap_or_default();
        let before = self.bytes_of(id);
        let outcome = apply_action_to_annotations(&mut self.state, action);
        self.bytes = self.bytes.saturating_sub(before) + self.bytes_of(id);
        outcome
    }

    fn snapshot(&self, _: AnnotationsKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Annotations(Box::new(self.state.clone())), &[]))
    }

    /// Finds the channel by any alias of its session.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<AnnotationsKey> {
        let session = channels.find(parse_annotations_uri(uri)?)?.session()?;
        let session = channels.sessions.known(session)?;
        channels.by_uri.get(&annotations_uri(&session.channel.uri))?.annotations()
    }

    fn session_of(_: &Channels, key: AnnotationsKey) -> Option<SessionKey> {
        Some(key.into())
    }
}
