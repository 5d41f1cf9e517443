//! Tests of the customizations of sessions, with a ledger and no other owner.
//!
//! Owns: which servers a conversation is given, their states, and the decisions about them.
//! Never: opens a conversation.

use ahp_types::actions::{
    SessionCustomizationToggledAction, SessionMcpServerStartRequestedAction,
    SessionMcpServerStopRequestedAction,
};
use ahp_types::state::{AgentInfo, ClientPluginCustomization};
use serde_json::{json, Value};

use super::enablement::{DecisionSubject, SessionDecision};
use super::*;
use crate::host::effects::Output;
use crate::host::testing::{
    actions_in, agent, chat, commands_in, origin, outputs_of, registry, step_at, with_session, CHAT, SESSION,
};

const ONE: &str = "mcp:one";
const FOLDER: &str = "file:///f";

/// Returns an agent with two servers, of which the second is off.
fn agent_with_servers() -> AgentInfo {
    let server = |name: &str, enablement: Value| {
        json!({ "type": "mcpServer", "id": format!("mcp:{name}"), "uri": "file:///c", "name": name,
            "enablement": enablement, "state": { "kind": "stopped" } })
    };
    let off = json!([{ "kind": "global", "enabled": false }]);
    let info = json!({ "provider": "script", "displayName": "", "description": "", "models": [],
        "customizations": [server("one", Value::Null), server("two", off)] });
    serde_json::from_value(info).unwrap()
}

/// Returns a ledger with a session of that agent, and the registry.
fn served() -> (Ledger, AgentRegistry) {
    let mut ledger = with_session();
    let mut described = agent("script", "");
    described.info = agent_with_servers();
    let agents = registry(&[described]);
    ledger.channels.root.state.agents = agents.infos(&Decisions::default());
    let servers = servers_of_new_session(&ledger, "script", None);
    let session = ledger.channels.sessions.known_mut(SESSION).unwrap();
    session.state.customizations = servers;
    session.state.working_directories = Some(vec![FOLDER.to_owned()]);
    (ledger, agents)
}

/// Returns the servers that are on with their states.
fn states(ledger: &Ledger) -> Vec<(String, &'static str)> {
    let session = ledger.channels.sessions.known(SESSION).unwrap();
    let servers = session.state.customizations.iter().flatten().filter_map(as_server);
    let kind = |state: &McpServerState| match state {
        McpServerState::Starting(_) => "starting",
        McpServerState::Ready(_) => "ready",
        McpServerState::Error(_) => "error",
        McpServerState::Stopped(_) => "stopped",
        _ => "other",
    };
    servers.map(|server| (server.name.clone(), kind(&server.state))).collect()
}

fn report(server: &str, problem: Option<&str>) -> McpServerReport {
    McpServerReport { server: server.to_owned(), problem: problem.map(str::to_owned) }
}

fn toggle(enablement: Value) -> StateAction {
    let enablement = serde_json::from_value(enablement).unwrap();
    StateAction::SessionCustomizationToggled(SessionCustomizationToggledAction {
        id: ONE.to_owned(),
        enablement,
    })
}

fn say(
    ledger: &mut Ledger,
    agents: &mut AgentRegistry,
    action: StateAction,
) -> (Result<Verdict, Refusal>, Vec<Output>) {
    let mut verdict = Ok(Verdict::Unchanged);
    let outputs = outputs_of(|step| {
        verdict = client_changes_customization(ledger, agents, step, SESSION, action, origin());
    });
    (verdict, outputs)
}

/// Opens the conversation with the servers that are on.
fn open(ledger: &mut Ledger) {
    let servers = servers_for_conversation(ledger, CHAT);
    chat(ledger).agent = AgentLink::Open;
    let reports = servers.0.iter().map(|server| report(server, None)).collect();
    outputs_of(|step| servers_reported(ledger, step, CHAT, reports));
}

