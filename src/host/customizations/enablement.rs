//! Decisions of clients about whether a customization is on, by scope.
//!
//! Owns: the decisions for a workspace and for all sessions, those for one session, their stored
//! form, and which lists of decisions a client may send.
//! Never: takes the state of a session for a decision, except that of a row which an earlier
//! version of the host has stored: a plugin may not be fetched, and a server of the operator may be
//! missing from the configuration for a while.
//!
//! A decision for the session comes before that for its workspace, and this one before that for all
//! sessions. In each scope, what clients have decided here comes before what the plugin is
//! published with, or the server is configured with. A client sends the list for all scopes at
//! once, so an entry that it leaves as it is shown decides nothing.

use std::collections::BTreeMap;

use ahp_types::state::{AgentInfo, ClientPluginCustomization, Customization, CustomizationEnablement};
use serde::{Deserialize, Serialize};

use crate::host::refusal::Refusal;
use crate::wire::customizations::OTHER_SCOPES;

/// Maximum number of workspaces with a decision about one customization.
const WORKSPACES_MAX: usize = 1000;

/// Maximum number of plugins and servers in them with decisions. Servers of the operator always
/// have room.
const DECIDED_MAX: usize = 1000;

/// Maximum number of plugins and parts of plugins with decisions for one session.
const SESSION_DECIDED_MAX: usize = 1000;

/// Decisions of clients by what they are about: a server of the operator by its id, a plugin or
/// part of one as [`DecisionSubject::key`] says; stored with the root channel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::host) struct Decisions(BTreeMap<String, DecidedScopes>);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct DecidedScopes {
    /// Decision for all sessions; `None` leaves it to the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    global: Option<bool>,
    /// Decisions by the URI of the first working directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    workspaces: BTreeMap<String, bool>,
}

impl Decisions {
    pub(in crate::host) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an agent with the decisions for all sessions in place of the operator's.
    pub(in crate::host) fn applied_to(&self, mut agent: AgentInfo) -> AgentInfo {
        for customization in agent.customizations.iter_mut().flatten() {
            let Customization::McpServer(server) = customization else { continue };
            if let Some(decision) = self.for_all(&server.id) {
                server.enablement = Some(vec![decision]);
            }
        }
        agent
    }

    /// Returns the decision for the sessions of a workspace.
    pub(super) fn of_workspace(
        &self,
        subject: &str,
        workspace: Option<&str>,
    ) -> Option<CustomizationEnablement> {
        let workspace = workspace?;
        let enabled = *self.0.get(subject)?.workspaces.get(workspace)?;
        Some(CustomizationEnablement::Workspace { uri: workspace.to_owned(), enabled })
    }

    /// Returns the decision for all sessions.
    fn for_all(&self, subject: &str) -> Option<CustomizationEnablement> {
        self.0.get(subject)?.global.map(|enabled| CustomizationEnablement::Global { enabled })
    }

    /// Takes the decisions for the workspace and for all sessions from a checked list, given the
    /// list that is shown. Returns which scopes have changed.
    ///
    /// # Errors
    /// When there are too many workspaces or customizations.
    pub(super) fn take(
        &mut self,
        subject: &str,
        workspace: Option<&str>,
        shown: &[CustomizationEnablement],
        list: &[CustomizationEnablement],
    ) -> Result<ChangedScopes, Refusal> {
        let decided = self.0.get(subject).cloned().unwrap_or_default();
        let mut after = DecidedScopes { global: None, workspaces: decided.workspaces.clone() };
        if let Some(workspace) = workspace {
            after.workspaces.remove(workspace);
        }
        for decision in list {
            let is_shown = shown.contains(decision);
            match decision {
                CustomizationEnablement::Global { enabled } => {
                    after.global = if is_shown { decided.global } else { Some(*enabled) };
                }
                CustomizationEnablement::Workspace { uri, enabled } => {
                    let enabled = if is_shown { decided.workspaces.get(uri) } else { Some(enabled) };
                    after.workspaces.extend(enabled.map(|enabled| (uri.clone(), *enabled)));
                }
                CustomizationEnablement::Session { .. } | CustomizationEnablement::Unknown(_) => {}
            }
        }
        if after.workspaces.len() > WORKSPACES_MAX {
            return Err(Refusal::TooManyWorkspaces(WORKSPACES_MAX));
        }
        let is_of_plugin = |subject: &str| subject.starts_with(OF_PLUGIN);
        let is_new = !self.0.contains_key(subject) && after != DecidedScopes::default();
        let decided_plugins = || self.0.keys().filter(|subject| is_of_plugin(subject)).count();
        if is_new && is_of_plugin(subject) && decided_plugins() >= DECIDED_MAX {
            return Err(Refusal::TooManyDecisions(DECIDED_MAX));
        }
        let changed = ChangedScopes {
            global: after.global != decided.global,
            workspace: after.workspaces != decided.workspaces,
        };
        if after == DecidedScopes::default() {
            self.0.remove(subject);
        } else {
            self.0.insert(subject.to_owned(), after);
        }
        Ok(changed)
    }
}

