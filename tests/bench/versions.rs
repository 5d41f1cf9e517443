//! Cost of clients of older versions: the core and the version edge in this process, since a
//! program has one connection, with one client of the newest version and one of an older version.
//!
//! Measures: the time from an agent's event to the last line that comes of it.
//! Never: writes the lines anywhere.

use std::time::{Duration, Instant};

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Ids, Input, Now, Output, RunId, TextKind, TurnEvent,
};
use ahp_sidecar::host::{log::ReplayWindow, Config, Host, Start};
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::rpc::Incoming;
use bytes::Bytes;

use super::{excerpt, Outcome, Table};

/// Number of events in a round, and number of rounds.
const EVENTS: u32 = 20_000;
const ROUNDS: usize = 9;

/// Versions, each with what its client follows.
const NEWEST: (&str, &str) = ("1.0.0", super::CHAT);
const OLDER: [(&str, &str); 3] =
    [("0.9.0", super::CHAT), ("0.5.1", super::CHAT), ("0.3.0", "ahp-session:/s")];

/// Adds the rows.
pub fn measure(table: &mut Table) -> Outcome<()> {
    for (kind, event) in [("a delta", delta as fn(u32) -> TurnEvent), ("an action with a state", activity)] {
        let mut alone = Stage::new(&[NEWEST])?;
        let mut shared = Vec::new();
        for older in OLDER {
            shared.push(Stage::new(&[NEWEST, older])?);
        }
        let mut times = vec![Vec::new(); 1 + OLDER.len()];
        // One after the other in each round, so that a busy machine is the same for all.
        for _ in 0..ROUNDS {
            times[0].push(alone.round(event)?);
            for (stage, times) in shared.iter_mut().zip(&mut times[1..]) {
                times.push(stage.round(event)?);
            }
        }
        let mut medians = times.into_iter().map(super::median);
        let row = |time: Option<Duration>| super::microseconds(time.unwrap_or_default());
        table.row(&format!("{kind}, to one client of 1.0.0"), row(medians.next()), "", "")?;
        for (version, _) in OLDER {
            table.row(&format!("  and to one of {version}"), row(medians.next()), "", "")?;
        }
    }
    Ok(())
}

fn delta(_: u32) -> TurnEvent {
    TurnEvent::Text(TextKind::Markdown, "twenty bytes of text".to_owned())
}

fn activity(number: u32) -> TurnEvent {
    TurnEvent::Activity(Some(format!("step {number}")))
}

struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("fresh-{}", self.0)
    }
}

/// A host with one turn that runs, and its clients.
struct Stage {
    host: Host,
    edges: Edges,
    ids: CountedIds,
    outputs: Vec<Output>,
    lines: Vec<Bytes>,
    running: (ChatKey, RunId),
    clients: usize,
    sent: u32,
}

impl Stage {
    fn new(clients: &[(&str, &str)]) -> Outcome<Self> {
        let agents = vec![Script.describe()];
        let providers = agents.iter().map(|agent| agent.info.provider.clone()).collect();
        let config = Config {
            client_mcp: ahp_sidecar::host::effects::ClientMcp::None,
            server_info: serde_json::from_str(r#"{"name":"bench"}"#)?,
            agents,
            automations: None,
            next: None,
            root_schema: ahp_sidecar::host::nothing_to_configure(),
            replay_window: ReplayWindow::default(),
            start: Start::default(),
            memory_budget: usize::MAX,
            limits: Default::default(),
        };
        let mut stage = Self {
            host: Host::new(config),
            edges: Edges::new(providers),
            ids: CountedIds(0),
            outputs: Vec::new(),
            lines: Vec::new(),
            running: (ChatKey(0), RunId(0)),
            clients: clients.len(),
            sent: 0,
        };
        for (number, (version, channel)) in (1..).zip(clients) {
            let connection = ConnectionId(number);
            stage.feed(Input::Opened { connection, default_directory: None });
            stage.say(connection, &format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"channel":"ahp-root://","clientId":"{number}","protocolVersions":["{version}"]}}}}"#
            ));
            if number == 1 {
                stage.say(connection, r#"{"jsonrpc":"2.0","id":2,"method":"createSession","params":{"channel":"ahp-session:/s"}}"#);
            }
            stage.say(
                connection,
                &format!(
                    r#"{{"jsonrpc":"2.0","id":3,"method":"subscribe","params":{{"channel":"{channel}"}}}}"#
                ),
            );
        }
        let opened = stage.command(|command| matches!(command, Command::Open(_)).then_some(RunId(0)))?;
        stage.feed(Input::Agent(opened.0, Event::Opened));
        stage.say(ConnectionId(1), &format!(
            r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"channel":"{}","clientSeq":1,"action":{{"type":"chat/turnStarted","turnId":"t","startedAt":"2026-01-01T00:00:00Z","message":{{"text":"x","origin":{{"kind":"user"}}}}}}}}}}"#,
            super::CHAT
        ));
        stage.running = stage.command(|command| match command {
            Command::StartTurn { run, .. } => Some(*run),
            _ => None,
        })?;
        stage.flush();
        Ok(stage)
    }

    /// Returns the wanted command to an agent since the last flush.
    fn command(&self, wanted: impl Fn(&Command) -> Option<RunId>) -> Outcome<(ChatKey, RunId)> {
        let found = self.outputs.iter().find_map(|output| match output {
            Output::Agent(chat, command) => wanted(command).map(|run| (*chat, run)),
            _ => None,
        });
        found.ok_or_else(|| "the agent was not told".into())
    }

    fn say(&mut self, connection: ConnectionId, line: &str) {
        let mut fed = Vec::new();
        self.edges.up(connection, Incoming::parse(&line.to_owned().into()), &mut fed);
        for message in fed {
            self.feed(Input::received(connection, message));
        }
    }

    fn feed(&mut self, input: Input) {
        let now = Now { unix_ms: 1_700_000_000_000, monotonic_ms: 0 };
        self.host.handle(now, &mut self.ids, input, &mut self.outputs);
    }

    /// Says what was put out to everybody.
    fn flush(&mut self) {
        for output in self.outputs.drain(..) {
            if let Output::Frame(connection, frame) = output {
                self.edges.down(connection, &frame, &mut self.lines);
            }
        }
    }

    /// The time that each of many events takes.
    fn round(&mut self, event: fn(u32) -> TurnEvent) -> Outcome<Duration> {
        let (chat, run) = self.running;
        let start = Instant::now();
        let mut told = 0;
        for _ in 0..EVENTS {
            self.sent += 1;
            self.lines.clear();
            self.feed(Input::Agent(chat, Event::Turn(run, event(self.sent))));
            self.flush();
            told += self.lines.len();
        }
        let time = start.elapsed() / EVENTS;
        if told < EVENTS as usize {
            let last = self.lines.last().map(|line| excerpt(line));
            return Err(format!("{} clients heard {told} lines, at last {last:?}", self.clients).into());
        }
        Ok(time)
    }
}
