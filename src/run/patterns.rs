//! Paths that a tool call names, and patterns of them in rules.
//!
//! Owns: following links and `..` in both, and what a pattern covers.
//! Never: decides about a call.

use std::path::{is_separator, Component, Path, PathBuf};

use anyhow::{bail, Context};
use globset::{GlobBuilder, GlobMatcher};

use crate::files::links::behind_links;
use crate::files::uris::path_of;
use crate::os::paths::{home, IGNORES_CASE};

/// Characters by which a part of a pattern stands for several names.
const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];

/// Part of a pattern that stands for everything below a folder.
const BELOW: &str = "**";

/// Beginning of a path below the home folder.
const HOME: &str = "~/";

/// Path that a call names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPath {
    /// Path behind all links.
    pub real: PathBuf,
    /// Path as it is named, without `..`.
    pub named: PathBuf,
}

impl NamedPath {
    /// Returns an absolute path.
    pub fn at(path: &Path) -> Self {
        Self { real: behind_links(path), named: without_dots(path) }
    }

    /// Returns the path of a text, which may be a `file:` URI; a relative one is below the folder.
    /// `None` if it names no file of this machine, or the folder is unknown (empty).
    pub fn of(text: &str, directory: &Path) -> Option<Self> {
        path_in(text, directory).map(|path| Self::at(&path))
    }
}

/// Returns the path of a text as [`NamedPath::of`] has it, in which no `..` or link is followed.
pub fn path_in(text: &str, directory: &Path) -> Option<PathBuf> {
    let path = match (scheme_of(text), text.strip_prefix(HOME)) {
        (Some(scheme), _) if scheme.eq_ignore_ascii_case("file") => path_of(text).ok()?,
        (Some(_), _) => return None,
        (None, Some(rest)) => home()?.join(rest),
        (None, None) => PathBuf::from(text),
    };
    Some(directory.join(path)).filter(|path| path.is_absolute())
}

/// Returns the scheme of a URI; `None` for a path.
fn scheme_of(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
    (is_scheme && (rest.starts_with("//") || scheme.eq_ignore_ascii_case("file"))).then_some(scheme)
}

/// Pattern of paths in a rule.
#[derive(Debug, Clone)]
pub struct PathPattern {
    /// Patterns of real paths, for grants.
    granted: Vec<GlobMatcher>,
    /// Patterns of paths and of everything below them, for denials.
    denied: Vec<GlobMatcher>,
    /// Patterns of folders that may contain what a denial covers.
    above: Vec<GlobMatcher>,
    /// The folder before the first wildcard: as it is named, and behind all links.
    bases: [PathBuf; 2],
}

impl PathPattern {
    /// Reads a pattern; a relative one is below the folder.
    ///
    /// # Errors
    /// When it is no pattern, has a `..` whose folder depends on a wildcard, or is below an unknown
    /// folder (empty).
    pub fn read(text: &str, directory: &Path) -> anyhow::Result<Self> {
        let (start, parts) = match text.strip_prefix(HOME) {
            _ if text.is_empty() => bail!("`path=` must be followed by a pattern"),
            _ if scheme_of(text).is_some() => bail!("path={text}: write a path instead of a URI"),
            Some(rest) => (home().with_context(|| format!("path={text}: there is no home folder"))?, rest),
            None if Path::new(text).is_absolute() => (PathBuf::new(), text),
            None => (directory.to_owned(), text),
        };
        let parts: Vec<Component<'_>> = Path::new(parts).components().collect();
        let has_wildcard = |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(WILDCARDS);
        let fixed = parts.iter().position(has_wildcard).unwrap_or(parts.len());
        let (base, rest) = parts.split_at(fixed);
        if rest.contains(&Component::ParentDir) {
            bail!("path={text}: `..` behind a wildcard leads to no certain folder");
        }
        let base = start.join(base.iter().collect::<PathBuf>());
        if !base.is_absolute() {
            bail!("path={text}: write an absolute path, because the folder of relative ones is unknown");
        }
        let rest: Vec<_> = rest.iter().map(|part| part.as_os_str().to_string_lossy()).collect();
        let rest: Vec<&str> = rest.iter().map(AsRef::as_ref).collect();
        let bases = [without_dots(&base), behind_links(&base)];
        let below = |parts: &[&str]| matcher(&bases[1], &[parts, &[BELOW]].concat(), false);
        let mut granted = vec![matcher(&bases[1], &rest, false)?];
        if !rest.last().is_some_and(|part| part.contains(WILDCARDS)) {
            granted.push(below(&rest)?);
        }
        // A folder is as protected as everything in it.
        let whole = rest.strip_suffix(&[BELOW]).unwrap_or(&rest);
        let (mut denied, mut above) = (Vec::new(), Vec::new());
        for base in &bases {
            for parts in (1..whole.len()).map(|count| &whole[..count]) {
                // Braces may contain several parts, and half of them are no pattern.
                let folders = matcher(base, parts, IGNORES_CASE);
                above.push(folders.or_else(|_| matcher(base, &[BELOW], IGNORES_CASE))?);
            }
            denied.push(matcher(base, whole, IGNORES_CASE)?);
            denied.push(matcher(base, &[whole, &[BELOW]].concat(), IGNORES_CASE)?);
        }
        Ok(Self { granted, denied, above, bases })
    }

