//! What is known of a file or folder that is watched.
//!
//! Owns: the picture of it, which folders of it the system is asked to watch, and what has changed when it is looked at
//! again: where the system says so, or everywhere.
//! Never: follows a link, or tells of what is not so when it looks.
//!
//! What is watched may not be there, or be a file: then the nearest folder on the way to it is watched that is there. When
//! something on that way is moved, further up than that, nobody says so.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::changes::{Changes, Kind};
use super::globs::Globs;
use super::system::{Registration, System, Trouble};
use crate::files::folders::Own;
use crate::wire::watches::Watched;

/// So often it is looked again for the nearest folder that is there, while that comes and goes.
const ANCHORINGS_MAX: usize = 16;

/// Something that is watched.
#[derive(Debug)]
pub struct Tree {
    how: How,
    /// None while nothing is there.
    top: Option<Known>,
    /// The folder that is watched instead, while there is none.
    anchor: Option<PathBuf>,
    entries: usize,
    /// Not all of it can be watched, and why.
    trouble: Option<Trouble>,
    has_begun: bool,
}

/// What does not change of it.
#[derive(Debug)]
struct How {
    /// Its path, without links as far as it was there when it began.
    root: PathBuf,
    recursive: bool,
    globs: Globs,
    own: Arc<[Own]>,
    /// Versions of files are known, so that looking at them again tells whether they have changed.
    knows_versions: bool,
    /// It knows of so many files and folders at most.
    entries_max: usize,
}

/// What is known of a file or folder.
#[derive(Debug)]
enum Known {
    Leaf(Version),
    Folder(Folder),
}

/// What is known of a folder.
#[derive(Debug, Default)]
struct Folder {
    /// What is in it; none when it is not looked into.
    entries: Option<BTreeMap<OsString, Known>>,
    version: Version,
    registration: Registration,
}

/// What tells a version of a file from another one, where that is known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    size: u64,
    times: (i64, i64, i64, i64),
}

/// What is seen when somebody looks.
#[derive(Debug, Clone, Copy)]
struct Seen {
    is_folder: bool,
    version: Version,
}

/// Why something is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Everything is.
    Anyway,
    /// Somebody has done something with it.
    Touched,
}

/// What is lent for one look.
struct Look<'a> {
    how: &'a How,
    system: &'a mut dyn System,
    changes: &'a mut Changes,
    entries: &'a mut usize,
    trouble: &'a mut Option<Trouble>,
    /// With any trouble nothing more is looked at.
    gives_up: bool,
}

impl Tree {
    /// Begins to watch what is at this path. From here on nothing is missed.
    ///
    /// # Errors
    /// When not all of it can be watched; nothing is, then.
    pub fn begin(
        watched: &Watched,
        path: &Path,
        own: Arc<[Own]>,
        entries_max: usize,
        system: &mut dyn System,
    ) -> Result<Self, Trouble> {
        let root = real_as_far_as_there(path)?;
        if own.iter().any(|own| own.holds(&root)) {
            return Err(Trouble::Own);
        }
        let (recursive, globs, knows_versions) = (watched.recursive, Globs::of(watched), !system.says());
        let how = How { root, recursive, globs, own, knows_versions, entries_max };
        let mut tree = Self { how, top: None, anchor: None, entries: 0, trouble: None, has_begun: false };
        tree.look_everywhere(system, &mut Changes::default());
        match tree.trouble.take() {
            None => {
                tree.has_begun = true;
                Ok(tree)
            }
            Some(trouble) => {
                tree.end(system);
                Err(trouble)
            }
        }
    }

    /// Watches it no more.
    pub fn end(&mut self, system: &mut dyn System) {
        let mut changes = Changes::default();
        let (mut look, top, anchor) = self.look(system, &mut changes);
        if let Some(top) = top.take() {
            look.forget(Path::new(""), top);
        }
        anchor.take().into_iter().for_each(|anchor| system.release(&anchor));
    }

    /// Why not all of it can be watched any more.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// It goes on where another one had this trouble.
    pub fn note(&mut self, trouble: Option<Trouble>) {
        self.trouble = trouble;
    }

