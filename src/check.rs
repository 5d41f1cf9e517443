//! `ahp-sidecar agents check`: starts each agent once and prints its properties; and the verbs of
//! `agents`, of which [`installing`] has the others.
//!
//! Owns: the printed report, and storing the properties that agents report, so that the next host
//! can send them to its clients at once.
//! Never: serves, logs in, or gives an agent a task; stdout is for people and pipes here.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ahp_types::state::SessionConfigState;
use anyhow::{bail, Context};
use clap::{Args, Subcommand};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::adopting::{self, AdoptSession, DeleteAgentSession, ListAgentSessions, LogOut};
use crate::backend::acp::options::{is_unasked_mode, misfit, MODE};
use crate::backend::acp::quirks::AgentQuirks;
use crate::backend::acp::{program, Acp, AgentSpec};
use crate::backend::probe::{self, ProbeResult};
use crate::backend::Backend;
use crate::cli::WhichAgents;
use crate::host::effects::{AgentDescription, OpenFailure, Tokens};
use crate::host::{stored_description, Start};
use crate::installing::{self, AddAgent, RemoveAgent, UpdateAgent};
use crate::os::process::GuardProgram;
use crate::store::archive::Archive;
use crate::store::folder::{self, StateFolder};
use crate::store::sqlite;
use crate::wire::text;

/// Id of the setting for an agent's model, whose values are listed as models.
const MODEL: &str = "model";

/// Modes in which agents ask before they change files, in order of preference.
const ASKING_MODES: [&str; 4] = ["default", "ask", "read-only", "manual"];

/// Interval at which the progress line is redrawn.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

/// Maximum length of the names on that line, in characters: a wrapped line cannot be erased.
const NAMES_CHARS_MAX: usize = 50;

const NONE_REPORTED: &str = "none reported";

/// Limit of an agent's own answers, longer than any timeout of the check.
const NO_LIMIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Add, check, update and remove agents.
#[derive(Debug, Args)]
pub struct AgentsArguments {
    #[command(subcommand)]
    verb: AgentsVerb,
}

#[derive(Debug, Subcommand)]
enum AgentsVerb {
    /// Start each agent once and print whether it works, its version, login, models, modes and
    /// other settings; remember them for clients
    Check(Check),
    /// Install an agent and add it to the configuration file, after printing what is done; then
    /// check it. Without a name, list the agents that can be added
    Add(AddAgent),
    /// Install the newest version of a configured agent, and check it
    Update(UpdateAgent),
    /// Remove an agent from the configuration file; its program stays
    Remove(RemoveAgent),
    /// List the sessions that an agent has from elsewhere, such as its own terminal program: id,
    /// title, time of the last change and folder
    Sessions(ListAgentSessions),
    /// Bring a session that an agent has from elsewhere into the state folder, with its history, to
    /// go on with it; print its URI
    Adopt(AdoptSession),
    /// Have an agent delete one of its own sessions for good
    DeleteSession(DeleteAgentSession),
    /// Have an agent log out
    Logout(LogOut),
}

#[derive(Debug, Args)]
struct Check {
    /// Only this agent
    name: Option<String>,
    #[command(flatten)]
    which: WhichAgents,
    /// Time limit for each agent [default: twice the agent's `start_seconds`: for its start, and
    /// for a session]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// State folder that remembers the results [default: the folder of sessions]
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    state_dir: Option<PathBuf>,
    /// Remember nothing
    #[arg(long)]
    ephemeral: bool,
}

/// Outcome of a check.
#[derive(Debug)]
pub enum Checked {
    /// All agents are usable.
    Usable,
    /// An agent is not usable, is still starting, or does not accept its configuration.
    Unusable,
    /// The results could not be stored, for this reason.
    NotRemembered(anyhow::Error),
    /// The command about the agent's own sessions or login failed, for this reason.
    Failed(anyhow::Error),
}

