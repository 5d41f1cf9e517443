//! Masks for fields that a mirror need not share with a fresh snapshot, each with its reason.
//!
//! Owns: the list, and the comparison. What is masked in one place is compared in another wherever
//! the host says it there too: a chat's row in its session and a session's summary in the list
//! carry it.
//! Never: masks anything that an action of that version could have carried.

use std::collections::BTreeSet;

use anyhow::{ensure, Result};
use serde_json::Value;

use super::dialect::{Dialect, V0_1_0, V0_4_0, V0_5_0, V0_5_2, V0_8_0, V0_9_0, V1_0_0};
use super::official::Kind;

/// Bits 0–4 of a status: what is going on.
pub const ACTIVITY: u64 = 31;
/// Bits 5 and 6: read, archived.
const FLAGS: u64 = 32 | 64;

/// Something that is not compared.
struct Mask {
    kind: Kind,
    since: Dialect,
    until: Dialect,
    path: &'static [&'static str],
    /// These bits of a number; without, the whole member.
    bits: Option<u64>,
}

const fn mask(
    kind: Kind,
    since: Dialect,
    until: Dialect,
    path: &'static [&'static str],
    bits: Option<u64>,
) -> Mask {
    Mask { kind, since, until, path, bits }
}

const MASKS: &[Mask] = &[
    // The client's clock. Up to 0.8.0 the reducers put their own time there, whatever the host
    // says: those of sessions do up to 0.4.0 (`touch_modified`, `touch_session_modified`), those of
    // chats up to 0.8.0 (`touch_chat_modified`).
    mask(Kind::Session, V0_1_0, V0_4_0, &["summary", "modifiedAt"], None),
    mask(Kind::Chat, V0_4_0, V0_8_0, &["modifiedAt"], None),
    // What goes on in a session, once chats have it: no action carries it, summaries do.
    mask(Kind::Session, V0_4_0, V0_4_0, &["summary", "status"], Some(ACTIVITY)),
    mask(Kind::Session, V0_5_0, V1_0_0, &["status"], Some(ACTIVITY)),
    // What the row of a chat in its session says by `session/chatUpdated`: no action carries it to
    // the chat.
    mask(Kind::Chat, V0_4_0, V1_0_0, &["title"], None),
    mask(Kind::Chat, V0_4_0, V1_0_0, &["interactivity"], None),
    mask(Kind::Chat, V1_0_0, V1_0_0, &["changes"], None),
    // What can be chosen in a session, which its agent may change; what is chosen is told.
    mask(Kind::Session, V0_1_0, V1_0_0, &["config", "schema"], None),
    // How many annotations there are; summaries say it.
    mask(Kind::Session, V0_5_0, V1_0_0, &["annotations", "annotationCount"], None),
    mask(Kind::Session, V0_5_0, V1_0_0, &["annotations", "entryCount"], None),
    mask(Kind::Session, V0_4_0, V0_4_0, &["summary", "annotations", "annotationCount"], None),
    mask(Kind::Session, V0_4_0, V0_4_0, &["summary", "annotations", "entryCount"], None),
    // Before `chat/isReadChanged` and `chat/isArchivedChanged`.
    mask(Kind::Chat, V0_4_0, V0_9_0, &["status"], Some(FLAGS)),
];

/// A state without what is not compared.
fn masked(dialect: Dialect, kind: Kind, state: &Value) -> Value {
    let mut state = state.clone();
    for mask in MASKS {
        if mask.kind != kind || !(mask.since..=mask.until).contains(&dialect) {
            continue;
        }
        let [path @ .., last] = mask.path else { continue };
        let holder = path.iter().try_fold(&mut state, |value, name| value.get_mut(*name));
        let Some(members) = holder.and_then(Value::as_object_mut) else { continue };
        match (mask.bits, members.get(*last).and_then(Value::as_u64)) {
            (Some(bits), Some(number)) => {
                members.insert((*last).to_owned(), (number & !bits).into());
            }
            _ => {
                members.remove(*last);
            }
        }
    }
    if dialect == V0_5_2 && kind == Kind::Chat {
        let active = state["activeTurn"].is_object();
        let turns =
            state["turns"].as_array_mut().into_iter().flatten().map(|turn| &mut turn["responseParts"]);
        turns.for_each(questions_last);
        if active {
            questions_last(&mut state["activeTurn"]["responseParts"]);
        }
    }
    state
}

/// Puts questions behind all other parts. The reducer of 0.5.2, and of no other version, appends a
/// question to its turn when it is answered; the host has it where it was asked, and no action of
/// that version could put it there. What was said in between, to a steering message, comes before
/// it or after it.
fn questions_last(parts: &mut Value) {
    if let Some(parts) = parts.as_array_mut() {
        parts.sort_by_key(|part| part["kind"] == "inputRequest");
    }
}

/// A summary as notifications have made it, without what they cannot take away: up to 0.4.0 no
/// notification says that a session has no model or agent selected any more.
pub fn of_list(dialect: Dialect, mut held: Value, listed: &Value) -> Value {
    if let Some(members) = held.as_object_mut().filter(|_| dialect <= V0_4_0) {
        members.retain(|name, _| !matches!(&**name, "model" | "agent") || listed.get(name).is_some());
    }
    held
}

/// Checks that a mirror equals a fresh snapshot.
pub fn compare(dialect: Dialect, kind: Kind, held: &Value, shown: &Value) -> Result<()> {
    same(&masked(dialect, kind, held), &masked(dialect, kind, shown))
}

/// Checks that two values are equal.
pub fn same(held: &Value, shown: &Value) -> Result<()> {
    let mut found = String::new();
    differences("", held, shown, &mut found);
    ensure!(found.is_empty(), "the mirror is not the state:{found}");
    Ok(())
}

fn differences(path: &str, held: &Value, shown: &Value, found: &mut String) {
    match (held, shown) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differences(&format!("{path}.{key}"), &held[key], &shown[key], found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (held, shown)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{at}]"), held, shown, found);
            }
        }
        _ if held == shown => {}
        _ => found.push_str(&format!("\n  {path}: it holds {held}, the host shows {shown}")),
    }
}
