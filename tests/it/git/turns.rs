//! Changesets of turns, whatever means made the changes.
//!
//! Owns: changesets of turns and sessions from what git keeps, taking them back, and what is left
//! after a death.
//! Never: looks at which programs run: that is in `programs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{changed, uri, Repository, ShownFile, Talk, CHAT, SESSION};

fn set_mode(repository: &Repository, name: &str, mode: u32) {
    fs::set_permissions(repository.path(name), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn turn_changeset_shows_the_files_changed_by_its_commands() {
    let repository = Repository::with(&[
        ("edited", "1\n2\n"),
        ("removed", "x\n"),
        ("sub/from", "a\nb\nc\nd\n"),
        ("program", "p\n"),
        ("same", "s\n"),
    ]);
    repository.write("mine before", "u\n");
    repository.write("staged", "i\n");
    repository.git(&["add", "staged"]);
    let before = repository.of_the_user();
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files said=new", || {
        repository.write("edited", "1\n3\n4\n");
        fs::remove_file(repository.path("removed")).unwrap();
        fs::rename(repository.path("sub/from"), repository.path("sub/to")).unwrap();
        set_mode(&repository, "program", 0o755);
        symlink("same", repository.path("link")).unwrap();
        repository.write("binary", b"\0\x01");
        repository.write("same", "s\n");
    });
    let link =
        ShownFile { before: None, after: Some(("link".to_owned(), "same".to_owned())), counts: Some((1, 0)) };
    let renamed = ShownFile {
        before: Some(("sub/from".to_owned(), "a\nb\nc\nd\n".to_owned())),
        after: Some(("sub/to".to_owned(), "a\nb\nc\nd\n".to_owned())),
        counts: Some((0, 0)),
    };
    let binary =
        ShownFile { before: None, after: Some(("binary".to_owned(), "\0\u{1}".to_owned())), counts: None };
    let mut wanted = vec![
        binary,
        link,
        changed("said", "", "new\n", (1, 0)),
        changed("edited", "1\n2\n", "1\n3\n4\n", (2, 1)),
        changed("program", "p\n", "p\n", (0, 0)),
        changed("removed", "x\n", "", (0, 1)),
        renamed,
    ];
    wanted.sort();
    assert_eq!(talk.files(&repository, "turn/t1"), wanted);
    assert_eq!(talk.files(&repository, "session"), wanted);
    // What the user does between turns is of no turn, and of the session.
    repository.write("same", "mine\n");
    talk.turn("t2", "/say hello", || repository.write("edited", "5\n"));
    assert_eq!(talk.files(&repository, "turn/t1"), wanted);
    assert_eq!(talk.files(&repository, "turn/t2"), [changed("edited", "1\n3\n4\n", "5\n", (1, 3))]);
    let session = talk.files(&repository, "session");
    assert!(session.contains(&changed("edited", "1\n2\n", "5\n", (1, 2))), "{session:?}");
    assert!(session.contains(&changed("same", "s\n", "mine\n", (1, 1))), "{session:?}");
    assert_eq!(repository.of_the_user(), before);
    assert_eq!(talk.rows()["session"], "Changes in the repository during this session");
    // A turn that has changed nothing says so.
    talk.turn("t3", "/say hello", || ());
    assert_eq!(talk.files(&repository, "turn/t3"), []);
    let summary = talk.ask("listSessions", &json!({ "channel": "ahp-root://" }));
    assert_eq!(summary["result"]["items"][0]["changes"]["files"], 8, "{summary}");
}

#[test]
fn turn_changeset_shows_the_files_changed_by_a_command_line() {
    let repository = Repository::with(&[("edited", "1\n"), ("removed", "x\n")]);
    let mut talk = Talk::begin(&repository);
    talk.follow(CHAT);
    talk.start(CHAT, "t1", "!echo 2 >> edited; rm removed");
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    let wanted = [changed("edited", "1\n", "1\n2\n", (1, 0)), changed("removed", "x\n", "", (0, 1))];
    assert_eq!(talk.files(&repository, "turn/t1"), wanted);
    assert_eq!(talk.files(&repository, "session"), wanted);
}