/// Carries out a verb of `agents`.
pub fn run(agents: &AgentsArguments, guard: &GuardProgram) -> anyhow::Result<Checked> {
    match &agents.verb {
        AgentsVerb::Check(check) => check_agents(check, guard),
        AgentsVerb::Add(add) => installing::add(add, guard),
        AgentsVerb::Update(update) => installing::update(update, guard),
        AgentsVerb::Remove(remove) => installing::remove(remove),
        AgentsVerb::Sessions(list) => Ok(done(adopting::list(list))),
        AgentsVerb::Adopt(adopt) => Ok(done(adopting::adopt(adopt))),
        AgentsVerb::DeleteSession(delete) => Ok(done(adopting::delete(delete, guard))),
        AgentsVerb::Logout(logout) => Ok(done(adopting::log_out(logout, guard))),
    }
}

fn done(outcome: anyhow::Result<()>) -> Checked {
    outcome.map_or_else(Checked::Failed, |()| Checked::Usable)
}

/// Checks one agent, and stores nothing.
pub fn check_agent(name: &str, which: WhichAgents, guard: &GuardProgram) -> anyhow::Result<Checked> {
    let name = Some(name.to_owned());
    check_agents(&Check { name, which, timeout: None, state_dir: None, ephemeral: true }, guard)
}

/// Checks the agents that the arguments select.
fn check_agents(check: &Check, guard: &GuardProgram) -> anyhow::Result<Checked> {
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
    // Locked before agents are started, so that it is known early whether the results can be
    // stored.
    let memory = if check.ephemeral { Ok(None) } else { open(check.state_dir.as_deref()).map(Some) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = check.timeout.map(|seconds| Duration::from_secs(seconds.into()));
    let count = specs.len();
    let met = runtime.block_on(probe_all(specs, guard, asked));
    match memory.and_then(|memory| memory.map_or(Ok(()), |(_folder, archive)| remember(&archive, &met))) {
        Err(error) => Ok(Checked::NotRemembered(error)),
        Ok(()) if are_usable(&met, count) => Ok(Checked::Usable),
        Ok(()) => Ok(Checked::Unusable),
    }
}

/// Returns whether this number of agents was probed, and all are usable.
fn are_usable(met: &[CheckedAgent], count: usize) -> bool {
    met.len() == count && met.iter().all(CheckedAgent::is_usable)
}

struct CheckedAgent {
    spec: AgentSpec,
    describes: AgentDescription,
    outcome: StartOutcome,
    /// Time from the start until the probe ended or timed out.
    took: Duration,
    quirks: AgentQuirks,
    /// Reason why the agent may need a login although it opens sessions.
    missing_login: Option<String>,
}

enum StartOutcome {
    Probed(Box<ProbeResult>),
    /// Agent that had not answered after this time.
    Starting(Duration),
}

impl CheckedAgent {
    fn is_usable(&self) -> bool {
        match &self.outcome {
            StartOutcome::Probed(probe) => probe.failure.is_none() && self.misfits(probe).is_empty(),
            StartOutcome::Starting(_) => false,
        }
    }

    /// Returns the configured options that a new session does not have, each as a sentence.
    fn misfits(&self, probe: &ProbeResult) -> Vec<String> {
        let Some(config) = &probe.config else { return Vec::new() };
        self.spec.config.iter().filter_map(|(id, value)| misfit(config, id, value)).collect()
    }
}

/// Probes all agents concurrently, and prints each when its result is known.
async fn probe_all(
    specs: Vec<AgentSpec>,
    guard: &GuardProgram,
    asked: Option<Duration>,
) -> Vec<CheckedAgent> {
    let mut progress = Progress::new(specs.iter().map(|spec| spec.name.clone()).collect());
    let mut probes = JoinSet::new();
    for spec in specs {
        probes.spawn(probe_agent(spec, guard.clone(), asked));
    }
    let (mut met, mut is_read) = (Vec::new(), true);
    let mut ticks = interval(PROGRESS_EVERY);
    loop {
        let done = tokio::select! {
            done = probes.join_next() => done,
            _ = ticks.tick(), if progress.is_shown => {
                progress.draw();
                continue;
            }
        };
        progress.erase();
        match done {
            None => return met,
            // No log has been started. A failure is ignored: stderr may be closed.
            Some(Err(error)) => {
                writeln!(io::stderr(), "error: an agent could not be checked: {error}").unwrap_or_default()
            }
            Some(Ok(agent)) => {
                progress.waiting.retain(|name| *name != agent.spec.name);
                if is_read {
                    is_read = print(&agent).is_ok();
                }
                met.push(agent);
            }
        }
    }
}

/// Facts about a probed agent.
#[derive(Debug)]
pub struct AgentFacts {
    /// Name in the configuration.
    pub name: String,
    /// True if `agents check` finds nothing wrong.
    pub usable: bool,
    /// Time of the probe.
    pub took: Duration,
    /// Kind of the failure, and its reason for people.
    pub failure: Option<(&'static str, String)>,
    /// True if the agent may need a login although it opens sessions.
    pub needs_login: bool,
    /// Configuration of a new session.
    pub config: Option<Value>,
}

/// Probes the selected agents concurrently, each for at most this time, and prints nothing.
///
/// # Errors
/// When the agents cannot be read, or no event loop be started.
pub fn probe_silently(
    which: &WhichAgents,
    guard: &GuardProgram,
    limit: Duration,
) -> anyhow::Result<Vec<AgentFacts>> {
    let specs = which.agents()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut probes = JoinSet::new();
        for spec in specs {
            probes.spawn(probe_agent(spec, guard.clone(), Some(limit)));
        }
        let mut all: Vec<AgentFacts> = Vec::new();
        while let Some(agent) = probes.join_next().await {
            all.push(facts_of(&agent.context("an agent could not be checked")?)?);
        }
        all.sort_by(|some, other| some.name.cmp(&other.name));
        Ok(all)
    })
}

