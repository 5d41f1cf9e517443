//! Known state of a watched file or folder.
//!
//! Owns: the known tree, which of its folders the system watches, and the changes that a scan
//! finds: of reported paths, or of the whole tree.
//! Never: follows a link, or reports a change that the scan does not confirm.
//!
//! A watched path may be missing or be a file: then the nearest existing folder on the way to it is
//! watched. Each folder and link further up is watched for being moved or removed. When that
//! happens, the path is resolved again. A new target replaces the known tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use ahp_types::state::ResourceChangeType;

use super::changes::PathChanges;
use super::globs::Globs;
use super::path_resolution::PathResolution;
use super::system::{Registration, System, WatchTrouble};
use crate::files::folders::HostFile;
use crate::files::uris::PATH_BYTES_MAX;
use crate::os::facts::{self, Facts, Identity};
use crate::wire::watches::Watched;

/// Maximum number of attempts to resolve a path that keeps changing.
const RESOLUTIONS_MAX: usize = 16;

/// Stack of a thread that watches, in bytes. Scanning calls itself once per level, and a path has
/// up to 2,000 levels.
pub const STACK_BYTES: usize = 16 << 20;

/// Watched file or folder, with its known content.
#[derive(Debug)]
pub struct WatchedTree {
    /// Path as its client names it.
    path: PathBuf,
    /// Folders and links on the way to the path, which are watched, too.
    steps: BTreeMap<PathBuf, (Identity, Registration)>,
    how: WatchProperties,
    /// Known state; `None` while the path does not exist.
    top: Option<KnownEntry>,
    /// Nearest existing folder, watched while there is no watched folder itself.
    anchor: Option<PathBuf>,
    entries: usize,
    /// Reason why a part of the tree is not watched; `None` if all of it is.
    trouble: Option<WatchTrouble>,
    /// Set if entries were left out, now or earlier, for lack of room.
    is_partial: bool,
    has_begun: bool,
    /// Set once a path that is too long was logged.
    has_too_long: bool,
}

#[derive(Debug)]
struct WatchProperties {
    root: PathBuf,
    recursive: bool,
    globs: Globs,
    own: Arc<[HostFile]>,
    /// Set if versions of files are stored, so that a scan alone detects changed files.
    knows_versions: bool,
    entries_max: usize,
    budget: Arc<EntryBudget>,
}

/// Number of parts of the budget of which each watch is assured one.
const ASSURED_PARTS: usize = 250;

/// Number of files and folders in all watches together, and its maximum.
#[derive(Debug)]
pub struct EntryBudget {
    used: AtomicUsize,
    max: usize,
}

impl EntryBudget {
    /// Creates an unused budget.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    /// Returns whether a watch of this many entries may have no more. Small watches may always: one
    /// client's large ones must not end those of others.
    fn is_used_up_for(&self, entries: usize) -> bool {
        entries >= self.max / ASSURED_PARTS && self.used.load(Ordering::Relaxed) >= self.max
    }
}

#[derive(Debug)]
enum KnownEntry {
    Leaf(EntryVersion),
    Folder(KnownFolder),
}

#[derive(Debug, Default)]
struct KnownFolder {
    /// Entries; `None` if the folder is not scanned.
    entries: Option<BTreeMap<OsString, KnownEntry>>,
    version: EntryVersion,
    registration: Registration,
}

/// Facts that identify a version of a file; zero where they are not stored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct EntryVersion {
    file: Identity,
    size: u64,
    times: [(i64, i64); 2],
}

#[derive(Debug, Clone, Copy)]
struct ObservedEntry {
    is_folder: bool,
    version: EntryVersion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanReason {
    /// Scan of all paths.
    Anyway,
    /// Notification about the path.
    Touched,
}

struct Scan<'a> {
    how: &'a WatchProperties,
    system: &'a mut dyn System,
    changes: &'a mut PathChanges,
    entries: &'a mut usize,
    trouble: &'a mut Option<WatchTrouble>,
    is_partial: &'a mut bool,
    has_too_long: &'a mut bool,
    /// Set to stop the scan at the first trouble.
    stops_at_first_trouble: bool,
}

