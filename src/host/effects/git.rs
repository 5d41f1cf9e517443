//! Jobs in repositories of git, and reports about them.
//!
//! Owns: the words of it: [`GitJob`]s and [`GitReport`]s, and what a [`FileDiff<GitContent>`]
//! between two states of a folder is.
//! Never: runs anything, or knows how git is asked.

use serde::{Deserialize, Serialize};

use super::RevertOutcome;
use crate::state::edits::FileDiff;

/// Size above which git does not keep the content of a file, in bytes, unless another one is
/// chosen.
pub const CHECKPOINT_FILE_BYTES_MAX: u64 = 100 << 20;

/// Something to be done with the repository that some directories are in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitJob {
    /// The `file:` URIs of the directories.
    pub directories: Vec<String>,
    /// Time limit, in milliseconds.
    pub within_ms: u64,
    /// Work to do.
    pub work: GitWork,
}

/// Work in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GitWork {
    /// Keep what is in the folder now.
    Checkpoint {
        /// Name of the session in the refs that keep its checkpoints.
        keeper: String,
        /// Number of the checkpoint; later ones have greater numbers.
        number: u64,
        /// The last one of the session: where nothing has changed since, it is taken again.
        last: Option<Checkpoint>,
        /// Earlier ones: what has changed since each of them is told, too.
        since: Vec<Checkpoint>,
        /// The `file:` URIs, or absolute paths, of files that calls say they have changed: those at
        /// which git does not look are told.
        said: Vec<String>,
    },
    /// Comparison of two checkpoints.
    Compare {
        /// The earlier one.
        before: Checkpoint,
        /// The later one.
        after: Checkpoint,
    },
    /// Status of the folder against the commits.
    Look {
        /// The branch that the session began on, if that is known.
        base: Option<String>,
        /// The files are asked for, too, and not only how many they are.
        files: bool,
        /// The `file:` URIs of all files that may have changed since the last look at the files of
        /// this repository; `None` if any may have.
        touched: Option<Vec<String>>,
    },
    /// Commit of all uncommitted changes.
    Commit {
        /// Message.
        message: String,
        /// Uncommitted changes as a client has seen them: nothing is committed if they are
        /// different now.
        shown: Vec<FileDiff<GitContent>>,
        /// The name and number by which contents are kept that the user has staged and changed
        /// again since.
        staged_kept: (String, u64),
    },
    /// The session has come from elsewhere: what is still there of what is known of it is kept for
    /// it, too.
    KeepAgain {
        /// See [`GitWork::Checkpoint`]; nothing is kept by this name yet.
        keeper: String,
        /// Ids of checkpoints, the oldest first.
        checkpoints: Vec<String>,
        /// Ids of contents of single files.
        contents: Vec<String>,
    },
    /// The session is gone: what was kept for it is wanted no more.
    Forget {
        /// See [`GitWork::Checkpoint`].
        keeper: String,
    },
    /// A content that was given out.
    Read {
        /// Content to read.
        content: GitContent,
        /// The `file:` URI of the file that it is of.
        file: String,
    },
    /// Files that are to be what they were before.
    Revert {
        /// The files.
        files: Vec<GitRevert>,
        /// The URIs of the folders below which files may be changed.
        below: Vec<String>,
        /// The paths of what is the host's own: it is never changed.
        own: Vec<String>,
        /// Files of which calls have said both sides.
        said: Vec<SaidFile>,
        /// Name and number of a checkpoint to make first, as by [`GitWork::Checkpoint`].
        kept_first: Option<(String, u64)>,
        /// The name and number by which the contents of all files are kept that are about to be
        /// changed, and their bytes where git would not give those back; `None` where the caller
        /// keeps them.
        bytes_kept: Option<(String, u64)>,
    },
}

/// A state of a folder that is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the commit, or of the tree itself.
    pub commit: String,
    /// Id of the tree.
    pub tree: String,
    /// Number of files of which it names the versions: large ones, and new ones that were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
    /// Size of all versions of large files that were stored for the session so far, in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub large_bytes: u64,
}

fn is_zero<T: Default + PartialEq>(count: &T) -> bool {
    *count == T::default()
}

/// Content of a file in git.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GitContent {
    /// Object id, or the version of the file if the content is not stored.
    pub blob: String,
    /// Mode: a link, a program or another file.
    pub mode: u32,
}

impl GitContent {
    /// The mode of a link.
    pub const LINK: u32 = 0o120_000;

