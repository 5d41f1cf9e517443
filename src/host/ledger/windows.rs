//! Windows: the completed turns of a chat that each subscription holds.
//!
//! Owns: cutting states down to a window, the cursors and pages of `fetchTurns`, and loading the
//! turns that a client must hold to apply an action that names an older turn, live or in a replay,
//! or an older version's form of it.
//! Never: changes a channel's state. Loaded turns go to one connection only, with the `serverSeq`
//! it was last sent: they are no change, so they are neither numbered nor logged.
//!
//! A window is a suffix of the completed turns, so its start defines it. Each turn that ends
//! extends it. At least the latest turn is in it if one exists, because that turn can be resumed.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use ahp_types::actions::{ChatTruncatedAction, StateAction};
use ahp_types::commands::{FetchTurnsParams, SubscribeParams};
use bytes::Bytes;
use serde::Deserialize;

use crate::host::cursors::CursorOf;
use crate::host::effects::{
    ActionLine, ChannelId, ChatKey, ConnectionId, Frame, LoadedTurns, Output, LARGE_BYTES,
};
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, Subscription, Window};
use crate::host::Step;
use crate::state::history::{CompletedTurn, History};
use crate::wire::action_lines::envelope_of;
use crate::wire::errors::RpcError;

/// Turns per page for a client that names no number.
const PAGE_TURNS: usize = 20;

impl Subscription {
    /// Reads the window that a client requests when it subscribes; `-32602` for a negative number.
    pub(in crate::host) fn asked_for(params: &SubscribeParams) -> Result<Self, RpcError> {
        let at_least_0 = |name: &str, number: Option<i64>| match number.map(u64::try_from) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(RpcError::invalid_params(format_args!("`{name}` must be at least 0"))),
        };
        let turns = at_least_0("view.turns", params.view.as_ref().and_then(|view| view.turns))?;
        let delay = params.delivery.as_ref().and_then(|delivery| delivery.max_latency_ms);
        Ok(Self {
            window: Window::default(),
            turns: turns.map(|turns| usize::try_from(turns).unwrap_or(usize::MAX).max(1)),
            delay_ms: at_least_0("delivery.maxLatencyMs", delay)?,
        })
    }
}

impl Window {
    /// Returns the number of leading turns that a client may lack although it needs the turn at
    /// `at`; `None` if it holds that turn.
    fn missing_turns(self, at: Option<usize>, turn_count: usize) -> Option<usize> {
        match self {
            Self::From(start) => Some(start).filter(|start| at.is_some_and(|at| at < *start)),
            Self::Unknown => Some(turn_count),
        }
    }
}

impl Ledger {
    /// Handles `fetchTurns`: sends the page of turns before the client's window, then answers.
    ///
    /// # Errors
    /// `-32001` if the channel does not exist; `-32602` if it is not a chat, if the client is not
    /// subscribed to it, or if the cursor is not one of this chat.
    pub(in crate::host) fn fetch_turns(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: &FetchTurnsParams,
    ) -> Result<Vec<u8>, RpcError> {
        let target = self.find(&params.channel).ok_or_else(|| self.not_found(&params.channel))?;
        let Some(key) = target.chat() else {
            return Err(RpcError::invalid_params("`channel` must be a chat: nothing else has turns"));
        };
        self.check_store()?;
        let page = self.page_asked_for(connection, key, params.cursor.as_deref())?;
        self.load(step, connection, key, page);
        Ok(b"{}".to_vec())
    }

