//! Requests that help a client: completions, tokens, options of sessions.
//!
//! Owns: the laws of their answers, whose types are a law of each message.
//! Never: depends on what a host offers to choose from.

use std::collections::BTreeMap;

use ahp_types::errors::ahp_error_codes::AUTH_REQUIRED;
use serde_json::{json, Value};

use crate::conform::bench::Bench;
use crate::conform::client::{quoted, HostAnswer, JudgeClient, ROOT};
use crate::conform::stop::{broken, must, not_offered, Judged};
use crate::files::uris::uri_of;

/// Text before the character that asks for completions: two UTF-16 code units, four bytes of UTF-8.
const BEFORE: &str = "\u{1f680}";

pub fn completions(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.client()?;
    let result = client.initialize(&bench.settings.versions.clone(), &[])?;
    let announced = result["completionTriggerCharacters"].as_array().cloned().unwrap_or_default();
    let session = bench.session(&mut client)?;
    bench.write("completed.txt", "text\n")?;
    let triggers: Vec<&str> = announced.iter().filter_map(Value::as_str).collect();
    for trigger in if triggers.is_empty() { &["@"][..] } else { &triggers[..] } {
        let text = format!("{BEFORE} {trigger}");
        let length = text.encode_utf16().count();
        let mut answered = None;
        // The specification has the session's channel, and clients name the chat's as well.
        for channel in [&session.uri, &session.chat] {
            let params = json!({ "channel": channel, "kind": "userMessage", "text": text, "offset": length });
            answered = Some(client.ask("completions", params)?);
            if answered.as_ref().is_some_and(Result::is_ok) {
                break;
            }
        }
        match answered {
            Some(Ok(result)) => check_ranges(&result, length)?,
            Some(Err(error)) if triggers.is_empty() => {
                return not_offered(format!("nothing is completed: {}", quoted(&error.error)));
            }
            error => {
                let error = error.and_then(Result::err).map(|error| error.error).unwrap_or_default();
                let error = quoted(&error);
                return broken(format!(
                    "`completions` behind {trigger:?}, which is announced, is answered with {error}"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that completions replace a part of the text.
fn check_ranges(result: &Value, length: usize) -> Judged<()> {
    for item in result["items"].as_array().into_iter().flatten() {
        let number = |name: &str, absent: usize| match item.get(name) {
            Some(number) => number.as_u64().and_then(|number| usize::try_from(number).ok()),
            None => Some(absent),
        };
        let (start, end) = (number("rangeStart", 0), number("rangeEnd", length));
        must!(
            start.is_some() && start <= end && end <= Some(length),
            "a completion replaces no part of a text of {length} UTF-16 code units: {}",
            quoted(item)
        );
    }
    Ok(())
}

pub fn authenticate(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[ROOT])?;
    let token = |resource: &str| json!({ "channel": ROOT, "resource": resource, "token": "conform-none" });
    let answer = client.try_ask("authenticate", token("https://conform.invalid/none"))?;
    must!(answer.is_err(), "a token for a resource that the host has not named is accepted");
    if bench.settings.plan.runs_already() {
        // The host may have a token that is worth more.
        return Ok(());
    }
    let root = client.state_of(ROOT);
    let agents = root["agents"].as_array().into_iter().flatten();
    let resources = agents.flat_map(|agent| agent["protectedResources"].as_array().into_iter().flatten());
    for resource in resources.filter_map(|resource| resource["resource"].as_str()) {
        // The host need not know whether the token is valid.
        drop(client.ask("authenticate", token(resource))?);
    }
    Ok(())
}

pub fn session_config(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[ROOT])?;
    let agent = bench.agent(&mut client)?;
    let about = json!({
        "channel": ROOT, "provider": agent["provider"], "workingDirectory": uri_of(&bench.work()),
    });
    let resolved = match client.try_ask("resolveSessionConfig", about.clone())? {
        Ok(resolved) => resolved,
        Err(error) if error.code == i64::from(AUTH_REQUIRED) => {
            return not_offered("the agent needs a token: name another one by `--agent`");
        }
        Err(error) => {
            return broken(format!("`resolveSessionConfig` is answered with {}", quoted(&error.error)));
        }
    };
    let properties: BTreeMap<String, Value> =
        serde_json::from_value(resolved["schema"]["properties"].clone()).unwrap_or_default();
    for (name, property) in &properties {
        if property["enumDynamic"] == true {
            let answer = completed(&mut client, &about, &resolved["values"], name)?;
            must!(
                answer.is_ok(),
                "`sessionConfigCompletions` of `{name}`, which has values of its own, is answered with {}",
                quoted(&answer.unwrap_or_else(|error| error.error))
            );
        }
    }
    // The specification does not say how a property that does not exist is answered.
    drop(completed(&mut client, &about, &resolved["values"], "conform-none")?);
    Ok(())
}

/// Asks for the values of an option.
fn completed(client: &mut JudgeClient, about: &Value, config: &Value, property: &str) -> Judged<HostAnswer> {
    let mut params = about.clone();
    params["config"] = config.clone();
    params["property"] = json!(property);
    params["query"] = json!("");
    client.ask("sessionConfigCompletions", params)
}
