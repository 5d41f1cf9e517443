//! Folders in which the platform has programs keep their files.
//!
//! Owns: the default folder for state, the default configuration file, and where an editor keeps
//! its data.
//! Never: opens or makes anything.

use std::env;
use std::path::{Path, PathBuf};

/// The name of our folder, in the ones that the platform has for such.
const NAME: &str = "ahp-sidecar";

/// The name of the configuration file.
const CONFIG: &str = "config.toml";

/// The folder for what is kept; none when no home is known.
pub fn state_folder() -> Option<PathBuf> {
    // Neither macOS nor Windows knows state from data; data that stay on this machine come closest.
    let has_no_word_for_state = cfg!(any(target_os = "macos", windows));
    let (base, says) = if has_no_word_for_state {
        (dirs::data_local_dir(), &["HOME"][..])
    } else {
        (dirs::state_dir(), &["XDG_STATE_HOME", "HOME"][..])
    };
    named(NAME, base, says)
}

/// The configuration file that is read when none is named; none when no home is known.
pub fn config_file() -> Option<PathBuf> {
    let says = if cfg!(target_os = "macos") { &["HOME"][..] } else { &["XDG_CONFIG_HOME", "HOME"][..] };
    Some(named(NAME, dirs::config_dir(), says)?.join(CONFIG))
}

/// The folder where Visual Studio Code keeps its user's data; none when no home is known.
pub fn vscode_user_data() -> Option<PathBuf> {
    let says = if cfg!(target_os = "macos") { &["HOME"][..] } else { &["XDG_CONFIG_HOME", "HOME"][..] };
    named("Code", dirs::config_dir(), says)
}

/// The user database may name a home too. But a process that was given an environment without one
/// (none of these variables says it) is not to leave or look for anything there.
fn named(name: &str, base: Option<PathBuf>, says: &[&str]) -> Option<PathBuf> {
    let is_said = |name: &&str| env::var_os(name).is_some_and(|folder| Path::new(&folder).is_absolute());
    let is_known = cfg!(windows) || says.iter().any(is_said);
    Some(base.filter(|base| is_known && base.is_absolute())?.join(name))
}
