//! The built-in agent `script`: the user's message is its program, one step per line.
//!
//! Owns: the language of the steps (see the table in the chapter) and its interpreter.
//! Never: needs a model, a network, or a clock other than the timers that a script requests.

mod clients;
mod files;
mod own_turns;
mod servers;
mod steps;
mod terminals;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentCapabilities, AgentInfo, ChatInputAnswer, ChatInputResponseKind, Message, MultipleChatsCapability,
    MultipleWorkingDirectoriesCapability, ResponsePart, SessionConfigPropertySchema, SessionConfigSchema,
    ToolCallResult,
};
use anyhow::bail;
use serde_json::Value;

use clients::names_of;
pub use clients::GuardedScript;

use super::{Backend, HostLine, ReportSender, RunningConversation};
use crate::host::effects::{
    AgentCommand, AgentDescription, Command, Event, OpenConversation, OpenFailure, RunId, TextKind, Tokens,
    Transcript, TurnEnd, TurnEvent,
};
use crate::state::history::CompletedTurn;
use own_turns::LaterSteps;
use steps::{chosen_by, Gate};

/// Provider id of the agent.
pub const PROVIDER: &str = "script";

const DELTA_BYTES_MAX: usize = 1 << 20;

/// Number of characters per streamed piece of a tool call's input.
const INPUT_PIECE_CHARS: usize = 16;

/// Setting that decides whether tool calls ask for permission, and its values.
const PERMISSIONS: &str = "permissionPolicy";
const ASK: &str = "ask";
const ALLOW: &str = "allow";

/// Steps, offered as commands: name, argument hint, description.
const STEPS: &[(&str, &str, &str)] = &[
    ("say", "TEXT", "Says TEXT"),
    ("stream", "COUNT SIZE [DELAY_MS]", "Streams COUNT deltas of SIZE bytes"),
    ("think", "TEXT", "Thinks TEXT"),
    ("notice", "TEXT", "Shows TEXT as a system notice"),
    ("activity", "TEXT", "Sets the activity"),
    ("tool", "NAME [JSON]", "Calls a tool that needs no permission"),
    ("ask", "NAME [JSON]", "Calls a tool that asks first"),
    ("review", "NAME [JSON]", "Calls a tool whose result must be confirmed"),
    ("fail", "NAME TEXT", "Calls a tool that fails with TEXT"),
    ("terminal", "TEXT", "Shows a terminal with TEXT"),
    ("pty", "COMMAND", "Runs COMMAND in a terminal"),
    ("canvas", "TITLE [URL]", "Shows the page at URL, or closes it"),
    ("files", "NAME=TEXT ...", "Writes files in the first working directory"),
    ("question", "JSON", "Asks the user, and prints the answers"),
    ("model", "", "Prints the model and agent that the message selected"),
    ("usage", "INPUT OUTPUT", "Reports token usage"),
    ("title", "TEXT", "Names the session"),
    ("error", "TEXT", "Ends the turn with an error"),
    ("error-resumable", "TEXT", "Ends the turn with an error, after which it can be resumed"),
    ("later", "MS STEP", "Runs STEP MS milliseconds after the end of the turn, in a turn of its own"),
    ("sleep", "MS", "Waits"),
    ("hang", "", "Does nothing until it is cancelled"),
    ("die", "", "Dies without ending the turn"),
];

/// Backend of the script agent.
#[derive(Debug, Default)]
pub struct Script;

async fn converse(open: OpenConversation, line: HostLine, resource: Option<String>) -> anyhow::Result<()> {
    let Some(mut agent) = ScriptAgent::open(open, line, resource).await else { return Ok(()) };
    agent.serve().await
}

