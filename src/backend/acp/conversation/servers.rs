//! MCP servers of the operator in a conversation.
//!
//! Owns: the servers that the agent is given, in its own form; the reasons why it cannot use
//! others; and reopening the session when it should have others.
//! Never: starts a server: the agent does. Never lets one unusable server keep the agent from the
//! others, or shows a secret that a server needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_client_protocol_schema::v1::{
    EnvVariable, HttpHeader, McpCapabilities, McpServer as AcpServer, McpServerHttp, McpServerSse,
    McpServerStdio,
};
use anyhow::{bail, Context};
use serde::Deserialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{AcpConversation, Next};
use crate::backend::acp::folder_servers::OpenInFolder;
use crate::backend::acp::peer::PeerMessage;
use crate::backend::acp::program;
use crate::backend::mcp::{McpServer, McpTransport, SecretText};
use crate::backend::secrets::{self, Secret, HIDDEN_BYTES_MIN};
use crate::host::effects::{Event, McpServerReport};
use crate::wire::text;

/// Beginning of the id of a call by which Codex reports a server that it could not start.
const FAILED_START: &str = "mcp_startup.";

/// Servers of a conversation with their values, which are hidden from the log while this exists.
#[derive(Debug, Default)]
pub(super) struct ReadServers {
    /// Servers in the agent's form, with their programs as configured; or why one is unusable.
    servers: Vec<(Arc<McpServer>, Result<AcpServer, String>)>,
    secrets: Vec<Arc<Secret>>,
}

/// Servers that the agent has.
#[derive(Debug, Default)]
pub(super) struct GivenServers {
    /// Servers in the agent's form, for the requests that open the session.
    entries: Vec<AcpServer>,
    /// All servers that the agent should have had when the session was opened.
    reports: Vec<McpServerReport>,
    /// Ids of the servers, by name.
    names: BTreeMap<String, String>,
    /// Entry of the session among those in its folder, for an agent that shares servers.
    pub(super) in_folder: Option<OpenInFolder>,
    /// Set if the agent should have other servers than those with which the session was opened.
    is_out_of_date: bool,
}

impl ReadServers {
    /// Reads the values of servers, on a blocking thread.
    pub(super) async fn new(servers: Vec<Arc<McpServer>>) -> anyhow::Result<Self> {
        if servers.is_empty() {
            return Ok(Self::default());
        }
        let read = spawn_blocking(move || {
            let mut secrets = Vec::new();
            let servers = servers.into_iter().map(|server| {
                let entry = entry_of(&server, &mut secrets).map_err(|why| format!("{why:#}"));
                (server, entry)
            });
            Self { servers: servers.collect(), secrets }
        });
        read.await.context("the MCP servers cannot be prepared")
    }

    /// Returns the secrets that the servers have.
    pub(super) fn secrets(&self) -> &[Arc<Secret>] {
        &self.secrets
    }

    /// Returns a text without secrets; unchanged if there are no servers.
    pub(super) fn redact(&self, text: String) -> String {
        match self.servers[..] {
            [] => text,
            _ => secrets::redact(&text).into_owned(),
        }
    }
}

impl GivenServers {
    /// Selects the servers that the agent can use, and finds their programs.
    pub(super) fn new(
        read: &ReadServers,
        can: &McpCapabilities,
        directory: &Path,
        environment: &BTreeMap<String, String>,
    ) -> Self {
        let mut given = Self::default();
        for (server, entry) in &read.servers {
            let usable = entry.clone().map_err(anyhow::Error::msg);
            let usable = usable.and_then(|entry| usable_by(entry, can, directory, environment));
            let problem = usable.as_ref().err().map(|why| secrets::redact(&format!("{why:#}")).into_owned());
            if let Some(problem) = &problem {
                tracing::warn!(server = server.name, "an agent does not get an MCP server: {problem}");
            }
            given.entries.extend(usable);
            given.names.insert(server.name.clone(), server.id());
            given.reports.push(McpServerReport { server: server.id(), problem });
        }
        given
    }

    pub(super) fn entries(&self) -> Vec<AcpServer> {
        self.entries.clone()
    }

    /// Returns the report for the core; `None` if there never was a server.
    pub(super) fn report(&self) -> Option<Event> {
        (!self.reports.is_empty()).then(|| Event::McpServers(self.reports.clone()))
    }
}

impl AcpConversation {
    /// Notes which servers the agent should have. Leaves if the session can be reopened now.
    pub(super) fn change_servers(&mut self, mut servers: Vec<String>, restart: bool) -> Next {
        let mut has: Vec<&String> = self.servers.reports.iter().map(|report| &report.server).collect();
        has.sort_unstable();
        servers.sort_unstable();
        self.servers.is_out_of_date = restart || !has.into_iter().eq(&servers);
        if self.run.is_none() && !self.own_turns.has_held() && self.must_reopen_for_servers() {
            self.leave_for_reopening();
            return Next::Leave;
        }
        self.events.push(Event::McpServers(self.servers.reports.clone()));
        Next::Hear
    }

