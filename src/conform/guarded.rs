//! The judge under a guard, which ends the hosts with all that they have started.
//!
//! Owns: starting this program again under a guard, passing on its output, stopping it when a
//! signal comes, and the folder for what checks keep.
//! Never: judges.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::host::{create_folder, remove_folder};
use super::Conformed;
use crate::os::hangup::LeaveReason;
use crate::os::process::{GuardProgram, Guarded, BY_SIGNAL};
use crate::os::stdio::is_closed;
use crate::os::{exe, paths, signals};

/// Flag of the guarded process.
const FLAG: &str = "--guarded";

/// Runs this command line again under a guard; returns its exit status. The folder is removed
/// afterwards, also after a signal.
///
/// # Errors
/// When it cannot be started.
pub fn run(guard: &GuardProgram) -> anyhow::Result<Conformed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, stops) = mpsc::unbounded_channel();
    runtime.block_on(async { signals::catch_signals(&sender) })?;
    let temporary =
        paths::canonical(&std::env::temp_dir()).context("there is no folder for temporary files")?;
    let folder = create_folder(&temporary, "ahp-conform-")?;
    let judged = runtime.block_on(judge(guard, &folder, stops));
    remove_folder(&folder);
    // A write to stdout may be blocked.
    runtime.shutdown_background();
    judged
}

/// Copies all output of the judge. If it cannot be written, it is still read: the judge would wait.
async fn passed_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let copied = tokio::io::copy(from, to).await;
    let flushed = match copied {
        Ok(_) => to.flush().await,
        Err(error) => Err(error),
    };
    if flushed.is_err() {
        tokio::io::copy(from, &mut tokio::io::sink()).await?;
    }
    flushed
}

/// Has the guarded process judge, until a signal comes.
async fn judge(
    guard: &GuardProgram,
    folder: &Path,
    mut stops: mpsc::UnboundedReceiver<LeaveReason>,
) -> anyhow::Result<Conformed> {
    let mut arguments = std::env::args_os().skip(1);
    let mut command = guard.command(Guarded::Agent, exe::path_for_others()?);
    command.args(arguments.next()).arg(FLAG).arg(folder).args(arguments);
    let started = guard.start_agent(command).context("the judge cannot be started")?;
    let (mut guard, input, mut stdout, mut stderr) = started;
    let stopped = CancellationToken::new();
    let (mut to_stdout, mut to_stderr) = (tokio::io::stdout(), tokio::io::stderr());
    let judges = async {
        let out = passed_on(&mut stdout, &mut to_stdout);
        let err = tokio::io::copy(&mut stderr, &mut to_stderr);
        tokio::join!(guard.keep_running(&stopped), out, err)
    };
    let stop = async {
        match stops.recv().await {
            Some(LeaveReason::Asked(name)) => name,
            _ => std::future::pending().await,
        }
    };
    let name = tokio::select! {
        biased;
        (status, out, err) = judges => {
            if let Err(error) = err {
                tracing::debug!(%error, "stderr of the judge is lost");
            }
            let code = status.context("the judge cannot be waited for")?.code().unwrap_or(BY_SIGNAL);
            match out {
                Err(error) if !is_closed(&error) => return Err(error).context("stdout cannot be written"),
                // A reader that is gone wants no more.
                _ => {}
            }
            return Ok(Conformed::Exited(u8::try_from(code).map_err(io::Error::other)?));
        }
        name = stop => name,
    };
    drop(input);
    stopped.cancel();
    guard.keep_running(&stopped).await.context("the judge cannot be waited for")?;
    // The exit status says it, too.
    writeln!(io::stderr(), "error: stopped by {name}; nothing is judged").unwrap_or_default();
    Ok(Conformed::Stopped)
}
