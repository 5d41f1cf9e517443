//! Several chats of a session, where a transcript cannot go: clients of two versions at once, and
//! more chats than anybody would write down.
//!
//! Owns: a host in memory behind the version edge, with a connection for each client, and an agent
//! that says what a test has it say.
//! Never: runs a real agent.

use ahp_sidecar::host::effects::{
    BackgroundCommand, Command, ConnectionId, Event, Input, Output, Record, TextKind, ToolGate, Transcript,
    TurnEnd, TurnEvent,
};
use serde_json::{json, Value};

use crate::support::core::{opens, Core, CHAT, SESSION};
use crate::support::edged::EdgedWorld;
use crate::support::world::{message, World, ROOT};

const NEW: ConnectionId = ConnectionId(1);
const OLD: ConnectionId = ConnectionId(2);

/// Further chat of a session.
const OTHER: &str = "ahp-chat:/other";

/// A host, a client of 1.0.0 and one of another version.
struct TwoVersions {
    edged: EdgedWorld,
}

impl TwoVersions {
    fn new(old: &str) -> Self {
        let mut both = Self { edged: EdgedWorld::new() };
        for (connection, version) in [(NEW, "1.0.0"), (OLD, old)] {
            both.edged.world.open(connection);
            let mut hello = json!({ "channel": ROOT, "clientId": version, "protocolVersions": [version],
                "initialSubscriptions": [ROOT] });
            if version == "0.1.0" {
                hello.as_object_mut().unwrap().remove("channel");
            }
            assert!(both.ask(connection, "initialize", hello)["result"].is_object());
        }
        both.ask(NEW, "createSession", json!({ "channel": SESSION }));
        both.agent(Event::Opened);
        both
    }

    /// A step is over: everybody is told what there is to be told.
    fn settle(&mut self) {
        self.edged.world.feed(Input::BatchEnded);
        self.edged.deliver();
    }

    /// Asks, and takes the answer out of what was told.
    fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Value {
        let number = self.edged.request(connection, method, params);
        self.settle();
        let told = &mut self.edged.told;
        let at = told.iter().position(|(to, line)| *to == connection && line["id"] == number);
        told.remove(at.unwrap_or_else(|| panic!("{method} was not answered"))).1
    }

    /// The client of 1.0.0 dispatches an action.
    fn dispatch(&mut self, channel: &str, seq: usize, action: Value) {
        let params = json!({ "channel": channel, "clientSeq": seq, "action": action });
        self.edged.notify(NEW, "dispatchAction", params);
        self.settle();
    }

    /// The agent of the chat that was opened last reports.
    fn agent(&mut self, event: Event) {
        let chat = self.edged.world.opened();
        self.edged.world.agent(chat, event);
        self.settle();
    }

    fn run(&mut self, event: TurnEvent) {
        let run = self.edged.world.started();
        self.agent(Event::Turn(run, event));
    }

    /// Returns the number of conversations that agents were requested to open.
    fn opened(&self) -> usize {
        opens(&self.edged.world.outputs).count()
    }

    /// Returns the transcripts attached to the message of each run.
    fn runs(&self) -> Vec<&[Transcript]> {
        let runs = self.edged.world.commands().filter_map(|command| match command {
            Command::StartTurn { attached, .. } => Some(&attached[..]),
            _ => None,
        });
        runs.collect()
    }

    /// Returns the transcripts attached to the message of the latest run.
    fn attached(&self) -> &[Transcript] {
        self.runs().pop().unwrap()
    }

    /// How large the largest row of a chat was.
    fn row_bytes_max(&self) -> usize {
        let rows = self.edged.world.outputs.iter().filter_map(|output| match output {
            Output::Record(Record::Chat(row)) => Some(row.body.len()),
            _ => None,
        });
        rows.max().unwrap()
    }

    /// Returns the messages to a connection since the last call.
    fn take_messages(&mut self, connection: ConnectionId) -> Vec<Value> {
        let all = std::mem::take(&mut self.edged.told);
        all.into_iter().filter(|(to, _)| *to == connection).map(|(_, line)| line).collect()
    }
}

