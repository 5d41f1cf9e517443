//! What a shell tells of its commands, and the scripts that have it do so.
//!
//! A shell that is started in a terminal reads a script of ours before the user's own files, or has it read behind them. It
//! says before each line that it runs it, and how the line ended, in sequences of the kind OSC 633, with a word that
//! only that shell knows: what a program prints, or another shell inside that one, is not taken for it.
//!
//! Owns: the scripts, where they are kept, with what each shell is started, and reading what it says.
//! Never: changes what a user has set, but for the places in which the shell calls us.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::host::effects::PtyEvent;

/// The folder of the scripts, in the state folder.
const FOLDER: &str = "shells";

/// The scripts, by their names.
const SCRIPTS: [(&str, &str); 4] = [
    ("bash.sh", include_str!("integration/bash.sh")),
    // Its name is what the shell looks for.
    (".zshenv", include_str!("integration/zshenv.zsh")),
    ("fish.fish", include_str!("integration/fish.fish")),
    ("pwsh.ps1", include_str!("integration/pwsh.ps1")),
];

/// In which variables a shell is told the word, and where the user's own files are.
const WORD: &str = "AHP_SIDECAR_SHELL_WORD";
const USERS_ZDOTDIR: &str = "AHP_SIDECAR_ZDOTDIR";
const IS_LOGIN: &str = "AHP_SIDECAR_LOGIN";

/// The longest line that is told, in bytes. The scripts say no more characters of one: a character takes up to four bytes there,
/// also escaped, and a sequence is not waited for that is longer than 64 KiB.
const LINE_BYTES_MAX: usize = 16_000;

/// How a shell is started so that it tells of its commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellStart {
    /// What it is told on its command line.
    pub arguments: Vec<String>,
    /// What its environment has besides.
    pub environment: Vec<(&'static str, String)>,
}

/// The scripts, in a folder.
#[derive(Debug, Clone)]
pub struct ShellScripts {
    folder: PathBuf,
}

impl ShellScripts {
    /// The scripts in this state folder, where the first shell that needs one has them put.
    pub fn in_folder(state: &Path) -> Self {
        Self { folder: state.join(FOLDER) }
    }

    /// Puts them there, as this program has them.
    fn put(&self) -> io::Result<()> {
        let folder = &self.folder;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Whatever mask this process has, and whoever has made it.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        for (name, script) in SCRIPTS {
            let path = folder.join(name);
            if fs::read(&path).is_ok_and(|there| there == script.as_bytes()) {
                continue;
            }
            // A shell that starts meanwhile reads all of it.
            let new = folder.join(format!("{name}.new"));
            fs::write(&new, script)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
            fs::rename(new, path)?;
        }
        Ok(())
    }

    /// How this shell is started, told this word; none of one for which there is no script, or where none can be put.
    pub fn start(&self, shell: &Path, word: &str) -> Option<ShellStart> {
        let path = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        let mut environment = vec![(WORD, word.to_owned())];
        let arguments = match shell.file_name()?.to_str()? {
            "bash" => {
                // A shell for logging in would not read it, so the script does what such a shell does.
                environment.extend(cfg!(target_os = "macos").then(|| (IS_LOGIN, "1".to_owned())));
                vec!["--init-file".to_owned(), path("bash.sh")]
            }
            "zsh" => {
                let users = std::env::var("ZDOTDIR").ok().map(|users| (USERS_ZDOTDIR, users));
                environment.extend(users);
                environment.push(("ZDOTDIR", self.folder.to_string_lossy().into_owned()));
                cfg!(target_os = "macos").then(|| "-l".to_owned()).into_iter().collect()
            }
            "fish" => {
                let quoted = path("fish.fish").replace('\\', "\\\\").replace('\'', "\\'");
                vec!["--init-command".to_owned(), format!("source '{quoted}'")]
            }
            "pwsh" => {
                let quoted = path("pwsh.ps1").replace('\'', "''");
                vec!["-NoExit".to_owned(), "-Command".to_owned(), format!(". '{quoted}'")]
            }
            _ => return None,
        };
        let put = self.put();
        if let Err(error) = &put {
            tracing::warn!(%error, "a shell will not tell of its commands: its script cannot be written");
        }
        put.is_ok().then_some(ShellStart { arguments, environment })
    }
}

