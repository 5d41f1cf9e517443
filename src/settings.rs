//! Owner of each setting when several processes share a host.
//!
//! Owns: the hello of a front that carries them, and, in its tests, the table of all flags, which
//! the chapter on windows repeats. A flag that is in no row, or whose value does not reach the
//! hello, fails a test: so no setting of a second window is ignored without a word.
//! Never: says what a flag means.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tracing_subscriber::filter::Targets;

use crate::backend::mcp::McpServer;
use crate::cli::ServeOptions;
use crate::config::{AgentSource, ConfigurationReading};
use crate::io::hello::{environment, Hello, SettingsMessage, AGENT_SETTING, LINK};
use crate::io::run::RunOptions;
use crate::os::paths::canonical;

impl ServeOptions {
    /// Returns the settings of a host, under the names that users know, for comparison. The agents
    /// of the configuration file are not included, since the file can change.
    pub fn settings(&self, agents: &AgentSource) -> BTreeMap<String, String> {
        let each = agents.of_flags.iter().enumerate();
        let each =
            each.map(|(at, agent)| (format!("{AGENT_SETTING}`{}`", agent.name), format!("{at} {agent:?}")));
        // A relative path means different folders in different current folders.
        let real = |folder: &PathBuf| canonical(folder).unwrap_or_else(|_| folder.clone());
        let write_roots: Vec<PathBuf> = self.write_root.iter().map(real).collect();
        let flags = [
            ("--no-script", self.no_script.to_string()),
            ("--script-resource", format!("{:?}", self.script_resource)),
            ("--trash-days", self.trash_days.to_string()),
            ("--state-bytes", format!("{:?}", self.state_bytes)),
            ("--quarantine-after", self.quarantine_after.to_string()),
            ("--store-wait", self.store_wait.to_string()),
            ("--max-turn-bytes", self.max_turn_bytes.to_string()),
            ("--memory-budget", self.memory_budget.to_string()),
            ("--client-memory", self.client_memory.to_string()),
            ("--no-terminals", self.no_terminals.to_string()),
            ("--terminal-grace", self.terminal_grace.to_string()),
            ("--git", self.uses_git().to_string()),
            ("--git-filter", format!("{:?}", self.git_filters)),
            ("--git-file-bytes", self.git_file_bytes.to_string()),
            ("--git-wait", self.git_wait.to_string()),
            ("--write-root", format!("{write_roots:?}")),
            ("--preview", format!("{:?}", self.preview)),
        ];
        flags.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(each).collect()
    }

    /// Returns the first message of a front to the host of its state folder.
    pub fn hello(
        &self,
        options: &RunOptions,
        agents: &AgentSource,
        reading: &ConfigurationReading,
        log: &Targets,
    ) -> Hello {
        let named = reading.agents.iter().flatten().flat_map(|agent| agent.environment.keys().cloned());
        let of_servers = reading.servers.iter().flat_map(McpServer::variables).map(str::to_owned);
        Hello {
            link: LINK,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            terms: SettingsMessage::from(&options.terms),
            log: log.to_string(),
            settings: self.settings(agents),
            guest: self.is_guest(),
            configuration: reading.seen.clone(),
            listening: options.listening.clone(),
            environment: environment(named.chain(of_servers).chain(["PATH".to_owned()])),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use clap::{CommandFactory, Parser};

    use crate::cli::Cli;

    /// Owner of a setting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Owner {
        /// The window: each has its own.
        Window,
        /// A listener: each request for the address of another one must have the same value.
        Listener,
        /// The host: all windows must say the same.
        Host,
        /// None: the flag says which host it is, or that there is none for others.
        Place,
    }

    /// All flags that set how a process serves.
    const SETTINGS: [(&str, Owner); 39] = [
        ("--on-eof", Owner::Window),
        ("--drain-timeout", Owner::Window),
        ("--default-directory", Owner::Window),
        ("--assume-version", Owner::Window),
        ("--max-frame-bytes", Owner::Window),
        ("--stall-timeout", Owner::Window),
        ("--log", Owner::Window),
        ("--as-guest", Owner::Window),
        ("--no-parent-watch", Owner::Window),
        ("--listen", Owner::Listener),
        ("--token-file", Owner::Listener),
        ("--no-token", Owner::Listener),
        ("--allow-origin", Owner::Listener),
        ("--announce", Owner::Listener),
        ("--reconnect-within", Owner::Listener),
        ("--handshake-timeout", Owner::Listener),
        ("--message-timeout", Owner::Listener),
        ("--agent", Owner::Host),
        ("--config", Owner::Host),
        ("--no-script", Owner::Host),
        ("--script-resource", Owner::Host),
        ("--write-root", Owner::Host),
        ("--no-terminals", Owner::Host),
        ("--terminal-grace", Owner::Host),
        ("--git", Owner::Host),
        ("--git-filter", Owner::Host),
        ("--git-file-bytes", Owner::Host),
        ("--git-wait", Owner::Host),
        ("--trash-days", Owner::Host),
        ("--state-bytes", Owner::Host),
        ("--quarantine-after", Owner::Host),
        ("--store-wait", Owner::Host),
        ("--max-turn-bytes", Owner::Host),
        ("--memory-budget", Owner::Host),
        ("--client-memory", Owner::Host),
        ("--preview", Owner::Host),
        ("--state-dir", Owner::Place),
        ("--exclusive", Owner::Place),
        ("--ephemeral", Owner::Place),
    ];

    /// The rest of them: no front joins a process that was started with one of these.
    const ALONE: [&str; 3] = ["--deterministic", "--as-host", "--trace"];

    fn flags(owner: Owner) -> impl Iterator<Item = &'static str> {
        SETTINGS.into_iter().filter(move |(_, of)| *of == owner).map(|(flag, _)| flag)
    }

