//! Status of the repositories of sessions: files that are not committed, and changes of a branch.
//!
//! Owns: when that is looked at: when a session is made, when a turn of it has ended, and, while
//! somebody follows a changeset that shows it, soon after something has changed; that what was seen
//! last is shown until then, also behind a restart, and whether that is old; and what a session
//! says of it in its `_meta`.
//! Never: looks again before it has heard what it has asked for, or watches for long what nobody
//! follows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{json, Value};

use crate::host::catalogue::notes;
use crate::host::changes::Changes;
use crate::host::effects::{ChangesetKey, ChannelId, GitReport, Output, RepositoryStatus, Timer};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;
use crate::wire::changesets::ChangesetScope;
use crate::wire::channels::ChannelKind;
use crate::wire::watches::Watched;

/// Time for which changes of files are gathered before the status is refreshed.
const GATHERED: Duration = Duration::from_millis(750);

/// Time for which a repository is watched after its last subscriber has left, so that a client that
/// comes back learns whether it has changed.
const WATCHED_BEHIND: Duration = Duration::from_secs(10);

/// Maximum number of files in a status that is saved with its session.
const FILES_KEPT_MAX: usize = 500;

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
pub(in crate::host) const NOT_THERE: &str = "the repository is not there any more";

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
    is_old: bool,
    /// Set when the status became stale again while a refresh is in flight.
    is_old_again: bool,
    /// Why nothing is known, for people.
    trouble: Option<String>,
    /// Refresh in flight, if there is one: true when it includes files.
    asked: Option<bool>,
    /// Number of refreshes that were started.
    looks: u64,
    /// Set when a refresh is due.
    is_due: bool,
    /// Set when a subscriber needs the files.
    wants_files: bool,
    /// Watches that are in use.
    watched: Vec<String>,
    /// Something has changed, and it is waited for more.
    gathers: bool,
    /// Set when files have changed while a refresh is in flight: the next one is delayed from its
    /// end.
    gathers_behind: bool,
    /// Set when a changeset that shows the status has lost a subscriber.
    is_left: bool,
    /// Number of times that the linger timer was started.
    stays: u64,
    /// Set while the repository is watched without subscribers.
    is_staying: bool,
}

impl ObservedRepository {
    /// Something may have changed.
    fn grows_old(&mut self) {
        self.is_old = true;
        self.is_old_again |= self.asked.is_some();
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
    pub(in crate::host) fn forget(&mut self, session: SessionKey) {
        if let Some(sight) = self.all.remove(&session) {
            self.is_unsettled = true;
            self.released.extend(sight.watched);
        }
    }
}

/// Returns whether a changeset shows the status of the repository.
pub(in crate::host) fn shows_now(scope: &ChangesetScope) -> bool {
    matches!(scope, ChangesetScope::Uncommitted | ChangesetScope::Branch)
}

impl RepositoryStatuses {
    /// Requests a refresh of a session's status.
    pub(in crate::host) fn look_at_repository(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if self.is_on {
            let sight = self.of(session);
            sight.is_due = true;
            sight.grows_old();
            ledger.note_edited(session, false);
        }
    }

    /// Returns the status of a session's repository as it is saved with the session.
    pub(in crate::host) fn sight_to_keep(&self, session: SessionKey) -> Option<Cow<'_, RepositoryStatus>> {
        let sight = self.all.get(&session).filter(|sight| sight.has_files)?;
        let files = |known: &RepositoryStatus| known.uncommitted.len() + known.branch_changes.len();
        sight.known.as_ref().filter(|known| files(known) <= FILES_KEPT_MAX).map(Cow::Borrowed)
    }

    /// A session is in memory again: this was seen of its repository before.
    pub(in crate::host) fn sight_was_kept(&mut self, session: SessionKey, kept: RepositoryStatus) {
        if self.is_on {
            let (known, has_files, is_old) = (Some(kept), true, true);
            let sight = ObservedRepository { known, has_files, is_old, ..ObservedRepository::default() };
            self.all.insert(session, sight);
        }
    }

    /// Returns whether a session's status may be stale.
    pub(in crate::host) fn is_sight_old(&self, session: SessionKey) -> bool {
        self.all.get(&session).is_some_and(|sight| sight.is_old)
    }

    /// Notes that a channel has lost a subscriber: its repository may not need to be watched.
    pub(in crate::host) fn sight_is_left(&mut self, ledger: &Ledger, target: ChannelId) {
        if let Some(session) = session_shown_now(ledger, target) {
            self.of(session).is_left = true;
        }
    }

    /// Notes that a channel has a new subscriber: a status that it shows is refreshed, since it was
    /// not watched before.
    pub(in crate::host) fn sight_is_followed(&mut self, ledger: &mut Ledger, target: ChannelId) {
        let Some(session) = session_shown_now(ledger, target) else { return };
        let Some(sight) = self.all.get_mut(&session) else {
            return self.look_at_repository(ledger, session);
        };
        let may_be_old = sight.is_old || (sight.has_files && sight.watched.is_empty());
        if may_be_old && sight.asked != Some(true) {
            return self.look_at_repository(ledger, session);
        }
        sight.is_due = true;
        self.is_unsettled = true;
    }

