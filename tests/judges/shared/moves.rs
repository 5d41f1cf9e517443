//! Random moves of a client, chosen among those that its view of the state allows.
//!
//! Owns: the programs that turns run, the actions that fit what there is, and whether a
//! conversation waits.
//! Never: says anything.

use anyhow::Result;
use serde_json::{json, Value};

use super::dialect::{Dialect, V0_4_0, V0_5_0, V1_0_0};
use super::dice::Dice;
use super::party::Party;

/// Output of a program before it hangs, which makes the hang observable.
const HANGING: &str = "hanging";

/// A step of a schedule.
#[derive(Debug)]
pub enum Move {
    /// Asks for a change on the session's channel or the conversation's.
    OnSession(Value),
    OnConversation(Value),
    /// Action on the channel of the session's annotations.
    OnAnnotations(Value),
    /// Listens until the conversation waits for somebody or nothing runs.
    Listen,
    /// From now on, what arrives is lost.
    Lose,
    /// Comes back by `reconnect`.
    Return,
    /// Gives a channel up and takes it up anew: the conversation's.
    Resubscribe,
    /// Compares everything with fresh snapshots and the list.
    Compare,
    /// Creates one more session, and gives it up at once or leaves it.
    Another {
        dispose: bool,
    },
}

/// Activity of a conversation, which decides the possible moves.
#[derive(Debug, PartialEq, Eq)]
pub enum Mood {
    Idle,
    Working,
    /// Until a client does something.
    Waiting,
}

/// Returns the activity of a conversation according to its state.
pub fn mood(dialect: Dialect, view: &Value) -> Mood {
    let turn = &view["activeTurn"];
    if turn.is_null() {
        return Mood::Idle;
    }
    let hangs = |part: &Value| part["content"].as_str().is_some_and(|text| text.contains(HANGING));
    let waits = !dialect.questions(view).is_empty()
        || !calls(view, "pending-confirmation").is_empty()
        || !calls(view, "pending-result-confirmation").is_empty()
        || calls(view, "running").iter().any(|call| owner(call).is_some())
        || turn["responseParts"].as_array().into_iter().flatten().any(hangs);
    if waits {
        Mood::Waiting
    } else {
        Mood::Working
    }
}

/// The ids of the active turn's tool calls of this status.
pub fn calls(view: &Value, status: &str) -> Vec<Value> {
    let parts = view["activeTurn"]["responseParts"].as_array().into_iter().flatten();
    let calls = parts.map(|part| &part["toolCall"]).filter(|call| call["status"] == status);
    calls.cloned().collect()
}

/// The client that a call runs on, under either of its names.
fn owner(call: &Value) -> Option<&str> {
    call["contributor"]["clientId"].as_str().or(call["toolClientId"].as_str())
}

