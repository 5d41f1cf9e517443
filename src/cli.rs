//! The command line, as one typed value.
//!
//! Owns: flags, their defaults, and what is wrong with them.
//! Never: does what a flag asks for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::Targets;

use crate::backend::acp::{relay, AgentSpec};
use crate::bundle::BundleArgs;
use crate::check::AgentsArguments;
use crate::config::{self, AgentSource};
use crate::conform::ConformArgs;
use crate::connect::ConnectArgs;
use crate::files::uris::uri_of;
use crate::help;
use crate::host::effects::Shutdown;
use crate::host::limits::Limits;
use crate::io::link::ConnectionSettings;
use crate::io::outbox::OutboxLimits;
use crate::io::run::RunOptions;
use crate::io::telemetry::LogExports;
use crate::listening::{ListenArgs, StatusArgs};
use crate::os::paths::canonical;
use crate::places;
use crate::run::arguments::RunArguments;
use crate::sessions::Sessions;
use crate::store::{StatePlace, StoreOptions};
use crate::trace::TraceArgs;
use crate::transcripts::record::RecordArgs;
use crate::transcripts::replay::ReplayArgs;
use crate::versions::dialect::Dialect;

/// Name of the hidden flag that makes this process the host of a state folder.
const AS_HOST: &str = "as-host";

/// Name of the hidden flag with which a process joins a host that has other settings.
pub(crate) const AS_GUEST: &str = "as-guest";

/// Default maximum length of an input line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Default memory budget, in bytes: half of it for idle sessions, half for unused turn texts.
const MEMORY_BUDGET: usize = 128 << 20;

/// Upper bound of `--max-frame-bytes` and `--max-turn-bytes`, in bytes: larger rows approach the
/// limit of the store.
const ASKED_BYTES_MAX: usize = 256 << 20;

/// Agent Host Protocol host: serves a client on stdin and stdout, one JSON-RPC message per line,
/// until stdin ends. Processes with the same state folder share their sessions.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLE, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Cli {
    /// Command in place of serving.
    #[command(subcommand)]
    pub command: Option<CliCommand>,

    /// How to serve.
    #[command(flatten)]
    pub serving: ServeOptions,
}

/// Serve clients that connect to a listener, until a signal asks to exit.
#[derive(Debug, Args)]
pub struct ServeOptions {
    #[command(flatten)]
    which: WhichAgents,

    #[command(flatten)]
    listen: ListenArgs,

    /// Do not offer the built-in agent `script`
    #[arg(long, conflicts_with = "script_resource")]
    pub no_script: bool,