#[test]
fn client_of_a_single_chat_version_sees_other_chats_only_in_the_status() {
    for version in ["0.2.0", "0.3.0"] {
        let mut both = TwoVersions::new(version);
        both.ask(OLD, "subscribe", json!({ "channel": SESSION }));
        both.take_messages(OLD);
        let first = json!({ "channel": SESSION, "chat": "ahp-chat:/other", "initialMessage": message("hi") });
        assert!(both.ask(NEW, "createChat", first)["error"].is_null());
        both.agent(Event::Opened);
        both.run(TurnEvent::Text(TextKind::Markdown, "elsewhere".to_owned()));
        let (id, name) = ("call".to_owned(), "rm".to_owned());
        both.run(TurnEvent::ToolStarted { id: id.clone(), name: name.clone(), display_name: name });
        let gate = ToolGate::Ask(Vec::new());
        both.run(TurnEvent::ToolReady { id, input: "{}".to_owned(), message: "Run".into(), gate });
        both.run(TurnEvent::Ended(TurnEnd::Complete));
        both.ask(
            NEW,
            "moveChat",
            json!({ "channel": "ahp-chat:/other",
            "destination": { "kind": "session", "session": SESSION } }),
        );
        let default = json!({ "type": "session/defaultChatChanged", "defaultChat": "ahp-chat:/other" });
        both.dispatch(SESSION, 1, default);

        let heard = both.take_messages(OLD);
        let text = format!("{heard:?}");
        assert!(!text.contains("ahp-chat:") && !text.contains("elsewhere"), "{version}: {heard:#?}");
        let turns = heard.iter().filter(|line| line["params"]["action"]["type"] != "session/titleChanged");
        assert!(turns.clone().all(|line| line["method"] != "action"), "{version}: {heard:#?}");
        let changes = heard.iter().map(|line| line["params"]["changes"]["status"].clone());
        let statuses: Vec<Value> = changes.filter(Value::is_u64).collect();
        assert_eq!(statuses, [24, 1], "{version}: {heard:#?}");
        assert!(!text.contains("\"changes\": Object {}"), "{version} is told that nothing has changed");
        // What it follows is one conversation, and that is the first chat whichever is the default
        // one.
        let state = both.ask(OLD, "subscribe", json!({ "channel": SESSION }));
        assert_eq!(state["result"]["snapshot"]["state"]["turns"], json!([]), "{version}: {state}");
        for method in ["createChat", "disposeChat", "moveChat"] {
            let params = json!({ "channel": SESSION, "chat": "ahp-chat:/c" });
            assert_eq!(both.ask(OLD, method, params)["error"]["code"], -32601, "{version}: {method}");
        }
    }
}

#[test]
fn client_that_unsubscribes_only_the_chat_still_receives_the_selection_of_the_session() {
    let hello = |method: &str| match method {
        "initialize" => json!({ "protocolVersions": ["0.4.0"], "initialSubscriptions": [SESSION, CHAT] }),
        _ => json!({ "lastSeenServerSeq": 0, "subscriptions": [SESSION, CHAT] }),
    };
    // The chat may be unsubscribed before the answer.
    for (method, is_hasty) in [("initialize", false), ("reconnect", false), ("initialize", true)] {
        let mut both = TwoVersions::new("0.4.0");
        let third = ConnectionId(3);
        both.edged.world.open(third);
        let mut params = hello(method);
        (params["channel"], params["clientId"]) = (json!(ROOT), json!("0.4.0"));
        both.edged.request(third, method, params);
        if !is_hasty {
            both.settle();
        }
        both.edged.notify(third, "unsubscribe", json!({ "channel": CHAT }));
        both.settle();
        both.take_messages(third);
        let mut draft = message("D");
        draft["model"] = json!({ "id": "m" });
        both.dispatch(CHAT, 1, json!({ "type": "chat/draftChanged", "draft": draft }));
        let heard = both.take_messages(third);
        let names: Vec<&Value> = heard.iter().map(|line| &line["params"]["action"]["type"]).collect();
        assert!(names.iter().any(|name| *name == "session/modelChanged"), "{method}: {heard:?}");
        assert!(!names.iter().any(|name| name.as_str().unwrap_or("").starts_with("chat/")), "{heard:?}");
        // The session ends both.
        both.edged.notify(third, "unsubscribe", json!({ "channel": SESSION }));
        both.settle();
        both.take_messages(third);
        both.dispatch(CHAT, 2, json!({ "type": "chat/draftChanged" }));
        assert!(both.take_messages(third).is_empty(), "{method}");
    }
}

