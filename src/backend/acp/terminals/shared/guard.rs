//! The guard that terminals share: this program in a hidden mode. Its stdin is the lifeline to the
//! host, over which it gets the sockets of terminals.
//!
//! It is one thread, which waits for nothing but for all of that at once: no terminal waits for
//! another one's end. What may take its time before a program runs, as going to its directory, is
//! done by the leader of its session.
//!
//! Owns: starting a program in each terminal, telling what becomes of it, and ending all that
//! descends from it.
//! Never: ends somebody of another terminal. Who belongs to none of them ends with the last one.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use rustix::process::{RawPid, WaitStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::unix::{pipe, OwnedReadHalf, OwnedWriteHalf};
use tokio::net::UnixStream;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::{oneshot, watch};
use tokio::task::{yield_now, JoinSet, LocalSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::families::ProcessTrees;
use super::marks::TerminalMark;
use super::{TerminalProgram, ENDING, GONE, TAKEN};
use crate::backend::acp::descendants::{
    terminate_some, Children, DescendantKiller, KillProgress, SWEEP_INTERVAL,
};
use crate::backend::acp::guard::{lead, lifeline_to_host, number_of, EXIT_GRACE};
use crate::backend::acp::lifeline::{take, LifelineEvent};
use crate::backend::acp::terminals::guard::{news_of, GuardReport};

/// Maximum size of the message that describes a program to start, in bytes: more than any system
/// takes.
const PROGRAM_BYTES_MAX: u32 = 64 << 20;

/// Guards what is started in terminals, until the host is gone or has none any more. `leader` is
/// how this program is started as the leader of a session.
pub fn run(leader: fn() -> Command) -> u8 {
    u8::from(guard(leader).is_err())
}

fn guard(leader: fn() -> Command) -> io::Result<()> {
    let host = lifeline_to_host()?;
    if !lead()?.adopts() {
        return Err(io::Error::other("orphans cannot be adopted"));
    }
    let families =
        ProcessTrees::new().ok_or_else(|| io::Error::other("there are no numbers for terminals"))?;
    host.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    runtime.block_on(tasks.run_until(async move {
        let (reaped, _) = watch::channel(());
        let terminals = GuardedTerminals {
            leader,
            families: RefCell::new(families),
            reaped,
            over: CancellationToken::new(),
        };
        attend(Rc::new(terminals), UnixStream::from_std(host)?).await
    }))
}

/// All terminals, as their tasks see them.
#[derive(Debug)]
struct GuardedTerminals {
    leader: fn() -> Command,
    families: RefCell<ProcessTrees>,
    /// Signal that processes have ended and were reaped.
    reaped: watch::Sender<()>,
    /// The host is gone.
    over: CancellationToken,
}

/// Attends to terminals until the host is gone, and then until nobody of theirs is left.
async fn attend(terminals: Rc<GuardedTerminals>, host: UnixStream) -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    let reaping = Rc::clone(&terminals);
    tokio::task::spawn_local(async move {
        while ended.recv().await.is_some() {
            reaping.reap();
        }
    });
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            taken = host.async_io(Interest::READABLE, || take(&host)) => match taken {
                Ok(LifelineEvent::File(control)) => {
                    tasks.spawn_local(Rc::clone(&terminals).attend_to(control));
                }
                // Without a socket there is nobody who could be told.
                Ok(LifelineEvent::Nothing) => {}
                Ok(LifelineEvent::End) | Err(_) => break,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
    terminals.over.cancel();
    while tasks.join_next().await.is_some() {}
    terminals.end(None, None).await;
    Ok(())
}

/// A program that was started in a terminal.
struct BegunProgram {
    mark: TerminalMark,
    ended: oneshot::Receiver<WaitStatus>,
    /// Why it does not run; nothing when it does.
    told: pipe::Receiver,
}

impl GuardedTerminals {
    fn reap(&self) {
        self.families.borrow_mut().reap();
        self.reaped.send_replace(());
    }

    fn children(&self, whose: Option<TerminalMark>, children: &Children) -> Vec<RawPid> {
        self.families.borrow().children(whose, children)
    }

    /// Attends to a terminal until it is not wanted any more and nobody of it is left.
    async fn attend_to(self: Rc<Self>, control: OwnedFd) {
        // What is not taken is not told of: the host sees that it was not.
        let taken = tokio::select! {
            taken = receive(control) => taken,
            () = self.over.cancelled() => return,
        };
        let Ok((control, program, terminal)) = taken else { return };
        let (mut host, mut tell) = control.into_split();
        match self.start(&program, terminal) {
            Ok(begun) => {
                drop(program);
                self.carry(begun, &mut host, &mut tell).await;
            }
            Err(error) => say(&mut tell, &GuardReport::NotStarted(error.to_string()).line()).await,
        }
        say(&mut tell, &format!("{GONE}\n")).await;
    }

    /// Attends to a terminal whose program was started, and ends what is left of it.
    async fn carry(&self, begun: BegunProgram, host: &mut OwnedReadHalf, tell: &mut OwnedWriteHalf) {
        let BegunProgram { mark, ended, mut told } = begun;
        let mut end = std::pin::pin!(self.end_of(host));
        let mut why = String::new();
        tokio::select! {
            () = &mut end => {}
            () = async {
                if let Err(error) = told.read_to_string(&mut why).await {
                    why = error.to_string();
                }
                if !why.is_empty() {
                    return say(tell, &GuardReport::NotStarted(why).line()).await;
                }
                say(tell, &GuardReport::Started.line()).await;
                if let Ok(status) = ended.await {
                    say(tell, &news_of(status).line()).await;
                }
            } => {
                // What it has left behind goes on until it ends, or until the host has enough.
                end.await;
            }
        }
        say(tell, &format!("{ENDING}\n")).await;
        if self.end(Some(mark), Some(tell)).await {
            self.families.borrow_mut().remove(mark);
        }
    }

    /// Waits until a terminal is not wanted any more.
    async fn end_of(&self, host: &mut OwnedReadHalf) {
        let told = async {
            // Nothing is said any more.
            let mut nothing = [0; 64];
            while matches!(host.read(&mut nothing).await, Ok(1..)) {}
        };
        tokio::select! {
            () = told => {}
            () = self.over.cancelled() => {}
        }
    }

    /// Starts a program in a terminal, by way of the leader of its session.
    fn start(&self, program: &TerminalProgram, terminal: OwnedFd) -> io::Result<BegunProgram> {
        let (told, tells) = io::pipe()?;
        let told = pipe::Receiver::from_owned_fd(OwnedFd::from(told))?;
        let mark = self.families.borrow_mut().add();
        let mark = mark.ok_or_else(|| io::Error::other("there are no numbers left for terminals"))?;
        let mut leader = (self.leader)();
        leader.arg(mark.text()).arg(program.directory.as_deref().unwrap_or("".as_ref()));
        leader.arg("--").args(&program.command);
        leader.env_clear().envs(program.environment.iter().map(|(name, value)| (name, value)));
        let started = terminal.try_clone().and_then(|stdin| {
            leader.stdin(Stdio::from(stdin)).stdout(Stdio::from(terminal)).stderr(tells);
            number_of(&leader.spawn()?)
        });
        match started {
            Ok(leader) => {
                let ended = self.families.borrow_mut().begun(mark, leader.as_raw_pid());
                Ok(BegunProgram { mark, ended, told })
            }
            Err(error) => {
                self.families.borrow_mut().remove(mark);
                Err(error)
            }
        }
    }

    /// Asks all of a family to leave, or everybody when none is named, and kills who has not.
    /// Returns whether nobody is left; else there are some who cannot be killed.
    async fn end(&self, whose: Option<TerminalMark>, mut tell: Option<&mut OwnedWriteHalf>) -> bool {
        let top = |children: &Children| self.children(whose, children);
        terminate_some(top);
        let have_left = async {
            let mut reaped = self.reaped.subscribe();
            let mut nobody_before = false;
            loop {
                self.families.borrow_mut().reap();
                let nobody = top(&Children::snapshot()).is_empty();
                if nobody && nobody_before {
                    return;
                }
                nobody_before = nobody;
                if !nobody && reaped.changed().await.is_err() {
                    pending::<()>().await;
                }
            }
        };
        if timeout(EXIT_GRACE, have_left).await.is_ok() {
            return true;
        }
        let mut killer = DescendantKiller::begin();
        let mut said = Instant::now();
        loop {
            self.reap();
            match killer.sweep(top) {
                KillProgress::NoneLeft => return true,
                KillProgress::NewFound => yield_now().await,
                KillProgress::NoneNew(since) if since > EXIT_GRACE => return false,
                KillProgress::NoneNew(_) => sleep(SWEEP_INTERVAL).await,
            }
            // The host knows that this is worked on.
            if let Some(tell) = tell.as_mut().filter(|_| said.elapsed() > EXIT_GRACE) {
                said = Instant::now();
                say(tell, &format!("{ENDING}\n")).await;
            }
        }
    }
}

/// Takes a terminal, with what is to be started there, and says so.
async fn receive(control: OwnedFd) -> io::Result<(UnixStream, TerminalProgram, OwnedFd)> {
    let control = Socket::from(control);
    control.set_nonblocking(true)?;
    let mut control = UnixStream::from_std(control)?;
    let LifelineEvent::File(terminal) = control.async_io(Interest::READABLE, || take(&control)).await? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let length = control.read_u32().await?;
    if length > PROGRAM_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    (&mut control).take(length.into()).read_to_end(&mut bytes).await?;
    let program = TerminalProgram::of_bytes(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    control.write_all(TAKEN).await?;
    Ok((control, program, terminal))
}

/// Tells the host. One that is gone need not be told.
async fn say(tell: &mut OwnedWriteHalf, line: &str) {
    tell.write_all(line.as_bytes()).await.unwrap_or_default();
}
