//! Running git.
//!
//! Git never sees the configuration of a repository, of the user or of the system: see
//! [`super::isolation`]. The settings and the environment here are a second line of defence.
//!
//! Owns: finding the program; settings and environment by which it runs no other program, prompts
//! for nothing and takes no optional locks; limits on time and output.
//! Never: runs a shell, or continues past the deadline.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::isolation::SpareGitDirs;
use crate::os::paths::from_bytes;
use crate::os::process::{read_both, signal_of, PipeName};
use crate::os::programs::{git_is_missing, program_at};

const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// Maximum length of the error output that is retained, in bytes.
const STDERR_BYTES_MAX: usize = 4 << 10;

/// Oldest version that supports all of [`SETTINGS`] and all commands that the host uses.
const VERSION_MIN: (u32, u32) = (2, 31);

/// Settings of each run, whatever is configured: each of them could otherwise run a program or
/// change files of the user.
const SETTINGS: [(&str, &str); 23] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.splitIndex", "false"),
    ("core.pager", "cat"),
    ("core.editor", ":"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.gitProxy", ""),
    ("core.alternateRefsCommand", "true"),
    ("core.safecrlf", "false"),
    ("credential.helper", ""),
    ("protocol.allow", "never"),
    ("diff.external", ""),
    ("diff.ignoreSubmodules", "all"),
    ("diff.renames", "true"),
    ("diff.renameLimit", "1000"),
    ("submodule.recurse", "false"),
    ("status.renames", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("commit.gpgSign", "false"),
    ("gpg.program", "false"),
    ("log.showSignature", "false"),
];

/// Environment of each run: no configuration, and no repository unless one is named.
const ENVIRONMENT: [(&str, &str); 13] = [
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_DIR", "/dev/null"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_EDITOR", ":"),
    ("GIT_PAGER", "cat"),
    ("GIT_ASKPASS", "false"),
    ("SSH_ASKPASS", "false"),
];

/// Git's variables that are inherited: the location of its parts, and the user's identity.
const KEPT: [&str; 5] =
    ["GIT_EXEC_PATH", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];

/// Reason why git failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program is missing or too old.
    #[error("{0}")]
    Missing(String),
    /// The run exceeded its time limit.
    #[error("git took longer than {} ms", .0.as_millis())]
    Late(Duration),
    /// The output exceeded this limit, in bytes.
    #[error("git printed more than {0} bytes")]
    TooMuch(usize),
    /// The run failed.
    #[error("git failed: {trouble}")]
    Failed {
        /// Error output, or the signal that ended git.
        trouble: String,
        /// Exit status; `None` if a signal ended git.
        status: Option<i32>,
    },
    /// Git could not be started or read, or a file has the wrong kind.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A limit on files or bytes was exceeded.
    #[error("{0}")]
    Beyond(String),
}

/// Time by which a job must end.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    all: Duration,
}

impl Deadline {
    /// Returns a deadline this far from now.
    pub fn after(all: Duration) -> Self {
        Self { at: Instant::now() + all, all }
    }

    /// Returns a deadline after half of the remaining time.
    #[must_use]
    pub fn half(self) -> Self {
        Self { at: Instant::now() + self.left() / 2, ..self }
    }

    /// Returns the remaining time.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Checks that there is time left.
    pub fn check(&self) -> Result<(), GitError> {
        if Instant::now() < self.at {
            return Ok(());
        }
        Err(GitError::Late(self.all))
    }
}

/// The program `git`.
#[derive(Debug, Clone)]
pub struct Git {
    path: PathBuf,
    version: String,
    /// Configuration file of the system; `None` if there is none, or it is empty.
    system_config: Option<PathBuf>,
    /// Names of filters in the user's configuration that git runs.
    filters: Arc<[String]>,
    spare: Arc<SpareGitDirs>,
}

/// One run of git.
#[derive(Debug)]
pub struct GitRun<'a> {
    git: &'a Git,
    folder: &'a Path,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    settings: Vec<(OsString, OsString)>,
    until: Deadline,
    stdin: Option<File>,
    output_bytes_max: usize,
}

