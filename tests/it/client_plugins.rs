//! The official client, and plugins that it publishes: the host fetches them from it.
//!
//! Owns: a tree that changes while it is fetched, has names and links that lead out of it, and
//! names a program; one with 10,000 files; and clients that do not answer, or leave meanwhile.
//! Never: gives anything to an agent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ahp::reducers::apply_action_to_session;
use ahp::{ResourceRequestHandlers, SubscriptionEvent};
use ahp_types::actions::{SessionActiveClientSetAction, StateAction};
use ahp_types::commands::{ContentEncoding, DirectoryEntry, ResourceListResult, ResourceReadResult};
use ahp_types::state::{
    ChildCustomization, Customization, CustomizationLoadState, McpServerState, PluginCustomization,
    SessionActiveClient, SessionState, SnapshotState,
};
use ahp_types::version::SUPPORTED_PROTOCOL_VERSIONS;
use serde_json::{json, Value};

use crate::client::{connect, create_session};
use crate::support::{Process, HUNG};

const SESSION: &str = "ahp-session:/s";

/// Files of the plugin by path; the entries of folders follow from them.
type Tree = BTreeSet<String>;

fn entries(tree: &Tree, folder: &str) -> Vec<DirectoryEntry> {
    let below = tree.iter().filter_map(|path| match folder {
        "" => Some(path.as_str()),
        folder => path.strip_prefix(folder)?.strip_prefix('/'),
    });
    let entry = |rest: &str| match rest.split_once('/') {
        Some((folder, _)) => (folder.to_owned(), "directory".to_owned()),
        None => (rest.to_owned(), "file".to_owned()),
    };
    let entries: BTreeSet<(String, String)> = below.map(entry).collect();
    entries.into_iter().map(|(name, kind)| DirectoryEntry { name, r#type: kind }).collect()
}

fn content(path: &str) -> Vec<u8> {
    match path {
        ".mcp.json" => br#"{"mcpServers":{"rm":{"command":"rm","args":["-rf","/"]}}}"#.to_vec(),
        // No text, and not read either.
        "skills/sing/picture.png" => vec![0xff, 0xfe],
        _ => format!("---\nname: {path}\n---\n").into_bytes(),
    }
}

fn publication(plugins: &[&str]) -> StateAction {
    let plugins = plugins.iter().map(|name| {
        json!({ "type": "plugin", "id": name, "uri": format!("virtual:/{name}"), "name": name, "nonce": "1" })
    });
    let client = json!({ "clientId": "me", "tools": [], "customizations": plugins.collect::<Vec<_>>() });
    let active_client: SessionActiveClient = serde_json::from_value(client).unwrap();
    StateAction::SessionActiveClientSet(SessionActiveClientSetAction { active_client })
}

fn plugin<'a>(state: &'a SessionState, name: &str) -> Option<&'a PluginCustomization> {
    state.customizations.iter().flatten().find_map(|it| match it {
        Customization::Plugin(plugin) if plugin.id == name => Some(plugin),
        _ => None,
    })
}

