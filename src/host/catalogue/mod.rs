//! The catalogue: sessions and chats as entries of lists, in memory and in the store.
//!
//! Owns: evicted and disposed sessions, the memory budget of idle ones, and the state that is
//! derived from a chat: its row in the session's `chats`, the session's status, activity,
//! `modifiedAt` and `inputNeeded`, its summary on the root channel, and its position in the list.
//! The rules are those of the session channel page of the specification, "Chat aggregation" and
//! "Aggregated input requests".
//! Never: changes a turn or a call of a chat.

pub(in crate::host) mod ahead;
pub(in crate::host) mod chats;
pub(in crate::host) mod forks;
pub mod idle;
pub(in crate::host) mod loaded;
pub(in crate::host) mod missed;
pub(in crate::host) mod moves;
pub(in crate::host) mod notes;
pub mod rows;
pub(in crate::host) mod save;
pub(in crate::host) mod sessions;
pub(in crate::host) mod summaries;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ahp_types::actions::{
    ChatActivityChangedAction, ChatIsReadChangedAction, PartialChatSummary, SessionActivityChangedAction,
    SessionChatAddedAction, SessionChatUpdatedAction, SessionInputNeededRemovedAction,
    SessionInputNeededSetAction, SessionIsReadChangedAction, SessionTitleChangedAction, StateAction,
};
use ahp_types::state::{
    BackgroundWork, ChatState, ChatSummary, SessionChatInputRequest, SessionChatSummary, SessionInputRequest,
    SessionState, SessionStatus, SessionSummary, SessionToolClientExecutionRequest,
    SessionToolConfirmationRequest, ToolCallConfirmationState, ToolCallRunningState, ToolCallState,
};

use crate::host::catalogue::missed::{DisposedSessions, EvictedSessions};
use crate::host::customizations::StoppedServers;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::{Session, SessionKey, TitleBy};
use crate::host::terminals::TITLE_BYTES_MAX;
use crate::host::Step;
use crate::state::status::{activity_of, status_is, with_activity};
use crate::wire::text;
use crate::wire::tool_calls::client_of_call;

/// Title of a session and of its first chat before the first message.
pub(in crate::host) const FIRST_TITLE: &str = "New Session";

/// Title of a further chat before its first message.
pub(in crate::host) const CHAT_TITLE: &str = "New Chat";

/// Maximum length of a title that is made from a message, in characters.
const TITLE_CHARS_MAX: usize = 80;

/// Evicted and disposed sessions, and the schedule of evictions.
#[derive(Debug)]
pub(in crate::host) struct Catalogue {
    /// Maximum memory of idle sessions, in bytes; `usize::MAX` without a store: nothing is evicted.
    pub(in crate::host) budget: usize,
    /// Set if a large session may have become idle.
    pub(in crate::host) is_due: bool,
    /// Number of uses of all sessions at the last search for idle ones.
    pub(in crate::host) last_eviction_use: u64,
    pub(in crate::host) evicted: EvictedSessions,
    /// Stopped servers of evicted sessions; only of those that have any.
    pub(in crate::host) stopped_servers: BTreeMap<SessionKey, StoppedServers>,
    pub(in crate::host) disposed: DisposedSessions,
}

impl Catalogue {
    pub(in crate::host) fn new(budget: usize) -> Self {
        Self {
            budget,
            is_due: false,
            last_eviction_use: 0,
            evicted: EvictedSessions::default(),
            stopped_servers: BTreeMap::new(),
            disposed: DisposedSessions::default(),
        }
    }
}

/// Returns a chat's row in its session's state.
pub(in crate::host) fn row_of(state: &ChatState) -> ChatSummary {
    ChatSummary {
        resource: state.resource.clone(),
        title: state.title.clone(),
        status: state.status,
        activity: state.activity.clone(),
        modified_at: state.modified_at.clone(),
        changes: state.changes.clone(),
        origin: state.origin.clone(),
        movable: state.movable,
        interactivity: state.interactivity,
        working_directories: state.working_directories.clone(),
    }
}

