//! The loop in memory: clients without processes, and reads from the store that come when a test
//! lets them.
//!
//! Owns: what several connections see of each other, and every order in which what is read can
//! come.
//! Never: waits for a time to pass.

mod ahead;
mod asked;
mod departing;
mod idle;
mod kinds;
mod large;
mod listing;
mod returning;
mod sharing;
mod stalling;
mod syncing;
mod texts;
mod versions;

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{json, Value};
use tempfile::TempDir;

use super::*;
use crate::backend::script::Script;
use crate::backend::Backend;
use crate::codec::InputLine;
use crate::host::effects::{ClientMcp, ConnectionId, Shutdown};
use crate::host::idle::SESSION_BYTES;
use crate::io::link::{ClientLines, ConnectionSettings, LineSink, OnClose, Receipts, WriteOutcome};
use crate::io::outbox::OutboxLimits;
use crate::io::readers::{FinishedRead, ManualReaders, ReadJob};
use crate::store::{StatePlace, StoreOptions};
use crate::wire::uris::default_chat_of;

/// After this time a test has hung. Not a measure of speed.
const HUNG: Duration = Duration::from_secs(120);

/// Memory budget of idle sessions in these tests, in bytes.
const MEMORY_BUDGET: usize = 1 << 20;

/// Number of sessions that exceeds the budget, so that idle ones are evicted.
const MANY: usize = MEMORY_BUDGET / SESSION_BYTES + 32;

const SESSION: &str = "ahp-session:/s";

/// Takes every chunk at once, or none at all.
struct Pipe {
    chunks: mpsc::UnboundedSender<Vec<Bytes>>,
    is_stuck: bool,
}

impl LineSink for Pipe {
    fn write(&mut self, chunk: Vec<Bytes>) -> usize {
        let bytes = chunk.iter().map(Bytes::len).sum();
        // A test that has ended reads no more output.
        self.chunks.send(chunk).unwrap_or_default();
        if self.is_stuck {
            0
        } else {
            bytes
        }
    }
}

/// A client, with the output that it has not read yet.
struct Client {
    lines: Option<ClientLines>,
    id: ConnectionId,
    chunks: mpsc::UnboundedReceiver<Vec<Bytes>>,
    /// The beginning of a line.
    unread: Vec<u8>,
    receipts: Option<Receipts>,
    last_request: u64,
}

impl Client {
    fn sends(&self, messages: &[Value]) {
        let lines = messages.iter().map(|message| {
            let mut message = message.clone();
            message["jsonrpc"] = "2.0".into();
            InputLine::Complete(message.to_string().into())
        });
        let sent = self.lines.as_ref().expect("the client is there").try_send(Ok(lines.collect()));
        assert!(sent, "the loop hears");
    }

    /// Says a request; returns its id.
    fn asks(&mut self, method: &str, params: Value) -> u64 {
        self.last_request += 1;
        self.sends(&[json!({ "id": self.last_request, "method": method, "params": params })]);
        self.last_request
    }

    fn dispatches(&self, channel: &str, action: Value) {
        let params = json!({ "channel": channel, "clientSeq": 1, "action": action });
        self.sends(&[json!({ "method": "dispatchAction", "params": params })]);
    }

    /// Returns the messages that the client received since it looked last.
    fn looks(&mut self) -> Vec<Value> {
        while let Ok(chunk) = self.chunks.try_recv() {
            self.unread.extend_from_slice(&chunk.concat());
        }
        // A line may come in pieces.
        let end = self.unread.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = self.unread.drain(..end).collect::<Vec<u8>>();
        serde_json::Deserializer::from_slice(&lines).into_iter().map(Result::unwrap).collect()
    }

    /// Returns the answer to this request, among the messages since the last call.
    fn answer_to(&mut self, id: u64) -> Value {
        self.looks().into_iter().find(|message| message["id"] == id).expect("an answer")
    }

    /// The answers that it was given since it looked last, by the ids of their requests.
    fn answers(&mut self) -> Vec<u64> {
        self.looks().iter().filter_map(|message| message["id"].as_u64()).collect()
    }
}

