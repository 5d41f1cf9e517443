//! Connections on byte streams: one message a line, as on stdin and stdout.
//!
//! Owns: the two tasks of such a connection, one that reads lines and one that writes them, so that a client that is
//! slow, stuck or gone holds up nobody else.
//! Never: knows what kind of stream it is, decides who may connect, or reads a line's meaning.

use std::io::{self, ErrorKind};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::codec::Decoder;

use super::codec::LineCodec;
use super::link::{AtEnd, Door, Lines, Receipts, Terms, Writer, Written};
use crate::host::effects::ConnectionId;

/// How much is read at once, in bytes. An idle connection keeps a buffer of this size.
const READ_BYTES: usize = 16 << 10;

/// Lines shorter than this are copied together before they are written, so that one call writes many.
const COPY_BELOW: usize = 64 << 10;

/// Opens a connection on a stream, given as its two halves, and serves it in tasks of their own until either side
/// ends it. `read_ahead` was read from the stream already; what belongs to it are its `terms`. Must be
/// called inside a runtime.
///
/// # Errors
/// As [`Door::open`].
pub fn open<R, W>(
    door: &Door,
    at_end: AtEnd,
    (reader, writer): (R, W),
    read_ahead: BytesMut,
    terms: Terms,
) -> io::Result<ConnectionId>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let line_bytes_max = terms.line_bytes_max;
    let lines = door.open(at_end, terms, |receipts| Ok(StreamWriter::start(writer, receipts)))?;
    let connection = lines.connection();
    tokio::spawn(read_all(reader, read_ahead, LineCodec::new(line_bytes_max), lines));
    Ok(connection)
}

/// Reads lines until the stream ends or fails, or nobody hears them any more.
async fn read_all(
    mut reader: impl AsyncRead + Unpin,
    mut buffer: BytesMut,
    mut codec: LineCodec,
    lines: Lines,
) {
    let mut at_end = false;
    loop {
        let mut batch = Vec::new();
        // Framing itself cannot fail.
        while let Ok(Some(line)) =
            if at_end { codec.decode_eof(&mut buffer) } else { codec.decode(&mut buffer) }
        {
            batch.push(line);
        }
        if !batch.is_empty() && !lines.say(Ok(batch)).await || at_end {
            return;
        }
        buffer.reserve(READ_BYTES);
        let read = tokio::select! {
            read = reader.read_buf(&mut buffer) => read,
            () = lines.unheard() => return,
        };
        match read {
            Ok(read) => at_end = read == 0,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => at_end = true,
            Err(error) => {
                // When nobody hears it any more, nobody wants to know.
                lines.say(Err(error)).await;
                return;
            }
        }
    }
}

/// The way to the task that writes.
#[derive(Debug)]
pub struct StreamWriter {
    /// It is given one chunk at a time, so that no more than that ever waits in here.
    chunks: mpsc::UnboundedSender<Vec<Bytes>>,
}

impl StreamWriter {
    /// Writes in a task of its own. When this is dropped, what was given is written, and then the stream is shut down.
    pub fn start(writer: impl AsyncWrite + Unpin + Send + 'static, receipts: Receipts) -> Self {
        let (chunks, given) = mpsc::unbounded_channel();
        tokio::spawn(write_all(writer, given, receipts));
        Self { chunks }
    }
}

impl Writer for StreamWriter {
    fn write(&mut self, chunk: Vec<Bytes>) -> usize {
        if self.chunks.send(chunk).is_err() {
            tracing::debug!("the task that writes has ended");
        }
        0
    }
}

async fn write_all(
    mut writer: impl AsyncWrite + Unpin,
    mut chunks: mpsc::UnboundedReceiver<Vec<Bytes>>,
    receipts: Receipts,
) {
    while let Some(chunk) = chunks.recv().await {
        let bytes = chunk.iter().map(Bytes::len).sum();
        let outcome = match write_chunk(&mut writer, chunk).await {
            Ok(()) => Written::Bytes(bytes),
            Err(error) if is_gone(&error) => Written::Gone,
            Err(error) => Written::Failed(error),
        };
        let goes_on = matches!(outcome, Written::Bytes(_));
        if !receipts.tell(outcome) || !goes_on {
            return;
        }
    }
    if let Err(error) = writer.shutdown().await {
        tracing::debug!(%error, "a stream cannot be shut down");
    }
}

/// Whether this is how a write fails to somebody who went away.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

