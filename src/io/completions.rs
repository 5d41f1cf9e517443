//! Completions of file names after `#` and `@` in a message.
//!
//! Owns: the search in the working directories of a chat, without ignored files, and the ranking.
//! Never: follows a link, so it stays inside these directories; searches without a limit.

mod ignored;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, FileType};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ahp_types::commands::{CompletionItem, CompletionsResult};
use ahp_types::state::{MessageAttachment, MessageResourceAttachment};

use self::ignored::IgnorePatterns;
use crate::files::uris::{path_of, uri_of};
use crate::host::effects::FileCompletionQuery;
use crate::os::paths::{canonical, with_slashes};

const OFFERED_MAX: usize = 50;

/// Maximum number of files and folders visited per completion, in all directories combined.
const VISITED_MAX: usize = 100_000;

/// Time limit of a search, short because a user is typing.
const WITHIN: Duration = Duration::from_secs(2);

/// Folders with internal files of version control.
const OF_VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".jj", ".svn"];

struct FileMatch {
    /// Rank of the match; lower is better.
    rank: (usize, usize),
    below: String,
    name: String,
    path: PathBuf,
    /// Index of its directory.
    of: usize,
}

/// Finds the files that match best, the best first.
pub(super) fn find(meant: &FileCompletionQuery) -> CompletionsResult {
    let directories: Vec<PathBuf> = meant.directories.iter().filter_map(|uri| path_of(uri).ok()).collect();
    let until = Instant::now() + WITHIN;
    let typed = meant.typed.to_lowercase();
    let mut found: Vec<FileMatch> = Vec::new();
    for (of, directory) in directories.iter().enumerate() {
        // A directory inside another one is searched with that one.
        let has_it = |(at, other): (usize, &PathBuf)| {
            at != of && directory.starts_with(other) && (directory != other || at < of)
        };
        if !directories.iter().enumerate().any(has_it) {
            let share = VISITED_MAX / directories.len();
            list(directory, share, until, |below| found.extend(fit(&typed, of, directory, below)));
        }
    }
    found.sort_by(|one, other| (one.rank, one.of, &one.below).cmp(&(other.rank, other.of, &other.below)));
    found.truncate(OFFERED_MAX);
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for file in &found {
        *named.entry(&file.name).or_default() += 1;
    }
    let label = |file: &FileMatch| match named.get(file.name.as_str()) {
        Some(1) => file.name.clone(),
        _ if directories.len() > 1 => format!("{}/{}", name_of(&directories[file.of]), file.below),
        _ => file.below.clone(),
    };
    let item = |file: &FileMatch| CompletionItem {
        insert_text: format!("{}{}", meant.mark, file.name),
        range_start: meant.range.0,
        range_end: meant.range.1,
        attachment: MessageAttachment::Resource(MessageResourceAttachment {
            label: label(file),
            range: None,
            display_kind: Some("document".to_owned()),
            meta: None,
            uri: uri_of(&file.path),
            size_hint: None,
            content_type: None,
            selection: None,
            nonce: None,
        }),
    };
    CompletionsResult { items: found.iter().map(item).collect() }
}

/// Calls `show` with the path of each file in a directory, up to `entries_max` entries that are not
/// ignored, of which the directory is one, and the deadline. Paths are relative to the directory.
fn list(directory: &Path, entries_max: usize, until: Instant, mut show: impl FnMut(&Path)) {
    let root = match canonical(directory) {
        Ok(root) => root,
        Err(error) => return note_unreadable(&error),
    };
    let mut patterns = IgnorePatterns::above(&root, until);
    let mut left = entries_max.saturating_sub(1);
    // Folders that are not searched to their ends, each in the one before. Recursion would need a
    // stack of the size that a repository chooses.
    let mut open = Vec::new();
    let mut next = Some(root.clone());
    loop {
        if let Some(folder) = next.take() {
            let entries = entries_of(&folder, &mut left);
            patterns.enter(&folder, |name| entries.contains_key(OsStr::new(name)));
            open.push((folder, entries.into_iter()));
        }
        let Some((folder, entries)) = open.last_mut() else { return };
        let Some((name, kind)) = entries.next() else {
            open.pop();
            patterns.leave();
            continue;
        };
        if Instant::now() > until {
            tracing::debug!(directory = %directory.display(), "a completion offers only some of the files, because the search took too long");
            return;
        }
        let path = folder.join(&name);
        if OF_VERSION_CONTROL.iter().any(|it| name == *it) || patterns.ignores(&path, kind.is_dir()) {
            left += 1;
            continue;
        }
        if kind.is_dir() {
            next = Some(path);
        } else if let Ok(below) = path.strip_prefix(&root) {
            if kind.is_file() {
                show(below);
            }
        }
    }
}

/// Returns the entries of a folder by name, at most `left`, which is reduced by their number.
fn entries_of(folder: &Path, left: &mut usize) -> BTreeMap<OsString, FileType> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries.take(*left),
        Err(error) => {
            note_unreadable(&error);
            return BTreeMap::new();
        }
    };
    let known = |entry: io::Result<DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name(), entry.file_type()?))
    };
    let entries = entries.map(known).filter_map(|entry| entry.map_err(|error| note_unreadable(&error)).ok());
    let entries: BTreeMap<_, _> = entries.collect();
    *left -= entries.len();
    entries
}

fn note_unreadable(error: &io::Error) {
    tracing::debug!(%error, "a file is left out of a completion, because its metadata cannot be read");
}

