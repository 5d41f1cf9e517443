//! A client that is never gentle: it asks for whatever it can, kills the host at any instant, comes
//! back with the cursor that it really had, and looks whether all is as it must be.
//!
//! Owns: the schedule, the conversation with one process after the other, and what the client was
//! promised.
//! Never: knows how the host does it; it only counts on blocks of sequence numbers to tell lives
//! apart.

mod acting;
mod hearing;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;

use ahp_sidecar::wire::annotations::annotations_uri;
use ahp_types::actions::ActionEnvelope;
use ahp_types::commands::{InitializeResult, ListSessionsResult, ReconnectResult, SubscribeResult};
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{ChatInputRequest, ChatState, ResponsePart, SnapshotState, ToolCallState, TurnState};
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use serde_json::{json, Value};
use tempfile::TempDir;

use super::cast::{Cast, Cookie};
use super::dice::Dice;
use super::history::{loads, Counts, History, BLOCK};
use super::mirror::{check_chat, check_idle_chat, check_retained, masked, Mirrors};
use crate::support::{sidecar_on, Process};

const CLIENT: &str = "driver";

const SESSIONS_MAX: usize = 4;

/// A turn runs.
const TURN_IN_PROGRESS: i64 = -32004;

/// Maximum number of request rounds before a process is killed.
const ROUNDS_MAX: usize = 12;

/// The process was killed.
struct Dead;

type Alive<T = ()> = Result<T, Dead>;

/// When the process is killed.
#[derive(Debug)]
enum Trigger {
    /// After so many lines were heard.
    Heard(usize),
    /// After so many lines were said.
    Said(usize),
}

/// Pending request of the client.
#[derive(Debug)]
enum Request {
    Initialize,
    /// With this cursor made up, so that nothing can be replayed from it.
    Reconnect {
        lost: bool,
    },
    /// As a client that has been away for longer.
    Lagging,
    /// As a client that wants to be told nothing.
    Looker,
    Subscribe(String),
    List,
    Create(String),
    Dispose(String),
    /// A further chat, and its session.
    OpenChat(String, String),
    CloseChat(String),
    MoveChat(String, String),
    Ping,
}

pub struct Driver {
    dice: Dice,
    cast: Cast,
    folder: TempDir,
    process: Option<Process>,
    cookie: Cookie,
    trigger: Trigger,
    mirrors: Mirrors,
    /// Mirrors of a client that has been disconnected since.
    lagging: Option<Mirrors>,
    /// True once this process has sent the missed messages, to the client and to the lagging one.
    is_live: bool,
    lagging_is_live: bool,
    history: History,
    asked: HashMap<u64, Request>,
    /// Actions that were asked for and of which nothing was heard, by `clientSeq`.
    unanswered: BTreeMap<u64, String>,
    /// Sequence numbers of actions that must be refused.
    must_be_refused: HashSet<u64>,
    sessions: BTreeSet<String>,
    disposed: BTreeSet<String>,
    /// Sessions whose creation or disposal was asked for and not answered.
    unsure: BTreeSet<String>,
    /// The chats that sessions have besides their first ones, with their sessions.
    chats: BTreeMap<String, String>,
    /// Chats whose creation, disposal or move was requested and not answered; and disposed ones.
    unsure_chats: BTreeSet<String>,
    closed: BTreeSet<String>,
    listed: Vec<(String, u32)>,
    /// Number of this life of the host, once it is known.
    life: u64,
    last: u64,
}

fn chat_of(session: &str) -> String {
    format!("ahp-chat://default/{}", URL_SAFE_NO_PAD.encode(session))
}

