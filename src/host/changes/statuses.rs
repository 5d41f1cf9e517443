//! Status of the repositories of sessions: files that are not committed, and changes of a branch.
//!
//! Owns: when a status is refreshed: when a session is made, when a turn of it has ended, and,
//! while a changeset that shows it has subscribers, soon after something has changed; that the last
//! known status is shown until then, also after a restart, and whether it is stale; and the `_meta`
//! member by which a session shows it.
//! Never: starts a refresh while another one is in flight, or watches a repository without
//! subscribers for long.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ahp_types::state::ResourceChangeType;
use serde_json::{json, Value};

use crate::host::catalogue::notes;
use crate::host::changes::Changes;
use crate::host::effects::{ChangesetKey, ChannelId, GitReport, GitWork, Output, RepositoryStatus, Timer};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;
use crate::wire::changesets::ChangesetScope;
use crate::wire::channels::ChannelKind;
use crate::wire::watches::Watched;

/// Time for which changes of files are gathered before the status is refreshed.
const DEBOUNCE: Duration = Duration::from_millis(750);

/// Time for which a repository is watched after its last subscriber has left, so that a client that
/// comes back learns whether it has changed.
const LINGER: Duration = Duration::from_secs(10);

/// Maximum number of changed files that are refreshed alone; beyond it all files are.
const TOUCHED_MAX: usize = 100;

/// Maximum number of files in a status that is saved with its session.
const SAVED_FILES_MAX: usize = 500;

/// Paths whose changes start no refresh: they say nothing of files, or are our own.
const NOT_WATCHED: [&str; 9] = [
    ".git/objects/**",
    ".git/logs/**",
    ".git/lfs/**",
    ".git/refs/ahp-sidecar/**",
    ".git/**/*.lock",
    "objects/**",
    "logs/**",
    "refs/ahp-sidecar/**",
    "**/node_modules/**",
];

/// Why nothing is known of a repository any more, for people.
pub(in crate::host) const REPOSITORY_GONE: &str = "the repository is not there any more";

/// The name under which a session says it in its `_meta`.
const GIT: &str = "git";

/// Last observed status of a session's repository.
#[derive(Debug, Default)]
pub(in crate::host) struct ObservedRepository {
    known: Option<RepositoryStatus>,
    /// The files are known, too.
    has_files: bool,
    /// Something may have changed since they were seen, and those who follow them have not heard
    /// what.
    is_stale: bool,
    /// Set when the status became stale again while a refresh is in flight.
    is_stale_again: bool,
    /// Why nothing is known, for people.
    trouble: Option<String>,
    /// Refresh in flight, if there is one: true when it includes files.
    in_flight: Option<bool>,
    /// Number of refreshes that were started.
    refreshes: u64,
    /// Set when a refresh is due.
    is_due: bool,
    /// Set when a subscriber needs the files.
    wants_files: bool,
    /// Watches that are in use.
    watched: Vec<String>,
    /// Watches in use that have begun.
    begun: BTreeSet<String>,
    /// The `file:` URIs of files that have changed since the last refresh with files was started;
    /// `None` if any file may have.
    touched: Option<BTreeSet<String>>,
    /// Something has changed, and it is waited for more.
    is_debouncing: bool,
    /// Set when files have changed while a refresh is in flight: the next one is delayed from its
    /// end.
    debounces_after_refresh: bool,
    /// Set when a changeset that shows the status has lost a subscriber.
    lost_subscriber: bool,
    /// Number of times that the linger timer was started.
    lingers: u64,
    /// Set while the repository is watched without subscribers.
    is_lingering: bool,
}

impl ObservedRepository {
    /// Notes that the repository may have changed.
    fn mark_stale(&mut self) {
        self.is_stale = true;
        self.is_stale_again |= self.in_flight.is_some();
    }

