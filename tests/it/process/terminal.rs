//! A host that runs shells in terminals, and the client that follows them.
//!
//! Owns: what was told of the terminal that is followed: its text, its mirror, and all else, in its
//! order.
//! Never: depends on how what is printed is cut into actions.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::guard::{bearers, COOKIE};
use crate::support::mirrors::{terminal_in, TerminalMirror};
use crate::support::{sidecar_on, skipped, Process, HUNG, NO_HOME};

/// URI of the first terminal of a host.
pub const TERMINAL: &str = "agenthost-terminal:///one";

/// Prompt of every shell, unless the files in the user's home set another one.
pub const PROMPT: &str = "<mine> ";

/// A host, and what it has told of the terminal that is followed.
pub struct Shell {
    pub process: Process,
    pub cookie: String,
    /// The terminal that is followed.
    uri: String,
    /// Output shown so far.
    pub shown: String,
    /// Up to where that was looked at.
    pub seen: usize,
    /// How its shell has ended: the code, if there is one.
    pub exited: Option<Option<i64>>,
    /// Other actions on the terminal, in order.
    pub told: Vec<Value>,
    mirror: TerminalMirror,
    requests: u64,
}

impl Shell {
    /// A host whose users have the plainest of shells, and no home.
    pub fn start(folder: &Path, cookie: &str) -> Self {
        Self::start_as(folder, cookie, Path::new("/bin/sh"), Path::new(NO_HOME))
    }

    /// Starts a host whose terminals run this shell, with this home of the user.
    pub fn start_as(folder: &Path, cookie: &str, shell: &Path, home: &Path) -> Self {
        Self::start_by(sidecar_on(folder), cookie, shell, home)
    }

    /// Starts a host by this command, whose terminals run this shell with this home of the user.
    pub fn start_by(mut command: Command, cookie: &str, shell: &Path, home: &Path) -> Self {
        // Another run of the tests on this machine has other processes.
        let cookie = format!("{cookie}-{}", uuid::Uuid::new_v4());
        command.env("SHELL", shell).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PS1", PROMPT).env(COOKIE, &cookie).env("HOME", home).env("LC_ALL", "C.UTF-8");
        let mut shell = Self {
            process: Process::spawn(command),
            cookie,
            uri: String::new(),
            shown: String::new(),
            seen: 0,
            exited: None,
            told: Vec::new(),
            mirror: TerminalMirror::default(),
            requests: 0,
        };
        shell.uri.push_str(TERMINAL);
        shell
    }

