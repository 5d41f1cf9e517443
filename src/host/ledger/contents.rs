//! Contents that clients fetch by URI: sides of changed files, and large results of tool calls.
//!
//! Owns: replacing each content by a URI of the host in all output to clients, and resolving such a
//! URI to its content.
//! Never: changes a state.
//!
//! A state holds the content itself, in a `data:` URI, so that both have one lifetime and are
//! stored, forked, moved and exported together.
//!
//! A content URI consists of the chat and a hash of the content, so it is identical wherever the
//! content appears and after a restart. The side and the path of the file follow, for display.

use std::collections::BTreeMap;

use ahp_types::actions::{ActionEnvelope, ChatToolCallContentChangedAction, StateAction};
use ahp_types::state::{
    ChatState, FileEditCollection, FileEditSide, ResponsePart, SessionInputRequest, SnapshotState,
    ToolCallConfirmationState, ToolCallState, ToolResultContent, ToolResultEmbeddedResourceContent,
    ToolResultResourceContent, Turn,
};
use bytes::Bytes;

use crate::host::effects::{ActionLine, ChannelId};
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::state::edits::{id_of, INLINE};
use crate::state::history::CompletedTurn;
use crate::state::texts::{may_hold_contents, INLINE_CONTENT_BYTES_MAX};
use crate::wire::errors::RpcError;
use crate::wire::rpc::to_sorted_json;
use crate::wire::uris::{content_uri, parse_content_uri};

/// Item that is shown to clients and may hold a large content.
enum ShownContent<'a> {
    /// `before` or `after` side of a file edit.
    Side(&'static str, &'a mut FileEditSide),
    /// Data that a tool call produced.
    Produced(&'a mut ToolResultContent),
}

/// Value that may hold large contents.
trait Contents {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>));
}

fn both(
    before: &mut Option<FileEditSide>,
    after: &mut Option<FileEditSide>,
    see: &mut dyn FnMut(ShownContent<'_>),
) {
    before.iter_mut().for_each(|side| see(ShownContent::Side("before", side)));
    after.iter_mut().for_each(|side| see(ShownContent::Side("after", side)));
}

impl Contents for Vec<ToolResultContent> {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>)) {
        for content in self {
            match content {
                ToolResultContent::FileEdit(edit) => both(&mut edit.before, &mut edit.after, see),
                ToolResultContent::EmbeddedResource(_) => see(ShownContent::Produced(content)),
                _ => {}
            }
        }
    }
}

impl Contents for FileEditCollection {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>)) {
        for edit in &mut self.items {
            both(&mut edit.before, &mut edit.after, see);
        }
    }
}

impl<T: Contents> Contents for Option<T> {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>)) {
        if let Some(some) = self {
            some.each(see);
        }
    }
}

impl Contents for ToolCallState {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>)) {
        match self {
            Self::PendingConfirmation(call) => call.edits.each(see),
            Self::Running(call) => call.content.each(see),
            Self::AuthRequired(call) => call.content.each(see),
            Self::PendingResultConfirmation(call) => call.content.each(see),
            Self::Completed(call) => call.content.each(see),
            _ => {}
        }
    }
}

impl Contents for Vec<ResponsePart> {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>)) {
        for part in self {
            if let ResponsePart::ToolCall(part) = part {
                part.tool_call.each(see);
            }
        }
    }
}