    /// Returns the range of turns that a connection requests with a cursor; `-32602` if the client
    /// is not subscribed to the chat, or if the cursor is not one of this chat.
    fn page_asked_for(
        &self,
        connection: ConnectionId,
        key: ChatKey,
        cursor: Option<&str>,
    ) -> Result<Range<usize>, RpcError> {
        let Some(&subscription) = self.subscriptions.get(connection, key.into()) else {
            return Err(RpcError::invalid_params(
                "`channel` is not subscribed to, so it has no window to grow",
            ));
        };
        let turns = self.channels.chats.needed(key)?.conversation.history();
        let page = subscription.turns.unwrap_or(PAGE_TURNS);
        // The cursor names the turn before its window, so the page ends behind that turn.
        let named = match cursor {
            None => None,
            Some(cursor) => Some(
                read_cursor(key, cursor).and_then(|id| turns.position_of(&id)).map(|at| at + 1).ok_or_else(
                    || RpcError::invalid_params("`cursor` does not belong to this chat; subscribe again"),
                )?,
            ),
        };
        let (held, start) = match (subscription.window, named) {
            // The window is unknown: loading all turns is always enough.
            (Window::Unknown, None) => (turns.len(), 0),
            (Window::From(held), _) | (Window::Unknown, Some(held)) => {
                (held, named.unwrap_or(held).saturating_sub(page).min(held))
            }
        };
        Ok(start..held)
    }

    /// Sends a connection turns that it may lack, and moves the start of its window to theirs.
    fn load(&mut self, step: &mut Step<'_>, connection: ConnectionId, key: ChatKey, turns: Range<usize>) {
        let Some(chat) = self.channels.chats.known(key) else { return };
        let all = chat.conversation.history();
        let cursor = cursor_before(key, all, turns.start);
        let loaded = all.turns().get(turns.clone()).unwrap_or_default();
        let loaded = LoadedTurns {
            chat: chat.channel.uri.clone(),
            turns: loaded.to_vec(),
            next_cursor: cursor,
            server_seq: self.committed_head(),
        };
        // Small turns in memory are written at once.
        step.emit(if loaded.bytes() < LARGE_BYTES && loaded.is_in_memory() {
            Output::Frame(connection, Frame::Answer(loaded.line()))
        } else {
            Output::Turns(connection, Box::new(loaded))
        });
        if let Some(subscription) = self.subscriptions.get_mut(connection, key.into()) {
            subscription.window = Window::From(turns.start);
        }
    }

    /// Sends subscribers the turns that they lack and need to apply an action, before sequencing
    /// it.
    pub(super) fn send_turns_before(&mut self, step: &mut Step<'_>, target: ChannelId, action: &StateAction) {
        let Some(key) = target.chat() else { return };
        let Some(chat) = self.channels.chats.known(key) else { return };
        let turns = chat.conversation.history();
        // Clients that cannot resume are sent the last turn anew, behind the one before it.
        let (at, resumes) = match action {
            StateAction::ChatTruncated(ChatTruncatedAction { turn_id: Some(named) }) => {
                (turns.position_of(named), false)
            }
            StateAction::ChatTurnResume(_) => match turns.len().checked_sub(2) {
                Some(at) => (Some(at), true),
                None => return,
            },
            _ => return,
        };
        let turn_count = turns.len();
        for connection in chat.channel.subscribers.clone() {
            if resumes && self.presence.resumes_turns(connection) {
                continue;
            }
            let window = self.subscriptions.get(connection, target).map(|subscription| subscription.window);
            if let Some(missing) = window.and_then(|window| window.missing_turns(at, turn_count)) {
                let first = at.filter(|_| resumes && window != Some(Window::Unknown)).unwrap_or(0);
                self.load(step, connection, key, first..missing);
            }
        }
    }

    /// Updates windows after an action: once no turn remains, every client holds all of them.
    pub(super) fn note_windows(&mut self, target: ChannelId, action: &StateAction) {
        let StateAction::ChatTruncated(ChatTruncatedAction { turn_id: None }) = action else { return };
        let subscribers = self.channels.get(target).map(|channel| channel.subscribers.clone());
        for connection in subscribers.unwrap_or_default() {
            if let Some(subscription) = self.subscriptions.get_mut(connection, target) {
                subscription.window = Window::From(0);
            }
        }
    }
}

