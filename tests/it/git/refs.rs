//! The refs that keep what was in a folder.
//!
//! Owns: that they do not become ever more.
//! Never: starts a host.

use std::ffi::OsStr;
use std::time::Duration;

use ahp_sidecar::git::large::FileLimits;
use ahp_sidecar::git::program::{Deadline, Git};
use ahp_sidecar::git::worker::carry_out;
use ahp_sidecar::host::effects::{Checkpoint, GitJob, GitReport, GitWork};

use super::{uri, Repository};

#[test]
fn oldest_checkpoint_refs_beyond_the_limit_are_deleted_without_a_change() {
    let repository = Repository::with(&[("a", "1\n")]);
    let tree = repository.git(&["rev-parse", "HEAD^{tree}"]).trim().to_owned();
    let name = |number: u64| format!("refs/ahp-sidecar/k/{number:010}");
    // Every other number: the others have found that nothing was changed.
    let refs: String = (1..=1100).map(|at| format!("{tree} {}\n", name(2 * at + 1))).collect();
    repository.write(".git/packed-refs", format!("# pack-refs with: sorted\n{refs}"));
    assert_eq!(repository.our_refs().len(), 1100);
    let until = Deadline::after(Duration::from_secs(60));
    let git = Git::find(Some(OsStr::new(super::PATH)), until).unwrap();
    let last = Checkpoint { commit: tree.clone(), tree, left_out: 0, large_bytes: 0 };
    let work = GitWork::Checkpoint {
        namespace: "k".to_owned(),
        number: 2250,
        last: Some(last.clone()),
        since: Vec::new(),
        reported: Vec::new(),
    };
    let job = GitJob { directories: vec![uri(&repository.root)], within_ms: 60_000, work };
    let report = carry_out(&git, FileLimits::default(), job, &repository.state, until);
    assert!(matches!(report, GitReport::Checkpointed { checkpoint, .. } if checkpoint == last));
    let left = repository.our_refs();
    assert_eq!(left.len(), 1000);
    // What the session began with stays, and what is new.
    assert_eq!((&left[0], &left[999]), (&name(3), &name(2201)));
    assert_eq!(left[1], name(205));
}
