//! Answers with large states, which are not written where everything else is heard.
//!
//! Owns: that such an answer says the same as one that is written at once, to clients of every
//! version.
//! Never: runs a thread; where it is written is not looked at.

use ahp_sidecar::host::effects::{
    Command, ConnectionId, Event, Frame, Input, Output, RunId, TextKind, TurnEnd, TurnEvent,
};
use ahp_sidecar::versions::{dialect::Dialect, Edges, Outgoing};
use ahp_sidecar::wire::methods::Method;
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const ACTS: ConnectionId = ConnectionId(1);
const READS: ConnectionId = ConnectionId(2);

/// The turns of the chat; one of them is large.
const TURNS: [&str; 4] = ["first", "failed", "large", "also-failed"];

/// Two ways to tell the client the same.
struct Ways {
    host: Core,
    /// Large states are written later.
    later: Edges,
    /// They are written as text first, which is translated.
    at_once: Edges,
    /// Messages name their channel by `channel`.
    names_channels: bool,
    /// The number of the last action before the turn that is large.
    before: u64,
    last: u64,
}

impl Ways {
    /// A host with a large chat.
    fn new(names_channels: bool) -> Self {
        let mut host = Core::new();
        for connection in [ACTS, READS] {
            host.feed(Input::Opened { connection, default_directory: None });
        }
        let mut say = |id: u64, method: &str, params: Value| {
            host.feed(said(ACTS, json!({ "id": id, "method": method, "params": params })))
        };
        say(1, "initialize", json!({ "clientId": "acts", "protocolVersions": ["1.0.0"] }));
        let chat = opened(&say(2, "createSession", json!({ "channel": SESSION, "provider": "script" })));
        let there = say(3, "subscribe", json!({ "channel": CHAT }));
        let before = there.iter().find_map(|output| match output {
            Output::Frame(_, Frame::Result { result, .. }) => {
                let result: Value = serde_json::from_slice(result).unwrap();
                result["snapshot"]["fromSeq"].as_u64()
            }
            _ => None,
        });
        host.feed(Input::Agent(chat, Event::Opened));
        for (number, id) in TURNS.into_iter().enumerate() {
            let message =
                json!({ "text": "Hello", "origin": { "kind": "user" }, "_meta": { "uri": SESSION } });
            let action = json!({ "type": "chat/turnStarted", "turnId": id, "message": message });
            let params = json!({ "channel": CHAT, "clientSeq": number + 1, "action": action });
            let outputs =
                host.feed(said(ACTS, json!({ "id": 4, "method": "dispatchAction", "params": params })));
            let run = outputs.iter().find_map(|output| match output {
                Output::Agent(_, command) => match **command {
                    Command::StartTurn { run, .. } => Some(run),
                    _ => None,
                },
                _ => None,
            });
            let run: RunId = run.expect("a turn");
            let text = "large ".repeat(if id == "large" { (1 << 20) / 6 + 1 } else { 1 });
            // Not every version says in the same words that a turn has failed.
            let end = match number % 2 {
                0 => TurnEnd::Complete,
                _ => TurnEnd::Failed { kind: "broken".into(), message: "no".into(), resumable: false },
            };
            for event in [TurnEvent::Part(TextKind::Markdown, text), TurnEvent::Ended(end)] {
                host.feed_and_save(Input::Agent(chat, Event::Turn(run, event)));
            }
        }
        let edges = || Edges::new(vec!["script".to_owned()]);
        Self { host, later: edges(), at_once: edges(), names_channels, before: before.unwrap(), last: 0 }
    }

    /// Sends a request on both paths. Returns the messages of each, and whether any of them was
    /// written lazily.
    fn ask(&mut self, method: &str, mut params: Value) -> (Vec<Value>, Vec<Value>, bool) {
        self.last += 1;
        if !self.names_channels {
            params.as_object_mut().unwrap().remove("channel");
        }
        let message = json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params });
        let (mut fed, mut same, mut later, mut at_once) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let incoming = || Incoming::parse(&message.to_string().into());
        self.later.up(READS, incoming(), &mut fed);
        self.at_once.up(READS, incoming(), &mut same);
        for message in fed {
            for output in self.host.feed(Input::received(READS, message)) {
                match output {
                    Output::Frame(READS, frame) => {
                        self.later.translate_frame(READS, &frame, &mut later);
                        self.at_once.down(READS, &frame, &mut at_once);
                    }
                    Output::States(READS, id, states) => {
                        self.at_once.down(READS, &states.clone().answer(id.clone()), &mut at_once);
                        self.later.translate_states(READS, id, *states, &mut later);
                    }
                    _ => {}
                }
            }
        }
        let is_later = later.iter().any(|told| matches!(told, Outgoing::Unwritten(_)));
        let read = |line: bytes::Bytes| serde_json::from_slice(&line).unwrap();
        (
            later.into_iter().map(Outgoing::now).map(read).collect(),
            at_once.into_iter().map(read).collect(),
            is_later,
        )
    }

    /// The answer to this, which is not written at once.
    fn ask_large(&mut self, method: &str, params: Value) -> Value {
        let (later, at_once, is_later) = self.ask(method, params);
        assert!(later == at_once, "{method}: {} and {}", shortened(&later), shortened(&at_once));
        assert!(is_later, "{method}: {}", shortened(&later));
        later.into_iter().find(|told| told["id"] == self.last).unwrap()
    }
}

fn shortened(told: &[Value]) -> String {
    json!(told).to_string().replace("large ", "").chars().take(2000).collect()
}

