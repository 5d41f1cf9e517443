//! Several clients at once, of several versions, over real sockets.

use ahp::{Client as Official, ClientConfig};
use ahp_ws::WebSocketTransport;
use serde_json::{json, Value};

use super::{Client, Host};
use crate::support::HUNG;

const SESSION: &str = "ahp-session:/s";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

fn starts_turn(client: &mut Client, turn: &str, text: &str) {
    let message = json!({ "text": text, "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
        "message": message });
    client.says(json!({ "method": "dispatchAction", "params":
        { "channel": CHAT, "clientSeq": 1, "action": action } }));
}

/// The text of a turn, as deltas and parts have told it, up to its end.
fn text_of_turn(client: &mut Client) -> String {
    let mut text = String::new();
    let mut last_seq = 0;
    loop {
        let told = if client.told.is_empty() { client.hears() } else { client.told.remove(0) };
        let action = &told["params"]["action"];
        if let Some(seq) = told["params"]["serverSeq"].as_u64().filter(|_| told["method"] == "action") {
            assert!(seq > last_seq, "{seq} came after {last_seq}");
            last_seq = seq;
        }
        match action["type"].as_str().unwrap_or_default() {
            "chat/responsePart" => text += action["part"]["content"].as_str().unwrap_or_default(),
            "chat/delta" => text += action["content"].as_str().unwrap(),
            "chat/turnComplete" => return text,
            _ => {}
        }
    }
}

#[test]
fn clients_of_several_versions_receive_the_same_text() {
    let host = Host::start(&[]);
    let versions = ["1.0.0", "0.9.0", "0.7.0", "0.5.2", "1.0.0"];
    let mut clients: Vec<Client> = versions.iter().map(|_| host.connect()).collect();
    for (at, (client, version)) in clients.iter_mut().zip(versions).enumerate() {
        client.initializes(&format!("client-{at}"), version);
        if at == 0 {
            let created = client.asks("createSession", json!({ "channel": SESSION }));
            assert_eq!(created["error"], Value::Null, "{created}");
        }
        let answer = client.asks("subscribe", json!({ "channel": CHAT }));
        assert!(answer["result"]["snapshot"].is_object(), "{version}: {answer}");
    }
    starts_turn(&mut clients[3], "t", "/stream 200 50\n/say done");
    let texts: Vec<String> = clients.iter_mut().map(text_of_turn).collect();
    assert!(texts[0].len() >= 200 * 50);
    assert!(texts.iter().all(|text| *text == texts[0]), "they differ");
    // And what they were told is what is there.
    let state = clients[0].asks("subscribe", json!({ "channel": CHAT }));
    let parts = state["result"]["snapshot"]["state"]["turns"][0]["responseParts"].as_array().unwrap();
    let held: String = parts.iter().filter_map(|part| part["content"].as_str()).collect();
    assert_eq!(held, texts[0]);
}

/// A client that asks without end waits for its own answers; others get theirs between them.
#[test]
fn large_state_is_one_message_followed_by_separate_ones() {
    let host = Host::start(&[]);
    let mut acts = host.connect();
    acts.initializes("acts", "1.0.0");
    acts.asks("createSession", json!({ "channel": SESSION }));
    acts.asks("subscribe", json!({ "channel": CHAT }));
    let text = "/stream 30 100000";
    starts_turn(&mut acts, "large", text);
    let bytes = text_of_turn(&mut acts).len();
    for version in ["1.0.0", "0.9.0"] {
        let mut opens = host.connect();
        opens.initializes("opens", version);
        let state = opens.asks("subscribe", json!({ "channel": CHAT }));
        let turn = &state["result"]["snapshot"]["state"]["turns"][0];
        assert_eq!(turn["responseParts"][0]["content"].as_str().map(str::len), Some(bytes), "{version}");
        opens.is_served();
    }
}

