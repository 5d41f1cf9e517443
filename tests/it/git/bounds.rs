//! More files, and larger ones, than are kept or shown; and files that are not what git has of
//! them.
//!
//! Owns: that what is not kept is neither shown as if it were nor taken back, and that the rest is.
//! Never: measures how long anything takes.

use std::fs;

use ahp_sidecar::host::effects::{GitReport, GitRevert, GitWork, RevertOutcome};
use serde_json::{json, Value};

use super::model::Asker;
use super::{changed, uri, Repository, Talk, CHAT, SESSION};

fn write_many(repository: &Repository, count: usize) {
    fs::create_dir_all(repository.path("many")).unwrap();
    for number in 0..count {
        fs::write(repository.path(&format!("many/{number}")), "1\n").unwrap();
    }
}

fn count_many(repository: &Repository) -> usize {
    fs::read_dir(repository.path("many")).map_or(0, Iterator::count)
}

fn message_of(answer: &Value) -> &str {
    answer["result"]["message"].as_str().or(answer["error"]["message"].as_str()).unwrap_or_default()
}

/// A host that has seen the repository.
fn begin(repository: &Repository) -> Talk {
    let mut talk = Talk::begin(repository);
    talk.wait_until_known();
    talk
}

/// A changeset when it is computed, as of now.
fn ready(talk: &mut Talk, what: &str) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let state = talk.changeset(what);
        if state["status"] == "ready" || state["status"] == "error" {
            return state;
        }
        assert!(begun.elapsed() < crate::support::HUNG, "{what} stays {}", state["status"]);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Of those that git does not have 2,000 are kept, and taken back; the others are known by their
/// names, and stay.
#[test]
fn new_files_beyond_the_checkpoint_limit_are_not_reverted() {
    let repository = Repository::with(&[("a", "1\n")]);
    let asker = Asker::new(&repository);
    let before = asker.checkpoint(1, None);
    write_many(&repository, 2003);
    let changes = asker.compare(&before, &asker.checkpoint(2, Some(&before)));
    assert_eq!(changes.len(), 2003);
    let files = changes.iter().map(|change| GitRevert {
        file: change.file.clone(),
        now: change.after.clone(),
        wanted: None,
        bytes_now: None,
        bytes_wanted: None,
        mode_wanted: None,
    });
    let (files, below) = (files.collect(), vec![uri(&repository.root)]);
    let taken = GitWork::Revert {
        files,
        below,
        own: Vec::new(),
        reported: Vec::new(),
        checkpoint_first: None,
        bytes_retained: None,
    };
    let GitReport::Reverted(outcomes) = asker.ask(taken) else { panic!("nothing is taken back") };
    let is_refused = |outcome: &&RevertOutcome| matches!(outcome, RevertOutcome::Refused(why) if why.contains("its content was not checkpointed"));
    assert_eq!(outcomes.iter().filter(is_refused).count(), 3);
    assert_eq!(count_many(&repository), 3);
}

