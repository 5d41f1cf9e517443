//! What the agents are: what their operator says of them, and what they say of themselves.
//!
//! Owns: putting the two together, keeping what agents have said, telling clients when what they see of an agent has
//! changed, and when an agent that nobody knows is to be met.
//! Never: asks an agent anything itself. What one has not said is what was known of it before.

use ahp_types::actions::{RootAgentsChangedAction, StateAction};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::config::stand_in_model;
use super::effects::{AgentDescription, ChannelId, ChatKey, ConnectionId, Output, Record, SelfDescription};
use super::{Host, Start, Step};
use crate::wire::rpc::to_sorted_json;

/// An agent that was asked what it is, and has not said it, is not asked again for so long, in milliseconds.
const MEET_AGAIN_MS: u64 = 60_000;

/// What an agent's operator says of it, and what it has said itself.
#[derive(Debug)]
pub(super) struct Described {
    operator: AgentDescription,
    said: SelfDescription,
}

/// What is kept of what an agent has said.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    identity: String,
    said: T,
}

impl Described {
    /// An agent as it is known at the start: by its operator, and by what was kept of what it said.
    pub(super) fn at_start(operator: &AgentDescription, start: &Start) -> Self {
        let kept = start.said.iter().find(|(provider, _)| *provider == operator.info.provider);
        let said =
            kept.and_then(|(provider, json)| match serde_json::from_slice::<Kept<SelfDescription>>(json) {
                Ok(kept) => (kept.identity == operator.identity).then_some(kept.said),
                Err(error) => {
                    tracing::warn!(provider, %error, "what an agent said of itself cannot be read");
                    None
                }
            });
        Self { operator: operator.clone(), said: said.unwrap_or_default() }
    }

    /// The agent as it is used and shown.
    pub(super) fn whole(&self) -> AgentDescription {
        let mut whole = self.operator.clone();
        let SelfDescription { title, models, config, commands, capabilities, protected_resources, .. } =
            self.said.clone();
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
        let info = &mut whole.info;
        if info.models.is_empty() {
            info.models.push(stand_in_model(&info.provider));
        }
        whole
    }

    fn kept(&self) -> Bytes {
        to_sorted_json(&Kept { identity: self.operator.identity.clone(), said: &self.said }).into()
    }
}

/// What is to be kept of an agent that has said this of itself, besides what was kept of it before; JSON text.
pub fn kept_of(operator: &AgentDescription, before: &Start, news: SelfDescription) -> Bytes {
    let mut described = Described::at_start(operator, before);
    described.said.learn(news);
    described.kept()
}

impl Host {
    /// Takes in what a chat's agent says of itself.
    pub(super) fn agent_describes_itself(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        news: SelfDescription,
    ) {
        let Some(chat) = self.channels.chats.get_mut(&key) else { return };
        chat.commands = news.commands.clone().or(chat.commands.take());
        let session = self.channels.sessions.get(&chat.session);
        let Some(provider) = session.map(|session| session.state.provider.clone()) else { return };
        self.learn_of_agent(step, &provider, news);
    }

    /// Takes in what an agent says of itself, and tells clients if what they see of it changes.
    fn learn_of_agent(&mut self, step: &mut Step<'_>, provider: &str, news: SelfDescription) {
        let of_agent = |agent: &AgentDescription| agent.info.provider == provider;
        let Some(at) = self.config.agents.iter().position(of_agent) else { return };
        let Some(described) = self.described.get_mut(at).filter(|described| of_agent(&described.operator))
        else {
            return;
        };
        if !described.said.learn(news) {
            return;
        }
        let provider = provider.to_owned();
        step.say(Output::Record(Record::AgentSaid { provider, said: described.kept() }));
        self.config.agents[at] = described.whole();
        let agents: Vec<_> = self.config.agents.iter().map(|agent| agent.info.clone()).collect();
        if agents != self.channels.root.state.agents {
            let changed = StateAction::RootAgentsChanged(RootAgentsChangedAction { agents });
            self.sequence(step, ChannelId::ROOT, changed, None);
            self.note_agents(step);
        }
    }

    /// Has an agent say what its sessions can be configured by, in the background, when that is not known and a
    /// client wants to know it. One that could not is not asked again for a while.
    pub(super) fn meet_agent(&mut self, step: &mut Step<'_>, connection: ConnectionId, provider: &str) {
        let Some(agent) = self.config.agent(provider) else { return };
        let asked = self.met.get(provider);
        let lately = asked.is_some_and(|until_ms| step.now.monotonic_ms < *until_ms);
        if !agent.may_have_more_settings || lately || self.check_tokens(step, connection, agent).is_err() {
            return;
        }
        let client = self.connections.get(&connection).and_then(|client| client.client_id.clone());
        let tokens = self.tokens_for_agent(step, &client.unwrap_or_default(), agent);
        let until_ms = step.now.monotonic_ms.saturating_add(MEET_AGAIN_MS);
        self.met.insert(provider.to_owned(), until_ms);
        step.say(Output::Meet { provider: provider.to_owned(), tokens });
    }

    /// An agent has been met.
    pub(super) fn agent_was_met(&mut self, step: &mut Step<'_>, provider: &str, said: SelfDescription) {
        self.learn_of_agent(step, provider, said);
    }

    /// Whether the settings of an agent's sessions are for the agent to say, and not known for good.
    pub(super) fn settings_may_change(&self, provider: &str) -> bool {
        let mut operators = self.described.iter().map(|described| &described.operator);
        operators.any(|agent| agent.info.provider == provider && agent.may_have_more_settings)
    }

    /// Keeps the checksum of what clients are told of the agents; whether it is another one than before.
    pub(super) fn note_agents(&mut self, step: &mut Step<'_>) -> bool {
        let sum = crc32fast::hash(&to_sorted_json(&self.channels.root.state.agents));
        let changed = self.config.start.agents.replace(sum) != Some(sum);
        if changed {
            step.say(Output::Record(Record::Agents(sum)));
        }
        changed
    }
}
