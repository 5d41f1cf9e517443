//! Output and state of a command in a terminal.
//!
//! Owns: the latest output, within a limit and cut at character boundaries; the stage of the
//! command; and waking its conversation.
//! Never: knows a process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ahp_types::state::ToolResultContent;
use serde_json::{json, Value};
use tokio::sync::Notify;

use super::feed::TerminalFeed;
use crate::backend::acp::content;
use crate::host::effects::Event;
use crate::sync::lock;
use crate::wire::escapes::{whole_characters, CHARACTER_BYTES_MAX};
use crate::wire::text;
use crate::wire::tool_calls::LEFT_OUT;

/// Maximum size of a command's retained output, in bytes; the oldest is dropped.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Maximum size of the latest output shown while a command runs, in bytes.
pub const SHOWN_BYTES_MAX: usize = 16 << 10;

/// Flags for changes of screens, with the notifier of their conversation, which clears the flags.
#[derive(Debug, Default)]
pub struct ScreenChanges {
    /// Set when a command has started or ended.
    pub settled: AtomicBool,
    /// Set when there is new output or a new stage to show.
    pub output: AtomicBool,
    notify: Notify,
}

impl ScreenChanges {
    fn set_output(&self) {
        self.output.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Waits until a flag is set. Cancel safe.
    pub async fn wait_for(&self, flag: &AtomicBool) {
        loop {
            // Created before the check, so that no notification is missed.
            let notified = self.notify.notified();
            if flag.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandExit {
    /// Exit status; `None` if a signal ended the command, or if the status is unknown.
    pub status: Option<u32>,
    pub signal: Option<String>,
}

impl CommandExit {
    pub fn to_json(&self) -> Value {
        json!({ "exitCode": self.status, "signal": self.signal })
    }

    fn to_text(&self) -> String {
        match (&self.signal, self.status) {
            (Some(signal), _) => format!("The command was killed by {signal}."),
            (None, Some(status)) => format!("The command ended with status {status}."),
            (None, None) => "The command has ended.".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandStage {
    Starting,
    /// Command that could not be started, with the reason.
    Failed(String),
    Running,
    Ended(CommandExit),
}

#[derive(Debug)]
pub struct Screen {
    pub name: String,
    pub title: String,
    pub is_released: AtomicBool,
    pub is_shown: AtomicBool,
    limit: usize,
    changes: Arc<ScreenChanges>,
    state: Mutex<ScreenState>,
}

#[derive(Debug)]
struct ScreenState {
    feed: TerminalFeed,
    kept: Vec<u8>,
    /// Set once output was dropped.
    cut: bool,
    stage: CommandStage,
}

impl Screen {
    /// Creates the screen of a starting command. `limit` is in bytes; `None` for the maximum.
    pub fn new(name: String, title: String, limit: Option<u64>, changes: Arc<ScreenChanges>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(KEPT_BYTES_MAX);
        let state = ScreenState {
            feed: TerminalFeed::detaching(),
            kept: Vec::new(),
            cut: false,
            stage: CommandStage::Starting,
        };
        Self {
            name,
            title,
            is_released: AtomicBool::new(false),
            is_shown: AtomicBool::new(false),
            limit: limit.min(KEPT_BYTES_MAX),
            changes,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, ScreenState> {
        lock(&self.state)
    }

    pub fn write(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.kept.extend_from_slice(bytes);
        state.feed.write(bytes);
        // Truncates rarely, so that the cost is amortized.
        if state.kept.len() > 2 * self.limit + SHOWN_BYTES_MAX {
            let lost = state.kept.len() - self.limit;
            state.kept.drain(..lost);
            state.cut = true;
        }
        drop(state);
        self.changes.set_output();
    }

    pub fn stage(&self) -> CommandStage {
        self.state().stage.clone()
    }

    /// Sets the stage of the command; ignored once the command has ended.
    pub fn set_stage(&self, stage: CommandStage) {
        let mut state = self.state();
        if matches!(state.stage, CommandStage::Failed(_) | CommandStage::Ended(_)) {
            return;
        }
        state.stage = stage;
        drop(state);
        self.changes.settled.store(true, Ordering::Release);
        self.changes.set_output();
    }

    /// Returns the exit of the command, without a status if it could not be started; `None` while
    /// it starts or runs.
    pub fn ending(&self) -> Option<CommandExit> {
        match &self.state().stage {
            CommandStage::Ended(ending) => Some(ending.clone()),
            CommandStage::Failed(_) => Some(CommandExit { status: None, signal: None }),
            CommandStage::Starting | CommandStage::Running => None,
        }
    }

    /// Returns the unsent events of the terminal, which this call shows.
    pub fn take_unsent_in(&self, call: &str) -> Vec<Event> {
        let mut state = self.state();
        let end = state.end();
        state.feed.take_unsent_in(call, &self.name, &self.title, end)
    }

    /// Returns the unsent events of a shown terminal; of a chatty one only if `due` or at its end.
    pub fn take_unsent(&self, due: bool) -> Vec<Event> {
        let mut state = self.state();
        let end = state.end();
        if state.feed.is_chatty() && !due && end.is_none() {
            return Vec::new();
        }
        state.feed.take_unsent(&self.name, end)
    }

    /// Returns whether the opening of the terminal was sent, and its end was not.
    pub fn is_followed(&self) -> bool {
        self.state().feed.is_open()
    }

    /// Returns the retained output, and whether older output was dropped.
    pub fn output(&self) -> (String, bool) {
        self.state().latest(self.limit)
    }

    pub fn content(&self) -> Vec<ToolResultContent> {
        let state = self.state();
        let ending = match &state.stage {
            CommandStage::Ended(ending) => Some(ending.to_text()),
            CommandStage::Failed(why) => Some(format!("The command cannot be started: {why}")),
            CommandStage::Starting | CommandStage::Running => None,
        };
        let limit = if ending.is_some() { self.limit } else { self.limit.min(SHOWN_BYTES_MAX) };
        let (mut output, cut) = state.latest(limit);
        if cut {
            output.insert_str(0, LEFT_OUT);
        }
        let texts = [Some(output).filter(|output| !output.is_empty()), ending].into_iter().flatten();
        let terminal = content::terminal(&self.name, &self.title);
        std::iter::once(terminal).chain(texts.map(content::text)).collect()
    }
}

impl ScreenState {
    /// Returns the end of the command once it has ended, with its exit code if known.
    fn end(&self) -> Option<Option<i64>> {
        match &self.stage {
            CommandStage::Ended(ending) => Some(ending.status.map(i64::from)),
            CommandStage::Failed(_) => Some(None),
            CommandStage::Starting | CommandStage::Running => None,
        }
    }

    /// Returns the latest `limit` bytes of output, and whether older output is missing.
    fn latest(&self, limit: usize) -> (String, bool) {
        let mut bytes = &self.kept[self.kept.len().saturating_sub(limit)..];
        let cut = self.cut || bytes.len() < self.kept.len();
        if cut {
            // Skips the rest of a character whose beginning was cut off.
            let rest = bytes.iter().take(CHARACTER_BYTES_MAX - 1).take_while(|byte| **byte & 0xC0 == 0x80);
            bytes = &bytes[rest.count()..];
        }
        if self.stage == CommandStage::Running {
            // Omits an incomplete character, whose rest is yet to come.
            bytes = whole_characters(bytes);
        }
        // Replacement characters are longer than the invalid bytes.
        let text = String::from_utf8_lossy(bytes);
        let shown = text::last_bytes(&text, limit);
        (shown.to_owned(), cut || shown.len() < text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(limit: u64) -> Screen {
        let screen = Screen::new("t".to_owned(), "x".to_owned(), Some(limit), Arc::default());
        screen.set_stage(CommandStage::Running);
        screen
    }

    #[test]
    fn output_is_cut_between_characters_at_its_beginning() {
        for limit in 0..40 {
            let screen = screen(limit);
            let all = "aä€𝄞".repeat(3);
            for (written, byte) in all.bytes().enumerate() {
                screen.write(&[byte]);
                let (output, cut) = screen.output();
                assert!(output.len() as u64 <= limit && !output.contains('\u{fffd}'), "{limit}: {output}");
                let whole = String::from_utf8_lossy(&all.as_bytes()[..=written]);
                let whole = whole.trim_end_matches('\u{fffd}');
                assert!(whole.ends_with(&output), "{limit}: {output} of {whole}");
                assert_eq!(cut, written as u64 + 1 > limit);
                assert!(cut || output == whole);
            }
            assert!(screen.output().0.len() as u64 + 4 > limit.min(all.len() as u64));
        }
    }

    #[test]
    fn much_output_takes_little_room() {
        let screen = screen(100);
        let line = b"0123456789".repeat(1000);
        for _ in 0..1000 {
            screen.write(&line);
        }
        assert!(screen.state().kept.len() <= 200 + SHOWN_BYTES_MAX);
        assert_eq!(screen.output(), ("0123456789".repeat(10), true));
        let screen = Screen::new("t".to_owned(), "x".to_owned(), Some(u64::MAX), Arc::default());
        screen.write(&vec![0xff; 3 * KEPT_BYTES_MAX]);
        let (output, cut) = screen.output();
        assert!(output.len() <= KEPT_BYTES_MAX && cut && output.chars().all(|it| it == '\u{fffd}'));
    }

    #[test]
    fn what_is_never_completed_is_shown_at_the_end() {
        let screen = screen(10);
        screen.write(b"a\xe2\x82");
        assert_eq!(screen.output(), ("a".to_owned(), false));
        screen.set_stage(CommandStage::Ended(CommandExit { status: Some(0), signal: None }));
        assert_eq!(screen.output(), ("a\u{fffd}".to_owned(), false));
        // The first exit is final.
        screen.set_stage(CommandStage::Ended(CommandExit { status: Some(1), signal: None }));
        assert_eq!(screen.ending().unwrap().status, Some(0));
    }
}
