//! Repository status as the core refreshes it and sends it to clients.
//!
//! Owns: a host in memory whose repository is what a test says that git has seen, and when git is
//! asked.
//! Never: runs git, or waits.

use ahp_sidecar::host::effects::{
    ConnectionId, GitContent, GitReport, GitWork, Input, Output, RepositoryStatus, Timer,
};
use ahp_sidecar::host::limits::Limits;
use ahp_sidecar::state::edits::FileDiff;
use ahp_types::state::ResourceChangeType;
use serde_json::{json, Value};

use crate::support::core::{Core, SESSION};
use crate::support::world::{line, World};

const CLIENT: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);
const ROOT: &str = "file:///r";

fn uncommitted() -> String {
    format!("{SESSION}/changeset/uncommitted")
}

/// A repository in which these files are not committed.
fn sight(files: &[&str]) -> GitReport {
    let content = || Some(GitContent { mode: 0o100_644, blob: "1".repeat(40) });
    let change = |name: &&str| FileDiff {
        file: format!("{ROOT}/{name}"),
        renamed_from: None,
        before: None,
        after: content(),
        lines: None,
    };
    let uncommitted: Vec<FileDiff<GitContent>> = files.iter().map(change).collect();
    let uncommitted_count = files.len() as u64;
    let seen = RepositoryStatus {
        root: ROOT.to_owned(),
        uncommitted,
        uncommitted_count,
        ..RepositoryStatus::default()
    };
    GitReport::Status(Box::new(seen))
}

/// A host, and what it has put out.
struct Watcher {
    world: World,
    /// The numbers of the looks that git was asked for and that nobody knows of yet.
    looks: Vec<u64>,
    /// Files that the last look was about; `None` if about all.
    touched: Option<Vec<String>>,
    watched: Vec<String>,
    timers: Vec<Timer>,
    /// Changeset actions received by the client, abbreviated.
    told: Vec<String>,
}

impl Watcher {
    /// A client has a session in a repository in which nothing is to be committed, and nobody has
    /// seen its files.
    fn begin() -> Self {
        let limits = Limits { checkpoint_timeout_ms: 2000, ..Limits::default() };
        let world = World::new(Core::limited(limits));
        let (looks, touched, watched, timers, told) = (vec![], None, vec![], vec![], vec![]);
        let mut watcher = Self { world, looks, touched, watched, timers, told };
        for (connection, name) in [(CLIENT, "me"), (OTHER, "other")] {
            watcher.world.arrive(connection, name);
        }
        let params = json!({ "channel": SESSION, "workingDirectories": [ROOT] });
        watcher.world.ask(CLIENT, "createSession", params).unwrap();
        let look = watcher.take_scan().expect("a new session is looked at");
        watcher.saw(look, sight(&[]));
        watcher
    }

    /// Takes in what the host has put out.
    fn absorb(&mut self) {
        for output in self.world.take() {
            match output {
                Output::Git(number, job) => {
                    if let GitWork::Status { touched, .. } = job.work {
                        self.looks.push(number);
                        self.touched = touched;
                    }
                }
                Output::Watch(channel) => self.watched.push(channel),
                Output::Unwatch(channel) => self.watched.retain(|it| *it != channel),
                Output::Timer(timer, _) => self.timers.push(timer),
                Output::Frame(CLIENT, frame) => {
                    let envelope = line(&frame)["params"].take();
                    if envelope["channel"] == uncommitted() {
                        self.told.extend(brief(&envelope["action"]));
                    }
                }
                _ => {}
            }
        }
    }

    /// The number of the look that git is asked for; none when it is not.
    fn take_scan(&mut self) -> Option<u64> {
        self.absorb();
        assert!(self.looks.len() <= 1, "git is asked {} times at once", self.looks.len());
        self.looks.pop()
    }

    fn saw(&mut self, look: u64, report: GitReport) {
        self.world.feed(Input::Git(look, report));
    }

    /// Returns the messages to the client since the last call.
    fn take_sent(&mut self) -> Vec<String> {
        self.absorb();
        std::mem::take(&mut self.told)
    }

    /// Something changes in the folder.
    fn changes(&mut self) {
        self.change(&format!("{ROOT}/a"));
    }

    fn change(&mut self, uri: &str) {
        self.absorb();
        for watch in self.watched.clone() {
            let changes = vec![(uri.to_owned(), ResourceChangeType::Updated)];
            self.world.feed(Input::FilesChanged { watch, changes });
        }
    }

    /// Refreshes the status after a change. Returns the files that git looks at, `None` for all.
    fn refresh(&mut self, report: GitReport) -> Option<Vec<String>> {
        self.time_for(is_refresh_timer);
        let look = self.take_scan().unwrap();
        self.saw(look, report);
        self.touched.take()
    }

