//! Chats and annotations that are attached to messages: their transcripts when a message is
//! accepted.
//!
//! Owns: the turn at which an attached chat ends, the transcript as text, its limits, and retaining
//! it while the message may be sent to an agent. The rules are those of "Pulling a chat into
//! another chat" on the chat channel page of the specification.
//! Never: follows an attachment inside a transcript: it stays a reference.

use std::collections::BTreeMap;

use ahp_types::state::{
    Message, MessageAnnotationsAttachment, MessageAttachment, MessageChatAttachment, ResponsePart,
    ToolCallState, Turn,
};
use serde::Deserialize;

use crate::host::annotations;
use crate::host::effects::{ChatKey, Transcript, TranscriptOf};
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::host::refusal::Refusal;
use crate::state::history::CompletedTurn;
use crate::wire::references::ATTACHED_MAX;
use crate::wire::text;
use crate::wire::tool_calls::tool_call_id;

/// Maximum bytes of all transcripts of a message; each retains its end.
const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Maximum bytes of transcripts retained for the turns of a chat, newest first. Transcripts of its
/// pending messages have the same limit, separately.
const CHAT_BYTES_MAX: usize = 1 << 20;

/// Transcripts that belong to the messages of a chat.
#[derive(Debug, Default, Clone, PartialEq, serde::Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Attached {
    /// By the position of the turn in the chat's context, whose ids its own turns may have, too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) context: BTreeMap<usize, Vec<Transcript>>,
    /// By the id of the turn that the message started.
    pub(crate) turns: BTreeMap<String, Vec<Transcript>>,
    /// By the id of the pending message.
    pub(crate) pending: BTreeMap<String, Vec<Transcript>>,
}

impl Attached {
    pub(crate) fn is_empty(&self) -> bool {
        self.context.is_empty() && self.turns.is_empty() && self.pending.is_empty()
    }
}

/// Sets the end turn of each attached chat, and returns the transcripts of a message's chats and
/// annotations. Fails if a chat, a turn or a session's annotations do not exist.
pub(crate) fn resolve_attached(ledger: &Ledger, message: &mut Message) -> Result<Vec<Transcript>, Refusal> {
    let is_resolvable =
        |it: &&mut _| matches!(it, MessageAttachment::Chat(_) | MessageAttachment::Annotations(_));
    let mut resolvable: Vec<&mut MessageAttachment> =
        message.attachments.iter_mut().flatten().filter(is_resolvable).collect();
    if resolvable.len() > ATTACHED_MAX {
        return Err(Refusal::TooManyAttached { max: ATTACHED_MAX, attached: resolvable.len() });
    }
    let bytes_max = MESSAGE_BYTES_MAX / resolvable.len().max(1);
    let transcripts = resolvable.iter_mut().filter_map(|attachment| match attachment {
        MessageAttachment::Chat(chat) => Some(transcript_of(ledger, chat, bytes_max)),
        MessageAttachment::Annotations(it) => Some(attached_annotations(ledger, it, bytes_max)),
        _ => None,
    });
    transcripts.collect()
}

fn attached_annotations(
    ledger: &Ledger,
    attachment: &MessageAnnotationsAttachment,
    bytes_max: usize,
) -> Result<Transcript, Refusal> {
    let resource = attachment.resource.clone();
    let all = annotations::annotations_in_words(ledger, &resource, attachment.annotation_ids.as_deref());
    let all = all.ok_or_else(|| Refusal::AttachedAnnotationsMissing(resource.clone()))?;
    let text = text::last_bytes(&all, bytes_max).to_owned();
    let cut = text.len() < all.len();
    Ok(Transcript { of: TranscriptOf::Annotations, resource, label: attachment.label.clone(), text, cut })
}

fn transcript_of(
    ledger: &Ledger,
    attachment: &mut MessageChatAttachment,
    bytes_max: usize,
) -> Result<Transcript, Refusal> {
    let uri = &attachment.resource;
    let found = ledger.find_chat(uri).and_then(|key| ledger.channels.chats.known(key));
    let Some(chat) = found else {
        return Err(match ledger.why_unreadable(uri) {
            Some(reason) => Refusal::AttachedUnreadable { chat: uri.clone(), reason: reason.clone() },
            None => Refusal::AttachedMissing(uri.clone()),
        });
    };
    let history = chat.conversation.history();
    let turns = match &attachment.end_turn {
        None => history.turns(),
        Some(id) => match history.through(id) {
            Some(turns) => turns,
            None => return Err(Refusal::AttachedTurnNotOver { turn: id.clone(), chat: uri.clone() }),
        },
    };
    attachment.end_turn = turns.last().map(|turn| turn.id().to_owned());
    let (text, cut) = text_of(turns, bytes_max);
    Ok(Transcript {
        of: TranscriptOf::Chat,
        resource: uri.clone(),
        label: attachment.label.clone(),
        text,
        cut,
    })
}

/// Returns the transcripts that belong to a chat's turns, by the positions of the turns: those of
/// its context come first, and the running one is the last.
pub(crate) fn attached_by_position(chat: &Chat) -> BTreeMap<usize, Vec<Transcript>> {
    let completed = chat.conversation.history().turns().iter().map(CompletedTurn::id);
    let running = chat.conversation.state().active_turn.iter().map(|turn| &*turn.id);
    let own = (chat.context.len()..).zip(completed.chain(running));
    let own = own.filter_map(|(position, id)| Some((position, chat.attached.turns.get(id)?.clone())));
    chat.attached.context.clone().into_iter().chain(own).collect()
}

