//! WebSocket connection after its handshake.
//!
//! Owns: reassembly of messages from frames, answers to pings, and close codes.
//! Never: decides who may connect, or interprets a message.

use std::future::Future;
use std::io::{self, Cursor};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::WebSocketStream;

use crate::codec::{without_line_ends, InputLine};
use crate::io::control_frames::ControlFrames;
use crate::io::link::{ClientLines, ConnectionAcceptor, ConnectionSettings, OnClose, PartialMessage};
use crate::io::sockets::{Framing, StreamWriter};

/// Number of bytes per read. An idle connection keeps a buffer of this size.
const READ_BYTES: usize = 16 << 10;

/// Maximum number of messages handed on in one batch.
const MESSAGES_AT_ONCE: usize = 64;

/// Maximum size of the library's own pending frames, in bytes. They are written immediately.
const WRITE_BUFFER_BYTES_MAX: usize = 1 << 10;

/// Time that a client has to close the stream once its connection is over.
const LINGER: Duration = Duration::from_secs(2);

/// Close reason of a client that wants to receive all answers before its connection is closed.
pub const END_OF_INPUT: &str = "end of input";

/// Opens a connection on a stream, given as its two halves, whose handshake is complete, and serves
/// it in new tasks until either side closes it. `read_ahead` holds bytes that were read already. A
/// message that takes longer than `message_within` closes the connection.
pub async fn open<R, W>(
    acceptor: &ConnectionAcceptor,
    (reader, writer): (R, W),
    read_ahead: Vec<u8>,
    terms: ConnectionSettings,
    message_within: Duration,
) -> io::Result<()>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .max_message_size(Some(terms.line_bytes_max))
        .max_frame_size(Some(terms.line_bytes_max));
    let controls = Arc::<ControlFrames>::default();
    let of_writer = Arc::clone(&controls);
    let writer = |receipts| Ok(StreamWriter::start(writer, Framing::WebSocket, of_writer, receipts));
    let lines = acceptor.open(OnClose::Close, terms, writer)?;
    let mut half = ReadHalf {
        reader,
        controls: Arc::clone(&controls),
        frames: FrameScanner::default(),
        received: lines.received().clone(),
        message_within,
        deadline: None,
    };
    half.take_in(&read_ahead);
    let socket = WebSocketStream::from_partially_read(half, read_ahead, Role::Server, Some(config)).await;
    tokio::spawn(serve(socket, controls, lines));
    Ok(())
}

/// Reason why reading has ended.
enum ReadEnd {
    /// The stream has ended without a close frame.
    Gone,
    /// The client has closed the connection and receives no more messages.
    Closed,
    /// The client sends no more messages, and wants to receive the rest of the answers.
    EndOfInput,
    /// The host has closed the connection.
    Disconnected,
    /// The client has violated the protocol or a limit.
    Refused(CloseCode, String),
}

async fn serve<R: AsyncRead + Unpin>(
    mut socket: WebSocketStream<ReadHalf<R>>,
    controls: Arc<ControlFrames>,
    lines: ClientLines,
) {
    let end = receive(&mut socket, &lines).await;
    let connection = lines.connection();
    // The host first learns that the client sends no more messages, whatever the reason.
    match end {
        ReadEnd::EndOfInput | ReadEnd::Disconnected => drop(lines),
        ReadEnd::Gone | ReadEnd::Closed | ReadEnd::Refused(..) => lines.close_as_lost(),
    }
    match end {
        // The writer sends the close frame after the last message.
        ReadEnd::EndOfInput | ReadEnd::Disconnected => {}
        ReadEnd::Gone => controls.end(),
        ReadEnd::Closed => {
            // The library has answered the close frame when it read that.
            let answered = socket.flush().await;
            tracing::debug!(
                connection = connection.0,
                ?answered,
                "the closing frame of a client is answered"
            );
            controls.end();
        }
        ReadEnd::Refused(code, reason) => {
            tracing::warn!(
                connection = connection.0,
                code = u16::from(code),
                reason,
                "a connection is closed"
            );
            controls.close(code, &reason);
            controls.end();
        }
    }
    // Unread input is drained: otherwise the system resets the connection and output is lost.
    let reader = &mut socket.get_mut().reader;
    let rest = tokio::time::timeout(LINGER, tokio::io::copy(reader, &mut tokio::io::sink())).await;
    tracing::debug!(connection = connection.0, ?rest, "the WebSocket of a client is closed");
}

