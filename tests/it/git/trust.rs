//! Folders of which git keeps nothing, and what is said about that.
//!
//! Owns: repositories that are not used, a git that is not there or takes its time, and that turns
//! begin all the same.
//! Never: measures how long anything takes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use ahp_sidecar::host::effects::{GitReport, GitWork};
use rustix::process::geteuid;
use serde_json::json;

use super::{changed, environment, instead_of_git, Repository, Talk, CHAT, SESSION};

/// Has a host with a `git` that is this script, behind which `$GIT` is the real one.
fn with_git(repository: &Repository, script: &str) -> Talk {
    let mut talk = Talk::open(repository, &[("PATH", &instead_of_git(repository, script))]);
    talk.create(SESSION, &repository.root);
    talk
}

/// A turn shows what its call says, and the rows say why not more is known.
fn shows_only_reported_edits(mut talk: Talk, repository: &Repository, why: &str) {
    talk.turn("t1", "/files said=new", || repository.write("a", "2\n"));
    assert_eq!(talk.files(repository, "turn/t1"), [changed("said", "", "new\n", (1, 0))]);
    let rows = talk.rows();
    for kind in ["turn", "session"] {
        assert!(rows[kind].contains(why), "{kind}: {}", rows[kind]);
        assert!(rows[kind].contains("without those of its commands"), "{rows:?}");
    }
    let refs = repository
        .try_git_in(&repository.root, &["-c", "safe.directory=*", "for-each-ref", "refs/ahp-sidecar"]);
    assert_eq!(String::from_utf8_lossy(&refs.stdout), "");
}

/// Gives a part of a repository to somebody else. Only `root` can do that; for others, its files
/// are in a folder that is not theirs, which is above.
fn give_away(repository: &Repository, part: &str) {
    if geteuid().is_root() {
        return std::os::unix::fs::chown(repository.path(part), Some(65534), None).unwrap();
    }
    let me = geteuid().as_raw();
    let above = repository.root.ancestors().find(|above| fs::metadata(above).unwrap().uid() != me).unwrap();
    repository.git(&["config", "core.worktree", above.to_str().unwrap()]);
}

/// The user says in a file of configuration that a folder is safe.
fn say_safe(file: &Path, folder: &str) {
    let known = fs::read_to_string(file).unwrap();
    fs::write(file, format!("{known}[safe]\n directory = {folder}\n")).unwrap();
}

#[test]
fn repository_of_another_user_is_not_used() {
    for part in ["", ".git"] {
        let repository = Repository::with(&[("a", "1\n")]);
        give_away(&repository, part);
        // It cannot say so itself.
        say_safe(&repository.path(".git/config"), "*");
        let talk = with_git(&repository, "exec $GIT \"$@\"");
        shows_only_reported_edits(talk, &repository, "git does not trust this repository");
    }
}

#[test]
fn repository_of_another_user_marked_as_safe_is_used() {
    if !geteuid().is_root() {
        return super::say("skipped: only `root` can give files away");
    }
    let above = |repository: &Repository| format!("{}/*", repository.root.parent().unwrap().display());
    let ways: [&dyn Fn(&Repository) -> String; 4] =
        [&|repository| repository.root.display().to_string(), &above, &|_| "*".to_owned(), &|repository| {
            format!("%(nothing)\n[include]\n path = {}/more", repository.home.display())
        }];
    for way in ways {
        let repository = Repository::with(&[("a", "1\n")]);
        fs::write(repository.home.join("more"), "[safe]\ndirectory = *\n").unwrap();
        give_away(&repository, ".git");
        say_safe(&repository.home.join("gitconfig"), &way(&repository));
        let mut talk = Talk::begin(&repository);
        talk.turn("t1", "/say x", || repository.write("a", "2\n"));
        assert_eq!(talk.files(&repository, "turn/t1"), [changed("a", "1\n", "2\n", (1, 1))]);
    }
    // What is said later takes back what was said before.
    let repository = Repository::with(&[("a", "1\n")]);
    give_away(&repository, ".git");
    say_safe(&repository.home.join("gitconfig"), "*\n directory =");
    let talk = with_git(&repository, "exec $GIT \"$@\"");
    shows_only_reported_edits(talk, &repository, "git does not trust this repository");
}

#[test]
fn outdated_git_is_not_used() {
    let repository = Repository::with(&[("a", "1\n")]);
    let talk = with_git(&repository, "echo git version 2.20.1");
    shows_only_reported_edits(
        talk,
        &repository,
        "git 2.31 or newer is needed, and this is `git version 2.20.1`",
    );
}

#[test]
fn missing_git_is_reported() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut talk = Talk::open(&repository, &[("PATH", "/nowhere")]);
    talk.create(SESSION, &repository.root);
    shows_only_reported_edits(talk, &repository, "there is no program `git` on the host's PATH");
}

