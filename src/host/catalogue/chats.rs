//! Chats of a session. (`router::chat_requests` has the steps of `createChat` and `disposeChat`.)
//!
//! Owns: creating and removing further chats, what a fork or side chat copies from its source, and
//! which chat is the default one.
//! Never: opens a conversation; the first turn does.

use std::collections::BTreeMap;

use ahp_types::actions::{
    ActionOrigin, ChatMovableChangedAction, SessionChatAddedAction, SessionChatRemovedAction,
    SessionDefaultChatChangedAction, StateAction,
};
use ahp_types::commands::ChatSource;
use ahp_types::state::{
    ActiveTurn, ChatOrigin, ChatState, Message, MultipleChatsCapability, SessionStatus, Turn, TurnState,
};

use crate::host::agents::{conversations, AgentRegistry};
use crate::host::catalogue::{ahead, notes, row_of, CHAT_TITLE};
use crate::host::chats::attached::{attached_by_position, Attached};
use crate::host::effects::{ChatKey, ConnectionId, Handle};
use crate::host::ledger::Ledger;
use crate::host::model::{empty_chat, AgentLink, Channel, Chat, Session, SessionKey, TitleBy};
use crate::host::{actions, catalogue, terminals, Step};
use crate::state::history::{CompletedTurn, History};
use crate::state::reduce::Conversation;
use crate::wire::errors::RpcError;

/// Maximum number of chats in a session.
pub(in crate::host) const CHATS_MAX: usize = 1000;

/// Initial content of a new chat.
pub(in crate::host) struct Beginning {
    pub(in crate::host) origin: ChatOrigin,
    /// Turns that the agent knows and clients do not see.
    pub(in crate::host) context: Vec<CompletedTurn>,
    /// Visible turns, and the chat from which they were copied.
    pub(in crate::host) copied: Option<(ChatKey, Vec<CompletedTurn>)>,
    /// Transcripts that belong to the turns of the source.
    pub(in crate::host) attached: Attached,
    /// Visible turns that no other chat has.
    pub(in crate::host) turns: Vec<CompletedTurn>,
    /// Title that the agent has given; `None` if the first message gives it.
    pub(in crate::host) title: Option<String>,
    /// Agent's conversation to go on with; `None` for a new one.
    pub(in crate::host) handle: Option<Handle>,
    /// Directories of the session in which the chat works; `None` for all.
    pub(in crate::host) directories: Option<Vec<String>>,
    /// Model and agent that are selected for the chat.
    pub(in crate::host) draft: Option<Message>,
}

impl Default for Beginning {
    /// Returns the content of an empty chat of a user.
    fn default() -> Self {
        Self {
            origin: ChatOrigin::User,
            context: Vec::new(),
            copied: None,
            attached: Attached::default(),
            turns: Vec::new(),
            title: None,
            handle: None,
            directories: None,
            draft: None,
        }
    }
}

/// Returns the capability of a session's agent to have several chats.
pub(in crate::host) fn chats_capability(
    agents: &AgentRegistry,
    session: &Session,
) -> Result<MultipleChatsCapability, RpcError> {
    let provider = &session.state.provider;
    let agent = agents.of(provider);
    let agent = agent.ok_or_else(|| RpcError::provider_not_found(provider))?;
    let can = agent.info.capabilities.as_ref().and_then(|can| can.multiple_chats.clone());
    can.ok_or_else(|| {
        RpcError::invalid_params(format_args!("the agent `{provider}` supports only one chat per session"))
    })
}

/// Opens a conversation for a session that is still being created if none is opening any more.
pub(in crate::host) fn reopen_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: SessionKey,
) {
    let opens = |chat: &ChatKey| {
        ledger.channels.chats.known(*chat).is_some_and(|chat| chat.agent == AgentLink::Opening)
    };
    if ledger.channels.sessions.known(key).is_some_and(Session::is_creating)
        && !ledger.channels.chats_in(key).iter().any(opens)
    {
        conversations::open_session(ledger, agents, step, key);
    }
}

/// Sets the client on whose behalf a chat's agent works, until another client requests something.
pub(in crate::host) fn set_requesting_client(ledger: &mut Ledger, chat: ChatKey, connection: ConnectionId) {
    let client_id = ledger.presence.client_of(connection).map(str::to_owned);
    actions::chat::speak_as(ledger, chat, client_id.as_deref().unwrap_or_default());
    if let Some(chat) = ledger.channels.chats.known_mut(chat) {
        chat.requesting_client = client_id;
    }
}

