//! Base protocol: JSON-RPC 2.0.
//!
//! Owns: the laws of requests, answers and notifications, whatever they are about.
//! Never: needs a session.

use ahp_types::errors::json_rpc_error_codes::{
    INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR,
};
use serde_json::{json, Value};

use crate::conform::bench::Bench;
use crate::conform::client::{quoted, JudgeClient, ROOT};
use crate::conform::stop::{must, Judged};

/// Waits for the error that a line without an id gets.
fn nameless_error(client: &mut JudgeClient, line: &str, code: i32) -> Judged<()> {
    client.say_wrong(format!("{line}\n").into_bytes())?;
    let what = format!("an error for `{line}`");
    let answer =
        client.wait_for(&what, |message| message["id"].is_null() && message.get("error").is_some())?;
    must!(answer["error"]["code"] == code, "`{line}` is not answered with {code}: {}", quoted(&answer));
    client.sync()
}

pub fn parse_error(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    nameless_error(&mut client, r#"{"jsonrpc":"2.0","id":1,"method":"#, PARSE_ERROR)
}

pub fn invalid(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    nameless_error(&mut client, "1", INVALID_REQUEST)
}

pub fn unknown_method(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    must_fail(&mut client, "noSuchMethod", json!({ "channel": ROOT }), METHOD_NOT_FOUND)
}

pub fn bad_params(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    for params in [json!({}), json!({ "channel": 7 }), json!({ "channel": null })] {
        must_fail(&mut client, "subscribe", params, INVALID_PARAMS)?;
    }
    must_fail(&mut client, "createSession", json!({ "channel": ["ahp-session:/x"] }), INVALID_PARAMS)?;
    client.sync()
}

fn must_fail(client: &mut JudgeClient, method: &str, params: Value, code: i32) -> Judged<()> {
    let shown = quoted(&params);
    match client.ask(method, params)? {
        Err(error) if error.code == i64::from(code) => Ok(()),
        Err(error) => {
            let error = quoted(&error.error);
            crate::conform::stop::broken(format!(
                "`{method}` with {shown} is not answered with {code}: {error}"
            ))
        }
        Ok(result) => {
            let result = quoted(&result);
            crate::conform::stop::broken(format!("`{method}` with {shown} is answered with {result}"))
        }
    }
}

pub fn ids(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let ids = [json!("a \"text\" \u{e4}"), json!(""), json!(-7), json!(0), json!(9_007_199_254_740_991_i64)];
    for id in ids {
        client.expect(&id);
        client
            .say(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping", "params": { "channel": ROOT } }))?;
        let answer = client.answer_to(&id)?;
        must!(answer.is_ok(), "a `ping` with the id {id} is answered with an error");
    }
    Ok(())
}

pub fn notifications(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    // An answer would have no request, which ends the check.
    let unsubscribe = json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": { "channel": ROOT } });
    client.say(&unsubscribe)?;
    client.say(&json!({ "jsonrpc": "2.0", "method": "noSuchMethod", "params": { "channel": ROOT } }))?;
    client.sync()?;
    client.sync()
}
