//! Commits of uncommitted changes for a client.
//!
//! Owns: what a commit is that was made so, what it leaves of the user's own, and when it is
//! refused.
//! Never: trusts the answer alone: what was done is asked of git.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use ahp_sidecar::host::effects::{GitReport, GitWork, RepositoryStatus};
use serde_json::{json, Value};

use super::{Repository, Talk, SESSION};
use crate::process::wait_until;

/// A client of a session in a repository, when that is seen.
fn begin(repository: &Repository) -> Talk {
    let mut talk = Talk::begin(repository);
    talk.wait_until_known();
    talk
}

fn commit(talk: &mut Talk, meta: Option<Value>) -> Value {
    let channel = format!("{SESSION}/changeset/uncommitted");
    let mut params = json!({ "channel": channel, "operationId": "commit" });
    if let Some(meta) = meta {
        params["_meta"] = meta;
    }
    talk.ask("invokeChangesetOperation", &params)
}

fn with_message(talk: &mut Talk) -> Value {
    commit(talk, Some(json!({ "message": "All of it\n\nand why\n" })))
}

fn is_refused(answer: &Value, code: i64, why: &str) {
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
}

/// One of each: staged, changed since it was staged, not staged, new, gone, a program, a link, and
/// one that is large.
fn worked_in() -> Repository {
    let repository = Repository::with(&[("edited", "1\n"), ("gone", "x\n"), ("run", "r\n"), ("both", "1\n")]);
    repository.write("both", "2\n");
    repository.write("staged", "s\n");
    repository.git(&["add", "both", "staged"]);
    repository.write("both", "3\n");
    repository.write("edited", "2\n");
    repository.write("dir/new", "n\n");
    repository.write("giant", vec![b'x'; 11 << 20]);
    fs::remove_file(repository.path("gone")).unwrap();
    fs::set_permissions(repository.path("run"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("edited", repository.path("link")).unwrap();
    repository
}

#[test]
fn commit_contains_all_uncommitted_changes_and_runs_no_hook() {
    let repository = worked_in();
    let trace = repository.home.join("trace");
    let program = repository.home.join("program");
    fs::write(&program, format!("#!/bin/sh\ntouch '{}'\nexit 1\n", trace.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for hook in [
        "pre-commit",
        "commit-msg",
        "prepare-commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
    ] {
        fs::create_dir_all(repository.path(".git/hooks")).unwrap();
        fs::copy(&program, repository.path(".git/hooks").join(hook)).unwrap();
    }
    repository.git(&["config", "commit.gpgSign", "true"]);
    repository.git(&["config", "gpg.program", program.to_str().unwrap()]);
    let before = repository.git(&["rev-parse", "HEAD"]);
    let mut talk = begin(&repository);
    let offered = talk.changeset("uncommitted")["operations"].clone();
    let offered = offered.as_array().unwrap().iter().find(|it| it["id"] == "commit").unwrap().clone();
    assert!(offered["confirmation"].as_str().unwrap().contains("No hooks run"), "{offered}");
    let answer = with_message(&mut talk);
    let message = answer["result"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Committed ") && message.ends_with(" on `main`"), "{answer}");
    assert!(!trace.exists());
    fs::remove_dir_all(repository.path(".git/hooks")).unwrap();
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
    assert_eq!(repository.git(&["rev-parse", "HEAD^"]), before);
    assert_eq!(repository.git(&["symbolic-ref", "HEAD"]), "refs/heads/main\n");
    assert_eq!(
        repository.git(&["log", "-1", "--format=%an %ae %cn %ce %G?|%B"]),
        "A a@b A a@b N|All of it\n\nand why\n\n"
    );
    assert_eq!(repository.git(&["reflog", "-1", "--format=%gs"]), "commit: All of it\n");
    let files = repository.git(&["ls-tree", "-r", "--format=%(objectmode) %(path)", "HEAD"]);
    let wanted =
        "100644 both\n100644 dir/new\n100644 edited\n100644 giant\n120000 link\n100755 run\n100644 staged\n";
    assert_eq!(files, wanted);
    assert_eq!(repository.git(&["show", "HEAD:both"]), "3\n");
    // The index is as git would have it: what is changed now is found.
    repository.write("edited", "3\n");
    assert_eq!(repository.git(&["status", "--porcelain"]), " M edited\n");
    repository.git(&["fsck", "--strict"]);
    assert!(!repository.path(".git/index.lock").exists());
    while talk.files(&repository, "uncommitted").len() != 1 {}
}

#[test]
fn commit_without_a_message_uses_the_session_title() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    repository.write("a", "2\n");
    is_refused(&commit(&mut talk, None), -32602, "needs a message");
    talk.turn("t1", "/say hello", || ());
    talk.dispatch(SESSION, &json!({ "type": "session/titleChanged", "title": "Two is better" }));
    let answer = commit(&mut talk, None);
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(repository.git(&["log", "-1", "--format=%B"]), "Two is better\n\n");
    repository.write("a", "3\n");
    for message in [json!(1), json!(" \n"), json!("x".repeat((64 << 10) + 1)), json!("a\0b")] {
        is_refused(&commit(&mut talk, Some(json!({ "message": message }))), -32602, "`_meta.message`");
    }
}

#[test]
fn commit_works_on_no_branch_as_first_commit_and_in_a_worktree() {
    let repository = Repository::empty();
    repository.write("a", "1\n");
    let mut talk = begin(&repository);
    let answer = with_message(&mut talk);
    assert!(answer["result"]["message"].as_str().unwrap_or_default().ends_with(" on `main`"), "{answer}");
    assert_eq!(repository.git(&["rev-list", "--count", "main"]), "1\n");
    repository.git(&["checkout", "-q", "--detach"]);
    repository.write("a", "2\n");
    let answer = with_message(&mut talk);
    assert!(answer["result"]["message"].as_str().unwrap_or_default().ends_with(" on no branch"), "{answer}");
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "2\n");
    assert_eq!(repository.git(&["rev-list", "--count", "main"]), "1\n");
    // In a folder beside the repository's own.
    let mut repository = Repository::with(&[("a", "1\n")]);
    let other = repository.home.join("other");
    repository.git(&["worktree", "add", "-q", "-b", "other", other.to_str().unwrap()]);
    repository.root = other;
    repository.write("a", "2\n");
    let mut talk = begin(&repository);
    let answer = with_message(&mut talk);
    assert!(answer["result"]["message"].as_str().unwrap_or_default().ends_with(" on `other`"), "{answer}");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
}

#[test]
fn commit_is_refused_during_a_merge_with_conflicts_filters_locks_or_no_identity() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    // Where there is nothing, nothing is offered.
    is_refused(&with_message(&mut talk), -32602, "does not offer `commit`");
    repository.merge_with_conflict();
    let theirs = repository.of_the_user();
    is_refused(&with_message(&mut talk), -32011, "a merge is in progress");
    // Neither does a conflict go away when nothing says of what it is.
    fs::remove_file(repository.path(".git/MERGE_HEAD")).unwrap();
    is_refused(&with_message(&mut talk), -32011, "has conflicts");
    repository.write(".git/MERGE_HEAD", repository.git(&["rev-parse", "other"]));
    assert_eq!(repository.of_the_user(), theirs);
    repository.git(&["merge", "--abort"]);
    // A filter makes another file of it.
    repository.write(".gitattributes", "*.large filter=lfs\n");
    repository.commit();
    repository.git(&["config", "filter.lfs.clean", "false"]);
    repository.write("x.large", "x\n");
    is_refused(&with_message(&mut talk), -32011, "needs the filter `lfs`");
    fs::remove_file(repository.path("x.large")).unwrap();
    // Somebody else is at work.
    repository.write("a", "2\n");
    repository.write(".git/index.lock", "");
    let theirs = repository.of_the_user();
    is_refused(&with_message(&mut talk), -32011, "`index.lock` exists");
    assert_eq!(repository.of_the_user(), theirs);
    fs::remove_file(repository.path(".git/index.lock")).unwrap();
    // Nobody knows who it is.
    fs::write(repository.home.join("gitconfig"), "[user]\n useConfigOnly = true\n").unwrap();
    is_refused(&with_message(&mut talk), -32011, "set `user.name` and `user.email`");
    assert!(!repository.path(".git/index.lock").exists());
    fs::write(repository.home.join("gitconfig"), "[user]\n name = A\n email = a@b\n").unwrap();
    // Somebody has left a lock behind, or is about to take it away.
    for lock in [".git/HEAD.lock", ".git/refs/heads/main.lock"] {
        repository.write(lock, "");
        is_refused(&with_message(&mut talk), -32011, "a lock of `HEAD` or of the branch");
        assert_eq!(repository.git(&["status", "--porcelain"]), " M a\n");
        assert!(!repository.path(".git/index.lock").exists());
        fs::remove_file(repository.path(lock)).unwrap();
    }
    // While a turn runs nothing is committed.
    talk.follow(super::CHAT);
    talk.start(super::CHAT, "t1", "/ask go");
    let call = talk.asked(super::CHAT);
    is_refused(&with_message(&mut talk), -32602, "`commit` is not done while a turn runs");
    talk.allow(super::CHAT, "t1", &call);
    talk.until(super::CHAT, |action| action["type"] == "chat/turnComplete");
    let answer = with_message(&mut talk);
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
}

/// Files that changed since they were shown are not committed unseen.
#[test]
fn commit_is_refused_if_files_changed_since_they_were_shown() {
    let repository = Repository::with(&[("a", "1\n"), ("b", "1\n")]);
    let asker = super::model::Asker::new(&repository);
    let shown = || match asker.ask(GitWork::Status { base: None, files: true, touched: None }) {
        GitReport::Status(seen) => seen,
        other => panic!("{other:?}"),
    };
    let commit = |shown: &RepositoryStatus| {
        let (shown, staged_retained) = (shown.uncommitted.clone(), ("k".to_owned(), 1));
        asker.ask(GitWork::Commit { message: "x".to_owned(), shown, staged_retained })
    };
    repository.write("a", "2\n");
    repository.write("giant", vec![b'x'; 11 << 20]);
    let changes: [fn(&Repository); 5] = [
        |repository| repository.write("a", "3\n"),
        |repository| repository.write("b", "3\n"),
        |repository| repository.write("new", "3\n"),
        |repository| fs::remove_file(repository.path("giant")).unwrap(),
        // Only its name was shown, and still it is another one.
        |repository| repository.write("giant", vec![b'y'; 11 << 20]),
    ];
    for change in changes {
        let before = shown();
        change(&repository);
        let report = commit(&before);
        assert!(
            matches!(&report, GitReport::NotCommitted(why) if why.contains("files have changed since")),
            "{report:?}"
        );
        repository.write("a", "2\n");
        repository.write("b", "1\n");
        repository.write("giant", vec![b'x'; 11 << 20]);
        fs::remove_file(repository.path("new")).unwrap_or_default();
    }
    assert!(matches!(commit(&shown()), GitReport::Committed(_)));
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "2\n");
}

/// A host whose looks at the repository wait while a file is there, and whose client sees what is
/// not committed.
fn watched_slowly(repository: &Repository) -> (Talk, std::path::PathBuf, std::path::PathBuf) {
    let (blocks, waits) = (repository.home.join("blocks"), repository.home.join("waits"));
    let script = format!(
        "case \"$*\" in *status*) while [ -e '{0}' ]; do : >'{1}'; sleep 0.01; done;; esac\nexec $GIT \"$@\"",
        blocks.display(),
        waits.display()
    );
    let mut talk = Talk::open(repository, &[("PATH", &super::instead_of_git(repository, &script))]);
    talk.create(SESSION, &repository.root);
    talk.wait_until_known();
    assert_eq!(talk.changeset("uncommitted")["status"], "ready");
    let followed = talk.follow(&format!("{SESSION}/changeset/uncommitted"));
    assert!(followed["status"] == "ready" || followed["status"] == "recomputing", "{followed}");
    (talk, blocks, waits)
}

/// Requests an operation after a change of files that the client has not seen: returns the answer.
fn ask_unseen(repository: &Repository, operation: &str, change: impl FnOnce()) -> (Talk, Value) {
    let (mut talk, blocks, waits) = watched_slowly(repository);
    fs::write(&blocks, "").unwrap();
    // A look begins, and waits. One that has begun before the change might have told of it.
    let touched = fs::File::options().write(true).open(repository.path("a")).unwrap();
    touched.set_modified(std::time::SystemTime::now()).unwrap();
    wait_until("git waits", || waits.exists());
    change();
    let channel = format!("{SESSION}/changeset/uncommitted");
    let params = json!({ "channel": channel, "operationId": operation, "_meta": { "message": "x" } });
    let request =
        json!({ "jsonrpc": "2.0", "id": 1000, "method": "invokeChangesetOperation", "params": params });
    talk.process.say(&request.to_string());
    talk.ask("ping", &json!({ "channel": "ahp-root://" }));
    fs::remove_file(blocks).unwrap();
    let answer = talk.process.until(|message| message["id"] == 1000).pop().unwrap();
    (talk, answer)
}

#[test]
fn changes_unseen_by_the_client_are_neither_committed_nor_discarded() {
    let changed = || {
        let repository = Repository::with(&[("a", "1\n"), ("b", "1\n")]);
        repository.write("a", "2\n");
        repository.write("b", "2\n");
        repository
    };
    let repository = changed();
    let (mut talk, answer) = ask_unseen(&repository, "commit", || repository.write("new", "n\n"));
    is_refused(&answer, -32011, "files have changed since you saw the list");
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "1\n");
    // Now it has.
    talk.files(&repository, "uncommitted");
    assert!(with_message(&mut talk)["result"].is_object());
    assert_eq!(repository.git(&["status", "--porcelain"]), "");

    let repository = changed();
    let (_talk, answer) = ask_unseen(&repository, "discard-changes", || {
        repository.write("b", "3\n");
        repository.write("new", "n\n");
    });
    let message = answer["result"]["message"].as_str().unwrap();
    assert!(
        message.contains("/b`: it has changed since you saw it") && message.contains("/new`"),
        "{message}"
    );
    assert_eq!(["a", "b", "new"].map(|name| repository.read(name)), ["1\n", "3\n", "n\n"]);
}

