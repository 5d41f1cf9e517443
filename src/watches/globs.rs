//! Patterns that choose which changes a watch reports.
//!
//! Owns: the meaning of a watch's patterns for a path below it. Excluding a folder excludes all
//! that is in it. A folder whose whole content is excluded (`x/**`) is not scanned.
//! Never: accesses a file.

use std::path::Path;

use globset::{GlobSet, GlobSetBuilder};

use crate::wire::watches::{glob, Watched};

/// Patterns excluded from a recursive watch whose client gives no `includes`.
const BUILT_IN: [&str; 3] = ["**/.git/objects/**", "**/.git/lfs/**", "**/node_modules/**"];

/// Patterns of a watch.
#[derive(Debug)]
pub struct Globs {
    excluded: GlobSet,
    /// Folders whose content is not reported.
    closed: GlobSet,
    included: Option<GlobSet>,
}

impl Globs {
    /// Compiles the patterns of this watch, which were validated before.
    pub fn of(watched: &Watched) -> Self {
        let mut excludes: Vec<&str> =
            watched.excludes.iter().flatten().map(|pattern| pattern.trim_end_matches('/')).collect();
        if watched.recursive && watched.includes.is_none() {
            excludes.extend(BUILT_IN);
        }
        let closed = excludes.iter().filter_map(|pattern| pattern.strip_suffix("/**"));
        Self {
            closed: set(closed),
            excluded: set(excludes.iter().copied()),
            included: watched.includes.as_ref().map(|includes| set(includes.iter().map(String::as_str))),
        }
    }

    /// Returns whether a path is excluded, with all below it; its parent folders are not checked.
    pub fn excludes(&self, path: &Path) -> bool {
        self.excluded.is_match(path)
    }

    /// Returns whether the whole content of this folder is excluded.
    pub fn closes(&self, folder: &Path) -> bool {
        self.closed.is_match(folder)
    }

    /// Returns whether a path that is not excluded is reported. The watched path itself always is.
    pub fn reports(&self, path: &Path) -> bool {
        let Some(included) = &self.included else { return true };
        path.as_os_str().is_empty()
            || path.ancestors().any(|it| !it.as_os_str().is_empty() && included.is_match(it))
    }
}

fn set<'a>(patterns: impl Iterator<Item = &'a str>) -> GlobSet {
    let mut set = GlobSetBuilder::new();
    patterns.filter_map(|pattern| glob(pattern).ok()).for_each(|glob| {
        set.add(glob);
    });
    set.build().unwrap_or_else(|error| {
        tracing::error!(%error, "the patterns of a watch cannot be compiled");
        GlobSet::empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(recursive: bool, excludes: Option<&[&str]>, includes: Option<&[&str]>) -> Globs {
        let owned = |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        Globs::of(&Watched {
            uri: "file:///a".to_owned(),
            recursive,
            excludes: excludes.map(owned),
            includes: includes.map(owned),
        })
    }

    #[test]
    fn patterns_and_paths_say_what_is_left_out() {
        let out = |patterns: &[&str], path: &str| {
            let globs = globs(false, Some(patterns), None);
            let path = Path::new(path);
            path.ancestors().any(|it| globs.excludes(it) || globs.closes(it) && it != path)
        };
        for (pattern, yes, no) in [
            ("target", vec!["target", "target/x/y"], vec!["a/target", "targets"]),
            ("./target/", vec!["target", "target/x"], vec!["a/target"]),
            ("/a/b", vec!["a/b", "a/b/c"], vec!["a", "c/a/b"]),
            ("*.o", vec!["x.o", "dir.o/x"], vec!["a/x.o", "x.oo"]),
            ("**/*.o", vec!["x.o", "a/b/x.o"], vec!["x.c"]),
            (
                "**/.git/objects/**",
                vec![".git/objects/x", "a/.git/objects/x/y"],
                vec![".git/objects", ".git/HEAD"],
            ),
            ("**/node_modules/*/**", vec!["node_modules/a/b"], vec!["node_modules/a", "node_modules"]),
            ("{a,b}/?", vec!["a/x", "b/y/z"], vec!["a/xy", "c/x"]),
        ] {
            yes.iter().for_each(|path| assert!(out(&[pattern], path), "{pattern} {path}"));
            no.iter().for_each(|path| assert!(!out(&[pattern], path), "{pattern} {path}"));
        }
    }

    #[test]
    fn folders_without_reported_content_are_not_scanned() {
        let closes = |globs: &Globs, path: &str| globs.closes(Path::new(path));
        let built_in = globs(true, None, None);
        assert!(closes(&built_in, "a/node_modules") && closes(&built_in, ".git/objects"));
        assert!(!closes(&built_in, ".git"));
        assert!(!closes(&globs(false, None, None), "node_modules"), "one that is not of all that is below");
        assert!(
            !closes(&globs(true, None, Some(&["**/x"])), "node_modules"),
            "the client says what it wants"
        );
        assert!(closes(&globs(true, Some(&["**/out/**"]), None), "a/out"));
    }

    #[test]
    fn only_includes_are_reported() {
        let only = globs(true, None, Some(&["**/*.json", "kept"]));
        let reported = |path: &str| only.reports(Path::new(path));
        assert!(
            reported("")
                && reported("a.json")
                && reported("x/y.json")
                && reported("kept")
                && reported("kept/any")
        );
        assert!(!reported("a.txt") && !reported("x") && !reported("x/kept"));
    }
}
