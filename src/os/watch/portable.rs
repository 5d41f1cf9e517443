//! Notifications by the crate `notify`, which reports them from a thread of its own.
//!
//! Where the system watches all that is below a folder, the topmost registered folders are watched,
//! and notifications about folders that are not registered are dropped at once. Folders and links
//! on the way to a watched one are compared every second, since not every system reports that they
//! are moved.
//!
//! Owns: the half for macOS, Windows and other systems, and for Linux when it stands in for them.
//! Never: forgets a path without setting `forgot`.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use notify::event::{EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::{Registration, SystemReport, WatchError, FOLDERS_MAX, TOUCHED_MAX};
use crate::os::facts::{self, FileKind, Identity};
use crate::sync::lock;

/// Set if the system watches all that is below a folder for the price of one watch.
const IS_DEEP: bool = cfg!(any(target_vendor = "apple", windows));

/// Interval between comparisons of the paths to watched folders.
const STEPS_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 1 });

/// Maximum time until the thread of `notify` has reported what has happened, in tests.
#[cfg(test)]
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

/// Waker of the thread that waits for notifications.
#[derive(Debug, Clone, Default)]
pub struct Wakeup(Arc<(Mutex<bool>, Condvar)>);

impl Wakeup {
    /// Creates a waker.
    ///
    /// # Errors
    /// Never, but other systems need a file for it.
    pub fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    /// Wakes the thread that waits, or the next one that will wait.
    pub fn wake(&self) {
        let (is_awake, waker) = &*self.0;
        *lock(is_awake) = true;
        waker.notify_all();
    }

    /// Forgets earlier calls of `wake`.
    pub fn clear(&self) {
        *lock(&self.0 .0) = false;
    }

    /// Waits for a call of `wake`, for a notification, or for this time. May return early.
    ///
    /// # Errors
    /// Never, but other systems have to wait for a file.
    pub fn wait(&self, notifier: Option<&Notifier>, timeout: Option<Duration>) -> io::Result<()> {
        let (is_awake, waker) = &*self.0;
        let until_comparison = notifier.and_then(Notifier::until_comparison);
        let timeout = timeout.into_iter().chain(until_comparison).min();
        let guard = lock(is_awake);
        match timeout {
            Some(timeout) => drop(waker.wait_timeout_while(guard, timeout, |is_awake| !*is_awake)),
            None => drop(waker.wait_while(guard, |is_awake| !*is_awake)),
        }
        Ok(())
    }
}

/// Notifier of changes in folders.
#[derive(Debug)]
pub struct Notifier {
    watcher: RecommendedWatcher,
    shared: Arc<SharedNotifications>,
    /// Folders that the system watches, with all below them if it does so.
    roots: BTreeSet<PathBuf>,
    /// Paths on the way to watched ones, with their versions and numbers of registrations.
    steps: HashMap<PathBuf, (Option<PathVersion>, usize)>,
    compared_at: Instant,
    /// Set if a folder was released since the watches of the system were last chosen.
    has_released: bool,
    folders_max: usize,
    last_number: i64,
    #[cfg(test)]
    cookies: tempfile::TempDir,
}

/// Facts that distinguish a file from a later one at its path, which may have the same inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PathVersion {
    identity: Identity,
    kind: FileKind,
    created: Option<SystemTime>,
}

impl PathVersion {
    fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        let known = facts::complete(&metadata, path)?;
        Ok(Self { identity: known.identity, kind: known.kind, created: metadata.created().ok() })
    }
}

/// State that the thread of `notify` shares.
#[derive(Debug, Default)]
struct SharedNotifications {
    state: Mutex<SharedState>,
    #[cfg(test)]
    reported: Condvar,
}

#[derive(Debug, Default)]
struct SharedState {
    folders: HashMap<PathBuf, RegisteredFolder>,
    report: SystemReport,
}

#[derive(Debug, Default)]
struct RegisteredFolder {
    times: usize,
    /// Version at the last registration; `None` once the folder was moved or removed.
    version: Option<PathVersion>,
    number: i64,
}

impl SharedState {
    fn add(&mut self, event: notify::Result<Event>) {
        let Ok(event) = event else {
            self.report.forgot = true;
            return;
        };
        if event.need_rescan() || self.report.touched.len() > TOUCHED_MAX {
            self.report.forgot = true;
            return;
        }
        let is_end = match event.kind {
            EventKind::Access(_) => return,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => true,
            _ => false,
        };
        for path in event.paths {
            let folder = self.folders.get_mut(&path);
            let is_registered = folder.is_some();
            if let Some(folder) = folder.filter(|_| is_end) {
                // The system may have ended its watch, or watch another folder now.
                folder.version = None;
            }
            let is_in_one = || path.parent().is_some_and(|parent| self.folders.contains_key(parent));
            if is_registered || is_in_one() {
                self.report.touched.insert(path);
            }
        }
    }
}

