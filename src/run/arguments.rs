//! Arguments of `run`, and the job that they describe.
//!
//! Owns: flags, their defaults and errors; reading the prompt, the rules and the answers.
//! Never: starts anything.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context};
use clap::Args;

use super::answers::Answers;
use super::output::{must_differ, OutputFile};
use super::policy::Policy;
use super::printer::OutputForm;
use crate::cli::AS_GUEST;
use crate::config;
use crate::files::uris::uri_of;
use crate::os::paths::canonical;
use crate::places;

/// Value of `--session` that names the latest session of a folder.
const LAST: &str = "last";

/// Prompt that stands for stdin.
const STDIN: &str = "-";

/// Default log filter: a run reports its own failures.
const LOG: &str = "error";

/// Run turns of an agent, print the answer, and exit: for shells and CI jobs.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub struct RunArguments {
    /// Message to the agent; `-` reads it from stdin [default: stdin, if that is no terminal]
    prompt: Option<String>,

    /// Message of a further turn, if the previous one was completed; repeatable
    #[arg(long, value_name = "PROMPT")]
    then: Vec<String>,

    /// Agent of the configuration, or NAME=COMMAND LINE of one that speaks ACP [default: the first
    /// one]
    #[arg(long, value_name = "NAME[=COMMAND LINE]")]
    agent: Option<String>,

    /// Configuration file (TOML) with agents and rules [default: as for serving]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Session to continue, or `last`: the latest one in the folder of --dir [default: a new one]
    #[arg(long, value_name = "URI")]
    session: Option<String>,

    /// Folder that the agent works in [default: the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Model of the agent, by its id
    #[arg(long, value_name = "ID")]
    model: Option<String>,

    /// Option of the session, as `agents check` lists them; repeatable
    #[arg(long, value_name = "OPTION=VALUE")]
    set: Vec<String>,

    /// File that is attached to the first message; repeatable
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,

    /// Time limit of the whole run; a running turn is cancelled then
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,

    /// State folder, whose host the run joins [default: as for serving]
    #[arg(long, value_name = "DIR", conflicts_with = "ephemeral")]
    state_dir: Option<PathBuf>,

    /// Keep nothing: the session ends with the run, and no host is joined
    #[arg(long, conflicts_with = "session")]
    ephemeral: bool,

    /// Print each action on the session and its chat as a line of JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,

    /// Print the final answer alone, at the end
    #[arg(long)]
    quiet: bool,

    /// Write the changes of files as a patch for `git apply`; `-` is stdout
    #[arg(long, value_name = "FILE")]
    patch: Option<PathBuf>,

    /// Write the result as JSON; `-` is stdout
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,

    /// Permissions to grant: rules such as `kind=read`, `kind=edit path=src/**`, `tool=NAME` or
    /// `command=cargo test`, separated by `;`; repeatable
    #[arg(long, value_name = "RULES")]
    allow: Vec<String>,

    /// Permissions to deny, even where a rule allows them; repeatable
    #[arg(long, value_name = "RULES")]
    deny: Vec<String>,

    /// Grant all permissions that no rule denies
    #[arg(long)]
    allow_all: bool,

    /// File (JSON) with answers to the agent's questions; others are declined
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,

    /// Log level on stderr, or TARGET=LEVEL pairs [default: error]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

const EXIT_STATUS: &str = "\
Exit status:
  0    all turns are complete
  1    internal failure, or the host refused the message
  2    wrong usage, an invalid configuration, or an option or model that the agent does not have
  3    the state folder cannot be used, or its host has other settings
  5    the host of the state folder has ended unexpectedly
  10   a turn ended with an error of the agent
  11   all turns are complete, but a permission was denied or a question declined
  12   the time limit expired
  13   the agent cannot be used: unknown, not installed, not started, or it requires a login
  14   all turns are complete, but their output, the patch or the summary could not be written
  130  cancelled, by a signal or by another client";

/// Session of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChosenSession {
    /// A new session.
    New,
    /// The session that was changed last in the folder.
    Last,
    /// Session with this URI.
    Named(String),
}

/// Description of a run.
#[derive(Debug)]
pub struct RunJob {
    /// Messages, in order. The first one is missing if it must be read from stdin.
    pub prompts: Vec<String>,
    /// True if the first message must be read from stdin.
    pub reads_prompt: bool,
    /// Name of the agent; `None` for the host's first one.
    pub agent: Option<String>,
    /// Session to work in.
    pub session: ChosenSession,
    /// Folder that the agent works in, as a canonical path.
    pub directory: PathBuf,
    /// Id of the model; `None` for the agent's choice.
    pub model: Option<String>,
    /// Options of the session, in order.
    pub options: Vec<(String, String)>,
    /// `file:` URIs of the attached files.
    pub attachments: Vec<String>,
    /// Time limit of the whole run.
    pub timeout: Option<Duration>,
    /// Form of the output.
    pub form: OutputForm,
    /// File for the patch.
    pub patch: Option<OutputFile>,
    /// File for the summary.
    pub summary: Option<OutputFile>,
    /// Rules for permissions.
    pub policy: Policy,
    /// Answers to questions.
    pub answers: Answers,
    /// Arguments of the process that joins the host.
    pub host: Vec<OsString>,
}

