//! Plugins of clients, from their publication to what agents are given of them.
//!
//! Owns: the order of these steps: plugins are fetched, the session shows them, and its
//! conversations get their servers.
//! Never: does anything in a step in which no client has published or sent a plugin.

use crate::host::customizations;
use crate::host::effects::{ConnectionId, SessionKey};
use crate::host::ledger::Ledger;
use crate::host::plugins::Plugins;
use crate::host::relays::Relays;
use crate::host::Step;

/// Brings a session in line with the plugins that its active clients publish.
pub(super) fn follow_plugins(
    ledger: &mut Ledger,
    plugins: &mut Plugins,
    relays: &mut Relays,
    step: &mut Step<'_>,
    session: SessionKey,
) {
    plugins.follow_session(ledger, relays, step, session);
    show(ledger, step, &[session]);
}

/// Passes the answers of clients to the fetches, and asks clients again that are back.
pub(super) fn settle_plugins(
    ledger: &mut Ledger,
    plugins: &mut Plugins,
    relays: &mut Relays,
    step: &mut Step<'_>,
) {
    if plugins.is_idle() {
        return;
    }
    let (answers, are_others) = (relays.take_fetched(), plugins.connections_changed(ledger));
    if answers.is_empty() && !are_others {
        return;
    }
    let mut changed = plugins.answered(ledger, relays, step, answers);
    changed.dedup();
    show(ledger, step, &changed);
    for session in plugins.returned(ledger) {
        follow_plugins(ledger, plugins, relays, step, session);
    }
}

/// Ends a fetch that takes too long.
pub(super) fn plugin_timed_out(
    ledger: &mut Ledger,
    plugins: &mut Plugins,
    relays: &mut Relays,
    step: &mut Step<'_>,
    number: u64,
) {
    let changed = plugins.timed_out(ledger, relays, step, number);
    show(ledger, step, &changed);
}

/// Ends the fetches from a client that can no longer send.
pub(super) fn end_fetches_from(
    ledger: &mut Ledger,
    plugins: &mut Plugins,
    relays: &mut Relays,
    step: &mut Step<'_>,
    connection: ConnectionId,
) {
    let changed = plugins.connection_ended(ledger, relays, connection);
    show(ledger, step, &changed);
}

fn show(ledger: &mut Ledger, step: &mut Step<'_>, sessions: &[SessionKey]) {
    for session in sessions {
        if ledger.channels.sessions.contains_key(session) {
            customizations::update_session(ledger, step, *session);
        }
    }
}
