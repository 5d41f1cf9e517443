//! Simulated backends: one conversation for each chat.
//!
//! Owns: what a conversation has been told, turning a report of a schedule into an event, and the
//! demands that a backend may make on the host's commands. A conversation may say anything at any
//! time (events of finished runs, of unknown calls, the same call twice, an end twice), except that
//! nothing is heard of it once it is closed or dead: that is the promise of the module that runs
//! conversations.
//! Never: knows the state that clients see.

use std::collections::HashSet;

use ahp_sidecar::host::effects::{
    CallExtras, Command, Event, Handle, McpServerReport, OpenFailure, PageUrl, PermissionKind,
    PermissionOption, RunId, TextKind, ToolGate, ToolOutcome, TurnCause, TurnEnd, TurnEvent,
};
use ahp_types::state::{ChatInputQuestion, ToolResultContent, ToolResultTextContent, UsageInfo};
use anyhow::{bail, ensure, Result};
use serde_json::{json, Value};

use super::schedule::{Happening, Report};
use super::speech::{text, tool_name, SERVERS};

/// Few ids, so that some are used twice; one that the host uses for parts of its own.
const CALLS: [&str; 4] = ["call-0", "call-1", "part-1", ""];

/// A chat's backend.
#[derive(Debug, Default)]
pub struct Agent {
    state: State,
    /// True while a requested own turn was not confirmed.
    begins: bool,
    /// Every run it was told of, the newest last.
    runs: Vec<RunId>,
    /// Runs of this conversation whose end it has not reported.
    unended: Vec<RunId>,
    known: HashSet<RunId>,
    /// Runs that it has said something of.
    spoken_of: HashSet<RunId>,
    /// Steering messages received and not consumed, the latest last.
    steering: Vec<(RunId, String)>,
    /// Ids of the messages consumed in runs that it ends itself.
    taken_in: HashSet<String>,
    cancelled: HashSet<RunId>,
    /// The calls that ran on clients, of which it was told what came of them.
    answered: HashSet<(RunId, String)>,
    /// Working directories.
    directories: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Closed,
    Opening,
    Open,
}