/// The ids of the queued messages.
pub fn queued(view: &Value) -> Vec<String> {
    let queued = view["queuedMessages"].as_array().into_iter().flatten();
    queued.map(|message| message["id"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The turn that runs.
pub fn turn(view: &Value) -> String {
    view["activeTurn"]["id"].as_str().unwrap_or("nobody's").to_owned()
}

/// Chooses the next move. `calm`: nothing may depend on time. `at` is part of every new id.
pub fn choose(dice: &mut Dice, party: &Party, calm: bool, at: usize) -> Result<Move> {
    if party.mirror.away && dice.percent(25) {
        return Ok(Move::Return);
    }
    let view = party.view()?;
    let dialect = party.dialect();
    match dice.from(0..100) {
        0..6 => return Ok(Move::Compare),
        6..10 if !party.mirror.away => return Ok(Move::Lose),
        10..12 if !party.mirror.away => return Ok(Move::Resubscribe),
        12..14 => return Ok(Move::Another { dispose: dice.percent(60) }),
        14..22 => return Ok(Move::OnSession(about_session(dice, party))),
        22..27 if dialect >= V0_4_0 => return Ok(Move::OnAnnotations(remark(dice, party, at)?)),
        _ => {}
    }
    let mood = mood(dialect, &view);
    if mood == Mood::Working && !party.mirror.away && dice.percent(60) {
        return Ok(Move::Listen);
    }
    let action = match (mood, dice.from(0..100)) {
        (_, 0..8) => aside(dice, dialect, &view, at),
        (Mood::Idle, 8..14) | (Mood::Working | Mood::Waiting, 8..34) => {
            pending(dice, dialect, &view, calm, at)
        }
        (_, 34..38) => truncated(dice, dialect, &view),
        (Mood::Idle, _) => start(dice, dialect, &view, calm, at),
        (Mood::Working, _) => dialect.turn_cancelled(&turn(&view)),
        (Mood::Waiting, _) => reply(dice, party, &view),
    };
    Ok(Move::OnConversation(action))
}

fn about_session(dice: &mut Dice, party: &Party) -> Value {
    let dialect = party.dialect();
    match dice.from(0..6) {
        3..5 => dialect.take_part(&party.client_id, text(dice)),
        5 => dialect.leave_off(&party.client_id),
        0 => dialect.act_of("session", "titleChanged", json!({ "title": text(dice) })),
        1 => dialect.act_of("session", "isReadChanged", json!({ "isRead": dice.percent(60) })),
        _ => dialect.act_of("session", "isArchivedChanged", json!({ "isArchived": dice.percent(50) })),
    }
}

/// Something to a place in a file, of what is there.
fn remark(dice: &mut Dice, party: &Party, at: usize) -> Result<Value> {
    let dialect = party.dialect();
    let view = party.mirror.view(&party.annotations())?;
    let there = view["annotations"].as_array().cloned().unwrap_or_default();
    let entry = |id: &str, text: &str| json!({ "id": id, "text": text });
    let Some(one) = dice.one_of(&there).filter(|_| dice.percent(70)) else {
        let entries = [entry("e", text(dice))];
        let annotation = dialect.annotation(&format!("annotation-{at}"), &party.session, &entries);
        return Ok(dialect.act_of("annotations", "set", json!({ "annotation": annotation })));
    };
    let id = &one["id"];
    let entries = one["entries"].as_array().cloned().unwrap_or_default();
    Ok(match dice.from(0..4) {
        0 => dialect.act_of("annotations", "removed", json!({ "annotationId": id })),
        1 if entries.len() > 1 => {
            let removed = json!({ "annotationId": id, "entryId": entries[0]["id"] });
            dialect.act_of("annotations", "entryRemoved", removed)
        }
        2 => {
            let updated =
                json!({ "annotationId": id, "resolved": dice.percent(50), "resource": "file:///y" });
            dialect.act_of("annotations", "updated", updated)
        }
        _ => {
            let set = json!({ "annotationId": id, "entry": entry(&format!("e-{at}"), text(dice)) });
            dialect.act_of("annotations", "entrySet", set)
        }
    })
}

/// Something about a conversation besides its turns, where the version has it.
fn aside(dice: &mut Dice, dialect: Dialect, view: &Value, at: usize) -> Value {
    match dice.from(0..3) {
        0 if dialect >= V1_0_0 => dialect.act("isReadChanged", json!({ "isRead": dice.percent(60) })),
        1 if dialect >= V1_0_0 => dialect.act("isArchivedChanged", json!({ "isArchived": dice.percent(50) })),
        _ if dialect >= V0_5_0 => {
            let draft = json!({ "text": text(dice), "origin": { "kind": "user" } });
            dialect.act("draftChanged", if dice.percent(70) { json!({ "draft": draft }) } else { json!({}) })
        }
        _ => pending(dice, dialect, view, true, at),
    }
}

fn pending(dice: &mut Dice, dialect: Dialect, view: &Value, calm: bool, at: usize) -> Value {
    let mut ids = queued(view);
    match dice.from(0..10) {
        0..2 => dialect.pending_message_set("steering", &format!("steering-{at}"), text(dice)),
        2..3 if !ids.is_empty() => {
            let id = dice.one_of(&ids);
            dialect.act("pendingMessageRemoved", json!({ "kind": "queued", "id": id }))
        }
        3..6 if ids.len() > 1 => {
            let first = ids.remove(dice.from(0..ids.len()));
            ids.push(first);
            dialect.act("queuedMessagesReordered", json!({ "order": ids }))
        }
        _ => dialect.pending_message_set("queued", &format!("queued-{at}"), &program(dice, calm)),
    }
}

fn truncated(dice: &mut Dice, dialect: Dialect, view: &Value) -> Value {
    let turns = view["turns"].as_array().cloned().unwrap_or_default();
    match dice.one_of(&turns) {
        Some(turn) if dice.percent(70) => dialect.act("truncated", json!({ "turnId": turn["id"] })),
        _ => dialect.act("truncated", json!({})),
    }
}

fn start(dice: &mut Dice, dialect: Dialect, view: &Value, calm: bool, at: usize) -> Value {
    let last = view["turns"].as_array().and_then(|turns| turns.last());
    match last.filter(|turn| dialect.is_resumable(turn)) {
        Some(turn) if dice.percent(70) => dialect.act("turnResume", json!({ "turnId": turn["id"] })),
        _ => dialect.turn_started(&format!("turn-{at}"), &program(dice, calm)),
    }
}

/// Answers what the conversation waits for, or cancels it.
fn reply(dice: &mut Dice, party: &Party, view: &Value) -> Value {
    let dialect = party.dialect();
    let turn = turn(view);
    if dice.percent(12) {
        return dialect.turn_cancelled(&turn);
    }
    let running = calls(view, "running");
    if let Some(call) = running.iter().find(|call| owner(call) == Some(&party.client_id)) {
        let id = &call["toolCallId"];
        let content = json!([{ "type": "text", "text": text(dice) }]);
        if dice.percent(40) {
            let members = json!({ "turnId": turn, "toolCallId": id, "content": content });
            return dialect.act("toolCallContentChanged", members);
        }
        let result = json!({ "success": dice.percent(70), "pastTenseMessage": "Looked", "content": content });
        let mut members = json!({ "turnId": turn, "toolCallId": id, "result": result });
        if dice.percent(20) {
            members["requiresResultConfirmation"] = true.into();
        }
        return dialect.act("toolCallComplete", members);
    }
    if let Some(call) = calls(view, "pending-confirmation").first() {
        let ways = [
            json!({ "approved": true, "selectedOptionId": "allow-once" }),
            json!({ "approved": true, "selectedOptionId": "allow-always" }),
            json!({ "approved": true, "confirmed": "user-action" }),
            json!({ "approved": false, "reason": "denied" }),
            json!({ "approved": false, "selectedOptionId": "reject-once", "reason": "denied" }),
        ];
        let offered = |way: &&Value| {
            let wanted = &way["selectedOptionId"];
            let options = call["options"].as_array().into_iter().flatten();
            wanted.is_null() || options.map(|option| &option["id"]).any(|id| id == wanted)
        };
        let ways: Vec<&Value> = ways.iter().filter(offered).collect();
        let mut members = dice.one_of(&ways).map_or(json!({}), |way| (*way).clone());
        members["turnId"] = turn.into();
        members["toolCallId"] = call["toolCallId"].clone();
        return dialect.act("toolCallConfirmed", members);
    }
    if let Some(call) = calls(view, "pending-result-confirmation").first() {
        let members =
            json!({ "turnId": turn, "toolCallId": call["toolCallId"], "approved": dice.percent(60) });
        return dialect.act("toolCallResultConfirmed", members);
    }
    if let Some(request) = dialect.questions(view).first() {
        return answer(dice, dialect, request);
    }
    dialect.turn_cancelled(&turn)
}

fn answer(dice: &mut Dice, dialect: Dialect, request: &Value) -> Value {
    let value = |question: &Value| match question["kind"].as_str() {
        Some("boolean") => json!({ "kind": "boolean", "value": true }),
        Some("single-select") => json!({ "kind": "selected", "value": question["options"][0]["id"] }),
        _ => json!({ "kind": "text", "value": "Ada" }),
    };
    let questions = request["questions"].as_array().cloned().unwrap_or_default();
    if let Some(question) = dice.one_of(&questions).filter(|_| request["answers"].is_null()) {
        let draft = json!({ "state": "draft", "value": value(question) });
        let members = json!({ "requestId": request["id"], "questionId": question["id"], "answer": draft });
        return dialect.act("inputAnswerChanged", members);
    }
    let mut members = json!({ "requestId": request["id"] });
    members["response"] = ["accept", "accept", "decline", "cancel"][dice.from(0..4)].into();
    if members["response"] == "accept" {
        for question in &questions {
            let id = question["id"].as_str().unwrap_or_default();
            members["answers"][id] = json!({ "state": "submitted", "value": value(question) });
        }
    }
    dialect.act("inputCompleted", members)
}

fn text(dice: &mut Dice) -> &'static str {
    ["Greetings", "two words", "\"},\"serverSeq\":9", "ü\u{1}\\", "a\tb"][dice.from(0..5)]
}

/// A program for a turn: the steps of the agent `script`.
pub fn program(dice: &mut Dice, calm: bool) -> String {
    let steps = 1 + dice.from(0..5);
    let mut lines: Vec<String> = (0..steps).map(|_| step(dice, calm)).collect();
    lines.extend(match dice.from(0..100) {
        0..8 => Some("/error It broke".to_owned()),
        8..18 => Some("/error-resumable Try again\n/say after it".to_owned()),
        18..26 => Some(format!("/say {HANGING}\n/hang")),
        26..29 => Some("/die".to_owned()),
        _ => None,
    });
    lines.join("\n")
}

fn step(dice: &mut Dice, calm: bool) -> String {
    let steps = [
        "Hello, you there",
        "/say at once",
        "/say {\"type\":\"chat/delta\"}",
        "/think hmm, well",
        "/activity Looking around",
        "/tool ls {\"path\":\"/\"}",
        "/tool now",
        "/terminal one two",
        "/ask rm {\"path\":\"/x\"}",
        "/ask write {\"n\":1.5}",
        "/review cat {\"path\":\"/y\"}",
        "/fail make it does not compile",
        "/client look {\"at\":\"the sky\"}",
        "/client look",
        "/question [{\"kind\":\"text\",\"id\":\"name\",\"message\":\"Who?\",\"required\":true}]",
        "/question [{\"kind\":\"boolean\",\"id\":\"sure\",\"message\":\"Sure?\"},\
         {\"kind\":\"single-select\",\"id\":\"which\",\"message\":\"Which?\",\
         \"options\":[{\"id\":\"a\",\"label\":\"A\"},{\"id\":\"b\",\"label\":\"B\"}]}]",
        "/usage 3 4",
        "/title Named by the agent",
        "/stream 12 7",
        "/nonsense",
    ];
    if !calm && dice.percent(25) {
        return ["/sleep 3", "/stream 9 5 1"][dice.from(0..2)].to_owned();
    }
    // The last one ends its turn with an error: seldom.
    let last = if dice.percent(10) { steps.len() } else { steps.len() - 1 };
    steps[dice.from(0..last)].to_owned()
}