    /// Returns whether the session must be reopened for its servers, and can be without loss.
    pub(super) fn must_reopen_for_servers(&self) -> bool {
        let must = self.servers.is_out_of_date && self.reopening_loses_nothing();
        if must {
            let agent = &self.agent.spec.name;
            tracing::info!(agent, "the agent's session is reopened, because its MCP servers have changed");
        }
        must
    }

    /// Takes the report of a server that the agent could not start: Codex sends a failed call.
    pub(super) fn take_failed_server(&mut self, message: &PeerMessage) -> bool {
        if self.servers.names.is_empty() {
            return false;
        }
        let PeerMessage::Update(raw) = message else { return false };
        let Ok(update) = serde_json::from_str::<FailedStart>(raw.get()) else { return false };
        let name = update.tool_call_id.strip_prefix(FAILED_START).filter(|_| update.status == "failed");
        let of_name = name.and_then(|name| self.servers.names.get(name));
        let report = self.servers.reports.iter_mut().find(|report| Some(&report.server) == of_name);
        let Some(report) = report else { return false };
        let text = update.content.pointer("/0/content/text").and_then(Value::as_str);
        let why = text.map(str::to_owned).or(update.title);
        let why = text::message(why.as_deref().unwrap_or("the agent could not start it"));
        report.problem = Some(secrets::redact(&why).into_owned());
        self.events.push(Event::McpServers(self.servers.reports.clone()));
        true
    }
}

/// Members of a failed call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailedStart {
    tool_call_id: String,
    status: String,
    title: Option<String>,
    #[serde(default)]
    content: Value,
}

/// Returns a server in the agent's form, with its values.
///
/// # Errors
/// When it is unusable, with the reason for people.
fn entry_of(server: &McpServer, secrets: &mut Vec<Arc<Secret>>) -> anyhow::Result<AcpServer> {
    let name = server.name.as_str();
    let mut read = |what: &str, text: &SecretText| -> anyhow::Result<String> {
        let context = || format!("`{what}`");
        if text.is_reference() {
            return text.read_hidden(secrets).with_context(context);
        }
        let value = text.read().with_context(context)?;
        if value.len() >= HIDDEN_BYTES_MIN {
            secrets.push(Arc::new(Secret::register(&value)));
        }
        Ok(value)
    };
    match &server.transport {
        Err(problem) => bail!("{problem}"),
        Ok(McpTransport::Stdio { command, folder, args, env }) => {
            let mut read_word = |what: &str, text: &SecretText| match text.is_reference() {
                true => read(what, text),
                // Not a secret: every program of this machine can read a command line.
                false => text.read(),
            };
            let command = program_in(folder, &read_word("command", command)?)?;
            let args = args.iter().map(|text| read_word("args", text));
            let args = args.collect::<anyhow::Result<Vec<String>>>()?;
            let env = env.iter().map(|(name, text)| {
                let value = read(&format!("env.{name}"), text)?;
                Ok(EnvVariable::new(name, value))
            });
            let env = env.collect::<anyhow::Result<Vec<EnvVariable>>>()?;
            Ok(AcpServer::Stdio(McpServerStdio::new(name, command).args(args).env(env)))
        }
        Ok(McpTransport::Url { url, headers, sse }) => {
            let url = read("url", url)?;
            let headers = headers.iter().map(|(name, text)| {
                let value = read(&format!("headers.{name}"), text)?;
                Ok(HttpHeader::new(name, value))
            });
            let headers = headers.collect::<anyhow::Result<Vec<HttpHeader>>>()?;
            Ok(match sse {
                true => AcpServer::Sse(McpServerSse::new(name, url).headers(headers)),
                false => AcpServer::Http(McpServerHttp::new(name, url).headers(headers)),
            })
        }
    }
}

/// Returns the path of a program: a bare name stays, since it is looked up on the search path.
fn program_in(folder: &Path, command: &str) -> anyhow::Result<PathBuf> {
    if command.is_empty() {
        bail!("`command` is empty");
    }
    let command = Path::new(command);
    if command.components().count() > 1 {
        return Ok(std::path::absolute(folder.join(command))?);
    }
    Ok(command.to_owned())
}

/// Returns a server with the path of its program.
///
/// # Errors
/// When the agent does not support the transport, or the program does not exist.
fn usable_by(
    entry: AcpServer,
    can: &McpCapabilities,
    directory: &Path,
    environment: &BTreeMap<String, String>,
) -> anyhow::Result<AcpServer> {
    match entry {
        AcpServer::Stdio(mut stdio) => {
            let mut environment = environment.clone();
            let own = stdio.env.iter().map(|it| (it.name.clone(), it.value.clone()));
            environment.extend(own.filter(|(name, _)| name == "PATH"));
            stdio.command = program::find(&stdio.command, Some(directory), &environment)?;
            Ok(AcpServer::Stdio(stdio))
        }
        AcpServer::Http(_) if !can.http => bail!("the agent does not support MCP servers over HTTP"),
        AcpServer::Sse(_) if !can.sse => bail!("the agent does not support MCP servers over SSE"),
        entry => Ok(entry),
    }
}
