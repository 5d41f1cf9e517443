//! Descriptions that agents give of themselves.
//!
//! Owns: storing descriptions, notifying clients when the visible part of one has changed, and
//! deciding when an agent without a description is probed.
//! Never: queries an agent itself. Until an agent reports, its stored description is used.

use ahp_types::actions::{RootAgentsChangedAction, StateAction};

use crate::host::agents::{AgentRegistry, PROBE_INTERVAL_MS};
use crate::host::effects::{
    AgentDescription, ChannelId, ChatKey, ConnectionId, Output, Record, SelfDescription,
};
use crate::host::ledger::Ledger;
use crate::host::Step;
use crate::wire::rpc::to_sorted_json;

impl AgentRegistry {
    pub(crate) fn agent_describes_itself(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
        news: SelfDescription,
    ) {
        let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
        chat.commands = news.commands.clone().or(chat.commands.take());
        let session = ledger.channels.sessions.known(chat.session);
        let Some(provider) = session.map(|session| session.state.provider.clone()) else { return };
        self.merge_description(ledger, step, &provider, news);
    }

    /// Merges a description of an agent, and notifies clients if the visible part changes.
    pub(crate) fn merge_description(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        provider: &str,
        news: SelfDescription,
    ) {
        let Some(description) = self.learn(provider, news) else { return };
        let provider = provider.to_owned();
        self.stored.retain(|(of, _)| *of != provider);
        self.stored.push((provider.clone(), description.clone()));
        step.emit(Output::Record(Record::AgentDescribed { provider, description }));
        self.announce_changed_agents(ledger, step);
    }

    /// Replaces the agents that the operator offers. Sessions of removed agents stay, and their
    /// turns continue.
    pub(crate) fn agents_are_configured(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        operators: Vec<AgentDescription>,
    ) {
        self.replace(operators);
        self.announce_changed_agents(ledger, step);
    }

    /// Notifies clients if the visible part of an agent differs from what they were last sent.
    pub(crate) fn announce_changed_agents(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        let agents = self.infos(&ledger.channels.root.decisions);
        if agents != ledger.channels.root.state.agents {
            let changed = StateAction::RootAgentsChanged(RootAgentsChangedAction { agents });
            ledger.sequence(step, ChannelId::ROOT, changed, None);
            self.note_agents(ledger, step);
        }
    }

    /// Probes an agent for its settings in the background, if they are unknown and a client needs
    /// them; at most once per `PROBE_INTERVAL_MS`.
    pub(crate) fn probe_agent(
        &mut self,
        ledger: &Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
        provider: &str,
    ) {
        let Some(agent) = self.of(provider) else { return };
        let now_ms = step.now.monotonic_ms;
        let lately = self.find(provider).is_some_and(|agent| now_ms < agent.probed_until_ms);
        if !agent.may_have_more_settings
            || lately
            || self.check_tokens(ledger, step, connection, agent).is_err()
        {
            return;
        }
        let client = ledger.presence.client_of(connection).map(str::to_owned);
        let tokens = self.tokens_for_agent(ledger, step, &client.unwrap_or_default(), agent);
        if let Some(agent) = self.find_mut(provider) {
            agent.probed_until_ms = now_ms.saturating_add(PROBE_INTERVAL_MS);
        }
        step.emit(Output::Probe { provider: provider.to_owned(), tokens });
    }

    /// Stores the checksum of the agents as clients see them; returns whether it has changed.
    pub(crate) fn note_agents(&mut self, ledger: &Ledger, step: &mut Step<'_>) -> bool {
        let sum = crc32fast::hash(&to_sorted_json(&ledger.channels.root.state.agents));
        let changed = self.sent_checksum.replace(sum) != Some(sum);
        if changed {
            step.emit(Output::Record(Record::Agents(sum)));
        }
        changed
    }
}
