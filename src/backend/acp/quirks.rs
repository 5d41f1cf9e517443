//! Properties of certain agents that they do not report themselves.
//!
//! Owns: the table of these agents, by the name in their `agentInfo` and by their usual programs.
//! Never: records properties that an agent reports: capabilities, options, login methods.
//!
//! Each row of [`of`] states the version in which the quirks were observed. When a newer version is
//! fixed, its row is removed; no second row is added.

use std::ffi::OsStr;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentQuirks {
    /// Set to offer file reading through the host, unless the operator decides otherwise.
    pub reads_through_us: bool,
    /// Set when file links must not be percent-encoded, because the agent does not decode them.
    pub raw_links: bool,
    /// Set when the agent passes binary resources to its model; others drop them or paste Base64.
    pub takes_blobs: bool,
    /// Set when the agent replays a conversation after its answer to `session/load`, not before.
    pub replays_late: bool,
    /// Set when the `api-key` in `_meta` is the key itself rather than `{"apiKey": KEY}`.
    pub bare_key: bool,
    /// Further ids of modes in which the agent does not ask, besides those common to all agents.
    pub unasked_modes: &'static [&'static str],
    /// Sentence on when the agent acts without asking in any mode; `None` if its mode decides.
    pub asking: Option<&'static str>,
    /// Prefixes of answer chunks that are notices of the agent, not text of its model. Each notice
    /// is a chunk of its own, without a line end.
    pub notices: &'static [&'static str],
    /// Login methods that need a terminal although they do not say so.
    pub terminal_logins: &'static [&'static str],
    /// Set when the agent reports the end of a turn that it started itself in a usage update.
    pub ends_own_turns: bool,
    /// Set when all sessions of a folder have the MCP servers that one of them was given, and none
    /// is taken away.
    pub shares_servers: bool,
    /// Set when the title of a permission to execute is the command line, which the agent does not
    /// report otherwise.
    pub titles_commands: bool,
}

impl AgentQuirks {
    pub const NONE: Self = Self {
        reads_through_us: true,
        raw_links: false,
        takes_blobs: true,
        replays_late: false,
        bare_key: false,
        unasked_modes: &[],
        asking: None,
        notices: &[],
        terminal_logins: &[],
        ends_own_turns: false,
        shares_servers: false,
        titles_commands: false,
    };
    const RAW_LINKS: Self = Self { raw_links: true, ..Self::NONE };
    // The agent reads a file before it writes it, and takes any error for a failure, so it could
    // not create a file.
    const GEMINI: Self = Self {
        reads_through_us: false,
        replays_late: true,
        bare_key: true,
        titles_commands: true,
        ..Self::RAW_LINKS
    };
    const PI: Self = Self {
        takes_blobs: false,
        asking: Some("it never asks before it changes files or runs commands"),
        notices: &[
            "Automatic compaction finished;",
            "Cleared queued prompts.",
            "Context nearing limit, running automatic compaction",
            "Pi editor UI request is not supported",
            "Pi input UI request is not supported",
            "Queued message (position ",
            "Retry finished, resuming.",
            "Retrying (attempt ",
            "Retrying...",
            "Starting queued message.",
        ],
        ..Self::RAW_LINKS
    };
    // A blob in a prompt stays in the conversation, and every later prompt fails.
    const OPENCODE: Self = Self {
        takes_blobs: false,
        asking: Some(
            "it asks only where its own `opencode.json` says so: \
             \"permission\": {\"edit\": \"ask\", \"bash\": \"ask\"}",
        ),
        terminal_logins: &["opencode-login"],
        shares_servers: true,
        ..Self::NONE
    };

    pub fn is_notice(&self, chunk: &str) -> bool {
        self.notices.iter().any(|notice| chunk.starts_with(notice))
    }
}

