//! Reported changes against the actual ones.
//!
//! Owns: real folders that the tests change, and a client model that applies the reports.
//! Never: waits: the system reports each change when it is asked.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahp_types::state::ResourceChangeType::{self, Added, Deleted, Updated};
use proptest::prelude::*;
use tempfile::TempDir;

use super::engine::{Engine, ENTRIES_MAX};
use super::system::{NoNotifier, Notifier, Registration, System, SystemReport, WatchTrouble};
use super::tree::STACK_BYTES;
use crate::files::folders::HostFile;
use crate::files::uris::{path_of, uri_of, PATH_BYTES_MAX};
use crate::os::watch::Wakeup;
use crate::wire::watches::Watched;

/// Watched folder, with the engine that the test drives step by step.
struct Scene {
    _folder: TempDir,
    top: PathBuf,
    engine: Engine,
    channel: String,
}

fn notifier() -> Notifier {
    Notifier::new(&Wakeup::new().unwrap()).unwrap()
}

fn system() -> Box<dyn System + Send> {
    Box::new(notifier())
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn all_below(path: &Path) -> Watched {
    Watched { uri: uri_of(path), recursive: true, excludes: None, includes: None }
}

fn patterns(all: &[&str]) -> Option<Vec<String>> {
    Some(all.iter().map(|pattern| (*pattern).to_owned()).collect())
}

impl Scene {
    /// Watches a new folder with these files; names with a trailing slash are folders.
    fn new(files: &[&str], system: Box<dyn System + Send>, watched: impl FnOnce(&Path) -> Watched) -> Self {
        let (folder, top) = folder();
        files.iter().for_each(|file| make(&top, file));
        let mut engine = Engine::new(system, Arc::default(), ENTRIES_MAX);
        let channel = watched(&top).channel();
        engine.begin(&channel).unwrap();
        Self { _folder: folder, top, engine, channel }
    }

    /// Returns the changes reported since the last call.
    fn changes(&mut self) -> Vec<(String, ResourceChangeType)> {
        self.engine.catch_up();
        self.engine.read_events();
        self.engine.process_events();
        self.engine.poll();
        let mut all = Vec::new();
        while let Some(report) = self.engine.take_changes() {
            assert_eq!(report.watch, self.channel);
            assert!(!report.changes.is_empty());
            all.extend(report.changes);
        }
        all
    }

    /// Returns the changes reported since the last call, by paths below the folder.
    fn changes_below(&mut self) -> Vec<(String, ResourceChangeType)> {
        let top = uri_of(&self.top);
        let below = |uri: &str| uri.strip_prefix(&top).unwrap().trim_start_matches('/').to_owned();
        self.changes().iter().map(|(uri, kind)| (below(uri), *kind)).collect()
    }
}

fn make(top: &Path, file: &str) {
    let path = top.join(file);
    if file.ends_with('/') {
        fs::create_dir_all(path).unwrap();
    } else {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

fn changes(all: &[(&str, ResourceChangeType)]) -> Vec<(String, ResourceChangeType)> {
    all.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect()
}

#[test]
fn changes_are_reported_and_nothing_else() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut scene = Scene::new(&["a", "d/b"], system, all_below);
        assert_eq!(scene.changes(), []);
        fs::write(scene.top.join("a"), "other").unwrap();
        fs::write(scene.top.join("new"), "").unwrap();
        make(&scene.top, "e/f/g");
        fs::remove_dir_all(scene.top.join("d")).unwrap();
        make(&scene.top, "comes");
        fs::remove_file(scene.top.join("comes")).unwrap();
        let all =
            [("a", Updated), ("d", Deleted), ("e", Added), ("e/f", Added), ("e/f/g", Added), ("new", Added)];
        assert_eq!(scene.changes_below(), changes(&all));
        fs::read(scene.top.join("a")).unwrap();
        assert_eq!(scene.changes(), [], "it was only read");
        fs::write(scene.top.join("e/f/g"), "once more").unwrap();
        fs::rename(scene.top.join("new"), scene.top.join("e/moved")).unwrap();
        let all = [("e/f/g", Updated), ("e/moved", Added), ("new", Deleted)];
        assert_eq!(scene.changes_below(), changes(&all));
        fs::remove_file(scene.top.join("a")).unwrap();
        fs::write(scene.top.join("a"), "the third").unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a", Updated)]), "another file in its place");
    }
}

#[test]
fn missing_path_is_reported_when_it_appears_and_when_it_is_removed() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut scene = Scene::new(&[], system, |top| all_below(&top.join("a/b/c")));
        make(&scene.top, "other/x");
        assert_eq!(scene.changes(), []);
        make(&scene.top, "a/b/beside");
        assert_eq!(scene.changes(), []);
        make(&scene.top, "a/b/c/d");
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Added), ("a/b/c/d", Added)]));
        make(&scene.top, "a/b/c/e");
        assert_eq!(scene.changes_below(), changes(&[("a/b/c/e", Added)]));
        fs::remove_dir_all(scene.top.join("a/b")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Deleted)]));
        make(&scene.top, "a/b/c");
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Added)]), "a file");
        fs::write(scene.top.join("a/b/c"), "more").unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Updated)]));
        fs::rename(scene.top.join("a/b/c"), scene.top.join("a/b/d")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Deleted)]));
    }
}

