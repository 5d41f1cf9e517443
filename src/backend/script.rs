//! The built-in agent `script`: the user's message is its program, one step a line.
//!
//! Owns: the language of the steps (see the table in the README) and running it.
//! Never: needs a model, a network, or a clock other than the timers that a script asks for.

mod clients;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentCapabilities, AgentInfo, ChatInputAnswer, ChatInputAnswerValue, ChatInputQuestion,
    ChatInputResponseKind, Message, MultipleChatsCapability, MultipleWorkingDirectoriesCapability,
    ResponsePart, SessionConfigPropertySchema, SessionConfigSchema, ToolCallResult, ToolResultContent,
    ToolResultTextContent, UsageInfo,
};
use anyhow::bail;
use serde_json::Value;
use tokio::time::Instant;

pub use clients::GuardedScript;

use super::{Backend, Conversation, Line};
use crate::host::effects::{
    AgentCommand, AgentDescription, Command, Event, OpenConversation, PermissionKind, PermissionOption,
    RunId, TextKind, Tokens, ToolGate, ToolOutcome, Transcript, TurnEnd, TurnEvent,
};

/// The provider id.
pub const PROVIDER: &str = "script";

/// The largest delta that a script can ask for, in bytes.
const DELTA_BYTES_MAX: usize = 1 << 20;

/// A tool call's input is streamed in pieces of so many characters.
const INPUT_PIECE_CHARS: usize = 16;

/// The setting that says what becomes of a tool call that asks first, and its values.
const PERMISSIONS: &str = "permissions";
const ASK: &str = "ask";
const ALLOW: &str = "allow";

/// The steps, as they are offered to who types: name, what follows it, what it does.
const STEPS: &[(&str, &str, &str)] = &[
    ("say", "TEXT", "Says TEXT"),
    ("stream", "COUNT SIZE [DELAY_MS]", "Streams COUNT deltas of SIZE bytes"),
    ("think", "TEXT", "Thinks TEXT"),
    ("activity", "TEXT", "Says what it is doing"),
    ("tool", "NAME [JSON]", "Calls a tool that needs no permission"),
    ("ask", "NAME [JSON]", "Calls a tool that asks first"),
    ("review", "NAME [JSON]", "Calls a tool whose result must be confirmed"),
    ("fail", "NAME TEXT", "Calls a tool that fails with TEXT"),
    ("question", "JSON", "Asks the user, and says the answers back"),
    ("model", "", "Says which model and agent the message chose"),
    ("usage", "INPUT OUTPUT", "Reports token usage"),
    ("title", "TEXT", "Names the session"),
    ("error", "TEXT", "Ends the turn with an error"),
    ("error-resumable", "TEXT", "Ends it with an error after which it may be resumed"),
    ("sleep", "MS", "Waits"),
    ("hang", "", "Does nothing until it is cancelled"),
    ("die", "", "Dies without ending the turn"),
];

/// The backend.
#[derive(Debug, Default)]
pub struct Script;

async fn converse(open: OpenConversation, line: Line, resource: Option<String>) -> anyhow::Result<()> {
    let Some(mut agent) = Agent::open(open, line, resource).await else { return Ok(()) };
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
                    // The first is where it works. Clients that do not know of replacing leave it alone.
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
        }
    }

    fn converse(&self, open: OpenConversation, line: Line) -> Conversation {
        Box::pin(converse(open, line, None))
    }
}

/// Why a step does not go on to the next one.
enum Stop {
    /// The turn was cancelled.
    Cancelled,
    /// The conversation is closed.
    Closed,
    /// The agent ends without a word.
    Died,
    /// The turn fails.
    Failed { message: String, resumable: bool },
}

impl Stop {
    fn mistake(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), resumable: false }
    }
}

struct Agent {
    line: Line,
    /// What it needs a token for.
    resource: Option<String>,
    tokens: Tokens,
    /// Where it works.
    working_directories: Vec<String>,
    /// The tools that clients offer.
    client_tools: Vec<String>,
    /// Tools that the user has allowed for good.
    allowed: HashSet<String>,
    /// What was said before, as `/recall` says it.
    memory: Vec<String>,
    /// All tools are allowed.
    allows_all: bool,
    /// The turn that runs, or that failed and may go on.
    turn: Turn,
}