    /// Keep sessions in this folder [default: `ahp-sidecar` in the platform's folder for state,
    /// such as ~/.local/state]
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Days for which a disposed session can be restored; 0: it is removed at once
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) trash_days: u32,

    /// Size of the database, in bytes, above which the oldest disposed sessions are removed early
    /// [default: no limit]
    #[arg(long, value_name = "N", conflicts_with = "ephemeral")]
    pub(crate) state_bytes: Option<u64>,

    /// Crashes in a row, while an interrupted turn is resumed, after which the turn is abandoned,
    /// and while it is abandoned, after which its session is quarantined; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) quarantine_after: u32,

    /// Time for which a request waits while nothing can be saved, for tests
    #[arg(long, value_name = "SECONDS", default_value_t = StoreOptions::default().request_wait.as_secs(), hide = true)]
    pub(crate) store_wait: u64,

    /// Serve this client alone, in this process; the state folder is locked meanwhile
    #[arg(long)]
    pub(crate) exclusive: bool,

    /// Serve the clients of other processes: what this program starts itself with
    #[arg(long = AS_HOST, hide = true, conflicts_with_all = ["exclusive", "ephemeral", "deterministic"])]
    as_host: bool,

    /// Join a host with other settings, but for the agents named here: what `run` starts
    #[arg(long = AS_GUEST, hide = true)]
    as_guest: bool,

    /// Keep sessions in memory only: they end with the process
    #[arg(long)]
    ephemeral: bool,

    /// Folder in which clients may change files, besides those that sessions work in; repeatable
    #[arg(long, value_name = "DIR")]
    pub(crate) write_root: Vec<PathBuf>,

    /// Start no shells for clients: they cannot create terminals
    #[arg(long)]
    pub(crate) no_terminals: bool,

    /// Time after which a terminal whose client has disconnected is closed, unless that client
    /// reconnects or another one takes over
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().terminal_grace_ms / 1000)]
    pub(crate) terminal_grace: u64,

    /// Use of git for the changes of turns in the repositories that sessions work in [default: on,
    /// and off with --deterministic]
    #[arg(long, value_enum)]
    git: Option<UseOfGit>,

    /// Filter of the user's git configuration that git may run on files, such as `lfs`; repeatable.
    /// Without it, git runs no program
    #[arg(long = "git-filter", value_name = "NAME")]
    pub(crate) git_filters: Vec<String>,

    /// Size above which git does not keep the content of a file, for tests
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().checkpoint_file_bytes_max, hide = true)]
    pub(crate) git_file_bytes: u64,

    /// Time that a turn waits for the checkpoint of its folder, in milliseconds, for tests
    #[arg(long, value_name = "MS", default_value_t = 2000, hide = true)]
    pub(crate) git_wait: u64,

    /// Folder at which clients start browsing [default: the current one]
    #[arg(long, value_name = "DIR")]
    default_directory: Option<PathBuf>,

    /// Effect of the end of stdin on running turns
    #[arg(long, value_enum, default_value_t = OnEof::Drain)]
    on_eof: OnEof,

    /// Time that turns may run after stdin has ended
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    drain_timeout: u64,

    /// Time that a client which keeps agents waiting may read nothing, where another one reads, for
    /// tests
    #[arg(long, value_name = "SECONDS", default_value_t = OutboxLimits::default().stall_limit.as_secs(), hide = true)]
    stall_timeout: u64,

    /// Maximum length of an input line, in bytes
    #[arg(long, value_name = "N", default_value_t = LINE_BYTES_MAX)]
    max_frame_bytes: usize,

    /// Maximum size of a turn, in bytes of JSON text; a larger one ends with an error
    #[arg(long, value_name = "N", default_value_t = Limits::default().turn_bytes)]
    pub(crate) max_turn_bytes: usize,

    /// Maximum memory of idle sessions and of turns that no client reads, in bytes of JSON text;
    /// the least recently used are evicted, and read from the store again when needed
    #[arg(long, value_name = "N", default_value_t = MEMORY_BUDGET)]
    pub(crate) memory_budget: usize,

    /// Maximum memory of all connections together, in bytes: queued output and unhandled input;
    /// above it, the client with the most queued output is disconnected
    #[arg(long, value_name = "N", default_value_t = OutboxLimits::default().total)]
    pub(crate) client_memory: usize,

    /// Do not exit when the parent process ends
    #[arg(long)]
    no_parent_watch: bool,

    /// Use a fixed clock, counted ids, and one input at a time: the same input gives the same
    /// output
    #[arg(long)]
    deterministic: bool,

    /// Resource for which the agent `script` requires a token; for tests of clients
    #[arg(long, value_name = "URL")]
    pub script_resource: Option<String>,

    /// Protocol version of a client whose first messages do not name it
    #[arg(long, value_name = "VERSION", value_parser = version_parser())]
    assume_version: Option<Dialect>,

    /// Serve the next version of the protocol before its release, as far as it is settled, to
    /// clients that offer it: see `help next`
    #[arg(long, value_name = "VERSION", value_parser = preview_parser())]
    pub(crate) preview: Option<Dialect>,

    /// Write what takes how long into this file, which must not exist: see `help diagnosis`. The
    /// client is served alone, in this process
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Log level on stderr, or TARGET=LEVEL pairs [default: warn, or RUST_LOG]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

/// Agents that are offered.
#[derive(Debug, Args)]
pub struct WhichAgents {
    /// Agent that speaks ACP, and the command line that starts it; repeatable. The command line is
    /// split as a shell splits it, but no shell runs it
    #[arg(long, value_name = "NAME=COMMAND LINE")]
    agent: Vec<String>,

