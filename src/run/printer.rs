//! Output of a run: text, lines of JSON, or the final answer.
//!
//! Owns: stdout, the status line of a terminal, and notes on stderr.
//! Never: decides anything, or waits for input.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use ahp_types::actions::StateAction;
use ahp_types::common::JsonObject;
use ahp_types::state::ResponsePart;
use anyhow::anyhow;
use serde_json::Value;

use super::RunStop;
use crate::os::stdio::is_closed;
use crate::wire::text::plain;

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputForm {
    /// Text of the answers, as it arrives.
    Plain,
    /// Text with the agent's work, for a person.
    Terminal,
    /// Each action as a line of JSON.
    Json,
    /// The final answer, at the end.
    Quiet,
}

impl OutputForm {
    /// Returns the form that the flags choose, or that suits stdout.
    pub fn chosen(json: bool, quiet: bool) -> Self {
        match (json, quiet) {
            (true, _) => Self::Json,
            (_, true) => Self::Quiet,
            _ if io::stdout().is_terminal() => Self::Terminal,
            _ => Self::Plain,
        }
    }
}

/// Interval at which the status line is redrawn.
pub const REDRAWN_EVERY: Duration = Duration::from_millis(120);

/// Member of a session's `_meta` with the plans of its chats, by their URIs.
const PLAN: &str = "acp.plan";

const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// Maximum length of the status line, in characters: a wrapped line cannot be erased.
const STATUS_CHARS_MAX: usize = 70;

/// Moves to the beginning of the line, and erases it.
const ERASE: &str = "\r\x1b[K";

/// Output of a run.
#[derive(Debug)]
pub struct Printer {
    form: OutputForm,
    out: io::Stdout,
    /// Id of the part whose text was printed last.
    part: Option<String>,
    /// Number of line ends at the end of the output, up to 2. An empty output counts as 2.
    line_ends: usize,
    /// Current work of the agent, for the status line.
    activity: String,
    since: Instant,
    frame: usize,
    is_status_shown: bool,
    plan: Vec<String>,
    loss: Option<OutputLoss>,
}

/// Reason why output was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputLoss {
    /// The reader of stdout is gone.
    ReaderGone,
    /// Stdout cannot be written, for this reason.
    Failed(String),
}

impl OutputLoss {
    /// Returns the loss as a reason to cancel a turn.
    pub fn stop(&self) -> RunStop {
        match self {
            Self::ReaderGone => RunStop::ReaderGone,
            Self::Failed(_) => RunStop::Output(self.reason()),
        }
    }

    /// Returns the loss as an error.
    pub fn reason(&self) -> anyhow::Error {
        match self {
            Self::ReaderGone => anyhow!("stdout cannot be written: its reader is gone"),
            Self::Failed(error) => anyhow!("stdout cannot be written: {error}"),
        }
    }
}

impl Printer {
    /// Creates the output.
    pub fn new(form: OutputForm) -> Self {
        Self {
            form,
            out: io::stdout(),
            part: None,
            line_ends: 2,
            activity: "starting".to_owned(),
            since: Instant::now(),
            frame: 0,
            is_status_shown: false,
            plan: Vec::new(),
            loss: None,
        }
    }

    /// Returns whether the status line needs to be redrawn from time to time.
    pub fn has_status(&self) -> bool {
        self.form == OutputForm::Terminal
    }

    /// Prints an action on the session or the chat; `text` is its envelope.
    pub fn action(&mut self, action: &StateAction, text: &str) {
        match self.form {
            OutputForm::Json => self.write(&format!("{text}\n")),
            OutputForm::Quiet => {}
            OutputForm::Plain => self.text_of(action),
            OutputForm::Terminal => {
                self.text_of(action);
                self.work_of(action)
            }
        }
    }

    fn text_of(&mut self, action: &StateAction) {
        match action {
            StateAction::ChatResponsePart(started) => {
                if let ResponsePart::Markdown(part) = &started.part {
                    self.text(&part.id, &part.content);
                }
            }
            StateAction::ChatDelta(delta) => self.text(&delta.part_id, &delta.content),
            _ => {}
        }
    }

    /// Prints text of a part. A blank line separates parts.
    fn text(&mut self, part: &str, text: &str) {
        if text.is_empty() {
            return;
        }
        self.erase();
        if self.part.as_deref() != Some(part) {
            self.part = Some(part.to_owned());
            let begins_with = text.bytes().take_while(|byte| *byte == b'\n').count();
            let missing = 2usize.saturating_sub(self.line_ends + begins_with);
            self.write(&"\n".repeat(missing));
        }
        if self.form == OutputForm::Terminal {
            return self.write(&harmless(text));
        }
        self.write(text)
    }