impl Agent {
    /// Takes a command, which must be one that makes sense.
    pub fn obey(&mut self, command: &Command) -> Result<()> {
        match command {
            Command::Open(open) => {
                ensure!(self.state == State::Closed, "opened while {:?}", self.state);
                self.directories.clone_from(&open.working_directories);
                self.state = State::Opening;
            }
            Command::OwnTurn { .. } if !self.begins => bail!("told to go on, which it does not"),
            Command::StartTurn { run, .. } | Command::ResumeTurn { run, .. } | Command::OwnTurn { run } => {
                self.begins = false;
                ensure!(self.state == State::Open, "told to run while {:?}", self.state);
                ensure!(self.unended.is_empty(), "told to run while {:?} run", self.unended);
                ensure!(self.known.insert(*run), "{run:?} was given twice");
                self.runs.push(*run);
                self.unended.push(*run);
            }
            Command::Configure { .. } => ensure!(self.state != State::Closed, "configured while closed"),
            Command::Cancel { run } => {
                ensure!(self.unended.contains(run), "told about {run:?}, which does not run: {command:?}");
                self.cancelled.insert(*run);
            }
            Command::ToolResult { run, tool_call_id, .. } => {
                ensure!(self.unended.contains(run), "told about {run:?}, which does not run: {command:?}");
                let first = self.answered.insert((*run, tool_call_id.clone()));
                ensure!(first, "told twice what came of `{tool_call_id}` in {run:?}");
            }
            Command::Permission { run, .. }
            | Command::ResultConfirmed { run, .. }
            | Command::Answer { run, .. } => {
                ensure!(self.unended.contains(run), "told about {run:?}, which does not run: {command:?}");
            }
            Command::Steer { run, id, .. } => {
                ensure!(self.unended.contains(run), "told about {run:?}, which does not run: {command:?}");
                let twice = self.steering.iter().any(|(at, known)| (at, known) == (run, id));
                ensure!(!twice, "handed `{id}` twice in {run:?}");
                ensure!(!self.taken_in.contains(id), "handed `{id}`, which it has taken in, again");
                self.steering.push((*run, id.clone()));
            }
            Command::WorkIn { directories } => {
                ensure!(self.state == State::Open, "told where to work while {:?}", self.state);
                ensure!(self.directories != *directories, "told again to work in {directories:?}");
                self.directories.clone_from(directories);
            }
            Command::McpServers { .. } => {
                ensure!(self.state == State::Open, "given other servers while {:?}", self.state);
            }
            Command::ClientTools { .. } | Command::Background { .. } => {}
            Command::Tokens(tokens) => bail!("told {tokens:?}, which it has not asked for"),
            Command::Close => {
                ensure!(self.state != State::Closed, "closed twice");
                self.close();
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        self.state = State::Closed;
        self.begins = false;
        self.unended.clear();
        self.steering.clear();
    }

    /// Tells whether the backend is alive and can report events.
    pub fn is_up(&self) -> bool {
        self.state != State::Closed
    }

    /// Returns its working directories, or `None` if it is not open.
    pub fn works_in(&self) -> Option<&[String]> {
        (self.state == State::Open).then_some(&self.directories)
    }

    /// Returns the event of a report, or `None` if no backend can report it.
    pub fn report(&mut self, report: &Report) -> Option<Event> {
        if self.state == State::Closed {
            return None;
        }
        Some(match report {
            Report::Opened => {
                self.state = State::Open;
                Event::Opened
            }
            Report::Opening { done, of } => Event::Opening {
                done: u64::from(*done),
                total: (of % 3 > 0).then(|| u64::from(*of)),
                message: None,
            },
            Report::OpenFailed if self.state == State::Opening => {
                self.close();
                Event::OpenFailed { kind: OpenFailure::Unavailable, reason: "no such program".to_owned() }
            }
            Report::Died | Report::OpenFailed => {
                self.close();
                Event::Died { reason: "exit status 1".to_owned() }
            }
            // It has not heard of what runs.
            Report::Left
                if self.state == State::Open
                    && self.unended.iter().all(|run| !self.spoken_of.contains(run)) =>
            {
                self.close();
                Event::Left
            }
            Report::Left => return None,
            Report::Begins(background) => {
                // It says so once, and only while it has nothing else to do.
                if self.state != State::Open || self.begins || !self.unended.is_empty() {
                    return None;
                }
                self.begins = true;
                Event::Begins(if *background { TurnCause::Background } else { TurnCause::Agent })
            }
            Report::Handle(index) => Event::Handle(
                (index % 4 != 3).then(|| Handle { name: text(*index).to_owned(), resumes: index % 2 == 0 }),
            ),
            Report::Title(index) => Event::Title(text(*index).to_owned()),
            Report::Canvas { name, page } => Event::Canvas {
                name: format!("canvas-{}", name % 3),
                url: page.map(|page| PageUrl(format!("http://127.0.0.1/{}", page % 2))),
            },
            Report::Servers(index) => Event::McpServers(
                (0..index % 4)
                    .map(|at| McpServerReport {
                        server: format!("mcp:{}", SERVERS[usize::from(at)]),
                        problem: (index % 5 == u8::from(at == 1)).then(|| text(*index).to_owned()),
                    })
                    .collect(),
            ),
            Report::Note { name, value } => Event::Note {
                name: format!("note-{}", name % 2),
                value: value.map(|value| json!({ "said": text(value) })),
            },
            Report::Turn { older, event } => {
                let run =
                    self.runs.iter().rev().nth(usize::from(*older) % self.runs.len().max(1)).copied()?;
                self.spoken_of.insert(run);
                if matches!(event, Happening::Ended(_)) {
                    self.unended.retain(|unended| *unended != run);
                }
                if let Happening::Steered(index) = event {
                    let (run, id) = self.consume_steering(*index)?;
                    return Some(Event::Turn(run, TurnEvent::Steered(id)));
                }
                if let Happening::NotSteered(index) = event {
                    let place = self.steering.len().checked_sub(1)?.checked_sub(usize::from(*index))?;
                    let (run, id) = self.steering.remove(place);
                    return Some(Event::Turn(run, TurnEvent::NotSteered(id)));
                }
                Event::Turn(run, happen(event)?)
            }
        })
    }

    /// A steering message that it was handed, of whatever run.
    fn consume_steering(&mut self, index: u8) -> Option<(RunId, String)> {
        let place = (self.steering.len().checked_sub(1)?).checked_sub(usize::from(index))?;
        let (run, id) = self.steering.remove(place);
        if self.unended.contains(&run) && !self.cancelled.contains(&run) {
            self.taken_in.insert(id.clone());
        }
        Some((run, id))
    }

    /// Takes note of what somebody else says who does its work.
    pub fn reports(&mut self, event: &Event) {
        match event {
            Event::Opened => self.state = State::Open,
            Event::OpenFailed { .. } | Event::Left | Event::Died { .. } => self.close(),
            Event::Begins(_) => self.begins = true,
            Event::Turn(run, TurnEvent::Ended(_)) => self.unended.retain(|unended| unended != run),
            Event::Turn(_, TurnEvent::NotSteered(id)) => self.steering.retain(|(_, known)| known != id),
            Event::Turn(_, TurnEvent::Steered(id)) => {
                self.steering.retain(|(_, known)| known != id);
                self.taken_in.insert(id.clone());
            }
            _ => {}
        }
    }

    /// Tells whether the backend has pending events.
    pub fn is_busy(&self) -> bool {
        self.state == State::Opening || !self.unended.is_empty()
    }

    /// Returns the next pending event of a well-behaved backend, or `None` if it has none.
    pub fn finish(&mut self) -> Option<Event> {
        match (self.state, self.unended.pop()) {
            (State::Closed, _) => None,
            (_, Some(run)) => Some(Event::Turn(run, TurnEvent::Ended(TurnEnd::Complete))),
            (State::Opening, None) => self.report(&Report::Opened),
            (State::Open, None) => None,
        }
    }

    /// Checks that no event is pending.
    pub fn check_idle(&self) -> Result<()> {
        if !self.unended.is_empty() || self.state == State::Opening {
            bail!("a backend is still busy: {self:?}");
        }
        Ok(())
    }
}

/// Returns the event of a happening that depends on nothing else.
fn happen(event: &Happening) -> Option<TurnEvent> {
    let call = |index: u8| CALLS[usize::from(index) % CALLS.len()].to_owned();
    let kind = |thought: bool| if thought { TextKind::Reasoning } else { TextKind::Markdown };
    Some(match event {
        Happening::Part { thought, text: index } => TurnEvent::Part(kind(*thought), text(*index).to_owned()),
        Happening::Text { thought, text: index } if index % 2 == 0 => {
            TurnEvent::Text(kind(*thought), text(*index).to_owned())
        }
        Happening::Text { thought, text: index } => {
            let texts = (0..3).map(|next| text(index.wrapping_add(next)).to_owned());
            TurnEvent::Texts(kind(*thought), texts.collect())
        }
        Happening::Activity(activity) => TurnEvent::Activity(activity.map(|index| text(index).to_owned())),
        Happening::Notice(index) => TurnEvent::Notice(text(*index).to_owned()),
        Happening::Usage(tokens) => TurnEvent::Usage(UsageInfo {
            input_tokens: Some(i64::from(*tokens)),
            output_tokens: None,
            model: None,
            cache_read_tokens: None,
            meta: None,
        }),
        Happening::Started { call: index } => TurnEvent::ToolStarted {
            id: call(*index),
            name: "tool".to_owned(),
            display_name: "Tool".to_owned(),
        },
        Happening::Input { call: index, text: delta } => {
            TurnEvent::ToolInput { id: call(*index), delta: text(*delta).to_owned() }
        }
        Happening::Ready { call: index, gate } => TurnEvent::ToolReady {
            id: call(*index),
            input: "{}".to_owned(),
            message: "Run the tool".into(),
            gate: gate_of(*gate),
        },
        Happening::ClientToolStarted { call: index, tool } => {
            TurnEvent::ClientToolStarted { id: call(*index), name: tool_name(*tool).to_owned() }
        }
        Happening::ClientTool { call: index, tool } => TurnEvent::ClientTool {
            id: call(*index),
            name: tool_name(*tool).to_owned(),
            input: "{}".to_owned(),
            message: "Have the tool run".into(),
        },
        Happening::Content { call: index, text } => {
            TurnEvent::ToolContent { id: call(*index), content: content(*text) }
        }
        Happening::Done { call: index, success, review } => TurnEvent::ToolDone {
            id: call(*index),
            outcome: ToolOutcome {
                success: *success,
                message: "Ran the tool".into(),
                content: content(*index),
                error: (!success).then(|| "it failed".to_owned()),
            },
            review: *review,
        },
        Happening::Question { id, shape } => {
            let (message, url) =
                (Some(text(*shape).to_owned()), (*shape == 2).then(|| "https://x/".to_owned()));
            let id = format!("question-{}", id % 3);
            TurnEvent::Question { id, message, url, questions: questions(*shape) }
        }
        Happening::QuestionWithdrawn { id } => {
            TurnEvent::QuestionWithdrawn { id: format!("question-{}", id % 3) }
        }
        Happening::With(event, _) if matches!(**event, Happening::Ended(_)) => return None,
        Happening::With(event, index) => TurnEvent::With(Box::new(happen(event)?), besides(*index)),
        Happening::Steered(_) | Happening::NotSteered(_) => return None,
        Happening::Ended(how) => TurnEvent::Ended(end(*how)),
    })
}

fn gate_of(index: u8) -> ToolGate {
    let option = |id: &str, kind| PermissionOption { id: id.to_owned(), label: Some(id.to_owned()), kind };
    let all = vec![
        option("allow", PermissionKind::AllowOnce),
        option("allow-always", PermissionKind::AllowAlways),
        option("reject", PermissionKind::RejectOnce),
        option("reject-always", PermissionKind::RejectAlways),
    ];
    match index % 6 {
        0 | 1 => ToolGate::Ask(all),
        2 => ToolGate::Open,
        3 => ToolGate::AllowedBefore,
        4 => ToolGate::Ask(Vec::new()),
        _ => ToolGate::Ask(all[1..3].to_vec()),
    }
}

fn besides(index: u8) -> CallExtras {
    let said = |name: &str| [(name.to_owned(), Value::from(text(index)))].into_iter().collect();
    let side = || json!({ "uri": "file:///x", "content": { "uri": "data:,x" } });
    let edit = serde_json::from_value(json!({ "before": side(), "after": side() })).unwrap();
    match index % 3 {
        0 => CallExtras { meta: said("meta"), ..CallExtras::default() },
        1 => CallExtras { edits: vec![edit], structured: Some(said("result")), ..CallExtras::default() },
        _ => CallExtras::default(),
    }
}

fn content(index: u8) -> Vec<ToolResultContent> {
    let piece = |index| ToolResultContent::Text(ToolResultTextContent { text: text(index).to_owned() });
    (0..index % 3).map(piece).collect()
}

fn questions(shape: u8) -> Vec<ChatInputQuestion> {
    let question = |id: &str, kind: &str, required: bool| {
        let question = json!({ "id": id, "kind": kind, "message": "?", "required": required });
        serde_json::from_value(question).unwrap()
    };
    match shape % 4 {
        0 => vec![question("q", "text", true)],
        1 => vec![question("q", "text", false), question("r", "boolean", false)],
        2 => Vec::new(),
        _ => vec![question("q", "text", false), question("q", "text", true)],
    }
}

fn end(how: u8) -> TurnEnd {
    let failed =
        |resumable| TurnEnd::Failed { kind: "broken".to_owned(), message: "It broke".to_owned(), resumable };
    match how % 4 {
        0 => TurnEnd::Complete,
        1 => failed(true),
        2 => failed(false),
        _ => TurnEnd::Cancelled,
    }
}
