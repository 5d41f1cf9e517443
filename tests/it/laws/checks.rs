//! Invariants that hold once all messages were received.
//!
//! Owns: the comparison of mirrors with fresh snapshots, with the one list of what no action can
//! carry; and the agreement of everything that is derived from a chat with the chat.
//! Never: changes anything.

use std::collections::{BTreeMap, BTreeSet};

use ahp_sidecar::conform::mirror::{check_equal, ChannelMirror, ACTIVITY};
use ahp_sidecar::wire::uris::default_chat_of;
use ahp_types::state::{
    ChatState, ChatSummary, SessionInputRequest, SessionState, SessionStatus, SessionSummary, Snapshot,
    SnapshotState, ToolCallContributor, ToolCallRunningState, ToolCallState,
};
use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::truth::{calls, questions, Truth};

type Fresh = BTreeMap<String, Snapshot>;

/// Checks that the mirrors of `name` equal fresh snapshots.
pub fn mirror<'a>(
    name: &str,
    held: impl Iterator<Item = (&'a String, &'a ChannelMirror)>,
    fresh: &Fresh,
) -> Result<()> {
    for (channel, held) in held {
        let snapshot =
            fresh.get(channel).with_context(|| format!("{name} holds {channel}, which is gone"))?;
        check_equal(&held.state, &snapshot.state)
            .with_context(|| format!("{name} does not mirror {channel}"))?;
    }
    Ok(())
}

/// Checks that sessions and their rows agree with their chats.
pub fn derived(fresh: &Fresh) -> Result<()> {
    let mut listed = BTreeSet::new();
    for (uri, snapshot) in fresh {
        let SnapshotState::Session(session) = &snapshot.state else { continue };
        let mut chats = Vec::new();
        for row in &session.chats {
            let Some(SnapshotState::Chat(state)) = fresh.get(&row.resource).map(|snapshot| &snapshot.state)
            else {
                anyhow::bail!("{uri} lists {}, which is not there", row.resource);
            };
            ensure!(listed.insert(&row.resource), "{} is listed twice", row.resource);
            chat_agrees(session, row, state).with_context(|| row.resource.clone())?;
            chats.push(&**state);
        }
        session_agrees(session, &chats).with_context(|| uri.clone())?;
        notes_agree(session).with_context(|| uri.clone())?;
    }
    let chats = fresh.values().filter(|it| matches!(it.state, SnapshotState::Chat(_))).count();
    ensure!(listed.len() == chats, "{} of {chats} chats are listed", listed.len());
    if let Some(SnapshotState::Root(root)) = fresh.get("ahp-root://").map(|snapshot| &snapshot.state) {
        let sessions = fresh.values().filter(|it| matches!(it.state, SnapshotState::Session(_))).count();
        ensure!(root.active_sessions == i64::try_from(sessions).ok(), "{:?} sessions", root.active_sessions);
    }
    Ok(())
}

/// Checks that notes exist only for chats of the session, and only where something is noted.
fn notes_agree(session: &SessionState) -> Result<()> {
    let Some(notes) = &session.meta else { return Ok(()) };
    ensure!(!notes.is_empty(), "notes without a name");
    for (name, by_chat) in notes {
        let by_chat = by_chat.as_object().filter(|by_chat| !by_chat.is_empty());
        let chats = by_chat.with_context(|| format!("no chat has a note `{name}`"))?;
        for chat in chats.keys() {
            let listed = session.chats.iter().any(|row| row.resource == *chat);
            ensure!(listed, "a note `{name}` of {chat}, which is not in it");
        }
    }
    Ok(())
}

/// Checks that a chat's row agrees with the chat.
fn chat_agrees(session: &SessionState, row: &ChatSummary, chat: &ChatState) -> Result<()> {
    let meant = ChatSummary {
        resource: chat.resource.clone(),
        title: chat.title.clone(),
        status: chat.status,
        activity: chat.activity.clone(),
        modified_at: chat.modified_at.clone(),
        changes: chat.changes.clone(),
        origin: chat.origin.clone(),
        movable: chat.movable,
        interactivity: chat.interactivity,
        working_directories: chat.working_directories.clone(),
    };
    ensure!(*row == meant, "the row is {row:?}, the chat says {meant:?}");
    let is_default = session.default_chat.as_ref() == Some(&row.resource);
    ensure!(row.movable == Some(!is_default), "movable: {:?}, the default chat: {is_default}", row.movable);
    let runs = chat.status & SessionStatus::InProgress.bits() != 0;
    ensure!(runs == chat.active_turn.is_some(), "in progress: {runs}, turn: {:?}", chat.active_turn);
    let waits = chat.status & ACTIVITY == SessionStatus::InputNeeded.bits();
    let open = open_requests(chat)?;
    let for_user = open.iter().filter(|request| request.get("client").is_none()).count();
    ensure!(waits == (for_user > 0), "waits: {waits}, for {open:?}");
    Ok(())
}

