//! Listeners: how clients connect that did not start us.
//!
//! Owns: where is listened ([`Address`]), who is let in there ([`access`]), and how long, how large and how many
//! handshakes may be. What follows is a connection like any other: on a Unix socket one of lines, else a [`websocket`].
//! Never: serves a client, or listens anywhere unless asked to.

pub mod access;
pub mod address;
pub mod announce;
pub mod handshake;
pub mod notice;
pub mod websocket;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Context};
use tokio::net::{TcpListener, TcpStream};

use self::access::{Access, AccessToken};
use self::address::{Address, Listener};
use self::announce::Announced;
use super::descriptors::{self, SpareFile};
use super::half_open::HalfOpen;
use super::link::{Door, Terms};

/// How long to wait when no more files can be opened: a connection that ends gives one back.
const PAUSE: Duration = Duration::from_millis(100);

/// What is listened on, and how.
#[derive(Debug, Clone)]
pub struct Listening {
    /// Where.
    pub addresses: Vec<Address>,
    /// Who is let in to WebSockets.
    pub access: Access,
    /// The token is one that those who are to have it know already: it is not printed.
    pub token_is_known: bool,
    /// The folder for the data of an editor's user, where the editor is told of this host.
    pub announced_in: Option<PathBuf>,
    /// How long a client may take for its handshake.
    pub handshake_within: Duration,
    /// How long a client may take for a message that it has begun.
    pub message_within: Duration,
    /// Within what time clients are expected back that have lost their connection.
    pub returns_within: Duration,
    /// How long a wrong token is not answered.
    pub wrong_token_wait: Duration,
}

/// What is listened on now, until this is dropped.
#[derive(Debug)]
pub struct Bound {
    listening: Listening,
    listeners: Vec<(Address, Listener)>,
}

/// Begins to listen. To be called inside a runtime.
///
/// # Errors
/// When that is not possible, or would let in the whole network without a token.
pub async fn bind(listening: Listening) -> anyhow::Result<Bound> {
    let mut listeners = Vec::new();
    for address in &listening.addresses {
        let listener = address.bind().await.with_context(|| format!("cannot listen on {address}"))?;
        let ours = listener.local_addr().with_context(|| format!("cannot listen on {address}"))?;
        if listening.access.token.is_none() && ours.is_some_and(|ours| !ours.ip().is_loopback()) {
            bail!("cannot listen on {address} without a token: others than this machine reach it");
        }
        listeners.push((address.clone(), listener));
    }
    Ok(Bound { listening, listeners })
}

impl Bound {
    /// Where a client connects to: with the token if there is one and it is to be `revealed`.
    ///
    /// # Errors
    /// When the system does not tell where it listens.
    pub fn urls(&self, revealed: bool) -> io::Result<Vec<String>> {
        let token = self.listening.access.token.as_ref().filter(|_| revealed).map(AccessToken::reveal);
        let urls = self.listeners.iter();
        urls.map(|(address, listener)| Ok(address.url(listener.local_addr()?, token))).collect()
    }

    /// Tells an editor of the first WebSocket listener, where that is asked for, until what is returned is dropped.
    ///
    /// # Errors
    /// When it cannot be told.
    pub fn announce(&self) -> anyhow::Result<Option<Announced>> {
        let (Some(user_data), Some(token)) = (&self.listening.announced_in, &self.listening.access.token)
        else {
            return Ok(None);
        };
        for (_, listener) in &self.listeners {
            if let Some(at) = listener.local_addr()? {
                let announced = announce::announce(user_data, at, token.reveal());
                return announced
                    .map(Some)
                    .with_context(|| format!("cannot announce it in `{}`", user_data.display()));
            }
        }
        bail!("cannot announce it: Visual Studio Code connects to ws:// only");
    }

    /// Lets clients in, in tasks of their own. They come in by this door, on these terms.
    pub fn serve(self, door: &Door, terms: &Terms) {
        let listening = Arc::new(self.listening);
        let terms = Terms { returns_within: Some(listening.returns_within), ..terms.clone() };
        for (address, listener) in self.listeners {
            let (door, terms, listening) = (door.clone(), terms.clone(), Arc::clone(&listening));
            tokio::spawn(async move {
                match listener {
                    Listener::Tcp(listener) => let_in(listener, &address, &door, &terms, &listening).await,
                    #[cfg(unix)]
                    Listener::Unix(listener) => listener.let_in(&door, &terms).await,
                }
            });
        }
    }
}

async fn let_in(
    listener: TcpListener,
    address: &Address,
    door: &Door,
    terms: &Terms,
    listening: &Arc<Listening>,
) {
    let mut half_open = HalfOpen::default();
    let mut spare = SpareFile::open();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if spare.make_room(&error) => {
                tracing::warn!(%error, "a client is refused");
                if let Ok((stream, _)) = listener.accept().await {
                    handshake::turn_away(stream, &descriptors::exhausted()).await;
                }
                spare.take_back();
                continue;
            }
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let (door, terms, listening) = (door.clone(), terms.clone(), Arc::clone(listening));
        let name = address.host().to_owned();
        half_open.begin(greet(stream, from, name, door, terms, listening));
    }
}

/// Waits a moment because nobody can be let in.
async fn pause(error: &io::Error) {
    tracing::warn!(%error, "a client cannot be let in");
    tokio::time::sleep(PAUSE).await;
}

/// Opens a connection for a client that is to be let in.
async fn greet(
    mut stream: TcpStream,
    from: SocketAddr,
    name: String,
    door: Door,
    terms: Terms,
    listening: Arc<Listening>,
) {
    let within = listening.handshake_within;
    let shaken = tokio::time::timeout(within, handshake::shake(&mut stream, &name, &listening)).await;
    match shaken {
        Ok(Ok(read_ahead)) => {
            keep_alive(&stream);
            tracing::info!(%from, "a client is let in");
            if let Err(error) =
                websocket::open(&door, stream.into_split(), read_ahead, terms, listening.message_within).await
            {
                tracing::warn!(%from, %error, "a client cannot be let in");
            }
        }
        Ok(Err(why)) => tracing::warn!(%from, "a client is not let in: {why:#}"),
        Err(_) => tracing::warn!(%from, ?within, "a client is not let in: its handshake takes too long"),
    }
}

/// Has the system notice when the other side is gone without a word, and small messages sent at once.
fn keep_alive(stream: &TcpStream) {
    #[cfg(unix)]
    if let Err(error) = rustix::net::sockopt::set_socket_keepalive(stream, true) {
        tracing::debug!(%error, "TCP keepalive cannot be turned on: a client whose machine is gone is not noticed");
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "`TCP_NODELAY` cannot be set: small messages may be late");
    }
}
