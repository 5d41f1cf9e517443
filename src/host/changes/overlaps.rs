//! Turns that run in one repository at the same time.
//!
//! Owns: which turns overlap, so that git cannot separate their changes.
//! Never: takes a checkpoint.

use crate::host::changes::checkpoints::Checkpoints;
use crate::host::configuration::directories;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, RunPhase};
use crate::wire::uris::rest_below;

impl Checkpoints {
    /// Notes which turns overlap with that of a chat, when its folder was checkpointed or its work
    /// `begins`. The checkpoints of this turn include changes of the other chat; those of the other
    /// turn include changes of this one from its beginning.
    pub(in crate::host) fn note_overlaps(&self, ledger: &mut Ledger, key: ChatKey, begins: bool) {
        if self.within_ms == 0 {
            return;
        }
        let run_of = |chat: &Chat| chat.run.as_ref().map(|run| run.phase);
        let beside: Vec<(ChatKey, bool)> = ledger
            .channels
            .chats
            .iter()
            .filter_map(|(other, chat)| {
                let phase =
                    run_of(chat).filter(|_| *other != key && share_a_repository(ledger, key, *other))?;
                Some((*other, matches!(phase, RunPhase::Started | RunPhase::Command)))
            })
            .collect();
        for (other, works) in beside {
            let session = |chat: ChatKey| ledger.channels.chats.known(chat).map(|chat| chat.session);
            let are_others = session(key) != session(other);
            for (chat, _) in [(key, works), (other, begins)].into_iter().filter(|(_, is_mixed)| *is_mixed) {
                note_overlap(ledger, chat, are_others);
            }
        }
    }
}

fn note_overlap(ledger: &mut Ledger, key: ChatKey, is_of_another_session: bool) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let Some(turn) = &chat.conversation.state().active_turn else { return };
    let (uri, turn, session) = (chat.channel.uri.clone(), turn.id.clone(), chat.session);
    let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
    if let Some(of_turn) = of_session.checkpoints.turn_mut(&uri, &turn) {
        of_turn.overlaps = true;
        of_turn.overlaps_others |= is_of_another_session;
        ledger.mark_dirty(session.into());
    }
}

fn share_a_repository(ledger: &Ledger, one: ChatKey, other: ChatKey) -> bool {
    let folders = |chat: ChatKey| {
        let session = ledger.channels.chats.known(chat).map(|chat| chat.session);
        let session = session.and_then(|session| ledger.channels.sessions.known(session));
        let root = session.and_then(|session| session.checkpoints.root().cloned());
        root.map_or_else(|| directories::effective_directories(ledger, chat), |root| vec![root])
    };
    let (one, other) = (folders(one), folders(other));
    one.iter()
        .any(|one| other.iter().any(|other| rest_below(one, other).or(rest_below(other, one)).is_some()))
}
