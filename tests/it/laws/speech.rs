//! Actions that clients dispatch.
//!
//! Owns: turning a wish into the JSON of an action, with ids of what there is (now and then of what
//! there is not), and damaging it.
//! Never: decides whether the host should accept it.

use ahp_sidecar::host::client_actions;
use ahp_sidecar::wire::annotations::annotations_uri;
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{ChatInputQuestion, ChatState, ConfigSchema, ToolCallState};
use serde_json::{json, Map, Value};

use super::schedule::{Damage, Wish};
use super::truth::{calls, questions, Truth};

/// Texts that have been trouble somewhere: nothing, what looks like the end of a line, titles.
pub const TEXTS: [&str; 8] = [
    "a",
    "two words",
    "",
    "\"},\"serverSeq\":9,\"origin\":{}",
    ",\"content\":\"",
    "\n ü\u{1}\\",
    " \n\t",
    "Ends\n",
];

pub fn text(index: u8) -> &'static str {
    TEXTS[usize::from(index) % TEXTS.len()]
}

/// An index from here on names something that is not there.
const NOWHERE: u8 = 240;

/// The id at an index, or one that nobody has given.
pub fn pick<'a>(index: u8, ids: impl Iterator<Item = &'a str>) -> String {
    let ids: Vec<&str> = ids.collect();
    match ids.len() {
        there if there > 0 && index < NOWHERE => ids[usize::from(index) % there].to_owned(),
        _ => format!("nobody's-{index}"),
    }
}

/// Directories, some spelled oddly; one that is not there, and what is none.
pub fn directory_at(index: u8) -> &'static str {
    let all = ["file:///a", "file:///b", "file:/b/", "file:///c/../c", "file:///nowhere", "nonsense"];
    all[usize::from(index) % all.len()]
}

/// Tools that clients offer, and one that nobody does.
const TOOLS: [&str; 4] = ["look", "write", "look", "fly"];

pub fn tool_name(index: u8) -> &'static str {
    TOOLS[usize::from(index) % TOOLS.len()]
}

/// A client as it takes part in a session, with some tools or none.
pub fn participant(client: &str, tools: u8) -> Value {
    let offered = |at: u8| json!({ "name": tool_name(at), "title": text(tools) });
    let tools: Vec<Value> = (0..tools % 3).map(offered).collect();
    json!({ "clientId": client, "tools": tools })
}

/// Returns the schema of the host settings that clients can change.
pub fn root_schema() -> ConfigSchema {
    let level = json!({ "type": "string", "title": "Level", "enum": ["low", "high"] });
    let fixed = json!({ "type": "boolean", "title": "Fixed", "readOnly": true });
    let schema = json!({ "type": "object", "properties": { "level": level, "fixed": fixed } });
    serde_json::from_value(schema).unwrap()
}

/// Values of the host's configuration: some that its schema has, some that it does not know, some
/// that do not fit.
fn root_values(value: u8) -> Value {
    match value {
        0 => json!({ "level": "low" }),
        1 => json!({ "level": "high", "theirs": [{ "any": null }] }),
        2 => json!({ "theirs": value, "more": "x" }),
        3 => json!({}),
        4 => json!({ "level": "middle", "theirs": 1 }),
        5 => json!({ "fixed": true }),
        _ => json!({ "theirs": null }),
    }
}

/// A client's wish about a chat as a channel and an action.
pub fn say(client: &str, wish: &Wish, damage: Option<Damage>, chat: &str, truth: &Truth) -> (String, Value) {
    let session = truth.session_of(chat).expect("a chat is one of a session");
    let action = match wish {
        Wish::Annotate { how, annotation, entry } => {
            annotate([*how, *annotation, *entry], session, chat, truth)
        }
        _ => act(client, wish, truth.chat(chat).expect("it is there"), truth.head),
    };
    let on_session = action["type"].as_str().is_some_and(|name| name.starts_with("session/"));
    let renames_chat = matches!(wish, Wish::RenameChat { .. });
    let on_root = matches!(wish, Wish::ConfigureHost { .. });
    let channel = match () {
        () if on_root => ROOT_RESOURCE_URI,
        () if on_session && !renames_chat => session,
        () => chat,
    };
    let annotates = matches!(wish, Wish::Annotate { .. });
    let channel = if annotates { annotations_uri(session) } else { channel.to_owned() };
    corrupt(damage, channel, action, truth)
}