#[test]
fn one_that_is_not_of_all_that_is_below_ends_at_its_children() {
    let only = |top: &Path| Watched { recursive: false, ..all_below(top) };
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut scene = Scene::new(&["d/x"], system, only);
        make(&scene.top, "d/y");
        fs::write(scene.top.join("d/x"), "other").unwrap();
        make(&scene.top, "e/f");
        assert_eq!(scene.changes_below(), changes(&[("e", Added)]));
    }
}

#[test]
fn names_are_reported_as_their_client_spells_them() {
    let (_folder, top) = folder();
    make(&top, "real/");
    symlink(top.join("real"), top.join("by link")).unwrap();
    let mut engine = Engine::new(system(), Arc::default(), ENTRIES_MAX);
    let uri = format!("{}/by%20link/", uri_of(&top).replace("file://", "FILE://localhost"));
    let channel = Watched { uri: uri.clone(), ..all_below(&top) }.channel();
    engine.begin(&channel).unwrap();
    make(&top, "real/ä b");
    engine.catch_up();
    engine.read_events();
    engine.process_events();
    engine.poll();
    let changes = engine.take_changes().unwrap().changes;
    assert_eq!(changes, [(format!("{uri}%C3%A4%20b"), Added)]);
}

#[test]
fn links_are_reported_and_never_followed() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let (_elsewhere, outside) = folder();
        let mut scene = Scene::new(&["d/"], system, all_below);
        symlink(&outside, scene.top.join("out")).unwrap();
        symlink(&scene.top, scene.top.join("d/around")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("d/around", Added), ("out", Added)]));
        make(&outside, "x");
        assert_eq!(scene.changes(), []);
        // A link replaces a folder.
        fs::remove_file(scene.top.join("d/around")).unwrap();
        fs::remove_dir(scene.top.join("d")).unwrap();
        symlink(&outside, scene.top.join("d")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("d", Updated)]));
        make(&outside, "y");
        assert_eq!(scene.changes(), []);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_excluded_costs_nothing() {
    let many: Vec<String> = (0..50).map(|at| format!("node_modules/{at}/x/")).collect();
    let mut files: Vec<&str> = many.iter().map(String::as_str).collect();
    files.extend(["src/a/", "out/b/c/", "skipped/d/", ".git/objects/00/", ".git/refs/"]);
    let watched = |top: &Path| Watched { excludes: patterns(&["out", "skipped/**"]), ..all_below(top) };
    let mut scene = Scene::new(&files, system(), watched);
    // The folder itself, `src`, `src/a`, `.git`, `.git/refs`.
    assert_eq!(scene.engine.folder_count(), 5);
    for file in ["out/e", "skipped/f", "node_modules/0/g", ".git/objects/h"] {
        make(&scene.top, file);
    }
    assert_eq!(scene.changes(), []);
    make(&scene.top, "src/out/x");
    fs::remove_dir_all(scene.top.join("out")).unwrap();
    fs::remove_dir_all(scene.top.join("skipped")).unwrap();
    let all = [("skipped", Deleted), ("src/out", Added), ("src/out/x", Added)];
    assert_eq!(scene.changes_below(), changes(&all));
    assert_eq!(scene.engine.folder_count(), 6);
    scene.engine.release(&scene.channel.clone());
    assert_eq!(scene.engine.folder_count(), 0);
}

