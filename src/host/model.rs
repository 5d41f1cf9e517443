//! The memory of the core: sessions, chats, and the turn that runs in a chat.
//!
//! Owns: the shapes of the core's memory and the small questions that they answer about themselves.
//! Never: sequences an action or says anything to anybody.

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
use super::effects::{
    AgentCommand, ConnectionId, Handle, PermissionOption, RunId, TerminalKey, TextKind, Tokens, TurnCause,
};
use super::locale::Language;
use crate::state::edits::CallEdit;
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;

pub(super) use crate::host::effects::{ChannelId, SessionKey};

/// Members that all channels have.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) uri: String,
    pub(super) subscribers: Vec<ConnectionId>,
    /// The sequence's head when the channel came into being: a cursor before it knows nothing of
    /// it.
    pub(super) born_at: u64,
    /// The number of the last action on it, in this life.
    pub(super) last_seq: u64,
}

impl Channel {
    pub(super) fn new(uri: String, born_at: u64) -> Self {
        Self { uri, subscribers: Vec::new(), born_at, last_seq: 0 }
    }
}

/// How a connection follows a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Subscription {
    /// Completed turns that the client holds, of a chat.
    pub(super) window: Window,
    /// Number of completed turns that the client has asked for, at least 1; `None`: all.
    pub(super) turns: Option<usize>,
    /// For how long text may be held back to be merged; as the host likes when the client has not
    /// said.
    pub(super) delay_ms: Option<u64>,
}

/// The end of a chat's completed turns that a client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    From(usize),
    /// Unknown: the client has come back with a state from before.
    Unknown,
}

impl Default for Window {
    fn default() -> Self {
        Self::From(0)
    }
}

/// Marks of files that were reviewed.
pub(super) type ReviewMarks = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) state: SessionState,
    pub(super) created_at: String,
    /// The newest `modifiedAt` of its chats.
    pub(super) modified_at: String,
    pub(super) config: JsonObject,
    pub(super) title_by: TitleBy,
    /// When it was last used, counted in uses of any session.
    pub(super) used: u64,
    /// The summary that the subscribers of the root channel know.
    pub(super) sent_summary: SessionSummary,
    /// Selection last shown in the session's summary.
    pub(super) selected: Option<JsonObject>,
    /// Changes last shown in the session's summary.
    pub(super) changes: Option<ChangesSummary>,
    /// Files of the session's changesets that were reviewed, with the version that was: by
    /// changeset and file.
    pub(super) reviewed: ReviewMarks,
    /// Files that clients have reverted, in that order.
    pub(super) reverted: Vec<RevertedFile>,
    /// Git checkpoints of the session's folder.
    pub(super) checkpoints: CheckpointedFolder,
    /// Set for a session that was made ahead of use and in which nothing has begun: it is neither
    /// shown nor saved.
    pub(super) ahead: bool,
    /// The sequence's head when it was shown.
    pub(super) shown_at: u64,
    /// The number of the time for which it stays although nobody follows it, while that runs.
    pub(super) unsubscribed: Option<u64>,
    /// The rows of its chats, as they were kept last.
    pub(super) written_rows: WrittenRows,
}

impl Session {
    /// Creates a session that nobody has used: the one place where a session is made.
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
            used: 0,
            ahead: false,
            shown_at: channel.born_at,
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

    /// Returns whether the session is being created: its agent is being started.
    pub(super) fn is_creating(&self) -> bool {
        self.state.lifecycle == SessionLifecycle::Creating
    }

    /// Returns whether creating the session has failed: its agent did not start.
    pub(super) fn has_failed(&self) -> bool {
        self.state.lifecycle == SessionLifecycle::Failed
    }
}

