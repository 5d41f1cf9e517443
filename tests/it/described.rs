//! What agents say of themselves, without a process.
//!
//! Owns: a host whose agents report by hand, and what its clients and its store hear of that.
//! Never: runs an agent.

use ahp_sidecar::backend::script::Script;
use ahp_sidecar::backend::Backend;
use ahp_sidecar::host::effects::{
    AgentDescription, ChatKey, Command, ConnectionId, Event, Frame, Ids, Input, Now, Output, Record,
    SelfDescription,
};
use ahp_sidecar::host::log::ReplayWindow;
use ahp_sidecar::host::{Config, Host, Start};
use ahp_sidecar::wire::rpc::Incoming;
use bytes::Bytes;
use serde_json::{json, Value};

const CLIENT: ConnectionId = ConnectionId(1);

struct NoIds;

impl Ids for NoIds {
    fn fresh(&mut self) -> String {
        "fresh".to_owned()
    }
}

/// An agent of which its operator says next to nothing.
fn agent(provider: &str) -> AgentDescription {
    let mut agent = Script.describe();
    provider.clone_into(&mut agent.info.provider);
    provider.clone_into(&mut agent.info.display_name);
    agent.info.capabilities = serde_json::from_value(json!({ "multipleChats": { "fork": true } })).unwrap();
    agent.config.properties.clear();
    agent.commands.clear();
    agent.may_have_more_settings = true;
    agent.identity = format!("the program {provider}");
    agent
}

fn said(json: Value) -> Event {
    Event::Described(Box::new(serde_json::from_value(json).unwrap()))
}

struct World {
    host: Host,
    chat: ChatKey,
    kept: Vec<(String, Bytes)>,
}

impl World {
    /// A host with one session of its first agent.
    fn new(agents: Vec<AgentDescription>, start: Start) -> Self {
        let host = Host::new(Config {
            server_info: serde_json::from_value(json!({ "name": "host" })).unwrap(),
            agents,
            root_schema: ahp_sidecar::host::nothing_to_configure(),
            replay_window: ReplayWindow::default(),
            start,
            memory_budget: usize::MAX,
            limits: Default::default(),
        });
        let mut world = Self { host, chat: ChatKey(0), kept: Vec::new() };
        world.feed(Input::Opened { connection: CLIENT, default_directory: None });
        let hello = json!({ "clientId": "me", "protocolVersions": ["1.0.0"],
            "initialSubscriptions": ["ahp-root://"] });
        world.ask("initialize", hello).unwrap();
        world
    }

    fn with_session(mut self) -> Self {
        let created = json!({ "channel": "ahp-session:/s" });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "createSession", "params": created });
        let outputs = self.feed(Input::said(CLIENT, Incoming::parse(&message.to_string().into())));
        let opened = outputs.iter().find_map(|output| match output {
            Output::Agent(chat, _) => Some(*chat),
            _ => None,
        });
        self.chat = opened.unwrap();
        self
    }

    fn feed(&mut self, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.host.handle(Now { unix_ms: 0, monotonic_ms: 0 }, &mut NoIds, input, &mut outputs);
        for output in &outputs {
            if let Output::Record(Record::AgentSaid { provider, said }) = output {
                self.kept.retain(|(known, _)| known != provider);
                self.kept.push((provider.clone(), said.clone()));
            }
        }
        outputs
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, String> {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let outputs = self.feed(Input::said(CLIENT, Incoming::parse(&message.to_string().into())));
        let answer = outputs.into_iter().find_map(|output| match output {
            Output::Frame(_, Frame::Result { result, .. }) => Some(Ok(result)),
            Output::Frame(_, Frame::Error { error, .. }) => Some(Err(error.message)),
            _ => None,
        });
        answer.unwrap().map(|result| serde_json::from_slice(&result).unwrap())
    }

    /// What clients hear when the agent says this of itself.
    fn hear(&mut self, of_itself: Value) -> Vec<Value> {
        self.hear_event(said(of_itself))
    }

    fn hear_event(&mut self, event: Event) -> Vec<Value> {
        let outputs = self.feed(Input::Agent(self.chat, event));
        let actions = outputs.into_iter().filter_map(|output| match output {
            Output::Frame(_, Frame::Action(action)) => {
                Some(serde_json::from_slice::<Value>(&action.line).unwrap()["params"]["action"].take())
            }
            _ => None,
        });
        actions.collect()
    }

    /// What clients are shown of the first agent.
    fn shown(&mut self) -> Value {
        let mut root = self.ask("subscribe", json!({ "channel": "ahp-root://" })).unwrap();
        root["snapshot"]["state"]["agents"][0].take()
    }
}

