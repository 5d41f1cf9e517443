//! The host's side of the guard of terminals.
//!
//! Owns: starting one guard for all terminals, or where that is not possible one for each; waking
//! one that was stopped, and replacing one that says nothing or is gone.
//! Never: lets a terminal be over before nothing of it is left.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Interest, Lines};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::UnixStream;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{TerminalProgram, GONE, SHARED, TAKEN};
use crate::backend::acp::guard::EXIT_GRACE;
use crate::backend::acp::guards::{Guard, GuardGroup, GuardProgram};
use crate::backend::acp::lifeline;

/// Argument of the guard of one terminal, before the program.
const PTY: &str = "--pty";

/// A guard that says nothing for so long while it has something to do is held by somebody.
const SILENT_WITHIN: Duration = EXIT_GRACE.saturating_mul(10);

/// Number of attempts to give a terminal to a guard: one that is gone is replaced.
const TRIES: usize = 2;

/// Starts the guards of terminals.
#[derive(Debug, Clone)]
pub struct TerminalGuards {
    program: GuardProgram,
    /// Guard that terminals share, as long as there is any of them.
    shared: Arc<Mutex<Weak<SharedGuard>>>,
    is_shared: bool,
}

/// The guard that terminals share. It ends when this is dropped.
#[derive(Debug)]
struct SharedGuard {
    lifeline: UnixStream,
    group: GuardGroup,
    /// Becomes true when the guard has ended, with all that it guarded.
    ended: watch::Receiver<bool>,
    _released: DropGuard,
}

/// The guard of a terminal, as that sees it.
#[derive(Debug)]
pub struct TerminalGuard(GuardKind);

#[derive(Debug)]
enum GuardKind {
    Own(Guard),
    Shared(Arc<SharedGuard>),
}

impl TerminalGuards {
    /// None are started yet.
    pub fn new(program: GuardProgram) -> Self {
        Self { program, shared: Arc::default(), is_shared: can_be_shared() }
    }

    /// Starts a program in a terminal; its guard, and the socket over which that tells what becomes
    /// of the program, and whose end ends it.
    ///
    /// # Errors
    /// When there is no guard.
    pub async fn start(
        &self,
        program: &TerminalProgram,
        terminal: OwnedFd,
    ) -> io::Result<(TerminalGuard, UnixStream)> {
        if !self.is_shared {
            return self.start_alone(program, terminal);
        }
        let bytes = program.to_bytes()?;
        for _ in 0..TRIES {
            let shared = self.share()?;
            match timeout(SILENT_WITHIN, shared.hand_over(&bytes, &terminal)).await {
                Ok(Ok(control)) => return Ok((TerminalGuard(GuardKind::Shared(shared)), control)),
                Ok(Err(error)) => tracing::debug!(%error, "the guard of terminals is gone"),
                Err(_) => shared.group.signal(Signal::KILL),
            }
            self.forget(&shared);
        }
        Err(io::Error::other("its guard has ended"))
    }

    /// Starts a program under a guard of its own.
    fn start_alone(
        &self,
        program: &TerminalProgram,
        terminal: OwnedFd,
    ) -> io::Result<(TerminalGuard, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = self.program.command();
        command.arg(PTY).arg("--").args(&program.command);
        command.env_clear().envs(program.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &program.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::from(blocking(theirs)?)).stdout(Stdio::from(terminal)).stderr(Stdio::null());
        let guard = self.program.start(&mut command)?;
        // Only the guard has the other ends from here on.
        Ok((TerminalGuard(GuardKind::Own(guard)), ours))
    }

    /// The guard that terminals share.
    fn share(&self) -> io::Result<Arc<SharedGuard>> {
        let mut slot = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = slot.upgrade().filter(|shared| !*shared.ended.borrow()) {
            return Ok(shared);
        }
        let shared = Arc::new(SharedGuard::start(&self.program)?);
        *slot = Arc::downgrade(&shared);
        Ok(shared)
    }

