//! Git checkpoints of the folders of sessions, taken before and after each turn.
//!
//! Two checkpoints show all changes of a turn, also those that its calls do not report. A turn
//! waits for its first checkpoint up to a time limit; after a timeout it starts without, and only
//! reported changes count.
//!
//! Owns: git jobs in flight, and when a checkpoint is taken for which turn.
//! Never: runs git, or delays a turn beyond the limit.

use std::collections::BTreeMap;

use crate::host::changes::checkpointed::CheckpointedTurn;
use crate::host::changes::comparisons::{CheckpointPair, Comparison, ComparisonCache};
use crate::host::changes::statuses::REPOSITORY_GONE;
use crate::host::changes::Changes;
use crate::host::configuration::directories;
use crate::host::effects::{
    ChatKey, Checkpoint, GitJob, GitReport, GitRevert, GitWork, Output, RunId, Timer,
};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;
use crate::state::edits::changed_paths;

/// Time limit of git jobs that no turn waits for, in milliseconds.
const JOB_WITHIN_MS: u64 = 10_000;

const REMOVAL_RETRIES: u32 = 3;

/// Maximum number of reported files per turn that git is asked about.
const REPORTED_FILES_MAX: usize = 1000;

/// Maximum number of comparisons in flight, because the time limit of each begins with its request.
const COMPARISONS_IN_FLIGHT_MAX: usize = 4;

/// Purpose of a git job in flight.
#[derive(Debug)]
pub(in crate::host) enum JobPurpose {
    /// Checkpoint before a run, which waits for it; with what the turn overlaps since the request.
    BeforeTurn { chat: ChatKey, run: RunId, overlaps: bool, overlaps_others: bool },
    /// Checkpoint after a turn, compared with the checkpoints in `since`.
    AfterTurn { session: SessionKey, chat: String, turn: String, since: Vec<Checkpoint> },
    /// Checkpoint after a revert, compared with the checkpoints in `since`.
    AfterRevert { session: SessionKey, since: Vec<Checkpoint> },
    /// Comparison of two checkpoints.
    Comparison(CheckpointPair),
    /// Refresh, with this number, of the status of a session's repository.
    Status(SessionKey, u64),
    /// New refs for the checkpoints of an imported session.
    Import(SessionKey),
    /// Commit of all uncommitted changes, for a client.
    Commit(SessionKey),
    /// Checkpoint in the namespace of a session that was disposed of since; removed when it is
    /// finished.
    Disposed { namespace: String },
    /// Removal of a namespace, with the number of retries left.
    Removal { root: String, namespace: String, again: u32 },
}

/// Git jobs in flight, and what they have compared.
#[derive(Debug)]
pub(in crate::host) struct Checkpoints {
    /// Time limit of a checkpoint before a turn, in milliseconds; 0 disables git.
    pub(super) within_ms: u64,
    pub(super) jobs: BTreeMap<u64, JobPurpose>,
    /// Comparisons of checkpoints, as far as they are known.
    pub(in crate::host) compared: ComparisonCache,
}

impl Checkpoints {
    /// Creates the owner with git's time limit for a checkpoint before a turn, in milliseconds; 0
    /// disables git.
    pub(in crate::host) fn new(within_ms: u64) -> Self {
        Self { within_ms, jobs: BTreeMap::new(), compared: ComparisonCache::default() }
    }

    /// Requests a job in the repository of some directories, with a time limit. Returns its number.
    pub(in crate::host) fn run_git(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        (directories, within_ms): (Vec<String>, u64),
        work: GitWork,
        what: JobPurpose,
    ) -> u64 {
        let number = ledger.fresh_key();
        self.jobs.insert(number, what);
        step.emit(Output::Git(number, Box::new(GitJob { directories, within_ms, work })));
        number
    }

    /// Requests the status of a session's repository, for the refresh with this number.
    pub(in crate::host) fn run_git_status(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        (session, refresh): (SessionKey, u64),
        directories: Vec<String>,
        work: GitWork,
    ) {
        assign_namespace(ledger, step, session);
        self.run_git(ledger, step, (directories, JOB_WITHIN_MS), work, JobPurpose::Status(session, refresh));
    }

