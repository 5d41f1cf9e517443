//! Clients of several versions in one session at once, each acting, and every mirror holds.
//!
//! Owns: a host in memory with the agents of the program, one connection behind the version edge
//! for each client, and random schedules of all of them. A process has one connection only, so this
//! one is driven in process.
//! Never: lets anything happen by itself: agents run when they are told to, for as long as they are
//! told to, and each client reads when it is told to. So clients are behind one another, and the
//! same seed gives the same.
//!
//! `JUDGE_SEED` begins elsewhere, `JUDGE_CASES` tries more.

use std::collections::{BTreeSet, VecDeque};

use ahp_sidecar::backend::{script::Script, AgentReceivers, Agents, Backend, Report};
use ahp_sidecar::host::effects::{ConnectionId, Frame, Ids, Input, Now, Output, Timer};
use ahp_sidecar::host::{listing, log::ReplayWindow, Config, Host, Start};
use ahp_sidecar::store::memory::Memory;
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::methods::Method;
use ahp_sidecar::wire::rpc::Incoming;
use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

use super::shared::dice::Dice;
use super::shared::moves::{self, Mood};
use super::shared::official::Official;
use super::shared::party::{Answer, Party};
use super::shared::schedules::asked;
use super::stage::{self, Stage as _};

/// Seed of the random choices, unless another one is requested, and the default number of
/// schedules.
const SEED: u64 = 11;
const CASES: u64 = 20;
const MOVES: usize = 80;

/// Minimum and maximum number of concurrent clients.
const SEATS: std::ops::Range<usize> = 4..7;

/// Number of the latest messages printed when a schedule fails.
const SHOWN: usize = 60;

/// Number of consecutive rounds without a message after which agents count as idle.
const QUIET_TURNS: usize = 6;

pub static OFFICIALS: [&dyn Official; 10] = [
    &super::v0_1_0::Crates,
    &super::v0_2_0::Crates,
    &super::v0_3_0::Crates,
    &super::v0_4_0::Crates,
    &super::v0_5_2::Crates,
    &super::v0_6_0::Crates,
    &super::v0_7_0::Crates,
    &super::v0_8_0::Crates,
    &super::v0_9_0::Crates,
    &super::v1_0_0::Crates,
];

#[test]
fn clients_of_several_versions_share_one_session() {
    let (seed, cases) = (asked("JUDGE_SEED", SEED), asked("JUDGE_CASES", CASES));
    let mut heard = BTreeSet::new();
    for case in seed..seed + cases {
        let mut dice = Dice::new(case);
        let mut stage = Stage::new().unwrap();
        let outcome =
            stage.begin(&mut dice).and_then(|()| stage.play(&mut dice)).and_then(|()| stage.finish());
        if let Err(why) = outcome {
            let from = stage.said.len().saturating_sub(SHOWN);
            panic!("{}\n\nJUDGE_SEED={case} JUDGE_CASES=1: {why:#}", stage.said[from..].join("\n"));
        }
        for seat in &stage.seats {
            let version = seat.party.dialect().name();
            heard.extend(seat.party.heard.iter().map(|name| format!("{version} {name}")));
        }
    }
    if cases >= CASES {
        for needed in ["1.0.0 chat/turnResume", "0.9.0 chat/turnResume", "0.8.0 chat/truncated"] {
            assert!(heard.contains(needed), "never heard: {needed}");
        }
    }
}

/// A client, its connection if it has one, and what it has not read.
struct Seat {
    party: Party,
    connection: Option<ConnectionId>,
    unread: VecDeque<String>,
}

/// The host with everything around it.
struct Stage {
    host: Host,
    edges: Edges,
    agents: Agents,
    reports: Receiver<Report>,
    runtime: Runtime,
    kept: Memory,
    ids: CountedIds,
    unix_ms: i64,
    outputs: Vec<Output>,
    timers: Vec<Timer>,
    seats: Vec<Seat>,
    last_connection: u32,
    at: usize,
    /// Messages of all sides, each with its version.
    said: Vec<String>,
}

struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("fresh-{}", self.0)
    }
}

impl Stage {
    fn new() -> Result<Self> {
        let (agents, AgentReceivers { reports, .. }) = Agents::new(vec![Box::new(Script) as Box<dyn Backend>]);
        let config = Config {
            server_info: serde_json::from_value(json!({ "name": "host" }))?,
            agents: agents.describe(),
            automations: None,
            next: None,
            client_mcp: ahp_sidecar::host::effects::ClientMcp::None,
            root_schema: ahp_sidecar::host::nothing_to_configure(),
            replay_window: ReplayWindow::default(),
            start: Start::default(),
            memory_budget: usize::MAX,
            limits: Default::default(),
        };
        Ok(Self {
            host: Host::new(config),
            edges: Edges::new(vec!["script".to_owned()]),
            agents,
            reports,
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build()?,
            kept: Memory::default(),
            ids: CountedIds(0),
            unix_ms: 1_700_000_000_000,
            outputs: Vec::new(),
            timers: Vec::new(),
            seats: Vec::new(),
            last_connection: 0,
            at: 0,
            said: Vec::new(),
        })
    }

