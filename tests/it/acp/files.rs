//! Reads and writes of an agent through the host.
//!
//! Owns: files inside and outside of the session's working directories, and the calls that they are
//! shown as.
//! Never: swaps anything while it is used: the walk itself is tested where it is written.

use std::os::unix::fs::{symlink, PermissionsExt};

use super::*;

impl Watched {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The answers of a turn in which the agent asks these.
    fn answers(&mut self, turn: &str, calls: &[String]) -> Vec<String> {
        let said = self.turn(turn, &calls.join("\n"));
        said.lines().map(str::to_owned).collect()
    }
}

fn read(path: &str) -> String {
    format!(r#"call fs/read_text_file {{"path":"{path}"}}"#)
}

fn write(path: &str, content: &str) -> String {
    format!("call fs/write_text_file {}", json!({ "path": path, "content": content }))
}

const OUTSIDE: &str = "it is outside of the session's working directories";

#[test]
fn agent_reads_and_writes_files_in_the_working_directories() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.put("a.txt", "one\ntwo\r\nthrée\n");
    let calls = [
        read("$CWD/a.txt"),
        r#"call fs/read_text_file {"path":"$CWD/a.txt","line":2,"limit":1}"#.to_owned(),
        r#"call fs/read_text_file {"path":"$CWD/a.txt","line":9,"limit":null}"#.to_owned(),
        write("$CWD/a.txt", "new\n"),
        write("$CWD/b/c/d.txt", "made"),
        read("$CWD/a.txt"),
    ];
    let answers = watched.answers("t1", &calls);
    assert_eq!(
        answers,
        [
            r#"{"content": "one\ntwo\r\nthr\u00e9e\n"}"#,
            r#"{"content": "two\r\n"}"#,
            r#"{"content": ""}"#,
            "{}",
            "{}",
            r#"{"content": "new\n"}"#
        ]
    );
    let offered: Value = serde_json::from_str(&watched.turn("t2", "can")).unwrap();
    assert_eq!(offered["fs"], json!({ "readTextFile": true, "writeTextFile": true }));
    assert_eq!(offered["terminal"], true);
    assert_eq!((watched.get("a.txt"), watched.get("b/c/d.txt")), ("new\n".to_owned(), "made".to_owned()));
    watched.leave();
}

#[test]
fn agent_file_access_outside_the_working_directories_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let secret = secret.to_str().unwrap();
    let mut watched = Setting::with(&[]).start();
    watched.session();
    symlink(secret, watched.path("link")).unwrap();
    symlink(outside.path(), watched.path("folder")).unwrap();
    watched.put("bytes", b"a\xff");
    watched.put("read-only", "kept");
    let made = Command::new("mkfifo").arg(watched.path("pipe")).status().unwrap();
    assert!(made.success());
    let up = format!("$CWD/{}{secret}", "../".repeat(20));
    let over = format!("$CWD/x/../..{}", outside.path().join("secret").to_str().unwrap());
    let refused = [
        (secret, -32602, OUTSIDE),
        (&up, -32602, OUTSIDE),
        ("$CWD/link", -32602, OUTSIDE),
        ("$CWD/folder/secret", -32602, OUTSIDE),
        ("link", -32602, "it is not an absolute path"),
        ("$CWD/pipe", -32602, "it is a device, a pipe or a socket"),
        ("$CWD", -32602, "it is a folder"),
    ];
    for (number, (path, code, why)) in refused.iter().enumerate() {
        let answers = watched.answers(&format!("t{number}"), &[read(path), write(path, "x")]);
        for answer in &answers {
            assert!(
                answer.starts_with(&format!("error {code}: ")) && answer.ends_with(why),
                "{path}: {answer}"
            );
        }
        assert_eq!(answers.len(), 2);
    }
    let answers = watched.answers(
        "t-other",
        &[
            read(&over),
            read("$CWD/no/such"),
            read("$CWD/bytes"),
            r#"call fs/read_text_file {"path":7}"#.to_owned(),
            "call fs/chmod {}".to_owned(),
        ],
    );
    let starts =
        ["error -3", "error -32002: ", "error -32602: ", "error -32602: the params", "error -32601: "];
    for (answer, start) in answers.iter().zip(starts) {
        assert!(answer.starts_with(start), "{answers:?}");
    }
    assert!(
        answers[1].contains("No such file") && answers[2].ends_with("it is not UTF-8 text"),
        "{answers:?}"
    );
    assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    watched.leave();
}

#[test]
fn large_file_is_refused_whole_but_readable_in_parts() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let line = "0123456789abcde\n";
    watched.put("large", line.repeat((16 << 20) / line.len() + 1));
    let part = r#"call fs/read_text_file {"path":"$CWD/large","line":1048577,"limit":5}"#.to_owned();
    let answers = watched.answers("t1", &[read("$CWD/large"), part]);
    assert!(answers[0].contains("exceeds 16777216 bytes; request fewer lines"), "{}", answers[0]);
    assert_eq!(answers[1], r#"{"content": "0123456789abcde\n"}"#);
    watched.leave();
}

