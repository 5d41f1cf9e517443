//! Bench of one check: a host, its clients, and the steps that many checks begin with.
//!
//! Owns: the time limit of a check, its chance, the recordings of its clients, and how a session
//! and a turn come about with a host that is not known.
//! Never: decides whether a law holds that one check alone is about.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ahp_types::errors::ahp_error_codes::AUTH_REQUIRED;
use anyhow::Context;
use serde_json::{json, Value};
use uuid::Uuid;

use super::client::{is_action, quoted, JudgeClient, SharedRecorder, ROOT};
use super::dice::Dice;
use super::host::{HostPlan, JudgedHost};
use super::stop::{broken, must, not_offered, CheckStop, Judged};
use crate::files::uris::uri_of;
use crate::transcripts::form::TranscriptLine;
use crate::transcripts::recorder::Recorder;
use crate::transcripts::HostFailure;

/// Actions that end a turn.
pub const ENDINGS: [&str; 3] = ["chat/turnComplete", "chat/turnCancelled", "chat/error"];

/// Conditions that all checks share.
#[derive(Debug, Clone)]
pub struct BenchSettings {
    /// Way in which hosts are started.
    pub plan: HostPlan,
    /// Time limit of a check.
    pub limit: Duration,
    /// Versions that clients offer.
    pub versions: Vec<String>,
    /// Agent of sessions; `None` for the first one.
    pub agent: Option<String>,
    /// Message that begins a turn.
    pub prompt: String,
    /// Seed of the chance.
    pub seed: u64,
    /// Number of random plays.
    pub rounds: usize,
    /// Reason why no session can be had, once a check has found it: the others need not wait.
    pub no_session: Rc<RefCell<Option<String>>>,
}

/// Session on the bench.
#[derive(Debug, Clone)]
pub struct BenchSession {
    /// URI of the session.
    pub uri: String,
    /// URI of its first chat.
    pub chat: String,
}

/// Bench of one check.
#[derive(Debug)]
pub struct Bench {
    /// Conditions that all checks share.
    pub settings: BenchSettings,
    /// End of the time for this check.
    pub deadline: Instant,
    /// Chance, as the seed has it.
    pub dice: Dice,
    host: JudgedHost,
    recordings: Vec<SharedRecorder>,
    /// Number of clients, sessions and turns that were named.
    named: usize,
}

impl Bench {
    /// Creates a bench whose host has several clients, or exactly one, which can be killed with it.
    pub fn new(settings: &BenchSettings, alone: bool) -> anyhow::Result<Self> {
        Ok(Self {
            deadline: Instant::now() + settings.limit,
            dice: Dice::new(settings.seed),
            host: JudgedHost::new(&settings.plan, alone)?,
            recordings: Vec::new(),
            named: 0,
            settings: settings.clone(),
        })
    }

    /// Returns a name that the bench has not had.
    pub fn name(&mut self, kind: &str) -> String {
        self.named += 1;
        format!("{kind}-{}", self.named)
    }

    /// Returns the folder in which sessions work.
    pub fn work(&self) -> PathBuf {
        self.host.work()
    }

    /// Connects a client that says nothing yet.
    pub fn client(&mut self) -> Judged<JudgeClient> {
        let host = self.host.connect(self.deadline)?;
        let id = self.name("client");
        let recorder = self.record()?;
        Ok(JudgeClient::new(host, id, recorder, self.deadline))
    }

    fn record(&mut self) -> Judged<SharedRecorder> {
        let recorder = Recorder::transcript(Vec::new()).context("a recording cannot begin")?;
        let recorder = Rc::new(RefCell::new(recorder));
        self.recordings.push(Rc::clone(&recorder));
        Ok(recorder)
    }

    /// Connects a client that has shaken hands, and follows these channels.
    pub fn ready(&mut self, channels: &[&str]) -> Judged<JudgeClient> {
        let mut client = self.client()?;
        client.initialize(&self.settings.versions, channels)?;
        Ok(client)
    }

