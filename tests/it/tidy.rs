//! Checks of the source tree and of its documentation.
//!
//! Owns: that the README, its chapters and the tables of the code say the same, that examples run,
//! that links lead somewhere, and that the pure modules stay pure.
//! Never: tests behaviour.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ahp_sidecar::help::CHAPTERS;
use ahp_sidecar::host::client_actions;
use ahp_sidecar::versions::{chain::STEPS, dialect::Dialect, quirks::QUIRKS};
use ahp_sidecar::wire::errors::RpcError;
use ahp_sidecar::wire::methods::Method;

use crate::support::NO_HOME;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn readme() -> String {
    read("README.md")
}

/// The chapters, each beside the code that it describes.
const PROTOCOL: &str = "src/host/README.md";
const VERSIONS: &str = "src/versions/README.md";
const BUILT_IN: &str = "src/backend/README.md";
const AGENTS: &str = "src/backend/acp/README.md";

/// Pages for readers of the code, which `ahp-sidecar help` does not print.
const PAGES_ABOUT_THE_CODE: [&str; 2] = ["src/FIRST_MESSAGE.md", "src/GLOSSARY.md"];

/// The rows of the first table under a heading of a chapter, each as its cells, without that of the
/// names.
fn table(chapter: &str, heading: &str) -> Vec<Vec<String>> {
    let text = read(chapter);
    let section = text.split(&format!("\n## {heading}\n")).nth(1).expect("the heading is there");
    let section = section.split("\n## ").next().unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| -> Vec<String> {
        let row = row.strip_prefix('|').unwrap().strip_suffix('|').expect("a row ends with |");
        row.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = rows.skip(2).map(cells).collect();
    assert!(!rows.is_empty(), "no table under {heading}");
    let width = rows[0].len();
    assert!(rows.iter().all(|row| row.len() == width), "the rows under {heading} are not alike");
    rows
}

/// Returns the text between backticks.
fn quoted(cell: &str) -> &str {
    cell.strip_prefix('`')
        .and_then(|cell| cell.strip_suffix('`'))
        .unwrap_or_else(|| panic!("{cell} is no name"))
}

/// The names in the first column of a table.
fn first_column(chapter: &str, heading: &str) -> BTreeSet<String> {
    table(chapter, heading).iter().map(|row| quoted(&row[0]).to_owned()).collect()
}

pub fn files_under(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "nothing under {folder}");
    files
}

/// Number of actions of the protocol: the variants of `ahp_types::actions::StateAction`.
const ACTIONS: usize = 106;

#[test]
fn every_method_is_listed_and_no_other() {
    let rows = table(PROTOCOL, "Methods");
    let listed: BTreeSet<&str> = rows.iter().map(|row| quoted(&row[0])).collect();
    let served = Method::ALL.iter().map(|method| method.name());
    assert_eq!(listed, served.collect());
    assert_eq!(rows.len(), listed.len());
}

