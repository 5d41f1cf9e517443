//! The program: arguments in, exit status out.

use std::process::ExitCode;

use ahp_sidecar::backend::script::Script;
use ahp_sidecar::cli::{Cli, EXIT_CUT, EXIT_FAILURE, EXIT_STATE, EXIT_USAGE};
use ahp_sidecar::io::log;
use ahp_sidecar::io::run::{serve, Exit, StateError};
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ((filter, complaint), options) =
        match cli.log_filter().and_then(|filter| Ok((filter, cli.options()?))) {
            Ok(parsed) => parsed,
            Err(error) => {
                let mut stderr = std::io::stderr();
                // Nobody reads stderr: the exit status says it.
                std::io::Write::write_fmt(&mut stderr, format_args!("error: {error:#}\n"))
                    .unwrap_or_default();
                return ExitCode::from(EXIT_USAGE);
            }
        };
    let log = log::start(filter);
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
    let status = match serve(options, vec![Box::new(Script)]) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Cut) => ExitCode::from(EXIT_CUT),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(if error.is::<StateError>() { EXIT_STATE } else { EXIT_FAILURE })
        }
    };
    log.flush_briefly();
    status
}
