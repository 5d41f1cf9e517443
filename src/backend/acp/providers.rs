//! Providers of models of an agent (`providers/set`): where the agent sends the requests to its
//! model, as the operator says.
//!
//! Owns: the description of such a provider, and setting it before the agent is used.
//! Never: lets an agent work that does not accept one: its requests would go elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail, Context};
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::task::spawn_blocking;

use super::peer::PeerReceiver;
use crate::backend::mcp::SecretText;
use crate::backend::secrets::Secret;

/// Provider of models as the operator describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelProvider {
    /// Protocol of its requests, in the agent's words, such as `anthropic` or `openai`.
    pub api: String,
    /// URL of its requests.
    pub url: SecretText,
    /// Headers of its requests.
    pub headers: BTreeMap<String, SecretText>,
}

/// Sets the providers of an agent with this answer to `initialize`.
///
/// # Errors
/// When a value cannot be read, or the agent does not accept a provider.
pub(super) async fn set(
    receiver: &mut PeerReceiver,
    providers: &BTreeMap<String, ModelProvider>,
    hello: &RawValue,
    limit: Duration,
) -> anyhow::Result<()> {
    if providers.is_empty() {
        return Ok(());
    }
    let hello: Value = serde_json::from_str(hello.get()).unwrap_or_default();
    if !hello["agentCapabilities"]["providers"].is_object() {
        bail!("it does not let `providers` be set: remove them from its configuration");
    }
    for (id, provider) in providers {
        let (name, described) = (id.clone(), provider.clone());
        let read = spawn_blocking(move || read(&name, &described));
        let (params, secrets) = read.await.with_context(|| format!("`providers.{id}`"))??;
        receiver.connection().hide(&secrets);
        match receiver.ask("providers/set", &params, limit, |_, _| ()).await? {
            Some(Ok(_)) => {}
            Some(Err(failure)) => bail!("it rejected the provider `{id}` (`providers/set`): {failure}"),
            None => return Err(anyhow!("it ended before it answered `providers/set`")),
        }
    }
    Ok(())
}

fn read(id: &str, provider: &ModelProvider) -> anyhow::Result<(Value, Vec<Arc<Secret>>)> {
    let mut secrets = Vec::new();
    let mut value = |text: &SecretText, is_secret: bool| -> anyhow::Result<String> {
        match is_secret || text.is_reference() {
            true => text.read_hidden(&mut secrets),
            false => text.read(),
        }
    };
    let url = value(&provider.url, false).with_context(|| format!("`providers.{id}.url`"))?;
    let headers = provider.headers.iter().map(|(name, text)| {
        let value = value(text, true).with_context(|| format!("`providers.{id}.headers.{name}`"))?;
        Ok((name.clone(), Value::from(value)))
    });
    let headers = headers.collect::<anyhow::Result<serde_json::Map<_, _>>>()?;
    let params = json!({ "providerId": id, "apiType": provider.api, "baseUrl": url, "headers": headers });
    Ok((params, secrets))
}
