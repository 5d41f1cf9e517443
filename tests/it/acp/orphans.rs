//! Processes left running by agents, wherever they have moved: none outlives the host or the agent.
//!
//! Owns: every way to get away from one's parent, group and session, at every moment of a session,
//! and every end.
//! Never: looks at more of it than whether it is gone.

use rustix::process::{kill_process, Pid, Signal};

use super::terminals::{about, create};
use super::*;
use crate::guard::{guard_is_stopped, ENDS_HOPPERS};

/// Step that leaves processes.
const LEAVE: &str = if ENDS_HOPPERS { "leave hopper" } else { "leave" };

/// Names of the processes that [`LEAVE`] starts.
const LEFT: &[&str] = ALL_LEFT.split_at(if ENDS_HOPPERS { 9 } else { 8 }).0;

const ALL_LEFT: &[&str] =
    &["child", "in-group", "in-session", "daemon", "background", "in-family", "adopter", "adopted", "hopper"];

/// Names of the processes in terminals of the host: a command, its children while it runs, and
/// those that it leaves.
const LEFT_IN_TERMINALS: [&str; 4] = ["command", "of-command", "daemon-of-command", "of-ended-command"];

/// The steps that leave all of it.
fn leave_all() -> String {
    let stubborn = "ulimit -t 2; trap '' TERM INT HUP; while :; do sleep 0.1; done";
    let run = |script: &str, name: &str| {
        let arguments = ["-c", script, "/bin/sh", "-c", stubborn, name];
        create(json!({ "command": "/bin/sh", "args": arguments })).replacen("call", "call_silently", 1)
    };
    let steps = [
        LEAVE.to_owned(),
        run("exec \"$0\" \"$@\"", LEFT_IN_TERMINALS[0]),
        run("setsid \"$0\" \"$@\" & wait", LEFT_IN_TERMINALS[1]),
        run("(setsid \"$0\" \"$@\" &); sleep 1000", LEFT_IN_TERMINALS[2]),
        run("setsid \"$0\" \"$@\" & exit", LEFT_IN_TERMINALS[3]),
        about("wait_for_exit").replacen("call", "call_silently", 1),
    ];
    steps.join("\n")
}

