//! Configuration of the agents and their MCP servers: flags, and the configuration file.
//!
//! Owns: flags and file, their defaults and errors, and reading the file again ([`AgentSource`]).
//! Never: starts an agent, or passes a command line to a shell. A line is split by the quoting
//! rules of the platform's shells.

pub mod faults;
mod mcp;
pub mod sections;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ahp_types::common::JsonObject;
use anyhow::{anyhow, bail, Context};
use serde::{Deserialize, Serialize};

use crate::backend::acp::{AgentSpec, Offers};
use crate::backend::mcp::McpServer;
use crate::backend::script;
use crate::files::small;
use crate::host::effects::ClientMcp;
use crate::host::AutomationRules;
use crate::os::facts::{self, Facts};
use crate::os::paths::canonical;
use crate::os::programs;
use crate::versions::dialect::Dialect;

/// Maximum of a configured time limit: longer than any process runs.
const LIMIT_MAX: Duration = Duration::from_secs(1_000_000_000);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    agents: BTreeMap<String, AgentEntry>,
    /// Sections of MCP servers, unchecked, so that an invalid one costs no other.
    #[serde(default)]
    mcp: BTreeMap<String, toml::Value>,
    /// Files of other programs with further servers.
    #[serde(default)]
    mcp_files: Vec<PathBuf>,
    /// MCP servers of clients' plugins that agents may have.
    #[serde(default)]
    client_mcp: ClientMcp,
    /// Rules of automations; they are off without them.
    automations: Option<AutomationRules>,
    /// Version of the protocol to serve before its release.
    preview: Option<String>,
    #[serde(default)]
    run: RunRules,
}

/// Rules for permissions in runs without a person.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRules {
    /// Rules that grant permissions.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Rules that deny permissions.
    #[serde(default)]
    pub deny: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentEntry {
    command: PathBuf,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    title: Option<String>,
    description: Option<String>,
    directory: Option<PathBuf>,
    #[serde(default)]
    one_session: bool,
    #[serde(default = "start_seconds")]
    start_seconds: f64,
    #[serde(default = "cancel_seconds")]
    cancel_seconds: f64,
    turn_seconds: Option<f64>,
    #[serde(default = "idle_seconds")]
    idle_seconds: f64,
    read_files: Option<bool>,
    #[serde(default = "offered")]
    write_files: bool,
    #[serde(default = "offered")]
    terminals: bool,
    #[serde(default = "offered")]
    client_tools: bool,
    /// Providers of models, unchecked, because their values may refer to secrets.
    #[serde(default)]
    providers: BTreeMap<String, toml::Value>,
    #[serde(default)]
    config: BTreeMap<String, toml::Value>,
}

fn offered() -> bool {
    true
}

fn start_seconds() -> f64 {
    30.0
}

fn cancel_seconds() -> f64 {
    5.0
}

fn idle_seconds() -> f64 {
    30.0 * 60.0
}

/// Flags and a file that describe agents. The file can be read again when it has changed.
#[derive(Debug, Clone)]
pub struct AgentSource {
    /// Agents of the flags, in their order. They override agents of the file with the same name.
    pub of_flags: Vec<AgentSpec>,
    file: Option<PathBuf>,
    /// Set if the user has named the file, which must then exist.
    is_named: bool,
}

/// Configuration file as one process has read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationSeen {
    /// Absolute path of the file; `None` if none is given and no home is known.
    pub file: Option<PathBuf>,
    /// Checksum of the content; `None` if the file does not exist or cannot be read.
    pub sum: Option<u32>,
    /// Descriptions of the agents by name, for comparison; `None` if the content is invalid.
    pub agents: Option<BTreeMap<String, String>>,
    /// Descriptions of the MCP servers by name, for comparison.
    #[serde(default)]
    pub servers: BTreeMap<String, String>,
    /// MCP servers of clients' plugins that agents may have.
    #[serde(default)]
    pub client_mcp: ClientMcp,
    /// Rules of automations; `None` if they are off.
    #[serde(default)]
    pub automations: Option<AutomationRules>,
    /// Version of the protocol to serve before its release, by its name in the file.
    #[serde(default)]
    pub preview: Option<String>,
}

impl ConfigurationSeen {
    /// Returns whether both were read from the same file, whatever the content.
    pub fn has_same_file(&self, other: &Self) -> bool {
        let real = |file: &PathBuf| canonical(file).unwrap_or_else(|_| file.clone());
        self.file == other.file || self.file.as_ref().map(real) == other.file.as_ref().map(real)
    }
}

