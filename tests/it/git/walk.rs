//! Every setting that git knows names a program: none of them runs.
//!
//! What git lists as its settings is set to one program, in each place where git reads settings of
//! a repository, with hooks in every place. So a setting that only a newer git knows is tried with
//! that git, whatever it does.
//!
//! Owns: which settings there are, that git itself runs the program, and what was started while the
//! host works.
//! Never: knows which settings name programs.
//!
//! `TEST_GIT` names another git to try, besides those that are found.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ahp_sidecar::git::isolation::is_allowed;
use ahp_sidecar::git::large::FileLimits;
use ahp_sidecar::git::program::{Deadline, Git};
use ahp_sidecar::git::worker::carry_out;
use ahp_sidecar::host::effects::{GitJob, GitWork};
use serde_json::json;

use super::{changed, environment, uri, Repository, Talk, PATH, SESSION};
use crate::support::{is_kept_program, program};

/// Events for which git runs hooks, by the manual of git 2.55.
const EVENTS: [&str; 28] = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-prepare-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "post-index-change",
];

/// Settings with which a repository is not used at all, or is another one.
const OF_THE_FORMAT: [&str; 5] =
    ["core.bare", "core.worktree", "core.repositoryformatversion", "include.path", "includeif.x.path"];

/// Places in which git reads settings of a repository.
const PLACES: [&str; 5] = ["local", "worktree", "included", "included on a condition", "submodule"];

/// A git to try, with its settings.
struct TriedGit {
    path: PathBuf,
    /// The settings that can be set to a path: with all of them git does what it is asked.
    taken: Vec<String>,
    /// Settings that are not copied.
    refused: Vec<String>,
    /// True if this git runs hooks named in its configuration.
    has_hooks: bool,
}

/// A repository that names a program, or whose submodule does.
struct Bait<'a> {
    repository: Repository,
    git: &'a Path,
    marker: PathBuf,
    trace: PathBuf,
}

