//! Tests of the owner of changes alone.
//!
//! Owns: which jobs it gives git, and what it makes of the reports.
//! Never: has another owner at hand, or runs git.

use ahp_types::actions::ActionOrigin;
use serde_json::json;

use super::changesets::{next_state, state_of, UNSUBSCRIBED_MAX};
use super::checkpointed::{CheckpointedFolder, CheckpointedTurn};
use super::checkpoints::JobPurpose;
use super::Changes;
use crate::host::channels::Changeset;
use crate::host::effects::{
    ChangesetKey, ChatKey, Checkpoint, Frame, GitContent, GitReport, GitWork, IncomparableFile, Output,
    RepositoryStatus, Timer,
};
use crate::host::ledger::Ledger;
use crate::host::model::{Channel, Run, RunPhase, SessionKey, Subscription};
use crate::host::refusal::{error_info, Refusal};
use crate::host::testing::{add_session, chat, outputs_of, start_turn, with_session, CHAT, ME, SESSION};
use crate::state::edits::FileDiff;
use crate::wire::changesets::ChangesetScope;
use crate::wire::rpc::RequestId;

/// An owner where git has this time for a checkpoint, and a ledger with a session in `file:///r`.
fn changes(within_ms: u64) -> (Changes, Ledger) {
    let mut ledger = with_session();
    let session = ledger.channels.sessions.known_mut(SESSION).unwrap();
    session.state.working_directories = Some(vec!["file:///r".to_owned()]);
    (Changes::new(within_ms), ledger)
}

/// Lets the owner do what is due. Returns the jobs for git.
fn settle(changes: &mut Changes, ledger: &mut Ledger) -> Vec<(u64, Vec<String>, GitWork)> {
    jobs(outputs_of(|step| changes.settle(ledger, step)))
}

fn report(
    changes: &mut Changes,
    ledger: &mut Ledger,
    number: u64,
    report: GitReport,
) -> Vec<(u64, Vec<String>, GitWork)> {
    jobs(outputs_of(|step| assert_eq!(changes.git_reports(ledger, step, number, report), None)))
}

fn jobs(outputs: Vec<Output>) -> Vec<(u64, Vec<String>, GitWork)> {
    let jobs = outputs.into_iter().filter_map(|output| match output {
        Output::Git(number, job) => Some((number, job.directories, job.work)),
        _ => None,
    });
    jobs.collect()
}

#[test]
fn refresh_is_started_once_at_a_time_and_its_report_is_shown_in_the_session() {
    let (mut changes, mut ledger) = changes(1000);
    let look =
        |base: Option<&str>| GitWork::Status { base: base.map(str::to_owned), files: false, touched: None };
    changes.statuses.request_refresh(&mut ledger, SESSION);
    let first = settle(&mut changes, &mut ledger);
    let [(number, folders, work)] = &first[..] else { panic!("{first:?}") };
    assert_eq!((folders, work), (&vec!["file:///r".to_owned()], &look(None)));
    changes.statuses.request_refresh(&mut ledger, SESSION);
    assert_eq!(settle(&mut changes, &mut ledger), [], "one is in flight");
    let seen = RepositoryStatus {
        root: "file:///top".to_owned(),
        branch: Some("main".to_owned()),
        uncommitted_count: 2,
        ..RepositoryStatus::default()
    };
    assert_eq!(report(&mut changes, &mut ledger, *number, GitReport::Status(Box::new(seen))), []);
    let meta = ledger.channels.sessions.known(SESSION).unwrap().state.meta.clone().unwrap();
    assert_eq!((&meta["git"]["branchName"], &meta["git"]["uncommittedChanges"]), (&json!("main"), &json!(2)));
    // The one that was requested meanwhile knows the repository and the branch of the session.
    let second = settle(&mut changes, &mut ledger);
    let [(_, folders, work)] = &second[..] else { panic!("{second:?}") };
    assert_eq!((folders, work), (&vec!["file:///top".to_owned()], &look(Some("main"))));
}

