//! Files that clients serve: what a transcript of one client cannot show.
//!
//! Owns: who is asked, how many requests to one client are on their way, and what becomes of them
//! when it says nothing, or is gone. In the core alone, where time is told.
//! Never: repeats what the transcripts show.

use std::time::Duration;

use ahp_sidecar::host::effects::{ConnectionId, Frame, Input, Output, Shutdown, Timer};
use serde_json::{json, Value};

use crate::support::core::{said, Core};

const ASKS: ConnectionId = ConnectionId(1);
const SERVES: ConnectionId = ConnectionId(2);

fn opened() -> Core {
    let mut core = Core::new();
    for connection in [ASKS, SERVES] {
        open(&mut core, connection, &format!("client-{}", connection.0));
    }
    core
}

fn open(core: &mut Core, connection: ConnectionId, client: &str) {
    core.feed(Input::Opened { connection, default_directory: None });
    core.feed(said(connection, json!({ "id": 0, "method": "initialize", "params": { "clientId": client } })));
}

fn read(core: &mut Core, who: ConnectionId, id: u64, uri: &str) -> Vec<Output> {
    let params = json!({ "channel": "ahp-root://", "uri": uri });
    core.feed(said(who, json!({ "id": id, "method": "resourceRead", "params": params })))
}

/// Returns the client that receives the relayed request, and the number of the request.
fn asked(outputs: &[Output]) -> Option<(ConnectionId, u64)> {
    outputs.iter().find_map(|output| match output {
        Output::Frame(connection, Frame::Request { number, method: "resourceRead", .. }) => {
            Some((*connection, *number))
        }
        _ => None,
    })
}

/// The answers: to whom, to which request, and the data or the code.
fn answers(outputs: &[Output]) -> Vec<(ConnectionId, String, Value)> {
    let mut all = Vec::new();
    for output in outputs {
        let Output::Frame(to, frame) = output else { continue };
        let (id, what) = match frame {
            Frame::Result { id, result, .. } => {
                (Some(id), serde_json::from_slice::<Value>(result).unwrap()["data"].take())
            }
            Frame::Error { id, error } => (id.as_ref(), error.code.into()),
            _ => continue,
        };
        all.push((*to, String::from_utf8(id.unwrap().as_json().to_vec()).unwrap(), what));
    }
    all
}

fn reply(core: &mut Core, who: ConnectionId, number: u64) -> Vec<Output> {
    core.feed(said(who, json!({ "id": number, "result": { "data": "x", "encoding": "utf-8" } })))
}

#[test]
fn read_request_is_relayed_to_the_serving_client_and_answered_once() {
    let mut core = opened();
    let (to, number) = asked(&read(&mut core, ASKS, 7, "virtual://client-2/a")).unwrap();
    assert_eq!(to, SERVES);
    assert_eq!(answers(&reply(&mut core, ASKS, number)), [], "it was not asked");
    assert_eq!(answers(&reply(&mut core, SERVES, number)), [(ASKS, "7".to_owned(), json!("x"))]);
    assert_eq!(answers(&reply(&mut core, SERVES, number)), [], "it has answered");
    let (to, _) = asked(&read(&mut core, SERVES, 8, "virtual://client-1/a")).unwrap();
    assert_eq!(to, ASKS);
}

#[test]
fn relayed_request_goes_to_the_latest_connection_of_the_named_client() {
    let mut core = opened();
    let [mixed, small, again] = [3, 4, 5].map(ConnectionId);
    open(&mut core, mixed, "Mixed");
    open(&mut core, small, "mixed");
    open(&mut core, again, "client-2");
    for (uri, who) in [
        ("virtual://Mixed/a", mixed),
        ("virtual://mixed/a", small),
        ("virtual://client-2/a", again),
        ("virtual://CLIENT-1/a", ASKS),
    ] {
        let (to, _) = asked(&read(&mut core, ASKS, 7, uri)).unwrap();
        assert_eq!(to, who, "{uri}");
    }
    for uri in ["://mixed/a", "1://mixed/a"] {
        assert_eq!(asked(&read(&mut core, ASKS, 8, uri)), None, "{uri}");
    }
}

#[test]
fn relayed_request_goes_to_the_client_with_the_longest_published_prefix() {
    let mut core = opened();
    let other = ConnectionId(3);
    open(&mut core, other, "client-3");
    core.feed(said(
        ASKS,
        json!({ "id": 1, "method": "createSession", "params": { "channel": "ahp-session:/s" } }),
    ));
    let mut publish = |who: ConnectionId, uris: &[&str]| {
        let published =
            |uri: &&str| json!({ "type": "plugin", "id": uri, "uri": uri, "name": "n", "enabled": true });
        let client = json!({ "clientId": format!("client-{}", who.0), "tools": [],
            "customizations": uris.iter().map(published).collect::<Vec<_>>() });
        let action = json!({ "type": "session/activeClientSet", "activeClient": client });
        let params = json!({ "channel": "ahp-session:/s", "clientSeq": 1, "action": action });
        core.feed(said(who, json!({ "method": "dispatchAction", "params": params })));
    };
    publish(SERVES, &["plug:/mine/one", "plug:/mine/one/two/three"]);
    publish(other, &["plug:/mine", "plug:/mine/one/two", "plug:/mine/onerous"]);
    for (uri, who) in [
        ("plug:/mine/x", other),
        ("plug:/mine/one/x", SERVES),
        ("plug:/mine/one/two/x", other),
        ("plug:/mine/one/two/three", SERVES),
    ] {
        let (to, _) = asked(&read(&mut core, ASKS, 7, uri)).unwrap();
        assert_eq!(to, who, "{uri}");
    }
}

