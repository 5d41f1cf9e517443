//! Measures of technical debt, which may only shrink.
//!
//! Owns: the figures, and counting what they are about. A change that pays something back lowers
//! them.
//! Never: looks at tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::tidy::files_under;

/// Maximum number of methods of a type of the core.
const METHODS_MAX: usize = 60;

/// Maximum number of files of the core that call each other in a circle.
const CIRCLE_MAX: usize = 12;

/// Names of variables and fields that hold the owners of the core, with the types of these.
const OWNERS: [(&str, &str); 10] = [
    ("ledger", "Ledger"),
    ("agents", "AgentRegistry"),
    ("catalogue", "Catalogue"),
    ("changes", "Changes"),
    ("checkpoints", "Checkpoints"),
    ("clients", "Clients"),
    ("plugins", "Plugins"),
    ("relays", "Relays"),
    ("statuses", "RepositoryStatuses"),
    ("summaries", "Summaries"),
];

/// Doc comments that begin with a word that stands in for a noun or a verb.
const VAGUE_COMMENTS: usize = 0;

/// Beginnings of vague doc comments.
const VAGUE: [&str; 32] = [
    "What",
    "Who",
    "Whose",
    "Those",
    "So many",
    "So much",
    "So long",
    "So far",
    "So often",
    "The same",
    "The one",
    "The ones",
    "The other",
    "The others",
    "It",
    "Its",
    "How far",
    "How many",
    "How much",
    "How long",
    "How often",
    "Where",
    "Whether",
    "That",
    "Nobody",
    "Somebody",
    "Everything",
    "Nothing",
    "All of",
    "All that",
    "One who",
    "Which",
];

/// Number of lines of comments with an unusual word.
const UNUSUAL_COMMENTS: usize = 14;

/// Words for which there is a usual one: a client is notified, a message is received or queued, a
/// session is evicted, a file exists.
const UNUSUAL: [&str; 16] = [
    "so many",
    "so much",
    "nobody",
    "somebody",
    "whoever",
    "is told",
    "are told",
    "was told",
    "told of",
    "is heard",
    "was heard",
    "heard of",
    "looked at",
    "let go",
    "what is there",
    "goes by",
];

/// The lines of each file of the sources.
fn sources() -> Vec<Vec<String>> {
    let files = files_under("src").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs"));
    files.map(|file| fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()).collect()
}

fn may_only_shrink(what: &str, count: usize, known: usize) {
    assert!(count <= known, "{what}: {count}, and there were {known}");
    assert!(count + known / 20 >= known, "{what}: {count}: lower the figure of {known}");
}

fn is_doc(line: &str) -> bool {
    ["///", "//!"].iter().any(|begin| line.trim_start().starts_with(begin))
}

fn is_vague(comment: &str) -> bool {
    let text = comment.trim_start().trim_start_matches(['/', '!']).trim_start();
    let follows = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    VAGUE.iter().any(|begin| text.strip_prefix(begin).is_some_and(follows))
}

/// A file of the core.
struct CoreFile {
    /// The path of its module below that of the core, such as `["router", "turns"]`.
    module: Vec<String>,
    /// Lines of the file, without comments and tests.
    lines: Vec<String>,
}

/// The files of the core, without those of tests.
fn core() -> Vec<CoreFile> {
    let root = files_under("src/host").into_iter().find(|file| file.ends_with("src/host/mod.rs")).unwrap();
    let root = root.parent().unwrap();
    let is_source = |file: &std::path::PathBuf| {
        let name = file.file_name().unwrap_or_default();
        file.extension().is_some_and(|it| it == "rs") && name != "tests.rs" && name != "testing.rs"
    };
    let read = |file: std::path::PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned);
        let path = file.strip_prefix(root).unwrap().with_extension("");
        let names = path.iter().map(|name| name.to_string_lossy().into_owned());
        CoreFile { module: names.filter(|name| name != "mod").collect(), lines: lines.collect() }
    };
    files_under("src/host").into_iter().filter(is_source).map(read).collect()
}

