//! Patches of changed files, applied by git to a copy.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::{json, Value};

use super::{fleeting, summed_up, Ran};
use crate::git::{environment, Repository};

/// Runs prompts of an agent that changes files, and returns the patch.
fn patched(repository: &Repository, prompts: &[&str]) -> (Ran, Value, Vec<u8>) {
    let patch = repository.home.join("patch");
    let mut command = fleeting(prompts[0]);
    for prompt in &prompts[1..] {
        command.args(["--then", prompt]);
    }
    command.envs(environment(&repository.home)).arg("--dir").arg(&repository.root);
    let (ran, summary) = summed_up(command.args(["--allow-all", "--patch"]).arg(&patch));
    (ran, summary, fs::read(&patch).unwrap())
}

/// Applies a patch in a clone of the last commit, and compares the folders.
fn assert_applies(repository: &Repository, patch: &[u8]) {
    let copy = repository.home.join("copy");
    repository.git(&["clone", "-q", repository.root.to_str().unwrap(), copy.to_str().unwrap()]);
    let file = repository.home.join("patch");
    let output = repository.try_git_in(&copy, &["apply", "--whitespace=nowarn", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(patch);
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    let differences = Command::new("diff")
        .args(["-r", "--no-dereference", "-x", ".git"])
        .arg(&repository.root)
        .arg(&copy)
        .output();
    let differences = differences.unwrap();
    assert!(differences.status.success(), "{}\n{text}", String::from_utf8_lossy(&differences.stdout));
    for file in fs::read_dir(&repository.root).unwrap().map(|entry| entry.unwrap().file_name()) {
        let mode =
            |folder: &Path| fs::symlink_metadata(folder.join(&file)).unwrap().permissions().mode() & 0o111;
        assert_eq!(mode(&repository.root), mode(&copy), "{file:?}\n{text}");
    }
}

/// A step that runs a command of the shell in the folder.
fn shell(repository: &Repository, command: &str) -> String {
    let command = command.replace('\'', "'\\''");
    format!("/pty sh -c 'cd \"{}\" && {command}'", repository.root.display())
}

#[test]
fn patch_of_texts_applies_in_a_copy() {
    let long: String = (0..60).map(|number| format!("line {number}\n")).collect();
    let repository =
        Repository::with(&[("a", "one\ntwo\n"), ("gone", "x\n"), ("long", &long), ("end", "no end")]);
    let script = "/files a=three 'new file.txt'=text gone= sub/deep=deep";
    let (done, summary, patch) = patched(&repository, &[script]);
    assert_eq!(done.status, 0, "{done:?}");
    assert_applies(&repository, &patch);
    let changes = summary["changes"].as_array().unwrap();
    let of = |path: &str| changes.iter().find(|change| change["path"] == path).cloned().unwrap_or_default();
    assert_eq!(of("a")["change"], "modified", "{summary}");
    assert_eq!(of("new file.txt")["change"], "added");
    assert_eq!(of("sub/deep")["change"], "added");
    assert_eq!(
        of("gone"),
        json!({ "path": "gone", "change": "deleted", "added": 0, "removed": 1, "notInPatch": null })
    );
    assert_eq!(changes.len(), 4, "{summary}");
}

#[test]
fn patch_of_every_kind_of_change_applies_in_a_copy() {
    let repository = Repository::empty();
    let long: String = (0..60).map(|number| format!("line {number}\n")).collect();
    for (name, text) in [
        ("mode", "x\n"),
        ("empty-gone", ""),
        ("moved", "a\nb\nc\n"),
        ("type", "text\n"),
        ("end", "a\nb"),
        ("long", &long),
    ] {
        repository.write(name, text);
    }
    fs::write(repository.root.join("binary"), b"a\0b").unwrap();
    fs::write(repository.root.join("binary-gone"), b"\0\xff").unwrap();
    symlink("mode", repository.root.join("link")).unwrap();
    repository.commit();
    let commands = [
        "chmod +x mode",
        "rm empty-gone binary-gone",
        "touch empty",
        "mv moved moved-away",
        "rm type && ln -s mode type",
        "rm link && ln -s long link",
        "head -c 200000 /dev/urandom > binary",
        "head -c 70 /dev/zero > zeros",
        "printf 'a\\nb\\n' > end",
        "sed -i '5s/$/ x/; 12s/$/ y/; 50d; 1i first' long",
        "printf 'x' > 'with space \"quoted\"'",
        "printf '#!/bin/sh\\n' > program && chmod +x program",
    ];
    let steps: Vec<String> = commands.iter().map(|command| shell(&repository, command)).collect();
    let (done, summary, patch) = patched(&repository, &[&steps.join("\n")]);
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(fs::read_link(repository.root.join("type")).unwrap(), Path::new("mode"), "{done:?}");
    assert_applies(&repository, &patch);
    assert!(summary["changes"].as_array().unwrap().iter().all(|it| it["notInPatch"].is_null()), "{summary}");
}

#[test]
fn patch_joins_the_changes_of_all_turns() {
    let repository = Repository::with(&[("a", "one\n"), ("b", "one\n")]);
    let prompts = ["/files a=two c=new b=x", "/files a=three c= b=one"];
    let (done, summary, patch) = patched(&repository, &prompts);
    assert_eq!(done.status, 0, "{done:?}");
    assert_applies(&repository, &patch);
    let paths: Vec<&Value> = summary["changes"].as_array().unwrap().iter().map(|it| &it["path"]).collect();
    assert_eq!(paths, ["a"], "{summary}");
}

#[test]
fn patch_of_a_folder_without_git_has_what_calls_report() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    fs::write(top.join("a"), "one\n").unwrap();
    let patch = top.join("patch");
    let mut command = fleeting("/files a=two b=new");
    command.arg("--dir").arg(&top).arg("--patch").arg(&patch);
    let (done, summary) = summed_up(&mut command);
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(summary["changes"].as_array().unwrap().len(), 2, "{summary}");
    fs::remove_file(top.join("b")).unwrap();
    fs::write(top.join("a"), "one\n").unwrap();
    let output = Command::new("git").arg("apply").arg(&patch).current_dir(&top).output().unwrap();
    assert!(output.status.success(), "{output:?}: {}", fs::read_to_string(&patch).unwrap());
    assert_eq!(fs::read_to_string(top.join("a")).unwrap(), "two\n");
    assert_eq!(fs::read_to_string(top.join("b")).unwrap(), "new\n");
}

#[test]
fn run_without_changes_writes_an_empty_patch() {
    let repository = Repository::with(&[("a", "one\n")]);
    let (done, summary, patch) = patched(&repository, &["Hello"]);
    assert_eq!((done.status, patch.len(), &summary["changes"]), (0, 0, &json!([])), "{done:?}");
}

#[test]
fn patch_of_names_that_are_not_utf8_applies_in_a_copy() {
    let repository = Repository::with(&[("a", "one\n")]);
    let name = |end: &str| repository.root.join(OsStr::from_bytes(&[b"bad\xff \"", end.as_bytes()].concat()));
    fs::write(name("changed"), "one\n").unwrap();
    fs::write(name("gone"), "one\n").unwrap();
    repository.commit();
    let commands = [
        "for f in bad*changed; do echo two >> \"$f\"; done",
        "for f in bad*gone; do rm \"$f\"; done",
        "printf x > \"$(printf 'new\\377')\"",
        "mkdir \"$(printf 'dir\\303')\" && printf x > \"$(printf 'dir\\303/\\303\\244')\"",
    ];
    let steps: Vec<String> = commands.iter().map(|command| shell(&repository, command)).collect();
    let (done, summary, patch) = patched(&repository, &[&steps.join("\n")]);
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(summary["changes"].as_array().unwrap().len(), 4, "{summary}");
    assert!(summary["changes"].as_array().unwrap().iter().all(|it| it["notInPatch"].is_null()), "{summary}");
    assert!(name("changed").exists() && !name("gone").exists(), "{done:?}");
    assert_applies(&repository, &patch);
}
