//! Logging in to an agent: the ways that it offers, as resources that clients may have a token for.
//!
//! Owns: which ways there are, and what is to be done with a token: the agent is asked to log in by itself, or it is
//! started anew with the token in the variable that it names.
//! Never: shows a token, or uses one that nobody has pushed for this. Does nothing before the agent has said that it
//! needs a login: most list their ways at all times.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_client_protocol_schema::AuthenticateRequest;
use ahp_types::state::ProtectedResourceMetadata;
use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::Value;

use super::agent::Running;
use super::conversation::ask;
use super::peer::Failure;
use crate::host::effects::{Token, Tokens};
use crate::wire::text;

/// So many ways of an agent are known.
pub const WAYS_MAX: usize = 32;

/// How long an agent that logs in by itself may take: somebody has to do something in a browser.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// ACP: the user must log in first.
const AUTH_REQUIRED: i64 = -32000;

/// Whether a failure says that the agent needs a login.
pub fn is_required(failure: &Failure) -> bool {
    failure.code == AUTH_REQUIRED
}

/// The agent needs a login: why, for people.
#[derive(Debug, thiserror::Error)]
#[error("you must log in to it first: {0}")]
pub struct Required(pub String);

/// A way to log in.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    id: String,
    /// The variable that the token is for; none when the agent does it all by itself.
    variable: Option<String>,
    resource: ProtectedResourceMetadata,
}

/// What is to be done next so that an agent is logged in.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// It is to be started with another environment.
    StartAnew,
    /// It is to be asked to log in like this.
    Ask(AuthenticateRequest),
}

/// The login of a running agent.
#[derive(Debug, Default)]
pub struct Login {
    ways: Vec<Way>,
    /// The variables that it was started with.
    environment: BTreeMap<String, Token>,
    state: Mutex<State>,
    /// Held by the one who logs in, so that others wait for that.
    pub at_work: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    is_needed: bool,
    /// What it was asked for, by the ids of the ways.
    tried: BTreeMap<String, Token>,
}

/// A method of an `initialize` answer, as far as it matters; newer and older than the schema.
#[derive(Deserialize)]
struct Offered {
    id: String,
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vars: Vec<Variable>,
    link: Option<String>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    optional: bool,
}

/// The ways in an agent's answer to `initialize`. Those that need a terminal, or more than a token, are left out.
pub fn ways(provider: &str, hello: &RawValue) -> Vec<Way> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hello {
        #[serde(default)]
        auth_methods: Vec<Value>,
    }
    let offered = serde_json::from_str::<Hello>(hello.get()).map(|hello| hello.auth_methods);
    let offered = offered.unwrap_or_default().into_iter().take(WAYS_MAX);
    offered.filter_map(|method| way(provider, serde_json::from_value(method).ok()?)).collect()
}

fn way(provider: &str, offered: Offered) -> Option<Way> {
    let variable = match offered.kind.as_deref() {
        None | Some("agent") => None,
        Some("env_var") => {
            let mut needed = offered.vars.into_iter().filter(|variable| !variable.optional);
            let only = needed.next().filter(|variable| is_name(&variable.name))?;
            if needed.next().is_some() {
                return None;
            }
            Some(only.name)
        }
        Some(_) => return None,
    };
    let resource = ProtectedResourceMetadata {
        resource: format!("acp-login:/{provider}/{}", utf8_percent_encode(&offered.id, NON_ALPHANUMERIC)),
        resource_name: Some(text::message(offered.name.as_deref().unwrap_or(&offered.id))),
        authorization_servers: None,
        jwks_uri: None,
        scopes_supported: None,
        bearer_methods_supported: None,
        resource_signing_alg_values_supported: None,
        resource_documentation: offered.link,
        resource_policy_uri: None,
        resource_tos_uri: None,
        // The agent may be logged in already; and if not, another way may do.
        required: Some(false),
    };
    Some(Way { id: offered.id, variable, resource })
}

/// Whether it can be the name of a variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// The ways, as clients are told them.
pub fn resources(ways: &[Way]) -> Vec<ProtectedResourceMetadata> {
    ways.iter().map(|way| way.resource.clone()).collect()
}

/// The variables that an agent with these ways is to be started with.
pub fn environment(ways: &[Way], tokens: &Tokens) -> BTreeMap<String, Token> {
    let given = ways.iter().filter_map(|way| {
        let token = tokens.get(&way.resource.resource).filter(|token| !token.secret().contains('\0'))?;
        Some((way.variable.clone()?, token.clone()))
    });
    given.collect()
}

