//! Scripts that make shells report their commands, and parsing of those reports.
//!
//! A shell in a terminal reads a script of the host before or after the user's own files. The shell
//! then reports the start and the result of each command in OSC 633 sequences that contain a random
//! nonce. Only that shell has the nonce, so output of a program or of a nested shell cannot be
//! taken for a report. The nonce is in the script, a file that other users cannot read and that is
//! removed when the shell reports that it has read it; it is never in an environment.
//!
//! Owns: the scripts, their files, the arguments of each shell, and parsing of reports.
//! Never: changes a user's settings, but for the hooks by which the shell calls the script.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use crate::host::effects::PtyEvent;
use crate::os::{private, shell};

/// Subfolder of the state folder for the scripts.
const FOLDER: &str = "shells";

/// Maximum length of a reported command line, in bytes, and for the scripts in characters: each
/// takes up to four bytes, raw or escaped, and a sequence longer than 64 KiB is not held.
const LINE_BYTES_MAX: usize = 16_000;

/// Folder with the script of one shell, which contains its nonce. Removed on drop.
#[derive(Debug)]
pub struct ShellScript {
    folder: PathBuf,
}

impl Drop for ShellScript {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, "the script of a shell cannot be removed");
        }
    }
}

/// Start parameters that make a shell report its commands.
#[derive(Debug)]
pub struct ShellStart {
    /// Command-line arguments.
    pub arguments: Vec<String>,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, String)>,
    /// Script that the shell reads.
    pub script: ShellScript,
}

/// Folder of the scripts.
#[derive(Debug, Clone)]
pub struct ShellScripts {
    folder: PathBuf,
    /// Completed once the files of an earlier process are removed.
    swept: Arc<Once>,
}

impl ShellScripts {
    /// Uses a subfolder of this state folder, created when the first shell needs it.
    pub fn in_folder(state: &Path) -> Self {
        Self { folder: state.join(FOLDER), swept: Arc::new(Once::new()) }
    }

    /// Writes a script with this name into a new folder.
    fn put(&self, name: &str, texts: &[&str]) -> io::Result<ShellScript> {
        let folder = &self.folder;
        self.swept.call_once(|| match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "old scripts of shells cannot be removed");
            }
            _ => {}
        });
        private::create_folders(folder)?;
        // The umask, or the creator of an existing folder, may have given it another mode.
        private::restrict_folder(folder)?;
        let folder = folder.join(uuid::Uuid::new_v4().simple().to_string());
        private::create_folder(&folder)?;
        let script = ShellScript { folder };
        let path = script.folder.join(name);
        let mut file = private::options().write(true).create_new(true).open(path)?;
        for text in texts {
            file.write_all(text.as_bytes())?;
        }
        Ok(script)
    }

    /// Returns the start parameters with which this shell sends `nonce`. `None` for a shell without
    /// a script, if the script cannot be written, and if a path to be named is not UTF-8: a shell
    /// that is given another path would leave out the user's own files.
    pub fn start(&self, program: &Path, nonce: &str) -> Option<ShellStart> {
        let name = program.file_stem()?.to_str()?;
        let (file, first, text) = match name {
            "bash" => {
                // A login shell would not read the init file, so the script does the work of one.
                let login = if shell::LOGS_IN { "__ahp[11]=1\n" } else { "" };
                ("bash.sh", format!("__ahp=({nonce})\n{login}"), include_str!("integration/bash.sh"))
            }
            "zsh" => {
                let users = std::env::var_os("ZDOTDIR").map(|users| users.into_string()).transpose();
                let Ok(users) = users else {
                    tracing::warn!("a shell will not report its commands: `ZDOTDIR` is not UTF-8");
                    return None;
                };
                let users = users.map(|users| format!("__ahp_zdotdir='{}'\n", users.replace('\'', "'\\''")));
                let first = format!("__ahp_word={nonce}\n{}", users.unwrap_or_default());
                // The shell looks for a file of this name.
                (".zshenv", first, include_str!("integration/zshenv.zsh"))
            }
            "fish" => {
                ("fish.fish", format!("set -g __ahp_word {nonce}\n"), include_str!("integration/fish.fish"))
            }
            "pwsh" => {
                ("pwsh.ps1", format!("$global:__ahpWord = '{nonce}'\n"), include_str!("integration/pwsh.ps1"))
            }
            _ => return None,
        };
        if self.folder.to_str().is_none() {
            tracing::warn!("a shell will not report its commands: the path of the state folder is not UTF-8");
            return None;
        }
        let script = match self.put(file, &[&first, text]) {
            Ok(script) => script,
            Err(error) => {
                tracing::warn!(%error, "a shell will not report its commands: its script cannot be written");
                return None;
            }
        };
        let folder = script.folder.to_string_lossy().into_owned();
        let path = script.folder.join(file).to_string_lossy().into_owned();
        let mut environment = Vec::new();
        let arguments = match name {
            "bash" => vec!["--init-file".to_owned(), path],
            "zsh" => {
                environment.push(("ZDOTDIR", folder));
                shell::LOGS_IN.then(|| "-l".to_owned()).into_iter().collect()
            }
            "fish" => {
                let quoted = path.replace('\\', "\\\\").replace('\'', "\\'");
                // With `fish_trace`, the shell would print the script.
                vec!["--init-command".to_owned(), format!("set -q fish_trace; or source '{quoted}'")]
            }
            _ => {
                let quoted = path.replace('\'', "''");
                vec!["-NoExit".to_owned(), "-Command".to_owned(), format!(". '{quoted}'")]
            }
        };
        Some(ShellStart { arguments, environment, script })
    }
}

