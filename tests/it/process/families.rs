//! Processes of terminals, tested with the real program: none of a closed terminal survives, all of
//! the others do.
//!
//! Owns: real processes that have left their session, their parents and their environment.
//! Never: looks at what is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, RawPid, Signal};
use serde_json::{json, Value};

use super::terminal::{Shell, PROMPT, TERMINAL};
use crate::support::{can_be_done_within, sidecar_on, stat, HUNG, NO_HOME};

/// Another terminal than the first one.
const OTHER: &str = "agenthost-terminal:///two";

/// How a terminal's shell starts somebody who does not want to leave, each in another place.
const ALL_WAYS: &[(&str, &str)] = &[
    ("job", "/bin/sh STUBBORN job &"),
    ("session", "setsid /bin/sh STUBBORN session &"),
    ("daemon", "(setsid sh -c 'setsid /bin/sh STUBBORN daemon &' &)"),
    ("bare", "(env -i setsid /bin/sh -c 'env -i /bin/sh STUBBORN bare &' &)"),
    ("late", "sh -c 'setsid sh -c \"env -i /bin/sh STUBBORN late &\" & exit'"),
];

/// Set if processes are adopted by their guard. Elsewhere, orphans are found by a variable in their
/// environment, which the last two ways clear.
const ADOPTS_ORPHANS: bool = !cfg!(feature = "portable");

const WAYS: &[(&str, &str)] = ALL_WAYS.split_at(if ADOPTS_ORPHANS { 5 } else { 3 }).0;

/// A host, and a folder in which those who do not want to leave say who they are.
struct Terminals {
    shell: Shell,
    folder: tempfile::TempDir,
}

impl Terminals {
    fn start(cookie: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let command = sidecar_on(&folder.path().join("state"));
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
        let folder = self.folder.path().display().to_string();
        for (way, line) in WAYS {
            let words = format!("{folder}/stubborn {folder}/{name}.{way}");
            self.shell.input(&format!("{}\n", line.replace(&format!("STUBBORN {way}"), &words)));
        }
        let all: BTreeMap<_, _> =
            WAYS.iter().map(|(way, _)| ((*way).to_owned(), self.pid_in(&format!("{name}.{way}")))).collect();
        // Those have no parent of the terminal's any more.
        let guard = guard_of(&all);
        assert!(guards(self.host()).contains(&guard));
        for way in ["daemon", "bare", "late"].into_iter().filter(|_| ADOPTS_ORPHANS) {
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

    fn signal_host(&self, signal: Signal) {
        send(self.host(), signal);
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

/// Returns the guard of a terminal: the parent of the shell that has started this job.
fn guard_of(all: &BTreeMap<String, RawPid>) -> RawPid {
    let parent = |process: RawPid| stat(process).unwrap()[1].parse::<RawPid>().unwrap();
    parent(parent(all["job"]))
}

fn send(process: RawPid, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
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
        // An emulator of the program comes before them.
        [b"guard-agent".as_slice(), b"--pty"].iter().all(|word| words.contains(word))
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
    let two = terminals.populate(OTHER, "two");
    let three = terminals.populate("agenthost-terminal:///three", "three");
    let all_guards = [&one, &two, &three].map(guard_of).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(guards(terminals.host()).into_iter().collect::<BTreeSet<_>>(), all_guards);
    assert_eq!(all_guards.len(), 3, "each terminal has a guard of its own");
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    // Its shell ends, and what that leaves behind stays until its terminal is over.
    terminals.shell.enter("exit 3");
    assert_eq!(terminals.shell.until_exited(), Some(3));
    wait_until_dead(&three);
    assert_alive(&two);
    wait_for(|| guards(terminals.host()) == [guard_of(&two)], "one guard is left");
    let one = terminals.populate(TERMINAL, "one-again");
    terminals.dispose(OTHER);
    wait_until_dead(&two);
    assert_alive(&one);
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    terminals.wait_until_alone();
}

#[test]
fn host_end_or_death_leaves_no_terminal_process() {
    for signal in [Signal::KILL, Signal::TERM] {
        let mut terminals = Terminals::start(&format!("hosts-end-{}", signal.as_raw()));
        let one = terminals.populate(TERMINAL, "one");
        let two = terminals.populate(OTHER, "two");
        let guards = [guard_of(&one), guard_of(&two)];
        terminals.signal_host(signal);
        terminals.shell.process.wait();
        if signal == Signal::TERM {
            // It has seen to it itself.
            assert!(one.values().chain(two.values()).chain(&guards).all(|process| !is_alive(*process)));
        }
        wait_until_dead(&one);
        wait_until_dead(&two);
        wait_for(|| !guards.into_iter().any(is_alive), "the guards");
    }
}

#[test]
fn killed_terminal_guard_ends_its_terminal_alone() {
    let mut terminals = Terminals::start("a-guard-is-killed");
    let one = terminals.populate(TERMINAL, "one");
    let two = terminals.populate(OTHER, "two");
    let guard = guard_of(&two);
    terminals.shell.enter("kill -KILL $PPID");
    assert_eq!(terminals.shell.until_exited(), None);
    wait_for(|| !is_alive(guard), "the guard");
    wait_until_dead(&two);
    assert_alive(&one);
    terminals.populate("agenthost-terminal:///three", "three");
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
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
    send(guard_of(&two), Signal::STOP);
    terminals.shell.enter("exec true");
    assert_eq!(terminals.shell.until_exited(), Some(0));
    wait_until_dead(&two);
    assert_alive(&one);
    send(guard_of(&one), Signal::STOP);
    terminals.dispose(TERMINAL);
    wait_until_dead(&one);
    terminals.wait_until_alone();
    // The host may die before it hears of it.
    let three = terminals.populate("agenthost-terminal:///three", "three");
    terminals.signal_host(Signal::STOP);
    send(guard_of(&three), Signal::STOP);
    terminals.shell.process.child.kill().unwrap();
    terminals.shell.process.wait();
    wait_until_dead(&three);
}

#[test]
fn terminal_guard_leaves_the_folder_of_its_terminal() {
    let mut terminals = Terminals::start("guard-folder");
    let folder = format!("file://{}", terminals.folder.path().display());
    let claim = json!({ "kind": "client", "clientId": "me" });
    let params = json!({ "channel": TERMINAL, "claim": claim, "cwd": folder });
    let answer = terminals.shell.ask("createTerminal", params);
    assert_eq!(answer.get("result"), Some(&Value::Null), "{answer}");
    let guard = guards(terminals.host())[0];
    let is_out = || fs::read_link(format!("/proc/{guard}/cwd")).is_ok_and(|cwd| cwd == Path::new("/"));
    wait_for(is_out, "the guard leaves the folder");
    terminals.dispose(TERMINAL);
    terminals.wait_until_alone();
}

#[test]
fn permanently_stopped_terminal_guard_is_killed() {
    let mut terminals = Terminals::start("a-guard-is-held");
    let one = terminals.populate(TERMINAL, "one");
    let two = terminals.populate(OTHER, "two");
    // This is nobody's, so it is not ended with either.
    let guard = guard_of(&one);
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
fn terminals_can_be_created_and_disposed_of_concurrently() {
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
        wait_for(|| guards(terminals.host()).len() == 4, "a guard for each that is wanted");
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
