//! The step that edits files.
//!
//! Owns: the writes, and the reported content before and after them.
//! Never: touches a file outside the agent's working directories.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ahp_types::common::JsonObject;
use ahp_types::state::{FileEditSide, ToolResultContent, ToolResultFileEditContent};
use serde_json::{json, Value};

use super::steps::text_content;
use super::{ScriptAgent, Stop};
use crate::files::folders::Folders;
use crate::files::uris::{path_of, uri_of};
use crate::host::effects::{CallExtras, ToolGate, ToolOutcome, TurnEvent};
use crate::state::edits::inline;
use crate::wire::tool_calls::{KIND, LOCATIONS};

const TOOL: &str = "files";

const SHOWN_BYTES_MAX: u64 = 64 << 10;

/// File name with its new content; `None` to remove the file.
type WantedFile = (String, Option<String>);

impl ScriptAgent {
    /// Reports a tool call that writes and removes files.
    pub(super) async fn write_files(&mut self, rest: &str) -> Result<(), Stop> {
        let wanted = wanted_by(rest)?;
        let directories: Vec<PathBuf> =
            self.working_directories.iter().filter_map(|uri| path_of(uri).ok()).collect();
        let Some(first) = directories.first().cloned() else {
            return Err(Stop::mistake("/files: the session has no directory to work in"));
        };
        let id = self.next_call();
        let (name, display_name) = (TOOL.to_owned(), "Files".to_owned());
        let started = TurnEvent::ToolStarted { id: id.clone(), name, display_name };
        let kind = (KIND.to_owned(), Value::from("edit"));
        let meta = JsonObject::from_iter([kind.clone()]);
        self.report_turn(TurnEvent::With(Box::new(started), CallExtras { meta, ..CallExtras::default() }))
            .await?;
        let ready = TurnEvent::ToolReady {
            id: id.clone(),
            input: rest.to_owned(),
            message: "Write files".into(),
            gate: ToolGate::Open,
        };
        self.report_turn(ready).await?;
        // Runs synchronously, so that a script always gives the same result.
        let (outcome, unshown) = match write_all(&Folders::new(directories), &first, &wanted) {
            Ok(WrittenFiles { content, unshown }) => {
                let message = "Wrote files".into();
                (ToolOutcome { success: true, message, content, error: None }, unshown)
            }
            Err(error) => {
                let (message, content) = ("Could not write files".into(), text_content(&error));
                (ToolOutcome { success: false, message, content, error: Some(error) }, Vec::new())
            }
        };
        let done = TurnEvent::ToolDone { id, outcome, review: false };
        if unshown.is_empty() {
            return self.finish(done).await;
        }
        let places: Vec<Value> = unshown.iter().map(|path| json!({ "path": path })).collect();
        let meta = JsonObject::from_iter([kind, (LOCATIONS.to_owned(), places.into())]);
        self.finish(TurnEvent::With(Box::new(done), CallExtras { meta, ..CallExtras::default() })).await
    }
}

fn wanted_by(rest: &str) -> Result<Vec<WantedFile>, Stop> {
    let words = shell_words::split(rest).map_err(|error| Stop::mistake(format!("/files: {error}")))?;
    let wanted = words.into_iter().map(|word| match word.split_once('=') {
        Some((name, text)) if !name.is_empty() => {
            Ok((name.to_owned(), (!text.is_empty()).then(|| format!("{text}\n"))))
        }
        _ => Err(Stop::mistake(format!("/files: `{word}` is not NAME=TEXT"))),
    });
    wanted.collect()
}

#[derive(Debug, Default)]
struct WrittenFiles {
    /// Edits with the content before and after.
    content: Vec<ToolResultContent>,
    /// Changed files whose former content is too long to show, or not text.
    unshown: Vec<PathBuf>,
}

/// Writes or removes the files in order; stops at the first failure.
fn write_all(folders: &Folders, first: &Path, wanted: &[WantedFile]) -> Result<WrittenFiles, String> {
    let mut written = WrittenFiles::default();
    for (name, text) in wanted {
        let path = first.join(name);
        let failed = |why: &dyn std::fmt::Display| format!("{name}: {why}");
        let before = match folders.open(&path) {
            Ok(file) => Some(text_in(file).map_err(|error| failed(&error))?),
            Err(refusal) if refusal.is_missing() => None,
            Err(refusal) => return Err(failed(&refusal)),
        };
        let done = match text {
            Some(text) => folders.write(&path, text.as_bytes()),
            None if before.is_some() => folders.remove(&path, false),
            None => Ok(()),
        };
        done.map_err(|refusal| failed(&refusal))?;
        let before = match before {
            None => None,
            Some(Some(before)) => Some(before),
            Some(None) => {
                written.unshown.push(path);
                continue;
            }
        };
        if before != *text {
            let side = |text: &String| FileEditSide { uri: uri_of(&path), content: inline(text) };
            written.content.push(ToolResultContent::FileEdit(ToolResultFileEditContent {
                before: before.as_ref().map(side),
                after: text.as_ref().map(side),
                diff: None,
            }));
        }
    }
    Ok(written)
}

/// Reads a file as text; `None` if it is too long to show, or not UTF-8.
fn text_in(file: File) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= SHOWN_BYTES_MAX))
}
