//! `--trace`, `trace`, `debug-bundle` and exported logs: what they show, and what they never do.
//!
//! Owns: conversations in which a secret is in every text, and searches for it.
//! Never: judges how long something takes.

use std::fs;
use std::path::Path;
use std::process::Output;

use ahp_sidecar::shapes::{Redactor, Shape};
use ahp_sidecar::wire::uris::default_chat_of;
use ahp_types::notifications::OtlpExportLogsParams;
use serde_json::{json, Map, Value};

use crate::support::{program, sidecar_on, Process};

/// Text that must not be shown, in each spelling that a text may get.
const SECRET: &str = "s3cret";

const SESSION: &str = "ahp-session:/s3cret-session";

/// Holds a conversation with a host of this command, with its log: a turn with a draft and a queued
/// message. Returns what the host has sent.
fn converse(mut command: std::process::Command, folder: &Path, provider: &str) -> Vec<Value> {
    let chat = default_chat_of(SESSION);
    command.args(["--log", "trace"]);
    let mut host = Process::spawn(command);
    let mut sequence = 0;
    let mut dispatch = |host: &mut Process, channel: &str, action: Value| {
        sequence += 1;
        host.say(
            &json!({ "jsonrpc": "2.0", "method": "dispatchAction",
            "params": { "channel": channel, "clientSeq": sequence, "action": action } })
            .to_string(),
        );
    };
    let ask = |host: &mut Process, id: &str, method: &str, params: Value| {
        host.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
    };
    ask(
        &mut host,
        "s3cret-1",
        "initialize",
        json!({ "channel": "ahp-root://", "clientId": "s3cret-client",
        "protocolVersions": ["1.0.0"], "clientInfo": { "name": "s3cret", "version": "s3cret" } }),
    );
    ask(&mut host, "s3cret-0", "subscribe", json!({ "channel": "ahp-otlp://logs/trace" }));
    host.until(|message| message["id"] == "s3cret-0");
    ask(
        &mut host,
        "s3cret-2",
        "authenticate",
        json!({ "channel": "ahp-root://", "resource": "https://s3cret",
        "token": "s3cret-token" }),
    );
    ask(
        &mut host,
        "s3cret-3",
        "createSession",
        json!({ "channel": SESSION, "provider": provider,
        "workingDirectories": [format!("file://{}", folder.display())] }),
    );
    ask(&mut host, "s3cret-4", "subscribe", json!({ "channel": chat }));
    ask(&mut host, "s3cret-5", "s3cret-method", json!({ "s3cret-member": "s3cret" }));
    host.say(&json!({ "jsonrpc": "2.0", "method": "s3cret-notification" }).to_string());
    host.say("s3cret, and no JSON");
    dispatch(&mut host, SESSION, json!({ "type": "session/titleChanged", "title": "s3cret title" }));
    dispatch(&mut host, &chat, json!({ "type": "s3cret/action" }));
    let message = |text: &str| {
        json!({ "text": text, "origin": { "kind": "user" },
        "attachments": [{ "type": "simple", "label": "s3cret-label", "modelRepresentation": "s3cret-words\nraw s3cret junk\\n" }] })
    };
    dispatch(&mut host, &chat, json!({ "type": "chat/draftChanged", "draft": message("s3cret draft") }));
    dispatch(
        &mut host,
        &chat,
        json!({ "type": "chat/turnStarted", "turnId": "s3cret-turn", "startedAt": "2026-01-01T00:00:00Z",
        "message": message("s3cret question") }),
    );
    let mut sent = host.until(|message| message["params"]["action"]["type"] == "chat/turnComplete");
    host.end();
    sent.extend(host.rest());
    assert!(host.wait().success());
    sent
}