#[test]
fn every_method_is_called_once_in_the_examples() {
    let examples = read("fixtures/demo/methods.txt");
    let said = examples.lines().filter_map(|line| line.strip_prefix("> "));
    let called: BTreeSet<String> = said
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["method"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(called, Method::ALL.iter().map(|method| method.name().to_owned()).collect());
}

#[test]
fn every_error_code_is_listed() {
    let listed: BTreeSet<i32> =
        table(PROTOCOL, "Errors").iter().map(|row| quoted(&row[0]).parse().unwrap()).collect();
    let all = [
        RpcError::parse_error(""),
        RpcError::invalid_request(""),
        RpcError::not_initialized(""),
        RpcError::method_not_found(""),
        RpcError::invalid_params(""),
        RpcError::internal("a reason"),
        RpcError::unavailable(""),
        RpcError::channel_not_found(""),
        RpcError::resource_not_found(""),
        RpcError::unknown_client(),
        RpcError::permission_denied(""),
        RpcError::terminal_denied(""),
        RpcError::own_file(""),
        RpcError::change_denied("", true),
        RpcError::file_exists(""),
        RpcError::conflict(""),
        RpcError::not_committed(""),
        RpcError::files_have_changed(""),
        RpcError::partly_reverted(""),
        RpcError::of_client("", RpcError::conflict("")),
        RpcError::auth_required("", &[]),
        RpcError::provider_not_found(""),
        RpcError::session_already_exists(""),
        RpcError::session_goes_on_already("", ""),
        RpcError::already_exists(""),
        RpcError::turn_in_progress(""),
        RpcError::unsupported_protocol_version(&[]),
    ];
    let source = read("src/wire/errors.rs");
    assert_eq!(
        source.matches("    pub fn ").count(),
        all.len() + 1,
        "one that makes no error: is_about_the_message"
    );
    assert_eq!(listed, all.iter().map(|error| error.code).collect());
}

/// Tells whether the core emits an action rather than only applying it.
fn says(action: &str) -> bool {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let variant = action.split('/').map(capital).collect::<String>();
    files_under("src/host")
        .into_iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .any(|source| source.contains(&format!("StateAction::{variant}(")))
}

#[test]
fn host_actions_are_listed_with_whether_they_are_sent() {
    let by_clients = first_column(PROTOCOL, "What clients may change");
    let mut listed = BTreeSet::new();
    for row in table(PROTOCOL, "What the host tells") {
        let not_yet = row[1].starts_with("not yet: ");
        for name in row[0].split(", ").map(quoted) {
            assert!(says(name) != not_yet, "{name}: {row:?}");
            assert!(!by_clients.contains(name) && listed.insert(name.to_owned()), "{name} is listed twice");
        }
    }
    assert_eq!(listed.len() + by_clients.len(), ACTIONS, "of ahp-types 1.0.0");
}

#[test]
fn client_actions_are_listed_with_whether_they_are_refused() {
    let rows = table(PROTOCOL, "What clients may change");
    let known: BTreeSet<&str> = client_actions().map(|action| action.name).collect();
    assert_eq!(rows.iter().map(|row| quoted(&row[0])).collect::<BTreeSet<_>>(), known);
    for action in client_actions() {
        let row = rows.iter().find(|row| quoted(&row[0]) == action.name).unwrap();
        assert_eq!(row[1].starts_with("refused: "), action.not_served.is_some(), "{row:?}");
    }
}

#[test]
fn every_step_of_the_script_agent_is_listed() {
    let source = fs::read_to_string(root().join("src/backend/script.rs")).unwrap();
    let steps: BTreeSet<String> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"/")?.split_once("\" =>"))
        .map(|(name, _)| format!("/{name}"))
        .collect();
    assert!(steps.contains("/say"));
    let told: BTreeSet<String> = first_column(BUILT_IN, "The agent `script`")
        .iter()
        .filter_map(|step| step.split_whitespace().next().map(str::to_owned))
        .collect();
    assert_eq!(told, steps);
}

#[test]
fn versions_are_listed_with_their_exact_and_lossy_parts() {
    let rows = table(VERSIONS, "Versions");
    let row =
        |name: &str, exact: &str, lossy: &str| vec![format!("`{name}`"), exact.to_owned(), lossy.to_owned()];
    let newest = row(Dialect::NEWEST.name(), "everything", "nothing");
    // The chapter on the next version has the rows of previews.
    let steps = STEPS.iter().filter(|step| step.facts().dialect < Dialect::NEWEST);
    let older = steps.map(|step| {
        let dialect = step.facts().dialect;
        let name = dialect.name();
        let exact = match ["chat/turnStarted", "session/chatRemoved", "chat/draftChanged", "chat/turnResume"]
            .map(|action| dialect.can_replay(action))
        {
            [true, true, true, true] => "with every replay",
            [true, true, true, false] => "replays but those of a resumed turn",
            [true, true, false, false] => "replays but those of a resumed turn or a draft",
            [true, false, false, false] => "replays but those of a resumed turn, a draft or a removed chat",
            [false, false, false, false] => "no replays but empty ones: states instead",
            other => panic!("{name} replays {other:?}"),
        };
        row(name, &format!("all else that it has, {exact}"), &step.facts().losses.join("; "))
    });
    assert_eq!(rows, std::iter::once(newest).chain(older).collect::<Vec<_>>());
    assert_eq!(rows.len(), Dialect::released().count());
}

