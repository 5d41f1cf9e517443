//! Which completed turns of a chat each subscription holds.
//!
//! Owns: windows: cutting states down to one, the cursors and pages of `fetchTurns`, and loading what a
//! client must hold before it can apply an action that names an older turn, live or in a replay.
//! Never: changes a channel's state. What is loaded goes to one connection alone, with the number of what
//! it was sent last: it is no change, so it is neither numbered nor logged.
//!
//! A window is the end of the list of completed turns, so it is known by where it begins. It grows with the
//! turns that end, and holds at least the latest turn, if there is one: that is the one that can be resumed.

use std::collections::{BTreeMap, HashSet};

use ahp_types::actions::{ChatTruncatedAction, ChatTurnsLoadedAction, StateAction};
use ahp_types::commands::{FetchTurnsParams, SubscribeParams};
use ahp_types::state::Turn;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use serde::Deserialize;

use super::effects::{ActionLine, ChatKey, ConnectionId, Frame, Output, Target};
use super::model::{Subscription, Window};
use super::sequence::{envelope_of, loading_line};
use super::{Host, Step};
use crate::wire::errors::RpcError;

/// So many turns are loaded at once for a client that has not said how many it wants.
const PAGE_TURNS: usize = 20;

/// What a cursor begins with, so that one that was made elsewhere is known.
const CURSOR_MARK: &str = "ahp-sidecar:turns:";

