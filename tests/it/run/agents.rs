//! Agents that speak ACP, and agents that cannot be used.

use std::fs;

use serde_json::json;

use super::{fleeting, ran, run_of, summed_up, Ran};

/// The scripted agent of the ACP tests.
pub const AGENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py");

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

/// A request for a permission with these options, as pairs of id and kind.
fn asking(options: &[(&str, &str)], call: serde_json::Value) -> String {
    let option = |(id, kind): &(&str, &str)| json!({ "optionId": id, "name": id, "kind": kind });
    let options: Vec<_> = options.iter().map(option).collect();
    format!("permission {}", json!({ "options": options, "toolCall": call }))
}

fn command(line: &str) -> serde_json::Value {
    json!({ "toolCallId": "c", "title": "Run", "kind": "execute", "rawInput": { "command": line } })
}

const ONCE: [(&str, &str); 2] = [("yes", "allow_once"), ("no", "reject_once")];

#[test]
fn agent_gets_an_answer_whatever_it_offers() {
    let all = &["--allow-all"][..];
    let rule = &["--allow", "kind=execute"][..];
    let denying = &["--allow-all", "--deny", "kind=edit"][..];
    for (options, flags, status, answer) in [
        (&[("always", "allow_always")][..], all, 0, "always"),
        (&[("always", "allow_always"), ("no", "reject_once")], all, 0, "always"),
        // Later calls would be granted against the rules.
        (&[("always", "allow_always"), ("no", "reject_once")], rule, 11, "no"),
        (&[("always", "allow_always"), ("no", "reject_once")], denying, 11, "no"),
        (&[("always", "allow_always"), ("never", "reject_always")], rule, 11, "cancelled"),
        (&[("no", "reject_once")], all, 11, "no"),
        (&[("never", "reject_always")], all, 11, "cancelled"),
        (&[("x", "reject_once"), ("x", "allow_once")], all, 0, "x"),
        (&[("odd", "allow_perhaps")], all, 0, "odd"),
    ] {
        let (done, summary) = with_agent("", &asking(options, command("ls")), flags);
        assert_eq!((done.status, done.out.trim()), (status, answer), "{options:?} {flags:?}: {done:?}");
        let decided = summary["permissions"].as_array().unwrap();
        assert_eq!(decided.len(), 1, "{summary}");
        assert_eq!(decided[0]["allowed"], status == 0, "{summary}");
    }
    let (_, summary) = with_agent("", &asking(&[("always", "allow_always")], command("ls")), rule);
    assert_eq!(summary["permissions"][0]["reason"], "the agent offers no permission for this call alone");
}

#[test]
fn denied_command_is_found_behind_other_words_and_a_doubtful_one_is_denied() {
    for (line, reason) in [
        ("if true; then X=1 /bin/rm x; fi", json!(null)),
        ("sudo bash -c 'rm x'", json!(null)),
        (
            "$(echo rm) x",
            json!(
                "the command line cannot be taken apart: only a shell knows the name of one of its commands"
            ),
        ),
    ] {
        let (done, summary) =
            with_agent("", &asking(&ONCE, command(line)), &["--allow-all", "--deny", "command=rm"]);
        assert_eq!((done.status, done.out.as_str()), (11, "no\n"), "{line}: {done:?}");
        assert_eq!(summary["permissions"][0]["reason"], reason, "{line}");
        assert_eq!(summary["permissions"][0]["rule"], "command=rm", "{line}");
    }
    let (done, _) =
        with_agent("", &asking(&ONCE, command("echo rm")), &["--allow-all", "--deny", "command=rm"]);
    assert_eq!(done.status, 0, "{done:?}");
}

#[test]
fn file_of_a_diff_is_a_file_of_the_call_even_if_the_diff_cannot_be_shown() {
    let diff = |path: &str| json!({ "type": "diff", "path": path, "oldText": "x", "newText": "x" });
    let call = json!({ "toolCallId": "c", "title": "Change", "kind": "edit", "locations": [{ "path": "/tmp/src/a" }],
        "content": [diff("/tmp/src/a"), diff("/tmp/ci/b")] });
    for flags in [["--allow", "path=/tmp/src/**"].as_slice(), &["--allow-all", "--deny", "path=/tmp/ci/**"]] {
        let (done, summary) = with_agent("", &asking(&ONCE, call.clone()), flags);
        assert_eq!(done.status, 11, "{done:?}");
        assert_eq!(summary["permissions"][0]["paths"], json!(["/tmp/ci/b", "/tmp/src/a"]));
    }
}

#[test]
fn pattern_of_a_folder_covers_files_of_links_and_uris_below_it() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    fs::create_dir_all(top.join("real/deep")).unwrap();
    std::os::unix::fs::symlink("real", top.join("ci")).unwrap();
    for path in ["ci/deep/x".to_owned(), format!("file://{}/real/deep/x", top.display())] {
        let call =
            json!({ "toolCallId": "c", "title": "Change", "kind": "edit", "rawInput": { "path": path } });
        for rule in ["path=ci", "path=ci/", "path=real/../ci/**"] {
            let run = |flags: &[&str]| {
                let agent = format!("a=python3 {AGENT}");
                let mut run = fleeting(&asking(&ONCE, call.clone()));
                ran(run.args(["--agent", &agent]).args(flags).arg("--dir").arg(&top)).status
            };
            assert_eq!(run(&["--allow-all", "--deny", rule]), 11, "{rule} {path}");
            assert_eq!(run(&["--allow", rule]), 0, "{rule} {path}");
        }
    }
}

#[test]
fn command_of_an_agent_that_names_it_in_the_title_alone_is_decided_by_its_words() {
    let call = json!({ "toolCallId": "c", "title": "git status", "kind": "execute" });
    let flags = ["--allow", "command=git status"];
    let (done, summary) = with_agent("--name gemini-cli", &asking(&ONCE, call.clone()), &flags);
    assert_eq!((done.status, &summary["permissions"][0]["command"]), (0, &json!("git status")), "{done:?}");
    // Titles of other agents are texts for people.
    let (done, summary) = with_agent("", &asking(&ONCE, call), &flags);
    assert_eq!((done.status, &summary["permissions"][0]["command"]), (11, &json!(null)), "{done:?}");
}

#[test]
fn turn_that_the_agent_cancels_by_itself_is_not_blamed_on_a_client() {
    let (done, summary) = with_agent("", "end cancelled", &[]);
    assert_eq!(done.status, 130, "{done:?}");
    assert_eq!(
        summary["error"]["message"],
        "the turn was cancelled by the agent, or with its chat by another client"
    );
}
