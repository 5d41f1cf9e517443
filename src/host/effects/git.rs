//! Jobs in git repositories, and the reports about them.
//!
//! Owns: [`GitJob`], [`GitReport`], and [`GitContent`], the sides of a changed file.
//! Never: runs git, or knows how git is called.

use serde::{Deserialize, Serialize};

use super::RevertOutcome;
use crate::state::edits::FileDiff;

/// Default size limit of a file whose content git checkpoints, in bytes.
pub const CHECKPOINT_FILE_BYTES_MAX: u64 = 100 << 20;

/// Reason why a commit is refused whose changes the client has not seen.
pub const CHANGED_SINCE: &str = "files have changed since you saw the list; look at them and commit again";

/// Glob of the files of a repository whose changes are not reported by its watch.
pub const UNWATCHED: &str = "**/node_modules/**";

/// Job for git in the repository that contains some directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitJob {
    /// `file:` URIs of the directories.
    pub directories: Vec<String>,
    /// Time limit, in milliseconds.
    pub within_ms: u64,
    /// Operation to run.
    pub work: GitWork,
}

/// Work in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GitWork {
    /// Checkpoint of the folder's current content.
    Checkpoint {
        /// Namespace of the session's checkpoints in the names of git refs.
        namespace: String,
        /// Number of the checkpoint; later checkpoints have greater numbers.
        number: u64,
        /// Last checkpoint of the session, reused if the folder has not changed since.
        last: Option<Checkpoint>,
        /// Earlier checkpoints; the report lists the changes since each of them.
        since: Vec<Checkpoint>,
        /// `file:` URIs or absolute paths of files that tool calls report as changed; the report
        /// lists those that git cannot compare: ignored ones, and those outside of the repository.
        reported: Vec<String>,
    },
    /// Comparison of two checkpoints.
    Compare {
        /// Earlier checkpoint.
        before: Checkpoint,
        /// Later checkpoint.
        after: Checkpoint,
    },
    /// Status of the folder compared with its commits.
    Status {
        /// Branch that was checked out when the repository was first seen; `None` if none was.
        base: Option<String>,
        /// Set to list the files, not only count them.
        files: bool,
        /// `file:` URIs of all files that may have changed since the last status with files of this
        /// repository; `None` if any file may have.
        touched: Option<Vec<String>>,
    },
    /// Commit of all uncommitted changes.
    Commit {
        /// Commit message.
        message: String,
        /// Uncommitted changes that the client has seen; if they differ now, nothing is committed.
        shown: Vec<FileDiff<GitContent>>,
        /// Namespace and number of the ref that retains staged contents whose files have changed
        /// again since; the new index lacks them.
        staged_retained: (String, u64),
    },
    /// New refs for the checkpoints of a session that was imported or restored from the trash, as
    /// far as they still exist.
    Import {
        /// Namespace, as in [`GitWork::Checkpoint`]; it has no refs yet.
        namespace: String,
        /// Ids of checkpoints, oldest first.
        checkpoints: Vec<String>,
        /// Object ids of single files.
        contents: Vec<String>,
    },
    /// Removal of all checkpoints of a session that was disposed of.
    RemoveCheckpoints {
        /// Namespace, as in [`GitWork::Checkpoint`].
        namespace: String,
    },
    /// Read of a content whose URI was sent to a client.
    Read {
        /// Content to read.
        content: GitContent,
        /// `file:` URI of the file with this content.
        file: String,
    },
    /// Revert of files to an earlier content.
    Revert {
        /// Files whose contents git has.
        files: Vec<GitRevert>,
        /// URIs of the folders below which files may be changed.
        below: Vec<String>,
        /// Paths of the host's own files, which are never changed.
        own: Vec<String>,
        /// Files for which tool calls have reported both sides.
        reported: Vec<ReportedFile>,
        /// Namespace and number of a checkpoint to make first, as by [`GitWork::Checkpoint`].
        checkpoint_first: Option<(String, u64)>,
        /// Namespace and number of the ref that retains the current contents of the files, as raw
        /// bytes where git would not restore those exactly; `None` if the caller retains them.
        bytes_retained: Option<(String, u64)>,
    },
}

/// Stored state of a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Commit id, or the tree id if there is no commit.
    pub commit: String,
    /// Tree id.
    pub tree: String,
    /// Number of files recorded by version only: large files, and new files beyond the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
    /// Total size of the large file versions stored for the session so far, in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub large_bytes: u64,
}

pub(in crate::host) fn is_zero<T: Default + PartialEq>(count: &T) -> bool {
    *count == T::default()
}

/// Content of a file in git.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GitContent {
    /// Object id, or the file's version if the content is not stored.
    pub blob: String,
    /// Git file mode: link, executable or regular file.
    pub mode: u32,
}

