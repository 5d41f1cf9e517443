//! Random changes of random folders, against a model and while another thread swaps folders.
//!
//! Owns: the invariants: outside of the folders nothing is read or changed, and inside each request
//! has its effect.
//! Never: tests a single path or change; other tests do.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{symlink, FileTypeExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use rustix::fs::{renameat_with, RenameFlags, CWD};

use crate::files::folders::{Folders, PathRefusal};
use crate::files::uris::{path_of, uri_of};
use crate::files::writing::{WritePosition, WriteRequest};

/// Number of schedules, each of some dozens of steps, unless `FILE_CASES` is set.
const CASES: u32 = 150;

/// Names in use: two differ in case only, and one is escaped in a URI.
const NAMES: [&str; 5] = ["a", "A", "b c", "d%2f", "e"];

/// Step of a schedule.
#[derive(Debug, Clone)]
enum Step {
    /// A client's change, at a path that may lead anywhere.
    Write {
        at: Vec<u8>,
        put: u8,
        create_only: bool,
    },
    Mkdir {
        at: Vec<u8>,
    },
    Remove {
        at: Vec<u8>,
        with_content: bool,
    },
    Move {
        from: Vec<u8>,
        to: Vec<u8>,
        only_if_free: bool,
    },
    Copy {
        from: Vec<u8>,
        to: Vec<u8>,
        only_if_free: bool,
    },
    Read {
        at: Vec<u8>,
    },
    /// Change by another process: a link, a hard link to a file outside, a pipe, a folder.
    Put {
        at: Vec<u8>,
        what: u8,
        to: Vec<u8>,
    },
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0u8..24, 0..5)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (path(), 0u8..8, any::<bool>()).prop_map(|(at, put, create_only)| Step::Write { at, put, create_only }),
        3 => path().prop_map(|at| Step::Mkdir { at }),
        2 => (path(), any::<bool>()).prop_map(|(at, with_content)| Step::Remove { at, with_content }),
        2 => (path(), path(), any::<bool>()).prop_map(|(from, to, only_if_free)| Step::Move { from, to, only_if_free }),
        2 => (path(), path(), any::<bool>()).prop_map(|(from, to, only_if_free)| Step::Copy { from, to, only_if_free }),
        3 => path().prop_map(|at| Step::Read { at }),
        3 => (path(), 0u8..8, path()).prop_map(|(at, what, to)| Step::Put { at, what, to }),
    ]
}

/// Folders of a test: files in `inside` may be changed, those in `outside` may not.
struct Ground {
    folder: tempfile::TempDir,
    top: PathBuf,
}

/// State of a path, detailed enough to detect a change.
#[derive(Debug, Clone, PartialEq, Eq)]
enum There {
    File(Vec<u8>),
    Folder,
    Link(PathBuf),
    Pipe,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        for name in ["inside/a", "outside/a"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        for name in ["inside/e", "outside/secret", "outside/a/secret", "secret"] {
            fs::write(top.join(name), format!("of {name}")).unwrap();
        }
        Self { folder, top }
    }

    fn inside(&self) -> PathBuf {
        self.top.join("inside")
    }

    /// Returns a path below `inside`, sometimes through `..`, or outside; converted to a URI and
    /// back.
    fn path(&self, words: &[u8]) -> PathBuf {
        let mut path = self.inside();
        for word in words {
            match word {
                18..=19 => path.push(".."),
                20 => path.push("outside"),
                21 => path.push("secret"),
                22 => path = self.top.join("outside"),
                23 => path.push("inside"),
                word => path.push(NAMES[usize::from(*word) % NAMES.len()]),
            }
        }
        path_of(&uri_of(&path)).unwrap()
    }

    /// Returns the states of all paths in a folder.
    fn tree(&self, name: &str) -> BTreeMap<PathBuf, There> {
        let mut found = BTreeMap::new();
        let mut ahead = vec![self.top.join(name)];
        while let Some(path) = ahead.pop() {
            let known = fs::symlink_metadata(&path).unwrap();
            let kind = known.file_type();
            let there = if kind.is_dir() {
                ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                There::Folder
            } else if kind.is_symlink() {
                There::Link(fs::read_link(&path).unwrap())
            } else if kind.is_fifo() {
                There::Pipe
            } else {
                There::File(fs::read(&path).unwrap())
            };
            found.insert(path, there);
        }
        found
    }

