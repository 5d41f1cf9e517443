//! Creation and disposal of chats.
//!
//! Owns: the steps from `createChat` to a chat that its session lists (fork, side chat, first
//! message), and the consequences of `disposeChat`.
//! Never: opens a conversation with an agent: `host::agents::conversations` does.

use ahp_types::commands::{CreateChatParams, DisposeChatParams};

use crate::host::agents::{conversations, progress};
use crate::host::catalogue::chats::CHATS_MAX;
use crate::host::chats::{attached, pending, turns};
use crate::host::configuration::{directories, selection};
use crate::host::effects::{ChatKey, ConnectionId, Output, Record};
use crate::host::limits::URI_BYTES_MAX;
use crate::host::{catalogue, configuration, Host, Step};
use crate::wire::errors::RpcError;
use crate::wire::selection::Selection;
use crate::wire::uris::{default_chat_of, may_name_a_chat};

impl Host {
    /// Opens another chat in a session. A first message that names no model or agent uses
    /// `selection`.
    pub(super) fn create_chat(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        mut params: CreateChatParams,
        selection: Option<&Selection>,
    ) -> Result<(), RpcError> {
        let Some(key) = self.ledger.find_session(&params.channel) else {
            return Err(self.ledger.not_found(&params.channel));
        };
        let session = catalogue::chats::usable_session(&self.ledger, key)?;
        let agent = configuration::requests::find_agent(&self.agents, Some(&session.state.provider))?;
        self.agents.check_tokens(&self.ledger, step, connection, agent)?;
        let can = catalogue::chats::chats_capability(&self.agents, session)?;
        if session.state.chats.len() >= CHATS_MAX {
            return Err(RpcError::invalid_params(format_args!(
                "this session has {CHATS_MAX} chats already, the maximum"
            )));
        }
        let own = default_chat_of(&session.channel.uri);
        let may_name = may_name_a_chat(&params.chat) && params.chat.len() <= URI_BYTES_MAX;
        if params.chat != own && !may_name {
            return Err(RpcError::invalid_params(
                "`chat`: a chat's URI is `ahp-chat:/<id>`, of at most 4,096 bytes",
            ));
        }
        if self.ledger.find(&params.chat).is_some() || self.ledger.why_unreadable(&params.chat).is_some() {
            return Err(RpcError::already_exists(&params.chat));
        }
        let directories = directories::chosen_directories(
            &self.ledger,
            &self.agents,
            key,
            params.working_directories.as_deref(),
        )
        .map_err(|why| RpcError::invalid_params(format_args!("`workingDirectories`: {why}")));
        let attached = match &mut params.initial_message {
            Some(message) => selection::check_message(&self.ledger, &self.agents, key, message)
                .and_then(|()| attached::resolve_attached(&self.ledger, message))
                .map_err(|why| RpcError::invalid_params(format_args!("`initialMessage`: {why}")))?,
            None => Vec::new(),
        };
        let mut beginning = catalogue::chats::beginning_of(&self.ledger, key, can, params.source)?;
        // A fork works in the directories of its source.
        if beginning.copied.is_none() {
            beginning.directories = directories?;
        }
        if let Some(selection) = selection {
            let provider =
                self.ledger.channels.sessions.known(key).map(|session| session.state.provider.clone());
            beginning.draft = selection::first_draft(&self.agents, &provider.unwrap_or_default(), selection)?;
        }
        // A chat of this URI may have moved away before it was disposed of.
        self.changes.checkpoints.release_chat(&mut self.ledger, key, &params.chat);
        let chat = catalogue::chats::add_chat(&mut self.ledger, step, key, params.chat, beginning);
        catalogue::chats::set_requesting_client(&mut self.ledger, chat, connection);
        if let Some(mut message) = params.initial_message {
            if selection.is_some() {
                selection::address(&self.ledger, &self.agents, chat, &mut message);
            }
            let turn_id = pending::fresh_turn_id(&self.ledger, step, chat);
            attached::attach_to_turn(&mut self.ledger, chat, &turn_id, attached);
            self.begin_turn(step, chat, turns::turn_started(turn_id, message, None), None, false);
        }
        Ok(())
    }

    /// Cancels a chat's turn, closes its conversation, and removes its channel.
    pub(super) fn dispose_chat(
        &mut self,
        step: &mut Step<'_>,
        params: &DisposeChatParams,
    ) -> Result<(), RpcError> {
        let Some(chat) = self.ledger.find_chat(&params.channel) else {
            return Err(self.ledger.not_found(&params.channel));
        };
        let of_chat = self.ledger.channels.chats.needed(chat)?;
        // The request may name the chat by an alias.
        let (key, uri) = (of_chat.session, of_chat.channel.uri.clone());
        let session = self.ledger.channels.sessions.needed(key)?;
        let mut others = session.state.chats.iter().filter(|row| row.resource != uri);
        let Some(heir) = others.next().map(|row| row.resource.clone()) else {
            return Err(RpcError::invalid_params(
                "`channel`: the last chat of a session cannot be disposed of; dispose of the session instead",
            ));
        };
        self.end_chat(step, chat);
        if self.ledger.channels.is_default(chat) {
            catalogue::chats::set_default_chat(&mut self.ledger, step, key, heir, None);
        }
        catalogue::chats::remove_chat_row(&mut self.ledger, step, key, &uri);
        catalogue::sessions::remove_chat(&mut self.ledger, step, chat);
        self.changes.checkpoints.release_chat(&mut self.ledger, key, &uri);
        self.ledger.mark_clean(chat.into());
        step.emit(Output::Record(Record::ChatRemoved { key: chat, uri }));
        catalogue::chats::reopen_session(&mut self.ledger, &self.agents, step, key);
        Ok(())
    }

    /// Cancels the turn of a chat that is about to be removed, completes the progress of its
    /// opening, and closes its conversation. What ends with a conversation changes the chat's row,
    /// so the row is removed later.
    pub(super) fn end_chat(&mut self, step: &mut Step<'_>, chat: ChatKey) {
        // Steering messages that the agent has not accepted have no next turn.
        if let Some(chat) = self.ledger.channels.chats.known_mut(chat) {
            chat.sent_steering.clear();
            chat.sent_listed.clear();
        }
        self.cancel_turn(step, chat);
        progress::opening_finished(&mut self.ledger, step, chat);
        conversations::close_conversation(&mut self.ledger, step, chat);
    }
}