impl Notifier {
    /// Creates a notifier that wakes the thread when notifications are pending.
    ///
    /// # Errors
    /// When the system has no room for it.
    pub fn new(wakeup: &Wakeup) -> Result<Self, WatchError> {
        let shared = Arc::<SharedNotifications>::default();
        let (state, wakeup) = (Arc::clone(&shared), wakeup.clone());
        let watcher = notify::recommended_watcher(move |event| {
            lock(&state.state).add(event);
            #[cfg(test)]
            state.reported.notify_all();
            wakeup.wake();
        });
        #[cfg_attr(not(test), allow(unused_mut))]
        let mut notifier = Self {
            watcher: watcher.map_err(failed)?,
            shared,
            roots: BTreeSet::new(),
            steps: HashMap::new(),
            compared_at: Instant::now(),
            has_released: false,
            folders_max: FOLDERS_MAX,
            last_number: 0,
            #[cfg(test)]
            cookies: tempfile::tempdir().map_err(WatchError::Failed)?,
        };
        #[cfg(test)]
        notifier.register(&notifier.cookie_folder())?;
        Ok(notifier)
    }

    /// Sets the maximum number of watched folders.
    #[cfg(test)]
    pub fn limit_to(&mut self, folders_max: usize) {
        self.folders_max = folders_max;
    }