fn run(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = program();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("AHP_SIDECAR_TOKEN", "s3cret-of-environment");
    command.args(arguments).args(paths).output().unwrap()
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn check_hidden(text: &str) {
    let place = text.to_lowercase().find(SECRET);
    assert!(place.is_none(), "{}", &text[place.unwrap_or(0).saturating_sub(100)..]);
}

/// Checks what Perfetto asks for: each track has a name and is none of the two that mean something
/// else, and no span begins while another one of its track lasts.
fn check_tracks(events: &[Value]) {
    let named: Vec<&Value> =
        events.iter().filter(|event| event["name"] == "thread_name").map(|event| &event["tid"]).collect();
    let mut ends: Vec<(&Value, f64)> = Vec::new();
    let mut spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let begin = |span: &Value| span["ts"].as_f64().unwrap();
    spans.sort_by(|some, other| begin(some).total_cmp(&begin(other)));
    for span in spans {
        let track = &span["tid"];
        assert!(named.contains(&track) && track.as_u64() > span["pid"].as_u64(), "{span}");
        let end = ends.iter().filter(|(other, _)| *other == track).map(|(_, end)| *end).fold(0.0, f64::max);
        // Times are numbers of nanoseconds, written as microseconds.
        assert!(begin(span) - end > -0.0005, "{span} begins before {end}");
        ends.push((track, begin(span) + span["dur"].as_f64().unwrap()));
    }
}

#[test]
fn trace_shows_each_stage_and_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let (state, trace) = (folder.path().join("state"), folder.path().join("trace.json"));
    let mut command = sidecar_on(&state);
    command.arg("--trace").arg(&trace);
    converse(command, folder.path(), "script");
    let text = fs::read_to_string(&trace).unwrap();
    check_hidden(&text);
    // A viewer closes the array itself.
    let events: Vec<Value> =
        serde_json::from_str(&(text.trim_end().trim_end_matches(',').to_owned() + "]")).unwrap();
    for stage in ["in", "core", "stored", "out", "written"] {
        let all = events.iter().filter(|event| event["cat"] == stage && event["ph"] == "X");
        let all: Vec<&Value> = all.collect();
        assert!(!all.is_empty(), "{stage}: {text}");
        let is_span = |event: &&Value| event["dur"].is_f64() && event["ts"].is_f64() && event["tid"].is_u64();
        assert!(all.iter().all(is_span), "{all:?}");
    }
    check_tracks(&events);
    // The turn is in the stages up to the commit of its step.
    let is_turn = |event: &&Value| event["name"] == "dispatchAction chat/turnStarted";
    let number = &events.iter().find(is_turn).unwrap()["args"]["line"];
    let stored = events.iter().filter(|event| event["cat"] == "stored");
    let mut lines = stored.flat_map(|event| event["args"]["lines"].as_array().unwrap());
    assert!(lines.any(|line| line == number), "{number}: {text}");

    let table = text_of(&run(&["trace"], &[&trace]));
    check_hidden(&table);
    assert!(
        table.contains("dispatchAction chat/turnStarted") && table.contains("slowest messages"),
        "{table}"
    );
    // A trace is never overwritten.
    let again = sidecar_on(&state).arg("--trace").arg(&trace).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
}

#[test]
fn trace_has_the_lines_of_agents() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
    let mut command = program();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").args(["--ephemeral", "--trace"]).arg(&trace);
    command.arg("--agent").arg(format!("s3cret=python3 {}", agent.display()));
    let mut host = Process::spawn(command);
    host.say(
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "channel": "ahp-root://",
        "clientId": "me", "protocolVersions": ["1.0.0"] } })
        .to_string(),
    );
    host.say(
        &json!({ "jsonrpc": "2.0", "id": 2, "method": "createSession", "params": { "channel": SESSION,
        "provider": "s3cret", "workingDirectories": [format!("file://{}", folder.path().display())] } })
        .to_string(),
    );
    let chat = default_chat_of(SESSION);
    host.say(
        &json!({ "jsonrpc": "2.0", "id": 3, "method": "subscribe", "params": { "channel": chat } })
            .to_string(),
    );
    host.say(
        &json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": { "channel": chat, "clientSeq": 1,
        "action": { "type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z", "message": { "text": "say s3cret",
            "origin": { "kind": "user" } } } } })
        .to_string(),
    );
    host.until(|message| message["params"]["action"]["type"] == "chat/turnComplete");
    host.end();
    host.wait();
    let text = fs::read_to_string(&trace).unwrap();
    check_hidden(&text);
    for (stage, name) in
        [("to agent", "session/prompt"), ("from agent", "session/update agent_message_chunk")]
    {
        let is_it = |line: &str| {
            line.contains(&format!("\"cat\":\"{stage}\"")) && line.contains(&format!("\"name\":\"{name}\""))
        };
        assert!(text.lines().any(is_it), "{stage} {name}: {text}");
    }
}

