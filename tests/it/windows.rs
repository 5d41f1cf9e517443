//! Several windows: any number of processes on one state folder, and the host that serves the
//! clients of all.
//!
//! Owns: who starts the host and who joins it, what the end of a window means for the others, and
//! that nothing is left when the last one has gone.
//! Never: looks at what a conversation holds, but for whether it is there.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::{shell, sidecar_on, window_on, Process, HUNG};

const SESSION: &str = "ahp-session:/1";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246LzE";

/// A window, whose client has shaken hands.
pub struct Window {
    pub process: Process,
    last: u64,
}

impl Window {
    pub fn open(folder: &Path, client: &str) -> Self {
        Self::of(window_on(folder), client)
    }

    pub fn of(command: Command, client: &str) -> Self {
        Self::try_of(command, client)
            .unwrap_or_else(|status| panic!("the window has ended without an answer ({status:?})"))
    }

    /// Opens a window that may be refused.
    ///
    /// # Errors
    /// The exit status of the window that was refused, and its stderr where that is piped.
    fn try_of(command: Command, client: &str) -> Result<Self, (Option<i32>, String)> {
        let mut window = Self { process: Process::spawn(command), last: 1 };
        let params = json!({ "clientId": client, "protocolVersions": ["1.0.0"] });
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        // One that is refused may be gone already.
        window.process.try_say(&hello.to_string()).ok();
        while let Some(line) = window.process.next_line() {
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == 1 {
                assert!(message["result"]["serverSeq"].is_u64(), "{message}");
                return Ok(window);
            }
        }
        let child = &mut window.process.child;
        let stderr = child.stderr.take().map(|stderr| std::io::read_to_string(stderr).unwrap());
        Err((child.wait().unwrap().code(), stderr.unwrap_or_default()))
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        self.process
            .say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        self.process.until(|message| message["id"] == id).pop().unwrap()
    }

    /// Has a session made, and follows its chat.
    pub fn make_session(&mut self) {
        self.ask("createSession", json!({ "channel": SESSION }));
        self.follow();
    }

    pub fn follow(&mut self) -> Value {
        self.ask("subscribe", json!({ "channel": CHAT }))
    }

    pub fn begin(&mut self, turn: &str, script: &str) {
        self.last += 1;
        let message = json!({ "text": script, "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        let params = json!({ "channel": CHAT, "clientSeq": self.last, "action": action });
        self.process
            .say(&json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }).to_string());
    }

    /// Waits until an action of this type has been told; returns all that was told until then.
    pub fn until(&mut self, action: &str) -> Vec<Value> {
        self.process.until(|message| message["params"]["action"]["type"] == action)
    }

    /// Ends its input, and waits for it; returns the exit status.
    pub fn end(mut self) -> Option<i32> {
        self.process.end();
        self.process.rest();
        self.process.wait().code()
    }

    pub fn signal(&self, signal: Signal) {
        send(signal, self.process.child.id());
    }
}

