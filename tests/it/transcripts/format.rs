//! How a transcript is written.
//!
//! | line | what it is |
//! | --- | --- |
//! | `# TEXT`, or blank | a note; the first line is one, and says what must hold |
//! | `> LINE` | the client says LINE |
//! | `< LINE` | the host says LINE |
//! | `@ run ARGUMENT ...` | more arguments for the program; before anything is said |
//! | `@ state` | all programs here share a fresh state folder; before anything is said |
//! | `@ folder` | there is a fresh folder, whose URI stands as `file:///FOLDER`: see below |
//! | `@ repository` | a folder that is a repository of git with `a` committed; git is found |
//! | `@ kill` | the program is killed, when all that follows from what was said has been read |
//! | `@ start` | another program begins, with the same arguments; after `@ kill` or `@ end` |
//! | `@ until TEXT` | waits for a line with TEXT in it, where a real timer is at work |
//! | `@ end` | the client's side ends; what follows is all that comes up to the end |
//! | `@ exit STATUS` | the exit status, 0 when nothing is written |
//! | `@ say-raw TEXT` | the client says TEXT, ended by `\n`; `\r`, `\\` and `\xNN` are bytes |
//! | `@ say-repeat COUNT TEXT` | the same, COUNT times |
//!
//! With a folder, `ETAG` stands for the last token of a file, `TIME` for a time of one, and
//! `ahp-resource-watch:/WATCH` for the last channel of a watch.
//!
//! Owns: reading and writing these lines.
//! Never: runs anything.

use std::fmt;

/// A line of a transcript.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Comment(String),
    Say(String),
    Host(String),
    Run(Vec<String>),
    State,
    Folder,
    Repository,
    Kill,
    Start,
    Until(String),
    End,
    Exit(i32),
    SayRaw(Vec<u8>),
    SayRepeat(usize, Vec<u8>),
}

/// A whole transcript; step `n` is line `n + 1`.
#[derive(Debug)]
pub struct Transcript {
    pub steps: Vec<Step>,
}

impl Transcript {
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.ends_with('\n') {
            return Err("the last line has no end".to_owned());
        }
        let mut steps = Vec::new();
        for (number, line) in text.lines().enumerate() {
            steps.push(Step::parse(line).map_err(|why| format!("line {}: {why}", number + 1))?);
        }
        if !text.starts_with("# ") {
            return Err("the first line must be a `# ` note that says what must hold".to_owned());
        }
        let sets_up =
            |step: &&Step| matches!(step, Step::Run(_) | Step::State | Step::Folder | Step::Repository);
        let mut later = steps.iter().skip_while(|step| step.is_comment() || sets_up(step));
        if later.any(|step| sets_up(&step)) {
            return Err("`@ run`, `@ state`, `@ folder` and `@ repository` come first".to_owned());
        }
        if steps.iter().filter(|step| matches!(step, Step::Run(_))).count() > 1 {
            return Err("`@ run` comes once".to_owned());
        }
        Ok(Self { steps })
    }

    /// Tells whether the transcript contains output of the host.
    pub fn shows_something(&self) -> bool {
        self.steps.iter().any(Step::is_host)
    }

    /// Tells whether the programs of the transcript share a state folder.
    pub fn keeps_state(&self) -> bool {
        self.steps.contains(&Step::State)
    }

    /// Tells whether the transcript has a folder of its own.
    pub fn has_folder(&self) -> bool {
        self.steps.contains(&Step::Folder) || self.has_repository()
    }

    /// Tells whether the folder of the transcript is a repository.
    pub fn has_repository(&self) -> bool {
        self.steps.contains(&Step::Repository)
    }

    /// Returns the additional arguments of the program.
    pub fn arguments(&self) -> &[String] {
        let run = self.steps.iter().find_map(|step| match step {
            Step::Run(arguments) => Some(arguments.as_slice()),
            _ => None,
        });
        run.unwrap_or_default()
    }
}

