//! Changesets of sessions that work in repositories of git.
//!
//! Owns: a repository that knows nothing of the configuration of whoever runs the tests, and a host
//! that finds git.
//! Never: writes outside of folders of its own.

mod bounds;
mod commits;
mod elsewhere;
mod ends;
mod filters;
mod grafts;
mod histories;
mod hostile;
mod kept;
mod meanwhile;
mod model;
mod operations;
mod programs;
mod refs;
mod settings;
mod shapes;
mod sights;
mod swaps;
mod trust;
mod turns;
mod walk;
mod without;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use proptest::prelude::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{json, Value};
use tempfile::TempDir;

use self::model::FullCopy;

use crate::process::wait_until;
use crate::support::{program, write_program, Process};

/// Search path on which git is found.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

const SESSION: &str = "ahp-session:/s";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

/// A folder with a repository in it, and a home.
pub struct Repository {
    _folder: TempDir,
    pub root: PathBuf,
    /// Git directory of the repository.
    own: PathBuf,
    pub home: PathBuf,
    pub state: PathBuf,
    /// Size above which the host does not keep the content of a file, in bytes; `None` for the
    /// usual one.
    pub limit: Option<u64>,
    /// Time that a turn waits for the checkpoint of its folder, in milliseconds: any on a busy
    /// machine, unless a test says otherwise.
    pub wait_ms: u64,
}

/// Environment variables of git and of the host, which isolate the configuration of git.
pub fn environment(home: &Path) -> [(&'static str, PathBuf); 5] {
    [
        ("PATH", PATH.into()),
        ("HOME", home.to_owned()),
        ("GIT_CONFIG_GLOBAL", home.join("gitconfig")),
        ("GIT_CONFIG_NOSYSTEM", "1".into()),
        ("XDG_CONFIG_HOME", home.to_owned()),
    ]
}

/// Configuration of the user. Git's automatic maintenance is off: it would run in the background,
/// and read files that a test adds later.
const USER_CONFIG: &str = "\
[user]
 name = A
 email = a@b
[init]
 defaultBranch = main
[maintenance]
 auto = false
";

impl Repository {
    /// With nothing in it.
    pub fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let (root, home) = (top.join("work tree"), top.join("home"));
        for folder in [&root, &home] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(home.join("gitconfig"), USER_CONFIG).unwrap();
        let repository = Self {
            _folder: folder,
            state: top.join("state"),
            own: root.join(".git"),
            root,
            home,
            limit: None,
            wait_ms: 100_000,
        };
        repository.git(&["init", "-q"]);
        repository
    }

    /// With these files committed.
    pub fn with(files: &[(&str, &str)]) -> Self {
        let repository = Self::empty();
        for (name, text) in files {
            repository.write(name, text);
        }
        repository.commit();
        repository
    }

    pub fn git(&self, arguments: &[&str]) -> String {
        self.git_in(&self.root, arguments)
    }

    /// Whatever comes of it.
    pub fn try_git_in(&self, folder: &Path, arguments: &[&str]) -> Output {
        let mut git = Command::new("git");
        git.args(["-c", "protocol.file.allow=always"]).args(arguments).current_dir(folder).env_clear();
        git.envs(environment(&self.home)).output().unwrap()
    }

    pub fn git_in(&self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.try_git_in(folder, arguments);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// With these variables besides.
    pub fn git_with(&self, variables: &[(&str, &str)], arguments: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false"]).args(arguments);
        git.current_dir(&self.root).env_clear().envs(environment(&self.home)).envs(variables.iter().copied());
        assert!(git.status().unwrap().success(), "git {arguments:?}");
    }

    pub fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "x", "--allow-empty"]);
    }

    /// A merge has ended in a conflict in the file `a`.
    pub fn merge_with_conflict(&self) {
        self.git(&["checkout", "-q", "-b", "other"]);
        self.write("a", "theirs\n");
        self.commit();
        self.git(&["checkout", "-q", "main"]);
        self.write("a", "ours\n");
        self.commit();
        assert!(!self.try_git_in(&self.root, &["merge", "-q", "other"]).status.success());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The refs that keep what is ours.
    pub fn our_refs(&self) -> Vec<String> {
        let refs = self.git(&["for-each-ref", "--format=%(refname)", "refs/ahp-sidecar"]);
        refs.lines().map(str::to_owned).collect()
    }

    /// Tells whether the bytes of a file are reachable from a ref, either as they are or after
    /// git's conversion.
    pub fn keeps(&self, name: &str, mode: u32, bytes: &[u8]) -> bool {
        let all = self.git(&["rev-list", "--objects", "--all", "--no-object-names"]);
        let reachable: BTreeSet<&str> = all.lines().collect();
        let (copy, path) = (self.home.join("bytes"), format!("--path={name}"));
        fs::write(&copy, bytes).unwrap();
        let is_given_back = mode != 0o120_000 && histories::as_git_gives(name, bytes) == bytes;
        let hash = |how: &str| {
            let all = ["-c", "filter.lfs.clean=", "hash-object", how, "--", copy.to_str().unwrap()];
            self.git(&all).trim().to_owned()
        };
        reachable.contains(&*hash("--no-filters")) || (is_given_back && reachable.contains(&*hash(&path)))
    }

    /// No operation of the host removes the last copy of what somebody wrote: whatever was in a
    /// file before is in the folder, or reachable in the repository.
    pub fn has_lost_nothing(&self, before: &FullCopy) {
        let after = model::copy_of(self);
        let contents: BTreeSet<&Vec<u8>> = after.values().map(|(_, bytes)| bytes).collect();
        for (name, (mode, bytes)) in before.iter().filter(|(_, (_, bytes))| !contents.contains(bytes)) {
            assert!(self.keeps(name, *mode, bytes), "{name:?} is lost: {:?}", String::from_utf8_lossy(bytes));
        }
    }

    /// Returns all files of the user in the repository, except for its objects.
    pub fn of_the_user(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.own.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() && !["objects", "ahp-sidecar"].contains(&name) {
                    folders.push(path);
                } else if path.is_file() {
                    found.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
        }
        found
    }
}