/// Names of the MCP servers of the agent, of which the last one is unusable; and of none.
pub const SERVERS: [&str; 4] = ["one", "two", "broken", "none"];

/// A wish about an MCP server as an action.
fn serve(how: u8, server: u8) -> Value {
    let id = format!("mcp:{}", SERVERS[usize::from(server) % SERVERS.len()]);
    let toggled = |enablement: Value| json!({ "type": "session/customizationToggled", "id": id, "enablement": enablement });
    let (of_session, for_all) = (
        json!({ "kind": "session", "enabled": how.is_multiple_of(2) }),
        json!({ "kind": "global", "enabled": how % 4 < 2 }),
    );
    let of_workspace = json!({ "kind": "workspace", "uri": directory_at(how / 2), "enabled": how % 2 == 1 });
    match how % 9 {
        0 => json!({ "type": "session/mcpServerStartRequested", "id": id }),
        1 => json!({ "type": "session/mcpServerStopRequested", "id": id }),
        2 => json!({ "type": "session/mcpServerBackgroundRequested", "id": id }),
        3 => toggled(json!([])),
        4 => toggled(json!([of_session])),
        5 => toggled(json!([for_all])),
        6 => toggled(json!([of_session, of_workspace, for_all])),
        7 => toggled(json!([of_workspace])),
        _ => toggled(json!([for_all, of_session])),
    }
}

/// Small indices give an id that is new.
fn fresh_or(index: u8, kind: &str, head: i64) -> String {
    if index < 8 {
        format!("{kind}-at-{head}")
    } else {
        format!("{kind}-{}", index % 3)
    }
}

