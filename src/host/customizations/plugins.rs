//! Plugins of clients as customizations of a session.
//!
//! Owns: the form in which a plugin and its parts are shown, their ids, and which of the servers
//! in plugins an agent may have.
//! Never: fetches or parses a plugin: `host::plugins` does.
//!
//! Agents that speak ACP can be given MCP servers and nothing else. Other parts are shown, and
//! marked as not applied.

use std::collections::BTreeSet;

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentCustomization, ChildCustomization, ClientPluginCustomization, Customization,
    CustomizationDegradedState, CustomizationEnablement, CustomizationErrorState, CustomizationLoadState,
    CustomizationLoadedState, CustomizationLoadingState, HookCustomization, McpServerCustomization,
    McpServerErrorState, McpServerState, McpServerStoppedState, PluginCustomization, PromptCustomization,
    RuleCustomization, SkillCustomization,
};

use super::enablement::{
    decisions_about, is_on, session_decision, DecisionSubject, SessionDecision, SessionDecisions,
};
use super::{state_of, NOT_ALLOWED};
use crate::host::effects::{ClientMcpServer, SessionKey, ASSUMED, SERVER_MISCONFIGURED};
use crate::host::ledger::Ledger;
use crate::host::limits::ID_BYTES_MAX;
use crate::host::model::Session;
use crate::host::plugins::{self, uri_in, ParsedPlugin, Part, PartKind, PluginLoad, SessionPlugin};
use crate::host::refusal::error_info;

/// Member of a part's `_meta`: `false` if the agent is not given the part.
const APPLIED: &str = "ahpSidecar.applied";

/// Maximum number of problems of a plugin that are shown.
const PROBLEMS_MAX: usize = 5;

/// Returns the plugins of a session as they are, behind these servers of the operator.
pub(super) fn plugins_of(
    ledger: &Ledger,
    key: SessionKey,
    session: &Session,
    servers: &[Customization],
) -> Vec<Customization> {
    let published = plugins::published(&session.state.active_clients);
    let mut shown = ShownPlugins { ledger, key, session, ids: BTreeSet::new(), names: BTreeSet::new() };
    for server in servers.iter().filter_map(super::as_server) {
        shown.ids.insert(server.id.clone());
        shown.names.insert(server.name.clone());
    }
    let plugins = published.filter_map(|(client_id, published)| {
        let plugin = session.plugins.get(client_id, &published.uri)?;
        Some(Customization::Plugin(shown.plugin(client_id, published, plugin)))
    });
    plugins.collect()
}

/// Returns the descriptions of the servers with these ids that are in plugins.
pub(super) fn client_servers(session: &Session, ids: &[String]) -> Vec<ClientMcpServer> {
    let mut found = Vec::new();
    for shown in session.state.customizations.iter().flatten().filter_map(as_plugin) {
        let plugin = shown.client_id.as_ref().and_then(|client| session.plugins.get(client, &shown.uri));
        let Some(PluginLoad::Loaded(parsed)) = plugin.map(|plugin| &plugin.load) else { continue };
        for server in servers_in(shown).filter(|server| ids.contains(&server.id)) {
            let mut parts = parsed.parts.iter().filter(|part| part.name == server.name);
            let transport = parts.find_map(|part| match &part.kind {
                PartKind::Server(Ok(transport)) => Some(transport.clone()),
                _ => None,
            });
            let (id, name, uri) = (server.id.clone(), server.name.clone(), server.uri.clone());
            found.extend(transport.map(|transport| ClientMcpServer { id, name, uri, transport }));
        }
    }
    found
}

pub(super) fn as_plugin(customization: &Customization) -> Option<&PluginCustomization> {
    match customization {
        Customization::Plugin(plugin) => Some(plugin),
        _ => None,
    }
}

/// Returns the servers of a plugin.
pub(super) fn servers_in(plugin: &PluginCustomization) -> impl Iterator<Item = &McpServerCustomization> {
    plugin.children.iter().flatten().filter_map(|child| match child {
        ChildCustomization::McpServer(server) => Some(&**server),
        _ => None,
    })
}

