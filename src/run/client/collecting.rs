//! Collecting the changes of files that the turns of a run have made.
//!
//! Owns: asking the host for changesets and contents, and writing the patch.
//! Never: decides what a change looks like in a patch.

use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{ChangesetState, ChangesetStatus, SnapshotState};
use anyhow::Context;
use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::json;

use super::{Mirror, RunClient};
use crate::run::changes::{named_in, root_of, RunChanges};
use crate::run::patch::{patch_of, PatchSide};
use crate::run::{RunStop, DISPOSED};
use crate::wire::changesets::{changeset_uri, ChangesetScope};

impl RunClient<'_> {
    /// Collects the changes of all turns, and writes the patch.
    pub(super) async fn collect_changes(&mut self) -> Result<(), RunStop> {
        let turns: Vec<String> = self.summary.turns.iter().map(|turn| turn.id.clone()).collect();
        let mut changes = RunChanges::default();
        for turn in turns {
            match self.changeset_of(turn).await? {
                Ok(state) => changes.add_turn(&state.files),
                Err(reason) => self.summary.changes_unknown = Some(reason),
            }
        }
        let root = root_of(&self.directory).to_owned();
        let mut patch = Vec::new();
        let mut files = Vec::new();
        for mut change in changes.files(&root) {
            if self.job.patch.is_some() {
                let path = &change.summary.path;
                let added = match change.is_inside {
                    true => {
                        self.patch_of(&change.path, change.before.as_deref(), change.after.as_deref()).await?
                    }
                    false => Err("it is outside of the folder".to_owned()),
                };
                match added {
                    Ok(text) => patch.extend(text),
                    Err(reason) => {
                        self.printer.note(&format!("the patch does not have `{path}`: {reason}"));
                        change.summary.not_in_patch = Some(reason);
                    }
                }
            }
            files.push(change.summary);
        }
        if let Some(file) = &self.job.patch {
            file.write(&patch, self.printer).context("--patch").map_err(RunStop::Output)?;
            if let Some(reason) = &self.summary.changes_unknown {
                self.printer.note(&format!("the patch may lack changes: {reason}"));
            }
        }
        self.summary.changes = Some(files);
        Ok(())
    }

    /// Returns the changes of a turn once they are known, or the reason why they are not.
    pub(super) async fn changeset_of(
        &mut self,
        turn: String,
    ) -> Result<Result<ChangesetState, String>, RunStop> {
        let channel = changeset_uri(&self.session.channel, &ChangesetScope::Turn(turn));
        match self.subscribe(&channel).await? {
            Ok((SnapshotState::Changeset(state), seen)) => self.changeset.set(&channel, seen, *state),
            Ok(_) => return Ok(Err(format!("`{channel}` is no changeset"))),
            Err(error) => return Ok(Err(error.message)),
        }
        loop {
            if self.check_not_disposed().is_err() {
                return Ok(Err(DISPOSED.to_owned()));
            }
            match self.changeset.state.as_ref().map(|state| &state.status) {
                Some(ChangesetStatus::Ready) | None => break,
                Some(ChangesetStatus::Error) => break,
                Some(_) => {}
            }
            self.next().await?;
        }
        let state = std::mem::replace(&mut self.changeset, Mirror::new()).state;
        let state = state.context("a changeset has no state")?;
        Ok(match &state.error {
            Some(error) if state.status == ChangesetStatus::Error => Err(error.message.clone()),
            _ => Ok(state),
        })
    }

    /// Returns the patch of a file, or the reason why there is none.
    pub(super) async fn patch_of(
        &mut self,
        path: &[u8],
        before: Option<&str>,
        after: Option<&str>,
    ) -> Result<Result<Vec<u8>, String>, RunStop> {
        let mut sides = [None, None];
        for (side, uri) in sides.iter_mut().zip([before, after]) {
            let Some(uri) = uri else { continue };
            match self.read(uri).await? {
                Ok(content) => {
                    let (mode, id) = named_in(uri);
                    *side = Some(PatchSide { mode, id, content });
                }
                Err(reason) => return Ok(Err(reason)),
            }
        }
        let [before, after] = &sides;
        let patch = patch_of(path, before.as_ref(), after.as_ref());
        Ok(patch.ok_or_else(|| "it is binary, and git does not keep it".to_owned()))
    }

    /// Reads a content from the host.
    pub(super) async fn read(&mut self, uri: &str) -> Result<Result<Vec<u8>, String>, RunStop> {
        let params = json!({ "channel": ROOT_RESOURCE_URI, "uri": uri, "encoding": "base64" });
        Ok(match self.ask("resourceRead", params).await? {
            Ok(read) => {
                let data = read["data"].as_str().unwrap_or_default();
                BASE64_STANDARD.decode(data).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.message),
        })
    }
}
