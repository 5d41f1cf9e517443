//! MCP servers of the configuration file, and of the files of other programs that it names.
//!
//! Owns: their forms: `[mcp.NAME]` in TOML, `.mcp.json`, and `mcp.json` of VS Code; and what is
//! wrong with an entry, which is kept with the entry, so that it costs no other one.
//! Never: reads a file that the operator has not named, reads a secret that an entry refers to, or
//! repeats a value of an entry in an error.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ahp_types::state::{TextPosition, TextRange};
use anyhow::{bail, Context};
use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};
use toml::Value as Toml;

use super::is_name;
use crate::backend::acp::ModelProvider;
use crate::backend::acp::CLIENT_TOOLS_SERVER;
use crate::backend::mcp::{McpServer, McpTransport, SecretText, TextPiece};
use crate::files::small;
use crate::files::uris::uri_of;
use crate::os::paths;
use crate::wire::text;

/// Maximum number of servers; the rest is dropped, with a warning.
const SERVERS_MAX: usize = 100;

/// Names of the folders of editors, which are in the folder of a project.
const EDITOR_FOLDERS: [&str; 2] = [".vscode", ".cursor"];

/// Reads the servers of a configuration file with this text, then those of the named files. Of
/// servers with one name, the first one counts. An unusable file is a server with the reason.
pub(super) fn servers(
    entries: &BTreeMap<String, Toml>,
    files: &[PathBuf],
    (text, path): (&str, &Path),
) -> Vec<McpServer> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let ranges = if entries.is_empty() { BTreeMap::new() } else { ranges(text) };
    let uri = if entries.is_empty() { String::new() } else { uri_of(path) };
    let mut all: Vec<McpServer> = Vec::new();
    for (name, entry) in entries {
        let read = check_name(name).and_then(|()| entry_of_toml(entry, folder));
        // A broken server is shown where it would be offered.
        let agents = || agents_of_toml(entry).unwrap_or_default();
        let read = read.unwrap_or_else(|why| ServerEntry { agents: agents(), ..ServerEntry::broken(&why) });
        all.push(read.named(name, &uri, ranges.get(name).cloned()));
    }
    for file in files {
        let file = folder.join(file);
        let is_new = |all: &[McpServer], name: &str| all.iter().all(|known| known.name != name);
        match servers_of_file(&file) {
            Ok(servers) => {
                for server in servers {
                    if is_new(&all, &server.name) {
                        all.push(server);
                    }
                }
            }
            Err(why) => {
                // Files in several folders may have one name.
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let names = [name, file.display().to_string()];
                // A file that is named twice is shown once.
                if let Some(name) = names.iter().find(|name| is_new(&all, name)) {
                    all.push(ServerEntry::broken(&why).named(name, &uri_of(&file), None));
                }
            }
        }
    }
    if all.len() > SERVERS_MAX {
        tracing::warn!("only the first {SERVERS_MAX} of {} configured MCP servers are offered", all.len());
        all.truncate(SERVERS_MAX);
    }
    all
}

/// Entry without its name.
struct ServerEntry {
    transport: Result<McpTransport, String>,
    agents: Option<BTreeSet<String>>,
    enabled: bool,
}

impl ServerEntry {
    fn of(transport: McpTransport) -> Self {
        Self { transport: Ok(transport), agents: None, enabled: true }
    }

    fn broken(why: &anyhow::Error) -> Self {
        Self { transport: Err(text::message(&format!("{why:#}"))), agents: None, enabled: true }
    }

    fn named(self, name: &str, uri: &str, range: Option<TextRange>) -> McpServer {
        let Self { transport, agents, enabled } = self;
        McpServer {
            name: name.to_owned(),
            client_id: None,
            uri: uri.to_owned(),
            range,
            agents,
            enabled,
            transport,
        }
    }
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_name(name) {
        bail!("the name must be a letter, followed by letters, digits, `-`, `_` and `.`");
    }
    if name == CLIENT_TOOLS_SERVER {
        bail!("the name is reserved for the server of clients' tools: choose another one");
    }
    Ok(())
}

