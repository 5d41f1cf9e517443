//! The way to what is watched.
//!
//! Owns: following a path to where it leads now, link by link; and which folders and links it leads
//! through, because the path leads elsewhere once one of them is moved, removed or made anew.
//! Never: asks the system to watch anything, or tells what has changed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::system::WatchTrouble;
use crate::files::folders::{parts, HostFile, Identity, LINKS_MAX};

/// Resolution of a path, with the folders and links on its way.
#[derive(Debug)]
pub struct PathResolution {
    /// Canonical path, as far as it exists.
    pub root: PathBuf,
    /// The last folder that it leads through.
    pub nearest: PathBuf,
    /// Each folder and link that it leads through.
    pub steps: BTreeMap<PathBuf, Identity>,
    /// Why it cannot be followed to its end, but for that nothing is there.
    pub trouble: Option<WatchTrouble>,
    /// Set if it leads into the host's own files.
    pub is_own: bool,
}

impl PathResolution {
    /// Follows an absolute path as far as anything is there.
    pub fn follow(path: &Path, own: &[HostFile]) -> Self {
        let top = PathBuf::from("/");
        let (mut way, mut links) = (Self::at(top), 0);
        way.pass("/".into());
        let mut ahead: Vec<OsString> = parts(path).rev().collect();
        while let Some(part) = ahead.pop() {
            if part == ".." {
                way.nearest.pop();
                way.root.clone_from(&way.nearest);
                continue;
            }
            way.root = way.nearest.join(part);
            let known = match fs::symlink_metadata(&way.root) {
                Ok(known) => known,
                Err(error) => {
                    way.end(&ahead, error);
                    break;
                }
            };
            let identity = (known.dev(), known.ino());
            if known.is_symlink() {
                links += 1;
                let target = match fs::read_link(&way.root) {
                    _ if links > LINKS_MAX => Err(Errno::LOOP.into()),
                    target => target,
                };
                way.steps.insert(way.root.clone(), identity);
                match target {
                    Ok(target) => {
                        if target.is_absolute() {
                            way.nearest = PathBuf::from("/");
                        }
                        way.root.clone_from(&way.nearest);
                        ahead.extend(parts(&target).rev());
                    }
                    Err(error) => {
                        way.end(&ahead, error);
                        break;
                    }
                }
                continue;
            }
            way.is_own |= own.iter().any(|own| own.is(identity));
            if ahead.is_empty() {
                break;
            }
            if !known.is_dir() {
                way.end(&ahead, io::ErrorKind::NotADirectory.into());
                break;
            }
            way.nearest.clone_from(&way.root);
            way.steps.insert(way.root.clone(), identity);
        }
        way.is_own |= own.iter().any(|own| own.holds(&way.root));
        way
    }

    fn at(folder: PathBuf) -> Self {
        let (root, nearest, steps) = (folder.clone(), folder, BTreeMap::new());
        Self { root, nearest, steps, trouble: None, is_own: false }
    }

    fn pass(&mut self, folder: PathBuf) {
        if let Ok(known) = fs::symlink_metadata(&folder) {
            self.steps.insert(folder, (known.dev(), known.ino()));
        }
    }

    /// Ends the resolution at the current place, because of this error.
    fn end(&mut self, ahead: &[OsString], error: io::Error) {
        self.root.extend(ahead.iter().rev());
        match WatchTrouble::of(error) {
            // Where a `..` leads behind what is not there is not known.
            WatchTrouble::Gone if ahead.iter().any(|part| part == "..") => {
                self.trouble = Some(WatchTrouble::Gone)
            }
            WatchTrouble::Gone => {}
            trouble => self.trouble = Some(trouble),
        }
    }
}

/// Checks whether a path can be watched, as far as can be seen without doing it.
///
/// # Errors
/// Why not.
pub fn check(path: &Path, own: &[HostFile]) -> Result<(), WatchTrouble> {
    let way = PathResolution::follow(path, own);
    if way.is_own {
        return Err(WatchTrouble::Own);
    }
    match (way.trouble, fs::read_dir(way.root)) {
        (Some(trouble), _) => Err(trouble),
        (None, Err(error)) if !is_missing(&error) => Err(WatchTrouble::of(error)),
        (None, _) => Ok(()),
    }
}

/// Returns whether an error means that a path does not exist.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
