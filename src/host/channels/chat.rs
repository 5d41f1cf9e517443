//! The channels of chats.
//!
//! Owns: what a chat's channel is: which of the host's functions answer for chats what every kind
//! is asked.
//! Never: holds what those functions do.

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::{ActionOrigin, StateAction};
use ahp_types::state::SnapshotState;

use super::session::called_by_provider;
use super::{Channels, Kind, Table};
use crate::host::actions::{actions_of, read_action, ClientAction, Verdict};
use crate::host::effects::{ActionLine, ChatKey, SessionKey};
use crate::host::model::{Channel, Chat, Session, Subscription};
use crate::host::refusal::Refusal;
use crate::host::selection::PendingAction;
use crate::host::windows::{cursor_before, Loading, StateIsNeeded};
use crate::host::{Config, Host, Step};
use crate::state::history::CompletedTurn;
use crate::wire::asides::Aside;
use crate::wire::channels::ChannelKind;
use crate::wire::uris;

impl Kind for Chat {
    const KIND: ChannelKind = ChannelKind::Chat;
    const CALLED: &'static str = "a chat's channel";
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

    fn at_start(_: &Config) -> Self::All {
        Table::default()
    }

    fn channel(&self) -> &Channel {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

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

    /// A chat of a session that is called by its provider, whose URI holds that of the session.
    fn called_otherwise(channels: &Channels, uri: &str) -> Option<ChatKey> {
        let (before, session) = uris::session_of_chat(uri)?;
        let (_, plain) = called_by_provider(channels, &session)?;
        channels.by_uri.get(&uris::chat_of(before, &plain))?.chat()
    }

    fn session_of(channels: &Channels, key: ChatKey) -> Option<SessionKey> {
        channels.chats.get(&key).map(|chat| chat.session)
    }

    /// Real clients name a chat by the action of sessions.
    fn takes(action: &ClientAction) -> bool {
        action.kind == Self::KIND || action.name == "session/titleChanged"
    }

    fn read_action(
        host: &Host,
        key: ChatKey,
        asked: &PendingAction,
        aside: Option<&Aside>,
    ) -> Result<StateAction, Refusal> {
        read_action::<Self>(&asked.action, |name, members| {
            if aside == Some(&Aside::InRunningTurn) {
                let run = host.channels.chats.known(key).and_then(|chat| chat.run.as_ref());
                let turn = run.map_or("", |run| &*run.turn_id);
                members.entry("turnId").or_insert_with(|| turn.into());
            }
            // These two are the host's clock's to say: it replaces them, so a client may leave them
            // out.
            match name {
                "chat/turnStarted" => members.entry("startedAt").or_insert_with(|| "".into()),
                "chat/turnCancelled" => members.entry("duration").or_insert_with(|| 0.into()),
                _ => return,
            };
        })
    }

    fn grows(host: &mut Host, key: ChatKey, action: &StateAction) -> Option<(&'static str, usize)> {
        match action {
            StateAction::SessionTitleChanged(_) => {
                let session = host.channels.chats.known(key)?.session;
                Session::grows(host, session, action)
            }
            StateAction::ChatPendingMessageSet(_)
            | StateAction::ChatDraftChanged(_)
            | StateAction::ChatWorkingDirectorySet(_) => {
                // A draft takes the place of the one before.
                let with_draft = !matches!(action, StateAction::ChatDraftChanged(_));
                let chat = host.channels.chats.known_mut(key)?;
                Some(("the chat, without its turns,", chat.conversation.bytes_besides_turns(with_draft)))
            }
            _ => None,
        }
    }

    fn change(
        host: &mut Host,
        step: &mut Step<'_>,
        key: ChatKey,
        action: StateAction,
        origin: ActionOrigin,
        aside: Option<&Aside>,
    ) -> Result<Verdict, Refusal> {
        host.change_chat_as_meant(step, key, action, origin, aside)
    }

    fn after_answer(host: &mut Host, step: &mut Step<'_>, key: ChatKey) {
        host.end_if_too_large(step, key);
        // What a queue waited for may have come. Only now: an acknowledgement after what follows
        // would put a message back that was just taken up, where its sender applies it.
        if host.failing.is_none() {
            host.take_next_queued(step, key);
        }
    }

    fn before_action(host: &mut Host, step: &mut Step<'_>, key: ChatKey, action: &StateAction) {
        host.load_before(step, key, action);
    }

    fn after_action(
        host: &mut Host,
        step: &mut Step<'_>,
        key: ChatKey,
        action: &StateAction,
        line_bytes: usize,
    ) {
        host.note_contents(key, action);
        host.note_edits(key, action);
        host.windows_after(key, action);
        host.selection_after(key, action);
        host.note_change(step, key, action, line_bytes);
    }

    fn save(host: &mut Host, step: &mut Step<'_>, key: ChatKey) {
        host.save_chat(step, key);
    }

    fn loading_in_replay(
        host: &Host,
        key: ChatKey,
        actions: &[&ActionLine],
    ) -> Result<Option<Loading>, StateIsNeeded> {
        host.loading_of_chat(key, actions)
    }
}