/// A host is killed in the middle of a commit, when git does this for it instead of moving the
/// branch.
fn killed_committing(does: &str, is_detached: bool) -> (Repository, String, String) {
    let repository = worked_in();
    if is_detached {
        repository.git(&["checkout", "-q", "--detach"]);
    }
    let there = repository.home.join("there");
    let script = format!(
        "case \"$*\" in *'update-ref -m'*) [ -e '{0}' ] || {{ {does}; }};; esac\nexec $GIT \"$@\"",
        there.display()
    );
    let script = script.replace("THERE", &format!("'{}'", there.display()));
    let script = script.replace("GO", &format!("'{}'", repository.home.join("go").display()));
    let path = super::instead_of_git(&repository, &script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.wait_until_known();
    talk.changeset("uncommitted");
    let params = json!({
        "channel": format!("{SESSION}/changeset/uncommitted"), "operationId": "commit", "_meta": { "message": "x" },
    });
    let request =
        json!({ "jsonrpc": "2.0", "id": 900, "method": "invokeChangesetOperation", "params": params });
    let status = repository.git(&["status", "--porcelain"]);
    talk.process.say(&request.to_string());
    wait_until("git is started", || there.exists());
    assert!(repository.path(".git/index.lock").exists() && repository.path(".git/HEAD.lock").exists());
    talk.process.child.kill().unwrap();
    fs::write(repository.home.join("go"), "").unwrap();
    talk.process.wait();
    (repository, path, status)
}

#[test]
fn commit_is_refused_if_a_rebase_begins_before_the_locks_are_taken() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("new", "n\n");
    let script = "case \"$*\" in *commit-tree*) mkdir .git/rebase-merge;; esac\nexec $GIT \"$@\"";
    let path = super::instead_of_git(&repository, script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.wait_until_known();
    let channel = format!("{SESSION}/changeset/uncommitted");
    talk.changeset("uncommitted");
    talk.follow(&channel);
    let params = json!({ "channel": channel, "operationId": "commit", "_meta": { "message": "x" } });
    let answer = talk.ask("invokeChangesetOperation", &params);
    let told = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(told.ends_with("a rebase is in progress in the repository"), "{answer}");
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "1\n");
    assert_eq!(repository.git(&["status", "--porcelain"]), "?? new\n");
}