#[test]
fn turn_begins_although_git_times_out() {
    let repository = Repository { wait_ms: 2000, ..Repository::with(&[("a", "1\n")]) };
    let slow = "case \"$*\" in *status*) exec sleep 1000;; esac\nexec $GIT \"$@\"";
    let talk = with_git(&repository, slow);
    shows_only_reported_edits(talk, &repository, "could not be checkpointed in time");
}

/// A checkpoint that is being made when its session is disposed of is made all the same, and let go
/// of behind that.
#[test]
fn checkpoint_in_progress_of_a_disposed_session_is_deleted() {
    let slow = "case \"$*\" in *commit-tree*) sleep 0.5;; esac\nexec $GIT \"$@\"";
    for is_over in [true, false] {
        let repository = Repository::with(&[("a", "1\n")]);
        let mut talk = with_git(&repository, slow);
        talk.follow(CHAT);
        talk.start(CHAT, "t1", "/files a=2");
        let last = if is_over { "chat/turnComplete" } else { "chat/turnStarted" };
        talk.until(CHAT, |action| action["type"] == last);
        talk.ask("disposeSession", &json!({ "channel": SESSION }));
        talk.process.end();
        talk.process.wait();
        assert_eq!(repository.our_refs(), [""; 0], "{last}");
    }
}

#[test]
fn home_folder_is_not_checkpointed() {
    let mut repository = Repository::with(&[("a", "1\n")]);
    repository.home.clone_from(&repository.root);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files said=new", || repository.write("a", "2\n"));
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("said", "", "new\n", (1, 0))]);
    assert!(talk.rows()["turn"].contains("the whole home folder"));
}

#[test]
fn folder_without_a_repository_is_not_reported() {
    let repository = Repository::empty();
    fs::remove_dir_all(repository.path(".git")).unwrap();
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files said=new", || ());
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("said", "", "new\n", (1, 0))]);
    assert!(talk.rows()["turn"].ends_with("without those of its commands"));
    assert!(!repository.path(".git").exists());
}

#[test]
fn bare_repository_is_not_used() {
    let repository = Repository::empty();
    fs::remove_dir_all(repository.path(".git")).unwrap();
    repository.git(&["init", "-q", "--bare", "."]);
    let mut talk = Talk::begin(&repository);
    talk.turn("t1", "/files said=new", || ());
    assert!(talk.rows()["turn"].contains("the repository is bare"), "{:?}", talk.rows());
}

#[test]
fn git_is_not_run_if_disabled() {
    let repository = Repository::with(&[("a", "1\n")]);
    let mut command = crate::support::program();
    command.args(["--ephemeral", "--git", "off"]).envs(environment(&repository.home));
    let mut talk =
        Talk { process: crate::support::Process::spawn(command), seq: 0, id: 0, heard: Vec::new() };
    let hello =
        serde_json::json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    talk.ask("initialize", &hello);
    talk.create(SESSION, &repository.root);
    talk.turn("t1", "/files said=new", || repository.write("a", "2\n"));
    assert_eq!(talk.files(&repository, "turn/t1"), [changed("said", "", "new\n", (1, 0))]);
    assert_eq!(repository.our_refs(), [""; 0]);
}

