//! Connection of a run to its host.
//!
//! Owns: the process that joins the host, its pipes, the ids of requests, and the numbers of
//! actions.
//! Never: interprets an action, or waits for a particular answer.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use ahp_types::actions::ActionEnvelope;
use ahp_types::errors::json_rpc_error_codes::METHOD_NOT_FOUND;
use anyhow::{anyhow, Context};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::codec::FramedRead;

use super::RunStop;
use crate::codec::{InputLine, LineCodec};
use crate::os::exe;
use crate::status::EXIT_GONE;

/// Maximum length of a message from the host, in bytes. The protocol itself sets no limit.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Time for the process to end after its input has ended.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// Message of the host.
#[derive(Debug)]
pub enum HostMessage {
    /// Answer to the request with this id.
    Answer(u64, Result<Value, RequestFailure>),
    /// Action on a subscribed channel, with its text.
    Action(Box<ActionEnvelope>, String),
    /// Notification other than an action: its method and params.
    Notice(String, Value),
}

/// Error with which the host has answered a request.
#[derive(Debug, Clone, Deserialize)]
pub struct RequestFailure {
    /// Code of JSON-RPC or of the protocol.
    pub code: i32,
    /// Reason, for people.
    pub message: String,
    /// Data for programs.
    #[serde(default)]
    pub data: Option<Value>,
}

#[derive(Deserialize)]
struct MessageLine<'a> {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RequestFailure>,
}

/// Pipes to the process that joins the host.
#[derive(Debug)]
pub struct HostConnection {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: FramedRead<ChildStdout, LineCodec>,
    last_request: u64,
    last_action: i64,
}

impl HostConnection {
    /// Starts this program again, with these arguments, as the process that joins the host.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn open(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<Self> {
        let mut command = Command::from(exe::command_apart());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("this program cannot be started as a host")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the host has no stdout")?;
        let lines = FramedRead::new(stdout, LineCodec::new(MESSAGE_BYTES_MAX));
        Ok(Self { child, stdin, lines, last_request: 0, last_action: 0 })
    }

    /// Sends a request, and returns its id.
    pub async fn request(&mut self, method: &str, params: Value) -> Result<u64, RunStop> {
        self.last_request += 1;
        let id = self.last_request;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        Ok(id)
    }

    /// Asks for a change of a channel's state, and returns the number of the action.
    pub async fn dispatch(&mut self, channel: &str, action: Value) -> Result<i64, RunStop> {
        self.last_action += 1;
        let params = json!({ "channel": channel, "clientSeq": self.last_action, "action": action });
        self.send(&json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params })).await?;
        Ok(self.last_action)
    }

    async fn send(&mut self, message: &Value) -> Result<(), RunStop> {
        let line = format!("{message}\n");
        let sent = match &mut self.stdin {
            Some(stdin) => stdin.write_all(line.as_bytes()).await.is_ok(),
            None => false,
        };
        match sent {
            true => Ok(()),
            false => Err(self.gone().await),
        }
    }

    /// Waits for the next message. Cancelling the wait loses none.
    pub async fn receive(&mut self) -> Result<HostMessage, RunStop> {
        loop {
            let line = match self.lines.next().await {
                Some(Ok(InputLine::Complete(line) | InputLine::Unterminated(line))) => line,
                Some(Ok(InputLine::TooLong { .. })) => {
                    return Err(RunStop::Failed(anyhow!("a message of the host is too long")))
                }
                Some(Err(_)) | None => return Err(self.gone().await),
            };
            let text = std::str::from_utf8(&line).context("a message of the host is not UTF-8")?;
            let message: MessageLine<'_> =
                serde_json::from_str(text).context("a message of the host cannot be understood")?;
            let params = message.params.map_or("null", RawValue::get);
            match (message.method, message.id) {
                (Some(method), None) if method == "action" => {
                    let envelope = serde_json::from_str(params)
                        .with_context(|| format!("an action of the host cannot be understood: {params}"))?;
                    return Ok(HostMessage::Action(Box::new(envelope), params.to_owned()));
                }
                (Some(method), None) => {
                    let params = serde_json::from_str(params).context("a notification of the host")?;
                    return Ok(HostMessage::Notice(method, params));
                }
                (Some(method), Some(id)) => {
                    let error = json!({ "code": METHOD_NOT_FOUND, "message": format!("no `{method}` here") });
                    self.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error })).await?;
                }
                (None, None) => {
                    let why =
                        message.error.map_or("it sends an answer without an id".to_owned(), |it| it.message);
                    return Err(RunStop::Failed(anyhow!("the host refuses a message of the run: {why}")));
                }
                (None, id) => {
                    let id = id.and_then(|id| id.as_u64()).unwrap_or_default();
                    let answer = message.error.map_or(Ok(message.result.unwrap_or_default()), Err);
                    return Ok(HostMessage::Answer(id, answer));
                }
            }
        }
    }

    /// Waits for the process, which has closed its pipes, and returns its exit status as a reason.
    async fn gone(&mut self) -> RunStop {
        self.stdin = None;
        let status = self.child.wait().await.ok().and_then(|status| status.code());
        // A host that ends without a failure has been asked to leave.
        RunStop::Gone(
            status.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(EXIT_GONE),
        )
    }

    /// Ends the connection, and waits for the end of the process: by then it has released the state
    /// folder.
    pub async fn close(mut self) {
        self.stdin = None;
        if tokio::time::timeout(LEAVES_WITHIN, self.child.wait()).await.is_err() {
            tracing::debug!("the host does not end in time");
        }
    }
}
