//! The two ways to the tree of a folder lead to the same one.
//!
//! Owns: the second way, which is taken where the index is large, and what only it could get wrong.
//! Never: starts a host.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::time::Duration;

use ahp_sidecar::git::index::{CopiedIndex, FolderTree};
use ahp_sidecar::git::large::{FileLimits, Versions, WantedContents, IN_TREE};
use ahp_sidecar::git::program::{Deadline, Git};
use ahp_sidecar::git::repository::Repository as Found;
use ahp_sidecar::git::scan::StatusScope;
use ahp_sidecar::git::{flags, grafts};

use super::{uri, Repository};

/// Both ways lead to what git calls the same files; whether the second one leads anywhere.
pub fn are_the_same(repository: &Repository) -> bool {
    let until = Deadline::after(Duration::from_secs(60));
    let git = Git::find(Some(OsStr::new(super::PATH)), until).unwrap();
    let mut found = Found::find(&git, &[uri(&repository.root)], &repository.state, until).unwrap();
    found.limits = repository.limit.map(FileLimits::of).unwrap_or_default();
    let wanted = WantedContents::All { known: &BTreeMap::new(), room: u64::MAX };
    let hidden = flags::hidden(&found).unwrap();
    let index = CopiedIndex::new(&found).unwrap();
    index.unhide(&hidden).unwrap();
    let FolderTree { tree, versions, .. } = index.tree(wanted, StatusScope::Whole(&hidden)).unwrap();
    let grafted = grafts::tree(&found, wanted, StatusScope::Whole(&hidden)).unwrap();
    let Some(FolderTree { tree: other, versions: other_versions, .. }) = grafted else {
        let status = repository.git(&[
            "--no-optional-locks",
            "status",
            "--porcelain=v2",
            "--branch",
            "-z",
            "--untracked-files=all",
        ]);
        // Files that git takes as unchanged are listed with a small letter.
        let is_flagged_and_beyond = repository.git(&["ls-files", "-v", "-z"]).split('\0').any(|line| {
            let Some(name) = line.strip_prefix("h ") else { return false };
            let file = fs::metadata(repository.path(name)).ok();
            let is_large = file.zip(repository.limit).is_some_and(|(file, limit)| file.len() > limit);
            is_large || name.contains('\n')
        });
        let is_beyond = is_flagged_and_beyond
            || status.contains("(initial)")
            || status.contains('\n')
            || status.split('\0').any(|line| line.starts_with("u "))
            || repository.git(&["ls-tree", &tree]).is_empty();
        assert!(is_beyond, "the second way leads nowhere: {status}");
        return false;
    };
    // What is in repositories below is not looked at.
    let differs = ["diff-tree", "-r", "--ignore-submodules=all", &tree, &other];
    assert_eq!(repository.git(&differs), "");
    // The version of a file whose content is in the tree tells only that the content need not be
    // stored again: a scan that finds the file unchanged has none.
    let not_in_tree = |versions: &Versions| -> Versions {
        let kept = versions.iter().filter(|(_, version)| !version.starts_with(IN_TREE));
        kept.map(|(path, version)| (path.clone(), version.clone())).collect()
    };
    assert_eq!(not_in_tree(&versions), not_in_tree(&other_versions));
    repository.git(&["fsck", "--strict", "--no-dangling"]);
    true
}

#[test]
fn flagged_file_too_large_for_a_checkpoint_is_checkpointed_as_staged() {
    let mut repository = Repository::with(&[("a", "1\n"), ("b", "1\n")]);
    repository.limit = Some(20_000);
    repository.write("a", "x".repeat(25_000));
    repository.git(&["add", "a"]);
    repository.git(&["update-index", "--assume-unchanged", "a"]);
    assert!(!are_the_same(&repository), "only the index knows that it is as it was staged");
    repository.write("a", "y".repeat(15_000));
    assert!(are_the_same(&repository), "a file that can be kept is kept as it is");
}

#[test]
fn folders_and_files_that_replace_each_other_are_checkpointed_like_git_add() {
    let repository = Repository::with(&[("a", "1\n"), ("d/e/f", "1\n"), ("d/g", "1\n"), ("x/only", "1\n")]);
    assert!(are_the_same(&repository));
    fs::remove_file(repository.path("a")).unwrap();
    repository.write("a/b/c", "2\n");
    fs::remove_dir_all(repository.path("d/e")).unwrap();
    repository.write("d/e", "2\n");
    fs::remove_dir_all(repository.path("x")).unwrap();
    assert!(are_the_same(&repository));
    repository.git(&["add", "a", "d"]);
    assert!(are_the_same(&repository));
    repository.git(&["rm", "-q", "--cached", "d/g"]);
    assert!(are_the_same(&repository));
    repository.git(&["add", "--intent-to-add", "."]);
    repository.write("later", "2\n");
    repository.git(&["add", "--intent-to-add", "later"]);
    assert!(are_the_same(&repository));
    // Nothing of it is left.
    for name in ["a", "d"] {
        fs::remove_dir_all(repository.path(name)).unwrap();
    }
    fs::remove_file(repository.path("later")).unwrap();
    assert!(!are_the_same(&repository));
}

