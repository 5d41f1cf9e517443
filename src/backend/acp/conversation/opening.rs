//! Opening a conversation: an ACP session, by `session/resume`, `session/load` or `session/new`, whichever keeps
//! most of what was said.
//!
//! Owns: which of the three, the folders that the agent is told, and what its failures are for people.
//! Never: starts a turn.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::{
    LoadSessionRequest, NewSessionRequest, NewSessionResponse, ResumeSessionRequest, SessionId,
};
use ahp_types::common::JsonObject;
use anyhow::{anyhow, bail, Context};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{Conversation, Looking, AUTH_REQUIRED};
use crate::backend::acp::agent::Agent;
use crate::backend::acp::calls::Calls;
use crate::backend::acp::content;
use crate::backend::acp::peer::{Ear, Failure, Said};
use crate::host::effects::OpenConversation;
use crate::io::resources::path_of;

/// An agent that is silent for so long after it has loaded a session has replayed all of it.
const REPLAY_PAUSE: Duration = Duration::from_millis(250);

impl Conversation {
    pub(super) async fn open(agent: &Arc<Agent>, open: OpenConversation) -> anyhow::Result<Self> {
        // On a task of its own, so that it is not left half started when the conversation is closed meanwhile.
        let starting = Arc::clone(agent);
        let used =
            tokio::spawn(async move { starting.start().await }).await.context("it was not started")??;
        let running = used.running();
        let own = agent.spec.one_session.then(|| running.own());
        let mut ear = running.connection.listen();
        let (cwd, others) = directories(agent, &open)?;
        let capabilities = &running.capabilities.session_capabilities;
        let others = if capabilities.additional_directories.is_some() { others } else { Vec::new() };
        let limit = agent.spec.start_limit;
        let mut taken_up = None;
        if let Some(session) = &open.handle {
            let id = SessionId::new(session.as_str());
            let (method, answer) = if capabilities.resume.is_some() {
                let params =
                    ResumeSessionRequest::new(id.clone(), &cwd).additional_directories(others.clone());
                ear.follow(session);
                ("session/resume", Some(ask(&mut ear, "session/resume", &params, limit).await?))
            } else if running.capabilities.load_session {
                let params = LoadSessionRequest::new(id.clone(), &cwd).additional_directories(others.clone());
                ear.follow(session);
                ("session/load", Some(ask(&mut ear, "session/load", &params, limit).await?))
            } else {
                ("", None)
            };
            match answer {
                Some(Ok(_)) => {
                    if method == "session/load" {
                        hear_replay_out(&mut ear, limit).await;
                    }
                    taken_up = Some(id);
                }
                Some(Err(failure)) => {
                    tracing::info!(agent = agent.spec.name, method, %failure, "a session is not taken up again");
                }
                None => {}
            }
        }
        let (session, early, transcript) = match taken_up {
            Some(session) => (session, Vec::new(), None),
            None => {
                let params = NewSessionRequest::new(&cwd).additional_directories(others);
                let answer = ask(&mut ear, "session/new", &params, limit).await?;
                let answer = answer.map_err(|failure| refused("session/new", &failure))?;
                let made: NewSessionResponse =
                    serde_json::from_str(answer.get()).context("its answer to `session/new` does not fit")?;
                let session = made.session_id;
                let early = ear.follow(&session.0);
                let history = &open.history;
                (session, early, (!history.is_empty()).then(|| content::transcript(history, &open.attached)))
            }
        };
        Ok(Self {
            agent: Arc::clone(agent),
            running,
            _own: own,
            ear,
            session,
            early,
            transcript,
            calls: Calls::default(),
            session_info: JsonObject::new(),
            unknown_updates: JsonObject::new(),
            run: None,
            pending: VecDeque::new(),
            is_known: false,
            looking: Looking::NotYet,
        })
    }
}

/// Asks something and waits for the answer; what is said meanwhile is of what was said before.
async fn ask(
    ear: &mut Ear,
    method: &str,
    params: &impl Serialize,
    limit: Duration,
) -> anyhow::Result<Result<Box<RawValue>, Failure>> {
    let id = ear.request(method, params);
    let answered = timeout(limit, async {
        loop {
            match ear.hear().await {
                Some(Said::Answer(about, answer)) if about == id => return Some(answer),
                Some(Said::Request { id, method, .. }) => {
                    ear.answer(&id, Conversation::asked_too_early(&method));
                }
                Some(_) => {}
                None => return None,
            }
        }
    });
    match answered.await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => bail!("it ended while it was asked for `{method}`: {}", ear.connection().ended().await),
        Err(_) => bail!("it did not answer `{method}` within {limit:?}"),
    }
}

/// Some agents answer before they are done with replaying what was said: what they say is of that until they are
/// silent for a moment.
async fn hear_replay_out(ear: &mut Ear, limit: Duration) {
    let heard_out = timeout(limit, async {
        while let Ok(Some(said)) = timeout(REPLAY_PAUSE, ear.hear()).await {
            if let Said::Request { id, method, .. } = said {
                ear.answer(&id, Conversation::asked_too_early(&method));
            }
        }
    });
    if heard_out.await.is_err() {
        tracing::warn!("an agent has gone on talking after it had loaded a session");
    }
}

/// What an agent refused, for people.
pub(super) fn refused(method: &str, failure: &Failure) -> anyhow::Error {
    if failure.code == AUTH_REQUIRED {
        return anyhow!("you must log in to it first: {failure}");
    }
    anyhow!("it answered `{method}` with: {failure}")
}

/// Where the agent works, and the other folders.
fn directories(agent: &Agent, open: &OpenConversation) -> anyhow::Result<(PathBuf, Vec<PathBuf>)> {
    let folder = |uri: &String| path_of(uri).map_err(|error| anyhow!("`{uri}`: {}", error.message));
    let mut folders = open.working_directories.iter().map(folder).collect::<anyhow::Result<VecDeque<_>>>()?;
    let first = match (folders.pop_front(), &agent.spec.directory) {
        (Some(folder), _) => folder,
        (None, Some(folder)) => folder.clone(),
        (None, None) => std::env::current_dir().context("there is no folder to work in")?,
    };
    if !Path::new(&first).is_dir() {
        bail!("`{}` is not a folder", first.display());
    }
    Ok((first, folders.into()))
}
