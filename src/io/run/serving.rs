//! How a process begins to serve, and how it ends.
//!
//! Owns: what a process was asked for ([`RunOptions`]), taking the state folder, stdin and stdout,
//! and being found by others.
//! Never: hears or answers anybody: that begins with the loop.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use tokio::sync::mpsc;

use super::Sidecar;
use crate::backend::acp::guards::GuardProgram;
use crate::backend::Backend;
use crate::host::limits::Limits;
use crate::io::configuration::Configuration;
use crate::io::descriptors::no_thread;
use crate::io::events::Events;
use crate::io::fronts::{Fronts, HostSocket};
use crate::io::link::{ConnectionSettings, OnClose};
use crate::io::listen::Listening;
use crate::io::outbox::OutboxLimits;
use crate::io::persistence::{OpenedPersistence, Persistence};
use crate::io::ptys::ShellScripts;
use crate::io::signals::catch_signals;
use crate::io::stdio::{self, Stdout};
use crate::io::upkeep::{SocketFile, Upkeep};
use crate::io::watch;
use crate::status::EXIT_STATE;
use crate::store::folder::{self, StateFolder};
use crate::store::{StatePlace, StoreOptions};

/// How a process serves.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Serve nobody on stdin and stdout, and stay until a signal asks to leave.
    pub stays: bool,
    /// Listeners to begin with.
    pub listening: Option<Listening>,
    /// Settings of the connection on stdin and stdout.
    pub terms: ConnectionSettings,
    /// Leave when the process that started us is gone.
    pub watch_parent: bool,
    /// A fixed clock, counted ids, and one input at a time.
    pub deterministic: bool,
    /// How large things may get.
    pub limits: Limits,
    /// Folders in which clients may change files, besides those of sessions.
    pub write_roots: Vec<PathBuf>,
    /// The host's own files and folders, which no client changes.
    pub own_files: Vec<PathBuf>,
    /// Filters of the user's git configuration that git runs.
    pub git_filters: Vec<String>,
    /// Memory for idle sessions that are in the store, too, in bytes.
    pub memory_budget: usize,
    /// Limits on what waits to be written.
    pub outbox: OutboxLimits,
    /// Place of the sessions.
    pub state: StatePlace,
    /// The folder that this is, once it is held.
    pub state_folder: Option<PathBuf>,
    /// Retention of what is over.
    pub store: StoreOptions,
    /// How programs in terminals are started; none where none can be.
    pub guard: Option<GuardProgram>,
}

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All done, or nobody is left to read it, or we were asked to.
    Done,
    /// Done, but something was declined or cut because nobody was left to answer.
    Cut,
}

/// Serves one client on stdin and stdout until the end, and those who connect or join besides,
/// where they can.
///
/// # Errors
/// When the process has no usable stdin, stdout, or signals.
pub fn serve(
    mut options: RunOptions,
    (configuration, backends): (Configuration, Vec<Box<dyn Backend>>),
    held: Option<StateFolder>,
    place: Option<HostSocket>,
) -> anyhow::Result<Exit> {
    let parent = options.watch_parent.then(watch::parent).flatten();
    options.own_files.extend(place.as_ref().map(|place| place.path.clone()));
    let opened = match open_persistence(&mut options, held) {
        Ok(opened) => opened,
        Err(error) => {
            if let Some(place) = place {
                place.refuse(&format!("{error:#}"), EXIT_STATE);
            }
            return Err(error.into());
        }
    };
    let pipes = if options.stays { None } else { Some(stdio::take()?) };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let exit = runtime.block_on(async {
        let (losses, lost) = mpsc::unbounded_channel();
        catch_signals(&losses)?;
        let socket = place.as_ref().and_then(HostSocket::socket_file);
        let (fronts, join_requests) = match place {
            Some(place) => {
                let (fronts, join_requests) = Fronts::listen(place).context("nobody can be listened for")?;
                (Some(fronts), join_requests)
            }
            None => (None, mpsc::unbounded_channel().1),
        };
        let terms = options.terms.clone();
        let line_bytes_max = terms.line_bytes_max;
        let (mut sidecar, mut events) = Sidecar::new(options, backends, opened, lost, join_requests);
        sidecar.fronts = fronts;
        if let Err(error) = sidecar.listen_to_others(&terms).await {
            sidecar.close_listeners().await;
            sidecar.close_store();
            return Err(error);
        }
        sidecar.begin_upkeep(&mut events, configuration, socket)?;
        if let Some((stdin, stdout)) = pipes {
            let watched = stdout.try_clone().context("cannot watch stdout")?.into();
            let tell = move |loss| losses.send(loss).is_ok();
            watch::start(Some(watched), parent, None, tell).map_err(no_thread)?;
            let writer = |receipts| Stdout::start(stdout, receipts);
            let lines =
                sidecar.acceptor.open(OnClose::Leave, terms, writer).context("cannot write to stdout")?;
            stdio::read_lines(stdin, line_bytes_max, lines, None).map_err(no_thread)?;
        }
        let exit = sidecar.run_to_the_end(events).await?;
        match sidecar.unreadable {
            None => Ok(exit),
            Some(error) => Err(error).context("stdin cannot be read"),
        }
    });
    // A thread may be stuck in a read or a write for ever.
    runtime.shutdown_background();
    exit
}