#[test]
fn only_includes_are_reported_also_when_their_folder_is_removed() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let watched = |top: &Path| Watched { includes: patterns(&["**/*.json"]), ..all_below(top) };
        let mut scene = Scene::new(&["d/a.json", "d/b", "e/"], system, watched);
        make(&scene.top, "e/c.json");
        make(&scene.top, "e/d");
        assert_eq!(scene.changes_below(), changes(&[("e/c.json", Added)]));
        fs::remove_dir_all(scene.top.join("d")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("d/a.json", Deleted)]));
    }
}

#[test]
fn what_is_the_hosts_own_is_not_watched() {
    let (_folder, top) = folder();
    make(&top, "state/");
    let own: Arc<[HostFile]> = HostFile::find(&top.join("state")).into();
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut engine = Engine::new(system, Arc::clone(&own), ENTRIES_MAX);
        let refused = engine.begin(&all_below(&top.join("state/x")).channel()).unwrap_err();
        assert_eq!(refused.error.code, -32009);
        engine.begin(&all_below(&top).channel()).unwrap();
        make(&top, "state/host.log");
        engine.catch_up();
        engine.read_events();
        engine.process_events();
        engine.poll();
        assert_eq!(engine.take_changes(), None);
        fs::remove_file(top.join("state/host.log")).unwrap();
    }
}

/// Notifier with room for a limited number of folders, as for a user with many watching programs.
#[derive(Debug)]
struct Tight {
    system: Box<dyn System + Send>,
    room: usize,
}

impl System for Tight {
    fn notifies(&self) -> bool {
        true
    }

    fn register(&mut self, folder: &Path) -> Result<Registration, WatchTrouble> {
        if self.system.count() >= self.room {
            return Err(WatchTrouble::NoRoom("fs.inotify.max_user_watches"));
        }
        self.system.register(folder)
    }

    fn release(&mut self, folder: &Path) {
        self.system.release(folder);
    }

    fn pass(&mut self, step: &Path) -> Result<Registration, WatchTrouble> {
        self.system.pass(step)
    }

    fn leave(&mut self, step: &Path) {
        self.system.leave(step);
    }

    fn catch_up(&self) {
        self.system.catch_up();
    }

    fn count(&self) -> usize {
        self.system.count()
    }

    fn read_events(&mut self, report: &mut SystemReport) -> std::io::Result<()> {
        self.system.read_events(report)
    }
}

#[cfg(target_os = "linux")]
#[test]
fn without_room_small_folders_are_polled_and_others_refused() {
    let (_folder, top) = folder();
    (0..4).for_each(|at| make(&top, &format!("d{at}/x")));
    let tight = |polled_entries_max| {
        let tight = Tight { system: system(), room: 3 };
        Engine::new(Box::new(tight), Arc::default(), polled_entries_max)
    };
    let channel = all_below(&top).channel();
    let refused = tight(8).begin(&channel).unwrap_err();
    assert_eq!((refused.error.code, refused.lacks_room), (-32603, true));
    assert!(refused.error.message.contains("fs.inotify.max_user_watches"), "{}", refused.error);
    let mut engine = tight(9);
    engine.begin(&channel).unwrap();
    assert!(engine.must_poll());
    assert_eq!(engine.folder_count(), 0, "nothing is kept of what had room");
    fs::write(top.join("d0/x"), "other").unwrap();
    engine.poll();
    assert_eq!(engine.take_changes().unwrap().changes, [(uri_of(&top.join("d0/x")), Updated)]);
}