/// How the session is configured, as its agent says after so many changes that it was told.
fn configured(schema: &Value, values: &Value, heard: u64) -> Event {
    let config = serde_json::from_value(json!({ "schema": schema, "values": values })).unwrap();
    Event::Configured { config: Box::new(config), spreads: true, heard }
}

/// The chats whose agents are told to configure themselves.
fn told_to_configure(outputs: &[Output]) -> Vec<ChatKey> {
    let told = outputs.iter().filter_map(|output| match output {
        Output::Agent(chat, command) => matches!(**command, Command::Configure { .. }).then_some(*chat),
        _ => None,
    });
    told.collect()
}

fn mode() -> Value {
    json!({ "type": "object", "properties":
        { "mode": { "type": "string", "title": "Mode", "enum": ["ask", "code"], "default": "ask" } } })
}

#[test]
fn clients_are_told_when_what_they_see_of_an_agent_has_changed_and_not_otherwise() {
    let mut world = World::new(vec![agent("a")], Start::default()).with_session();
    let models = json!([{ "id": "m", "provider": "a", "name": "M" }]);
    let told = world.hear(json!({ "title": "Agent A", "models": models }));
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["type"], "root/agentsChanged");
    assert_eq!(told[0]["agents"][0]["displayName"], "Agent A");
    assert_eq!(told[0]["agents"][0]["models"], models);
    // The same again, and what is not among the agents of the root state.
    assert_eq!(world.hear(json!({ "models": models })), Vec::<Value>::new());
    assert_eq!(world.hear(json!({ "config": mode() })), Vec::<Value>::new());
    // What is not said again stays.
    let told = world.hear(json!({ "models": [] }));
    assert_eq!(told[0]["agents"][0]["displayName"], "Agent A");
    // One stands for whatever the agent takes.
    assert_eq!(world.shown()["models"], json!([{ "id": "default", "provider": "a", "name": "Default" }]));
    // What its operator says that it can do, and what it says.
    let told =
        world.hear(json!({ "capabilities": { "multipleWorkingDirectories": { "immutablePrimary": true } } }));
    assert_eq!(
        told[0]["agents"][0]["capabilities"],
        json!({ "multipleChats": { "fork": true }, "multipleWorkingDirectories": { "immutablePrimary": true } })
    );
}

#[test]
fn settings_are_taken_on_trust_until_the_agent_says_which_it_has() {
    let mut world = World::new(vec![agent("a")], Start::default()).with_session();
    let asked = json!({ "provider": "a", "config": { "mode": "code" } });
    assert_eq!(
        world.ask("resolveSessionConfig", asked.clone()).unwrap()["values"],
        json!({ "mode": "code" })
    );
    let nested = json!({ "provider": "a", "config": { "mode": ["code"] } });
    // What no setting can be is left out.
    assert_eq!(world.ask("resolveSessionConfig", nested).unwrap()["values"], json!({}));
    world.hear(json!({ "config": mode() }));
    let resolved = world.ask("resolveSessionConfig", json!({ "provider": "a" })).unwrap();
    assert_eq!(resolved, json!({ "schema": mode(), "values": { "mode": "ask" } }));
    world.ask("resolveSessionConfig", asked).unwrap();
    // So is what is none of the agent's, and what it does not allow.
    for config in [json!({ "mode": "fly" }), json!({ "made": "code" })] {
        let asked = json!({ "provider": "a", "config": config });
        assert_eq!(world.ask("resolveSessionConfig", asked).unwrap()["values"], json!({ "mode": "ask" }));
    }
}

