//! What stands on the sides of changes of files, and how clients get it.
//!
//! Owns: telling clients a URI of the host's own for each content, and finding the content that such a URI calls.
//! Never: changes a state. A state holds a content itself, in a `data:` URI, so that it is there as long as the state is
//! and goes wherever that goes: into the store, into forks, to another session, into an export.
//!
//! A content is called by its chat and by what it is, so that it has the same URI in every place and after every
//! restart. Behind that stand the side and the path of the file, for those who show it.

use ahp_types::actions::{ActionEnvelope, ChatToolCallContentChangedAction, StateAction};
use ahp_types::state::{
    ChatState, FileEditCollection, FileEditSide, ResponsePart, SessionInputRequest, SnapshotState,
    ToolCallConfirmationState, ToolCallState, ToolResultContent, Turn,
};
use bytes::Bytes;
use memchr::memmem;
use uuid::Uuid;

use super::effects::{ActionLine, ChannelId, ChatKey};
use super::history::CompletedTurn;
use super::Host;
use crate::wire::errors::RpcError;
use crate::wire::rpc::to_sorted_json;
use crate::wire::uris::{content_uri, named_by_content};

/// What contents begin with in states.
const INLINE: &str = "data:text/plain;charset=utf-8;base64,";

/// Something that contents are in, with each side that there is and what it is called.
trait Sides {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide));
}

fn both(
    before: &mut Option<FileEditSide>,
    after: &mut Option<FileEditSide>,
    each: &mut dyn FnMut(&'static str, &mut FileEditSide),
) {
    before.iter_mut().for_each(|side| each("before", side));
    after.iter_mut().for_each(|side| each("after", side));
}

impl Sides for Vec<ToolResultContent> {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide)) {
        for content in self {
            if let ToolResultContent::FileEdit(edit) = content {
                both(&mut edit.before, &mut edit.after, each);
            }
        }
    }
}

impl Sides for FileEditCollection {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide)) {
        for edit in &mut self.items {
            both(&mut edit.before, &mut edit.after, each);
        }
    }
}

impl<T: Sides> Sides for Option<T> {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide)) {
        if let Some(some) = self {
            some.sides(each);
        }
    }
}

impl Sides for ToolCallState {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide)) {
        match self {
            Self::PendingConfirmation(call) => call.edits.sides(each),
            Self::Running(call) => call.content.sides(each),
            Self::PendingResultConfirmation(call) => call.content.sides(each),
            Self::Completed(call) => call.content.sides(each),
            _ => {}
        }
    }
}

impl Sides for Vec<ResponsePart> {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide)) {
        for part in self {
            if let ResponsePart::ToolCall(part) = part {
                part.tool_call.sides(each);
            }
        }
    }
}

impl Sides for ChatState {
    fn sides(&mut self, each: &mut dyn FnMut(&'static str, &mut FileEditSide)) {
        self.active_turn.iter_mut().for_each(|turn| turn.response_parts.sides(each));
    }
}

/// What waits for the user in a chat, as its session shows it.
fn tell_request(request: &mut SessionInputRequest) {
    if let SessionInputRequest::ToolConfirmation(request) = request {
        let chat = request.chat.clone();
        let mut each = |side: &'static str, of: &mut FileEditSide| tell(&chat, side, of);
        match &mut request.tool_call {
            ToolCallConfirmationState::PendingConfirmation(call) => call.edits.sides(&mut each),
            ToolCallConfirmationState::PendingResultConfirmation(call) => call.content.sides(&mut each),
            ToolCallConfirmationState::Unknown(_) => {}
        }
    }
}

/// Puts the URI that clients are told in place of a content.
fn tell(chat: &str, side: &str, of: &mut FileEditSide) {
    if of.content.uri.starts_with(INLINE) {
        let path = of.uri.strip_prefix("file://").unwrap_or("/");
        of.content.uri = content_uri(chat, &id_of(&of.content.uri), side, path);
    }
}

/// What a content is called in its chat.
fn id_of(inline: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, inline.as_bytes()).simple().to_string()
}

/// A state as clients are told it, without its completed turns.
pub(super) fn tell_state(state: &mut SnapshotState) {
    match state {
        SnapshotState::Chat(state) => {
            let chat = state.resource.clone();
            state.sides(&mut |side, of| tell(&chat, side, of));
        }
        SnapshotState::Session(state) => state.input_needed.iter_mut().flatten().for_each(tell_request),
        _ => {}
    }
}

/// Completed turns of a chat as clients are told them: a JSON array.
pub(super) fn told_turns(chat: &str, turns: &[CompletedTurn]) -> Vec<u8> {
    let mut text = b"[".to_vec();
    for turn in turns {
        if text.len() > 1 {
            text.push(b',');
        }
        text.extend_from_slice(&told_turn(chat, turn.text()));
    }
    text.push(b']');
    text
}

