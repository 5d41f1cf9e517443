//! Customizations of sessions: the MCP servers that their agents are given, and clients' plugins.
//!
//! Owns: a session's list of them, derived from that of its agent and from the plugins that its
//! clients publish; whether each is on, and for whom; which servers a conversation is given; and
//! their states.
//! Never: knows how a server is reached, or holds a secret: backends have the descriptions. Never
//! claims to know more than the agent tells: a server that it was given counts as ready.
//!
//! Sessions without servers and plugins cost nothing here: each entry looks at the session's list
//! first.

mod enablement;
mod plugins;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::actions::{
    ActionOrigin, SessionCustomizationToggledAction, SessionCustomizationUpdatedAction,
    SessionCustomizationsChangedAction, SessionMcpServerStateChangedAction, StateAction,
};
use ahp_types::state::{
    ChildCustomization, Customization, CustomizationEnablement, McpServerCustomization, McpServerErrorState,
    McpServerReadyState, McpServerStartingState, McpServerState, McpServerStoppedState, PluginCustomization,
};

use super::actions::Verdict;
use super::agents::AgentRegistry;
use super::effects::{ChannelId, ChatKey, ClientMcpServer, Command, McpServerReport, SERVER_MISCONFIGURED};
use super::facts::Fact;
use super::ledger::Ledger;
use super::model::{AgentLink, Session, SessionKey};
use super::refusal::{error_info, Refusal};
use super::Step;

use enablement::{ChangedScopes, DecisionSubject};
pub(super) use enablement::{Decisions, SessionDecisions};
pub(super) use plugins::shown_decisions;

/// Kind of the error of a server that an agent cannot use.
const UNAVAILABLE: &str = "unavailable";

/// Kind of the error of a plugin's server that an agent may not have.
const NOT_ALLOWED: &str = "notAllowed";

/// Servers of a session that clients have stopped without switching them off; not stored.
#[derive(Debug, Default, Clone)]
pub(super) struct StoppedServers(BTreeSet<String>);

impl StoppedServers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, server: &DecisionSubject<'_>) -> bool {
        !self.0.is_empty() && self.0.contains(&server.key_in_session())
    }
}

/// Servers in a chat's conversation, by the ids of their customizations.
#[derive(Debug, Default)]
pub(super) struct ConversationServers {
    /// Servers that the agent was last asked to have.
    sent: Vec<String>,
    /// Descriptions of those of them that are in plugins, as last sent.
    sent_of_clients: Vec<ClientMcpServer>,
    /// Servers as last reported, each with the reason why the agent cannot use it.
    reported: BTreeMap<String, Option<String>>,
    /// Set while the conversation may be closed only to be reopened with other servers.
    reopens: bool,
}

/// Returns the servers of a new session, as they are when its conversation opens; `None` if it has
/// none.
pub(super) fn servers_of_new_session(
    ledger: &Ledger,
    provider: &str,
    directories: Option<&[String]>,
) -> Option<Vec<Customization>> {
    let mut servers = servers_of_agent(ledger, provider)?;
    let workspace = directories.and_then(<[String]>::first);
    for server in servers.iter_mut().filter_map(as_server_mut) {
        decide(ledger, server, None, workspace.map(String::as_str));
        if enablement::is_on(server.enablement.as_deref()) && !is_broken(server) {
            server.state = McpServerState::Starting(McpServerStartingState { blocking: None });
        }
    }
    Some(servers)
}

/// Returns the servers that the conversation of a chat is opened with, by the ids of their
/// customizations, with the descriptions of those in plugins; and remembers them.
pub(super) fn servers_for_conversation(
    ledger: &mut Ledger,
    chat: ChatKey,
) -> (Vec<String>, Vec<ClientMcpServer>) {
    let Some(known) = ledger.channels.chats.known(chat) else { return Default::default() };
    let session = ledger.channels.sessions.known(known.session);
    let (sent, sent_of_clients) = session.map(wanted_servers).unwrap_or_default();
    let wanted = (sent.clone(), sent_of_clients.clone());
    if let Some(known) = ledger.channels.chats.known_mut(chat) {
        known.servers = ConversationServers { sent, sent_of_clients, ..ConversationServers::default() };
    }
    wanted
}

