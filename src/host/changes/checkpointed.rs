//! Checkpoints of a session's folder, as saved with the session.
//!
//! Owns: the checkpoints of turns, their namespace in git, and the ids of contents, which clients
//! can use but not forge.
//! Never: requests anything from git.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ahp_types::commands::ContentEncoding;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::host::effects::{Checkpoint, GitContent, Resource, UnseenFile};
use crate::host::ledger::Ledger;
use crate::wire::errors::RpcError;
use crate::wire::uris::{content_uri, file_of_content, parse_content_uri};

/// Maximum number of turns with checkpoints in a session. Beyond it the oldest are dropped, except
/// the first turn.
const TURNS_MAX: usize = 1000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointedFolder {
    /// `file:` URI of the repository's folder; `None` if no repository is used.
    pub(in crate::host) root: Option<String>,
    /// Branch that was checked out when the repository was first seen; `None` if none was.
    pub(in crate::host) base: Option<String>,
    /// Namespace of the session's checkpoints in the names of git refs.
    #[serde(rename = "keeper")]
    pub(super) namespace: String,
    /// Hash key for the ids of contents, so that clients cannot forge one.
    pub(super) secret: String,
    pub(super) count: u64,
    /// Newest checkpoint; `None` if the folder may have changed since in an unknown way.
    pub(super) last: Option<Checkpoint>,
    /// Set while a checkpoint after a turn or revert is in flight, to repeat it after a restart.
    pub(super) is_asked: bool,
    /// Set if the session was imported, or restored from the trash, and has no refs in git yet.
    /// Refs under its earlier name may belong to another session, or be removed with it.
    #[serde(rename = "isBrought")]
    pub(super) is_imported: bool,
    /// Set if the first of these turns is the first of the session.
    pub(super) is_whole: bool,
    pub(super) turns: Vec<CheckpointedTurn>,
    /// Reason why checkpoints are missing, for people.
    pub(in crate::host) note: Option<String>,
}

/// Checkpoints of a turn. A turn that a fork has copied counts once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckpointedTurn {
    pub(super) chat: String,
    pub(super) turn: String,
    pub(super) before: Checkpoint,
    pub(super) after: Option<Checkpoint>,
    /// Set if another turn ran in the repository at the same time.
    #[serde(default)]
    pub(super) overlaps: bool,
    /// Set if a turn of another session did.
    #[serde(default)]
    pub(super) overlaps_others: bool,
    /// Files that its calls have changed and git cannot compare, as of its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unseen: Vec<UnseenFile>,
}

impl CheckpointedFolder {
    pub(super) fn turn_mut(&mut self, chat: &str, turn: &str) -> Option<&mut CheckpointedTurn> {
        self.turns.iter_mut().rev().find(|it| it.turn == turn && it.chat == chat)
    }

    /// Marks the session as imported: its checkpoints need refs under a new name.
    pub(in crate::host) fn mark_imported(&mut self) {
        if !self.namespace.is_empty() {
            self.namespace.clear();
            self.is_imported = true;
        }
    }

    pub(super) fn commit_ids(&self) -> Vec<String> {
        let mut known: Vec<String> = Vec::new();
        let of_turns = self.turns.iter().flat_map(|turn| std::iter::once(&turn.before).chain(&turn.after));
        for state in of_turns.chain(&self.last) {
            if !known.contains(&state.commit) {
                known.push(state.commit.clone());
            }
        }
        known
    }

    /// Returns the first and last checkpoint; `None` if other sessions have changed the folder,
    /// too.
    pub(super) fn whole_session(&self) -> Option<(&Checkpoint, &Checkpoint)> {
        let is_separable = !self.turns.iter().any(|turn| turn.overlaps_others);
        let first = self.turns.first().filter(|_| self.is_whole && is_separable)?;
        Some((&first.before, self.last.as_ref()?))
    }

