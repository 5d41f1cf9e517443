//! `ahp-sidecar agents add`, `agents update` and `agents remove`.
//!
//! Owns: the list of agents that ships with the program, what is done for each of them, and edits
//! of the configuration file, which keep everything else in it, comments included.
//! Never: installs or writes anything that was not printed before, removes a program, or takes an
//! agent from anywhere but the list.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{anyhow, bail, Context};
use clap::Args;

use crate::backend::acp::{program, AgentSpec};
use crate::check::{self, Checked};
use crate::cli::WhichAgents;
use crate::config::sections::{key_of, take_agent, without_agent, without_empty};
use crate::config::{self, Stamp};
use crate::files::folders::PathRefusal;
use crate::files::links::behind_links;
use crate::files::named::{self, Expected};
use crate::files::small;
use crate::os::paths::{canonical, with_slashes};
use crate::os::private;
use crate::os::process::GuardProgram;
use crate::places;

/// Agent of the list.
struct ListedAgent {
    /// Name of its section, unless another one is chosen.
    name: &'static str,
    /// Name for people.
    title: &'static str,
    /// Packages of the npm registry, the agent first.
    packages: &'static [&'static str],
    /// Program that the packages install.
    command: &'static str,
    /// Members of its section besides `command`; TOML.
    members: &'static str,
    /// Steps that remain, for people.
    then: &'static str,
}

/// The agents, as `FIRST_AGENT.md` describes them. The settings make an agent ask before it runs a
/// command or changes a file, if it can.
const AGENTS: &[ListedAgent] = &[
    ListedAgent {
        name: "claude",
        title: "Claude",
        packages: &["@agentclientprotocol/claude-agent-acp"],
        command: "claude-agent-acp",
        members: "[agents.NAME.config]\nmode = \"default\"\n",
        then: "log in with `claude` and `/login` (`@anthropic-ai/claude-code`), or set ANTHROPIC_API_KEY; it needs Node 22",
    },
    ListedAgent {
        name: "opencode",
        title: "opencode",
        packages: &["opencode-ai"],
        command: "opencode",
        members: "args = [\"acp\"]\n",
        then: "log in with `opencode auth login`; it asks with \"permission\": {\"edit\": \"ask\", \"bash\": \"ask\"} in its opencode.json",
    },
    ListedAgent {
        name: "codex",
        title: "Codex",
        packages: &["@agentclientprotocol/codex-acp"],
        command: "codex-acp",
        members: "env = { INITIAL_AGENT_MODE = \"read-only\" }\n",
        then: "log in with `codex login` (`@openai/codex`), or set CODEX_API_KEY",
    },
    ListedAgent {
        name: "copilot",
        title: "GitHub Copilot",
        packages: &["@github/copilot"],
        command: "copilot",
        members: "args = [\"--acp\"]\n",
        then: "log in with `copilot` and `/login`",
    },
    ListedAgent {
        name: "gemini",
        title: "Gemini",
        packages: &["@google/gemini-cli"],
        command: "gemini",
        members: "args = [\"--acp\"]\nenv = { GEMINI_CLI_TRUST_WORKSPACE = \"true\" }\n",
        then: "log in with `gemini`, or set GEMINI_API_KEY",
    },
    ListedAgent {
        name: "qwen",
        title: "Qwen Code",
        packages: &["@qwen-code/qwen-code"],
        command: "qwen",
        members: "args = [\"--acp\", \"--approval-mode\", \"default\"]\n",
        then: "log in with `qwen` and `/auth`; it needs Node 22",
    },
    ListedAgent {
        name: "zed-codex",
        title: "Codex, by Zed",
        packages: &["@zed-industries/codex-acp"],
        command: "codex-acp",
        members: "",
        then: "log in as for Codex; it asks with approval_policy = \"untrusted\" in ~/.codex/config.toml",
    },
    ListedAgent {
        name: "pi",
        title: "pi",
        packages: &["pi-acp", "@earendil-works/pi-coding-agent"],
        command: "pi-acp",
        members: "one_session = true\n",
        then: "log in with `pi-acp --terminal-login`; it never asks",
    },
];