#[cfg(target_os = "linux")]
#[test]
fn where_room_ends_later_all_is_polled_from_then_on() {
    let tight = Box::new(Tight { system: system(), room: 2 });
    let mut scene = Scene::new(&["a/"], tight, all_below);
    assert!(!scene.engine.must_poll());
    make(&scene.top, "b/x");
    let all = [("", Updated), ("b", Added)];
    assert_eq!(scene.changes_below(), changes(&all));
    assert!(scene.engine.must_poll());
    fs::write(scene.top.join("b/x"), "other").unwrap();
    make(&scene.top, "a/y");
    assert_eq!(scene.changes_below(), changes(&[("a/y", Added), ("b/x", Updated)]));
}

#[cfg(target_os = "linux")]
#[test]
fn no_more_folders_are_watched_than_may_be() {
    let (_folder, top) = folder();
    ["a/", "b/"].iter().for_each(|folder| make(&top, folder));
    // Without inotify, the way counts nothing, and the tests have a folder of their own.
    let on_the_way = if cfg!(feature = "portable") { 1 } else { top.ancestors().skip(1).count() };
    let engine = |folders_max| {
        let mut system = notifier();
        system.limit_to(on_the_way + folders_max);
        Engine::new(Box::new(system), Arc::default(), ENTRIES_MAX)
    };
    let refused = engine(2).begin(&all_below(&top).channel()).unwrap_err();
    assert_eq!((refused.error.code, refused.lacks_room), (-32602, true));
    let mut engine = engine(3);
    engine.begin(&all_below(&top).channel()).unwrap();
    engine.begin(&Watched { recursive: false, ..all_below(&top) }.channel()).unwrap();
    assert_eq!(engine.folder_count(), 3, "one folder counts once");
    make(&top, "c/");
    engine.catch_up();
    engine.read_events();
    engine.process_events();
    let mut all = Vec::new();
    while let Some(report) = engine.take_changes() {
        all.push(report.changes);
    }
    all.sort_by_key(Vec::len);
    let c = (uri_of(&top.join("c")), Added);
    assert_eq!(all, [vec![c.clone()], vec![(uri_of(&top), Updated), c]]);
}

#[test]
fn watches_share_a_limit_of_files_and_folders() {
    let (folder, top) = folder();
    ["a", "b", "c"].iter().for_each(|file| make(&top, file));
    let channels = ["1", "2", "3"].map(|name| {
        let excludes = patterns(&[name]);
        Watched { excludes, ..all_below(&top) }.channel()
    });
    let mut engine = Engine::new(Box::new(NoNotifier), Arc::default(), ENTRIES_MAX).with_entries_in_all(8);
    engine.begin(&channels[0]).unwrap();
    engine.begin(&channels[1]).unwrap();
    let refused = engine.begin(&channels[2]).unwrap_err();
    assert_eq!((refused.error.code, refused.lacks_room), (-32602, true));
    assert!(refused.error.message.contains("at most 8 files and folders"), "{}", refused.error);
    engine.release(&channels[1]);
    engine.begin(&channels[2]).unwrap();
    engine.release(&channels[2]);
    let mut scene = Scene { _folder: folder, top, engine, channel: channels[0].clone() };
    ["d", "e", "f", "g", "h"].iter().for_each(|file| make(&scene.top, file));
    let found = scene.changes_below();
    assert_eq!((found.len(), &found[0]), (5, &(String::new(), Updated)), "{found:?}");
}

