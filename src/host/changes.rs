//! Which files were changed, as the calls of chats have said it: in a turn, in a chat, in a session.
//!
//! Owns: what several edits of a file come to, which is what was there before the first one and behind the last; and in
//! which order what several chats have done counts.
//! Never: looks at a file, or tells anybody.

use std::collections::{BTreeSet, HashMap};

use ahp_types::state::{ChangesetFile, ContentRef, FileEdit, FileEditDiffStats, FileEditSide};

use super::effects::ChatKey;
use super::model::{Chat, SessionKey};
use super::Host;
use crate::state::edits::{edits_of, CallEdit, EditContent, LineCounts, TurnEdits};
use crate::wire::changesets::ChangesetScope;
use crate::wire::tool_calls::tool_call_id;
use crate::wire::uris::content_uri;

/// So many counts of lines between two contents are remembered.
const COUNTED_MAX: usize = 10_000;

/// How many lines lie between two contents, by what they are called.
pub(super) type CountedLines = HashMap<(String, String), LineCounts>;

/// The edits of a turn, and whose turn it is.
pub(super) struct TurnOf<'a> {
    chat: ChatKey,
    id: &'a str,
    started_at: &'a str,
    edits: Vec<&'a CallEdit>,
}

/// An edit, and where it was said.
#[derive(Debug, Clone, Copy)]
struct SaidEdit<'a> {
    chat: ChatKey,
    turn: &'a str,
    edit: &'a CallEdit,
}

/// What the edits of one file come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetEdit<'a> {
    first: SaidEdit<'a>,
    last: SaidEdit<'a>,
    /// What it has done to the lines, where it is one edit alone.
    lines: Option<LineCounts>,
}

/// What edits come to, file by file, in the order in which the files were first edited. A file that is again what it was
/// is not among them.
pub(super) fn net_of<'a>(turns: impl IntoIterator<Item = TurnOf<'a>>) -> Vec<NetEdit<'a>> {
    let said = turns.into_iter().flat_map(|TurnOf { chat, id, edits, .. }| {
        edits.into_iter().map(move |edit| SaidEdit { chat, turn: id, edit })
    });
    let mut edits: Vec<SaidEdit<'a>> = said.collect();
    // Turns of several chats may run at the same time.
    edits.sort_by_key(|said| said.edit.at);
    let mut all: Vec<NetEdit<'a>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for said in edits {
        let place = *places.entry(&said.edit.file).or_insert(all.len());
        match all.get_mut(place) {
            Some(net) => {
                net.last = said;
                net.lines = None;
            }
            None => all.push(NetEdit { first: said, last: said, lines: Some(said.edit.lines) }),
        }
    }
    all.retain(|net| net.first.edit.before != net.last.edit.after);
    all
}

/// Where a content is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlacedContent {
    chat: ChatKey,
    /// The URI of that chat.
    chat_uri: String,
    turn: String,
    content: EditContent,
}

/// What has become of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChangedFile {
    /// The `file:` URI.
    pub(super) file: String,
    before: Option<PlacedContent>,
    after: Option<PlacedContent>,
    pub(super) lines: LineCounts,
}

impl ChangedFile {
    /// What a mark says that it was reviewed: the same as long as both sides are.
    pub(super) fn version(&self) -> String {
        let id = |side: &Option<PlacedContent>| {
            side.as_ref().map_or(String::new(), |side| side.content.id.clone())
        };
        format!("{}:{}", id(&self.before), id(&self.after))
    }

    pub(super) fn shown(&self, is_reviewed: bool) -> ChangesetFile {
        let path = self.file.strip_prefix("file://").unwrap_or("/");
        let side = |name: &str, placed: &PlacedContent| FileEditSide {
            uri: self.file.clone(),
            content: ContentRef {
                uri: content_uri(&placed.chat_uri, &placed.content.id, name, path),
                size_hint: Some(placed.content.bytes),
                content_type: Some("text/plain".to_owned()),
                nonce: None,
            },
        };
        ChangesetFile {
            id: self.file.clone(),
            edit: FileEdit {
                before: self.before.as_ref().map(|placed| side("before", placed)),
                after: self.after.as_ref().map(|placed| side("after", placed)),
                diff: Some(FileEditDiffStats {
                    added: Some(self.lines.added),
                    removed: Some(self.lines.removed),
                }),
            },
            reviewed: is_reviewed.then_some(true),
            meta: None,
        }
    }
}

impl Host {
    /// When the edits of a call of this session are said to be made, which is over now: later than any before.
    pub(super) fn edit_time(&self, session: SessionKey, now_ms: i64) -> i64 {
        let turns = self.turns_of_session(session);
        let last = turns.iter().flat_map(|turn| turn.edits.iter().map(|edit| edit.at)).max();
        last.map_or(now_ms, |last| now_ms.max(last.saturating_add(1)))
    }