    /// Returns the status of a session's repository, with files; the error says, for people, why
    /// there is none. Requests a refresh if it is not known.
    pub(in crate::host) fn sight_of(
        &mut self,
        session: SessionKey,
    ) -> Result<Option<&RepositoryStatus>, &str> {
        let sight = self.of(session);
        sight.wants_files = true;
        if !sight.has_files {
            sight.is_due |= sight.trouble.is_none();
        }
        match (&sight.trouble, &sight.known) {
            (Some(why), _) => Err(why),
            (None, known) => Ok(known.as_ref().filter(|_| sight.has_files)),
        }
    }

    /// Returns the status of a session's repository if it is known.
    pub(in crate::host) fn known_sight(&self, session: SessionKey) -> Option<&RepositoryStatus> {
        let sight = self.all.get(&session).filter(|sight| sight.has_files)?;
        sight.known.as_ref()
    }

    /// Returns whether the status is as of the first call with this `look` or later. If not, a
    /// refresh is requested and its number put into `look`. A repository that is not watched is
    /// always refreshed, since nothing has noticed its changes.
    pub(in crate::host) fn has_looked_since(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        look: &mut Option<u64>,
    ) -> bool {
        if !self.is_on {
            return true;
        }
        let follows = follows_sight(ledger, session);
        let Some(number) = *look else {
            let sight = self.of(session);
            let is_known = sight.has_files && !sight.is_old;
            let is_fresh = follows && is_known && !sight.is_due && sight.asked.is_none();
            (sight.is_due, sight.wants_files) = (!is_fresh, !is_fresh);
            *look = Some(sight.looks + 1).filter(|_| !is_fresh);
            return is_fresh;
        };
        let sight = self.all.get(&session);
        sight.is_none_or(|it| it.looks > number || (it.looks == number && it.asked.is_none()))
    }

    /// The branch that a session's changes are compared with, for people, where it is not the one
    /// that it began on.
    pub(in crate::host) fn base_note_of(&self, session: SessionKey) -> Option<&str> {
        self.all.get(&session)?.known.as_ref()?.base_note.as_deref()
    }

    fn settle_watches_of_sight(&mut self, ledger: &Ledger, step: &mut Step<'_>, session: SessionKey) {
        let follows = follows_sight(ledger, session);
        let Some(sight) = self.all.get_mut(&session) else { return };
        let is_left = std::mem::take(&mut sight.is_left) && sight.known.is_some();
        sight.is_staying = !follows && (sight.is_staying || is_left);
        if sight.is_staying && is_left {
            sight.stays += 1;
            step.say(Output::Timer(Timer::Stay(session, sight.stays), WATCHED_BEHIND));
        }
        let known = sight.known.as_ref().filter(|_| follows || sight.is_staying);
        let folders = known.into_iter().flat_map(|known| std::iter::once(&known.root).chain(&known.own));
        let watch = |uri: &String| {
            let excludes = NOT_WATCHED.iter().map(|pattern| (*pattern).to_owned()).collect();
            Watched { uri: uri.clone(), recursive: true, excludes: Some(excludes), includes: None }.channel()
        };
        let wanted: Vec<String> = folders.map(watch).collect();
        if sight.watched == wanted {
            return;
        }
        for channel in &wanted {
            step.say(Output::Watch(channel.clone()));
        }
        for channel in std::mem::replace(&mut sight.watched, wanted) {
            step.say(Output::Unwatch(channel));
        }
    }

    /// A repository is watched from now on: what has changed while git looked at it, nobody was
    /// told of.
    pub(in crate::host) fn repository_is_watched(&mut self, watch: &str) {
        for sight in self.all.values_mut() {
            sight.is_due |= sight.watched.iter().any(|watched| watched == watch);
        }
        self.is_unsettled = true;
    }

    /// Files have changed that are watched: perhaps because a repository is followed.
    pub(in crate::host) fn repository_has_changed(
        &mut self,
        ledger: &Ledger,
        step: &mut Step<'_>,
        watch: &str,
    ) {
        let all = self.all.iter();
        let of_watch = all.filter(|(_, sight)| sight.watched.iter().any(|watched| watched == watch));
        let sessions: Vec<SessionKey> = of_watch.map(|(session, _)| *session).collect();
        for session in sessions {
            let follows = follows_sight(ledger, session);
            let Some(sight) = self.all.get_mut(&session) else { continue };
            if !follows {
                // It is looked at when somebody comes back.
                sight.grows_old();
            } else if sight.asked.is_some() {
                // Where something changes all the time, what was seen is shown at times.
                sight.gathers_behind = true;
            } else if !std::mem::replace(&mut sight.gathers, true) {
                step.say(Output::Timer(Timer::Look(session), GATHERED));
            }
        }
    }

