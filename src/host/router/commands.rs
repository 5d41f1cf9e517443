//! Shell commands that users and agents run in terminals.
//!
//! Owns: the steps from a message that begins with `!`, or an agent's request, to a command in a
//! terminal, and from the command's end to the end of its call and turn.
//! Never: decides which message is a command, or what its call contains: `host::terminals` does.

use ahp_types::actions::{
    StateAction, TerminalCommandDetectionAvailableAction, TerminalCwdChangedAction, TerminalDataAction,
    TerminalExitedAction, TerminalTitleChangedAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{TerminalState, ToolResultContent, ToolResultTerminalContent};

use crate::host::agents::conversations;
use crate::host::channels::{running_state, CommandCall, Pty, Terminal};
use crate::host::chats::calls::{self, CallRef, Readiness};
use crate::host::chats::turns::Ending;
use crate::host::configuration::directories;
use crate::host::effects::{
    CallExtras, ChatKey, Frame, Output, PtyCommand, PtyEvent, PtyLaunch, RunId, TerminalKey, Timer, ToolGate,
};
use crate::host::model::{Channel, RunPhase};
use crate::host::terminals::commands::{CALL, COMMAND_TIMEOUT, SCREEN, TOOL};
use crate::host::terminals::{commands, ptys};
use crate::host::{terminals, Host, Step};
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::terminals::terminal_uri;
use crate::wire::tool_calls::TOOL_KIND;

impl Host {
    /// Applies a report on the program of a terminal.
    pub(super) fn pty_reports(&mut self, step: &mut Step<'_>, key: TerminalKey, event: PtyEvent) {
        let terminal = self.ledger.channels.terminals.get_mut(&key).filter(|terminal| terminal.runs());
        let Some((pty, state)) = terminal.and_then(|it| Some((it.pty.as_mut()?, &it.state))) else {
            tracing::debug!(?key, ?event, "a report of a program was ignored: its terminal has ended");
            return;
        };
        match event {
            PtyEvent::Started { program } => {
                let asked = pty.asked.take();
                if state.title.is_empty() {
                    let changed = TerminalTitleChangedAction { title: terminals::title_of_line(&program) };
                    self.ledger.sequence(step, key, StateAction::TerminalTitleChanged(changed), None);
                }
                ptys::send_terminal_list(&mut self.ledger, step);
                if let Some((connection, id)) = asked {
                    let answer = Frame::result(id, Method::CreateTerminal, super::answers::NULL);
                    step.emit(Output::Frame(connection, answer));
                }
            }
            PtyEvent::NotStarted(why) if pty.call.is_some() => self.command_finished(step, key, Err(why)),
            PtyEvent::NotStarted(why) => {
                if let Some((connection, id)) = pty.asked.take() {
                    let error = RpcError::unavailable(why);
                    step.emit(Output::Frame(connection, Frame::Error { id: Some(id), error }));
                }
                ptys::remove_pty(&mut self.ledger, step, key);
            }
            PtyEvent::Data(data) => {
                commands::set_waits_for_input(&mut self.ledger, step, key, false);
                self.ledger.sequence(step, key, StateAction::TerminalData(TerminalDataAction { data }), None);
            }
            PtyEvent::Title(title) => {
                if !pty.is_named && !title.is_empty() && state.title != title {
                    let changed = StateAction::TerminalTitleChanged(TerminalTitleChangedAction { title });
                    self.ledger.sequence(step, key, changed, None);
                    ptys::send_terminal_list(&mut self.ledger, step);
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
                    let available = StateAction::TerminalCommandDetectionAvailable(available);
                    self.ledger.sequence(step, key, available, None);
                }
            }
            PtyEvent::CommandBegun(line) => ptys::line_started(&mut self.ledger, step, key, line),
            PtyEvent::CommandDone(code) => ptys::line_ended(&mut self.ledger, step, key, code),
            PtyEvent::Waits => commands::set_waits_for_input(&mut self.ledger, step, key, true),
            PtyEvent::Took(bytes) => pty.pending_input_bytes = pty.pending_input_bytes.saturating_sub(bytes),
            PtyEvent::Exited(exit_code) => {
                let is_of_call = pty.call.is_some();
                ptys::line_ended(&mut self.ledger, step, key, None);
                let exited = StateAction::TerminalExited(TerminalExitedAction { exit_code });
                self.ledger.sequence(step, key, exited, None);
                self.ledger.touch(ChannelKind::Terminal);
                if is_of_call {
                    return self.command_finished(step, key, Ok(exit_code));
                }
                ptys::evict_ended_ptys(&mut self.ledger, step);
                ptys::send_terminal_list(&mut self.ledger, step);
            }
        }
    }

    /// Starts a waiting command turn once its session exists. Returns whether the turn is one.
    pub(super) fn start_pending_command(&mut self, step: &mut Step<'_>, key: ChatKey) -> bool {
        let Some(chat) = self.ledger.channels.chats.known(key) else { return false };
        let Some(turn) = &chat.conversation.state().active_turn else { return false };
        let Some(line) = commands::command_in(&self.ledger, &turn.message.text).map(str::to_owned) else {
            return false;
        };
        // The checkpoint of the folder comes first, to determine the command's changes.
        if conversations::is_creating(&self.ledger, key)
            || chat.run.as_ref().is_some_and(|run| run.awaited_checkpoint.is_some())
        {
            return true;
        }
        let turn_id = turn.id.clone();
        if let Some(run) = self.ledger.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
            run.phase = RunPhase::Command;
        }
        self.changes.checkpoints.note_overlaps(&mut self.ledger, key, true);
        let id = format!("{CALL}{}", self.ledger.fresh_key());
        let call = CallRef { key, turn_id, id };
        self.run_command(step, CommandCall { call, line, agent: None, waits: false });
        true
    }

    pub(super) fn run_for_agent(&mut self, step: &mut Step<'_>, call: CallRef, line: String, run: RunId) {
        self.run_command(step, CommandCall { call, line, agent: Some(run), waits: false });
    }

    fn run_command(&mut self, step: &mut Step<'_>, command: CommandCall) {
        let (line, shown) = (command.line.clone(), command.call.clone());
        let chat = shown.key;
        let number = self.ledger.fresh_key();
        let key = TerminalKey(number);
        let directory = directories::effective_directories(&self.ledger, chat).into_iter().next();
        let Some(uri) =
            self.ledger.channels.chats.known(chat).map(|it| terminal_uri(&it.channel.uri, number))
        else {
            return;
        };
        let title = terminals::title_of_line(&line);
        let meta = JsonObject::from_iter([(TOOL_KIND.to_owned(), TOOL.into())]);
        calls::start_call(
            &mut self.ledger,
            step,
            shown.clone(),
            TOOL.to_owned(),
            "Terminal".to_owned(),
            Some(meta),
            None,
        );
        let message = format!("Run {line}").into();
        let (gate, extras) = (ToolGate::Open, CallExtras::default());
        let ready = Readiness { input: line.clone(), message, gate, extras };
        calls::call_is_ready(&mut self.ledger, step, shown.clone(), ready);
        let (turn_id, id) = (shown.turn_id.clone(), shown.id.clone());
        let claim = terminals::claim_of(&self.ledger, chat, Some(turn_id), Some(id));
        let state = TerminalState {
            cwd: directory.clone(),
            cols: Some(SCREEN.cols.into()),
            rows: Some(SCREEN.rows.into()),
            ..running_state(title.clone(), claim, true)
        };
        let pty = Pty { is_named: true, call: Some(command), ..Pty::default() };
        let channel = Channel::new(uri.clone(), self.ledger.head() + 1);
        let terminal = Terminal { chat: Some(chat), pty: Some(pty), ..Terminal::new(channel, state) };
        // The limit is checked before the terminal counts as running.
        let checked = ptys::check_pty_limit(&self.ledger, None);
        terminals::add_terminal(&mut self.ledger, key, terminal);
        if let Err(why) = checked {
            return self.command_finished(step, key, Err(why));
        }
        let block = ToolResultTerminalContent { resource: uri, title, is_pty: Some(true), result: None };
        calls::set_content(&mut self.ledger, step, shown, vec![ToolResultContent::Terminal(block)], None);
        let launch = PtyLaunch { command: Some(line), directory, size: SCREEN };
        step.emit(Output::Pty(key, PtyCommand::Start(launch)));
        step.emit(Output::Timer(Timer::Command(key), COMMAND_TIMEOUT));
    }

    /// Ends the call of a command that has exited, then its turn or the agent's wait.
    pub(super) fn command_finished(
        &mut self,
        step: &mut Step<'_>,
        key: TerminalKey,
        outcome: Result<Option<i64>, String>,
    ) {
        let Some(command) = commands::settle_command(&mut self.ledger, step, key, outcome) else { return };
        let CallRef { key: chat, id, .. } = command.call;
        match command.agent {
            Some(run) => {
                if let Some(result) = calls::result_for_agent(&self.ledger, chat, run, &id) {
                    step.send_to_agent(chat, result);
                }
            }
            None => self.end_turn(step, chat, Ending::Complete, None),
        }
    }

    pub(super) fn command_timed_out(&mut self, step: &mut Step<'_>, key: TerminalKey) {
        if self.ledger.channels.terminals.get(&key).is_some_and(Terminal::is_command) {
            let minutes = COMMAND_TIMEOUT.as_secs() / 60;
            let why = format!("the command was stopped after {minutes} minutes, the limit for commands");
            self.command_finished(step, key, Err(why));
        }
    }
}
