//! What is in the repositories of sessions now: what is not committed, and what a branch has changed.
//!
//! Owns: when that is looked at: when a session is made, when a turn of it has ended, and, while somebody follows a
//! changeset that shows it, soon after something has changed; and what a session says of it in its `_meta`.
//! Never: looks again before it has heard what it has asked for, or watches for nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{json, Value};

use super::effects::{ChangesetKey, ChannelId, GitReport, GitSight, Output, Timer};
use super::model::SessionKey;
use super::{Host, Step};
use crate::wire::changesets::ChangesetScope;
use crate::wire::channels::ChannelKind;
use crate::wire::watches::Watched;

/// What changes within this time is looked at once.
const GATHERED: Duration = Duration::from_millis(750);

/// What is written there is nothing to look at: it says nothing of files, or it is ours.
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
pub(super) const NOT_THERE: &str = "the repository is not there any more";

/// The name under which a session says it in its `_meta`.
const GIT: &str = "git";

/// What is known of the repository of a session.
#[derive(Debug, Default)]
pub(super) struct SessionSight {
    known: Option<GitSight>,
    /// The files are known, too.
    has_files: bool,
    /// Why nothing is known, for people.
    trouble: Option<String>,
    /// It was asked for, and with files.
    asked: Option<bool>,
    /// So often it was asked for.
    looks: u64,
    /// It is to be asked for.
    is_due: bool,
    /// Somebody wants to see the files.
    wants_files: bool,
    /// What is watched.
    watched: Vec<String>,
    /// Something has changed, and it is waited for more.
    gathers: bool,
}

/// What is known of the repositories of all sessions.
#[derive(Debug, Default)]
pub(super) struct Sights {
    all: BTreeMap<SessionKey, SessionSight>,
    /// What is watched no more.
    released: Vec<String>,
    /// Something may be to be looked at, or followed otherwise than before.
    is_unsettled: bool,
}

impl Sights {
    /// Of this session; it is looked whether something is to be done.
    fn of(&mut self, session: SessionKey) -> &mut SessionSight {
        self.is_unsettled = true;
        self.all.entry(session).or_default()
    }

    /// Nobody needs to know it any more.
    pub(super) fn forget(&mut self, session: SessionKey) {
        if let Some(sight) = self.all.remove(&session) {
            self.is_unsettled = true;
            self.released.extend(sight.watched);
        }
    }
}

/// Whether a changeset shows what is there now.
pub(super) fn shows_now(scope: &ChangesetScope) -> bool {
    matches!(scope, ChangesetScope::Uncommitted | ChangesetScope::Branch)
}

impl Host {
    /// What is in the repository of a session is to be looked at.
    pub(super) fn look_at_repository(&mut self, session: SessionKey) {
        if self.config.limits.kept_within_ms > 0 {
            self.changes.sights.of(session).is_due = true;
        }
    }

    /// Somebody follows a channel no more: perhaps nothing is to be watched for it.
    pub(super) fn sight_is_left(&mut self, target: ChannelId) {
        self.changes.sights.is_unsettled |= target.kind == ChannelKind::Changeset;
    }

    /// Somebody follows a channel: if it shows what is there now, that is looked at.
    pub(super) fn sight_is_followed(&mut self, target: ChannelId) {
        if target.kind != ChannelKind::Changeset {
            return;
        }
        let changeset = self.channels.changesets.get(&ChangesetKey(target.key));
        if let Some(session) = changeset.filter(|it| shows_now(&it.scope)).map(|it| it.session) {
            self.look_at_repository(session);
        }
    }

    /// What is there now of a session's repository, with files; and why not, for people. It is looked at if that is not
    /// known.
    pub(super) fn sight_of(&mut self, session: SessionKey) -> Result<Option<&GitSight>, &str> {
        let sight = self.changes.sights.of(session);
        sight.wants_files = true;
        if !sight.has_files {
            sight.is_due |= sight.trouble.is_none();
        }
        match (&sight.trouble, &sight.known) {
            (Some(why), _) => Err(why),
            (None, known) => Ok(known.as_ref().filter(|_| sight.has_files)),
        }
    }

    /// The same, without looking.
    pub(super) fn known_sight(&self, session: SessionKey) -> Option<&GitSight> {
        let sight = self.changes.sights.all.get(&session).filter(|sight| sight.has_files)?;
        sight.known.as_ref()
    }

    /// Whether what is in a session's repository is known as it was when this was asked first: `look` is none then. If it
    /// is not, git looks at it, and `look` is the number of that look. What nobody follows is always looked at, since nobody
    /// has seen it change.
    pub(super) fn has_looked_since(&mut self, session: SessionKey, look: &mut Option<u64>) -> bool {
        if self.config.limits.kept_within_ms == 0 {
            return true;
        }
        let follows = self.follows_sight(session);
        let Some(number) = *look else {
            let sight = self.changes.sights.of(session);
            let is_fresh = follows && sight.has_files && !sight.is_due && sight.asked.is_none();
            (sight.is_due, sight.wants_files) = (!is_fresh, !is_fresh);
            *look = Some(sight.looks + 1).filter(|_| !is_fresh);
            return is_fresh;
        };
        let sight = self.changes.sights.all.get(&session);
        sight.is_none_or(|it| it.looks > number || (it.looks == number && it.asked.is_none()))
    }

