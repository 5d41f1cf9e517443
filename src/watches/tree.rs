//! Known state of a watched file or folder.
//!
//! Owns: the picture of it, which folders of it the system is asked to watch, and what has changed
//! when it is looked at again: where the system says so, or everywhere.
//! Never: follows a link, or tells of what is not so when it looks.
//!
//! What is watched may not be there, or be a file: then the nearest folder on the way to it is
//! watched that is there. Of each folder and link further up on that way, the system is asked to
//! say when it is moved or removed: then the way is followed anew, and what it leads to now is
//! compared with what it led to before.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::changes::{ChangeKind, PathChanges};
use super::globs::Globs;
use super::system::{Registration, System, WatchTrouble};
use super::way::Way;
use crate::files::folders::{Identity, Own};
use crate::files::uris::PATH_BYTES_MAX;
use crate::wire::watches::Watched;

/// Maximum number of attempts to follow a path that changes meanwhile.
const FOLLOWINGS_MAX: usize = 16;

/// Something that is watched.
#[derive(Debug)]
pub struct Tree {
    /// As its client names it.
    path: PathBuf,
    /// Folders and links on the way to it, which are watched, too.
    steps: BTreeMap<PathBuf, (Identity, Registration)>,
    how: How,
    /// None while nothing is there.
    top: Option<Known>,
    /// The folder that is watched instead, while there is none.
    anchor: Option<PathBuf>,
    entries: usize,
    /// Not all of it can be watched, and why.
    trouble: Option<WatchTrouble>,
    /// There is, or was, more in it than is known.
    is_partial: bool,
    has_begun: bool,
    /// Something in it has a path that is too long, and that was said.
    has_too_long: bool,
}

/// Constant properties of a watch.
#[derive(Debug)]
struct How {
    /// Canonical path, as far as it exists.
    root: PathBuf,
    recursive: bool,
    globs: Globs,
    own: Arc<[Own]>,
    /// Versions of files are known, so that looking at them again tells whether they have changed.
    knows_versions: bool,
    /// Maximum number of files and folders that it knows.
    entries_max: usize,
}

/// Known state of a file or folder.
#[derive(Debug)]
enum Known {
    Leaf(Version),
    Folder(Folder),
}

/// Known state of a folder.
#[derive(Debug, Default)]
struct Folder {
    /// Entries; `None` if the folder is not read.
    entries: Option<BTreeMap<OsString, Known>>,
    version: Version,
    registration: Registration,
}

/// Facts that tell one version of a file from another, as far as they are known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    size: u64,
    times: (i64, i64, i64, i64),
}

/// State of a path at one look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    is_folder: bool,
    version: Version,
}

/// Why something is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Full look at every path.
    Anyway,
    /// Notification about the path.
    Touched,
}

