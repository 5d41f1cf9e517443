//! What the code owes its readers, in figures that may only become smaller.
//!
//! Owns: the figures, and counting what they are about. A change that pays something back lowers
//! them.
//! Never: looks at tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::tidy::files_under;

/// Methods of `Host`. Each belongs to an owner that knows less.
const METHODS_OF_HOST: usize = 238;

/// Files with methods of `Host`.
const FILES_OF_HOST: usize = 43;

/// Files in the largest set whose methods of `Host` call each other in a circle.
const CIRCLE_OF_HOST: usize = 30;

/// Maximum number of methods of any other type of the core.
const METHODS_MAX: usize = 60;

/// Owners: they do not name `Host`.
const OWNERS: [&str; 3] = ["src/host/ledger", "src/host/channels", "src/host/relays.rs"];

/// Doc comments that begin with a word that stands in for a noun or a verb.
const VAGUE_COMMENTS: usize = 1313;

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

/// The type that an `impl` block is for.
fn type_of_impl(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.strip_prefix(' ')? };
    let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
    Some(of.split(['<', ' ']).next().unwrap_or_default())
}

/// The method that a line of an `impl` block begins.
fn method_of(line: &str) -> Option<&str> {
    let line = line.strip_prefix("    ")?;
    let visibilities = ["", "pub ", "pub(super) ", "pub(in crate::host) ", "pub(crate) "];
    let begins = visibilities.iter().find_map(|visibility| {
        let rest = line.strip_prefix(visibility)?;
        rest.strip_prefix("const ").unwrap_or(rest).strip_prefix("fn ")
    })?;
    begins.split(['(', '<']).next()
}

/// The names that `self` and `host` are asked for as methods.
fn calls_in(line: &str) -> impl Iterator<Item = &str> {
    ["self.", "host."].into_iter().flat_map(move |of| {
        line.match_indices(of).filter_map(move |(at, _)| {
            let is_word = line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            let (name, _) = line[at + of.len()..].split_once('(').filter(|_| !is_word)?;
            name.chars().all(|it| it.is_alphanumeric() || it == '_').then_some(name)
        })
    })
}

/// The files of the core, without their tests.
fn core() -> Vec<(String, Vec<String>)> {
    let files =
        files_under("src/host").into_iter().filter(|file| file.extension().is_some_and(|it| it == "rs"));
    let read = |file: std::path::PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        (file.to_string_lossy().into_owned(), text.lines().map(str::to_owned).collect())
    };
    files.map(read).collect()
}

#[test]
fn host_has_no_more_methods_than_it_had() {
    let mut methods: BTreeMap<String, usize> = BTreeMap::new();
    let mut defined: BTreeMap<String, usize> = BTreeMap::new();
    let core = core();
    for (at, (_, lines)) in core.iter().enumerate() {
        let mut of = "";
        for line in lines {
            of = if line == "}" { "" } else { type_of_impl(line).unwrap_or(of) };
            let Some(method) = method_of(line).filter(|_| !of.is_empty()) else { continue };
            *methods.entry(of.to_owned()).or_default() += 1;
            if of == "Host" {
                defined.insert(method.to_owned(), at);
            }
        }
    }
    let files: BTreeSet<_> = defined.values().collect();
    may_only_shrink("methods of `Host`", methods.remove("Host").unwrap_or_default(), METHODS_OF_HOST);
    may_only_shrink("files with methods of `Host`", files.len(), FILES_OF_HOST);
    methods.retain(|_, count| *count > METHODS_MAX);
    assert!(methods.is_empty(), "types with more than {METHODS_MAX} methods: {methods:?}");

    let mut reached: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); core.len()];
    for (at, (_, lines)) in core.iter().enumerate() {
        let called = lines.iter().flat_map(|line| calls_in(line)).filter_map(|name| defined.get(name));
        reached[at].extend(called.filter(|to| **to != at));
    }
    while (0..core.len()).fold(false, |grew, at| {
        let further: BTreeSet<_> = reached[at].iter().flat_map(|to| reached[*to].iter().copied()).collect();
        let before = reached[at].len();
        reached[at].extend(further);
        grew | (reached[at].len() > before)
    }) {}
    let circle = |at: usize| reached[at].iter().filter(|to| reached[**to].contains(&at)).count();
    let largest = (0..core.len()).map(circle).max().unwrap_or_default();
    may_only_shrink("files in the largest circle of calls", largest, CIRCLE_OF_HOST);
}

#[test]
fn owners_do_not_know_the_host() {
    let mut found = 0;
    for (file, lines) in core().iter().filter(|(file, _)| OWNERS.iter().any(|owner| file.contains(owner))) {
        found += 1;
        let names = |line: &&String| {
            !is_doc(line)
                && line.split(|it: char| !it.is_alphanumeric() && it != '_').any(|word| word == "Host")
        };
        assert_eq!(lines.iter().find(names), None, "{file} belongs to an owner");
    }
    assert!(found >= OWNERS.len(), "the owners are somewhere else");
}

#[test]
fn comments_are_no_vaguer_than_they_were() {
    let mut vague = 0;
    for lines in sources() {
        let before = std::iter::once("").chain(lines.iter().map(String::as_str));
        for (before, line) in before.zip(&lines) {
            vague += usize::from(is_doc(line) && !is_doc(before) && is_vague(line));
        }
    }
    may_only_shrink("vague doc comments", vague, VAGUE_COMMENTS);
}