impl Backend for Script {
    fn describe(&self) -> AgentDescription {
        let property = |kind: &str, title: &str, description: &str| SessionConfigPropertySchema {
            r#type: kind.to_owned(),
            title: title.to_owned(),
            description: Some(description.to_owned()),
            default: None,
            r#enum: None,
            enum_labels: None,
            enum_descriptions: None,
            read_only: None,
            items: None,
            min_items: None,
            max_items: None,
            properties: None,
            required: None,
            additional_properties: None,
            enum_dynamic: None,
            session_mutable: None,
        };
        let permissions = SessionConfigPropertySchema {
            default: Some(ASK.into()),
            r#enum: Some(vec![ASK.into(), ALLOW.into()]),
            enum_labels: Some(vec!["Ask".to_owned(), "Allow".to_owned()]),
            enum_descriptions: Some(vec![
                "/ask waits for the user".to_owned(),
                "/ask goes on at once".to_owned(),
            ]),
            session_mutable: Some(true),
            ..property("string", "Permissions", "What becomes of a tool call that asks first")
        };
        AgentDescription {
            info: AgentInfo {
                provider: PROVIDER.to_owned(),
                display_name: "Script".to_owned(),
                description: "Runs the message as a script of steps; for tests and demonstrations".to_owned(),
                models: Vec::new(),
                protected_resources: None,
                customizations: None,
                capabilities: Some(AgentCapabilities {
                    multiple_chats: Some(MultipleChatsCapability { fork: Some(true), side_chat: Some(true) }),
                    // Clients that do not know `primaryReplacement` leave the first directory
                    // unchanged.
                    multiple_working_directories: Some(MultipleWorkingDirectoriesCapability {
                        immutable_primary: Some(true),
                        primary_replacement: Some(true),
                    }),
                }),
            },
            config: SessionConfigSchema {
                r#type: "object".to_owned(),
                properties: HashMap::from([
                    (
                        "openMs".to_owned(),
                        property("integer", "Opening time", "Opens after so many milliseconds"),
                    ),
                    ("fail".to_owned(), property("string", "Failure", "Fails to open, saying this")),
                    (PERMISSIONS.to_owned(), permissions),
                ]),
                required: None,
            },
            commands: STEPS
                .iter()
                .map(|&(name, hint, description)| AgentCommand {
                    name: name.to_owned(),
                    description: description.to_owned(),
                    argument_hint: (!hint.is_empty()).then(|| hint.to_owned()),
                })
                .collect(),
            resumes: true,
            steers: true,
            adopts: Some(false),
            may_have_more_settings: false,
            identity: String::new(),
        }
    }

    fn converse(&self, open: OpenConversation, line: HostLine) -> RunningConversation {
        Box::pin(converse(open, line, None))
    }
}

/// Reason for which a script stops before its next step.
enum Stop {
    /// Cancellation of the turn.
    Cancelled,
    /// End of the conversation.
    Closed,
    /// The agent ends without reporting the end of the turn.
    Died,
    /// Failure of the turn.
    Failed { message: String, resumable: bool },
}

impl Stop {
    fn mistake(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), resumable: false }
    }
}

#[derive(PartialEq)]
enum Remembered {
    Text(String),
    /// Earlier turn, whose message is read on demand.
    Turn(CompletedTurn),
}

impl Remembered {
    fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Turn(turn) => Some(turn.message()?.text),
        }
    }
}

struct ScriptAgent {
    line: HostLine,
    /// Resource that the agent needs a token for; `None` if it needs none.
    resource: Option<String>,
    tokens: Tokens,
    working_directories: Vec<String>,
    client_tools: Vec<String>,
    /// Report on MCP servers for which there was no room.
    servers_due: Option<Event>,
    /// Tools that the user has permanently allowed.
    allowed: HashSet<String>,
    /// Messages and attachments so far, oldest first; `/recall` repeats them.
    memory: Vec<Remembered>,
    /// Set when the configuration allows all tools.
    allows_all: bool,
    terminals: u64,
    own_turns: LaterSteps,
    /// Turn that runs, or that failed and may be resumed.
    turn: Turn,
}

struct Turn {
    run: RunId,
    /// Model and agent that the message chose, as `/model` shows them.
    chosen: String,
    done: usize,
    /// Number of completed steps that were reported to the host.
    reported: usize,
    /// Number of tool calls and questions so far, used to make their ids.
    calls: usize,
    /// Unrepeated messages that the user added during the turn, with their ids.
    steering: VecDeque<(String, Message)>,
    /// Unprocessed answers to calls and questions, by the ids of these.
    replies: Vec<(String, ScriptReply)>,
}

impl Turn {
    fn new(run: RunId) -> Self {
        Self {
            run,
            chosen: String::new(),
            done: 0,
            reported: 0,
            calls: 0,
            steering: VecDeque::new(),
            replies: Vec::new(),
        }
    }

    /// Returns a turn that continues after the last completed step.
    fn resumed(run: RunId, so_far: &[ResponsePart], progress: Option<u64>) -> Self {
        let is_call =
            |part: &&ResponsePart| matches!(part, ResponsePart::ToolCall(_) | ResponsePart::InputRequest(_));
        let done = progress.and_then(|done| usize::try_from(done).ok()).unwrap_or(0);
        Self { done, calls: so_far.iter().filter(is_call).count(), ..Self::new(run) }
    }
}