    /// Returns whether it is a link, so that the content is its target.
    pub fn is_link(&self) -> bool {
        self.mode == Self::LINK
    }

    /// Returns whether git stores it: then it has an id.
    pub fn is_stored(&self) -> bool {
        !self.blob.is_empty() && self.blob.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// A file that is to be what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRevert {
    /// The `file:` URI of the file.
    pub file: String,
    /// Expected content; `None` if the file must not exist.
    pub now: Option<GitContent>,
    /// Wanted content; `None` to remove the file.
    pub wanted: Option<GitContent>,
    /// The bytes that were in it where those are not what git gives: what git calls them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_now: Option<String>,
    /// The bytes that are to be in it, the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_wanted: Option<String>,
    /// The permissions that it is to have where it is made, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_wanted: Option<u32>,
}

impl GitRevert {
    /// Returns the object ids of both sides, as far as they are stored.
    pub fn contents(&self) -> Vec<String> {
        let sides = [&self.now, &self.wanted].into_iter().flatten().filter(|content| content.is_stored());
        let bytes = [&self.bytes_now, &self.bytes_wanted].into_iter().flatten();
        sides.map(|content| &content.blob).chain(bytes).cloned().collect()
    }

    /// Returns the reverse request.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            file: self.file,
            now: self.wanted,
            wanted: self.now,
            bytes_now: self.bytes_wanted,
            bytes_wanted: self.bytes_now,
            mode_wanted: None,
        }
    }
}

/// A file that is to be what it was, as a call has said it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaidFile {
    /// The `file:` URI of the file.
    pub file: String,
    /// Expected and wanted text, each `None` where the file does not exist then; `None` where
    /// either is not known any more.
    pub sides: Option<(Option<String>, Option<String>)>,
    /// The permissions that it is to have where it is made, if they are known.
    pub mode_wanted: Option<u32>,
}

/// A file at which git does not look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnseenFile {
    /// The `file:` URI of the file.
    pub file: String,
    /// Version of the file; `None` where it does not exist.
    pub version: Option<String>,
}

/// Report about a [`GitJob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GitReport {
    /// There is no repository: nothing is to be said about that.
    NoRepository,
    /// There is one, and it is not used, or git is not there; why, for people.
    Unusable(String),
    /// Failure, with the reason for people.
    Failed(String),
    /// Checkpoint.
    Kept {
        /// The `file:` URI of the repository's folder.
        root: String,
        /// By this name.
        checkpoint: Checkpoint,
        /// Changes since each of the requested checkpoints; `None` where they are not known.
        since: Vec<Option<Vec<FileDiff<GitContent>>>>,
        /// Of the files that calls say they have changed, those at which git does not look.
        unseen: Vec<UnseenFile>,
    },
    /// Changes.
    Compared(Vec<FileDiff<GitContent>>),
    /// Status.
    Seen(Box<RepositoryStatus>),
    /// A content; in base64.
    Content(String),
    /// Outcome for each file, those of which calls have said both sides last.
    TakenBack(Vec<RevertOutcome>),
    /// Commit that was made.
    Committed(GitCommit),
    /// Refusal to commit, with the reason for people.
    NotCommitted(String),
    /// Success without further data.
    Done,
}

/// A commit that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommit {
    /// The first letters of its id.
    pub commit: String,
    /// The branch that it is on, if it is on one.
    pub branch: Option<String>,
}

/// Status of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryStatus {
    /// The `file:` URI of the repository's folder.
    pub root: String,
    /// The `file:` URIs of folders outside of it in which it says what is checked out.
    pub own: Vec<String>,
    /// The branch; none when there is none.
    pub branch: Option<String>,
    /// A commit is checked out, and no branch.
    pub is_detached: bool,
    /// The branch that it is compared with, if it is one.
    pub base: Option<String>,
    /// Description of the base for people, if it is not the branch that the session began on.
    pub base_note: Option<String>,
    /// The branch elsewhere that it follows.
    pub upstream: Option<String>,
    /// Number of commits that only the upstream has.
    pub incoming: Option<u64>,
    /// Number of commits that only this branch has.
    pub outgoing: Option<u64>,
    /// Number of files that differ from the commit.
    pub uncommitted_count: u64,
    /// There are commits that the base has not.
    pub has_branch_changes: bool,
    /// The files that are not committed as they are, if they were asked for.
    pub uncommitted: Vec<FileDiff<GitContent>>,
    /// The files that are not as the base has them, if they were asked for.
    pub branch_changes: Vec<FileDiff<GitContent>>,
}
