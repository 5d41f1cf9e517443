//! Agent updates without a counterpart in the protocol, which are preserved in metadata.

use super::*;

/// The session's state, as a client that comes later sees it.
fn session_state(watched: &mut Watched) -> Value {
    watched.say(json!({ "id": 77, "method": "subscribe", "params": { "channel": SESSION } }));
    let heard = watched.process.until(|message| message["id"] == 77);
    heard.last().unwrap()["result"]["snapshot"]["state"].clone()
}

fn update(kind: &str, mut fields: Value) -> String {
    fields["sessionUpdate"] = kind.into();
    format!("update {fields}")
}

#[test]
fn call_fields_without_a_protocol_counterpart_are_in_its_metadata() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let text = json!({ "type": "text", "text": "some", "annotations": { "audience": ["user"] } });
    let link = json!({ "type": "resource_link", "uri": "file:///x", "name": "x", "description": "An x",
        "mimeType": "text/plain", "size": 3 });
    let resource = json!({ "type": "resource", "resource": { "uri": "file:///y", "mimeType": "text/x", "text": "why" } });
    let script = [
        update(
            "tool_call",
            json!({ "toolCallId": "c", "title": "Look", "kind": "search",
            "locations": [{ "path": "/x", "line": 3 }, { "path": "/y" }], "_meta": { "a": 1 } }),
        ),
        update(
            "tool_call_update",
            json!({ "toolCallId": "c", "status": "in_progress", "content": [
            { "type": "content", "content": text, "_meta": { "b": 2 } },
            { "type": "content", "content": link },
            { "type": "content", "content": resource },
            { "type": "hologram", "data": "?" },
        ] }),
        ),
        update("tool_call_update", json!({ "toolCallId": "c", "_meta": { "c": 3 } })),
        update(
            "tool_call_update",
            json!({ "toolCallId": "c", "status": "completed", "rawOutput": { "n": 1 } }),
        ),
        update(
            "tool_call",
            json!({ "toolCallId": "d", "title": "Wonder", "kind": "a new kind", "status": "completed",
            "content": [{ "type": "content", "content": { "type": "text", "text": "x" } }], "rawOutput": 7 }),
        ),
    ];
    watched.turn("t1", &script.join("\n"));
    let started = watched.received("chat/toolCallStart");
    let locations = json!([{ "path": "/x", "line": 3 }, { "path": "/y" }]);
    let mut meta = json!({ "toolKind": "search", "acp.kind": "search", "acp.locations": locations, "acp.meta": { "a": 1 } });
    assert_eq!(started[0]["_meta"], meta);
    meta["acp.content"] = json!([
        { "index": 0, "_meta": { "b": 2 }, "content": { "annotations": { "audience": ["user"] } } },
        { "index": 1, "content": { "name": "x", "description": "An x" } },
        { "index": 2, "content": { "resource": { "uri": "file:///y", "mimeType": "text/x" } } },
        { "index": 3, "type": "hologram", "data": "?" },
    ]);
    let changed = watched.received("chat/toolCallContentChanged");
    assert_eq!(watched.received("chat/toolCallReady")[0]["_meta"], meta);
    assert_eq!(
        changed[0]["content"],
        json!([
            { "type": "text", "text": "some" },
            { "type": "resource", "uri": "file:///x", "contentType": "text/plain", "sizeHint": 3 },
            { "type": "text", "text": "why" },
        ])
    );
    meta["acp.meta"]["c"] = 3.into();
    assert_eq!((&changed[1]["_meta"], &changed[1]["content"]), (&meta, &changed[0]["content"]));
    let done = watched.received("chat/toolCallComplete");
    assert_eq!(done[0]["result"]["structuredContent"], json!({ "n": 1 }));
    // It was said before.
    assert!(done[0].get("_meta").is_none(), "{}", done[0]);
    assert_eq!(started[1]["_meta"], json!({ "acp.kind": "a new kind" }));
    assert_eq!(done[1]["_meta"], json!({ "acp.kind": "a new kind", "acp.rawOutput": 7 }));
    watched.leave();
}

