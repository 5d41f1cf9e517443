//! File edits for clients: whole files before and after a change.
//!
//! Agents report a change as a whole file, as some lines with their context, or as a bare snippet,
//! without stating which. The changed file itself is searched for the reported text.
//!
//! Owns: this search, on a thread because file systems may be slow; and the limits on edits.
//! Never: presents a snippet as a whole file, since clients revert a change by writing the former
//! content; never writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::future::Future;
use std::io::Read;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use agent_client_protocol_schema::v1::Diff;
use ahp_types::state::{FileEdit, FileEditSide, ToolResultContent, ToolResultFileEditContent};
use tokio::time::timeout;

use super::extra_meta;
use crate::files::uris::uri_of;
use crate::host::effects::{CallExtras, Event, TurnEvent};
use crate::os::blocking::on_a_thread;
use crate::state::edits::inline;

/// Maximum size of a shown file, in bytes: the chat's state holds it twice.
const FILE_BYTES_MAX: u64 = 64 << 10;

const FILES_MAX: usize = 16;

const SEARCH_TIMEOUT: Duration = Duration::from_millis(500);

/// Former text (`None` if there was none) and new text.
type EditSides<'a> = (Option<&'a str>, &'a str);

/// Moment at which a changed file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditPhase {
    Before,
    After,
}

/// Search for the file edits of the next event.
#[derive(Default)]
pub enum EditLookup {
    #[default]
    Idle,
    Running(Pin<Box<dyn Future<Output = Vec<FileEdit>> + Send>>),
    Done,
}

impl EditLookup {
    pub fn begin(diffs: Vec<Diff>, phase: EditPhase) -> Self {
        Self::Running(Box::pin(find(diffs, phase)))
    }

    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    /// Waits for the result of the search; pending forever if none is running.
    pub async fn found(&mut self) -> Vec<FileEdit> {
        match self {
            Self::Running(search) => search.await,
            Self::Idle | Self::Done => std::future::pending().await,
        }
    }
}

/// Adds edits to the output of a finished call, or to the extras of any other event.
pub fn with_edits(event: Event, edits: Vec<FileEdit>) -> Event {
    let Event::Turn(run, event) = event else { return event };
    let (mut event, mut besides) = match event {
        TurnEvent::With(event, besides) => (*event, besides),
        event => (event, CallExtras::default()),
    };
    match &mut event {
        TurnEvent::ToolDone { outcome, .. } => outcome.content.extend(edits.into_iter().map(|edit| {
            let FileEdit { before, after, diff } = edit;
            ToolResultContent::FileEdit(ToolResultFileEditContent { before, after, diff })
        })),
        _ => besides.edits = edits,
    }
    Event::Turn(run, extra_meta::with(event, besides))
}

/// Converts diffs to file edits, leaving out those that cannot be shown.
async fn find(diffs: Vec<Diff>, phase: EditPhase) -> Vec<FileEdit> {
    let look = move || {
        let mut files: BTreeMap<&Path, Vec<EditSides<'_>>> = BTreeMap::new();
        // The base of a relative path is unknown.
        for diff in diffs.iter().filter(|diff| diff.path.is_absolute()) {
            files.entry(&diff.path).or_default().push((diff.old_text.as_deref(), &diff.new_text));
        }
        let files = files.into_iter().take(FILES_MAX);
        files.filter_map(|(path, changes)| edit(path, &changes, phase)).collect()
    };
    match timeout(SEARCH_TIMEOUT, on_a_thread(look)).await {
        Ok(Ok(edits)) => return edits,
        Ok(Err(error)) => tracing::error!(%error, "the contents of changed files cannot be read"),
        Err(_) => tracing::debug!("a changed file is shown without contents: the file system took too long"),
    }
    Vec::new()
}

