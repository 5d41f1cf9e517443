//! The state as the records tell it: the first snapshot of each channel, and every action since.
//!
//! Owns: what a store would know, and from it what there is for a schedule to name; and the law
//! that each turn ends exactly once.
//! Never: looks into the host. It is compared with fresh snapshots like every other mirror.

use std::collections::{BTreeMap, HashSet};

use ahp::reducers::ReduceOutcome;
use ahp_sidecar::conform::mirror::ChannelMirror;
use ahp_sidecar::wire::annotations::annotations_uri;
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::state::{
    ActiveTurn, Annotation, ChatState, InputRequestResponsePart, ResponsePart, SessionState, SnapshotState,
    ToolCallState,
};
use anyhow::{bail, ensure, Context, Result};

#[derive(Debug, Default)]
pub struct Truth {
    pub channels: BTreeMap<String, ChannelMirror>,
    /// The sessions, in the order in which they came into being.
    pub sessions: Vec<String>,
    /// The chats, likewise.
    pub in_order: Vec<String>,
    turns: BTreeMap<String, Turns>,
    pub head: i64,
}

/// The turns of one chat.
#[derive(Debug, Default)]
struct Turns {
    active: Option<String>,
    started: HashSet<String>,
}

impl Truth {
    /// Takes in an action of the sequence.
    pub fn act(&mut self, envelope: &ActionEnvelope) -> Result<()> {
        let seq = i64::try_from(envelope.server_seq)?;
        ensure!(seq == self.head + 1, "{seq} follows {}", self.head);
        self.head = seq;
        // A channel that has just come into being is taken up by snapshot when its step is over.
        if let Some(held) = self.channels.get_mut(&envelope.channel) {
            let outcome = held.apply(envelope)?;
            ensure!(outcome == Some(ReduceOutcome::Applied), "{outcome:?} by {:?}", envelope.action);
        }
        let turns = self.turns.entry(envelope.channel.clone()).or_default();
        turns.act(&envelope.action).with_context(|| format!("on {}", envelope.channel))
    }

    /// The session that lists a chat.
    pub fn session_of(&self, chat: &str) -> Option<&str> {
        let lists = |session: &&String| {
            self.session(session).is_some_and(|state| state.chats.iter().any(|row| row.resource == chat))
        };
        self.sessions.iter().find(lists).map(String::as_str)
    }

    pub fn session(&self, uri: &str) -> Option<&SessionState> {
        match &self.channels.get(uri)?.state {
            SnapshotState::Session(session) => Some(session),
            _ => None,
        }
    }

    pub fn chat(&self, uri: &str) -> Option<&ChatState> {
        match &self.channels.get(uri)?.state {
            SnapshotState::Chat(chat) => Some(chat),
            _ => None,
        }
    }

    /// Takes up a session, its annotations or a chat that is new.
    pub fn add(&mut self, uri: String, held: ChannelMirror) {
        match &held.state {
            SnapshotState::Session(_) => self.sessions.push(uri.clone()),
            SnapshotState::Chat(_) => self.in_order.push(uri.clone()),
            _ => {}
        }
        self.channels.insert(uri, held);
    }

    /// A session or a chat is gone.
    pub fn remove(&mut self, gone: &str) -> Result<()> {
        self.sessions.retain(|known| known != gone);
        self.in_order.retain(|known| known != gone);
        self.channels.remove(gone).with_context(|| format!("{gone} was not known"))?;
        let turns = self.turns.remove(gone).unwrap_or_default();
        ensure!(turns.active.is_none(), "{gone} is gone while a turn runs");
        Ok(())
    }

    /// The annotations of a session.
    pub fn annotations(&self, session: &str) -> &[Annotation] {
        match self.channels.get(&annotations_uri(session)).map(|held| &held.state) {
            Some(SnapshotState::Annotations(state)) => &state.annotations,
            _ => &[],
        }
    }

    pub fn chats(&self) -> impl Iterator<Item = (&str, &ChatState)> {
        self.channels.iter().filter_map(|(uri, held)| match &held.state {
            SnapshotState::Chat(state) => Some((uri.as_str(), &**state)),
            _ => None,
        })
    }

    /// Checks that no turn is running.
    pub fn check_all_ended(&self) -> Result<()> {
        let running = self.turns.iter().find(|(_, turns)| turns.active.is_some());
        ensure!(running.is_none(), "a turn never ended: {running:?}");
        Ok(())
    }
}

impl Turns {
    fn act(&mut self, action: &StateAction) -> Result<()> {
        let ended = match action {
            StateAction::ChatTurnStarted(a) => {
                ensure!(self.active.is_none(), "{} starts while {:?} runs", a.turn_id, self.active);
                ensure!(self.started.insert(a.turn_id.clone()), "{} runs twice", a.turn_id);
                self.active = Some(a.turn_id.clone());
                return Ok(());
            }
            StateAction::ChatTurnResume(a) => {
                ensure!(self.active.is_none(), "{} resumes while {:?} runs", a.turn_id, self.active);
                self.active = Some(a.turn_id.clone());
                return Ok(());
            }
            StateAction::ChatTurnComplete(a) => &a.turn_id,
            StateAction::ChatTurnCancelled(a) => &a.turn_id,
            StateAction::ChatError(a) => &a.turn_id,
            StateAction::ChatTruncated(_) if self.active.is_some() => bail!("truncated under a running turn"),
            _ => return Ok(()),
        };
        ensure!(self.active.as_ref() == Some(ended), "{ended} ended while {:?} runs", self.active);
        self.active = None;
        Ok(())
    }
}

/// The tool calls of a turn.
pub fn calls(turn: &ActiveTurn) -> impl Iterator<Item = &ToolCallState> {
    turn.response_parts.iter().filter_map(|part| match part {
        ResponsePart::ToolCall(part) => Some(&part.tool_call),
        _ => None,
    })
}

/// The open questions of a turn.
pub fn questions(turn: &ActiveTurn) -> impl Iterator<Item = &InputRequestResponsePart> {
    turn.response_parts.iter().filter_map(|part| match part {
        ResponsePart::InputRequest(part) if part.response.is_none() => Some(part),
        _ => None,
    })
}
