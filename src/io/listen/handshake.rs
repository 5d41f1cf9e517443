//! The handshake of a WebSocket, on our side.
//!
//! Owns: reading the request within its limits, and answering it.
//! Never: judges who may connect, or waits longer than whoever calls it allows.

use std::time::Duration;

use anyhow::{bail, Context};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::machine::TryParse;
use tokio_tungstenite::tungstenite::handshake::server::{create_response, write_response, Request, Response};
use tokio_tungstenite::tungstenite::http::header::{CONNECTION, CONTENT_LENGTH};
use tokio_tungstenite::tungstenite::http::StatusCode;

use super::access::AccessRefusal;
use super::Listening;

/// The longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Time that a client has to read why it is turned away. No other client is accepted meanwhile.
const REFUSE_WITHIN: Duration = Duration::from_millis(200);

/// Bytes at the end of a request.
const END: &[u8] = b"\r\n\r\n";

/// Makes the stream a WebSocket; returns what was read of its first frames. `name` is what we were
/// asked to listen on.
///
/// # Errors
/// When it is not let in, which it has been told by then.
pub async fn accept_websocket(
    stream: &mut TcpStream,
    name: &str,
    listening: &Listening,
) -> anyhow::Result<Vec<u8>> {
    let mut read = BytesMut::new();
    let request = match read_request(stream, &mut read).await? {
        Ok(request) => request,
        Err(status) => {
            refuse(stream, status, "the request is not a WebSocket handshake").await?;
            bail!("the request is not a WebSocket handshake");
        }
    };
    let ours = stream.local_addr().context("the local address of the connection is unknown")?.ip();
    if let Err(AccessRefusal { status, why, is_wrong_token }) =
        listening.access.check_request(&request, name, ours)
    {
        if is_wrong_token {
            tokio::time::sleep(listening.wrong_token_wait).await;
        }
        refuse(stream, status, why).await?;
        bail!("{why}");
    }
    match create_response(&request) {
        Ok(response) => answer(stream, &response, "").await?,
        Err(error) => {
            refuse(stream, StatusCode::BAD_REQUEST, "the request is not a WebSocket handshake").await?;
            return Err(error.into());
        }
    }
    Ok(read.to_vec())
}

/// Reads a request, and leaves what is behind it; else the status that says what is wrong.
async fn read_request(
    stream: &mut TcpStream,
    read: &mut BytesMut,
) -> anyhow::Result<Result<Request, StatusCode>> {
    loop {
        let before = read.len();
        if stream.read_buf(read).await? == 0 {
            bail!("the client has disconnected before its request was complete");
        }
        let unseen = before.saturating_sub(END.len() - 1);
        let end = memchr::memmem::find(&read[unseen..], END).map(|at| unseen + at + END.len());
        if end.unwrap_or(read.len()) > REQUEST_BYTES_MAX {
            return Ok(Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        if let Some(end) = end {
            let head = read.split_to(end);
            let request = Request::try_parse(&head).ok().flatten();
            return Ok(request.map(|(_, request)| request).ok_or(StatusCode::BAD_REQUEST));
        }
    }
}

/// Tells a client why it is refused whatever it says, and hangs up. It has a moment to read that.
pub async fn refuse_any(mut stream: TcpStream, why: &str) {
    let refused = refuse(&mut stream, StatusCode::SERVICE_UNAVAILABLE, why);
    if let Ok(Err(error)) = tokio::time::timeout(REFUSE_WITHIN, refused).await {
        tracing::debug!(%error, "a client that is refused cannot be told why");
    }
}

async fn refuse(stream: &mut TcpStream, status: StatusCode, why: &str) -> anyhow::Result<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, "close".parse()?);
    response.headers_mut().insert(CONTENT_LENGTH, why.len().into());
    answer(stream, &response, why).await?;
    stream.shutdown().await?;
    // What it has still said is read and thrown away: else the system takes back the answer.
    tokio::io::copy(stream, &mut tokio::io::sink()).await?;
    Ok(())
}

async fn answer(stream: &mut TcpStream, response: &Response, body: &str) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    write_response(&mut bytes, response)?;
    bytes.extend_from_slice(body.as_bytes());
    Ok(stream.write_all(&bytes).await?)
}
