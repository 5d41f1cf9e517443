//! Entry point: parses arguments, and returns an exit status.

use std::process::ExitCode;

use ahp_sidecar::adopting::HostGone;
use ahp_sidecar::backend::acp::{relay, Acp};
use ahp_sidecar::backend::script::{GuardedScript, Script};
use ahp_sidecar::backend::Backend;
use ahp_sidecar::bundle;
use ahp_sidecar::check::{self, AgentsArguments, Checked};
use ahp_sidecar::cli::{self, Cli, CliCommand, ServeOptions};
use ahp_sidecar::config::{AgentSource, ConfigurationReading};
use ahp_sidecar::conform::{conform, Conformed};
use ahp_sidecar::connect::{self, ConnectArgs, Ended, Unreachable};
use ahp_sidecar::demo;
use ahp_sidecar::front::{self, Joined, LeaveSignals};
use ahp_sidecar::git;
use ahp_sidecar::io::configuration::Configuration;
use ahp_sidecar::io::descriptors::TooFewDescriptors;
use ahp_sidecar::io::fronts::{refuse_all, HostSocket};
use ahp_sidecar::io::log::{Log, LogReaders};
use ahp_sidecar::io::run::{serve, Exit, RunOptions, StateError};
use ahp_sidecar::io::{descriptors, log};
use ahp_sidecar::listening::{print, print_status};
use ahp_sidecar::os::exe::{self, KeptProgram};
use ahp_sidecar::os::lending::{self, LentPipes};
use ahp_sidecar::os::process::{self, GuardProgram};
use ahp_sidecar::os::{hangup, limits, signals};
use ahp_sidecar::run::{self, CaughtSignals};
use ahp_sidecar::sessions::{self, SessionsFailure};
use ahp_sidecar::status::{
    EXIT_BROKEN, EXIT_CANCELLED, EXIT_CUT, EXIT_DIFFERENT, EXIT_FAILURE, EXIT_GONE, EXIT_NO_HOST, EXIT_STATE,
    EXIT_USAGE,
};
use ahp_sidecar::store::folder::{self, LockId, StateFolder};
use ahp_sidecar::store::StatePlace;
use ahp_sidecar::trace;
use ahp_sidecar::transcripts::record::record;
use ahp_sidecar::transcripts::replay::{replay, Replayed};
use ahp_sidecar::transcripts::HostFailure;
use ahp_sidecar::wire::text;
use anyhow::Context;
use clap::Parser;
use tracing_subscriber::filter::Targets;

/// File name of the host's log, in the state folder.
const HOST_LOG: &str = "host.log";

fn main() -> ExitCode {
    if let Some(status) = process::run_if_asked(std::env::args_os()) {
        return ExitCode::from(status);
    }
    // A signal that comes while the run starts is one of the run.
    let caught = run::is_asked_for(std::env::args_os()).then(run::catch_signals);
    let cli = Cli::parse();
    use CliCommand::{Conform, Connect, Record, Replay};
    // Agents and shells must not inherit a client's token. The host that the other commands here
    // start may be `connect`.
    if !matches!(cli.command, Some(Connect(_) | Record(_) | Replay(_) | Conform(_))) {
        std::env::remove_var(connect::TOKEN_VARIABLE);
    }
    let limited = match &cli.command {
        Some(CliCommand::RelayClientTools | CliCommand::RunGit { .. } | CliCommand::Help { .. }) => Ok(()),
        None | Some(CliCommand::Serve(_)) => expect(descriptors::expect_for_host()),
        Some(_) => expect(descriptors::expect_for_sessions()),
    };
    if limited.is_err() {
        return finish(limited, EXIT_FAILURE);
    }
    match cli.command {
        None => serve_clients(&cli.serving, false),
        Some(command) => run_command(command, caught),
    }
}