pub(crate) fn attach_to_turn(ledger: &mut Ledger, key: ChatKey, turn_id: &str, transcripts: Vec<Transcript>) {
    if let Some(chat) = ledger.channels.chats.known_mut(key).filter(|_| !transcripts.is_empty()) {
        chat.attached.turns.insert(turn_id.to_owned(), transcripts);
    }
}

/// Checks that a chat has room for a pending message's transcripts, which replace earlier ones.
pub(crate) fn check_room(
    ledger: &Ledger,
    key: ChatKey,
    id: &str,
    transcripts: &[Transcript],
) -> Result<(), Refusal> {
    let waiting = ledger.channels.chats.known(key).into_iter().flat_map(|chat| &chat.attached.pending);
    let others = waiting.filter(|(other, _)| *other != id).map(|(_, transcripts)| bytes_of(transcripts));
    if transcripts.is_empty() || others.sum::<usize>() + bytes_of(transcripts) <= CHAT_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::AttachedFull)
}

/// Stores the transcripts of a pending message in place of its earlier ones.
pub(crate) fn attach_to_pending(ledger: &mut Ledger, key: ChatKey, id: &str, transcripts: Vec<Transcript>) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let before = chat.attached.pending.remove(id);
    if !transcripts.is_empty() {
        chat.attached.pending.insert(id.to_owned(), transcripts);
    } else if before.is_none() {
        return;
    }
    // No action carries transcripts, so the row must be saved.
    ledger.chat_row_due(key);
}

/// Moves the transcripts of a pending message to the turn that it starts.
pub(crate) fn attached_by_queue(ledger: &mut Ledger, key: ChatKey, id: &str, turn_id: &str) {
    let moved = ledger.channels.chats.known_mut(key).and_then(|chat| chat.attached.pending.remove(id));
    attach_to_turn(ledger, key, turn_id, moved.unwrap_or_default());
}

/// Drops the transcripts of messages that no longer exist, and the oldest ones beyond the limit.
pub(crate) fn prune(chat: &mut Chat) {
    if chat.attached.is_empty() {
        return;
    }
    let unconsumed = chat.unconsumed();
    chat.attached.pending.retain(|id, _| unconsumed.contains(id));
    let newest_first = chat.conversation.state().active_turn.iter().map(|turn| &*turn.id);
    let completed = chat.conversation.history().turns();
    let newest_first = newest_first.chain(completed.iter().rev().map(CompletedTurn::id));
    let (mut kept, mut bytes) = (BTreeMap::new(), 0);
    for id in newest_first {
        let Some(transcripts) = chat.attached.turns.remove(id) else { continue };
        bytes += bytes_of(&transcripts);
        if bytes > CHAT_BYTES_MAX {
            break;
        }
        kept.insert(id.to_owned(), transcripts);
    }
    chat.attached.turns = kept;
    for (position, transcripts) in std::mem::take(&mut chat.attached.context).into_iter().rev() {
        bytes += bytes_of(&transcripts);
        if bytes > CHAT_BYTES_MAX {
            break;
        }
        chat.attached.context.insert(position, transcripts);
    }
}

fn bytes_of(transcripts: &[Transcript]) -> usize {
    transcripts.iter().map(|it| it.text.len()).sum()
}

/// Returns the text of turns, cut to its last `bytes_max` bytes, and whether it was cut.
fn text_of(turns: &[CompletedTurn], bytes_max: usize) -> (String, bool) {
    let mut newest_first: Vec<String> = Vec::new();
    let mut bytes = 0;
    for turn in turns.iter().rev() {
        let text = turn.read().as_ref().map(turn_as_text).unwrap_or_default();
        bytes += text.len();
        newest_first.push(text);
        if bytes > bytes_max {
            break;
        }
    }
    newest_first.reverse();
    let whole = newest_first.len() == turns.len();
    let all = newest_first.concat();
    if all.len() <= bytes_max {
        return (all, !whole);
    }
    (text::last_bytes(&all, bytes_max).to_owned(), true)
}

fn turn_as_text(turn: &Turn) -> String {
    let mut text = format!("User: {}\n", turn.message.text);
    for attachment in turn.message.attachments.iter().flatten() {
        let attachment = serde_json::to_value(attachment).unwrap_or_default();
        let label = attachment["label"].as_str().unwrap_or("something");
        let resource = attachment["resource"].as_str().map_or(String::new(), |uri| format!(", {uri}"));
        text += &format!("[attached: {label}{resource}]\n");
    }
    for part in &turn.response_parts {
        match part {
            ResponsePart::Markdown(part) => text += &format!("Assistant: {}\n", part.content),
            ResponsePart::ToolCall(part) => {
                let call = &part.tool_call;
                let done = match call {
                    ToolCallState::Completed(call) => text::plain(&call.past_tense_message).to_owned(),
                    call => format!("tool call {}", tool_call_id(call)),
                };
                text += &format!("[tool: {done}]\n");
            }
            ResponsePart::Error(part) => text += &format!("[error: {}]\n", part.error.message),
            _ => {}
        }
    }
    text
}
