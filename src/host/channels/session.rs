//! The channels of sessions.
//!
//! Owns: the implementation of [`Kind`] for sessions.
//! Never: implements the functions that it calls.

use ahp::reducers::{apply_action_to_session, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::{Channels, Kind, Table};
use crate::host::effects::SessionKey;
use crate::host::ledger::RowNote;
use crate::host::model::Session;
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::uris;

impl Kind for Session {
    const KIND: ChannelKind = ChannelKind::Session;
    const LABEL: &'static str = "a session's channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Session;
        "session/titleChanged" => SessionTitleChangedAction;
        "session/isReadChanged" => SessionIsReadChangedAction;
        "session/isArchivedChanged" => SessionIsArchivedChangedAction;
        "session/defaultChatChanged" => SessionDefaultChatChangedAction;
        "session/configChanged" => SessionConfigChangedAction;
        "session/activeClientSet" => SessionActiveClientSetAction;
        "session/activeClientRemoved" => SessionActiveClientRemovedAction;
        "session/workingDirectorySet" => SessionWorkingDirectorySetAction;
        "session/workingDirectoryRemoved" => SessionWorkingDirectoryRemovedAction;
        "session/workingDirectoryReplaced" => SessionWorkingDirectoryReplacedAction;
        "session/customizationToggled" => SessionCustomizationToggledAction;
        "session/mcpServerStartRequested" => SessionMcpServerStartRequestedAction;
        "session/mcpServerStopRequested" => SessionMcpServerStopRequestedAction;
        "session/mcpServerBackgroundRequested" => SessionMcpServerBackgroundRequestedAction;
    };
    type Key = SessionKey;
    type All = Table<SessionKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_session(&mut self.state, action)
    }

    fn snapshot(&self, _: SessionKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Session(Box::new(self.state.clone())), &[]))
    }

    /// Finds a session by a URI with the provider's scheme.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<SessionKey> {
        find_by_provider(channels, uri).map(|(key, _)| key)
    }

    fn session_of(_: &Channels, key: SessionKey) -> Option<SessionKey> {
        Some(key)
    }

    /// A session that was made ahead stays in memory while it has subscribers.
    fn note_subscribed(&mut self) {
        self.unsubscribed = None;
    }

    fn note_row(&mut self, _: &StateAction, _: usize) -> RowNote {
        RowNote { is_due: true, is_sync: false }
    }
}

/// Returns the session with a URI that has the provider as its scheme, and its own URI,
/// `ahp-session:/<id>`. Some clients use only the former.
pub(super) fn find_by_provider(channels: &Channels, uri: &str) -> Option<(SessionKey, String)> {
    let (provider, plain) = uris::plain_session(uri)?;
    let key = channels.by_uri.get(&plain)?.session()?;
    let session = channels.sessions.known(key)?;
    (session.state.provider == provider).then_some((key, plain))
}