/// Runs a command of the command line; a run gets the signals that were caught for it.
fn run_command(command: CliCommand, caught: Option<CaughtSignals>) -> ExitCode {
    match command {
        CliCommand::Serve(serving) => serve_clients(&serving, true),
        CliCommand::Connect(arguments) => connect_to_host(&arguments),
        CliCommand::Status(arguments) => finish(print_status(&arguments), EXIT_STATE),
        CliCommand::Sessions(arguments) => {
            let done = sessions::run(&arguments);
            let is_folder = matches!(done, Err(SessionsFailure::Folder(_)));
            finish(done, if is_folder { EXIT_STATE } else { EXIT_FAILURE })
        }
        CliCommand::Agents(arguments) => check_agents(&arguments),
        CliCommand::Record(arguments) => of_host(record(&arguments)),
        CliCommand::Replay(arguments) => {
            of_host(replay(&arguments, &this_program(None)).map(|replayed| match replayed {
                Replayed::Same => 0,
                Replayed::Different => EXIT_DIFFERENT,
            }))
        }
        CliCommand::Conform(arguments) => {
            of_host(conform(&arguments, &this_program(None)).map(|conformed| match conformed {
                Conformed::Held => 0,
                Conformed::Broken => EXIT_BROKEN,
                Conformed::Exited(status) => status,
                Conformed::Stopped => EXIT_CANCELLED,
            }))
        }
        CliCommand::Trace(arguments) => {
            finish(trace::run(&arguments).and_then(|table| print(&table)), EXIT_FAILURE)
        }
        CliCommand::DebugBundle(arguments) => {
            finish(bundle::run(&arguments, &this_program(None)), EXIT_FAILURE)
        }
        CliCommand::Demo => finish(demo::run(&exe::own_path()), EXIT_FAILURE),
        CliCommand::Run(arguments) => ExitCode::from(run::run(&arguments, caught)),
        CliCommand::Help { topic } => match cli::help(topic.as_deref()) {
            Ok(text) => finish(print(&text), EXIT_FAILURE),
            Err(error) => finish(Err(error), EXIT_USAGE),
        },
        CliCommand::RunGit { folder, file_bytes, filters } => {
            let done = git::worker::run(folder, git::large::FileLimits::of(file_bytes), &filters);
            finish(done.context("git cannot be run"), EXIT_FAILURE)
        }
        CliCommand::RelayClientTools => {
            let lost = "the host that offers clients' tools to this agent cannot be reached, perhaps because it has ended";
            finish(relay::run().context(lost), EXIT_FAILURE)
        }
    }
}

/// Serves a client on stdin and stdout, or, with `stays`, clients of listeners.
fn serve_clients(serving: &ServeOptions, stays: bool) -> ExitCode {
    let ((filter, complaint), options, agents) = match serving
        .log_filter()
        .and_then(|filter| Ok((filter, serving.options(stays)?, serving.agents()?)))
    {
        Ok(parsed) => parsed,
        Err(error) => return finish(Err(error), EXIT_USAGE),
    };
    if let Some(Err(error)) = serving.trace.as_deref().map(trace::start) {
        return finish(Err(error), EXIT_FAILURE);
    }
    let reading = agents.read();
    if serving.is_host() {
        return be_host(serving, filter, options, (agents, reading));
    }
    // A running host may continue with its previous configuration.
    let has_to_understand = stays || serving.is_alone();
    if let Some(error) = reading.agents.as_ref().err().filter(|_| has_to_understand) {
        return finish(Err(error), EXIT_USAGE);
    }
    let log_readers = LogReaders::default();
    let log = match log::start(filter.clone(), log_readers.clone()) {
        Ok(log) => log,
        Err(error) => return finish(Err(no_log(&error)), EXIT_FAILURE),
    };
    if let Some(complaint) = complaint {
        tracing::warn!("the filter of the log: {complaint}");
    }
    let status = if has_to_understand {
        let options = RunOptions { log_exports: log.exports(), ..options };
        serve_here(serving, options, (agents, reading), log_readers)
    } else {
        join(serving, &filter, options, (agents, reading), &log)
    };
    log.flush_briefly();
    ExitCode::from(status)
}

/// Checks the limits of this process on files.
fn expect(enough: Result<(), TooFewDescriptors>) -> anyhow::Result<()> {
    enough?;
    signals::outlive_file_limits().context("cannot catch SIGXFSZ")
}

fn no_log(error: &std::io::Error) -> String {
    format!("the log cannot be started{}: {error}", limits::limit_behind(error))
}

/// Serves in this process. Others started on its state folder can join it, unless it is exclusive.
fn serve_here(
    serving: &ServeOptions,
    options: RunOptions,
    agents: ReadAgents,
    log_readers: LogReaders,
) -> u8 {
    let (held, place) = match &options.state {
        StatePlace::Folder(asked) if !serving.is_alone() => {
            match folder::chosen(asked.as_deref()).and_then(|folder| front::hold(&folder)) {
                Ok((held, Ok((listener, path)))) => {
                    let settings = serving.settings(&agents.0);
                    let lock = lock_of(&held);
                    (
                        Some(held),
                        Some(HostSocket { listener, path, settings, log_readers, stays: true, lock }),
                    )
                }
                Ok((held, Err(why))) => {
                    tracing::warn!("other clients on this state folder cannot join this host: {why:#}");
                    (Some(held), None)
                }
                Err(error) => return failed(&error, EXIT_STATE),
            }
        }
        StatePlace::Folder(asked) => {
            // The folder must be held before this program is kept in it.
            match folder::chosen(asked.as_deref()).and_then(|folder| StateFolder::hold(&folder)) {
                Ok(held) => (Some(held), None),
                Err(error) => return failed(&error, EXIT_STATE),
            }
        }
        StatePlace::Memory => (None, None),
    };
    let (options, agents, _kept) = equipped(serving, options, agents);
    status_of(serve(options, agents, held, place))
}