fn entry_of_toml(section: &Toml, folder: &Path) -> anyhow::Result<ServerEntry> {
    let entry = section.as_table().context("it is not a section: write `[mcp.NAME]` above its members")?;
    let known = ["command", "args", "env", "url", "headers", "type", "agents", "enabled"];
    if let Some(other) = entry.keys().find(|member| !known.contains(&member.as_str())) {
        bail!("`{other}` is no member of a server; there are: {}", known.join(", "));
    }
    let text =
        |member: &str, value: &Toml| text_of_toml(value, folder).with_context(|| format!("`{member}`"));
    let map = |member: &str| -> anyhow::Result<BTreeMap<String, SecretText>> {
        let Some(map) = entry.get(member) else { return Ok(BTreeMap::new()) };
        let map = map.as_table().with_context(|| format!("`{member}` must be a table"))?;
        map.iter()
            .map(|(name, value)| Ok((name.clone(), text(&format!("{member}.{name}"), value)?)))
            .collect()
    };
    let list = |member: &str| -> anyhow::Result<&[Toml]> {
        let Some(list) = entry.get(member) else { return Ok(&[]) };
        list.as_array().map(Vec::as_slice).with_context(|| format!("`{member}` must be a list"))
    };
    let kind = entry.get("type").map(|kind| kind.as_str().context("`type` must be a text")).transpose()?;
    let transport = match (entry.get("command"), entry.get("url"), kind) {
        (Some(command), None, None | Some("stdio")) => {
            let command = command.as_str().context("`command` must be a text")?;
            let args = list("args")?.iter().map(|value| text("args", value));
            let args = args.collect::<anyhow::Result<_>>()?;
            only_of(entry.contains_key("headers"), "headers", "url")?;
            let (command, folder) = (SecretText::literal(command), folder.to_owned());
            McpTransport::Stdio { command: program(command)?, folder, args, env: map("env")? }
        }
        (None, Some(url), None | Some("http" | "sse")) => {
            only_of(entry.contains_key("env"), "env", "command")?;
            only_of(entry.contains_key("args"), "args", "command")?;
            McpTransport::Url { url: text("url", url)?, headers: map("headers")?, sse: kind == Some("sse") }
        }
        (_, _, kind) => return wrong_transport(kind),
    };
    let enabled = entry.get("enabled").map(|it| it.as_bool().context("`enabled` must be `true` or `false`"));
    let (agents, enabled) = (agents_of_toml(section)?, enabled.transpose()?.unwrap_or(true));
    Ok(ServerEntry { agents, enabled, ..ServerEntry::of(transport) })
}

/// Returns the provider of an agent's models that a section describes.
pub(super) fn provider_of(section: &Toml, folder: &Path) -> anyhow::Result<ModelProvider> {
    let entry = section.as_table().context("it must be a section")?;
    if let Some(other) = entry.keys().find(|member| !["api", "url", "headers"].contains(&member.as_str())) {
        bail!("`{other}` is no member of a provider; there are: api, url, headers");
    }
    let api = entry.get("api").and_then(Toml::as_str).context("`api` must be a text, such as \"openai\"")?;
    let url = entry.get("url").context("it needs a `url`")?;
    let headers = match entry.get("headers") {
        Some(headers) => headers.as_table().context("`headers` must be a table")?.clone(),
        None => Default::default(),
    };
    let headers = headers.iter().map(|(name, value)| {
        let value = text_of_toml(value, folder).with_context(|| format!("`headers.{name}`"))?;
        Ok((name.clone(), value))
    });
    Ok(ModelProvider {
        api: api.to_owned(),
        url: text_of_toml(url, folder).context("`url`")?,
        headers: headers.collect::<anyhow::Result<_>>()?,
    })
}

/// Returns the agents that an entry names; `None` if it names none.
fn agents_of_toml(entry: &Toml) -> anyhow::Result<Option<BTreeSet<String>>> {
    const FORM: &str = "`agents` must be a list of names";
    let Some(agents) = entry.get("agents") else { return Ok(None) };
    let agents = agents.as_array().context(FORM)?.iter();
    let names = agents.map(|name| name.as_str().map(str::to_owned).context(FORM));
    names.collect::<anyhow::Result<_>>().map(Some)
}

fn only_of(is_there: bool, member: &str, of: &str) -> anyhow::Result<()> {
    if is_there {
        bail!("`{member}` belongs to a server with a `{of}`");
    }
    Ok(())
}

