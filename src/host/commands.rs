//! Commands that are run in a terminal of the system's for a turn: what a user sends in the place
//! of a message, and what an agent asks for.
//!
//! A message that begins with `!` is such a command: its agent never sees it. It is run by the
//! user's shell, shown as the only call of its turn, and ends the turn when it ends. The agent is
//! told of it with the next message that it gets.
//!
//! Owns: which message is one, the call that shows a command, its terminal, its limits and its end,
//! and what an agent is told of it.
//! Never: runs anything while clients may have no terminals; starts a command again that has run.

use crate::host::calls;
use crate::host::catalogue;
use crate::host::commands;
use crate::host::conversations;
use crate::host::directories;
use crate::host::effects::Frame;
use crate::host::effects::PtyEvent;
use crate::host::ledger::Ledger;
use crate::host::ptys;
use crate::host::terminals;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use ahp_types::actions::StateAction;
use ahp_types::actions::TerminalCommandDetectionAvailableAction;
use ahp_types::actions::TerminalCwdChangedAction;
use ahp_types::actions::TerminalDataAction;
use ahp_types::actions::TerminalExitedAction;
use ahp_types::actions::TerminalTitleChangedAction;
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::{
    ResponsePart, TerminalLifecycleState, TerminalRunningLifecycleState, TerminalState, ToolCallState,
    ToolResultContent, ToolResultTerminalContent, ToolResultTextContent, Turn,
};

use super::calls::{CallRef, Readiness};
use super::channels::{CommandCall, Pty, Terminal};
use super::effects::{
    Besides, ChatKey, Output, PtyCommand, PtyLaunch, RunId, ScreenSize, TerminalKey, Timer, ToolGate,
    ToolOutcome, Transcript, TranscriptOf,
};
use super::model::{Channel, Chat, RunPhase};
use super::scrollback::text_of;
use super::terminals::TITLE_BYTES_MAX;
use super::turns::{is_begun_by_agent, Ending};
use super::{Host, Step};
use crate::state::history::CompletedTurn;
use crate::wire::escapes::plain_text;
use crate::wire::terminals::{terminal_uri, COMMAND_PREFIX};
use crate::wire::text;
use crate::wire::tool_calls::tool_call_id;

/// The tool that runs commands, as clients are told it.
const TOOL: &str = "terminal";

/// What the id of a call begins with that shows a command.
const CALL: &str = "command-";

/// What clients that follow VS Code know such a tool by.
const TOOL_KIND: &str = "toolKind";

/// The size of the screen of a command.
const SCREEN: ScreenSize = ScreenSize { cols: 120, rows: 30 };

/// So long a command may run.
const RUNS_AT_MOST: Duration = Duration::from_secs(30 * 60);

/// So much of what it has printed is told as text, in bytes: the latest.
const TOLD_BYTES_MAX: usize = 16 << 10;

/// So much is told an agent of all commands since its last message, in bytes.
const TOLD_TO_AGENT_BYTES_MAX: usize = 64 << 10;

/// What stands before text of which the beginning is not shown.
const LEFT_OUT: &str = "(What came before is left out.)\n";

/// What a chat says of a command that seems to wait.
const WAITS: &str = "The command seems to wait for something to be typed into its terminal";

/// What a command has printed, as text, in the call of a turn that is over.
struct Ran {
    line: String,
    printed: String,
    /// How it has ended, for people.
    end: String,
}

impl Ran {
    /// What an agent is told.
    fn told(&self) -> String {
        let Self { line, printed, end } = self;
        let fence = text::fence(&format!("{line}\n{printed}"));
        format!("The user ran this command, which {end}:\n{fence}\n{line}\n{fence}\nIt printed:\n{fence}\n{printed}\n{fence}\n")
    }
}