#[test]
fn agent_page_configures_every_tested_agent() {
    let page = fs::read_to_string(root().join("src/backend/acp/FIRST_AGENT.md")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, page.split("\n```toml\n").nth(1).unwrap().split("```").next().unwrap()).unwrap();
    let configured = ahp_sidecar::config::agents(&[], Some(file.path()), None).unwrap();
    let configured: BTreeSet<String> = configured.into_iter().map(|agent| agent.name).collect();
    let chapter = read(AGENTS);
    let table = chapter.split("\n| agent | `--agent` |").nth(1).expect("the table of agents is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let tried = rows.map(|row| row.split('|').nth(2).unwrap().split(['`', '=']).nth(1).unwrap().to_owned());
    // The last one is no agent for anybody's work.
    let tried: BTreeSet<String> = tried.filter(|name| name != "sdk-example").collect();
    assert!(tried.len() > 1);
    assert_eq!(configured, tried);
}

#[test]
fn client_quirks_are_listed_with_the_release_that_shows_them() {
    let rows = table(VERSIONS, "Clients that need more");
    let listed: Vec<(&str, &str)> = rows.iter().map(|row| (quoted(&row[0]), row[1].as_str())).collect();
    let known: Vec<(String, &str)> =
        QUIRKS.iter().map(|quirk| (format!("{}…", quirk.client), quirk.seen_in)).collect();
    assert_eq!(listed, known.iter().map(|(client, seen_in)| (client.as_str(), *seen_in)).collect::<Vec<_>>());
}

#[test]
fn readme_conversation_is_a_golden_transcript() {
    let readme = readme();
    let shown = readme.split("\n```text\n>").nth(1).expect("it is there").split("\n```").next().unwrap();
    let transcript = read("fixtures/demo/short.txt");
    let lines = transcript.lines().filter(|line| line.starts_with("> ") || line.starts_with("< "));
    assert_eq!(format!(">{shown}").lines().collect::<Vec<_>>(), lines.collect::<Vec<_>>());
}

#[test]
fn every_chapter_is_named_in_the_readme_with_its_topic() {
    let readme = readme();
    for chapter in CHAPTERS.iter().filter(|chapter| chapter.path.ends_with(".md")) {
        let (path, topic) = (chapter.path, chapter.topic);
        assert!(readme.contains(&format!("]({path}) | `ahp-sidecar help {topic}` |")), "{path}, {topic}");
    }
}

/// The links of a Markdown file to other files of the repository and to headings lead somewhere.
#[test]
fn every_link_in_the_documentation_has_a_target() {
    let chapters = CHAPTERS.iter().map(|chapter| chapter.path).filter(|path| path.ends_with(".md"));
    for path in chapters.chain(["README.md"]).chain(PAGES_ABOUT_THE_CODE) {
        let text = read(path);
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = root().join(path);
            let target = if file.is_empty() { folder } else { folder.parent().unwrap().join(file) };
            let target =
                fs::read_to_string(&target).unwrap_or_else(|error| panic!("{path}: {link}: {error}"));
            let headings = target.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| {
                let kept = line.trim_start_matches(['#', ' ']).to_lowercase();
                let kept = kept.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
                kept.map(|char| if char == ' ' { '-' } else { char }).collect::<String>()
            });
            assert!(heading.is_empty() || anchors.any(|anchor| anchor == heading), "{path}: {link}");
        }
    }
}

/// Words of a source or a name, as the language has them.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|word| !word.is_empty())
}

