//! Handshakes and subscriptions.
//!
//! Owns: the steps of `initialize`, `reconnect`, `subscribe` and `unsubscribe`: checks,
//! subscriptions, replay and answer, in this order.
//! Never: reads the replay log: the ledger does.

use ahp_types::commands::{InitializeResult, SubscribeParams, UnsubscribeParams};
use serde_json::{json, Value};

use crate::host::catalogue::ahead;
use crate::host::catalogue::missed::Missed;
use crate::host::changes::Changes;
use crate::host::clients::connections::{States, Subscribed};
use crate::host::clients::Clients;
use crate::host::effects::{ConnectionId, LargeStates, Output};
use crate::host::ledger::Ledger;
use crate::host::locale::Language;
use crate::host::model::{ChannelId, Subscription, Window};
use crate::host::{automations, clients, configuration, terminals, watches, Host, Step};
use crate::state::steering;
use crate::wire::errors::RpcError;
use crate::wire::methods::{InitializeParams, Method, ReconnectParams};
use crate::wire::rpc::to_json;
use crate::wire::telemetry;
use crate::wire::terminals::COMMAND_PREFIX;

use super::kinds;

impl Host {
    /// Opens a connection. `versions` adds the negotiated version to the result.
    pub(super) fn initialize(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: &InitializeParams,
    ) -> Result<Subscribed, RpcError> {
        let wanted = params.initial_subscriptions.as_deref().unwrap_or_default();
        terminals::restore_terminals(&mut self.ledger, wanted);
        self.changes.restore_changesets(&mut self.ledger, wanted);
        self.ledger.check_all_committed(wanted)?;
        let language = Language::of(params.locale.as_deref().unwrap_or_default());
        self.clients.admit(&mut self.ledger, connection, &params.client_id, Some(language))?;
        export_logs(step, connection, wanted);
        match &params.client_info {
            Some(info) => tracing::info!(
                client = params.client_id,
                name = info.name,
                version = info.version.as_deref().unwrap_or("?"),
                "a client has connected"
            ),
            None => tracing::info!(client = params.client_id, "a client has connected"),
        }
        let mut states = subscribe_existing(
            &mut self.ledger,
            &mut self.clients,
            &mut self.changes,
            connection,
            Method::Initialize,
            wanted,
        );
        let client = self.ledger.presence.connections.get(&connection);
        let result = serde_json::to_value(InitializeResult {
            protocol_version: String::new(),
            server_seq: i64::try_from(self.ledger.committed_head()).unwrap_or(i64::MAX),
            server_info: Some(self.server_info.clone()),
            meta: None,
            snapshots: Vec::new(),
            default_directory: client.and_then(|client| client.default_directory.clone()),
            completion_trigger_characters: Some(configuration::completions::completion_triggers(
                &self.agents,
            )),
            terminal_command_prefix: (self.ledger.limits.ptys > 0).then(|| COMMAND_PREFIX.to_owned()),
            telemetry: Some(telemetry::announced()),
            automations: automations::capabilities(&self.ledger),
        })
        .unwrap_or_default();
        if let Value::Object(mut members) = result {
            members.remove("protocolVersion");
            if let Some(next) = self.ledger.next {
                members.insert("environment".to_owned(), json!({ "pathStyle": next.path_style }));
                members.insert(steering::MEMBER.to_owned(), json!({}));
            }
            states.members = members;
        }
        Ok(states.into())
    }

    /// Reopens a connection with exactly the requested subscriptions, and answers with a replay if
    /// it can continue exactly from the client's cursor, else with snapshots. Also returns the
    /// changes of sessions to send after the answer.
    pub(super) fn reconnect(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: &ReconnectParams,
    ) -> Result<(Subscribed, Missed), RpcError> {
        terminals::restore_terminals(&mut self.ledger, &params.subscriptions);
        self.changes.restore_changesets(&mut self.ledger, &params.subscriptions);
        self.ledger.check_all_committed(&params.subscriptions)?;
        // A cursor is valid only for clients that obtained it from this sequence.
        let known =
            self.ledger.continues || self.clients.known.iter().any(|known| known.id == params.client_id);
        let head = self.ledger.head();
        let before = self.clients.admit(&mut self.ledger, connection, &params.client_id, None)?;
        for target in self.ledger.subscriptions.of(connection).collect::<Vec<_>>() {
            kinds::unsubscribe(&mut self.ledger, &mut self.changes, connection, target);
        }
        step.emit(Output::EndLogs(connection, None));
        export_logs(step, connection, &params.subscriptions);
        if let Some(before) = before.filter(|before| *before != params.client_id) {
            self.agents.remove_tokens(connection);
            self.clients.client_disconnected(&mut self.ledger, step, &before);
        }
        let (wanted, missing) = clients::connections::resolve(&self.ledger, &params.subscriptions);
        // Before the answer is made, so that it includes these removals.
        self.clients.leave_other_sessions(
            &mut self.ledger,
            step,
            &params.client_id,
            &wanted.iter().copied().collect(),
        );
        // A cursor beyond the head at the start of the request is not from this sequence, even if
        // the head has moved since.
        let cursor = u64::try_from(params.last_seen_server_seq).ok().filter(|&at| known && at <= head);
        let cursor = cursor.filter(|&cursor| {
            wanted.iter().all(|&target| {
                self.ledger.channels.get(target).is_some_and(|channel| channel.born_at <= cursor)
            })
        });
        let mut past = step.past.take();
        let missed = match cursor.filter(|_| wanted.contains(&ChannelId::ROOT)) {
            Some(cursor) => self.catalogue.missed_since(&self.ledger, cursor, past.as_mut()),
            None => Some(Missed::default()),
        };
        let head = b"{\"type\":\"replay\",\"actions\":[";
        let replay = cursor.zip(missed).and_then(|(cursor, missed)| {
            self.ledger.replay(head, cursor, past, &wanted).map(|result| (result, missed))
        });
        if let Some((mut result, missed)) = replay {
            let bytes = result.len() - head.len();
            tracing::info!(
                client = params.client_id,
                bytes,
                "a client has reconnected: the missed actions are replayed"
            );
            result.extend_from_slice(b"],\"missing\":");
            result.extend_from_slice(&to_json(&missing));
            result.push(b'}');
            let missed = missed.of_subscriptions(wanted.clone());
            resubscribe(&mut self.ledger, &mut self.clients, &mut self.changes, connection, wanted);
            let states = States { json: result, kinds: Vec::new() };
            return Ok((Subscribed::States(states), missed));
        }
        tracing::info!(client = params.client_id, "a client has reconnected: it gets snapshots");
        let mut states = subscribe_existing(
            &mut self.ledger,
            &mut self.clients,
            &mut self.changes,
            connection,
            Method::Reconnect,
            &params.subscriptions,
        );
        states.members.insert("type".to_owned(), "snapshot".into());
        Ok((states.into(), Missed::default().of_subscriptions(wanted)))
    }
}

