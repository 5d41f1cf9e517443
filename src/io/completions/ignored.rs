//! Ignore files of the folders that a completion searches.
//!
//! Owns: reading them as files of a repository that may be hostile: regular and small, with few
//! patterns; and the precedence of their patterns: those of `.ignore` files come first, then those
//! of `.gitignore`, `info/exclude` and git's settings of the user; of one kind, those of the
//! innermost folder.
//! Never: follows a link to an ignore file, waits for a writer of one, or reads one after the
//! deadline.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::git::large::open_regular;
use crate::git::settings::read_regular;
use crate::os::paths::from_bytes;

/// Maximum size of an ignore file, in bytes; a larger one has no effect.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of patterns that apply in a folder; further ones have no effect.
const PATTERNS_MAX: usize = 10_000;

/// Maximum length of a pattern, in bytes; a longer one has no effect. Patterns are compiled by
/// recursion into their braces.
const PATTERN_BYTES_MAX: usize = 1 << 10;

/// Maximum length of a file that names a git directory, in bytes.
const GIT_FILE_BYTES_MAX: u64 = 4 << 10;

/// Beginning of a `.git` file, before the path of the git directory.
const GIT_FILE: &[u8] = b"gitdir: ";

/// Patterns of the ignore files of one folder, by their precedence.
type FolderPatterns = [Gitignore; 3];

/// Patterns that apply in a folder.
#[derive(Debug)]
pub(super) struct IgnorePatterns {
    /// Patterns of the folder and the folders above it, from the root of the file system on.
    folders: Vec<FolderPatterns>,
    /// Patterns of the file that git's settings of the user name.
    of_user: Gitignore,
    /// Deadline, after which no file is read.
    until: Instant,
}

impl IgnorePatterns {
    /// Reads the patterns of the folders above this one, whose path must be canonical.
    pub(super) fn above(folder: &Path, until: Instant) -> Self {
        let mut patterns = Self { folders: Vec::new(), of_user: Gitignore::global().0, until };
        let mut above: Vec<&Path> = folder.ancestors().skip(1).collect();
        above.reverse();
        above.into_iter().for_each(|folder| patterns.enter(folder, |_| true));
        patterns
    }

    /// Adds the patterns of a folder in the last one. `has` returns whether the folder may have an
    /// entry of a name.
    pub(super) fn enter(&mut self, folder: &Path, has: impl Fn(&str) -> bool) {
        let mut left = PATTERNS_MAX.saturating_sub(self.folders.iter().flatten().map(Gitignore::len).sum());
        let below = |name: &str| has(name).then(|| folder.join(name));
        let exclude =
            below(".git").and_then(|git| Some(shared_git_folder(folder, git)?.join("info/exclude")));
        self.folders.push([below(".ignore"), below(".gitignore"), exclude].map(|file| {
            let file = file.filter(|_| Instant::now() < self.until);
            let patterns = file.map_or_else(Gitignore::empty, |file| read(&file, folder, left));
            left -= patterns.len();
            patterns
        }));
    }

    /// Removes the patterns of the last folder.
    pub(super) fn leave(&mut self) {
        self.folders.pop();
    }

    /// Returns whether an entry of the last folder is ignored.
    pub(super) fn ignores(&self, path: &Path, is_folder: bool) -> bool {
        let by_kind = |kind: usize| self.folders.iter().rev().map(move |folder| &folder[kind]);
        let mut patterns = by_kind(0).chain(by_kind(1)).chain(by_kind(2)).chain([&self.of_user]);
        let matched = patterns.find_map(|patterns| match patterns.matched(path, is_folder) {
            ignore::Match::None => None,
            matched => Some(matched.is_ignore()),
        });
        matched.unwrap_or(false)
    }
}

/// Reads the first `most` patterns of an ignore file, which are relative to `folder`.
fn read(file: &Path, folder: &Path, most: usize) -> Gitignore {
    let mut content = Vec::new();
    let opened = open_regular(file).and_then(|it| it.take(FILE_BYTES_MAX + 1).read_to_end(&mut content));
    let path = file.display();
    if let Err(error) = opened {
        if error.kind() != std::io::ErrorKind::NotFound {
            tracing::debug!(%error, %path, "an ignore file has no effect on completions");
        }
        return Gitignore::empty();
    }
    if content.len() as u64 > FILE_BYTES_MAX {
        tracing::debug!(%path, "an ignore file of more than {FILE_BYTES_MAX} bytes has no effect on completions");
        return Gitignore::empty();
    }
    let text = String::from_utf8_lossy(&content);
    let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines();
    let is_pattern = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    let mut builder = GitignoreBuilder::new(folder);
    for line in lines.filter(is_pattern).filter(|line| line.len() <= PATTERN_BYTES_MAX).take(most) {
        if let Err(error) = builder.add_line(None, line) {
            tracing::debug!(%error, %path, "a pattern of an ignore file has no effect on completions");
        }
    }
    builder.build().unwrap_or_else(|error| {
        tracing::debug!(%error, %path, "an ignore file has no effect on completions");
        Gitignore::empty()
    })
}