fn wrong_transport<T>(kind: Option<&str>) -> anyhow::Result<T> {
    match kind {
        Some("stdio") => bail!("`type = \"stdio\"` needs a `command`, and no `url`"),
        Some("http" | "sse") => bail!("a server of this `type` needs a `url`, and no `command`"),
        Some(_) => bail!("`type` must be `stdio`, `http` or `sse`"),
        None => bail!("it needs either a `command` or a `url`"),
    }
}

/// Reads a text, or a reference to one: `{ env = "NAME" }` or `{ file = "PATH" }`, perhaps with a
/// `prefix`.
fn text_of_toml(value: &Toml, folder: &Path) -> anyhow::Result<SecretText> {
    const FORM: &str = "it must be a text, `{ env = \"NAME\" }` or `{ file = \"PATH\" }`, \
        where `prefix` may precede the value";
    let Toml::Table(reference) = value else {
        return Ok(SecretText::literal(value.as_str().context(FORM)?));
    };
    let member = |name: &str| reference.get(name).map(|it| it.as_str().context(FORM)).transpose();
    let piece = match (member("env")?, member("file")?) {
        (Some(name), None) => TextPiece::Variable { name: name.to_owned(), default: None },
        (None, Some(path)) => TextPiece::File(folder.join(path)),
        _ => bail!(FORM),
    };
    let prefix = member("prefix")?.map(|prefix| TextPiece::Literal(prefix.to_owned()));
    if reference.len() > 1 + usize::from(prefix.is_some()) {
        bail!(FORM);
    }
    Ok(SecretText(prefix.into_iter().chain([piece]).collect()))
}

fn program(command: SecretText) -> anyhow::Result<SecretText> {
    if command == SecretText::literal("") {
        bail!("`command` is empty");
    }
    Ok(command)
}

/// Returns the places of the sections `[mcp.NAME]` in a file, by name.
fn ranges(text: &str) -> BTreeMap<String, TextRange> {
    let Ok(file) = DeTable::parse(text) else { return BTreeMap::new() };
    let Some(DeValue::Table(servers)) = file.get_ref().get("mcp").map(|mcp| mcp.get_ref()) else {
        return BTreeMap::new();
    };
    let place = |at: usize| -> TextPosition {
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count();
        // In units of UTF-16, as in the Language Server Protocol.
        let column = before.rsplit('\n').next().unwrap_or("").encode_utf16().count();
        let [line, character] = [line, column].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        TextPosition { line, character }
    };
    let range = |key: std::ops::Range<usize>, value: std::ops::Range<usize>| {
        let line = text.get(..key.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
        TextRange { start: place(line), end: place(value.end.max(key.end)) }
    };
    let servers = servers.iter();
    servers.map(|(name, entry)| (name.get_ref().to_string(), range(name.span(), entry.span()))).collect()
}

/// Reads the servers of a file of another program.
fn servers_of_file(path: &Path) -> anyhow::Result<Vec<McpServer>> {
    let entries = entries_of_file(path)?;
    let (uri, base) = (uri_of(path), base_of(path));
    let server = |(name, entry): (&String, &Json)| {
        let read = check_name(name).and_then(|()| entry_of_json(entry, &base));
        read.unwrap_or_else(|why| ServerEntry::broken(&why)).named(name, &uri, None)
    };
    Ok(entries.iter().map(server).collect())
}

fn entries_of_file(path: &Path) -> anyhow::Result<serde_json::Map<String, Json>> {
    let text = small::open(path).and_then(small::read).context("the file cannot be read")?;
    // Editors of Windows begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut file: Json = serde_json::from_str(&without_comments(text)).map_err(|error| {
        anyhow::anyhow!("the file is not JSON: line {}, column {}", error.line(), error.column())
    })?;
    for member in ["mcpServers", "servers"] {
        if let Some(Json::Object(entries)) = file.get_mut(member).map(Json::take) {
            return Ok(entries);
        }
    }
    bail!("the file has neither `mcpServers` nor `servers`")
}

/// Returns the folder to which the paths in a file are relative: that of the project.
fn base_of(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new(""));
    let is_editors = folder.file_name().is_some_and(|name| EDITOR_FOLDERS.iter().any(|it| name == *it));
    folder.parent().filter(|_| is_editors).unwrap_or(folder).to_owned()
}