/// Result of reading a source once.
#[derive(Debug, Clone)]
pub struct ConfigurationReading {
    /// State of the file, for comparison.
    pub seen: ConfigurationSeen,
    /// Versions of the file and the files that it names, taken before they were read.
    pub stamps: Stamps,
    /// Agents of the flags, then those of the file by name; or the error in the file.
    pub agents: Result<Vec<AgentSpec>, String>,
    /// MCP servers of the file; none if it has an error.
    pub servers: Vec<McpServer>,
}

/// Version of a file by its metadata, without reading the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(Facts);

/// Versions of files by their paths; `None` for one that is no regular file.
pub type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

impl Stamp {
    /// Returns the version of a regular file; `None` if there is none.
    pub fn of(file: &Path) -> Option<Self> {
        facts::behind(file).ok().filter(Facts::is_file).map(Self)
    }

    /// Returns the versions of these files.
    pub fn of_all(files: impl IntoIterator<Item = PathBuf>) -> Stamps {
        let with_version = |file: PathBuf| {
            let stamp = Self::of(&file);
            (file, stamp)
        };
        files.into_iter().map(with_version).collect()
    }
}

impl AgentSource {
    /// Parses the flags, and selects the named file, or else the default one.
    pub fn new(flags: &[String], named: Option<&Path>, default: Option<&Path>) -> anyhow::Result<Self> {
        let mut of_flags: Vec<AgentSpec> = Vec::new();
        for flag in flags {
            let agent = from_flag(flag).with_context(|| format!("--agent: `{flag}`"))?;
            if of_flags.iter().any(|other| other.name == agent.name) {
                bail!("there are two agents with the name `{}`", agent.name);
            }
            of_flags.push(agent);
        }
        let file =
            named.or(default).map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
        Ok(Self { of_flags, file, is_named: named.is_some() })
    }

    /// Returns the path of the file, whether or not it exists.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file. Blocks as long as its file system does.
    pub fn read(&self) -> ConfigurationReading {
        let mut stamps = Stamp::of_all(self.file.clone());
        let (sum, of_file) = self.read_file();
        let described = |agents: &Vec<AgentSpec>| {
            agents.iter().map(|agent| (agent.name.clone(), format!("{agent:?}"))).collect()
        };
        let (of_file, content) = match of_file {
            Ok(mut content) => (Ok(std::mem::take(&mut content.agents)), content),
            Err(error) => (Err(error), FileContent::default()),
        };
        let FileContent { servers, client_mcp, automations, preview, named, .. } = content;
        stamps.extend(named);
        let seen = ConfigurationSeen {
            file: self.file.clone(),
            sum,
            agents: of_file.as_ref().ok().map(described),
            servers: servers.iter().map(|server| (server.name.clone(), format!("{server:?}"))).collect(),
            client_mcp,
            automations,
            preview,
        };
        let agents = of_file.map(|of_file| self.of_flags.iter().cloned().chain(of_file).collect());
        let agents = agents.map_err(|error| format!("{error:#}"));
        ConfigurationReading { seen, stamps, agents, servers }
    }

    /// Reads the content. Also returns the path of the file, and the words that introduce an error
    /// in it. `None` without a file.
    fn text(&self) -> anyhow::Result<Option<(String, &Path, String)>> {
        let Some(path) = self.file().filter(|path| self.is_named || path.exists()) else { return Ok(None) };
        let what = if self.is_named { "--config:" } else { "the configuration file" };
        let context = format!("{what} `{}`", path.display());
        let text = small::open(path).and_then(small::read).with_context(|| context.clone())?;
        Ok(Some((text, path, context)))
    }

    /// Returns the checksum of the content, the agents that no flag overrides, and the MCP servers.
    fn read_file(&self) -> (Option<u32>, anyhow::Result<FileContent>) {
        let (text, path, context) = match self.text() {
            Ok(Some(found)) => found,
            Ok(None) => return (None, Ok(FileContent::default())),
            Err(error) => return (None, Err(error)),
        };
        let of_file = from_file(&text, path).context(context);
        let of_file = of_file.map(|mut content| {
            content.agents.retain(|agent| self.of_flags.iter().all(|of_flag| of_flag.name != agent.name));
            content
        });
        (Some(crc32fast::hash(text.as_bytes())), of_file)
    }
}

