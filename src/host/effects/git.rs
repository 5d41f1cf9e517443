//! What the core asks to be done with repositories of git, and what it hears of that.
//!
//! Owns: the words of it: [`GitJob`]s and [`GitReport`]s, and what a [`KeptChange`] between two
//! states of a folder is.
//! Never: runs anything, or knows how git is asked.

use serde::{Deserialize, Serialize};

use super::FileTaken;
use crate::state::edits::LineCounts;

/// Size above which git does not keep the content of a file, in bytes, unless another one is
/// chosen.
pub const KEPT_FILE_BYTES_MAX: u64 = 100 << 20;

/// Something to be done with the repository that some directories are in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitJob {
    /// The `file:` URIs of the directories.
    pub directories: Vec<String>,
    /// How long it may take.
    pub within_ms: u64,
    /// What.
    pub work: GitWork,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GitWork {
    /// Keep what is in the folder now.
    Checkpoint {
        /// What of the session stands in the names of the refs that keep it.
        keeper: String,
        /// Which of them this is; later ones have greater numbers.
        number: u64,
        /// The last one of the session: where nothing has changed since, it is taken again.
        last: Option<Checkpoint>,
        /// Earlier ones: what has changed since each of them is told, too.
        since: Vec<Checkpoint>,
        /// The `file:` URIs, or absolute paths, of files that calls say they have changed: those at
        /// which git does not look are told.
        said: Vec<String>,
    },
    /// What has changed from one to the other.
    Compare {
        /// The earlier one.
        before: Checkpoint,
        /// The later one.
        after: Checkpoint,
    },
    /// What is there now, against what was committed.
    Look {
        /// The branch that the session began on, if that is known.
        base: Option<String>,
        /// The files are asked for, too, and not only how many they are.
        files: bool,
    },
    /// All that is not committed is to become a commit.
    Commit {
        /// Its message.
        message: String,
        /// What is not committed, as somebody has seen it: where it is otherwise now, nothing is
        /// committed.
        shown: Vec<KeptChange>,
        /// The name and number by which contents are kept that the user has staged and changed
        /// again since.
        staged_kept: (String, u64),
    },
    /// The session has come from elsewhere: what is still there of what is known of it is kept for
    /// it, too.
    KeepAgain {
        /// See [`GitWork::Checkpoint`]; nothing is kept by this name yet.
        keeper: String,
        /// What git calls the states of the folder, the first ones first.
        checkpoints: Vec<String>,
        /// What it calls contents of single files.
        contents: Vec<String>,
    },
    /// The session is gone: what was kept for it is wanted no more.
    Forget {
        /// See [`GitWork::Checkpoint`].
        keeper: String,
    },
    /// A content that was given out.
    Read {
        /// What git calls it.
        content: GitContent,
        /// The `file:` URI of the file that it is of.
        file: String,
    },
    /// Files that are to be what they were before.
    TakeBack {
        /// The files.
        files: Vec<GitTaken>,
        /// The URIs of the folders below which files may be changed.
        below: Vec<String>,
        /// The paths of what is the host's own: it is never changed.
        own: Vec<String>,
        /// Files of which calls have said both sides.
        said: Vec<SaidFile>,
        /// What is there is kept first, as by [`GitWork::Checkpoint`] with this name and number,
        /// where that is said.
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
    /// What git calls it: a commit, or the tree itself.
    pub commit: String,
    /// What it calls the files in it.
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

/// What git calls a content of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GitContent {
    /// Its id; the version of the file where the content is not kept.
    pub blob: String,
    /// Its mode: whether it is a link, or a program.
    pub mode: u32,
}

impl GitContent {
    /// The mode of a link.
    pub const LINK: u32 = 0o120_000;

    /// Whether it is a link, so that the content is where that leads.
    pub fn is_link(&self) -> bool {
        self.mode == Self::LINK
    }

    /// Whether git keeps it: it has an id then.
    pub fn is_kept(&self) -> bool {
        !self.blob.is_empty() && self.blob.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// What has become of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptChange {
    /// Its `file:` URI; of one that is not there any more, the URI that it had.
    pub file: String,
    /// What it was called before, if that was otherwise.
    pub renamed_from: Option<String>,
    /// What was in it; none when it was not there.
    pub before: Option<GitContent>,
    /// What is in it; none when it is not there.
    pub after: Option<GitContent>,
    /// What has become of its lines; none where it has none.
    pub lines: Option<LineCounts>,
}

/// A file that is to be what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitTaken {
    /// The `file:` URI of the file.
    pub file: String,
    /// What must be in it now; none when it must not be there.
    pub now: Option<GitContent>,
    /// What is to be in it; none when it is not to be there.
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

impl GitTaken {
    /// What git calls the contents of both sides, as far as they are kept.
    pub fn contents(&self) -> Vec<String> {
        let sides = [&self.now, &self.wanted].into_iter().flatten().filter(|content| content.is_kept());
        let bytes = [&self.bytes_now, &self.bytes_wanted].into_iter().flatten();
        sides.map(|content| &content.blob).chain(bytes).cloned().collect()
    }

    /// That this is taken back in turn.
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
    /// Its text now and the text that it is to have, each `None` where the file does not exist
    /// then; `None` where either is not known any more.
    pub sides: Option<(Option<String>, Option<String>)>,
    /// The permissions that it is to have where it is made, if they are known.
    pub mode_wanted: Option<u32>,
}

/// A file at which git does not look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnseenFile {
    /// The `file:` URI of the file.
    pub file: String,
    /// What tells its version now apart from others; `None` where it does not exist.
    pub version: Option<String>,
}

/// What is heard of a [`GitJob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GitReport {
    /// There is no repository: nothing is to be said about that.
    NoRepository,
    /// There is one, and it is not used, or git is not there; why, for people.
    Unusable(String),
    /// It was not done; why, for people.
    Failed(String),
    /// What is in the folder is kept.
    Kept {
        /// The `file:` URI of the repository's folder.
        root: String,
        /// By this name.
        checkpoint: Checkpoint,
        /// What has changed since each of those that were asked about; none where that is not
        /// known.
        since: Vec<Option<Vec<KeptChange>>>,
        /// Of the files that calls say they have changed, those at which git does not look.
        unseen: Vec<UnseenFile>,
    },
    /// What has changed.
    Compared(Vec<KeptChange>),
    /// What is there.
    Seen(Box<GitSight>),
    /// A content; in base64.
    Content(String),
    /// What has become of each of the files, those of which calls have said both sides last.
    TakenBack(Vec<FileTaken>),
    /// It is committed.
    Committed(GitCommit),
    /// Nothing is committed, since it cannot be as it is; why, for people.
    NotCommitted(String),
    /// It is done, and nothing else is to be said.
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

/// What is there in a repository now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitSight {
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
    /// What it is compared with, for people, where that is not the branch that the session began
    /// on.
    pub base_note: Option<String>,
    /// The branch elsewhere that it follows.
    pub upstream: Option<String>,
    /// So many commits are there and not here.
    pub incoming: Option<u64>,
    /// So many are here and not there.
    pub outgoing: Option<u64>,
    /// So many files are not committed as they are.
    pub uncommitted_count: u64,
    /// There are commits that the base has not.
    pub has_branch_changes: bool,
    /// The files that are not committed as they are, if they were asked for.
    pub uncommitted: Vec<KeptChange>,
    /// The files that are not as the base has them, if they were asked for.
    pub branch_changes: Vec<KeptChange>,
}