#[test]
fn release_of_a_watch_that_could_not_begin_leaves_that_of_another_session() {
    let (folder, top) = folder();
    ["a", "b", "c"].iter().for_each(|file| make(&top, file));
    let channel = all_below(&top).channel();
    let mut engine = Engine::new(Box::new(NoNotifier), Arc::default(), 3);
    assert!(engine.begin_own(&channel).is_err());
    ["a", "b"].iter().for_each(|file| fs::remove_file(top.join(file)).unwrap());
    engine.begin_own(&channel).unwrap();
    engine.release(&channel);
    let mut scene = Scene { _folder: folder, top, engine, channel };
    make(&scene.top, "d");
    assert_eq!(scene.changes_below(), changes(&[("d", Added)]));
    scene.engine.release(&scene.channel);
    fs::remove_file(scene.top.join("d")).unwrap();
    assert_eq!(scene.changes_below(), changes(&[]));
}

#[cfg(target_os = "linux")]
#[test]
fn watch_that_grows_too_large_is_reported_with_each_notified_change() {
    let (folder, top) = folder();
    ["a", "b/c"].iter().for_each(|file| make(&top, file));
    let engine = || Engine::new(system(), Arc::default(), ENTRIES_MAX);
    let channel = all_below(&top).channel();
    let refused = engine().limited_to(2).begin(&channel).unwrap_err();
    assert!(refused.error.message.contains("more than 2 files and folders"), "{}", refused.error);
    let mut engine = engine().limited_to(5);
    engine.begin(&channel).unwrap();
    let mut scene = Scene { _folder: folder, top, engine, channel };
    make(&scene.top, "d");
    assert_eq!(scene.changes_below(), changes(&[("d", Added)]));
    make(&scene.top, "b/more");
    assert_eq!(scene.changes_below(), changes(&[("", Updated), ("b/more", Added)]));
    fs::write(scene.top.join("b/more"), "other").unwrap();
    assert_eq!(scene.changes_below(), changes(&[("", Updated), ("b/more", Added)]));
    fs::remove_file(scene.top.join("b/more")).unwrap();
    assert_eq!(scene.changes_below(), changes(&[("b/more", Deleted)]));
    // Room that becomes free is used.
    fs::remove_file(scene.top.join("a")).unwrap();
    make(&scene.top, "e");
    assert_eq!(scene.changes_below(), changes(&[("a", Deleted), ("e", Added)]));
    fs::write(scene.top.join("e"), "other").unwrap();
    assert_eq!(scene.changes_below(), changes(&[("e", Updated)]));
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn what_the_system_forgets_is_found() {
    let mut scene = Scene::new(&["a", "d/b", "gone"], system(), all_below);
    let max: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let (one, other) = (scene.top.join("one"), scene.top.join("other"));
    fs::write(&one, "").unwrap();
    for _ in 0..max / 4 + 1 {
        fs::rename(&one, &other).unwrap();
        fs::rename(&other, &one).unwrap();
    }
    fs::write(scene.top.join("a"), "unheard").unwrap();
    make(&scene.top, "d/e/f");
    fs::remove_file(scene.top.join("gone")).unwrap();
    let all = [("", Updated), ("d/e", Added), ("d/e/f", Added), ("gone", Deleted), ("one", Added)];
    assert_eq!(scene.changes_below(), changes(&all));
    fs::write(scene.top.join("d/e/f"), "heard").unwrap();
    assert_eq!(scene.changes_below(), changes(&[("d/e/f", Updated)]));
}

#[test]
fn a_folder_that_is_moved_is_watched_where_it_is_now() {
    // Also if a scan finds the new path before the system has reported the old one.
    let mut scene = Scene::new(&["z/deep/", "m/"], system(), all_below);
    fs::rename(scene.top.join("m"), scene.top.join("n")).unwrap();
    make(&scene.top, "new/");
    fs::rename(scene.top.join("z"), scene.top.join("new/z")).unwrap();
    scene.changes();
    for file in ["n/x", "new/z/y", "new/z/deep/w"] {
        make(&scene.top, file);
    }
    let all = [("n/x", Added), ("new/z/deep/w", Added), ("new/z/y", Added)];
    assert_eq!(scene.changes_below(), changes(&all));
    fs::rename(scene.top.join("new"), scene.top.join("z")).unwrap();
    scene.changes();
    make(&scene.top, "z/z/deep/v");
    assert_eq!(scene.changes_below(), changes(&[("z/z/deep/v", Added)]));
}

/// State of a client that applies all reports: names, and contents of files.
#[derive(Debug, PartialEq)]
struct Mirror {
    /// Watched path; a link to it is followed.
    root: String,
    known: BTreeMap<String, Option<Vec<u8>>>,
}

impl Mirror {
    fn of(root: &Path) -> Self {
        let mut mirror = Self { root: uri_of(root), known: BTreeMap::new() };
        mirror.look(&uri_of(root));
        mirror
    }

    fn see(&self, uri: &str) -> Option<Metadata> {
        let path = path_of(uri).unwrap();
        if uri == self.root {
            fs::metadata(path).ok()
        } else {
            fs::symlink_metadata(path).ok()
        }
    }

    fn apply(&mut self, changes: &[(String, ResourceChangeType)]) {
        for (uri, kind) in changes {
            match kind {
                Deleted => self.drop_all(uri),
                // The whole content of an updated folder may have changed.
                Updated => {
                    self.drop_all(uri);
                    self.look(uri);
                }
                Added => self.look_once(uri),
            }
        }
    }

    fn drop_all(&mut self, uri: &str) {
        let inside = format!("{uri}/");
        self.known.retain(|other, _| other != uri && !other.starts_with(&inside));
    }

    fn look_once(&mut self, uri: &str) {
        let Some(known) = self.see(uri) else { return };
        let content = known.is_file().then(|| fs::read(path_of(uri).unwrap()).unwrap());
        self.known.insert(uri.to_owned(), content);
    }

    fn look(&mut self, uri: &str) {
        self.look_once(uri);
        if self.see(uri).is_some_and(|known| known.is_dir()) {
            for entry in fs::read_dir(path_of(uri).unwrap()).unwrap() {
                self.look(&uri_of(&entry.unwrap().path()));
            }
        }
    }
}

/// Change by another process; an impossible one is skipped.
#[derive(Debug, Clone)]
enum Deed {
    Write(String, u8),
    Folder(String),
    Link(String, String),
    Remove(String),
    Move(String, String),
    /// Loss of notifications.
    Forget,
    /// Poll.
    Look,
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "z"]), 1..4).prop_map(|parts| parts.join("/"))
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, content)| Deed::Write(path, content)),
        4 => path().prop_map(Deed::Folder),
        1 => (path(), path()).prop_map(|(to, path)| Deed::Link(to, path)),
        2 => path().prop_map(Deed::Remove),
        4 => (path(), path()).prop_map(|(from, to)| Deed::Move(from, to)),
        1 => Just(Deed::Forget),
        4 => Just(Deed::Look),
    ]
}

