//! Standard folders of the platform.
//!
//! Owns: the default state folder, the default configuration file, and an editor's data folder.
//! Never: opens or creates a file.

use std::path::PathBuf;

use crate::os::homes::base;
pub use crate::os::homes::runtime_folder;

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
