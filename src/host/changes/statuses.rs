//! Status of the repositories of sessions: uncommitted files, and changes of a branch.
//!
//! Owns: when a status is refreshed: when a session is created, when a turn ends, and, while a
//! changeset that shows it has subscribers, soon after a change. Until then, and after a restart,
//! the last known status is shown. Also whether it is stale, and the `_meta` member of a session
//! that shows it.
//! Never: starts a refresh of a session while another one is in flight, or watches a repository
//! without subscribers for longer than `LINGER`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ahp_types::state::ResourceChangeType;
use serde_json::{json, Value};

use crate::host::catalogue::notes;
use crate::host::changes::Changes;
use crate::host::effects::{
    ChangesetKey, ChannelId, GitReport, GitWork, Output, RepositoryStatus, Timer, UNWATCHED,
};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;
use crate::wire::changesets::ChangesetScope;
use crate::wire::channels::ChannelKind;
use crate::wire::watches::Watched;

/// Delay between a change of files and the refresh, which coalesces changes.
const DEBOUNCE: Duration = Duration::from_millis(750);

/// Time for which a repository is watched without subscribers, for clients that return.
const LINGER: Duration = Duration::from_secs(10);

/// Maximum number of changed files that are refreshed individually; beyond it all files are.
const TOUCHED_MAX: usize = 100;

const SAVED_FILES_MAX: usize = 500;

/// Paths in a repository whose changes start no refresh: git's internal files, and the host's own.
const NOT_WATCHED: &[&str] = &[
    ".git/objects/**",
    ".git/logs/**",
    ".git/lfs/**",
    ".git/refs/ahp-sidecar/**",
    ".git/**/*.lock",
    UNWATCHED,
];

/// Paths in a metadata folder outside of its repository whose changes start no refresh.
const NOT_WATCHED_IN_METADATA: &[&str] =
    &["objects/**", "logs/**", "lfs/**", "refs/ahp-sidecar/**", "**/*.lock"];

/// Reason why a status has become unknown, for people.
pub(in crate::host) const REPOSITORY_GONE: &str = "the repository no longer exists";

/// Member of a session's `_meta` with the status.
const GIT: &str = "git";

/// Status of a session's repository. A refresh is due, then in flight, then the status is known; a
/// change meanwhile makes the next refresh due after [`DEBOUNCE`].
#[derive(Debug, Default)]
pub(in crate::host) struct ObservedRepository {
    known: Option<RepositoryStatus>,
    has_files: bool,
    /// Set if the repository may have changed since the refresh, unknown to subscribers.
    is_stale: bool,
    /// Set if the status became stale again while a refresh is in flight.
    is_stale_again: bool,
    /// Reason why there is no status, for people.
    trouble: Option<String>,
    /// Refresh in flight; true if it includes files.
    in_flight: Option<bool>,
    refreshes: u64,
    is_due: bool,
    wants_files: bool,
    /// Watches in use.
    watched: Vec<String>,
    /// Watches in use that have started.
    begun: BTreeSet<String>,
    /// `file:` URIs of files that have changed since the last refresh with files started; `None` if
    /// any file may have.
    touched: Option<BTreeSet<String>>,
    /// Set while a refresh is delayed to coalesce changes.
    is_debouncing: bool,
    /// Set if files changed while a refresh is in flight: the delay of the next one starts at its
    /// end.
    debounces_after_refresh: bool,
    /// Set if a changeset that shows the status has lost a subscriber.
    lost_subscriber: bool,
    lingers: u64,
    /// Set while the repository is watched without subscribers.
    is_lingering: bool,
}

impl ObservedRepository {
    /// Takes what git has seen; `has_files` if the files are part of that. Returns whether it is
    /// new.
    fn note_seen(&mut self, mut seen: RepositoryStatus, has_files: bool) -> bool {
        let mut known = self.known.take();
        // The older files are better than none.
        let retained = known
            .as_mut()
            .filter(|_| !has_files && self.has_files)
            .map(|known| (std::mem::take(&mut known.uncommitted), std::mem::take(&mut known.branch_changes)));
        // An empty list of files is news, too.
        let are_new = has_files && !self.has_files;
        self.has_files |= has_files;
        let has_changed = are_new || known.as_ref() != Some(&seen);
        if let Some(files) = retained {
            (seen.uncommitted, seen.branch_changes) = files;
        }
        self.known = Some(seen);
        has_changed
    }

