//! Form of a transcript: the lines that a file has, and which line may follow which.
//!
//! `README.md` in this folder describes each of them.
//!
//! Owns: reading and writing these lines; what is wrong with a file.
//! Never: runs anything.

use std::fmt;

use anyhow::{bail, ensure, Context};

/// Maximum size of the bytes that one `@ say-repeat` sends.
const REPEATED_BYTES_MAX: usize = 1 << 30;

/// Line of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TranscriptLine {
    /// Remark, or a blank line.
    Note(String),
    /// Message of the client.
    Say(String),
    /// Message of the host.
    Host(String),
    /// Additional arguments of the host.
    Run(Vec<String>),
    /// All hosts of the transcript share a state folder.
    State,
    /// The transcript has a folder of its own.
    Folder,
    /// The folder is a git repository.
    Repository,
    /// Content of the configuration file in the folder, for the next host.
    Config(Vec<u8>),
    /// Names stand for values that differ from run to run.
    Names,
    /// Only the order of answers and of each channel is fixed.
    AnyPace,
    /// The host is killed.
    Kill,
    /// Another host is started.
    Start,
    /// The host sends a line that contains this text.
    Until(String),
    /// The host's stdin ends.
    End,
    /// Exit status of the host.
    Exit(i32),
    /// Bytes of the client.
    SayRaw(Vec<u8>),
    /// Bytes of the client, this many times.
    SayRepeat(usize, Vec<u8>),
}

/// Lines of a transcript; index `n` has line `n + 1` of the file.
#[derive(Debug, Clone)]
pub struct TranscriptFile {
    /// Lines of the file, in their order.
    pub lines: Vec<TranscriptLine>,
}

impl TranscriptFile {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// When a line has no meaning, or not at its place.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        ensure!(text.ends_with('\n'), "the last line has no end");
        let lines = text.lines().enumerate();
        let lines =
            lines.map(|(at, line)| TranscriptLine::parse(line).with_context(|| format!("line {}", at + 1)));
        let lines = lines.collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(text.starts_with("# "), "the first line must be a `# ` note that says what must hold");
        Self::of_lines(lines)
    }

    /// Creates a transcript of lines.
    ///
    /// # Errors
    /// When a line is not at its place.
    pub fn of_lines(lines: Vec<TranscriptLine>) -> anyhow::Result<Self> {
        let mut later = lines.iter().skip_while(|line| line.is_note() || line.sets_up());
        if let Some(line) = later.find(|line| line.sets_up()) {
            bail!("`{line}` comes before anything is said");
        }
        let runs = lines.iter().filter(|line| matches!(line, TranscriptLine::Run(_))).count();
        ensure!(runs <= 1, "`@ run` comes once");
        // Of the host that runs at this line.
        let (mut ended, mut exited) = (false, false);
        for (at, line) in lines.iter().enumerate() {
            let number = at + 1;
            ensure!(!(ended && line.needs_input()), "line {number}: stdin has ended before `{line}`");
            match line {
                TranscriptLine::End => ended = true,
                TranscriptLine::Kill => (ended, exited) = (true, true),
                TranscriptLine::Start => {
                    ensure!(ended, "line {number}: `@ start` needs an `@ kill` or `@ end` before it");
                    (ended, exited) = (false, false);
                }
                TranscriptLine::Exit(_) => {
                    ensure!(ended && !exited, "line {number}: `@ exit` needs an `@ end` before it");
                    exited = true;
                }
                _ => {}
            }
        }
        Ok(Self { lines })
    }

    /// Returns whether the transcript has this line.
    pub fn has(&self, line: &TranscriptLine) -> bool {
        self.lines.contains(line)
    }

    /// Returns whether the transcript has a folder of its own.
    pub fn has_folder(&self) -> bool {
        self.has(&TranscriptLine::Folder)
            || self.has(&TranscriptLine::Repository)
            || self.configuration().is_some()
    }

    /// Returns the content of the configuration file of the first host.
    pub fn configuration(&self) -> Option<&[u8]> {
        self.lines.iter().find_map(|line| match line {
            TranscriptLine::Config(text) => Some(text.as_slice()),
            _ => None,
        })
    }

    /// Returns the additional arguments of the host.
    pub fn arguments(&self) -> &[String] {
        let run = self.lines.iter().find_map(|line| match line {
            TranscriptLine::Run(arguments) => Some(arguments.as_slice()),
            _ => None,
        });
        run.unwrap_or_default()
    }
}

impl fmt::Display for TranscriptFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(formatter, "{line}"))
    }
}

