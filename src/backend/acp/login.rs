//! Logging in to an agent: the methods that it offers, as resources that clients may have a token
//! for.
//!
//! Owns: which methods there are, what is to be done with a token (the agent is asked to log in,
//! with the token as a key where it wants one, or it is started anew with the token in the variable
//! that it names), what people are told of all that, and doing it, once at a time: the request is
//! withdrawn when nobody waits for it any more.
//! Never: accepts anything on the user's behalf but to be shown a page that the login, which the
//! user has asked for, needs; shows a token, or uses one that nobody has pushed for this; does
//! anything before the agent has said that it needs a login: most list their methods at all times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahp_types::state::ProtectedResourceMetadata;
use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::time::timeout;

use super::agent::RunningAgent;
use super::conversation::{page_to_open, too_early_answer};
use super::errors::code;
use super::peer::{AgentError, PeerMessage, PeerReceiver};
use super::quirks::AgentQuirks;
use crate::backend::secrets::Secret;
use crate::backend::ReportSender;
use crate::host::effects::{Event, Token, Tokens};
use crate::wire::text;

/// Maximum number of an agent's login methods that are known.
pub const METHODS_MAX: usize = 32;

/// Maximum number of keys given to a running agent that are kept out of the log: the newest.
const SECRETS_MAX: usize = 100;

/// Time limit for a login that the agent does by itself: the user has to act in a browser.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// HTTP: the same. Some agents hand on what their model's provider has answered.
const UNAUTHORIZED: i64 = 401;

/// In the `_meta` of a login method, and of `authenticate`: that a key is wanted, and the key.
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
pub struct LoginRequired(pub String);

#[derive(Debug, Clone, PartialEq)]
pub struct LoginMethod {
    id: String,
    name: String,
    /// Instructions for the user, in the agent's words.
    description: Option<String>,
    token: TokenPurpose,
    resource: ProtectedResourceMetadata,
}

/// Purpose of a token in a login method.
#[derive(Debug, Clone, PartialEq)]
enum TokenPurpose {
    Variable(String),
    /// The key that goes with `authenticate`: all of it, or a member of an object.
    Key {
        bare: bool,
    },
    /// The user's word that it is to be done: the agent does it by itself.
    Consent,
    /// None: the login is done in a terminal, or needs more than one value. Clients are not offered
    /// a resource for it.
    Nothing,
}

/// Next step to log in to an agent.
#[derive(Debug, PartialEq)]
pub enum LoginStep {
    StartAnew,
    Ask(Box<LoginRequest>),
}

/// Request to an agent to log in by one of its methods.
#[derive(Debug, Clone, PartialEq)]
pub struct LoginRequest {
    method: LoginMethod,
    key: Option<Token>,
}

impl LoginRequest {
    /// Returns the parameters of `authenticate`. There may be a key in them.
    pub fn params(&self) -> Value {
        let mut params = json!({ "methodId": self.method.id });
        if let (TokenPurpose::Key { bare }, Some(key)) = (&self.method.token, &self.key) {
            let key = key.secret();
            params["_meta"] = json!({ KEY: if *bare { json!(key) } else { json!({ "apiKey": key }) } });
        }
        params
    }

    pub fn name(&self) -> &str {
        &self.method.name
    }
}

#[derive(Debug, Default)]
pub struct Login {
    methods: Vec<LoginMethod>,
    environment: BTreeMap<String, Token>,
    state: Mutex<LoginState>,
    /// Held by the one who logs in, so that others wait for that.
    pub at_work: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct LoginState {
    is_needed: bool,
    /// Tokens that were tried, by the ids of the methods.
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
    fn token(&self, quirks: AgentQuirks) -> TokenPurpose {
        let meta = &self.meta;
        let is_for_a_terminal = meta["type"] == "terminal" || meta["terminal-auth"].is_object();
        match self.kind.as_deref() {
            _ if is_for_a_terminal || quirks.terminal_logins.contains(&self.id.as_str()) => {
                TokenPurpose::Nothing
            }
            None | Some("agent") if !meta[KEY].is_null() => TokenPurpose::Key { bare: quirks.bare_key },
            // The address of a gateway, and what it is to be told.
            None | Some("agent") if !meta["gateway"].is_null() => TokenPurpose::Nothing,
            None | Some("agent") => TokenPurpose::Consent,
            Some("env_var") => {
                let mut needed = self.vars.iter().filter(|variable| !variable.optional);
                match (needed.next(), needed.next()) {
                    (Some(only), None) if is_name(&only.name) => TokenPurpose::Variable(only.name.clone()),
                    _ => TokenPurpose::Nothing,
                }
            }
            Some(_) => TokenPurpose::Nothing,
        }
    }
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    optional: bool,
}

/// Parses the login methods in an agent's answer to `initialize`.
pub fn methods_of(provider: &str, hello: &RawValue, quirks: AgentQuirks) -> Vec<LoginMethod> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Hello {
        #[serde(default)]
        auth_methods: Vec<Value>,
    }
    let offered = serde_json::from_str::<Hello>(hello.get()).map(|hello| hello.auth_methods);
    let offered = offered.unwrap_or_default().into_iter().take(METHODS_MAX);
    offered
        .filter_map(|method| Some(method_of(provider, serde_json::from_value(method).ok()?, quirks)))
        .collect()
}

