//! Turns that run in one repository at the same time.
//!
//! Owns: which turns overlap, so that git cannot separate their changes.
//! Never: takes a checkpoint.

use crate::host::changes::checkpoints::{Checkpoints, JobPurpose};
use crate::host::configuration::directories;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::{RunPhase, SessionKey};
use crate::wire::uris::rest_below;

impl Checkpoints {
    /// Notes which turns overlap with that of a chat, when a checkpoint before it is requested or
    /// its work `begins`. The checkpoints of this turn include changes of the other chat; those of
    /// the other turn include changes of this one from its beginning.
    pub(in crate::host) fn note_overlaps(&mut self, ledger: &mut Ledger, key: ChatKey, begins: bool) {
        if self.within_ms == 0 {
            return;
        }
        let chats = &ledger.channels.chats;
        let Some(session) = chats.known(key).map(|chat| chat.session) else { return };
        let runs =
            chats.iter().filter_map(|(other, chat)| Some((*other, chat.session, chat.run.as_ref()?.phase)));
        let beside: Vec<(ChatKey, SessionKey, RunPhase)> =
            runs.filter(|(other, ..)| *other != key && share_a_repository(ledger, key, *other)).collect();
        for (other, of, phase) in beside {
            let is_of_another_session = of != session;
            if matches!(phase, RunPhase::Started | RunPhase::Command) {
                self.note_overlap(ledger, key, is_of_another_session);
            }
            if begins {
                self.note_overlap(ledger, other, is_of_another_session);
            }
        }
        if begins {
            self.note_overlap_with_ended_turns(ledger, key, session);
        }
    }

    /// Notes that the turn of a chat overlaps with another one, also while its checkpoint is in
    /// flight: the other one may end before git reports what it has seen.
    fn note_overlap(&mut self, ledger: &mut Ledger, key: ChatKey, is_of_another_session: bool) {
        for job in self.jobs.values_mut() {
            match job {
                JobPurpose::BeforeTurn { chat, overlaps, overlaps_others, .. } if *chat == key => {
                    *overlaps = true;
                    *overlaps_others |= is_of_another_session;
                }
                _ => {}
            }
        }
        let Some(chat) = ledger.channels.chats.known(key) else { return };
        let Some(turn) = &chat.conversation.state().active_turn else { return };
        let (uri, turn, session) = (chat.channel.uri.clone(), turn.id.clone(), chat.session);
        note_overlap_of_turn(ledger, session, (&uri, &turn), is_of_another_session);
    }

    /// Notes that the work of a chat begins while checkpoints after ended turns are in flight: they
    /// include changes of this chat.
    fn note_overlap_with_ended_turns(&self, ledger: &mut Ledger, key: ChatKey, own: SessionKey) {
        let one = folders_of_chat(ledger, key);
        for job in self.jobs.values() {
            let JobPurpose::AfterTurn { session, chat, turn, .. } = job else { continue };
            let other = ledger.channels.sessions.known(*session);
            let other = other.and_then(|session| session.checkpoints.root().cloned());
            if other.is_some_and(|other| are_nested(&one, &[other])) {
                note_overlap_of_turn(ledger, *session, (chat, turn), *session != own);
            }
        }
    }
}

fn note_overlap_of_turn(
    ledger: &mut Ledger,
    session: SessionKey,
    (chat, turn): (&str, &str),
    is_of_another_session: bool,
) {
    let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
    if let Some(of_turn) = of_session.checkpoints.turn_mut(chat, turn) {
        of_turn.overlaps = true;
        of_turn.overlaps_others |= is_of_another_session;
        ledger.mark_dirty(session.into());
    }
}

fn share_a_repository(ledger: &Ledger, one: ChatKey, other: ChatKey) -> bool {
    are_nested(&folders_of_chat(ledger, one), &folders_of_chat(ledger, other))
}

fn folders_of_chat(ledger: &Ledger, chat: ChatKey) -> Vec<String> {
    let session = ledger.channels.chats.known(chat).map(|chat| chat.session);
    let session = session.and_then(|session| ledger.channels.sessions.known(session));
    let root = session.and_then(|session| session.checkpoints.root().cloned());
    root.map_or_else(|| directories::effective_directories(ledger, chat), |root| vec![root])
}

fn are_nested(one: &[String], other: &[String]) -> bool {
    one.iter()
        .any(|one| other.iter().any(|other| rest_below(one, other).or(rest_below(other, one)).is_some()))
}
