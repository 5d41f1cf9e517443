//! Actions and turns.
//!
//! Owns: the laws of echoes and rejections, and of what a turn leaves.
//! Never: depends on what an agent says.

use std::time::Instant;

use serde_json::json;

use super::subscriptions::title;
use crate::conform::bench::{decline, Bench, ENDINGS};
use crate::conform::client::{is_action, quoted, JudgeClient, ROOT};
use crate::conform::stop::{broken, must, not_offered, Judged};

pub fn origin(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let mut other = bench.other(&session.uri)?;
    let seq = client.dispatch(&session.uri, title("Mine"))?;
    let echo = client
        .wait_for("the new title", |message| is_action(message, &session.uri, "session/titleChanged"))?;
    let expected = json!({ "clientId": client.id, "clientSeq": seq });
    let origin = &echo["params"]["origin"];
    must!(*origin == expected, "the origin of the echo is {origin}, not {expected}");
    if let Some(other) = &mut other {
        let heard = other.wait_for("the action of another client", |message| {
            is_action(message, &session.uri, "session/titleChanged")
        })?;
        must!(
            heard["params"] == echo["params"],
            "two clients got one action differently: {} and {}",
            quoted(&echo["params"]),
            quoted(&heard["params"])
        );
    }
    Ok(())
}

pub fn own(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    bench.run_turn(&mut client, &session)?;
    let foreign = client.channels.actions.values().find(|action| {
        let is_of_host = action["action"]["type"].as_str().is_some_and(|kind| {
            ["chat/delta", "chat/responsePart", "chat/turnComplete", "chat/error"].contains(&kind)
        });
        is_of_host && action.get("origin").is_some()
    });
    must!(
        foreign.is_none(),
        "an action of the host has an origin: {}",
        quoted(foreign.unwrap_or(&json!(null)))
    );
    Ok(())
}

/// Waits until an action of a client was answered; returns whether it was accepted.
fn is_accepted(client: &mut JudgeClient, channel: &str, action: serde_json::Value) -> Judged<bool> {
    let before = client.channels.head;
    let seq = client.dispatch(channel, action)?;
    client.sync()?;
    client.sync()?;
    let id = client.id.clone();
    let answer = client.take(|message| crate::conform::client::is_echo(message, &id, seq));
    Ok(answer.is_some_and(|answer| answer["params"].get("rejectionReason").is_none())
        && client.channels.head > before)
}

pub fn rejected(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let mut other = bench.other(&session.chat)?;
    let cancel = json!({ "type": "chat/turnCancelled", "turnId": "conform-none", "duration": 0 });
    let echo = client.dispatch_and_wait(&session.chat, cancel)?;
    must!(
        echo["params"]["rejectionReason"].is_string(),
        "a turn that does not run is cancelled: {}",
        quoted(&echo["params"])
    );
    client.compare(&session.chat)?;
    if let Some(other) = &mut other {
        // A rejection that comes to another client ends the check.
        other.sync()?;
        other.sync()?;
        other.compare(&session.chat)?;
    }
    Ok(())
}

pub fn server_only(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let ready = json!({ "type": "session/creationFailed", "error": { "errorType": "x", "message": "x" } });
    let accepted = is_accepted(&mut client, &session.uri, ready)?;
    must!(!accepted, "`session/creationFailed` is accepted from a client");
    client.compare(&session.uri)?;
    let removed = json!({ "type": "session/chatRemoved", "chat": session.chat });
    let accepted = is_accepted(&mut client, &session.uri, removed)?;
    must!(!accepted, "`session/chatRemoved` is accepted from a client");
    client.compare(&session.uri)
}

pub fn unknown_channel(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let draft =
        json!({ "type": "chat/draftChanged", "draft": { "text": "x", "origin": { "kind": "user" } } });
    for channel in ["ahp-chat:/conform-none", "ahp-session:/conform-none", "conform:none"] {
        let accepted = is_accepted(&mut client, channel, draft.clone())?;
        must!(!accepted, "an action on `{channel}`, which does not exist, is accepted");
    }
    client.must_subscribe(ROOT)?;
    Ok(())
}

