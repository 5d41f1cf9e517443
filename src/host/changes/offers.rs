//! Catalogue entries and counts by which sessions and chats show their changes.
//!
//! Owns: which changesets a session and its chats offer, and the counts of changed files and lines
//! in their summaries.
//! Never: changes a changeset, or reads a file. `files` has the files that are counted.

use ahp_types::actions::{ChatChangesetsChangedAction, SessionChangesetsChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{ChangesSummary, Changeset as ChangesetEntry, ChangesetCapabilities};

use crate::host::changes::checkpointed::CheckpointedFolder;
use crate::host::changes::comparisons::checkpoints_of_scope;
use crate::host::changes::edits::{self, net_of, reported_in};
use crate::host::changes::sides::SideContent;
use crate::host::changes::Changes;
use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::{catalogue, Step};
use crate::state::edits::{FileDiff, LineCounts};
use crate::wire::changesets::{changeset_uri, compare_template, turn_template, ChangesetScope};

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

impl Changes {
    /// Updates the changes that a session and its chats show.
    pub(super) fn sync_changes(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
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