#[test]
fn client_that_floods_requests_does_not_starve_others() {
    let host = Host::start(&[]);
    let mut flooding = host.connect();
    flooding.initializes("flood", "1.0.0");
    let mut other = host.connect();
    other.initializes("other", "1.0.0");
    const FLOOD: u64 = 20_000;
    let flood = std::thread::spawn(move || {
        let mut reader = flooding.socket;
        let mut writer = tokio_tungstenite::tungstenite::WebSocket::from_raw_socket(
            reader.get_ref().0.try_clone().unwrap(),
            tokio_tungstenite::tungstenite::protocol::Role::Client,
            None,
        );
        let writing = std::thread::spawn(move || {
            for id in 0..FLOOD {
                let ask = json!({ "jsonrpc": "2.0", "id": id, "method": "listSessions",
                    "params": { "channel": "ahp-root://" } });
                writer.send(tokio_tungstenite::tungstenite::Message::text(ask.to_string())).unwrap();
            }
        });
        let mut answered = 0;
        while answered < FLOOD {
            answered += u64::from(reader.read().unwrap().is_text());
        }
        writing.join().unwrap();
    });
    let mut between = 0;
    while !flood.is_finished() {
        other.is_served();
        between += 1;
    }
    flood.join().unwrap();
    assert!(between > 5, "the others were answered {between} times meanwhile");
}

#[tokio::test]
async fn official_client_connects() {
    let host = Host::start(&[]);
    let transport = WebSocketTransport::connect(host.url()).await.unwrap();
    let client = Official::connect(transport, ClientConfig::default()).await.unwrap();
    let versions = vec!["1.0.0".to_owned()];
    let welcome =
        client.initialize("official".to_owned(), versions, vec!["ahp-root://".to_owned()]).await.unwrap();
    assert_eq!(welcome.protocol_version, "1.0.0");
    let created: Result<(), _> = client.request("createSession", json!({ "channel": SESSION })).await;
    created.unwrap();
    let (state, _chat) = client.subscribe_with_options(CHAT.to_owned(), None, None).await.unwrap();
    assert!(state.snapshot.is_some());
    client.shutdown().await;
}

/// Returns the bytes received of a turn up to its end, without parsing them: there are many.
fn bytes_of_turn(client: &mut Client) -> usize {
    let mut bytes = 0;
    loop {
        let told = client.socket.read().unwrap();
        let text = told.to_text().unwrap();
        bytes += text.len();
        if text.len() < 1000 && text.contains("chat/turnComplete") {
            return bytes;
        }
    }
}

/// A client that reads nothing is cut off where another one reads, which is told everything, and
/// gets it all when it is back.
#[test]
fn slow_client_is_disconnected_after_stall_timeout() {
    let host = Host::start(&["--stall-timeout", "1"]);
    let (mut reads, mut stalls) = (host.connect(), host.connect());
    for (name, client) in [("reads", &mut reads), ("stalls", &mut stalls)] {
        client.initializes(name, "1.0.0");
        if name == "reads" {
            client.asks("createSession", json!({ "channel": SESSION }));
        }
        let answer = client.asks("subscribe", json!({ "channel": CHAT }));
        assert!(answer["result"]["snapshot"].is_object(), "{answer}");
    }
    let cut = "it does not read its pending output";
    // More than may wait for it, and what the system keeps of it.
    for turn in ["t1", "t2"] {
        starts_turn(&mut reads, turn, "/stream 40 1000000");
        assert!(bytes_of_turn(&mut reads) > 40_000_000);
    }
    starts_turn(&mut reads, "t3", "/say it goes on");
    assert_eq!(text_of_turn(&mut reads), "it goes on");
    while !host.log.recv_timeout(HUNG).expect("it is cut off").contains(cut) {}
    drop(stalls);
    let mut back = host.connect();
    back.initializes("stalls", "1.0.0");
    let answer = back.asks("subscribe", json!({ "channel": CHAT, "view": { "turns": 1 } }));
    let shown = &answer["result"]["snapshot"]["state"]["turns"][0];
    assert_eq!(shown["responseParts"][0]["content"], "it goes on", "{shown}");
}
