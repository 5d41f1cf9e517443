//! Channels and subscriptions.
//!
//! Owns: the laws of `subscribe` and `unsubscribe`, and of what comes to whom.
//! Never: judges what channels contain.

use ahp_types::errors::ahp_error_codes::{NOT_FOUND, SESSION_NOT_FOUND};
use serde_json::{json, Value};

use super::changes::{use_annotations, use_changesets};
use super::files::use_watch;
use super::terminals::use_terminal;
use crate::conform::bench::Bench;
use crate::conform::client::{is_action, quoted, JudgeClient, ROOT};
use crate::conform::stop::{broken, must, CheckStop, Judged};

/// Action that changes the title of a session.
pub const TITLE: &str = "session/titleChanged";

/// Returns the action that gives a session a title.
pub fn title(text: &str) -> Value {
    json!({ "type": TITLE, "title": text })
}

pub fn subscribe(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let snapshot = client.must_subscribe(ROOT)?;
    must!(snapshot["fromSeq"].is_u64(), "`fromSeq` is no number: {}", quoted(&snapshot["fromSeq"]));
    must!(snapshot["state"]["agents"].is_array(), "the root state lacks `agents`");
    Ok(())
}

/// Checks that a channel does not exist.
pub fn must_be_unknown(client: &mut JudgeClient, channel: &str) -> Judged<()> {
    match client.subscribe(channel)? {
        Err(error) if [NOT_FOUND, SESSION_NOT_FOUND].map(i64::from).contains(&error.code) => Ok(()),
        Err(error) => {
            let error = quoted(&error.error);
            broken(format!(
                "`{channel}`, which does not exist, is not answered with -32001 or -32008: {error}"
            ))
        }
        Ok(_) => broken(format!("`{channel}`, which does not exist, can be subscribed to")),
    }
}

pub fn unknown(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    for channel in ["ahp-session:/conform-none", "ahp-chat:/conform-none"] {
        must_be_unknown(&mut client, channel)?;
    }
    client.sync()
}

pub fn twice(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    client.must_subscribe(&session.uri)?;
    client.change(&session.uri, title("Once"))?;
    client.sync()?;
    client.sync()?;
    let again = client.take(|message| is_action(message, &session.uri, TITLE));
    must!(again.is_none(), "an action came twice: {}", quoted(&again.unwrap_or_default()));
    client.compare(&session.uri)
}

pub fn fresh(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    for text in ["First", "Second"] {
        client.change(&session.uri, title(text))?;
        let snapshot = client.must_subscribe(&session.uri)?;
        must!(
            snapshot["state"]["title"] == text,
            "the snapshot has the title {} after `{text}` was acknowledged",
            snapshot["state"]["title"]
        );
    }
    Ok(())
}

pub fn numbers(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let mut last = -1;
    for text in ["First", "Second", "Third"] {
        let snapshot = client.must_subscribe(&session.uri)?;
        let from = snapshot["fromSeq"].as_i64().unwrap_or_default();
        must!(from >= last, "the snapshot is of {from}, after the action {last}");
        let echo = client.change(&session.uri, title(text))?;
        last = echo["params"]["serverSeq"].as_i64().unwrap_or_default();
        must!(last > from, "an action after the snapshot of {from} has the number {last}");
    }
    Ok(())
}

pub fn unsubscribe(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    client.unsubscribe(&session.uri)?;
    client.sync()?;
    client.dispatch(&session.uri, title("Unheard"))?;
    client.sync()?;
    client.sync()?;
    let heard = client.take(|message| is_action(message, &session.uri, TITLE));
    // A host may reject what a client does not follow.
    let heard = heard.filter(|message| message["params"].get("rejectionReason").is_none());
    must!(heard.is_none(), "an action came after `unsubscribe`: {}", quoted(&heard.unwrap_or_default()));
    // That no other action comes is a law of each message.
    client.unsubscribe(&session.chat)?;
    client.sync()?;
    let agent = bench.agent(&mut client)?;
    client.dispatch(&session.chat, bench.turn(&agent))?;
    client.sync()?;
    client.sync()
}

pub fn alone(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let mut other = bench.ready(&[ROOT])?;
    client.change(&session.uri, title("Private"))?;
    other.sync()?;
    other.sync()?;
    let heard = other.take(|message| message["params"]["channel"] == session.uri);
    must!(
        heard.is_none(),
        "a client that does not follow `{}` got {}",
        session.uri,
        quoted(&heard.unwrap_or_default())
    );
    // That no other action comes is a law of each message.
    bench.run_turn(&mut client, &session)?;
    other.sync()?;
    other.sync()
}

pub fn none(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[ROOT])?;
    let mut none = bench.ready(&[])?;
    let mut gone = bench.ready(&[ROOT])?;
    gone.unsubscribe(ROOT)?;
    gone.sync()?;
    while gone.take(|message| message.get("method").is_some()).is_some() {}
    let session = bench.session(&mut client)?;
    client.change(&session.uri, title("Private"))?;
    let done = [
        use_annotations(bench, &mut client, &session),
        use_changesets(bench, &mut client, &session),
        use_watch(bench, &mut client),
        use_terminal(bench, &mut client),
    ];
    for used in done {
        match used {
            Err(CheckStop::NotOffered(_)) => {}
            used => used?,
        }
    }
    client.must_ask("disposeSession", json!({ "channel": session.uri }))?;
    for other in [&mut none, &mut gone] {
        other.sync()?;
        other.sync()?;
        // That no action comes is a law of each message.
        let heard = other.take(|message| {
            let is_personal =
                ["auth/required", "root/progress"].iter().any(|method| message["method"] == *method);
            let channel = message["params"]["channel"].as_str().unwrap_or_default();
            message.get("method").is_some() && !is_personal && client.channels.follows(channel)
        });
        must!(heard.is_none(), "a client that follows nothing got {}", quoted(&heard.unwrap_or_default()));
    }
    Ok(())
}
