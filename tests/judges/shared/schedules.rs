//! Random schedules on the real program's pipes: whatever a client does, its mirror holds.
//!
//! Owns: carrying a schedule out with one client, and the report of one that fails.
//! Never: lets chance in that its seed does not give. Half of the schedules run the host
//! `--deterministic`, so that they are the same every time and nothing may be refused; the other
//! half has races.
//!
//! `JUDGE_SEED` begins elsewhere, `JUDGE_CASES` tries more.

use std::collections::BTreeSet;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::dialect::{Dialect, V0_1_0, V0_5_0};
use super::dice::Dice;
use super::moves::{self, Mood, Move};
use super::official::Official;
use super::party::{Answer, Party};
use super::process::Process;

/// Seed of the random choices, unless another one is requested, and the default number of
/// schedules.
const SEED: u64 = 7;
const CASES: u64 = 20;
const MOVES: usize = 60;

/// Number of the latest messages printed when a schedule fails.
const SHOWN: usize = 60;

/// Actions and notifications that all schedules together must have received to be meaningful:
/// actions of the conversation, actions of the session, and notifications. The agent `script` never
/// sends `reasoning`: its thoughts arrive whole.
const CONVERSATION: [&str; 19] = [
    "turnStarted",
    "turnComplete",
    "turnCancelled",
    "error",
    "delta",
    "responsePart",
    "usage",
    "toolCallStart",
    "toolCallReady",
    "toolCallConfirmed",
    "toolCallComplete",
    "toolCallResultConfirmed",
    "inputRequested",
    "inputAnswerChanged",
    "inputCompleted",
    "pendingMessageSet",
    "pendingMessageRemoved",
    "queuedMessagesReordered",
    "truncated",
];
const SESSION: [&str; 4] = ["ready", "titleChanged", "isReadChanged", "isArchivedChanged"];
const NOTIFICATIONS: [&str; 3] = ["sessionAdded", "sessionRemoved", "sessionSummaryChanged"];

/// A number that the environment may give.
pub fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

/// Judges by random schedules; shows the seed of the first one that fails, and what was said in it.
pub fn run(official: &'static dyn Official) {
    let (seed, cases) = (asked("JUDGE_SEED", SEED), asked("JUDGE_CASES", CASES));
    let mut heard = BTreeSet::new();
    for case in seed..seed + cases {
        let calm = case % 2 == 0;
        let mut talk = match Talk::begin(official, calm) {
            Ok(talk) => talk,
            Err(why) => panic!("{}: {why:#}", official.dialect().name()),
        };
        let mut dice = Dice::new(case);
        let outcome = talk.play(&mut dice).and_then(|()| talk.finish());
        if let Err(why) = outcome {
            let from = talk.said.len().saturating_sub(SHOWN);
            let said = talk.said[from..].join("\n");
            let version = official.dialect().name();
            panic!("{said}\n\n{version}, JUDGE_SEED={case} JUDGE_CASES=1: {why:#}");
        }
        heard.append(&mut talk.party.heard);
    }
    if cases >= CASES {
        check_received(official.dialect(), &heard);
    }
}

fn check_received(dialect: Dialect, heard: &BTreeSet<String>) {
    let (conversation, notifications) = (
        if dialect.has_chats() { "chat" } else { "session" },
        if dialect == V0_1_0 { "notify" } else { "root" },
    );
    let joins = if dialect >= V0_5_0 { "activeClientSet" } else { "activeClientChanged" };
    for (family, names) in [
        (conversation, &CONVERSATION[..]),
        ("session", &SESSION),
        ("session", &[joins]),
        (notifications, &NOTIFICATIONS),
    ] {
        for name in names {
            let name = format!("{family}/{name}");
            assert!(heard.contains(&name), "{}: nothing was ever said by {name}", dialect.name());
        }
    }
}

/// One client and the program that it speaks to.
struct Talk {
    process: Process,
    party: Party,
    calm: bool,
    /// Number of moves so far, which makes ids unique.
    at: usize,
    /// Messages of both sides, in order.
    said: Vec<String>,
}