fn act(top: &Path, deed: &Deed) {
    let at = |path: &String| top.join(path);
    let done = match deed {
        // Different contents differ in length, since file times are no finer than some
        // milliseconds.
        Deed::Write(path, length) => fs::write(at(path), vec![b'x'; usize::from(*length)]),
        Deed::Folder(path) => fs::create_dir_all(at(path)),
        Deed::Link(to, path) => symlink(at(to), at(path)),
        Deed::Remove(path) => match fs::symlink_metadata(at(path)) {
            Ok(known) if known.is_dir() => fs::remove_dir_all(at(path)),
            _ => fs::remove_file(at(path)),
        },
        Deed::Move(from, to) => fs::rename(at(from), at(to)),
        Deed::Forget | Deed::Look => Ok(()),
    };
    drop(done);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn client_that_applies_the_reports_holds_the_real_files(
        deeds in prop::collection::vec(deed(), 1..40),
        notifies in prop::bool::weighted(0.8),
        watched in prop::sample::select(vec!["", "a", "a/b", "z/a"]),
    ) {
        let system = if notifies { system() } else { Box::new(NoNotifier) };
        let mut scene = Scene::new(&["a/b/z", "z"], system, |top| all_below(&top.join(watched)));
        let root = scene.top.join(watched);
        let mut mirror = Mirror::of(&root);
        for deed in deeds.iter().chain([&Deed::Look]) {
            act(&scene.top, deed);
            match deed {
                Deed::Forget => scene.engine.forget(),
                Deed::Look => {
                    let changes = scene.changes();
                    mirror.apply(&changes);
                    prop_assert_eq!(&mirror, &Mirror::of(&root), "{:?}", changes);
                }
                _ => {}
            }
        }
        let folders = mirror.known.values().filter(|content| content.is_none()).count();
        let links = mirror.known.keys().filter(|uri| path_of(uri).unwrap().is_symlink()).count();
        if notifies && watched.is_empty() && cfg!(target_os = "linux") {
            prop_assert_eq!(scene.engine.folder_count(), folders - links);
        }
    }
}