    /// Takes a checkpoint before the turn of a chat, which waits for it up to the time limit.
    pub(in crate::host) fn checkpoint_before_turn(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
    ) {
        let within_ms = self.within_ms;
        let directories = directories::effective_directories(ledger, key);
        if within_ms == 0 || directories.is_empty() {
            return;
        }
        let Some(chat) = ledger.channels.chats.known(key) else { return };
        let (session, Some(run)) = (chat.session, chat.run.as_ref().map(|run| run.id)) else { return };
        let Some(work) = checkpoint_work(ledger, step, session, Vec::new(), Vec::new()) else { return };
        let purpose = JobPurpose::BeforeTurn { chat: key, run, overlaps: false, overlaps_others: false };
        let number = self.run_git(ledger, step, (directories, within_ms), work, purpose);
        self.note_overlaps(ledger, key, false);
        step.emit(Output::Timer(Timer::Checkpoint(number), std::time::Duration::from_millis(within_ms)));
        if let Some(run) = ledger.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
            run.awaited_checkpoint = Some(number);
        }
    }

    /// Abandons a checkpoint that has timed out. Returns the chat if its turn was waiting.
    pub(in crate::host) fn checkpoint_timed_out(
        &mut self,
        ledger: &mut Ledger,
        number: u64,
    ) -> Option<ChatKey> {
        let Some(JobPurpose::BeforeTurn { chat, run, .. }) = self.jobs.get(&number) else { return None };
        let (chat, run) = (*chat, *run);
        // A later report would show the folder after the turn has begun.
        self.jobs.remove(&number);
        let why = "the folder could not be checkpointed in time before the last turn".to_owned();
        self.turn_begins_without_checkpoint(ledger, (chat, run), Some(why))
    }

    /// Notes that a turn starts without a checkpoint. Returns the chat if its turn was waiting.
    fn turn_begins_without_checkpoint(
        &self,
        ledger: &mut Ledger,
        (key, run): (ChatKey, RunId),
        note: Option<String>,
    ) -> Option<ChatKey> {
        // The chat may have been disposed of meanwhile.
        let chat = ledger.channels.chats.get(&key)?;
        let session = chat.session;
        if let Some(of_session) = ledger.channels.sessions.known_mut(session) {
            of_session.checkpoints.begin_turn_without(note);
            ledger.mark_dirty(session.into());
            ledger.note_edited(session, true);
        }
        self.end_checkpoint_wait(ledger, key, run)
    }

    fn end_checkpoint_wait(&self, ledger: &mut Ledger, key: ChatKey, id: RunId) -> Option<ChatKey> {
        let run = ledger.channels.chats.get_mut(&key).and_then(|chat| chat.run.as_mut())?;
        if run.id != id || run.awaited_checkpoint.take().is_none() {
            return None;
        }
        Some(key)
    }

    fn checkpointed_before_turn(
        &self,
        ledger: &mut Ledger,
        (key, run): (ChatKey, RunId),
        (overlaps, overlaps_others): (bool, bool),
        report: GitReport,
    ) -> Option<ChatKey> {
        let (root, checkpoint) = match report {
            GitReport::Checkpointed { root, checkpoint, .. } => (root, checkpoint),
            GitReport::Unusable(why) | GitReport::Failed(why) => {
                return self.turn_begins_without_checkpoint(ledger, (key, run), Some(why))
            }
            _ => return self.turn_begins_without_checkpoint(ledger, (key, run), None),
        };
        let chat = ledger.channels.chats.get(&key)?;
        let session = chat.session;
        let is_its = chat.run.as_ref().is_some_and(|it| it.id == run);
        let turn = chat.conversation.state().active_turn.as_ref().filter(|_| is_its);
        let turn = turn.map(|turn| (chat.channel.uri.clone(), turn.id.clone()));
        let is_new = |chat: ChatKey| {
            let chat = ledger.channels.chats.known(chat);
            chat.is_some_and(|chat| chat.all_turns().next().is_none() && chat.removed_turns.is_empty())
        };
        let is_first = ledger.channels.chats_in(session).into_iter().all(is_new);
        if let Some((chat, turn)) = turn {
            let of_session = ledger.channels.sessions.known_mut(session)?;
            let turn = CheckpointedTurn {
                chat,
                turn,
                before: checkpoint,
                after: None,
                overlaps,
                overlaps_others,
                incomparable: Vec::new(),
            };
            of_session.checkpoints.begin_turn(root, is_first, turn);
            ledger.mark_dirty(session.into());
            ledger.note_edited(session, true);
        }
        self.end_checkpoint_wait(ledger, key, run)
    }

    fn checkpoint_finished(
        &mut self,
        ledger: &mut Ledger,
        session: SessionKey,
        since: Vec<Checkpoint>,
        report: GitReport,
    ) -> Option<Checkpoint> {
        if !ledger.channels.sessions.contains_key(&session) {
            return None;
        }
        let taken = match report {
            GitReport::Checkpointed { checkpoint, since: compared, .. } => {
                for (before, changes) in since.into_iter().zip(compared) {
                    if let Some(changes) = changes {
                        let pair = (session, before, checkpoint.clone());
                        self.compared.insert(pair, Comparison::Known(changes));
                    }
                }
                Ok(checkpoint)
            }
            report => Err(why_failed(report)),
        };
        let after = taken.as_ref().ok().cloned();
        let others = self.is_checkpoint_in_flight(session, None);
        let of_session = ledger.channels.sessions.known_mut(session)?;
        of_session.checkpoints.end_request(taken, others);
        ledger.mark_dirty(session.into());
        ledger.note_edited(session, true);
        after
    }

    /// Takes a checkpoint after the last turn of a chat, if one was taken before it.
    pub(in crate::host) fn checkpoint_after_turn(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: ChatKey,
    ) {
        let Some(chat) = ledger.channels.chats.known(key).filter(|_| self.within_ms > 0) else {
            return;
        };
        let session = chat.session;
        let Some(turn) = chat.conversation.history().last() else { return };
        let mut reported = changed_paths(&turn.text());
        reported.extend(turn.edits().edits.iter().map(|edit| edit.diff.file.clone()));
        let reported = reported.into_iter().take(REPORTED_FILES_MAX).collect();
        let (chat, turn) = (chat.channel.uri.clone(), turn.id().to_owned());
        let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
        let checkpoints = &mut of_session.checkpoints;
        // The directories may have been changed during the turn.
        let Some(root) = checkpoints.root().cloned() else { return };
        let Some(before) = checkpoints.turn_mut(&chat, &turn).map(|turn| turn.before.clone()) else { return };
        let mut since = vec![before];
        since.extend(checkpoints.turns.first().map(|first| first.before.clone()));
        since.dedup();
        let Some(work) = checkpoint_work(ledger, step, session, since.clone(), reported) else { return };
        let behind = JobPurpose::AfterTurn { session, chat, turn, since };
        self.run_git(ledger, step, (vec![root], JOB_WITHIN_MS), work, behind);
        note_checkpoint_requested(ledger, session);
    }

    /// Gives the checkpoints of an imported session refs in a namespace of its own.
    pub(in crate::host) fn checkpoint_imported(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
    ) {
        let of_session = ledger.channels.sessions.known(session).filter(|it| it.checkpoints.is_imported);
        let Some(of_session) = of_session.filter(|_| self.within_ms > 0) else { return };
        let Some(root) = of_session.checkpoints.root().cloned() else { return };
        let commits = of_session.checkpoints.commit_ids();
        let mut contents: Vec<String> = of_session
            .reverted
            .iter()
            .filter_map(|file| file.git.as_ref())
            .flat_map(GitRevert::contents)
            .collect();
        contents.sort_unstable();
        contents.dedup();
        assign_namespace(ledger, step, session);
        let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
        let checkpoints = &mut of_session.checkpoints;
        // Later checkpoints get greater numbers.
        checkpoints.count = checkpoints.count.max(commits.len() as u64 + 1);
        let work =
            GitWork::Import { namespace: checkpoints.namespace.clone(), checkpoints: commits, contents };
        self.run_git(ledger, step, (vec![root], JOB_WITHIN_MS), work, JobPurpose::Import(session));
    }

    /// Repeats the checkpoint that a previous process had started and not finished, for a restored
    /// session.
    pub(in crate::host) fn repeat_interrupted_checkpoint(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
    ) {
        let checkpoints = ledger.channels.sessions.known(session).map(|session| &session.checkpoints);
        let Some(checkpoints) =
            checkpoints.filter(|it| it.is_asked && !self.is_checkpoint_in_flight(session, None))
        else {
            return;
        };
        let open = checkpoints.turns.iter().filter(|turn| turn.after.is_none());
        let chats = open.filter_map(|open| {
            let chat = ledger.find_chat(&open.chat)?;
            let history = ledger.channels.chats.known(chat)?.conversation.history();
            history.last().is_some_and(|turn| turn.id() == open.turn).then_some(chat)
        });
        // Turns of several chats may have ended together.
        let chats: Vec<ChatKey> = chats.collect();
        if chats.is_empty() {
            self.checkpoint_after_revert(ledger, step, session);
        }
        for chat in chats {
            self.checkpoint_after_turn(ledger, step, chat);
        }
    }

    /// Dissociates the checkpoints of a disposed chat from its URI, which another chat may get.
    pub(in crate::host) fn release_chat(&mut self, ledger: &mut Ledger, session: SessionKey, uri: &str) {
        let of_session = ledger.channels.sessions.known_mut(session);
        let Some(name) = of_session.and_then(|of_session| of_session.checkpoints.release_chat(uri)) else {
            return;
        };
        ledger.mark_dirty(session.into());
        for asked in self.jobs.values_mut() {
            match asked {
                JobPurpose::AfterTurn { session: of, chat, .. } if *of == session && chat == uri => {
                    chat.clone_from(&name);
                }
                _ => {}
            }
        }
    }

    /// Takes a checkpoint after a revert, from which later changes of the session are counted.
    pub(in crate::host) fn checkpoint_after_revert(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
    ) {
        let Some(of_session) = ledger.channels.sessions.known(session) else { return };
        let Some(root) = of_session.checkpoints.root().cloned() else { return };
        let since: Vec<Checkpoint> =
            of_session.checkpoints.turns.first().map(|first| first.before.clone()).into_iter().collect();
        let Some(work) = checkpoint_work(ledger, step, session, since.clone(), Vec::new()) else { return };
        self.run_git(
            ledger,
            step,
            (vec![root], JOB_WITHIN_MS),
            work,
            JobPurpose::AfterRevert { session, since },
        );
        note_checkpoint_requested(ledger, session);
    }

    /// Removes the checkpoints of a deleted session, including those in flight.
    pub(in crate::host) fn dispose_checkpoints(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
    ) {
        let Some(of_session) = ledger.channels.sessions.known(session) else { return };
        let (namespace, roots) = of_session.checkpoints.namespaces();
        let (namespace, roots) = (namespace.to_owned(), roots.cloned().collect::<Vec<_>>());
        for asked in self.jobs.values_mut() {
            let is_of_session = match asked {
                JobPurpose::AfterTurn { session: of, .. } | JobPurpose::AfterRevert { session: of, .. } => {
                    *of == session
                }
                JobPurpose::BeforeTurn { chat, .. } => !ledger.channels.chats.contains_key(chat),
                _ => false,
            };
            if is_of_session {
                *asked = JobPurpose::Disposed { namespace: namespace.clone() };
            }
        }
        for root in roots {
            self.remove_checkpoints(ledger, step, root, namespace.clone(), REMOVAL_RETRIES);
        }
    }

    fn remove_checkpoints(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        root: String,
        namespace: String,
        again: u32,
    ) {
        let work = GitWork::RemoveCheckpoints { namespace: namespace.clone() };
        let directories = vec![root.clone()];
        self.run_git(
            ledger,
            step,
            (directories, JOB_WITHIN_MS),
            work,
            JobPurpose::Removal { root, namespace, again },
        );
    }

    /// Returns whether a git job is in flight that prevents the eviction of a session.
    pub(in crate::host) fn has_job_for(
        &self,
        ledger: &Ledger,
        session: &crate::host::model::Session,
    ) -> bool {
        let key = ledger.find_session(&session.channel.uri);
        self.jobs.values().any(|asked| match asked {
            JobPurpose::AfterTurn { session, .. } | JobPurpose::AfterRevert { session, .. } => {
                Some(*session) == key
            }
            JobPurpose::Comparison((session, ..)) | JobPurpose::Import(session) => Some(*session) == key,
            _ => false,
        })
    }

    /// Returns whether a checkpoint after a turn of this session is in flight; with an id, only
    /// after that turn.
    pub(in crate::host) fn is_checkpoint_in_flight(&self, key: SessionKey, of: Option<&str>) -> bool {
        self.jobs.values().any(|asked| match asked {
            JobPurpose::AfterTurn { session, turn, .. } => *session == key && of.is_none_or(|of| of == turn),
            JobPurpose::AfterRevert { session, .. } => *session == key && of.is_none(),
            _ => false,
        })
    }

    /// Returns whether a job is in flight that shutdown must await: a checkpoint after a turn, or a
    /// removal.
    pub(in crate::host) fn has_jobs_to_await(&self) -> bool {
        let is_awaited = |asked: &JobPurpose| {
            matches!(
                asked,
                JobPurpose::AfterTurn { .. } | JobPurpose::Disposed { .. } | JobPurpose::Removal { .. }
            )
        };
        self.jobs.values().any(is_awaited)
    }

    /// Requests the comparisons that are wanted, as many at a time as are allowed.
    pub(in crate::host) fn start_comparisons(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        if self.compared.wanted.is_empty() {
            return;
        }
        let is_comparing = |asked: &&JobPurpose| matches!(asked, JobPurpose::Comparison(_));
        let mut room =
            COMPARISONS_IN_FLIGHT_MAX.saturating_sub(self.jobs.values().filter(is_comparing).count());
        while room > 0 {
            let Some(pair) = self.compared.wanted.pop_front() else { return };
            let session = ledger.channels.sessions.known(pair.0);
            let Some(root) = session.and_then(|session| session.checkpoints.root().cloned()) else {
                self.compared.pairs.remove(&pair);
                continue;
            };
            room -= 1;
            let (_, before, after) = pair.clone();
            let work = GitWork::Compare { before, after };
            self.run_git(ledger, step, (vec![root], JOB_WITHIN_MS), work, JobPurpose::Comparison(pair));
        }
    }
}

