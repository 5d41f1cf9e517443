//! Stored sessions on their way back into memory.
//!
//! Owns: parsing sessions, chats and interrupted turns from their rows, and ending interrupted
//! turns.
//! Never: reads the store itself. Large chats are parsed where the rows are read, off the main
//! loop; the host only inserts the result.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use ahp::reducers::ReduceOutcome;
use ahp_types::state::{Annotation, SessionState, SessionSummary};

use crate::host::agents::AgentRegistry;
use crate::host::catalogue::rows::{ChatBody, SessionBody};
use crate::host::catalogue::{row_of, rows, sync_chat};
use crate::host::channels::annotations_summary;
use crate::host::chats::turns::{self, is_begun_by_agent, Ending};
use crate::host::configuration::selection::PendingSelection;
use crate::host::customizations::shown_decisions;
use crate::host::effects::{Handle, Output, RepositoryStatus, SavedChat, SavedSession, SessionRow, Timer};
use crate::host::ledger::Ledger;
use crate::host::limits::{is_output, Limits};
use crate::host::model::{Channel, Chat, Run, RunPhase, Saved, Session, SessionKey};
use crate::host::terminals::commands;
use crate::host::{limits, ChatKey, Step};
use crate::state::history::History;
use crate::state::reduce::Conversation;
use crate::wire::action_lines::merge_runs;

/// Time after committing the end of an interrupted turn until the process counts as recovered.
const RECOVERED_AFTER: Duration = Duration::from_millis(1);

/// Maximum size of a line into which stored deltas are merged, in bytes.
const MERGED_BYTES_MAX: usize = 64 << 10;

/// A session that was parsed from its rows and is not in memory yet.
#[derive(Debug)]
pub struct LoadedSession {
    pub(in crate::host) key: SessionKey,
    pub(in crate::host) uris: Vec<String>,
    pub(in crate::host) deaths: u32,
    /// Header and chats; `Err` describes why the rows are invalid, for people.
    pub(in crate::host) made: Result<(LoadedHeader, Vec<LoadedChat>), String>,
}

/// Summary of a stored session as lists show it; of a removed one, its last summary.
#[derive(Debug)]
pub struct StoredSummary {
    pub(in crate::host) summary: SessionSummary,
    /// Head of the sequence when the session was first shown.
    pub(in crate::host) shown_at: u64,
    pub(in crate::host) is_removed: bool,
}

impl StoredSummary {
    /// Reads the summary from a session's row.
    ///
    /// # Errors
    /// Describes why the row is invalid, for people.
    pub fn of(row: &SessionRow, is_removed: bool) -> Result<Self, String> {
        read_session(row).map(|LoadedHeader { session, .. }| Self {
            summary: session.sent_summary,
            shown_at: session.shown_at,
            is_removed,
        })
    }

    /// Returns the session's URI and provider.
    pub fn uri_and_provider(&self) -> (&str, &str) {
        (&self.summary.resource, &self.summary.provider)
    }
}

/// A session without its chats.
#[derive(Debug)]
pub(in crate::host) struct LoadedHeader {
    pub(in crate::host) session: Session,
    pub(in crate::host) annotations: Vec<Annotation>,
    pub(in crate::host) repository: Option<RepositoryStatus>,
}

#[derive(Debug)]
pub(in crate::host) struct LoadedChat {
    pub(in crate::host) key: ChatKey,
    pub(in crate::host) chat: Chat,
    /// Set if the running turn exceeded its size limit and was cut.
    pub(in crate::host) is_cut: bool,
    /// Set if the row says that a turn runs, although a later action has ended it.
    pub(in crate::host) has_ended: bool,
}

impl LoadedSession {
    /// Parses the rows of a session. The duration grows with the size of its chats.
    pub fn of(saved: SavedSession, limits: &Limits) -> Self {
        let SavedSession { row, chats, deaths } = saved;
        let uris = std::iter::once(&row.uri).chain(chats.iter().map(|chat| &chat.row.uri)).cloned().collect();
        let made = read_session(&row).and_then(|session| {
            let chats = chats.into_iter().map(|chat| read_chat(chat, limits.turn_bytes));
            Ok((session, chats.collect::<Result<Vec<_>, String>>()?))
        });
        Self { key: row.key, uris, deaths, made }
    }

    /// Returns whether the rows are valid.
    pub fn is_readable(&self) -> bool {
        self.made.is_ok()
    }

