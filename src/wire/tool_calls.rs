//! Fields that the states of a tool call share, each of which is a type of its own.
//!
//! Owns: its id, and the client that carries it out.
//! Never: changes a call.

use ahp_types::state::{ToolCallContributor, ToolCallState};

/// The id of a tool call in any of its states.
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

/// The client that carries a tool call out, if one does.
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