/// Says something about a test to whoever reads its output: that a part of it cannot be tried here.
fn say(what: &str) {
    std::io::stderr().write_all(format!("{what}\n").as_bytes()).unwrap();
}

pub fn uri(path: &Path) -> String {
    ahp_sidecar::files::uris::uri_of(path)
}

/// A host, and a client that follows a session which works in a repository.
pub struct Talk {
    pub process: Process,
    seq: u64,
    id: u64,
    /// Messages received that are no answers.
    pub heard: Vec<Value>,
}

impl Talk {
    /// A host that keeps its sessions, with these variables besides.
    pub fn open(repository: &Repository, more: &[(&str, &str)]) -> Self {
        let mut command = program();
        command.arg("--state-dir").arg(&repository.state).arg("--exclusive");
        command.arg(format!("--git-wait={}", repository.wait_ms));
        command.args(repository.limit.map(|bytes| format!("--git-file-bytes={bytes}")));
        command.envs(environment(&repository.home)).envs(more.iter().copied());
        Self::with(command)
    }

    /// A host that is started so.
    pub fn with(command: Command) -> Self {
        let mut talk = Self { process: Process::spawn(command), seq: 0, id: 0, heard: Vec::new() };
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
        talk.ask("initialize", &hello);
        talk
    }

    /// Starts a host with a session in the repository.
    pub fn begin(repository: &Repository) -> Self {
        let mut talk = Self::open(repository, &[]);
        talk.create(SESSION, &repository.root);
        talk
    }

    pub fn create(&mut self, session: &str, folder: &Path) {
        let params = json!({ "channel": session, "workingDirectories": [uri(folder)] });
        self.ask("createSession", &params);
        self.follow(session);
    }

