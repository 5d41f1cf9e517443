//! Signals, the time limit, and a reader that leaves.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{json, Value};

use super::{fleeting, kept, ran, ran_with_input, summed_up};
use crate::process::{wait_until, wait_until_idle};
use crate::windows::{send, Window};

/// A run whose turn is at work.
fn at_work(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    // A blank line separates parts.
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "at work\n");
    (run, out)
}

fn rest(child: &mut Child) -> (Option<i32>, String) {
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), err)
}

const WORK: &str = "/say at work\n/say more\n/hang";

#[test]
fn first_signal_cancels_the_turn_and_says_so() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let summary = folder.path().join("summary.json");
        let (mut run, _out) =
            at_work(kept(&folder.path().join("state"), WORK).arg("--summary").arg(&summary));
        send(signal, run.id());
        let (status, err) = rest(&mut run);
        assert_eq!(status, Some(130), "{err}");
        assert!(err.contains("the turn is being cancelled"), "{err}");
        let summary: Value = serde_json::from_str(&std::fs::read_to_string(&summary).unwrap()).unwrap();
        assert_eq!(summary["result"], "cancelled");
        assert_eq!(summary["turns"][0]["result"], "cancelled");
        // The turn ended as cancelled, and the session can be continued.
        let next = ran(kept(&folder.path().join("state"), "/say fine").args(["--session", "last"]));
        assert_eq!((next.status, next.out.as_str()), (0, "fine\n"), "{next:?}");
    }
}

#[test]
fn signal_to_the_whole_process_group_lets_the_turn_be_cancelled() {
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary.json");
    let (mut run, _out) =
        at_work(kept(&folder.path().join("state"), WORK).process_group(0).arg("--summary").arg(&summary));
    let group = rustix::process::Pid::from_raw(run.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::INT).unwrap();
    let (status, err) = rest(&mut run);
    assert_eq!(status, Some(130), "{err}");
    // The host was there to say what the turn has changed.
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(&summary).unwrap()).unwrap();
    assert_eq!((&summary["changes"], &summary["changesUnknown"]), (&serde_json::json!([]), &Value::Null));
}

