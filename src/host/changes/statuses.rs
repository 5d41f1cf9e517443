//! Status of the repositories of sessions: uncommitted files, and changes of a branch.
//!
//! Owns: when a status is refreshed: when a session is created, when a turn ends, and, while a
//! changeset that shows it has subscribers, soon after a change. Until then, and after a restart,
//! the last known status is shown. Also the outputs for that, and the `_meta` member of a session
//! that shows it. `observed` has the state of each repository.
//! Never: starts a refresh of a session while another one is in flight, or watches a repository
//! without subscribers for longer than `LINGER`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use ahp_types::state::ResourceChangeType;
use serde_json::{json, Value};

use crate::host::catalogue::notes;
use crate::host::changes::observed::{ObservedRepository, RefreshExtent};
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

/// Statuses of all sessions in memory whose folders have a repository, or may have one.
#[derive(Debug)]
pub(in crate::host) struct RepositoryStatuses {
    /// Set if git is used.
    is_on: bool,
    all: BTreeMap<SessionKey, ObservedRepository>,
    /// Number of the last refresh or timer that was started; unique, also if its session is evicted
    /// and loaded again.
    last_number: u64,
    released: Vec<String>,
    /// Set if refreshes or watches may have to be started or stopped.
    needs_sync: bool,
}

impl RepositoryStatuses {
    /// Creates the owner. `is_on`: git is used.
    pub(in crate::host) fn new(is_on: bool) -> Self {
        Self { is_on, all: BTreeMap::new(), last_number: 0, released: Vec::new(), needs_sync: false }
    }

    /// Returns the repository of a session to modify, and schedules
    /// [`Changes::start_due_refreshes`] for it.
    fn of(&mut self, session: SessionKey) -> &mut ObservedRepository {
        self.needs_sync = true;
        self.all.entry(session).or_default()
    }

    /// Forgets the status of a session, and releases its watches.
    pub(in crate::host) fn remove(&mut self, session: SessionKey) {
        if let Some(mut repository) = self.all.remove(&session) {
            self.needs_sync = true;
            self.released.extend(repository.replace_watches(Vec::new()));
        }
    }

    /// Requests a refresh of all files: any of them may have changed.
    pub(in crate::host) fn request_refresh(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if self.is_on {
            self.of(session).request();
            ledger.note_edited(session, false);
        }
    }

