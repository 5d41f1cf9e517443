//! Tests of clients with a ledger alone.
//!
//! Owns: absences, the choice of the client that a tool runs on, and what is declined for want of
//! clients.
//! Never: opens a connection.

use ahp_types::state::{SessionActiveClient, ToolCallState};
use serde_json::json;

use super::Clients;
use crate::host::chats::calls::{self, CallRef, Readiness};
use crate::host::clients::disconnects::Disconnect;
use crate::host::effects::{Abilities, CallExtras, Command, ConnectionId, Output, Timer, ToolGate};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::locale::Language;
use crate::host::model::Subscription;
use crate::host::testing::{
    actions_in, commands_in, connect, outputs_of, start_turn, step_at, with_session, CHAT, ME, MY_ID, SESSION,
};
use crate::host::CLIENTS_MAX;
use crate::wire::methods::CLIENT_ID_BYTES_MAX;
use crate::wire::tool_calls::client_of_call;

const OTHER: ConnectionId = ConnectionId(2);

/// Makes clients active in the session, each with the tool `look`.
fn activate(ledger: &mut Ledger, clients: &[&str]) {
    let active = clients.iter().map(|id| {
        let client = json!({ "clientId": id, "tools": [{ "name": "look" }] });
        serde_json::from_value::<SessionActiveClient>(client).unwrap()
    });
    ledger.channels.sessions.get_mut(&SESSION).unwrap().state.active_clients.extend(active);
}

fn active(ledger: &Ledger) -> Vec<String> {
    let session = ledger.channels.sessions.get(&SESSION).unwrap();
    session.state.active_clients.iter().map(|client| client.client_id.clone()).collect()
}

/// The client `me` loses its connection. Returns the number of its absence.
fn lose(ledger: &mut Ledger, clients: &mut Clients) -> u64 {
    ledger.presence.connections.remove(&ME);
    let outputs = outputs_of(|step| clients.client_disconnected(ledger, step, MY_ID));
    match outputs[..] {
        [Output::Timer(Timer::Absence(number), _)] => number,
        _ => panic!("{outputs:?}"),
    }
}

#[test]
fn absent_active_client_is_removed_unless_it_returns() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    activate(&mut ledger, &[MY_ID]);
    let number = lose(&mut ledger, &mut clients);
    clients.client_returned(SESSION, MY_ID);
    outputs_of(|step| clients.absence_expired(&mut ledger, step, number));
    assert_eq!(active(&ledger), [MY_ID], "it has returned");
    let number = lose(&mut ledger, &mut clients);
    let outputs = outputs_of(|step| clients.absence_expired(&mut ledger, step, number));
    assert_eq!(actions_in(&outputs)[0], "session/activeClientRemoved");
    assert!(active(&ledger).is_empty());
}

#[test]
fn connection_that_does_not_subscribe_to_the_session_does_not_keep_its_client_active() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    activate(&mut ledger, &[MY_ID]);
    connect(&mut ledger, OTHER, MY_ID);
    lose(&mut ledger, &mut clients);
    let mut ledger = with_session();
    activate(&mut ledger, &[MY_ID]);
    connect(&mut ledger, OTHER, MY_ID);
    ledger.subscribe(OTHER, SESSION.into(), Subscription::default());
    ledger.presence.connections.remove(&ME);
    let outputs = outputs_of(|step| clients.client_disconnected(&mut ledger, step, MY_ID));
    assert!(outputs.is_empty(), "{outputs:?}");
}

#[test]
fn tool_runs_on_the_client_that_began_the_turn_and_fails_with_it() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    connect(&mut ledger, OTHER, "other");
    activate(&mut ledger, &["other", MY_ID]);
    start_turn(&mut ledger, "t");
    let call = CallRef { key: CHAT, turn_id: "t".to_owned(), id: "c".to_owned() };
    let (input, gate, extras) = ("{}".to_owned(), ToolGate::Open, CallExtras::default());
    let ready = Readiness { input, message: "look".into(), gate, extras };
    let (_, facts) =
        step_at(0, |step| clients.call_on_client(&mut ledger, step, call, "look".to_owned(), ready));
    assert!(
        matches!(&facts.iter().collect::<Vec<_>>()[..], [Fact::MayWait { id, .. }] if id == "c"),
        "{facts:?}"
    );
    let call = ledger.channels.chats.get(&CHAT).unwrap().conversation.tool("c").unwrap();
    assert!(matches!(call, ToolCallState::Running(_)) && client_of_call(call) == Some(MY_ID), "{call:?}");
    let outputs = outputs_of(|step| clients.remove_active_client(&mut ledger, step, SESSION, MY_ID, None));
    let results = commands_in(&outputs);
    let failed =
        |command: &&Command| matches!(command, Command::ToolResult { result, .. } if !result.success);
    assert!(results.iter().any(failed), "{results:?}");
}