pub fn send(signal: Signal, process: u32) {
    kill_process(Pid::from_raw(process.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// The lines of the lock: a process, and where others can join it.
fn lock_of(folder: &Path) -> Vec<String> {
    let said = fs::read_to_string(folder.join("lock")).unwrap();
    said.lines().map(str::to_owned).collect()
}

/// The host that serves a folder.
pub fn host_of(folder: &Path) -> u32 {
    let lines = lock_of(folder);
    assert_eq!(lines[1], "host", "{lines:?}");
    lines[0].parse().unwrap()
}

/// The processes that have this folder among their arguments.
fn processes_on(folder: &Path) -> Vec<u32> {
    let named = |process: &PathBuf| {
        let said = fs::read(process.join("cmdline")).unwrap_or_default();
        let mut arguments = said.split(|byte| *byte == 0);
        arguments.any(|argument| argument == folder.as_os_str().as_encoded_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let numbers = processes.filter(named).filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    numbers.collect()
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HUNG, "{what} did not come to be");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that no process and no socket is left, and that the folder is free again.
pub fn check_no_leftovers(folder: &Path) {
    wait_until("the end of all processes", || processes_on(folder).is_empty());
    assert!(!folder.join("host.sock").exists(), "its socket is there");
    // A process that exits has no arguments any more while it still holds its files.
    let mut output = None;
    wait_until("a free folder", || {
        let started = sidecar_on(folder).stdin(Stdio::null()).output().unwrap();
        output.insert(started).status.code() != Some(3)
    });
    assert_eq!(output.as_ref().and_then(|output| output.status.code()), Some(0), "{output:?}");
}

/// A window that is refused: what it says about that.
pub fn refused(mut command: Command, status: i32) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{stderr}");
    stderr
}

pub fn state() -> (TempDir, PathBuf) {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("state");
    (outer, folder)
}

#[test]
fn twenty_windows_started_at_once_share_one_host() {
    let (_outer, folder) = state();
    let starting: Vec<_> = (0..20)
        .map(|number| {
            let folder = folder.clone();
            thread::spawn(move || Window::open(&folder, &format!("client-{number}")))
        })
        .collect();
    let mut windows: Vec<Window> = starting.into_iter().map(|window| window.join().unwrap()).collect();
    assert_eq!(processes_on(&folder).len(), windows.len() + 1, "one host");
    windows[0].make_session();
    for window in &mut windows[1..] {
        assert!(window.follow()["result"].is_object());
    }
    windows[19].begin("t", "/say all hear this");
    for window in &mut windows {
        let told = window.until("chat/turnComplete");
        assert!(told.iter().any(|told| told.to_string().contains("all hear this")));
    }
    for window in windows {
        assert_eq!(window.end(), Some(0));
    }
    check_no_leftovers(&folder);
}

#[test]
fn signal_to_a_window_does_not_affect_turns_of_others() {
    let (_outer, folder) = state();
    let mut stays = Window::open(&folder, "stays");
    stays.make_session();
    stays.begin("t", "/ask shell\n/say it has gone on");
    let asked = stays.until("chat/toolCallReady").pop().unwrap();
    for signal in [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP] {
        let mut other = Window::open(&folder, "other");
        other.follow();
        other.signal(signal);
        other.process.rest();
        let status = other.process.wait();
        assert_eq!(status.code(), (signal != Signal::KILL).then_some(0), "{signal:?}");
    }
    assert_eq!(Window::open(&folder, "other").end(), Some(0));
    let call = &asked["params"]["action"]["toolCallId"];
    let approve = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": call,
        "approved": true, "confirmed": "user-action" });
    let params = json!({ "channel": CHAT, "clientSeq": 1000, "action": approve });
    let line = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
    stays.process.say(&line.to_string());
    let told = stays.until("chat/turnComplete");
    assert!(told.iter().any(|told| told.to_string().contains("it has gone on")), "{told:?}");
    assert_eq!(stays.end(), Some(0));
    check_no_leftovers(&folder);
}

#[test]
fn fork_created_in_one_window_appears_in_the_others_with_its_turns() {
    let (_outer, folder) = state();
    let mut one = Window::open(&folder, "one");
    one.make_session();
    let mut other = Window::open(&folder, "other");
    other.ask("subscribe", json!({ "channel": SESSION }));
    one.begin("t", "/say it was said");
    one.until("chat/turnComplete");
    let source = json!({ "kind": "fork", "chat": CHAT, "turnId": "t" });
    let fork = json!({ "channel": SESSION, "chat": "ahp-chat:/fork", "source": source });
    assert!(one.ask("createChat", fork)["error"].is_null());
    let added = other.until("session/chatAdded").pop().unwrap();
    assert_eq!(added["params"]["action"]["summary"]["resource"], "ahp-chat:/fork");
    let chat = |answer: Value| answer["result"]["snapshot"]["state"]["turns"].clone();
    let forked = chat(other.ask("subscribe", json!({ "channel": "ahp-chat:/fork" })));
    assert!(forked.to_string().contains("it was said"), "{forked}");
    assert_eq!(forked, chat(one.follow()));
    assert_eq!((one.end(), other.end()), (Some(0), Some(0)));
    check_no_leftovers(&folder);
}

#[test]
fn window_ended_by_a_signal_has_its_own_turn_cancelled() {
    let (_outer, folder) = state();
    let mut stays = Window::open(&folder, "stays");
    stays.make_session();
    let mut leaves = Window::open(&folder, "leaves");
    leaves.follow();
    leaves.begin("t", "/hang");
    leaves.until("chat/turnStarted");
    leaves.signal(Signal::TERM);
    let told = leaves.process.rest();
    assert_eq!(told.last().unwrap()["params"]["action"]["type"], "chat/turnCancelled", "{told:?}");
    assert_eq!(leaves.process.wait().code(), Some(0));
    stays.until("chat/turnCancelled");
    assert_eq!(stays.end(), Some(0));
}

#[test]
fn last_window_waits_for_its_turn_and_frees_the_folder() {
    let (_outer, folder) = state();
    let mut window = Window::open(&folder, "me");
    window.make_session();
    window.begin("t", "/stream 200 10\n/sleep 100\n/ask shell\n/say to the end");
    window.process.end();
    let told = window.process.rest();
    assert!(told.iter().any(|told| told.to_string().contains("to the end")), "{told:?}");
    assert_eq!(told.last().unwrap()["params"]["action"]["type"], "chat/turnComplete");
    // What nobody was left to answer was declined.
    assert_eq!(window.process.wait().code(), Some(4));
    // At once, without waiting for anything.
    let output = sidecar_on(&folder).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    check_no_leftovers(&folder);
}

#[test]
fn windows_killed_during_a_stream_do_not_affect_others() {
    let (_outer, folder) = state();
    let mut reads = Window::open(&folder, "reads");
    reads.make_session();
    reads.begin("t", "/stream 3000 100 1");
    for round in 0..12 {
        let mut window = Window::open(&folder, &format!("killed-{round}"));
        if round % 3 > 0 {
            window.follow();
        }
        if round % 2 == 0 {
            window.signal(Signal::KILL);
            window.process.wait();
        }
    }
    let told = reads.until("chat/turnComplete");
    let text = |told: &Value| told["params"]["action"]["content"].as_str().map_or(0, str::len);
    assert_eq!(told.iter().map(text).sum::<usize>(), 3000 * 100);
    assert_eq!(reads.end(), Some(0));
    check_no_leftovers(&folder);
}

#[test]
fn host_death_ends_every_window_and_loses_no_sent_action() {
    let (_outer, folder) = state();
    let mut windows: Vec<Window> =
        (0..5).map(|number| Window::open(&folder, &format!("client-{number}"))).collect();
    windows[0].make_session();
    for window in &mut windows[1..] {
        window.follow();
    }
    windows[2].begin("t", "/stream 100000 10 1");
    let mut told: Vec<Vec<Value>> = windows
        .iter_mut()
        .map(|window| window.process.until(|message| message["params"]["action"]["type"] == "chat/delta"))
        .collect();
    send(Signal::KILL, host_of(&folder));
    for (window, told) in windows.iter_mut().zip(&mut told) {
        told.extend(std::iter::from_fn(|| window.process.next_line()).map_while(|line| {
            // The last line may be torn.
            serde_json::from_str::<Value>(&line).ok()
        }));
        assert_eq!(window.process.wait().code(), Some(5));
    }
    assert!(folder.join("host.sock").exists(), "it was not removed by anybody");
    let mut back = Process::spawn(window_on(&folder));
    let last_seen =
        told.iter().flatten().filter_map(|told| told["params"]["serverSeq"].as_i64()).max().unwrap();
    let params = json!({ "clientId": "client-2", "lastSeenServerSeq": last_seen, "subscriptions": [CHAT] });
    back.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "reconnect", "params": params }).to_string());
    let answer = back.until(|message| message["id"] == 1).pop().unwrap();
    assert_eq!(answer["result"]["type"], "replay", "{answer}");
    // What everybody was told is in what is there now.
    back.say(
        &json!({ "jsonrpc": "2.0", "id": 2, "method": "subscribe", "params": { "channel": CHAT } })
            .to_string(),
    );
    let answer = back.until(|message| message["id"] == 2).pop().unwrap();
    let kept =
        answer["result"]["snapshot"]["state"]["turns"][0]["responseParts"][0]["content"].as_str().unwrap();
    let heard = told.iter().map(|told| -> usize {
        told.iter().filter_map(|told| told["params"]["action"]["content"].as_str()).map(str::len).sum()
    });
    let most = heard.max().unwrap();
    assert!(kept.len() >= most && most > 0, "{} of {most} bytes are kept", kept.len());
    back.end();
    assert_eq!(back.wait().code(), Some(0));
    check_no_leftovers(&folder);
}

