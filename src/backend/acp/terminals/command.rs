//! Commands that the host runs for an agent: each under its own guard, with its output on a screen.
//!
//! The host runs exactly the program that the agent names, without adding a shell. A name without a
//! separator is looked up only in the absolute folders of the search path, so that a file in a
//! workspace cannot pose as a program. A relative path is relative to the command's working
//! directory.
//!
//! Owns: start, output, and waiting until all processes of a command have ended.
//! Never: lets a command outlive its [`DropGuard`] or the host.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{is_separator, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{CreateTerminalRequest, EnvVariable};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::screen::{CommandExit, CommandStage, Screen};
use crate::backend::acp::errors::RequestError;
use crate::files::folders::Folders;
use crate::os::process::{
    signal_name, signal_of, CommandOutput, Control, Guard, GuardProgram, GuardReport, Guarded,
};
use crate::os::programs::program_at;

const READ_BYTES: usize = 64 << 10;

/// Bytes of output after which a command's task pauses for others, and for how long.
const BURST_BYTES: usize = 512 << 10;
const PAUSE: Duration = Duration::from_millis(5);

/// Maximum number of bytes read from a command's pipe after its end.
const PIPE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct Launch {
    /// Request of the agent; [`Self::directory`] replaces its working directory.
    pub create: CreateTerminalRequest,
    pub directory: PathBuf,
    /// Search path for a program named without a separator.
    pub search_path: OsString,
}

impl Launch {
    pub fn title(&self) -> String {
        shell_words::join(std::iter::once(&self.create.command).chain(&self.create.args))
    }

    pub fn bytes(&self) -> usize {
        let words = self.create.args.iter().map(String::len);
        let variables = self.create.env.iter().map(|variable| variable.name.len() + variable.value.len());
        self.create.command.len() + self.directory.as_os_str().len() + words.chain(variables).sum::<usize>()
    }

    /// Resolves directory and program to absolute paths. Errors if one is missing or not permitted.
    pub fn find(mut self, folders: &Folders) -> Result<Self, RequestError> {
        self.directory = folders
            .folder(&self.directory)
            .map_err(|refusal| RequestError::of_path(&self.directory, refusal))?;
        let program = &self.create.command;
        let path = if program.contains(is_separator) {
            self.directory.join(program)
        } else {
            search(program, &self.search_path)
                .filter(|path| path.to_str().is_some())
                .ok_or_else(|| RequestError::NotOnSearchPath(program.clone()))?
        };
        self.create.command =
            path.into_os_string().into_string().map_err(|path| RequestError::PathNotText(path.into()))?;
        Ok(self)
    }
}

fn search(name: &str, search_path: &OsStr) -> Option<PathBuf> {
    let mut folders = std::env::split_paths(search_path).filter(|folder| folder.is_absolute());
    folders.find_map(|folder| program_at(&folder.join(name)).filter(|_| !name.is_empty()))
}

#[derive(Debug)]
pub struct Commands {
    guard: GuardProgram,
    environment: BTreeMap<String, String>,
    last: AtomicU64,
    stop: CancellationToken,
    /// Channel with one receiver for each command that has not completely ended.
    running: watch::Sender<()>,
}

impl Commands {
    /// Creates an empty set. Commands receive this environment.
    pub fn new(guard: GuardProgram, environment: BTreeMap<String, String>) -> Self {
        let (last, stop) = (AtomicU64::new(0), CancellationToken::new());
        Self { guard, environment, last, stop, running: watch::Sender::new(()) }
    }

