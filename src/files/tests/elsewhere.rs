//! Changes between file systems, on full disks, with mounts, and without permissions.
//!
//! Owns: child processes with the environment that a test needs: the test runs itself again there,
//! or reports that the environment is unavailable.
//! Never: mounts anything that other processes see.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::{openat, Mode, OFlags};

use crate::files::folders::{Folders, PathRefusal};
use crate::files::writing::{WritePosition, WriteRequest};

/// Variable that names the test folder of a child process.
const GROUND: &str = "AHP_SIDECAR_TEST_GROUND";

/// User id of `nobody`.
const NOBODY: u32 = 65534;

fn skip(why: &str) {
    eprintln!("not tested here: {why}");
}

/// Returns the test folder, if this is the child process.
fn ground() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os(GROUND)?).canonicalize().unwrap())
}

/// Runs a test again in a child process, started through `words` after the command `before`.
fn again(test: &str, ground: &Path, words: &[&str], before: &str) {
    let run = ground.join("run");
    let own = std::env::current_exe().unwrap();
    fs::hard_link(&own, &run).or_else(|_| fs::copy(&own, &run).map(drop)).unwrap();
    let script = format!(
        "cd \"${GROUND}\" && {before} || exit 77\nexec ./run --exact files::tests::elsewhere::{test}"
    );
    let ran = Command::new(words[0])
        .args(&words[1..])
        .args(["sh", "-c", &script])
        .env(GROUND, ground)
        .env_remove("TMPDIR")
        .output();
    let Ok(ran) = ran else { return skip(&format!("there is no `{}`", words[0])) };
    let output = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    match ran.status.code() {
        Some(0) => assert!(output.contains("1 passed"), "{output}"),
        Some(1 | 77 | 126 | 127) => skip(&output),
        _ => panic!("{output}"),
    }
}

/// Command prefix for a mount namespace of its own.
const ALONE: [&str; 2] = ["unshare", "-rm"];