/// Origin of the title of a session or chat, in rising order: a title replaces only those of lower
/// origin.
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
    /// Turns from elsewhere before the first turn of the chat: its agent knows them, and clients
    /// are not shown them.
    pub(super) context: Vec<CompletedTurn>,
    pub(super) title_by: TitleBy,
    pub(super) agent: AgentLink,
    /// Client that is notified of the progress of opening the agent.
    pub(super) opening: Option<Opening>,
    /// The opening of the agent waits for the user, and the chat's activity says for what.
    pub(super) awaits: bool,
    /// The client that asked for the agent's work last: the agent uses its tokens.
    pub(super) requesting_client: Option<String>,
    /// The tokens that the agent was told.
    pub(super) tokens_sent: Tokens,
    /// The directories that the agent was told to work in.
    pub(super) directories_sent: Vec<String>,
    /// The tools of clients that its agent knows of.
    pub(super) tools_sent: Vec<ToolDefinition>,
    /// The changes of the session's configuration that its agent was told, and has not heard.
    pub(super) settings_sent: SentSettings,
    /// Commands that the chat's agent offers in it, once it has said so.
    pub(super) commands: Option<Vec<AgentCommand>>,
    /// The turn that runs, from our side.
    pub(super) run: Option<Run>,
    /// The agent works by itself and waits for a turn of its own, for this reason.
    pub(super) begins: Option<TurnCause>,
    /// A cancelled run that the agent has not given up yet; nothing new is started before it has.
    pub(super) settling: Option<RunId>,
    /// Terminals in completed calls that are saved and not in memory, by the agent's ids: it may
    /// name them again.
    pub(super) stored_terminals: BTreeMap<String, TerminalKey>,
    /// The ids of turns that were removed: none of them runs again.
    pub(super) removed_turns: BTreeSet<String>,
    /// Ids of pending messages that were consumed: none is consumed twice, but for one that was put
    /// back.
    pub(super) consumed: HashSet<String>,
    /// Changes of what is selected that wait until no turn runs.
    pub(super) selecting: Vec<PendingSelection>,
    /// Queued messages that are turns of clients, which had to wait: such a turn has the id of its
    /// message.
    pub(super) turns_queued: BTreeSet<String>,
    /// Steering messages that the agent has not taken in: the next turn begins with them.
    pub(super) undelivered_steering: BTreeSet<String>,
    /// Pending messages that are for the model and the agent that are selected when their turns
    /// begin.
    pub(super) following: BTreeSet<String>,
    /// Transcripts of the chats that are attached to its messages.
    pub(super) attached: Attached,
    /// Contents of the changes that were shown to be approved in the turn that runs, or ran last,
    /// by what they are called.
    pub(super) previews: BTreeMap<String, String>,
    /// The edits of files that the calls of the turn that runs have said, by the ids of the calls.
    pub(super) call_edits: HashMap<String, Vec<CallEdit>>,
    /// Progress as last reported by the agent, by turn that runs or can be resumed.
    pub(super) progress: BTreeMap<String, u64>,
    /// Agent's id of the conversation, while the agent's history of it equals ours.
    pub(super) handle: Option<Handle>,
    /// Part of this chat that is saved.
    pub(super) saved: Saved,
    /// The language of the client that asked for a turn last.
    pub(super) language: Language,
    /// The queue waits until a client asks for something on this chat.
    pub(super) queue_held: bool,
}

