//! Properties of certain agents that they do not report themselves.
//!
//! Owns: the table of those agents, by the name that an agent has in its `agentInfo`, and by the
//! programs that are usually it.
//! Never: says of an agent what it says of itself: its capabilities, its options, its ways to log
//! in.
//!
//! Each row of [`of`] names the version that it was seen in. A newer version that does better gets
//! no row of its own: the row goes.

use std::ffi::OsStr;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentQuirks {
    /// Set when the agent is offered to read files through the host, unless its operator says
    /// otherwise.
    pub reads_through_us: bool,
    /// Set when the paths in links to files must not be percent-encoded: the agent takes them as
    /// they are, or shows them to its model like that.
    pub raw_links: bool,
    /// Set when the agent gives its model an embedded resource that is not text. Others drop it, or
    /// paste its Base64.
    pub takes_blobs: bool,
    /// Set when the agent answers `session/load` before it replays the conversation: all others
    /// replay it first.
    pub replays_late: bool,
    /// A key in the `_meta` of `authenticate` is `"api-key": KEY`, where others expect `"api-key":
    /// {"apiKey": KEY}`.
    pub bare_key: bool,
    /// Ids of modes in which it does not ask the user, besides those that mean so with every agent.
    pub unasked_modes: &'static [&'static str],
    /// When it does not ask the user, whatever its mode is: a sentence for people.
    pub asking: Option<&'static str>,
    /// Beginnings of chunks of its answer that are no words of its model: what it says of the
    /// conversation, each in a chunk of its own and without a line end.
    pub notices: &'static [&'static str],
    /// Ways to log in that `authenticate` does not lead to, although nothing in them says so: they
    /// are for a terminal.
    pub terminal_logins: &'static [&'static str],
    /// Set when the agent reports the end of a turn that it began by itself in a usage update.
    pub ends_own_turns: bool,
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
    };
    /// Quirks of an agent that only needs raw paths in links.
    const RAW_LINKS: Self = Self { raw_links: true, ..Self::NONE };
    // It reads each file before it writes it, and does not understand any answer that says that
    // there is none: it could make no new file.
    const GEMINI: Self =
        Self { reads_through_us: false, replays_late: true, bare_key: true, ..Self::RAW_LINKS };
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
    // A blob in a prompt is in the conversation for good, and each later prompt fails.
    const OPENCODE: Self = Self {
        takes_blobs: false,
        asking: Some(
            "it asks only where its own `opencode.json` says so: \
             \"permission\": {\"edit\": \"ask\", \"bash\": \"ask\"}",
        ),
        terminal_logins: &["opencode-login"],
        ..Self::NONE
    };

    /// Returns whether a chunk of its answer is a notice rather than words of its model.
    pub fn is_notice(&self, chunk: &str) -> bool {
        self.notices.iter().any(|notice| chunk.starts_with(notice))
    }
}

/// Returns the quirks of the agent with this name; [`AgentQuirks::NONE`] if it is unknown.
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

/// Returns the quirks to expect of an agent that is started like this, before it has reported its
/// name, so that it is not started a second time to be offered something else.
pub fn expected(program: &Path, arguments: &[impl AsRef<OsStr>]) -> AgentQuirks {
    let is_gemini = |word: &OsStr| {
        // A package may be named with its version.
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
                AgentQuirks { reads_through_us: false, replays_late: true, bare_key: true, ..raw },
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
        assert!(!opencode.is_notice("Retrying..."));
    }
}