#[test]
fn what_was_said_is_known_to_the_next_process_and_the_operator_has_the_last_word() {
    let mut world = World::new(vec![agent("a"), agent("b")], Start::default()).with_session();
    let command = json!({ "name": "plan", "description": "Makes a plan", "argumentHint": "what" });
    world.hear(json!({ "title": "Agent A", "config": mode(), "commands": [command],
        "protectedResources": [{ "resource": "https://a.example" }] }));
    let start = Start { said: world.kept.clone(), ..Start::default() };

    let mut next = World::new(vec![agent("a")], start.clone());
    let shown = next.shown();
    assert_eq!(shown["displayName"], "Agent A");
    assert_eq!(shown["protectedResources"][0]["resource"], "https://a.example");
    let resolved = next.ask("resolveSessionConfig", json!({ "provider": "a" })).unwrap();
    assert_eq!(resolved["schema"], mode());
    // What is said later is added to it.
    next.ask("authenticate", json!({ "resource": "https://a.example", "token": "t" })).unwrap();
    let mut next = next.with_session();
    next.hear(json!({ "protectedResources": [] }));
    assert_eq!(next.shown().get("protectedResources"), None);
    let commands = json!({ "channel": "ahp-session:/s", "kind": "userMessage", "text": "/", "offset": 1 });
    let offered = next.ask("completions", commands).unwrap();
    assert_eq!(offered["items"][0]["insertText"], "/plan ");

    let mut named = agent("a");
    named.info.display_name = "Mine".to_owned();
    assert_eq!(World::new(vec![named], start.clone()).shown()["displayName"], "Mine");
    // Another program under this name, and one that is not there any more.
    let mut other = agent("a");
    other.identity = "another program".to_owned();
    assert_eq!(World::new(vec![other], start.clone()).shown()["displayName"], "a");
    let mut world = World::new(vec![agent("b")], start);
    assert_eq!(world.shown()["displayName"], "b");
    let root = world.ask("subscribe", json!({ "channel": "ahp-root://" })).unwrap();
    assert_eq!(root["snapshot"]["state"]["agents"].as_array().unwrap().len(), 1);
}

#[test]
fn what_a_client_has_changed_is_not_changed_back_by_what_was_said_before() {
    let mut world = World::new(vec![agent("a")], Start::default()).with_session();
    world.ask("subscribe", json!({ "channel": "ahp-session:/s" })).unwrap();
    let schema = json!({ "type": "object", "properties": {
        "mode": { "type": "string", "title": "", "enum": ["ask", "code"], "sessionMutable": true },
        "fast": { "type": "boolean", "title": "", "sessionMutable": true } } });
    let told = world.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": false }), 0));
    assert_eq!(told[0]["config"], json!({ "mode": "ask", "fast": false }));
    world.hear_event(Event::Opened);
    let change = json!({ "channel": "ahp-session:/s", "clientSeq": 1,
        "action": { "type": "session/configChanged", "config": { "mode": "code" } } });
    let message = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": change });
    let outputs = world.feed(Input::said(CLIENT, Incoming::parse(&message.to_string().into())));
    let number = outputs.iter().find_map(|output| match output {
        Output::Agent(_, command) => match &**command {
            Command::Configure { number, changed, .. } => {
                assert_eq!(changed.iter().collect::<Vec<_>>(), ["mode"]);
                Some(*number)
            }
            _ => None,
        },
        _ => None,
    });
    // The agent has said this before it heard of the change.
    let told = world.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": true }), 0));
    assert_eq!(told[0]["config"], json!({ "mode": "code", "fast": true }));
    // And this after it.
    let told =
        world.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": true }), number.unwrap()));
    assert_eq!(told[0]["config"], json!({ "mode": "ask", "fast": true }));
    assert_eq!(
        world.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": true }), 9)),
        Vec::<Value>::new()
    );
}

