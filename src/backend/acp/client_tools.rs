//! The tools of a session's active clients, offered to the agent as an MCP server of the host.
//!
//! In reading order: [`relay`] (the server's process, started by the agent), `listener` (the socket
//! between relay and host), `server` (MCP in the host), this file (tools and results in MCP's
//! form).
//!
//! Owns: the tools' names for the agent, and recognizing which of its reported calls use such a
//! tool.
//! Never: decides which client carries out a call, or changes an input schema.

pub(super) mod listener;
pub mod relay;
mod server;

use ahp_types::common::JsonObject;
use ahp_types::state::{ToolCallResult, ToolDefinition, ToolResultContent};
use serde_json::{json, Value};

use crate::wire::text;

pub use self::server::{ClientToolCall, ToolServerEvent};

/// Name of the MCP server. Agents derive tool names from it, and some allow only letters there.
pub use crate::host::effects::CLIENT_TOOLS_SERVER as SERVER;

/// Maximum length of a tool name, in bytes: models allow 64, and agents add the server's name.
const NAME_BYTES_MAX: usize = 40;

#[derive(Debug, Default, Clone, PartialEq)]
pub struct OfferedTools(Vec<ToolOffer>);

#[derive(Debug, Clone, PartialEq)]
struct ToolOffer {
    name: String,
    tool: ToolDefinition,
}

impl OfferedTools {
    /// Creates an offer without tools whose input is not an object or whose name is taken.
    pub fn new(tools: Vec<ToolDefinition>) -> Self {
        let mut offers: Vec<ToolOffer> = Vec::new();
        for tool in tools {
            let name = name_for_agents(&tool.name);
            let takes_an_object = tool.input_schema.as_ref().is_none_or(|schema| {
                schema.as_object().is_some_and(|it| it.get("type").is_none_or(|kind| kind == "object"))
            });
            if !takes_an_object || offers.iter().any(|offer| offer.name == name) {
                tracing::warn!(tool = tool.name, "a client's tool is not offered to agents: its input schema is not an object, or another tool has the same name");
                continue;
            }
            offers.push(ToolOffer { name, tool });
        }
        Self(offers)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|offer| offer.tool.name.as_str()).collect()
    }

    /// Returns whether `others` has each of these tools, unchanged.
    pub fn are_all_in(&self, others: &Self) -> bool {
        self.0.iter().all(|offer| others.0.contains(offer))
    }

    /// Returns the client's name of a tool, by its name for agents.
    fn tool_named(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|offer| offer.name == name).map(|offer| offer.tool.name.as_str())
    }

    fn listed(&self) -> Vec<Value> {
        self.0.iter().map(ToolOffer::listed).collect()
    }

    /// Finds the tool that one of these texts names. Agents combine the server's and tool's names
    /// in various ways.
    pub fn tool_of(&self, texts: &[&str]) -> Option<&str> {
        let offer = self.0.iter().find(|offer| texts.iter().any(|text| speaks_of(text, &offer.name)))?;
        Some(&offer.tool.name)
    }
}

impl ToolOffer {
    fn listed(&self) -> Value {
        let ToolDefinition { title, description, input_schema, annotations, meta, .. } = &self.tool;
        let mut schema = input_schema.clone().unwrap_or_else(|| json!({}));
        if let Value::Object(schema) = &mut schema {
            // Agents drop a server if one of its tools lacks this member.
            schema.entry("type").or_insert_with(|| "object".into());
        }
        let mut listed = json!({ "name": self.name, "inputSchema": schema });
        // The output schema is omitted: agents refuse output that violates it, such as text.
        let besides = [
            ("title", json!(title)),
            ("description", json!(description)),
            ("annotations", json!(annotations)),
            ("_meta", json!(meta)),
        ];
        for (name, value) in besides.into_iter().filter(|(_, value)| !value.is_null()) {
            listed[name] = value;
        }
        listed
    }
}