/// Files beyond the limit are not shown to the user, so operations do not touch them.
#[test]
fn files_beyond_the_display_limit_are_counted_and_not_discarded() {
    let repository = Repository::with(&[("a", "1\n")]);
    write_many(&repository, 5001);
    let mut talk = begin(&repository);
    let state = ready(&mut talk, "uncommitted");
    let message = state["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(message, "5001 files were changed, and at most 5000 are shown", "{}", state["status"]);
    assert_eq!(state["operations"], Value::Null);
    for operation in ["discard-changes", "commit"] {
        let answer = talk.invoke("uncommitted", operation, None);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    assert_eq!(count_many(&repository), 5001);
    assert_eq!(repository.git(&["rev-list", "--count", "HEAD"]), "1\n");
}

#[test]
fn file_too_large_for_a_checkpoint_is_not_discarded_while_others_are() {
    let mut repository = Repository::with(&[("a", "1\n"), ("there", "1\n")]);
    repository.limit = Some(10_000);
    let giant = vec![b'x'; 10_001];
    let mut talk = begin(&repository);
    repository.write("a", "2\n");
    for name in ["there", "new"] {
        repository.write(name, &giant);
    }
    repository.write("small", "s\n");
    while talk.changeset("uncommitted")["files"].as_array().map(Vec::len) != Some(4) {}
    let answer = talk.invoke("uncommitted", "discard-changes", None);
    for name in ["there", "new"] {
        let told = format!("`{}`: its content was not checkpointed", uri(&repository.path(name)));
        assert!(message_of(&answer).contains(&told), "{answer}");
        assert!(fs::read(repository.path(name)).unwrap() == giant, "{name}");
    }
    assert_eq!(repository.read("a"), "1\n");
    assert!(!repository.path("small").exists());
    assert_eq!(talk.invoke("uncommitted", "restore-changes", None)["result"], json!({}));
    assert_eq!((&*repository.read("a"), &*repository.read("small")), ("2\n", "s\n"));
}

/// Git's content of an LFS file is a pointer, which must not replace the file.
#[test]
fn lfs_pointer_does_not_replace_a_file() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    let repository = Repository::with(&[(".gitattributes", "*.large filter=lfs\n"), ("a", "1\n")]);
    for name in ["x.large", "gone.large", "pointer.large"] {
        repository.write(name, pointer);
    }
    repository.commit();
    // As after a checkout with the filter: git takes them for unchanged.
    repository.git(&["config", "filter.lfs.clean", "true"]);
    for name in ["x.large", "gone.large"] {
        repository.write(name, "real\n");
        // As git sees it later, when it does not read it again to be sure.
        let file = fs::File::options().write(true).open(repository.path(name)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30))
            .unwrap();
        repository.git(&["-c", "filter.lfs.clean=cat pointer.large", "add", name]);
    }
    repository.git(&["config", "filter.lfs.clean", "false"]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files a=2 pointer.large=other", || {
        repository.write("x.large", "other\n");
        fs::remove_file(repository.path("gone.large")).unwrap();
    });
    let x = changed("x.large", pointer, "other\n", (1, 3));
    let shown = talk.files(&repository, "turn/t1");
    assert!(shown.contains(&x), "{shown:?}");
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    for name in ["x.large", "gone.large"] {
        let told = format!("`{}`: it needs a filter (LFS)", uri(&repository.path(name)));
        assert!(message_of(&answer).contains(&told), "{answer}");
    }
    assert_eq!((&*repository.read("a"), &*repository.read("x.large")), ("1\n", "other\n"));
    assert!(!repository.path("gone.large").exists());
    // Where nothing filters it, what git has is the file.
    repository.git(&["config", "--unset", "filter.lfs.clean"]);
    assert_eq!(talk.invoke("turn/t1", "discard-changes", None)["result"], json!({}));
    assert_eq!((&*repository.read("x.large"), &*repository.read("gone.large")), (pointer, pointer));
}

/// Files written after a turn belong to no turn, or to the one that runs then.
#[test]
fn files_written_after_a_cancelled_turn_are_not_in_its_changeset() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::begin(&repository);
    talk.follow(CHAT);
    talk.start(CHAT, "t1", "/files a=2\n/ask go");
    talk.asked(CHAT);
    talk.dispatch(CHAT, &json!({ "type": "chat/turnCancelled", "turnId": "t1" }));
    talk.until(CHAT, |action| action["type"] == "chat/turnCancelled");
    let own = [changed("a", "1\n", "2\n", (1, 1))];
    assert_eq!(ready(&mut talk, "turn/t1")["status"], "ready");
    repository.write("late", "1\n");
    talk.turn("t2", "/files b=1", || repository.write("later", "1\n"));
    assert_eq!(talk.files(&repository, "turn/t1"), own);
    let next = [changed("b", "", "1\n", (1, 0)), changed("later", "", "1\n", (1, 0))];
    assert_eq!(talk.files(&repository, "turn/t2"), next);
    ready(&mut talk, "session");
    let session = talk.files(&repository, "session");
    assert!(session.contains(&changed("late", "", "1\n", (1, 0))) && session.len() == 4, "{session:?}");
    // Taken back is what is the turn's.
    assert_eq!(talk.invoke("turn/t1", "discard-changes", None)["result"], json!({}));
    assert_eq!((&*repository.read("a"), &*repository.read("late")), ("1\n", "1\n"));
    let known = talk.follow(SESSION);
    assert!(!known.to_string().contains("could not be checkpointed"), "{known}");
}
