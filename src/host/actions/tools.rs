//! Client actions on tool calls that run on clients.
//!
//! Owns: that only the client that executes a call may report its content and its end.
//! Never: assigns a call to a client; that is in `clients`.

use ahp_types::actions::{
    ActionOrigin, ChatToolCallCompleteAction, ChatToolCallContentChangedAction, StateAction,
};
use ahp_types::state::{ToolCallRunningState, ToolCallState};

use crate::host::actions::chat::active_turn;
use crate::host::actions::Verdict;
use crate::host::chats::calls;
use crate::host::effects::ChatKey;
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::wire::tool_calls::client_of_call;

/// Applies the result that a client reports for a call that it executes.
pub(crate) fn client_completes_call(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: ChatToolCallCompleteAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = known_chat(ledger, key)?;
    call_of_client(chat, &action.turn_id, &action.tool_call_id, &origin)?;
    let run = chat.run.as_ref().map(|run| run.id);
    let id = action.tool_call_id.clone();
    ledger.sequence(step, key, StateAction::ChatToolCallComplete(action), Some(origin));
    calls::tool_changed(ledger, step, key, &id);
    if let Some(command) = run.and_then(|run| calls::result_for_agent(ledger, key, run, &id)) {
        step.send_to_agent(key, command);
    }
    step.facts.push_back(Fact::MayWait { chat: key, id, is_question: false });
    Ok(Verdict::Done)
}

/// Applies the content that a client reports for a call that it executes.
pub(crate) fn client_changes_content(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: ChatToolCallContentChangedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = known_chat(ledger, key)?;
    let call = call_of_client(chat, &action.turn_id, &action.tool_call_id, &origin)?;
    let same_meta = action.meta.is_none() || action.meta == call.meta;
    if same_meta && call.content.as_ref() == Some(&action.content) {
        return Ok(Verdict::Unchanged);
    }
    let action = StateAction::ChatToolCallContentChanged(action);
    ledger.sequence(step, key, action, Some(origin));
    Ok(Verdict::Done)
}

/// Returns the call of the running turn if this client executes it.
fn call_of_client<'a>(
    chat: &'a Chat,
    turn_id: &str,
    id: &str,
    origin: &ActionOrigin,
) -> Result<&'a ToolCallRunningState, Refusal> {
    active_turn(chat, turn_id)?;
    let call = chat.conversation.tool(id).ok_or_else(|| Refusal::NoSuchCall(id.to_owned()))?;
    match (client_of_call(call), call) {
        (None, _) => Err(Refusal::CallOnNoClient(id.to_owned())),
        (Some(client), _) if client != origin.client_id => {
            Err(Refusal::CallOnOtherClient { call: id.to_owned(), client: client.to_owned() })
        }
        (Some(_), ToolCallState::Running(call)) => Ok(call),
        (Some(_), _) => Err(Refusal::CallNotRunning(id.to_owned())),
    }
}

pub(crate) fn known_chat(ledger: &Ledger, key: ChatKey) -> Result<&Chat, Refusal> {
    ledger.channels.chats.known(key).ok_or(Refusal::ChatGone)
}