#[test]
fn names_on_pages_about_the_code_exist() {
    let is_rust = |file: &PathBuf| file.extension().is_some_and(|it| it == "rs");
    let files = files_under("src").into_iter().chain(files_under("tests")).filter(is_rust);
    let sources: Vec<String> = files.map(|file| fs::read_to_string(file).unwrap()).collect();
    let known: BTreeSet<&str> = sources.iter().flat_map(|source| words_of(source)).collect();
    for path in PAGES_ABOUT_THE_CODE {
        let page = read(path);
        let prose: String = page.split("```").step_by(2).collect();
        for name in prose.split('`').skip(1).step_by(2) {
            if name.starts_with("src/") || name.starts_with("tests/") {
                assert!(root().join(name).exists(), "{path}: {name} does not exist");
                continue;
            }
            // A type and what it has stand in one file.
            let pair: Vec<&str> = words_of(name).take(2).collect();
            let is_pair = name.contains("::") && name.starts_with(char::is_uppercase);
            let has_both = |source: &String| pair.iter().all(|word| words_of(source).any(|it| it == *word));
            assert!(!is_pair || sources.iter().any(has_both), "{path}: no file has both parts of {name}");
            let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
            let unknown = words_of(name).find(|word| !known.contains(word) && !is_number(word));
            assert_eq!(unknown, None, "{path}: {name} is not in the code");
        }
        for row in prose.lines().filter(|line| line.contains(" | `tests/")) {
            let mut cells = row.trim_end_matches('|').rsplit('|').map(|cell| quoted(cell.trim()));
            let (test, file) = (cells.next().unwrap(), cells.next().unwrap());
            assert!(read(file).contains(&format!("fn {test}(")), "{file} has no test {test}");
        }
    }
}

#[test]
fn readme_shell_example_runs() {
    let readme = readme();
    let example = readme.split("From a shell:\n\n```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let program = assert_cmd::cargo::cargo_bin!("ahp-sidecar");
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell.args(["-c", example]).env("PATH", path).env("HOME", NO_HOME);
    shell.env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME");
    let output = shell.output().unwrap();
    let said: String = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("\"content\":\"")?.strip_suffix('"'))
        .collect();
    assert_eq!(said, "Hello from a pipe");
}

#[test]
fn pure_modules_name_no_impure_api() {
    for folder in ["src/host", "src/state", "src/wire", "src/versions"] {
        for file in files_under(folder) {
            let source = fs::read_to_string(&file).unwrap();
            // Tests of a file may read time zones.
            let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for zones in ["TimeZone::get", "TimeZone::system", "tz::db", "TimeZoneDatabase"] {
                let is_test = file.ends_with("tests.rs");
                assert!(is_test || !product.contains(zones), "{} speaks of {zones}", file.display());
            }
            for word in
                ["tokio", "std::fs", "std::env", "std::net", "std::thread", "Instant", "SystemTime", "rustix"]
            {
                assert!(!source.contains(word), "{} speaks of {word}", file.display());
            }
        }
    }
}

/// Words by which a source names an interface that not every system has.
const WORDS_OF_SYSTEMS: [&str; 12] = [
    "cfg(unix",
    "cfg(not(unix",
    "cfg(windows",
    "target_os",
    "portable",
    "std::os",
    "rustix",
    "net::unix",
    "net::windows",
    "signal::unix",
    "UnixStream",
    "UnixListener",
];

/// Only `src/os` knows which system it runs on. Tests may know, too.
#[test]
fn systems_are_told_apart_in_one_folder() {
    let mut found = BTreeSet::new();
    for file in files_under("src").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        if name.starts_with("src/os/") || is_test {
            continue;
        }
        let source = fs::read_to_string(&file).unwrap();
        let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let mut code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
        if code.any(|line| WORDS_OF_SYSTEMS.iter().any(|word| line.contains(word))) {
            found.insert(name);
        }
    }
    assert!(found.is_empty(), "what differs between systems belongs into src/os: {found:#?}");
}

/// A line that names its connection by number is copied only to the window of that connection.
#[test]
fn log_lines_name_connections_by_number() {
    for file in files_under("src").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let source = fs::read_to_string(&file).unwrap();
        assert!(!source.contains("?connection,"), "{}: say `connection = connection.0`", file.display());
    }
}

