//! Windows: no sockets yet. Each function fails, and a host has the clients that it was started by,
//! and those of its WebSocket listeners.
//!
//! Owns: the error.
//! Never: opens anything.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use tokio::net::windows::named_pipe::NamedPipeServer;
use tokio::net::TcpStream;

pub const EXIST: bool = false;

pub type Stream = NamedPipeServer;
pub type LocalReadHalf = tokio::io::ReadHalf<Stream>;
pub type LocalWriteHalf = tokio::io::WriteHalf<Stream>;

#[derive(Debug)]
pub enum LocalListener {}

#[derive(Debug)]
pub enum AsyncListener {}

#[derive(Debug)]
pub enum BlockingStream {}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this system has no sockets in the file system")
}

impl LocalListener {
    pub fn set_nonblocking(&self, _: bool) -> io::Result<()> {
        match *self {}
    }

    pub fn accept(&self) -> io::Result<(BlockingStream, ())> {
        match *self {}
    }
}

impl AsyncListener {
    pub async fn accept(&self) -> io::Result<(Stream, ())> {
        match *self {}
    }
}

impl BlockingStream {
    pub fn try_clone(&self) -> io::Result<Self> {
        match *self {}
    }
}

impl Read for BlockingStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Read for &BlockingStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match **self {}
    }
}

impl Write for BlockingStream {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}

impl Write for &BlockingStream {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match **self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match **self {}
    }
}

pub fn bind(_path: &Path) -> io::Result<LocalListener> {
    Err(missing())
}

pub fn listen(listener: LocalListener) -> io::Result<AsyncListener> {
    match listener {}
}

pub fn take_over(_listener: File) -> io::Result<LocalListener> {
    Err(missing())
}

pub async fn connect(_path: &Path) -> io::Result<Stream> {
    Err(missing())
}

pub fn connect_now(_path: &Path) -> io::Result<BlockingStream> {
    Err(missing())
}

pub fn set_timeouts(stream: &BlockingStream, _limit: Option<Duration>) -> io::Result<()> {
    match *stream {}
}

pub fn shut_down(stream: &BlockingStream) -> io::Result<()> {
    match *stream {}
}

pub fn into_async(stream: BlockingStream) -> io::Result<Stream> {
    match stream {}
}

pub fn split(stream: Stream) -> (LocalReadHalf, LocalWriteHalf) {
    tokio::io::split(stream)
}

pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).set_keepalive(true)
}

pub fn is_socket(_path: &Path) -> bool {
    false
}

pub fn has_listener(_path: &Path) -> bool {
    false
}

pub fn foreign_peer(_stream: &Stream) -> io::Result<Option<u32>> {
    Err(missing())
}

pub fn has_stopped_reading(_stream: &LocalReadHalf) -> bool {
    false
}
