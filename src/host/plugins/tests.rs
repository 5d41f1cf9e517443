//! Tests of plugins: what the layouts contain, and fetches from a client with a tree in memory.
//!
//! Owns: the four layouts, hostile trees, the limits and the ends of a fetch, and the decisions for
//! a session over the fetches of its plugins.
//! Never: makes a whole host.

use ahp_types::actions::{SessionCustomizationToggledAction, StateAction};
use serde_json::{json, Value};

use super::*;
use crate::host::customizations::{self, shown_decisions};
use crate::host::effects::{ClientMcp, ClientMcpTransport, Frame};
use crate::host::relays::{FileServer, FileServers};
use crate::host::testing::{
    agent, connect, origin, outputs_of, registry, with_session, CHAT, ME, MY_ID, SESSION,
};
use crate::wire::errors::tests::logged;
use crate::wire::methods::Method;
use crate::wire::rpc::{Incoming, Params};

const URI: &str = "virtual:/p";

/// Files by path; the content is that of a text file.
type Files = Vec<(&'static str, &'static str)>;

/// Parses a tree in which everything can be read.
fn parsed(files: &[(&str, &str)]) -> ParsedPlugin {
    parse_known(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()).unwrap()
}

/// Returns the kinds and names of the parts.
fn parts(plugin: &ParsedPlugin) -> Vec<String> {
    plugin.parts.iter().map(|part| format!("{} {}", part.kind.name(), part.name)).collect()
}

const SERVERS: &str = r#"{"mcpServers":{"web":{"type":"http","url":"https://x.example/mcp"}}}"#;
const SKILL: &str = "---\nname: Sing\ndescription: Sings\ndisable-model-invocation: true\n---\nLa la.";