impl Talk {
    /// Shakes hands, creates a session and follows it.
    fn begin(official: &'static dyn Official, calm: bool) -> Result<Self> {
        let process = Process::start(if calm { &["--deterministic"] } else { &[] })?;
        let party = Party::new(official, "judge");
        let mut talk = Self { process, party, calm, at: 0, said: Vec::new() };
        let dialect = official.dialect();
        let root = dialect.root().to_owned();
        let opened = talk.ask("initialize", &dialect.initialize("judge", std::slice::from_ref(&root)))?;
        ensure!(opened["protocolVersion"] == dialect.answered(), "answered {}", opened["protocolVersion"]);
        let snapshots = opened["snapshots"].as_array().context("no snapshots")?;
        let [snapshot] = &snapshots[..] else { anyhow::bail!("not the root's snapshot: {snapshots:?}") };
        ensure!(snapshot["resource"] == *root, "the root is {}", snapshot["resource"]);
        talk.party.mirror.take(snapshot)?;
        talk.list()?;
        talk.party.session = dialect.session("judged");
        let session = talk.party.session.clone();
        // With races, it opens late enough to be followed before, most of the time.
        let config = if calm { json!({}) } else { json!({ "openMs": 20 }) };
        let params =
            dialect.params("createSession", &session, json!({ "provider": "script", "config": config }));
        talk.ask("createSession", &params)?;
        talk.follow(&session)?;
        talk.party.find_conversation()?;
        let conversation = talk.party.conversation.clone();
        if conversation != session {
            talk.follow(&conversation)?;
            talk.follow(&talk.party.annotations())?;
        }
        Ok(talk)
    }

    fn say(&mut self, line: String) -> Result<()> {
        self.process.say(&line)?;
        self.said.push(format!("> {line}"));
        Ok(())
    }

    /// Takes in one line.
    fn hear(&mut self) -> Result<Option<(u64, Answer)>> {
        let line = self.process.hear()?.context("the output has ended")?;
        self.said.push(format!("< {line}"));
        self.party.hear(&line)
    }