    /// Shakes hands.
    pub fn meet(&mut self) {
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
            "initialSubscriptions": ["ahp-root://"] });
        self.ask("initialize", hello);
    }

    /// The plainest of shells in a terminal of this size.
    pub fn opened(folder: &Path, cookie: &str) -> Self {
        Self::start(folder, cookie).open()
    }

    /// A shell in a terminal of 33 columns and 22 rows, which a client follows.
    pub fn open(mut self) -> Self {
        self.meet();
        self.follow_new(TERMINAL, json!({ "cwd": "file:///", "cols": 33, "rows": 22 }));
        self
    }

    /// From now on a new terminal of this name is followed, made with these wishes.
    pub fn follow_new(&mut self, uri: &str, wishes: Value) {
        let mut params = wishes;
        params["channel"] = json!(uri);
        params["claim"] = json!({ "kind": "client", "clientId": "me" });
        let answer = self.ask("createTerminal", params);
        assert_eq!(answer.get("result"), Some(&Value::Null), "{answer}");
        self.follow(uri);
    }

    /// From now on this terminal is followed.
    pub fn follow(&mut self, uri: &str) {
        self.uri.replace_range(.., uri);
        self.shown.clear();
        (self.seen, self.exited, self.mirror) = (0, None, TerminalMirror::default());
        self.told.clear();
        let answer = self.ask("subscribe", json!({ "channel": uri }));
        let state = &answer["result"]["snapshot"]["state"];
        assert_eq!(state["isPty"], true, "{answer}");
        // By then its first line of input may have called it otherwise.
        assert!(state["title"].as_str().is_some_and(|it| !it.is_empty()), "{state}");
        if state["supportsCommandDetection"] == true {
            self.told.push(json!({ "type": "terminal/commandDetectionAvailable" }));
        }
        self.mirror.read(uri, &answer, &answer["result"]);
        let texts = state["content"].as_array().unwrap().iter();
        self.shown = texts.map(|part| part["value"].as_str().unwrap()).collect();
        if state["lifecycle"]["status"] == "exited" {
            self.exited = Some(state["lifecycle"]["exitCode"].as_i64());
        }
    }

    /// Hears the next thing that the host says.
    pub fn hear(&mut self) -> Value {
        let shown = self.shown.len();
        let line = self.process.next_within(HUNG).unwrap_or_else(|| {
            let last = self.shown[self.seen..].chars().rev().take(500).collect::<Vec<char>>();
            let last = last.into_iter().rev().collect::<String>();
            panic!("{}: nothing came within {HUNG:?}; it has shown {shown} bytes, last {last:?}", self.uri)
        });
        if line["params"]["channel"] == self.uri {
            let action = &line["params"]["action"];
            self.mirror.read(&self.uri, &line, &Value::Null);
            match action["type"].as_str() {
                Some("terminal/data") => self.shown.push_str(action["data"].as_str().unwrap()),
                Some("terminal/exited") => self.exited = Some(action["exitCode"].as_i64()),
                Some("terminal/input" | "terminal/resized") | None => {}
                Some(_) => self.told.push(action.clone()),
            }
        }
        line
    }

    /// Asks, and hears all up to the answer.
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.until_answered(id)
    }

    /// Asks; the number of the request.
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        self.requests += 1;
        let id = self.requests;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.process.say(&line.to_string());
        id
    }

    /// Hears all up to the answer to a request.
    pub fn until_answered(&mut self, id: u64) -> Value {
        loop {
            let line = self.hear();
            if line["id"] == id {
                return line;
            }
        }
    }

    /// Does something to the terminal.
    pub fn act(&mut self, action: Value) {
        let params = json!({ "channel": self.uri, "clientSeq": 1, "action": action });
        let line = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        self.process.say(&line.to_string());
    }

    /// Types.
    pub fn input(&mut self, text: &str) {
        self.act(json!({ "type": "terminal/input", "data": text }));
    }

    /// Types a line.
    pub fn enter(&mut self, line: &str) {
        self.input(&format!("{line}\r"));
    }

    /// Waits until this has been shown at any time.
    pub fn until_shown(&mut self, text: &str) {
        while !self.shown.contains(text) {
            self.hear();
        }
    }

    /// Waits until this is shown behind what was waited for last.
    pub fn until(&mut self, text: &str) {
        loop {
            if let Some(at) = self.shown[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            self.hear();
        }
    }

    /// Waits until a shell waits for a line.
    pub fn until_prompted(&mut self) {
        self.until(PROMPT);
    }

    /// Waits until the shell has ended; its exit code.
    pub fn until_exited(&mut self) -> Option<i64> {
        loop {
            if let Some(code) = self.exited {
                return code;
            }
            self.hear();
        }
    }

    /// Waits until this was told of the terminal.
    pub fn until_action(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(told) = self.told.iter().find(|told| is_it(told)) {
                return told.clone();
            }
            self.hear();
        }
    }

    /// Types a line, and waits until its shell has told that it is done: the line that was told,
    /// the exit code, and what was shown in between.
    pub fn run(&mut self, line: &str) -> (String, Option<i64>, String) {
        let (told, shown) = (self.told.len(), self.shown.len());
        self.enter(line);
        let is = |told: &Value, name: &str| told["type"] == format!("terminal/{name}");
        while !self.told[told..].iter().any(|it| is(it, "commandFinished")) {
            self.hear();
        }
        let find =
            |name: &str| self.told[told..].iter().find(|it| is(it, name)).unwrap_or_else(|| panic!("{line}"));
        let (executed, finished) = (find("commandExecuted"), find("commandFinished"));
        assert_eq!(executed["commandId"], finished["commandId"]);
        let line = executed["commandLine"].as_str().unwrap().to_owned();
        (line, finished["exitCode"].as_i64(), self.shown[shown..].to_owned())
    }

    /// Checks that the actions received so far lead to the state of a fresh snapshot.
    pub fn check_mirror(&mut self) {
        let answer = self.ask("subscribe", json!({ "channel": self.uri }));
        self.mirror.check(&terminal_in(&answer["result"]["snapshot"]));
    }

    /// Ends the terminal.
    pub fn dispose(&mut self) {
        let answer = self.ask("disposeTerminal", json!({ "channel": self.uri }));
        assert_eq!(answer.get("result"), Some(&Value::Null), "{answer}");
    }

    /// Waits until nobody but so many of the processes is left that the host has begun, itself with
    /// them.
    pub fn wait_for_processes(&self, count: usize) {
        let start = Instant::now();
        loop {
            let left = bearers(&self.cookie);
            if left.len() <= count {
                return;
            }
            assert!(start.elapsed() < HUNG, "{}: {left:?}", self.uri);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A home whose files say what the prompt of each shell is.
pub fn make_home(home: &Path) {
    fs::write(home.join(".bashrc"), format!("PS1='{PROMPT}'\n")).unwrap();
    fs::write(home.join(".zshrc"), format!("PS1='{PROMPT}'\n")).unwrap();
    let fish = home.join(".config/fish");
    fs::create_dir_all(&fish).unwrap();
    fs::write(fish.join("config.fish"), format!("function fish_prompt; echo -n '{PROMPT}'; end\n")).unwrap();
}

/// A shell of this name, where it is installed; else a word of that on stderr.
pub fn installed(name: &str) -> Option<&'static Path> {
    let known = fs::read_to_string("/etc/shells").unwrap_or_default();
    let found = known.lines().find(|line| line.rsplit('/').next() == Some(name) && Path::new(line).exists());
    if found.is_none() {
        skipped(name);
    }
    found.map(|path| Path::new(Box::leak(path.to_owned().into_boxed_str())))
}
