//! A host in memory behind the version edge.
//!
//! Owns: what clients of several versions say, as the core hears it, and what they are told, as it
//! is told to each.
//! Never: tells what was put out before a test has it told: how late that is, is what some tests
//! are about.

use ahp_sidecar::host::effects::{ConnectionId, Input, Output};
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};

use super::core::Core;
use super::world::World;

pub struct EdgedWorld {
    /// World whose outputs are not delivered yet.
    pub world: World,
    pub edges: Edges,
    /// Messages delivered since they were last taken, with their recipients.
    pub told: Vec<(ConnectionId, Value)>,
    requests: u64,
}

impl EdgedWorld {
    /// With the agent `script`; what has changed is saved after each input.
    pub fn new() -> Self {
        let edges = Edges::new(vec!["script".to_owned()]);
        Self { world: World::saving(Core::new()), edges, told: Vec::new(), requests: 0 }
    }

    fn say(&mut self, connection: ConnectionId, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        let mut fed = Vec::new();
        self.edges.up(connection, Incoming::parse(&message.to_string().into()), &mut fed);
        self.edges.take_records();
        fed.into_iter().for_each(|message| self.world.feed(Input::received(connection, message)));
    }

    pub fn notify(&mut self, connection: ConnectionId, method: &str, params: Value) {
        self.say(connection, json!({ "method": method, "params": params }));
    }

    /// Makes a request; its number, from 1.
    pub fn request(&mut self, connection: ConnectionId, method: &str, params: Value) -> u64 {
        self.requests += 1;
        self.say(connection, json!({ "id": self.requests, "method": method, "params": params }));
        self.requests
    }

    /// Tells what was put out, and has the core hear what follows from that, until nothing does.
    pub fn deliver(&mut self) {
        loop {
            let mut lines = Vec::new();
            for output in self.world.take() {
                let Output::Frame(connection, frame) = output else {
                    self.world.outputs.push(output);
                    continue;
                };
                self.edges.down(connection, &frame, &mut lines);
                let told = lines.drain(..).map(|line| serde_json::from_slice(&line).unwrap());
                self.told.extend(told.map(|line| (connection, line)));
            }
            let mut is_over = true;
            while let Some((connection, message)) = self.edges.take_later() {
                self.world.feed(Input::received(connection, message));
                is_over = false;
            }
            if is_over {
                return;
            }
        }
    }
}