/// Notes that the conversation of a chat opens, is open or is closed.
pub(super) fn conversation_changed(ledger: &Ledger, step: &mut Step<'_>, chat: ChatKey) {
    let Some(session) = ledger.channels.chats.known(chat).map(|chat| chat.session) else { return };
    let known = ledger.channels.sessions.known(session);
    if known.is_some_and(|session| session.state.customizations.is_some()) {
        step.facts.push_back(Fact::ConversationChanged { chat, session });
    }
}

/// Sends an opened conversation the servers that were added meanwhile, before its turn begins.
pub(super) fn conversation_opened(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    if let Some(session) = ledger.channels.chats.known(chat).map(|chat| chat.session) {
        send_servers(ledger, step, session, chat, false);
    }
}

/// Brings a session in line with the state of one of its conversations. Returns whether that one
/// is to be opened again: it was closed for the sake of other servers.
pub(super) fn follow_conversation(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    session: SessionKey,
) -> bool {
    // The fact may be older than a disposal.
    if !ledger.channels.sessions.contains_key(&session) {
        return false;
    }
    refresh_session(ledger, step, session);
    let known = ledger.channels.chats.get_mut(&chat).filter(|chat| chat.session == session);
    let Some(known) = known else { return false };
    let (link, is_idle) = (known.agent, known.run.is_none());
    let reopens = link == AgentLink::Closed && std::mem::take(&mut known.servers.reopens) && is_idle;
    send_servers(ledger, step, session, chat, false);
    reopens
}

/// Applies a report of a backend.
pub(super) fn servers_reported(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    reports: Vec<McpServerReport>,
) {
    let Some(known) = ledger.channels.chats.known_mut(chat) else { return };
    known.servers.reopens = false;
    known.servers.reported = reports.into_iter().map(|report| (report.server, report.problem)).collect();
    let session = known.session;
    refresh_session(ledger, step, session);
}

/// Brings all sessions in memory in line with changed servers of their agents.
pub(super) fn agents_have_changed(ledger: &mut Ledger, step: &mut Step<'_>) {
    let agents = &ledger.channels.root.state.agents;
    let some_agent_has = agents.iter().any(|agent| agent.customizations.is_some());
    let concerns = |session: &Session| some_agent_has || session.state.customizations.is_some();
    let sessions = ledger.channels.sessions.iter();
    let sessions: Vec<SessionKey> =
        sessions.filter(|(_, session)| concerns(session)).map(|(key, _)| *key).collect();
    for session in sessions {
        update_session(ledger, step, session);
    }
}

/// Brings a session and its conversations in line with the decisions about its servers.
pub(super) fn update_session(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
    refresh_session(ledger, step, key);
    for chat in ledger.channels.chats_in(key) {
        send_servers(ledger, step, key, chat, false);
    }
}

/// Sends the differences between the servers of a session as clients see them and as they are.
pub(super) fn refresh_session(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let shown = session.state.customizations.as_deref().unwrap_or_default();
    let after = servers_of_agent(ledger, &session.state.provider);
    if after.is_none() && shown.is_empty() && session.plugins.is_empty() {
        return;
    }
    let workspace = workspace_of(session);
    let mut after = after.unwrap_or_default();
    for server in after.iter_mut().filter_map(as_server_mut) {
        let subject = DecisionSubject::server(&server.id);
        let of_session = match session.decided.about(&subject) {
            Some(decided) => decided.enabled().map(|enabled| CustomizationEnablement::Session { enabled }),
            // Earlier versions of the host stored the decision there alone.
            None => server_in(shown, &server.id).and_then(|it| it.enablement.as_ref()?.first().cloned()),
        };
        decide(ledger, server, of_session, workspace);
        server.state = state_of(ledger, key, session, (server, &subject), true);
    }
    after.extend(plugins::plugins_of(ledger, key, session, &after));
    let ids = |list: &[Customization]| list.iter().map(|it| id_of(it).to_owned()).collect();
    let (had, has): (Vec<String>, Vec<String>) = (ids(shown), ids(&after));
    let changed: Vec<StateAction> = if had == has {
        shown.iter().zip(after).flat_map(|(before, after)| difference(before, after)).collect()
    } else {
        let action = SessionCustomizationsChangedAction { customizations: after };
        vec![StateAction::SessionCustomizationsChanged(action)]
    };
    for action in changed {
        ledger.sequence(step, key, action, None);
    }
}

