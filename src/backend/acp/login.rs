//! Logging in to an agent: the ways that it offers, as resources that clients may have a token for.
//!
//! Owns: which ways there are, what is to be done with a token (the agent is asked to log in, with
//! the token as a key where it wants one, or it is started anew with the token in the variable that
//! it names), and what people are told of all that. `logging_in` does it.
//! Never: shows a token, or uses one that nobody has pushed for this. Does nothing before the agent
//! has said that it needs a login: most list their ways at all times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahp_types::state::ProtectedResourceMetadata;
use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};

use super::errors::code;
use super::peer::AgentError;
use super::quirks::AgentQuirks;
use crate::backend::secrets::Secret;
use crate::host::effects::{Token, Tokens};
use crate::wire::text;

/// Maximum number of an agent's ways to log in that are known.
pub const WAYS_MAX: usize = 32;

/// Maximum number of keys given to a running agent that are kept out of the log: the newest.
const SECRETS_MAX: usize = 100;

/// HTTP: the same. Some agents hand on what their model's provider has answered.
const UNAUTHORIZED: i64 = 401;

/// In the `_meta` of a way to log in, and of `authenticate`: that a key is wanted, and the key.
const KEY: &str = "api-key";

/// Returns whether a failure says that the agent needs a login: by its code, or by the status of
/// its model's provider, which many agents report in words only.
pub fn is_required(failure: &AgentError) -> bool {
    let details = failure.data.as_ref().and_then(Value::as_object);
    let is_status = |name: &&str| details.and_then(|it| it.get(*name)?.as_i64()) == Some(UNAUTHORIZED);
    let says_so =
        |text: &str| text.split(|character: char| !character.is_alphanumeric()).any(|word| word == "401");
    failure.code == code::AUTH_REQUIRED
        || failure.code == UNAUTHORIZED
        || ["status", "statusCode", "code"].iter().any(is_status)
        || says_so(&failure.to_string())
}

/// The agent needs a login: why, for people.
#[derive(Debug, thiserror::Error)]
#[error("you must log in to it first: {0}")]
pub struct Required(pub String);

/// A way to log in.
#[derive(Debug, Clone, PartialEq)]
pub struct LoginWay {
    id: String,
    name: String,
    /// Instructions for the user, in the agent's words.
    description: Option<String>,
    token: TokenIs,
    resource: ProtectedResourceMetadata,
}

/// Purpose of a token in a way to log in.
#[derive(Debug, Clone, PartialEq)]
enum TokenIs {
    /// The value of this variable.
    Variable(String),
    /// The key that goes with `authenticate`: all of it, or a member of an object.
    Key { bare: bool },
    /// The user's word that it is to be done: the agent does it by itself.
    Consent,
    /// None: the login is done in a terminal, or needs more than one value. Clients are not offered
    /// a resource for it.
    Nothing,
}

/// Next step to log in to an agent.
#[derive(Debug, PartialEq)]
pub enum NextStep {
    /// Restart of the agent with another environment.
    StartAnew,
    /// Request to the agent to log in.
    Ask(Box<LoginRequest>),
}

/// In which way an agent is asked to log in.
#[derive(Debug, Clone, PartialEq)]
pub struct LoginRequest {
    way: LoginWay,
    key: Option<Token>,
}

impl LoginRequest {
    /// The parameters of `authenticate`. There may be a key in them.
    pub fn params(&self) -> Value {
        let mut params = json!({ "methodId": self.way.id });
        if let (TokenIs::Key { bare }, Some(key)) = (&self.way.token, &self.key) {
            let key = key.secret();
            params["_meta"] = json!({ KEY: if *bare { json!(key) } else { json!({ "apiKey": key }) } });
        }
        params
    }

    /// Returns the name of the way, for people.
    pub fn name(&self) -> &str {
        &self.way.name
    }
}

