//! Changesets, annotations, telemetry and automations.
//!
//! Owns: the laws of channels that a host announces in a state or in the handshake.
//! Never: asks for a channel that nothing announces.

use serde_json::json;

use crate::conform::bench::{Bench, BenchSession};
use crate::conform::client::{quoted, JudgeClient};
use crate::conform::stop::{broken, must, not_offered, Judged};

/// URI of the automations.
const AUTOMATIONS: &str = "ahp-automations://";

/// Subscribes to a channel that is announced.
fn announced(client: &mut JudgeClient, channel: &str) -> Judged<()> {
    match client.subscribe(channel)? {
        Ok(_) => Ok(()),
        Err(error) => {
            broken(format!("`{channel}` is announced, and cannot be subscribed to: {}", quoted(&error.error)))
        }
    }
}

pub fn changesets(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    use_changesets(bench, &mut client, &session)
}

/// Runs a turn, and follows a changeset.
pub fn use_changesets(bench: &mut Bench, client: &mut JudgeClient, session: &BenchSession) -> Judged<()> {
    bench.write("changed.txt", "changed\n")?;
    bench.run_turn(client, session)?;
    client.sync()?;
    let state = client.state_of(&session.uri);
    let changesets = state["changesets"].as_array().cloned().unwrap_or_default();
    // A template with variables needs values that the session does not name.
    let mut templates = changesets.iter().filter_map(|changeset| changeset["uriTemplate"].as_str());
    let Some(uri) = templates.find(|template| !template.contains('{')).map(str::to_owned) else {
        return not_offered("the session announces no changeset");
    };
    announced(client, &uri)?;
    client.sync()?;
    client.compare(&uri)
}

pub fn annotations(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = bench.session(&mut client)?;
    use_annotations(bench, &mut client, &session)
}

/// Runs a turn, and annotates a file.
pub fn use_annotations(bench: &mut Bench, client: &mut JudgeClient, session: &BenchSession) -> Judged<()> {
    let state = client.state_of(&session.uri);
    let Some(uri) = state["annotations"]["resource"].as_str().map(str::to_owned) else {
        return not_offered("the session announces no annotations");
    };
    let turn = bench.run_turn(client, session)?;
    announced(client, &uri)?;
    let file = bench.write("annotated.txt", "text\n")?;
    let annotation = json!({
        "id": "a", "origin": { "session": session.uri, "chat": session.chat, "turnId": turn },
        "resource": crate::files::uris::uri_of(&file), "resolved": false,
        "entries": [{ "id": "e", "text": "A remark." }],
    });
    client.change(&uri, json!({ "type": "annotations/set", "annotation": annotation }))?;
    let shown = client.state_of(&uri);
    must!(shown["annotations"][0]["id"] == "a", "the annotation is not shown: {}", quoted(&shown));
    client.compare(&uri)?;
    client.change(&uri, json!({ "type": "annotations/removed", "annotationId": "a" }))?;
    client.compare(&uri)
}

pub fn telemetry(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    let result = client.initialize(&bench.settings.versions.clone(), &[])?;
    let signals = result["telemetry"].as_object().cloned().unwrap_or_default();
    if signals.is_empty() {
        return not_offered("the host announces no telemetry");
    }
    for template in signals.values().filter_map(|template| template.as_str()) {
        announced(&mut client, &template.replace("{level}", "info"))?;
    }
    client.sync()
}

pub fn automations(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    let result = client.initialize(&bench.settings.versions.clone(), &[])?;
    if result.get("automations").is_none() {
        return not_offered("the host announces no automations");
    }
    announced(&mut client, AUTOMATIONS)?;
    client.compare(AUTOMATIONS)
}