/// Returns the file at the path `below` a directory with its rank if it matches `typed`, which must
/// be lower case.
fn fit(typed: &str, of: usize, directory: &Path, below: &Path) -> Option<FileMatch> {
    let (name, path) = (name_of(below), directory.join(below));
    let below = with_slashes(below).to_string_lossy().into_owned();
    let (small_name, small_path) = (name.to_lowercase(), below.to_lowercase());
    let how = if small_name.starts_with(typed) {
        0
    } else if small_name.contains(typed) {
        1
    } else if small_path.contains(typed) {
        2
    } else if has_in_order(&small_path, typed) {
        3
    } else {
        return None;
    };
    let depth = below.matches('/').count();
    Some(FileMatch { rank: (how, depth), below, name, path, of })
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns whether a text contains the characters of `typed` in order, with any in between.
fn has_in_order(text: &str, typed: &str) -> bool {
    let mut rest = text.chars();
    typed.chars().all(|wanted| rest.any(|character| character == wanted))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(folder: &Path, files: &[&str]) {
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    fn offered(folders: &[&Path], typed: &str) -> Vec<(String, String)> {
        let directories = folders.iter().map(|folder| uri_of(folder)).collect();
        let range = (Some(0), Some(1));
        let found = find(&FileCompletionQuery { directories, mark: '#', typed: typed.to_owned(), range });
        let label_and_uri = |item: CompletionItem| match item.attachment {
            MessageAttachment::Resource(file) => (file.label, file.uri),
            other => panic!("{other:?}"),
        };
        found.items.into_iter().map(label_and_uri).collect()
    }

    fn labels(folders: &[&Path], typed: &str) -> Vec<String> {
        offered(folders, typed).into_iter().map(|(label, _)| label).collect()
    }

    #[test]
    fn best_match_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &["src/main.rs", "src/domain.rs", "main/x.rs", "Main.txt", "m/a/i/n", "other"]);
        let found = labels(&[folder.path()], "main");
        assert_eq!(found, ["Main.txt", "main.rs", "domain.rs", "x.rs", "n"]);
        assert_eq!(labels(&[folder.path()], "src/ma"), ["main.rs", "domain.rs"]);
        assert_eq!(labels(&[folder.path()], "nothing"), [""; 0]);
        assert_eq!(labels(&[folder.path()], "").len(), 6);
    }

    #[test]
    fn files_with_the_same_name_are_distinguished() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(one.path(), &["a/mod.rs", "b/mod.rs", "a b.txt"]);
        assert_eq!(labels(&[one.path()], "mod"), ["a/mod.rs", "b/mod.rs"]);
        write(two.path(), &["a/mod.rs"]);
        let name = |folder: &tempfile::TempDir| name_of(folder.path());
        let all = [
            format!("{}/a/mod.rs", name(&one)),
            format!("{}/b/mod.rs", name(&one)),
            format!("{}/a/mod.rs", name(&two)),
        ];
        assert_eq!(labels(&[one.path(), &one.path().join("a"), two.path()], "mod"), all);
        let uri = uri_of(&one.path().join("a b.txt"));
        assert!(uri.ends_with("/a%20b.txt"));
        assert_eq!(offered(&[one.path()], "a b"), [("a b.txt".to_owned(), uri)]);
    }

    #[test]
    fn only_files_in_the_folder_that_are_not_ignored_are_offered() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(folder.path(), &["kept.txt", ".github/kept.yml", ".git/config", "made/by.o", "sub/made.o"]);
        fs::write(folder.path().join(".gitignore"), "*.o\n").unwrap();
        write(outside.path(), &["secret"]);
        symlink(outside.path(), folder.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("link")).unwrap();
        let mut found = labels(&[folder.path()], "");
        found.sort();
        assert_eq!(found, [".gitignore", "kept.txt", "kept.yml"]);
        assert_eq!(labels(&[&folder.path().join("nowhere")], ""), [""; 0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn search_reaches_the_deepest_folder_and_leaves_the_inner_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut deepest = folder.path().to_owned();
        fs::write(deepest.join("z.o"), "").unwrap();
        // Longer paths cannot be opened.
        while deepest.as_os_str().len() < 4000 {
            deepest.push("d");
        }
        fs::create_dir_all(&deepest).unwrap();
        fs::write(deepest.join("last"), "").unwrap();
        fs::write(folder.path().join("d/.gitignore"), "*.o\n").unwrap();
        fs::write(folder.path().join("d/made.o"), "").unwrap();
        let mut seen = Vec::new();
        list(folder.path(), 10_000, Instant::now() + Duration::from_secs(3600), |below| {
            seen.push(name_of(below));
        });
        assert_eq!(seen, [".gitignore", "last", "z.o"]);
    }

    #[test]
    fn search_stops_at_the_entry_limit() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..60).map(|number| format!("{number:02}")).collect();
        write(folder.path(), &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(labels(&[folder.path()], "").len(), OFFERED_MAX);
        let mut seen = 0;
        // The folder itself is one of them.
        list(folder.path(), 11, Instant::now() + WITHIN, |_| seen += 1);
        assert_eq!(seen, 10);
        list(folder.path(), 11, Instant::now() - WITHIN, |_| panic!("too late"));
        // Ignored ones do not count.
        write(folder.path(), &["ignored/one", "ignored/two"]);
        fs::write(folder.path().join(".gitignore"), "0*\n1*\n2*\n3*\n4*\n").unwrap();
        let mut seen = 0;
        list(folder.path(), 70, Instant::now() + WITHIN, |_| seen += 1);
        assert_eq!(seen, 13);
    }
}
