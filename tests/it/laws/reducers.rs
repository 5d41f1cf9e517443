//! The reducers that are ours for speed against the official ones.
//!
//! Owns: random histories of one chat, applied by both; after every action the states and the
//! outcomes must be the same.
//! Never: goes through the host. The actions are wilder than what it lets through, with one
//! exception: no `chat/responsePart` carries a part that waits for the user. The host never says
//! one (calls and questions have actions of their own), and the official reducer does not refresh
//! the chat's status by it, so that the status no longer tells whether something waits; ours is
//! derived from what waits.

use std::fmt;

use ahp::reducers::apply_action_to_chat;
use ahp_sidecar::state::reduce::Conversation;
use ahp_types::actions::StateAction;
use ahp_types::state::{ChatState, SessionStatus};
use anyhow::{ensure, Context, Result};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{json, Value};

/// A chat's history: how much of it had happened when ours took over, and all of it.
pub struct History {
    before: usize,
    moves: Vec<Move>,
}

/// One action, or many. Ids come from small pools, so that they meet, and some name nothing.
#[derive(Debug, Clone)]
enum Move {
    Start {
        turn: u8,
    },
    End {
        turn: u8,
        how: u8,
    },
    Resume {
        turn: u8,
    },
    Truncate {
        turn: Option<u8>,
    },
    Load {
        turns: Vec<u8>,
    },
    /// Parts at once, from this one on: hundreds now and then.
    Parts {
        turn: u8,
        kind: u8,
        id: u8,
        count: u16,
    },
    Append {
        turn: u8,
        part: u8,
        thought: bool,
    },
    Call {
        turn: u8,
        call: u8,
        what: u8,
    },
    Ask {
        request: u8,
        answers: bool,
    },
    DraftAnswer {
        request: u8,
        question: u8,
        answer: bool,
    },
    Answer {
        request: u8,
        answers: bool,
    },
    /// Something about the chat besides its turns.
    Aside {
        which: u8,
    },
    /// Something of another channel.
    Stray,
}

/// Histories of any kind.
pub fn histories() -> impl Strategy<Value = History> {
    (0usize..40, vec(a_move(), 1..90)).prop_map(|(before, moves)| History { before, moves })
}

fn a_move() -> impl Strategy<Value = Move> {
    // The first one of each pool is named most, so that most actions meet something.
    let id = || prop_oneof![3 => Just(0u8), 2 => 1u8..5];
    let turn = || prop_oneof![8 => Just(0u8), 1 => 1u8..4];
    let count = prop_oneof![8 => 1u16..3, 1 => 3u16..300];
    prop_oneof![
        3 => turn().prop_map(|turn| Move::Start { turn }),
        2 => (turn(), 0u8..4).prop_map(|(turn, how)| Move::End { turn, how }),
        2 => turn().prop_map(|turn| Move::Resume { turn }),
        1 => proptest::option::of(turn()).prop_map(|turn| Move::Truncate { turn }),
        1 => vec(turn(), 0..3).prop_map(|turns| Move::Load { turns }),
        5 => (turn(), 0u8..8, id(), count)
            .prop_map(|(turn, kind, id, count)| Move::Parts { turn, kind, id, count }),
        8 => (turn(), id(), any::<bool>()).prop_map(|(turn, part, thought)| Move::Append { turn, part, thought }),
        24 => (turn(), id(), 0u8..16).prop_map(|(turn, call, what)| Move::Call { turn, call, what }),
        4 => (id(), any::<bool>()).prop_map(|(request, answers)| Move::Ask { request, answers }),
        4 => (id(), id(), any::<bool>())
            .prop_map(|(request, question, answer)| Move::DraftAnswer { request, question, answer }),
        4 => (id(), any::<bool>()).prop_map(|(request, answers)| Move::Answer { request, answers }),
        2 => (0u8..12).prop_map(|which| Move::Aside { which }),
        1 => Just(Move::Stray),
    ]
}

/// Applies a history both ways.
pub fn run(history: &History) -> Result<()> {
    let mut official = empty();
    let before = history.before.min(history.moves.len());
    for action in history.moves[..before].iter().flat_map(actions) {
        apply_action_to_chat(&mut official, &action?);
    }
    let mut ours = Conversation::new(official.clone(), Default::default());
    for (at, step) in history.moves.iter().enumerate().skip(before) {
        for action in actions(step) {
            let action = action?;
            let meant = apply_action_to_chat(&mut official, &action);
            let done = ours.apply(&action);
            ensure!(done == meant, "at {at}, {action:?}: we say {done:?}, officially {meant:?}");
            let state = whole(&ours)?;
            ensure!(state == official, "at {at}, {action:?}: we have\n{state:#?}\nofficially\n{official:#?}");
        }
    }
    Ok(())
}

