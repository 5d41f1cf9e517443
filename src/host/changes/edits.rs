//! Edits that the tool calls of a turn, a chat or a session have reported.
//!
//! Owns: the net effect of several edits of a file, from the content before the first to the
//! content after the last; and the order of edits of several chats.
//! Never: reads a file, or sends anything.

use std::collections::{BTreeSet, HashMap};

use ahp_types::actions::StateAction;
use ahp_types::state::{ResponsePart, ToolCallState};

use crate::host::changes::sides::{ContentPlace, RevertedFile, SideContent};
use crate::host::effects::{ChatKey, FileText};
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, SessionKey};
use crate::state::edits::{edited_at, edits_of, CallEdit, EditContent, FileDiff, LineCounts, TurnEdits};
use crate::wire::changesets::{changeset_uri, parse_changeset_uri, ChangesetScope};
use crate::wire::tool_calls::tool_call_id;

/// Maximum bytes of turns that are read per lookup.
const LOOKUP_BATCH_BYTES_MAX: usize = 64 << 20;

/// Line counts of differences, by the ids of the contents before and after.
pub(in crate::host) type CountedLines = HashMap<(String, String), LineCounts>;

/// Edits of a turn.
pub(in crate::host) struct TurnOf<'a> {
    chat: ChatKey,
    pub(super) id: &'a str,
    started_at: &'a str,
    pub(super) edits: Vec<&'a CallEdit>,
}

/// Edit, with the turns that contain its content before and after.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct ReportedEdit<'a> {
    before_in: (ChatKey, &'a str),
    after_in: (ChatKey, &'a str),
    edit: &'a CallEdit,
    is_revert: bool,
}

/// Returns the edits of turns, each with its place.
pub(in crate::host) fn reported_in(turns: Vec<TurnOf<'_>>) -> Vec<ReportedEdit<'_>> {
    let reported = turns.into_iter().flat_map(|TurnOf { chat, id, edits, .. }| {
        let place = (chat, id);
        edits.into_iter().map(move |edit| ReportedEdit {
            before_in: place,
            after_in: place,
            edit,
            is_revert: false,
        })
    });
    reported.collect()
}

/// Net effect of the edits of one file.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct NetEdit<'a> {
    first: ReportedEdit<'a>,
    last: ReportedEdit<'a>,
    /// Line counts, if the net effect is a single edit.
    lines: Option<LineCounts>,
}

/// Returns the net edits by first edit of a file, without files that have their first content
/// again.
pub(in crate::host) fn net_of(mut edits: Vec<ReportedEdit<'_>>) -> Vec<NetEdit<'_>> {
    // Turns of several chats may run concurrently.
    edits.sort_by_key(|reported| reported.edit.at);
    let mut all: Vec<NetEdit<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for reported in edits {
        if reported.is_revert && !places.contains_key(reported.edit.diff.file.as_str()) {
            // The edits that it has reverted were removed with their turns.
            continue;
        }
        let place = *places.entry(&reported.edit.diff.file).or_insert(all.len());
        match all.get_mut(place) {
            Some(net) => {
                net.last = reported;
                net.lines = None;
            }
            None => all.push(NetEdit { first: reported, last: reported, lines: reported.edit.diff.lines }),
        }
    }
    all.retain(|net| net.first.edit.diff.before != net.last.edit.diff.after);
    all
}

/// Cache for contents of edits: each turn is parsed once, however many files it has changed.
#[derive(Debug, Default)]
pub(in crate::host) struct EditTextCache {
    turns: HashMap<(ChatKey, String), HashMap<String, String>>,
    bytes: usize,
}

impl EditTextCache {
    fn of(
        &mut self,
        chat: ChatKey,
        turn: &str,
        read: impl FnOnce() -> HashMap<String, String>,
    ) -> &HashMap<String, String> {
        let key = (chat, turn.to_owned());
        if self.bytes > LOOKUP_BATCH_BYTES_MAX && !self.turns.contains_key(&key) {
            (self.turns, self.bytes) = (HashMap::new(), 0);
        }
        let bytes = &mut self.bytes;
        self.turns.entry(key).or_insert_with(|| {
            let texts = read();
            *bytes += texts.values().map(String::len).sum::<usize>();
            texts
        })
    }
}

/// Returns the time for a call that ends now: later than all earlier edits of the session.
pub(in crate::host) fn edit_time(ledger: &Ledger, session: SessionKey, now_ms: i64) -> i64 {
    let turns = turns_of_session(ledger, session);
    let reported = turns.iter().flat_map(|turn| turn.edits.iter().map(|edit| edit.at));
    let reverted = ledger.channels.sessions.known(session).map(|session| &session.reverted);
    let last = reported.chain(reverted.into_iter().flatten().map(|file| file.edit.at)).max();
    last.map_or(now_ms, |last| now_ms.max(last.saturating_add(1)))
}

/// Returns the turns of a chat that have edits, the active one last.
pub(in crate::host) fn turns_with_edits(ledger: &Ledger, key: ChatKey) -> Vec<TurnOf<'_>> {
    let Some(chat) = ledger.channels.chats.known(key) else { return Vec::new() };
    let completed = chat.conversation.history().edited().map(|turn| {
        let TurnEdits { started_at, edits } = turn.edits();
        TurnOf { chat: key, id: turn.id(), started_at, edits: edits.iter().collect() }
    });
    let active = chat.conversation.state().active_turn.iter().map(|turn| TurnOf {
        chat: key,
        id: &turn.id,
        started_at: &turn.started_at,
        edits: active_edits(chat),
    });
    completed.chain(active.filter(|turn| !turn.edits.is_empty())).collect()
}

/// Returns the turns with edits in all chats of a session, by start time. A turn that a fork has
/// copied counts once.
pub(in crate::host) fn turns_of_session(ledger: &Ledger, key: SessionKey) -> Vec<TurnOf<'_>> {
    let mut turns: Vec<TurnOf<'_>> =
        ledger.channels.chats_in(key).into_iter().flat_map(|chat| turns_with_edits(ledger, chat)).collect();
    turns.sort_by(|one, other| one.started_at.cmp(other.started_at));
    let mut seen = BTreeSet::new();
    turns.retain(|turn| seen.insert((turn.started_at, turn.id)));
    turns
}