impl WatchedTree {
    /// Begins to watch a path. No change is missed from now on.
    ///
    /// # Errors
    /// When not all of it can be watched; then no part of it is.
    pub fn begin(
        watched: &Watched,
        path: &Path,
        own: Arc<[HostFile]>,
        (entries_max, budget): (usize, &Arc<EntryBudget>),
        system: &mut dyn System,
    ) -> Result<Self, WatchTrouble> {
        let resolution = PathResolution::follow(path, &own);
        if resolution.is_own {
            return Err(WatchTrouble::Own);
        }
        if let Some(trouble) = resolution.trouble {
            return Err(trouble);
        }
        let (recursive, globs, knows_versions) = (watched.recursive, Globs::of(watched), !system.notifies());
        let (root, budget) = (resolution.root, Arc::clone(budget));
        let how = WatchProperties { root, recursive, globs, own, knows_versions, entries_max, budget };
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
        tree.rescan(system, &mut PathChanges::default());
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

    /// Ends the watch.
    pub fn end(&mut self, system: &mut dyn System) {
        let mut changes = PathChanges::default();
        let (mut scan, top, anchor) = self.scan(system, &mut changes);
        if let Some(top) = top.take() {
            scan.forget(Path::new(""), top);
        }
        anchor.take().into_iter().for_each(|anchor| system.release(&anchor));
        std::mem::take(&mut self.steps).keys().for_each(|step| system.leave(step));
    }

    /// Returns the reason why a part of the tree is not watched; `None` if all of it is.
    pub fn trouble(&self) -> Option<&WatchTrouble> {
        self.trouble.as_ref()
    }

    /// Records the trouble of the tree that this one replaces.
    pub fn note(&mut self, trouble: Option<WatchTrouble>) {
        self.trouble = trouble;
    }

    /// Takes the trouble, so that it is reported once.
    pub fn take_trouble(&mut self) -> Option<WatchTrouble> {
        self.trouble.take()
    }

    /// Scans the whole tree.
    pub fn rescan(&mut self, system: &mut dyn System, changes: &mut PathChanges) {
        self.rescan_root(system, changes, ScanReason::Anyway);
    }

    /// Scans the paths that the system has reported, by its spelling.
    pub fn rescan_paths(
        &mut self,
        touched: &BTreeSet<PathBuf>,
        system: &mut dyn System,
        changes: &mut PathChanges,
    ) {
        let root = self.how.root.clone();
        let leads_here = |path: &PathBuf| root.starts_with(path);
        let is_on_the_way = |path: &PathBuf| self.steps.contains_key(path);
        if touched.contains(&root) {
            self.rescan_root(system, changes, ScanReason::Touched);
        } else if touched.iter().any(is_on_the_way) || self.anchor.is_some() && touched.iter().any(leads_here)
        {
            self.rescan_root(system, changes, ScanReason::Anyway);
        }
        let root = self.how.root.clone();
        let below =
            touched.iter().filter(|path| is_short(path)).filter_map(|path| path.strip_prefix(&root).ok());
        let below: Vec<&Path> = below.filter(|path| !path.as_os_str().is_empty()).collect();
        let (mut scan, top, _) = self.scan(system, changes);
        let Some(KnownEntry::Folder(top)) = top else { return };
        // Removed entries go first: a moved one may be registered at its new path.
        for comes in [false, true] {
            for path in &below {
                let seen = scan.observe(path);
                if seen.is_some() == comes {
                    scan.rescan_entry(top, path, seen);
                }
            }
        }
    }

    fn scan<'a>(
        &'a mut self,
        system: &'a mut dyn System,
        changes: &'a mut PathChanges,
    ) -> (Scan<'a>, &'a mut Option<KnownEntry>, &'a mut Option<PathBuf>) {
        let Self { how, top, anchor, entries, trouble, is_partial, has_begun, has_too_long, .. } = self;
        let stops_at_first_trouble = !*has_begun;
        (
            Scan { how, system, changes, entries, trouble, is_partial, has_too_long, stops_at_first_trouble },
            top,
            anchor,
        )
    }

