//! `connect`: stdin and stdout as a client of a host that listens.
//!
//! Owns: carrying lines to it and messages back, and telling whose end came first.
//! Never: reads a message.

use std::future::Future;
use std::io;
use std::path::PathBuf;

use anyhow::{bail, Context};
use bytes::Bytes;
use clap::Args;
use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::connect_async_with_config;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::codec::FramedRead;

use crate::codec::{InputLine, LineCodec};
use crate::io::listen::access::AccessToken;
use crate::io::listen::websocket::END_OF_INPUT;

/// The longest message, in bytes: what a host may say has no limit of its own.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// The arguments of `connect`.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// ws://HOST:PORT, with /?tkn=TOKEN where a token is needed, or unix:PATH
    #[arg(value_name = "ADDRESS")]
    address: String,

    /// The token is in this file
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Whose end came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Our input's, and the host has told all; or nobody reads our output.
    Ours,
    /// The host's.
    Theirs,
}

/// Joins stdin and stdout to a host until either side ends.
///
/// # Errors
/// When it cannot be connected to, or the connection breaks.
pub fn run(arguments: &ConnectArgs) -> anyhow::Result<Ended> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let ended = runtime.block_on(async {
        match arguments.address.strip_prefix("unix:") {
            #[cfg(unix)]
            Some(path) => join_socket(path).await,
            #[cfg(not(unix))]
            Some(_) => bail!("there are no such sockets on this system"),
            None => join_websocket(arguments).await,
        }
    });
    // A thread may be in a read of stdin for ever.
    runtime.shutdown_background();
    ended
}

#[cfg(unix)]
async fn join_socket(path: &str) -> anyhow::Result<Ended> {
    let stream = tokio::net::UnixStream::connect(path).await;
    let (mut reader, mut writer) = stream.with_context(|| format!("cannot connect to {path}"))?.into_split();
    let up = async {
        tokio::io::copy(&mut tokio::io::stdin(), &mut writer).await?;
        writer.shutdown().await
    };
    let down = async { tokio::io::copy(&mut reader, &mut tokio::io::stdout()).await.map(|_| ()) };
    join(up, down).await
}

/// Waits until the host has told all.
async fn join(
    up: impl Future<Output = io::Result<()>>,
    down: impl Future<Output = io::Result<()>>,
) -> anyhow::Result<Ended> {
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let (said, told) = tokio::select! {
        biased;
        told = &mut down => (None, told),
        said = &mut up => (Some(said), down.await),
    };
    let is_gone = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    };
    match (said, told) {
        // Nobody reads what we are told.
        (None, Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Ended::Ours),
        (Some(Err(error)), _) | (_, Err(error)) if !is_gone(&error) => Err(error.into()),
        (Some(Ok(())), Ok(())) => Ok(Ended::Ours),
        _ => Ok(Ended::Theirs),
    }
}

async fn join_websocket(arguments: &ConnectArgs) -> anyhow::Result<Ended> {
    let address = arguments.address.split(['?', '#']).next().unwrap_or_default();
    if !address.starts_with("ws://") {
        bail!("`{address}` is neither ws://HOST:PORT nor unix:PATH");
    }
    let mut request = arguments.address.as_str().into_client_request()?;
    if let Some(file) = &arguments.token_file {
        let token = AccessToken::from_file(file).context("--token-file")?;
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {}", token.reveal()).parse()?);
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let (socket, _) = match connect_async_with_config(request, Some(config), true).await {
        Ok(connected) => connected,
        Err(Error::Http(response)) => {
            let why = response.into_body().unwrap_or_default();
            bail!("{address} lets nobody in like this: {}", String::from_utf8_lossy(&why));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot connect to {address}")),
    };
    let (mut to_host, mut from_host) = socket.split();
    let up = async {
        let mut lines = FramedRead::new(tokio::io::stdin(), LineCodec::new(MESSAGE_BYTES_MAX));
        while let Some(line) = lines.next().await {
            let line: Bytes = match line? {
                InputLine::Complete(line) | InputLine::Unterminated(line) => line,
                InputLine::TooLong => return Err(io::Error::other("a line is too long")),
            };
            let text = String::from_utf8_lossy(&line).into_owned();
            to_host.send(Message::Text(text.into())).await.map_err(failed)?;
        }
        let end = CloseFrame { code: CloseCode::Normal, reason: END_OF_INPUT.into() };
        to_host.send(Message::Close(Some(end))).await.map_err(failed)
    };
    let down = async {
        let mut stdout = tokio::io::stdout();
        while let Some(message) = from_host.next().await {
            match message.map_err(failed)? {
                Message::Text(text) => {
                    stdout.write_all(text.as_bytes()).await?;
                    stdout.write_all(b"\n").await?;
                    stdout.flush().await?;
                }
                Message::Close(Some(said)) if said.code != CloseCode::Normal => {
                    return Err(io::Error::other(format!("the host has closed the connection: {said}")));
                }
                _ => {}
            }
        }
        Ok(())
    };
    join(up, down).await
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