#[test]
fn every_kind_of_content_block_is_shown_in_messages_and_call_results() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let blocks = [
        json!({ "type": "text", "text": "words" }),
        json!({ "type": "image", "mimeType": "image/png", "data": "AAAA" }),
        json!({ "type": "audio", "mimeType": "audio/wav", "data": "BBBB" }),
        json!({ "type": "resource_link", "uri": "file:///x", "name": "x", "title": "An x" }),
        json!({ "type": "resource", "resource": { "uri": "file:///y", "text": "why" } }),
        json!({ "type": "resource", "resource": { "uri": "file:///z", "mimeType": "a/b", "blob": "CCCC" } }),
    ];
    let mut script: Vec<String> = blocks.iter().map(|block| format!("block {block}")).collect();
    let content: Vec<Value> =
        blocks.iter().map(|block| json!({ "type": "content", "content": block })).collect();
    script.push(update(
        "tool_call",
        json!({ "toolCallId": "c", "title": "", "status": "completed", "content": content }),
    ));
    let said = watched.turn("t1", &script.join("\n"));
    let shown =
        "words![image](data:image/png;base64,AAAA)[audio](data:audio/wav;base64,BBBB)[An x](file:///x)\
        [file:///y](file:///y)\n\nwhy[file:///z](data:a/b;base64,CCCC)";
    assert_eq!(said, shown);
    assert_eq!(
        watched.received("chat/toolCallComplete")[0]["result"]["content"],
        json!([
            { "type": "text", "text": "words" },
            { "type": "embeddedResource", "data": "AAAA", "contentType": "image/png" },
            { "type": "embeddedResource", "data": "BBBB", "contentType": "audio/wav" },
            { "type": "resource", "uri": "file:///x" },
            { "type": "text", "text": "why" },
            { "type": "embeddedResource", "data": "CCCC", "contentType": "a/b" },
        ])
    );
    watched.leave();
}

#[test]
fn terminal_run_by_the_agent_itself_is_shown_as_running_from_its_first_output() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script = [
        update(
            "tool_call",
            json!({ "toolCallId": "c", "title": "ls", "kind": "execute", "status": "pending",
            "rawInput": { "command": "ls", "cwd": "/w" },
            "content": [{ "type": "terminal", "terminalId": "t" }],
            "_meta": { "terminal_info": { "terminal_id": "t", "cwd": "/w" } } }),
        ),
        update(
            "tool_call_update",
            json!({ "toolCallId": "c",
            "_meta": { "terminal_output": { "terminal_id": "t", "data": "a\n" } } }),
        ),
        update(
            "tool_call_update",
            json!({ "toolCallId": "c", "status": "completed",
            "_meta": { "terminal_exit": { "terminal_id": "t", "exit_code": 0, "signal": null } } }),
        ),
    ];
    watched.turn("t1", &script.join("\n"));
    assert_eq!(watched.received("chat/toolCallReady").len(), 1);
    assert_eq!(watched.received("chat/toolCallReady")[0]["toolInput"], "ls");
    assert_eq!(watched.received("chat/toolCallContentChanged")[0]["content"][1]["text"], "a\n");
    let done = &watched.received("chat/toolCallComplete")[0];
    assert_eq!(
        done["_meta"],
        json!({ "toolKind": "terminal", "acp.kind": "execute", "acp.rawInput": { "cwd": "/w" },
            "acp.content": [{ "index": 0, "terminalId": "t" }],
            "acp.terminal": { "terminal_id": "t", "cwd": "/w", "exit_code": 0, "signal": null } })
    );
    let terminal = &done["result"]["content"][0];
    assert_eq!((&terminal["type"], &terminal["title"]), (&json!("terminal"), &json!("ls")));
    assert_eq!(terminal["result"], json!({ "exitCode": 0, "preview": "a\n" }));
    watched.leave();
}

