//! Standard folders of the platform.
//!
//! Owns: the default state folder, the default configuration file, and an editor's data folder.
//! Never: opens or creates a file.

use std::env;
use std::path::PathBuf;

/// Name of the program's folder inside the platform's folders.
const NAME: &str = "ahp-sidecar";

const CONFIG: &str = "config.toml";

/// Returns the default state folder; `None` if no home is known.
pub fn state_folder() -> Option<PathBuf> {
    // macOS and Windows have no folder for state; that for local data comes closest.
    Some(base("XDG_STATE_HOME", ".local/state", "LOCALAPPDATA")?.join(NAME))
}

/// Returns the default configuration file; `None` if no home is known.
pub fn config_file() -> Option<PathBuf> {
    Some(base("XDG_CONFIG_HOME", ".config", "APPDATA")?.join(NAME).join(CONFIG))
}

/// Returns the user data folder of Visual Studio Code; `None` if no home is known.
pub fn vscode_user_data() -> Option<PathBuf> {
    Some(base("XDG_CONFIG_HOME", ".config", "APPDATA")?.join("Code"))
}

/// Returns the user's folder for sockets; `None` where the platform has none.
pub fn runtime_folder() -> Option<PathBuf> {
    named("XDG_RUNTIME_DIR").filter(|_| !cfg!(any(target_os = "macos", windows)))
}

/// Returns a standard folder of the platform: the one that a variable names, or one below the home
/// folder. The user database may name a home, too, but a process without one in its environment
/// must not use it.
fn base(xdg: &str, below_home: &str, on_windows: &str) -> Option<PathBuf> {
    if cfg!(windows) {
        named(on_windows)
    } else if cfg!(target_os = "macos") {
        Some(named("HOME")?.join("Library/Application Support"))
    } else {
        named(xdg).or_else(|| Some(named("HOME")?.join(below_home)))
    }
}

/// Returns the absolute path that an environment variable holds.
fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