#[test]
fn session_without_servers_is_left_alone() {
    let mut ledger = with_session();
    let mut agents = registry(&[agent("script", "")]);
    let (outputs, facts) = step_at(0, |step| {
        conversation_changed(&ledger, step, CHAT);
        refresh_session(&mut ledger, step, SESSION);
        agents_have_changed(&mut ledger, step);
        assert!(!follow_conversation(&mut ledger, step, CHAT, SESSION));
    });
    assert_eq!((outputs.len(), facts.len()), (0, 0));
    assert_eq!(servers_for_conversation(&mut ledger, CHAT).0, Vec::<String>::new());
    assert_eq!(servers_of_new_session(&ledger, "script", None), None);
    let (verdict, outputs) = say(&mut ledger, &mut agents, toggle(json!([])));
    assert!(matches!(verdict, Err(Refusal::NoSuchCustomization(_))) && outputs.is_empty());
}

#[test]
fn states_follow_the_conversation_and_its_reports() {
    let (mut ledger, _) = served();
    assert_eq!(states(&ledger), [("one".into(), "starting"), ("two".into(), "stopped")]);
    assert_eq!(servers_for_conversation(&mut ledger, CHAT).0, [ONE]);
    open(&mut ledger);
    assert_eq!(states(&ledger)[0].1, "ready");
    let outputs = outputs_of(|step| {
        servers_reported(&mut ledger, step, CHAT, vec![report(ONE, Some("it crashed"))]);
    });
    assert_eq!(actions_in(&outputs), ["session/mcpServerStateChanged"]);
    assert_eq!(states(&ledger)[0].1, "error");
    chat(&mut ledger).agent = AgentLink::Closed;
    let mut reopens = true;
    outputs_of(|step| reopens = follow_conversation(&mut ledger, step, CHAT, SESSION));
    assert_eq!((states(&ledger)[0].1, reopens), ("stopped", false));
}

#[test]
fn opening_conversation_receives_changed_servers_once_it_is_open() {
    let (mut ledger, mut agents) = served();
    assert_eq!(servers_for_conversation(&mut ledger, CHAT).0, [ONE]);
    chat(&mut ledger).agent = AgentLink::Opening;
    let off = toggle(json!([{ "kind": "session", "enabled": false }]));
    let (verdict, outputs) = say(&mut ledger, &mut agents, off);
    assert!(matches!(verdict, Ok(Verdict::Done)) && commands_in(&outputs).is_empty());
    chat(&mut ledger).agent = AgentLink::Open;
    let outputs = outputs_of(|step| conversation_opened(&mut ledger, step, CHAT));
    let command = Command::McpServers { servers: Vec::new(), restart: false };
    assert_eq!(commands_in(&outputs), [&command]);
}

#[test]
fn idle_conversation_that_leaves_for_other_servers_is_opened_again() {
    let (mut ledger, mut agents) = served();
    open(&mut ledger);
    let off = toggle(json!([{ "kind": "session", "enabled": false }]));
    let (verdict, outputs) = say(&mut ledger, &mut agents, off);
    assert!(matches!(verdict, Ok(Verdict::Done)));
    let command = Command::McpServers { servers: Vec::new(), restart: false };
    assert_eq!(commands_in(&outputs), [&command]);
    assert_eq!(states(&ledger)[0].1, "ready", "the agent still has it");
    chat(&mut ledger).agent = AgentLink::Closed;
    let mut reopens = false;
    outputs_of(|step| reopens = follow_conversation(&mut ledger, step, CHAT, SESSION));
    assert_eq!((states(&ledger)[0].1, reopens), ("stopped", true));
    // A conversation that stays, and ends later for another reason, is not.
    open(&mut ledger);
    say(&mut ledger, &mut agents, toggle(json!([]))).0.unwrap();
    outputs_of(|step| servers_reported(&mut ledger, step, CHAT, Vec::new()));
    chat(&mut ledger).agent = AgentLink::Closed;
    outputs_of(|step| reopens = follow_conversation(&mut ledger, step, CHAT, SESSION));
    assert!(!reopens);
}