#[test]
fn message_ids_and_chunk_metadata_are_preserved() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let noted = json!({ "content": { "type": "text", "text": "b", "annotations": { "priority": 1.0 } },
        "messageId": "m1", "_meta": { "x": 1 } });
    let usage = json!({ "content": { "type": "text", "text": "" }, "_meta": { "durationMs": 5,
        "usage": { "inputTokens": 3, "outputTokens": 2, "totalTokens": 5, "thoughtTokens": 1 } } });
    let script = [
        "message m1 a".to_owned(),
        update("agent_message_chunk", noted),
        "message m1 c".to_owned(),
        update("agent_message_chunk", usage),
        "message m2 d".to_owned(),
    ];
    let said = watched.turn("t1", &script.join("\n"));
    assert_eq!(said, "abc\n\nd");
    let parts = watched.received("chat/responsePart");
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0]["_meta"], json!({ "acp.messageId": "m1" }));
    assert_eq!(parts[1]["_meta"], json!({ "acp.messageId": "m2" }));
    let deltas = watched.received("chat/delta");
    let besides =
        json!({ "acp.chunk": { "_meta": { "x": 1 }, "content": { "annotations": { "priority": 1.0 } } } });
    assert_eq!((&deltas[0]["content"], &deltas[0]["_meta"]), (&json!("b"), &besides));
    assert!(deltas[1].get("_meta").is_none(), "{}", deltas[1]);
    assert_eq!(
        watched.received("chat/usage")[0]["usage"],
        json!({ "inputTokens": 3, "outputTokens": 2,
            "_meta": { "acp.meta": { "durationMs": 5 }, "acp.usage": { "totalTokens": 5, "thoughtTokens": 1 } } })
    );
    watched.leave();
}

#[test]
fn conversation_wide_updates_are_in_the_session_metadata_and_survive_a_restart() {
    let store = tempfile::tempdir().unwrap();
    let mut setting = Setting::with(&[]);
    setting.flags = vec!["--state-dir".to_owned(), store.path().to_str().unwrap().to_owned()];
    let mut watched = setting.start();
    watched.session();
    let entry =
        |content: &str, status: &str| json!({ "content": content, "priority": "high", "status": status });
    let plan = json!([entry("think", "completed"), entry("work", "in_progress"), entry("rest", "pending")]);
    let script = [
        update("plan", json!({ "entries": plan, "_meta": { "p": 1 } })),
        update("session_info_update", json!({ "title": "T", "updatedAt": "now", "_meta": { "s": 1 } })),
        update("session_info_update", json!({ "updatedAt": null, "_meta": { "s": 2 } })),
        update("a_new_kind", json!({ "x": 1 })),
        update("a_new_kind", json!({ "x": 2 })),
        update("another", json!({ "y": "z".repeat(70_000) })),
    ];
    watched.turn("t1", &script.join("\n"));
    assert_eq!(watched.received("chat/activityChanged")[0]["activity"], "work");
    let chat = default_chat_of(SESSION);
    let of_chat = |value: Value| json!({ chat.as_str(): value });
    let notes = json!({
        "acp.plan": of_chat(json!({ "entries": plan, "_meta": { "p": 1 } })),
        "acp.sessionInfo": of_chat(json!({ "_meta": { "s": 2 } })),
        "acp.updates": of_chat(json!({ "a_new_kind": { "x": 2 }, "another": { "omittedBytes": 70_008 } })),
    });
    assert_eq!(session_state(&mut watched)["_meta"], notes);
    let folder = watched.leave().unwrap();

    let mut setting = Setting::with(&[]);
    setting.flags = vec!["--state-dir".to_owned(), store.path().to_str().unwrap().to_owned()];
    let mut watched = setting.start_in(folder);
    assert_eq!(session_state(&mut watched)["_meta"], notes);
    watched.subscribe(SESSION);
    // A plan that has nothing in it is none.
    watched.turn("t2", &update("plan", json!({ "entries": [] })));
    assert!(session_state(&mut watched)["_meta"].get("acp.plan").is_none());
    watched.leave();
}

#[test]
fn updates_between_turns_are_in_the_session_metadata() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let late = json!({ "sessionUpdate": "usage_update", "used": 5, "size": 10 });
    watched.turn("t1", "say ok");
    let other = "ahp-session:/other";
    watched.create(other, "a0");
    let start = json!({ "type": "chat/turnStarted", "turnId": "o1", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": format!("update_first {late}"), "origin": { "kind": "user" } } });
    watched.say(json!({ "method": "dispatchAction",
        "params": { "channel": default_chat_of(other), "clientSeq": 9, "action": start } }));
    watched.action("session/metaChanged");
    watched.turn("t2", "say ok");
    let chat = default_chat_of(SESSION);
    assert_eq!(
        session_state(&mut watched)["_meta"],
        json!({ "acp.context": { chat.as_str(): { "used": 5, "size": 10 } } })
    );
    watched.leave();
}
