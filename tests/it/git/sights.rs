//! Changesets of uncommitted changes, of a branch, and between two turns.
//!
//! Owns: changesets that show what is there now, that they follow what happens, and what a session
//! says of its repository.
//! Never: waits for a time: what is to come is waited for itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{json, Value};

use super::{changed, instead_of_git, uri, Repository, ShownFile, Talk, SESSION};

fn channel(what: &str) -> String {
    format!("{SESSION}/changeset/{what}")
}

/// Looks at a changeset until it shows this.
fn shows(talk: &mut Talk, repository: &Repository, what: &str, mut wanted: Vec<ShownFile>) {
    wanted.sort();
    let start = std::time::Instant::now();
    loop {
        let found = talk.files(repository, what);
        if found == wanted {
            return;
        }
        assert!(start.elapsed() < crate::support::HUNG, "{what}: {found:?}, and not {wanted:?}");
    }
}

/// Begins, and waits until the repository is seen.
fn begin(repository: &Repository) -> Talk {
    let mut talk = Talk::begin(repository);
    if talk.rows().is_empty() {
        talk.until(SESSION, |action| action["type"] == "session/changesetsChanged");
    }
    talk
}

fn meta(talk: &mut Talk) -> Value {
    talk.follow(SESSION)["_meta"]["git"].clone()
}

#[test]
fn uncommitted_changes_are_shown_and_updated() {
    // Git's metadata folder has a folder `logs`, too.
    let files = [("a", "1\n"), ("gone", "x\n"), ("staged", "1\n"), ("logs/l", "1\n")];
    let repository = Repository::with(&files);
    let before = repository.of_the_user();
    repository.write("a", "2\n");
    repository.write("new", "n\n");
    fs::remove_file(repository.path("gone")).unwrap();
    let mut talk = begin(&repository);
    let kinds: Vec<String> = talk.rows().into_keys().collect();
    assert_eq!(kinds, ["branch", "compare-turns", "session", "turn", "uncommitted"]);
    let wanted = vec![
        changed("a", "1\n", "2\n", (1, 1)),
        changed("gone", "x\n", "", (0, 1)),
        changed("new", "", "n\n", (1, 0)),
    ];
    shows(&mut talk, &repository, "uncommitted", wanted.clone());
    let state = talk.changeset("uncommitted");
    let file =
        state["files"].as_array().unwrap().iter().find(|file| file["id"] == uri(&repository.path("a")));
    let after = &file.unwrap()["edit"]["after"]["content"];
    assert_eq!(after["uri"], uri(&repository.path("a")));
    assert_eq!(after["nonce"].as_str().unwrap().len(), 40);
    // Who follows it is told what happens: to files, in the index, and by a commit.
    talk.follow(&channel("uncommitted"));
    let told = |talk: &mut Talk, name: &str, kind: &str| {
        let id = uri(&repository.path(name));
        talk.until(&channel("uncommitted"), |action| {
            action["type"] == kind && (action["file"]["id"] == id || action["fileId"] == id)
        })
    };
    repository.write("staged", "2\n");
    let set = talk.until(&channel("uncommitted"), |action| action.to_string().contains("/staged\""));
    assert!(set["type"] == "changeset/fileSet" || set["type"] == "changeset/contentChanged", "{set}");
    repository.write("a", "1\n");
    told(&mut talk, "a", "changeset/fileRemoved");
    repository.write("logs/l", "2\n");
    talk.until(&channel("uncommitted"), |action| action.to_string().contains("/logs/l\""));
    repository.commit();
    told(&mut talk, "new", "changeset/fileRemoved");
    assert_eq!(talk.files(&repository, "uncommitted"), []);
    assert_ne!(repository.of_the_user(), before);
    assert_eq!(repository.our_refs(), [""; 0]);
}