fn act(client: &str, wish: &Wish, chat: &ChatState, head: i64) -> Value {
    let active = chat.active_turn.as_ref();
    let turn = active.map_or("nobody's-turn", |turn| turn.id.as_str());
    let call = |wanted: fn(&ToolCallState) -> bool, index| {
        let calls = active.into_iter().flat_map(calls).filter(|call| wanted(call));
        let ids: Vec<String> = calls.map(call_id).collect();
        pick(index, ids.iter().map(String::as_str))
    };
    let queued = || chat.queued_messages.iter().flatten().map(|message| message.id.as_str());
    let past = || chat.turns.iter().rev().map(|turn| turn.id.as_str());
    match wish {
        Wish::Start { turn, text, queued: message } => {
            let mut action = json!({
                "type": "chat/turnStarted", "turnId": fresh_or(*turn, "turn", head), "message": message_of(*text),
            });
            if let Some(index) = message {
                action["queuedMessageId"] = pick(*index, queued()).into();
            }
            action
        }
        Wish::Cancel => json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": 1_000_000 }),
        Wish::Resume { turn } => json!({ "type": "chat/turnResume", "turnId": pick(*turn, past()) }),
        Wish::Truncate { turn: None } => json!({ "type": "chat/truncated" }),
        Wish::Truncate { turn: Some(index) } => {
            let ids = active.map(|turn| turn.id.as_str()).into_iter().chain(past());
            json!({ "type": "chat/truncated", "turnId": pick(*index, ids) })
        }
        Wish::Decide { call: index, approved, option } => {
            let id = call(|call| matches!(call, ToolCallState::PendingConfirmation(_)), *index);
            let mut action = json!({
                "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": id, "approved": approved,
            });
            if let Some(index) = option {
                let offered = ["allow", "allow-always", "reject", "reject-always"];
                action["selectedOptionId"] = pick(*index, offered.into_iter()).into();
            }
            action
        }
        Wish::Review { call: index, approved } => {
            let id = call(|call| matches!(call, ToolCallState::PendingResultConfirmation(_)), *index);
            json!({
                "type": "chat/toolCallResultConfirmed", "turnId": turn, "toolCallId": id, "approved": approved,
            })
        }
        Wish::DraftAnswer { question, answer } => {
            let (request, question) = question_of(chat, *question);
            let mut action =
                json!({ "type": "chat/inputAnswerChanged", "requestId": request, "questionId": question });
            if let Some(answer) = answer_of(*answer) {
                action["answer"] = answer;
            }
            action
        }
        Wish::Answer { question, response, answer } => {
            let (request, question) = question_of(chat, *question);
            let response = ["accept", "decline", "cancel"][usize::from(*response) % 3];
            let mut action =
                json!({ "type": "chat/inputCompleted", "requestId": request, "response": response });
            if let Some((index, answer)) = answer.and_then(|index| Some((index, answer_of(index)?))) {
                action["answers"] = json!({ question: answer });
                // Two at once, for the request that has such a question.
                if let Some(other) = answer_of(3).filter(|_| index % 2 == 1) {
                    action["answers"]["r"] = other;
                }
            }
            action
        }
        Wish::Queue { id, text, steering } => json!({
            "type": "chat/pendingMessageSet", "kind": kind(*steering), "id": fresh_or(*id, "message", head),
            "message": message_of(*text),
        }),
        Wish::Unqueue { id, steering } => {
            let steered = chat.steering_message.iter().map(|message| message.id.as_str());
            let id = if *steering { pick(*id, steered) } else { pick(*id, queued()) };
            json!({ "type": "chat/pendingMessageRemoved", "kind": kind(*steering), "id": id })
        }
        Wish::Reorder { order } => {
            let order: Vec<_> = order.iter().map(|&index| pick(index, queued())).collect();
            json!({ "type": "chat/queuedMessagesReordered", "order": order })
        }
        Wish::Draft { text: None } => json!({ "type": "chat/draftChanged" }),
        Wish::Draft { text: Some(index) } => {
            json!({ "type": "chat/draftChanged", "draft": message_of(*index) })
        }
        Wish::ChatFlag { archived: false, set } => json!({ "type": "chat/isReadChanged", "isRead": set }),
        Wish::ChatFlag { archived: true, set } => {
            json!({ "type": "chat/isArchivedChanged", "isArchived": set })
        }
        Wish::Configure { value, replace } => {
            let config = match value {
                0 | 1 => json!({ "permissionPolicy": "allow" }),
                2 => json!({ "permissionPolicy": "ask" }),
                3 => json!({}),
                4 => json!({ "permissionPolicy": "allow", "openMs": 5 }),
                _ => json!({ "permissionPolicy": 5 }),
            };
            json!({ "type": "session/configChanged", "config": config, "replace": replace })
        }
        Wish::ConfigureHost { value, replace } => {
            json!({ "type": "root/configChanged", "config": root_values(*value), "replace": replace })
        }
        Wish::Serve { how, server } => serve(*how, *server),
        Wish::SessionFlag { archived: false, set } => {
            json!({ "type": "session/isReadChanged", "isRead": set })
        }
        Wish::SessionFlag { archived: true, set } => {
            json!({ "type": "session/isArchivedChanged", "isArchived": set })
        }
        Wish::RenameChat { title } | Wish::RenameSession { title } => {
            json!({ "type": "session/titleChanged", "title": text(*title) })
        }
        Wish::DefaultChat { other: true } => {
            json!({ "type": "session/defaultChatChanged", "defaultChat": "ahp-chat:/nobody's" })
        }
        Wish::DefaultChat { other: false } => {
            json!({ "type": "session/defaultChatChanged", "defaultChat": chat.resource })
        }
        // Now and then on behalf of somebody else.
        Wish::TakePart { tools: 12 } => {
            json!({ "type": "session/activeClientSet", "activeClient": participant("client-0", 1) })
        }
        Wish::TakePart { tools } => {
            json!({ "type": "session/activeClientSet", "activeClient": participant(client, *tools) })
        }
        Wish::LeaveOff => json!({ "type": "session/activeClientRemoved", "clientId": client }),
        Wish::Stream { call: index, text: said } => {
            let id = call(|call| matches!(call, ToolCallState::Running(_)), *index);
            let content = json!([{ "type": "text", "text": text(*said) }]);
            json!({
                "type": "chat/toolCallContentChanged", "turnId": turn, "toolCallId": id, "content": content,
            })
        }
        Wish::Deliver { call: index, success, review } => {
            let id = call(|call| matches!(call, ToolCallState::Running(_)), *index);
            let mut action = json!({
                "type": "chat/toolCallComplete", "turnId": turn, "toolCallId": id,
                "result": { "success": success, "pastTenseMessage": "Did it" },
            });
            if *review {
                action["requiresResultConfirmation"] = true.into();
            }
            action
        }
        Wish::WorkIn { how, directory, other } => {
            let (directory, other) = (directory_at(*directory), directory_at(*other));
            match how % 5 {
                0 => json!({ "type": "session/workingDirectorySet", "directory": directory }),
                1 => json!({ "type": "chat/workingDirectorySet", "directory": directory }),
                2 => json!({
                    "type": "session/workingDirectoryReplaced", "directory": directory, "replacement": other,
                }),
                3 => json!({ "type": "session/workingDirectoryRemoved", "directory": directory }),
                _ => json!({ "type": "chat/workingDirectoryRemoved", "directory": directory }),
            }
        }
        Wish::Any { which } => any_action(*which, turn),
        // Of the session.
        Wish::Annotate { .. } => Value::Null,
    }
}

