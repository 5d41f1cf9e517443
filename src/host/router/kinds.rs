//! Actions of clients by the kind of their channel, and reactions to actions and subscriptions.
//!
//! Owns: which owner checks and carries out an action on each kind of channel; and which owners
//! react, in which order, to a sequenced action and to the start or end of a subscription.
//! Never: decides anything itself.

use ahp_types::actions::{ActionOrigin, StateAction};
use serde_json::value::RawValue;

use crate::host::actions::{read_action, Verdict};
use crate::host::agents::conversations;
use crate::host::changes::Changes;
use crate::host::channels::{
    Annotations, AutomationRun, Automations, Canvas, Changeset, Root, Terminal, Watch,
};
use crate::host::clients::Clients;
use crate::host::effects::{ChannelId, ConnectionId};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, Session, Subscription};
use crate::host::refusal::Refusal;
use crate::host::{annotations, automations, customizations, terminals, Host, Step};
use crate::wire::channels::ChannelKind;

use super::{automation_steps, dispatch, plugin_steps};

impl Host {
    /// Carries out an action of a client; `as_selected` if the selection of its chat applies to it.
    ///
    /// # Errors
    /// When the action is rejected; then it has no effect, except that a question is asked again
    /// whose answers are invalid.
    pub(super) fn change(
        &mut self,
        step: &mut Step<'_>,
        id: ChannelId,
        action: StateAction,
        origin: ActionOrigin,
        as_selected: bool,
    ) -> Result<Verdict, Refusal> {
        let is_change = match id.kind {
            ChannelKind::Session => {
                return dispatch::change_session(
                    &mut self.ledger,
                    &mut self.agents,
                    &mut self.clients,
                    step,
                    id.key.into(),
                    action,
                    origin,
                )
            }
            ChannelKind::Chat => {
                return self.change_chat_as_selected(step, id.key.into(), action, origin, as_selected)
            }
            ChannelKind::Terminal => {
                return terminals::client_changes_terminal(
                    &mut self.ledger,
                    step,
                    id.key.into(),
                    action,
                    origin,
                )
            }
            ChannelKind::Annotations => {
                return annotations::annotate(&mut self.ledger, step, id.key.into(), action, origin)
            }
            ChannelKind::Changeset => {
                return self.changes.review_files(&mut self.ledger, step, id.key.into(), action, origin)
            }
            ChannelKind::Automations => {
                return automations::change_list(&mut self.ledger, &self.agents, step, action, origin)
            }
            ChannelKind::AutomationRun => {
                return automation_steps::cancel_run(self, step, id.key.into(), &action)
            }
            ChannelKind::Watch => return Err(Refusal::WatchesAreNotDispatchedTo),
            ChannelKind::Canvas => return Err(Refusal::CanvasesAreNotDispatchedTo),
            ChannelKind::Root => self.ledger.channels.root.check_change(&action)?,
            #[cfg(test)]
            ChannelKind::Sample => match self.ledger.channels.samples.get(&id.key.into()) {
                Some(sample) => sample.is_change(&action),
                None => return Err(Refusal::SampleGone),
            },
        };
        if !is_change {
            return Ok(Verdict::Unchanged);
        }
        self.ledger.sequence(step, id, action, Some(origin));
        Ok(Verdict::Done)
    }

    /// Carries out the work that must follow the answer to a client's action.
    pub(super) fn after_answer(&mut self, step: &mut Step<'_>, id: ChannelId) {
        let Some(chat) = id.chat() else { return };
        self.end_if_too_large(step, chat);
        // The next queued message may be ready to start. It must not start before the
        // acknowledgement, since a sender that applies its action only then would restore a message
        // that was just consumed.
        if self.ledger.failing().is_none() {
            self.take_next_queued(step, chat);
        }
    }

    /// Passes the facts of a step to the owners that react, oldest first, until none is left.
    pub(super) fn deliver(&mut self, step: &mut Step<'_>) {
        while let Some(fact) = step.facts.pop_front() {
            match fact {
                Fact::MayWait { chat, id, is_question } => {
                    self.clients.decline_without_clients(&mut self.ledger, step, chat, &id);
                    if is_question {
                        self.clients.decline_unseen_question(&mut self.ledger, step, chat, &id);
                    }
                }
                Fact::ConversationChanged { chat, session } => {
                    if customizations::follow_conversation(&mut self.ledger, step, chat, session) {
                        conversations::open_conversation(&mut self.ledger, &self.agents, step, chat);
                    }
                }
                Fact::PluginsMayDiffer(session) => {
                    let (plugins, relays) = (&mut self.plugins, &mut self.relays);
                    plugin_steps::follow_plugins(&mut self.ledger, plugins, relays, step, session);
                }
                Fact::TurnEnded(chat) => {
                    self.changes.checkpoints.checkpoint_after_turn(&mut self.ledger, step, chat);
                    automation_steps::end_run_of(self, step, chat);
                }
                Fact::QueueMayContinue(chat) => self.take_next_queued(step, chat),
            }
        }
    }
}

/// Subscribes a connection to a channel, or changes its subscription, and notifies the owners that
/// react.
pub(crate) fn subscribe(
    ledger: &mut Ledger,
    clients: &mut Clients,
    changes: &mut Changes,
    connection: ConnectionId,
    target: ChannelId,
    how: Subscription,
) {
    let Some(client) = ledger.presence.connections.get(&connection) else { return };
    let client_id = client.client_id.clone();
    ledger.subscribe(connection, target, how);
    changes.statuses.status_subscribed(ledger, target);
    changes.checkpoints.compared.retry_failed(ledger, target);
    if let (Some(session), Some(client_id)) = (target.session(), client_id) {
        clients.client_returned(session, &client_id);
    }
}

/// Ends a connection's subscription to a channel, after notifying the owners that react.
pub(crate) fn unsubscribe(
    ledger: &mut Ledger,
    changes: &mut Changes,
    connection: ConnectionId,
    target: ChannelId,
) {
    changes.statuses.status_unsubscribed(ledger, target);
    ledger.unsubscribe(connection, target);
}

pub(super) fn read_dispatched(kind: ChannelKind, action: &RawValue) -> Result<StateAction, Refusal> {
    let as_it_is = |_: &str, _: &mut _| ();
    match kind {
        ChannelKind::Root => read_action::<Root>(action, as_it_is),
        ChannelKind::Session => read_action::<Session>(action, as_it_is),
        ChannelKind::Chat => read_chat_action(action),
        ChannelKind::Terminal => read_action::<Terminal>(action, as_it_is),
        ChannelKind::Watch => read_action::<Watch>(action, as_it_is),
        ChannelKind::Canvas => read_action::<Canvas>(action, as_it_is),
        ChannelKind::Annotations => read_action::<Annotations>(action, as_it_is),
        ChannelKind::Changeset => read_action::<Changeset>(action, as_it_is),
        ChannelKind::Automations => read_action::<Automations>(action, as_it_is),
        ChannelKind::AutomationRun => read_action::<AutomationRun>(action, as_it_is),
        #[cfg(test)]
        ChannelKind::Sample => read_action::<crate::host::channels::Sample>(action, as_it_is),
    }
}

fn read_chat_action(action: &RawValue) -> Result<StateAction, Refusal> {
    read_action::<Chat>(action, |name, members| {
        // The host sets these two members by its own clock, so clients may omit them.
        match name {
            "chat/turnStarted" => members.entry("startedAt").or_insert_with(|| "".into()),
            "chat/turnCancelled" => members.entry("duration").or_insert_with(|| 0.into()),
            _ => return,
        };
    })
}
