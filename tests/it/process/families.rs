//! Processes of terminals that share a guard, tested with the real program: none of a closed
//! terminal survives, all of the others do.
//!
//! Owns: real processes that have left their session, their parents and their environment.
//! Never: looks at what is shown.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, RawPid, Signal};
use serde_json::{json, Value};

use super::terminal::{Shell, PROMPT, TERMINAL};
use crate::support::{can_be_done_within, shell, sidecar_on, HUNG, NO_HOME};

/// Another terminal than the first one.
const OTHER: &str = "agenthost-terminal:///two";

/// How a terminal's shell starts somebody who does not want to leave, each in another place.
const WAYS: [(&str, &str); 5] = [
    ("job", "/bin/sh STUBBORN job &"),
    ("session", "setsid /bin/sh STUBBORN session &"),
    ("daemon", "(setsid sh -c 'setsid /bin/sh STUBBORN daemon &' &)"),
    ("bare", "(env -i setsid /bin/sh -c 'env -i /bin/sh STUBBORN bare &' &)"),
    ("late", "sh -c 'setsid sh -c \"env -i /bin/sh STUBBORN late &\" & exit'"),
];

/// A host, and a folder in which those who do not want to leave say who they are.
struct Terminals {
    shell: Shell,
    folder: tempfile::TempDir,
}

impl Terminals {
    fn start(cookie: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let command = sidecar_on(&folder.path().join("state"));
        Self::start_by(folder, command, cookie)
    }

    fn start_by(folder: tempfile::TempDir, command: std::process::Command, cookie: &str) -> Self {
        // The last word is where it says its number, once it cannot be ended by kindness.
        let stubborn = "trap '' TERM INT HUP PIPE; echo $$ > \"$1.new\"; mv \"$1.new\" \"$1\"\n\
            while :; do sleep 0.1; done\n";
        fs::write(folder.path().join("stubborn"), stubborn).unwrap();
        let cookie = format!("{cookie}-{}", uuid::Uuid::new_v4());
        let mut shell = Shell::start_by(command, &cookie, Path::new("/bin/sh"), Path::new(NO_HOME));
        shell.meet();
        Self { shell, folder }
    }

    fn open(&mut self, uri: &str) {
        self.shell.follow_new(uri, json!({ "cwd": "file:///" }));
        self.shell.until_shown(PROMPT);
    }

    /// Opens a terminal, and starts somebody there in all ways; who they are.
    fn populate(&mut self, uri: &str, name: &str) -> BTreeMap<String, RawPid> {
        self.open(uri);
        self.start_all(name)
    }

    /// Starts processes of every kind in the subscribed terminal.
    fn start_all(&mut self, name: &str) -> BTreeMap<String, RawPid> {
        let folder = self.folder.path().display().to_string();
        for (way, line) in WAYS {
            let words = format!("{folder}/stubborn {folder}/{name}.{way}");
            self.shell.input(&format!("{}\n", line.replace(&format!("STUBBORN {way}"), &words)));
        }
        let all: BTreeMap<_, _> =
            WAYS.iter().map(|(way, _)| ((*way).to_owned(), self.pid_in(&format!("{name}.{way}")))).collect();
        // Those have no parent of the terminal's any more.
        for way in ["daemon", "bare", "late"] {
            let guard = guards(self.host())[0];
            wait_for(|| stat(all[way]).is_some_and(|stat| stat[1] == guard.to_string()), way);
        }
        all
    }

    /// Waits for the process that has written its id to this file.
    fn pid_in(&self, name: &str) -> RawPid {
        let path = self.folder.path().join(name);
        wait_for(|| path.exists(), name);
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    fn host(&self) -> RawPid {
        self.shell.process.child.id().try_into().unwrap()
    }

    /// The guard that terminals share.
    fn guard(&self) -> RawPid {
        let guards = guards(self.host());
        assert_eq!(guards.len(), 1, "{guards:?}");
        guards[0]
    }

    fn signal_guard(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.guard()).unwrap(), signal).unwrap();
    }

    fn signal_host(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.host()).unwrap(), signal).unwrap();
    }

    fn dispose(&mut self, uri: &str) {
        let answer = self.shell.ask("disposeTerminal", json!({ "channel": uri }));
        assert_eq!(answer.get("result"), Some(&Value::Null), "{answer}");
    }

    /// Waits until nobody is left but the host.
    fn wait_until_alone(&self) {
        self.shell.wait_for_processes(1);
        assert!(guards(self.host()).is_empty());
    }
}

/// Returns the fields of `/proc/PID/stat` of a living process: its state, its parent, and more.
fn stat(process: RawPid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<String> = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect();
    (fields[0] != "Z" && fields[0] != "X").then_some(fields)
}

fn is_alive(process: RawPid) -> bool {
    stat(process).is_some()
}