#[test]
fn branch_that_is_checked_out_later_is_not_the_one_that_the_session_began_on() {
    let (mut changes, mut ledger) = changes(1000);
    for branch in [None, Some("later")] {
        changes.statuses.request_refresh(&mut ledger, SESSION);
        let asked = settle(&mut changes, &mut ledger);
        let [(number, _, GitWork::Status { base: None, .. })] = &asked[..] else { panic!("{asked:?}") };
        let seen = RepositoryStatus {
            root: "file:///r".to_owned(),
            branch: branch.map(str::to_owned),
            is_detached: branch.is_none(),
            ..RepositoryStatus::default()
        };
        report(&mut changes, &mut ledger, *number, GitReport::Status(Box::new(seen)));
    }
    // Nor after a restart, when no status is known.
    changes.statuses.remove(SESSION);
    changes.statuses.request_refresh(&mut ledger, SESSION);
    let asked = settle(&mut changes, &mut ledger);
    let seen = RepositoryStatus {
        root: "file:///r".to_owned(),
        branch: Some("later".to_owned()),
        ..RepositoryStatus::default()
    };
    report(&mut changes, &mut ledger, asked[0].0, GitReport::Status(Box::new(seen)));
    assert_eq!(ledger.channels.sessions.known(SESSION).unwrap().checkpoints.base(), None);
}

#[test]
fn only_surplus_changesets_without_subscribers_are_evicted() {
    let (mut changes, mut ledger) = changes(0);
    let uri = "ahp-session:/s/changeset/session".to_owned();
    changes.restore_changesets(&mut ledger, [&uri]);
    let state = ledger.channels.changesets.values().next().unwrap().state.clone();
    for number in 1..=UNSUBSCRIBED_MAX + 1 {
        let (session, scope) = (SESSION, ChangesetScope::Turn(number.to_string()));
        let channel = Channel::new(format!("{uri}{number}"), 0);
        let changeset = Changeset { channel, state: state.clone(), session, scope };
        ledger.channels.changesets.insert(ChangesetKey(number as u64), changeset);
    }
    let subscribed = [ledger.find(&uri).unwrap(), ChangesetKey(1).into()];
    for channel in subscribed {
        ledger.subscribe(ME, channel, Subscription::default());
    }
    settle(&mut changes, &mut ledger);
    assert_eq!(ledger.channels.changesets.len(), UNSUBSCRIBED_MAX + 2);
    ledger.unsubscribe(ME, subscribed[1]);
    settle(&mut changes, &mut ledger);
    assert_eq!(ledger.channels.changesets.len(), UNSUBSCRIBED_MAX + 1);
    assert!(ledger.find(&uri).is_some());
}

#[test]
fn checkpoints_after_the_turns_of_two_chats_are_both_repeated_after_a_restart() {
    let mut folder = CheckpointedFolder::default();
    folder.is_asked = true;
    let taken = Checkpoint { commit: "1".to_owned(), tree: String::new(), left_out: 0, large_bytes: 0 };
    folder.end_request(Ok(taken.clone()), true);
    assert!(folder.is_asked, "another one is in flight");
    folder.end_request(Ok(taken), false);
    assert!(!folder.is_asked);
}

/// Chat of a session of its own in the same folder.
const OTHER: ChatKey = ChatKey(8);

/// Adds [`OTHER`] to a ledger; its agent works on a turn.
fn with_other_chat(ledger: &mut Ledger) {
    let key = SessionKey(7);
    add_session(ledger, "ahp-session:/other", (key, OTHER));
    let session = ledger.channels.sessions.known_mut(key).unwrap();
    session.state.working_directories = Some(vec!["file:///r".to_owned()]);
    let id = ledger.fresh_run();
    let run = Run { phase: RunPhase::Started, ..Run::new(id, "u1".to_owned(), 0) };
    ledger.channels.chats.known_mut(OTHER).unwrap().run = Some(run);
}

/// Returns the report of a checkpoint with this commit in `file:///r`.
fn checkpointed(commit: &str) -> GitReport {
    let checkpoint =
        Checkpoint { commit: commit.to_owned(), tree: String::new(), left_out: 0, large_bytes: 0 };
    let root = "file:///r".to_owned();
    GitReport::Checkpointed { root, checkpoint, since: Vec::new(), incomparable: Vec::new() }
}

