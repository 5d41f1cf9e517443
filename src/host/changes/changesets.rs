//! Changesets: files that a turn or a session has changed.
//!
//! Owns: the states of changesets, review marks, and which changesets are in memory. `offers` has
//! the entries by which sessions and chats offer them.
//! Never: reads a file. The changes come from `edits`, `checkpoints` and `statuses`, so a changeset
//! is not stored, and exists as long as its turns do.
//!
//! A channel that had subscribers stays in memory, up to a limit, and receives each change, so that
//! a returning client gets the actions that it missed. A channel that was evicted is sent as a
//! snapshot.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ahp_types::actions::{
    ActionOrigin, ChangesetClearedAction, ChangesetContentChangedAction, ChangesetFileRemovedAction,
    ChangesetFileSetAction, ChangesetOperationsChangedAction, ChangesetStatusChangedAction, StateAction,
};
use ahp_types::state::{
    ChangesetFile, ChangesetState, ChangesetStatus, ErrorInfo, ResponsePart, ToolCallState,
};
use uuid::Uuid;

use crate::host::actions::Verdict;
use crate::host::changes::comparisons::{checkpoints_of_scope, Comparison};
use crate::host::changes::edits::{self, scope_key};
use crate::host::changes::statuses::shows_status;
use crate::host::changes::Changes;
use crate::host::channels::Changeset;
use crate::host::effects::ChangesetKey;
use crate::host::ledger::Ledger;
use crate::host::model::{Channel, Chat, Session, SessionKey};
use crate::host::refusal::{error_info, Refusal};
use crate::host::Step;
use crate::state::history::CompletedTurn;
use crate::wire::changesets::{changeset_uri, parse_changeset_uri, ChangesetScope};
use crate::wire::tool_calls::KIND;

/// Maximum number of changesets without subscribers in memory; beyond it some are evicted.
pub(super) const UNSUBSCRIBED_MAX: usize = 200;

/// Maximum number of files in a changeset; larger ones are not sent.
pub(in crate::host) const FILES_MAX: usize = 5000;

/// Type of the error of a changeset whose files are not known.
const UNKNOWN: &str = "changesUnknown";

/// Tool kinds, as agents report them, that change no file.
const READ_ONLY_KINDS: [&str; 5] = ["read", "search", "think", "fetch", "switch_mode"];

/// Derives the key from the URI.
fn key_of(uri: &str) -> ChangesetKey {
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_URL, uri.as_bytes()).as_u64_pair().0;
    // The store uses signed 64-bit integers.
    ChangesetKey(hash >> 2)
}

/// Returns whether a call may have changed files without reporting it.
fn may_have_changed(call: &ToolCallState) -> bool {
    let ToolCallState::Completed(call) = call else { return false };
    let kind = call.meta.as_ref().and_then(|meta| meta.get(KIND)).and_then(|kind| kind.as_str());
    !kind.is_some_and(|kind| READ_ONLY_KINDS.contains(&kind))
}

impl Changes {
    /// Brings the changesets of a session in line with its files. `have_changed`: the files may
    /// have, rather than only the status.
    pub(super) fn sync_edited_session(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        have_changed: bool,
    ) {
        if ledger.channels.sessions.get(&session).is_none() {
            return;
        }
        if have_changed {
            self.drop_stale_marks(ledger, session);
            self.sync_changes(ledger, step, session);
        }
        self.sync_changesets(ledger, step, session);
    }

    /// Brings the changesets in memory of a session in line with its files.
    pub(super) fn sync_changesets(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, session: SessionKey) {
        for key in changesets_of(ledger, session) {
            self.sync_changeset(ledger, step, key);
        }
    }

    /// Evicts changesets without subscribers above the limit.
    pub(super) fn evict_changesets(&mut self, ledger: &mut Ledger) {
        if ledger.channels.changesets.len() <= UNSUBSCRIBED_MAX {
            return;
        }
        let unsubscribed =
            ledger.channels.changesets.iter().filter(|(_, it)| it.channel.subscribers.is_empty());
        let unsubscribed: Vec<ChangesetKey> = unsubscribed.map(|(key, _)| *key).collect();
        let surplus = unsubscribed.len().saturating_sub(UNSUBSCRIBED_MAX);
        for key in unsubscribed.into_iter().take(surplus) {
            self.remove_changeset(ledger, key);
        }
    }

