//! Folders that the system has for each user.
//!
//! Owns: finding them by the environment.
//! Never: opens or creates a file, or asks the user database: it may name a home, but a process
//! without one in its environment must not use it.

use std::env;
use std::path::PathBuf;

/// Returns the user's folder for sockets; `None` where the system has none.
pub fn runtime_folder() -> Option<PathBuf> {
    named("XDG_RUNTIME_DIR").filter(|_| !cfg!(any(target_vendor = "apple", windows)))
}

/// Returns a standard folder: the one that a variable names, or one below the home folder. macOS
/// has one for all purposes.
pub fn base(xdg: &str, below_home: &str, on_windows: &str) -> Option<PathBuf> {
    if cfg!(windows) {
        named(on_windows)
    } else if cfg!(target_vendor = "apple") {
        Some(named("HOME")?.join("Library/Application Support"))
    } else {
        named(xdg).or_else(|| Some(named("HOME")?.join(below_home)))
    }
}

/// Returns the absolute path that an environment variable holds.
fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
