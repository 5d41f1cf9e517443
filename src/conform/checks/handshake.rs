//! Handshake: `initialize` and the choice of a version.
//!
//! Owns: the laws of the first request.
//! Never: needs a session.

use ahp_types::errors::ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION;
use serde_json::{json, Value};

use crate::conform::bench::Bench;
use crate::conform::client::{quoted, ROOT};
use crate::conform::stop::{broken, must, Judged};

/// Version that no host serves.
const FUTURE: &str = "987.0.0";

/// Newer version that a host of 1.0.0 is compatible with.
const NEWER: &str = "1.987.0";

pub fn initialize(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    let versions = bench.settings.versions.clone();
    let result = client.initialize(&versions, &[ROOT])?;
    let chosen = result["protocolVersion"].as_str().unwrap_or_default();
    must!(versions.iter().any(|version| version == chosen), "the version is none of those offered: {chosen}");
    must!(result["serverSeq"].is_u64(), "`serverSeq` is no number: {}", quoted(&result["serverSeq"]));
    let snapshots = result["snapshots"].as_array().cloned().unwrap_or_default();
    let is_root = snapshots.iter().any(|snapshot| snapshot["resource"] == ROOT);
    must!(is_root, "the snapshots lack `{ROOT}`, which was asked for");
    if let Some(info) = result.get("serverInfo") {
        must!(info["name"].is_string(), "`serverInfo` has no name: {}", quoted(info));
    }
    Ok(())
}

pub fn first(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    for (method, params) in
        [("subscribe", json!({ "channel": ROOT })), ("listSessions", json!({ "channel": ROOT }))]
    {
        let answer = client.ask(method, params)?;
        must!(answer.is_err(), "`{method}` is served before `initialize`");
    }
    client.initialize(&bench.settings.versions.clone(), &[])?;
    Ok(())
}

pub fn twice(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let params =
        json!({ "channel": ROOT, "clientId": client.id, "protocolVersions": bench.settings.versions });
    // The specification does not say how.
    drop(client.ask("initialize", params)?);
    client.must_subscribe(ROOT)?;
    client.sync()
}

pub fn unsupported(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    let params = json!({ "channel": ROOT, "clientId": client.id, "protocolVersions": [FUTURE] });
    let Err(error) = client.ask("initialize", params)? else {
        return broken(format!("the version {FUTURE} is accepted"));
    };
    must!(
        error.code == i64::from(UNSUPPORTED_PROTOCOL_VERSION),
        "the version {FUTURE} is not answered with {UNSUPPORTED_PROTOCOL_VERSION}: {}",
        quoted(&error.error)
    );
    let supported = error.error["data"]["supportedVersions"].as_array().cloned().unwrap_or_default();
    must!(
        !supported.is_empty() && supported.iter().all(Value::is_string),
        "the error does not have `data.supportedVersions`: {}",
        quoted(&error.error)
    );
    Ok(())
}

pub fn highest(bench: &mut Bench) -> Judged<()> {
    let versions = bench.settings.versions.clone();
    let mut orders = vec![
        [&[FUTURE.to_owned()], versions.as_slice()].concat(),
        [versions.as_slice(), &[FUTURE.to_owned()]].concat(),
    ];
    let reversed: Vec<String> = versions.iter().rev().cloned().collect();
    orders.push(reversed);
    let mut chosen = Vec::new();
    for offered in &orders {
        let result = again(bench, offered)?;
        chosen.push(result["protocolVersion"].as_str().unwrap_or_default().to_owned());
    }
    let one = chosen[0].clone();
    must!(
        chosen.iter().all(|version| *version == one),
        "the chosen version depends on the order of those offered: {}",
        chosen.join(", ")
    );
    if one == "1.0.0" {
        let result = again(bench, &[NEWER.to_owned(), one.clone()])?;
        must!(
            result["protocolVersion"] == NEWER,
            "{NEWER} is compatible with {one} and higher, and {} is chosen",
            result["protocolVersion"]
        );
    }
    Ok(())
}

/// Shakes hands on a connection of its own.
fn again(bench: &mut Bench, offered: &[String]) -> Judged<Value> {
    let mut client = bench.client()?;
    let result = client.initialize(offered, &[])?;
    bench.leave(client)?;
    Ok(result)
}
