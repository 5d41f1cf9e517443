//! Changesets: files that a turn or a session has changed.
//!
//! Owns: the catalogue entries by which sessions and chats offer changesets, the counts in
//! summaries, review marks, and which changesets are in memory.
//! Never: reads a file. The changes come from `edits`, `checkpoints` and `statuses`, so a changeset
//! is not stored, and exists as long as its turns do.
//!
//! A channel that had subscribers stays in memory, up to a limit, and receives each change, so that
//! a returning client gets the actions that it missed. A channel that was evicted is sent as a
//! snapshot.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ahp_types::actions::{
    ActionOrigin, ChangesetClearedAction, ChangesetContentChangedAction, ChangesetFileRemovedAction,
    ChangesetFileSetAction, ChangesetOperationsChangedAction, ChangesetStatusChangedAction,
    ChatChangesetsChangedAction, SessionChangesetsChangedAction, StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    ChangesSummary, Changeset as ChangesetEntry, ChangesetCapabilities, ChangesetFile, ChangesetState,
    ChangesetStatus, ErrorInfo, ResponsePart, ToolCallState,
};
use uuid::Uuid;

use crate::host::actions::Verdict;
use crate::host::changes::checkpointed::CheckpointedFolder;
use crate::host::changes::comparisons::{checkpoints_of_scope, Comparison};
use crate::host::changes::edits::{self, net_of, reported_in, scope_key};
use crate::host::changes::sides::SideContent;
use crate::host::changes::statuses::shows_status;
use crate::host::changes::Changes;
use crate::host::channels::Changeset;
use crate::host::effects::{ChangesetKey, ChatKey};
use crate::host::ledger::Ledger;
use crate::host::model::{Channel, Chat, Session, SessionKey};
use crate::host::refusal::{error_info, Refusal};
use crate::host::{catalogue, Step};
use crate::state::edits::{FileDiff, LineCounts};
use crate::state::history::CompletedTurn;
use crate::wire::changesets::{
    changeset_uri, compare_template, parse_changeset_uri, turn_template, ChangesetScope,
};
use crate::wire::tool_calls::KIND;

/// Maximum number of changesets without subscribers in memory; beyond it some are evicted.
pub(super) const UNSUBSCRIBED_MAX: usize = 200;

/// Maximum number of files in a changeset; larger ones are not sent.
pub(in crate::host) const FILES_MAX: usize = 5000;

/// Type of the error of a changeset whose files are not known.
const UNKNOWN: &str = "changesUnknown";

/// Tool kinds, as agents report them, that change no file.
const READ_ONLY_KINDS: [&str; 5] = ["read", "search", "think", "fetch", "switch_mode"];

fn summary_of(files: &[FileDiff<SideContent>]) -> ChangesSummary {
    let sum =
        |of: fn(&LineCounts) -> i64| Some(files.iter().filter_map(|file| file.lines.as_ref()).map(of).sum());
    ChangesSummary {
        additions: sum(|lines| lines.added),
        deletions: sum(|lines| lines.removed),
        files: i64::try_from(files.len()).ok(),
    }
}

/// Returns the counts to send in a summary: `None` before the first change, and zeros once all
/// changes are gone, since the protocol cannot remove the counts.
fn summary_to_send(
    files: &[FileDiff<SideContent>],
    before: Option<&ChangesSummary>,
) -> Option<ChangesSummary> {
    (!files.is_empty() || before.is_some()).then(|| summary_of(files))
}

/// Derives the key from the URI.
fn key_of(uri: &str) -> ChangesetKey {
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_URL, uri.as_bytes()).as_u64_pair().0;
    // The store uses signed 64-bit integers.
    ChangesetKey(hash >> 2)
}

fn description_of(what: &str, checkpoints: &CheckpointedFolder) -> String {
    let source = match checkpoints.root() {
        Some(_) => format!("Changes in the repository during this {what}"),
        None => {
            format!("Changes that the agent has reported in this {what}, without those of its commands")
        }
    };
    match checkpoints.note() {
        Some(note) => format!("{source} ({note})"),
        None => source,
    }
}

fn entry(label: &str, uri_template: String, description: String, kind: &str) -> ChangesetEntry {
    ChangesetEntry {
        label: label.to_owned(),
        uri_template,
        description: Some(description),
        change_kind: kind.to_owned(),
        capabilities: Some(ChangesetCapabilities { review: Some(JsonObject::default()) }),
    }
}

fn entry_of_turns(session: &str, checkpoints: &CheckpointedFolder) -> ChangesetEntry {
    entry("This Turn", turn_template(session), description_of("turn", checkpoints), "turn")
}

fn entry_of_session(session: &str, checkpoints: &CheckpointedFolder) -> ChangesetEntry {
    let uri = changeset_uri(session, &ChangesetScope::Session);
    entry("Session Changes", uri, description_of("session", checkpoints), "session")
}