    /// Returns whether a grant covers a path.
    pub fn grants(&self, path: &NamedPath) -> bool {
        self.granted.iter().any(|pattern| pattern.is_match(&path.real))
    }

    /// Returns whether a denial covers a path: as it is named, or behind its links.
    pub fn denies(&self, path: &NamedPath) -> bool {
        self.denied.iter().any(|pattern| pattern.is_match(&path.real) || pattern.is_match(&path.named))
    }

    /// Returns whether a path, if it is a folder, may contain what a denial covers.
    pub fn may_be_within(&self, path: &NamedPath) -> bool {
        self.above.iter().any(|pattern| pattern.is_match(&path.real) || pattern.is_match(&path.named))
    }

    /// Returns whether a path is a folder above those of the pattern.
    pub fn is_above_pattern(&self, path: &NamedPath) -> bool {
        let (real, named) = (comparable(&path.real), comparable(&path.named));
        self.bases
            .iter()
            .map(|base| comparable(base))
            .any(|base| base.starts_with(&real) || base.starts_with(&named))
    }
}

/// Folds the case of a path where file systems ignore it.
fn comparable(path: &Path) -> PathBuf {
    match IGNORES_CASE {
        true => path.to_string_lossy().to_lowercase().into(),
        false => path.to_owned(),
    }
}

/// Returns the pattern for parts below a folder, in which no character is a wildcard.
fn matcher(base: &Path, parts: &[&str], ignores_case: bool) -> anyhow::Result<GlobMatcher> {
    let whole = below_folder(&base.to_string_lossy(), parts, is_separator('\\'));
    let glob = GlobBuilder::new(&whole).literal_separator(true).case_insensitive(ignores_case).build();
    Ok(glob.with_context(|| format!("path={}", parts.join("/")))?.compile_matcher())
}

/// Returns the text of the pattern for parts below a folder. A `\` in the name of the folder is a
/// separator or an ordinary character.
fn below_folder(folder: &str, parts: &[&str], is_separator: bool) -> String {
    let folder = globset::escape(folder);
    let folder = if is_separator { folder } else { folder.replace('\\', r"\\") };
    match parts {
        [] => folder,
        parts => {
            let is_end = |char: char| char == '/' || is_separator && char == '\\';
            format!("{}/{}", folder.trim_end_matches(is_end), parts.join("/"))
        }
    }
}

