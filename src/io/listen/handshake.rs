//! Server side of the WebSocket handshake.
//!
//! Owns: reading the request within its limits, and the response.
//! Never: decides who may connect, or enforces a timeout: the caller does.

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

/// Maximum length of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Time that a refused client has to read the reason; the next client waits as long.
const REFUSE_WITHIN: Duration = Duration::from_millis(200);

const END: &[u8] = b"\r\n\r\n";

/// Performs the handshake; returns the bytes read behind the request. `name` is the host name that
/// the listener was configured with.
///
/// # Errors
/// When the client is refused, after the response was sent.
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

/// Reads a request, and leaves the bytes behind it. Returns a status if the request is invalid.
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

/// Refuses a client before its request is read, and closes the connection after a short time.
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
    // Unread input is drained: otherwise the system resets the connection and the response is lost.
    tokio::io::copy(stream, &mut tokio::io::sink()).await?;
    Ok(())
}

async fn answer(stream: &mut TcpStream, response: &Response, body: &str) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    write_response(&mut bytes, response)?;
    bytes.extend_from_slice(body.as_bytes());
    Ok(stream.write_all(&bytes).await?)
}