#[test]
fn decision_for_all_sessions_is_stored_and_shown_by_the_agent() {
    let (mut ledger, mut agents) = served();
    let list = json!([{ "kind": "workspace", "uri": FOLDER, "enabled": true },
        { "kind": "global", "enabled": false }]);
    let (verdict, outputs) = say(&mut ledger, &mut agents, toggle(list.clone()));
    assert!(matches!(verdict, Ok(Verdict::Done)));
    assert_eq!(actions_in(&outputs)[..2], ["session/customizationToggled", "root/agentsChanged"]);
    let stored = serde_json::to_value(&ledger.channels.root.decisions).unwrap();
    assert_eq!(stored, json!({ ONE: { "global": false, "workspaces": { FOLDER: true } } }));
    let of_other = servers_of_new_session(&ledger, "script", None).unwrap();
    assert!(!enablement::is_on(as_server(&of_other[0]).unwrap().enablement.as_deref()));
    let of_folder = servers_of_new_session(&ledger, "script", Some(&[FOLDER.to_owned()])).unwrap();
    assert!(enablement::is_on(as_server(&of_folder[0]).unwrap().enablement.as_deref()));
    let (verdict, outputs) = say(&mut ledger, &mut agents, toggle(list));
    assert!(matches!(verdict, Ok(Verdict::Unchanged)) && outputs.is_empty());
    say(&mut ledger, &mut agents, toggle(json!([]))).0.unwrap();
    assert!(ledger.channels.root.decisions.is_empty());
}

#[test]
fn decision_by_a_client_that_knows_no_scopes_is_for_the_session_alone() {
    let (mut ledger, mut agents) = served();
    let others = json!([
        { "kind": "workspace", "uri": FOLDER, "enabled": false }, { "kind": "global", "enabled": false },
    ]);
    say(&mut ledger, &mut agents, toggle(others.clone())).0.unwrap();
    for enabled in [true, false] {
        let of_session = json!({ "kind": "session", "enabled": enabled });
        let list = json!([of_session, { "kind": "ahpSidecar.otherScopes" }]);
        say(&mut ledger, &mut agents, toggle(list)).0.unwrap();
        let shown = ledger.channels.sessions.known(SESSION).unwrap().state.customizations.clone().unwrap();
        let enablement = serde_json::to_value(&server_in(&shown, ONE).unwrap().enablement).unwrap();
        assert_eq!(enablement, json!([of_session, others[0], others[1]]));
    }
    let of_one = serde_json::to_value(&ledger.channels.root.decisions).unwrap()[ONE].clone();
    assert_eq!(of_one, json!({ "global": false, "workspaces": { FOLDER: false } }));
}

#[test]
fn decision_for_one_session_leaves_all_others_to_the_operator() {
    let (mut ledger, mut agents) = served();
    let two = |list: &[Customization]| server_in(list, "mcp:two").unwrap().enablement.clone();
    let off = json!({ "kind": "global", "enabled": false });
    for other_scopes in [json!({ "kind": "ahpSidecar.otherScopes" }), off] {
        let list = json!([{ "kind": "session", "enabled": true }, other_scopes]);
        let toggled = SessionCustomizationToggledAction {
            id: "mcp:two".to_owned(),
            enablement: serde_json::from_value(list).unwrap(),
        };
        say(&mut ledger, &mut agents, StateAction::SessionCustomizationToggled(toggled)).0.unwrap();
        let shown = ledger.channels.sessions.known(SESSION).unwrap().state.customizations.clone().unwrap();
        assert!(enablement::is_on(two(&shown).as_deref()));
        assert!(ledger.channels.root.decisions.is_empty());
        let of_other = servers_of_new_session(&ledger, "script", None).unwrap();
        assert!(!enablement::is_on(two(&of_other).as_deref()));
    }
}

