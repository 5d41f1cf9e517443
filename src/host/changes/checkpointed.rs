//! Checkpoints of a session's folder, as they are saved with the session.
//!
//! Owns: which checkpoints of which turns there are, their namespace in git, and the ids of
//! contents, which clients can use and cannot make up.
//! Never: asks git for anything.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ahp_types::commands::ContentEncoding;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::host::effects::{Checkpoint, GitContent, Resource, UnseenFile};
use crate::host::ledger::Ledger;
use crate::wire::errors::RpcError;
use crate::wire::uris::{content_uri, file_of_content, parse_content_uri};

/// Maximum number of turns of a session with checkpoints; the oldest go first, but for the first
/// one.
const TURNS_MAX: usize = 1000;

/// Git checkpoints of a session's folder. Saved with the session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointedFolder {
    /// The `file:` URI of the repository's folder; none where there is no repository that is used.
    pub(in crate::host) root: Option<String>,
    /// The branch that was checked out when the session began.
    pub(in crate::host) base: Option<String>,
    /// Namespace of this session's checkpoints in the names of git's refs.
    pub(super) keeper: String,
    /// Key that the ids of contents are hashed with, so that no client can make one up.
    pub(super) secret: String,
    /// Number of checkpoints that were started.
    pub(super) count: u64,
    /// The newest state; none when it is not known what has become of the folder since.
    pub(super) last: Option<Checkpoint>,
    /// Set while a checkpoint behind a turn, or behind a revert, is in flight; a host that ends
    /// meanwhile does not learn its outcome.
    pub(super) is_asked: bool,
    /// The session was brought in, or back from the trash: nothing of what is known here is kept
    /// for it yet. What is kept by the name that it had may be another session's, or goes with one.
    pub(super) is_brought: bool,
    /// Set when the first of these turns was the first of the session.
    pub(super) is_whole: bool,
    /// The turns of which something is kept, in the order in which they began.
    pub(super) turns: Vec<CheckpointedTurn>,
    /// Why not all of it is known, for people.
    pub(in crate::host) note: Option<String>,
}

/// Checkpoints of a turn. A turn that a fork has copied counts once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckpointedTurn {
    /// The URI of the chat in which it ran.
    pub(super) chat: String,
    pub(super) turn: String,
    pub(super) before: Checkpoint,
    pub(super) after: Option<Checkpoint>,
    /// Another turn ran in the repository at the same time.
    #[serde(default)]
    pub(super) overlaps: bool,
    /// One of another session did.
    #[serde(default)]
    pub(super) overlaps_others: bool,
    /// Files that its calls have changed and at which git does not look, as they were when it
    /// ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unseen: Vec<UnseenFile>,
}

impl CheckpointedFolder {
    pub(super) fn turn_mut(&mut self, chat: &str, turn: &str) -> Option<&mut CheckpointedTurn> {
        self.turns.iter_mut().rev().find(|it| it.turn == turn && it.chat == chat)
    }

    /// The session comes from elsewhere: what is known is to be kept under another name.
    pub(in crate::host) fn is_brought(&mut self) {
        if !self.keeper.is_empty() {
            self.keeper.clear();
            self.is_brought = true;
        }
    }

    /// The states that are known, the first ones first.
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

    /// Returns the checkpoints before and after all of the session.
    pub(super) fn whole_session(&self) -> Option<(&Checkpoint, &Checkpoint)> {
        let is_separable = !self.turns.iter().any(|turn| turn.overlaps_others);
        let first = self.turns.first().filter(|_| self.is_whole && is_separable)?;
        Some((&first.before, self.last.as_ref()?))
    }

    /// From what to what a turn has gone that is over. One that a fork has may have run in another
    /// chat.
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

    /// Returns the checkpoint after a turn.
    pub(super) fn after_turn(&self, chat: &str, turn: &str) -> Option<&Checkpoint> {
        let mut turns = self.turns.iter().rev();
        turns.find(|it| it.turn == turn && it.chat == chat)?.after.as_ref()
    }

    /// Returns the files at which git does not look and that were changed in a turn, or in any: of
    /// each the version that it was then.
    pub(in crate::host) fn unseen_in(&self, turn: Option<&str>) -> BTreeMap<&str, Option<&str>> {
        let turns = self.turns.iter().filter(|it| turn.is_none_or(|turn| it.turn == turn));
        let files = turns.flat_map(|it| &it.unseen);
        files.map(|unseen| (unseen.file.as_str(), unseen.version.as_deref())).collect()
    }

    /// Returns the namespace and the number of the next checkpoint.
    pub(in crate::host) fn next_checkpoint(&mut self) -> (String, u64) {
        self.count += 1;
        (self.keeper.clone(), self.count)
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

    /// Returns the id of a content, which clients can use and cannot make up.
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

    /// The content that is called so, if it was ever given out.
    pub(super) fn content_of(&self, id: &str) -> Option<GitContent> {
        let mut parts = id.split('-');
        let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
        let content = GitContent { blob: parts.next()?.to_owned(), mode };
        (self.id_of(&content) == id).then_some(content)
    }

    /// The URI of a content of a side of a file.
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

/// Returns the request for a content that git has; `None` where a URI names no such content.
///
/// # Errors
/// `-32008` when it was never given out, or its session is not there.
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