async fn receive<R: AsyncRead + Unpin>(
    socket: &mut WebSocketStream<ReadHalf<R>>,
    lines: &ClientLines,
) -> ReadEnd {
    loop {
        let first = tokio::select! {
            message = socket.next() => message,
            () = lines.closed() => return ReadEnd::Disconnected,
        };
        let mut batch = Vec::new();
        let mut end = take_in(first, &mut batch);
        while end.is_none() && batch.len() < MESSAGES_AT_ONCE {
            let Some(next) = socket.next().now_or_never() else { break };
            end = take_in(next, &mut batch);
        }
        if !batch.is_empty() {
            if !lines.send(Ok(batch)).await {
                return ReadEnd::Disconnected;
            }
            // The client is not to blame for the wait until the loop has taken the batch. Control
            // frames alone are no batch: they may arrive between the parts of a message.
            socket.get_mut().deadline = None;
        }
        if let Some(end) = end {
            return end;
        }
    }
}

/// Adds a text message to the batch; returns the reason if reading ends here.
fn take_in(message: Option<Result<Message, Error>>, batch: &mut Vec<InputLine>) -> Option<ReadEnd> {
    let error = match message {
        Some(Ok(Message::Text(text))) => {
            batch.push(InputLine::Complete(without_line_ends(Bytes::from(text))));
            return None;
        }
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => return None,
        Some(Ok(Message::Binary(_))) => {
            return Some(ReadEnd::Refused(CloseCode::Unsupported, "messages are text".to_owned()));
        }
        Some(Ok(Message::Close(Some(close)))) if close.reason.as_str() == END_OF_INPUT => {
            return Some(ReadEnd::EndOfInput);
        }
        Some(Ok(Message::Close(_))) => return Some(ReadEnd::Closed),
        None => return Some(ReadEnd::Gone),
        Some(Err(error)) => error,
    };
    if let Some(slow) = too_slow(&error) {
        return Some(ReadEnd::Refused(CloseCode::Policy, slow.to_string()));
    }
    let code = match &error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Utf8(_) => CloseCode::Invalid,
        Error::Protocol(_) => CloseCode::Protocol,
        _ => return Some(ReadEnd::Gone),
    };
    Some(ReadEnd::Refused(code, error.to_string()))
}

#[derive(Debug, thiserror::Error)]
#[error("a message was begun and not finished within {} seconds", .0.as_secs())]
struct MessageTooSlow(Duration);

fn too_slow(error: &Error) -> Option<&MessageTooSlow> {
    let Error::Io(error) = error else { return None };
    error.get_ref().and_then(|error| error.downcast_ref())
}

/// Stream that the WebSocket reads from. Frames of the library go to the task that writes messages.
struct ReadHalf<R> {
    reader: R,
    controls: Arc<ControlFrames>,
    frames: FrameScanner,
    received: PartialMessage,
    /// Maximum duration of a message, counted from the first wait for its rest.
    message_within: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<R> ReadHalf<R> {
    fn take_in(&mut self, bytes: &[u8]) {
        let finished = self.frames.finished;
        self.frames.read(bytes);
        let unfinished = self.frames.unfinished();
        // A control frame in parts finishes no message.
        if self.frames.finished != finished || unfinished == 0 {
            self.deadline = None;
        }
        self.received.set_unfinished(unfinished);
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for ReadHalf<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        if Pin::new(&mut self.reader).poll_read(cx, to)?.is_ready() {
            self.take_in(&to.filled()[before..]);
            return Poll::Ready(Ok(()));
        }
        if self.frames.unfinished() > 0 {
            let within = self.message_within;
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
            ready!(deadline.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::other(MessageTooSlow(within))));
        }
        Poll::Pending
    }
}