/// Returns the first argument that is a text literal, of a macro whose arguments begin here.
fn message_of(arguments: &str) -> Option<&str> {
    let (mut depth, mut begins, mut from) = (0, true, 0);
    let mut chars = arguments.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => {
                let mut escaped = false;
                let is_end = |(_, char): &(usize, char)| {
                    let ends = *char == '"' && !escaped;
                    escaped = *char == '\\' && !escaped;
                    ends
                };
                let end = chars.by_ref().find(is_end)?.0;
                if depth == 0 && begins {
                    return Some(&arguments[at + 1..end]);
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                begins = true;
                from = at + 1;
            }
            _ => {}
        }
        begins = begins && arguments[from..at + char.len_utf8()].trim_matches([',', ' ', '\n']).is_empty();
    }
    None
}

/// Clients receive a log line up to its first value, which may be a text of somebody.
#[test]
fn log_lines_begin_with_constant_words() {
    let mut count = 0;
    for file in files_under("src").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let source = fs::read_to_string(&file).unwrap();
        for level in ["trace", "debug", "info", "warn", "error"] {
            let call = format!("{level}!(");
            for (at, _) in source.match_indices(&call) {
                let before = source[..at].chars().next_back().unwrap();
                if before.is_alphanumeric() || before == '_' {
                    continue;
                }
                let line = source[..at].lines().count();
                let place = format!("{}:{line}", file.display());
                assert!(source[..at].ends_with("tracing::"), "{place}: say `tracing::{level}!`");
                let message = message_of(&source[at + call.len()..]);
                let message = message.unwrap_or_else(|| panic!("{place}: the line has no message"));
                let constant = message.split(['{', '}']).next().unwrap();
                assert!(!constant.trim().is_empty(), "{place}: begin `{message}` with constant words");
                count += 1;
            }
        }
    }
    assert!(count > 300, "the lines are found");
}

/// Modules and items of other layers that each layer may use.
const LAYERS: [(&str, &[&str]); 16] = [
    ("os", &["sync"]),
    ("shapes", &["wire"]),
    ("trace", &["os", "shapes", "sync"]),
    ("wire", &["os::paths"]),
    ("state", &["wire", "sync", "line_diff"]),
    ("host", &["wire", "state"]),
    ("files", &["os", "wire"]),
    ("watches", &["os", "wire", "files"]),
    ("git", &["os", "sync", "wire", "state", "files", "host::effects"]),
    ("versions", &["wire", "state", "host::effects"]),
    ("store", &["os", "sync", "wire", "state", "places", "host::effects", "host::log", "host::Start"]),
    ("backend", &["os", "sync", "wire", "state", "codec", "files", "host::effects", "trace", "line_diff"]),
    ("run", &["os", "wire", "codec", "files", "config", "places", "status", "cli::AS_GUEST", "line_diff"]),
    ("transcripts", &["os", "files", "status", "listening", "connect::AS_HOST"]),
    ("conform", &["os", "files", "listening", "transcripts"]),
    (
        "io",
        &[
            "os", "wire", "state", "codec", "files", "watches", "git", "versions", "host", "store",
            "backend", "config", "status", "trace", "shapes", "sync",
        ],
    ),
];

/// Returns the names of the crate used in a source file: the first two segments of each path, and
/// of each one in a group.
fn named_of_the_crate(source: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let paths = source.split("crate::").skip(1);
    paths
        .flat_map(|path| {
            let module = name(path);
            let Some(rest) = path[module.len()..].strip_prefix("::") else { return vec![module] };
            let group = rest.strip_prefix('{').and_then(|group| group.split('}').next());
            let names = group.unwrap_or(rest).split(',').take(if group.is_some() { usize::MAX } else { 1 });
            let names = names.map(|it| name(it.trim())).filter(|it| !it.is_empty());
            names.map(|it| format!("{module}::{it}")).collect()
        })
        .collect()
}