fn method_of(provider: &str, offered: OfferedLogin, quirks: AgentQuirks) -> LoginMethod {
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
    LoginMethod { id: offered.id, name, description, token, resource }
}

/// Returns whether a text can be the name of a variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Converts login methods to the resources that clients are told. Those that need a terminal, or
/// more than a token, are left out.
pub fn resources(methods: &[LoginMethod]) -> Vec<ProtectedResourceMetadata> {
    let offered = methods.iter().filter(|method| method.token != TokenPurpose::Nothing);
    offered.map(|method| method.resource.clone()).collect()
}

pub fn advice(methods: &[LoginMethod]) -> String {
    let one = |method: &LoginMethod| {
        let name = &method.name;
        let said = method.description.as_ref().filter(|said| !said.is_empty());
        match (&method.token, said) {
            (TokenPurpose::Variable(variable), _) => {
                format!("give your client the key for \"{name}\" (or start the host with `{variable}` set)")
            }
            (TokenPurpose::Key { .. }, _) => format!("give your client the key for \"{name}\""),
            (TokenPurpose::Consent, _) => format!("have your client log in by \"{name}\""),
            (TokenPurpose::Nothing, Some(said)) => format!("outside of the host, \"{name}\": {said}"),
            (TokenPurpose::Nothing, None) => format!("outside of the host, \"{name}\""),
        }
    };
    match methods {
        [] => "Log in with the agent's own program, outside of the host: `ahp-sidecar help first-agent` says how for \
               some agents."
            .to_owned(),
        methods => format!("What can be done: {}.", methods.iter().map(one).collect::<Vec<_>>().join("; or ")),
    }
}

/// Returns the variables that an agent with these login methods is to be started with.
pub fn environment(methods: &[LoginMethod], tokens: &Tokens) -> BTreeMap<String, Token> {
    let given = methods.iter().filter_map(|method| {
        let TokenPurpose::Variable(variable) = &method.token else { return None };
        let token = tokens.get(&method.resource.resource).filter(|token| !token.secret().contains('\0'))?;
        Some((variable.clone(), token.clone()))
    });
    given.collect()
}

impl Login {
    pub fn new(
        methods: Vec<LoginMethod>,
        environment: BTreeMap<String, Token>,
        secrets: Vec<Secret>,
    ) -> Self {
        let state = LoginState { secrets: secrets.into(), ..LoginState::default() };
        Self { methods, environment, state: Mutex::new(state), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, LoginState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the agent has said that it needs a login, and has not got one since.
    pub fn is_needed(&self) -> bool {
        self.state().is_needed
    }

    /// Notes that the agent needs a login, or has got one.
    pub fn set_needed(&self, is_needed: bool) {
        self.state().is_needed = is_needed;
    }

    /// Returns whether these tokens allow a step towards the login that was not tried yet.
    pub fn can_be_helped(&self, tokens: &Tokens) -> bool {
        self.step(tokens, &self.state()).is_some()
    }

    /// Returns the next step towards the login, each only once; `None` if these tokens allow none.
    pub fn next(&self, tokens: &Tokens) -> Option<LoginStep> {
        let mut state = self.state();
        let (method, token) = self.step(tokens, &state)?;
        if matches!(method.token, TokenPurpose::Variable(_)) {
            return Some(LoginStep::StartAnew);
        }
        state.tried.insert(method.id.clone(), token.clone());
        state.secrets.push_back(Secret::register(token.secret()));
        let surplus = state.secrets.len().saturating_sub(SECRETS_MAX);
        state.secrets.drain(..surplus);
        let key = matches!(method.token, TokenPurpose::Key { .. }).then(|| token.clone());
        Some(LoginStep::Ask(Box::new(LoginRequest { method: method.clone(), key })))
    }

    /// Allows a login to be tried again whose request was withdrawn.
    pub fn is_untried(&self, asked: &LoginRequest) {
        self.state().tried.remove(&asked.method.id);
    }

    pub fn advice(&self) -> String {
        advice(&self.methods)
    }

    fn step<'a>(&'a self, tokens: &'a Tokens, state: &LoginState) -> Option<(&'a LoginMethod, &'a Token)> {
        let meant = environment(&self.methods, tokens);
        let held =
            self.methods.iter().filter_map(|method| Some((method, tokens.get(&method.resource.resource)?)));
        held.into_iter().find(|(method, token)| match &method.token {
            TokenPurpose::Variable(name) => {
                meant.contains_key(name) && meant.get(name) != self.environment.get(name)
            }
            TokenPurpose::Key { .. } | TokenPurpose::Consent => state.tried.get(&method.id) != Some(*token),
            TokenPurpose::Nothing => false,
        })
    }
}

impl RunningAgent {
    /// Logs in to the agent if it needs that and these tokens are for it; false when it must be
    /// started anew, and is being ended. Reports what it waits for.
    pub async fn log_in(&self, tokens: &Tokens, reports: &ReportSender) -> anyhow::Result<bool> {
        let _only_one = match self.login.at_work.try_lock() {
            Ok(locked) => locked,
            Err(_) => {
                tell(reports, "Waiting for a login that is under way").await;
                self.login.at_work.lock().await
            }
        };
        if !self.login.is_needed() {
            return Ok(true);
        }
        match self.login.next(tokens) {
            // Somebody may have logged in to it elsewhere. The one user is whoever calls this.
            None => Ok(!self.end_for_login(1)),
            Some(LoginStep::StartAnew) => {
                self.end("it was started anew, to be logged in");
                Ok(false)
            }
            Some(LoginStep::Ask(asked)) => {
                tell(reports, &format!("Waiting for the login: {}", asked.name())).await;
                let mut attempt = LoginAttempt::begin(self.connection.listen(), &self.login, *asked);
                let answer = timeout(LOGIN_TIMEOUT, attempt.answer(reports)).await;
                let answer = answer
                    .map_err(|_| LoginRequired(format!("nobody has logged in within {LOGIN_TIMEOUT:?}")))?;
                let Some(answer) = answer else {
                    anyhow::bail!(
                        "it ended while it was asked for `authenticate`: {}",
                        self.connection.ended().await
                    )
                };
                answer.map_err(|failure| {
                    LoginRequired(format!("it has answered `authenticate` with: {failure}"))
                })?;
                self.login.set_needed(false);
                Ok(true)
            }
        }
    }
}

async fn tell(reports: &ReportSender, what: &str) {
    reports.report(Event::Awaits { what: text::message(what) }).await;
}

/// A request to log in. Without an answer it is withdrawn when this ends, and can be made again.
struct LoginAttempt<'a> {
    receiver: PeerReceiver,
    request: u64,
    login: &'a Login,
    asked: LoginRequest,
    is_answered: bool,
}