pub(in crate::host) fn summary_of(
    uri: &str,
    state: &SessionState,
    created_at: &str,
    modified_at: &str,
) -> SessionSummary {
    SessionSummary {
        provider: state.provider.clone(),
        title: state.title.clone(),
        status: state.status,
        activity: state.activity.clone(),
        origin: state.origin.clone(),
        project: state.project.clone(),
        working_directories: state.working_directories.clone(),
        annotations: state.annotations.clone(),
        resource: uri.to_owned(),
        created_at: created_at.to_owned(),
        modified_at: modified_at.to_owned(),
        changes: None,
        meta: None,
        chats: Some(state.chats.iter().map(short_row_of).collect()),
        default_chat: state.default_chat.clone(),
    }
}

/// Returns a chat's row in its session's summary.
fn short_row_of(row: &ChatSummary) -> SessionChatSummary {
    SessionChatSummary {
        resource: row.resource.clone(),
        title: row.title.clone(),
        origin: row.origin.clone(),
        interactivity: row.interactivity,
        status: Some(row.status),
        changes: row.changes.clone(),
    }
}

/// Returns the first line of a message with a visible character as a title; `None` if it has none.
pub(in crate::host) fn title_from(message: &str) -> Option<String> {
    message.lines().find_map(|line| {
        let visible = line.trim().chars().filter(|c| !c.is_control());
        let title: String = visible.take(TITLE_CHARS_MAX).collect();
        Some(title.trim()).filter(|title| !title.is_empty()).map(str::to_owned)
    })
}

impl Session {
    /// Returns the row that determines the session's status and activity: the default chat's, else
    /// the most recently modified one. Any row that needs input precedes it, then any that failed.
    fn prevailing_row(&self) -> Option<&ChatSummary> {
        let rows = &self.state.chats;
        let default = rows.iter().find(|row| Some(&row.resource) == self.state.default_chat.as_ref());
        let leading = default.or_else(|| rows.iter().max_by(|a, b| a.modified_at.cmp(&b.modified_at)))?;
        let promoted = |status| {
            let is = move |row: &&ChatSummary| status_is(row.status, status);
            Some(leading).filter(is).or_else(|| rows.iter().find(is))
        };
        Some(
            promoted(SessionStatus::InputNeeded)
                .or_else(|| promoted(SessionStatus::Error))
                .unwrap_or(leading),
        )
    }
}

/// Names a session on behalf of `by`, unless an origin of higher rank has named it.
pub(in crate::host) fn name_session(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    title: &str,
    by: TitleBy,
) {
    let Some(session) = ledger.channels.sessions.known_mut(key).filter(|session| session.title_by <= by)
    else {
        return;
    };
    if std::mem::replace(&mut session.title_by, by) != by {
        ledger.mark_dirty(key.into());
    }
    if by == TitleBy::User {
        ahead::begin_session(ledger, step, key);
    }
    if ledger.channels.sessions.known(key).is_some_and(|session| session.state.title != title) {
        let action = StateAction::SessionTitleChanged(SessionTitleChangedAction { title: title.to_owned() });
        ledger.sequence(step, key, action, None);
        ledger.session_changed(key);
    }
}

/// Updates the state derived from a chat. Must follow every action that may change the chat's
/// status, activity, title or time.
pub(in crate::host) fn sync_chat(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let session_key = chat.session;
    let Some(session) = ledger.channels.sessions.known(session_key) else { return };
    let row = row_of(chat.conversation.state());
    let old = session.state.chats.iter().find(|old| old.resource == row.resource);
    if let Some(action) = row_change(old, row) {
        ledger.sequence(step, session_key, action, None);
        sync_session(ledger, step, session_key);
    }
}

