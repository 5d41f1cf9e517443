//! Opening the session of a run: the agent, the options and the model.
//!
//! Owns: which session it is, and checking what the flags ask of it.
//! Never: starts a turn.

use ahp_types::commands::ListSessionsResult;
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::errors::ahp_error_codes;
use ahp_types::state::{SessionConfigPropertySchema, SessionConfigState, SessionLifecycle, SnapshotState};
use anyhow::{anyhow, Context};
use serde_json::{json, Value};
use uuid::Uuid;

use super::{unusable, RunClient, AUTH_REQUIRED, LOGIN_ADVICE};
use crate::files::uris::uri_of;
use crate::run::arguments::ChosenSession;
use crate::run::RunStop;
use crate::wire::uris::session_uri;

impl RunClient<'_> {
    pub(super) async fn open_session(&mut self) -> Result<(), RunStop> {
        let session = match &self.job.session {
            ChosenSession::New => self.create_session().await?,
            ChosenSession::Last => self.last_session().await?,
            ChosenSession::Named(uri) => uri.clone(),
        };
        let (state, seen) = match self.subscribe(&session).await? {
            Ok((SnapshotState::Session(state), seen)) => (*state, seen),
            Ok(_) => return Err(RunStop::Usage(format!("--session: `{session}` is no session"))),
            Err(error)
                if self.job.session == ChosenSession::New
                    && error.code == ahp_error_codes::SESSION_NOT_FOUND =>
            {
                return Err(RunStop::Disposed);
            }
            Err(error) => return Err(RunStop::Usage(format!("--session: {}", error.message))),
        };
        self.summary.session = Some(session.clone());
        self.summary.agent = Some(state.provider.clone());
        if let Some(agent) = self.job.agent.as_ref().filter(|agent| **agent != state.provider) {
            return Err(RunStop::Usage(format!(
                "--agent: `{session}` is a session of `{}`, not `{agent}`",
                state.provider
            )));
        }
        self.session.set(&session, seen, state);
        let chat = loop {
            self.check_not_disposed()?;
            let Some(state) = &self.session.state else { return Err(anyhow!("no session").into()) };
            match state.lifecycle {
                SessionLifecycle::Creating => {}
                SessionLifecycle::Failed => return Err(unusable(state.creation_error.clone())),
                _ => break state.default_chat.clone().context("the session has no chat")?,
            }
            self.next().await?;
        };
        self.set_options().await?;
        match self.subscribe(&chat).await? {
            Ok((SnapshotState::Chat(state), seen)) => self.chat.set(&chat, seen, *state),
            Ok(_) => return Err(anyhow!("`{chat}` is no chat").into()),
            Err(error) => return Err(anyhow!(error.message).into()),
        }
        Ok(())
    }

    pub(super) async fn create_session(&mut self) -> Result<String, RunStop> {
        let session = session_uri(Uuid::new_v4());
        let folder = uri_of(&self.job.directory);
        let mut options = serde_json::Map::new();
        if !self.job.options.is_empty() {
            let mut params = json!({ "channel": ROOT_RESOURCE_URI, "workingDirectory": folder });
            if let Some(agent) = &self.job.agent {
                params["provider"] = json!(agent);
            }
            // An agent that has not been started yet has an empty schema, or its former one.
            let resolved = self.ask("resolveSessionConfig", params).await?.ok();
            let resolved: Option<SessionConfigState> =
                resolved.map(serde_json::from_value).transpose().context("the options of the agent")?;
            for (name, text) in &self.job.options {
                let schema = resolved.as_ref().and_then(|config| config.schema.properties.get(name));
                options.insert(name.clone(), option_value(schema, text));
            }
        }
        let mut params = json!({ "channel": session, "workingDirectories": [folder], "config": options });
        if let Some(agent) = &self.job.agent {
            params["provider"] = json!(agent);
        }
        match self.ask("createSession", params).await? {
            Ok(_) => Ok(session),
            Err(error) if error.code == ahp_error_codes::PROVIDER_NOT_FOUND => {
                let agents = self.root.state.iter().flat_map(|root| &root.agents);
                let names: Vec<&str> = agents.map(|agent| agent.provider.as_str()).collect();
                let message = format!("{}; there are: {}", error.message, names.join(", "));
                Err(RunStop::Unusable("providerNotFound".to_owned(), message))
            }
            Err(error) if error.code == ahp_error_codes::AUTH_REQUIRED => {
                Err(RunStop::Unusable(AUTH_REQUIRED.to_owned(), format!("{}: {LOGIN_ADVICE}", error.message)))
            }
            Err(error) => Err(RunStop::Usage(error.message)),
        }
    }

    /// Returns the session that was changed last in the folder, of the agent if one is named.
    pub(super) async fn last_session(&mut self) -> Result<String, RunStop> {
        let listed = self.ask("listSessions", json!({ "channel": ROOT_RESOURCE_URI })).await?;
        let listed = listed.map_err(|error| anyhow!(error.message))?;
        let listed: ListSessionsResult = serde_json::from_value(listed).context("the list of sessions")?;
        let folder = uri_of(&self.job.directory);
        let is_here = |folders: &Option<Vec<String>>| folders.iter().flatten().any(|it| *it == folder);
        let mut found = listed.items.into_iter().filter(|session| {
            let is_of_agent = self.job.agent.as_ref().is_none_or(|agent| *agent == session.provider);
            is_of_agent && is_here(&session.working_directories)
        });
        let last = found.next().map(|session| session.resource);
        last.ok_or_else(|| {
            RunStop::Usage(format!("--session last: there is no session in {}", self.job.directory.display()))
        })
    }

    /// Sets those options that do not have their values yet.
    pub(super) async fn set_options(&mut self) -> Result<(), RunStop> {
        let config = self.session.state.as_ref().and_then(|state| state.config.clone());
        let mut wanted = serde_json::Map::new();
        for (name, text) in &self.job.options {
            let property = config.as_ref().and_then(|config| config.schema.properties.get(name));
            let Some(property) = property else {
                let names = config.iter().flat_map(|config| config.schema.properties.keys());
                let mut names: Vec<&str> = names.map(String::as_str).collect();
                names.sort_unstable();
                let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(RunStop::Usage(format!(
                    "--set: the agent has no option `{name}`; there are: {there}"
                )));
            };
            let value = option_value(Some(property), text);
            if config.as_ref().and_then(|config| config.values.get(name)) != Some(&value) {
                wanted.insert(name.clone(), value);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let action = json!({ "type": "session/configChanged", "config": wanted });
        let channel = self.session.channel.clone();
        let number = self.events.dispatch(&channel, action).await?;
        // The answer to a later request follows the echo of the action.
        self.ping().await?;
        match self.rejections.remove(&number) {
            Some(reason) => Err(RunStop::Usage(format!("--set: {reason}"))),
            None => Ok(()),
        }
    }

    /// Checks that the agent has the model of the run. Unless `is_known`, an agent that reports no
    /// models may not have been started yet.
    ///
    /// # Errors
    /// When it has no such model, with those that it has.
    pub(super) async fn check_model(&mut self, is_known: bool) -> Result<(), RunStop> {
        let Some(model) = &self.job.model else { return Ok(()) };
        // What the agent has reported by now is in the root's state by the answer.
        self.ping().await?;
        let (agent, models) = self.models();
        if models.contains(model) || models.is_empty() && !is_known {
            return Ok(());
        }
        Err(RunStop::Usage(match models.as_slice() {
            [] => format!("--model: the agent `{agent}` offers no models to choose from"),
            models => {
                format!(
                    "--model: the agent `{agent}` has no model `{model}`; there are: {}",
                    models.join(", ")
                )
            }
        }))
    }

    /// Returns the agent of the session, and the ids of its models.
    fn models(&self) -> (String, Vec<String>) {
        let provider = self.session.state.as_ref().map(|state| state.provider.clone()).unwrap_or_default();
        let agents = self.root.state.iter().flat_map(|root| &root.agents);
        let models: Vec<_> =
            agents.filter(|agent| agent.provider == provider).flat_map(|agent| &agent.models).collect();
        // The host shows a model that stands for none.
        let is_placeholder =
            matches!(models.as_slice(), [only] if only.id == "default" && only.name == "Default");
        let ids = models.iter().filter(|_| !is_placeholder).map(|model| model.id.clone()).collect();
        (provider, ids)
    }
}

/// Returns the value of an option: a text, unless its schema or its look says otherwise.
fn option_value(schema: Option<&SessionConfigPropertySchema>, text: &str) -> Value {
    match schema.map(|schema| schema.r#type.as_str()) {
        None if ["true", "false"].contains(&text) => (text == "true").into(),
        None | Some("string") => text.into(),
        Some(_) => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}