/// Applies a client's action on a customization or server, or refuses it.
pub(super) fn client_changes_customization(
    ledger: &mut Ledger,
    agents: &mut AgentRegistry,
    step: &mut Step<'_>,
    key: SessionKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let id = match &action {
        StateAction::SessionCustomizationToggled(toggled) => {
            let toggled = toggled.clone();
            return toggle_customization(ledger, agents, step, key, toggled, origin);
        }
        StateAction::SessionMcpServerStartRequested(a) => &a.id,
        StateAction::SessionMcpServerStopRequested(a) => &a.id,
        StateAction::SessionMcpServerBackgroundRequested(a) => &a.id,
        _ => return Err(Refusal::NotServedOn("a session's channel")),
    };
    let id = id.clone();
    let Some(session) = ledger.channels.sessions.known(key) else { return Ok(Verdict::Unchanged) };
    let shown = session.state.customizations.as_deref().unwrap_or_default();
    let Some(server) = server_in(shown, &id) else { return Err(Refusal::NoSuchCustomization(id)) };
    let subject = plugins::subject_with_id(shown, &id).unwrap_or_else(|| DecisionSubject::server(&id));
    let mut restart = false;
    match &action {
        StateAction::SessionMcpServerStartRequested(_) => {
            let plugin = plugin_around(shown, &id);
            let is_on = |enablement: &Option<Vec<_>>| enablement::is_on(enablement.as_deref());
            if !is_on(&server.enablement) || plugin.is_some_and(|plugin| !is_on(&plugin.enablement)) {
                return Err(Refusal::ServerIsOff(id));
            }
            if is_broken(server) {
                return Err(Refusal::ServerIsUnusable(id));
            }
            restart = matches!(server.state, McpServerState::Error(_));
            let stopped = subject.key_in_session();
            if let Some(session) = ledger.channels.sessions.known_mut(key) {
                session.stopped_servers.0.remove(&stopped);
            }
            ledger.sequence(step, key, action, Some(origin));
        }
        StateAction::SessionMcpServerStopRequested(_) => {
            let stopped = subject.key_in_session();
            if let Some(session) = ledger.channels.sessions.known_mut(key) {
                session.stopped_servers.0.insert(stopped);
            }
            ledger.sequence(step, key, action, Some(origin));
        }
        // No server of this host blocks messages while it starts.
        _ => return Err(Refusal::ServerDoesNotBlock(id)),
    }
    refresh_session(ledger, step, key);
    for chat in ledger.channels.chats_in(key) {
        send_servers(ledger, step, key, chat, restart);
    }
    Ok(Verdict::Done)
}

