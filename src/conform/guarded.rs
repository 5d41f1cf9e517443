//! The judge under a guard, which ends the hosts with all that they have started.
//!
//! Owns: starting this program again under a guard, and passing on its output.
//! Never: judges.

use std::io;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::os::exe;
use crate::os::process::{GuardProgram, Guarded, BY_SIGNAL};

/// Flag of the guarded process.
const FLAG: &str = "--guarded";

/// Runs this command line again under a guard; returns its exit status.
///
/// # Errors
/// When it cannot be started.
pub fn run(guard: &GuardProgram) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut arguments = std::env::args_os().skip(1);
        let mut command = guard.command(Guarded::Agent, exe::path_for_others()?);
        command.args(arguments.next()).arg(FLAG).args(arguments);
        let started = guard.start_agent(command).context("the judge cannot be started")?;
        let (mut guard, input, mut stdout, mut stderr) = started;
        let stopped = CancellationToken::new();
        let (mut to_stdout, mut to_stderr) = (tokio::io::stdout(), tokio::io::stderr());
        let passed = async {
            let out = tokio::io::copy(&mut stdout, &mut to_stdout);
            let err = tokio::io::copy(&mut stderr, &mut to_stderr);
            tokio::join!(out, err)
        };
        let (status, passed) = tokio::join!(guard.keep_running(&stopped), passed);
        drop(input);
        for error in [passed.0.err(), passed.1.err()].into_iter().flatten() {
            tracing::debug!(%error, "output of the judge is lost");
        }
        let code = status.context("the judge cannot be waited for")?.code().unwrap_or(BY_SIGNAL);
        Ok(u8::try_from(code).map_err(io::Error::other)?)
    })
}