/// Returns the identity of the folder's lock, which allows a host to bind its socket again.
fn lock_of(held: &StateFolder) -> Option<LockId> {
    held.lock_id().unwrap_or_else(|error| {
        tracing::warn!(%error, "the lock of the state folder cannot be inspected: a removed socket is not replaced");
        None
    })
}

/// Joins the host of the state folder as a front, or serves the client in this process.
fn join(serving: &ServeOptions, filter: &Targets, options: RunOptions, agents: ReadAgents, log: &Log) -> u8 {
    let parent = options.watch_parent.then(hangup::parent).flatten();
    let StatePlace::Folder(asked) = &options.state else {
        let (options, agents, _kept) = equipped(serving, options, agents);
        return status_of(serve(options, agents, None, None));
    };
    let folder = match folder::chosen(asked.as_deref()) {
        Ok(folder) => folder,
        Err(error) => return failed(&error, EXIT_STATE),
    };
    let start = || {
        let mut command = exe::command();
        command.args(ServeOptions::to_be_host());
        command
    };
    let leave_signals = match LeaveSignals::open(parent) {
        Ok(leave_signals) => leave_signals,
        Err(error) => return failed(&format_args!("{error:#}"), EXIT_FAILURE),
    };
    let mut lent_pipes = match LentPipes::prepare() {
        Ok(lent_pipes) => lent_pipes,
        Err(error) => {
            return failed(
                &format_args!("stdin and stdout cannot be passed to the host: {error}"),
                EXIT_FAILURE,
            )
        }
    };
    let hello = serving.hello(&options, &agents.0, &agents.1, filter);
    let start = agents.1.agents.as_ref().map(|_| start).map_err(Clone::clone);
    match front::join(&folder, &hello, &mut lent_pipes, start) {
        Ok(Joined::Host(host)) => match front::serve_until_over(*host, lent_pipes, leave_signals, log) {
            Ok(status) => status,
            Err(error) => failed(&format_args!("{error:#}"), EXIT_FAILURE),
        },
        Ok(Joined::Alone(folder, why)) => {
            tracing::warn!("this client gets a host of its own, which others cannot join: {why:#}");
            let (options, agents, _kept) = equipped(serving, options, agents);
            status_of(serve(options, agents, Some(folder), None))
        }
        Err(refusal) => failed(&refusal, refusal.status()),
    }
}