/// The guards of terminals that this host has.
fn guards(host: RawPid) -> Vec<RawPid> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<RawPid>().ok());
    let is_guard = |process: &RawPid| {
        let line = fs::read(PathBuf::from(format!("/proc/{process}/cmdline"))).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let guards = words.get(1) == Some(&b"guard-agent".as_slice());
        guards && [b"--terminals".as_slice(), b"--pty"].contains(&words[2])
    };
    let is_child = |process: &RawPid| stat(*process).is_some_and(|stat| stat[1] == host.to_string());
    all.filter(|process| is_child(process) && is_guard(process)).collect()
}

#[track_caller]
fn wait_for(done: impl Fn() -> bool, what: &str) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < HUNG, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn wait_until_dead(all: &BTreeMap<String, RawPid>) {
    for (way, process) in all {
        wait_for(|| !is_alive(*process), way);
    }
}

#[track_caller]
fn assert_alive(all: &BTreeMap<String, RawPid>) {
    for (way, process) in all {
        assert!(is_alive(*process), "{way}");
    }
}

#[test]
fn closing_a_terminal_kills_its_processes_and_no_others() {
    let mut terminals = Terminals::start("families");
    let one = terminals.populate(TERMINAL, "one");
    let guard = terminals.guard();
    let two = terminals.populate(OTHER, "two");
    let three = terminals.populate("agenthost-terminal:///three", "three");
    assert_eq!(terminals.guard(), guard);
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    // Its shell ends, and what that leaves behind stays until its terminal is over.
    terminals.shell.enter("exit 3");
    assert_eq!(terminals.shell.until_exited(), Some(3));
    wait_until_dead(&three);
    assert_alive(&two);
    assert_eq!(terminals.guard(), guard);
    // The number of one that has ended is nobody else's by mistake.
    let one = terminals.populate(TERMINAL, "one-again");
    terminals.dispose(OTHER);
    wait_until_dead(&two);
    assert_alive(&one);
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    terminals.wait_until_alone();
    // The next one has another guard.
    terminals.open(TERMINAL);
    assert_ne!(terminals.guard(), guard);
}

/// A process has removed its terminal's tag and has left the session: it belongs to no terminal,
/// and must still be killed.
#[test]
fn process_that_left_its_terminal_is_killed_with_the_last_terminal() {
    let mut terminals = Terminals::start("nobodys");
    let folder = terminals.folder.path().display().to_string();
    terminals.open(OTHER);
    terminals.open(TERMINAL);
    let start =
        |name: &str| format!("env -i /usr/bin/prlimit --locks=5 /bin/sh {folder}/stubborn {folder}/{name} &");
    // Who is still in the session is known by that, also when his parents have ended.
    terminals.shell.enter(&format!("(sh -c '{}' &)", start("near")));
    terminals.shell.enter(&format!("(setsid sh -c '{}' &)", start("far")));
    let (near, far) = (terminals.pid_in("near"), terminals.pid_in("far"));
    for process in [near, far] {
        let guard = terminals.guard().to_string();
        wait_for(|| stat(process).is_some_and(|stat| stat[1] == guard), "it has lost its parents");
    }
    terminals.dispose(TERMINAL);
    wait_for(|| !is_alive(near), "near");
    assert!(is_alive(far));
    terminals.dispose(OTHER);
    wait_for(|| !is_alive(far), "far");
    terminals.wait_until_alone();
}

#[test]
fn host_end_or_death_leaves_no_terminal_process() {
    for signal in [Signal::KILL, Signal::TERM] {
        let mut terminals = Terminals::start(&format!("hosts-end-{}", signal.as_raw()));
        let one = terminals.populate(TERMINAL, "one");
        let two = terminals.populate(OTHER, "two");
        let guard = terminals.guard();
        terminals.signal_host(signal);
        terminals.shell.process.wait();
        if signal == Signal::TERM {
            // It has seen to it itself.
            assert!(one.values().chain(two.values()).chain([&guard]).all(|process| !is_alive(*process)));
        }
        wait_until_dead(&one);
        wait_until_dead(&two);
        wait_for(|| !is_alive(guard), "the guard");
    }
}

#[test]
fn killed_terminal_guard_ends_its_terminals_and_the_host_continues() {
    let mut terminals = Terminals::start("a-guard-is-killed");
    let one = terminals.populate(TERMINAL, "one");
    let two = terminals.populate(OTHER, "two");
    let guard = terminals.guard();
    terminals.shell.enter("kill -KILL $PPID");
    wait_for(|| !is_alive(guard), "the guard");
    // From then on there is another one.
    terminals.populate("agenthost-terminal:///three", "three");
    terminals.shell.follow(OTHER);
    assert_eq!(terminals.shell.until_exited(), None);
    terminals.shell.follow(TERMINAL);
    assert_eq!(terminals.shell.until_exited(), None);
    wait_until_dead(&one);
    wait_until_dead(&two);
    terminals.dispose("agenthost-terminal:///three");
    terminals.wait_until_alone();
}