/// Returns a session unless its creation has failed: nothing can start in such a session.
pub(in crate::host) fn usable_session(ledger: &Ledger, key: SessionKey) -> Result<&Session, RpcError> {
    let session = ledger.channels.sessions.needed(key)?;
    if session.has_failed() {
        let why = session.state.creation_error.as_ref().map_or("", |error| error.message.as_str());
        return Err(RpcError::unavailable(format_args!("the session could not be created: {why}")));
    }
    Ok(session)
}

pub(in crate::host) fn beginning_of(
    ledger: &Ledger,
    key: SessionKey,
    can: MultipleChatsCapability,
    source: Option<ChatSource>,
) -> Result<Beginning, RpcError> {
    let cannot = |what: &str| {
        Err(RpcError::invalid_params(format_args!(
            "`source`: the agent of this session does not support {what}"
        )))
    };
    match source {
        None => Ok(Beginning::default()),
        Some(ChatSource::Fork(_)) if can.fork != Some(true) => cannot("forks"),
        Some(ChatSource::SideChat(_)) if can.side_chat != Some(true) => cannot("side chats"),
        Some(ChatSource::Fork(source)) => {
            let (from, chat) = source_chat(ledger, key, &source.chat)?;
            let Some(turns) = chat.conversation.history().through(&source.turn_id) else {
                return Err(RpcError::invalid_params(format_args!(
                    "`source.turnId`: that chat has no completed turn `{}`",
                    source.turn_id
                )));
            };
            Ok(Beginning {
                origin: ChatOrigin::Fork { chat: chat.channel.uri.clone(), turn_id: source.turn_id },
                context: chat.context.clone(),
                copied: Some((from, turns.to_vec())),
                attached: attached_of_fork(chat),
                directories: chat.conversation.state().working_directories.clone(),
                ..Beginning::default()
            })
        }
        Some(ChatSource::SideChat(source)) => {
            if source.selection.as_ref().is_some_and(|selection| selection.text.is_empty()) {
                return Err(RpcError::invalid_params("`source.selection.text` must not be empty"));
            }
            let (_, chat) = source_chat(ledger, key, &source.chat)?;
            let (history, state) = (chat.conversation.history(), chat.conversation.state());
            let mut context = chat.context.clone();
            match (history.through(&source.turn_id), &state.active_turn) {
                (Some(turns), _) => context.extend_from_slice(turns),
                (None, Some(active)) if active.id == source.turn_id => {
                    context.extend_from_slice(history.turns());
                    context.push(CompletedTurn::of(&snapshot_of_active_turn(active)));
                }
                (None, _) => {
                    return Err(RpcError::invalid_params(format_args!(
                        "`source.turnId`: that chat has no turn `{}`",
                        source.turn_id
                    )));
                }
            }
            let (turn_id, selection) = (source.turn_id, source.selection);
            let mut attached = attached_by_position(chat);
            attached.retain(|position, _| *position < context.len());
            Ok(Beginning {
                origin: ChatOrigin::SideChat { chat: chat.channel.uri.clone(), turn_id, selection },
                context,
                attached: Attached { context: attached, ..Attached::default() },
                ..Beginning::default()
            })
        }
        Some(ChatSource::Unknown(_)) => Err(RpcError::invalid_params(
            "`source` must be a `fork` or a `sideChat`, with a `chat` and a `turnId`",
        )),
    }
}

/// Returns the transcripts that belong to the turns of a chat that is forked.
pub(super) fn attached_of_fork(source: &Chat) -> Attached {
    let Attached { context, turns, .. } = source.attached.clone();
    Attached { context, turns, ..Attached::default() }
}

fn source_chat<'a>(ledger: &'a Ledger, key: SessionKey, uri: &str) -> Result<(ChatKey, &'a Chat), RpcError> {
    let chat = ledger.find_chat(uri);
    let found = chat.and_then(|key| ledger.channels.chats.known(key).map(|chat| (key, chat)));
    found.filter(|(_, chat)| chat.session == key).ok_or_else(|| {
        RpcError::invalid_params(format_args!("`source.chat`: this session has no chat `{uri}`"))
    })
}