#[test]
fn agent_plugin_has_skills_and_servers_at_fixed_places() {
    let manifest = r#"{"$schema":"https://agent-plugins.org/schemas/1.0.0/plugin.schema.json","name":"p",
        "version":"1.2.0","mcpServers":"other.json","extensions":{"com.example":{"hooks":"x"}}}"#;
    let plugin = parsed(&[
        ("plugin.json", manifest),
        ("mcp.json", SERVERS),
        (".mcp.json", r#"{"mcpServers":{"no":{"url":"http://n"}}}"#),
        ("skills/sing/SKILL.md", SKILL),
        ("skills/sing/more/SKILL.md", SKILL),
        ("agents/a.md", ""),
        (".claude-plugin/plugin.json", r#"{"version":"9"}"#),
    ]);
    assert_eq!(parts(&plugin), ["skill Sing", "mcp web"]);
    assert_eq!((plugin.version.as_deref(), plugin.problems.len()), (Some("1.2.0"), 0));
    let skill = &plugin.parts[0];
    assert_eq!((skill.description.as_deref(), skill.not_for_model), (Some("Sings"), Some(true)));
    assert_eq!(skill.path, "skills/sing/SKILL.md");
}

#[test]
fn open_plugin_and_claude_plugin_have_all_kinds_and_places_of_their_manifest() {
    let manifest = r#"{"name":"p","version":"1","skills":["./extra","./alone"],"commands":"./one.md",
        "rules":{"paths":["./laws"]},"hooks":{"PreToolUse":[]},
        "mcpServers":{"inline":{"command":"serve","args":["-x"]}}}"#;
    for place in [".plugin/plugin.json", ".claude-plugin/plugin.json"] {
        let plugin = parsed(&[
            (place, manifest),
            (".mcp.json", SERVERS),
            ("agents/deep/helper.agent.md", "---\nmodel: m\ntools: [a, b]\n---\n"),
            ("skills/sing/SKILL.md", SKILL),
            ("extra/dance/SKILL.md", ""),
            ("alone/SKILL.md", ""),
            ("commands/do.md", ""),
            ("one.md", ""),
            ("rules/r.mdc", "---\nalwaysApply: false\nglobs: '*.rs'\n---\n"),
            ("laws/l.instructions.md", ""),
            ("hooks/hooks.json", r#"{"hooks":{"Stop":[]},"description":"x"}"#),
            ("README.md", ""),
        ]);
        let expected = [
            "agent deep:helper",
            "skill Sing",
            "skill dance",
            "skill alone",
            "prompt do",
            "prompt one",
            "rule r",
            "rule l",
            "hook Stop",
            "hook PreToolUse",
            "mcp web",
            "mcp inline",
        ];
        assert_eq!(parts(&plugin), expected, "{place}");
        assert_eq!(plugin.problems, Vec::<String>::new());
        let PartKind::Agent { model, tools } = &plugin.parts[0].kind else { panic!() };
        assert_eq!((model.as_deref(), tools.as_ref().map(Vec::len)), (Some("m"), Some(2)));
    }
}

#[test]
fn file_at_a_default_place_that_the_manifest_names_is_read_once() {
    let manifest = r#"{"name":"p","mcpServers":"./.mcp.json","hooks":"./hooks/hooks.json"}"#;
    let plugin = parsed(&[
        (".claude-plugin/plugin.json", manifest),
        (".mcp.json", SERVERS),
        ("hooks/hooks.json", r#"{"hooks":{"Stop":[]}}"#),
    ]);
    assert_eq!(parts(&plugin), ["hook Stop", "mcp web"]);
    assert!(plugin.problems.is_empty(), "{:?}", plugin.problems);
}

#[test]
fn exclusive_places_of_the_manifest_replace_the_default_ones() {
    let parts_with = |is_exclusive: bool| {
        let at = |path: &str| json!({ "paths": [path], "exclusive": is_exclusive });
        let manifest =
            json!({ "skills": at("./extra"), "hooks": at("./h.json"), "mcpServers": at("./m.json") });
        let manifest = manifest.to_string();
        parts(&parsed(&[
            (".plugin/plugin.json", manifest.as_str()),
            ("skills/sing/SKILL.md", SKILL),
            ("extra/dance/SKILL.md", ""),
            ("hooks/hooks.json", r#"{"hooks":{"Stop":[]}}"#),
            ("h.json", r#"{"hooks":{"PreToolUse":[]}}"#),
            (".mcp.json", SERVERS),
            ("m.json", r#"{"more":{"url":"http://x"}}"#),
        ]))
    };
    assert_eq!(parts_with(true), ["skill dance", "hook PreToolUse", "mcp more"]);
    let all = ["skill Sing", "skill dance", "hook Stop", "hook PreToolUse", "mcp web", "mcp more"];
    assert_eq!(parts_with(false), all);
}

#[test]
fn part_that_is_found_again_does_not_count_against_the_limit() {
    let agents: Vec<String> = (0..layouts::PARTS_MAX).map(|at| format!("agents/{at:03}.md")).collect();
    let mut files: Vec<(&str, &str)> = agents.iter().map(|path| (path.as_str(), "")).collect();
    files.push(("plugin.json", r#"{"agents":"./agents/000.md"}"#));
    let plugin = parsed(&files);
    assert_eq!((plugin.parts.len(), plugin.problems), (layouts::PARTS_MAX, Vec::<String>::new()));
}

#[test]
fn document_at_places_below_one_another_is_one_part_and_counted_once() {
    let deep = "d/".repeat(15);
    let places: Vec<String> = (0..=15).map(|depth| format!("./{}", "d/".repeat(depth))).collect();
    let manifest = json!({ "agents": places, "skills": places }).to_string();
    let alone = parsed(&[("plugin.json", &manifest), (&format!("{deep}a.md"), "")]);
    assert_eq!(parts(&alone), [format!("agent {}a", "d:".repeat(15))]);
    let count = layouts::PARTS_MAX + 44;
    let named = |at: usize| (format!("{deep}{at:03}.md"), format!("---\nname: n{at}\n---\n"));
    let many: Vec<(String, String)> = (0..count).map(named).collect();
    let mut files: Vec<(&str, &str)> =
        many.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    files.push(("plugin.json", &manifest));
    let plugin = parsed(&files);
    assert_eq!(plugin.problems, ["only the first 256 of its 300 parts are read"]);
}

#[test]
fn bare_plugin_has_the_default_places() {
    let files = [(".mcp.json", r#"{"web":{"url":"http://x"}}"#), ("hooks.json", r#"{"Stop":[]}"#)];
    assert_eq!(parts(&parsed(&files)), ["hook Stop", "mcp web"]);
    let plugin = parsed(&[
        ("plugin.json", r#"{"name":"p","version":"3","mcpServers":"./m/servers.json"}"#),
        ("m/servers.json", SERVERS),
    ]);
    assert_eq!((parts(&plugin), plugin.version.as_deref()), (vec!["mcp web".to_owned()], Some("3")));
    assert_eq!(parsed(&[]), ParsedPlugin::default());
}

#[test]
fn hostile_manifest_costs_only_what_it_names() {
    let plugin = parsed(&[
        (".plugin/plugin.json", r#"{"skills":["../up","/etc","C:\\x","./skills"],"mcpServers":"a/../../x"}"#),
        ("skills/sing/SKILL.md", SKILL),
        ("hooks/hooks.json", "{ not json"),
        (".mcp.json", "[]"),
    ]);
    assert_eq!(parts(&plugin), ["skill Sing"]);
    let all = plugin.problems.join("\n");
    for problem in [
        "`../up`: it leads out",
        "`/etc`: it is not relative",
        "not JSON: line 1, column 3",
        "`.mcp.json` is no JSON object",
        "`a/../../x`: it leads out",
    ] {
        assert!(all.contains(problem), "{problem} in {all}");
    }
    let two = parsed(&[("agents/a.md", "---\nname: x\n---\n"), ("agents/b.md", "---\nname: x\n---\n")]);
    assert_eq!((two.parts.len(), two.problems.len()), (1, 1));
    let many: Vec<String> = (0..300).map(|at| format!("agents/{at:03}.md")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|path| (path.as_str(), "")).collect();
    let many = parsed(&many);
    assert_eq!((many.parts.len(), many.problems.len()), (layouts::PARTS_MAX, 1));
    let wrong = json!({ "skills": vec!["../up"; 300] }).to_string();
    let wrong = parsed(&[(".plugin/plugin.json", wrong.as_str())]);
    assert_eq!(wrong.problems.len(), 65);
    assert_eq!(wrong.problems[64], "there are 193 further problems");
}

#[test]
fn unusable_server_is_refused_with_a_reason_that_has_no_value() {
    let servers = json!({ "mcpServers": {
        "good": { "command": "/bin/serve", "env": { "KEY": "s3cret" }, "cwd": null, "envFile": null },
        "name with spaces": { "url": "https://s3cret" },
        "ahpclient": { "url": "https://s3cret" },
        "cwd": { "command": "x", "cwd": "s3cret" },
        "placeholder": { "url": "https://x/${s3cret}" },
        "inplugin": { "command": "${CLAUDE_PLUGIN_ROOT}/s3cret" },
        "relative": { "command": "./s3cret" },
        "windows": { "command": "C:/serve.exe" },
        "both": { "command": "s3cret", "url": "https://s3cret" },
        "none": { "type": "stdio" },
        "kind": { "type": "s3cret", "url": "https://s3cret" },
        "file": { "url": "file:///s3cret" },
        "env": { "command": "x", "env": { "KEY": ["s3cret"] } },
        "headers": { "url": "https://x", "headers": "s3cret" },
    } });
    let text = servers.to_string();
    let plugin = parsed(&[(".mcp.json", text.as_str())]);
    let usable = plugin.parts.iter().filter(|part| matches!(part.kind, PartKind::Server(Ok(_))));
    assert_eq!(usable.map(|part| part.name.as_str()).collect::<Vec<_>>(), ["good", "windows"]);
    assert_eq!(plugin.problems.len(), 12);
    let shown = format!("{plugin:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    let Some(PartKind::Server(Ok(ClientMcpTransport::Program { env, .. }))) =
        plugin.parts.iter().find(|part| part.name == "good").map(|part| part.kind.clone())
    else {
        panic!("{shown}")
    };
    assert_eq!(env["KEY"].secret(), "s3cret");
}

/// Content of files that clients send as bytes that are no text.
const NO_TEXT: &str = "no text";

/// Client with a tree, and the owner that fetches it.
struct World {
    ledger: Ledger,
    plugins: Plugins,
    relays: Relays,
    files: Files,
    /// Requests that were answered: method and path.
    asked: Vec<String>,
}

impl World {
    fn new(files: Files) -> Self {
        Self {
            ledger: with_session(),
            plugins: Plugins::default(),
            relays: Relays::default(),
            files,
            asked: Vec::new(),
        }
    }

    /// Publishes plugins of the client. Returns the outputs.
    fn publish(&mut self, plugins: &[(&str, Option<&str>)]) -> Vec<Output> {
        let plugins = plugins.iter().map(
            |(uri, nonce)| json!({ "type": "plugin", "id": uri, "uri": uri, "name": "P", "nonce": nonce }),
        );
        let client = json!({ "clientId": MY_ID, "tools": [], "customizations": plugins.collect::<Vec<_>>() });
        self.activate(client)
    }

    /// Publishes the plugin with decisions about its parts for the session. Returns the outputs.
    fn publish_with_parts_off(&mut self, nonce: &str, parts: &[&str]) -> Vec<Output> {
        let off = json!([{ "kind": "session", "enabled": false }]);
        let parts: BTreeMap<&str, &Value> = parts.iter().map(|name| (*name, &off)).collect();
        let plugin = json!({ "type": "plugin", "id": URI, "uri": URI, "name": "P", "nonce": nonce,
            "childEnablement": parts });
        self.activate(json!({ "clientId": MY_ID, "tools": [], "customizations": [plugin] }))
    }

    /// Makes the client active as it is described. Returns the outputs.
    fn activate(&mut self, client: Value) -> Vec<Output> {
        let session = self.ledger.channels.sessions.get_mut(&SESSION).unwrap();
        session.state.active_clients = vec![serde_json::from_value(client).unwrap()];
        let outputs = self.follow();
        self.show();
        outputs
    }

    fn show(&mut self) {
        outputs_of(|step| customizations::refresh_session(&mut self.ledger, step, SESSION));
    }

    /// Switches a customization for the session, or leaves it to the other scopes.
    fn switch(&mut self, id: &str, enablement: Value) {
        let enablement = serde_json::from_value(enablement).unwrap();
        let toggled = SessionCustomizationToggledAction { id: id.to_owned(), enablement };
        let action = StateAction::SessionCustomizationToggled(toggled);
        let (ledger, mut agents) = (&mut self.ledger, registry(&[agent("script", "")]));
        outputs_of(|step| {
            let verdict = customizations::client_changes_customization(
                ledger,
                &mut agents,
                step,
                SESSION,
                action,
                origin(),
            );
            verdict.unwrap();
        });
    }

    /// Returns the ids of the plugins and parts that are shown as switched off.
    fn off(&mut self) -> Vec<String> {
        self.show();
        let session = self.ledger.channels.sessions.get(&SESSION).unwrap();
        let shown = serde_json::to_value(&session.state.customizations).unwrap();
        let plugins = shown.as_array().into_iter().flatten();
        let parts = plugins.flat_map(|plugin| {
            std::iter::once(plugin).chain(plugin["children"].as_array().into_iter().flatten())
        });
        let is_off = |part: &&Value| part["enabled"] == false || part["enablement"][0]["enabled"] == false;
        parts.filter(is_off).map(|part| part["id"].as_str().unwrap().to_owned()).collect()
    }

    fn follow(&mut self) -> Vec<Output> {
        let Self { ledger, plugins, relays, .. } = self;
        outputs_of(|step| plugins.follow_session(ledger, relays, step, SESSION))
    }

    /// Returns the listing of a folder, or the content of a file.
    fn answer(&self, method: &str, path: &str) -> Value {
        if method == "resourceRead" {
            return match self.files.iter().find(|(other, _)| *other == path) {
                Some((_, NO_TEXT)) => json!({ "result": { "data": "/w==", "encoding": "base64" } }),
                Some((_, content)) => json!({ "result": { "data": content, "encoding": "utf-8" } }),
                None => json!({ "error": { "code": -32008, "message": "it is gone" } }),
            };
        }
        let below = self.files.iter().filter_map(|(other, _)| match path {
            "" => Some(*other),
            path => other.strip_prefix(path)?.strip_prefix('/'),
        });
        let entries: BTreeSet<(&str, &str)> = below
            .map(|rest| match rest.split_once('/') {
                Some((folder, _)) => (folder, "directory"),
                None => (rest, "file"),
            })
            .collect();
        let entries = entries.into_iter().map(|(name, kind)| json!({ "name": name, "type": kind }));
        json!({ "result": { "entries": entries.collect::<Vec<_>>() } })
    }

    /// Answers all requests, and those that follow; `meddle` may change the world before an answer.
    fn serve(&mut self, outputs: Vec<Output>, mut meddle: impl FnMut(&mut Self, &str)) {
        let mut waiting = VecDeque::from(outputs);
        while let Some(output) = waiting.pop_front() {
            let Output::Frame(ME, Frame::Request { number, method, params }) = output else { continue };
            let params: Value = serde_json::from_slice(&params).unwrap();
            let path = params["uri"].as_str().unwrap()[URI.len()..].trim_start_matches('/').to_owned();
            let request = format!("{method} {path}");
            meddle(self, &request);
            let mut line = self.answer(method, &path);
            self.asked.push(request);
            (line["jsonrpc"], line["id"]) = ("2.0".into(), number.into());
            waiting.extend(self.reply(&line));
        }
    }

    fn reply(&mut self, line: &Value) -> Vec<Output> {
        let Incoming::Response(reply) = Incoming::parse(&line.to_string().into()) else { panic!("{line}") };
        let Self { ledger, plugins, relays, .. } = self;
        outputs_of(|step| {
            relays.reply(step, ME, reply);
            let answers = relays.take_fetched();
            plugins.answered(ledger, relays, step, answers);
        })
    }

    /// Returns the size of the contents of all fetches, in bytes.
    fn held(&self) -> usize {
        self.plugins.fetches.values().map(Fetch::bytes).sum()
    }

    fn load(&self, uri: &str) -> &PluginLoad {
        let session = self.ledger.channels.sessions.get(&SESSION).unwrap();
        &session.plugins.get(MY_ID, uri).unwrap().load
    }

    fn failure(&self) -> &str {
        match self.load(URI) {
            PluginLoad::Failed(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn loaded(&self) -> Vec<String> {
        match self.load(URI) {
            PluginLoad::Loaded(plugin) => parts(plugin),
            other => panic!("{other:?}"),
        }
    }
}

const FILES: [(&str, &str); 3] =
    [(".mcp.json", SERVERS), ("skills/sing/SKILL.md", SKILL), ("skills/sing/other.txt", "")];

#[test]
fn plugin_is_listed_read_and_listed_again_and_known_by_its_nonce() {
    let mut world = World::new(FILES.to_vec());
    let outputs = world.publish(&[(URI, Some("1"))]);
    assert!(matches!(world.load(URI), PluginLoad::Loading));
    world.serve(outputs, |_, _| {});
    assert_eq!(world.loaded(), ["skill Sing", "mcp web"]);
    let lists = ["resourceList ", "resourceList skills", "resourceList skills/sing"];
    let reads = ["resourceRead skills/sing/SKILL.md", "resourceRead .mcp.json"];
    assert_eq!(world.asked, [lists.as_slice(), &reads, &lists].concat());
    assert!(world.plugins.is_idle());
    // Published by the same client again, in the same version.
    world.publish(&[]);
    assert!(world.publish(&[(URI, Some("1"))]).is_empty());
    assert_eq!(world.loaded(), ["skill Sing", "mcp web"]);
    let outputs = world.publish(&[(URI, Some("2"))]);
    assert!(!outputs.is_empty() && matches!(world.load(URI), PluginLoad::Loading));
}

#[test]
fn only_files_of_the_plugins_layout_are_read() {
    let agent_plugin = r#"{"$schema":"https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"}"#;
    let claude_plugin = r#"{"skills":{"paths":[],"exclusive":true}}"#;
    let with_manifest = |path, content| {
        let mut files = vec![(path, content), ("mcp.json", SERVERS), ("agents/a.md", "")];
        files.extend(FILES);
        files
    };
    let reads = |files: Files| {
        let mut world = World::new(files);
        let outputs = world.publish(&[(URI, Some("1"))]);
        world.serve(outputs, |_, _| {});
        let reads = world.asked.iter().filter_map(|asked| asked.strip_prefix("resourceRead "));
        reads.map(str::to_owned).collect::<Vec<_>>()
    };
    let of_agent_plugin = reads(with_manifest("plugin.json", agent_plugin));
    assert_eq!(of_agent_plugin, ["plugin.json", "skills/sing/SKILL.md", "mcp.json"]);
    let of_claude_plugin = reads(with_manifest(".claude-plugin/plugin.json", claude_plugin));
    assert_eq!(of_claude_plugin, [".claude-plugin/plugin.json", "agents/a.md", ".mcp.json"]);
}

#[test]
fn file_that_is_no_text_costs_only_its_part() {
    let mut world = World::new(vec![("skills/bad/SKILL.md", NO_TEXT), ("skills/good/SKILL.md", "Do it.")]);
    let outputs = world.publish(&[(URI, Some("1"))]);
    world.serve(outputs, |_, _| {});
    let plugin = world.plugins.cache.back().unwrap().1.clone();
    assert_eq!(parts(&plugin), ["skill good"]);
    assert_eq!(plugin.problems, ["`skills/bad/SKILL.md` was left out: it is no text"]);
}

#[test]
fn file_that_is_found_at_two_places_is_read_and_counted_once() {
    let manifest = r#"{"commands":["./more/a.md","./more"]}"#;
    let mut world = World::new(vec![("plugin.json", manifest), ("more/a.md", "Do it.")]);
    let outputs = world.publish(&[(URI, Some("1"))]);
    world.serve(outputs, |_, _| {});
    let plugin = world.plugins.cache.back().unwrap().1.clone();
    assert_eq!((parts(&plugin), plugin.problems.len()), (vec!["prompt a".to_owned()], 0));
    assert_eq!(world.asked.iter().filter(|asked| asked.contains("a.md")).count(), 1, "{:?}", world.asked);
}

#[test]
fn plugin_that_changes_while_it_is_fetched_is_fetched_again_once() {
    // A file that is added while others are read, and one that is gone when it is to be read.
    for gone in [false, true] {
        let mut world = World::new(FILES.to_vec());
        let outputs = world.publish(&[(URI, Some("1"))]);
        let mut changes = 0;
        world.serve(outputs, |world, request| {
            if request == "resourceRead .mcp.json" && changes == 0 {
                changes += 1;
                world.files.push(("agents/new.md", ""));
                world.files.retain(|(path, _)| !gone || *path != ".mcp.json");
            }
        });
        let expected: &[&str] =
            if gone { &["agent new", "skill Sing"] } else { &["agent new", "skill Sing", "mcp web"] };
        assert_eq!(world.loaded(), expected);
    }
    let mut world = World::new(FILES.to_vec());
    let outputs = world.publish(&[(URI, Some("1"))]);
    let new = ["a.md", "b.md", "c.md", "d.md"];
    let mut changes = 0;
    world.serve(outputs, |world, request| {
        if request == "resourceRead .mcp.json" {
            world.files.push((new[changes], ""));
            changes += 1;
        }
    });
    assert_eq!((world.failure(), changes), ("it changed twice while it was fetched", 2));
}

#[test]
fn newer_publication_replaces_a_fetch() {
    let mut world = World::new(FILES.to_vec());
    let first = world.publish(&[(URI, Some("1"))]);
    let second = world.publish(&[(URI, Some("2"))]);
    world.serve(first, |_, _| {});
    assert!(matches!(world.load(URI), PluginLoad::Loading), "answers to the first one are ignored");
    world.serve(second, |_, _| {});
    assert_eq!(world.loaded().len(), 2);
    assert_eq!(world.plugins.cache.len(), 1);
}

#[test]
fn fetch_that_cannot_succeed_ends_with_a_sentence() {
    let nonsense = [
        (json!({ "result": { "entries": [{ "name": 1 }] } }), "answer of its client is invalid"),
        (json!({ "result": "x" }), "answer of its client is invalid"),
        (json!({ "error": { "code": -32000, "message": "no\u{7} luck" } }), "its client says: no luck"),
        (json!({ "error": { "code": -32008, "message": "none" } }), "it cannot be listed: none"),
        (
            json!({ "result": { "entries": (0..10_000).map(|at| json!({ "name": at.to_string(), "type": "file" }))
                .collect::<Vec<_>>() } }),
            "more than 2000 files and folders",
        ),
    ];
    for (mut answer, why) in nonsense {
        let mut world = World::new(Vec::new());
        world.publish(&[(URI, None)]);
        (answer["jsonrpc"], answer["id"]) = ("2.0".into(), 1.into());
        world.reply(&answer);
        assert!(world.failure().contains(why), "{}", world.failure());
        assert!(world.plugins.is_idle());
        assert!(world.follow().is_empty(), "it is not fetched again without a new publication");
    }
    let mut world = World::new(Vec::new());
    world.publish(&[("virtual:/p?q", None)]);
    assert!(matches!(world.load("virtual:/p?q"), PluginLoad::Failed(_)) && world.plugins.is_idle());
}

#[test]
fn plugin_that_could_not_be_loaded_is_fetched_again_when_it_is_published_again() {
    let mut world = World::new(FILES.to_vec());
    world.publish(&[(URI, Some("1"))]);
    world.reply(&json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32008, "message": "none" } }));
    assert!(!world.failure().is_empty());
    let plugins = &mut world.ledger.channels.sessions.get_mut(&SESSION).unwrap().plugins;
    assert!(!plugins.retry_failed("other") && plugins.retry_failed(MY_ID));
    let outputs = world.follow();
    world.serve(outputs, |_, _| {});
    assert_eq!(world.loaded().len(), 2);
    assert!(!world.ledger.channels.sessions.get_mut(&SESSION).unwrap().plugins.retry_failed(MY_ID));
}

#[test]
fn parts_that_say_too_much_are_not_read() {
    let large = "x".repeat(layouts::PARTS_BYTES_MAX / 2);
    let servers = json!({ "mcpServers": {
        "a": { "command": "a", "args": [large] }, "b": { "command": "b", "args": [large] },
        "c": { "command": "c" },
    } });
    let text = servers.to_string();
    let plugin = parsed(&[(".mcp.json", text.as_str()), ("skills/s/SKILL.md", "Do it.")]);
    assert_eq!(parts(&plugin), ["skill s", "mcp a"]);
    assert_eq!(plugin.problems, ["only the first 2 of its 4 parts are read"]);
}

#[test]
fn client_that_never_answers_is_given_up_and_one_that_is_back_is_asked_again() {
    let mut world = World::new(FILES.to_vec());
    world.publish(&[(URI, Some("1"))]);
    let World { ledger, plugins, relays, .. } = &mut world;
    outputs_of(|step| drop(plugins.timed_out(ledger, relays, step, 1)));
    assert!(world.failure().contains("within 30 seconds"), "{}", world.failure());
    world.publish(&[(URI, Some("2"))]);
    let World { ledger, plugins, relays, .. } = &mut world;
    ledger.presence.connections.clear();
    assert_eq!(plugins.connection_ended(ledger, relays, ME), [SESSION]);
    assert_eq!(world.failure(), DISCONNECTED);
    assert!(world.follow().is_empty() && world.plugins.returned(&world.ledger).is_empty());
    connect(&mut world.ledger, ME, MY_ID);
    assert_eq!(world.plugins.returned(&world.ledger), [SESSION]);
    let outputs = world.follow();
    world.serve(outputs, |_, _| {});
    assert_eq!(world.loaded().len(), 2);
}

#[test]
fn session_that_is_gone_leaves_no_fetch_and_no_awaited_client() {
    for is_absent in [false, true] {
        let mut world = World::new(FILES.to_vec());
        if is_absent {
            world.ledger.presence.connections.clear();
        }
        world.publish(&[(URI, Some("1"))]);
        assert!(!world.plugins.is_idle());
        world.ledger.channels.sessions.remove(&SESSION);
        world.follow();
        assert!(world.plugins.is_idle() && world.relays.pending() == 0);
    }
}

/// Returns the number of listings that a connection is asked for.
fn lists_on(connection: ConnectionId, outputs: &[Output]) -> usize {
    let is_list = |output: &&Output| matches!(output, Output::Frame(to, Frame::Request { method: "resourceList", .. }) if *to == connection);
    outputs.iter().filter(is_list).count()
}

#[test]
fn fetch_is_repeated_on_the_newer_connection_with_which_its_client_is_back() {
    for waits_for_access in [false, true] {
        let mut world = World::new(FILES.to_vec());
        let outputs = world.publish(&[(URI, Some("1"))]);
        if waits_for_access {
            world.reply(&denial(request_of(&outputs).0));
        }
        let newer = ConnectionId(ME.0 + 1);
        connect(&mut world.ledger, newer, MY_ID);
        let outputs = world.publish(&[(URI, Some("1"))]);
        assert_eq!(lists_on(newer, &outputs), 1, "{outputs:?}");
        assert_eq!(world.relays.pending(), 1, "the older connection is not awaited");
        assert!(world.follow().is_empty(), "the fetch goes on where it is");
        // The timer of the older fetch ends nothing.
        let World { ledger, plugins, relays, .. } = &mut world;
        outputs_of(|step| drop(plugins.timed_out(ledger, relays, step, 1)));
        assert!(matches!(world.load(URI), PluginLoad::Loading));
    }
}

#[test]
fn plugin_that_was_not_sent_in_time_is_fetched_again_when_its_client_has_a_newer_connection() {
    let mut world = World::new(FILES.to_vec());
    world.publish(&[(URI, Some("1"))]);
    let World { ledger, plugins, relays, .. } = &mut world;
    outputs_of(|step| drop(plugins.timed_out(ledger, relays, step, 1)));
    // Another client's publication changes nothing for this one.
    assert!(world.follow().is_empty() && world.plugins.returned(&world.ledger).is_empty());
    assert!(!world.failure().is_empty());
    let newer = ConnectionId(ME.0 + 1);
    connect(&mut world.ledger, newer, MY_ID);
    assert_eq!(world.plugins.returned(&world.ledger), [SESSION]);
    assert_eq!(lists_on(newer, &world.follow()), 1);
    assert!(matches!(world.load(URI), PluginLoad::Loading));
    world.publish(&[]);
    assert!(world.plugins.is_idle());
}

/// Answer by which VS Code says that its user may allow the access.
fn denial(id: u64) -> Value {
    let request = json!({ "channel": "ahp-root://", "uri": URI, "read": true });
    let error = json!({ "code": -32009, "message": "not granted", "data": { "request": request } });
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

fn requests_of(outputs: &[Output]) -> Vec<(u64, &'static str, Value)> {
    let requests = outputs.iter().filter_map(|output| match output {
        Output::Frame(ME, Frame::Request { number, method, params }) => {
            Some((*number, *method, serde_json::from_slice::<Value>(params).unwrap()))
        }
        _ => None,
    });
    requests.collect()
}

/// Returns the only request of these outputs.
fn request_of(outputs: &[Output]) -> (u64, &'static str, Value) {
    let [request] = requests_of(outputs).try_into().unwrap();
    request
}

#[test]
fn denied_access_is_requested_once_and_then_everything_is_fetched() {
    let mut world = World::new(FILES.to_vec());
    let outputs = world.publish(&[(URI, Some("1"))]);
    let asked = world.reply(&denial(request_of(&outputs).0));
    let (number, method, params) = request_of(&asked);
    assert_eq!((method, params["uri"].as_str()), ("resourceRequest", Some(URI)));
    // The user takes longer than a fetch may.
    let World { ledger, plugins, relays, .. } = &mut world;
    assert!(outputs_of(|step| drop(plugins.timed_out(ledger, relays, step, 1))).is_empty());
    assert!(!asked.iter().any(|output| matches!(output, Output::Timer(..))), "no timer runs");
    assert!(matches!(world.load(URI), PluginLoad::Loading));
    let outputs = world.reply(&json!({ "jsonrpc": "2.0", "id": number, "result": {} }));
    assert!(outputs.iter().any(|output| matches!(output, Output::Timer(Timer::Plugin(3), FETCH_TIMEOUT))));
    world.serve(outputs, |_, _| {});
    assert_eq!(world.loaded(), ["skill Sing", "mcp web"]);
}

#[test]
fn fetch_that_waits_for_access_holds_no_contents_and_awaits_no_other_answers() {
    let content =
        |id: u64| json!({ "jsonrpc": "2.0", "id": id, "result": { "data": SERVERS, "encoding": "utf-8" } });
    for is_answered in [true, false] {
        let mut world = World::new(FILES.to_vec());
        let mut outputs = world.publish(&[(URI, Some("1"))]);
        // Folders are listed one by one, files are read two by two.
        while let [(number, _, params)] = &requests_of(&outputs)[..] {
            let path = params["uri"].as_str().unwrap()[URI.len()..].trim_start_matches('/');
            let mut line = world.answer("resourceList", path);
            (line["jsonrpc"], line["id"]) = ("2.0".into(), (*number).into());
            outputs = world.reply(&line);
        }
        let [first, second] = requests_of(&outputs).try_into().unwrap();
        if is_answered {
            assert!(world.reply(&content(first.0)).is_empty());
            assert!(world.held() > 0);
        }
        let asked = request_of(&world.reply(&denial(second.0)));
        assert_eq!((asked.1, world.held(), world.relays.pending()), ("resourceRequest", 0, 1));
        let outputs = world.reply(&json!({ "jsonrpc": "2.0", "id": asked.0, "result": {} }));
        assert_eq!((request_of(&outputs).1, world.relays.pending()), ("resourceList", 1));
        assert!(world.reply(&content(first.0)).is_empty(), "an answer to the old fetch is ignored");
        world.serve(outputs, |_, _| {});
        assert_eq!(world.loaded(), ["skill Sing", "mcp web"]);
    }
}

#[test]
fn unanswered_requests_for_access_keep_no_reads_of_the_client_waiting() {
    let uris: Vec<String> = (0..32).map(|at| format!("{URI}{at}")).collect();
    let all: Vec<(&str, Option<&str>)> = uris.iter().map(|uri| (uri.as_str(), Some("1"))).collect();
    let mut world = World::new(Vec::new());
    let mut waiting = VecDeque::from(requests_of(&world.publish(&all)));
    while let Some((number, method, _)) = waiting.pop_front() {
        if method == "resourceList" {
            waiting.extend(requests_of(&world.reply(&denial(number))));
        }
    }
    assert_eq!(world.relays.pending(), uris.len());
    let client_id = Some(MY_ID);
    let server = FileServer { connection: ME, client_id, answers_nothing: false, is_leaving: false };
    let servers = FileServers { clients: vec![server], published: Vec::new() };
    let params = json!({ "channel": "ahp-root://", "uri": format!("virtual://{MY_ID}/x") });
    let params = Params::from_json(params.to_string());
    assert!(world.relays.route(Method::ResourceRead, &params, || servers).is_ok());
}

#[test]
fn fetches_that_wait_for_access_keep_no_others_waiting() {
    let uris: Vec<String> = (0..=FETCHES_MAX).map(|at| format!("{URI}{at}")).collect();
    let all: Vec<(&str, Option<&str>)> = uris.iter().map(|uri| (uri.as_str(), Some("1"))).collect();
    let mut world = World::new(Vec::new());
    world.publish(&all);
    let denied = world.reply(&denial(1));
    let requests = denied.iter().filter_map(|output| match output {
        Output::Frame(ME, Frame::Request { method, .. }) => Some(*method),
        _ => None,
    });
    assert_eq!(requests.collect::<Vec<_>>(), ["resourceList", "resourceRequest"]);
}

#[test]
fn access_that_is_denied_again_ends_the_fetch_with_the_reason() {
    // On request, or behind it.
    for granted in [false, true] {
        let mut world = World::new(FILES.to_vec());
        let outputs = world.publish(&[(URI, Some("1"))]);
        let asked = world.reply(&denial(request_of(&outputs).0));
        let mut number = request_of(&asked).0;
        if granted {
            let outputs = world.reply(&json!({ "jsonrpc": "2.0", "id": number, "result": {} }));
            number = request_of(&outputs).0;
        }
        assert!(world.reply(&denial(number)).is_empty());
        let why = if granted { "it cannot be listed" } else { "its client does not allow to read it" };
        assert!(world.failure().contains(why), "{}", world.failure());
        assert!(world.plugins.is_idle());
    }
    // A client that does not say so is not asked.
    let mut world = World::new(FILES.to_vec());
    world.publish(&[(URI, Some("1"))]);
    let denied =
        json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32009, "message": "no", "data": {} } });
    assert!(world.reply(&denied).is_empty());
    assert!(world.failure().contains("it cannot be listed"), "{}", world.failure());
}

/// Makes the client of a connection one that answers requests, or an older one.
fn answers(world: &mut World, connection: ConnectionId, answers: bool) {
    let client = world.ledger.presence.connections.get_mut(&connection).unwrap();
    client.abilities.answers_requests = answers;
}

#[test]
fn client_of_an_older_version_is_not_asked_before_it_is_back_in_a_newer_one() {
    let mut world = World::new(FILES.to_vec());
    world.ledger.presence.connections.clear();
    assert!(world.publish(&[(URI, Some("1"))]).is_empty());
    assert_eq!(world.failure(), DISCONNECTED);
    connect(&mut world.ledger, ME, MY_ID);
    answers(&mut world, ME, false);
    assert_eq!(world.plugins.returned(&world.ledger), [SESSION]);
    assert!(world.follow().is_empty());
    assert_eq!(world.failure(), TOO_OLD);
    assert!(world.plugins.returned(&world.ledger).is_empty(), "nothing has changed");
    answers(&mut world, ME, true);
    assert_eq!(world.plugins.returned(&world.ledger), [SESSION]);
    let outputs = world.follow();
    world.serve(outputs, |_, _| {});
    assert_eq!(world.loaded().len(), 2);
}

#[test]
fn client_is_asked_on_its_newest_connection_on_which_it_answers() {
    let mut world = World::new(FILES.to_vec());
    let newer = ConnectionId(ME.0 + 1);
    connect(&mut world.ledger, newer, MY_ID);
    answers(&mut world, newer, false);
    let outputs = world.publish(&[(URI, Some("1"))]);
    assert_eq!(requests_of(&outputs).len(), 1);
    answers(&mut world, newer, true);
    let outputs = world.publish(&[(URI, Some("2"))]);
    assert!(requests_of(&outputs).is_empty() && !outputs.is_empty());
}

const PARTS: [&str; 2] = ["virtual:/p#skill=Sing", "virtual:/p#mcp=web"];

#[test]
fn decisions_for_a_session_stay_while_the_plugin_is_not_loaded() {
    let mut world = World::new(FILES.to_vec());
    let outputs = world.publish(&[(URI, Some("1"))]);
    world.serve(outputs, |_, _| {});
    assert!(world.off().is_empty());
    for id in [URI, PARTS[0], PARTS[1]] {
        world.switch(id, json!([{ "kind": "session", "enabled": false }]));
    }
    let all = [URI, PARTS[0], PARTS[1]];
    assert_eq!(world.off(), all);
    // A fetch that fails, and another version.
    world.publish(&[(URI, Some("2"))]);
    let World { ledger, plugins, relays, .. } = &mut world;
    outputs_of(|step| drop(plugins.timed_out(ledger, relays, step, 2)));
    assert_eq!((world.off(), world.failure().is_empty()), (vec![URI.to_owned()], false));
    let outputs = world.publish(&[(URI, Some("3"))]);
    world.serve(outputs, |_, _| {});
    assert_eq!(world.off(), all);
    // The client is gone, and comes back.
    world.publish(&[]);
    assert!(world.off().is_empty());
    world.publish(&[(URI, Some("3"))]);
    assert_eq!(world.off(), all);
    // The session is stored; a row of an earlier version has the decisions in the list alone.
    let session = world.ledger.channels.sessions.get_mut(&SESSION).unwrap();
    let shown = shown_decisions(session.state.customizations.as_deref().unwrap());
    let stored = serde_json::to_value(&session.decided).unwrap();
    assert_eq!(stored, json!({ MY_ID: { URI: { "": false, "mcp=web": false, "skill=Sing": false } } }));
    assert_eq!(shown, session.decided);
    session.plugins = SessionPlugins::default();
    world.plugins = Plugins::default();
    let outputs = world.follow();
    assert_eq!(world.off(), [URI]);
    world.serve(outputs, |_, _| {});
    assert_eq!(world.off(), all);
}

#[test]
fn decision_for_all_sessions_is_about_the_same_plugin_whatever_its_id() {
    let mut world = World::new(FILES.to_vec());
    let outputs = world.publish(&[(URI, Some("1"))]);
    world.serve(outputs, |_, _| {});
    assert!(world.off().is_empty());
    for id in PARTS {
        world.switch(id, json!([{ "kind": "global", "enabled": false }]));
    }
    assert_eq!(world.off(), PARTS);
    let publish = |world: &mut World, client: &str, id: &str, uri: &str| {
        let plugin = json!({ "type": "plugin", "id": id, "uri": uri, "name": "P", "nonce": "1" });
        let outputs = world.activate(json!({ "clientId": client, "tools": [], "customizations": [plugin] }));
        world.serve(outputs, |_, _| {});
    };
    publish(&mut world, MY_ID, URI, "virtual:/q");
    assert!(world.off().is_empty(), "another plugin with this id");
    publish(&mut world, MY_ID, "other", URI);
    assert_eq!(world.off(), ["other#skill=Sing", "other#mcp=web"]);
    // Those about other parts than servers are for their session alone.
    let stored = serde_json::to_value(&world.ledger.channels.root.decisions).unwrap();
    assert_eq!(stored, json!({ "plugin:virtual:/p#mcp=web": { "global": false } }));
    // The decision for a session comes first.
    world.switch("other#skill=Sing", json!([{ "kind": "session", "enabled": true }]));
    assert_eq!(world.off(), ["other#mcp=web"]);
}

#[test]
fn decision_for_one_session_leaves_what_is_published_for_others_to_the_publisher() {
    let mut world = World::new(FILES.to_vec());
    let session = world.ledger.channels.sessions.get_mut(&SESSION).unwrap();
    session.state.working_directories = Some(vec!["file:///f".to_owned()]);
    let for_others = json!([{ "kind": "workspace", "uri": "file:///f", "enabled": false },
        { "kind": "global", "enabled": false }]);
    let plugin = json!({ "type": "plugin", "id": URI, "uri": URI, "name": "P", "nonce": "1",
        "enablement": for_others });
    world.activate(json!({ "clientId": MY_ID, "tools": [], "customizations": [plugin] }));
    assert_eq!(world.off(), [URI]);
    world.switch(URI, json!([{ "kind": "session", "enabled": true }, { "kind": "ahpSidecar.otherScopes" }]));
    assert!(world.off().is_empty());
    assert!(world.ledger.channels.root.decisions.is_empty());
}

#[test]
fn server_that_is_stopped_is_that_of_one_plugin_whatever_its_id() {
    let mut world = World::new(FILES.to_vec());
    let publish = |world: &mut World, uri: &str| {
        let plugin = json!({ "type": "plugin", "id": "p", "uri": uri, "name": "P", "nonce": "1" });
        let outputs = world.activate(json!({ "clientId": MY_ID, "tools": [], "customizations": [plugin] }));
        world.serve(outputs, |_, _| {});
        world.show();
    };
    world.ledger.channels.root.client_mcp = ClientMcp::All;
    publish(&mut world, URI);
    let (ledger, mut agents) = (&mut world.ledger, registry(&[agent("script", "")]));
    let stop = json!({ "type": "session/mcpServerStopRequested", "id": "p#mcp=web" });
    let stop = serde_json::from_value(stop).unwrap();
    outputs_of(|step| {
        let changed =
            customizations::client_changes_customization(ledger, &mut agents, step, SESSION, stop, origin());
        changed.unwrap();
    });
    let given = |world: &mut World| customizations::servers_for_conversation(&mut world.ledger, CHAT).0;
    assert_eq!(given(&mut world), Vec::<String>::new());
    publish(&mut world, "virtual:/q");
    assert_eq!(given(&mut world), ["p#mcp=web"]);
}

#[test]
fn decisions_for_a_session_count_as_published_until_clients_decide_and_when_they_change() {
    let mut world = World::new(FILES.to_vec());
    let outputs = world.publish_with_parts_off("1", &["Sing", "web"]);
    world.serve(outputs, |_, _| {});
    assert_eq!(world.off(), PARTS, "also when the plugin is fetched");
    world.switch(PARTS[1], json!([]));
    assert_eq!(world.off(), PARTS[..1]);
    let outputs = world.publish_with_parts_off("2", &["Sing", "web"]);
    world.serve(outputs, |_, _| {});
    assert_eq!(world.off(), PARTS[..1], "they are published as before");
    let outputs = world.publish_with_parts_off("3", &["web"]);
    world.serve(outputs, |_, _| {});
    assert!(world.off().is_empty(), "what is published about the server is as before");
    for (nonce, off) in [("4", &[][..]), ("5", &["web"])] {
        let outputs = world.publish_with_parts_off(nonce, off);
        world.serve(outputs, |_, _| {});
    }
    assert_eq!(world.off(), PARTS[1..]);
}

#[test]
fn fetches_of_a_client_and_its_plugins_are_limited() {
    let uris: Vec<String> = (0..40).map(|at| format!("{URI}{at}")).collect();
    let all: Vec<(&str, Option<&str>)> = uris.iter().map(|uri| (uri.as_str(), Some("1"))).collect();
    let mut world = World::new(Vec::new());
    let outputs = world.publish(&all);
    let requests = outputs.iter().filter(|output| matches!(output, Output::Frame(..)));
    assert_eq!(requests.count(), FETCHES_MAX);
    let session = world.ledger.channels.sessions.get(&SESSION).unwrap();
    assert_eq!(session.plugins.0.len(), PLUGINS_MAX);
    // The next one begins when one is over.
    let next = world.reply(&json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32008, "message": "" } }));
    assert!(
        matches!(next[..], [Output::Timer(Timer::Plugin(5), FETCH_TIMEOUT), Output::Frame(..)]),
        "{next:?}"
    );
    world.publish(&[]);
    assert!(world.plugins.is_idle());
}

#[test]
fn fetches_of_one_client_that_wait_are_limited() {
    let mut world = World::new(Vec::new());
    connect(&mut world.ledger, ConnectionId(7), "other");
    answers(&mut world, ConnectionId(7), true);
    let key = |client: &str, at: usize| PluginKey {
        client_id: client.to_owned(),
        uri: format!("virtual:/{at}"),
        nonce: None,
    };
    let mut load = |key: PluginKey| match world.plugins.load(&world.ledger, SESSION, &key) {
        PluginLoad::Loading => String::new(),
        PluginLoad::Failed(why) => why,
        PluginLoad::Loaded(_) => panic!("{key:?}"),
    };
    for at in 0..256 {
        assert_eq!(load(key(MY_ID, at)), "");
    }
    assert_eq!(load(key(MY_ID, 0)), "", "it is being fetched already");
    assert!(load(key(MY_ID, 256)).contains("too many plugins of its client are being fetched"));
    assert_eq!(load(key("other", 256)), "");
}

#[test]
fn fetches_are_matched_to_connections_again_only_when_these_have_changed() {
    let mut world = World::new(Vec::new());
    let mut is_changed = |change: fn(&mut World)| {
        change(&mut world);
        let World { ledger, plugins, .. } = &mut world;
        [plugins.connections_changed(ledger), plugins.connections_changed(ledger)]
    };
    let changes: [fn(&mut World); 5] = [
        |_| {},
        |world| answers(world, ME, false),
        |world| connect(&mut world.ledger, ConnectionId(7), "other"),
        |world| connect(&mut world.ledger, ConnectionId(7), MY_ID),
        |world| assert!(world.ledger.presence.leaving.insert(ME)),
    ];
    for change in changes {
        assert_eq!(is_changed(change), [true, false]);
    }
}

#[test]
fn warning_about_plugins_beyond_the_limit_is_logged_once_per_publication() {
    let uris: Vec<String> = (0..40).map(|at| format!("{URI}{at}")).collect();
    let publication = |nonce| uris.iter().map(|uri| (uri.as_str(), Some(nonce))).collect::<Vec<_>>();
    let warnings = |log: String| log.matches("only the first 32 of 40").count();
    let mut world = World::new(Vec::new());
    assert_eq!(warnings(logged(|| world.publish(&publication("1"))).1), 1);
    assert_eq!(warnings(logged(|| world.follow()).1), 0);
    assert_eq!(warnings(logged(|| world.publish(&publication("2"))).1), 1);
}
