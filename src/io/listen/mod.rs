//! Listeners, on which clients connect that did not start the host.
//!
//! A listener belongs to the host ([`listeners`]), no matter whether `serve` or the hello of a
//! front has requested it.
//!
//! Owns: addresses ([`Address`]), access control ([`access`]), and the limits of time, size and
//! number of handshakes. An accepted connection is handled like any other: as lines on a Unix
//! socket, else as a [`websocket`].
//! Never: serves a client, or listens unless requested.

pub mod access;
pub mod address;
pub mod announce;
pub mod handshake;
pub mod listeners;
pub mod notice;
pub mod websocket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};

use self::access::Access;
use self::address::Address;
use super::descriptors::{self, SpareFile};
use super::half_open::{self, HalfOpen};
use super::link::{ConnectionAcceptor, ConnectionSettings};
use crate::os::sockets::keep_alive;

/// Addresses to listen on, with their settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Listening {
    /// Addresses to listen on.
    pub addresses: Vec<Address>,
    /// Conditions under which WebSocket clients may connect.
    pub access: Access,
    /// Set if the clients know the token already, so that it is not printed.
    pub token_is_known: bool,
    /// User data folder of the editor to which the host is announced; `None` for no announcement.
    pub announced_in: Option<PathBuf>,
    /// Timeout of the handshake.
    pub handshake_within: Duration,
    /// Time that a WebSocket client has for the rest of a message that it has begun.
    pub message_within: Duration,
    /// Time within which a client is expected to reconnect after it has lost its connection.
    pub returns_within: Duration,
    /// Delay before a wrong token is answered.
    pub wrong_token_wait: Duration,
    /// Files by which clients connect (sockets, token file), which clients must not change.
    pub files: Vec<PathBuf>,
}

impl Listening {
    /// Returns the options in which the settings differ, other than the addresses. Two generated
    /// tokens count as equal.
    fn differences(&self, other: &Self) -> Vec<&'static str> {
        let same_token = match (&self.access.token, &other.access.token) {
            (Some(one), Some(other_one)) if self.token_is_known || other.token_is_known => {
                one.equals(other_one)
            }
            (one, other_one) => one.is_some() == other_one.is_some(),
        };
        let settings = [
            ("--no-token", self.access.token.is_some() == other.access.token.is_some()),
            ("--token-file", same_token && self.token_is_known == other.token_is_known),
            ("--allow-origin", self.access.origins == other.access.origins),
            ("--announce", self.announced_in == other.announced_in),
            ("--reconnect-within", self.returns_within == other.returns_within),
            ("--handshake-timeout", self.handshake_within == other.handshake_within),
            ("--message-timeout", self.message_within == other.message_within),
        ];
        settings.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name).collect()
    }
}

async fn accept_clients(
    listener: TcpListener,
    address: &Address,
    acceptor: &ConnectionAcceptor,
    terms: &ConnectionSettings,
    listening: &Arc<Listening>,
) {
    let (mut half_open, mut spare) = (HalfOpen::default(), SpareFile::open());
    let refuse = async |stream| handshake::refuse_any(stream, &descriptors::exhausted()).await;
    loop {
        let stream = half_open::accept(&listener, &mut spare, refuse).await;
        let (acceptor, terms, listening) = (acceptor.clone(), terms.clone(), Arc::clone(listening));
        let name = address.host().to_owned();
        half_open.begin(open_connection(stream, name, acceptor, terms, listening));
    }
}

/// Performs the handshake, and opens a connection for the client.
async fn open_connection(
    mut stream: TcpStream,
    name: String,
    acceptor: ConnectionAcceptor,
    terms: ConnectionSettings,
    listening: Arc<Listening>,
) {
    let from = stream.peer_addr().ok();
    let within = listening.handshake_within;
    let shaken =
        tokio::time::timeout(within, handshake::accept_websocket(&mut stream, &name, &listening)).await;
    match shaken {
        Ok(Ok(read_ahead)) => {
            configure(&stream);
            tracing::info!(?from, "a client is accepted");
            if let Err(error) =
                websocket::open(&acceptor, stream.into_split(), read_ahead, terms, listening.message_within)
                    .await
            {
                tracing::warn!(?from, %error, "a client cannot be accepted");
            }
        }
        Ok(Err(why)) => tracing::warn!(?from, "a client is rejected: {why:#}"),
        Err(_) => tracing::warn!(?from, ?within, "a client is rejected: its handshake took too long"),
    }
}

/// Enables keepalive, to detect vanished peers, and sends small messages without delay.
fn configure(stream: &TcpStream) {
    if let Err(error) = keep_alive(stream) {
        tracing::debug!(%error, "TCP keepalive cannot be turned on: a client whose machine is gone is not noticed");
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "`TCP_NODELAY` cannot be set: small messages may be late");
    }
}
