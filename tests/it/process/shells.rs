//! Shells in terminals, by the real program and a real shell.
//!
//! Owns: what only a terminal of the system's shows: the size that a program sees, its exit, and its end with the host.
//! Never: depends on how what is printed is cut into actions.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{json, Value};

use crate::guard::{bearers, COOKIE};
use crate::support::{sidecar_on, Process, HUNG, NO_HOME};

const TERMINAL: &str = "agenthost-terminal:///one";

/// A host, and what it has told of a terminal.
struct Shell {
    process: Process,
    cookie: String,
    shown: String,
    /// How its shell has ended: the code, if there is one.
    exited: Option<Option<i64>>,
    requests: u64,
    /// What else was told of the terminal, in its order.
    told: Vec<Value>,
}

impl Shell {
    /// A shell in a terminal of this size, which a client follows.
    fn start(folder: &Path, cookie: &str) -> Self {
        Self::start_as(folder, cookie, Path::new("/bin/sh"), Path::new(NO_HOME))
    }

    /// The same with this shell, whose user has this home.
    fn start_as(folder: &Path, cookie: &str, shell: &Path, home: &Path) -> Self {
        let mut command = sidecar_on(folder);
        command.env("SHELL", shell).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PS1", "$ ").env(COOKIE, cookie).env("HOME", home).env("LC_ALL", "C.UTF-8");
        let process = Process::spawn(command);
        let (cookie, shown) = (cookie.to_owned(), String::new());
        Self { process, cookie, shown, exited: None, requests: 0, told: Vec::new() }
    }

    fn opened(folder: &Path, cookie: &str) -> Self {
        Self::start(folder, cookie).open("sh")
    }