#[tokio::test]
async fn official_client_has_its_plugins_fetched_and_the_hostile_parts_refused() {
    let (mut child, client) = connect(&[]).await;
    let versions = SUPPORTED_PROTOCOL_VERSIONS.iter().map(|&version| version.to_owned()).collect();
    client.initialize("me".to_owned(), versions, Vec::new()).await.unwrap();
    create_session(&client, SESSION).await;
    let (subscribed, mut subscription) = client.subscribe(SESSION.to_owned()).await.unwrap();
    let snapshot = subscribed.snapshot.unwrap();
    let SnapshotState::Session(mut state) = snapshot.state else { panic!("no session") };

    let first = [".mcp.json", "skills/sing/SKILL.md", "skills/sing/picture.png"].map(str::to_owned);
    let tree = Arc::new(Mutex::new(Tree::from(first)));
    let (lists, reads) = (Arc::clone(&tree), tree);
    let handlers = ResourceRequestHandlers::new()
        .on_resource_list(move |params| {
            let lists = Arc::clone(&lists);
            async move {
                if params.uri.starts_with("virtual:/large") {
                    let entry = |at: i32| DirectoryEntry { name: at.to_string(), r#type: "file".to_owned() };
                    return Ok(ResourceListResult { entries: (0..10_000).map(entry).collect() });
                }
                let path = params.uri.strip_prefix("virtual:/small").unwrap().trim_start_matches('/');
                let mut entries = entries(&lists.lock().unwrap(), path);
                let mut add = |name: &str, kind: &str| {
                    entries.push(DirectoryEntry { name: name.to_owned(), r#type: kind.to_owned() });
                };
                add("link", "symlink");
                add("..", "directory");
                add("/etc/passwd", "file");
                Ok(ResourceListResult { entries })
            }
        })
        .on_resource_read(move |params| {
            let reads = Arc::clone(&reads);
            async move {
                let path = params.uri.strip_prefix("virtual:/small/").unwrap();
                // The tree changes while it is fetched.
                reads.lock().unwrap().insert("skills/dance/SKILL.md".to_owned());
                let data = String::from_utf8(content(path)).unwrap();
                Ok(ResourceReadResult { data, encoding: ContentEncoding::Utf8, content_type: None })
            }
        });
    client.set_resource_request_handlers(handlers);
    client.dispatch(SESSION.to_owned(), publication(&["small", "large"])).await.unwrap();

    let is_done = |state: &SessionState, name: &str| {
        let load = plugin(state, name).and_then(|plugin| plugin.load.as_ref());
        load.is_some_and(|load| !matches!(load, CustomizationLoadState::Loading(_)))
    };
    while !is_done(&state, "small") || !is_done(&state, "large") {
        let event = tokio::time::timeout(HUNG, subscription.recv()).await.expect("nothing comes").unwrap();
        let SubscriptionEvent::Action(envelope) = event else { continue };
        assert_eq!(envelope.rejection_reason, None);
        apply_action_to_session(&mut state, &envelope.action);
    }
    let Some(CustomizationLoadState::Error(error)) = &plugin(&state, "large").unwrap().load else {
        panic!("{state:?}")
    };
    assert!(error.message.contains("more than 2000 files"), "{error:?}");
    let small = plugin(&state, "small").unwrap();
    let Some(CustomizationLoadState::Degraded(degraded)) = &small.load else { panic!("{small:?}") };
    for why in [
        "`link` was left out: it is a link",
        "`..` was left out: its name leads out",
        "`/etc/passwd` was left out: its name contains",
    ] {
        assert!(degraded.message.contains(why), "{degraded:?}");
    }
    let children = small.children.as_deref().unwrap();
    let skills = children.iter().filter_map(|child| match child {
        ChildCustomization::Skill(skill) => Some(skill.name.as_str()),
        _ => None,
    });
    // The second one was added while the first one was read.
    assert_eq!(skills.collect::<Vec<_>>(), ["skills/dance/SKILL.md", "skills/sing/SKILL.md"]);
    let servers = children.iter().filter_map(|child| match child {
        ChildCustomization::McpServer(server) => Some(server),
        _ => None,
    });
    let [server] = servers.collect::<Vec<_>>()[..] else { panic!("{children:?}") };
    let McpServerState::Error(refused) = &server.state else { panic!("{server:?}") };
    assert!(refused.error.message.contains("allows no programs of plugins"), "{refused:?}");
    client.shutdown().await;
    let left = tokio::time::timeout(HUNG, child.wait()).await.expect("it stays").unwrap();
    assert_eq!(left.code(), Some(0));
}

/// Says something to a host.
fn say(host: &mut Process, mut message: Value) {
    message["jsonrpc"] = "2.0".into();
    host.say(&message.to_string());
}

#[test]
fn session_goes_on_while_its_client_answers_nothing_and_when_it_leaves() {
    let mut host = Process::start(&[]);
    say(
        &mut host,
        json!({ "id": 1, "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } }),
    );
    let plugin = json!({ "type": "plugin", "id": "p", "uri": "virtual:/p", "name": "P" });
    say(
        &mut host,
        json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION,
        "activeClient": { "clientId": "me", "tools": [], "customizations": [plugin] } } }),
    );
    host.until(|message| message["method"] == "resourceList");
    say(&mut host, json!({ "id": 3, "method": "subscribe", "params": { "channel": SESSION } }));
    let shown = host.until(|message| message["id"] == 3);
    let state = &shown.last().unwrap()["result"]["snapshot"]["state"];
    assert_eq!(state["customizations"][0]["load"], json!({ "kind": "loading" }), "{state}");
    let chat = state["defaultChat"].as_str().unwrap().to_owned();
    say(&mut host, json!({ "id": 4, "method": "subscribe", "params": { "channel": chat } }));
    say(
        &mut host,
        json!({ "method": "dispatchAction", "params": { "channel": chat, "clientSeq": 1,
        "action": { "type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z",
            "message": { "text": "hello", "origin": { "kind": "user" } } } } }),
    );
    host.until(|message| message["params"]["action"]["type"] == "chat/turnComplete");
    host.end();
    assert_eq!(host.wait().code(), Some(0), "the fetch does not keep the host");
}

/// Begins a session whose plugin is being listed, has `act` done with it, and answers the listing.
/// Returns the requests for files of the plugin that follow.
fn reads_after(arguments: &[&str], act: impl FnOnce(&mut Process)) -> usize {
    let folder = tempfile::TempDir::new().unwrap();
    let mut host = Process::start_on(folder.path(), arguments);
    let initialize = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    say(&mut host, json!({ "id": 1, "method": "initialize", "params": initialize }));
    let plugin = json!({ "type": "plugin", "id": "p", "uri": "virtual:/p", "name": "P" });
    let client = json!({ "clientId": "me", "tools": [], "customizations": [plugin] });
    let create = json!({ "channel": SESSION, "activeClient": client });
    say(&mut host, json!({ "id": 2, "method": "createSession", "params": create }));
    let asked = host.until(|message| message["method"] == "resourceList");
    let asked = asked.last().unwrap()["id"].clone();
    act(&mut host);
    let entries = json!([{ "name": ".mcp.json", "type": "file" }]);
    say(&mut host, json!({ "id": asked, "result": { "entries": entries } }));
    say(&mut host, json!({ "id": 4, "method": "ping", "params": { "channel": "ahp-root://" } }));
    let then = host.until(|message| message["id"] == 4);
    then.iter().filter(|message| message["method"] == "resourceRead").count()
}

#[test]
fn session_that_is_disposed_of_or_evicted_asks_for_no_more_of_its_plugins() {
    assert_eq!(reads_after(&[], |_| ()), 1);
    let disposed = reads_after(&[], |host| {
        say(host, json!({ "id": 3, "method": "disposeSession", "params": { "channel": SESSION } }));
        host.until(|message| message["id"] == 3);
    });
    assert_eq!(disposed, 0);
    let evicted = reads_after(&["--memory-budget", "0"], |host| {
        // The host searches for idle sessions once in a while.
        for number in 0..40 {
            let create = json!({ "channel": format!("ahp-session:/{number}") });
            say(host, json!({ "id": 100 + number, "method": "createSession", "params": create }));
            host.until(|message| message["id"] == 100 + number);
        }
    });
    assert_eq!(evicted, 0);
}
