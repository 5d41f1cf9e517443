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

use anyhow::{bail, Context};
use clap::Args;

use crate::backend::acp::program;
use crate::check::{self, Checked};
use crate::cli::WhichAgents;
use crate::config;
use crate::files::small;
use crate::os::paths::canonical;
use crate::os::private;
use crate::os::process::GuardProgram;
use crate::places;
use crate::wire::text;

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

/// Package managers, in order of preference, each with the words that install a package for all
/// folders, and those that remove one.
const MANAGERS: [(&str, &[&str], &[&str]); 3] = [
    ("npm", &["install", "--global"], &["uninstall", "--global"]),
    ("pnpm", &["add", "--global"], &["remove", "--global"]),
    ("bun", &["add", "--global"], &["remove", "--global"]),
];

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
    let before = read(&file)?;
    let after = with_agent(&before, &file, section, agent)?;
    let install = match (asked.no_install, program::find(Path::new(agent.command), None, &Default::default()))
    {
        (true, _) => None,
        (false, Ok(found)) => {
            print(&format!("`{}` is installed: {}\n", agent.command, found.display()))?;
            None
        }
        (false, Err(_)) => Some(installation(agent)?),
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
    write(&file, &after)?;
    check_one(section, &file, guard)
}

/// Installs the newest version of a configured agent of the list.
pub fn update(asked: &UpdateAgent, guard: &GuardProgram) -> anyhow::Result<Checked> {
    let file = asked.edit.file()?;
    let agent = listed(&file, &asked.name)?;
    let install = installation(agent)?;
    asked.edit.confirm(&format!("{} ({})\nruns      {}\n", agent.title, asked.name, shown(&install)))?;
    run(&install)?;
    check_one(&asked.name, &file, guard)
}

/// Removes an agent from the configuration file.
pub fn remove(asked: &RemoveAgent) -> anyhow::Result<Checked> {
    let file = asked.edit.file()?;
    let before = read(&file)?;
    let after = without_agent(&before, &asked.name).with_context(|| format!("`{}`", file.display()))?;
    let mut plan = format!("removes   [agents.{}] from {}\n", asked.name, file.display());
    if let Ok(agent) = listed(&file, &asked.name) {
        if let Some((manager, _, remove)) = manager() {
            let command = [&[manager], remove, agent.packages].concat().join(" ");
            writeln!(plan, "then      its program stays; `{command}` removes it")?;
        }
    }
    asked.edit.confirm(&format!("{}\n{plan}", asked.name))?;
    write(&file, &after)?;
    Ok(Checked::Usable)
}

