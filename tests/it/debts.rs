//! What the code owes its readers, in figures that may only become smaller.
//!
//! Owns: the figures, and counting what they are about. A change that pays something back lowers
//! them.
//! Never: looks at tests.

use std::fs;

use crate::tidy::files_under;

/// Methods of `Host`. Each belongs to an owner that knows less.
const METHODS_OF_HOST: usize = 532;

/// Files with methods of `Host`.
const FILES_OF_HOST: usize = 55;

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

#[test]
fn host_has_no_more_methods_than_it_had() {
    let (mut methods, mut files) = (0, 0);
    for lines in sources() {
        let mut is_in_host = false;
        let mut has_host = false;
        for line in &lines {
            match line.as_str() {
                "impl Host {" => (is_in_host, has_host) = (true, true),
                "}" => is_in_host = false,
                line if is_in_host => {
                    let begins =
                        |begin: &str| line.strip_prefix("    ").is_some_and(|it| it.starts_with(begin));
                    methods += usize::from(
                        ["fn ", "pub fn ", "pub(super) fn ", "pub(in crate::host) fn "]
                            .into_iter()
                            .any(begins),
                    );
                }
                _ => {}
            }
        }
        files += usize::from(has_host);
    }
    may_only_shrink("methods of `Host`", methods, METHODS_OF_HOST);
    may_only_shrink("files with methods of `Host`", files, FILES_OF_HOST);
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
