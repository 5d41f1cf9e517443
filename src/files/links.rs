//! Paths behind symbolic links, also of files that do not exist yet.
//!
//! Owns: following links in a path as the system does.
//! Never: opens a file, or relies on a path staying as it was.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::os::paths::canonical;

/// Maximum number of links that are followed in a path; systems follow fewer.
const LINKS_MAX: usize = 40;

/// Returns the path without `..`, and with the links that exist followed.
pub fn behind_links(path: &Path) -> PathBuf {
    let found = followed(path);
    let mut rest = Vec::new();
    for folder in found.ancestors() {
        if let Ok(mut real) = canonical(folder) {
            real.extend(rest.iter().rev());
            return real;
        }
        rest.extend(folder.file_name());
    }
    found
}

/// Follows the links in a path as the system does: part by part, and also where their targets do
/// not exist yet, as a write would create those.
fn followed(path: &Path) -> PathBuf {
    let reversed = |path: &Path| -> Vec<PathBuf> {
        path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let (mut found, mut parts, mut links) = (PathBuf::new(), reversed(path), 0);
    while let Some(part) = parts.pop() {
        match part.components().next() {
            Some(Component::ParentDir) => {
                found.pop();
            }
            Some(Component::CurDir) | None => {}
            Some(_) => {
                found.push(&part);
                if let Some(target) = fs::read_link(&found).ok().filter(|_| links < LINKS_MAX) {
                    links += 1;
                    found.pop();
                    parts.extend(reversed(&target));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The target of one link does not exist yet.
    #[test]
    fn links_are_followed_as_the_system_does() {
        let outer = tempfile::tempdir().unwrap();
        let outer = outer.path().canonicalize().unwrap();
        let work = outer.join("work");
        fs::create_dir_all(work.join("src")).unwrap();
        fs::create_dir_all(outer.join("out/deep")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, work.join(name)).unwrap();
        link("../../out/new", "src/dangling");
        link("../../out/deep", "src/deep");
        link("loop", "src/loop");
        for (path, real) in [
            ("src/dangling", "out/new"),
            ("src/deep/../secret", "out/secret"),
            ("src/../src/./a", "work/src/a"),
            ("src/loop/a", "work/src/loop/a"),
        ] {
            assert_eq!(behind_links(&work.join(path)), outer.join(real), "{path}");
        }
    }
}
