//! Signals.
//!
//! Owns: which signals ask the process to leave, and ignoring SIGXFSZ, which would end it.
//! Never: leaves.

pub use half::{catch_signals, outlive_file_limits};

#[cfg(unix)]
mod half {
    use std::io;

    use anyhow::Context;
    use rustix::process::Signal;
    use tokio::signal::unix::{signal, SignalKind};
    use tokio::sync::mpsc;

    use crate::os::hangup::LeaveReason;

    /// Makes writes beyond the limit of file sizes (`ulimit -f`) fail like writes to a full disk,
    /// instead of ending the process. Child processes are not affected.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn outlive_file_limits() -> io::Result<()> {
        // The handler remains after this listener is dropped, and replaces the default action.
        let listener = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let _listening = listener.enter();
        signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
    }

    /// Reports the signals that ask a process to leave, for the lifetime of this process.
    ///
    /// # Errors
    /// When the system refuses a handler.
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
}

/// Windows: events of the console. A process that another one terminates is not asked before.
#[cfg(windows)]
mod half {
    use std::io;

    use anyhow::Context;
    use tokio::signal::windows;
    use tokio::sync::mpsc;

    use crate::os::hangup::LeaveReason;

    pub fn outlive_file_limits() -> io::Result<()> {
        Ok(())
    }

    pub fn catch_signals(losses: &mpsc::UnboundedSender<LeaveReason>) -> anyhow::Result<()> {
        macro_rules! each {
            ($($event:ident, $name:literal;)*) => {$(
                let mut events = windows::$event().context(concat!("cannot catch ", $name))?;
                let sender = losses.clone();
                tokio::spawn(async move {
                    while events.recv().await.is_some() && sender.send(LeaveReason::Asked($name)).is_ok() {}
                });
            )*};
        }
        each! {
            ctrl_c, "Ctrl+C";
            ctrl_break, "Ctrl+Break";
            ctrl_close, "the end of the console";
            ctrl_logoff, "the end of the user's session";
            ctrl_shutdown, "the shutdown of the system";
        }
        Ok(())
    }
}
