//! Chats that are moved to another session.
//!
//! Owns: the order of the steps, each of which is an owner's.
//! Never: holds state.

use ahp_types::actions::{SessionChatAddedAction, StateAction};
use ahp_types::commands::{ChatMoveDestination, MoveChatParams, MoveChatResult};
use ahp_types::notifications::SessionAddedParams;
use ahp_types::state::{SessionLifecycle, SessionStatus};

use crate::host::catalogue::{row_of, summary_of};
use crate::host::effects::ChatKey;
use crate::host::model::{creating_session, Channel, Session, SessionKey};
use crate::host::rows::WrittenRows;
use crate::host::{
    ahead, annotations, catalogue, conversations, directories, handlers, notes, terminals, Host, Step,
};
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
        let from = handlers::moves::movable_from(&self.ledger, key)?;
        match params.destination {
            ChatMoveDestination::Session(to) => {
                let Some(session) = self.ledger.find_session(&to.session) else {
                    return Err(self.ledger.not_found(&to.session));
                };
                handlers::moves::check_anchor(&self.ledger, session, &params.channel, to.after.as_deref())?;
                if session != from {
                    handlers::moves::check_may_join(&self.ledger, &self.agents, key, session)?;
                    self.hand_over(step, key, session);
                }
                handlers::moves::place_behind(
                    &mut self.ledger,
                    step,
                    session,
                    &params.channel,
                    to.after.as_deref(),
                );
                Ok(MoveChatResult { session: to.session })
            }
            ChatMoveDestination::NewSession(_) => {
                handlers::moves::check_at_rest(&self.ledger, key)?;
                Ok(MoveChatResult { session: self.move_to_new_session(step, key)? })
            }
            ChatMoveDestination::Unknown(_) => Err(RpcError::invalid_params(
                "`destination` must be a `newSession`, or a `session` that it names",
            )),
        }
    }

    /// Makes a chat one of another session. Its agent forgets the conversation: it is opened anew,
    /// as one of that session, for the next turn.
    pub(super) fn hand_over(&mut self, step: &mut Step<'_>, key: ChatKey, to: SessionKey) {
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
    pub(super) fn move_to_new_session(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
    ) -> Result<String, RpcError> {
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