pub(super) fn id_of_child(child: &ChildCustomization) -> &str {
    match child {
        ChildCustomization::Agent(it) => &it.id,
        ChildCustomization::Skill(it) => &it.id,
        ChildCustomization::Prompt(it) => &it.id,
        ChildCustomization::Rule(it) => &it.id,
        ChildCustomization::Hook(it) => &it.id,
        ChildCustomization::McpServer(it) => &it.id,
        ChildCustomization::Unknown(_) => "",
    }
}

/// Returns a server of a plugin as the subject of decisions.
pub(super) fn subject_of_server<'a>(
    plugin: &'a PluginCustomization,
    server: &McpServerCustomization,
) -> DecisionSubject<'a> {
    let client_id = plugin.client_id.as_deref().unwrap_or_default();
    DecisionSubject::Plugin { client_id, uri: &plugin.uri, part: Some(key_of("mcp", &server.name)) }
}

/// Returns the plugin or part of a plugin that is listed with this id.
pub(super) fn subject_with_id<'a>(list: &'a [Customization], id: &str) -> Option<DecisionSubject<'a>> {
    let mut parts = list.iter().filter_map(as_plugin).flat_map(decisions_in);
    parts.find_map(|(of, part, _)| (of == id).then_some(part))
}

/// Returns the decisions for a session that its list shows. Earlier versions of the host stored
/// them there alone.
pub(in crate::host) fn shown_decisions(list: &[Customization]) -> SessionDecisions {
    let mut decisions = SessionDecisions::default();
    for (_, part, enabled) in list.iter().filter_map(as_plugin).flat_map(decisions_in) {
        if enabled.is_some() && decisions.check_room_for(&part).is_ok() {
            decisions.note(&part, enabled.into());
        }
    }
    decisions
}

/// Returns the ids of a plugin and its parts, each with the decision for the session.
fn decisions_in(
    plugin: &PluginCustomization,
) -> impl Iterator<Item = (&str, DecisionSubject<'_>, Option<bool>)> {
    let client_id = plugin.client_id.as_deref().unwrap_or_default();
    let part = move |part| DecisionSubject::Plugin { client_id, uri: &plugin.uri, part };
    let own = session_decision(plugin.enablement.as_deref().unwrap_or_default());
    let children = plugin.children.iter().flatten().filter_map(move |child| {
        Some((id_of_child(child), part(Some(key_of_child(child)?)), enabled_of_child(child)))
    });
    std::iter::once((plugin.id.as_str(), part(None), own)).chain(children)
}

/// Returns the kind and the name of a part that is shown.
fn key_of_child(child: &ChildCustomization) -> Option<String> {
    let (kind, name) = match child {
        ChildCustomization::Agent(it) => ("agent", &it.name),
        ChildCustomization::Skill(it) => ("skill", &it.name),
        ChildCustomization::Prompt(it) => ("prompt", &it.name),
        ChildCustomization::Rule(it) => ("rule", &it.name),
        ChildCustomization::Hook(it) => ("hook", &it.name),
        ChildCustomization::McpServer(it) => ("mcp", &it.name),
        ChildCustomization::Unknown(_) => return None,
    };
    Some(key_of(kind, name))
}

fn key_of(kind: &str, name: &str) -> String {
    format!("{kind}={name}")
}

/// Returns the decision for the session about a part that is shown.
fn enabled_of_child(child: &ChildCustomization) -> Option<bool> {
    match child {
        ChildCustomization::Agent(it) => it.enabled,
        ChildCustomization::Skill(it) => it.enabled,
        ChildCustomization::Prompt(it) => it.enabled,
        ChildCustomization::Rule(it) => it.enabled,
        ChildCustomization::Hook(it) => it.enabled,
        ChildCustomization::McpServer(it) => session_decision(it.enablement.as_deref().unwrap_or_default()),
        ChildCustomization::Unknown(_) => None,
    }
}

