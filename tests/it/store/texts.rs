//! Texts of turns that are read when somebody needs them.
//!
//! Owns: which of them are in memory, and that each reads as it was written whatever becomes of it
//! in the store.
//! Never: looks at what a turn is; that is the core's.

use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ahp_sidecar::host::effects::{ActionLine, ChannelId, ChatKey, ChatRow, Record, SessionKey};
use ahp_sidecar::state::history::CompletedTurn;
use ahp_sidecar::state::texts::{TextSource, TurnText};
use ahp_sidecar::store::sqlite::Writer;
use ahp_sidecar::store::texts::Texts;
use bytes::Bytes;

use super::{large_turn, load, open, place, reader, session, whole};

/// Maximum bytes of texts in memory, of turns of [`BYTES`] each.
const BYTES_MAX: usize = 4 * BYTES;
const BYTES: usize = 1000;

fn long_turn(number: usize) -> CompletedTurn {
    let turn = format!(r#"{{"id":"t{number}","text":"{number:0width$}"}}"#, width = BYTES);
    CompletedTurn::new(&format!("t{number}"), turn[turn.len() - BYTES..].to_owned().into())
}

fn with_texts(path: &Path) -> (Writer, Arc<Texts>) {
    let (writer, _) = open(path);
    let texts = Texts::open(path, BYTES_MAX).unwrap();
    (writer.with_texts(&texts).unwrap(), texts)
}

fn records(turns: &[CompletedTurn]) -> Vec<Record> {
    let all = turns.iter().zip(0..).map(|(turn, at)| Record::Turn(ChatKey(1001), at, turn.clone()));
    let chat = ChatRow {
        key: ChatKey(1001),
        session: SessionKey(1),
        uri: "ahp-chat:/1".to_owned(),
        running: false,
        as_of: 0,
        body: "chat".into(),
    };
    [session(1)].into_iter().chain(all).chain([Record::Chat(chat)]).collect()
}

fn here(turns: &[CompletedTurn]) -> usize {
    turns.iter().filter(|turn| turn.is_in_memory()).count()
}

#[test]
fn text_cache_holds_recently_used_texts_and_reads_the_others() {
    let (_folder, path) = place();
    let (mut writer, texts) = with_texts(&path);
    let turns: Vec<CompletedTurn> = (0..20).map(long_turn).collect();
    writer.commit(&records(&turns)).unwrap();
    assert_eq!(here(&turns), 4, "of those that were written");

    let mut saved = load(&reader(&path).with_texts(&texts), 1).unwrap().unwrap();
    let read = std::mem::take(&mut saved.chats[0].turns);
    assert!(read.iter().zip(&turns).all(|(read, turn)| read.place() == turn.place()), "each is there once");
    drop(turns);
    for (number, turn) in read.iter().enumerate() {
        assert_eq!(turn.text(), long_turn(number).text());
    }
    assert!(here(&read) <= 5, "{} of those that were read", here(&read));
    // One that is used all the time stays, and what somebody holds is not counted out of memory.
    let (often, held) = (&read[0], read[1].text());
    for turn in &read[2..] {
        assert_eq!(often.text().len(), BYTES);
        turn.text();
    }
    assert!(often.is_in_memory() && read[1].is_in_memory(), "{read:?}");
    drop(held);
}

#[test]
fn deleted_text_stays_readable_for_its_holders() {
    let (_folder, path) = place();
    let (mut writer, texts) = with_texts(&path);
    let reader = reader(&path).with_texts(&texts);
    writer.commit(&records(&(0..9).map(long_turn).collect::<Vec<_>>())).unwrap();
    let read = load(&reader, 1).unwrap().unwrap().chats.remove(0).turns;
    assert_eq!(here(&read), 0);
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 3)]).unwrap();
    // The next text may be found under the name that one of them had.
    writer.commit(&[vec![Record::Turn(ChatKey(1001), 3, long_turn(77))], records(&[])].concat()).unwrap();
    assert_eq!((here(&read[..3]), here(&read[3..])), (0, 6));
    for (number, turn) in read.iter().enumerate() {
        assert_eq!(turn.text(), long_turn(number).text(), "{number}");
    }
    let again = load(&reader, 1).unwrap().unwrap().chats.remove(0).turns;
    assert_eq!(again[3].text(), long_turn(77).text());
    assert_eq!(again[2].place(), read[2].place());
}

#[test]
fn text_of_a_failed_deletion_stays_readable() {
    let (_folder, path) = place();
    let (mut writer, texts) = with_texts(&path);
    let reader = reader(&path).with_texts(&texts);
    writer.commit(&records(&[long_turn(0)])).unwrap();
    let read = load(&reader, 1).unwrap().unwrap().chats.remove(0).turns;
    writer.limit_pages(1).unwrap();
    let cut = [Record::TurnsCut(ChatKey(1001), 0), Record::Turn(ChatKey(1001), 0, large_turn())];
    writer.commit(&cut).unwrap_err();
    assert_eq!(read[0].text(), long_turn(0).text());
}

