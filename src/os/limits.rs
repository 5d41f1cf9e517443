//! Limits of this process, and whether an error comes from one.
//!
//! Owns: the soft limits of open files and of memory, and the errors by which the system reports
//! that a limit is reached.
//! Never: decides how much is enough, or passes a raised limit on to child processes, some of
//! which close every possible descriptor, one by one.

pub use half::{
    are_files_exhausted, current, files_up_to, limit_behind, limit_memory, lower, placeholder, raise,
    NumberedFile,
};

#[cfg(unix)]
mod half {
    use std::fs::File;
    use std::io;
    pub use std::os::fd::AsRawFd as NumberedFile;

    use rustix::io::Errno;
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

    /// Number beyond which macOS refuses a soft limit, even below the hard limit.
    const MOST_FILES: Option<u64> = if cfg!(target_os = "macos") { Some(10_240) } else { None };

    /// Returns a note about the system limit behind an error, to append to a message; empty if
    /// none.
    pub fn limit_behind(error: &io::Error) -> &'static str {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE) => " (see `ulimit -n`)",
            Some(Errno::AGAIN) => " (see `ulimit -u`)",
            _ => "",
        }
    }

    /// Returns whether an error says that no more files can be opened.
    pub fn are_files_exhausted(error: &io::Error) -> bool {
        [Errno::MFILE, Errno::NFILE]
            .iter()
            .any(|exhausted| error.raw_os_error() == Some(exhausted.raw_os_error()))
    }

    /// Returns the maximum number of open files; `None` if there is none.
    pub fn current() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    /// Raises the soft limit of open files to the hard limit. Returns the original limit, which
    /// child processes must get; `None` if the limit has not changed.
    pub fn raise() -> Option<u64> {
        let limits = getrlimit(Resource::Nofile);
        let most = limits.maximum.into_iter().chain(MOST_FILES).min();
        let given = limits.current.filter(|given| most.is_none_or(|most| *given < most))?;
        match setrlimit(Resource::Nofile, Rlimit { current: most, ..limits }) {
            Ok(()) => Some(given),
            Err(error) => {
                tracing::debug!(%error, "the limit of open files cannot be raised");
                None
            }
        }
    }

    /// Lowers the soft limit of open files to the original limit that [`raise`] has returned.
    pub fn lower(given: u64) {
        let limits = getrlimit(Resource::Nofile);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(given), ..limits }) {
            tracing::debug!(%error, "the limit of open files cannot be lowered");
        }
    }

    /// Limits the memory that this process, and each of its child processes, can allocate, in
    /// bytes. Files that are mapped to be read do not count.
    pub fn limit_memory(bytes: u64) {
        let limits = getrlimit(Resource::Data);
        let current = limits.current.map_or(bytes, |given| given.min(bytes));
        if let Err(error) = setrlimit(Resource::Data, Rlimit { current: Some(current), ..limits }) {
            tracing::warn!(%error, "the memory of this process cannot be limited");
        }
    }

    /// Returns the number of files that were open when `newest` was opened, including it. A new
    /// file gets the lowest free number, so all lower numbers were in use.
    pub fn files_up_to(newest: &impl NumberedFile) -> u64 {
        u64::try_from(newest.as_raw_fd()).map_or(0, |number| number + 1)
    }

    /// Opens a file that only counts as one.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn placeholder() -> io::Result<File> {
        File::open("/dev/null")
    }
}

/// Windows: memory alone limits the number of open files.
#[cfg(windows)]
mod half {
    use std::fs::File;
    use std::io;

    pub trait NumberedFile {}

    impl<T> NumberedFile for T {}

    pub fn limit_behind(_: &io::Error) -> &'static str {
        ""
    }

    pub fn are_files_exhausted(_: &io::Error) -> bool {
        false
    }

    pub fn current() -> Option<u64> {
        None
    }

    pub fn raise() -> Option<u64> {
        None
    }

    pub fn lower(_: u64) {}

    pub fn limit_memory(_: u64) {}

    pub fn files_up_to(_: &impl NumberedFile) -> u64 {
        0
    }

    pub fn placeholder() -> io::Result<File> {
        File::open("NUL")
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn error_names_the_limit_that_it_comes_from() {
        let hint = |errno: Errno| limit_behind(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert_eq!(hint(Errno::MFILE), " (see `ulimit -n`)");
        assert_eq!(hint(Errno::AGAIN), " (see `ulimit -u`)");
        assert_eq!(hint(Errno::NFILE), "");
        assert_eq!(limit_behind(&io::Error::other("x")), "");
    }
}
