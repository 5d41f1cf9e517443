//! A file that takes the place of a folder, a folder that takes that of a file, and links that do.
//!
//! Owns: what becomes of them when all of it is taken back and brought back, and when a part of it
//! is.
//! Never: lets a file be written through a link that was not there.

use std::fs;
use std::os::unix::fs::symlink;

use super::model::copy_of;
use super::{uri, Repository, Talk};

fn swapped() -> (Repository, Talk) {
    let files =
        [("d/x", "one\n"), ("d/e/y", "two\n"), ("f", "three\n"), ("l/x", "four\n"), ("m/x", "five\n")];
    let repository = Repository::with(&files);
    symlink("m", repository.path("k")).unwrap();
    repository.commit();
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/say hello", || {
        fs::remove_dir_all(repository.path("d")).unwrap();
        repository.write("d", "a file\n");
        fs::remove_file(repository.path("f")).unwrap();
        repository.write("f/g/h", "in a folder\n");
        fs::create_dir_all(repository.path("f/empty/too")).unwrap();
        fs::remove_dir_all(repository.path("l")).unwrap();
        symlink("./m", repository.path("l")).unwrap();
        fs::remove_file(repository.path("k")).unwrap();
        repository.write("k/x", "no link\n");
    });
    let state = talk.changeset("turn/t1");
    assert_eq!(state["files"].as_array().unwrap().len(), 9, "{state}");
    (repository, talk)
}

#[test]
fn file_and_folder_that_replaced_each_other_are_discarded_and_restored() {
    for what in ["turn/t1", "session", "uncommitted"] {
        let (repository, mut talk) = swapped();
        let after = copy_of(&repository);
        let taken = talk.invoke(what, "discard-changes", None);
        assert_eq!(taken["result"], serde_json::json!({}), "{what}: {taken}");
        assert_eq!(repository.git(&["status", "--porcelain"]), "", "{what}");
        let brought = talk.invoke(what, "restore-changes", None);
        assert_eq!(brought["result"], serde_json::json!({}), "{what}: {brought}");
        assert_eq!(copy_of(&repository), after, "{what}");
    }
}

#[test]
fn file_blocked_by_another_one_is_not_discarded_and_link_targets_are_unchanged() {
    let (repository, mut talk) = swapped();
    let after = copy_of(&repository);
    let ways = [
        ("d/x", "is in the place of its folder"),
        ("l/x", "is in the place of its folder"),
        ("f", "a folder with other files in it has taken its place"),
        ("k", "a folder with other files in it has taken its place"),
    ];
    for (name, why) in ways {
        let answer = talk.invoke("turn/t1", "discard-changes", Some(&uri(&repository.path(name))));
        assert_eq!(answer["error"]["code"], -32011, "{name}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{name}: {answer}");
        assert_eq!(copy_of(&repository), after, "{name}");
    }
    assert_eq!(repository.read("m/x"), "five\n");
}

#[test]
fn file_is_not_discarded_if_its_link_cannot_be_created() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("target", "x".repeat(5000));
    let target = repository.git(&["hash-object", "-w", "target"]);
    fs::remove_file(repository.path("target")).unwrap();
    repository.git(&["update-index", "--add", "--cacheinfo", &format!("120000,{},link", target.trim())]);
    repository.git(&["commit", "-q", "-m", "a link with a name that is too long"]);
    repository.write("link", "no link\n");
    let mut talk = Talk::begin(&repository);
    talk.until(super::SESSION, |action| action["type"] == "session/changesetsChanged");
    for target in [Some(uri(&repository.path("link"))), None] {
        let answer = talk.invoke("uncommitted", "discard-changes", target.as_deref());
        assert_eq!(answer["error"]["code"], -32011, "{answer}");
        assert_eq!(repository.read("link"), "no link\n");
        assert_eq!(fs::read_dir(&repository.root).unwrap().count(), 3, "nothing is left beside it");
    }
}

#[test]
fn conflicted_file_replaced_by_a_folder_is_discarded_and_restored() {
    let repository = Repository::with(&[("a", "1\n"), ("b", "1\n")]);
    repository.merge_with_conflict();
    let theirs = repository.of_the_user();
    let mut talk = Talk::begin(&repository);
    let before = copy_of(&repository);
    talk.turn("t1", "/say hello", || {
        fs::remove_file(repository.path("a")).unwrap();
        repository.write("a/x", "in a folder\n");
    });
    let after = copy_of(&repository);
    // So it is in the next one, whose beginning finds the folder.
    talk.turn("t2", "/say hello", || repository.write("b", "2\n"));
    assert_eq!(talk.files(&repository, "turn/t2"), [super::changed("b", "1\n", "2\n", (1, 1))]);
    repository.write("b", "1\n");
    let taken = talk.invoke("turn/t1", "discard-changes", None);
    assert_eq!(taken["result"], serde_json::json!({}), "{taken}");
    assert_eq!(copy_of(&repository), before);
    let brought = talk.invoke("turn/t1", "restore-changes", None);
    assert_eq!(brought["result"], serde_json::json!({}), "{brought}");
    assert_eq!(copy_of(&repository), after);
    assert_eq!(repository.of_the_user(), theirs);
}
