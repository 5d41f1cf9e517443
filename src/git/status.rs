//! Status of a repository's folder against its commits.
//!
//! Owns: the branch, its base and upstream with their distance, and the uncommitted changes. The
//! objects that this takes are written to a scratch folder.
//! Never: contacts a remote, so remote branches are as of the last fetch.

use super::compare::{compared, HOW};
use super::index::{CopiedIndex, FolderTree, Scratch};
use super::large::{Versions, WantedContents};
use super::program::{Deadline, GitError};
use super::repository::Repository;
use crate::host::effects::GitContent;
use crate::host::effects::RepositoryStatus;
use crate::state::edits::FileDiff;

/// Commit that a branch is compared with.
struct BranchBase {
    commit: String,
    name: Option<String>,
    note: Option<String>,
}

/// Looks at a repository; at the files, too, where they are asked for.
///
/// # Errors
/// When git fails, or not in time.
pub fn repository_status(
    repository: &Repository,
    scratch: &Scratch,
    base: Option<&str>,
    files: bool,
    until: Deadline,
) -> Result<RepositoryStatus, GitError> {
    let index = CopiedIndex::new(repository, scratch, false)?;
    let status = index.status(until)?;
    let base = match &status.head {
        Some(head) => Some(base_of(repository, head, status.branch.as_deref(), base, until)?),
        None => None,
    };
    let (mut uncommitted, mut branch_changes) = (Vec::new(), Vec::new());
    if files {
        let FolderTree { tree, versions, .. } = index.tree(scratch, WantedContents::None, until)?;
        let nothing = repository.run(["hash-object", "-t", "tree", "--stdin"]).line(until)?;
        let since = |from: &str| -> Result<Vec<FileDiff<GitContent>>, GitError> {
            let run = index.run(["diff-tree"]).with(HOW).with([from, &tree]);
            let changes = compared(repository, run, until)?;
            Ok(super::compare::with_versions(repository, changes, &Versions::new(), &versions))
        };
        uncommitted = since(status.head.as_deref().unwrap_or(&nothing))?;
        branch_changes = match &base {
            Some(base) => since(&base.commit)?,
            None => uncommitted.clone(),
        };
    }
    let own =
        [&repository.own, &repository.common].into_iter().filter(|own| !own.starts_with(&repository.root));
    let mut own: Vec<String> = own.map(|own| crate::files::uris::uri_of(own)).collect();
    own.dedup();
    let has_branch_changes = base.as_ref().is_some_and(|base| Some(&base.commit) != status.head.as_ref());
    let (name, note) = base.map(|base| (base.name, base.note)).unwrap_or_default();
    Ok(RepositoryStatus {
        root: repository.uri(),
        own,
        branch: status.branch,
        is_detached: status.head.is_some() && status.is_detached,
        base: name,
        base_note: note,
        upstream: status.upstream,
        outgoing: status.ahead_behind.map(|(ahead, _)| ahead),
        incoming: status.ahead_behind.map(|(_, behind)| behind),
        uncommitted_count: status.uncommitted,
        has_branch_changes,
        uncommitted,
        branch_changes,
    })
}

/// Returns the commit that a branch is compared with: the upstream of the branch on which the
/// session began; else that branch, the default branch, or the commit that is checked out.
fn base_of(
    repository: &Repository,
    head: &str,
    branch: Option<&str>,
    began_on: Option<&str>,
    until: Deadline,
) -> Result<BranchBase, GitError> {
    let mut candidates: Vec<(String, Option<String>)> = Vec::new();
    if let Some(began_on) = began_on {
        let asked = format!("refs/heads/{began_on}");
        let upstream = repository.run(["for-each-ref", "--format=%(upstream)", &asked]).line(until)?;
        if !upstream.is_empty() {
            candidates.push((upstream, None));
        }
        if branch != Some(began_on) {
            candidates.push((asked, None));
        }
    }
    let default = repository.run(["symbolic-ref", "--quiet", "refs/remotes/origin/HEAD"]).line(until);
    let defaults = default.into_iter().chain(["main", "master"].map(|name| format!("refs/heads/{name}")));
    for default in defaults.filter(|name| branch.is_none_or(|branch| *name != format!("refs/heads/{branch}")))
    {
        let why = format!("compared with `{}`", short(&default));
        candidates.push((default, Some(why)));
    }
    for (name, note) in candidates {
        // What has nothing in common with it, or is not there, is none.
        if let Ok(commit) = repository.run(["merge-base", head, &name]).line(until) {
            return Ok(BranchBase { commit, name: Some(short(&name).to_owned()), note });
        }
        until.check()?;
    }
    let note = Some("compared with what was committed last".to_owned());
    Ok(BranchBase { commit: head.to_owned(), name: None, note })
}

fn short(name: &str) -> &str {
    name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/remotes/")).unwrap_or(name)
}