/// Returns all changeset entries of a session. Uncommitted and branch changes are offered if there
/// is a repository.
fn entries_of_session(
    session: &str,
    checkpoints: &CheckpointedFolder,
    base_note: Option<&str>,
) -> Vec<ChangesetEntry> {
    let mut entries = vec![entry_of_session(session, checkpoints), entry_of_turns(session, checkpoints)];
    if checkpoints.root().is_some() {
        let described = |what: &str| match base_note {
            Some(note) => format!("{what} ({note})"),
            None => what.to_owned(),
        };
        let branch = changeset_uri(session, &ChangesetScope::Branch);
        let what = described("Changes of the branch, committed or not");
        entries.insert(0, entry("Branch Changes", branch, what, "branch"));
        let uncommitted = changeset_uri(session, &ChangesetScope::Uncommitted);
        let what = "Uncommitted changes in the repository".to_owned();
        entries.insert(1, entry("Uncommitted Changes", uncommitted, what, "uncommitted"));
        let what = "Changes in the repository between the ends of two turns".to_owned();
        entries.push(entry("Compare Turns", compare_template(session), what, "compare-turns"));
    }
    entries
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

    /// Updates the changes that a session and its chats show.
    fn sync_changes(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
        let chats = ledger.channels.chats_in(key);
        let is_offered =
            ledger.channels.sessions.known(key).is_some_and(|session| session.state.changesets.is_some());
        let Some(session) = ledger.channels.sessions.known(key) else { return };
        let (uri, checkpoints) = (&session.channel.uri, &session.checkpoints);
        let has_repository = checkpoints.root().is_some();
        let entries_of_chat = vec![entry_of_turns(uri, checkpoints)];
        let entries = entries_of_session(uri, checkpoints, self.statuses.base_note_of(key));
        if !is_offered
            && !has_repository
            && chats.iter().all(|chat| edits::turns_with_edits(ledger, *chat).is_empty())
        {
            return;
        }
        let (is_known, is_alone) = (self.is_known(ledger, key, &ChangesetScope::Session), chats.len() == 1);
        let of_session = self.changed_files(ledger, key, &ChangesetScope::Session).unwrap_or_default();
        let is_compared = checkpoints_of_scope(ledger, key, &ChangesetScope::Session).is_some();
        // All changes of the session are changes of its only chat.
        let of_only_chat = (is_alone && is_compared).then_some(&of_session);
        let is_shown = is_known || !is_alone;
        for chat in chats {
            let files = match of_only_chat {
                Some(files) => files.clone(),
                None => self.reported_files_of_chat(ledger, key, chat),
            };
            if is_shown {
                show_changes_of_chat(ledger, step, chat, &files);
            }
            offer_changesets_of_chat(
                ledger,
                step,
                chat,
                &entries_of_chat,
                has_repository || !files.is_empty(),
            );
        }
        let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
        let changes = summary_to_send(&of_session, session.changes.as_ref());
        let is_due = session.state.changesets.as_ref() != Some(&entries);
        if changes != session.changes && is_known {
            session.changes = changes;
            ledger.session_changed(key);
        }
        if is_due {
            let changesets = Some(entries);
            let offered =
                StateAction::SessionChangesetsChanged(SessionChangesetsChangedAction { changesets });
            ledger.sequence(step, key, offered, None);
        }
    }

    /// Returns the files that the calls in a chat have changed, without reverted ones.
    fn reported_files_of_chat(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        chat: ChatKey,
    ) -> Vec<FileDiff<SideContent>> {
        let uri = ledger.channels.chats.known(chat).map(|chat| chat.channel.uri.as_str()).unwrap_or_default();
        self.net_files(ledger, |ledger| {
            let turns = reported_in(edits::turns_with_edits(ledger, chat));
            let mut reported = edits::without_reverted(ledger, session, turns);
            reported.extend(edits::reverts_of(ledger, session, |file| file.is_of(uri)));
            net_of(reported)
        })
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

    fn is_known(&self, ledger: &Ledger, session: SessionKey, scope: &ChangesetScope) -> bool {
        if shows_status(scope) {
            return self.statuses.known_status(session).is_some();
        }
        let pair = checkpoints_of_scope(ledger, session, scope);
        pair.is_none_or(|pair| self.checkpoints.compared.known(&pair).is_some())
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

/// Counts the changed files in the summary of a chat.
fn show_changes_of_chat(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    files: &[FileDiff<SideContent>],
) {
    let Some(of_chat) = ledger.channels.chats.known_mut(chat) else { return };
    let before = &of_chat.conversation.state().changes;
    let changes = summary_to_send(files, before.as_ref());
    if changes != *before {
        of_chat.conversation.set_changes(changes);
        ledger.chat_row_due(chat);
        catalogue::sync_chat(ledger, step, chat);
    }
}

/// Offers changesets in a chat, if it offers others; where it offers none, only if it
/// `has_changes`.
fn offer_changesets_of_chat(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    entries: &[ChangesetEntry],
    has_changes: bool,
) {
    let Some(of_chat) = ledger.channels.chats.known(chat) else { return };
    let is_due = match &of_chat.conversation.state().changesets {
        Some(offered) => offered != entries,
        None => has_changes,
    };
    if is_due {
        let changesets = Some(entries.to_vec());
        let offered = StateAction::ChatChangesetsChanged(ChatChangesetsChangedAction { changesets });
        ledger.sequence(step, chat, offered, None);
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