    /// Creates an entry as another process, if the path is free.
    fn put(&self, at: &Path, what: u8, to: &Path) {
        let made = match what {
            0 => symlink(to, at),
            1 => symlink(Path::new("..").join(to.file_name().unwrap_or_default()), at),
            2 => symlink("../outside/secret", at),
            3 => symlink(self.top.join("outside"), at),
            4 => fs::hard_link(self.top.join("outside/secret"), at),
            5 => Command::new("mkfifo").arg(at).stderr(Stdio::null()).status().map(drop),
            6 => fs::create_dir(at),
            _ => symlink(at.file_name().unwrap_or_default(), at),
        };
        // A failure is ignored: existing entries stay.
        drop(made);
    }
}

/// Resolves a path by the system's own means; `None` if its folder does not exist.
fn real(path: &Path, follows: bool) -> Option<PathBuf> {
    if follows {
        if let Ok(real) = path.canonicalize() {
            return Some(real);
        }
        // A dangling link denotes its missing target.
        if let Ok(target) = fs::read_link(path) {
            return real_link(path.parent()?, &target, 0);
        }
    }
    match path.components().next_back()? {
        Component::Normal(name) => {
            Some(path.parent()?.canonicalize().ok().filter(|folder| folder.is_dir())?.join(name))
        }
        _ => path.canonicalize().ok(),
    }
}

fn real_link(folder: &Path, target: &Path, depth: u8) -> Option<PathBuf> {
    let path = folder.canonicalize().ok()?.join(target);
    match fs::read_link(&path) {
        Ok(target) if depth < 40 && path.canonicalize().is_err() => {
            real_link(path.parent()?, &target, depth + 1)
        }
        Ok(_) => path.canonicalize().ok(),
        Err(_) => real(&path, false),
    }
}

/// Returns the expected result of a write, computed simply; `None` if the write must fail.
fn expected(
    ground: &Ground,
    path: &Path,
    put: WritePosition,
    create_only: bool,
) -> Option<(PathBuf, Vec<u8>)> {
    let at = real(path, !create_only)?;
    if !at.starts_with(ground.inside()) || at == ground.inside() {
        return None;
    }
    let before = match fs::symlink_metadata(&at) {
        Ok(_) if create_only => return None,
        Ok(known) if known.is_file() => fs::read(&at).unwrap(),
        Ok(_) => return None,
        Err(_) => Vec::new(),
    };
    let (keep, from) = match put {
        WritePosition::Truncate(position) => (position, u64::MAX),
        WritePosition::Append(back) => {
            let at = (before.len() as u64).saturating_sub(back);
            (at, at)
        }
        WritePosition::Insert(position) => (position, position),
    };
    let cut = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(before.len());
    let mut after = before[..cut(keep)].to_vec();
    after.extend(b"written");
    after.extend(&before[cut(from)..]);
    Some((at, after))
}

fn put_of(which: u8) -> WritePosition {
    match which {
        0 | 1 => WritePosition::Truncate(0),
        2 => WritePosition::Truncate(3),
        3 => WritePosition::Append(0),
        4 => WritePosition::Append(2),
        5 => WritePosition::Insert(0),
        6 => WritePosition::Insert(4),
        _ => WritePosition::Append(100),
    }
}

