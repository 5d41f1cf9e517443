//! The specification's own cases, where a checkout of its repository is at hand.
//!
//! Owns: negotiation, the reducers of chats, and clients' messages, as `types/test-cases` of that
//! repository has them; the variable `AHP_CASES` names that folder. No released crate has them.
//! Never: copies a case; and what the official crates alone do is theirs to test.

use std::fs;
use std::path::{Path, PathBuf};

use ahp::reducers::apply_action_to_chat;
use ahp_sidecar::state::history::History;
use ahp_sidecar::state::reduce::Conversation;
use ahp_sidecar::versions::dialect::{negotiate, Dialect};
use ahp_types::actions::StateAction;
use ahp_types::state::ChatState;
use serde_json::{json, Value};

use crate::support::Process;

/// Folder of the cases; `None`, which skips a test, if there is none.
fn cases() -> Option<PathBuf> {
    std::env::var_os("AHP_CASES").map(PathBuf::from)
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the cases in a folder, by the names of their files.
fn cases_in(folder: &Path) -> Vec<(String, Value)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), read(&path)))
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(!all.is_empty(), "there are no cases in {}", folder.display());
    all
}

/// Removes members that are `null`, which mean the same as absent ones.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, value| !value.is_null());
            members.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[test]
fn negotiation_chooses_as_the_specification_does() {
    let Some(folder) = cases() else { return };
    for case in read(&folder.join("version-negotiation.json")).as_array().unwrap() {
        let params = json!({ "protocolVersions": case["offered"] });
        let preview = Dialect::spoken(Dialect::preview("1.1"));
        for newest in [Dialect::NEWEST, preview] {
            let chosen = negotiate(params.as_object().unwrap(), None, newest);
            match (&case["expected"], case["invalid"] == true) {
                // An invalid entry is skipped where others are valid.
                (_, true) => assert!(chosen.map_or(true, |chosen| chosen.answer.is_string()), "{case}"),
                (Value::String(expected), false) => assert_eq!(chosen.unwrap().answer, *expected, "{case}"),
                // Older versions than the specification's are served, too.
                (_, false) => assert!(chosen.map_or(true, |it| it.dialect < Dialect::V0_9_0), "{case}"),
            }
        }
    }
}

#[test]
fn chats_are_reduced_as_the_specification_does() {
    let Some(folder) = cases() else { return };
    let mut judged = 0;
    for (name, case) in cases_in(&folder.join("reducers")) {
        let Ok(initial) = serde_json::from_value::<ChatState>(case["initial"].clone()) else { continue };
        if case["reducer"] != "chat" {
            continue;
        }
        let mut official = initial.clone();
        let listed = case["initial"].get("steeringMessages").cloned().unwrap_or_default();
        let listed = serde_json::from_value(listed).unwrap_or_default();
        let mut ours = Conversation::new(initial, History::default()).with_steering_messages(listed);
        for action in case["actions"].as_array().unwrap() {
            let action: StateAction = serde_json::from_value(action.clone()).unwrap();
            apply_action_to_chat(&mut official, &action);
            ours.apply(&action);
        }
        let turns = ours.history().turns().iter().filter_map(|turn| turn.read());
        let state = ChatState { turns: turns.collect(), ..ours.state().clone() };
        assert_eq!(state, official, "{name}");
        let shown = json!({ "steeringMessages": ours.steering_messages() });
        let mut expected = json!({ "steeringMessages": case["expected"].get("steeringMessages").cloned()
            .filter(|list| !list.is_null()).unwrap_or(json!([])) });
        without_nulls(&mut expected);
        assert_eq!(shown, expected, "{name}");
        judged += 1;
    }
    assert!(judged > 0, "no case is one of a chat that these types can read");
}

/// Returns the message that a case is, or is the params of. A host refuses its own methods and
/// those of a later version, which is an answer, too.
fn message_of(case: &Value) -> Option<Value> {
    let input = case["input"].clone();
    let name = case["type"].as_str()?;
    if name == "JsonRpcMessage" {
        return Some(input).filter(|message| message["method"].is_string());
    }
    let method = name.strip_suffix("Params")?;
    let method = format!("{}{}", method.get(..1)?.to_lowercase(), method.get(1..)?);
    Some(json!({ "jsonrpc": "2.0", "id": 0, "method": method, "params": input }))
}

#[test]
fn messages_of_clients_are_answered() {
    let Some(folder) = cases() else { return };
    let mut process = Process::start(&["--preview", "1.1", "--no-terminals"]);
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.1.0"] });
    process.say(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello }).to_string());
    process.next();
    let mut last = 0;
    for (name, case) in cases_in(&folder.join("round-trips")) {
        let Some(mut message) = message_of(&case) else { continue };
        last += 1;
        if message.get("id").is_some() {
            message["id"] = last.into();
        }
        process.say(&message.to_string());
        // A notification has no answer; the next one shows that the host is there.
        let ping = json!({ "jsonrpc": "2.0", "id": format!("ping-{last}"), "method": "ping" });
        process.say(&ping.to_string());
        let told = process.until(|told| told["id"] == ping["id"]);
        let is_answer = |told: &Value| {
            told["id"] == last && (told.get("result").is_some() || told["error"]["code"].is_i64())
        };
        assert!(message.get("id").is_none() || told.iter().any(is_answer), "{name}: {told:?}");
    }
    assert!(last > 0, "no case is a message");
    process.end();
    process.rest();
    assert!(process.wait().success());
}