    /// The timers that were asked for and are of this kind.
    fn timers(&mut self, is_it: impl Fn(&Timer) -> bool) -> Vec<Timer> {
        self.absorb();
        self.timers.iter().copied().filter(is_it).collect()
    }

    /// Fires the latest timer that `is_it` accepts.
    fn time_for(&mut self, is_it: impl Fn(&Timer) -> bool) {
        let timer = self.timers(is_it).pop().expect("the timer was asked for");
        self.world.feed(Input::Timer(timer));
    }

    fn watches(&mut self) -> usize {
        self.absorb();
        self.watched.len()
    }

    /// The client follows the changeset, and knows what is there.
    fn follow(&mut self, files: &[&str]) {
        self.world.state(CLIENT, &uncommitted());
        let look = self.take_scan().unwrap();
        self.saw(look, sight(files));
        assert_eq!(self.take_scan(), None);
        assert_eq!(self.take_sent().last().map(String::as_str), Some("ready"));
    }
}

/// Abbreviates an action on the changeset, ignoring its operations.
fn brief(action: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    match text(&action["type"]).as_str() {
        "changeset/operationsChanged" => None,
        "changeset/statusChanged" => Some(text(&action["status"])),
        "changeset/fileSet" => Some(format!("set {}", text(&action["file"]["id"]))),
        "changeset/fileRemoved" => Some(format!("removed {}", text(&action["fileId"]))),
        other => Some(other.to_owned()),
    }
}

const fn is_refresh_timer(timer: &Timer) -> bool {
    matches!(timer, Timer::Refresh(_))
}

const fn is_stay(timer: &Timer) -> bool {
    matches!(timer, Timer::Linger(..))
}

#[test]
fn refresh_is_announced_while_the_last_status_stays_shown() {
    let mut watcher = Watcher::begin();
    watcher.follow(&["a"]);
    watcher.changes();
    assert_eq!(watcher.take_sent(), [""; 0]);
    watcher.time_for(is_refresh_timer);
    assert_eq!(watcher.take_sent(), ["recomputing"]);
    let look = watcher.take_scan().unwrap();
    watcher.saw(look, sight(&["a", "b"]));
    assert_eq!(watcher.take_sent(), ["set file:///r/b", "ready"]);
    // Where it was nothing, the status alone is told.
    watcher.changes();
    watcher.time_for(is_refresh_timer);
    let look = watcher.take_scan().unwrap();
    watcher.saw(look, sight(&["a", "b"]));
    assert_eq!(watcher.take_sent(), ["recomputing", "ready"]);
}

/// Else it would be looked at without an end, and nobody would ever hear that what is shown is what
/// was there.
#[test]
fn change_during_a_refresh_schedules_another_one() {
    let mut watcher = Watcher::begin();
    watcher.follow(&["a"]);
    watcher.changes();
    watcher.time_for(is_refresh_timer);
    let look = watcher.take_scan().unwrap();
    let before = watcher.timers(is_refresh_timer).len();
    watcher.changes();
    watcher.changes();
    assert_eq!(watcher.timers(is_refresh_timer).len(), before);
    watcher.take_sent();
    watcher.saw(look, sight(&["a", "b"]));
    assert_eq!(watcher.take_sent(), ["set file:///r/b", "ready"]);
    assert_eq!((watcher.take_scan(), watcher.timers(is_refresh_timer).len()), (None, before + 1));
    watcher.time_for(is_refresh_timer);
    assert_eq!(watcher.take_sent(), ["recomputing"]);
    assert!(watcher.take_scan().is_some());
}

/// A change between git's scan and the start of the watch would otherwise be shown with the next
/// change only.
#[test]
fn new_watch_triggers_a_silent_refresh() {
    let mut watcher = Watcher::begin();
    watcher.follow(&["a"]);
    let watch = watcher.watched[0].clone();
    watcher.world.feed(Input::Watches(watch));
    let look = watcher.take_scan().unwrap();
    watcher.saw(look, sight(&["a"]));
    assert_eq!(watcher.take_sent(), [""; 0]);
}

