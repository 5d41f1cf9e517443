//! What is kept of the state, and how it comes back.
//!
//! Owns: which rows a step leaves to be saved, the JSON text of those rows, and making sessions, chats and
//! interrupted turns out of it again.
//! Never: reads or writes anything itself; rows go out as records and come in as inputs.
//!
//! A session's row is saved whole whenever it has changed. A chat's row is its state without its completed
//! turns, which are rows of their own. While a turn runs the saved actions make up for what the chat's row
//! does not know, so the row is saved again only when they have grown much larger than it, or are many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{ChatState, SessionLifecycle, SessionState, SessionSummary, Turn};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::attached::{self, Attached};
use super::catalogue::row_of;
use super::effects::{
    ActionLine, ChatRow, Handle, Output, Record, SavedChat, SavedSession, SessionRow, Timer,
};
use super::limits::is_output;
use super::locale::Language;
use super::model::{AgentLink, Channel, ChannelId, Chat, Run, RunPhase, Saved, Session, SessionKey, TitleBy};
use super::reduce::Conversation;
use super::selection::Waiting;
use super::sequence::envelope_of;
use super::turns::Ending;
use super::{ChatKey, Host, Step};
use crate::wire::asides::Change;
use crate::wire::names::Named;
use crate::wire::rpc::{to_json, to_sorted_json};

/// A running turn's row is saved again only after so many bytes of actions, however small it is.
const BEHIND_BYTES_MIN: usize = 1 << 20;

/// And after so many times its own bytes: in the store actions are packed, and each row is written twice.
pub(super) const BEHIND_TIMES: usize = 4;

/// But always after so many: a process that takes the chat up has all of them in memory at once.
pub(super) const BEHIND_BYTES_MAX: usize = 64 << 20;

/// How long after an interrupted turn was ended, safely, the process still being there counts.
const RECOVERED_AFTER: Duration = Duration::from_millis(1);

/// Idle sessions are looked for once in so many steps that change a session: looking takes a step through all
/// that are in memory.
const IDLE_EVERY: u64 = 16;

/// What a session's row holds.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionBody {
    state: SessionState,
    created_at: String,
    born_at: u64,
    config: JsonObject,
    title_by: TitleBy,
    /// Where it was shown later than it was born.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shown_at: Option<u64>,
}

/// What a chat's row holds.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChatBody {
    state: ChatState,
    born_at: u64,
    title_by: TitleBy,
    /// Turn ids that are known although their turns are not in the chat any more.
    removed_turns: BTreeSet<String>,
    consumed: BTreeSet<String>,
    #[serde(default)]
    selecting: Vec<Change>,
    #[serde(default)]
    following: BTreeSet<String>,
    progress: BTreeMap<String, u64>,
    /// So many of its saved turns are not its own but what its agent was told before them.
    #[serde(default)]
    context_turns: usize,
    #[serde(default)]
    attached: Attached,
    #[serde(default)]
    handle: Option<String>,
    #[serde(default)]
    resumes: bool,
}

impl Host {
    /// Takes note of what an action, just sequenced, leaves to be saved.
    pub(super) fn note_change(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: &StateAction,
        bytes: usize,
    ) {
        let Some(chat) = self.channels.chats.get_mut(&key) else { return };
        let saved = &mut chat.saved;
        saved.behind_bytes += bytes;
        match action {
            StateAction::ChatTurnResume(_) | StateAction::ChatTruncated(_) => {
                saved.turns_kept = saved.turns_kept.min(chat.conversation.state().turns.len());
                saved.row_due = true;
            }
            StateAction::ChatTurnStarted(_) => saved.row_due = true,
            StateAction::ChatTurnComplete(_)
            | StateAction::ChatTurnCancelled(_)
            | StateAction::ChatError(_) => {
                saved.row_due = true;
                step.say(Output::Record(Record::Sync));
            }
            StateAction::ChatToolCallConfirmed(_) | StateAction::ChatInputCompleted(_) => {
                step.say(Output::Record(Record::Sync));
            }
            _ => {}
        }
        let behind_max = (BEHIND_TIMES * saved.row_bytes).clamp(BEHIND_BYTES_MIN, BEHIND_BYTES_MAX);
        saved.row_due |= chat.run.is_none() || saved.behind_bytes > behind_max;
        if saved.row_due {
            self.unsaved.insert(key.into());
        }
    }