/// Updates the state derived from a session's rows.
pub(in crate::host) fn sync_session(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
    let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
    let (status, activity) = session
        .prevailing_row()
        .map_or((SessionStatus::Idle.bits(), None), |row| (activity_of(row.status), row.activity.clone()));
    // Activity bits of a session's status are in snapshots and summaries, but in no action.
    session.state.status = with_activity(session.state.status, status);
    // A wall clock that was set back must not make a session older.
    let rows = session.state.chats.iter().map(|row| &row.modified_at);
    let newest = rows.fold(&session.created_at, |newest, time| newest.max(time)).clone();
    session.modified_at = newest;
    if session.state.activity != activity {
        let action = StateAction::SessionActivityChanged(SessionActivityChangedAction { activity });
        ledger.sequence(step, key, action, None);
    }
    ledger.session_changed(key);
}

/// Updates a session's list of open requests from a tool call of a chat.
pub(in crate::host) fn sync_tool_request(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    tool_call_id: &str,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let id = format!("{}#tool/{tool_call_id}", chat.channel.uri);
    let turn_id = chat.conversation.state().active_turn.as_ref().map(|turn| turn.id.clone());
    let request = turn_id.and_then(|turn_id| {
        let (id, chat_uri) = (id.clone(), chat.channel.uri.clone());
        let call = chat.conversation.tool(tool_call_id)?;
        let tool_call = match call {
            ToolCallState::PendingConfirmation(call) => {
                ToolCallConfirmationState::PendingConfirmation(call.clone())
            }
            ToolCallState::PendingResultConfirmation(call) => {
                ToolCallConfirmationState::PendingResultConfirmation(call.clone())
            }
            ToolCallState::Running(running) => {
                let client_id = client_of_call(call)?.to_owned();
                // Only the request: the chat shows the content produced so far.
                let tool_call = ToolCallRunningState { content: None, ..running.clone() };
                return Some(SessionInputRequest::ToolClientExecution(SessionToolClientExecutionRequest {
                    id,
                    chat: chat_uri,
                    turn_id,
                    client_id,
                    tool_call,
                }));
            }
            _ => return None,
        };
        Some(SessionInputRequest::ToolConfirmation(SessionToolConfirmationRequest {
            id,
            chat: chat_uri,
            turn_id,
            tool_call,
        }))
    });
    sync_request(ledger, step, chat.session, id, request);
}

/// Updates a session's list of open requests from a question of a chat.
pub(in crate::host) fn sync_question_request(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    request_id: &str,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let id = format!("{}#input/{request_id}", chat.channel.uri);
    let request = chat.conversation.question(request_id).map(|question| {
        SessionInputRequest::ChatInput(SessionChatInputRequest {
            id: id.clone(),
            chat: chat.channel.uri.clone(),
            request: question.request.clone(),
        })
    });
    sync_request(ledger, step, chat.session, id, request);
}

fn sync_request(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    id: String,
    request: Option<SessionInputRequest>,
) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let old = session.state.input_needed.iter().flatten().find(|old| request_id(old) == id);
    let action = match (old, request) {
        (Some(old), Some(request)) if *old == request => return,
        (_, Some(request)) => {
            StateAction::SessionInputNeededSet(Box::new(SessionInputNeededSetAction { request }))
        }
        (Some(_), None) => StateAction::SessionInputNeededRemoved(SessionInputNeededRemovedAction { id }),
        (None, None) => return,
    };
    ledger.sequence(step, key, action, None);
    // The reducer derives the session's status from this list alone.
    sync_session(ledger, step, key);
}

/// Marks a chat and its session as unread: the flag means "viewed since its last modification". The
/// reducers clear it in one case only: for a chat in which a turn begins.
pub(in crate::host) fn mark_unread(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let is_read = |status: u32| status & SessionStatus::IsRead.bits() != 0;
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let session = chat.session;
    if is_read(chat.conversation.state().status) {
        let unread = StateAction::ChatIsReadChanged(ChatIsReadChangedAction { is_read: false });
        ledger.sequence(step, key, unread, None);
    }
    if ledger.channels.sessions.known(session).is_some_and(|session| is_read(session.state.status)) {
        let unread = StateAction::SessionIsReadChanged(SessionIsReadChangedAction { is_read: false });
        ledger.sequence(step, session, unread, None);
        ledger.session_changed(session);
    }
}

