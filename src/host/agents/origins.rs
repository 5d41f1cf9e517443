//! Forks and side chats whose agent can copy the conversation of the original chat.
//!
//! Owns: whether a copy of the agent's conversation equals the history of the new chat.
//! Never: creates a chat; that is in `router::chat_requests`.

use ahp_types::state::ChatOrigin;

use crate::host::agents::AgentRegistry;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;

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
    let is_all =
        is_quiet && !resumes && chat.all_turns().eq(source.all_turns()) && provider(key) == provider(from);
    source.handle.as_ref().filter(|_| is_all).map(|handle| handle.name.clone())
}
