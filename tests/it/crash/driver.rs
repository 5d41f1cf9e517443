//! A client that is never gentle: it asks for whatever it can, kills the host at any instant, comes back with
//! the cursor that it really had, and looks whether all is as it must be.
//!
//! Owns: the schedule, the conversation with one process after the other, and what the client was promised.
//! Never: knows how the host does it; it only counts on blocks of sequence numbers to tell lives apart.

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
use super::mirror::{check_chat, check_kept, check_quiet, masked, Mirrors};
use crate::support::{sidecar_on, Process};

const CLIENT: &str = "driver";

const SESSIONS_MAX: usize = 4;

/// A turn runs.
const TURN_IN_PROGRESS: i64 = -32004;

/// How often a process is asked for something before it is killed at the latest.
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

/// What was asked for.
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
    /// What a client held that has been away since.
    lagging: Option<Mirrors>,
    /// Whether this process has told us what we missed; and the one who was away.
    is_live: bool,
    lagging_is_live: bool,
    history: History,
    asked: HashMap<u64, Request>,
    /// Actions that were asked for and of which nothing was heard, by `clientSeq`.
    unanswered: BTreeMap<u64, String>,
    /// Those that must be refused.
    must_be_refused: HashSet<u64>,
    sessions: BTreeSet<String>,
    disposed: BTreeSet<String>,
    /// Sessions whose creation or disposal was asked for and not answered.
    unsure: BTreeSet<String>,
    /// The chats that sessions have besides their first ones, with their sessions.
    chats: BTreeMap<String, String>,
    /// Those that were to come, go or move, and of which nothing was heard; and those that are gone.
    unsure_chats: BTreeSet<String>,
    closed: BTreeSet<String>,
    listed: Vec<(String, u32)>,
    /// Which life of the host this is, once that is known.
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
        assert!(self.come_back().is_ok());
        self.process.as_mut().unwrap().end();
        let status = self.process.as_mut().unwrap().wait();
        assert!(status.success(), "{status:?}");
        let log = std::fs::read_to_string(self.log()).unwrap();
        assert!(log.is_empty(), "the host says on stderr:\n{log}");
        self.cast.check_gone(&self.cookie);
        self.history.counts.prompts = self.cast.check_told(self.folder.path());
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
        self.die_if_it_is_time()
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
        self.cast.check_gone(&self.cookie);
    }

    fn die_if_it_is_time(&mut self) -> Alive {
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
        self.die_if_it_is_time()
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

    fn next_line(&mut self) -> Alive {
        let Some(line) = self.process.as_mut().unwrap().next_line() else {
            self.die();
            panic!("the output has ended");
        };
        self.hear(&line);
        if let Trigger::Heard(left) = &mut self.trigger {
            *left -= 1;
        }
        self.die_if_it_is_time()
    }

    /// Hears everything up to the answers to all that was asked.
    fn listen(&mut self) -> Alive {
        while !self.asked.is_empty() {
            self.next_line()?;
        }
        Ok(())
    }

    fn hear(&mut self, line: &str) {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        if let Some(id) = message["id"].as_u64() {
            let request = self.asked.remove(&id).unwrap_or_else(|| panic!("nobody asked: {line}"));
            if let Some(error) = message.get("error") {
                // A queued message may have been taken up.
                let Request::MoveChat(chat, _) = &request else { panic!("{request:?}: {line}") };
                assert_eq!(error["code"], TURN_IN_PROGRESS, "{line}");
                self.unsure_chats.remove(chat);
                return;
            }
            return self.hear_answer(request, &message["result"]);
        }
        if message["method"] == "action" {
            let envelope: ActionEnvelope = serde_json::from_value(message["params"].clone()).unwrap();
            self.hear_action(&envelope);
        }
    }

    fn hear_action(&mut self, envelope: &ActionEnvelope) {
        let mine = envelope.origin.as_ref().map(|origin| u64::try_from(origin.client_seq).unwrap());
        if let Some(number) = mine {
            self.unanswered.remove(&number);
        }
        if envelope.rejection_reason.is_some() {
            if mine.is_some_and(|number| self.must_be_refused.remove(&number)) {
                self.history.counts.started_again += 1;
            }
            return;
        }
        assert!(!mine.is_some_and(|number| self.must_be_refused.contains(&number)), "accepted: {envelope:?}");
        if let Some(client) = self.lagging.as_mut().filter(|_| self.lagging_is_live) {
            if client.states.contains_key(&envelope.channel) && envelope.server_seq > client.cursor {
                self.history.see(envelope);
                client.apply(envelope);
            }
        }
        if !self.is_live {
            return;
        }
        if envelope.server_seq <= self.mirrors.cursor {
            assert!(mine.is_some() || loads(envelope), "told twice on one connection: {envelope:?}");
            return;
        }
        self.history.see(envelope);
        self.mirrors.apply(envelope);
    }

    fn hear_answer(&mut self, request: Request, result: &Value) {
        match request {
            Request::Ping | Request::Looker => {}
            Request::Initialize => {
                self.is_live = true;
                let opened: InitializeResult = serde_json::from_value(result.clone()).unwrap();
                opened.snapshots.into_iter().for_each(|snapshot| self.mirrors.put(snapshot));
            }
            Request::Reconnect { lost } => {
                let result: ReconnectResult = serde_json::from_value(result.clone()).unwrap();
                assert!(!lost || matches!(result, ReconnectResult::Snapshot(_)), "a replay from nowhere");
                self.is_live = true;
                self.hear_what_was_missed(result);
            }
            Request::Lagging => {
                let result: ReconnectResult = serde_json::from_value(result.clone()).unwrap();
                self.lagging_is_live = true;
                self.catch_up(result);
            }
            Request::Subscribe(uri) => {
                let subscribed: SubscribeResult = serde_json::from_value(result.clone()).unwrap();
                let snapshot = subscribed.snapshot.unwrap();
                assert_eq!(snapshot.resource, uri);
                match self.mirrors.states.get(&uri) {
                    Some(mirror) => {
                        let (mirror, state) = (masked(mirror), masked(&snapshot.state));
                        assert!(mirror == state, "{uri}: the mirror is\n{mirror}\nthe state is\n{state}");
                    }
                    None => {
                        if let SnapshotState::Chat(chat) = &snapshot.state {
                            self.history_of(&uri, chat, u64::try_from(snapshot.from_seq).unwrap());
                        }
                    }
                }
                if let SnapshotState::Chat(chat) = &snapshot.state {
                    check_chat(&uri, chat);
                }
                self.mirrors.put(snapshot);
            }
            Request::List => {
                let list: ListSessionsResult = serde_json::from_value(result.clone()).unwrap();
                self.listed =
                    list.items.into_iter().map(|session| (session.resource, session.status)).collect();
            }
            Request::Create(uri) => {
                self.unsure.remove(&uri);
                self.sessions.insert(uri);
            }
            Request::Dispose(uri) => self.is_gone(&uri),
            Request::OpenChat(chat, session) | Request::MoveChat(chat, session) => {
                self.unsure_chats.remove(&chat);
                self.chats.insert(chat, session);
            }
            Request::CloseChat(chat) => self.is_closed(&chat),
        }
    }

    fn history_of(&mut self, uri: &str, chat: &ChatState, up_to: u64) {
        let running = chat.active_turn.as_ref().map(|turn| turn.id.as_str());
        let known = chat.turns.iter().map(|turn| turn.id.clone()).collect();
        self.history.skip(uri, up_to, running, known);
    }

    fn is_gone(&mut self, session: &str) {
        self.unsure.remove(session);
        self.sessions.remove(session);
        self.disposed.insert(session.to_owned());
        self.mirrors.states.remove(session);
        self.mirrors.states.remove(&annotations_uri(session));
        self.mirrors.states.remove(&chat_of(session));
        // One that was to move may have gone before.
        let sure = |chat: &String| !self.unsure_chats.contains(chat);
        let of_it = self.chats.iter().filter(|(chat, of)| *of == session && sure(chat));
        for chat in of_it.map(|(chat, _)| chat.clone()).collect::<Vec<_>>() {
            self.is_closed(&chat);
        }
    }

    fn is_closed(&mut self, chat: &str) {
        self.unsure_chats.remove(chat);
        self.chats.remove(chat);
        self.closed.insert(chat.to_owned());
        self.mirrors.states.remove(chat);
    }

    /// Whether this channel is one of a session that may be gone.
    fn may_be_gone(&self, uri: &str) -> bool {
        let mut gone = self.unsure.iter().chain(&self.disposed);
        let session = self.chats.get(uri);
        self.unsure_chats.contains(uri)
            || self.closed.contains(uri)
            || gone.any(|gone| {
                gone == uri || chat_of(gone) == uri || annotations_uri(gone) == uri || Some(gone) == session
            })
    }

    /// The answer to a `reconnect` with what this client had.
    fn hear_what_was_missed(&mut self, result: ReconnectResult) {
        match result {
            ReconnectResult::Replay(replay) => {
                self.history.counts.replays += 1;
                for uri in replay.missing {
                    assert!(self.may_be_gone(&uri), "{uri} is missing");
                    self.mirrors.states.remove(&uri);
                }
                for envelope in &replay.actions {
                    let seen = self.mirrors.cursor;
                    let is_new = envelope.server_seq > seen || loads(envelope);
                    assert!(is_new, "replayed after {seen}: {envelope:?}");
                    self.hear_action(envelope);
                }
            }
            ReconnectResult::Snapshot(told) => {
                self.history.counts.snapshots += 1;
                let before = std::mem::take(&mut self.mirrors.states);
                for snapshot in told.snapshots {
                    let uri = snapshot.resource.clone();
                    if self.asks_nothing_of(&uri) {
                        check_kept(&uri, &before[&uri], &snapshot.state);
                    }
                    if let SnapshotState::Chat(chat) = &snapshot.state {
                        self.history_of(&uri, chat, u64::try_from(snapshot.from_seq).unwrap());
                    }
                    self.mirrors.put(snapshot);
                }
                for uri in before.keys().filter(|uri| !self.mirrors.states.contains_key(*uri)) {
                    assert!(self.may_be_gone(uri), "{uri} is missing");
                }
            }
        }
    }

    /// Whether nothing that was asked of a channel, or of its session's chat, is on its way.
    fn asks_nothing_of(&self, uri: &str) -> bool {
        let of_its_chat = |channel: &String| *channel == uri || *channel == chat_of(uri);
        !self.unanswered.values().any(of_its_chat)
    }

    /// The answer to a `reconnect` as a client that has been away for longer: it must be told again what is
    /// known of the time since, and come to hold the same.
    fn catch_up(&mut self, result: ReconnectResult) {
        let mut client = self.lagging.take().unwrap();
        match result {
            ReconnectResult::Replay(replay) => {
                self.history.counts.lagging += 1;
                for uri in &replay.missing {
                    assert!(self.may_be_gone(uri), "{uri} is missing");
                    client.states.remove(uri);
                }
                let told: BTreeSet<u64> = replay.actions.iter().map(|action| action.server_seq).collect();
                let channels = client.uris().into_iter().collect();
                for number in self.history.numbers_after(client.cursor) {
                    let told = told.contains(&number) || !self.history.is_on(number, &channels);
                    assert!(told, "{number} was left out of a replay from {}", client.cursor);
                }
                for envelope in &replay.actions {
                    self.history.see(envelope);
                    client.apply(envelope);
                }
            }
            ReconnectResult::Snapshot(told) => {
                client.states.clear();
                told.snapshots.into_iter().for_each(|snapshot| client.put(snapshot));
            }
        }
        self.lagging = Some(client);
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
        self.come_back()?;
        self.be_a_client()
    }

    /// Starts the host again, reconnects, and looks whether all is as it must be.
    fn come_back(&mut self) -> Alive {
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
            check_quiet(uri, chat);
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

    /// Looks at the chats of all sessions of a host that has just begun. Returns those that are not followed.
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

    fn be_a_client(&mut self) -> Alive {
        let rounds = self.dice.from(1..ROUNDS_MAX);
        for _ in 0..rounds {
            for _ in 0..self.dice.from(1..6) {
                self.ask_for_something()?;
            }
            self.ask("ping", json!({}), Request::Ping)?;
            if !self.cast.is_quick() && self.dice.percent(60) {
                self.listen()?;
                self.wait_for_words()?;
            }
            if self.dice.percent(70) {
                self.listen()?;
            } else {
                for _ in 0..self.dice.from(0..10) {
                    if self.asked.is_empty() {
                        break;
                    }
                    self.next_line()?;
                }
            }
            if self.lagging.is_none() && self.dice.percent(10) {
                self.lagging = Some(self.mirrors.clone());
            }
        }
        Ok(())
    }

    /// Hears what is said until each turn that runs has begun to say something.
    fn wait_for_words(&mut self) -> Alive {
        let silent =
            |chat: &ChatState| chat.active_turn.as_ref().is_some_and(|turn| turn.response_parts.is_empty());
        while self.mirrors.chats().any(|(_, chat)| silent(chat)) {
            self.next_line()?;
        }
        Ok(())
    }

    fn fresh(&mut self, what: &str) -> String {
        self.last += 1;
        format!("{what}-{}", self.last)
    }

    fn message(&mut self) -> Value {
        let mut steps = Vec::new();
        for _ in 0..self.dice.from(1..6) {
            let name = self.fresh("step");
            steps.push(self.cast.step(&mut self.dice, &name));
        }
        // One stream each, so that two are not taken for one that was done twice.
        let mut streams = 0;
        steps.retain(|step| !step.starts_with("/stream") || std::mem::replace(&mut streams, 1) == 0);
        // No two messages are the same.
        let name = self.fresh("end");
        steps.push(self.cast.last_step(&name));
        json!({ "text": steps.join("\n"), "origin": { "kind": "user" } })
    }

    fn start_turn(&mut self, uri: &str, id: &str) -> Alive {
        let message = self.message();
        self.act(uri, json!({ "type": "chat/turnStarted", "turnId": id, "message": message }))
    }

    fn ask_for_something(&mut self) -> Alive {
        let chats: Vec<String> = self.mirrors.chats().map(|(uri, _)| uri.clone()).collect();
        let dice = self.dice.from(0..1000);
        let Some(uri) = self.dice.one_of(&chats).cloned() else { return self.create() };
        let chat = self.mirrors.chat(&uri).unwrap().clone();
        match dice {
            0..25 if self.sessions.len() < SESSIONS_MAX => self.create(),
            25..35 => self.dispose(),
            35..50 if self.chats.len() < self.cast.chats_max() => self.open_chat(),
            50..56 => self.close_chat(),
            56..65 => self.move_chat(),
            65..100 => self.change_session(&uri),
            100..160 => self.change_draft(&uri, &chat),
            160..260 => {
                let (id, message) = (self.fresh("queued"), self.message());
                let set = json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": id,
                    "message": message });
                self.act(&uri, set)
            }
            260..280 => match chat.queued_messages.iter().flatten().next() {
                Some(first) => {
                    let id = &first.id;
                    let removed = json!({ "type": "chat/pendingMessageRemoved", "kind": "queued", "id": id });
                    self.act(&uri, removed)
                }
                None => Ok(()),
            },
            280..300 => {
                let (id, message) = (self.fresh("steering"), self.message());
                let set = json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": id,
                    "message": message });
                self.act(&uri, set)
            }
            300..330 => {
                let turns: Vec<&String> = chat.turns.iter().map(|turn| &turn.id).collect();
                let id = self.dice.one_of(&turns).map(|id| (*id).clone());
                let truncated = id.map(|id| json!({ "type": "chat/truncated", "turnId": id }));
                truncated.map_or(Ok(()), |action| self.act(&uri, action))
            }
            330..360 => match &chat.active_turn {
                Some(turn) => self.act(&uri, json!({ "type": "chat/turnCancelled", "turnId": turn.id })),
                None => Ok(()),
            },
            360..420 => {
                let known = self.history.turn_ids(&uri);
                let Some(id) = self.dice.one_of(&known).cloned() else { return Ok(()) };
                self.start_turn_again(&uri, &id)
            }
            _ => self.go_on(&uri, &chat),
        }
    }

    /// Sends the start of a turn that was accepted before once more.
    fn start_turn_again(&mut self, uri: &str, id: &str) -> Alive {
        let message = self.message();
        self.must_be_refused.insert(self.last + 1);
        self.act(uri, json!({ "type": "chat/turnStarted", "turnId": id, "message": message }))
    }

    fn dispose(&mut self) -> Alive {
        let Some(uri) = self.some_session() else { return Ok(()) };
        self.unsure.insert(uri.clone());
        self.ask("disposeSession", json!({ "channel": uri }), Request::Dispose(uri.clone()))
    }

    /// One of the sessions of which nothing is to be heard.
    fn some_session(&mut self) -> Option<String> {
        let sessions: Vec<String> = self.sessions.difference(&self.unsure).cloned().collect();
        self.dice.one_of(&sessions).cloned()
    }

    /// One of the chats of which nothing is to be heard, besides the first ones.
    fn some_chat(&mut self) -> Option<String> {
        let sure = |(chat, session): &(&String, &String)| {
            !self.unsure_chats.contains(*chat) && !self.unsure.contains(*session)
        };
        let chats: Vec<String> = self.chats.iter().filter(sure).map(|(chat, _)| chat.clone()).collect();
        self.dice.one_of(&chats).cloned()
    }

    /// Opens a chat of a session, or one that goes on from a turn of another one.
    fn open_chat(&mut self) -> Alive {
        let Some(session) = self.some_session() else { return Ok(()) };
        let uri = format!("ahp-chat:/{}", self.fresh("chat"));
        let mut params = json!({ "channel": session, "chat": uri });
        let of_it = |(_, of): &(&String, &String)| **of == session;
        let mut sources: Vec<String> =
            self.chats.iter().filter(of_it).map(|(chat, _)| chat.clone()).collect();
        sources.push(chat_of(&session));
        let asked = |chat: &String| self.unanswered.values().any(|channel| channel == chat);
        sources.retain(|chat| !self.unsure_chats.contains(chat) && !asked(chat));
        if let Some(source) = self.dice.one_of(&sources).cloned().filter(|_| self.dice.percent(70)) {
            if let Some(turn) = self.mirrors.chat(&source).and_then(|chat| chat.turns.last()) {
                let turn = turn.id.clone();
                let kind = if self.dice.percent(50) { "fork" } else { "sideChat" };
                params["source"] = json!({ "kind": kind, "chat": source, "turnId": turn });
            }
        }
        self.unsure_chats.insert(uri.clone());
        self.ask("createChat", params, Request::OpenChat(uri.clone(), session))?;
        self.subscribe(uri)
    }

    fn close_chat(&mut self) -> Alive {
        let Some(uri) = self.some_chat() else { return Ok(()) };
        self.unsure_chats.insert(uri.clone());
        self.ask("disposeChat", json!({ "channel": uri }), Request::CloseChat(uri.clone()))
    }

    fn move_chat(&mut self) -> Alive {
        let (Some(uri), Some(session)) = (self.some_chat(), self.some_session()) else { return Ok(()) };
        self.unsure_chats.insert(uri.clone());
        let to = json!({ "kind": "session", "session": session });
        let params = json!({ "channel": uri, "destination": to });
        self.ask("moveChat", params, Request::MoveChat(uri, session))
    }

    fn change_session(&mut self, chat: &str) -> Alive {
        let first = self.sessions.iter().find(|uri| chat_of(uri) == chat);
        let Some(session) = first.or_else(|| self.chats.get(chat)).cloned() else {
            return Ok(());
        };
        match self.dice.from(0..6) {
            4..6 => self.annotate(&session),
            0 => {
                let title = self.fresh("title");
                self.act(&session, json!({ "type": "session/titleChanged", "title": title }))
            }
            1 => {
                let title = self.fresh("name");
                self.act(chat, json!({ "type": "session/titleChanged", "title": title }))
            }
            2 => {
                let is_read = self.dice.percent(50);
                self.act(&session, json!({ "type": "session/isReadChanged", "isRead": is_read }))
            }
            _ => {
                let is_archived = self.dice.percent(50);
                self.act(chat, json!({ "type": "chat/isArchivedChanged", "isArchived": is_archived }))
            }
        }
    }

    /// Says something to a place in a file, answers it there, or takes it back.
    fn annotate(&mut self, session: &str) -> Alive {
        let uri = annotations_uri(session);
        let there: Vec<String> = self.mirrors.annotations(&uri).iter().map(|it| it.id.clone()).collect();
        let (id, entry) = (self.fresh("annotation"), json!({ "id": self.fresh("entry"), "text": "said" }));
        let action = match (self.dice.one_of(&there).cloned(), self.dice.from(0..4)) {
            (Some(id), 0) => json!({ "type": "annotations/removed", "annotationId": id }),
            (Some(id), 1) => json!({ "type": "annotations/entrySet", "annotationId": id, "entry": entry }),
            (Some(id), 2) => {
                let resolved = self.dice.percent(50);
                json!({ "type": "annotations/updated", "annotationId": id, "resolved": resolved })
            }
            _ => {
                json!({ "type": "annotations/set", "annotation": { "id": id, "origin": { "session": session },
                "resource": "file:///x", "resolved": false, "entries": [entry] } })
            }
        };
        self.act(&uri, action)
    }

    fn change_draft(&mut self, uri: &str, chat: &ChatState) -> Alive {
        let mut action = json!({ "type": "chat/draftChanged" });
        if chat.draft.is_none() || self.dice.percent(70) {
            let text = self.fresh("draft");
            action["draft"] = json!({ "text": text, "origin": { "kind": "user" } });
        }
        self.act(uri, action)
    }

    /// Does what moves a chat on: answers what is asked, resumes what was interrupted, or starts a turn.
    fn go_on(&mut self, uri: &str, chat: &ChatState) -> Alive {
        let Some(turn) = &chat.active_turn else {
            let last = chat.turns.last().filter(|turn| turn.state == TurnState::Error);
            let resumes = self.cast.always_resumes() && self.dice.percent(80);
            if let Some(turn) = last.filter(|_| resumes) {
                return self.act(uri, json!({ "type": "chat/turnResume", "turnId": turn.id }));
            }
            let id = self.fresh("turn");
            return self.start_turn(uri, &id);
        };
        for part in &turn.response_parts {
            match part {
                ResponsePart::ToolCall(part) => {
                    if let Some(action) = self.decision(&turn.id, &part.tool_call) {
                        return self.act(uri, action);
                    }
                }
                ResponsePart::InputRequest(part) if part.response.is_none() => {
                    let action = self.answer(&part.request);
                    return self.act(uri, action);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn decision(&mut self, turn: &str, call: &ToolCallState) -> Option<Value> {
        let approved = self.dice.percent(70);
        match call {
            ToolCallState::PendingConfirmation(call) => Some(json!({ "type": "chat/toolCallConfirmed",
                "turnId": turn, "toolCallId": call.tool_call_id, "approved": approved })),
            ToolCallState::PendingResultConfirmation(call) => {
                Some(json!({ "type": "chat/toolCallResultConfirmed",
                    "turnId": turn, "toolCallId": call.tool_call_id, "approved": approved }))
            }
            _ => None,
        }
    }

    fn answer(&mut self, request: &ChatInputRequest) -> Value {
        let questions = serde_json::to_value(&request.questions).unwrap();
        let question = questions[0]["id"].as_str().unwrap();
        let text = self.fresh("answer");
        let value = json!({ "kind": "text", "value": text });
        if self.dice.percent(30) {
            return json!({ "type": "chat/inputAnswerChanged", "requestId": request.id,
                "questionId": question, "answer": { "state": "draft", "value": value } });
        }
        json!({ "type": "chat/inputCompleted", "requestId": request.id, "response": "accept",
            "answers": { question: { "state": "submitted", "value": value } } })
    }
}
