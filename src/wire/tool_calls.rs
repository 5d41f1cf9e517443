//! Members that all states of a tool call share, although each state has its own type.
//!
//! Owns: the id of a call, and the client that executes it.
//! Never: changes a call.

use ahp_types::state::{ToolCallContributor, ToolCallState};

/// Returns the id of a tool call; empty if its state is unknown.
pub fn tool_call_id(call: &ToolCallState) -> &str {
    match call {
        ToolCallState::Streaming(call) => &call.tool_call_id,
        ToolCallState::PendingConfirmation(call) => &call.tool_call_id,
        ToolCallState::Running(call) => &call.tool_call_id,
        ToolCallState::AuthRequired(call) => &call.tool_call_id,
        ToolCallState::PendingResultConfirmation(call) => &call.tool_call_id,
        ToolCallState::Completed(call) => &call.tool_call_id,
        ToolCallState::Cancelled(call) => &call.tool_call_id,
        ToolCallState::Unknown(_) => "",
    }
}

/// Returns the id of the client that executes a tool call, if one does.
pub fn client_of_call(call: &ToolCallState) -> Option<&str> {
    let contributor = match call {
        ToolCallState::Streaming(call) => &call.contributor,
        ToolCallState::PendingConfirmation(call) => &call.contributor,
        ToolCallState::Running(call) => &call.contributor,
        ToolCallState::AuthRequired(call) => &call.contributor,
        ToolCallState::PendingResultConfirmation(call) => &call.contributor,
        ToolCallState::Completed(call) => &call.contributor,
        ToolCallState::Cancelled(call) => &call.contributor,
        ToolCallState::Unknown(_) => return None,
    };
    match contributor {
        Some(ToolCallContributor::Client(client)) => Some(&client.client_id),
        _ => None,
    }
}
