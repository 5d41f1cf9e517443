//! Repositories that name programs: none of them runs.
//!
//! Owns: a repository for each way to name one, with which git runs it when a user asks, and not
//! when the host does.
//! Never: trusts that a program did not run because it could not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{changed, Repository, Talk};
use crate::support::write_program;

/// A program that leaves a trace, and gives back what it is given.
fn program(repository: &Repository) -> PathBuf {
    let program = repository.home.join("program");
    let trace = repository.home.join("trace");
    write_program(&program, &format!("#!/bin/sh\necho \"$0 $@\" >>'{}'\ncat\n", trace.display()));
    program
}

/// Has the host keep the folder of a turn, compare it, read its contents and take it back; whether
/// the program has run meanwhile. What the user does first runs it.
fn runs(configure: impl Fn(&Repository, &str), by_the_user: &[&[&str]]) {
    let repository = Repository::with(&[("a.txt", "1\n"), ("b.txt", "1\n")]);
    let program = program(&repository);
    configure(&repository, program.to_str().unwrap());
    let trace = repository.home.join("trace");
    repository.write("a.txt", "0\n");
    for command in by_the_user {
        // Where the program does not do what git expects of it, this fails.
        repository.try_git_in(&repository.root, command);
    }
    assert!(trace.exists(), "the user's own git runs it");
    fs::remove_file(&trace).unwrap();
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/say x", || {
        repository.write("a.txt", "2\n");
        repository.write("c.txt", "2\n");
    });
    let files = talk.files(&repository, "turn/t1");
    assert_eq!(files, [changed("c.txt", "", "2\n", (1, 0)), changed("a.txt", "0\n", "2\n", (1, 1))]);
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(repository.read("a.txt"), "0\n");
    assert_eq!(talk.files(&repository, "session"), []);
    assert!(!trace.exists(), "{}", fs::read_to_string(&trace).unwrap_or_default());
}

#[test]
fn no_hook_runs() {
    let configure = |repository: &Repository, program: &str| {
        for hook in ["post-index-change", "reference-transaction", "pre-commit", "post-commit", "pre-auto-gc"]
        {
            let hook = repository.path(".git/hooks").join(hook);
            fs::create_dir_all(hook.parent().unwrap()).unwrap();
            // None of them is to fail for want of its input.
            fs::write(&hook, format!("#!/bin/sh\n'{program}' </dev/null >/dev/null\n")).unwrap();
            fs::set_permissions(hook, fs::Permissions::from_mode(0o755)).unwrap();
        }
    };
    runs(configure, &[&["add", "a.txt"], &["update-ref", "refs/x", "HEAD"]]);
    let elsewhere = |repository: &Repository, program: &str| {
        let hooks = repository.home.join("hooks");
        fs::create_dir_all(&hooks).unwrap();
        let hook = hooks.join("post-index-change");
        fs::write(&hook, format!("#!/bin/sh\n'{program}' </dev/null >/dev/null\n")).unwrap();
        fs::set_permissions(hook, fs::Permissions::from_mode(0o755)).unwrap();
        repository.git(&["config", "core.hooksPath", hooks.to_str().unwrap()]);
    };
    runs(elsewhere, &[&["add", "a.txt"]]);
}

#[test]
fn no_filter_runs() {
    for kind in ["clean", "smudge", "process"] {
        let configure = |repository: &Repository, program: &str| {
            // One is called in a way that is hard to say.
            repository.write(".git/info/attributes", "*.txt filter=f.=x\n");
            // A process that does not speak as it should makes git fail where it is required.
            let program =
                if kind == "process" { format!("{program} </dev/null >&2 || :") } else { program.to_owned() };
            repository.git(&["config", &format!("filter.f.=x.{kind}"), &program]);
        };
        let by_the_user: &[&[&str]] = match kind {
            "smudge" => &[&["stash", "-q"], &["stash", "pop", "-q"]],
            _ => &[&["add", "a.txt"]],
        };
        runs(configure, by_the_user);
    }
    // One that must run, and does not, does not keep anything from being kept.
    let required = |repository: &Repository, program: &str| {
        repository.write(".git/info/attributes", "*.txt filter=f\n");
        repository.git(&["config", "filter.f.clean", program]);
        repository.git(&["config", "filter.f.required", "true"]);
    };
    runs(required, &[&["add", "a.txt"]]);
}

#[test]
fn no_fsmonitor_runs() {
    let configure = |repository: &Repository, program: &str| {
        repository.git(&["config", "core.fsmonitor", &format!("{program} </dev/null")]);
    };
    runs(configure, &[&["status"]]);
}

#[test]
fn diff_programs_do_not_run() {
    let external = |repository: &Repository, program: &str| {
        repository.git(&["config", "diff.external", &format!("{program} </dev/null")]);
    };
    runs(external, &[&["diff"]]);
    let driver = |repository: &Repository, program: &str| {
        repository.write(".git/info/attributes", "*.txt diff=d\n");
        repository.git(&["config", "diff.d.command", &format!("{program} </dev/null")]);
    };
    runs(driver, &[&["diff"]]);
    let textconv = |repository: &Repository, program: &str| {
        repository.write(".git/info/attributes", "*.txt diff=d\n");
        repository.git(&["config", "diff.d.textconv", &format!("{program} </dev/null")]);
    };
    runs(textconv, &[&["diff"]]);
}

#[test]
fn programs_of_submodules_do_not_run() {
    let configure = |repository: &Repository, program: &str| {
        let other = Repository::with(&[("x.txt", "1\n")]);
        repository.git(&["submodule", "--quiet", "add", other.root.to_str().unwrap(), "below"]);
        repository.git(&["commit", "-q", "-m", "below"]);
        let below = repository.path("below");
        repository.git_in(&below, &["config", "core.fsmonitor", &format!("{program} </dev/null")]);
        repository.git(&["config", "submodule.recurse", "true"]);
        repository.git(&["config", "status.submoduleSummary", "true"]);
        repository.write("below/x.txt", "2\n");
    };
    runs(configure, &[&["status"]]);
}

#[test]
fn program_named_git_in_the_working_directory_is_not_run() {
    let repository = Repository::with(&[("a.txt", "1\n")]);
    let program = program(&repository);
    fs::copy(program, repository.path("git")).unwrap();
    let trace = repository.home.join("trace");
    let path = format!(".::{}", super::PATH);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(super::SESSION, &repository.root);
    talk.turn("t1", "/say x", || repository.write("a.txt", "2\n"));
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("a.txt", "1\n", "2\n", (1, 1))]);
    assert!(!trace.exists());
}
