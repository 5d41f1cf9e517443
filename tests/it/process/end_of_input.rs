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

fn heard(process: &mut Process) -> Heard {
    let mut heard = Heard::default();
    while let Some(line) = process.next_line() {
        heard.take_in(&line);
    }
    heard
}

#[test]
fn every_line_that_was_said_is_served() {
    let input: String = (0..10_000).map(ping).collect();
    let mut process = say_and_end(&[], &input);
    assert_eq!(heard(&mut process).pings, (0..10_000).collect::<Vec<_>>());
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn a_last_line_without_its_end_is_served_if_it_is_whole() {
    let whole = format!("{}{}", ping(1), ping(2).trim_end());
    let mut process = say_and_end(&[], &whole);
    assert_eq!(heard(&mut process).pings, [1, 2]);
    assert_eq!(process.wait().code(), Some(0));

    let mut process = say_and_end(&[], &whole[..whole.len() - 2]);
    assert_eq!(process.rest(), [json!({ "jsonrpc": "2.0", "id": 1, "result": null })]);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn a_running_turn_goes_on_to_its_end() {
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
fn queued_messages_are_served_too() {
    let queued = json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": "q",
        "message": { "text": "/say two", "origin": { "kind": "user" } } });
    let queued = line(json!({ "method": "dispatchAction", "params":
        { "channel": super::CHAT, "clientSeq": 2, "action": queued } }));
    let mut process = say_and_end(&[], &(opening() + &turn("/sleep 50") + &queued));
    assert_eq!(heard(&mut process).endings, ["chat/turnComplete"; 2]);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn when_asked_to_exit_turns_are_cancelled() {
    let mut process = Process::start(&["--on-eof", "exit"]);
    process.say_bytes((opening() + &turn("/hang")).as_bytes());
    process.until(|message| kind(message) == "chat/turnStarted");
    process.end();
    assert_eq!(process.rest().last().map(kind), Some("chat/turnCancelled"));
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn what_nobody_can_answer_is_declined_and_the_status_says_so() {
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
fn what_runs_too_long_is_cut_and_the_status_says_so() {
    for seconds in ["0", "1"] {
        let mut process = say_and_end(&["--drain-timeout", seconds], &(opening() + &turn("/hang")));
        assert_eq!(process.rest().last().map(kind), Some("chat/turnCancelled"));
        assert_eq!(process.wait().code(), Some(4));
    }
}