/// Beginning of the subjects of decisions about plugins.
const OF_PLUGIN: &str = "plugin:";

/// Beginning of the parts of plugins that are servers.
const SERVER: &str = "mcp=";

/// Customization about which clients decide.
#[derive(Debug)]
pub(super) enum DecisionSubject<'a> {
    /// Server of the operator, by its id.
    Server(String),
    /// Plugin of a session, by its client and URI, or the part of it with this kind and name.
    Plugin { client_id: &'a str, uri: &'a str, part: Option<String> },
}

impl DecisionSubject<'_> {
    /// Returns a server of the operator with this id.
    pub(super) fn server(id: &str) -> Self {
        Self::Server(id.to_owned())
    }

    /// Returns the key of decisions for a workspace and for all sessions: they are about the same
    /// part of the same plugin, whichever client publishes it, and with whatever id. `None` for a
    /// part that is no server: decisions about it are for one session alone.
    pub(super) fn key(&self) -> Option<String> {
        match self {
            Self::Server(id) => Some(id.clone()),
            Self::Plugin { part: Some(part), .. } if !part.starts_with(SERVER) => None,
            Self::Plugin { uri, part, .. } => {
                Some(format!("{OF_PLUGIN}{uri}#{}", part.as_deref().unwrap_or_default()))
            }
        }
    }

    /// Returns the key in its session.
    pub(super) fn key_in_session(&self) -> String {
        self.stored_keys().join("\n")
    }

    /// Returns the client, URI and part in [`SessionDecisions`]: a server of the operator has
    /// neither client nor URI, and its id is the part; a plugin itself has no part.
    fn stored_keys(&self) -> [&str; 3] {
        match self {
            Self::Server(id) => ["", "", id],
            Self::Plugin { client_id, uri, part } => [client_id, uri, part.as_deref().unwrap_or_default()],
        }
    }
}

/// Decision of clients about a customization in one session; stored as a flag or `null`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum SessionDecision {
    Set(bool),
    /// Decision of the other scopes, even if the plugin is published with one for the session.
    Unset,
}

impl SessionDecision {
    /// Returns whether the customization is on; `None` if the other scopes decide.
    pub(super) fn enabled(self) -> Option<bool> {
        match self {
            Self::Set(enabled) => Some(enabled),
            Self::Unset => None,
        }
    }
}

impl From<Option<bool>> for SessionDecision {
    fn from(enabled: Option<bool>) -> Self {
        enabled.map_or(Self::Unset, Self::Set)
    }
}

/// Decisions of clients for one session: by client, URI of the plugin, and part, as
/// [`DecisionSubject::stored_keys`] says; stored with the session. They stay while the plugin or
/// server is not in the session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::host) struct SessionDecisions(
    BTreeMap<String, BTreeMap<String, BTreeMap<String, SessionDecision>>>,
);

impl SessionDecisions {
    pub(in crate::host) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the decision about a customization; `None` if clients have not decided.
    pub(super) fn about(&self, subject: &DecisionSubject<'_>) -> Option<SessionDecision> {
        let [client_id, uri, part] = subject.stored_keys();
        self.0.get(client_id)?.get(uri)?.get(part).copied()
    }

    /// Returns an error if there is no room for a decision. Servers of the operator always have
    /// room.
    pub(super) fn check_room_for(&self, subject: &DecisionSubject<'_>) -> Result<(), Refusal> {
        if matches!(subject, DecisionSubject::Server(_)) {
            return Ok(());
        }
        let of_clients = self.0.iter().filter(|(client_id, _)| !client_id.is_empty());
        let decided: usize = of_clients.flat_map(|(_, plugins)| plugins.values()).map(BTreeMap::len).sum();
        if decided >= SESSION_DECIDED_MAX && self.about(subject).is_none() {
            return Err(Refusal::TooManySessionDecisions(SESSION_DECIDED_MAX));
        }
        Ok(())
    }

    pub(super) fn note(&mut self, subject: &DecisionSubject<'_>, decided: SessionDecision) {
        let [client_id, uri, part] = subject.stored_keys();
        let plugins = self.0.entry(client_id.to_owned()).or_default();
        plugins.entry(uri.to_owned()).or_default().insert(part.to_owned(), decided);
    }