impl<R: Unpin> AsyncWrite for ReadHalf<R> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Never pending: the library would buffer the bytes otherwise.
        self.controls.put(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Counts the received bytes of the incomplete message or frame, which the library does not report.
#[derive(Debug, Default)]
struct FrameScanner {
    header: Vec<u8>,
    /// Bytes of the current frame's payload that have not arrived.
    payload_left: u64,
    /// Properties of the current frame: part of a message; last part of a message.
    is_data: bool,
    is_final: bool,
    /// Received bytes of the current message, including headers.
    message: usize,
    finished: u64,
}

impl FrameScanner {
    /// Returns the number of received bytes of incomplete messages and frames.
    fn unfinished(&self) -> usize {
        self.message + self.header.len() + usize::from(self.payload_left > 0 && !self.is_data)
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while let Some(&first) = bytes.first() {
            if self.payload_left > 0 {
                let length = usize::try_from(self.payload_left).unwrap_or(usize::MAX).min(bytes.len());
                self.payload_left -= length as u64;
                self.message += if self.is_data { length } else { 0 };
                bytes = &bytes[length..];
                self.end_frame();
                continue;
            }
            self.header.push(first);
            bytes = &bytes[1..];
            // The library detects the same error and closes the connection.
            if let Ok(Some((header, length))) = FrameHeader::parse(&mut Cursor::new(&self.header)) {
                self.is_data = matches!(header.opcode, OpCode::Data(_));
                self.is_final = header.is_final;
                self.payload_left = length;
                self.message += if self.is_data { self.header.len() } else { 0 };
                self.header.clear();
                self.end_frame();
            }
        }
    }

    fn end_frame(&mut self) {
        if self.payload_left == 0 && self.is_data && self.is_final {
            self.message = 0;
            self.finished += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::tungstenite::protocol::frame::coding::Data;
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;

    fn masked(mut frame: Frame) -> Vec<u8> {
        frame.header_mut().mask = Some([1, 2, 3, 4]);
        let mut bytes = Vec::new();
        frame.format(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn ping_in_two_parts_leaves_no_deadline_for_the_next_message() {
        let (mut client, reader) = tokio::io::duplex(64);
        let mut half = ReadHalf {
            reader,
            controls: Arc::default(),
            frames: FrameScanner::default(),
            received: PartialMessage::detached(),
            message_within: Duration::from_secs(3600),
            deadline: None,
        };
        let ping = masked(Frame::ping("p"));
        let mut place = [0; 64];
        for (part, is_begun) in [(&ping[..3], true), (&ping[3..], false)] {
            client.write_all(part).await.unwrap();
            assert_eq!(half.read(&mut place).await.unwrap(), part.len());
            assert!(tokio::time::timeout(Duration::ZERO, half.read(&mut place)).await.is_err());
            assert_eq!(half.deadline.is_some(), is_begun, "behind {part:?}");
        }
    }

    #[test]
    fn unfinished_messages_are_counted_however_their_bytes_arrive() {
        let part = |bytes: usize, kind, is_last| {
            masked(Frame::message(vec![b'x'; bytes], OpCode::Data(kind), is_last))
        };
        let begun =
            [part(70_000, Data::Text, false), masked(Frame::ping("p")), part(300, Data::Continue, false)];
        let counted = begun[0].len() + begun[2].len();
        let begun = begun.concat();
        let end =
            [part(0, Data::Continue, true), masked(Frame::ping("q")), part(9, Data::Text, true)].concat();
        for size in [1, 2, 7, 1000, usize::MAX] {
            let mut frames = FrameScanner::default();
            begun.chunks(size).for_each(|chunk| frames.read(chunk));
            assert_eq!((frames.unfinished(), frames.finished), (counted, 0), "in chunks of {size}");
            end.chunks(size).for_each(|chunk| frames.read(chunk));
            assert_eq!((frames.unfinished(), frames.finished), (0, 2), "in chunks of {size}");
            // An incomplete control frame counts, too.
            frames.read(&[0x89]);
            assert_eq!(frames.unfinished(), 1);
            frames.read(&[0x82, 0, 0, 0, 0, b'p']);
            assert_eq!(frames.unfinished(), 1);
            frames.read(b"q");
            assert_eq!(frames.unfinished(), 0);
        }
    }
}