enum ScriptReply {
    Permission { option: Option<String>, approved: bool },
    Reviewed,
    ToolResult(ToolCallResult),
    Answers { response: ChatInputResponseKind, answers: BTreeMap<String, ChatInputAnswer> },
}

impl ScriptAgent {
    /// Opens the conversation as configured; `None` if that fails or the conversation is closed.
    async fn open(open: OpenConversation, mut line: HostLine, resource: Option<String>) -> Option<Self> {
        let config = &open.config;
        let open_ms = match config.get("openMs").map(|asked| asked.as_u64().ok_or(asked)) {
            None => 0,
            Some(Ok(open_ms)) => open_ms,
            Some(Err(asked)) => {
                let reason = format!("`config.openMs` must be a whole number of milliseconds, not {asked}");
                return refuse(&line.reports, reason).await;
            }
        };
        let mut changed = None;
        if open_ms > 0 {
            for (done, until) in [(0, open_ms / 2), (open_ms / 2, open_ms)] {
                let message = Some("Opening".to_owned());
                line.reports.report(Event::Opening { done, total: Some(open_ms), message }).await;
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(until - done)) => {}
                    () = async {
                        while let Some(command) = line.commands.recv().await {
                            if let Command::Configure { all: config, .. } = command {
                                changed = Some(config);
                            }
                        }
                    } => return None,
                }
            }
        }
        if let Some(reason) = config.get("fail").and_then(Value::as_str) {
            return refuse(&line.reports, reason.to_owned()).await;
        }
        if let Some(resource) = resource.as_ref().filter(|resource| !open.tokens.contains_key(*resource)) {
            return refuse(&line.reports, format!("there is no token for `{resource}`")).await;
        }
        if !line.servers.is_empty() {
            let servers = line.servers.iter().map(|server| server.id()).collect();
            line.reports.report(servers::given(servers)).await;
        }
        line.reports.report(Event::Opened).await;
        let about = open.selection.map(|text| format!("about: {text}"));
        let history = open.history.into_iter().enumerate().flat_map(|(position, turn)| {
            let attached = open.attached.get(&position).into_iter().flatten().map(attached_text);
            attached.map(Remembered::Text).chain([Remembered::Turn(turn)]).collect::<Vec<_>>()
        });
        let memory = about.map(Remembered::Text).into_iter().chain(history).collect();
        let (allowed, turn) = (HashSet::new(), Turn::new(RunId(0)));
        let OpenConversation { config, working_directories, tokens, client_tools, .. } = open;
        let (allows_all, client_tools) = (false, names_of(&client_tools));
        let mut agent = Self {
            line,
            resource,
            tokens,
            working_directories,
            client_tools,
            allowed,
            memory,
            allows_all,
            servers_due: None,
            terminals: 0,
            own_turns: LaterSteps::default(),
            turn,
        };
        agent.configure(changed.as_ref().unwrap_or(&config));
        Some(agent)
    }

    fn configure(&mut self, config: &JsonObject) {
        self.allows_all = config.get(PERMISSIONS).and_then(Value::as_str) == Some(ALLOW);
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        while let Some(command) = self.next_command().await {
            let (message, resumes) = match command {
                Command::OwnTurn { run } => {
                    if !self.run_own(run).await? {
                        return Ok(());
                    }
                    continue;
                }
                Command::StartTurn { run, message, attached } => {
                    self.turn = Turn::new(run);
                    self.memory.extend(attached.iter().map(attached_text).map(Remembered::Text));
                    (message, false)
                }
                Command::ResumeTurn { run, message, attached, so_far, progress } => {
                    self.turn = Turn::resumed(run, &so_far, progress);
                    for text in attached.iter().map(attached_text).map(Remembered::Text) {
                        if !self.memory.contains(&text) {
                            self.memory.push(text);
                        }
                    }
                    (message, true)
                }
                // Another command has arrived after its turn had ended.
                command => {
                    self.apply(command);
                    continue;
                }
            };
            self.turn.chosen = chosen_by(&message);
            self.own_turns.another_has_begun();
            if !self.run_to_end(&message.text).await? {
                return Ok(());
            }
            // A resumed turn is one turn, so its message is remembered once.
            let is_known = || self.memory.last().and_then(Remembered::text).as_ref() == Some(&message.text);
            if !(resumes && is_known()) {
                self.memory.push(Remembered::Text(message.text));
            }
        }
        Ok(())
    }

    /// Runs a turn and reports its end. Returns whether the conversation continues.
    async fn run_to_end(&mut self, program: &str) -> anyhow::Result<bool> {
        let end = match self.run(program).await {
            Ok(()) => TurnEnd::Complete,
            Err(Stop::Cancelled) => TurnEnd::Cancelled,
            Err(Stop::Failed { message, resumable }) => {
                TurnEnd::Failed { kind: "scriptError".to_owned(), message, resumable }
            }
            Err(Stop::Closed) => return Ok(false),
            Err(Stop::Died) => bail!("the script agent died without ending the turn"),
        };
        self.line.reports.report(Event::Turn(self.turn.run, TurnEvent::Ended(end))).await;
        self.own_turns.turn_has_ended();
        Ok(true)
    }

    async fn run(&mut self, program: &str) -> Result<(), Stop> {
        for step in program.lines().skip(self.turn.done) {
            let outcome = self.step(step.trim_end_matches('\r')).await;
            // A failed step is complete too: a resumed turn continues after it.
            if matches!(outcome, Ok(()) | Err(Stop::Failed { .. })) {
                self.turn.done += 1;
                if self.turn.reported < self.turn.done {
                    self.report_turn(TurnEvent::Progress(self.turn.done as u64)).await?;
                }
            }
            outcome?;
        }
        self.echo_steering().await
    }

    async fn step(&mut self, step: &str) -> Result<(), Stop> {
        self.echo_steering().await?;
        if !step.starts_with('/') {
            return self.stream_words(step).await;
        }
        let (name, rest) = step.split_once(' ').map_or((step, ""), |(name, rest)| (name, rest.trim()));
        match name {
            "/say" => self.finish(TurnEvent::Part(TextKind::Markdown, rest.to_owned())).await,
            "/think" => self.finish(TurnEvent::Part(TextKind::Reasoning, rest.to_owned())).await,
            "/stream" => self.stream(rest).await,
            "/recall" => {
                let all: Vec<String> = self.memory.iter().filter_map(Remembered::text).collect();
                self.finish(TurnEvent::Part(TextKind::Markdown, all.join("\n"))).await
            }
            "/notice" => self.finish(TurnEvent::Notice(rest.to_owned())).await,
            "/activity" => {
                self.report_turn(TurnEvent::Activity((!rest.is_empty()).then(|| rest.to_owned()))).await
            }
            "/tool" if self.is_clients(rest) => self.call_client(rest).await,
            "/tool" => self.call(rest, Gate::None, false).await,
            "/ask" => self.call(rest, Gate::Ask, false).await,
            "/review" => self.call(rest, Gate::None, true).await,
            "/fail" => self.fail_call(rest).await,
            "/terminal" => self.show_terminal(rest).await,
            "/pty" => self.run_in_terminal(rest).await,
            "/canvas" => self.show_canvas(rest).await,
            "/files" => self.write_files(rest).await,
            "/where" => {
                let directories = self.working_directories.join("\n");
                self.finish(TurnEvent::Part(TextKind::Markdown, directories)).await
            }
            "/token" => self.show_token().await,
            "/token-refused" => self.refuse_token().await,
            "/client" => self.call_client(rest).await,
            "/question" => self.question(rest).await,
            "/mcp" => self.show_server(rest).await,
            "/model" => self.finish(TurnEvent::Part(TextKind::Markdown, self.turn.chosen.clone())).await,
            "/usage" => self.usage(rest).await,
            "/title" => self.report(Event::Title(rest.to_owned())).await,
            "/error" => Err(Stop::mistake(rest)),
            "/error-resumable" => Err(Stop::Failed { message: rest.to_owned(), resumable: true }),
            "/later" => self.do_later(rest),
            "/sleep" => self.sleep(number("/sleep", rest)?).await,
            "/hang" => self.hang().await,
            "/die" => Err(Stop::Died),
            unknown => Err(Stop::mistake(format!(
                "there is no step `{unknown}`; `ahp-sidecar help script` lists the steps"
            ))),
        }
    }

    async fn reply_about(&mut self, id: &str) -> Result<ScriptReply, Stop> {
        loop {
            // The answer may have arrived while a steering message was repeated.
            if let Some(at) = self.turn.replies.iter().position(|(about, _)| about == id) {
                return Ok(self.turn.replies.swap_remove(at).1);
            }
            let command = self.line.commands.recv().await;
            self.obey(command)?;
            self.echo_steering().await?;
        }
    }

    /// Applies a command at once, but queues an answer to a call or question.
    fn obey(&mut self, command: Option<Command>) -> Result<(), Stop> {
        let current = self.turn.run;
        match command {
            None | Some(Command::Close) => Err(Stop::Closed),
            Some(Command::Cancel { run }) if run == current => Err(Stop::Cancelled),
            Some(Command::Steer { run, id, message, attached }) if run == current => {
                self.memory.extend(attached.iter().map(attached_text).map(Remembered::Text));
                self.turn.steering.push_back((id, message));
                Ok(())
            }
            Some(Command::Permission { run, tool_call_id, option, approved }) if run == current => {
                self.turn.replies.push((tool_call_id, ScriptReply::Permission { option, approved }));
                Ok(())
            }
            Some(Command::ResultConfirmed { run, tool_call_id, .. }) if run == current => {
                self.turn.replies.push((tool_call_id, ScriptReply::Reviewed));
                Ok(())
            }
            Some(Command::ToolResult { run, tool_call_id, result }) if run == current => {
                self.turn.replies.push((tool_call_id, ScriptReply::ToolResult(result)));
                Ok(())
            }
            Some(Command::Answer { run, request_id, response, answers }) if run == current => {
                self.turn.replies.push((request_id, ScriptReply::Answers { response, answers }));
                Ok(())
            }
            Some(command) => {
                self.apply(command);
                Ok(())
            }
        }
    }

    /// Applies a command that concerns no turn; ignores others.
    fn apply(&mut self, command: Command) {
        match command {
            Command::Configure { all: config, .. } => self.configure(&config),
            Command::ClientTools { tools } => self.client_tools = names_of(&tools),
            Command::Tokens(tokens) => self.tokens = tokens,
            Command::WorkIn { directories } => self.working_directories = directories,
            Command::McpServers { servers, .. } => self.take_servers(servers),
            command => tracing::debug!(?command, "a command of the host was ignored: its turn is over"),
        }
    }

    /// Returns the id of the turn's next call.
    fn next_call(&mut self) -> String {
        self.turn.calls += 1;
        format!("call-{}", self.turn.calls)
    }

    async fn echo_steering(&mut self) -> Result<(), Stop> {
        while let Ok(command) = self.line.commands.try_recv() {
            self.obey(Some(command))?;
        }
        while let Some((id, message)) = self.turn.steering.pop_front() {
            self.report_turn(TurnEvent::Part(TextKind::Markdown, message.text)).await?;
            self.report_turn(TurnEvent::Steered(id)).await?;
        }
        Ok(())
    }

    async fn report_turn(&mut self, event: TurnEvent) -> Result<(), Stop> {
        self.report(Event::Turn(self.turn.run, event)).await
    }

    /// Sends the last event of a step, which marks the step as complete.
    async fn finish(&mut self, event: TurnEvent) -> Result<(), Stop> {
        self.turn.reported = self.turn.done + 1;
        self.report_turn(TurnEvent::Last(Box::new(event), self.turn.reported as u64)).await
    }

    /// Sends a report as soon as there is room, and applies commands while it waits.
    async fn report(&mut self, event: Event) -> Result<(), Stop> {
        if let Some(due) = self.servers_due.take() {
            Box::pin(self.report(due)).await?;
        }
        if self.line.commands.is_empty() && !self.line.commands.is_closed() {
            if let Some(room) = self.line.reports.try_reserve() {
                room.report(event);
                return Ok(());
            }
        }
        let reports = self.line.reports.clone();
        loop {
            tokio::select! {
                biased;
                command = self.line.commands.recv() => { self.obey(command)?; }
                room = reports.reserve() => {
                    room.ok_or(Stop::Closed)?.report(event);
                    return Ok(());
                }
            }
        }
    }
}

/// Reports that the conversation cannot be opened.
async fn refuse(reports: &ReportSender, reason: String) -> Option<ScriptAgent> {
    reports.report(Event::OpenFailed { kind: OpenFailure::Unavailable, reason }).await;
    None
}

fn number<T: std::str::FromStr>(what: &str, word: &str) -> Result<T, Stop> {
    word.parse().map_err(|_| Stop::mistake(format!("{what}: `{word}` is not a number that fits")))
}

/// Returns an attached transcript as the agent remembers it.
fn attached_text(transcript: &Transcript) -> String {
    format!("attached {}:\n{}", transcript.label, transcript.text.trim_end())
}