struct Turn {
    run: RunId,
    /// Which model and agent the message chose.
    chosen: String,
    /// How many steps are done.
    done: usize,
    /// How many steps the host knows to be done.
    told: usize,
    /// How many tool calls and questions there were.
    calls: usize,
    /// What the user added and what has not been said back.
    steering: VecDeque<(String, Message)>,
    /// The answers to calls and questions that nobody has taken up yet.
    replies: Vec<(String, Reply)>,
}

impl Turn {
    fn new(run: RunId) -> Self {
        Self {
            run,
            chosen: String::new(),
            done: 0,
            told: 0,
            calls: 0,
            steering: VecDeque::new(),
            replies: Vec::new(),
        }
    }

    /// Goes on behind the last step that was done.
    fn resumed(run: RunId, so_far: &[ResponsePart], progress: Option<u64>) -> Self {
        let is_call =
            |part: &&ResponsePart| matches!(part, ResponsePart::ToolCall(_) | ResponsePart::InputRequest(_));
        let done = progress.and_then(|done| usize::try_from(done).ok()).unwrap_or(0);
        Self { done, calls: so_far.iter().filter(is_call).count(), ..Self::new(run) }
    }
}

/// A command that a step waited for.
enum Reply {
    Permission { option: Option<String>, approved: bool },
    Reviewed,
    ToolResult(ToolCallResult),
    Answers { response: ChatInputResponseKind, answers: BTreeMap<String, ChatInputAnswer> },
}