/// Reads the agents of the flags in order, then those of the file by name, without those that a
/// flag overrides. The file is the named one, else the default one if it exists.
///
/// # Errors
/// When a flag or the file is invalid, the named file is unreadable, or a name occurs twice.
pub fn agents(
    flags: &[String],
    named: Option<&Path>,
    default: Option<&Path>,
) -> anyhow::Result<Vec<AgentSpec>> {
    AgentSource::new(flags, named, default)?.read().agents.map_err(anyhow::Error::msg)
}

/// Checks that this text can be the content of a configuration file.
///
/// # Errors
/// When it is invalid, with the reason.
pub fn check_text(text: &str, file: &Path) -> anyhow::Result<()> {
    from_file(text, file).map(drop)
}

/// Reads the rules for runs from the named file, or else from the default one if it exists.
///
/// # Errors
/// When the file is invalid, or the named one is unreadable.
pub fn run_rules(named: Option<&Path>, default: Option<&Path>) -> anyhow::Result<RunRules> {
    let source = AgentSource::new(&[], named, default)?;
    let Some((text, _, context)) = source.text()? else { return Ok(RunRules::default()) };
    Ok(parsed(&text).context(context)?.run)
}

fn from_flag(flag: &str) -> anyhow::Result<AgentSpec> {
    let (name, command_line) = flag.split_once('=').context("it is not NAME=COMMAND LINE")?;
    let mut words = programs::split(command_line).context("the command line cannot be split")?.into_iter();
    let command = words.next().filter(|command| !command.is_empty()).context("there is no command")?;
    let entry = [("command", command.into()), ("args", words.collect::<Vec<_>>().into())];
    let entry: toml::Table = entry.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    described(name.to_owned(), entry.try_into()?, Path::new("."))
}

/// Content of a file.
#[derive(Debug, Default)]
struct FileContent {
    agents: Vec<AgentSpec>,
    servers: Vec<McpServer>,
    /// Versions of the files of other programs that it names, taken before they were read.
    named: Stamps,
    /// MCP servers of clients' plugins that agents may have.
    client_mcp: ClientMcp,
    /// Rules of automations; `None` if they are off.
    automations: Option<AutomationRules>,
    /// Version of the protocol to serve before its release.
    preview: Option<String>,
}

/// Reads the content of the file at `path`. Relative paths are relative to its folder, except for a
/// command without a slash, which is looked up in the search path.
fn from_file(text: &str, path: &Path) -> anyhow::Result<FileContent> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = parsed(text)?;
    let mcp_files = file.mcp_files.iter().map(|file| folder.join(file));
    let named = Stamp::of_all(mcp_files);
    let servers = mcp::servers(&file.mcp, &file.mcp_files, (text, path));
    let agents = file.agents.into_iter().map(|(name, mut agent)| {
        let place = format!("[agents.{name}]");
        if agent.command.components().count() > 1 {
            agent.command = folder.join(agent.command);
        }
        agent.directory = agent.directory.map(|directory| folder.join(directory));
        described(name, agent, folder).context(place)
    });
    let agents = agents.collect::<anyhow::Result<_>>()?;
    if let Some(name) = file.preview.as_deref().filter(|name| Dialect::preview(name).is_none()) {
        let known: Vec<String> = Dialect::PREVIEWS.iter().map(|(known, _)| format!("`{known}`")).collect();
        bail!("`preview`: `{name}` is no version that can be previewed; there is {}", known.join(", "));
    }
    let (client_mcp, automations, preview) = (file.client_mcp, file.automations, file.preview);
    Ok(FileContent { agents, servers, named, client_mcp, automations, preview })
}

fn parsed(text: &str) -> anyhow::Result<File> {
    toml::from_str(text).map_err(|error| {
        if let Some(advice) = advice(text) {
            return anyhow!(advice);
        }
        anyhow!(faults::of(text, &error))
    })
}