/// Returns the reverts in a session that satisfy `is_meant`.
pub(in crate::host) fn reverts_of(
    ledger: &Ledger,
    key: SessionKey,
    is_meant: impl Fn(&RevertedFile) -> bool,
) -> Vec<ReportedEdit<'_>> {
    let Some(session) = ledger.channels.sessions.known(key) else { return Vec::new() };
    let nowhere = (ChatKey(0), "");
    let reported =
        session.reverted.iter().filter(|file| !file.is_unsure && file.git.is_none() && is_meant(file));
    let reverts = reported.map(|file| {
        let [before_in, after_in] = [&file.before_in, &file.after_in].map(|place| {
            let place = place.as_ref().and_then(|it| Some((ledger.find_chat(&it.chat)?, it.turn.as_str())));
            place.unwrap_or(nowhere)
        });
        ReportedEdit { before_in, after_in, edit: &file.edit, is_revert: true }
    });
    reverts.collect()
}

/// Removes the edits that were reverted by git in their turn or in the session. A revert by git has
/// no content that a call has reported, so it is not an edit in this list.
pub(in crate::host) fn without_reverted<'a>(
    ledger: &Ledger,
    key: SessionKey,
    mut reported: Vec<ReportedEdit<'a>>,
) -> Vec<ReportedEdit<'a>> {
    let Some(session) = ledger.channels.sessions.known(key) else { return reported };
    let mut reverted: HashMap<&str, Vec<(i64, ChangesetScope)>> = HashMap::new();
    for file in session.reverted.iter().filter(|file| file.git.is_some() && !file.is_unsure) {
        let changeset = format!("{}{}", session.channel.uri, file.scope);
        if let Some((_, scope)) = parse_changeset_uri(&changeset) {
            reverted.entry(&file.edit.diff.file).or_default().push((file.edit.at, scope));
        }
    }
    reported.retain(|it| {
        let mut of_file = reverted.get(it.edit.diff.file.as_str()).into_iter().flatten();
        !of_file.any(|(at, scope)| {
            let is_of = match scope {
                ChangesetScope::Session => true,
                ChangesetScope::Turn(id) => it.after_in.1 == id,
                _ => false,
            };
            is_of && it.edit.at < *at
        })
    });
    reported
}

/// Returns the chat of a session with the turn of this id; the default chat has precedence.
pub(in crate::host) fn chat_of_turn(ledger: &Ledger, session: SessionKey, id: &str) -> Option<ChatKey> {
    let has_turn = |key: &ChatKey| ledger.channels.chats.known(*key).is_some_and(|chat| has_turn(chat, id));
    let mut chats = ledger.channels.chats_in(session);
    chats.sort_by_key(|chat| !ledger.channels.is_default(*chat));
    chats.into_iter().find(has_turn)
}

/// Returns the net effect of edits as a changed file. Line counts are looked up in `counted`, else
/// computed from the contents.
pub(super) fn changed_file(
    ledger: &Ledger,
    net: &NetEdit<'_>,
    counted: &mut CountedLines,
    found: &mut EditTextCache,
) -> FileDiff<SideContent> {
    let placed = |(chat, turn): (ChatKey, &str), content: &Option<EditContent>| {
        let content = content.clone()?;
        let chat = ledger.channels.chats.get(&chat).map(|chat| chat.channel.uri.clone()).unwrap_or_default();
        Some((ContentPlace { chat, turn: turn.to_owned() }, content))
    };
    let before = placed(net.first.before_in, &net.first.edit.diff.before);
    let after = placed(net.last.after_in, &net.last.edit.diff.after);
    let lines = net.lines.unwrap_or_else(|| {
        let id = |side: &Option<(ContentPlace, EditContent)>| {
            side.as_ref().map_or(String::new(), |(_, content)| content.id.clone())
        };
        let mut text = |side: &Option<(ContentPlace, EditContent)>| {
            let text =
                side.as_ref().and_then(|(place, content)| reported_text(ledger, place, content, found));
            text.unwrap_or_default()
        };
        let count = || LineCounts::between(&text(&before), &text(&after));
        *counted.entry((id(&before), id(&after))).or_insert_with(count)
    });
    let side = |(place, content)| SideContent::Reported { place, content };
    FileDiff {
        file: net.last.edit.diff.file.clone(),
        renamed_from: None,
        before: before.map(side),
        after: after.map(side),
        lines: Some(lines),
    }
}

