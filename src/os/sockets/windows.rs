//! Windows: named pipes. A file at the path of a socket has the name of its pipe.
//!
//! Owns: that file, the access list of the pipes, and the runtime that waits for all of them.
//! Never: removes a file.

use std::fmt;
use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use interprocess::os::windows::named_pipe::pipe_mode::Bytes;
use interprocess::os::windows::named_pipe::tokio::{DuplexPipeStream, PipeListener};
use interprocess::os::windows::named_pipe::PipeListenerOptions;
use interprocess::os::windows::security_descriptor::SecurityDescriptor;
use interprocess::ConnectWaitMode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use widestring::{u16cstr, U16CStr};

use crate::os::private;
use crate::sync::lock;

/// A pipe cannot be closed in one direction, which clients do at the end of their input.
pub const SERVE_CLIENTS: bool = false;

/// First part of the names of all pipes of this program.
pub const PIPES: &str = r"\\.\pipe\ahp-sidecar-";

/// Bytes that a pipe holds for a reader that is busy.
pub const PIPE_BYTES: u32 = 64 << 10;

/// Time limit for a connection to a pipe whose instances are all in use.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Full access for the owner of the pipe, and none for anybody else. The owner of what an elevated
/// process creates is the group of administrators, so processes without that right cannot connect.
const OWNER_ALONE: &U16CStr = u16cstr!("D:P(A;;GA;;;OW)");

/// Waits for pipes, also for those that are used outside of a runtime.
static RUNTIME: LazyLock<io::Result<Runtime>> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).thread_name("pipes").enable_all().build());

fn runtime() -> io::Result<&'static Runtime> {
    RUNTIME.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
}

/// Returns options for a pipe of a new name, to which only this user can connect.
pub fn new_pipe() -> io::Result<(PipeListenerOptions<'static>, String)> {
    let name = format!("{PIPES}{}", Uuid::new_v4());
    let options = PipeListenerOptions::new()
        .path(name.clone())
        .input_buffer_size_hint(PIPE_BYTES)
        .output_buffer_size_hint(PIPE_BYTES)
        .security_descriptor(Some(SecurityDescriptor::deserialize(OWNER_ALONE)?));
    Ok((options, name))
}

#[derive(Debug)]
pub struct LocalListener(PipeListener<Bytes, Bytes>);

#[derive(Debug)]
pub struct AsyncListener(LocalListener);

/// Connection for use in a runtime.
#[derive(Debug, Clone)]
pub struct Stream(Arc<DuplexPipeStream<Bytes>>);

pub type LocalReadHalf = tokio::io::ReadHalf<Stream>;
pub type LocalWriteHalf = tokio::io::WriteHalf<Stream>;

/// Connection for use outside of a runtime.
#[derive(Clone)]
pub struct BlockingStream {
    pipe: Stream,
    limit: Arc<Mutex<Option<Duration>>>,
    is_over: CancellationToken,
}

impl LocalListener {
    /// Does nothing: [`Self::accept`] never waits.
    pub fn set_nonblocking(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    /// Returns a connection that is there already.
    pub fn accept(&self) -> io::Result<(BlockingStream, ())> {
        let _runtime = runtime()?.enter();
        let accepted = now(std::pin::pin!(self.0.accept()))?;
        Ok((BlockingStream::new(accepted), ()))
    }
}

impl AsyncListener {
    pub async fn accept(&self) -> io::Result<(Stream, ())> {
        let accepted = InRuntime(Box::pin(self.0 .0.accept())).await?;
        Ok((Stream(Arc::new(accepted)), ()))
    }
}

/// Future that creates pipes, which then belong to the runtime of all pipes.
struct InRuntime<F>(Pin<Box<F>>);

impl<F: Future<Output = io::Result<T>>, T> Future for InRuntime<F> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let _runtime = runtime()?.enter();
        self.0.as_mut().poll(context)
    }
}