/// Returns the correction of a common mistake in the file; `None` if there is none.
fn advice(text: &str) -> Option<String> {
    let file: toml::Table = text.parse().ok()?;
    let Some(agents) = file.get("agents").and_then(toml::Value::as_table) else {
        let is_agent = |entry: &toml::Value| entry.get("command").is_some();
        let others = ["client_mcp", "automations", "preview", "run"];
        let is_other_section = |name: &str| name.starts_with("mcp") || others.contains(&name);
        return file.iter().filter(|(name, _)| !is_other_section(name)).find_map(|(name, entry)| {
            let below = entry.as_table().and_then(|below| below.iter().find(|(_, entry)| is_agent(entry)));
            match (below, words(entry)) {
                _ if is_agent(entry) => {
                    Some(format!("`[{name}]` is not a section of this file: write `[agents.{name}]`"))
                }
                (Some((agent, _)), _) => Some(format!(
                    "`[{name}.{agent}]` is not a section of this file: write `[agents.{agent}]`"
                )),
                (None, Some(words)) => {
                    let section = section(name, words);
                    Some(format!("`{name}` is in no section: for an agent of this name, write\n\n{section}"))
                }
                (None, None) => None,
            }
        });
    };
    agents.iter().find_map(|(name, entry)| {
        let Some(entry) = entry.as_table() else {
            let section = section(name, words(entry)?);
            return Some(format!("`{name}` below `[agents]` is not a section: write\n\n{section}"));
        };
        if let Some(command @ toml::Value::Array(_)) = entry.get("command") {
            let section = section(name, words(command)?);
            return Some(format!("`command` of `[agents.{name}]` is one program: write\n\n{section}"));
        }
        let arguments = entry.get("args").filter(|arguments| arguments.is_str())?;
        let arguments = hidden(words(arguments)?.len());
        Some(format!("`args` of `[agents.{name}]` is a list: write `args = {arguments}`"))
    })
}

/// Returns the words of a command line, given as a text or as a list.
fn words(command_line: &toml::Value) -> Option<Vec<String>> {
    match command_line {
        toml::Value::String(line) => programs::split(line).ok(),
        toml::Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
    .filter(|words| !words.is_empty())
}

/// Returns a section with this command line. Its arguments, which may be keys, are not shown.
fn section(name: &str, mut words: Vec<String>) -> String {
    let arguments = hidden(words.split_off(1).len());
    let command = toml::Value::from(words.concat());
    format!("[agents.{name}]\ncommand = {command}\nargs = {arguments}")
}

/// Returns a list of this number of arguments, whose texts are left out.
fn hidden(count: usize) -> toml::Value {
    toml::Value::from(vec!["…"; count])
}

/// Checks that an agent can have this name.
///
/// # Errors
/// When it cannot, with the names that are possible.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_name(name) {
        bail!("the name `{name}` must be a letter, followed by letters, digits, `-`, `_` and `.`");
    }
    if name == script::PROVIDER {
        bail!(
            "the name `{name}` is reserved for the built-in agent: choose another one, such as `my-{name}`"
        );
    }
    Ok(())
}

/// Returns an agent from its section. References of secrets are relative to the folder.
fn described(name: String, agent: AgentEntry, folder: &Path) -> anyhow::Result<AgentSpec> {
    check_name(&name)?;
    if agent.command.as_os_str().is_empty() {
        bail!("there is no command");
    }
    // Absolute, so that a process with another current folder finds it.
    let program = if agent.command.components().count() > 1 {
        std::path::absolute(&agent.command)?
    } else {
        agent.command
    };
    let directory = agent
        .directory
        .map(|directory| {
            let found = canonical(&directory).with_context(|| format!("`{}`", directory.display()))?;
            if !found.is_dir() {
                bail!("`{}` is not a folder", found.display());
            }
            Ok(found)
        })
        .transpose()?;
    let providers = agent.providers.iter().map(|(id, section)| {
        let provider = mcp::provider_of(section, folder).with_context(|| format!("`providers.{id}`"))?;
        Ok((id.clone(), provider))
    });
    let providers = providers.collect::<anyhow::Result<_>>()?;
    let config = agent.config.into_iter().map(|(id, value)| {
        let value = match value {
            toml::Value::String(value) => value.into(),
            toml::Value::Boolean(value) => value.into(),
            value => bail!("`config.{id}` must be a string, `true` or `false`, not {}", kind_of(&value)),
        };
        Ok((id, value))
    });
    let config = config.collect::<anyhow::Result<JsonObject>>()?;
    Ok(AgentSpec {
        name,
        title: agent.title,
        description: agent.description,
        program,
        arguments: agent.args.into_iter().map(Into::into).collect(),
        environment: agent.env,
        directory,
        one_session: agent.one_session,
        start_limit: limit("start_seconds", agent.start_seconds)?,
        cancel_limit: limit("cancel_seconds", agent.cancel_seconds)?,
        turn_limit: agent.turn_seconds.map(|seconds| limit("turn_seconds", seconds)).transpose()?,
        idle_limit: limit("idle_seconds", agent.idle_seconds)?,
        offers: Offers { reading: agent.read_files, writing: agent.write_files, terminals: agent.terminals },
        client_tools: agent.client_tools,
        providers,
        config,
    })
}

