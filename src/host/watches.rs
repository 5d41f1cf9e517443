//! Watches of files: their channels, and the notifications of changes.
//!
//! Owns: creating the channel of a started watch, notifying its subscribers, the time for which it
//! stays without subscribers, and its end.
//! Never: reads a file, or sequences changes: they are no state, and are not replayed.

use std::time::Duration;

use ahp_types::actions::{ResourceWatchChangedAction, StateAction};
use ahp_types::state::{ResourceChange, ResourceChangeType};
use serde_json::json;

use super::channels::Watch;
use super::effects::{ChannelId, ConnectionId, Frame, Output, Timer, WatchKey};
use super::ledger::{unsequenced_line, Ledger};
use super::Step;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::watches::{is_watch, Watched, WATCHES_MAX};

/// Time in which a client that lost its connection can return before its watches are closed.
const UNSUBSCRIBED_MAX: Duration = Duration::from_secs(30);

const UNSUBSCRIBED_COUNT_MAX: usize = 2 * WATCHES_MAX;

/// Outcome of starting each watch, by its URI.
pub(super) type WatchBegun = Vec<(String, Result<(), RpcError>)>;

/// Applies the outcomes of starting the watches that the message needs.
pub(super) fn apply_watches(ledger: &mut Ledger, step: &mut Step<'_>, begun: WatchBegun) {
    for (uri, how) in begun {
        match how.map(|()| Watched::from_channel(&uri)) {
            // Another client has started the watch by now.
            Ok(Some(_)) if ledger.find(&uri).is_some() => step.emit(Output::Unwatch(uri)),
            Ok(Some(watched)) => {
                let key = WatchKey(ledger.fresh_key());
                ledger.channels.by_uri.insert(uri.clone(), key.into());
                ledger.channels.watches.insert(key, Watch::new(uri, watched));
                ledger.touch(ChannelKind::Watch);
            }
            Ok(None) => step.emit(Output::Unwatch(uri)),
            Err(error) => {
                step.refused_watches.insert(uri, error);
            }
        }
    }
}

/// Returns an error if the connection may not subscribe to one more watch; other channels pass.
pub(super) fn check_watch_limit(
    ledger: &Ledger,
    connection: ConnectionId,
    uri: &str,
) -> Result<(), RpcError> {
    if !is_watch(uri) {
        return Ok(());
    }
    let follows = |target: ChannelId| ledger.subscriptions.contains(connection, target);
    let watches = ledger.subscriptions.of(connection).filter(|target| target.kind == ChannelKind::Watch);
    if watches.count() < WATCHES_MAX || ledger.find(uri).is_some_and(follows) {
        return Ok(());
    }
    Err(RpcError::invalid_params(format_args!("a connection follows at most {WATCHES_MAX} watches")))
}

pub(super) fn send_file_changes(
    ledger: &Ledger,
    step: &mut Step<'_>,
    watch: &str,
    changes: Vec<(String, ResourceChangeType)>,
) {
    // The watch may have ended by now.
    let channel = ledger.find(watch).and_then(|target| ledger.channels.get(target));
    for &connection in channel.map_or(&[][..], |channel| &channel.subscribers) {
        let frame = Frame::Answer(changes_line(ledger, watch, &changes));
        step.emit(Output::Frame(connection, frame));
    }
}

/// Notifies a reconnected client that it may have missed any change of its watched files.
pub(super) fn notify_possible_changes(
    ledger: &Ledger,
    step: &mut Step<'_>,
    connection: ConnectionId,
    watches: &[ChannelId],
) {
    for target in watches.iter().filter(|target| target.kind == ChannelKind::Watch) {
        let Some(watch) = ledger.channels.watches.get(&WatchKey(target.key)) else { continue };
        let all = [(watch.state.root.clone(), ResourceChangeType::Updated)];
        let frame = Frame::Answer(changes_line(ledger, &watch.channel.uri, &all));
        step.emit(Output::Frame(connection, frame));
    }
}

