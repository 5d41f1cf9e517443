//! An agent: one process shared by all of its conversations, started on demand.
//!
//! Owns: start, handshake, limited restarts after crashes, and the stop when idle or at exit.
//! Never: takes part in a conversation. What outlasts a restart is in [`StartHistory`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    AgentCapabilities, BooleanConfigOptionCapabilities, ClientCapabilities, ClientSessionCapabilities,
    CompactionCapabilities, ElicitationCapabilities, ElicitationFormCapabilities, ElicitationUrlCapabilities,
    FileSystemCapabilities, Implementation, InitializeRequest, InitializeResponse, NoticeCapabilities,
    SessionConfigOptionsCapabilities,
};
use agent_client_protocol_schema::ProtocolVersion;
use ahp_types::state::{AgentCapabilities as AgentAbilities, MultipleWorkingDirectoriesCapability};
use anyhow::{anyhow, bail, Context};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client_tools::listener::ToolListener;
use super::content::PromptSupport;
use super::folder_servers::FolderServers;
use super::login::{self, Login, LoginMethod};
use super::peer::{AgentConnection, PeerReceiver};
use super::process::Process;
use super::quirks::{self, AgentQuirks};
use super::terminals::Commands;
use super::{program, providers, AgentSpec, Offers};
use crate::backend::secrets::{Secret, HIDDEN_BYTES_MIN};
use crate::host::effects::{ChatKey, SelfDescription, Token, Tokens};
use crate::os::process::GuardProgram;
use crate::sync::lock;
use crate::wire::text;

/// Delays before a crashed agent is restarted, by the number of consecutive failures.
const RESTART_DELAYS: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// Time without restarts after more consecutive failures than [`RESTART_DELAYS`] has entries.
const RESTART_REFUSED_FOR: Duration = Duration::from_secs(60);

/// Parts of the names of variables whose values are secrets.
const SECRET_NAMES: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL"];

/// Ends of the names of variables that say where a secret is.
const PLACE_NAMES: [&str; 6] = ["_FILE", "_PATH", "_DIR", "_VAR", "_SOURCE", "ASKPASS"];

#[derive(Debug)]
pub struct Agent {
    pub spec: AgentSpec,
    pub commands: Commands,
    pub client_tools: ToolListener,
    guard: GuardProgram,
    /// Locked while the agent starts, so that concurrent callers wait for the same start.
    current: tokio::sync::Mutex<Option<Arc<RunningAgent>>>,
    history: Mutex<StartHistory>,
}

#[derive(Debug, Default)]
pub struct StartHistory {
    /// Number of consecutive crashes and failed starts.
    pub deaths: usize,
    last_death: Option<(Instant, String)>,
    /// Connections not known to have ended, newest last.
    pub connections: Vec<AgentConnection>,
    pub login_methods: Option<Vec<LoginMethod>>,
    /// Set if a process of a single session has ended because it needs a login: the next process
    /// logs in before it opens a session.
    login_needed: bool,
    description: SelfDescription,
    /// Quirks of the agent, by its last reported name; `None` before the first start.
    pub quirks: Option<AgentQuirks>,
    /// Set once the agent is stopped permanently.
    closed: bool,
    /// Session requests, by method and session id, during which the agent crashed or timed out.
    pub failed_at: BTreeSet<(&'static str, String)>,
    /// Chats whose message is sent without attachments, because these have made a session unusable.
    /// An entry lasts until the end of the chat's turn.
    pub without_attachments: BTreeSet<ChatKey>,
}

#[derive(Debug)]
pub struct RunningAgent {
    pub connection: AgentConnection,
    /// Capabilities from the answer to `initialize`.
    pub capabilities: AgentCapabilities,
    pub quirks: AgentQuirks,
    /// Host services that were announced in `initialize`.
    pub offers: Offers,
    pub login: Login,
    /// Set when the agent accepts `_session/steering`: messages during a turn.
    pub steers: bool,
    /// Servers of its sessions; used if the agent shares them among sessions.
    pub servers: FolderServers,
    uses: Mutex<LeaseCount>,
}

#[derive(Debug)]
struct LeaseCount {
    count: usize,
    since: Instant,
    /// Reason for which the host ended the agent, for people; `None` if it has not.
    ended_by_us: Option<&'static str>,
    /// Set if new sessions get another process. This one ends with its last lease.
    is_superseded: bool,
}

/// Lease on a running agent. While any lease is held, the agent is not stopped for being idle, nor
/// for leaving a request of another user unanswered.
#[derive(Debug)]
pub struct AgentLease(Arc<RunningAgent>);

impl AgentLease {
    pub fn running(&self) -> Arc<RunningAgent> {
        Arc::clone(&self.0)
    }
}

/// Process of a single session, ended on drop.
#[derive(Debug)]
pub struct DedicatedProcess(pub Arc<RunningAgent>);

impl Drop for DedicatedProcess {
    fn drop(&mut self) {
        // An agent that has already died counts as crashed, not as closed.
        if !self.0.connection.is_over() {
            self.0.end("its session was closed");
        }
    }
}

impl Drop for AgentLease {
    fn drop(&mut self) {
        let (is_last, is_superseded) = {
            let mut uses = self.0.leases();
            uses.count -= 1;
            uses.since = Instant::now();
            (uses.count == 0, uses.is_superseded)
        };
        if is_last && is_superseded {
            self.0.end("its sessions have got another process");
        }
        if is_last && self.0.connection.is_given_up() {
            self.0.end("it did not answer, and was stopped");
        }
    }
}

impl RunningAgent {
    fn leases(&self) -> MutexGuard<'_, LeaseCount> {
        lock(&self.uses)
    }

