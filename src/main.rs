//! The program: arguments in, exit status out.

use std::process::ExitCode;

use ahp_sidecar::backend::acp::process::GuardProgram;
use ahp_sidecar::backend::acp::{guard, terminals, Acp};
use ahp_sidecar::backend::script::{GuardedScript, Script};
use ahp_sidecar::backend::Backend;
use ahp_sidecar::cli::{Cli, Command, EXIT_CUT, EXIT_FAILURE, EXIT_STATE, EXIT_USAGE, GUARD};
use ahp_sidecar::demo;
use ahp_sidecar::io::log;
use ahp_sidecar::io::run::{serve, Exit, StateError};
use ahp_sidecar::io::signals;
use ahp_sidecar::sessions::{self, Failure};
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Guard { terminal, command }) = &cli.command {
        return ExitCode::from(if *terminal { terminals::guard::run(command) } else { guard::run(command) });
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
    if let Some(Command::Demo) = &cli.command {
        return match demo::run(&this_program().path) {
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
    let log = log::start(filter);
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
    let script: Box<dyn Backend> = match cli.script_resource {
        Some(resource) => Box::new(GuardedScript { resource }),
        None => Box::new(Script),
    };
    let mut backends = vec![script];
    for agent in agents {
        backends.push(Box::new(Acp::new(agent, this_program())));
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

/// This program as a guard, also when its file has been replaced since it was started.
fn this_program() -> GuardProgram {
    let path = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    let path = path.unwrap_or_else(|_| env!("CARGO_PKG_NAME").into());
    GuardProgram { path, arguments: vec![GUARD.to_owned()] }
}

fn complain(error: &dyn std::fmt::Display) {
    let mut stderr = std::io::stderr();
    // Nobody reads stderr: the exit status says it.
    std::io::Write::write_fmt(&mut stderr, format_args!("error: {error}\n")).unwrap_or_default();
}
