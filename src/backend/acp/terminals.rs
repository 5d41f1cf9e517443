//! The terminals of a conversation: `terminal/create`, `output`, `wait_for_exit`, `kill` and
//! `release`.
//!
//! In reading order: this file (open terminals and pending requests), `command` (processes),
//! `screen` (output and state), `feed` (unsent output).
//!
//! Owns: requests that wait for a command to start or end, and ending commands: those of a
//! cancelled turn, and all with the conversation.
//! Never: answers the agent, or decides whether a command may run: the agent itself asks the user.

pub mod command;
pub mod feed;
pub mod screen;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{CreateTerminalRequest, EnvVariable, ToolCallContent};
use serde_json::{json, Value};
use tokio::time::{sleep_until, Instant};
use tokio_util::sync::DropGuard;

pub use self::command::{Commands, Launch};
use self::screen::{CommandExit, CommandStage, Screen, ScreenChanges};
use super::errors::RequestError;
use super::peer::AgentRequest;
use crate::host::effects::{Event, RunId};

/// Maximum number of unreleased terminals of a conversation.
const TERMINALS_MAX: usize = 64;

/// Note to the agent after the output of a command that continues in the background.
const GOES_ON: &str = "\n(The user has moved the command to the background.)\n";

/// Interval between updates of a running command's output in its call, as text.
const SHOW_EVERY: Duration = Duration::from_millis(250);

/// Interval between updates to the subscribers of a terminal.
const TELL_EVERY: Duration = Duration::from_millis(30);

/// Terminals of a conversation; dropping them ends their commands.
#[derive(Debug)]
pub struct Terminals {
    /// Working directory of commands that specify none.
    directory: PathBuf,
    open: BTreeMap<String, AgentTerminal>,
    waiting: Vec<(AgentRequest, Arc<Screen>, Wait)>,
    /// Background commands whose terminals are released.
    background: Vec<(Arc<Screen>, DropGuard)>,
    changes: Arc<ScreenChanges>,
    /// Time when new output was last sent.
    sent_at: Option<Instant>,
    /// Time when calls were last updated with their terminals' output.
    shown: Option<Instant>,
    /// Set while calls lack output that was sent since.
    is_to_be_shown: bool,
}