/// Something about one of few annotations, which may be there. Some of it is refused: what is
/// empty, twice, or of nowhere.
fn annotate([how, annotation, entry]: [u8; 3], session: &str, chat: &str, truth: &Truth) -> Value {
    let there = truth.annotations(session);
    let id = pick(annotation, there.iter().map(|annotation| annotation.id.as_str()));
    let entries = there.iter().find(|it| it.id == id).into_iter().flat_map(|it| &it.entries);
    let entry_id = pick(entry, entries.map(|entry| entry.id.as_str()));
    let said = |id: &str| match entry % 3 {
        0 => json!({ "id": id, "text": { "markdown": text(entry) }, "_meta": { "by": annotation } }),
        _ => json!({ "id": id, "text": text(entry) }),
    };
    let past = truth.chat(chat).into_iter().flat_map(|chat| &chat.turns).map(|turn| turn.id.as_str());
    let origin = match entry % 4 {
        0 => json!({ "session": session }),
        1 => json!({ "session": session, "chat": chat }),
        2 => json!({ "session": session, "chat": chat, "turnId": pick(annotation, past) }),
        _ => json!({ "session": "ahp-session:/1", "turnId": pick(annotation, past) }),
    };
    let line = json!({ "line": entry, "character": 0 });
    match how % 7 {
        0 | 1 => {
            let id = if annotation % 2 == 0 { format!("annotation-{}", annotation % 5) } else { id };
            let entries = match how {
                0 => vec![said("e"), said(&format!("e-{}", entry % 3))],
                1 => vec![said("e")],
                _ => Vec::new(),
            };
            let mut annotation = json!({ "id": id, "origin": origin, "resource": "file:///x",
                "resolved": entry % 2 == 0, "_meta": { "by": how }, "entries": entries });
            if entry % 5 != 0 {
                annotation["range"] = json!({ "start": line, "end": line });
            }
            json!({ "type": "annotations/set", "annotation": annotation })
        }
        2 => json!({ "type": "annotations/updated", "annotationId": id, "resolved": entry % 2 == 0 }),
        3 if entry % 8 == 7 => json!({ "type": "annotations/updated", "annotationId": id }),
        3 if entry % 2 == 0 => {
            let range = json!({ "start": line, "end": { "line": annotation, "character": how } });
            json!({ "type": "annotations/updated", "annotationId": id, "range": range })
        }
        3 => {
            json!({ "type": "annotations/updated", "annotationId": id, "origin": origin, "resource": "file:///y" })
        }
        4 => json!({ "type": "annotations/removed", "annotationId": id }),
        5 => {
            let entry = said(&format!("e-{}", entry % 3));
            json!({ "type": "annotations/entrySet", "annotationId": id, "entry": entry })
        }
        _ => json!({ "type": "annotations/entryRemoved", "annotationId": id, "entryId": entry_id }),
    }
}

