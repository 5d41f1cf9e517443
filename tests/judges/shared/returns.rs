//! Clients that come back: to one process after another, with several things said at once, and with
//! what a newer client has done in between.
//!
//! Owns: a state folder, the lives of the processes on it, one client of the judged version and one
//! of the newest, and a small oracle: for which model and agent the next message is, and what the
//! newer client was writing.
//! Never: lets anything depend on speed; what was said is waited for.
//!
//! `JUDGE_SEED` begins elsewhere, `JUDGE_RETURNS` tries more.

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::dialect::{Dialect, V0_1_0, V0_5_0};
use super::dice::Dice;
use super::official::Official;
use super::party::{Answer, Party};
use super::process::{Folder, Process};
use super::schedules::asked;

const SEED: u64 = 3;
const CASES: u64 = 4;
const LIVES: usize = 6;
const ROUNDS: usize = 4;

/// Number of the latest messages printed when a schedule fails.
const SHOWN: usize = 40;

const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L2tlcHQ";

/// Judges by clients that come back; shows the seed of the first schedule that fails, and what was
/// said in it.
pub fn run(official: &'static dyn Official) {
    let (seed, cases) = (asked("JUDGE_SEED", SEED), asked("JUDGE_RETURNS", CASES));
    for case in seed..seed + cases {
        let mut story = Story::new(official, case);
        if let Err(why) = story.tell(&mut Dice::new(case)) {
            let from = story.said.len().saturating_sub(SHOWN);
            let version = official.dialect().name();
            panic!(
                "{}\n\n{version}, JUDGE_SEED={case} JUDGE_RETURNS=1: {why:#}",
                story.said[from..].join("\n")
            );
        }
    }
}

/// For which model and agent the next message is.
#[derive(Debug, Clone, Default, PartialEq)]
struct Selected {
    model: Option<String>,
    agent: Option<String>,
}

impl Selected {
    /// Returns the answer of `/model`.
    fn spoken(&self) -> String {
        let model = self.model.clone().unwrap_or_else(|| "(the default)".to_owned());
        match &self.agent {
            Some(agent) => format!("{model}, {agent}"),
            None => model,
        }
    }
}

struct Story {
    folder: Folder,
    process: Option<Process>,
    party: Party,
    selected: Selected,
    /// Text of the draft of the newer client.
    writing: Option<String>,
    at: usize,
    said: Vec<String>,
}

impl Story {
    fn new(official: &'static dyn Official, case: u64) -> Self {
        let name = format!("{}-{case}", official.dialect().name());
        Self {
            folder: Folder::named(&name),
            process: None,
            party: Party::new(official, "judge"),
            selected: Selected::default(),
            writing: None,
            at: 0,
            said: Vec::new(),
        }
    }

    fn tell(&mut self, dice: &mut Dice) -> Result<()> {
        self.begin_life()?;
        self.first_life(dice).context("in the first life")?;
        for life in 0..LIVES {
            self.end_life(dice.percent(50))?;
            self.begin_life()?;
            if dice.percent(40) {
                self.newer_life(dice).with_context(|| format!("in the newer client's life {life}"))?;
                self.end_life(dice.percent(50))?;
                self.begin_life()?;
            }
            if dice.percent(35) {
                self.speak_at_once(dice).with_context(|| format!("speaking at once in life {life}"))?;
            } else {
                self.reconnect_and_compare().with_context(|| format!("coming back to life {life}"))?;
            }
            for _ in 0..ROUNDS {
                self.round(dice).with_context(|| format!("in life {life}"))?;
            }
        }
        self.end_life(false)
    }

    // Lives.

    fn begin_life(&mut self) -> Result<()> {
        let folder = self.folder.0.to_string_lossy().into_owned();
        self.said.push("-- a process begins".to_owned());
        self.process = Some(Process::start_keeping(&folder)?);
        Ok(())
    }

