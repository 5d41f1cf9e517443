//! `connect`: joins stdin and stdout to a listening host, as its client.
//!
//! Owns: finding the host and its token, copying lines and messages, and which side ended first.
//! Never: interprets a message.

use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use bytes::Bytes;
use clap::Args;
use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_tungstenite::{connect_async_with_config, MaybeTlsStream, WebSocketStream};
use tokio_util::codec::FramedRead;

use crate::codec::{without_line_ends, InputLine, LineCodec};
use crate::io::listen::access::AccessToken;
use crate::io::listen::websocket::END_OF_INPUT;
use crate::listening::host_of;
use crate::os::sockets;
use crate::os::stdio::is_closed;
use crate::store::folder;

/// Maximum length of a message from the host, in bytes. The protocol itself sets no limit.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Maximum length of a client's line, in bytes; no host accepts a longer one.
const LINE_BYTES_MAX: usize = 256 << 20;

/// Environment variable with the token, used without a token file.
pub const TOKEN_VARIABLE: &str = "AHP_SIDECAR_TOKEN";

/// Connect stdin and stdout to a host that listens.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// ws://HOST:PORT or unix:PATH [default: the first listener of the host of --state-dir]
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,

    /// File with the token, which no other user may read [default: the environment variable
    /// AHP_SIDECAR_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// State folder of the host to connect to, which has the address and the token [default: the
    /// default state folder]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["address", "token_file"])]
    state_dir: Option<PathBuf>,

    /// Exit as a host that cannot be started if the connection fails
    #[arg(long = AS_HOST, hide = true)]
    pub as_host: bool,
}

/// Name of the hidden flag of a process that connects in place of a host.
pub const AS_HOST: &str = "as-host";

/// Failure to connect.
#[derive(Debug, thiserror::Error)]
#[error("the host cannot be reached")]
pub struct Unreachable;

#[derive(Debug)]
struct Destination {
    address: String,
    token: Option<AccessToken>,
}

impl ConnectArgs {
    fn destination(&self) -> anyhow::Result<Destination> {
        let Some(address) = &self.address else {
            // Unlike a token on the command line, this one is in no list of processes.
            let announced = announced(self.state_dir.as_deref())?;
            return Ok(match without_token(&announced) {
                Some((address, token)) if self.token_file.is_none() => {
                    Destination { address: address.to_owned(), token: Some(AccessToken::parse(token)?) }
                }
                _ => Destination { token: self.token_for(&announced)?, address: announced },
            });
        };
        if let Some((plain, token)) = without_token(address) {
            // A failure is ignored: stderr may be closed.
            writeln!(
                io::stderr(),
                "warning: every user of this machine can read the token in the list of processes: pass it by \
                 `--token-file`, `{TOKEN_VARIABLE}` or `--state-dir` instead"
            )
            .unwrap_or_default();
            if self.token_file.is_none() {
                let token = Some(AccessToken::parse(token).context("the token in the address")?);
                return Ok(Destination { address: plain.to_owned(), token });
            }
        }
        Ok(Destination { address: address.clone(), token: self.token_for(address)? })
    }

    /// Returns the token for an address; `None` for a Unix socket, which only its user can access.
    fn token_for(&self, address: &str) -> anyhow::Result<Option<AccessToken>> {
        if address.starts_with("unix:") {
            return Ok(None);
        }
        if let Some(file) = &self.token_file {
            return AccessToken::from_file(file).map(Some).context("--token-file");
        }
        let token = std::env::var_os(TOKEN_VARIABLE).filter(|token| !token.is_empty());
        let Some(token) = token else { return Ok(None) };
        let token = token.to_str().unwrap_or_default();
        AccessToken::parse(token.trim()).map(Some).context(TOKEN_VARIABLE)
    }
}

/// Returns the first address that the host of a state folder listens on, with its token.
fn announced(state_dir: Option<&Path>) -> anyhow::Result<String> {
    let folder = folder::chosen(state_dir)?;
    let (_, notice) = host_of(&folder)?;
    let address = notice.and_then(|notice| notice.listening.into_iter().next());
    address.with_context(|| {
        let name = folder.display();
        format!("no host listens for {name}: start one with `ahp-sidecar serve --listen ws://127.0.0.1:0`")
    })
}

/// Splits an address into the address and its token; `None` without a token.
fn without_token(address: &str) -> Option<(&str, &str)> {
    let (plain, query) = address.split_once('?').filter(|_| address.starts_with("ws://"))?;
    let token = query.split('&').find_map(|member| member.strip_prefix("tkn="))?;
    Some((plain, token))
}

/// Side that ended first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// stdin has ended and the host has sent all answers, or stdout is closed.
    Ours,
    /// The host has closed the connection.
    Theirs,
}

