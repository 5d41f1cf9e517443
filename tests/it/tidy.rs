//! What holds about the tree itself.
//!
//! Owns: that the README and the tables of the code say the same, that its examples run, and that the pure
//! modules stay pure.
//! Never: tests behaviour.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ahp_sidecar::host::client_actions;
use ahp_sidecar::versions::{dialect::Dialect, quirks::QUIRKS, step::STEPS};
use ahp_sidecar::wire::methods::{Method, NOT_SERVED};

use crate::support::NO_HOME;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// The first column of the table under a heading of the README: what stands between the first backticks.
fn first_column(heading: &str) -> BTreeSet<String> {
    let readme = readme();
    let section = readme.split(&format!("\n## {heading}\n")).nth(1).expect("the heading is there");
    let section = section.split("\n## ").next().unwrap();
    let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    names.map(str::to_owned).collect()
}

fn files_under(folder: &str) -> Vec<PathBuf> {
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

/// So many actions the protocol has: the variants of `ahp_types::actions::StateAction`.
const ACTIONS: usize = 106;

#[test]
fn the_readme_lists_every_method_and_no_other() {
    let served = Method::ALL.iter().map(|method| method.name());
    let others = NOT_SERVED.iter().map(|(name, _)| *name);
    let all: BTreeSet<String> = served.chain(others).map(str::to_owned).collect();
    assert_eq!(first_column("Methods"), all);
    for (name, why) in NOT_SERVED {
        assert!(Method::from_name(name).is_none(), "{name} is served");
        assert!(readme().contains(&format!("| `{name}` | not served: {why} |")), "{name}: {why}");
    }
}

/// Where the core says an action, and not only applies it.
fn says(action: &str) -> bool {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let variant = action.split('/').map(capital).collect::<String>();
    let sources = files_under("src/host").into_iter().filter(|file| !file.ends_with("reduce.rs"));
    sources
        .map(|file| fs::read_to_string(file).unwrap())
        .any(|source| source.contains(&format!("StateAction::{variant}(")))
}

#[test]
fn the_readme_lists_every_action_of_the_host_and_says_which_are_not_told() {
    let by_clients = first_column("What clients may change");
    let readme = readme();
    let section = readme.split("\n## ").find(|section| section.starts_with("What the host tells\n")).unwrap();
    let mut listed = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let not_yet = row.contains("| not yet: ");
        let names = row.split('|').nth(1).unwrap().split('`').filter(|name| name.contains('/'));
        for name in names {
            assert!(says(name) != not_yet, "{name}: {row}");
            assert!(!by_clients.contains(name) && listed.insert(name.to_owned()), "{name} is listed twice");
        }
    }
    assert_eq!(listed.len() + by_clients.len(), ACTIONS, "of ahp-types 1.0.0");
}

#[test]
fn the_readme_lists_every_client_action_and_says_which_are_refused() {
    let known: BTreeSet<String> = client_actions().map(|action| action.name.to_owned()).collect();
    assert_eq!(first_column("What clients may change"), known);
    for action in client_actions().filter(|action| action.not_served.is_some()) {
        let row = format!("| `{}` | refused:", action.name);
        assert!(readme().contains(&row), "{} is refused, and the README does not say so", action.name);
    }
}

#[test]
fn the_readme_lists_every_step_of_the_script_agent() {
    let source = fs::read_to_string(root().join("src/backend/script.rs")).unwrap();
    let steps: BTreeSet<String> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"/")?.split_once("\" =>"))
        .map(|(name, _)| format!("/{name}"))
        .collect();
    assert!(steps.contains("/say"));
    let told: BTreeSet<String> = first_column("The agent `script`")
        .iter()
        .filter_map(|step| step.split_whitespace().next().map(str::to_owned))
        .collect();
    assert_eq!(told, steps);
}