/// Returns the paths of all different programs `git` that are found.
fn gits() -> Vec<PathBuf> {
    let inherited = std::env::var("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&inherited).chain(std::env::split_paths(PATH));
    let named = std::env::var_os("TEST_GIT").map(PathBuf::from).into_iter();
    let found = named.chain(folders.map(|folder| folder.join("git"))).filter(|git| git.is_file());
    let mut seen = BTreeSet::new();
    found.filter(|git| seen.insert(git.canonicalize().unwrap())).collect()
}

impl<'a> Bait<'a> {
    /// One that is harmless so far.
    fn new(git: &'a Path) -> Self {
        let repository = Repository::with(&[("a.txt", "1\n"), ("b.txt", "1\n")]);
        let (marker, trace) = (repository.home.join("marker"), repository.home.join("trace"));
        write_program(&marker, &format!("echo \"$0 $*\" >>'{}'\ncat", trace.display()));
        Self { repository, git, marker, trace }
    }

    /// One with these settings in a place.
    fn with(git: &'a Path, place: &str, keys: &[String]) -> Self {
        let bait = Self::new(git);
        if place == "submodule" {
            let other = Repository::with(&[("x.txt", "1\n")]);
            bait.repository.git(&["submodule", "--quiet", "add", other.root.to_str().unwrap(), "below"]);
            bait.repository.git(&["commit", "-q", "-m", "below"]);
        }
        bait.set(place, keys);
        bait
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.git);
        command.args(arguments).current_dir(&self.repository.root).env_clear();
        command.envs(environment(&self.repository.home)).output().unwrap()
    }

    /// Returns what has run since it was asked last.
    fn ran(&self) -> String {
        let ran = fs::read_to_string(&self.trace).unwrap_or_default();
        if !ran.is_empty() {
            fs::remove_file(&self.trace).unwrap();
        }
        ran
    }

    /// Returns the text of a configuration file in which these settings are the program.
    fn text(&self, keys: &[String]) -> String {
        let marker = self.marker.display();
        let lines = keys.iter().map(|key| {
            let (section, name) = key.rsplit_once('.').unwrap();
            let heading = match section.split_once('.') {
                Some((section, subsection)) => format!("[{section} \"{subsection}\"]"),
                None => format!("[{section}]"),
            };
            format!("{heading}\n{name} = {marker}\n")
        });
        let events = EVENTS.map(|event| format!("event = {event}\n")).concat();
        lines.collect::<String>() + &format!("[hook \"x\"]\ncommand = {marker} configured\n{events}")
    }

    /// Sets these settings in a place, and puts hooks and drivers there.
    fn set(&self, place: &str, keys: &[String]) {
        // In one place hooks are where they are when nothing is said.
        let elsewhere = format!("[core]\nhooksPath = {}\n", self.repository.home.display());
        let is_default = place == "local";
        let keys: Vec<String> =
            keys.iter().filter(|key| !is_default || *key != "core.hooksPath").cloned().collect();
        let text = self.text(&keys) + if is_default { "" } else { &elsewhere };
        let own = self.repository.path(".git");
        let own = if place == "submodule" { own.join("modules/below") } else { own };
        let append = |file: &Path, text: &str| {
            fs::write(file, fs::read_to_string(file).unwrap_or_default() + text).unwrap();
        };
        let config = own.join("config");
        match place {
            "local" | "submodule" => append(&config, &text),
            "worktree" => {
                append(&config, "[core]\nrepositoryformatversion = 1\n[extensions]\nworktreeConfig = true\n");
                append(&own.join("config.worktree"), &text);
            }
            place => {
                let section = if place == "included" { "include" } else { "includeIf \"gitdir:**\"" };
                append(&config, &format!("[{section}]\npath = more/settings\n"));
                fs::create_dir_all(own.join("more")).unwrap();
                append(&own.join("more/settings"), &text);
            }
        }
        fs::create_dir_all(own.join("hooks")).unwrap();
        for event in EVENTS {
            fs::copy(&self.marker, own.join("hooks").join(event)).unwrap();
            fs::copy(&self.marker, self.repository.home.join(event)).unwrap();
        }
        append(&own.join("info/attributes"), "* filter=x diff=x merge=x\n");
    }

    /// Has git do all that a user does with it: programs run, and hooks, those in the configuration
    /// among them where git knows such.
    fn bites(&self, place: &str, has_hooks: bool) {
        self.repository.write("a.txt", "3\n");
        if self.repository.path("below").exists() {
            self.repository.write("below/x.txt", "3\n");
        }
        for arguments in
            [&["status"][..], &["diff"], &["add", "b.txt", "a.txt"], &["commit", "-q", "-m", "x"]]
        {
            self.run(arguments);
        }
        let (ran, marker) = (self.ran(), self.marker.display());
        let name = format!("{}: {place}: {ran}", self.git.display());
        let is_configured = |line: &str| line.starts_with(&format!("{marker} configured"));
        assert!(
            ran.lines().any(|line| line.starts_with(&format!("{marker} ")) && !is_configured(line)),
            "{name}"
        );
        if place != "submodule" {
            assert!(ran.lines().any(|line| line.contains("/pre-commit ")), "{name}");
            assert!(!has_hooks || ran.lines().any(is_configured), "{name}");
        }
    }
}

fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl TriedGit {
    /// Asks a git for its settings, and tries which of them can be a path.
    fn find(path: PathBuf) -> Self {
        let bait = Bait::new(&path);
        let listed = String::from_utf8(bait.run(&["help", "--config"]).stdout).unwrap();
        let is_key = |line: &&str| {
            let name = line.rsplit_once('.').map_or("", |(_, name)| name);
            !line.contains([' ', ':'])
                && name.starts_with(|first: char| first.is_ascii_alphabetic() || "<*".contains(first))
        };
        // Names that are made up are all the same one.
        let made_up = |line: &str| {
            let mut parts = line.split(['<', '>']).enumerate();
            let key =
                parts.by_ref().map(|(at, part)| if at % 2 == 0 { part } else { "x" }).collect::<String>();
            key.replace('*', "x").replace('_', "-")
        };
        let all: BTreeSet<String> = listed.lines().filter(is_key).map(made_up).collect();
        assert!(all.len() > 500, "git lists its settings: {listed}");
        // Hooks need an event beside their program.
        let is_hook = |key: &&String| key.starts_with("hook.");
        let is_format = |key: &String| {
            OF_THE_FORMAT.contains(&key.to_lowercase().as_str()) || key.starts_with("extensions.")
        };
        let (of_the_format, others): (Vec<_>, Vec<_>) =
            all.iter().filter(|key| !is_hook(key)).cloned().partition(is_format);
        let mut taken = Vec::new();
        let edits = Cell::new(0);
        let config = bait.repository.path(".git/config");
        let known = fs::read_to_string(&config).unwrap();
        let trouble_with = |keys: &[String]| {
            fs::write(&config, known.clone() + &bait.text(keys)).unwrap();
            edits.set(edits.get() + 1);
            bait.repository.write("a.txt", format!("{}\n", edits.get()));
            let asked: [&[&str]; 5] = [
                &["status", "--branch"],
                &["for-each-ref", "--format=%(upstream)"],
                &["diff", "--numstat"],
                &["add", "a.txt"],
                &["commit", "--dry-run", "-a"],
            ];
            let failed =
                asked.iter().map(|arguments| bait.run(arguments)).find(|output| !output.status.success())?;
            let said = String::from_utf8_lossy(&failed.stderr).to_lowercase();
            let is_trouble = |line: &&str| line.starts_with("fatal:") || line.starts_with("error:");
            Some(said.lines().filter(is_trouble).collect::<String>())
        };
        take(&others, &trouble_with, &mut taken);
        assert_eq!(trouble_with(&taken), None, "together they are refused");
        let refused = others.into_iter().filter(|key| !taken.contains(key)).chain(of_the_format).collect();
        Self { path, taken, refused, has_hooks: all.iter().any(|key| key.starts_with("hook.")) }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap()
    }
}

/// Takes those of some settings with which git works, together with those that are taken already;
/// `trouble_with` is what git says about its failure with some.
fn take(keys: &[String], trouble_with: &dyn Fn(&[String]) -> Option<String>, taken: &mut Vec<String>) {
    let mut keys = keys.to_vec();
    while let Some(trouble) = trouble_with(&[&taken[..], &keys].concat()) {
        let before = keys.len();
        keys.retain(|key| !trouble.contains(&key.to_lowercase()));
        if keys.len() < before {
            continue;
        }
        // Git names none of them.
        let (first, rest) = keys.split_at(before / 2);
        if before > 1 {
            take(first, trouble_with, taken);
            take(rest, trouble_with, taken);
        }
        return;
    }
    taken.append(&mut keys);
}

/// Arguments with which `strace` tells each start of a program, of all processes, and stops at
/// nothing else.
const TRACED: [&str; 5] = ["-f", "--seccomp-bpf", "-qq", "-e", "trace=execve"];

