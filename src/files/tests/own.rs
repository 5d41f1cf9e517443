//! The host's own files, whose names are links or do not exist yet.
//!
//! Owns: the check that no request changes the targets of these names.
//! Never: speaks a protocol.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::folders::{Folders, HostFile, PathRefusal, WorkFolder};
use crate::files::writing::WriteRequest;

fn top(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().canonicalize().unwrap()
}

fn folders(top: &Path, own: &[PathBuf]) -> Folders {
    let own: Vec<HostFile> = own.iter().flat_map(|path| HostFile::find(path)).collect();
    Folders::of(vec![Arc::new(WorkFolder::find(top.to_owned()).unwrap())], own.into())
}

fn put(folders: &Folders, path: &Path) -> Result<(), PathRefusal> {
    folders.put(path, &WriteRequest::whole(b"new"))
}

fn is_own(outcome: Result<(), PathRefusal>) -> bool {
    match outcome {
        Err(PathRefusal::Destination(refusal)) => matches!(*refusal, PathRefusal::Own),
        outcome => matches!(outcome, Err(PathRefusal::Own)),
    }
}

#[test]
fn a_link_on_the_way_to_what_is_own_is_own_too() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    fs::create_dir_all(top.join("dot/ahp")).unwrap();
    fs::write(top.join("dot/ahp/real.toml"), "own").unwrap();
    symlink("dot", top.join("config")).unwrap();
    symlink(top.join("dot/ahp/real.toml"), top.join("dot/ahp/config.toml")).unwrap();
    fs::write(top.join("mine"), "mine").unwrap();
    let folders = folders(&top, &[top.join("config/ahp/config.toml")]);
    for name in ["config", "dot/ahp/config.toml", "dot/ahp/real.toml", "dot/ahp", "dot", "config/ahp"] {
        let path = top.join(name);
        assert!(is_own(folders.remove(&path, true)), "{name}");
        assert!(is_own(folders.rename(&path, &top.join("away"), false)), "{name}");
        assert!(is_own(folders.rename(&top.join("mine"), &path, false)), "{name}");
        assert!(is_own(folders.copy(&top.join("mine"), &path, false)), "{name}");
    }
    assert!(is_own(put(&folders, &top.join("config/ahp/config.toml"))));
    // A file beside it is not the host's own.
    put(&folders, &top.join("config/ahp/other")).unwrap();
    assert_eq!(fs::read_to_string(top.join("config/ahp/config.toml")).unwrap(), "own");
}

#[test]
fn nothing_is_made_where_something_of_the_hosts_own_is_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    let folders = folders(&top, &[top.join("a/config.toml"), top.join("state")]);
    for name in ["a/config.toml/x", "a/config.toml/x/y", "state/y/z", "state/y"] {
        let path = top.join(name);
        assert!(is_own(folders.make_folder(&path)), "{name}");
        assert!(is_own(folders.write(&path, b"new")), "{name}");
        assert!(is_own(folders.may_change(&path)), "{name}");
    }
    assert!(!top.join("a/config.toml").exists() && !top.join("state").exists());
    folders.make_folder(&top.join("a/other")).unwrap();
}

#[test]
fn a_path_that_is_longer_than_any_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    let folders = folders(&top, &[]);
    let up_and_down = format!("../{}/", top.file_name().unwrap().to_str().unwrap());
    for way in [up_and_down.repeat(4096 / up_and_down.len()), "x/".repeat(2048)] {
        let refusal = folders.make_folder(&top.join(&way)).unwrap_err();
        assert!(refusal.to_string().contains("too long"), "{refusal}");
    }
    assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
}
