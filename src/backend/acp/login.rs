//! Login to an agent: its login methods, as resources for which clients can push tokens.
//!
//! Owns: the methods; the use of a token (either `authenticate`, with the token as a key if the
//! method wants one, or a restart with the token in the method's variable); advice for people; and
//! the login itself, one at a time. An abandoned login request is cancelled.
//! Never: accepts anything for the user except opening a page that the requested login needs; shows
//! a token, or uses one that was pushed for something else; acts before the agent has reported that
//! it needs a login, because most agents always list their methods.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
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
use crate::sync::lock;
use crate::wire::text;

pub const METHODS_MAX: usize = 32;

/// Maximum number of a running agent's keys that are hidden from the log; the oldest are dropped.
const SECRETS_MAX: usize = 100;

/// Time limit for a login by the agent itself: the user has to act in a browser.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// HTTP status that means a missing login; some agents pass it on from their model's provider.
const UNAUTHORIZED: i64 = 401;

/// Member of `_meta` that requests a key in a login method and holds it in `authenticate`.
const KEY: &str = "api-key";

/// Returns whether an error says that a login is needed: by its code, or by the HTTP status of the
/// model's provider, which many agents report only as text.
pub fn is_required(failure: &AgentError) -> bool {
    let details = failure.data.as_ref().and_then(Value::as_object);
    let is_status = |name: &&str| details.and_then(|it| it.get(*name)?.as_i64()) == Some(UNAUTHORIZED);
    failure.code == code::AUTH_REQUIRED
        || failure.code == UNAUTHORIZED
        || ["status", "statusCode", "code"].iter().any(is_status)
        || names_unauthorized(&failure.to_string())
}

/// Returns whether a text names the HTTP status 401, and not another number 401.
fn names_unauthorized(text: &str) -> bool {
    let text = text.to_lowercase();
    text.match_indices("401").any(|(at, number)| {
        let (before, after) = (&text[..at], &text[at + number.len()..]);
        if before.ends_with(char::is_alphanumeric) || after.starts_with(char::is_alphanumeric) {
            return false;
        }
        let is_letter = |character: char| character.is_alphabetic();
        let last = before.trim_end_matches(|character| !is_letter(character));
        let next = after.trim_start_matches(|character| !is_letter(character));
        let is_in_brackets = before.ends_with(['(', '[']) && after.starts_with([')', ']']);
        let is_at_begin = before.is_empty() || before.ends_with(": ");
        let is_named = ["status", "code", "error", "http"].iter().any(|name| last.ends_with(name));
        is_at_begin || is_in_brackets || is_named || next.starts_with("unauthori")
    })
}

/// Login that the agent needs, with the reason for people.
#[derive(Debug, thiserror::Error)]
#[error("it requires a login: {}", text::one_line(.0))]
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

#[derive(Debug, Clone, PartialEq)]
enum TokenPurpose {
    Variable(String),
    /// Key in `_meta` of `authenticate`: the value itself if `bare`, else a member of an object.
    Key {
        bare: bool,
    },
    /// Consent of the user to a login that the agent performs by itself.
    Consent,
    /// None: the login needs a terminal or several values, and clients get no resource for it.
    Nothing,
}