    /// Leaves everything that has changed to be saved, and lets sessions that nobody uses out of memory.
    pub(super) fn save(&mut self, step: &mut Step<'_>) {
        let unsaved = std::mem::take(&mut self.unsaved);
        if !unsaved.is_empty() {
            self.uses += 1;
            for id in &unsaved {
                let session = self.channels.session_of(*id);
                if let Some(session) = session.and_then(|key| self.channels.sessions.get_mut(&key)) {
                    session.used = self.uses;
                }
            }
        }
        for id in unsaved {
            self.save_channel(step, id);
        }
        let is_due = self.uses >= self.idle_looked_for + IDLE_EVERY;
        if is_due && self.channels.sessions.len() > self.config.idle_sessions_max && self.failing.is_none() {
            self.idle_looked_for = self.uses;
            self.let_idle_sessions_go(step);
        }
    }

    /// Leaves a session to be saved.
    pub(super) fn save_session(&mut self, step: &mut Step<'_>, key: SessionKey) {
        if self.channels.sessions.get(&key).is_some_and(|session| !session.ahead) {
            if let Some(row) = self.session_row(key) {
                step.say(Output::Record(Record::Session(row)));
            }
        }
    }

    /// Leaves a chat to be saved, if what the store has of it does not make up for what has changed.
    pub(super) fn save_chat(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let Some(chat) = self.channels.chats.get_mut(&key) else { return };
        let is_kept = self.channels.sessions.get(&chat.session).is_some_and(|session| !session.ahead);
        if is_kept && chat.saved.row_due {
            save_chat(step, key, chat, self.head);
        }
    }

    /// Leaves a chat that has another session than before to be saved, behind that session.
    pub(super) fn save_moved(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let session = self.channels.chats.get(&key).and_then(|chat| self.session_row(chat.session));
        if let Some(row) = session {
            step.say(Output::Record(Record::Session(row)));
        }
        let Some(chat) = self.channels.chats.get_mut(&key) else { return };
        save_chat(step, key, chat, self.head);
    }

    /// A session's row, whole.
    fn session_row(&self, key: SessionKey) -> Option<SessionRow> {
        let session = self.channels.sessions.get(&key)?;
        let body = SessionBody {
            state: session.state.clone(),
            created_at: session.created_at.clone(),
            born_at: session.channel.born_at,
            config: session.config.clone(),
            title_by: session.title_by,
            shown_at: Some(session.shown_at).filter(|at| *at > session.channel.born_at),
        };
        Some(SessionRow {
            key,
            uri: session.channel.uri.clone(),
            modified_at: session.modified_at.clone(),
            summary: to_json(&self.summary(key)?).into(),
            body: to_sorted_json(&body).into(),
        })
    }

    /// Lets the least recently used of the idle sessions out of memory, if there are too many of them. The
    /// store has all of them as they are.
    fn let_idle_sessions_go(&mut self, step: &mut Step<'_>) {
        let idle = self.channels.sessions.iter().filter(|(key, session)| self.is_idle(**key, session));
        let mut idle: Vec<(u64, SessionKey)> = idle.map(|(key, session)| (session.used, *key)).collect();
        let Some(surplus) = idle.len().checked_sub(self.config.idle_sessions_max) else { return };
        idle.sort_unstable();
        for (_, key) in idle.into_iter().take(surplus) {
            for chat in self.chats_of(key) {
                self.close_conversation(step, chat);
                if let Some(chat) = self.channels.chats.remove(&chat) {
                    self.channels.by_uri.remove(&chat.channel.uri);
                }
            }
            if let Some(session) = self.channels.sessions.remove(&key) {
                self.channels.by_uri.remove(&session.channel.uri);
            }
        }
    }

    /// Whether nobody would notice that a session is not in memory.
    fn is_idle(&self, key: SessionKey, session: &Session) -> bool {
        let chats = self.chats_of(key);
        let mut chats = chats.iter().filter_map(|key| self.channels.chats.get(key));
        session.channel.subscribers.is_empty()
            && !session.ahead
            && session.state.lifecycle != SessionLifecycle::Creating
            && !self.summaries.mentions(key)
            && chats.all(|chat| {
                chat.channel.subscribers.is_empty() && chat.run.is_none() && chat.settling.is_none()
            })
    }

    /// The URIs that a message names and that are not in memory.
    pub fn absent(&self, named: &Named) -> Vec<String> {
        let uris = named.channels.union(&named.attached);
        uris.filter(|uri| self.find(uri).is_none()).cloned().collect()
    }