impl Chat {
    /// Returns the `chat/turnsLoaded` that a client with an unknown window needs before a
    /// truncation in a replay: every turn that may be named. `actions` are the chat's, in order.
    ///
    /// Fails if the turns have changed since, would have to be sent more than once, or are large:
    /// large states are written off the main loop.
    pub(in crate::host) fn loading_in_replay(
        &self,
        actions: &[&ActionLine],
    ) -> Result<Option<Loading>, SnapshotRequired> {
        let mut cut: Option<(u64, String)> = None;
        let mut changed_since = HashSet::new();
        for line in actions.iter().filter(|line| line.delta.is_none()) {
            match TurnReference::of(line) {
                Some(TurnReference::CutBehind(_)) if cut.is_some() => return Err(SnapshotRequired),
                Some(TurnReference::CutBehind(turn)) => cut = Some((line.server_seq, turn)),
                Some(TurnReference::Changed(turn)) if cut.is_some() => {
                    changed_since.insert(turn);
                }
                _ => {}
            }
        }
        let Some((before, named)) = cut else { return Ok(None) };
        if changed_since.contains(&named) {
            return Err(SnapshotRequired);
        }
        let turns = self.conversation.history().turns();
        let is_later = |turn: &CompletedTurn| changed_since.contains(turn.id());
        let known = turns.iter().position(is_later).and_then(|at| turns.get(..at)).unwrap_or(turns);
        let loaded = LoadedTurns {
            chat: self.channel.uri.clone(),
            turns: known.to_vec(),
            next_cursor: None,
            server_seq: before.saturating_sub(1),
        };
        if loaded.bytes() >= LARGE_BYTES {
            return Err(SnapshotRequired);
        }
        Ok(Some(Loading { before, envelope: envelope_of(&loaded.line()) }))
    }
}

/// Result of a replay that cannot supply the turns a client needs; a snapshot replaces it.
#[derive(Debug)]
pub(in crate::host) struct SnapshotRequired;

/// Envelope in a replay that is not part of the log.
#[derive(Debug)]
pub(in crate::host) struct Loading {
    /// Sequence number of the action that it precedes.
    pub(in crate::host) before: u64,
    /// JSON text.
    pub(in crate::host) envelope: Bytes,
}

#[derive(Debug)]
enum TurnReference {
    /// Turn that starts, is resumed or ends.
    Changed(String),
    /// Turn after which all turns are removed.
    CutBehind(String),
}

impl TurnReference {
    fn of(line: &ActionLine) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope {
            action: Action,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Action {
            r#type: String,
            turn_id: Option<String>,
        }
        let Envelope { action } = serde_json::from_slice(&envelope_of(&line.line)).ok()?;
        match action.r#type.as_str() {
            "chat/turnStarted" | "chat/turnResume" | "chat/turnComplete" | "chat/turnCancelled"
            | "chat/error" => action.turn_id.map(Self::Changed),
            "chat/truncated" => action.turn_id.map(Self::CutBehind),
            _ => None,
        }
    }
}

/// Returns the cursor for a window from `start` on, which names the turn before; `None` at 0.
pub(in crate::host) fn cursor_before(
    ChatKey(number): ChatKey,
    history: &History,
    start: usize,
) -> Option<String> {
    let before = history.turns().get(start.checked_sub(1)?)?;
    Some(CursorOf::Turns.write(format_args!("{number}:{}", before.id())))
}

/// Returns the id of the turn that a cursor of this chat names; `None` for any other cursor.
fn read_cursor(ChatKey(number): ChatKey, cursor: &str) -> Option<String> {
    let place = CursorOf::Turns.read(cursor)?;
    let (chat, turn) = place.split_once(':')?;
    (chat.parse() == Ok(number)).then(|| turn.to_owned())
}

/// Groups the actions of a replay by channel.
pub(in crate::host) fn by_channel<'a>(
    actions: &[(ChannelId, &'a ActionLine)],
) -> BTreeMap<ChannelId, Vec<&'a ActionLine>> {
    let mut channels: BTreeMap<ChannelId, Vec<&ActionLine>> = BTreeMap::new();
    for run in actions.chunk_by(|(a, _), (b, _)| a == b) {
        channels.entry(run[0].0).or_default().extend(run.iter().map(|(_, line)| *line));
    }
    channels
}