impl Agent {
    /// Opens as the configuration says; none when that fails or the conversation is closed meanwhile.
    async fn open(open: OpenConversation, mut line: Line, resource: Option<String>) -> Option<Self> {
        let config = &open.config;
        let open_ms = match config.get("openMs").map(|asked| asked.as_u64().ok_or(asked)) {
            None => 0,
            Some(Ok(open_ms)) => open_ms,
            Some(Err(asked)) => {
                let reason = format!("`config.openMs` must not be negative: {asked}");
                line.reports.report(Event::OpenFailed { reason }).await;
                return None;
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
                            if let Command::Configure(config) = command {
                                changed = Some(config);
                            }
                        }
                    } => return None,
                }
            }
        }
        if let Some(reason) = config.get("fail").and_then(Value::as_str) {
            line.reports.report(Event::OpenFailed { reason: reason.to_owned() }).await;
            return None;
        }
        if let Some(resource) = resource.as_ref().filter(|resource| !open.tokens.contains_key(*resource)) {
            let reason = format!("there is no token for `{resource}`");
            line.reports.report(Event::OpenFailed { reason }).await;
            return None;
        }
        line.reports.report(Event::Opened).await;
        let about = open.selection.map(|text| format!("about: {text}"));
        let history = open.history.into_iter().flat_map(|turn| {
            let attached = open.attached.get(&turn.id).into_iter().flatten().map(attached_text);
            attached.chain([turn.message.text]).collect::<Vec<_>>()
        });
        let memory = about.into_iter().chain(history).collect();
        let (allowed, turn) = (HashSet::new(), Turn::new(RunId(0)));
        let OpenConversation { config, working_directories, tokens, .. } = open;
        let (allows_all, client_tools) = (false, Vec::new());
        let mut agent = Self {
            line,
            resource,
            tokens,
            working_directories,
            client_tools,
            allowed,
            memory,
            allows_all,
            turn,
        };
        agent.configure(changed.as_ref().unwrap_or(&config));
        Some(agent)
    }

    fn configure(&mut self, config: &JsonObject) {
        self.allows_all = config.get(PERMISSIONS).and_then(Value::as_str) == Some(ALLOW);
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        while let Some(command) = self.line.commands.recv().await {
            let (message, resumes) = match command {
                Command::StartTurn { run, message, attached } => {
                    self.turn = Turn::new(run);
                    self.memory.extend(attached.iter().map(attached_text));
                    (message, false)
                }
                Command::ResumeTurn { run, message, attached, so_far, progress } => {
                    self.turn = Turn::resumed(run, &so_far, progress);
                    for text in attached.iter().map(attached_text) {
                        if !self.memory.contains(&text) {
                            self.memory.push(text);
                        }
                    }
                    (message, true)
                }
                Command::WorkIn { directories } => {
                    self.working_directories = directories;
                    continue;
                }
                Command::Tokens(tokens) => {
                    self.tokens = tokens;
                    continue;
                }
                Command::ClientTools { names } => {
                    self.client_tools = names;
                    continue;
                }
                Command::Configure(config) => {
                    self.configure(&config);
                    continue;
                }
                // Came after its turn had ended.
                _ => continue,
            };
            self.turn.chosen = chosen_by(&message);
            let end = match self.run(&message.text).await {
                Ok(()) => TurnEnd::Complete,
                Err(Stop::Cancelled) => TurnEnd::Cancelled,
                Err(Stop::Failed { message, resumable }) => {
                    TurnEnd::Failed { kind: "scriptError".to_owned(), message, resumable }
                }
                Err(Stop::Closed) => return Ok(()),
                Err(Stop::Died) => bail!("the script agent died without ending the turn"),
            };
            self.line.reports.report(Event::Turn(self.turn.run, TurnEvent::Ended(end))).await;
            // A turn that was resumed is one turn.
            if !(resumes && self.memory.last() == Some(&message.text)) {
                self.memory.push(message.text);
            }
        }
        Ok(())
    }

    /// Runs the steps that are not done yet.
    async fn run(&mut self, program: &str) -> Result<(), Stop> {
        for step in program.lines().skip(self.turn.done) {
            let outcome = self.step(step.trim_end_matches('\r')).await;
            // A step that fails is done too: a resumed turn goes on behind it.
            if matches!(outcome, Ok(()) | Err(Stop::Failed { .. })) {
                self.turn.done += 1;
                if self.turn.told < self.turn.done {
                    self.tell(TurnEvent::Progress(self.turn.done as u64)).await?;
                }
            }
            outcome?;
        }
        self.say_back().await
    }

    async fn step(&mut self, step: &str) -> Result<(), Stop> {
        self.say_back().await?;
        if !step.starts_with('/') {
            return self.stream_words(step).await;
        }
        let (name, rest) = step.split_once(' ').map_or((step, ""), |(name, rest)| (name, rest.trim()));
        match name {
            "/say" => self.finish(TurnEvent::Part(TextKind::Markdown, rest.to_owned())).await,
            "/think" => self.finish(TurnEvent::Part(TextKind::Reasoning, rest.to_owned())).await,
            "/stream" => self.stream(rest).await,
            "/recall" => self.finish(TurnEvent::Part(TextKind::Markdown, self.memory.join("\n"))).await,
            "/activity" => self.tell(TurnEvent::Activity((!rest.is_empty()).then(|| rest.to_owned()))).await,
            "/tool" if self.is_clients(rest) => self.call_client(rest).await,
            "/tool" => self.call(rest, Gate::None, false).await,
            "/ask" => self.call(rest, Gate::Ask, false).await,
            "/review" => self.call(rest, Gate::None, true).await,
            "/fail" => self.fail_call(rest).await,
            "/where" => {
                let directories = self.working_directories.join("\n");
                self.finish(TurnEvent::Part(TextKind::Markdown, directories)).await
            }
            "/token" => self.show_token().await,
            "/token-refused" => self.refuse_token().await,
            "/client" => self.call_client(rest).await,
            "/question" => self.question(rest).await,
            "/model" => self.finish(TurnEvent::Part(TextKind::Markdown, self.turn.chosen.clone())).await,
            "/usage" => self.usage(rest).await,
            "/title" => self.report(Event::Title(rest.to_owned())).await,
            "/error" => Err(Stop::mistake(rest)),
            "/error-resumable" => Err(Stop::Failed { message: rest.to_owned(), resumable: true }),
            "/sleep" => self.sleep(number("/sleep", rest)?).await,
            "/hang" => self.hang().await,
            "/die" => Err(Stop::Died),
            unknown => Err(Stop::mistake(format!("unknown step `{unknown}`"))),
        }
    }

    async fn stream_words(&mut self, text: &str) -> Result<(), Stop> {
        if text.is_empty() {
            return Ok(());
        }
        self.tell(TurnEvent::Part(TextKind::Markdown, String::new())).await?;
        let mut words = text.split_inclusive(' ').peekable();
        while let Some(word) = words.next() {
            let event = TurnEvent::Text(TextKind::Markdown, word.to_owned());
            if words.peek().is_some() {
                self.tell(event).await?;
            } else {
                self.finish(event).await?;
            }
        }
        Ok(())
    }

    /// Digits that go on from delta to delta, so that a lost or misplaced one shows.
    async fn stream(&mut self, rest: &str) -> Result<(), Stop> {
        let mut words = rest.split_whitespace();
        let count: usize = number("/stream COUNT", words.next().unwrap_or_default())?;
        let size: usize = number("/stream COUNT SIZE", words.next().unwrap_or_default())?;
        let delay_ms: u64 = words.next().map_or(Ok(0), |word| number("/stream COUNT SIZE DELAY_MS", word))?;
        if size > DELTA_BYTES_MAX {
            return Err(Stop::mistake(format!("/stream: SIZE is {DELTA_BYTES_MAX} at most")));
        }
        let digits: String = "0123456789".chars().cycle().take(size + 10).collect();
        self.tell(TurnEvent::Part(TextKind::Markdown, String::new())).await?;
        let mut start = 0;
        for number in 1..=count {
            let delta = digits[start..start + size].to_owned();
            let event = TurnEvent::Text(TextKind::Markdown, delta);
            if number < count {
                self.tell(event).await?;
            } else {
                self.finish(event).await?;
            }
            start = (start + size) % 10;
            if delay_ms > 0 {
                self.sleep(delay_ms).await?;
            }
        }
        Ok(())
    }

    async fn call(&mut self, rest: &str, gate: Gate, review: bool) -> Result<(), Stop> {
        let (name, input) = tool_and_input(rest)?;
        let id = self.begin_call(name, input).await?;
        let asks = matches!(gate, Gate::Ask) && !self.allows_all && !self.allowed.contains(name);
        let gate = match gate {
            Gate::None => ToolGate::Open,
            Gate::Ask if !asks => ToolGate::AllowedBefore,
            Gate::Ask => ToolGate::Ask(permission_options()),
        };
        self.ready(&id, name, input, gate).await?;
        if asks {
            let reply = self.reply_about(&id).await?;
            let Reply::Permission { option, approved: true } = reply else { return Ok(()) };
            if option.as_deref() == Some(ALLOW_ALWAYS) {
                self.allowed.insert(name.to_owned());
            }
        }
        let content = text_content(input);
        self.tell(TurnEvent::ToolContent { id: id.clone(), content: content.clone() }).await?;
        let message = format!("Ran {name}").into();
        let outcome = ToolOutcome { success: true, message, content, error: None };
        let done = TurnEvent::ToolDone { id: id.clone(), outcome, review };
        if !review {
            return self.finish(done).await;
        }
        self.tell(done).await?;
        self.reply_about(&id).await.map(|_| ())
    }

    async fn fail_call(&mut self, rest: &str) -> Result<(), Stop> {
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        if name.is_empty() {
            return Err(Stop::mistake("a tool call needs the NAME of a tool"));
        }
        let id = self.begin_call(name, "{}").await?;
        self.ready(&id, name, "{}", ToolGate::Open).await?;
        let outcome = ToolOutcome {
            success: false,
            message: format!("{name} failed").into(),
            content: text_content(text),
            error: Some(text.to_owned()),
        };
        self.finish(TurnEvent::ToolDone { id, outcome, review: false }).await
    }

    /// Starts a tool call and streams its input.
    async fn begin_call(&mut self, name: &str, input: &str) -> Result<String, Stop> {
        self.turn.calls += 1;
        let id = format!("call-{}", self.turn.calls);
        let (tool, display_name) = (name.to_owned(), name.to_owned());
        self.tell(TurnEvent::ToolStarted { id: id.clone(), name: tool, display_name }).await?;
        let characters: Vec<char> = input.chars().collect();
        for piece in characters.chunks(INPUT_PIECE_CHARS) {
            let delta = piece.iter().collect();
            self.tell(TurnEvent::ToolInput { id: id.clone(), delta }).await?;
        }
        Ok(id)
    }

    async fn ready(&mut self, id: &str, name: &str, input: &str, gate: ToolGate) -> Result<(), Stop> {
        let message = format!("Run {name}").into();
        self.tell(TurnEvent::ToolReady { id: id.to_owned(), input: input.to_owned(), message, gate }).await
    }

    async fn question(&mut self, rest: &str) -> Result<(), Stop> {
        let questions: Vec<ChatInputQuestion> = serde_json::from_str(rest)
            .map_err(|error| Stop::mistake(format!("/question: not an array of questions: {error}")))?;
        if let Some(ChatInputQuestion::Unknown(question)) =
            questions.iter().find(|question| matches!(question, ChatInputQuestion::Unknown(_)))
        {
            return Err(Stop::mistake(format!("/question: not a question: {question}")));
        }
        self.turn.calls += 1;
        let id = format!("question-{}", self.turn.calls);
        self.tell(TurnEvent::Question { id: id.clone(), questions }).await?;
        let Reply::Answers { response, answers } = self.reply_about(&id).await? else { return Ok(()) };
        let said = match response {
            ChatInputResponseKind::Accept => {
                let answers: Vec<_> =
                    answers.iter().map(|(id, answer)| format!("{id}: {}", spoken(answer))).collect();
                answers.join("\n")
            }
            ChatInputResponseKind::Decline => "(declined)".to_owned(),
            ChatInputResponseKind::Cancel => "(cancelled)".to_owned(),
        };
        self.finish(TurnEvent::Part(TextKind::Markdown, said)).await
    }

    async fn usage(&mut self, rest: &str) -> Result<(), Stop> {
        let mut words = rest.split_whitespace();
        // Counts: never negative.
        let input_tokens: u32 = number("/usage INPUT", words.next().unwrap_or_default())?;
        let output_tokens: u32 = number("/usage INPUT OUTPUT", words.next().unwrap_or_default())?;
        self.tell(TurnEvent::Usage(UsageInfo {
            input_tokens: Some(input_tokens.into()),
            output_tokens: Some(output_tokens.into()),
            model: None,
            cache_read_tokens: None,
            meta: None,
        }))
        .await
    }

    async fn sleep(&mut self, ms: u64) -> Result<(), Stop> {
        let deadline = Instant::now() + Duration::from_millis(ms);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                command = self.line.commands.recv() => { self.obey(command)?; }
            }
            self.say_back().await?;
        }
    }

    async fn hang(&mut self) -> Result<(), Stop> {
        loop {
            let command = self.line.commands.recv().await;
            self.obey(command)?;
            self.say_back().await?;
        }
    }

    /// Waits for the answer to a call or question.
    async fn reply_about(&mut self, id: &str) -> Result<Reply, Stop> {
        loop {
            // It may have come while a steering message was said back.
            if let Some(at) = self.turn.replies.iter().position(|(about, _)| about == id) {
                return Ok(self.turn.replies.swap_remove(at).1);
            }
            let command = self.line.commands.recv().await;
            self.obey(command)?;
            self.say_back().await?;
        }
    }

    /// Does what a command asks at once; an answer to a call or question is kept with its id.
    fn obey(&mut self, command: Option<Command>) -> Result<(), Stop> {
        let current = self.turn.run;
        match command {
            None | Some(Command::Close) => Err(Stop::Closed),
            Some(Command::Configure(config)) => {
                self.configure(&config);
                Ok(())
            }
            Some(Command::Cancel { run }) if run == current => Err(Stop::Cancelled),
            Some(Command::Steer { run, id, message, attached }) if run == current => {
                self.memory.extend(attached.iter().map(attached_text));
                self.turn.steering.push_back((id, message));
                Ok(())
            }
            Some(Command::Permission { run, tool_call_id, option, approved }) if run == current => {
                self.turn.replies.push((tool_call_id, Reply::Permission { option, approved }));
                Ok(())
            }
            Some(Command::ResultConfirmed { run, tool_call_id, .. }) if run == current => {
                self.turn.replies.push((tool_call_id, Reply::Reviewed));
                Ok(())
            }
            Some(Command::ClientTools { names }) => {
                self.client_tools = names;
                Ok(())
            }
            Some(Command::Tokens(tokens)) => {
                self.tokens = tokens;
                Ok(())
            }
            Some(Command::WorkIn { directories }) => {
                self.working_directories = directories;
                Ok(())
            }
            Some(Command::ToolResult { run, tool_call_id, result }) if run == current => {
                self.turn.replies.push((tool_call_id, Reply::ToolResult(result)));
                Ok(())
            }
            Some(Command::Answer { run, request_id, response, answers }) if run == current => {
                self.turn.replies.push((request_id, Reply::Answers { response, answers }));
                Ok(())
            }
            Some(command) => {
                tracing::debug!(?command, "a command that does not fit the turn was ignored");
                Ok(())
            }
        }
    }

    /// Says back what the user has added.
    async fn say_back(&mut self) -> Result<(), Stop> {
        while let Ok(command) = self.line.commands.try_recv() {
            self.obey(Some(command))?;
        }
        while let Some((id, message)) = self.turn.steering.pop_front() {
            self.tell(TurnEvent::Part(TextKind::Markdown, message.text)).await?;
            self.tell(TurnEvent::Steered(id)).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, event: TurnEvent) -> Result<(), Stop> {
        self.report(Event::Turn(self.turn.run, event)).await
    }

    /// Tells the last event of a step, with which the step is done.
    async fn finish(&mut self, event: TurnEvent) -> Result<(), Stop> {
        self.turn.told = self.turn.done + 1;
        self.tell(TurnEvent::Last(Box::new(event), self.turn.told as u64)).await
    }

    /// Reports as soon as there is room, obeying meanwhile.
    async fn report(&mut self, event: Event) -> Result<(), Stop> {
        let reports = self.line.reports.clone();
        loop {
            tokio::select! {
                biased;
                command = self.line.commands.recv() => { self.obey(command)?; }
                room = reports.room() => {
                    room.ok_or(Stop::Closed)?.report(event);
                    return Ok(());
                }
            }
        }
    }
}