impl Subscription {
    /// What a client asks for when it subscribes.
    ///
    /// # Errors
    /// `-32602` when a number is one that means nothing.
    pub(super) fn asked_for(params: &SubscribeParams) -> Result<Self, RpcError> {
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

impl Host {
    /// Where the window begins that a subscription has now that its client is given the state.
    pub(super) fn window_of(&self, target: Target, subscription: &Subscription) -> usize {
        match (target, subscription.turns) {
            (Target::Chat(key), Some(turns)) => {
                self.chats.get(&key).map_or(0, |chat| chat.conversation.state().turns.len()).saturating_sub(turns)
            }
            _ => 0,
        }
    }

    /// `fetchTurns`: loads the page of turns before the client's window, and has it told before the answer.
    ///
    /// # Errors
    /// `-32001` when there is no such channel; `-32602` when it is no chat, when the client has not
    /// subscribed to it, and when the cursor is none of this chat's.
    pub(super) fn fetch_turns(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: &FetchTurnsParams,
    ) -> Result<Vec<u8>, RpcError> {
        let target = self.find(&params.channel).ok_or_else(|| self.not_found(&params.channel))?;
        let Target::Chat(key) = target else {
            return Err(RpcError::invalid_params("`channel` must be a chat: nothing else has turns"));
        };
        self.check_keeping()?;
        let Some(&subscription) = self.subscription(connection, target) else {
            return Err(RpcError::invalid_params("`channel` is not subscribed to, so it has no window to grow"));
        };
        let Some(chat) = self.chats.get(&key) else { return Err(self.not_found(&params.channel)) };
        let turns = &chat.conversation.state().turns;
        let page = subscription.turns.unwrap_or(PAGE_TURNS);
        // Where the page ends by its cursor: at what lies before the window that the cursor was made for.
        let named = match &params.cursor {
            None => None,
            Some(cursor) => Some(
                read_cursor(key, cursor)
                    .and_then(|id| turns.iter().rposition(|turn| turn.id == id))
                    .map(|at| at + 1)
                    .ok_or_else(|| {
                        RpcError::invalid_params("`cursor` is none of this chat's; subscribe to begin anew")
                    })?,
            ),
        };
        let held = match (subscription.window, named) {
            (Window::From(start), _) => start,
            (Window::Unknown, Some(start)) => start,
            // Whatever it holds, all of them are not too few.
            (Window::Unknown, None) => turns.len(),
        };
        let start = match (subscription.window, named) {
            (Window::Unknown, None) => 0,
            (_, named) => named.unwrap_or(held).saturating_sub(page).min(held),
        };
        self.load(step, connection, key, start..held);
        Ok(b"{}".to_vec())
    }

    /// Tells a connection turns of a chat that it may lack, so that its window begins where they do.
    fn load(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        key: ChatKey,
        turns: std::ops::Range<usize>,
    ) {
        let Some(chat) = self.chats.get(&key) else { return };
        let all = &chat.conversation.state().turns;
        let action = ChatTurnsLoadedAction {
            turns: all.get(turns.clone()).unwrap_or_default().to_vec(),
            turns_next_cursor: cursor_before(key, all, turns.start),
        };
        let line = loading_line(&chat.channel.uri, action, self.told_head());
        step.say(Output::Frame(connection, Frame::Answer(line)));
        if let Some(subscription) = self.subscription_mut(connection, Target::Chat(key)) {
            subscription.window = Window::From(turns.start);
        }
    }

    /// Loads what clients lack of a chat and must have to apply an action that is about to be sequenced.
    pub(super) fn load_before(&mut self, step: &mut Step<'_>, target: Target, action: &StateAction) {
        let (Target::Chat(key), StateAction::ChatTruncated(ChatTruncatedAction { turn_id: Some(named) })) =
            (target, action)
        else {
            return;
        };
        let Some(chat) = self.chats.get(&key) else { return };
        let turns = &chat.conversation.state().turns;
        let (there, at) = (turns.len(), turns.iter().position(|turn| turn.id == *named));
        for connection in chat.channel.subscribers.clone() {
            match self.subscription(connection, target).map(|subscription| subscription.window) {
                Some(Window::From(start)) if at.is_some_and(|at| at < start) => {
                    self.load(step, connection, key, 0..start);
                }
                Some(Window::Unknown) => self.load(step, connection, key, 0..there),
                _ => {}
            }
        }
    }

    /// Takes note of what an action, just sequenced, leaves of windows: where no turn is left, every client
    /// holds all of them.
    pub(super) fn windows_after(&mut self, target: Target, action: &StateAction) {
        let (Target::Chat(key), StateAction::ChatTruncated(ChatTruncatedAction { turn_id: None })) =
            (target, action)
        else {
            return;
        };
        let subscribers = self.chats.get(&key).map(|chat| chat.channel.subscribers.clone());
        for connection in subscribers.unwrap_or_default() {
            if let Some(subscription) = self.subscription_mut(connection, target) {
                subscription.window = Window::From(0);
            }
        }
    }

    fn subscription(&self, connection: ConnectionId, target: Target) -> Option<&Subscription> {
        self.connections.get(&connection)?.subscriptions.get(&target)
    }

    fn subscription_mut(&mut self, connection: ConnectionId, target: Target) -> Option<&mut Subscription> {
        self.connections.get_mut(&connection)?.subscriptions.get_mut(&target)
    }

    /// What must be told of a chat within a replay, before which action of it, so that a client with any
    /// window can apply all of it; nothing in most replays. `actions` are those of the chat, in order.
    ///
    /// # Errors
    /// When a turn was changed that the client may lack: as it was before, nobody knows it any more.
    pub(super) fn loading_in_replay<'a>(
        &self,
        key: ChatKey,
        actions: impl Iterator<Item = &'a ActionLine> + Clone,
    ) -> Result<Option<Loading>, TurnIsLost> {
        let mut done = Replayed::default();
        let mut due = None;
        for line in actions.filter(|line| line.delta.is_none()) {
            let Some(named) = Naming::of(line) else { continue };
            if due.is_none() && done.may_lack(&named) {
                due = Some(line.server_seq);
            }
            done.note(named);
        }
        let Some(before) = due else { return Ok(None) };
        let Some(chat) = self.chats.get(&key) else { return Ok(None) };
        let turns = &chat.conversation.state().turns;
        let kept = turns.iter().take_while(|turn| !done.changed.contains(&turn.id)).count();
        // A turn that was there before, was cut down to, and then went on.
        let resumed = |turn: &Turn| done.resumed.contains(&turn.id) && !done.started.contains(&turn.id);
        let active = chat.conversation.state().active_turn.as_ref().map(|turn| &turn.id);
        let runs = active.is_some_and(|id| done.resumed.contains(id) && !done.started.contains(id));
        if runs || turns[kept..].iter().any(resumed) {
            return Err(TurnIsLost);
        }
        let action = ChatTurnsLoadedAction { turns: turns[..kept].to_vec(), turns_next_cursor: None };
        let line = loading_line(&chat.channel.uri, action, before.saturating_sub(1));
        Ok(Some(Loading { before, envelope: envelope_of(&line) }))
    }
}

/// A turn that a replay needs is not known any more as it was.
#[derive(Debug)]
pub(super) struct TurnIsLost;

/// An envelope that is no part of the log, in a replay.
#[derive(Debug)]
pub(super) struct Loading {
    /// The number of the action that it comes before.
    pub(super) before: u64,
    /// The envelope; JSON text.
    pub(super) envelope: bytes::Bytes,
}

/// What a replay has done to turns so far.
#[derive(Debug, Default)]
struct Replayed {
    /// Turns that began in it.
    started: HashSet<String>,
    /// Turns that went on in it.
    resumed: HashSet<String>,
    /// Turns that are other than they were before it: those, and the one that ran when it begins.
    changed: HashSet<String>,
    /// Nothing was left at some time: what follows is all in the replay.
    cleared: bool,
}

impl Replayed {
    /// Whether a client that holds some of the turns may lack the one that this names.
    fn may_lack(&self, named: &Naming) -> bool {
        match named {
            Naming::Cut(Some(id)) => !self.cleared && !self.changed.contains(id),
            _ => false,
        }
    }