/// Actions that no client should get through: known, for servers only, or unknown.
fn any_action(which: u8, turn: &str) -> Value {
    let server_only = [
        "chat/delta",
        "chat/turnComplete",
        "chat/error",
        "session/ready",
        "session/chatRemoved",
        "chat/turnsLoaded",
    ];
    let unknown = ["", "chat/", "chat/noSuchThing", "session/Ready"];
    let table = client_actions().map(|action| action.name);
    let names: Vec<&str> = table.chain(server_only).chain(unknown).collect();
    json!({
        "type": names[usize::from(which) % names.len()], "turnId": turn, "partId": "part-0", "content": "x",
        "toolCallId": "call-0", "directory": "file:///", "config": {}, "duration": 1, "chat": "x", "turns": [],
    })
}

pub fn message_of(index: u8) -> Value {
    let mut message = json!({ "text": text(index), "origin": { "kind": "user" } });
    match index {
        15 => message["attachments"] = json!([{ "type": "chat", "label": "x", "uri": "ahp-chat:/x" }]),
        5 => message["model"] = json!({ "id": "large" }),
        6 => {
            message["model"] = json!({ "id": "small", "config": { "effort": 3 } });
            message["agent"] = json!({ "uri": "agent:/a" });
        }
        7 => message["agent"] = json!({ "uri": "agent:/b" }),
        // It is there or not.
        4 | 14 => {
            message["attachments"] = json!([{ "type": "chat", "label": "x", "resource": "ahp-chat:/a" }])
        }
        13 => {
            message["attachments"] =
                json!([{ "type": "annotations", "label": "x", "resource": "ahp-session:/1/annotations" }])
        }
        _ => {}
    }
    message
}

fn kind(steering: bool) -> &'static str {
    if steering {
        "steering"
    } else {
        "queued"
    }
}

fn call_id(call: &ToolCallState) -> String {
    serde_json::to_value(call).unwrap()["toolCallId"].as_str().unwrap_or_default().to_owned()
}

/// An open request and one of its questions.
fn question_of(chat: &ChatState, index: u8) -> (String, String) {
    let requests: Vec<_> = chat.active_turn.iter().flat_map(questions).map(|part| &part.request).collect();
    let pairs = requests.iter().flat_map(|request| {
        let questions = request.questions.iter().flatten();
        questions.map(|question| (request.id.clone(), question_id(question)))
    });
    let pairs: Vec<_> = pairs.collect();
    match pairs.len() {
        there if there > 0 && index < NOWHERE => pairs[usize::from(index) % there].clone(),
        _ => ("nobody's-request".to_owned(), "nobody's-question".to_owned()),
    }
}

fn question_id(question: &ChatInputQuestion) -> String {
    serde_json::to_value(question).unwrap()["id"].as_str().unwrap_or_default().to_owned()
}

/// An answer; it fits its question or not.
fn answer_of(index: u8) -> Option<Value> {
    let answered = |state: &str, value: Value| Some(json!({ "state": state, "value": value }));
    let said = json!({ "kind": "text", "value": text(index) });
    match index % 7 {
        0 | 1 => answered("submitted", said),
        2 => answered("draft", said),
        3 => answered("submitted", json!({ "kind": "boolean", "value": true })),
        4 => answered("submitted", json!({ "kind": "no such kind", "value": [] })),
        5 => Some(json!({ "state": "skipped" })),
        _ => None,
    }
}

/// Makes an action wrong.
fn corrupt(damage: Option<Damage>, channel: String, mut action: Value, truth: &Truth) -> (String, Value) {
    let member = |members: &Map<String, Value>, index: u8| {
        members.keys().nth(usize::from(index) % members.len().max(1)).cloned().unwrap_or_default()
    };
    let Some(members) = action.as_object_mut() else { return (channel, action) };
    match damage {
        None => {}
        Some(Damage::Channel(index)) => {
            return (pick(index, truth.channels.keys().map(String::as_str)), action);
        }
        Some(Damage::Turn) => {
            members.insert("turnId".to_owned(), "another-turn".into());
        }
        Some(Damage::Missing(index)) => {
            let name = member(members, index);
            members.remove(&name);
        }
        Some(Damage::Retyped(index)) => {
            let name = member(members, index);
            let wrong =
                [Value::Null, 5.into(), json!({ "kind": 5 }), json!([{}]), "wrong".into(), (-1e300).into()];
            members.insert(name, wrong[usize::from(index) % wrong.len()].clone());
        }
    }
    (channel, action)
}
