//! Text and notices of agents, converted to actions.
//!
//! Owns: the text parts of a turn: which part a text continues, and when a new one starts. (`calls`
//! does so for tool calls and questions.)
//! Never: ends a turn.

use ahp_types::actions::{ChatDeltaAction, ChatReasoningAction, ChatResponsePartAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    MarkdownResponsePart, ReasoningResponsePart, ResponsePart, SystemNotificationResponsePart,
};

use crate::host::effects::{ChatKey, TextKind};
use crate::host::ledger::Ledger;
use crate::host::model::OpenPart;
use crate::host::{limits, Step};

pub(in crate::host) struct TextSegment {
    pub(in crate::host) turn_id: String,
    pub(in crate::host) kind: TextKind,
    pub(in crate::host) content: String,
    pub(in crate::host) meta: Option<JsonObject>,
}

/// Appends texts to the last part if it has their kind; otherwise the first text starts a part.
pub(in crate::host) fn append_texts(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    kind: TextKind,
    texts: &[String],
) {
    let Some(run) = ledger.channels.chats.known(key).and_then(|chat| chat.run.as_ref()) else { return };
    if run.open_part.as_ref().is_some_and(|open| open.kind == kind) {
        return ledger.append_texts(step, key, texts);
    }
    let Some((first, rest)) = texts.split_first() else { return };
    let (turn_id, content) = (run.turn_id.clone(), first.clone());
    open_part(ledger, step, key, TextSegment { turn_id, kind, content, meta: None });
    if !limits::is_too_large(ledger, key) {
        ledger.append_texts(step, key, rest);
    }
}

/// Appends text with a `_meta` of its own, which a merge with other texts would lose.
pub(in crate::host) fn append_text(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    segment: TextSegment,
) {
    let open = ledger.channels.chats.known(key).and_then(|chat| chat.run.as_ref()?.open_part.as_ref());
    let Some(open) = open.filter(|open| open.kind == segment.kind) else {
        return open_part(ledger, step, key, segment);
    };
    let part_id = open.id.clone();
    let TextSegment { turn_id, kind, content, meta } = segment;
    let action = match kind {
        TextKind::Markdown => StateAction::ChatDelta(ChatDeltaAction { turn_id, part_id, content, meta }),
        TextKind::Reasoning => {
            StateAction::ChatReasoning(ChatReasoningAction { turn_id, part_id, content, meta })
        }
    };
    ledger.sequence(step, key, action, None);
}

pub(in crate::host) fn open_part(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    segment: TextSegment,
) {
    let TextSegment { turn_id, kind, content, meta } = segment;
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let (number, id) = chat.next_part();
    let Some(run) = chat.run.as_mut() else { return };
    run.open_part = Some(OpenPart { kind, id: id.clone(), number });
    let part = match kind {
        TextKind::Markdown => ResponsePart::Markdown(MarkdownResponsePart { id, content }),
        TextKind::Reasoning => ResponsePart::Reasoning(ReasoningResponsePart { id, content }),
    };
    let action = StateAction::ChatResponsePart(ChatResponsePartAction { turn_id, part, meta });
    ledger.sequence(step, key, action, None);
}

pub(in crate::host) fn notice(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    turn_id: String,
    text: String,
    meta: Option<JsonObject>,
) {
    end_part(ledger, key);
    let part = SystemNotificationResponsePart { content: text.into(), meta };
    let part = ResponsePart::SystemNotification(part);
    let action = StateAction::ChatResponsePart(ChatResponsePartAction { turn_id, part, meta: None });
    ledger.sequence(step, key, action, None);
}

/// Ends the open text part of a chat's run; later text begins a new one.
pub(super) fn end_part(ledger: &mut Ledger, key: ChatKey) {
    if let Some(run) = ledger.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
        run.open_part = None;
    }
}