#[test]
fn killed_host_leaves_no_git_process() {
    let repository = Repository::with(&[("a", "1\n")]);
    let pid = repository.home.join("pid");
    let slow = format!(
        "case \"$*\" in *status*) echo $$ >'{}'; exec sleep 1000;; esac\nexec $GIT \"$@\"",
        pid.display()
    );
    let mut talk = with_git(&repository, &slow);
    talk.start(super::CHAT, "t1", "/say x");
    let pid = loop {
        match fs::read_to_string(&pid).ok().filter(|text| text.ends_with('\n')) {
            Some(text) => break text.trim().to_owned(),
            None => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    talk.process.child.kill().unwrap();
    talk.process.wait();
    while fs::metadata(format!("/proc/{pid}")).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A host that is killed when `a` is what it was, and `b` is not yet: what is in it was `1`, a line
/// end and so on, and is longer.
fn killed_during_discard(what: &str) -> (Repository, [String; 2]) {
    // Long contents are read one by one, and the reading of this one hangs.
    let long = "1\n".repeat(100_000);
    let longer = format!("{long}2\n");
    let repository = Repository::with(&[("a", "1\n"), ("b", &long)]);
    let hangs = "case \"$*\" in *--path=b*) exec sleep 1000;; esac\nexec $GIT \"$@\"";
    let mut talk = with_git(&repository, hangs);
    talk.turn("t1", "/say x", || {
        repository.write("a", "2\n");
        repository.write("b", &longer);
    });
    talk.changeset(what);
    let params =
        json!({ "channel": format!("{SESSION}/changeset/{what}"), "operationId": "discard-changes" });
    let request =
        json!({ "jsonrpc": "2.0", "id": 900, "method": "invokeChangesetOperation", "params": params });
    talk.process.say(&request.to_string());
    let begun = std::time::Instant::now();
    while repository.read("a") != "1\n" {
        assert!(begun.elapsed() < crate::support::HUNG, "{what}: nothing is taken back");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    talk.process.child.kill().unwrap();
    talk.process.wait();
    (repository, [long, longer])
}

fn is_done(talk: &mut Talk, what: &str, operation: &str) {
    let answer = talk.invoke(what, operation, None);
    assert_eq!(answer["result"], json!({}), "{what}: {answer}");
}

/// The host is killed when some of the files are what they were and others are not: what was taken
/// back is brought back.
#[test]
fn discard_interrupted_by_a_host_kill_can_be_restored() {
    for what in ["turn/t1", "session", "uncommitted"] {
        let (repository, [long, longer]) = killed_during_discard(what);
        let mut talk = Talk::open(&repository, &[]);
        talk.follow(SESSION);
        // What is still changed is shown, and what is not is brought back.
        assert!(talk.files(&repository, what).contains(&changed("b", &long, &longer, (1, 0))), "{what}");
        is_done(&mut talk, what, "restore-changes");
        assert!((repository.read("a"), repository.read("b")) == ("2\n".into(), longer.clone()), "{what}");
        is_done(&mut talk, what, "discard-changes");
        assert_eq!(repository.git(&["status", "--porcelain"]), "", "{what}");
        is_done(&mut talk, what, "restore-changes");
        assert!((repository.read("a"), repository.read("b")) == ("2\n".into(), longer.clone()), "{what}");
    }
}

/// An interrupted operation is completed when it is requested again, and restored once.
#[test]
fn repeated_discard_after_a_host_kill_is_restored_once() {
    let what = "turn/t1";
    let (repository, [_, longer]) = killed_during_discard(what);
    let mut talk = Talk::open(&repository, &[]);
    talk.follow(SESSION);
    is_done(&mut talk, what, "discard-changes");
    assert_eq!(repository.git(&["status", "--porcelain"]), "");
    is_done(&mut talk, what, "restore-changes");
    assert!((repository.read("a"), repository.read("b")) == ("2\n".into(), longer.clone()));
    let offered = talk.changeset(what)["operations"].clone();
    let offered: Vec<&str> = offered.as_array().unwrap().iter().filter_map(|it| it["id"].as_str()).collect();
    assert_eq!(offered, ["discard-changes"]);
}

/// Returns what `status` says where programs are found in these folders: as text, and of git as
/// JSON.
fn status(repository: &Repository, path: &str) -> (String, serde_json::Value) {
    let run = |how: &[&str]| {
        let mut command = crate::support::program();
        command.arg("status").args(how).arg("--state-dir").arg(&repository.state).env("PATH", path);
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let known: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    (run(&[]), known["git"].clone())
}

#[test]
fn status_names_the_git_that_is_used_or_why_none_is() {
    let repository = Repository::with(&[("a", "1\n")]);
    let path = instead_of_git(&repository, "exec $GIT \"$@\"");
    let version = repository.git(&["version"]).trim().trim_start_matches("git version ").to_owned();
    let program = repository.home.join("bin/git").display().to_string();
    let (text, known) = status(&repository, &path);
    assert!(text.ends_with(&format!("\ngit {version}, {program}\n")), "{text}");
    assert_eq!(known, json!({ "path": program, "version": version, "problem": null }));
    let old = "git 2.31 or newer is needed, and this is `git version 2.20.1`";
    for (path, problem) in [
        ("/nowhere", "there is no program `git` on the host's PATH"),
        (&instead_of_git(&repository, "echo git version 2.20.1"), old),
    ] {
        let (text, known) = status(&repository, path);
        assert!(text.ends_with(&format!("\ngit is not used: {problem}\n")), "{text}");
        assert_eq!(known, json!({ "path": null, "version": null, "problem": problem }));
    }
}

/// Git takes its configuration from files of our own: nobody else may put others in their place.
#[test]
fn folder_that_others_may_write_is_not_used_for_git() {
    let repository = Repository::with(&[("a", "1\n")]);
    let asker = super::model::Asker::new(&repository);
    let look = || asker.ask(GitWork::Status { base: None, files: false, touched: None });
    assert!(matches!(look(), GitReport::Status(_)));
    fs::set_permissions(&repository.state, fs::Permissions::from_mode(0o777)).unwrap();
    match look() {
        GitReport::Failed(why) => assert!(why.contains("other users can write to"), "{why}"),
        other => panic!("{other:?}"),
    }
}