impl Changes {
    /// Applies a report of git. Returns the chat whose turn was waiting for it.
    pub(in crate::host) fn git_reports(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        number: u64,
        report: GitReport,
    ) -> Option<ChatKey> {
        match self.checkpoints.jobs.remove(&number) {
            Some(JobPurpose::BeforeTurn { chat, run, overlaps, overlaps_others }) => {
                let overlaps = (overlaps, overlaps_others);
                return self.checkpoints.checkpointed_before_turn(ledger, (chat, run), overlaps, report);
            }
            Some(JobPurpose::AfterTurn { session, chat, turn, since }) => {
                let incomparable = match &report {
                    GitReport::Checkpointed { incomparable, .. } => incomparable.clone(),
                    _ => Vec::new(),
                };
                let after = self.checkpoints.checkpoint_finished(ledger, session, since, report);
                let of_session = ledger.channels.sessions.known_mut(session)?;
                if let Some(of_turn) = of_session.checkpoints.turn_mut(&chat, &turn) {
                    (of_turn.after, of_turn.incomparable) = (after, incomparable);
                }
                self.statuses.request_refresh(ledger, session);
            }
            Some(JobPurpose::AfterRevert { session, since }) => {
                self.checkpoints.checkpoint_finished(ledger, session, since, report);
            }
            Some(JobPurpose::Import(session)) => {
                let of_session = ledger.channels.sessions.known_mut(session);
                // A failure is retried when the session is loaded again.
                if let Some(of_session) = of_session.filter(|_| report == GitReport::Done) {
                    of_session.checkpoints.is_imported = false;
                    ledger.mark_dirty(session.into());
                }
            }
            Some(JobPurpose::Status(session, refresh)) => {
                self.statuses.status_received(ledger, step, (session, refresh), report)
            }
            Some(JobPurpose::Comparison(pair)) => {
                let session = pair.0;
                let comparison = match report {
                    GitReport::Compared(changes) => Comparison::Known(changes),
                    report => Comparison::Unknown(why_failed(report)),
                };
                self.checkpoints.compared.insert(pair, comparison);
                ledger.note_edited(session, true);
            }
            Some(JobPurpose::Commit(session)) => self.finish_commit(ledger, step, session, report),
            Some(JobPurpose::Disposed { namespace }) => {
                if let GitReport::Checkpointed { root, .. } = report {
                    self.checkpoints.remove_checkpoints(ledger, step, root, namespace, REMOVAL_RETRIES);
                }
            }
            Some(JobPurpose::Removal { root, namespace, again }) => {
                // Other jobs in the repository may have used up the time limit.
                if let Some(again) = again.checked_sub(1).filter(|_| matches!(report, GitReport::Failed(_))) {
                    self.checkpoints.remove_checkpoints(ledger, step, root, namespace, again);
                }
            }
            None => {}
        }
        None
    }
}

