//! Single changes: modes, large files, the host's own files, and limits.
//!
//! Owns: effects that only the file system shows; messages to clients are in the transcripts.
//! Never: takes long.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::folders::{Folders, HostFile, PathRefusal, WorkFolder};
use crate::files::writing::{WritePosition, WriteRequest};

fn top(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().canonicalize().unwrap()
}

fn write(folders: &Folders, path: &Path, put: WritePosition) -> Result<(), PathRefusal> {
    folders.put(path, &WriteRequest { put, ..WriteRequest::whole(b"new") })
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_file_keeps_its_mode_and_another_name_of_it_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let (top, path) = (top(&folder), top(&folder).join("file"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(&path, top.join("twin")).unwrap();
    let folders = Folders::new(vec![top.clone()]);
    for (put, content) in [
        (WritePosition::Append(0), "oldnew"),
        (WritePosition::Insert(1), "onewldnew"),
        (WritePosition::Truncate(0), "new"),
    ] {
        write(&folders, &path, put).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    }
    assert_eq!(fs::read_to_string(top.join("twin")).unwrap(), "old");
    assert_eq!(names_in(&top), ["file", "twin"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_keeps_its_attributes_and_not_what_makes_somebody_else_of_who_runs_it() {
    use rustix::fs::{getxattr, setxattr, XattrFlags};

    let folder = tempfile::tempdir().unwrap();
    let (top, path) = (top(&folder), top(&folder).join("file"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    let has_attributes = setxattr(&path, "user.kept", b"so", XattrFlags::empty()).is_ok();
    write(&Folders::new(vec![top]), &path, WritePosition::Truncate(0)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    let mut value = [0; 8];
    if has_attributes {
        let length = getxattr(&path, "user.kept", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"so");
    }
}

#[test]
fn a_large_file_is_changed_at_its_end_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let path = top(&folder).join("large");
    fs::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    let folders = Folders::new(vec![top(&folder)]);
    let known = |path: &Path| fs::metadata(path).map(|known| (known.ino(), known.len())).unwrap();
    let (number, bytes) = known(&path);
    write(&folders, &path, WritePosition::Append(0)).unwrap();
    assert_eq!(known(&path), (number, bytes + 3));
    write(&folders, &path, WritePosition::Truncate(bytes)).unwrap();
    assert_eq!(known(&path), (number, bytes + 3));
    // A file with another hard link is not changed in place.
    fs::hard_link(&path, top(&folder).join("twin")).unwrap();
    write(&folders, &path, WritePosition::Append(0)).unwrap();
    assert_ne!(known(&path).0, number);
    assert_eq!((known(&path).1, known(&top(&folder).join("twin"))), (bytes + 6, (number, bytes + 3)));
    let (number, bytes) = known(&path);
    write(&folders, &path, WritePosition::Insert(1)).unwrap();
    assert_eq!(known(&path).1, bytes + 3);
    assert_ne!(known(&path).0, number);
}

#[test]
fn a_file_in_a_folder_that_takes_nothing_new_is_changed_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let closed = top(&folder).join("closed");
    fs::create_dir(&closed).unwrap();
    let path = closed.join("file");
    fs::write(&path, "0123456789").unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();
    // The superuser may write everywhere.
    if fs::write(closed.join("probe"), "").is_err() {
        let folders = Folders::new(vec![top(&folder)]);
        for (put, content) in [
            (WritePosition::Insert(2), "01new23456789"),
            (WritePosition::Truncate(4), "01nenew"),
            (WritePosition::Truncate(0), "new"),
        ] {
            write(&folders, &path, put).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert!(folders.remove(&path, false).is_err());
    }
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn what_is_the_hosts_own_is_not_changed_by_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    for name in ["state/deeper", "conf", "other"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    for name in ["state/db", "state/deeper/db", "token", "other/file", "other/config.toml"] {
        fs::write(top.join(name), "own").unwrap();
    }
    symlink("state", top.join("link")).unwrap();
    fs::hard_link(top.join("token"), top.join("twin")).unwrap();
    let own =
        ["state", "conf/ahp/config.toml", "token"].iter().flat_map(|name| HostFile::find(&top.join(name)));
    let folders = Folders::of(vec![Arc::new(WorkFolder::find(top.clone()).unwrap())], own.collect());
    let is_own = |outcome: Result<(), PathRefusal>| {
        let refusal = outcome.unwrap_err();
        let is = matches!(&refusal, PathRefusal::Own)
            || matches!(&refusal, PathRefusal::Destination(inner) if matches!(**inner, PathRefusal::Own));
        assert!(is, "{refusal:?}");
    };
    for name in [
        "state/db",
        "state/new",
        "state/deeper/db",
        "link/db",
        "other/../state/db",
        "STATE/db",
        "token",
        "twin",
    ] {
        if name.starts_with("STATE") && !top.join("STATE").exists() {
            continue;
        }
        let path = top.join(name);
        is_own(write(&folders, &path, WritePosition::Truncate(0)));
        is_own(folders.may_change(&path));
        is_own(folders.rename(&top.join("other/file"), &path, false));
        is_own(folders.copy(&top.join("other/file"), &path, false));
        if path.exists() {
            is_own(folders.remove(&path, true));
        }
    }
    is_own(folders.remove(&top.join("state"), true));
    is_own(folders.rename(&top.join("state"), &top.join("gone"), false));
    is_own(folders.make_folder(&top.join("state/new")));
    is_own(folders.make_folder(&top.join("conf/ahp/config.toml")));
    fs::remove_dir(top.join("conf/ahp")).unwrap();
    // A folder that contains such a file, or its future path: a configuration names programs.
    is_own(folders.remove(&top.join("conf"), true));
    is_own(folders.rename(&top.join("other"), &top.join("conf/ahp"), false));
    is_own(folders.copy(&top.join("other"), &top.join("conf/ahp"), false));
    folders.make_folder(&top.join("conf/ahp")).unwrap();
    is_own(write(&folders, &top.join("conf/ahp/config.toml"), WritePosition::Truncate(0)));
    is_own(folders.rename(&top.join("other/config.toml"), &top.join("conf/ahp/CONFIG.toml"), false));
    folders.copy(&top.join("token"), &top.join("other/token"), false).unwrap();
    for name in ["state/db", "state/deeper/db", "token", "other/file", "other/config.toml"] {
        assert_eq!(fs::read_to_string(top.join(name)).unwrap(), "own", "{name}");
    }
    assert_eq!(names_in(&top.join("state")), ["db", "deeper"]);
}

#[test]
fn folders_are_so_deep_and_no_deeper() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    let deep = |count: usize| (0..count).fold(top.join("a"), |path, _| path.join("a"));
    let folders = Folders::new(vec![top.clone()]);
    // The innermost name is a file.
    fs::create_dir_all(deep(127)).unwrap();
    folders.copy(&top.join("a"), &top.join("b"), true).unwrap();
    folders.remove(&top.join("b"), true).unwrap();
    fs::create_dir(deep(128)).unwrap();
    for refused in [folders.copy(&top.join("a"), &top.join("b"), true), folders.remove(&top.join("a"), true)]
    {
        assert!(matches!(refused, Err(PathRefusal::Unfit(why)) if why.contains("128 deep")));
    }
    assert!(deep(128).exists());
    assert_eq!(names_in(&top), ["a"]);
    // Nor are folders created so deep that a recursive removal would refuse them.
    let other = |count: usize| (0..count).fold(top.join("c"), |path, _| path.join("c"));
    folders.make_folder(&other(127)).unwrap();
    for refused in [folders.make_folder(&other(128)), folders.write(&other(128).join("file"), b"x")] {
        assert!(matches!(refused, Err(PathRefusal::Unfit(_))), "{refused:?}");
    }
    folders.make_folder(&other(127)).unwrap();
    folders.make_folder(&deep(128)).unwrap();
    folders.remove(&top.join("c"), true).unwrap();
}

#[test]
fn so_many_files_are_removed_and_copied_at_once_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    fs::create_dir(top.join("many")).unwrap();
    for name in 0..=100_000 {
        fs::write(top.join(format!("many/{name}")), "").unwrap();
    }
    let folders = Folders::new(vec![top.clone()]);
    for refused in
        [folders.copy(&top.join("many"), &top.join("b"), false), folders.remove(&top.join("many"), true)]
    {
        assert!(matches!(refused, Err(PathRefusal::Unfit(why)) if why.contains("100000")));
    }
    assert_eq!(names_in(&top), ["many"]);
    assert_eq!(fs::read_dir(top.join("many")).unwrap().count(), 100_001);
    fs::remove_file(top.join("many/0")).unwrap();
    folders.remove(&top.join("many"), true).unwrap();
    assert_eq!(names_in(&top), [""; 0]);
}

#[test]
fn a_copy_is_what_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let top = top(&folder);
    fs::create_dir_all(top.join("a/closed")).unwrap();
    fs::write(top.join("a/run"), "x").unwrap();
    fs::set_permissions(top.join("a/run"), Permissions::from_mode(0o750)).unwrap();
    fs::write(top.join("a/closed/file"), "x").unwrap();
    fs::set_permissions(top.join("a/closed"), Permissions::from_mode(0o550)).unwrap();
    symlink("/etc", top.join("a/link")).unwrap();
    let folders = Folders::new(vec![top.clone()]);
    folders.copy(&top.join("a"), &top.join("b"), false).unwrap();
    let mode = |name: &str| fs::metadata(top.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("b/run"), mode("b/closed")), (0o750, 0o550));
    assert_eq!(fs::read_link(top.join("b/link")).unwrap(), Path::new("/etc"));
    assert_eq!(fs::read_to_string(top.join("b/closed/file")).unwrap(), "x");
    for name in ["a/closed", "b/closed"] {
        fs::set_permissions(top.join(name), Permissions::from_mode(0o700)).unwrap();
    }
}

/// The old file stays unchanged until the new one replaces it, so that a killed process leaves one
/// of the two.
#[test]
fn file_opened_before_a_write_is_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (top, path) = (top(&folder), top(&folder).join("file"));
    let folders = Folders::new(vec![top.clone()]);
    let puts = [
        WritePosition::Truncate(0),
        WritePosition::Truncate(1),
        WritePosition::Append(0),
        WritePosition::Append(2),
        WritePosition::Insert(0),
        WritePosition::Insert(2),
    ];
    for put in puts {
        fs::write(&path, "0123").unwrap();
        let mut opened = fs::File::open(&path).unwrap();
        write(&folders, &path, put).unwrap();
        let mut found = String::new();
        opened.read_to_string(&mut found).unwrap();
        assert_eq!(found, "0123", "{put:?}");
        assert!(fs::read_to_string(&path).unwrap().contains("new"));
    }
    folders.write(&path, b"all").unwrap();
    assert_eq!(names_in(&top), ["file"]);
}