#[test]
fn message_to_a_session_without_its_first_chat_is_rejected() {
    let mut both = TwoVersions::new("0.3.0");
    both.ask(OLD, "subscribe", json!({ "channel": SESSION }));
    assert!(both.ask(NEW, "createChat", json!({ "channel": SESSION, "chat": OTHER }))["error"].is_null());
    assert!(both.ask(NEW, "disposeChat", json!({ "channel": CHAT }))["error"].is_null());
    both.take_messages(OLD);
    for (session, answers) in [(SESSION, 1), ("ahp-session:/unknown", 0)] {
        let action = json!({ "type": "session/turnStarted", "turnId": "t", "message": message("hi") });
        let params = json!({ "channel": session, "clientSeq": 1, "action": action });
        both.edged.notify(OLD, "dispatchAction", params);
        both.settle();
        let heard = both.take_messages(OLD);
        let refused = heard.iter().filter(|line| line["params"]["rejectionReason"].is_string());
        assert_eq!(refused.count(), answers, "{session}: {heard:?}");
    }
}

#[test]
fn requests_for_a_session_never_concern_a_chat_that_has_moved_to_another_one() {
    let destination = "ahp-session:/b";
    for version in ["0.1.0", "0.2.0", "0.3.0"] {
        let mut both = TwoVersions::new(version);
        let name = |id: &str| {
            if version == "0.1.0" {
                format!("script:/{id}")
            } else {
                format!("ahp-session:/{id}")
            }
        };
        let member = if version == "0.1.0" { "session" } else { "channel" };
        let turns = |both: &mut TwoVersions, id: &str| {
            both.ask(OLD, "fetchTurns", json!({ member: name(id), "limit": 9 }))
        };
        let turn = json!({ "type": "chat/turnStarted", "turnId": "t", "message": message("hi") });
        both.dispatch(CHAT, 1, turn);
        both.run(TurnEvent::Ended(TurnEnd::Complete));
        let shown = turns(&mut both, "s");
        assert_eq!(shown["result"]["turns"][0]["id"], "t", "{version}: {shown}");
        both.ask(NEW, "createSession", json!({ "channel": destination }));
        both.ask(NEW, "createChat", json!({ "channel": SESSION, "chat": OTHER }));
        let default = json!({ "type": "session/defaultChatChanged", "defaultChat": OTHER });
        both.dispatch(SESSION, 2, default);
        let to = json!({ "kind": "session", "session": destination });
        let moved = both.ask(NEW, "moveChat", json!({ "channel": CHAT, "destination": to }));
        assert!(moved["error"].is_null(), "{moved}");
        for is_subscribed in [false, true] {
            let shown = turns(&mut both, "s");
            assert!(shown["error"].is_object(), "{version}: {shown}");
            assert!(!shown.to_string().contains("ahp-chat:"), "{version}: {shown}");
            let params = json!({ member: name("s"), "kind": "userMessage", "text": "/s", "offset": 2 });
            let completed = both.ask(OLD, "completions", params);
            assert!(completed["error"].is_object(), "{version}: {completed}");
            let subscribed = if version == "0.1.0" { "resource" } else { "channel" };
            if !is_subscribed {
                both.ask(OLD, "subscribe", json!({ subscribed: name("s") }));
            }
        }
        assert!(turns(&mut both, "b")["result"]["turns"].is_array(), "{version}");
    }
}

