//! Opening a conversation: an ACP session, by `session/resume`, `session/load`, `session/fork` or
//! `session/new`, whichever preserves most of the conversation.
//!
//! Owns: the choice of the method, the folders sent to the agent, and errors for people.
//! Never: starts a turn.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    ForkSessionRequest, ForkSessionResponse, LoadSessionRequest, NewSessionRequest, NewSessionResponse,
    SessionId,
};
use anyhow::{anyhow, bail, Context};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::client_tools::ClientTools;
use super::events::EventQueue;
use super::own_turns::OwnTurns;
use super::requests::too_early_answer;
use super::servers::{GivenServers, ReadServers};
use super::session::{AcpSession, Introduction};
use super::settings::{is_of_session, Settings};
use super::updates::UpdateNotes;
use super::workspace::Workspace;
use super::AcpConversation;
use crate::backend::acp::agent::{Agent, AgentLease, DedicatedProcess, RunningAgent};
use crate::backend::acp::calls::Calls;
use crate::backend::acp::content;
use crate::backend::acp::files::Files;
use crate::backend::acp::login;
use crate::backend::acp::peer::{AgentError, PeerMessage, PeerReceiver};
use crate::backend::acp::terminals::Terminals;
use crate::backend::acp::{AgentSpec, REPLAY_PAUSE};
use crate::backend::ReportSender;
use crate::files::uris::path_of;
use crate::host::effects::{ChatKey, OpenConversation};

/// Number of methods that resume a session; an agent may end at each of them once.
const RESUME_METHODS: usize = 2;

/// Failure to resume a session because the agent ended or did not answer. The same method is not
/// tried again for this session, so that the conversation can continue.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotResumed(String);

/// Refusal to open a session in a process whose sessions in the folder have other MCP servers.
#[derive(Debug, thiserror::Error)]
#[error("sessions with other MCP servers are open in its folder")]
struct OtherServers;

impl AcpConversation {
    /// Opens the conversation, and logs in if the agent requires it and tokens are available. Also
    /// returns the updates of the session received meanwhile.
    pub(super) async fn open(
        agent: &Arc<Agent>,
        open: &OpenConversation,
        reports: &ReportSender,
        servers: &ReadServers,
    ) -> anyhow::Result<(Self, AgentLease, Vec<Box<RawValue>>)> {
        // Each remedy for a missing login, or for a session that cannot be resumed, is tried once.
        let attempts = 1 + login::METHODS_MAX + RESUME_METHODS;
        let (mut failure, mut attempt) = (None, 0);
        while attempt < attempts {
            attempt += 1;
            // Started on its own task, so that closing the conversation cannot leave it half
            // started. A process of a single session ends if no conversation takes it.
            let (starting, tokens) = (Arc::clone(agent), open.tokens.clone());
            let started = tokio::spawn(async move {
                let used = starting.start(&tokens).await?;
                let own = starting.spec.one_session.then(|| DedicatedProcess(used.running()));
                anyhow::Ok((used, own))
            });
            let (used, own) = started.await.context("it could not be started")??;
            let running = used.running();
            if !running.log_in(&open.tokens, reports).await? {
                continue;
            }
            match Self::open_with_agent(agent, open, reports.chat(), used, own, servers).await {
                Err(error) if error.is::<login::LoginRequired>() => {
                    agent.require_login(&running);
                    if !running.login.can_be_helped(&open.tokens) {
                        return Err(error);
                    }
                    failure = Some(error);
                }
                Err(error) if error.is::<OtherServers>() => {
                    tracing::info!(agent = agent.spec.name, "a session gets another process: {error:#}");
                    running.supersede();
                    // Each refusal means that another session has got the process.
                    attempt -= 1;
                }
                Err(error) if error.is::<NotResumed>() => {
                    tracing::warn!(
                        agent = agent.spec.name,
                        "a session of the agent cannot be resumed or loaded: {error:#}"
                    );
                    failure = Some(error);
                }
                opened => return opened,
            }
        }
        let failure = failure.unwrap_or_else(|| anyhow!("it was restarted for a login each time"));
        Err(failure.context(format!("it could not be opened in {attempts} attempts")))
    }

