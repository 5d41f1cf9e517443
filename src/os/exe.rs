//! Path of this program, which starts itself in several modes.
//!
//! Owns: a path that works even if the file was replaced after this process started; keeping the
//! program where the system has no such path.
//! Never: starts a program.

use std::io;
use std::path::{Path, PathBuf};
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

/// Returns a command that starts this program again, out of reach of the signals that a terminal
/// sends to this process.
pub fn command_apart() -> Command {
    let mut command = command();
    half::set_apart(&mut command);
    command
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod half {
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
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

    pub fn set_apart(command: &mut Command) {
        command.process_group(0);
    }

    pub fn keep(_: &Path) -> io::Result<Option<PathBuf>> {
        Ok(None)
    }
}

/// Unix without a path to the file of a running program: the host keeps a link to its own.
#[cfg(all(unix, any(feature = "portable", not(target_os = "linux"))))]
mod half {
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::OnceLock;

    use crate::os::private;

    /// Beginning of a link's name; the process id follows.
    const LINK: &str = "program-";

    static KEPT: OnceLock<PathBuf> = OnceLock::new();

    pub fn own_path() -> io::Result<PathBuf> {
        KEPT.get().map_or_else(std::env::current_exe, |path| Ok(path.clone()))
    }

    pub fn path_for_others() -> io::Result<PathBuf> {
        own_path()
    }

    pub fn name(_: &mut Command) {}

    pub fn set_apart(command: &mut Command) {
        command.process_group(0);
    }

    pub fn keep(folder: &Path) -> io::Result<Option<PathBuf>> {
        remove_left_behind(folder)?;
        let link = std::path::absolute(folder)?.join(format!("{LINK}{}", std::process::id()));
        link_or_copy(&std::env::current_exe()?, &link)?;
        // This process keeps one program only.
        KEPT.set(link.clone()).unwrap_or_default();
        Ok(Some(link))
    }

    /// Makes a new name for a program, or a copy of it: a link cannot lead to another file system.
    fn link_or_copy(program: &Path, link: &Path) -> io::Result<()> {
        if fs::hard_link(program, link).is_ok() {
            return Ok(());
        }
        let mut program = File::open(program)?;
        // An existing file may be a link to the program, which must not be emptied.
        let mut copy = File::create_new(link)?;
        io::copy(&mut program, &mut copy)?;
        copy.set_permissions(program.metadata()?.permissions())
    }

    /// Removes the links of processes that were killed, also of one that had the id of this one.
    fn remove_left_behind(folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(LINK)?.parse().ok());
            let is_over = |process| process == std::process::id() || !private::process_exists(process);
            if process.is_some_and(is_over) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn program_is_not_emptied_through_a_link_with_the_id_of_this_process() {
            let folder = tempfile::tempdir().unwrap();
            let [program, link] =
                ["installed", &format!("{LINK}{}", std::process::id())].map(|name| folder.path().join(name));
            fs::write(&program, "program").unwrap();
            fs::hard_link(&program, &link).unwrap();
            link_or_copy(&program, &link).unwrap_err();
            assert_eq!(fs::read_to_string(&program).unwrap(), "program");
            remove_left_behind(folder.path()).unwrap();
            link_or_copy(&program, &link).unwrap();
            assert_eq!(fs::read_to_string(&link).unwrap(), "program");
        }
    }
}

/// Windows: the file of a running program can be moved, but neither replaced nor removed.
#[cfg(windows)]
mod half {
    use std::io;
    use std::os::windows::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    const CREATE_NO_WINDOW: u32 = 0x0800_0000;

    pub fn own_path() -> io::Result<PathBuf> {
        std::env::current_exe()
    }

    pub fn path_for_others() -> io::Result<PathBuf> {
        own_path()
    }

    pub fn name(command: &mut Command) {
        command.creation_flags(CREATE_NO_WINDOW);
    }

    /// Does nothing: a process without a window gets no events of the console.
    pub fn set_apart(_: &mut Command) {}

    pub fn keep(_: &Path) -> io::Result<Option<PathBuf>> {
        Ok(None)
    }
}

/// Program that a host keeps for itself, if the system needs it. Removed on drop.
#[derive(Debug)]
pub struct KeptProgram(Option<PathBuf>);

/// Keeps this program in a folder for as long as the result lives, where the system could not start
/// it again after an update. Does nothing elsewhere.
///
/// # Errors
/// When the folder cannot be written.
pub fn keep(folder: &Path) -> io::Result<KeptProgram> {
    half::keep(folder).map(KeptProgram)
}

impl Drop for KeptProgram {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(std::fs::remove_file) {
            tracing::debug!(%error, "the kept program is gone already");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_program_can_be_started_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("program-0"), "left behind").unwrap();
        let kept = keep(folder.path()).unwrap();
        let path = own_path();
        assert!(path.exists(), "{path:?}");
        drop(kept);
        let is_kept = path.starts_with(folder.path());
        assert_eq!(is_kept, cfg!(any(feature = "portable", target_os = "macos")));
        assert_eq!(folder.path().join("program-0").exists(), !is_kept);
        assert!(!is_kept || !path.exists());
    }
}