fn facts_of(agent: &CheckedAgent) -> anyhow::Result<AgentFacts> {
    let (failure, config) = match &agent.outcome {
        StartOutcome::Starting(_) => (Some(("late", String::new())), None),
        StartOutcome::Probed(probe) => {
            let failure = probe.failure.as_ref().map(|(kind, why)| match kind {
                OpenFailure::LoginRequired => ("login required", why.clone()),
                OpenFailure::Unavailable => ("unavailable", why.clone()),
            });
            (failure, probe.config.as_ref().map(serde_json::to_value).transpose()?)
        }
    };
    Ok(AgentFacts {
        name: agent.spec.name.clone(),
        usable: agent.is_usable(),
        took: agent.took,
        failure,
        needs_login: agent.missing_login.is_some(),
        config,
    })
}

async fn probe_agent(spec: AgentSpec, guard: GuardProgram, asked: Option<Duration>) -> CheckedAgent {
    let limit = asked.unwrap_or_else(|| spec.start_limit.saturating_mul(2));
    let backend = Acp::new(AgentSpec { start_limit: NO_LIMIT, ..spec.clone() }, guard);
    let describes = backend.describe();
    let start = Instant::now();
    let probe = timeout(limit, probe::run(&backend, Tokens::new())).await;
    let took = start.elapsed();
    let missing_login = backend.missing_login();
    backend.stop().await;
    let outcome = probe.map_or(StartOutcome::Starting(limit), |probe| StartOutcome::Probed(Box::new(probe)));
    CheckedAgent {
        spec,
        describes,
        outcome,
        took,
        quirks: backend.quirks().unwrap_or(AgentQuirks::NONE),
        missing_login,
    }
}

/// Progress line on a terminal, with the agents that are waited for.
struct Progress {
    is_shown: bool,
    waiting: Vec<String>,
    start: Instant,
    drawn: usize,
}

