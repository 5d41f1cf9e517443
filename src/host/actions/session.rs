//! Client actions on a session's channel.
//!
//! Owns: their conditions and what follows from them.
//! Never: touches a chat's conversation.

use ahp::reducers::apply_action_to_session;
use ahp_types::actions::{ActionOrigin, SessionDefaultChatChangedAction, StateAction};

use super::{Refusal, Verdict};
use crate::host::model::{SessionKey, Target, TitleBy};
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
        if let StateAction::SessionDefaultChatChanged(SessionDefaultChatChangedAction {
            default_chat: Some(chat),
        }) = action
        {
            self.change_default_chat(step, key, chat, Some(origin));
            return Ok(Verdict::Done);
        }
        self.sequence(step, Target::Session(key), action, Some(origin));
        self.session_changed(key);
        Ok(Verdict::Done)
    }
}