#[test]
fn stopped_terminal_guard_is_continued() {
    let mut terminals = Terminals::start("a-guard-is-stopped");
    let one = terminals.populate(TERMINAL, "one");
    terminals.shell.enter("kill -STOP $PPID; echo go\"\"ne");
    terminals.shell.until_shown("gone\r\n");
    let two = terminals.populate(OTHER, "two");
    let guard = terminals.guard();
    terminals.signal_guard(Signal::STOP);
    terminals.shell.enter("exec true");
    assert_eq!(terminals.shell.until_exited(), Some(0));
    wait_until_dead(&two);
    assert_alive(&one);
    terminals.signal_guard(Signal::STOP);
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    terminals.wait_until_alone();
    // The host may die before it hears of it.
    let three = terminals.populate("agenthost-terminal:///three", "three");
    terminals.signal_host(Signal::STOP);
    terminals.signal_guard(Signal::STOP);
    assert_ne!(terminals.guard(), guard);
    terminals.shell.process.child.kill().unwrap();
    terminals.shell.process.wait();
    wait_until_dead(&three);
}

#[test]
fn permanently_stopped_terminal_guard_is_replaced() {
    let mut terminals = Terminals::start("a-guard-is-held");
    let one = terminals.populate(TERMINAL, "one");
    let two = terminals.populate(OTHER, "two");
    // This is nobody's, so it is not ended with either.
    let guard = terminals.guard();
    let stop = format!("while kill -STOP {guard}; do :; done");
    let mut stops = std::process::Command::new("/bin/sh").args(["-c", &stop]).spawn().unwrap();
    terminals.dispose(TERMINAL);
    terminals.dispose(OTHER);
    wait_until_dead(&one);
    wait_until_dead(&two);
    terminals.wait_until_alone();
    stops.wait().unwrap();
}

#[test]
fn terminals_created_and_disposed_of_concurrently_share_one_guard() {
    let mut terminals = Terminals::start("at-once");
    let uri = |number: usize| format!("agenthost-terminal:///{number}");
    let claim = json!({ "kind": "client", "clientId": "me" });
    for _ in 0..3 {
        let wanted: Vec<u64> = (0..8)
            .map(|number| {
                let params = json!({ "channel": uri(number), "claim": claim, "cwd": "file:///" });
                terminals.shell.request("createTerminal", params)
            })
            .collect();
        // Half of them are not waited for.
        let unwanted: Vec<u64> = (0..4)
            .map(|number| terminals.shell.request("disposeTerminal", json!({ "channel": uri(number) })))
            .collect();
        let mut answers: BTreeMap<u64, bool> = BTreeMap::new();
        while !wanted.iter().chain(&unwanted).all(|id| answers.contains_key(id)) {
            let line = terminals.shell.hear();
            answers.extend(line["id"].as_u64().map(|id| (id, line.get("result") == Some(&Value::Null))));
        }
        assert!(wanted[4..].iter().chain(&unwanted).all(|id| answers[id]), "{answers:?}");
        assert_eq!(guards(terminals.host()).len(), 1);
        for number in 4..8 {
            terminals.dispose(&uri(number));
        }
        terminals.wait_until_alone();
    }
}

/// Processes that ignore signals are killed after half a second.
#[test]
fn opening_a_terminal_does_not_wait_for_another_one_that_ends() {
    let mut terminals = Terminals::start("while-another-ends");
    terminals.open("agenthost-terminal:///it-stays");
    let mut number = 0;
    can_be_done_within(Duration::from_millis(400), || {
        number += 1;
        let uri = format!("agenthost-terminal:///{number}");
        let all = terminals.populate(&uri, &format!("{number}"));
        terminals.dispose(&uri);
        let start = Instant::now();
        terminals.open(OTHER);
        let took = start.elapsed();
        terminals.dispose(OTHER);
        wait_until_dead(&all);
        took
    });
}

/// There is no room for numbers below this one.
#[test]
fn terminals_have_separate_guards_if_the_limit_leaves_no_tags() {
    let folder = tempfile::tempdir().unwrap();
    let command = shell("exec prlimit --locks=12345 \"$@\"", &sidecar_on(&folder.path().join("state")));
    let mut terminals = Terminals::start_by(folder, command, "guards-of-their-own");
    terminals.open(OTHER);
    terminals.open(TERMINAL);
    assert_eq!(guards(terminals.host()).len(), 2);
    terminals.dispose(OTHER);
    wait_for(|| guards(terminals.host()).len() == 1, "one guard is left");
    let one = terminals.start_all("one");
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    terminals.wait_until_alone();
}