/// Runs as the host that a front has started.
fn be_host(serving: &ServeOptions, filter: Targets, options: RunOptions, agents: ReadAgents) -> ExitCode {
    let log_readers = LogReaders::default();
    let taken = || -> anyhow::Result<_> {
        // Signals to the process group of the starting front must not reach the host.
        process::leave_session().context("this process cannot lead a session")?;
        lending::take_over()
    };
    let StatePlace::Folder(asked) = &options.state else {
        return finish(Err("a host process needs a state folder"), EXIT_STATE);
    };
    let folder = folder::chosen(asked.as_deref());
    let (held, listener, path) = match taken() {
        Ok(Some((lock, listener))) => {
            let take_over = || -> anyhow::Result<_> {
                let (held, path) = StateFolder::take_over(&folder?, lock)?;
                Ok((held, path.context("the state folder names no socket")?))
            };
            match take_over() {
                Ok((held, path)) => (held, listener, path),
                Err(error) => {
                    refuse_all(&listener, &format!("{error:#}"), EXIT_STATE);
                    return ExitCode::from(EXIT_STATE);
                }
            }
        }
        // Another front may have started another host, which has the lock.
        Ok(None) => match folder.and_then(|folder| front::hold(&folder)) {
            Ok((held, Ok((listener, path)))) => (held, listener, path),
            Ok((_, Err(error))) => return finish(Err(format!("{error:#}")), EXIT_STATE),
            Err(error) => return finish(Err(error), EXIT_STATE),
        },
        Err(error) => return finish(Err(error), EXIT_FAILURE),
    };
    let log = match log::start_in(filter, held.path().join(HOST_LOG), log_readers.clone()) {
        Ok(log) => log,
        Err(error) => {
            refuse_all(&listener, &no_log(&error), EXIT_FAILURE);
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let options = RunOptions { log_exports: log.exports(), ..options };
    let (settings, lock) = (serving.settings(&agents.0), lock_of(&held));
    let place = HostSocket { listener, path, settings, log_readers, stays: false, lock };
    let (options, agents, _kept) = equipped(serving, options, agents);
    let status = status_of(serve(options, agents, Some(held), Some(place)));
    log.flush_briefly();
    ExitCode::from(status)
}

type ReadAgents = (AgentSource, ConfigurationReading);
type EquippedAgents = (Configuration, Vec<Box<dyn Backend>>);

/// Adds the guard and the agents, of which the first is the default. All programs share one kind of
/// guard, so that each guard knows the others.
fn equipped(
    serving: &ServeOptions,
    options: RunOptions,
    (source, reading): ReadAgents,
) -> (RunOptions, EquippedAgents, Option<KeptProgram>) {
    let kept = keep_program(&options);
    let guard = this_program(limits::raise());
    let guards = guard.clone();
    let make = move |agent| Box::new(Acp::new(agent, guards.clone())) as Box<dyn Backend>;
    let (configuration, mut backends) = Configuration::start(source, reading, Box::new(make));
    match &serving.script_resource {
        _ if serving.no_script => {}
        Some(resource) => backends.push(Box::new(GuardedScript { resource: resource.clone() })),
        None => backends.push(Box::new(Script)),
    }
    (RunOptions { guard: Some(guard), ..options }, (configuration, backends), kept)
}

/// Keeps this program in the state folder, which is held, if the system needs that to start it
/// again.
fn keep_program(options: &RunOptions) -> Option<KeptProgram> {
    let StatePlace::Folder(asked) = &options.state else { return None };
    let kept = exe::keep(&folder::chosen(asked.as_deref()).ok()?);
    kept.inspect_err(|error| tracing::debug!(%error, "this program cannot be kept in the state folder, so after an update no agent can be started")).ok()
}

fn status_of(served: anyhow::Result<Exit>) -> u8 {
    match served {
        Ok(Exit::Done) => 0,
        Ok(Exit::Cut) => EXIT_CUT,
        Err(error) => {
            let status = if error.is::<StateError>() { EXIT_STATE } else { EXIT_FAILURE };
            failed(&format_args!("{error:#}"), status)
        }
    }
}

fn failed(error: &dyn std::fmt::Display, status: u8) -> u8 {
    tracing::error!("a failure: {error}");
    // A log filter may hide the error, so it is also printed on stderr.
    if !tracing::enabled!(tracing::Level::ERROR) {
        complain(error);
    }
    status
}

fn connect_to_host(arguments: &ConnectArgs) -> ExitCode {
    match connect::run(arguments) {
        Ok(Ended::Theirs) => {
            finish(Err("the connection to the host was lost: connect again, and send `reconnect`"), EXIT_GONE)
        }
        Err(error) if arguments.as_host && error.is::<Unreachable>() => finish(Err(error), EXIT_NO_HOST),
        done => finish(done.map(drop), EXIT_FAILURE),
    }
}

/// Returns the exit status of a command that runs another host.
fn of_host(done: anyhow::Result<u8>) -> ExitCode {
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            let status = if error.is::<HostFailure>() { EXIT_NO_HOST } else { EXIT_FAILURE };
            finish(Err(error), status)
        }
    }
}

fn check_agents(arguments: &AgentsArguments) -> ExitCode {
    match check::run(arguments, &this_program(None)) {
        Ok(Checked::Usable) => ExitCode::SUCCESS,
        Ok(Checked::Unusable) => ExitCode::from(EXIT_FAILURE),
        Ok(Checked::NotRemembered(error)) => {
            finish(Err(error.context("the results were not stored for clients")), EXIT_STATE)
        }
        Ok(Checked::Failed(error)) => match error.downcast_ref() {
            // The process that joins the host has printed the reason.
            Some(HostGone(status)) => ExitCode::from(*status),
            None => finish(Err(error), EXIT_FAILURE),
        },
        Err(error) => finish(Err(error), EXIT_USAGE),
    }
}

/// Returns this program as a guard. `given` is the limit of open files that the guard restores for
/// its program; `None` if this process has not raised its own.
fn this_program(given: Option<u64>) -> GuardProgram {
    GuardProgram::new(exe::own_path(), process::arguments(given)).adopting()
}

/// Returns the exit status of a command: 0, or `status` with the error printed on stderr.
fn finish<E: std::fmt::Display>(done: Result<(), E>, status: u8) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format_args!("{error:#}"));
            ExitCode::from(status)
        }
    }
}

fn complain(error: &dyn std::fmt::Display) {
    let mut stderr = std::io::stderr();
    // stderr may be closed; the exit status still reports the failure.
    let error = text::message(&error.to_string());
    std::io::Write::write_fmt(&mut stderr, format_args!("error: {error}\n")).unwrap_or_default();
}