/// Returns the result of a future that is ready, else `WouldBlock`.
fn now<T>(future: Pin<&mut impl Future<Output = io::Result<T>>>) -> io::Result<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Stream {
    /// Writes what the pipe takes without waiting.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = &*self.0;
        match Pin::new(&mut pipe).poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write(context, bytes)
    }

    /// Does nothing. The pipe's own flush would wait until the peer has read everything.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl BlockingStream {
    fn new(pipe: DuplexPipeStream<Bytes>) -> Self {
        Self { pipe: Stream(Arc::new(pipe)), limit: Arc::default(), is_over: CancellationToken::new() }
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn wait(&self, done: impl Future<Output = io::Result<usize>>) -> io::Result<usize> {
        let limit = *lock(&self.limit);
        let done = async {
            tokio::select! {
                done = done => done,
                () = self.is_over.cancelled() => Ok(0),
            }
        };
        runtime()?.block_on(async {
            match limit {
                Some(limit) => timeout(limit, done).await.unwrap_or(Err(io::ErrorKind::WouldBlock.into())),
                None => done.await,
            }
        })
    }
}

impl fmt::Debug for BlockingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingStream").finish_non_exhaustive()
    }
}

impl Read for &BlockingStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait(async { self.pipe.clone().read(into).await })
    }
}

impl Write for &BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(async { self.pipe.clone().write(bytes).await })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for BlockingStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn bind(path: &Path) -> io::Result<LocalListener> {
    let (options, name) = new_pipe()?;
    let _runtime = runtime()?.enter();
    let listener = options.create_tokio_duplex::<Bytes>()?;
    let created = private::options().write(true).create_new(true).open(path);
    let mut file = created.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => io::ErrorKind::AddrInUse.into(),
        _ => error,
    })?;
    file.write_all(name.as_bytes())?;
    Ok(LocalListener(listener))
}

pub fn listen(listener: LocalListener) -> io::Result<AsyncListener> {
    Ok(AsyncListener(listener))
}

pub fn take_over(_listener: File) -> io::Result<LocalListener> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system cannot pass listeners on"))
}

/// Returns the name of the pipe that a path stands for.
fn name_at(path: &Path) -> io::Result<String> {
    let mut name = String::new();
    File::open(path)?.take(256).read_to_string(&mut name)?;
    // Another name could belong to another machine.
    if name.starts_with(PIPES) {
        Ok(name)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "the file names no pipe of this program"))
    }
}

pub async fn connect(path: &Path) -> io::Result<Stream> {
    let name = name_at(path)?;
    let wait = ConnectWaitMode::Timeout(CONNECT_WITHIN);
    let connected =
        InRuntime(Box::pin(DuplexPipeStream::<Bytes>::connect_by_path_with_wait_mode(name, wait))).await?;
    Ok(Stream(Arc::new(connected)))
}

pub fn connect_now(path: &Path) -> io::Result<BlockingStream> {
    let pipe = runtime()?.block_on(connect(path))?;
    Ok(BlockingStream { pipe, limit: Arc::default(), is_over: CancellationToken::new() })
}

pub fn set_timeouts(stream: &BlockingStream, limit: Option<Duration>) -> io::Result<()> {
    *lock(&stream.limit) = limit;
    Ok(())
}

/// Ends reads and writes of this process. The peer notices once the stream is dropped.
pub fn shut_down(stream: &BlockingStream) -> io::Result<()> {
    stream.is_over.cancel();
    Ok(())
}

pub fn into_async(stream: BlockingStream) -> io::Result<Stream> {
    Ok(stream.pipe)
}

pub fn split(stream: Stream) -> (LocalReadHalf, LocalWriteHalf) {
    tokio::io::split(stream)
}

pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).set_keepalive(true)
}

pub fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_file()) && name_at(path).is_ok()
}

pub fn has_listener(path: &Path) -> bool {
    let since = Instant::now();
    match connect_now(path) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::TimedOut || since.elapsed() >= CONNECT_WITHIN,
    }
}

/// Returns `None`: the access list keeps others out.
pub fn foreign_peer(_stream: &Stream) -> io::Result<Option<u32>> {
    Ok(None)
}

pub fn has_stopped_reading(_stream: &LocalReadHalf) -> bool {
    false
}