impl Driver {
    pub fn new(seed: u64, cast: Cast) -> Self {
        Self {
            dice: Dice::new(seed),
            cast,
            folder: TempDir::new().unwrap(),
            process: None,
            cookie: Cookie::default(),
            trigger: Trigger::Heard(0),
            mirrors: Mirrors::default(),
            lagging: None,
            is_live: false,
            lagging_is_live: false,
            history: History::new(cast.always_resumes()),
            asked: HashMap::new(),
            unanswered: BTreeMap::new(),
            must_be_refused: HashSet::new(),
            sessions: BTreeSet::new(),
            disposed: BTreeSet::new(),
            unsure: BTreeSet::new(),
            chats: BTreeMap::new(),
            unsure_chats: BTreeSet::new(),
            closed: BTreeSet::new(),
            listed: Vec::new(),
            life: 0,
            last: 0,
        }
    }

    pub fn run(mut self, kills: usize) -> Counts {
        self.trigger = Trigger::Heard(self.dice.from(50..200));
        if self.first_life().is_ok() {
            self.die();
        }
        while self.history.counts.kills < kills {
            self.trigger = self.next_trigger();
            if self.life().is_ok() {
                self.die();
            }
        }
        // A last one in peace: everything that is still to be seen is looked at.
        self.trigger = Trigger::Said(usize::MAX);
        assert!(self.restart_and_reconnect().is_ok());
        self.process.as_mut().unwrap().end();
        let status = self.process.as_mut().unwrap().wait();
        assert!(status.success(), "{status:?}");
        let log = std::fs::read_to_string(self.log()).unwrap();
        assert!(log.is_empty(), "the host says on stderr:\n{log}");
        self.cast.check_no_process_is_left(&self.cookie);
        self.history.counts.prompts = self.cast.check_prompted_once(self.folder.path());
        self.history.counts.clone()
    }

    fn next_trigger(&mut self) -> Trigger {
        match self.dice.from(0..100) {
            // At once, and a few in a row: the recovery itself is interrupted.
            0..8 => Trigger::Said(0),
            8..20 => Trigger::Said(self.dice.from(1..4)),
            20..35 => Trigger::Heard(self.dice.from(0..20)),
            35..75 => Trigger::Heard(self.dice.from(20..300)),
            _ => Trigger::Said(self.dice.from(8..70)),
        }
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("stderr")
    }

    fn start(&mut self) -> Alive {
        let mut command = sidecar_on(&self.folder.path().join("state"));
        // That it was killed is no session's fault here.
        command.args(["--quarantine-after", "0"]);
        if self.dice.from(0..2) == 0 {
            // What nobody follows is read from the store again each time.
            command.args(["--memory-budget", "0"]);
        }
        command.env("RUST_LOG", "error");
        self.cookie = self.cast.configure(&mut command, self.folder.path());
        command.stderr(File::options().create(true).append(true).open(self.log()).unwrap());
        self.process = Some(Process::spawn(command));
        self.asked.clear();
        (self.is_live, self.lagging_is_live) = (false, false);
        self.die_if_due()
    }

    /// Kills the process, and takes in what it had told before.
    fn die(&mut self) {
        let process = self.process.as_mut().unwrap();
        if let Some(status) = process.child.try_wait().unwrap() {
            let log = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap();
            panic!("the host ended by itself: {status:?}\n{log}");
        }
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        self.history.counts.kills += 1;
        while let Some(line) = self.process.as_mut().unwrap().next_line() {
            if serde_json::from_str::<Value>(&line).is_err() {
                let rest = self.process.as_mut().unwrap().next_line();
                assert_eq!(rest, None, "only the last line can be torn: {line}");
                break;
            }
            self.hear(&line);
        }
        self.process = None;
        self.cast.check_no_process_is_left(&self.cookie);
    }

    fn die_if_due(&mut self) -> Alive {
        if matches!(self.trigger, Trigger::Heard(0) | Trigger::Said(0)) {
            self.die();
            return Err(Dead);
        }
        Ok(())
    }

    fn say(&mut self, mut message: Value) -> Alive {
        message["jsonrpc"] = "2.0".into();
        self.process.as_mut().unwrap().say(&message.to_string());
        if let Trigger::Said(left) = &mut self.trigger {
            *left -= 1;
        }
        self.die_if_due()
    }

