//! Tests of turns and calls with a ledger alone.
//!
//! Owns: the facts that a turn tells, and the order in which it is closed.
//! Never: decides when a turn begins.

use ahp_types::state::ToolCallState;
use serde_json::json;

use super::calls::{self, CallRef, Readiness};
use super::pending::{self, PendingPlace};
use super::turns::{end_turn_without_advance, Ending};
use crate::host::catalogue::rows::ChatBody;
use crate::host::catalogue::save::{save_chat, save_whole_chat};
use crate::host::effects::{
    CallExtras, Command, Output, PermissionKind, PermissionOption, Record, ToolGate, ToolOutcome,
};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, RunPhase};
use crate::host::testing::{
    actions_in, chat, commands_in, outputs_of, registry, start_turn, step_at, with_session, CHAT,
};
use crate::host::NextRelease;
use crate::state::history::empty_message;

fn call(id: &str) -> CallRef {
    CallRef { key: CHAT, turn_id: "t".to_owned(), id: id.to_owned() }
}

/// Begins a call that waits for a permission, if these are its options, or runs. Returns the facts.
fn begin(ledger: &mut Ledger, id: &str, gate: ToolGate) -> Vec<Fact> {
    let (_, facts) = step_at(0, |step| {
        calls::start_call(ledger, step, call(id), "sh".to_owned(), "Shell".to_owned(), None, None);
        let (input, extras) = ("ls".to_owned(), CallExtras::default());
        let ready = Readiness { input, message: "Run".into(), gate, extras };
        calls::call_is_ready(ledger, step, call(id), ready);
    });
    facts.into()
}

fn state<'a>(ledger: &'a mut Ledger, id: &str) -> &'a ToolCallState {
    chat(ledger).conversation.tool(id).unwrap()
}

#[test]
fn call_that_asks_waits_for_the_user_and_ends_once() {
    let mut ledger = with_session();
    start_turn(&mut ledger, "t");
    let option = PermissionOption { id: "yes".to_owned(), label: None, kind: PermissionKind::AllowOnce };
    let facts = begin(&mut ledger, "c", ToolGate::Ask(vec![option]));
    assert!(matches!(&facts[..], [Fact::MayWait { id, is_question: false, .. }] if id == "c"), "{facts:?}");
    assert!(matches!(state(&mut ledger, "c"), ToolCallState::PendingConfirmation(_)));
    let mut finish = || {
        let outcome = ToolOutcome { success: true, message: "Ran".into(), content: Vec::new(), error: None };
        outputs_of(|step| {
            calls::finish_call(&mut ledger, step, &call("c"), outcome, false, CallExtras::default());
        })
    };
    assert!(actions_in(&finish()).contains(&"chat/toolCallComplete".to_owned()));
    assert!(finish().is_empty(), "it is over");
}

#[test]
fn what_a_turn_leaves_open_is_closed_before_its_only_end() {
    let mut ledger = with_session();
    let run = start_turn(&mut ledger, "t");
    begin(&mut ledger, "c", ToolGate::Open);
    let request = serde_json::from_value(json!({ "id": "q" })).unwrap();
    outputs_of(|step| calls::ask(&mut ledger, step, CHAT, request));
    let mut end = || {
        step_at(7, |step| {
            let ending = Ending::Cancelled { meta: None };
            end_turn_without_advance(&mut ledger, step, CHAT, ending, None);
        })
    };
    let (outputs, facts) = end();
    let names = actions_in(&outputs);
    let at =
        |name: &str| names.iter().position(|it| it == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    assert!(at("chat/toolCallComplete") < at("chat/turnCancelled"));
    assert!(at("chat/inputCompleted") < at("chat/turnCancelled"));
    assert!(matches!(facts.iter().collect::<Vec<_>>()[..], [Fact::TurnEnded(CHAT)]), "{facts:?}");
    assert_eq!(commands_in(&outputs), [&Command::Cancel { run }]);
    let (outputs, facts) = end();
    assert!(outputs.is_empty() && facts.is_empty(), "it has ended");
}

#[test]
fn own_turn_of_an_agent_that_ends_before_its_start_is_cancelled_at_the_agent() {
    for (is_own, link) in [(true, AgentLink::Open), (true, AgentLink::Closed), (false, AgentLink::Open)] {
        let mut ledger = with_session();
        let run = start_turn(&mut ledger, "t");
        let it = chat(&mut ledger);
        it.agent = link;
        let waiting = it.run.as_mut().unwrap();
        (waiting.is_own, waiting.phase) = (is_own, RunPhase::Waiting { resume: false });
        let ending = Ending::Cancelled { meta: None };
        let outputs = outputs_of(|step| end_turn_without_advance(&mut ledger, step, CHAT, ending, None));
        let waits_at_agent = is_own && link == AgentLink::Open;
        let expected = [&Command::OwnTurn { run }, &Command::Cancel { run }];
        assert_eq!(commands_in(&outputs), if waits_at_agent { &expected[..] } else { &[] });
        assert_eq!(chat(&mut ledger).cancelled_run, waits_at_agent.then_some(run));
    }
}

/// Sends the steering message `s` to the agent of a running turn.
fn with_steering() -> (Ledger, Vec<Output>) {
    let (mut ledger, agents) = (with_session(), registry(&[]));
    start_turn(&mut ledger, "t");
    let message = json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": "s",
        "message": empty_message() });
    let set = serde_json::from_value(message).unwrap();
    outputs_of(|step| ledger.sequence(step, CHAT, set, None));
    let outputs = outputs_of(|step| pending::send_steering(&mut ledger, &agents, step, CHAT));
    (ledger, outputs)
}