#[test]
fn window_with_different_settings_is_refused_with_the_differences() {
    let (_outer, folder) = state();
    let first = Window::open(&folder, "me");
    let mut other = window_on(&folder);
    other.args(["--trash-days", "3", "--agent", "a=/no/such/agent"]);
    let stderr = refused(other, 3);
    for told in ["--trash-days", "the agent `a`", "--state-dir", &host_of(&folder).to_string()] {
        assert!(stderr.contains(told), "`{told}` is not told: {stderr}");
    }
    assert!(!stderr.contains("--max-turn-bytes") && stderr.lines().count() == 1, "{stderr}");
    let stderr = refused(sidecar_on(&folder), 3);
    assert!(stderr.contains(&host_of(&folder).to_string()), "{stderr}");
    // What belongs to a connection may differ.
    let mut own = window_on(&folder);
    own.args(["--on-eof", "exit", "--default-directory", "/proc", "--assume-version", "0.4.0"]);
    let mut own = Process::spawn(own);
    let params = json!({ "clientId": "own", "protocolVersions": ["1.0.0"] });
    own.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string());
    assert_eq!(own.next()["result"]["defaultDirectory"], "file:///proc");
    own.end();
    assert_eq!(own.wait().code(), Some(0));
    assert_eq!(first.end(), Some(0));
}