    /// Configuration file (TOML) that describes agents in more detail [default:
    /// `ahp-sidecar/config.toml` in the platform's folder for configuration, such as ~/.config, if
    /// that file exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Returns the text that `help` prints.
///
/// # Errors
/// When there is no such command and no such topic.
pub fn help(topic: Option<&str>) -> anyhow::Result<String> {
    let mut command = Cli::command();
    command.build();
    let Some(topic) = topic else {
        return Ok(format!("{}\n{}", command.render_long_help(), help::topics()));
    };
    if let Some(text) = help::text_of(topic) {
        return Ok(format!("{}\n", text.trim_end()));
    }
    match command.find_subcommand_mut(topic) {
        Some(command) => Ok(command.render_long_help().to_string()),
        None => bail!("there is no command and no topic `{topic}`; `ahp-sidecar help` lists them"),
    }
}

impl WhichAgents {
    /// Selects the agents of this file.
    pub fn of_file(file: &Path) -> Self {
        Self { agent: Vec::new(), config: Some(file.to_owned()) }
    }

    /// Returns the configuration file that is read, whether or not it exists.
    pub fn file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(places::config_file)
    }

    /// Reads the agents that speak ACP.
    ///
    /// # Errors
    /// When one of them is not described well.
    pub fn agents(&self) -> anyhow::Result<Vec<AgentSpec>> {
        config::agents(&self.agent, self.config.as_deref(), places::config_file().as_deref())
    }

    /// Returns the flags that select the same agents in another process.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let agents = self.agent.iter().flat_map(|agent| ["--agent".into(), agent.into()]);
        let config = self.config.iter().flat_map(|file| ["--config".into(), file.into()]);
        agents.chain(config).collect()
    }

    /// Returns whether a configuration file is named.
    pub(crate) fn names_configuration(&self) -> bool {
        self.config.is_some()
    }
}

fn version_parser() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(Dialect::released().map(Dialect::name))
        .try_map(|name| Dialect::from_name(&name).ok_or("it is not a version of the protocol"))
}

fn preview_parser() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(Dialect::PREVIEWS.iter().map(|(name, _)| *name))
        .try_map(|name| Dialect::preview(&name).ok_or("it is no version that can be previewed"))
}

/// Commands in place of serving.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum CliCommand {
    /// Serve clients that connect to a listener, until a signal asks to exit
    Serve(Box<ServeOptions>),
    /// Connect stdin and stdout to a host that listens
    Connect(ConnectArgs),
    /// Print the processes that use a state folder, and their listeners
    Status(StatusArgs),
    /// List, export, restore and purge the sessions of a state folder; restore and purge require
    /// that no ahp-sidecar uses it
    Sessions(Sessions),
    /// Add, check, update and remove agents
    Agents(AgentsArguments),
    /// Run a host for the client on stdin and stdout, and record the conversation as a transcript
    Record(RecordArgs),
    /// Say what the client says in transcripts to a host, and report what the host says differently
    Replay(ReplayArgs),
    /// Judge a host of the Agent Host Protocol: which laws of the specification it keeps
    Conform(Box<ConformArgs>),
    /// Print what took how long, from a trace or a log
    Trace(TraceArgs),
    /// Write one file for a bug report, without what people and agents have said
    DebugBundle(Box<BundleArgs>),
    /// Run a short conversation with a host and print it; nothing is saved
    Demo,
    /// Run turns of an agent, print the answer, and exit: for shells and CI jobs
    Run(Box<RunArguments>),
    /// Print the help of a command, or a topic of the documentation
    Help {
        /// A command or a topic [default: all flags, and a list of the topics]
        topic: Option<String>,
    },
    /// Run git for the host: what this program starts itself with
    #[command(name = crate::io::git::MODE, hide = true)]
    RunGit {
        /// State folder of these jobs
        folder: PathBuf,
        /// Size above which the content of a file is not kept, in bytes
        file_bytes: u64,
        /// Filters of the user's configuration that git runs
        filters: Vec<String>,
    },
    /// Carry bytes between an agent and the host that offers it the tools of clients: what agents
    /// start
    #[command(name = relay::MODE, hide = true)]
    RelayClientTools,
}