/// The state with its completed turns.
fn whole(conversation: &Conversation) -> Result<ChatState> {
    let turns = conversation.history().turns().iter().map(|turn| turn.read().context("a turn"));
    Ok(ChatState { turns: turns.collect::<Result<_>>()?, ..conversation.state().clone() })
}

fn empty() -> ChatState {
    serde_json::from_value(json!({
        "resource": "ahp-chat:/1", "title": "", "status": SessionStatus::Idle.bits(),
        "modifiedAt": "2026-01-01T00:00:00.000Z", "turns": [],
    }))
    .expect("a chat")
}

/// The ids of calls and of text parts are one pool: they are looked for among both.
const IDS: [&str; 5] = ["x", "y", "z", "", "nowhere"];

fn actions(step: &Move) -> Vec<Result<StateAction>> {
    let read = |value: Value| {
        let action: StateAction = serde_json::from_value(value.clone())?;
        ensure!(!matches!(action, StateAction::Unknown(_)), "no action: {value}");
        Ok(action)
    };
    let all = match step {
        Move::Parts { turn, kind, id, count } => {
            let parts = (0..*count).map(|at| {
                let id = if at == 0 { IDS[usize::from(*id)].to_owned() } else { format!("part-{at}") };
                json!({ "type": "chat/responsePart", "turnId": turn_id(*turn), "part": part(*kind, &id) })
            });
            parts.collect()
        }
        other => vec![action(other)],
    };
    all.into_iter().map(|value| read(value).context("a mistake of this test")).collect()
}

fn turn_id(turn: u8) -> String {
    format!("turn-{turn}")
}

fn action(step: &Move) -> Value {
    let request_id = |request: u8| format!("request-{request}");
    match step {
        Move::Start { turn } => json!({
            "type": "chat/turnStarted", "turnId": turn_id(*turn), "startedAt": "2026-01-01T00:00:01.000Z",
            "message": message(), "queuedMessageId": "x",
        }),
        Move::End { turn, how } => {
            let (id, error) = (turn_id(*turn), json!({ "errorType": "e", "message": "" }));
            let failed = |resumable: bool| {
                let part = json!({ "kind": "error", "error": error, "resumable": resumable });
                json!({ "type": "chat/error", "turnId": id, "duration": 5, "part": part })
            };
            match how {
                0 => json!({ "type": "chat/turnComplete", "turnId": id, "duration": 5 }),
                1 => json!({ "type": "chat/turnCancelled", "turnId": id, "duration": -5 }),
                2 => failed(false),
                _ => failed(true),
            }
        }
        Move::Resume { turn } => json!({ "type": "chat/turnResume", "turnId": turn_id(*turn) }),
        Move::Truncate { turn: None } => json!({ "type": "chat/truncated" }),
        Move::Truncate { turn: Some(turn) } => json!({ "type": "chat/truncated", "turnId": turn_id(*turn) }),
        Move::Load { turns } => {
            let turn = |turn: &u8| {
                json!({
                    "id": turn_id(*turn), "message": message(), "responseParts": [part(0, "x")],
                    "state": "complete",
                })
            };
            json!({ "type": "chat/turnsLoaded", "turns": turns.iter().map(turn).collect::<Vec<_>>() })
        }
        Move::Append { turn, part, thought } => json!({
            "type": if *thought { "chat/reasoning" } else { "chat/delta" }, "turnId": turn_id(*turn),
            "partId": IDS[usize::from(*part)], "content": "ä",
        }),
        Move::Call { turn, call, what } => call_action(turn_id(*turn), IDS[usize::from(*call)], *what),
        Move::Ask { request, answers } => {
            let mut asked = json!({ "id": request_id(*request), "questions": [] });
            if *answers {
                asked["answers"] = json!({ "q": answer() });
            }
            json!({ "type": "chat/inputRequested", "request": asked })
        }
        Move::DraftAnswer { request, question, answer: given } => {
            let mut action = json!({
                "type": "chat/inputAnswerChanged", "requestId": request_id(*request),
                "questionId": format!("q-{question}"),
            });
            if *given {
                action["answer"] = answer();
            }
            action
        }
        Move::Answer { request, answers } => {
            let answers = if *answers { json!({ "q": answer() }) } else { json!({}) };
            json!({
                "type": "chat/inputCompleted", "requestId": request_id(*request), "response": "accept",
                "answers": answers,
            })
        }
        Move::Aside { which } => aside(*which),
        Move::Stray => json!({ "type": "session/titleChanged", "title": "x" }),
        Move::Parts { .. } => unreachable!("many actions"),
    }
}

