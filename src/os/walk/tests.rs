//! Tests of steps below a folder, on the half that is built.
//!
//! Owns: the cases.
//! Never: assumes a system.

use std::fs;
use std::io::{ErrorKind, Read, Write};

use super::*;
use crate::os::facts::{self, FileKind};

fn opened() -> (tempfile::TempDir, Folder) {
    let folder = tempfile::tempdir().unwrap();
    let open = Folder::at(&folder.path().canonicalize().unwrap()).unwrap();
    (folder, open)
}

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().map_or(ErrorKind::Other, |error| error.kind())
}

#[test]
fn path_is_passed_name_by_name_from_its_root() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().canonicalize().unwrap();
    let mut here = Folder::root_of(&real).unwrap();
    for part in real.components() {
        if let std::path::Component::Normal(part) = part {
            here = here.pass(part).unwrap();
        }
    }
    assert_eq!(here.facts().unwrap().identity, facts::at(&real).unwrap().identity);
}

#[test]
fn file_is_no_folder_and_a_taken_name_is_not_created() {
    let (folder, open) = opened();
    open.create(name("file"), 0o666).unwrap().write_all(b"one").unwrap();
    assert_eq!(kind(open.pass(name("file"))), ErrorKind::NotADirectory);
    assert!(open.open_folder(name("file")).is_err());
    assert_eq!(kind(open.create(name("file"), 0o666)), ErrorKind::AlreadyExists);
    assert_eq!(kind(open.create_folder(name("file"), 0o777)), ErrorKind::AlreadyExists);
    assert_eq!(kind(open.pass(name("nothing"))), ErrorKind::NotFound);
    assert_eq!(kind(open.facts_of(name("nothing"))), ErrorKind::NotFound);
    assert_eq!(kind(open.read_link(name("file"))), ErrorKind::InvalidInput);
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"one");
}

#[test]
fn renaming_replaces_unless_it_must_not() {
    let (folder, open) = opened();
    for text in ["one", "two"] {
        open.create(name(text), 0o666).unwrap().write_all(text.as_bytes()).unwrap();
    }
    assert_eq!(kind(open.rename_if_free(name("one"), &open, name("two"))), ErrorKind::AlreadyExists);
    open.rename(name("one"), &open, name("two")).unwrap();
    assert_eq!(fs::read(folder.path().join("two")).unwrap(), b"one");
    open.rename_if_free(name("two"), &open, name("three")).unwrap();
    let names: Vec<_> = open.names().unwrap().map(Result::unwrap).collect();
    assert_eq!(names, ["three"]);
}

#[test]
fn only_the_letter_case_of_a_name_can_change() {
    let (_folder, open) = opened();
    drop(open.create(name("readme"), 0o666).unwrap());
    open.rename(name("readme"), &open, name("README")).unwrap();
    let names: Vec<_> = open.names().unwrap().map(Result::unwrap).collect();
    assert_eq!(names, ["README"]);
}

#[test]
fn folder_is_removed_when_it_is_empty_only() {
    let (_folder, open) = opened();
    open.create_folder(name("inner"), 0o777).unwrap();
    let inner = open.open_folder(name("inner")).unwrap();
    drop(inner.create(name("file"), 0o666).unwrap());
    let full = kind(open.remove_folder(name("inner")));
    assert!(matches!(full, ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists), "{full:?}");
    inner.remove(name("file")).unwrap();
    drop(inner);
    open.remove_folder(name("inner")).unwrap();
    assert_eq!(open.names().unwrap().count(), 0);
}

#[test]
fn links_are_never_followed() {
    let (folder, open) = opened();
    open.create_folder(name("inner"), 0o777).unwrap();
    drop(open.create(name("file"), 0o666).unwrap());
    for (target, link) in [("inner", "to folder"), ("file", "to file"), ("nothing", "to nothing")] {
        if open.create_link(name(target), name(link)).is_err() {
            return eprintln!("not tested here: this user may create no links");
        }
        assert_eq!(open.facts_of(name(link)).unwrap().kind, FileKind::Link);
        assert_eq!(open.read_link(name(link)).unwrap(), target);
        assert!(open.open(name(link), FileAccess::Read).is_err());
        assert!(open.open_folder(name(link)).is_err());
        assert_eq!(kind(open.pass(name(link))), ErrorKind::NotADirectory);
        open.remove(name(link)).unwrap();
    }
    assert!(folder.path().join("inner").is_dir() && folder.path().join("file").is_file());
}

#[test]
fn unnamed_file_appears_whole_or_not_at_all() {
    let (folder, open) = opened();
    let Some(mut file) = open.create_unnamed(0o666) else {
        return eprintln!("not tested here: every file has a name");
    };
    file.write_all(b"whole").unwrap();
    assert_eq!(open.names().unwrap().count(), 0);
    open.give_name(&file, name("file")).unwrap();
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"whole");
    assert_eq!(kind(open.give_name(&file, name("file"))), ErrorKind::AlreadyExists);
}

#[test]
fn file_is_opened_for_what_is_asked() {
    let (_folder, open) = opened();
    open.create(name("file"), 0o600).unwrap().write_all(b"text").unwrap();
    let mut text = String::new();
    open.open(name("file"), FileAccess::Read).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    assert!(open.open(name("file"), FileAccess::Read).unwrap().write_all(b"x").is_err());
    open.open(name("file"), FileAccess::Write).unwrap().write_all(b"more").unwrap();
    let known = open.facts_of(name("file")).unwrap();
    assert_eq!((known.kind, known.size, known.links), (FileKind::File, 4, 1));
    assert_eq!(known, facts::of(&open.open(name("file"), FileAccess::Both).unwrap()).unwrap());
}