    /// The cursor of a `reconnect` that reaches further back than what is in memory.
    pub fn cursor_into_the_past(&self, named: &Named) -> Option<u64> {
        let cursor = named.cursor?;
        self.log.since(cursor).is_none().then_some(cursor).filter(|cursor| *cursor < self.head)
    }

    /// Whether these actions, read from the store, go on to those that are in memory: what memory has forgotten must
    /// have arrived there.
    pub(super) fn reaches_memory(&self, past: &[(ChannelId, ActionLine)]) -> bool {
        let floor = self.log.floor();
        floor == self.config.start.head || past.iter().any(|(_, line)| line.server_seq == floor)
    }

    /// Takes a session back from the store. A turn that ran when its process ended is ended now: once, with
    /// an error, resumable if its agent can go on.
    pub(super) fn restore(&mut self, step: &mut Step<'_>, saved: SavedSession) {
        let uris: Vec<String> = std::iter::once(&saved.row.uri)
            .chain(saved.chats.iter().map(|chat| &chat.row.uri))
            .cloned()
            .collect();
        let key = saved.row.key;
        if self.disposed.contains(&key) || uris.iter().any(|uri| self.channels.by_uri.contains_key(uri)) {
            return;
        }
        let (deaths, turn_bytes) = (saved.deaths, self.config.limits.turn_bytes);
        let mut cut = BTreeSet::new();
        let restored = read_session(&saved.row).and_then(|session| {
            let chats = saved.chats.into_iter().map(|chat| {
                let key = chat.row.key;
                let (chat, is_cut) = read_chat(chat, turn_bytes)?;
                cut.extend(is_cut.then_some(key));
                Ok((key, chat))
            });
            Ok((session, chats.collect::<Result<Vec<_>, String>>()?))
        });
        let (mut session, chats) = match restored {
            Ok(restored) => restored,
            Err(reason) => {
                tracing::error!(session = uris[0], reason, "a session cannot be read");
                self.unreadable.extend(uris.into_iter().map(|uri| (uri, reason.clone())));
                return;
            }
        };
        for uri in &uris {
            self.unreadable.remove(uri);
        }
        let mended = mend_catalogue(&mut session, &chats);
        self.channels.by_uri.insert(session.channel.uri.clone(), key.into());
        let creating = session.state.lifecycle == SessionLifecycle::Creating;
        let told = session.told.meta.clone();
        self.uses += 1;
        self.channels.sessions.insert(key, Session { used: self.uses, ..session });
        let keys: Vec<ChatKey> = chats.iter().map(|(key, _)| *key).collect();
        for (key, mut chat) in chats {
            if cut.contains(&key) {
                // A cursor from before does not lead to what is left.
                chat.channel.born_at = self.head + 1;
            }
            self.channels.by_uri.insert(chat.channel.uri.clone(), key.into());
            self.channels.chats.insert(key, chat);
        }
        // A program that did not know of it may have kept the summary.
        if self.summary(key).is_some_and(|summary| summary.meta != told) {
            self.session_changed(key);
        }
        self.await_clients(step, key);
        for chat in keys {
            self.end_interrupted_turn(step, chat, cut.contains(&chat), deaths);
        }
        if mended {
            let default =
                self.channels.sessions.get(&key).and_then(|session| session.state.default_chat.clone());
            self.set_movable(step, &default.unwrap_or_default(), false);
            self.sync_session(step, key);
        }
        if creating {
            self.open_session(step, key);
        }
    }

    /// Ends a turn that ran when its process ended. So many processes in a row have ended while it was taken up that
    /// it is given up, if that is not none.
    fn end_interrupted_turn(&mut self, step: &mut Step<'_>, key: ChatKey, cut: bool, deaths: u32) {
        let run = self.fresh_run();
        let Some(chat) = self.channels.chats.get_mut(&key) else { return };
        let Some(turn) = &chat.conversation.state().active_turn else { return };
        let lasted_ms = lasted_since(step, Some(&turn.started_at));
        let mut run = Run::again(run, turn.id.clone(), step.now.monotonic_ms, lasted_ms);
        run.phase = RunPhase::Over;
        run.interrupted = true;
        chat.run = Some(run);
        self.runs += 1;
        let session = chat.session;
        // Held back until what the recovery did is safe: then it was survived.
        let survived = if deaths > 0 { Timer::Trial(session) } else { Timer::Recovered(session) };
        step.say(Output::Timer(survived, RECOVERED_AFTER));
        let ending = if cut {
            self.too_large()
        } else if deaths > 0 {
            Ending::Failed { kind: "quarantined".to_owned(), message: given_up(deaths), resumable: false }
        } else {
            let can_always = self.agent_of(key).map(|agent| agent.resumes);
            let resumable = can_always.is_some_and(|always| always || self.can_be_taken_up(key));
            let message = "the host ended while the turn ran".to_owned();
            Ending::Failed { kind: "interrupted".to_owned(), message, resumable }
        };
        self.end_turn_quietly(step, key, ending, None);
    }
}

