//! Changes between two checkpoints, as far as they are known.
//!
//! Owns: which checkpoints a changeset compares, and the cache of git's results.
//! Never: runs git.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ahp_types::state::ChatOrigin;

use crate::host::changes::checkpointed::CheckpointedTurn;
use crate::host::changes::edits;
use crate::host::effects::{ChannelId, ChatKey, Checkpoint, GitContent};
use crate::host::ledger::Ledger;
use crate::host::model::{Session, SessionKey};
use crate::state::edits::FileDiff;
use crate::wire::changesets::ChangesetScope;

/// Number of comparisons, besides one per changeset in memory, above which those not shown are
/// evicted.
const COMPARISONS_MAX: usize = 200;

/// Two checkpoints of a session, the earlier one first.
pub(in crate::host) type CheckpointPair = (SessionKey, Checkpoint, Checkpoint);

/// Changes between two checkpoints.
#[derive(Debug)]
pub(in crate::host) enum Comparison {
    Pending,
    Known(Vec<FileDiff<GitContent>>),
    /// Failed, with the reason for people.
    Unknown(String),
}

#[derive(Debug, Default)]
pub(in crate::host) struct ComparisonCache {
    pub(super) pairs: BTreeMap<CheckpointPair, Comparison>,
    /// Comparisons to start, in this order.
    pub(super) wanted: VecDeque<CheckpointPair>,
}

impl ComparisonCache {
    /// Notes the result of a comparison.
    pub(super) fn insert(&mut self, pair: CheckpointPair, comparison: Comparison) {
        self.pairs.insert(pair, comparison);
    }

    /// Returns the changes between two checkpoints; requests them if the cache has no entry.
    pub(in crate::host) fn get_or_request(&mut self, pair: &CheckpointPair) -> &Comparison {
        let wanted = &mut self.wanted;
        self.pairs.entry(pair.clone()).or_insert_with(|| {
            wanted.push_back(pair.clone());
            Comparison::Pending
        })
    }

    /// Drops a failed comparison so that it is requested again; returns whether there was one.
    fn remove_failed(&mut self, pair: &CheckpointPair) -> bool {
        let failed = matches!(self.pairs.get(pair), Some(Comparison::Unknown(_)));
        if failed {
            self.pairs.remove(pair);
        }
        failed
    }

    /// Returns the changes between two checkpoints if they are known.
    pub(in crate::host) fn known(&self, pair: &CheckpointPair) -> Option<&[FileDiff<GitContent>]> {
        match self.pairs.get(pair) {
            Some(Comparison::Known(changes)) => Some(changes),
            _ => None,
        }
    }

    /// Evicts comparisons that no changeset in memory shows, above the limit.
    pub(in crate::host) fn evict(&mut self, ledger: &Ledger) {
        if self.pairs.len() <= COMPARISONS_MAX + ledger.channels.changesets.len() {
            return;
        }
        let shown = ledger.channels.changesets.values();
        let shown: BTreeSet<CheckpointPair> = shown
            .filter_map(|changeset| checkpoints_of_scope(ledger, changeset.session, &changeset.scope))
            .collect();
        let stays = |pair: &CheckpointPair, comparison: &mut Comparison| {
            shown.contains(pair) || matches!(comparison, Comparison::Pending)
        };
        self.pairs.retain(stays);
    }

    /// Retries the failed comparison of a changeset that has a new subscriber.
    pub(in crate::host) fn retry_failed(&mut self, ledger: &mut Ledger, target: ChannelId) {
        let changeset = target.changeset().and_then(|key| ledger.channels.changesets.get(&key));
        let Some((session, scope)) = changeset.map(|it| (it.session, it.scope.clone())) else { return };
        if let Some(pair) = checkpoints_of_scope(ledger, session, &scope) {
            if self.remove_failed(&pair) {
                ledger.note_edited(session, false);
            }
        }
    }
}

/// Returns the checkpoints of a turn of this chat.
pub(super) fn checkpoints_of_turn<'a>(
    ledger: &Ledger,
    session: &'a Session,
    chat: ChatKey,
    id: &str,
) -> Option<&'a CheckpointedTurn> {
    let chat = ledger.channels.chats.known(chat)?;
    let is_fork = matches!(chat.conversation.state().origin, Some(ChatOrigin::Fork { .. }));
    session.checkpoints.of_turn(&chat.channel.uri, id, is_fork)
}

/// Returns the checkpoints around the changes of a scope; `None` if only tool calls report these.
pub(in crate::host) fn checkpoints_of_scope(
    ledger: &Ledger,
    key: SessionKey,
    scope: &ChangesetScope,
) -> Option<CheckpointPair> {
    let checkpoints = &ledger.channels.sessions.known(key)?.checkpoints;
    checkpoints.root()?;
    let (before, after) = match scope {
        ChangesetScope::Session => checkpoints.whole_session()?,
        ChangesetScope::Uncommitted | ChangesetScope::Branch => return None,
        ChangesetScope::Compare(one, other) => {
            let after = |id: &String| {
                let chat = ledger.channels.chats.known(edits::chat_of_turn(ledger, key, id)?)?;
                checkpoints.after_turn(&chat.channel.uri, id)
            };
            (after(one)?, after(other)?)
        }
        ChangesetScope::Turn(id) => {
            let chat = edits::chat_of_turn(ledger, key, id)?;
            ledger.channels.chats.known(chat)?.conversation.history().get(id)?;
            checkpoints_of_turn(ledger, ledger.channels.sessions.known(key)?, chat, id)?.pair()?
        }
    };
    Some((key, before.clone(), after.clone()))
}
