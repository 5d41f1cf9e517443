//! Sessions that an agent stores by itself, such as those of its own terminal program.
//!
//! Owns: listing, reading and deleting them, and logging out, each in a connection without a chat.
//! Never: shows a session to a client, prompts in one, or changes one other than by deletion.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1::{
    CloseSessionRequest, DeleteSessionRequest, ListSessionsRequest, ListSessionsResponse, LoadSessionRequest,
    LogoutRequest, SessionId, SessionInfo,
};
use anyhow::{anyhow, bail, Context};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::agent::{Agent, AgentLease, DedicatedProcess, RunningAgent};
use super::conversation::too_early_answer;
use super::login;
use super::peer::{AgentError, PeerMessage, PeerReceiver};
use super::replay::{Replay, ReplayLimits};
use crate::backend::ReportSender;
use crate::files::uris::{path_of, uri_of};
use crate::host::effects::{
    AgentSession, AgentSessionsAnswer, AgentSessionsFailure, AgentSessionsQuery, OpenFailure,
    ReadAgentSession, Tokens,
};
use crate::os::paths::canonical;
use crate::wire::text;

/// Maximum number of listed sessions.
const SESSIONS_MAX: usize = 10_000;

/// Maximum number of pages that are read of an agent's list.
const PAGES_MAX: usize = 1000;

/// Maximum time for the pages of an agent's list; the rest is left out.
const LIST_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum time for which an agent replays a session.
const LOAD_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Maximum length of the id of a listed session, in bytes; those with longer ones are left out.
const ID_BYTES_MAX: usize = 1 << 10;

/// Request to an agent about its own sessions or its login, beside [`AgentSessionsQuery`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentErrand {
    /// Deletion of the session with this id.
    Delete(String),
    /// Logout.
    LogOut,
}