    /// Asks, and listens until the answer.
    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        let (id, line) = self.party.request(method, params)?;
        self.say(line)?;
        loop {
            if let Some((answered, answer)) = self.hear()? {
                ensure!(answered == id, "{answered} was answered instead of {id}");
                return answer.map_err(|(code, why)| anyhow::anyhow!("{method} is refused: {code} {why}"));
            }
        }
    }

    /// A channel's fresh snapshot.
    fn snapshot(&mut self, channel: &str) -> Result<Value> {
        self.snapshot_in(channel, json!({}))
    }

    fn snapshot_in(&mut self, channel: &str, members: Value) -> Result<Value> {
        let params = self.party.dialect().params("subscribe", channel, members);
        let snapshot = self.ask("subscribe", &params)?["snapshot"].clone();
        ensure!(snapshot["resource"] == *channel, "asked for {channel}, got {}", snapshot["resource"]);
        Ok(snapshot)
    }

    fn follow(&mut self, channel: &str) -> Result<()> {
        let snapshot = self.snapshot(channel)?;
        self.party.mirror.take(&snapshot)
    }

    fn list(&mut self) -> Result<()> {
        let dialect = self.party.dialect();
        let params = dialect.params("listSessions", dialect.root(), json!({}));
        let listed = self.ask("listSessions", &params)?;
        if self.party.mirror.away {
            return Ok(());
        }
        self.party.mirror.compare_list(&listed)
    }

    /// Compares everything that is held with what the host shows now.
    fn compare(&mut self) -> Result<()> {
        for channel in self.party.mirror.channels() {
            let snapshot = self.snapshot(&channel)?;
            if !self.party.mirror.away {
                self.party.mirror.compare(&snapshot)?;
            }
        }
        self.list()
    }

    /// Waits until the host has heard everything that was said; what has come back is checked.
    fn settle(&mut self) -> Result<()> {
        let root = self.party.dialect().root();
        let snapshot = self.snapshot(root)?;
        if !self.party.mirror.away {
            self.party.mirror.compare(&snapshot)?;
        }
        self.party.check_all_echoed()?;
        let refusals = self.party.refusals();
        let surprising = self.calm && !self.party.mirror.away && !refusals.is_empty();
        ensure!(!surprising, "refused although all was known: {refusals:?}");
        Ok(())
    }

    fn act(&mut self, channel: &str, action: &Value) -> Result<()> {
        let line = self.party.dispatch(channel, action)?;
        self.say(line)
    }

    fn play(&mut self, dice: &mut Dice) -> Result<()> {
        for _ in 0..MOVES {
            self.at += 1;
            let chosen = moves::choose(dice, &self.party, self.calm, self.at)?;
            self.step(&chosen).with_context(|| format!("at move {}, {chosen:?}", self.at))?;
            // With races, several things may be said at once.
            if self.calm || dice.percent(60) {
                self.settle().with_context(|| format!("after move {}, {chosen:?}", self.at))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, chosen: &Move) -> Result<()> {
        let (session, conversation) = (self.party.session.clone(), self.party.conversation.clone());
        match chosen {
            Move::OnSession(action) => self.act(&session, action),
            Move::OnConversation(action) => self.act(&conversation, action),
            Move::OnAnnotations(action) => self.act(&self.party.annotations(), action),
            Move::Listen => self.listen(),
            Move::Lose => {
                self.party.mirror.away = true;
                Ok(())
            }
            Move::Return => self.reconnect_and_compare(),
            Move::Resubscribe => {
                // Nothing that was said may still have to come back on this channel.
                self.settle()?;
                let params = self.party.dialect().params("unsubscribe", &conversation, json!({}));
                let line = self.party.notify("unsubscribe", &params)?;
                self.say(line)?;
                self.party.mirror.leave(&conversation);
                let window = self.party.dialect().window(self.at % 4);
                let snapshot = self.snapshot_in(&conversation, window)?;
                self.party.mirror.take(&snapshot)
            }
            Move::Compare => self.compare(),
            Move::Another { dispose } => {
                let other = self.party.dialect().session(&format!("other-{}", self.at));
                let dialect = self.party.dialect();
                self.ask("createSession", &dialect.params("createSession", &other, json!({})))?;
                if *dispose {
                    self.ask("disposeSession", &dialect.params("disposeSession", &other, json!({})))?;
                }
                Ok(())
            }
        }
    }

    /// Listens until nothing runs or a client is waited for.
    fn listen(&mut self) -> Result<()> {
        while moves::mood(self.party.dialect(), &self.party.view()?) == Mood::Working {
            if let Some((id, _)) = self.hear()? {
                anyhow::bail!("nobody asked {id}");
            }
        }
        Ok(())
    }

    fn reconnect_and_compare(&mut self) -> Result<()> {
        let params = self.party.reconnect()?;
        let result = self.ask("reconnect", &params)?;
        self.party.catch_up(&result)?;
        self.compare().context("after coming back")
    }

    /// Ends what runs, compares everything, and ends the program.
    fn finish(&mut self) -> Result<()> {
        if self.party.mirror.away {
            self.reconnect_and_compare()?;
        }
        let (dialect, conversation) = (self.party.dialect(), self.party.conversation.clone());
        loop {
            self.settle()?;
            self.listen()?;
            let view = self.party.view()?;
            if moves::mood(dialect, &view) == Mood::Waiting {
                self.act(&conversation, &dialect.turn_cancelled(&moves::turn(&view)))?;
            } else if let Some(id) = moves::queued(&view).first() {
                let removed = dialect.act("pendingMessageRemoved", json!({ "kind": "queued", "id": id }));
                self.act(&conversation, &removed)?;
            } else {
                break;
            }
            self.settle()?;
        }
        self.compare().context("at the end")?;
        let session = self.party.session.clone();
        self.ask("disposeSession", &dialect.params("disposeSession", &session, json!({})))?;
        self.list().context("without the session")?;
        self.process.end();
        while let Some(line) = self.process.hear()? {
            self.party.hear(&line)?;
        }
        self.party.check_all_answered()?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the program ended with {status}");
        Ok(())
    }
}