    fn mark_stale(&mut self) {
        self.is_stale = true;
        self.is_stale_again |= self.in_flight.is_some();
    }

    /// Records the files that a watch reports as changed.
    fn note_touched(&mut self, changes: &[(String, ResourceChangeType)]) {
        // A change of the root can mean that a subfolder is not watched any more.
        let is_whole = |uri: &String| self.known.as_ref().is_none_or(|known| known.root == *uri);
        if changes.iter().any(|(uri, _)| is_whole(uri)) {
            self.begun.clear();
        }
        if let Some(touched) = &mut self.touched {
            touched.extend(changes.iter().map(|(uri, _)| uri.clone()));
            if self.begun.is_empty() || touched.len() > TOUCHED_MAX {
                self.touched = None;
            }
        }
    }

    /// Ends the refresh in flight. Returns whether it included files.
    fn end_refresh(&mut self) -> bool {
        let files = self.in_flight.take().unwrap_or(false);
        self.is_stale = std::mem::take(&mut self.is_stale_again) || (self.is_stale && !files);
        files
    }

    /// Starts a refresh. Returns the files to examine; `None` for all.
    fn start(&mut self, files: bool) -> Option<Vec<String>> {
        (self.is_due, self.in_flight, self.wants_files) = (false, Some(files), false);
        self.refreshes += 1;
        if !files {
            return None;
        }
        let is_watched = !self.watched.is_empty() && self.begun.len() == self.watched.len();
        let touched = std::mem::replace(&mut self.touched, is_watched.then(BTreeSet::new));
        touched.map(|touched| touched.into_iter().collect())
    }
}

/// Statuses of all sessions in memory whose folders have a repository, or may have one.
#[derive(Debug)]
pub(in crate::host) struct RepositoryStatuses {
    /// Set if git is used.
    is_on: bool,
    all: BTreeMap<SessionKey, ObservedRepository>,
    released: Vec<String>,
    /// Set if refreshes or watches may have to be started or stopped.
    needs_sync: bool,
}

impl RepositoryStatuses {
    /// Creates the owner. `is_on`: git is used.
    pub(in crate::host) fn new(is_on: bool) -> Self {
        Self { is_on, all: BTreeMap::new(), released: Vec::new(), needs_sync: false }
    }

    /// Returns the status of a session to modify, and schedules [`Changes::start_due_refreshes`]
    /// for it.
    fn of(&mut self, session: SessionKey) -> &mut ObservedRepository {
        self.needs_sync = true;
        self.all.entry(session).or_default()
    }

    /// Forgets the status of a session, and releases its watches.
    pub(in crate::host) fn remove(&mut self, session: SessionKey) {
        if let Some(status) = self.all.remove(&session) {
            self.needs_sync = true;
            self.released.extend(status.watched);
        }
    }

    /// Requests a refresh of all files: any of them may have changed.
    pub(in crate::host) fn request_refresh(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if self.is_on {
            let status = self.of(session);
            (status.is_due, status.touched) = (true, None);
            status.mark_stale();
            ledger.note_edited(session, false);
        }
    }

