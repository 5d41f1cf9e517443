//! Forks and side chats whose agent can copy the conversation of the original chat.
//!
//! Owns: whether a copy of the agent's conversation equals the history of the new chat.
//! Never: creates a chat; that is in `router::chat_requests`.

use ahp_types::state::ChatOrigin;

use crate::host::agents::AgentRegistry;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::terminals;

/// Returns the agent's id of the original conversation, if the agent can copy it: the conversation
/// ends where this chat begins, and this chat has no turns of its own. Otherwise the history must
/// be sent.
pub(super) fn copyable_origin(ledger: &Ledger, agents: &AgentRegistry, key: ChatKey) -> Option<String> {
    let chat = ledger.channels.chats.known(key)?;
    let state = chat.conversation.state();
    let (Some(ChatOrigin::Fork { chat: uri, .. } | ChatOrigin::SideChat { chat: uri, .. }), None) =
        (&state.origin, &chat.handle)
    else {
        return None;
    };
    let from = ledger.find_chat(uri)?;
    let source = ledger.channels.chats.known(from)?;
    let provider = |key| agents.agent_of(ledger, key).map(|agent| &agent.info.provider);
    let is_quiet = source.run.is_none() && source.cancelled_run.is_none();
    let resumes = chat.run.as_ref().is_some_and(|run| run.resumes);
    // Whole turns are compared, because a turn that has continued since has the same id.
    let is_copied = || {
        let mut originals = source.all_turns();
        let is_copy = |turn| originals.next().is_some_and(|original| terminals::is_copy_of(turn, original));
        chat.all_turns().all(is_copy) && originals.next().is_none()
    };
    let is_all = is_quiet && !resumes && provider(key) == provider(from) && is_copied();
    source.handle.as_ref().filter(|_| is_all).map(|handle| handle.name.clone())
}
