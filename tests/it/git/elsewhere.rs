//! Sessions that come from elsewhere: out of an export, and out of the trash.
//!
//! Owns: that each keeps what it knows of the folder for itself, so that none loses it with another
//! one.
//! Never: has two hosts at work at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::json;

use super::{changed, environment, Repository, Talk, SESSION};
use crate::support::program;

/// Runs `ahp-sidecar sessions` on a state folder.
fn sessions(repository: &Repository, state: &Path, arguments: &[&str]) -> Output {
    let mut command = program();
    command.arg("sessions").args(arguments).arg("--state-dir").arg(state);
    let output = command.envs(environment(&repository.home)).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A host ends, and what it was asked to do is done.
fn leave(mut talk: Talk) {
    talk.process.end();
    talk.process.rest();
    assert!(talk.process.wait().success());
}

/// A session with two turns, of which the second one was taken back.
fn with_a_session() -> Repository {
    let repository = Repository::with(&[("a", "0\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files a=1", || {});
    talk.turn("t2", "/files new=2", || {});
    assert_eq!(talk.invoke("turn/t2", "discard-changes", None)["result"], json!({}));
    talk.changeset("session");
    leave(talk);
    repository
}

/// Deletes all objects that git does not need.
fn prune(repository: &Repository) {
    repository.git(&["reflog", "expire", "--expire=now", "--all"]);
    repository.git(&["gc", "-q", "--prune=now"]);
}

/// Checks that the changes of the session's turns are known, and that the second turn can be
/// restored.
fn check_turns_are_restorable(repository: &Repository) {
    let mut talk = Talk::open(repository, &[]);
    talk.follow(SESSION);
    assert_eq!(talk.files(repository, "turn/t1"), [changed("a", "0\n", "1\n", (1, 1))]);
    assert!(!repository.path("new").exists());
    assert_eq!(talk.invoke("turn/t2", "restore-changes", None)["result"], json!({}));
    assert_eq!(repository.read("new"), "2\n");
    leave(talk);
}

/// The session is brought in by an export into another state folder, which is the one that is used
/// from here on; the first.
fn import_elsewhere(repository: &mut Repository) -> PathBuf {
    let export = repository.home.join("export.jsonl");
    fs::write(&export, sessions(repository, &repository.state, &["export", SESSION]).stdout).unwrap();
    let second = repository.home.join("other state");
    let first = std::mem::replace(&mut repository.state, second.clone());
    leave(Talk::open(repository, &[]));
    sessions(repository, &second, &["restore", "--from", export.to_str().unwrap()]);
    first
}

#[test]
fn disposing_of_an_imported_session_retains_the_checkpoints_of_the_original() {
    let mut repository = with_a_session();
    let of_the_first = repository.our_refs();
    let first = import_elsewhere(&mut repository);
    let mut talk = Talk::open(&repository, &[]);
    talk.follow(SESSION);
    // It has the same from here on, and more of its own.
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("a", "0\n", "1\n", (1, 1))]);
    talk.turn("t3", "/files a=3", || {});
    talk.changeset("session");
    let of_both = repository.our_refs();
    assert!(of_the_first.iter().all(|name| of_both.contains(name)), "{of_both:?}");
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    leave(talk);
    assert_eq!(repository.our_refs(), of_the_first);
    repository.write("a", "1\n");
    prune(&repository);
    repository.state = first;
    check_turns_are_restorable(&repository);
}

#[test]
fn disposing_of_the_original_session_retains_the_checkpoints_of_its_import() {
    let mut repository = with_a_session();
    let first = import_elsewhere(&mut repository);
    let mut talk = Talk::open(&repository, &[]);
    talk.follow(SESSION);
    talk.changeset("session");
    leave(talk);
    let second = std::mem::replace(&mut repository.state, first);
    let mut talk = Talk::open(&repository, &[]);
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    leave(talk);
    prune(&repository);
    repository.state = second;
    check_turns_are_restorable(&repository);
}

#[test]
fn session_restored_from_the_trash_is_checkpointed_again() {
    let repository = with_a_session();
    let mut talk = Talk::open(&repository, &[]);
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    leave(talk);
    assert_eq!(repository.our_refs(), [""; 0]);
    sessions(&repository, &repository.state, &["restore", SESSION]);
    let mut talk = Talk::open(&repository, &[]);
    talk.follow(SESSION);
    talk.changeset("session");
    leave(talk);
    prune(&repository);
    check_turns_are_restorable(&repository);
}