    async fn open_with_agent(
        agent: &Arc<Agent>,
        open: &OpenConversation,
        chat: ChatKey,
        used: AgentLease,
        own: Option<DedicatedProcess>,
        read: &ReadServers,
    ) -> anyhow::Result<(Self, AgentLease, Vec<Box<RawValue>>)> {
        let running = used.running();
        let mut receiver = running.connection.listen();
        let (cwd, others) = directories(agent, open)?;
        let folders = std::iter::once(&cwd).chain(&others).cloned().collect();
        let mut client_tools = ClientTools::new(agent, open.client_tools.clone()).await;
        running.connection.hide(read.secrets());
        let can = &running.capabilities.mcp_capabilities;
        let mut given = GivenServers::new(read, can, &cwd, &agent.spec.environment);
        let shares = running.quirks.shares_servers;
        let servers: Vec<_> = client_tools.servers(shares).into_iter().chain(given.entries()).collect();
        if shares {
            given.in_folder = Some(running.servers.open(&cwd, &servers).ok_or(OtherServers)?);
        }
        let params = NewSessionRequest::new(&cwd).additional_directories(others).mcp_servers(servers);
        let (session, settings, early) = open_session(agent, open, &running, &mut receiver, params).await?;
        let mut conversation = Self {
            workspace: Workspace::new(
                Files::new(folders, receiver.connection().clone()),
                Terminals::new(cwd),
            ),
            client_tools,
            servers: given,
            agent: Arc::clone(agent),
            chat,
            running,
            _own: own,
            receiver,
            session,
            tokens: open.tokens.clone(),
            settings,
            calls: Calls::default(),
            notes: UpdateNotes::default(),
            run: None,
            own_turns: OwnTurns::default(),
            events: EventQueue::default(),
        };
        conversation.client_tools_are_offered();
        Ok((conversation, used, early))
    }
}

/// Resumes the session of a conversation, or copies its source, or makes a new one, which `params`
/// describe. Also returns the updates of the session that came before the answer.
async fn open_session(
    agent: &Agent,
    open: &OpenConversation,
    running: &RunningAgent,
    receiver: &mut PeerReceiver,
    mut params: NewSessionRequest,
) -> anyhow::Result<(AcpSession, Settings, Vec<Box<RawValue>>)> {
    let can = &running.capabilities.session_capabilities;
    if can.additional_directories.is_none() {
        params.additional_directories.clear();
    }
    let (cwd, others, servers) = (&params.cwd, &params.additional_directories, &params.mcp_servers);
    let (mut taken_up, mut early) = (None, Vec::new());
    if let Some(session) = &open.handle {
        let id = SessionId::new(session.as_str());
        let request = LoadSessionRequest::new(id.clone(), cwd)
            .additional_directories(others.clone())
            .mcp_servers(servers.clone());
        let answer = resume_session(agent, running, receiver, &request, &mut early).await?;
        taken_up = answer.map(|answer| (id, answer));
    }
    let is_new = taken_up.is_none();
    if is_new {
        // No conversation resumes the session any more.
        agent.history().failed_at.retain(|(_, session)| Some(session) != open.handle.as_ref());
    }
    if let Some(source) = open.copy_of.as_deref().filter(|_| is_new && can.fork.is_some()) {
        let request = ForkSessionRequest::new(SessionId::new(source), cwd)
            .additional_directories(others.clone())
            .mcp_servers(servers.clone());
        taken_up = fork(agent, receiver, &request, &mut early).await?;
    }
    let selection = open.selection.clone();
    if let Some((session, answer)) = taken_up {
        let settings = Settings::of_session(&mut early, &answer);
        let introduction = is_new.then_some(Introduction { transcript: None, selection });
        return Ok((AcpSession::new(session, introduction), settings, early));
    }
    let answer = ask(receiver, "session/new", &params, agent.spec.start_limit, &mut early).await?;
    let answer = answer.map_err(|failure| refused("session/new", &failure))?;
    let made: NewSessionResponse =
        serde_json::from_str(answer.get()).context("its answer to `session/new` is invalid")?;
    let session = made.session_id;
    let settings = Settings::of_session(&mut Vec::new(), &answer);
    let early = receiver.subscribe(&session.0);
    let introduction = Introduction { transcript: transcript_so_far(open).await?, selection };
    Ok((AcpSession::new(session, Some(introduction)), settings, early))
}

/// Resumes a session by the method that preserves most of it. Returns the answer; `None` if the
/// agent no longer knows the session. `session/resume` takes the same parameters as `session/load`.
async fn resume_session(
    agent: &Agent,
    running: &RunningAgent,
    receiver: &mut PeerReceiver,
    request: &LoadSessionRequest,
    of_session: &mut Vec<Box<RawValue>>,
) -> anyhow::Result<Option<Box<RawValue>>> {
    let session = &*request.session_id.0;
    let (name, limit) = (&agent.spec.name, agent.spec.start_limit);
    let can = &running.capabilities;
    let ways =
        [("session/resume", can.session_capabilities.resume.is_some()), ("session/load", can.load_session)];
    for (method, _) in ways.into_iter().filter(|(_, can)| *can) {
        let as_failed = (method, session.to_owned());
        if agent.history().failed_at.contains(&as_failed) {
            continue;
        }
        receiver.subscribe(session);
        match ask(receiver, method, request, limit, of_session).await {
            Ok(Ok(answer)) => {
                if method == "session/load" && running.quirks.replays_late {
                    drain_replay(name, receiver, limit, of_session).await;
                }
                return Ok(Some(answer));
            }
            Ok(Err(failure)) if login::is_required(&failure) => return Err(refused(method, &failure)),
            Ok(Err(failure)) => {
                tracing::info!(agent = name, method, %failure, "the agent cannot resume or load a session");
            }
            Err(error) => {
                agent.history().failed_at.insert(as_failed);
                return Err(NotResumed(format!("{error:#}")).into());
            }
        }
    }
    Ok(None)
}

