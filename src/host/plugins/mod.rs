//! Plugins that clients publish in sessions, fetched from the clients that have them.
//!
//! Owns: [`Plugins`], that is, which plugins are being fetched and what recently fetched ones
//! contain; and, in each session, how far each of its plugins is loaded.
//! Never: decides what of a plugin is shown or given to an agent (`customizations` does), asks a
//! client that publishes no plugin, runs anything of a plugin, or stores one of its files.
//!
//! A plugin is fetched when it is published, by `resourceList` and `resourceRead` from its client.
//! Only the files that describe its parts are read, and only what they describe is kept: in memory,
//! for the 64 plugins (client, URI and nonce) that were used last. Such a plugin is not fetched
//! again. One without a nonce is fetched for each session, unless another one waits for the same
//! plugin. Nothing is stored: after a restart, plugins are fetched again when their clients are
//! back.
//!
//! Limits: 32 plugins per client and session, the rest is not shown; per plugin 2,000 files and
//! folders (`tree`), 256 parts (`layouts`), 16 MiB of files, and 30 seconds; 64 MiB of files in
//! all; 4 fetches with 2 requests each at a time per connection, and 256 that wait or run per
//! client; 1 MiB of what the parts of a plugin say, and the rest is not shown. Past another limit,
//! the plugin is not loaded, with the reason. The time in which a client's user decides about
//! access does not count.

mod fetch;
mod front_matter;
mod layouts;
mod servers;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ahp_types::state::{ClientPluginCustomization, SessionActiveClient};

use self::fetch::{Fetch, FetchProgress, Fetched};
use self::layouts::Parsing;
use self::tree::Tree;
use super::effects::{ConnectionId, Output, SessionKey, Timer};
use super::ledger::Ledger;
use super::relays::{FetchAnswer, Relays};
use super::Step;

pub(super) use fetch::uri_in;
pub(super) use layouts::{ParsedPlugin, Part, PartKind};
pub(super) use servers::PluginServer;

/// Contents of a plugin, by what its files say.
#[derive(Debug)]
pub struct PluginContents {
    /// Path of each part.
    pub parts: Vec<String>,
    /// Reasons why something was left out, for people.
    pub problems: Vec<String>,
}

/// Reads a plugin whose files are all known, by path.
///
/// # Errors
/// When it has too many files, or too large ones.
pub fn read_files(files: &BTreeMap<String, String>) -> Result<PluginContents, String> {
    let plugin = parse_known(files)?;
    let parts = plugin.parts.into_iter().map(|part| part.path).collect();
    Ok(PluginContents { parts, problems: plugin.problems })
}

fn parse_known(files: &BTreeMap<String, String>) -> Result<ParsedPlugin, String> {
    let mut tree = Tree::default();
    for path in files.keys() {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        tree.add(folder, name, "file")?;
    }
    loop {
        match layouts::parse(&tree) {
            Parsing::Done(plugin) => return Ok(plugin),
            Parsing::Needs(paths) => {
                for path in paths {
                    let content = files.get(&path).ok_or_else(|| format!("there is no file {path}"))?;
                    tree.add_content(&path, content.clone())?;
                }
            }
        }
    }
}

/// Deadline for fetching a plugin.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of plugins of a client in a session.
pub(super) const PLUGINS_MAX: usize = 32;

/// Maximum length of the URI of a plugin, in bytes; each of its parts repeats it.
const URI_BYTES_MAX: usize = 1024;

/// Maximum number of plugins whose contents are remembered.
const CACHED_MAX: usize = 64;

/// Maximum number of simultaneous fetches per connection, besides those that wait for access.
const FETCHES_MAX: usize = 4;

/// Maximum number of fetches from one client, with those that wait.
const FETCHES_OF_CLIENT_MAX: usize = 256;

/// Maximum size of the files that all fetches hold, in bytes.
const HELD_BYTES_MAX: usize = 64 << 20;

const DISCONNECTED: &str = "its client is not connected";

const TOO_OLD: &str = "its client cannot be asked for it: the version of the protocol is older than 0.5.2";

/// Version of a plugin of a client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PluginKey {
    client_id: String,
    uri: String,
    nonce: Option<String>,
}

/// Plugins of a session, by client and URI.
#[derive(Debug, Default)]
pub(super) struct SessionPlugins(BTreeMap<(String, String), SessionPlugin>);

