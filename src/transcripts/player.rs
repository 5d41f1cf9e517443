//! Plays a transcript: says the client's lines to a host, and takes what comes.
//!
//! Owns: when each line is said, and how long the host is waited for.
//! Never: decides whether a line is the expected one.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{json, Value};

use super::comparison::TranscriptComparison;
use super::differences::Difference;
use super::early::{begins_with_ready, parsed_if, EarlySubscription};
use super::folders::PlayFolders;
use super::form::{TranscriptFile, TranscriptLine};
use super::names::{numbered_names, NameTable};
use super::naming::Naming;
use super::placeholders::Placeholders;
use super::process::{HostOutput, PlayedHost};
use super::HostFailure;
use crate::os::process::{GuardProgram, BY_SIGNAL};
use crate::os::{paths, private};
use crate::status::EXIT_NO_HOST;

/// Maximum time without a line of the host, while lines are awaited that may need the next line of
/// the client.
const SILENCE: Duration = Duration::from_secs(1);

/// Requirements of a transcript on its host.
#[derive(Debug)]
pub struct HostNeeds<'a> {
    /// Additional arguments.
    pub arguments: &'a [String],
    /// State folder, which all hosts of the transcript share; `None` if sessions need not outlive
    /// the process.
    pub state: Option<PathBuf>,
    /// Configuration file; `None` if the transcript has none.
    pub configuration: Option<PathBuf>,
}

/// Function that returns the command that starts a host.
pub type HostStarter<'a> = dyn Fn(&HostNeeds) -> anyhow::Result<Command> + 'a;

/// Conditions under which a transcript is played.
#[derive(Debug)]
pub struct PlayConditions<'a> {
    /// Maximum time for what follows from the lines that the client says at once.
    pub limit: Duration,
    /// True if expected lines may come after the answer to a later request; false for a host that
    /// handles one input at a time.
    pub waits: bool,
    /// Values of names.
    pub given: &'a [(String, String)],
    /// Starter of the guards that end hosts with all that they have started.
    pub guards: &'a GuardProgram,
    /// Failure of a host that ends with [`EXIT_NO_HOST`], where it connects to another one.
    pub unreachable: Option<HostFailure>,
}

/// Conversation that was held.
#[derive(Debug)]
pub struct Played {
    /// Transcript as it would be written now.
    pub text: String,
    /// Differences from the transcript.
    pub differences: Vec<Difference>,
}

impl Played {
    /// Returns whether the whole transcript was played.
    pub fn is_whole(&self) -> bool {
        !self.differences.iter().any(|difference| matches!(difference, Difference::Stopped { .. }))
    }
}

/// End of a conversation before the end of its transcript.
enum Halt {
    /// The host cannot be started, or a folder cannot be created.
    Failed(anyhow::Error),
    /// The conversation cannot go on; the reason is a sentence.
    Stopped(String),
}

/// Plays a transcript to a host.
///
/// # Errors
/// When the host cannot be started, or a folder of the transcript cannot be created.
pub fn play(
    transcript: &TranscriptFile,
    start: &HostStarter,
    conditions: &PlayConditions,
) -> anyhow::Result<Played> {
    let folders = PlayFolders::create()?;
    let folder = transcript.has_folder().then(|| folders.path.join("folder"));
    if let Some(folder) = &folder {
        private::create_folder(folder).context("the folder of the transcript cannot be created")?;
    }
    if transcript.has(&TranscriptLine::Repository) {
        folders.create_repository().context("the repository of the transcript cannot be created")?;
    }
    if let Some(text) = transcript.configuration() {
        folders.configure(text)?;
    }
    let mut naming = Naming::default();
    let mut names = transcript.has(&TranscriptLine::Names).then(NameTable::default);
    if let Some(names) = &mut names {
        let texts = transcript.lines.iter().map(TranscriptLine::to_string);
        texts.for_each(|text| numbered_names(&text).for_each(|name| naming.reserve(&name)));
        conditions.given.iter().for_each(|(name, value)| names.set(name, value.as_str().into()));
    }
    let any_pace = transcript.has(&TranscriptLine::AnyPace);
    let player = Player {
        transcript,
        start,
        conditions,
        placeholders: Placeholders::new(folder.as_deref().map(paths::to_uri)),
        folders,
        comparison: TranscriptComparison::new(names, naming, any_pace),
        any_pace,
        host: None,
        syncs: 0,
        early: None,
        number: 0,
    };
    player.play()
}

