//! How many files this process may open.
//!
//! Owns: seeing at the start whether those are enough, and saying so if not. Later it would be told of whatever
//! happens to be opened last, or end a library that does not expect it.
//! Never: changes a limit; the programs that we start would have it, too.

use std::fs::File;
use std::io;

use rustix::process::{getrlimit, Resource};

/// What a host opens before it has heard anything, and some more.
pub const HOST: usize = 40;

/// What looking after stored sessions opens.
pub const SESSIONS: usize = 12;

/// Too few files may be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "only {there} more files can be opened ({error}; {limit} in all, see `ulimit -n`), and at least {wanted} are needed"
)]
pub struct TooFew {
    there: usize,
    wanted: usize,
    limit: String,
    error: io::Error,
}

/// Sees whether so many files can be opened.
///
/// # Errors
/// When they cannot.
pub fn expect(wanted: usize) -> Result<(), TooFew> {
    let mut open = Vec::with_capacity(wanted);
    for there in 0..wanted {
        match File::open("/dev/null") {
            Ok(file) => open.push(file),
            // A system without that file has other troubles.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                let limit = getrlimit(Resource::Nofile).current;
                let limit = limit.map_or("any number".to_owned(), |files| files.to_string());
                return Err(TooFew { there, wanted, limit, error });
            }
        }
    }
    Ok(())
}
