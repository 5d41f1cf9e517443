//! The memory of the core: sessions, chats, and the turn that runs in a chat.
//!
//! Owns: the core's data types, and simple queries on them.
//! Never: sequences an action or sends a message.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ahp_types::common::JsonObject;
use ahp_types::state::{
    ChangesSummary, ChatOrigin, ChatState, ChatSummary, PendingMessage, ResponsePart, SessionLifecycle,
    SessionState, SessionStatus, SessionSummary, ToolDefinition,
};
use serde::{Deserialize, Serialize};

use super::agents::progress::Opening;
use super::catalogue::rows::WrittenRows;
use super::catalogue::summary_of;
use super::changes::checkpointed::CheckpointedFolder;
use super::changes::sides::RevertedFile;
use super::channels::annotations_summary;
use super::chats::attached::Attached;
use super::configuration::selection::PendingSelection;
use super::configuration::settings::SentSettings;
use super::customizations::{ConversationServers, SessionDecisions, StoppedServers};
use super::effects::{
    AgentCommand, ConnectionId, Handle, PermissionOption, RunId, TerminalKey, TextKind, Tokens, TurnCause,
};
use super::locale::Language;
use super::plugins::SessionPlugins;
use crate::state::edits::CallEdit;
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;

pub(super) use crate::host::effects::{ChannelId, SessionKey};

/// Members that all channels have.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) uri: String,
    pub(super) subscribers: Vec<ConnectionId>,
    /// Head of the sequence when the channel was created; older cursors do not include the channel.
    pub(super) born_at: u64,
    /// Sequence number of its latest action in this process; 0 if there was none.
    pub(super) last_seq: u64,
}

impl Channel {
    pub(super) fn new(uri: String, born_at: u64) -> Self {
        Self { uri, subscribers: Vec::new(), born_at, last_seq: 0 }
    }
}

/// Options of a connection's subscription to a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Subscription {
    /// Completed turns that the client holds; for chats only.
    pub(super) window: Window,
    /// Number of completed turns that the client has requested, at least 1; `None` for all.
    pub(super) turns: Option<usize>,
    /// Time for which text may be held back to be merged; `None` leaves it to the host.
    pub(super) delay_ms: Option<u64>,
}

/// Completed turns of a chat that a client holds: those from an index to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    From(usize),
    /// The client has reconnected with a state from an earlier connection.
    Unknown,
}

impl Default for Window {
    fn default() -> Self {
        Self::From(0)
    }
}

/// Versions of reviewed files, by changeset and file.
pub(super) type ReviewMarks = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) state: SessionState,
    pub(super) created_at: String,
    /// Latest `modifiedAt` of its chats.
    pub(super) modified_at: String,
    pub(super) config: JsonObject,
    pub(super) title_by: TitleBy,
    /// Time of the latest use, as a count of uses of all sessions.
    pub(super) used: u64,
    /// Summary as last sent to the subscribers of the root channel.
    pub(super) sent_summary: SessionSummary,
    /// Selection last shown in the session's summary.
    pub(super) selected: Option<JsonObject>,
    /// Changes last shown in the session's summary.
    pub(super) changes: Option<ChangesSummary>,
    pub(super) reviewed: ReviewMarks,
    /// Files that clients have reverted, in the order of the reverts.
    pub(super) reverted: Vec<RevertedFile>,
    pub(super) checkpoints: CheckpointedFolder,
    pub(super) stopped_servers: StoppedServers,
    /// Plugins of its active clients.
    pub(super) plugins: SessionPlugins,
    /// Decisions of clients about plugins, for this session.
    pub(super) decided: SessionDecisions,
    /// Set for an unused session that was made ahead of use; it is neither shown nor saved.
    pub(super) ahead: bool,
    /// Head of the sequence when the session was first shown.
    pub(super) shown_at: u64,
    /// Head of the sequence when a change of the summary was last sent; `None` if this process has
    /// sent none.
    pub(super) summary_sent_at: Option<u64>,
    /// Number of the timer that disposes of the session without subscribers; `None` if none.
    pub(super) unsubscribed: Option<u64>,
    /// Rows of its chats as last written.
    pub(super) written_rows: WrittenRows,
}