/// Package manager.
struct Manager {
    name: &'static str,
    /// Words that install a package for all folders.
    install: &'static [&'static str],
    /// Words that remove such a package.
    remove: &'static [&'static str],
    /// Parts of the paths of the programs that it has installed, with `/` as separator.
    places: &'static [&'static str],
}

/// Package managers, in order of preference. The places of a later one are more specific.
static MANAGERS: [Manager; 3] = [
    Manager {
        name: "npm",
        install: &["install", "--global"],
        remove: &["uninstall", "--global"],
        places: &["/node_modules/"],
    },
    Manager {
        name: "pnpm",
        install: &["add", "--global"],
        remove: &["remove", "--global"],
        places: &["/.pnpm/", "/pnpm/"],
    },
    Manager {
        name: "bun",
        install: &["add", "--global"],
        remove: &["remove", "--global"],
        places: &["/.bun/", "/install/global/node_modules/"],
    },
];

/// Mode of a new configuration file.
const FILE_MODE: u32 = 0o600;

/// Maximum number of attempts to change a file that other programs change, too.
const TRIES: usize = 20;

/// Arguments that the three commands share.
#[derive(Debug, Args)]
struct Edit {
    /// Configuration file to change [default: `ahp-sidecar/config.toml` in the platform's folder
    /// for configuration, such as ~/.config]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do it without a question
    #[arg(long, short)]
    yes: bool,
}

/// Arguments of `agents add`.
#[derive(Debug, Args)]
pub struct AddAgent {
    /// Agent of the list [default: print the list]
    name: Option<String>,
    /// Name of its section, which becomes the `provider` of its sessions [default: the name in the
    /// list]
    #[arg(long = "as", value_name = "NAME", requires = "name")]
    section: Option<String>,
    /// Install nothing: the program is there, or will be
    #[arg(long)]
    no_install: bool,
    #[command(flatten)]
    edit: Edit,
}

/// Arguments of `agents update`.
#[derive(Debug, Args)]
pub struct UpdateAgent {
    /// Configured agent, by the name of its section
    name: String,
    #[command(flatten)]
    edit: Edit,
}

/// Arguments of `agents remove`.
#[derive(Debug, Args)]
pub struct RemoveAgent {
    /// Configured agent, by the name of its section
    name: String,
    #[command(flatten)]
    edit: Edit,
}

/// Adds an agent of the list to the configuration file, or prints the list.
pub fn add(asked: &AddAgent, guard: &GuardProgram) -> anyhow::Result<Checked> {
    let Some(name) = &asked.name else {
        print(&list())?;
        return Ok(Checked::Usable);
    };
    let agent = AGENTS.iter().find(|agent| agent.name == name);
    let agent = agent.with_context(|| {
        let names: Vec<&str> = AGENTS.iter().map(|agent| agent.name).collect();
        format!("there is no agent `{name}` in the list; there are: {}", names.join(", "))
    })?;
    let section = asked.section.as_deref().unwrap_or(agent.name);
    let file = asked.edit.file()?;
    config::check_name(section).context("--as")?;
    let edit = |before: &str| with_agent(before, &file, section, agent);
    let (before, _) = read(&file)?;
    let after = edit(&before)?;
    let install = match (asked.no_install, program::find(Path::new(agent.command), None, &Default::default()))
    {
        (true, _) => None,
        (false, Ok(found)) if listed_by_place(&found).is_none_or(|other| other.name == agent.name) => {
            print(&format!("`{}` is installed: {}\n", agent.command, found.display()))?;
            None
        }
        (false, _) => Some(installation(agent, None)?),
    };
    let mut plan = String::new();
    if let Some(install) = &install {
        writeln!(plan, "runs      {}", shown(install))?;
    }
    writeln!(plan, "writes    {}", file.display())?;
    for line in after[before.len()..].trim().lines() {
        writeln!(plan, "          {line}")?;
    }
    writeln!(plan, "then      {}", agent.then)?;
    asked.edit.confirm(&format!("{} ({section})\n{plan}", agent.title))?;
    if let Some(install) = &install {
        run(install)?;
    }
    change(&file, edit)?;
    check_one(section, &file, guard)
}