#[test]
fn pending_question_is_declined_only_when_nobody_is_left_to_answer() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    connect(&mut ledger, OTHER, "other");
    start_turn(&mut ledger, "t");
    let request = serde_json::from_value(json!({ "id": "q" })).unwrap();
    outputs_of(|step| calls::ask(&mut ledger, step, CHAT, request));
    let client_id = Some(MY_ID.to_owned());
    let gone = Disconnect { client_id, is_lost: false, cancelling: false, cut: false, over: false };
    clients.disconnects.insert(ME, gone);
    ledger.presence.leaving.insert(ME);
    assert!(outputs_of(|step| clients.decline_pending(&mut ledger, step)).is_empty(), "another is there");
    ledger.presence.leaving.insert(OTHER);
    clients.expected.insert(OTHER);
    assert!(outputs_of(|step| clients.decline_pending(&mut ledger, step)).is_empty(), "it may come back");
    let outputs = outputs_of(|step| clients.return_expired(&mut ledger, step, OTHER));
    assert!(matches!(commands_in(&outputs)[..], [Command::Answer { .. }]), "{outputs:?}");
    assert!(clients.disconnects[&ME].cut, "its process says so");
}

#[test]
fn connection_that_never_initialized_has_no_turn_while_a_client_is_connected() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    start_turn(&mut ledger, "t");
    // No client is known to have begun it, as after a restart.
    ledger.channels.chats.get_mut(&CHAT).unwrap().run.as_mut().unwrap().by = None;
    let gone = Disconnect { client_id: None, is_lost: false, cancelling: false, cut: false, over: false };
    clients.disconnects.insert(OTHER, gone);
    assert_eq!(clients.chats_of_disconnected(&ledger, OTHER), []);
    ledger.presence.leaving.insert(ME);
    assert_eq!(clients.chats_of_disconnected(&ledger, OTHER), [CHAT]);
}

fn with_question_that_the_other_cannot_see() -> (Ledger, Clients) {
    let (mut ledger, clients) = (with_session(), Clients::default());
    connect(&mut ledger, OTHER, "other");
    let blind = Abilities { sees_questions: false, ..Abilities::default() };
    outputs_of(|step| clients.note_abilities(&mut ledger, step, OTHER, blind));
    start_turn(&mut ledger, "t");
    let request = serde_json::from_value(json!({ "id": "q" })).unwrap();
    outputs_of(|step| calls::ask(&mut ledger, step, CHAT, request));
    (ledger, clients)
}

#[test]
fn question_is_declined_when_the_only_client_that_can_show_it_is_expected_no_longer() {
    let (mut ledger, mut clients) = with_question_that_the_other_cannot_see();
    ledger.presence.leaving.insert(ME);
    clients.expected.insert(ME);
    assert!(outputs_of(|step| clients.decline_unseen_questions(&mut ledger, step)).is_empty());
    let outputs = outputs_of(|step| clients.return_expired(&mut ledger, step, ME));
    assert!(matches!(commands_in(&outputs)[..], [Command::Answer { .. }]), "{outputs:?}");
}

#[test]
fn admitted_clients_are_remembered_up_to_a_limit() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    for refused in [String::new(), "x".repeat(CLIENT_ID_BYTES_MAX + 1)] {
        assert!(clients.admit(&mut ledger, OTHER, &refused, None).is_err());
    }
    assert_eq!(clients.admit(&mut ledger, ME, "renamed", None), Ok(Some(MY_ID.to_owned())));
    for number in 0..CLIENTS_MAX {
        clients.admit(&mut ledger, OTHER, &number.to_string(), None).unwrap();
    }
    assert_eq!(clients.known.len(), CLIENTS_MAX);
    assert!(!clients.known.iter().any(|known| known.id == "renamed"), "the oldest is forgotten");
}

#[test]
fn client_that_reconnects_keeps_its_language() {
    let (mut ledger, mut clients) = (with_session(), Clients::default());
    clients.admit(&mut ledger, ME, MY_ID, Some(Language::of("de-AT"))).unwrap();
    clients.admit(&mut ledger, OTHER, MY_ID, None).unwrap();
    let language = |connection| ledger.presence.connections[&connection].language;
    assert_eq!((language(ME), language(OTHER)), (Language::of("de"), Language::of("de")));
}

#[test]
fn question_waits_only_for_clients_that_can_answer_and_see_it() {
    let (mut ledger, mut clients) = with_question_that_the_other_cannot_see();
    // The client that sees questions may come back; then it sends nothing any more.
    ledger.presence.leaving.insert(ME);
    clients.expected.insert(ME);
    assert!(outputs_of(|step| clients.decline_unseen_questions(&mut ledger, step)).is_empty());
    ledger.presence.connections.remove(&ME);
    assert!(outputs_of(|step| clients.decline_unseen_questions(&mut ledger, step)).is_empty());
    connect(&mut ledger, ME, MY_ID);
    clients.expected.clear();
    let outputs = outputs_of(|step| clients.decline_unseen_questions(&mut ledger, step));
    assert!(matches!(commands_in(&outputs)[..], [Command::Answer { .. }]), "{outputs:?}");
}