impl Login {
    /// The login of an agent that has just been started with these variables.
    pub fn new(ways: Vec<Way>, environment: BTreeMap<String, Token>) -> Self {
        Self { ways, environment, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the agent has said that it needs one, and has not got one since.
    pub fn is_needed(&self) -> bool {
        self.state().is_needed
    }

    /// The agent says that it needs one, or has got one.
    pub fn set_needed(&self, is_needed: bool) {
        self.state().is_needed = is_needed;
    }

    /// Whether these tokens allow to do something about it that was not done.
    pub fn can_be_helped(&self, tokens: &Tokens) -> bool {
        self.step(tokens, &self.state()).is_some()
    }

    /// What is to be done about it; each only once.
    pub fn next(&self, tokens: &Tokens) -> Option<Step> {
        let mut state = self.state();
        let (way, token) = self.step(tokens, &state)?;
        if way.variable.is_some() {
            return Some(Step::StartAnew);
        }
        state.tried.insert(way.id.clone(), token.clone());
        Some(Step::Ask(AuthenticateRequest::new(way.id.clone())))
    }

    fn step<'a>(&'a self, tokens: &'a Tokens, state: &State) -> Option<(&'a Way, &'a Token)> {
        let meant = environment(&self.ways, tokens);
        let held = self.ways.iter().filter_map(|way| Some((way, tokens.get(&way.resource.resource)?)));
        held.into_iter().find(|(way, token)| match &way.variable {
            Some(name) => meant.contains_key(name) && meant.get(name) != self.environment.get(name),
            None => state.tried.get(&way.id) != Some(*token),
        })
    }
}

impl Running {
    /// Logs in to the agent if it needs that and these tokens are for it; false when it must be started anew, and is
    /// being ended.
    ///
    /// # Errors
    /// When the agent refuses: [`Required`]. Or it ends meanwhile.
    pub async fn log_in(&self, tokens: &Tokens) -> anyhow::Result<bool> {
        let _only_one = self.login.at_work.lock().await;
        if !self.login.is_needed() {
            return Ok(true);
        }
        match self.login.next(tokens) {
            // Somebody may have logged in to it elsewhere.
            None => Ok(true),
            Some(Step::StartAnew) => {
                self.end("it was started anew, to be logged in");
                Ok(false)
            }
            Some(Step::Ask(params)) => {
                let mut ear = self.connection.listen();
                let answer = ask(&mut ear, "authenticate", &params, LIMIT, &mut Vec::new()).await?;
                answer
                    .map_err(|failure| Required(format!("it has answered `authenticate` with: {failure}")))?;
                self.login.set_needed(false);
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(methods: Value) -> Vec<Way> {
        let hello = json!({ "authMethods": methods }).to_string();
        ways("a", &RawValue::from_string(hello).unwrap())
    }

    fn token(resource: &str, token: &str) -> Tokens {
        Tokens::from([(resource.to_owned(), Token::new(token.to_owned()))])
    }

    #[test]
    fn ways_that_one_token_is_enough_for_are_resources() {
        let ways = of(json!([
            { "id": "by itself", "name": "Log in" },
            { "id": "key", "name": "Key", "type": "env_var", "link": "https://keys.example",
              "vars": [{ "name": "KEY" }, { "name": "ORGANIZATION", "optional": true }] },
            { "id": "two", "name": "Two", "type": "env_var", "vars": [{ "name": "A" }, { "name": "B" }] },
            { "id": "odd", "name": "Odd", "type": "env_var", "vars": [{ "name": "A=B" }] },
            { "id": "tui", "name": "Terminal", "type": "terminal" },
            { "no": "id" },
            7
        ]));
        let told = serde_json::to_value(resources(&ways)).unwrap();
        assert_eq!(
            told,
            json!([
                { "resource": "acp-login:/a/by%20itself", "resource_name": "Log in", "required": false },
                { "resource": "acp-login:/a/key", "resource_name": "Key", "required": false,
                  "resource_documentation": "https://keys.example" },
            ])
        );
        assert!(of(Value::Null).is_empty());
    }

    #[test]
    fn each_token_is_tried_once() {
        let ways = of(json!([
            { "id": "x" }, { "id": "key", "type": "env_var", "vars": [{ "name": "KEY" }] }
        ]));
        let login = Login::new(ways.clone(), environment(&ways, &token("acp-login:/a/key", "old")));
        let ask = || Some(Step::Ask(AuthenticateRequest::new("x")));
        assert_eq!(login.next(&Tokens::new()), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "old")), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "with\0nothing")), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "new")), Some(Step::StartAnew));
        assert_eq!(login.next(&token("acp-login:/a/x", "go")), ask());
        assert!(!login.can_be_helped(&token("acp-login:/a/x", "go")));
        assert_eq!(login.next(&token("acp-login:/a/x", "go again")), ask());
    }
}
