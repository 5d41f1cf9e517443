//! Tests of notifications, on the half that is built.
//!
//! Owns: real folders that change.
//! Never: waits for a fixed time.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::*;

fn notifier() -> (Wakeup, Notifier) {
    let wakeup = Wakeup::new().unwrap();
    let notifier = Notifier::new(&wakeup).unwrap();
    (wakeup, notifier)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn touched(notifier: &mut Notifier) -> Vec<PathBuf> {
    notifier.catch_up();
    let mut report = SystemReport::default();
    notifier.read_events(&mut report).unwrap();
    assert!(!report.forgot);
    report.touched.into_iter().collect()
}

#[test]
fn changes_in_a_registered_folder_are_reported_and_no_others() {
    let ((_folder, top), (_wakeup, mut notifier)) = (folder(), notifier());
    ["watched", "watched/inner", "other"].iter().for_each(|name| fs::create_dir(top.join(name)).unwrap());
    notifier.register(&top.join("watched")).unwrap();
    fs::write(top.join("watched/file"), "x").unwrap();
    fs::write(top.join("watched/inner/file"), "x").unwrap();
    fs::write(top.join("other/file"), "x").unwrap();
    let all = touched(&mut notifier);
    assert!(all.contains(&top.join("watched/file")), "{all:?}");
    assert!(!all.iter().any(|path| path.ends_with("inner/file") || path.ends_with("other/file")), "{all:?}");
}

#[test]
fn folder_is_watched_until_its_last_registration_ends() {
    let ((_folder, top), (_wakeup, mut notifier)) = (folder(), notifier());
    fs::create_dir(top.join("inner")).unwrap();
    for folder in [&top, &top, &top.join("inner")] {
        notifier.register(folder).unwrap();
    }
    assert_eq!(notifier.count(), 2);
    notifier.release(&top);
    touched(&mut notifier);
    fs::write(top.join("one"), "x").unwrap();
    assert!(touched(&mut notifier).contains(&top.join("one")));
    notifier.release(&top);
    touched(&mut notifier);
    // What was covered by the watch of the folder above has one of its own.
    fs::write(top.join("two"), "x").unwrap();
    fs::write(top.join("inner/three"), "x").unwrap();
    let all = touched(&mut notifier);
    assert!(all.contains(&top.join("inner/three")) && !all.contains(&top.join("two")), "{all:?}");
    assert_eq!(notifier.count(), 1);
}

#[test]
fn folder_that_takes_the_path_of_another_has_another_registration() {
    let ((_folder, top), (_wakeup, mut notifier)) = (folder(), notifier());
    let inner = top.join("inner");
    fs::create_dir(&inner).unwrap();
    let first = notifier.register(&inner).unwrap();
    assert_eq!(notifier.register(&inner).unwrap(), first);
    fs::rename(&inner, top.join("moved")).unwrap();
    fs::create_dir(&inner).unwrap();
    assert!(touched(&mut notifier).contains(&inner));
    assert_ne!(notifier.register(&inner).unwrap(), first);
    fs::write(inner.join("file"), "x").unwrap();
    assert!(touched(&mut notifier).contains(&inner.join("file")));
}

#[test]
fn path_on_the_way_is_reported_when_it_is_moved() {
    let ((_folder, top), (_wakeup, mut notifier)) = (folder(), notifier());
    let step = top.join("step");
    fs::create_dir_all(step.join("inner")).unwrap();
    notifier.pass(&step).unwrap();
    notifier.register(&step.join("inner")).unwrap();
    fs::rename(&step, top.join("moved")).unwrap();
    assert!(touched(&mut notifier).contains(&step));
    notifier.leave(&step);
}

#[test]
fn missing_folder_is_refused() {
    let ((_folder, top), (_wakeup, mut notifier)) = (folder(), notifier());
    assert!(notifier.register(&top.join("missing")).is_err());
    fs::write(top.join("file"), "x").unwrap();
    assert!(notifier.register(&top.join("file")).is_err());
    assert_eq!(notifier.count(), 0);
}

#[test]
fn waiting_ends_by_a_wakeup_also_by_an_earlier_one() {
    let (wakeup, notifier) = notifier();
    wakeup.wake();
    wakeup.wait(Some(&notifier), None).unwrap();
    wakeup.wait(None, None).unwrap();
    wakeup.clear();
    wakeup.wait(Some(&notifier), Some(Duration::from_millis(1))).unwrap();
}

#[test]
fn waiting_ends_by_a_notification() {
    let ((_folder, top), (wakeup, mut notifier)) = (folder(), notifier());
    notifier.register(&top).unwrap();
    fs::write(top.join("file"), "x").unwrap();
    wakeup.wait(Some(&notifier), None).unwrap();
    assert!(Path::new(&top).is_dir());
}