struct Player<'a> {
    transcript: &'a TranscriptFile,
    start: &'a HostStarter<'a>,
    conditions: &'a PlayConditions<'a>,
    placeholders: Placeholders,
    folders: PlayFolders,
    comparison: TranscriptComparison,
    any_pace: bool,
    /// Host that runs now; `None` when it has ended and its exit status is known.
    host: Option<PlayedHost>,
    /// Number of requests sent that the transcript does not have.
    syncs: usize,
    /// Subscription whose recorded request is not answered yet.
    early: Option<EarlySubscription>,
    /// Number of the current line.
    number: usize,
}

impl Player<'_> {
    fn play(mut self) -> anyhow::Result<Played> {
        let halted = self.converse();
        self.comparison.finish();
        match halted {
            Err(Halt::Failed(error)) => return Err(error),
            Err(Halt::Stopped(why)) => {
                self.comparison.differences.push(Difference::Stopped { line: self.number, why });
            }
            Ok(()) => {}
        }
        let text = self.text();
        Ok(Played { text, differences: self.comparison.differences })
    }

    fn converse(&mut self) -> Result<(), Halt> {
        let lines = &self.transcript.lines;
        self.start_host()?;
        let (mut said, mut ended) = (String::new(), false);
        for (at, line) in lines.iter().enumerate() {
            if line.is_host() {
                continue;
            }
            self.number = at + 1;
            let next = lines[at + 1..].iter().find(|line| !line.is_note() && !line.is_host());
            let expects = !line.is_note() && self.expect_following(at);
            match line {
                TranscriptLine::Say(line) => {
                    let line = self.filled(line)?;
                    self.await_ready_session(at, &line)?;
                    said += &line;
                    said.push('\n');
                    let is_last = !self.is_said(at + 1);
                    // Lines in a row are one write, so that no timer expires between them.
                    if is_last || self.any_pace {
                        self.await_lines_before_echo(at);
                        self.say(std::mem::take(&mut said).into_bytes())?;
                    }
                    if !is_last {
                        continue;
                    }
                }
                TranscriptLine::SayRaw(bytes) => {
                    let bytes = self.filled_bytes(bytes)?;
                    self.say(bytes)?;
                }
                TranscriptLine::SayRepeat(count, bytes) => self.say(bytes.repeat(*count))?,
                TranscriptLine::Config(text) => {
                    self.folders.configure(text).map_err(Halt::Failed)?;
                    continue;
                }
                TranscriptLine::Until(text) => self.read_until(text)?,
                TranscriptLine::End => {
                    self.end();
                    self.read_rest()?;
                    ended = true;
                }
                TranscriptLine::Kill => {
                    self.kill_host();
                    ended = true;
                }
                TranscriptLine::Start => {
                    self.expect_success(self.number - 1)?;
                    self.start_host()?;
                    ended = false;
                    continue;
                }
                TranscriptLine::Exit(expected) => self.compare_exit(*expected)?,
                _ => continue,
            }
            // What follows may come before the line that is waited for, or with the rest.
            let is_read_later = match (line, next) {
                (TranscriptLine::Until(_), Some(TranscriptLine::Until(_) | TranscriptLine::End)) => true,
                (_, Some(TranscriptLine::Until(_))) => !expects,
                _ => false,
            };
            if !(ended || line.leaves_line_open() || is_read_later) {
                self.sync()?;
            }
        }
        self.number = lines.len();
        if !ended {
            self.end_conversation()?;
        }
        self.expect_success(self.number)
    }

    /// Ends a host whose end the transcript does not have. Its last lines are written down if no
    /// line expects them.
    fn end_conversation(&mut self) -> Result<(), Halt> {
        self.end();
        let (known, place) = (self.comparison.unexpected(), self.added().len());
        self.read_rest()?;
        if self.comparison.unexpected() > known {
            let end = TranscriptLine::End.to_string();
            self.added().insert(place, end);
        }
        Ok(())
    }

    /// Kills the host, and takes what it had sent.
    fn kill_host(&mut self) {
        if let Some(mut host) = self.host.take() {
            host.kill();
            while let HostOutput::Line(line) = host.next_line(self.deadline()) {
                self.receive(line);
            }
        }
        self.comparison.settle();
    }

    /// Compares the exit status of the host.
    fn compare_exit(&mut self, expected: i32) -> Result<(), Halt> {
        let (line, received) = (self.number, self.exit_status()?);
        if !is_status(expected, received) {
            self.comparison.rewritten.insert(line, TranscriptLine::Exit(received).to_string());
            self.comparison.differences.push(Difference::Exit { line, expected, received });
        }
        Ok(())
    }

    /// Expects the host's lines that follow a line, up to one that is no note.
    fn expect_after(&mut self, at: usize) -> bool {
        let later = self.transcript.lines.iter().enumerate().skip(at + 1);
        let mut expects = false;
        for (at, line) in later.take_while(|(_, line)| line.is_host() || line.is_note()) {
            if let TranscriptLine::Host(text) = line {
                self.comparison.expect(at + 1, text);
                expects = true;
            }
        }
        expects
    }

    /// Expects the host's lines that follow a line.
    ///
    /// At any pace, those that follow several lines of the client are expected from the first of
    /// these on.
    fn expect_following(&mut self, at: usize) -> bool {
        if !(self.any_pace && self.is_said(at)) {
            return self.expect_after(at);
        }
        let is_first = !at.checked_sub(1).is_some_and(|before| self.is_said(before));
        let last = (at..).take_while(|at| self.is_said(*at)).last().unwrap_or(at);
        is_first && self.expect_after(last)
    }

    /// Returns whether a line exists, and is said by the client.
    fn is_said(&self, at: usize) -> bool {
        matches!(self.transcript.lines.get(at), Some(TranscriptLine::Say(_)))
    }

    /// Waits for the lines that a host sent before it handled an action of the client.
    ///
    /// Such lines stand between the action and its echo, since both crossed, and a host that is
    /// sent the action earlier may handle it earlier. A few may be effects of the action, so the
    /// wait ends when the host is silent.
    fn await_lines_before_echo(&mut self, at: usize) {
        let lines = &self.transcript.lines;
        let TranscriptLine::Say(action) = &lines[at] else { return };
        let Some(origin) = dispatched(action).filter(|_| self.any_pace) else { return };
        let later = lines.iter().enumerate().skip(at + 1).skip_while(|(at, _)| self.is_said(*at));
        let mut before = later.take_while(|(_, line)| line.is_host() || line.is_note());
        let Some((echo, _)) = before.find(|(_, line)| match line {
            TranscriptLine::Host(text) => echoed(text).as_ref() == Some(&origin),
            _ => false,
        }) else {
            return;
        };
        while self.comparison.is_waiting_before(echo + 1) {
            let Some(host) = &mut self.host else { break };
            match host.next_line(Instant::now() + SILENCE) {
                HostOutput::Line(line) => self.receive(line),
                HostOutput::End | HostOutput::Late => break,
            }
        }
    }

    /// Waits until a session is ready, if it was ready when the recorded client subscribed to it.
    ///
    /// No line shows that to a client before it subscribes, so the session is subscribed to early.
    fn await_ready_session(&mut self, at: usize, line: &str) -> Result<(), Halt> {
        if !(self.any_pace && begins_with_ready(&self.transcript.lines, at)) {
            return Ok(());
        }
        let Ok(mut request) = serde_json::from_str::<Value>(line) else { return Ok(()) };
        let early = EarlySubscription::new(request["params"]["channel"].take(), request["id"].take());
        let (id, deadline) = (self.next_sync(), self.deadline());
        let subscribe = json!({
            "jsonrpc": "2.0", "id": id, "method": "subscribe", "params": { "channel": early.channel() }
        });
        self.early = Some(early);
        let answer = self.ask(&id, &format!("{subscribe}\n"), deadline)?;
        if let Some(early) = &mut self.early {
            early.begin(&answer);
        }
        while self.early.as_ref().is_some_and(EarlySubscription::is_creating) {
            match self.next_line(deadline)? {
                Some(line) => self.receive(line),
                None => return Err(self.host_has_ended()),
            }
        }
        Ok(())
    }

    fn added(&mut self) -> &mut Vec<String> {
        self.comparison.added.entry(self.number).or_default()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.conditions.limit
    }

    fn start_host(&mut self) -> Result<(), Halt> {
        let keeps_state = self.transcript.has(&TranscriptLine::State);
        let needs = HostNeeds {
            arguments: self.transcript.arguments(),
            state: keeps_state.then(|| self.folders.path.join("state")),
            configuration: self.transcript.configuration().map(|_| self.folders.configuration()),
        };
        let start = || {
            let mut command = (self.start)(&needs)?;
            if self.transcript.has(&TranscriptLine::Repository) {
                command.envs(self.folders.git_environment());
            }
            PlayedHost::start(&command, Some(self.conditions.guards), true)
        };
        self.host = Some(start().map_err(Halt::Failed)?);
        Ok(())
    }

    /// Returns a line of the client with values in place of names and placeholders.
    fn filled(&mut self, line: &str) -> Result<String, Halt> {
        let line = self.placeholders.fill(line);
        let Some(names) = &mut self.comparison.names else { return Ok(line) };
        let filled = names.fill(&line, &self.folders.path).map_err(|why| Halt::Stopped(why.to_string()))?;
        self.comparison.note_said(&filled);
        Ok(filled)
    }

    /// Returns bytes of the client with values in place of names.
    fn filled_bytes(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Halt> {
        let Some(names) = &mut self.comparison.names else { return Ok(bytes.to_vec()) };
        let filled = names.fill_bytes(bytes, &self.folders.path);
        let filled = filled.map_err(|why| Halt::Stopped(why.to_string()))?;
        self.comparison.note_said(&String::from_utf8_lossy(&filled));
        Ok(filled)
    }

    fn say(&mut self, bytes: Vec<u8>) -> Result<(), Halt> {
        match &self.host {
            Some(host) if host.say(bytes) => Ok(()),
            _ => Err(self.host_has_ended()),
        }
    }

    fn end(&mut self) {
        if let Some(host) = &mut self.host {
            host.end();
        }
    }

    fn receive(&mut self, line: String) {
        if self.early.as_mut().is_some_and(|early| early.covers(&line)) {
            return;
        }
        if self.early.as_ref().is_some_and(|early| early.is_answered_by(&line)) {
            self.early = None;
        }
        let line = self.placeholders.put_in(line);
        self.comparison.receive(self.number, line);
    }

    /// Returns the next line of the host; `None` if its output has ended.
    fn next_line(&mut self, deadline: Instant) -> Result<Option<String>, Halt> {
        let Some(host) = &mut self.host else { return Ok(None) };
        match host.next_line(deadline) {
            HostOutput::Line(line) => Ok(Some(line)),
            HostOutput::End => Ok(None),
            HostOutput::Late => Err(Halt::Stopped(format!(
                "the host has not sent what follows within {} s",
                self.conditions.limit.as_secs_f32()
            ))),
        }
    }

    /// Reads all that follows from what was said.
    fn sync(&mut self) -> Result<(), Halt> {
        let deadline = self.deadline();
        if !self.any_pace {
            self.read_to_pong(deadline)?;
        }
        while self.comparison.is_waiting() && (self.any_pace || self.conditions.waits) {
            match self.next_line(deadline)? {
                Some(line) => self.receive(line),
                None => return Err(self.host_has_ended()),
            }
        }
        self.comparison.settle();
        Ok(())
    }

    /// Sends a ping, and reads up to its answer.
    fn read_to_pong(&mut self, deadline: Instant) -> Result<(), Halt> {
        let id = self.next_sync();
        let ping = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"ping\"}}\n");
        self.ask(&id, &ping, deadline).map(drop)
    }

    /// Returns the id of a request that the transcript does not have.
    fn next_sync(&mut self) -> String {
        self.syncs += 1;
        format!("sync-{}", self.syncs)
    }

    /// Sends lines that are not written down, and reads up to the answer to the request with this
    /// id, which is returned.
    fn ask(&mut self, id: &str, lines: &str, deadline: Instant) -> Result<Value, Halt> {
        self.say(lines.as_bytes().to_vec())?;
        while let Some(line) = self.next_line(deadline)? {
            match answer_to(&line, id) {
                Some(answer) => return Ok(answer),
                None => self.receive(line),
            }
        }
        Err(self.host_has_ended())
    }

    fn read_until(&mut self, text: &str) -> Result<(), Halt> {
        let deadline = self.deadline();
        // At any pace, the line may have come before; it is waited for as an expected one.
        while !self.any_pace {
            let Some(line) = self.next_line(deadline)? else { return Err(self.host_has_ended()) };
            let found = line.contains(text);
            self.receive(line);
            if found {
                break;
            }
        }
        Ok(())
    }

    fn read_rest(&mut self) -> Result<(), Halt> {
        let deadline = self.deadline();
        while let Some(line) = self.next_line(deadline)? {
            self.receive(line);
        }
        self.comparison.settle();
        Ok(())
    }

    /// Returns the exit status of the host, -1 for a signal.
    fn exit_status(&mut self) -> Result<i32, Halt> {
        let deadline = self.deadline();
        let Some(mut host) = self.host.take() else { return Ok(0) };
        let limit = self.conditions.limit.as_secs_f32();
        let status = host.wait(deadline).map_err(Halt::Failed)?;
        let status = status.ok_or_else(|| {
            Halt::Stopped(format!("the host has not exited within {limit} s of the end of its output"))
        })?;
        self.expect_reached(status)?;
        Ok(status.code().unwrap_or(-1))
    }

    /// Fails for the status of a process that could not connect to its host.
    fn expect_reached(&self, status: ExitStatus) -> Result<(), Halt> {
        match &self.conditions.unreachable {
            Some(failure) if status.code() == Some(i32::from(EXIT_NO_HOST)) => {
                Err(Halt::Failed(failure.clone().into()))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the host to end with status 0, unless its status is known already. Another status
    /// is written after this line.
    fn expect_success(&mut self, after: usize) -> Result<(), Halt> {
        let received = self.exit_status()?;
        if received != 0 {
            let text = TranscriptLine::Exit(received).to_string();
            self.comparison.added.entry(after).or_default().push(text);
            let line = self.number;
            self.comparison.differences.push(Difference::Exit { line, expected: 0, received });
        }
        Ok(())
    }

    /// Returns the reason of a conversation that the host has ended.
    fn host_has_ended(&mut self) -> Halt {
        let deadline = self.deadline();
        let status = self.host.take().map(|mut host| host.wait(deadline));
        match status {
            Some(Ok(Some(status))) => match self.expect_reached(status) {
                Ok(()) => Halt::Stopped(format!("the host has ended early ({status})")),
                Err(unreached) => unreached,
            },
            Some(Err(error)) => Halt::Failed(error),
            _ => Halt::Stopped("the host has closed its output".to_owned()),
        }
    }

    /// Returns the transcript as it would be written now.
    fn text(&self) -> String {
        let mut text = String::new();
        let mut write = |line: &str| {
            text += line;
            text.push('\n');
        };
        for (at, line) in self.transcript.lines.iter().enumerate() {
            match self.comparison.rewritten.get(&(at + 1)) {
                Some(rewritten) => write(rewritten),
                None if line.is_host() => {}
                None => write(&line.to_string()),
            }
            for added in self.comparison.added.get(&(at + 1)).into_iter().flatten() {
                write(added);
            }
        }
        text
    }
}

/// Returns the channel and number of the action that a line dispatches.
fn dispatched(line: &str) -> Option<(Value, Value)> {
    let mut message: Value = serde_json::from_str(line).ok()?;
    let params = (message["method"] == "dispatchAction").then(|| message["params"].take())?;
    Some((params["channel"].clone(), params["clientSeq"].clone()))
}

/// Returns the channel and number of the client's action that a line echoes or rejects.
fn echoed(line: &str) -> Option<(Value, Value)> {
    let mut message: Value = serde_json::from_str(line).ok()?;
    let params = (message["method"] == "action").then(|| message["params"].take())?;
    let number = params.get("origin")?.get("clientSeq")?;
    Some((params["channel"].clone(), number.clone()))
}

/// Returns whether an exit status is the expected one. A guard reports a signal as shells do.
fn is_status(expected: i32, received: i32) -> bool {
    const BY_SIGNALS: std::ops::RangeInclusive<i32> = BY_SIGNAL + 1..=BY_SIGNAL + 64;
    expected == received || expected == -1 && BY_SIGNALS.contains(&received)
}

/// Returns the message of a line that answers the request with this id.
fn answer_to(line: &str, id: &str) -> Option<Value> {
    let message = parsed_if(line, id)?;
    (message["id"] == id && message.get("method").is_none()).then_some(message)
}