#[test]
fn turn_with_a_damaged_text_reads_as_an_error_and_others_are_intact() {
    let (_folder, path) = place();
    let (mut writer, texts) = with_texts(&path);
    writer.commit(&whole(1)).unwrap();
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch("UPDATE texts SET text = x'78' WHERE key = (SELECT text FROM turns WHERE place = 1)")
        .unwrap();
    let read = load(&reader(&path).with_texts(&texts), 1).unwrap().unwrap().chats.remove(0).turns;
    let damaged = read[1].read().unwrap();
    assert_eq!(damaged.id, "t1");
    let said = serde_json::to_value(&damaged.response_parts).unwrap();
    assert_eq!(said[0]["error"]["errorType"], "damaged", "{said}");
    assert_eq!(
        (read[0].text(), read[2].text()),
        (super::turn_text(1, 0).text(), super::turn_text(1, 2).text())
    );
}

#[test]
fn text_facts_are_known_without_reading_the_text() {
    let (_folder, path) = place();
    let (mut writer, texts) = with_texts(&path);
    let turn = |id: &str, said: &str| CompletedTurn::new(id, said.to_owned().into());
    let content = "data:text/plain;charset=utf-8;base64,eA==";
    let turns = [
        turn("a", "plain"),
        turn("b", content),
        turn("c", "ahp-terminal:/x"),
        turn("d", "x"),
        turn("e", "x"),
    ];
    writer.commit(&records(&turns)).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    // As a program of an older version has left it, and one that is damaged.
    let sql = "UPDATE turns SET facts = NULL WHERE place = 3; UPDATE turns SET facts = x'0000' || facts WHERE place = 4";
    connection.execute_batch(sql).unwrap();
    drop(turns);
    let read = load(&reader(&path).with_texts(&texts), 1).unwrap().unwrap().chats.remove(0).turns;
    let facts: Vec<_> = read.iter().map(|it| (it.may_hold_contents(), it.may_show_terminals())).collect();
    assert_eq!(facts, [(false, false), (true, false), (false, true), (true, true), (true, true)]);
    assert_eq!(here(&read), 0);
    assert!(!read[3].facts().contents && !read[3].may_show_terminals(), "it was read");
}

#[test]
fn stored_texts_and_actions_are_compressed() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    let said = "the same words, again and again; ".repeat(10_000);
    let turn = CompletedTurn::new("t", said.clone().into());
    let line = ActionLine { line: said.clone().into(), server_seq: 1, delta: None };
    let told = Record::Action(ChannelId::ROOT, line.clone());
    writer.commit(&[records(std::slice::from_ref(&turn)), vec![told]].concat()).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let sql = "SELECT (SELECT sum(length(text)) FROM texts), (SELECT sum(length(packed)) FROM actions)";
    let (text, log): (i64, i64) =
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert!(20 * text.max(log) < said.len() as i64, "{text}, {log} of {}", said.len());
    let reader = reader(&path);
    assert_eq!(load(&reader, 1).unwrap().unwrap().chats[0].turns, [turn]);
    assert_eq!(reader.actions_since(0).unwrap().unwrap(), [(ChannelId::ROOT, line)]);
}

/// A disk that reads when it is let.
#[derive(Debug)]
struct SlowDisk {
    began: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl TextSource for SlowDisk {
    fn read(&self) -> Result<Bytes, String> {
        self.began.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        Ok(Bytes::from_static(b"text"))
    }

    fn was_read(&self, _: &TurnText) {}
}

#[test]
fn cache_lookup_does_not_wait_for_a_disk_read() {
    let ((began, begins), (go, go_on)) = (channel(), channel());
    let text = TurnText::there(4, None, Arc::new(SlowDisk { began, go_on: Mutex::new(go_on) }));
    let (reads, asks) = (text.clone(), text.clone());
    let read = thread::spawn(move || reads.get());
    begins.recv().unwrap();
    let (tell, told) = channel();
    let asked = thread::spawn(move || tell.send(asks.is_in_memory()));
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(false), "it waits");
    go.send(()).unwrap();
    assert_eq!(read.join().unwrap(), Ok(Bytes::from_static(b"text")));
    asked.join().unwrap().unwrap();
    assert!(text.is_in_memory());
}

/// The name of a lost text is given to the next one.
#[test]
fn turn_whose_text_is_lost_shows_no_text_of_another_turn() {
    let (_folder, path) = place();
    let (mut writer, texts) = with_texts(&path);
    writer.commit(&records(&[long_turn(0), long_turn(1)])).unwrap();
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch("DELETE FROM texts WHERE key = (SELECT text FROM turns WHERE place = 1)")
        .unwrap();
    let written = long_turn(2);
    writer.commit(&[Record::Turn(ChatKey(1001), 2, written.clone()), records(&[]).remove(1)]).unwrap();
    let read = load(&reader(&path).with_texts(&texts), 1).unwrap().unwrap().chats.remove(0).turns;
    assert_eq!((read[0].text(), read[2].text()), (long_turn(0).text(), long_turn(2).text()));
    let shown = read[1].read().unwrap();
    let shown = serde_json::to_value(&shown.response_parts).unwrap();
    assert_eq!(shown[0]["error"]["errorType"], "damaged", "{shown}");
}
