//! The state folder: whose it is, who may read it, and who holds it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::Path;

use ahp_sidecar::store::folder::{FolderError, StateFolder};

use super::{beside, open, FILE_NAME};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn state_folder_and_its_files_are_private() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("a/b");
    let folder = StateFolder::hold(&path).unwrap();
    let database = folder.private_file(FILE_NAME).unwrap();
    let _writer = open(&database);
    assert_eq!(mode(&path), 0o700);
    let mark = path.join("sessions.made");
    for file in [&database, &beside(&database, "-wal"), &beside(&database, "-shm"), &path.join("lock"), &mark]
    {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
}

#[test]
fn permissions_of_an_open_state_folder_are_tightened() {
    let outer = tempfile::tempdir().unwrap();
    fs::set_permissions(outer.path(), Permissions::from_mode(0o777)).unwrap();
    fs::write(outer.path().join(FILE_NAME), "").unwrap();
    fs::set_permissions(outer.path().join(FILE_NAME), Permissions::from_mode(0o644)).unwrap();
    let folder = StateFolder::hold(outer.path()).unwrap();
    let database = folder.private_file(FILE_NAME).unwrap();
    assert_eq!((mode(outer.path()), mode(&database)), (0o700, 0o600));
}

#[test]
fn state_folder_lock_has_one_holder() {
    let outer = tempfile::tempdir().unwrap();
    let folder = StateFolder::hold(outer.path()).unwrap();
    let refused = StateFolder::hold(outer.path()).unwrap_err();
    assert!(matches!(refused, FolderError::Held { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    assert_eq!(refused.to_string().lines().count(), 1);
    drop(folder);
    StateFolder::hold(outer.path()).unwrap();
}

#[test]
fn link_to_a_folder_of_another_user_is_refused() {
    let outer = tempfile::tempdir().unwrap();
    let (theirs, link) = (outer.path().join("theirs"), outer.path().join("link"));
    let target = if rustix::process::geteuid().is_root() {
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        &theirs
    } else {
        Path::new("/")
    };
    symlink(target, &link).unwrap();
    let before = mode(target);
    let refused = StateFolder::hold(&link).unwrap_err();
    assert!(refused.to_string().contains("symbolic link to a folder of another user"), "{refused}");
    let refused = StateFolder::hold(target).unwrap_err();
    assert!(refused.to_string().contains("belongs to another user"), "{refused}");
    assert_eq!(mode(target), before);
    assert!(!target.join("lock").exists());
}

#[test]
fn link_to_a_folder_of_the_same_user_is_followed() {
    let outer = tempfile::tempdir().unwrap();
    fs::create_dir(outer.path().join("ours")).unwrap();
    symlink("ours", outer.path().join("link")).unwrap();
    let _folder = StateFolder::hold(&outer.path().join("link")).unwrap();
    assert!(outer.path().join("ours/lock").exists());
    StateFolder::hold(&outer.path().join("ours")).unwrap_err();
}

#[test]
fn path_that_is_no_folder_is_refused() {
    let outer = tempfile::tempdir().unwrap();
    let file = outer.path().join("file");
    fs::write(&file, "x").unwrap();
    symlink("nowhere", outer.path().join("link")).unwrap();
    for path in [&file, &file.join("below"), &outer.path().join("link")] {
        let refused = StateFolder::hold(path).unwrap_err();
        assert!(matches!(refused, FolderError::Io { .. }), "{refused}");
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "x");
    assert!(StateFolder::hold_existing(&outer.path().join("none")).is_err());
    assert!(StateFolder::look_into(&outer.path().join("none")).is_err());
    assert!(!outer.path().join("none").exists());
}

#[test]
fn folder_with_another_purpose_is_left_unchanged() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("shared");
    fs::create_dir(&path).unwrap();
    let left_alone = |others_may: u32, files: usize| {
        fs::set_permissions(&path, Permissions::from_mode(others_may)).unwrap();
        let refused = StateFolder::hold(&path).unwrap_err().to_string();
        assert!(refused.contains("chmod 700") && refused.contains("--state-dir"), "{refused}");
        assert_eq!(mode(&path), others_may);
        assert_eq!(fs::read_dir(&path).unwrap().count(), files);
    };
    // As the system's folder for what is temporary may be.
    left_alone(0o1777, 0);
    fs::write(path.join("notes.txt"), "").unwrap();
    for others_may in [0o1777, 0o755, 0o710, 0o701] {
        left_alone(others_may, 1);
    }
    // For whom it is meant can say so.
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    drop(StateFolder::hold(&path).unwrap());
    // A lock that somebody held says nothing of a store.
    left_alone(0o755, 2);
}

#[test]
fn database_of_another_program_does_not_make_a_state_folder() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("shared");
    fs::create_dir(&path).unwrap();
    rusqlite::Connection::open(path.join(FILE_NAME)).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    StateFolder::hold(&path).unwrap_err();
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn read_only_access_changes_nothing_and_blocks_exclusive_holders() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("state");
    drop(StateFolder::hold(&path).unwrap());
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    fs::write(path.join("lock"), "1").unwrap();
    let looking = StateFolder::look_into(&path).unwrap();
    let also = StateFolder::look_into(&path).unwrap();
    assert_eq!((mode(&path), fs::read_to_string(path.join("lock")).unwrap()), (0o755, "1".to_owned()));
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    let refused = StateFolder::hold(&path).unwrap_err();
    assert!(matches!(refused, FolderError::Held { .. }), "{refused}");
    drop((looking, also));
    // Who holds it goes on, and may be watched.
    let _holder = StateFolder::hold(&path).unwrap();
    drop(StateFolder::look_into(&path).unwrap());
    assert!(matches!(StateFolder::hold(&path).unwrap_err(), FolderError::Held { .. }));
}
