//! Repositories whose files are not what git expects: they are refused at once, and nothing is
//! written where a link of theirs leads.
//!
//! Owns: endless and silent files, folders of files that are too wide, and keys that no file may
//! hold.
//! Never: tries programs: `walk` does.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::Duration;

use ahp_sidecar::git::index::CopiedIndex;
use ahp_sidecar::git::isolation::is_allowed;
use ahp_sidecar::git::program::{Deadline, Git, GitError};
use ahp_sidecar::git::repository::{NoRepository, Repository as Found};
use ahp_sidecar::git::settings::GitSettings;
use rustix::fs::{mkfifoat, Mode, CWD};

use super::{instead_of_git, uri, Repository, Talk, SESSION};

fn in_time() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn find_git() -> Git {
    Git::find(Some(OsStr::new(super::PATH)), in_time()).unwrap()
}

/// Returns why the repository of a folder of this one is not used; `None` where it is, and an empty
/// text where there is none.
fn refusal(repository: &Repository, folder: &str) -> Option<String> {
    match Found::find(&find_git(), &[uri(&repository.path(folder))], &repository.state, in_time()) {
        Ok(_) => None,
        Err(NoRepository::None) => Some(String::new()),
        Err(NoRepository::Unusable(why)) => Some(why),
        Err(NoRepository::Failed(error)) => Some(error.to_string()),
    }
}

#[test]
fn device_or_pipe_in_place_of_a_file_of_git_is_refused_at_once() {
    for name in ["packed-refs", "info/exclude", "info/attributes", "objects/info/alternates", "index"] {
        for is_pipe in [false, true] {
            let repository = Repository::with(&[("a", "1\n")]);
            let path = repository.path(".git").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if path.exists() {
                fs::remove_file(&path).unwrap();
            }
            match is_pipe {
                true => mkfifoat(CWD, &path, Mode::RUSR).unwrap(),
                false => symlink("/dev/zero", &path).unwrap(),
            }
            let why = refusal(&repository, ".").unwrap_or_else(|| panic!("{name} is used"));
            assert!(why.contains(name) && why.contains("not a regular file"), "{why}");
        }
    }
}

#[test]
fn ref_without_end_behind_the_branch_is_refused_at_once() {
    for is_device in [true, false] {
        let repository = Repository::with(&[("a", "1\n")]);
        repository.write(".git/refs/heads/main", "ref: refs/heads/x\n");
        let next = repository.path(".git/refs/heads/x");
        match is_device {
            true => symlink("/dev/zero", &next).unwrap(),
            false => File::create(&next).unwrap().set_len(50 << 30).unwrap(),
        }
        let why = refusal(&repository, ".").unwrap_or_else(|| panic!("it is used: {is_device}"));
        assert!(why.contains("refs/heads/x"), "{why}");
    }
}

#[test]
fn branch_that_names_another_branch_is_used_and_a_circle_of_branches_is_not() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.git(&["branch", "other"]);
    repository.git(&["symbolic-ref", "refs/heads/main", "refs/heads/other"]);
    assert_eq!(refusal(&repository, "."), None);
    repository.write(".git/refs/heads/other", "ref: refs/heads/main\n");
    assert!(refusal(&repository, ".").unwrap().contains("refs name each other"));
}

#[test]
fn configuration_of_a_gibibyte_is_refused_at_once() {
    let repository = Repository::with(&[("a", "1\n")]);
    let config = repository.path(".git/config");
    File::options().write(true).open(&config).unwrap().set_len(1 << 30).unwrap();
    let why = refusal(&repository, ".").unwrap();
    assert!(why.contains(".git/config") && why.contains("more than 16 MiB"), "{why}");
}

#[test]
fn huge_index_is_not_copied_and_copying_one_ends_at_the_deadline() {
    let repository = Repository::with(&[("a", "1\n")]);
    let git = find_git();
    let find = || Found::find(&git, &[uri(&repository.root)], &repository.state, in_time()).unwrap();
    let index = File::options().write(true).open(repository.path(".git/index")).unwrap();
    index.set_len(100 << 20).unwrap();
    let mut late = find();
    late.until = Deadline::after(Duration::ZERO);
    assert!(matches!(CopiedIndex::new(&late), Err(GitError::Late(_))));
    index.set_len((1 << 30) + 1).unwrap();
    let found = find();
    let error = CopiedIndex::new(&found).unwrap_err();
    assert!(error.to_string().contains("more than 1 GiB"), "{error}");
    assert_eq!(fs::metadata(found.scratch.path.join("index")).unwrap().len(), 0);
}

#[test]
fn memory_of_git_is_limited() {
    let repository = Repository::with(&[("a", "1\n")]);
    let found = repository.home.join("limit");
    let path = instead_of_git(&repository, &format!("ulimit -d > '{}'\nexec $GIT \"$@\"", found.display()));
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.wait_until_known();
    let limit: u64 = fs::read_to_string(found).unwrap().trim().parse().unwrap();
    assert!(limit <= 4 << 20, "{limit} KiB");
}

#[test]
fn pipe_named_head_in_a_folder_does_not_block() {
    let repository = Repository::with(&[("a", "1\n"), ("pkg/b", "1\n")]);
    mkfifoat(CWD, repository.path("pkg/HEAD"), Mode::RUSR).unwrap();
    assert_eq!(refusal(&repository, "pkg"), None);
    let head = repository.path(".git/HEAD");
    fs::remove_file(&head).unwrap();
    mkfifoat(CWD, &head, Mode::RUSR).unwrap();
    assert_eq!(refusal(&repository, "."), Some(String::new()));
}

#[test]
fn repository_with_a_worktree_above_itself_is_refused() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.git(&["config", "core.worktree", "../.."]);
    assert!(refusal(&repository, ".").unwrap().contains("is elsewhere"));
    repository.git(&["config", "core.worktree", ".."]);
    assert_eq!(refusal(&repository, "."), None);
}

#[test]
fn settings_that_weaken_change_detection_are_not_copied() {
    for key in ["core.trustctime", "core.checkstat"] {
        assert!(!is_allowed(key.as_bytes()), "{key}");
    }
}

#[test]
fn setting_with_a_nul_in_its_section_is_not_written() {
    let settings = GitSettings::parse(b"[remote \"x.uploadpack\0\"]\nfetch = /evil\n").unwrap();
    let setting = settings.iter().next().unwrap();
    assert!(is_allowed(&setting.key));
    assert_eq!(setting.lines(), None);
}
