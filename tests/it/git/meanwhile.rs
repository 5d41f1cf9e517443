//! Files that somebody else has in hand while changes are taken back.
//!
//! Owns: that what they have written stays, whenever they have, and although git was told not to
//! look at it.

use std::fs;
use std::path::PathBuf;

use serde_json::{json, Value};

use super::{changed, environment, instead_of_git, uri, Repository, Talk, CHAT, SESSION};
use crate::process::wait_until;
use crate::support::program;

fn message_of(answer: &Value) -> &str {
    answer["result"]["message"].as_str().or(answer["error"]["message"].as_str()).unwrap_or_default()
}

#[test]
fn file_written_during_a_discard_is_not_overwritten() {
    let repository = Repository::with(&[("a", "old a\n"), ("b", "old b\n"), ("gone", "old\n")]);
    // All files were looked at by then, and none was changed.
    let script = format!(
        "case \" $* \" in *' ls-tree '*) cd '{}' && for it in a made gone; do echo mine > $it; done;; esac\nexec $GIT \"$@\"",
        repository.root.display()
    );
    let path = instead_of_git(&repository, &script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.turn("t1", "/files a=new b=new made=new gone=", || {});
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    for name in ["a", "made", "gone"] {
        let told = format!("`{}`: it was changed since", uri(&repository.path(name)));
        assert!(message_of(&answer).contains(&told), "{name}: {answer}");
        assert_eq!(repository.read(name), "mine\n", "{name}");
    }
    assert_eq!(repository.read("b"), "old b\n", "{answer}");
}

#[test]
fn files_flagged_assume_unchanged_or_skip_worktree_are_checked_before_a_revert() {
    for flag in ["--assume-unchanged", "--skip-worktree"] {
        let repository = Repository::with(&[("a", "old\n"), ("b", "old\n")]);
        let mut talk = Talk::begin(&repository);
        talk.turn("t1", "/files a=new b=new", || {});
        talk.invoke("turn/t1", "discard-changes", None);
        repository.git(&["update-index", flag, "a", "b"]);
        repository.write("a", "mine\n");
        let answer = talk.invoke("turn/t1", "restore-changes", None);
        let told = format!("`{}`: it was changed since", uri(&repository.path("a")));
        assert!(message_of(&answer).contains(&told), "{flag}: {answer}");
        assert_eq!((repository.read("a"), repository.read("b")), ("mine\n".to_owned(), "new\n".to_owned()));
        let flags = repository.git(&["ls-files", "-v"]);
        assert!(flags.starts_with(if flag == "--skip-worktree" { "S a" } else { "h a" }), "{flags}");
    }
}

#[test]
fn files_ignored_since_the_turn_are_not_overwritten() {
    let repository = Repository::with(&[("env", "shared\n"), ("b", "old\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files env= b=new made=new", || {});
    assert_eq!(talk.changeset("turn/t1")["files"].as_array().unwrap().len(), 3);
    repository.git(&["rm", "-q", "--cached", "env"]);
    repository.write(".git/info/exclude", "env\nmade\n");
    repository.write("env", "my own\n");
    fs::write(repository.path("made"), "my own, too\n").unwrap();
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    for name in ["env", "made"] {
        let told = format!("`{}`: a file that git ignores", uri(&repository.path(name)));
        assert!(message_of(&answer).contains(&told), "{name}: {answer}");
    }
    assert_eq!(repository.read("env"), "my own\n");
    assert_eq!(repository.read("made"), "my own, too\n");
    assert_eq!(repository.read("b"), "old\n");
}

#[test]
fn hard_linked_files_are_reverted_together() {
    let repository = Repository::with(&[("a", "old\n"), ("b", "old\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/say hello", || {
        for (one, other) in [("made", "made too"), ("a", "b")] {
            repository.write(one, "new\n");
            fs::remove_file(repository.path(other)).unwrap_or_default();
            fs::hard_link(repository.path(one), repository.path(other)).unwrap();
        }
    });
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
}

#[test]
fn discard_of_250_files_needs_few_git_processes() {
    let names: Vec<String> = (0..250).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "old\n")).collect();
    let repository = Repository::with(&files);
    let long = "long\n".repeat(40 << 10);
    repository.write("long", &long);
    repository.write("ends", "old\r\n");
    repository.write(".gitattributes", "ends text eol=crlf\n");
    repository.commit();
    let runs = repository.home.join("runs");
    let script = format!("echo \"$*\" >> '{}'\nexec $GIT \"$@\"", runs.display());
    let path = instead_of_git(&repository, &script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.turn("t1", "/say hello", || {
        for name in &names {
            repository.write(name, format!("new {name}\n"));
        }
        repository.write("long", "short\n");
        repository.write("ends", "new\r\n");
    });
    talk.changeset("turn/t1");
    let all = |name: &str| repository.read(name);
    for (operation, is_old) in [("discard-changes", true), ("restore-changes", false)] {
        fs::write(&runs, "").unwrap();
        let answer = talk.invoke("turn/t1", operation, None);
        assert_eq!(answer["result"], json!({}), "{answer}");
        let runs = fs::read_to_string(&runs).unwrap();
        assert!(runs.lines().count() < 40, "{} runs", runs.lines().count());
        for name in &names {
            let new = format!("new {name}\n");
            assert_eq!(all(name), if is_old { "old\n" } else { &new }, "{name}");
        }
        assert_eq!(all("long"), if is_old { &long } else { "short\n" });
        assert_eq!(all("ends"), if is_old { "old\r\n" } else { "new\r\n" });
    }
}

#[test]
fn discard_during_which_the_git_process_is_killed_can_be_restored() {
    let names: Vec<String> = (0..600).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "old\n")).collect();
    let repository = Repository::with(&files);
    // The process is killed between two batches of files: the first one has been reverted.
    let script = format!(
        "cd '{}'\ncase \" $* \" in *' cat-file --batch '*) if [ ! -e '{}' ] && grep -q old f*; then touch '{1}'; kill -9 $PPID; fi;; esac\nexec $GIT \"$@\"",
        repository.root.display(),
        repository.home.join("killed").display()
    );
    let path = instead_of_git(&repository, &script);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    for name in &names {
        repository.write(name, format!("new {name}\n"));
    }
    talk.create(SESSION, &repository.root);
    talk.wait_until_known();
    let answer = talk.invoke("uncommitted", "discard-changes", None);
    let reverted = names.iter().filter(|name| repository.read(name) == "old\n").count();
    assert!(reverted > 0 && reverted < names.len(), "{reverted}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("may have been changed"), "{answer}");
    let answer = talk.invoke("uncommitted", "restore-changes", None);
    assert_eq!(answer["result"], json!({}), "{answer}");
    for name in &names {
        assert_eq!(repository.read(name), format!("new {name}\n"));
    }
    let offered = talk.changeset("uncommitted")["operations"].clone();
    assert!(!offered.to_string().contains("restore-changes"), "{offered}");
}

#[test]
fn file_changed_behind_a_queued_discard_is_not_overwritten() {
    let repository = Repository::with(&[("a", "old\n"), ("b", "old\n"), ("c", "old\n")]);
    for name in ["a", "b", "c"] {
        repository.write(name, "new\n");
    }
    let (path, here, open) = git_that_waits(&repository);
    let mut talk = Talk::open(&repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.wait_until_known();
    assert_eq!(talk.changeset("uncommitted")["status"], "ready");
    let channel = format!("{SESSION}/changeset/uncommitted");
    let shown = talk.follow(&channel);
    assert_eq!(shown["files"].as_array().unwrap().len(), 3, "{shown}");
    let mut discard = |id: &str, target: Value| {
        let params = json!({ "channel": channel, "operationId": "discard-changes", "target": target });
        let method = "invokeChangesetOperation";
        let invoked = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        talk.process.say(&invoked.to_string());
    };
    let a = uri(&repository.path("a"));
    discard("one", json!({ "kind": "resource", "resource": a }));
    wait_until("git is started", || here.exists());
    discard("all", Value::Null);
    talk.ask("ping", &json!({ "channel": "ahp-root://" }));
    repository.write("b", "newer\n");
    fs::write(&open, "").unwrap();
    let mut heard = talk.process.until(|message| message["id"] == "all");
    let answer = heard.pop().unwrap();
    assert!(message_of(&answer).contains("it has changed since you saw it"), "{answer}");
    let contents = ["a", "b", "c"].map(|name| repository.read(name));
    assert_eq!(contents, ["old\n", "newer\n", "old\n"]);
}

/// Returns a search path with a git that waits in a discard until a file exists; the file by which
/// it says that it waits; and that file.
fn git_that_waits(repository: &Repository) -> (String, PathBuf, PathBuf) {
    let (here, open) = (repository.home.join("here"), repository.home.join("open"));
    let script = format!(
        "case \" $* \" in *' ls-tree '*) touch '{}'; while [ ! -e '{}' ]; do sleep 0.01; done;; esac\nexec $GIT \"$@\"",
        here.display(),
        open.display()
    );
    (instead_of_git(repository, &script), here, open)
}

/// Begins a turn that has changed `a`, and a discard of a changeset, which goes on only once the
/// returned path exists. Then a second turn begins that changes `b`.
fn turn_beside_a_discard(repository: &Repository, scope: &str) -> (Talk, PathBuf) {
    let (path, here, open) = git_that_waits(repository);
    let mut talk = Talk::open(repository, &[("PATH", &path)]);
    talk.create(SESSION, &repository.root);
    talk.turn("t1", "/files a=new", || {});
    let channel = format!("{SESSION}/changeset/{scope}");
    assert_eq!(talk.changeset(scope)["status"], "ready");
    let params = json!({ "channel": channel, "operationId": "discard-changes" });
    let invoked =
        json!({ "jsonrpc": "2.0", "id": "discard", "method": "invokeChangesetOperation", "params": params });
    talk.process.say(&invoked.to_string());
    wait_until("git is started", || here.exists());
    talk.start(CHAT, "t2", "/files b=new");
    (talk, open)
}

#[test]
fn host_that_may_not_use_git_does_not_run_it_for_sessions_that_did() {
    let repository = Repository::with(&[("a", "old\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files a=new", || {});
    assert_eq!(talk.changeset("turn/t1")["status"], "ready");
    assert_eq!(talk.changeset("uncommitted")["status"], "ready");
    talk.process.end();
    talk.process.rest();
    let ran = repository.home.join("ran");
    let path = instead_of_git(&repository, &format!("touch '{}'\nexec $GIT \"$@\"", ran.display()));
    let mut command = program();
    command.arg("--state-dir").arg(&repository.state).args(["--exclusive", "--git", "off"]);
    command.envs(environment(&repository.home)).env("PATH", path);
    let mut talk = Talk::with(command);
    for what in ["uncommitted", "turn/t1", "session"] {
        let state = talk.changeset(what);
        assert_eq!(state["status"], "error", "{what}: {state}");
        assert!(state["error"]["message"].as_str().unwrap().contains("does not use git"), "{state}");
        let answer = talk.invoke(what, "discard-changes", None);
        assert!(answer["error"].is_object(), "{what}: {answer}");
    }
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    talk.process.end();
    talk.process.rest();
    assert!(!ran.exists());
}

#[test]
fn discard_that_a_turn_does_not_wait_for_can_be_restored() {
    let usual = Repository::with(&[("a", "old\n"), ("b", "old\n")]);
    let repository = Repository { wait_ms: 2000, ..usual };
    let (mut talk, open) = turn_beside_a_discard(&repository, "session");
    // The turn waits for git only for so long.
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    fs::write(&open, "").unwrap();
    let mut heard = talk.process.until(|message| message["id"] == "discard");
    let discarded = heard.pop().unwrap();
    assert!(discarded["result"].is_object(), "{discarded}");
    assert_eq!(repository.read("a"), "old\n");
    let restored = talk.invoke("session", "restore-changes", None);
    assert!(restored["result"].is_object(), "{restored}");
    assert_eq!((repository.read("a"), repository.read("b")), ("new\n".to_owned(), "new\n".to_owned()));
}

#[test]
fn changes_of_a_discard_in_progress_are_not_in_the_next_turn() {
    let repository = Repository::with(&[("a", "old\n"), ("b", "old\n")]);
    let (mut talk, open) = turn_beside_a_discard(&repository, "turn/t1");
    talk.until(CHAT, |action| action["type"] == "chat/turnStarted" && action["turnId"] == "t2");
    talk.ask("ping", &json!({ "channel": "ahp-root://" }));
    fs::write(&open, "").unwrap();
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    assert_eq!((repository.read("a"), repository.read("b")), ("old\n".to_owned(), "new\n".to_owned()));
    assert_eq!(talk.files(&repository, "turn/t2"), [changed("b", "old\n", "new\n", (1, 1))]);
}