/// Switches a customization on or off in the scopes of a client's list.
fn toggle_customization(
    ledger: &mut Ledger,
    agents: &mut AgentRegistry,
    step: &mut Step<'_>,
    key: SessionKey,
    toggled: SessionCustomizationToggledAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let Some(session) = ledger.channels.sessions.known(key) else { return Ok(Verdict::Unchanged) };
    let shown = session.state.customizations.clone().unwrap_or_default();
    let workspace = workspace_of(session).map(str::to_owned);
    let Some(enablement) = enablement_of(&shown, &toggled.id) else {
        return Err(Refusal::NoSuchCustomization(toggled.id));
    };
    let shown_list = enablement.unwrap_or_default();
    let list = enablement::completed(toggled.enablement, shown_list);
    let toggled = SessionCustomizationToggledAction { enablement: list, id: toggled.id };
    let id = &toggled.id;
    enablement::check_list(&toggled.enablement, workspace.as_deref())?;
    if enablement.is_some_and(|enablement| enablement == toggled.enablement) {
        return Ok(Verdict::Unchanged);
    }
    let subject = plugins::subject_with_id(&shown, id).unwrap_or_else(|| DecisionSubject::server(id));
    session.decided.check_room_for(&subject)?;
    let decisions = &mut ledger.channels.root.decisions;
    let (changed, of_session) = match subject.key() {
        Some(key) => (
            decisions.take(&key, workspace.as_deref(), shown_list, &toggled.enablement)?,
            enablement::session_decision(&toggled.enablement),
        ),
        // The first decision counts, for this session alone.
        None => (ChangedScopes::default(), Some(enablement::is_on(Some(&toggled.enablement)))),
    };
    let plugin = plugin_around(&shown, id).map(|plugin| plugin.id.as_str());
    ledger.sequence(step, key, StateAction::SessionCustomizationToggled(toggled), Some(origin));
    if let Some(session) = ledger.channels.sessions.known_mut(key) {
        session.decided.note(&subject, of_session.into());
    }
    let reaches_others = changed.global || changed.workspace;
    if reaches_others {
        ledger.mark_dirty(ChannelId::ROOT);
    }
    if changed.global {
        agents.announce_changed_agents(ledger, step);
    }
    if reaches_others {
        agents_have_changed(ledger, step);
    }
    if let Some(plugin) = plugin {
        refresh_session(ledger, step, key);
        show_again(ledger, step, key, plugin);
    }
    if !reaches_others {
        update_session(ledger, step, key);
    }
    Ok(Verdict::Done)
}

/// Sends the servers of a session to an open conversation that has others.
fn send_servers(ledger: &mut Ledger, step: &mut Step<'_>, session: SessionKey, chat: ChatKey, restart: bool) {
    let Some(session) = ledger.channels.sessions.known(session) else { return };
    if session.state.customizations.is_none() {
        return;
    }
    let (servers, of_clients) = wanted_servers(session);
    let Some(known) = ledger.channels.chats.known_mut(chat) else { return };
    let is_other = known.servers.sent_of_clients != of_clients;
    if known.agent != AgentLink::Open || (known.servers.sent == servers && !is_other && !restart) {
        return;
    }
    // Descriptions may have changed without the ids.
    let restart = restart || (is_other && known.servers.sent == servers);
    known.servers.sent.clone_from(&servers);
    known.servers.sent_of_clients = of_clients;
    known.servers.reopens = known.run.is_none();
    step.send_to_agent(chat, Command::McpServers { servers, restart });
}

/// Returns the servers that a session's agent should have, by the ids of their customizations, with
/// the descriptions of those in plugins.
fn wanted_servers(session: &Session) -> (Vec<String>, Vec<ClientMcpServer>) {
    let is_on = |enablement: &Option<Vec<_>>| enablement::is_on(enablement.as_deref());
    let all = session.state.customizations.iter().flatten();
    let servers = all.flat_map(|customization| {
        let plugin = plugins::as_plugin(customization).filter(|plugin| is_on(&plugin.enablement));
        let of_operator =
            as_server(customization).map(|server| (server, DecisionSubject::server(&server.id)));
        let in_plugin = |plugin| {
            let servers = plugins::servers_in(plugin);
            servers.map(move |server| (server, plugins::subject_of_server(plugin, server)))
        };
        of_operator.into_iter().chain(plugin.into_iter().flat_map(in_plugin))
    });
    let wanted = servers.filter(|(server, subject)| {
        is_on(&server.enablement) && !is_broken(server) && !session.stopped_servers.has(subject)
    });
    let wanted: Vec<String> = wanted.map(|(server, _)| server.id.clone()).collect();
    let of_clients = plugins::client_servers(session, &wanted);
    (wanted, of_clients)
}