fn changes_line(ledger: &Ledger, watch: &str, changes: &[(String, ResourceChangeType)]) -> bytes::Bytes {
    let items: Vec<ResourceChange> =
        changes.iter().map(|(uri, r#type)| ResourceChange { uri: uri.clone(), r#type: *r#type }).collect();
    let changes = json!({ "items": items });
    let action = StateAction::ResourceWatchChanged(ResourceWatchChangedAction { changes });
    unsequenced_line(watch, &action, ledger.committed_head())
}

/// Starts the timers of watches that have lost their last subscriber, cancels those of watches that
/// have one again, and ends the oldest beyond the limit.
pub(super) fn settle_watches(ledger: &mut Ledger, step: &mut Step<'_>) {
    if !ledger.take_touched(ChannelKind::Watch) {
        return;
    }
    let mut left = Vec::new();
    for key in ledger.channels.watches.keys().copied().collect::<Vec<_>>() {
        let Some(watch) = ledger.channels.watches.get(&key) else { continue };
        let unsubscribed = match (watch.channel.subscribers.is_empty(), watch.unsubscribed) {
            (false, _) => None,
            (true, None) => {
                let number = ledger.fresh_key();
                step.emit(Output::Timer(Timer::Watch(key, number), UNSUBSCRIBED_MAX));
                Some(number)
            }
            (true, since) => since,
        };
        left.extend(unsubscribed.map(|since| (since, key)));
        if let Some(watch) = ledger.channels.watches.get_mut(&key) {
            watch.unsubscribed = unsubscribed;
        }
    }
    left.sort_unstable();
    let too_many = left.len().saturating_sub(UNSUBSCRIBED_COUNT_MAX);
    for (_, key) in left.into_iter().take(too_many) {
        end_watch(ledger, step, key);
    }
}

pub(super) fn unsubscribed_watch_expired(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: WatchKey,
    number: u64,
) {
    if ledger.channels.watches.get(&key).is_some_and(|watch| watch.unsubscribed == Some(number)) {
        end_watch(ledger, step, key);
    }
}

/// Ends all watches without subscribers, then starts those of a pending message.
pub(super) fn evict_unsubscribed_watches(ledger: &mut Ledger, step: &mut Step<'_>, connection: ConnectionId) {
    let watches = ledger.channels.watches.iter();
    let unsubscribed = watches.filter(|(_, watch)| watch.channel.subscribers.is_empty());
    for key in unsubscribed.map(|(key, _)| *key).collect::<Vec<_>>() {
        end_watch(ledger, step, key);
    }
    step.emit(Output::BeginWatches(connection));
}

fn end_watch(ledger: &mut Ledger, step: &mut Step<'_>, key: WatchKey) {
    let Some(watch) = ledger.channels.watches.remove(&key) else { return };
    ledger.channels.by_uri.remove(&watch.channel.uri);
    step.emit(Output::Unwatch(watch.channel.uri));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::model::Subscription;
    use crate::host::testing::{config, outputs_of};

    const READER: ConnectionId = ConnectionId(1);

    /// A ledger with a watch that has begun and has a subscriber, and its channel.
    fn watched() -> (Ledger, ChannelId, String) {
        let mut ledger = Ledger::at_start(&config());
        let uri = "file:///w".to_owned();
        let uri = Watched { uri, recursive: false, excludes: None, includes: None }.channel();
        let begun = vec![(uri.clone(), Ok(()))];
        assert!(outputs_of(|step| apply_watches(&mut ledger, step, begun)).is_empty());
        let target = ledger.find(&uri).unwrap();
        ledger.subscribe(READER, target, Subscription::default());
        (ledger, target, uri)
    }

    fn timer(outputs: &[Output]) -> Option<u64> {
        match outputs {
            [Output::Timer(Timer::Watch(_, number), _)] => Some(*number),
            _ => None,
        }
    }

    #[test]
    fn changes_reach_subscribers_without_a_number() {
        let (mut ledger, target, uri) = watched();
        let send = |ledger: &Ledger| {
            let changes = vec![("file:///w/a".to_owned(), ResourceChangeType::Added)];
            outputs_of(|step| send_file_changes(ledger, step, &uri, changes))
        };
        let outputs = send(&ledger);
        assert!(matches!(outputs[..], [Output::Frame(READER, Frame::Answer(_))]), "{outputs:?}");
        assert_eq!(ledger.head(), 0);
        ledger.unsubscribe(READER, target);
        assert!(send(&ledger).is_empty());
    }

    #[test]
    fn watch_ends_when_the_latest_timer_of_its_last_subscriber_expires() {
        let (mut ledger, target, uri) = watched();
        let key = WatchKey(target.key);
        let leave = |ledger: &mut Ledger| {
            ledger.unsubscribe(READER, target);
            timer(&outputs_of(|step| settle_watches(ledger, step))).unwrap()
        };
        let first = leave(&mut ledger);
        ledger.subscribe(READER, target, Subscription::default());
        assert!(outputs_of(|step| settle_watches(&mut ledger, step)).is_empty());
        let second = leave(&mut ledger);
        assert!(outputs_of(|step| unsubscribed_watch_expired(&mut ledger, step, key, first)).is_empty());
        let outputs = outputs_of(|step| unsubscribed_watch_expired(&mut ledger, step, key, second));
        assert!(matches!(&outputs[..], [Output::Unwatch(ended)] if *ended == uri), "{outputs:?}");
        assert_eq!(ledger.find(&uri), None);
    }
}