    /// Returns the capabilities of this agent beyond those that all agents have.
    pub fn abilities(&self) -> AgentAbilities {
        let can = &self.capabilities.session_capabilities;
        let takes_up = can.resume.is_some() || self.capabilities.load_session;
        // Folders are sent on resume and load; the first one is the working directory.
        let several = can.additional_directories.is_some() && takes_up;
        AgentAbilities {
            multiple_chats: None,
            multiple_working_directories: several.then_some(MultipleWorkingDirectoriesCapability {
                immutable_primary: Some(true),
                primary_replacement: None,
            }),
        }
    }

    pub fn prompt_support(&self) -> PromptSupport<'_> {
        PromptSupport { can: &self.capabilities.prompt_capabilities, quirks: self.quirks, only_text: false }
    }

    /// Leases the agent; `None` if it is ending.
    pub fn lease(self: &Arc<Self>) -> Option<AgentLease> {
        let mut uses = self.leases();
        if uses.ended_by_us.is_some() || self.connection.is_over() {
            return None;
        }
        uses.count += 1;
        Some(AgentLease(Arc::clone(self)))
    }

    /// Ends an agent that needs a login and has at most `users` leases, so that its restart finds a
    /// login done elsewhere: many agents check only at start. Returns whether it is ended.
    pub fn end_for_login(&self, users: usize) -> bool {
        let is_free = self.login.is_needed() && self.leases().count <= users;
        if is_free {
            self.end("it was restarted, since a login may have been made outside of the host");
        }
        is_free
    }

    /// Gives new sessions another process than this one.
    pub fn supersede(&self) {
        self.leases().is_superseded = true;
    }

    /// Returns whether new sessions get another process than this one.
    pub fn is_superseded(&self) -> bool {
        self.leases().is_superseded
    }

    /// Has the agent's next users start another process. Ends this one, with a reason for its
    /// current users, but only with its last lease if it has more than `users` leases.
    pub fn replace(&self, users: usize, why: &'static str) {
        let mut uses = self.leases();
        if uses.count > users {
            uses.is_superseded = true;
            return;
        }
        drop(uses);
        self.end(why);
    }

    /// Ends the agent, with a reason for its current users.
    pub fn end(&self, why: &'static str) {
        self.leases().ended_by_us.get_or_insert(why);
        self.connection.stop();
    }

    /// Waits until the agent has ended; returns the reason, for people.
    pub async fn ended(&self) -> String {
        let how = self.connection.ended().await;
        match self.leases().ended_by_us {
            Some(why) => why.to_owned(),
            None => how,
        }
    }

    /// Ends the agent once it has been idle for `idle_limit`.
    async fn watch(self: Arc<Self>, name: String, idle_limit: Duration) {
        loop {
            let next = {
                let (now, mut uses) = (Instant::now(), self.leases());
                let idle_since = if uses.count == 0 { uses.since } else { now };
                if idle_since + idle_limit <= now {
                    uses.ended_by_us.get_or_insert("it was idle");
                    break;
                }
                idle_since + idle_limit
            };
            tokio::select! {
                _ = self.connection.ended() => return,
                () = tokio::time::sleep_until(next) => {}
            }
        }
        tracing::info!(agent = name, "the agent is stopped: no session has used it for {idle_limit:?}");
        self.connection.stop();
    }
}

impl Agent {
    pub fn new(spec: AgentSpec, guard: GuardProgram) -> Self {
        let commands = Commands::new(guard.clone(), spec.environment.clone());
        Self {
            spec,
            commands,
            client_tools: ToolListener::default(),
            guard,
            current: tokio::sync::Mutex::default(),
            history: Mutex::default(),
        }
    }

