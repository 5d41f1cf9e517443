//! Steps that show a terminal or a page.
//!
//! Owns: the reports of a simulated command: its call, its output and its end; those of canvases.
//! Real commands are run by the host.
//! Never: runs anything, or opens a page.

use ahp_types::common::JsonObject;
use ahp_types::state::{ToolResultContent, ToolResultTerminalContent};

use super::steps::text_content;
use super::{ScriptAgent, Stop};
use crate::host::effects::{CallExtras, Event, PageUrl, TerminalEvent, ToolGate, ToolOutcome, TurnEvent};
use crate::wire::canvases::is_page_url;
use crate::wire::tool_calls::TOOL_KIND;

const TOOL: &str = "terminal";

impl ScriptAgent {
    /// Reports a call whose terminal prints a text, word by word.
    pub(super) async fn show_terminal(&mut self, text: &str) -> Result<(), Stop> {
        let id = self.next_call();
        self.terminals += 1;
        let terminal = format!("terminal-{}", self.terminals);
        let started = TurnEvent::ToolStarted {
            id: id.clone(),
            name: TOOL.to_owned(),
            display_name: "Terminal".to_owned(),
        };
        let meta = JsonObject::from_iter([(TOOL_KIND.to_owned(), TOOL.into())]);
        self.report_turn(TurnEvent::With(Box::new(started), CallExtras { meta, ..CallExtras::default() }))
            .await?;
        let input = format!("echo {text}");
        let message = format!("Run {input}");
        let ready = TurnEvent::ToolReady {
            id: id.clone(),
            input: input.clone(),
            message: message.into(),
            gate: ToolGate::Open,
        };
        self.report_turn(ready).await?;
        self.report_of(
            &terminal,
            TerminalEvent::Opened { call: id.clone(), title: input.clone(), detaches: false },
        )
        .await?;
        let shown = ToolResultContent::Terminal(ToolResultTerminalContent {
            resource: terminal.clone(),
            title: input.clone(),
            is_pty: None,
            result: None,
        });
        self.report_turn(TurnEvent::ToolContent { id: id.clone(), content: vec![shown.clone()] }).await?;
        let printed = format!("{text}\n");
        for word in printed.split_inclusive(' ') {
            self.report_of(&terminal, TerminalEvent::Data(word.to_owned())).await?;
        }
        self.report_of(&terminal, TerminalEvent::Exited(Some(0))).await?;
        let mut content = vec![shown];
        content.extend(text_content(&printed));
        let message = format!("Ran {input}").into();
        let outcome = ToolOutcome { success: true, message, content, error: None };
        self.finish(TurnEvent::ToolDone { id, outcome, review: false }).await
    }

    /// Has the host run a command, and waits for its end.
    pub(super) async fn run_in_terminal(&mut self, line: &str) -> Result<(), Stop> {
        let id = self.next_call();
        self.report_turn(TurnEvent::Command { id: id.clone(), line: line.to_owned() }).await?;
        self.reply_about(&id).await?;
        let done = self.turn.done + 1;
        self.turn.reported = done;
        self.report_turn(TurnEvent::Progress(done as u64)).await
    }

    /// Shows the page at an address, which is the last word; without an address, closes the canvas
    /// with this title.
    pub(super) async fn show_canvas(&mut self, rest: &str) -> Result<(), Stop> {
        let (title, url) = match rest.rsplit_once(' ').filter(|(_, url)| is_page_url(url)) {
            Some((title, url)) => (title, Some(PageUrl(url.to_owned()))),
            None => (rest, None),
        };
        self.report(Event::Canvas { name: title.to_owned(), url }).await
    }

    async fn report_of(&mut self, terminal: &str, event: TerminalEvent) -> Result<(), Stop> {
        self.report(Event::Terminal { name: terminal.to_owned(), event }).await
    }
}