#[test]
fn branch_changes_are_compared_with_the_branch_at_session_start() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    repository.git(&["checkout", "-q", "-b", "work"]);
    repository.write("a", "2\n");
    repository.commit();
    repository.write("b", "b\n");
    let wanted = vec![changed("a", "1\n", "2\n", (1, 1)), changed("b", "", "b\n", (1, 0))];
    shows(&mut talk, &repository, "branch", wanted);
    shows(&mut talk, &repository, "uncommitted", vec![changed("b", "", "b\n", (1, 0))]);
    let wanted = json!({
        "branchName": "work", "isDetachedHead": false, "baseBranchName": "main",
        "uncommittedChanges": 1, "hasBaseBranchChanges": true,
    });
    assert_eq!(meta(&mut talk), wanted);
}

#[test]
fn branch_with_an_upstream_is_compared_with_the_upstream() {
    let other = Repository::with(&[("a", "1\n")]);
    let repository = Repository::empty();
    let from = other.root.to_str().unwrap();
    repository.git(&["remote", "add", "origin", from]);
    repository.git(&["fetch", "-q", "origin"]);
    repository.git(&["checkout", "-q", "-b", "main", "--track", "origin/main"]);
    repository.write("a", "2\n");
    repository.commit();
    let mut talk = begin(&repository);
    shows(&mut talk, &repository, "branch", vec![changed("a", "1\n", "2\n", (1, 1))]);
    let wanted = json!({
        "branchName": "main", "isDetachedHead": false, "baseBranchName": "origin/main",
        "upstreamBranchName": "origin/main", "incomingChanges": 0, "outgoingChanges": 1,
        "uncommittedChanges": 0, "hasBaseBranchChanges": true,
    });
    assert_eq!(meta(&mut talk), wanted);
}

#[test]
fn repository_without_a_commit_or_a_branch_is_shown() {
    let repository = Repository::empty();
    repository.write("a", "1\n");
    let mut talk = begin(&repository);
    shows(&mut talk, &repository, "uncommitted", vec![changed("a", "", "1\n", (1, 0))]);
    shows(&mut talk, &repository, "branch", vec![changed("a", "", "1\n", (1, 0))]);
    repository.commit();
    repository.git(&["checkout", "-q", "--detach"]);
    repository.write("a", "2\n");
    shows(&mut talk, &repository, "uncommitted", vec![changed("a", "1\n", "2\n", (1, 1))]);
    assert_eq!(meta(&mut talk)["isDetachedHead"], true);
}