    /// The same, once.
    pub fn take_trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }

    /// Looks at all of it.
    pub fn look_everywhere(&mut self, system: &mut dyn System, changes: &mut Changes) {
        self.look_at_top(system, changes, Why::Anyway);
    }

    /// Looks again where something was done: at these paths, as the system calls them.
    pub fn look_at(&mut self, touched: &BTreeSet<PathBuf>, system: &mut dyn System, changes: &mut Changes) {
        let root = self.how.root.clone();
        let leads_here = |path: &PathBuf| root.starts_with(path);
        if touched.iter().any(leads_here) {
            let why = if touched.contains(&root) { Why::Touched } else { Why::Anyway };
            let is_about_root = why == Why::Touched || self.anchor.is_some();
            if is_about_root {
                self.look_at_top(system, changes, why);
            }
        }
        let below = touched.iter().filter_map(|path| path.strip_prefix(&root).ok());
        let below: Vec<&Path> = below.filter(|path| !path.as_os_str().is_empty()).collect();
        let (mut look, top, _) = self.look(system, changes);
        let Some(Known::Folder(top)) = top else { return };
        // What has gone first: it may be somewhere else now, and be watched there.
        for comes in [false, true] {
            for path in &below {
                let seen = look.see(path);
                if seen.is_some() == comes {
                    look.look_at_one(top, path, seen);
                }
            }
        }
    }

    fn look<'a>(
        &'a mut self,
        system: &'a mut dyn System,
        changes: &'a mut Changes,
    ) -> (Look<'a>, &'a mut Option<Known>, &'a mut Option<PathBuf>) {
        let Self { how, top, anchor, entries, trouble, has_begun } = self;
        (Look { how, system, changes, entries, trouble, gives_up: !*has_begun }, top, anchor)
    }

    fn look_at_top(&mut self, system: &mut dyn System, changes: &mut Changes, why: Why) {
        for _ in 0..ANCHORINGS_MAX {
            let (mut look, top, anchor) = self.look(system, changes);
            let seen = look.see(Path::new(""));
            look.compare(Path::new(""), top, seen, why);
            let near = match top {
                Some(Known::Folder(Folder { entries: Some(_), .. })) => None,
                _ => nearest_folder(&look.how.root),
            };
            if *anchor == near {
                return;
            }
            if let Some(before) = anchor.take() {
                look.system.release(&before);
            }
            let Some(near) = near else { return };
            match look.system.register(&near) {
                Ok(_) => *anchor = Some(near),
                // It has gone meanwhile.
                Err(Trouble::Gone) => {}
                Err(trouble) => {
                    *look.trouble = Some(trouble);
                    return;
                }
            }
            // It may have come before the folder was watched.
        }
    }
}