#[test]
fn steering_that_no_agent_took_is_put_back_when_the_turn_ends() {
    let (mut ledger, outputs) = with_steering();
    assert!(matches!(commands_in(&outputs)[..], [Command::Steer { .. }]), "{outputs:?}");
    assert!(chat(&mut ledger).conversation.state().steering_message.is_none());
    outputs_of(|step| end_turn_without_advance(&mut ledger, step, CHAT, Ending::Complete, None));
    let waits = chat(&mut ledger).conversation.state().steering_message.clone();
    assert_eq!(waits.map(|waits| waits.id).as_deref(), Some("s"));
    outputs_of(|step| {
        pending::consume(&mut ledger, step, CHAT, PendingPlace::Slot, "s".to_owned());
    });
    assert!(chat(&mut ledger).consumed.contains("s"), "it begins no second turn");
}

/// Sends the listed steering messages `a` and `b` to the agent of a running turn.
fn with_list() -> (Ledger, Vec<Output>) {
    let (mut ledger, agents) = (with_session(), registry(&[]));
    ledger.next = Some(NextRelease { path_style: "posix" });
    start_turn(&mut ledger, "t");
    for id in ["a", "b"] {
        let set = json!({ "type": "chat/steeringMessageSet",
            "steeringMessage": { "id": id, "message": empty_message() } });
        let set = serde_json::from_value(set).unwrap();
        outputs_of(|step| ledger.sequence(step, CHAT, set, None));
    }
    let outputs = outputs_of(|step| pending::send_steering(&mut ledger, &agents, step, CHAT));
    (ledger, outputs)
}

fn listed(ledger: &mut Ledger) -> Vec<String> {
    chat(ledger).conversation.steering_messages().iter().map(|listed| listed.id.clone()).collect()
}

#[test]
fn listed_messages_are_all_sent_and_all_listed_again_that_no_agent_took() {
    let (mut ledger, outputs) = with_list();
    assert!(
        matches!(commands_in(&outputs)[..], [Command::Steer { .. }, Command::Steer { .. }]),
        "{outputs:?}"
    );
    assert_eq!(actions_in(&outputs), ["chat/steeringMessageRemoved"; 2]);
    assert!(listed(&mut ledger).is_empty());
    pending::steering_arrived(&mut ledger, CHAT, "a");
    outputs_of(|step| end_turn_without_advance(&mut ledger, step, CHAT, Ending::Complete, None));
    assert_eq!(listed(&mut ledger), ["b"]);
    assert!(chat(&mut ledger).consumed.contains("a") && !chat(&mut ledger).consumed.contains("b"));
}

#[test]
fn list_is_stored_with_its_chat_and_waits_while_the_preview_is_off() {
    let (mut ledger, _) = with_list();
    outputs_of(|step| pending::steering_was_refused(&mut ledger, step, CHAT, "b"));
    assert_eq!(listed(&mut ledger), ["b"]);
    let outputs = outputs_of(|step| save_whole_chat(&mut ledger, step, CHAT));
    let row = outputs.iter().find_map(|output| match output {
        Output::Record(Record::Chat(row)) => Some(row),
        _ => None,
    });
    let stored = ChatBody::read(&row.unwrap().body).unwrap();
    assert_eq!(stored.steering_messages[0].id, "b");
    let shown = |ledger: &Ledger| {
        let of_chat = ledger.channels.chats.known(CHAT).unwrap();
        pending::steering_of(ledger, of_chat).count()
    };
    assert_eq!(shown(&ledger), 1);
    ledger.next = None;
    assert_eq!(shown(&ledger), 0);
}

#[test]
fn refused_steering_message_keeps_its_place_across_a_restart() {
    let (mut ledger, _) = with_steering();
    outputs_of(|step| save_whole_chat(&mut ledger, step, CHAT));
    ledger.take_dirty();
    outputs_of(|step| pending::steering_was_refused(&mut ledger, step, CHAT, "s"));
    assert!(ledger.take_dirty().contains(&CHAT.into()));
    let outputs = outputs_of(|step| save_chat(&mut ledger, step, CHAT));
    let [Output::Record(Record::Chat(row))] = &outputs[..] else { panic!("{outputs:?}") };
    let stored = ChatBody::read(&row.body).unwrap();
    assert_eq!(stored.undelivered_steering.into_iter().collect::<Vec<_>>(), ["s"]);
}