    /// The turns of a chat in which files were edited, oldest first.
    pub(super) fn turns_with_edits(&self, key: ChatKey) -> Vec<TurnOf<'_>> {
        let Some(chat) = self.channels.chats.known(key) else { return Vec::new() };
        let completed = chat.conversation.history().turns().iter().filter_map(|turn| {
            let TurnEdits { started_at, edits } = turn.edits();
            (!edits.is_empty()).then(|| TurnOf {
                chat: key,
                id: turn.id(),
                started_at,
                edits: edits.iter().collect(),
            })
        });
        let active = chat.conversation.state().active_turn.iter().map(|turn| TurnOf {
            chat: key,
            id: &turn.id,
            started_at: &turn.started_at,
            edits: active_edits(chat),
        });
        completed.chain(active.filter(|turn| !turn.edits.is_empty())).collect()
    }

    /// The turns of all chats of a session in which files were edited, in the order in which they began. One that a fork
    /// has, too, is one.
    pub(super) fn turns_of_session(&self, key: SessionKey) -> Vec<TurnOf<'_>> {
        let mut turns: Vec<TurnOf<'_>> =
            self.chats_of(key).into_iter().flat_map(|chat| self.turns_with_edits(chat)).collect();
        turns.sort_by(|one, other| one.started_at.cmp(other.started_at));
        let mut seen = BTreeSet::new();
        turns.retain(|turn| seen.insert((turn.started_at, turn.id)));
        turns
    }

    /// The chat of a session in which the turn of this id is: its default chat, if it is there.
    pub(super) fn chat_of_turn(&self, session: SessionKey, id: &str) -> Option<ChatKey> {
        let has_turn = |key: &ChatKey| {
            self.channels.chats.known(*key).is_some_and(|chat| {
                let active = chat.conversation.state().active_turn.as_ref();
                chat.conversation.history().contains(id) || active.is_some_and(|turn| turn.id == id)
            })
        };
        let mut chats = self.chats_of(session);
        chats.sort_by_key(|chat| !self.is_default(*chat));
        chats.into_iter().find(has_turn)
    }

    /// The files that these edits come to, with the counts of their lines.
    pub(super) fn net_files(
        &mut self,
        edits: impl for<'a> FnOnce(&'a Self) -> Vec<NetEdit<'a>>,
    ) -> Vec<ChangedFile> {
        let mut counted = std::mem::take(&mut self.changes.counted);
        if counted.len() > COUNTED_MAX {
            counted.clear();
        }
        let net = edits(self);
        let files = net.iter().map(|net| self.changed_file(net, &mut counted)).collect();
        self.changes.counted = counted;
        files
    }

    fn changed_file(&self, net: &NetEdit<'_>, counted: &mut CountedLines) -> ChangedFile {
        let placed = |said: &SaidEdit<'_>, content: &Option<EditContent>| {
            let chat_uri = self.channels.chats.known(said.chat)?.channel.uri.clone();
            let (chat, turn, content) = (said.chat, said.turn.to_owned(), content.clone()?);
            Some(PlacedContent { chat, chat_uri, turn, content })
        };
        let before = placed(&net.first, &net.first.edit.before);
        let after = placed(&net.last, &net.last.edit.after);
        let lines = net.lines.unwrap_or_else(|| {
            let id = |side: &Option<PlacedContent>| {
                side.as_ref().map_or(String::new(), |side| side.content.id.clone())
            };
            let text = |side: &Option<PlacedContent>| {
                side.as_ref().and_then(|side| self.text_placed(side)).unwrap_or_default()
            };
            let count = || LineCounts::between(&text(&before), &text(&after));
            *counted.entry((id(&before), id(&after))).or_insert_with(count)
        });
        ChangedFile { file: net.last.edit.file.clone(), before, after, lines }
    }

    /// A content of an edit.
    fn text_placed(&self, placed: &PlacedContent) -> Option<String> {
        let chat = self.channels.chats.known(placed.chat)?;
        let active = chat.conversation.state().active_turn.as_ref().filter(|turn| turn.id == placed.turn);
        let completed;
        let parts = match active {
            Some(turn) => &turn.response_parts,
            None => {
                completed = chat.conversation.history().get(&placed.turn)?.read()?.response_parts;
                &completed
            }
        };
        CallEdit::text_in(parts, &placed.content.id)
    }

    /// The files that were changed in what a changeset is of; none when that is not there.
    pub(super) fn changed_files(
        &mut self,
        session: SessionKey,
        scope: &ChangesetScope,
    ) -> Option<Vec<ChangedFile>> {
        match scope {
            ChangesetScope::Session => Some(self.net_files(|host| net_of(host.turns_of_session(session)))),
            ChangesetScope::Turn(id) => {
                let chat = self.chat_of_turn(session, id)?;
                Some(self.net_files(|host| {
                    net_of(host.turns_with_edits(chat).into_iter().filter(|turn| turn.id == id))
                }))
            }
        }
    }
}

/// What the calls of the turn that runs have said, by their ids.
pub(super) fn edits_of_calls(chat: &Chat) -> HashMap<String, Vec<CallEdit>> {
    let calls = chat.conversation.tools().filter_map(|call| {
        let edits = edits_of(call);
        (!edits.is_empty()).then(|| (tool_call_id(call).to_owned(), edits))
    });
    calls.collect()
}

/// The edits of the turn that runs, in the order of its calls.
fn active_edits(chat: &Chat) -> Vec<&CallEdit> {
    if chat.call_edits.is_empty() {
        return Vec::new();
    }
    chat.conversation.tools().filter_map(|call| chat.call_edits.get(tool_call_id(call))).flatten().collect()
}