/// Parser of a shell's reports.
#[derive(Debug)]
pub struct ShellSequences {
    /// Word that each report must contain; `None` for a shell without a script.
    nonce: Option<String>,
    line: String,
    /// Set once OSC 633 was received: the shell repeats those reports as OSC 133.
    speaks_633: bool,
    is_new: bool,
    is_authenticated: bool,
}

impl ShellSequences {
    pub fn new(nonce: Option<String>) -> Self {
        Self { nonce, line: String::new(), speaks_633: false, is_new: true, is_authenticated: false }
    }

    /// Returns whether no report was passed on yet; later calls return false.
    pub fn takes_first(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Parses an OSC 633 sequence. A [`PtyEvent::Directory`] holds a path here, not a URI.
    pub fn parse_osc_633(&mut self, content: &str) -> Vec<PtyEvent> {
        let mut report = content;
        if let Some(nonce) = &self.nonce {
            let known = content.strip_suffix(nonce.as_str()).and_then(|content| content.strip_suffix(';'));
            let Some(known) = known else { return Vec::new() };
            report = known;
            self.is_authenticated = true;
        }
        self.speaks_633 = true;
        let (kind, rest) = report.split_once(';').unwrap_or((report, ""));
        match kind {
            "E" => {
                // Without a nonce, the sender is unknown, so the command line is not trusted.
                if self.nonce.is_some() {
                    let line = unquoted(rest);
                    self.line = crate::wire::text::first_bytes(&line, LINE_BYTES_MAX).to_owned();
                }
                Vec::new()
            }
            "P" => rest
                .strip_prefix("Cwd=")
                .map(|path| PtyEvent::Directory(unquoted(path)))
                .into_iter()
                .collect(),
            _ => {
                let place = rest.split_once(';').filter(|_| kind == "D" && self.nonce.is_some());
                let place = place.map(|(_, place)| PtyEvent::Directory(unquoted(place)));
                self.step(kind, rest).into_iter().chain(place).collect()
            }
        }
    }

    /// Parses an OSC 133 sequence of any shell. Ignored if the shell has a nonce or sends OSC 633.
    pub fn receive_generic(&mut self, content: &str) -> Option<PtyEvent> {
        if self.nonce.is_some() || self.speaks_633 {
            return None;
        }
        let (kind, rest) = content.split_once(';').unwrap_or((content, ""));
        self.step(kind, rest)
    }

    fn step(&mut self, kind: &str, rest: &str) -> Option<PtyEvent> {
        match kind {
            "A" | "B" if self.is_new => Some(PtyEvent::DetectsCommands),
            "C" => Some(PtyEvent::CommandBegun(std::mem::take(&mut self.line))),
            "D" => Some(PtyEvent::CommandDone(rest.split(';').next().and_then(|code| code.parse().ok()))),
            _ => None,
        }
    }
}

/// Unquotes a word of bash or zsh (`'…'`, `$'…'`, `\'`), or text with `\xHH` and `\\`.
fn unquoted(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    // Whether the position is inside quotes, and whether escapes have a meaning there.
    let (mut is_quoted, mut has_escapes) = (false, true);
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match (first, behind) {
            (b'\'', _) => (is_quoted, has_escapes) = (!is_quoted, is_quoted),
            (b'$', [b'\'', behind @ ..]) if !is_quoted => {
                (is_quoted, has_escapes, rest) = (true, true, behind);
            }
            (b'\\', _) if has_escapes => {
                let (byte, length) = escaped(behind);
                bytes.push(byte);
                rest = &behind[length..];
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the byte that an escape stands for, and the length of the escape behind its backslash.
fn escaped(behind: &[u8]) -> (u8, usize) {
    let number = |digits: &[u8], radix| {
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'));
        digits.and_then(|digits| u8::from_str_radix(digits, radix).ok())
    };
    match behind {
        [b'x', high, low, ..] => match number(&[*high, *low], 16) {
            Some(byte) => (byte, 3),
            None => (b'\\', 0),
        },
        [b'0'..=b'7', _, _, ..] => number(&behind[..3], 8).map_or((b'\\', 0), |byte| (byte, 3)),
        [b'a', ..] => (0x07, 1),
        [b'b', ..] => (0x08, 1),
        [b'e' | b'E', ..] => (0x1b, 1),
        [b'f', ..] => (0x0c, 1),
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [b'v', ..] => (0x0b, 1),
        [char @ (b'\\' | b'\'' | b'"' | b'?'), ..] => (*char, 1),
        _ => (b'\\', 0),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn script_with_the_word_is_readable_by_its_user_alone_and_removed_with_its_shell() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join(FOLDER);
        let scripts = ShellScripts::in_folder(state.path());
        assert!(scripts.start(Path::new("/bin/dash"), "secret").is_none());
        assert!(!folder.exists(), "nothing is put there before it is needed");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("left"), "by another process").unwrap();
        for (shell, file) in
            [("bash", "bash.sh"), ("zsh", ".zshenv"), ("fish", "fish.fish"), ("pwsh", "pwsh.ps1")]
        {
            let start = scripts.start(&Path::new("/bin").join(shell), "secret").unwrap();
            assert!(!format!("{:?}{:?}", start.arguments, start.environment).contains("secret"), "{shell}");
            let path = start.script.folder.join(file);
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&folder), mode(&start.script.folder), mode(&path)), (0o700, 0o700, 0o600));
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.lines().next().unwrap().contains("secret"));
            assert!(text.contains(&LINE_BYTES_MAX.to_string()), "{shell} knows how long a line may be");
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
            drop(start);
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        }
    }

    #[test]
    fn shell_whose_script_has_a_path_that_is_not_utf_8_is_left_as_it_is() {
        use std::os::unix::ffi::OsStrExt;
        let outer = tempfile::tempdir().unwrap();
        let state = outer.path().join(std::ffi::OsStr::from_bytes(b"st\xffate"));
        let scripts = ShellScripts::in_folder(&state);
        for shell in ["bash", "zsh", "fish", "pwsh"] {
            assert!(scripts.start(Path::new(shell), "secret").is_none(), "{shell}");
        }
        assert!(!state.exists());
    }

    #[test]
    fn quoted_text_is_read_as_the_shell_meant_it() {
        for (quoted, read) in [
            ("a\\x3bb", "a;b"),
            ("\\\\x3b", "\\x3b"),
            ("\\x", "\\x"),
            ("\\xzz", "\\xzz"),
            ("\\x+1", "\\x+1"),
            ("\\xc3\\xa4", "ä"),
            ("\\", "\\"),
            ("'a b'", "a b"),
            ("'it'\\''s \\x41 \\n'", "it's \\x41 \\n"),
            ("$'it\\'s'", "it's"),
            ("$'a\\nb\\t\\\\n\\E\\033\\a\\303\\244'", "a\nb\t\\n\x1b\x1b\x07ä"),
            ("'$'", "$"),
            ("$'\\777", "\\777"),
            ("'ä", "ä"),
        ] {
            assert_eq!(unquoted(quoted), read, "{quoted:?}");
        }
    }
}
