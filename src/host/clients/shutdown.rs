//! Shutdown of the host, and questions that no client can answer.
//!
//! Owns: the progress of a shutdown, and declining questions when no client is left that could
//! answer them.
//! Never: ends a turn: the router does.

use ahp_types::state::{ChatInputResponseKind, ToolCallCancellationReason, ToolCallState};

use crate::host::chats::calls::{self, rejection_among, CallRef, Denial};
use crate::host::clients::Clients;
use crate::host::effects::{Abilities, ChatKey, Command, ConnectionId};
use crate::host::ledger::Ledger;
use crate::host::{automations, clients, Step};
use crate::wire::tool_calls::client_of_call;

/// Progress of a shutdown.
#[derive(Debug)]
pub(crate) struct ShuttingDown {
    /// Set if turns are cancelled, and no new one begins.
    pub(crate) cancelling: bool,
    /// Set if a question was declined or a turn was cut off.
    pub(crate) cut: bool,
    pub(crate) done: bool,
}

impl Clients {
    /// Returns whether turns of a chat are being cancelled for good, so that none may begin.
    pub(crate) fn is_cancelling(&self, ledger: &Ledger, key: ChatKey) -> bool {
        self.shutdown.as_ref().is_some_and(|state| state.cancelling)
            || self.is_cancelling_for_disconnect(ledger, key)
    }

    /// Declines a question, permission or review, or fails a client's tool call, if no client is
    /// left that could handle it.
    pub(crate) fn decline_without_clients(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
        id: &str,
    ) {
        let is_ending =
            self.shutdown.is_some() || !self.disconnects.is_empty() || automations::is_of_run(ledger, key);
        let is_alone = self.shutdown.is_some() || !self.may_questions_be_answered(ledger);
        if !is_ending || !is_alone || self.is_cancelling(ledger, key) {
            return;
        }
        let Some((chat, run)) =
            ledger.channels.chats.known(key).and_then(|chat| Some((chat, chat.run.as_ref()?)))
        else {
            return;
        };
        let (turn_id, run_id, id) = (run.turn_id.clone(), run.id, id.to_owned());
        let command = match chat.conversation.tool(&id) {
            Some(ToolCallState::PendingConfirmation(_)) => {
                let option = run.permissions.get(&id).and_then(|options| rejection_among(options));
                let why = Some("no client is left to answer");
                let reason = ToolCallCancellationReason::Denied;
                let call = CallRef { key, turn_id, id: id.clone() };
                calls::refuse_call(ledger, step, call, Denial { option: option.clone(), reason, why });
                Command::Permission { run: run_id, tool_call_id: id, option, approved: false }
            }
            Some(ToolCallState::PendingResultConfirmation(_)) => {
                calls::refuse_result(ledger, step, CallRef { key, turn_id, id: id.clone() });
                calls::reviewed(ledger, key, run_id, id, false)
            }
            Some(call @ ToolCallState::Running(_)) if client_of_call(call).is_some() => {
                self.note_cut(ledger, key);
                let call = CallRef { key, turn_id, id };
                return clients::fail_client_call(ledger, step, &call, "no client is left to run the tool");
            }
            _ if chat.conversation.question(&id).is_some() => {
                let response = ChatInputResponseKind::Decline;
                let request_id = run.first_id(&id).to_owned();
                calls::settle_question(ledger, step, key, id, response);
                Command::Answer { run: run_id, request_id, response, answers: Default::default() }
            }
            _ => return,
        };
        self.note_cut(ledger, key);
        step.send_to_agent(key, command);
    }

    /// Records that something was declined because no client remains.
    fn note_cut(&mut self, ledger: &Ledger, key: ChatKey) {
        self.note_disconnect_cut(ledger, key);
        if let Some(state) = &mut self.shutdown {
            state.cut = true;
        }
    }

    /// Records what the client of a connection can do.
    pub(crate) fn note_abilities(
        &self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
        abilities: Abilities,
    ) {
        let Some(client) = ledger.presence.connections.get_mut(&connection) else { return };
        client.abilities = abilities;
        self.decline_unseen_questions(ledger, step);
    }

    /// Declines the open questions if no client can show them.
    pub(crate) fn decline_unseen_questions(&self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if self.may_questions_be_shown(ledger) {
            return;
        }
        for (chat, id) in calls::all_calls_and_questions(ledger) {
            self.decline_unseen_question(ledger, step, chat, &id);
        }
    }

    /// Declines a question that no client can show, since its turn would wait for ever. Without any
    /// client, the question stays open for one.
    pub(crate) fn decline_unseen_question(
        &self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
        id: &str,
    ) {
        if self.may_questions_be_shown(ledger) {
            return;
        }
        let Some(chat) = ledger.channels.chats.known(key) else { return };
        let Some((run, request_id)) = chat.run.as_ref().map(|run| (run.id, run.first_id(id).to_owned()))
        else {
            return;
        };
        if chat.conversation.question(id).is_none_or(|question| question.response.is_some()) {
            return;
        }
        tracing::warn!(chat = chat.channel.uri, "a question was declined: no connected client can show it");
        let response = ChatInputResponseKind::Decline;
        calls::settle_question(ledger, step, key, id.to_owned(), response);
        step.send_to_agent(key, Command::Answer { run, request_id, response, answers: Default::default() });
    }

    /// Returns whether a client that shows questions can send an answer or is expected back, or
    /// whether no client is left.
    fn may_questions_be_shown(&self, ledger: &Ledger) -> bool {
        let mut clients = ledger.presence.speakers().peekable();
        !self.expected.is_empty()
            || clients.peek().is_none()
            || clients.any(|(_, client)| client.abilities.sees_questions)
    }
}