    /// Returns the checkpoints before and after a completed turn. A turn of a fork may have run in
    /// another chat.
    pub(super) fn of_turn(
        &self,
        chat: &str,
        turn: &str,
        is_fork: bool,
    ) -> Option<(&Checkpoint, &Checkpoint)> {
        let mut of_chat = self.turns.iter().rev().filter(|it| it.turn == turn);
        let in_chat = of_chat.clone().find(|it| it.chat == chat);
        let found = in_chat.or_else(|| of_chat.next().filter(|_| is_fork))?;
        Some((&found.before, found.after.as_ref().filter(|_| !found.overlaps)?))
    }

    pub(super) fn after_turn(&self, chat: &str, turn: &str) -> Option<&Checkpoint> {
        let mut turns = self.turns.iter().rev();
        turns.find(|it| it.turn == turn && it.chat == chat)?.after.as_ref()
    }

    /// Returns the files that git cannot compare and that a turn, or any if `None`, has changed;
    /// each with its version at that time.
    pub(in crate::host) fn unseen_in(&self, turn: Option<&str>) -> BTreeMap<&str, Option<&str>> {
        let turns = self.turns.iter().filter(|it| turn.is_none_or(|turn| it.turn == turn));
        let files = turns.flat_map(|it| &it.unseen);
        files.map(|unseen| (unseen.file.as_str(), unseen.version.as_deref())).collect()
    }

    /// Allocates the number of the next checkpoint; returns it with the namespace.
    pub(in crate::host) fn next_checkpoint(&mut self) -> (String, u64) {
        self.count += 1;
        (self.namespace.clone(), self.count)
    }

    pub(super) fn add_turn(&mut self, turn: CheckpointedTurn) {
        match self.turn_mut(&turn.chat, &turn.turn) {
            Some(known) => known.after = None,
            None => self.turns.push(turn),
        }
        if self.turns.len() > TURNS_MAX {
            self.turns.remove(1);
        }
    }

    fn id_of(&self, content: &GitContent) -> String {
        let (mode, blob) = (content.mode, &content.blob);
        let mut hash = Sha256::new();
        hash.update(format!("{} {mode:o} {blob}", self.secret));
        let mut id = format!("{mode:o}-{blob}-");
        for byte in &hash.finalize()[..16] {
            write!(id, "{byte:02x}").unwrap_or_default();
        }
        id
    }

    /// Returns the content with this id if the host has issued it.
    pub(super) fn content_of(&self, id: &str) -> Option<GitContent> {
        let mut parts = id.split('-');
        let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
        let content = GitContent { blob: parts.next()?.to_owned(), mode };
        (self.id_of(&content) == id).then_some(content)
    }

    pub(in crate::host) fn uri_of(
        &self,
        session: &str,
        content: &GitContent,
        side: &str,
        path: &str,
    ) -> String {
        content_uri(session, &self.id_of(content), side, path)
    }
}

/// Returns the request for a content that git stores; `None` if the URI names no such content.
/// Fails with `-32008` if the host has not issued the URI, or its session does not exist.
pub(in crate::host) fn checkpointed_content(
    ledger: &Ledger,
    uri: &str,
    encoding: Option<Option<ContentEncoding>>,
) -> Result<Option<Resource>, RpcError> {
    let Some((channel, id)) = parse_content_uri(uri) else { return Ok(None) };
    let Some(key) = ledger.find(&channel).and_then(|channel| channel.session()) else {
        return Ok(None);
    };
    let gone = || RpcError::resource_not_found(uri);
    let checkpoints = &ledger.channels.sessions.known(key).ok_or_else(gone)?.checkpoints;
    let content = checkpoints.content_of(&id).ok_or_else(gone)?;
    let root = checkpoints.root.clone().ok_or_else(gone)?;
    let file = file_of_content(uri).unwrap_or_default();
    Ok(Some(Resource::Kept { uri: uri.to_owned(), root, content, file, encoding }))
}