#[test]
fn relayed_request_without_an_answer_times_out() {
    let mut core = opened();
    let outputs = read(&mut core, ASKS, 7, "virtual://client-2/a");
    let (_, number) = asked(&outputs).unwrap();
    assert!(outputs
        .iter()
        .any(|output| matches!(output, Output::Timer(Timer::Relay(it), _) if *it == number)));
    let (_, other) = asked(&read(&mut core, ASKS, 8, "virtual://client-2/b")).unwrap();
    let outputs = core.feed(Input::Timer(Timer::Relay(number)));
    assert_eq!(answers(&outputs), [(ASKS, "7".to_owned(), json!(-32603))]);
    assert_eq!(answers(&reply(&mut core, SERVES, number)), [], "too late");
    assert_eq!(answers(&reply(&mut core, SERVES, other)), [(ASKS, "8".to_owned(), json!("x"))]);
    assert_eq!(answers(&core.feed(Input::Timer(Timer::Relay(other)))), []);
}

#[test]
fn relayed_request_fails_when_either_client_disconnects() {
    let ended = |connection| Input::Ended { connection, how: Shutdown::Cancel, expected: None };
    for end in [Input::Closed(SERVES), ended(SERVES), ended(ASKS), Input::Shutdown(Shutdown::Cancel)] {
        let mut core = opened();
        read(&mut core, ASKS, 7, "virtual://client-2/a");
        let outputs = core.feed(end);
        assert_eq!(answers(&outputs), [(ASKS, "7".to_owned(), json!(-32603))]);
    }
    let mut core = opened();
    core.feed(ended(SERVES));
    let gone = [(ASKS, "7".to_owned(), json!(-32603))];
    assert_eq!(answers(&read(&mut core, ASKS, 7, "virtual://client-2/a")), gone, "it can answer nothing");
    core.feed(Input::Closed(SERVES));
    assert_eq!(answers(&read(&mut core, ASKS, 7, "virtual://client-2/a")), gone);
    let outputs = read(&mut core, ASKS, 7, "virtual://client-3/a");
    let is_refused = |output: &Output| matches!(output, Output::Resource(..));
    assert!(asked(&outputs).is_none() && outputs.iter().any(is_refused), "as any scheme that nobody serves");
    open(&mut core, ConnectionId(3), "client-2");
    assert!(asked(&read(&mut core, ASKS, 7, "virtual://client-2/a")).is_some(), "it has come back");
}

#[test]
fn relayed_requests_are_answered_before_a_draining_connection_closes() {
    let drains = |connection| {
        let how = Shutdown::Drain(Duration::from_secs(60));
        Input::Ended { connection, how, expected: None }
    };
    let closes = |outputs: &[Output]| outputs.iter().any(|output| matches!(output, Output::Closed(ASKS)));
    let mut core = opened();
    let (_, number) = asked(&read(&mut core, ASKS, 7, "virtual://client-2/a")).unwrap();
    let outputs = core.feed(drains(ASKS));
    assert_eq!((answers(&outputs), closes(&outputs)), (vec![], false));
    let outputs = reply(&mut core, SERVES, number);
    assert_eq!(answers(&outputs), [(ASKS, "7".to_owned(), json!("x"))]);
    assert!(closes(&outputs) || closes(&core.feed(Input::BatchEnded)), "it waits for nothing more");
    // One who has said all and is asked has nothing to answer with, and the time that is given
    // ends.
    let mut core = opened();
    read(&mut core, ASKS, 7, "virtual://client-2/a");
    read(&mut core, SERVES, 8, "virtual://client-1/a");
    let outputs = core.feed(drains(ASKS));
    assert_eq!(answers(&outputs), [(SERVES, "8".to_owned(), json!(-32603))]);
    let outputs = core.feed(Input::Timer(Timer::Disconnect(ASKS)));
    assert_eq!(answers(&outputs), [(ASKS, "7".to_owned(), json!(-32603))]);
}

#[test]
fn relayed_answer_is_limited_like_an_answer_of_the_host() {
    let mut core = opened();
    let mut answered = |encoding: &str, bytes: usize| {
        let (_, number) = asked(&read(&mut core, ASKS, 7, "virtual://client-2/a")).unwrap();
        let result = json!({ "data": "A".repeat(bytes), "encoding": encoding });
        let outputs = core.feed(said(SERVES, json!({ "id": number, "result": result })));
        let [(_, _, what)] = &answers(&outputs)[..] else { panic!("one answer") };
        what.as_i64()
    };
    for (encoding, most) in [("utf-8", 16 << 20), ("base64", (16 << 20) / 3 * 4 + 4)] {
        assert_eq!(answered(encoding, most), None, "{encoding}");
        assert_eq!(answered(encoding, most + 4), Some(-32602), "{encoding}");
    }
}

#[test]
fn relayed_requests_per_client_are_limited_to_16() {
    let mut core = opened();
    for id in 0..16 {
        assert!(asked(&read(&mut core, ASKS, id, "virtual://client-2/a")).is_some());
    }
    let outputs = read(&mut core, ASKS, 16, "virtual://client-2/a");
    assert_eq!(answers(&outputs), [(ASKS, "16".to_owned(), json!(-32603))]);
    assert!(asked(&read(&mut core, SERVES, 17, "virtual://client-1/a")).is_some(), "another one");
    reply(&mut core, SERVES, 3);
    assert!(asked(&read(&mut core, ASKS, 18, "virtual://client-2/a")).is_some());
}