    /// Returns the status to save with a session; `None` if it lacks files or is too large.
    pub(in crate::host) fn status_to_save(&self, session: SessionKey) -> Option<Cow<'_, RepositoryStatus>> {
        let status = self.all.get(&session).filter(|status| status.has_files)?;
        let files = |known: &RepositoryStatus| known.uncommitted.len() + known.branch_changes.len();
        status.known.as_ref().filter(|known| files(known) <= SAVED_FILES_MAX).map(Cow::Borrowed)
    }

    /// Shows the status that was saved with a session until it is refreshed.
    pub(in crate::host) fn restore_status(&mut self, session: SessionKey, saved: RepositoryStatus) {
        if self.is_on {
            let (known, has_files, is_stale) = (Some(saved), true, true);
            let status = ObservedRepository { known, has_files, is_stale, ..ObservedRepository::default() };
            self.all.insert(session, status);
        }
    }

    /// Returns whether a repository may have changed since its status was taken.
    pub(in crate::host) fn is_status_stale(&self, session: SessionKey) -> bool {
        self.all.get(&session).is_some_and(|status| status.is_stale)
    }

    /// Notes that a channel has lost a subscriber, so that its repository may need no watch.
    pub(in crate::host) fn status_unsubscribed(&mut self, ledger: &Ledger, target: ChannelId) {
        if let Some(session) = session_of_status_changeset(ledger, target) {
            self.of(session).lost_subscriber = true;
        }
    }

    /// Refreshes the status that a channel with a new subscriber shows, unless a watch kept it
    /// current.
    pub(in crate::host) fn status_subscribed(&mut self, ledger: &mut Ledger, target: ChannelId) {
        let Some(session) = session_of_status_changeset(ledger, target) else { return };
        let Some(status) = self.all.get_mut(&session) else {
            return self.request_refresh(ledger, session);
        };
        let may_be_old = status.is_stale || (status.has_files && status.watched.is_empty());
        if may_be_old && status.in_flight != Some(true) {
            return self.request_refresh(ledger, session);
        }
        status.is_due = true;
        self.needs_sync = true;
    }

    /// Returns the status of a session's repository, with files, or the reason why there is none,
    /// for people. Requests a refresh if the status is unknown.
    pub(in crate::host) fn status_of(
        &mut self,
        session: SessionKey,
    ) -> Result<Option<&RepositoryStatus>, &str> {
        let status = self.of(session);
        status.wants_files = true;
        if !status.has_files {
            status.is_due |= status.trouble.is_none();
        }
        match (&status.trouble, &status.known) {
            (Some(why), _) => Err(why),
            (None, known) => Ok(known.as_ref().filter(|_| status.has_files)),
        }
    }

    /// Returns the status of a session's repository if its files are known.
    pub(in crate::host) fn known_status(&self, session: SessionKey) -> Option<&RepositoryStatus> {
        let status = self.all.get(&session).filter(|status| status.has_files)?;
        status.known.as_ref()
    }

    /// Returns whether the status is at least as recent as the first call with this `refresh`. If
    /// not, requests a refresh and stores its number in `refresh`. An unwatched repository is
    /// always refreshed, since its changes are not noticed.
    pub(in crate::host) fn refreshed_since(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        refresh: &mut Option<u64>,
    ) -> bool {
        if !self.is_on {
            return true;
        }
        let follows = has_status_subscriber(ledger, session);
        let Some(number) = *refresh else {
            let status = self.of(session);
            let is_known = status.has_files && !status.is_stale && status.trouble.is_none();
            let is_fresh = follows && is_known && !status.is_due && status.in_flight.is_none();
            if !is_fresh {
                (status.is_due, status.wants_files, status.touched) = (true, true, None);
            } else {
                (status.is_due, status.wants_files) = (false, false);
            }
            *refresh = Some(status.refreshes + 1).filter(|_| !is_fresh);
            return is_fresh;
        };
        let status = self.all.get(&session);
        status.is_none_or(|it| it.refreshes > number || (it.refreshes == number && it.in_flight.is_none()))
    }

    /// Returns the description of the branch that changes are compared with, for people; `None` if
    /// the session began on that branch.
    pub(in crate::host) fn base_note_of(&self, session: SessionKey) -> Option<&str> {
        self.all.get(&session)?.known.as_ref()?.base_note.as_deref()
    }

    fn sync_watches(&mut self, ledger: &Ledger, step: &mut Step<'_>, session: SessionKey) {
        let follows = has_status_subscriber(ledger, session);
        let Some(status) = self.all.get_mut(&session) else { return };
        let lost_subscriber = std::mem::take(&mut status.lost_subscriber) && status.known.is_some();
        status.is_lingering = !follows && (status.is_lingering || lost_subscriber);
        if status.is_lingering && lost_subscriber {
            status.lingers += 1;
            step.emit(Output::Timer(Timer::Linger(session, status.lingers), LINGER));
        }
        let known = status.known.as_ref().filter(|_| follows || status.is_lingering);
        let folders = known.into_iter().flat_map(|known| {
            let metadata = known.own.iter().map(|uri| (uri, NOT_WATCHED_IN_METADATA));
            std::iter::once((&known.root, NOT_WATCHED)).chain(metadata)
        });
        let watch = |(uri, excludes): (&String, &[&str])| {
            let excludes = excludes.iter().map(|pattern| (*pattern).to_owned()).collect();
            Watched { uri: uri.clone(), recursive: true, excludes: Some(excludes), includes: None }.channel()
        };
        let wanted: Vec<String> = folders.map(watch).collect();
        if status.watched == wanted {
            return;
        }
        for channel in &wanted {
            step.emit(Output::Watch(channel.clone()));
        }
        (status.begun, status.touched) = (BTreeSet::new(), None);
        for channel in std::mem::replace(&mut status.watched, wanted) {
            step.emit(Output::Unwatch(channel));
        }
    }

    /// Refreshes a status whose watch has started: earlier changes were not reported.
    pub(in crate::host) fn repository_watch_started(&mut self, watch: &str) {
        for status in self.all.values_mut() {
            if status.watched.iter().any(|watched| watched == watch) {
                status.begun.insert(watch.to_owned());
                (status.is_due, status.touched) = (true, None);
            }
        }
        self.needs_sync = true;
    }

    /// Delays a refresh after changes of a watched repository; marks others as stale.
    pub(in crate::host) fn repository_changed(
        &mut self,
        ledger: &Ledger,
        step: &mut Step<'_>,
        watch: &str,
        changes: &[(String, ResourceChangeType)],
    ) {
        let all = self.all.iter();
        let of_watch = all.filter(|(_, status)| status.watched.iter().any(|watched| watched == watch));
        let sessions: Vec<SessionKey> = of_watch.map(|(session, _)| *session).collect();
        for session in sessions {
            let follows = has_status_subscriber(ledger, session);
            let Some(status) = self.all.get_mut(&session) else { continue };
            status.note_touched(changes);
            if !follows {
                // The next subscriber starts the refresh.
                status.mark_stale();
            } else if status.in_flight.is_some() {
                // A repository that changes all the time still shows a status after each refresh.
                status.debounces_after_refresh = true;
            } else if !std::mem::replace(&mut status.is_debouncing, true) {
                step.emit(Output::Timer(Timer::Refresh(session), DEBOUNCE));
            }
        }
    }

    /// Requests the refresh that was delayed to coalesce changes.
    pub(in crate::host) fn debounce_expired(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if let Some(status) = self.all.get_mut(&session) {
            status.is_debouncing = false;
            let touched = status.touched.take();
            self.request_refresh(ledger, session);
            self.of(session).touched = touched;
        }
    }

    /// Ends the time for which a repository is watched without subscribers.
    pub(in crate::host) fn linger_expired(&mut self, session: SessionKey, number: u64) {
        if let Some(status) = self.all.get_mut(&session).filter(|it| it.lingers == number) {
            status.is_lingering = false;
            self.needs_sync = true;
        }
    }

    /// Takes the status, or the reason why there is none, and shows it.
    pub(in crate::host) fn status_received(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        report: GitReport,
    ) {
        self.needs_sync = true;
        let Some(status) = self.all.get_mut(&session) else { return };
        let (was_stale, had_trouble) = (status.is_stale, status.trouble.is_some());
        let files = status.end_refresh();
        if status.debounces_after_refresh && !std::mem::replace(&mut status.is_debouncing, true) {
            step.emit(Output::Timer(Timer::Refresh(session), DEBOUNCE));
        }
        status.debounces_after_refresh = false;
        if !matches!(report, GitReport::Status(_)) {
            status.touched = None;
        }
        let Some(of_session) = ledger.channels.sessions.known_mut(session) else {
            return self.remove(session);
        };
        let checkpoints = &mut of_session.checkpoints;
        let has_repository = checkpoints.root().is_some();
        let (meta, has_changed) = match report {
            GitReport::Status(seen) => {
                if checkpoints.note_repository(&seen.root, seen.branch.as_ref()) {
                    ledger.mark_dirty(session.into());
                }
                status.trouble = None;
                (Some(meta_of(&seen)), status.note_seen(*seen, files) || had_trouble)
            }
            GitReport::NoRepository if has_repository => {
                // The next change in the folder requests another refresh.
                status.trouble = Some(REPOSITORY_GONE.to_owned());
                (None, true)
            }
            GitReport::NoRepository => {
                self.remove(session);
                (None, true)
            }
            GitReport::Unusable(why) | GitReport::Failed(why) => {
                if checkpoints.note_trouble(&why) {
                    ledger.mark_dirty(session.into());
                }
                status.trouble = Some(why);
                return ledger.note_edited(session, true);
            }
            _ => return,
        };
        show_status(ledger, step, session, meta);
        if has_changed {
            ledger.mark_dirty(session.into());
        }
        if has_changed || was_stale {
            ledger.note_edited(session, has_changed);
        }
    }
}

