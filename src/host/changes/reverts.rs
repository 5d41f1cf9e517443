//! Reverting files, and restoring reverted ones, for clients.
//!
//! A revert is an edit like those of agents, made by the host and saved with the session. A revert
//! loses no content: the previous content is stored with the calls or by git, and the revert is
//! recorded before it is made. If the host or the work ends before the outcome is known, the files
//! can be restored, and their changes are still in the changeset; reverting them again finds them
//! with the wanted content.
//!
//! Owns: the expected and the wanted content of each file, and the record of reverted files.
//! Never: touches a file.

use std::collections::BTreeSet;

use crate::host::changes::edits::{self, scope_key, EditTextCache};
use crate::host::changes::sides::{RevertedFile, SideContent};
use crate::host::changes::Changes;
use crate::host::effects::{FileRevert, GitRevert, RevertOutcome, RevertRequest};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;
use crate::state::edits::FileDiff;
use crate::wire::changesets::ChangesetScope;
use crate::wire::errors::RpcError;

/// Maximum number of reverted files that a session remembers, except those of the last revert.
/// Older ones cannot be restored, and changesets of their turns show them as changed again.
const REVERTED_MAX: usize = 1000;

/// Maximum number of files that an answer names.
const NAMED_MAX: usize = 100;

/// Files of a revert, before it is requested.
#[derive(Default)]
pub(super) struct FilesToRevert {
    files: Vec<FileRevert>,
    /// Files that are left as they are, each with the reason for people.
    left: Vec<String>,
    /// Files whose revert has changed nothing, so that restoring them needs no write.
    untouched: Vec<RevertedFile>,
}

/// Returns the last reverted files of a scope, to be restored.
pub(super) fn files_to_restore(
    ledger: &Ledger,
    session: SessionKey,
    scope: &ChangesetScope,
) -> FilesToRevert {
    let (mut all, mut texts) = (FilesToRevert::default(), EditTextCache::default());
    for file in last_reverted(ledger, session, scope) {
        if file.is_untouched {
            all.untouched.push(file.clone());
            continue;
        }
        let (wanted, now) = edits::reverted_sides(ledger, file, &mut texts);
        let git = file.git.clone().map(GitRevert::reversed);
        let git = git.map(|git| GitRevert { mode_wanted: file.mode, ..git });
        all.files.push(FileRevert { reverted: file.clone(), now, wanted, git });
    }
    all
}

/// Returns changed files to revert, without the `changed_since_seen` ones, which have changed since
/// the client saw them.
pub(super) fn files_to_discard<'a>(
    ledger: &Ledger,
    scope: &ChangesetScope,
    files: impl Iterator<Item = &'a FileDiff<SideContent>>,
    changed_since_seen: &[String],
) -> FilesToRevert {
    let (mut all, mut texts) = (FilesToRevert::default(), EditTextCache::default());
    for changed in files {
        if changed_since_seen.contains(&changed.file) {
            all.left.push(format!("`{}`: it has changed since you saw it", changed.file));
            continue;
        }
        for reverted in RevertedFile::all_of(changed, &scope_key(scope)) {
            let (now, wanted) = edits::reverted_sides(ledger, &reverted, &mut texts);
            let git = reverted.git.clone();
            all.files.push(FileRevert { reverted, now, wanted, git });
        }
    }
    all
}

/// Returns the request to revert or restore these files. Fails if there are none.
pub(super) fn requested_revert(
    ledger: &mut Ledger,
    session: SessionKey,
    scope: ChangesetScope,
    restores: bool,
    FilesToRevert { files, left, untouched }: FilesToRevert,
) -> Result<RevertRequest, RpcError> {
    if files.is_empty() && !left.is_empty() {
        return Err(RpcError::files_have_changed(&list_of_files(&left)));
    }
    if files.is_empty() && untouched.is_empty() {
        return Err(RpcError::invalid_params("`target.resource` is no file of the changeset"));
    }
    let uses_git = files.iter().any(|file| file.reverted.git.is_some());
    let checkpoints = ledger.channels.sessions.known_mut(session).map(|session| &mut session.checkpoints);
    let (mut root, mut checkpoint_first, mut bytes_retained) = (None, None, None);
    if let Some(checkpoints) = checkpoints.filter(|_| uses_git) {
        root = checkpoints.root().cloned();
        // No other copy of uncommitted changes exists.
        checkpoint_first =
            (scope == ChangesetScope::Uncommitted && !restores).then(|| checkpoints.next_ref());
        bytes_retained = Some(checkpoints.next_ref());
        ledger.mark_dirty(session.into());
    }
    Ok(RevertRequest {
        session,
        scope,
        restores,
        root,
        checkpoint_first,
        bytes_retained,
        files,
        left,
        untouched,
    })
}

fn list_of_files(files: &[String]) -> String {
    let named = &files[..files.len().min(NAMED_MAX)];
    match files.len() - named.len() {
        0 => named.join("; "),
        others => format!("{}; and {others} other files", named.join("; ")),
    }
}

