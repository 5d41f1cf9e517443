//! Notifications of the system about watched folders.
//!
//! Owns: asking it to watch a folder, once for all who want to know, within the limits; and reading
//! what it says: where something was done, or that it has forgotten.
//! Never: looks at what was done, or asks for more than one folder at a time.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

#[cfg(target_os = "linux")]
pub use linux::Inotify;

/// Why something cannot be watched.
#[derive(Debug)]
pub enum WatchTrouble {
    /// There is no such folder.
    Gone,
    /// Missing permission to read it.
    Denied,
    /// One of the host's own files.
    Own,
    /// Exhausted limit of watched folders.
    Folders(usize),
    /// There are more files and folders than so many.
    Entries(usize),
    /// Path that is longer than the system takes.
    TooLong,
    /// The system has no more room, which this setting gives.
    NoRoom(&'static str),
    /// Whatever the file system says.
    Failed(io::Error),
}

impl WatchTrouble {
    /// Returns the meaning of an error of the file system.
    pub fn of(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Gone,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => Self::TooLong,
            _ => Self::Failed(error),
        }
    }
}

/// Number of a registration of a folder, which changes when another folder takes its place.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Registration(pub i64);

/// Notifications since the last report.
#[derive(Debug, Default)]
pub struct SystemReport {
    /// Something was done with these.
    pub touched: BTreeSet<PathBuf>,
    /// And with others, which it has forgotten.
    pub forgot: bool,
}

impl SystemReport {
    /// Returns whether there is nothing to look at.
    pub fn is_nothing(&self) -> bool {
        self.touched.is_empty() && !self.forgot
    }
}

/// Notifier of changes in folders.
pub trait System: std::fmt::Debug {
    /// Returns whether it ever reports anything; else all must be polled.
    fn says(&self) -> bool;

    /// Watches a folder, itself and what is in it but nothing further down. Counts how often that
    /// is asked for.
    ///
    /// # Errors
    /// When it is not watched.
    fn register(&mut self, folder: &Path) -> Result<Registration, WatchTrouble>;

    /// Watches it no more when nobody else has asked for it.
    fn release(&mut self, folder: &Path);

    /// Watches whether a folder or link, which somebody's way leads through, stays what it is; and
    /// nothing that is done in it. Counts how often that is asked for.
    ///
    /// # Errors
    /// When it is not watched.
    fn pass(&mut self, _step: &Path) -> Result<Registration, WatchTrouble> {
        Ok(Registration::default())
    }

    /// Watches that no more when nobody else has asked for it.
    fn leave(&mut self, _step: &Path) {}

    /// Returns the descriptor that becomes readable when it has something to report.
    fn queue(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the number of folders that it watches, without those that only lead to others.
    #[cfg(test)]
    fn count(&self) -> usize {
        0
    }

    /// Adds what it has said since it was heard last.
    ///
    /// # Errors
    /// When it cannot be heard any more.
    fn read_events(&mut self, said: &mut SystemReport) -> io::Result<()>;
}

/// Notifier of a system that reports nothing.
#[derive(Debug)]
pub struct NoNotifier;

impl System for NoNotifier {
    fn says(&self) -> bool {
        false
    }

    fn register(&mut self, _: &Path) -> Result<Registration, WatchTrouble> {
        Ok(Registration::default())
    }

    fn release(&mut self, _: &Path) {}

    fn read_events(&mut self, _: &mut SystemReport) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::ffi::OsStr;
    use std::fs;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    use rustix::fs::inotify::{add_watch, init, remove_watch, CreateFlags, ReadFlags, Reader, WatchFlags};
    use rustix::io::Errno;

    use super::{Registration, System, SystemReport, WatchTrouble};

    /// Maximum number of watched folders.
    const FOLDERS_MAX: usize = 8192;

    /// Of what the user may watch, with all programs, this part is ours.
    const PART: usize = 10;

    /// File in which the system states its limit.
    const WATCHES: &str = "/proc/sys/fs/inotify/max_user_watches";

    /// Maximum number of changed paths that are remembered until they are looked at.
    const TOUCHED_MAX: usize = 50_000;

    /// Events of a watched folder. Opening or reading a file is none of them.
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

    /// Additional events of a folder or link on the way to a watched path.
    const MASK_OF_STEP: WatchFlags = WatchFlags::ATTRIB
        .union(WatchFlags::DELETE_SELF)
        .union(WatchFlags::MOVE_SELF)
        .union(WatchFlags::DONT_FOLLOW)
        .union(WatchFlags::MASK_ADD);

    /// The system's own way to say what is done in folders.
    #[derive(Debug)]
    pub struct Inotify {
        queue: OwnedFd,
        folders: HashMap<PathBuf, WatchedPath>,
        /// The folders by the numbers that the system has given them: each folder has one, whatever
        /// it is called.
        paths: HashMap<i32, PathBuf>,
        folders_max: usize,
        /// Paths to be looked at besides those that the system reports.
        besides: Vec<PathBuf>,
    }

    /// A folder that somebody wants to be watched.
    #[derive(Debug, Default)]
    struct WatchedPath {
        /// None once it is gone.
        number: Option<i32>,
        /// Number of registrations for its content.
        times: usize,
        /// Number of registrations for a path through it.
        passes: usize,
    }