    fn ask(&mut self, method: &str, params: Value, request: Request) -> Alive {
        self.last += 1;
        self.asked.insert(self.last, request);
        self.say(json!({ "id": self.last, "method": method, "params": params }))
    }

    fn act(&mut self, channel: &str, action: Value) -> Alive {
        self.last += 1;
        self.unanswered.insert(self.last, channel.to_owned());
        self.history.asks(self.life, channel, &action);
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": channel, "clientSeq": self.last, "action": action } }))
    }

    fn subscribe(&mut self, uri: String) -> Alive {
        self.ask("subscribe", json!({ "channel": uri }), Request::Subscribe(uri.clone()))
    }

    fn create(&mut self) -> Alive {
        self.last += 1;
        let uri = format!("ahp-session:/{}", self.last);
        self.unsure.insert(uri.clone());
        let config = self.cast.config(&mut self.dice);
        let params = json!({ "channel": uri, "provider": self.cast.provider(), "config": config });
        self.ask("createSession", params, Request::Create(uri.clone()))?;
        self.subscribe(uri.clone())?;
        self.subscribe(annotations_uri(&uri))?;
        self.subscribe(chat_of(&uri))
    }

    fn first_life(&mut self) -> Alive {
        self.history.asks_in(0);
        self.start()?;
        let params = json!({ "channel": ROOT_RESOURCE_URI, "clientId": CLIENT,
            "protocolVersions": ["1.0.0"], "initialSubscriptions": [ROOT_RESOURCE_URI] });
        self.ask("initialize", params, Request::Initialize)?;
        self.create()?;
        self.create()?;
        self.listen()?;
        self.be_a_client()
    }

    fn life(&mut self) -> Alive {
        self.restart_and_reconnect()?;
        self.be_a_client()
    }

    /// Starts the host again, reconnects, and looks whether all is as it must be.
    fn restart_and_reconnect(&mut self) -> Alive {
        self.start()?;
        if self.dice.percent(30) {
            // Somebody who only looks at the list: nothing is read for it.
            let params = json!({ "channel": ROOT_RESOURCE_URI, "clientId": CLIENT,
                "lastSeenServerSeq": 0, "subscriptions": [] });
            self.ask("reconnect", params, Request::Looker)?;
            self.ask("listSessions", json!({ "channel": ROOT_RESOURCE_URI }), Request::List)?;
            self.listen()?;
            self.check_status();
        }
        if let Some(client) = &self.lagging {
            let params = json!({ "channel": ROOT_RESOURCE_URI, "clientId": CLIENT,
                "lastSeenServerSeq": client.cursor, "subscriptions": client.uris() });
            self.ask("reconnect", params, Request::Lagging)?;
            self.listen()?;
        }
        let lost = self.dice.percent(8);
        // The end of a life's block of numbers is never reached.
        let cursor = if lost { self.mirrors.cursor / BLOCK * BLOCK + BLOCK - 7 } else { self.mirrors.cursor };
        let params = json!({ "channel": ROOT_RESOURCE_URI, "clientId": CLIENT,
            "lastSeenServerSeq": cursor, "subscriptions": self.mirrors.uris() });
        self.ask("reconnect", params, Request::Reconnect { lost })?;
        self.ask("listSessions", json!({ "channel": ROOT_RESOURCE_URI }), Request::List)?;
        self.listen()?;
        self.check_list();
        let mut uris: BTreeSet<String> = self.mirrors.uris().into_iter().collect();
        uris.insert(ROOT_RESOURCE_URI.to_owned());
        uris.extend(self.sessions.iter().cloned().chain(self.sessions.iter().map(|uri| chat_of(uri))));
        uris.extend(self.sessions.iter().map(|uri| annotations_uri(uri)));
        for uri in uris {
            self.subscribe(uri)?;
        }
        self.listen()?;
        for chat in self.check_chats() {
            self.subscribe(chat)?;
        }
        self.ask("ping", json!({}), Request::Ping)?;
        self.listen()?;
        self.check_lagging();
        for (uri, chat) in self.mirrors.chats() {
            check_idle_chat(uri, chat);
        }
        for (uri, state) in &self.mirrors.states {
            if let SnapshotState::Session(session) = state {
                let there = self.mirrors.annotations(&annotations_uri(uri)).len();
                let counted = session.annotations.as_ref().map(|it| it.annotation_count);
                assert_eq!(counted, i64::try_from(there).ok(), "the annotations of {uri}");
                let needed = session.input_needed.as_deref().unwrap_or_default();
                assert!(needed.is_empty(), "{uri}: nobody waits for {needed:?}");
            }
        }
        // What was not answered was not heard, or only the answer was lost.
        self.unanswered.clear();
        self.must_be_refused.clear();
        self.life = History::life_of(self.mirrors.cursor);
        self.history.asks_in(self.life);
        Ok(())
    }

