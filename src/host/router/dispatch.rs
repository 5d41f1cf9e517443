//! Actions of clients, from the dispatch to the answer.
//!
//! Owns: reading an action, checking it against the state and its limits, sequencing it, and
//! answering its sender; which action on a chat has further effects (a draft is sent, a selection
//! is made), and which actions on sessions have effects elsewhere; and the conditions that need
//! several owners. `host::actions` has the conditions that need only the ledger.
//! Never: changes a state other than by sequencing.

use ahp::reducers::apply_action_to_session;
use ahp_types::actions::{ActionOrigin, SessionDefaultChatChangedAction, StateAction};

use crate::host::actions::Verdict;
use crate::host::agents::{conversations, AgentRegistry};
use crate::host::catalogue::ahead;
use crate::host::clients::Clients;
use crate::host::configuration::selection::{PendingAction, CHAT_WITHOUT_TURNS};
use crate::host::configuration::values::check_change;
use crate::host::configuration::{directories, selection, settings};
use crate::host::effects::{ChannelId, ChatKey, ConnectionId, DispatchMode, SessionKey};
use crate::host::ledger::Ledger;
use crate::host::model::{Session, TitleBy};
use crate::host::refusal::Refusal;
use crate::host::{actions, catalogue, clients, customizations, Host, Step};
use crate::state::steering::SteeringChange;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::DispatchActionParams;
use crate::wire::rpc::json_bytes;

use super::kinds;

impl Host {
    /// Carries out a client's action, or sends the client the reason for its rejection. With a
    /// `session`, the channel must be a chat of that session.
    ///
    /// # Errors
    /// When `params` are not a valid envelope. An invalid action in a valid envelope is answered by
    /// an echo with a `rejectionReason`.
    pub(super) fn dispatch_action(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: DispatchActionParams,
        mode: &DispatchMode,
        session: Option<&str>,
    ) -> Result<(), RpcError> {
        let target = self.ledger.find(&params.channel);
        let is_absent = target.is_none();
        let unreadable = if is_absent { self.ledger.why_unreadable(&params.channel) } else { None };
        // The channel that the client has named is the session, which exists.
        let lacks_chat =
            is_absent && session.is_some_and(|session| self.ledger.find_session(session).is_some());
        // "Server MUST silently ignore the action (no echo)": chat and session channel pages.
        if is_absent && unreadable.is_none() && !lacks_chat {
            tracing::debug!(channel = params.channel, "an action on an unknown channel was ignored");
            return Ok(());
        }
        let client_id = self.ledger.presence.client_of(connection).map(str::to_owned);
        let origin = ActionOrigin { client_id: client_id.unwrap_or_default(), client_seq: params.client_seq };
        let verdict = match (target, self.ledger.failing()) {
            (None, _) => Err(match unreadable {
                Some(reason) => Refusal::SessionUnreadable(reason.clone()),
                None => Refusal::NoChatOfSession(params.channel.clone()),
            }),
            (_, Some(failing)) => Err(Refusal::NothingIsKept(failing.reason.clone())),
            (Some(target), None)
                if session.is_some_and(|session| !is_chat_of(&self.ledger, target, session)) =>
            {
                Err(Refusal::NoChatOfSession(params.channel.clone()))
            }
            (Some(target), None) => {
                let asked = PendingAction {
                    connection,
                    channel: params.channel.clone(),
                    action: params.action.clone(),
                    origin: origin.clone(),
                };
                let (ledger, agents) = (&mut self.ledger, &self.agents);
                if let DispatchMode::Selecting { change, for_all_chats } = mode {
                    selection::client_selects(ledger, agents, step, target, asked, change, *for_all_chats)
                } else {
                    read_asked(ledger, target, &asked, mode).and_then(|action| {
                        let as_selected = *mode == DispatchMode::Selected;
                        self.change(step, target, action, asked.origin, as_selected)
                    })
                }
            }
        };
        let mut answer = |refusal| {
            self.ledger.answer_action(step, connection, &params.channel, &params.action, &origin, refusal);
        };
        match &verdict {
            Ok(Verdict::Done) => {}
            Ok(Verdict::Unchanged) => answer(None),
            Err(refusal) => answer(Some(refusal)),
        }
        if let Some(target) = target {
            self.after_answer(step, target);
        }
        Ok(())
    }