#[test]
fn the_readme_says_of_every_version_what_is_exact_and_what_is_lossy() {
    let rows: Vec<String> = readme()
        .split("\n## ")
        .find(|section| section.starts_with("Versions\n"))
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(str::to_owned)
        .collect();
    let newest = format!("| `{}` | everything | nothing |", Dialect::NEWEST.name());
    let older = STEPS.iter().map(|step| {
        let dialect = step.dialect();
        let name = dialect.name();
        let exact = match ["chat/turnStarted", "chat/draftChanged", "chat/turnResume"]
            .map(|action| dialect.can_replay(action))
        {
            [true, true, true] => "with every replay",
            [true, true, false] => "replays but those of a resumed turn",
            [true, false, false] => "replays but those of a resumed turn or a draft",
            [false, false, false] => "no replays but empty ones: states instead",
            other => panic!("{name} replays {other:?}"),
        };
        format!("| `{name}` | all else that it has, {exact} | {} |", step.losses().join("; "))
    });
    assert_eq!(rows, std::iter::once(newest).chain(older).collect::<Vec<_>>());
    assert_eq!(rows.len(), Dialect::ALL.len());
}

#[test]
fn the_page_of_the_first_agent_configures_every_agent_that_was_tried() {
    let page = fs::read_to_string(root().join("src/backend/acp/FIRST_AGENT.md")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, page.split("\n```toml\n").nth(1).unwrap().split("```").next().unwrap()).unwrap();
    let configured = ahp_sidecar::config::agents(&[], Some(file.path()), None).unwrap();
    let configured: BTreeSet<String> = configured.into_iter().map(|agent| agent.name).collect();
    let readme = readme();
    let table = readme.split("\n| agent | `--agent` |").nth(1).expect("the table of agents is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let tried = rows.map(|row| row.split('|').nth(2).unwrap().split(['`', '=']).nth(1).unwrap().to_owned());
    // The last one is no agent for anybody's work.
    let tried: BTreeSet<String> = tried.filter(|name| name != "sdk-example").collect();
    assert!(tried.len() > 1);
    assert_eq!(configured, tried);
}

#[test]
fn the_readme_lists_every_quirk_of_a_client_with_the_release_that_it_was_seen_in() {
    let readme = readme();
    for quirk in QUIRKS {
        let row = format!("\n| `{}…` | {} | ", quirk.client, quirk.seen_in);
        let told = readme.matches(&row).count();
        assert_eq!(told, QUIRKS.iter().filter(|it| it.client == quirk.client).count(), "{row}");
    }
}

#[test]
fn the_shell_example_of_the_readme_runs() {
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
fn the_pure_modules_name_nothing_impure() {
    for folder in ["src/host", "src/wire", "src/versions"] {
        for file in files_under(folder) {
            let source = fs::read_to_string(&file).unwrap();
            for word in
                ["tokio", "std::fs", "std::env", "std::net", "std::thread", "Instant", "SystemTime", "rustix"]
            {
                assert!(!source.contains(word), "{} speaks of {word}", file.display());
            }
        }
    }
}

/// What each layer may use of the others: a whole module, or one thing in it.
const LAYERS: [(&str, &[&str]); 6] = [
    ("wire", &[]),
    ("host", &["wire"]),
    ("versions", &["wire", "host::effects"]),
    ("store", &["wire", "places", "host::effects", "host::log", "host::Start"]),
    ("backend", &["wire", "host::effects"]),
    ("io", &["wire", "versions", "host", "store", "backend", "status"]),
];

/// What layers still use although they should not. None is added.
const BETWEEN_LAYERS: [(&str, &str); 5] = [
    ("versions", "host::envelope_of"),
    ("versions", "host::reduce"),
    ("backend", "host::reduce"),
    ("backend", "io::codec"),
    ("backend", "io::resources"),
];

/// What a source names of the crate: the first two names of each path, and of each in a group.
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
fn no_layer_uses_one_that_it_must_not() {
    let mut between = BTreeSet::new();
    for (layer, may_use) in LAYERS {
        for file in files_under(&format!("src/{layer}")) {
            if file.extension().is_none_or(|it| it != "rs") {
                continue;
            }
            for named in named_of_the_crate(&fs::read_to_string(&file).unwrap()) {
                let module = named.split("::").next().unwrap();
                if module == layer || may_use.iter().any(|may| *may == module || *may == named) {
                    continue;
                }
                let known = BETWEEN_LAYERS.iter().find(|(of, what)| *of == layer && *what == named);
                assert!(known.is_some(), "{} uses {named}", file.display());
                between.extend(known);
            }
        }
    }
    assert_eq!(between, BETWEEN_LAYERS.iter().collect(), "take out of the list what is not there any more");
}

#[test]
fn every_module_says_what_it_owns() {
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