/// A completed turn of a chat (JSON text), as clients are told it.
pub(super) fn told_turn(chat: &str, text: &Bytes) -> Bytes {
    if memmem::find(text, INLINE.as_bytes()).is_none() {
        return text.clone();
    }
    let Ok(mut turn) = serde_json::from_slice::<Turn>(text) else { return text.clone() };
    turn.response_parts.sides(&mut |side, of| tell(chat, side, of));
    to_sorted_json(&turn).into()
}

/// An action on this channel as clients are told it, where that is not how it is kept.
pub(super) fn told_action(channel: &str, action: &StateAction) -> Option<StateAction> {
    match action {
        StateAction::ChatToolCallReady(ready) if ready.edits.is_some() => {
            let mut ready = ready.clone();
            ready.edits.sides(&mut |side, of| tell(channel, side, of));
            Some(StateAction::ChatToolCallReady(ready))
        }
        StateAction::ChatToolCallComplete(done) if done.result.content.as_deref().is_some_and(has_edits) => {
            let mut done = done.clone();
            done.result.content.sides(&mut |side, of| tell(channel, side, of));
            Some(StateAction::ChatToolCallComplete(done))
        }
        StateAction::ChatToolCallContentChanged(changed) => {
            let mut content = Some(&changed.content).filter(|content| has_edits(content))?.clone();
            content.sides(&mut |side, of| tell(channel, side, of));
            let changed = ChatToolCallContentChangedAction { content, ..changed.clone() };
            Some(StateAction::ChatToolCallContentChanged(changed))
        }
        StateAction::SessionInputNeededSet(set) => {
            let mut set = set.clone();
            tell_request(&mut set.request);
            Some(StateAction::SessionInputNeededSet(set))
        }
        _ => None,
    }
}

fn has_edits(content: &[ToolResultContent]) -> bool {
    content.iter().any(|content| matches!(content, ToolResultContent::FileEdit(_)))
}

/// An envelope (JSON text) that was kept, as clients are told it.
pub(super) fn told_envelope(line: &ActionLine, envelope: Bytes) -> Bytes {
    if line.delta.is_some() || memmem::find(&envelope, INLINE.as_bytes()).is_none() {
        return envelope;
    }
    let Ok(mut read) = serde_json::from_slice::<ActionEnvelope>(&envelope) else { return envelope };
    match told_action(&read.channel, &read.action) {
        Some(told) => {
            read.action = told;
            to_sorted_json(&read).into()
        }
        None => envelope,
    }
}

impl Host {
    /// Keeps the contents of an action on a chat while its turn runs: a change that was shown to be approved is in the
    /// state no more when it has been approved, and its contents are still looked at.
    pub(super) fn note_contents(&mut self, key: ChatKey, action: &StateAction) {
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        match action {
            StateAction::ChatTurnStarted(_) | StateAction::ChatTurnResume(_) => chat.previews.clear(),
            StateAction::ChatToolCallReady(ready) => {
                let mut edits = ready.edits.clone();
                edits.sides(&mut |_, of| {
                    chat.previews.insert(id_of(&of.content.uri), of.content.uri.clone());
                });
            }
            _ => {}
        }
    }

    /// The content that a URI of ours calls, in a `data:` URI; none for other URIs.
    ///
    /// # Errors
    /// `-32008` when it is not there any more, or never was.
    pub(super) fn content_called(&self, uri: &str) -> Result<Option<String>, RpcError> {
        let Some((chat, id)) = named_by_content(uri) else { return Ok(None) };
        let chat = match self.find(&chat).map(ChannelId::chat) {
            Some(Some(key)) => self.channels.chats.known(key),
            None if self.unreadable.contains_key(&chat) => return Err(self.not_found(&chat)),
            _ => None,
        };
        let Some(chat) = chat else { return Err(RpcError::resource_not_found(uri)) };
        if let Some(content) = chat.previews.get(&id) {
            return Ok(Some(content.clone()));
        }
        let conversation = &chat.conversation;
        let active = conversation.state().active_turn.iter().map(|turn| turn.response_parts.clone());
        let completed = conversation.history().turns().iter().rev();
        let completed = completed.filter(|turn| memmem::find(turn.text(), INLINE.as_bytes()).is_some());
        let completed = completed.filter_map(CompletedTurn::read).map(|turn| turn.response_parts);
        let mut found = None;
        for mut parts in active.chain(completed) {
            parts.sides(&mut |_, of| {
                if of.content.uri.starts_with(INLINE) && id_of(&of.content.uri) == id {
                    found = Some(std::mem::take(&mut of.content.uri));
                }
            });
            if found.is_some() {
                return Ok(found);
            }
        }
        Err(RpcError::resource_not_found(uri))
    }
}