impl Chat {
    /// A chat in which nothing runs, and that nobody has named.
    pub(super) fn new(channel: Channel, session: SessionKey, conversation: Conversation) -> Self {
        Self {
            channel,
            session,
            conversation,
            context: Vec::new(),
            title_by: TitleBy::Nobody,
            agent: AgentLink::Closed,
            opening: None,
            awaits: false,
            requesting_client: None,
            tokens_sent: Tokens::new(),
            directories_sent: Vec::new(),
            tools_sent: Vec::new(),
            settings_sent: SentSettings::default(),
            commands: None,
            run: None,
            begins: None,
            settling: None,
            stored_terminals: BTreeMap::new(),
            removed_turns: BTreeSet::new(),
            consumed: HashSet::new(),
            selecting: Vec::new(),
            turns_queued: BTreeSet::new(),
            undelivered_steering: BTreeSet::new(),
            following: BTreeSet::new(),
            attached: Attached::default(),
            previews: BTreeMap::new(),
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
    /// Iterates over the turns before the chat's first one and its completed turns.
    pub(super) fn all_turns(&self) -> impl Iterator<Item = &CompletedTurn> {
        self.context.iter().chain(self.conversation.history().turns())
    }

    /// Returns whether a turn of this id was ever accepted, removed ones included: none runs twice.
    pub(super) fn has_had_turn(&self, id: &str) -> bool {
        let active = self.conversation.state().active_turn.as_ref();
        self.conversation.history().contains(id)
            || self.removed_turns.contains(id)
            || active.is_some_and(|turn| turn.id == id)
    }

    /// Returns whether the agent can resume its work in this chat when it, or the host, has ended.
    pub(super) fn can_resume(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.resumes)
    }

    /// Text that follows begins a new part.
    pub(super) fn end_part(&mut self) {
        if let Some(run) = &mut self.run {
            run.open_part = None;
        }
    }

    /// The beginning of a new message: what shows the parts of an answer as one text would run it
    /// into the one before.
    pub(super) fn separate_message(&self, kind: TextKind, content: String) -> String {
        let turn = self.conversation.state().active_turn.as_ref();
        match (kind, turn.and_then(|turn| turn.response_parts.last())) {
            (TextKind::Markdown, Some(ResponsePart::Markdown(_))) => format!("\n\n{content}"),
            _ => content,
        }
    }

    /// The number and the id of the part that comes next. Numbered by place, so that ids stay apart
    /// in a turn that was resumed. An agent's tool call may have taken the name: calls and parts
    /// are found by the same ids.
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

/// Part of a chat that is saved.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// The row is out of date in a way that the saved actions do not make up for.
    pub(super) row_due: bool,
    /// Set when the turns before its first one are saved.
    pub(super) context: bool,
    /// Number of completed turns that are saved; of these the first `turns_valid` are still true.
    pub(super) turns: usize,
    pub(super) turns_valid: usize,
    /// Bytes of saved actions that the row does not know of, while a turn runs.
    pub(super) unsaved_bytes: usize,
    /// The size of the last row, in bytes.
    pub(super) row_bytes: usize,
}

/// State of the agent's side of a chat.
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
    /// The turn has run before.
    pub(super) resumes: bool,
    /// The agent has begun the turn by itself.
    pub(super) is_own: bool,
    /// When this attempt was accepted, by the clock that never goes back.
    pub(super) accepted_ms: u64,
    /// Time that the turn had lasted before, in milliseconds: other than 0 when it is resumed.
    pub(super) lasted_ms: u64,
    /// The client that began this attempt, if one did.
    pub(super) by: Option<String>,
    /// Set when the turn ended with the process before this one.
    pub(super) interrupted: bool,
    /// The part that text of this kind goes on in.
    pub(super) open_part: Option<OpenPart>,
    /// Options that the agent offered, by tool call that waits for a permission.
    pub(super) permissions: HashMap<String, Vec<PermissionOption>>,
    /// Steering messages that the agent was handed and has not taken in yet, the newest last.
    pub(super) sent_steering: Vec<PendingMessage>,
    /// Agent's ids of the questions that were asked again, by the new id, which is another one each
    /// time.
    pub(super) asked_again: BTreeMap<String, String>,
    /// Number of the checkpoint that the turn waits for.
    pub(super) awaited_checkpoint: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// The agent is not ready for it; `resume` tells how it will be started.
    Waiting { resume: bool },
    /// The agent works on it.
    Started,
    /// A command that the user runs, without the agent.
    Command,
    /// The agent has given it up.
    Over,
}

/// The part at the end of the answer, while text goes on in it.
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
            sent_steering: Vec::new(),
            asked_again: BTreeMap::new(),
            awaited_checkpoint: None,
        }
    }

    /// Returns the agent's id of a question.
    pub(super) fn first_id<'a>(&'a self, question: &'a str) -> &'a str {
        self.asked_again.get(question).map_or(question, String::as_str)
    }

    /// Another attempt at a turn that has lasted so long.
    pub(super) fn again(id: RunId, turn_id: String, accepted_ms: u64, lasted_ms: u64) -> Self {
        let phase = RunPhase::Waiting { resume: true };
        Self { phase, resumes: true, lasted_ms, ..Self::new(id, turn_id, accepted_ms) }
    }
}

/// The state of a chat in which nothing was said.
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

/// The state of a session that is being created, with its default chat, whose name it bears.
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