    /// The next terminal is for another one.
    fn forget(&self, gone: &Arc<SharedGuard>) {
        let mut slot = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.ptr_eq(&Arc::downgrade(gone)) {
            *slot = Weak::new();
        }
    }
}

impl SharedGuard {
    fn start(program: &GuardProgram) -> io::Result<Self> {
        let (lifeline, theirs) = UnixStream::pair()?;
        let mut command = program.command();
        command.arg(SHARED).stdin(Stdio::from(blocking(theirs)?)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut guard = program.start(&mut command)?;
        let (group, released) = (guard.group(), CancellationToken::new());
        let (tell, ended) = watch::channel(false);
        let mut of_children = signal(SignalKind::child())?;
        let (wakes, stopped) = (group.clone(), released.clone());
        tokio::spawn(async move {
            let mut ending = std::pin::pin!(guard.ended(&stopped));
            let how = loop {
                tokio::select! {
                    how = &mut ending => break how,
                    // Somebody may have stopped it, which would keep all terminals waiting. Else
                    // this does nothing.
                    Some(()) = of_children.recv() => wakes.signal(Signal::CONT),
                }
            };
            if let Err(error) = how {
                tracing::warn!(%error, "how the guard of terminals ended is not known");
            }
            tell.send_replace(true);
        });
        Ok(Self { lifeline, group, ended, _released: released.drop_guard() })
    }

    /// Gives it a terminal, and what to start there; done when it has both.
    async fn hand_over(&self, program: &[u8], terminal: &OwnedFd) -> io::Result<UnixStream> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let send = || lifeline::send(&self.lifeline, theirs.as_fd());
        self.lifeline.async_io(Interest::WRITABLE, send).await?;
        drop(theirs);
        ours.async_io(Interest::WRITABLE, || lifeline::send(&ours, terminal.as_fd())).await?;
        let length = u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        ours.write_u32(length).await?;
        ours.write_all(program).await?;
        let mut taken = [0; TAKEN.len()];
        ours.read_exact(&mut taken).await?;
        Ok(ours)
    }
}

impl TerminalGuard {
    /// Waits until nothing of a terminal is left that is not wanted any more, for whose guard there
    /// is nothing more to hear but this.
    pub async fn ended(self, mut told: Lines<BufReader<OwnedReadHalf>>) {
        let shared = match self.0 {
            GuardKind::Own(mut guard) => {
                drop(told);
                let stopped = CancellationToken::new();
                stopped.cancel();
                if let Err(error) = guard.ended(&stopped).await {
                    tracing::warn!(%error, "how the guard of a terminal ended is not known");
                }
                return;
            }
            GuardKind::Shared(shared) => shared,
        };
        let mut is_gone = false;
        loop {
            match timeout(SILENT_WITHIN, told.next_line()).await {
                Ok(Ok(Some(line))) => is_gone |= line == GONE,
                Ok(Ok(None) | Err(_)) => break,
                // Somebody may stop it all the time. When it has ended, the host sees to what it
                // guarded.
                Err(_) => shared.group.signal(Signal::KILL),
            }
        }
        let mut ended = shared.ended.clone();
        let was_last = Arc::into_inner(shared).is_some();
        if was_last || !is_gone {
            // A sender that is gone has nothing to wait for.
            ended.wait_for(|ended| *ended).await.map(drop).unwrap_or_default();
        }
    }
}

/// Makes a socket blocking, for a process that waits when it reads.
fn blocking(socket: UnixStream) -> io::Result<OwnedFd> {
    let socket = socket.into_std()?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Returns whether one guard can tell the families of several terminals apart.
fn can_be_shared() -> bool {
    #[cfg(target_os = "linux")]
    {
        use crate::backend::acp::descendants::can_be_found;
        can_be_found() && super::marks::are_possible()
    }
    #[cfg(not(target_os = "linux"))]
    false
}
