//! Tests of terminals with a ledger alone.
//!
//! Owns: when a terminal comes into being and goes, and who may type into it.
//! Never: runs a program.

use ahp_types::actions::{StateAction, TerminalInputAction};
use ahp_types::commands::CreateTerminalParams;
use ahp_types::state::ToolResultContent;
use serde_json::json;

use super::{claims, ptys};
use crate::host::channels::Terminal;
use crate::host::effects::{ConnectionId, Output, PtyCommand, TerminalEvent, TerminalKey, Timer};
use crate::host::ledger::Ledger;
use crate::host::model::Subscription;
use crate::host::refusal::Refusal;
use crate::host::terminals::scrollback::text_of;
use crate::host::testing::{
    actions_in, chat, connect, origin, outputs_of, start_turn, with_session, CHAT, ME, MY_ID, SESSION,
};

const OTHER: ConnectionId = ConnectionId(2);

fn report(ledger: &mut Ledger, event: TerminalEvent) -> Vec<Output> {
    outputs_of(|step| super::terminal_reports(ledger, step, CHAT, "one".to_owned(), event))
}

fn only(ledger: &Ledger) -> Option<(TerminalKey, &Terminal)> {
    ledger.channels.terminals.iter().next().map(|(key, terminal)| (*key, terminal))
}

/// Creates a terminal of the client `me`. Returns its key and the outputs.
fn create(ledger: &mut Ledger) -> (TerminalKey, Vec<Output>) {
    let claim = json!({ "kind": "client", "clientId": MY_ID });
    let params = json!({ "channel": "x:/1", "claim": claim });
    let params: CreateTerminalParams = serde_json::from_value(params).unwrap();
    let outputs = outputs_of(|step| {
        let new = ptys::new_terminal(ledger, step, ME, params).unwrap();
        ptys::create_terminal(ledger, step, ME, crate::wire::rpc::RequestId::inner(1), *new);
    });
    (only(ledger).unwrap().0, outputs)
}

#[test]
fn terminal_of_an_agent_stays_while_its_command_runs_or_its_turn_may_show_it() {
    let mut ledger = with_session();
    start_turn(&mut ledger, "t");
    let opened = TerminalEvent::Opened { call: "c".to_owned(), title: "make".to_owned(), detaches: false };
    report(&mut ledger, opened);
    let data = report(&mut ledger, TerminalEvent::Data("printed".to_owned()));
    assert_eq!(actions_in(&data), ["terminal/data"]);
    let text = only(&ledger).unwrap().1.state.content.iter().map(text_of).collect::<String>();
    assert_eq!(text, "printed");
    report(&mut ledger, TerminalEvent::Exited(Some(0)));
    assert!(report(&mut ledger, TerminalEvent::Data("late".to_owned())).is_empty(), "it has ended");
    outputs_of(|step| super::settle_terminals(&mut ledger, step));
    assert!(only(&ledger).is_some(), "its agent may have a call show it");
    chat(&mut ledger).run = None;
    ledger.touch(crate::wire::channels::ChannelKind::Terminal);
    outputs_of(|step| super::settle_terminals(&mut ledger, step));
    assert!(only(&ledger).is_none());
}

#[test]
fn typed_text_reaches_the_program_from_the_holder_alone() {
    let mut ledger = with_session();
    connect(&mut ledger, OTHER, "other");
    let (key, outputs) = create(&mut ledger);
    let [Output::Pty(started, PtyCommand::Start(_)), Output::Timer(Timer::Terminal(..), _)] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(*started, key);
    assert_eq!(claims::check_use(&ledger, key, MY_ID), Ok(()));
    assert_eq!(claims::check_use(&ledger, key, "other"), Err(Refusal::ClaimedByOther));
    let typed = StateAction::TerminalInput(TerminalInputAction { data: "ls\n".to_owned() });
    let outputs = outputs_of(|step| {
        assert!(super::client_changes_terminal(&mut ledger, step, key, typed, origin()).is_ok());
    });
    let [Output::Pty(_, PtyCommand::Type(text))] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(text.0, "ls\n");
}

#[test]
fn terminal_ends_when_its_client_is_gone_for_the_grace_period() {
    let mut ledger = with_session();
    let (key, _) = create(&mut ledger);
    ledger.subscribe(ME, key.into(), Subscription::default());
    let settle = |ledger: &mut Ledger| {
        ledger.touch(crate::wire::channels::ChannelKind::Terminal);
        outputs_of(|step| super::settle_terminals(ledger, step))
    };
    assert!(settle(&mut ledger).is_empty(), "its client is there");
    ledger.presence.connections.remove(&ME);
    let outputs = settle(&mut ledger);
    let [Output::Timer(Timer::Terminal(timed, number), _)] = outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(timed, key);
    connect(&mut ledger, OTHER, MY_ID);
    settle(&mut ledger);
    outputs_of(|step| ptys::terminal_expired(&mut ledger, step, key, number));
    assert!(only(&ledger).is_some(), "its client has come back");
    ledger.presence.connections.remove(&OTHER);
    let outputs = settle(&mut ledger);
    let [Output::Timer(Timer::Terminal(_, number), _)] = outputs[..] else { panic!("{outputs:?}") };
    let outputs = outputs_of(|step| ptys::terminal_expired(&mut ledger, step, key, number));
    assert!(matches!(outputs[..], [Output::Pty(_, PtyCommand::End), ..]), "{outputs:?}");
    assert!(only(&ledger).is_none());
}

#[test]
fn output_of_a_clients_shell_is_not_the_result_of_a_call_that_shows_it() {
    let mut ledger = with_session();
    let (key, _) = create(&mut ledger);
    let session = ledger.channels.sessions.get(&SESSION).unwrap().channel.uri.clone();
    let terminal = ledger.channels.terminals.get_mut(&key).unwrap();
    let claim = json!({ "kind": "session", "session": session, "chat": "c:/1", "toolCallId": "c" });
    terminal.state.claim = serde_json::from_value(claim).unwrap();
    let lifecycle = json!({ "status": "exited", "exitCode": 0 });
    terminal.state.lifecycle = serde_json::from_value(lifecycle).unwrap();
    let block = json!({ "type": "terminal", "resource": terminal.channel.uri, "title": "a shell" });
    let content = vec![serde_json::from_value(block).unwrap()];
    let placed = super::place_terminals(&ledger, CHAT, content);
    let [ToolResultContent::Terminal(shown)] = &placed[..] else { panic!("no terminal is shown") };
    assert_eq!(shown.result, None);
}
