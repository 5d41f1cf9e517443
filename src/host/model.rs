//! What the core knows: connections, sessions, chats, and the turn that runs in a chat.
//!
//! Owns: the shapes of the core's memory and the small questions that they answer about themselves.
//! Never: sequences an action or says anything to anybody.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ahp_types::state::{
    ChatOrigin, ChatState, ChatSummary, PendingMessage, SessionLifecycle, SessionState, SessionStatus,
    SessionSummary,
};
use serde::{Deserialize, Serialize};

use super::effects::{ConnectionId, PermissionOption, RunId, TextKind};
pub(super) use super::effects::{SessionKey, Target};
use super::reduce::Conversation;

/// Bits 0–4 of a status: what is going on. The others are flags.
pub(super) const ACTIVITY_BITS: u32 = (1 << 5) - 1;

/// What all channels have.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) uri: String,
    pub(super) subscribers: Vec<ConnectionId>,
    /// The sequence's head when the channel came into being: a cursor before it knows nothing of it.
    pub(super) born_at: u64,
    /// The number of the last action on it, in this life.
    pub(super) last_seq: u64,
}

impl Channel {
    pub(super) fn new(uri: String, born_at: u64) -> Self {
        Self { uri, subscribers: Vec::new(), born_at, last_seq: 0 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    /// The client behind it, once it has said who it is.
    pub(super) client_id: Option<String>,
    pub(super) subscriptions: BTreeSet<Target>,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) channel: Channel,
    pub(super) state: SessionState,
    pub(super) created_at: String,
    /// The newest `modifiedAt` of its chats.
    pub(super) modified_at: String,
    pub(super) config: ahp_types::common::JsonObject,
    pub(super) title_by: TitleBy,
    /// It brought the process down too often: it can be read, and nothing more.
    pub(super) quarantined: bool,
    /// When it was last used, counted in uses of any session.
    pub(super) used: u64,
    /// The summary that the subscribers of the root channel know.
    pub(super) told: SessionSummary,
}

/// Who named a session or chat; a later one only replaces an earlier one.
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
    pub(super) title_by: TitleBy,
    pub(super) agent: AgentLink,
    /// The turn that runs, from our side.
    pub(super) run: Option<Run>,
    /// A cancelled run that the agent has not given up yet; nothing new is started before it has.
    pub(super) settling: Option<RunId>,
    /// Every turn id that was ever accepted, those of truncated turns too: none runs twice.
    pub(super) turn_ids: HashSet<String>,
    /// Ids of pending messages that were consumed: none is consumed twice, but for one that was put back.
    pub(super) consumed: HashSet<String>,
    /// How far the agent had got, as it told, in each turn that runs or can be resumed.
    pub(super) progress: BTreeMap<String, u64>,
    /// What the agent calls the conversation, while what it knows of it is what we know.
    pub(super) handle: Option<String>,
    /// What the store knows of this chat.
    pub(super) saved: Saved,
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
            title_by: TitleBy::Nobody,
            agent: AgentLink::Closed,
            run: None,
            settling: None,
            turn_ids: HashSet::new(),
            consumed: HashSet::new(),
            progress: Default::default(),
            handle: None,
            saved: Saved { row_due: true, ..Saved::default() },
            queue_held: false,
        }
    }
}

/// How much of a chat the store knows.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// The row is out of date in a way that the saved actions do not make up for.
    pub(super) row_due: bool,
    /// So many completed turns are saved, and of these the first `turns_kept` are still true.
    pub(super) turns: usize,
    pub(super) turns_kept: usize,
    /// Bytes of saved actions that the row does not know of, while a turn runs.
    pub(super) behind_bytes: usize,
    /// The size of the last row, in bytes.
    pub(super) row_bytes: usize,
}

/// Whether the agent's side of a chat exists.
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
    /// When this attempt was accepted, by the clock that never goes back.
    pub(super) accepted_ms: u64,
    /// How long the turn had lasted then: other than 0 when it is resumed.
    pub(super) lasted_ms: u64,
    /// It ended with the process before this one.
    pub(super) interrupted: bool,
    /// The part that text of this kind goes on in.
    pub(super) open_part: Option<OpenPart>,
    /// What the agent offered for each tool call that waits for a permission.
    pub(super) permissions: HashMap<String, Vec<PermissionOption>>,
    /// Steering messages that the agent was handed and has not taken in yet, the newest last.
    pub(super) handed_over: Vec<PendingMessage>,
}

/// How far an attempt has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// The agent is not ready for it; `resume` tells how it will be started.
    Waiting { resume: bool },
    /// The agent works on it.
    Started,
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
            accepted_ms,
            lasted_ms: 0,
            interrupted: false,
            open_part: None,
            permissions: HashMap::new(),
            handed_over: Vec::new(),
        }
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
        annotations: None,
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

/// The activity bits of a status.
pub(super) fn activity_of(status: u32) -> u32 {
    status & ACTIVITY_BITS
}

/// Whether the activity bits say so. `InputNeeded` contains `InProgress`, so bits are compared whole.
pub(super) fn status_is(status: u32, activity: SessionStatus) -> bool {
    activity_of(status) == activity.bits()
}

/// `status` with other activity bits.
pub(super) fn with_activity(status: u32, activity: u32) -> u32 {
    (status & !ACTIVITY_BITS) | activity
}
