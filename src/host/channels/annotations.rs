//! The channel of a session's annotations.
//!
//! Owns: what such a channel is: what people say to places in files, of one session. It is there as
//! long as its session is in memory, and has the key of that session.
//! Never: decides what may be said (`host::annotations` does), or is kept by itself: the row of the
//! session has it.

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

/// The channel of a session's annotations.
#[derive(Debug)]
pub(crate) struct Annotations {
    pub(crate) channel: Channel,
    state: AnnotationsState,
    /// Length of the annotations as JSON text, in bytes.
    bytes: usize,
}

impl Annotations {
    pub(crate) fn new(channel: Channel, annotations: Vec<Annotation>) -> Self {
        let bytes = annotations.iter().map(json_bytes).sum();
        Self { channel, state: AnnotationsState { annotations }, bytes }
    }

    /// Returns all annotations, the oldest first.
    pub(crate) fn list(&self) -> &[Annotation] {
        &self.state.annotations
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Annotation> {
        self.list().iter().find(|annotation| annotation.id == id)
    }

    /// Returns the length of the annotations as JSON text, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn bytes_of(&self, id: &str) -> usize {
        self.get(id).map_or(0, json_bytes)
    }
}

/// Returns what a session with this URI says of its annotations.
pub(crate) fn summary_of(session: &str, annotations: &[Annotation]) -> AnnotationsSummary {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    AnnotationsSummary {
        resource: annotations_uri(session),
        annotation_count: number(annotations.len()),
        entry_count: number(annotations.iter().map(|annotation| annotation.entries.len()).sum()),
    }
}

/// The annotation that an action is about.
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

    /// Behind whatever its session is called.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<AnnotationsKey> {
        let session = channels.find(parse_annotations_uri(uri)?)?.session()?;
        let session = channels.sessions.known(session)?;
        channels.by_uri.get(&annotations_uri(&session.channel.uri))?.annotations()
    }

    fn session_of(_: &Channels, key: AnnotationsKey) -> Option<SessionKey> {
        Some(key.into())
    }
}