#[test]
fn refresh_is_about_the_changed_files_once_all_changes_are_reported() {
    let mut watcher = Watcher::begin();
    watcher.follow(&[]);
    watcher.changes();
    assert_eq!(watcher.refresh(sight(&[])), None, "the watch has not begun");
    let watch = watcher.watched[0].clone();
    watcher.world.feed(Input::Watches(watch));
    let look = watcher.take_scan().unwrap();
    assert_eq!(watcher.touched, None, "changes before it were not reported");
    watcher.saw(look, sight(&[]));
    let all = Some(vec!["file:///r/a".to_owned(), "file:///r/b".to_owned()]);
    watcher.change("file:///r/b");
    watcher.changes();
    assert_eq!(watcher.refresh(GitReport::Failed("no time".to_owned())), all);
    watcher.changes();
    assert_eq!(watcher.refresh(sight(&[])), None, "the changes before the failure are not known");
    watcher.change("file:///r/b");
    watcher.changes();
    assert_eq!(watcher.refresh(sight(&[])), all);
    (0..101).for_each(|at| watcher.change(&format!("file:///r/{at}")));
    assert_eq!(watcher.refresh(sight(&[])), None, "too many");
    watcher.change(ROOT);
    assert_eq!(watcher.refresh(sight(&[])), None);
    watcher.changes();
    assert_eq!(watcher.refresh(sight(&[])), None, "the watch may be incomplete");
}

#[test]
fn second_subscriber_triggers_a_silent_refresh() {
    let mut watcher = Watcher::begin();
    watcher.follow(&["a"]);
    assert_eq!(watcher.world.state(OTHER, &uncommitted())["status"], "ready");
    let look = watcher.take_scan().unwrap();
    watcher.saw(look, sight(&["a"]));
    assert_eq!((watcher.take_sent(), watcher.take_scan()), (vec![], None));
}

#[test]
fn returning_subscriber_sees_whether_the_repository_changed_meanwhile() {
    let mut watcher = Watcher::begin();
    watcher.follow(&["a"]);
    let come_and_go = |watcher: &mut Watcher, meanwhile: &dyn Fn(&mut Watcher)| {
        watcher.world.unsubscribe(CLIENT, &uncommitted());
        meanwhile(watcher);
        assert_eq!(watcher.take_scan(), None, "what nobody follows is looked at");
        watcher.world.state(CLIENT, &uncommitted());
        let told = watcher.take_sent();
        let look = watcher.take_scan().unwrap();
        watcher.saw(look, sight(&["a"]));
        (told, watcher.take_sent())
    };
    let (none, old, ready) = (Vec::<String>::new(), vec!["recomputing".to_owned()], vec!["ready".to_owned()]);
    assert_eq!(come_and_go(&mut watcher, &|_| ()), (none.clone(), none.clone()));
    assert_eq!(come_and_go(&mut watcher, &Watcher::changes), (old.clone(), ready.clone()));
    // It is not watched for ever, and what was asked for before somebody came back counts no more.
    let too_late = watcher.timers(is_stay);
    assert_eq!(too_late.len(), 2);
    let late = |watcher: &mut Watcher| {
        for timer in &too_late {
            watcher.world.feed(Input::Timer(*timer));
        }
        assert_eq!(watcher.watches(), 1);
    };
    assert_eq!(come_and_go(&mut watcher, &late), (none.clone(), none));
    let in_time = |watcher: &mut Watcher| {
        watcher.time_for(is_stay);
        assert_eq!(watcher.watches(), 0);
    };
    assert_eq!(come_and_go(&mut watcher, &in_time), (old, ready));
    assert_eq!(watcher.watches(), 1);
}

/// A client that asks again and again hears at last that all is known.
#[test]
fn client_that_subscribes_and_leaves_repeatedly_sees_a_ready_status() {
    let mut watcher = Watcher::begin();
    let mut last = Value::Null;
    for round in 0..3 {
        last = watcher.world.state(CLIENT, &uncommitted());
        let look = watcher.take_scan().unwrap();
        watcher.world.unsubscribe(CLIENT, &uncommitted());
        watcher.saw(look, sight(&["a"]));
        if let Some(look) = watcher.take_scan() {
            watcher.saw(look, sight(&["a"]));
        }
        assert_eq!(last["status"], if round == 0 { "computing" } else { "ready" });
    }
    assert_eq!(last["files"][0]["id"], "file:///r/a");
}

#[test]
fn failed_refresh_is_an_error_until_one_succeeds() {
    let mut watcher = Watcher::begin();
    watcher.follow(&["a"]);
    for report in [GitReport::NoRepository, GitReport::Failed("no time".to_owned())] {
        watcher.changes();
        watcher.time_for(is_refresh_timer);
        let look = watcher.take_scan().unwrap();
        watcher.saw(look, report);
        // What was seen last stays.
        assert_eq!(watcher.take_sent(), ["recomputing", "error"]);
        watcher.changes();
        watcher.time_for(is_refresh_timer);
        let look = watcher.take_scan().unwrap();
        watcher.saw(look, sight(&["a"]));
        assert_eq!(watcher.take_sent(), ["ready"]);
    }
}