#[test]
fn exported_logs_of_a_run_with_secrets_everywhere_show_none() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
    for provider in ["script", "s3cret"] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = sidecar_on(&folder.path().join("s3cret-state"));
        command.arg("--agent").arg(format!("s3cret=python3 {}", agent.display()));
        command.stderr(fs::File::create(&log).unwrap());
        let sent = converse(command, folder.path(), provider);
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains("s3cret-notification"), "the log itself quotes what is said: {log}");
        let exported: Vec<&Value> =
            sent.iter().filter(|message| message["method"] == "otlp/exportLogs").collect();
        let mut bodies = String::new();
        for message in exported {
            let params: OtlpExportLogsParams = serde_json::from_value(message["params"].clone()).unwrap();
            assert_eq!(params.channel, "ahp-otlp://logs/trace");
            let payload = &message["params"]["payload"];
            check_hidden(&payload.to_string());
            let records = payload["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap();
            for record in records {
                assert!(record["timeUnixNano"].as_str().is_some_and(|time| time.len() == 19), "{record}");
                let body = record["body"]["stringValue"].as_str().unwrap();
                bodies.push_str(&format!("{} {body}\n", record["severityText"].as_str().unwrap()));
            }
        }
        assert!(bodies.contains("WARN a notification was ignored\n"), "{bodies}");
        if provider == "s3cret" {
            assert!(log.contains("s3cret junk"), "{log}");
            for body in ["TRACE > …\n", "TRACE < …\n", "WARN output of an agent: …\n"] {
                assert!(bodies.contains(body), "{body}: {bodies}");
            }
        }
    }
}

#[test]
fn no_incomplete_file_is_left_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name);
    let on_full_disk = |arguments: &[&str], file: &Path| {
        let mut command = program();
        command.arg("--help");
        let mut full = std::process::Command::new("sh");
        full.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]).arg(command.get_program());
        full.args(arguments).arg(file).output().unwrap()
    };
    let state = named("state");
    let bundle = ["debug-bundle", "--no-agents", "--state-dir", state.to_str().unwrap()];
    let traced = ["--ephemeral", "--trace"];
    let record = ["record"];
    for (arguments, name) in [(&bundle[..], "bundle"), (&traced[..], "trace"), (&record[..], "record")] {
        let output = on_full_disk(arguments, &named(name));
        assert!(!output.status.success(), "{name}: {output:?}");
        assert!(!named(name).exists(), "{name}: {output:?}");
    }
}