impl Changes {
    /// Records the outcome of each file of a revert, and answers the clients that wait for it.
    pub(in crate::host) fn files_reverted(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        request: RevertRequest,
        outcomes: Vec<RevertOutcome>,
    ) {
        let RevertRequest { session, restores, root, files, left, untouched, .. } = request;
        let begun_at = files.first().map(|file| file.reverted.edit.at);
        let mut refused = left;
        let (mut done, mut unsure, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (file, outcome) in files.into_iter().zip(outcomes) {
            match outcome {
                RevertOutcome::Done { bytes, mode } => {
                    let mut reverted = file.reverted;
                    // A restored file is found again as it was recorded.
                    if !restores {
                        reverted.mode = mode;
                        if let Some(git) = reverted.git.as_mut().filter(|_| bytes.is_some()) {
                            git.bytes_now = bytes;
                        }
                    }
                    done.push(reverted);
                }
                RevertOutcome::Already => {
                    let is_untouched =
                        !restores && !was_started_before(ledger, session, &file.reverted, begun_at);
                    done.push(RevertedFile { is_untouched, ..file.reverted });
                }
                RevertOutcome::Refused(why) => {
                    refused.push(format!("`{}`: {why}", file.reverted.edit.diff.file))
                }
                RevertOutcome::Unknown(why) => {
                    unknown.push(format!("`{}`: {why}", file.reverted.edit.diff.file));
                    unsure.push(file.reverted);
                }
            }
        }
        done.extend(untouched);
        let is_empty = done.is_empty() && unknown.is_empty();
        if let Some(session) = ledger.channels.sessions.get_mut(&session) {
            let is_settled = |file: &RevertedFile| match restores {
                true => done.contains(file),
                false => file.is_unsure && Some(file.edit.at) == begun_at,
            };
            session.reverted.retain(|file| !is_settled(file));
        }
        if !restores {
            record_reverts(ledger, session, (done, unsure), step.now.unix_ms);
        }
        if ledger.channels.sessions.contains_key(&session) {
            ledger.mark_dirty(session.into());
            ledger.note_edited(session, true);
            if root.is_some() && !is_empty {
                self.checkpoints.checkpoint_after_revert(ledger, step, session);
                self.statuses.request_refresh(ledger, session);
            }
        }
        let files = list_of_files(&refused);
        let outcome = match is_empty {
            true => Err(RpcError::files_have_changed(&files)),
            false if !unknown.is_empty() => {
                unknown.extend(refused);
                Err(RpcError::partly_reverted(&list_of_files(&unknown)))
            }
            false => Ok((!refused.is_empty()).then(|| format!("some files stay as they are: {files}"))),
        };
        self.finish_operation(ledger, step, session, outcome);
    }
}

/// Records reverted files, and those that may have been, except those whose turns have been removed
/// meanwhile.
fn record_reverts(
    ledger: &mut Ledger,
    session: SessionKey,
    (mut done, mut unsure): (Vec<RevertedFile>, Vec<RevertedFile>),
    now_ms: i64,
) {
    if !ledger.channels.sessions.contains_key(&session) {
        return;
    }
    let at = edits::edit_time(ledger, session, now_ms);
    done.retain(|file| edits::has_places(ledger, file));
    unsure.retain(|file| edits::has_places(ledger, file));
    for file in &mut done {
        (file.edit.at, file.is_unsure) = (at, false);
    }
    // They are restored together.
    for file in &mut unsure {
        file.edit.at = at;
    }
    let Some(session) = ledger.channels.sessions.known_mut(session) else { return };
    // Drops the unconfirmed records of a previous process for files that are now known to be
    // reverted.
    let known: BTreeSet<_> = done.iter().map(|file| (file.scope.as_str(), file.change())).collect();
    session.reverted.retain(|file| !file.is_unsure || !known.contains(&(file.scope.as_str(), file.change())));
    drop(known);
    session.reverted.extend(done.into_iter().chain(unsure));
    let mut times: BTreeSet<i64> = session.reverted.iter().map(|file| file.edit.at).collect();
    times.pop_last();
    for time in times {
        if session.reverted.len() <= REVERTED_MAX {
            break;
        }
        session.reverted.retain(|file| file.edit.at != time);
    }
}

/// Returns the files that were reverted last in a scope.
pub(super) fn last_reverted<'a>(
    ledger: &'a Ledger,
    session: SessionKey,
    scope: &ChangesetScope,
) -> impl Iterator<Item = &'a RevertedFile> {
    let of_scope = scope_key(scope);
    let session = ledger.channels.sessions.known(session);
    let reverted = session.map(|session| session.reverted.as_slice()).unwrap_or_default();
    let last = reverted.iter().filter(|file| file.scope == of_scope).map(|file| file.edit.at).max();
    reverted.iter().filter(move |file| file.scope == of_scope && Some(file.edit.at) == last)
}

/// Records reverts before they are made, so that they can be restored if the host ends before their
/// outcome is known.
pub(super) fn record_pending_reverts(ledger: &mut Ledger, request: &mut RevertRequest, now_ms: i64) {
    if request.restores {
        return;
    }
    let at = edits::edit_time(ledger, request.session, now_ms);
    for file in &mut request.files {
        (file.reverted.edit.at, file.reverted.is_unsure) = (at, true);
    }
    let Some(session) = ledger.channels.sessions.known_mut(request.session) else { return };
    session.reverted.extend(request.files.iter().map(|file| file.reverted.clone()));
    ledger.mark_dirty(request.session.into());
}

/// Returns whether a previous process has started to revert the same change, and may have done it.
fn was_started_before(
    ledger: &Ledger,
    session: SessionKey,
    file: &RevertedFile,
    begun_at: Option<i64>,
) -> bool {
    let session = ledger.channels.sessions.known(session);
    session.is_some_and(|session| {
        session.reverted.iter().any(|known| {
            known.is_unsure
                && Some(known.edit.at) != begun_at
                && known.scope == file.scope
                && known.change() == file.change()
        })
    })
}