const EXAMPLE: &str = r#"Try it:
  printf '%s\n' \
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"me","protocolVersions":["1.0.0"]}}' \
    '{"jsonrpc":"2.0","id":2,"method":"listSessions","params":{"channel":"ahp-root://"}}' \
  | ahp-sidecar --ephemeral

Exit status:
  0  stdin ended, the reader of stdout closed it, or a signal asked to exit; all done
  1  `agents check`: an agent cannot be used, is still starting, or does not accept its configuration; otherwise an internal error, an unreadable stdin, an unwritable stdout, or too few file descriptors or threads (reported on stderr)
  2  wrong usage, or an invalid configuration
  3  the state folder is unusable, locked by another ahp-sidecar, is used for something else, or has lost its store; there is no home folder for it; or its host has other settings, another internal protocol, or cannot be joined
  4  done, but a question was declined because no client was left to answer it, or a turn was cut by the drain timeout
  5  the host of the state folder has ended unexpectedly: start again, and send `reconnect`
  10 to 13, and 130: of `run`, see `ahp-sidecar run --help`
  20 `replay`: the host has said something else than a transcript, or a transcript cannot be played
  21 `record`, `replay`, `conform`: the host cannot be started
  22 `conform`: the host breaks a law of the protocol"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UseOfGit {
    /// Use git
    On,
    /// Do not run git
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnEof {
    /// Turns go on until they end or the drain timeout expires
    Drain,
    /// Turns are cancelled at once
    Exit,
}

impl ServeOptions {
    /// Returns the filter of the log, and a warning about that choice to be logged later, if there
    /// is one. The environment may be meant for other programs: `RUST_LOG` that cannot be parsed is
    /// no error.
    ///
    /// # Errors
    /// When `--log` is no filter.
    pub fn log_filter(&self) -> anyhow::Result<(Targets, Option<String>)> {
        if let Some(filter) = &self.log {
            let parsed =
                filter.parse().with_context(|| format!("--log: `{filter}` is not a valid log filter"))?;
            return Ok((parsed, None));
        }
        let warnings = Targets::new().with_default(tracing::Level::WARN);
        let Some(asked) = std::env::var_os("RUST_LOG") else { return Ok((warnings, None)) };
        match asked.to_str().and_then(|filter| filter.parse().ok()) {
            Some(parsed) => Ok((parsed, None)),
            None => {
                let complaint =
                    format!("RUST_LOG: {asked:?} is not a valid log filter; `warn` is used instead");
                Ok((warnings, Some(complaint)))
            }
        }
    }

    /// Returns the source that describes the agents which speak ACP.
    ///
    /// # Errors
    /// When a flag cannot be understood.
    pub fn agents(&self) -> anyhow::Result<AgentSource> {
        let WhichAgents { agent, config } = &self.which;
        AgentSource::new(agent, config.as_deref(), places::config_file().as_deref())
    }

    /// Returns whether git is asked what turns have changed.
    pub(crate) fn uses_git(&self) -> bool {
        self.git.map_or(!self.deterministic, |git| git == UseOfGit::On)
    }

    /// Returns the arguments that start this program again as the host of its state folder.
    pub fn to_be_host() -> impl Iterator<Item = OsString> {
        // The flag is first, because an argument may be `--`.
        [format!("--{AS_HOST}").into()].into_iter().chain(std::env::args_os().skip(1))
    }

    /// Returns whether this process serves the clients of other processes.
    pub fn is_host(&self) -> bool {
        self.as_host
    }

    /// Returns whether this process joins a host with other settings.
    pub(crate) fn is_guest(&self) -> bool {
        self.as_guest
    }

    /// Returns whether this process serves its client by itself, without a host.
    pub fn is_alone(&self) -> bool {
        self.exclusive || self.ephemeral || self.deterministic || self.trace.is_some()
    }