#[test]
fn session_that_loses_its_first_chat_loses_its_conversation_for_a_client_of_a_single_chat_version() {
    let moved = json!({ "channel": CHAT, "destination": { "kind": "newSession" } });
    for (method, params) in [("moveChat", moved), ("disposeChat", json!({ "channel": CHAT }))] {
        let mut both = TwoVersions::new("0.3.0");
        both.ask(NEW, "createChat", json!({ "channel": SESSION, "chat": OTHER }));
        let default = json!({ "type": "session/defaultChatChanged", "defaultChat": OTHER });
        both.dispatch(SESSION, 1, default);
        let turn = |id: &str| json!({ "type": "chat/turnStarted", "turnId": id, "message": message("hi") });
        both.dispatch(CHAT, 2, turn("t"));
        both.run(TurnEvent::Ended(TurnEnd::Complete));
        // A chat with a running turn, behind which messages are queued, cannot be moved.
        let is_queued = method == "disposeChat";
        if is_queued {
            both.dispatch(CHAT, 3, turn("t2"));
            let queued = json!({ "type": "chat/pendingMessageSet", "id": "q", "kind": "queued",
                "message": message("later") });
            both.dispatch(CHAT, 4, queued);
        }
        let state = both.ask(OLD, "subscribe", json!({ "channel": SESSION }));
        let state = &state["result"]["snapshot"]["state"];
        assert_eq!(state["turns"][0]["id"], "t", "{state}");
        assert_eq!(state["queuedMessages"][0]["id"] == "q", is_queued, "{state}");
        both.take_messages(OLD);
        let gone = both.ask(NEW, method, params);
        assert!(gone["error"].is_null(), "{gone}");
        let heard = both.take_messages(OLD);
        let actions: Vec<&Value> = heard.iter().map(|line| &line["params"]["action"]).collect();
        let removed = json!({ "type": "session/pendingMessageRemoved", "kind": "queued", "id": "q" });
        assert_eq!(actions.contains(&&removed), is_queued, "{method}: {heard:?}");
        assert!(actions.contains(&&json!({ "type": "session/truncated" })), "{method}: {heard:?}");
    }
}

#[test]
fn session_unsubscribed_under_its_other_name_receives_no_actions() {
    for version in ["0.3.0", "0.4.0"] {
        let mut both = TwoVersions::new(version);
        both.ask(OLD, "subscribe", json!({ "channel": SESSION }));
        both.edged.notify(OLD, "unsubscribe", json!({ "channel": "script:/s" }));
        both.settle();
        both.take_messages(OLD);
        let mut said = message("hi");
        said["model"] = json!({ "id": "m" });
        both.dispatch(CHAT, 1, json!({ "type": "chat/turnStarted", "turnId": "t", "message": said }));
        let mut heard = both.take_messages(OLD);
        heard.retain(|line| line["method"] == "action" && line["params"]["channel"] != ROOT);
        assert!(heard.is_empty(), "{version}: {heard:?}");
    }
}

