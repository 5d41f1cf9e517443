//! Pending changes of a watched folder.
//!
//! Owns: the changes since the last report, one per path, and the merging of further ones.
//! Never: accesses a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ahp_types::state::ResourceChangeType;

/// Maximum number of changes reported at once; more become one update of their common folder.
pub const ITEMS_MAX: usize = 1000;

/// Changes below a folder, by their relative paths.
#[derive(Debug, Default)]
pub struct PathChanges {
    changes: BTreeMap<PathBuf, ResourceChangeType>,
    /// Common folder of all changes, set once there are more than [`ITEMS_MAX`].
    all_in: Option<PathBuf>,
}

impl PathChanges {
    /// Adds a change, merged with the pending change of the same path.
    pub fn add(&mut self, path: &Path, kind: ResourceChangeType) {
        if let Some(all_in) = &mut self.all_in {
            let folder = path.parent().unwrap_or(path);
            while !folder.starts_with(&*all_in) {
                all_in.pop();
            }
            return;
        }
        if kind == ResourceChangeType::Deleted {
            let inside =
                self.changes.range(path.to_owned()..).take_while(|(other, _)| other.starts_with(path));
            let inside: Vec<PathBuf> =
                inside.map(|(other, _)| other.clone()).filter(|it| it != path).collect();
            for other in inside {
                self.changes.remove(&other);
            }
        }
        let before = self.changes.remove(path);
        let now = match (before, kind) {
            (Some(ResourceChangeType::Added), ResourceChangeType::Deleted) => None,
            (Some(ResourceChangeType::Added), ResourceChangeType::Updated | ResourceChangeType::Added) => {
                Some(ResourceChangeType::Added)
            }
            (Some(ResourceChangeType::Deleted), ResourceChangeType::Added) => {
                Some(ResourceChangeType::Updated)
            }
            (_, kind) => Some(kind),
        };
        self.changes.extend(now.map(|now| (path.to_owned(), now)));
        if self.changes.len() > ITEMS_MAX {
            let mut all = std::mem::take(&mut self.changes).into_keys();
            let first = all.next().and_then(|path| path.parent().map(Path::to_owned));
            self.all_in = Some(first.unwrap_or_default());
            all.for_each(|path| self.add(&path, ResourceChangeType::Updated));
        }
    }

    /// Returns whether no change is pending.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.all_in.is_none()
    }

    /// Takes the pending changes, sorted by path.
    pub fn take(&mut self) -> Vec<(PathBuf, ResourceChangeType)> {
        let Self { changes, all_in } = std::mem::take(self);
        match all_in {
            Some(all_in) => vec![(all_in, ResourceChangeType::Updated)],
            None => changes.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ResourceChangeType::{Added, Deleted, Updated};

    fn merged(changes: &[(&str, ResourceChangeType)]) -> Vec<(String, ResourceChangeType)> {
        let mut all = PathChanges::default();
        changes.iter().for_each(|(path, kind)| all.add(Path::new(path), *kind));
        let merged = all.take();
        assert!(all.is_empty());
        merged.into_iter().map(|(path, kind)| (path.display().to_string(), kind)).collect()
    }

    #[test]
    fn path_that_changes_twice_is_reported_once() {
        for (one, two, expected) in [
            (Added, Updated, Some(Added)),
            (Added, Deleted, None),
            (Updated, Updated, Some(Updated)),
            (Updated, Deleted, Some(Deleted)),
            (Deleted, Added, Some(Updated)),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|kind| ("a".to_owned(), kind)).collect();
            assert_eq!(merged(&[("a", one), ("a", two)]), expected, "{one:?} {two:?}");
        }
        let inside = [("a/b", Added), ("a/c", Updated), ("a-b", Added), ("a", Deleted)];
        assert_eq!(merged(&inside), [("a".to_owned(), Deleted), ("a-b".to_owned(), Added)]);
        assert_eq!(merged(&[("a", Added), ("a/b", Added), ("a", Deleted)]), []);
    }

    #[test]
    fn too_many_changes_become_one_of_their_common_folder() {
        let many = |count: usize, more: &[&str]| {
            let paths: Vec<String> = (0..count).map(|at| format!("a/b/{at}")).collect();
            let all = paths.iter().map(String::as_str).chain(more.iter().copied());
            merged(&all.map(|path| (path, Added)).collect::<Vec<_>>())
        };
        assert_eq!(many(ITEMS_MAX, &[]).len(), ITEMS_MAX);
        assert_eq!(many(ITEMS_MAX + 1, &[]), [("a/b".to_owned(), Updated)]);
        assert_eq!(many(ITEMS_MAX + 1, &["a/b/c/d"]), [("a/b".to_owned(), Updated)]);
        assert_eq!(many(ITEMS_MAX + 1, &["a/c"]), [("a".to_owned(), Updated)]);
        assert_eq!(many(ITEMS_MAX, &["c"]), [(String::new(), Updated)]);
    }
}
