//! `--listen` and `status`: the addresses on which other programs connect.
//!
//! Owns: their arguments and errors, and printing the addresses.
//! Never: listens.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context};
use clap::Args;
use serde_json::{json, Value};

use crate::git::program::{Deadline, Git};
use crate::io::listen::access::{Access, AccessToken};
use crate::io::listen::address::Address;
use crate::io::listen::notice::ListenNotice;
use crate::io::listen::Listening;
use crate::os::stdio::is_closed;
use crate::places;
use crate::store::folder;

/// Addresses of listeners, and their authentication.
#[derive(Debug, Args)]
pub struct ListenArgs {
    /// Accept connections on ws://HOST:PORT (port 0: any free port) or unix:PATH; repeatable
    #[arg(long, value_name = "ADDRESS", value_parser = read_address)]
    listen: Vec<Address>,

    /// File with the token that clients of ws:// must send as ?tkn= or as Authorization: Bearer
    /// [default: a new token, which is printed on stderr with the address]
    #[arg(long, value_name = "FILE", requires = "listen", conflicts_with = "no_token")]
    token_file: Option<PathBuf>,

    /// Accept any program on this machine on ws://, without a token
    #[arg(long, requires = "listen")]
    no_token: bool,

    /// Accept web pages of this origin, such as https://example.com; repeatable
    #[arg(long, value_name = "ORIGIN", requires = "listen")]
    allow_origin: Vec<String>,

    /// Announce the ws:// listener to an editor on this machine, by an entry in its registry
    #[arg(long, value_name = "EDITOR", value_enum, requires = "listen", conflicts_with = "no_token")]
    announce: Option<Editor>,

    /// Time for which permissions and questions wait for a client that has lost its connection to
    /// come back, when no other client is connected
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "listen")]
    reconnect_within: u64,

    /// Time limit for the handshake of a client, for tests
    #[arg(long, value_name = "SECONDS", default_value_t = 10, hide = true, requires = "listen")]
    handshake_timeout: u64,

    /// Time limit for a message that a client has begun on ws://, for tests
    #[arg(long, value_name = "SECONDS", default_value_t = 30, hide = true, requires = "listen")]
    message_timeout: u64,
}

/// An editor that keeps a registry of hosts.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Editor {
    /// Visual Studio Code
    Vscode,
}

fn read_address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error: anyhow::Error| error.to_string())
}

/// Returns the address with an absolute path, for processes with another current folder.
fn absolute(address: &Address) -> Address {
    match address {
        Address::Unix(path) => Address::Unix(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        Address::WebSocket { .. } => address.clone(),
    }
}

/// Delay before a wrong token is answered.
const WRONG_TOKEN_WAIT: Duration = Duration::from_secs(1);

impl ListenArgs {
    /// Returns the files by which clients connect: the sockets, and the file with the token.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let sockets = self.listen.iter().map(absolute).filter_map(|address| match address {
            Address::Unix(path) => Some(path),
            Address::WebSocket { .. } => None,
        });
        sockets.chain(
            self.token_file.as_ref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone())),
        )
    }

    /// Returns the addresses to listen on, with their settings; `None` if no address is given.
    /// Reads the token from its file, or creates a new one.
    ///
    /// # Errors
    /// When the token is unavailable, or `--no-token` is given for an address that others can
    /// reach.
    pub fn listening(&self) -> anyhow::Result<Option<Listening>> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        let token = match &self.token_file {
            _ if self.no_token => None,
            Some(file) => Some(AccessToken::from_file(file).context("--token-file")?),
            None => Some(AccessToken::fresh()?),
        };
        if let Some(open) = self.listen.iter().find(|address| self.no_token && !address.is_local()) {
            bail!("--no-token: other machines could connect to {open}; leave the flag out");
        }
        Ok(Some(Listening {
            addresses: self.listen.iter().map(absolute).collect(),
            files: self.files().collect(),
            access: Access { token, origins: self.allow_origin.clone() },
            token_is_known: self.token_file.is_some(),
            announced_in: self.announced_in()?,
            returns_within: Duration::from_secs(self.reconnect_within),
            handshake_within: Duration::from_secs(self.handshake_timeout),
            message_within: Duration::from_secs(self.message_timeout),
            wrong_token_wait: WRONG_TOKEN_WAIT,
        }))
    }

    fn announced_in(&self) -> anyhow::Result<Option<PathBuf>> {
        match self.announce {
            Some(Editor::Vscode) => places::vscode_user_data()
                .map(Some)
                .context("--announce vscode: the folder of Visual Studio Code's data is unknown, since no home folder is known"),
            None => Ok(None),
        }
    }
}

/// Print the processes that use a state folder, and their listeners.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// State folder [default: the default state folder]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Print the status as JSON: `running`, `process`, `listening` with the tokens, and `git`
    #[arg(long)]
    json: bool,
}

/// Timeout of the query for git's version.
const GIT_WITHIN: Duration = Duration::from_secs(5);

/// Returns the git that a host started here would use, or why none: as a line, and as JSON.
fn git_found() -> (String, Value) {
    match Git::find(env::var_os("PATH").as_deref(), Deadline::after(GIT_WITHIN)) {
        Ok(git) => {
            let (path, version) = (git.path().display().to_string(), git.version());
            (format!("git {version}, {path}\n"), json!({ "path": path, "version": version, "problem": null }))
        }
        Err(error) => {
            let problem = error.to_string();
            let line = format!("git is not used: {problem}\n");
            (line, json!({ "path": null, "version": null, "problem": problem }))
        }
    }
}

/// Returns the process that uses a state folder, and its notice with the addresses.
pub(crate) fn host_of(folder: &Path) -> anyhow::Result<(Option<u32>, Option<ListenNotice>)> {
    let name = folder.display();
    let holder = folder::holder_now(folder).with_context(|| format!("cannot look into {name}"))?;
    let process = holder.and_then(|holder| holder.process);
    let notice = ListenNotice::read(folder)
        .with_context(|| format!("cannot read the addresses of the host of {name}"))?;
    // A killed process leaves its notice behind.
    Ok((process, notice.filter(|notice| process == Some(notice.process))))
}

/// Prints the process that uses a state folder, its addresses, and the git that it would use.
pub fn print_status(arguments: &StatusArgs) -> anyhow::Result<()> {
    let place = folder::chosen(arguments.state_dir.as_deref())?;
    let (process, notice) = host_of(&place)?;
    let listening = notice.iter().flat_map(|notice| notice.listening.clone());
    let (git_line, git) = git_found();
    let printed = if arguments.json {
        let listening: Vec<String> = listening.collect();
        let running = process.is_some();
        let status = json!({ "running": running, "process": process, "listening": listening, "git": git });
        format!("{status}\n")
    } else {
        let first = match (process, &notice) {
            (None, _) => format!("no process uses {}\n", place.display()),
            (Some(process), Some(_)) => {
                format!("process {process} uses {}, and listens on:\n", place.display())
            }
            (Some(process), None) => {
                format!("process {process} uses {}, and does not listen\n", place.display())
            }
        };
        listening.fold(first, |printed, url| printed + &url + "\n") + &git_line
    };
    print(&printed)
}

/// Prints a text on stdout. A reader may close the pipe early, as `head` does.
///
/// # Errors
/// When stdout cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if is_closed(&error) => Ok(()),
        written => written.context("stdout cannot be written"),
    }
}