    /// Carries out an action on a chat; `as_selected` if the chat's selection applies to it.
    pub(super) fn change_chat_as_selected(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        mut action: StateAction,
        origin: ActionOrigin,
        as_selected: bool,
    ) -> Result<Verdict, Refusal> {
        // Real clients name a chat by this action, and also a session, which they show by its
        // default chat.
        if let StateAction::SessionTitleChanged(a) = &action {
            catalogue::name_chat(&mut self.ledger, step, key, &a.title, TitleBy::User);
            let session = self.ledger.channels.chats.known(key).map(|chat| chat.session);
            if let Some(session) = session.filter(|_| self.ledger.channels.is_default(key)) {
                catalogue::name_session(&mut self.ledger, step, session, &a.title, TitleBy::User);
            }
            return Ok(Verdict::Unchanged);
        }
        let pending = match &mut action {
            StateAction::ChatTurnStarted(action) if as_selected => {
                selection::address(&self.ledger, &self.agents, key, &mut action.message);
                None
            }
            StateAction::ChatTruncated(action) if as_selected => {
                selection::save_selection(&mut self.ledger, step, key, action);
                None
            }
            StateAction::ChatPendingMessageSet(action) => Some((action.id.clone(), as_selected)),
            StateAction::ChatPendingMessageRemoved(action) => Some((action.id.clone(), false)),
            _ => None,
        };
        let verdict = self.change_chat(step, key, action, origin)?;
        if let Some((id, follows)) = pending {
            selection::set_following_selection(&mut self.ledger, key, &id, follows);
        }
        Ok(verdict)
    }
}

pub(super) fn is_chat_of(ledger: &Ledger, target: ChannelId, session: &str) -> bool {
    let chat = target.chat().and_then(|key| ledger.channels.chats.known(key));
    chat.is_some_and(|chat| ledger.find_session(session) == Some(chat.session))
}

/// Checks that a client adds or removes only itself as an active client.
fn check_own_client(origin: &ActionOrigin, client_id: &str) -> Result<(), Refusal> {
    if client_id == origin.client_id {
        Ok(())
    } else {
        Err(Refusal::NotItself(origin.client_id.clone()))
    }
}

/// Reads an action that a client dispatches in this mode, and checks the size limit.
fn read_asked(
    ledger: &mut Ledger,
    target: ChannelId,
    asked: &PendingAction,
    mode: &DispatchMode,
) -> Result<StateAction, Refusal> {
    let action = match (mode, target.session()) {
        (DispatchMode::OfferingTools(tools), Some(session)) => {
            clients::offer_of_tools(ledger, session, &asked.origin.client_id, tools)?
        }
        _ => match actions::steering::read_change(ledger, target, &asked.action)? {
            Some(change) => change,
            None => kinds::read_dispatched(target.kind, &asked.action)?,
        },
    };
    check_state_limit(ledger, target, &action)?;
    Ok(action)
}

pub(super) fn change_session(
    ledger: &mut Ledger,
    agents: &mut AgentRegistry,
    clients: &mut Clients,
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
        let verdict = directories::client_changes_directories(ledger, agents, step, key, action, origin)?;
        customizations::update_session(ledger, step, key);
        return Ok(verdict);
    }
    if matches!(
        action,
        StateAction::SessionCustomizationToggled(_)
            | StateAction::SessionMcpServerStartRequested(_)
            | StateAction::SessionMcpServerStopRequested(_)
            | StateAction::SessionMcpServerBackgroundRequested(_)
    ) {
        let starts = matches!(action, StateAction::SessionMcpServerStartRequested(_));
        let verdict =
            customizations::client_changes_customization(ledger, agents, step, key, action, origin)?;
        if starts {
            conversations::open_session_if_closed(ledger, agents, step, key);
        }
        return Ok(verdict);
    }
    let Some(session) = ledger.channels.sessions.known_mut(key) else {
        return Ok(Verdict::Unchanged);
    };
    check_session_action(session, &action, &origin)?;
    let names = matches!(action, StateAction::SessionTitleChanged(_));
    // The same title, too: agents must not replace it any more.
    let is_named_first = names && std::mem::replace(&mut session.title_by, TitleBy::User) != TitleBy::User;
    let mut after = session.state.clone();
    apply_action_to_session(&mut after, &action);
    let unchanged = after == session.state;
    let before = session.state.config.as_ref().map(|config| config.values.clone());
    let configured = before.filter(|_| matches!(action, StateAction::SessionConfigChanged(_)));
    if let StateAction::SessionActiveClientSet(a) = &action {
        clients.client_returned(key, &a.active_client.client_id);
        if session.plugins.retry_failed(&a.active_client.client_id) && unchanged {
            clients::plugins_may_differ(ledger, step, key);
        }
    }
    if is_named_first {
        ledger.mark_dirty(key.into());
    }
    if unchanged {
        return Ok(Verdict::Unchanged);
    }
    if let StateAction::SessionDefaultChatChanged(SessionDefaultChatChangedAction {
        default_chat: Some(chat),
    }) = action
    {
        catalogue::chats::change_default_chat(ledger, step, key, chat, Some(origin));
        return Ok(Verdict::Done);
    }
    if let StateAction::SessionActiveClientRemoved(a) = &action {
        clients.remove_active_client(ledger, step, key, &a.client_id, Some(origin));
        return Ok(Verdict::Done);
    }
    let offers = matches!(action, StateAction::SessionActiveClientSet(_));
    ledger.sequence(step, key, action, Some(origin));
    if offers {
        clients::send_tools_of_session(ledger, step, key);
        clients::plugins_may_differ(ledger, step, key);
    }
    if let Some(before) = configured {
        settings::send_configuration(ledger, step, key, &before, None);
    }
    ledger.session_changed(key);
    if names {
        ahead::begin_session(ledger, step, key);
    }
    Ok(Verdict::Done)
}