    pub fn history(&self) -> MutexGuard<'_, StartHistory> {
        lock(&self.history)
    }

    /// Records that an agent has reported that it needs a login.
    pub fn require_login(&self, running: &RunningAgent) {
        running.login.set_needed(true);
        self.history().login_needed |= self.spec.one_session;
    }

    pub fn login_advice(&self) -> String {
        login::advice(self.history().login_methods.as_deref().unwrap_or_default())
    }

    /// Returns the latest description that the agent gave of itself, even if that start failed.
    pub fn self_description(&self) -> SelfDescription {
        let past = self.history();
        let protected_resources = past.login_methods.as_deref().map(login::resources);
        SelfDescription { protected_resources, ..past.description.clone() }
    }

    /// Returns a lease on the running agent. Starts the agent, with the tokens that belong in
    /// variables, if it is not running or if its process is reserved for another session.
    pub async fn start(&self, tokens: &Tokens) -> anyhow::Result<AgentLease> {
        let mut current = self.current.lock().await;
        // With one session per process, a live process belongs to another session.
        let known = current.as_ref().filter(|known| !self.spec.one_session || known.connection.is_over());
        let known = known.filter(|known| !known.leases().is_superseded);
        if let Some(running) = known {
            if let Some(used) = running.lease() {
                return Ok(used);
            }
            let how = running.ended().await;
            if running.leases().ended_by_us.is_none() {
                self.record_death(how);
            }
            *current = None;
        }
        let AgentSpec { program, directory, environment, .. } = &self.spec;
        program::find(program, directory.as_deref(), environment)?;
        self.wait_for_restart_delay().await?;
        match self.start_with_quirks(tokens).await {
            Ok(running) => {
                let running = Arc::new(running);
                *current = Some(Arc::clone(&running));
                tokio::spawn(Arc::clone(&running).watch(self.spec.name.clone(), self.spec.idle_limit));
                running.lease().context("it ended as soon as it was started")
            }
            Err(error) => {
                self.record_death(format!("{error:#}"));
                Err(error)
            }
        }
    }

    /// Stops the agent permanently; returns when all of its processes have ended.
    pub async fn stop(&self) {
        let connections = {
            let mut past = self.history();
            past.closed = true;
            past.connections.clone()
        };
        for connection in &connections {
            connection.stop();
        }
        for connection in &connections {
            connection.ended().await;
        }
    }

    fn record_death(&self, how: String) {
        let mut past = self.history();
        past.deaths += 1;
        past.last_death = Some((Instant::now(), how));
    }

    async fn wait_for_restart_delay(&self) -> anyhow::Result<()> {
        let wait = {
            let past = self.history();
            let deaths = past.deaths;
            let Some((at, how)) = past.last_death.as_ref().filter(|_| deaths > 0) else { return Ok(()) };
            let ago = at.elapsed();
            match RESTART_DELAYS.get(deaths - 1) {
                Some(wait) => wait.saturating_sub(ago),
                None if ago >= RESTART_REFUSED_FOR => Duration::ZERO,
                None => {
                    let seconds = (RESTART_REFUSED_FOR - ago).as_secs() + 1;
                    bail!(
                        "it has failed {deaths} times in a row and is not restarted for {seconds} s; the last time: {how}"
                    );
                }
            }
        };
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Starts the agent, and restarts it if its name calls for other offers than those announced.
    async fn start_with_quirks(&self, tokens: &Tokens) -> anyhow::Result<RunningAgent> {
        let AgentSpec { name, program, arguments, .. } = &self.spec;
        let known = self.history().quirks;
        let expected = known.unwrap_or_else(|| quirks::expected(program, arguments));
        let running = self.spawn(tokens, expected).await?;
        let is = running.quirks;
        self.history().quirks = Some(is);
        if offers(&self.spec, is) == offers(&self.spec, expected) {
            return Ok(running);
        }
        tracing::info!(
            agent = name,
            "the agent is restarted: it is offered other client capabilities than at its first start"
        );
        running.connection.stop();
        running.connection.ended().await;
        self.spawn(tokens, is).await
    }

    /// Starts the process. Returns its connection, and the environment with the tokens of a login.
    fn start_process(&self, tokens: &Tokens) -> anyhow::Result<(AgentConnection, BTreeMap<String, Token>)> {
        let mut past = self.history();
        if past.closed {
            bail!("the host is shutting down");
        }
        let environment = login::environment(past.login_methods.as_deref().unwrap_or_default(), tokens);
        let configured = self.spec.environment.iter().filter(|(name, value)| is_secret(name, value));
        let secrets = configured.map(|(_, value)| value.as_str());
        let secrets = secrets.chain(environment.values().map(Token::secret));
        let secrets: Vec<_> = secrets.map(|secret| Arc::new(Secret::register(secret))).collect();
        let (process, stdin, stdout) = Process::start(&self.guard, &self.spec, &environment)?;
        let (name, stop) = (self.spec.name.clone(), CancellationToken::new());
        let ended = process.ended(stop.clone());
        let connection = AgentConnection::start(name, (stdin.pipe, stdin.lifeline), stdout, stop, ended);
        connection.hide(&secrets);
        past.connections.retain(|connection| !connection.has_ended());
        past.connections.push(connection.clone());
        Ok((connection, environment))
    }

    async fn spawn(&self, tokens: &Tokens, expected: AgentQuirks) -> anyhow::Result<RunningAgent> {
        let (connection, environment) = self.start_process(tokens)?;
        let mut receiver = connection.listen();
        let offers = offers(&self.spec, expected);
        let (hello, answer) = match initialize(&mut receiver, offers, self.spec.start_limit).await {
            Ok(Some(entry)) => entry,
            failed => {
                connection.stop();
                let how = connection.ended().await;
                return Err(failed
                    .err()
                    .map_or_else(|| anyhow!("{how}"), |error| anyhow!("{error:#}; {how}")));
            }
        };
        let providers = &self.spec.providers;
        let set = providers::set(&mut receiver, providers, &answer, self.spec.start_limit).await;
        if let Err(error) = set {
            connection.stop();
            connection.ended().await;
            return Err(error);
        }
        let InitializeResponse { agent_info, agent_capabilities, meta, .. } = hello;
        let steering = meta.as_ref().and_then(|meta| meta.get("steering")?.get("supported")?.as_bool());
        let steers = steering == Some(true);
        let quirks = quirks::of(agent_info.as_ref().map(|info| info.name.as_str()));
        let version = agent_info.as_ref().map(|info| text::message(&info.version));
        let version = version.filter(|version| !version.is_empty());
        let title = agent_info.and_then(|info| info.title).map(|title| text::message(&title));
        let title = title.filter(|title| !title.trim().is_empty());
        let ways = login::methods_of(&self.spec.name, &answer, quirks);
        let mut past = self.history();
        past.login_methods = Some(ways.clone());
        let login = Login::new(ways, environment);
        login.set_needed(std::mem::take(&mut past.login_needed) && login.can_be_helped(tokens));
        let can = &agent_capabilities;
        let adopts = can.load_session && can.session_capabilities.list.is_some();
        past.description = SelfDescription {
            title,
            version,
            steers: Some(steers),
            adopts: Some(adopts),
            ..SelfDescription::default()
        };
        Ok(RunningAgent {
            connection,
            capabilities: agent_capabilities,
            quirks,
            offers,
            login,
            steers,
            servers: FolderServers::default(),
            uses: Mutex::new(LeaseCount {
                count: 0,
                since: Instant::now(),
                ended_by_us: None,
                is_superseded: false,
            }),
        })
    }
}

