//! Shell of the user, and the name of this machine.
//!
//! Owns: selection of the shell, and its arguments.
//! Never: starts a program named by the environment that the system does not know as a shell.

#[cfg(windows)]
pub use half::takes_line_as_it_is;
pub use half::{arguments, command_arguments, host_name, of_user, variable, LOGS_IN};

#[cfg(unix)]
mod half {
    use std::fs;
    use std::path::{Path, PathBuf};

    use rustix::process::getuid;

    use crate::os::programs::program_at;

    /// Fallback shell, which every Unix system has.
    const SH: &str = "/bin/sh";

    /// Set if a terminal window of this system starts the shell as a login shell.
    pub const LOGS_IN: bool = cfg!(target_os = "macos");

    /// Returns the user's shell: `$SHELL`, else the shell of the account; each only if
    /// `/etc/shells` lists it. Falls back to [`SH`]. On Windows, PowerShell or else the command
    /// prompt.
    pub fn of_user() -> PathBuf {
        let shells = fs::read_to_string("/etc/shells").unwrap_or_default();
        let asked = std::env::var_os("SHELL").map(PathBuf::from);
        let asked = asked.filter(|shell| is_known(&shells, shell));
        let found = asked.or_else(|| of_account().filter(|it| is_known(&shells, it)));
        found.and_then(|shell| program_at(&shell)).unwrap_or_else(|| SH.into())
    }

    pub(super) fn is_known(shells: &str, shell: &Path) -> bool {
        shell.is_absolute() && shells.lines().any(|line| Path::new(line.trim()) == shell)
    }

    #[cfg(not(target_os = "macos"))]
    fn of_account() -> Option<PathBuf> {
        listed(&fs::read_to_string("/etc/passwd").ok()?, getuid().as_raw())
    }

    /// Asks the directory of accounts: `/etc/passwd` has those of the system only.
    #[cfg(target_os = "macos")]
    fn of_account() -> Option<PathBuf> {
        use std::process::{Command, Stdio};
        let user = std::env::var("USER").ok().filter(|user| !user.contains('/'))?;
        let mut asked = Command::new("/usr/bin/dscl");
        asked.args([".", "-read", &format!("/Users/{user}"), "UserShell"]).stdin(Stdio::null());
        let output = String::from_utf8(asked.output().ok()?.stdout).ok()?;
        let shell = output.trim().strip_prefix("UserShell:").map(|shell| PathBuf::from(shell.trim()));
        shell.or_else(|| listed(&fs::read_to_string("/etc/passwd").ok()?, getuid().as_raw()))
    }

    /// Returns the login shell of a user, given the content of `/etc/passwd`.
    pub(super) fn listed(accounts: &str, user: u32) -> Option<PathBuf> {
        let user = user.to_string();
        let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let fields = fields.find(|fields| fields.get(2) == Some(&user.as_str()))?;
        Some(PathBuf::from(fields.get(6)?))
    }

    /// Returns the arguments that a terminal window of this system passes to the shell.
    pub fn arguments(shell: &Path) -> &'static [&'static str] {
        let name = shell.file_name().and_then(|name| name.to_str());
        match name {
            Some("bash" | "zsh") if LOGS_IN => &["-l"],
            _ => &[],
        }
    }

    /// Returns the arguments by which the shell runs a command line and exits.
    pub fn command_arguments(_shell: &Path, line: &str) -> Vec<String> {
        vec!["-c".to_owned(), line.to_owned()]
    }

    /// Returns the variable by which programs find the user's shell; `None` on a system without
    /// one.
    pub fn variable(shell: &Path) -> Option<(&'static str, &Path)> {
        Some(("SHELL", shell))
    }

    /// Returns the name of this machine.
    pub fn host_name() -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }
}

#[cfg(windows)]
mod half {
    use std::path::{Path, PathBuf};

    use crate::os::programs::program_at;

    pub const LOGS_IN: bool = false;

    pub fn of_user() -> PathBuf {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let find = |name: &str| {
            let folders = std::env::split_paths(&folders).filter(|folder| folder.is_absolute());
            folders.map(|folder| folder.join(name)).find_map(|path| program_at(&path))
        };
        let found = ["pwsh.exe", "powershell.exe"].into_iter().find_map(find);
        let prompt = || std::env::var_os("COMSPEC").map(PathBuf::from);
        found.or_else(prompt).unwrap_or_else(|| "cmd.exe".into())
    }

    pub fn arguments(_shell: &Path) -> &'static [&'static str] {
        &[]
    }

    /// Returns the arguments; those of the command prompt must not be quoted once more.
    pub fn command_arguments(shell: &Path, line: &str) -> Vec<String> {
        let (flags, line): (&[&str], _) = match takes_line_as_it_is(shell) {
            true => (&["/d", "/s", "/c"], format!("\"{line}\"")),
            false => (&["-NoLogo", "-Command"], line.to_owned()),
        };
        flags.iter().map(|flag| (*flag).to_owned()).chain([line]).collect()
    }

    /// Returns whether this is the command prompt, which does not split its command line into
    /// arguments.
    pub fn takes_line_as_it_is(shell: &Path) -> bool {
        shell.file_stem().is_some_and(|name| name.eq_ignore_ascii_case("cmd"))
    }

    pub fn variable(_shell: &Path) -> Option<(&'static str, &Path)> {
        None
    }

    pub fn host_name() -> String {
        std::env::var("COMPUTERNAME").unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::half::{is_known, listed};

    #[test]
    fn a_shell_is_one_that_the_machine_knows() {
        let shells = "# comment\n/bin/sh\n /bin/bash\n";
        assert!(is_known(shells, Path::new("/bin/sh")) && is_known(shells, Path::new("/bin/bash")));
        for other in ["bash", "/tmp/bash", "# comment", ""] {
            assert!(!is_known(shells, Path::new(other)), "{other}");
        }
    }

    #[test]
    fn shell_of_a_user_is_that_of_its_account() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:1000:,,,:/home/me:/bin/zsh\n";
        assert_eq!(listed(accounts, 1000), Some("/bin/zsh".into()));
        assert_eq!(listed(accounts, 0), Some("/bin/bash".into()));
        assert_eq!(listed(accounts, 1), None);
    }
}