/// Returns the servers of an agent as the operator declares them; `None` without any.
fn servers_of_agent(ledger: &Ledger, provider: &str) -> Option<Vec<Customization>> {
    let agents = &ledger.channels.root.state.agents;
    let agent = agents.iter().find(|agent| agent.provider == provider)?;
    let all = agent.customizations.as_ref()?;
    let servers = all.iter().filter(|it| as_server(it).is_some());
    Some(servers.cloned().collect::<Vec<_>>()).filter(|servers| !servers.is_empty())
}

/// Adds the decisions for a session and its workspace to those for all sessions.
fn decide(
    ledger: &Ledger,
    server: &mut McpServerCustomization,
    of_session: Option<CustomizationEnablement>,
    workspace: Option<&str>,
) {
    let of_session = of_session.filter(|it| matches!(it, CustomizationEnablement::Session { .. }));
    let of_workspace = ledger.channels.root.decisions.of_workspace(&server.id, workspace);
    let for_all = server.enablement.take().into_iter().flatten();
    let all: Vec<_> = of_session.into_iter().chain(of_workspace).chain(for_all).collect();
    server.enablement = Some(all).filter(|all| !all.is_empty());
}

/// Returns the state of a server in all conversations of its session together.
fn state_of(
    ledger: &Ledger,
    key: SessionKey,
    session: &Session,
    (server, subject): (&McpServerCustomization, &DecisionSubject<'_>),
    is_plugin_on: bool,
) -> McpServerState {
    if is_broken(server) {
        return server.state.clone();
    }
    let is_on = is_plugin_on && enablement::is_on(server.enablement.as_deref());
    let is_wanted = is_on && !session.stopped_servers.has(subject);
    let (mut opens, mut problem) = (false, None);
    for chat in ledger.channels.chats_in(key) {
        let Some(chat) = ledger.channels.chats.known(chat) else { continue };
        match (chat.agent, chat.servers.reported.get(&server.id)) {
            (AgentLink::Closed, _) => {}
            (_, Some(None)) => return McpServerState::Ready(McpServerReadyState {}),
            (_, Some(Some(why))) => problem = problem.or(Some(why)),
            (AgentLink::Opening, None) => opens |= chat.servers.sent.contains(&server.id),
            (AgentLink::Open, None) => {}
        }
    }
    match problem {
        _ if is_wanted && opens => McpServerState::Starting(McpServerStartingState { blocking: None }),
        Some(why) if is_wanted => {
            McpServerState::Error(McpServerErrorState { error: error_info(UNAVAILABLE.to_owned(), why) })
        }
        _ => McpServerState::Stopped(McpServerStoppedState {}),
    }
}

/// Returns the actions that make one customization of another; none if they are equal.
fn difference(before: &Customization, after: Customization) -> Vec<StateAction> {
    if *before == after {
        return Vec::new();
    }
    let states = match (before, &after) {
        (Customization::McpServer(was), Customization::McpServer(is)) => states_changed(&[was], &[is]),
        (Customization::Plugin(was), Customization::Plugin(is)) => {
            let servers = |plugin| plugins::servers_in(plugin).collect::<Vec<_>>();
            let changed = states_changed(&servers(was), &servers(is));
            changed.filter(|changed| with_states(before.clone(), changed) == after)
        }
        _ => None,
    };
    let states = states.unwrap_or_default().into_iter();
    let states: Vec<StateAction> =
        states.map(|state| StateAction::SessionMcpServerStateChanged(Box::new(state))).collect();
    if !states.is_empty() {
        return states;
    }
    let updated = SessionCustomizationUpdatedAction { customization: after };
    vec![StateAction::SessionCustomizationUpdated(Box::new(updated))]
}

/// Returns the changes of states that make servers of others; `None` if more differs.
fn states_changed(
    before: &[&McpServerCustomization],
    after: &[&McpServerCustomization],
) -> Option<Vec<SessionMcpServerStateChangedAction>> {
    let pairs = || before.iter().zip(after);
    let is_same = |(was, is): (&&McpServerCustomization, &&McpServerCustomization)| {
        McpServerCustomization { state: is.state.clone(), ..(*was).clone() } == **is
    };
    if before.len() != after.len() || !pairs().all(is_same) {
        return None;
    }
    let changed = pairs().filter(|(was, is)| was.state != is.state);
    let changed = changed.map(|(_, is)| SessionMcpServerStateChangedAction {
        id: is.id.clone(),
        state: is.state.clone(),
        channel: is.channel.clone(),
    });
    Some(changed.collect())
}

/// Returns a plugin with these states of its servers.
fn with_states(mut plugin: Customization, states: &[SessionMcpServerStateChangedAction]) -> Customization {
    let Customization::Plugin(it) = &mut plugin else { return plugin };
    for child in it.children.iter_mut().flatten() {
        let ChildCustomization::McpServer(server) = child else { continue };
        if let Some(changed) = states.iter().find(|changed| changed.id == server.id) {
            server.state = changed.state.clone();
        }
    }
    plugin
}

/// Sends a plugin whole, since clients of older versions do not apply a decision about a part.
fn show_again(ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey, plugin: &str) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let shown = session.state.customizations.iter().flatten().find(|it| id_of(it) == plugin);
    let Some(customization) = shown.cloned() else { return };
    let updated = SessionCustomizationUpdatedAction { customization };
    ledger.sequence(step, key, StateAction::SessionCustomizationUpdated(Box::new(updated)), None);
}