    /// Prints the agent's work, for a person.
    fn work_of(&mut self, action: &StateAction) {
        match action {
            StateAction::ChatReasoning(_) => self.set_activity("thinking"),
            StateAction::ChatToolCallReady(call) => self.set_activity(plain(&call.invocation_message)),
            StateAction::ChatToolCallComplete(call) => {
                let (mark, message) = match call.result.success {
                    true => ("✓", plain(&call.result.past_tense_message)),
                    false => ("✗", plain(&call.result.past_tense_message)),
                };
                self.line(&format!("{mark} {message}"));
                self.set_activity("working");
            }
            StateAction::ChatActivityChanged(changed) => {
                self.set_activity(changed.activity.as_deref().unwrap_or("working"));
            }
            StateAction::ChatTurnStarted(_) => self.set_activity("working"),
            StateAction::SessionMetaChanged(changed) => {
                let entries = changed.meta.as_ref().and_then(plan_in);
                if let Some(plan) = entries.filter(|plan| *plan != self.plan) {
                    plan.iter().for_each(|entry| self.line(entry));
                    self.plan = plan;
                }
            }
            _ => {}
        }
    }

    /// Sets the work that the status line shows.
    pub fn set_activity(&mut self, activity: &str) {
        self.activity = activity.lines().next().unwrap_or_default().to_owned();
    }

    /// Prints a line of its own among the text.
    fn line(&mut self, line: &str) {
        self.erase();
        if self.line_ends == 0 {
            self.write("\n");
        }
        self.part = None;
        let line = harmless(line.lines().next().unwrap_or_default());
        self.write(&format!("{line}\n"))
    }

    /// Draws the status line, where the output is at the beginning of a line.
    pub fn draw(&mut self) {
        if !self.has_status() || self.line_ends == 0 {
            return;
        }
        self.frame += 1;
        let seconds = self.since.elapsed().as_secs();
        let text =
            format!("{} {} ({seconds}s)", SPINNER[self.frame % SPINNER.len()], harmless(&self.activity));
        let text: String = text.chars().take(STATUS_CHARS_MAX).collect();
        self.is_status_shown = true;
        self.put(&format!("{ERASE}{text}"))
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_status_shown) {
            self.put(ERASE);
        }
    }

    /// Ends the text of a turn with a line end.
    pub fn end_turn(&mut self) {
        self.erase();
        self.part = None;
        match self.line_ends {
            0 if matches!(self.form, OutputForm::Plain | OutputForm::Terminal) => self.write("\n"),
            _ => {}
        }
    }

    /// Prints the final answer, where nothing else is printed.
    pub fn finish(&mut self, answer: &str) {
        self.erase();
        match self.form {
            OutputForm::Quiet if !answer.is_empty() => {
                let shown = if io::stdout().is_terminal() { harmless(answer) } else { answer.to_owned() };
                let end = if shown.ends_with('\n') { "" } else { "\n" };
                self.write(&format!("{shown}{end}"))
            }
            _ => {}
        }
    }

    /// Writes a note for people to stderr. A failure is ignored: stderr may be closed.
    pub fn note(&mut self, note: &str) {
        self.erase();
        if self.form == OutputForm::Terminal && self.line_ends == 0 {
            self.write("\n");
        }
        writeln!(io::stderr(), "{}", harmless(note)).unwrap_or_default();
    }

    fn write(&mut self, text: &str) {
        let ends = text.bytes().rev().take_while(|byte| *byte == b'\n').count();
        self.line_ends = if ends == text.len() { self.line_ends + ends } else { ends }.min(2);
        self.put(text)
    }

    fn put(&mut self, text: &str) {
        self.put_bytes(text.as_bytes());
    }

    /// Writes bytes, unless earlier ones were lost.
    fn put_bytes(&mut self, bytes: &[u8]) {
        if self.loss.is_some() {
            return;
        }
        self.loss = match self.out.write_all(bytes).and_then(|()| self.out.flush()) {
            Ok(()) => None,
            Err(error) if is_closed(&error) => Some(OutputLoss::ReaderGone),
            Err(error) => Some(OutputLoss::Failed(error.to_string())),
        };
    }

    /// Writes a patch or a summary, behind all else.
    pub fn document(&mut self, content: &[u8]) {
        self.erase();
        self.put_bytes(content);
    }

    /// Returns why output was lost; `None` if all was written.
    pub fn loss(&self) -> Option<OutputLoss> {
        self.loss.clone()
    }
}

/// Returns a text without characters that a terminal obeys.
fn harmless(text: &str) -> String {
    text.chars().filter(|char| !char.is_control() || matches!(char, '\n' | '\t')).collect()
}

/// Returns the entries of an agent's plan, each as a line; `None` without a plan.
fn plan_in(meta: &JsonObject) -> Option<Vec<String>> {
    let plan = meta.get(PLAN)?.as_object()?.values().next()?;
    let entries = plan.get("entries")?.as_array()?;
    let line = |entry: &Value| {
        let mark = match entry["status"].as_str() {
            Some("completed") => "[x]",
            Some("in_progress") => "[>]",
            _ => "[ ]",
        };
        Some(format!("{mark} {}", entry["content"].as_str()?))
    };
    Some(entries.iter().filter_map(line).collect())
}