/// Begins the turn `t1`, with a checkpoint before it that is reported after `meanwhile`.
fn begin_turn(changes: &mut Changes, ledger: &mut Ledger, meanwhile: impl FnOnce(&mut Ledger)) {
    start_turn(ledger, "t1");
    let asked = jobs(outputs_of(|step| changes.checkpoints.checkpoint_before_turn(ledger, step, CHAT)));
    meanwhile(ledger);
    let waiting = outputs_of(|step| {
        let waiting = changes.git_reports(ledger, step, asked[0].0, checkpointed("1"));
        assert_eq!(waiting, Some(CHAT));
    });
    assert!(waiting.is_empty(), "{waiting:?}");
}

/// Returns whether the turn `t1` overlaps with others, and whether with one of another session.
fn overlaps(ledger: &Ledger) -> (bool, bool) {
    let chat = &ledger.channels.chats.known(CHAT).unwrap().channel.uri;
    let session = ledger.channels.sessions.known(SESSION).unwrap();
    let turn = session.checkpoints.of_turn(chat, "t1", false).unwrap();
    (turn.overlaps, turn.overlaps_others)
}

#[test]
fn turn_overlaps_with_one_that_ended_while_its_checkpoint_was_in_flight() {
    for works in [true, false] {
        let (mut changes, mut ledger) = changes(1000);
        with_other_chat(&mut ledger);
        let end = |ledger: &mut Ledger| ledger.channels.chats.known_mut(OTHER).unwrap().run = None;
        if !works {
            end(&mut ledger);
        }
        begin_turn(&mut changes, &mut ledger, end);
        assert_eq!(overlaps(&ledger), (works, works));
    }
}

#[test]
fn turn_overlaps_with_one_that_begins_before_the_checkpoint_after_it() {
    for is_in_flight in [true, false] {
        let (mut changes, mut ledger) = changes(1000);
        begin_turn(&mut changes, &mut ledger, |_| ());
        let ended = json!({ "type": "chat/turnComplete", "turnId": "t1", "duration": 1 });
        let ended = serde_json::from_value(ended).unwrap();
        outputs_of(|step| ledger.sequence(step, CHAT, ended, None));
        chat(&mut ledger).run = None;
        let asked =
            jobs(outputs_of(|step| changes.checkpoints.checkpoint_after_turn(&mut ledger, step, CHAT)));
        let [(number, ..)] = asked[..] else { panic!("{asked:?}") };
        if !is_in_flight {
            report(&mut changes, &mut ledger, number, checkpointed("2"));
        }
        with_other_chat(&mut ledger);
        changes.checkpoints.note_overlaps(&mut ledger, OTHER, true);
        assert_eq!(overlaps(&ledger), (is_in_flight, is_in_flight));
    }
}

#[test]
fn list_of_too_many_files_is_empty_for_everybody() {
    let file = |name: &str| serde_json::from_value(json!({ "id": name, "edit": {} })).unwrap();
    let shown = state_of(vec![file("a")], None, false);
    let error = |kind: &str| error_info(kind.to_owned(), "why");
    let next = |kind: &str| next_state(&shown, state_of(Vec::new(), Some(error(kind)), false)).files.len();
    assert_eq!((next("changesUnknown"), next("tooManyFiles")), (1, 0));
    assert_eq!(next_state(&shown, state_of(Vec::new(), None, true)).files.len(), 1);
}

#[test]
fn no_job_is_started_where_git_is_not_used() {
    let (mut changes, mut ledger) = changes(0);
    changes.statuses.request_refresh(&mut ledger, SESSION);
    assert_eq!(settle(&mut changes, &mut ledger), []);
    assert!(!changes.checkpoints.has_jobs_to_await());
}