/// Returns whether started programs can be traced here, and says it if not.
fn can_trace() -> bool {
    let tried = Command::new("strace").args(TRACED).args(["-o", "/dev/null", "true"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        super::say("not traced: strace is not there, or may not trace");
    }
    can
}

/// Has a host look, keep turns, discard, restore, commit and dispose.
fn work(bait: &Bait<'_>, folder: &Path) {
    let repository = &bait.repository;
    let started = repository.home.join("started");
    let mut host = program();
    host.arg("--state-dir").arg(&repository.state).arg("--exclusive");
    if can_trace() {
        let mut traced = Command::new("strace");
        traced.args(TRACED).arg("-o").arg(&started);
        traced.arg(host.get_program()).args(host.get_args()).env_clear().current_dir("/");
        host = traced;
    }
    host.envs(environment(&repository.home)).env("PATH", format!("{}:{PATH}", folder.display()));
    let mut talk = Talk::with(host);
    talk.create(SESSION, &repository.root);
    talk.turn("t1", "/files a.txt=2 c.txt=2", || ());
    let files = talk.files(repository, "turn/t1");
    assert_eq!(files, [changed("c.txt", "", "2\n", (1, 0)), changed("a.txt", "1\n", "2\n", (1, 1))]);
    talk.wait_until_known();
    assert_eq!(talk.files(repository, "uncommitted"), files);
    for (operation, text) in [("discard-changes", "1\n"), ("restore-changes", "2\n")] {
        assert_eq!(talk.invoke("turn/t1", operation, None)["result"], json!({}));
        assert_eq!(repository.read("a.txt"), text);
    }
    while talk.files(repository, "uncommitted") != files {}
    let params = json!({
        "channel": format!("{SESSION}/changeset/uncommitted"), "operationId": "commit", "_meta": { "message": "x" },
    });
    let mut answer = talk.ask("invokeChangesetOperation", &params);
    let attributes = repository.path(".git/info/attributes");
    if attributes.exists() {
        // What is committed is not what the filter would make of it.
        assert!(answer["error"]["message"].as_str().unwrap().contains("needs the filter `x`"), "{answer}");
        fs::write(attributes, "* diff=x merge=x\n").unwrap();
        answer = talk.ask("invokeChangesetOperation", &params);
    }
    assert!(answer["result"].is_object(), "{answer}");
    talk.ask("disposeSession", &json!({ "channel": SESSION }));
    talk.process.end();
    talk.process.rest();
    assert!(talk.process.wait().success());
    let started = fs::read_to_string(started).unwrap_or_default();
    // Without `/proc`, guards list processes by `ps`, and the host starts the program that it has
    // kept.
    let system = if cfg!(feature = "portable") { "/bin/ps" } else { "/proc/self/exe" };
    let ours = [format!("{}/git", folder.display()), host_path(), system.to_owned()];
    for line in started.lines().filter(|line| line.contains("execve(")) {
        let path = line.split('"').nth(1).unwrap();
        let is_kept = cfg!(feature = "portable") && is_kept_program(Path::new(path));
        assert!(is_kept || ours.iter().any(|ours| ours == path), "{line}");
    }
}

fn host_path() -> String {
    program().get_program().to_str().unwrap().to_owned()
}

/// Has the program that git is do some of it, whatever comes of it.
fn try_to_work(bait: &Bait<'_>) {
    let until = Deadline::after(Duration::from_secs(60));
    let git = Git::find(bait.git.parent().map(Path::as_os_str), until).unwrap();
    let namespace = "k".to_owned();
    for work in [
        GitWork::Status { base: None, files: true, touched: None },
        GitWork::Checkpoint {
            namespace: namespace.clone(),
            number: 1,
            last: None,
            since: Vec::new(),
            reported: Vec::new(),
        },
        GitWork::RemoveCheckpoints { namespace },
    ] {
        let job = GitJob { directories: vec![uri(&bait.repository.root)], within_ms: 60_000, work };
        carry_out(&git, FileLimits::default(), job, &bait.repository.state, until);
    }
}

#[test]
fn settings_that_name_a_program_run_nothing_at_any_level() {
    for git in gits() {
        let tried = TriedGit::find(git);
        std::thread::scope(|scope| {
            for place in PLACES {
                let tried = &tried;
                scope.spawn(move || {
                    Bait::with(&tried.path, place, &tried.taken).bites(place, tried.has_hooks);
                    let bait = Bait::with(&tried.path, place, &tried.taken);
                    work(&bait, tried.folder());
                    assert_eq!(bait.ran(), "", "{}: {place}", tried.path.display());
                });
            }
        });
        // With these, git itself does nothing, and with some of them neither does the host.
        let (alone, together): (Vec<_>, Vec<_>) = tried.refused.iter().cloned().partition(|key| {
            let key = key.to_lowercase();
            is_allowed(key.as_bytes()) || OF_THE_FORMAT.contains(&&*key) || key.starts_with("extensions.")
        });
        let bait = Bait::with(&tried.path, "local", &[&tried.taken[..], &together].concat());
        work(&bait, tried.folder());
        assert_eq!(bait.ran(), "", "{}: {together:?}", tried.path.display());
        let bait = Bait::with(&tried.path, "local", &tried.taken);
        let config = bait.repository.path(".git/config");
        let known = fs::read_to_string(&config).unwrap();
        for key in alone {
            fs::write(&config, known.clone() + &bait.text(std::slice::from_ref(&key))).unwrap();
            try_to_work(&bait);
            assert_eq!(bait.ran(), "", "{}: {key}", tried.path.display());
        }
    }
}