impl Git {
    /// Finds the program in the folders of this `PATH`.
    pub fn find(path: Option<&OsStr>, until: Deadline) -> Result<Self, GitError> {
        // Relative folders are skipped: they depend on the current directory.
        let folders = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
        let found = folders.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join("git"));
        let Some(path) = found.into_iter().find_map(|path| program_at(&path)) else {
            return Err(GitError::Missing("there is no program `git` on the host's PATH".to_owned()));
        };
        if git_is_missing(&path) {
            let why = "git is not installed: install the developer tools with `xcode-select --install`";
            return Err(GitError::Missing(why.to_owned()));
        }
        let mut git = Self {
            path,
            version: String::new(),
            system_config: None,
            filters: Arc::default(),
            spare: Arc::default(),
        };
        let output = git.run(Path::new("/"), ["version"], until).text()?;
        let (major, minor) = VERSION_MIN;
        if version_in(&output).is_none_or(|version| version < VERSION_MIN) {
            let output = output.trim();
            let why = format!("git {major}.{minor} or newer is needed, and this is `{output}`");
            return Err(GitError::Missing(why));
        }
        output.trim().trim_start_matches("git version ").clone_into(&mut git.version);
        // The path depends on how the program was built, and the file may not exist.
        let asked = ["config", "--system", "--null", "--show-origin", "--list"];
        let listed = match git.run(Path::new("/"), asked, until).output() {
            Ok(listed) => listed,
            Err(GitError::Failed { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let origin = listed.split(|byte| *byte == 0).next().and_then(|first| first.strip_prefix(b"file:"));
        git.system_config = origin.map(|path| PathBuf::from(from_bytes(path).into_owned()));
        Ok(git)
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version as git prints it, without `git version`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the configuration file of the system; `None` if there is none, or it is empty.
    pub fn system_config(&self) -> Option<&Path> {
        self.system_config.as_deref()
    }

    /// Enables these filters of the user's configuration, by their names.
    #[must_use]
    pub fn running(self, filters: Arc<[String]>) -> Self {
        Self { filters, ..self }
    }

    /// Returns whether git runs a filter of the user's configuration.
    pub fn runs_filter(&self, name: &[u8]) -> bool {
        self.filters.iter().any(|filter| filter.as_bytes() == name)
    }

    /// Returns the isolated git directories available for reuse.
    pub fn spare(&self) -> &SpareGitDirs {
        &self.spare
    }

    /// Returns a run of git in this folder.
    pub fn run<'a, A: AsRef<OsStr>>(
        &'a self,
        folder: &'a Path,
        arguments: impl IntoIterator<Item = A>,
        until: Deadline,
    ) -> GitRun<'a> {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        GitRun {
            git: self,
            folder,
            arguments,
            environment: Vec::new(),
            settings: Vec::new(),
            until,
            stdin: None,
            output_bytes_max: OUTPUT_BYTES_MAX,
        }
    }
}

fn version_in(output: &str) -> Option<(u32, u32)> {
    let mut numbers = output.trim().strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl GitRun<'_> {
    /// Adds arguments.
    #[must_use]
    pub fn with<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Adds settings.
    #[must_use]
    pub fn set(mut self, settings: &[(OsString, OsString)]) -> Self {
        self.settings.extend_from_slice(settings);
        self
    }

    /// Replaces the deadline.
    #[must_use]
    pub fn within(self, until: Deadline) -> Self {
        Self { until, ..self }
    }

    /// Sets the standard input.
    #[must_use]
    pub fn reads(mut self, stdin: File) -> Self {
        self.stdin = Some(stdin);
        self
    }

    /// Raises the output limit to this many bytes, if that is more than the default.
    #[must_use]
    pub fn with_output_of(mut self, bytes: u64) -> Self {
        self.output_bytes_max = self.output_bytes_max.max(usize::try_from(bytes).unwrap_or(usize::MAX));
        self
    }

    /// Runs git and returns its standard output.
    pub fn output(self) -> Result<Vec<u8>, GitError> {
        self.until.check()?;
        let mut command = Command::new(&self.git.path);
        for (name, _) in std::env::vars_os() {
            let is_gits = name.to_str().is_some_and(|name| name.starts_with("GIT_") && !KEPT.contains(&name));
            if is_gits {
                command.env_remove(name);
            }
        }
        command.envs(ENVIRONMENT).envs(self.environment);
        let fixed = SETTINGS.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let settings: Vec<(OsString, OsString)> = fixed.chain(self.settings).collect();
        command.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (number, (name, value)) in settings.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{number}"), name);
            command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        command.arg("--no-pager").args(self.arguments).current_dir(self.folder);
        command.stdin(self.stdin.map_or_else(Stdio::null, Stdio::from));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let why = format!("git (`{}`) cannot be started: {error}", self.git.path.display());
            io::Error::new(error.kind(), why)
        })?;
        let outputs = read_output(&mut child, self.output_bytes_max, self.until);
        if outputs.is_err() {
            // The process may have ended by itself.
            child.kill().unwrap_or_default();
        }
        let status = child.wait()?;
        let (stdout, trouble) = outputs?;
        if status.success() {
            return Ok(stdout);
        }
        let trouble = String::from_utf8_lossy(&trouble).trim().to_owned();
        let trouble = match signal_of(status) {
            Some(signal) => format!("signal {signal}"),
            None => trouble,
        };
        Err(GitError::Failed { trouble, status: status.code() })
    }

    /// Runs git and returns its output as text.
    pub fn text(self) -> Result<String, GitError> {
        Ok(String::from_utf8_lossy(&self.output()?).into_owned())
    }

    /// Runs git and returns its output without the newline at its end; empty if there is no output.
    pub fn line(self) -> Result<String, GitError> {
        Ok(self.text()?.trim_end_matches('\n').to_owned())
    }
}

fn read_output(
    child: &mut Child,
    output_bytes_max: usize,
    until: Deadline,
) -> Result<(Vec<u8>, Vec<u8>), GitError> {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("git has no stdout").into());
    };
    let (mut output, mut trouble) = (Vec::new(), Vec::new());
    let is_complete = read_both(stdout, stderr, until.at, |name, bytes| {
        match name {
            PipeName::Stdout => {
                output.extend_from_slice(bytes);
                if output.len() > output_bytes_max {
                    return Err(GitError::TooMuch(output_bytes_max));
                }
            }
            PipeName::Stderr => {
                trouble.extend_from_slice(bytes);
                trouble.truncate(STDERR_BYTES_MAX);
            }
        }
        Ok(())
    })?;
    if is_complete {
        return Ok((output, trouble));
    }
    Err(GitError::Late(until.all))
}