/// Reads what a shell tells of its commands.
#[derive(Debug)]
pub struct ShellWords {
    /// The word of the shell that was told one: then no other is heard.
    word: Option<String>,
    /// The line that runs next.
    line: String,
    /// Something was said in sequences of the kind 633: those of the kind 133 say the same.
    speaks_633: bool,
    /// Nothing was said yet.
    is_new: bool,
}

impl ShellWords {
    /// A shell that has said nothing.
    pub fn new(word: Option<String>) -> Self {
        Self { word, line: String::new(), speaks_633: false, is_new: true }
    }

    /// Whether what is said now is the first thing.
    pub fn takes_first(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// What a sequence of the kind 633 says. A directory is a path here.
    pub fn hear(&mut self, said: &str) -> Option<PtyEvent> {
        let mut says = said;
        if let Some(word) = &self.word {
            says = said.strip_suffix(word.as_str())?.strip_suffix(';')?;
        }
        self.speaks_633 = true;
        let (kind, rest) = says.split_once(';').unwrap_or((says, ""));
        match kind {
            "E" => {
                // Of a shell that knows no word it is not known who says it.
                if self.word.is_some() {
                    let line = unescaped(rest);
                    self.line = crate::wire::text::first_bytes(&line, LINE_BYTES_MAX).to_owned();
                }
                None
            }
            "P" => rest.strip_prefix("Cwd=").map(|path| PtyEvent::Directory(unescaped(path))),
            _ => self.step(kind, rest),
        }
    }

    /// What a sequence of the kind 133 says, which many shells know. A shell of ours says it otherwise.
    pub fn hear_of_any(&mut self, said: &str) -> Option<PtyEvent> {
        if self.word.is_some() || self.speaks_633 {
            return None;
        }
        let (kind, rest) = said.split_once(';').unwrap_or((said, ""));
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

/// A text in which a shell has written `\xHH` for some characters, and `\\` for a backslash.
pub fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let escaped = match behind {
            _ if *first != b'\\' => None,
            [b'\\', behind @ ..] => Some((b'\\', behind)),
            [b'x', high, low, behind @ ..] => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok();
                digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).map(|byte| (byte, behind))
            }
            _ => None,
        };
        let (byte, behind) = escaped.unwrap_or((*first, behind));
        bytes.push(byte);
        rest = behind;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_put_where_only_their_user_reads_them() {
        let state = tempfile::tempdir().unwrap();
        let scripts = ShellScripts::in_folder(state.path());
        let folder = state.path().join(FOLDER);
        assert_eq!(scripts.start(Path::new("/bin/dash"), "w"), None);
        assert!(!folder.exists(), "nothing is put there before it is needed");
        fs::create_dir(&folder).unwrap();
        let bash = scripts.start(Path::new("/bin/bash"), "w").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("bash.sh"))), (0o700, 0o600));
        fs::write(folder.join("bash.sh"), "older").unwrap();
        scripts.start(Path::new("/bin/bash"), "w").unwrap();
        assert_eq!(fs::read_to_string(folder.join("bash.sh")).unwrap(), SCRIPTS[0].1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), SCRIPTS.len());
        assert_eq!(bash.environment[0], (WORD, "w".to_owned()));
        for (_, script) in SCRIPTS {
            assert!(script.contains(WORD), "each is told the word");
            assert!(script.contains(&LINE_BYTES_MAX.to_string()), "each knows how long a line may be");
        }
    }

    #[test]
    fn what_is_escaped_is_read_and_what_is_not_stays() {
        for (said, read) in [
            ("a\\x3bb", "a;b"),
            ("\\\\x3b", "\\x3b"),
            ("\\x", "\\x"),
            ("\\xzz", "\\xzz"),
            ("\\xc3\\xa4", "ä"),
            ("\\", "\\"),
        ] {
            assert_eq!(unescaped(said), read, "{said:?}");
        }
    }
}
