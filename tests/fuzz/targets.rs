//! Targets: parsers that outsiders reach, each with its seeds and laws.
//!
//! Owns: the list of the targets, and what must hold for every input of each.
//! Never: changes an input, or reads a file besides those of the corpus.

use std::collections::BTreeMap;

use ahp_sidecar::backend::acp::replay::{Replay, ReplayLimits};
use ahp_sidecar::codec::{InputLine, LineCodec};
use ahp_sidecar::files::uris::{path_of, uri_of};
use ahp_sidecar::git::index::read_status;
use ahp_sidecar::git::settings::GitSettings;
use ahp_sidecar::host::effects::{ActionLine, ConnectionId, Frame};
use ahp_sidecar::host::plugins::read_files;
use ahp_sidecar::host::rows::ChatBody;
use ahp_sidecar::io::ptys::scanner::{OutputScanner, Scanned};
use ahp_sidecar::state::history::CompletedTurn;
use ahp_sidecar::transcripts::form::TranscriptFile;
use ahp_sidecar::versions::dialect::Dialect;
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::action_lines::{split_lines, DeltaLines};
use ahp_sidecar::wire::changesets::{changeset_uri, parse_changeset_uri};
use ahp_sidecar::wire::references::MessageReferences;
use ahp_sidecar::wire::rpc::{error_line, Incoming};
use ahp_sidecar::wire::terminals::{parse_terminal_uri, terminal_uri};
use ahp_sidecar::wire::watches::Watched;
use ahp_sidecar::wire::{escapes, text, uris};
use ahp_types::actions::ActionEnvelope;
use bytes::{Bytes, BytesMut};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio_util::codec::Decoder;

/// A parser under test.
pub struct Target {
    pub name: &'static str,
    /// Time of an execution, as a multiple of that of a small one.
    pub cost: u64,
    /// Makes the corpus of the texts of all transcripts.
    pub seeds: fn(&[String]) -> Vec<Vec<u8>>,
    /// Panics if the input breaks a law.
    pub check: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "lines", cost: 1, seeds: whole, check: lines },
    Target { name: "json-rpc", cost: 1, seeds: client_lines, check: json_rpc },
    Target { name: "actions", cost: 1, seeds: host_lines, check: actions },
    Target { name: "turns", cost: 1, seeds: turns, check: stored_turns },
    Target { name: "rows", cost: 1, seeds: rows, check: stored_rows },
    Target { name: "plugins", cost: 1, seeds: plugins, check: plugin },
    Target { name: "uris", cost: 1, seeds: uris_in, check: all_uris },
    Target { name: "texts", cost: 1, seeds: whole, check: texts },
    Target { name: "terminal", cost: 1, seeds: terminals, check: terminal },
    Target { name: "git-status", cost: 1, seeds: statuses, check: git_status },
    Target { name: "git-settings", cost: 1, seeds: settings, check: git_settings },
    Target { name: "toml", cost: 1, seeds: configurations, check: toml },
    Target { name: "transcripts", cost: 4, seeds: whole, check: transcript },
    Target { name: "versions-up", cost: 4, seeds: client_lines, check: versions_up },
    Target { name: "versions-down", cost: 4, seeds: host_lines, check: versions_down },
    Target { name: "acp-history", cost: 1, seeds: updates, check: acp_history },
];

fn whole(transcripts: &[String]) -> Vec<Vec<u8>> {
    transcripts.iter().map(|text| text.clone().into_bytes()).collect()
}

fn after<'a>(transcripts: &'a [String], mark: &'a str) -> impl Iterator<Item = &'a str> {
    transcripts.iter().flat_map(|text| text.lines()).filter_map(move |line| line.strip_prefix(mark))
}

fn client_lines(transcripts: &[String]) -> Vec<Vec<u8>> {
    after(transcripts, "> ").map(|line| line.as_bytes().to_vec()).collect()
}

fn host_lines(transcripts: &[String]) -> Vec<Vec<u8>> {
    after(transcripts, "< ").map(|line| line.as_bytes().to_vec()).collect()
}

/// Every value in lines of the host that passes a filter.
fn values(transcripts: &[String], take: &mut dyn FnMut(&Value)) {
    fn each(value: &Value, take: &mut dyn FnMut(&Value)) {
        take(value);
        match value {
            Value::Array(items) => items.iter().for_each(|item| each(item, take)),
            Value::Object(members) => members.values().for_each(|member| each(member, take)),
            _ => {}
        }
    }
    for line in after(transcripts, "< ") {
        serde_json::from_str(line).iter().for_each(|value| each(value, take));
    }
}