/// Joins stdin and stdout to a host until either side ends.
///
/// # Errors
/// When the connection fails or breaks.
pub fn run(arguments: &ConnectArgs) -> anyhow::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let destination = arguments.destination().context(Unreachable)?;
    let ended = runtime.block_on(async {
        match destination.address.strip_prefix("unix:") {
            Some(path) => join_socket(path).await,
            None => join_websocket(&destination).await,
        }
    });
    // A thread may be blocked in a read of stdin.
    runtime.shutdown_background();
    ended
}

async fn join_socket(path: &str) -> anyhow::Result<Ended> {
    let stream = sockets::connect(Path::new(path)).await;
    let (mut reader, mut writer) =
        sockets::split(stream.with_context(|| format!("cannot connect to {path}")).context(Unreachable)?);
    let up = async {
        let copied = tokio::io::copy(&mut tokio::io::stdin(), &mut writer).await;
        // The host also answers a client whose input fails.
        let ended = writer.shutdown().await;
        copied.and(ended)
    };
    let down = async { tokio::io::copy(&mut reader, &mut tokio::io::stdout()).await.map(|_| ()) };
    join(up, down).await
}

/// Runs both directions until the host has sent everything.
async fn join(
    up: impl Future<Output = io::Result<()>>,
    down: impl Future<Output = io::Result<()>>,
) -> anyhow::Result<Ended> {
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let (sent, received) = tokio::select! {
        biased;
        received = &mut down => (None, received),
        sent = &mut up => (Some(sent), down.await),
    };
    let is_gone = |error: &io::Error| is_closed(error) || error.kind() == io::ErrorKind::ConnectionReset;
    match (sent, received) {
        // stdout is closed.
        (None, Err(error)) if is_closed(&error) => Ok(Ended::Ours),
        (Some(Err(error)), _) | (_, Err(error)) if !is_gone(&error) => Err(error.into()),
        (Some(Ok(())), Ok(())) => Ok(Ended::Ours),
        _ => Ok(Ended::Theirs),
    }
}

async fn join_websocket(destination: &Destination) -> anyhow::Result<Ended> {
    let (mut to_host, mut from_host) = open_websocket(destination).await.context(Unreachable)?.split();
    let up = async {
        let mut lines = FramedRead::new(tokio::io::stdin(), LineCodec::new(LINE_BYTES_MAX));
        let mut copied = Ok(());
        while let Some(line) = lines.next().await {
            copied = match line.and_then(text_of) {
                Ok(text) => to_host.send(Message::Text(text)).await.map_err(failed),
                Err(error) => Err(error),
            };
            if copied.is_err() {
                break;
            }
        }
        // The host also answers a client whose input fails.
        let end = CloseFrame { code: CloseCode::Normal, reason: END_OF_INPUT.into() };
        let ended = to_host.send(Message::Close(Some(end))).await.map_err(failed);
        copied.and(ended)
    };
    let down = async {
        let mut stdout = tokio::io::stdout();
        while let Some(message) = from_host.next().await {
            match message.map_err(failed)? {
                Message::Text(text) => {
                    stdout.write_all(&without_line_ends(Bytes::from(text))).await?;
                    stdout.write_all(b"\n").await?;
                    stdout.flush().await?;
                }
                Message::Close(Some(close)) if close.code != CloseCode::Normal => {
                    return Err(io::Error::other(format!("the host has closed the connection: {close}")));
                }
                _ => {}
            }
        }
        Ok(())
    };
    join(up, down).await
}

async fn open_websocket(
    destination: &Destination,
) -> anyhow::Result<WebSocketStream<MaybeTlsStream<TcpStream>>> {
    let address = destination.address.split(['?', '#']).next().unwrap_or_default();
    if !address.starts_with("ws://") {
        bail!("`{address}` is neither ws://HOST:PORT nor unix:PATH");
    }
    let mut request = destination.address.as_str().into_client_request()?;
    if let Some(token) = &destination.token {
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {}", token.reveal()).parse()?);
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    match connect_async_with_config(request, Some(config), true).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => {
            let why = response.into_body().unwrap_or_default();
            bail!("{address} refuses the connection: {}", String::from_utf8_lossy(&why));
        }
        Err(error) => Err(error).with_context(|| format!("cannot connect to {address}")),
    }
}

/// Returns the message of a line.
fn text_of(line: InputLine) -> io::Result<Utf8Bytes> {
    match line {
        InputLine::Complete(line) | InputLine::Unterminated(line) => Utf8Bytes::try_from(line)
            .map_err(|_| io::Error::other("stdin cannot be sent: a line is not UTF-8")),
        InputLine::TooLong { .. } => {
            let longest = format!("stdin cannot be sent: a line is longer than {LINE_BYTES_MAX} bytes");
            Err(io::Error::other(longest))
        }
    }
}

fn failed(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(_) => {
            io::ErrorKind::ConnectionReset.into()
        }
        error => io::Error::other(error),
    }
}