/// Shows the status in the `_meta` of a session; `None` removes it.
fn show_status(ledger: &mut Ledger, step: &mut Step<'_>, session: SessionKey, meta: Option<Value>) {
    notes::change_notes(ledger, step, session, |notes| match meta {
        Some(meta) => drop(notes.insert(GIT.to_owned(), meta)),
        None => drop(notes.shift_remove(GIT)),
    });
}

impl Changes {
    /// Starts due refreshes, and adjusts the watches of repositories to their subscribers.
    pub(super) fn start_due_refreshes(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if !std::mem::take(&mut self.statuses.needs_sync) {
            return;
        }
        for channel in std::mem::take(&mut self.statuses.released) {
            step.emit(Output::Unwatch(channel));
        }
        let sessions: Vec<SessionKey> = self.statuses.all.keys().copied().collect();
        for session in sessions {
            self.statuses.sync_watches(ledger, step, session);
            let follows = has_status_subscriber(ledger, session);
            let Some(status) = self.statuses.all.get_mut(&session) else { continue };
            if !status.is_due || status.in_flight.is_some() {
                continue;
            }
            let files = follows || status.wants_files;
            let touched = status.start(files);
            let Some(of_session) = ledger.channels.sessions.known(session) else {
                self.statuses.remove(session);
                continue;
            };
            let directories = match of_session.checkpoints.root() {
                Some(root) => vec![root.clone()],
                None => of_session.state.working_directories.clone().unwrap_or_default(),
            };
            if directories.is_empty() {
                self.statuses.remove(session);
                continue;
            }
            let work = GitWork::Status { base: of_session.checkpoints.base().cloned(), files, touched };
            self.checkpoints.run_git_status(ledger, step, session, directories, work);
        }
    }
}