#[test]
fn different_environment_is_reported_by_variable_name_only() {
    let (_outer, folder) = state();
    let first = Window::open(&folder, "me");
    let mut other = window_on(&folder);
    let output = other.env("PATH", "/somewhere/secret").stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("PATH") && !stderr.contains("secret"), "{stderr}");
    assert_eq!(first.end(), Some(0));
}

#[test]
fn client_with_another_link_version_is_refused_without_affecting_others() {
    let (_outer, folder) = state();
    let mut first = Window::open(&folder, "me");
    let place = folder.join("host.sock");
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = |said: &[u8]| {
        let mut stream = UnixStream::connect(&place).unwrap();
        stream.write_all(said).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok();
        answer
    };
    let refusal = answer(b"{\"link\":1000,\"version\":\"9.9.9\",\"new\":{}}\n");
    for told in ["refused", "9.9.9", "link 2 and 1000", "\"status\":3"] {
        assert!(refusal.contains(told), "`{told}` is not told: {refusal}");
    }
    assert_eq!(answer(b"nonsense\n"), "");
    assert_eq!(answer(b"{\"link\":2}\n"), "");
    let mute: Vec<UnixStream> = (0..10).map(|_| UnixStream::connect(&place).unwrap()).collect();
    assert!(first.ask("ping", json!({}))["result"].is_null());
    assert_eq!(Window::open(&folder, "other").end(), Some(0));
    assert_eq!(first.end(), Some(0));
    drop(mute);
}

#[test]
fn state_folder_with_a_path_too_long_for_a_socket_works() {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("long".repeat(30)).join("state");
    let runtime = outer.path().join("run");
    fs::create_dir(&runtime).unwrap();
    let window = |client: &str, has_runtime: bool| {
        let mut command = window_on(&folder);
        command.arg("--write-root").arg(&runtime);
        if has_runtime {
            command.env("XDG_RUNTIME_DIR", &runtime);
        }
        Window::of(command, client)
    };
    let mut first = window("first", true);
    first.make_session();
    let place = PathBuf::from(&lock_of(&folder)[2]);
    assert!(place.starts_with(&runtime), "{place:?}");
    let delete = json!({ "channel": "ahp-root://", "uri": format!("file://{}", place.display()) });
    let refused = first.ask("resourceDelete", delete);
    assert!(refused["error"].is_object() && place.exists(), "{refused}");
    // Where it is is known to those, too, that would have it elsewhere.
    let mut second = window("second", false);
    assert!(second.follow()["result"].is_object());
    assert_eq!((second.end(), first.end()), (Some(0), Some(0)));
    assert!(!place.exists());
    check_no_leftovers(&folder);
}