/// Checks that a session agrees with its chats.
fn session_agrees(session: &SessionState, chats: &[&ChatState]) -> Result<()> {
    let default = chats.iter().find(|chat| session.default_chat.as_ref() == Some(&chat.resource));
    let default = default.with_context(|| format!("the default chat is {:?}", session.default_chat))?;
    let is = |status: SessionStatus| move |chat: &&&ChatState| chat.status & ACTIVITY == status.bits();
    let any = |status| Some(default).filter(is(status)).or_else(|| chats.iter().find(is(status)));
    let leading = any(SessionStatus::InputNeeded).or_else(|| any(SessionStatus::Error)).unwrap_or(default);
    let shown = (session.status & ACTIVITY, &session.activity);
    let meant = (leading.status & ACTIVITY, &leading.activity);
    ensure!(shown == meant, "the session shows {shown:?}, {} {meant:?}", leading.resource);

    for call in chats.iter().flat_map(|chat| &chat.active_turn).flat_map(calls) {
        let ToolCallState::Running(running) = call else { continue };
        let Some(ToolCallContributor::Client(client)) = &running.contributor else { continue };
        let active = session.active_clients.iter().any(|active| active.client_id == client.client_id);
        ensure!(active, "{call:?} runs on a client that is gone");
    }

    let requests = sorted(session.input_needed.iter().flatten().map(request_content).collect::<Result<_>>()?);
    let open = chats.iter().map(|chat| open_requests(chat)).collect::<Result<Vec<_>>>()?;
    let open = sorted(open.into_iter().flatten().collect());
    ensure!(requests == open, "the session asks for {requests:#?}, the chats for {open:#?}");
    ensure!(session.input_needed.as_ref().is_none_or(|list| !list.is_empty()), "an empty list");
    Ok(())
}

/// Returns the content of a session's input request, without its id.
fn request_content(request: &SessionInputRequest) -> Result<Value> {
    Ok(match request {
        SessionInputRequest::ToolConfirmation(it) => {
            json!({ "chat": it.chat, "turn": it.turn_id, "call": it.tool_call })
        }
        SessionInputRequest::ChatInput(it) => json!({ "chat": it.chat, "request": it.request }),
        SessionInputRequest::ToolClientExecution(it) => {
            let call = ToolCallState::Running(it.tool_call.clone());
            json!({ "chat": it.chat, "turn": it.turn_id, "client": it.client_id, "call": call })
        }
        other => anyhow::bail!("nobody asked for {other:?}"),
    })
}

/// Returns the requests of a chat that wait for the user or for a client.
fn open_requests(chat: &ChatState) -> Result<Vec<Value>> {
    let mut open = Vec::new();
    if let Some(turn) = &chat.active_turn {
        let waits = |call: &&ToolCallState| {
            matches!(
                call,
                ToolCallState::PendingConfirmation(_) | ToolCallState::PendingResultConfirmation(_)
            )
        };
        for call in calls(turn).filter(waits) {
            open.push(json!({ "chat": chat.resource, "turn": turn.id, "call": call }));
        }
        for call in calls(turn) {
            let ToolCallState::Running(running) = call else { continue };
            let Some(ToolCallContributor::Client(client)) = &running.contributor else { continue };
            let given = ToolCallState::Running(ToolCallRunningState { content: None, ..running.clone() });
            open.push(json!({
                "chat": chat.resource, "turn": turn.id, "client": client.client_id, "call": given,
            }));
        }
        for question in questions(turn) {
            open.push(json!({ "chat": chat.resource, "request": question.request }));
        }
    }
    Ok(open)
}

fn sorted(mut values: Vec<Value>) -> Vec<Value> {
    values.sort_by_key(Value::to_string);
    values
}