#[test]
fn watched_path_is_reported_again_when_its_way_changes() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut scene = Scene::new(&["a/b/c/x"], system, |top| all_below(&top.join("a/b/c")));
        let (a, z) = (scene.top.join("a"), scene.top.join("z"));
        fs::rename(&a, &z).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Deleted)]));
        make(&scene.top, "z/b/c/y");
        assert_eq!(scene.changes(), [], "it is elsewhere");
        make(&scene.top, "a/b/c/new");
        assert_eq!(scene.changes_below(), changes(&[("a/b/c", Added), ("a/b/c/new", Added)]));
        // Both at once: another folder has taken its place.
        fs::remove_dir_all(&a).unwrap();
        fs::rename(&z, &a).unwrap();
        let all = [("", Updated), ("/new", Deleted), ("/x", Added), ("/y", Added)];
        let all: Vec<_> = all.map(|(path, kind)| (format!("a/b/c{path}"), kind)).into();
        assert_eq!(scene.changes_below(), all);
        make(&scene.top, "a/b/c/later");
        assert_eq!(scene.changes_below(), changes(&[("a/b/c/later", Added)]));
    }
}

#[test]
fn a_link_on_the_way_leads_where_it_leads_now() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let begun = |top: &Path| {
            symlink("one", top.join("current")).unwrap();
            symlink(top.join("current"), top.join("link")).unwrap();
            all_below(&top.join("link/in"))
        };
        let mut scene = Scene::new(&["one/in/x", "other/in/y"], system, begun);
        make(&scene.top, "one/in/z");
        assert_eq!(scene.changes_below(), changes(&[("link/in/z", Added)]));
        let top = scene.top.clone();
        let turn = |to: &str| {
            symlink(to, top.join("next")).unwrap();
            fs::rename(top.join("next"), top.join("current")).unwrap();
        };
        turn("other");
        let turned = scene.changes_below();
        assert_eq!(turned.first(), Some(&("link/in".to_owned(), Updated)), "{turned:?}");
        make(&scene.top, "one/in/unseen");
        make(&scene.top, "other/in/seen");
        assert_eq!(scene.changes_below(), changes(&[("link/in/seen", Added)]));
        turn("nothing");
        assert_eq!(scene.changes_below(), changes(&[("link/in", Deleted)]));
        make(&scene.top, "nothing/in/x");
        assert_eq!(scene.changes_below(), changes(&[("link/in", Added), ("link/in/x", Added)]));
        fs::remove_file(scene.top.join("link")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("link/in", Deleted)]));
    }
}

#[test]
fn a_file_is_another_one_when_its_folder_is() {
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut scene = Scene::new(&["a/b/f", "z/b/f"], system, |top| all_below(&top.join("a/b/f")));
        fs::rename(scene.top.join("a"), scene.top.join("y")).unwrap();
        fs::rename(scene.top.join("z"), scene.top.join("a")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a/b/f", Updated)]));
        fs::write(scene.top.join("a/b/f"), "longer than it was").unwrap();
        assert_eq!(scene.changes_below(), changes(&[("a/b/f", Updated)]));
    }
}