    /// Returns the status to save with a session; `None` if it lacks files or is too large.
    pub(in crate::host) fn status_to_save(&self, session: SessionKey) -> Option<Cow<'_, RepositoryStatus>> {
        let files = |known: &RepositoryStatus| known.uncommitted.len() + known.branch_changes.len();
        self.known_status(session).filter(|known| files(known) <= SAVED_FILES_MAX).map(Cow::Borrowed)
    }

    /// Shows the status that was saved with a session until it is refreshed.
    pub(in crate::host) fn restore_status(&mut self, session: SessionKey, saved: RepositoryStatus) {
        if self.is_on {
            self.all.insert(session, ObservedRepository::restored(saved));
        }
    }

    /// Returns whether a repository may have changed since its status was taken.
    pub(in crate::host) fn is_status_stale(&self, session: SessionKey) -> bool {
        self.all.get(&session).is_some_and(ObservedRepository::is_stale)
    }

    /// Notes that a channel has lost a subscriber, so that its repository may need no watch.
    pub(in crate::host) fn status_unsubscribed(&mut self, ledger: &Ledger, target: ChannelId) {
        if let Some(session) = session_of_status_changeset(ledger, target) {
            self.of(session).unsubscribe();
        }
    }

    /// Refreshes the status that a channel with a new subscriber shows, unless a watch kept it
    /// current.
    pub(in crate::host) fn status_subscribed(&mut self, ledger: &mut Ledger, target: ChannelId) {
        let Some(session) = session_of_status_changeset(ledger, target) else { return };
        let Some(repository) = self.all.get_mut(&session) else {
            return self.request_refresh(ledger, session);
        };
        // A watch that could not start is tried again.
        self.released.extend(repository.take_failed_watches());
        if repository.subscribe() {
            ledger.note_edited(session, false);
        }
        self.needs_sync = true;
    }

    /// Returns the status of a session's repository, with files, or the reason why there is none,
    /// for people. Requests a refresh if the status is unknown.
    pub(in crate::host) fn status_of(
        &mut self,
        session: SessionKey,
    ) -> Result<Option<&RepositoryStatus>, &str> {
        let repository = self.of(session);
        repository.require_files();
        match repository.trouble() {
            Some(why) => Err(why),
            None => Ok(repository.last_with_files()),
        }
    }

    /// Returns the status of a session's repository if its files are known.
    pub(in crate::host) fn known_status(&self, session: SessionKey) -> Option<&RepositoryStatus> {
        self.all.get(&session)?.last_with_files()
    }

    /// Returns whether the status is at least as recent as the first call with this `refresh`. If
    /// not, requests a refresh and stores the lowest number that it can get in `refresh`. An
    /// unwatched repository is always refreshed, since its changes are not noticed.
    pub(in crate::host) fn refreshed_since(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        refresh: &mut Option<u64>,
    ) -> bool {
        if !self.is_on {
            return true;
        }
        if let Some(number) = *refresh {
            return self.all.get(&session).is_none_or(|repository| repository.has_ended(number));
        }
        let is_current = self.of(session).require_current(has_status_subscriber(ledger, session));
        *refresh = (!is_current).then_some(self.last_number + 1);
        is_current
    }

    /// Returns the description of the branch that changes are compared with, for people; `None` if
    /// the session began on that branch.
    pub(in crate::host) fn base_note_of(&self, session: SessionKey) -> Option<&str> {
        self.all.get(&session)?.last()?.base_note.as_deref()
    }

    fn sync_watches(&mut self, ledger: &Ledger, step: &mut Step<'_>, session: SessionKey) {
        let has_subscriber = has_status_subscriber(ledger, session);
        let Some(repository) = self.all.get_mut(&session) else { return };
        let number = self.last_number + 1;
        if repository.update_linger(number, has_subscriber) {
            self.last_number = number;
            step.emit(Output::Timer(Timer::Linger(session, number), LINGER));
        }
        let wanted = repository.to_watch(has_subscriber).map(watches_of).unwrap_or_default();
        if repository.watches() == wanted {
            return;
        }
        for channel in &wanted {
            step.emit(Output::Watch(channel.clone()));
        }
        for channel in repository.replace_watches(wanted) {
            step.emit(Output::Unwatch(channel));
        }
    }

    /// Refreshes a status whose watch has started: earlier changes were not reported.
    pub(in crate::host) fn repository_watch_started(&mut self, watch: &str) {
        for repository in self.all.values_mut() {
            repository.watch_started(watch);
        }
        self.needs_sync = true;
    }

    /// Notes that a watch could not start, so that changes of its repositories are not noticed.
    pub(in crate::host) fn repository_watch_failed(&mut self, watch: &str) {
        for repository in self.all.values_mut() {
            repository.watch_failed(watch);
        }
    }

    /// Delays a refresh after changes of a watched repository; marks others as stale.
    pub(in crate::host) fn repository_changed(
        &mut self,
        ledger: &Ledger,
        step: &mut Step<'_>,
        watch: &str,
        changes: &[(String, ResourceChangeType)],
    ) {
        for (session, repository) in &mut self.all {
            if !repository.watches().iter().any(|watched| watched == watch) {
                continue;
            }
            if repository.note_changes(changes, has_status_subscriber(ledger, *session)) {
                step.emit(Output::Timer(Timer::Refresh(*session), DEBOUNCE));
            }
        }
    }

    /// Requests the refresh that was delayed to coalesce changes.
    pub(in crate::host) fn debounce_expired(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if let Some(repository) = self.all.get_mut(&session) {
            repository.debounce_expired();
            self.needs_sync = true;
            ledger.note_edited(session, false);
        }
    }

    /// Ends the time for which a repository is watched without subscribers.
    pub(in crate::host) fn linger_expired(&mut self, session: SessionKey, number: u64) {
        self.needs_sync |= self.all.get_mut(&session).is_some_and(|it| it.linger_expired(number));
    }

    /// Takes the status from a refresh, or the reason why there is none, and shows it.
    pub(in crate::host) fn status_received(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        (session, refresh): (SessionKey, u64),
        report: GitReport,
    ) {
        self.needs_sync = true;
        let Some(repository) = self.all.get_mut(&session) else { return };
        let was_stale = repository.is_stale();
        let Some(ended) = repository.end(refresh) else { return };
        if ended.starts_debounce {
            step.emit(Output::Timer(Timer::Refresh(session), DEBOUNCE));
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
                (Some(meta_of(&seen)), repository.succeed(*seen, ended.included_files))
            }
            GitReport::NoRepository if has_repository => {
                // The next change in the folder requests another refresh.
                repository.fail(REPOSITORY_GONE.to_owned());
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
                repository.fail(why);
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

/// Returns the channels that watch a repository.
fn watches_of(known: &RepositoryStatus) -> Vec<String> {
    let metadata = known.own.iter().map(|uri| (uri, NOT_WATCHED_IN_METADATA));
    let folders = std::iter::once((&known.root, NOT_WATCHED)).chain(metadata);
    let watch = |(uri, excludes): (&String, &[&str])| {
        let excludes = excludes.iter().map(|pattern| (*pattern).to_owned()).collect();
        Watched { uri: uri.clone(), recursive: true, excludes: Some(excludes), includes: None }.channel()
    };
    folders.map(watch).collect()
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
            let Some(repository) = self.statuses.all.get_mut(&session) else { continue };
            let number = self.statuses.last_number + 1;
            let extent = repository.start(number, has_status_subscriber(ledger, session));
            let Some(RefreshExtent { files, touched }) = extent else { continue };
            self.statuses.last_number = number;
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
            self.checkpoints.run_git_status(ledger, step, (session, number), directories, work);
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