    /// Clients of different versions shake hands; one creates a session, all follow it.
    fn begin(&mut self, dice: &mut Dice) -> Result<()> {
        let mut left: Vec<&'static dyn Official> = OFFICIALS.to_vec();
        for number in 0..dice.from(SEATS) {
            let official = left.swap_remove(dice.from(0..left.len()));
            self.seats.push(Seat {
                party: Party::new(official, &format!("judge-{number}")),
                connection: None,
                unread: VecDeque::new(),
            });
        }
        for seat in 0..self.seats.len() {
            let opened = self.enter(seat)?;
            let answered = self.seats[seat].party.dialect().answered();
            ensure!(opened["protocolVersion"] == answered, "answered {}", opened["protocolVersion"]);
        }
        self.share_a_session(dice.from(0..self.seats.len()))
    }

    fn play(&mut self, dice: &mut Dice) -> Result<()> {
        for _ in 0..MOVES {
            self.at += 1;
            self.unix_ms += dice.from(0..40) as i64;
            let seat = dice.from(0..self.seats.len());
            let chosen = moves::choose(dice, &self.seats[seat].party, true, self.at)?;
            let name = self.seats[seat].party.dialect().name();
            self.step(seat, &chosen).with_context(|| format!("at move {}, {chosen:?} by {name}", self.at))?;
            match dice.from(0..10) {
                0..4 => self.run_agents(1 + dice.from(0..3))?,
                4..7 => self.quiet()?,
                _ => {}
            }
            for seat in 0..self.seats.len() {
                let lines = if dice.percent(70) { usize::MAX } else { dice.from(0..6) };
                self.read(seat, lines)
                    .with_context(|| format!("after move {}, {chosen:?} by {name}", self.at))?;
            }
        }
        Ok(())
    }

    fn read_line(&mut self, seat: usize) -> Result<Option<(u64, Answer)>> {
        let Seat { party, unread, .. } = &mut self.seats[seat];
        let Some(line) = unread.pop_front() else { return Ok(None) };
        self.said.push(format!("{} < {line}", party.dialect().name()));
        party.hear(&line).with_context(|| party.dialect().name())
    }

    fn read(&mut self, seat: usize, lines: usize) -> Result<()> {
        for _ in 0..lines {
            if self.seats[seat].unread.is_empty() {
                break;
            }
            if let Some((id, _)) = self.read_line(seat)? {
                anyhow::bail!("nobody asked {id}");
            }
        }
        Ok(())
    }

    // What the host does.

    fn feed(&mut self, input: Input) {
        let now = Now { unix_ms: self.unix_ms, monotonic_ms: self.unix_ms as u64 };
        self.host.handle(now, &mut self.ids, input, &mut self.outputs);
    }

    /// Ends a step, as the loop of the program does.
    fn end_step(&mut self) -> Result<()> {
        loop {
            while let Some((connection, message)) = self.edges.take_later() {
                self.feed(Input::received(connection, message));
            }
            self.feed(Input::Save);
            let outputs = std::mem::take(&mut self.outputs);
            if outputs.is_empty() {
                return Ok(());
            }
            // What is to be kept is kept before anything goes out.
            for output in &outputs {
                if let Output::Record(record) = output {
                    self.kept.keep(record.clone());
                }
            }
            for output in outputs {
                self.carry_out(output);
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Frame(connection, frame) => self.tell(connection, &frame),
            Output::Record(_) | Output::ExportLogs { .. } | Output::EndLogs(..) => {}
            Output::States(connection, id, state) => self.tell(connection, &state.answer(id)),
            Output::List(connection, id, page) => {
                let listed = self.kept.list(&page);
                let result = listing(&listed);
                self.tell(connection, &Frame::result(id, Method::ListSessions, result));
            }
            Output::Agent(chat, command) => {
                let _inside = self.runtime.enter();
                self.agents.carry_out(chat, *command);
            }
            Output::Timer(timer, _) => self.timers.push(timer),
            Output::Closed(connection) => self.edges.close(connection),
            other => unreachable!("nobody asks for {other:?}"),
        }
    }

    fn tell(&mut self, connection: ConnectionId, frame: &Frame) {
        let mut told = Vec::new();
        self.edges.down(connection, frame, &mut told);
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.connection == Some(connection)) {
            let lines = told.iter().map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
            seat.unread.extend(lines);
        }
    }

    /// Gives agents some turns; returns whether they said anything.
    fn run_agents(&mut self, turns: usize) -> Result<()> {
        for _ in 0..turns {
            self.turn_of_agents()?;
        }
        Ok(())
    }

