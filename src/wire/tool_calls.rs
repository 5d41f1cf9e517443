//! Members that all states of a tool call share, although each state has its own type.
//!
//! Owns: the id of a call, the client that executes it, and names in its `_meta`.
//! Never: changes a call.

use ahp_types::state::{ToolCallContributor, ToolCallState};

/// Member of a call's `_meta` with the kind of its tool, as ACP names it.
pub const KIND: &str = "acp.kind";

/// Member of a call's `_meta` with the locations that it concerns, in ACP's form.
pub const LOCATIONS: &str = "acp.locations";

/// Member of a call's `_meta` with the input of a command, besides the command line.
pub const RAW_INPUT: &str = "acp.rawInput";

/// Member of a call's `_meta` with the meaning of its permission's options for the agent, by id.
pub const OPTIONS: &str = "acp.options";

/// Member of a value that stands for a larger one, with its size.
pub const OMITTED: &str = "omittedBytes";

/// Member of a call's `_meta` by which VS Code recognises the kind of its tool.
pub const TOOL_KIND: &str = "toolKind";

/// Text before output whose beginning is left out.
pub const LEFT_OUT: &str = "(Earlier output is omitted.)\n";

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
