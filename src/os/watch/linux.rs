//! Notifications by Linux's inotify, without a thread.
//!
//! Owns: the half for Linux.
//! Never: watches what is below a folder.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{add_watch, init, remove_watch, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::{Registration, SystemReport, WatchError, FOLDERS_MAX, TOUCHED_MAX};
use crate::os::facts;

/// Waker of the thread that waits for notifications.
#[derive(Debug)]
pub struct Wakeup {
    waker: UnixStream,
    wakeups: UnixStream,
}

impl Wakeup {
    /// Creates a waker.
    ///
    /// # Errors
    /// When too many files are open.
    pub fn new() -> io::Result<Self> {
        let (waker, wakeups) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakeups.set_nonblocking(true)?;
        Ok(Self { waker, wakeups })
    }

    /// Wakes the thread that waits, or the next one that will wait.
    pub fn wake(&self) {
        // A full waker is awake already.
        if let Err(error) = (&self.waker).write(&[0]) {
            tracing::trace!(%error, "the thread that watches files need not be woken");
        }
    }

    /// Forgets earlier calls of `wake`.
    pub fn clear(&self) {
        let mut rung = [0; 64];
        while matches!((&self.wakeups).read(&mut rung), Ok(1..)) {}
    }

    /// Waits for a call of `wake`, for a notification, or for this time.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&self, notifier: Option<&Notifier>, timeout: Option<Duration>) -> io::Result<()> {
        // A time that does not fit is no limit.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut polled = vec![PollFd::new(&self.wakeups, PollFlags::IN)];
        polled.extend(notifier.map(|notifier| PollFd::new(&notifier.queue, PollFlags::IN)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Divisor of the user's limit of watches, which all programs share.
const PART: usize = 10;

/// File in which the system states its limit.
const WATCHES: &str = "/proc/sys/fs/inotify/max_user_watches";

/// Events of a watched folder. Opening or reading a file is not among them.
const MASK: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);

/// Events of a path on the way to a watched one, added to those of an existing watch.
const MASK_OF_STEP: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DONT_FOLLOW)
    .union(WatchFlags::MASK_ADD);

/// Notifier of changes in folders, by inotify.
#[derive(Debug)]
pub struct Notifier {
    queue: OwnedFd,
    folders: HashMap<PathBuf, WatchedPath>,
    /// Paths by watch descriptor. A folder has one descriptor, whatever its path.
    paths: HashMap<i32, PathBuf>,
    folders_max: usize,
    /// Paths to scan besides those that the system reports.
    besides: Vec<PathBuf>,
}

#[derive(Debug, Default)]
struct WatchedPath {
    /// Watch descriptor; `None` once the folder is gone.
    number: Option<i32>,
    /// Number of registrations for its content.
    times: usize,
    /// Number of registrations for a path through it.
    passes: usize,
}

impl Notifier {
    /// Creates an inotify instance without watches.
    ///
    /// # Errors
    /// When the user's limit of inotify instances is exhausted.
    pub fn new(_: &Wakeup) -> Result<Self, WatchError> {
        let queue = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|error| match error {
            Errno::MFILE => WatchError::NoRoom("fs.inotify.max_user_instances"),
            error => WatchError::Failed(error.into()),
        })?;
        let watches = fs::read_to_string(WATCHES).ok().and_then(|text| text.trim().parse::<usize>().ok());
        let folders_max = watches.map_or(FOLDERS_MAX, |all| FOLDERS_MAX.min(all / PART));
        let (folders, paths, besides) = (HashMap::new(), HashMap::new(), Vec::new());
        Ok(Self { queue, folders, paths, folders_max, besides })
    }

    /// Sets the maximum number of watched folders.
    #[cfg(test)]
    pub fn limit_to(&mut self, folders_max: usize) {
        self.folders_max = folders_max;
    }

    /// Handles a descriptor known by another path: its folder was moved, or is mounted twice.
    fn is_elsewhere(&mut self, number: i32, folder: &Path) -> Result<(), WatchError> {
        let Some(before) = self.paths.get(&number).filter(|before| *before != folder).cloned() else {
            return Ok(());
        };
        if is_same(&before, folder) {
            // The folder is mounted twice, and is watched at the other path.
            return Err(WatchError::Gone);
        }
        if let Some(asked) = self.folders.get_mut(&before) {
            asked.number = None;
        }
        self.besides.push(before);
        Ok(())
    }