/// Checks an action of a client on a session.
fn check_session_action(
    session: &Session,
    action: &StateAction,
    origin: &ActionOrigin,
) -> Result<(), Refusal> {
    match action {
        StateAction::SessionTitleChanged(_)
        | StateAction::SessionIsReadChanged(_)
        | StateAction::SessionIsArchivedChanged(_) => Ok(()),
        StateAction::SessionConfigChanged(a) => match &session.state.config {
            Some(config) => check_change(config, &a.config, a.replace == Some(true)),
            None => Err(Refusal::NothingToConfigure),
        },
        StateAction::SessionDefaultChatChanged(a) => match &a.default_chat {
            Some(chat) if session.state.chats.iter().any(|summary| summary.resource == *chat) => Ok(()),
            Some(chat) => Err(Refusal::NoChatOfSession(chat.clone())),
            None => Err(Refusal::DefaultChatNeeded),
        },
        StateAction::SessionActiveClientSet(a) => check_own_client(origin, &a.active_client.client_id),
        StateAction::SessionActiveClientRemoved(a) => check_own_client(origin, &a.client_id),
        _ => Err(Refusal::NotServedOn("a session's channel")),
    }
}

/// Returns the name of the state that an action enlarges, and its size in bytes of JSON text;
/// `None` if its size has no limit.
pub(super) fn growing_member(
    ledger: &mut Ledger,
    id: ChannelId,
    action: &StateAction,
) -> Option<(&'static str, usize)> {
    let session = match (id.kind, action) {
        (ChannelKind::Chat, StateAction::SessionTitleChanged(_)) => ledger.channels.session_of(id)?,
        (
            ChannelKind::Session,
            StateAction::SessionTitleChanged(_)
            | StateAction::SessionConfigChanged(_)
            | StateAction::SessionActiveClientSet(_)
            | StateAction::SessionWorkingDirectorySet(_)
            | StateAction::SessionWorkingDirectoryReplaced(_),
        ) => SessionKey::from(id.key),
        (
            ChannelKind::Chat,
            StateAction::ChatPendingMessageSet(_)
            | StateAction::ChatDraftChanged(_)
            | StateAction::ChatWorkingDirectorySet(_),
        ) => {
            // A draft replaces the previous one.
            let with_draft = !matches!(action, StateAction::ChatDraftChanged(_));
            let chat = ledger.channels.chats.known_mut(id.key.into())?;
            return Some((CHAT_WITHOUT_TURNS, chat.conversation.bytes_without_turns(with_draft)));
        }
        (ChannelKind::Chat, StateAction::Unknown(_)) => {
            let Some(SteeringChange::Set { .. }) = SteeringChange::of(action) else { return None };
            let chat = ledger.channels.chats.known_mut(id.key.into())?;
            return Some((CHAT_WITHOUT_TURNS, chat.conversation.bytes_without_turns(true)));
        }
        _ => return None,
    };
    Some(("the session", json_bytes(&ledger.channels.sessions.known(session)?.state)))
}

pub(super) fn check_state_limit(
    ledger: &mut Ledger,
    target: ChannelId,
    action: &StateAction,
) -> Result<(), Refusal> {
    let max = ledger.limits.state_bytes;
    match growing_member(ledger, target, action) {
        Some((what, there)) if there.saturating_add(json_bytes(action)) > max => {
            Err(Refusal::StateFull { what, there, max })
        }
        _ => Ok(()),
    }
}