#[derive(Debug)]
struct AgentTerminal {
    screen: Arc<Screen>,
    /// Keeps the command running; `None` once it was killed.
    held: Option<DropGuard>,
    run: RunId,
    /// Set when the user wants the command to continue after its call, its turn and its terminal.
    in_background: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Wait {
    /// Start of the command, in the terminal of this name.
    Start(String),
    /// End of the command; answered with its exit status.
    Ending,
    /// End of the command; answered without its exit status.
    End,
}

/// Answer to a request; `None` if it is answered later.
pub type Answered = Result<Option<Value>, RequestError>;

impl Terminals {
    /// Creates an empty set. `directory` is the working directory of commands that specify none.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            open: BTreeMap::new(),
            waiting: Vec::new(),
            background: Vec::new(),
            changes: Arc::default(),
            sent_at: None,
            shown: None,
            is_to_be_shown: false,
        }
    }

    pub fn work_in(&mut self, directory: PathBuf) {
        self.directory = directory;
    }

    /// Converts a `terminal/create` to a command. Errors if a word or variable is invalid.
    pub fn launch(&self, create: CreateTerminalRequest, commands: &Commands) -> Result<Launch, RequestError> {
        let is_variable = |it: &EnvVariable| {
            !it.name.is_empty() && !it.name.contains(['=', '\0']) && !it.value.contains('\0')
        };
        if let Some(variable) = create.env.iter().find(|variable| !is_variable(variable)) {
            return Err(RequestError::NoVariable(variable.name.clone()));
        }
        if std::iter::once(&create.command).chain(&create.args).any(|word| word.contains('\0')) {
            return Err(RequestError::Nul);
        }
        let directory = create.cwd.clone().unwrap_or_else(|| self.directory.clone());
        Ok(Launch { directory, search_path: commands.search_path(&create.env), create })
    }

    /// Starts a command in a new terminal. The request is answered once the command has started.
    pub fn start(
        &mut self,
        request: &AgentRequest,
        launch: &Launch,
        run: RunId,
        commands: &Commands,
    ) -> Result<(String, Arc<Screen>), RequestError> {
        self.open.retain(|_, terminal| !matches!(terminal.screen.stage(), CommandStage::Failed(_)));
        if self.open.len() >= TERMINALS_MAX {
            return Err(RequestError::TooManyTerminals(TERMINALS_MAX));
        }
        let (name, changes) = (commands.next_name(), Arc::clone(&self.changes));
        let screen =
            Arc::new(Screen::new(name.clone(), launch.title(), launch.create.output_byte_limit, changes));
        let held = commands
            .start(launch, Arc::clone(&screen))
            .map_err(|error| RequestError::StartFailed { program: launch.create.command.clone(), error })?;
        let terminal =
            AgentTerminal { screen: Arc::clone(&screen), held: Some(held), run, in_background: false };
        self.open.insert(name.clone(), terminal);
        self.waiting.push((request.clone(), Arc::clone(&screen), Wait::Start(name.clone())));
        Ok((name, screen))
    }

    pub fn output(&self, name: &str) -> Answered {
        let AgentTerminal { screen, in_background, .. } = self.get(name)?;
        let (mut output, truncated) = screen.output();
        if *in_background && screen.ending().is_none() {
            output.push_str(GOES_ON);
        }
        let mut answer = json!({ "output": output, "truncated": truncated });
        if let Some(ending) = screen.ending() {
            answer["exitStatus"] = ending.to_json();
        }
        Ok(Some(answer))
    }

    /// Queues `terminal/wait_for_exit`: answered when the command ends or moves to the background.
    pub fn wait_for_exit(&mut self, request: &AgentRequest, name: &str) -> Answered {
        let screen = Arc::clone(&self.get(name)?.screen);
        self.waiting.push((request.clone(), screen, Wait::Ending));
        Ok(None)
    }

    /// Kills the command; answered when it has ended.
    pub fn kill(&mut self, request: &AgentRequest, name: &str) -> Answered {
        let terminal = self.open.get_mut(name).ok_or_else(|| unknown(name))?;
        terminal.held = None;
        self.waiting.push((request.clone(), Arc::clone(&terminal.screen), Wait::End));
        Ok(None)
    }

    /// Kills the command and releases its terminal; answered when the command has ended. A
    /// background command continues, and the answer is immediate.
    pub fn release(&mut self, request: &AgentRequest, name: &str) -> Answered {
        let AgentTerminal { screen, held, in_background, .. } =
            self.open.remove(name).ok_or_else(|| unknown(name))?;
        screen.is_released.store(true, Ordering::Relaxed);
        match held {
            Some(held) if in_background => {
                self.background.push((screen, held));
                return Ok(Some(json!({})));
            }
            held => drop(held),
        }
        self.waiting.push((request.clone(), screen, Wait::End));
        Ok(None)
    }

    /// Lets a command continue in the background, as the user asked.
    pub fn let_go_on(&mut self, name: &str) {
        if let Some(terminal) = self.open.get_mut(name) {
            terminal.in_background = true;
        }
    }

    /// Kills the commands of a turn, except background commands. Their terminals stay open.
    pub fn kill_those_of(&mut self, run: RunId) {
        let of_it = self.open.values_mut().filter(|terminal| terminal.run == run && !terminal.in_background);
        of_it.for_each(|terminal| terminal.held = None);
    }

    /// Drops a withdrawn request. The agent never learns the name of a terminal whose
    /// `terminal/create` it has withdrawn, so that terminal's command ends.
    pub fn withdrawn(&mut self, request: &AgentRequest) {
        for (_, screen, wait) in self.waiting.extract_if(.., |(waiting, ..)| waiting == request) {
            if let Wait::Start(name) = wait {
                screen.is_released.store(true, Ordering::Relaxed);
                self.open.remove(&name);
            }
        }
    }

    /// Returns whether no terminal, command or request is open and all output was sent.
    pub fn are_quiet(&self) -> bool {
        let has_no_news = !self.changes.output.load(Ordering::Acquire) && !self.is_to_be_shown;
        self.open.is_empty() && self.waiting.is_empty() && self.background.is_empty() && has_no_news
    }

    /// Waits until [`Terminals::answers`] may have answers. Cancel safe.
    pub async fn settled(&self) {
        self.changes.wait_for(&self.changes.settled).await;
    }

    /// Returns the answers to requests that are no longer pending.
    pub fn answers(&mut self) -> Vec<(AgentRequest, Result<Value, RequestError>)> {
        self.changes.settled.store(false, Ordering::Release);
        self.background.retain(|(screen, _)| screen.ending().is_none());
        let mut answers = Vec::new();
        let goes_on = |screen: &Screen| self.open.get(&screen.name).is_some_and(|it| it.in_background);
        self.waiting.retain(|(request, screen, wait)| {
            let answer = match (screen.stage(), wait) {
                (CommandStage::Running, Wait::Ending) if goes_on(screen) => {
                    Ok(CommandExit { status: None, signal: None }.to_json())
                }
                (CommandStage::Starting, _) | (CommandStage::Running, Wait::Ending | Wait::End) => {
                    return true
                }
                (CommandStage::Failed(_), Wait::End) | (CommandStage::Ended(_), Wait::End) => Ok(json!({})),
                (CommandStage::Failed(why), _) => {
                    Err(RequestError::NotStarted { title: screen.title.clone(), why })
                }
                (_, Wait::Start(name)) => Ok(json!({ "terminalId": name })),
                (CommandStage::Ended(ending), Wait::Ending) => Ok(ending.to_json()),
            };
            answers.push((request.clone(), answer));
            false
        });
        answers
    }

    /// Waits until new output is due to be sent. Cancel safe.
    pub async fn due(&self) {
        let news = async {
            self.changes.wait_for(&self.changes.output).await;
            if let Some(sent_at) = self.sent_at {
                sleep_until(sent_at + TELL_EVERY).await;
            }
        };
        match self.shown.filter(|_| self.is_to_be_shown) {
            Some(shown) => tokio::select! {
                () = news => {}
                () = sleep_until(shown + SHOW_EVERY) => {}
            },
            None => news.await,
        }
    }

    /// Records that new output is sent now; returns whether calls are due for an update too.
    pub fn mark_sent(&mut self) -> bool {
        self.changes.output.store(false, Ordering::Release);
        let now = Instant::now();
        self.sent_at = Some(now);
        let is_due = self.shown.is_none_or(|shown| now >= shown + SHOW_EVERY);
        if is_due {
            self.shown = Some(now);
        }
        self.is_to_be_shown = !is_due;
        is_due
    }

    fn get(&self, name: &str) -> Result<&AgentTerminal, RequestError> {
        self.open.get(name).ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> RequestError {
    RequestError::NoTerminal(name.to_owned())
}

/// Screens of a conversation's commands, by terminal name, until their turn has ended and they are
/// released.
#[derive(Debug, Default)]
pub struct Screens(BTreeMap<String, Arc<Screen>>);

impl Screens {
    pub fn add(&mut self, name: String, screen: Arc<Screen>) {
        self.0.insert(name, screen);
    }

    /// Returns the screens that a tool call refers to, and marks them as shown.
    pub fn in_content(&self, content: &[ToolCallContent]) -> Vec<Arc<Screen>> {
        let named = content.iter().filter_map(|content| match content {
            ToolCallContent::Terminal(terminal) => self.0.get(&*terminal.terminal_id.0).cloned(),
            _ => None,
        });
        named.inspect(|screen| screen.is_shown.store(true, Ordering::Relaxed)).collect()
    }

    /// Returns the unsent events of shown screens; of those with very much output only if `due`.
    pub fn take_unsent(&self, due: bool) -> Vec<Event> {
        self.0.values().flat_map(|screen| screen.take_unsent(due)).collect()
    }

    /// Evicts, at the end of a turn, the released screens that no open terminal shows.
    pub fn end_turn(&mut self) {
        self.0.retain(|_, screen| !screen.is_released.load(Ordering::Relaxed) || screen.is_followed());
    }
}