/// The type that an `impl` block is for.
fn type_of_impl(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.strip_prefix(' ')? };
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    Some(of.split(['<', ' ']).next().unwrap_or_default())
}

/// The function that a line begins which is indented so.
fn function_of<'a>(line: &'a str, indent: &str) -> Option<&'a str> {
    let line = line.strip_prefix(indent)?;
    let visibilities = ["", "pub ", "pub(super) ", "pub(in crate::host) ", "pub(crate) "];
    let begins = visibilities.iter().find_map(|visibility| {
        let rest = line.strip_prefix(visibility)?;
        rest.strip_prefix("const ").unwrap_or(rest).strip_prefix("fn ")
    })?;
    begins.split(['(', '<']).next()
}

/// Each method of the core: its type, its name, and the file where it stands.
fn methods(core: &[CoreFile]) -> Vec<(&str, &str, usize)> {
    let mut methods = Vec::new();
    for (at, file) in core.iter().enumerate() {
        let mut of = "";
        for line in &file.lines {
            of = if line == "}" { "" } else { type_of_impl(line).unwrap_or(of) };
            methods.extend(function_of(line, "    ").filter(|_| !of.is_empty()).map(|name| (of, name, at)));
        }
    }
    methods
}

/// The words of a line, each with what stands before it and behind it.
fn words(line: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let is_word = |it: char| it.is_alphanumeric() || it == '_';
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + line[rest..].find(is_word)?;
        let end = line[start..].find(|it| !is_word(it)).map_or(line.len(), |length| start + length);
        rest = end;
        Some((&line[..start], &line[start..end], &line[end..]))
    })
}

/// The module that a path names in a file of the core, if it is one of the core.
fn module_of(file: &CoreFile, path: &str) -> Vec<String> {
    if let Some(below) = path.strip_prefix("crate::host") {
        return below.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
    }
    let mut module = file.module.clone();
    let mut names = path.split("::").peekable();
    while names.next_if_eq(&"super").is_some() {
        module.pop();
    }
    module.extend(names.map(str::to_owned));
    module
}

/// The files of the core whose functions each file calls.
fn calls(core: &[CoreFile]) -> Vec<BTreeSet<usize>> {
    let methods = methods(core);
    let modules: BTreeMap<&[String], usize> =
        core.iter().enumerate().map(|(at, file)| (file.module.as_slice(), at)).collect();
    let has_function =
        |at: usize, name: &str| core[at].lines.iter().any(|line| function_of(line, "") == Some(name));
    let method_at = |of: &str, name: &str| {
        methods.iter().find(|(its, its_name, _)| *its == of && *its_name == name).map(|(_, _, at)| *at)
    };
    let mut calls = vec![BTreeSet::new(); core.len()];
    for (at, file) in core.iter().enumerate() {
        let own: BTreeSet<&str> = file.lines.iter().filter_map(|line| type_of_impl(line)).collect();
        let text = file.lines.join(" ");
        // What an import brings in, by its name here.
        let mut imported: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for import in text.split("use ").skip(1).filter_map(|import| import.split(';').next()) {
            let Some((path, names)) = import.rsplit_once("::{").or_else(|| import.rsplit_once("::")) else {
                continue;
            };
            if path.starts_with("super") || path.starts_with("crate::host") {
                for name in names.trim_end_matches('}').split(',').map(str::trim) {
                    let mut module = module_of(file, path);
                    module.push(name.to_owned());
                    imported.insert(name.to_owned(), module);
                }
            }
        }
        for (before, name, behind) in words(&text).filter(|(_, _, behind)| behind.starts_with(['(', ':'])) {
            if !behind.starts_with('(') && !behind.starts_with("::<") {
                continue;
            }
            let called = if let Some(of) = before.strip_suffix('.') {
                let receiver = words(of).last().map_or("", |(_, word, _)| word);
                match OWNERS.iter().find(|(variable, _)| *variable == receiver) {
                    Some((_, of)) => method_at(of, name),
                    None if receiver == "self" || receiver == "host" => {
                        own.iter().find_map(|of| method_at(of, name))
                    }
                    None => None,
                }
            } else if let Some(path) = before.strip_suffix("::") {
                let path = path.rsplit(|it: char| !it.is_alphanumeric() && it != '_' && it != ':').next();
                let path = path.unwrap_or_default();
                let first = path.split("::").next().unwrap_or_default();
                let module = match imported.get(first) {
                    Some(module) => {
                        let rest = path[first.len()..].split("::").filter(|name| !name.is_empty());
                        module.iter().cloned().chain(rest.map(str::to_owned)).collect()
                    }
                    None => module_of(file, path),
                };
                modules.get(module.as_slice()).copied().filter(|at| has_function(*at, name))
            } else {
                let module =
                    imported.get(name).and_then(|module| module.split_last()).map(|(_, module)| module);
                module.and_then(|module| modules.get(module)).copied().filter(|at| has_function(*at, name))
            };
            calls[at].extend(called.filter(|to| *to != at));
        }
    }
    calls
}

