//! The agents of a running host, and their replacement when the configuration file changes.
//!
//! A running host applies a changed file when a front joins that has read other content, and by
//! itself within seconds ([`upkeep`](super::upkeep)). New sessions use the new agents, running
//! conversations keep their program, and a removed agent is no longer offered. A file with an error
//! changes nothing. SIGHUP does not reload the file but asks the host to leave, because closing
//! terminals send it.
//!
//! Owns: the agents in force, and the reason why a newer reading of the file was not applied.
//! Never: reads the file, or informs a client about an agent.

use std::fmt;
use std::path::PathBuf;

use super::upkeep::ConfigurationFile;
use crate::backend::acp::AgentSpec;
use crate::backend::mcp::McpServer;
use crate::backend::{Backend, OfferedAgent};
use crate::config::{AgentSource, ConfigurationReading, ConfigurationSeen};
use crate::host::effects::ClientMcp;
use crate::host::AutomationRules;
use crate::versions::dialect::Dialect;

/// Warning for a window whose configuration file could not be reread before the window was served.
const OTHER_CONTENT: &str =
    "the host still uses an earlier content of the configuration file: the file has changed again, or \
    reading it takes too long; the host applies the new content as soon as it can read it";

/// Factory for the backend of an agent.
pub type MakeBackend = Box<dyn Fn(AgentSpec) -> Box<dyn Backend> + Send>;

