//! Filters of the user's configuration that the operator has named.
//!
//! Owns: that these run wherever git reads or writes a file, as the user has configured them.
//! Never: needs a filter that is installed.

use std::fs;
use std::io::Write;

use serde_json::json;

use super::{changed, environment, Repository, Talk};
use crate::support::program;

/// A repository whose files `*.x` go through the filters `named` and `unnamed` of the user: what is
/// stored has upper-case letters. The repository itself has other programs for them.
fn filtered() -> Repository {
    let repository = Repository::empty();
    let config = repository.home.join("gitconfig");
    let mut config = fs::File::options().append(true).open(config).unwrap();
    for name in ["named", "unnamed"] {
        writeln!(config, "[filter \"{name}\"]\n clean = tr a-z A-Z\n smudge = tr A-Z a-z\n required = true")
            .unwrap();
    }
    repository.write(".gitattributes", "*.x filter=named\n*.y filter=unnamed\n");
    for name in ["a.x", "b.x"] {
        repository.write(name, "one\n");
    }
    repository.commit();
    for name in ["filter.named.clean", "filter.named.smudge", "filter.named.process"] {
        repository.git(&["config", name, "touch ran; cat"]);
    }
    repository
}

fn begin(repository: &Repository, arguments: &[&str]) -> Talk {
    let mut command = program();
    command.arg("--state-dir").arg(&repository.state).arg("--exclusive").args(arguments);
    command.envs(environment(&repository.home));
    let mut talk = Talk::with(command);
    talk.create(super::SESSION, &repository.root);
    talk.wait_until_known();
    talk
}

fn commit(talk: &mut Talk) -> String {
    let channel = format!("{}/changeset/uncommitted", super::SESSION);
    talk.changeset("uncommitted");
    talk.follow(&channel);
    let params = json!({ "channel": channel, "operationId": "commit", "_meta": { "message": "m" } });
    talk.ask("invokeChangesetOperation", &params).to_string()
}

#[test]
fn named_filter_runs_in_status_turns_discard_restore_and_commit() {
    let repository = filtered();
    let mut talk = begin(&repository, &["--git-filter", "named"]);
    talk.turn("t1", "/files a.x=two", || repository.write("new.x", "new\n"));
    let wanted = [changed("new.x", "", "new\n", (1, 0)), changed("a.x", "one\n", "two\n", (1, 1))];
    assert_eq!(talk.files(&repository, "turn/t1"), wanted);
    assert_eq!(talk.invoke("turn/t1", "discard-changes", None)["result"], json!({}));
    assert_eq!((repository.read("a.x").as_str(), repository.path("new.x").exists()), ("one\n", false));
    assert_eq!(talk.invoke("turn/t1", "restore-changes", None)["result"], json!({}));
    assert_eq!((&*repository.read("a.x"), &*repository.read("new.x")), ("two\n", "new\n"));
    let answer = commit(&mut talk);
    assert!(answer.contains("Committed "), "{answer}");
    assert_eq!(repository.git(&["cat-file", "blob", "HEAD:new.x"]), "NEW\n");
    assert_eq!(repository.git(&["cat-file", "blob", "HEAD:a.x"]), "TWO\n");
    assert!(!repository.path("ran").exists(), "a program of the repository's configuration ran");
}

#[test]
fn linked_lfs_folder_disables_git_for_the_repository() {
    let repository = filtered();
    let config = repository.home.join("gitconfig");
    let mut config = fs::File::options().append(true).open(config).unwrap();
    writeln!(config, "[filter \"lfs\"]\n clean = cat\n smudge = cat").unwrap();
    std::os::unix::fs::symlink(&repository.home, repository.path(".git/lfs")).unwrap();
    let mut command = program();
    command.arg("--state-dir").arg(&repository.state).args(["--exclusive", "--git-filter", "lfs"]);
    command.envs(environment(&repository.home));
    let mut talk = Talk::with(command);
    talk.create(super::SESSION, &repository.root);
    talk.turn("t1", "/files a.x=two", || {});
    let told = talk.rows().into_values().collect::<String>();
    assert!(told.contains("/.git/lfs` is a symbolic link"), "{told}");
}

#[test]
fn filters_not_named_by_the_operator_do_not_run() {
    for arguments in [&[][..], &["--git-filter", "other"]] {
        let repository = filtered();
        let mut talk = begin(&repository, arguments);
        repository.write("a.x", "two\n");
        let answer = commit(&mut talk);
        assert!(answer.contains("needs the filter `named`, which the host does not run"), "{answer}");
        assert!(!repository.path("ran").exists());
    }
    let repository = filtered();
    let mut talk = begin(&repository, &["--git-filter", "named"]);
    repository.write("b.y", "two\n");
    let answer = commit(&mut talk);
    assert!(answer.contains("needs the filter `unnamed`, which the host does not run"), "{answer}");
}