    /// Connects one more client, which follows this channel; `None` if the host has one only.
    pub fn other(&mut self, channel: &str) -> Judged<Option<JudgeClient>> {
        if !self.settings.plan.has_several_clients() {
            return Ok(None);
        }
        let mut other = self.ready(&[])?;
        other.must_subscribe(channel)?;
        Ok(Some(other))
    }

    /// Ends the connection of a client.
    pub fn leave(&mut self, mut client: JudgeClient) -> Judged<()> {
        client.close()?;
        self.host.disconnected();
        Ok(())
    }

    /// Connects a client again that has lost its connection; it says nothing yet.
    pub fn return_client(&mut self, client: &mut JudgeClient) -> Judged<()> {
        self.host.disconnected();
        let host = self.host.connect(self.deadline)?;
        let recorder = self.record()?;
        client.resume_on(host, recorder);
        Ok(())
    }

    /// Kills the host of a client, and starts it again with what it has kept; the client is
    /// connected, and says nothing yet.
    pub fn kill_and_return(&mut self, client: &mut JudgeClient) -> Judged<()> {
        if !self.settings.plan.keeps_state() {
            return not_offered("nothing says that the host keeps its sessions: name `{state}` in its command, or say `--keeps-state`");
        }
        self.host.kill();
        client.kill();
        client.note(&TranscriptLine::Start);
        self.host.disconnected();
        let host = match self.host.connect(self.deadline) {
            Err(CheckStop::Failed(error)) if error.is::<HostFailure>() => {
                return broken(format!("the host does not start again: {error:#}"));
            }
            connected => connected?,
        };
        client.resume_on(host, client.recorder());
        Ok(())
    }

    /// Returns the transcripts of the clients, as far as they have said something.
    pub fn transcripts(&self) -> Vec<String> {
        let texts = self.recordings.iter().map(|recorder| recorder.borrow().text());
        texts.filter(|text| text.contains("\n> ") || text.contains("\n@ say")).collect()
    }

    /// Returns the description of the agent of sessions.
    pub fn agent(&self, client: &mut JudgeClient) -> Judged<Value> {
        if !client.channels.mirrors.contains_key(ROOT) {
            client.must_subscribe(ROOT)?;
        }
        let root = client.state_of(ROOT);
        let agents = root["agents"].as_array().cloned().unwrap_or_default();
        let wanted = self.settings.agent.as_ref();
        let found = agents.iter().find(|agent| wanted.is_none_or(|name| agent["provider"] == *name));
        match (found, wanted) {
            (Some(agent), _) => Ok(agent.clone()),
            (None, Some(name)) => not_offered(format!("there is no agent `{name}`")),
            (None, None) => not_offered("the host has no agent"),
        }
    }

    /// Creates a session of the agent, and subscribes to it and to its first chat. The session may
    /// still be creating: some hosts open it with its first turn.
    pub fn session(&mut self, client: &mut JudgeClient) -> Judged<BenchSession> {
        if let Some(why) = self.settings.no_session.borrow().clone() {
            return not_offered(why);
        }
        let made = self.make_session(client);
        if let Err(CheckStop::Broken(why)) = &made {
            let later = format!("no session can be had: {why}");
            self.settings.no_session.replace(Some(later));
        }
        made
    }

    fn make_session(&mut self, client: &mut JudgeClient) -> Judged<BenchSession> {
        let agent = self.agent(client)?;
        let uri = self.create_session(client, &agent)?;
        client.must_subscribe(&uri)?;
        let mut state = client.state_of(&uri);
        while state["lifecycle"] != "failed" && state["chats"].as_array().is_none_or(Vec::is_empty) {
            client
                .wait_for("the first chat of the session", |message| message["params"]["channel"] == uri)?;
            state = client.state_of(&uri);
        }
        if state["lifecycle"] == "failed" {
            return not_offered(format!("the agent opens no session: {}", quoted(&state["creationError"])));
        }
        let first = state["chats"][0]["resource"].clone();
        let chat = state["defaultChat"].as_str().or(first.as_str()).unwrap_or_default().to_owned();
        client.must_subscribe(&chat)?;
        Ok(BenchSession { uri, chat })
    }

