//! Checkpoints of a session's folder, as saved with the session.
//!
//! Owns: the checkpoints of turns, their namespace in git, and the ids of contents, which clients
//! can use but not forge.
//! Never: requests anything from git.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ahp_types::commands::ContentEncoding;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::host::effects::{Checkpoint, GitContent, IncomparableFile, Resource};
use crate::host::ledger::Ledger;
use crate::wire::errors::RpcError;
use crate::wire::uris::{content_uri, file_of_content, parse_content_uri};

/// Maximum number of turns with checkpoints in a session. Beyond it the oldest are dropped, except
/// the first turn.
const TURNS_MAX: usize = 1000;

/// Checkpoints of a session in the repository of its folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointedFolder {
    /// `file:` URI of the repository's folder; `None` if no repository is used.
    root: Option<String>,
    /// Folders of repositories that the session has left. They contain its refs until it is
    /// deleted: they may share these with the repository that it uses now.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    left: BTreeSet<String>,
    /// Branch that was checked out when the repository was first seen; `None` if none was.
    base: Option<String>,
    /// Set once the repository was seen, so that a branch that is checked out later is not `base`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_base_known: bool,
    /// Namespace of the session's checkpoints in the names of git refs.
    #[serde(rename = "keeper")]
    pub(super) namespace: String,
    /// Hash key for the ids of contents, so that clients cannot forge one.
    pub(super) secret: String,
    pub(super) count: u64,
    /// Newest checkpoint; `None` if the folder may have changed since in an unknown way.
    pub(super) last: Option<Checkpoint>,
    /// Set while checkpoints after turns or reverts are in flight, to repeat them after a restart.
    pub(super) is_asked: bool,
    /// Set if the session was imported, or restored from the trash, and has no refs in git yet.
    /// Refs under its earlier name may belong to another session, or be removed with it.
    #[serde(rename = "isBrought")]
    pub(super) is_imported: bool,
    /// Set if the first of these turns is the first of the session.
    pub(super) is_whole: bool,
    pub(super) turns: Vec<CheckpointedTurn>,
    /// Reason why checkpoints are missing, for people.
    note: Option<String>,
}

/// Checkpoints of a turn. A turn that a fork has copied counts once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckpointedTurn {
    /// URI of the chat, or the name of one that was disposed of: another chat may get its URI.
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
    #[serde(default, rename = "unseen", skip_serializing_if = "Vec::is_empty")]
    pub(super) incomparable: Vec<IncomparableFile>,
}

impl CheckpointedTurn {
    /// Returns the checkpoints before and after it, between which only its changes are; `None`
    /// before its end, and if others ran at the same time.
    pub(super) fn pair(&self) -> Option<(&Checkpoint, &Checkpoint)> {
        Some((&self.before, self.after.as_ref().filter(|_| !self.overlaps)?))
    }

    /// Returns the files that git cannot compare, each with its version at the end of the turn.
    pub(super) fn incomparable_files(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.incomparable.iter().map(|file| (file.file.as_str(), file.version.as_deref()))
    }
}

impl CheckpointedFolder {
    /// Returns the `file:` URI of the repository's folder; `None` if no repository is used.
    pub(in crate::host) fn root(&self) -> Option<&String> {
        self.root.as_ref()
    }

    /// Returns the branch that the session began on; `None` if it began on none.
    pub(super) fn base(&self) -> Option<&String> {
        self.base.as_ref()
    }

    /// Returns the reason why checkpoints are missing, for people.
    pub(super) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Notes the repository and the branch that git has seen. Only what is seen first counts.
    /// Returns whether this is new.
    pub(super) fn note_repository(&mut self, root: &str, branch: Option<&String>) -> bool {
        let is_new = self.root.is_none() || !self.is_base_known;
        self.root.get_or_insert_with(|| root.to_owned());
        if !std::mem::replace(&mut self.is_base_known, true) && self.base.is_none() {
            self.base = branch.cloned();
        }
        is_new
    }

    /// Notes why there is no checkpoint of a folder without a repository. Returns whether this is
    /// new.
    pub(super) fn note_trouble(&mut self, why: &str) -> bool {
        let is_new = self.root.is_none() && self.note.is_none();
        if is_new {
            self.note = Some(why.to_owned());
        }
        is_new
    }