fn entry_of_json(entry: &Json, base: &Path) -> anyhow::Result<ServerEntry> {
    for unsupported in ["envFile", "cwd"] {
        if entry.get(unsupported).is_some() {
            bail!("`{unsupported}` is not supported");
        }
    }
    let text = |member: &str, value: &Json| -> anyhow::Result<SecretText> {
        let text = value.as_str().with_context(|| format!("`{member}` must be a text"))?;
        text_with_variables(text, base).with_context(|| format!("`{member}`"))
    };
    let map = |member: &str| -> anyhow::Result<BTreeMap<String, SecretText>> {
        let Some(map) = entry.get(member) else { return Ok(BTreeMap::new()) };
        let map = map.as_object().with_context(|| format!("`{member}` must be an object"))?;
        map.iter()
            .map(|(name, value)| Ok((name.clone(), text(&format!("{member}.{name}"), value)?)))
            .collect()
    };
    let kind = entry.get("type").map(|kind| kind.as_str().unwrap_or_default());
    let transport = match (entry.get("command"), entry.get("url"), kind) {
        (Some(command), None, None | Some("stdio")) => {
            let (command, folder) = (program(text("command", command)?)?, base.to_owned());
            let args = match entry.get("args") {
                None => Vec::new(),
                Some(args) => args.as_array().context("`args` must be a list")?.clone(),
            };
            let args = args.iter().map(|value| text("args", value)).collect::<anyhow::Result<_>>()?;
            McpTransport::Stdio { command, folder, args, env: map("env")? }
        }
        (None, Some(url), None | Some("http" | "streamable-http" | "sse")) => {
            McpTransport::Url { url: text("url", url)?, headers: map("headers")?, sse: kind == Some("sse") }
        }
        (_, _, kind) => return wrong_transport(kind),
    };
    let enabled = entry.get("disabled") != Some(&Json::Bool(true));
    Ok(ServerEntry { enabled, ..ServerEntry::of(transport) })
}

/// Replaces the placeholders of both formats: `${NAME}`, `${NAME:-default}`, `${env:NAME}`,
/// `${workspaceFolder}` and `${userHome}`.
fn text_with_variables(text: &str, base: &Path) -> anyhow::Result<SecretText> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, (inner, after))) =
        rest.split_once("${").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        if !before.is_empty() {
            pieces.push(TextPiece::Literal(before.to_owned()));
        }
        let variable = |name: &str, default: Option<&str>| TextPiece::Variable {
            name: name.to_owned(),
            default: default.map(str::to_owned),
        };
        let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, it)| (name, Some(it)));
        let is_variable =
            |name: &str| !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
        pieces.push(match inner {
            "workspaceFolder" => TextPiece::Literal(base.display().to_string()),
            "userHome" => match paths::home() {
                Some(home) => TextPiece::Literal(home.display().to_string()),
                None => variable("HOME", None),
            },
            _ => match inner.split_once(':') {
                Some(("env", name)) if is_variable(name) => variable(name, Some("")),
                Some(("input", _)) => bail!("it asks for an input, which this host cannot ask for"),
                _ if is_variable(name) => variable(name, default),
                _ => bail!("it has a placeholder that this host does not know"),
            },
        });
        rest = after;
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(TextPiece::Literal(rest.to_owned()));
    }
    Ok(SecretText(pieces))
}

