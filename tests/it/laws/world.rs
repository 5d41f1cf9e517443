//! A host in memory with everything around it: clients behind their edges and outboxes, simulated backends,
//! a clock that moves when told to.
//!
//! Owns: carrying a schedule out, step by step, and what every single step must obey: each request and each
//! action is answered once, each sequenced action reaches exactly the subscribers of its channel, in order.
//! Never: lets anything happen that is not in the schedule, until its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{
    ChatKey, ConnectionId, Event, Frame, Ids, Input, Now, Output, Recalled, Record, SessionKey, Shutdown,
    Timer,
};
use ahp_sidecar::host::{listing, log::ReplayWindow, Config, Host, Start};
use ahp_sidecar::io::outbox::{Outbox, OutboxLimits};
use ahp_sidecar::state::texts::{TextSource, TurnText};
use ahp_sidecar::store::memory::Memory;
use ahp_sidecar::versions::dialect::Dialect;
use ahp_sidecar::versions::{Edges, Line as Told, Outgoing};
use ahp_sidecar::wire::annotations::annotations_uri;
use ahp_sidecar::wire::methods::Method;
use ahp_sidecar::wire::names::Named;
use ahp_sidecar::wire::rpc::Incoming;
use ahp_types::commands::{Implementation, ReconnectResult};
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{SessionLifecycle, SessionState, Snapshot, SnapshotState};
use anyhow::{ensure, Context, Result};
use bytes::Bytes;
use serde_json::{json, Value};

use super::agent::Agent;
use super::bridged::Bridged;
use super::checks;
use super::client::{Held, Mirror};
use super::lines::{self, Asked, Line};
use super::schedule::{Cursor, End, From, Report, Schedule, Step, Wish};
use super::speech;
use super::truth::Truth;

/// How long a backend that is a program is heard for in a step of a schedule, and when nothing else can happen.
const HEARD_FOR: Duration = Duration::from_millis(30);
const HEARD_AT_LAST_FOR: Duration = Duration::from_secs(100);

/// A mention that channels are gone stands between the lines under this mark, which no line begins with.
const GONE: &[u8] = b"gone ";

/// The connection that looks at the state.
const OBSERVER: ConnectionId = ConnectionId(0);

/// The names that sessions are created under; the last ones are refused.
const NAMES: [&str; 7] = [
    "ahp-session:/1",
    "script:/2",
    "ahp-session:/3",
    "ahp-session:/1/deeper",
    "any:x",
    "ahp-chat:/1",
    "nonsense",
];

/// The names that further chats are opened under; the last ones are refused.
const CHATS: [&str; 6] =
    ["ahp-chat:/a", "ahp-chat:/b", "ahp-chat:/c", "ahp-chat:/a/deeper", "ahp-chat://default/x", "nonsense"];

/// Where a text can be read again.
#[derive(Debug)]
struct Shelf(Vec<u8>);

impl TextSource for Shelf {
    fn read(&self) -> std::result::Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(&self.0))
    }

    fn was_read(&self, _: &TurnText) {}
}

/// Runs a host through a schedule.
pub struct World {
    host: Host,
    ids: CountedIds,
    unix_ms: i64,
    monotonic_ms: u64,
    clients: Vec<Client>,
    connections: BTreeMap<ConnectionId, Connection>,
    edges: Edges,
    last_connection: u32,
    agents: BTreeMap<ChatKey, Agent>,
    /// Who does what backends do, unless the schedule says it.
    bridged: Option<Bridged>,
    timers: Vec<Timer>,
    done: Vec<bool>,
    /// Sessions and chats that are gone since the step began.
    gone: Vec<String>,
    /// The URIs of the sessions and chats that are kept, and whose chats they are.
    sessions: BTreeMap<SessionKey, String>,
    chats: BTreeMap<ChatKey, (SessionKey, String)>,
    kept: Memory,
    merge: bool,
    /// How often turns were loaded for somebody.
    loaded: usize,
    /// What the outboxes count their time from.
    begin: Instant,
    pub truth: Truth,
    /// Everything that the host has ever put out.
    outputs: Vec<Output>,
    /// The texts of turns that the store could give back: none of them stays in memory longer than a step.
    shelved: Vec<TurnText>,
}

/// A client and its connection, if it has one.
pub struct Client {
    id: String,
    connection: Option<ConnectionId>,
    pub mirror: Mirror,
    last_seq: i64,
}

/// A connection, as the host knows it. The client may have lost it already.
struct Connection {
    outbox: Outbox,
    /// What the host must deliver to it.
    subscribed: BTreeSet<String>,
    /// It comes back to the root channel with the request that is being answered.
    returns_to_root: bool,
    client_id: Option<String>,
    /// The newest number that it was sent.
    sent: u64,
}

struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("fresh-{}", self.0)
    }
}

/// What is known of a step while its outputs are looked at.
#[derive(Default)]
struct Seen {
    /// Each action that was sequenced, by its number: its channel and its line.
    sequenced: BTreeMap<u64, (String, Bytes)>,
    /// Who got it.
    delivered: BTreeMap<u64, BTreeSet<ConnectionId>>,
    /// Answers to requests and to lines that are none.
    answers: Vec<(ConnectionId, Value)>,
    /// Actions that were answered to their sender alone, as they stand there.
    acknowledged: Vec<Value>,
    /// Origins of sequenced actions.
    origins: Vec<(String, i64)>,
    created: Vec<String>,
}

impl World {
    /// Carries a schedule out and checks everything; returns what the host has put out.
    pub fn run(schedule: &Schedule) -> Result<Vec<Output>> {
        Self::new(schedule)?.play(schedule)
    }

    /// The same, but that backends are programs, and report what they have to report.
    pub fn run_bridged(schedule: &Schedule) -> Result<Vec<Output>> {
        let mut world = Self::new(schedule)?;
        world.bridged = Some(Bridged::new("script"));
        world.play(schedule)
    }

    fn play(self, schedule: &Schedule) -> Result<Vec<Output>> {
        let mut world = self;
        for (at, step) in schedule.steps.iter().enumerate() {
            world.step(step).with_context(|| format!("at step {at}, {step:?}"))?;
        }
        world.end(schedule.end).context("at the end")?;
        Ok(world.outputs)
    }