    /// Returns the session's key in the store.
    pub fn key(&self) -> SessionKey {
        self.key
    }

    pub(in crate::host) fn chat(&self, uri: &str) -> Option<&Chat> {
        let (_, chats) = self.made.as_ref().ok()?;
        chats.iter().map(|loaded| &loaded.chat).find(|chat| chat.channel.uri == uri)
    }

    /// Returns the URIs of the session, which comes first, and of its chats.
    pub fn uris(&self) -> &[String] {
        &self.uris
    }
}

/// Ends a turn that was running when its process ended. `deaths` is the number of consecutive
/// processes that ended while they resumed the turn; unless it is 0, the turn is given up.
pub(in crate::host) fn end_interrupted_turn(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
    cut: bool,
    deaths: u32,
) {
    let run = ledger.fresh_run();
    let is_command =
        ledger.channels.chats.known(key).is_some_and(|chat| commands::was_command_turn(ledger, chat));
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let Some(turn) = &chat.conversation.state().active_turn else { return };
    let lasted_ms = step.lasted_since(Some(&turn.started_at));
    let is_own = is_begun_by_agent(&turn.message);
    let mut run = Run::again(run, turn.id.clone(), step.now.monotonic_ms, lasted_ms);
    run.phase = RunPhase::Over;
    run.interrupted = true;
    chat.run = Some(run);
    note_recovery(step, chat.session, deaths);
    let ending = if cut {
        limits::too_large(ledger)
    } else if deaths > 0 {
        Ending::Failed {
            kind: "quarantined".to_owned(),
            message: abandoned_turn_message(deaths),
            resumable: false,
        }
    } else {
        let can_always = agents.agent_of(ledger, key).map(|agent| agent.resumes);
        let resumable = can_always
            .is_some_and(|always| always || ledger.channels.chats.known(key).is_some_and(Chat::can_resume));
        // A command must not run twice, and an agent cannot resume a turn that it began by itself.
        let resumable = resumable && !is_command && !is_own;
        let message = "the host ended during the turn".to_owned();
        Ending::Failed { kind: "interrupted".to_owned(), message, resumable }
    };
    turns::end_turn_without_advance(ledger, step, key, ending, None);
}

/// Saves a chat whose row says that a turn runs, although a later action has ended it: disposing of
/// a session once left such rows.
pub(in crate::host) fn save_ended_turn(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, deaths: u32) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    note_recovery(step, chat.session, deaths);
    ledger.chat_row_due(key);
    sync_chat(ledger, step, key);
}

/// Has the process note that it survived the end of an interrupted turn. Outputs are held until the
/// recovery is committed, so the timer implies survival.
fn note_recovery(step: &mut Step<'_>, session: SessionKey, deaths: u32) {
    let survived = if deaths > 0 { Timer::Trial(session) } else { Timer::Recovered(session) };
    step.emit(Output::Timer(survived, RECOVERED_AFTER));
}

fn abandoned_turn_message(deaths: u32) -> String {
    let times = if deaths == 1 { "once".to_owned() } else { format!("{deaths} times in a row") };
    format!(
        "the host ended during the turn, and then {times} while it restored the turn, so the turn cannot be resumed; \
         its text is kept, and a new message begins a new turn"
    )
}

/// Makes a session's list of chats match its stored chats: changes of one step may have been saved
/// in part. Returns whether they differed.
pub(in crate::host) fn repair_catalogue(session: &mut Session, chats: &[LoadedChat]) -> bool {
    let state = &mut session.state;
    let there = |uri: &String| chats.iter().any(|it| it.chat.channel.uri == *uri);
    let before = state.chats.len();
    state.chats.retain(|row| there(&row.resource));
    let lost = before - state.chats.len();
    let listed: BTreeSet<String> = state.chats.iter().map(|row| row.resource.clone()).collect();
    let unlisted = chats.iter().filter(|it| !listed.contains(&it.chat.channel.uri));
    state.chats.extend(unlisted.map(|it| row_of(it.chat.conversation.state())));
    let default_is_lost = state.default_chat.as_ref().is_none_or(|uri| !there(uri));
    if default_is_lost {
        state.default_chat = state.chats.first().map(|row| row.resource.clone());
    }
    lost > 0 || listed.len() < chats.len() || default_is_lost
}

