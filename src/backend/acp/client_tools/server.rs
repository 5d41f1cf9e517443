//! MCP server in the host: the few methods that serving tools requires.
//!
//! Owns: one connection, its lines and its unanswered calls.
//! Never: carries out a call, or blocks other requests until one is answered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio_util::codec::FramedRead;

use super::{refusal, OfferedTools};
use crate::backend::acp::errors::code;
use crate::codec::{InputLine, LineCodec};
use crate::os::sockets::{split, LocalReadHalf, LocalWriteHalf, Stream};

/// Supported versions of MCP, newest first. The served methods are the same in all of them.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const LINE_BYTES_MAX: usize = 16 << 20;

#[derive(Debug)]
pub enum ToolServerEvent {
    /// The agent has listed the tools.
    Listed,
    Called(ClientToolCall),
    /// Number of a call that the agent has cancelled.
    Withdrawn(u64),
}

#[derive(Debug)]
pub struct ClientToolCall {
    pub number: u64,
    pub tool: String,
    pub arguments: Value,
    /// Texts from `_meta`, which may include the agent's own id of the call.
    pub mentions: Vec<String>,
    /// Channel for the result, used once.
    pub results: mpsc::UnboundedSender<(u64, Value)>,
}

impl ClientToolCall {
    pub fn answer(&self, result: Value) {
        if self.results.send((self.number, result)).is_err() {
            tracing::debug!(
                tool = self.tool,
                "the result of a client's tool was dropped: the agent no longer waits for it"
            );
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct SharedTools {
    pub(super) tools: watch::Receiver<Arc<OfferedTools>>,
    pub(super) events: mpsc::Sender<ToolServerEvent>,
    /// Tools that were last sent to the agent.
    pub(super) lists: watch::Sender<Option<Arc<OfferedTools>>>,
    pub(super) calls: Arc<AtomicU64>,
}

pub(super) struct Lines {
    input: FramedRead<LocalReadHalf, LineCodec>,
    output: LocalWriteHalf,
}

impl Lines {
    pub(super) fn new(stream: Stream) -> Self {
        let (input, output) = split(stream);
        Self { input: FramedRead::new(input, LineCodec::new(LINE_BYTES_MAX)), output }
    }

    /// Receives the next line; `None` at the end, on errors and for a long line. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<String> {
        match self.input.next().await? {
            Ok(InputLine::Complete(line)) => Some(String::from_utf8_lossy(&line).trim().to_owned()),
            Ok(InputLine::Unterminated(_) | InputLine::TooLong { .. }) => None,
            Err(error) => {
                tracing::debug!(%error, "a connection to the MCP server for clients' tools cannot be read");
                None
            }
        }
    }

    async fn send(&mut self, mut message: Value) -> std::io::Result<()> {
        message["jsonrpc"] = "2.0".into();
        self.output.write_all(format!("{message}\n").as_bytes()).await
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
}

struct ServedConnection {
    link: SharedTools,
    /// Agent's request ids of the unanswered calls, by number.
    open: HashMap<u64, Value>,
    results: mpsc::UnboundedSender<(u64, Value)>,
    /// Set once the agent has listed the tools here; it is then notified of changes.
    listens: bool,
}

pub(super) async fn serve(mut lines: Lines, mut link: SharedTools) {
    let (results, mut done) = mpsc::unbounded_channel();
    let mut serving = ServedConnection { link: link.clone(), open: HashMap::new(), results, listens: false };
    link.tools.mark_unchanged();
    loop {
        let message = tokio::select! {
            line = lines.next() => match line {
                Some(line) => serving.receive(&line).await,
                None => break,
            },
            changed = link.tools.changed() => match changed {
                Ok(()) => serving
                    .listens
                    .then(|| json!({ "method": "notifications/tools/list_changed" })),
                Err(_) => break,
            },
            Some((number, result)) = done.recv() => {
                serving.open.remove(&number).map(|id| json!({ "id": id, "result": result }))
            }
        };
        let Some(message) = message else { continue };
        if let Err(error) = lines.send(message).await {
            tracing::debug!(%error, "a connection to the MCP server for clients' tools cannot be written to");
            break;
        }
    }
    for number in serving.open.into_keys() {
        if link.events.send(ToolServerEvent::Withdrawn(number)).await.is_err() {
            break;
        }
    }
}

impl ServedConnection {
    /// Handles a message; returns the immediate answer, if there is one.
    async fn receive(&mut self, line: &str) -> Option<Value> {
        let Ok(Message { id, method, params }) = serde_json::from_str::<Message<'_>>(line) else {
            return Some(failed(Value::Null, code::INVALID_REQUEST, "the line is not a JSON-RPC request"));
        };
        let id = id.and_then(|id| serde_json::from_str::<Value>(id.get()).ok());
        match (method?, id) {
            (method, Some(id)) => self.requested(id, &method, params).await,
            (method, None) => {
                if method == "notifications/cancelled" {
                    self.withdrawn(&params["requestId"]).await;
                }
                None
            }
        }
    }

    async fn requested(&mut self, id: Value, method: &str, params: Value) -> Option<Value> {
        let result = match method {
            "initialize" => {
                let asked = params["protocolVersion"].as_str();
                let version = VERSIONS.into_iter().find(|version| asked == Some(version));
                json!({
                    "protocolVersion": version.unwrap_or(VERSIONS[0]),
                    "capabilities": { "tools": { "listChanged": true } },
                    "serverInfo": { "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") },
                })
            }
            "ping" => json!({}),
            "tools/list" => {
                let offered = Arc::clone(&self.link.tools.borrow());
                let tools = offered.listed();
                tracing::debug!(tools = ?offered.names(), "an agent has listed clients' tools");
                self.listens = true;
                self.link.lists.send_replace(Some(offered));
                self.send_event(ToolServerEvent::Listed).await;
                json!({ "tools": tools })
            }
            "tools/call" => return self.called(id, params).await,
            _ => {
                return Some(failed(
                    id,
                    code::METHOD_NOT_FOUND,
                    "the method is not supported: this MCP server offers only tools",
                ))
            }
        };
        Some(json!({ "id": id, "result": result }))
    }

    async fn called(&mut self, id: Value, mut params: Value) -> Option<Value> {
        let Some(name) = params["name"].as_str() else {
            return Some(failed(id, code::INVALID_PARAMS, "the name of the tool is missing"));
        };
        let tool = self.link.tools.borrow().tool_named(name).map(str::to_owned);
        let Some(tool) = tool else {
            let why = format!("no active client of this session offers the tool `{name}`");
            return Some(json!({ "id": id, "result": refusal(&why) }));
        };
        let meta = params["_meta"].as_object().into_iter().flatten();
        let mentions = meta.filter_map(|(_, value)| value.as_str().map(str::to_owned)).collect();
        let arguments = match params["arguments"].take() {
            Value::Null => json!({}),
            arguments => arguments,
        };
        let number = self.link.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.insert(number, id);
        let results = self.results.clone();
        self.send_event(ToolServerEvent::Called(ClientToolCall {
            number,
            tool,
            arguments,
            mentions,
            results,
        }))
        .await;
        None
    }

    /// Records the cancellation of a call, which gets no answer.
    async fn withdrawn(&mut self, id: &Value) {
        let number = self.open.iter().find(|(_, open)| *open == id).map(|(number, _)| *number);
        if let Some(number) = number {
            self.open.remove(&number);
            self.send_event(ToolServerEvent::Withdrawn(number)).await;
        }
    }

    async fn send_event(&self, event: ToolServerEvent) {
        if self.link.events.send(event).await.is_err() {
            tracing::debug!(
                "a request to the MCP server for clients' tools was rejected: the session is closed"
            );
        }
    }
}

fn failed(id: Value, code: i64, message: &str) -> Value {
    json!({ "id": id, "error": { "code": code, "message": message } })
}