#[test]
fn window_serves_itself_if_no_socket_can_be_created() {
    let (_outer, folder) = state();
    fs::create_dir_all(folder.join("host.sock/in the way")).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = window_on(&folder);
    command.env("TMPDIR", "/proc/nowhere").stderr(Stdio::piped());
    let mut first = Window::of(command, "me");
    first.make_session();
    let second = refused(window_on(&folder), 3);
    assert!(second.contains(&first.process.child.id().to_string()), "{second}");
    let mut stderr = first.process.child.stderr.take().unwrap();
    assert_eq!(first.end(), Some(0));
    let mut warning = String::new();
    stderr.read_to_string(&mut warning).unwrap();
    assert!(warning.contains("WARN") && warning.contains("a host of its own"), "{warning}");
}

#[test]
fn start_failure_of_the_host_is_reported_by_its_window() {
    let (_outer, folder) = state();
    let mut first = Window::open(&folder, "me");
    first.make_session();
    assert_eq!(first.end(), Some(0));
    fs::remove_file(folder.join("sessions.sqlite")).unwrap();
    let stderr = refused(window_on(&folder), 3);
    assert!(stderr.contains("sessions.sqlite"), "{stderr}");
}

#[test]
fn host_that_cannot_take_over_the_folder_refuses_waiting_fronts_with_the_reason() {
    let (outer, folder) = state();
    assert_eq!(Window::open(&folder, "me").end(), Some(0));
    let socket = outer.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut front = UnixStream::connect(&socket).unwrap();
    // Nobody has locked the folder.
    let mut host = window_on(&folder);
    host.arg("--as-host").stdin(Stdio::null()).stdout(OwnedFd::from(listener));
    assert_eq!(host.status().unwrap().code(), Some(3));
    drop(host);
    let mut answer = String::new();
    front.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("refused") && answer.contains("\"status\":3"), "{answer}");
}

#[test]
fn window_whose_arguments_end_with_two_hyphens_starts_a_host() {
    let (_outer, folder) = state();
    let mut command = window_on(&folder);
    command.arg("--");
    assert_eq!(Window::of(command, "me").end(), Some(0));
}

#[test]
fn window_log_has_host_lines_below_the_level_of_the_host() {
    let (_outer, folder) = state();
    let first = Window::open(&folder, "first");
    let mut command = window_on(&folder);
    command.args(["--log", "info"]).stderr(Stdio::piped());
    let mut second = Window::of(command, "second");
    let mut stderr = second.process.child.stderr.take().unwrap();
    assert_eq!(second.end(), Some(0));
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    assert!(log.contains("INFO") && log.contains("connection="), "no line of the host: {log}");
    let of_host = fs::read_to_string(folder.join("host.log")).unwrap();
    assert!(!of_host.contains("INFO"), "the host logs warnings only: {of_host}");
    assert_eq!(first.end(), Some(0));
}

#[test]
fn silent_connections_do_not_block_new_windows() {
    let (_outer, folder) = state();
    let mut first = Window::open(&folder, "first");
    // More than may be about to join, and for longer than a window waits.
    let silent: Vec<UnixStream> =
        (0..600).map(|_| UnixStream::connect(folder.join("host.sock")).unwrap()).collect();
    let mut second = Window::open(&folder, "second");
    first.make_session();
    second.follow();
    assert_eq!((second.end(), first.end()), (Some(0), Some(0)));
    drop(silent);
    check_no_leftovers(&folder);
}

#[test]
fn concurrently_starting_and_ending_windows_are_all_served() {
    let (_outer, folder) = state();
    let mut all = Vec::new();
    for lane in 0..4 {
        let folder = folder.clone();
        all.push(thread::spawn(move || {
            for round in 0..12 {
                let mut window = Window::open(&folder, &format!("{lane}-{round}"));
                window.ask("createSession", json!({ "channel": format!("ahp-session:/{lane}-{round}") }));
                assert_eq!(window.end(), Some(0));
            }
        }));
    }
    for lane in all {
        lane.join().unwrap();
    }
    let mut last = Window::open(&folder, "last");
    let listed = last.ask("listSessions", json!({}));
    assert_eq!(listed["result"]["items"].as_array().unwrap().len(), 4 * 12);
    assert_eq!(last.end(), Some(0));
    check_no_leftovers(&folder);
}

