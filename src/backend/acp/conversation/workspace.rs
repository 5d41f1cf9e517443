//! Requests of an agent for the user's machine: files, and commands in terminals.
//!
//! Reading is served while the conversation is open. Changes (writes and commands) are served only
//! during a turn that is not cancelled, since otherwise no user sees them. Depending on its
//! configuration, the agent has asked the user for permission before; the host does not ask again.
//!
//! The result is shown in the tool call that the agent has for it. A write or command without an
//! open call of the agent, to which no call refers, is shown as a call of its own, named after the
//! ACP method.
//!
//! Owns: when each of these requests is served, and how it is shown.
//! Never: touches a file or a process itself.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use agent_client_protocol_schema::v1::{
    Diff, Terminal, TerminalOutputRequest, ToolCall, ToolCallContent, ToolCallLocation, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind, WriteTextFileRequest,
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio_util::sync::CancellationToken;

use super::AcpConversation;
use crate::backend::acp::calls::CallReport;
use crate::backend::acp::errors::RequestError;
use crate::backend::acp::files::{FileAnswer, FileChange, FileOutcome, FileRequest, Files};
use crate::backend::acp::peer::AgentRequest;
use crate::backend::acp::terminals::screen::Screen;
use crate::backend::acp::terminals::{Answered, Launch, Terminals};
use crate::files::uris::path_of;
use crate::host::effects::RunId;

/// The agent's files and commands.
pub(super) struct Workspace {
    pub(super) files: Files,
    pub(super) terminals: Terminals,
    /// Commands to show at the end of the turn, unless a call has shown them before.
    alone: Vec<UnattachedCommand>,
    /// Number of shown writes without a call of the agent; each gets a call of the host's own.
    own_calls: u64,
}

/// Command that was started while the agent had no open call.
struct UnattachedCommand {
    name: String,
    title: String,
    input: Value,
    screen: Arc<Screen>,
}

impl Workspace {
    pub(super) fn new(files: Files, terminals: Terminals) -> Self {
        Self { files, terminals, alone: Vec::new(), own_calls: 0 }
    }

    pub(super) fn work_in(&mut self, directories: &[String]) {
        let folders: Vec<PathBuf> = directories.iter().filter_map(|uri| path_of(uri).ok()).collect();
        if let Some(first) = folders.first() {
            self.terminals.work_in(first.clone());
        }
        self.files.work_in(folders);
    }

    /// Returns whether a command runs that no call has started.
    pub(super) fn has_command_alone(&self) -> bool {
        self.alone.iter().any(|alone| alone.screen.ending().is_none())
    }

    fn next_own_call(&mut self) -> String {
        self.own_calls += 1;
        format!("fs/write_text_file {}", self.own_calls)
    }
}

impl AcpConversation {
    pub(super) fn handle_workspace_request(
        &mut self,
        request: AgentRequest,
        method: &str,
        params: &RawValue,
    ) {
        let offers = self.running.offers;
        let offered = match method {
            "fs/read_text_file" => offers.reading == Some(true),
            "fs/write_text_file" => offers.writing,
            _ => offers.terminals,
        };
        let served = if offered {
            self.serve_workspace(&request, method, params)
        } else {
            Err(RequestError::MethodNotServed)
        };
        if let Some(answer) = served.transpose() {
            self.receiver.answer(&request, answer);
        }
        self.answer_settled();
    }

    fn serve_workspace(&mut self, request: &AgentRequest, method: &str, params: &RawValue) -> Answered {
        let asked = match method {
            "fs/read_text_file" => FileRequest::Read(parsed(params)?),
            "fs/write_text_file" => {
                let (_, cancelled) = self.running_turn()?;
                let write: WriteTextFileRequest = parsed(params)?;
                let path = write.path.clone();
                let call = (!self.calls.any_open()).then(|| self.workspace.next_own_call());
                let asked = FileRequest::Write { write, call: call.clone(), cancelled };
                self.workspace.files.ask(request.clone(), asked)?;
                // A refused request has no call, since nothing would end it.
                if let Some(call) = call {
                    self.show_write(call, &path);
                }
                return Ok(None);
            }
            "terminal/create" => {
                self.running_turn()?;
                FileRequest::Find(Box::new(
                    self.workspace.terminals.launch(parsed(params)?, &self.agent.commands)?,
                ))
            }
            "terminal/output" | "terminal/wait_for_exit" | "terminal/kill" | "terminal/release" => {
                // These requests have no params other than the terminal.
                let asked: TerminalOutputRequest = parsed(params)?;
                let name = &*asked.terminal_id.0;
                return match method {
                    "terminal/output" => self.workspace.terminals.output(name),
                    "terminal/wait_for_exit" => self.workspace.terminals.wait_for_exit(request, name),
                    "terminal/kill" => self.workspace.terminals.kill(request, name),
                    _ => self.workspace.terminals.release(request, name),
                };
            }
            _ => return Err(RequestError::MethodNotServed),
        };
        self.workspace.files.ask(request.clone(), asked).map(|()| None)
    }

