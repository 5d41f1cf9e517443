//! The agents of this host.
//!
//! Owns: the list of agents in display order. Of each agent: the operator's description, the
//! agent's description of itself, its stored form, and both merged; and the times before which it
//! is not probed again, or not used without a login.
//! Never: queries an agent, or notifies a client.

pub(super) mod adoption;
mod commands;
pub(super) mod conversations;
pub(super) mod credentials;
pub(super) mod descriptions;
pub(super) mod origins;
pub(super) mod progress;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ahp_types::state::AgentInfo;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::host::agents::credentials::HeldToken;
use crate::host::configuration::values::placeholder_model;
use crate::host::customizations::Decisions;
use crate::host::effects::{AgentDescription, ConnectionId, SelfDescription};
use crate::host::Start;
use crate::wire::rpc::to_sorted_json;

/// Minimum interval between probes of an agent, in milliseconds.
const PROBE_INTERVAL_MS: u64 = 60_000;

/// Time for which an agent is assumed to need a login, in milliseconds; short, because users can
/// also log in outside of the host.
const LOGIN_NEEDED_MS: u64 = 10_000;

#[derive(Debug)]
pub(super) struct AgentRegistry {
    /// All agents; the first one is the default.
    known: Vec<KnownAgent>,
    pub(super) stored: Vec<(String, Bytes)>,
    /// Checksum of the agents last sent to clients; `None` if none were sent.
    pub(super) sent_checksum: Option<u32>,
    pub(super) tokens: BTreeMap<ConnectionId, BTreeMap<String, HeldToken>>,
}

#[derive(Debug)]
struct KnownAgent {
    operator: AgentDescription,
    description: SelfDescription,
    /// Merged description that is used and shown.
    whole: AgentDescription,
    /// Monotonic time, in milliseconds, before which the agent is not probed again.
    probed_until_ms: u64,
    /// Monotonic time, in milliseconds, until which the agent is assumed to need a login.
    login_until_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredAgent<T> {
    identity: String,
    said: T,
}

impl AgentRegistry {
    /// Creates the registry from the operator's descriptions and the stored self-descriptions.
    pub(super) fn at_start(operators: Vec<AgentDescription>, start: &Start) -> Self {
        let known = operators.into_iter().map(|operator| KnownAgent::at_start(operator, &start.descriptions));
        Self {
            known: known.collect(),
            stored: start.descriptions.clone(),
            sent_checksum: start.agents,
            tokens: BTreeMap::new(),
        }
    }

    /// Replaces all agents. An agent with the same program keeps its self-description; the
    /// self-description of another program with the same provider id is not used.
    pub(super) fn replace(&mut self, operators: Vec<AgentDescription>) {
        let mut before = std::mem::take(&mut self.known);
        for operator in operators {
            let is_it = |known: &KnownAgent| {
                known.operator.info.provider == operator.info.provider
                    && known.operator.identity == operator.identity
            };
            let agent = match before.iter().position(is_it) {
                Some(at) => {
                    let known = before.remove(at);
                    KnownAgent { whole: whole(&operator, &known.description), operator, ..known }
                }
                None => KnownAgent::at_start(operator, &self.stored),
            };
            self.known.push(agent);
        }
    }

    pub(super) fn of(&self, provider: &str) -> Option<&AgentDescription> {
        self.find(provider).map(|agent| &agent.whole)
    }

    pub(super) fn default(&self) -> Option<&AgentDescription> {
        self.iter().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AgentDescription> {
        self.known.iter().map(|agent| &agent.whole)
    }

    /// Returns the agents as clients see them, with the decisions of clients about customizations.
    pub(super) fn infos(&self, decisions: &Decisions) -> Vec<AgentInfo> {
        self.iter().map(|agent| decisions.applied_to(agent.info.clone())).collect()
    }

    /// Merges a self-description of an agent. Returns its new stored form (JSON text) if anything
    /// has changed.
    pub(super) fn learn(&mut self, provider: &str, news: SelfDescription) -> Option<Bytes> {
        let agent = self.find_mut(provider)?;
        if !agent.description.learn(news) {
            return None;
        }
        agent.whole = whole(&agent.operator, &agent.description);
        Some(agent.to_stored())
    }

    /// Returns whether the agent, rather than the operator, defines the settings of its sessions.
    pub(super) fn settings_may_change(&self, provider: &str) -> bool {
        self.find(provider).is_some_and(|agent| agent.operator.may_have_more_settings)
    }

    fn find(&self, provider: &str) -> Option<&KnownAgent> {
        self.known.iter().find(|agent| agent.operator.info.provider == provider)
    }

    fn find_mut(&mut self, provider: &str) -> Option<&mut KnownAgent> {
        self.known.iter_mut().find(|agent| agent.operator.info.provider == provider)
    }
}

impl KnownAgent {
    fn at_start(operator: AgentDescription, stored: &[(String, Bytes)]) -> Self {
        let kept = stored.iter().find(|(provider, _)| *provider == operator.info.provider);
        let description = kept.and_then(|(provider, json)| {
            match serde_json::from_slice::<StoredAgent<SelfDescription>>(json) {
                Ok(kept) => (kept.identity == operator.identity).then_some(kept.said),
                Err(error) => {
                    tracing::warn!(
                        provider,
                        %error,
                        "the stored description of an agent cannot be read: its settings are unknown until it reports them again"
                    );
                    None
                }
            }
        });
        let description = description.unwrap_or_default();
        Self {
            whole: whole(&operator, &description),
            operator,
            description,
            probed_until_ms: 0,
            login_until_ms: 0,
        }
    }

    fn to_stored(&self) -> Bytes {
        to_sorted_json(&StoredAgent { identity: self.operator.identity.clone(), said: &self.description })
            .into()
    }
}

fn whole(operator: &AgentDescription, description: &SelfDescription) -> AgentDescription {
    let mut whole = operator.clone();
    let SelfDescription {
        title,
        models,
        config,
        commands,
        capabilities,
        protected_resources,
        steers,
        adopts,
        ..
    } = description.clone();
    let info = &mut whole.info;
    if let Some(title) = title.filter(|_| info.display_name == info.provider) {
        info.display_name = title;
    }
    if let Some(models) = models {
        info.models = models;
    }
    if let Some(can) = capabilities {
        let known = info.capabilities.get_or_insert_default();
        known.multiple_chats = can.multiple_chats.or(known.multiple_chats.take());
        known.multiple_working_directories = can.multiple_working_directories;
    }
    if let Some(resources) = protected_resources {
        info.protected_resources = Some(resources).filter(|resources| !resources.is_empty());
    }
    if let Some(config) = config {
        whole.config = config;
        whole.may_have_more_settings = false;
    }
    let own = commands::customization_of(&whole.info.provider, &whole.info.display_name, description);
    whole.info.customizations.get_or_insert_default().extend(own);
    whole.info.customizations.take_if(|all| all.is_empty());
    whole.commands = commands.unwrap_or(whole.commands);
    whole.steers = steers.unwrap_or(whole.steers);
    whole.adopts = adopts.or(whole.adopts);
    let info = &mut whole.info;
    if info.models.is_empty() {
        info.models.push(placeholder_model(&info.provider));
    }
    whole
}

/// Returns the stored form of an agent's description, after merging `news` into the one that was
/// stored before; JSON text.
pub fn stored_description(operator: &AgentDescription, before: &Start, news: SelfDescription) -> Bytes {
    let mut agent = KnownAgent::at_start(operator.clone(), &before.descriptions);
    agent.description.learn(news);
    agent.to_stored()
}
