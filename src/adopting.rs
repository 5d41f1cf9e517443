//! `ahp-sidecar agents sessions`, `adopt`, `delete-session` and `logout`: the sessions that an
//! agent stores by itself, and its login.
//!
//! `sessions` and `adopt` are clients of the state folder's host, which knows the sessions that are
//! adopted already; open editors see a new one at once. The others start the agent themselves.
//!
//! Owns: the arguments of these commands, and what they print.
//! Never: stores anything, or starts a turn; stdout is for people and pipes here.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ahp_types::commands::SessionConfigCompletionsResult;
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::errors::ahp_error_codes;
use ahp_types::state::{SessionLifecycle, SessionState};
use anyhow::{anyhow, bail, Context};
use clap::Args;
use serde_json::{json, Value};
use uuid::Uuid;

use crate::backend::acp::{Acp, AgentErrand};
use crate::backend::Backend;
use crate::cli::{WhichAgents, AS_GUEST};
use crate::files::uris::uri_of;
use crate::host::ADOPT;
use crate::os::paths::canonical;
use crate::os::process::GuardProgram;
use crate::os::stdio::is_closed;
use crate::run::connection::{HostConnection, HostMessage, RequestFailure};
use crate::run::RunStop;
use crate::wire::text::one_line;
use crate::wire::uris;

/// Log filter of the process that joins the host.
const LOG: &str = "error";

/// Namespace of the ids of adopted sessions.
const ADOPTED: Uuid = Uuid::from_u128(0x6d0c_5bb1_93f5_4c0e_8d4f_2f0a_8c1b_7e55);

/// Arguments of `agents sessions`.
#[derive(Debug, Args)]
pub struct ListAgentSessions {
    /// Agent
    name: String,
    /// Folder of the sessions [default: the current one]
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    dir: Option<PathBuf>,
    /// Sessions of all folders; some agents list only those of the folder in which they run
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    host: HostArguments,
}

/// Arguments of `agents adopt`.
#[derive(Debug, Args)]
pub struct AdoptSession {
    /// Agent
    name: String,
    /// Id of the session, as `agents sessions` prints it
    session: String,
    /// Folder to go on in [default: the one of the session]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    host: HostArguments,
}

/// Arguments of `agents delete-session`.
#[derive(Debug, Args)]
pub struct DeleteAgentSession {
    /// Agent
    name: String,
    /// Id of the session, as `agents sessions` prints it
    session: String,
    #[command(flatten)]
    which: WhichAgents,
}

/// Arguments of `agents logout`.
#[derive(Debug, Args)]
pub struct LogOut {
    /// Agent
    name: String,
    #[command(flatten)]
    which: WhichAgents,
}

#[derive(Debug, Args)]
struct HostArguments {
    #[command(flatten)]
    which: WhichAgents,
    /// State folder, whose host is joined [default: as for serving]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// End of a host that these commands have joined, with its exit status.
#[derive(Debug, thiserror::Error)]
#[error("the host cannot be used any more (exit status {0})")]
pub struct HostGone(pub u8);

/// Prints the sessions of an agent that the host does not go on with, a line each: id, title, and
/// the time of the last change with the folder.
pub fn list(arguments: &ListAgentSessions) -> anyhow::Result<()> {
    let directory = if arguments.all { None } else { Some(directory_uri(arguments.dir.as_deref())?) };
    let listed = on_host(&arguments.host, async |client| {
        client.sessions(&arguments.name, directory.as_deref(), None).await
    })?;
    let mut lines = String::new();
    for item in listed.items {
        let description = item.description.unwrap_or_default();
        let fields = [item.value, item.label, description].map(|field| one_line(&field));
        lines.push_str(&fields.join("\t"));
        lines.push('\n');
    }
    print(&lines)
}

/// Adopts a session of an agent, and prints the URI of the session that goes on with it.
pub fn adopt(arguments: &AdoptSession) -> anyhow::Result<()> {
    let named = arguments.dir.as_deref().map(|dir| directory_uri(Some(dir))).transpose()?;
    let uri = session_uri(&arguments.name, &arguments.session);
    let session = on_host(&arguments.host, async |client| {
        let mut params = json!({
            "channel": uri, "provider": arguments.name, "config": { ADOPT: arguments.session },
        });
        let directory = match named {
            Some(directory) => Some(directory),
            None => client.if_of_current_folder(arguments).await?,
        };
        if let Some(directory) = directory {
            params["workingDirectories"] = json!([directory]);
        }
        match client.ask("createSession", params).await? {
            Ok(_) => {
                client.until_ready(&uri).await?;
                Ok(uri)
            }
            Err(error) if error.code == ahp_error_codes::SESSION_ALREADY_EXISTS => {
                let existing = error.data.as_ref().and_then(|data| data["session"].as_str());
                Ok(existing.map_or(uri, str::to_owned))
            }
            Err(error) => bail!(error.message),
        }
    })?;
    print(&format!("{}\n", one_line(&session)))
}

/// Deletes a session that an agent stores.
pub fn delete(arguments: &DeleteAgentSession, guard: &GuardProgram) -> anyhow::Result<()> {
    let errand = AgentErrand::Delete(arguments.session.clone());
    carry_out(&arguments.name, &arguments.which, &errand, guard)
}

/// Logs an agent out.
pub fn log_out(arguments: &LogOut, guard: &GuardProgram) -> anyhow::Result<()> {
    carry_out(&arguments.name, &arguments.which, &AgentErrand::LogOut, guard)
}

fn carry_out(
    name: &str,
    which: &WhichAgents,
    errand: &AgentErrand,
    guard: &GuardProgram,
) -> anyhow::Result<()> {
    let spec = which.agents()?.into_iter().find(|spec| spec.name == name);
    let spec = spec.with_context(|| format!("there is no agent `{name}`"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let backend = Acp::new(spec, guard.clone());
        let done = backend.carry_out(errand).await;
        backend.stop().await;
        done.with_context(|| format!("the agent `{name}`"))
    })
}

/// Client of the state folder's host.
struct AdoptingClient {
    host: HostConnection,
}

impl AdoptingClient {
    async fn ask(&mut self, method: &str, params: Value) -> anyhow::Result<Result<Value, RequestFailure>> {
        let asked = self.host.request(method, params).await.map_err(stopped)?;
        loop {
            match self.host.receive().await.map_err(stopped)? {
                HostMessage::Answer(id, answer) if id == asked => return Ok(answer),
                _ => {}
            }
        }
    }