/// Whether a call asks before it runs.
#[derive(Clone, Copy)]
enum Gate {
    None,
    Ask,
}

const ALLOW_ALWAYS: &str = "allow-always";

fn permission_options() -> Vec<PermissionOption> {
    let option = |id: &str, kind| PermissionOption { id: id.to_owned(), label: None, kind };
    vec![
        option("allow-once", PermissionKind::AllowOnce),
        option(ALLOW_ALWAYS, PermissionKind::AllowAlways),
        option("reject-once", PermissionKind::RejectOnce),
    ]
}

/// Which model and agent a message is for, in words.
fn chosen_by(message: &Message) -> String {
    let mut chosen = Vec::new();
    if let Some(model) = &message.model {
        chosen.push(model.id.clone());
        let config: BTreeMap<_, _> = model.config.iter().flatten().collect();
        chosen.extend(config.iter().map(|(name, value)| format!("{name}: {value}")));
    }
    chosen.extend(message.agent.as_ref().map(|agent| agent.uri.clone()));
    if chosen.is_empty() {
        "(the default)".to_owned()
    } else {
        chosen.join(", ")
    }
}

fn text_content(text: &str) -> Vec<ToolResultContent> {
    vec![ToolResultContent::Text(ToolResultTextContent { text: text.to_owned() })]
}

