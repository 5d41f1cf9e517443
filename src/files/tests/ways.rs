//! Paths through a small set of folders, and out of it.
//!
//! Owns: misleading links, folders and files.
//! Never: speaks a protocol.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use crate::files::folders::{Folders, PathRefusal};

/// Folders of a test: `inside` and `also` are allowed, `outside` is not; `secret` is a file
/// outside.
struct Ground {
    folder: tempfile::TempDir,
    folders: Folders,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["inside/sub", "also", "outside"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("outside/secret"), "secret").unwrap();
        fs::write(folder.path().join("inside/file"), "inside").unwrap();
        fs::write(folder.path().join("also/file"), "also").unwrap();
        let folders = Folders::new(vec![folder.path().join("inside"), folder.path().join("also")]);
        Self { folder, folders }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn link(&self, target: impl AsRef<Path>, name: &str) {
        symlink(target, self.path(name)).unwrap();
    }

    fn read(&self, name: &str) -> Result<String, String> {
        let mut file = self.folders.open(&self.path(name)).map_err(|refusal| refusal.to_string())?;
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    fn write(&self, name: &str) -> Result<(), String> {
        self.folders.write(&self.path(name), b"written").map_err(|refusal| refusal.to_string())
    }
}

const OUTSIDE: &str = "it is outside of the session's working directories";

#[test]
fn every_way_that_stays_inside_is_open() {
    let ground = Ground::new();
    ground.link("file", "inside/relative");
    ground.link(ground.path("inside/file"), "inside/absolute");
    ground.link("..", "inside/sub/up");
    ground.link("../also", "inside/over");
    ground.link(ground.path("inside"), "another-name");
    for name in [
        "inside/file",
        "inside/./sub/../file",
        "inside/relative",
        "inside/absolute",
        "inside/sub/up/file",
        "inside/sub/up/sub/../relative",
        "another-name/file",
    ] {
        assert_eq!(ground.read(name).as_deref(), Ok("inside"), "{name}");
    }
    for name in ["also/file", "inside/../also/file", "inside/over/file", "inside/sub/../../also/file"] {
        assert_eq!(ground.read(name).as_deref(), Ok("also"), "{name}");
    }
    let folder =
        |name: &str| ground.folders.folder(&ground.path(name)).map_err(|refusal| refusal.to_string());
    let real = |name: &str| Ok(ground.path(name).canonicalize().unwrap());
    assert_eq!(folder("inside"), real("inside"));
    assert_eq!(folder("inside/sub/up/sub"), real("inside/sub"));
    assert_eq!(folder("inside/over"), real("also"));
    assert!(folder("inside/file").is_err() && folder("outside").is_err() && folder("inside/no").is_err());
}

#[test]
fn no_way_leads_outside() {
    let ground = Ground::new();
    ground.link(ground.path("outside/secret"), "inside/link");
    ground.link("../outside", "inside/folder");
    ground.link("link", "inside/link-to-link");
    ground.link("sub/../../outside/secret", "inside/long-way");
    for name in [
        "outside/secret",
        "inside/../outside/secret",
        "inside/sub/../../outside/secret",
        "inside/../inside/../outside/secret",
        "inside/link",
        "inside/link-to-link",
        "inside/folder/secret",
        "inside/folder/../outside/secret",
        "inside/long-way",
        "inside/../../../../../../../../../../etc/passwd",
    ] {
        assert_eq!(ground.read(name).unwrap_err(), OUTSIDE, "{name}");
        assert_eq!(ground.write(name).unwrap_err(), OUTSIDE, "{name}");
    }
    assert_eq!(ground.write("inside/folder/new").unwrap_err(), OUTSIDE);
    assert_eq!(ground.write("inside/folder/new/file").unwrap_err(), OUTSIDE);
    assert_eq!(fs::read_dir(ground.path("outside")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(ground.path("outside/secret")).unwrap(), "secret");
    let refusal = ground.folders.open(Path::new("inside/file")).unwrap_err();
    assert_eq!(refusal.to_string(), "it is not an absolute path");
}

#[test]
fn a_folder_of_ours_that_has_become_a_link_is_none() {
    let ground = Ground::new();
    fs::rename(ground.path("also"), ground.path("gone")).unwrap();
    ground.link("outside", "also");
    assert_eq!(ground.read("also/secret").unwrap_err(), OUTSIDE);
    assert_eq!(ground.write("also/new").unwrap_err(), OUTSIDE);
}

#[test]
fn a_link_to_a_folder_of_ours_stays_and_once_turned_leads_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    for name in ["above", "real", "other"] {
        fs::create_dir(top.join(name)).unwrap();
    }
    let (link, file) = (top.join("above/link"), top.join("above/link/file"));
    symlink(top.join("real"), &link).unwrap();
    let folders = Folders::new(vec![link.clone(), top.join("above")]);
    folders.write(&file, b"one").unwrap();
    for refused in [folders.remove(&link, false), folders.rename(&link, &top.join("above/x"), false)] {
        assert!(matches!(refused, Err(PathRefusal::Unfit(_))), "{refused:?}");
    }
    fs::remove_file(&link).unwrap();
    assert!(matches!(folders.write(&file, b"two"), Err(PathRefusal::Outside)), "it leads nowhere");
    symlink(top.join("other"), &link).unwrap();
    assert!(matches!(folders.write(&file, b"two"), Err(PathRefusal::Outside)));
    assert_eq!(fs::read_to_string(top.join("real/file")).unwrap(), "one");
    assert!(!top.join("other/file").exists());
    folders.write(&top.join("real/file"), b"three").unwrap();
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let ground = Ground::new();
    let made = std::process::Command::new("mkfifo").arg(ground.path("inside/pipe")).status().unwrap();
    assert!(made.success());
    ground.link("loop", "inside/loop");
    for (name, why) in [
        ("inside", "it is a folder"),
        ("inside/sub", "it is a folder"),
        ("inside/pipe", "it is a device, a pipe or a socket"),
        ("inside/file/x", "Not a directory (os error 20)"),
        ("inside/file/x/y", "Not a directory (os error 20)"),
    ] {
        assert_eq!(ground.read(name).unwrap_err(), why, "{name}");
        assert_eq!(ground.write(name).unwrap_err(), why, "{name}");
    }
    assert!(ground.read("inside/loop").unwrap_err().contains("ymbolic link"));
    let missing = ground.folders.open(&ground.path("inside/no/such")).unwrap_err();
    assert!(missing.is_missing() && missing.to_string().starts_with("No such file"), "{missing}");
}

#[test]
fn a_write_replaces_the_file_and_leaves_nothing_else() {
    let ground = Ground::new();
    let path = ground.path("inside/file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    fs::hard_link(&path, ground.path("outside/twin")).unwrap();
    ground.link("file", "inside/link");
    ground.write("inside/link").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "written");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o750);
    assert!(fs::symlink_metadata(ground.path("inside/link")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(ground.path("outside/twin")).unwrap(), "inside");
    ground.write("inside/new/folders/file").unwrap();
    assert_eq!(fs::read_to_string(ground.path("inside/new/folders/file")).unwrap(), "written");
    // A dangling link denotes the file to be created.
    ground.link("sub/made", "inside/dangling");
    ground.write("inside/dangling").unwrap();
    assert_eq!(fs::read_to_string(ground.path("inside/sub/made")).unwrap(), "written");
    let names = fs::read_dir(ground.path("inside")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["dangling", "file", "link", "new", "sub"]);
}

/// Replaces a folder by a link to the outside and back, as fast as possible, while it is used.
#[cfg(target_os = "linux")]
#[test]
fn what_is_swapped_at_any_moment_leads_nowhere_else() {
    let ground = Ground::new();
    fs::create_dir(ground.path("inside/swapped")).unwrap();
    fs::write(ground.path("inside/swapped/secret"), "inside").unwrap();
    ground.link("../outside", "inside/way-out");
    ground.link("../outside/secret", "inside/sub/secret");
    /// Stops the thread, also when the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    let exchange = |one: &str, other: &str| {
        let (one, other) = (ground.path(one), ground.path(other));
        rustix::fs::renameat_with(CWD, one, CWD, other, rustix::fs::RenameFlags::EXCHANGE).unwrap();
    };
    let (mut served, mut refused) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                exchange("inside/swapped", "inside/way-out");
            }
        });
        let _over = Over(&over);
        for round in 0..2000 {
            for answer in [ground.read("inside/swapped/secret"), ground.read("inside/sub/secret")] {
                match answer {
                    Ok(text) => {
                        assert!(["inside", "written"].contains(&text.as_str()), "{text}");
                        served += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            if round % 16 == 0 && ground.write("inside/swapped/secret").is_err() {
                refused += 1;
            }
        }
    });
    assert!(served > 0 && refused > 2000, "{served} served, {refused} refused");
    assert_eq!(fs::read_to_string(ground.path("outside/secret")).unwrap(), "secret");
    assert_eq!(fs::read_dir(ground.path("outside")).unwrap().count(), 1);
}
