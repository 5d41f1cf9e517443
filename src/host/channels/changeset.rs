//! The channel of a changeset.
//!
//! Owns: what such a channel is: the files that were changed in a session or a turn, and whose
//! session that is.
//! Never: keeps any of it. All of it follows from what the calls of the session's chats have said,
//! and from the marks that the session keeps: the channel is made again from that when somebody
//! asks for it.

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
    /// Scope of the changes: a turn, a session or a branch.
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

    /// Behind whatever its session is called, and with the id of a turn encoded or not.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<ChangesetKey> {
        let (session, scope) = parse_changeset_uri(uri)?;
        let session = channels.sessions.known(channels.find(session)?.session()?)?;
        channels.by_uri.get(&changeset_uri(&session.channel.uri, &scope))?.changeset()
    }

    fn session_of(channels: &Channels, key: ChangesetKey) -> Option<SessionKey> {
        channels.changesets.get(&key).map(|changeset| changeset.session)
    }
}