    /// Adds a watch and records its descriptor. The caller counts registrations.
    fn add(&mut self, path: &Path, mask: WatchFlags) -> Result<(Registration, &mut WatchedPath), WatchError> {
        let is_watched = self.folders.get(path).is_some_and(|asked| asked.number.is_some());
        if !is_watched && self.paths.len() >= self.folders_max {
            return Err(WatchError::Full(self.folders_max));
        }
        let number = add_watch(&self.queue, path, mask).map_err(|error| match error {
            Errno::NOSPC => WatchError::NoRoom("fs.inotify.max_user_watches"),
            Errno::LOOP => WatchError::Gone,
            error => WatchError::Failed(error.into()),
        })?;
        self.is_elsewhere(number, path)?;
        self.paths.insert(number, path.to_owned());
        let asked = self.folders.entry(path.to_owned()).or_default();
        let before = asked.number.replace(number).filter(|before| *before != number);
        if before.is_some_and(|before| self.paths.remove(&before).is_some()) {
            // Another folder has taken the path, which other watches may not know.
            self.besides.push(path.to_owned());
        }
        if let Some(before) = before {
            forget(&self.queue, before);
        }
        Ok((Registration(number.into()), asked))
    }

    /// Ends the watch of a path without registrations.
    fn settle(&mut self, path: &Path) {
        let Some(asked) = self.folders.get(path) else { return };
        if asked.times > 0 || asked.passes > 0 {
            return;
        }
        let number = asked.number;
        self.folders.remove(path);
        if let Some(number) = number {
            self.paths.remove(&number);
            forget(&self.queue, number);
        }
    }

    fn add_event(&mut self, number: i32, what: ReadFlags, name: Option<&OsStr>, report: &mut SystemReport) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) || report.touched.len() > TOUCHED_MAX {
            report.forgot = true;
            return;
        }
        let Some(folder) = self.paths.get(&number) else { return };
        if what.contains(ReadFlags::IGNORED) {
            if let Some(asked) = self.folders.get_mut(folder).filter(|it| it.number == Some(number)) {
                asked.number = None;
            }
            report.touched.extend(self.paths.remove(&number));
            return;
        }
        report.touched.insert(match name {
            Some(name) => folder.join(name),
            None => folder.clone(),
        });
    }
}

impl Notifier {
    /// Waits until all earlier changes are pending notifications, which they are at once.
    #[cfg(test)]
    pub fn catch_up(&self) {}

    /// Returns the number of folders registered for their content.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.folders.values().filter(|asked| asked.times > 0 && asked.number.is_some()).count()
    }

    /// Watches a folder and its direct entries. Counts the calls for each folder.
    ///
    /// # Errors
    /// When the folder cannot be watched.
    pub fn register(&mut self, folder: &Path) -> Result<Registration, WatchError> {
        let (registration, asked) = self.add(folder, MASK)?;
        asked.times += 1;
        Ok(registration)
    }

    /// Undoes one `register`; the last one ends the watch.
    pub fn release(&mut self, folder: &Path) {
        let Some(asked) = self.folders.get_mut(folder).filter(|asked| asked.times > 0) else { return };
        asked.times -= 1;
        if asked.times == 0 && asked.passes > 0 {
            // The content is not needed any more; only the path through the folder is.
            let is_there = asked.number.is_some();
            let only = MASK_OF_STEP.difference(WatchFlags::MASK_ADD);
            if let Some(Err(trouble)) = is_there.then(|| self.add(folder, only).map(drop)) {
                tracing::debug!(
                    ?trouble,
                    "the watch of a folder on the path to a watched one cannot be narrowed"
                );
            }
        }
        self.settle(folder);
    }

    /// Watches a path on the way to a watched one for being moved or removed. Counts the calls.
    ///
    /// # Errors
    /// When the path cannot be watched.
    pub fn pass(&mut self, step: &Path) -> Result<Registration, WatchError> {
        // A new folder may be here whose content is registered, so all events are needed.
        let is_listened_to = self.folders.get(step).is_some_and(|asked| asked.times > 0);
        let (registration, asked) = self.add(step, if is_listened_to { MASK } else { MASK_OF_STEP })?;
        asked.passes += 1;
        Ok(registration)
    }

    /// Undoes one `pass`; the last one ends the watch.
    pub fn leave(&mut self, step: &Path) {
        let Some(asked) = self.folders.get_mut(step).filter(|asked| asked.passes > 0) else { return };
        asked.passes -= 1;
        self.settle(step);
    }

    /// Adds the pending notifications to `report`.
    ///
    /// # Errors
    /// When the notifications cannot be read any more.
    pub fn read_events(&mut self, report: &mut SystemReport) -> io::Result<()> {
        let queue = self.queue.try_clone()?;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(queue, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    self.add_event(event.wd(), event.events(), name, report);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        report.touched.extend(self.besides.drain(..));
        Ok(())
    }
}

/// Removes a watch of the system. A watch that has ended by itself is not an error.
fn forget(queue: &OwnedFd, number: i32) {
    if let Err(error) = remove_watch(queue, number) {
        tracing::debug!(%error, "a folder's watch cannot be removed");
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let known = |path: &Path| facts::at(path).map(|known| known.identity).ok();
    known(one).is_some_and(|one| known(other) == Some(one))
}
