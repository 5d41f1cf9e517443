//! Clients behind connections.
//!
//! Owns: admitting a client, resolving lists of URIs to channels, and answers with states. The
//! router has the steps of `initialize`, `reconnect`, `subscribe` and `unsubscribe`.
//! Never: changes a channel's state. Snapshot and registration are one step, so later output to a
//! client is exactly what its snapshot lacks.

use std::collections::{BTreeMap, BTreeSet};

use crate::host::clients::{Clients, KnownClient};
use crate::host::effects::{ConnectionId, LargeStates, LARGE_BYTES};
use crate::host::ledger::Ledger;
use crate::host::locale::Language;
use crate::host::model::ChannelId;
use crate::host::CLIENTS_MAX;
use crate::wire::annotations::session_of_subchannel;
use crate::wire::canvases::is_canvas;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::check_client_id;
use crate::wire::telemetry::{is_telemetry, severity_of};
use crate::wire::terminals::parse_terminal_uri;
use crate::wire::uris::is_of_automations;
use crate::wire::watches::{is_watch, WATCHES_MAX};

pub(crate) struct States {
    pub(crate) json: Vec<u8>,
    /// Kinds of the channels, in the order of their states.
    pub(crate) kinds: Vec<ChannelKind>,
}

/// Answer to a request that subscribes.
pub(crate) enum Subscribed {
    States(States),
    Large(Box<LargeStates>),
}

impl From<LargeStates> for Subscribed {
    /// Writes a small state at once, if it is in memory; a large one is written elsewhere.
    fn from(states: LargeStates) -> Self {
        if states.bytes >= LARGE_BYTES || !states.is_in_memory() {
            return Self::Large(Box::new(states));
        }
        let kinds = states.kinds();
        Self::States(States { json: states.json(), kinds })
    }
}

/// Returns whether a URI has the form of a channel that is neither session nor chat.
pub(crate) fn is_no_conversation(uri: &str) -> bool {
    is_watch(uri)
        || is_canvas(uri)
        || is_of_automations(uri)
        || is_telemetry(uri)
        || parse_terminal_uri(uri).is_some()
        || session_of_subchannel(uri).is_some()
}

impl Clients {
    /// Assigns a client to a connection. Without a `language` it keeps the one that it had. Returns
    /// the connection's former client id, if any.
    pub(crate) fn admit(
        &mut self,
        ledger: &mut Ledger,
        connection: ConnectionId,
        client_id: &str,
        language: Option<Language>,
    ) -> Result<Option<String>, RpcError> {
        check_client_id(client_id)?;
        let client = ledger.presence.connections.entry(connection).or_default();
        let before = client.client_id.replace(client_id.to_owned());
        let known = self.known.iter().position(|known| known.id == client_id);
        let known = known.and_then(|at| self.known.remove(at));
        client.language = language.or(known.map(|known| known.language)).unwrap_or_default();
        self.known.push_back(KnownClient { id: client_id.to_owned(), language: client.language });
        // Terminals that wait for this client may stay.
        ledger.touch(ChannelKind::Terminal);
        if self.known.len() > CLIENTS_MAX {
            self.known.pop_front();
        }
        Ok(before)
    }
}

/// Returns the core's names of those of these URIs that are other names of a channel.
pub(crate) fn core_names<'a>(ledger: &'a Ledger, uris: &'a [String]) -> BTreeMap<&'a str, &'a str> {
    let name_of = |uri: &String| Some(ledger.channels.get(ledger.find(uri)?)?.uri.as_str());
    let named = uris.iter().filter_map(|uri| Some((uri.as_str(), name_of(uri)?)));
    named.filter(|(uri, name)| uri != name).collect()
}

/// Resolves URIs to distinct channels; also returns URIs without one, or beyond the watch limit.
/// Logs of a known level are left out: they have no state.
pub(crate) fn resolve(ledger: &Ledger, uris: &[String]) -> (Vec<ChannelId>, Vec<String>) {
    let (mut seen, mut targets, mut missing) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut watches = 0;
    for uri in uris.iter().filter(|uri| !matches!(severity_of(uri), Some(Ok(_)))) {
        match ledger.find(uri) {
            Some(target) if target.kind == ChannelKind::Watch && watches == WATCHES_MAX => {
                missing.push(uri.clone());
            }
            Some(target) if seen.insert(target) => {
                watches += usize::from(target.kind == ChannelKind::Watch);
                targets.push(target);
            }
            Some(_) => {}
            None => missing.push(uri.clone()),
        }
    }
    (targets, missing)
}