    /// Returns the current state of a changeset; `None` if its turn does not exist.
    fn changeset_state(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        scope: &ChangesetScope,
    ) -> Option<ChangesetState> {
        let files = self.changed_files(ledger, session, scope)?;
        if shows_status(scope) {
            match self.statuses.status_of(session) {
                Ok(Some(_)) => {}
                Ok(None) => return Some(state_of(Vec::new(), None, true)),
                Err(why) => {
                    let error = error_info(UNKNOWN.to_owned(), why);
                    return Some(state_of(Vec::new(), Some(error), false));
                }
            }
        }
        let pair = checkpoints_of_scope(ledger, session, scope);
        if let Some(pair) = &pair {
            match self.checkpoints.compared.get_or_request(pair) {
                Comparison::Known(_) => {}
                Comparison::Unknown(why) => {
                    let error = error_info(UNKNOWN.to_owned(), why);
                    return Some(state_of(Vec::new(), Some(error), false));
                }
                Comparison::Pending => return Some(state_of(Vec::new(), None, true)),
            }
        }
        let (trouble, is_running) = match scope {
            ChangesetScope::Uncommitted | ChangesetScope::Branch | ChangesetScope::Compare(..) => {
                (None, false)
            }
            ChangesetScope::Session => (None, self.checkpoints.is_checkpoint_in_flight(session, None)),
            ChangesetScope::Turn(_) if pair.is_some() => (None, false),
            ChangesetScope::Turn(id) => {
                let chat = ledger.channels.chats.known(edits::chat_of_turn(ledger, session, id)?)?;
                let is_running = chat.conversation.history().get(id).is_none()
                    || self.checkpoints.is_checkpoint_in_flight(session, Some(id));
                let is_unknown = files.is_empty() && !is_running && hides_changes(chat, id);
                (is_unknown.then(unknown_changes), is_running)
            }
        };
        if files.len() > FILES_MAX {
            let message = format!("{} files were changed, and at most {FILES_MAX} are shown", files.len());
            let error = error_info("tooManyFiles".to_owned(), &message);
            // Files that clients cannot see are not reverted; files reverted before can still be
            // restored.
            let operations = self.operations_of(ledger, session, scope, false);
            return Some(ChangesetState { operations, ..state_of(Vec::new(), Some(error), false) });
        }
        let reviewed = &ledger.channels.sessions.known(session)?.reviewed;
        let of_scope = reviewed.get(&scope_key(scope));
        let shown = files.iter().map(|file| {
            let mark = of_scope.and_then(|marks| marks.get(&file.file));
            file.shown(mark == Some(&file.version()))
        });
        let shown: Vec<ChangesetFile> = shown.collect();
        let operations = self.operations_of(ledger, session, scope, !shown.is_empty());
        let mut state = ChangesetState { operations, ..state_of(shown, trouble, is_running) };
        if shows_status(scope) && self.statuses.is_status_stale(session) {
            state.status = ChangesetStatus::Recomputing;
        }
        Some(state)
    }

    fn sync_changeset(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: ChangesetKey) {
        let Some(changeset) = ledger.channels.changesets.known(key) else { return };
        let (session, scope) = (changeset.session, changeset.scope.clone());
        let Some(wanted) = self.changeset_state(ledger, session, &scope) else {
            return self.clear_changeset(ledger, step, key);
        };
        let Some(changeset) = ledger.channels.changesets.known(key) else { return };
        let ChangesetState { status, error, files, operations } = next_state(&changeset.state, wanted);
        let mut actions = changes_between(&changeset.state.files, &files);
        if changeset.state.operations != operations {
            let changed = ChangesetOperationsChangedAction { operations };
            actions.push(StateAction::ChangesetOperationsChanged(changed));
        }
        if (&changeset.state.status, &changeset.state.error) != (&status, &error) {
            actions.push(StateAction::ChangesetStatusChanged(ChangesetStatusChangedAction { status, error }));
        }
        for action in actions {
            ledger.sequence(step, key, action, None);
        }
    }

    fn clear_changeset(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: ChangesetKey) {
        if ledger.channels.changesets.known(key).is_some_and(|changeset| !changeset.state.files.is_empty()) {
            let cleared = StateAction::ChangesetCleared(ChangesetClearedAction {});
            ledger.sequence(step, key, cleared, None);
        }
        self.remove_changeset(ledger, key);
    }

    /// Clears and removes the changesets of a deleted session.
    pub(in crate::host) fn clear_changesets_of(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
    ) {
        self.clear_failed_operations(session);
        for key in changesets_of(ledger, session) {
            self.clear_changeset(ledger, step, key);
        }
        self.statuses.remove(session);
    }

