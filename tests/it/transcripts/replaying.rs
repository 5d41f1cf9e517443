//! `replay`: what it reports, and how it ends.
//!
//! Owns: transcripts for hosts that do what a test needs, and the command's output.
//! Never: repeats what the golden transcripts show.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{program, stat};

/// A folder with a file.
pub fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// The command `replay`.
pub fn replay(files: &[&Path], arguments: &[&str]) -> Command {
    let mut command = program();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").arg("replay").args(files).args(arguments);
    command
}

fn printed(output: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Replays a transcript to a shell script; its exit status, and what it prints without the name.
fn replay_to(script: &str, transcript: &str, arguments: &[&str]) -> (i32, String) {
    let (_folder, path) = file("a.txt", transcript);
    let output = replay(&[&path], arguments).args(["--", "sh", "-c", script]).output().unwrap();
    let printed = printed(&output).replace(&format!("{}: ", path.display()), "");
    (output.status.code().unwrap(), printed)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

#[test]
fn golden_transcripts_replay_to_the_program_itself() {
    let names =
        ["demo/short.txt", "chats/chats-survive-a-kill.txt", "changesets/a-changeset-is-computed-anew.txt"];
    let files = names.map(fixture);
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let output = replay(&files, &[]).output().unwrap();
    assert_eq!((printed(&output).matches(": same\n").count(), output.status.code()), (3, Some(0)));
}

#[test]
fn changed_answer_is_reported_by_its_field() {
    let text = fs::read_to_string(fixture("demo/short.txt")).unwrap();
    let changed = text
        .replace(r#""name":"ahp-sidecar""#, r#""name":"other""#)
        .replace(r#""content":"Hello""#, r#""content":"Bye""#);
    let (folder, path) = file("a.txt", &changed);
    let junit = folder.path().join("a.xml");
    let output = replay(&[&path], &["--junit", junit.to_str().unwrap()]).output().unwrap();
    let report = printed(&output);
    assert_eq!(output.status.code(), Some(20), "{report}");
    let head = format!("{}: 2 differences\n  line 3: answer to 1\n", path.display());
    let field = "    result.serverInfo.name: expected \"other\", got \"ahp-sidecar\"\n";
    assert!(report.starts_with(&format!("{head}{field}")), "{report}");
    assert!(report.contains("    params.action.content: expected \"Bye\", got \"Hello\"\n"), "{report}");

    let read = "import sys, xml.etree.ElementTree as x\n\
                r = x.parse(sys.argv[1]).getroot()\n\
                print(r.tag, r.get('tests'), r.get('failures'), r.get('errors'))\n\
                print(r.find('testsuite/testcase/failure').text, end='')";
    let parsed = Command::new("python3").args(["-c", read]).arg(&junit).output().unwrap();
    assert_eq!(String::from_utf8(parsed.stdout).unwrap(), format!("testsuites 1 1 0\n{report}"));
}

#[test]
fn blessed_transcript_is_what_the_host_says_now() {
    let text = fs::read_to_string(fixture("demo/short.txt")).unwrap();
    let (_folder, path) = file("a.txt", &text.replace(r#""name":"ahp-sidecar""#, r#""name":"other""#));
    let output = replay(&[&path], &["--bless"]).output().unwrap();
    assert_eq!(printed(&output), format!("{}: rewritten\n", path.display()));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

/// A host that answers each request with its method, and says this before each answer.
fn answering(before: &str) -> String {
    format!(
        "import sys, json\n\
         for line in sys.stdin:\n    m = json.loads(line)\n    if m['method'] != 'ping': print('{before}')\n    \
         print(json.dumps({{'jsonrpc': '2.0', 'id': m['id'], 'result': m['method']}}), flush=True)"
    )
}

fn replay_to_python(script: &str, transcript: &str, arguments: &[&str]) -> (i32, String) {
    let (folder, path) = file("host.py", script);
    let host = format!("exec python3 {}", path.display());
    let replayed = replay_to(&host, transcript, arguments);
    drop(folder);
    replayed
}

#[test]
fn line_that_is_missing_or_too_much_is_reported_with_its_place() {
    let host = answering(r#"{"method":"extra"}"#);
    let transcript =
        "# It answers.\n> {\"id\":1,\"method\":\"a\"}\n< {\"id\":1,\"result\":\"a\",\"jsonrpc\":\"2.0\"}\n";
    let (status, report) = replay_to_python(&host, transcript, &[]);
    assert_eq!(
        report,
        "1 difference\n  after line 2: received, but not expected\n    {\"method\":\"extra\"}\n"
    );
    assert_eq!(status, 20);

    let (status, report) = replay_to_python(&answering("junk"), &format!("{transcript}< junk\n"), &[]);
    assert_eq!(report, "1 difference\n  line 3: received after the message of line 4\n");
    assert_eq!(status, 20);

    let missing = format!("{transcript}< {{\"method\":\"more\"}}\n");
    let (status, report) = replay_to_python(&answering(""), &missing, &["--timeout", "1"]);
    assert!(report.contains("line 4: expected, but not received\n    {\"method\":\"more\"}\n"), "{report}");
    assert!(report.contains("within 1 s"), "{report}");
    assert_eq!(status, 20);
}

#[test]
fn any_pace_fixes_the_order_of_each_channel_alone() {
    let action = |channel: &str, number: u8| {
        format!("{{\"method\":\"action\",\"params\":{{\"channel\":\"{channel}\",\"n\":{number}}}}}")
    };
    let [a1, a2, b1] = [("a", 1), ("a", 2), ("b", 1)].map(|(channel, number)| action(channel, number));
    let transcript = format!(
        "# Both channels.\n@ names\n@ any-pace\n> {{\"id\":1,\"method\":\"x\"}}\n< {a1}\n\n> {{\"id\":2,\"method\":\"y\"}}\n\
         < {a2}\n< {b1}\n< {{\"id\":2}}\n"
    );
    let host = |lines: [&String; 3]| {
        format!(
            "read line; printf '%s\\n' '{}' '{}' '{}'; read line; echo '{{\"id\":2}}'; cat",
            lines[0], lines[1], lines[2]
        )
    };
    let (status, report) = replay_to(&host([&b1, &a1, &a2]), &transcript, &[]);
    assert_eq!((status, report.as_str()), (0, "same\n"));
    let (status, report) = replay_to(&host([&a2, &b1, &a1]), &transcript, &[]);
    assert_eq!(status, 20, "{report}");
    assert!(report.contains("params.n: expected 1, got 2"), "{report}");
}

#[test]
fn numbers_that_all_channels_share_need_only_grow_at_any_pace() {
    let action = |channel: &str, number: u8| {
        format!(r#"{{"method":"action","params":{{"channel":"{channel}","serverSeq":{number}}}}}"#)
    };
    let transcript = format!(
        "# Shared.\n@ names\n@ any-pace\n> {{\"id\":1}}\n< {}\n< {}\n",
        action("a", 1),
        action("b", 2)
    );
    let host = |lines: [String; 2]| {
        format!("read -r line; echo '{}'; echo '{}'; cat >/dev/null", lines[0], lines[1])
    };
    let other_order = host([action("b", 1), action("a", 2)]);
    assert_eq!(replay_to(&other_order, &transcript, &[]), (0, "same\n".to_owned()));
    let (status, report) = replay_to(&host([action("b", 2), action("a", 0)]), &transcript, &[]);
    assert!(status == 20 && report.contains("params.serverSeq: expected 1, got 0"), "{report}");
}

#[test]
fn action_that_crossed_with_lines_of_the_host_is_said_after_them() {
    // Unless the host's own line is awaited, the second action is there first.
    let host = "import json, select, sys\n\
                action = lambda **more: print(json.dumps(\n\
                    {'method': 'action', 'params': {'channel': 'c', **more}}), flush=True)\n\
                sys.stdin.buffer.raw.read(1 << 16)\n\
                action(origin={'clientSeq': 7})\n\
                is_early = select.select([sys.stdin], [], [], 0.05)[0]\n\
                is_early or action(n=1)\n\
                sys.stdin.readline()\n\
                action(origin={'clientSeq': 8})\n\
                is_early and action(n=1)\n\
                sys.stdin.read()\n";
    let say = |number: u8| {
        format!(r#"> {{"method":"dispatchAction","params":{{"channel":"c","clientSeq":{number}}}}}"#)
    };
    let echo = |number: u8| {
        format!(r#"< {{"method":"action","params":{{"channel":"c","origin":{{"clientSeq":{number}}}}}}}"#)
    };
    let own = r#"< {"method":"action","params":{"channel":"c","n":1}}"#;
    let [said, other, first, second] = [say(7), say(8), echo(7), echo(8)];
    let transcript = format!("# Crossed.\n@ names\n@ any-pace\n{said}\n{other}\n{first}\n{own}\n{second}\n");
    assert_eq!(replay_to_python(host, &transcript, &[]), (0, "same\n".to_owned()));
    // A line that is sent because of the action, and before its echo, is not awaited for ever.
    let effect = host
        .replace("is_early or action(n=1)", "")
        .replace("is_early and action(n=1)", "")
        .replace("action(origin={'clientSeq': 8})", "action(n=1)\naction(origin={'clientSeq': 8})");
    assert_eq!(replay_to_python(&effect, &transcript, &[]), (0, "same\n".to_owned()));
}

#[test]
fn session_that_was_ready_when_it_was_subscribed_to_is_awaited() {
    // It is ready when it has been subscribed to, and goes on changing.
    let host = "import json, sys\n\
                say = lambda **message: print(json.dumps(message), flush=True)\n\
                is_ready = False\n\
                for line in sys.stdin:\n \
                request = json.loads(line)\n \
                lifecycle = 'ready' if is_ready else 'creating'\n \
                state = {'lifecycle': lifecycle}\n \
                is_ready and say(method='action', params={'channel': 'c', 'action': {'type': 'x'}})\n \
                say(id=request['id'], result={'snapshot': {'state': state}})\n \
                is_ready or say(method='action', params={'channel': 'c', 'action': {'type': 'session/ready'}})\n \
                is_ready = True\n";
    let subscribed = |state: &str| {
        format!(
            "# Ready.\n@ names\n@ any-pace\n> {{\"id\":1,\"method\":\"subscribe\",\"params\":{{\"channel\":\"c\"}}}}\n\
             < {{\"id\":1,\"result\":{{\"snapshot\":{{\"state\":{{\"lifecycle\":\"{state}\"}}}}}}}}\n"
        )
    };
    assert_eq!(replay_to_python(host, &subscribed("ready"), &[]), (0, "same\n".to_owned()));
    // A client that is subscribed already is sent the action.
    let again = subscribed("creating")
        + r#"< {"method":"action","params":{"channel":"c","action":{"type":"session/ready"}}}"#
        + "\n\n> {\"id\":2,\"method\":\"subscribe\",\"params\":{\"channel\":\"c\"}}\n\
           < {\"method\":\"action\",\"params\":{\"channel\":\"c\",\"action\":{\"type\":\"x\"}}}\n\
           < {\"id\":2,\"result\":{\"snapshot\":{\"state\":{\"lifecycle\":\"ready\"}}}}\n";
    assert_eq!(replay_to_python(host, &again, &[]), (0, "same\n".to_owned()));
    let ready = r#"< {"method":"action","params":{"channel":"c","action":{"type":"session/ready"}}}"#;
    let creating = subscribed("creating") + ready + "\n";
    assert_eq!(replay_to_python(host, &creating, &[]), (0, "same\n".to_owned()));
}

#[test]
fn blessed_order_of_a_channel_is_the_one_that_came() {
    let action = |kind: &str| format!("{{\"method\":\"{kind}\",\"params\":{{\"channel\":\"c\"}}}}");
    let [a, b, c] = ["a", "b", "c"].map(action);
    let transcript = format!(
        "# In order.\n@ names\n@ any-pace\n> {{\"id\":1}}\n< {a}\n\n> {{\"id\":2}}\n< {b}\n< {c}\n< {{\"id\":2}}\n"
    );
    let host = format!(
        "read line; printf '%s\\n' '{b}' '{a}'; read line; printf '%s\\n' '{c}' '{{\"id\":2}}'; cat >/dev/null"
    );
    let (_folder, path) = file("a.txt", &transcript);
    let run = |arguments: &[&str]| {
        let output = replay(&[&path], arguments).args(["--", "sh", "-c", &host]).output().unwrap();
        (output.status.code(), printed(&output).replace(&format!("{}: ", path.display()), ""))
    };
    let (status, report) = run(&[]);
    let expected = "1 difference\n  line 5: received after the message of line 8\n";
    assert_eq!((status, report.as_str()), (Some(20), expected));
    assert_eq!(run(&["--bless"]), (Some(0), "rewritten\n".to_owned()));
    let written = fs::read_to_string(&path).unwrap();
    assert!(written.contains(&format!("< {b}\n< {a}\n\n> {{\"id\":2}}\n< {c}\n")), "{written}");
    assert_eq!(run(&[]), (Some(0), "same\n".to_owned()));
}

#[test]
fn change_of_a_summary_that_one_side_alone_has_is_a_difference() {
    let changed = |session: &str, changes: &str| {
        format!("{{\"method\":\"root/sessionSummaryChanged\",\"params\":{{\"session\":\"{session}\",\"changes\":{{{changes}}}}}}}")
    };
    let transcript =
        |line: &str| format!("# One.\n@ names\n@ any-pace\n> {{\"id\":1}}\n< {{\"id\":1}}\n{line}");
    let host = |lines: &[String]| {
        let lines: Vec<String> = lines.iter().map(|line| format!("'{line}'")).collect();
        format!("read line; printf '%s\\n' '{{\"id\":1}}' {}; cat >/dev/null", lines.join(" "))
    };
    let title = changed("s", "\"title\":\"t\"");
    let expected = format!("< {title}\n");
    // Missing, with another member besides, and of a session that is not expected.
    for (line, lines, why) in [
        (&*expected, vec![], "line 6: expected, but not received"),
        (&*expected, vec![changed("s", "\"status\":1")], "params.changes.title: expected \"t\", got nothing"),
        (
            &*expected,
            vec![title.clone(), changed("s", "\"n\":1")],
            "params.changes.n: expected nothing, got 1",
        ),
        ("", vec![changed("other", "\"n\":1")], "received, but not expected"),
    ] {
        let (status, report) = replay_to(&host(&lines), &transcript(line), &[]);
        assert!(status == 20 && report.contains(why), "{report}");
    }
    // A member that goes back and forth may be what it was; so may a time.
    let there = changed("s", "\"status\":8,\"modifiedAt\":\"2026-01-01T00:00:00.000Z\"");
    let both = [title, there, changed("s", "\"status\":1")];
    let (status, report) = replay_to(&host(&both), &transcript(&expected), &[]);
    assert_eq!((status, report.as_str()), (0, "same\n"));
}

#[test]
fn changes_of_a_summary_may_come_as_one() {
    let changed = |status: u8, title: &str| {
        format!("{{\"method\":\"root/sessionSummaryChanged\",\"params\":{{\"session\":\"s\",\"changes\":{{\"status\":{status}{title}}}}}}}")
    };
    let title = ",\"title\":\"t\"";
    let transcript = format!(
        "# Its last status is 1.\n@ names\n@ any-pace\n> {{\"id\":1}}\n< {{\"id\":1}}\n< {}\n< {}\n",
        changed(8, title),
        changed(1, "")
    );
    let host = |line: &str| format!("read line; echo '{{\"id\":1}}'; echo '{line}'; cat >/dev/null");
    let (status, report) = replay_to(&host(&changed(1, title)), &transcript, &[]);
    assert_eq!((status, report.as_str()), (0, "same\n"));
    let (status, report) = replay_to(&host(&changed(2, title)), &transcript, &[]);
    let expected = "1 difference\n  line 7: `root/sessionSummaryChanged`\n    params.changes.status: expected 1, got 2\n";
    assert_eq!((status, report.as_str()), (20, expected));
}

#[test]
fn host_that_ends_hangs_or_is_missing_is_reported() {
    let transcript = "# It answers.\n> {\"id\":1,\"method\":\"a\"}\n< {\"id\":1}\n";
    let (status, report) = replay_to("read line; exit 3", transcript, &[]);
    assert_eq!(status, 20);
    assert!(report.contains("line 2: the host has ended early (exit status: 3)"), "{report}");
    let (status, report) = replay_to("exec sleep 1000", transcript, &["--timeout", "1"]);
    assert_eq!(status, 20);
    assert!(report.contains("line 2: the host has not sent what follows within 1 s"), "{report}");
    // A host that does not read holds nothing up.
    let long = format!("# It reads nothing.\n@ say-repeat 1000000 xxxxxxxxxx\n{}", &transcript[14..]);
    let (status, report) = replay_to("exec sleep 1000", &long, &["--timeout", "1"]);
    assert!(status == 20 && report.contains("within 1 s"), "{report}");
    // One that never stops does not put off the end.
    let endless = "while :; do echo junk; done";
    let (status, report) = replay_to(endless, transcript, &["--timeout", "1"]);
    assert!(status == 20 && report.contains("within 1 s"), "{}", report.len());

    let (_folder, path) = file("a.txt", transcript);
    let output = replay(&[&path], &["--", "/no/such/host"]).output().unwrap();
    assert_eq!(output.status.code(), Some(21));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: the host cannot be started: `/no/such/host`: "), "{said}");
}

#[test]
fn processes_that_a_host_has_started_end_with_it() {
    let transcript = "# It answers.\n> {\"id\":1}\n< {\"id\":1}\n";
    // One in a session of its own, which keeps no pipe of the host.
    let apart =
        "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > \"$0\"; read line; echo '{\"id\":1}'";
    for host in [format!("{apart}; exit 0"), format!("{apart}; exec sleep 1000")] {
        let (folder, path) = file("a.txt", transcript);
        let pid = folder.path().join("pid");
        let mut command = replay(&[&path], &["--timeout", "1"]);
        command.args(["--", "sh", "-c", &host]).arg(&pid).output().unwrap();
        let process = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        assert!(stat(process).is_none(), "{host}");
    }
}

#[test]
fn host_that_cannot_be_reached_has_the_status_of_one_that_does_not_start() {
    let (folder, path) = file("a.txt", "# It answers.\n> {\"id\":1}\n< {\"id\":1}\n");
    let (new, socket) = (folder.path().join("new"), format!("unix:{}/none", folder.path().display()));
    for address in ["ws://127.0.0.1:1", &socket] {
        let replayed = replay(&[&path], &["--", address]).output().unwrap();
        let said = String::from_utf8(replayed.stderr).unwrap();
        assert_eq!(replayed.status.code(), Some(21), "{said}");
        assert!(said.contains(&format!("`{address}` cannot be reached")), "{said}");
        let mut record = program();
        let recorded = record.arg("record").arg(&new).args(["--", address]).output().unwrap();
        assert!(recorded.status.code() == Some(21) && !new.exists(), "{recorded:?}");
    }
}

#[test]
fn result_of_a_host_that_does_not_start_is_written_and_no_transcript_is_overwritten() {
    let transcript = "# It answers.\n> {\"id\":1}\n< {\"id\":1}\n";
    let (folder, path) = file("a.txt", transcript);
    let junit = folder.path().join("a.xml");
    let run = |junit: &Path| {
        replay(&[&path, &path], &["--junit", junit.to_str().unwrap(), "--", "/no/such/host"])
            .output()
            .unwrap()
    };
    // A result is overwritten, a transcript is not.
    for _ in 0..2 {
        assert_eq!(run(&junit).status.code(), Some(21));
        let result = fs::read_to_string(&junit).unwrap();
        assert!(result.contains("tests=\"2\" failures=\"0\" errors=\"2\""), "{result}");
        assert!(result.contains("the host cannot be started: `/no/such/host`"), "{result}");
    }
    let refused = run(&path);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("it is left as it is"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), transcript);
}

#[test]
fn transcript_that_cannot_be_played_is_an_error_of_its_own() {
    let (folder, path) = file("a.txt", "# note\n> x\n@ state\n");
    let junit = folder.path().join("a.xml");
    let output = replay(&[&path, Path::new("/no/such/file")], &["--junit", junit.to_str().unwrap()]).output();
    let output = output.unwrap();
    let report = printed(&output);
    assert_eq!(output.status.code(), Some(20), "{report}");
    assert!(report.contains(": `@ state` comes before anything is said\n"), "{report}");
    assert!(report.contains("/no/such/file: it cannot be read: "), "{report}");
    assert!(fs::read_to_string(junit).unwrap().contains("tests=\"2\" failures=\"0\" errors=\"2\""));
}

#[test]
fn state_is_kept_where_the_host_command_says() {
    let transcript = "# It remembers.\n@ state\n> {\"id\":1}\n< [0]\n@ kill\n@ start\n> {\"id\":2}\n< [1]\n";
    let host = r#"mkdir -p "$0"; while read line; do case "$line" in *ping*) echo "{\"id\":\"$(echo "$line" | grep -o 'sync-[0-9]*')\"}";; *) echo "[$(ls "$0" | wc -l | tr -d ' ')]"; touch "$0/a";; esac; done"#;
    let (_folder, path) = file("a.txt", transcript);
    let output = replay(&[&path], &["--", "sh", "-c", host, "{state}"]).output().unwrap();
    assert_eq!((printed(&output), output.status.code()), (format!("{}: same\n", path.display()), Some(0)));
    let (_, report) = replay_to("cat", transcript, &[]);
    assert!(report.contains("name that `{state}` in the host command"), "{report}");
}

#[test]
fn name_has_the_value_that_the_host_sent_or_the_user_gave() {
    let host = "import sys, json\n\
                for line in sys.stdin: print(json.dumps({'method': 'x', 'id': 'a-7', 'said': json.loads(line)}), flush=True)";
    let transcript = "# It echoes.\n@ names\n@ any-pace\n> {\"who\":\"${who-1}\"}\n\
                      < {\"method\":\"x\",\"id\":\"${request-1}\",\"said\":{\"who\":\"me\"}}\n\n> {\"id\":\"${request-1}\"}\n\
                      < {\"method\":\"x\",\"id\":\"a-7\",\"said\":{\"id\":\"a-7\"}}\n";
    let (status, report) = replay_to_python(host, transcript, &["--set", "who-1=me"]);
    assert_eq!((status, report.as_str()), (0, "same\n"));
    let (status, report) = replay_to_python(host, transcript, &[]);
    assert_eq!(status, 20);
    assert!(report.contains("line 4: `${who-1}` has no value"), "{report}");
}

#[test]
fn blessed_names_are_kept() {
    let host = "read line; echo '{\"method\":\"x\",\"params\":{\"id\":\"b7\",\"n\":2}}'; cat >/dev/null";
    let transcript = |n: u8| {
        format!("# One.\n@ names\n@ any-pace\n> {{}}\n< {{\"method\":\"x\",\"params\":{{\"id\":\"${{id-1}}\",\"n\":{n}}}}}\n")
    };
    let (_folder, path) = file("a.txt", &transcript(1));
    let output = replay(&[&path], &["--bless", "--", "sh", "-c", host]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert_eq!(fs::read_to_string(&path).unwrap(), transcript(2));
    let lines = fs::read_to_string(&path).unwrap();
    let line: Value =
        serde_json::from_str(lines.lines().last().unwrap().strip_prefix("< ").unwrap()).unwrap();
    assert_eq!(line["params"]["id"], "${id-1}");
}
