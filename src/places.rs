//! Standard folders of the platform.
//!
//! Owns: the default state folder, the default configuration file, and an editor's data folder.
//! Never: opens or creates a file.

use std::env;
use std::path::{Path, PathBuf};

/// Name of the program's folder inside the platform's folders.
const NAME: &str = "ahp-sidecar";

const CONFIG: &str = "config.toml";

/// Returns the default state folder; `None` if no home is known.
pub fn state_folder() -> Option<PathBuf> {
    // macOS and Windows have no folder for state; that for local data comes closest.
    let has_no_word_for_state = cfg!(any(target_os = "macos", windows));
    let (base, says) = if has_no_word_for_state {
        (dirs::data_local_dir(), &["HOME"][..])
    } else {
        (dirs::state_dir(), &["XDG_STATE_HOME", "HOME"][..])
    };
    named(NAME, base, says)
}

/// Returns the default configuration file; `None` if no home is known.
pub fn config_file() -> Option<PathBuf> {
    let says = if cfg!(target_os = "macos") { &["HOME"][..] } else { &["XDG_CONFIG_HOME", "HOME"][..] };
    Some(named(NAME, dirs::config_dir(), says)?.join(CONFIG))
}

/// Returns the user data folder of Visual Studio Code; `None` if no home is known.
pub fn vscode_user_data() -> Option<PathBuf> {
    let says = if cfg!(target_os = "macos") { &["HOME"][..] } else { &["XDG_CONFIG_HOME", "HOME"][..] };
    named("Code", dirs::config_dir(), says)
}

/// Returns `base` with `name` appended. `None` if none of the variables in `says` is set: the user
/// database may still name a home, but a process without one in its environment must not use it.
fn named(name: &str, base: Option<PathBuf>, says: &[&str]) -> Option<PathBuf> {
    let is_said = |name: &&str| env::var_os(name).is_some_and(|folder| Path::new(&folder).is_absolute());
    let is_known = cfg!(windows) || says.iter().any(is_said);
    Some(base.filter(|base| is_known && base.is_absolute())?.join(name))
}
