//! Signals.
//!
//! Owns: which of them ask the process to leave, and the one that would end it although there is no
//! need to.
//! Never: leaves.

use std::io;

use anyhow::Context;
use rustix::process::Signal;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::mpsc;

use super::watch::LeaveReason;

/// From now on, a write that would make a file larger than the process may (`ulimit -f`) fails, as
/// it does on a disk that is full, rather than end the process. What it starts is not concerned.
///
/// # Errors
/// When the system does not let us.
pub fn outlive_file_limits() -> io::Result<()> {
    // Who listens does not matter, nor for how long: once there was a listener, the signal does
    // nothing else.
    let listener = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _listening = listener.enter();
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// Has the signals that ask a process to leave noticed, for as long as this process lives.
///
/// # Errors
/// When the system does not let us.
pub fn catch_signals(losses: &mpsc::UnboundedSender<LeaveReason>) -> anyhow::Result<()> {
    let asked = [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::hangup(), "SIGHUP"),
    ];
    for (kind, name) in asked {
        let mut signals = signal(kind).with_context(|| format!("cannot catch {name}"))?;
        let losses = losses.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() && losses.send(LeaveReason::Asked(name)).is_ok() {}
        });
    }
    Ok(())
}