/// Merges the changes of one file; `None` if they cannot be shown.
fn edit(path: &Path, changes: &[EditSides<'_>], phase: EditPhase) -> Option<FileEdit> {
    let (before, after) = sides(changes, read(path).as_deref(), phase)?;
    if before == after || [&before, &after].iter().any(|side| is_too_long(side.as_deref())) {
        return None;
    }
    let side = |text: String| FileEditSide { uri: uri_of(path), content: inline(&text) };
    Some(FileEdit { before: before.map(side), after: after.map(side), diff: None })
}

/// Returns the whole file before and after the changes; `None` if it cannot be determined. A side
/// is `None` if the file does not exist there.
fn sides(
    changes: &[EditSides<'_>],
    now: Option<&str>,
    phase: EditPhase,
) -> Option<(Option<String>, Option<String>)> {
    if let [(old, new)] = changes {
        // Agents report a new file without former text, with null, or with an empty text.
        let before = match (old, now, phase) {
            // The file exists already.
            (None, Some(now), EditPhase::Before) => Some(Some(now.to_owned())),
            (None, _, _) | (Some(""), None, _) => Some(None),
            (Some(""), Some(now), EditPhase::After) if now == *new => Some(None),
            _ => None,
        };
        if let Some(before) = before {
            return Some((before, Some((*new).to_owned())));
        }
    }
    let now = now?;
    let mut other = now.to_owned();
    match phase {
        EditPhase::Before => {
            for (old, new) in changes {
                other = put(&other, (*old)?, new)?;
            }
            Some((Some(now.to_owned()), Some(other)))
        }
        EditPhase::After => {
            for (old, new) in changes.iter().rev() {
                other = put(&other, new, (*old)?)?;
            }
            Some((Some(other), Some(now.to_owned())))
        }
    }
}

/// Replaces the only occurrence of `piece` in a text; `None` if there is not exactly one.
fn put(text: &str, piece: &str, other: &str) -> Option<String> {
    if text == piece {
        return Some(other.to_owned());
    }
    let (at, _) = text.match_indices(piece).next().filter(|_| !piece.is_empty())?;
    let rest = &text[at..];
    // Occurrences may overlap.
    let after_first_char = rest.chars().next().map_or(0, char::len_utf8);
    if rest[after_first_char..].contains(piece) {
        return None;
    }
    Some(format!("{}{other}{}", &text[..at], &rest[piece.len()..]))
}

fn is_too_long(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.len() as u64 > FILE_BYTES_MAX)
}

/// Reads a file's text; `None` if it does not exist, is not text, or is too long.
fn read(path: &Path) -> Option<String> {
    let is_read = |file: &fs::Metadata| file.is_file() && file.len() <= FILE_BYTES_MAX;
    fs::metadata(path).ok().filter(is_read)?;
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "one\ntwo\nthree\ntwo and a half\n";

    type Sides = Option<(Option<String>, Option<String>)>;

    fn sides_of(old: Option<&str>, new: &str, now: Option<&str>, phase: EditPhase) -> Sides {
        sides(&[(old, new)], now, phase)
    }

    fn both(before: &str, after: &str) -> Sides {
        Some((Some(before.to_owned()), Some(after.to_owned())))
    }

    #[test]
    fn new_file_is_new_however_it_is_reported() {
        let new = Some((None, Some("x\n".to_owned())));
        for phase in [EditPhase::Before, EditPhase::After] {
            assert_eq!(sides_of(None, "x\n", None, phase), new);
            assert_eq!(sides_of(Some(""), "x\n", None, phase), new);
        }
        assert_eq!(sides_of(None, "x\n", Some("x\n"), EditPhase::After), new);
        assert_eq!(sides_of(Some(""), "x\n", Some("x\n"), EditPhase::After), new);
        assert_eq!(sides_of(Some(""), "x\n", Some(""), EditPhase::Before), both("", "x\n"));
        assert_eq!(sides_of(None, "x\n", Some(FILE), EditPhase::Before), both(FILE, "x\n"));
    }

    #[test]
    fn a_whole_file_and_a_piece_of_it_are_the_same_change() {
        let after = FILE.replace("three", "3");
        for (old, new) in [(FILE, after.as_str()), ("two\nthree\n", "two\n3\n"), ("three", "3")] {
            assert_eq!(sides_of(Some(old), new, Some(FILE), EditPhase::Before), both(FILE, &after), "{old}");
            assert_eq!(sides_of(Some(old), new, Some(&after), EditPhase::After), both(FILE, &after), "{old}");
        }
        // An insertion, reported without its context.
        let before = FILE.replace("three\n", "");
        assert_eq!(sides_of(Some(""), "three\n", Some(FILE), EditPhase::After), both(&before, FILE));
    }

    #[test]
    fn changes_of_one_file_are_one_change() {
        let after = "1\ntwo\n3\ntwo and a half\n";
        let changes = [(Some("one\n"), "1\n"), (Some("three\n"), "3\n")];
        assert_eq!(sides(&changes, Some(FILE), EditPhase::Before), both(FILE, after));
        assert_eq!(sides(&changes, Some(after), EditPhase::After), both(FILE, after));
        // One of the changes does not fit the file.
        let changes = [(Some("one\n"), "1\n"), (None, "3\n")];
        assert_eq!(sides(&changes, Some(FILE), EditPhase::Before), None);
    }

    #[tokio::test]
    async fn a_path_that_leads_from_nowhere_is_not_followed() {
        let diff = |path: &str| Diff::new(path, "new\n");
        let found =
            find(vec![diff("there"), diff(""), diff("../there"), diff("/no/such")], EditPhase::After).await;
        let found: Vec<_> =
            found.iter().filter_map(|edit| edit.after.as_ref()).map(|side| &*side.uri).collect();
        assert_eq!(found, ["file:///no/such"]);
    }

    #[test]
    fn what_is_not_known_is_not_shown() {
        // There are two occurrences, or none.
        assert_eq!(sides_of(Some("two"), "2", Some(FILE), EditPhase::Before), None);
        assert_eq!(sides_of(Some("four"), "4", Some(FILE), EditPhase::Before), None);
        assert_eq!(sides_of(Some("aa"), "b", Some("aaa"), EditPhase::Before), None);
        // The position of removed text is unknown.
        assert_eq!(sides_of(Some("four\n"), "", Some(FILE), EditPhase::After), None);
        // The file is gone, or cannot be read.
        assert_eq!(sides_of(Some("one"), "1", None, EditPhase::After), None);
    }
}
