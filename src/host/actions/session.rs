//! Client actions on a session's channel.
//!
//! Owns: their conditions and what follows from them.
//! Never: touches a chat's conversation.

use ahp::reducers::apply_action_to_session;
use ahp_types::actions::{ActionOrigin, StateAction};

use super::{Refusal, Verdict};
use crate::host::config::check_change;
use crate::host::effects::Command;
use crate::host::model::{AgentLink, SessionKey, Target, TitleBy};
use crate::host::{Host, Step};

impl Host {
    pub(super) fn change_session(
        &mut self,
        step: &mut Step<'_>,
        key: SessionKey,
        action: StateAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(Verdict::Unchanged) };
        match &action {
            StateAction::SessionTitleChanged(_) => session.title_by = TitleBy::User,
            StateAction::SessionIsReadChanged(_) | StateAction::SessionIsArchivedChanged(_) => {}
            StateAction::SessionConfigChanged(a) => match &session.state.config {
                Some(config) => check_change(config, &a.config, a.replace == Some(true))?,
                None => return Err("there is nothing to configure in this session".to_owned()),
            },
            StateAction::SessionDefaultChatChanged(a) => match &a.default_chat {
                Some(chat) if session.state.chats.iter().any(|row| row.resource == *chat) => {}
                Some(chat) => return Err(format!("`{chat}` is no chat of this session")),
                None => return Err("a session always has a default chat".to_owned()),
            },
            _ => return Err("not served on a session's channel".to_owned()),
        }
        let mut after = session.state.clone();
        apply_action_to_session(&mut after, &action);
        if after == session.state {
            return Ok(Verdict::Unchanged);
        }
        let configures = matches!(action, StateAction::SessionConfigChanged(_));
        self.sequence(step, Target::Session(key), action, Some(origin));
        if configures {
            self.configure_agents(step, key);
        }
        self.session_changed(key);
        Ok(Verdict::Done)
    }

    /// Tells the agents of a session how it is configured now; those that open later are told then.
    fn configure_agents(&mut self, step: &mut Step<'_>, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let Some(config) = &session.state.config else { return };
        session.config.clone_from(&config.values);
        let values = config.values.clone();
        for chat in self.chats_of(key) {
            if self.chats.get(&chat).is_some_and(|chat| chat.agent != AgentLink::Closed) {
                self.tell_agent(step, chat, Command::Configure(values.clone()));
            }
        }
    }
}