    /// Returns the turn in which changes are allowed, and the token of its cancellation.
    fn running_turn(&self) -> Result<(RunId, CancellationToken), RequestError> {
        match &self.run {
            Some(run) if run.goes_on() => Ok((run.id, run.cancelling.clone())),
            Some(run) if run.is_cancelled() => Err(RequestError::TurnCancelled),
            _ => Err(RequestError::NoTurnRuns),
        }
    }

    pub(super) fn done(&mut self, done: FileOutcome) {
        let FileOutcome { request, result, shown } = done;
        if let Some((call, change)) = shown {
            self.show_written(&call, change, result.as_ref().err());
        }
        let answer = match result {
            Ok(FileAnswer::Json(answer)) => Ok(answer),
            // The request was withdrawn.
            Ok(FileAnswer::Found(_)) if !self.receiver.is_open(&request) => return,
            Ok(FileAnswer::Found(launch)) => match self.start_command(&request, &launch) {
                // Answered when the command has started.
                Ok(()) => return,
                Err(failed) => Err(failed),
            },
            Err(failed) => Err(failed),
        };
        self.receiver.answer(&request, answer);
    }

    fn start_command(&mut self, request: &AgentRequest, launch: &Launch) -> Result<(), RequestError> {
        let (run, _) = self.running_turn()?;
        let (name, screen) = self.workspace.terminals.start(request, launch, run, &self.agent.commands)?;
        tracing::info!(agent = self.agent.spec.name, name, "a command runs for the agent: {}", screen.title);
        self.calls.screens.add(name.clone(), Arc::clone(&screen));
        if !self.calls.any_open() {
            let Launch { create, directory, .. } = launch;
            let input = json!({ "command": create.command, "args": create.args, "cwd": directory });
            self.workspace.alone.push(UnattachedCommand { name, title: screen.title.clone(), input, screen });
        }
        Ok(())
    }

    /// Answers the requests about terminals that no longer wait.
    pub(super) fn answer_settled(&mut self) {
        for (request, answer) in self.workspace.terminals.answers() {
            self.receiver.answer(&request, answer);
        }
    }

    /// Reports the output of commands: to the subscribers of their terminals, and in the calls that
    /// refer to them.
    pub(super) fn show_terminals(&mut self) {
        let is_due = self.workspace.terminals.mark_sent();
        self.events.extend(self.calls.terminal_events(is_due));
        if is_due {
            let events = self.calls.screens_changed();
            self.send_to_host(events);
        }
    }

    /// Shows a write that belongs to no call of the agent as a call of its own.
    fn show_write(&mut self, id: String, path: &Path) {
        let call = ToolCall::new(id, format!("Write {}", path.display()))
            .kind(ToolKind::Edit)
            .status(ToolCallStatus::InProgress)
            .locations(vec![ToolCallLocation::new(path)])
            .raw_input(json!({ "path": path }));
        self.show_own_call(&call, "fs/write_text_file");
    }

    fn show_written(&mut self, call: &str, change: FileChange, failed: Option<&RequestError>) {
        let FileChange { path, before, after } = change;
        let (status, content) = match (failed, before) {
            (None, Some(before)) => {
                let diff = Diff::new(path, after).old_text(before);
                (ToolCallStatus::Completed, vec![ToolCallContent::Diff(diff)])
            }
            // A change cannot be shown if the previous content is unknown.
            (None, None) => (ToolCallStatus::Completed, Vec::new()),
            (Some(error), _) => (ToolCallStatus::Failed, vec![error.to_string().into()]),
        };
        let fields = ToolCallUpdateFields::new().status(status).content(content);
        match CallReport::by_host(&ToolCallUpdate::new(call.to_owned(), fields), None) {
            Ok(report) => {
                let events = self.calls.updated(report);
                self.send_call_events(events);
            }
            Err(error) => {
                tracing::error!(%error, call, "the change of a file cannot be shown in its tool call")
            }
        }
    }

    /// Shows commands that belong to no call of the agent as calls of their own, at the end of a
    /// turn.
    pub(super) fn show_alone(&mut self) {
        for UnattachedCommand { name, title, input, screen } in std::mem::take(&mut self.workspace.alone) {
            if screen.is_shown.load(Ordering::Relaxed) {
                continue;
            }
            let failed = screen.ending().is_some_and(|ending| ending.status != Some(0));
            let status = if failed { ToolCallStatus::Failed } else { ToolCallStatus::Completed };
            let call = ToolCall::new(format!("terminal/create {name}"), title)
                .kind(ToolKind::Execute)
                .status(status)
                .content(vec![ToolCallContent::Terminal(Terminal::new(name))])
                .raw_input(input);
            self.show_own_call(&call, "terminal/create");
        }
    }

    fn show_own_call(&mut self, call: &ToolCall, name: &str) {
        match CallReport::by_host(call, Some(name)) {
            Ok(report) => {
                let events = self.calls.begun(report);
                self.send_call_events(events);
            }
            Err(error) => {
                tracing::error!(%error, name, "a file or command request of the agent cannot be shown as a tool call")
            }
        }
    }
}

fn parsed<T: DeserializeOwned>(params: &RawValue) -> Result<T, RequestError> {
    serde_json::from_str(params.get()).map_err(RequestError::ParamsUnreadable)
}