    /// Removes the changesets of a session that is evicted.
    pub(in crate::host) fn remove_changesets_of(&mut self, ledger: &mut Ledger, session: SessionKey) {
        self.clear_failed_operations(session);
        for key in changesets_of(ledger, session) {
            self.remove_changeset(ledger, key);
        }
        self.statuses.remove(session);
    }

    fn remove_changeset(&mut self, ledger: &mut Ledger, key: ChangesetKey) {
        self.statuses.status_unsubscribed(ledger, key.into());
        ledger.unlink(key.into());
        ledger.channels.changesets.remove(&key);
    }

    /// Returns whether no changeset of a session has a subscriber or an unfinished operation, so
    /// that the session may be evicted.
    pub(in crate::host) fn has_idle_changesets(&self, ledger: &Ledger, session: &Session) -> bool {
        if self.has_operations_in(ledger, &session.channel.uri) {
            return false;
        }
        let key = ledger.find_session(&session.channel.uri);
        let mut followed =
            ledger.channels.changesets.values().filter(|changeset| !changeset.channel.subscribers.is_empty());
        followed.all(|changeset| Some(changeset.session) != key)
    }

    /// Creates the requested changesets of sessions in memory.
    pub(in crate::host) fn restore_changesets<'a>(
        &mut self,
        ledger: &mut Ledger,
        uris: impl IntoIterator<Item = &'a String>,
    ) {
        for uri in uris {
            let Some((session, scope)) = parse_changeset_uri(uri) else { continue };
            let Some(session) = ledger.find_session(session).filter(|_| ledger.find(uri).is_none()) else {
                continue;
            };
            let Some(state) = self.changeset_state(ledger, session, &scope) else { continue };
            let Some(of_session) = ledger.channels.sessions.known(session) else { continue };
            let uri = changeset_uri(&of_session.channel.uri, &scope);
            let key = key_of(&uri);
            // Actions that were sent before do not lead to this state.
            let channel = Channel::new(uri.clone(), ledger.head());
            ledger.channels.by_uri.insert(uri, key.into());
            ledger.channels.changesets.insert(key, Changeset { channel, state, session, scope });
        }
    }

    /// Removes review marks of files that have changed since. A mark does not return when a file
    /// gets its earlier content again.
    fn drop_stale_marks(&mut self, ledger: &mut Ledger, key: SessionKey) {
        let Some(session) = ledger.channels.sessions.known(key).filter(|it| !it.reviewed.is_empty()) else {
            return;
        };
        let (mut reviewed, uri) = (session.reviewed.clone(), session.channel.uri.clone());
        reviewed.retain(|mark, marks| {
            let changeset = format!("{uri}{mark}");
            let named = parse_changeset_uri(&changeset);
            if named.as_ref().is_some_and(|(_, scope)| !self.is_known(ledger, key, scope)) {
                return true;
            }
            let files = named.and_then(|(_, scope)| self.changed_files(ledger, key, &scope));
            let files = files.unwrap_or_default();
            let versions: BTreeMap<&str, String> =
                files.iter().map(|file| (&*file.file, file.version())).collect();
            marks.retain(|file, version| versions.get(&**file) == Some(version));
            !marks.is_empty()
        });
        if let Some(session) = ledger.channels.sessions.known_mut(key).filter(|it| it.reviewed != reviewed) {
            session.reviewed = reviewed;
            ledger.mark_dirty(key.into());
        }
    }

    /// Marks files as reviewed, or removes the marks. Refused if the changeset has none of the
    /// files, and while their changes are being computed, since a mark is about one version.
    pub(in crate::host) fn review_files(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChangesetKey,
        action: StateAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        let StateAction::ChangesetFilesReviewChanged(review) = &action else {
            return Ok(Verdict::Unchanged);
        };
        let Some(changeset) = ledger.channels.changesets.known(key) else {
            return Ok(Verdict::Unchanged);
        };
        let (session, scope) = (changeset.session, changeset.scope.clone());
        let named = changeset.state.files.iter().filter(|file| review.files.contains(&file.id));
        let named: Vec<(String, bool)> =
            named.map(|file| (file.id.clone(), file.reviewed == Some(true))).collect();
        if named.is_empty() {
            return Err(Refusal::NoSuchFiles);
        }
        let is_reviewed = review.reviewed;
        if named.iter().all(|(_, was_reviewed)| *was_reviewed == is_reviewed) {
            return Ok(Verdict::Unchanged);
        }
        let files = self.changed_files(ledger, session, &scope).unwrap_or_default();
        let versions: BTreeMap<String, String> =
            files.into_iter().map(|file| (file.file.clone(), file.version())).collect();
        if is_reviewed && named.iter().any(|(file, _)| !versions.contains_key(file)) {
            return Err(Refusal::ChangesPending);
        }
        if let Some(of_session) = ledger.channels.sessions.known_mut(session) {
            let marks = of_session.reviewed.entry(scope_key(&scope)).or_default();
            for (file, _) in named {
                match versions.get(&file).filter(|_| is_reviewed) {
                    Some(version) => marks.insert(file, version.clone()),
                    None => marks.remove(&file),
                };
            }
            of_session.reviewed.retain(|_, marks| !marks.is_empty());
        }
        ledger.mark_dirty(session.into());
        ledger.sequence(step, key, action, Some(origin));
        Ok(Verdict::Done)
    }
}