    /// Returns a terminal name that is unique for the agent.
    pub fn next_name(&self) -> String {
        format!("terminal-{}", self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub fn search_path(&self, environment: &[EnvVariable]) -> OsString {
        let added = environment.iter().rfind(|variable| variable.name == "PATH").map(|path| &path.value);
        let added = added.or_else(|| self.environment.get("PATH"));
        added.map(OsString::from).or_else(|| std::env::var_os("PATH")).unwrap_or_default()
    }

    /// Permanently stops all commands; returns when all have completely ended.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.running.closed().await;
    }

    /// Starts a command that reports to `screen`; dropping the returned guard ends the command.
    pub fn start(&self, launch: &Launch, screen: Arc<Screen>) -> io::Result<DropGuard> {
        let Launch { create, .. } = launch;
        let mut command = self.guard.command(Guarded::Command, &create.command);
        command.args(&create.args).envs(&self.environment);
        command.envs(create.env.iter().map(|variable| (&variable.name, &variable.value)));
        command.current_dir(&launch.directory);
        let (guard, control, output) = self.guard.start_command(command)?;
        let stop = self.stop.child_token();
        let attended = attend(guard, control, output, screen, stop.clone());
        let running = self.running.subscribe();
        tokio::spawn(async move {
            attended.await;
            drop(running);
        });
        Ok(stop.drop_guard())
    }
}

/// Reads a command's output and reports until all of its processes have ended.
async fn attend(
    mut guard: Guard,
    mut control: Control,
    output: CommandOutput,
    screen: Arc<Screen>,
    stop: CancellationToken,
) {
    let mut output = Some(output);
    let mut buffer = vec![0; READ_BYTES];
    let (mut stopped, mut burst) = (false, 0);
    let mut ending = std::pin::pin!(guard.ended(&stop));
    let mut ended = None;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled(), if !stopped => {
                stopped = true;
                control.close().await;
            }
            report = control.next() => match report {
                Some(news) => {
                    if let (Some(output), GuardReport::Exited(_) | GuardReport::Killed(_)) = (&output, &news) {
                        read_what_is_there(output, &mut buffer, &screen);
                    }
                    screen.set_stage(stage_of(news));
                }
                None => break,
            },
            // Remaining reports are read even after the guard has exited.
            status = &mut ending, if ended.is_none() => ended = Some(status),
            read = read_some(output.as_mut(), &mut buffer), if output.is_some() => match read {
                Ok(count @ 1..) => {
                    screen.write(&buffer[..count]);
                    burst += count;
                    if burst > BURST_BYTES {
                        burst = 0;
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                _ => output = None,
            },
        }
    }
    // The guard sends no more reports.
    drop(control);
    if let Some(output) = &output {
        read_what_is_there(output, &mut buffer, &screen);
    }
    let status = match ended {
        Some(status) => status,
        None => ending.await,
    };
    let signal = status.ok().and_then(signal_of);
    screen.set_stage(CommandStage::Ended(CommandExit { status: None, signal: signal.map(signal_name) }));
}

async fn read_some(output: Option<&mut CommandOutput>, buffer: &mut [u8]) -> io::Result<usize> {
    match output {
        Some(output) => output.read(buffer).await,
        None => std::future::pending().await,
    }
}

/// Reads the bytes that are available in a pipe, without waiting.
fn read_what_is_there(output: &CommandOutput, buffer: &mut [u8], screen: &Screen) {
    let mut read = 0;
    while read < PIPE_BYTES_MAX {
        match output.read_available(buffer) {
            Ok(count @ 1..) => {
                screen.write(&buffer[..count]);
                read += count;
            }
            _ => return,
        }
    }
}

fn stage_of(news: GuardReport) -> CommandStage {
    match news {
        GuardReport::Started => CommandStage::Running,
        GuardReport::NotStarted(why) => CommandStage::Failed(why),
        GuardReport::Exited(status) => {
            CommandStage::Ended(CommandExit { status: Some(status), signal: None })
        }
        GuardReport::Killed(signal) => {
            CommandStage::Ended(CommandExit { status: None, signal: Some(signal_name(signal)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_program_is_looked_for_where_no_workspace_can_put_one() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (bin, file) = (folder.path().join("bin"), folder.path().join("bin/tool"));
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(&file, "").unwrap();
        let path = std::env::join_paths([Path::new(""), Path::new("."), Path::new("bin"), &bin]).unwrap();
        assert_eq!(search("tool", &path), None);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(search("tool", &path), Some(file));
        assert_eq!((search("", &path), search("tool", OsStr::new(".:bin::"))), (None, None));
    }
}
