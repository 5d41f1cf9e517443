//! The channel of a terminal.
//!
//! Owns: what such a channel is: its state, which keeps the latest of what was shown, and whose
//! command it shows.
//! Never: keeps it: what a tool call says of the output of its command is kept with the call, and
//! the channel is made again from that when somebody asks for it.

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

#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) channel: Channel,
    pub(crate) state: TerminalState,
    /// The chat whose agent has the command run; none when clients have it for themselves.
    pub(crate) chat: Option<ChatKey>,
    /// The program in it that can be typed into; none when it shows what a command of an agent
    /// prints.
    pub(crate) pty: Option<Pty>,
    /// Agent's id of the terminal, while the agent may still report on it.
    pub(crate) name: Option<String>,
    pub(crate) since: String,
    /// Set when the agent can leave the command running in the background.
    pub(crate) detaches: bool,
    /// A call that is over says how the command has ended, and what it has printed.
    pub(crate) is_stored: bool,
    /// There was more before what is kept.
    pub(crate) is_cut: bool,
}

/// A program that runs in a terminal and can be typed into.
#[derive(Debug, Default)]
pub(crate) struct Pty {
    /// The request that is answered when it has started.
    pub(crate) asked: Option<(ConnectionId, RequestId)>,
    /// The client that has asked for it.
    pub(crate) made_by: String,
    /// Number of typed bytes that the program has not been given yet.
    pub(crate) pending_input_bytes: usize,
    /// Set once a client has subscribed, or has had the time to.
    pub(crate) had_subscribers: bool,
    /// A client has named it: it is called so, whatever its program calls it.
    pub(crate) is_named: bool,
    /// Number of command lines that its shell has reported.
    pub(crate) lines: u64,
    /// The line that it runs: its id, and since when, by the clock that never goes back.
    pub(crate) line: Option<(String, u64)>,
    /// The call of a chat that shows what it runs.
    pub(crate) call: Option<CommandCall>,
    /// The number of the time for which it stays although nobody follows it yet, or its holder is
    /// gone, while that runs.
    pub(crate) time: Option<u64>,
}

/// The call that shows a command in a terminal of the system's.
#[derive(Debug, Clone)]
pub(crate) struct CommandCall {
    pub(crate) call: CallRef,
    pub(crate) line: String,
    /// The run of the agent that waits for it; none when it is all that its turn does.
    pub(crate) agent: Option<RunId>,
    /// Set while its chat shows that the command waits for input.
    pub(crate) waits: bool,
}

/// Returns the state of a terminal in which a command runs and has printed nothing.
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
        Self {
            channel,
            state,
            chat: None,
            pty: None,
            name: None,
            since: String::new(),
            detaches: false,
            is_stored: false,
            is_cut: false,
        }
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.state.lifecycle, TerminalLifecycleState::Running(_))
    }

    /// Returns whether it shows a command whose call waits for its end.
    pub(crate) fn is_command(&self) -> bool {
        self.pty.as_ref().is_some_and(|pty| pty.call.is_some())
    }

    /// How its command has ended, once it has, as the call says it that shows it. The call says
    /// nothing of one that went on without it: the channel cannot be made again of that as it was
    /// told.
    pub(crate) fn result(&self) -> Option<TerminalCommandResult> {
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

    /// Cuts what is too much. No action says that: a mirror may hold more, and ends like this.
    fn cut(&mut self) {
        let stays = self.pty.is_some() && self.chat.is_none();
        let (max, left) = if self.runs() || stays {
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

    /// URI libraries write an empty authority in several ways.
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

    /// Returns false for a terminal that is typed into: its output may be secret, and is never
    /// saved.
    fn is_persistent(&self) -> bool {
        self.pty.is_none()
    }
}
