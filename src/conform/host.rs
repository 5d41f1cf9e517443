//! Host that is judged: its processes, its state folder, and the connections to it.
//!
//! Owns: how a host is started, connected to, killed and started again.
//! Never: reads or writes a message.

use std::ffi::OsString;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use uuid::Uuid;

use super::stop::{CheckStop, Judged};
use crate::os::paths::NULL_DEVICE;
use crate::os::{exe, private};
use crate::transcripts::process::PlayedHost;
use crate::transcripts::{host_command, HostFailure, STATE};

/// Word that stands for a free port, in the host command and in `--connect`.
const PORT: &str = "{port}";

/// Interval between attempts to connect to a host that is starting.
const RETRY: Duration = Duration::from_millis(50);

/// Time limit for a host that has lost its clients, until its folder is removed.
const HOST_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Time limit of an attempt to connect.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

/// Way in which hosts are started.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// Folder for the folders of all checks.
    pub folder: PathBuf,
    /// Host command; empty for this program.
    pub command: Vec<OsString>,
    /// Address where the host listens; `None` if it is spoken to on its stdin and stdout.
    pub connect: Option<String>,
    /// True if several processes of the command serve the same sessions.
    pub shared: bool,
    /// True if a host that is killed and started again has its sessions.
    pub keeps_state: bool,
    /// True if what hosts write to stderr is shown.
    pub shows_stderr: bool,
}

impl HostPlan {
    /// Returns whether several clients can be connected at once.
    pub fn has_several_clients(&self) -> bool {
        self.connect.is_some() || self.shared || self.command.is_empty()
    }

    /// Returns whether the bytes of a client reach the host as they are.
    pub fn has_stdio(&self) -> bool {
        self.connect.is_none()
    }

    /// Returns whether the host runs already, so that others may use it.
    pub fn runs_already(&self) -> bool {
        self.command.is_empty() && self.connect.is_some()
    }

    /// Returns whether the host command names its state folder.
    pub fn names_state(&self) -> bool {
        self.command.iter().any(|word| word.to_string_lossy().contains(STATE))
    }

    /// Returns whether a state folder outlives the host.
    pub fn keeps_state(&self) -> bool {
        match (self.command.is_empty(), &self.connect) {
            (true, connect) => connect.is_none(),
            (false, _) => self.keeps_state,
        }
    }
}

/// Host of one check.
#[derive(Debug)]
pub struct JudgedHost {
    plan: HostPlan,
    /// Folder of this check, which has the state and the working directory; removed on drop.
    folder: PathBuf,
    /// Process that listens; `None` if clients have hosts of their own.
    server: Option<Child>,
    port: u16,
    /// Number of clients that were connected.
    clients: usize,
    /// True if a process serves one client alone, so that killing it kills the host.
    alone: bool,
}

impl JudgedHost {
    /// Creates the folders of a host; it is started with the first client.
    ///
    /// # Errors
    /// When a folder cannot be created.
    pub fn new(plan: &HostPlan, alone: bool) -> anyhow::Result<Self> {
        let folder = create_folder(&plan.folder, "")?;
        let work = folder.join("work");
        private::create_folder(&work).with_context(|| format!("`{}` cannot be created", work.display()))?;
        let port = if plan.connect.is_some() { free_port().context("no port is free")? } else { 0 };
        Ok(Self { plan: plan.clone(), folder, server: None, port, clients: 0, alone })
    }