/// Asks the agent to copy a session. Returns the copy and the answer; `None` if the agent refuses.
/// Some agents replay the conversation, which is no part of any turn.
async fn fork(
    agent: &Agent,
    receiver: &mut PeerReceiver,
    params: &ForkSessionRequest,
    of_session: &mut Vec<Box<RawValue>>,
) -> anyhow::Result<Option<(SessionId, Box<RawValue>)>> {
    let AgentSpec { name, start_limit, .. } = &agent.spec;
    let answer = match ask(receiver, "session/fork", params, *start_limit, of_session).await? {
        Ok(answer) => answer,
        Err(failure) => {
            tracing::info!(agent = name, %failure, "the agent cannot fork a session: the new session gets the conversation as text");
            return Ok(None);
        }
    };
    let made: ForkSessionResponse =
        serde_json::from_str(answer.get()).context("its answer to `session/fork` is invalid")?;
    of_session.extend(receiver.subscribe(&made.session_id.0));
    Ok(Some((made.session_id, answer)))
}

/// Sends a request and waits for the answer. Messages before the answer belong to earlier turns and
/// are dropped, except those about the session itself.
async fn ask(
    receiver: &mut PeerReceiver,
    method: &str,
    params: &impl Serialize,
    limit: Duration,
    of_session: &mut Vec<Box<RawValue>>,
) -> anyhow::Result<Result<Box<RawValue>, AgentError>> {
    match receiver
        .ask(method, params, limit, |receiver, message| receive(receiver, message, of_session))
        .await?
    {
        Some(answer) => Ok(answer),
        None => bail!("it ended before it answered `{method}`: {}", receiver.connection().ended().await),
    }
}

/// Handles a message received before the session is open.
fn receive(receiver: &PeerReceiver, message: PeerMessage, of_session: &mut Vec<Box<RawValue>>) {
    match message {
        PeerMessage::Request { id, method, .. } => receiver.answer(&id, too_early_answer(&method)),
        PeerMessage::Update(update) if is_of_session(&update) => of_session.push(update),
        _ => {}
    }
}

/// Waits until an agent that answers before it replays the conversation is silent for a moment.
/// Messages until then belong to the replay.
async fn drain_replay(
    name: &str,
    receiver: &mut PeerReceiver,
    limit: Duration,
    of_session: &mut Vec<Box<RawValue>>,
) {
    let replay = timeout(limit, async {
        while let Ok(Some(message)) = timeout(REPLAY_PAUSE, receiver.recv()).await {
            receive(receiver, message, of_session);
        }
    });
    if replay.await.is_err() {
        tracing::warn!(
            agent = name,
            "the replay of a loaded session is cut off: the agent still sends it after {limit:?}"
        );
    }
}

/// Returns the conversation so far as text, for an agent that does not remember it; `None` if it is
/// empty. Runs on a blocking thread, since turns may have to be read.
async fn transcript_so_far(open: &OpenConversation) -> anyhow::Result<Option<String>> {
    if open.history.is_empty() {
        return Ok(None);
    }
    let (history, attached) = (open.history.clone(), open.attached.clone());
    let text = spawn_blocking(move || content::transcript(&history, &attached));
    Ok(Some(text.await.context("the conversation so far cannot be read")?))
}

/// Creates the error for a refused request, for people.
pub(in crate::backend::acp) fn refused(method: &str, failure: &AgentError) -> anyhow::Error {
    if login::is_required(failure) {
        return login::LoginRequired(failure.to_string()).into();
    }
    anyhow!("it rejected `{method}`: {failure}")
}

/// Returns the folder in which the agent works, and the additional folders.
fn directories(agent: &Agent, open: &OpenConversation) -> anyhow::Result<(PathBuf, Vec<PathBuf>)> {
    let folder = |uri: &String| path_of(uri).map_err(|error| anyhow!("`{uri}`: {}", error.message));
    let mut folders = open.working_directories.iter().map(folder).collect::<anyhow::Result<VecDeque<_>>>()?;
    let first = match (folders.pop_front(), &agent.spec.directory) {
        (Some(folder), _) => folder,
        (None, Some(folder)) => folder.clone(),
        (None, None) => std::env::current_dir().context(
            "the host's working directory cannot be determined; configure `directory` for this agent",
        )?,
    };
    if !Path::new(&first).is_dir() {
        bail!("the working directory `{}` is not a folder", first.display());
    }
    Ok((first, folders.into()))
}
