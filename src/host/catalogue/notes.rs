//! Notes of agents about a conversation, in the `_meta` of its session by name and chat URI. The
//! session's repository status (see `statuses`) is stored beside them.
//!
//! Owns: `SessionState._meta`, which clients do not fill.
//! Never: reads a note, or retains notes of a removed chat.

use ahp_types::actions::{SessionMetaChangedAction, StateAction};
use ahp_types::common::JsonObject;
use serde_json::Value;

use crate::host::effects::ChatKey;
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::Step;

/// Stores a note of a chat in place of its last one of that name; `None` removes it.
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

/// Removes the notes of a chat from a session, and returns them.
pub(in crate::host) fn take_notes(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    session: SessionKey,
    chat: &str,
) -> JsonObject {
    let mut taken = JsonObject::new();
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

pub(in crate::host) fn save_notes(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    session: SessionKey,
    chat: &str,
    notes: JsonObject,
) {
    change_notes(ledger, step, session, |meta| {
        for (name, value) in notes {
            put(meta, chat, name, Some(value));
        }
    });
}

/// Changes the `_meta` of a session, and sequences the change if there is one.
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

/// Replaces or removes a note, and removes a name without notes.
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