/// The agents in force, and the configuration file that they come from.
pub struct Configuration {
    /// The agents, without the built-in ones.
    agents: Vec<AgentSpec>,
    /// MCP servers in force.
    servers: Vec<McpServer>,
    /// Last reading of the file, but with the agents in force if that reading has failed, and with
    /// the settings that a host reads only when it starts.
    seen: ConfigurationSeen,
    /// Reason why the last reading of the file was not applied, for people.
    outdated: Option<String>,
    make: MakeBackend,
    /// Input for the upkeep thread, until that thread takes it.
    file: Option<ConfigurationFile>,
}

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Configuration {
    /// Applies the first reading; only the agents of the command line if the file has an error.
    pub fn start(
        source: AgentSource,
        reading: ConfigurationReading,
        make: MakeBackend,
    ) -> (Self, Vec<Box<dyn Backend>>) {
        let file = ConfigurationFile::new(source.clone(), &reading);
        let (agents, servers) = (Some(Default::default()), Default::default());
        let none = ConfigurationSeen { agents, servers, ..reading.seen.clone() };
        let servers = reading.servers;
        let (seen, agents, outdated) = match reading.agents {
            Ok(agents) => (reading.seen, agents, None),
            Err(why) => {
                let why = format!(
                    "the configuration file is invalid, and the host offers only the agents of the command line until \
                     it is corrected: {why}"
                );
                (none, source.of_flags, Some(why))
            }
        };
        let backends = agents.iter().cloned().map(&make).collect();
        (Self { agents, servers, seen, outdated, make, file: Some(file) }, backends)
    }

    /// Returns whether a configured agent has this provider id.
    pub fn offers(&self, provider: &str) -> bool {
        self.agents.iter().any(|agent| agent.name == provider)
    }

    /// Returns the MCP servers in force.
    pub fn servers(&self) -> Vec<McpServer> {
        self.servers.clone()
    }

    /// Returns which MCP servers of clients' plugins agents may have.
    pub fn client_mcp(&self) -> ClientMcp {
        self.seen.client_mcp
    }

    /// Returns the rules of automations; `None` if they are off.
    pub fn automations(&self) -> Option<AutomationRules> {
        self.seen.automations
    }

    /// Returns the version of the protocol to serve before its release, if any.
    pub fn preview(&self) -> Option<Dialect> {
        self.seen.preview.as_deref().and_then(Dialect::preview)
    }

    /// Returns the paths of the file and of those that it names; none after [`Self::take_file`].
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.file.iter().flat_map(ConfigurationFile::files)
    }

    /// Takes the file out, for the upkeep thread. Returns `None` if it was taken before.
    pub fn take_file(&mut self) -> Option<ConfigurationFile> {
        self.file.take()
    }

    /// Returns whether a front has read other content of the same file, or of the files with MCP
    /// servers that it names.
    pub fn is_other_content(&self, front: &ConfigurationSeen) -> bool {
        // The servers of an invalid file are unknown, and they have the path by which it was read.
        let is_comparable = front.agents.is_some() && front.file == self.seen.file;
        let has_other_servers = is_comparable && front.servers != self.seen.servers;
        let is_other = front.sum != self.seen.sum || has_other_servers;
        front.file.is_some() && is_other && front.has_same_file(&self.seen)
    }

    /// Returns the differences for a front that uses another file. The same file is reread instead.
    pub fn differences(&self, front: &ConfigurationSeen) -> Vec<String> {
        let plugins = (front.client_mcp != self.seen.client_mcp).then(|| "`client_mcp`".to_owned());
        let at_start = self.differences_at_start(front);
        let has_same_lists = front.agents == self.seen.agents && front.servers == self.seen.servers;
        let is_equal = has_same_lists && plugins.is_none() && at_start.is_empty();
        if front.has_same_file(&self.seen) || is_equal {
            return Vec::new();
        }
        let path = |seen: &ConfigurationSeen| match &seen.file {
            Some(file) => format!("`{}`", file.display()),
            None => "none".to_owned(),
        };
        let file = format!("the configuration file ({} here, {} in the host)", path(front), path(&self.seen));
        let agents = |seen: &ConfigurationSeen| seen.agents.clone().unwrap_or_default();
        let differ = super::hello::differences(&agents(front), &agents(&self.seen));
        let differ = differ.into_iter().map(|name| format!("the agent `{name}`"));
        let servers = super::hello::differences(&front.servers, &self.seen.servers);
        let servers = servers.into_iter().map(|name| format!("the MCP server `{name}`"));
        std::iter::once(file).chain(differ).chain(servers).chain(plugins).chain(at_start).collect()
    }

    /// Returns the settings that a host reads only when it starts and that differ for a front.
    fn differences_at_start(&self, front: &ConfigurationSeen) -> Vec<String> {
        let automations = (front.automations != self.seen.automations).then(|| "`automations`".to_owned());
        let preview = (front.preview != self.seen.preview).then(|| "`preview`".to_owned());
        automations.into_iter().chain(preview).collect()
    }

    /// Returns the reason why a front that uses this file does not get its agents or other
    /// settings, for people.
    pub fn outdated(&self, front: &ConfigurationSeen) -> Option<String> {
        if !front.has_same_file(&self.seen) {
            return None;
        }
        let differ = self.differences_at_start(front);
        let restart = || {
            format!(
                "the configuration file has changed, but a host reads {} only when it starts: end the host with all \
                 its windows, so that the next one reads the file",
                differ.join(" and ")
            )
        };
        let outdated = self.outdated.clone();
        let outdated = outdated.or_else(|| self.is_other_content(front).then(|| OTHER_CONTENT.to_owned()));
        outdated.or_else(|| (!differ.is_empty()).then(restart))
    }

    /// Applies a new reading. Returns the agents in order, or `None` if neither they nor the MCP
    /// servers and the permission for those of clients have changed.
    pub fn take_up(&mut self, reading: ConfigurationReading) -> Option<Vec<OfferedAgent>> {
        let agents = match reading.agents {
            Ok(agents) => agents,
            Err(why) => {
                let why = format!(
                    "the changed configuration file is not applied, and the host keeps its present agents: {why}"
                );
                tracing::warn!("configuration: {why}");
                (self.seen.sum, self.outdated) = (reading.seen.sum, Some(why));
                return None;
            }
        };
        let allowed_before = self.seen.client_mcp;
        let (automations, preview) = (self.seen.automations, self.seen.preview.take());
        self.seen = ConfigurationSeen { automations, preview, ..reading.seen };
        self.outdated = None;
        let before = std::mem::replace(&mut self.agents, agents);
        let servers_before = std::mem::replace(&mut self.servers, reading.servers);
        let is_same = before == self.agents && servers_before == self.servers;
        if is_same && allowed_before == self.seen.client_mcp {
            return None;
        }
        let offered = self.agents.iter().map(|agent| {
            if before.contains(agent) {
                OfferedAgent::AsBefore(agent.name.clone())
            } else {
                OfferedAgent::New((self.make)(agent.clone()))
            }
        });
        let offered = offered.collect();
        let names: Vec<&str> = self.agents.iter().map(|agent| agent.name.as_str()).collect();
        tracing::info!(
            agents = names.join(", "),
            servers = self.servers.len(),
            "the configuration file has changed: its agents and MCP servers are in effect"
        );
        Some(offered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::script::Script;

    fn started(text: &str) -> (tempfile::TempDir, AgentSource, Configuration) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let source = AgentSource::new(&["flag=x".to_owned()], Some(&path), None).unwrap();
        let (configuration, _) =
            Configuration::start(source.clone(), source.read(), Box::new(|_| Box::new(Script)));
        (folder, source, configuration)
    }

    fn names(configuration: &Configuration) -> Vec<&str> {
        configuration.agents.iter().map(|agent| agent.name.as_str()).collect()
    }

    #[test]
    fn agents_that_did_not_change_stay_as_they_are() {
        let (folder, source, mut configuration) =
            started("[agents.a]\ncommand = 'a'\n[agents.b]\ncommand = 'b'");
        assert_eq!(names(&configuration), ["flag", "a", "b"]);
        assert!(configuration.take_up(source.read()).is_none());
        let text = "[agents.a]\ncommand = 'a'\n[agents.b]\ncommand = 'other'\n[agents.c]\ncommand = 'c'";
        std::fs::write(folder.path().join("config.toml"), text).unwrap();
        let front = source.read().seen;
        assert!(configuration.is_other_content(&front));
        assert!(configuration.outdated(&front).is_some(), "a window that is served all the same is told");
        let offered = configuration.take_up(source.read()).unwrap();
        assert_eq!(configuration.outdated(&front), None);
        let kinds = offered.iter().map(|offered| match offered {
            OfferedAgent::AsBefore(name) => name.as_str(),
            OfferedAgent::New(_) => "new",
        });
        assert_eq!(kinds.collect::<Vec<_>>(), ["flag", "a", "new", "new"]);
    }

    #[test]
    fn file_that_cannot_be_understood_changes_nothing_until_it_is_mended() {
        let (folder, source, mut configuration) = started("[agents.a]\ncommand = 'a'");
        std::fs::write(folder.path().join("config.toml"), "[agents.").unwrap();
        let front = source.read().seen;
        assert!(configuration.is_other_content(&front) && configuration.differences(&front).is_empty());
        assert!(configuration.take_up(source.read()).is_none());
        assert!(configuration.outdated(&front).unwrap().contains("config.toml"));
        assert!(!configuration.is_other_content(&front), "it is not read again for each window");
        assert_eq!(names(&configuration), ["flag", "a"]);
        std::fs::write(folder.path().join("config.toml"), "[agents.b]\ncommand = 'b'").unwrap();
        assert!(configuration.take_up(source.read()).is_some());
        let mended = source.read().seen;
        assert_eq!((configuration.outdated(&mended), names(&configuration)), (None, vec!["flag", "b"]));
    }

    #[test]
    fn another_file_must_describe_the_same_agents() {
        let (folder, _, configuration) = started("[agents.a]\ncommand = '/a'");
        let read = |text: &str| {
            let other = folder.path().join("other.toml");
            std::fs::write(&other, text).unwrap();
            AgentSource::new(&[], Some(&other), None).unwrap().read().seen
        };
        assert!(configuration.differences(&read("[agents.a]\ncommand = '/a'")).is_empty());
        let differ = configuration.differences(&read("[agents.b]\ncommand = '/a'"));
        assert_eq!(differ[1..], ["the agent `a`", "the agent `b`"]);
        assert!(differ[0].contains("other.toml") && differ[0].contains("config.toml"), "{differ:?}");
        assert_eq!(configuration.differences(&read("[agents.")).len(), 2);
    }

    #[test]
    fn changed_file_with_mcp_servers_is_other_content() {
        let (folder, source, mut configuration) = started("mcp_files = ['mcp.json']");
        assert!(!configuration.is_other_content(&source.read().seen));
        let servers = r#"{ "mcpServers": { "one": { "command": "one" } } }"#;
        std::fs::write(folder.path().join("mcp.json"), servers).unwrap();
        let front = source.read().seen;
        assert!(configuration.is_other_content(&front) && configuration.outdated(&front).is_some());
        assert!(configuration.take_up(source.read()).is_some());
        assert!(!configuration.is_other_content(&front));
        assert_eq!(configuration.servers().len(), 1);
    }

    #[test]
    fn settings_that_a_host_reads_when_it_starts_are_named_where_they_differ() {
        let (folder, source, mut configuration) = started("");
        let other = folder.path().join("other.toml");
        std::fs::write(&other, "[automations]").unwrap();
        let front = AgentSource::new(&[], Some(&other), None).unwrap().read().seen;
        assert_eq!(configuration.differences(&front)[1..], ["`automations`"]);
        for (text, named) in [("[automations]", "`automations`"), ("preview = '1.1'", "`preview`")] {
            std::fs::write(folder.path().join("config.toml"), text).unwrap();
            assert!(configuration.take_up(source.read()).is_none());
            let why = configuration.outdated(&source.read().seen).unwrap();
            assert!(why.contains(named), "{why}");
        }
        assert_eq!(configuration.automations(), None);
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        assert!(configuration.take_up(source.read()).is_none());
        assert_eq!(configuration.outdated(&source.read().seen), None);
    }
}