    /// Returns the sessions that the agent has from elsewhere, those whose texts contain `query`.
    async fn sessions(
        &mut self,
        agent: &str,
        directory: Option<&str>,
        query: Option<&str>,
    ) -> anyhow::Result<SessionConfigCompletionsResult> {
        let mut params = json!({ "channel": ROOT_RESOURCE_URI, "provider": agent, "property": ADOPT });
        for (member, value) in [("workingDirectory", directory), ("query", query)] {
            if let Some(value) = value {
                params[member] = value.into();
            }
        }
        let listed = self.ask("sessionConfigCompletions", params).await?;
        let listed = listed.map_err(|error| anyhow!(error.message))?;
        serde_json::from_value(listed).context("the answer of the host")
    }

    /// Returns the current folder if the session is one of it: some agents list only sessions of a
    /// folder that is named.
    async fn if_of_current_folder(&mut self, arguments: &AdoptSession) -> anyhow::Result<Option<String>> {
        let AdoptSession { name, session, .. } = arguments;
        let Ok(current) = directory_uri(None) else { return Ok(None) };
        let listed = self.sessions(name, Some(&current), Some(session)).await;
        // The adoption itself reports the failure of an agent that cannot list.
        let is_its = listed.is_ok_and(|listed| listed.items.iter().any(|item| item.value == *session));
        Ok(is_its.then_some(current))
    }

    /// Waits until the agent has opened the session. Otherwise the end of this client would end the
    /// opening.
    async fn until_ready(&mut self, uri: &str) -> anyhow::Result<()> {
        let subscribed = self.ask("subscribe", json!({ "channel": uri })).await?;
        let subscribed = subscribed.map_err(|error| anyhow!(error.message))?;
        let state: SessionState =
            serde_json::from_value(subscribed["snapshot"]["state"].clone()).context("the new session")?;
        match state.lifecycle {
            SessionLifecycle::Creating => {}
            SessionLifecycle::Failed => {
                bail!("{}", state.creation_error.map(|error| error.message).unwrap_or_default())
            }
            _ => return Ok(()),
        }
        loop {
            if let HostMessage::Action(envelope, _) = self.host.receive().await.map_err(stopped)? {
                match envelope.action {
                    ahp_types::actions::StateAction::SessionReady(_) => return Ok(()),
                    ahp_types::actions::StateAction::SessionCreationFailed(failed) => {
                        bail!(failed.error.message)
                    }
                    _ => {}
                }
            }
        }
    }
}

fn stopped(stop: RunStop) -> anyhow::Error {
    match stop {
        RunStop::Gone(status) => HostGone(status).into(),
        RunStop::Failed(error) => error,
        stop => anyhow!("the host cannot be used: {stop:?}"),
    }
}

/// Joins the host of the state folder, does something there, and leaves.
fn on_host<T>(
    arguments: &HostArguments,
    work: impl AsyncFnOnce(&mut AdoptingClient) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = AdoptingClient { host: HostConnection::open(host_arguments(arguments))? };
        let hello = json!({
            "channel": ROOT_RESOURCE_URI,
            "clientId": format!("ahp-sidecar-agents-{}", Uuid::new_v4()),
            "clientInfo": { "name": "ahp-sidecar-agents", "version": env!("CARGO_PKG_VERSION") },
            "protocolVersions": ["1.0.0"],
        });
        client.ask("initialize", hello).await?.map_err(|error| anyhow!(error.message))?;
        let done = work(&mut client).await;
        client.host.close().await;
        done
    })
}

fn host_arguments(arguments: &HostArguments) -> Vec<OsString> {
    let mut host: Vec<OsString> = ["--on-eof", "exit", "--log", LOG].map(OsString::from).into();
    host.extend(arguments.which.flags());
    if let Some(folder) = &arguments.state_dir {
        host.extend(["--state-dir".into(), folder.into()]);
    }
    if !arguments.which.names_configuration() {
        // The settings that an editor gives its host are none of this command's business.
        host.push(format!("--{AS_GUEST}").into());
    }
    host
}

/// Returns the URI of the session that goes on with a session of an agent: always the same.
fn session_uri(agent: &str, session: &str) -> String {
    let id = Uuid::new_v5(&ADOPTED, format!("{agent}\n{session}").as_bytes());
    uris::session_uri(id)
}

/// Returns the `file:` URI of a folder, the current one if none is given.
fn directory_uri(directory: Option<&Path>) -> anyhow::Result<String> {
    let current = std::env::current_dir();
    let directory = match directory {
        Some(directory) => directory,
        None => current.as_deref().map_err(|_| anyhow!("there is no current folder: use `--dir`"))?,
    };
    let found = canonical(directory).ok().filter(|found| found.is_dir());
    let found = found.with_context(|| format!("--dir: `{}` is not a folder", directory.display()))?;
    Ok(uri_of(&found))
}

fn print(lines: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if is_closed(&error) => Ok(()),
        done => done.context("stdout cannot be written"),
    }
}