#[test]
fn terminal_with_zero_grace_ends_with_its_window() {
    let folder = tempfile::tempdir().unwrap();
    let window = |client: &str| {
        let mut command = window_on(folder.path());
        command.args(["--terminal-grace", "0"]).env("SHELL", "/bin/sh");
        Window::of(command, client)
    };
    let (mut one, mut other) = (window("one"), window("other"));
    other.ask("subscribe", json!({ "channel": "ahp-root://" }));
    let terminal = "ahp-terminal:/one";
    let claim = json!({ "kind": "client", "clientId": "one" });
    assert_eq!(
        one.ask("createTerminal", json!({ "channel": terminal, "claim": claim }))["result"],
        Value::Null
    );
    one.ask("subscribe", json!({ "channel": terminal }));
    let list = |window: &mut Window| {
        let told = window.until("root/terminalsChanged").pop().unwrap();
        told["params"]["action"]["terminals"].as_array().unwrap().len()
    };
    assert_eq!(list(&mut other), 1);
    assert_eq!(one.end(), Some(0));
    while list(&mut other) > 0 {}
    assert_eq!(other.end(), Some(0));
}

/// A shell that sets limits of open files, and a command that it runs with them.
fn limited(limits: &str, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = window_on(folder);
    command.args(arguments);
    shell(&format!(r#"{limits}; exec "$@""#), &command)
}

#[test]
fn window_is_refused_if_the_host_is_out_of_descriptors() {
    let (_outer, folder) = state();
    let open = || {
        let mut command = limited("ulimit -n 80", &folder, &[]);
        command.stderr(Stdio::piped());
        command
    };
    let mut windows = vec![Window::of(open(), "client-0")];
    let stderr = loop {
        match Window::try_of(open(), &format!("client-{}", windows.len())) {
            Ok(window) => windows.push(window),
            Err((status, stderr)) => {
                assert_eq!(status, Some(1), "{stderr}");
                break stderr;
            }
        }
        assert!(windows.len() < 80, "there is no limit");
    };
    assert!(stderr.contains("it can open no more files (80 at once, see `ulimit -n`)"), "{stderr}");
    for (number, window) in windows.iter_mut().enumerate() {
        let session = json!({ "channel": format!("ahp-session:/{number}") });
        assert_eq!(window.ask("createSession", session)["result"], Value::Null);
    }
    let listed = windows[0].ask("listSessions", json!({}));
    assert_eq!(listed["result"]["items"].as_array().map(Vec::len), Some(windows.len()), "{listed}");
    assert_eq!(windows.pop().unwrap().end(), Some(0));
    // The host lets go of the files of a window a moment after it has ended.
    let fits_again = || Window::try_of(open(), "fits again");
    wait_until("room for another window", || fits_again().is_ok_and(|window| window.end() == Some(0)));
    for window in windows {
        assert_eq!(window.end(), Some(0));
    }
}

#[test]
fn connections_leave_descriptors_for_sessions_and_agents() {
    let (outer, folder) = state();
    let socket = outer.path().join("socket");
    let listen = format!("unix:{}", socket.display());
    let agent = "x=/bin/sh -c 'exit 7'";
    let command = limited("ulimit -n 80", &folder, &["--listen", &listen, "--agent", agent]);
    let mut window = Window::of(command, "me");
    let mut connections = Vec::new();
    let refused = loop {
        let mut connection = UnixStream::connect(&socket).unwrap();
        let ping = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{}}\n";
        // One that is refused may be closed already.
        connection.write_all(ping).ok();
        let mut answer = String::new();
        BufReader::new(&connection).read_line(&mut answer).unwrap();
        if answer.contains("can open no more files") {
            break answer;
        }
        connections.push(connection);
        assert!(connections.len() < 80, "there is no limit");
    };
    assert!(refused.contains("80 at once"), "{refused}");
    window.make_session();
    window.begin("t1", "hello");
    let told = window.until("chat/error").pop().unwrap().to_string();
    assert!(told.contains("it ended with status 7"), "{told}");
    assert_eq!(window.end(), Some(0));
}

#[test]
fn host_raises_its_descriptor_limit_but_agents_inherit_the_original() {
    let (outer, folder) = state();
    let (limits, environment) = (outer.path().join("limits"), outer.path().join("environment"));
    let agent = format!(
        "x=/bin/sh -c 'ulimit -S -n > {limits}; ulimit -H -n >> {limits}; env > {environment}'",
        limits = limits.display(),
        environment = environment.display()
    );
    let command = limited(
        "ulimit -S -n 200; ulimit -H -n 1000; export AHP_SIDECAR_TOKEN=a-token-of-a-client",
        &folder,
        &["--agent", &agent],
    );
    let mut window = Window::of(command, "me");
    window.ask("createSession", json!({ "channel": SESSION, "provider": "x" }));
    wait_until("the agent's environment", || {
        fs::read_to_string(&environment).is_ok_and(|environment| environment.contains("PWD="))
    });
    assert_eq!(fs::read_to_string(&limits).unwrap(), "200\n1000\n");
    assert!(!fs::read_to_string(&environment).unwrap().contains("AHP_SIDECAR_TOKEN"));
    let of_host = fs::read_to_string(format!("/proc/{}/limits", host_of(&folder))).unwrap();
    let files = of_host.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).collect::<Vec<_>>(), ["1000", "1000", "files"]);
    window.end();
}