    /// Resolves the path again, and scans its target.
    fn rescan_root(&mut self, system: &mut dyn System, changes: &mut PathChanges, mut why: ScanReason) {
        let mut is_known = false;
        for _ in 0..RESOLUTIONS_MAX {
            let resolution = PathResolution::follow(&self.path, &self.how.own);
            let (nearest, is_own) = (resolution.nearest.clone(), resolution.is_own);
            if self.adopt_resolution(resolution, system, changes) {
                why = ScanReason::Touched;
            } else if is_known {
                return;
            }
            let (mut scan, top, anchor) = self.scan(system, changes);
            let seen = scan.observe(Path::new("")).filter(|_| !is_own);
            scan.compare(Path::new(""), top, seen, why);
            let near = match top {
                Some(KnownEntry::Folder(KnownFolder { entries: Some(_), .. })) => None,
                _ => Some(nearest).filter(|_| !is_own),
            };
            // A change during the scan is found when the path is resolved once more.
            is_known = *anchor == near;
            if is_known {
                continue;
            }
            if let Some(before) = anchor.take() {
                scan.system.release(&before);
            }
            let Some(near) = near else { continue };
            match scan.system.register(&near) {
                Ok(_) => *anchor = Some(near),
                // The folder has been removed in the meantime.
                Err(WatchTrouble::Gone) => {}
                Err(trouble) => {
                    *scan.trouble = Some(trouble);
                    return;
                }
            }
        }
        self.trouble = Some(WatchTrouble::Failed(io::Error::other("the path changes all the time")));
    }

    /// Adopts a resolution of the path; returns whether it differs from the previous one.
    fn adopt_resolution(
        &mut self,
        resolution: PathResolution,
        system: &mut dyn System,
        changes: &mut PathChanges,
    ) -> bool {
        let mut steps = BTreeMap::new();
        for (step, identity) in resolution.steps {
            let registration = match system.pass(&step) {
                Ok(registration) => registration,
                // The system reports nothing about an unreadable or removed folder.
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
        if resolution.root != self.how.root {
            let (mut scan, top, _) = self.scan(system, changes);
            if let Some(known) = top.take() {
                scan.report_removed(Path::new(""), known);
            }
            self.how.root = resolution.root;
            return true;
        }
        is_another
    }
}

impl Scan<'_> {
    fn path_of(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.how.root.clone()
        } else {
            self.how.root.join(path)
        }
    }

    fn observe(&self, path: &Path) -> Option<ObservedEntry> {
        facts::at(&self.path_of(path)).ok().map(|known| ObservedEntry::of(&known))
    }

    fn is_left_out(&self, path: &Path) -> bool {
        let full = self.path_of(path);
        self.how.globs.excludes(path) || self.how.own.iter().any(|own| own.holds(&full))
    }

    fn report(&mut self, path: &Path, kind: ResourceChangeType) {
        if self.how.globs.reports(path) {
            self.changes.add(path, kind);
        }
    }