#[test]
fn concurrent_file_requests_are_served_in_order() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let mut calls = Vec::new();
    for number in 0..100 {
        calls.push(write("$CWD/a.txt", &format!("{number}")).replacen("call", "send", 1));
        calls.push(read("$CWD/a.txt").replacen("call", "send", 1));
    }
    calls.push("answers".to_owned());
    let answers = watched.answers("t1", &calls);
    for number in 0..100 {
        assert_eq!(answers[2 * number], format!("{}: {{}}", 2 * number));
        assert_eq!(answers[2 * number + 1], format!(r#"{}: {{"content": "{number}"}}"#, 2 * number + 1));
    }
    watched.leave();
}

#[test]
fn file_write_is_shown_once_in_its_own_call_or_a_synthesized_one() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.put("a.txt", "old\n");
    let open = r#"update {"sessionUpdate":"tool_call","toolCallId":"edit","title":"Edit","kind":"edit","status":"in_progress"}"#;
    let done = r#"update {"sessionUpdate":"tool_call_update","toolCallId":"edit","status":"completed"}"#;
    watched.answers("t1", &[open.to_owned(), write("$CWD/a.txt", "new\n"), done.to_owned()]);
    let calls = watched.received("chat/toolCallStart");
    assert_eq!((calls.len(), &calls[0]["toolCallId"]), (1, &json!("edit")));

    let answers =
        watched.answers("t2", &[read("$CWD/a.txt"), write("$CWD/a.txt", "newer\n"), write("/no", "x")]);
    assert_eq!(answers.len(), 3);
    let calls = watched.received("chat/toolCallStart");
    let names: Vec<&Value> = calls.iter().map(|call| &call["toolName"]).collect();
    assert_eq!(names, ["fs/write_text_file", "fs/write_text_file"]);
    let done = watched.received("chat/toolCallComplete");
    let shown = done[0]["result"]["content"].to_string();
    assert!(done[0]["result"]["success"] == true && shown.contains("newer"), "{shown}");
    let failed = done[1]["result"].to_string();
    assert!(done[1]["result"]["success"] == false && failed.contains(OUTSIDE), "{failed}");

    // What it was before is not known, so that it is not shown as a change.
    watched.put("bytes", b"a\xff");
    assert_eq!(watched.answers("t3", &[write("$CWD/bytes", "text")]), ["{}"]);
    let done = &watched.received("chat/toolCallComplete")[0]["result"];
    assert!(done["success"] == true && !done.to_string().contains("text"), "{done}");
    watched.leave();
}

/// A call that nobody ends would be open until the end of the turn, and later writes had none.
#[test]
fn refused_write_is_shown_in_no_call() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let too_long = format!("write_long $CWD/a.txt {}", (16 << 20) + 1);
    let answers = watched.answers("t1", &[too_long, write("$CWD/a.txt", "new\n")]);
    assert!(answers[0].starts_with("error -32602: ") && answers[0].ends_with("{}"), "{answers:?}");
    let calls = watched.received("chat/toolCallStart");
    let done = watched.received("chat/toolCallComplete");
    assert_eq!((calls.len(), done.len()), (1, 1));
    assert_eq!(done[0]["result"]["success"], true);
    watched.leave();
}

#[test]
fn file_is_read_between_turns() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.put("a.txt", "old\n");
    watched.turn_and_question("t3", &read("$CWD/a.txt").replacen("call", "late", 1));
    assert_eq!(watched.turn("t4", "late_answer"), r#"{"content": "old\n"}"#);
    watched.leave();
}

#[test]
fn requests_before_the_session_is_open_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = memory(folder.path());
    let arguments = ["--can", "load", "--can", "early", "--memory", file.to_str().unwrap()];
    let mut watched = Setting::with(&arguments).limit("idle_seconds = 0.3\n").start_in(folder);
    watched.session();
    assert_eq!(watched.turn("t1", "late_answer"), "error -32602: the session is unknown, or was closed");
    watched.wait_for_agents(0);
    assert_eq!(watched.turn("t2", "late_answer"), "error -32602: no turn is running");
    watched.leave();
}

#[test]
fn disabled_capabilities_are_neither_offered_nor_served() {
    let off = "read_files = false\nwrite_files = false\nterminals = false\n";
    let mut watched = Setting::with(&[]).limit(off).start();
    watched.session();
    watched.put("a.txt", "old\n");
    let offered: Value = serde_json::from_str(&watched.turn("t1", "can")).unwrap();
    assert!(!offered["fs"].to_string().contains("true") && offered["terminal"] != true, "{offered}");
    let create = r#"call terminal/create {"command":"true"}"#.to_owned();
    for answer in watched.answers("t2", &[read("$CWD/a.txt"), write("$CWD/a.txt", "new"), create]) {
        assert!(answer.starts_with("error -32601: "), "{answer}");
    }
    assert_eq!(watched.get("a.txt"), "old\n");
    watched.leave();
}

#[test]
fn written_file_retains_its_mode() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.put("run.sh", "old");
    fs::set_permissions(watched.path("run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(watched.answers("t1", &[write("$CWD/run.sh", "new")]), ["{}"]);
    assert_eq!(fs::metadata(watched.path("run.sh")).unwrap().permissions().mode() & 0o7777, 0o751);
    watched.leave();
}