/// Checks that no second ending of a turn has come, and that the chat has the turn, ended.
fn ended_once(client: &mut JudgeClient, chat: &str, turn: &str) -> Judged<()> {
    client.sync()?;
    client.sync()?;
    let again = client.take(|message| {
        ENDINGS.iter().any(|kind| is_action(message, chat, kind))
            && message["params"]["action"]["turnId"] == turn
    });
    let again = again.filter(|message| message["params"].get("rejectionReason").is_none());
    must!(again.is_none(), "a turn has ended twice: {}", quoted(&again.unwrap_or_default()));
    let state = client.state_of(chat);
    must!(state["activeTurn"]["id"] != turn, "the turn `{turn}` runs after its end");
    let is_there = state["turns"].as_array().is_some_and(|turns| turns.iter().any(|it| it["id"] == turn));
    must!(is_there, "the chat lacks the turn `{turn}` after its end");
    client.compare(chat)
}

pub fn turn(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    for _ in 0..2 {
        let turn = bench.run_turn(&mut client, &session)?;
        ended_once(&mut client, &session.chat, &turn)?;
    }
    client.compare(&session.uri)
}

pub fn cancel(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let agent = bench.agent(&mut client)?;
    let action = bench.turn(&agent);
    let turn = action["turnId"].as_str().unwrap_or_default().to_owned();
    client.dispatch(&session.chat, action)?;
    client.dispatch(&session.chat, json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": 0 }))?;
    let started = client.wait_for("the beginning of the turn", |message| {
        is_action(message, &session.chat, "chat/turnStarted") && message["params"]["action"]["turnId"] == turn
    })?;
    if let Some(reason) = started["params"]["rejectionReason"].as_str() {
        return not_offered(format!("the agent takes no turn: {reason}"));
    }
    loop {
        let message = client.next("the end of the turn")?;
        must!(Instant::now() < bench.deadline, "the turn has not ended in time");
        let is_rejected = message["params"].get("rejectionReason").is_some();
        let is_of_turn = message["params"]["action"]["turnId"] == turn;
        if is_of_turn && !is_rejected && ENDINGS.iter().any(|kind| is_action(&message, &session.chat, kind)) {
            break;
        }
        decline(&mut client, &session.chat, &message)?;
    }
    ended_once(&mut client, &session.chat, &turn)
}

pub fn window(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    for _ in 0..3 {
        bench.run_turn(&mut client, &session)?;
    }
    let all = client.must_subscribe(&session.chat)?["state"]["turns"].clone();
    let params = json!({ "channel": session.chat, "view": { "turns": 1 } });
    let answer = client.must_ask("subscribe", params)?;
    let Some(cursor) = answer["snapshot"]["state"]["turnsNextCursor"].as_str() else {
        return not_offered("a snapshot has all turns, whatever `view` says");
    };
    let (mut cursor, mut turns) = (json!(cursor), answer["snapshot"]["state"]["turns"].clone());
    while !cursor.is_null() {
        let params = json!({ "channel": session.chat, "cursor": cursor });
        let (id, request) = client.prepare("fetchTurns", params);
        client.say(&request)?;
        let loaded = client.wait_for("`chat/turnsLoaded`", |message| {
            is_action(message, &session.chat, "chat/turnsLoaded")
        })?;
        if let Err(error) = client.answer_to(&json!(id))? {
            return broken(format!("`fetchTurns` is answered with {}", quoted(&error.error)));
        }
        let action = &loaded["params"]["action"];
        let older = action["turns"].as_array().cloned().unwrap_or_default();
        must!(!older.is_empty(), "a cursor loads no turn");
        let newer = turns.as_array().cloned().unwrap_or_default();
        turns = older.into_iter().chain(newer).collect();
        cursor = action["turnsNextCursor"].clone();
        must!(Instant::now() < bench.deadline, "the turns have no end");
    }
    must!(turns == all, "the loaded turns are {}, not {}", quoted(&turns), quoted(&all));
    Ok(())
}

pub fn second_chat(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let agent = bench.agent(&mut client)?;
    if agent["capabilities"].get("multipleChats").is_none() {
        return not_offered("the agent has one chat per session");
    }
    let chat = format!("ahp-chat:/conform-{}", uuid::Uuid::new_v4().simple());
    client.must_ask("createChat", json!({ "channel": session.uri, "chat": chat }))?;
    client.wait_for("`session/chatAdded`", |message| {
        is_action(message, &session.uri, "session/chatAdded")
            && message["params"]["action"]["summary"]["resource"] == chat
    })?;
    client.must_subscribe(&chat)?;
    client.compare(&session.uri)?;
    client.must_ask("disposeChat", json!({ "channel": chat }))?;
    client.wait_for("`session/chatRemoved`", |message| {
        is_action(message, &session.uri, "session/chatRemoved") && message["params"]["action"]["chat"] == chat
    })?;
    client.channels.mirrors.remove(&chat);
    super::subscriptions::must_be_unknown(&mut client, &chat)?;
    client.compare(&session.uri)
}
