//! Sessions of runs: where they are kept, how they are continued, and who sees them.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::{json, Value};

use super::{fleeting, kept, ran, run_of, summed_up};
use crate::support::window_on;
use crate::windows::Window;

fn session_of(folder: &Path, prompt: &str) -> String {
    let (done, summary) = summed_up(&mut kept(folder, prompt));
    assert_eq!(done.status, 0, "{done:?}");
    summary["session"].as_str().unwrap().to_owned()
}

#[test]
fn session_is_continued_by_its_uri() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_of(folder.path(), "one");
    session_of(folder.path(), "two");
    let (done, summary) = summed_up(kept(folder.path(), "/recall").args(["--session", &session]));
    assert_eq!((done.status, done.out.as_str()), (0, "one\n"));
    assert_eq!(summary["session"], json!(session));
}

#[test]
fn last_session_is_the_latest_one_of_the_folder() {
    let (state, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    session_of(state.path(), "one");
    let session = session_of(state.path(), "two");
    let elsewhere = ran(kept(state.path(), "three").arg("--dir").arg(other.path()));
    assert_eq!(elsewhere.status, 0);
    let (done, summary) = summed_up(kept(state.path(), "/recall").args(["--session", "last"]));
    assert_eq!((done.out.as_str(), &summary["session"]), ("two\n", &json!(session)));
    let done = ran(kept(state.path(), "/recall").args(["--session", "last", "--dir"]).arg(other.path()));
    assert_eq!(done.out, "three\n");
    let done = ran(kept(state.path(), "x").args(["--session", "last", "--dir"]).arg(state.path()));
    assert_eq!(done.status, 2);
    assert!(done.err.contains("--session last: there is no session in"), "{}", done.err);
}

#[test]
fn session_that_cannot_be_continued_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_of(folder.path(), "one");
    for arguments in [
        &["--session", "ahp-session:/no/such"][..],
        &["--session", &session, "--agent", "other"],
        &["--session", &session, "--dir", "/"],
    ] {
        let done = ran(kept(folder.path(), "x").args(arguments));
        assert_eq!((done.status, done.out.as_str()), (2, ""), "{arguments:?}: {done:?}");
    }
}

#[test]
fn session_works_in_the_named_folder() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().canonicalize().unwrap();
    let done = ran(fleeting("/where").arg("--dir").arg(folder.path()));
    assert_eq!(done.out.trim(), format!("file://{}", real.display()));
    let done = ran(fleeting("/where").current_dir(folder.path()));
    assert_eq!(done.out.trim(), format!("file://{}", real.display()));
}

#[test]
fn option_is_set_and_an_unknown_one_or_value_is_wrong_usage() {
    let ask = "/ask rm";
    assert_eq!(ran(fleeting(ask).args(["--set", "permissionPolicy=allow"])).status, 0);
    let done = ran(fleeting(ask).args(["--set", "speed=high"]));
    assert_eq!(done.status, 2);
    assert!(done.err.contains("--set: the agent has no option `speed`; there are: "), "{}", done.err);
    let done = ran(fleeting(ask).args(["--set", "permissionPolicy=perhaps"]));
    assert_eq!((done.status, done.out.as_str()), (2, ""), "{done:?}");
}

#[test]
fn option_of_a_session_that_exists_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let session = session_of(folder.path(), "one");
    let arguments = ["--session", &session, "--set", "permissionPolicy=allow"];
    assert_eq!(ran(kept(folder.path(), "/ask rm").args(arguments)).status, 0);
}

#[test]
fn model_that_the_agent_does_not_have_is_wrong_usage() {
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py");
    let agent = format!("a=python3 {agent} --has options");
    let with = |model: &str| ran(fleeting("say Hello").args(["--agent", &agent, "--model", model]));
    assert_eq!(with("small").status, 0);
    let done = with("no-such");
    assert_eq!((done.status, done.out.as_str()), (2, ""), "{done:?}");
    let why = "--model: the agent `a` has no model `no-such`; there are: large, small";
    assert!(done.err.contains(why), "{}", done.err);
}

#[test]
fn model_of_an_agent_without_models_is_wrong_usage() {
    let agent = concat!("a=python3 ", env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py");
    for (name, more) in [("script", &[][..]), ("a", &["--agent", agent])] {
        let done = ran(fleeting("say Hello").args(more).args(["--model", "fast"]));
        assert_eq!((done.status, done.out.as_str()), (2, ""), "{done:?}");
        let why = format!("--model: the agent `{name}` offers no models to choose from");
        assert!(done.err.contains(&why), "{}", done.err);
    }
    let done = ran(fleeting("say Hello").args(["--agent", agent, "--set", "fast=true"]));
    assert_eq!((done.status, done.out.as_str()), (2, ""), "{done:?}");
}

#[test]
fn model_is_chosen_in_a_session_that_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let agent = concat!("a=python3 ", env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py --has options");
    let with =
        |arguments: &[&str]| ran(kept(folder.path(), "say Hello").args(["--agent", agent]).args(arguments));
    assert_eq!(with(&[]).status, 0);
    let done = with(&["--session", "last", "--model", "small"]);
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(with(&["--session", "last", "--model", "no-such"]).status, 2);
}

#[test]
fn fleeting_run_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (home, state) = (folder.path().join("home"), folder.path().join("state"));
    fs::create_dir(&home).unwrap();
    let done = ran(fleeting("Hello").env("HOME", &home).env("XDG_STATE_HOME", &state));
    assert_eq!(done.status, 0);
    assert!(!state.exists() && fs::read_dir(&home).unwrap().next().is_none());
}