impl Session {
    /// Creates an unused session; all sessions are created here.
    pub(super) fn new(
        channel: Channel,
        state: SessionState,
        (created_at, modified_at): (String, String),
        config: JsonObject,
        title_by: TitleBy,
    ) -> Self {
        Self {
            sent_summary: summary_of(&channel.uri, &state, &created_at, &modified_at),
            selected: None,
            changes: None,
            reviewed: ReviewMarks::default(),
            reverted: Vec::new(),
            checkpoints: CheckpointedFolder::default(),
            stopped_servers: StoppedServers::default(),
            plugins: SessionPlugins::default(),
            decided: SessionDecisions::default(),
            used: 0,
            ahead: false,
            shown_at: channel.born_at,
            summary_sent_at: None,
            unsubscribed: None,
            written_rows: WrittenRows::default(),
            channel,
            state,
            created_at,
            modified_at,
            config,
            title_by,
        }
    }

    /// Returns whether the session is being created: its agent is starting.
    pub(super) fn is_creating(&self) -> bool {
        self.state.lifecycle == SessionLifecycle::Creating
    }

    /// Returns whether creating the session has failed: its agent did not start.
    pub(super) fn has_failed(&self) -> bool {
        self.state.lifecycle == SessionLifecycle::Failed
    }
}

/// Origin of a title, in rising rank; a title replaces only those of equal or lower rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum TitleBy {
    Nobody,
    FirstMessage,
    Agent,
    User,
}

#[derive(Debug)]
pub(super) struct Chat {
    pub(super) channel: Channel,
    pub(super) session: SessionKey,
    pub(super) conversation: Conversation,
    /// Turns that precede the chat's first one: its agent knows them, clients do not see them.
    pub(super) context: Vec<CompletedTurn>,
    pub(super) title_by: TitleBy,
    pub(super) agent: AgentLink,
    /// Client that is notified of the progress of opening the agent.
    pub(super) opening: Option<Opening>,
    /// Set while opening the agent waits for the user; the chat's activity says for what.
    pub(super) opening_waits: bool,
    /// Client that last requested work of the agent, which uses its tokens.
    pub(super) requesting_client: Option<String>,
    /// Tokens last sent to the agent.
    pub(super) tokens_sent: Tokens,
    /// Working directories last sent to the agent.
    pub(super) directories_sent: Vec<String>,
    /// Tools of clients last sent to the agent.
    pub(super) tools_sent: Vec<ToolDefinition>,
    /// MCP servers in the conversation with the agent.
    pub(super) servers: ConversationServers,
    /// Configuration as sent to the agent, with unacknowledged changes.
    pub(super) settings_sent: SentSettings,
    /// Commands that the agent offers in the chat; `None` until it has reported them.
    pub(super) commands: Option<Vec<AgentCommand>>,
    /// Attempt at the active turn; `None` if no turn runs.
    pub(super) run: Option<Run>,
    /// Reason for which the agent works by itself and waits for a turn of its own.
    pub(super) own_turn_cause: Option<TurnCause>,
    /// Cancelled run that the agent has not ended yet; no other run starts before.
    pub(super) cancelled_run: Option<RunId>,
    /// Terminals of completed calls that only the store holds, by agent id; agents may reuse it.
    pub(super) stored_terminals: BTreeMap<String, TerminalKey>,
    /// Ids of removed turns; they must not run again.
    pub(super) removed_turns: BTreeSet<String>,
    /// Ids of consumed pending messages; only a requeued one is consumed again.
    pub(super) consumed: HashSet<String>,
    /// Selection changes that wait until no turn runs.
    pub(super) pending_selections: Vec<PendingSelection>,
    /// Queued messages that stand for turns whose start had to wait; the turn has the message's id.
    pub(super) turns_queued: BTreeSet<String>,
    /// Steering messages that the agent has not accepted, pending or at the head of the queue; the
    /// next turns begin with them.
    pub(super) undelivered_steering: BTreeSet<String>,
    /// Steering messages that the agent of the run was sent and has not accepted, newest last.
    pub(super) sent_steering: Vec<PendingMessage>,
    /// Listed steering messages that the agent of the run was sent and has not accepted, newest
    /// last.
    pub(super) sent_listed: Vec<PendingMessage>,
    /// Pending messages that use the model and agent selected when their turn begins.
    pub(super) following: BTreeSet<String>,
    /// Clients that have sent its pending messages, by message id; the turns are theirs.
    pub(super) senders: BTreeMap<String, String>,
    /// Transcripts of the chats that are attached to its messages.
    pub(super) attached: Attached,
    /// Contents of edits that awaited approval in the running or latest turn, by content id.
    pub(super) previews: BTreeMap<String, String>,
    /// Size of these contents, in bytes; one that several calls have counts for each of them.
    pub(super) preview_bytes: usize,
    /// File edits reported by the calls of the running turn, by call id.
    pub(super) call_edits: HashMap<String, Vec<CallEdit>>,
    /// Progress as last reported by the agent, by turn that runs or can be resumed.
    pub(super) progress: BTreeMap<String, u64>,
    /// Agent's id of the conversation, while the agent's history of it equals the host's.
    pub(super) handle: Option<Handle>,
    pub(super) saved: Saved,
    /// Language of the client that last requested a turn.
    pub(super) language: Language,
    /// Set while the queue waits for a client to request something on this chat.
    pub(super) queue_held: bool,
}