/// Returns the contents of a reverted file, before and after; `None` for a content that is no
/// longer known.
pub(in crate::host) fn reverted_sides(
    ledger: &Ledger,
    file: &RevertedFile,
    found: &mut EditTextCache,
) -> (FileText, FileText) {
    let mut text = |place: &Option<ContentPlace>, content: &Option<EditContent>| match (place, content) {
        (Some(place), Some(content)) => reported_text(ledger, place, content, found).map(Some),
        _ => Some(None),
    };
    (text(&file.before_in, &file.edit.diff.before), text(&file.after_in, &file.edit.diff.after))
}

/// Returns whether the turns that contain the contents of a reverted file still exist.
pub(super) fn has_places(ledger: &Ledger, file: &RevertedFile) -> bool {
    let exists = |place: &ContentPlace| {
        let chat = ledger.find_chat(&place.chat).and_then(|key| ledger.channels.chats.get(&key));
        chat.is_some_and(|chat| has_turn(chat, &place.turn))
    };
    [&file.before_in, &file.after_in].into_iter().flatten().all(exists)
}

fn has_turn(chat: &Chat, id: &str) -> bool {
    let active = chat.conversation.state().active_turn.as_ref();
    chat.conversation.history().contains(id) || active.is_some_and(|turn| turn.id == id)
}

fn reported_text(
    ledger: &Ledger,
    place: &ContentPlace,
    content: &EditContent,
    found: &mut EditTextCache,
) -> Option<String> {
    let key = ledger.find_chat(&place.chat)?;
    let chat = ledger.channels.chats.get(&key)?;
    let id = &content.id;
    let is_active = chat.conversation.state().active_turn.as_ref().is_some_and(|turn| turn.id == place.turn);
    if is_active {
        // In the running turn, the edits are known by call.
        let has_it = |call: &&ToolCallState| {
            let edits = chat.call_edits.get(tool_call_id(call));
            edits.into_iter().flatten().any(|edit| edit.has(id))
        };
        return CallEdit::texts_in(chat.conversation.tools().find(has_it)).remove(id);
    }
    let read = || {
        let parts = chat.conversation.history().get(&place.turn)?.read()?.response_parts;
        let calls = parts.iter().filter_map(|part| match part {
            ResponsePart::ToolCall(part) => Some(&part.tool_call),
            _ => None,
        });
        Some(CallEdit::texts_in(calls))
    };
    found.of(key, &place.turn, || read().unwrap_or_default()).get(id).cloned()
}

impl Chat {
    /// Records the edits that an action reports. Returns `None` if the action cannot affect any
    /// changeset; otherwise whether files may have changed, rather than only the turn's status.
    /// `is_offered`: whether the session offers changesets.
    pub(in crate::host) fn note_edits(&mut self, action: &StateAction, is_offered: bool) -> Option<bool> {
        match action {
            StateAction::ChatToolCallComplete(done) => {
                let at = edited_at(done.meta.as_ref());
                let content = done.result.content.as_deref().unwrap_or_default();
                let edits = CallEdit::all_in(content, at);
                if edits.is_empty() || !done.result.success {
                    return None;
                }
                self.call_edits.insert(done.tool_call_id.clone(), edits);
                Some(true)
            }
            StateAction::ChatToolCallResultConfirmed(done) if !done.approved => {
                Some(self.call_edits.remove(&done.tool_call_id).is_some())
            }
            StateAction::ChatTurnResume(_) => {
                self.call_edits = edits_of_calls(self);
                Some(false)
            }
            StateAction::ChatTurnStarted(_) => Some(false),
            StateAction::ChatTurnComplete(_)
            | StateAction::ChatTurnCancelled(_)
            | StateAction::ChatError(_) => {
                self.call_edits.clear();
                Some(is_offered)
            }
            StateAction::ChatTruncated(_) => Some(is_offered),
            _ => None,
        }
    }
}

fn edits_of_calls(chat: &Chat) -> HashMap<String, Vec<CallEdit>> {
    let calls = chat.conversation.tools().filter_map(|call| {
        let edits = edits_of(call);
        (!edits.is_empty()).then(|| (tool_call_id(call).to_owned(), edits))
    });
    calls.collect()
}

fn active_edits(chat: &Chat) -> Vec<&CallEdit> {
    if chat.call_edits.is_empty() {
        return Vec::new();
    }
    chat.conversation.tools().filter_map(|call| chat.call_edits.get(tool_call_id(call))).flatten().collect()
}

/// Returns the name of a scope in stored rows: the end of its URI.
pub(in crate::host) fn scope_key(scope: &ChangesetScope) -> String {
    changeset_uri("", scope)
}
