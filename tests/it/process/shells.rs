//! Shells in terminals, by the real program and a real shell.
//!
//! Owns: what only a terminal of the system's shows: the size that a program sees, its exit, and its end with the host.
//! Never: depends on how what is printed is cut into actions.

use std::time::Instant;

use serde_json::{json, Value};

use crate::guard::{bearers, COOKIE};
use crate::support::{sidecar_on, Process, HUNG};

const TERMINAL: &str = "agenthost-terminal:///one";

/// A host, and what it has told of a terminal.
struct Shell {
    process: Process,
    cookie: String,
    shown: String,
    /// How its shell has ended: the code, if there is one.
    exited: Option<Option<i64>>,
    requests: u64,
}

impl Shell {
    /// A shell in a terminal of this size, which a client follows.
    fn start(folder: &std::path::Path, cookie: &str) -> Self {
        let mut command = sidecar_on(folder);
        command.env("SHELL", "/bin/sh").env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PS1", "$ ").env(COOKIE, cookie);
        let process = Process::spawn(command);
        let (cookie, shown) = (cookie.to_owned(), String::new());
        Self { process, cookie, shown, exited: None, requests: 0 }
    }

    fn opened(folder: &std::path::Path, cookie: &str) -> Self {
        let mut shell = Self::start(folder, cookie);
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
            "initialSubscriptions": ["ahp-root://"] });
        shell.ask("initialize", hello);
        let claim = json!({ "kind": "client", "clientId": "me" });
        let params =
            json!({ "channel": TERMINAL, "claim": claim, "cwd": "file:///", "cols": 33, "rows": 22 });
        assert_eq!(shell.ask("createTerminal", params)["result"], Value::Null);
        let state = shell.ask("subscribe", json!({ "channel": TERMINAL }));
        let state = &state["result"]["snapshot"]["state"];
        assert_eq!((&state["title"], &state["isPty"]), (&json!("sh"), &json!(true)), "{state}");
        let parts = state["content"].as_array().unwrap();
        shell.shown = parts.iter().map(|part| part["value"].as_str().unwrap()).collect();
        shell
    }

    fn hear(&mut self) -> Value {
        let line = self.process.next();
        if line["params"]["channel"] == TERMINAL {
            let action = &line["params"]["action"];
            match action["type"].as_str() {
                Some("terminal/data") => self.shown.push_str(action["data"].as_str().unwrap()),
                Some("terminal/exited") => self.exited = Some(action["exitCode"].as_i64()),
                _ => {}
            }
        }
        line
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.process.say(&line.to_string());
        loop {
            let line = self.hear();
            if line["id"] == id {
                return line;
            }
        }
    }

    fn act(&mut self, action: Value) {
        let params = json!({ "channel": TERMINAL, "clientSeq": 1, "action": action });
        let line = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        self.process.say(&line.to_string());
    }

    fn input(&mut self, text: &str) {
        self.act(json!({ "type": "terminal/input", "data": text }));
    }

    fn until_shown(&mut self, text: &str) {
        while !self.shown.contains(text) {
            self.hear();
        }
    }

    fn wait_until_nobody_is_left(&self) {
        let start = Instant::now();
        loop {
            let left = bearers(&self.cookie);
            if left.is_empty() {
                return;
            }
            assert!(start.elapsed() < HUNG, "{left:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_shell_runs_in_a_terminal_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::opened(folder.path(), "a-shell-runs");
    shell.input("echo $((20+22)) $TERM; stty size; pwd\n");
    shell.until_shown("42 xterm-256color\r\n22 33\r\n/\r\n");
    shell.act(json!({ "type": "terminal/resized", "cols": 44, "rows": 11 }));
    // What is printed is text, wherever it is read: of half a character, the other half follows.
    shell.input("stty size; printf '\\303'; sleep 0.05; printf '\\244 \\377 end\\n'\n");
    shell.until_shown("11 44\r\nä \u{fffd} end\r\n");
    // More than is gathered, typed or told at once, and nothing is lost.
    shell.input("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo all\"\" of it\n");
    shell.until_shown("all of it");
    let mut lines = shell.shown.split("line 0\r\n").nth(1).unwrap().split("\r\n");
    assert!((1..20_000).all(|number| lines.next() == Some(&format!("line {number}"))));
    // What a shell leaves running ends with it, also what has left its session.
    shell.input("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & exit 3\n");
    while shell.exited.is_none() {
        shell.hear();
    }
    assert_eq!(shell.exited, Some(Some(3)));
    let start = Instant::now();
    while bearers(&shell.cookie).len() > 1 {
        assert!(start.elapsed() < HUNG, "{:?}", bearers(&shell.cookie));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(shell.ask("disposeTerminal", json!({ "channel": TERMINAL }))["result"], Value::Null);
    shell.process.end();
    shell.process.rest();
    assert_eq!(shell.process.wait().code(), Some(0));
}

#[test]
fn nothing_in_a_terminal_outlives_a_host_that_is_killed_and_nothing_of_it_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::opened(folder.path(), "a-host-is-killed");
    let state = shell.ask("subscribe", json!({ "channel": "ahp-root://" }));
    let cursor = state["result"]["snapshot"]["fromSeq"].as_u64().unwrap();
    let stubborn = "sh -c 'trap \"\" TERM HUP INT; echo \"there $0\"; while :; do sleep 1; done'";
    shell.input(&format!("setsid {stubborn} one & {stubborn} two & echo hun\"\"ter2; {stubborn} three\n"));
    for text in ["there one", "there two", "there three", "hunter2"] {
        shell.until_shown(text);
    }
    shell.process.child.kill().unwrap();
    shell.process.wait();
    shell.wait_until_nobody_is_left();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let kept = if path.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        assert!(memchr::memmem::find(&kept, b"hunter2").is_none(), "{}", path.display());
    }
    // Its client is told that it is gone.
    let mut shell = Shell::start(folder.path(), "the-host-after-it");
    let back = json!({ "channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": cursor,
        "subscriptions": ["ahp-root://", TERMINAL] });
    let answer = shell.ask("reconnect", back);
    let result = &answer["result"];
    assert_eq!((&result["type"], &result["missing"]), (&json!("replay"), &json!([TERMINAL])), "{result}");
    let last = result["actions"].as_array().unwrap().last().unwrap();
    assert_eq!(last["action"], json!({ "type": "root/terminalsChanged", "terminals": [] }));
}