#[test]
fn removed_host_socket_is_bound_again_by_the_same_host() {
    let (_outer, folder) = state();
    let mut first = Window::open(&folder, "first");
    first.make_session();
    let (host, socket) = (host_of(&folder), folder.join("host.sock"));
    for round in 0..3 {
        match round {
            0 => fs::remove_file(&socket).unwrap(),
            // Somebody else's, and one that nobody listens on.
            1 => fs::write(folder.join("other"), "")
                .and_then(|()| fs::rename(folder.join("other"), &socket))
                .unwrap(),
            _ => {
                fs::remove_file(&socket).unwrap();
                drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
            }
        }
        let mut second = Window::open(&folder, "second");
        assert!(second.follow()["result"].is_object(), "round {round}");
        assert_eq!(host_of(&folder), host, "one host");
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(second.end(), Some(0));
    }
    assert_eq!(processes_on(&folder).len(), 2, "a window and its host");
    assert_eq!(first.end(), Some(0));
    check_no_leftovers(&folder);
}

#[test]
fn removed_lock_file_admits_no_second_host() {
    let (_outer, folder) = state();
    let mut first = Window::open(&folder, "first");
    first.make_session();
    let host = host_of(&folder);
    fs::remove_file(folder.join("lock")).unwrap();
    let is_named = || fs::read_to_string(folder.join("lock")).is_ok_and(|lock| lock.contains("host.sock"));
    wait_until("another lock that names the host", is_named);
    let mut second = Window::open(&folder, "second");
    assert!(second.follow()["result"].is_object());
    assert_eq!(host_of(&folder), host);
    assert_eq!((second.end(), first.end()), (Some(0), Some(0)));
    check_no_leftovers(&folder);
}

#[test]
fn host_exits_if_another_process_takes_its_folder() {
    let (_outer, folder) = state();
    let mut first = Window::open(&folder, "first");
    fs::remove_file(folder.join("lock")).unwrap();
    fs::write(folder.join("lock"), "").unwrap();
    first.process.rest();
    assert_eq!(first.process.wait().code(), Some(5));
    wait_until("the end of the host", || processes_on(&folder).is_empty());
    assert!(folder.join("host.sock").exists(), "it may be the socket of the process that has the folder now");
    assert_eq!(Window::open(&folder, "next").end(), Some(0));
    check_no_leftovers(&folder);
}

#[test]
fn listener_flag_without_a_listener_is_refused() {
    let (_outer, folder) = state();
    let first = Window::open(&folder, "first");
    for flag in ["--reconnect-within", "--handshake-timeout"] {
        let mut second = window_on(&folder);
        second.args([flag, "7"]);
        assert!(refused(second, 2).contains("--listen"), "{flag}");
    }
    assert_eq!(first.end(), Some(0));
}