#[test]
fn large_state_is_the_same_on_every_write_path() {
    for (dialect, client) in [
        (Dialect::V1_0_0, "other"),
        (Dialect::V1_0_0, "vscode-editor-window"),
        (Dialect::V0_9_0, "vscode-editor-window"),
        (Dialect::V0_8_0, "other"),
        (Dialect::V0_4_0, "other"),
        (Dialect::V0_3_0, "other"),
        (Dialect::V0_1_0, "other"),
    ] {
        let version = dialect.name();
        let channel = if dialect.has_turns_in_sessions() { SESSION } else { CHAT };
        let channel = if dialect.names_channels() { channel } else { "script:/s" };
        let mut ways = Ways::new(dialect.names_channels());
        let hello = json!({ "channel": "ahp-root://", "clientId": "reads", "protocolVersions": [version],
            "clientInfo": { "name": client }, "initialSubscriptions": [channel] });
        let welcome = ways.ask_large("initialize", hello);
        assert_eq!(welcome["result"]["protocolVersion"], version);
        let there = ways.ask_large("subscribe", json!({ "channel": channel, "resource": channel }));
        let turns = &there["result"]["snapshot"]["state"]["turns"];
        assert_eq!(
            turns.as_array().map(Vec::len),
            Some(TURNS.len()),
            "{version}: {}",
            shortened(std::slice::from_ref(&there))
        );
        // Older versions ask for pages of what the state has; of windows, the test of windows
        // speaks.
        if dialect <= Dialect::V0_5_0 {
            for (before, limit, count) in [("also-failed", 2, 2), ("large", 9, 2), ("first", 1, 0)] {
                let page =
                    json!({ "channel": channel, "session": channel, "before": before, "limit": limit });
                let page = ways.ask_large("fetchTurns", page)["result"].take();
                let turns = page["turns"].as_array().map(Vec::len);
                assert_eq!(
                    (turns, &page["hasMore"]),
                    (Some(count), &json!(before == "also-failed")),
                    "{version}"
                );
            }
        }
        for (seen, kind) in [(-1, "snapshot"), (i64::try_from(ways.before).unwrap(), "replay")] {
            let back = json!({ "channel": "ahp-root://", "clientId": "reads", "lastSeenServerSeq": seen,
                "subscriptions": [channel] });
            // The newest version's replay is text that goes out as it is.
            let is_text = dialect == Dialect::NEWEST && kind == "replay";
            let back = if is_text {
                ways.ask("reconnect", back).0.remove(0)
            } else {
                ways.ask_large("reconnect", back)
            };
            assert_eq!(back["result"]["type"], kind, "{version}: {}", shortened(std::slice::from_ref(&back)));
        }
    }
}

/// The list is that of a client of a version older than the newest, which is told of its sessions
/// in other words.
#[test]
fn large_session_list_is_written_lazily_and_its_sessions_are_known_at_once() {
    for (dialect, client, name) in [
        (Dialect::V0_9_0, "vscode-editor-window", "other:/0"),
        (Dialect::V0_8_0, "another", "ahp-session:/0"),
        (Dialect::V0_1_0, "another", "other:/0"),
    ] {
        let version = dialect.name();
        let mut ways = Ways::new(dialect.names_channels());
        // What is not known to be of another one is taken for a session of the first.
        ways.later = Edges::new(vec!["script".to_owned(), "other".to_owned()]);
        let hello = json!({ "channel": "ahp-root://", "clientId": "reads", "protocolVersions": [version],
            "clientInfo": { "name": client }, "initialSubscriptions": ["ahp-root://"] });
        ways.ask("initialize", hello);

        let request = json!({ "jsonrpc": "2.0", "id": 9, "method": "listSessions",
            "params": if dialect.names_channels() { json!({ "channel": "ahp-root://" }) } else { json!({}) } });
        let mut fed = Vec::new();
        ways.later.up(READS, Incoming::parse(&request.to_string().into()), &mut fed);
        let message = fed.pop().unwrap_or_else(|| panic!("{version}: nothing is asked"));
        let id = message.request_id().unwrap().clone();
        let items = (0..1000).map(|number| {
            json!({ "resource": format!("ahp-session:/{number}"), "provider": "other", "status": 1,
                "title": "long ".repeat(250), "createdAt": "2026-01-01T00:00:00Z",
                "modifiedAt": "2026-01-01T00:00:00Z" })
        });
        let result = json!({ "items": items.collect::<Vec<_>>() }).to_string().into();
        let frame = Frame::Result { id, method: Method::ListSessions, result, states: Vec::new() };
        let mut told = Vec::new();
        ways.later.translate_frame(READS, &frame, &mut told);
        let list = told.pop().filter(|told| matches!(told, Outgoing::Unwritten(_)));
        let list = list.unwrap_or_else(|| panic!("{version}: it was written at once"));

        // This comes before the list is written.
        let changed =
            json!({ "channel": "ahp-root://", "session": "ahp-session:/0", "changes": { "title": "x" } });
        let changed = changed.to_string().into();
        let changed = Frame::Notification { method: "root/sessionSummaryChanged", params: changed };
        ways.later.translate_frame(READS, &changed, &mut told);
        let changed = told.pop().unwrap_or_else(|| panic!("{version}: the change is not told")).now();
        let changed: Value = serde_json::from_slice(&changed).unwrap();
        let session = [&changed["params"]["session"], &changed["params"]["notification"]["session"]];
        assert!(session.iter().any(|session| **session == name), "{version}: {changed}");

        let list: Value = serde_json::from_slice(&list.now()).unwrap();
        let items = list["result"]["items"].as_array().unwrap();
        assert_eq!(items.len(), 1000, "{version}");
        assert_eq!((&list["id"], &items[0]["resource"]), (&json!(9), &json!(name)), "{version}");
    }
}