/// Returns the types of the actions among these messages.
fn actions(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["params"]["action"]["type"].as_str()).collect()
}

fn terms(on_eof: Shutdown) -> ConnectionSettings {
    let returns_within = Some(Duration::from_secs(1000));
    let line_bytes_max = 1 << 20;
    ConnectionSettings {
        default_directory: None,
        line_bytes_max,
        on_eof,
        assume_version: None,
        returns_within,
        stall_limit: None,
    }
}

struct World {
    sidecar: Sidecar,
    events: Events,
    /// Set when reads come by hand.
    by_hand: Option<ManualReaders>,
}

impl World {
    fn with(opened: OpenedPersistence, outbox: OutboxLimits) -> Self {
        Self::with_agent(opened, outbox, Box::new(Script))
    }

    fn with_agent(opened: OpenedPersistence, outbox: OutboxLimits, agent: Box<dyn Backend>) -> Self {
        let options = RunOptions {
            has_pipes: false,
            listening: None,
            terms: terms(Shutdown::Cancel),
            watch_parent: false,
            deterministic: false,
            preview: None,
            memory_budget: MEMORY_BUDGET,
            outbox,
            write_roots: Vec::new(),
            own_files: Vec::new(),
            git_filters: Vec::new(),
            limits: Default::default(),
            state: StatePlace::Memory,
            state_folder: None,
            store: StoreOptions::default(),
            log_exports: Default::default(),
            guard: None,
        };
        let ((_, lost), (_, join_requests)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let offered = Offered {
            backends: vec![agent],
            servers: Vec::new(),
            client_mcp: ClientMcp::None,
            automations: None,
            stays: false,
        };
        let (sidecar, events) = Sidecar::new(options, offered, opened, lost, join_requests);
        Self { sidecar, events, by_hand: None }
    }

    /// With everything in memory.
    fn in_memory() -> Self {
        let mut world = Self::with(Persistence::in_memory(), OutboxLimits::default());
        world.sidecar.begin().unwrap();
        world
    }

    /// On this folder; what is read from it comes by hand.
    async fn on(folder: &Path) -> Self {
        let opened = Persistence::open(folder, StoreOptions::default()).unwrap();
        let mut world = Self::with(opened, OutboxLimits::default());
        world.sidecar.end_interrupted_turns(&mut world.events).await;
        world.by_hand = world.sidecar.readers.as_mut().map(Readers::by_hand);
        world
    }

    fn open(&mut self, is_stuck: bool) -> Client {
        self.open_with(is_stuck, Shutdown::Cancel)
    }

    /// A connection whose turns get this when its client can say nothing any more.
    fn open_with(&mut self, is_stuck: bool, on_eof: Shutdown) -> Client {
        let (sender, chunks) = mpsc::unbounded_channel();
        let mut receipts = None;
        let pipe = |made: Receipts| -> io::Result<Pipe> {
            receipts = Some(made);
            Ok(Pipe { chunks: sender, is_stuck })
        };
        let lines = self.sidecar.acceptor.open(OnClose::Close, terms(on_eof), pipe).unwrap();
        let id = lines.connection();
        Client { lines: Some(lines), id, chunks, unread: Vec::new(), receipts, last_request: 0 }
    }

    /// A client that has been welcomed.
    async fn client(&mut self, name: &str, version: &str) -> Client {
        let mut client = self.open(false);
        client.asks("initialize", json!({ "clientId": name, "protocolVersions": [version] }));
        self.until(|_| client.looks().iter().any(|message| message["result"]["serverSeq"].is_u64())).await;
        client
    }

    /// Lets the loop run until this is so.
    async fn until(&mut self, mut is_so: impl FnMut(&Sidecar) -> bool) {
        let run = async {
            while !is_so(&self.sidecar) {
                let exit = self.sidecar.turn(&mut self.events).await.unwrap();
                assert_eq!(exit, None, "the loop goes on");
            }
        };
        tokio::time::timeout(HUNG, run).await.expect("the loop hangs");
    }

    /// Lets everything happen that can happen now.
    async fn settle(&mut self) {
        let mut turns_without_event = 0;
        while turns_without_event < 20 {
            self.until(|sidecar| sidecar.persistence.is_settled()).await;
            tokio::select! {
                biased;
                exit = self.sidecar.turn(&mut self.events) => {
                    assert_eq!(exit.unwrap(), None, "the loop goes on");
                    turns_without_event = 0;
                }
                () = tokio::task::yield_now() => turns_without_event += 1,
            }
        }
    }

    /// Lets everything happen but what the store tells of commits, which is put aside; what is to
    /// be read is read.
    async fn go_on_without_store(&mut self, commits: &mut Vec<LoopEvent>) {
        for _ in 0..20 {
            while let Some(event) = self.events.now(Interests { reports: true, ..Interests::default() }).await
            {
                match event {
                    LoopEvent::Committed(_) => commits.push(event),
                    event => assert_eq!(self.sidecar.take_in(event).unwrap(), None, "the loop goes on"),
                }
            }
            self.sidecar.receive_from_clients(&mut self.events).await.unwrap();
            self.sidecar.settle();
            while let Some(job) = self.next_job() {
                self.deliver(self.read(job));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Has a client's request answered; what is read for it is read at once.
    async fn ask(&mut self, client: &mut Client, method: &str, params: Value) -> Value {
        let id = client.asks(method, params);
        loop {
            self.settle().await;
            let messages = client.looks();
            if let Some(answer) = messages.into_iter().find(|message| message["id"] == id) {
                return answer;
            }
            let is_written = |sidecar: &Sidecar| {
                sidecar.links.iter().all(|link| link.id != client.id || link.writing.is_none())
            };
            if !is_written(&self.sidecar) {
                self.until(is_written).await;
                continue;
            }
            let job = self.next_job().expect("an answer, or something to read for it");
            let read = self.read(job);
            self.deliver(read);
        }
    }

    fn next_job(&self) -> Option<ReadJob> {
        self.by_hand.as_ref().and_then(ManualReaders::next)
    }

    fn read(&self, job: ReadJob) -> (ConnectionId, FinishedRead) {
        self.by_hand.as_ref().unwrap().read(job)
    }

    fn read_next(&self) -> (ConnectionId, FinishedRead) {
        self.read(self.next_job().expect("a read"))
    }

    fn deliver(&self, read: (ConnectionId, FinishedRead)) {
        self.by_hand.as_ref().unwrap().deliver(read);
    }

    /// Delivers what was read, and lets everything happen that can happen then.
    async fn deliver_late(&mut self, read: (ConnectionId, FinishedRead)) {
        self.deliver(read);
        self.settle().await;
    }

    async fn deliver_next(&mut self) {
        self.deliver_late(self.read_next()).await;
    }

    /// Makes so many sessions that idle ones are evicted.
    async fn make_many(&mut self, client: &mut Client, name: &str) {
        for number in 0..MANY {
            let answer = self.ask(
                client,
                "createSession",
                json!({ "channel": format!("ahp-session:/{name}-{number}") }),
            );
            assert_eq!(answer.await["result"], Value::Null);
        }
    }

    /// A world with a session that is not in memory, and a client that did not subscribe to it.
    async fn with_a_forgotten_session(folder: &Path) -> (Self, Client) {
        let mut world = Self::on(folder).await;
        let mut maker = world.client("maker", "1.0.0").await;
        world.ask(&mut maker, "createSession", json!({ "channel": SESSION })).await;
        world.make_many(&mut maker, "other").await;
        assert!(!world.remembers(SESSION), "the session is still in memory");
        (world, maker)
    }

    fn remembers(&self, uri: &str) -> bool {
        let mut named = crate::wire::references::MessageReferences::default();
        named.channels.insert(uri.to_owned());
        self.sidecar.host.absent_channels(&named).is_empty()
    }
}

fn turn(id: &str, text: &str) -> Value {
    let message = json!({ "text": text, "origin": { "kind": "user" } });
    json!({ "type": "chat/turnStarted", "turnId": id, "message": message })
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The texts of the messages of a chat's turns, in a snapshot that answers a `subscribe`.
fn messages(answer: &Value) -> Vec<&str> {
    let turns = answer["result"]["snapshot"]["state"]["turns"].as_array().expect("a chat's state");
    turns.iter().filter_map(|turn| turn["message"]["text"].as_str()).collect()
}

#[tokio::test]
async fn two_connections_of_different_versions_share_a_session() {
    let mut world = World::in_memory();
    let mut new = world.client("new", "1.0.0").await;
    let mut old = world.client("old", "0.3.0").await;
    world.ask(&mut new, "createSession", json!({ "channel": SESSION })).await;
    world.ask(&mut new, "subscribe", json!({ "channel": default_chat_of(SESSION) })).await;
    world.ask(&mut old, "subscribe", json!({ "channel": SESSION })).await;
    new.dispatches(&default_chat_of(SESSION), turn("t", "/say both hear this"));
    world.settle().await;
    let (new, old) = (new.looks(), old.looks());
    assert!(actions(&new).contains(&"chat/turnComplete"), "{new:?}");
    assert!(actions(&old).contains(&"session/turnComplete"), "{old:?}");
    for messages in [&new, &old] {
        assert!(
            messages.iter().any(|message| message.to_string().contains("both hear this")),
            "{messages:?}"
        );
    }
}

#[tokio::test]
async fn one_closes_while_the_other_streams() {
    let mut world = World::in_memory();
    let mut stays = world.client("stays", "1.0.0").await;
    let mut leaves = world.client("leaves", "0.4.0").await;
    let chat = default_chat_of(SESSION);
    world.ask(&mut stays, "createSession", json!({ "channel": SESSION })).await;
    for client in [&mut stays, &mut leaves] {
        world.ask(client, "subscribe", json!({ "channel": chat })).await;
    }
    stays.dispatches(&chat, turn("t", "/stream 3000 10"));
    world.until(|_| leaves.looks().len() > 10).await;
    leaves.lines = None;
    world.settle().await;
    let messages = stays.looks();
    assert_eq!(actions(&messages).last(), Some(&"chat/turnComplete"));
    let streamed: usize = messages
        .iter()
        .filter_map(|message| message["params"]["action"]["content"].as_str())
        .map(str::len)
        .sum();
    assert_eq!(streamed, 3000 * 10);
    leaves.looks();
    assert!(leaves.chunks.is_closed(), "the connection is still there");
    assert_eq!(world.sidecar.links.iter().map(|link| link.id).collect::<Vec<_>>(), [stays.id]);
}

#[tokio::test]
async fn a_connection_whose_writer_fails_is_lost_alone() {
    let mut world = World::in_memory();
    let mut stays = world.client("stays", "1.0.0").await;
    let stuck = world.open(true);
    stuck.sends(&[json!({ "id": 1, "method": "initialize", "params":
        { "clientId": "stuck", "protocolVersions": ["1.0.0"], "initialSubscriptions": ["ahp-root://"] } })]);
    world.settle().await;
    stuck.receipts.as_ref().unwrap().send(WriteOutcome::Gone);
    world.settle().await;
    assert_eq!(world.sidecar.links.iter().map(|link| link.id).collect::<Vec<_>>(), [stays.id]);
    world.ask(&mut stays, "createSession", json!({ "channel": SESSION })).await;
}

#[tokio::test]
async fn what_was_asked_before_the_end_of_input_is_answered() {
    let folder = folder();
    let mut world = World::on(folder.path()).await;
    let mut client = world.client("me", "1.0.0").await;
    client.sends(&[
        json!({ "id": 7, "method": "createSession", "params": { "channel": SESSION } }),
        json!({ "id": 8, "method": "resourceList", "params": { "channel": "ahp-root://", "uri": "file:///" } }),
        json!({ "id": 9, "method": "listSessions", "params": { "channel": "ahp-root://" } }),
    ]);
    client.lines = None;
    let mut answers = Vec::new();
    while !client.chunks.is_closed() {
        world.settle().await;
        while let Some(job) = world.next_job() {
            let read = world.read(job);
            world.deliver(read);
        }
        answers.extend(client.answers());
    }
    answers.sort_unstable();
    assert_eq!(answers, [7, 8, 9]);
    assert_eq!(world.sidecar.links.iter().count(), 0);
}

#[tokio::test]
async fn client_that_does_not_read_is_not_served_and_delays_no_other() {
    let outbox = OutboxLimits { clients_above: 1000, ..OutboxLimits::default() };
    let mut world = World::with(Persistence::in_memory(), outbox);
    world.sidecar.begin().unwrap();
    let mut reads = world.client("reads", "1.0.0").await;
    let mut stuck = world.open(true);
    let pings: Vec<Value> = (1..=5000).map(|id| json!({ "id": id, "method": "ping" })).collect();
    stuck.sends(&pings);
    world.settle().await;
    world.ask(&mut reads, "ping", json!({})).await;
    let waiting = world.sidecar.links.get_mut(stuck.id).expect("it is there").outbox.bytes();
    assert!(waiting < 20_000, "{waiting} bytes wait for it");
    let mut answered = stuck.answers().len();
    // It reads on.
    while answered < 5000 {
        stuck.receipts.as_ref().unwrap().send(WriteOutcome::Bytes(1 << 20));
        world.settle().await;
        let more = stuck.answers().len();
        assert!(more > 0, "nothing is heard behind {answered}");
        answered += more;
    }
}

#[tokio::test]
async fn clients_and_agents_are_served_while_the_store_is_read_for_another_client() {
    let folder = folder();
    let (mut world, mut other) = World::with_a_forgotten_session(folder.path()).await;
    let mut waits = world.client("waits", "1.0.0").await;
    let chat = default_chat_of("ahp-session:/other-90");
    world.ask(&mut other, "subscribe", json!({ "channel": chat })).await;
    let subscribes = waits.asks("subscribe", json!({ "channel": SESSION }));
    let pings = waits.asks("ping", json!({}));
    world.settle().await;
    assert!(waits.answers().is_empty(), "the messages of one connection stay in order");
    world.ask(&mut other, "ping", json!({})).await;
    other.dispatches(&chat, turn("t", "/say on it goes"));
    world.settle().await;
    assert!(actions(&other.looks()).contains(&"chat/turnComplete"));
    assert!(waits.answers().is_empty());
    world.deliver_next().await;
    assert_eq!(waits.answers(), [subscribes, pings]);
}

#[tokio::test]
async fn what_others_have_brought_back_meanwhile_counts() {
    let folder = folder();
    let (mut world, mut other) = World::with_a_forgotten_session(folder.path()).await;
    let mut waits = world.client("waits", "1.0.0").await;
    let chat = default_chat_of(SESSION);
    let id = waits.asks("subscribe", json!({ "channel": chat }));
    world.settle().await;
    let old = world.read_next();
    world.ask(&mut other, "subscribe", json!({ "channel": chat })).await;
    other.dispatches(&chat, turn("t", "new"));
    world.settle().await;
    world.deliver_late(old).await;
    let answer = waits.answer_to(id);
    assert_eq!(messages(&answer), ["new"]);
}

#[tokio::test]
async fn what_has_changed_and_was_let_go_meanwhile_is_read_again() {
    let folder = folder();
    let (mut world, mut other) = World::with_a_forgotten_session(folder.path()).await;
    let mut waits = world.client("waits", "1.0.0").await;
    let chat = default_chat_of(SESSION);
    let id = waits.asks("subscribe", json!({ "channel": chat }));
    world.settle().await;
    let old = world.read_next();
    world.ask(&mut other, "subscribe", json!({ "channel": chat })).await;
    other.dispatches(&chat, turn("t", "new"));
    world.settle().await;
    other.sends(&[json!({ "method": "unsubscribe", "params": { "channel": chat } })]);
    world.make_many(&mut other, "more").await;
    assert!(!world.remembers(&chat), "the chat is still in memory");
    world.deliver_late(old).await;
    assert!(waits.answers().is_empty(), "what was read is old");
    world.deliver_next().await;
    let answer = waits.answer_to(id);
    assert_eq!(messages(&answer), ["new"]);
}

#[tokio::test]
async fn what_the_store_does_not_know_yet_is_read_when_it_does() {
    let chat = default_chat_of(SESSION);
    let named = json!({ "type": "session/titleChanged", "title": "new" });
    let draft = json!({ "text": "new", "origin": { "kind": "user" } });
    let drafted = json!({ "type": "chat/draftChanged", "draft": draft });
    let (of_session, of_chat) = ((SESSION, &named, "/title"), (chat.as_str(), &drafted, "/draft/text"));
    // A session is read as a whole, by whichever of its channels it is named.
    for ((changed, action, place), asked) in
        [(of_session, SESSION), (of_session, &chat), (of_chat, SESSION), (of_chat, &chat)]
    {
        let folder = folder();
        let mut world = World::on(folder.path()).await;
        let mut maker = world.client("maker", "1.0.0").await;
        let mut waits = world.client("waits", "1.0.0").await;
        let mut commits = Vec::new();
        world.ask(&mut maker, "createSession", json!({ "channel": SESSION })).await;
        world.make_many(&mut maker, "other").await;
        // None of the others has left memory with something that is not committed.
        world.make_many(&mut maker, "more").await;
        maker.dispatches(changed, action.clone());
        world.go_on_without_store(&mut commits).await;
        let mut others = 0..MANY;
        while world.remembers(SESSION) {
            let number = others.next().expect("the session leaves memory");
            maker.dispatches(&format!("ahp-session:/other-{number}"), named.clone());
            world.go_on_without_store(&mut commits).await;
        }
        let id = waits.asks("subscribe", json!({ "channel": asked }));
        world.go_on_without_store(&mut commits).await;
        assert!(waits.answers().is_empty(), "what the store has of {changed} is old: {asked} was named");
        for event in commits {
            world.sidecar.take_in(event).unwrap();
        }
        world.settle().await;
        world.deliver_next().await;
        assert!(waits.answer_to(id)["error"].is_null());
        let answer = world.ask(&mut waits, "subscribe", json!({ "channel": changed })).await;
        let state = &answer["result"]["snapshot"]["state"];
        assert_eq!(state.pointer(place), Some(&json!("new")), "{asked}: {answer}");
    }
}

#[tokio::test]
async fn what_was_disposed_of_meanwhile_does_not_come_back() {
    let folder = folder();
    let (mut world, mut other) = World::with_a_forgotten_session(folder.path()).await;
    let mut waits = world.client("waits", "1.0.0").await;
    let id = waits.asks("subscribe", json!({ "channel": SESSION }));
    world.settle().await;
    let old = world.read_next();
    world.ask(&mut other, "disposeSession", json!({ "channel": SESSION })).await;
    world.deliver_late(old).await;
    let answer = waits.answer_to(id);
    assert_eq!(answer["error"]["code"], -32001, "{answer}");
    assert!(!world.remembers(SESSION));
}

#[tokio::test]
async fn what_is_made_anew_meanwhile_is_what_a_message_is_about() {
    let folder = folder();
    let mut world = World::on(folder.path()).await;
    let mut other = world.client("other", "1.0.0").await;
    let mut waits = world.client("waits", "1.0.0").await;
    let id = waits.asks("subscribe", json!({ "channel": SESSION }));
    world.settle().await;
    let nothing = world.read_next();
    world.ask(&mut other, "createSession", json!({ "channel": SESSION })).await;
    world.make_many(&mut other, "more").await;
    assert!(!world.remembers(SESSION), "the session is still in memory");
    world.deliver_late(nothing).await;
    world.deliver_next().await;
    let answer = waits.answer_to(id);
    assert_eq!(answer["result"]["snapshot"]["resource"], SESSION, "{answer}");
}

#[tokio::test]
async fn a_client_is_lost_while_something_is_read_for_it() {
    let folder = folder();
    let (mut world, mut other) = World::with_a_forgotten_session(folder.path()).await;
    let mut waits = world.client("waits", "1.0.0").await;
    waits.asks("subscribe", json!({ "channel": SESSION }));
    world.settle().await;
    let late = world.read_next();
    waits.receipts.as_ref().unwrap().send(WriteOutcome::Gone);
    world.settle().await;
    world.deliver_late(late).await;
    assert!(!world.remembers(SESSION));
    assert_eq!(world.sidecar.links.iter().count(), 2 - 1);
    world.ask(&mut other, "ping", json!({})).await;
}

/// Returns the answer to a client that reconnects after a restart. While the actions that it missed
/// are read, another client runs this script in the session.
async fn comes_back(meanwhile: Option<&str>) -> Value {
    let folder = folder();
    let chat = default_chat_of(SESSION);
    {
        let mut world = World::on(folder.path()).await;
        let mut client = world.client("me", "1.0.0").await;
        world.ask(&mut client, "createSession", json!({ "channel": SESSION })).await;
        world.ask(&mut client, "subscribe", json!({ "channel": chat })).await;
        client.dispatches(&chat, turn("t1", "/say before"));
        world.settle().await;
    }
    let mut world = World::on(folder.path()).await;
    let mut other = world.client("other", "1.0.0").await;
    let mut back = world.open(false);
    // Its cursor is the number that the session was made with.
    let params = json!({ "clientId": "me", "lastSeenServerSeq": 1, "subscriptions": [chat] });
    let id = back.asks("reconnect", params);
    world.settle().await;
    let read = world.read_next();
    if let Some(script) = meanwhile {
        world.ask(&mut other, "subscribe", json!({ "channel": chat })).await;
        other.dispatches(&chat, turn("t2", script));
        world.until(|_| actions(&other.looks()).contains(&"chat/turnComplete")).await;
    }
    world.deliver_late(read).await;
    back.looks().into_iter().find(|message| message["id"] == id).expect("an answer")
}

#[tokio::test]
async fn a_replay_has_what_was_read_and_what_has_happened_since() {
    for (meanwhile, turns) in [(None, vec!["t1"]), (Some("/say after"), vec!["t1", "t2"])] {
        let answer = comes_back(meanwhile).await;
        let replayed = answer["result"]["actions"].as_array().expect("a replay");
        let starts = replayed.iter().filter(|envelope| envelope["action"]["type"] == "chat/turnStarted");
        let starts: Vec<&str> = starts.filter_map(|envelope| envelope["action"]["turnId"].as_str()).collect();
        assert_eq!(starts, turns);
        let seqs: Vec<u64> = replayed.iter().map(|it| it["serverSeq"].as_u64().unwrap()).collect();
        assert!(seqs.windows(2).all(|two| two[0] < two[1]), "{seqs:?}");
    }
}

#[tokio::test]
async fn who_is_left_too_far_behind_while_it_waits_gets_states() {
    let more_than_are_remembered = format!("/stream {} 1", ReplayWindow::default().actions_max + 10);
    let answer = comes_back(Some(&more_than_are_remembered)).await;
    assert_eq!(answer["result"]["type"], "snapshot", "{answer}");
    let turns = answer["result"]["snapshots"][0]["state"]["turns"].as_array().expect("a chat's state");
    assert_eq!(turns.len(), 2);
}

#[tokio::test]
async fn a_client_of_an_old_version_comes_back_to_a_session_that_it_calls_otherwise() {
    let folder = folder();
    let old = json!({ "clientId": "old", "protocolVersion": "0.1.0", "protocolVersions": ["0.1.0"] });
    {
        let mut world = World::on(folder.path()).await;
        let mut client = world.open(false);
        world.ask(&mut client, "initialize", old).await;
        let made = world.ask(&mut client, "createSession", json!({ "session": "script:/s" })).await;
        assert!(made.get("error").is_none(), "{made}");
        world.settle().await;
    }
    let mut world = World::on(folder.path()).await;
    let mut client = world.open(false);
    let params = json!({ "clientId": "old", "lastSeenServerSeq": 0, "subscriptions": ["script:/s"] });
    let answer = world.ask(&mut client, "reconnect", params).await;
    assert!(world.remembers(SESSION), "{answer}");
    assert_eq!(answer["result"]["snapshots"][0]["resource"], "script:/s", "{answer}");
}
