//! `ahp-sidecar agents check`: each agent is started once, and it is said what it is.
//!
//! Owns: what is printed of agents, and remembering what they have said of themselves, so that the next host can tell
//! its clients at once.
//! Never: serves, logs in, or gives an agent anything to do; stdout is for people and pipes here.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use clap::{Args, Subcommand};

use crate::backend::acp::guards::GuardProgram;
use crate::backend::acp::{program, Acp, AgentSpec};
use crate::backend::meeting::{self, Meeting};
use crate::backend::Backend;
use crate::cli::WhichAgents;
use crate::host::effects::{AgentDescription, OpenFailure, Tokens};
use crate::host::{kept_of, Start};
use crate::store::archive::Archive;
use crate::store::folder::{self, StateFolder};
use crate::store::sqlite;

/// The setting that is an agent's mode.
const MODE: &str = "mode";

/// The arguments of `agents`.
#[derive(Debug, Args)]
pub struct AgentsArguments {
    #[command(subcommand)]
    verb: AgentsVerb,
}

#[derive(Debug, Subcommand)]
enum AgentsVerb {
    /// Start each agent once: say whether it is there, which version, whether it is logged in, its models and modes;
    /// and remember that for clients
    Check(Check),
}

#[derive(Debug, Args)]
struct Check {
    /// Only this agent
    name: Option<String>,
    #[command(flatten)]
    which: WhichAgents,
    /// Where it is remembered [default: the folder that sessions are kept in when nothing is said]
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    state_dir: Option<PathBuf>,
    /// Remember nothing
    #[arg(long)]
    ephemeral: bool,
}

/// What came of a check.
#[derive(Debug)]
pub enum Checked {
    /// All agents can be used.
    Usable,
    /// One of them cannot.
    Unusable,
    /// Whatever they are, it is not remembered: why.
    NotRemembered(anyhow::Error),
}

/// Does what the arguments ask for.
///
/// # Errors
/// When it is not known which agents are meant.
pub fn run(agents: &AgentsArguments, guard: &GuardProgram) -> anyhow::Result<Checked> {
    let AgentsVerb::Check(check) = &agents.verb;
    let mut specs = check.which.agents()?;
    if let Some(name) = &check.name {
        let all: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        specs.retain(|spec| spec.name == *name);
        if specs.is_empty() {
            bail!("there is no agent `{name}`; there are: {}", all.join(", "));
        }
    }
    if specs.is_empty() {
        bail!("no agent is configured: name one with --agent, or in a configuration file");
    }
    // Held while agents are started, so that it is known from the beginning whether anything can be remembered.
    let memory = if check.ephemeral { Ok(None) } else { open(check.state_dir.as_deref()).map(Some) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let met = runtime.block_on(meet_all(specs, guard));
    let mut out = io::stdout().lock();
    for agent in &met {
        if let Err(error) = show(agent, &mut out) {
            tracing::debug!(%error, "the list of agents cannot be written: nobody reads stdout");
            break;
        }
    }
    match memory.and_then(|memory| memory.map_or(Ok(()), |(_folder, archive)| remember(&archive, &met))) {
        Err(error) => Ok(Checked::NotRemembered(error)),
        Ok(()) if met.iter().all(|agent| agent.meeting.failure.is_none()) => Ok(Checked::Usable),
        Ok(()) => Ok(Checked::Unusable),
    }
}

/// An agent, and what came of starting it.
struct Met {
    spec: AgentSpec,
    describes: AgentDescription,
    meeting: Meeting,
}

/// Meets all agents, at the same time.
async fn meet_all(specs: Vec<AgentSpec>, guard: &GuardProgram) -> Vec<Met> {
    let meetings = specs.into_iter().map(|spec| {
        let backend = Acp::new(spec.clone(), guard.clone());
        let describes = backend.describe();
        let begun = meeting::begin(&backend, Tokens::new());
        let task = tokio::spawn(async move {
            let meeting = meeting::meet(begun).await;
            backend.stop().await;
            meeting
        });
        (spec, describes, task)
    });
    let mut met = Vec::new();
    for (spec, describes, task) in meetings.collect::<Vec<_>>() {
        match task.await {
            Ok(meeting) => met.push(Met { spec, describes, meeting }),
            Err(error) => tracing::error!(agent = spec.name, %error, "an agent could not be checked"),
        }
    }
    met
}

fn open(asked: Option<&Path>) -> anyhow::Result<(StateFolder, Archive)> {
    let folder = StateFolder::hold(&folder::chosen(asked)?)?;
    let path = folder.private_file(sqlite::FILE_NAME)?;
    let archive = Archive::open(&path).with_context(|| format!("{} cannot be used", path.display()))?;
    Ok((folder, archive))
}

fn remember(archive: &Archive, met: &[Met]) -> anyhow::Result<()> {
    let before = Start { said: archive.agents(), ..Start::default() };
    for agent in met {
        let said = kept_of(&agent.describes, &before, agent.meeting.said.clone());
        archive.agent_said(&agent.spec.name, &said)?;
    }
    Ok(())
}

fn show(agent: &Met, out: &mut dyn Write) -> io::Result<()> {
    let Met { spec, meeting, .. } = agent;
    let Meeting { said, config, failure } = meeting;
    writeln!(out, "{}", spec.name)?;
    let mut line = |name: &str, text: &str| writeln!(out, "  {name:<9} {text}");
    if let Ok(found) = program::find(&spec.program, spec.directory.as_deref(), &spec.environment) {
        line("found", &found.display().to_string())?;
    }
    let is: Vec<&str> = said.title.iter().chain(&said.version).map(String::as_str).collect();
    if !is.is_empty() {
        line("is", &is.join(" "))?;
    }
    match failure {
        Some((OpenFailure::LoginRequired, why)) => return line("login", &format!("NEEDED: {why}")),
        Some((OpenFailure::Unavailable, why)) => return line("FAILS", why),
        None => line("login", "not needed for a session")?,
    }
    let models = said.models.iter().flatten().map(|model| format!("{} ({})", model.name, model.id));
    line("models", &list(models.collect()))?;
    let properties = config.iter().flat_map(|config| &config.schema.properties);
    let (modes, others): (Vec<_>, Vec<_>) = properties.partition(|(name, _)| *name == MODE);
    let modes = modes.into_iter().flat_map(|(_, mode)| mode.r#enum.iter().flatten());
    let modes: Vec<String> =
        modes.map(|mode| mode.as_str().map_or_else(|| mode.to_string(), str::to_owned)).collect();
    line("modes", &list(modes))?;
    let mut others: Vec<String> = others.into_iter().map(|(name, _)| name.clone()).collect();
    others.sort();
    line("settings", &list(others))?;
    let commands = said.commands.iter().flatten().map(|command| format!("/{}", command.name));
    line("commands", &list(commands.collect()))
}

fn list(items: Vec<String>) -> String {
    if items.is_empty() {
        return "none that it says".to_owned();
    }
    items.join(", ")
}