/// Returns the path without `..`, as if it had no links.
fn without_dots(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                found.pop();
            }
            Component::CurDir => {}
            part => found.push(part),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FOLDER: &str = "/repo";

    fn pattern(text: &str) -> PathPattern {
        PathPattern::read(text, Path::new(FOLDER)).unwrap()
    }

    fn path(text: &str) -> NamedPath {
        NamedPath::of(text, Path::new(FOLDER)).unwrap()
    }

    /// Two folders and links between them.
    fn linked() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let real = outer.path().canonicalize().unwrap();
        fs::create_dir_all(real.join("work/src")).unwrap();
        fs::create_dir_all(real.join("out/deep")).unwrap();
        for (target, name) in [("../../out/deep", "src/deep"), ("../out", "ci")] {
            std::os::unix::fs::symlink(target, real.join("work").join(name)).unwrap();
        }
        (outer, real)
    }

    #[test]
    fn links_and_dots_of_a_pattern_are_followed() {
        let (_outer, outer) = linked();
        let work = outer.join("work");
        let target = NamedPath::of("../out/deep/x", &work).unwrap();
        for text in ["ci/**", "ci", "src/deep", "src/../ci/*/x", "../out/**", "./ci/deep/x"] {
            let pattern = PathPattern::read(text, &work).unwrap();
            assert!(pattern.grants(&target) && pattern.denies(&target), "{text}");
        }
        // A folder that is replaced by a link is as protected as before.
        let pattern = PathPattern::read("plain/**", &work).unwrap();
        std::os::unix::fs::symlink("src", work.join("plain")).unwrap();
        let path = NamedPath::of("plain/x", &work).unwrap();
        assert!(pattern.denies(&path) && !pattern.grants(&path));
    }

    #[test]
    fn case_of_a_denied_path_counts_where_file_systems_distinguish_it() {
        let pattern = pattern("ci/deep/**");
        assert_eq!(pattern.denies(&path("CI/Deep/x")), IGNORES_CASE);
        assert_eq!(pattern.is_above_pattern(&path("CI")), IGNORES_CASE);
        assert!(!pattern.grants(&path("CI/Deep/x")));
    }

    #[test]
    fn pattern_without_a_wildcard_at_its_end_covers_what_is_below() {
        for text in ["ci", "ci/", "./ci", "a/../ci", "/repo/ci", "c*/../ci"] {
            let Ok(pattern) = PathPattern::read(text, Path::new(FOLDER)) else {
                assert_eq!(text, "c*/../ci");
                continue;
            };
            for below in ["ci", "ci/x", "ci/deep/x"] {
                assert!(pattern.grants(&path(below)) && pattern.denies(&path(below)), "{text}: {below}");
            }
            assert!(!pattern.grants(&path("cix")) && !pattern.denies(&path("cix")), "{text}");
        }
        assert!(pattern("*/ci").grants(&path("a/ci/x")));
        assert!(pattern(".").grants(&path("a/b")) && !pattern(".").grants(&path("/else")));
    }

    #[test]
    fn wildcard_at_the_end_covers_what_is_below_for_a_denial_only() {
        assert!(pattern("src/*").grants(&path("src/a")) && !pattern("src/*").grants(&path("src/a/b")));
        assert!(pattern("src/*").denies(&path("src/a/b")) && pattern(".git*").denies(&path(".github/x")));
        assert!(pattern("src/**").denies(&path("src")) && !pattern("src/**").grants(&path("src")));
        assert!(pattern("*.rs").grants(&path("a.rs")) && !pattern("*.rs").grants(&path("src/a.rs")));
        assert!(
            pattern("ci/secret").is_above_pattern(&path("ci"))
                && !pattern("ci/secret").is_above_pattern(&path("c"))
        );
    }

    #[test]
    fn uri_of_a_file_is_its_path_and_another_one_is_none() {
        assert_eq!(path("file:///repo/a%20b").real, Path::new("/repo/a b"));
        assert_eq!(path("a:b").real, Path::new("/repo/a:b"));
        for text in ["file://else/x", "vscode-remote://x/y", "file:x"] {
            assert_eq!(NamedPath::of(text, Path::new(FOLDER)), None, "{text}");
        }
        for wrong in ["", "[", "src/*/../x", "file:///repo/x"] {
            assert!(PathPattern::read(wrong, Path::new(FOLDER)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pattern_below_the_root_of_a_drive_has_one_separator() {
        for (folder, is_separator, pattern) in [
            (r"D:\", true, "D:/src/**"),
            (r"D:\a", true, r"D:\a/src/**"),
            (r"\\host\share\", true, r"\\host\share/src/**"),
            ("/", false, "/src/**"),
            (r"/a\", false, r"/a\\/src/**"),
        ] {
            assert_eq!(below_folder(folder, &["src", "**"], is_separator), pattern, "{folder}");
        }
    }

    #[test]
    fn backslash_in_the_name_of_the_folder_is_a_plain_character() {
        for folder in [r"/a\b", r"/a\"].map(Path::new) {
            let pattern = PathPattern::read("src/*", folder).unwrap();
            let path = NamedPath::of("src/x", folder).unwrap();
            assert!(pattern.grants(&path) && pattern.denies(&path), "{folder:?}");
        }
    }

    #[test]
    fn wildcards_in_the_name_of_the_folder_are_plain_characters() {
        let folder = Path::new("/a[1]{2}*");
        let pattern = PathPattern::read("src/*", folder).unwrap();
        assert!(pattern.grants(&NamedPath::of("src/x", folder).unwrap()));
    }
}
