//! Hostile input: what no client should say.
//!
//! Owns: the law that nothing a client says ends the host, or leaves a request without its one
//! answer.
//! Never: judges what the error is.

use serde_json::{json, Value};

use crate::conform::bench::Bench;
use crate::conform::client::ROOT;
use crate::conform::dice::Dice;
use crate::conform::stop::{not_offered, Judged};

/// Depth of a message that is nested deeply.
const DEPTH: usize = 100_000;

/// Number of requests that come at once.
const FLOOD: usize = 1000;

/// Number of damaged messages.
const MUTATIONS: usize = 200;

pub fn nesting(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let inner = if open == "[" { "" } else { "1" };
        let line = format!("{}{inner}{}\n", open.repeat(DEPTH), close.repeat(DEPTH));
        client.say_wrong(line.into_bytes())?;
        client.sync()?;
    }
    Ok(())
}

pub fn utf8(bench: &mut Bench) -> Judged<()> {
    if !bench.settings.plan.has_stdio() {
        return not_offered("the host is not spoken to on its stdin and stdout");
    }
    let mut client = bench.ready(&[])?;
    client.say_wrong(b"\xff\xfe\x00\n".to_vec())?;
    client.sync()?;
    client.say_wrong(b"{\"jsonrpc\":\"2.0\",\"method\":\"ping\xc3\x28\"}\n".to_vec())?;
    client.sync()
}

pub fn flood(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let (mut ids, mut bytes) = (Vec::new(), String::new());
    for _ in 0..FLOOD {
        let (id, request) = client.prepare("ping", json!({ "channel": ROOT }));
        ids.push(id);
        bytes += &format!("{request}\n");
    }
    client.say_bytes(bytes.into_bytes())?;
    for id in ids {
        drop(client.answer_to(&json!(id))?);
    }
    Ok(())
}

/// Returns requests that are damaged next.
fn sound() -> Vec<(&'static str, Value)> {
    let action = json!({ "type": "chat/turnStarted", "turnId": "t", "message": { "text": "x" } });
    vec![
        ("subscribe", json!({ "channel": ROOT, "delivery": { "maxLatencyMs": 10 }, "view": { "turns": 3 } })),
        ("listSessions", json!({ "channel": ROOT, "limit": 3, "cursor": "x" })),
        ("createSession", json!({ "channel": "ahp-session:/x", "provider": "x", "config": { "a": 1 } })),
        ("fetchTurns", json!({ "channel": "ahp-chat:/x", "cursor": "x" })),
        ("resourceRead", json!({ "channel": ROOT, "uri": "data:text/plain,x", "encoding": "utf-8" })),
        ("dispatchAction", json!({ "channel": "ahp-chat:/x", "clientSeq": 1, "action": action })),
        ("completions", json!({ "channel": "ahp-chat:/x", "kind": "userMessage", "text": "/", "offset": 1 })),
    ]
}

/// Returns a value that stands where another one should.
fn strange(dice: &mut Dice) -> Value {
    let long = "x".repeat(10_000);
    let values = [
        json!(null),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}"),
        json!(long),
        json!([]),
        json!({}),
        json!([[[]]]),
        json!(true),
        json!("ahp-root://"),
        json!("file:///\u{ff}%zz"),
    ];
    values[dice.below(values.len())].clone()
}

/// Damages one member of a value, at whatever depth.
fn damage(value: &mut Value, dice: &mut Dice) {
    let Value::Object(members) = value else {
        *value = strange(dice);
        return;
    };
    let names: Vec<String> = members.keys().cloned().collect();
    let Some(name) = names.get(dice.below(names.len())) else { return };
    match dice.below(4) {
        0 => drop(members.remove(name)),
        1 => drop(members.insert(name.clone(), strange(dice))),
        2 => drop(members.insert("strange".to_owned(), strange(dice))),
        _ => {
            if let Some(member) = members.get_mut(name) {
                damage(member, dice);
            }
        }
    }
}

pub fn mutations(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let all = sound();
    for _ in 0..MUTATIONS {
        let (method, params) = all[bench.dice.below(all.len())].clone();
        let mut params = params;
        damage(&mut params, &mut bench.dice);
        if method == "dispatchAction" {
            // The host may answer by an envelope, or not at all.
            client.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))?;
            let seq = params["clientSeq"].as_i64().unwrap_or_default();
            client.pending.insert(seq);
        } else {
            drop(client.ask(method, params)?);
        }
    }
    client.sync()?;
    client.must_subscribe(ROOT)?;
    client.sync()
}