fn names_in(folder: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(folder).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Creates two folders on different file systems.
fn two_file_systems() -> Option<(tempfile::TempDir, tempfile::TempDir)> {
    let one = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir_in("/dev/shm").ok()?;
    let device = |folder: &tempfile::TempDir| fs::metadata(folder.path()).unwrap().dev();
    (device(&one) != device(&other)).then_some((one, other))
}

#[test]
fn what_is_put_into_a_folder_while_it_is_moved_to_another_file_system_is_not_lost() {
    let Some((one, other)) = two_file_systems() else { return skip("there is one file system") };
    let (one, other) = (one.path().canonicalize().unwrap(), other.path().canonicalize().unwrap());
    let (source, target) = (one.join("source"), other.join("target"));
    let folders = Folders::new(vec![one.clone(), other.clone()]);
    fs::create_dir_all(source.join("deeper")).unwrap();
    for name in 0..3000 {
        fs::write(source.join(format!("deeper/{name}")), "x").unwrap();
    }
    let opened = fs::File::open(&source).unwrap();
    let (by_name, by_folder, moved) = thread::scope(|scope| {
        let putting = scope.spawn(|| {
            while names_in(&other).is_empty() {
                thread::yield_now();
            }
            // Waits until the content of the folder is being copied.
            while !fs::read_dir(&other).unwrap().any(|made| {
                made.is_ok_and(|made| made.path().join("deeper/0").exists() || made.path() == target)
            }) {
                thread::yield_now();
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let by_name = fs::File::create_new(source.join("by name")).is_ok();
            (by_name, openat(&opened, "by folder", flags, Mode::RUSR).is_ok())
        });
        let moved = folders.rename(&source, &target, false);
        let (by_name, by_folder) = putting.join().unwrap();
        (by_name, by_folder, moved)
    });
    for (name, is_put) in [("by name", by_name), ("by folder", by_folder)] {
        assert!(!is_put || source.join(name).exists() || target.join(name).exists(), "{name}: {moved:?}");
    }
    // The source is not found under its name, and a file added to it is kept.
    assert!(!by_name, "{moved:?}");
    assert_eq!(moved.is_err(), by_folder, "{moved:?}");
    assert_eq!(names_in(&target.join("deeper")).len(), 3000);
    let left: &[&str] = if by_folder { &["source"] } else { &[] };
    assert_eq!(names_in(&one), left.iter().map(|&name| name.to_owned()).collect());
    if by_folder {
        let why = moved.unwrap_err().to_string();
        assert!(why.starts_with("it has changed") && why.ends_with("after it was copied"), "{why}");
    }
}

#[test]
fn what_cannot_be_moved_to_another_file_system_keeps_its_name() {
    let Some((one, other)) = two_file_systems() else { return skip("there is one file system") };
    let (one, other) = (one.path().canonicalize().unwrap(), other.path().canonicalize().unwrap());
    let folders = Folders::new(vec![one.clone(), other.clone()]);
    fs::create_dir_all(one.join("source/deeper")).unwrap();
    fs::write(one.join("source/deeper/file"), "x").unwrap();
    fs::write(one.join("file"), "of one").unwrap();
    std::os::unix::fs::symlink("nowhere", one.join("link")).unwrap();
    fs::create_dir_all(other.join("full/deeper")).unwrap();
    fs::write(other.join("file"), "of other").unwrap();
    assert!(Command::new("mkfifo").arg(one.join("source/pipe")).status().unwrap().success());
    for (from, to) in [("source", "full"), ("source", "file"), ("file", "full"), ("source", "new")] {
        assert!(folders.rename(&one.join(from), &other.join(to), false).is_err(), "{from} {to}");
        assert_eq!(names_in(&one), ["file", "link", "source"].map(str::to_owned).into());
        assert_eq!(names_in(&other), ["file", "full"].map(str::to_owned).into());
    }
    fs::remove_file(one.join("source/pipe")).unwrap();
    for (from, to) in [("source", "new"), ("file", "file"), ("link", "link")] {
        folders.rename(&one.join(from), &other.join(to), false).unwrap();
    }
    assert_eq!(names_in(&one), BTreeSet::new());
    assert_eq!(names_in(&other), ["file", "full", "link", "new"].map(str::to_owned).into());
    assert_eq!(fs::read_to_string(other.join("new/deeper/file")).unwrap(), "x");
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "of one");
}

#[test]
fn a_change_for_which_there_is_no_room_leaves_a_large_file_as_it_was() {
    let Some(ground) = ground() else {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("small")).unwrap();
        return again(
            "a_change_for_which_there_is_no_room_leaves_a_large_file_as_it_was",
            folder.path(),
            &ALONE,
            "mount -t tmpfs -o size=20m tmpfs small",
        );
    };
    let path = ground.join("small/large");
    let old: Vec<u8> = (0..17 << 20).map(|at: u32| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    fs::write(&path, &old).unwrap();
    let folders = Folders::new(vec![ground.join("small")]);
    let content = vec![b'x'; 8 << 20];
    for put in [
        WritePosition::Append(0),
        WritePosition::Truncate((17 << 20) - 100),
        WritePosition::Truncate(14 << 20),
        WritePosition::Truncate(1),
    ] {
        let writing = WriteRequest { put, ..WriteRequest::whole(&content) };
        let failed = folders.put(&path, &writing);
        assert!(matches!(failed, Err(PathRefusal::Failed(_))), "{put:?} {failed:?}");
        assert!(fs::read(&path).unwrap() == old, "{put:?}");
        assert_eq!(names_in(&ground.join("small")), ["large".to_owned()].into());
    }
}

#[cfg(not(feature = "portable"))]
#[test]
fn what_is_mounted_again_in_a_folder_is_neither_removed_nor_copied() {
    let Some(ground) = ground() else {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("inside/a/b/mounted")).unwrap();
        fs::create_dir_all(folder.path().join("inside/c")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        for name in ["inside/a/file", "inside/c/mounted", "outside/file"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        return again(
            "what_is_mounted_again_in_a_folder_is_neither_removed_nor_copied",
            folder.path(),
            &ALONE,
            "mount --bind outside inside/a/b/mounted && mount --bind outside/file inside/c/mounted",
        );
    };
    let folders = Folders::new(vec![ground.join("inside")]);
    let at = |name: &str| ground.join("inside").join(name);
    for name in ["a", "a/b", "c"] {
        for refused in [folders.remove(&at(name), true), folders.copy(&at(name), &at("new"), false)] {
            assert!(
                matches!(&refused, Err(PathRefusal::Unfit(why)) if why.contains("mounted")),
                "{name} {refused:?}"
            );
        }
    }
    assert_eq!(names_in(&at("a")), ["b", "file"].map(str::to_owned).into());
    assert_eq!(names_in(&ground.join("outside")), ["file".to_owned()].into());
    assert_eq!(names_in(&at("")), ["a", "c"].map(str::to_owned).into());
    // A mounted file system itself can be copied.
    folders.copy(&at("a/b/mounted"), &at("new"), false).unwrap();
    assert_eq!(names_in(&at("new")), ["file".to_owned()].into());
}

#[test]
fn a_copy_that_fails_leaves_nothing_even_where_its_folders_are_closed() {
    let test = "a_copy_that_fails_leaves_nothing_even_where_its_folders_are_closed";
    let Some(ground) = ground() else {
        let folder = tempfile::tempdir().unwrap();
        let is_root = fs::metadata(folder.path()).unwrap().uid() == 0;
        fs::create_dir(folder.path().join("inside")).unwrap();
        if !is_root {
            return again(test, folder.path(), &["env"], "true");
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        // Root of a container may have no other user.
        if let Err(error) = chown(folder.path().join("inside"), Some(NOBODY), Some(NOBODY)) {
            return skip(&format!("nothing can be given to another user: {error}"));
        }
        let words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        return again(test, folder.path(), &words, "true");
    };
    let inside = ground.join("inside");
    let folders = Folders::new(vec![inside.clone()]);
    let source = inside.join("source");
    let closed = |mode: u32| {
        for name in 0..8 {
            fs::set_permissions(source.join(format!("{name}/closed")), Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(source.join(format!("{name}")), Permissions::from_mode(mode)).unwrap();
        }
    };
    for name in 0..8 {
        fs::create_dir_all(source.join(format!("{name}/closed"))).unwrap();
        fs::write(source.join(format!("{name}/closed/file")), "x").unwrap();
    }
    fs::write(source.join("secret"), "x").unwrap();
    fs::set_permissions(source.join("secret"), Permissions::from_mode(0o000)).unwrap();
    closed(0o555);
    let failed = folders.copy(&source, &inside.join("new"), false);
    assert!(matches!(failed, Err(PathRefusal::Failed(_))), "{failed:?}");
    assert_eq!(names_in(&inside), ["source".to_owned()].into());
    // A successful copy has the modes of its source.
    fs::set_permissions(source.join("secret"), Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o500)).unwrap();
    folders.copy(&source, &inside.join("new"), false).unwrap();
    let mode = |name: &str| fs::metadata(inside.join("new").join(name)).unwrap().mode() & 0o777;
    assert_eq!(["", "0", "7/closed", "secret"].map(mode), [0o500, 0o555, 0o555, 0o400]);
    // An unwritable target receives no copy.
    let failed = folders.copy(&source, &inside.join("new"), false);
    assert!(failed.is_err_and(|why| why.to_string().contains("not empty")));
    assert_eq!(names_in(&inside), ["new", "source"].map(str::to_owned).into());
    let opened = Command::new("chmod").args(["-R", "u+rwx", "."]).current_dir(&inside).status();
    assert!(opened.unwrap().success());
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn nothing_is_made_where_the_kernel_shows_what_is_no_file() {
    let mut tested = 0;
    for name in ["/proc", "/dev/pts", "/dev/mqueue", "/sys/fs/cgroup", "/sys/fs/bpf", "/sys/kernel/config"] {
        let known = Command::new("stat").args(["-f", "-c", "%T", name]).output().unwrap();
        if !known.status.success()
            || ["tmpfs", "ramfs"].contains(&String::from_utf8_lossy(&known.stdout).trim())
        {
            continue;
        }
        tested += 1;
        let top = Path::new(name);
        let folders = Folders::new(vec![top.to_owned()]);
        let new = top.join("ahp-sidecar-test");
        for refused in [
            folders.make_folder(&new),
            folders.make_folder(&new.join("deeper")),
            folders.write(&new, b"x"),
            folders.write(&new.join("deeper/file"), b"x"),
        ] {
            let is_there = new.exists();
            if is_there {
                drop(fs::remove_dir(new.join("deeper")));
                drop(fs::remove_dir(&new).or_else(|_| fs::remove_file(&new)));
            }
            assert!(matches!(refused, Err(PathRefusal::NotAFile(_))) && !is_there, "{name}: {refused:?}");
        }
    }
    assert!(tested > 0);
}

#[test]
fn a_file_that_is_moved_to_another_name_of_it_has_one_less() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    fs::create_dir(top.join("deeper")).unwrap();
    let folders = Folders::new(vec![top.clone()]);
    for to in ["h2", "deeper/h2"] {
        fs::write(top.join("h1"), "x").unwrap();
        fs::hard_link(top.join("h1"), top.join(to)).unwrap();
        assert!(matches!(
            folders.rename(&top.join("h1"), &top.join(to), true),
            Err(PathRefusal::Destination(_))
        ));
        // A rename to the same name changes nothing.
        folders.rename(&top.join("h1"), &top.join("h1"), false).unwrap();
        assert_eq!(fs::metadata(top.join("h1")).unwrap().nlink(), 2);
        folders.rename(&top.join("h1"), &top.join(to), false).unwrap();
        assert!(!top.join("h1").exists());
        assert_eq!(fs::metadata(top.join(to)).unwrap().nlink(), 1);
        fs::remove_file(top.join(to)).unwrap();
    }
    assert_eq!(names_in(&top), ["deeper".to_owned()].into());
}

#[test]
fn what_may_be_changed_is_asked_of_the_file_system_too() {
    let Some(ground) = ground() else {
        let folder = tempfile::tempdir().unwrap();
        let before = "mkdir shut && touch shut/file && mount -t tmpfs -o ro none shut";
        return again("what_may_be_changed_is_asked_of_the_file_system_too", folder.path(), &ALONE, before);
    };
    let folders = Folders::new(vec![ground.clone()]);
    folders.may_change(&ground.join("file")).unwrap();
    folders.may_change(&ground.join("a/new/file")).unwrap();
    for shut in ["shut", "shut/file", "shut/a/new/file"] {
        let refused = folders.may_change(&ground.join(shut)).unwrap_err();
        let PathRefusal::Failed(error) = &refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{shut}");
    }
}