impl RunJob {
    /// Reads the arguments, and what they name.
    ///
    /// # Errors
    /// When one of them is wrong, or what it names cannot be read.
    pub fn new(arguments: &RunArguments) -> anyhow::Result<Self> {
        let (agent, command_line) = match arguments.agent.as_deref() {
            Some(flag) => match flag.split_once('=') {
                Some((name, _)) => (Some(name.to_owned()), Some(flag)),
                None => (Some(flag.to_owned()), None),
            },
            None => (None, None),
        };
        let directory = match &arguments.dir {
            Some(directory) => directory.clone(),
            None => std::env::current_dir().context("there is no current folder: name one with `--dir`")?,
        };
        let directory = canonical(&directory)
            .ok()
            .filter(|found| found.is_dir())
            .with_context(|| format!("--dir: `{}` is not a folder", directory.display()))?;
        let session = match arguments.session.as_deref() {
            None => ChosenSession::New,
            Some(LAST) => ChosenSession::Last,
            Some(_) if arguments.dir.is_some() => bail!("--dir: a session that exists has its own folder"),
            Some(uri) => ChosenSession::Named(uri.to_owned()),
        };
        let rules = config::run_rules(arguments.config.as_deref(), places::config_file().as_deref())?;
        let mut policy = Policy::new(&directory, arguments.allow_all);
        for (place, rules) in [("allow", &rules.allow), ("deny", &rules.deny)] {
            let add = |rule: &String| policy.add(place == "allow", rule);
            rules.iter().try_for_each(add).with_context(|| format!("`run.{place}` of the configuration"))?;
        }
        arguments.allow.iter().try_for_each(|rule| policy.add(true, rule)).context("--allow")?;
        arguments.deny.iter().try_for_each(|rule| policy.add(false, rule)).context("--deny")?;
        let answers = match &arguments.answers {
            Some(file) => Answers::read(file).context("--answers")?,
            None => Answers::default(),
        };
        let file = |file: &PathBuf| OutputFile::of(file);
        let patch = arguments.patch.as_ref().map(file).transpose().context("--patch")?;
        let summary = arguments.summary.as_ref().map(file).transpose().context("--summary")?;
        must_differ(patch.as_ref(), summary.as_ref())?;
        let first = first_prompt(arguments)?;
        let reads_prompt = first.is_none();
        Ok(Self {
            agent,
            session,
            model: arguments.model.clone(),
            options: arguments.set.iter().map(|set| option_of(set)).collect::<anyhow::Result<_>>()?,
            attachments: arguments.attach.iter().map(|file| attached(file)).collect::<anyhow::Result<_>>()?,
            timeout: arguments.timeout.map(|seconds| Duration::from_secs(seconds.into())),
            form: OutputForm::chosen(arguments.json, arguments.quiet),
            patch,
            summary,
            policy,
            answers,
            host: host_arguments(arguments, command_line),
            directory,
            prompts: checked(first.into_iter().chain(arguments.then.iter().cloned()).collect())?,
            reads_prompt,
        })
    }

    /// Adds the first message, which was read from stdin after all that can be wrong.
    ///
    /// # Errors
    /// When it is empty.
    pub fn begin_with(&mut self, prompt: String) -> anyhow::Result<()> {
        self.prompts.insert(0, prompt);
        self.prompts = checked(std::mem::take(&mut self.prompts))?;
        Ok(())
    }
}

fn option_of(set: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = set.split_once('=').with_context(|| format!("--set: `{set}` is not OPTION=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn attached(file: &Path) -> anyhow::Result<String> {
    let path = canonical(file).with_context(|| format!("--attach: `{}`", file.display()))?;
    Ok(uri_of(&path))
}

/// Returns the first message; `None` if it must be read from stdin.
fn first_prompt(arguments: &RunArguments) -> anyhow::Result<Option<String>> {
    match arguments.prompt.as_deref() {
        None if io::stdin().is_terminal() => bail!("there is no prompt: pass it as an argument, or on stdin"),
        prompt => Ok(prompt.filter(|prompt| *prompt != STDIN).map(str::to_owned)),
    }
}

fn checked(prompts: Vec<String>) -> anyhow::Result<Vec<String>> {
    if prompts.iter().any(|prompt| prompt.trim().is_empty()) {
        bail!("a prompt is empty");
    }
    Ok(prompts)
}

/// Returns the arguments of the process that joins the host. At the end of its input, what the run
/// has left running is cancelled.
fn host_arguments(arguments: &RunArguments, command_line: Option<&str>) -> Vec<OsString> {
    let mut host: Vec<OsString> = vec!["--on-eof".into(), "exit".into()];
    let mut add = |flag: &str, value: OsString| host.extend([flag.into(), value]);
    if let Some(command_line) = command_line {
        add("--agent", command_line.into());
    }
    let files = [("--config", &arguments.config), ("--state-dir", &arguments.state_dir)];
    for (flag, file) in files {
        if let Some(file) = file {
            add(flag, file.into());
        }
    }
    add("--log", arguments.log.clone().unwrap_or_else(|| LOG.to_owned()).into());
    if arguments.ephemeral {
        host.push("--ephemeral".into());
    } else if arguments.config.is_none() {
        // The settings that an editor gives its host are none of the run's business.
        host.push(format!("--{AS_GUEST}").into());
    }
    host
}