impl TranscriptLine {
    fn parse(line: &str) -> anyhow::Result<Self> {
        if line.is_empty() || line.starts_with("# ") || line == "#" {
            return Ok(Self::Note(line.to_owned()));
        }
        if let Some(said) = line.strip_prefix("> ") {
            return Ok(Self::Say(said.to_owned()));
        }
        if let Some(received) = line.strip_prefix("< ") {
            return Ok(Self::Host(received.to_owned()));
        }
        let Some(directive) = line.strip_prefix("@ ") else {
            bail!("neither a note nor `> `, `< ` or `@ `: {line}");
        };
        let (name, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        let alone = match name {
            "state" => Some(Self::State),
            "folder" => Some(Self::Folder),
            "repository" => Some(Self::Repository),
            "names" => Some(Self::Names),
            "any-pace" => Some(Self::AnyPace),
            "kill" => Some(Self::Kill),
            "start" => Some(Self::Start),
            "end" => Some(Self::End),
            _ => None,
        };
        if let Some(line) = alone {
            ensure!(rest.is_empty(), "`@ {name}` takes no argument");
            return Ok(line);
        }
        match name {
            "run" => Ok(Self::Run(rest.split_whitespace().map(str::to_owned).collect())),
            "config" => Ok(Self::Config(unescape(rest)?)),
            "until" if !rest.is_empty() => Ok(Self::Until(rest.to_owned())),
            "exit" => Ok(Self::Exit(rest.parse().with_context(|| format!("no exit status: `{rest}`"))?)),
            "say-raw" => Ok(Self::SayRaw(unescape(rest)?)),
            "say-repeat" => {
                let (count, text) = rest.split_once(' ').unwrap_or((rest, ""));
                let count: usize = count.parse().with_context(|| format!("no count: `{count}`"))?;
                let bytes = unescape(text)?;
                let size = count.checked_mul(bytes.len()).filter(|size| *size <= REPEATED_BYTES_MAX);
                ensure!(size.is_some(), "`@ say-repeat` sends at most {REPEATED_BYTES_MAX} bytes");
                Ok(Self::SayRepeat(count, bytes))
            }
            _ => bail!("unknown directive: {line}"),
        }
    }

    /// Returns whether the line is a message of the host.
    pub fn is_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Returns whether the line is a remark, or blank.
    pub fn is_note(&self) -> bool {
        matches!(self, Self::Note(_))
    }

    /// Returns whether the line describes how the transcript is played.
    pub fn sets_up(&self) -> bool {
        matches!(
            self,
            Self::Run(_) | Self::State | Self::Folder | Self::Repository | Self::Names | Self::AnyPace
        )
    }

    /// Returns whether the line is possible only while stdin is open.
    fn needs_input(&self) -> bool {
        !matches!(self, Self::Note(_) | Self::Exit(_) | Self::Host(_) | Self::Start | Self::Config(_))
    }

    /// Returns whether the line leaves an unfinished message, which only another one can continue.
    pub fn leaves_line_open(&self) -> bool {
        match self {
            Self::SayRaw(bytes) | Self::SayRepeat(_, bytes) => !bytes.ends_with(b"\n"),
            _ => false,
        }
    }
}

impl fmt::Display for TranscriptLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(text) => formatter.write_str(text),
            Self::Say(line) => write!(formatter, "> {line}"),
            Self::Host(line) => write!(formatter, "< {line}"),
            Self::Run(arguments) => write!(formatter, "@ run {}", arguments.join(" ")),
            Self::State => formatter.write_str("@ state"),
            Self::Folder => formatter.write_str("@ folder"),
            Self::Repository => formatter.write_str("@ repository"),
            Self::Config(text) => write!(formatter, "@ config {}", escape(text)),
            Self::Names => formatter.write_str("@ names"),
            Self::AnyPace => formatter.write_str("@ any-pace"),
            Self::Kill => formatter.write_str("@ kill"),
            Self::Start => formatter.write_str("@ start"),
            Self::Until(text) => write!(formatter, "@ until {text}"),
            Self::End => formatter.write_str("@ end"),
            Self::Exit(status) => write!(formatter, "@ exit {status}"),
            Self::SayRaw(bytes) => write!(formatter, "@ say-raw {}", escape(bytes)),
            Self::SayRepeat(count, bytes) => write!(formatter, "@ say-repeat {count} {}", escape(bytes)),
        }
    }
}

fn unescape(text: &str) -> anyhow::Result<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let length = match after.as_bytes().first() {
            Some(b'n') => (bytes.push(b'\n'), 1).1,
            Some(b'r') => (bytes.push(b'\r'), 1).1,
            Some(b'\\') => (bytes.push(b'\\'), 1).1,
            Some(b'x') => {
                let digits = after.get(1..3).context("`\\x` needs two digits")?;
                bytes
                    .push(u8::from_str_radix(digits, 16).with_context(|| format!("no byte: `\\x{digits}`"))?);
                3
            }
            _ => bail!("unknown escape: `\\{after}`"),
        };
        rest = &after[length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcript_round_trips_through_parse_and_display() {
        let text =
            "# a note\n\n@ run --on-eof exit\n@ state\n@ names\n@ any-pace\n> x\n< y\n@ kill\n@ start\n\
                    @ until a b\n@ say-raw a\\\\\\xff\\r\\n\n@ say-repeat 3 z\n@ end\n@ exit 4\n";
        assert_eq!(TranscriptFile::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn invalid_transcript_is_refused() {
        for text in [
            "",
            "< no note\n",
            "# note\n< y",
            "# note\n@ nothing-like-this\n< y\n",
            "# note\n@ end now\n< y\n",
            "# note\n> x\n@ run --late\n< y\n",
            "# note\n> x\n@ state\n< y\n",
            "# note\n@ run a\n@ run b\n> x\n< y\n",
            "# note\n<y\n",
            "# note\n@ say-raw \\q\n< y\n",
            "# note\n@ say-raw \\x\u{e4}\n< y\n",
            "# note\n@ say-repeat 18446744073709551615 ab\n< y\n",
            "# note\n@ end\n> x\n",
            "# note\n> x\n@ start\n",
            "# note\n> x\n@ exit 0\n",
            "# note\n@ kill\n@ exit 0\n",
        ] {
            assert!(TranscriptFile::parse(text).is_err(), "{text}");
        }
    }
}
