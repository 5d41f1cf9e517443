//! Repositories of every shape: what is done in them is in the repository itself, as git has it.
//!
//! Owns: the shapes that a repository can have, and that looks, turns, discards, restores and
//! commits are right in each.
//! Never: relies on what the host says where git can be asked.

use std::fs;

use ahp_sidecar::host::effects::{GitReport, GitWork};
use serde_json::json;

use super::model::Asker;
use super::{changed, uri, Repository, Talk, SESSION};

/// A repository with the files `a` and `dir/b`, which is given this shape; nothing where this git
/// does not know the shape.
fn shaped(shape: impl Fn(&mut Repository) -> bool) -> Option<Repository> {
    let mut repository = Repository::with(&[("a", "1\n"), ("dir/b", "1\n")]);
    shape(&mut repository).then_some(repository)
}

/// Recreates the repository with these arguments of `git init`.
fn made_with(arguments: &[&str]) -> Option<Repository> {
    let repository = Repository::empty();
    fs::remove_dir_all(repository.path(".git")).unwrap();
    if !repository.try_git_in(&repository.root, &[&["init", "-q"], arguments].concat()).status.success() {
        super::say(&format!("not tried: this git knows no `git init {}`", arguments.join(" ")));
        return None;
    }
    repository.write("a", "1\n");
    repository.write("dir/b", "1\n");
    repository.commit();
    Some(repository)
}

/// Has a host do all that it can in a repository, and asks git for what came of it.
fn is_worked_in(name: &str, repository: &Repository) {
    let branch = repository.try_git_in(&repository.root, &["symbolic-ref", "-q", "HEAD"]).stdout;
    let before = repository.try_git_in(&repository.root, &["rev-parse", "-q", "--verify", "HEAD"]).stdout;
    let count = |range: &str| repository.git(&["rev-list", "--count", range]);
    let mut talk = Talk::begin(repository);
    talk.turn("t1", "/say x", || {
        repository.write("a", "2\n");
        repository.write("new", "2\n");
    });
    let files = [changed("new", "", "2\n", (1, 0)), changed("a", "1\n", "2\n", (1, 1))];
    assert_eq!(talk.files(repository, "turn/t1"), files, "{name}");
    assert!(repository.our_refs().len() > 1, "{name}");
    assert_eq!(talk.invoke("turn/t1", "discard-changes", None)["result"], json!({}), "{name}");
    assert_eq!((repository.read("a"), repository.path("new").exists()), ("1\n".to_owned(), false), "{name}");
    assert_eq!(talk.invoke("turn/t1", "restore-changes", None)["result"], json!({}), "{name}");
    assert_eq!((&*repository.read("a"), &*repository.read("new")), ("2\n", "2\n"), "{name}");
    talk.wait_until_known();
    talk.changeset("uncommitted");
    let params = json!({
        "channel": format!("{SESSION}/changeset/uncommitted"), "operationId": "commit", "_meta": { "message": "x" },
    });
    let answer = loop {
        let answer = talk.ask("invokeChangesetOperation", &params);
        // It may not have been seen yet that files were brought back.
        match answer["error"]["message"].as_str() {
            Some(why) if why.contains("changed since") || why.contains("does not offer") => {
                talk.changeset("uncommitted");
            }
            _ => break answer,
        }
    };
    assert!(answer["result"].is_object(), "{name}: {answer}");
    assert_eq!(repository.git(&["status", "--porcelain", "--ignore-submodules=all"]), "", "{name}");
    assert_eq!(repository.git(&["show", "HEAD:new"]), "2\n", "{name}");
    assert_eq!(repository.git(&["log", "-1", "--format=%an|%s"]), "A|x\n", "{name}");
    assert_eq!(
        repository.try_git_in(&repository.root, &["symbolic-ref", "-q", "HEAD"]).stdout,
        branch,
        "{name}"
    );
    let before = String::from_utf8(before).unwrap();
    match before.trim() {
        "" => assert_eq!(count("HEAD"), "1\n", "{name}"),
        before => assert_eq!(count(&format!("{before}..HEAD")), "1\n", "{name}"),
    }
    let subject = if before.is_empty() { "commit (initial): x\n" } else { "commit: x\n" };
    assert_eq!(repository.git(&["reflog", "-1", "--format=%gs", "HEAD"]), subject, "{name}");
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    talk.process.end();
    talk.process.rest();
    assert!(talk.process.wait().success(), "{name}");
    assert_eq!(repository.our_refs(), [""; 0], "{name}");
    let locks =
        |folder: &std::path::Path| folder.join("index.lock").exists() || folder.join("HEAD.lock").exists();
    let own = repository.git(&["rev-parse", "--absolute-git-dir"]);
    assert!(!locks(std::path::Path::new(own.trim())), "{name}");
}

