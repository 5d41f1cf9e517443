//! History of all sequenced actions in all lives of the host, as far as the driver received them.
//!
//! Owns: that no number means two things, that turns begin and end as they must, and that a host
//! which was asked for nothing does nothing but end what was interrupted.
//! Never: keeps states.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::actions::{ActionEnvelope, StateAction};
use serde_json::Value;

/// Number of sequence numbers reserved at once: each life of a host begins with the next block.
pub const BLOCK: u64 = 1 << 20;

/// Actions that a host may emit on its own for interrupted turns.
const RECOVERY: &[&str] = &[
    "chat/activityChanged",
    "chat/error",
    "chat/inputCompleted",
    "chat/isReadChanged",
    // A steering message that the agent had not accepted.
    "chat/pendingMessageSet",
    "chat/queuedMessagesReordered",
    "chat/toolCallComplete",
    "chat/toolCallConfirmed",
    "chat/toolCallReady",
    "chat/toolCallResultConfirmed",
    "session/chatUpdated",
    "session/inputNeededRemoved",
    "session/inputNeededSet",
    "session/isReadChanged",
    "session/ready",
];

/// Actions after which the queue of a chat continues after a restart.
const RELEASES: &[&str] =
    &["chat/pendingMessageSet", "chat/truncated", "chat/turnResume", "chat/turnStarted"];

/// The kind of error that an interrupted turn ends with.
const INTERRUPTED: &str = "interrupted";

#[derive(Debug, Default)]
pub struct History {
    seen: BTreeMap<u64, (String, Value)>,
    /// Lives in which the driver asked for changes.
    asked_in: BTreeSet<u64>,
    /// Chats on which the driver asked for something that lets the queue go on, with the life.
    released: BTreeSet<(u64, String)>,
    chats: BTreeMap<String, Turns>,
    /// Whoever does the work can go on with whatever was interrupted.
    always_resumes: bool,
    pub counts: Counts,
}

/// Counters that prove that the schedules exercised the host.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub kills: usize,
    pub interrupted: usize,
    pub resumed: usize,
    pub completed: usize,
    pub started_again: usize,
    pub replays: usize,
    pub snapshots: usize,
    pub lagging: usize,
    /// Number of prompts that the agent program received.
    pub prompts: usize,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.interrupted += other.interrupted;
        self.resumed += other.resumed;
        self.completed += other.completed;
        self.started_again += other.started_again;
        self.replays += other.replays;
        self.snapshots += other.snapshots;
        self.lagging += other.lagging;
        self.prompts += other.prompts;
    }
}

/// The turns of a chat.
#[derive(Debug, Default)]
struct Turns {
    known: BTreeSet<String>,
    running: Option<String>,
    /// Number up to which actions are not known individually.
    told_up_to: u64,
}

/// Tells whether an envelope only delivers older turns, which is no change and has no number of its
/// own.
pub fn loads(envelope: &ActionEnvelope) -> bool {
    matches!(envelope.action, StateAction::ChatTurnsLoaded(_))
}

impl History {
    pub fn new(always_resumes: bool) -> Self {
        Self { always_resumes, ..Self::default() }
    }

    pub fn life_of(number: u64) -> u64 {
        number / BLOCK
    }

    pub fn asks_in(&mut self, life: u64) {
        self.asked_in.insert(life);
    }

    /// Takes note of what is asked for in this life.
    pub fn asks(&mut self, life: u64, channel: &str, action: &Value) {
        if action["type"].as_str().is_some_and(|kind| RELEASES.contains(&kind)) {
            self.released.insert((life, channel.to_owned()));
        }
    }

    /// A chat's turns are not known one by one up to this number.
    pub fn skip(&mut self, chat: &str, up_to: u64, running: Option<&str>, known: Vec<String>) {
        let turns = self.chats.entry(chat.to_owned()).or_default();
        turns.told_up_to = up_to;
        turns.running = running.map(str::to_owned);
        turns.known.extend(known);
    }