/// Returns whether the files of a scope are those of the repository's status.
pub(in crate::host) fn shows_status(scope: &ChangesetScope) -> bool {
    matches!(scope, ChangesetScope::Uncommitted | ChangesetScope::Branch)
}

fn session_of_status_changeset(ledger: &Ledger, target: ChannelId) -> Option<SessionKey> {
    let key = Some(target.key).filter(|_| target.kind == ChannelKind::Changeset)?;
    let changeset = ledger.channels.changesets.get(&ChangesetKey(key))?;
    shows_status(&changeset.scope).then_some(changeset.session)
}

fn has_status_subscriber(ledger: &Ledger, session: SessionKey) -> bool {
    ledger.channels.changesets.values().any(|changeset| {
        changeset.session == session
            && shows_status(&changeset.scope)
            && !changeset.channel.subscribers.is_empty()
    })
}

fn meta_of(seen: &RepositoryStatus) -> Value {
    let mut meta = json!({
        "isDetachedHead": seen.is_detached,
        "uncommittedChanges": seen.uncommitted_count,
        "hasBaseBranchChanges": seen.has_branch_changes,
    });
    let names = [
        ("branchName", seen.branch.clone().map(Value::from)),
        ("baseBranchName", seen.base.clone().map(Value::from)),
        ("upstreamBranchName", seen.upstream.clone().map(Value::from)),
        ("incomingChanges", seen.incoming.map(Value::from)),
        ("outgoingChanges", seen.outgoing.map(Value::from)),
    ];
    for (name, value) in names {
        if let Some(value) = value {
            meta[name] = value;
        }
    }
    meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::GitContent;
    use crate::state::edits::FileDiff;

    #[test]
    fn refresh_without_files_keeps_them_and_is_news_only_if_the_rest_has_changed() {
        let seen = |branch: &str, uncommitted_count| RepositoryStatus {
            branch: Some(branch.to_owned()),
            uncommitted_count,
            ..RepositoryStatus::default()
        };
        let file = FileDiff {
            file: "file:///a".to_owned(),
            renamed_from: None,
            before: None,
            after: Some(GitContent { blob: "1".to_owned(), mode: 0o100_644 }),
            lines: None,
        };
        let with_files = RepositoryStatus { uncommitted: vec![file.clone()], ..seen("main", 1) };
        let mut observed = ObservedRepository::default();
        assert!(observed.note_seen(with_files, true));
        assert!(!observed.note_seen(seen("main", 1), false));
        assert!(observed.note_seen(seen("other", 1), false));
        assert_eq!(observed.known.unwrap().uncommitted, [file]);
    }
}