/// Replaces comments and trailing commas, which VS Code allows in JSON, by spaces.
fn without_comments(text: &str) -> String {
    let mut plain: Vec<char> = Vec::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    let mut comma = None;
    while let Some(next) = rest.next() {
        match (next, rest.peek()) {
            ('"', _) => {
                comma = None;
                plain.push(next);
                while let Some(inner) = rest.next() {
                    plain.push(inner);
                    match inner {
                        '\\' => plain.extend(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                continue;
            }
            ('/', Some('/')) => while rest.next_if(|it| *it != '\n').is_some() {},
            ('/', Some('*')) => {
                let mut before = ' ';
                // Lines stay, for the places in errors.
                for inner in rest.by_ref() {
                    plain.extend((inner == '\n').then_some('\n'));
                    if (before, inner) == ('*', '/') {
                        break;
                    }
                    before = inner;
                }
            }
            _ => {
                match (next, comma) {
                    (',', _) => comma = Some(plain.len()),
                    (']' | '}', Some(at)) => {
                        plain[at] = ' ';
                        comma = None;
                    }
                    _ if next.is_whitespace() => {}
                    _ => comma = None,
                }
                plain.push(next);
            }
        }
    }
    plain.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_toml(text: &str) -> Vec<McpServer> {
        let file: Toml = toml::from_str(text).unwrap();
        let entries = file["mcp"].as_table().unwrap().clone().into_iter().collect();
        servers(&entries, &[], (text, Path::new("/etc/config.toml")))
    }

    fn problem_of(text: &str) -> String {
        of_toml(text)[0].transport.clone().unwrap_err()
    }

    #[test]
    fn section_sets_all_members_of_a_server() {
        let text = "# é\n[mcp.one]\ncommand = 'bin/one'\nargs = ['-x', { env = 'A' }]\n\
            env = { K = { file = 'key' }, L = 'l' }\nagents = ['a']\nenabled = false\n\n\
            [mcp.two]\nurl = 'https://two/'\ntype = 'sse'\n[mcp.two.headers]\n\
            Authorization = { env = 'T', prefix = 'Bearer ' }\n";
        let all = of_toml(text);
        let [one, two] = &all[..] else { panic!("{all:?}") };
        let variable = |name: &str| TextPiece::Variable { name: name.to_owned(), default: None };
        let key = SecretText(vec![TextPiece::File("/etc/key".into())]);
        let env = [("K".to_owned(), key), ("L".to_owned(), SecretText::literal("l"))];
        let (command, folder) = (SecretText::literal("bin/one"), "/etc".into());
        let args = vec![SecretText::literal("-x"), SecretText(vec![variable("A")])];
        let env = env.into_iter().collect();
        assert_eq!(one.transport, Ok(McpTransport::Stdio { command, folder, args, env }));
        assert_eq!((one.uri.as_str(), one.enabled), ("file:///etc/config.toml", false));
        assert!(one.is_for("a") && !one.is_for("b") && two.is_for("b") && !two.is_for("script"));
        let place = |range: &TextRange| [range.start.line, range.start.character, range.end.line];
        let lines = [one, two].map(|it| it.range.as_ref().map(place));
        assert_eq!(lines[0].map(|it| it[..2].to_vec()), Some(vec![1, 0]), "{lines:?}");
        assert_eq!(lines[1].map(|it| it[0]), Some(8), "{lines:?}");
        let bearer = SecretText(vec![TextPiece::Literal("Bearer ".to_owned()), variable("T")]);
        let headers = BTreeMap::from([("Authorization".to_owned(), bearer)]);
        let url = SecretText::literal("https://two/");
        assert_eq!(two.transport, Ok(McpTransport::Url { url, headers, sse: true }));
        assert_eq!((one.variables(), two.variables()), (vec!["A"], vec!["T"]));
    }

    #[test]
    fn broken_entry_has_a_reason_without_its_values_and_costs_no_other() {
        for (entry, why) in [
            ("", "either a `command` or a `url`"),
            ("command = 'c0ffee'\nurl = 'c0ffee'", "either a `command` or a `url`"),
            ("command = ''", "empty"),
            ("command = 7", "`command` must be a text"),
            ("command = 'x'\nargs = 'c0ffee'", "`args` must be a list"),
            ("command = 'x'\nenv = 'c0ffee'", "`env` must be a table"),
            ("command = 'x'\nenv = { A = { env = 'A', x = 'c0ffee' } }", "`env.A`"),
            ("command = 'x'\nheaders = {}", "`headers` belongs to a server with a `url`"),
            ("url = 'c0ffee'\ntype = 'stdio'", "needs a `command`"),
            ("url = 'c0ffee'\ntype = 'c0ffee'", "`type` must be"),
            ("command = 'x'\nagents = 'c0ffee'", "`agents` must be a list"),
            ("command = 'x'\nenabled = 'c0ffee'", "`enabled`"),
            ("command = 'x'\ncomand = 'c0ffee'", "`comand` is no member"),
        ] {
            let text = format!("[mcp.a]\n{entry}\n[mcp.b]\ncommand = 'b'\n");
            let message = problem_of(&text);
            assert!(message.contains(why) && !message.contains("c0ffee"), "{entry}: {message}");
            assert!(of_toml(&text)[1].transport.is_ok());
        }
        assert!(problem_of("[mcp.ahpclient]\ncommand = 'x'").contains("reserved"));
        assert!(problem_of("[mcp.'a b']\ncommand = 'x'").contains("the name must be"));
        assert!(problem_of("[mcp]\na = 'x'").contains("not a section"));
    }

    fn of_json(name: &str, text: &str) -> Vec<McpServer> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        let mut all = servers(&BTreeMap::new(), &[file], ("", Path::new("/etc/config.toml")));
        for server in &mut all {
            if let Ok(McpTransport::Stdio { folder: its, .. }) = &mut server.transport {
                *its = its.strip_prefix(folder.path()).unwrap().to_owned();
            }
        }
        all
    }

    #[test]
    fn files_of_other_programs_are_understood() {
        let claude = of_json(
            ".mcp.json",
            "\u{feff}{ \"mcpServers\": { \"one\": { \"command\": \"./${A}\", \"args\": [\"${A}\", \"x${B:-b}y\"] },
                 \"two\": { \"type\": \"http\", \"url\": \"https://two/\", \"headers\": { \"K\": \"Bearer ${T}\" } } } }",
        );
        let [one, two] = &claude[..] else { panic!("{claude:?}") };
        let Ok(McpTransport::Stdio { command, args, .. }) = &one.transport else { panic!("{one:?}") };
        assert!(command.is_reference() && args.len() == 2, "a variable is read when it is needed");
        assert_eq!(args[1].read().unwrap(), "xby");
        assert_eq!((one.variables(), two.variables()), (vec!["A", "A", "B"], vec!["T"]));
        let code = of_json(
            ".vscode/mcp.json",
            r#"{ // of the project
                 "inputs": [], "servers": { "one": { "type": "stdio", "command": "${workspaceFolder}/one",
                   "args": ["${userHome}/x"], "env": { "A": "${env:A}", "B": "//no comment, }" }, },
                 "two": { "type": "stdio", "command": "two", "env": { "K": "${input:key}" } },
                 "three": { "command": "three", "disabled": true } /* all */ } }"#,
        );
        let code: BTreeMap<&str, &McpServer> = code.iter().map(|it| (it.name.as_str(), it)).collect();
        let Ok(McpTransport::Stdio { command, folder, args, env }) = &code["one"].transport else {
            panic!("{code:?}")
        };
        assert_eq!(folder, Path::new(""));
        assert!(command.read().unwrap().ends_with("/one") && !command.is_reference());
        assert_eq!(env["B"], SecretText::literal("//no comment, }"));
        let home = TextPiece::Literal(paths::home().unwrap().display().to_string());
        assert_eq!(args[0], SecretText(vec![home, TextPiece::Literal("/x".to_owned())]));
        assert!(code["two"].transport.as_ref().unwrap_err().contains("asks for an input"));
        assert!(!code["three"].enabled && code["one"].enabled);
    }

    #[test]
    fn unusable_file_is_one_server_with_the_reason() {
        for (text, why) in [("{", "not JSON: line 1"), ("{}", "neither `mcpServers` nor `servers`")] {
            let all = of_json("mcp.json", text);
            assert_eq!((all.len(), all[0].name.as_str()), (1, "mcp.json"));
            assert!(all[0].transport.as_ref().unwrap_err().contains(why), "{all:?}");
        }
        let missing = servers(&BTreeMap::new(), &["no/such.json".into()], ("", Path::new("/etc/c.toml")));
        assert!(missing[0].transport.as_ref().unwrap_err().contains("cannot be read"), "{missing:?}");
    }

    #[test]
    fn each_unusable_file_is_a_server_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.toml");
        for (name, text) in [("a", "{"), ("b", "{}")] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("mcp.json"), text).unwrap();
        }
        let files = ["a/mcp.json", "b/mcp.json", "c/mcp.json"].map(PathBuf::from);
        let all = servers(&BTreeMap::new(), &files, ("", &config));
        let whys = ["not JSON", "neither `mcpServers` nor `servers`", "cannot be read"];
        assert_eq!(all.len(), whys.len(), "{all:?}");
        for (server, why) in all.iter().zip(whys) {
            assert!(server.transport.as_ref().unwrap_err().contains(why), "{all:?}");
        }
        let names: BTreeSet<&str> = all.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
    }
}
