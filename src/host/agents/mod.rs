//! The agents of this host.
//!
//! Owns: the one list of them, in the order in which they are offered: of each what its operator
//! says of it, what it has said of itself, how that is kept, the agent as it is used and shown,
//! which both together make, and until when it is neither asked again what it is nor used without a
//! login.
//! Never: asks an agent anything, or tells a client of one.

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
use crate::host::effects::{AgentDescription, ConnectionId, SelfDescription};
use crate::host::Start;
use crate::wire::rpc::to_sorted_json;

/// An agent that was asked what it is, and has not said it, is not asked again for so long, in
/// milliseconds.
const PROBE_INTERVAL_MS: u64 = 60_000;

/// For how long it is believed that an agent needs a login, in milliseconds: people also log in to
/// it elsewhere.
const LOGIN_NEEDED_MS: u64 = 10_000;

/// Agents of this host, and the tokens that clients have pushed for them.
#[derive(Debug)]
pub(super) struct AgentRegistry {
    /// All agents; the first one is the default.
    known: Vec<KnownAgent>,
    /// Stored descriptions that agents have given of themselves, by provider id; JSON text.
    pub(super) said: Vec<(String, Bytes)>,
    /// Checksum of what clients were told of the agents last, if they were told anything.
    pub(super) sent_checksum: Option<u32>,
    /// Tokens by the connections that they came on, and by the resources that they are for.
    pub(super) tokens: BTreeMap<ConnectionId, BTreeMap<String, HeldToken>>,
}

#[derive(Debug)]
struct KnownAgent {
    operator: AgentDescription,
    said: SelfDescription,
    /// Both: the agent as it is used and shown.
    whole: AgentDescription,
    /// Monotonic time, in milliseconds, before which the agent is not probed again.
    probed_until_ms: u64,
    /// Monotonic time, in milliseconds, until which the agent is taken to need a login.
    login_until_ms: u64,
}

/// Saved self-description of an agent.
#[derive(Serialize, Deserialize)]
struct StoredAgent<T> {
    identity: String,
    said: T,
}

impl AgentRegistry {
    /// Creates the registry of a host that starts: agents as their operator describes them, with
    /// their saved self-descriptions.
    pub(super) fn at_start(operators: Vec<AgentDescription>, start: &Start) -> Self {
        let known = operators.into_iter().map(|operator| KnownAgent::at_start(operator, &start.said));
        Self {
            known: known.collect(),
            said: start.said.clone(),
            sent_checksum: start.agents,
            tokens: BTreeMap::new(),
        }
    }

    /// Replaces all agents. What is known of one stays where it is the same program, whatever its
    /// operator says of it now; what another one has said under its name is forgotten.
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
                    KnownAgent { whole: whole(&operator, &known.said), operator, ..known }
                }
                None => KnownAgent::at_start(operator, &self.said),
            };
            self.known.push(agent);
        }
    }

    /// The agent of this provider id, as it is used and shown.
    pub(super) fn of(&self, provider: &str) -> Option<&AgentDescription> {
        self.find(provider).map(|agent| &agent.whole)
    }

    /// The agent that is used when none is named.
    pub(super) fn default(&self) -> Option<&AgentDescription> {
        self.iter().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AgentDescription> {
        self.known.iter().map(|agent| &agent.whole)
    }

    /// Returns the agents as clients are shown them.
    pub(super) fn infos(&self) -> Vec<AgentInfo> {
        self.iter().map(|agent| agent.info.clone()).collect()
    }

    /// Takes in what an agent says of itself. Returns what is to be kept of it (JSON text), if
    /// anything is new.
    pub(super) fn learn(&mut self, provider: &str, news: SelfDescription) -> Option<Bytes> {
        let agent = self.find_mut(provider)?;
        if !agent.said.learn(news) {
            return None;
        }
        agent.whole = whole(&agent.operator, &agent.said);
        Some(agent.to_stored())
    }

    /// Returns whether the agent, rather than the operator, says which settings its sessions have.
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
    fn at_start(operator: AgentDescription, said: &[(String, Bytes)]) -> Self {
        let kept = said.iter().find(|(provider, _)| *provider == operator.info.provider);
        let said = kept.and_then(|(provider, json)| {
            match serde_json::from_slice::<StoredAgent<SelfDescription>>(json) {
                Ok(kept) => (kept.identity == operator.identity).then_some(kept.said),
                Err(error) => {
                    tracing::warn!(provider, %error, "the stored description of an agent cannot be read");
                    None
                }
            }
        });
        let said = said.unwrap_or_default();
        Self { whole: whole(&operator, &said), operator, said, probed_until_ms: 0, login_until_ms: 0 }
    }

    fn to_stored(&self) -> Bytes {
        to_sorted_json(&StoredAgent { identity: self.operator.identity.clone(), said: &self.said }).into()
    }
}

/// An agent as it is used and shown.
fn whole(operator: &AgentDescription, said: &SelfDescription) -> AgentDescription {
    let mut whole = operator.clone();
    let SelfDescription {
        title, models, config, commands, capabilities, protected_resources, steers, ..
    } = said.clone();
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
    whole.commands = commands.unwrap_or(whole.commands);
    whole.steers = steers.unwrap_or(whole.steers);
    let info = &mut whole.info;
    if info.models.is_empty() {
        info.models.push(placeholder_model(&info.provider));
    }
    whole
}

/// Returns what is saved of an agent with this new self-description, merged with what was saved
/// before; JSON text.
pub fn stored_description(operator: &AgentDescription, before: &Start, news: SelfDescription) -> Bytes {
    let mut agent = KnownAgent::at_start(operator.clone(), &before.said);
    agent.said.learn(news);
    agent.to_stored()
}