impl Chat {
    /// Creates an idle, untitled chat.
    pub(super) fn new(channel: Channel, session: SessionKey, conversation: Conversation) -> Self {
        Self {
            channel,
            session,
            conversation,
            context: Vec::new(),
            title_by: TitleBy::Nobody,
            agent: AgentLink::Closed,
            opening: None,
            opening_waits: false,
            requesting_client: None,
            tokens_sent: Tokens::new(),
            directories_sent: Vec::new(),
            tools_sent: Vec::new(),
            servers: ConversationServers::default(),
            settings_sent: SentSettings::default(),
            commands: None,
            run: None,
            own_turn_cause: None,
            cancelled_run: None,
            stored_terminals: BTreeMap::new(),
            removed_turns: BTreeSet::new(),
            consumed: HashSet::new(),
            pending_selections: Vec::new(),
            turns_queued: BTreeSet::new(),
            undelivered_steering: BTreeSet::new(),
            sent_steering: Vec::new(),
            sent_listed: Vec::new(),
            following: BTreeSet::new(),
            senders: BTreeMap::new(),
            attached: Attached::default(),
            previews: BTreeMap::new(),
            preview_bytes: 0,
            call_edits: HashMap::new(),
            progress: Default::default(),
            handle: None,
            saved: Saved { row_due: true, ..Saved::default() },
            language: Language::default(),
            queue_held: false,
        }
    }
}

impl Chat {
    /// Iterates over the context and the completed turns.
    pub(super) fn all_turns(&self) -> impl Iterator<Item = &CompletedTurn> {
        self.context.iter().chain(self.conversation.history().turns())
    }

    /// Returns whether a turn with this id, even a removed one, was accepted; none runs twice.
    pub(super) fn has_had_turn(&self, id: &str) -> bool {
        let active = self.conversation.state().active_turn.as_ref();
        self.conversation.history().contains(id)
            || self.removed_turns.contains(id)
            || active.is_some_and(|turn| turn.id == id)
    }

    /// Returns the ids of the messages that wait, or that the agent was sent and has not accepted.
    pub(super) fn unconsumed(&self) -> BTreeSet<String> {
        let state = self.conversation.state();
        let listed = self.conversation.steering_messages();
        let sent = self.sent_steering.iter().chain(&self.sent_listed);
        let pending = state.queued_messages.iter().flatten().chain(&state.steering_message).chain(listed);
        pending.chain(sent).map(|message| message.id.clone()).collect()
    }

    /// Returns whether the agent can resume its work in this chat after it, or the host, has ended.
    pub(super) fn can_resume(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.resumes)
    }

    /// Returns the first text of a new message, after a blank line if it follows another text: some
    /// clients join the parts of an answer into one text.
    pub(super) fn separate_message(&self, kind: TextKind, content: String) -> String {
        let turn = self.conversation.state().active_turn.as_ref();
        match (kind, turn.and_then(|turn| turn.response_parts.last())) {
            (TextKind::Markdown, Some(ResponsePart::Markdown(_))) => format!("\n\n{content}"),
            _ => content,
        }
    }

    /// Returns the number and id of the next part. The number is its position, so ids stay unique
    /// in a resumed turn. Ids of tool calls are skipped: calls and parts share one namespace.
    pub(super) fn next_part(&self) -> (u32, String) {
        let turn = self.conversation.state().active_turn.as_ref();
        let place = turn.map_or(0, |turn| turn.response_parts.len());
        let mut number = u32::try_from(place).unwrap_or(u32::MAX);
        loop {
            let id = format!("part-{number}");
            if !self.conversation.has_part(&id) {
                return (number, id);
            }
            number = number.wrapping_add(1);
        }
    }
}

