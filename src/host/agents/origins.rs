//! Chats that go on from others, as far as their agents can begin with what they know of those.
//!
//! Owns: whether an agent's conversation is just what a new chat begins with, so that a copy of it
//! would be.
//! Never: makes a chat; that is in `router::chats`.

use ahp_types::state::ChatOrigin;

use crate::host::agents::AgentRegistry;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;

/// Returns the agent's id of the conversation that a chat forks, if the agent can fork it: the
/// conversation ends where this chat begins, and nothing has been said here. Otherwise the history
/// must be sent.
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
    let is_quiet = source.run.is_none() && source.settling.is_none();
    let resumes = chat.run.as_ref().is_some_and(|run| run.resumes);
    // Whole turns are compared: one that has gone on since has the same id.
    let is_all =
        is_quiet && !resumes && chat.all_turns().eq(source.all_turns()) && provider(key) == provider(from);
    source.handle.as_ref().filter(|_| is_all).map(|handle| handle.name.clone())
}