#[test]
fn removal_of_the_checkpoints_of_a_disposed_session_is_retried_three_times() {
    let (mut changes, mut ledger) = changes(1000);
    let checkpoints = &mut ledger.channels.sessions.known_mut(SESSION).unwrap().checkpoints;
    checkpoints.note_repository("file:///r", None);
    checkpoints.namespace = "k".to_owned();
    let mut asked =
        jobs(outputs_of(|step| changes.checkpoints.dispose_checkpoints(&mut ledger, step, SESSION)));
    let mut tries = 0;
    while let Some((number, _, work)) = asked.pop() {
        assert_eq!(work, GitWork::RemoveCheckpoints { namespace: "k".to_owned() });
        assert!(changes.checkpoints.has_jobs_to_await());
        tries += 1;
        asked = report(&mut changes, &mut ledger, number, GitReport::Failed("no time".to_owned()));
    }
    assert_eq!((tries, changes.checkpoints.has_jobs_to_await()), (4, false));
}

#[test]
fn checkpoints_are_removed_from_each_repository_that_the_session_has_used() {
    let (mut changes, mut ledger) = changes(1000);
    let checkpoints = &mut ledger.channels.sessions.known_mut(SESSION).unwrap().checkpoints;
    checkpoints.namespace = "k".to_owned();
    let checkpoint = |commit: &str| Checkpoint {
        commit: commit.to_owned(),
        tree: String::new(),
        left_out: 0,
        large_bytes: 0,
    };
    let turn = |commit: &str| CheckpointedTurn {
        chat: "c".to_owned(),
        turn: commit.to_owned(),
        before: checkpoint(commit),
        after: None,
        overlaps: false,
        overlaps_others: false,
        incomparable: Vec::new(),
    };
    checkpoints.begin_turn("file:///a".to_owned(), true, turn("1"));
    checkpoints.begin_turn("file:///b".to_owned(), true, turn("2"));
    checkpoints.begin_turn("file:///b".to_owned(), true, turn("3"));
    checkpoints.begin_turn_without(None);
    checkpoints.begin_turn("file:///a".to_owned(), true, turn("4"));
    assert_eq!(checkpoints.commit_ids(), ["4"], "those of another repository are of other files");
    let stored = serde_json::to_value(&*checkpoints).unwrap();
    assert_eq!(serde_json::from_value::<CheckpointedFolder>(stored).unwrap(), *checkpoints);
    let asked = jobs(outputs_of(|step| changes.checkpoints.dispose_checkpoints(&mut ledger, step, SESSION)));
    let roots: Vec<&str> = asked.iter().map(|(_, roots, _)| roots[0].as_str()).collect();
    assert_eq!(roots, ["file:///a", "file:///b"]);
    assert!(asked.iter().all(|(.., work)| *work == GitWork::RemoveCheckpoints { namespace: "k".to_owned() }));
}