fn changesets_of(ledger: &Ledger, session: SessionKey) -> Vec<ChangesetKey> {
    let all = ledger.channels.changesets.iter();
    all.filter(|(_, changeset)| changeset.session == session).map(|(key, _)| *key).collect()
}

/// Returns whether a completed turn of a chat may contain unreported changes of files.
fn hides_changes(chat: &Chat, id: &str) -> bool {
    let turn = chat.conversation.history().get(id).filter(|turn| turn.edits().is_empty());
    let turn = turn.and_then(CompletedTurn::read);
    // If some calls have reported changes, the others are assumed to have made none.
    turn.is_some_and(|turn| {
        turn.response_parts.iter().any(|part| match part {
            ResponsePart::ToolCall(part) => may_have_changed(&part.tool_call),
            _ => false,
        })
    })
}

fn unknown_changes() -> ErrorInfo {
    let message = "the agent has reported no changed file; changes by its commands and tools are not known";
    error_info(UNKNOWN.to_owned(), message)
}

pub(super) fn state_of(
    files: Vec<ChangesetFile>,
    error: Option<ErrorInfo>,
    is_running: bool,
) -> ChangesetState {
    let status = match &error {
        Some(_) => ChangesetStatus::Error,
        // The running turn may change more files.
        None if is_running => ChangesetStatus::Computing,
        None => ChangesetStatus::Ready,
    };
    ChangesetState { status, error, files, operations: None }
}

/// Returns the next state: the files shown before stay until new ones are known, even on errors.
pub(super) fn next_state(shown: &ChangesetState, mut wanted: ChangesetState) -> ChangesetState {
    let was_known = matches!(shown.status, ChangesetStatus::Ready | ChangesetStatus::Recomputing);
    if was_known && wanted.status == ChangesetStatus::Computing {
        wanted.status = ChangesetStatus::Recomputing;
    }
    let is_unknown = match &wanted.error {
        Some(error) => error.error_type == UNKNOWN,
        None => wanted.status == ChangesetStatus::Recomputing,
    };
    if is_unknown && wanted.files.is_empty() {
        wanted.files.clone_from(&shown.files);
    }
    wanted
}

/// Returns the actions that turn one list of files into the other. A removed review mark equals a
/// missing one.
fn changes_between(before: &[ChangesetFile], after: &[ChangesetFile]) -> Vec<StateAction> {
    let ids: BTreeSet<&str> = after.iter().map(|file| file.id.as_str()).collect();
    let removed = before.iter().filter(|file| !ids.contains(file.id.as_str()));
    let known: HashMap<&str, &ChangesetFile> = before.iter().map(|file| (file.id.as_str(), file)).collect();
    let is_same = |one: &ChangesetFile, other: &ChangesetFile| {
        one.edit == other.edit
            && one.reviewed.unwrap_or(false) == other.reviewed.unwrap_or(false)
            && one.meta == other.meta
    };
    let set = after.iter().filter(|file| known.get(file.id.as_str()).is_none_or(|it| !is_same(it, file)));
    let stay = before.iter().map(|file| file.id.as_str()).filter(|id| ids.contains(id));
    let added = after.iter().map(|file| file.id.as_str()).filter(|id| !known.contains_key(id));
    if !stay.chain(added).eq(after.iter().map(|file| file.id.as_str())) {
        let (files, operations) = (after.to_vec(), None);
        let changed = ChangesetContentChangedAction { files, operations };
        return vec![StateAction::ChangesetContentChanged(Box::new(changed))];
    }
    let removed = removed.map(|file| {
        StateAction::ChangesetFileRemoved(ChangesetFileRemovedAction { file_id: file.id.clone() })
    });
    let set = set.map(|file| StateAction::ChangesetFileSet(ChangesetFileSetAction { file: file.clone() }));
    removed.chain(set).collect()
}
