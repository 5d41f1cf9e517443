//! The channel of a changeset.
//!
//! Owns: the channel type: the changed files of a session, a turn or a branch.
//! Never: is stored: the channel is restored on request from the edits in the session's chats,
//! git's reports, and the review marks of the session.

use ahp::reducers::{apply_action_to_changeset, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{ChangesetState, SnapshotState};

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::{Channels, Kind, Table};
use crate::host::effects::{ChangesetKey, SessionKey};
use crate::host::model::Channel;
use crate::state::history::CompletedTurn;
use crate::wire::changesets::{changeset_uri, parse_changeset_uri, ChangesetScope};
use crate::wire::channels::ChannelKind;

#[derive(Debug)]
pub(crate) struct Changeset {
    pub(crate) channel: Channel,
    pub(crate) state: ChangesetState,
    pub(crate) session: SessionKey,
    pub(crate) scope: ChangesetScope,
}

impl Kind for Changeset {
    const KIND: ChannelKind = ChannelKind::Changeset;
    const LABEL: &'static str = "a changeset's channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Changeset;
        "changeset/filesReviewChanged" => ChangesetFilesReviewChangedAction;
    };
    type Key = ChangesetKey;
    type All = Table<ChangesetKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_changeset(&mut self.state, action)
    }

    fn snapshot(&self, _: ChangesetKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Changeset(Box::new(self.state.clone())), &[]))
    }

    /// Accepts any alias of the session, and an encoded or plain turn id.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<ChangesetKey> {
        let (session, scope) = parse_changeset_uri(uri)?;
        let session = channels.sessions.known(channels.find(session)?.session()?)?;
        channels.by_uri.get(&changeset_uri(&session.channel.uri, &scope))?.changeset()
    }

    fn session_of(channels: &Channels, key: ChangesetKey) -> Option<SessionKey> {
        channels.changesets.get(&key).map(|changeset| changeset.session)
    }
}
