//! Commands that run in a terminal of the host for a turn: sent by users in place of a message, or
//! requested by agents.
//!
//! A message that begins with `!` is a command and is not sent to the agent. The user's shell runs
//! it, a tool call of the turn shows it, and the turn ends with it. The agent receives a transcript
//! with its next message.
//!
//! Owns: detecting a command, the call that shows it, and the transcript for the agent. The router
//! starts and ends commands.
//! Never: runs a command twice.

use std::time::Duration;

use ahp_types::state::{
    ResponsePart, ToolCallState, ToolResultContent, ToolResultTerminalContent, ToolResultTextContent, Turn,
};

use crate::host::channels::CommandCall;
use crate::host::chats::calls;
use crate::host::chats::turns::is_begun_by_agent;
use crate::host::effects::{
    CallExtras, ChatKey, ScreenSize, TerminalKey, ToolOutcome, Transcript, TranscriptOf,
};
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::host::terminals::ptys;
use crate::host::terminals::scrollback::text_of;
use crate::host::{catalogue, Step};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::escapes::plain_text;
use crate::wire::terminals::COMMAND_PREFIX;
use crate::wire::text;
use crate::wire::tool_calls::{tool_call_id, LEFT_OUT};

/// Name of the tool that runs commands, as clients see it.
pub(crate) const TOOL: &str = "terminal";

pub(crate) const CALL: &str = "command-";

pub(crate) const SCREEN: ScreenSize = ScreenSize { cols: 120, rows: 30 };

pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Maximum bytes of output that are sent as text; the latest are sent.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// Maximum bytes of output in the transcript for the agent, over all commands since its last
/// message.
const AGENT_BYTES_MAX: usize = 64 << 10;

/// Activity of a chat whose command seems to wait for input.
const WAITS: &str = "The command seems to wait for input in its terminal";

struct FinishedCommand {
    line: String,
    printed: String,
    end: String,
}

impl FinishedCommand {
    fn to_text(&self) -> String {
        let Self { line, printed, end } = self;
        let fence = text::fence(&format!("{line}\n{printed}"));
        format!("The user ran this command, which {end}:\n{fence}\n{line}\n{fence}\nIt printed:\n{fence}\n{printed}\n{fence}\n")
    }
}

pub(crate) fn command_in<'a>(ledger: &Ledger, message: &'a str) -> Option<&'a str> {
    let line = message.strip_prefix(COMMAND_PREFIX).filter(|_| ledger.limits.ptys > 0);
    line.map(str::trim)
}

/// Returns whether the interrupted turn of a chat was a command, by its message or one of its
/// calls.
pub(crate) fn was_command_turn(ledger: &Ledger, chat: &Chat) -> bool {
    let Some(turn) = &chat.conversation.state().active_turn else { return false };
    let is_of_command = |part: &ResponsePart| match part {
        ResponsePart::ToolCall(part) => tool_call_id(&part.tool_call).starts_with(CALL),
        _ => false,
    };
    let message = &turn.message.text;
    command_in(ledger, message).is_some()
        || (message.starts_with(COMMAND_PREFIX) && turn.response_parts.iter().any(is_of_command))
}

pub(crate) fn end_commands_of(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    let terminals = ledger.channels.terminals.iter();
    let of_chat = terminals.filter(|(_, terminal)| terminal.chat == Some(chat) && terminal.is_command());
    for key in of_chat.map(|(key, _)| *key).collect::<Vec<_>>() {
        settle_command(ledger, step, key, Err("the turn ended before the command did".to_owned()));
    }
}

