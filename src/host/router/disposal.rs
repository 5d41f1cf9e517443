//! Listing, announcing and disposing of sessions.
//!
//! Owns: the consequences of disposal (chats with their terminals, changesets, checkpoints and
//! annotations go with a session), in the order in which clients are notified.
//! Never: stores a session: `host::catalogue` does.

use ahp_types::actions::{SessionChatRemovedAction, StateAction};
use ahp_types::commands::DisposeSessionParams;
use ahp_types::notifications::SessionRemovedParams;

use crate::host::agents::{conversations, AgentRegistry};
use crate::host::catalogue::sessions::NewSession;
use crate::host::catalogue::summaries::Summaries;
use crate::host::catalogue::{ahead, save, Catalogue};
use crate::host::changes::Changes;
use crate::host::effects::{ConnectionId, Frame, Listed, Output, Page, Record};
use crate::host::ledger::Ledger;
use crate::host::model::{ChannelId, Session, SessionKey};
use crate::host::{annotations, automations, catalogue, clients, Host, Step};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::RequestId;

use super::persistence;

impl Host {
    /// Disposes of a session that was made ahead and had no subscribers for too long.
    pub(super) fn unsubscribed_session_expired(&mut self, step: &mut Step<'_>, key: SessionKey, number: u64) {
        let is_due = |session: &&Session| session.ahead && session.unsubscribed == Some(number);
        // The session may have been removed by now.
        let Some(session) = self.ledger.channels.sessions.get(&key).filter(is_due) else { return };
        let channel = session.channel.uri.clone();
        tracing::info!(
            session = channel,
            "an unused session is disposed of: its client has disconnected before the first turn"
        );
        if let Err(error) = self.dispose_session(step, &DisposeSessionParams { channel, meta: None }) {
            tracing::warn!(%error, "an unused session cannot be disposed of");
        }
    }

    /// Cancels a session's turns, closes its conversations, and removes its channels.
    pub(super) fn dispose_session(
        &mut self,
        step: &mut Step<'_>,
        params: &DisposeSessionParams,
    ) -> Result<(), RpcError> {
        let key = match self.ledger.find(&params.channel).map(ChannelId::session) {
            Some(Some(key)) => key,
            // Nothing is left to dispose of; after an error, the client would retry forever.
            None if self.ledger.why_unreadable(&params.channel).is_none() => return Ok(()),
            _ => return Err(self.ledger.not_found(&params.channel)),
        };
        let chats = self.ledger.channels.chats_in(key);
        for &chat in &chats {
            self.end_chat(step, chat);
            // A session that is restored from the trash has no interrupted turn.
            save::save_chat(&mut self.ledger, step, chat);
        }
        if self.ledger.is_dirty(key.into()) {
            persistence::save_session(&mut self.ledger, &self.changes, step, key);
        }
        for chat in chats {
            let Some(uri) = self.ledger.channels.chats.known(chat).map(|chat| chat.channel.uri.clone())
            else {
                continue;
            };
            let removed = StateAction::SessionChatRemoved(SessionChatRemovedAction { chat: uri });
            self.ledger.sequence(step, key, removed, None);
            catalogue::sessions::remove_chat(&mut self.ledger, step, chat);
        }
        self.changes.clear_changesets_of(&mut self.ledger, step, key);
        self.changes.checkpoints.dispose_checkpoints(&mut self.ledger, step, key);
        annotations::remove_annotations_of(&mut self.ledger, key);
        clients::plugins_may_differ(&self.ledger, step, key);
        self.ledger.unlink(key.into());
        let Some(session) = self.ledger.channels.sessions.remove(&key) else { return Ok(()) };
        self.summaries.remove(&mut self.ledger, key);
        // Neither a client nor the store knows of a session that was made ahead.
        if session.ahead {
            return Ok(());
        }
        self.catalogue.disposed.note(key, self.ledger.head(), self.ledger.floor());
        let uri = session.channel.uri;
        automations::runs::session_disposed(&mut self.ledger, step, &uri);
        step.emit(Output::Record(Record::SessionRemoved(key)));
        ahead::count_sessions(&mut self.ledger, step, -1);
        let params =
            SessionRemovedParams { channel: self.ledger.channels.root.channel.uri.clone(), session: uri };
        self.ledger.notify_root(step, "root/sessionRemoved", params);
        Ok(())
    }
}

/// Announces a new session unless it is made ahead of use, and has its agent open the conversation.
pub(super) fn announce_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    changes: &mut Changes,
    step: &mut Step<'_>,
    new: NewSession,
) {
    if ledger.channels.sessions.known(new.session).is_some_and(|session| !session.ahead) {
        ahead::show_session(ledger, step, new.session);
    }
    conversations::open_session(ledger, agents, step, new.session);
    changes.statuses.request_refresh(ledger, new.session);
}

/// Answers a request for a page of the list, which was read while sessions may have changed.
/// Sessions in memory replace those read, to match the summaries that clients were last sent.
pub(super) fn answer_list(
    ledger: &mut Ledger,
    catalogue: &Catalogue,
    summaries: &mut Summaries,
    step: &mut Step<'_>,
    (connection, id): (ConnectionId, RequestId),
    page: &Page,
    mut listed: Listed,
) {
    // While the store fails, only stored sessions may be sent.
    if ledger.failing().is_none() {
        summaries.send_all(ledger, step);
        catalogue.update_from_memory(ledger, page, &mut listed);
    }
    let result = catalogue::sessions::listing(&listed);
    step.emit(Output::Frame(connection, Frame::result(id, Method::ListSessions, result)));
}
