//! Tests of the names, schemas and results of clients' tools, without an agent.
//!
//! Owns: observed names that agents give to such a tool.
//! Never: starts anything.

use super::*;

fn tool(name: &str) -> ToolDefinition {
    serde_json::from_value(json!({ "name": name })).unwrap()
}

fn offered(tools: Value) -> OfferedTools {
    OfferedTools::new(serde_json::from_value(tools).unwrap())
}

#[test]
fn names_are_such_that_every_provider_takes_them_and_stay_apart() {
    assert_eq!(name_for_agents("run_Tests-2"), "run_Tests-2");
    let others = ["a.b", "a/b", "ä", "", &"x".repeat(41), &"x".repeat(400)].map(name_for_agents);
    for name in &others {
        assert!(name.len() <= NAME_BYTES_MAX, "{name}");
        assert!(name.chars().all(|it| it.is_ascii_alphanumeric() || "_-".contains(it)), "{name}");
    }
    let kept: std::collections::BTreeSet<&String> = others.iter().collect();
    assert_eq!(kept.len(), others.len());
    let offered = OfferedTools::new(vec![tool("a.b"), tool("a/b")]);
    assert_eq!(offered.tool_named(&others[1]), Some("a/b"));
    assert_eq!(offered.tool_named("a/b"), None);
}

#[test]
fn a_schema_is_passed_on_and_one_that_no_agent_takes_costs_its_tool_alone() {
    let schema =
        json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/y" } }, "$defs": { "y": true } });
    let offered = offered(json!([
        { "name": "a", "inputSchema": schema, "title": "A", "annotations": { "readOnlyHint": true },
          "outputSchema": { "type": "object" } },
        { "name": "b", "inputSchema": { "properties": {} } },
        { "name": "c", "inputSchema": { "type": "string" } },
        { "name": "d", "inputSchema": true },
        { "name": "e" },
    ]));
    let listed = offered.listed();
    assert_eq!(
        listed[0],
        json!({ "name": "a", "inputSchema": schema, "title": "A", "annotations": { "readOnlyHint": true } })
    );
    assert_eq!(listed[1], json!({ "name": "b", "inputSchema": { "type": "object", "properties": {} } }));
    assert_eq!(listed[2], json!({ "name": "e", "inputSchema": { "type": "object" } }));
    assert_eq!((listed.len(), offered.names()), (3, vec!["a", "b", "e"]));
}

#[test]
fn a_call_is_known_by_what_agents_call_it_and_by_nothing_else() {
    let offered = OfferedTools::new(vec![tool("look"), tool("look_at"), tool("_x")]);
    // Observed texts of agents.
    for text in [
        "mcp__ahpclient__look",
        "mcp.ahpclient.look",
        "ahpclient_look",
        "Tool: ahpclient/look",
        "look (ahpclient MCP Server)",
        "look (ahpclient MCP Server): {\"x\":1}",
    ] {
        assert_eq!(offered.tool_of(&["other", text]), Some("look"), "{text}");
    }
    assert_eq!(offered.tool_of(&["mcp__ahpclient__look_at"]), Some("look_at"));
    assert_eq!(offered.tool_of(&["mcp__ahpclient___x"]), Some("_x"));
    for text in
        ["look", "ahpclientlook", "rm ahpclient_look", "mcp__ahpclient__look; rm x", "mcp__other__look", ""]
    {
        assert_eq!(offered.tool_of(&[text]), None, "{text}");
    }
}

#[test]
fn result_of_a_call_has_a_form_that_agents_read() {
    let result_of = |outcome: Value| result(&serde_json::from_value(outcome).unwrap());
    let text = |text: &str| json!({ "type": "text", "text": text });
    let done = |more: Value| {
        let mut outcome = json!({ "success": true, "pastTenseMessage": "Looked" });
        outcome.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        result_of(outcome)
    };
    assert_eq!(done(json!({})), json!({ "content": [text("Looked")], "isError": false }));
    assert_eq!(
        done(json!({ "structuredContent": { "a": 1 } })),
        json!({ "content": [text("{\"a\":1}")], "isError": false, "structuredContent": { "a": 1 } })
    );
    let content = json!([
        { "type": "text", "text": "t" },
        { "type": "embeddedResource", "data": "AA==", "contentType": "image/png" },
        { "type": "embeddedResource", "data": "AA==", "contentType": "application/pdf" },
        { "type": "resource", "uri": "file:///x" },
        { "type": "something else" },
    ]);
    let resource = json!({ "uri": "data:,", "mimeType": "application/pdf", "blob": "AA==" });
    assert_eq!(
        done(json!({ "content": content }))["content"],
        json!([text("t"), { "type": "image", "data": "AA==", "mimeType": "image/png" },
               { "type": "resource", "resource": resource }, text("file:///x")])
    );
    let failed = json!({ "success": false, "pastTenseMessage": "Failed", "error": { "message": "no such thing" },
                         "content": [text("so far")] });
    assert_eq!(
        result_of(failed),
        json!({ "content": [text("so far"), text("no such thing")], "isError": true })
    );
}