impl Progress {
    fn new(waiting: Vec<String>) -> Self {
        Self { is_shown: io::stderr().is_terminal(), waiting, start: Instant::now(), drawn: 0 }
    }

    fn draw(&mut self) {
        let sign = SPINNER[self.drawn % SPINNER.len()];
        self.drawn += 1;
        let mut names = self.waiting.join(", ");
        if names.chars().count() > NAMES_CHARS_MAX {
            names = format!("{} agents", self.waiting.len());
        }
        let seconds = self.start.elapsed().as_secs();
        self.write(&format!("\r\x1b[K{sign} waiting for {names} ({seconds} s)"));
    }

    fn erase(&mut self) {
        if self.drawn > 0 {
            self.write("\r\x1b[K");
        }
    }

    fn write(&mut self, text: &str) {
        let mut stderr = io::stderr();
        if stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).is_err() {
            // The terminal is gone.
            self.is_shown = false;
        }
    }
}

fn open(asked: Option<&Path>) -> anyhow::Result<(StateFolder, Archive)> {
    let folder = StateFolder::hold(&folder::chosen(asked)?)?;
    let path = folder.private_file(sqlite::FILE_NAME)?;
    let archive = Archive::open(&path).with_context(|| format!("{} cannot be used", path.display()))?;
    Ok((folder, archive))
}

fn remember(archive: &Archive, met: &[CheckedAgent]) -> anyhow::Result<()> {
    let before = Start { descriptions: archive.agents(), ..Start::default() };
    for agent in met {
        if let StartOutcome::Probed(probe) = &agent.outcome {
            let description = stored_description(&agent.describes, &before, probe.description.clone());
            archive.store_description(&agent.spec.name, &description)?;
        }
    }
    Ok(())
}

/// Prints an agent on stdout in one write.
fn print(agent: &CheckedAgent) -> io::Result<()> {
    let mut lines = PrintedAgent(format!("{}\n", agent.spec.name));
    describe(agent, &mut lines);
    let mut out = io::stdout().lock();
    out.write_all(lines.0.as_bytes())?;
    out.flush()
}

/// Printed form of an agent: its name, and lines that begin with a keyword.
struct PrintedAgent(String);

impl PrintedAgent {
    fn add(&mut self, word: &str, message: &str) {
        // Texts of agents may contain control characters for the terminal.
        for (at, line) in text::message(message).lines().enumerate() {
            let word = if at == 0 { word } else { "" };
            self.0.push_str(format!("  {word:<9} {line}").trim_end());
            self.0.push('\n');
        }
    }
}

fn describe(agent: &CheckedAgent, lines: &mut PrintedAgent) {
    let CheckedAgent { spec, outcome, took, quirks, .. } = agent;
    if let Ok(found) = program::find(&spec.program, spec.directory.as_deref(), &spec.environment) {
        lines.add("found", &found.display().to_string());
    }
    let limit = spec.start_limit.as_secs_f64();
    let probe = match outcome {
        StartOutcome::Probed(probe) => probe,
        StartOutcome::Starting(waited) => {
            let seconds = waited.as_secs_f64();
            return lines.add(
                "WAITING",
                &format!(
                    "it is still starting after {seconds} s: wait longer with `--timeout SECONDS`. A host waits \
                     {limit} s for each of its first answers: if the agent needs more, set `start_seconds`"
                ),
            );
        }
    };
    let ProbeResult { description, config, failure } = probe.as_ref();
    let is: Vec<&str> = description.title.iter().chain(&description.version).map(String::as_str).collect();
    if !is.is_empty() {
        lines.add("is", &is.join(" "));
    }
    match failure {
        Some((OpenFailure::LoginRequired, why)) => return lines.add("login", &format!("NEEDED: {why}")),
        Some((OpenFailure::Unavailable, why)) => return lines.add("FAILS", why),
        None => match &agent.missing_login {
            // A key in its environment may suffice: only a turn could tell.
            Some(why) => {
                lines.add("login", &format!("NEEDED, unless it is given a key in another way: {why}"))
            }
            None => lines.add("login", "not needed to open a session"),
        },
    }
    if *took > spec.start_limit {
        let took = took.as_secs();
        let advice = format!(
            "it took {took} s, and a host waits {limit} s for each of its first answers: set `start_seconds`"
        );
        lines.add("SLOW", &advice);
    }
    let models = description.models.iter().flatten().map(|model| format!("{} ({})", model.name, model.id));
    lines.add("models", &list(models.collect()));
    describe_modes(agent, config.as_ref(), lines);
    describe_settings(config.as_ref(), lines);
    let commands = description.commands.iter().flatten().map(|command| format!("/{}", command.name));
    lines.add("commands", &list(commands.collect()));
    if let Some(asking) = quirks.asking {
        lines.add("ASKS NOT", asking);
    }
    for misfit in agent.misfits(probe) {
        lines.add("CONFIG", &format!("{misfit}: correct it in `[agents.{}.config]`", spec.name));
    }
}