/// With the next host the commit is made, or not: also where git hangs when it is checked out, or
/// is about to be.
#[test]
fn commit_interrupted_by_a_host_kill_is_completed_or_undone_by_the_next_host() {
    let (behind, before) = ("$GIT \"$@\"; : > THERE; exec sleep 1000", ": > THERE; exec sleep 1000");
    // Without a branch, it is the host that moves `HEAD` when git is done.
    for (is_made, is_detached, does) in
        [(true, false, behind), (false, false, before), (false, true, behind), (false, true, before)]
    {
        let (repository, path, status) = killed_committing(does, is_detached);
        let mut talk = Talk::open(&repository, &[("PATH", &path)]);
        talk.follow(SESSION);
        let shown = talk.changeset("uncommitted");
        let is_locked = ["index", "HEAD"].map(|name| repository.path(&format!(".git/{name}.lock")).exists());
        assert_eq!(is_locked, [false; 2], "{shown}");
        assert_eq!(repository.git(&["status", "--porcelain"]), if is_made { "" } else { &status });
        if !is_made {
            assert!(with_message(&mut talk)["result"].is_object());
        }
        assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "2\n");
        assert_eq!(repository.git(&["status", "--porcelain"]), "");
    }
}

/// A nearly complete commit is finished: no lock is left, although no other host starts. On a busy
/// machine git may not be done in the time that it has then.
#[test]
fn commit_nearly_complete_when_the_host_is_killed_is_completed() {
    let commit = || {
        let killed = killed_committing(": > THERE; while [ ! -e GO ]; do sleep 0.01; done", false).0;
        let start = Instant::now();
        let is_locked = || killed.path(".git/index.lock").exists();
        while is_locked() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        (!is_locked()).then_some(killed)
    };
    let repository = (0..10).find_map(|_| commit()).expect("the lock is gone");
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "2\n");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
}