impl GitContent {
    /// Mode of a symbolic link.
    pub const LINK: u32 = 0o120_000;

    /// Returns whether this is a link, whose content is its target.
    pub fn is_link(&self) -> bool {
        self.mode == Self::LINK
    }

    /// Returns whether git stores the content, so that `blob` is an object id.
    pub fn is_stored(&self) -> bool {
        !self.blob.is_empty() && self.blob.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// Request to revert one file to a content that git has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRevert {
    /// `file:` URI of the file.
    pub file: String,
    /// Expected content; `None` if the file must not exist.
    pub now: Option<GitContent>,
    /// Wanted content; `None` to remove the file.
    pub wanted: Option<GitContent>,
    /// Object id of the expected raw bytes, where they differ from git's content (by a filter, for
    /// example).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_now: Option<String>,
    /// Object id of the wanted raw bytes, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_wanted: Option<String>,
    /// Permissions of the file if it is created; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_wanted: Option<u32>,
}

impl GitRevert {
    /// Returns the object ids of both sides that git stores.
    pub fn contents(&self) -> Vec<String> {
        let sides = [&self.now, &self.wanted].into_iter().flatten().filter(|content| content.is_stored());
        let bytes = [&self.bytes_now, &self.bytes_wanted].into_iter().flatten();
        sides.map(|content| &content.blob).chain(bytes).cloned().collect()
    }

    /// Returns the request that undoes this one.
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

/// Request to revert one file by the contents that tool calls have reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFile {
    /// `file:` URI of the file.
    pub file: String,
    /// Expected and wanted text, each `None` if the file must not exist; `None` if either text is
    /// no longer known.
    pub sides: Option<(Option<String>, Option<String>)>,
    /// Permissions of the file if it is created; `None` if unknown.
    pub mode_wanted: Option<u32>,
}

/// Changed file that git cannot compare: ignored, or outside of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncomparableFile {
    /// `file:` URI of the file.
    pub file: String,
    /// Version of the file; `None` if it does not exist.
    pub version: Option<String>,
}

/// Report about a [`GitJob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GitReport {
    /// No repository exists, which is not an error.
    NoRepository,
    /// Repository that cannot be used, or missing git, with the reason for people.
    Unusable(String),
    /// Failure, with the reason for people.
    Failed(String),
    /// Finished checkpoint.
    Checkpointed {
        /// `file:` URI of the repository's folder.
        root: String,
        /// Ids of the checkpoint.
        checkpoint: Checkpoint,
        /// Changes since each of the requested checkpoints; `None` where they are unknown.
        since: Vec<Option<Vec<FileDiff<GitContent>>>>,
        /// Files reported by tool calls that git cannot compare: ignored ones, and those outside of
        /// the repository.
        incomparable: Vec<IncomparableFile>,
    },
    /// Changes between the two checkpoints.
    Compared(Vec<FileDiff<GitContent>>),
    /// Status of the repository.
    Status(Box<RepositoryStatus>),
    /// Requested content, in base64; `None` if the repository does not have it.
    Content(Option<String>),
    /// Outcome for each file; [`ReportedFile`]s come last.
    Reverted(Vec<RevertOutcome>),
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
    /// Abbreviated commit id.
    pub commit: String,
    /// Branch of the commit; `None` if HEAD is detached.
    pub branch: Option<String>,
}

/// Status of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryStatus {
    /// `file:` URI of the repository's folder.
    pub root: String,
    /// `file:` URIs of git's metadata folders outside of `root`, which record what is checked out.
    pub own: Vec<String>,
    /// Checked-out branch; `None` if HEAD is detached.
    pub branch: Option<String>,
    /// Set if HEAD is detached: a commit is checked out, and no branch.
    pub is_detached: bool,
    /// Branch that the changes are compared with; `None` if the base is no branch.
    pub base: Option<String>,
    /// Description of the base for people; `None` if the base is the branch that the session began
    /// on.
    pub base_note: Option<String>,
    /// Upstream branch; `None` if there is none.
    pub upstream: Option<String>,
    /// Number of commits that only the upstream has; `None` if unknown.
    pub incoming: Option<u64>,
    /// Number of commits that only this branch has; `None` if unknown.
    pub outgoing: Option<u64>,
    /// Number of files that differ from the HEAD commit.
    pub uncommitted_count: u64,
    /// Set if the branch has commits that the base lacks.
    pub has_branch_changes: bool,
    /// Uncommitted files; empty if they were not requested.
    pub uncommitted: Vec<FileDiff<GitContent>>,
    /// Files that differ from the base; empty if they were not requested.
    pub branch_changes: Vec<FileDiff<GitContent>>,
}
