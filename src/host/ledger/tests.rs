//! Tests of the ledger alone.
//!
//! Owns: what sequencing, subscriptions and replay promise to every other owner.
//! Never: has another owner at hand.

use ahp_types::actions::{
    ActionOrigin, AnnotationsRemovedAction, AnnotationsSetAction, StateAction, TerminalDataAction,
};
use ahp_types::state::{Annotation, AnnotationOrigin};
use serde_json::json;

use super::contents::PREVIEW_BYTES_MAX;
use super::log::ReplayWindow;
use super::Ledger;
use crate::host::catalogue::idle;
use crate::host::effects::{ChannelId, ConnectionId, Failing, Frame, Output, Record};
use crate::host::limits::Limits;
use crate::host::model::Subscription;
use crate::host::testing::{chat, config, outputs_of, start_turn, with_session, CHAT, SESSION};
use crate::host::Config;
use crate::state::edits::INLINE;
use crate::wire::channels::ChannelKind;

const READER: ConnectionId = ConnectionId(1);
const SAMPLE: ChannelId = ChannelId { kind: ChannelKind::Sample, key: 1 };

fn ledger() -> Ledger {
    Ledger::at_start(&config())
}

fn set(id: &str) -> StateAction {
    let origin = AnnotationOrigin { session: "ahp-session:/s".to_owned(), chat: None, turn_id: None };
    let annotation = Annotation {
        id: id.to_owned(),
        origin,
        resource: "file:///f".to_owned(),
        range: None,
        resolved: false,
        entries: Vec::new(),
        meta: None,
    };
    StateAction::AnnotationsSet(AnnotationsSetAction { annotation })
}

fn remove(id: &str) -> StateAction {
    StateAction::AnnotationsRemoved(AnnotationsRemovedAction { annotation_id: id.to_owned() })
}

fn sequence(ledger: &mut Ledger, action: &StateAction) -> Vec<Output> {
    outputs_of(|step| {
        ledger.sequence(step, SAMPLE, action.clone(), None);
    })
}

#[test]
fn applied_action_is_numbered_recorded_and_sent_to_each_subscriber() {
    let mut ledger = ledger();
    ledger.take_dirty();
    ledger.subscribe(READER, SAMPLE, Subscription::default());
    let outputs = sequence(&mut ledger, &set("one"));
    let [Output::Record(Record::Action(SAMPLE, kept)), Output::Frame(READER, Frame::Action(sent))] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((kept, ledger.head(), sent.server_seq), (sent, 1, 1));
    assert_eq!(ledger.take_dirty().into_iter().collect::<Vec<_>>(), [SAMPLE]);
    assert!(ledger.take_dirty().is_empty(), "each change is saved once");
    ledger.unsubscribe(READER, SAMPLE);
    let outputs = sequence(&mut ledger, &set("two"));
    assert!(matches!(&outputs[..], [Output::Record(Record::Action(SAMPLE, _))]), "{outputs:?}");
    assert_eq!(ledger.head(), 2);
}

#[test]
fn ignored_action_has_no_number_and_no_effect() {
    let mut ledger = ledger();
    ledger.subscribe(READER, SAMPLE, Subscription::default());
    ledger.take_dirty();
    let of_another_kind = StateAction::TerminalData(TerminalDataAction { data: "x".to_owned() });
    for action in [remove("absent"), of_another_kind] {
        assert!(sequence(&mut ledger, &action).is_empty(), "{action:?}");
    }
    let absent = ChannelId { kind: ChannelKind::Sample, key: 999 };
    let outputs = outputs_of(|step| ledger.sequence(step, absent, set("x"), None));
    assert!(outputs.is_empty() && ledger.head() == 0 && ledger.take_dirty().is_empty());
}

#[test]
fn unlinked_channel_is_not_found_and_has_no_subscribers() {
    let mut ledger = ledger();
    let uri = ledger.channels.get(SAMPLE).map(|channel| channel.uri.clone()).unwrap();
    ledger.subscribe(READER, SAMPLE, Subscription::default());
    assert_eq!((ledger.find(&uri), ledger.subscriptions.contains(READER, SAMPLE)), (Some(SAMPLE), true));
    ledger.unlink(SAMPLE);
    assert_eq!((ledger.find(&uri), ledger.subscriptions.contains(READER, SAMPLE)), (None, false));
    assert_eq!(ledger.subscriptions.of(READER).count(), 0);
}

#[test]
fn failing_store_stops_changes_and_hides_what_it_lacks() {
    let mut ledger = ledger();
    sequence(&mut ledger, &set("one"));
    let reason = "the disk is full".to_owned();
    ledger.set_failing(Some(Failing { reason: reason.clone(), safe: 0 }));
    assert_eq!((ledger.head(), ledger.committed_head()), (1, 0));
    assert!(ledger.check_store().unwrap_err().message.contains(&reason));
    assert!(ledger.check_committed(SAMPLE).is_err() && ledger.check_committed(ChannelId::ROOT).is_ok());
    ledger.set_failing(None);
    assert!(ledger.check_store().is_ok() && ledger.check_committed(SAMPLE).is_ok());
    assert_eq!(ledger.committed_head(), 1);
}

