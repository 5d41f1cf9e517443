//! MCP servers of the agent `script`, which uses none: it reports each that it is given.
//!
//! Owns: these reports, and the step that reports a problem.
//! Never: starts a server.

use super::{ScriptAgent, Stop};
use crate::host::effects::{Event, McpServerReport};

/// Returns the report that the agent was given these servers.
pub(super) fn given(servers: Vec<String>) -> Event {
    let report = |server| McpServerReport { server, problem: None };
    Event::McpServers(servers.into_iter().map(report).collect())
}

impl ScriptAgent {
    /// Takes other servers, and reports them at once, or before anything else.
    pub(super) fn take_servers(&mut self, servers: Vec<String>) {
        let report = given(servers);
        match self.line.reports.try_reserve() {
            Some(room) => room.report(report),
            None => self.servers_due = Some(report),
        }
    }

    /// Reports one server as its only one: given, or with a problem.
    pub(super) async fn show_server(&mut self, rest: &str) -> Result<(), Stop> {
        let (name, problem) = rest.split_once(' ').unwrap_or((rest, ""));
        let problem = Some(problem.to_owned()).filter(|problem| !problem.is_empty());
        let report = McpServerReport { server: format!("mcp:{name}"), problem };
        self.report(Event::McpServers(vec![report])).await
    }
}
