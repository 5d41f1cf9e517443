//! The end of stdin: what was said is served, what runs may end or is cancelled, as asked.

use serde_json::json;

use super::{kind, kinds, line, opening, ping, turn, Heard};
use crate::support::Process;

/// Says all of it at once, ends the input, and returns the program.
fn say_and_end(arguments: &[&str], input: &str) -> Process {
    let mut process = Process::start(arguments);
    process.say_bytes(input.as_bytes());
    process.end();
    process
}

fn read_summary(process: &mut Process) -> Heard {
    let mut heard = Heard::default();
    while let Some(line) = process.next_line() {
        heard.add_line(&line);
    }
    heard
}

#[test]
fn every_line_before_the_end_of_input_is_served() {
    let input: String = (0..10_000).map(ping).collect();
    let mut process = say_and_end(&[], &input);
    assert_eq!(read_summary(&mut process).pings, (0..10_000).collect::<Vec<_>>());
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn last_line_without_a_newline_is_served_if_complete() {
    let whole = format!("{}{}", ping(1), ping(2).trim_end());
    let mut process = say_and_end(&[], &whole);
    assert_eq!(read_summary(&mut process).pings, [1, 2]);
    assert_eq!(process.wait().code(), Some(0));

    let mut process = say_and_end(&[], &whole[..whole.len() - 2]);
    assert_eq!(process.rest(), [json!({ "jsonrpc": "2.0", "id": 1, "result": null })]);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn terminal_that_is_starting_at_the_end_of_input_is_answered() {
    let claim = json!({ "kind": "client", "clientId": "me" });
    let create = line(json!({ "id": "terminal", "method": "createTerminal", "params":
        { "channel": "ahp-terminal:/t", "claim": claim } }));
    for arguments in [&[][..], &["--deterministic"]] {
        let mut process = say_and_end(arguments, &(opening() + &create));
        let answers: Vec<_> = process.rest().into_iter().filter(|it| it["id"] == "terminal").collect();
        assert_eq!(answers, [json!({ "jsonrpc": "2.0", "id": "terminal", "result": null })]);
        assert_eq!(process.wait().code(), Some(0));
    }
}

#[test]
fn running_turn_finishes_after_the_end_of_input() {
    let mut process = say_and_end(&[], &(opening() + &turn("/stream 2000 10\n/sleep 50\n/stream 2000 10")));
    let mut texts = [String::new(), String::new()];
    let messages = process.rest();
    for message in messages.iter().filter(|message| kind(message) == "chat/delta") {
        let action = &message["params"]["action"];
        let text = &mut texts[usize::from(action["partId"] == "part-1")];
        text.push_str(action["content"].as_str().unwrap());
    }
    let digits = "0123456789".repeat(2000);
    assert!(texts.iter().all(|text| *text == digits), "not all of the text came");
    assert_eq!(messages.last().map(kind), Some("chat/turnComplete"));
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn queued_messages_run_after_the_end_of_input() {
    let queued = json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": "q",
        "message": { "text": "/say two", "origin": { "kind": "user" } } });
    let queued = line(json!({ "method": "dispatchAction", "params":
        { "channel": super::CHAT, "clientSeq": 2, "action": queued } }));
    let mut process = say_and_end(&[], &(opening() + &turn("/sleep 50") + &queued));
    assert_eq!(read_summary(&mut process).endings, ["chat/turnComplete"; 2]);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn running_turns_are_cancelled_at_the_end_of_input_with_on_eof_exit() {
    let mut process = Process::start(&["--on-eof", "exit"]);
    process.say_bytes((opening() + &turn("/hang")).as_bytes());
    process.until(|message| kind(message) == "chat/turnStarted");
    process.end();
    assert_eq!(process.rest().last().map(kind), Some("chat/turnCancelled"));
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn unanswerable_question_is_declined_after_the_end_of_input_with_status_4() {
    let question = r#"/question [{"kind":"text","id":"q","message":"Who?"}]"#;
    for (step, declined) in [
        ("/ask shell", "chat/toolCallConfirmed"),
        ("/review shell", "chat/toolCallResultConfirmed"),
        (question, "chat/inputCompleted"),
    ] {
        // Asked before the end, or after it.
        for before in ["", "/sleep 50\n"] {
            let script = format!("{before}{step}\n/say after");
            let mut process = say_and_end(&[], &(opening() + &turn(&script)));
            let messages = process.rest();
            let kinds = kinds(&messages);
            assert!(kinds.contains(&declined), "{step}: {kinds:?}");
            // Behind what was said of the answer it is a message of its own.
            let said = |message: &serde_json::Value| {
                let content = message["params"]["action"]["part"]["content"].as_str();
                content.is_some_and(|content| content.trim_start() == "after")
            };
            assert!(messages.iter().any(said), "{step}: the script did not go on");
            assert_eq!(kinds.last(), Some(&"chat/turnComplete"), "{step}");
            assert_eq!(process.wait().code(), Some(4), "{step}");
        }
    }
}

#[test]
fn drain_timeout_cancels_the_running_turn_with_status_4() {
    for seconds in ["0", "1"] {
        let mut process = say_and_end(&["--drain-timeout", seconds], &(opening() + &turn("/hang")));
        assert_eq!(process.rest().last().map(kind), Some("chat/turnCancelled"));
        assert_eq!(process.wait().code(), Some(4));
    }
}