#[test]
fn uncommitted_changes_are_discarded_and_restored() {
    let repository = Repository::with(&[("a", "1\n"), ("gone", "x\n")]);
    repository.write("a", "2\n");
    repository.write("new/n", "n\n");
    fs::remove_file(repository.path("gone")).unwrap();
    // What others may not read, they may not read afterwards, either.
    fs::set_permissions(repository.path("new/n"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut talk = begin(&repository);
    let all = vec![
        changed("a", "1\n", "2\n", (1, 1)),
        changed("gone", "x\n", "", (0, 1)),
        changed("new/n", "", "n\n", (1, 0)),
    ];
    shows(&mut talk, &repository, "uncommitted", all.clone());
    let target = uri(&repository.path("new/n"));
    let answer = talk.invoke("uncommitted", "discard-changes", Some(&target));
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert!(!repository.path("new/n").exists());
    shows(&mut talk, &repository, "uncommitted", all[..2].to_vec());
    // What git never had is there nevertheless.
    repository.git(&["gc", "-q", "--prune=now"]);
    let answer = talk.invoke("uncommitted", "restore-changes", None);
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert_eq!(repository.read("new/n"), "n\n");
    assert_eq!(fs::metadata(repository.path("new/n")).unwrap().permissions().mode() & 0o777, 0o600);
    shows(&mut talk, &repository, "uncommitted", all.clone());
    talk.invoke("uncommitted", "discard-changes", None);
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
    shows(&mut talk, &repository, "uncommitted", Vec::new());
    // A branch is nothing to be discarded.
    assert_eq!(talk.changeset("branch")["operations"], Value::Null);
    // While a turn runs nothing is.
    talk.turn("t1", "/say x", || ());
    talk.follow(super::CHAT);
    talk.start(super::CHAT, "t2", "/files said=x\n/ask go");
    let call = talk.asked(super::CHAT);
    let offered = talk.changeset("uncommitted")["operations"].clone();
    let offered = offered.as_array().unwrap();
    assert!(offered.iter().any(|operation| operation["id"] == "restore-changes"), "{offered:?}");
    assert!(offered.iter().all(|operation| operation["status"] == "disabled"), "{offered:?}");
    talk.allow(super::CHAT, "t2", &call);
}

/// Says requests in one write; what is answered, in their order.
fn at_once(talk: &mut Talk, operations: &[(&str, &str)]) -> Vec<Value> {
    let numbers = 1000..1000 + operations.len();
    let requests = numbers.clone().zip(operations).map(|(id, (what, operation))| {
        let params = json!({ "channel": channel(what), "operationId": operation });
        json!({ "jsonrpc": "2.0", "id": id, "method": "invokeChangesetOperation", "params": params })
    });
    let lines: Vec<String> = requests.map(|request| request.to_string()).collect();
    talk.process.say(&lines.join("\n"));
    let mut answers: Vec<Value> = Vec::new();
    while answers.len() < operations.len() {
        answers.extend(Some(talk.process.next()).filter(|message| message.get("id").is_some()));
    }
    let ids: Vec<usize> =
        answers.iter().filter_map(|answer| answer["id"].as_u64()?.try_into().ok()).collect();
    assert_eq!(ids, Vec::from_iter(numbers), "{answers:?}");
    answers.into_iter().map(|mut answer| answer["result"].take()).collect()
}

/// Each operation knows what the one before it has done, followed or not, and whether it has ended
/// or not.
#[test]
fn concurrent_operations_see_the_results_of_earlier_ones() {
    for follows in [false, true] {
        let repository = Repository::with(&[("a", "1\n")]);
        let mut talk = begin(&repository);
        talk.turn("t1", "/say x", || {
            repository.write("a", "2\n");
            repository.write("new", "n\n");
        });
        for what in ["uncommitted", "session"].into_iter().filter(|_| follows) {
            talk.changeset(what);
            talk.follow(&channel(what));
        }
        let [discard, restore] = ["discard-changes", "restore-changes"];
        for what in ["uncommitted", "turn/t1", "session"] {
            let answers = at_once(&mut talk, &[(what, discard), (what, restore), (what, discard)]);
            assert_eq!(answers, [json!({}), json!({}), json!({})], "{what}");
            assert_eq!(repository.git(&["status", "--porcelain"]), "", "{what}");
            assert_eq!(at_once(&mut talk, &[(what, restore)]), [json!({})], "{what}");
            assert_eq!(
                (repository.read("a"), repository.read("new")),
                ("2\n".into(), "n\n".into()),
                "{what}"
            );
        }
        let across = [("turn/t1", discard), ("turn/t1", restore), ("session", discard), ("session", restore)];
        assert_eq!(at_once(&mut talk, &across), [json!({}), json!({}), json!({}), json!({})]);
        // The same is done once.
        let answers = at_once(&mut talk, &[("uncommitted", discard), ("uncommitted", discard)]);
        assert_eq!(answers, [json!({}), json!({})]);
    }
}

/// A queued operation is carried out and answered after the end of the client's input.
#[test]
fn queued_operation_is_completed_after_the_end_of_input() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    repository.write("a", "2\n");
    let params = json!({ "channel": channel("uncommitted"), "operationId": "discard-changes" });
    let request =
        json!({ "jsonrpc": "2.0", "id": 1000, "method": "invokeChangesetOperation", "params": params });
    talk.process.say(&request.to_string());
    talk.process.end();
    let mut lines = std::iter::from_fn(|| talk.process.next_line());
    assert!(lines.any(|line| line.contains("\"id\":1000") && line.contains("\"result\":{}")));
    assert_eq!(lines.count(), 0);
    assert!(talk.process.wait().success());
    assert_eq!(repository.read("a"), "1\n");
}

#[test]
fn turns_are_compared_by_their_final_checkpoints() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    for (turn, text) in [("t1", "2\n"), ("t2", "3\n"), ("t3", "4\n")] {
        talk.turn(turn, "/say x", || repository.write("a", text));
        talk.files(&repository, &format!("turn/{turn}"));
    }
    assert_eq!(talk.files(&repository, "compare/t1/t3"), [changed("a", "2\n", "4\n", (1, 1))]);
    assert_eq!(talk.files(&repository, "compare/t3/t2"), [changed("a", "4\n", "3\n", (1, 1))]);
    assert!(talk.follow(&channel("compare/t1/none")).is_null());
}