    #[test]
    fn table_names_each_flag_once() {
        let command = Cli::command();
        let known = command.get_arguments().filter_map(|argument| argument.get_long());
        let known: Vec<String> = known.map(|long| format!("--{long}")).collect();
        let mut rows: Vec<&str> = SETTINGS.iter().map(|(flag, _)| *flag).chain(ALONE).collect();
        let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
        known.retain(|flag| !["--help", "--version"].contains(flag));
        rows.sort_unstable();
        known.sort_unstable();
        assert_eq!(rows, known);
    }

    /// Returns a non-default value of a flag, with the other flags that it requires.
    fn sample<'a>(flag: &'a str, folder: &'a str, file: &'a str) -> Vec<&'a str> {
        match flag {
            "--on-eof" => vec![flag, "exit"],
            "--default-directory" | "--write-root" => vec![flag, folder],
            "--assume-version" => vec![flag, "0.4.0"],
            "--log" => vec![flag, "trace"],
            "--listen" => vec![flag, "ws://127.0.0.1:0"],
            "--token-file" | "--config" => vec![flag, file],
            "--allow-origin" | "--script-resource" => vec![flag, "https://example.com"],
            "--announce" => vec![flag, "vscode"],
            "--agent" => vec![flag, "a=b"],
            "--git" => vec![flag, "off"],
            "--preview" => vec![flag, "1.1"],
            "--no-token" | "--no-script" | "--no-terminals" | "--as-guest" => vec![flag],
            _ => vec![flag, "7"],
        }
    }

    /// Returns the hello of a process with these arguments, as JSON.
    fn hello_of(arguments: &[&str]) -> serde_json::Value {
        let cli = Cli::try_parse_from([&["ahp-sidecar"][..], arguments].concat()).unwrap();
        let options = cli.serving.options(false).unwrap();
        let agents = cli.serving.agents().unwrap();
        let (filter, _) = cli.serving.log_filter().unwrap();
        let mut hello =
            serde_json::to_value(cli.serving.hello(&options, &agents, &agents.read(), &filter)).unwrap();
        // A generated token differs each time.
        if let Some(token) = hello.pointer_mut("/listening/access/token").filter(|token| token.is_string()) {
            if token_file(arguments).is_none() {
                *token = "fresh".into();
            }
        }
        hello
    }

    fn token_file<'a>(arguments: &[&'a str]) -> Option<&'a str> {
        arguments.iter().find(|argument| **argument == "--token-file").copied()
    }

    #[test]
    fn hello_carries_every_setting_to_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        // The file is a valid token, and an invalid configuration, which differs, too.
        fs::write(&file, "0123456789abcdef").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (folder, file) = (text(folder.path()), text(&file));
        for (flag, owner) in SETTINGS {
            // The front itself watches its parent.
            if owner == Owner::Place || flag == "--no-parent-watch" {
                continue;
            }
            let mut arguments = sample(flag, &folder, &file);
            let mut without = Vec::new();
            if owner == Owner::Listener && flag != "--listen" {
                without = vec!["--listen", "ws://127.0.0.1:0"];
                arguments.extend(&without);
            }
            let (mut with, mut without) = (hello_of(&arguments), hello_of(&without));
            let members: &[&str] = match owner {
                Owner::Window => &["terms", "log", "guest"],
                Owner::Listener => &["listening"],
                Owner::Host => &["settings", "configuration"],
                Owner::Place => unreachable!(),
            };
            let differs = members.iter().any(|member| with[member] != without[member]);
            assert!(differs, "the value of `{flag}` is not in {members:?} of the hello");
            for member in members {
                (with[member], without[member]) = (serde_json::Value::Null, serde_json::Value::Null);
            }
            assert_eq!(with, without, "`{flag}` is elsewhere, too");
        }
    }

    #[test]
    fn chapter_lists_the_settings_of_the_table() {
        let chapter = include_str!("io/README.md");
        let listed = |from: &str, to: &str| -> BTreeSet<&str> {
            let behind = chapter.split_once(from).unwrap().1;
            let list = behind.split_once(to).unwrap().0;
            list.split('`').filter(|word| word.starts_with("--")).collect()
        };
        let command = Cli::command();
        let is_hidden = |flag: &str| {
            let mut arguments = command.get_arguments();
            arguments.any(|it| it.is_hide_set() && it.get_long() == flag.strip_prefix("--"))
        };
        let table = |owner| flags(owner).filter(|flag| !is_hidden(flag)).collect::<BTreeSet<_>>();
        let (window, listener, host) = (
            ("**What belongs to a window**", "**What belongs to a listener**"),
            ("**What belongs to a listener**", "**What belongs to the host**"),
            ("**What belongs to the host**", "Where it is not"),
        );
        assert_eq!(listed(window.0, window.1), table(Owner::Window));
        assert_eq!(listed(listener.0, listener.1), table(Owner::Listener));
        assert_eq!(listed(host.0, host.1), table(Owner::Host));
    }
}