/// Extent to which a chat is stored.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// Set if the row is out of date and the stored actions do not make up for it.
    pub(super) row_due: bool,
    /// Set once the turns before the chat's first one are stored.
    pub(super) context: bool,
    /// Number of stored completed turns; the first `turns_valid` of them are up to date.
    pub(super) turns: usize,
    pub(super) turns_valid: usize,
    /// Bytes of stored actions after the row, while a turn runs.
    pub(super) unsaved_bytes: usize,
    /// Size of the latest row, in bytes.
    pub(super) row_bytes: usize,
}

/// State of a chat's conversation with its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentLink {
    Closed,
    Opening,
    Open,
}

/// One attempt at the active turn.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) turn_id: String,
    pub(super) phase: RunPhase,
    /// Set if the turn has run before.
    pub(super) resumes: bool,
    /// Set if the agent has begun the turn by itself.
    pub(super) is_own: bool,
    /// Monotonic time at which this attempt was accepted, in milliseconds.
    pub(super) accepted_ms: u64,
    /// Duration of the turn before this attempt, in milliseconds; 0 unless it is resumed.
    pub(super) lasted_ms: u64,
    /// Client that began this attempt; `None` if no client did.
    pub(super) by: Option<String>,
    /// Set if the turn was running when the previous process ended.
    pub(super) interrupted: bool,
    /// Part to which text of the same kind is appended; `None` if text begins a new part.
    pub(super) open_part: Option<OpenPart>,
    /// Options that the agent offered, by tool call that waits for a permission.
    pub(super) permissions: HashMap<String, Vec<PermissionOption>>,
    /// Agent's ids of questions that were asked again, by the new id of each repetition.
    pub(super) asked_again: BTreeMap<String, String>,
    /// Number of the checkpoint that the turn waits for.
    pub(super) awaited_checkpoint: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// The agent is not ready for the run; `resume` selects a resume instead of a start.
    Waiting { resume: bool },
    /// The agent works on the run.
    Started,
    /// A command of the user runs, without the agent.
    Command,
    /// The agent no longer works on the run.
    Over,
}

/// Last part of the answer, while text is appended to it.
#[derive(Debug, Clone)]
pub(super) struct OpenPart {
    pub(super) kind: TextKind,
    pub(super) id: String,
    pub(super) number: u32,
}

impl Run {
    pub(super) fn new(id: RunId, turn_id: String, accepted_ms: u64) -> Self {
        Self {
            id,
            turn_id,
            phase: RunPhase::Waiting { resume: false },
            resumes: false,
            is_own: false,
            accepted_ms,
            lasted_ms: 0,
            by: None,
            interrupted: false,
            open_part: None,
            permissions: HashMap::new(),
            asked_again: BTreeMap::new(),
            awaited_checkpoint: None,
        }
    }

    /// Returns the agent's id of a question.
    pub(super) fn first_id<'a>(&'a self, question: &'a str) -> &'a str {
        self.asked_again.get(question).map_or(question, String::as_str)
    }

    /// Creates another attempt at a turn that has already lasted `lasted_ms`.
    pub(super) fn again(id: RunId, turn_id: String, accepted_ms: u64, lasted_ms: u64) -> Self {
        let phase = RunPhase::Waiting { resume: true };
        Self { phase, resumes: true, lasted_ms, ..Self::new(id, turn_id, accepted_ms) }
    }
}

pub(super) fn empty_chat(uri: String, title: &str, now: &str) -> ChatState {
    ChatState {
        resource: uri,
        title: title.to_owned(),
        status: SessionStatus::Idle.bits(),
        activity: None,
        modified_at: now.to_owned(),
        changes: None,
        origin: Some(ChatOrigin::User),
        movable: Some(false),
        interactivity: None,
        working_directories: None,
        changesets: None,
        background_work: None,
        canvases: None,
        turns: Vec::new(),
        turns_next_cursor: None,
        active_turn: None,
        steering_message: None,
        queued_messages: None,
        draft: None,
        meta: None,
    }
}

/// Returns the state of a session that is being created with, and named like, its default chat.
pub(super) fn creating_session(
    uri: &str,
    provider: String,
    working_directories: Option<Vec<String>>,
    chat: ChatSummary,
) -> SessionState {
    SessionState {
        provider,
        title: chat.title.clone(),
        status: SessionStatus::Idle.bits(),
        activity: None,
        origin: None,
        project: None,
        working_directories,
        annotations: Some(annotations_summary(uri, &[])),
        lifecycle: SessionLifecycle::Creating,
        creation_error: None,
        server_tools: None,
        active_clients: Vec::new(),
        default_chat: Some(chat.resource.clone()),
        chats: vec![chat],
        config: None,
        customizations: None,
        changesets: None,
        input_needed: None,
        meta: None,
    }
}
