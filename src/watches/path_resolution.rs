//! Resolution of a watched path.
//!
//! Owns: following a path link by link; and the folders and links on the way, because the path
//! leads elsewhere once one of them is moved, removed or replaced.
//! Never: registers a watch, or reports a change.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::system::WatchTrouble;
use crate::files::folders::{parts, root_of, HostFile, LINKS_MAX};
use crate::os::facts::{self, FileKind, Identity};
use crate::os::walk::too_many_links;

/// Resolution of a path, with the folders and links on its way.
#[derive(Debug)]
pub struct PathResolution {
    /// Canonical path, as far as it exists.
    pub root: PathBuf,
    /// Last folder on the way.
    pub nearest: PathBuf,
    /// Folders and links on the way, with their identities.
    pub steps: BTreeMap<PathBuf, Identity>,
    /// Error that ended the resolution; `None` if it is complete or its rest does not exist.
    pub trouble: Option<WatchTrouble>,
    /// Set if the path leads into the host's own files.
    pub is_own: bool,
}

impl PathResolution {
    /// Resolves an absolute path as far as it exists.
    pub fn follow(path: &Path, own: &[HostFile]) -> Self {
        let top = root_of(path);
        let (mut resolution, mut links) = (Self::at(top.clone()), 0);
        resolution.pass(top);
        let mut ahead: Vec<OsString> = parts(path).rev().collect();
        while let Some(part) = ahead.pop() {
            if part == ".." {
                resolution.nearest.pop();
                resolution.root.clone_from(&resolution.nearest);
                continue;
            }
            resolution.root = resolution.nearest.join(part);
            let known = match facts::at(&resolution.root) {
                Ok(known) => known,
                Err(error) => {
                    resolution.end(&ahead, error);
                    break;
                }
            };
            let identity = known.identity;
            if known.kind == FileKind::Link {
                links += 1;
                let target = match fs::read_link(&resolution.root) {
                    _ if links > LINKS_MAX => Err(too_many_links()),
                    target => target,
                };
                resolution.steps.insert(resolution.root.clone(), identity);
                match target {
                    Ok(target) => {
                        if target.is_absolute() {
                            resolution.nearest = root_of(&target);
                        }
                        resolution.root.clone_from(&resolution.nearest);
                        ahead.extend(parts(&target).rev());
                    }
                    Err(error) => {
                        resolution.end(&ahead, error);
                        break;
                    }
                }
                continue;
            }
            resolution.is_own |= own.iter().any(|own| own.is(identity));
            if ahead.is_empty() {
                break;
            }
            if !known.is_folder() {
                resolution.end(&ahead, io::ErrorKind::NotADirectory.into());
                break;
            }
            resolution.nearest.clone_from(&resolution.root);
            resolution.steps.insert(resolution.root.clone(), identity);
        }
        resolution.is_own |= own.iter().any(|own| own.holds(&resolution.root));
        resolution
    }

    fn at(folder: PathBuf) -> Self {
        let (root, nearest, steps) = (folder.clone(), folder, BTreeMap::new());
        Self { root, nearest, steps, trouble: None, is_own: false }
    }

    fn pass(&mut self, folder: PathBuf) {
        if let Ok(known) = facts::at(&folder) {
            self.steps.insert(folder, known.identity);
        }
    }

    fn end(&mut self, ahead: &[OsString], error: io::Error) {
        self.root.extend(ahead.iter().rev());
        match WatchTrouble::of(error) {
            // The target of `..` behind a missing folder is unknown.
            WatchTrouble::Gone if ahead.iter().any(|part| part == "..") => {
                self.trouble = Some(WatchTrouble::Gone)
            }
            WatchTrouble::Gone => {}
            trouble => self.trouble = Some(trouble),
        }
    }
}

/// Checks whether a path can be watched, as far as is possible without watching it.
///
/// # Errors
/// When the path cannot be watched.
pub fn check(path: &Path, own: &[HostFile]) -> Result<(), WatchTrouble> {
    let resolution = PathResolution::follow(path, own);
    if resolution.is_own {
        return Err(WatchTrouble::Own);
    }
    match (resolution.trouble, fs::read_dir(resolution.root)) {
        (Some(trouble), _) => Err(trouble),
        (None, Err(error)) => match WatchTrouble::of(error) {
            WatchTrouble::Gone => Ok(()),
            trouble => Err(trouble),
        },
        (None, Ok(_)) => Ok(()),
    }
}