    /// Notes the files that have changed, as a watch reports them.
    fn note_touched(&mut self, changes: &[(String, ResourceChangeType)]) {
        // A change of the root means that a part of it may not be watched any more.
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

/// Last observed status of each session's repository.
#[derive(Debug)]
pub(in crate::host) struct RepositoryStatuses {
    /// Git is used.
    is_on: bool,
    all: BTreeMap<SessionKey, ObservedRepository>,
    /// Watches that are to be closed.
    released: Vec<String>,
    /// Something may be to be looked at, or followed otherwise than before.
    is_unsettled: bool,
}

impl RepositoryStatuses {
    /// Creates the owner of no statuses; there are never any where git is not used.
    pub(in crate::host) fn new(is_on: bool) -> Self {
        Self { is_on, all: BTreeMap::new(), released: Vec::new(), is_unsettled: false }
    }

    /// Of this session; it is looked whether something is to be done.
    fn of(&mut self, session: SessionKey) -> &mut ObservedRepository {
        self.is_unsettled = true;
        self.all.entry(session).or_default()
    }

    /// Drops the status of a session.
    pub(in crate::host) fn remove(&mut self, session: SessionKey) {
        if let Some(status) = self.all.remove(&session) {
            self.is_unsettled = true;
            self.released.extend(status.watched);
        }
    }
}

/// Returns whether a changeset shows the status of the repository.
pub(in crate::host) fn shows_status(scope: &ChangesetScope) -> bool {
    matches!(scope, ChangesetScope::Uncommitted | ChangesetScope::Branch)
}

impl RepositoryStatuses {
    /// Requests a refresh of a session's status.
    pub(in crate::host) fn request_refresh(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if self.is_on {
            let status = self.of(session);
            (status.is_due, status.touched) = (true, None);
            status.mark_stale();
            ledger.note_edited(session, false);
        }
    }

    /// Returns the status of a session's repository as it is saved with the session.
    pub(in crate::host) fn status_to_save(&self, session: SessionKey) -> Option<Cow<'_, RepositoryStatus>> {
        let status = self.all.get(&session).filter(|status| status.has_files)?;
        let files = |known: &RepositoryStatus| known.uncommitted.len() + known.branch_changes.len();
        status.known.as_ref().filter(|known| files(known) <= SAVED_FILES_MAX).map(Cow::Borrowed)
    }

    /// Takes over the status that was saved with a session that is in memory again.
    pub(in crate::host) fn restore_status(&mut self, session: SessionKey, kept: RepositoryStatus) {
        if self.is_on {
            let (known, has_files, is_stale) = (Some(kept), true, true);
            let status = ObservedRepository { known, has_files, is_stale, ..ObservedRepository::default() };
            self.all.insert(session, status);
        }
    }

    /// Returns whether a session's status may be stale.
    pub(in crate::host) fn is_status_stale(&self, session: SessionKey) -> bool {
        self.all.get(&session).is_some_and(|status| status.is_stale)
    }

    /// Notes that a channel has lost a subscriber: its repository may not need to be watched.
    pub(in crate::host) fn status_unsubscribed(&mut self, ledger: &Ledger, target: ChannelId) {
        if let Some(session) = session_of_status_changeset(ledger, target) {
            self.of(session).lost_subscriber = true;
        }
    }

    /// Notes that a channel has a new subscriber: a status that it shows is refreshed, since it was
    /// not watched before.
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
        self.is_unsettled = true;
    }

    /// Returns the status of a session's repository, with files; the error says, for people, why
    /// there is none. Requests a refresh if it is not known.
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

    /// Returns the status of a session's repository if it is known.
    pub(in crate::host) fn known_status(&self, session: SessionKey) -> Option<&RepositoryStatus> {
        let status = self.all.get(&session).filter(|status| status.has_files)?;
        status.known.as_ref()
    }

    /// Returns whether the status is as of the first call with this `refresh` or later. If not, a
    /// refresh is requested and its number put into `refresh`. A repository that is not watched is
    /// always refreshed, since nothing has noticed its changes.
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
            let is_known = status.has_files && !status.is_stale;
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

    /// The branch that a session's changes are compared with, for people, where it is not the one
    /// that it began on.
    pub(in crate::host) fn base_note_of(&self, session: SessionKey) -> Option<&str> {
        self.all.get(&session)?.known.as_ref()?.base_note.as_deref()
    }