fn run(steps: &[Step]) -> (usize, usize) {
    let ground = Ground::new();
    let folders = Folders::new(vec![ground.inside()]);
    let outside = (ground.tree("outside"), fs::read(ground.top.join("secret")).unwrap());
    let (mut done, mut refused) = (0, 0);
    for step in steps {
        let outcome: Result<(), PathRefusal> = match step {
            Step::Write { at, put, create_only } => {
                let (path, put) = (ground.path(at), put_of(*put));
                let expected = expected(&ground, &path, put, *create_only);
                let mut tree = ground.tree("inside");
                let writing =
                    WriteRequest { put, create_only: *create_only, ..WriteRequest::whole(b"written") };
                let outcome = folders.put(&path, &writing);
                assert_eq!(outcome.is_ok(), expected.is_some(), "{path:?} {put:?} {outcome:?} {expected:?}");
                tree.extend(expected.map(|(at, content)| (at, There::File(content))));
                assert_eq!(ground.tree("inside"), tree, "{path:?}");
                outcome
            }
            Step::Mkdir { at } => {
                let path = ground.path(at);
                let made = folders.make_folder(&path);
                if made.is_ok() {
                    assert!(path.canonicalize().unwrap().starts_with(ground.inside()), "{path:?}");
                    assert!(path.is_dir(), "{path:?}");
                }
                made
            }
            Step::Remove { at, with_content } => {
                let path = ground.path(at);
                let at = real(&path, false);
                let mut tree = ground.tree("inside");
                let removed = folders.remove(&path, *with_content);
                if removed.is_ok() {
                    let at = at.unwrap();
                    assert!(at.starts_with(ground.inside()) && at != ground.inside(), "{path:?}");
                    tree.retain(|path, _| !path.starts_with(&at));
                }
                assert_eq!(ground.tree("inside"), tree, "{path:?} {removed:?}");
                removed
            }
            Step::Move { from, to, only_if_free } => {
                let (from, to) = (ground.path(from), ground.path(to));
                let (source, target) = (real(&from, false), real(&to, false));
                let mut tree = ground.tree("inside");
                let moved = folders.rename(&from, &to, *only_if_free);
                if moved.is_ok() && source != target {
                    let (source, target) = (source.unwrap(), target.unwrap());
                    let goes = |path: &Path| Some(target.join(path.strip_prefix(&source).ok()?));
                    tree.retain(|path, _| !path.starts_with(&target));
                    tree = tree
                        .into_iter()
                        .map(|(path, there)| match goes(&path) {
                            // Joining an empty path adds a slash.
                            Some(new) => (new.components().collect(), there),
                            None => (path, there),
                        })
                        .collect();
                }
                assert_eq!(ground.tree("inside"), tree, "{from:?} {to:?} {moved:?}");
                moved
            }
            Step::Copy { from, to, only_if_free } => {
                let (from, to) = (ground.path(from), ground.path(to));
                let (source, target) = (from.canonicalize().ok(), real(&to, !only_if_free));
                if source.as_ref().is_some_and(|source| !source.starts_with(&ground.top)) {
                    // Copying it would read the whole machine.
                    continue;
                }
                let before = ground.tree("");
                let mut tree = ground.tree("inside");
                let copied = folders.copy(&from, &to, *only_if_free);
                if copied.is_ok() {
                    let (source, target) = (source.unwrap(), target.unwrap());
                    assert!(target.starts_with(ground.inside()), "{to:?}");
                    for (path, there) in before {
                        if let Ok(rest) = path.strip_prefix(&source) {
                            tree.insert(target.join(rest).components().collect(), there);
                        }
                    }
                }
                assert_eq!(ground.tree("inside"), tree, "{from:?} {to:?} {copied:?}");
                copied
            }
            Step::Read { at } => {
                let path = ground.path(at);
                let read = folders.open(&path);
                if let Ok(file) = &read {
                    let mut content = Vec::new();
                    let mut file = file;
                    file.read_to_end(&mut content).unwrap();
                    let real = path.canonicalize().unwrap();
                    assert!(real.starts_with(ground.inside()), "{path:?}");
                    assert_eq!(content, fs::read(real).unwrap());
                }
                read.map(drop)
            }
            Step::Put { at, what, to } => {
                let at = ground.path(at);
                // Only inside, since entries outside must not change.
                if real(&at, false).is_some_and(|at| at.starts_with(ground.inside()) && at != ground.inside())
                {
                    ground.put(&at, *what, &ground.path(to));
                }
                continue;
            }
        };
        match outcome {
            Ok(()) => done += 1,
            Err(_) => refused += 1,
        }
        assert_eq!(
            (ground.tree("outside"), fs::read(ground.top.join("secret")).unwrap()),
            outside,
            "{step:?}"
        );
    }
    drop(ground.folder);
    (done, refused)
}