#[test]
fn incomparable_files_are_those_of_the_turn_of_the_same_chat() {
    let file = |name: &str| IncomparableFile { file: format!("file:///{name}"), version: None };
    let turn = |chat: &str, name: &str| CheckpointedTurn {
        chat: chat.to_owned(),
        turn: "t".to_owned(),
        before: Checkpoint { commit: name.to_owned(), tree: String::new(), left_out: 0, large_bytes: 0 },
        after: None,
        overlaps: false,
        overlaps_others: false,
        incomparable: vec![file(name)],
    };
    let mut checkpoints = CheckpointedFolder::default();
    for (chat, name) in [("one", "a"), ("two", "b")] {
        checkpoints.begin_turn("file:///r".to_owned(), true, turn(chat, name));
    }
    let files = |chat: &str, is_fork| {
        let turn = checkpoints.of_turn(chat, "t", is_fork)?;
        Some(turn.incomparable_files().map(|(file, _)| file.to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(files("one", false).unwrap(), ["file:///a"]);
    assert_eq!(files("two", false).unwrap(), ["file:///b"]);
    assert_eq!((files("three", false), files("three", true).unwrap().len()), (None, 1));
}

#[test]
fn checkpoints_of_a_disposed_chat_are_not_those_of_a_later_one_with_its_uri() {
    let (mut changes, mut ledger) = changes(1000);
    let checkpoint = |commit: &str| Checkpoint {
        commit: commit.to_owned(),
        tree: String::new(),
        left_out: 0,
        large_bytes: 0,
    };
    let begin = |ledger: &mut Ledger, commit: &str| {
        let turn = CheckpointedTurn {
            chat: "c".to_owned(),
            turn: "t".to_owned(),
            before: checkpoint(commit),
            after: None,
            overlaps: false,
            overlaps_others: false,
            incomparable: Vec::new(),
        };
        let checkpoints = &mut ledger.channels.sessions.known_mut(SESSION).unwrap().checkpoints;
        checkpoints.begin_turn("file:///r".to_owned(), true, turn);
    };
    // Two chats in turn are disposed of while the checkpoint after their turn is in flight.
    for (job, before) in [(8, "1"), (9, "3")] {
        begin(&mut ledger, before);
        let purpose = JobPurpose::AfterTurn {
            session: SESSION,
            chat: "c".to_owned(),
            turn: "t".to_owned(),
            since: vec![checkpoint(before)],
        };
        changes.checkpoints.jobs.insert(job, purpose);
        changes.checkpoints.release_chat(&mut ledger, SESSION, "c");
    }
    begin(&mut ledger, "5");
    report(&mut changes, &mut ledger, 8, checkpointed("2"));
    report(&mut changes, &mut ledger, 9, checkpointed("4"));
    let checkpoints = &ledger.channels.sessions.known(SESSION).unwrap().checkpoints;
    let later = checkpoints.of_turn("c", "t", false).unwrap();
    assert_eq!((later.before.commit.as_str(), &later.after), ("5", &None));
    let former = ["1", "2", "3", "4", "5"];
    assert_eq!(checkpoints.commit_ids(), former, "forks and the session still need the former ones");
}

#[test]
fn file_whose_changes_are_being_computed_is_not_marked_as_reviewed() {
    let (mut changes, mut ledger) = changes(0);
    let uri = "ahp-session:/s/changeset/session".to_owned();
    changes.restore_changesets(&mut ledger, [&uri]);
    let channel = ledger.find(&uri).unwrap();
    let key = ChangesetKey(channel.key);
    // The file is shown from before.
    let file = json!({ "id": "file:///r/a", "edit": {} });
    ledger.channels.changesets.known_mut(key).unwrap().state.files =
        vec![serde_json::from_value(file).unwrap()];
    let action = |reviewed: bool| {
        let type_ = "changeset/filesReviewChanged";
        let action = json!({ "type": type_, "files": ["file:///r/a"], "reviewed": reviewed });
        serde_json::from_value(action).unwrap()
    };
    let origin = ActionOrigin { client_id: "c".to_owned(), client_seq: 1 };
    let outputs = outputs_of(|step| {
        let result = changes.review_files(&mut ledger, step, key, action(true), origin);
        assert_eq!(result.err(), Some(Refusal::ChangesPending));
    });
    assert!(outputs.is_empty(), "{outputs:?}");
}

#[test]
fn operation_on_an_unknown_changeset_is_answered_once() {
    let (mut changes, mut ledger) = changes(1000);
    let params =
        json!({ "channel": "ahp-session:/other/changeset/session", "operationId": "discard-changes" });
    let params = serde_json::from_value(params).unwrap();
    let id = RequestId::inner(7);
    assert!(outputs_of(|step| changes.queue_operation(&ledger, step, (ME, id), params)).is_empty());
    assert!(changes.has_operations_for(Some(ME)));
    let outputs = outputs_of(|step| changes.settle(&mut ledger, step));
    assert!(matches!(outputs[..], [Output::Frame(ME, Frame::Error { .. })]), "{outputs:?}");
    assert!(!changes.has_operations_for(None));
    assert!(outputs_of(|step| changes.settle(&mut ledger, step)).is_empty());
}

#[test]
fn operation_after_a_failed_refresh_looks_again() {
    let (mut changes, mut ledger) = changes(1000);
    changes.statuses.request_refresh(&mut ledger, SESSION);
    changes.statuses.status_of(SESSION).unwrap();
    let mut asked = settle(&mut changes, &mut ledger);
    let seen = RepositoryStatus { root: "file:///top".to_owned(), ..RepositoryStatus::default() };
    report(&mut changes, &mut ledger, asked[0].0, GitReport::Status(Box::new(seen.clone())));
    let uri = "ahp-session:/s/changeset/uncommitted".to_owned();
    changes.restore_changesets(&mut ledger, [&uri]);
    let channel = ledger.find(&uri).unwrap();
    ledger.subscribe(ME, channel, Subscription::default());
    changes.statuses.status_subscribed(&mut ledger, channel);
    let outputs = outputs_of(|step| changes.settle(&mut ledger, step));
    for output in &outputs {
        let Output::Watch(watch) = output else { continue };
        assert!(!changes.statuses.refreshed_since(&ledger, SESSION, &mut None), "changes may be missed");
        changes.statuses.repository_watch_started(watch);
    }
    let mut due = jobs(outputs);
    while let Some((number, ..)) = due.first() {
        report(&mut changes, &mut ledger, *number, GitReport::Status(Box::new(seen.clone())));
        due = settle(&mut changes, &mut ledger);
    }
    assert!(changes.statuses.refreshed_since(&ledger, SESSION, &mut None), "it is known");
    changes.statuses.request_refresh(&mut ledger, SESSION);
    asked = settle(&mut changes, &mut ledger);
    report(&mut changes, &mut ledger, asked[0].0, GitReport::Failed("no time".to_owned()));
    assert!(!changes.statuses.refreshed_since(&ledger, SESSION, &mut None));
    assert_eq!(settle(&mut changes, &mut ledger).len(), 1);
}

#[test]
fn watch_that_could_not_start_is_tried_again_with_the_next_subscriber() {
    let (mut changes, mut ledger) = changes(1000);
    changes.statuses.request_refresh(&mut ledger, SESSION);
    changes.statuses.status_of(SESSION).unwrap();
    let asked = settle(&mut changes, &mut ledger);
    report(&mut changes, &mut ledger, asked[0].0, GitReport::Status(Box::new(status_with(&[]))));
    let mut due = settle(&mut changes, &mut ledger);
    let uri = "ahp-session:/s/changeset/uncommitted".to_owned();
    changes.restore_changesets(&mut ledger, [&uri]);
    let channel = ledger.find(&uri).unwrap();
    ledger.subscribe(ME, channel, Subscription::default());
    let mut subscribe = |changes: &mut Changes, ledger: &mut Ledger| -> Vec<String> {
        changes.statuses.status_subscribed(ledger, channel);
        let mut sent = Vec::new();
        loop {
            for (number, ..) in std::mem::take(&mut due) {
                let seen = GitReport::Status(Box::new(status_with(&[])));
                report(changes, ledger, number, seen);
            }
            let outputs = outputs_of(|step| changes.settle(ledger, step));
            sent.extend(outputs.iter().filter_map(|output| match output {
                Output::Watch(watch) => Some(format!("+{watch}")),
                Output::Unwatch(watch) => Some(format!("-{watch}")),
                _ => None,
            }));
            due = jobs(outputs);
            if due.is_empty() {
                return sent;
            }
        }
    };
    let sent = subscribe(&mut changes, &mut ledger);
    let watch = sent[0].strip_prefix('+').unwrap();
    changes.statuses.repository_watch_failed(watch);
    assert_eq!(subscribe(&mut changes, &mut ledger), [format!("-{watch}"), format!("+{watch}")]);
    changes.statuses.repository_watch_started(watch);
    assert_eq!(subscribe(&mut changes, &mut ledger), [""; 0]);
}

/// Returns a status in which these files are not committed.
fn status_with(files: &[&str]) -> RepositoryStatus {
    let file = |name: &&str| FileDiff {
        file: format!("file:///r/{name}"),
        renamed_from: None,
        before: None,
        after: Some(GitContent { blob: "1".to_owned(), mode: 0o100_644 }),
        lines: None,
    };
    let uncommitted = files.iter().map(file).collect();
    RepositoryStatus { root: "file:///r".to_owned(), uncommitted, ..RepositoryStatus::default() }
}

#[test]
fn operation_waits_for_a_refresh_that_starts_after_its_request() {
    let (mut changes, mut ledger) = changes(1000);
    let seen = || GitReport::Status(Box::new(status_with(&[])));
    changes.statuses.request_refresh(&mut ledger, SESSION);
    let earlier = settle(&mut changes, &mut ledger);
    let mut refresh = None;
    assert!(!changes.statuses.refreshed_since(&ledger, SESSION, &mut refresh));
    report(&mut changes, &mut ledger, earlier[0].0, seen());
    let later = settle(&mut changes, &mut ledger);
    assert!(!changes.statuses.refreshed_since(&ledger, SESSION, &mut refresh));
    report(&mut changes, &mut ledger, later[0].0, seen());
    assert!(changes.statuses.refreshed_since(&ledger, SESSION, &mut refresh));
}

#[test]
fn refresh_from_before_an_eviction_does_not_end_the_one_after_it() {
    let (mut changes, mut ledger) = changes(1000);
    changes.statuses.request_refresh(&mut ledger, SESSION);
    let before = settle(&mut changes, &mut ledger);
    changes.statuses.remove(SESSION);
    changes.statuses.restore_status(SESSION, status_with(&["a"]));
    changes.statuses.status_of(SESSION).unwrap();
    changes.statuses.request_refresh(&mut ledger, SESSION);
    let after = settle(&mut changes, &mut ledger);
    let [(_, _, GitWork::Status { files: true, .. })] = &after[..] else { panic!("{after:?}") };
    let mut files_after = |number: u64, seen: &[&str]| {
        let seen = GitReport::Status(Box::new(status_with(seen)));
        report(&mut changes, &mut ledger, number, seen);
        let files = changes.statuses.known_status(SESSION).unwrap().uncommitted.clone();
        (files, changes.statuses.is_status_stale(SESSION))
    };
    // The earlier refresh was one without files.
    assert_eq!(files_after(before[0].0, &[]), (status_with(&["a"]).uncommitted, true));
    assert_eq!(files_after(after[0].0, &["b"]), (status_with(&["b"]).uncommitted, false));
}

#[test]
fn timer_from_before_an_eviction_does_not_end_the_watch_after_it() {
    let (mut changes, mut ledger) = changes(1000);
    let checkpoints = &mut ledger.channels.sessions.known_mut(SESSION).unwrap().checkpoints;
    checkpoints.note_repository("file:///r", None);
    let uri = "ahp-session:/s/changeset/uncommitted".to_owned();
    // Returns the number of the timer that starts when the only subscriber leaves.
    let come_and_go = |changes: &mut Changes, ledger: &mut Ledger| {
        changes.statuses.restore_status(SESSION, status_with(&[]));
        changes.restore_changesets(ledger, [&uri]);
        let channel = ledger.find(&uri).unwrap();
        ledger.subscribe(ME, channel, Subscription::default());
        settle(changes, ledger);
        changes.statuses.status_unsubscribed(ledger, channel);
        ledger.unsubscribe(ME, channel);
        let outputs = outputs_of(|step| changes.settle(ledger, step));
        let number = outputs.iter().find_map(|output| match output {
            Output::Timer(Timer::Linger(SESSION, number), _) => Some(*number),
            _ => None,
        });
        number.unwrap()
    };
    let before = come_and_go(&mut changes, &mut ledger);
    changes.remove_changesets_of(&mut ledger, SESSION);
    let after = come_and_go(&mut changes, &mut ledger);
    let mut ends_watch = |number| {
        changes.statuses.linger_expired(SESSION, number);
        let outputs = outputs_of(|step| changes.settle(&mut ledger, step));
        outputs.iter().any(|output| matches!(output, Output::Unwatch(_)))
    };
    assert_eq!((ends_watch(before), ends_watch(after)), (false, true));
}
