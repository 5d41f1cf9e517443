//! Windows: a front copies the bytes of its stdin and stdout through two pipes, whose names it
//! sends. The system ties a lock to its process, so a host locks its folder itself.
//!
//! Owns: the pipes, the threads that copy, and starting a host that inherits nothing.
//! Never: interprets a byte.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::windows::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use interprocess::os::windows::named_pipe::pipe_mode::{Bytes, None as NoMode};
use interprocess::os::windows::named_pipe::PipeListener;
use tokio::io::AsyncReadExt;
use winsafe::guard::CloseHandlePiGuard;
use winsafe::{co, CreateProcess, STARTUPINFO};

use super::Printing;
use crate::os::programs::quote;
use crate::os::sockets::{new_pipe, BlockingStream, LocalListener, Stream, PIPES, PIPE_BYTES};

pub type LentFile = File;

/// Maximum length of the line with the names of the pipes.
const NAMES_BYTES_MAX: usize = 256;

#[derive(Debug)]
pub struct LentPipes {
    /// Pipes for the host that was asked last.
    pipes: Option<(PipeListener<NoMode, Bytes>, PipeListener<Bytes, NoMode>)>,
}

impl LentPipes {
    pub fn prepare() -> io::Result<Self> {
        Ok(Self { pipes: None })
    }

    pub fn lend(&mut self, mut stream: &BlockingStream, line: &[u8]) -> io::Result<()> {
        let (stdin, read) = new_pipe()?;
        let (stdout, write) = new_pipe()?;
        self.pipes = Some((stdin.create_send_only()?, stdout.create_recv_only()?));
        stream.write_all(format!("{read} {write}\n").as_bytes())?;
        stream.write_all(line)
    }

    pub fn carry(self, (mut stdin, mut stdout): (File, File)) -> io::Result<Printing> {
        let Some((to_host, from_host)) = self.pipes else { return Ok(Printing(None)) };
        thread::Builder::new().name("stdin".to_owned()).spawn(move || match to_host.accept() {
            Ok(mut pipe) => copy(&mut stdin, &mut pipe, || {}),
            Err(error) => tracing::debug!(%error, "the host does not read stdin"),
        })?;
        let (chunks, printed) = channel();
        thread::Builder::new().name("stdout".to_owned()).spawn(move || match from_host.accept() {
            Ok(mut pipe) => copy(&mut pipe, &mut stdout, || chunks.send(()).unwrap_or_default()),
            Err(error) => tracing::debug!(%error, "the host does not write to stdout"),
        })?;
        Ok(Printing(Some(printed)))
    }
}

/// Copies bytes until the input ends or the output fails.
fn copy(from: &mut impl Read, to: &mut impl Write, mut after_each: impl FnMut()) {
    let mut buffer = vec![0; PIPE_BYTES as usize];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if to.write_all(&buffer[..read]).is_err() {
            return;
        }
        after_each();
    }
}

/// Reads bytes from a front. Its first line names the pipes, which are opened.
pub async fn receive(stream: &mut Stream, line: &mut Vec<u8>, lent: &mut Vec<LentFile>) -> io::Result<usize> {
    if lent.is_empty() {
        let mut names = Vec::new();
        while names.last() != Some(&b'\n') {
            if names.len() == NAMES_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            names.push(stream.read_u8().await?);
        }
        let names = std::str::from_utf8(&names).map_err(io::Error::other)?;
        let (read, write) = names.trim_end().split_once(' ').ok_or(ErrorKind::InvalidData)?;
        lent.push(opened(read, OpenOptions::new().read(true))?);
        lent.push(opened(write, OpenOptions::new().write(true))?);
    }
    stream.read_buf(line).await
}

fn opened(name: &str, options: &mut OpenOptions) -> io::Result<File> {
    /// The front learns who this process is, and cannot act in its name.
    const SECURITY_IDENTIFICATION: u32 = 0x1_0000;
    if !name.starts_with(PIPES) {
        return Err(io::Error::new(ErrorKind::InvalidData, "it lends no pipes of this program"));
    }
    options.security_qos_flags(SECURITY_IDENTIFICATION).open(name)
}

/// A host cannot get a lock from another process.
pub const HANDS_OVER: bool = false;

/// Status of a process that runs.
const STILL_ACTIVE: u32 = 259;

pub struct StartedHost(CloseHandlePiGuard);

impl StartedHost {
    /// Starts a host that inherits no file: it would keep the client's stdout open.
    pub fn start(command: Command, _handed_over: Option<(File, LocalListener)>) -> io::Result<Self> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(quoted).collect::<io::Result<Vec<_>>>()?.join(" ");
        let start = |flags| {
            // No handles are stdin, stdout and stderr: else they would be those of this process.
            let mut options = STARTUPINFO::default();
            options.dwFlags = co::STARTF::USESTDHANDLES;
            CreateProcess(None, Some(&line), None, None, false, flags, &[], None, &mut options)
        };
        let flags = co::CREATE::NO_WINDOW | co::CREATE::NEW_PROCESS_GROUP;
        // Outside of the editor's job, if that is allowed: else the host ends with its first front.
        let started = start(flags | co::CREATE::BREAKAWAY_FROM_JOB).or_else(|_| start(flags));
        started.map(Self).map_err(error_of)
    }

    pub fn exit_status(&mut self) -> io::Result<Option<String>> {
        let status = self.0.hProcess.GetExitCodeProcess().map_err(error_of)?;
        Ok((status != STILL_ACTIVE).then(|| format!("exit status {status}")))
    }

    /// Does nothing: the system keeps no record of a process that has ended.
    pub fn wait(self) -> io::Result<()> {
        Ok(())
    }
}

fn error_of(error: co::ERROR) -> io::Error {
    io::Error::from_raw_os_error(error.raw().cast_signed())
}

fn quoted(word: &OsStr) -> io::Result<String> {
    word.to_str().map(quote).ok_or_else(|| io::Error::other(format!("{} is not Unicode", word.display())))
}

pub fn take_over() -> anyhow::Result<Option<(File, LocalListener)>> {
    Ok(None)
}
