//! Shell of the user.
//!
//! Owns: selection of the shell, and its arguments.
//! Never: starts a program named by the environment that `/etc/shells` does not list.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{access, Access};
use rustix::process::getuid;

/// Fallback shell, which every Unix system has.
const SH: &str = "/bin/sh";

/// Returns the user's shell: `$SHELL`, else the shell of the account; each only if `/etc/shells`
/// lists it. Falls back to [`SH`].
pub fn of_user() -> PathBuf {
    let shells = fs::read_to_string("/etc/shells").unwrap_or_default();
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let asked = std::env::var_os("SHELL").map(PathBuf::from);
    let asked = asked.filter(|shell| is_known(&shells, shell));
    let found = asked.or_else(|| of_account(&accounts, getuid().as_raw()).filter(|it| is_known(&shells, it)));
    found.filter(|shell| access(shell, Access::EXEC_OK).is_ok()).unwrap_or_else(|| SH.into())
}

fn is_known(shells: &str, shell: &Path) -> bool {
    shell.is_absolute() && shells.lines().any(|line| Path::new(line.trim()) == shell)
}

/// Returns the login shell of a user, given the content of `/etc/passwd`.
fn of_account(accounts: &str, user: u32) -> Option<PathBuf> {
    let user = user.to_string();
    let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = fields.find(|fields| fields.get(2) == Some(&user.as_str()))?;
    Some(PathBuf::from(fields.get(6)?))
}

/// Returns the arguments that a terminal window of this system passes to the shell.
pub fn arguments(shell: &Path) -> &'static [&'static str] {
    let name = shell.file_name().and_then(|name| name.to_str());
    match name {
        Some("bash" | "zsh") if cfg!(target_os = "macos") => &["-l"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_one_that_the_machine_knows() {
        let shells = "# comment\n/bin/sh\n /bin/bash\n";
        assert!(is_known(shells, Path::new("/bin/sh")) && is_known(shells, Path::new("/bin/bash")));
        for other in ["bash", "/tmp/bash", "# comment", ""] {
            assert!(!is_known(shells, Path::new(other)), "{other}");
        }
    }

    #[test]
    fn the_account_says_which_shell_its_user_has() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:1000:,,,:/home/me:/bin/zsh\n";
        assert_eq!(of_account(accounts, 1000), Some("/bin/zsh".into()));
        assert_eq!(of_account(accounts, 0), Some("/bin/bash".into()));
        assert_eq!(of_account(accounts, 1), None);
    }
}
