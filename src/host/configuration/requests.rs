//! `resolveSessionConfig` and `sessionConfigCompletions`: the available settings.
//!
//! Owns: the answers, from the descriptions of agents.
//! Never: changes anything, or waits for an agent.

use ahp_types::commands::{
    ResolveSessionConfigResult, SessionConfigCompletionsResult, SessionConfigValueItem,
};

use crate::host::agents::{adoption, AgentRegistry};
use crate::host::configuration::values::{resolved, settings_of};
use crate::host::effects::{AgentDescription, ConnectionId};
use crate::host::ledger::Ledger;
use crate::host::Step;
use crate::wire::errors::RpcError;
use crate::wire::methods::{ConfigCompletionsParams, ResolveConfigParams};
use crate::wire::rpc::to_sorted_json;

/// Answers `resolveSessionConfig` with the schema for a new session and the chosen values with
/// defaults. Also probes an agent whose settings are unknown, without waiting for it.
pub(crate) fn resolve_session_config(
    ledger: &Ledger,
    agents: &mut AgentRegistry,
    step: &mut Step<'_>,
    connection: ConnectionId,
    params: &ResolveConfigParams,
) -> Result<Vec<u8>, RpcError> {
    let agent = find_agent(agents, params.provider.as_deref())?;
    let schema = &agent.config;
    let values = resolved(schema, &settings_of(agent, params.config.clone()));
    let mut resolved = ResolveSessionConfigResult { schema: schema.clone(), values };
    adoption::add_setting(agent, &mut resolved);
    let answer = to_sorted_json(&resolved);
    let provider = agent.info.provider.clone();
    agents.probe_agent(ledger, step, connection, &provider);
    Ok(answer)
}

pub(crate) fn session_config_completions(
    agents: &AgentRegistry,
    params: &ConfigCompletionsParams,
) -> Result<Vec<u8>, RpcError> {
    let schema = &find_agent(agents, params.provider.as_deref())?.config;
    let property = schema.properties.get(&params.property).ok_or_else(|| {
        RpcError::invalid_params(format_args!("`property`: `{}` is no setting", params.property))
    })?;
    let labels = property.enum_labels.as_deref().unwrap_or_default();
    let descriptions = property.enum_descriptions.as_deref().unwrap_or_default();
    let query = params.query.as_deref().unwrap_or_default().to_lowercase();
    let items = property.r#enum.iter().flatten().enumerate().map(|(at, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        SessionConfigValueItem {
            label: labels.get(at).unwrap_or(&value).clone(),
            description: descriptions.get(at).cloned(),
            value,
        }
    });
    let fits = |item: &SessionConfigValueItem| {
        [&item.value, &item.label].iter().any(|text| text.to_lowercase().contains(&query))
    };
    Ok(to_sorted_json(&SessionConfigCompletionsResult { items: items.filter(fits).collect() }))
}

/// Returns the agent of this provider, or the default agent.
pub(crate) fn find_agent<'a>(
    agents: &'a AgentRegistry,
    provider: Option<&str>,
) -> Result<&'a AgentDescription, RpcError> {
    let agent = match provider {
        None => agents.default(),
        Some(provider) => agents.of(provider),
    };
    agent.ok_or_else(|| RpcError::provider_not_found(provider.unwrap_or("(no agent is configured)")))
}
