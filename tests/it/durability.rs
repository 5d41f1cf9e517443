//! Records that must survive a loss of power: the host marks each step in which a turn ends or a
//! user decides something.
//!
//! Owns: which steps leave a record that they are to be synced.
//! Never: looks at a disk; what the store does with that record is told by its own tests.

use ahp_sidecar::host::effects::{
    Command, ConnectionId, Event, Input, Output, PermissionKind, PermissionOption, Record, ToolGate, TurnEnd,
    TurnEvent,
};
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

fn is_synced(outputs: &[Output]) -> bool {
    outputs.iter().any(|output| matches!(output, Output::Record(Record::Sync)))
}

fn dispatch(core: &mut Core, action: Value) -> Vec<Output> {
    let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
    core.feed(said(CLIENT, json!({ "method": "dispatchAction", "params": params })))
}

#[test]
fn decisions_and_the_ends_of_turns_are_synced() {
    let mut core = Core::new();
    core.feed(Input::Opened { connection: CLIENT, default_directory: None });
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    core.feed(said(CLIENT, json!({ "id": 1, "method": "initialize", "params": hello })));
    let begin = json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION } });
    let chat = opened(&core.feed(said(CLIENT, begin)));
    core.feed(Input::Agent(chat, Event::Opened));
    let failed = || TurnEnd::Failed { kind: "k".to_owned(), message: "m".to_owned(), resumable: false };
    for (turn, end) in
        [("complete", Some(TurnEnd::Complete)), ("failed", Some(failed())), ("cancelled", None)]
    {
        let message = json!({ "text": "go", "origin": { "kind": "user" } });
        let start = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        let outputs = dispatch(&mut core, start);
        assert!(!is_synced(&outputs), "what only begins may be lost");
        let run = outputs.iter().find_map(|output| match output {
            Output::Agent(_, command) => match **command {
                Command::StartTurn { run, .. } => Some(run),
                _ => None,
            },
            _ => None,
        });
        let run = run.expect("the agent was told to start");
        let call = format!("call-{turn}");
        let started =
            TurnEvent::ToolStarted { id: call.clone(), name: "n".to_owned(), display_name: "N".to_owned() };
        assert!(!is_synced(&core.feed(Input::Agent(chat, Event::Turn(run, started)))));
        let option = PermissionOption { id: "yes".to_owned(), label: None, kind: PermissionKind::AllowOnce };
        let gate = ToolGate::Ask(vec![option]);
        let ready =
            TurnEvent::ToolReady { id: call.clone(), input: "{}".to_owned(), message: "M".into(), gate };
        assert!(!is_synced(&core.feed(Input::Agent(chat, Event::Turn(run, ready)))));
        let decided = json!({ "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call,
                              "approved": true, "confirmed": "user-action", "selectedOptionId": "yes" });
        assert!(is_synced(&dispatch(&mut core, decided)), "a decision");
        let outputs = match end {
            Some(end) => core.feed(Input::Agent(chat, Event::Turn(run, TurnEvent::Ended(end)))),
            None => dispatch(&mut core, json!({ "type": "chat/turnCancelled", "turnId": turn })),
        };
        assert!(is_synced(&outputs), "the end of a turn that is {turn}");
        core.feed(Input::Agent(chat, Event::Turn(run, TurnEvent::Ended(TurnEnd::Cancelled))));
    }
}