/// The login of a running agent.
#[derive(Debug, Default)]
pub struct Login {
    ways: Vec<LoginWay>,
    /// The variables that it was started with.
    environment: BTreeMap<String, Token>,
    state: Mutex<LoginState>,
    /// Held by the one who logs in, so that others wait for that.
    pub at_work: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct LoginState {
    is_needed: bool,
    /// Tokens that were tried, by the ids of the ways.
    tried: BTreeMap<String, Token>,
    /// Secrets that the agent was given, the newest last: it may repeat them in its output.
    secrets: VecDeque<Secret>,
}

/// A method of an `initialize` answer, as far as it matters; newer and older than the schema.
#[derive(Deserialize)]
struct OfferedLogin {
    id: String,
    name: Option<String>,
    description: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vars: Vec<Variable>,
    link: Option<String>,
    #[serde(rename = "_meta", default)]
    meta: Value,
}

impl OfferedLogin {
    /// Returns the purpose of a token for this method.
    fn token(&self, quirks: AgentQuirks) -> TokenIs {
        let meta = &self.meta;
        let is_for_a_terminal = meta["type"] == "terminal" || meta["terminal-auth"].is_object();
        match self.kind.as_deref() {
            _ if is_for_a_terminal || quirks.terminal_logins.contains(&self.id.as_str()) => TokenIs::Nothing,
            None | Some("agent") if !meta[KEY].is_null() => TokenIs::Key { bare: quirks.bare_key },
            // The address of a gateway, and what it is to be told.
            None | Some("agent") if !meta["gateway"].is_null() => TokenIs::Nothing,
            None | Some("agent") => TokenIs::Consent,
            Some("env_var") => {
                let mut needed = self.vars.iter().filter(|variable| !variable.optional);
                match (needed.next(), needed.next()) {
                    (Some(only), None) if is_name(&only.name) => TokenIs::Variable(only.name.clone()),
                    _ => TokenIs::Nothing,
                }
            }
            Some(_) => TokenIs::Nothing,
        }
    }
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    optional: bool,
}

/// The ways in an agent's answer to `initialize`.
pub fn ways(provider: &str, hello: &RawValue, quirks: AgentQuirks) -> Vec<LoginWay> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hello {
        #[serde(default)]
        auth_methods: Vec<Value>,
    }
    let offered = serde_json::from_str::<Hello>(hello.get()).map(|hello| hello.auth_methods);
    let offered = offered.unwrap_or_default().into_iter().take(WAYS_MAX);
    offered.filter_map(|method| Some(way(provider, serde_json::from_value(method).ok()?, quirks))).collect()
}

