//! Clients of a world that follow one terminal, leave it, are lost and come back, in any order.
//!
//! Owns: their connections, and what each of them holds of the terminal.
//! Never: makes anything happen to the terminal.

use ahp_sidecar::host::effects::{ConnectionId, Input};
use proptest::prelude::*;
use serde_json::json;

use super::mirrors::{terminal_in, TerminalMirror};
use super::world::{World, ROOT};

/// Ids of the clients.
const NAMES: [&str; 2] = ["a", "b"];

/// Step of one of the clients.
#[derive(Debug, Clone)]
pub enum Moves {
    Follows,
    Leaves,
    IsLost,
    ComesBack,
}

/// One of the clients, and what it does.
pub fn moves() -> impl Strategy<Value = (usize, Moves)> {
    let moves = prop_oneof![
        4 => Just(Moves::Follows),
        2 => Just(Moves::Leaves),
        3 => Just(Moves::IsLost),
        4 => Just(Moves::ComesBack),
    ];
    (0..NAMES.len(), moves)
}

/// So heavy they are in a schedule.
pub const MOVES: u32 = 4 + 2 + 3 + 4;

#[derive(Debug, Default)]
struct Follower {
    connection: Option<ConnectionId>,
    mirror: TerminalMirror,
}

pub struct Followers {
    uri: String,
    followers: [Follower; NAMES.len()],
    connections: u32,
}

impl Followers {
    /// Creates clients that are not subscribed to this terminal yet.
    pub fn new(uri: &str) -> Self {
        Self { uri: uri.to_owned(), followers: Default::default(), connections: 100 }
    }

    /// The connection of a client, while it has one.
    pub fn connection(&self, at: usize) -> Option<ConnectionId> {
        self.followers[at].connection
    }

    fn connect(&mut self, at: usize) -> ConnectionId {
        self.connections += 1;
        *self.followers[at].connection.insert(ConnectionId(self.connections))
    }

    pub fn go(&mut self, world: &mut World, at: usize, moves: &Moves) {
        let connection = self.connection(at);
        match moves {
            Moves::Follows => {
                let connection = connection.unwrap_or_else(|| {
                    let connection = self.connect(at);
                    world.arrive(connection, NAMES[at]);
                    connection
                });
                world.request(connection, "subscribe", json!({ "channel": self.uri }));
            }
            Moves::Leaves => {
                if let Some(connection) = connection {
                    world.unsubscribe(connection, &self.uri);
                }
                self.followers[at].mirror.state = None;
            }
            Moves::IsLost => {
                if let Some(connection) = self.followers[at].connection.take() {
                    world.feed(Input::Closed(connection));
                }
            }
            Moves::ComesBack => {
                let mirror = &self.followers[at].mirror;
                if mirror.state.is_some() && connection.is_none() {
                    let params = json!({ "channel": ROOT, "clientId": NAMES[at],
                        "lastSeenServerSeq": mirror.cursor, "subscriptions": [self.uri] });
                    let connection = self.connect(at);
                    world.open(connection);
                    world.request(connection, "reconnect", params);
                }
            }
        }
    }

    /// They read what was told.
    pub fn hear(&mut self, world: &mut World) {
        for (connection, line) in world.lines() {
            let found = self.followers.iter_mut().find(|it| it.connection == Some(connection));
            if let Some(follower) = found {
                follower.mirror.read(&self.uri, &line, &line["result"]);
            }
        }
    }

    /// Whoever follows the terminal holds what a fresh snapshot shows, and perhaps more before
    /// that.
    pub fn check(&self, world: &mut World, observer: ConnectionId) {
        let fresh = terminal_in(&world.fresh(observer, &self.uri).unwrap());
        for follower in self.followers.iter().filter(|it| it.connection.is_some()) {
            follower.mirror.check(&fresh);
        }
    }
}