    fn rescan_entry(&mut self, top: &mut KnownFolder, path: &Path, seen: Option<ObservedEntry>) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        let mut folder = top;
        for part in parent {
            let inside = folder.entries.as_mut().and_then(|entries| entries.get_mut(part));
            let Some(KnownEntry::Folder(inside)) = inside else { return };
            folder = inside;
        }
        let Some(entries) = &mut folder.entries else { return };
        if self.is_left_out(path) {
            return;
        }
        self.scan_entry(entries, path, name, seen, ScanReason::Touched);
    }

    fn scan_entry(
        &mut self,
        entries: &mut BTreeMap<OsString, KnownEntry>,
        path: &Path,
        name: &OsStr,
        seen: Option<ObservedEntry>,
        why: ScanReason,
    ) {
        let mut known = entries.remove(name);
        self.compare(path, &mut known, seen, why);
        entries.extend(known.map(|known| (name.to_owned(), known)));
    }

    /// Replaces the known state by the observed one, and reports the difference.
    fn compare(
        &mut self,
        path: &Path,
        known: &mut Option<KnownEntry>,
        seen: Option<ObservedEntry>,
        why: ScanReason,
    ) {
        *known = match (known.take(), seen) {
            (None, None) => {
                // The entry may have existed, but was left out for lack of room.
                if *self.is_partial && why == ScanReason::Touched {
                    self.report(path, ResourceChangeType::Deleted);
                }
                None
            }
            (None, Some(seen)) => {
                let taken = self.add_entry(path, seen);
                if taken.is_none() && why == ScanReason::Touched {
                    self.report(path, ResourceChangeType::Added);
                }
                taken
            }
            (Some(known), None) => {
                self.report_removed(path, known);
                None
            }
            (Some(KnownEntry::Leaf(before)), Some(seen)) if !seen.is_folder => {
                if why == ScanReason::Touched || self.how.knows_versions && before != seen.version {
                    self.report(path, ResourceChangeType::Updated);
                }
                Some(KnownEntry::Leaf(seen.version))
            }
            (Some(KnownEntry::Folder(mut folder)), Some(seen)) if seen.is_folder => {
                if why == ScanReason::Touched {
                    self.report(path, ResourceChangeType::Updated);
                }
                self.compare_folder(path, &mut folder, seen, why);
                Some(KnownEntry::Folder(folder))
            }
            // A file has replaced a folder, or a folder a file.
            (Some(known), Some(seen)) => {
                self.report_removed(path, known);
                self.add_entry(path, seen)
            }
        };
    }

    /// Adds an entry with its content, and reports it. `None` at the limit of entries.
    fn add_entry(&mut self, path: &Path, seen: ObservedEntry) -> Option<KnownEntry> {
        let WatchProperties { entries_max, budget, .. } = self.how;
        let is_full = *self.entries >= *entries_max;
        if is_full || budget.is_used_up_for(*self.entries) {
            *self.trouble = Some(match is_full {
                true => WatchTrouble::Entries(*entries_max),
                false => WatchTrouble::AllEntries(budget.max),
            });
            *self.is_partial = true;
            return None;
        }
        *self.entries += 1;
        budget.used.fetch_add(1, Ordering::Relaxed);
        self.report(path, ResourceChangeType::Added);
        if !seen.is_folder {
            return Some(KnownEntry::Leaf(seen.version));
        }
        let mut folder = KnownFolder { version: seen.version, ..KnownFolder::default() };
        self.scan_folder(path, &mut folder);
        Some(KnownEntry::Folder(folder))
    }

    /// Registers a folder that is to be scanned, and then adds its content.
    fn scan_folder(&mut self, path: &Path, folder: &mut KnownFolder) {
        let is_top = path.as_os_str().is_empty();
        if self.stops_at_first_trouble && self.trouble.is_some() {
            return;
        }
        if !(is_top || self.how.recursive && !self.how.globs.closes(path)) {
            return;
        }
        let Some(registration) = self.register(path) else { return };
        let Some(listed) = self.list(path) else {
            // The folder was removed in the meantime, or cannot be read.
            self.system.release(&self.path_of(path));
            return;
        };
        folder.registration = registration;
        let mut entries = BTreeMap::new();
        for (name, seen) in listed {
            let known = self.add_entry(&path.join(&name), seen);
            entries.extend(known.map(|known| (name, known)));
        }
        folder.entries = Some(entries);
    }

    fn compare_folder(
        &mut self,
        path: &Path,
        folder: &mut KnownFolder,
        seen: ObservedEntry,
        why: ScanReason,
    ) {
        let before = (folder.version.file, folder.registration);
        folder.version = seen.version;
        let Some(mut entries) = folder.entries.take() else { return self.scan_folder(path, folder) };
        if let Some(registration) = self.register(path) {
            // The registration is counted once.
            self.system.release(&self.path_of(path));
            folder.registration = registration;
        }
        let is_another =
            (self.how.knows_versions && before.0 != seen.version.file) || before.1 != folder.registration;
        // A notification about the folder does not concern its content, for which the system sends
        // separate ones. If another folder has taken the path, its files may differ, too.
        let inside = if is_another { ScanReason::Touched } else { ScanReason::Anyway };
        let is_known = why == ScanReason::Touched && !is_another && !self.how.knows_versions;
        if let Some(listed) = (!is_known).then(|| self.list(path)).flatten() {
            let gone = entries.keys().filter(|name| !listed.contains_key(*name));
            for name in gone.cloned().collect::<Vec<_>>() {
                self.scan_entry(&mut entries, &path.join(&name), &name, None, inside);
            }
            for (name, seen) in listed {
                self.scan_entry(&mut entries, &path.join(&name), &name, Some(seen), inside);
            }
        }
        folder.entries = Some(entries);
    }

    /// Registers a folder with the system. `None` if it is not watched.
    fn register(&mut self, path: &Path) -> Option<Registration> {
        match self.system.register(&self.path_of(path)) {
            Ok(registration) => return Some(registration),
            Err(WatchTrouble::Gone) => {}
            // An unreadable folder is known by itself only, which is not enough for the watched
            // path.
            Err(WatchTrouble::Denied) if !path.as_os_str().is_empty() => {}
            Err(WatchTrouble::TooLong) => self.leave_out_too_long(),
            Err(trouble) => *self.trouble = Some(trouble),
        }
        None
    }

    /// Returns the entries of a folder that are not excluded. `None` if it cannot be read now.
    fn list(&mut self, path: &Path) -> Option<BTreeMap<OsString, ObservedEntry>> {
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
                ObservedEntry::of(&facts::of_entry(&entry).ok()?)
            } else {
                ObservedEntry {
                    is_folder: entry.file_type().ok()?.is_dir(),
                    version: EntryVersion::default(),
                }
            };
            Some((entry.file_name(), seen))
        });
        Some(entries.collect())
    }

    /// Logs once that paths too long for the system are not watched.
    fn leave_out_too_long(&mut self) {
        if !std::mem::replace(self.has_too_long, true) {
            let root = self.how.root.display();
            tracing::warn!("paths below `{root}` that are longer than the system takes are not watched");
        }
    }

    /// Reports a removed entry, once for all its content.
    fn report_removed(&mut self, path: &Path, known: KnownEntry) {
        if self.how.globs.reports(path) {
            self.report(path, ResourceChangeType::Deleted);
            return self.forget(path, known);
        }
        self.uncount();
        if let KnownEntry::Folder(KnownFolder { entries: Some(entries), .. }) = known {
            self.system.release(&self.path_of(path));
            for (name, known) in entries {
                self.report_removed(&path.join(name), known);
            }
        }
    }

    fn uncount(&mut self) {
        *self.entries -= 1;
        self.how.budget.used.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the registrations of an entry and its content.
    fn forget(&mut self, path: &Path, known: KnownEntry) {
        self.uncount();
        if let KnownEntry::Folder(KnownFolder { entries: Some(entries), .. }) = known {
            self.system.release(&self.path_of(path));
            for (name, known) in entries {
                self.forget(&path.join(name), known);
            }
        }
    }
}

fn is_short(path: &Path) -> bool {
    path.as_os_str().len() < PATH_BYTES_MAX
}

impl ObservedEntry {
    fn of(known: &Facts) -> Self {
        let times = [known.modified, known.changed];
        let (file, is_folder) = (known.identity, known.is_folder());
        // Entries have versions of their own, so a folder's size and times are ignored.
        let (size, times) = if is_folder { Default::default() } else { (known.size, times) };
        Self { is_folder, version: EntryVersion { file, size, times } }
    }
}