    /// Asks, and gives the answer back.
    pub fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.id += 1;
        let id = self.id;
        self.process
            .say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        loop {
            let message = self.process.next();
            if message["id"] == id {
                return message;
            }
            self.heard.push(message);
        }
    }

    pub fn follow(&mut self, channel: &str) -> Value {
        self.ask("subscribe", &json!({ "channel": channel }))["result"]["snapshot"]["state"].clone()
    }

    pub fn dispatch(&mut self, channel: &str, action: &Value) {
        self.seq += 1;
        let params = json!({ "channel": channel, "clientSeq": self.seq, "action": action });
        let message = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        self.process.say(&message.to_string());
    }

    /// Waits for an action on a channel.
    pub fn until(&mut self, channel: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let wanted = |message: &Value| {
            let params = &message["params"];
            message["method"] == "action" && params["channel"] == channel && is_it(&params["action"])
        };
        loop {
            if let Some(at) = self.heard.iter().position(wanted) {
                let found = self.heard.remove(at);
                return found["params"]["action"].clone();
            }
            let message = self.process.next();
            self.heard.push(message);
        }
    }

    pub fn start(&mut self, chat: &str, turn: &str, script: &str) {
        let message = json!({ "text": script, "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        self.dispatch(chat, &action);
    }

    /// Begins a turn in which, when its first steps are done, this is done behind its back; and
    /// waits for its end.
    pub fn turn(&mut self, turn: &str, script: &str, behind_its_back: impl FnOnce()) {
        self.turn_in(CHAT, turn, script, behind_its_back);
    }

    pub fn turn_in(&mut self, chat: &str, turn: &str, script: &str, behind_its_back: impl FnOnce()) {
        self.follow(chat);
        self.start(chat, turn, &format!("{script}\n/ask go"));
        let call = self.asked(chat);
        behind_its_back();
        self.allow(chat, turn, &call);
        self.until(chat, |action| action["type"] == "chat/turnComplete");
    }

    /// Waits until a call asks for a permission; which one.
    pub fn asked(&mut self, chat: &str) -> String {
        let ready = self
            .until(chat, |action| action["type"] == "chat/toolCallReady" && action["confirmed"].is_null());
        ready["toolCallId"].as_str().unwrap().to_owned()
    }

    pub fn allow(&mut self, chat: &str, turn: &str, call: &str) {
        let action =
            json!({ "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call, "approved": true });
        self.dispatch(chat, &action);
    }

    /// The state of a changeset, when it is computed.
    pub fn changeset(&mut self, what: &str) -> Value {
        let channel = format!("{SESSION}/changeset/{what}");
        let is_known = |status: &Value| status == "ready" || status == "error";
        let state = loop {
            let state = self.follow(&channel);
            assert!(state.is_object(), "{channel} is not there");
            if is_known(&state["status"]) {
                break state;
            }
            self.until(&channel, |action| {
                action["type"] == "changeset/statusChanged" && is_known(&action["status"])
            });
        };
        let params = json!({ "channel": channel });
        let leave = json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": params });
        self.process.say(&leave.to_string());
        self.ask("ping", &json!({ "channel": "ahp-root://" }));
        // Statuses that were told of it so far are of no use to who follows it again.
        self.heard.retain(|message| {
            let params = &message["params"];
            params["channel"] != channel || params["action"]["type"] != "changeset/statusChanged"
        });
        state
    }

    /// Returns the files of a changeset: the name and content of each before and after, with its
    /// counts.
    pub fn files(&mut self, repository: &Repository, what: &str) -> Vec<ShownFile> {
        let state = self.changeset(what);
        assert_eq!(state["status"], "ready", "{state}");
        let files = state["files"].as_array().unwrap().clone();
        let mut shown: Vec<ShownFile> = files.iter().map(|file| self.shown(repository, file)).collect();
        shown.sort();
        shown
    }

    fn shown(&mut self, repository: &Repository, file: &Value) -> ShownFile {
        let mut side = |name: &str| {
            let side = &file["edit"][name];
            let uri = side["uri"].as_str()?;
            let path = ahp_sidecar::files::uris::path_of(uri).unwrap();
            let name = path.strip_prefix(&repository.root).unwrap().to_str().unwrap().to_owned();
            Some((name, self.content(side["content"]["uri"].as_str().unwrap())))
        };
        let (before, after) = (side("before"), side("after"));
        let diff = &file["edit"]["diff"];
        let counts =
            diff.is_object().then(|| (diff["added"].as_i64().unwrap(), diff["removed"].as_i64().unwrap()));
        ShownFile { before, after, counts }
    }

    /// A content, as text where it is text.
    pub fn content(&mut self, uri: &str) -> String {
        let answer = self.ask("resourceRead", &json!({ "channel": "ahp-root://", "uri": uri }));
        match answer["result"]["data"].as_str() {
            Some(data) => data.to_owned(),
            None => format!("error {}", answer["error"]["code"]),
        }
    }

    pub fn invoke(&mut self, what: &str, operation: &str, target: Option<&str>) -> Value {
        let channel = format!("{SESSION}/changeset/{what}");
        self.changeset(what);
        let mut params = json!({ "channel": channel, "operationId": operation });
        if let Some(uri) = target {
            params["target"] = json!({ "kind": "resource", "resource": uri });
        }
        self.ask("invokeChangesetOperation", &params)
    }

    /// Waits until the host has looked at the repository.
    pub fn wait_until_known(&mut self) {
        wait_until("the repository is known", || self.rows().contains_key("uncommitted"));
    }

    /// The descriptions of the rows of the session, by their kinds.
    pub fn rows(&mut self) -> BTreeMap<String, String> {
        let state = self.follow(SESSION);
        let rows = state["changesets"].as_array().cloned().unwrap_or_default();
        let text = |row: &Value, member: &str| row[member].as_str().unwrap_or_default().to_owned();
        rows.iter().map(|row| (text(row, "changeKind"), text(row, "description"))).collect()
    }
}

/// A file as a changeset shows it: what it was called and what was in it, and the same now; and its
/// counts of lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShownFile {
    pub before: Option<(String, String)>,
    pub after: Option<(String, String)>,
    pub counts: Option<(i64, i64)>,
}

/// One that is called the same before and after; empty where it was not or is not there.
pub fn changed(name: &str, before: &str, after: &str, counts: (i64, i64)) -> ShownFile {
    let side = |text: &str| (!text.is_empty()).then(|| (name.to_owned(), text.to_owned()));
    ShownFile { before: side(before), after: side(after), counts: Some(counts) }
}

/// The folders in which programs are found where this script is `git`; `$GIT` in it is the real
/// one.
fn instead_of_git(repository: &Repository, script: &str) -> String {
    let folder = repository.home.join("bin");
    fs::create_dir_all(&folder).unwrap();
    let real = PATH.split(':').map(|folder| format!("{folder}/git"));
    let real = real.into_iter().find(|git| fs::metadata(git).is_ok()).unwrap();
    let git = folder.join("git");
    write_program(&git, &format!("#!/bin/sh\nGIT={real}\n{script}\n"));
    format!("{}:{PATH}", folder.display())
}

/// Tries histories: so many from this seed, the same in every run; with `PROPTEST_CASES` a part of
/// those, the number of which is divided by the second one, and with `PROPTEST_RNG_SEED` others.
fn try_all<S: Strategy>(histories: &S, (cases, part): (u32, u32), seed: u64, run: impl Fn(S::Value)) {
    let asked = |name| std::env::var_os(name).is_some();
    let mut config = Config { failure_persistence: None, max_shrink_iters: 40, ..Config::default() };
    config.cases = if asked("PROPTEST_CASES") { config.cases.div_ceil(part) } else { cases };
    if !asked("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(seed);
    }
    let outcome = TestRunner::new(config).run(histories, |history| {
        run(history);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