    /// Returns the folder in which sessions work.
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Connects a client, and starts the host if it does not run.
    ///
    /// # Errors
    /// When the host cannot be started, does not listen in time, or serves one client only.
    pub fn connect(&mut self, deadline: Instant) -> Judged<PlayedHost> {
        if self.clients > 0 && (self.alone || !self.plan.has_several_clients()) {
            return Err(CheckStop::NotOffered(
                "the host has one client: say `--shared` or `--connect` if it has several".to_owned(),
            ));
        }
        self.clients += 1;
        let Some(address) = self.plan.connect.clone() else {
            return Ok(self.started(&self.command())?);
        };
        let address = self.filled(&address);
        if self.server.is_none() && !self.plan.command.is_empty() {
            let mut command = self.command();
            if !self.plan.shows_stderr {
                command.stderr(Stdio::null());
            }
            let name = command.get_program().to_string_lossy().into_owned();
            let spawned = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            let failure = |error| HostFailure::new(format!("`{name}`: {error}"));
            self.server = Some(spawned.map_err(failure).map_err(anyhow::Error::new)?);
        }
        while !listens(&address) {
            if Instant::now() >= deadline {
                return Err(
                    anyhow::Error::new(HostFailure::new(format!("nothing listens at `{address}`"))).into()
                );
            }
            thread::sleep(RETRY);
        }
        let command = host_command(&[address.into()], None);
        Ok(self.started(&command)?)
    }

    /// Notes that a client is no longer connected.
    pub fn disconnected(&mut self) {
        self.clients = self.clients.saturating_sub(1);
    }

    /// Kills the process that listens, if there is one.
    pub fn kill(&mut self) {
        let killed = self.server.take().map(|mut server| server.kill().and_then(|()| server.wait()));
        if let Some(Err(error)) = killed {
            tracing::debug!(%error, "the host cannot be killed");
        }
    }

    fn command(&self) -> Command {
        let state = self.folder.join("state");
        if self.plan.command.is_empty() {
            let mut command = exe::command();
            command.arg("--state-dir").arg(&state).args(["--config", NULL_DEVICE]);
            command.arg("--default-directory").arg(self.work());
            if self.alone {
                command.arg("--exclusive");
            }
            return command;
        }
        let port = |word: &OsString| match word.to_str() {
            Some(text) => self.filled(text).into(),
            None => word.clone(),
        };
        let words: Vec<OsString> = self.plan.command.iter().map(port).collect();
        host_command(&words, Some(&state))
    }

    fn filled(&self, text: &str) -> String {
        text.replace(PORT, &self.port.to_string())
    }

    fn started(&self, command: &Command) -> anyhow::Result<PlayedHost> {
        // The host may be shared with other clients, so it must not end with this one.
        PlayedHost::start(command, None, self.plan.shows_stderr)
    }
}

impl Drop for JudgedHost {
    fn drop(&mut self) {
        self.kill();
        remove_folder(&self.folder);
    }
}

/// Creates a folder of this user alone, with a name that begins so.
///
/// # Errors
/// When it cannot be created.
pub fn create_folder(parent: &Path, prefix: &str) -> anyhow::Result<PathBuf> {
    // Short, since paths of sockets below it are limited.
    let random = Uuid::new_v4().simple().to_string();
    let folder = parent.join(format!("{prefix}{}", &random[..12]));
    private::create_folder(&folder).with_context(|| format!("`{}` cannot be created", folder.display()))?;
    Ok(folder)
}

/// Removes a folder. A host that clients share ends after the last of them, and still writes
/// meanwhile.
pub fn remove_folder(folder: &Path) {
    let deadline = Instant::now() + HOST_ENDS_WITHIN;
    while let Err(error) = std::fs::remove_dir_all(folder) {
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        if Instant::now() >= deadline {
            return tracing::warn!(%error, "`{}` cannot be removed", folder.display());
        }
        thread::sleep(RETRY);
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Returns whether something listens at an address.
fn listens(address: &str) -> bool {
    if let Some(path) = address.strip_prefix("unix:") {
        return Path::new(path).exists();
    }
    let authority = address.trim_start_matches("ws://").split('/').next().unwrap_or_default();
    let mut addresses = authority.to_socket_addrs().into_iter().flatten();
    addresses.any(|address| TcpStream::connect_timeout(&address, CONNECTS_WITHIN).is_ok())
}