    fn new(schedule: &Schedule) -> Result<Self> {
        let config = Config {
            server_info: Implementation { name: "host".to_owned(), version: None, title: None },
            agents: vec![Script.describe()],
            root_schema: speech::root_schema(),
            replay_window: ReplayWindow { actions_max: schedule.window, ..ReplayWindow::default() },
            start: Start::default(),
            memory_budget: usize::MAX,
            limits: Default::default(),
        };
        let client = |number| Client {
            id: format!("client-{number}"),
            connection: None,
            mirror: Mirror::default(),
            last_seq: 0,
        };
        let mut world = Self {
            host: Host::new(config),
            ids: CountedIds(0),
            unix_ms: 1_700_000_000_000,
            monotonic_ms: 5_000,
            clients: (0..schedule.clients).map(client).collect(),
            connections: BTreeMap::new(),
            edges: Edges::new(vec!["script".to_owned()]),
            last_connection: 0,
            agents: BTreeMap::new(),
            bridged: None,
            timers: Vec::new(),
            done: Vec::new(),
            gone: Vec::new(),
            sessions: BTreeMap::new(),
            chats: BTreeMap::new(),
            kept: Memory::default(),
            merge: schedule.merge,
            loaded: 0,
            begin: Instant::now(),
            truth: Truth::default(),
            outputs: Vec::new(),
            shelved: Vec::new(),
        };
        world.open(OBSERVER)?;
        let begin = json!({ "clientId": "observer", "protocolVersions": ["1.0.0"] });
        ensure!(world.say(OBSERVER, &request(0, "initialize", begin))?.is_ok(), "no handshake");
        let root = world.observe(ROOT_RESOURCE_URI)?;
        world.truth.channels.insert(ROOT_RESOURCE_URI.to_owned(), Held::new(root));
        for client in 0..world.clients.len() {
            world.initialize(client, 0)?;
        }
        Ok(world)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Time { ms, back } => {
                self.monotonic_ms += u64::from(ms);
                self.unix_ms += if back { -2 * i64::from(ms) } else { i64::from(ms) };
                Ok(())
            }
            Step::Settle => self.feed(Input::Settled).map(|_| ()),
            Step::Timers => self.fire_timers(),
            Step::Read { client, bytes } => self.read(self.client(client), bytes.into()),
            Step::Compare => self.compare(),
            Step::Lose { client, heard } => self.lose(self.client(client), heard),
            Step::Reconnect { client, cursor, leave_out } => {
                self.reconnect(self.client(client), cursor, leave_out)
            }
            Step::Initialize { client, channels } => self.initialize(self.client(client), channels),
            Step::Subscribe { client, channel, turns, delay } => {
                self.subscribe(self.client(client), channel, turns, delay)
            }
            Step::Fetch { client, chat, from } => self.fetch(self.client(client), chat, from),
            Step::Unsubscribe { client, channel } => self.unsubscribe(self.client(client), channel),
            Step::Create { client, name, how } => self.create(self.client(client), name, how),
            Step::Dispose { client, session } => self.dispose(self.client(client), session),
            Step::OpenChat { client, session, name, how, from, turn } => {
                self.open_chat(self.client(client), session, name, (how, from, turn))
            }
            Step::CloseChat { client, chat } => self.close_chat(self.client(client), chat),
            Step::MoveChat { client, chat, to, after } => {
                self.move_chat(self.client(client), chat, to, after)
            }
            Step::List { client, limit } => self.list(self.client(client), limit),
            Step::Dispatch { client, chat, ref wish, damage } => {
                let Some(chat) = self.chat(chat) else { return Ok(()) };
                let client = self.client(client);
                let id = self.clients[client].id.clone();
                let (channel, mut action) = speech::say(&id, wish, damage, &chat, &self.truth);
                if let Some(bridged) = &mut self.bridged {
                    bridged.instruct(&mut action);
                }
                self.dispatch(client, &channel, action, wish)
            }
            Step::Report { chat, ref report } => self.report(chat, report),
            Step::Nonsense { client, which } => self.talk_nonsense(self.client(client), which),
        }
    }

    fn client(&self, index: u8) -> usize {
        usize::from(index) % self.clients.len()
    }

    /// One of the sessions that there are, the newest first.
    fn session(&self, index: u8) -> Option<String> {
        let sessions = &self.truth.sessions;
        sessions.iter().rev().nth(usize::from(index) % sessions.len().max(1)).cloned()
    }

    /// One of the chats that there are, the newest first.
    fn chat(&self, index: u8) -> Option<String> {
        let chats = &self.truth.in_order;
        chats.iter().rev().nth(usize::from(index) % chats.len().max(1)).cloned()
    }

    /// One of the channels that there are, or that there are not.
    fn channel(&self, index: u8) -> String {
        let channels: Vec<_> = self.truth.channels.keys().collect();
        match usize::from(index) % (channels.len() + 2) {
            at if at < channels.len() => channels[at].clone(),
            at if at == channels.len() => "ahp-session:/nobody's".to_owned(),
            _ => ROOT_RESOURCE_URI.to_owned(),
        }
    }

    // What clients do.

    fn initialize(&mut self, client: usize, channels: u8) -> Result<()> {
        let again = self.clients[client].connection.is_some();
        let connection = self.connect(client)?;
        let wanted: BTreeSet<String> = (0..channels % 4).map(|index| self.channel(index)).collect();
        let Client { id, mirror, .. } = &mut self.clients[client];
        if !again {
            mirror.forget();
        }
        let request_id = mirror.ask(if again { Asked::Nothing } else { Asked::Initialize });
        if !again {
            wanted.iter().for_each(|channel| mirror.want(channel, request_id));
        }
        let params = json!({
            "channel": ROOT_RESOURCE_URI, "clientId": id, "protocolVersions": ["2.0.0", "1.0.0"],
            "initialSubscriptions": wanted,
        });
        let ok = self.say(connection, &request(request_id, "initialize", params))?.is_ok();
        ensure!(ok != again, "initialize answered {}", if ok { "twice" } else { "with an error" });
        if !again && wanted.contains(ROOT_RESOURCE_URI) {
            self.begin_list(client)?;
        }
        Ok(())
    }

    fn subscribe(&mut self, client: usize, index: u8, turns: Option<u8>, delay: Option<u16>) -> Result<()> {
        let channel = self.channel(index);
        let there = self.truth.channels.contains_key(&channel);
        let Some(connection) = self.live(client) else { return Ok(()) };
        let mirror = &mut self.clients[client].mirror;
        let request_id = mirror.ask(Asked::Subscribe);
        if there {
            mirror.want(&channel, request_id);
        }
        let mut params = json!({ "channel": channel });
        if let Some(turns) = turns {
            params["view"] = json!({ "turns": turns });
        }
        if let Some(delay) = delay {
            params["delivery"] = json!({ "maxLatencyMs": delay });
        }
        match self.say(connection, &request(request_id, "subscribe", params))? {
            Ok(answer) => {
                ensure!(there, "subscribed to {channel}, which is not there");
                if let Some((_, chat)) = self.truth.chats().find(|(uri, _)| *uri == channel) {
                    let shown = answer["result"]["snapshot"]["state"]["turns"].as_array().map(Vec::len);
                    let wanted = turns.map_or(usize::MAX, |turns| usize::from(turns).max(1));
                    ensure!(shown == Some(wanted.min(chat.turns.len())), "{shown:?} of {wanted} turns");
                }
            }
            Err(code) => ensure!(!there && code == -32001, "subscribing to {channel} failed: {code}"),
        }
        if channel == ROOT_RESOURCE_URI {
            self.begin_list(client)?;
        }
        Ok(())
    }

    /// Loads older turns: they come before the answer, to nobody else.
    fn fetch(&mut self, client: usize, index: u8, from: From) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let chat = self.chat(index).unwrap_or_else(|| "ahp-session:/nobody's".to_owned());
        let mirror = &mut self.clients[client].mirror;
        let held = mirror.channels.get(&chat).and_then(|held| match &held.state {
            SnapshotState::Chat(chat) => chat.turns_next_cursor.clone(),
            _ => None,
        });
        let params = match (from, held) {
            (From::Elsewhere, _) => json!({ "channel": chat, "cursor": "elsewhere" }),
            (From::Own, Some(cursor)) => json!({ "channel": chat, "cursor": cursor }),
            (From::Own | From::Next, _) => json!({ "channel": chat }),
        };
        let request_id = mirror.ask(Asked::Fetch);
        let there = self.connections[&connection].subscribed.contains(&chat);
        let before = self.loaded;
        let answer = self.say(connection, &request(request_id, "fetchTurns", params.clone()))?;
        let loaded = self.loaded - before;
        match answer {
            Ok(_) => ensure!(there && loaded == 1, "{params} loaded {loaded} times"),
            // What the client holds may be of long ago.
            Err(_) => ensure!(loaded == 0 && !(there && params.get("cursor").is_none()), "refused: {params}"),
        }
        ensure!(answer.is_err() || !matches!(from, From::Elsewhere), "a foreign cursor was taken");
        Ok(())
    }

    fn unsubscribe(&mut self, client: usize, index: u8) -> Result<()> {
        let channel = self.channel(index);
        let Some(connection) = self.live(client) else { return Ok(()) };
        self.clients[client].mirror.leave(&channel);
        self.notify(connection, "unsubscribe", json!({ "channel": channel }))?;
        Ok(())
    }

    /// Asks for the list, because the root channel has just begun to tell its changes.
    fn begin_list(&mut self, client: usize) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let mirror = &mut self.clients[client].mirror;
        let request_id = mirror.ask(Asked::List);
        mirror.list_from(request_id);
        let params = json!({ "channel": ROOT_RESOURCE_URI });
        ensure!(self.say(connection, &request(request_id, "listSessions", params))?.is_ok(), "no list");
        Ok(())
    }

    /// Asks for a page of the list, or with a foreign cursor.
    fn list(&mut self, client: usize, limit: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let request_id = self.clients[client].mirror.ask(Asked::List);
        let params = if limit == 15 { json!({ "cursor": "x" }) } else { json!({ "limit": limit % 4 }) };
        let answer = self.say(connection, &request(request_id, "listSessions", params))?;
        ensure!(
            answer.is_ok() == (limit != 15 && !limit.is_multiple_of(4)),
            "a page of {limit} got {answer:?}"
        );
        Ok(())
    }

    fn create(&mut self, client: usize, name: u8, how: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let name = NAMES[usize::from(name) % NAMES.len()];
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let mut params = json!({ "channel": name });
        let more = match how {
            0..=2 => json!({}),
            3 => json!({ "provider": "script", "workingDirectories": ["file:///tmp"] }),
            4 => json!({ "provider": "nobody" }),
            5 => json!({ "config": { "fail": 5 } }),
            7 => json!({ "activeClient": speech::participant("nobody", 1) }),
            8..=11 => json!({ "activeClient": speech::participant(&self.clients[client].id, how) }),
            6 => json!({ "workingDirectories": ["file:///a", "file:///nowhere"] }),
            13..=15 => json!({ "progressToken": format!("{}-{request_id}", self.clients[client].id) }),
            12 => json!({ "workingDirectories": ["file:///a", "file:///b", "file:///a/"] }),
            // A program says what can be set in its sessions, and that is nothing.
            _ if self.bridged.is_some() => json!({ "config": {} }),
            _ => json!({ "config": { "openMs": 5 } }),
        };
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let good = !self.truth.sessions.iter().any(|known| known == name)
            && !matches!(how, 4 | 6 | 7)
            && !matches!(name, "ahp-chat:/1" | "nonsense");
        let answer = self.say(connection, &request(request_id, "createSession", params))?;
        ensure!(answer.is_ok() == good, "creating {name} was answered {answer:?}");
        Ok(())
    }

    fn dispose(&mut self, client: usize, index: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        // One that is not there is gone already.
        let name = self.session(index).unwrap_or_else(|| "ahp-session:/nobody's".to_owned());
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let answer =
            self.say(connection, &request(request_id, "disposeSession", json!({ "channel": name })))?;
        ensure!(answer.is_ok(), "disposing of {name} was answered {answer:?}");
        ensure!(self.truth.session(&name).is_none(), "{name} was disposed of and is there");
        Ok(())
    }

    fn open_chat(&mut self, client: usize, session: u8, name: u8, how: (u8, u8, u8)) -> Result<()> {
        let (Some(connection), Some(session)) = (self.live(client), self.session(session)) else {
            return Ok(());
        };
        let name = CHATS[usize::from(name) % CHATS.len()];
        let (how, from, turn) = how;
        let from = self.chat(from).context("a session has a chat")?;
        let source = self.truth.chat(&from).context("a chat that is there")?;
        let running = source.active_turn.as_ref().map(|turn| turn.id.as_str());
        let over = || source.turns.iter().rev().map(|turn| turn.id.as_str());
        let turn = speech::pick(turn, over().chain(running));
        let is_over = over().any(|id| id == turn);
        let mut params = json!({ "channel": session, "chat": name });
        let ours = self.truth.session_of(&from) == Some(session.as_str());
        let fits = match how % 6 {
            0 | 1 => true,
            2 => {
                params["source"] = json!({ "kind": "fork", "chat": from, "turnId": turn });
                ours && is_over
            }
            3 => {
                params["source"] = json!({ "kind": "sideChat", "chat": from, "turnId": turn });
                ours && (is_over || running == Some(turn.as_str()))
            }
            4 => {
                params["workingDirectories"] = json!(["file:///tmp"]);
                false
            }
            _ => {
                params["source"] = json!({ "kind": "cutting", "chat": from, "turnId": turn });
                false
            }
        };
        let copied = source.turns.iter().position(|it| it.id == turn).map_or(0, |at| at + 1);
        let copied = source.turns[..if how % 6 == 2 { copied } else { 0 }].to_vec();
        let begins = how % 4 == 1;
        if begins {
            params["initialMessage"] = speech::message_of(how);
        }
        let failed = |state: &SessionState| state.lifecycle == SessionLifecycle::Failed;
        let good = fits
            && !self.truth.session(&session).is_some_and(failed)
            && !self.truth.channels.contains_key(name)
            && name.starts_with("ahp-chat:/")
            && !name.starts_with("ahp-chat://default/");
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let answer = self.say(connection, &request(request_id, "createChat", params.clone()))?;
        ensure!(answer.is_ok() == good, "{params} was answered {answer:?}");
        if good {
            let chat = self.truth.chat(name).context("no chat came into being")?;
            ensure!(chat.turns == copied, "{params} shows {:?}", chat.turns);
            ensure!(chat.active_turn.is_some() == begins, "{params} runs {:?}", chat.active_turn);
        }
        Ok(())
    }

    fn close_chat(&mut self, client: usize, chat: u8) -> Result<()> {
        let (Some(connection), Some(chat)) = (self.live(client), self.chat(chat)) else { return Ok(()) };
        let session = self.truth.session_of(&chat).and_then(|session| self.truth.session(session));
        let good = session.is_some_and(|session| session.chats.len() > 1);
        let request_id = self.clients[client].mirror.ask(Asked::Nothing);
        let params = json!({ "channel": chat });
        let answer = self.say(connection, &request(request_id, "disposeChat", params))?;
        ensure!(answer.is_ok() == good, "disposing of {chat} was answered {answer:?}");
        Ok(())
    }

    fn move_chat(&mut self, client: usize, chat: u8, to: u8, after: Option<u8>) -> Result<()> {
        let (Some(connection), Some(chat)) = (self.live(client), self.chat(chat)) else { return Ok(()) };
        let state = self.truth.chat(&chat).context("a chat that is there")?;
        let from = self.truth.session_of(&chat).context("a chat of no session")?.to_owned();
        let after = after.and_then(|after| self.chat(after));
        let failed = |session: &str| {
            self.truth.session(session).is_none_or(|it| it.lifecycle == SessionLifecycle::Failed)
        };
        let lists = |session: &str, chat: &String| {
            self.truth.session(session).is_some_and(|it| it.chats.iter().any(|row| row.resource == *chat))
        };
        let (destination, fits) = match (to % 4, self.session(to / 4)) {
            (0, _) => (json!({ "kind": "newSession" }), state.active_turn.is_none() && !failed(&from)),
            (_, None) => (json!({ "kind": "session", "session": "ahp-session:/nobody's" }), false),
            (_, Some(session)) => {
                let anchored = after.as_ref().is_none_or(|after| *after != chat && lists(&session, after));
                let joins = session == from || (state.active_turn.is_none() && !failed(&session));
                (json!({ "kind": "session", "session": session, "after": after }), anchored && joins)
            }
        };
        let good = fits && state.movable == Some(true);
        let notes = |session: &str, world: &Self| {
            let meta = world.truth.session(session).and_then(|it| it.meta.clone()).unwrap_or_default();
            let of_chat = meta.into_iter().map(|(name, by_chat)| (name, by_chat[&chat].clone()));
            of_chat.filter(|(_, note)| !note.is_null()).collect::<Vec<_>>()
        };
        let noted = notes(&from, self);
        let request_id = self.clients[client].mirror.ask(Asked::Move);
        let params = json!({ "channel": chat, "destination": destination });
        let answer = self.say(connection, &request(request_id, "moveChat", params.clone()))?;
        ensure!(answer.is_ok() == good, "{params} was answered {answer:?}");
        if let Ok(answer) = answer {
            let session = self.truth.session_of(&chat);
            ensure!(answer["result"]["session"].as_str() == session, "{params} was answered {answer}");
            ensure!(notes(session.unwrap_or_default(), self) == noted, "{params} left {noted:?} behind");
        }
        Ok(())
    }

    /// Asks for a change: it is sequenced once, or answered once, or its channel is not there.
    fn dispatch(&mut self, client: usize, channel: &str, action: Value, wish: &Wish) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let Client { id, last_seq, .. } = &mut self.clients[client];
        *last_seq += 1;
        let origin = (id.clone(), *last_seq);
        let params = json!({ "channel": channel, "clientSeq": origin.1, "action": &action });
        let seen = self.notify(connection, "dispatchAction", params)?;
        let there = self.truth.channels.contains_key(channel);
        let sequenced = seen.origins.iter().filter(|it| **it == origin).count();
        ensure!(sequenced == seen.origins.len(), "an origin of somebody else: {:?}", seen.origins);
        ensure!(
            sequenced + seen.acknowledged.len() == usize::from(there),
            "{wish:?} on {channel} was sequenced {sequenced} times and answered {:?}: {action}",
            seen.acknowledged
        );
        ensure!(seen.acknowledged.iter().all(|it| *it == action), "{:?} is not {action}", seen.acknowledged);
        Ok(())
    }

    fn talk_nonsense(&mut self, client: usize, which: u8) -> Result<()> {
        let Some(connection) = self.live(client) else { return Ok(()) };
        let (line, answers) = match which % 8 {
            0 => (r#"{"jsonrpc":"2.0","method":"ping"}"#, 0),
            1 => ("{", 1),
            2 => ("[1]", 1),
            3 => (r#"{"jsonrpc":"2.0","id":0,"method":"noSuchMethod"}"#, 1),
            4 => (r#"{"jsonrpc":"2.0","id":"x","result":null}"#, 0),
            5 => (r#"{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":5}}"#, 0),
            6 => (r#"{"jsonrpc":"2.0","id":null,"method":"subscribe","params":[]}"#, 1),
            _ => (r#"{"jsonrpc":"2.0","method":"unsubscribe"}"#, 0),
        };
        let before = self.truth.head;
        let seen = self.hear(connection, line.to_owned())?;
        ensure!(seen.answers.len() == answers, "{line} was answered {:?}", seen.answers);
        ensure!(self.truth.head == before, "{line} changed something");
        Ok(())
    }

    // Connections.

    fn open(&mut self, connection: ConnectionId) -> Result<()> {
        let merge_above = if self.merge { 0 } else { usize::MAX };
        let limits = OutboxLimits { merge_above, ..OutboxLimits::default() };
        let opened = Connection {
            outbox: Outbox::new(limits),
            subscribed: BTreeSet::new(),
            returns_to_root: false,
            client_id: None,
            sent: 0,
        };
        self.connections.insert(connection, opened);
        self.edges.open(connection, Some(Dialect::NEWEST));
        self.feed(Input::Opened { connection, default_directory: None }).map(|_| ())
    }

    /// The connection that a client has, or a new one.
    fn connect(&mut self, client: usize) -> Result<ConnectionId> {
        if let Some(connection) = self.clients[client].connection {
            return Ok(connection);
        }
        self.last_connection += 1;
        let connection = ConnectionId(self.last_connection);
        self.open(connection)?;
        self.clients[client].connection = Some(connection);
        Ok(connection)
    }

    fn live(&self, client: usize) -> Option<ConnectionId> {
        self.clients[client].connection
    }

    fn lose(&mut self, client: usize, heard: bool) -> Result<()> {
        let Some(connection) = self.clients[client].connection.take() else { return Ok(()) };
        self.clients[client].mirror.lose();
        if heard {
            self.connections.remove(&connection);
            self.feed(Input::Closed(connection))?;
        }
        Ok(())
    }

    fn reconnect(&mut self, client: usize, cursor: Cursor, leave_out: u8) -> Result<()> {
        let connection = self.connect(client)?;
        let head = self.truth.head;
        let Client { id, mirror, .. } = &mut self.clients[client];
        if let Cursor::Stranger(number) = cursor {
            *id = format!("stranger-{client}-{}-{number}", mirror.last_request);
        }
        let seen = match cursor {
            Cursor::Own => mirror.cursor,
            Cursor::Older(by) => mirror.cursor - i64::from(by),
            Cursor::Beyond(by) => head + 1 + i64::from(by),
            Cursor::Stranger(number) => i64::from(number),
        };
        let held: Vec<String> = mirror.channels.keys().cloned().collect();
        let left = usize::from(leave_out).checked_sub(1).and_then(|at| held.get(at)).cloned();
        let kept: Vec<String> = held.into_iter().filter(|channel| Some(channel) != left.as_ref()).collect();
        let request_id = mirror.ask(Asked::Reconnect);
        mirror.keep(&kept, request_id);
        let params = json!({ "clientId": id, "lastSeenServerSeq": seen, "subscriptions": kept });
        let answer = self.say(connection, &request(request_id, "reconnect", params))?;
        let result = answer.map_err(|code| anyhow::anyhow!("reconnect failed: {code}"))?;
        let Line::Reconnected(result) = lines::read(&result, Some(&Asked::Reconnect))? else {
            unreachable!("read as such")
        };
        if matches!(cursor, Cursor::Beyond(_) | Cursor::Stranger(_)) || seen < 0 {
            let snapshot = matches!(result, ReconnectResult::Snapshot(_));
            ensure!(snapshot, "a cursor that means nothing here was continued from: {cursor:?}");
        }
        if kept.iter().any(|channel| channel == ROOT_RESOURCE_URI) {
            self.begin_list(client)?;
        }
        Ok(())
    }

    /// A client reads what waits for it.
    fn read(&mut self, client: usize, bytes: usize) -> Result<()> {
        let Some(connection) = self.clients[client].connection else { return Ok(()) };
        let outbox = &mut self.connections.get_mut(&connection).context("no such connection")?.outbox;
        let now = self.begin + Duration::from_millis(self.monotonic_ms);
        if outbox.due().is_some_and(|due| due <= now) {
            outbox.release();
        }
        let lines = outbox.take(bytes);
        outbox.written(lines.iter().map(Bytes::len).sum());
        let mirror = &mut self.clients[client].mirror;
        for line in lines {
            match line.strip_prefix(GONE) {
                Some(gone) => {
                    let (request, channels) =
                        std::str::from_utf8(gone)?.split_once(' ').context("no mention")?;
                    mirror.hear_of_the_end(&channels.split(' ').collect::<Vec<_>>(), request.parse()?);
                }
                None => {
                    let said = || format!("client {client} reads {}", String::from_utf8_lossy(&line));
                    mirror.hear(&line).with_context(said)?;
                }
            }
        }
        Ok(())
    }

    /// Says a request; returns its answer or the code of its error.
    fn say(&mut self, connection: ConnectionId, request: &Value) -> Result<std::result::Result<Value, i64>> {
        if request["method"] == "reconnect" {
            // What follows from it at once is told by its answer, and what was missed besides behind that.
            let wanted = request["params"]["subscriptions"].as_array();
            let to_root = wanted.is_some_and(|wanted| wanted.contains(&json!(ROOT_RESOURCE_URI)));
            let connection = self.connections.get_mut(&connection).context("no such connection")?;
            connection.subscribed.clear();
            connection.returns_to_root = to_root;
        }
        let seen = self.hear(connection, request.to_string())?;
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.returns_to_root = false;
        }
        ensure!(seen.origins.is_empty(), "an origin without a dispatch: {:?}", seen.origins);
        let [(to, answer)] = &seen.answers[..] else {
            anyhow::bail!("{request} was answered {:?}", seen.answers)
        };
        ensure!(*to == connection && answer["id"] == request["id"], "{request} was answered {answer}");
        Ok(match answer["error"]["code"].as_i64() {
            Some(code) => Err(code),
            None => {
                self.note_subscriptions(connection, request, answer)?;
                Ok(answer.clone())
            }
        })
    }

    /// What the host must deliver from now on.
    fn note_subscriptions(
        &mut self,
        connection: ConnectionId,
        request: &Value,
        answer: &Value,
    ) -> Result<()> {
        let there = |uri: &Value| {
            uri.as_str().filter(|uri| self.truth.channels.contains_key(*uri)).map(str::to_owned)
        };
        let all =
            |uris: &Value| uris.as_array().into_iter().flatten().filter_map(there).collect::<BTreeSet<_>>();
        let params = &request["params"];
        let (fresh, begins) = match request["method"].as_str() {
            Some("initialize") => (all(&params["initialSubscriptions"]), true),
            Some("reconnect") => (all(&params["subscriptions"]), true),
            Some("subscribe") => (there(&params["channel"]).into_iter().collect(), false),
            _ => return Ok(()),
        };
        let connection = self.connections.get_mut(&connection).context("no such connection")?;
        if begins {
            connection.subscribed.clear();
            connection.client_id = params["clientId"].as_str().map(str::to_owned);
        }
        connection.subscribed.extend(fresh);
        ensure!(answer["result"].is_object(), "{answer}");
        Ok(())
    }

    fn notify(&mut self, connection: ConnectionId, method: &str, params: Value) -> Result<Seen> {
        if method == "unsubscribe" {
            let connection = self.connections.get_mut(&connection).context("no such connection")?;
            connection.subscribed.remove(params["channel"].as_str().unwrap_or_default());
        }
        let seen = self
            .hear(connection, json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string())?;
        ensure!(seen.answers.is_empty(), "{method} was answered {:?}", seen.answers);
        Ok(seen)
    }

    fn hear(&mut self, connection: ConnectionId, line: String) -> Result<Seen> {
        let mut fed = Vec::new();
        self.edges.up(connection, Incoming::parse(&line.into()), &mut fed);
        ensure!(fed.len() == 1, "a message of the newest version is more than one: {fed:?}");
        self.edges.take_records();
        let message = fed.remove(0);
        let named = Named::of(&message).directories.into_iter();
        let there =
            |uri: &str| if uri == "file:///nowhere" { Err("is not there".to_owned()) } else { Ok(()) };
        let findings = named.map(|uri| (uri.clone(), there(&uri))).collect();
        let recalled = Recalled { findings, ..Recalled::default() };
        self.feed(Input::Said { connection, message, recalled })
    }

    // Backends and timers.

    fn report(&mut self, index: u8, report: &Report) -> Result<()> {
        if self.bridged.is_some() {
            let busy = self.agents.values().any(Agent::is_busy);
            return if busy { self.hear_program(HEARD_FOR).map(|_| ()) } else { Ok(()) };
        }
        let keys: Vec<ChatKey> =
            self.agents.iter().rev().filter(|(_, agent)| agent.is_up()).map(|(&key, _)| key).collect();
        let Some(&key) = keys.get(usize::from(index) % keys.len().max(1)) else { return Ok(()) };
        match self.agents.get_mut(&key).and_then(|agent| agent.report(report)) {
            Some(event) => self.tell(key, event),
            None => Ok(()),
        }
    }

    /// Takes in the next report of a program, if one comes in this time.
    fn hear_program(&mut self, time: Duration) -> Result<bool> {
        let Some((key, event)) = self.bridged.as_mut().and_then(|bridged| bridged.hear(time)) else {
            return Ok(false);
        };
        self.agents.entry(key).or_default().reports(&event);
        self.tell(key, event).map(|()| true)
    }

    fn tell(&mut self, chat: ChatKey, event: Event) -> Result<()> {
        let seen = self.feed(Input::Agent(chat, event))?;
        ensure!(seen.origins.is_empty(), "an action of the host's has an origin: {:?}", seen.origins);
        Ok(())
    }

    fn fire_timers(&mut self) -> Result<()> {
        for timer in std::mem::take(&mut self.timers) {
            self.feed(Input::Timer(timer))?;
        }
        Ok(())
    }

    // What the host says.

    /// Feeds the host, checks everything that comes out, and passes it on.
    fn feed(&mut self, input: Input) -> Result<Seen> {
        let now = Now { unix_ms: self.unix_ms, monotonic_ms: self.monotonic_ms };
        let mut outputs = Vec::new();
        self.host.handle(now, &mut self.ids, input, &mut outputs);
        self.host.handle(now, &mut self.ids, Input::Save, &mut outputs);
        let mut seen = Seen::default();
        // What is to be kept is kept before anything goes out.
        for output in &outputs {
            if let Output::Record(record) = output {
                self.keep(record, &mut seen);
            }
        }
        for output in &outputs {
            self.take(output, &mut seen)?;
        }
        self.outputs.append(&mut outputs);
        for text in &self.shelved {
            text.leave_memory();
        }
        for (seq, (channel, _)) in &seen.sequenced {
            let subscribed = self.connections.iter().filter(|(_, it)| it.subscribed.contains(channel));
            let due: BTreeSet<_> = subscribed.map(|(&connection, _)| connection).collect();
            let delivered = seen.delivered.remove(seq).unwrap_or_default();
            ensure!(delivered == due, "{seq} on {channel} went to {delivered:?}, not to {due:?}");
        }
        ensure!(seen.delivered.is_empty(), "delivered but not recorded: {:?}", seen.delivered);
        self.drop_gone()?;
        for uri in std::mem::take(&mut seen.created) {
            let held = Held::new(self.observe(&uri)?);
            self.truth.add(uri, held);
        }
        Ok(seen)
    }

    fn keep(&mut self, record: &Record, seen: &mut Seen) {
        match record {
            Record::Session(row) => {
                let is_new = self.sessions.insert(row.key, row.uri.clone()).is_none();
                if is_new {
                    seen.created.extend([row.uri.clone(), annotations_uri(&row.uri)]);
                }
            }
            Record::SessionRemoved(key) => {
                let its_own = self.chats.values().filter(|(session, _)| session == key);
                self.gone.extend(its_own.map(|(_, uri)| uri.clone()));
                self.chats.retain(|_, (session, _)| session != key);
                let uri = self.sessions.remove(key);
                self.gone.extend(uri.into_iter().flat_map(|uri| [annotations_uri(&uri), uri]));
            }
            Record::Chat(row) => {
                let is_new = self.chats.insert(row.key, (row.session, row.uri.clone())).is_none();
                seen.created.extend(is_new.then(|| row.uri.clone()));
            }
            Record::ChatRemoved { key, .. } => self.gone.extend(self.chats.remove(key).map(|(_, uri)| uri)),
            Record::Turn(_, _, turn) => {
                let shelf = Shelf(turn.text().to_vec());
                turn.place().kept_at(Arc::new(shelf));
                self.shelved.push(turn.place().clone());
            }
            _ => {}
        }
        self.kept.keep(record.clone());
    }

    fn take(&mut self, output: &Output, seen: &mut Seen) -> Result<()> {
        match output {
            Output::Frame(connection, frame) => self.take_frame(*connection, frame, seen)?,
            Output::Record(Record::Action(_, action)) => {
                let message = lines::parse(&action.line)?;
                let envelope = lines::read_sequenced(&message["params"])?;
                ensure!(envelope.server_seq == action.server_seq, "two numbers: {message}");
                self.truth.act(&envelope)?;
                seen.sequenced.insert(action.server_seq, (envelope.channel, action.line.clone()));
                seen.origins.extend(envelope.origin.map(|origin| (origin.client_id, origin.client_seq)));
            }
            Output::Record(_) => {}
            Output::States(connection, id, state) => {
                let frame = state.clone().answer(id.clone());
                let mut told = Vec::new();
                self.edges.tell_states(*connection, id.clone(), (**state).clone(), &mut told);
                self.is_told_so(*connection, told, &frame)?;
                self.take_frame(*connection, &frame, seen)?;
            }
            Output::Turns(connection, turns) => {
                let frame = Frame::Answer(turns.clone().line());
                let mut told = Vec::new();
                self.edges.tell_turns(*connection, (**turns).clone(), &mut told);
                self.is_told_so(*connection, told, &frame)?;
                self.take_frame(*connection, &frame, seen)?;
            }
            Output::List(connection, id, page) => {
                let listed = self.kept.list(page);
                let result = listing(&listed);
                let frame = Frame::result(id.clone(), Method::ListSessions, result);
                self.take_frame(*connection, &frame, seen)?;
            }
            // What agents are is told by their conversations here.
            Output::Meet { .. } => {}
            Output::Closed(connection) => {
                self.edges.close(*connection);
                ensure!(!self.connections.contains_key(connection), "{connection:?} is still there");
            }
            Output::Resource(..) => ensure!(false, "no client asked for a resource"),
            Output::Pty(..) => ensure!(false, "no client has a terminal"),
            Output::Git(..) | Output::Watch(_) => ensure!(false, "git is not asked"),
            Output::Unwatch(_) | Output::BeginWatches(_) => ensure!(false, "no client watches files"),
            Output::Agent(chat, command) => {
                let agent = self.agents.entry(*chat).or_default();
                agent.obey(command).with_context(|| format!("{chat:?}"))?;
                if let Some(bridged) = &mut self.bridged {
                    bridged.carry_out(*chat, (**command).clone());
                }
            }
            Output::Timer(timer, after) => {
                ensure!(*after > Duration::ZERO, "a timer that is due at once");
                self.timers.push(*timer);
            }
            Output::Departed { .. } => ensure!(false, "no client has ended its input"),
            Output::Done { cut } => self.done.push(*cut),
        }
        Ok(())
    }

    /// What is written in pieces is what is written at once.
    fn is_told_so(&mut self, to: ConnectionId, told: Vec<Outgoing>, frame: &Frame) -> Result<()> {
        let in_pieces: Vec<Told> = told.into_iter().map(Outgoing::now).collect();
        let mut at_once = Vec::new();
        self.edges.down(to, frame, &mut at_once);
        ensure!(in_pieces == at_once, "{in_pieces:?} is not {at_once:?}");
        Ok(())
    }

    fn take_frame(&mut self, to: ConnectionId, frame: &Frame, seen: &mut Seen) -> Result<()> {
        let connection = self.connections.get_mut(&to).context("a frame for nobody")?;
        let mut told = Vec::new();
        self.edges.down(to, frame, &mut told);
        ensure!(told.len() == 1, "a frame of the newest version is more than one line: {told:?}");
        let Told { bytes: line, delta, delay } = told.remove(0);
        match frame {
            Frame::Action(action) | Frame::Delta(action, _) => {
                ensure!(
                    connection.sent < action.server_seq,
                    "{} after {}",
                    action.server_seq,
                    connection.sent
                );
                connection.sent = action.server_seq;
                let known = seen.sequenced.get(&action.server_seq).is_some_and(|(_, known)| *known == line);
                ensure!(known, "{} was sent before it was recorded, or as something else", action.server_seq);
                let first = seen.delivered.entry(action.server_seq).or_default().insert(to);
                ensure!(first, "{} was sent twice", action.server_seq);
                ensure!(delta == action.delta, "{} may be merged otherwise", action.server_seq);
            }
            Frame::Answer(_) => {
                let params = &lines::parse(&line)?["params"];
                ensure!(params["serverSeq"] == self.truth.head, "{params} while at {}", self.truth.head);
                if params["action"]["type"] == "chat/turnsLoaded" && params["rejectionReason"].is_null() {
                    let channel = params["channel"].as_str().unwrap_or_default();
                    ensure!(connection.subscribed.contains(channel), "loaded for nobody: {params}");
                    ensure!(seen.answers.is_empty() && params["origin"].is_null(), "{params}");
                    lines::read_sequenced(params)?;
                    self.loaded += 1;
                    connection.outbox.push(line, None);
                    return Ok(());
                }
                ensure!(params["origin"]["clientId"].as_str() == connection.client_id.as_deref(), "{params}");
                seen.acknowledged.push(params["action"].clone());
            }
            // For who has asked for it.
            Frame::Notification { method: "root/progress", .. } => {}
            Frame::Notification { .. } => {
                let has_returned =
                    connection.returns_to_root && seen.answers.iter().any(|(answered, _)| *answered == to);
                ensure!(
                    connection.subscribed.contains(ROOT_RESOURCE_URI) || has_returned,
                    "not subscribed to the root channel"
                );
            }
            Frame::Request { .. } => ensure!(false, "no client serves anything: {line:?}"),
            Frame::Result { .. } | Frame::Error { .. } => seen.answers.push((to, lines::parse(&line)?)),
        }
        let now = self.begin + Duration::from_millis(self.monotonic_ms);
        match (delta, delay) {
            (Some(part), Some(delay)) => connection.outbox.push_within(line, part, delay, now),
            _ => connection.outbox.push(line, delta),
        }
        Ok(())
    }

    /// Forgets sessions and chats that are gone, and mentions it to those who followed them.
    fn drop_gone(&mut self) -> Result<()> {
        let gone = std::mem::take(&mut self.gone);
        gone.iter().try_for_each(|channel| self.truth.remove(channel))?;
        for (&number, connection) in self.connections.iter_mut().filter(|_| !gone.is_empty()) {
            connection.subscribed.retain(|channel| !gone.contains(channel));
            if let Some(client) = self.clients.iter().find(|client| client.connection == Some(number)) {
                let mention = format!("{} {}", client.mirror.last_request, gone.join(" "));
                connection.outbox.push([GONE, mention.as_bytes()].concat().into(), None);
            }
        }
        Ok(())
    }

    /// A fresh snapshot.
    pub fn observe(&mut self, channel: &str) -> Result<Snapshot> {
        let subscribe = request(1, "subscribe", json!({ "channel": channel }));
        let answer = self.say(OBSERVER, &subscribe)?.map_err(|code| anyhow::anyhow!("{channel}: {code}"))?;
        self.notify(OBSERVER, "unsubscribe", json!({ "channel": channel }))?;
        match lines::read(&answer, Some(&Asked::Subscribe))? {
            Line::Subscribed(result) => result.snapshot.with_context(|| format!("no snapshot of {channel}")),
            _ => unreachable!("read as such"),
        }
    }

    /// The list of all sessions.
    fn observe_list(&mut self) -> Result<Vec<ahp_types::state::SessionSummary>> {
        let answer = self.say(OBSERVER, &request(1, "listSessions", json!({})))?;
        let answer = answer.map_err(|code| anyhow::anyhow!("no list: {code}"))?;
        match lines::read(&answer, Some(&Asked::List))? {
            Line::Listed(result) => Ok(result.items),
            _ => unreachable!("read as such"),
        }
    }

    // What must hold.

    /// Everybody reads everything, and all mirrors are compared with fresh snapshots.
    fn compare(&mut self) -> Result<()> {
        self.feed(Input::Settled)?;
        self.fire_timers()?;
        // And what waits to be merged need not wait any longer.
        self.connections.values_mut().for_each(|connection| connection.outbox.release());
        for client in 0..self.clients.len() {
            self.read(client, usize::MAX)?;
        }
        let channels: Vec<String> = self.truth.channels.keys().cloned().collect();
        let mut fresh = BTreeMap::new();
        for channel in channels {
            let snapshot = self.observe(&channel)?;
            fresh.insert(channel, snapshot);
        }
        checks::mirror("the records", self.truth.channels.iter(), &fresh)?;
        checks::derived(&fresh)?;
        for (key, agent) in &self.agents {
            // That of a chat which is gone works nowhere.
            let Some((_, chat)) = self.chats.get(key) else { continue };
            checks::works_where_it_should(agent.works_in(), chat, &fresh)?;
        }
        let list = self.observe_list()?;
        checks::list(&list, &fresh)?;
        for client in &self.clients {
            if client.connection.is_none() {
                continue;
            }
            client.mirror.check_all_answered().with_context(|| client.id.clone())?;
            checks::mirror(&client.id, client.mirror.channels.iter(), &fresh)?;
            if let Some(summaries) = &client.mirror.summaries {
                checks::summaries(summaries, &list).with_context(|| client.id.clone())?;
            }
            let connection = client.connection.and_then(|connection| self.connections.get(&connection));
            let subscribed = connection.context("no such connection")?.subscribed.iter();
            let held = client.mirror.channels.keys();
            ensure!(subscribed.eq(held), "{} holds other channels than it follows", client.id);
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<()> {
        self.compare()?;
        match end {
            End::Finish => {}
            End::Drain | End::DrainTooLong => {
                self.feed(Input::Shutdown(Shutdown::Drain(Duration::from_secs(60))))?;
                checks::nothing_waits_for_anybody(&self.truth)?;
            }
            End::Cancel => {
                self.feed(Input::Shutdown(Shutdown::Cancel))?;
            }
        }
        if matches!(end, End::DrainTooLong) {
            self.fire_timers()?;
        }
        if matches!(end, End::Cancel | End::DrainTooLong) {
            self.truth.check_all_ended()?;
        }
        // The drain's time limit stays where it is: every agent finishes before.
        self.timers.retain(|timer| *timer != Timer::Drain);
        self.finish_agents()?;
        self.truth.check_all_ended()?;
        ensure!(self.host.running_turns() == 0, "{} turns are counted as running", self.host.running_turns());
        let ends = usize::from(!matches!(end, End::Finish));
        ensure!(self.done.len() == ends, "the end was said {} times", self.done.len());
        self.compare()
    }

    /// Every backend does what it still owes.
    fn finish_agents(&mut self) -> Result<()> {
        while self.bridged.is_some() && self.agents.values().any(Agent::is_busy) {
            ensure!(self.hear_program(HEARD_AT_LAST_FOR)?, "nothing is heard of {:?}", self.agents);
        }
        for _ in 0..10_000 {
            let busy = self.agents.iter_mut().find_map(|(&key, agent)| Some((key, agent.finish()?)));
            match busy {
                Some((key, event)) => self.tell(key, event)?,
                None => return self.agents.values().try_for_each(Agent::check_idle),
            }
        }
        anyhow::bail!("the agents are never done")
    }
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}
