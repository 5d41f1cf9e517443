//! Connections on byte streams: one message per line, or per WebSocket text message.
//!
//! Owns: reading and writing in tasks, so that a slow, stuck or lost client blocks no other.
//! Never: knows the kind of stream, decides who may connect, or interprets a line.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame, FrameHeader, Utf8Bytes};
use tokio_util::codec::Decoder;

use super::control_frames::{ControlFrame, ControlFrames};
use super::link::{
    ClientLines, ConnectionAcceptor, ConnectionSettings, LineSink, OnClose, Receipts, WriteOutcome,
    CHUNK_BYTES, COPY_BELOW,
};
use crate::codec::LineCodec;
use crate::host::effects::ConnectionId;
use crate::wire::action_lines::split_lines;

/// Size of the read buffer of a connection, in bytes, which an idle connection keeps.
const READ_BYTES: usize = 16 << 10;

/// Time that a client has to read a closing frame before its connection is aborted.
const GOODBYE_WITHIN: Duration = Duration::from_secs(2);

/// Opens a connection on the two halves of a stream, and serves it in tasks until either side ends
/// it. `read_ahead` contains bytes that were read from the stream before. At the end of the input,
/// `is_lost` returns whether the client does not read either. Must be called inside a runtime.
pub fn open<R, W>(
    acceptor: &ConnectionAcceptor,
    on_close: OnClose,
    (reader, writer): (R, W),
    read_ahead: BytesMut,
    terms: ConnectionSettings,
    is_lost: impl Fn(&R) -> bool + Send + 'static,
) -> io::Result<ConnectionId>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let line_bytes_max = terms.line_bytes_max;
    let writer = |receipts| Ok(StreamWriter::start(writer, Framing::Lines, Arc::default(), receipts));
    let lines = acceptor.open(on_close, terms, writer)?;
    let connection = lines.connection();
    tokio::spawn(read_all(reader, read_ahead, LineCodec::new(line_bytes_max), lines, is_lost));
    Ok(connection)
}

