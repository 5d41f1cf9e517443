//! Where an agent's program is.
//!
//! Owns: finding it as the system would, and what is said when it is not there.
//! Never: starts it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{access, Access};

/// An agent's program is not there: it is not installed, or not where it is looked for.
#[derive(Debug, thiserror::Error)]
pub enum NotInstalled {
    /// It has just a name, which is in no folder of the search path.
    #[error(
        "it is not installed: the command `{command}` is in none of the folders of the search path ({folders}); install \
         it, or have the configuration name its whole path"
    )]
    Nowhere {
        /// The command that was looked for.
        command: String,
        /// The folders, in order.
        folders: String,
    },
    /// It has a path, and nothing is there that can be run.
    #[error("it is not installed: the command `{command}` {what}")]
    NotThere {
        /// The path that was looked at.
        command: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The file that is started for a command, in this directory with this added to the environment.
///
/// # Errors
/// When there is none.
pub fn find(
    command: &Path,
    directory: Option<&Path>,
    environment: &BTreeMap<String, String>,
) -> Result<PathBuf, NotInstalled> {
    let here = directory.unwrap_or(Path::new(""));
    if command.components().count() > 1 {
        let file = here.join(command);
        let what = match (file.exists(), is_program(&file)) {
            (_, true) => return Ok(file),
            (false, _) => "is not there",
            (true, _) => "is no program that can be run",
        };
        return Err(NotInstalled::NotThere { command: file.display().to_string(), what });
    }
    let search_path = environment.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
    // Where none is said, the system has one of its own.
    let Some(search_path) = search_path else { return Ok(command.to_owned()) };
    let folders: Vec<PathBuf> = std::env::split_paths(&search_path).map(|folder| here.join(folder)).collect();
    let found = folders.iter().map(|folder| folder.join(command)).find(|file| is_program(file));
    found.ok_or_else(|| {
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        NotInstalled::Nowhere { command: command.display().to_string(), folders: folders.join(", ") }
    })
}

fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_is_found_where_the_system_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        for place in [&one, &two] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("tool"), "").unwrap();
        }
        let path = format!("{}:{}", one.display(), two.display());
        let environment = BTreeMap::from([("PATH".to_owned(), path)]);
        let find = |command: &str| find(Path::new(command), Some(folder.path()), &environment);
        let said = find("tool").unwrap_err().to_string();
        assert!(said.contains("the command `tool` is in none"), "{said}");
        assert!(said.contains(&format!("({}, {})", one.display(), two.display())), "{said}");
        assert!(find("two/tool").unwrap_err().to_string().contains("is no program that can be run"));
        assert!(find("two/other").unwrap_err().to_string().contains("two/other` is not there"));
        fs::set_permissions(two.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("tool").unwrap(), two.join("tool"));
        assert_eq!(find("two/tool").unwrap(), two.join("tool"));
    }
}
