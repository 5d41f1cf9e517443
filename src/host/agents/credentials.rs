//! Tokens: those that clients have pushed, the agents that need one, and the clients to notify of a
//! missing one.
//!
//! Owns: storing tokens with their connection, and sending them to the agents that declare their
//! resource, on behalf of the client that last requested work.
//! Never: writes a token anywhere: not into a state, a record, a frame, an error or the log.

use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::notifications::{AuthRequiredParams, AuthRequiredReason};
use ahp_types::state::ProtectedResourceMetadata;
use bytes::Bytes;
use serde_json::{Map, Value};

use crate::host::agents::{AgentRegistry, LOGIN_NEEDED_MS};
use crate::host::effects::{AgentDescription, ChatKey, Command, ConnectionId, Frame, Output, Token, Tokens};
use crate::host::ledger::Ledger;
use crate::host::model::AgentLink;
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::wire::errors::{needed, RpcError};
use crate::wire::rpc::{to_sorted_json, Params};

const TOKEN_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct HeldToken {
    pub(crate) token: Token,
    /// Expiry by the monotonic clock, in milliseconds; `None` if the token does not expire.
    pub(crate) until_ms: Option<u64>,
}

/// Params of `authenticate`. Parsed by hand, because an error must not quote the token.
struct Pushed {
    resource: String,
    token: String,
    expires_in: Option<u64>,
}

impl Pushed {
    fn read(params: &Params) -> Result<Self, RpcError> {
        let mut members: Map<String, Value> = params
            .read()
            .map_err(|_| RpcError::invalid_params("the params of `authenticate` cannot be read"))?;
        let mut text = |name: &str| match members.remove(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(RpcError::invalid_params(format_args!("`{name}` must be a string"))),
            None => Err(RpcError::invalid_params(format_args!("missing field `{name}`"))),
        };
        let (resource, token) = (text("resource")?, text("token")?);
        if token.len() > TOKEN_BYTES_MAX {
            return Err(RpcError::invalid_params(format_args!(
                "`token` must not be longer than {TOKEN_BYTES_MAX} bytes"
            )));
        }
        let expires_in = match members.get("expiresIn").filter(|it| !it.is_null() && !token.is_empty()) {
            None => None,
            Some(seconds) => match seconds.as_u64().filter(|seconds| *seconds > 0) {
                None => return Err(RpcError::invalid_params("`expiresIn` must be a positive integer")),
                some => some,
            },
        };
        Ok(Self { resource, token, expires_in })
    }
}

/// Returns the resources of which one token suffices, once the agent has reported that it needs a
/// login.
fn logins(agent: &AgentDescription) -> Vec<ProtectedResourceMetadata> {
    let mut logins: Vec<_> =
        declared(agent).iter().filter(|resource| resource.required == Some(false)).cloned().collect();
    if let [only] = &mut logins[..] {
        only.required = None;
    }
    logins
}

fn declared(agent: &AgentDescription) -> &[ProtectedResourceMetadata] {
    agent.info.protected_resources.as_deref().unwrap_or_default()
}

impl AgentRegistry {
    /// Stores a token for a resource that an agent declares; an empty token removes the stored one.
    pub(crate) fn authenticate(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: &Params,
    ) -> Result<(), RpcError> {
        let Pushed { resource, token, expires_in } = Pushed::read(params)?;
        if !self.iter().flat_map(declared).any(|known| known.resource == resource) {
            return Err(RpcError::invalid_params(format_args!(
                "no agent of this host declares the resource `{resource}`"
            )));
        }
        let Some(client) = ledger.presence.connections.get(&connection) else { return Ok(()) };
        let tokens = self.tokens.entry(connection).or_default();
        if token.is_empty() {
            tokens.remove(&resource);
        } else {
            let lasts_ms = expires_in.map(|seconds| seconds.saturating_mul(1000));
            let until_ms = lasts_ms.map(|lasts_ms| step.now.monotonic_ms.saturating_add(lasts_ms));
            tokens.insert(resource, HeldToken { token: Token::new(token), until_ms });
        }
        let client_id = client.client_id.clone();
        let of_client = ledger
            .channels
            .chats
            .iter()
            .filter(|(_, chat)| chat.requesting_client == client_id)
            .map(|(&key, _)| key);
        for chat in of_client.collect::<Vec<_>>() {
            self.send_tokens(ledger, step, chat);
        }
        Ok(())
    }

