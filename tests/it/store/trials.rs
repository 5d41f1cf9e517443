//! Sessions that end the process again and again.
//!
//! Owns: what counts as another time, what does not, and what is left of such a session.
//! Never: starts a process; a life of the store is one `Writer`.

use ahp_sidecar::host::effects::{Record, SessionKey};
use ahp_sidecar::store::errors::StoreError;
use ahp_sidecar::store::StoreOptions;

use super::*;

const SESSION: SessionKey = SessionKey(1);

/// Treatment of a session whose turn was running when the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Turn is ended and resumable.
    TakenUp,
    /// Turn is ended for good, after this number of deaths.
    GivenUp(u32),
    /// Session is not touched.
    LeftAlone,
}

use Fate::{GivenUp, LeftAlone, TakenUp};

/// A process begins. One that has ended a process before is put on trial by itself.
fn begin(path: &Path, deaths_max: u32) -> (Writer, Fate) {
    let (mut writer, _) = Writer::open(path, StoreOptions { deaths_max, ..StoreOptions::default() }).unwrap();
    let reader = reader(path);
    let fate = match (&reader.interrupted().unwrap()[..], reader.load(SESSION)) {
        ([], Err(StoreError::LeftAlone(deaths))) => {
            let why = StoreError::LeftAlone(deaths).to_string();
            assert!(
                why.contains(&format!(" {deaths} times")) && why.contains("--quarantine-after 0"),
                "{why}"
            );
            LeftAlone
        }
        ([(deaths, SESSION)], Ok(Some(saved))) => {
            if *deaths > 0 {
                writer.commit(&[Record::Trial(SESSION)]).unwrap();
            }
            match saved.deaths {
                0 => TakenUp,
                given => {
                    assert_eq!(given, *deaths);
                    GivenUp(given)
                }
            }
        }
        other => panic!("{other:?}"),
    };
    (writer, fate)
}

/// A store in which a turn runs.
fn running(path: &Path) {
    let (mut writer, _) = open(path);
    writer.commit(&[session(1), chat(1, true, 0)]).unwrap();
}

#[test]
fn session_that_ends_every_process_is_quarantined_and_then_ignored() {
    let (_folder, path) = place();
    running(&path);
    let fates: Vec<Fate> = (0..6).map(|_| begin(&path, 3).1).collect();
    assert_eq!(fates, [TakenUp, TakenUp, TakenUp, GivenUp(3), GivenUp(4), GivenUp(5)]);
    // So far the list shows what was kept.
    assert_eq!(listed(&reader(&path))[0]["status"], 1);
    assert!((0..3).all(|_| begin(&path, 3).1 == LeftAlone));
    // It is still there, and says that it failed.
    let listed = listed(&reader(&path));
    assert_eq!((&listed[0]["resource"], &listed[0]["status"]), (&uri(1).into(), &2.into()));
    // There is a way out.
    assert_eq!(begin(&path, 0).1, TakenUp);
}

#[test]
fn failure_count_restarts_after_a_quarantined_turn_was_survived() {
    let (_folder, path) = place();
    running(&path);
    let fates: Vec<Fate> = (0..2).map(|_| begin(&path, 1).1).collect();
    assert_eq!(fates, [TakenUp, GivenUp(1)]);
    let (mut writer, _) = open(&path);
    writer.commit(&[chat(1, false, 0), Record::Survived(SESSION)]).unwrap();
    writer.commit(&[chat(1, true, 0)]).unwrap();
    let fates: Vec<Fate> = (0..3).map(|_| begin(&path, 1).1).collect();
    assert_eq!(fates, [TakenUp, GivenUp(1), LeftAlone]);
}

#[test]
fn process_killed_right_after_a_turn_ended_does_not_count() {
    let (_folder, path) = place();
    running(&path);
    let (mut writer, _) = begin(&path, 1);
    // What notes that it was survived comes a moment later, and here too late.
    writer.commit(&[chat(1, false, 0)]).unwrap();
    drop(writer);
    let (mut writer, _) = open(&path);
    writer.commit(&[chat(1, true, 0)]).unwrap();
    drop(writer);
    let fates: Vec<Fate> = (0..2).map(|_| begin(&path, 1).1).collect();
    assert_eq!(fates, [TakenUp, GivenUp(1)]);
    let once = StoreOptions { deaths_max: 1, ..StoreOptions::default() };
    let writer = Writer::open(&path, once).unwrap();
    assert!(matches!(reader(&path).load(SESSION), Err(StoreError::LeftAlone(2))));
    drop(writer);
    let (mut writer, _) = Writer::open(&path, StoreOptions { deaths_max: 3, ..once }).unwrap();
    writer.commit(&[chat(1, false, 0)]).unwrap();
    drop(writer);
    let _ = Writer::open(&path, once).unwrap();
    assert!(reader(&path).load(SESSION).unwrap().is_some(), "no turn runs in what is left alone");
}

#[test]
fn crash_is_attributed_to_the_session_being_recovered() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[session(1), chat(1, true, 0), session(2), chat(2, true, 0)]).unwrap();
    // Both are taken up at once, and the process ends; so does the next one.
    let _ = open(&path);
    let (mut writer, _) = open(&path);
    assert_eq!(reader(&path).interrupted().unwrap(), [(1, SESSION), (1, SessionKey(2))]);
    // The second one ends the process when it is taken up, and the first one does not.
    writer.commit(&[Record::Trial(SESSION)]).unwrap();
    writer.commit(&[Record::Recovered(SESSION), Record::Trial(SessionKey(2))]).unwrap();
    let _ = open(&path);
    assert_eq!(reader(&path).interrupted().unwrap(), [(1, SESSION), (2, SessionKey(2))]);
}

#[test]
fn crash_after_a_resume_by_a_client_counts() {
    let (_folder, path) = place();
    running(&path);
    let mut fates = Vec::new();
    for _ in 0..4 {
        let (mut writer, fate) = begin(&path, 3);
        fates.push(fate);
        // Its turn was ended, and then resumed.
        writer.commit(&[chat(1, false, 0), Record::Recovered(SESSION)]).unwrap();
        writer.commit(&[chat(1, true, 0), Record::Trial(SESSION)]).unwrap();
    }
    assert_eq!(fates, [TakenUp, TakenUp, TakenUp, GivenUp(3)]);
}

#[test]
fn survived_recovery_does_not_count() {
    let (_folder, path) = place();
    running(&path);
    for _ in 0..9 {
        let (mut writer, fate) = begin(&path, 3);
        assert_eq!(fate, TakenUp);
        writer.commit(&[Record::Recovered(SESSION)]).unwrap();
    }
    for _ in 0..9 {
        let (mut writer, fate) = begin(&path, 3);
        assert_eq!(fate, TakenUp);
        writer.commit(&[Record::Trial(SESSION), Record::Survived(SESSION)]).unwrap();
    }
}

#[test]
fn quarantine_can_be_disabled() {
    let (_folder, path) = place();
    running(&path);
    assert!((0..9).all(|_| begin(&path, 0).1 == TakenUp));
}
