//! Conversations with agents: the agent's side of a chat.
//!
//! Owns: opening a conversation with all data that the agent needs, closing it, and what ends with
//! it.
//! Never: starts a turn.

use std::collections::BTreeMap;

use ahp_types::state::{ChatOrigin, ToolDefinition};

use crate::host::agents::{origins, progress, AgentRegistry};
use crate::host::chats::attached::attached_by_position;
use crate::host::configuration::directories;
use crate::host::effects::{ChatKey, Command, OpenConversation, Output, SessionKey};
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, Session};
use crate::host::{canvases, customizations, terminals, Step};

pub(crate) fn open_conversation(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
) {
    let working_directories = directories::effective_directories(ledger, key);
    let tokens = agents.tokens_for(ledger, step, key);
    let copy_of = origins::copyable_origin(ledger, agents, key);
    let (mcp_servers, client_mcp_servers) = customizations::servers_for_conversation(ledger, key);
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let Some(session) = ledger.channels.sessions.known(chat.session) else { return };
    let client_tools = tools_of_clients(session);
    chat.agent = AgentLink::Opening;
    let state = chat.conversation.state();
    chat.directories_sent.clone_from(&working_directories);
    chat.tokens_sent.clone_from(&tokens);
    chat.tools_sent.clone_from(&client_tools);
    chat.settings_sent = Default::default();
    let open = OpenConversation {
        provider: session.state.provider.clone(),
        working_directories,
        tokens,
        config: session.config.clone(),
        history: chat.all_turns().cloned().collect(),
        attached: attached_by_position(chat),
        selection: match &state.origin {
            Some(ChatOrigin::SideChat { selection, .. }) => selection.as_ref().map(|it| it.text.clone()),
            _ => None,
        },
        copy_of,
        handle: chat.handle.as_ref().map(|handle| handle.name.clone()),
        client_tools,
        mcp_servers,
        client_mcp_servers,
    };
    step.emit(Output::Agent(key, Box::new(Command::Open(open))));
    customizations::conversation_changed(ledger, step, key);
}

/// Opens the conversation of a new session's default chat. The session is ready when it is open;
/// turns in other chats wait for that, too.
pub(crate) fn open_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: SessionKey,
) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let default = session.state.default_chat.as_ref().and_then(|uri| ledger.channels.by_uri.get(uri));
    if let Some(chat) = default.and_then(|id| id.chat()) {
        open_conversation(ledger, agents, step, chat);
    }
}

/// Opens the conversation of a session's default chat if none of the session is open.
pub(crate) fn open_session_if_closed(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: SessionKey,
) {
    let is_closed = |chat: &ChatKey| {
        ledger.channels.chats.known(*chat).is_some_and(|chat| chat.agent == AgentLink::Closed)
    };
    if ledger.channels.chats_in(key).iter().all(is_closed) {
        open_session(ledger, agents, step, key);
    }
}

/// Closes a conversation at the agent, unless it has ended.
pub(crate) fn close_conversation(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    if conversation_ended(ledger, step, key) {
        step.emit(Output::Agent(key, Box::new(Command::Close)));
    }
}

/// Records that a conversation has ended, and ends its terminals and the pages of its canvases.
/// Returns false if it had ended before.
pub(crate) fn conversation_ended(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) -> bool {
    let chat = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent != AgentLink::Closed);
    let Some(chat) = chat else { return false };
    chat.agent = AgentLink::Closed;
    chat.own_turn_cause = None;
    chat.cancelled_run = None;
    terminals::end_terminals_of(ledger, step, key);
    canvases::agent_has_ended(ledger, step, key);
    customizations::conversation_changed(ledger, step, key);
    progress::clear_opening_wait(ledger, step, key);
    true
}

pub(crate) fn is_creating(ledger: &Ledger, key: ChatKey) -> bool {
    let session =
        ledger.channels.chats.known(key).and_then(|chat| ledger.channels.sessions.known(chat.session));
    session.is_some_and(Session::is_creating)
}

/// Returns the tools of a session's active clients. Of tools with the same name, the one of the
/// client listed first is used.
pub(crate) fn tools_of_clients(session: &Session) -> Vec<ToolDefinition> {
    let mut tools = BTreeMap::new();
    for tool in session.state.active_clients.iter().flat_map(|client| &client.tools) {
        tools.entry(tool.name.as_str()).or_insert(tool);
    }
    tools.into_values().cloned().collect()
}
