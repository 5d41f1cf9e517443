//! Chats that move within their session, or to another one. (`router::moves` has the steps of
//! `moveChat`.)
//!
//! Owns: whether a chat may move to its destination, and moving it as one step, so that a refused
//! move has no visible effect.
//! Never: moves other chats along. A fork or a side chat only stores its source.

use ahp_types::actions::{SessionChatsReorderedAction, StateAction};

use crate::host::agents::AgentRegistry;
use crate::host::catalogue::chats::CHATS_MAX;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::{catalogue, Step};
use crate::wire::errors::RpcError;

pub(in crate::host) fn check_may_join(
    ledger: &Ledger,
    agents: &AgentRegistry,
    key: ChatKey,
    session: SessionKey,
) -> Result<(), RpcError> {
    check_idle(ledger, key)?;
    let to = catalogue::chats::usable_session(ledger, session)?;
    catalogue::chats::chats_capability(agents, to)?;
    let from = ledger.channels.chats.known(key).and_then(|chat| ledger.channels.sessions.known(chat.session));
    if from.is_none_or(|from| from.state.provider != to.state.provider) {
        return Err(RpcError::invalid_params(format_args!(
            "`destination.session`: `{}` is a session of another agent",
            to.channel.uri
        )));
    }
    if to.state.chats.len() >= CHATS_MAX {
        return Err(RpcError::invalid_params(format_args!(
            "`destination.session`: that session has {CHATS_MAX} chats already, the maximum"
        )));
    }
    Ok(())
}

/// Returns the session of a chat; an error if the chat is not movable.
pub(in crate::host) fn check_movable(ledger: &Ledger, key: ChatKey) -> Result<SessionKey, RpcError> {
    let chat = ledger.channels.chats.needed(key)?;
    if chat.conversation.state().movable != Some(true) {
        return Err(RpcError::invalid_params("`channel`: the default chat of a session cannot be moved"));
    }
    Ok(chat.session)
}

pub(in crate::host) fn check_anchor(
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
        "`destination.after`: the session `{}` has no chat `{after}`",
        session.channel.uri
    )))
}

pub(in crate::host) fn check_idle(ledger: &Ledger, key: ChatKey) -> Result<(), RpcError> {
    let chat = ledger.channels.chats.needed(key)?;
    match &chat.run {
        Some(_) => Err(RpcError::turn_in_progress(&chat.channel.uri)),
        None => Ok(()),
    }
}

/// Places a chat after another one of its session; `None` places it first.
pub(in crate::host) fn place_behind(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    chat: &str,
    after: Option<&str>,
) {
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
