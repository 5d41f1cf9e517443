//! Descriptions that agents give of themselves, tested without a process.
//!
//! Owns: a host whose agents report by hand, and what its clients and its store hear of that.
//! Never: runs an agent.

use ahp_sidecar::backend::script::Script;
use ahp_sidecar::backend::Backend;
use ahp_sidecar::host::effects::{
    AgentDescription, ChatKey, Command, ConnectionId, Event, Output, Record, SelfDescription,
};
use ahp_sidecar::host::Start;
use bytes::Bytes;
use serde_json::{json, Value};

use crate::support::core::{Core, SESSION};
use crate::support::world::{World, ROOT};

const CLIENT: ConnectionId = ConnectionId(1);

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

fn description(json: Value) -> Event {
    Event::Described(Box::new(serde_json::from_value(json).unwrap()))
}

/// A host with these agents, and a client that follows its root state.
fn host(agents: Vec<AgentDescription>, start: Start) -> World {
    let mut world = World::new(Core::after(start, agents));
    world.open(CLIENT);
    world.greet(CLIENT, "me", &[ROOT]);
    world
}

/// Returns the first agent in the root state.
fn shown(world: &mut World) -> Value {
    world.state(CLIENT, ROOT)["agents"][0].take()
}

/// Returns the stored descriptions of the agents.
fn stored_descriptions(outputs: &[Output]) -> Vec<(String, Bytes)> {
    let mut kept: Vec<(String, Bytes)> = Vec::new();
    for output in outputs {
        if let Output::Record(Record::AgentDescribed { provider, description }) = output {
            kept.retain(|(known, _)| known != provider);
            kept.push((provider.clone(), description.clone()));
        }
    }
    kept
}

/// A session of the first agent of a host.
struct Session {
    world: World,
    chat: ChatKey,
}

impl Session {
    fn new() -> Self {
        Self::of(host(vec![agent("a")], Start::default()))
    }

    fn of(mut world: World) -> Self {
        let chat = world.create_session(CLIENT);
        Self { world, chat }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.world.ask(CLIENT, method, params).unwrap()
    }

    /// Reports a description of the agent and returns the actions that clients receive.
    fn hear(&mut self, of_itself: Value) -> Vec<Value> {
        self.hear_event(description(of_itself))
    }

    fn hear_event(&mut self, event: Event) -> Vec<Value> {
        self.world.take();
        self.world.agent(self.chat, event);
        self.world.actions(CLIENT)
    }

    /// The chats whose agents are told to configure themselves when that of one reports this.
    fn configured_chats(&mut self, chat: ChatKey, event: Event) -> Vec<ChatKey> {
        self.world.take();
        self.world.agent(chat, event);
        let told = self.world.outputs.iter().filter_map(|output| match output {
            Output::Agent(chat, command) => matches!(**command, Command::Configure { .. }).then_some(*chat),
            _ => None,
        });
        told.collect()
    }
}

/// How the session is configured, as its agent says after so many changes that it was told.
fn configured(schema: &Value, values: &Value, acknowledged: u64) -> Event {
    let config = serde_json::from_value(json!({ "schema": schema, "values": values })).unwrap();
    Event::Configured { config: Box::new(config), spreads: true, acknowledged }
}

fn mode() -> Value {
    json!({ "type": "object", "properties":
        { "mode": { "type": "string", "title": "Mode", "enum": ["ask", "code"], "default": "ask" } } })
}

#[test]
fn agents_changed_is_sent_only_if_the_visible_description_changes() {
    let mut session = Session::new();
    let models = json!([{ "id": "m", "provider": "a", "name": "M" }]);
    let told = session.hear(json!({ "title": "Agent A", "models": models }));
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["type"], "root/agentsChanged");
    assert_eq!(told[0]["agents"][0]["displayName"], "Agent A");
    assert_eq!(told[0]["agents"][0]["models"], models);
    // The same again, and what is not among the agents of the root state.
    assert_eq!(session.hear(json!({ "models": models })), Vec::<Value>::new());
    assert_eq!(session.hear(json!({ "config": mode() })), Vec::<Value>::new());
    // What is not said again stays.
    let told = session.hear(json!({ "models": [] }));
    assert_eq!(told[0]["agents"][0]["displayName"], "Agent A");
    // One stands for whatever the agent takes.
    assert_eq!(
        shown(&mut session.world)["models"],
        json!([{ "id": "default", "provider": "a", "name": "Default" }])
    );
    // What its operator says that it can do, and what it says.
    let told = session
        .hear(json!({ "capabilities": { "multipleWorkingDirectories": { "immutablePrimary": true } } }));
    assert_eq!(
        told[0]["agents"][0]["capabilities"],
        json!({ "multipleChats": { "fork": true }, "multipleWorkingDirectories": { "immutablePrimary": true } })
    );
}

