//! What is not committed is committed for a client.
//!
//! Owns: what a commit is that was made so, what it leaves of the user's own, and when it is refused.
//! Never: trusts the answer alone: what was done is asked of git.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ahp_sidecar::host::effects::{GitReport, GitSight, GitWork};
use serde_json::{json, Value};

use super::{Repository, Talk, SESSION};

/// A client of a session in a repository, when that is seen.
fn begin(repository: &Repository) -> Talk {
    let mut talk = Talk::begin(repository);
    while !talk.rows().contains_key("uncommitted") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    talk
}

/// Asks once, whatever the changeset shows.
fn commit_once(talk: &mut Talk, meta: Option<Value>) -> Value {
    let channel = format!("{SESSION}/changeset/uncommitted");
    let mut params = json!({ "channel": channel, "operationId": "commit" });
    if let Some(meta) = meta {
        params["_meta"] = meta;
    }
    talk.ask("invokeChangesetOperation", &params)
}

/// Asks as somebody does who has seen the changeset: once more where it has become another one by that.
fn commit(talk: &mut Talk, meta: Option<Value>) -> Value {
    talk.changeset("uncommitted");
    let answer = commit_once(talk, meta.clone());
    let is_told_anew = answer["error"]["message"].as_str().is_some_and(|why| why.ends_with("changed since"));
    if is_told_anew {
        commit_once(talk, meta)
    } else {
        answer
    }
}

fn with_message(talk: &mut Talk) -> Value {
    commit(talk, Some(json!({ "message": "All of it\n\nand why\n" })))
}

fn is_refused(answer: &Value, code: i64, why: &str) {
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
}

/// One of each: staged, changed since it was staged, not staged, new, gone, a program, a link, and one that is large.
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
fn all_that_is_not_committed_becomes_a_commit_of_the_users() {
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
    assert!(offered["confirmation"].as_str().unwrap().contains("No hooks are run"), "{offered}");
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
fn the_name_of_the_session_is_the_message_where_none_is_given() {
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
fn a_commit_without_a_branch_and_the_first_one_are_made() {
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
fn what_cannot_be_committed_as_it_is_stays() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    // Where there is nothing, nothing is offered.
    is_refused(&with_message(&mut talk), -32602, "does not offer `commit`");
    repository.merge_with_conflict();
    let theirs = repository.of_the_user();
    is_refused(&with_message(&mut talk), -32011, "a merge is under way");
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
    is_refused(&with_message(&mut talk), -32011, "goes through the filter `lfs`");
    fs::remove_file(repository.path("x.large")).unwrap();
    // Somebody else is at work.
    repository.write("a", "2\n");
    repository.write(".git/index.lock", "");
    let theirs = repository.of_the_user();
    is_refused(&with_message(&mut talk), -32011, "`index.lock` is there");
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
    is_refused(&with_message(&mut talk), -32602, "does not offer `commit`");
    talk.allow(super::CHAT, "t1", &call);
    talk.until(super::CHAT, |action| action["type"] == "chat/turnComplete");
    let answer = with_message(&mut talk);
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
}

/// What has changed since somebody has seen it is not committed unseen.
#[test]
fn only_what_was_shown_is_committed() {
    let repository = Repository::with(&[("a", "1\n"), ("b", "1\n")]);
    let asker = super::model::Asker::new(&repository);
    let shown = || match asker.ask(GitWork::Look { base: None, files: true }) {
        GitReport::Seen(seen) => seen,
        other => panic!("{other:?}"),
    };
    let commit = |shown: &GitSight| {
        let (shown, versions) = (shown.uncommitted.clone(), shown.versions.clone());
        asker.ask(GitWork::Commit { message: "x".to_owned(), shown, versions })
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
            matches!(&report, GitReport::NotCommitted(why) if why == "files were changed since"),
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

/// A file that is written when the request is there already, and before it is looked at what there is.
#[test]
fn what_is_written_when_it_was_asked_for_is_not_committed() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("a", "2\n");
    // The next run of git comes too late, as often as that is asked for.
    let (armed, later) = (repository.home.join("armed"), repository.path("later"));
    let script = format!(
        "mv '{0}' '{0}.done' 2> /dev/null && echo x >> '{1}'\nexec \"$GIT\" \"$@\"",
        armed.display(),
        later.display()
    );
    let path = super::instead_of_git(&repository, &script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    while !talk.rows().contains_key("uncommitted") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let names = |talk: &mut Talk| -> Vec<String> {
        let state = talk.changeset("uncommitted");
        let files = state["files"].as_array().unwrap().iter();
        files.map(|file| file["id"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&mut talk), ["a"]);
    let message = || Some(json!({ "message": "x" }));
    for shown_then in [vec!["a", "later"], vec!["a", "later"]] {
        // An operation that is not offered is answered when nothing is looked at any more.
        is_refused(&talk.invoke("uncommitted", "restore-changes", None), -32602, "does not offer");
        fs::write(&armed, "").unwrap();
        is_refused(&commit_once(&mut talk, message()), -32011, "files were changed since");
        assert!(!armed.exists());
        assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "1\n");
        // It is shown by then, and what is shown is committed.
        assert_eq!(names(&mut talk), shown_then);
    }
    let answer = commit_once(&mut talk, message());
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
    assert_eq!(repository.read("later"), "x\nx\n");
}

#[test]
fn what_nobody_was_shown_is_not_committed() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("a", "2\n");
    let mut talk = begin(&repository);
    is_refused(&commit_once(&mut talk, Some(json!({ "message": "x" }))), -32602, "showed no files yet");
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "1\n");
    let answer = with_message(&mut talk);
    assert!(answer["result"].is_object(), "{answer}");
}