#[test]
fn line_ending_conversion_of_checkpoints_equals_git_add() {
    let repository = Repository::with(&[
        ("kept", "a\r\nb\r\n"),
        ("dir/deep/kept", "a\r\n"),
        ("dir/.gitattributes", "*.t text\n"),
    ]);
    repository.git(&["config", "core.autocrlf", "input"]);
    // What has such ends already keeps them; what is new does not.
    for name in ["kept", "dir/deep/kept", "new", "dir/deep/new", "dir/deep/new.t"] {
        repository.write(name, "c\r\nd\r\n");
    }
    assert!(are_the_same(&repository));
    // Attributes count also where they are not in the folder, as long as the index has them.
    repository.git(&["config", "core.autocrlf", "false"]);
    repository.git(&["update-index", "--skip-worktree", "dir/.gitattributes"]);
    fs::remove_file(repository.path("dir/.gitattributes")).unwrap();
    assert!(are_the_same(&repository));
    repository.git(&["update-index", "--no-skip-worktree", "dir/.gitattributes"]);
    assert!(are_the_same(&repository));
}

#[test]
fn large_index_is_not_written() {
    let repository = Repository::with(&[("edited", "1\n"), ("dir/edited", "1\n")]);
    let blob = repository.git(&["rev-parse", "HEAD:edited"]);
    let long = "x".repeat(200);
    let lines: String =
        (0..5000).map(|number| format!("100644 {}\tmany/{number:04}{long}\n", blob.trim())).collect();
    fs::write(repository.home.join("lines"), lines).unwrap();
    let from = format!("git update-index --index-info <'{}'", repository.home.join("lines").display());
    repository.git(&["-c", &format!("alias.fill=!{from}"), "fill"]);
    repository.git(&["commit", "-q", "-m", "many"]);
    repository.git(&["config", "core.sparseCheckout", "true"]);
    repository.git(&["sparse-checkout", "set", "--no-cone", "/*", "!/many/"]);
    repository.write("dir/edited", "2\n");
    assert!(are_the_same(&repository));
    let trace = repository.home.join("trace");
    let script = format!("echo \"$*\" >>'{}'\nexec $GIT \"$@\"", trace.display());
    let path = super::instead_of_git(&repository, &script);
    let asker = super::model::Asker::found_in(&repository, OsStr::new(&path));
    let before = asker.checkpoint(0, None);
    repository.write("dir/edited", "3\n");
    repository.write("dir/new/file", "3\n");
    let after = asker.checkpoint(1, Some(&before));
    let names: Vec<String> = asker.compare(&before, &after).into_iter().map(|change| change.file).collect();
    assert_eq!(names, ["dir/edited", "dir/new/file"].map(|name| uri(&repository.path(name))));
    assert_eq!(repository.git(&["ls-tree", "-r", "--name-only", &after.tree]).lines().count(), 5003);
    assert_eq!(asker.checkpoint(2, Some(&after)), after);
    let ran = fs::read_to_string(&trace).unwrap();
    assert!(ran.contains("mktree") && !ran.contains("write-tree"), "{ran}");
    // Nor is it compared with the whole folder where it is known which files were touched.
    asker.look(None);
    repository.write("dir/edited", "4\n");
    fs::write(&trace, "").unwrap();
    let status = asker.look(Some(vec![&"dir/edited".to_owned()]));
    assert_eq!(status.uncommitted.len(), 2);
    let ran = fs::read_to_string(trace).unwrap();
    let statuses: Vec<&str> = ran.lines().filter(|line| line.contains(" status ")).collect();
    assert!(matches!(statuses[..], [one] if one.ends_with(" -- dir/edited")), "{ran}");
    assert!(!ran.contains("write-tree"), "{ran}");
}

#[test]
fn tracked_file_that_is_not_watched_is_seen_with_any_other() {
    let repository =
        Repository::with(&[("a", "1\n"), ("b/node_modules/c/d", "1\n"), ("node_modules/e", "1\n")]);
    let asker = super::model::Asker::new(&repository);
    assert_eq!(asker.look(None).uncommitted_count, 0);
    for (round, changed) in ["b/node_modules/c/d", "node_modules/e"].into_iter().enumerate() {
        repository.write("a", format!("{round}\n\n"));
        repository.write(changed, "2\n");
        let names = asker.look(Some(vec![&"a".to_owned()])).uncommitted.into_iter().map(|file| file.file);
        assert!(names.collect::<Vec<_>>().contains(&uri(&repository.path(changed))), "{changed}");
    }
}