/// Returns the name of a tool for agents. ASCII letters, digits, `_` and `-` stay; if the name is
/// too long or has other characters, a checksum keeps it unique.
fn name_for_agents(name: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(fits) {
        return name.to_owned();
    }
    let sum = format!("_{:08x}", crc32fast::hash(name.as_bytes()));
    let kept = name.chars().map(|character| if fits(character) { character } else { '_' });
    kept.take(NAME_BYTES_MAX - sum.len()).chain(sum.chars()).collect()
}

/// Returns whether an agent's text names this tool: `mcp__SERVER__TOOL`, `mcp.SERVER.TOOL`,
/// `SERVER_TOOL`, `Tool: SERVER/TOOL`, or `TOOL (SERVER MCP Server)` with any suffix.
fn speaks_of(text: &str, tool: &str) -> bool {
    let is_separator = |character: char| "_./-: ".contains(character);
    let after_tool = text.strip_prefix(tool).and_then(|rest| rest.strip_prefix(" (")?.strip_prefix(SERVER));
    if after_tool.is_some_and(|rest| rest.starts_with(" MCP Server)")) {
        return true;
    }
    let text = text.strip_prefix("Tool: ").unwrap_or(text);
    let text = text.strip_prefix("mcp").map_or(text, |rest| rest.trim_start_matches(is_separator));
    let between = text.strip_prefix(SERVER).and_then(|rest| rest.strip_suffix(tool));
    between.is_some_and(|between| !between.is_empty() && between.chars().all(is_separator))
}

/// Returns a call's arguments from its reported input, where some agents wrap them.
pub fn arguments(input: &Value) -> Option<&Value> {
    match input.get("server") {
        Some(server) if server == SERVER => input.get("arguments"),
        _ => Some(input),
    }
}

pub fn result(result: &ToolCallResult) -> Value {
    let mut content: Vec<Value> = result.content.iter().flatten().filter_map(part_of).collect();
    let why = result.error.as_ref().and_then(|error| error.get("message")).and_then(Value::as_str);
    if !result.success {
        let why = why.unwrap_or("the tool failed without a reason");
        if !content.iter().any(|part| part["text"] == why) {
            content.push(json!({ "type": "text", "text": why }));
        }
    }
    if content.is_empty() {
        // Some agents treat an empty result as missing.
        let text = match &result.structured_content {
            Some(structured) => Value::Object(structured.clone()).to_string(),
            None => text::plain(&result.past_tense_message).to_owned(),
        };
        content.push(json!({ "type": "text", "text": text }));
    }
    let mut answer = json!({ "content": content, "isError": !result.success });
    if let Some(structured) = &result.structured_content {
        answer["structuredContent"] = Value::Object(structured.clone());
    }
    answer
}

/// Returns the MCP result of a call that was not carried out.
pub fn refusal(why: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": why }], "isError": true })
}

/// Converts a part of a result; `None` if it has no form for agents.
fn part_of(content: &ToolResultContent) -> Option<Value> {
    let text = |text: String| Some(json!({ "type": "text", "text": text }));
    match content {
        ToolResultContent::Text(content) => text(content.text.clone()),
        ToolResultContent::EmbeddedResource(content) => {
            let (data, kind) = (&content.data, &content.content_type);
            let name = kind.split('/').next().filter(|name| ["image", "audio"].contains(name));
            Some(match name {
                Some(name) => json!({ "type": name, "data": data, "mimeType": kind }),
                None => json!({ "type": "resource", "resource":
                    { "uri": "data:,", "mimeType": kind, "blob": data } }),
            })
        }
        // Sent as text, because some agents do not support links.
        ToolResultContent::Resource(content) => text(content.uri.clone()),
        ToolResultContent::Terminal(content) => text(content.title.clone()),
        ToolResultContent::Subagent(content) => text(content.title.clone()),
        ToolResultContent::FileEdit(edit) => {
            let sides = [("before", &edit.before), ("after", &edit.after)];
            let uris: JsonObject = sides
                .into_iter()
                .filter_map(|(name, side)| Some((name.to_owned(), json!(side.as_ref()?.uri))))
                .collect();
            text(format!("Changed a file: {}", Value::Object(uris)))
        }
        ToolResultContent::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests;