fn turns(transcripts: &[String]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    values(transcripts, &mut |value| {
        if value.get("responseParts").is_some() && value.get("message").is_some() {
            all.push(value.to_string().into_bytes());
        }
    });
    all
}

fn rows(transcripts: &[String]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    values(transcripts, &mut |value| {
        if value.get("turns").is_some_and(Value::is_array) && value.get("title").is_some() {
            let row =
                json!({ "state": value, "bornAt": 1, "titleBy": "user", "removedTurns": [], "consumed": [] });
            all.push(row.to_string().into_bytes());
        }
    });
    all
}

/// Files of plugins in all layouts: each path and each content ends with NUL.
fn plugins(_: &[String]) -> Vec<Vec<u8>> {
    let document =
        "---\nname: a\ndescription: |\n  what\n  it does\nallowed-tools: [a, \"b\"]\n---\nDo it.\n";
    let server =
        r#"{"mcpServers":{"s":{"command":"${PLUGIN_ROOT}/s","args":["-v"]},"h":{"url":"https://s/mcp"}}}"#;
    let manifest = r#"{"name":"p","version":"1","commands":["./more","c.md"],"mcpServers":"./servers.json"}"#;
    let trees = [
        [("plugin.json", manifest), ("c.md", document), ("servers.json", server)],
        [(".claude-plugin/plugin.json", manifest), ("commands/a/b.md", document), (".mcp.json", server)],
        [("skills/s/SKILL.md", document), ("agents/a.md", document), ("hooks/hooks.json", r#"{"hooks":{}}"#)],
        [(".github/plugin/plugin.json", manifest), ("more/x.prompt.md", document), ("servers.json", server)],
    ];
    let joined = trees
        .iter()
        .map(|files| files.iter().map(|(path, text)| format!("{path}\0{text}\0")).collect::<String>());
    joined.map(String::into_bytes).collect()
}

fn uris_in(transcripts: &[String]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    values(transcripts, &mut |value| {
        all.extend(value.as_str().filter(|text| text.contains(":/")).map(|uri| uri.as_bytes().to_vec()));
    });
    all
}

fn terminals(_: &[String]) -> Vec<Vec<u8>> {
    let texts = [
        "\u{1b}]633;A\u{7}$ \u{1b}]633;B\u{7}ls\r\n\u{1b}]633;C\u{7}a\tb\r\n\u{1b}]633;D;0\u{7}",
        "\u{1b}[2J\u{1b}[1;1H\u{1b}[31mred\u{1b}[0m\u{1b}[?1049h\u{1b}[6n\u{1b}P$qm\u{1b}\\",
        "ä\u{8}\u{8}\r\n\u{1b}7\u{1b}[999;999H\u{1b}8\u{1b}c\u{1b}(0lqk\u{1b}(B\u{9b}5A",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn statuses(_: &[String]) -> Vec<Vec<u8>> {
    let texts = [
        "# branch.oid 0123\0# branch.head main\0# branch.upstream o/main\0# branch.ab +1 -2\0\
         1 .M N... 100644 100644 100644 0123456789012345678901234567890123456789 0123456789012345678901234567890123456789 a b\0\
         ? new\0! ignored/\0",
        "2 R. N... 100644 100644 100644 0123 0123 R100 new\0old\0u UU N... 100644 100644 100644 100644 1 2 3 both\0",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn settings(_: &[String]) -> Vec<Vec<u8>> {
    let texts = [
        "[core]\n\tbare = false\n\tpager = \"less \\\"-R\\\"\" ; words\n[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n",
        "[a.b]c\n[branch \"x\\\\y\"] remote = o # end\n\tmerge = refs/heads/\\\n  x\n[include] path = ~/x\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn configurations(_: &[String]) -> Vec<Vec<u8>> {
    let texts = [
        "mcp_files = [\"a.json\"]\n[agents.a]\ncommand = \"x\"\nargs = [\"-v\"]\nenv = { A = \"b\" }\ntitle = \"A\"\n",
        "[mcp.s]\nurl = \"https://s\"\nheaders = { A = \"b\" }\n[run]\nallow = [\"command=ls\"]\n[mcp.t]\ncommand = \"t\"\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Lines do not depend on how the bytes are split.
fn lines(input: &[u8]) {
    let read = |size: usize| {
        let (mut codec, mut buffer, mut lines) = (LineCodec::new(100), BytesMut::new(), Vec::new());
        for chunk in input.chunks(size) {
            buffer.extend_from_slice(chunk);
            while let Ok(Some(line)) = codec.decode(&mut buffer) {
                lines.push(line);
            }
        }
        while let Ok(Some(line)) = codec.decode_eof(&mut buffer) {
            lines.push(line);
        }
        lines
    };
    let whole = read(usize::MAX);
    assert_eq!(whole, read(7));
    for line in &whole {
        let (InputLine::Complete(line) | InputLine::Unterminated(line)) = line else { continue };
        assert!(line.len() <= 100 && !line.contains(&b'\n'));
    }
}

/// Each line is a message or has an error, which is a line of JSON.
fn json_rpc(input: &[u8]) {
    let line = Bytes::copy_from_slice(input);
    let message = Incoming::parse(&line);
    let _names: MessageReferences = MessageReferences::of(&message);
    if let Incoming::Malformed { id, error } = &message {
        // The id may be any number, also one that no type holds.
        let answer = error_line(id.as_ref(), error);
        let IgnoredAny = serde_json::from_slice(&answer).unwrap();
    }
}

/// Lines of deltas are cut at their ends and nowhere else.
fn actions(input: &[u8]) {
    let line = Bytes::copy_from_slice(input);
    let pieces: Vec<Bytes> = split_lines(&line).collect();
    assert!(pieces.iter().map(Bytes::len).sum::<usize>() <= input.len());
    if let Some(lines) = DeltaLines::read(line) {
        let mut texts = Vec::new();
        lines.push_texts(&mut texts);
        assert!(lines.each().count() >= 1);
    }
}

/// A stored turn is refused, or read as what it is.
fn stored_turns(input: &[u8]) {
    if let Ok(turn) = CompletedTurn::from_stored(Bytes::copy_from_slice(input)) {
        assert_eq!(turn.text().as_ref(), input);
        let (_facts, _edits) = (turn.facts(), turn.edits());
        if let Some(read) = turn.read() {
            assert_eq!(read.id, turn.id());
        }
    }
}

/// The row of a chat is refused, or written as it was read.
fn stored_rows(input: &[u8]) {
    if let Ok(row) = ChatBody::read(input) {
        let written = row.to_json();
        assert_eq!(ChatBody::read(&written).unwrap().to_json(), written);
    }
}

/// Every part of a plugin is one of its files, and reasons are lines of text.
fn plugin(input: &[u8]) {
    let mut texts = input.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
    let files: BTreeMap<String, String> = std::iter::from_fn(|| texts.next().zip(texts.next())).collect();
    let Ok(contents) = read_files(&files) else { return };
    for path in &contents.parts {
        assert!(files.contains_key(path) && !path.split('/').any(|name| name == ".."), "{path:?}");
    }
    assert!(
        contents.problems.iter().all(|problem| !problem.contains(char::is_control)),
        "{:?}",
        contents.problems
    );
}

/// Parts of a URI give the same parts when they are written and read again.
fn all_uris(input: &[u8]) {
    let Ok(uri) = std::str::from_utf8(input) else { return };
    if let Some((chat, number)) = parse_terminal_uri(uri) {
        assert_eq!(parse_terminal_uri(&terminal_uri(&chat, number)), Some((chat, number)));
    }
    if let Some((session, scope)) = parse_changeset_uri(uri) {
        let again = changeset_uri(session, &scope);
        assert_eq!(parse_changeset_uri(&again), Some((session, scope)), "{again}");
    }
    if let Some(watched) = Watched::from_channel(uri) {
        assert_eq!(Watched::from_channel(&watched.channel()), Some(watched));
    }
    if let Ok(path) = path_of(uri) {
        assert!(path.is_absolute(), "{}", path.display());
        let again = uri_of(&path);
        assert_eq!(path_of(&again).unwrap(), path, "{again}");
    }
    if let Some(session) = uris::session_of_default_chat(uri) {
        assert_eq!(uris::session_of_default_chat(&uris::default_chat_of(&session)), Some(session));
    }
    let _parts = (uris::plain_session(uri), uris::session_of_chat(uri), uris::parse_content_uri(uri));
    let _forms = (uris::file_of_content(uri), uris::content_with_path_first(uri), uris::is_root(uri));
}

/// Texts are cut between characters, and escaped as JSON has it.
fn texts(input: &[u8]) {
    let given = String::from_utf8_lossy(input);
    let half = given.len() / 2;
    assert!(text::first_bytes(&given, half).len() <= half && text::last_bytes(&given, half).len() <= half);
    let mut json = vec![b'"'];
    text::push_escaped(&mut json, &given);
    json.push(b'"');
    assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), given);
    assert_eq!(text::escaped_bytes(&given), json.len() - 2);
    assert!(!escapes::plain_text(&given).contains('\u{1b}'));
    assert!(escapes::cut_position(input, half) <= input.len());
    assert!(escapes::whole_characters(input).len() <= input.len());
}

/// Text of a terminal does not depend on how its output is split, and no byte is lost.
fn terminal(input: &[u8]) {
    let scan = |size: usize| {
        let (mut scanner, mut text, mut whole) = (OutputScanner::default(), Vec::new(), Vec::new());
        let mut take = |scanned: Scanned<'_>| match scanned {
            Scanned::Text(piece) => {
                text.extend_from_slice(piece);
                whole.extend_from_slice(piece);
            }
            Scanned::Sequence(piece)
            | Scanned::Opaque(piece)
            | Scanned::Osc { whole: piece, .. }
            | Scanned::Dcs { whole: piece, .. } => whole.extend_from_slice(piece),
        };
        for chunk in input.chunks(size) {
            scanner.scan(chunk, &mut take);
        }
        scanner.finish(&mut take);
        (text, whole)
    };
    let (text, whole) = scan(usize::MAX);
    assert_eq!((&text, &whole), (&scan(1).0, &scan(3).1));
    assert_eq!(whole, input);
}

fn git_status(input: &[u8]) {
    let _status = read_status(input);
}

/// Settings that are written are read as the same ones.
fn git_settings(input: &[u8]) {
    let Ok(settings) = GitSettings::parse(input) else { return };
    for setting in settings.iter() {
        let Some(lines) = setting.lines() else { continue };
        let again = GitSettings::parse(&lines).unwrap();
        let again: Vec<_> = again.iter().map(|it| (&it.key, &it.value)).collect();
        assert_eq!(again, [(&setting.key, &setting.value)], "{}", String::from_utf8_lossy(&lines));
    }
}

/// Every fault of a configuration is a sentence.
fn toml(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Err(error) = ahp_sidecar::config::check_text(text, std::path::Path::new("/config.toml")) {
        assert!(!format!("{error:#}").is_empty());
    }
}

fn transcript(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _transcript = TranscriptFile::parse(text);
}

/// A message of any version is translated, whatever it says.
fn versions_up(input: &[u8]) {
    let Some((first, line)) = input.split_first() else { return };
    let dialect = Dialect::ALL[usize::from(*first) % Dialect::ALL.len()];
    let (mut edges, mut fed) = (Edges::new(vec!["script".to_owned()]), Vec::new());
    edges.open(ConnectionId(1), Some(dialect));
    edges.up(ConnectionId(1), Incoming::parse(&Bytes::copy_from_slice(line)), &mut fed);
    edges.close(ConnectionId(1));
}

/// An action that the core may send is valid JSON for a client of any version.
fn versions_down(input: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Value>(input) else { return };
    let Ok(envelope) = serde_json::from_value::<ActionEnvelope>(message["params"].clone()) else { return };
    let (line, server_seq) = (Bytes::from(message.to_string()), envelope.server_seq);
    for dialect in Dialect::ALL {
        let (mut edges, mut lines) = (Edges::new(vec!["script".to_owned()]), Vec::new());
        edges.open(ConnectionId(1), Some(*dialect));
        let action = ActionLine { line: line.clone(), server_seq, delta: None };
        edges.down(ConnectionId(1), &Frame::Action(action), &mut lines);
        for line in lines {
            assert!(serde_json::from_slice::<Value>(&line).is_ok(), "{dialect:?}: {line:?}");
        }
    }
}

fn updates(transcripts: &[String]) -> Vec<Vec<u8>> {
    let text = |kind: &str, text: &str| {
        format!(r#"{{"sessionUpdate":"{kind}","content":{{"type":"text","text":{text:?}}}}}"#)
    };
    let call =
        r#"{"sessionUpdate":"tool_call","toolCallId":"1","title":"ls","kind":"execute","status":"pending"}"#;
    let done = r#"{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","content":[{"type":
        "diff","path":"/a","oldText":"x","newText":"y"}]}"#;
    let plan = r#"{"sessionUpdate":"plan","entries":[{"content":"a","priority":"high","status":"pending"}]}"#;
    let whole = [&text("user_message_chunk", "go"), &text("agent_message_chunk", "I go"), call, done, plan]
        .join("\n");
    let said = client_lines(transcripts).into_iter().take(20);
    [whole.into_bytes()].into_iter().chain(said).collect()
}

/// Updates that an agent replays give turns that can be stored and read.
fn acp_history(input: &[u8]) {
    let mut replay = Replay::new(ReplayLimits::default());
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(update) = serde_json::from_slice::<Box<RawValue>>(line) {
            replay.update(&update);
        }
    }
    for turn in replay.finish("ended").turns {
        let stored = CompletedTurn::from_stored(turn.text()).unwrap();
        assert!(stored.read().is_some());
    }
}