    fn end_life(&mut self, is_killed: bool) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        if is_killed {
            // Its drop kills it.
            return Ok(());
        }
        process.end();
        while process.hear()?.is_some() {}
        process.wait()?;
        Ok(())
    }

    fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("no process runs")
    }

    // The judged client.

    fn dialect(&self) -> Dialect {
        self.party.dialect()
    }

    /// Says all of this in one write.
    fn say(&mut self, lines: &[String]) -> Result<()> {
        self.said.extend(lines.iter().map(|line| format!("> {line}")));
        let all = lines.join("\n");
        self.process()?.say(&all)
    }

    fn hear(&mut self) -> Result<Option<(u64, Answer)>> {
        let line = self.process()?.hear()?.context("the output has ended")?;
        self.said.push(format!("< {line}"));
        self.party.hear(&line)
    }

    fn answer_to(&mut self, id: u64) -> Result<Value> {
        loop {
            if let Some((answered, answer)) = self.hear()? {
                if answered == id {
                    return answer.map_err(|(code, why)| anyhow::anyhow!("refused: {code} {why}"));
                }
            }
        }
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        let (id, line) = self.party.request(method, params)?;
        self.say(&[line])?;
        self.answer_to(id)
    }

    fn first_life(&mut self, dice: &mut Dice) -> Result<()> {
        let dialect = self.dialect();
        let root = dialect.root().to_owned();
        let opened = self.ask("initialize", &dialect.initialize("judge", std::slice::from_ref(&root)))?;
        self.party.mirror.take(&opened["snapshots"][0])?;
        let session = dialect.session("kept");
        self.party.session.clone_from(&session);
        self.party.conversation = if dialect.has_chats() { CHAT.to_owned() } else { session.clone() };
        let mut more = json!({ "provider": "script" });
        if self.selects() && dice.percent(70) {
            more["model"] = json!({ "id": "m0" });
            self.selected.model = Some("m0".to_owned());
        }
        // All in one write: the first turn too.
        let (_, created) =
            self.party.request("createSession", &dialect.params("createSession", &session, more))?;
        let turn = self.turn("/model");
        let turn = self.party.dispatch(&self.party.conversation.clone(), &turn)?;
        self.party.unechoed.clear();
        self.say(&[created, turn])?;
        self.follow_all()?;
        self.until_idle()?;
        self.check_last(&self.spoken())
    }

    /// Tells whether selections apply to the session rather than to a message.
    fn selects(&self) -> bool {
        self.dialect() < V0_5_0
    }

    fn follow_all(&mut self) -> Result<()> {
        let mut channels = vec![self.party.session.clone(), self.party.conversation.clone()];
        channels.dedup();
        for channel in channels {
            let snapshot = self.snapshot(&channel)?;
            self.party.mirror.take(&snapshot)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, channel: &str) -> Result<Value> {
        let params = self.dialect().params("subscribe", channel, json!({}));
        let snapshot = self.ask("subscribe", &params)?["snapshot"].clone();
        ensure!(snapshot["resource"] == *channel, "asked for {channel}, got {}", snapshot["resource"]);
        Ok(snapshot)
    }

    fn reconnect_and_compare(&mut self) -> Result<()> {
        self.party.unechoed.clear();
        let params = self.party.reconnect()?;
        let result = self.ask("reconnect", &params)?;
        self.party.catch_up(&result)?;
        let held = self.party.mirror.channels();
        ensure!(held.contains(&self.party.session), "the session is gone: {held:?} after {result}");
        self.compare()
    }

    /// Shakes hands anew, and in the same write selects and begins a turn, before anything was
    /// answered.
    fn speak_at_once(&mut self, dice: &mut Dice) -> Result<()> {
        let dialect = self.dialect();
        let (_, hello) = self.party.request("initialize", &dialect.initialize("judge", &[]))?;
        let mut lines = vec![hello];
        let (changes, spoken) = self.changes(dice)?;
        lines.extend(changes);
        let turn = self.turn("/model");
        lines.push(self.party.dispatch(&self.party.conversation.clone(), &turn)?);
        self.party.unechoed.clear();
        self.party.mirror.cursor = 0;
        self.say(&lines)?;
        self.follow_all()?;
        let root = dialect.root().to_owned();
        let snapshot = self.snapshot(&root)?;
        self.party.mirror.take(&snapshot)?;
        self.until_idle()?;
        self.check_last(&spoken)
    }

    /// Some changes of what is selected, as lines; and what `/model` says after them.
    fn changes(&mut self, dice: &mut Dice) -> Result<(Vec<String>, String)> {
        let mut lines = Vec::new();
        let session = self.party.session.clone();
        for _ in 0..if self.selects() { dice.from(0..4) } else { 0 } {
            self.at += 1;
            let action = if self.dialect() > V0_1_0 && dice.percent(45) {
                let agent = dice.percent(60).then(|| format!("agent:/a{}", self.at));
                self.selected.agent.clone_from(&agent);
                let members = agent.map_or(json!({}), |uri| json!({ "agent": { "uri": uri } }));
                self.dialect().act_of("session", "agentChanged", members)
            } else {
                let id = format!("m{}", self.at);
                self.selected.model = Some(id.clone());
                self.dialect().act_of("session", "modelChanged", json!({ "model": { "id": id } }))
            };
            lines.push(self.party.dispatch(&session, &action)?);
        }
        Ok((lines, self.spoken()))
    }

    /// Returns the current answer of `/model`.
    fn spoken(&self) -> String {
        if self.selects() {
            self.selected.spoken()
        } else {
            Selected::default().spoken()
        }
    }

    fn turn(&mut self, text: &str) -> Value {
        self.at += 1;
        self.dialect().turn_started(&format!("turn-{}", self.at), text)
    }

    fn round(&mut self, dice: &mut Dice) -> Result<()> {
        let conversation = self.party.conversation.clone();
        if dice.percent(20) {
            let turns = self.party.view()?["turns"].as_array().cloned().unwrap_or_default();
            let members = match dice.one_of(&turns) {
                Some(turn) if dice.percent(60) => json!({ "turnId": turn["id"] }),
                _ => json!({}),
            };
            let cut = self.dialect().act("truncated", members);
            let cut = self.party.dispatch(&conversation, &cut)?;
            self.say(&[cut])?;
            self.until_idle()?;
            return self.compare();
        }
        let mut lines = Vec::new();
        let queues = dice.percent(40);
        if queues {
            let hanging = self.turn("/say hanging\n/hang");
            let id = hanging["turnId"].as_str().unwrap_or_default().to_owned();
            lines.push(self.party.dispatch(&conversation, &hanging)?);
            let message =
                self.dialect().pending_message_set("queued", &format!("queued-{}", self.at), "/model");
            lines.push(self.party.dispatch(&conversation, &message)?);
            lines.extend(self.changes(dice)?.0);
            let cancelled = self.dialect().turn_cancelled(&id);
            lines.push(self.party.dispatch(&conversation, &cancelled)?);
        } else {
            lines.extend(self.changes(dice)?.0);
            let turn = self.turn("/model");
            lines.push(self.party.dispatch(&conversation, &turn)?);
        }
        self.say(&lines)?;
        self.until_idle()?;
        self.check_last(&self.spoken())?;
        self.compare()
    }

    /// Listens until everything that was said has come back and nothing runs or waits.
    fn until_idle(&mut self) -> Result<()> {
        loop {
            let root = self.dialect().root().to_owned();
            let params = self.dialect().params("subscribe", &root, json!({}));
            self.ask("subscribe", &params)?;
            let view = self.party.view()?;
            let waits = view["queuedMessages"].as_array().is_some_and(|all| !all.is_empty());
            if view["activeTurn"].is_null() && !waits {
                return self.party.check_all_echoed();
            }
            if let Some((id, _)) = self.hear()? {
                anyhow::bail!("nobody asked {id}");
            }
        }
    }

    fn check_last(&self, spoken: &str) -> Result<()> {
        let view = self.party.view()?;
        let last = view["turns"].as_array().and_then(|turns| turns.last()).context("no turn is over")?;
        let text = last.to_string();
        ensure!(text.contains(&format!("\"content\":\"{spoken}\"")), "not for {spoken}: {text}");
        Ok(())
    }

    /// Checks that all mirrors equal the host's snapshots and contain the selections.
    fn compare(&mut self) -> Result<()> {
        for channel in self.party.mirror.channels() {
            let snapshot = self.snapshot(&channel)?;
            self.party.mirror.compare(&snapshot)?;
        }
        if self.selects() {
            let session = self.party.mirror.view(&self.party.session)?;
            let shown = Selected {
                model: session["summary"]["model"]["id"].as_str().map(str::to_owned),
                agent: session["summary"]["agent"]["uri"].as_str().map(str::to_owned),
            };
            ensure!(shown == self.selected, "shown is {shown:?}, selected {:?}", self.selected);
        }
        Ok(())
    }

    // The newer client, which needs no crate: what it holds is judged elsewhere.

    fn newer_ask(&mut self, id: u64, method: &str, params: &Value) -> Result<Value> {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        self.say(&[line])?;
        loop {
            let line = self.process()?.hear()?.context("the output has ended")?;
            self.said.push(format!("< {line}"));
            let heard: Value = serde_json::from_str(&line)?;
            if heard["id"] == id {
                return Ok(heard["result"].clone());
            }
        }
    }

    fn newer_life(&mut self, dice: &mut Dice) -> Result<()> {
        let hello = json!({ "channel": "ahp-root://", "clientId": "newer", "protocolVersions": ["1.0.0"] });
        self.newer_ask(1, "initialize", &hello)?;
        let shown = self.newer_ask(2, "subscribe", &json!({ "channel": CHAT }))?;
        let state = &shown["snapshot"]["state"];
        if let Some(text) = &self.writing {
            ensure!(state["draft"]["text"] == **text, "it was writing {text}, now {}", state["draft"]);
        }
        self.at += 1;
        let mut actions = Vec::new();
        let turn = format!("newer-{}", self.at);
        if dice.percent(50) {
            // What the user was writing is sent, for a model that it names.
            let model = format!("n{}", self.at);
            let message = json!({
                "text": "/model", "origin": { "kind": "user" }, "model": { "id": model },
            });
            actions.push(json!({ "type": "chat/draftChanged" }));
            actions.push(json!({
                "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z", "message": message,
            }));
            self.writing = None;
            self.selected = Selected { model: Some(model), agent: None };
        } else {
            let text = format!("a long text {}", self.at);
            let mut draft = json!({ "text": text, "origin": { "kind": "user" } });
            if let Some(model) = &self.selected.model {
                draft["model"] = json!({ "id": model });
            }
            if let Some(agent) = &self.selected.agent {
                draft["agent"] = json!({ "uri": agent });
            }
            actions.push(json!({ "type": "chat/draftChanged", "draft": draft }));
            self.writing = Some(text);
        }
        let mut lines = Vec::new();
        for (seq, action) in actions.iter().enumerate() {
            let params = json!({ "channel": CHAT, "clientSeq": self.at * 10 + seq, "action": action });
            lines.push(json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }).to_string());
        }
        self.say(&lines)?;
        for id in 3.. {
            let shown = self.newer_ask(id, "subscribe", &json!({ "channel": CHAT }))?;
            if shown["snapshot"]["state"]["activeTurn"].is_null() {
                break;
            }
        }
        Ok(())
    }
}
