//! Files that git changes on their way into the folder: taken back and brought back byte by byte.
//!
//! Owns: each way in which git changes a file without a program: ends of lines by configuration and
//! by attributes, and keywords.
//! Never: says what git makes of a file: that is what git makes of it.

use std::fs;

use serde_json::json;

use super::{Repository, Talk};

/// Bytes that git gives back otherwise in at least one of the ways.
const ODD: [&[u8]; 4] = [b"1\n2\n", b"1\r\n2\r\n", b"1\n2\r\n3\n", b"$Id: mine $\n1\r\n"];

/// Files that are there, and are changed so, or are not there, and are made so.
fn names() -> impl Iterator<Item = (String, &'static [u8])> {
    let all = ["edited", "new"]
        .into_iter()
        .flat_map(|kind| ODD.iter().enumerate().map(move |(number, odd)| (format!("{kind} {number}"), *odd)));
    all
}

fn configured(attributes: &str, autocrlf: &str) -> Repository {
    let repository = Repository::with(&[("removed", "r\n"), ("same", "x\n")]);
    for (name, _) in names().take(ODD.len()) {
        repository.write(&name, "0\n$Id$\n");
    }
    repository.git(&["config", "core.autocrlf", autocrlf]);
    repository.write(".gitattributes", attributes);
    repository.commit();
    // As git has it then.
    repository.git(&["rm", "-q", "-r", "--cached", "."]);
    repository.git(&["reset", "-q", "--hard"]);
    repository
}

fn for_each_setting(try_it: impl Fn(&Repository)) {
    let ways = [
        ("* -text\n", "false"),
        ("", "true"),
        ("", "input"),
        ("* text eol=crlf\n", "false"),
        ("* text=auto\n", "true"),
        ("* ident\n", "false"),
    ];
    for (attributes, autocrlf) in ways {
        try_it(&configured(attributes, autocrlf));
    }
}

/// The bytes of all files that are there.
fn bytes_of_all_files(repository: &Repository) -> Vec<(String, Option<Vec<u8>>)> {
    let all = names().map(|(name, _)| name).chain(["removed".to_owned()]);
    all.map(|name| (name.clone(), fs::read(repository.path(&name)).ok())).collect()
}

fn change(repository: &Repository) {
    for (name, odd) in names() {
        repository.write(&name, odd);
    }
    fs::remove_file(repository.path("removed")).unwrap();
}

#[test]
fn restored_turn_has_its_exact_bytes() {
    for_each_setting(|repository| {
        let before = bytes_of_all_files(repository);
        let mut talk = Talk::begin(repository);
        talk.turn("t1", "/say x", || change(repository));
        let after = bytes_of_all_files(repository);
        talk.changeset("turn/t1");
        let answer = talk.invoke("turn/t1", "discard-changes", None);
        assert_eq!(answer["result"], json!({}), "{answer}");
        assert_eq!(bytes_of_all_files(repository), before);
        // Neither a death nor git takes them away.
        talk.process.child.kill().unwrap();
        talk.process.wait();
        repository.git(&["gc", "-q", "--prune=now"]);
        let mut talk = Talk::open(repository, &[]);
        let answer = talk.invoke("turn/t1", "restore-changes", None);
        assert_eq!(answer["result"], json!({}), "{answer}");
        assert_eq!(bytes_of_all_files(repository), after);
    });
}

#[test]
fn restored_uncommitted_changes_have_their_exact_bytes() {
    for_each_setting(|repository| {
        change(repository);
        let before = bytes_of_all_files(repository);
        let mut talk = Talk::begin(repository);
        talk.wait_until_known();
        let answer = talk.invoke("uncommitted", "discard-changes", None);
        assert_eq!(answer["result"], json!({}), "{answer}");
        assert_eq!(repository.git(&["status", "--porcelain"]), "");
        repository.git(&["gc", "-q", "--prune=now"]);
        let answer = talk.invoke("uncommitted", "restore-changes", None);
        assert_eq!(answer["result"], json!({}), "{answer}");
        assert_eq!(bytes_of_all_files(repository), before);
    });
}
