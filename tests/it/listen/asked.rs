//! Listeners that windows ask their host for.
//!
//! Owns: what the end of such a window means for the others, for those who connect, and for the
//! host; who is refused, and that nobody else notices.
//! Never: judges how fast something is.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::{json, Value};

use super::Client;
use crate::support::{program, window_on};
use crate::windows::{check_no_leftovers, host_of, refused, state, wait_until, Window};

const ANY_PORT: &str = "ws://127.0.0.1:0";

/// A window that asks its host to listen.
struct ListeningWindow {
    window: Window,
    stderr: Lines<BufReader<ChildStderr>>,
    urls: Vec<String>,
}

fn asking(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = window_on(folder);
    command.args(arguments).stderr(Stdio::piped());
    command
}

impl ListeningWindow {
    fn open(folder: &Path, client: &str, addresses: &[&str]) -> Self {
        let arguments: Vec<&str> = addresses.iter().flat_map(|address| ["--listen", address]).collect();
        Self::of(asking(folder, &arguments), client, addresses.len())
    }

    fn of(command: Command, client: &str, addresses: usize) -> Self {
        let mut window = Window::of(command, client);
        let mut stderr = BufReader::new(window.process.child.stderr.take().unwrap()).lines();
        let urls = stderr.by_ref().take(addresses).map(|line| {
            let line = line.unwrap();
            line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned()
        });
        let urls = urls.collect();
        Self { window, stderr, urls }
    }

    fn connect(&self, name: &str) -> Client {
        let mut client = Client::connect(&self.urls[0], &[]).unwrap();
        client.initializes(name, "1.0.0");
        client
    }

    /// Ends its input, and waits for it; returns what it has printed besides.
    fn end(self) -> Vec<String> {
        assert_eq!(self.window.end(), Some(0));
        self.stderr.map(Result::unwrap).collect()
    }
}

fn status(folder: &Path) -> Value {
    let output = program().args(["status", "--json", "--state-dir"]).arg(folder).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn end_of_the_window_that_opened_a_listener_does_not_affect_other_clients() {
    let (_outer, folder) = state();
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let mut asks = ListeningWindow::open(&folder, "asks", &[ANY_PORT]);
        asks.window.make_session();
        let mut other = Window::open(&folder, "other");
        other.follow();
        let mut connected = asks.connect("connected");
        assert_eq!(status(&folder)["listening"], json!(asks.urls));
        other.begin("t", "/ask shell");
        let asked = other.until("chat/toolCallReady").pop().unwrap();
        let url = asks.urls[0].clone();
        match signal {
            None => drop(asks.end()),
            Some(signal) => {
                asks.window.signal(signal);
                asks.window.process.rest();
                let status = asks.window.process.wait();
                assert_eq!(status.code(), (signal != Signal::KILL).then_some(0));
            }
        }
        connected.is_served();
        let mut late = Client::connect(&url, &[]).unwrap();
        late.initializes("late", "1.0.0");
        let call = &asked["params"]["action"]["toolCallId"];
        let approve = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": call,
            "approved": true, "confirmed": "user-action" });
        let params =
            json!({ "channel": "ahp-chat://default/YWhwLXNlc3Npb246LzE", "clientSeq": 7, "action": approve });
        let line = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        other.process.say(&line.to_string());
        other.until("chat/turnComplete");
        other.ask("disposeSession", json!({ "channel": "ahp-session:/1" }));
        drop((connected, late));
        assert_eq!(other.end(), Some(0));
        check_no_leftovers(&folder);
        assert!(!folder.join("listening.json").exists() && Client::try_connect(&url).is_err());
    }
}

