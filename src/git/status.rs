//! Status of a repository's folder against its commits.
//!
//! Owns: the branch, its base and upstream with their distance, and the uncommitted changes.
//! Never: contacts a remote, so remote branches are as of the last fetch.

use std::collections::BTreeMap;

use super::compare::{compared, with_versions, HOW};
use super::grafts;
use super::index::{read_status, FolderTree, STATUS};
use super::large::{Versions, WantedContents};
use super::program::GitError;
use super::repository::Repository;
use super::scan::StatusScope;
use crate::files::uris::uri_of;
use crate::host::effects::{GitContent, RepositoryStatus};
use crate::state::edits::FileDiff;

/// Ref that names the default branch of a remote.
const REMOTE_DEFAULT: &str = "refs/remotes/origin/HEAD";

struct BranchBase {
    commit: String,
    name: Option<String>,
    note: Option<String>,
}

/// Returns the status of a repository, with the changed files if `files` is set. Only the `touched`
/// ones (`file:` URIs) may have changed since the last scan; `None` if any may have. Git stores
/// contents of changed files; see [`Repository::examine`].
pub fn repository_status(
    repository: &Repository,
    base: Option<&str>,
    (files, touched): (bool, Option<&[String]>),
) -> Result<RepositoryStatus, GitError> {
    let (status, folder) = if files {
        let scope = StatusScope::Visible(touched);
        let found = grafts::folder_tree(repository, WantedContents::None, scope)?;
        let FolderTree { status, tree, versions, .. } = found;
        (status, Some((tree, versions)))
    } else {
        (read_status(&repository.run(STATUS).output()?), None)
    };
    let base = match &status.head {
        Some(head) => Some(base_of(repository, head, status.branch.as_deref(), base)?),
        None => None,
    };
    let (mut uncommitted, mut branch_changes) = (Vec::new(), Vec::new());
    if let Some((tree, versions)) = folder {
        let since = |from: &str| -> Result<Vec<FileDiff<GitContent>>, GitError> {
            let run = repository.run(["diff-tree"]).with(HOW).with([from, &tree]);
            Ok(with_versions(repository, compared(repository, run)?, &Versions::new(), &versions))
        };
        uncommitted = match &status.head {
            _ if status.uncommitted == 0 => Vec::new(),
            Some(head) => since(head)?,
            None => since(&repository.empty_tree()?)?,
        };
        branch_changes = match &base {
            Some(base) if Some(&base.commit) != status.head.as_ref() => since(&base.commit)?,
            _ => uncommitted.clone(),
        };
    }
    let own =
        [&repository.own, &repository.common].into_iter().filter(|own| !own.starts_with(&repository.root));
    let mut own: Vec<String> = own.map(|own| uri_of(own)).collect();
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

/// Returns the commit that a branch is compared with. In order of preference: the upstream of the
/// branch on which the session began, that branch, the default branch, the checked-out commit.
fn base_of(
    repository: &Repository,
    head: &str,
    branch: Option<&str>,
    began_on: Option<&str>,
) -> Result<BranchBase, GitError> {
    let local = |name: &str| format!("refs/heads/{name}");
    let (current, began_on) = (branch.map(local), began_on.map(local));
    let defaults = ["main", "master"].map(local);
    let run =
        repository.run(["for-each-ref", "--format=%(refname)%00%(objectname)%00%(symref)%00%(upstream)"]);
    let listed = run.with([REMOTE_DEFAULT]).with(&defaults).with(&began_on).text()?;
    let refs: BTreeMap<&str, ListedRef<'_>> = listed.lines().filter_map(ListedRef::parse).collect();
    let known = |name: &String| refs.contains_key(name.as_str()) && current.as_ref() != Some(name);
    let of_remote = refs.get(REMOTE_DEFAULT).map(|listed| listed.target.to_owned());
    let of_remote = of_remote.filter(|name| !name.is_empty() && current.as_ref() != Some(name));
    let upstream = began_on.as_ref().and_then(|name| refs.get(name.as_str())).map(|listed| listed.upstream);
    let upstream = upstream.filter(|name| !name.is_empty()).map(str::to_owned);
    let of_session = upstream.into_iter().chain(began_on.filter(known)).map(|name| (name, false));
    let defaults = of_remote.into_iter().chain(defaults.into_iter().filter(known)).map(|name| (name, true));
    for (name, is_noted) in of_session.chain(defaults) {
        let is_head = refs.get(name.as_str()).is_some_and(|listed| listed.commit == head);
        let commit = match is_head {
            true => Ok(head.to_owned()),
            false => repository.run(["merge-base", head, &name]).line(),
        };
        // Refs that do not exist, or without a common commit, are skipped.
        if let Ok(commit) = commit {
            let name = short(&name).to_owned();
            let note = is_noted.then(|| format!("compared with `{name}`"));
            return Ok(BranchBase { commit, name: Some(name), note });
        }
        repository.until.check()?;
    }
    let note = Some("compared with the last commit".to_owned());
    Ok(BranchBase { commit: head.to_owned(), name: None, note })
}

/// Ref in the output of `git for-each-ref`.
struct ListedRef<'a> {
    commit: &'a str,
    /// Ref that it points to; empty if it is not symbolic.
    target: &'a str,
    /// Upstream of the branch; empty if it has none.
    upstream: &'a str,
}

impl<'a> ListedRef<'a> {
    fn parse(line: &'a str) -> Option<(&'a str, Self)> {
        let mut words = line.split('\0');
        let name = words.next()?;
        Some((name, Self { commit: words.next()?, target: words.next()?, upstream: words.next()? }))
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/remotes/")).unwrap_or(name)
}