    /// Removes the decisions about a plugin and its parts of which the publication now says
    /// something else for a session: that counts.
    pub(in crate::host) fn forget_changed(
        &mut self,
        client_id: &str,
        was: &ClientPluginCustomization,
        now: &ClientPluginCustomization,
    ) {
        let Some(plugins) = self.0.get_mut(client_id) else { return };
        if let Some(parts) = plugins.get_mut(&now.uri) {
            parts.retain(|part, _| published_decision(was, part) == published_decision(now, part));
            if parts.is_empty() {
                plugins.remove(&now.uri);
            }
        }
        if plugins.is_empty() {
            self.0.remove(client_id);
        }
    }
}

/// Scopes beyond the session whose decision has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ChangedScopes {
    pub(super) global: bool,
    pub(super) workspace: bool,
}

/// Returns the list of a client with the decisions for other scopes as they are, if the client's
/// version knows no scopes, as [`OTHER_SCOPES`] says.
pub(super) fn completed(
    mut list: Vec<CustomizationEnablement>,
    shown: &[CustomizationEnablement],
) -> Vec<CustomizationEnablement> {
    let is_mark = |it: &CustomizationEnablement| match it {
        CustomizationEnablement::Unknown(value) => value["kind"] == OTHER_SCOPES,
        _ => false,
    };
    if list.last().is_some_and(is_mark) {
        list.pop();
        let others = shown.iter().filter(|it| !matches!(it, CustomizationEnablement::Session { .. }));
        list.extend(others.cloned());
    }
    list
}

/// Checks the order and the scopes of a list of decisions.
pub(super) fn check_list(list: &[CustomizationEnablement], workspace: Option<&str>) -> Result<(), Refusal> {
    let ranks = list.iter().map(|decision| match decision {
        CustomizationEnablement::Session { .. } => Ok(0),
        CustomizationEnablement::Workspace { uri, .. } if Some(uri.as_str()) == workspace => Ok(1),
        CustomizationEnablement::Workspace { uri, .. } => Err(Refusal::OtherWorkspace(uri.clone())),
        CustomizationEnablement::Global { .. } => Ok(2),
        CustomizationEnablement::Unknown(_) => Err(Refusal::UnknownScope),
    });
    let ranks = ranks.collect::<Result<Vec<u8>, Refusal>>()?;
    if ranks.windows(2).all(|pair| pair[0] < pair[1]) {
        Ok(())
    } else {
        Err(Refusal::UnorderedScopes)
    }
}

/// Returns the decisions about a customization that its publisher has decided about, too: the one
/// for the session, and for each other scope the one made here, else the published one.
pub(super) fn decisions_about(
    decisions: &Decisions,
    (key, workspace): (Option<&str>, Option<&str>),
    of_session: Option<bool>,
    published: &[CustomizationEnablement],
) -> Option<Vec<CustomizationEnablement>> {
    use CustomizationEnablement::{Global, Session, Workspace};
    let of_session = of_session.map(|enabled| Session { enabled });
    let is_of_workspace = |it: &&CustomizationEnablement| match it {
        Workspace { uri, .. } => Some(uri.as_str()) == workspace,
        _ => false,
    };
    let of_workspace = key.and_then(|key| decisions.of_workspace(key, workspace));
    let of_workspace = of_workspace.or_else(|| published.iter().find(is_of_workspace).cloned());
    let for_all = key.and_then(|key| decisions.for_all(key));
    let is_for_all = |it: &&CustomizationEnablement| matches!(it, Global { .. });
    let for_all = for_all.or_else(|| published.iter().find(is_for_all).cloned());
    let all: Vec<_> = of_session.into_iter().chain(of_workspace).chain(for_all).collect();
    Some(all).filter(|all| !all.is_empty())
}

/// Returns what a publication says for a session about a part.
fn published_decision(plugin: &ClientPluginCustomization, part: &str) -> Option<bool> {
    let Some((kind, name)) = part.split_once('=') else {
        return session_decision(plugin.enablement.as_deref().unwrap_or_default());
    };
    let list = plugin.child_enablement.as_ref().and_then(|all| all.get(name)).map(Vec::as_slice);
    match kind {
        "mcp" => session_decision(list.unwrap_or_default()),
        _ => Some(is_on(list)),
    }
}

/// Returns the decision for the session in a list.
pub(super) fn session_decision(list: &[CustomizationEnablement]) -> Option<bool> {
    match list.first() {
        Some(CustomizationEnablement::Session { enabled }) => Some(*enabled),
        _ => None,
    }
}

/// Returns whether a customization with these decisions is on: the first one applies.
pub(super) fn is_on(enablement: Option<&[CustomizationEnablement]>) -> bool {
    match enablement.unwrap_or_default().first() {
        None => true,
        Some(
            CustomizationEnablement::Session { enabled }
            | CustomizationEnablement::Workspace { enabled, .. }
            | CustomizationEnablement::Global { enabled },
        ) => *enabled,
        Some(CustomizationEnablement::Unknown(_)) => false,
    }
}