    fn note(&mut self, named: Naming) {
        match named {
            Naming::Cut(Some(_)) => {}
            Naming::Cut(None) => self.cleared = true,
            Naming::Started(id) => {
                self.changed.insert(id.clone());
                self.started.insert(id);
            }
            Naming::Resumed(id) => {
                self.changed.insert(id.clone());
                self.resumed.insert(id);
            }
            Naming::Ended(id) => {
                self.changed.insert(id);
            }
        }
    }
}

/// What an action says of turns as a whole.
#[derive(Debug)]
enum Naming {
    Started(String),
    Resumed(String),
    Ended(String),
    Cut(Option<String>),
}

impl Naming {
    fn of(line: &ActionLine) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            action: Action<'a>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Action<'a> {
            r#type: &'a str,
            turn_id: Option<String>,
        }
        let envelope = envelope_of(&line.line);
        let Envelope { action } = serde_json::from_slice(&envelope).ok()?;
        Some(match action.r#type {
            "chat/turnStarted" => Self::Started(action.turn_id?),
            "chat/turnResume" => Self::Resumed(action.turn_id?),
            "chat/turnComplete" | "chat/turnCancelled" | "chat/error" => Self::Ended(action.turn_id?),
            "chat/truncated" => Self::Cut(action.turn_id),
            _ => return None,
        })
    }
}

/// The cursor of a window that begins at this turn: it names the turn before.
pub(super) fn cursor_before(ChatKey(number): ChatKey, turns: &[Turn], start: usize) -> Option<String> {
    let before = turns.get(start.checked_sub(1)?)?;
    Some(URL_SAFE_NO_PAD.encode(format!("{CURSOR_MARK}{number}:{}", before.id)))
}

/// The turn that a cursor of this chat names.
fn read_cursor(ChatKey(number): ChatKey, cursor: &str) -> Option<String> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (chat, turn) = text.strip_prefix(CURSOR_MARK)?.split_once(':')?;
    (chat.parse() == Ok(number)).then(|| turn.to_owned())
}

/// The actions of a replay by the chat that they are on.
pub(super) fn by_chat<'a>(
    actions: &[(Target, &'a ActionLine)],
) -> BTreeMap<ChatKey, Vec<&'a ActionLine>> {
    let mut chats: BTreeMap<ChatKey, Vec<&ActionLine>> = BTreeMap::new();
    for (target, line) in actions {
        if let Target::Chat(key) = target {
            chats.entry(*key).or_default().push(line);
        }
    }
    chats
}