fn read_session(row: &SessionRow) -> Result<LoadedHeader, String> {
    let body = SessionBody::read(&row.body)?;
    let summary =
        crate::host::catalogue::summary_of(&row.uri, &body.state, &body.created_at, &row.modified_at);
    let kept: Option<SessionSummary> = serde_json::from_slice(&row.summary).ok();
    let (meta, changes, annotations) =
        kept.map(|kept| (kept.meta, kept.changes, kept.annotations)).unwrap_or_default();
    let summary = SessionSummary { meta, changes, annotations, ..summary };
    let annotations = body.annotations.into_owned();
    let counted = Some(annotations_summary(&row.uri, &annotations));
    let channel = Channel::new(row.uri.clone(), body.born_at);
    let state = SessionState { annotations: counted, ..body.state.into_owned() };
    let decided = body.decided.map(Cow::into_owned);
    let decided =
        decided.unwrap_or_else(|| shown_decisions(state.customizations.as_deref().unwrap_or_default()));
    let times = (body.created_at.into_owned(), row.modified_at.clone());
    let session = Session {
        selected: summary.meta.clone(),
        changes: summary.changes.clone(),
        sent_summary: summary,
        reviewed: body.reviewed.into_owned(),
        reverted: body.reverted.into_owned(),
        decided,
        checkpoints: body.checkpoints.into_owned(),
        shown_at: body.shown_at.unwrap_or(body.born_at),
        ..Session::new(channel, state, times, body.config.into_owned(), body.title_by)
    };
    Ok(LoadedHeader { session, annotations, repository: body.repository.map(Cow::into_owned) })
}

fn read_chat(saved: SavedChat, turn_bytes_max: usize) -> Result<LoadedChat, String> {
    let SavedChat { row, turns, actions, sifted, progress } = saved;
    let body = ChatBody::read(&row.body)?;
    let state = body.state.into_owned();
    let mut context = turns;
    if context.len() < body.context_turns {
        return Err("turns that the chat continues from are missing".to_owned());
    }
    let history: History = context.drain(body.context_turns..).collect();
    // Facts of older stores' turns are computed here, off the main loop; the host needs all.
    for turn in history.turns() {
        turn.facts();
    }
    let turn_count = history.len();
    // The actions after the row belong to the running turn.
    let running = state.active_turn.as_ref().map(|turn| turn.id.clone());
    let (mut consumed, mut senders) = (body.consumed, body.senders);
    let mut conversation = Conversation::new(state, history).with_steering_messages(body.steering_messages);
    for line in &merge_runs(&actions, MERGED_BYTES_MAX) {
        let envelope = rows::read_action(line)?;
        if conversation.turn_bytes() > turn_bytes_max && is_output(&envelope.action) {
            continue;
        }
        if conversation.apply(&envelope.action) != ReduceOutcome::Applied {
            return Err(format!("the stored action {} is invalid for its chat", envelope.server_seq));
        }
        rows::note_consumed(&mut consumed, &envelope);
        rows::note_sender(&mut senders, &envelope);
    }
    drop(actions);
    // A later action may have made them pending again.
    let (mut sent_steering, mut sent_listed) = (body.sent_steering, body.sent_listed);
    sent_steering.retain(|message| consumed.contains(&message.id));
    sent_listed.retain(|message| consumed.contains(&message.id));
    let is_cut = conversation.cut_active_turn(turn_bytes_max) || sifted;
    let key = row.key;
    let has_ended = row.running && conversation.state().active_turn.is_none();
    let pending_selections =
        body.selecting.into_iter().map(|change| PendingSelection { change, asked: None });
    let chat = Chat {
        context,
        title_by: body.title_by,
        removed_turns: body.removed_turns.into_owned(),
        consumed: consumed.into_iter().collect(),
        pending_selections: pending_selections.collect(),
        turns_queued: body.turns_queued,
        undelivered_steering: body.undelivered_steering,
        sent_steering,
        sent_listed,
        following: body.following,
        senders,
        attached: body.attached.into_owned(),
        progress: body.progress.into_iter().chain(running.zip(progress)).collect(),
        handle: body.handle.map(|name| Handle { name, resumes: body.resumes }),
        saved: Saved {
            context: true,
            turns: turn_count,
            turns_valid: turn_count,
            row_bytes: row.body.len(),
            ..Saved::default()
        },
        // Queued messages wait until a client requests something.
        queue_held: true,
        ..Chat::new(Channel::new(row.uri, body.born_at), row.session, conversation)
    };
    Ok(LoadedChat { key, chat, is_cut, has_ended })
}