    fn open(mut self, title: &str) -> Self {
        let shell = &mut self;
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
            "initialSubscriptions": ["ahp-root://"] });
        shell.ask("initialize", hello);
        let claim = json!({ "kind": "client", "clientId": "me" });
        let params =
            json!({ "channel": TERMINAL, "claim": claim, "cwd": "file:///", "cols": 33, "rows": 22 });
        assert_eq!(shell.ask("createTerminal", params)["result"], Value::Null);
        let state = shell.ask("subscribe", json!({ "channel": TERMINAL }));
        let state = &state["result"]["snapshot"]["state"];
        assert_eq!(state["isPty"], true, "{state}");
        // By then its first line of input may have called it otherwise.
        assert!(state["title"].as_str().is_some_and(|it| !title.is_empty() && !it.is_empty()), "{state}");
        if state["supportsCommandDetection"] == true {
            shell.told.push(json!({ "type": "terminal/commandDetectionAvailable" }));
        }
        let parts = state["content"].as_array().unwrap();
        shell.shown = parts.iter().map(|part| part["value"].as_str().unwrap()).collect();
        self
    }

    fn hear(&mut self) -> Value {
        let line = self.process.next();
        if line["params"]["channel"] == TERMINAL {
            let action = &line["params"]["action"];
            match action["type"].as_str() {
                Some("terminal/data") => self.shown.push_str(action["data"].as_str().unwrap()),
                Some("terminal/exited") => self.exited = Some(action["exitCode"].as_i64()),
                Some(_) => self.told.push(action.clone()),
                None => {}
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

    /// Waits until this was told of the terminal.
    fn until_told(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(told) = self.told.iter().find(|told| is_it(told)) {
                return told.clone();
            }
            self.hear();
        }
    }

    /// Types a line, and waits until its shell has told that it is done: the line that was told, the exit code, and what was
    /// shown in between.
    fn run(&mut self, line: &str) -> (String, Option<i64>, String) {
        let (told, shown) = (self.told.len(), self.shown.len());
        self.input(&format!("{line}\r"));
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

/// A shell of this name, where it is installed; else a word of that on stderr.
fn installed(name: &str) -> Option<&'static Path> {
    let known = fs::read_to_string("/etc/shells").unwrap_or_default();
    let found = known.lines().find(|line| line.rsplit('/').next() == Some(name) && Path::new(line).exists());
    if found.is_none() {
        let skipped = format!("{name} is not installed here: what it does is not tried\n");
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    }
    found.map(|path| Path::new(Box::leak(path.to_owned().into_boxed_str())))
}

#[test]
fn a_program_is_answered_once_by_its_terminal_and_clients_are_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::opened(folder.path(), "a-program-asks");
    // What is answered is read without being shown, up to the last byte of it.
    let ask = |question: &str, answer: &str, last: &str| {
        format!(
            "stty raw -echo; printf 'ab{question}'; a=; while :; do c=$(dd bs=1 count=1 2>/dev/null); a=$a$c; [ \"$c\" = {last} ] && break; done; stty sane; \
             printf %s \"$a\" | od -An -c | tr -d ' \\n'; echo \" is {answer}\"\n"
        )
    };
    shell.input(&ask("\\r\\033[3C\\033[6n", "where", "R"));
    shell.until_shown(";4R is where");
    shell.input(&ask("\\033[c", "what", "c"));
    shell.until_shown("033[?62;22c is what");
    shell.input(&ask("\\033]11;?\\033\\\\", "behind", "'\\'"));
    shell.until_shown("033]11;rgb:1e1e/1e1e/1e1e033\\ is behind");
    assert!(!["\x1b[6n", "\x1b[c", "\x1b]11;?"].iter().any(|asked| shell.shown.contains(asked)));
    // Titles and directories are told.
    shell.input("printf '\\033]2;a title\\007\\033]7;file:///a%%20b\\007'\n");
    shell.until_told(|told| told["title"] == "a title");
    shell.until_told(|told| told["cwd"] == "file:///a%20b");
    // Without one it is the name of the program in front, when that prints nothing any more.
    shell.input("sleep 1000\n");
    if cfg!(target_os = "linux") {
        shell.until_told(|told| told["title"] == "sleep");
    }
}

#[test]
fn bash_tells_which_lines_it_runs_and_its_users_files_work() {
    let Some(bash) = installed("bash") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rc = "PS1='<mine> '\nPROMPT_COMMAND='echo prompted $?'\nPS0='zero '\nalias hi='echo hello'\n[ -n \"$AHP_SIDECAR_SHELL_WORD\" ] && echo 'it leaks'\n";
    fs::write(home.path().join(".bashrc"), rc).unwrap();
    let mut shell = Shell::start_as(folder.path(), "bash-tells", bash, home.path()).open("bash");
    shell.until_shown("<mine> ");
    shell.until_told(|told| told["type"] == "terminal/commandDetectionAvailable");
    let (line, code, shown) = shell.run("hi; false");
    assert_eq!((line.as_str(), code), ("hi; false", Some(1)));
    assert!(shown.contains("zero hello\r\n"), "{shown:?}");
    shell.until_shown("prompted 1\r\n");
    // More than one line, and what ends a sequence.
    let (line, code, _) = shell.run("cat <<'E'\rone; \\two\rE");
    assert_eq!((line.as_str(), code), ("cat <<'E'\none; \\two\nE", Some(0)));
    let (line, code, shown) = shell.run("(exit 7)");
    assert_eq!((line.as_str(), code), ("(exit 7)", Some(7)), "{shown:?}");
    let (line, _, _) = shell.run("printf 'a\\033b;c' > /dev/null");
    assert_eq!(line, "printf 'a\\033b;c' > /dev/null");
    // What is not to be remembered is not told, nor taken for what came before.
    shell.run("HISTCONTROL=ignoreboth");
    let (line, code, _) = shell.run(" true");
    assert_eq!((line.as_str(), code), ("", Some(0)));
    shell.run("HISTCONTROL=");
    assert_eq!(shell.run("true").0, "true");
    assert_eq!(shell.run("true").0, "true");
    // Directories are told as URIs.
    fs::create_dir(home.path().join("a b;ä")).unwrap();
    shell.run("cd ~/'a b;ä'");
    let told = shell.until_told(|told| told["cwd"].as_str().is_some_and(|cwd| cwd.ends_with("%A4")));
    assert!(told["cwd"].as_str().unwrap().ends_with("/a%20b%3B%C3%A4"), "{told}");
    // What a program prints is not taken for it, nor what another shell says inside; nobody there knows the word.
    let before = shell.told.len();
    let (_, code, shown) = shell.run("printf '\\033]633;D;3\\007'; env | grep -c AHP_SIDECAR_SHELL; bash --norc -c 'echo $PROMPT_COMMAND'; false");
    let is_command =
        |told: &&Value| told["type"].as_str().is_some_and(|it| it.starts_with("terminal/command"));
    let told: Vec<_> = shell.told[before..].iter().filter(is_command).collect();
    assert_eq!((code, told.len()), (Some(1), 2), "{told:?}");
    assert!(shown.contains("\r\n0\r\n\r\n") || shown.contains("zero 0\r\n\r\n"), "{shown:?}");
    // A virtual environment changes the prompt and puts it back.
    shell.run("_OLD=$PS1; PS1=\"(venv) $PS1\"");
    shell.until_shown("(venv) <mine> ");
    let (_, _, shown) = shell.run("PS1=$_OLD; unset _OLD");
    assert!(!shown.contains("633"), "{shown:?}");
    assert!(!shell.shown.contains("it leaks") && !shell.shown.contains("\x1b]633"), "{:?}", shell.shown);
    shell.input("exit 3\r");
    while shell.exited.is_none() {
        shell.hear();
    }
    let last = shell.told.last().unwrap();
    assert_eq!((&last["type"], last.get("exitCode")), (&json!("terminal/commandFinished"), None));
}

#[test]
fn zsh_tells_which_lines_it_runs_and_its_users_files_work() {
    let Some(zsh) = installed("zsh") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(home.path().join(".zshenv"), "FROM_ENV=1\n").unwrap();
    let rc = "PS1='<mine> '\nunsetopt zle prompt_sp\nprecmd() { echo prompted $? $FROM_ENV }\nalias hi='echo hello'\n";
    fs::write(home.path().join(".zshrc"), rc).unwrap();
    let mut shell = Shell::start_as(folder.path(), "zsh-tells", zsh, home.path()).open("zsh");
    shell.until_shown("<mine> ");
    let (line, code, shown) = shell.run("hi; false");
    assert_eq!((line.as_str(), code), ("hi; false", Some(1)));
    assert!(shown.contains("hello\r\n"), "{shown:?}");
    shell.until_shown("prompted 1 1\r\n");
    assert_eq!(shell.run("echo 'a;\\b' ${ZDOTDIR-none}").0, "echo 'a;\\b' ${ZDOTDIR-none}");
    shell.until_shown(" none\r\n");
    shell.run("cd /tmp");
    shell.until_told(|told| told["cwd"] == "file:///tmp");
    assert_eq!(shell.run("(exit 7)").1, Some(7));
    assert_eq!(shell.run("env | grep -c AHP_SIDECAR_SHELL").1, Some(1));
    assert!(!shell.shown.contains("\x1b]633"));
}

#[test]
fn fish_tells_which_lines_it_runs_and_its_users_files_work() {
    let Some(fish) = installed("fish") else { return };
    let (folder, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = home.path().join(".config/fish");
    fs::create_dir_all(&config).unwrap();
    fs::write(
        config.join("config.fish"),
        "function fish_prompt; echo '<mine> '; end\nalias hi='echo hello'\n",
    )
    .unwrap();
    let mut shell = Shell::start_as(folder.path(), "fish-tells", fish, home.path()).open("fish");
    shell.until_shown("<mine> ");
    let (line, code, shown) = shell.run("hi; false");
    assert_eq!((line.as_str(), code), ("hi; false", Some(1)), "{shown:?}");
    assert_eq!(shell.run("echo 'a;b' > /dev/null").0, "echo 'a;b' > /dev/null");
    shell.run("cd /tmp");
    shell.until_told(|told| told["cwd"] == "file:///tmp");
    assert_eq!(shell.run("env | grep -c AHP_SIDECAR_SHELL").1, Some(1));
    assert!(!shell.shown.contains("\x1b]633"));
}