/// Installs the newest version of a configured agent of the list, with the package manager that has
/// installed it.
pub fn update(asked: &UpdateAgent, guard: &GuardProgram) -> anyhow::Result<Checked> {
    let file = asked.edit.file()?;
    let (agent, program) = listed(&file, &asked.name)?;
    let install = installation(agent, program.as_deref())?;
    asked.edit.confirm(&format!("{} ({})\nruns      {}\n", agent.title, asked.name, shown(&install)))?;
    let before = program.as_deref().and_then(Stamp::of);
    run(&install)?;
    if let Some(program) = program.filter(|program| before.is_some() && Stamp::of(program) == before) {
        print(&format!(
            "`{}` is unchanged: it is the newest version, or `{}` has installed another copy, which is not the one \
             that the configuration starts\n",
            program.display(),
            install[0]
        ))?;
    }
    check_one(&asked.name, &file, guard)
}

/// Removes an agent from the configuration file.
pub fn remove(asked: &RemoveAgent) -> anyhow::Result<Checked> {
    let file = asked.edit.file()?;
    let edit =
        |before: &str| without_agent(before, &asked.name).with_context(|| format!("`{}`", file.display()));
    edit(&read(&file)?.0)?;
    let mut plan = format!("removes   [agents.{}] from {}\n", asked.name, file.display());
    if let Ok((agent, program)) = listed(&file, &asked.name) {
        if let Some(manager) = program.as_deref().and_then(Manager::of).or_else(Manager::first) {
            let command = [&[manager.name], manager.remove, agent.packages].concat().join(" ");
            writeln!(plan, "then      its program stays; `{command}` removes it")?;
        }
    }
    asked.edit.confirm(&format!("{}\n{plan}", asked.name))?;
    change(&file, edit)?;
    Ok(Checked::Usable)
}

impl Edit {
    fn file(&self) -> anyhow::Result<PathBuf> {
        let file = self.config.clone().or_else(places::config_file);
        let file =
            file.context("there is no home folder for a configuration file: name one with --config")?;
        // The file itself is replaced or created, not a link to it.
        let real = behind_links(&std::path::absolute(&file)?);
        named::must_be_changeable(&real).with_context(|| format!("`{}`", file.display()))?;
        Ok(real)
    }

    /// Prints a plan, and asks whether to carry it out.
    fn confirm(&self, plan: &str) -> anyhow::Result<()> {
        print(plan)?;
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            bail!("nothing was done: say `--yes`, since nobody can be asked here");
        }
        print("Go on? [y/N] ")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
        if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            bail!("nothing was done");
        }
        Ok(())
    }
}

fn list() -> String {
    let mut printed = "`ahp-sidecar agents add NAME` installs an agent and configures it:\n".to_owned();
    for ListedAgent { name, title, packages, .. } in AGENTS {
        printed += &format!("  {name:<10} {title:<15} {}\n", packages.join(", "));
    }
    printed
}

/// Returns the agent of the list that a section of the file starts, and its program, if it exists.
fn listed(file: &Path, name: &str) -> anyhow::Result<(&'static ListedAgent, Option<PathBuf>)> {
    let agents = config::agents(&[], Some(file), None)?;
    let agent = agents.iter().find(|agent| agent.name == name);
    let agent = agent.with_context(|| format!("there is no agent `{name}` in `{}`", file.display()))?;
    let starts =
        |listed: &&ListedAgent| agent.program.file_stem().is_some_and(|program| program == listed.command);
    let mut candidates: Vec<&'static ListedAgent> = AGENTS.iter().filter(starts).collect();
    // Of those with one command, the most settings in the section decide, then the list's order.
    candidates.sort_by_key(|listed| std::cmp::Reverse(listed.fits(agent)));
    let by_name = || candidates.iter().copied().find(|listed| listed.name == name);
    let found = program::find(&agent.program, agent.directory.as_deref(), &agent.environment).ok();
    let by_place = found.as_deref().and_then(listed_by_place).filter(starts);
    let listed = by_place.or_else(by_name).or(candidates.first().copied());
    let listed = listed.with_context(|| {
        format!("the agent `{name}` is not one of the list: `ahp-sidecar agents add` prints it")
    })?;
    Ok((listed, found))
}