/// Returns the git directory that the worktrees of a repository share, from the path of `.git` in a
/// folder. `None` if that is a file that names no git directory.
fn shared_git_folder(folder: &Path, git: PathBuf) -> Option<PathBuf> {
    let first_line = |file: &Path| {
        let text = read_regular(file, GIT_FILE_BYTES_MAX).ok()?;
        Some(text.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default().to_vec())
    };
    let own = match first_line(&git) {
        Some(line) => folder.join(from_bytes(line.strip_prefix(GIT_FILE)?)),
        None => git,
    };
    Some(match first_line(&own.join("commondir")) {
        Some(line) => own.join(from_bytes(&line)),
        None => own,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Returns the patterns in a folder with this `.gitignore`.
    fn patterns_of(folder: &Path, text: &str) -> IgnorePatterns {
        fs::write(folder.join(".gitignore"), text).unwrap();
        let mut patterns = IgnorePatterns::above(folder, Instant::now() + LONG);
        patterns.enter(folder, |_| true);
        patterns
    }

    #[test]
    fn pattern_of_an_inner_folder_or_of_a_preceding_kind_counts() {
        let outer = tempfile::tempdir().unwrap();
        let outer = outer.path().canonicalize().unwrap();
        let (folder, inner) = (outer.join("folder"), outer.join("folder/inner"));
        fs::create_dir_all(folder.join(".git/info")).unwrap();
        fs::create_dir(&inner).unwrap();
        fs::write(outer.join(".gitignore"), "outer\nfolder/a/\n").unwrap();
        fs::write(folder.join(".git/info/exclude"), "*.e\n").unwrap();
        fs::write(folder.join(".ignore"), "!kept.g\n").unwrap();
        let mut patterns = patterns_of(&folder, "\u{feff}*.g\r\n# x\n!b.e\n/top\n");
        for (name, is_folder, is_ignored) in [
            ("outer", false, true),
            ("a", true, true),
            ("a", false, false),
            ("a.e", false, true),
            ("b.e", false, false),
            ("a.g", false, true),
            ("kept.g", false, false),
            ("top", false, true),
            ("# x", false, false),
        ] {
            assert_eq!(patterns.ignores(&folder.join(name), is_folder), is_ignored, "{name}");
        }
        fs::write(inner.join(".gitignore"), "!a.g\n").unwrap();
        patterns.enter(&inner, |_| true);
        assert!(!patterns.ignores(&inner.join("a.g"), false) && patterns.ignores(&inner.join("b.g"), false));
        assert!(!patterns.ignores(&inner.join("top"), false));
        patterns.leave();
        assert!(patterns.ignores(&folder.join("a.g"), false));
        patterns.until = Instant::now();
        patterns.enter(&inner, |_| true);
        assert!(patterns.ignores(&inner.join("a.g"), false), "a file is read after the deadline");
    }

    #[test]
    fn worktree_has_the_exclude_file_of_its_repository() {
        let outer = tempfile::tempdir().unwrap();
        let (own, tree) = (outer.path().join("main/.git/worktrees/tree"), outer.path().join("tree"));
        for folder in [&own, &tree, &outer.path().join("main/.git/info")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(own.join("commondir"), "../..\n").unwrap();
        fs::write(outer.path().join("main/.git/info/exclude"), "*.e\n").unwrap();
        fs::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
        let patterns = patterns_of(&tree, "");
        assert!(patterns.ignores(&tree.join("a.e"), false) && !patterns.ignores(&tree.join("a"), false));
    }

    #[test]
    fn patterns_beyond_the_limits_have_no_effect() {
        let folder = tempfile::tempdir().unwrap();
        let ignores = |text: &str, name: &str| {
            patterns_of(folder.path(), text).ignores(&folder.path().join(name), false)
        };
        let many: String = (0..PATTERNS_MAX).map(|number| format!("a*{number}*b\n")).collect();
        assert!(ignores(&many, "a9999b") && !ignores(&format!("{many}last\n"), "last"));
        let long = |bytes: usize| "x".repeat(bytes);
        assert!(ignores(&long(PATTERN_BYTES_MAX), &long(PATTERN_BYTES_MAX)));
        assert!(!ignores(&long(PATTERN_BYTES_MAX + 1), &long(PATTERN_BYTES_MAX + 1)));
        let nested = |levels: usize| "{".repeat(levels) + "a" + &"}".repeat(levels);
        // The crate compiles no pattern of the file then, and its recursion ends.
        assert!(!ignores(&format!("{}\nb\n", nested(PATTERN_BYTES_MAX / 2 - 1)), "b"));
        assert!(ignores(&format!("{}\nb\n", nested(PATTERN_BYTES_MAX)), "b"));
        let comment = |bytes: usize| format!("b\n#{}\n", long(bytes - 4));
        let most = usize::try_from(FILE_BYTES_MAX).unwrap();
        assert!(ignores(&comment(most), "b") && !ignores(&comment(most + 1), "b"));
    }
}