    /// Drops the tokens of a connection that was closed, or that another client uses now.
    pub(crate) fn remove_tokens(&mut self, connection: ConnectionId) {
        self.tokens.remove(&connection);
    }

    /// Checks that a client has the tokens that an agent requires. Fails with `-32007` and the
    /// resources without a token.
    pub(crate) fn check_tokens(
        &self,
        ledger: &Ledger,
        step: &Step<'_>,
        connection: ConnectionId,
        agent: &AgentDescription,
    ) -> Result<(), RpcError> {
        let client = ledger.presence.client_of(connection);
        let missing = self.missing_tokens(ledger, step, client.unwrap_or_default(), agent);
        if missing.is_empty() {
            return Ok(());
        }
        Err(RpcError::auth_required(&agent.info.display_name, &missing))
    }

    /// Checks that a client may start the agent of a chat. If not, notifies the client of the
    /// missing tokens.
    pub(crate) fn check_tokens_for_turn(
        &self,
        ledger: &Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
        client_id: &str,
    ) -> Result<(), Refusal> {
        let Some(agent) = self.agent_of(ledger, key) else { return Ok(()) };
        let missing = self.missing_tokens(ledger, step, client_id, agent);
        if missing.is_empty() {
            return Ok(());
        }
        let refusal =
            Refusal::TokenNeeded { agent: agent.info.display_name.clone(), resources: needed(&missing) };
        for resource in missing {
            ask_for_token(ledger, step, client_id, resource, AuthRequiredReason::Required);
        }
        Err(refusal)
    }

    pub(crate) fn agent_of(&self, ledger: &Ledger, key: ChatKey) -> Option<&AgentDescription> {
        let provider =
            &ledger.channels.sessions.known(ledger.channels.chats.known(key)?.session)?.state.provider;
        self.of(provider)
    }

    fn tokens_of(&self, ledger: &Ledger, step: &Step<'_>, client_id: &str) -> Tokens {
        let connections = ledger.presence.connections_of(client_id);
        let held = connections.filter_map(|(connection, _)| self.tokens.get(&connection)).flatten();
        held.filter(|(_, held)| held.until_ms.is_none_or(|until_ms| step.now.monotonic_ms < until_ms))
            .map(|(resource, held)| (resource.clone(), held.token.clone()))
            .collect()
    }

    fn missing_tokens(
        &self,
        ledger: &Ledger,
        step: &Step<'_>,
        client_id: &str,
        agent: &AgentDescription,
    ) -> Vec<ProtectedResourceMetadata> {
        let tokens = self.tokens_of(ledger, step, client_id);
        let needed = declared(agent).iter().filter(|resource| resource.required != Some(false));
        let missing = needed.filter(|resource| !tokens.contains_key(&resource.resource)).cloned();
        let mut missing: Vec<_> = missing.collect();
        let known = self.find(&agent.info.provider);
        if known.is_some_and(|agent| step.now.monotonic_ms < agent.login_until_ms) {
            let logins = logins(agent);
            if !logins.iter().any(|login| tokens.contains_key(&login.resource)) {
                missing.extend(logins);
            }
        }
        missing
    }