#[test]
fn older_clients_create_and_dispose_chats_but_cannot_move_them() {
    for version in ["0.4.0", "0.5.0", "0.5.1", "0.6.0", "0.7.0", "0.9.0"] {
        let mut both = TwoVersions::new(version);
        let turn = json!({ "type": "chat/turnStarted", "turnId": "t1", "message": message("hi") });
        let state = both.ask(NEW, "subscribe", json!({ "channel": SESSION }));
        let chat = state["result"]["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
        both.dispatch(&chat, 1, turn);
        both.run(TurnEvent::Ended(TurnEnd::Complete));
        // A source without a kind is a fork: there was nothing else.
        let source = json!({ "chat": chat, "turnId": "t1", "kind": "fork" });
        let mut params = json!({ "channel": SESSION, "chat": "ahp-chat:/c", "source": source });
        if version < "0.7.0" {
            params["source"].as_object_mut().unwrap().remove("kind");
        }
        let answer = both.ask(OLD, "createChat", params);
        assert!(answer["error"].is_null(), "{version}: {answer}");
        let state = both.ask(OLD, "subscribe", json!({ "channel": "ahp-chat:/c" }));
        assert_eq!(state["result"]["snapshot"]["state"]["turns"][0]["id"], "t1", "{version}: {state}");
        let to = json!({ "channel": "ahp-chat:/c", "destination": { "kind": "newSession" } });
        assert_eq!(both.ask(OLD, "moveChat", to)["error"]["code"], -32601, "{version}");
        let gone = both.ask(OLD, "disposeChat", json!({ "channel": "ahp-chat:/c" }));
        assert!(gone["error"].is_null(), "{version}: {gone}");
    }
}

#[test]
fn model_chosen_for_a_chat_applies_to_its_next_messages() {
    let mut both = TwoVersions::new("0.4.0");
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/c", "model": { "id": "m" } });
    assert!(both.ask(OLD, "createChat", params)["error"].is_null());
    let state = both.ask(NEW, "subscribe", json!({ "channel": "ahp-chat:/c" }));
    assert_eq!(state["result"]["snapshot"]["state"]["draft"]["model"]["id"], "m", "{state}");
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/d", "model": { "id": "m" },
        "initialMessage": message("hi") });
    assert!(both.ask(OLD, "createChat", params)["error"].is_null());
    let state = both.ask(NEW, "subscribe", json!({ "channel": "ahp-chat:/d" }));
    let said = &state["result"]["snapshot"]["state"]["activeTurn"]["message"];
    assert_eq!(said["model"]["id"], "m", "{state}");
}

#[test]
fn chats_per_session_are_limited_to_1000() {
    // Nothing is saved in between: each row of the session would have all of its chats.
    let mut world = World::new(Core::new());
    world.arrive(NEW, "me");
    world.open_session(NEW);
    let mut open = |number: u32| {
        let params = json!({ "channel": SESSION, "chat": format!("ahp-chat:/{number}") });
        world.ask(NEW, "createChat", params).err().map(|error| error.code)
    };
    // With the first one it has 1,000.
    for number in 1..1000 {
        assert_eq!(open(number), None);
    }
    assert_eq!(open(1000), Some(-32602));
}

#[test]
fn agent_opens_one_conversation_while_its_session_is_being_created() {
    let mut both = TwoVersions::new("0.9.0");
    let creating = "ahp-session:/creating";
    both.ask(NEW, "createSession", json!({ "channel": creating }));
    let before = both.opened();
    let params = json!({ "channel": creating, "chat": "ahp-chat:/c", "initialMessage": message("hi") });
    assert!(both.ask(NEW, "createChat", params)["error"].is_null());
    assert_eq!(both.opened(), before, "what may fail is tried once");
    both.agent(Event::Opened);
    assert_eq!(both.opened(), before + 1, "now the turn's own one is opened");
    both.agent(Event::Opened);
    assert_eq!(both.runs().len(), 1);
}

