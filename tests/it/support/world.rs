//! A host in memory, the clients that speak with it, and what it has put out.
//!
//! Owns: a core, what it has put out since that was last taken, and the numbers of requests and of
//! dispatched actions; what tests of the core say all alike: how a client arrives, asks and
//! dispatches, and what an agent or a program reports.
//! Never: judges what was put out, except that requests are answered and that what a test begins
//! with is not refused. Never looks at a disk: every directory that a message names is there.

use std::time::Duration;

use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Frame, Input, Output, Prefetched, PtyEvent, RunId, TerminalKey,
    Timer, TurnEvent,
};
use ahp_sidecar::wire::errors::RpcError;
use ahp_sidecar::wire::references::MessageReferences;
use ahp_sidecar::wire::rpc::{Incoming, RequestId};
use serde_json::{json, Value};

use super::core::{opened, Core, SESSION};

/// The channel of the root state.
pub const ROOT: &str = "ahp-root://";

/// Builds a message of a user.
pub fn message(text: &str) -> Value {
    json!({ "text": text, "origin": { "kind": "user" } })
}

#[derive(Debug)]
pub struct World {
    pub core: Core,
    /// Outputs since they were last taken.
    pub outputs: Vec<Output>,
    saves: bool,
    second: u64,
    requests: u64,
    client_seq: u64,
}

impl World {
    /// One in which nothing is saved until a test says so.
    pub fn new(core: Core) -> Self {
        Self { core, outputs: Vec::new(), saves: false, second: 0, requests: 0, client_seq: 0 }
    }

    /// One in which what has changed is saved after each input.
    pub fn saving(core: Core) -> Self {
        Self { saves: true, ..Self::new(core) }
    }

    /// From now on it is so many seconds after the beginning.
    pub fn at(&mut self, second: u64) -> &mut Self {
        self.second = second;
        self
    }

    pub fn feed(&mut self, input: Input) {
        self.outputs.extend(self.core.feed_at(self.second, input));
        if self.saves {
            self.outputs.extend(self.core.feed_at(self.second, Input::Save));
        }
    }

    /// A client connects, and says nothing.
    pub fn open(&mut self, connection: ConnectionId) {
        self.feed(Input::Opened { connection, default_directory: None });
    }

    /// A client connects, and says who it is.
    pub fn arrive(&mut self, connection: ConnectionId, client_id: &str) {
        self.open(connection);
        self.greet(connection, client_id, &[]);
    }

    /// A client that has connected says who it is and which channels it follows.
    pub fn greet(&mut self, connection: ConnectionId, client_id: &str, follows: &[&str]) {
        let hello = json!({ "channel": ROOT, "clientId": client_id, "protocolVersions": ["1.0.0"],
            "initialSubscriptions": follows });
        self.ask(connection, "initialize", hello).unwrap();
    }

    /// A client has the session made. The agent of its chat is told to open, and does not yet.
    pub fn create_session(&mut self, connection: ConnectionId) -> ChatKey {
        self.ask(connection, "createSession", json!({ "channel": SESSION })).unwrap();
        self.opened()
    }

    /// Creates a session and opens its agent.
    pub fn open_session(&mut self, connection: ConnectionId) -> ChatKey {
        let chat = self.create_session(connection);
        self.agent(chat, Event::Opened);
        chat
    }

    fn say(&mut self, connection: ConnectionId, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        let message = Incoming::parse(&message.to_string().into());
        let findings =
            MessageReferences::of(&message).directories.into_iter().map(|uri| (uri, Ok(()))).collect();
        let prefetched = Prefetched { findings, ..Prefetched::default() };
        let prefetched = Some(Box::new(prefetched));
        self.feed(Input::Received { connection, message: message.into(), prefetched });
    }

    pub fn notify(&mut self, connection: ConnectionId, method: &str, params: Value) {
        self.say(connection, json!({ "method": method, "params": params }));
    }

    /// Makes a request, whenever it may be answered; its number.
    pub fn request(&mut self, connection: ConnectionId, method: &str, params: Value) -> u64 {
        self.requests += 1;
        self.say(connection, json!({ "id": self.requests, "method": method, "params": params }));
        self.requests
    }

    /// Makes a request, and takes its answer out of what is put out at once.
    pub fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Result<Value, RpcError> {
        let before = self.outputs.len();
        let number = self.request(connection, method, params);
        let is_its = |id: &RequestId| id.as_json() == number.to_string().as_bytes();
        let mut new = self.outputs[before..].iter();
        let at = new.position(|output| match output {
            Output::Frame(to, Frame::Result { id, .. }) => *to == connection && is_its(id),
            Output::Frame(to, Frame::Error { id, .. }) => {
                *to == connection && id.as_ref().is_some_and(is_its)
            }
            _ => false,
        });
        let at = before + at.unwrap_or_else(|| panic!("{method} is not answered at once"));
        match self.outputs.remove(at) {
            Output::Frame(_, Frame::Result { result, .. }) => Ok(read(&result)),
            Output::Frame(_, Frame::Error { error, .. }) => Err(error),
            other => panic!("{other:?} is no answer"),
        }
    }

    /// A client follows a channel; the snapshot.
    pub fn subscribe(&mut self, connection: ConnectionId, channel: &str) -> Value {
        self.ask(connection, "subscribe", json!({ "channel": channel })).unwrap()["snapshot"].take()
    }