#[test]
fn turn_is_discarded_and_restored() {
    let repository =
        Repository::with(&[("edited", "1\n"), ("removed", "x\n"), ("from", "a\nb\nc\n"), ("program", "p\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files said=new sub/deep/new=x", || {
        repository.write("edited", "2\n");
        repository.write("since", "2\n");
        fs::remove_file(repository.path("removed")).unwrap();
        fs::rename(repository.path("from"), repository.path("to")).unwrap();
        set_mode(&repository, "program", 0o755);
        symlink("edited", repository.path("link")).unwrap();
    });
    let all = talk.files(&repository, "turn/t1");
    repository.write("since", "3\n");
    let answer = talk.invoke("turn/t1", "discard-changes", None);
    let message = answer["result"]["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("/since`: it was changed since"), "{answer}");
    let status = || repository.git(&["status", "--porcelain", "-z"]);
    assert_eq!(status(), "?? since\0");
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("since", "", "2\n", (1, 0))]);
    assert_eq!(talk.files(&repository, "session"), [changed("since", "", "3\n", (1, 0))]);
    let answer = talk.invoke("turn/t1", "restore-changes", None);
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert_eq!(talk.files(&repository, "turn/t1"), all);
    assert_eq!(repository.read("sub/deep/new"), "x\n");
    assert_eq!(
        fs::read_link(repository.path("link")).unwrap(),
        repository.path("edited").file_name().unwrap()
    );
    assert_ne!(fs::metadata(repository.path("program")).unwrap().permissions().mode() & 0o111, 0);
    assert!(!repository.path("from").exists() && repository.read("to") == "a\nb\nc\n");
    // One file alone.
    let target = uri(&repository.path("edited"));
    talk.invoke("turn/t1", "discard-changes", Some(&target));
    assert_eq!(repository.read("edited"), "1\n");
    assert!(!talk.files(&repository, "turn/t1").iter().any(|file| file.counts == Some((1, 1))));
}

#[test]
fn checkpoints_survive_a_host_kill_and_are_deleted_with_their_session() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/say x", || repository.write("a", "2\n"));
    let wanted = [changed("a", "1\n", "2\n", (1, 1))];
    assert_eq!(talk.files(&repository, "turn/t1"), wanted);
    let given = talk.changeset("turn/t1");
    let given = given["files"][0]["edit"]["before"]["content"]["uri"].as_str().unwrap().to_owned();
    // It dies in the middle of a turn.
    talk.start(CHAT, "t2", "/ask go");
    talk.asked(CHAT);
    repository.write("a", "3\n");
    talk.process.child.kill().unwrap();
    talk.process.wait();
    repository.git(&["gc", "-q", "--prune=now"]);
    repository.write("a", "4\n");
    let mut talk = Talk::open(&repository, &[]);
    assert_eq!(talk.content(&given), "1\n");
    assert_eq!(talk.files(&repository, "turn/t1"), wanted);
    assert_eq!(talk.files(&repository, "turn/t2"), [changed("a", "2\n", "4\n", (1, 1))]);
    // Nobody can make up what was not given out.
    let made_up = given.replacen("100644-", "100755-", 1);
    assert_eq!(talk.content(&made_up), "error -32008");
    assert!(!repository.our_refs().is_empty());
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    while !repository.our_refs().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn concurrent_turns_in_one_repository_show_only_the_edits_of_their_calls() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::begin(&repository);
    let other = "ahp-chat:/other";
    talk.ask("createChat", &json!({ "channel": SESSION, "chat": other }));
    talk.follow(CHAT);
    talk.start(CHAT, "t1", "/files one=1\n/ask go");
    let call = talk.asked(CHAT);
    talk.turn_in(other, "t2", "/files two=2", || repository.write("a", "2\n"));
    talk.allow(CHAT, "t1", &call);
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("one", "", "1\n", (1, 0))]);
    assert_eq!(talk.files(&repository, "turn/t2"), [changed("two", "", "2\n", (1, 0))]);
    let session = talk.files(&repository, "session");
    assert_eq!(session.len(), 3, "{session:?}");
    // One after the other they are told apart again.
    talk.turn("t3", "/say x", || repository.write("a", "3\n"));
    assert_eq!(talk.files(&repository, "turn/t3"), [changed("a", "2\n", "3\n", (1, 1))]);
    // Of two sessions it is not known what either has changed.
    talk.create("ahp-session:/2", &repository.root.join("."));
    let theirs = "ahp-chat://default/YWhwLXNlc3Npb246LzI";
    talk.start(CHAT, "t4", "/ask go");
    let call = talk.asked(CHAT);
    talk.turn_in(theirs, "u1", "/say x", || repository.write("a", "4\n"));
    talk.allow(CHAT, "t4", &call);
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    assert_eq!(talk.changeset("turn/t4")["status"], "error");
    let session = talk.files(&repository, "session");
    assert_eq!(session.len(), 2, "{session:?}");
}

/// Changes by others while a turn waits for its agent, or before it is resumed, are not in its
/// changeset. Changes a file while a turn `u1` of a session of its own waits for its agent, which
/// is ready after `open_ms` milliseconds; `None` if that may have passed before the file was
/// changed.
fn changed_before_an_agent_begins(other: &str, chat: &str, open_ms: u64) -> Option<(Repository, Talk)> {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::begin(&repository);
    let config = json!({ "openMs": open_ms });
    let params = json!({ "channel": other, "workingDirectories": [uri(&repository.root)], "config": config });
    talk.follow(CHAT);
    talk.start(CHAT, "t1", "/ask go");
    let call = talk.asked(CHAT);
    let asked_at = Instant::now();
    talk.ask("createSession", &params);
    talk.follow(chat);
    talk.start(chat, "u1", "/files said=1");
    // Its folder is kept, and its agent is not ready yet.
    while repository.our_refs().len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    repository.write("a", "2\n");
    let in_time = asked_at.elapsed() < Duration::from_millis(open_ms);
    talk.allow(CHAT, "t1", &call);
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    talk.until(chat, |action| action["type"] == "chat/turnComplete");
    in_time.then_some((repository, talk))
}

#[test]
fn changes_before_the_agent_starts_are_not_in_its_turn() {
    let (other, chat) = ("ahp-session:/2", "ahp-chat://default/YWhwLXNlc3Npb246LzI");
    // On a busy machine any time may be too short.
    let mut tries = [2000, 8000, 30_000].into_iter();
    let tried = tries.find_map(|open_ms| changed_before_an_agent_begins(other, chat, open_ms));
    let (repository, mut talk) = tried.expect("the file is changed before the agent is ready");
    let channel = format!("{other}/changeset/turn/u1");
    let names = |state: &serde_json::Value| -> Vec<String> {
        let files = state["files"].as_array().unwrap();
        files.iter().map(|file| file["id"].as_str().unwrap().to_owned()).collect()
    };
    let state = loop {
        let state = talk.follow(&channel);
        if state["status"] != "computing" {
            break state;
        }
        talk.process.say(
            &json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": { "channel": channel } })
                .to_string(),
        );
    };
    assert_eq!(names(&state), [uri(&repository.path("said"))], "{state}");
    // A turn is taken up again behind another one.
    let second = "ahp-chat:/second";
    talk.ask("createChat", &json!({ "channel": SESSION, "chat": second }));
    talk.start(CHAT, "t2", "/files mine=1\n/error-resumable x\n/files mine=2");
    talk.until(CHAT, |action| action["type"] == "chat/error");
    talk.turn_in(second, "t3", "/say x", || repository.write("a", "3\n"));
    talk.dispatch(CHAT, &json!({ "type": "chat/turnResume", "turnId": "t2" }));
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    assert_eq!(talk.files(&repository, "turn/t2"), [changed("mine", "", "2\n", (1, 0))]);
}

#[test]
fn chat_with_the_uri_of_a_disposed_one_does_not_show_changes_made_between_them() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::begin(&repository);
    let chat = "ahp-chat:/again";
    let create = json!({ "channel": SESSION, "chat": chat });
    talk.ask("createChat", &create);
    talk.turn_in(chat, "t1", "/files one=1", || ());
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("one", "", "1\n", (1, 0))]);
    talk.ask("disposeChat", &json!({ "channel": chat }));
    repository.write("a", "by hand\n");
    talk.ask("createChat", &create);
    talk.turn_in(chat, "t1", "/files two=2", || ());
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("two", "", "2\n", (1, 0))]);
}

#[test]
fn file_too_large_for_a_checkpoint_is_listed_without_content() {
    let mut repository = Repository::with(&[("a", "1\n")]);
    repository.limit = Some(1 << 20);
    let large = vec![b'x'; 2 << 20];
    repository.write("there", &large);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/say x", || {
        repository.write("new", &large);
        repository.write("there", &large[1..]);
    });
    let unknown = |name: &str| Some((name.to_owned(), "error -32008".to_owned()));
    let new = ShownFile { before: None, after: unknown("new"), counts: None };
    let there = ShownFile { before: unknown("there"), after: unknown("there"), counts: None };
    assert_eq!(talk.files(&repository, "turn/t1"), [new, there]);
    let objects = repository.git(&["count-objects", "-v"]);
    let size = objects.lines().find_map(|line| line.strip_prefix("size: ")).unwrap();
    assert!(size.parse::<u64>().unwrap() < 1000, "{objects}");
}

#[test]
fn change_repeated_after_a_discard_is_shown_again() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::begin(&repository);
    let wanted = [changed("a", "1\n", "2\n", (1, 1))];
    talk.turn("t1", "/files a=2", || ());
    assert_eq!(talk.invoke("session", "discard-changes", None)["result"], json!({}));
    let shown = |talk: &mut Talk| {
        while talk.changeset("session")["status"] != "ready" {}
        talk.files(&repository, "session")
    };
    assert_eq!(shown(&mut talk), []);
    talk.turn("t2", "/files a=2", || ());
    assert_eq!(talk.files(&repository, "turn/t2"), wanted);
    assert_eq!(shown(&mut talk), wanted);
    assert_eq!(talk.invoke("session", "discard-changes", None)["result"], json!({}));
    assert_eq!(repository.read("a"), "1\n");
}

#[test]
fn changesets_beyond_the_cache_limit_all_become_ready() {
    let repository = Repository::with(&[("a", "0\n")]);
    let mut talk = Talk::begin(&repository);
    let turns: Vec<String> = (0..16).map(|at| format!("t{at}")).collect();
    talk.follow(CHAT);
    for turn in &turns {
        talk.start(CHAT, turn, &format!("/files a={turn}"));
        talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    }
    for turn in &turns {
        talk.changeset(&format!("turn/{turn}"));
    }
    let pairs = turns.iter().flat_map(|one| turns.iter().map(move |other| (one, other)));
    let followed: Vec<String> = pairs
        .filter(|(one, other)| one != other)
        .map(|(one, other)| format!("{SESSION}/changeset/compare/{one}/{other}"))
        .collect();
    assert_eq!(followed.len(), 240);
    talk.heard.clear();
    // What lies between the ends of two turns that follow each other is known.
    let mut is_ready: BTreeSet<String> = BTreeSet::new();
    is_ready.extend(followed.iter().filter(|channel| talk.follow(channel)["status"] == "ready").cloned());
    // Of the others it is told once what they show, and that this is all.
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    let mut heard = std::mem::take(&mut talk.heard).into_iter();
    while is_ready.len() < followed.len() {
        let message = heard.next().unwrap_or_else(|| talk.process.next());
        let params = &message["params"];
        let Some(channel) = followed.iter().find(|channel| params["channel"] == channel.as_str()) else {
            continue;
        };
        *told.entry(channel.clone()).or_default() += 1;
        if params["action"]["type"] == "changeset/statusChanged" {
            assert_eq!(params["action"]["status"], "ready", "{message}");
            is_ready.insert(channel.clone());
        }
        assert!(told[channel] <= 3, "{message}");
    }
}

#[test]
fn failed_comparison_is_retried_on_the_next_subscription() {
    let repository = Repository::with(&[("a", "0\n")]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files a=1", || {});
    talk.turn("t2", "/files a=2", || {});
    talk.changeset("turn/t2");
    let objects = repository.path(".git/objects");
    let aside = repository.path(".git/aside");
    let channel = format!("{SESSION}/changeset/compare/t2/t1");
    fs::rename(&objects, &aside).unwrap();
    fs::create_dir(&objects).unwrap();
    talk.follow(&channel);
    talk.until(&channel, |action| action["status"] == "error");
    fs::remove_dir(&objects).unwrap();
    fs::rename(&aside, &objects).unwrap();
    talk.follow(&channel);
    talk.until(&channel, |action| action["status"] == "ready");
    assert_eq!(talk.files(&repository, "compare/t2/t1"), [changed("a", "2\n", "1\n", (1, 1))]);
}

#[test]
fn discarded_change_stays_discarded_after_turns_become_concurrent() {
    let repository = Repository::with(&[("a", "0\n")]);
    let mut talk = Talk::begin(&repository);
    let (other, chat) = ("ahp-session:/2", "ahp-chat://default/YWhwLXNlc3Npb246LzI");
    talk.create(other, &repository.root);
    talk.follow(chat);
    talk.turn("t1", "/files new=1 a=1", || {});
    let new = uri(&repository.path("new"));
    assert_eq!(talk.invoke("turn/t1", "discard-changes", Some(&new))["result"], json!({}));
    talk.follow(CHAT);
    talk.start(CHAT, "t2", "/files more=2\n/ask go");
    let call = talk.asked(CHAT);
    talk.start(chat, "u1", "/say hello");
    talk.until(chat, |action| action["type"] == "chat/turnComplete");
    talk.allow(CHAT, "t2", &call);
    talk.until(CHAT, |action| action["type"] == "chat/turnComplete");
    // Only calls tell from here on what the session has done.
    let [more, new, a] = [
        changed("more", "", "2\n", (1, 0)),
        changed("new", "", "1\n", (1, 0)),
        changed("a", "0\n", "1\n", (1, 1)),
    ];
    assert_eq!(talk.files(&repository, "session"), [more.clone(), a.clone()]);
    assert_eq!(talk.invoke("turn/t1", "restore-changes", None)["result"], json!({}));
    assert_eq!(talk.files(&repository, "session"), [more, new, a]);
}

#[test]
fn checkpoints_are_deleted_with_their_session_although_git_fails_once() {
    let repository = Repository::with(&[("a", "1\n")]);
    let fails = repository.home.join("fails");
    let script = format!(
        "case \"$*\" in *'for-each-ref --format=%(refname) refs/ahp-sidecar/'*) rm '{}' 2>/dev/null && exit 1;; esac\nexec $GIT \"$@\"",
        fails.display()
    );
    let mut talk = Talk::open(&repository, &[("PATH", &super::instead_of_git(&repository, &script))]);
    talk.create(SESSION, &repository.root);
    talk.turn("t1", "/files a=2", || {});
    talk.changeset("turn/t1");
    assert_ne!(repository.our_refs(), [""; 0]);
    fs::write(&fails, "").unwrap();
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    talk.process.end();
    talk.process.rest();
    assert!(talk.process.wait().success());
    assert!(!fails.exists());
    assert_eq!(repository.our_refs(), [""; 0]);
}