#[test]
fn attached_chat_transcripts_are_truncated_to_128_kib() {
    let mut both = TwoVersions::new("0.9.0");
    let state = both.ask(NEW, "subscribe", json!({ "channel": SESSION }));
    let chat = state["result"]["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
    let mut said = 0;
    let mut turn = |both: &mut TwoVersions, attached: usize, answer: String| {
        said += 1;
        let mut message = message("hi");
        let attachment = json!({ "type": "chat", "label": "it", "resource": chat });
        message["attachments"] = vec![attachment; attached].into();
        let action = json!({ "type": "chat/turnStarted", "turnId": format!("t{said}"), "message": message });
        both.dispatch(&chat, said, action);
        both.run(TurnEvent::Text(TextKind::Markdown, answer));
        both.run(TurnEvent::Ended(TurnEnd::Complete));
    };
    // Of what is too much the end is kept, cut between two characters; several share the room.
    let room = 128 << 10;
    turn(&mut both, 0, format!("begin {} end", "ä".repeat(room)));
    for (attached, bytes_max) in [(1, room), (2, room / 2), (16, room / 16)] {
        turn(&mut both, attached, String::new());
        assert_eq!(both.attached().len(), attached);
        for Transcript { text, cut, .. } in both.attached() {
            assert!(*cut && text.len() <= bytes_max && text.len() > bytes_max - 4, "{}", text.len());
            assert!(text.contains(" end\n") && !text.contains("begin"));
        }
    }
    // One that just fits is whole.
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/c", "initialMessage": message("hi") });
    assert!(both.ask(NEW, "createChat", params)["error"].is_null());
    both.agent(Event::Opened);
    let frame = "User: hi\nAssistant: \n".len();
    both.run(TurnEvent::Text(TextKind::Markdown, "x".repeat(room - frame)));
    both.run(TurnEvent::Ended(TurnEnd::Complete));
    let chat = "ahp-chat:/c";
    let attach = |both: &mut TwoVersions, number: usize| {
        let mut message = message("hi");
        message["attachments"] =
            json!([{ "type": "chat", "label": "it", "resource": chat, "endTurn": "fresh-1" }]);
        let action =
            json!({ "type": "chat/turnStarted", "turnId": format!("u{number}"), "message": message });
        both.dispatch(chat, number, action);
        both.run(TurnEvent::Ended(TurnEnd::Complete));
    };
    attach(&mut both, 0);
    assert_eq!((both.attached()[0].text.len(), both.attached()[0].cut), (room, false));
    // And a chat keeps those of its newest messages.
    for number in 1..20 {
        attach(&mut both, number);
    }
    assert!(both.row_bytes_max() > 7 * room && both.row_bytes_max() < 9 * room, "{}", both.row_bytes_max());
    // So many wait, and no more; one that is changed takes no more room, and one without anything
    // none.
    let hanging = json!({ "type": "chat/turnStarted", "turnId": "v", "message": message("hang") });
    both.dispatch(chat, 0, hanging);
    let queue = |both: &mut TwoVersions, id: usize, attached: bool| {
        both.edged.told.clear();
        let mut message = message("hi");
        if attached {
            message["attachments"] =
                json!([{ "type": "chat", "label": "it", "resource": chat, "endTurn": "fresh-1" }]);
        }
        let action = json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": id.to_string(),
            "message": message });
        both.dispatch(chat, id, action);
        !both.take_messages(NEW).iter().any(|line| line["params"]["rejectionReason"].is_string())
    };
    both.ask(NEW, "subscribe", json!({ "channel": chat }));
    assert!((1..=8).all(|id| queue(&mut both, id, true)), "there is room for eight");
    assert!(!queue(&mut both, 9, true) && queue(&mut both, 8, true) && queue(&mut both, 10, false));
}

#[test]
fn disposed_chat_with_background_work_is_not_listed_again() {
    let mut world = World::saving(Core::new());
    world.arrive(NEW, "me");
    world.open_session(NEW);
    world.ask(NEW, "createChat", json!({ "channel": SESSION, "chat": "ahp-chat:/c" })).unwrap();
    world.start(NEW, "ahp-chat:/c", "t1", "hi");
    let chat = world.opened();
    world.agent(chat, Event::Opened);
    world.report(chat, world.started(), TurnEvent::Ended(TurnEnd::Complete));
    let command = BackgroundCommand { label: "make".to_owned(), line: "make".to_owned() };
    world.agent(chat, Event::Background { id: "b".to_owned(), command: Some(command) });
    world.ask(NEW, "disposeChat", json!({ "channel": "ahp-chat:/c" })).unwrap();
    let chats = world.state(NEW, SESSION)["chats"].take();
    assert_eq!(chats.as_array().unwrap().len(), 1, "{chats}");
}

#[test]
fn end_of_an_earlier_conversation_does_not_end_the_opening_of_the_next_one() {
    let mut world = World::saving(Core::new());
    world.arrive(NEW, "me");
    let chat = world.create_session(NEW);
    world.subscribe(NEW, CHAT);
    world.start(NEW, CHAT, "t1", "hi");
    world.take();
    world.agent(chat, Event::Left);
    assert_eq!(world.actions(NEW), [] as [Value; 0]);
    assert!(world.state(NEW, CHAT)["activeTurn"].is_object());
}
