//! Start of a process that serves clients.
//!
//! Owns: the options of a process ([`RunOptions`]), opening the state folder and pipes, listening.
//! Never: receives from or sends to a client; the loop does.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio::sync::mpsc;

use super::{Offered, Sidecar};
use crate::backend::Backend;
use crate::host::limits::Limits;
use crate::io::configuration::Configuration;
use crate::io::descriptors::no_thread;
use crate::io::events::Events;
use crate::io::fronts::{refuse_all, Fronts, HostSocket};
use crate::io::link::{ConnectionSettings, OnClose};
use crate::io::listen::Listening;
use crate::io::outbox::OutboxLimits;
use crate::io::persistence::{OpenedPersistence, Persistence};
use crate::io::ptys::ShellScripts;
use crate::io::stdio::{self, Stdout};
use crate::io::telemetry::LogExports;
use crate::io::upkeep::Upkeep;
use crate::os::hangup;
use crate::os::process::GuardProgram;
use crate::os::signals::catch_signals;
use crate::os::stdio::take;
use crate::status::EXIT_STATE;
use crate::store::folder::{self, StateFolder};
use crate::store::{StatePlace, StoreOptions};
use crate::versions::dialect::Dialect;

/// Options of a process that serves.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Serve a client on stdin and stdout.
    pub has_pipes: bool,
    /// Listeners to start with; `None` for no listeners.
    pub listening: Option<Listening>,
    /// Settings of the connection on stdin and stdout.
    pub terms: ConnectionSettings,
    /// Leave when the parent process is gone.
    pub watch_parent: bool,
    /// Use a fixed clock and counted ids, and handle one input at a time.
    pub deterministic: bool,
    /// Version of the protocol that is served before its release; `None` for released ones only.
    pub preview: Option<Dialect>,
    /// Limits of the core.
    pub limits: Limits,
    /// Folders in which clients may change files, besides those of sessions.
    pub write_roots: Vec<PathBuf>,
    /// Files and folders of the host, which no client may change.
    pub own_files: Vec<PathBuf>,
    /// Filters of the user's git configuration that git may run.
    pub git_filters: Vec<String>,
    /// Memory for idle sessions that are also in the store, in bytes.
    pub memory_budget: usize,
    /// Limits on queued output.
    pub outbox: OutboxLimits,
    /// Location of the sessions.
    pub state: StatePlace,
    /// Resolved state folder; `None` until it is locked, and if sessions are in memory.
    pub state_folder: Option<PathBuf>,
    /// Retention and limits of the store.
    pub store: StoreOptions,
    /// Streams in which clients receive the log.
    pub log_exports: LogExports,
    /// Guard for child processes; `None` if no programs can be started.
    pub guard: Option<GuardProgram>,
}

/// Reason for the end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Work done, no client left, or request to leave.
    Done,
    /// Work done, but something was declined or cut off because no client was left to answer.
    Cut,
}