    /// Returns the number of folders registered for their content.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        let cookies = self.cookie_folder();
        lock(&self.shared.state).folders.keys().filter(|folder| **folder != cookies).count()
    }

    #[cfg(test)]
    fn cookie_folder(&self) -> PathBuf {
        crate::os::paths::canonical(self.cookies.path()).unwrap_or_default()
    }

    /// Waits until all earlier changes are pending notifications: the last one is a new file in a
    /// folder that only this notifier knows.
    #[cfg(test)]
    pub fn catch_up(&self) {
        let file = self.cookie_folder().join(uuid::Uuid::new_v4().to_string());
        fs::write(&file, "").unwrap();
        let unsettled =
            |state: &mut SharedState| !state.report.touched.contains(&file) && !state.report.forgot;
        let state = lock(&self.shared.state);
        let (mut state, waited) =
            self.shared.reported.wait_timeout_while(state, SETTLED_WITHIN, unsettled).unwrap();
        assert!(!waited.timed_out(), "the system reports nothing");
        let cookies = self.cookie_folder();
        state.report.touched.retain(|path| !path.starts_with(&cookies));
    }

    /// Watches a folder and its direct entries. Counts the calls for each folder.
    ///
    /// # Errors
    /// When the folder cannot be watched.
    pub fn register(&mut self, folder: &Path) -> Result<Registration, WatchError> {
        let known = PathVersion::at(folder).map_err(WatchError::Failed)?;
        if known.kind != FileKind::Folder {
            return Err(WatchError::Gone);
        }
        let is_new = !self.renew(folder, known)?;
        if is_new && lock(&self.shared.state).folders.len() >= self.folders_max {
            return Err(WatchError::Full(self.folders_max));
        }
        if !self.roots.iter().any(|root| covers(root, folder)) {
            self.watch(folder)?;
        }
        let mut state = lock(&self.shared.state);
        let registered = state.folders.entry(folder.to_owned()).or_default();
        if is_new {
            self.last_number += 1;
            (registered.version, registered.number) = (Some(known), self.last_number);
        }
        registered.times += 1;
        Ok(Registration(registered.number))
    }

    /// Watches the folder that has taken the path of a registered one, if one has. Returns whether
    /// a folder is registered at this path.
    fn renew(&mut self, folder: &Path, version: PathVersion) -> Result<bool, WatchError> {
        let shared = Arc::clone(&self.shared);
        let before = match lock(&shared.state).folders.get(folder) {
            Some(registered) => registered.version,
            None => return Ok(false),
        };
        if before == Some(version) {
            return Ok(true);
        }
        if self.roots.remove(folder) {
            self.unwatch(folder);
            self.watch(folder)?;
        }
        let mut state = lock(&shared.state);
        if let Some(registered) = state.folders.get_mut(folder) {
            self.last_number += 1;
            (registered.version, registered.number) = (Some(version), self.last_number);
        }
        if before.is_some() {
            // Other users do not know yet that another folder has taken the path.
            state.report.touched.insert(folder.to_owned());
        }
        Ok(true)
    }

    /// Undoes one `register`; the last one ends the watch.
    pub fn release(&mut self, folder: &Path) {
        let mut state = lock(&self.shared.state);
        let Some(registered) = state.folders.get_mut(folder) else { return };
        registered.times -= 1;
        if registered.times == 0 {
            state.folders.remove(folder);
            self.has_released = true;
        }
    }

    /// Watches a path on the way to a watched one for being moved or removed. Counts the calls.
    ///
    /// # Errors
    /// When the path cannot be watched.
    pub fn pass(&mut self, step: &Path) -> Result<Registration, WatchError> {
        let known = PathVersion::at(step).map_err(WatchError::Failed)?;
        self.renew(step, known)?;
        let (version, passes) = self.steps.entry(step.to_owned()).or_default();
        (*version, *passes) = (Some(known), *passes + 1);
        Ok(Registration::default())
    }

    /// Undoes one `pass`; the last one ends the watch.
    pub fn leave(&mut self, step: &Path) {
        let Some((_, passes)) = self.steps.get_mut(step) else { return };
        *passes -= 1;
        if *passes == 0 {
            self.steps.remove(step);
        }
    }

    /// Adds the pending notifications to `report`.
    ///
    /// # Errors
    /// Never: `notify` reports its errors as lost notifications.
    pub fn read_events(&mut self, report: &mut SystemReport) -> io::Result<()> {
        if self.has_released {
            self.choose_roots();
        }
        let new = std::mem::take(&mut lock(&self.shared.state).report);
        report.touched.extend(new.touched);
        report.forgot |= new.forgot;
        if self.until_comparison().is_some_and(|left| left.is_zero()) {
            self.compare_steps(report);
        }
        Ok(())
    }

    /// Returns the time until the steps are to be compared; `None` if there are none.
    fn until_comparison(&self) -> Option<Duration> {
        (!self.steps.is_empty()).then(|| STEPS_INTERVAL.saturating_sub(self.compared_at.elapsed()))
    }

    fn compare_steps(&mut self, report: &mut SystemReport) {
        self.compared_at = Instant::now();
        for (step, (version, _)) in &mut self.steps {
            let now = PathVersion::at(step).ok();
            if now != *version {
                *version = now;
                report.touched.insert(step.clone());
            }
        }
        let mut state = lock(&self.shared.state);
        for root in &self.roots {
            let Some(registered) = state.folders.get_mut(root) else { continue };
            let now = PathVersion::at(root).ok();
            if registered.version.is_some() && now != registered.version {
                registered.version = None;
                report.touched.insert(root.clone());
            }
        }
    }

    /// Watches each registered folder that has lost its watch, and ends the watches of others.
    fn choose_roots(&mut self) {
        self.has_released = false;
        let mut registered: Vec<PathBuf> = lock(&self.shared.state).folders.keys().cloned().collect();
        registered.sort();
        let mut wanted: Vec<PathBuf> = Vec::new();
        for folder in registered {
            // In this order, a folder comes before those below it.
            if !wanted.iter().any(|root| covers(root, &folder)) {
                wanted.push(folder);
            }
        }
        for folder in &wanted {
            if let Some(Err(error)) = (!self.roots.contains(folder)).then(|| self.watch(folder)) {
                // The folder is gone, which its parent's watch or the next comparison reports.
                tracing::debug!(?error, "a folder is not watched any more");
            }
        }
        let wanted = BTreeSet::from_iter(wanted);
        let unwanted: Vec<PathBuf> = self.roots.difference(&wanted).cloned().collect();
        for root in unwanted {
            self.roots.remove(&root);
            self.unwatch(&root);
        }
    }

    fn watch(&mut self, folder: &Path) -> Result<(), WatchError> {
        let mode = if IS_DEEP { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
        self.watcher.watch(folder, mode).map_err(failed)?;
        self.roots.insert(folder.to_owned());
        Ok(())
    }

    /// Ends a watch of the system. A watch that has ended by itself is not an error.
    fn unwatch(&mut self, folder: &Path) {
        if let Err(error) = self.watcher.unwatch(folder) {
            tracing::debug!(%error, "a folder's watch cannot be removed");
        }
    }
}

/// Returns whether the system's watch of `root` reports the entries of `folder`.
fn covers(root: &Path, folder: &Path) -> bool {
    if IS_DEEP {
        folder.starts_with(root)
    } else {
        folder == root
    }
}

fn failed(error: notify::Error) -> WatchError {
    match error.kind {
        notify::ErrorKind::MaxFilesWatch => WatchError::NoRoom("fs.inotify.max_user_watches"),
        notify::ErrorKind::PathNotFound => WatchError::Failed(io::ErrorKind::NotFound.into()),
        notify::ErrorKind::Io(error) => WatchError::Failed(error),
        kind => WatchError::Failed(io::Error::other(format!("{kind:?}"))),
    }
}