#[test]
fn options_are_unchecked_until_the_agent_reports_its_options() {
    let mut session = Session::new();
    let asked = json!({ "provider": "a", "config": { "mode": "code" } });
    assert_eq!(session.ask("resolveSessionConfig", asked.clone())["values"], json!({ "mode": "code" }));
    let nested = json!({ "provider": "a", "config": { "mode": ["code"] } });
    // What no setting can be is left out.
    assert_eq!(session.ask("resolveSessionConfig", nested)["values"], json!({}));
    session.hear(json!({ "config": mode() }));
    let resolved = session.ask("resolveSessionConfig", json!({ "provider": "a" }));
    assert_eq!(resolved, json!({ "schema": mode(), "values": { "mode": "ask" } }));
    session.ask("resolveSessionConfig", asked);
    // So is what is none of the agent's, and what it does not allow.
    for config in [json!({ "mode": "fly" }), json!({ "made": "code" })] {
        let asked = json!({ "provider": "a", "config": config });
        assert_eq!(session.ask("resolveSessionConfig", asked)["values"], json!({ "mode": "ask" }));
    }
}

#[test]
fn stored_description_is_restored_and_overridden_by_the_configuration() {
    let mut session = Session::of(host(vec![agent("a"), agent("b")], Start::default()));
    let command = json!({ "name": "plan", "description": "Makes a plan", "argumentHint": "what" });
    let of_itself = json!({ "title": "Agent A", "config": mode(), "commands": [command],
        "protectedResources": [{ "resource": "https://a.example" }] });
    session.world.agent(session.chat, description(of_itself));
    let start = Start { descriptions: stored_descriptions(&session.world.outputs), ..Start::default() };

    let mut next = host(vec![agent("a")], start.clone());
    let agent_a = shown(&mut next);
    assert_eq!(agent_a["displayName"], "Agent A");
    assert_eq!(agent_a["protectedResources"][0]["resource"], "https://a.example");
    let resolved = next.ask(CLIENT, "resolveSessionConfig", json!({ "provider": "a" })).unwrap();
    assert_eq!(resolved["schema"], mode());
    // What is said later is added to it.
    next.ask(CLIENT, "authenticate", json!({ "resource": "https://a.example", "token": "t" })).unwrap();
    let mut next = Session::of(next);
    next.hear(json!({ "protectedResources": [] }));
    assert_eq!(shown(&mut next.world).get("protectedResources"), None);
    let commands = json!({ "channel": SESSION, "kind": "userMessage", "text": "/", "offset": 1 });
    let offered = next.ask("completions", commands);
    assert_eq!(offered["items"][0]["insertText"], "/plan ");

    let mut named = agent("a");
    named.info.display_name = "Mine".to_owned();
    assert_eq!(shown(&mut host(vec![named], start.clone()))["displayName"], "Mine");
    // Another program under this name, and one that is not there any more.
    let mut other = agent("a");
    other.identity = "another program".to_owned();
    assert_eq!(shown(&mut host(vec![other], start.clone()))["displayName"], "a");
    let mut other = host(vec![agent("b")], start);
    assert_eq!(shown(&mut other)["displayName"], "b");
    assert_eq!(other.state(CLIENT, ROOT)["agents"].as_array().unwrap().len(), 1);
}