#[test]
fn only_what_an_agent_has_changed_by_itself_is_for_the_other_chats() {
    let mut world = World::new(vec![agent("a")], Start::default()).with_session();
    world.hear_event(Event::Opened);
    world.ask("createChat", json!({ "channel": "ahp-session:/s", "chat": "ahp-chat:/other" })).unwrap();
    let turn = json!({ "channel": "ahp-chat:/other", "clientSeq": 1, "action": { "type": "chat/turnStarted",
        "turnId": "t", "message": { "text": "Hello", "origin": { "kind": "user" } } } });
    let message = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": turn });
    let outputs = world.feed(Input::said(CLIENT, Incoming::parse(&message.to_string().into())));
    let other = outputs.iter().find_map(|output| match output {
        Output::Agent(chat, _) => Some(*chat),
        _ => None,
    });
    let other = other.unwrap();
    world.feed(Input::Agent(other, Event::Opened));
    let by_itself = configured(&mode(), &json!({ "mode": "code" }), 0);
    let Event::Configured { config, .. } = configured(&mode(), &json!({ "mode": "ask" }), 1) else {
        panic!()
    };
    let refused = Event::Configured { config, spreads: false, heard: 1 };
    assert_eq!(told_to_configure(&world.feed(Input::Agent(world.chat, by_itself))), [other]);
    assert_eq!(told_to_configure(&world.feed(Input::Agent(world.chat, refused))), []);
    // The other one had not heard of the first of these when it says what was so before it.
    let before = configured(&mode(), &json!({ "mode": "ask" }), 0);
    assert_eq!(told_to_configure(&world.feed(Input::Agent(other, before))), []);
}

#[test]
fn what_can_be_chosen_is_told_by_a_state_when_a_cursor_does_not_lead_there() {
    let mut world = World::new(vec![agent("a")], Start::default()).with_session();
    let snapshot = world.ask("subscribe", json!({ "channel": "ahp-session:/s" })).unwrap();
    let before = snapshot["snapshot"]["fromSeq"].as_i64().unwrap();
    let told = world.hear_event(configured(&mode(), &json!({ "mode": "ask" }), 0));
    assert_eq!(told[0]["replace"], true);
    let back = |world: &mut World, cursor: i64| {
        let asked =
            json!({ "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": ["ahp-session:/s"] });
        world.ask("reconnect", asked).unwrap()
    };
    let state = back(&mut world, before);
    assert_eq!(state["type"], "snapshot");
    assert_eq!(
        state["snapshots"][0]["state"]["config"],
        json!({ "schema": mode(), "values": { "mode": "ask" } })
    );
    assert_eq!(back(&mut world, before + 1)["type"], "replay");
    // The same with other values: that is what actions tell.
    world.hear_event(configured(&mode(), &json!({ "mode": "code" }), 0));
    let replay = back(&mut world, before + 1);
    assert_eq!(replay["actions"][0]["action"]["config"], json!({ "mode": "code" }));
}

#[test]
fn what_cannot_be_read_of_what_was_said_is_forgotten() {
    for broken in ["", "{}", r#"{"identity":"the program a","said":7}"#] {
        let start = Start { said: vec![("a".to_owned(), Bytes::from(broken))], ..Start::default() };
        assert_eq!(World::new(vec![agent("a")], start).shown()["displayName"], "a");
    }
    // Members that this version does not know are no obstacle.
    let said = r#"{"identity":"the program a","said":{"title":"A","more":1}}"#;
    let start = Start { said: vec![("a".to_owned(), Bytes::from(said))], ..Start::default() };
    assert_eq!(World::new(vec![agent("a")], start).shown()["displayName"], "A");
    assert_eq!(SelfDescription::default(), serde_json::from_str("{}").unwrap());
}