fn cases() -> u32 {
    std::env::var("FILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}

#[test]
fn random_changes_do_what_is_asked_for_and_nothing_outside() {
    let config = Config {
        cases: cases(),
        rng_seed: RngSeed::Fixed(17),
        failure_persistence: None,
        ..Config::default()
    };
    let (mut done, mut refused) = (0, 0);
    let count = std::cell::RefCell::new((&mut done, &mut refused));
    TestRunner::new(config)
        .run(&proptest::collection::vec(step(), 1..60), |steps| {
            let (more, not) = run(&steps);
            let mut count = count.borrow_mut();
            *count.0 += more;
            *count.1 += not;
            Ok(())
        })
        .unwrap();
    assert!(done > 500 && refused > 500, "{done} done, {refused} refused");
}

/// Swaps folders and links as fast as possible, during random requests.
#[cfg(target_os = "linux")]
#[test]
fn whatever_is_swapped_meanwhile_nothing_outside_is_read_or_changed() {
    /// Stops the thread, also when the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ground = Ground::new();
    let folders = Folders::new(vec![ground.inside()]);
    for (path, target) in [("inside/b c", "../outside"), ("inside/d%2f", "../outside/secret")] {
        symlink(target, ground.top.join(path)).unwrap();
    }
    fs::create_dir_all(ground.top.join("source/deeper")).unwrap();
    fs::write(ground.top.join("source/deeper/file"), "of the source").unwrap();
    let outside = (ground.tree("outside"), fs::read(ground.top.join("secret")).unwrap());
    let over = AtomicBool::new(false);
    let mut steps = Vec::new();
    let config =
        Config { cases: 40, rng_seed: RngSeed::Fixed(18), failure_persistence: None, ..Config::default() };
    let gathered = std::cell::RefCell::new(&mut steps);
    TestRunner::new(config)
        .run(&proptest::collection::vec(step(), 60), |some| {
            gathered.borrow_mut().extend(some);
            Ok(())
        })
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let pairs = [("a", "b c"), ("e", "d%2f"), ("A", "a"), ("b c", "e"), ("d%2f", "A")];
            for (one, other) in pairs.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (one, other) = (ground.inside().join(one), ground.inside().join(other));
                // A missing entry is not swapped.
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap_or_default();
            }
        });
        let _over = Over(&over);
        for step in &steps {
            drop(match step {
                Step::Write { at, put, create_only } => {
                    let put = put_of(*put);
                    let writing =
                        WriteRequest { put, create_only: *create_only, ..WriteRequest::whole(b"written") };
                    folders.put(&ground.path(at), &writing)
                }
                Step::Mkdir { at } => folders.make_folder(&ground.path(at)),
                Step::Remove { at, with_content } if !at.is_empty() => {
                    folders.remove(&ground.path(at), *with_content)
                }
                Step::Move { from, to, only_if_free } => {
                    folders.rename(&ground.path(from), &ground.path(to), *only_if_free)
                }
                Step::Copy { to, only_if_free, .. } => {
                    folders.copy(&ground.top.join("source"), &ground.path(to), *only_if_free)
                }
                Step::Read { at } => folders.open(&ground.path(at)).map(|mut file| {
                    let mut content = String::new();
                    file.read_to_string(&mut content).unwrap();
                    assert!(!content.starts_with("of outside") && content != "of secret", "{content}");
                }),
                Step::Put { at, what, to } => {
                    let at = ground.inside().join(NAMES[at.len() % NAMES.len()]);
                    if *what < 4 {
                        ground.put(&at, *what, &ground.path(to));
                    }
                    Ok(())
                }
                Step::Remove { .. } => Ok(()),
            });
        }
    });
    assert_eq!((ground.tree("outside"), fs::read(ground.top.join("secret")).unwrap()), outside);
}