    fn settle_repository_watches(&mut self, ledger: &Ledger, step: &mut Step<'_>, session: SessionKey) {
        let follows = has_status_subscriber(ledger, session);
        let Some(status) = self.all.get_mut(&session) else { return };
        let lost_subscriber = std::mem::take(&mut status.lost_subscriber) && status.known.is_some();
        status.is_lingering = !follows && (status.is_lingering || lost_subscriber);
        if status.is_lingering && lost_subscriber {
            status.lingers += 1;
            step.emit(Output::Timer(Timer::Linger(session, status.lingers), LINGER));
        }
        let known = status.known.as_ref().filter(|_| follows || status.is_lingering);
        let folders = known.into_iter().flat_map(|known| std::iter::once(&known.root).chain(&known.own));
        let watch = |uri: &String| {
            let excludes = NOT_WATCHED.iter().map(|pattern| (*pattern).to_owned()).collect();
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

    /// Refreshes the status of a repository whose watch has begun: changes made while git examined
    /// it were not reported.
    pub(in crate::host) fn repository_watch_started(&mut self, watch: &str) {
        for status in self.all.values_mut() {
            if status.watched.iter().any(|watched| watched == watch) {
                status.begun.insert(watch.to_owned());
                (status.is_due, status.touched) = (true, None);
            }
        }
        self.is_unsettled = true;
    }

    /// Delays a refresh after changes of a watched repository; without subscribers the status only
    /// becomes stale.
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
                // It is looked at when somebody comes back.
                status.mark_stale();
            } else if status.in_flight.is_some() {
                // Where something changes all the time, what was seen is shown at times.
                status.debounces_after_refresh = true;
            } else if !std::mem::replace(&mut status.is_debouncing, true) {
                step.emit(Output::Timer(Timer::Refresh(session), DEBOUNCE));
            }
        }
    }

    /// Requests a refresh when the delay after a change is over.
    pub(in crate::host) fn debounce_expired(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if let Some(status) = self.all.get_mut(&session) {
            status.is_debouncing = false;
            let touched = status.touched.take();
            self.request_refresh(ledger, session);
            self.of(session).touched = touched;
        }
    }

    /// Stops watching a repository that had no subscribers for `LINGER`.
    pub(in crate::host) fn linger_expired(&mut self, session: SessionKey, number: u64) {
        if let Some(status) = self.all.get_mut(&session).filter(|it| it.lingers == number) {
            status.is_lingering = false;
            self.is_unsettled = true;
        }
    }

    /// Applies the status that git has reported.
    pub(in crate::host) fn status_received(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        report: GitReport,
    ) {
        self.is_unsettled = true;
        let Some(status) = self.all.get_mut(&session) else { return };
        let files = status.in_flight.take().unwrap_or(false);
        if std::mem::take(&mut status.debounces_after_refresh)
            && !std::mem::replace(&mut status.is_debouncing, true)
        {
            step.emit(Output::Timer(Timer::Refresh(session), DEBOUNCE));
        }
        if !matches!(report, GitReport::Seen(_)) {
            status.touched = None;
        }
        let (was_stale, had_trouble) = (status.is_stale, status.trouble.is_some());
        status.is_stale = std::mem::take(&mut status.is_stale_again) || (was_stale && !files);
        let Some(of_session) = ledger.channels.sessions.known_mut(session) else {
            return self.remove(session);
        };
        let mut has_changed = true;
        let meta = match report {
            GitReport::Seen(mut seen) => {
                status.trouble = None;
                let meta = meta_of(&seen);
                if !files && status.has_files {
                    // What is known of the files is older, and still more than nothing.
                    if let Some(known) = status.known.take() {
                        (seen.uncommitted, seen.branch_changes) = (known.uncommitted, known.branch_changes);
                    }
                }
                // Where there are none, that is known from now on.
                let are_new = files && !status.has_files;
                status.has_files |= files;
                let kept = &mut of_session.checkpoints;
                if kept.root.is_none() || kept.base.is_none() {
                    kept.root = Some(seen.root.clone());
                    kept.base = kept.base.take().or_else(|| seen.branch.clone());
                    ledger.mark_dirty(session.into());
                }
                has_changed = are_new || had_trouble || status.known.as_ref() != Some(&*seen);
                status.known = Some(*seen);
                Some(meta)
            }
            // It is asked for again when something changes there.
            GitReport::NoRepository if of_session.checkpoints.root.is_some() => {
                status.trouble = Some(REPOSITORY_GONE.to_owned());
                None
            }
            GitReport::NoRepository => {
                self.remove(session);
                None
            }
            GitReport::Unusable(why) | GitReport::Failed(why) => {
                status.trouble = Some(why.clone());
                if of_session.checkpoints.root.is_none() && of_session.checkpoints.note.is_none() {
                    of_session.checkpoints.note = Some(why);
                    ledger.mark_dirty(session.into());
                }
                return ledger.note_edited(session, true);
            }
            _ => return,
        };
        notes::change_notes(ledger, step, session, |notes| match meta {
            Some(meta) => drop(notes.insert(GIT.to_owned(), meta)),
            None => drop(notes.shift_remove(GIT)),
        });
        if has_changed {
            ledger.mark_dirty(session.into());
        }
        if has_changed || was_stale {
            ledger.note_edited(session, has_changed);
        }
    }
}

impl Changes {
    /// Starts the refreshes that are due and adjusts the watches of repositories to their
    /// subscribers.
    pub(in crate::host) fn settle_statuses(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if !std::mem::take(&mut self.statuses.is_unsettled) {
            return;
        }
        for channel in std::mem::take(&mut self.statuses.released) {
            step.emit(Output::Unwatch(channel));
        }
        let sessions: Vec<SessionKey> = self.statuses.all.keys().copied().collect();
        for session in sessions {
            self.statuses.settle_repository_watches(ledger, step, session);
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
            let directories = match &of_session.checkpoints.root {
                Some(root) => vec![root.clone()],
                None => of_session.state.working_directories.clone().unwrap_or_default(),
            };
            if directories.is_empty() {
                self.statuses.remove(session);
                continue;
            }
            let work = GitWork::Look { base: of_session.checkpoints.base.clone(), files, touched };
            self.checkpoints.run_git_status(ledger, step, session, directories, work);
        }
    }
}

/// The session whose repository a channel shows as it is now, if it does.
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

/// Returns the `_meta` member by which a session shows its repository.
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
