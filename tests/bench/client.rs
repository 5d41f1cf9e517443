//! Benchmark client on the other end of the pipes, cheap enough not to distort measurements.
//!
//! Owns: the program as a child, and its lines as slices of one buffer.
//! Never: parses JSON; it looks for the few strings that it needs.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{excerpt, Outcome};

/// The chat of the session `ahp-session:/s`.
pub const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

/// A ping, as a line.
pub const PING: &[u8] = br#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"channel":"ahp-root://"}}
"#;

/// A running program that has answered the handshake.
pub struct Client {
    child: Child,
    /// `None` once the input has been ended.
    stdin: Option<Arc<Mutex<ChildStdin>>>,
    stdout: ChildStdout,
    buffer: Vec<u8>,
    /// Bytes read and not consumed yet.
    unread: Range<usize>,
}

/// Memory use of a process.
pub struct Memory {
    /// Resident pages, in kB.
    pub resident_kb: u64,
    /// Resident pages with shared ones divided among their users, in kB.
    pub proportional_kb: u64,
    /// Pages written and not shared, in kB.
    pub private_kb: u64,
}

impl Client {
    /// Starts the program without a store and shakes hands.
    pub fn open() -> Outcome<Self> {
        Self::start(program(), &["--ephemeral"])
    }

    /// Starts the program with its store in this folder and shakes hands.
    pub fn open_in(folder: &Path) -> Outcome<Self> {
        Self::start(program(), &["--exclusive".as_ref(), "--state-dir".as_ref(), folder.as_os_str()])
    }

    /// Connects through the shared host of the folder, which is started if none runs.
    pub fn join_in(folder: &Path) -> Outcome<Self> {
        Self::start(program(), &["--state-dir".as_ref(), folder.as_os_str()])
    }

    /// Starts the program with these arguments and shakes hands.
    pub fn open_with<const N: usize>(arguments: [&str; N]) -> Outcome<Self> {
        Self::start(program(), &arguments)
    }

    /// Starts the program, as `command` does, with these arguments and shakes hands.
    pub fn start(mut command: Command, arguments: &[impl AsRef<OsStr>]) -> Outcome<Self> {
        let mut child = command
            // Not the agents of whoever measures.
            .args(["--config", "/dev/null"])
            .args(arguments)
            // In its terminals, the plainest of all.
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdin = Some(Arc::new(Mutex::new(stdin.ok_or("no stdin")?)));
        let stdout = stdout.ok_or("no stdout")?;
        let mut client = Self { child, stdin, stdout, buffer: vec![0; 256 << 10], unread: 0..0 };
        client.say(
            br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"bench","protocolVersions":["1.0.0"]}}
"#,
        )?;
        client.line_with(b"protocolVersion")?;
        Ok(client)
    }

    /// Writes bytes.
    pub fn say(&mut self, bytes: &[u8]) -> Outcome<()> {
        let stdin = self.stdin.as_ref().ok_or("the input has been ended")?;
        stdin.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)?;
        Ok(())
    }

    /// Writes bytes while others are read.
    pub fn send_in_background(&mut self, bytes: Vec<u8>) {
        let Some(stdin) = self.stdin.clone() else { return };
        thread::spawn(move || stdin.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes).ok());
    }

    /// The next line.
    pub fn line(&mut self) -> Outcome<&[u8]> {
        let mut scanned = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[self.unread.clone()][scanned..]) {
                let line = self.unread.start..self.unread.start + scanned + end;
                self.unread.start = line.end + 1;
                return Ok(&self.buffer[line]);
            }
            scanned = self.unread.len();
            self.fill()?;
        }
    }

    /// The next line that has this in it; an error when an error is answered before.
    pub fn line_with(&mut self, wanted: &[u8]) -> Outcome<()> {
        let wanted = memchr::memmem::Finder::new(wanted);
        loop {
            let line = self.line()?;
            if wanted.find(line).is_some() {
                return Ok(());
            }
            if memchr::memmem::find(line, b"\"error\":").is_some() {
                return Err(format!("an error was answered: {}", excerpt(line)).into());
            }
        }
    }

    /// All bytes that can be read at once, and at least one.
    pub fn chunk(&mut self) -> Outcome<&[u8]> {
        if self.unread.is_empty() {
            self.fill()?;
        }
        Ok(&self.buffer[self.unread.clone()])
    }

    /// Discards the bytes returned by [`Self::chunk`].
    pub fn forget_chunk(&mut self) {
        self.unread = 0..0;
    }

    fn fill(&mut self) -> Outcome<()> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if self.unread.end == self.buffer.len() {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        match self.stdout.read(&mut self.buffer[self.unread.end..])? {
            0 => Err("the program has ended".into()),
            read => {
                self.unread.end += read;
                Ok(())
            }
        }
    }

    /// Creates the session `ahp-session:/NAME`; returns its chat.
    pub fn create(&mut self, name: &str) -> Outcome<String> {
        self.say(create(name).as_bytes())?;
        self.line_with(b"\"id\":2")?;
        Ok(chat_of(name))
    }

    /// Subscribes to a channel.
    pub fn subscribe(&mut self, channel: &str) -> Outcome<()> {
        self.head(channel).map(|_| ())
    }

    /// Subscribes to a channel (again); returns the last number given.
    pub fn head(&mut self, channel: &str) -> Outcome<u64> {
        self.say(
            format!(
                r#"{{"jsonrpc":"2.0","id":"head","method":"subscribe","params":{{"channel":"{channel}"}}}}
"#
            )
            .as_bytes(),
        )?;
        loop {
            let line = self.line()?;
            if memchr::memmem::find(line, b"\"id\":\"head\"").is_none() {
                continue;
            }
            const BEFORE: &[u8] = b"\"fromSeq\":";
            let at = memchr::memmem::find(line, BEFORE).ok_or_else(|| excerpt(line))? + BEFORE.len();
            let digits: String =
                line[at..].iter().map(|&b| b as char).take_while(char::is_ascii_digit).collect();
            return Ok(digits.parse()?);
        }
    }

    /// Starts a turn in a chat. The script is the inside of a JSON string.
    pub fn start_turn(&mut self, chat: &str, script: &str) -> Outcome<()> {
        self.say(turn(chat, script).as_bytes())
    }

    /// Returns the CPU time of the program so far.
    pub fn processor_time(&self) -> Outcome<Duration> {
        let schedule = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id()))?;
        let nanos: u64 = schedule.split_whitespace().next().ok_or("no such figure")?.parse()?;
        let mut all = Duration::from_nanos(nanos);
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let thread = thread?;
            // The first one is the process, which was counted.
            if thread.file_name().to_string_lossy() != self.child.id().to_string() {
                let schedule = std::fs::read_to_string(thread.path().join("schedstat"))?;
                let nanos = schedule.split_whitespace().next().ok_or("no such figure")?;
                all += Duration::from_nanos(nanos.parse()?);
            }
        }
        Ok(all)
    }

    /// Ends the input and waits until the program has ended.
    pub fn end(mut self) -> Outcome<()> {
        self.stdin = None;
        std::io::copy(&mut self.stdout, &mut std::io::sink())?;
        match self.child.wait()? {
            status if status.success() => Ok(()),
            status => Err(format!("the program has ended with {status}").into()),
        }
    }

    /// Returns the memory use of the program.
    pub fn memory(&mut self) -> Outcome<Memory> {
        memory_of(self.child.id())
    }
}