#[test]
fn run_is_seen_live_by_another_client_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut editor = Window::open(folder.path(), "editor");
    editor.ask("subscribe", json!({ "channel": "ahp-root://" }));
    let mut run = kept(folder.path(), "/say at work\n/hang").stdout(Stdio::null()).spawn().unwrap();
    let added = editor.process.until(|message| message["method"] == "root/sessionAdded").pop().unwrap();
    let session = added["params"]["summary"]["resource"].as_str().unwrap().to_owned();
    let state = editor.ask("subscribe", json!({ "channel": session }));
    let chat = state["result"]["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
    let state = editor.ask("subscribe", json!({ "channel": chat }));
    let mut shown = state["result"]["snapshot"]["state"].to_string();
    while !shown.contains("at work") {
        shown += &editor.process.next().to_string();
    }
    // Another client ends the turn of the run.
    let active = editor.ask("subscribe", json!({ "channel": chat }));
    let turn = &active["result"]["snapshot"]["state"]["activeTurn"]["id"];
    let action = json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": 0 });
    let params = json!({ "channel": chat, "clientSeq": 1, "action": action });
    let cancel: Value = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
    editor.process.say(&cancel.to_string());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert_eq!(editor.end(), Some(0));
}

#[test]
fn run_joins_the_host_of_an_editor_whatever_the_editor_has_told_it() {
    let folder = tempfile::tempdir().unwrap();
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py");
    let agent = format!("a=python3 {agent}");
    let mut command = window_on(folder.path());
    command.args(["--no-terminals", "--agent", &agent]).env("PATH", std::env::var_os("PATH").unwrap());
    let editor = Window::of(command, "editor");
    let state = folder.path().to_str().unwrap();
    for named in ["a", &agent] {
        let done = ran(&mut run_of(["--state-dir", state, "--agent", named, "say Hello"]));
        assert_eq!((done.status, done.out.as_str()), (0, "Hello\n"), "{done:?}");
    }
    let done = ran(&mut run_of(["--state-dir", state, "--agent", "a=true", "say Hello"]));
    assert_eq!(done.status, 3, "{done:?}");
    assert!(done.err.contains("other settings (the agent `a`)"), "{}", done.err);
    assert_eq!(editor.end(), Some(0));
}

/// A session of a folder, and a run that continues it from another folder.
fn continued_from_elsewhere(state: &Path, project: &Path, prompt: &str) -> std::process::Command {
    let (_, summary) = summed_up(kept(state, "one").arg("--dir").arg(project));
    let mut command = kept(state, prompt);
    command.current_dir(state).args(["--session", summary["session"].as_str().unwrap()]);
    command
}

#[test]
fn relative_paths_count_below_the_folder_of_the_session_wherever_it_is_continued() {
    let (state, project) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let real = project.path().canonicalize().unwrap();
    fs::create_dir_all(real.join(".github")).unwrap();
    let ask = |path: &str| format!("/ask edit {{\"path\":\"{path}\"}}");
    let absolute = format!("path={}/.github/**", real.display());
    for (path, rules, status) in [
        (".github/x.yml", &["--allow-all", "--deny", &absolute][..], 11),
        (".github/x.yml", &["--allow-all", "--deny", "path=.github/**"], 11),
        ("src/x", &["--allow-all", "--deny", "path=.github/**"], 0),
        ("src/x", &["--allow", "path=src/**"], 0),
        ("../src/x", &["--allow", "path=src/**"], 11),
    ] {
        let mut command = continued_from_elsewhere(state.path(), &real, &ask(path));
        let (done, summary) = summed_up(command.args(rules));
        assert_eq!(done.status, status, "{path} {rules:?}: {done:?}");
        assert_eq!(summary["directory"], json!(real.to_str().unwrap()));
    }
}

#[test]
fn patch_of_a_session_that_is_continued_from_elsewhere_has_its_changes() {
    let (state, project) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let patch = state.path().join("patch");
    let mut command = continued_from_elsewhere(state.path(), project.path(), "/files new.txt=text");
    let done = ran(command.args(["--allow-all", "--patch"]).arg(&patch));
    assert_eq!(done.status, 0, "{done:?}");
    let patch = fs::read_to_string(&patch).unwrap();
    assert!(patch.contains("+++ b/new.txt"), "{patch}{done:?}");
}

#[test]
fn relative_path_in_a_session_without_a_folder_is_never_allowed_by_a_path() {
    let state = tempfile::tempdir().unwrap();
    let mut editor = Window::open(state.path(), "editor");
    let session = "ahp-session:/1";
    editor.ask("createSession", json!({ "channel": session }));
    let run = |rules: &[&str]| {
        let mut command = kept(state.path(), "/ask edit {\"path\":\"x\"}");
        ran(command.args(["--session", session]).args(rules))
    };
    assert_eq!(run(&["--allow-all"]).status, 0);
    assert_eq!(run(&["--allow-all", "--deny", "path=/no/such"]).status, 11);
    assert_eq!(run(&["--allow", "path=/**"]).status, 11);
    let done = run(&["--allow-all", "--deny", "path=x"]);
    assert_eq!(done.status, 2, "{done:?}");
    assert!(done.err.contains("write an absolute path"), "{}", done.err);
    assert_eq!(editor.end(), Some(0));
}
