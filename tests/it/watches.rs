//! Watches of files: what a transcript cannot show.
//!
//! Owns: how long a watch stays and how many a connection follows, in the core alone; and that the
//! system's own watching is told, by one process.
//! Never: repeats what the transcripts and the tests of the watching itself show.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ahp_sidecar::host::effects::{ConnectionId, Frame, Input, Output, Prefetched, Timer};
use ahp_sidecar::wire::errors::RpcError;
use ahp_sidecar::wire::rpc::Incoming;
use ahp_sidecar::wire::watches::Watched;
use ahp_types::state::ResourceChangeType;
use serde_json::{json, Value};

use crate::support::core::Core;
use crate::support::Process;

const ME: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);

fn channel(path: &str) -> String {
    let uri = format!("file://{path}");
    Watched { uri, recursive: false, excludes: None, includes: None }.channel()
}

/// Says a message for which these watches have begun.
fn say(core: &mut Core, who: ConnectionId, mut message: Value, begun: &[String]) -> Vec<Output> {
    message["jsonrpc"] = "2.0".into();
    let prefetched = Prefetched {
        watches: begun.iter().map(|uri| (uri.clone(), Ok(()))).collect(),
        ..Prefetched::default()
    };
    let message = Incoming::parse(&message.to_string().into());
    let prefetched = Some(Box::new(prefetched));
    core.feed(Input::Received { connection: who, message: message.into(), prefetched })
}

fn subscribe(core: &mut Core, who: ConnectionId, uri: &str, begun: bool) -> Vec<Output> {
    let message = json!({ "id": 1, "method": "subscribe", "params": { "channel": uri } });
    let begun = if begun { vec![uri.to_owned()] } else { Vec::new() };
    say(core, who, message, &begun)
}

fn opened(connections: &[ConnectionId]) -> Core {
    let mut core = Core::new();
    for &connection in connections {
        core.feed(Input::Opened { connection, default_directory: None });
        let params = json!({ "clientId": format!("client-{}", connection.0) });
        say(&mut core, connection, json!({ "id": 0, "method": "initialize", "params": params }), &[]);
    }
    core
}

fn unwatched(outputs: &[Output]) -> Vec<&String> {
    let mut unwatched = Vec::new();
    for output in outputs {
        if let Output::Unwatch(uri) = output {
            unwatched.push(uri);
        }
    }
    unwatched
}

fn timer(outputs: &[Output]) -> Option<Timer> {
    outputs.iter().find_map(|output| match output {
        Output::Timer(timer @ Timer::Watch(..), _) => Some(*timer),
        _ => None,
    })
}

fn refusal(outputs: &[Output]) -> Option<&RpcError> {
    outputs.iter().find_map(|output| match output {
        Output::Frame(_, Frame::Error { error, .. }) => Some(error),
        _ => None,
    })
}

fn recipients_of_changes(outputs: &[Output]) -> BTreeSet<ConnectionId> {
    let told = outputs.iter().filter_map(|output| match output {
        Output::Frame(connection, Frame::Answer(_)) => Some(*connection),
        _ => None,
    });
    told.collect()
}

fn change(core: &mut Core, watch: &str) -> Vec<Output> {
    let changes = vec![("file:///a".to_owned(), ResourceChangeType::Updated)];
    core.feed(Input::FilesChanged { watch: watch.to_owned(), changes })
}

#[test]
fn watch_ends_a_while_after_its_last_subscriber_left() {
    let mut core = opened(&[ME, OTHER]);
    let watch = channel("/a");
    assert!(refusal(&subscribe(&mut core, ME, &watch, false)).is_some(), "it has not begun");
    let outputs = subscribe(&mut core, ME, &watch, true);
    assert_eq!((refusal(&outputs), timer(&outputs)), (None, None));
    // Two that begin with it at the same time: it is wanted once.
    let outputs = subscribe(&mut core, OTHER, &watch, true);
    assert_eq!((refusal(&outputs), unwatched(&outputs)), (None, vec![&watch]));
    assert_eq!(recipients_of_changes(&change(&mut core, &watch)), BTreeSet::from([ME, OTHER]));

    let unsubscribe = json!({ "method": "unsubscribe", "params": { "channel": watch } });
    assert_eq!(timer(&say(&mut core, ME, unsubscribe.clone(), &[])), None, "the other one follows it");
    assert_eq!(recipients_of_changes(&change(&mut core, &watch)), BTreeSet::from([OTHER]));
    let first = timer(&core.feed(Input::Closed(OTHER))).expect("nobody follows it");
    assert_eq!(recipients_of_changes(&change(&mut core, &watch)), BTreeSet::new());

    // One who comes back within that time finds it, and is told that anything may have changed.
    let params =
        json!({ "clientId": "client-1", "lastSeenServerSeq": 0, "subscriptions": [watch, channel("/b")] });
    let outputs = say(&mut core, ME, json!({ "id": 2, "method": "reconnect", "params": params }), &[]);
    assert_eq!(recipients_of_changes(&outputs), BTreeSet::from([ME]));
    let answer = outputs.iter().find_map(|output| match output {
        Output::Frame(_, Frame::Result { result, .. }) => serde_json::from_slice::<Value>(result).ok(),
        _ => None,
    });
    assert_eq!(answer.unwrap()["missing"], json!([channel("/b")]));
    assert_eq!(unwatched(&core.feed(Input::Timer(first))), Vec::<&String>::new(), "it is followed again");

    let second = timer(&say(&mut core, ME, unsubscribe, &[])).expect("nobody follows it");
    assert_eq!(unwatched(&core.feed(Input::Timer(first))), Vec::<&String>::new(), "that time was up before");
    assert_eq!(unwatched(&core.feed(Input::Timer(second))), [&watch]);
    assert!(refusal(&subscribe(&mut core, ME, &watch, false)).is_some(), "it has ended");
}