/// Ends a command's terminal, if it has not ended, and its call. Returns that call, once.
pub(crate) fn settle_command(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: TerminalKey,
    outcome: Result<Option<i64>, String>,
) -> Option<CommandCall> {
    set_waits_for_input(ledger, step, key, false);
    ptys::end_program(ledger, step, key);
    let terminal = ledger.channels.terminals.get_mut(&key)?;
    let command = terminal.pty.as_mut()?.call.take()?;
    ledger.touch(ChannelKind::Terminal);
    let terminal = ledger.channels.terminals.get(&key)?;
    let printed: String = terminal.state.content.iter().map(text_of).collect();
    let printed = plain_text(&printed);
    let latest = text::last_bytes(&printed, OUTPUT_BYTES_MAX);
    let left_out = if latest.len() < printed.len() || terminal.is_cut { LEFT_OUT } else { "" };
    let (resource, title) = (terminal.channel.uri.clone(), terminal.state.title.clone());
    let block = ToolResultTerminalContent { resource, title, is_pty: Some(true), result: None };
    let mut content = vec![ToolResultContent::Terminal(block)];
    if !latest.is_empty() {
        let text = ToolResultTextContent { text: format!("{left_out}{latest}") };
        content.push(ToolResultContent::Text(text));
    }
    let error = match outcome {
        Ok(Some(0)) => None,
        Ok(Some(code)) => Some(format!("exit code {code}")),
        Ok(None) => Some("ended by a signal".to_owned()),
        Err(why) => Some(why),
    };
    let message = format!("Ran {}", command.line).into();
    let outcome = ToolOutcome { success: error.is_none(), message, content, error };
    calls::finish_call(ledger, step, &command.call, outcome, false, CallExtras::default());
    Some(command)
}

pub(crate) fn set_waits_for_input(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey, waits: bool) {
    let Some(terminal) = ledger.channels.terminals.get_mut(&key) else { return };
    let Some(command) = terminal.pty.as_mut().and_then(|pty| pty.call.as_mut()) else { return };
    if std::mem::replace(&mut command.waits, waits) != waits {
        let chat = command.call.key;
        catalogue::set_activity(ledger, step, chat, waits.then(|| WAITS.to_owned()));
    }
}

/// Maximum number of turns that are searched for commands since the agent's last answer.
const TURNS_SEARCHED_MAX: usize = 200;

/// Returns the transcript of the commands that the user has run since the agent's last answer: it
/// may not have received the message of a turn without one.
pub(crate) fn transcript_of_commands(chat: &Chat) -> Option<Transcript> {
    let (mut newest_first, mut bytes, mut cut) = (Vec::new(), 0, false);
    for turn in chat.conversation.history().turns().iter().rev().take(TURNS_SEARCHED_MAX) {
        let Some(ran) = finished_command_in(turn) else {
            // An own turn of the agent sends it no transcript.
            if turn.is_unanswered() || turn.message().is_some_and(|message| is_begun_by_agent(&message)) {
                continue;
            }
            break;
        };
        let run_text = ran.to_text();
        bytes += run_text.len();
        if bytes > AGENT_BYTES_MAX {
            cut = true;
            // The end of a command that exceeds the limit by itself is included.
            if newest_first.is_empty() {
                newest_first.push(text::last_bytes(&run_text, AGENT_BYTES_MAX).to_owned());
            }
            break;
        }
        newest_first.push(run_text);
    }
    newest_first.reverse();
    let text = newest_first.concat();
    let label = "commands".to_owned();
    let (of, resource) = (TranscriptOf::Commands, chat.channel.uri.clone());
    (!text.is_empty()).then_some(Transcript { of, resource, label, text, cut })
}

fn finished_command_in(turn: &CompletedTurn) -> Option<FinishedCommand> {
    let text = turn.message()?.text;
    let line = text.strip_prefix(COMMAND_PREFIX)?.trim().to_owned();
    let turn: Turn = turn.read()?;
    let call = turn.response_parts.iter().find_map(|part| match part {
        ResponsePart::ToolCall(part) => match &part.tool_call {
            ToolCallState::Completed(call) if call.tool_name == TOOL => Some(call),
            _ => None,
        },
        _ => None,
    })?;
    let text = call.content.iter().flatten().find_map(|content| match content {
        ToolResultContent::Text(text) => Some(text.text.trim_end().to_owned()),
        _ => None,
    });
    let error = call.error.as_ref().and_then(|error| error["message"].as_str());
    let end = error.map_or("ended with exit code 0".to_owned(), |why| format!("failed ({why})"));
    Some(FinishedCommand { line, printed: text.unwrap_or_default(), end })
}