/// Context of one look.
struct Look<'a> {
    how: &'a How,
    system: &'a mut dyn System,
    changes: &'a mut PathChanges,
    entries: &'a mut usize,
    trouble: &'a mut Option<WatchTrouble>,
    is_partial: &'a mut bool,
    has_too_long: &'a mut bool,
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
    ) -> Result<Self, WatchTrouble> {
        let way = Way::follow(path, &own);
        if way.is_own {
            return Err(WatchTrouble::Own);
        }
        if let Some(trouble) = way.trouble {
            return Err(trouble);
        }
        let (recursive, globs, knows_versions) = (watched.recursive, Globs::of(watched), !system.says());
        let how = How { root: way.root, recursive, globs, own, knows_versions, entries_max };
        let mut tree = Self {
            path: path.to_owned(),
            steps: BTreeMap::new(),
            how,
            top: None,
            anchor: None,
            entries: 0,
            trouble: None,
            is_partial: false,
            has_begun: false,
            has_too_long: false,
        };
        tree.look_everywhere(system, &mut PathChanges::default());
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
        let mut changes = PathChanges::default();
        let (mut look, top, anchor) = self.look(system, &mut changes);
        if let Some(top) = top.take() {
            look.forget(Path::new(""), top);
        }
        anchor.take().into_iter().for_each(|anchor| system.release(&anchor));
        std::mem::take(&mut self.steps).keys().for_each(|step| system.leave(step));
    }

    /// Why not all of it can be watched any more.
    pub fn trouble(&self) -> Option<&WatchTrouble> {
        self.trouble.as_ref()
    }

    /// Takes over the trouble of another watch.
    pub fn note(&mut self, trouble: Option<WatchTrouble>) {
        self.trouble = trouble;
    }

    /// Takes the trouble that was noted.
    pub fn take_trouble(&mut self) -> Option<WatchTrouble> {
        self.trouble.take()
    }

    /// Looks at all of it.
    pub fn look_everywhere(&mut self, system: &mut dyn System, changes: &mut PathChanges) {
        self.look_at_top(system, changes, Why::Anyway);
    }

    /// Looks again where something was done: at these paths, as the system calls them.
    pub fn look_at(
        &mut self,
        touched: &BTreeSet<PathBuf>,
        system: &mut dyn System,
        changes: &mut PathChanges,
    ) {
        let root = self.how.root.clone();
        let leads_here = |path: &PathBuf| root.starts_with(path);
        let is_on_the_way = |path: &PathBuf| self.steps.contains_key(path);
        if touched.contains(&root) {
            self.look_at_top(system, changes, Why::Touched);
        } else if touched.iter().any(is_on_the_way) || self.anchor.is_some() && touched.iter().any(leads_here)
        {
            self.look_at_top(system, changes, Why::Anyway);
        }
        let root = self.how.root.clone();
        let below =
            touched.iter().filter(|path| is_short(path)).filter_map(|path| path.strip_prefix(&root).ok());
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
        changes: &'a mut PathChanges,
    ) -> (Look<'a>, &'a mut Option<Known>, &'a mut Option<PathBuf>) {
        let Self { how, top, anchor, entries, trouble, is_partial, has_begun, has_too_long, .. } = self;
        let gives_up = !*has_begun;
        (Look { how, system, changes, entries, trouble, is_partial, has_too_long, gives_up }, top, anchor)
    }

    /// Follows the way anew, and looks at what it leads to.
    fn look_at_top(&mut self, system: &mut dyn System, changes: &mut PathChanges, mut why: Why) {
        let mut is_known = false;
        for _ in 0..FOLLOWINGS_MAX {
            let way = Way::follow(&self.path, &self.how.own);
            let (nearest, is_own) = (way.nearest.clone(), way.is_own);
            if self.take_way(way, system, changes) {
                why = Why::Touched;
            } else if is_known {
                return;
            }
            let (mut look, top, anchor) = self.look(system, changes);
            let seen = look.see(Path::new("")).filter(|_| !is_own);
            look.compare(Path::new(""), top, seen, why);
            let near = match top {
                Some(Known::Folder(Folder { entries: Some(_), .. })) => None,
                _ => Some(nearest).filter(|_| !is_own),
            };
            // What was done while it was looked at is found when the way is followed once more.
            is_known = *anchor == near;
            if is_known {
                continue;
            }
            if let Some(before) = anchor.take() {
                look.system.release(&before);
            }
            let Some(near) = near else { continue };
            match look.system.register(&near) {
                Ok(_) => *anchor = Some(near),
                // It has gone meanwhile.
                Err(WatchTrouble::Gone) => {}
                Err(trouble) => {
                    *look.trouble = Some(trouble);
                    return;
                }
            }
        }
    }

    /// Goes this way from now on; returns whether it is another one.
    fn take_way(&mut self, way: Way, system: &mut dyn System, changes: &mut PathChanges) -> bool {
        let mut steps = BTreeMap::new();
        for (step, identity) in way.steps {
            let registration = match system.pass(&step) {
                Ok(registration) => registration,
                // Of what may not be read, and of what has just gone, the system says nothing.
                Err(WatchTrouble::Gone | WatchTrouble::Denied) => continue,
                Err(trouble) => {
                    self.trouble = Some(trouble);
                    continue;
                }
            };
            steps.insert(step, (identity, registration));
        }
        let before = std::mem::replace(&mut self.steps, steps);
        before.keys().for_each(|step| system.leave(step));
        let is_another = before != self.steps && self.has_begun;
        if way.root != self.how.root {
            let (mut look, top, _) = self.look(system, changes);
            if let Some(known) = top.take() {
                look.vanish(Path::new(""), known);
            }
            self.how.root = way.root;
            return true;
        }
        is_another
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

    fn tell(&mut self, path: &Path, kind: ChangeKind) {
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
            (None, None) => {
                // It may have been there, and be one of those for which there was no room.
                if *self.is_partial && why == Why::Touched {
                    self.tell(path, ChangeKind::Deleted);
                }
                None
            }
            (None, Some(seen)) => {
                let taken = self.take_in(path, seen);
                if taken.is_none() && why == Why::Touched {
                    self.tell(path, ChangeKind::Added);
                }
                taken
            }
            (Some(known), None) => {
                self.vanish(path, known);
                None
            }
            (Some(Known::Leaf(before)), Some(seen)) if !seen.is_folder => {
                if why == Why::Touched || self.how.knows_versions && before != seen.version {
                    self.tell(path, ChangeKind::Updated);
                }
                Some(Known::Leaf(seen.version))
            }
            (Some(Known::Folder(mut folder)), Some(seen)) if seen.is_folder => {
                if why == Why::Touched {
                    self.tell(path, ChangeKind::Updated);
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

    /// Takes in what was not known, and tells of it and of what is in it; none when there is no
    /// room for it.
    fn take_in(&mut self, path: &Path, seen: Seen) -> Option<Known> {
        if *self.entries >= self.how.entries_max {
            *self.trouble = Some(WatchTrouble::Entries(self.how.entries_max));
            *self.is_partial = true;
            return None;
        }
        *self.entries += 1;
        self.tell(path, ChangeKind::Added);
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
        // What was done with the folder was not done with what is in it: that the system says. In
        // another folder of that name the files may be others, too.
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
            Err(WatchTrouble::Gone) => {}
            // What may not be looked into is nothing but what it is itself, unless it is all that
            // is asked for.
            Err(WatchTrouble::Denied) if !path.as_os_str().is_empty() => {}
            Err(WatchTrouble::TooLong) => self.leave_out_too_long(),
            Err(trouble) => *self.trouble = Some(trouble),
        }
        None
    }

    /// Returns the entries of a folder that are not excluded; `None` if it cannot be read now.
    fn list(&mut self, path: &Path) -> Option<BTreeMap<OsString, Seen>> {
        let listed = match fs::read_dir(self.path_of(path)) {
            Ok(listed) => listed,
            Err(error) => {
                match WatchTrouble::of(error) {
                    WatchTrouble::Gone | WatchTrouble::Denied => {}
                    WatchTrouble::TooLong => self.leave_out_too_long(),
                    trouble => *self.trouble = Some(trouble),
                }
                return None;
            }
        };
        let entries = listed.filter_map(Result::ok).filter_map(|entry| {
            if !is_short(&entry.path()) {
                self.leave_out_too_long();
                return None;
            }
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

    /// Stops watching entries whose paths are too long for the system.
    fn leave_out_too_long(&mut self) {
        if !std::mem::replace(self.has_too_long, true) {
            let root = self.how.root.display();
            tracing::warn!("what is below `{root}` with a path longer than any is not watched");
        }
    }

    /// Tells that something is gone, once for all that was in it.
    fn vanish(&mut self, path: &Path, known: Known) {
        if self.how.globs.tells_of(path) {
            self.tell(path, ChangeKind::Deleted);
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

/// Returns whether the system takes this path.
fn is_short(path: &Path) -> bool {
    path.as_os_str().len() < PATH_BYTES_MAX
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