impl Contents for ChatState {
    fn each(&mut self, see: &mut dyn FnMut(ShownContent<'_>)) {
        self.active_turn.iter_mut().for_each(|turn| turn.response_parts.each(see));
    }
}

fn prepare_request_for_clients(request: &mut SessionInputRequest) {
    if let SessionInputRequest::ToolConfirmation(request) = request {
        let chat = request.chat.clone();
        let mut each = |shown: ShownContent<'_>| uri_for_clients(&chat, shown);
        match &mut request.tool_call {
            ToolCallConfirmationState::PendingConfirmation(call) => call.edits.each(&mut each),
            ToolCallConfirmationState::PendingResultConfirmation(call) => call.content.each(&mut each),
            ToolCallConfirmationState::Unknown(_) => {}
        }
    }
}

/// Replaces a content by the URI that clients receive.
fn uri_for_clients(chat: &str, shown: ShownContent<'_>) {
    match shown {
        ShownContent::Side(side, of) if of.content.uri.starts_with(INLINE) => {
            of.content.uri = content_uri(chat, &id_of(&of.content.uri), side, &of.uri);
        }
        ShownContent::Side(..) => {}
        ShownContent::Produced(content) => {
            let Some((embedded, inline)) = large(content) else { return };
            let padding = embedded.data.bytes().rev().take_while(|byte| *byte == b'=').count();
            let bytes = (embedded.data.len() / 4 * 3).saturating_sub(padding);
            let uri = content_uri(chat, &id_of(&inline), "produced", &file_name(&embedded.content_type));
            *content = ToolResultContent::Resource(ToolResultResourceContent {
                uri,
                size_hint: i64::try_from(bytes).ok(),
                content_type: Some(embedded.content_type.clone()),
                nonce: None,
            });
        }
    }
}

fn is_large(content: &ToolResultContent) -> bool {
    matches!(content, ToolResultContent::EmbeddedResource(embedded) if embedded.data.len() > INLINE_CONTENT_BYTES_MAX)
}

/// Returns data that exceeds [`INLINE_CONTENT_BYTES_MAX`], and its `data:` URI.
fn large(content: &ToolResultContent) -> Option<(&ToolResultEmbeddedResourceContent, String)> {
    match content {
        ToolResultContent::EmbeddedResource(embedded) if is_large(content) => {
            Some((embedded, format!("data:{};base64,{}", embedded.content_type, embedded.data)))
        }
        _ => None,
    }
}

/// Returns a file name for a content type; viewers choose the format by its extension.
fn file_name(content_type: &str) -> String {
    let is_plain = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let (kind, rest) = content_type.split_once('/').unwrap_or_default();
    let ending = rest.split(['+', ';']).next().filter(is_plain).unwrap_or("bin");
    format!("/{}.{ending}", Some(kind).filter(is_plain).unwrap_or("data"))
}

/// Replaces the large contents of a state without completed turns by URIs.
pub(in crate::host) fn prepare_state_for_clients(state: &mut SnapshotState) {
    match state {
        SnapshotState::Chat(state) => {
            let chat = state.resource.clone();
            state.each(&mut |shown| uri_for_clients(&chat, shown));
        }
        SnapshotState::Session(state) => {
            state.input_needed.iter_mut().flatten().for_each(prepare_request_for_clients)
        }
        _ => {}
    }
}

/// Returns a completed turn (JSON text) with its large contents replaced by URIs.
pub(in crate::host) fn turn_for_clients(chat: &str, turn: &CompletedTurn) -> Bytes {
    let text = turn.text();
    if !turn.facts().contents {
        return text;
    }
    let Ok(mut turn) = serde_json::from_slice::<Turn>(&text) else { return text };
    turn.response_parts.each(&mut |shown| uri_for_clients(chat, shown));
    to_sorted_json(&turn).into()
}

/// Returns an action with its contents replaced by URIs; `None` if it holds none.
pub(in crate::host) fn action_for_clients(channel: &str, action: &StateAction) -> Option<StateAction> {
    match action {
        StateAction::ChatToolCallReady(ready) if ready.edits.is_some() => {
            let mut ready = ready.clone();
            ready.edits.each(&mut |shown| uri_for_clients(channel, shown));
            Some(StateAction::ChatToolCallReady(ready))
        }
        StateAction::ChatToolCallComplete(done)
            if done.result.content.as_deref().is_some_and(has_contents) =>
        {
            let mut done = done.clone();
            done.result.content.each(&mut |shown| uri_for_clients(channel, shown));
            Some(StateAction::ChatToolCallComplete(done))
        }
        StateAction::ChatToolCallContentChanged(changed) => {
            let mut content = Some(&changed.content).filter(|content| has_contents(content))?.clone();
            content.each(&mut |shown| uri_for_clients(channel, shown));
            let changed = ChatToolCallContentChangedAction { content, ..changed.clone() };
            Some(StateAction::ChatToolCallContentChanged(changed))
        }
        StateAction::SessionInputNeededSet(set) => {
            let mut set = set.clone();
            prepare_request_for_clients(&mut set.request);
            Some(StateAction::SessionInputNeededSet(set))
        }
        _ => None,
    }
}

fn has_contents(content: &[ToolResultContent]) -> bool {
    content.iter().any(|content| matches!(content, ToolResultContent::FileEdit(_)) || is_large(content))
}

/// Returns a stored envelope (JSON text) with its large contents replaced by URIs.
pub(in crate::host) fn envelope_for_clients(line: &ActionLine, envelope: Bytes) -> Bytes {
    if line.delta.is_some() || !may_hold_contents(&envelope) {
        return envelope;
    }
    let Ok(mut read) = serde_json::from_slice::<ActionEnvelope>(&envelope) else { return envelope };
    match action_for_clients(&read.channel, &read.action) {
        Some(action) => {
            read.action = action;
            to_sorted_json(&read).into()
        }
        None => envelope,
    }
}

/// Maximum size of the contents of edits that a chat retains after their call, in bytes, unless one
/// call has more.
pub(super) const PREVIEW_BYTES_MAX: usize = 16 << 20;

impl Chat {
    /// Retains the contents of edits that await approval until the next turn starts. An approved
    /// edit is no longer part of the state, yet clients may still fetch its contents.
    pub(in crate::host) fn note_previews(&mut self, action: &StateAction) {
        match action {
            StateAction::ChatTurnStarted(_) | StateAction::ChatTurnResume(_) => {
                (self.previews, self.preview_bytes) = Default::default();
            }
            StateAction::ChatToolCallReady(ready) => {
                let (mut edits, mut new) = (ready.edits.clone(), BTreeMap::new());
                edits.each(&mut |shown| {
                    let ShownContent::Side(_, of) = shown else { return };
                    if of.content.uri.starts_with(INLINE) {
                        new.insert(id_of(&of.content.uri), std::mem::take(&mut of.content.uri));
                    }
                });
                let bytes: usize = new.values().map(String::len).sum();
                // Calls that still wait have their contents in the state.
                if self.preview_bytes + bytes > PREVIEW_BYTES_MAX {
                    (self.previews, self.preview_bytes) = Default::default();
                }
                self.previews.append(&mut new);
                self.preview_bytes += bytes;
            }
            _ => {}
        }
    }
}

/// Returns the content of a content URI as a `data:` URI; `None` for any other URI.
///
/// # Errors
/// `-32008` if the content does not exist (any more).
pub(in crate::host) fn resolve_content(ledger: &Ledger, uri: &str) -> Result<Option<String>, RpcError> {
    let Some((chat, id)) = parse_content_uri(uri) else { return Ok(None) };
    let chat = match ledger.find(&chat).map(ChannelId::chat) {
        Some(Some(key)) => ledger.channels.chats.known(key),
        None if ledger.why_unreadable(&chat).is_some() => return Err(ledger.not_found(&chat)),
        _ => None,
    };
    let Some(chat) = chat else { return Err(RpcError::resource_not_found(uri)) };
    if let Some(content) = chat.previews.get(&id) {
        return Ok(Some(content.clone()));
    }
    let conversation = &chat.conversation;
    let active = conversation.state().active_turn.iter().map(|turn| turn.response_parts.clone());
    let completed = conversation.history().turns().iter().rev();
    let completed = completed.filter(|turn| turn.facts().contents);
    let completed = completed.filter_map(CompletedTurn::read).map(|turn| turn.response_parts);
    let mut found = None;
    for mut parts in active.chain(completed) {
        parts.each(&mut |shown| {
            let inline = match shown {
                ShownContent::Side(_, of) if of.content.uri.starts_with(INLINE) => {
                    Some(std::mem::take(&mut of.content.uri))
                }
                ShownContent::Side(..) => None,
                ShownContent::Produced(content) => large(content).map(|(_, inline)| inline),
            };
            found = found.take().or(inline.filter(|inline| id_of(inline) == id));
        });
        if found.is_some() {
            return Ok(found);
        }
    }
    Err(RpcError::resource_not_found(uri))
}