/// The scripts that have shells tell of their commands, in the state folder; none where there is no
/// such folder, or where what is told must be the same each time.
pub(super) fn shell_scripts(options: &RunOptions) -> Option<ShellScripts> {
    let StatePlace::Folder(asked) = &options.state else { return None };
    if options.deterministic || options.limits.ptys == 0 {
        return None;
    }
    folder::chosen(asked.as_deref()).ok().map(|folder| ShellScripts::in_folder(&folder))
}

impl Sidecar {
    /// Begins to look after what others may change under us. Must be called inside a runtime.
    ///
    /// # Errors
    /// When no thread can be started for that.
    fn begin_upkeep(
        &mut self,
        events: &mut Events,
        configuration: Configuration,
        socket: Option<SocketFile>,
    ) -> anyhow::Result<()> {
        self.built_in = self.agents.describe().into_iter().map(|agent| agent.info.provider).collect();
        self.built_in.retain(|provider| !configuration.offers(provider));
        let configuration = self.configuration.insert(configuration);
        // Else the same input would not give the same output.
        if !self.options.deterministic {
            let (upkeep, news) = Upkeep::start(socket, configuration.take_file()).map_err(no_thread)?;
            (self.upkeep, events.upkeep) = (Some(upkeep), news);
        }
        Ok(())
    }

    /// Begins to listen where this process itself was asked to, and tells where on stderr.
    async fn listen_to_others(&mut self, terms: &ConnectionSettings) -> anyhow::Result<()> {
        let Some(listening) = self.options.listening.take() else { return Ok(()) };
        print_urls(&self.listeners.ask(listening, &self.acceptor, terms).await?);
        Ok(())
    }
}

/// Prints where is listened. It is no line of the log: that never has the token.
pub fn print_urls(urls: &[String]) {
    for url in urls {
        // Nobody reads stderr: `status` tells, too.
        writeln!(std::io::stderr(), "listening on {url}").unwrap_or_default();
    }
}

/// Serves the clients of fronts in a state folder that we hold, until the last of them is gone and
/// its turns are over.
///
/// # Errors
/// When the folder cannot be used, or the process has no signals. Whoever has come by then is told.
pub fn serve_fronts(
    mut options: RunOptions,
    (configuration, backends): (Configuration, Vec<Box<dyn Backend>>),
    held: StateFolder,
    place: HostSocket,
) -> anyhow::Result<Exit> {
    let opened = match open_persistence(&mut options, Some(held)) {
        Ok(opened) => opened,
        Err(error) => {
            place.refuse(&format!("{error:#}"), EXIT_STATE);
            return Err(error.into());
        }
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let exit = runtime.block_on(async {
        let (losses, lost) = mpsc::unbounded_channel();
        catch_signals(&losses)?;
        let socket = place.socket_file();
        let (fronts, join_requests) = Fronts::listen(place).context("nobody can be listened for")?;
        let (mut sidecar, mut events) = Sidecar::new(options, backends, opened, lost, join_requests);
        sidecar.fronts = Some(fronts);
        sidecar.begin_upkeep(&mut events, configuration, socket)?;
        sidecar.run_to_the_end(events).await
    });
    // With it go the fronts of the last clients, which wait for that.
    runtime.shutdown_background();
    exit
}

/// Why a host cannot begin to serve: its state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct StateError(anyhow::Error);

fn open_persistence(
    options: &mut RunOptions,
    held: Option<StateFolder>,
) -> Result<OpenedPersistence, StateError> {
    let StatePlace::Folder(asked) = &options.state else { return Ok(Persistence::in_memory()) };
    let held = match held {
        Some(held) => Ok(held),
        None => folder::chosen(asked.as_deref()).and_then(|folder| StateFolder::hold(&folder)),
    };
    held.map_err(anyhow::Error::from)
        .and_then(|folder| {
            options.state_folder = Some(folder.path().to_owned());
            Persistence::open_held(folder, options.store)
        })
        .map_err(StateError)
}

/// Returns the folder for files that exist only while git works on them.
pub(super) fn scratch_of(state: &StatePlace) -> PathBuf {
    let chosen = match state {
        StatePlace::Folder(asked) => folder::chosen(asked.as_deref()).ok(),
        StatePlace::Memory => None,
    };
    match chosen {
        Some(folder) => folder.join("git"),
        None => std::env::temp_dir().join(format!("{}-git-{}", env!("CARGO_PKG_NAME"), std::process::id())),
    }
}
