//! Creation of a pseudo terminal and start of its program.
//!
//! Owns: the environment, directory and arguments of the program.
//! Never: reads or writes.

use std::fs;
use std::io;
use std::path::Path;

use super::integration::{ShellScript, ShellScripts, ShellStart};
use crate::files::uris::path_of;
use crate::host::effects::{PtyLaunch, ScreenSize};
use crate::os::process::{Control, Guard, GuardProgram, Guarded};
use crate::os::pty::{self, Printed, Typing};
use crate::os::shell;

/// Variables that describe the terminal to every program in it.
const ENVIRONMENT: [(&str, &str); 3] =
    [("TERM", "xterm-256color"), ("COLORTERM", "truecolor"), ("TERM_PROGRAM", env!("CARGO_PKG_NAME"))];

/// Variables in which other terminals describe themselves, removed from the environment.
const NOT_OURS: [&str; 4] = ["COLUMNS", "LINES", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID"];

/// Additional variables for a command, which has no user to page through its output.
const ENVIRONMENT_OF_COMMANDS: [(&str, &str); 4] =
    [("PAGER", "cat"), ("GIT_PAGER", "cat"), ("GH_PAGER", "cat"), ("MANPAGER", "cat")];

/// Host side of a pseudo terminal with a running program. Read and written like a pipe.
#[derive(Debug)]
pub(super) struct OpenPty {
    pub(super) printed: Printed,
    pub(super) typing: Typing,
    /// Control connection; closing it ends the program.
    pub(super) control: Control,
    /// Word that authenticates the reports of the shell; `None` for a program without a script.
    pub(super) word: Option<String>,
    pub(super) script: Option<ShellScript>,
    pub(super) size: ScreenSize,
    /// Set if the program is a command, which ends by itself.
    pub(super) is_command: bool,
}

pub(super) fn open(
    guards: Option<&GuardProgram>,
    scripts: Option<&ShellScripts>,
    launch: &PtyLaunch,
    shell: &Path,
) -> io::Result<(Guard, OpenPty)> {
    let guards = guards.ok_or_else(|| io::Error::other("this host starts no programs"))?;
    // A guard passes its own environment and directory to the program.
    let mut command = guards.command(Guarded::InTerminal, shell);
    command.envs(ENVIRONMENT).envs(shell::variable(shell));
    if let Some(directory) = launch.directory.as_deref() {
        let directory = path_of(directory).map_err(|error| io::Error::other(error.message))?;
        // Starting the guard would fail here, too, but with an error that names this executable.
        // The `.` checks that the directory may be entered.
        fs::metadata(directory.join(".")).map_err(|error| in_directory(&directory, &error))?;
        command.current_dir(directory);
    }
    let (mut word, mut read) = (None, None);
    match &launch.command {
        Some(line) if line.contains('\0') => {
            return Err(io::Error::other("its command line contains a NUL byte"));
        }
        Some(line) => {
            command.args(shell::command_arguments(shell, line)).envs(ENVIRONMENT_OF_COMMANDS);
        }
        None => {
            let fresh = uuid::Uuid::new_v4().simple().to_string();
            match scripts.and_then(|scripts| scripts.start(shell, &fresh)) {
                Some(ShellStart { arguments, environment, script }) => {
                    command.args(arguments).envs(environment);
                    (word, read) = (Some(fresh), Some(script));
                }
                None => {
                    command.args(shell::arguments(shell));
                }
            }
        }
    }
    for name in NOT_OURS {
        command.env_remove(name);
    }
    let ScreenSize { cols, rows } = launch.size;
    let (guard, control, printed, typing) = pty::open(guards, command, (cols, rows))?;
    let (size, is_command) = (launch.size, launch.command.is_some());
    Ok((guard, OpenPty { printed, typing, control, word, script: read, size, is_command }))
}

fn in_directory(directory: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("`{}`: {error}", directory.display()))
}
