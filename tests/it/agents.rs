//! The scripted agent, told several things at once: through the program it is chance what comes
//! together.
//!
//! Owns: a conversation with it, without a host.
//! Never: waits for anything but its reports.

use std::collections::BTreeMap;

use ahp_sidecar::backend::{script::Script, AgentReceivers, Agents, Report};
use ahp_sidecar::host::effects::{ChatKey, Command, Event, OpenConversation, RunId, TurnEnd, TurnEvent};
use ahp_types::state::{ChatInputResponseKind, Message};
use serde_json::{json, Value};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::support::HUNG;

const CHAT: ChatKey = ChatKey(1);
const RUN: RunId = RunId(1);

fn message(text: &str) -> Message {
    serde_json::from_value(json!({ "text": text, "origin": { "kind": "user" } })).unwrap()
}

/// Returns the reports up to and including the first event that `is_wanted` accepts.
async fn until(
    agents: &mut Agents,
    reports: &mut Receiver<Report>,
    is_it: impl Fn(&Event) -> bool,
) -> Vec<Event> {
    let mut heard = Vec::new();
    loop {
        let report = timeout(HUNG, reports.recv()).await.unwrap_or_else(|_| panic!("only {heard:?} came"));
        heard.extend(agents.accept(report.unwrap()).map(|(_, event)| event));
        if heard.last().is_some_and(&is_it) {
            return heard;
        }
    }
}

#[tokio::test]
async fn answer_followed_by_a_steering_message_reaches_the_agent() {
    let (mut agents, AgentReceivers { mut reports, .. }) = Agents::new(vec![Box::new(Script)]);
    agents.carry_out(
        CHAT,
        Command::Open(OpenConversation {
            selection: None,
            attached: Default::default(),
            provider: "script".to_owned(),
            working_directories: Vec::new(),
            tokens: Default::default(),
            config: serde_json::Map::new(),
            history: Vec::new(),
            handle: None,
            copy_of: None,
            client_tools: Vec::new(),
            mcp_servers: Vec::new(),
            client_mcp_servers: Vec::new(),
        }),
    );
    let script = r#"/question [{"kind":"text","id":"name","message":"Who?"}]"#;
    agents.carry_out(CHAT, Command::StartTurn { run: RUN, message: message(script), attached: Vec::new() });
    let is_question = |event: &Event| matches!(event, Event::Turn(_, TurnEvent::Question { .. }));
    let asked = until(&mut agents, &mut reports, is_question).await;
    let Some(Event::Turn(_, TurnEvent::Question { id, .. })) = asked.last() else { panic!("{asked:?}") };

    // Nobody runs between these two.
    let steer =
        Command::Steer { run: RUN, id: "m1".to_owned(), message: message("Left!"), attached: Vec::new() };
    agents.carry_out(CHAT, steer);
    let answer: Value = json!({ "state": "submitted", "value": { "kind": "text", "value": "Ada" } });
    agents.carry_out(
        CHAT,
        Command::Answer {
            run: RUN,
            request_id: id.clone(),
            response: ChatInputResponseKind::Accept,
            answers: BTreeMap::from([("name".to_owned(), serde_json::from_value(answer).unwrap())]),
        },
    );
    let is_end = |event: &Event| matches!(event, Event::Turn(_, TurnEvent::Ended(_)));
    let heard = until(&mut agents, &mut reports, is_end).await;
    let told = format!("{heard:?}");
    assert!(told.contains("Left!") && told.contains("name: Ada"), "{told}");
    assert_eq!(heard.last(), Some(&Event::Turn(RUN, TurnEvent::Ended(TurnEnd::Complete))));
}