async fn write_chunk(writer: &mut (impl AsyncWrite + Unpin), chunk: Vec<Bytes>) -> io::Result<()> {
    let mut together = Vec::new();
    for line in chunk {
        if line.len() < COPY_BELOW {
            together.extend_from_slice(&line);
            continue;
        }
        writer.write_all(&together).await?;
        together.clear();
        writer.write_all(&line).await?;
    }
    writer.write_all(&together).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::Shutdown;
    use crate::io::codec::Line;
    use crate::io::link::{Heard, Links, News};
    use crate::io::outbox::OutboxLimits;

    fn terms() -> Terms {
        Terms {
            default_directory: None,
            line_bytes_max: 1000,
            at_end: Shutdown::Cancel,
            assume_version: None,
        }
    }

    /// What happens until this is so.
    async fn until(
        links: &mut Links,
        news: &mut mpsc::UnboundedReceiver<News>,
        mut is_so: impl FnMut(&mut Links, Option<Written>) -> bool,
    ) {
        let mut written = None;
        while !is_so(links, written.take()) {
            match news.recv().await.unwrap() {
                News::Opened(link) => links.insert(*link),
                News::Heard(id) => links.note_news(id),
                News::Written(id, it) => {
                    if let (Written::Bytes(bytes), Some(link)) = (&it, links.get_mut(id)) {
                        link.written(*bytes);
                    }
                    written = Some(it);
                }
                News::Leaves(_) => {}
            }
        }
    }

    #[tokio::test]
    async fn lines_are_heard_and_told_until_the_stream_ends() {
        let (door, mut news) = Door::new(OutboxLimits::default());
        let (ours, theirs) = tokio::io::duplex(100);
        let id = open(&door, AtEnd::Close, tokio::io::split(ours), BytesMut::from("fir"), terms()).unwrap();
        let (mut reader, mut writer) = tokio::io::split(theirs);
        let mut links = Links::default();
        writer.write_all(b"st\nsecond\nthird").await.unwrap();
        writer.shutdown().await.unwrap();
        let mut heard = Vec::new();
        until(&mut links, &mut news, |links, _| {
            while let Some((_, said)) = links.hear(|_| true) {
                heard.push(said);
            }
            matches!(heard.last(), Some(Heard::End(None)))
        })
        .await;
        let lines: Vec<_> =
            heard.iter().filter_map(|it| if let Heard::Line(it) = it { Some(it) } else { None }).collect();
        let expected = [
            Line::Complete("first".into()),
            Line::Complete("second".into()),
            Line::Unterminated("third".into()),
        ];
        assert_eq!(lines, expected.iter().collect::<Vec<_>>());
        // More than the stream holds is told to its end, also after the client has said its last.
        let long = Bytes::from(vec![b'x'; COPY_BELOW + 1]);
        let link = links.get_mut(id).unwrap();
        for line in [Bytes::from("a\n"), long.clone(), Bytes::from("b\n")] {
            link.outbox.push(line, None);
        }
        link.write();
        let reading = tokio::spawn(async move {
            let mut told = Vec::new();
            reader.read_to_end(&mut told).await.map(|_| told)
        });
        until(&mut links, &mut news, |links, _| links.get_mut(id).unwrap().outbox.bytes() == 0).await;
        drop(links.remove(id));
        assert_eq!(reading.await.unwrap().unwrap(), [b"a\n", &long[..], b"b\n"].concat());
    }

    #[tokio::test]
    async fn who_is_forgotten_is_disconnected_and_who_is_gone_is_noticed() {
        let (door, mut news) = Door::new(OutboxLimits::default());
        let mut links = Links::default();
        let (ours, mut theirs) = tokio::io::duplex(100);
        let id = open(&door, AtEnd::Close, tokio::io::split(ours), BytesMut::new(), terms()).unwrap();
        until(&mut links, &mut news, |links, _| links.get_mut(id).is_some()).await;
        drop(links.remove(id));
        assert_eq!(theirs.read_to_end(&mut Vec::new()).await.unwrap(), 0, "nothing holds the stream open");

        let (ours, theirs) = tokio::io::duplex(100);
        let id = open(&door, AtEnd::Close, tokio::io::split(ours), BytesMut::new(), terms()).unwrap();
        until(&mut links, &mut news, |links, _| links.get_mut(id).is_some()).await;
        drop(theirs);
        let link = links.get_mut(id).unwrap();
        link.outbox.push(Bytes::from("a\n"), None);
        link.write();
        until(&mut links, &mut news, |_, written| matches!(written, Some(Written::Gone))).await;
    }
}
