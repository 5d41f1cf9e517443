//! A client that does not read.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};

use rustix::process::{kill_process, Pid, Signal};

use super::*;

/// Number of lines that the agent writes: more bytes than may be pending.
const LINES: usize = 2000;
const LINE_BYTES: usize = 50_000;

/// A number out of a file of `/proc`.
fn number(pid: &str, file: &str, name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// A host whose agent has stopped because nobody reads what the host writes, and its agents'
/// cookie.
fn stalled(folder: &Path) -> (Child, ChildStdin, String) {
    let mut setting = Setting::with(&[]);
    // However slow the machine is, and with a turn that may be as large as any.
    let most = (256 << 20).to_string();
    let flags = ["--ephemeral", "--drain-timeout", "1000", "--max-turn-bytes", &most];
    setting.flags = flags.map(str::to_owned).to_vec();
    let (mut host, cookie) = setting.command(folder);
    let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = host.stdin.take().unwrap();
    let turn = json!({ "type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": format!("stream {LINES} {LINE_BYTES}\nsay end"), "origin": { "kind": "user" } } });
    for message in [
        json!({ "id": 1, "method": "initialize", "params":
            { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } }),
        json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION, "provider": "a0" } }),
        json!({ "id": 3, "method": "subscribe", "params": { "channel": default_chat_of(SESSION) } }),
        json!({ "method": "dispatchAction", "params":
            { "channel": default_chat_of(SESSION), "clientSeq": 1, "action": turn } }),
    ] {
        let mut message = message;
        message["jsonrpc"] = "2.0".into();
        writeln!(stdin, "{message}").unwrap();
    }

    let agent = || {
        let agents = bearers(&cookie);
        let agent = agents.iter().find(|it| it.contains("agent.py") && !it.contains("guard-agent"));
        agent.map(|it| it.trim_start_matches("/proc/").split(':').next().unwrap().to_owned())
    };
    let (mut written, mut still) = (0, 0);
    let start = Instant::now();
    while still < 20 {
        assert!(start.elapsed() < HUNG, "the agent did not stop; it has written {written} bytes");
        thread::sleep(Duration::from_millis(100));
        let now = agent().map_or(0, |pid| number(&pid, "io", "wchar"));
        still = if now == written && now > 1 << 20 { still + 1 } else { 0 };
        written = now;
    }
    assert!(written < LINES * LINE_BYTES / 10 * 9, "the agent was read to {written} bytes");
    let resident = number(&host.id().to_string(), "status", "VmRSS") << 10;
    assert!(resident < 300 << 20, "{resident} bytes in memory");
    (host, stdin, cookie)
}

/// The agent waits while nobody reads what the host writes, and goes on when somebody does.
#[test]
fn agent_output_is_not_read_while_the_client_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (mut host, stdin, cookie) = stalled(folder.path());
    drop(stdin);
    let mut said = 0;
    let mut last = String::new();
    for line in BufReader::new(host.stdout.take().unwrap()).lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let action = &message["params"]["action"];
        let text = action["content"].as_str().or(action["part"]["content"].as_str()).unwrap_or_default();
        said += text.len();
        last = action["type"].as_str().unwrap_or(&last).to_owned();
    }
    assert_eq!((said, last.as_str()), (LINES * LINE_BYTES + 3, "chat/turnComplete"));
    assert_eq!(host.wait().unwrap().code(), Some(0));
    assert_eq!(bearers(&cookie), Vec::<String>::new());
}

/// Unread output of the agent does not keep the host from exiting.
#[test]
fn host_with_a_stalled_reader_exits_with_its_agents() {
    // Two seconds, on a machine that has nothing else to do.
    can_be_done_within(Duration::from_secs(10), || {
        let folder = tempfile::tempdir().unwrap();
        let (mut host, _stdin, cookie) = stalled(folder.path());
        let pid = Pid::from_raw(host.id().try_into().unwrap()).unwrap();
        let start = Instant::now();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(host.wait().unwrap().code(), Some(0));
        let took = start.elapsed();
        let start = Instant::now();
        while !bearers(&cookie).is_empty() {
            assert!(start.elapsed() < HUNG, "there are {:?}", bearers(&cookie));
            thread::sleep(Duration::from_millis(5));
        }
        took
    });
}
