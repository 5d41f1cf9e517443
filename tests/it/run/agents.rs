//! Agents that speak ACP, and agents that cannot be used.

use std::fs;

use serde_json::json;

use super::{fleeting, ran, run_of, summed_up, Ran};

const AGENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py");

fn with_agent(arguments: &str, prompt: &str, more: &[&str]) -> (Ran, serde_json::Value) {
    let agent = format!("a=python3 {AGENT} {arguments}");
    summed_up(fleeting(prompt).args(["--agent", &agent]).args(more))
}

#[test]
fn agent_of_a_command_line_answers() {
    let (done, summary) = with_agent("", "say Hello", &[]);
    assert_eq!((done.status, done.out.as_str()), (0, "Hello\n"), "{done:?}");
    assert_eq!(summary["agent"], "a");
}

#[test]
fn agent_of_the_configuration_is_chosen_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let agent = |name: &str, title: &str| {
        format!("[agents.{name}]\ncommand = 'python3'\nargs = [{AGENT:?}]\ntitle = '{title}'\n")
    };
    fs::write(&config, agent("a", "A") + &agent("b", "B")).unwrap();
    let (done, summary) =
        summed_up(run_of(["--ephemeral", "say Hello", "--agent", "b", "--config"]).arg(&config));
    assert_eq!((done.status, &summary["agent"]), (0, &json!("b")), "{done:?}");
}

#[test]
fn permission_of_an_agent_is_decided_by_kind_and_path() {
    let ask = r#"permission {"options":[{"optionId":"yes","name":"Yes","kind":"allow_once"},{"optionId":"always","name":"Always","kind":"allow_always"},{"optionId":"no","name":"No","kind":"reject_once"}],"toolCall":{"toolCallId":"c","title":"Change it","kind":"edit","locations":[{"path":"/tmp/x.rs"}]}}"#;
    let (done, summary) = with_agent("", ask, &["--allow", "kind=edit path=/tmp/*.rs"]);
    assert_eq!((done.status, done.out.as_str()), (0, "yes\n"), "{done:?}");
    assert_eq!(summary["permissions"][0]["kind"], "edit");
    let (done, _) = with_agent("", ask, &["--allow", "kind=read; kind=edit path=/tmp/*.py"]);
    assert_eq!((done.status, done.out.as_str()), (11, "no\n"), "{done:?}");
}

#[test]
fn command_of_an_agent_is_decided_by_its_first_words() {
    let ask = r#"permission {"options":[{"optionId":"yes","name":"Yes","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}],"toolCall":{"toolCallId":"c","title":"Run","kind":"execute","rawInput":{"command":"git status --short"}}}"#;
    let (done, summary) = with_agent("", ask, &["--allow", "command=git status"]);
    assert_eq!((done.status, done.out.as_str()), (0, "yes\n"), "{done:?}");
    assert_eq!(summary["permissions"][0]["command"], "git status --short");
    let (done, _) = with_agent("", ask, &["--allow", "kind=execute", "--deny", "command=git"]);
    assert_eq!((done.status, done.out.as_str()), (11, "no\n"), "{done:?}");
}

#[test]
fn attached_file_is_in_the_first_message_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().canonicalize().unwrap().join("a note.txt");
    fs::write(&file, "text").unwrap();
    let done = ran(fleeting("one").args(["--then", "two", "--json", "--attach"]).arg(&file));
    let lines = done.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let started = lines.filter(|line| line["action"]["type"] == "chat/turnStarted");
    let attached: Vec<_> = started.map(|line| line["action"]["message"]["attachments"].clone()).collect();
    let uri = format!("file://{}", file.display()).replace(' ', "%20");
    let expected =
        json!([{ "type": "resource", "label": "a note.txt", "displayKind": "document", "uri": uri }]);
    assert_eq!(attached, [expected, json!(null)]);
}

#[test]
fn agent_that_requires_a_login_cannot_be_used() {
    let (done, summary) = with_agent("--login out", "say Hello", &[]);
    assert_eq!((done.status, done.out.as_str()), (13, ""), "{done:?}");
    assert_eq!((&summary["result"], &summary["error"]["kind"]), (&json!("unusable"), &json!("authRequired")));
    assert!(done.err.contains("login") && done.err.contains("log in with"), "{}", done.err);
}

#[test]
fn agent_that_does_not_exist_or_start_cannot_be_used() {
    for (arguments, why) in [
        (["--agent", "nobody"], "no agent provider `nobody`; there are: script"),
        (["--agent", "a=/no/such"], "it is not installed"),
        (["--set", "fail=too tired"], "too tired"),
        (["--agent", "a=false"], "the agent `a`"),
    ] {
        let done = ran(fleeting("Hello").args(arguments));
        assert_eq!((done.status, done.out.as_str()), (13, ""), "{arguments:?}: {done:?}");
        assert!(done.err.contains(why), "{arguments:?}: {}", done.err);
    }
}