    /// Every turn id that was ever taken in this chat.
    pub fn turn_ids(&self, chat: &str) -> Vec<String> {
        self.chats.get(chat).map(|turns| turns.known.iter().cloned().collect()).unwrap_or_default()
    }

    /// Numbers that were seen, the newest last.
    pub fn numbers_after(&self, number: u64) -> Vec<u64> {
        self.seen.range(number + 1..).map(|(number, _)| *number).collect()
    }

    /// Tells whether the action of this number was on one of these channels.
    pub fn is_on(&self, number: u64, channels: &BTreeSet<String>) -> bool {
        self.seen.get(&number).is_some_and(|(channel, _)| channels.contains(channel))
    }

    /// Takes note of an action that was sequenced.
    pub fn see(&mut self, envelope: &ActionEnvelope) {
        let action = serde_json::to_value(&envelope.action).unwrap();
        let number = envelope.server_seq;
        // What is loaded is no change: it comes with the number of the last one.
        if loads(envelope) {
            assert!(envelope.origin.is_none(), "somebody's: {envelope:?}");
            return;
        }
        if let Some((channel, before)) = self.seen.get(&number) {
            assert!(
                *channel == envelope.channel && same(before, &action),
                "{number} meant {before} on {channel}, and now {action} on {}",
                envelope.channel
            );
            return;
        }
        self.seen.insert(number, (envelope.channel.clone(), action.clone()));
        if !self.asked_in.contains(&Self::life_of(number)) {
            let kind = action["type"].as_str().unwrap();
            let by_itself = envelope.origin.is_none() && RECOVERY.contains(&kind);
            assert!(by_itself && action["isRead"] != true, "nobody has asked for {envelope:?}");
        }
        if action["type"] == "chat/turnStarted" && envelope.origin.is_none() {
            let asked = (Self::life_of(number), envelope.channel.clone());
            assert!(self.released.contains(&asked), "the queue went on by itself: {envelope:?}");
        }
        self.follow_turns(envelope);
    }

    fn follow_turns(&mut self, envelope: &ActionEnvelope) {
        let turns = self.chats.entry(envelope.channel.clone()).or_default();
        if envelope.server_seq <= turns.told_up_to {
            return;
        }
        turns.told_up_to = envelope.server_seq;
        let mut ends = |id: &String| {
            assert_eq!(turns.running.take().as_ref(), Some(id), "what ends does not run: {envelope:?}");
        };
        match &envelope.action {
            StateAction::ChatTurnStarted(a) => {
                assert_eq!(turns.running, None, "two turns at once: {envelope:?}");
                assert!(turns.known.insert(a.turn_id.clone()), "a turn ran twice: {envelope:?}");
                turns.running = Some(a.turn_id.clone());
            }
            StateAction::ChatTurnResume(a) => {
                assert_eq!(turns.running, None, "two turns at once: {envelope:?}");
                turns.running = Some(a.turn_id.clone());
                self.counts.resumed += 1;
            }
            StateAction::ChatTurnComplete(a) => {
                ends(&a.turn_id);
                self.counts.completed += 1;
            }
            StateAction::ChatTurnCancelled(a) => ends(&a.turn_id),
            StateAction::ChatError(a) => {
                ends(&a.turn_id);
                if a.part.error.error_type == INTERRUPTED {
                    assert!(a.part.resumable == Some(true) || !self.always_resumes, "{envelope:?}");
                    self.counts.interrupted += 1;
                }
            }
            _ => {}
        }
    }
}

fn is_text(action: &Value) -> bool {
    action["type"] == "chat/delta"
}

/// Tells whether two actions are equal: a piece of text may be the end of a longer one with its
/// number.
fn same(one: &Value, other: &Value) -> bool {
    if !(is_text(one) && is_text(other)) {
        return one == other;
    }
    let text = |action: &Value| action["content"].as_str().unwrap().to_owned();
    let (a, b) = (text(one), text(other));
    one["turnId"] == other["turnId"]
        && one["partId"] == other["partId"]
        && (a.ends_with(&b) || b.ends_with(&a))
}