/// Moves a repository into a linked folder of files.
fn link(repository: &mut Repository) -> bool {
    let other = repository.home.join("other tree");
    repository.git(&["worktree", "add", "-q", "-b", "other", other.to_str().unwrap()]);
    repository.root = other;
    true
}

#[test]
fn repositories_of_every_shape_are_supported() {
    type Shape = fn(&mut Repository) -> bool;
    let shapes: [(&str, Shape); 12] = [
        ("plain", |_| true),
        ("linked", link),
        ("linked and detached", |repository| {
            link(repository);
            repository.git(&["checkout", "-q", "--detach"]);
            true
        }),
        ("detached", |repository| {
            repository.git(&["checkout", "-q", "--detach"]);
            true
        }),
        ("unborn", |repository| {
            repository.git(&["checkout", "-q", "--orphan", "new"]);
            repository.git(&["rm", "-rq", "--cached", "."]);
            repository.write(".git/info/exclude", "/a\n/dir\n");
            repository.git(&["add", "-f", "a"]);
            true
        }),
        ("packed", |repository| {
            repository.git(&["pack-refs", "--all"]);
            repository.git(&["gc", "-q"]);
            !repository.path(".git/refs/heads/main").exists()
        }),
        ("with a split index", |repository| {
            repository.git(&["update-index", "--split-index"]);
            true
        }),
        ("with a link for HEAD", |repository| {
            fs::remove_file(repository.path(".git/HEAD")).unwrap();
            std::os::unix::fs::symlink("refs/heads/main", repository.path(".git/HEAD")).unwrap();
            true
        }),
        ("sparse", |repository| {
            repository.git(&["sparse-checkout", "set", "--cone"]);
            !repository.path("dir").exists()
        }),
        ("with its git directory elsewhere", |repository| {
            let own = repository.home.join("own.git");
            fs::rename(repository.path(".git"), &own).unwrap();
            repository.write(".git", format!("gitdir: {}\n", own.display()));
            true
        }),
        ("with objects of another one", |repository| {
            let other = repository.home.join("shared");
            fs::rename(repository.path(".git/objects"), &other).unwrap();
            fs::create_dir_all(repository.path(".git/objects/info")).unwrap();
            repository.write(".git/objects/info/alternates", "../../../home/shared\n");
            true
        }),
        ("with a submodule", |repository| {
            let below = Repository::with(&[("x", "1\n")]);
            repository.git(&["submodule", "--quiet", "add", below.root.to_str().unwrap(), "below"]);
            repository.commit();
            repository.write("below/x", "2\n");
            true
        }),
    ];
    for (name, shape) in shapes {
        is_worked_in(name, &shaped(shape).unwrap_or_else(|| panic!("{name}")));
    }
    for arguments in [&["--object-format=sha256"][..], &["--ref-format=reftable"]] {
        if let Some(mut repository) = made_with(arguments) {
            is_worked_in(arguments[0], &repository);
            link(&mut repository);
            repository.write("a", "1\n");
            fs::remove_file(repository.path("new")).unwrap();
            repository.git(&["add", "-A"]);
            repository.git(&["commit", "-q", "-m", "back"]);
            is_worked_in(&format!("{}, linked", arguments[0]), &repository);
        }
    }
    let clones: [&[&str]; 2] = [&["--depth=1"], &["--filter=blob:none"]];
    for arguments in clones {
        let origin = Repository::with(&[("a", "0\n"), ("dir/b", "1\n")]);
        origin.write("a", "1\n");
        origin.commit();
        origin.git(&["config", "uploadpack.allowFilter", "true"]);
        let mut clone = Repository::empty();
        clone.root = clone.home.join("clone");
        let from = format!("file://{}", origin.root.to_str().unwrap().replace(' ', "%20"));
        let arguments = [&["clone", "-q"], arguments, &[&*from, clone.root.to_str().unwrap()]].concat();
        clone.git_in(&clone.home, &arguments);
        is_worked_in(arguments[2], &clone);
    }
}