impl Host {
    /// Takes in what is heard of the program in a terminal.
    pub(super) fn pty_reports(&mut self, step: &mut Step<'_>, key: TerminalKey, event: PtyEvent) {
        let terminal = self.ledger.channels.terminals.get_mut(&key).filter(|terminal| terminal.runs());
        let Some((pty, state)) = terminal.and_then(|it| Some((it.pty.as_mut()?, &it.state))) else {
            tracing::debug!(?key, ?event, "what is heard of a terminal that has ended was ignored");
            return;
        };
        match event {
            PtyEvent::Started { program } => {
                let asked = pty.asked.take();
                if state.title.is_empty() {
                    let title = text::first_bytes(&text::message(&program), TITLE_BYTES_MAX).to_owned();
                    let changed = TerminalTitleChangedAction { title };
                    self.ledger.sequence(step, key, StateAction::TerminalTitleChanged(changed), None);
                }
                ptys::list_terminals(&mut self.ledger, step);
                if let Some((connection, id)) = asked {
                    let null = bytes::Bytes::from_static(b"null");
                    let answer = Frame::result(id, Method::CreateTerminal, null);
                    step.say(Output::Frame(connection, answer));
                }
            }
            PtyEvent::NotStarted(why) if pty.call.is_some() => self.command_is_over(step, key, Err(why)),
            PtyEvent::NotStarted(why) => {
                if let Some((connection, id)) = pty.asked.take() {
                    let error = RpcError::unavailable(why);
                    step.say(Output::Frame(connection, Frame::Error { id: Some(id), error }));
                }
                ptys::remove_pty(&mut self.ledger, step, key);
            }
            PtyEvent::Data(data) => {
                commands::command_goes_on(&mut self.ledger, step, key);
                self.ledger.sequence(step, key, StateAction::TerminalData(TerminalDataAction { data }), None);
            }
            PtyEvent::Title(title) => {
                if !pty.is_named && !title.is_empty() && state.title != title {
                    let changed = StateAction::TerminalTitleChanged(TerminalTitleChangedAction { title });
                    self.ledger.sequence(step, key, changed, None);
                    ptys::list_terminals(&mut self.ledger, step);
                }
            }
            PtyEvent::Directory(cwd) => {
                if state.cwd.as_ref() != Some(&cwd) {
                    let changed = StateAction::TerminalCwdChanged(TerminalCwdChangedAction { cwd });
                    self.ledger.sequence(step, key, changed, None);
                }
            }
            PtyEvent::DetectsCommands => {
                if state.supports_command_detection != Some(true) {
                    let available = TerminalCommandDetectionAvailableAction {};
                    self.ledger.sequence(
                        step,
                        key,
                        StateAction::TerminalCommandDetectionAvailable(available),
                        None,
                    );
                }
            }
            PtyEvent::CommandBegun(line) => ptys::line_begins(&mut self.ledger, step, key, line),
            PtyEvent::CommandDone(code) => ptys::line_ends(&mut self.ledger, step, key, code),
            PtyEvent::Waits => commands::command_waits(&mut self.ledger, step, key),
            PtyEvent::Took(bytes) => pty.untaken_bytes = pty.untaken_bytes.saturating_sub(bytes),
            PtyEvent::Exited(exit_code) => {
                let is_of_call = pty.call.is_some();
                ptys::line_ends(&mut self.ledger, step, key, None);
                let exited = StateAction::TerminalExited(TerminalExitedAction { exit_code });
                self.ledger.sequence(step, key, exited, None);
                self.ledger.touch(ChannelKind::Terminal);
                if is_of_call {
                    return self.command_is_over(step, key, Ok(exit_code));
                }
                ptys::forget_ended_ptys(&mut self.ledger, step);
                ptys::list_terminals(&mut self.ledger, step);
            }
        }
    }