#[test]
fn option_changed_by_a_client_is_not_reverted_by_an_older_report() {
    let mut session = Session::new();
    session.ask("subscribe", json!({ "channel": SESSION }));
    let schema = json!({ "type": "object", "properties": {
        "mode": { "type": "string", "title": "", "enum": ["ask", "code"], "sessionMutable": true },
        "fast": { "type": "boolean", "title": "", "sessionMutable": true } } });
    let told = session.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": false }), 0));
    assert_eq!(told[0]["config"], json!({ "mode": "ask", "fast": false }));
    session.hear_event(Event::Opened);
    let change = json!({ "type": "session/configChanged", "config": { "mode": "code" } });
    assert_eq!(session.world.dispatch(CLIENT, SESSION, change), None);
    let number = session.world.commands().find_map(|command| match command {
        Command::Configure { number, changed, .. } => {
            assert_eq!(changed.iter().collect::<Vec<_>>(), ["mode"]);
            Some(*number)
        }
        _ => None,
    });
    // The agent has said this before it heard of the change.
    let told = session.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": true }), 0));
    assert_eq!(told[0]["config"], json!({ "mode": "code", "fast": true }));
    // And this after it.
    let told =
        session.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": true }), number.unwrap()));
    assert_eq!(told[0]["config"], json!({ "mode": "ask", "fast": true }));
    assert_eq!(
        session.hear_event(configured(&schema, &json!({ "mode": "ask", "fast": true }), 9)),
        Vec::<Value>::new()
    );
}

#[test]
fn only_options_changed_by_the_agent_itself_spread_to_other_chats() {
    let mut session = Session::new();
    session.hear_event(Event::Opened);
    session.ask("createChat", json!({ "channel": SESSION, "chat": "ahp-chat:/other" }));
    session.world.start(CLIENT, "ahp-chat:/other", "t", "Hello");
    let other = session.world.opened();
    session.world.agent(other, Event::Opened);
    let by_itself = configured(&mode(), &json!({ "mode": "code" }), 0);
    let Event::Configured { config, .. } = configured(&mode(), &json!({ "mode": "ask" }), 1) else {
        panic!()
    };
    let refused = Event::Configured { config, spreads: false, acknowledged: 1 };
    assert_eq!(session.configured_chats(session.chat, by_itself), [other]);
    assert_eq!(session.configured_chats(session.chat, refused), []);
    // The other one had not heard of the first of these when it says what was so before it.
    let before = configured(&mode(), &json!({ "mode": "ask" }), 0);
    assert_eq!(session.configured_chats(other, before), []);
}

#[test]
fn reconnecting_client_with_an_outdated_config_schema_receives_a_snapshot() {
    let mut session = Session::new();
    let snapshot = session.ask("subscribe", json!({ "channel": SESSION }));
    let before = snapshot["snapshot"]["fromSeq"].as_i64().unwrap();
    let told = session.hear_event(configured(&mode(), &json!({ "mode": "ask" }), 0));
    assert_eq!(told[0]["replace"], true);
    let back = |session: &mut Session, cursor: i64| {
        let asked = json!({ "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": [SESSION] });
        session.ask("reconnect", asked)
    };
    let state = back(&mut session, before);
    assert_eq!(state["type"], "snapshot");
    assert_eq!(
        state["snapshots"][0]["state"]["config"],
        json!({ "schema": mode(), "values": { "mode": "ask" } })
    );
    assert_eq!(back(&mut session, before + 1)["type"], "replay");
    // The same with other values: that is what actions tell.
    session.hear_event(configured(&mode(), &json!({ "mode": "code" }), 0));
    let replay = back(&mut session, before + 1);
    assert_eq!(replay["actions"][0]["action"]["config"], json!({ "mode": "code" }));
}

#[test]
fn unreadable_stored_description_is_ignored() {
    for broken in ["", "{}", r#"{"identity":"the program a","said":7}"#] {
        let start = Start { descriptions: vec![("a".to_owned(), Bytes::from(broken))], ..Start::default() };
        assert_eq!(shown(&mut host(vec![agent("a")], start))["displayName"], "a");
    }
    // Members that this version does not know are no obstacle.
    let said = r#"{"identity":"the program a","said":{"title":"A","more":1}}"#;
    let start = Start { descriptions: vec![("a".to_owned(), Bytes::from(said))], ..Start::default() };
    assert_eq!(shown(&mut host(vec![agent("a")], start))["displayName"], "A");
    assert_eq!(SelfDescription::default(), serde_json::from_str("{}").unwrap());
}