    /// Requests a refresh when the delay after a change is over.
    pub(in crate::host) fn time_to_look(&mut self, ledger: &mut Ledger, session: SessionKey) {
        if let Some(sight) = self.all.get_mut(&session) {
            sight.gathers = false;
            self.look_at_repository(ledger, session);
        }
    }

    /// A repository that nobody follows any more was watched for long enough.
    pub(in crate::host) fn time_to_stay_is_up(&mut self, session: SessionKey, number: u64) {
        if let Some(sight) = self.all.get_mut(&session).filter(|it| it.stays == number) {
            sight.is_staying = false;
            self.is_unsettled = true;
        }
    }

    /// A repository was looked at.
    pub(in crate::host) fn repository_is_seen(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        report: GitReport,
    ) {
        self.is_unsettled = true;
        let Some(sight) = self.all.get_mut(&session) else { return };
        let files = sight.asked.take().unwrap_or(false);
        if std::mem::take(&mut sight.gathers_behind) && !std::mem::replace(&mut sight.gathers, true) {
            step.say(Output::Timer(Timer::Look(session), GATHERED));
        }
        let (was_old, had_trouble) = (sight.is_old, sight.trouble.is_some());
        sight.is_old = std::mem::take(&mut sight.is_old_again) || (was_old && !files);
        let Some(of_session) = ledger.channels.sessions.known_mut(session) else {
            return self.forget(session);
        };
        let mut has_changed = true;
        let meta = match report {
            GitReport::Seen(mut seen) => {
                sight.trouble = None;
                let meta = meta_of(&seen);
                if !files && sight.has_files {
                    // What is known of the files is older, and still more than nothing.
                    if let Some(known) = sight.known.take() {
                        (seen.uncommitted, seen.branch_changes) = (known.uncommitted, known.branch_changes);
                    }
                }
                // Where there are none, that is known from now on.
                let are_new = files && !sight.has_files;
                sight.has_files |= files;
                let kept = &mut of_session.kept;
                if kept.root.is_none() || kept.base.is_none() {
                    kept.root = Some(seen.root.clone());
                    kept.base = kept.base.take().or_else(|| seen.branch.clone());
                    ledger.mark_dirty(session.into());
                }
                has_changed = are_new || had_trouble || sight.known.as_ref() != Some(&*seen);
                sight.known = Some(*seen);
                Some(meta)
            }
            // It is asked for again when something changes there.
            GitReport::NoRepository if of_session.kept.root.is_some() => {
                sight.trouble = Some(NOT_THERE.to_owned());
                None
            }
            GitReport::NoRepository => {
                self.forget(session);
                None
            }
            GitReport::Unusable(why) | GitReport::Failed(why) => {
                sight.trouble = Some(why.clone());
                if of_session.kept.root.is_none() && of_session.kept.note.is_none() {
                    of_session.kept.note = Some(why);
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
        if has_changed || was_old {
            ledger.note_edited(session, has_changed);
        }
    }
}

impl Changes {
    /// Looks at what is to be looked at, and watches what somebody follows.
    pub(in crate::host) fn settle_sights(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if !std::mem::take(&mut self.sights.is_unsettled) {
            return;
        }
        for channel in std::mem::take(&mut self.sights.released) {
            step.say(Output::Unwatch(channel));
        }
        let sessions: Vec<SessionKey> = self.sights.all.keys().copied().collect();
        for session in sessions {
            self.sights.settle_watches_of_sight(ledger, step, session);
            let follows = follows_sight(ledger, session);
            let Some(sight) = self.sights.all.get_mut(&session) else { continue };
            if !sight.is_due || sight.asked.is_some() {
                continue;
            }
            let files = follows || sight.wants_files;
            (sight.is_due, sight.asked, sight.wants_files) = (false, Some(files), false);
            sight.looks += 1;
            let Some(of_session) = ledger.channels.sessions.known(session) else {
                self.sights.forget(session);
                continue;
            };
            let directories = match &of_session.kept.root {
                Some(root) => vec![root.clone()],
                None => of_session.state.working_directories.clone().unwrap_or_default(),
            };
            if directories.is_empty() {
                self.sights.forget(session);
                continue;
            }
            let base = of_session.kept.base.clone();
            self.checkpoints.ask_git_to_look(ledger, step, session, directories, base, files);
        }
    }
}

/// The session whose repository a channel shows as it is now, if it does.
fn session_shown_now(ledger: &Ledger, target: ChannelId) -> Option<SessionKey> {
    let key = Some(target.key).filter(|_| target.kind == ChannelKind::Changeset)?;
    let changeset = ledger.channels.changesets.get(&ChangesetKey(key))?;
    shows_now(&changeset.scope).then_some(changeset.session)
}

fn follows_sight(ledger: &Ledger, session: SessionKey) -> bool {
    ledger.channels.changesets.values().any(|changeset| {
        changeset.session == session
            && shows_now(&changeset.scope)
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