/// Why a turn is given up.
fn given_up(deaths: u32) -> String {
    let times = if deaths == 1 { "once".to_owned() } else { format!("{deaths} times in a row") };
    format!(
        "the host ended while the turn ran, and then {times} while it was taken up: it cannot be resumed; what was said \
        is kept, and a new message begins a new turn"
    )
}

/// Has a session list the chats that it has: what was made or ended together with it, in one step, may not be
/// saved. Returns whether anything was wrong.
fn mend_catalogue(session: &mut Session, chats: &[(ChatKey, Chat)]) -> bool {
    let state = &mut session.state;
    let there = |uri: &String| chats.iter().any(|(_, chat)| chat.channel.uri == *uri);
    let before = state.chats.len();
    state.chats.retain(|row| there(&row.resource));
    let lost = before - state.chats.len();
    let listed: BTreeSet<String> = state.chats.iter().map(|row| row.resource.clone()).collect();
    let unlisted = chats.iter().filter(|(_, chat)| !listed.contains(&chat.channel.uri));
    state.chats.extend(unlisted.map(|(_, chat)| row_of(chat.conversation.state())));
    let default_is_lost = state.default_chat.as_ref().is_none_or(|uri| !there(uri));
    if default_is_lost {
        state.default_chat = state.chats.first().map(|row| row.resource.clone());
    }
    lost > 0 || listed.len() < chats.len() || default_is_lost
}

/// How long a turn has lasted that began at this time by the wall clock.
pub(super) fn lasted_since(step: &Step<'_>, started_at: Option<&str>) -> u64 {
    let started = started_at.and_then(|start| start.parse::<jiff::Timestamp>().ok());
    let since = started.map_or(0, |start| step.now.unix_ms - start.as_millisecond());
    u64::try_from(since).unwrap_or(0)
}

fn save_chat(step: &mut Step<'_>, key: ChatKey, chat: &mut Chat, head: u64) {
    attached::forget_what_is_gone(chat);
    let saved = &mut chat.saved;
    let context_turns = chat.context.len();
    if !std::mem::replace(&mut saved.context, true) {
        for (place, turn) in chat.context.iter().enumerate() {
            step.say(Output::Record(Record::Turn(key, place as u64, to_sorted_json(turn).into())));
        }
    }
    if saved.turns_kept < saved.turns {
        step.say(Output::Record(Record::TurnsCut(key, (context_turns + saved.turns_kept) as u64)));
        saved.turns = saved.turns_kept;
    }
    let turns = &chat.conversation.state().turns;
    for (place, turn) in turns.iter().enumerate().skip(saved.turns) {
        let place = (context_turns + place) as u64;
        step.say(Output::Record(Record::Turn(key, place, to_sorted_json(turn).into())));
    }
    (saved.turns, saved.turns_kept) = (turns.len(), turns.len());
    let there: BTreeSet<&String> = turns.iter().map(|turn| &turn.id).collect();
    let active = chat.conversation.state().active_turn.as_ref().map(|turn| &turn.id);
    let removed = chat.turn_ids.iter().filter(|id| !there.contains(id) && Some(*id) != active);
    let body = serde_json::json!({
        "bornAt": chat.channel.born_at,
        "titleBy": chat.title_by,
        "removedTurns": removed.collect::<BTreeSet<_>>(),
        "consumed": chat.consumed.iter().collect::<BTreeSet<_>>(),
        "progress": chat.progress,
        "handle": chat.handle.as_ref().map(|handle| &handle.name),
        "resumes": chat.handle.as_ref().is_some_and(|handle| handle.resumes),
    });
    let mut body = body;
    if context_turns > 0 {
        body["contextTurns"] = context_turns.into();
    }
    if !chat.attached.is_empty() {
        body["attached"] = serde_json::to_value(&chat.attached).unwrap_or_default();
    }
    if !chat.selecting.is_empty() {
        let changes: Vec<&Change> = chat.selecting.iter().map(|waiting| &waiting.change).collect();
        body["selecting"] = serde_json::to_value(changes).unwrap_or_default();
    }
    if !chat.following.is_empty() {
        body["following"] = serde_json::to_value(&chat.following).unwrap_or_default();
    }
    body["state"] = chat.conversation.head_json();
    let body = Bytes::from(to_json(&body));
    chat.saved.row_due = false;
    chat.saved.behind_bytes = 0;
    chat.saved.row_bytes = body.len();
    step.say(Output::Record(Record::Chat(ChatRow {
        key,
        session: chat.session,
        uri: chat.channel.uri.clone(),
        running: chat.run.is_some(),
        as_of: head,
        body,
    })));
}