#[test]
fn replay_holds_exactly_the_actions_behind_the_cursor() {
    let limited = Config {
        replay_window: ReplayWindow { actions_max: 2, ..ReplayWindow::default() },
        limits: Limits::default(),
        ..config()
    };
    let mut ledger = Ledger::at_start(&limited);
    for id in ["one", "two", "three"] {
        sequence(&mut ledger, &set(id));
    }
    let ids = |cursor, wanted: &[ChannelId]| {
        let inside = ledger.replay(b"", cursor, None, wanted)?;
        let envelopes = format!("[{}]", String::from_utf8(inside).unwrap());
        let envelopes: Vec<serde_json::Value> = serde_json::from_str(&envelopes).unwrap();
        Some(envelopes.iter().map(|it| it["action"]["annotation"]["id"].to_string()).collect::<Vec<_>>())
    };
    assert_eq!(ids(1, &[SAMPLE]).unwrap(), ["\"two\"", "\"three\""]);
    assert_eq!(ids(2, &[SAMPLE]).unwrap(), ["\"three\""]);
    assert!(ids(3, &[SAMPLE]).unwrap().is_empty());
    assert!(ids(1, &[ChannelId::ROOT]).unwrap().is_empty(), "of another channel");
    assert_eq!(ids(0, &[SAMPLE]), None, "the window does not reach back");
    assert_eq!(ids(4, &[SAMPLE]), None, "beyond the head");
}

#[test]
fn answer_to_one_client_has_no_number_of_its_own() {
    let mut ledger = ledger();
    sequence(&mut ledger, &set("one"));
    let action = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    let origin = ActionOrigin { client_id: "c".to_owned(), client_seq: 7 };
    let outputs =
        outputs_of(|step| ledger.answer_action(step, READER, "ahp-sample:/1", &action, &origin, None));
    let [Output::Frame(READER, Frame::Answer(line))] = &outputs[..] else { panic!("{outputs:?}") };
    let envelope: serde_json::Value = serde_json::from_slice(line).unwrap();
    assert_eq!(envelope["params"]["serverSeq"], 1);
    assert_eq!(envelope["params"]["origin"]["clientSeq"], 7);
    assert_eq!(ledger.head(), 1);
}

#[test]
fn unsaved_bytes_of_a_chat_include_contents_that_clients_fetch_by_uri() {
    let mut ledger = with_session();
    start_turn(&mut ledger, "t");
    let start = json!({ "type": "chat/toolCallStart", "turnId": "t", "toolCallId": "c", "toolName": "cat",
        "displayName": "cat" });
    let ready = json!({ "type": "chat/toolCallReady", "turnId": "t", "toolCallId": "c",
        "invocationMessage": "cat", "confirmed": "not-needed" });
    let data = "A".repeat(1 << 20);
    let content = json!([{ "type": "embeddedResource", "data": data, "contentType": "image/png" }]);
    let changed = json!({ "type": "chat/toolCallContentChanged", "turnId": "t", "toolCallId": "c",
        "content": content });
    for action in [start, ready, changed] {
        let action = serde_json::from_value(action).unwrap();
        outputs_of(|step| ledger.sequence(step, CHAT, action, None));
    }
    assert!(chat(&mut ledger).saved.unsaved_bytes > 1 << 20);
}

#[test]
fn contents_of_edits_that_await_approval_are_held_and_counted() {
    let mut ledger = with_session();
    start_turn(&mut ledger, "t");
    let counted = |ledger: &Ledger| idle::memory_bytes(ledger, &ledger.channels.sessions[&SESSION]);
    let start = json!({ "type": "chat/toolCallStart", "turnId": "t", "toolCallId": "c", "toolName": "edit",
        "displayName": "edit" });
    let side = |uri: &str| json!({ "uri": "file:///f", "content": { "uri": uri } });
    let inline = format!("{INLINE}{}", "A".repeat(1 << 20));
    let edit = json!({ "before": side("file:///f"), "after": side(&inline) });
    let ready = json!({ "type": "chat/toolCallReady", "turnId": "t", "toolCallId": "c",
        "invocationMessage": "edit", "edits": { "items": [edit] } });
    let confirmed = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": "c",
        "approved": true });
    let before = counted(&ledger);
    for action in [start, ready, confirmed] {
        let action = serde_json::from_value(action).unwrap();
        outputs_of(|step| ledger.sequence(step, CHAT, action, None));
    }
    assert_eq!(chat(&mut ledger).previews.values().collect::<Vec<_>>(), [&inline]);
    assert!(counted(&ledger) > before + (1 << 20));
}

#[test]
fn contents_of_edits_that_await_approval_are_limited_within_a_turn() {
    let mut ledger = with_session();
    start_turn(&mut ledger, "t");
    let side = |uri: &str| json!({ "uri": "file:///f", "content": { "uri": uri } });
    for number in 0..40 {
        let call = format!("c{number}");
        let start = json!({ "type": "chat/toolCallStart", "turnId": "t", "toolCallId": call,
            "toolName": "edit", "displayName": "edit" });
        let inline = format!("{INLINE}{number:04}{}", "A".repeat(1 << 20));
        let edit = json!({ "before": side("file:///f"), "after": side(&inline) });
        let ready = json!({ "type": "chat/toolCallReady", "turnId": "t", "toolCallId": call,
            "invocationMessage": "edit", "edits": { "items": [edit] } });
        let refused = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": call,
            "approved": false, "reason": "denied" });
        for action in [start, ready, refused] {
            let action = serde_json::from_value(action).unwrap();
            outputs_of(|step| ledger.sequence(step, CHAT, action, None));
        }
        assert!(chat(&mut ledger).previews.values().any(|content| *content == inline), "the latest one");
        let held: usize = chat(&mut ledger).previews.values().map(String::len).sum();
        assert!(held <= PREVIEW_BYTES_MAX, "{held}");
    }
}