    /// Whether the turn that waits in a chat is a command; then it begins as soon as its session is
    /// there.
    pub(super) fn begins_command(&mut self, step: &mut Step<'_>, key: ChatKey) -> bool {
        let Some(chat) = self.ledger.channels.chats.known(key) else { return false };
        let Some(turn) = &chat.conversation.state().active_turn else { return false };
        let Some(line) = command_in(&self.ledger, &turn.message.text).map(str::to_owned) else {
            return false;
        };
        // What is in the folder is kept first, so that what the command changes is known.
        if conversations::is_creating(&self.ledger, key)
            || chat.run.as_ref().is_some_and(|run| run.kept_by.is_some())
        {
            return true;
        }
        let turn_id = turn.id.clone();
        if let Some(run) = self.ledger.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
            run.phase = RunPhase::Command;
        }
        self.changes.checkpoints.note_overlaps(&mut self.ledger, key, true);
        let id = format!("{CALL}{}", self.ledger.fresh_key());
        self.run_command(step, key, CommandCall { turn_id, id, line, agent: None, waits: false });
        true
    }

    /// An agent has a command run in a call of its turn.
    pub(super) fn run_for_agent(&mut self, step: &mut Step<'_>, call: CallRef, line: String, run: RunId) {
        let CallRef { key, turn_id, id } = call;
        self.run_command(step, key, CommandCall { turn_id, id, line, agent: Some(run), waits: false });
    }

    fn run_command(&mut self, step: &mut Step<'_>, chat: ChatKey, call: CommandCall) {
        let number = self.ledger.fresh_key();
        let key = TerminalKey(number);
        let directory = directories::effective_directories(&self.ledger, chat).into_iter().next();
        let Some(uri) =
            self.ledger.channels.chats.known(chat).map(|it| terminal_uri(&it.channel.uri, number))
        else {
            return;
        };
        let title = text::first_bytes(&text::message(&call.line), TITLE_BYTES_MAX).to_owned();
        let shown = CallRef { key: chat, turn_id: call.turn_id.clone(), id: call.id.clone() };
        let meta = JsonObject::from_iter([(TOOL_KIND.to_owned(), TOOL.into())]);
        calls::start_call(
            &mut self.ledger,
            step,
            shown.clone(),
            TOOL.to_owned(),
            "Terminal".to_owned(),
            Some(meta),
        );
        let message = format!("Run {}", call.line).into();
        let (gate, besides) = (ToolGate::Open, Besides::default());
        let ready = Readiness { input: call.line.clone(), message, gate, besides };
        calls::call_is_ready(&mut self.ledger, step, shown.clone(), ready);
        let line = call.line.clone();
        let state = TerminalState {
            title: title.clone(),
            cwd: directory.clone(),
            cols: Some(SCREEN.cols.into()),
            rows: Some(SCREEN.rows.into()),
            content: Vec::new(),
            lifecycle: TerminalLifecycleState::Running(TerminalRunningLifecycleState {}),
            claim: terminals::claim_of(&self.ledger, chat, Some(call.turn_id.clone()), Some(call.id.clone())),
            supports_command_detection: None,
            is_pty: Some(true),
        };
        let pty = Pty { is_named: true, call: Some(call), ..Pty::default() };
        let terminal = Terminal {
            channel: Channel::new(uri.clone(), self.ledger.head() + 1),
            state,
            chat: Some(chat),
            pty: Some(pty),
            name: None,
            since: step.timestamp(),
            detaches: false,
            is_kept: false,
            is_cut: false,
        };
        terminals::add_terminal(&mut self.ledger, key, terminal);
        if let Err(why) = ptys::check_ptys_have_room(&self.ledger, None) {
            return self.command_is_over(step, key, Err(why));
        }
        let block = ToolResultTerminalContent { resource: uri, title, is_pty: Some(true), result: None };
        calls::set_content(&mut self.ledger, step, shown, vec![ToolResultContent::Terminal(block)], None);
        let launch = PtyLaunch { command: Some(line), directory, size: SCREEN };
        step.say(Output::Pty(key, PtyCommand::Start(launch)));
        step.say(Output::Timer(Timer::Command(key), RUNS_AT_MOST));
    }

    /// A command has ended with this code, or not as it should: what waits for it goes on.
    pub(super) fn command_is_over(
        &mut self,
        step: &mut Step<'_>,
        key: TerminalKey,
        outcome: Result<Option<i64>, String>,
    ) {
        let Some((chat, call)) = settle_command(&mut self.ledger, step, key, outcome) else { return };
        match call.agent {
            Some(run) => {
                if let Some(result) = calls::result_for_agent(&self.ledger, chat, run, &call.id) {
                    step.tell_agent(chat, result);
                }
            }
            None => self.end_turn(step, chat, Ending::Complete, None),
        }
    }

    /// A command has run as long as it may.
    pub(super) fn time_of_command_is_up(&mut self, step: &mut Step<'_>, key: TerminalKey) {
        if self.ledger.channels.terminals.get(&key).is_some_and(Terminal::is_command) {
            let minutes = RUNS_AT_MOST.as_secs() / 60;
            let why = format!("it was ended: it had run for {minutes} minutes, which is as long as it may");
            self.command_is_over(step, key, Err(why));
        }
    }
}

/// The command that a message is, if it is one.
pub(super) fn command_in<'a>(ledger: &Ledger, message: &'a str) -> Option<&'a str> {
    let line = message.strip_prefix(COMMAND_PREFIX).filter(|_| ledger.limits.ptys > 0);
    line.map(str::trim)
}

