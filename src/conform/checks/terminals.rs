//! Terminals.
//!
//! Owns: the laws of a terminal that a client opens.
//! Never: depends on the shell of a host: what it prints is not judged.

use std::time::Instant;

use ahp_types::errors::ahp_error_codes::{ALREADY_EXISTS, PERMISSION_DENIED};
use ahp_types::state::{SnapshotState, TerminalContentPart, TerminalState};
use serde_json::{json, Value};

use super::subscriptions::must_be_unknown;
use crate::conform::bench::Bench;
use crate::conform::client::{is_action, quoted, JudgeClient};
use crate::conform::stop::{broken, must, not_offered, Judged};
use crate::files::uris::uri_of;

/// Opens a terminal, and returns its URI.
fn open(bench: &mut Bench, client: &mut JudgeClient) -> Judged<String> {
    let uri = format!("ahp-terminal:/conform-{}", uuid::Uuid::new_v4().simple());
    let params = json!({
        "channel": uri, "claim": { "kind": "client", "clientId": client.id }, "name": "Conform",
        "cwd": uri_of(&bench.work()), "cols": 80, "rows": 24,
    });
    match client.try_ask("createTerminal", params)? {
        Ok(_) => Ok(uri),
        Err(error) if error.code == i64::from(PERMISSION_DENIED) => not_offered("terminals are not allowed"),
        Err(error) if error.code == i64::from(ALREADY_EXISTS) => broken("a new terminal exists already"),
        Err(error) => broken(format!("a terminal cannot be opened: {}", quoted(&error.error))),
    }
}

/// Returns the text of a terminal.
pub fn text_of(state: &TerminalState) -> String {
    let text = |part: &TerminalContentPart| match part {
        TerminalContentPart::Unclassified(part) => part.value.clone(),
        TerminalContentPart::Command(part) => part.output.clone(),
        _ => String::new(),
    };
    state.content.iter().map(text).collect()
}

/// Checks that a mirror's text ends like that of a snapshot: no action says that a terminal has
/// forgotten its beginning.
fn same_text(client: &mut JudgeClient, uri: &str) -> Judged<()> {
    let states = client.refresh(uri)?.map(|(held, shown)| (held.state, shown.state));
    let Some((SnapshotState::Terminal(held), SnapshotState::Terminal(shown))) = states else {
        return broken(format!("`{uri}` has no state of a terminal"));
    };
    let (held, shown) = (text_of(&held), text_of(&shown));
    must!(held.ends_with(&shown), "the mirror of `{uri}` has the text {held:?}, the snapshot {shown:?}");
    Ok(())
}

pub fn terminal(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    use_terminal(bench, &mut client)
}

/// Opens a terminal, types into it, and closes it.
pub fn use_terminal(bench: &mut Bench, client: &mut JudgeClient) -> Judged<()> {
    let uri = open(bench, client)?;
    client.must_subscribe(&uri)?;
    let typed = json!({ "type": "terminal/input", "data": "echo conform-$((40 + 2))\r\n" });
    client.dispatch(&uri, typed)?;
    while !text_in(&client.state_of(&uri)).contains("conform-42") {
        must!(Instant::now() < bench.deadline, "the terminal does not print in time");
        client.wait_for("what the terminal prints", |message| {
            is_action(message, &uri, "terminal/data") || message["params"].get("rejectionReason").is_some()
        })?;
    }
    same_text(client, &uri)?;
    client.must_ask("disposeTerminal", json!({ "channel": uri }))?;
    Ok(())
}

/// Returns all texts of a terminal's state, as JSON.
fn text_in(state: &Value) -> String {
    let parts = state["content"].as_array().cloned().unwrap_or_default();
    let text =
        |part: &Value| part["value"].as_str().or(part["output"].as_str()).unwrap_or_default().to_owned();
    parts.iter().map(text).collect()
}

pub fn unknown(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let uri = open(bench, &mut client)?;
    client.must_ask("disposeTerminal", json!({ "channel": uri }))?;
    must_be_unknown(&mut client, &uri)
}