/// An action about a tool call.
fn call_action(turn: String, call: &str, what: u8) -> Value {
    let name = |kind: &str| format!("chat/toolCall{kind}");
    let (kind, more) = match what {
        0 => ("Start", json!({ "toolName": "t", "displayName": "T" })),
        1 => (
            "Start",
            json!({ "toolName": "t", "displayName": "T",
            "contributor": { "kind": "mcp", "customizationId": "m" } }),
        ),
        2 => ("Delta", json!({ "content": "{" })),
        3 | 4 => ("Ready", json!({ "invocationMessage": "Run", "toolInput": "{}" })),
        5 | 6 => ("Ready", json!({ "invocationMessage": "Run", "confirmed": "not-needed" })),
        7 => ("Confirmed", json!({ "approved": true, "confirmed": "user-action" })),
        8 => ("Confirmed", json!({ "approved": false, "reason": "denied" })),
        9 => ("Complete", json!({ "result": { "success": true, "pastTenseMessage": "Ran" } })),
        10 => (
            "Complete",
            json!({ "result": { "success": false, "pastTenseMessage": "Ran" },
            "requiresResultConfirmation": true }),
        ),
        11 => ("ResultConfirmed", json!({ "approved": true })),
        12 => ("ResultConfirmed", json!({ "approved": false })),
        13 => ("ContentChanged", json!({ "content": [{ "type": "text", "text": "x" }] })),
        14 => ("AuthRequired", json!({ "auth": { "reason": "required", "resource": { "resource": "r" } } })),
        _ => ("AuthResolved", json!({})),
    };
    let mut action = json!({ "type": name(kind), "turnId": turn, "toolCallId": call });
    for (key, value) in more.as_object().into_iter().flatten() {
        action[key] = value.clone();
    }
    action
}

/// A part that waits for nobody.
fn part(kind: u8, id: &str) -> Value {
    let call = |status: &str| {
        json!({ "kind": "toolCall", "toolCall": {
            "status": status, "toolCallId": id, "toolName": "t", "displayName": "T",
            "invocationMessage": "Run", "confirmed": "not-needed", "success": true, "pastTenseMessage": "Ran",
        } })
    };
    match kind {
        0 | 1 => json!({ "kind": "markdown", "id": id, "content": "" }),
        2 | 3 => json!({ "kind": "reasoning", "id": id, "content": "" }),
        4 => call("running"),
        5 => call("completed"),
        6 => json!({ "kind": "error", "error": { "errorType": "e", "message": "" }, "resumable": true }),
        _ => json!({ "kind": "of the future", "id": id }),
    }
}

fn aside(which: u8) -> Value {
    match which {
        0 => json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": "x", "message": message() }),
        1 => json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": "x", "message": message() }),
        2 => json!({ "type": "chat/pendingMessageRemoved", "kind": "queued", "id": "x" }),
        3 => json!({ "type": "chat/queuedMessagesReordered", "order": ["y", "x", "x"] }),
        4 => json!({ "type": "chat/draftChanged", "draft": message() }),
        5 => json!({ "type": "chat/isReadChanged", "isRead": true }),
        6 => json!({ "type": "chat/isArchivedChanged", "isArchived": true }),
        7 => json!({ "type": "chat/activityChanged", "activity": "Thinking" }),
        8 => json!({ "type": "chat/usage", "turnId": turn_id(0), "usage": { "inputTokens": 1 } }),
        9 => json!({ "type": "chat/movableChanged", "movable": true }),
        10 => json!({ "type": "chat/workingDirectorySet", "directory": "file:///" }),
        _ => json!({ "type": "chat/isReadChanged", "isRead": false }),
    }
}

fn message() -> Value {
    json!({ "text": "x", "origin": { "kind": "user" } })
}

fn answer() -> Value {
    json!({ "state": "draft", "value": { "kind": "text", "value": "x" } })
}

/// One line a move, to be read.
impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ours takes over before {}", self.before)?;
        self.moves.iter().enumerate().try_for_each(|(at, it)| writeln!(f, "  {at:3}  {it:?}"))
    }
}
