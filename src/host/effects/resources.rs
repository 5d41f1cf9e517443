//! Requests of clients about files, and the changes that they cause.
//!
//! Owns: [`Resource`], changes of files, and requests to revert files with their outcomes.
//! Never: touches a file, or decides what a client may read or change.

use ahp_types::commands::{
    ContentEncoding, ResourceCopyParams, ResourceDeleteParams, ResourceMkdirParams, ResourceMoveParams,
    ResourceRequestParams, ResourceWriteParams,
};
use serde::{Deserialize, Serialize};

use super::{GitContent, GitRevert, ReportedFile, SessionKey};
use crate::host::changes::sides::RevertedFile;
use crate::wire::changesets::ChangesetScope;
use crate::wire::watches::Watched;

/// Request of a client about files on this machine, or contents stored by git.
#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    /// Reads a file.
    Read {
        /// URI (`file:`).
        uri: String,
        /// Requested encoding; `None` if the client has no preference.
        encoding: Option<ContentEncoding>,
    },
    /// Reads a content that git stores.
    GitContent {
        /// URI by which clients name the content.
        uri: String,
        /// The `file:` URI of the repository's folder.
        root: String,
        /// Content in git.
        content: GitContent,
        /// The `file:` URI of the file with this content.
        file: String,
        /// Requested encoding, `Some(None)` if the client has no preference; `None` if it asks for
        /// metadata.
        encoding: Option<Option<ContentEncoding>>,
    },
    /// Lists a folder's entries.
    List {
        /// URI (`file:`).
        uri: String,
    },
    /// Resolves the metadata of a file or folder.
    Resolve {
        /// URI.
        uri: String,
        /// Content of a `data:` URI; `None` for a file.
        content: Option<String>,
        /// Set if a link is followed to its target.
        follows_links: bool,
    },
    /// Checks whether files can be watched.
    Watch(Watched),
    /// Lists files that match typed text.
    Files(FileCompletionQuery),
    /// Reverts or restores files.
    Revert {
        /// Request. Answered by [`Input::Reverted`].
        request: Box<RevertRequest>,
        /// URIs of the folders below which clients may change files.
        below: Vec<String>,
    },
    /// Changes files.
    Change {
        /// Change.
        change: Box<Change>,
        /// URIs of the folders below which clients may change files: those that sessions work in.
        below: Vec<String>,
    },
}

/// Text of a file: `Some(None)` if the file does not exist, `None` if the text is unknown.
pub type FileText = Option<Option<String>>;

/// Request to revert files to an earlier version, or to restore reverted ones.
#[derive(Debug, Clone, PartialEq)]
pub struct RevertRequest {
    /// Session of the changes.
    pub session: SessionKey,
    /// Scope of the changes.
    pub scope: ChangesetScope,
    /// Set if reverted changes are restored.
    pub restores: bool,
    /// The `file:` URI of the folder of the repository that stores the earlier contents; `None` if
    /// they are known from the reports of calls.
    pub root: Option<String>,
    /// Name and number of the checkpoint that stores the current contents first; `None` if none is
    /// made.
    pub checkpoint_first: Option<(String, u64)>,
    /// Name and number under which bytes are stored that git would not restore exactly; `None` if
    /// they are not stored.
    pub bytes_retained: Option<(String, u64)>,
    /// Files to change.
    pub files: Vec<FileRevert>,
    /// Files that are skipped, each with the reason for people.
    pub left: Vec<String>,
    /// Files that already had the wanted content when they were reverted. They are not touched now,
    /// either.
    pub untouched: Vec<RevertedFile>,
}

/// File to revert or restore.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRevert {
    /// Stored form.
    pub reverted: RevertedFile,
    /// Expected text.
    pub now: FileText,
    /// Wanted text.
    pub wanted: FileText,
    /// Expected and wanted content, where git stores both.
    pub git: Option<GitRevert>,
}

impl FileRevert {
    /// Returns the `file:` URI.
    pub fn uri(&self) -> &str {
        &self.reverted.edit.diff.file
    }

    /// Returns the file with both texts as calls have reported them.
    pub fn reported(&self) -> ReportedFile {
        let sides = self.now.clone().zip(self.wanted.clone());
        ReportedFile { file: self.uri().to_owned(), sides, mode_wanted: self.reverted.mode() }
    }
}

/// Outcome for one file of a [`RevertRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevertOutcome {
    /// The file was changed.
    Done {
        /// Object id of the former bytes, if git would not restore them exactly and they were to be
        /// stored.
        bytes: Option<String>,
        /// Permissions of a removed file.
        mode: Option<u32>,
    },
    /// The file already had the wanted content and was not touched.
    Already,
    /// The file was skipped; with the reason for people.
    Refused(String),
    /// The work has failed, and may have changed the file before; with the reason for people.
    Unknown(String),
}

/// Requested change of files, with the params of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Writes a file.
    Write(ResourceWriteParams),
    /// Makes a folder.
    Mkdir(ResourceMkdirParams),
    /// Removes a file, link or folder.
    Delete(ResourceDeleteParams),
    /// Moves a file, link or folder.
    Move(ResourceMoveParams),
    /// Copies a file or folder.
    Copy(ResourceCopyParams),
    /// Asks whether a resource may be read or changed.
    Ask(ResourceRequestParams),
}

/// Query for files that match text typed in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCompletionQuery {
    /// The `file:` URIs of the directories to search.
    pub directories: Vec<String>,
    /// First character of the typed word.
    pub mark: char,
    /// Rest of the word up to the cursor.
    pub typed: String,
    /// Start and end of the whole word, in UTF-16 code units.
    pub range: (Option<i64>, Option<i64>),
}