    impl Inotify {
        /// Begins with nothing to watch.
        ///
        /// # Errors
        /// When the user has too many programs that watch.
        pub fn new() -> Result<Self, WatchTrouble> {
            let queue = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|error| match error {
                Errno::MFILE => WatchTrouble::NoRoom("fs.inotify.max_user_instances"),
                error => WatchTrouble::Failed(error.into()),
            })?;
            let watches = fs::read_to_string(WATCHES).ok().and_then(|text| text.trim().parse::<usize>().ok());
            let folders_max = watches.map_or(FOLDERS_MAX, |all| FOLDERS_MAX.min(all / PART));
            let (folders, paths, besides) = (HashMap::new(), HashMap::new(), Vec::new());
            Ok(Self { queue, folders, paths, folders_max, besides })
        }

        /// Has no more room than this.
        #[cfg(test)]
        pub fn limit_to(&mut self, folders_max: usize) {
            self.folders_max = folders_max;
        }

        /// A folder has this number, and had another name before.
        fn is_elsewhere(&mut self, number: i32, folder: &Path) -> Result<(), WatchTrouble> {
            let Some(before) = self.paths.get(&number).filter(|before| *before != folder).cloned() else {
                return Ok(());
            };
            if is_same(&before, folder) {
                // It is mounted twice, and is watched at the other place.
                return Err(WatchTrouble::Gone);
            }
            if let Some(asked) = self.folders.get_mut(&before) {
                asked.number = None;
            }
            self.besides.push(before);
            Ok(())
        }

        /// Has the system watch it, and notes by which number; it is the caller's to count how
        /// often that is asked for.
        fn add(
            &mut self,
            path: &Path,
            mask: WatchFlags,
        ) -> Result<(Registration, &mut WatchedPath), WatchTrouble> {
            let is_watched = self.folders.get(path).is_some_and(|asked| asked.number.is_some());
            if !is_watched && self.paths.len() >= self.folders_max {
                return Err(WatchTrouble::Folders(self.folders_max));
            }
            let number = add_watch(&self.queue, path, mask).map_err(|error| match error {
                Errno::NOSPC => WatchTrouble::NoRoom("fs.inotify.max_user_watches"),
                Errno::LOOP => WatchTrouble::Gone,
                error => WatchTrouble::of(error.into()),
            })?;
            self.is_elsewhere(number, path)?;
            self.paths.insert(number, path.to_owned());
            let asked = self.folders.entry(path.to_owned()).or_default();
            let before = asked.number.replace(number).filter(|before| *before != number);
            if before.is_some_and(|before| self.paths.remove(&before).is_some()) {
                // Another folder is there now, which others may not know.
                self.besides.push(path.to_owned());
            }
            if let Some(before) = before {
                forget(&self.queue, before);
            }
            Ok((Registration(number.into()), asked))
        }

        /// Watches no more what nobody has asked for any more.
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

        fn add_event(&mut self, number: i32, what: ReadFlags, name: Option<&OsStr>, said: &mut SystemReport) {
            if what.contains(ReadFlags::QUEUE_OVERFLOW) || said.touched.len() > TOUCHED_MAX {
                said.forgot = true;
                return;
            }
            let Some(folder) = self.paths.get(&number) else { return };
            if what.contains(ReadFlags::IGNORED) {
                if let Some(asked) = self.folders.get_mut(folder).filter(|it| it.number == Some(number)) {
                    asked.number = None;
                }
                said.touched.extend(self.paths.remove(&number));
                return;
            }
            said.touched.insert(match name {
                Some(name) => folder.join(name),
                None => folder.clone(),
            });
        }
    }

    impl System for Inotify {
        fn says(&self) -> bool {
            true
        }

        fn queue(&self) -> Option<BorrowedFd<'_>> {
            Some(self.queue.as_fd())
        }

        #[cfg(test)]
        fn count(&self) -> usize {
            self.folders.values().filter(|asked| asked.times > 0 && asked.number.is_some()).count()
        }

        fn register(&mut self, folder: &Path) -> Result<Registration, WatchTrouble> {
            let (registration, asked) = self.add(folder, MASK)?;
            asked.times += 1;
            Ok(registration)
        }

        fn release(&mut self, folder: &Path) {
            let Some(asked) = self.folders.get_mut(folder).filter(|asked| asked.times > 0) else { return };
            asked.times -= 1;
            if asked.times == 0 && asked.passes > 0 {
                // What is done in it concerns nobody any more.
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

        fn pass(&mut self, step: &Path) -> Result<Registration, WatchTrouble> {
            // What is there now may be another one, of which somebody wants to hear everything.
            let is_listened_to = self.folders.get(step).is_some_and(|asked| asked.times > 0);
            let (registration, asked) = self.add(step, if is_listened_to { MASK } else { MASK_OF_STEP })?;
            asked.passes += 1;
            Ok(registration)
        }

        fn leave(&mut self, step: &Path) {
            let Some(asked) = self.folders.get_mut(step).filter(|asked| asked.passes > 0) else { return };
            asked.passes -= 1;
            self.settle(step);
        }

        fn read_events(&mut self, said: &mut SystemReport) -> io::Result<()> {
            let queue = self.queue.try_clone()?;
            let mut buffer = [MaybeUninit::uninit(); 16 << 10];
            let mut reader = Reader::new(queue, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                        self.add_event(event.wd(), event.events(), name, said);
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            said.touched.extend(self.besides.drain(..));
            Ok(())
        }
    }

    /// Removes a watch of the system. One that has ended by itself is no error.
    fn forget(queue: &OwnedFd, number: i32) {
        if let Err(error) = remove_watch(queue, number) {
            tracing::debug!(%error, "a folder's watch cannot be removed");
        }
    }

    fn is_same(one: &Path, other: &Path) -> bool {
        let known = |path: &Path| fs::symlink_metadata(path).map(|known| (known.dev(), known.ino())).ok();
        known(one).is_some_and(|one| known(other) == Some(one))
    }
}