/// The actions on a changeset up to this one.
fn actions_until(talk: &mut Talk, what: &str, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut told = Vec::new();
    loop {
        told.push(talk.until(&channel(what), |_| true));
        if told.last().is_some_and(&is_last) {
            return told;
        }
    }
}

fn has_status(action: &Value, status: &str) -> bool {
    action["type"] == "changeset/statusChanged" && action["status"] == status
}

#[test]
fn clean_repository_has_an_empty_uncommitted_changeset() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = begin(&repository);
    assert_eq!(talk.files(&repository, "uncommitted"), []);
}

#[test]
fn last_status_is_shown_after_a_restart_until_it_is_refreshed() {
    let repository = Repository::with(&[("a", "1\n"), ("b", "1\n")]);
    repository.write("a", "2\n");
    let mut talk = begin(&repository);
    shows(&mut talk, &repository, "uncommitted", vec![changed("a", "1\n", "2\n", (1, 1))]);
    talk.process.child.kill().unwrap();
    talk.process.wait();
    repository.write("b", "2\n");
    let blocks = repository.home.join("blocks");
    fs::write(&blocks, "").unwrap();
    let script = format!(
        "case \"$*\" in *status*) while [ -e '{}' ]; do sleep 0.01; done;; esac\nexec $GIT \"$@\"",
        blocks.display()
    );
    let mut talk = Talk::open(&repository, &[("PATH", &instead_of_git(&repository, &script))]);
    for what in ["uncommitted", "branch"] {
        let state = talk.follow(&channel(what));
        let ids: Vec<&Value> = state["files"].as_array().unwrap().iter().map(|file| &file["id"]).collect();
        assert_eq!(
            (&state["status"], ids),
            (&json!("recomputing"), vec![&json!(uri(&repository.path("a")))])
        );
    }
    fs::remove_file(blocks).unwrap();
    for what in ["uncommitted", "branch"] {
        let told = actions_until(&mut talk, what, |action| has_status(action, "ready"));
        assert!(told.iter().any(|action| action.to_string().contains("/b\"")), "{told:?}");
    }
}

#[test]
fn removed_repository_is_reported_and_recovers_when_it_returns() {
    let repository = Repository::with(&[("a", "1\n")]);
    repository.write("a", "2\n");
    let mut talk = begin(&repository);
    let wanted = vec![changed("a", "1\n", "2\n", (1, 1))];
    shows(&mut talk, &repository, "uncommitted", wanted.clone());
    talk.follow(&channel("uncommitted"));
    let elsewhere = repository.home.join("elsewhere");
    fs::rename(repository.path(".git"), &elsewhere).unwrap();
    let told = actions_until(&mut talk, "uncommitted", |action| has_status(action, "error"));
    let why = told.last().unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(why, "the repository no longer exists");
    // What it was is still shown.
    assert!(!told.iter().any(|action| action["type"] == "changeset/fileRemoved"), "{told:?}");
    assert_eq!(talk.follow(SESSION)["_meta"]["git"], Value::Null);
    fs::rename(elsewhere, repository.path(".git")).unwrap();
    actions_until(&mut talk, "uncommitted", |action| has_status(action, "ready"));
    shows(&mut talk, &repository, "uncommitted", wanted);
}