    /// Notes a checkpoint before a turn in this repository. `is_first`: the turn is the first of
    /// the session.
    pub(super) fn begin_turn(&mut self, root: String, is_first: bool, turn: CheckpointedTurn) {
        if self.root.as_ref() != Some(&root) || self.turns.is_empty() {
            // Checkpoints of another repository contain other files.
            self.is_whole = is_first;
            self.turns.clear();
        }
        self.leave_repository();
        self.left.remove(&root);
        (self.root, self.note, self.last) = (Some(root), None, Some(turn.before.clone()));
        self.add_turn(turn);
    }

    /// Notes that a turn begins without a checkpoint, for this reason, or because there is no
    /// repository.
    pub(super) fn begin_turn_without(&mut self, why: Option<String>) {
        if why.is_none() {
            self.leave_repository();
        }
        (self.note, self.last) = (why, None);
    }

    fn leave_repository(&mut self) {
        self.left.extend(self.root.take());
    }

    /// Notes the end of a requested checkpoint; the error is the reason why it was not taken, for
    /// people. `others`: other ones are in flight.
    pub(super) fn end_request(&mut self, taken: Result<Checkpoint, String>, others: bool) {
        (self.last, self.note) = match taken {
            Ok(checkpoint) => (Some(checkpoint), None),
            Err(why) => (None, Some(why)),
        };
        self.is_asked = others;
    }

    /// Returns the namespace of the session's refs, with the folders of the repositories that have
    /// such.
    pub(super) fn namespaces(&self) -> (&str, impl Iterator<Item = &String>) {
        let roots = self.root.iter().chain(&self.left);
        (&self.namespace, roots.filter(|_| !self.namespace.is_empty()))
    }

    /// Returns the checkpoints of a turn, to change them.
    pub(super) fn turn_mut(&mut self, chat: &str, turn: &str) -> Option<&mut CheckpointedTurn> {
        self.turns.iter_mut().rev().find(|it| it.turn == turn && it.chat == chat)
    }

    /// Gives the turns of a disposed chat a name that no other chat has; forks still find them.
    /// Returns the name; `None` if there are no such turns.
    pub(super) fn release_chat(&mut self, uri: &str) -> Option<String> {
        let mut of_chat = self.turns.iter_mut().filter(|turn| turn.chat == uri).peekable();
        of_chat.peek()?;
        self.count += 1;
        // No URI begins so.
        let name = format!("\0{}", self.count);
        of_chat.for_each(|turn| turn.chat.clone_from(&name));
        Some(name)
    }

    /// Marks the session as imported: its checkpoints need refs under a new name.
    pub(in crate::host) fn mark_imported(&mut self) {
        if !self.namespace.is_empty() {
            self.namespace.clear();
            self.left.clear();
            self.is_imported = true;
        }
    }

    /// Returns the ids of all checkpoints, oldest first.
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

    /// Returns the checkpoints of a turn. A turn of a fork may have run in another chat.
    pub(super) fn of_turn(&self, chat: &str, turn: &str, is_fork: bool) -> Option<&CheckpointedTurn> {
        let mut of_id = self.turns.iter().rev().filter(|it| it.turn == turn);
        let in_chat = of_id.clone().find(|it| it.chat == chat);
        in_chat.or_else(|| of_id.next().filter(|_| is_fork))
    }

    /// Returns the checkpoint after a turn, whatever ran at the same time.
    pub(super) fn after_turn(&self, chat: &str, turn: &str) -> Option<&Checkpoint> {
        let mut turns = self.turns.iter().rev();
        turns.find(|it| it.turn == turn && it.chat == chat)?.after.as_ref()
    }

    /// Returns the files that git cannot compare and that any turn has changed, each with its
    /// version at that time.
    pub(super) fn incomparable_files(&self) -> BTreeMap<&str, Option<&str>> {
        self.turns.iter().flat_map(CheckpointedTurn::incomparable_files).collect()
    }

    /// Allocates the number of the next ref, of a checkpoint or of retained contents; returns it
    /// with the namespace.
    pub(in crate::host) fn next_ref(&mut self) -> (String, u64) {
        self.count += 1;
        (self.namespace.clone(), self.count)
    }

    fn add_turn(&mut self, turn: CheckpointedTurn) {
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

    /// Returns the URI by which clients read a content that git stores. `side` and `file` are
    /// for people.
    pub(in crate::host) fn uri_of(
        &self,
        session: &str,
        content: &GitContent,
        side: &str,
        file: &str,
    ) -> String {
        content_uri(session, &self.id_of(content), side, file)
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
    let root = checkpoints.root().cloned().ok_or_else(gone)?;
    let file = file_of_content(uri).unwrap_or_default();
    Ok(Some(Resource::GitContent { uri: uri.to_owned(), root, content, file, encoding }))
}
