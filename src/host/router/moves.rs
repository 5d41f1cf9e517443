//! Chats that move to another session.
//!
//! Owns: moving a chat's entries in both lists, its terminals, changesets and rows.
//! Never: moves a chat while a turn of it runs.

use ahp_types::actions::{SessionChatAddedAction, StateAction};
use ahp_types::commands::{ChatMoveDestination, MoveChatParams, MoveChatResult};
use ahp_types::state::{Customization, SessionLifecycle, SessionStatus};

use crate::host::agents::{conversations, AgentRegistry};
use crate::host::catalogue::{ahead, notes, row_of};
use crate::host::changes::Changes;
use crate::host::configuration::directories;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::{creating_session, Channel, Session, SessionKey};
use crate::host::{annotations, catalogue, customizations, terminals, Step};
use crate::wire::errors::RpcError;

use super::persistence;

/// Moves a chat. Returns the session that it then belongs to.
pub(super) fn move_chat(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    changes: &Changes,
    step: &mut Step<'_>,
    params: MoveChatParams,
) -> Result<MoveChatResult, RpcError> {
    let Some(key) = ledger.find_chat(&params.channel) else {
        return Err(ledger.not_found(&params.channel));
    };
    let from = catalogue::moves::check_movable(ledger, key)?;
    // The request may name chats by aliases.
    let uri_of = |key: Option<ChatKey>| Some(ledger.channels.chats.known(key?)?.channel.uri.clone());
    let uri = uri_of(Some(key)).unwrap_or(params.channel);
    match params.destination {
        ChatMoveDestination::Session(to) => {
            let Some(session) = ledger.find_session(&to.session) else {
                return Err(ledger.not_found(&to.session));
            };
            let after = to.after.map(|after| uri_of(ledger.find_chat(&after)).unwrap_or(after));
            catalogue::moves::check_anchor(ledger, session, &uri, after.as_deref())?;
            if session != from {
                catalogue::moves::check_may_join(ledger, agents, key, session)?;
                transfer_chat(ledger, agents, changes, step, key, session);
            }
            catalogue::moves::place_behind(ledger, step, session, &uri, after.as_deref());
            Ok(MoveChatResult { session: to.session })
        }
        ChatMoveDestination::NewSession(_) => {
            catalogue::moves::check_idle(ledger, key)?;
            Ok(MoveChatResult { session: move_to_new_session(ledger, agents, changes, step, key)? })
        }
        ChatMoveDestination::Unknown(_) => Err(RpcError::invalid_params(
            "`destination` must be a `newSession`, or a `session` with the URI of a session",
        )),
    }
}

/// Transfers a chat to another session; the next turn opens a new conversation there.
pub(super) fn transfer_chat(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    changes: &Changes,
    step: &mut Step<'_>,
    key: ChatKey,
    to: SessionKey,
) {
    ahead::begin_session(ledger, step, to);
    conversations::close_conversation(ledger, step, key);
    directories::retain_directories_of(ledger, step, key, to);
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let from = std::mem::replace(&mut chat.session, to);
    let (uri, row) = (chat.channel.uri.clone(), row_of(chat.conversation.state()));
    let notes = notes::take_notes(ledger, step, from, &uri);
    catalogue::chats::remove_chat_row(ledger, step, from, &uri);
    catalogue::chats::reopen_session(ledger, agents, step, from);
    if ledger.channels.sessions.known(to).is_some_and(|to| to.state.chats.iter().all(|it| it.resource != uri))
    {
        let added = StateAction::SessionChatAdded(SessionChatAddedAction { summary: row });
        ledger.sequence(step, to, added, None);
    }
    directories::replace_lost_directories(ledger, step, key);
    notes::save_notes(ledger, step, to, &uri, notes);
    terminals::transfer_terminals(ledger, step, key);
    // A new session shows the servers of the former one, which this chat's conversation had.
    customizations::refresh_session(ledger, step, to);
    ledger.note_edited(from, true);
    ledger.note_edited(to, true);
    catalogue::sync_session(ledger, step, to);
    // At the end of the step, the former session may be gone, and the chat with it.
    persistence::save_moved(ledger, changes, step, key);
}

pub(super) fn move_to_new_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    changes: &Changes,
    step: &mut Step<'_>,
    key: ChatKey,
) -> Result<String, RpcError> {
    let chat = ledger.channels.chats.needed(key)?;
    let from = catalogue::chats::usable_session(ledger, chat.session)?;
    let scheme = from.channel.uri.split_once(':').map_or("ahp-session", |(scheme, _)| scheme).to_owned();
    let uri = loop {
        let uri = format!("{scheme}:/{}", step.ids.fresh());
        if ledger.find(&uri).is_none() && ledger.why_unreadable(&uri).is_none() {
            break uri;
        }
    };
    let moved = chat.channel.uri.clone();
    catalogue::chats::set_movable(ledger, step, &moved, false);
    let chat = ledger.channels.chats.needed(key)?;
    let from = catalogue::chats::usable_session(ledger, chat.session)?;
    let row = row_of(chat.conversation.state());
    let is_read = row.status & SessionStatus::IsRead.bits();
    let (provider, directories) = (from.state.provider.clone(), from.state.working_directories.clone());
    let mut state = creating_session(&uri, provider, directories, row);
    state.lifecycle = SessionLifecycle::Ready;
    state.status |= is_read;
    state.config.clone_from(&from.state.config);
    let servers = from.state.customizations.iter().flatten();
    let servers = servers.filter(|it| matches!(it, Customization::McpServer(_)));
    // The plugins are those of clients that are active in the other session.
    state.customizations = Some(servers.cloned().collect::<Vec<_>>()).filter(|all| !all.is_empty());
    let now = step.timestamp();
    // The next number is that of the count of sessions, which is sent with the session itself.
    let channel = Channel::new(uri.clone(), ledger.head() + 1);
    let session = Session {
        used: ledger.uses(),
        stopped_servers: from.stopped_servers.clone(),
        ..Session::new(channel, state, (now.clone(), now), from.config.clone(), chat.title_by)
    };
    let to = SessionKey(ledger.fresh_key());
    ledger.channels.by_uri.insert(uri.clone(), to.into());
    ledger.channels.sessions.insert(to, session);
    annotations::add_annotations(ledger, to, Vec::new());
    ledger.mark_dirty(to.into());
    ahead::count_sessions(ledger, step, 1);
    transfer_chat(ledger, agents, changes, step, key, to);
    ahead::announce(ledger, step, to);
    Ok(uri)
}
