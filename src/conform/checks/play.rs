//! Random play: several clients change a session at once.
//!
//! Owns: the steps of a play, and how a play that breaks a law is made shorter.
//! Never: does anything that a seed does not repeat.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::subscriptions::title;
use crate::conform::bench::{decline, Bench, BenchSession, BenchSettings};
use crate::conform::client::{quoted, JudgeClient, ROOT};
use crate::conform::dice::Dice;
use crate::conform::stop::{must, CheckStop, Judged};

/// Number of steps of a play.
const STEPS: usize = 40;

/// Number of clients, where a host has several.
const CLIENTS: usize = 3;

/// Step of a play. Each is possible after any other one, so that steps can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlayStep {
    client: usize,
    kind: PlayKind,
    number: usize,
}

/// Kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlayKind {
    Title,
    Read,
    Archive,
    Draft,
    Start,
    Cancel,
    Queue,
    Unqueue,
    Impossible,
    Subscribe,
    Return,
    Compare,
}

/// Kinds of steps, the frequent ones more than once.
const KINDS: [PlayKind; 16] = [
    PlayKind::Title,
    PlayKind::Title,
    PlayKind::Read,
    PlayKind::Archive,
    PlayKind::Draft,
    PlayKind::Draft,
    PlayKind::Start,
    PlayKind::Start,
    PlayKind::Cancel,
    PlayKind::Queue,
    PlayKind::Unqueue,
    PlayKind::Impossible,
    PlayKind::Subscribe,
    PlayKind::Return,
    PlayKind::Compare,
    PlayKind::Compare,
];

/// Plays, and makes a play shorter that breaks a law.
pub fn judge(settings: &BenchSettings) -> (Judged<()>, Vec<String>) {
    let mut dice = Dice::new(settings.seed);
    for _ in 0..settings.rounds {
        let steps: Vec<PlayStep> = (0..STEPS).map(|_| step(&mut dice)).collect();
        let began = Instant::now();
        let (judged, transcripts) = play(settings, &steps);
        let Err(CheckStop::Broken(why)) = judged else {
            match judged {
                Ok(()) => continue,
                stopped => return (stopped, transcripts),
            }
        };
        return shortest(settings, steps, (why, transcripts), began.elapsed());
    }
    (Ok(()), Vec::new())
}

fn step(dice: &mut Dice) -> PlayStep {
    PlayStep { client: dice.below(CLIENTS), kind: KINDS[dice.below(KINDS.len())], number: dice.below(4) }
}

/// Leaves out steps as long as a law is broken, and time is left.
fn shortest(
    settings: &BenchSettings,
    mut steps: Vec<PlayStep>,
    mut found: (String, Vec<String>),
    took: Duration,
) -> (Judged<()>, Vec<String>) {
    let deadline = Instant::now() + settings.limit;
    // A shorter play takes less time, unless the host does not go on.
    let limit = settings.limit.min(took * 2 + Duration::from_secs(2));
    let quick = BenchSettings { limit, ..settings.clone() };
    // A shorter play may run out of time on a busy machine, which the long one has not shown.
    let was_late = took >= settings.limit;
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < steps.len() && Instant::now() < deadline {
            let mut fewer = steps.clone();
            fewer.drain(start..(start + size).min(steps.len()));
            let began = Instant::now();
            match play(&quick, &fewer) {
                (Err(CheckStop::Broken(why)), transcripts) if was_late || began.elapsed() < limit => {
                    (steps, found) = (fewer, (why, transcripts));
                }
                _ => start += size,
            }
        }
        size /= 2;
    }
    (Err(CheckStop::Broken(found.0)), found.1)
}

/// Plays these steps to a fresh host.
fn play(settings: &BenchSettings, steps: &[PlayStep]) -> (Judged<()>, Vec<String>) {
    match Bench::new(settings, false) {
        Ok(mut bench) => {
            let judged = carry_out(&mut bench, steps);
            (judged, bench.transcripts())
        }
        Err(error) => (Err(error.into()), Vec::new()),
    }
}

fn carry_out(bench: &mut Bench, steps: &[PlayStep]) -> Judged<()> {
    let count = if bench.settings.plan.has_several_clients() { CLIENTS } else { 1 };
    let mut first = bench.ready(&[ROOT])?;
    let session = bench.session(&mut first)?;
    let mut clients = vec![first];
    for _ in 1..count {
        let mut client = bench.ready(&[ROOT])?;
        client.must_subscribe(&session.uri)?;
        client.must_subscribe(&session.chat)?;
        clients.push(client);
    }
    for step in steps {
        let at = step.client % clients.len();
        take_step(bench, &mut clients[at], &session, *step)?;
    }
    finish(bench, &mut clients, &session)
}

