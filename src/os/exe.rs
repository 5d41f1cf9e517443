//! Path of this program, which starts itself in several modes.
//!
//! Owns: a path that works even if the file was replaced after this process started, where the
//! system has one.
//! Never: starts a program.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// Returns a path by which this process can start this program again.
pub fn own_path() -> PathBuf {
    half::own_path().unwrap_or_else(|_| env!("CARGO_PKG_NAME").into())
}

/// Returns a path by which other processes can start this program while this process runs.
///
/// # Errors
/// When the system does not say where this program is.
pub fn path_for_others() -> io::Result<PathBuf> {
    half::path_for_others()
}

/// Returns a command that starts this program again, under its own name.
pub fn command() -> Command {
    let mut command = Command::new(own_path());
    half::name(&mut command);
    command
}

#[cfg(all(target_os = "linux", not(portable)))]
mod half {
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::PathBuf;
    use std::process::Command;

    pub fn own_path() -> io::Result<PathBuf> {
        Ok("/proc/self/exe".into())
    }

    pub fn path_for_others() -> io::Result<PathBuf> {
        let path = std::env::current_exe()?;
        // The file may have been replaced after this process started.
        Ok(if path.is_file() { path } else { format!("/proc/{}/exe", std::process::id()).into() })
    }

    pub fn name(command: &mut Command) {
        command.arg0(env!("CARGO_PKG_NAME"));
    }
}

#[cfg(any(portable, not(target_os = "linux")))]
mod half {
    use std::io;
    use std::path::PathBuf;
    use std::process::Command;

    pub fn own_path() -> io::Result<PathBuf> {
        std::env::current_exe()
    }

    pub fn path_for_others() -> io::Result<PathBuf> {
        own_path()
    }

    pub fn name(_: &mut Command) {}
}