/// Work with an agent that needs no chat.
#[derive(Debug, Clone, Copy)]
enum SessionsTask<'a> {
    Answer(&'a AgentSessionsQuery),
    CarryOut(&'a AgentErrand),
}

/// Answers a query, logged in with these tokens if the agent requires that.
pub async fn answer(
    agent: Arc<Agent>,
    query: AgentSessionsQuery,
    tokens: Tokens,
    reports: ReportSender,
) -> Result<AgentSessionsAnswer, AgentSessionsFailure> {
    let answered = perform(&agent, SessionsTask::Answer(&query), &tokens, &reports).await;
    let answered = answered.and_then(|answer| answer.context("it has answered nothing"));
    answered.map_err(|error| {
        let mut reason = format!("the agent `{}`: {error:#}", agent.spec.name);
        let kind = if error.is::<login::LoginRequired>() {
            reason = format!("{reason}. {}", agent.login_advice());
            OpenFailure::LoginRequired
        } else {
            OpenFailure::Unavailable
        };
        AgentSessionsFailure { kind, reason }
    })
}

/// Carries out an errand.
///
/// # Errors
/// When the agent cannot be started, lacks the method, or rejects it.
pub async fn carry_out(
    agent: &Arc<Agent>,
    errand: &AgentErrand,
    reports: &ReportSender,
) -> anyhow::Result<()> {
    perform(agent, SessionsTask::CarryOut(errand), &Tokens::new(), reports).await.map(|_| ())
}

/// Starts the agent if it does not run, and does the work. Tries each remedy for a missing login
/// once.
async fn perform(
    agent: &Arc<Agent>,
    task: SessionsTask<'_>,
    tokens: &Tokens,
    reports: &ReportSender,
) -> anyhow::Result<Option<AgentSessionsAnswer>> {
    let mut failure = anyhow!("it was restarted for a login each time");
    for _ in 0..=login::METHODS_MAX {
        // Started on its own task, so that a dropped request cannot leave it half started.
        let (starting, known) = (Arc::clone(agent), tokens.clone());
        let started = tokio::spawn(async move {
            let used = starting.start(&known).await?;
            let own = starting.spec.one_session.then(|| DedicatedProcess(used.running()));
            anyhow::Ok((used, own))
        });
        let (used, _own): (AgentLease, _) = started.await.context("it could not be started")??;
        let running = used.running();
        if !running.log_in(tokens, reports).await? {
            continue;
        }
        match perform_with(agent, &running, task).await {
            Err(error) if error.is::<login::LoginRequired>() => {
                agent.require_login(&running);
                if !running.login.can_be_helped(tokens) {
                    return Err(error);
                }
                failure = error;
            }
            done => return done,
        }
    }
    Err(failure)
}

async fn perform_with(
    agent: &Agent,
    running: &RunningAgent,
    task: SessionsTask<'_>,
) -> anyhow::Result<Option<AgentSessionsAnswer>> {
    let can = &running.capabilities;
    let mut receiver = running.connection.listen();
    match task {
        SessionsTask::Answer(AgentSessionsQuery::List { directory }) => {
            let directory = directory.as_deref().map(folder).transpose()?;
            let listed = list(agent, running, &mut receiver, directory.as_deref(), None).await?;
            return Ok(Some(AgentSessionsAnswer::Listed(listed.iter().map(described).collect())));
        }
        SessionsTask::Answer(AgentSessionsQuery::Read { name, directory }) => {
            let directory = directory.as_deref().map(folder).transpose()?;
            let read = read(agent, running, name, directory).await?;
            return Ok(Some(AgentSessionsAnswer::Read(Box::new(read))));
        }
        SessionsTask::CarryOut(AgentErrand::Delete(_)) if can.session_capabilities.delete.is_none() => {
            bail!("it does not delete sessions (`session/delete`)")
        }
        SessionsTask::CarryOut(AgentErrand::Delete(id)) => {
            let id = SessionId::new(id.as_str());
            if can.session_capabilities.close.is_some() {
                // Some agents delete only closed sessions. A failure says that it is closed.
                let close = CloseSessionRequest::new(id.clone());
                let closed = ask(agent, &mut receiver, "session/close", &close).await?;
                tracing::debug!(?closed, "a session is closed before its deletion");
            }
            let delete = DeleteSessionRequest::new(id);
            accepted("session/delete", ask(agent, &mut receiver, "session/delete", &delete).await?)?;
        }
        SessionsTask::CarryOut(AgentErrand::LogOut) if can.auth.logout.is_none() => {
            bail!("it has no `logout`")
        }
        SessionsTask::CarryOut(AgentErrand::LogOut) => {
            accepted("logout", ask(agent, &mut receiver, "logout", &LogoutRequest::new()).await?)?;
        }
    }
    Ok(None)
}

/// Returns the sessions that the agent lists, of a folder if one is given. Ends with the session
/// of the id `until`, if one is given.
async fn list(
    agent: &Agent,
    running: &RunningAgent,
    receiver: &mut PeerReceiver,
    directory: Option<&Path>,
    until: Option<&str>,
) -> anyhow::Result<Vec<SessionInfo>> {
    let can = &running.capabilities;
    if can.session_capabilities.list.is_none() || !can.load_session {
        bail!("it does not list its sessions (`session/list`), or does not load them (`session/load`)");
    }
    let (mut sessions, mut ids) = (Vec::new(), BTreeSet::new());
    let (mut cursor, mut cursors) = (None, BTreeSet::new());
    let begin = Instant::now();
    for _ in 0..PAGES_MAX {
        if begin.elapsed() > LIST_TIME_MAX {
            let (agent, count) = (&agent.spec.name, sessions.len());
            tracing::warn!(agent, count, "the agent's list of sessions takes too long; the rest is left out");
            break;
        }
        let request = ListSessionsRequest::new().cwd(directory.map(Path::to_owned)).cursor(cursor.take());
        let page = accepted("session/list", ask(agent, receiver, "session/list", &request).await?)?;
        let page: ListSessionsResponse =
            serde_json::from_str(page.get()).context("its answer to `session/list` is invalid")?;
        let before = sessions.len();
        let page_sessions = match directory {
            Some(directory) => of_directory(page.sessions, directory).await?,
            None => page.sessions,
        };
        for session in page_sessions {
            let id = &*session.session_id.0;
            let is_usable = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(char::is_control);
            if is_usable && sessions.len() < SESSIONS_MAX && ids.insert(id.to_owned()) {
                sessions.push(session);
            }
        }
        let is_found = sessions.iter().skip(before).any(|session| Some(&*session.session_id.0) == until);
        cursor = page.next_cursor.filter(|cursor| !cursor.is_empty());
        // An agent may name the same page again and again.
        let is_new = cursor.as_ref().is_some_and(|cursor| cursors.insert(cursor.clone()));
        if is_found || !is_new || sessions.len() >= SESSIONS_MAX {
            break;
        }
    }
    Ok(sessions)
}

/// Returns the sessions of a folder, and those without a folder: an agent may list others, too.
async fn of_directory(mut sessions: Vec<SessionInfo>, directory: &Path) -> anyhow::Result<Vec<SessionInfo>> {
    let is_other = |cwd: &Path| cwd.is_absolute() && cwd != directory;
    if !sessions.iter().any(|session| is_other(&session.cwd)) {
        return Ok(sessions);
    }
    let certain: Vec<_> = sessions.iter().filter(|session| !is_other(&session.cwd)).cloned().collect();
    let directory = directory.to_owned();
    let compared = spawn_blocking(move || {
        // Another path may lead to the folder.
        let real = canonical(&directory).ok();
        let is_it = |cwd: &Path| {
            !cwd.is_absolute() || cwd == directory || real.is_some() && canonical(cwd).ok() == real
        };
        sessions.retain(|session| is_it(&session.cwd));
        sessions
    });
    let Ok(compared) = timeout(LIST_TIME_MAX, compared).await else {
        tracing::warn!("sessions of an agent are left out: the file system of their folders does not answer");
        return Ok(certain);
    };
    compared.context("the folders of the sessions cannot be compared")
}

/// Reads a session: what the agent lists about it, and the turns that it replays.
async fn read(
    agent: &Agent,
    running: &RunningAgent,
    name: &str,
    directory: Option<PathBuf>,
) -> anyhow::Result<ReadAgentSession> {
    let can = &running.capabilities;
    if !can.load_session {
        bail!("it does not load sessions (`session/load`)");
    }
    let mut receiver = running.connection.listen();
    let info = if can.session_capabilities.list.is_some() {
        let listed = list(agent, running, &mut receiver, None, Some(name)).await?;
        listed.into_iter().find(|info| &*info.session_id.0 == name)
    } else {
        None
    };
    let listed = info.as_ref().map(|info| info.cwd.clone()).filter(|cwd| cwd.is_absolute());
    let cwd = match directory.or(listed) {
        Some(cwd) => cwd,
        None if info.is_some() => bail!("it lists the session `{name}` without a folder; name its folder"),
        None => bail!("it lists no session `{name}`; if there is one, name its folder"),
    };
    if !cwd.is_dir() {
        bail!("the session's folder `{}` does not exist; name another one", cwd.display());
    }
    let mut replay = Replay::new(ReplayLimits::default());
    match timeout(LOAD_TIME_MAX, load(agent, running, &mut receiver, name, &cwd, &mut replay)).await {
        Ok(loaded) => loaded?,
        Err(_) => {
            receiver.connection().give_up();
            bail!("its session `{name}` has no end after {LOAD_TIME_MAX:?}");
        }
    }
    let mark = format!(
        "This conversation was begun outside of this host, in the session `{name}` of the agent. It \
         goes on from here."
    );
    let replayed = replay.finish(&mark);
    let mut session = info.as_ref().map_or_else(|| nameless(name), described);
    session.title = replayed.title.as_deref().map(text::message).or(session.title);
    session.directory = Some(uri_of(&cwd));
    Ok(ReadAgentSession { session, turns: replayed.turns, omitted: replayed.omitted })
}

/// Loads a session, and closes it again. The time limit applies to each message of the agent,
/// because a long history takes long.
async fn load(
    agent: &Agent,
    running: &RunningAgent,
    receiver: &mut PeerReceiver,
    name: &str,
    cwd: &Path,
    replay: &mut Replay,
) -> anyhow::Result<()> {
    let limit = agent.spec.start_limit;
    if !receiver.subscribe_if_free(name) {
        bail!("its session `{name}` is open in this host already");
    }
    let request = LoadSessionRequest::new(SessionId::new(name), cwd);
    let asked = receiver.request("session/load", &request);
    let mut answer = None;
    loop {
        let Ok(message) = timeout(limit, receiver.recv()).await else {
            receiver.connection().give_up();
            bail!("it did not answer `session/load` within {limit:?}");
        };
        match message {
            None => {
                bail!("it ended before it answered `session/load`: {}", receiver.connection().ended().await)
            }
            Some(PeerMessage::Answer(about, reply)) if about == asked => answer = Some(reply),
            Some(PeerMessage::Drained(about)) if about == asked => break,
            Some(PeerMessage::Update(update)) => replay.update(&update),
            Some(PeerMessage::Request { id, method, .. }) => receiver.answer(&id, too_early_answer(&method)),
            Some(_) => {}
        }
    }
    let answer = answer.context("its answer to `session/load` was lost")?;
    accepted("session/load", answer)?;
    if running.quirks.replays_late {
        while let Ok(Some(message)) = timeout(super::REPLAY_PAUSE, receiver.recv()).await {
            if let PeerMessage::Update(update) = message {
                replay.update(&update);
            }
        }
    }
    // A session that a chat has opened meanwhile stays open.
    if running.capabilities.session_capabilities.close.is_some() && receiver.is_subscribed(name) {
        let close = CloseSessionRequest::new(SessionId::new(name));
        if let Err(failure) = ask(agent, receiver, "session/close", &close).await? {
            tracing::info!(agent = agent.spec.name, %failure, "a session that was read stays open");
        }
    }
    Ok(())
}

async fn ask(
    agent: &Agent,
    receiver: &mut PeerReceiver,
    method: &str,
    params: &impl Serialize,
) -> anyhow::Result<Result<Box<RawValue>, AgentError>> {
    let handle = |receiver: &PeerReceiver, message| {
        if let PeerMessage::Request { id, method, .. } = message {
            receiver.answer(&id, too_early_answer(&method));
        }
    };
    match receiver.ask(method, params, agent.spec.start_limit, handle).await? {
        Some(answer) => Ok(answer),
        None => bail!("it ended before it answered `{method}`: {}", receiver.connection().ended().await),
    }
}

/// Returns an accepted answer.
fn accepted(method: &str, answer: Result<Box<RawValue>, AgentError>) -> anyhow::Result<Box<RawValue>> {
    answer.map_err(|failure| super::conversation::refused(method, &failure))
}

fn folder(uri: &str) -> anyhow::Result<PathBuf> {
    path_of(uri).map_err(|error| anyhow!("`{uri}`: {}", error.message))
}

fn nameless(name: &str) -> AgentSession {
    AgentSession { name: name.to_owned(), title: None, directory: None, modified_at: None }
}

fn described(info: &SessionInfo) -> AgentSession {
    let shown = |text: &String| Some(text::message(text)).filter(|text| !text.trim().is_empty());
    AgentSession {
        title: info.title.as_ref().and_then(shown),
        directory: info.cwd.is_absolute().then(|| uri_of(&info.cwd)),
        modified_at: info.updated_at.clone().filter(|time| time.parse::<Timestamp>().is_ok()),
        ..nameless(&info.session_id.0)
    }
}
