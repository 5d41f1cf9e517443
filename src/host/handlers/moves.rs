//! `moveChat`: a chat gets another place in its session, or another session.
//!
//! Owns: whether a chat may go where it is asked to, and going there as one step: nothing of a move
//! that is refused is ever seen.
//! Never: moves other chats with it. A fork or a side chat only remembers where it came from.

use crate::host::agents::AgentRegistry;
use crate::host::ahead;
use crate::host::annotations;
use crate::host::catalogue;
use crate::host::conversations;
use crate::host::directories;
use crate::host::handlers;
use crate::host::ledger::Ledger;
use crate::host::notes;
use crate::host::terminals;
use ahp_types::actions::{SessionChatAddedAction, SessionChatsReorderedAction, StateAction};
use ahp_types::commands::{ChatMoveDestination, MoveChatParams, MoveChatResult};
use ahp_types::notifications::SessionAddedParams;
use ahp_types::state::{SessionLifecycle, SessionStatus};

use super::chats::CHATS_MAX;
use crate::host::catalogue::{row_of, summary_of};
use crate::host::effects::ChatKey;
use crate::host::model::{creating_session, Channel, Session, SessionKey};
use crate::host::rows::WrittenRows;
use crate::host::{Host, Step};
use crate::wire::errors::RpcError;

impl Host {
    /// Moves a chat. Answers which session it belongs to now.
    pub(in crate::host) fn move_chat(
        &mut self,
        step: &mut Step<'_>,
        params: MoveChatParams,
    ) -> Result<MoveChatResult, RpcError> {
        let Some(key) = self.ledger.find_chat(&params.channel) else {
            return Err(self.ledger.not_found(&params.channel));
        };
        let from = movable_from(&self.ledger, key)?;
        match params.destination {
            ChatMoveDestination::Session(to) => {
                let Some(session) = self.ledger.find_session(&to.session) else {
                    return Err(self.ledger.not_found(&to.session));
                };
                check_anchor(&self.ledger, session, &params.channel, to.after.as_deref())?;
                if session != from {
                    check_may_join(&self.ledger, &self.agents, key, session)?;
                    self.hand_over(step, key, session);
                }
                place_behind(&mut self.ledger, step, session, &params.channel, to.after.as_deref());
                Ok(MoveChatResult { session: to.session })
            }
            ChatMoveDestination::NewSession(_) => {
                check_at_rest(&self.ledger, key)?;
                Ok(MoveChatResult { session: self.move_to_new_session(step, key)? })
            }
            ChatMoveDestination::Unknown(_) => Err(RpcError::invalid_params(
                "`destination` must be a `newSession`, or a `session` that it names",
            )),
        }
    }

    /// Makes a chat one of another session. Its agent forgets the conversation: it is opened anew,
    /// as one of that session, for the next turn.
    fn hand_over(&mut self, step: &mut Step<'_>, key: ChatKey, to: SessionKey) {
        ahead::begin_session(&mut self.ledger, step, to);
        conversations::close_conversation(&mut self.ledger, step, key);
        directories::keep_directories_of(&mut self.ledger, step, key, to);
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        let from = std::mem::replace(&mut chat.session, to);
        let (uri, row) = (chat.channel.uri.clone(), row_of(chat.conversation.state()));
        let notes = notes::take_notes(&mut self.ledger, step, from, &uri);
        handlers::chats::take_from_catalogue(&mut self.ledger, step, from, &uri);
        handlers::chats::reopen_session(&mut self.ledger, &self.agents, step, from);
        if self
            .ledger
            .channels
            .sessions
            .known(to)
            .is_some_and(|to| to.state.chats.iter().all(|it| it.resource != uri))
        {
            let added = StateAction::SessionChatAdded(SessionChatAddedAction { summary: row });
            self.ledger.sequence(step, to, added, None);
        }
        notes::keep_notes(&mut self.ledger, step, to, &uri, notes);
        terminals::hand_terminals_over(&mut self.ledger, step, key);
        self.ledger.note_edited(from, true);
        self.ledger.note_edited(to, true);
        catalogue::sync_session(&mut self.ledger, step, to);
        // Now, and not at the end of the step: by then the session may be gone, and the chat with
        // it.
        self.save_moved(step, key);
    }

