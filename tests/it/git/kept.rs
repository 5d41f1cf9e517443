//! Files that git keeps with care, or not at all: large ones, ignored ones, those with flags,
//! links, pipes and sockets.
//!
//! Owns: that a change of each of them is shown, and that no operation removes the last copy of
//! what somebody wrote.
//! Never: measures how long anything takes.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

use serde_json::{json, Value};

use super::model::copy_of;
use super::{changed, uri, Repository, ShownFile, Talk};

/// Size above which the content of a file is not kept in these tests, in bytes; a file is large
/// above a tenth of it.
const LIMIT: u64 = 50_000;

/// A content that is large, and kept.
fn large(text: &str) -> String {
    text.repeat(10_000 / text.len())
}

/// A content that is too large to be kept.
fn giant(text: &str) -> String {
    text.repeat(60_000 / text.len())
}

fn limited(files: &[(&str, &str)]) -> Repository {
    let mut repository = Repository::with(files);
    repository.limit = Some(LIMIT);
    repository
}

fn message_of(answer: &Value) -> &str {
    answer["result"]["message"].as_str().or(answer["error"]["message"].as_str()).unwrap_or_default()
}

fn is_done(answer: &Value) {
    assert_eq!(answer["result"], json!({}), "{answer}");
}

/// A file that stays is named with the reason.
fn must_name(repository: &Repository, answer: &Value, name: &str, why: &str) {
    let told = format!("`{}`: {why}", uri(&repository.path(name)));
    assert!(message_of(answer).contains(&told), "{answer}");
}

/// The names of the files that a changeset shows.
fn names(talk: &mut Talk, repository: &Repository, what: &str) -> Vec<String> {
    let shown = talk.files(repository, what);
    let mut names: Vec<String> =
        shown.into_iter().map(|file| file.after.or(file.before).unwrap().0).collect();
    names.sort();
    names
}