    /// The branch that a session's changes are compared with, for people, where it is not the one that it began on.
    pub(super) fn base_note_of(&self, session: SessionKey) -> Option<&str> {
        self.changes.sights.all.get(&session)?.known.as_ref()?.base_note.as_deref()
    }

    fn follows_sight(&self, session: SessionKey) -> bool {
        self.channels.changesets.values().any(|changeset| {
            changeset.session == session
                && shows_now(&changeset.scope)
                && !changeset.channel.subscribers.is_empty()
        })
    }

    /// Looks at what is to be looked at, and watches what somebody follows.
    pub(super) fn settle_sights(&mut self, step: &mut Step<'_>) {
        if !std::mem::take(&mut self.changes.sights.is_unsettled) {
            return;
        }
        for channel in std::mem::take(&mut self.changes.sights.released) {
            step.say(Output::Unwatch(channel));
        }
        let sessions: Vec<SessionKey> = self.changes.sights.all.keys().copied().collect();
        for session in sessions {
            self.settle_watches_of_sight(step, session);
            let follows = self.follows_sight(session);
            let Some(sight) = self.changes.sights.all.get_mut(&session) else { continue };
            if !sight.is_due || sight.asked.is_some() {
                continue;
            }
            let files = follows || sight.wants_files;
            (sight.is_due, sight.asked, sight.wants_files) = (false, Some(files), false);
            sight.looks += 1;
            let Some(of_session) = self.channels.sessions.known(session) else {
                self.changes.sights.forget(session);
                continue;
            };
            let directories = match &of_session.kept.root {
                Some(root) => vec![root.clone()],
                None => of_session.state.working_directories.clone().unwrap_or_default(),
            };
            if directories.is_empty() {
                self.changes.sights.forget(session);
                continue;
            }
            let base = of_session.kept.base.clone();
            self.ask_git_to_look(step, session, directories, base, files);
        }
    }

    fn settle_watches_of_sight(&mut self, step: &mut Step<'_>, session: SessionKey) {
        let follows = self.follows_sight(session);
        let Some(sight) = self.changes.sights.all.get_mut(&session) else { return };
        let known = sight.known.as_ref().filter(|_| follows);
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

    /// Files have changed that are watched: perhaps because a repository is followed.
    pub(super) fn repository_has_changed(&mut self, step: &mut Step<'_>, watch: &str) {
        for (session, sight) in &mut self.changes.sights.all {
            if !sight.gathers && sight.watched.iter().any(|watched| watched == watch) {
                sight.gathers = true;
                step.say(Output::Timer(Timer::Look(*session), GATHERED));
            }
        }
    }

    /// What has changed in a repository was gathered.
    pub(super) fn time_to_look(&mut self, session: SessionKey) {
        if let Some(sight) = self.changes.sights.all.get_mut(&session) {
            (sight.gathers, sight.is_due) = (false, true);
            self.changes.sights.is_unsettled = true;
        }
    }

    /// A repository was looked at.
    pub(super) fn repository_is_seen(&mut self, step: &mut Step<'_>, session: SessionKey, report: GitReport) {
        self.changes.sights.is_unsettled = true;
        let Some(sight) = self.changes.sights.all.get_mut(&session) else { return };
        let files = sight.asked.take().unwrap_or(false);
        let Some(of_session) = self.channels.sessions.known_mut(session) else {
            return self.changes.sights.forget(session);
        };
        let mut has_changed = true;
        let meta = match report {
            GitReport::Seen(mut seen) => {
                sight.trouble = None;
                let meta = meta_of(&seen);
                if !files && sight.has_files {
                    // What is known of the files is older, and still more than nothing.
                    if let Some(known) = sight.known.take() {
                        (seen.uncommitted, seen.versions) = (known.uncommitted, known.versions);
                        seen.branch_changes = known.branch_changes;
                    }
                }
                // Where there are none, that is known from now on.
                let are_new = files && !sight.has_files;
                sight.has_files |= files;
                let kept = &mut of_session.kept;
                if kept.root.is_none() || kept.base.is_none() {
                    kept.root = Some(seen.root.clone());
                    kept.base = kept.base.take().or_else(|| seen.branch.clone());
                    self.unsaved.insert(session.into());
                }
                has_changed = are_new || sight.known.as_ref() != Some(&*seen);
                sight.known = Some(*seen);
                Some(meta)
            }
            // It is asked for again when something changes there.
            GitReport::NoRepository if of_session.kept.root.is_some() => {
                sight.trouble = Some(NOT_THERE.to_owned());
                None
            }
            GitReport::NoRepository => {
                self.changes.sights.forget(session);
                None
            }
            GitReport::Unusable(why) | GitReport::Failed(why) => {
                sight.trouble = Some(why.clone());
                if of_session.kept.root.is_none() && of_session.kept.note.is_none() {
                    of_session.kept.note = Some(why);
                    self.unsaved.insert(session.into());
                }
                return self.files_may_have_changed(session, true);
            }
            _ => return,
        };
        self.change_notes(step, session, |notes| match meta {
            Some(meta) => drop(notes.insert(GIT.to_owned(), meta)),
            None => drop(notes.shift_remove(GIT)),
        });
        if has_changed {
            self.files_may_have_changed(session, true);
        }
    }
}

/// What a session says of its repository.
fn meta_of(seen: &GitSight) -> Value {
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
