//! The program: arguments in, exit status out.

use std::path::PathBuf;
use std::process::ExitCode;

use ahp_sidecar::backend::acp::client_tools::relay;
use ahp_sidecar::backend::acp::guards::GuardProgram;
use ahp_sidecar::backend::acp::{guard, terminals, Acp};
use ahp_sidecar::backend::script::{GuardedScript, Script};
use ahp_sidecar::backend::Backend;
use ahp_sidecar::check::{self, Agents, Checked};
use ahp_sidecar::cli::{Cli, Command, EXIT_CUT, EXIT_FAILURE, EXIT_STATE, EXIT_USAGE, GUARD};
use ahp_sidecar::demo;
use ahp_sidecar::io::run::{serve, Exit, StateError};
use ahp_sidecar::io::signals;
use ahp_sidecar::io::{descriptors, log};
use ahp_sidecar::sessions::{self, Failure};
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Guard { terminal, command }) = &cli.command {
        return ExitCode::from(if *terminal { terminals::guard::run(command) } else { guard::run(command) });
    }
    if let Some(Command::RelayClientTools) = &cli.command {
        return match relay::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format_args!("the tools of clients cannot be reached: {error}"));
                ExitCode::from(EXIT_FAILURE)
            }
        };
    }
    let wanted = if cli.command.is_some() { descriptors::SESSIONS } else { descriptors::HOST };
    if let Err(error) = descriptors::expect(wanted) {
        complain(&error);
        return ExitCode::from(EXIT_FAILURE);
    }
    if let Err(error) = signals::outlive_file_limits() {
        complain(&format_args!("cannot catch SIGXFSZ: {error}"));
        return ExitCode::from(EXIT_FAILURE);
    }
    if let Some(Command::Sessions(arguments)) = &cli.command {
        return match sessions::run(arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                ExitCode::from(if matches!(error, Failure::Folder(_)) { EXIT_STATE } else { EXIT_FAILURE })
            }
        };
    }
    if let Some(Command::Agents(arguments)) = &cli.command {
        return check_agents(arguments);
    }
    if let Some(Command::Demo) = &cli.command {
        return match demo::run(&own_path()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format_args!("{error:#}"));
                ExitCode::from(EXIT_FAILURE)
            }
        };
    }
    let ((filter, complaint), options, agents) =
        match cli.log_filter().and_then(|filter| Ok((filter, cli.options()?, cli.agents()?))) {
            Ok(parsed) => parsed,
            Err(error) => {
                complain(&format_args!("{error:#}"));
                return ExitCode::from(EXIT_USAGE);
            }
        };
    let log = match log::start(filter) {
        Ok(log) => log,
        Err(error) => {
            complain(&format_args!("the log cannot be started (see `ulimit -u`): {error}"));
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
    // The first one is the default.
    let mut backends: Vec<Box<dyn Backend>> = Vec::new();
    let guard = this_program();
    for agent in agents {
        backends.push(Box::new(Acp::new(agent, guard.clone())));
    }
    match cli.script_resource {
        _ if cli.no_script => {}
        Some(resource) => backends.push(Box::new(GuardedScript { resource })),
        None => backends.push(Box::new(Script)),
    }
    let status = match serve(options, backends) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Cut) => ExitCode::from(EXIT_CUT),
        Err(error) => {
            tracing::error!("{error:#}");
            // Who logs nothing still wants to know why it ended, and stderr is not full of us then.
            if !tracing::enabled!(tracing::Level::ERROR) {
                complain(&format_args!("{error:#}"));
            }
            ExitCode::from(if error.is::<StateError>() { EXIT_STATE } else { EXIT_FAILURE })
        }
    };
    log.flush_briefly();
    status
}

fn check_agents(arguments: &Agents) -> ExitCode {
    match check::run(arguments, &this_program()) {
        Ok(Checked::Usable) => ExitCode::SUCCESS,
        Ok(Checked::Unusable) => ExitCode::from(EXIT_FAILURE),
        Ok(Checked::NotRemembered(error)) => {
            complain(&format_args!("nothing of this is remembered for clients: {error:#}"));
            ExitCode::from(EXIT_STATE)
        }
        Err(error) => {
            complain(&format_args!("{error:#}"));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// This program, also when its file has been replaced since it was started.
fn own_path() -> PathBuf {
    let path = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    path.unwrap_or_else(|_| env!("CARGO_PKG_NAME").into())
}

/// This program as a guard.
fn this_program() -> GuardProgram {
    GuardProgram::new(own_path(), vec![GUARD.to_owned()]).adopting()
}

fn complain(error: &dyn std::fmt::Display) {
    let mut stderr = std::io::stderr();
    // Nobody reads stderr: the exit status says it.
    std::io::Write::write_fmt(&mut stderr, format_args!("error: {error}\n")).unwrap_or_default();
}