#[test]
fn types_of_the_core_have_few_methods() {
    let core = core();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (of, _, _) in methods(&core) {
        *counts.entry(of).or_default() += 1;
    }
    assert!(counts.contains_key("Ledger") && counts.contains_key("Host"), "{counts:?}");
    counts.retain(|_, count| *count > METHODS_MAX);
    assert!(counts.is_empty(), "types with more than {METHODS_MAX} methods: {counts:?}");
}

#[test]
fn call_cycles_between_core_files_are_small() {
    let core = core();
    let mut reached = calls(&core);
    let known: usize = reached.iter().map(BTreeSet::len).sum();
    assert!(known > core.len(), "calls are found no more: {known}");
    loop {
        let mut grew = false;
        for at in 0..core.len() {
            let further: Vec<usize> =
                reached[at].iter().flat_map(|to| reached[*to].iter().copied()).collect();
            let before = reached[at].len();
            reached[at].extend(further);
            grew |= reached[at].len() > before;
        }
        if !grew {
            break;
        }
    }
    let reached = &reached;
    let circle = |at: usize| reached[at].iter().filter(move |to| reached[**to].contains(&at)).copied();
    let largest = (0..core.len()).map(|at| circle(at).collect::<Vec<_>>()).max_by_key(Vec::len);
    let files: Vec<String> =
        largest.unwrap_or_default().into_iter().map(|at| core[at].module.join("/")).collect();
    assert!(files.len() <= CIRCLE_MAX, "{} files call each other in a circle: {files:?}", files.len());
}

#[test]
fn only_the_router_knows_the_host() {
    let core = core();
    assert!(core.iter().any(|file| file.module == ["router", "turns"]), "the router is somewhere else");
    for file in core.iter().filter(|file| file.module.first().is_some_and(|name| name != "router")) {
        let names = |line: &&String| words(line).any(|(_, word, _)| word == "Host");
        assert_eq!(file.lines.iter().find(names), None, "{} knows the host", file.module.join("/"));
    }
}

#[test]
fn comments_with_unusual_words_do_not_increase() {
    let is_unusual = |line: &String| {
        let comment = line.trim_start();
        let mut text = format!(" {} ", comment.to_lowercase());
        text.retain(|char| !matches!(char, '.' | ',' | ';' | ':' | '(' | ')'));
        comment.starts_with("//") && UNUSUAL.iter().any(|word| text.contains(&format!(" {word} ")))
    };
    let count = sources().concat().iter().filter(|line| is_unusual(line)).count();
    may_only_shrink("comments with unusual words", count, UNUSUAL_COMMENTS);
}

#[test]
fn vague_doc_comments_do_not_increase() {
    let mut vague = 0;
    for lines in sources() {
        let before = std::iter::once("").chain(lines.iter().map(String::as_str));
        for (before, line) in before.zip(&lines) {
            vague += usize::from(is_doc(line) && !is_doc(before) && is_vague(line));
        }
    }
    may_only_shrink("vague doc comments", vague, VAGUE_COMMENTS);
}
