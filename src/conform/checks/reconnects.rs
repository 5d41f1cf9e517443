//! Reconnecting, also after the host was killed.
//!
//! Owns: the laws of `reconnect`.
//! Never: depends on whether a host replays or sends snapshots.

use serde_json::{json, Value};

use super::subscriptions::title;
use crate::conform::bench::{Bench, BenchSession};
use crate::conform::client::{is_action, quoted, HostAnswer, JudgeClient, ROOT};
use crate::conform::stop::{broken, must, not_offered, Judged};

/// Number that no host reaches.
const FAR: i64 = 1_000_000_000;

/// Returns the result of a `reconnect` that must succeed.
fn succeeded(answer: HostAnswer) -> Judged<Value> {
    answer.or_else(|error| broken(format!("`reconnect` is answered with {}", quoted(&error.error))))
}

/// Returns a client with a session, and another client that stays.
fn two_clients(bench: &mut Bench) -> Judged<(JudgeClient, JudgeClient, BenchSession)> {
    let mut stays = bench.ready(&[])?;
    let session = bench.session(&mut stays)?;
    let mut leaves = bench.ready(&[])?;
    leaves.must_subscribe(&session.uri)?;
    leaves.must_subscribe(&session.chat)?;
    Ok((stays, leaves, session))
}

pub fn unknown(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    match client.reconnect(FAR)? {
        Err(_) => {
            client.initialize(&bench.settings.versions.clone(), &[])?;
            client.sync()
        }
        Ok(result) => {
            must!(result["type"] == "snapshot", "a client that was never connected gets {}", quoted(&result));
            client.sync()
        }
    }
}

pub fn replay(bench: &mut Bench) -> Judged<()> {
    let (mut stays, mut leaves, session) = two_clients(bench)?;
    let seen = leaves.channels.head;
    leaves.close()?;
    for text in ["Missed", "Missed again"] {
        stays.change(&session.uri, title(text))?;
    }
    bench.return_client(&mut leaves)?;
    succeeded(leaves.reconnect(seen)?)?;
    let shown = leaves.state_of(&session.uri)["title"].clone();
    must!(
        shown == "Missed again",
        "after `reconnect` the client has the title {shown}, not \"Missed again\""
    );
    leaves.compare(&session.uri)?;
    leaves.compare(&session.chat)
}

pub fn missing(bench: &mut Bench) -> Judged<()> {
    let (mut stays, mut leaves, session) = two_clients(bench)?;
    let kept = bench.session(&mut stays)?;
    leaves.must_subscribe(&kept.uri)?;
    let seen = leaves.channels.head;
    leaves.close()?;
    stays.must_ask("disposeSession", json!({ "channel": session.uri }))?;
    bench.return_client(&mut leaves)?;
    let result = succeeded(leaves.reconnect(seen)?)?;
    if result["type"] == "replay" {
        let missing = result["missing"].as_array().cloned().unwrap_or_default();
        must!(
            missing.iter().any(|channel| *channel == session.uri),
            "`missing` lacks `{}`, which was disposed of: {}",
            session.uri,
            quoted(&result["missing"])
        );
    }
    must!(
        !leaves.channels.mirrors.contains_key(&session.uri),
        "a session that was disposed of has a snapshot"
    );
    must!(leaves.channels.mirrors.contains_key(&kept.uri), "`{}`, which exists, is missing", kept.uri);
    leaves.compare(&kept.uri)
}

pub fn beyond(bench: &mut Bench) -> Judged<()> {
    let (mut stays, mut leaves, session) = two_clients(bench)?;
    leaves.close()?;
    stays.change(&session.uri, title("Missed"))?;
    bench.return_client(&mut leaves)?;
    let result = succeeded(leaves.reconnect(FAR)?)?;
    must!(
        result["type"] == "snapshot",
        "the host cannot replay from {FAR}, which it has not reached, and answers {}",
        quoted(&result)
    );
    leaves.compare(&session.uri)
}

pub fn goes_on(bench: &mut Bench) -> Judged<()> {
    let (mut stays, mut leaves, session) = two_clients(bench)?;
    let seen = leaves.channels.head;
    leaves.close()?;
    bench.return_client(&mut leaves)?;
    succeeded(leaves.reconnect(seen)?)?;
    stays.change(&session.uri, title("Heard"))?;
    leaves.wait_for("an action after `reconnect`", |message| {
        is_action(message, &session.uri, "session/titleChanged")
    })?;
    leaves.change(&session.uri, title("Said"))?;
    leaves.compare(&session.uri)
}

pub fn killed(bench: &mut Bench) -> Judged<()> {
    if !bench.settings.plan.keeps_state() {
        return not_offered("nothing says that the host keeps its sessions: name `{state}` in its command, or say `--keeps-state`");
    }
    let mut client = bench.ready(&[ROOT])?;
    let session = bench.session(&mut client)?;
    // A host need not keep a session in which nothing was said.
    bench.run_turn(&mut client, &session)?;
    let echo = client.change(&session.uri, title("Kept"))?;
    client.compare(&session.chat)?;
    let turns = client.state_of(&session.chat)["turns"].clone();
    let (head, seen) = (client.channels.head, echo["params"]["serverSeq"].as_i64().unwrap_or_default());
    bench.kill_and_return(&mut client)?;
    match client.reconnect(seen)? {
        Ok(_) => {}
        Err(_) => {
            client.channels.mirrors.clear();
            client.initialize(&bench.settings.versions.clone(), &[])?;
        }
    }
    client.must_subscribe(&session.uri)?;
    client.must_subscribe(&session.chat)?;
    let state = client.state_of(&session.uri);
    must!(state["title"] == "Kept", "the title is {} after the host was killed", state["title"]);
    let kept = client.state_of(&session.chat)["turns"].clone();
    must!(
        kept == turns,
        "the turns are {} after the host was killed, and were {}",
        quoted(&kept),
        quoted(&turns)
    );
    let echo = client.change(&session.uri, title("Changed"))?;
    let next = echo["params"]["serverSeq"].as_i64().unwrap_or_default();
    must!(next > head, "an action has the number {next}, after {head} before the host was killed");
    Ok(())
}