    /// Subscribes to a channel and returns its state.
    pub fn state(&mut self, connection: ConnectionId, channel: &str) -> Value {
        self.subscribe(connection, channel)["state"].take()
    }

    pub fn unsubscribe(&mut self, connection: ConnectionId, channel: &str) {
        self.notify(connection, "unsubscribe", json!({ "channel": channel }));
    }

    /// The snapshot of a channel that a client is shown who has not followed it, and does not go on
    /// to.
    pub fn fresh(&mut self, connection: ConnectionId, channel: &str) -> Result<Value, RpcError> {
        let answer = self.ask(connection, "subscribe", json!({ "channel": channel }));
        self.unsubscribe(connection, channel);
        answer.map(|mut answer| answer["snapshot"].take())
    }

    /// Dispatches an action; why it is refused, if it is.
    pub fn dispatch(&mut self, connection: ConnectionId, channel: &str, action: Value) -> Option<String> {
        self.client_seq += 1;
        let before = self.outputs.len();
        let params = json!({ "channel": channel, "clientSeq": self.client_seq, "action": action });
        self.notify(connection, "dispatchAction", params);
        self.outputs[before..].iter().find_map(|output| match output {
            Output::Frame(to, Frame::Answer(line)) if *to == connection => {
                read(line)["params"]["rejectionReason"].as_str().map(str::to_owned)
            }
            _ => None,
        })
    }

    /// A client begins a turn.
    pub fn start(&mut self, connection: ConnectionId, chat: &str, turn: &str, text: &str) {
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message(text) });
        assert_eq!(self.dispatch(connection, chat, action), None);
    }

    /// A client has a message wait in a chat: one of the `queued` ones, or that for `steering`.
    pub fn pend(
        &mut self,
        connection: ConnectionId,
        chat: &str,
        kind: &str,
        id: &str,
        text: &str,
    ) -> Option<String> {
        let message = message(text);
        let action = json!({ "type": "chat/pendingMessageSet", "kind": kind, "id": id, "message": message });
        self.dispatch(connection, chat, action)
    }

    /// The agent of a chat reports.
    pub fn agent(&mut self, chat: ChatKey, event: Event) {
        self.feed(Input::Agent(chat, event));
    }

    /// Reports an event of a running turn.
    pub fn report(&mut self, chat: ChatKey, run: RunId, event: TurnEvent) {
        self.agent(chat, Event::Turn(run, event));
    }

    /// Something is heard of the program in a terminal.
    pub fn pty(&mut self, key: TerminalKey, event: PtyEvent) {
        self.feed(Input::Pty(key, event));
    }

    /// Returns the commands to agents.
    pub fn commands(&self) -> impl DoubleEndedIterator<Item = &Command> {
        self.outputs.iter().filter_map(|output| match output {
            Output::Agent(_, command) => Some(&**command),
            _ => None,
        })
    }

    /// The chat whose agent was told to open, last.
    pub fn opened(&self) -> ChatKey {
        opened(&self.outputs)
    }

    /// The run that an agent was told to start, or to go on with, last.
    pub fn started(&self) -> RunId {
        let run = self.commands().rev().find_map(|command| match command {
            Command::StartTurn { run, .. } | Command::ResumeTurn { run, .. } => Some(*run),
            _ => None,
        });
        run.expect("a run was started")
    }

    /// The timers that were asked for.
    pub fn timers(&self) -> impl Iterator<Item = (Timer, Duration)> + '_ {
        self.outputs.iter().filter_map(|output| match output {
            Output::Timer(timer, after) => Some((*timer, *after)),
            _ => None,
        })
    }

    /// Takes what was put out.
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Takes the outputs and returns the messages with their recipients, as lines of the newest
    /// version.
    pub fn lines(&mut self) -> Vec<(ConnectionId, Value)> {
        let lines = self.take().into_iter().filter_map(|output| match output {
            Output::Frame(connection, frame) => Some((connection, line(&frame))),
            _ => None,
        });
        lines.collect()
    }

    /// Takes the outputs and returns the messages to one client.
    pub fn lines_to(&mut self, connection: ConnectionId) -> Vec<Value> {
        let lines = self.lines().into_iter().filter(|(to, _)| *to == connection);
        lines.map(|(_, line)| line).collect()
    }

    /// The actions among them.
    pub fn actions(&mut self, connection: ConnectionId) -> Vec<Value> {
        let mut lines = self.lines_to(connection);
        lines.retain(|line| line["method"] == "action");
        lines.iter_mut().map(|line| line["params"]["action"].take()).collect()
    }
}

fn read(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

/// Returns the message of a frame, as a line of the newest version.
pub fn line(frame: &Frame) -> Value {
    match frame {
        Frame::Action(action) => read(&action.line),
        Frame::Deltas(run, _) => read(run.lines.lines()),
        Frame::Answer(line) => read(line),
        Frame::Result { id, result, .. } => json!({ "id": read(id.as_json()), "result": read(result) }),
        Frame::Error { id, error } => {
            json!({ "id": id.as_ref().map(|id| read(id.as_json())), "error": error })
        }
        Frame::Request { number, method, params } => {
            json!({ "id": number, "method": method, "params": read(params) })
        }
        Frame::Notification { method, params } => json!({ "method": method, "params": read(params) }),
    }
}