/// Returns the kind of a value, with its article.
fn kind_of(value: &toml::Value) -> String {
    let kind = value.type_str();
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {kind}")
}

/// Returns whether an agent or server can have this name.
fn is_name(name: &str) -> bool {
    let fits = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(fits)
}

fn limit(name: &str, seconds: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|limit| !limit.is_zero() && *limit <= LIMIT_MAX)
        .with_context(|| format!("`{name}` must be a number of seconds above 0, and at most {LIMIT_MAX:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure(flags: &[&str]) -> String {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        format!("{:#}", agents(&flags, None, None).unwrap_err())
    }

    #[test]
    fn agent_flag_is_split_like_a_shell_command() {
        let agent = from_flag(r#"my-agent=npx -y "an agent" 'a $HOME; b' c\ d x=y"#).unwrap();
        assert_eq!((agent.name.as_str(), agent.program.as_path()), ("my-agent", Path::new("npx")));
        assert_eq!(agent.arguments, ["-y", "an agent", "a $HOME; b", "c d", "x=y"]);
        assert_eq!(agent.start_limit, Duration::from_secs(30));
    }

    #[test]
    fn invalid_agent_flag_is_refused_with_the_reason() {
        assert!(failure(&["no command"]).contains("NAME=COMMAND LINE"));
        assert!(failure(&["a="]).contains("there is no command"));
        assert!(failure(&["a='x"]).contains("cannot be split"));
        assert!(failure(&["a b=x"]).contains("the name `a b`"));
        assert!(failure(&["=x"]).contains("the name ``"));
        assert!(failure(&["script=x"]).contains("the name `script` is reserved for the built-in agent"));
        assert!(failure(&["a=x", "a=y"]).contains("two agents with the name `a`"));
    }

    #[test]
    fn configuration_file_sets_all_properties_of_agents() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let text = r#"
            [agents.two]
            command = "bin/two"
            [agents.one]
            command = "one"
            args = ["--acp", "a b"]
            env = { KEY = "value" }
            title = "The one"
            description = "Does it"
            directory = "."
            one_session = true
            start_seconds = 1.5
            cancel_seconds = 2
            turn_seconds = 3600
            idle_seconds = 60
            read_files = true
            write_files = false
            terminals = false
            client_tools = false
            [agents.one.config]
            mode = "default"
            fast = true
        "#;
        std::fs::write(&file, text).unwrap();
        let agents = agents(&[], Some(&file), None).unwrap();
        let [one, two] = &agents[..] else { panic!("{agents:?}") };
        assert_eq!((one.name.as_str(), one.program.as_path()), ("one", Path::new("one")));
        assert_eq!(one.arguments, ["--acp", "a b"]);
        assert_eq!(one.environment["KEY"], "value");
        assert_eq!(one.title.as_deref(), Some("The one"));
        assert_eq!(one.directory, Some(folder.path().canonicalize().unwrap()));
        assert_eq!(
            (one.start_limit, one.cancel_limit),
            (Duration::from_millis(1500), Duration::from_secs(2))
        );
        assert_eq!((one.turn_limit, two.turn_limit), (Some(Duration::from_secs(3600)), None));
        let offers = |reading, writing, terminals| Offers { reading, writing, terminals };
        assert_eq!((one.offers, two.offers), (offers(Some(true), false, false), offers(None, true, true)));
        assert!(!one.client_tools && two.client_tools);
        assert_eq!(serde_json::to_value(&one.config).unwrap(), json!({ "fast": true, "mode": "default" }));
        assert!(two.config.is_empty());
        assert_eq!(two.program, folder.path().join("bin/two"));
        assert_eq!(two.idle_limit, Duration::from_secs(1800));
        assert!(one.one_session && !two.one_session);
    }

    #[test]
    fn invalid_configuration_file_is_refused_with_the_reason() {
        let failure = |text: &str| format!("{:#}", from_file(text, Path::new("/config.toml")).unwrap_err());
        assert!(failure("[agents.a]").contains("command"));
        assert!(failure("[agents.a]\ncommand = 'x'\nworking = 1").contains("working"));
        assert!(failure("[agent.a]\ncommand = 'x'").contains("agent"));
        assert!(failure("[agents.a]\ncommand = 'x'\nstart_seconds = -1").contains("start_seconds"));
        assert!(failure("[agents.a]\ncommand = 'x'\nturn_seconds = 0").contains("turn_seconds"));
        assert!(failure("[agents.a]\ncommand = 'x'\nidle_seconds = 1e10").contains("idle_seconds"));
        assert!(failure("[agents.a]\ncommand = 'x'\ndirectory = 'no/such'").contains("/no/such"));
        let of_config = failure("[agents.a]\ncommand = 'x'\n[agents.a.config]\neffort = 3");
        assert!(
            of_config
                .contains("[agents.a]: `config.effort` must be a string, `true` or `false`, not an integer"),
            "{of_config}"
        );
    }

    #[test]
    fn common_mistake_in_a_file_is_refused_with_the_correction() {
        let failure = |text: &str| format!("{:#}", from_file(text, Path::new("/config.toml")).unwrap_err());
        let section = "[agents.a]\ncommand = \"x y\"\nargs = [\"…\"]";
        for (mistake, advice) in [
            ("[agents]\na = '\"x y\" --acp'", section),
            ("[agents]\na = ['x y', '--acp']", section),
            ("[agents.a]\ncommand = ['x y', '--acp']", section),
            ("[agents.a]\ncommand = 'x'\nargs = '--acp --fast'", "write `args = [\"…\", \"…\"]`"),
            ("[a]\ncommand = 'x'", "`[a]` is not a section of this file: write `[agents.a]`"),
            ("[agent.a]\ncommand = 'x'", "`[agent.a]` is not a section of this file: write `[agents.a]`"),
            ("a = 'x -y'", "`a` is in no section: for an agent of this name, write\n\n[agents.a]"),
            (
                "[agents.script]\ncommand = 'x'",
                "[agents.script]: the name `script` is reserved for the built-in agent: choose another one",
            ),
        ] {
            let message = failure(mistake);
            assert!(message.contains(advice), "{mistake}: {message}");
        }
    }

    #[test]
    fn error_in_a_file_quotes_no_value() {
        let failure = |text: &str| format!("{:#}", from_file(text, Path::new("/config.toml")).unwrap_err());
        for (text, place) in [
            ("[agents.a]\ncommand = 'x'\nenv = { KEY = s3cret }", "line 3, column "),
            ("[agents.a]\ncommand = 'x'\nenv = 's3cret'", "line 3, column 7: invalid type: string, expected"),
            ("[agents.a]\ncommand = 'x'\nargs = '--key s3cret'", "write `args = ["),
            ("[agents]\na = 'x --key s3cret'", "write\n\n[agents.a]"),
            ("[agents.a]\ncommand = 'x'\nconfig = { key = ['s3cret'] }", "not an array"),
        ] {
            let message = failure(text);
            assert!(message.contains(place) && !message.contains("s3cret"), "{text}: {message}");
        }
    }

    #[test]
    fn default_file_is_optional_and_flags_and_named_file_precede_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let default = write("default.toml", "[agents.a]\ncommand = 'one'\n[agents.b]\ncommand = 'two'");
        let other = write("other.toml", "[agents.c]\ncommand = 'three'");
        let programs =
            |flags: &[&str], named: Option<&Path>, default: &Path| -> Result<Vec<String>, String> {
                let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
                let agents = agents(&flags, named, Some(default)).map_err(|error| format!("{error:#}"))?;
                Ok(agents.iter().map(|agent| format!("{} {}", agent.name, agent.program.display())).collect())
            };
        assert_eq!(programs(&[], None, &default).unwrap(), ["a one", "b two"]);
        assert_eq!(programs(&["b=mine"], None, &default).unwrap(), ["b mine", "a one"]);
        assert_eq!(programs(&[], Some(&other), &default).unwrap(), ["c three"]);
        let missing = folder.path().join("no/such");
        assert_eq!(programs(&[], None, &missing).unwrap(), Vec::<String>::new());
        assert_eq!(programs(&[], None, &default.join("below")).unwrap(), Vec::<String>::new());
        assert!(programs(&[], Some(&missing), &default).unwrap_err().contains("--config"));
        let folder = programs(&[], None, folder.path()).unwrap_err();
        assert!(folder.contains("the configuration file"), "{folder}");
    }
}
