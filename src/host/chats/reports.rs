//! Text and notices of agents, made into actions.
//!
//! Owns: the parts of a turn's text: which part a passage goes on in, and when a new one begins.
//! (`calls` does it for tool calls and questions.)
//! Never: ends a turn.

use ahp_types::actions::{ChatDeltaAction, ChatReasoningAction, ChatResponsePartAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    MarkdownResponsePart, ReasoningResponsePart, ResponsePart, SystemNotificationResponsePart,
};

use crate::host::effects::{ChatKey, PartKey, RunId, TextKind};
use crate::host::ledger::Ledger;
use crate::host::model::OpenPart;
use crate::host::{catalogue, Step};

/// Some of the text of a turn.
pub(in crate::host) struct TextSegment {
    pub(in crate::host) turn_id: String,
    pub(in crate::host) kind: TextKind,
    pub(in crate::host) content: String,
    pub(in crate::host) meta: Option<JsonObject>,
}

/// Text goes on in the part at the end if that is of its kind; else it begins one.
pub(in crate::host) fn append_text(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    run: RunId,
    segment: TextSegment,
) {
    let open = ledger.channels.chats.known(key).and_then(|chat| chat.run.as_ref()?.open_part.as_ref());
    let Some(open) = open.filter(|open| open.kind == segment.kind) else {
        return open_part(ledger, step, key, segment);
    };
    let part_id = open.id.clone();
    let TextSegment { turn_id, kind, content, meta } = segment;
    // What is told besides would be lost when it is merged with others.
    let delta = meta.is_none().then_some(PartKey { run, part: open.number });
    let action = match kind {
        TextKind::Markdown => StateAction::ChatDelta(ChatDeltaAction { turn_id, part_id, content, meta }),
        TextKind::Reasoning => {
            StateAction::ChatReasoning(ChatReasoningAction { turn_id, part_id, content, meta })
        }
    };
    ledger.sequence_part(step, key.into(), &action, None, delta);
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
    catalogue::end_part(ledger, key);
    let part = SystemNotificationResponsePart { content: text.into(), meta };
    let part = ResponsePart::SystemNotification(part);
    let action = StateAction::ChatResponsePart(ChatResponsePartAction { turn_id, part, meta: None });
    ledger.sequence(step, key, action, None);
}