impl<'a> LoginAttempt<'a> {
    fn begin(receiver: PeerReceiver, login: &'a Login, asked: LoginRequest) -> Self {
        let request = receiver.request("authenticate", &asked.params());
        Self { receiver, request, login, asked, is_answered: false }
    }

    /// Waits for the answer; none when the agent ends instead.
    async fn answer(&mut self, reports: &ReportSender) -> Option<Result<Box<RawValue>, AgentError>> {
        loop {
            match self.receiver.recv().await? {
                PeerMessage::Answer(about, answer) if about == self.request => {
                    self.is_answered = true;
                    return Some(answer);
                }
                PeerMessage::Request { id, method, params } => {
                    let Some((message, url)) = page_to_open(&method, &params) else {
                        self.receiver.answer(&id, too_early_answer(&method));
                        continue;
                    };
                    tell(reports, &format!("{message} {url}")).await;
                    self.receiver.answer(&id, Ok::<Value, _>(json!({ "action": "accept" })));
                }
                _ => {}
            }
        }
    }
}

impl Drop for LoginAttempt<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.login.is_untried(&self.asked);
            self.receiver.notify("$/cancel_request", &json!({ "requestId": self.request }));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(methods: Value) -> Vec<LoginMethod> {
        let hello = json!({ "authMethods": methods }).to_string();
        methods_of("a", &RawValue::from_string(hello).unwrap(), AgentQuirks::NONE)
    }

    fn token(resource: &str, token: &str) -> Tokens {
        Tokens::from([(resource.to_owned(), Token::new(token.to_owned()))])
    }

    #[test]
    fn ways_that_one_token_is_enough_for_are_resources() {
        let methods = of(json!([
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
        let told = serde_json::to_value(resources(&methods)).unwrap();
        assert_eq!(
            told,
            json!([
                { "resource": "acp-login:/a/by%20itself", "resource_name": "Log in", "required": false },
                { "resource": "acp-login:/a/key", "resource_name": "Key", "required": false,
                  "resource_documentation": "https://keys.example" },
            ])
        );
        assert!(of(Value::Null).is_empty());
        let advice = advice(&methods);
        for said in ["log in by \"Log in\"", "(or start the host with `KEY` set)", "\"Terminal\": Run it"] {
            assert!(advice.contains(said), "{advice}");
        }
    }

    #[test]
    fn each_token_is_tried_once() {
        let methods = of(json!([
            { "id": "x" }, { "id": "key", "type": "env_var", "vars": [{ "name": "KEY" }] }
        ]));
        let login =
            Login::new(methods.clone(), environment(&methods, &token("acp-login:/a/key", "old")), Vec::new());
        let ask = |tokens: &Tokens| match login.next(tokens) {
            Some(LoginStep::Ask(asked)) => Some(*asked),
            _ => None,
        };
        assert_eq!(login.next(&Tokens::new()), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "old")), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "with\0nothing")), None);
        assert_eq!(login.next(&token("acp-login:/a/key", "new")), Some(LoginStep::StartAnew));
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
            let login = Login::new(methods_of("a", &hello, quirks), BTreeMap::new(), Vec::new());
            let Some(LoginStep::Ask(asked)) = login.next(&token("acp-login:/a/k", "s")) else { panic!() };
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