impl Look<'_> {
    fn path_of(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.how.root.clone()
        } else {
            self.how.root.join(path)
        }
    }

    fn see(&self, path: &Path) -> Option<Seen> {
        fs::symlink_metadata(self.path_of(path)).ok().map(|known| Seen::of(&known))
    }

    fn is_left_out(&self, path: &Path) -> bool {
        let full = self.path_of(path);
        self.how.globs.excludes(path) || self.how.own.iter().any(|own| own.holds(&full))
    }

    fn tell(&mut self, path: &Path, kind: Kind) {
        if self.how.globs.tells_of(path) {
            self.changes.add(path, kind);
        }
    }

    /// Looks at something in a folder that is known.
    fn look_at_one(&mut self, top: &mut Folder, path: &Path, seen: Option<Seen>) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        let mut folder = top;
        for part in parent {
            let inside = folder.entries.as_mut().and_then(|entries| entries.get_mut(part));
            let Some(Known::Folder(inside)) = inside else { return };
            folder = inside;
        }
        let Some(entries) = &mut folder.entries else { return };
        if self.is_left_out(path) {
            return;
        }
        self.look_at_entry(entries, path, name, seen, Why::Touched);
    }

    fn look_at_entry(
        &mut self,
        entries: &mut BTreeMap<OsString, Known>,
        path: &Path,
        name: &OsStr,
        seen: Option<Seen>,
        why: Why,
    ) {
        let mut known = entries.remove(name);
        self.compare(path, &mut known, seen, why);
        entries.extend(known.map(|known| (name.to_owned(), known)));
    }

    /// Takes what is seen for what is known, and tells the difference.
    fn compare(&mut self, path: &Path, known: &mut Option<Known>, seen: Option<Seen>, why: Why) {
        *known = match (known.take(), seen) {
            (None, None) => None,
            (None, Some(seen)) => self.take_in(path, seen),
            (Some(known), None) => {
                self.vanish(path, known);
                None
            }
            (Some(Known::Leaf(before)), Some(seen)) if !seen.is_folder => {
                if why == Why::Touched || self.how.knows_versions && before != seen.version {
                    self.tell(path, Kind::Updated);
                }
                Some(Known::Leaf(seen.version))
            }
            (Some(Known::Folder(mut folder)), Some(seen)) if seen.is_folder => {
                if why == Why::Touched {
                    self.tell(path, Kind::Updated);
                }
                self.compare_folder(path, &mut folder, seen, why);
                Some(Known::Folder(folder))
            }
            // A file in the place of a folder, or a folder in that of a file.
            (Some(known), Some(seen)) => {
                self.vanish(path, known);
                self.take_in(path, seen)
            }
        };
    }

    /// Takes in what was not known, and tells of it and of what is in it.
    fn take_in(&mut self, path: &Path, seen: Seen) -> Option<Known> {
        if *self.entries >= self.how.entries_max {
            *self.trouble = Some(Trouble::Entries(self.how.entries_max));
            return None;
        }
        *self.entries += 1;
        self.tell(path, Kind::Added);
        if !seen.is_folder {
            return Some(Known::Leaf(seen.version));
        }
        let mut folder = Folder { version: seen.version, ..Folder::default() };
        self.look_into(path, &mut folder);
        Some(Known::Folder(folder))
    }

    /// Watches a folder that is to be looked into, and then takes in what is in it.
    fn look_into(&mut self, path: &Path, folder: &mut Folder) {
        let is_top = path.as_os_str().is_empty();
        if self.gives_up && self.trouble.is_some() {
            return;
        }
        if !(is_top || self.how.recursive && !self.how.globs.closes(path)) {
            return;
        }
        let Some(registration) = self.register(path) else { return };
        let Some(listed) = self.list(path) else {
            // It has gone meanwhile.
            self.system.release(&self.path_of(path));
            return;
        };
        folder.registration = registration;
        let mut entries = BTreeMap::new();
        for (name, seen) in listed {
            let known = self.take_in(&path.join(&name), seen);
            entries.extend(known.map(|known| (name, known)));
        }
        folder.entries = Some(entries);
    }

    /// Looks at a folder that is known.
    fn compare_folder(&mut self, path: &Path, folder: &mut Folder, seen: Seen, why: Why) {
        let before = (folder.version.file, folder.registration);
        folder.version = seen.version;
        let Some(mut entries) = folder.entries.take() else { return self.look_into(path, folder) };
        if let Some(registration) = self.register(path) {
            // It counts once.
            self.system.release(&self.path_of(path));
            folder.registration = registration;
        }
        let is_another =
            (self.how.knows_versions && before.0 != seen.version.file) || before.1 != folder.registration;
        // What was done with the folder was not done with what is in it: that the system says. In another folder of
        // that name the files may be others, too.
        let inside = if is_another { Why::Touched } else { Why::Anyway };
        let is_known = why == Why::Touched && !is_another && !self.how.knows_versions;
        if let Some(listed) = self.list(path).filter(|_| !is_known) {
            let gone = entries.keys().filter(|name| !listed.contains_key(*name));
            for name in gone.cloned().collect::<Vec<_>>() {
                self.look_at_entry(&mut entries, &path.join(&name), &name, None, inside);
            }
            for (name, seen) in listed {
                self.look_at_entry(&mut entries, &path.join(&name), &name, Some(seen), inside);
            }
        }
        folder.entries = Some(entries);
    }

    /// Has a folder watched; none when it is not.
    fn register(&mut self, path: &Path) -> Option<Registration> {
        match self.system.register(&self.path_of(path)) {
            Ok(registration) => return Some(registration),
            Err(Trouble::Gone) => {}
            // What may not be looked into is nothing but what it is itself, unless it is all that is asked for.
            Err(Trouble::Denied) if !path.as_os_str().is_empty() => {}
            Err(trouble) => *self.trouble = Some(trouble),
        }
        None
    }

    /// What is in a folder and is not left out; none when it cannot be looked into now.
    fn list(&mut self, path: &Path) -> Option<BTreeMap<OsString, Seen>> {
        let listed = match fs::read_dir(self.path_of(path)) {
            Ok(listed) => listed,
            Err(error) => {
                if !is_missing(&error) && error.kind() != io::ErrorKind::PermissionDenied {
                    *self.trouble = Some(Trouble::Failed(error));
                }
                return None;
            }
        };
        let entries = listed.filter_map(Result::ok).filter_map(|entry| {
            if self.is_left_out(&path.join(entry.file_name())) {
                return None;
            }
            let seen = if self.how.knows_versions {
                Seen::of(&entry.metadata().ok()?)
            } else {
                Seen { is_folder: entry.file_type().ok()?.is_dir(), version: Version::default() }
            };
            Some((entry.file_name(), seen))
        });
        Some(entries.collect())
    }

    /// Tells that something is gone, once for all that was in it.
    fn vanish(&mut self, path: &Path, known: Known) {
        if self.how.globs.tells_of(path) {
            self.tell(path, Kind::Deleted);
            return self.forget(path, known);
        }
        *self.entries -= 1;
        if let Known::Folder(Folder { entries: Some(entries), .. }) = known {
            self.system.release(&self.path_of(path));
            for (name, known) in entries {
                self.vanish(&path.join(name), known);
            }
        }
    }

    /// Watches no more what was in there.
    fn forget(&mut self, path: &Path, known: Known) {
        *self.entries -= 1;
        if let Known::Folder(Folder { entries: Some(entries), .. }) = known {
            self.system.release(&self.path_of(path));
            for (name, known) in entries {
                self.forget(&path.join(name), known);
            }
        }
    }
}