/// Returns the path of the program that is measured: another build if `BENCH_PROGRAM` names one.
pub fn path() -> PathBuf {
    std::env::var_os("BENCH_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_ahp-sidecar").into(), PathBuf::from)
}

/// Returns the program, to be given its arguments.
pub fn program() -> Command {
    Command::new(path())
}

/// Returns the memory use of a process.
pub fn memory_of(process: u32) -> Outcome<Memory> {
    let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let figure = |name: &str| -> Outcome<u64> {
        let line = rollup.lines().find(|line| line.starts_with(name)).ok_or("no such figure")?;
        Ok(line.split_whitespace().nth(1).ok_or("no such figure")?.parse()?)
    };
    Ok(Memory {
        resident_kb: figure("Rss:")?,
        proportional_kb: figure("Pss:")?,
        private_kb: figure("Private_Dirty:")?,
    })
}

impl Drop for Client {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The line that creates the session `ahp-session:/NAME`.
pub fn create(name: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"createSession","params":{{"channel":"ahp-session:/{name}"}}}}
"#
    )
}

/// The line that starts a turn in a chat. The script is the inside of a JSON string.
pub fn turn(chat: &str, script: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"dispatchAction","params":{{"channel":"{chat}","clientSeq":1,"action":{{"type":"chat/turnStarted","turnId":"turn-1","startedAt":"2026-01-01T00:00:00.000Z","message":{{"text":"{script}","origin":{{"kind":"user"}}}}}}}}}}
"#
    )
}

/// The chat that a session begins with.
pub fn chat_of(name: &str) -> String {
    use base64::Engine;
    let uri = format!("ahp-session:/{name}");
    format!("ahp-chat://default/{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(uri))
}

/// Knows the lines of one part's deltas by what they begin with.
#[derive(Default)]
pub struct DeltaLines {
    head: Option<Vec<u8>>,
}

impl DeltaLines {
    /// Returns the bytes of text in this line; `None` for other lines.
    pub fn text(&mut self, line: &[u8]) -> Option<usize> {
        const BEFORE: &[u8] = b"\"content\":\"";
        if self.head.is_none() {
            memchr::memmem::find(line, b"\"chat/delta\"")?;
            let start = memchr::memmem::find(line, BEFORE)? + BEFORE.len();
            self.head = Some(line[..start].to_vec());
        }
        let text = line.strip_prefix(self.head.as_deref()?)?;
        // The digits that are streamed hold no quote.
        memchr::memchr(b'"', text)
    }
}