#[test]
fn decision_for_a_session_outlives_a_server_that_is_missing_for_a_while() {
    let (mut ledger, mut agents) = served();
    say(&mut ledger, &mut agents, toggle(json!([{ "kind": "session", "enabled": false }]))).0.unwrap();
    let infos = std::mem::take(&mut ledger.channels.root.state.agents);
    outputs_of(|step| refresh_session(&mut ledger, step, SESSION));
    assert!(states(&ledger).is_empty());
    ledger.channels.root.state.agents = infos;
    outputs_of(|step| refresh_session(&mut ledger, step, SESSION));
    assert!(servers_for_conversation(&mut ledger, CHAT).0.is_empty(), "it is off");
}

#[test]
fn invalid_lists_of_decisions_are_refused() {
    let (mut ledger, mut agents) = served();
    let before = ledger.head();
    for list in [
        json!([{ "kind": "global", "enabled": true }, { "kind": "session", "enabled": true }]),
        json!([{ "kind": "session", "enabled": true }, { "kind": "session", "enabled": true }]),
        json!([{ "kind": "workspace", "uri": "file:///other", "enabled": true }]),
        json!([{ "kind": "team", "enabled": true }]),
    ] {
        let (verdict, outputs) = say(&mut ledger, &mut agents, toggle(list.clone()));
        assert!(verdict.is_err() && outputs.is_empty(), "{list}");
    }
    assert_eq!(ledger.head(), before);
}

#[test]
fn stopped_server_is_left_out_until_it_is_started() {
    let (mut ledger, mut agents) = served();
    open(&mut ledger);
    let id = || ONE.to_owned();
    let stop = StateAction::SessionMcpServerStopRequested(SessionMcpServerStopRequestedAction { id: id() });
    let (_, outputs) = say(&mut ledger, &mut agents, stop);
    let none = Command::McpServers { servers: Vec::new(), restart: false };
    assert_eq!(commands_in(&outputs), [&none]);
    // The truth follows the action that clients have applied before.
    assert_eq!(actions_in(&outputs), ["session/mcpServerStopRequested", "session/mcpServerStateChanged"]);
    let start =
        StateAction::SessionMcpServerStartRequested(SessionMcpServerStartRequestedAction { id: id() });
    let (_, outputs) = say(&mut ledger, &mut agents, start.clone());
    let both = Command::McpServers { servers: vec![id()], restart: false };
    assert_eq!(commands_in(&outputs), [&both]);
    let off = toggle(json!([{ "kind": "session", "enabled": false }]));
    say(&mut ledger, &mut agents, off).0.unwrap();
    assert!(matches!(say(&mut ledger, &mut agents, start).0, Err(Refusal::ServerIsOff(_))));
}

#[test]
fn servers_of_a_changed_configuration_reach_sessions() {
    let (mut ledger, _) = served();
    open(&mut ledger);
    ledger.channels.root.state.agents[0].customizations.as_mut().unwrap().remove(0);
    let outputs = outputs_of(|step| agents_have_changed(&mut ledger, step));
    assert_eq!(actions_in(&outputs), ["session/customizationsChanged"]);
    assert_eq!(commands_in(&outputs).len(), 1);
    ledger.channels.root.state.agents.clear();
    let outputs = outputs_of(|step| agents_have_changed(&mut ledger, step));
    assert_eq!(actions_in(&outputs), ["session/customizationsChanged"]);
    assert_eq!(states(&ledger), []);
}

/// Returns a part of a plugin of the client `me`, or the plugin itself for the empty name.
fn plugin_part<'a>(uri: &'a str, part: &str) -> DecisionSubject<'a> {
    let part = Some(part.to_owned()).filter(|part| !part.is_empty());
    DecisionSubject::Plugin { client_id: "me", uri, part }
}