/// Plugin of a session.
#[derive(Debug)]
pub(super) struct SessionPlugin {
    key: PluginKey,
    pub(super) load: PluginLoad,
    published: ClientPluginCustomization,
    /// Set if its client has published it again since it could not be loaded.
    retries: bool,
}

impl PluginKey {
    fn of(client_id: &str, plugin: &ClientPluginCustomization) -> Self {
        let (uri, nonce) = (plugin.uri.clone(), plugin.nonce.clone());
        Self { client_id: client_id.to_owned(), uri, nonce }
    }
}

/// Progress of loading a plugin.
#[derive(Debug, Clone)]
pub(super) enum PluginLoad {
    Loading,
    Loaded(Arc<ParsedPlugin>),
    /// Reason why it could not be loaded, for people.
    Failed(String),
}

impl SessionPlugins {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has the plugins of a client that could not be loaded be fetched again: the client has
    /// published them again. Returns whether there are any.
    pub(super) fn retry_failed(&mut self, client_id: &str) -> bool {
        let of_client = self.0.values_mut().filter(|plugin| plugin.key.client_id == client_id);
        let failed = of_client.filter(|plugin| matches!(plugin.load, PluginLoad::Failed(_)));
        failed.map(|plugin| plugin.retries = true).count() > 0
    }

    fn get_mut(&mut self, client_id: &str, uri: &str) -> Option<&mut SessionPlugin> {
        self.0.get_mut(&(client_id.to_owned(), uri.to_owned()))
    }

    pub(super) fn get(&self, client_id: &str, uri: &str) -> Option<&SessionPlugin> {
        self.0.get(&(client_id.to_owned(), uri.to_owned()))
    }
}

/// Fetches of plugins, and contents of fetched plugins.
#[derive(Debug, Default)]
pub(super) struct Plugins {
    /// Contents of plugins with a nonce, the latest last.
    cache: VecDeque<(PluginKey, Arc<ParsedPlugin>)>,
    fetches: BTreeMap<u64, Fetch>,
    last_fetch: u64,
    /// Sessions with plugins of clients that are awaited, perhaps in another version; each with the
    /// connection that has not sent a plugin in time, or the reason why none could be asked.
    awaited: BTreeMap<(SessionKey, String), Result<ConnectionId, &'static str>>,
    /// Connections to which the fetches and the awaited clients were last matched.
    connections: Vec<(ConnectionId, Option<String>, Availability)>,
}

/// Facts about a connection that decide whether its client is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Availability {
    answers_requests: bool,
    is_leaving: bool,
}

/// Returns the plugins that a session's clients publish, with their clients; of one URI, the first.
pub(super) fn published(
    clients: &[SessionActiveClient],
) -> impl Iterator<Item = (&str, &ClientPluginCustomization)> {
    clients.iter().flat_map(|client| {
        let plugins = client.customizations.iter().flatten().take(PLUGINS_MAX);
        let mut uris = BTreeSet::new();
        let plugins = plugins.filter(move |plugin| uris.insert(plugin.uri.as_str()));
        plugins.map(|plugin| (client.client_id.as_str(), plugin))
    })
}