/// Session whose plugins are shown one by one, with what the customizations before one have taken.
struct ShownPlugins<'a> {
    ledger: &'a Ledger,
    key: SessionKey,
    session: &'a Session,
    /// Ids of servers of the operator, plugins and parts of plugins.
    ids: BTreeSet<String>,
    /// Names of servers, of the operator and in plugins.
    names: BTreeSet<String>,
}

impl ShownPlugins<'_> {
    /// Returns an id that no customization of the session has.
    fn free_id(&mut self, mut id: String) -> String {
        while !self.ids.insert(id.clone()) {
            id.push('+');
        }
        id
    }

    fn plugin(
        &mut self,
        client_id: &str,
        published: &ClientPluginCustomization,
        plugin: &SessionPlugin,
    ) -> PluginCustomization {
        let own = Some(&published.id).filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX);
        let id = own.filter(|id| !self.ids.contains(*id)).cloned();
        let id = self.free_id(id.unwrap_or_else(|| format!("plugin:{client_id}:{}", published.uri)));
        let own = published.enablement.as_deref().unwrap_or_default();
        let itself = DecisionSubject::Plugin { client_id, uri: &published.uri, part: None };
        let enablement = self.decide(&itself, own);
        let is_enabled = is_on(enablement.as_deref());
        let mut problems = Vec::new();
        let parsed = match &plugin.load {
            PluginLoad::Loaded(parsed) => Some(parsed),
            _ => None,
        };
        let children = parsed.map(|parsed| {
            problems.extend(parsed.problems.iter().cloned());
            self.children(&id, (client_id, published), (parsed, is_enabled), &mut problems)
        });
        PluginCustomization {
            id,
            uri: published.uri.clone(),
            name: published.name.clone(),
            icons: published.icons.clone(),
            range: published.range.clone(),
            meta: published.meta.clone(),
            client_id: Some(client_id.to_owned()),
            load: Some(load_of(&plugin.load, problems)),
            children,
            enablement,
            version: parsed.and_then(|parsed| parsed.version.clone()).or(published.version.clone()),
        }
    }

    /// Returns the decisions about a customization: those that are made, else those published.
    fn decide(
        &self,
        part: &DecisionSubject<'_>,
        published: &[CustomizationEnablement],
    ) -> Option<Vec<CustomizationEnablement>> {
        let decided = self.session.decided.about(part);
        let of_session = decided.map_or_else(|| session_decision(published), SessionDecision::enabled);
        let workspace = super::workspace_of(self.session);
        let decisions = &self.ledger.channels.root.decisions;
        decisions_about(decisions, (part.key().as_deref(), workspace), of_session, published)
    }

    fn children(
        &mut self,
        plugin_id: &str,
        (client_id, published): (&str, &ClientPluginCustomization),
        (parsed, is_enabled): (&ParsedPlugin, bool),
        problems: &mut Vec<String>,
    ) -> Vec<ChildCustomization> {
        let parts = parsed.parts.iter();
        let children = parts.map(|part| {
            let key = key_of(part.kind.name(), &part.name);
            let id = self.free_id(format!("{plugin_id}#{key}"));
            let itself = DecisionSubject::Plugin { client_id, uri: &published.uri, part: Some(key) };
            let uri = uri_in(&published.uri, &part.path);
            let of_name = published.child_enablement.as_ref().and_then(|all| all.get(&part.name));
            let of_name = of_name.map(Vec::as_slice).unwrap_or_default();
            if let PartKind::Server(server) = &part.kind {
                let refused = match server {
                    Err(why) => Some((SERVER_MISCONFIGURED, why.clone())),
                    Ok(transport) => self.refuses(part, transport).map(|why| {
                        problems.push(format!("the server `{}` is not given to the agent: {why}", part.name));
                        (NOT_ALLOWED, why)
                    }),
                };
                let state = match refused {
                    Some((kind, why)) => McpServerState::Error(McpServerErrorState {
                        error: error_info(kind.to_owned(), &why),
                    }),
                    None => McpServerState::Stopped(McpServerStoppedState {}),
                };
                let enablement = self.decide(&itself, of_name);
                let mut server = server_customization(part, id, uri, enablement, state);
                server.state = state_of(self.ledger, self.key, self.session, (&server, &itself), is_enabled);
                return ChildCustomization::McpServer(Box::new(server));
            }
            let decided = self.session.decided.about(&itself);
            let published = || Some(is_on(Some(of_name))).filter(|on| !on);
            let enabled = decided.map_or_else(published, SessionDecision::enabled);
            child_of(part, id, uri, enabled)
        });
        children.collect()
    }

    /// Returns why an agent may not have a server of a plugin; takes the name otherwise.
    fn refuses(&mut self, part: &Part, transport: &plugins::PluginServer) -> Option<String> {
        if let Some(why) = self.ledger.channels.root.client_mcp.refuses(transport) {
            return Some(why.to_owned());
        }
        let is_taken = !self.names.insert(part.name.clone());
        is_taken.then(|| "another server of the session has this name".to_owned())
    }
}