pub(in crate::host) fn add_chat(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    uri: String,
    from: Beginning,
) -> ChatKey {
    ahead::begin_session(ledger, step, key);
    let chat = ChatKey(ledger.fresh_key());
    let state = ChatState { movable: Some(true), ..empty_chat(uri.clone(), CHAT_TITLE, &step.timestamp()) };
    // The next number is that of the action that adds the chat to its session.
    let channel = Channel::new(uri.clone(), ledger.head() + 1);
    let new = beginning_chat(ledger, channel, key, state, from);
    let summary = row_of(new.conversation.state());
    ledger.channels.by_uri.insert(uri, chat.into());
    ledger.channels.chats.insert(chat, new);
    ledger.mark_dirty(chat.into());
    let added = StateAction::SessionChatAdded(SessionChatAddedAction { summary });
    ledger.sequence(step, key, added, None);
    catalogue::sync_session(ledger, step, key);
    ledger.note_edited(key, true);
    chat
}

pub(in crate::host) fn beginning_chat(
    ledger: &mut Ledger,
    channel: Channel,
    key: SessionKey,
    mut state: ChatState,
    from: Beginning,
) -> Chat {
    state.origin = Some(from.origin);
    state.working_directories = from.directories;
    state.draft = from.draft;
    let mut title_by = TitleBy::Nobody;
    if let Some(title) = from.title {
        state.title = title;
        title_by = TitleBy::Agent;
    }
    let (mut progress, mut attached) = (BTreeMap::new(), from.attached);
    let mut history: History = from.turns.into_iter().collect();
    if let Some((source, mut turns)) = from.copied {
        terminals::copy_terminals(ledger, &channel.uri, &mut turns);
        if let Some(source) = ledger.channels.chats.known(source) {
            state.title.clone_from(&source.conversation.state().title);
            title_by = source.title_by;
            progress = source.progress.clone();
        }
        history = turns.into_iter().collect();
        let last = history.last().and_then(CompletedTurn::read);
        if last.is_some_and(|turn| turn.state == TurnState::Error) {
            state.status = SessionStatus::Error.bits();
        }
    }
    progress.retain(|id, _| history.contains(id));
    attached.turns.retain(|id, _| history.contains(id));
    let new = Chat::new(channel, key, Conversation::new(state, history));
    Chat { context: from.context, title_by, progress, attached, handle: from.handle, ..new }
}

/// Removes a chat from its session's list, and its notes.
pub(in crate::host) fn remove_chat_row(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    chat: &str,
) {
    let removed = StateAction::SessionChatRemoved(SessionChatRemovedAction { chat: chat.to_owned() });
    ledger.sequence(step, key, removed, None);
    notes::take_notes(ledger, step, key, chat);
    catalogue::sync_session(ledger, step, key);
}

/// Makes another chat the default one; the former default chat becomes movable.
pub(in crate::host) fn change_default_chat(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    chat: String,
    origin: Option<ActionOrigin>,
) {
    let before = ledger.channels.sessions.known(key).and_then(|session| session.state.default_chat.clone());
    set_default_chat(ledger, step, key, chat, origin);
    if let Some(before) = before {
        set_movable(ledger, step, &before, true);
    }
}

/// Makes a chat the default one, after making it immovable: a default chat is never movable.
pub(in crate::host) fn set_default_chat(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    chat: String,
    origin: Option<ActionOrigin>,
) {
    set_movable(ledger, step, &chat, false);
    let changed = SessionDefaultChatChangedAction { default_chat: Some(chat) };
    ledger.sequence(step, key, StateAction::SessionDefaultChatChanged(changed), origin);
    catalogue::sync_session(ledger, step, key);
}

pub(in crate::host) fn set_movable(ledger: &mut Ledger, step: &mut Step<'_>, uri: &str, movable: bool) {
    let Some(chat) = ledger.find_chat(uri) else { return };
    let changes = |chat: &Chat| chat.conversation.state().movable != Some(movable);
    if ledger.channels.chats.known(chat).is_some_and(changes) {
        let action = StateAction::ChatMovableChanged(ChatMovableChangedAction { movable });
        ledger.sequence(step, chat, action, None);
        catalogue::sync_chat(ledger, step, chat);
    }
}

/// Returns the running turn as a completed one, in its present extent.
fn snapshot_of_active_turn(turn: &ActiveTurn) -> Turn {
    Turn {
        id: turn.id.clone(),
        started_at: Some(turn.started_at.clone()),
        duration: None,
        message: turn.message.clone(),
        response_parts: turn.response_parts.clone(),
        usage: turn.usage.clone(),
        state: TurnState::Cancelled,
    }
}