impl Edit {
    fn file(&self) -> anyhow::Result<PathBuf> {
        let file = self.config.clone().or_else(places::config_file);
        let file =
            file.context("there is no home folder for a configuration file: name one with --config")?;
        // The file itself is replaced, not a link to it.
        Ok(canonical(&file).unwrap_or(std::path::absolute(file)?))
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

/// Returns the agent of the list that a section of the file starts.
fn listed(file: &Path, name: &str) -> anyhow::Result<&'static ListedAgent> {
    let agents = config::agents(&[], Some(file), None)?;
    let agent = agents.iter().find(|agent| agent.name == name);
    let agent = agent.with_context(|| format!("there is no agent `{name}` in `{}`", file.display()))?;
    let is_it = |listed: &&ListedAgent| {
        agent.program.file_stem().is_some_and(|program| program == listed.command)
            && (listed.name == name || !AGENTS.iter().any(|it| it.name == name))
    };
    let listed = AGENTS.iter().find(is_it);
    listed.with_context(|| {
        format!("the agent `{name}` is not one of the list: `ahp-sidecar agents add` prints it")
    })
}

fn manager() -> Option<(&'static str, &'static [&'static str], &'static [&'static str])> {
    MANAGERS
        .into_iter()
        .find(|(name, _, _)| program::find(Path::new(name), None, &Default::default()).is_ok())
}

/// Returns the command line that installs the newest version of an agent.
fn installation(agent: &ListedAgent) -> anyhow::Result<Vec<String>> {
    let names: Vec<&str> = MANAGERS.iter().map(|(name, _, _)| *name).collect();
    let (manager, install, _) = manager().with_context(|| {
        format!("there is no package manager ({}): install Node.js, which has npm", names.join(", "))
    })?;
    // Without a version, npm silently takes an older one that supports an old Node.
    let packages = agent.packages.iter().map(|package| format!("{package}@latest"));
    Ok([manager].iter().chain(install).map(|word| (*word).to_owned()).chain(packages).collect())
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

fn read(file: &Path) -> anyhow::Result<String> {
    if !file.exists() {
        return Ok(String::new());
    }
    small::open(file).and_then(small::read).with_context(|| format!("`{}`", file.display()))
}

/// Replaces the content of a file at once. A new file is the user's alone, since it may get keys.
fn write(file: &Path, content: &str) -> anyhow::Result<()> {
    let context = || format!("`{}` cannot be written", file.display());
    let folder = file.parent().with_context(context)?;
    fs::create_dir_all(folder).with_context(context)?;
    let new = file.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut target = private::options().write(true).create_new(true).open(&new)?;
        if let Ok(known) = fs::metadata(file) {
            target.set_permissions(known.permissions())?;
        }
        target.write_all(content.as_bytes())?;
        target.sync_all()?;
        fs::rename(&new, file)
    })();
    if written.is_err() {
        // The first error says more.
        fs::remove_file(&new).unwrap_or_default();
    }
    written.with_context(context)
}

/// Returns the file's text with a section for an agent at its end.
fn with_agent(before: &str, file: &Path, name: &str, agent: &ListedAgent) -> anyhow::Result<String> {
    let context = || format!("`{}`", file.display());
    let known: toml::Table = before.parse().map_err(without_line(before)).with_context(context)?;
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
    let members = agent.members.replace("NAME", name);
    let after = format!("{before}{gap}[agents.{name}]\ncommand = {command}\n{members}");
    // The name must be valid, and the rest unchanged.
    config::check_text(&after, file).with_context(context)?;
    let mut edited: toml::Table =
        after.parse().context("the section does not fit the file: write it by hand")?;
    take_agent(&mut edited, name);
    if edited != without_empty(known) {
        bail!("the section does not fit `{}`: write it by hand", file.display());
    }
    Ok(after)
}

/// Returns the file's text without the sections of an agent, and with all else.
fn without_agent(before: &str, name: &str) -> anyhow::Result<String> {
    const BY_HAND: &str = "it is not written as sections of its own: remove it by hand";
    let mut wanted: toml::Table = before.parse().map_err(without_line(before))?;
    if take_agent(&mut wanted, name).is_none() {
        bail!("there is no agent `{name}`");
    }
    let mut after = String::new();
    // Blank lines and comments belong to the section that follows them.
    let (mut held, mut is_in) = (String::new(), false);
    for line in before.split_inclusive('\n') {
        let words = line.trim();
        if let Some(header) = header_of(words) {
            let was_in = std::mem::replace(&mut is_in, is_section_of(header, name));
            if !is_in || !was_in {
                after.push_str(&held);
            }
            held.clear();
        } else if words.is_empty() || words.starts_with('#') {
            held.push_str(line);
            continue;
        } else {
            if !is_in {
                after.push_str(&held);
            }
            held.clear();
        }
        if !is_in {
            after.push_str(line);
        }
    }
    after.push_str(&held);
    let is_right = after.parse::<toml::Table>().is_ok_and(|edited| without_empty(edited) == wanted);
    if is_right {
        Ok(after)
    } else {
        bail!(BY_HAND)
    }
}

/// Returns the path in the header of a section.
fn header_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('[').filter(|rest| !rest.starts_with('['))?;
    Some(rest.split_once(']')?.0)
}

fn is_section_of(header: &str, name: &str) -> bool {
    let mut path = header.split('.').map(|part| part.trim().trim_matches(['"', '\'']));
    // Names may contain points; then they are quoted.
    let whole = header.trim().strip_prefix("agents.").map(|rest| rest.trim_matches(['"', '\'']));
    whole == Some(name) || path.next() == Some("agents") && path.next() == Some(name)
}

/// Removes an agent from a table, and `agents` if that leaves none.
fn take_agent(file: &mut toml::Table, name: &str) -> Option<toml::Value> {
    let agents = file.get_mut("agents")?.as_table_mut()?;
    let taken = agents.remove(name);
    if agents.is_empty() {
        file.remove("agents");
    }
    taken
}

fn without_empty(mut file: toml::Table) -> toml::Table {
    file.retain(|name, value| name != "agents" || value.as_table().is_none_or(|agents| !agents.is_empty()));
    file
}

/// Returns the error of an invalid file without the line itself, which may hold a key.
fn without_line(text: &str) -> impl Fn(toml::de::Error) -> anyhow::Error + '_ {
    move |error| {
        let line = error.span().and_then(|span| text.get(..span.start));
        let line = line.map_or(1, |before| before.matches('\n').count() + 1);
        anyhow::anyhow!("line {line}: {}", text::message(error.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\nmcp_files = [\"x.json\"] # kept\n\n# the first\n[agents.a]\ncommand = 'a'\n\
        # about a\nargs = [\n  '[agents.b]',\n]\n[agents.a.config]\nmode = 'x'\n\n# the second\n\
        [agents.b]\ncommand = 'b'\n# the end\n";

    #[test]
    fn removed_agent_leaves_everything_else_as_it_was() {
        let without_a = without_agent(FILE, "a").unwrap();
        let expected = "# mine\nmcp_files = [\"x.json\"] # kept\n\n# the first\n\n# the second\n\
            [agents.b]\ncommand = 'b'\n# the end\n";
        assert_eq!(without_a, expected);
        let none = without_agent(&without_a, "b").unwrap();
        assert!(none.ends_with("# the second\n# the end\n"), "{none}");
        assert!(without_agent(&none, "b").unwrap_err().to_string().contains("no agent `b`"));
        for by_hand in ["agents.a.command = 'a'\n", "[agents]\na = { command = 'a' }\n"] {
            let why = without_agent(by_hand, "a").unwrap_err().to_string();
            assert!(why.contains("by hand"), "{by_hand}: {why}");
        }
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
        assert!(with_agent("", Path::new("/config.toml"), "no name", claude).is_err());
        assert!(with_agent("k = \"c0ffee", Path::new("/c"), "a", claude).is_err_and(|why| {
            let why = format!("{why:#}");
            why.contains("line 1") && !why.contains("c0ffee")
        }));
    }
}