impl Plugins {
    /// Fetches the plugins that are published in a session and not loaded yet, and forgets those
    /// that are published no longer, or all if the session is gone.
    pub(super) fn follow_session(
        &mut self,
        ledger: &mut Ledger,
        relays: &mut Relays,
        step: &mut Step<'_>,
        session_key: SessionKey,
    ) {
        let (were_awaited, awaited): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.awaited)
            .into_iter()
            .partition(|((session, _), _)| *session == session_key);
        self.awaited = awaited;
        let Some(session) = ledger.channels.sessions.get_mut(&session_key) else {
            self.drop_unwanted(ledger, relays);
            return self.go_on(ledger, relays, step);
        };
        if session.plugins.is_empty() && published(&session.state.active_clients).next().is_none() {
            return;
        }
        let mut before = std::mem::take(&mut session.plugins.0);
        let wanted: Vec<(PluginKey, ClientPluginCustomization)> = published(&session.state.active_clients)
            .map(|(client_id, plugin)| (PluginKey::of(client_id, plugin), plugin.clone()))
            .collect();
        let (mut after, mut republished, mut publishers) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        for (key, publication) in wanted {
            let at = (key.client_id.clone(), key.uri.clone());
            let was = before.remove(&at);
            let is_same = was.as_ref().is_some_and(|was| was.published == publication);
            if !is_same {
                publishers.insert(key.client_id.clone());
            }
            if let Some(was) = was.as_ref().filter(|_| !is_same) {
                republished.push((key.client_id.clone(), was.published.clone(), publication.clone()));
            }
            let awaited = were_awaited.get_key_value(&(session_key, key.client_id.clone()));
            let is_back =
                awaited.is_some_and(|(_, asked)| *asked != connection_to_ask(ledger, &key.client_id));
            let load = match was.filter(|was| was.key == key) {
                Some(was) if !matches!(was.load, PluginLoad::Failed(_)) => was.load,
                Some(failed) if is_same && !is_back && !failed.retries => {
                    self.awaited.extend(awaited.map(|(client, asked)| (client.clone(), *asked)));
                    failed.load
                }
                _ => self.load(ledger, session_key, &key),
            };
            after.insert(at, SessionPlugin { key, load, published: publication, retries: false });
        }
        if let Some(session) = ledger.channels.sessions.get_mut(&session_key) {
            session.plugins.0 = after;
            for client in &session.state.active_clients {
                let count = client.customizations.as_ref().map_or(0, Vec::len);
                let client = &client.client_id;
                if count > PLUGINS_MAX && publishers.contains(client) {
                    tracing::warn!(
                        client,
                        "only the first {PLUGINS_MAX} of {count} published plugins are used"
                    );
                }
            }
            for (client_id, was, now) in republished {
                session.decided.forget_changed(&client_id, &was, &now);
            }
        }
        self.drop_unwanted(ledger, relays);
        self.go_on(ledger, relays, step);
    }

    /// Returns the content of a plugin if it is known, else starts to fetch it.
    fn load(&mut self, ledger: &Ledger, session: SessionKey, key: &PluginKey) -> PluginLoad {
        if let Some(at) = self.cache.iter().position(|(known, _)| known == key) {
            if let Some(entry) = self.cache.remove(at) {
                let parsed = Arc::clone(&entry.1);
                self.cache.push_back(entry);
                return PluginLoad::Loaded(parsed);
            }
        }
        if self.fetches.values().any(|fetch| fetch.key == *key) {
            return PluginLoad::Loading;
        }
        if key.uri.len() > URI_BYTES_MAX {
            return PluginLoad::Failed(format!("its URI is longer than {URI_BYTES_MAX} bytes"));
        }
        if key.uri.contains(['?', '#']) {
            return PluginLoad::Failed(
                "its URI has a query or a fragment, so it has no files below".to_owned(),
            );
        }
        let of_client = self.fetches.values().filter(|fetch| fetch.key.client_id == key.client_id);
        if of_client.count() >= FETCHES_OF_CLIENT_MAX {
            if let Ok(asked) = connection_to_ask(ledger, &key.client_id) {
                // On its next connection it is asked again.
                self.awaited.insert((session, key.client_id.clone()), Ok(asked));
            }
            return PluginLoad::Failed(
                "too many plugins of its client are being fetched: publish it again later".to_owned(),
            );
        }
        let connection = match connection_to_ask(ledger, &key.client_id) {
            Ok(connection) => connection,
            Err(why) => {
                self.awaited.insert((session, key.client_id.clone()), Err(why));
                return PluginLoad::Failed(why.to_owned());
            }
        };
        self.last_fetch += 1;
        self.fetches.insert(self.last_fetch, Fetch::new(key.clone(), connection));
        PluginLoad::Loading
    }

    /// Ends the fetches of plugins that no session has any more.
    fn drop_unwanted(&mut self, ledger: &Ledger, relays: &mut Relays) {
        if self.fetches.is_empty() {
            return;
        }
        let mut unwanted: BTreeSet<PluginKey> =
            self.fetches.values().map(|fetch| fetch.key.clone()).collect();
        for plugin in ledger.channels.sessions.values().flat_map(|session| session.plugins.0.values()) {
            unwanted.remove(&plugin.key);
            if unwanted.is_empty() {
                return;
            }
        }
        self.fetches.retain(|number, fetch| {
            let is_wanted = !unwanted.contains(&fetch.key);
            if !is_wanted {
                relays.drop_fetch(*number);
            }
            is_wanted
        });
    }

    /// Begins fetches again whose client is now to be asked on another connection: it is back on a
    /// newer one, and may never answer on the older one.
    fn follow_connections(&mut self, ledger: &Ledger, relays: &mut Relays) {
        let mut moved = Vec::new();
        for (number, fetch) in &mut self.fetches {
            let connection = connection_to_ask(ledger, &fetch.key.client_id).unwrap_or(fetch.connection);
            if connection != fetch.connection {
                *fetch = Fetch::new(fetch.key.clone(), connection);
                moved.push(*number);
            }
        }
        moved.into_iter().for_each(|number| self.renumber(relays, number));
    }

    /// Begins the fetches for which there is room, and sends their next requests.
    fn go_on(&mut self, ledger: &Ledger, relays: &mut Relays, step: &mut Step<'_>) {
        self.follow_connections(ledger, relays);
        let mut begun: BTreeMap<ConnectionId, usize> = BTreeMap::new();
        let counts = |fetch: &&Fetch| fetch.has_begun && !fetch.waits_for_access();
        for fetch in self.fetches.values().filter(counts) {
            *begun.entry(fetch.connection).or_default() += 1;
        }
        let can_ask = |connection: &ConnectionId| {
            ledger.presence.connections.contains_key(connection)
                && !ledger.presence.leaving.contains(connection)
        };
        for (number, fetch) in &mut self.fetches {
            let begun = begun.entry(fetch.connection).or_default();
            if !fetch.has_begun {
                // Fetches that need no decision of the user do not wait for those that do.
                let has_limits = !fetch.waits_for_access();
                if has_limits && *begun >= FETCHES_MAX || !can_ask(&fetch.connection) {
                    continue;
                }
                fetch.has_begun = true;
                if has_limits {
                    *begun += 1;
                    step.emit(Output::Timer(Timer::Plugin(*number), FETCH_TIMEOUT));
                }
            }
            let connection = fetch.connection;
            fetch.ask_next(&mut |method, uri| relays.ask_for_fetch(step, *number, (connection, method), uri));
        }
    }

    /// Takes the answers of clients. Returns the sessions whose plugins have changed.
    pub(super) fn answered(
        &mut self,
        ledger: &mut Ledger,
        relays: &mut Relays,
        step: &mut Step<'_>,
        answers: Vec<FetchAnswer>,
    ) -> Vec<SessionKey> {
        let mut changed = Vec::new();
        for FetchAnswer { fetch: number, request, result } in answers {
            let Some(fetch) = self.fetches.get_mut(&number) else { continue };
            let progress = fetch.answered(request, result);
            let held: usize = self.fetches.values().map(Fetch::bytes).sum();
            match progress {
                FetchProgress::Over(fetched) => changed.extend(self.ended(ledger, relays, number, fetched)),
                FetchProgress::Anew => self.renumber(relays, number),
                FetchProgress::Open if held > HELD_BYTES_MAX => {
                    let why = "too many plugins are being fetched: publish it again later".to_owned();
                    changed.extend(self.ended(ledger, relays, number, Err(why)));
                }
                FetchProgress::Open => {}
            }
        }
        self.go_on(ledger, relays, step);
        changed
    }

    /// Gives a fetch that begins anew a new number: the timer and the open requests of the old one
    /// do not count.
    fn renumber(&mut self, relays: &mut Relays, number: u64) {
        relays.drop_fetch(number);
        if let Some(fetch) = self.fetches.remove(&number) {
            self.last_fetch += 1;
            self.fetches.insert(self.last_fetch, fetch);
        }
    }

    /// Ends a fetch that takes too long. Returns the sessions whose plugins have changed.
    pub(super) fn timed_out(
        &mut self,
        ledger: &mut Ledger,
        relays: &mut Relays,
        step: &mut Step<'_>,
        number: u64,
    ) -> Vec<SessionKey> {
        let why = format!("its client has not sent it within {} seconds", FETCH_TIMEOUT.as_secs());
        let asked = self.fetches.get(&number).map(|fetch| fetch.connection);
        let changed = asked.map(|asked| self.not_sent(ledger, relays, number, (Ok(asked), why)));
        self.go_on(ledger, relays, step);
        changed.unwrap_or_default()
    }

    /// Ends the fetches from a client that can no longer send. Returns the sessions whose plugins
    /// have changed.
    pub(super) fn connection_ended(
        &mut self,
        ledger: &mut Ledger,
        relays: &mut Relays,
        connection: ConnectionId,
    ) -> Vec<SessionKey> {
        let over = self.fetches.iter().filter(|(_, fetch)| fetch.connection == connection);
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        let mut changed = Vec::new();
        for number in over {
            let why = (Err(DISCONNECTED), DISCONNECTED.to_owned());
            changed.extend(self.not_sent(ledger, relays, number, why));
        }
        changed
    }

    /// Ends a fetch whose client is awaited, with the connection that was asked, if it is still
    /// there, and the reason for people. Returns the sessions whose plugins have changed.
    fn not_sent(
        &mut self,
        ledger: &mut Ledger,
        relays: &mut Relays,
        number: u64,
        (asked, why): (Result<ConnectionId, &'static str>, String),
    ) -> Vec<SessionKey> {
        let client_id = self.fetches.get(&number).map(|fetch| fetch.key.client_id.clone());
        let sessions = self.ended(ledger, relays, number, Err(why));
        let client_id = client_id.unwrap_or_default();
        // The client may be back already.
        self.connections.clear();
        self.awaited.extend(sessions.iter().map(|session| ((*session, client_id.clone()), asked)));
        sessions
    }

    /// Returns whether no plugin is being fetched or waits for its client.
    pub(super) fn is_idle(&self) -> bool {
        self.fetches.is_empty() && self.awaited.is_empty()
    }

    /// Returns whether the connections differ from those at the last call.
    pub(super) fn connections_changed(&mut self, ledger: &Ledger) -> bool {
        let presence = &ledger.presence;
        let now = presence.connections.iter().map(|(connection, client)| {
            let is_leaving = presence.leaving.contains(connection);
            let availability =
                Availability { answers_requests: client.abilities.answers_requests, is_leaving };
            (*connection, client.client_id.as_deref(), availability)
        });
        let before = self.connections.iter();
        if now.clone().eq(before.map(|(connection, id, it)| (*connection, id.as_deref(), *it))) {
            return false;
        }
        self.connections = now.map(|(connection, id, it)| (connection, id.map(str::to_owned), it)).collect();
        true
    }

    /// Returns the sessions with plugins of awaited clients that are back, or cannot be asked for
    /// another reason than before.
    pub(super) fn returned(&self, ledger: &Ledger) -> Vec<SessionKey> {
        let differs = |client_id: &str, asked| connection_to_ask(ledger, client_id) != asked;
        let back = self.awaited.iter().filter(|((_, client_id), asked)| differs(client_id, **asked));
        back.map(|((session, _), _)| *session).collect()
    }

    fn ended(
        &mut self,
        ledger: &mut Ledger,
        relays: &mut Relays,
        number: u64,
        fetched: Fetched,
    ) -> Vec<SessionKey> {
        let Some(Fetch { key, .. }) = self.fetches.remove(&number) else { return Vec::new() };
        relays.drop_fetch(number);
        let load = match fetched {
            Ok(parsed) => {
                let parsed = Arc::new(parsed);
                if key.nonce.is_some() {
                    self.cache.push_back((key.clone(), Arc::clone(&parsed)));
                    if self.cache.len() > CACHED_MAX {
                        self.cache.pop_front();
                    }
                }
                PluginLoad::Loaded(parsed)
            }
            Err(why) => {
                tracing::warn!(client = key.client_id, plugin = key.uri, "a plugin was not loaded: {why}");
                PluginLoad::Failed(why)
            }
        };
        let mut changed = Vec::new();
        for (session_key, session) in ledger.channels.sessions.iter_mut() {
            let plugin = session.plugins.get_mut(&key.client_id, &key.uri);
            if let Some(plugin) = plugin.filter(|plugin| plugin.key == key) {
                plugin.load = load.clone();
                changed.push(*session_key);
            }
        }
        changed
    }
}

/// Returns the connection on which a client is asked: the newest one on which it answers requests,
/// since an older one may be dead without notice.
fn connection_to_ask(ledger: &Ledger, client_id: &str) -> Result<ConnectionId, &'static str> {
    let there = ledger.presence.connections_of(client_id);
    let there = there.filter(|(connection, _)| !ledger.presence.leaving.contains(connection));
    let newest = there.max_by_key(|(connection, client)| (client.abilities.answers_requests, *connection));
    match newest {
        Some((connection, client)) if client.abilities.answers_requests => Ok(connection),
        Some(_) => Err(TOO_OLD),
        None => Err(DISCONNECTED),
    }
}