/// Missing objects of a partial clone are not fetched: a read of one fails.
#[test]
fn missing_object_of_a_partial_clone_is_not_fetched() {
    let origin = Repository::with(&[("a", "0\n")]);
    let old = origin.git(&["rev-parse", "HEAD:a"]);
    origin.write("a", "1\n");
    origin.commit();
    origin.git(&["config", "uploadpack.allowFilter", "true"]);
    let mut clone = Repository::empty();
    clone.root = clone.home.join("clone");
    let from = format!("file://{}", origin.root.to_str().unwrap().replace(' ', "%20"));
    clone.git_in(&clone.home, &["clone", "-q", "--filter=blob:none", &from, clone.root.to_str().unwrap()]);
    let asker = super::model::Asker::new(&clone);
    let content = ahp_sidecar::host::effects::GitContent { blob: old.trim().to_owned(), mode: 0o100_644 };
    let file = super::uri(&clone.path("a"));
    let report = asker.ask(ahp_sidecar::host::effects::GitWork::Read { content, file });
    assert_eq!(report, ahp_sidecar::host::effects::GitReport::Content(None));
    let missing = clone.git(&["rev-list", "--objects", "--all", "--missing=print"]);
    assert!(missing.contains(&format!("?{}", old.trim())), "{missing}");
}

/// The settings of a repository that git does see count, wherever they are said; and so do the
/// user's.
#[test]
fn data_settings_of_the_user_are_applied() {
    let repository = Repository::with(&[("a", "1\n"), ("crlf", "1\n")]);
    repository.write(".git/more", "[core]\nautocrlf = true\n[user]\nname = Included\n");
    repository.git(&["config", "includeIf.gitdir:**/.git.path", "more"]);
    fs::write(repository.home.join("ignored"), "*.mine\n").unwrap();
    let known = fs::read_to_string(repository.home.join("gitconfig")).unwrap();
    let excludes = format!("{known}[core]\nexcludesFile = {}/ignored\n", repository.home.display());
    fs::write(repository.home.join("gitconfig"), excludes).unwrap();
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/say x", || {
        repository.write("crlf", "1\r\n");
        repository.write("x.mine", "1\n");
        repository.write("a", "2\r\n");
    });
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("a", "1\r\n", "2\r\n", (1, 1))]);
    talk.wait_until_known();
    talk.changeset("uncommitted");
    let params = json!({
        "channel": format!("{SESSION}/changeset/uncommitted"), "operationId": "commit", "_meta": { "message": "x" },
    });
    let answer = talk.ask("invokeChangesetOperation", &params);
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(repository.git(&["log", "-1", "--format=%an"]), "Included\n");
    assert_eq!(repository.git(&["show", "HEAD:a"]), "2\n");
}

/// A repository that this program does not know how to work in is left alone, and the rows say why.
#[test]
fn repository_of_an_unknown_format_is_not_used() {
    for (config, why) in [
        ("[core]\nrepositoryformatversion = 2\n", "the format `2` of the repository is not known"),
        (
            "[core]\nrepositoryformatversion = 1\n[extensions]\nfuture = true\n",
            "the extension `future` of the repository is not known",
        ),
        (
            "[core]\nrepositoryformatversion = 1\n[extensions]\nrefStorage = files:///elsewhere\n",
            "the extension `refstorage` of the repository is not known",
        ),
        ("[core\n", "line 1 cannot be read"),
    ] {
        let repository = Repository::with(&[("a", "1\n")]);
        repository.write(".git/config", config);
        let mut talk = Talk::begin(&repository);
        talk.turn("t1", "/files said=new", || repository.write("a", "2\n"));
        assert!(talk.rows()["turn"].contains(why), "{:?}", talk.rows());
    }
}

#[test]
fn directory_with_two_names_is_found_beside_another_one() {
    let repository = Repository::with(&[("a/b", "1\n"), ("c/d", "1\n")]);
    let link = repository.home.join("link");
    std::os::unix::fs::symlink(repository.path("a"), &link).unwrap();
    let directories = [link, repository.path("a"), repository.path("c")].map(|path| uri(&path)).to_vec();
    let look = GitWork::Status { base: None, files: true, touched: None };
    let report = Asker::new(&repository).ask_in(directories, look);
    assert!(matches!(report, GitReport::Status(_)), "{report:?}");
}