#[test]
fn signal_to_the_window_that_opened_a_listener_cancels_only_its_own_turns() {
    let (_outer, folder) = state();
    let mut other = Window::open(&folder, "other");
    other.make_session();
    let mut asks = ListeningWindow::open(&folder, "asks", &[ANY_PORT]);
    let mut connected = asks.connect("connected");
    for session in ["ahp-session:/a", "ahp-session:/b"] {
        other.ask("createSession", json!({ "channel": session }));
    }
    let chat = |name: &str| ahp_sidecar::wire::uris::default_chat_of(name);
    let begin = |channel: &str, turn: &str| {
        let message = json!({ "text": "/hang", "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        json!({ "method": "dispatchAction", "params": { "channel": channel, "clientSeq": 9, "action": action } })
    };
    connected.asks("subscribe", json!({ "channel": chat("ahp-session:/b") }));
    connected.says(begin(&chat("ahp-session:/b"), "of-the-socket"));
    other.begin("of-the-other", "/hang");
    other.until("chat/turnStarted");
    asks.window.ask("subscribe", json!({ "channel": chat("ahp-session:/a") }));
    let mut line = begin(&chat("ahp-session:/a"), "of-the-one-that-asked");
    line["jsonrpc"] = "2.0".into();
    asks.window.process.say(&line.to_string());
    asks.window.until("chat/turnStarted");
    asks.window.signal(Signal::TERM);
    let told = asks.window.process.rest();
    assert_eq!(told.last().unwrap()["params"]["action"]["type"], "chat/turnCancelled");
    connected.is_served();
    assert!(other.ask("ping", json!({}))["error"].is_null());
    let turn = |window: &mut Window, channel: String| {
        let answer = window.ask("subscribe", json!({ "channel": channel }));
        answer["result"]["snapshot"]["state"]["activeTurn"]["id"].clone()
    };
    assert_eq!(turn(&mut other, chat("ahp-session:/1")), "of-the-other");
    assert_eq!(turn(&mut other, chat("ahp-session:/b")), "of-the-socket");
    assert_eq!(turn(&mut other, chat("ahp-session:/a")), Value::Null);
    other.signal(Signal::TERM);
    other.process.rest();
    drop(connected);
}

#[test]
fn host_runs_until_the_last_client_of_a_listener_disconnects() {
    let (_outer, folder) = state();
    let asks = ListeningWindow::open(&folder, "asks", &[ANY_PORT]);
    let host = host_of(&folder);
    let mut connected = asks.connect("connected");
    // Its process does not wait for the host, which stays.
    asks.end();
    connected.is_served();
    let joined = Window::open(&folder, "joined");
    assert_eq!(host_of(&folder), host);
    assert_eq!(joined.end(), Some(0));
    connected.is_served();
    drop(connected);
    check_no_leftovers(&folder);
}

#[test]
fn unusable_listen_address_is_refused_only_to_its_window() {
    let (outer, folder) = state();
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("ws://{}", foreign.local_addr().unwrap());
    let socket = format!("unix:{}", outer.path().join("no/such/folder").display());
    let mut first = Window::open(&folder, "first");
    for bad in [taken.as_str(), &socket] {
        // What could be listened on is given up, too.
        let said = refused(asking(&folder, &["--listen", ANY_PORT, "--listen", bad]), 1);
        assert!(
            said.contains("cannot listen on") && said.contains(bad) && said.lines().count() == 1,
            "{said}"
        );
    }
    assert_eq!(status(&folder)["listening"], json!([]));
    first.make_session();
    assert_eq!(first.end(), Some(0));
    // So it is where the host was started for that window, which leaves nothing behind.
    refused(asking(&folder, &["--listen", &taken]), 1);
    check_no_leftovers(&folder);
}

#[test]
fn listener_is_shared_by_windows_with_equal_flags_and_refused_to_others() {
    let (outer, folder) = state();
    let socket = format!("unix:{}", outer.path().join("socket").display());
    let first = ListeningWindow::open(&folder, "first", &[ANY_PORT, &socket]);
    let second = ListeningWindow::open(&folder, "second", &[&socket, ANY_PORT]);
    assert_eq!((&first.urls[0], &first.urls[1]), (&second.urls[1], &second.urls[0]));
    // By the port that was picked, and from another folder.
    let picked = first.urls[0].split("/?").next().unwrap().to_owned();
    let mut command = asking(&folder, &["--listen", &picked, "--listen", "unix:socket"]);
    command.current_dir(outer.path());
    let third = ListeningWindow::of(command, "third", 2);
    assert_eq!(third.urls, first.urls);
    for (arguments, flag) in [
        (&["--no-token"][..], "--no-token"),
        (&["--allow-origin", "https://example.com"], "--allow-origin"),
        (&["--reconnect-within", "7"], "--reconnect-within"),
    ] {
        let said = refused(asking(&folder, &[&["--listen", &picked][..], arguments].concat()), 1);
        assert!(said.contains(flag) && said.contains(&picked), "{said}");
    }
    first.connect("connected").is_served();
    assert_eq!(status(&folder)["listening"], json!(first.urls));
    for window in [first, second, third] {
        window.end();
    }
    check_no_leftovers(&folder);
}

#[test]
fn running_serve_opens_the_listener_that_a_window_requests() {
    let (_outer, folder) = state();
    let host = super::Host::on(&folder, &[ANY_PORT]);
    let socket = format!("unix:{}", folder.join("more").display());
    let asks = ListeningWindow::open(&folder, "asks", &[&socket]);
    assert_eq!(status(&folder)["listening"], json!([host.url(), socket]));
    asks.end();
    assert!(UnixStream::connect(folder.join("more")).is_ok(), "it stays");
    host.leave();
    assert!(!folder.join("more").exists());
}

#[test]
fn socket_and_token_of_a_later_listener_are_protected_from_writes() {
    let (outer, folder) = state();
    let (top, token) = (outer.path().canonicalize().unwrap(), outer.path().join("token"));
    fs::write(&token, "0123456789abcdef").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = window_on(&folder);
    command.arg("--write-root").arg(&top);
    let mut first = Window::of(command, "first");
    let socket = format!("unix:{}", top.join("socket").display());
    let mut command = asking(
        &folder,
        &["--listen", &socket, "--listen", ANY_PORT, "--token-file", token.to_str().unwrap()],
    );
    command.arg("--write-root").arg(&top);
    let asks = ListeningWindow::of(command, "asks", 2);
    assert!(!asks.urls[1].contains("tkn"), "a token that is known is not printed");
    for (name, is_own) in [("socket", true), ("token", true), ("file", false)] {
        let uri = format!("file://{}", top.join(name).display());
        let answer = first.ask(
            "resourceWrite",
            json!({ "channel": "ahp-root://", "uri": uri, "data": "x", "encoding": "utf-8" }),
        );
        assert_eq!(answer["error"].is_object(), is_own, "{name}: {answer}");
    }
    asks.end();
    assert_eq!(first.end(), Some(0));
}

#[test]
fn removed_listener_socket_is_bound_again() {
    let (outer, folder) = state();
    let path = outer.path().join("socket");
    let asks = ListeningWindow::open(&folder, "asks", &[&format!("unix:{}", path.display())]);
    fs::remove_file(&path).unwrap();
    wait_until("another socket", || UnixStream::connect(&path).is_ok());
    // Somebody else's is left alone.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    asks.end();
    check_no_leftovers(&folder);
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
}

#[test]
fn windows_started_at_once_are_all_served_whichever_of_them_listens() {
    for round in 0..4 {
        let (outer, folder) = state();
        let socket = format!("unix:{}", outer.path().join("socket").display());
        let starting: Vec<_> = (0..9)
            .map(|number| {
                let (folder, socket) = (folder.clone(), socket.clone());
                thread::spawn(move || match (number + round) % 3 {
                    0 => Err(Window::open(&folder, &format!("{number}"))),
                    1 => Ok(ListeningWindow::open(&folder, &format!("{number}"), &[ANY_PORT])),
                    _ => Ok(ListeningWindow::open(&folder, &format!("{number}"), &[&socket])),
                })
            })
            .collect();
        let opened: Vec<_> = starting.into_iter().map(|window| window.join().unwrap()).collect();
        assert_eq!(status(&folder)["listening"].as_array().unwrap().len(), 2);
        for window in opened {
            match window {
                Ok(listening) => drop(listening.end()),
                Err(window) => assert_eq!(window.end(), Some(0)),
            }
        }
        check_no_leftovers(&folder);
    }
}

#[test]
fn port_of_a_window_listener_is_free_after_its_host_has_exited() {
    let (_outer, folder) = state();
    let mut port = String::from(ANY_PORT);
    for round in 0..5 {
        let asks = ListeningWindow::open(&folder, &format!("{round}"), &[&port]);
        port = asks.urls[0].split("/?").next().unwrap().to_owned();
        asks.connect("connected").is_served();
        asks.end();
        wait_until("the end of the host", || status(&folder)["running"] == false);
    }
    check_no_leftovers(&folder);
}