impl Step {
    fn parse(line: &str) -> Result<Self, String> {
        if line.is_empty() || line.starts_with("# ") || line == "#" {
            return Ok(Self::Comment(line.to_owned()));
        }
        if let Some(said) = line.strip_prefix("> ") {
            return Ok(Self::Say(said.to_owned()));
        }
        if let Some(heard) = line.strip_prefix("< ") {
            return Ok(Self::Host(heard.to_owned()));
        }
        let Some(directive) = line.strip_prefix("@ ") else {
            return Err(format!("neither a note nor `> `, `< ` or `@ `: {line}"));
        };
        let (name, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        let no_rest =
            |step| if rest.is_empty() { Ok(step) } else { Err(format!("`@ {name}` takes nothing")) };
        match name {
            "run" => Ok(Self::Run(rest.split_whitespace().map(str::to_owned).collect())),
            "state" => no_rest(Self::State),
            "folder" => no_rest(Self::Folder),
            "repository" => no_rest(Self::Repository),
            "kill" => no_rest(Self::Kill),
            "start" => no_rest(Self::Start),
            "until" if !rest.is_empty() => Ok(Self::Until(rest.to_owned())),
            "end" => no_rest(Self::End),
            "exit" => Ok(Self::Exit(rest.parse().map_err(|_| format!("no exit status: `{rest}`"))?)),
            "say-raw" => Ok(Self::SayRaw(unescape(rest)?)),
            "say-repeat" => {
                let (count, text) = rest.split_once(' ').unwrap_or((rest, ""));
                let count = count.parse().map_err(|_| format!("no count: `{count}`"))?;
                Ok(Self::SayRepeat(count, unescape(text)?))
            }
            _ => Err(format!("unknown directive: {line}")),
        }
    }

    pub fn is_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    pub fn is_comment(&self) -> bool {
        matches!(self, Self::Comment(_))
    }

    /// Tells whether the step is possible only while stdin is open.
    pub fn needs_input(&self) -> bool {
        !matches!(self, Self::Comment(_) | Self::Exit(_) | Self::Host(_) | Self::Start)
    }

    /// Tells whether the step leaves an unfinished line, which only another raw step can continue.
    pub fn leaves_line_open(&self) -> bool {
        match self {
            Self::SayRaw(bytes) | Self::SayRepeat(_, bytes) => !bytes.ends_with(b"\n"),
            _ => false,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comment(text) => formatter.write_str(text),
            Self::Say(line) => write!(formatter, "> {line}"),
            Self::Host(line) => write!(formatter, "< {line}"),
            Self::Run(arguments) => write!(formatter, "@ run {}", arguments.join(" ")),
            Self::State => formatter.write_str("@ state"),
            Self::Folder => formatter.write_str("@ folder"),
            Self::Repository => formatter.write_str("@ repository"),
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

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let length = match after.as_bytes().first() {
            Some(b'n') => (bytes.push(b'\n'), 1).1,
            Some(b'r') => (bytes.push(b'\r'), 1).1,
            Some(b'\\') => (bytes.push(b'\\'), 1).1,
            Some(b'x') => {
                let digits = after.get(1..3).ok_or("`\\x` needs two digits")?;
                bytes.push(u8::from_str_radix(digits, 16).map_err(|_| format!("no byte: `\\x{digits}`"))?);
                3
            }
            _ => return Err(format!("unknown escape: `\\{after}`")),
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

#[test]
fn transcript_round_trips_through_parse_and_display() {
    let text = "# a note\n\n@ run --on-eof exit\n@ state\n> x\n< y\n@ kill\n@ start\n@ until a b\n@ say-raw a\\\\\\xff\\r\\n\n\
                @ say-repeat 3 z\n@ end\n@ exit 4\n";
    let transcript = Transcript::parse(text).unwrap();
    let again: String = transcript.steps.iter().map(|step| format!("{step}\n")).collect();
    assert_eq!(again, text);
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
    ] {
        assert!(Transcript::parse(text).is_err(), "{text}");
    }
}