impl Seen {
    fn of(known: &Metadata) -> Self {
        let times = (known.mtime(), known.mtime_nsec(), known.ctime(), known.ctime_nsec());
        let (file, is_folder) = ((known.dev(), known.ino()), known.is_dir());
        // What is in a folder has versions of its own.
        let (size, times) = if is_folder { Default::default() } else { (known.size(), times) };
        Self { is_folder, version: Version { file, size, times } }
    }
}

/// Whether what is at this path can be watched, as far as can be told without doing it.
///
/// # Errors
/// Why not.
pub fn check(path: &Path, own: &[Own]) -> Result<(), Trouble> {
    let root = real_as_far_as_there(path)?;
    if own.iter().any(|own| own.holds(&root)) {
        return Err(Trouble::Own);
    }
    match fs::read_dir(root) {
        Err(error) if !is_missing(&error) => Err(Trouble::of(error)),
        _ => Ok(()),
    }
}

/// The path without links, as far as anything is there.
fn real_as_far_as_there(path: &Path) -> Result<PathBuf, Trouble> {
    let (mut there, mut missing) = (path, Vec::new());
    loop {
        match there.canonicalize() {
            Ok(real) => return Ok(missing.iter().rev().fold(real, |path, name| path.join(name))),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(Trouble::of(error)),
        }
        // Where a `..` leads behind what is not there is not known.
        let (Some(parent), Some(name)) = (there.parent(), there.file_name()) else {
            return Err(Trouble::Gone);
        };
        missing.push(name);
        there = parent;
    }
}

/// The nearest folder on the way to a path that is there.
fn nearest_folder(path: &Path) -> Option<PathBuf> {
    let is_folder = |path: &&Path| fs::symlink_metadata(path).is_ok_and(|known| known.is_dir());
    path.ancestors().skip(1).find(is_folder).map(Path::to_owned)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
