//! Client actions on a session's channel.
//!
//! Owns: their conditions and what follows from them.
//! Never: touches a chat's conversation.

use crate::host::ahead;
use crate::host::clients;
use crate::host::directories;
use crate::host::handlers;
use crate::host::settings;
use ahp::reducers::apply_action_to_session;
use ahp_types::actions::{ActionOrigin, SessionDefaultChatChangedAction, StateAction};

use super::Verdict;
use crate::host::config::check_change;
use crate::host::model::{SessionKey, TitleBy};
use crate::host::refusal::Refusal;
use crate::host::{Host, Step};

impl Host {
    pub(in crate::host) fn change_session(
        &mut self,
        step: &mut Step<'_>,
        key: SessionKey,
        action: StateAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        if matches!(
            action,
            StateAction::SessionWorkingDirectorySet(_)
                | StateAction::SessionWorkingDirectoryRemoved(_)
                | StateAction::SessionWorkingDirectoryReplaced(_)
        ) {
            return directories::client_changes_directories(
                &mut self.ledger,
                &self.agents,
                step,
                key,
                action,
                origin,
            );
        }
        let Some(session) = self.ledger.channels.sessions.known_mut(key) else {
            return Ok(Verdict::Unchanged);
        };
        match &action {
            StateAction::SessionTitleChanged(_) => session.title_by = TitleBy::User,
            StateAction::SessionIsReadChanged(_) | StateAction::SessionIsArchivedChanged(_) => {}
            StateAction::SessionConfigChanged(a) => match &session.state.config {
                Some(config) => check_change(config, &a.config, a.replace == Some(true))?,
                None => return Err(Refusal::NothingToConfigure),
            },
            StateAction::SessionDefaultChatChanged(a) => match &a.default_chat {
                Some(chat) if session.state.chats.iter().any(|row| row.resource == *chat) => {}
                Some(chat) => return Err(Refusal::NoChatOfSession(chat.clone())),
                None => return Err(Refusal::DefaultChatNeeded),
            },
            StateAction::SessionActiveClientSet(a) => only_itself(&origin, &a.active_client.client_id)?,
            StateAction::SessionActiveClientRemoved(a) => only_itself(&origin, &a.client_id)?,
            _ => return Err(Refusal::NotServedOn("a session's channel")),
        }
        let mut after = session.state.clone();
        apply_action_to_session(&mut after, &action);
        let unchanged = after == session.state;
        let before = session.state.config.as_ref().map(|config| config.values.clone());
        let configured = before.filter(|_| matches!(action, StateAction::SessionConfigChanged(_)));
        if let StateAction::SessionActiveClientSet(a) = &action {
            self.clients.client_is_back(key, &a.active_client.client_id);
        }
        if unchanged {
            return Ok(Verdict::Unchanged);
        }
        if let StateAction::SessionDefaultChatChanged(SessionDefaultChatChangedAction {
            default_chat: Some(chat),
        }) = action
        {
            handlers::chats::change_default_chat(&mut self.ledger, step, key, chat, Some(origin));
            return Ok(Verdict::Done);
        }
        if let StateAction::SessionActiveClientRemoved(a) = &action {
            self.clients.remove_active_client(&mut self.ledger, step, key, &a.client_id, Some(origin));
            return Ok(Verdict::Done);
        }
        let offers = matches!(action, StateAction::SessionActiveClientSet(_));
        let names = matches!(action, StateAction::SessionTitleChanged(_));
        self.ledger.sequence(step, key, action, Some(origin));
        if offers {
            clients::tell_tools_in(&mut self.ledger, step, key);
        }
        if let Some(before) = configured {
            settings::configure_agents(&mut self.ledger, step, key, &before);
        }
        self.ledger.session_changed(key);
        if names {
            ahead::begin_session(&mut self.ledger, step, key);
        }
        Ok(Verdict::Done)
    }
}

/// Clients come and go on their own account.
fn only_itself(origin: &ActionOrigin, client_id: &str) -> Result<(), Refusal> {
    if client_id == origin.client_id {
        Ok(())
    } else {
        Err(Refusal::NotItself(origin.client_id.clone()))
    }
}