    /// Looks at the list of sessions of a host that has just begun.
    fn check_list(&mut self) {
        let listed: BTreeSet<String> = self.listed.iter().map(|(uri, _)| uri.clone()).collect();
        assert_eq!(listed.len(), self.listed.len(), "a session is listed twice: {listed:?}");
        for uri in std::mem::take(&mut self.unsure) {
            if listed.contains(&uri) {
                self.sessions.insert(uri);
            } else if self.sessions.contains(&uri) {
                self.is_gone(&uri);
            }
        }
        assert_eq!(listed, self.sessions, "listed, and acknowledged");
        self.check_status();
        if let Some(SnapshotState::Root(root)) = self.mirrors.states.get(ROOT_RESOURCE_URI) {
            assert_eq!(root.active_sessions, Some(i64::try_from(listed.len()).unwrap()));
        }
    }

    /// Looks at the chats of all sessions of a host that has just begun. Returns those that are not
    /// followed.
    fn check_chats(&mut self) -> Vec<String> {
        let mut listed = BTreeMap::new();
        for session in &self.sessions {
            let Some(SnapshotState::Session(state)) = self.mirrors.states.get(session) else {
                panic!("{session} is not followed")
            };
            assert_eq!(state.default_chat, Some(chat_of(session)), "the default chat of {session}");
            for row in state.chats.iter().filter(|row| row.resource != chat_of(session)) {
                let twice = listed.insert(row.resource.clone(), session.clone());
                assert_eq!(twice, None, "{} is in {session} too", row.resource);
            }
        }
        let unsure = std::mem::take(&mut self.unsure_chats);
        for (chat, session) in std::mem::take(&mut self.chats) {
            let there = listed.get(&chat);
            assert!(there == Some(&session) || unsure.contains(&chat), "{chat} of {session} is in {there:?}");
        }
        for chat in listed.keys() {
            assert!(!self.closed.contains(chat), "{chat} has come back");
        }
        self.closed.extend(unsure.into_iter().filter(|chat| !listed.contains_key(chat)));
        let unfollowed = listed.keys().filter(|chat| !self.mirrors.states.contains_key(*chat)).cloned();
        let unfollowed = unfollowed.collect();
        self.chats = listed;
        unfollowed
    }

    fn check_status(&self) {
        for (uri, status) in &self.listed {
            // In progress, which waiting for the user is too.
            assert_eq!(status & 8, 0, "{uri} is listed as in progress");
        }
    }

    fn check_lagging(&mut self) {
        self.lagging_is_live = false;
        let Some(client) = self.lagging.take() else { return };
        for (uri, state) in &client.states {
            if let Some(mine) = self.mirrors.states.get(uri) {
                let (theirs, mine) = (masked(state), masked(mine));
                assert!(theirs == mine, "{uri}: who was away holds\n{theirs}\nwho was not holds\n{mine}");
            }
        }
    }
}