    /// Notifies the client of a chat whose agent needs a login. Tokens that the agent has already
    /// tried are dropped.
    pub(crate) fn login_is_required(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
        let Some(agent) = self.agent_of(ledger, key) else { return };
        let (provider, logins) = (agent.info.provider.clone(), logins(agent));
        if let Some(agent) = self.find_mut(&provider) {
            agent.login_until_ms = step.now.monotonic_ms.saturating_add(LOGIN_NEEDED_MS);
        }
        let Some(chat) = ledger.channels.chats.known(key) else { return };
        let (requesting_client, had) = (chat.requesting_client.clone(), chat.tokens_sent.clone());
        let Some(client_id) = requesting_client else { return };
        let has = self.tokens_of(ledger, step, &client_id);
        for login in logins {
            let token = had.get(&login.resource);
            let reason = if token.is_some() && token == has.get(&login.resource) {
                self.remove_token(ledger, key, &client_id, &login.resource);
                AuthRequiredReason::Expired
            } else {
                AuthRequiredReason::Required
            };
            ask_for_token(ledger, step, &client_id, login, reason);
        }
    }

    fn remove_token(&mut self, ledger: &mut Ledger, key: ChatKey, client_id: &str, resource: &str) {
        for (connection, _) in ledger.presence.connections_of(client_id) {
            if let Some(tokens) = self.tokens.get_mut(&connection) {
                tokens.remove(resource);
            }
        }
        if let Some(chat) = ledger.channels.chats.known_mut(key) {
            chat.tokens_sent.remove(resource);
        }
    }

    /// Returns the tokens for a chat's agent: those of the client that last requested work, for the
    /// resources that the agent declares.
    pub(super) fn tokens_for(&self, ledger: &Ledger, step: &Step<'_>, key: ChatKey) -> Tokens {
        let requesting_client =
            ledger.channels.chats.known(key).and_then(|chat| chat.requesting_client.as_deref());
        let (Some(client_id), Some(agent)) = (requesting_client, self.agent_of(ledger, key)) else {
            return Tokens::new();
        };
        self.tokens_for_agent(ledger, step, client_id, agent)
    }

    pub(super) fn tokens_for_agent(
        &self,
        ledger: &Ledger,
        step: &Step<'_>,
        client_id: &str,
        agent: &AgentDescription,
    ) -> Tokens {
        let mut tokens = self.tokens_of(ledger, step, client_id);
        tokens.retain(|resource, _| declared(agent).iter().any(|known| known.resource == *resource));
        tokens
    }

    /// Sends a chat's agent its tokens if they differ from those last sent and the conversation is
    /// open.
    pub(crate) fn send_tokens(&self, ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
        let tokens = self.tokens_for(ledger, step, key);
        let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open)
        else {
            return;
        };
        if chat.tokens_sent != tokens {
            chat.tokens_sent.clone_from(&tokens);
            step.send_to_agent(key, Command::Tokens(tokens));
        }
    }

    /// Drops a token that an agent has rejected, and requests another one from its client.
    pub(crate) fn token_was_refused(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
        resource: &str,
    ) {
        let metadata = self
            .agent_of(ledger, key)
            .into_iter()
            .flat_map(declared)
            .find(|known| known.resource == resource);
        let (Some(chat), Some(metadata)) = (ledger.channels.chats.known(key), metadata.cloned()) else {
            tracing::warn!(?key, resource, "an agent needs a login for a resource that it does not declare");
            return;
        };
        let Some(client_id) = chat.requesting_client.clone() else { return };
        self.remove_token(ledger, key, &client_id, resource);
        ask_for_token(ledger, step, &client_id, metadata, AuthRequiredReason::Expired);
    }
}

fn ask_for_token(
    ledger: &Ledger,
    step: &mut Step<'_>,
    client_id: &str,
    resource: ProtectedResourceMetadata,
    reason: AuthRequiredReason,
) {
    let channel = ROOT_RESOURCE_URI.to_owned();
    let params = AuthRequiredParams { channel, resource, reason: Some(reason) };
    let params = Bytes::from(to_sorted_json(&params));
    for (connection, _) in ledger.presence.connections_of(client_id) {
        let frame = Frame::Notification { method: "auth/required", params: params.clone() };
        step.emit(Output::Frame(connection, frame));
    }
}
