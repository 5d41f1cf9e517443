//! The channels of chats.
//!
//! Owns: the implementation of [`Kind`] for chats.
//! Never: implements the effects of an action.

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::StateAction;
use ahp_types::state::SnapshotState;

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::session::find_by_provider;
use crate::host::channels::{Channels, Kind, Table};
use crate::host::effects::{ActionLine, ChatKey, SessionKey};
use crate::host::ledger::{cursor_before, Loading, RowNote, SnapshotRequired};
use crate::host::model::{Chat, Subscription};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::uris;

impl Kind for Chat {
    const KIND: ChannelKind = ChannelKind::Chat;
    const LABEL: &'static str = "a chat's channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Chat;
        "chat/turnStarted" => ChatTurnStartedAction;
        "chat/turnCancelled" => ChatTurnCancelledAction;
        "chat/turnResume" => ChatTurnResumeAction;
        "chat/truncated" => ChatTruncatedAction;
        "chat/toolCallConfirmed" => ChatToolCallConfirmedAction;
        "chat/toolCallResultConfirmed" => ChatToolCallResultConfirmedAction;
        "chat/toolCallComplete" => ChatToolCallCompleteAction;
        "chat/toolCallContentChanged" => ChatToolCallContentChangedAction;
        "chat/inputAnswerChanged" => ChatInputAnswerChangedAction;
        "chat/inputCompleted" => ChatInputCompletedAction;
        "chat/pendingMessageSet" => ChatPendingMessageSetAction;
        "chat/pendingMessageRemoved" => ChatPendingMessageRemovedAction;
        "chat/queuedMessagesReordered" => ChatQueuedMessagesReorderedAction;
        "chat/draftChanged" => ChatDraftChangedAction;
        "chat/isReadChanged" => ChatIsReadChangedAction;
        "chat/isArchivedChanged" => ChatIsArchivedChangedAction;
        "chat/workingDirectorySet" => ChatWorkingDirectorySetAction;
        "chat/workingDirectoryRemoved" => ChatWorkingDirectoryRemovedAction;
    };
    type Key = ChatKey;
    type All = Table<ChatKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        self.conversation.apply(action)
    }

    fn snapshot(&self, key: ChatKey, first_turn: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        let history = self.conversation.history();
        let mut state = self.conversation.state().clone();
        state.turns_next_cursor = cursor_before(key, history, first_turn);
        Some((SnapshotState::Chat(Box::new(state)), history.since(first_turn)))
    }

    fn first_turn(&self, how: &Subscription) -> usize {
        how.turns.map_or(0, |turns| self.conversation.history().len().saturating_sub(turns))
    }

    /// Finds a chat by a URI that contains the session's URI with the provider's scheme.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<ChatKey> {
        let (before, session) = uris::session_of_chat(uri)?;
        let (_, plain) = find_by_provider(channels, &session)?;
        channels.by_uri.get(&uris::chat_of(before, &plain))?.chat()
    }

    fn session_of(channels: &Channels, key: ChatKey) -> Option<SessionKey> {
        channels.chats.get(&key).map(|chat| chat.session)
    }

    /// Real clients rename a chat by the action for sessions.
    fn takes(action: &ClientAction) -> bool {
        action.kind == Self::KIND || action.name == "session/titleChanged"
    }

    fn note_row(&mut self, action: &StateAction, line_bytes: usize) -> RowNote {
        Chat::note_row(self, action, line_bytes)
    }

    fn loading_in_replay(&self, actions: &[&ActionLine]) -> Result<Option<Loading>, SnapshotRequired> {
        Chat::loading_in_replay(self, actions)
    }
}