/// Returns whether no agent can use a server: its description is invalid, or it is not allowed.
fn is_broken(server: &McpServerCustomization) -> bool {
    let kinds = [SERVER_MISCONFIGURED, NOT_ALLOWED];
    matches!(&server.state, McpServerState::Error(error) if kinds.contains(&error.error.error_type.as_str()))
}

/// Returns the plugin that contains the customization with this id.
fn plugin_around<'a>(list: &'a [Customization], id: &str) -> Option<&'a PluginCustomization> {
    let mut plugins = list.iter().filter_map(plugins::as_plugin);
    plugins.find(|plugin| plugin.children.iter().flatten().any(|child| plugins::id_of_child(child) == id))
}

/// Returns the decisions about the customization with this id: `None` inside if it has no list of
/// them, and `None` if there is no such customization.
fn enablement_of<'a>(list: &'a [Customization], id: &str) -> Option<Option<&'a [CustomizationEnablement]>> {
    if let Some(server) = server_in(list, id) {
        return Some(Some(server.enablement.as_deref().unwrap_or_default()));
    }
    let plugin = list.iter().filter_map(plugins::as_plugin).find(|plugin| plugin.id == id);
    match plugin {
        Some(plugin) => Some(Some(plugin.enablement.as_deref().unwrap_or_default())),
        None => plugin_around(list, id).map(|_| None),
    }
}

fn id_of(customization: &Customization) -> &str {
    match customization {
        Customization::McpServer(server) => &server.id,
        Customization::Plugin(plugin) => &plugin.id,
        Customization::Directory(directory) => &directory.id,
        Customization::Unknown(_) => "",
    }
}

fn workspace_of(session: &Session) -> Option<&str> {
    session.state.working_directories.as_ref()?.first().map(String::as_str)
}

fn as_server(customization: &Customization) -> Option<&McpServerCustomization> {
    match customization {
        Customization::McpServer(server) => Some(server),
        _ => None,
    }
}

fn as_server_mut(customization: &mut Customization) -> Option<&mut McpServerCustomization> {
    match customization {
        Customization::McpServer(server) => Some(server),
        _ => None,
    }
}

/// Returns the server with this id, which may be in a plugin.
fn server_in<'a>(list: &'a [Customization], id: &str) -> Option<&'a McpServerCustomization> {
    let in_plugins = list.iter().filter_map(plugins::as_plugin).flat_map(plugins::servers_in);
    list.iter().filter_map(as_server).chain(in_plugins).find(|server| server.id == id)
}