#[test]
fn watches_per_connection_are_limited_and_oldest_unused_ones_end() {
    let mut core = opened(&[ME]);
    let channels: Vec<String> = (0..65).map(|at| channel(&format!("/{at}"))).collect();
    for uri in &channels[..64] {
        assert_eq!(refusal(&subscribe(&mut core, ME, uri, true)), None);
    }
    let outputs = subscribe(&mut core, ME, &channels[64], true);
    assert_eq!(refusal(&outputs).map(|error| error.code), Some(-32602));
    assert!(timer(&outputs).is_some(), "it has begun, and nobody follows it");
    assert_eq!(refusal(&subscribe(&mut core, ME, &channels[63], false)), None, "it follows that already");
    // All of them come back: one too many is missing.
    let params = json!({ "clientId": "client-1", "lastSeenServerSeq": 0, "subscriptions": channels });
    let outputs = say(&mut core, ME, json!({ "id": 2, "method": "reconnect", "params": params }), &[]);
    let missing = outputs.iter().find_map(|output| match output {
        Output::Frame(_, Frame::Result { result, .. }) => serde_json::from_slice::<Value>(result).ok(),
        _ => None,
    });
    assert_eq!(missing.unwrap()["missing"], json!([channels[64]]));
    // Those that wait for nobody are no more than twice as many; the first ones go.
    let mut ended = Vec::new();
    for at in 0..130 {
        let uri = channel(&format!("/more/{at}"));
        let outputs = subscribe(&mut core, OTHER, &uri, true);
        ended.extend(unwatched(&outputs).into_iter().cloned());
    }
    let first = [channels[64].clone(), channel("/more/0"), channel("/more/1")];
    assert_eq!(ended, first);
}

#[test]
fn unused_watches_end_when_a_new_one_needs_room() {
    let mut core = opened(&[ME, OTHER]);
    let (followed, left) = (channel("/followed"), channel("/left"));
    subscribe(&mut core, ME, &followed, true);
    subscribe(&mut core, ME, &left, true);
    say(&mut core, ME, json!({ "method": "unsubscribe", "params": { "channel": left } }), &[]);
    let outputs = core.feed(Input::WatchesLackRoom(OTHER));
    assert_eq!(unwatched(&outputs), [&left]);
    assert!(matches!(outputs.last(), Some(Output::BeginWatches(OTHER))), "{outputs:?}");
    assert!(refusal(&subscribe(&mut core, ME, &left, false)).is_some(), "it has ended");
    assert!(refusal(&subscribe(&mut core, OTHER, &followed, false)).is_none());
}

fn ask(process: &mut Process, method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    if params["channel"].is_null() {
        params["channel"] = "ahp-root://".into();
    }
    process.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string());
    process.until(|message| message["id"] == 1).pop().unwrap()
}

/// Waits until all of these were told, whatever else is.
fn until_changes(process: &mut Process, wanted: &[(&Path, &str)]) {
    let mut left: BTreeSet<(String, String)> = wanted
        .iter()
        .map(|(path, kind)| (format!("file://{}", path.display()), (*kind).to_owned()))
        .collect();
    process.until(|message| {
        for item in message["params"]["action"]["changes"]["items"].as_array().into_iter().flatten() {
            let text = |name: &str| item[name].as_str().unwrap().to_owned();
            left.remove(&(text("uri"), text("type")));
        }
        left.is_empty()
    });
}

#[test]
fn file_changes_by_others_and_by_clients_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    let at = |path: &str| top.join(path);
    fs::create_dir(at("there")).unwrap();
    let mut process = Process::start(&["--write-root", top.to_str().unwrap()]);
    ask(&mut process, "initialize", &json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }));
    let uri = format!("file://{}", top.display());
    let watch = ask(&mut process, "createResourceWatch", &json!({ "uri": uri, "recursive": true }));
    let watch = watch["result"]["channel"].clone();
    let answer = ask(&mut process, "subscribe", &json!({ "channel": watch }));
    assert_eq!(answer["result"]["snapshot"]["state"], json!({ "root": uri, "recursive": true }));
    // By others, and by a client through the host.
    fs::write(at("there/file"), "x").unwrap();
    fs::create_dir_all(at("new/folder")).unwrap();
    fs::write(at("new/folder/file"), "x").unwrap();
    let file = format!("{uri}/written");
    ask(&mut process, "resourceWrite", &json!({ "uri": file, "data": "x", "encoding": "utf-8" }));
    until_changes(
        &mut process,
        &[
            (&at("there/file"), "added"),
            (&at("new"), "added"),
            (&at("new/folder"), "added"),
            (&at("new/folder/file"), "added"),
            (&at("written"), "added"),
        ],
    );
    fs::remove_dir_all(at("new")).unwrap();
    fs::write(at("written"), "more").unwrap();
    until_changes(&mut process, &[(&at("new"), "deleted"), (&at("written"), "updated")]);
    process.end();
    process.rest();
    assert_eq!(process.wait().code(), Some(0));
}