/// Returns the quirks of an agent by its reported name; [`AgentQuirks::NONE`] if it is unknown.
pub fn of(name: Option<&str>) -> AgentQuirks {
    match name.unwrap_or_default() {
        // 0.61.0
        "gemini-cli" => AgentQuirks::GEMINI,
        // 0.24.4, and Zed's of 0.16.0
        "qwen-code" | "codex-acp" => AgentQuirks { takes_blobs: false, ..AgentQuirks::RAW_LINKS },
        // 0.100.0
        "@agentclientprotocol/claude-agent-acp" => {
            AgentQuirks { ends_own_turns: true, ..AgentQuirks::RAW_LINKS }
        }
        // 2.6.0
        "@agentclientprotocol/codex-acp" => {
            AgentQuirks { takes_blobs: false, unasked_modes: &["agent"], ..AgentQuirks::RAW_LINKS }
        }
        // 1.0.102
        "Copilot" => AgentQuirks::RAW_LINKS,
        // 0.0.34
        "pi-acp" => AgentQuirks::PI,
        // 1.18.33
        "OpenCode" => AgentQuirks::OPENCODE,
        _ => AgentQuirks::NONE,
    }
}

/// Returns the expected quirks of an agent by its command line, before it reports its name. A
/// correct guess avoids a restart with other offers.
pub fn expected(program: &Path, arguments: &[impl AsRef<OsStr>]) -> AgentQuirks {
    let is_gemini = |word: &OsStr| {
        // A package name may include a version.
        let word = word.to_str().unwrap_or_default();
        ["gemini", "@google/gemini-cli"].iter().any(|name| {
            word.strip_prefix(name).is_some_and(|version| version.is_empty() || version.starts_with('@'))
        })
    };
    if program.file_name() == Some(OsStr::new("gemini"))
        || arguments.iter().any(|word| is_gemini(word.as_ref()))
    {
        return AgentQuirks::GEMINI;
    }
    AgentQuirks::NONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_known_by_their_name_and_expected_by_their_program() {
        let gemini = of(Some("gemini-cli"));
        assert!(!gemini.reads_through_us);
        assert_eq!((of(Some("else")), of(None)), (AgentQuirks::NONE, AgentQuirks::NONE));
        let expected = |program: &str, arguments: &[&str]| expected(Path::new(program), arguments);
        assert_eq!(expected("/usr/bin/gemini", &["--acp"]), gemini);
        assert_eq!(expected("npx", &["-y", "@google/gemini-cli", "--acp"]), gemini);
        assert_eq!(expected("npx", &["@google/gemini-cli@0.61.0", "--acp"]), gemini);
        assert_eq!(expected("wrapper", &["--like", "@"]), AgentQuirks::NONE);
        assert_eq!(expected("/gemini/other", &[]), AgentQuirks::NONE);
    }

    #[test]
    fn each_known_agent_is_treated_as_it_was_seen_to_need() {
        let raw = AgentQuirks::RAW_LINKS;
        let raw_without_blobs = AgentQuirks { takes_blobs: false, ..raw };
        for (name, needs) in [
            (
                "gemini-cli",
                AgentQuirks {
                    reads_through_us: false,
                    replays_late: true,
                    bare_key: true,
                    titles_commands: true,
                    ..raw
                },
            ),
            ("@agentclientprotocol/claude-agent-acp", AgentQuirks { ends_own_turns: true, ..raw }),
            ("Copilot", raw),
            ("qwen-code", raw_without_blobs),
            (
                "@agentclientprotocol/codex-acp",
                AgentQuirks { unasked_modes: &["agent"], ..raw_without_blobs },
            ),
            ("codex-acp", raw_without_blobs),
        ] {
            assert_eq!(of(Some(name)), needs, "{name}");
        }
        let (pi, opencode) = (of(Some("pi-acp")), of(Some("OpenCode")));
        assert!(pi.raw_links && !pi.takes_blobs && pi.asking.is_some());
        assert!(pi.is_notice("Retrying (attempt 1/3, waiting 2s)...") && !pi.is_notice("Hello. Retrying..."));
        assert!(!opencode.raw_links && !opencode.takes_blobs && opencode.asking.is_some());
        assert_eq!(opencode.terminal_logins, ["opencode-login"]);
        assert!(opencode.shares_servers && !pi.shares_servers);
        assert!(!opencode.is_notice("Retrying..."));
    }
}
