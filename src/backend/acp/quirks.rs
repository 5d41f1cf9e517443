//! What is known of certain agents that they do not say themselves.
//!
//! Owns: the table of those agents, by the name that an agent has in its `agentInfo`, and by the programs that are
//! usually it.
//! Never: says of an agent what it says of itself: its capabilities, its options, its ways to log in.
//!
//! Each row names the version that it was seen in. A newer version that does better gets no row of its own: the row
//! goes.

use std::ffi::OsStr;
use std::path::Path;

/// What an agent needs that it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quirks {
    /// It is offered to read files through us, unless its operator says otherwise.
    pub reads_through_us: bool,
}

impl Quirks {
    /// Those of an agent that needs nothing special.
    const NONE: Self = Self { reads_through_us: true };
}

struct Known {
    /// What it calls itself.
    name: &'static str,
    /// The version that this was seen in. For the reader.
    #[allow(dead_code)]
    seen_in: &'static str,
    /// The names of its program and of its package, so that it is not started a second time to be told otherwise.
    started_as: &'static [&'static str],
    quirks: Quirks,
}

const KNOWN: [Known; 1] = [Known {
    name: "gemini-cli",
    seen_in: "0.61.0",
    started_as: &["gemini", "@google/gemini-cli"],
    // It reads each file before it writes it, and does not understand any answer that says that there is none: it
    // could make no new file.
    quirks: Quirks { reads_through_us: false },
}];

/// What is known of the agent that calls itself so, if it does.
pub fn of(name: Option<&str>) -> Quirks {
    KNOWN.iter().find(|known| Some(known.name) == name).map_or(Quirks::NONE, |known| known.quirks)
}

/// What can be expected of an agent that is started like this, before it has said what it is.
pub fn expected(program: &Path, arguments: &[impl AsRef<OsStr>]) -> Quirks {
    // A package may be named with its version.
    let package = |word: &'_ OsStr| {
        let word = word.to_str()?;
        let version = word.char_indices().skip(1).find(|(_, character)| *character == '@');
        Some(word[..version.map_or(word.len(), |(at, _)| at)].to_owned())
    };
    let program = program.file_name().and_then(OsStr::to_str).map(str::to_owned);
    let words: Vec<String> =
        program.into_iter().chain(arguments.iter().filter_map(|word| package(word.as_ref()))).collect();
    let is_it = |known: &&Known| known.started_as.iter().any(|name| words.iter().any(|word| word == name));
    KNOWN.iter().find(is_it).map_or(Quirks::NONE, |known| known.quirks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_known_by_their_name_and_expected_by_their_program() {
        let gemini = of(Some("gemini-cli"));
        assert!(!gemini.reads_through_us);
        assert_eq!((of(Some("else")), of(None)), (Quirks::NONE, Quirks::NONE));
        let expected = |program: &str, arguments: &[&str]| expected(Path::new(program), arguments);
        assert_eq!(expected("/usr/bin/gemini", &["--acp"]), gemini);
        assert_eq!(expected("npx", &["-y", "@google/gemini-cli", "--acp"]), gemini);
        assert_eq!(expected("npx", &["@google/gemini-cli@0.61.0", "--acp"]), gemini);
        assert_eq!(expected("wrapper", &["--like", "@"]), Quirks::NONE);
        assert_eq!(expected("/gemini/other", &[]), Quirks::NONE);
    }
}
