//! Git's configuration, read as data, against git's own reading.
//!
//! Owns: texts of configuration files, those that git refuses among them, and when other files are
//! included.
//! Never: starts a host.

use std::fs;

use ahp_sidecar::git::settings::{read_all, GitSetting, GitSettings, IncludedFor};
use proptest::prelude::*;

use super::{try_all, Repository};

/// Seed of the random choices, unless another one is requested.
const SEED: u64 = 31;

/// Pieces of which a file is made.
const PIECES: [&str; 38] = [
    "[a]",
    "[A.b]",
    "[a \"B c\"]",
    "[a \"\\\"\\\\x\"]",
    "[a\t\"\u{e4}\"]",
    "[ a]",
    "[a",
    "[]",
    "[a \"b\" ]",
    "\n",
    "\r\n",
    "\r",
    " ",
    "\t",
    "k",
    "Key-1",
    "k_",
    " = ",
    "=",
    "v",
    "\"",
    "\\",
    "\\\n",
    "\\\r\n",
    "\\n",
    "\\t",
    "\\b",
    "\\x",
    "#",
    ";",
    "[b]\nc = d",
    "\n\tk = v w  ; x\n",
    "\nk = \" v \" w\n",
    "\nk\n",
    "\u{feff}",
    "\u{b}",
    "\0",
    "\u{1}",
];

/// Returns what git lists of a file; `None` where it refuses it.
fn listed(repository: &Repository, file: &str) -> Option<Vec<GitSetting>> {
    let output = repository.try_git_in(&repository.home, &["config", "--file", file, "--null", "--list"]);
    let entries = output.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    let settings = entries.map(|entry| {
        let mut parts = entry.splitn(2, |byte| *byte == b'\n').map(<[u8]>::to_vec);
        GitSetting { key: parts.next().unwrap(), value: parts.next() }
    });
    output.status.success().then(|| settings.collect())
}

#[test]
fn configuration_file_is_parsed_as_by_git() {
    let repository = Repository::empty();
    let texts = proptest::collection::vec(0..PIECES.len(), 0..12)
        .prop_map(|pieces| pieces.into_iter().map(|at| PIECES[at]).collect::<String>());
    try_all(&texts, (400, 1), SEED, |text| {
        // What is behind a NUL is nothing to git.
        let text = text.replace('\0', "");
        fs::write(repository.home.join("file"), &text).unwrap();
        let found = GitSettings::parse(text.as_bytes()).ok();
        let found = found.map(|found| found.iter().cloned().collect::<Vec<_>>());
        assert_eq!(found, listed(&repository, "file"), "{text:?}");
        let lines = found.iter().flatten().filter(|setting| setting.key.contains(&b'.'));
        let written: Vec<u8> = lines.clone().filter_map(GitSetting::lines).flatten().collect();
        fs::write(repository.home.join("written"), written).unwrap();
        assert_eq!(listed(&repository, "written").unwrap(), lines.cloned().collect::<Vec<_>>(), "{text:?}");
    });
}

#[test]
fn conditional_includes_are_read_if_their_condition_holds() {
    let repository = Repository::empty();
    let home = repository.home.display();
    let git_dir = repository.path(".git");
    let met = [
        "include",
        "includeIf \"gitdir:**\"",
        "includeIf \"gitdir:work tree/\"",
        "includeIf \"gitdir:work tree/.git\"",
        "includeIf \"gitdir/i:WORK TREE/\"",
        "includeIf \"onbranch:topic/\"",
        "includeIf \"onbranch:top*/x\"",
        "includeIf \"hasconfig:remote.*.url:https://host/**\"",
    ];
    let others = [
        "includeIf \"gitdir:other/\"",
        "includeIf \"gitdir:WORK TREE/\"",
        "includeIf \"onbranch:topic\"",
        "includeIf \"onbranch:*\"",
        "includeIf \"hasconfig:remote.*.url:https://host/*\"",
        "includeIf \"future:x\"",
        "includeIf \"gitdir:{work,} tree/\"",
    ];
    repository.git(&["checkout", "-q", "-b", "topic/x"]);
    let file = repository.home.join("gitconfig");
    for (section, is_met) in
        met.map(|section| (section, true)).into_iter().chain(others.map(|it| (it, false)))
    {
        fs::write(repository.home.join("more"), "[a]\nb = included\n").unwrap();
        let text =
            format!("[remote \"o\"]\nurl = https://host/x/y\n[a]\nb = before\n[{section}]\npath = more\n");
        fs::write(&file, text).unwrap();
        let included_for = IncludedFor { git_dir: &git_dir, branch: Some("topic/x") };
        let found = read_all(std::slice::from_ref(&file), included_for).unwrap();
        let wanted = if is_met { "included" } else { "before" };
        assert_eq!(found.get("a.b"), Some(wanted.as_bytes()), "{section}");
        assert_eq!(repository.git(&["config", "a.b"]).trim(), wanted, "{section}, to git");
    }
    // One that includes itself is refused, as git refuses it.
    fs::write(&file, format!("[include]\npath = {home}/gitconfig\n")).unwrap();
    let included_for = IncludedFor { git_dir: &git_dir, branch: None };
    assert!(read_all(&[file], included_for).unwrap_err().contains("more files are included"));
}
