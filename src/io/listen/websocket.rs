//! A connection on a WebSocket, once it has been let in.
//!
//! Owns: reading messages, put together from their frames, answering pings, and closing with the code that says why.
//! Never: decides who may connect, or reads a message's meaning.

use std::io;
use std::pin::Pin;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::WebSocketStream;
use tokio_util::sync::PollSender;

use crate::codec::InputLine;
use crate::io::link::{AtEnd, ClientLines, Door, Terms};
use crate::io::sockets::{ControlFrame, Framing, StreamWriter};

/// How much is read at once, in bytes. An idle connection keeps a buffer of this size.
const READ_BYTES: usize = 16 << 10;

/// So many messages are handed on together when they are there.
const MESSAGES_AT_ONCE: usize = 64;

/// So many answers to pings wait at most for the client to read them; it is not read before it has.
const ASIDES_MAX: usize = 4;

/// How long a client may take to hang up when its connection is over.
const LINGER: Duration = Duration::from_secs(2);

/// With this reason a client closes that wants to be told all answers before its connection is closed.
pub const END_OF_INPUT: &str = "end of input";

/// Opens a connection on a stream on which the WebSocket's handshake is done, given as its two halves, and serves it in
/// tasks of their own until either side ends it. `read_ahead` was read from the stream already.
///
/// # Errors
/// As [`Door::open`].
pub async fn open<R, W>(
    door: &Door,
    (reader, writer): (R, W),
    read_ahead: Vec<u8>,
    terms: Terms,
) -> io::Result<()>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(terms.line_bytes_max))
        .max_frame_size(Some(terms.line_bytes_max));
    let (sender, asides) = mpsc::channel(ASIDES_MAX);
    let writer = |receipts| Ok(StreamWriter::start(writer, Framing::WebSocket, asides, receipts));
    let lines = door.open(AtEnd::Close, terms, writer)?;
    let half = ReadHalf { reader, asides: PollSender::new(sender.clone()) };
    let socket = WebSocketStream::from_partially_read(half, read_ahead, Role::Server, Some(config)).await;
    tokio::spawn(serve(socket, sender, lines));
    Ok(())
}

/// Why nothing more is read.
enum ReadEnd {
    /// The client has gone without a word.
    Gone,
    /// The client has closed the connection, and is told nothing more.
    Closed,
    /// The client says nothing more, and wants to be told the rest.
    EndOfInput,
    /// The connection is over on our side.
    Unheard,
    /// The client has done what it must not.
    Refused(CloseCode, String),
}

async fn serve<R: AsyncRead + Unpin>(
    mut socket: WebSocketStream<ReadHalf<R>>,
    asides: mpsc::Sender<ControlFrame>,
    lines: ClientLines,
) {
    let end = hear(&mut socket, &lines).await;
    let connection = lines.connection();
    // Whatever follows: it says nothing more.
    match end {
        ReadEnd::EndOfInput | ReadEnd::Unheard => drop(lines),
        ReadEnd::Gone | ReadEnd::Closed | ReadEnd::Refused(..) => lines.lost(),
    }
    let answer = async {
        match end {
            // Its writer says goodbye when all is written.
            ReadEnd::EndOfInput | ReadEnd::Unheard => return Ok(false),
            ReadEnd::Gone => Ok(()),
            // The answer was made when its word was read.
            ReadEnd::Closed => socket.flush().await,
            ReadEnd::Refused(code, reason) => {
                tracing::warn!(?connection, code = u16::from(code), reason, "a connection is closed");
                socket.close(Some(CloseFrame { code, reason: reason.into() })).await
            }
        }
        .map(|()| true)
    };
    let answered = tokio::time::timeout(LINGER, answer).await;
    tracing::debug!(?connection, ?answered, "the WebSocket of a client is read no more");
    if !matches!(answered, Ok(Ok(false))) {
        let ended = tokio::time::timeout(LINGER, asides.send(ControlFrame::End)).await;
        tracing::debug!(
            ?connection,
            is_told = ended.is_ok(),
            "the WebSocket of a client is closed for writing"
        );
    }
    // What it has still said is read and thrown away: else the system takes back what it has not read yet.
    let reader = &mut socket.get_mut().reader;
    let rest = tokio::time::timeout(LINGER, tokio::io::copy(reader, &mut tokio::io::sink())).await;
    tracing::debug!(?connection, ?rest, "the WebSocket of a client is closed");
}

/// Hears messages until there are no more.
async fn hear<R: AsyncRead + Unpin>(
    socket: &mut WebSocketStream<ReadHalf<R>>,
    lines: &ClientLines,
) -> ReadEnd {
    loop {
        let first = tokio::select! {
            message = socket.next() => message,
            () = lines.unheard() => return ReadEnd::Unheard,
        };
        let mut batch = Vec::new();
        let mut end = take_in(first, &mut batch);
        while end.is_none() && batch.len() < MESSAGES_AT_ONCE {
            let Some(next) = socket.next().now_or_never() else { break };
            end = take_in(next, &mut batch);
        }
        if !batch.is_empty() && !lines.say(Ok(batch)).await {
            return ReadEnd::Unheard;
        }
        if let Some(end) = end {
            return end;
        }
    }
}

/// Takes in a message, or what stands for it; returns why it is the last one, if it is.
fn take_in(message: Option<Result<Message, Error>>, batch: &mut Vec<InputLine>) -> Option<ReadEnd> {
    let error = match message {
        Some(Ok(Message::Text(text))) => {
            batch.push(InputLine::Complete(Bytes::from(text)));
            return None;
        }
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => return None,
        Some(Ok(Message::Binary(_))) => {
            return Some(ReadEnd::Refused(CloseCode::Unsupported, "messages are text".to_owned()));
        }
        Some(Ok(Message::Close(Some(said)))) if said.reason.as_str() == END_OF_INPUT => {
            return Some(ReadEnd::EndOfInput);
        }
        Some(Ok(Message::Close(_))) => return Some(ReadEnd::Closed),
        None => return Some(ReadEnd::Gone),
        Some(Err(error)) => error,
    };
    let code = match &error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Utf8(_) => CloseCode::Invalid,
        Error::Protocol(_) => CloseCode::Protocol,
        _ => return Some(ReadEnd::Gone),
    };
    Some(ReadEnd::Refused(code, error.to_string()))
}

/// What the WebSocket reads from; what it writes besides messages goes through the task that writes those.
struct ReadHalf<R> {
    reader: R,
    asides: PollSender<ControlFrame>,
}

impl<R: AsyncRead + Unpin> AsyncRead for ReadHalf<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, to)
    }
}

impl<R: Unpin> AsyncWrite for ReadHalf<R> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.asides.poll_reserve(cx)).map_err(gone)?;
        self.asides.send_item(ControlFrame::Bytes(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