/// Returns the agent of the list whose package has installed a program; `None` if the program is
/// not in the folder of a package.
fn listed_by_place(program: &Path) -> Option<&'static ListedAgent> {
    let real = real_path(program)?;
    let has_it = |agent: &&ListedAgent| {
        agent.packages.first().is_some_and(|package| real.contains(&format!("/node_modules/{package}/")))
    };
    AGENTS.iter().find(has_it)
}

/// Returns the path of a program behind links, with `/` as separator.
fn real_path(program: &Path) -> Option<String> {
    let real = canonical(program).ok()?;
    Some(with_slashes(&real).to_string_lossy().into_owned())
}

impl ListedAgent {
    /// Returns the number of this agent's variables, if a configured agent has them all.
    fn fits(&self, agent: &AgentSpec) -> Option<usize> {
        let members: toml::Table = self.members.parse().ok()?;
        let variables = members.get("env").and_then(toml::Value::as_table).into_iter().flatten();
        let mut count = 0;
        for (name, value) in variables {
            (agent.environment.get(name).map(String::as_str) == value.as_str()).then_some(())?;
            count += 1;
        }
        Some(count)
    }
}

impl Manager {
    /// Returns the first one on the search path.
    fn first() -> Option<&'static Self> {
        MANAGERS.iter().find(|manager| manager.is_installed())
    }

    /// Returns the one that has installed a program, by the program's path; `None` if that does not
    /// tell, as with the scripts that npm writes on Windows.
    fn of(program: &Path) -> Option<&'static Self> {
        // A Node that pnpm has installed has an npm of its own.
        let real = real_path(program)?.replace("/pnpm/nodejs/", "/");
        MANAGERS.iter().rfind(|manager| manager.places.iter().any(|place| real.contains(place)))
    }

    fn is_installed(&self) -> bool {
        program::find(Path::new(self.name), None, &Default::default()).is_ok()
    }
}

/// Returns the command line that installs the newest version of an agent in the place of this
/// program, if there is one.
fn installation(agent: &ListedAgent, program: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let installed = program.and_then(|program| Some((program, Manager::of(program)?)));
    let manager = match installed {
        Some((program, manager)) if !manager.is_installed() => bail!(
            "`{}` was installed by `{}`, which is not on the search path: put it there, or update the program yourself",
            program.display(),
            manager.name
        ),
        Some((_, manager)) => manager,
        None => Manager::first().with_context(|| {
            let names = MANAGERS.iter().map(|manager| manager.name).collect::<Vec<_>>().join(", ");
            format!("there is no package manager ({names}): install Node.js, which has npm")
        })?,
    };
    // Without a version, npm silently takes an older one that supports an old Node.
    let packages = agent.packages.iter().map(|package| format!("{package}@latest"));
    let words = [manager.name].into_iter().chain(manager.install.iter().copied());
    Ok(words.map(str::to_owned).chain(packages).collect())
}

fn shown(command: &[String]) -> String {
    command.join(" ")
}

fn run(command: &[String]) -> anyhow::Result<()> {
    let [program, arguments @ ..] = command else { return Ok(()) };
    let found = program::find(Path::new(program), None, &Default::default())?;
    let status = Command::new(found).args(arguments).status();
    let status = status.with_context(|| format!("`{}` cannot be run", shown(command)))?;
    if !status.success() {
        bail!("`{}` has failed ({status}); the configuration was not changed", shown(command));
    }
    Ok(())
}

fn check_one(name: &str, file: &Path, guard: &GuardProgram) -> anyhow::Result<Checked> {
    let checked = check::check_agent(name, WhichAgents::of_file(file), guard)?;
    if let Checked::Unusable = checked {
        print(&format!("`ahp-sidecar agents check {name}` checks it again\n"))?;
    }
    Ok(checked)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("stdout cannot be written")
}