    /// Returns the paths that clients may not change: the state folder, the configuration file, and
    /// the files of the listeners. Those that the configuration names are known once it is read.
    fn own_files(&self) -> Vec<PathBuf> {
        let state = self.state_dir.clone().or_else(places::state_folder);
        let config = self.which.config.clone().or_else(places::config_file);
        state.into_iter().chain(config).chain(self.listen.files()).collect()
    }

    /// Returns the options of the process. With `stays`, it serves no client on stdin and stdout.
    ///
    /// # Errors
    /// When a folder does not exist, a size is too large, or no listener is given with `stays`.
    pub fn options(&self, stays: bool) -> anyhow::Result<RunOptions> {
        let default_directory = match &self.default_directory {
            Some(directory) => Some(
                canonical(directory)
                    .with_context(|| format!("--default-directory: `{}`", directory.display()))?,
            ),
            // A folder that was removed under us is no reason not to serve.
            None => std::env::current_dir().ok(),
        };
        if let Some(directory) = default_directory.as_ref().filter(|directory| !directory.is_dir()) {
            bail!("--default-directory: `{}` is not a folder", directory.display());
        }
        for (flag, bytes) in
            [("--max-frame-bytes", self.max_frame_bytes), ("--max-turn-bytes", self.max_turn_bytes)]
        {
            if bytes > ASKED_BYTES_MAX {
                bail!("{flag}: {bytes} bytes exceed the maximum of {ASKED_BYTES_MAX} bytes");
            }
        }
        let write_roots = self.write_root.iter().map(|folder| {
            let real = canonical(folder).ok().filter(|real| real.is_dir());
            real.with_context(|| format!("--write-root: `{}` is not a folder", folder.display()))
        });
        let write_roots = write_roots.collect::<anyhow::Result<Vec<_>>>()?;
        // A host listens when a front asks it to, also where that front has started it.
        let listening = if self.as_host { None } else { self.listen.listening()? };
        if stays && listening.is_none() {
            bail!("serve: no client could connect: choose an address with `--listen`");
        }
        Ok(RunOptions {
            has_pipes: !stays && !self.as_host,
            listening,
            terms: ConnectionSettings {
                default_directory: default_directory.map(|directory| uri_of(&directory)),
                line_bytes_max: self.max_frame_bytes,
                on_eof: match self.on_eof {
                    OnEof::Drain => Shutdown::Drain(Duration::from_secs(self.drain_timeout)),
                    OnEof::Exit => Shutdown::Cancel,
                },
                assume_version: self.assume_version,
                returns_within: None,
                stall_limit: Some(Duration::from_secs(self.stall_timeout)),
            },
            watch_parent: !self.no_parent_watch,
            deterministic: self.deterministic,
            preview: self.preview,
            limits: Limits {
                turn_bytes: self.max_turn_bytes,
                ptys: if self.no_terminals { 0 } else { Limits::default().ptys },
                terminal_grace_ms: self.terminal_grace.saturating_mul(1000),
                checkpoint_timeout_ms: if self.uses_git() { self.git_wait } else { 0 },
                checkpoint_file_bytes_max: self.git_file_bytes,
                ..Limits::default()
            },
            log_exports: LogExports::default(),
            guard: None,
            write_roots,
            own_files: self.own_files(),
            git_filters: self.git_filters.clone(),
            memory_budget: self.memory_budget / 2,
            outbox: OutboxLimits::default().within(self.client_memory),
            state_folder: None,
            state: if self.ephemeral {
                StatePlace::Memory
            } else {
                StatePlace::Folder(self.state_dir.clone())
            },
            store: StoreOptions {
                trash: Duration::from_secs(u64::from(self.trash_days) * 24 * 60 * 60),
                bytes_max: self.state_bytes,
                deaths_max: self.quarantine_after,
                text_bytes_max: self.memory_budget / 2,
                request_wait: Duration::from_secs(self.store_wait),
                ..StoreOptions::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