#[test]
fn decision_that_a_session_has_none_is_stored_as_null() {
    let mut decisions = SessionDecisions::default();
    decisions.note(&plugin_part("v:/p", "mcp=x"), SessionDecision::Unset);
    decisions.note(&DecisionSubject::server(ONE), SessionDecision::Set(true));
    let stored = serde_json::to_value(&decisions).unwrap();
    assert_eq!(stored, json!({ "": { "": { ONE: true } }, "me": { "v:/p": { "mcp=x": null } } }));
    assert_eq!(serde_json::from_value::<SessionDecisions>(stored).unwrap(), decisions);
}

#[test]
fn decisions_for_a_session_about_plugins_are_limited() {
    let part = |at: usize| plugin_part("v:/p", &at.to_string());
    let mut decisions = SessionDecisions::default();
    for at in 0..1000 {
        decisions.check_room_for(&part(at)).unwrap();
        decisions.note(&part(at), SessionDecision::Set(false));
    }
    let refusal = decisions.check_room_for(&part(1000)).unwrap_err();
    assert_eq!(refusal, Refusal::TooManySessionDecisions(1000));
    let without_uri = plugin_part("", "mcp=one");
    assert!(decisions.check_room_for(&without_uri).is_err());
    assert_ne!(without_uri.key(), DecisionSubject::server("mcp=one").key());
    // Known ones need no room, and servers of the operator always have some.
    assert!(decisions.check_room_for(&part(1)).is_ok());
    assert!(decisions.check_room_for(&DecisionSubject::server("mcp:one")).is_ok());
}

#[test]
fn decision_about_a_part_counts_until_the_publication_says_something_else_about_that_part() {
    let published = |own: Value, children: Value| -> ClientPluginCustomization {
        let plugin = json!({
            "type": "plugin", "id": "p", "uri": "v:/p", "name": "P", "enablement": own,
            "childEnablement": children,
        });
        serde_json::from_value(plugin).unwrap()
    };
    let (on, off) =
        (json!({ "kind": "session", "enabled": true }), json!({ "kind": "session", "enabled": false }));
    let of_all = json!({ "kind": "global", "enabled": false });
    let was = published(Value::Null, json!({ "x": [on] }));
    let part = |part: &str| plugin_part("v:/p", part);
    let mut decisions = SessionDecisions::default();
    let parts = ["", "mcp=x", "mcp=y", "skill=z"];
    parts.iter().for_each(|it| decisions.note(&part(it), SessionDecision::Set(false)));
    let left = |decisions: &SessionDecisions| -> Vec<&str> {
        parts.into_iter().filter(|it| decisions.about(&part(it)).is_some()).collect()
    };
    let now = published(json!([of_all]), json!({ "x": [on, of_all], "y": [of_all], "other": [off] }));
    decisions.forget_changed("me", &was, &now);
    assert_eq!(left(&decisions), parts);
    let then = published(json!([off]), json!({ "x": [on], "z": [off] }));
    decisions.forget_changed("me", &now, &then);
    assert_eq!(left(&decisions), ["mcp=x", "mcp=y"]);
    decisions.forget_changed("me", &then, &published(json!([off]), json!({ "x": [off], "y": [on] })));
    assert!(decisions.is_empty());
}

#[test]
fn decisions_about_ids_of_clients_are_limited() {
    let mut decisions = Decisions::default();
    let list = [CustomizationEnablement::Global { enabled: false }];
    for at in 0..1000 {
        decisions.take(&format!("plugin:p{at}"), None, &[], &list).unwrap();
    }
    let refusal = decisions.take("plugin:more", None, &[], &list).unwrap_err();
    assert_eq!(refusal, Refusal::TooManyDecisions(1000));
    decisions.take("mcp:of-operator", None, &[], &list).unwrap();
    // Known ones, and decisions that need no room, are taken.
    assert!(decisions.take("plugin:p1", None, &list, &[]).is_ok());
    assert!(decisions.take("plugin:none", None, &[], &[]).is_ok());
    assert!(decisions.take("plugin:more", None, &[], &list).is_ok());
}