fn way(provider: &str, offered: OfferedLogin, quirks: AgentQuirks) -> LoginWay {
    let token = offered.token(quirks);
    let name = text::message(offered.name.as_deref().unwrap_or(&offered.id));
    let resource = ProtectedResourceMetadata {
        resource: format!("acp-login:/{provider}/{}", utf8_percent_encode(&offered.id, NON_ALPHANUMERIC)),
        resource_name: Some(name.clone()),
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
    let description = offered.description.as_deref().map(text::message);
    LoginWay { id: offered.id, name, description, token, resource }
}

/// Returns whether a text can be the name of a variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// The ways, as clients are told them. Those that need a terminal, or more than a token, are left
/// out.
pub fn resources(ways: &[LoginWay]) -> Vec<ProtectedResourceMetadata> {
    let offered = ways.iter().filter(|way| way.token != TokenIs::Nothing);
    offered.map(|way| way.resource.clone()).collect()
}

/// Returns instructions to log in to an agent, for people.
pub fn advice(ways: &[LoginWay]) -> String {
    let one = |way: &LoginWay| {
        let name = &way.name;
        let said = way.description.as_ref().filter(|said| !said.is_empty());
        match (&way.token, said) {
            (TokenIs::Variable(variable), _) => {
                format!("give your client the key for \"{name}\" (or start the host with `{variable}` set)")
            }
            (TokenIs::Key { .. }, _) => format!("give your client the key for \"{name}\""),
            (TokenIs::Consent, _) => format!("have your client log in by \"{name}\""),
            (TokenIs::Nothing, Some(said)) => format!("outside of the host, \"{name}\": {said}"),
            (TokenIs::Nothing, None) => format!("outside of the host, \"{name}\""),
        }
    };
    match ways {
        [] => "Log in with the agent's own program, outside of the host: `ahp-sidecar help first-agent` says how for \
               some agents."
            .to_owned(),
        ways => format!("What can be done: {}.", ways.iter().map(one).collect::<Vec<_>>().join("; or ")),
    }
}

/// The variables that an agent with these ways is to be started with.
pub fn environment(ways: &[LoginWay], tokens: &Tokens) -> BTreeMap<String, Token> {
    let given = ways.iter().filter_map(|way| {
        let TokenIs::Variable(variable) = &way.token else { return None };
        let token = tokens.get(&way.resource.resource).filter(|token| !token.secret().contains('\0'))?;
        Some((variable.clone(), token.clone()))
    });
    given.collect()
}

impl Login {
    /// The login of an agent that has just been started with these variables.
    pub fn new(ways: Vec<LoginWay>, environment: BTreeMap<String, Token>, secrets: Vec<Secret>) -> Self {
        let state = LoginState { secrets: secrets.into(), ..LoginState::default() };
        Self { ways, environment, state: Mutex::new(state), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, LoginState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the agent has said that it needs a login, and has not got one since.
    pub fn is_needed(&self) -> bool {
        self.state().is_needed
    }

    /// The agent says that it needs one, or has got one.
    pub fn set_needed(&self, is_needed: bool) {
        self.state().is_needed = is_needed;
    }

    /// Returns whether these tokens allow a step towards the login that was not tried yet.
    pub fn can_be_helped(&self, tokens: &Tokens) -> bool {
        self.step(tokens, &self.state()).is_some()
    }

    /// Returns the next step towards the login, each only once; `None` if these tokens allow none.
    pub fn next(&self, tokens: &Tokens) -> Option<NextStep> {
        let mut state = self.state();
        let (way, token) = self.step(tokens, &state)?;
        if matches!(way.token, TokenIs::Variable(_)) {
            return Some(NextStep::StartAnew);
        }
        state.tried.insert(way.id.clone(), token.clone());
        state.secrets.push_back(Secret::keep(token.secret()));
        let surplus = state.secrets.len().saturating_sub(SECRETS_MAX);
        state.secrets.drain(..surplus);
        let key = matches!(way.token, TokenIs::Key { .. }).then(|| token.clone());
        Some(NextStep::Ask(Box::new(LoginRequest { way: way.clone(), key })))
    }

    /// Allows a login to be tried again whose request was withdrawn.
    pub fn is_untried(&self, asked: &LoginRequest) {
        self.state().tried.remove(&asked.way.id);
    }

    /// Returns instructions to log in, for people.
    pub fn advice(&self) -> String {
        advice(&self.ways)
    }

    fn step<'a>(&'a self, tokens: &'a Tokens, state: &LoginState) -> Option<(&'a LoginWay, &'a Token)> {
        let meant = environment(&self.ways, tokens);
        let held = self.ways.iter().filter_map(|way| Some((way, tokens.get(&way.resource.resource)?)));
        held.into_iter().find(|(way, token)| match &way.token {
            TokenIs::Variable(name) => {
                meant.contains_key(name) && meant.get(name) != self.environment.get(name)
            }
            TokenIs::Key { .. } | TokenIs::Consent => state.tried.get(&way.id) != Some(*token),
            TokenIs::Nothing => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(methods: Value) -> Vec<LoginWay> {
        let hello = json!({ "authMethods": methods }).to_string();
        ways("a", &RawValue::from_string(hello).unwrap(), AgentQuirks::NONE)
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
            { "id": "tui", "name": "Terminal", "type": "terminal", "description": "Run it" },
            { "id": "shell", "name": "Shell", "_meta": { "terminal-auth": { "command": "x" } } },
            { "id": "old tui", "name": "Old", "_meta": { "type": "terminal" } },
            { "id": "gateway", "name": "Gateway", "_meta": { "gateway": { "protocol": "x" } } },
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
        let advice = advice(&ways);
        for said in ["log in by \"Log in\"", "(or start the host with `KEY` set)", "\"Terminal\": Run it"] {
            assert!(advice.contains(said), "{advice}");
        }
    }

    #[test]
    fn each_token_is_tried_once() {
        let ways = of(json!([
            { "id": "x" }, { "id": "key", "type": "env_var", "vars": [{ "name": "KEY" }] }
        ]));
        let login =
            Login::new(ways.clone(), environment(&ways, &token("acp-login:/a/key", "old")), Vec::new());
        let ask = |tokens: &Tokens| match login.next(tokens) {
            Some(NextStep::Ask(asked)) => Some(*asked),
            _ => None,
        };
        assert_eq!(login.next(&Tokens::new()), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "old")), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "with\0nothing")), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "new")), Some(NextStep::StartAnew));
        let go = token("acp-login:/a/x", "go");
        let asked = ask(&go).unwrap();
        assert_eq!(asked.params(), json!({ "methodId": "x" }));
        assert!(!login.can_be_helped(&go));
        login.is_untried(&asked);
        assert_eq!(ask(&go), Some(asked));
        assert!(ask(&token("acp-login:/a/x", "go again")).is_some());
    }

    #[test]
    fn a_key_goes_with_the_request_in_the_form_that_the_agent_reads() {
        let methods = json!([{ "id": "k", "_meta": { "api-key": { "provider": "x" } } }]).to_string();
        let hello = RawValue::from_string(format!("{{\"authMethods\":{methods}}}")).unwrap();
        for (quirks, meta) in [
            (AgentQuirks::NONE, json!({ "api-key": { "apiKey": "s" } })),
            (crate::backend::acp::quirks::of(Some("gemini-cli")), json!({ "api-key": "s" })),
        ] {
            let login = Login::new(ways("a", &hello, quirks), BTreeMap::new(), Vec::new());
            let Some(NextStep::Ask(asked)) = login.next(&token("acp-login:/a/k", "s")) else { panic!() };
            assert_eq!(asked.params(), json!({ "methodId": "k", "_meta": meta }));
            assert!(!format!("{asked:?}").contains("\"s\""), "{asked:?}");
        }
    }

    #[test]
    fn a_failure_may_say_in_many_ways_that_a_login_is_needed() {
        let failure = |code, message: &str, data| AgentError { code, message: message.to_owned(), data };
        assert!(is_required(&failure(-32000, "", None)));
        assert!(is_required(&failure(401, "{}", None)));
        assert!(is_required(&failure(-32603, "Internal error", Some(json!({ "details": "401 no" })))));
        assert!(is_required(&failure(
            -32603,
            "x",
            Some(json!({ "message": "unexpected status 401 Unauthorized" }))
        )));
        assert!(is_required(&failure(-32603, "x", Some(json!({ "statusCode": 401 })))));
        assert!(!is_required(&failure(-32603, "1401 lines", Some(json!({ "status": 500 })))));
    }
}