/// Returns the text of the file, and its version; neither if it does not exist.
fn read(file: &Path) -> anyhow::Result<(String, Option<String>)> {
    let context = || format!("`{}`", file.display());
    let opened = match small::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((String::new(), None)),
        opened => opened.with_context(context)?,
    };
    // Before the text, so that a change in between is noticed.
    let version = named::version_of(&opened).with_context(context)?;
    Ok((small::read(opened).with_context(context)?, Some(version)))
}

/// Applies an edit to the file as it is now, and again if another program changes it meanwhile. A
/// new file is the user's alone, since it may get keys.
fn change(file: &Path, edit: impl Fn(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let context = || format!("`{}` cannot be written", file.display());
    let folder = file.parent().with_context(context)?;
    fs::create_dir_all(folder).with_context(context)?;
    // Between the last look at the file and its replacement, another such command could write it.
    let (lock, _) = private::open_folder_lock(folder).with_context(context)?;
    lock.lock().with_context(context)?;
    for _ in 0..TRIES {
        let (before, version) = read(file)?;
        let after = edit(&before)?;
        let expected = version.as_deref().map_or(Expected::Nothing, Expected::Version);
        match named::change(file, after.as_bytes(), expected, FILE_MODE) {
            Err(PathRefusal::Changed | PathRefusal::Exists) => {}
            written => return written.with_context(context),
        }
    }
    bail!("`{}` is not changed: another program changes it all the time", file.display())
}

/// Returns the file's text with a section for an agent at its end.
fn with_agent(before: &str, file: &Path, name: &str, agent: &ListedAgent) -> anyhow::Result<String> {
    let context = || format!("`{}`", file.display());
    let parsed = before.parse().map_err(|error| anyhow!(config::faults::of(before, &error)));
    let known: toml::Table = parsed.with_context(context)?;
    if known.get("agents").is_some_and(|agents| agents.get(name).is_some()) {
        bail!("there is an agent `{name}` in `{}`: choose another name with --as", file.display());
    }
    let gap = match before {
        "" => "",
        _ if before.ends_with("\n\n") => "",
        _ if before.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    let command = toml::Value::from(agent.command);
    let key = key_of(name);
    let members = agent.members.replace("NAME", &key);
    let after = format!("{before}{gap}[agents.{key}]\ncommand = {command}\n{members}");
    // The rest must be unchanged.
    config::check_text(&after, file).with_context(context)?;
    let mut edited: toml::Table =
        after.parse().context("the section does not fit the file: write it by hand")?;
    take_agent(&mut edited, name);
    if edited != without_empty(known) {
        bail!("the section does not fit `{}`: write it by hand", file.display());
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\nmcp_files = [\"x.json\"] # kept\n\n[agents.a]\ncommand = 'a'\n# the end\n";

    #[test]
    fn changes_at_once_are_all_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/config.toml");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    for line in 0..10 {
                        change(file, |before| Ok(format!("{before}{writer} {line}\n"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(file).unwrap().lines().count(), 80);
    }

    #[test]
    fn every_listed_agent_can_be_added_and_removed_again() {
        for before in ["", "# mine", FILE] {
            for agent in AGENTS {
                let after = with_agent(before, Path::new("/config.toml"), agent.name, agent).unwrap();
                assert!(after.starts_with(before), "{after}");
                let again = without_agent(&after, agent.name).unwrap();
                assert_eq!(again.trim_end(), before.trim_end());
            }
        }
        let claude = &AGENTS[0];
        let other = with_agent("", Path::new("/config.toml"), "work", claude).unwrap();
        assert!(other.contains("[agents.work.config]"), "{other}");
        let taken = with_agent(FILE, Path::new("/config.toml"), "a", claude).unwrap_err().to_string();
        assert!(taken.contains("choose another name"), "{taken}");
        let dotted = with_agent("", Path::new("/config.toml"), "a.b", claude).unwrap();
        assert!(dotted.contains("[agents.\"a.b\".config]"), "{dotted}");
        assert!(with_agent("", Path::new("/config.toml"), "no name", claude).is_err());
        assert!(with_agent("k = \"c0ffee", Path::new("/c"), "a", claude).is_err_and(|why| {
            let why = format!("{why:#}");
            why.contains("line 1") && !why.contains("c0ffee")
        }));
    }
}