#[test]
fn layers_use_only_the_layers_they_may() {
    for (layer, may_use) in LAYERS {
        for file in files_under(&format!("src/{layer}")) {
            if file.extension().is_none_or(|it| it != "rs") {
                continue;
            }
            for named in named_of_the_crate(&fs::read_to_string(&file).unwrap()) {
                let module = named.split("::").next().unwrap();
                let may = module == layer || may_use.iter().any(|may| *may == module || *may == named);
                assert!(may, "{} uses {named}", file.display());
            }
        }
    }
}

/// The judges have lock files of their own. Where these are in step with that of the product, cargo
/// builds what both need once.
#[test]
fn judges_lock_the_same_packages_as_the_product() {
    let packages = |path: &str| -> BTreeSet<String> {
        let text = read(path);
        let all = text.split("\n\n").filter(|it| it.starts_with("[[package]]"));
        // All but our own, which have no source.
        all.filter(|it| it.contains("\nsource = ")).map(|it| it.trim_end().to_owned()).collect()
    };
    for judge in ["v0_5_0", "v0_5_1", "versions"] {
        let path = format!("tests/judges/{judge}/Cargo.lock");
        let all = packages(&path);
        let name = |package: &String| package.lines().nth(1).unwrap_or_default().to_owned();
        let product = packages("Cargo.lock");
        let lacking: Vec<String> = product.difference(&all).map(name).collect();
        assert!(
            lacking.is_empty(),
            "{path} lacks {lacking:?}: copy Cargo.lock there, and run `cargo metadata` beside it"
        );
    }
}

/// Whoever searches for a type finds that one. What tests alone have does not count, nor what is
/// declared inside something.
#[test]
fn type_names_are_unique() {
    let mut all: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files_under("src").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
        if file.iter().any(is_test) {
            continue;
        }
        for line in fs::read_to_string(&file).unwrap().lines() {
            // Before it stands `pub`, or `pub(…)` and what is in there.
            let declared = match line.strip_prefix("pub(") {
                Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
                None => line.strip_prefix("pub ").unwrap_or(line),
            };
            let mut words = declared.split(|char: char| !char.is_alphanumeric() && char != '_');
            if words.next().is_some_and(|word| ["struct", "enum", "trait", "type", "union"].contains(&word)) {
                all.entry(words.next().unwrap().to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(all.len() > 500, "the types are found");
    // The halves of a concern declare the same types.
    for files in all.values_mut() {
        files.dedup_by_key(|file| match file.strip_prefix(root().join("src/os")) {
            Ok(half) => half.iter().next().map(PathBuf::from),
            Err(_) => Some(file.clone()),
        });
    }
    all.retain(|_, files| files.len() > 1);
    assert!(all.is_empty(), "types with one name: {all:#?}");
}

#[test]
fn no_chapter_is_longer_than_300_lines() {
    for chapter in CHAPTERS.iter().filter(|chapter| chapter.path.ends_with(".md")) {
        let lines = chapter.text.lines().count();
        assert!(lines <= 300, "{} has {lines} lines", chapter.path);
    }
}

#[test]
fn no_comment_is_wider_than_100_columns() {
    let files = files_under("src").into_iter().chain(files_under("tests"));
    for file in files.filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        for (at, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let is_wide = line.trim_start().starts_with("//") && line.chars().count() > 100;
            assert!(!is_wide, "{}:{}: {line}", file.display(), at + 1);
        }
    }
}

#[test]
fn every_module_header_names_what_it_owns() {
    for file in files_under("src").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs")) {
        let source = fs::read_to_string(&file).unwrap();
        let header: String = source.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(!header.is_empty(), "{} has no header", file.display());
        // What a difference between two versions owns is said once, by `versions::step`.
        if header.contains("it differs from") {
            continue;
        }
        // The two that own nothing but the others.
        if !["src/main.rs", "src/lib.rs"].iter().any(|of_all| file.ends_with(of_all)) {
            for word in ["Owns:", "Never:"] {
                assert!(header.contains(word), "the header of {} does not say `{word}`", file.display());
            }
        }
    }
}
