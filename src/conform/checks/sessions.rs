//! Root channel and session channel.
//!
//! Owns: the laws of agents, and of the beginning and end of sessions.
//! Never: runs a turn.

use ahp_types::errors::ahp_error_codes::{PROVIDER_NOT_FOUND, SESSION_ALREADY_EXISTS};
use serde_json::json;

use super::subscriptions::{must_be_unknown, title};
use crate::conform::bench::Bench;
use crate::conform::client::{quoted, ROOT};
use crate::conform::stop::{broken, must, not_offered, Judged};

pub fn agents(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[ROOT])?;
    let root = client.state_of(ROOT);
    let agents = root["agents"].as_array().cloned().unwrap_or_default();
    let named = agents.iter().all(|agent| agent["provider"].as_str().is_some_and(|name| !name.is_empty()));
    must!(named, "an agent has no name: {}", quoted(&root["agents"]));
    if agents.is_empty() {
        return not_offered("the host has no agent");
    }
    client.compare(ROOT)
}

pub fn create(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    while client.state_of(&session.uri)["lifecycle"] == "creating" {
        client.wait_for("`session/ready` or `session/creationFailed`", |message| {
            message["params"]["channel"] == session.uri
        })?;
    }
    client.compare(&session.uri)?;
    client.compare(&session.chat)
}

pub fn exists(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let provider = bench.agent(&mut client)?["provider"].clone();
    match client.ask("createSession", json!({ "channel": session.uri, "provider": provider }))? {
        Ok(_) => broken(format!("`{}` can be created twice", session.uri)),
        Err(error) => {
            must!(
                error.code == i64::from(SESSION_ALREADY_EXISTS),
                "a session that exists is not answered with {SESSION_ALREADY_EXISTS}: {}",
                quoted(&error.error)
            );
            Ok(())
        }
    }
}

pub fn no_agent(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let params = json!({ "channel": "ahp-session:/conform-none", "provider": "conform-none" });
    match client.try_ask("createSession", params)? {
        Ok(_) => broken("a session of an unknown agent can be created"),
        Err(error) => {
            must!(
                error.code == i64::from(PROVIDER_NOT_FOUND),
                "an unknown agent is not answered with {PROVIDER_NOT_FOUND}: {}",
                quoted(&error.error)
            );
            Ok(())
        }
    }
}

pub fn dispose(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    client.must_ask("disposeSession", json!({ "channel": session.uri }))?;
    must_be_unknown(&mut client, &session.uri)?;
    must_be_unknown(&mut client, &session.chat)
}

pub fn title_comes_back(bench: &mut Bench) -> Judged<()> {
    const TEXT: &str = "T\u{ef}tle \u{1f680} \"quoted\" \\ \u{4e2d}\u{6587}";
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    let echo = client.change(&session.uri, title(TEXT))?;
    let echoed = &echo["params"]["action"]["title"];
    must!(echoed == TEXT, "the title `{TEXT}` is echoed as {echoed}");
    client.compare(&session.uri)?;
    let shown = &client.state_of(&session.uri)["title"];
    must!(shown == TEXT, "the title `{TEXT}` is shown as {shown}");
    Ok(())
}