/// Whether the turn that a process before this one has begun in a chat is a command: it is one
/// where such messages are commands, and it was one where a call of it says so.
pub(super) fn had_command_run(ledger: &Ledger, chat: &Chat) -> bool {
    let Some(turn) = &chat.conversation.state().active_turn else { return false };
    let is_of_command = |part: &ResponsePart| match part {
        ResponsePart::ToolCall(part) => tool_call_id(&part.tool_call).starts_with(CALL),
        _ => false,
    };
    let message = &turn.message.text;
    command_in(ledger, message).is_some()
        || (message.starts_with(COMMAND_PREFIX) && turn.response_parts.iter().any(is_of_command))
}

/// The turn ends in which a command runs, and the command with it.
pub(super) fn end_commands_of(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    let terminals = ledger.channels.terminals.iter();
    let of_chat = terminals.filter(|(_, terminal)| terminal.chat == Some(chat) && terminal.is_command());
    for key in of_chat.map(|(key, _)| *key).collect::<Vec<_>>() {
        settle_command(ledger, step, key, Err("the turn ended before the command did".to_owned()));
    }
}

/// Ends a command's terminal, if it has not ended, and its call. Returns whose call that is,
/// once.
fn settle_command(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: TerminalKey,
    outcome: Result<Option<i64>, String>,
) -> Option<(ChatKey, CommandCall)> {
    command_goes_on(ledger, step, key);
    ptys::end_program(ledger, step, key);
    let terminal = ledger.channels.terminals.get_mut(&key)?;
    let (chat, call) = (terminal.chat?, terminal.pty.as_mut()?.call.take()?);
    ledger.touch(ChannelKind::Terminal);
    let terminal = ledger.channels.terminals.get(&key)?;
    let printed: String = terminal.state.content.iter().map(text_of).collect();
    let printed = plain_text(&printed);
    let latest = text::last_bytes(&printed, TOLD_BYTES_MAX);
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
    let message = format!("Ran {}", call.line).into();
    let outcome = ToolOutcome { success: error.is_none(), message, content, error };
    let shown = CallRef { key: chat, turn_id: call.turn_id.clone(), id: call.id.clone() };
    calls::finish_call(ledger, step, &shown, outcome, false, Besides::default());
    Some((chat, call))
}

/// A command seems to wait for something to be typed.
pub(super) fn command_waits(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey) {
    command_waits_now(ledger, step, key, true);
}

/// A command has printed more, or has ended: it does not wait any more.
pub(super) fn command_goes_on(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey) {
    command_waits_now(ledger, step, key, false);
}

fn command_waits_now(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey, waits: bool) {
    let Some(terminal) = ledger.channels.terminals.get_mut(&key) else { return };
    let call = terminal.pty.as_mut().and_then(|pty| pty.call.as_mut());
    let (Some(chat), Some(call)) = (terminal.chat, call) else { return };
    if std::mem::replace(&mut call.waits, waits) != waits {
        catalogue::set_activity(ledger, step, chat, waits.then(|| WAITS.to_owned()));
    }
}

/// What the user has had run since the agent's last message, for an agent.
pub(super) fn told_of_commands(ledger: &Ledger, chat: &Chat) -> Option<Transcript> {
    let (mut newest_first, mut bytes, mut cut) = (Vec::new(), 0, false);
    for turn in chat.conversation.history().turns().iter().rev() {
        let Some(ran) = ran_in(ledger, turn) else {
            // In a turn of its own the agent is told nothing.
            if turn.message().is_some_and(|message| is_begun_by_agent(&message)) {
                continue;
            }
            break;
        };
        let told = ran.told();
        bytes += told.len();
        if bytes > TOLD_TO_AGENT_BYTES_MAX {
            cut = true;
            // Of one that takes more than there is, the end is told.
            if newest_first.is_empty() {
                newest_first.push(text::last_bytes(&told, TOLD_TO_AGENT_BYTES_MAX).to_owned());
            }
            break;
        }
        newest_first.push(told);
    }
    newest_first.reverse();
    let text = newest_first.concat();
    let label = "commands".to_owned();
    let (of, resource) = (TranscriptOf::Commands, chat.channel.uri.clone());
    (!text.is_empty()).then_some(Transcript { of, resource, label, text, cut })
}

/// What was run in a turn that was a command.
fn ran_in(_ledger: &Ledger, turn: &CompletedTurn) -> Option<Ran> {
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
    let end = error.map_or("ended with exit code 0".to_owned(), |why| format!("did not end well ({why})"));
    Some(Ran { line, printed: text.unwrap_or_default(), end })
}