    /// Creates a session, and returns its URI.
    pub fn create_session(&mut self, client: &mut JudgeClient, agent: &Value) -> Judged<String> {
        // A host that keeps its sessions may have those of a run before.
        let uri = format!("ahp-session:/conform-{}", Uuid::new_v4().simple());
        let folder = uri_of(&self.work());
        let params = json!({
            "channel": uri, "provider": agent["provider"], "workingDirectories": [folder],
        });
        match client.try_ask("createSession", params)? {
            Ok(_) => Ok(uri),
            Err(error) if error.code == i64::from(AUTH_REQUIRED) => {
                not_offered("the agent needs a token: name another one by `--agent`")
            }
            Err(error) => broken(format!("a session cannot be created: {}", quoted(&error.error))),
        }
    }

    /// Returns the action that begins a turn.
    pub fn turn(&mut self, agent: &Value) -> Value {
        let mut message = json!({ "text": self.settings.prompt, "origin": { "kind": "user" } });
        if let Some(model) = agent["models"][0]["id"].as_str() {
            message["model"] = json!({ "id": model });
        }
        let started = format!("{:.3}", jiff::Timestamp::now());
        json!({ "type": "chat/turnStarted", "turnId": self.name("turn"), "startedAt": started, "message": message })
    }

    /// Runs a turn to its end, declining what the agent asks for; returns its id.
    pub fn run_turn(&mut self, client: &mut JudgeClient, session: &BenchSession) -> Judged<String> {
        let agent = self.agent(client)?;
        let action = self.turn(&agent);
        let turn = action["turnId"].as_str().unwrap_or_default().to_owned();
        let echo = client.dispatch_and_wait(&session.chat, action)?;
        if let Some(reason) = echo["params"]["rejectionReason"].as_str() {
            return not_offered(format!("the agent takes no turn: {reason}"));
        }
        self.finish_turn(client, &session.chat, &turn)?;
        Ok(turn)
    }

    /// Waits for the end of a turn, declining what the agent asks for.
    pub fn finish_turn(&mut self, client: &mut JudgeClient, chat: &str, turn: &str) -> Judged<Value> {
        loop {
            let message = client.next("the end of the turn")?;
            must!(Instant::now() < self.deadline, "the turn `{turn}` has not ended in time");
            let action = &message["params"]["action"];
            let is_of_turn = action["turnId"] == *turn;
            if is_of_turn && ENDINGS.iter().any(|kind| is_action(&message, chat, kind)) {
                return Ok(action.clone());
            }
            decline(client, chat, &message)?;
        }
    }

    /// Writes a file into the working directory.
    pub fn write(&self, name: &str, text: &str) -> Judged<PathBuf> {
        let path = self.work().join(name);
        fs::write(&path, text).with_context(|| format!("`{}` cannot be written", path.display()))?;
        Ok(path)
    }
}

/// Declines a permission or question that a message asks for.
pub fn decline(client: &mut JudgeClient, chat: &str, message: &Value) -> Judged<()> {
    let action = &message["params"]["action"];
    if is_action(message, chat, "chat/toolCallReady") && action.get("confirmed").is_none() {
        let denied = json!({
            "type": "chat/toolCallConfirmed", "turnId": action["turnId"], "toolCallId": action["toolCallId"],
            "approved": false, "reason": "denied",
        });
        client.dispatch(chat, denied)?;
    }
    if is_action(message, chat, "chat/inputRequested") {
        let id = &action["request"]["id"];
        client.dispatch(
            chat,
            json!({ "type": "chat/inputCompleted", "requestId": id, "response": "cancel" }),
        )?;
    }
    Ok(())
}