#[test]
fn commit_whose_reflog_is_a_link_is_refused() {
    for name in ["logs", "logs/HEAD", "logs/refs/heads/main"] {
        let repository = Repository::with(&[("a", "1\n")]);
        repository.write("a", "2\n");
        let (path, elsewhere) = (repository.path(".git").join(name), repository.home.join("elsewhere"));
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let before = repository.git(&["reflog", "--all"]);
        let mut talk = begin(&repository);
        talk.changeset("uncommitted");
        is_refused(&with_message(&mut talk), -32011, "is a symbolic link");
        assert_eq!(repository.git(&["reflog", "--all"]), before, "{name}");
    }
}

#[test]
fn commit_in_a_cherry_pick_of_a_repository_with_a_table_of_refs_is_refused() {
    let repository = Repository::empty();
    fs::remove_dir_all(repository.path(".git")).unwrap();
    let arguments = ["init", "-q", "--ref-format=reftable"];
    if !repository.try_git_in(&repository.root, &arguments).status.success() {
        return super::say("not tried: this git knows no tables of refs");
    }
    repository.write("a", "1\n");
    repository.commit();
    repository.git(&["checkout", "-q", "-b", "other"]);
    repository.write("a", "2\n");
    repository.commit();
    repository.git(&["checkout", "-q", "-"]);
    repository.write("a", "3\n");
    repository.commit();
    let picked = repository.try_git_in(&repository.root, &["cherry-pick", "other"]);
    assert!(!picked.status.success());
    repository.write("a", "2 and 3\n");
    repository.git(&["add", "a"]);
    let mut talk = begin(&repository);
    talk.changeset("uncommitted");
    is_refused(&with_message(&mut talk), -32011, "a cherry-pick is in progress");
}

/// The branch is moved, and then the index cannot be replaced.
#[test]
fn commit_made_without_its_index_says_so() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("a", "2\n");
    let script = "case \"$*\" in *'update-ref -m'*) rm .git/index; mkdir .git/index;; esac\nexec $GIT \"$@\"";
    let path = super::instead_of_git(&repository, script);
    let asker = super::model::Asker::found_in(&repository, path.as_ref());
    let GitReport::Status(seen) = asker.ask(GitWork::Status { base: None, files: true, touched: None })
    else {
        panic!("nothing is seen");
    };
    let (shown, staged_retained) = (seen.uncommitted, ("k".to_owned(), 1));
    let report = asker.ask(GitWork::Commit { message: "x".to_owned(), shown, staged_retained });
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "2\n");
    let GitReport::Failed(why) = report else { panic!("{report:?}") };
    assert!(why.contains("was committed") && why.contains("git reset"), "{why}");
}