fn take_step(
    bench: &mut Bench,
    client: &mut JudgeClient,
    session: &BenchSession,
    step: PlayStep,
) -> Judged<()> {
    match step.kind {
        PlayKind::Subscribe => {
            // Echoes that come meanwhile may be lost.
            settle(client)?;
            client.unsubscribe(&session.chat)?;
            client.must_subscribe(&session.chat)?;
        }
        PlayKind::Return if bench.settings.plan.has_several_clients() => {
            settle(client)?;
            let seen = client.channels.head;
            client.close()?;
            bench.return_client(client)?;
            if let Err(error) = client.reconnect(seen)? {
                return crate::conform::stop::broken(format!(
                    "`reconnect` is answered with {}",
                    quoted(&error.error)
                ));
            }
        }
        PlayKind::Return | PlayKind::Compare => {
            for channel in [&session.uri, &session.chat, &ROOT.to_owned()] {
                client.compare(channel)?;
            }
        }
        PlayKind::Start => {
            let agent = bench.agent(client)?;
            let action = bench.turn(&agent);
            client.dispatch(&session.chat, action)?;
        }
        _ => {
            let (channel, action) = action_of(bench, client, session, step);
            client.dispatch(channel, action)?;
        }
    }
    Ok(())
}

/// Returns the action that a step dispatches, and its channel.
fn action_of<'a>(
    bench: &Bench,
    client: &JudgeClient,
    session: &'a BenchSession,
    step: PlayStep,
) -> (&'a str, Value) {
    let flag = step.number.is_multiple_of(2);
    let message = |text: &str| json!({ "text": text, "origin": { "kind": "user" } });
    let id = format!("queued-{}", step.number);
    match step.kind {
        PlayKind::Title => (&session.uri, title(&format!("Title {}", step.number))),
        PlayKind::Read => (&session.uri, json!({ "type": "session/isReadChanged", "isRead": flag })),
        PlayKind::Archive => {
            (&session.uri, json!({ "type": "session/isArchivedChanged", "isArchived": flag }))
        }
        PlayKind::Draft if step.number > 0 => {
            let draft = message(&format!("Draft {}", step.number));
            (&session.chat, json!({ "type": "chat/draftChanged", "draft": draft }))
        }
        PlayKind::Draft => (&session.chat, json!({ "type": "chat/draftChanged" })),
        PlayKind::Cancel => {
            let state = client.state_of(&session.chat);
            let turn = state["activeTurn"]["id"].as_str().unwrap_or("conform-none");
            (&session.chat, json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": 0 }))
        }
        PlayKind::Queue => {
            let message = message(&bench.settings.prompt);
            let kind = "chat/pendingMessageSet";
            (&session.chat, json!({ "type": kind, "kind": "queued", "id": id, "message": message }))
        }
        PlayKind::Unqueue => {
            (&session.chat, json!({ "type": "chat/pendingMessageRemoved", "kind": "queued", "id": id }))
        }
        _ => {
            let action = json!({
                "type": "chat/toolCallConfirmed", "turnId": "conform-none", "toolCallId": "conform-none",
                "approved": false, "reason": "denied",
            });
            (&session.chat, action)
        }
    }
}

/// Waits until all actions of a client were answered.
fn settle(client: &mut JudgeClient) -> Judged<()> {
    while !client.pending.is_empty() {
        client.next("the echo or rejection of an action")?;
    }
    Ok(())
}

/// Waits until nothing runs, and compares all mirrors.
fn finish(bench: &mut Bench, clients: &mut [JudgeClient], session: &BenchSession) -> Judged<()> {
    for client in clients.iter_mut() {
        settle(client)?;
    }
    loop {
        let client = &mut clients[0];
        client.sync()?;
        while let Some(message) = client.take(|message| message["method"] == "action") {
            decline(client, &session.chat, &message)?;
        }
        let state = client.state_of(&session.chat);
        let waits = state["queuedMessages"].as_array().is_some_and(|queue| !queue.is_empty());
        if !client.channels.is_running(&session.chat) && !waits {
            break;
        }
        let pending = if waits { &state["queuedMessages"] } else { &state["activeTurn"] };
        must!(
            Instant::now() < bench.deadline,
            "a turn has not ended in time, or a queued message waits for none: {}",
            quoted(pending)
        );
    }
    let mut all: BTreeMap<i64, Value> = BTreeMap::new();
    for client in clients.iter_mut() {
        client.sync()?;
        settle(client)?;
        for channel in [&session.uri, &session.chat, &ROOT.to_owned()] {
            client.compare(channel)?;
        }
        for (seq, action) in &client.channels.actions {
            let known = all.entry(*seq).or_insert_with(|| action.clone());
            must!(
                known == action,
                "the number {seq} is that of two actions: {} and {}",
                quoted(known),
                quoted(action)
            );
        }
    }
    Ok(())
}
