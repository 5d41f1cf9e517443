//! Files of changesets.
//!
//! Owns: which source has the files of a changeset: git, by two checkpoints or by the status of the
//! repository, or the tool calls of turns; and which of them are hidden because they were reverted.
//! Never: asks git for what is not known yet: until then, a changeset has no files.

use std::collections::{BTreeMap, BTreeSet};

use crate::host::changes::comparisons::{checkpoints_of_scope, checkpoints_of_turn, CheckpointPair};
use crate::host::changes::edits::{self, scope_key, EditTextCache, NetEdit};
use crate::host::changes::sides::{RevertedFile, SideContent};
use crate::host::changes::statuses::shows_status;
use crate::host::changes::Changes;
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::state::edits::FileDiff;
use crate::wire::changesets::ChangesetScope;

/// Maximum number of line counts that are remembered.
const COUNTED_MAX: usize = 10_000;

impl Changes {
    /// Returns the net changes with line counts.
    pub(in crate::host) fn net_files(
        &mut self,
        ledger: &Ledger,
        edits: impl for<'a> FnOnce(&'a Ledger) -> Vec<NetEdit<'a>>,
    ) -> Vec<FileDiff<SideContent>> {
        if self.counted.len() > COUNTED_MAX {
            self.counted.clear();
        }
        let mut found = EditTextCache::default();
        let net = edits(ledger);
        net.iter().map(|net| edits::changed_file(ledger, net, &mut self.counted, &mut found)).collect()
    }

    /// Returns the files of a changeset; `None` if its subject does not exist. The list is empty
    /// while git's result is pending.
    pub(in crate::host) fn changed_files(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        scope: &ChangesetScope,
    ) -> Option<Vec<FileDiff<SideContent>>> {
        if shows_status(scope) {
            return self.status_files(ledger, session, scope);
        }
        let Some(states) = checkpoints_of_scope(ledger, session, scope) else {
            return self.reported_files(ledger, session, scope);
        };
        let mut files = self.checkpointed_files(ledger, session, scope, &states);
        files.extend(self.incomparable_files(ledger, session, scope, &files));
        Some(files)
    }

    /// Returns whether the files of a changeset are known: git has reported them, if it has to.
    pub(super) fn is_known(&self, ledger: &Ledger, session: SessionKey, scope: &ChangesetScope) -> bool {
        if shows_status(scope) {
            return self.statuses.known_status(session).is_some();
        }
        let pair = checkpoints_of_scope(ledger, session, scope);
        pair.is_none_or(|pair| self.checkpoints.compared.known(&pair).is_some())
    }

    /// Returns files that git cannot compare, as tool calls report them, unless in `known`.
    fn incomparable_files(
        &mut self,
        ledger: &Ledger,
        key: SessionKey,
        scope: &ChangesetScope,
        known: &[FileDiff<SideContent>],
    ) -> Vec<FileDiff<SideContent>> {
        let Some(session) = ledger.channels.sessions.known(key) else { return Vec::new() };
        let (files, turns) = match scope {
            ChangesetScope::Session => {
                (session.checkpoints.incomparable_files(), edits::turns_of_session(ledger, key))
            }
            ChangesetScope::Turn(id) => {
                let Some(chat) = edits::chat_of_turn(ledger, key, id) else { return Vec::new() };
                let files = checkpoints_of_turn(ledger, session, chat, id)
                    .map(|turn| turn.incomparable_files().collect())
                    .unwrap_or_default();
                let mut turns = edits::turns_with_edits(ledger, chat);
                turns.retain(|turn| turn.id == id);
                (files, turns)
            }
            _ => return Vec::new(),
        };
        if files.is_empty() {
            return Vec::new();
        }
        let reported: BTreeSet<&str> =
            turns.iter().flat_map(|turn| &turn.edits).map(|edit| edit.diff.file.as_str()).collect();
        let (of_calls, unknown): (BTreeMap<_, _>, BTreeMap<_, _>) = files
            .into_iter()
            .filter(|(file, _)| !known.iter().any(|known| known.is_called(file)))
            .partition(|(file, _)| reported.contains(file));
        // The calls report the contents.
        let mut all = self.reported_files(ledger, key, scope).unwrap_or_default();
        all.retain(|file| of_calls.contains_key(file.file.as_str()));
        all.extend(unknown.into_iter().map(|(file, version)| {
            FileDiff::unknown(file, version, &session.channel.uri, &session.checkpoints)
        }));
        all
    }

    /// Returns the files that differ between two checkpoints, without reverted ones.
    fn checkpointed_files(
        &self,
        ledger: &Ledger,
        key: SessionKey,
        scope: &ChangesetScope,
        states: &CheckpointPair,
    ) -> Vec<FileDiff<SideContent>> {
        let Some(session) = ledger.channels.sessions.known(key) else { return Vec::new() };
        let changes = self.checkpoints.compared.known(states).unwrap_or_default();
        let files = changes
            .iter()
            .map(|change| FileDiff::of(change, &session.channel.uri, &session.checkpoints, false));
        // A checkpoint is taken after each revert. From then on the changeset of the session is
        // compared with that checkpoint, and shows only later changes.
        let is_hidden =
            *scope != ChangesetScope::Session || self.checkpoints.is_checkpoint_in_flight(key, None);
        let of_scope = scope_key(scope);
        let of_scope =
            session.reverted.iter().filter(|file| is_hidden && file.git.is_some() && file.scope == of_scope);
        let reverted: BTreeSet<_> =
            of_scope.filter(|file| !file.is_unsure).map(RevertedFile::change).collect();
        let is_reverted = |changed: &FileDiff<SideContent>| {
            RevertedFile::all_of(changed, "").iter().any(|file| reverted.contains(&file.change()))
        };
        files.filter(|changed| reverted.is_empty() || !is_reverted(changed)).collect()
    }

    /// Returns the files of a repository's status; `None` if there is no repository.
    fn status_files(
        &self,
        ledger: &Ledger,
        key: SessionKey,
        scope: &ChangesetScope,
    ) -> Option<Vec<FileDiff<SideContent>>> {
        let session = ledger.channels.sessions.known(key)?;
        session.checkpoints.root()?;
        let changes = self.statuses.known_status(key).map_or(&[][..], |seen| match scope {
            ChangesetScope::Branch => &seen.branch_changes,
            _ => &seen.uncommitted,
        });
        let file = |change| FileDiff::of(change, &session.channel.uri, &session.checkpoints, true);
        Some(changes.iter().map(file).collect())
    }

    fn reported_files(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        scope: &ChangesetScope,
    ) -> Option<Vec<FileDiff<SideContent>>> {
        match scope {
            ChangesetScope::Session => Some(self.net_files(ledger, |ledger| {
                let mut reported = edits::without_reverted(
                    ledger,
                    session,
                    edits::reported_in(edits::turns_of_session(ledger, session)),
                );
                reported.extend(edits::reverts_of(ledger, session, |_| true));
                edits::net_of(reported)
            })),
            ChangesetScope::Uncommitted | ChangesetScope::Branch | ChangesetScope::Compare(..) => None,
            ChangesetScope::Turn(id) => {
                let chat = edits::chat_of_turn(ledger, session, id)?;
                let of_scope = scope_key(scope);
                Some(self.net_files(ledger, |ledger| {
                    let mut turns = edits::turns_with_edits(ledger, chat);
                    turns.retain(|turn| turn.id == id);
                    let mut reported = edits::reported_in(turns);
                    reported.extend(edits::reverts_of(ledger, session, |file| file.scope == of_scope));
                    edits::net_of(reported)
                }))
            }
        }
    }
}