/// Returns whether a variable of the operator has a value that must not appear in logs and errors.
fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_uppercase();
    value.len() >= HIDDEN_BYTES_MIN
        && SECRET_NAMES.iter().any(|part| name.contains(part))
        && !PLACE_NAMES.iter().any(|end| name.ends_with(end))
}

/// Returns the services to offer; the operator's settings take precedence over the quirks.
fn offers(spec: &AgentSpec, quirks: AgentQuirks) -> Offers {
    Offers { reading: Some(spec.offers.reading.unwrap_or(quirks.reads_through_us)), ..spec.offers }
}

fn capabilities(offers: Offers) -> ClientCapabilities {
    let files = FileSystemCapabilities::new()
        .read_text_file(offers.reading == Some(true))
        .write_text_file(offers.writing);
    let elicitation = ElicitationCapabilities::new()
        .form(ElicitationFormCapabilities::new())
        .url(ElicitationUrlCapabilities::new());
    let switches = SessionConfigOptionsCapabilities::new().boolean(BooleanConfigOptionCapabilities::new());
    let session = ClientSessionCapabilities::new()
        .config_options(switches)
        .compaction(CompactionCapabilities::new())
        .notices(NoticeCapabilities::new());
    ClientCapabilities::new().elicitation(elicitation).fs(files).session(session).terminal(offers.terminals)
}

/// Sends `initialize`; returns the answer, parsed and raw, or `None` if the agent ends first.
async fn initialize(
    receiver: &mut PeerReceiver,
    offers: Offers,
    limit: Duration,
) -> anyhow::Result<Option<(InitializeResponse, Box<RawValue>)>> {
    let hello = InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(capabilities(offers))
        .client_info(Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")));
    let Some(answer) = receiver.ask("initialize", &hello, limit, |_, _| ()).await? else { return Ok(None) };
    let answer = answer.map_err(|failure| anyhow!("it rejected `initialize`: {failure}"))?;
    let hello: InitializeResponse =
        serde_json::from_str(answer.get()).context("its answer to `initialize` is invalid")?;
    if hello.protocol_version != ProtocolVersion::V1 {
        bail!("it supports only version {} of ACP; the host supports version 1", hello.protocol_version);
    }
    Ok(Some((hello, answer)))
}