impl Watched {
    /// Returns those names that occur in the command line of a running process.
    fn running(&self, names: &[&[&'static str]]) -> Vec<&'static str> {
        let running = self.agents();
        let runs = |name: &str| running.iter().any(|it| it.split_whitespace().any(|word| word == name));
        names.concat().into_iter().filter(|name| runs(name)).collect()
    }

    fn wait_for_running(&self, names: &[&[&'static str]]) {
        let start = Instant::now();
        while self.running(names) != names.concat() {
            assert!(start.elapsed() < HUNG, "there are only {:?}", self.agents());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.child.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// Ends the host in one of three ways; soon after it nobody is left.
    fn die(mut self, death: &str) {
        match death {
            "end of input" => self.process.end(),
            "SIGTERM" => self.send(Signal::TERM),
            _ => self.send(Signal::KILL),
        }
        self.process.wait();
        let start = Instant::now();
        while !self.agents().is_empty() {
            assert!(start.elapsed() < HUNG, "after {death}: {:?}", self.agents());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

const DEATHS: [&str; 3] = ["SIGKILL", "SIGTERM", "end of input"];

/// A session; its host does not wait for turns when its input ends.
fn session() -> Watched {
    let mut setting = Setting::with(&[]);
    setting.flags = ["--ephemeral", "--on-eof", "exit"].map(str::to_owned).into();
    let mut watched = setting.start();
    watched.session();
    watched
}

/// A session in whose turn all of it was left.
fn with_leftovers() -> Watched {
    let mut watched = session();
    watched.begin("t1", &format!("{}\nsay left\nhang", leave_all()));
    watched.action_where(|action| action["part"]["content"] == "left");
    watched.wait_for_running(&[LEFT, &LEFT_IN_TERMINALS]);
    watched
}

#[test]
fn host_death_while_an_agent_starts_leaves_no_process() {
    let all = DEATHS.map(|death| {
        let mut watched = Setting::with(&["--before-hello", LEAVE]).start();
        watched.session();
        (watched, death)
    });
    for (watched, death) in all {
        watched.wait_for_running(&[LEFT]);
        watched.die(death);
    }
}

#[test]
fn host_death_during_a_turn_leaves_no_process() {
    for death in DEATHS {
        with_leftovers().die(death);
    }
}

#[test]
fn host_death_between_turns_leaves_no_process() {
    for death in DEATHS {
        let mut watched = session();
        watched.turn("t1", &leave_all());
        watched.wait_for_running(&[LEFT, &LEFT_IN_TERMINALS]);
        watched.die(death);
    }
}

#[test]
fn host_death_before_a_permission_is_given_leaves_no_process() {
    for death in DEATHS {
        let mut watched = session();
        watched.begin("t1", &format!("{}\nask", leave_all()));
        watched.action("chat/toolCallReady");
        watched.wait_for_running(&[LEFT, &LEFT_IN_TERMINALS]);
        watched.die(death);
    }
}

#[test]
fn host_death_after_a_permission_was_given_leaves_no_process() {
    for death in DEATHS {
        let mut watched = session();
        watched.begin("t1", &format!("ask\n{}\nsay left\nhang", leave_all()));
        watched.action("chat/toolCallReady");
        watched.decide("t1", "ask_1", true, "yes");
        watched.wait_for_running(&[LEFT, &LEFT_IN_TERMINALS]);
        watched.die(death);
    }
}

#[test]
fn agent_death_leaves_no_process() {
    // It ends; it is killed; it stops or kills its guard, or all of its group.
    for end in ["die 3", "kill", "kill_parent", "kill_group", "freeze all"] {
        let mut setting = Setting::with(&[]);
        setting.limits = "cancel_seconds = 0.3\n".to_owned();
        let mut watched = setting.start();
        watched.session();
        watched.begin("t1", &format!("{}\nsay left\n{end}", leave_all()));
        watched.action_where(|action| action["part"]["content"] == "left");
        // It may be before all of it runs.
        if end == "freeze all" {
            // Nobody would notice.
            watched.cancel("t1");
            watched.ending("t1");
            assert!(watched.turn("t2", "say ok").ends_with("ok"));
        } else {
            watched.wait_for_agents(0);
        }
        assert_eq!(watched.running(&[LEFT, &LEFT_IN_TERMINALS]), [""; 0], "after {end}");
        watched.leave();
    }
}

/// The guard cannot do anything when its host is killed, but the end of its host wakes it.
#[test]
fn host_death_while_the_guard_is_stopped_leaves_no_process() {
    let mut watched = with_leftovers();
    watched.cancel("t1");
    watched.ending("t1");
    watched.begin("t2", "say stopping\nfreeze all");
    watched.action_where(|action| action["part"]["content"] == "stopping");
    while !guard_is_stopped(&watched.agents()) {
        thread::sleep(Duration::from_millis(5));
    }
    watched.die("SIGKILL");
}

#[test]
fn stopping_an_idle_agent_leaves_no_process() {
    let mut watched = Setting::with(&[]).limit("idle_seconds = 0.3\n").start();
    watched.session();
    watched.turn("t1", &leave_all());
    watched.wait_for_agents(0);
    assert!(watched.turn("t2", "say ok").ends_with("ok"));
    watched.leave();
}

#[test]
fn disposing_of_a_session_with_its_own_agent_leaves_no_process() {
    let mut watched = Setting::with(&[]).limit("one_session = true\n").start();
    watched.session();
    watched.turn("t1", &leave_all());
    watched.wait_for_running(&[LEFT, &LEFT_IN_TERMINALS]);
    watched.say(json!({ "id": 7, "method": "disposeSession", "params": { "channel": SESSION } }));
    watched.wait_for_agents(0);
    watched.leave();
}

/// The command of a terminal, too, may end or stop what guards it.
#[test]
fn command_that_kills_or_stops_its_guard_leaves_no_process() {
    for signal in ["KILL", "STOP"] {
        let mut watched = Setting::with(&[]).start();
        watched.session();
        let go = watched.folder.as_ref().unwrap().path().join("go");
        let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", go.display());
        let script = format!("setsid sleep 1001 & {wait}; kill -{signal} $PPID; echo done; sleep 1000");
        watched.turn("t1", &create(json!({ "command": "sh", "args": ["-c", script] })));
        fs::write(go, "").unwrap();
        if signal == "STOP" {
            watched.turn("t2", &format!("until_output done\n{}", about("release")));
        }
        let start = Instant::now();
        while watched.agents().iter().any(|process| process.contains("sleep")) {
            assert!(start.elapsed() < HUNG, "{signal}: {:?}", watched.agents());
            thread::sleep(Duration::from_millis(10));
        }
        watched.leave();
    }
}

/// A process that became the host while it had children, as a shell does, is no parent of the
/// orphans of agents, and leaves its children alone.
#[test]
fn children_inherited_by_the_host_process_are_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (host, cookie) = Setting::with(&[]).command(folder.path());
    let mut shell = crate::support::shell("sleep 1003 >/dev/null & echo $! >&3; exec \"$@\" 3>&-", &host);
    let pid_file = folder.path().join("pid");
    let mut with_file = Command::new("/bin/sh");
    with_file.args(["-c", &format!("exec \"$@\" 3>{}", pid_file.display()), "sh"]);
    with_file.arg(shell.get_program()).args(shell.get_args()).env_clear();
    with_file.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir("/");
    shell = with_file;
    let mut watched = Watched {
        process: Process::spawn(shell),
        cookie,
        sequence: 0,
        folder: Some(folder),
        heard: Vec::new(),
    };
    watched.say(json!({ "id": 1, "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } }));
    watched.session();
    watched.begin("t1", "kill_parent");
    watched.ending("t1");
    watched.wait_for_agents(0);
    let pid: i32 = fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    let sleep = Pid::from_raw(pid).unwrap();
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(line.contains("1003"), "{line}");
    kill_process(sleep, Signal::KILL).unwrap();
    watched.leave();
}