fn read<T: for<'a> Deserialize<'a>>(what: &str, json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| format!("the saved {what} cannot be read: {error}"))
}

fn read_session(row: &SessionRow) -> Result<Session, String> {
    let body: SessionBody = read("session", &row.body)?;
    let told = super::catalogue::summary_of(&row.uri, &body.state, &body.created_at, &row.modified_at);
    let kept: Option<SessionSummary> = serde_json::from_slice(&row.summary).ok();
    let told = SessionSummary { meta: kept.and_then(|kept| kept.meta), ..told };
    Ok(Session {
        channel: Channel::new(row.uri.clone(), body.born_at),
        state: body.state,
        created_at: body.created_at,
        modified_at: row.modified_at.clone(),
        config: body.config,
        title_by: body.title_by,
        used: 0,
        selected: told.meta.clone(),
        told,
        ahead: false,
        shown_at: body.shown_at.unwrap_or(body.born_at),
        unfollowed: None,
    })
}

/// A chat as it was saved, and whether its turn was larger than any may be, so that it is not whole.
fn read_chat(saved: SavedChat, turn_bytes_max: usize) -> Result<(Chat, bool), String> {
    let SavedChat { row, turns, actions, sifted, progress } = saved;
    let body: ChatBody = read("chat", &row.body)?;
    let mut state = body.state;
    let mut context = turns.iter().map(|turn| read::<Turn>("turn", turn)).collect::<Result<Vec<_>, _>>()?;
    if context.len() < body.context_turns {
        return Err("not all is there that the chat goes on from".to_owned());
    }
    state.turns = context.split_off(body.context_turns);
    let turn_count = state.turns.len();
    let mut turn_ids: std::collections::HashSet<String> =
        state.turns.iter().map(|turn| turn.id.clone()).collect();
    turn_ids.extend(state.active_turn.iter().map(|turn| turn.id.clone()));
    turn_ids.extend(body.removed_turns);
    // What was told since the row was saved is about the turn that runs.
    let running = state.active_turn.as_ref().map(|turn| turn.id.clone());
    let mut consumed: std::collections::HashSet<String> = body.consumed.into_iter().collect();
    let mut conversation = Conversation::new(state);
    for line in &actions {
        let envelope: ActionEnvelope = read("action", &envelope_of(line))?;
        if conversation.turn_bytes() > turn_bytes_max && is_output(&envelope.action) {
            continue;
        }
        if conversation.apply(&envelope.action) != ReduceOutcome::Applied {
            return Err(format!("the saved action {} does not fit its chat", envelope.server_seq));
        }
        if let (StateAction::ChatPendingMessageRemoved(a), None) = (&envelope.action, &envelope.origin) {
            consumed.insert(a.id.clone());
        }
    }
    drop(actions);
    let is_cut = conversation.cut_active_turn(turn_bytes_max) || sifted;
    let chat = Chat {
        channel: Channel::new(row.uri, body.born_at),
        session: row.session,
        conversation,
        context,
        title_by: body.title_by,
        agent: AgentLink::Closed,
        opening: None,
        awaits: false,
        previews: BTreeMap::new(),
        sponsor: None,
        tokens_told: Default::default(),
        directories_told: Vec::new(),
        tools_told: Vec::new(),
        settings_told: Default::default(),
        commands: None,
        run: None,
        settling: None,
        turn_ids,
        consumed,
        selecting: body.selecting.into_iter().map(|change| Waiting { change, asked: None }).collect(),
        following: body.following,
        attached: body.attached,
        progress: body.progress.into_iter().chain(running.zip(progress)).collect(),
        handle: body.handle.map(|name| Handle { name, resumes: body.resumes }),
        saved: Saved {
            context: true,
            turns: turn_count,
            turns_kept: turn_count,
            row_bytes: row.body.len(),
            ..Saved::default()
        },
        language: Language::default(),
        // What waits is not taken up before a client asks for something.
        queue_held: true,
    };
    Ok((chat, is_cut))
}