    /// Makes a session like the chat's own, of which the chat is the only one.
    fn move_to_new_session(&mut self, step: &mut Step<'_>, key: ChatKey) -> Result<String, RpcError> {
        let chat = self.ledger.channels.chats.needed(key)?;
        let from = handlers::chats::usable_session(&self.ledger, chat.session)?;
        let scheme = from.channel.uri.split_once(':').map_or("ahp-session", |(scheme, _)| scheme).to_owned();
        let uri = loop {
            let uri = format!("{scheme}:/{}", step.ids.fresh());
            if self.ledger.find(&uri).is_none() && self.ledger.why_unreadable(&uri).is_none() {
                break uri;
            }
        };
        let moved = chat.channel.uri.clone();
        handlers::chats::set_movable(&mut self.ledger, step, &moved, false);
        let chat = self.ledger.channels.chats.needed(key)?;
        let from = handlers::chats::usable_session(&self.ledger, chat.session)?;
        let row = row_of(chat.conversation.state());
        let is_read = row.status & SessionStatus::IsRead.bits();
        let (provider, directories) = (from.state.provider.clone(), from.state.working_directories.clone());
        let mut state = creating_session(&uri, provider, directories, row);
        state.lifecycle = SessionLifecycle::Ready;
        state.status |= is_read;
        state.config.clone_from(&from.state.config);
        let now = step.timestamp();
        let session = Session {
            told: summary_of(&uri, &state, &now, &now),
            selected: None,
            changes: None,
            reviewed: Default::default(),
            discarded: Vec::new(),
            kept: Default::default(),
            // The next number is that of the count of sessions, which is told with the session
            // itself.
            channel: Channel::new(uri.clone(), self.ledger.head() + 1),
            state,
            created_at: now.clone(),
            modified_at: now,
            config: from.config.clone(),
            title_by: chat.title_by,
            used: self.ledger.uses(),
            ahead: false,
            shown_at: self.ledger.head(),
            unfollowed: None,
            written_rows: WrittenRows::default(),
        };
        let to = SessionKey(self.ledger.fresh_key());
        self.ledger.channels.by_uri.insert(uri.clone(), to.into());
        self.ledger.channels.sessions.insert(to, session);
        annotations::add_annotations(&mut self.ledger, to, Vec::new());
        self.ledger.mark_dirty(to.into());
        ahead::count_sessions(&mut self.ledger, step, 1);
        self.hand_over(step, key, to);
        let summary = self
            .ledger
            .channels
            .summary(to)
            .ok_or_else(|| RpcError::internal("a session that was just made is gone"))?;
        if let Some(session) = self.ledger.channels.sessions.known_mut(to) {
            session.told = summary.clone();
        }
        let params = SessionAddedParams { channel: self.ledger.channels.root.channel.uri.clone(), summary };
        self.ledger.notify_root(step, "root/sessionAdded", params);
        Ok(uri)
    }
}

/// Whether a chat may become one of another session.
fn check_may_join(
    ledger: &Ledger,
    agents: &AgentRegistry,
    key: ChatKey,
    session: SessionKey,
) -> Result<(), RpcError> {
    check_at_rest(ledger, key)?;
    let to = handlers::chats::usable_session(ledger, session)?;
    handlers::chats::chats_capability(agents, to)?;
    let from = ledger.channels.chats.known(key).and_then(|chat| ledger.channels.sessions.known(chat.session));
    if from.is_none_or(|from| from.state.provider != to.state.provider) {
        return Err(RpcError::invalid_params(format_args!(
            "`destination.session`: `{}` is a session of another agent",
            to.channel.uri
        )));
    }
    if to.state.chats.len() >= CHATS_MAX {
        return Err(RpcError::invalid_params(format_args!(
            "`destination.session`: {CHATS_MAX} chats are in it, which is all that it holds"
        )));
    }
    Ok(())
}

/// The session of a chat that may be moved at all.
fn movable_from(ledger: &Ledger, key: ChatKey) -> Result<SessionKey, RpcError> {
    let chat = ledger.channels.chats.needed(key)?;
    if chat.conversation.state().movable != Some(true) {
        return Err(RpcError::invalid_params(
            "`channel`: this chat is not movable; a session's default chat stays with it",
        ));
    }
    Ok(chat.session)
}

fn check_anchor(
    ledger: &Ledger,
    session: SessionKey,
    chat: &str,
    after: Option<&str>,
) -> Result<(), RpcError> {
    let Some(after) = after else { return Ok(()) };
    if after == chat {
        return Err(RpcError::invalid_params("`destination.after` is the chat itself"));
    }
    let session = ledger.channels.sessions.needed(session)?;
    if session.state.chats.iter().any(|row| row.resource == after) {
        return Ok(());
    }
    Err(RpcError::invalid_params(format_args!(
        "`destination.after`: `{after}` is no chat of `{}`",
        session.channel.uri
    )))
}

fn check_at_rest(ledger: &Ledger, key: ChatKey) -> Result<(), RpcError> {
    let chat = ledger.channels.chats.needed(key)?;
    match &chat.run {
        Some(_) => Err(RpcError::turn_in_progress(&chat.channel.uri)),
        None => Ok(()),
    }
}

/// Puts a chat behind another one of its session, or before all of them.
fn place_behind(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey, chat: &str, after: Option<&str>) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let before: Vec<&str> = session.state.chats.iter().map(|row| row.resource.as_str()).collect();
    let mut order: Vec<&str> = before.iter().copied().filter(|uri| *uri != chat).collect();
    let place = after.and_then(|after| order.iter().position(|uri| *uri == after));
    order.insert(place.map_or(0, |place| place + 1), chat);
    if order != before {
        let chats = order.into_iter().map(str::to_owned).collect();
        let reordered = StateAction::SessionChatsReordered(SessionChatsReorderedAction { chats });
        ledger.sequence(step, key, reordered, None);
        ledger.session_changed(key);
    }
}