fn load_of(load: &PluginLoad, mut problems: Vec<String>) -> CustomizationLoadState {
    match load {
        PluginLoad::Loading => CustomizationLoadState::Loading(CustomizationLoadingState {}),
        PluginLoad::Failed(why) => {
            CustomizationLoadState::Error(CustomizationErrorState { message: why.clone() })
        }
        PluginLoad::Loaded(_) if problems.is_empty() => {
            CustomizationLoadState::Loaded(CustomizationLoadedState {})
        }
        PluginLoad::Loaded(_) => {
            let more = problems.len().saturating_sub(PROBLEMS_MAX);
            problems.truncate(PROBLEMS_MAX);
            if more > 0 {
                problems.push(format!("and {more} more"));
            }
            CustomizationLoadState::Degraded(CustomizationDegradedState { message: problems.join("; ") })
        }
    }
}

fn server_customization(
    part: &Part,
    id: String,
    uri: String,
    enablement: Option<Vec<CustomizationEnablement>>,
    state: McpServerState,
) -> McpServerCustomization {
    McpServerCustomization {
        id,
        uri,
        name: part.name.clone(),
        icons: None,
        range: None,
        meta: Some(JsonObject::from_iter([(ASSUMED.to_owned(), true.into())])),
        enablement,
        state,
        channel: None,
        mcp_app: None,
    }
}

/// Returns a part that is no server as it is shown.
fn child_of(part: &Part, id: String, uri: String, enabled: Option<bool>) -> ChildCustomization {
    let (name, description) = (part.name.clone(), part.description.clone());
    let (icons, range) = (None, None);
    let meta = Some(JsonObject::from_iter([(APPLIED.to_owned(), false.into())]));
    let (disable_model_invocation, disable_user_invocation) = (part.not_for_model, part.not_for_user);
    match &part.kind {
        PartKind::Agent { model, tools } => ChildCustomization::Agent(AgentCustomization {
            id,
            uri,
            name,
            icons,
            range,
            meta,
            enabled,
            description,
            model: model.clone(),
            tools: tools.clone(),
            disable_model_invocation,
            disable_user_invocation,
        }),
        PartKind::Skill => ChildCustomization::Skill(SkillCustomization {
            id,
            uri,
            name,
            icons,
            range,
            meta,
            enabled,
            description,
            disable_model_invocation,
            disable_user_invocation,
        }),
        PartKind::Rule { always_applies, globs } => ChildCustomization::Rule(RuleCustomization {
            id,
            uri,
            name,
            icons,
            range,
            meta,
            enabled,
            description,
            always_apply: *always_applies,
            globs: globs.clone(),
        }),
        PartKind::Hook => {
            ChildCustomization::Hook(HookCustomization { id, uri, name, icons, range, meta, enabled })
        }
        PartKind::Prompt | PartKind::Server(_) => ChildCustomization::Prompt(PromptCustomization {
            id,
            uri,
            name,
            icons,
            range,
            meta,
            enabled,
            description,
        }),
    }
}
