//! Tests of the catalogue with a ledger alone.
//!
//! Owns: what a list of the store's becomes by what memory knows, and what a session says of its
//! chats.
//! Never: reads a store.

use ahp_types::state::SessionStatus;
use bytes::Bytes;
use serde_json::{json, Value};

use super::summaries::Summaries;
use super::{missed, title_from, Catalogue};
use crate::host::effects::{Frame, ListPosition, Listed, Output, Page, SessionKey};
use crate::host::ledger::Ledger;
use crate::host::model::{Session, TitleBy};
use crate::host::testing::{actions_in, chat, outputs_of, start_turn, with_session, CHAT, ME, SESSION};

/// A page with these sessions as the store has them.
fn listed(keys: &[u64]) -> Listed {
    let sessions = keys.iter().map(|key| {
        let place = ListPosition { modified_at: format!("19{key:02}"), key: SessionKey(*key) };
        (place, Bytes::from(json!({ "stored": key }).to_string()))
    });
    Listed { sessions: sessions.collect(), next: None }
}

fn keys(listed: &Listed) -> Vec<u64> {
    listed.sessions.iter().map(|(place, _)| place.key.0).collect()
}

#[test]
fn page_of_the_list_has_sessions_as_memory_knows_them() {
    let (ledger, mut catalogue) = (with_session(), Catalogue::new(usize::MAX));
    catalogue.disposed.note(SessionKey(60), 0, 0);
    let all = Page { after: None, limit: 10 };
    let mut page = listed(&[60, 50, SESSION.0]);
    catalogue.update_from_memory(&ledger, &all, &mut page);
    // The session in memory was modified in 1970.
    assert_eq!(keys(&page), [SESSION.0, 50], "one is disposed of");
    let shown: Value = serde_json::from_slice(&page.sessions[0].1).unwrap();
    assert_eq!(shown["resource"], "ahp-session:/s");
    let mut page = listed(&[50]);
    catalogue.update_from_memory(&ledger, &Page { after: None, limit: 1 }, &mut page);
    assert_eq!((keys(&page), page.next.map(|next| next.key)), (vec![SESSION.0], Some(SESSION)));
}

#[test]
fn summary_sent_after_the_last_action_is_missed_by_a_client_with_that_action() {
    let (mut ledger, mut catalogue) = (with_session(), Catalogue::new(usize::MAX));
    outputs_of(|step| super::name_chat(&mut ledger, step, CHAT, "title", TitleBy::User));
    let mut summaries = Summaries::default();
    outputs_of(|step| summaries.settle(&mut ledger, step));
    let cursor = ledger.head();
    assert!(cursor > 0);
    let changed = json!({ "additions": 3, "deletions": 0, "files": 1 });
    ledger.channels.sessions.get_mut(&SESSION).unwrap().changes =
        Some(serde_json::from_value(changed).unwrap());
    ledger.session_changed(SESSION);
    outputs_of(|step| summaries.settle(&mut ledger, step));
    let told = |catalogue: &Catalogue, ledger: &Ledger, cursor| {
        let missed = catalogue.missed_since(ledger, cursor, None).unwrap();
        let outputs = outputs_of(|step| missed::send_missed(ledger, step, ME, missed));
        let lines = outputs.iter().filter_map(|output| match output {
            Output::Frame(ME, Frame::Notification { params, .. }) => Some(params),
            _ => None,
        });
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect::<Vec<Value>>()
    };
    let [line] = &told(&catalogue, &ledger, cursor)[..] else { panic!("one session has changed") };
    assert_eq!(line["changes"]["changes"]["additions"], 3);
    // The same of a session that is evicted since.
    let session = ledger.channels.sessions.remove(&SESSION).unwrap();
    catalogue.evicted.note(SESSION, session, vec![CHAT], cursor, cursor);
    catalogue.evicted.note(SessionKey(60), other_session(), Vec::new(), cursor, cursor);
    let [line] = &told(&catalogue, &ledger, cursor)[..] else { panic!("one session has changed") };
    assert_eq!(line["changes"]["changes"]["additions"], 3);
    assert_eq!(told(&catalogue, &ledger, cursor + 1), Vec::<Value>::new());
}

/// A session whose summary was not sent.
fn other_session() -> Session {
    with_session().channels.sessions.remove(&SESSION).unwrap()
}

#[test]
fn session_shows_the_activity_of_its_chat() {
    let mut ledger = with_session();
    start_turn(&mut ledger, "t");
    let outputs = outputs_of(|step| super::sync_chat(&mut ledger, step, CHAT));
    assert!(actions_in(&outputs).contains(&"session/chatUpdated".to_owned()), "{outputs:?}");
    let session = ledger.channels.sessions.get(&SESSION).unwrap();
    assert_ne!(session.state.status & SessionStatus::InProgress.bits(), 0);
    assert!(outputs_of(|step| super::sync_chat(&mut ledger, step, CHAT)).is_empty(), "nothing has changed");
}

#[test]
fn title_gives_way_to_one_of_higher_origin_alone() {
    let mut ledger = with_session();
    let mut name = |title: &str, by| {
        outputs_of(|step| super::name_chat(&mut ledger, step, CHAT, title, by));
        chat(&mut ledger).conversation.state().title.clone()
    };
    assert_eq!(name("first", TitleBy::FirstMessage), "first");
    assert_eq!(name("user", TitleBy::User), "user");
    assert_eq!(name("agent", TitleBy::Agent), "user");
}

#[test]
fn title_from_a_message_is_its_first_line_that_shows_something() {
    assert_eq!(title_from("\n  Fix the \u{7}build  \nplease").as_deref(), Some("Fix the build"));
    assert_eq!(title_from(" \n\t\n"), None);
    assert_eq!(title_from("\u{1b}"), None);
    assert_eq!(title_from("\u{1b}\nFix").as_deref(), Some("Fix"));
    assert_eq!(title_from(&"ä".repeat(81)).map(|title| title.chars().count()), Some(80));
}

#[test]
fn disposed_sessions_are_remembered_while_they_have_actions_in_memory() {
    let mut catalogue = Catalogue::new(usize::MAX);
    // The actions of the last 3,000 disposals are in memory.
    (0..10_000).for_each(|key| catalogue.disposed.note(SessionKey(key), key, key.saturating_sub(3000)));
    let known = (0..10_000).filter(|key| catalogue.disposed.contains(SessionKey(*key)));
    assert_eq!(known.collect::<Vec<_>>(), (7000..10_000).collect::<Vec<_>>());
    // Store reads that began a while ago may still return the latest ones.
    catalogue.disposed.note(SessionKey(10_000), 10_000, 10_000);
    assert!(!catalogue.disposed.contains(SessionKey(9000)) && catalogue.disposed.contains(SessionKey(9001)));
}
