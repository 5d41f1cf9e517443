//! Files of a plugin, by their paths inside it.
//!
//! Owns: which names and paths are inside of a plugin, and the limits on their number and size.
//! Never: follows a link, or lets a path lead out of the plugin.

use std::collections::BTreeMap;

use crate::wire::text;

/// Maximum number of files and folders of a plugin.
pub(super) const ENTRIES_MAX: usize = 2_000;

/// Maximum size of the files of a plugin that are read, in bytes.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Maximum depth of folders below the plugin's own.
const DEPTH_MAX: usize = 16;

/// Maximum length of a name, in bytes; that of common file systems.
const NAME_BYTES_MAX: usize = 255;

/// Files and folders of a plugin; contents only of those that were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tree {
    /// Files by path; paths are separated by `/`.
    files: BTreeMap<String, PluginFile>,
    /// Number of files and folders.
    entries: usize,
    /// Size of the contents, in bytes.
    bytes: usize,
    /// Entries that were left out, each with the reason, for people.
    refused: Vec<String>,
}

/// File of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PluginFile {
    Unread,
    Read(String),
    /// A file that was read and is no text.
    Unusable,
}

impl Tree {
    /// Adds an entry of a folder. Returns the path if it is a folder to be listed.
    ///
    /// # Errors
    /// When the plugin has too many entries.
    pub(super) fn add(&mut self, folder: &str, name: &str, kind: &str) -> Result<Option<String>, String> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(format!("it has more than {ENTRIES_MAX} files and folders"));
        }
        let refused = match (name_fault(name), kind) {
            (Some(fault), _) => fault,
            (None, "file") => {
                self.files.insert(join(folder, name), PluginFile::Unread);
                return Ok(None);
            }
            (None, "directory") if folder.split('/').count() >= DEPTH_MAX => "it is nested too deeply",
            (None, "directory") => return Ok(Some(join(folder, name))),
            (None, _) => "it is a link or no regular file",
        };
        self.refused.push(format!("{} was left out: {refused}", shown(&join(folder, name))));
        Ok(None)
    }

    /// Adds the content of a file.
    ///
    /// # Errors
    /// When the contents are too large.
    pub(super) fn add_content(&mut self, path: &str, content: String) -> Result<(), String> {
        self.bytes += content.len();
        if self.bytes > BYTES_MAX {
            return Err(format!("its files are larger than {}", text::human_size(BYTES_MAX)));
        }
        self.files.insert(path.to_owned(), PluginFile::Read(content));
        Ok(())
    }

    /// Notes that a file that was read is no text.
    pub(super) fn refuse_content(&mut self, path: &str) {
        self.files.insert(path.to_owned(), PluginFile::Unusable);
        self.refused.push(format!("{} was left out: it is no text", shown(path)));
    }

    /// Returns the size of the contents, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the entries that were left out, each with the reason.
    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Returns whether both have the same files and the same number of entries, whatever was read.
    pub(super) fn has_entries_of(&self, other: &Self) -> bool {
        self.entries == other.entries && self.files.keys().eq(other.files.keys())
    }

    /// Returns the path of a file as the tree has it; `None` if there is no such file.
    pub(super) fn find(&self, path: &str) -> Option<&str> {
        self.files.get_key_value(path).map(|(path, _)| path.as_str())
    }

    /// Returns whether a file is there that was not read.
    pub(super) fn is_unread(&self, path: &str) -> bool {
        self.files.get(path) == Some(&PluginFile::Unread)
    }

    /// Returns the content of a file; `None` if it was not read, or is no text.
    pub(super) fn content(&self, path: &str) -> Option<&str> {
        match self.files.get(path)? {
            PluginFile::Read(content) => Some(content),
            PluginFile::Unread | PluginFile::Unusable => None,
        }
    }

    /// Returns the files below a folder, each with its path from there; all for the empty path.
    pub(super) fn below<'a>(&'a self, folder: &str) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        let start = join(folder, "");
        let files = self.files.range(start.clone()..);
        files.map_while(move |(path, _)| Some((path.as_str(), path.strip_prefix(&start)?)))
    }
}

pub(super) fn join(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

/// Returns a name of a client as it is shown to people.
pub(super) fn shown(name: &str) -> String {
    format!("`{}`", text::first_bytes(&text::one_line(&text::message(name)), 100))
}

/// Returns why a name cannot be that of an entry in a folder; `None` if it can.
fn name_fault(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("its name is empty"),
        "." | ".." => Some("its name leads out of its folder"),
        _ if name.contains(['/', '\\', ':']) => Some("its name contains `/`, `\\` or `:`"),
        _ if name.chars().any(char::is_control) => Some("its name contains a control character"),
        _ if name.len() > NAME_BYTES_MAX => Some("its name is too long"),
        _ => None,
    }
}

/// Returns a path that a plugin names, relative to the plugin; empty for the plugin itself.
///
/// # Errors
/// When it leads out of the plugin, with the reason.
pub(super) fn inside(path: &str) -> Result<String, &'static str> {
    if path.starts_with(['/', '\\', '~']) || path.contains(['\\', ':']) {
        return Err("it is not relative to the plugin");
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err("it leads out of the plugin"),
            part if name_fault(part).is_some() => return Err("it is no valid path"),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_that_may_lead_elsewhere_is_left_out_with_the_reason() {
        let mut tree = Tree::default();
        let hostile = ["", ".", "..", "/etc/passwd", "a/b", "..\\x", "C:", "a\u{0}b", "a\nb"];
        for name in hostile {
            assert_eq!(tree.add("", name, "file").unwrap(), None, "{name:?}");
            assert_eq!(tree.add("", name, "directory").unwrap(), None, "{name:?}");
        }
        for kind in ["symlink", "", "device"] {
            assert_eq!(tree.add("d", "x", kind).unwrap(), None);
        }
        assert_eq!(tree.refused().len(), 2 * hostile.len() + 3);
        assert_eq!(tree.below("").count(), 0);
        assert!(tree.refused().last().unwrap().starts_with("`d/x` was left out: it is a link"));
        assert!(tree.refused().iter().all(|why| !why.contains('\n')), "{:?}", tree.refused());
    }

    #[test]
    fn plugin_is_limited_in_entries_depth_and_bytes() {
        let mut tree = Tree::default();
        for at in 0..ENTRIES_MAX {
            tree.add("d", &format!("f{at}"), "file").unwrap();
        }
        assert!(tree.clone().add("d", "more", "file").unwrap_err().contains("2000"));
        tree.add_content("d/f0", "x".repeat(BYTES_MAX)).unwrap();
        assert!(tree.add_content("d/f1", "x".to_owned()).unwrap_err().contains("16 MiB"));
        let mut tree = Tree::default();
        let mut deepest = String::new();
        while let Some(deeper) = tree.add(&deepest, "d", "directory").unwrap() {
            deepest = deeper;
        }
        assert_eq!(deepest.split('/').count(), DEPTH_MAX);
    }

    #[test]
    fn path_of_a_manifest_stays_inside_of_the_plugin() {
        assert_eq!(inside("./a//b/.").as_deref(), Ok("a/b"));
        assert_eq!(inside("./").as_deref(), Ok(""));
        for hostile in ["../a", "a/../..", "/a", "\\a", "~/a", "C:/a", "file:///a", "a\\b", "a/\u{1}"] {
            assert!(inside(hostile).is_err(), "{hostile:?}");
        }
    }
}