/// Serves a client on stdin and stdout, if the options say so, and those that join or connect,
/// until the end.
///
/// # Errors
/// When the state folder, stdin, stdout or signals cannot be used. If the folder cannot, waiting
/// fronts receive the reason.
pub fn serve(
    mut options: RunOptions,
    (configuration, backends): (Configuration, Vec<Box<dyn Backend>>),
    held: Option<StateFolder>,
    place: Option<HostSocket>,
) -> anyhow::Result<Exit> {
    let parent = options.watch_parent.then(hangup::parent).flatten();
    options.own_files.extend(place.as_ref().map(|place| place.path.clone()));
    let opened = match open_persistence(&mut options, held) {
        Ok(opened) => opened,
        Err(error) => {
            if let Some(place) = place {
                refuse_all(&place.listener, &format!("{error:#}"), EXIT_STATE);
            }
            return Err(error.into());
        }
    };
    // A host of windows leaves with the last one.
    let stays = place.as_ref().is_none_or(|place| place.stays);
    let pipes = if options.has_pipes { Some(take()?) } else { None };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let exit = runtime.block_on(async {
        let (leave, leave_reasons) = mpsc::unbounded_channel();
        catch_signals(&leave)?;
        let (fronts, join_requests) = match place {
            Some(place) => {
                let (fronts, join_requests) =
                    Fronts::listen(place).context("cannot listen for other clients")?;
                (Some(fronts), join_requests)
            }
            None => (None, mpsc::unbounded_channel().1),
        };
        let terms = options.terms.clone();
        let line_bytes_max = terms.line_bytes_max;
        let preview = options.preview.or(configuration.preview());
        let options = RunOptions { preview, ..options };
        let offered = Offered {
            backends,
            servers: configuration.servers(),
            client_mcp: configuration.client_mcp(),
            automations: configuration.automations(),
            stays,
        };
        let (mut sidecar, mut events) = Sidecar::new(options, offered, opened, leave_reasons, join_requests);
        sidecar.fronts = fronts;
        // Clients may watch these.
        sidecar.resources.keep_from_clients(configuration.files().cloned().collect());
        let left = tokio::select! {
            listens = sidecar.listen_to_others(&terms) => listens.map(|()| None),
            // Binding may include a name lookup, which may take long.
            Some(_) = events.leave_reasons.recv() => Ok(Some(Exit::Done)),
        };
        if let Some(left) = left.transpose() {
            sidecar.close_listeners().await;
            sidecar.close_store();
            return left;
        }
        sidecar.begin_upkeep(&mut events, configuration)?;
        if let Some((stdin, stdout)) = pipes {
            let watched = stdout.try_clone().context("cannot watch stdout")?;
            let report = move |reason| leave.send(reason).is_ok();
            hangup::start(Some(watched), parent, None, report).map_err(no_thread)?;
            let writer = |receipts| Stdout::start(stdout, receipts);
            let lines =
                sidecar.acceptor.open(OnClose::Leave, terms, writer).context("cannot write to stdout")?;
            stdio::read_lines(stdin, line_bytes_max, lines, None).map_err(no_thread)?;
        }
        let exit = sidecar.run_to_the_end(events).await?;
        match sidecar.departure.unreadable {
            None => Ok(exit),
            Some(error) => Err(error).context("stdin cannot be read"),
        }
    });
    // A thread may be blocked forever in a read or a write. Dropping the loop releases the fronts
    // of the last clients, which wait for that.
    runtime.shutdown_background();
    exit
}

/// Returns the scripts that make shells report commands; `None` in memory or deterministic mode.
pub(super) fn shell_scripts(options: &RunOptions) -> Option<ShellScripts> {
    let has_shells = !options.deterministic && options.limits.ptys > 0;
    options.state_folder.as_deref().filter(|_| has_shells).map(ShellScripts::in_folder)
}

impl Sidecar {
    /// Starts the upkeep thread. Must be called inside a runtime.
    fn begin_upkeep(&mut self, events: &mut Events, configuration: Configuration) -> anyhow::Result<()> {
        self.built_in = self.agents.providers();
        self.built_in.retain(|provider| !configuration.offers(provider));
        let configuration = self.configuration.insert(configuration);
        // Deterministic mode does without: its output depends on the input alone.
        if !self.options.deterministic {
            let socket = self.fronts.as_ref().map(Fronts::socket_file);
            let (upkeep, news) = Upkeep::start(socket, configuration.take_file()).map_err(no_thread)?;
            (self.upkeep, events.upkeep) = (Some(upkeep), news);
        }
        Ok(())
    }

    async fn listen_to_others(&mut self, terms: &ConnectionSettings) -> anyhow::Result<()> {
        let Some(listening) = self.options.listening.take() else { return Ok(()) };
        print_urls(&self.listeners.ask(listening, &self.acceptor, terms).await?);
        Ok(())
    }
}

/// Prints the URLs of listeners on stderr, but not in the log, which must not contain the token.
pub fn print_urls(urls: &[String]) {
    for url in urls {
        // An error is ignored: `status` shows the URLs, too.
        writeln!(std::io::stderr(), "listening on {url}").unwrap_or_default();
    }
}

/// Unusable state folder, with the reason.
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

/// Returns the folder for temporary files of git.
pub(super) fn scratch_in(state_folder: Option<&Path>) -> PathBuf {
    match state_folder {
        Some(folder) => folder.join("git"),
        None => std::env::temp_dir().join(format!("{}-git-{}", env!("CARGO_PKG_NAME"), std::process::id())),
    }
}