/// Waits until what is not committed shows files of these names.
fn uncommitted(talk: &mut Talk, repository: &Repository, wanted: &[&str]) -> Vec<ShownFile> {
    let begun = std::time::Instant::now();
    loop {
        let found = names(talk, repository, "uncommitted");
        if found == wanted {
            return talk.files(repository, "uncommitted");
        }
        assert!(begun.elapsed() < crate::support::HUNG, "shown is {found:?} and not {wanted:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A host that has seen the repository.
fn begin(repository: &Repository) -> Talk {
    let mut talk = Talk::begin(repository);
    talk.wait_until_known();
    talk
}

fn make_pipe(repository: &Repository, name: &str) {
    assert!(Command::new("mkfifo").arg(repository.path(name)).status().unwrap().success());
}

#[test]
fn large_tracked_file_is_reverted_to_its_content_before_the_turn() {
    let repository = limited(&[("big", "committed\n")]);
    let mine = large("mine\n");
    repository.write("big", &mine);
    repository.git(&["add", "big"]);
    let newer = large("newer\n");
    repository.write("big", &newer);
    let mut talk = begin(&repository);
    talk.turn("t1", "/say x", || repository.write("big", "agent\n"));
    assert_eq!(talk.files(&repository, "turn/t1")[0].before, Some(("big".to_owned(), newer.clone())));
    is_done(&talk.invoke("turn/t1", "discard-changes", None));
    assert_eq!(repository.read("big"), newer);
    is_done(&talk.invoke("turn/t1", "restore-changes", None));
    assert_eq!(repository.read("big"), "agent\n");
}

#[test]
fn file_that_grows_large_in_a_turn_is_modified_and_reverted() {
    let repository = limited(&[("log", "1\n"), ("other", "1\n")]);
    let mut talk = begin(&repository);
    let grown = large("line\n");
    talk.turn("t1", "/say x", || {
        repository.write("log", &grown);
        repository.write("new", &grown);
    });
    let shown = talk.files(&repository, "turn/t1");
    let lines = (grown.lines().count() as i64, 1);
    assert!(shown.contains(&changed("log", "1\n", &grown, lines)), "{shown:?}");
    is_done(&talk.invoke("turn/t1", "discard-changes", None));
    assert_eq!((&*repository.read("log"), repository.path("new").exists()), ("1\n", false));
    is_done(&talk.invoke("turn/t1", "restore-changes", None));
    assert_eq!((repository.read("log"), repository.read("new")), (grown.clone(), grown));
}

#[test]
fn uncommitted_large_file_is_discarded_and_restored() {
    let repository = limited(&[("big", "committed\n")]);
    let mine = large("mine\n");
    repository.write("big", &mine);
    let mut talk = begin(&repository);
    let shown = uncommitted(&mut talk, &repository, &["big"]);
    assert_eq!(shown[0].before, Some(("big".to_owned(), "committed\n".to_owned())));
    is_done(&talk.invoke("uncommitted", "discard-changes", None));
    assert_eq!(repository.read("big"), "committed\n");
    is_done(&talk.invoke("uncommitted", "restore-changes", None));
    assert_eq!(repository.read("big"), mine);
}

#[test]
fn file_beyond_the_limit_is_shown_as_modified_and_not_reverted() {
    let repository = limited(&[("big", "committed\n"), ("a", "1\n")]);
    let before = giant("before\n");
    repository.write("big", &before);
    let mut talk = begin(&repository);
    talk.turn("t1", "/files a=2", || repository.write("big", "agent\n"));
    let shown = talk.files(&repository, "turn/t1");
    let unknown = Some(("big".to_owned(), "error -32008".to_owned()));
    let after = Some(("big".to_owned(), "agent\n".to_owned()));
    assert!(shown.contains(&ShownFile { before: unknown.clone(), after, counts: None }), "{shown:?}");
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    let why = "its content was not checkpointed (58 KiB, limit 48 KiB), so it cannot be reverted";
    must_name(&repository, &answer, "big", why);
    assert_eq!((&*repository.read("big"), &*repository.read("a")), ("agent\n", "1\n"));
    // The other way round the only copy is in the folder.
    let after = giant("after\n");
    talk.turn("t2", "/files a=3", || repository.write("big", &after));
    let shown = talk.files(&repository, "turn/t2");
    let before = Some(("big".to_owned(), "agent\n".to_owned()));
    assert!(shown.contains(&ShownFile { before, after: unknown, counts: None }), "{shown:?}");
    must_name(&repository, &talk.invoke("turn/t2", "discard-changes", None), "big", why);
    assert_eq!(repository.read("big"), after);
    must_name(&repository, &talk.invoke("uncommitted", "discard-changes", None), "big", why);
    assert_eq!(repository.read("big"), after);
}

#[test]
fn unchanged_large_files_are_checkpointed_once_and_shown_by_no_turn() {
    let repository = limited(&[("a", "1\n")]);
    for name in ["data", "more"] {
        repository.write(name, large(name));
    }
    repository.write("giant", giant("x"));
    let trace = repository.home.join("trace");
    let script = format!("echo \"$*\" >>'{}'\nexec $GIT \"$@\"", trace.display());
    let path = super::instead_of_git(&repository, &script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(super::SESSION, &repository.root);
    for turn in ["t1", "t2", "t3"] {
        talk.turn(turn, "/say x", || {});
        assert_eq!(names(&mut talk, &repository, &format!("turn/{turn}")), [""; 0]);
    }
    repository.git(&["add", "-A"]);
    repository.git(&["commit", "-q", "-m", "x"]);
    talk.turn("t4", "/files a=2", || {});
    assert_eq!(names(&mut talk, &repository, "turn/t4"), ["a"]);
    let ran = fs::read_to_string(trace).unwrap();
    let stored = ran.lines().filter(|line| line.contains("hash-object -w")).count();
    assert_eq!(stored, 2, "{ran}");
}

#[test]
fn large_files_beyond_the_session_limit_are_not_checkpointed() {
    let repository = limited(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    // Each of twelve versions has 48,000 bytes, and there is room for 500,000.
    for number in 0..12 {
        talk.turn(&format!("t{number}"), "/say x", || {
            repository.write("big", format!("{number:04}").repeat(12_000));
        });
        talk.changeset(&format!("turn/t{number}"));
    }
    let answer = talk.invoke("turn/t11", "discard-changes", None);
    must_name(&repository, &answer, "big", "its content was not checkpointed (46 KiB: ");
    assert_eq!(repository.read("big"), "0011".repeat(12_000));
}

#[test]
fn large_files_of_any_size_are_committed() {
    let repository = limited(&[("big", "1\n"), ("giant", "1\n")]);
    repository.write("big", large("big\n"));
    repository.write("giant", giant("giant\n"));
    repository.write("new", giant("new\n"));
    let mut talk = begin(&repository);
    uncommitted(&mut talk, &repository, &["big", "giant", "new"]);
    let channel = format!("{}/changeset/uncommitted", super::SESSION);
    talk.follow(&channel);
    let params = json!({ "channel": channel, "operationId": "commit", "_meta": { "message": "large" } });
    let answer = talk.ask("invokeChangesetOperation", &params);
    assert!(message_of(&answer).starts_with("Committed "), "{answer}");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
    assert_eq!(repository.git(&["show", "HEAD:giant"]), giant("giant\n"));
}

#[test]
fn staged_content_that_a_commit_replaces_stays_reachable() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("a", "staged\n");
    repository.git(&["add", "a"]);
    repository.write("a", "in the folder\n");
    let mut talk = begin(&repository);
    uncommitted(&mut talk, &repository, &["a"]);
    let channel = format!("{}/changeset/uncommitted", super::SESSION);
    let params = json!({ "channel": channel, "operationId": "commit", "_meta": { "message": "m" } });
    let answer = talk.ask("invokeChangesetOperation", &params);
    assert!(message_of(&answer).starts_with("Committed "), "{answer}");
    assert!(repository.keeps("a", 0o100_644, b"staged\n"));
}

#[test]
fn ignored_file_that_an_agent_writes_is_shown_and_reverted() {
    let repository = Repository::with(&[(".gitignore", ".env\nmade/\n"), ("a", "1\n")]);
    repository.write(".env", "SECRET=1\n");
    let mut talk = begin(&repository);
    talk.turn("t1", "/files .env=SECRET=2 made/x=1 a=2 gone=1\n/pty rm gone", || {});
    let mut wanted = vec![
        changed(".env", "SECRET=1\n", "SECRET=2\n", (1, 1)),
        changed("a", "1\n", "2\n", (1, 1)),
        changed("made/x", "", "1\n", (1, 0)),
    ];
    wanted.sort();
    for what in ["turn/t1", "session"] {
        assert_eq!(talk.files(&repository, what), wanted, "{what}");
    }
    for what in ["turn/t1", "session"] {
        is_done(&talk.invoke(what, "discard-changes", None));
        assert_eq!((&*repository.read(".env"), &*repository.read("a")), ("SECRET=1\n", "1\n"), "{what}");
        assert!(!repository.path("made/x").exists());
        assert_eq!(names(&mut talk, &repository, "turn/t1").is_empty(), what == "turn/t1");
        is_done(&talk.invoke(what, "restore-changes", None));
        assert_eq!((&*repository.read(".env"), &*repository.read("a")), ("SECRET=2\n", "2\n"), "{what}");
        assert_eq!(talk.files(&repository, what), wanted, "{what}");
    }
    // What the user has written since stays.
    repository.write(".env", "MINE=1\n");
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    must_name(&repository, &answer, ".env", "it was changed since");
    assert_eq!((&*repository.read(".env"), &*repository.read("a")), ("MINE=1\n", "1\n"));
}

#[test]
fn ignored_binary_or_long_file_of_an_agent_is_listed_and_not_reverted() {
    let repository = Repository::with(&[(".gitignore", "made/\n"), ("a", "1\n")]);
    repository.write("made/binary", b"\0\xff");
    repository.write("made/long", "x".repeat(70 << 10));
    let mut talk = begin(&repository);
    talk.turn("t1", "/files made/binary=1 made/long=2 a=2", || {});
    for what in ["turn/t1", "session"] {
        assert_eq!(names(&mut talk, &repository, what), ["a", "made/binary", "made/long"], "{what}");
    }
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    for name in ["made/binary", "made/long"] {
        must_name(&repository, &answer, name, "its content was not checkpointed");
    }
    assert_eq!(&*repository.read("made/binary"), "1\n");
    assert_eq!(&*repository.read("a"), "1\n");
}

#[test]
fn files_refused_by_git_are_listed_beside_others_and_not_reverted() {
    let utf16 = b"\xfe\xff\0o\0n\0e\0\n";
    for flag in ["--no-assume-unchanged", "--assume-unchanged"] {
        let repository =
            Repository::with(&[(".gitattributes", "*.rc working-tree-encoding=UTF-16\n"), ("a", "1\n")]);
        repository.write("x.rc", utf16);
        repository.commit();
        repository.git(&["update-index", flag, "x.rc"]);
        let mut talk = begin(&repository);
        talk.turn("t1", "/say hi", || {
            repository.write("a", "2\n");
            // No byte order mark, and half a character.
            repository.write("x.rc", "abc");
            repository.write("y.rc", "abc");
            // A link of this name is a danger to git.
            symlink("a", repository.path(".gitmodules")).unwrap();
        });
        assert_eq!(names(&mut talk, &repository, "turn/t1"), ["a", "x.rc", "y.rc"], "{flag}");
        if flag == "--no-assume-unchanged" {
            uncommitted(&mut talk, &repository, &["a", "x.rc", "y.rc"]);
        }
        let answer = talk.invoke("turn/t1", "discard-changes", None);
        for name in ["x.rc", "y.rc"] {
            must_name(&repository, &answer, name, "its content was not checkpointed");
            assert_eq!(repository.read(name), "abc");
        }
        assert_eq!(repository.read("a"), "1\n");
    }
}

#[test]
fn state_folder_in_the_repository_is_in_no_changeset() {
    let mut repository = Repository::with(&[("a", "1\n")]);
    repository.state = repository.path("state of the host");
    let mut talk = begin(&repository);
    talk.turn("t1", "/files a=2", || {});
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("a", "1\n", "2\n", (1, 1))]);
    assert_eq!(uncommitted(&mut talk, &repository, &["a"]), [changed("a", "1\n", "2\n", (1, 1))]);
    let channel = format!("{}/changeset/uncommitted", super::SESSION);
    talk.follow(&channel);
    let params = json!({ "channel": channel, "operationId": "commit", "_meta": { "message": "m" } });
    let answer = talk.ask("invokeChangesetOperation", &params);
    assert!(message_of(&answer).starts_with("Committed "), "{answer}");
    assert_eq!(repository.git(&["ls-files"]), "a\n");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
}

#[test]
fn file_in_a_nested_repository_or_with_a_flag_that_an_agent_writes_is_shown() {
    for flag in ["--assume-unchanged", "--skip-worktree"] {
        let repository = Repository::with(&[("flagged", "1\n"), ("removed", "1\n"), ("a", "1\n")]);
        repository.write("nested/x", "1\n");
        repository.git_in(&repository.path("nested"), &["init", "-q"]);
        repository.git(&["update-index", flag, "flagged", "removed"]);
        repository.write("flagged", "mine\n");
        let mut talk = begin(&repository);
        talk.turn("t1", "/files flagged=agent nested/x=2 removed=", || {});
        let wanted = [
            changed("flagged", "mine\n", "agent\n", (1, 1)),
            changed("nested/x", "1\n", "2\n", (1, 1)),
            changed("removed", "1\n", "", (0, 1)),
        ];
        let mut shown = talk.files(&repository, "turn/t1");
        shown.sort_by_key(|file| file.before.clone());
        assert_eq!(shown.len(), 3, "{flag}: {shown:?}");
        for file in &wanted {
            assert!(shown.contains(file), "{flag}: {shown:?}");
        }
        is_done(&talk.invoke("turn/t1", "discard-changes", None));
        assert_eq!((&*repository.read("flagged"), &*repository.read("nested/x")), ("mine\n", "1\n"));
        assert_eq!(repository.read("removed"), "1\n");
        is_done(&talk.invoke("turn/t1", "restore-changes", None));
        assert_eq!((&*repository.read("flagged"), &*repository.read("nested/x")), ("agent\n", "2\n"));
        // The user has said that these are not to be committed.
        assert_eq!(names(&mut talk, &repository, "uncommitted"), [""; 0], "{flag}");
    }
}

#[test]
fn uncommitted_link_shows_its_own_text() {
    let repository = Repository::with(&[("a", "1\n"), ("b", "secret of b\n")]);
    fs::remove_file(repository.path("a")).unwrap();
    symlink("b", repository.path("a")).unwrap();
    symlink("nowhere", repository.path("new")).unwrap();
    let mut talk = begin(&repository);
    let side = |text: &str| Some(("a".to_owned(), text.to_owned()));
    for what in ["uncommitted", "branch"] {
        if what == "uncommitted" {
            uncommitted(&mut talk, &repository, &["a", "new"]);
        } else {
            repository.git(&["checkout", "-q", "-b", "other"]);
        }
        let shown = talk.files(&repository, what);
        assert_eq!((&shown[0].before, &shown[0].after), (&None, &Some(("new".into(), "nowhere".into()))));
        assert_eq!((&shown[1].before, &shown[1].after), (&side("1\n"), &side("b")), "{what}");
    }
    is_done(&talk.invoke("uncommitted", "discard-changes", None));
    assert_eq!((&*repository.read("a"), &*repository.read("b")), ("1\n", "secret of b\n"));
    is_done(&talk.invoke("uncommitted", "restore-changes", None));
    assert_eq!(fs::read_link(repository.path("a")).unwrap().to_str(), Some("b"));
}

#[test]
fn tracked_file_that_becomes_a_pipe_or_socket_is_shown_as_removed_and_stays() {
    let repository = Repository::with(&[("pipe", "1\n"), ("socket", "2\n"), ("a", "1\n")]);
    let mut talk = begin(&repository);
    talk.turn("t1", "/files a=2", || {
        for name in ["pipe", "socket"] {
            fs::remove_file(repository.path(name)).unwrap();
        }
        make_pipe(&repository, "pipe");
        drop(UnixListener::bind(repository.path("socket")).unwrap());
    });
    let removed = |name: &str, text: &str| changed(name, text, "", (0, 1));
    let shown = talk.files(&repository, "turn/t1");
    assert!(
        shown.contains(&removed("pipe", "1\n")) && shown.contains(&removed("socket", "2\n")),
        "{shown:?}"
    );
    uncommitted(&mut talk, &repository, &["a", "pipe", "socket"]);
    for what in ["turn/t1", "uncommitted"] {
        let answer = talk.invoke(what, "discard-changes", None);
        for name in ["pipe", "socket"] {
            let why = "a file that git ignores, or something that is not a regular file, is there now";
            must_name(&repository, &answer, name, why);
        }
        assert_eq!(copy_of(&repository).len(), 1, "{what}");
    }
    fs::remove_file(repository.path("pipe")).unwrap();
    talk.invoke("turn/t1", "discard-changes", None);
    assert_eq!(repository.read("pipe"), "1\n");
}

#[test]
fn removed_folder_with_links_is_discarded() {
    let repository = Repository::with(&[("a", "1\n"), ("d/z", "1\n")]);
    for name in ["d/b", "only"] {
        fs::create_dir_all(repository.path(name)).unwrap();
        symlink("../a", repository.path(name).join("link")).unwrap();
    }
    repository.commit();
    let before = copy_of(&repository);
    let mut talk = begin(&repository);
    talk.turn("t1", "/say x", || {
        for name in ["d", "only"] {
            fs::remove_dir_all(repository.path(name)).unwrap();
        }
    });
    is_done(&talk.invoke("turn/t1", "discard-changes", None));
    assert_eq!(copy_of(&repository), before);
}

#[test]
fn file_already_reverted_by_the_user_is_unchanged_by_discard_and_restore() {
    for has_git in [true, false] {
        let repository = Repository::with(&[("gone", "mine\n"), ("edited", "mine\n"), ("b", "1\n")]);
        if !has_git {
            fs::remove_dir_all(repository.path(".git")).unwrap();
        }
        let mut talk = Talk::begin(&repository);
        talk.turn("t1", "/files gone= edited=agent b=2", || {});
        talk.changeset("turn/t1");
        for name in ["gone", "edited"] {
            repository.write(name, "mine\n");
        }
        for operation in ["discard-changes", "restore-changes"] {
            is_done(&talk.invoke("turn/t1", operation, None));
            assert_eq!((&*repository.read("gone"), &*repository.read("edited")), ("mine\n", "mine\n"));
        }
        assert_eq!(repository.read("b"), "2\n");
        assert_eq!(names(&mut talk, &repository, "turn/t1").len(), 3, "{has_git}");
        // Where that is all there is, too.
        let target = uri(&repository.path("gone"));
        is_done(&talk.invoke("turn/t1", "discard-changes", Some(&target)));
        is_done(&talk.invoke("turn/t1", "restore-changes", None));
        assert_eq!(repository.read("gone"), "mine\n");
    }
}

#[test]
fn content_whose_checkpoint_is_lost_is_checkpointed_again_before_a_discard() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    talk.turn("t1", "/files a=2 new=3", || {});
    // It is known then what has changed.
    assert_eq!(names(&mut talk, &repository, "turn/t1"), ["a", "new"]);
    let head = repository.git(&["rev-parse", "HEAD"]);
    for name in repository.our_refs() {
        repository.git(&["update-ref", "-d", &name]);
    }
    repository.git(&["reflog", "expire", "--expire=now", "--all"]);
    repository.git(&["gc", "-q", "--prune=now"]);
    assert_eq!(repository.git(&["rev-parse", "HEAD"]), head);
    is_done(&talk.invoke("turn/t1", "discard-changes", None));
    assert_eq!((&*repository.read("a"), repository.path("new").exists()), ("1\n", false));
    for text in ["2\n", "3\n"] {
        assert!(repository.keeps("a", 0o100_644, text.as_bytes()), "{text:?} is lost");
    }
    is_done(&talk.invoke("turn/t1", "restore-changes", None));
    assert_eq!((&*repository.read("a"), &*repository.read("new")), ("2\n", "3\n"));
}

#[test]
fn line_endings_changed_by_the_user_before_a_restore_stay_reachable() {
    let repository = Repository::with(&[(".gitattributes", "*.t text\n"), ("a.t", "1\n")]);
    let mut talk = begin(&repository);
    talk.turn("t1", "/files a.t=2", || {});
    is_done(&talk.invoke("turn/t1", "discard-changes", None));
    repository.write("a.t", "1\r\n");
    is_done(&talk.invoke("turn/t1", "restore-changes", None));
    assert_eq!(repository.read("a.t"), "2\n");
    assert!(repository.keeps("raw", 0o100_644, b"1\r\n"), "the user's ends of lines are lost");
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("a.t", "1\n", "2\n", (1, 1))]);
    assert!(!talk.changeset("turn/t1")["operations"].to_string().contains("restore-changes"));
}