#[test]
fn a_link_that_is_made_later_shows_nothing_of_the_hosts_own() {
    let (_folder, top) = folder();
    make(&top, "state/store");
    let own: Arc<[HostFile]> = HostFile::find(&top.join("state")).into();
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut engine = Engine::new(system, Arc::clone(&own), ENTRIES_MAX);
        engine.begin(&all_below(&top.join("way/store")).channel()).unwrap();
        let mut changes = || {
            engine.catch_up();
            engine.read_events();
            engine.process_events();
            engine.poll();
            engine.take_changes().map(|report| report.changes)
        };
        symlink(top.join("state"), top.join("way")).unwrap();
        assert_eq!(changes(), None);
        fs::write(top.join("state/store"), "more of it").unwrap();
        assert_eq!(changes(), None);
        fs::remove_file(top.join("way")).unwrap();
        make(&top, "way/store");
        assert_eq!(changes(), Some(vec![(uri_of(&top.join("way/store")), Added)]));
        fs::remove_dir_all(top.join("way")).unwrap();
        changes();
    }
}

#[test]
fn what_has_too_long_a_path_is_left_out_alone() {
    let name = "n".repeat(250);
    for system in [system(), Box::new(NoNotifier) as Box<dyn System + Send>] {
        let mut scene = Scene::new(&["d/"], system, |top| {
            // No system call accepts such a path, so it is composed by moving folders.
            let half: PathBuf = std::iter::repeat_n(name.as_str(), 10).collect();
            for side in ["d/low", "high"] {
                fs::create_dir_all(top.join(side).join(&half)).unwrap();
            }
            fs::write(top.join("high").join(&half).join("f"), "").unwrap();
            fs::rename(top.join("high"), top.join("d/low").join(&half).join("high")).unwrap();
            all_below(top)
        });
        make(&scene.top, "d/new");
        assert_eq!(scene.changes_below(), changes(&[("d/new", Added)]));
        fs::remove_dir_all(scene.top.join("d")).unwrap();
        assert_eq!(scene.changes_below(), changes(&[("d", Deleted)]));
        if cfg!(target_os = "linux") {
            assert_eq!(scene.engine.folder_count(), usize::from(!scene.engine.must_poll()));
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn deepest_folders_are_watched_on_the_thread_of_the_host() {
    let (_folder, top) = folder();
    // Such folders are neither made nor removed by std: it opens or calls once per level.
    let deep: PathBuf = std::iter::repeat_n("a", PATH_BYTES_MAX / 2 - 100).collect();
    let made = |program: &str, option: &str, path: &Path| {
        std::process::Command::new(program).arg(option).arg(path).status().unwrap().success()
    };
    assert!(made("mkdir", "-p", &top.join(&deep)));
    let (below, file) = (top.clone(), top.join(&deep).join("f"));
    let watching = move || {
        let mut engine = Engine::new(system(), Arc::default(), ENTRIES_MAX);
        engine.begin(&all_below(&below).channel()).unwrap();
        fs::write(&file, "").unwrap();
        engine.catch_up();
        engine.read_events();
        engine.process_events();
        let report = engine.take_changes().unwrap();
        assert_eq!(report.changes, [(uri_of(&file), Added)]);
        engine.folder_count()
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(watching).unwrap();
    assert!(thread.join().unwrap() > PATH_BYTES_MAX / 2 - 100);
    assert!(made("rm", "-rf", &top));
}

/// Notifier to which each folder is gone when it is registered.
#[derive(Debug)]
struct Fleeting;

impl System for Fleeting {
    fn notifies(&self) -> bool {
        true
    }

    fn register(&mut self, _folder: &Path) -> Result<Registration, WatchTrouble> {
        Err(WatchTrouble::Gone)
    }

    fn release(&mut self, _folder: &Path) {}

    fn read_events(&mut self, _report: &mut SystemReport) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn path_that_changes_at_each_attempt_is_refused() {
    let (_folder, top) = folder();
    let mut engine = Engine::new(Box::new(Fleeting), Arc::default(), ENTRIES_MAX);
    let refused = engine.begin(&all_below(&top).channel()).unwrap_err();
    assert!(refused.error.message.contains("changes"), "{}", refused.error);
}