    fn turn_of_agents(&mut self) -> Result<bool> {
        self.runtime.block_on(tokio::task::yield_now());
        let mut said = false;
        while let Ok(report) = self.reports.try_recv() {
            said = true;
            if let Some((chat, event)) = self.agents.accept(report) {
                self.feed(Input::Agent(chat, event));
            }
        }
        self.end_step()?;
        Ok(said)
    }

    /// Lets agents run until they wait for a client, and tells what was held back.
    fn quiet(&mut self) -> Result<()> {
        let mut quiet = 0;
        while quiet < QUIET_TURNS {
            quiet = if self.turn_of_agents()? { 0 } else { quiet + 1 };
        }
        self.feed(Input::BatchEnded);
        for timer in std::mem::take(&mut self.timers) {
            self.feed(Input::Timer(timer));
        }
        self.end_step()
    }

    /// Everybody is back, nothing runs, and everybody sees the same.
    fn finish(&mut self) -> Result<()> {
        self.gather()?;
        loop {
            self.quiet()?;
            self.read(0, usize::MAX)?;
            let party = &self.seats[0].party;
            let (dialect, conversation, view) = (party.dialect(), party.conversation.clone(), party.view()?);
            match moves::mood(dialect, &view) {
                Mood::Working => anyhow::bail!("a turn runs, and nobody does anything: {view}"),
                Mood::Waiting => {
                    self.act(0, &conversation, &dialect.turn_cancelled(&moves::turn(&view)))?;
                }
                Mood::Idle => {
                    let Some(id) = moves::queued(&view).first().cloned() else { break };
                    let removed = dialect.act("pendingMessageRemoved", json!({ "kind": "queued", "id": id }));
                    self.act(0, &conversation, &removed)?;
                }
            }
        }
        let mut seen: Option<(String, Vec<Value>)> = None;
        for seat in 0..self.seats.len() {
            let name = self.seats[seat].party.dialect().name();
            self.read(seat, usize::MAX)?;
            self.compare(seat).with_context(|| format!("at the end, {name}"))?;
            self.seats[seat].party.check_all_answered()?;
            let turns = turns(&self.seats[seat].party.view()?);
            if let Some((other, others)) = &seen {
                ensure!(*others == turns, "{other} sees the turns {others:?}, {name} {turns:?}");
            }
            seen = Some((name, turns));
        }
        Ok(())
    }
}

impl stage::Stage for Stage {
    fn count(&self) -> usize {
        self.seats.len()
    }

    fn party(&mut self, seat: usize) -> &mut Party {
        &mut self.seats[seat].party
    }

    fn is_connected(&self, seat: usize) -> bool {
        self.seats[seat].connection.is_some()
    }

    fn open(&mut self, seat: usize) -> Result<()> {
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.seats[seat].connection = Some(connection);
        self.feed(Input::Opened { connection, default_directory: None });
        self.end_step()
    }

    fn lose(&mut self, seat: usize) -> Result<()> {
        let Seat { connection, unread, .. } = &mut self.seats[seat];
        unread.clear();
        if let Some(connection) = connection.take() {
            self.edges.close(connection);
            self.feed(Input::Closed(connection));
        }
        self.end_step()
    }

    fn say(&mut self, seat: usize, line: String) -> Result<()> {
        let Some(connection) = self.seats[seat].connection else { return Ok(()) };
        let mut fed = Vec::new();
        self.said.push(format!("{} > {line}", self.seats[seat].party.dialect().name()));
        self.edges.up(connection, Incoming::parse(&line.into()), &mut fed);
        self.outputs.extend(self.edges.take_records().into_iter().map(Output::Record));
        for message in fed {
            self.feed(Input::received(connection, message));
        }
        self.end_step()
    }

    fn ask(&mut self, seat: usize, method: &str, params: &Value) -> Result<Value> {
        let (id, line) = self.seats[seat].party.request(method, params)?;
        self.say(seat, line)?;
        while !self.seats[seat].unread.is_empty() {
            if let Some((answered, answer)) = self.read_line(seat)? {
                ensure!(answered == id, "{answered} was answered instead of {id}");
                return answer.map_err(|(code, why)| anyhow::anyhow!("{method} is refused: {code} {why}"));
            }
        }
        anyhow::bail!("{method} was not answered")
    }

    fn hear_all(&mut self, seat: usize) -> Result<()> {
        self.read(seat, usize::MAX)
    }

    fn listen(&mut self, _: usize) -> Result<()> {
        self.quiet()
    }

    fn at(&self) -> usize {
        self.at
    }
}

/// Returns the fields of each finished turn that every version has.
fn turns(view: &Value) -> Vec<Value> {
    let turns = view["turns"].as_array().into_iter().flatten();
    turns.map(|turn| json!([turn["id"], turn["state"], turn["usage"]])).collect()
}