/// Names a chat on behalf of `by`, unless an origin of higher rank has named it.
pub(in crate::host) fn name_chat(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    title: &str,
    by: TitleBy,
) {
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.title_by <= by) else {
        return;
    };
    if (chat.title_by, &*chat.conversation.state().title) != (by, title) {
        chat.title_by = by;
        chat.conversation.set_title(title.to_owned());
        ledger.chat_row_due(key);
    }
    sync_chat(ledger, step, key);
}

/// Returns the action that updates a chat's row; `None` if it is unchanged. An update that the
/// reducer cannot express replaces the whole row.
fn row_change(old: Option<&ChatSummary>, row: ChatSummary) -> Option<StateAction> {
    let whole = |summary| Some(StateAction::SessionChatAdded(SessionChatAddedAction { summary }));
    let Some(old) = old else { return whole(row) };
    if *old == row {
        return None;
    }
    let cleared = (old.activity.is_some() && row.activity.is_none())
        || (old.changes.is_some() && row.changes.is_none())
        || (old.origin.is_some() && row.origin.is_none())
        || (old.working_directories.is_some() && row.working_directories.is_none());
    if cleared || old.movable != row.movable || old.interactivity != row.interactivity {
        return whole(row);
    }
    let changes = PartialChatSummary {
        resource: None,
        title: changed(&old.title, &row.title),
        status: changed(&old.status, &row.status),
        activity: changed(&old.activity, &row.activity).flatten(),
        modified_at: changed(&old.modified_at, &row.modified_at),
        changes: changed(&old.changes, &row.changes).flatten(),
        origin: changed(&old.origin, &row.origin).flatten(),
        movable: None,
        interactivity: None,
        working_directories: changed(&old.working_directories, &row.working_directories).flatten(),
    };
    Some(StateAction::SessionChatUpdated(SessionChatUpdatedAction { chat: row.resource, changes }))
}

fn changed<T: Clone + PartialEq>(old: &T, new: &T) -> Option<T> {
    (old != new).then(|| new.clone())
}

fn request_id(request: &SessionInputRequest) -> &str {
    match request {
        SessionInputRequest::ChatInput(request) => &request.id,
        SessionInputRequest::ToolConfirmation(request) => &request.id,
        SessionInputRequest::ToolClientExecution(request) => &request.id,
        SessionInputRequest::ToolAuthentication(request) => &request.id,
        SessionInputRequest::Unknown(_) => "",
    }
}

/// Shows the present activity of an agent; `None` shows its background work, if any.
pub(in crate::host) fn set_activity(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    activity: Option<String>,
) {
    let activity = activity.or_else(|| background_activity(ledger, key));
    let now = ledger.channels.chats.known(key).map(|chat| chat.conversation.state().activity.clone());
    if now.is_some_and(|now| now != activity) {
        let action = StateAction::ChatActivityChanged(ChatActivityChangedAction { activity });
        ledger.sequence(step, key, action, None);
        sync_chat(ledger, step, key);
    }
}

/// Returns an activity that describes a chat's background work, for versions before 1.0.0, which
/// have no other member for it.
pub(in crate::host) fn background_activity(ledger: &Ledger, chat: ChatKey) -> Option<String> {
    let works = ledger.channels.chats.known(chat)?.conversation.state().background_work.as_ref()?;
    let labels = works.iter().filter_map(|work| match work {
        BackgroundWork::Shell(work) => Some(work.label.as_str()),
        _ => None,
    });
    let labels: Vec<&str> = labels.collect();
    let shown = text::first_bytes(&text::message(&labels.join(", ")), TITLE_BYTES_MAX).to_owned();
    (!labels.is_empty()).then(|| format!("In the background: {shown}"))
}
