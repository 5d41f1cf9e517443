//! The channel of a terminal.
//!
//! Owns: the channel type: its state with the latest output, and the chat whose command it shows.
//! Never: is stored: a tool call stores the output of its command, from which the channel is
//! restored on request.

use ahp::reducers::{apply_action_to_terminal, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{
    SnapshotState, TerminalClaim, TerminalCommandResult, TerminalLifecycleState,
    TerminalRunningLifecycleState, TerminalSessionClaim, TerminalState,
};

use crate::host::actions::{actions_of, ClientAction};
use crate::host::channels::{Channels, Kind, Table};
use crate::host::chats::calls::CallRef;
use crate::host::effects::{ChatKey, ConnectionId, RunId, SessionKey, TerminalKey};
use crate::host::model::Channel;
use crate::host::terminals::scrollback::{cut, text_of};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;
use crate::wire::rpc::RequestId;
use crate::wire::terminals::{
    parse_terminal_uri, terminal_uri, OUTPUT_BYTES_KEPT, SCROLLBACK_BYTES_CUT, SCROLLBACK_BYTES_MAX,
};

/// Terminal with a chat or a pty. A shell of a client has a pty only, a command that the host runs
/// has both, and a command that an agent runs has a chat only, as has restored output.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) channel: Channel,
    pub(crate) state: TerminalState,
    /// Chat whose agent or user runs the command.
    pub(crate) chat: Option<ChatKey>,
    pub(crate) pty: Option<Pty>,
    /// Command on which the chat's agent can still report; `None` once its conversation has ended.
    pub(crate) reported: Option<ReportedCommand>,
    /// Set if a completed call has stored the exit status and output of the command.
    pub(crate) is_stored: bool,
    /// Set if earlier output was trimmed.
    pub(crate) is_cut: bool,
}

/// Command that an agent runs.
#[derive(Debug)]
pub(crate) struct ReportedCommand {
    /// Agent's id of the terminal.
    pub(crate) name: String,
    pub(crate) since: String,
    /// Set if the agent can leave the command running in the background.
    pub(crate) detaches: bool,
}

/// Interactive program in a terminal.
#[derive(Debug, Default)]
pub(crate) struct Pty {
    /// Request to answer when the shell has started.
    pub(crate) asked: Option<(ConnectionId, RequestId)>,
    /// Id of the client that requested the shell; empty for a command.
    pub(crate) made_by: String,
    /// Number of input bytes that were not yet written to the program.
    pub(crate) pending_input_bytes: usize,
    /// Set once a client has subscribed.
    pub(crate) had_subscribers: bool,
    /// Set for a command, and once a client has set the title: the program cannot change it.
    pub(crate) is_named: bool,
    pub(crate) lines: u64,
    /// Running line: its id, and its start by the monotonic clock, in milliseconds.
    pub(crate) line: Option<(String, u64)>,
    /// Tool call that shows the running command; `None` for a shell, and for an ended command.
    pub(crate) call: Option<CommandCall>,
    /// Number of the running expiry timer, which starts without a first subscriber, or when the
    /// holder disconnects.
    pub(crate) expiry_timer: Option<u64>,
}

/// Tool call that shows a command in a terminal of the host.
#[derive(Debug, Clone)]
pub(crate) struct CommandCall {
    pub(crate) call: CallRef,
    pub(crate) line: String,
    /// Run of the agent that waits for the command; `None` if the command is the whole turn.
    pub(crate) agent: Option<RunId>,
    /// Set while the chat's activity says that the command waits for input.
    pub(crate) waits: bool,
}

/// Returns the initial state of a terminal in which a command runs.
pub(crate) fn running_state(title: String, claim: TerminalClaim, is_pty: bool) -> TerminalState {
    TerminalState {
        title,
        cwd: None,
        cols: None,
        rows: None,
        content: Vec::new(),
        lifecycle: TerminalLifecycleState::Running(TerminalRunningLifecycleState {}),
        claim,
        supports_command_detection: None,
        is_pty: Some(is_pty),
    }
}

impl Terminal {
    /// Creates a terminal that belongs to no chat.
    pub(crate) fn new(channel: Channel, state: TerminalState) -> Self {
        Self { channel, state, chat: None, pty: None, reported: None, is_stored: false, is_cut: false }
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.state.lifecycle, TerminalLifecycleState::Running(_))
    }

    /// Returns whether a client has created the terminal, which is not part of a chat.
    pub(crate) fn is_shell(&self) -> bool {
        self.pty.is_some() && self.chat.is_none()
    }

    pub(crate) fn is_command(&self) -> bool {
        self.pty.as_ref().is_some_and(|pty| pty.call.is_some())
    }

    /// Returns the result of an ended command for the call that shows it. `None` for a command that
    /// was detached: its call stores no result, so its channel cannot be restored exactly; and for
    /// a shell, whose output is not stored.
    pub(crate) fn result(&self) -> Option<TerminalCommandResult> {
        if self.is_shell() {
            return None;
        }
        let TerminalLifecycleState::Exited(exited) = &self.state.lifecycle else { return None };
        let TerminalClaim::Session(TerminalSessionClaim { tool_call_id: Some(_), .. }) = self.state.claim
        else {
            return None;
        };
        Some(TerminalCommandResult {
            exit_code: exited.exit_code,
            preview: Some(self.state.content.iter().map(text_of).collect()),
            truncated: self.is_cut.then_some(true),
        })
    }

    /// Trims the content to its limit. No action reports this: a client's copy may be longer, and
    /// ends the same.
    fn cut(&mut self) {
        let (max, left) = if self.runs() || self.is_shell() {
            (SCROLLBACK_BYTES_MAX, SCROLLBACK_BYTES_CUT)
        } else {
            (OUTPUT_BYTES_KEPT, OUTPUT_BYTES_KEPT)
        };
        self.is_cut |= cut(&mut self.state.content, max, left);
    }
}

impl Kind for Terminal {
    const KIND: ChannelKind = ChannelKind::Terminal;
    const LABEL: &'static str = "a terminal's channel";
    const ACTIONS: &'static [ClientAction] = actions_of! {
        Terminal;
        "terminal/input" => TerminalInputAction;
        "terminal/resized" => TerminalResizedAction;
        "terminal/claimed" => TerminalClaimedAction;
        "terminal/titleChanged" => TerminalTitleChangedAction;
        "terminal/cleared" => TerminalClearedAction;
    };
    type Key = TerminalKey;
    type All = Table<TerminalKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        let outcome = apply_action_to_terminal(&mut self.state, action);
        self.cut();
        outcome
    }

    fn snapshot(&self, _: TerminalKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Terminal(Box::new(self.state.clone())), &[]))
    }

    /// Accepts the forms that URI libraries produce for an empty authority.
    fn find_by_alias(channels: &Channels, uri: &str) -> Option<TerminalKey> {
        let (chat, number) = parse_terminal_uri(uri)?;
        channels.by_uri.get(&terminal_uri(&chat, number))?.terminal()
    }

    fn session_of(channels: &Channels, key: TerminalKey) -> Option<SessionKey> {
        let chat = channels.terminals.get(&key)?.chat?;
        channels.chats.get(&chat).map(|chat| chat.session)
    }

    fn note_subscribed(&mut self) {
        if let Some(pty) = &mut self.pty {
            pty.had_subscribers = true;
        }
    }

    /// Returns false for an interactive terminal: its output may be secret, and is never stored.
    fn is_persistent(&self) -> bool {
        self.pty.is_none()
    }
}
