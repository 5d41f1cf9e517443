//! The program as a child, and its pipes.
//!
//! Owns: starting it with nothing inherited, reading with a limit, hosts that listen, folders in
//! which they keep things, and the pipes as the crates' clients want them, on which every line is
//! judged as it passes.
//! Never: understands what is said.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{bail, Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use super::ears::Ears;
use super::hung;

/// The program, with nothing inherited.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(super::super::program());
    command.env_clear().current_dir("/").args(["--log", "error"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A running program, spoken to line by line.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// One that keeps nothing.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::spawn(&[&["--ephemeral"], arguments].concat())
    }

    /// One that keeps everything in this folder.
    pub fn start_keeping(folder: &str) -> Result<Self> {
        Self::spawn(&["--exclusive", "--state-dir", folder])
    }

    /// A window on this folder, which others share.
    pub fn start_sharing(folder: &str) -> Result<Self> {
        Self::spawn(&["--state-dir", folder])
    }

    fn spawn(arguments: &[&str]) -> Result<Self> {
        let mut child = program(arguments).spawn().context("the host's program cannot be started")?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { stdin: child.stdin.take(), child, lines })
    }

    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("stdin has been closed")?;
        stdin.write_all(format!("{line}\n").as_bytes()).context("the host does not listen")
    }

    /// The next line; none when the output has ended.
    pub fn hear(&mut self) -> Result<Option<String>> {
        match self.lines.recv_timeout(hung()) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("nothing came within {:?}", hung()),
        }
    }

    /// Ends the input. What comes until the end of the output is heard before the program is waited
    /// for.
    pub fn end(&mut self) {
        self.stdin = None;
    }

    /// Waits for the program, whose output has ended.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A judgement that failed half-way leaves nothing behind.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// A host that others connect to. Whoever drops it kills it.
pub struct Listening {
    child: Child,
    /// The first address, as it was printed.
    pub url: String,
}

impl Listening {
    /// Listens on these addresses, and keeps everything in this folder.
    pub fn start(folder: &str, addresses: &[&str]) -> Result<Self> {
        let mut command = Command::new(super::super::program());
        command.env_clear().current_dir("/").args(["serve", "--state-dir", folder]);
        for address in addresses {
            command.args(["--listen", address]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut host =
            Self { child: child.context("the host's program cannot be started")?, url: String::new() };
        let mut log = BufReader::new(host.child.stderr.take().context("no stderr")?).lines();
        for _ in addresses {
            let line = log.next().context("the host has ended")??;
            let url = line.strip_prefix("listening on ").with_context(|| line.clone())?;
            if host.url.is_empty() {
                host.url = url.to_owned();
            }
        }
        // Nobody needs the rest, but it has to go somewhere.
        thread::spawn(move || log.for_each(drop));
        Ok(host)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A folder that is gone when nobody needs it any more.
pub struct Folder(pub PathBuf);

impl Folder {
    /// One of this process, under this name, which may not be there yet.
    pub fn named(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("judge-{}-{name}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A child's pipes for a crate's client, and the ears that judge what passes.
pub struct Pipes {
    stdin: Option<tokio::process::ChildStdin>,
    stdout: tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>,
    judged: Arc<Mutex<Judged>>,
}

/// Result of checking the lines on a pipe.
pub struct Judged {
    ears: Ears,
    /// Number of lines received.
    pub heard: usize,
    /// The first thing that was wrong. A crate's client is silent about what it cannot parse.
    pub wrong: Option<anyhow::Error>,
}

impl Pipes {
    /// Starts the program.
    pub fn start(
        ears: Ears,
        arguments: &[&str],
    ) -> Result<(tokio::process::Child, Self, Arc<Mutex<Judged>>)> {
        let mut command = tokio::process::Command::from(program(&[&["--ephemeral"], arguments].concat()));
        let mut child = command.kill_on_drop(true).spawn().context("the host's program cannot be started")?;
        let stdout = tokio::io::BufReader::new(child.stdout.take().context("no stdout")?).lines();
        let judged = Arc::new(Mutex::new(Judged { ears, heard: 0, wrong: None }));
        let pipes = Self { stdin: child.stdin.take(), stdout, judged: judged.clone() };
        Ok((child, pipes, judged))
    }

    pub async fn say(&mut self, line: &str) -> Result<()> {
        self.judge(|judged| judged.ears.said(line))?;
        let stdin = self.stdin.as_mut().context("stdin has been closed")?;
        Ok(stdin.write_all(format!("{line}\n").as_bytes()).await?)
    }

    pub async fn hear(&mut self) -> Result<Option<String>> {
        let line = self.stdout.next_line().await?;
        if let Some(line) = &line {
            self.judge(|judged| {
                judged.heard += 1;
                judged.ears.hear(line).map(drop)
            })?;
        }
        Ok(line)
    }

    pub fn end(&mut self) {
        self.stdin = None;
    }

    /// Notes what is wrong, and ends the connection with it.
    fn judge(&self, step: impl FnOnce(&mut Judged) -> Result<()>) -> Result<()> {
        let Ok(mut judged) = self.judged.lock() else { bail!("a judge has panicked") };
        if let Err(why) = step(&mut judged) {
            judged.wrong = judged.wrong.take().or(Some(why));
            bail!("something is wrong");
        }
        Ok(())
    }
}
