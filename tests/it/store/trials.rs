//! Sessions that end the process again and again.
//!
//! Owns: what counts as another time, what does not, and what is left of such a session.
//! Never: starts a process; a life of the store is one `Writer`.

use ahp_sidecar::host::effects::{Record, SessionKey};
use ahp_sidecar::store::StoreOptions;

use super::*;

const SESSION: SessionKey = SessionKey(1);

/// A process begins: a session whose turn it finds running is taken up, unless it is given up.
fn begin(path: &Path, deaths_max: u32) -> (Writer, bool) {
    let (writer, _) = Writer::open(path, StoreOptions { deaths_max, ..StoreOptions::default() }).unwrap();
    let taken_up = reader(path).interrupted().unwrap() == [SESSION];
    let saved = reader(path).load(SESSION).unwrap().unwrap();
    assert_eq!(saved.quarantined, !taken_up);
    (writer, taken_up)
}

/// A store in which a turn runs.
fn running(path: &Path) {
    let (mut writer, _) = open(path);
    writer.commit(&[session(1), chat(1, true, 0)]).unwrap();
}

#[test]
fn a_session_that_ends_the_process_at_every_start_is_given_up() {
    let (_folder, path) = place();
    running(&path);
    let taken_up: Vec<bool> = (0..6).map(|_| begin(&path, 3).1).collect();
    assert_eq!(taken_up, [true, true, true, false, false, false]);
    // It is still there, and says that it failed.
    let listed = listed(&reader(&path));
    assert_eq!((&listed[0]["resource"], &listed[0]["status"]), (&uri(1).into(), &2.into()));
}

#[test]
fn ending_the_process_when_a_client_resumes_it_counts_too() {
    let (_folder, path) = place();
    running(&path);
    let mut taken_up = Vec::new();
    for _ in 0..5 {
        let (mut writer, up) = begin(&path, 3);
        taken_up.push(up);
        // Its turn was ended, and then resumed.
        writer.commit(&[chat(1, false, 0), Record::Recovered(SESSION)]).unwrap();
        writer.commit(&[chat(1, true, 0), Record::Trial(SESSION)]).unwrap();
    }
    assert_eq!(taken_up, [true, true, true, false, false]);
}

#[test]
fn what_was_survived_does_not_count() {
    let (_folder, path) = place();
    running(&path);
    for _ in 0..9 {
        let (mut writer, taken_up) = begin(&path, 3);
        assert!(taken_up);
        writer.commit(&[Record::Recovered(SESSION)]).unwrap();
    }
    for _ in 0..9 {
        let (mut writer, taken_up) = begin(&path, 3);
        assert!(taken_up);
        writer.commit(&[Record::Trial(SESSION), Record::Survived(SESSION)]).unwrap();
    }
}

#[test]
fn a_store_may_be_told_never_to_give_up() {
    let (_folder, path) = place();
    running(&path);
    assert!((0..9).all(|_| begin(&path, 0).1));
}