#[test]
fn log_of_a_conversation_is_a_trace_too() {
    let folder = tempfile::tempdir().unwrap();
    let (log, events) = (folder.path().join("log.jsonl"), folder.path().join("events.json"));
    let mut command = program();
    command.args(["record", "--jsonl"]).arg(&log).arg("--").arg(program().get_program());
    command.args(["--ephemeral", "--deterministic", "--no-script"]);
    let mut host = Process::spawn(command);
    host.say(r#"{"jsonrpc":"2.0","id":"s3cret","method":"ping"}"#);
    host.next();
    host.end();
    host.wait();
    let table = text_of(&run(&["trace", "--events"], &[&events, &log]));
    check_hidden(&table);
    assert!(table.contains("> ping") && table.contains("< answer"), "{table}");
    let written = fs::read_to_string(&events).unwrap();
    check_hidden(&written);
    let written: Vec<Value> = serde_json::from_str(&written).unwrap();
    let (spans, tracks): (Vec<&Value>, _) = written.iter().partition(|event| event["ph"] == "X");
    assert_eq!((spans.len(), tracks.len(), &spans[0]["name"]), (2, 2, &json!("ping")));
    check_tracks(&written);
}

#[test]
fn bundle_of_a_run_with_secrets_everywhere_shows_none() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("s3cret-project");
    fs::create_dir(&work).unwrap();
    let state = folder.path().join("s3cret-state");
    let (trace, config) = (folder.path().join("s3cret.json"), folder.path().join("s3cret.toml"));
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
    fs::write(
        &config,
        format!(
            "mcp_files = [\"s3cret.json\"]\n[agents.s3cret]\ncommand = \"python3\"\nargs = [{agent:?}]\n\
             title = \"s3cret\"\ndescription = \"s3cret\"\nenv = {{ S3CRET = \"s3cret\", PIN = \"s3cret\" }}\n\
             [agents.s3cret-broken]\ncommand = \"/s3cret/program\"\n\
             [mcp.s3cret]\ncommand = \"s3cret\"\nargs = [\"s3cret\"]\nenv = {{ S3CRET = \"s3cret\" }}\n\
             [mcp.s3cret-web]\nurl = \"https://s3cret\"\nheaders = {{ S3CRET = \"s3cret\" }}\n\
             [run]\nallow = [\"command=s3cret\"]\n"
        ),
    )
    .unwrap();
    let mut command = sidecar_on(&state);
    command.arg("--trace").arg(&trace).arg("--config").arg("/dev/null");
    converse(command, &work, "script");
    fs::write(
        state.join("host.log"),
        "2026-01-01T00:00:00.000Z  WARN ahp_sidecar::io::run: s3cret error=\"s3cret\"\ns3cret\n\
         s3cret WARN ahp_sidecar::io: x\n2026-01-01T00:00:00.000Z WARN s3cret::io: x\n",
    )
    .unwrap();
    fs::write(state.join("s3cret-file"), "s3cret").unwrap();
    let options: Vec<&str> = vec!["debug-bundle", "--show", "--timeout", "60"];
    let mut arguments: Vec<String> = options.into_iter().map(str::to_owned).collect();
    for (flag, path) in [("--config", &config), ("--state-dir", &state), ("--trace", &trace)] {
        arguments.extend([flag.to_owned(), path.to_str().unwrap().to_owned()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let shown = text_of(&run(&arguments, &[]));
    check_hidden(&shown);
    let bundle: Value = serde_json::from_str(&shown).unwrap();
    for part in
        ["program", "platform", "settings", "agents", "folder", "sessions", "log", "trace", "milliseconds"]
    {
        assert!(bundle[part].is_array() || bundle[part].is_object(), "{part}: {shown}");
        assert!(bundle[part].get("failure").is_none(), "{part}: {shown}");
    }
    assert_eq!(bundle["settings"]["content"]["agents"].as_object().unwrap().len(), 2, "{shown}");
    let agents = bundle["agents"].as_array().unwrap();
    let usable: Vec<&Value> = agents.iter().map(|agent| &agent["usable"]).collect();
    assert_eq!(usable, [&json!(true), &json!(false)], "{shown}");
    assert_eq!(bundle["sessions"]["count"], 1);
    let files = bundle["folder"]["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["name"] == "host.log"), "{shown}");
    assert!(files.iter().any(|file| file["name"] == "sessions.sqlite"), "{shown}");
    let channels = bundle["sessions"]["shown"][0]["channels"].as_array().unwrap();
    assert!(channels.iter().any(|channel| channel["channel"] == "chat"), "{shown}");
    let names = bundle["trace"].as_array().unwrap().iter().map(|event| event["name"].as_str().unwrap());
    assert!(names.clone().any(|name| name == "dispatchAction chat/turnStarted"), "{shown}");
    assert_eq!(bundle["log"][0]["module"], "ahp_sidecar::io::run");

    // Without `--show`, the same is written, for this user alone, and no file is overwritten.
    let file = folder.path().join("bundle.json");
    let arguments: Vec<&str> =
        arguments.into_iter().filter(|it| *it != "--show").chain(["--no-agents"]).collect();
    text_of(&run(&arguments, &[&file]));
    check_hidden(&fs::read_to_string(&file).unwrap());
    let again = run(&arguments, &[&file]);
    assert!(
        again.status.code() == Some(1) && String::from_utf8_lossy(&again.stderr).contains("exists"),
        "{again:?}"
    );
}

/// A value with a secret in each of its texts and names.
fn with_secrets(value: &Value) -> Value {
    let with = |text: &str| format!("{SECRET}-{text}");
    match value {
        Value::String(text) => with(text).into(),
        Value::Array(items) => items.iter().map(with_secrets).collect(),
        Value::Object(members) => {
            let all = members.iter().map(|(name, value)| (with(name), with_secrets(value)));
            let plain = members.iter().map(|(name, value)| (name.clone(), with_secrets(value)));
            Value::Object(all.chain(plain).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

#[test]
fn no_text_of_any_message_of_the_fixtures_passes_a_veil() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let (mut folders, mut count) = (vec![root], 0);
    let redactor = Redactor::default();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let messages =
                text.lines().filter_map(|line| line.strip_prefix("> ").or(line.strip_prefix("< ")));
            for message in messages.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
                let secret = with_secrets(&message);
                let shape = Shape::of(&secret, 0);
                let shown = format!("{} {} {:?}", redactor.value(&secret), shape.name, shape.channel);
                assert!(!shown.contains(SECRET), "{shown}");
                count += 1;
            }
        }
    }
    assert!(count > 1000, "{count}");
}
