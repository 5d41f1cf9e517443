//! Addresses that clients can connect to.
//!
//! Owns: the syntax of an address, binding it, and removing its socket file.
//! Never: accepts a client of another user on a Unix socket.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{bail, Context};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::os::sockets;

/// Address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Address {
    /// `ws://HOST:PORT`.
    WebSocket {
        /// Host name or IP address; IPv6 without brackets.
        host: String,
        /// TCP port; 0 lets the system pick one.
        port: u16,
    },
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !sockets::SERVE_CLIENTS {
                bail!("`{text}`: this system has no such sockets; listen on ws://HOST:PORT instead");
            }
            if path.is_empty() {
                bail!("`{text}` names no file");
            }
            return Ok(Self::Unix(path.into()));
        }
        let Some(rest) = text.strip_prefix("ws://") else {
            bail!("`{text}` is neither ws://HOST:PORT nor unix:PATH");
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').with_context(|| format!("`{text}` has no port"))?;
        let port = port.parse().with_context(|| format!("`{text}` has no port between 0 and 65535"))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_none() && host.contains([':', '/', '@', '?', '#']) || host.is_empty() {
            bail!("`{text}` has no host: a name, an address, or an address of IPv6 in brackets");
        }
        Ok(Self::WebSocket { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket { host, port } if host.contains(':') => write!(f, "ws://[{host}]:{port}"),
            Self::WebSocket { host, port } => write!(f, "ws://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Returns the host; empty for a Unix socket.
    pub fn host(&self) -> &str {
        match self {
            Self::WebSocket { host, .. } => host,
            Self::Unix(_) => "",
        }
    }

    /// Returns whether certainly only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::WebSocket { host, .. } => {
                let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
                address.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
            }
            Self::Unix(_) => true,
        }
    }

    /// Returns the address with the port of `local`, which the system has picked.
    #[must_use]
    pub fn with_port_of(&self, local: Option<SocketAddr>) -> Self {
        let mut picked = self.clone();
        if let (Self::WebSocket { port, .. }, Some(local)) = (&mut picked, local) {
            *port = local.port();
        }
        picked
    }

    /// Returns the URL for a client, with the picked port and the token.
    pub fn url(&self, local: Option<SocketAddr>, token: Option<&str>) -> String {
        let picked = self.with_port_of(local);
        match (&picked, token) {
            (Self::WebSocket { .. }, Some(token)) => format!("{picked}/?tkn={token}"),
            _ => picked.to_string(),
        }
    }

    /// Binds the address and listens on it.
    pub async fn bind(&self) -> io::Result<Listener> {
        match self {
            Self::WebSocket { host, port } => {
                Ok(Listener::Tcp(TcpListener::bind((host.as_str(), *port)).await?))
            }
            Self::Unix(path) => Ok(Listener::Unix(unix::Socket::bind(path)?)),
        }
    }
}

/// Listening socket.
#[derive(Debug)]
pub enum Listener {
    /// Socket for WebSocket clients.
    Tcp(TcpListener),
    /// Socket for clients that send lines.
    Unix(unix::Socket),
}

impl Listener {
    /// Returns the bound address and port; `None` for a Unix socket.
    pub fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Unix(_) => Ok(None),
        }
    }
}

/// Unix sockets.
pub mod unix {
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use bytes::BytesMut;
    use tokio::time::timeout;

    use crate::io::descriptors::{self, SpareFile};
    use crate::io::link::{ConnectionAcceptor, ConnectionSettings, OnClose};
    use crate::io::{half_open, sockets};
    use crate::os::facts::{self, Identity};
    use crate::os::sockets::{
        bind, foreign_peer, has_listener, has_stopped_reading, is_socket, listen, split, AsyncListener,
        Stream,
    };
    use crate::wire::errors::RpcError;
    use crate::wire::rpc::error_line;

    /// Interval at which the existence of the socket file is checked.
    const LOOKED_FOR_EVERY: Duration = Duration::from_secs(2);

