//! Notes of agents about a conversation, in the `_meta` of its session by name and chat URI. The
//! session's repository status, which `statuses` makes, stands beside them.
//!
//! Owns: `SessionState._meta`, which clients do not fill.
//! Never: looks into a note, or keeps one of a chat that is not there.

use ahp_types::actions::{SessionMetaChangedAction, StateAction};
use ahp_types::common::JsonObject;
use serde_json::Value;

use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;

/// The notes of one chat, by their names.
pub(in crate::host) type Notes = JsonObject;

/// Keeps a note of a chat, in place of the last one of its name.
pub(in crate::host) fn note(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    name: String,
    value: Option<Value>,
) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let (session, uri) = (chat.session, chat.channel.uri.clone());
    change_notes(ledger, step, session, |meta| put(meta, &uri, name, value));
}

/// Takes the notes of a chat out of a session.
pub(in crate::host) fn take_notes(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    session: SessionKey,
    chat: &str,
) -> Notes {
    let mut taken = Notes::new();
    change_notes(ledger, step, session, |meta| {
        let names: Vec<String> = meta.keys().cloned().collect();
        for name in names {
            if let Some(value) = meta.get(&name).and_then(|by_chat| by_chat.get(chat)).cloned() {
                put(meta, chat, name.clone(), None);
                taken.insert(name, value);
            }
        }
    });
    taken
}

/// Keeps all these notes of a chat.
pub(in crate::host) fn save_notes(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    session: SessionKey,
    chat: &str,
    notes: Notes,
) {
    change_notes(ledger, step, session, |meta| {
        for (name, value) in notes {
            put(meta, chat, name, Some(value));
        }
    });
}

/// Changes what a session says.
pub(in crate::host) fn change_notes(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    change: impl FnOnce(&mut JsonObject),
) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let mut meta = session.state.meta.clone().unwrap_or_default();
    change(&mut meta);
    let meta = Some(meta).filter(|meta| !meta.is_empty());
    if meta != session.state.meta {
        let action = StateAction::SessionMetaChanged(SessionMetaChangedAction { meta });
        ledger.sequence(step, key, action, None);
    }
}

/// Puts a note in place of the one that there was. A name that no chat has a note of is gone.
fn put(meta: &mut JsonObject, chat: &str, name: String, value: Option<Value>) {
    let mut by_chat = match meta.remove(&name) {
        Some(Value::Object(by_chat)) => by_chat,
        _ => JsonObject::new(),
    };
    match value {
        Some(value) => by_chat.insert(chat.to_owned(), value),
        None => by_chat.remove(chat),
    };
    if !by_chat.is_empty() {
        meta.insert(name, Value::Object(by_chat));
    }
}
