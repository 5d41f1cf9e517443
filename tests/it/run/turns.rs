//! Plain turns: the prompt, the forms of the output, and how turns end.

use serde_json::{json, Value};

use super::{fleeting, kept, ran, ran_with_input, run_of, summed_up};

#[test]
fn answer_is_printed_as_text_and_ends_with_a_line_end() {
    let done = ran(&mut fleeting("Hello from a shell"));
    assert_eq!((done.status, done.out.as_str(), done.err.as_str()), (0, "Hello from a shell\n", ""));
}

#[test]
fn prompt_is_read_from_stdin_if_it_is_a_dash_or_missing() {
    for arguments in [&["--ephemeral", "-"][..], &["--ephemeral"]] {
        let done = ran_with_input(run_of(arguments).args(["--config", "/dev/null"]), "Hello\n");
        assert_eq!((done.status, done.out.as_str()), (0, "Hello\n"), "{done:?}");
    }
}

#[test]
fn texts_around_a_call_are_separated_by_a_blank_line() {
    let done = ran(&mut fleeting("/say one\n/think hmm\n/tool ls\n/say two"));
    assert_eq!(done.out, "one\n\ntwo\n");
}

#[test]
fn quiet_run_prints_the_final_answer_alone() {
    let done = ran(fleeting("/say one\n/tool ls\n/say two").arg("--quiet"));
    assert_eq!((done.status, done.out.as_str()), (0, "two\n"));
}

#[test]
fn json_run_prints_each_action_of_session_and_chat_as_a_line() {
    let done = ran(fleeting("/say one").arg("--json"));
    let lines: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["action"]["type"].as_str().unwrap()).collect();
    let of =
        |kind: &str| kinds.iter().position(|it| *it == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    assert!(of("chat/turnStarted") < of("chat/responsePart"), "{kinds:?}");
    assert!(of("chat/responsePart") < of("chat/turnComplete"), "{kinds:?}");
    let numbers: Vec<u64> = lines.iter().map(|line| line["serverSeq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    assert!(lines.iter().all(|line| line["channel"].is_string()));
}

#[test]
fn further_prompts_are_further_turns_of_the_session() {
    let (done, summary) = summed_up(fleeting("one").args(["--then", "/recall", "--then", "/usage 3 4"]));
    assert_eq!((done.status, done.out.as_str()), (0, "one\n\none\n"), "{done:?}");
    assert_eq!(summary["turns"].as_array().unwrap().len(), 3);
    assert_eq!(summary["turns"][1]["answer"], "one");
}

#[test]
fn usage_of_all_turns_is_summed_up() {
    let (_, summary) = summed_up(fleeting("/usage 3 4").args(["--then", "/usage 10 20"]));
    assert_eq!(summary["usage"], json!({ "inputTokens": 13, "outputTokens": 24, "cacheReadTokens": null }));
    assert_eq!(summary["turns"][0]["usage"]["outputTokens"], 4);
}

#[test]
fn turn_that_fails_ends_the_run_with_its_error() {
    let (done, summary) = summed_up(fleeting("/say before\n/error boom").args(["--then", "never"]));
    assert_eq!((done.status, done.out.as_str()), (10, "before\n"));
    assert!(done.err.contains("error: boom"), "{}", done.err);
    assert_eq!((&summary["result"], &summary["error"]["message"]), (&json!("error"), &json!("boom")));
    assert_eq!(summary["turns"].as_array().unwrap().len(), 1);
    assert_eq!(summary["turns"][0]["result"], "error");
}

#[test]
fn summary_has_the_documented_members() {
    let (_, summary) = summed_up(&mut fleeting("Hello"));
    let members: Vec<&str> = summary.as_object().unwrap().keys().map(String::as_str).collect();
    let chapter = include_str!("../../../src/run/README.md");
    let table = chapter.split("| member | content |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = table.lines().skip(2).map(|row| row.split('`').nth(1).unwrap());
    assert_eq!(members, rows.collect::<Vec<_>>());
    assert_eq!((&summary["schema"], &summary["result"]), (&json!(1), &json!("completed")));
    assert_eq!((&summary["answer"], &summary["agent"]), (&json!("Hello"), &json!("script")));
    assert!(summary["session"].as_str().unwrap().starts_with("ahp-session:/"));
    assert_eq!(summary["changes"], json!([]));
}

#[test]
fn wrong_usage_is_refused_before_anything_starts() {
    for (arguments, why) in [
        (&["--set", "x"][..], "--set: `x` is not OPTION=VALUE"),
        (&["--allow", "edit"], "--allow: `edit`"),
        (&["--deny", "kind"], "--deny: `kind`"),
        (&["--dir", "/no/such"], "--dir: `/no/such` is not a folder"),
        (&["--attach", "/no/such"], "--attach: `/no/such`"),
        (&["--answers", "/no/such"], "--answers: `/no/such`"),
        (&["--config", "/no/such"], "--config: `/no/such`"),
        (&["--then", " "], "a prompt is empty"),
    ] {
        let done = ran(run_of(["--ephemeral", "Hello"]).args(arguments));
        assert_eq!((done.status, done.out.as_str()), (2, ""), "{arguments:?}: {done:?}");
        assert!(done.err.contains(why), "{arguments:?}: {}", done.err);
    }
}

#[test]
fn host_that_cannot_serve_decides_the_exit_status() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = ran(&mut kept(file.path(), "Hello"));
    assert_eq!((done.status, done.out.as_str()), (3, ""), "{done:?}");
    assert!(!done.err.is_empty());
}