#[derive(Debug, PartialEq)]
pub enum LoginStep {
    StartAnew,
    Ask(Box<LoginRequest>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct LoginRequest {
    method: LoginMethod,
    key: Option<Token>,
}

impl LoginRequest {
    /// Returns the parameters of `authenticate`, which may contain a key.
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
    /// Lock held during a login, so that others wait for its end.
    pub at_work: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct LoginState {
    is_needed: bool,
    /// Tokens that were tried, by method id.
    tried: BTreeMap<String, Token>,
    /// Tokens given to the agent, newest last: it may repeat them in its output.
    secrets: VecDeque<Secret>,
}

/// Login method in an answer to `initialize`, accepting members older and newer than the schema.
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
            // Gateways need several values.
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
        // The agent may be logged in already, and other methods may do.
        required: Some(false),
    };
    let description = offered.description.as_deref().map(text::message);
    LoginMethod { id: offered.id, name, description, token, resource }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Converts login methods to resources for clients, without those that one token cannot serve.
pub fn resources(methods: &[LoginMethod]) -> Vec<ProtectedResourceMetadata> {
    let offered = methods.iter().filter(|method| method.token != TokenPurpose::Nothing);
    offered.map(|method| method.resource.clone()).collect()
}

pub fn advice(methods: &[LoginMethod]) -> String {
    let one = |method: &LoginMethod| {
        let name = &method.name;
        let description = method.description.as_ref().filter(|description| !description.is_empty());
        match (&method.token, description) {
            (TokenPurpose::Variable(variable), _) => {
                format!(
                    "enter the key for \"{name}\" in your client (or start the host with `{variable}` set)"
                )
            }
            (TokenPurpose::Key { .. }, _) => format!("enter the key for \"{name}\" in your client"),
            (TokenPurpose::Consent, _) => format!("log in with \"{name}\" in your client"),
            (TokenPurpose::Nothing, Some(description)) => {
                format!("log in with \"{name}\" outside of the host: {description}")
            }
            (TokenPurpose::Nothing, None) => format!("log in with \"{name}\" outside of the host"),
        }
    };
    match methods {
        [] => "Log in with the agent's own program; `ahp-sidecar help first-agent` describes this for some agents."
            .to_owned(),
        methods => format!("Ways to log in: {}.", methods.iter().map(one).collect::<Vec<_>>().join("; or ")),
    }
}

/// Returns the variables, with their tokens, for the start of an agent with these login methods.
pub fn environment(methods: &[LoginMethod], tokens: &Tokens) -> BTreeMap<String, Token> {
    let given = methods.iter().filter_map(|method| {
        let TokenPurpose::Variable(variable) = &method.token else { return None };
        let token = tokens.get(&method.resource.resource).filter(|token| !token.secret().contains('\0'))?;
        Some((variable.clone(), token.clone()))
    });
    given.collect()
}

impl Login {
    pub fn new(methods: Vec<LoginMethod>, environment: BTreeMap<String, Token>) -> Self {
        Self { methods, environment, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, LoginState> {
        lock(&self.state)
    }

    /// Returns whether the agent has reported that it needs a login, and none has succeeded since.
    pub fn is_needed(&self) -> bool {
        self.state().is_needed
    }

    pub fn set_needed(&self, is_needed: bool) {
        self.state().is_needed = is_needed;
    }

    /// Returns whether these tokens allow a login step that was not tried yet.
    pub fn can_be_helped(&self, tokens: &Tokens) -> bool {
        self.step(tokens, &self.state()).is_some()
    }

    /// Returns the next login step, each only once per token; `None` if these tokens allow none.
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

    /// Allows a cancelled login to be tried again.
    pub fn forget_attempt(&self, asked: &LoginRequest) {
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
    /// Logs in to the agent if it needs a login and these tokens allow one; reports what it waits
    /// for. Returns false if another process of the agent must be started. Errors if the login
    /// fails.
    pub async fn log_in(&self, tokens: &Tokens, reports: &ReportSender) -> anyhow::Result<bool> {
        let _only_one = match self.login.at_work.try_lock() {
            Ok(locked) => locked,
            Err(_) => {
                report_activity(reports, "Waiting for another login to finish").await;
                self.login.at_work.lock().await
            }
        };
        if !self.login.is_needed() {
            return Ok(true);
        }
        match self.login.next(tokens) {
            // A login may have been done elsewhere. The caller holds one lease.
            None => Ok(!self.end_for_login(1)),
            Some(LoginStep::StartAnew) => {
                // Turns of others go on in this process.
                self.replace(1, "it was restarted to log in");
                Ok(false)
            }
            Some(LoginStep::Ask(asked)) => {
                report_activity(reports, &format!("Waiting for the login: {}", asked.name())).await;
                let mut attempt = LoginAttempt::begin(self.connection.listen(), &self.login, *asked);
                let answer = timeout(LOGIN_TIMEOUT, attempt.answer(reports)).await;
                let answer = answer.map_err(|_| {
                    LoginRequired(format!("the login was not completed within {LOGIN_TIMEOUT:?}"))
                })?;
                let Some(answer) = answer else {
                    anyhow::bail!(
                        "it ended before it answered `authenticate`: {}",
                        self.connection.ended().await
                    )
                };
                answer.map_err(|failure| LoginRequired(format!("it rejected `authenticate`: {failure}")))?;
                self.login.set_needed(false);
                Ok(true)
            }
        }
    }
}

async fn report_activity(reports: &ReportSender, what: &str) {
    reports.report(Event::Awaits { what: text::message(what) }).await;
}

/// Login request, cancelled on drop if it is unanswered; it can then be made again.
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

    /// Waits for the answer; `None` if the agent ends instead.
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
                    report_activity(reports, &format!("{message} {url}")).await;
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
            self.login.forget_attempt(&self.asked);
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
        let shown = serde_json::to_value(resources(&methods)).unwrap();
        assert_eq!(
            shown,
            json!([
                { "resource": "acp-login:/a/by%20itself", "resource_name": "Log in", "required": false },
                { "resource": "acp-login:/a/key", "resource_name": "Key", "required": false,
                  "resource_documentation": "https://keys.example" },
            ])
        );
        assert!(of(Value::Null).is_empty());
        let advice = advice(&methods);
        for expected in [
            "log in with \"Log in\"",
            "(or start the host with `KEY` set)",
            "\"Terminal\" outside of the host: Run it",
        ] {
            assert!(advice.contains(expected), "{advice}");
        }
    }

    #[test]
    fn each_token_is_tried_once() {
        let methods = of(json!([
            { "id": "x" }, { "id": "key", "type": "env_var", "vars": [{ "name": "KEY" }] }
        ]));
        let login = Login::new(methods.clone(), environment(&methods, &token("acp-login:/a/key", "old")));
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
        login.forget_attempt(&asked);
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
            let login = Login::new(methods_of("a", &hello, quirks), BTreeMap::new());
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
        for text in [
            "API Error: 401 {\"type\":\"error\"}",
            "Request failed with status code 401",
            "HTTP/1.1 401",
            "failed (401)",
            "{\"status\":401}",
        ] {
            assert!(is_required(&failure(-32603, text, None)), "{text}");
        }
        assert!(!is_required(&failure(-32603, "1401 lines", Some(json!({ "status": 500 })))));
        for text in
            ["`a.rs` ends in line 401", "lines 390 to 401", "a.rs:401:7: no type", "error 2 in (401 lines)"]
        {
            let data = json!({ "lines": 401, "details": text });
            assert!(!is_required(&failure(-32603, text, None)), "{text}");
            assert!(!is_required(&failure(-32603, "x", Some(data))), "{text}");
        }
    }
}