async fn read_all<R: AsyncRead + Unpin>(
    mut reader: R,
    mut buffer: BytesMut,
    mut codec: LineCodec,
    lines: ClientLines,
    is_lost: impl Fn(&R) -> bool,
) {
    let mut at_end = false;
    loop {
        let mut batch = Vec::new();
        let decoded = loop {
            match if at_end { codec.decode_eof(&mut buffer) } else { codec.decode(&mut buffer) } {
                Ok(Some(line)) => batch.push(line),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        lines.received().set_unfinished(buffer.len());
        if !batch.is_empty() && !lines.send(Ok(batch)).await {
            return;
        }
        if let Err(error) = decoded {
            // The result does not matter: the connection may be closed.
            lines.send(Err(error)).await;
            lines.close_as_lost();
            return;
        }
        if at_end {
            if is_lost(&reader) {
                lines.close_as_lost();
            }
            return;
        }
        buffer.reserve(READ_BYTES);
        let read = tokio::select! {
            read = reader.read_buf(&mut buffer) => read,
            () = lines.closed() => return,
        };
        match read {
            Ok(read) => at_end = read == 0,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => at_end = true,
            Err(error) => {
                lines.send(Err(error)).await;
                lines.close_as_lost();
                return;
            }
        }
    }
}

/// Format of messages in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One message per line.
    Lines,
    /// One text message of a WebSocket server each, in one frame per piece.
    WebSocket,
}

/// Handle of the task that writes to a stream.
#[derive(Debug)]
pub struct StreamWriter {
    /// Chunks for the writing task. At most one is queued at a time.
    chunks: mpsc::UnboundedSender<Vec<Bytes>>,
    framing: Framing,
    controls: Arc<ControlFrames>,
    task: AbortHandle,
}

impl StreamWriter {
    /// Starts a task that writes. Dropping the handle shuts the stream down after all chunks.
    pub fn start(
        writer: impl AsyncWrite + Unpin + Send + 'static,
        framing: Framing,
        controls: Arc<ControlFrames>,
        receipts: Receipts,
    ) -> Self {
        let (chunks, given) = mpsc::unbounded_channel();
        let outlet = WriterTask {
            writer,
            framing,
            controls: Arc::clone(&controls),
            receipts,
            is_open: true,
            is_inside: false,
            together: Vec::new(),
            of_chunk: 0,
        };
        let task = tokio::spawn(outlet.serve(given)).abort_handle();
        Self { chunks, framing, controls, task }
    }
}

impl LineSink for StreamWriter {
    fn write(&mut self, chunk: Vec<Bytes>) -> usize {
        if self.chunks.send(chunk).is_err() {
            tracing::debug!("bytes were dropped: the task that writes to this client has ended");
        }
        0
    }

    /// Closes a WebSocket with the reason after the current frame, if its client reads it in time.
    fn cut_off(&mut self, why: &str) {
        let task = self.task.clone();
        if self.framing == Framing::Lines {
            return task.abort();
        }
        self.controls.close(CloseCode::Again, why);
        self.controls.end();
        tokio::spawn(async move {
            tokio::time::sleep(GOODBYE_WITHIN).await;
            task.abort();
        });
    }
}

struct WriterTask<W> {
    writer: W,
    framing: Framing,
    controls: Arc<ControlFrames>,
    receipts: Receipts,
    /// Set while the client may read. Later chunks are dropped and reported as written, so that
    /// messages which the client sent before are still handled.
    is_open: bool,
    /// Set inside a message of several pieces.
    is_inside: bool,
    /// Buffer of small pieces, written with one call.
    together: Vec<u8>,
    /// Number of bytes of the chunk in `together`, or dropped, that are not reported yet.
    of_chunk: usize,
}

impl<W: AsyncWrite + Unpin> WriterTask<W> {
    async fn serve(mut self, mut chunks: mpsc::UnboundedReceiver<Vec<Bytes>>) {
        let controls = Arc::clone(&self.controls);
        loop {
            let written = tokio::select! {
                biased;
                frame = controls.next() => self.write_control(frame).await,
                chunk = chunks.recv() => match chunk {
                    Some(chunk) => self.write_chunk(chunk).await,
                    None => break,
                },
            };
            match written {
                Err(error) if is_gone(&error) => {
                    self.is_open = false;
                    self.receipts.send(WriteOutcome::Unread);
                }
                Err(error) => {
                    self.receipts.send(WriteOutcome::Failed(error));
                    return;
                }
                Ok(()) => {}
            }
            self.report_written();
        }
        if self.is_open {
            let ended = self.end().await;
            ended.unwrap_or_else(|error| tracing::debug!(%error, "a client's stream cannot be shut down"));
        }
    }

    async fn write_control(&mut self, frame: ControlFrame) -> io::Result<()> {
        match frame {
            _ if !self.is_open => Ok(()),
            ControlFrame::Bytes(bytes) => {
                self.writer.write_all(&bytes).await?;
                self.writer.flush().await
            }
            ControlFrame::End => {
                self.is_open = false;
                self.receipts.send(WriteOutcome::Unread);
                self.writer.shutdown().await
            }
        }
    }

    async fn write_chunk(&mut self, chunk: Vec<Bytes>) -> io::Result<()> {
        let mut left = chunk.iter().map(Bytes::len).sum::<usize>();
        let result = self.write_messages(chunk, &mut left).await;
        // The unwritten rest is reported as written if the client is gone.
        self.of_chunk = left;
        result
    }

    async fn write_messages(&mut self, chunk: Vec<Bytes>, left: &mut usize) -> io::Result<()> {
        for line in chunk.iter().flat_map(split_lines) {
            if !self.is_open || self.controls.has_end() {
                return Ok(());
            }
            let message = match self.framing {
                Framing::Lines => line.clone(),
                Framing::WebSocket => {
                    let is_final = line.ends_with(b"\n");
                    let message = line.slice(..line.len() - usize::from(is_final));
                    let goes_on = std::mem::replace(&mut self.is_inside, !is_final);
                    let opcode = OpCode::Data(if goes_on { Data::Continue } else { Data::Text });
                    let header = FrameHeader { is_final, opcode, ..FrameHeader::default() };
                    header.format(message.len() as u64, &mut self.together).map_err(io::Error::other)?;
                    message
                }
            };
            if message.len() < COPY_BELOW {
                self.together.extend_from_slice(&message);
                self.of_chunk += line.len();
                if self.together.len() >= COPY_BELOW {
                    self.write_together(left).await?;
                }
                continue;
            }
            self.write_together(left).await?;
            let mut rest = message;
            while !rest.is_empty() {
                let part = rest.split_to(rest.len().min(CHUNK_BYTES));
                self.writer.write_all(&part).await?;
                *left -= part.len();
                self.receipts.send(WriteOutcome::Bytes(part.len()));
            }
            self.of_chunk += usize::from(self.framing == Framing::WebSocket && line.ends_with(b"\n"));
        }
        self.write_together(left).await?;
        self.together = Vec::new();
        self.writer.flush().await
    }

    async fn write_together(&mut self, left: &mut usize) -> io::Result<()> {
        self.writer.write_all(&self.together).await?;
        self.together.clear();
        *left -= self.of_chunk;
        self.report_written();
        Ok(())
    }

    /// Reports the bytes that were copied into `together` as written.
    fn report_written(&mut self) {
        let bytes = std::mem::take(&mut self.of_chunk);
        if bytes > 0 {
            self.receipts.send(WriteOutcome::Bytes(bytes));
        }
    }

    async fn end(&mut self) -> io::Result<()> {
        if self.framing == Framing::WebSocket {
            let mut close = Vec::new();
            let normal = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
            Frame::close(Some(normal)).format(&mut close).map_err(io::Error::other)?;
            self.writer.write_all(&close).await?;
        }
        self.writer.shutdown().await
    }
}

/// Returns whether a write failed because the peer is gone.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::InputLine;
    use crate::host::effects::Shutdown;
    use crate::io::link::{ClientEvent, Links, TransportEvent};
    use crate::io::outbox::OutboxLimits;

    fn terms() -> ConnectionSettings {
        ConnectionSettings {
            default_directory: None,
            line_bytes_max: 1000,
            on_eof: Shutdown::Cancel,
            assume_version: None,
            returns_within: None,
            stall_limit: None,
        }
    }

    /// Handles events until `is_so` returns true.
    async fn until(
        links: &mut Links,
        news: &mut mpsc::UnboundedReceiver<TransportEvent>,
        mut is_so: impl FnMut(&mut Links, Option<WriteOutcome>) -> bool,
    ) {
        let mut written = None;
        while !is_so(links, written.take()) {
            match news.recv().await.unwrap() {
                TransportEvent::Opened(link) => links.insert(*link),
                TransportEvent::LinesReceived(id) => links.note_event(id),
                TransportEvent::Written(id, it) => {
                    if let (WriteOutcome::Bytes(bytes), Some(link)) = (&it, links.get_mut(id)) {
                        link.written(*bytes);
                    }
                    written = Some(it);
                }
                TransportEvent::LeaveRequested(_) => {}
            }
        }
    }

    #[tokio::test]
    async fn lines_pass_both_ways_until_the_stream_ends() {
        let (acceptor, mut news) = ConnectionAcceptor::new(OutboxLimits::default());
        let (ours, theirs) = tokio::io::duplex(100);
        let id =
            open(&acceptor, OnClose::Close, tokio::io::split(ours), BytesMut::from("fir"), terms(), |_| {
                false
            })
            .unwrap();
        let (mut reader, mut writer) = tokio::io::split(theirs);
        let mut links = Links::default();
        writer.write_all(b"st\nsecond\nthird").await.unwrap();
        writer.shutdown().await.unwrap();
        let mut events = Vec::new();
        until(&mut links, &mut news, |links, _| {
            while let Some((_, event)) = links.next_event(|_| true) {
                events.push(event);
            }
            matches!(events.last(), Some(ClientEvent::End(None)))
        })
        .await;
        let lines: Vec<_> = events
            .iter()
            .filter_map(|it| if let ClientEvent::Line(it) = it { Some(it) } else { None })
            .collect();
        let expected = [
            InputLine::Complete("first".into()),
            InputLine::Complete("second".into()),
            InputLine::Unterminated("third".into()),
        ];
        assert_eq!(lines, expected.iter().collect::<Vec<_>>());
        // More output than the stream holds is written to its end, also after the input has ended.
        let long = Bytes::from(vec![b'x'; COPY_BELOW + 1]);
        let link = links.get_mut(id).unwrap();
        for line in [Bytes::from("a\n"), long.clone(), Bytes::from("b\n")] {
            link.outbox.push(line);
        }
        link.write();
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.map(|_| received)
        });
        until(&mut links, &mut news, |links, _| links.get_mut(id).unwrap().outbox.bytes() == 0).await;
        drop(links.remove(id));
        assert_eq!(reading.await.unwrap().unwrap(), [b"a\n", &long[..], b"b\n"].concat());
    }

    #[tokio::test]
    async fn dropped_link_disconnects_and_closed_stream_is_noticed() {
        let (acceptor, mut news) = ConnectionAcceptor::new(OutboxLimits::default());
        let mut links = Links::default();
        let (ours, mut theirs) = tokio::io::duplex(100);
        let id = open(&acceptor, OnClose::Close, tokio::io::split(ours), BytesMut::new(), terms(), |_| false)
            .unwrap();
        until(&mut links, &mut news, |links, _| links.get_mut(id).is_some()).await;
        drop(links.remove(id));
        assert_eq!(theirs.read_to_end(&mut Vec::new()).await.unwrap(), 0, "nothing holds the stream open");

        let (ours, theirs) = tokio::io::duplex(100);
        let id = open(&acceptor, OnClose::Close, tokio::io::split(ours), BytesMut::new(), terms(), |_| false)
            .unwrap();
        until(&mut links, &mut news, |links, _| links.get_mut(id).is_some()).await;
        drop(theirs);
        let link = links.get_mut(id).unwrap();
        link.outbox.push(Bytes::from("a\n"));
        link.write();
        // Its input is received to its end, and nothing waits for it.
        until(&mut links, &mut news, |links, _| {
            let ended = matches!(links.next_event(|_| true), Some((_, ClientEvent::End(None))));
            ended && links.get_mut(id).is_some_and(|link| link.outbox.bytes() == 0)
        })
        .await;
    }
}