/// Checks that the session list agrees with the sessions, newest first.
pub fn list(list: &[SessionSummary], fresh: &Fresh) -> Result<()> {
    let sessions = fresh.values().filter(|it| matches!(it.state, SnapshotState::Session(_))).count();
    ensure!(list.len() == sessions, "{} of {sessions} sessions are listed", list.len());
    let ordered = list.windows(2).all(|pair| pair[0].modified_at >= pair[1].modified_at);
    ensure!(ordered, "the newest session does not come first: {list:?}");
    for summary in list {
        let snapshot = fresh.get(&summary.resource).context("a listed session is not there")?;
        let SnapshotState::Session(state) = &snapshot.state else { anyhow::bail!("{summary:?}") };
        let listed = (
            (&summary.title, summary.status, &summary.activity, &summary.provider),
            (
                (&summary.default_chat, &summary.working_directories),
                (&summary.project, &summary.origin, &summary.annotations),
            ),
        );
        let shown = (
            (&state.title, state.status, &state.activity, &state.provider),
            (
                (&state.default_chat, &state.working_directories),
                (&state.project, &state.origin, &state.annotations),
            ),
        );
        ensure!(listed == shown, "listed as {listed:?}, shown as {shown:?}");
        let own = fresh.get(&default_chat_of(&summary.resource)).map(|chat| &chat.state);
        if let Some(SnapshotState::Chat(own)) = own {
            let listed = summary.meta.as_ref().and_then(|meta| meta.get("selected"));
            let shown = selected(own);
            ensure!(listed == shown.as_ref(), "selected is {shown:?}, listed {summary:?}");
        }
        let listed: Vec<_> = summary.chats.iter().flatten().collect();
        let same = listed.len() == state.chats.len()
            && listed.iter().zip(&state.chats).all(|(chat, row)| {
                (&chat.resource, &chat.title, chat.status, &chat.origin)
                    == (&row.resource, &row.title, Some(row.status), &row.origin)
            });
        ensure!(same, "listed with the chats {listed:?}, shown with {:?}", state.chats);
        let newest = state.chats.iter().map(|chat| &chat.modified_at).max();
        ensure!(Some(&summary.modified_at) >= newest, "listed as older than its chat: {summary:?}");
        ensure!(summary.created_at <= summary.modified_at, "modified before it was created: {summary:?}");
    }
    Ok(())
}

/// Returns the selection of a chat: that of its draft, else of its last message; a draft without a
/// model does not clear it.
fn selected(chat: &ChatState) -> Option<Value> {
    let running = chat.active_turn.as_ref().map(|turn| &turn.message);
    let last = running.or(chat.turns.last().map(|turn| &turn.message));
    let said = chat.draft.as_ref().or(last);
    let model = said.and_then(|said| said.model.as_ref()).or(last.and_then(|last| last.model.as_ref()));
    let agent = said.and_then(|said| said.agent.as_ref());
    let mut selected = serde_json::Map::new();
    selected.extend(model.map(|model| ("model".to_owned(), json!(model))));
    selected.extend(agent.map(|agent| ("agent".to_owned(), json!(agent))));
    (!selected.is_empty()).then_some(Value::Object(selected))
}

/// Checks that the summaries built from notifications equal the listed ones. An empty activity or
/// `_meta` counts as none.
pub fn summaries(kept: &BTreeMap<String, SessionSummary>, list: &[SessionSummary]) -> Result<()> {
    let plain = |summary: &SessionSummary| SessionSummary {
        activity: summary.activity.clone().filter(|activity| !activity.is_empty()),
        meta: summary.meta.clone().filter(|meta| !meta.is_empty()),
        ..summary.clone()
    };
    let kept: Vec<_> = kept.values().map(plain).collect();
    let mut listed: Vec<_> = list.iter().map(plain).collect();
    listed.sort_by(|a, b| a.resource.cmp(&b.resource));
    ensure!(kept == listed, "by notifications {kept:#?},\nby the list {listed:#?}");
    Ok(())
}

/// Checks that no request waits for an absent user.
pub fn no_request_is_pending(truth: &Truth) -> Result<()> {
    for (_, chat) in truth.chats() {
        let open = open_requests(chat)?;
        ensure!(open.is_empty(), "still waiting: {open:?}");
    }
    Ok(())
}

/// Checks that an agent works in the directories of its chat, which are among those of its session.
pub fn agent_works_in_its_directories(works_in: Option<&[String]>, chat: &str, fresh: &Fresh) -> Result<()> {
    let Some(SnapshotState::Chat(state)) = fresh.get(chat).map(|snapshot| &snapshot.state) else {
        return Ok(());
    };
    let sessions = fresh.values().filter_map(|snapshot| match &snapshot.state {
        SnapshotState::Session(session) => Some(session),
        _ => None,
    });
    let mut sessions = sessions.filter(|session| session.chats.iter().any(|row| row.resource == chat));
    let of_session =
        sessions.next().and_then(|session| session.working_directories.clone()).unwrap_or_default();
    let chosen = state.working_directories.as_ref();
    let strange = chosen.into_iter().flatten().find(|directory| !of_session.contains(directory));
    ensure!(strange.is_none(), "{chat} works in {strange:?}, and its session in {of_session:?}");
    let is_lost = chosen.is_some_and(Vec::is_empty) && !of_session.is_empty();
    ensure!(!is_lost, "{chat} works in no directory, and its session in {of_session:?}");
    let meant = chosen.unwrap_or(&of_session);
    ensure!(works_in.is_none_or(|told| told == meant), "told to work in {works_in:?}, not in {meant:?}");
    Ok(())
}