#[test]
fn second_signal_leaves_at_once() {
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/acp/agent.py");
    let mut command = fleeting("say at work\ntool\nsay more\nhang");
    let stubborn = format!("a=python3 {agent} --stubborn");
    let (mut run, _out) = at_work(command.args(["--agent", &stubborn]));
    // The host ends a cancelled turn at once, so it must not get to do so.
    let host = child_of(run.id());
    send(Signal::STOP, host);
    send(Signal::INT, run.id());
    let mut err = BufReader::new(run.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    assert!(line.contains("the turn is being cancelled"), "{line}");
    send(Signal::INT, run.id());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    send(Signal::CONT, host);
    wait_until("the host ends", || !std::path::Path::new(&format!("/proc/{host}")).exists());
}

fn child_of(process: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn time_limit_cancels_the_turn() {
    // On a busy machine the turn may not have begun by then.
    let (done, summary) = summed_up(fleeting(WORK).args(["--timeout", "3"]));
    assert_eq!((done.status, &summary["result"]), (12, &"timed-out".into()), "{done:?}");
    assert!(summary["turns"].as_array().unwrap().iter().all(|turn| turn["result"] == "cancelled"));
    assert!(done.err.contains("the time limit has expired"), "{}", done.err);
}

#[test]
fn time_limit_covers_the_start_of_the_agent() {
    let (done, summary) = summed_up(fleeting("Hello").args(["--timeout", "1", "--set", "openMs=600000"]));
    assert_eq!((done.status, &summary["result"]), (12, &"timed-out".into()), "{done:?}");
}

#[test]
fn reader_that_leaves_cancels_the_turn() {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary.json");
    let mut run = fleeting("/say at work\n/stream 1000000 100 5");
    let (mut run, out) = at_work(run.arg("--summary").arg(&summary));
    drop(out);
    let (status, err) = rest(&mut run);
    assert_eq!(status, Some(130), "{err}");
    assert_eq!(err.matches("reader").count(), 1, "{err}");
    assert!(err.contains("the reader of stdout is gone"), "{err}");
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert_eq!(summary["exitStatus"], 130);
}

/// Returns whether a process catches all signals that it is going to: SIGHUP is the last one. A
/// signal that arrives while its own handler is installed is lost.
fn catches_signals(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or_default();
    caught & (1 << (Signal::HUP.as_raw() - 1)) != 0
}

/// While the prompt is still read from stdin, and as soon as the run catches signals.
#[test]
fn signal_before_the_host_answers_ends_the_run_with_a_summary() {
    for prompt in ["-", WORK] {
        let folder = tempfile::tempdir().unwrap();
        let summary = folder.path().join("summary.json");
        let mut command = fleeting(prompt);
        command.arg("--summary").arg(&summary).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        // Dropped at the end, so that a prompt on stdin has no end before.
        let _stdin = run.stdin.take();
        wait_until("the run catches signals", || catches_signals(run.id()));
        send(Signal::INT, run.id());
        let (status, err) = rest(&mut run);
        assert_eq!(status, Some(130), "{prompt}: {err}");
        assert!(err.contains("SIGINT"), "{prompt}: {err}");
        let summary: Value = serde_json::from_str(&std::fs::read_to_string(&summary).unwrap()).unwrap();
        assert_eq!((&summary["result"], &summary["exitStatus"]), (&"cancelled".into(), &130.into()));
    }
}

#[test]
fn prompt_that_the_host_does_not_take_is_a_failure() {
    let prompt = "x".repeat((64 << 20) + 1);
    let done = ran_with_input(fleeting("-").args(["--timeout", "60"]), &prompt);
    assert_eq!((done.status, done.out.as_str()), (1, ""), "{}", done.err);
    assert!(done.err.contains("the host refuses a message of the run: "), "{}", done.err);
}

/// Returns the next session that another client is told of.
fn next_session(editor: &mut Window) -> String {
    let added = editor.process.until(|message| message["method"] == "root/sessionAdded").pop().unwrap();
    added["params"]["summary"]["resource"].as_str().unwrap().to_owned()
}

#[test]
fn run_whose_session_is_disposed_of_while_it_is_created_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut editor = Window::open(folder.path(), "editor");
    editor.ask("subscribe", json!({ "channel": "ahp-root://" }));
    let mut command = kept(folder.path(), "Hello");
    // Without an end, the time limit ends the run.
    command.args(["--set", "openMs=600000", "--timeout", "60"]).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let session = next_session(&mut editor);
    wait_until_idle(run.id());
    editor.ask("disposeSession", json!({ "channel": session }));
    let (status, err) = rest(&mut run);
    assert_eq!(status, Some(130), "{err}");
    assert!(err.contains("disposed of by another client"), "{err}");
    assert_eq!(editor.end(), Some(0));
}

#[test]
fn run_whose_session_or_chat_is_disposed_of_between_two_turns_ends() {
    for method in ["disposeSession", "disposeChat"] {
        let folder = tempfile::tempdir().unwrap();
        let mut editor = Window::open(folder.path(), "editor");
        editor.ask("subscribe", json!({ "channel": "ahp-root://" }));
        let mut command = kept(folder.path(), "/say at work\n/say more\n/sleep 2000");
        let (mut run, _out) = at_work(command.args(["--then", "/say after", "--timeout", "60"]));
        let session = next_session(&mut editor);
        let state = editor.ask("subscribe", json!({ "channel": session }));
        let chat = state["result"]["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
        // The run learns of the end of its turn and of the disposal at once.
        send(Signal::STOP, run.id());
        let is_running = |editor: &mut Window| {
            let state = editor.ask("subscribe", json!({ "channel": chat }));
            !state["result"]["snapshot"]["state"]["activeTurn"].is_null()
        };
        wait_until("the turn ends", || !is_running(&mut editor));
        // The last chat of a session cannot be disposed of alone.
        editor.ask("createChat", json!({ "channel": session, "chat": "ahp-chat:/other" }));
        let channel = if method == "disposeChat" { &chat } else { &session };
        editor.ask(method, json!({ "channel": channel }));
        send(Signal::CONT, run.id());
        let (status, err) = rest(&mut run);
        assert_eq!(status, Some(130), "{method}: {err}");
        assert!(err.contains("disposed of by another client"), "{method}: {err}");
        assert_eq!(editor.end(), Some(0));
    }
}