    /// Listening socket with its file, which is removed on drop.
    #[derive(Debug)]
    pub struct Socket {
        listener: AsyncListener,
        path: PathBuf,
        file: Identity,
    }

    impl Socket {
        /// Binds the socket, and removes a file without a listener that an earlier process has
        /// left.
        pub fn bind(path: &Path) -> io::Result<Self> {
            if is_socket(path) && !has_listener(path) {
                fs::remove_file(path)?;
            }
            let listener = listen(bind(path)?)?;
            Ok(Self { listener, path: path.to_owned(), file: facts::at(path)?.identity })
        }

        /// Accepts clients of the user that the host runs as.
        pub(in crate::io::listen) async fn accept(
            mut self,
            acceptor: &ConnectionAcceptor,
            terms: &ConnectionSettings,
        ) {
            let mut spare = SpareFile::open();
            let refuse = async |stream: Stream| refuse_for_want_of_files(&stream);
            loop {
                let accepted = half_open::accept(&self.listener, &mut spare, refuse);
                match timeout(LOOKED_FOR_EVERY, accepted).await {
                    Ok(stream) => open_connection(stream, acceptor, terms),
                    Err(_) => self.bind_anew_if_removed(),
                }
            }
        }

        /// Binds a new socket if the file was removed and no other file has taken the path.
        fn bind_anew_if_removed(&mut self) {
            let is_gone =
                fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            // A failure, for example because the folder is missing, is retried at the next check.
            if let Some(Ok(anew)) = is_gone.then(|| Self::bind(&self.path)) {
                tracing::info!(path = %self.path.display(), "the socket of a listener was removed, and is created again");
                // Dropping the old socket does not remove the new file, whose identity differs.
                *self = anew;
            }
        }
    }

    fn open_connection(stream: Stream, acceptor: &ConnectionAcceptor, terms: &ConnectionSettings) {
        match foreign_peer(&stream) {
            Ok(None) => {}
            Ok(Some(user)) => {
                return tracing::warn!(user, "a client is rejected: its process belongs to another user")
            }
            Err(error) => {
                return tracing::warn!(%error, "a client is rejected: the user of its process is unknown")
            }
        }
        let opened = sockets::open(
            acceptor,
            OnClose::Close,
            split(stream),
            BytesMut::new(),
            terms.clone(),
            has_stopped_reading,
        );
        match opened {
            Ok(connection) => tracing::info!(connection = connection.0, "a client is accepted"),
            Err(error) => tracing::warn!(%error, "a client cannot be accepted"),
        }
    }

    /// Sends the error that no more files can be opened, without waiting for the client to read it.
    fn refuse_for_want_of_files(stream: &Stream) {
        let line = error_line(None, &RpcError::unavailable(descriptors::exhausted()));
        stream.try_write(&line).unwrap_or_default();
    }

    impl Drop for Socket {
        fn drop(&mut self) {
            // Another process may have bound the path in the meantime.
            if facts::at(&self.path).is_ok_and(|there| there.identity == self.file) {
                if let Err(error) = fs::remove_file(&self.path) {
                    tracing::debug!(%error, path = %self.path.display(), "the socket of a listener cannot be removed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["ws://127.0.0.1:0", "ws://localhost:9400", "ws://[::1]:80", "unix:/a/b c"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("ws://a:1/".parse::<Address>().unwrap().to_string(), "ws://a:1");
        for text in
            ["", "a:1", "ws://a", "ws://:1", "ws://a:70000", "wss://a:1", "ws://::1:1", "ws://a@b:1", "unix:"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_has_the_port_that_was_taken_and_the_token() {
        let address: Address = "ws://localhost:0".parse().unwrap();
        let local = "127.0.0.1:7".parse().ok();
        assert_eq!(address.url(local, Some("t")), "ws://localhost:7/?tkn=t");
        assert_eq!(address.url(local, None), "ws://localhost:7");
    }
}
