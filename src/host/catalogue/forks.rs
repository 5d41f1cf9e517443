//! Sessions that continue another one from a turn.
//!
//! Owns: what such a session copies from its source: the conversation of the source's own chat up
//! to that turn, and the directories and configuration that the client does not give.
//! Never: creates a session; that is in `catalogue`. The newest version has no such request: only
//! chats are forked.

use ahp_types::commands::CreateSessionParams;
use ahp_types::state::ChatOrigin;
use serde::Deserialize;
use serde_json::Value;

use crate::host::catalogue;
use crate::host::catalogue::chats::{attached_of_fork, Beginning};
use crate::host::ledger::Ledger;
use crate::wire::errors::RpcError;

/// Session and turn from which a new session continues.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ForkSource {
    session: String,
    turn_id: String,
}

/// Returns the initial content of the first chat of a session that forks `source` (JSON) at a turn.
/// Values that the client leaves out of `params` are copied from the source. Fails if the session
/// or turn does not exist, or if the client requests another agent than the source's.
pub(in crate::host) fn beginning_from(
    ledger: &Ledger,
    source: &Value,
    params: &mut CreateSessionParams,
) -> Result<Beginning, RpcError> {
    let invalid = |why: String| RpcError::invalid_params(format_args!("`fork{why}"));
    let source = ForkSource::deserialize(source).map_err(|why| invalid(format!("`: {why}")))?;
    let Some(key) = ledger.find_session(&source.session) else {
        return Err(ledger.not_found(&source.session));
    };
    let session = catalogue::chats::usable_session(ledger, key)?;
    let provider = params.provider.get_or_insert_with(|| session.state.provider.clone());
    if *provider != session.state.provider {
        return Err(invalid(format!(
            "`: the session belongs to another agent, `{}`",
            session.state.provider
        )));
    }
    params.config.get_or_insert_with(|| session.config.clone());
    if params.working_directories.is_none() {
        params.working_directories.clone_from(&session.state.working_directories);
    }
    let from = ledger.channels.own_chat(key);
    let chat = from.and_then(|from| Some((from, ledger.channels.chats.known(from)?)));
    let Some((from, chat)) = chat else {
        return Err(RpcError::internal(format_args!("the session `{}` has no default chat", source.session)));
    };
    let Some(turns) = chat.conversation.history().through(&source.turn_id) else {
        return Err(invalid(format!(
            ".turnId`: the default chat of that session has no completed turn `{}`",
            source.turn_id
        )));
    };
    Ok(Beginning {
        origin: ChatOrigin::Fork { chat: chat.channel.uri.clone(), turn_id: source.turn_id },
        context: chat.context.clone(),
        copied: Some((from, turns.to_vec())),
        attached: attached_of_fork(chat),
        ..Beginning::default()
    })
}
