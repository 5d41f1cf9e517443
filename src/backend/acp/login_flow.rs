//! Logging in to a running agent: `authenticate`, with what it asks the user meanwhile.
//!
//! Owns: asking for it once at a time, showing people what they are to do, and withdrawing the
//! request when nobody waits for it any more.
//! Never: accepts anything on the user's behalf but to be shown a page that the login, which the
//! user has asked for, needs.

use std::time::Duration;

use serde_json::{json, value::RawValue, Value};
use tokio::time::timeout;

use super::agent::RunningAgent;
use super::conversation::{page_to_open, too_early_answer};
use super::login::{Login, LoginRequest, LoginRequired, LoginStep};
use super::peer::{AgentError, PeerMessage, PeerReceiver};
use crate::backend::ReportSender;
use crate::host::effects::{Event, Tokens};
use crate::wire::text;

/// Time limit for a login that the agent does by itself: the user has to act in a browser.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl RunningAgent {
    /// Logs in to the agent if it needs that and these tokens are for it; false when it must be
    /// started anew, and is being ended. Reports what it waits for.
    ///
    /// # Errors
    /// When the agent refuses: [`LoginRequired`]. Or it ends meanwhile.
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