/// Returns the reason why a report is not the wanted one, for people.
pub(super) fn why_failed(report: GitReport) -> String {
    match report {
        GitReport::Failed(why) | GitReport::Unusable(why) => why,
        _ => REPOSITORY_GONE.to_owned(),
    }
}

fn assign_namespace(ledger: &mut Ledger, step: &mut Step<'_>, session: SessionKey) {
    let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
    let checkpoints = &mut of_session.checkpoints;
    if checkpoints.namespace.is_empty() {
        checkpoints.namespace = step.ids.fresh();
        if checkpoints.secret.is_empty() {
            checkpoints.secret = step.ids.fresh();
        }
        ledger.mark_dirty(session.into());
    }
}

fn checkpoint_work(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    session: SessionKey,
    since: Vec<Checkpoint>,
    reported: Vec<String>,
) -> Option<GitWork> {
    assign_namespace(ledger, step, session);
    let checkpoints = &mut ledger.channels.sessions.known_mut(session)?.checkpoints;
    let ((namespace, number), last) = (checkpoints.next_ref(), checkpoints.last.clone());
    Some(GitWork::Checkpoint { namespace, number, last, since, reported })
}

/// Drops the checkpoint after a turn that is resumed.
pub(in crate::host) fn reopen_turn_checkpoints(ledger: &mut Ledger, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let session = chat.session;
    let Some(turn) = &chat.conversation.state().active_turn else { return };
    let (chat, turn) = (chat.channel.uri.clone(), turn.id.clone());
    let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
    let last = of_session.checkpoints.turns.last();
    let is_last = last.is_some_and(|last| (&last.chat, &last.turn) == (&chat, &turn));
    if let Some(of_turn) = of_session.checkpoints.turn_mut(&chat, &turn) {
        of_turn.after = None;
        // Changes of other turns since its end are now between its two checkpoints.
        of_turn.overlaps |= !is_last;
        ledger.mark_dirty(session.into());
    }
}

fn note_checkpoint_requested(ledger: &mut Ledger, session: SessionKey) {
    if let Some(of_session) = ledger.channels.sessions.known_mut(session) {
        of_session.checkpoints.is_asked = true;
        ledger.mark_dirty(session.into());
    }
}