/// Exports the log on each of the channels that is one of logs.
fn export_logs(step: &mut Step<'_>, connection: ConnectionId, channels: &[String]) {
    for channel in channels {
        if let Some(Ok(lowest)) = telemetry::severity_of(channel) {
            step.emit(Output::ExportLogs { connection, channel: channel.clone(), lowest });
        }
    }
}

/// Subscribes to channels whose states the client already has; the windows are unknown.
pub(super) fn resubscribe(
    ledger: &mut Ledger,
    clients: &mut Clients,
    changes: &mut Changes,
    connection: ConnectionId,
    wanted: Vec<ChannelId>,
) {
    for target in wanted {
        let how = Subscription { window: Window::Unknown, ..Subscription::default() };
        kinds::subscribe(ledger, clients, changes, connection, target, how);
    }
}

/// Answers a channel's state and subscribes the connection to it.
pub(super) fn serve_subscribe(
    ledger: &mut Ledger,
    clients: &mut Clients,
    changes: &mut Changes,
    step: &mut Step<'_>,
    connection: ConnectionId,
    params: &SubscribeParams,
) -> Result<Subscribed, RpcError> {
    if let Some(severity) = telemetry::severity_of(&params.channel) {
        let (channel, lowest) = (params.channel.clone(), severity?);
        step.emit(Output::ExportLogs { connection, channel, lowest });
        return Ok(ledger.states_of(Method::Subscribe, &[], 0).into());
    }
    watches::check_watch_limit(ledger, connection, &params.channel)?;
    terminals::restore_terminals(ledger, [&params.channel]);
    changes.restore_changesets(ledger, [&params.channel]);
    let not_found = || match step.refused_watches.remove(&params.channel) {
        Some(refused) => refused,
        None if ledger.why_unreadable(&params.channel).is_none()
            && clients::connections::is_no_conversation(&params.channel) =>
        {
            RpcError::resource_not_found(&params.channel)
        }
        None => ledger.not_found(&params.channel),
    };
    let target = ledger.find(&params.channel).ok_or_else(not_found)?;
    ledger.check_committed(target)?;
    let how = Subscription::asked_for(params)?;
    let first_turn = ledger.channels.first_turn(target, &how);
    kinds::subscribe(
        ledger,
        clients,
        changes,
        connection,
        target,
        Subscription { window: Window::From(first_turn), ..how },
    );
    Ok(ledger.states_of(Method::Subscribe, &[target], first_turn).into())
}

/// Ends a subscription. Ignores channels that are unknown or not subscribed.
pub(super) fn serve_unsubscribe(
    ledger: &mut Ledger,
    clients: &mut Clients,
    changes: &mut Changes,
    step: &mut Step<'_>,
    connection: ConnectionId,
    params: &UnsubscribeParams,
) -> Result<(), RpcError> {
    if let Some(severity) = telemetry::severity_of(&params.channel) {
        step.emit(Output::EndLogs(connection, Some(severity?)));
        return Ok(());
    }
    let Some(target) = ledger.find(&params.channel) else { return Ok(()) };
    let client = ledger.presence.connections.get(&connection);
    let client = client.filter(|_| ledger.subscriptions.contains(connection, target));
    let client_id = client.and_then(|client| client.client_id.clone());
    kinds::unsubscribe(ledger, changes, connection, target);
    if let (Some(session), Some(client_id)) = (target.session(), client_id) {
        clients.leave_session(ledger, step, session, &client_id);
    }
    ahead::start_unsubscribed_timers(ledger, step);
    Ok(())
}

/// Subscribes to the channels that exist; returns their states, as the given method answers them.
pub(super) fn subscribe_existing(
    ledger: &mut Ledger,
    clients: &mut Clients,
    changes: &mut Changes,
    connection: ConnectionId,
    method: Method,
    uris: &[String],
) -> LargeStates {
    let (targets, _) = clients::connections::resolve(ledger, uris);
    let states = ledger.states_of(method, &targets, 0);
    for target in targets {
        kinds::subscribe(ledger, clients, changes, connection, target, Subscription::default());
    }
    states
}