/// Describes the modes, marks those in which the agent does not ask, and advises another one if a
/// new session begins in one of these.
fn describe_modes(agent: &CheckedAgent, config: Option<&SessionConfigState>, lines: &mut PrintedAgent) {
    let now = config.and_then(|config| config.values.get(MODE)).and_then(Value::as_str);
    let mode = config.and_then(|config| config.schema.properties.get(MODE));
    let modes: Vec<&str> =
        mode.into_iter().flat_map(|mode| mode.r#enum.iter().flatten()).filter_map(Value::as_str).collect();
    let is_unasked = |id: &str| is_unasked_mode(id) || agent.quirks.unasked_modes.contains(&id);
    let shown = |id: &&str| {
        let mark = if is_unasked(id) { "*" } else { "" };
        let current = if now == Some(*id) { " (current)" } else { "" };
        format!("{id}{mark}{current}")
    };
    lines.add("modes", &list(modes.iter().map(shown).collect()));
    if modes.iter().any(|id| is_unasked(id)) {
        lines.add("", "* changes files or runs commands without asking you first");
    }
    let Some(now) = now.filter(|now| is_unasked(now)) else { return };
    let name = &agent.spec.name;
    let advice = match ASKING_MODES.into_iter().find(|asking| modes.contains(asking)) {
        Some(asking) => format!("to be asked, write\n[agents.{name}.config]\nmode = \"{asking}\""),
        None => format!("choose another `mode` in `[agents.{name}.config]`"),
    };
    lines.add(
        "ASKS NOT",
        &format!("a new session begins in the mode `{now}`, in which the agent does not ask: {advice}"),
    );
}

/// Describes the settings other than model and mode: the value in a new session, and the choices.
fn describe_settings(config: Option<&SessionConfigState>, lines: &mut PrintedAgent) {
    let mut settings = Vec::new();
    if let Some(config) = config {
        for (id, value) in config.values.iter().filter(|(id, _)| ![MODE, MODEL].contains(&id.as_str())) {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let choices = config.schema.properties.get(id).and_then(|property| property.r#enum.as_ref());
            let choices = match choices {
                Some(choices) => choices.iter().map(plain).collect::<Vec<_>>().join(", "),
                None => "true, false".to_owned(),
            };
            settings.push(format!("{id} = {} (of {choices})", plain(value)));
        }
    }
    let all = settings.join("\n");
    lines.add("settings", if settings.is_empty() { NONE_REPORTED } else { &all });
}

fn list(items: Vec<String>) -> String {
    if items.is_empty() {
        return NONE_REPORTED.to_owned();
    }
    items.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_without_a_result_is_not_usable() {
        assert!(!are_usable(&[], 1), "the check of one agent has panicked");
    }
}