fn number<T: std::str::FromStr>(what: &str, word: &str) -> Result<T, Stop> {
    word.parse().map_err(|_| Stop::mistake(format!("{what}: `{word}` is not a number that fits")))
}

/// An attached chat as the agent remembers it.
fn attached_text(transcript: &Transcript) -> String {
    format!("attached {}:\n{}", transcript.label, transcript.text.trim_end())
}

/// The tool that a step names, and its input.
fn tool_and_input(rest: &str) -> Result<(&str, &str), Stop> {
    let (name, input) = rest.split_once(' ').map_or((rest, "{}"), |(name, input)| (name, input.trim()));
    if name.is_empty() {
        return Err(Stop::mistake("a tool call needs the NAME of a tool"));
    }
    match serde_json::from_str::<Value>(input) {
        Ok(_) => Ok((name, input)),
        Err(error) => Err(Stop::mistake(format!("the input of tool `{name}` is not JSON: {error}"))),
    }
}

/// An answer as words.
fn spoken(answer: &ChatInputAnswer) -> String {
    let value = match answer {
        ChatInputAnswer::Draft(answer) | ChatInputAnswer::Submitted(answer) => &answer.value,
        ChatInputAnswer::Skipped(_) => return "(skipped)".to_owned(),
    };
    match value {
        ChatInputAnswerValue::Text(value) => value.value.clone(),
        ChatInputAnswerValue::Number(value) => value.value.to_string(),
        ChatInputAnswerValue::Boolean(value) => value.value.to_string(),
        ChatInputAnswerValue::Selected(value) => {
            let freeform = value.freeform_values.iter().flatten();
            std::iter::once(&value.value).chain(freeform).cloned().collect::<Vec<_>>().join(", ")
        }
        ChatInputAnswerValue::SelectedMany(value) => value
            .value
            .iter()
            .chain(value.freeform_values.iter().flatten())
            .cloned()
            .collect::<Vec<_>>()
            .join(", "),
        ChatInputAnswerValue::Unknown(value) => value.to_string(),
    }
}
