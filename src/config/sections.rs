//! Sections of agents in the text of a configuration file.
//!
//! Owns: removing one, with everything else left as it was, comments included.
//! Never: reads or writes a file.

use std::ops::Range;

use anyhow::{anyhow, bail};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::faults;

/// Name of the section that has those of the agents.
const AGENTS: &str = "agents";

/// Returns the text of a file without the sections of an agent.
///
/// # Errors
/// When there is no such agent, or it is not written as sections of its own.
pub fn without_agent(before: &str, name: &str) -> anyhow::Result<String> {
    let mut wanted: Table = before.parse().map_err(|error| anyhow!(faults::of(before, &error)))?;
    if take_agent(&mut wanted, name).is_none() {
        bail!("there is no agent `{name}`");
    }
    let values = values_in(before);
    let mut after = String::new();
    // Blank lines and comments, which belong to the section or setting that follows them.
    let mut held: Vec<&str> = Vec::new();
    let (mut at, mut is_in) = (0, false);
    for line in before.split_inclusive('\n') {
        let is_in_value = values.iter().any(|value| value.start < at && at < value.end);
        at += line.len();
        let words = line.trim();
        if !is_in_value && (words.is_empty() || words.starts_with('#')) {
            held.push(line);
            continue;
        }
        let header = Some(words).filter(|_| !is_in_value).and_then(header_of);
        let was_in = is_in;
        if let Some(path) = header {
            is_in = path.len() > 1 && path[0] == AGENTS && path[1] == name;
        }
        let kept = if was_in && is_in { apart(&held) } else { &held };
        after.extend(kept.iter().copied());
        held.clear();
        if !is_in {
            after.push_str(line);
        }
    }
    after.extend(held);
    if !after.parse::<Table>().is_ok_and(|edited| without_empty(edited) == wanted) {
        bail!("it is not written as sections of its own: remove it by hand");
    }
    Ok(after)
}

/// Returns those lines that a blank line separates from what follows, if there is a comment.
fn apart<'a, 'b>(held: &'b [&'a str]) -> &'b [&'a str] {
    let end = held.iter().rposition(|line| line.trim().is_empty()).map_or(0, |at| at + 1);
    let kept = &held[..end];
    if kept.iter().any(|line| !line.trim().is_empty()) {
        kept
    } else {
        &[]
    }
}

/// Returns the places of the values in a text, over which texts and lists may have several lines.
fn values_in(text: &str) -> Vec<Range<usize>> {
    fn add(value: &Spanned<DeValue<'_>>, found: &mut Vec<Range<usize>>) {
        match value.get_ref() {
            DeValue::Table(table) => table.values().for_each(|value| add(value, found)),
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
                items.iter().for_each(|item| add(item, found));
            }
            _ => found.push(value.span()),
        }
    }
    let mut found = Vec::new();
    if let Ok(file) = DeTable::parse(text) {
        file.get_ref().values().for_each(|value| add(value, &mut found));
    }
    found
}

/// Returns the path in the header of a section; `None` if the line is no header.
fn header_of(line: &str) -> Option<Vec<String>> {
    let parsed: Table = Some(line).filter(|line| line.starts_with('['))?.parse().ok()?;
    let mut path = Vec::new();
    let mut below = &Value::Table(parsed);
    loop {
        below = match below {
            Value::Table(table) => {
                let Some((name, value)) = table.iter().next() else { return Some(path) };
                path.push(name.clone());
                value
            }
            Value::Array(items) => items.first()?,
            _ => return None,
        }
    }
}

/// Returns the name of an agent as a key.
pub fn key_of(name: &str) -> String {
    // A point would begin the name of another section.
    if name.contains('.') {
        Value::from(name).to_string()
    } else {
        name.to_owned()
    }
}

/// Removes an agent from a table, and `agents` if that leaves none.
pub fn take_agent(file: &mut Table, name: &str) -> Option<Value> {
    let agents = file.get_mut(AGENTS)?.as_table_mut()?;
    let taken = agents.remove(name);
    if agents.is_empty() {
        file.remove(AGENTS);
    }
    taken
}

/// Returns a table without `agents` if there are none.
pub fn without_empty(mut file: Table) -> Table {
    file.retain(|name, value| name != AGENTS || value.as_table().is_none_or(|agents| !agents.is_empty()));
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\nmcp_files = [\"x.json\"] # kept\n\n# the first\n[agents.a]\ncommand = 'a'\n\
        # about a\nargs = [\n  '[agents.b]',\n]\n[agents.a.config]\nmode = 'x'\n\n# the second\n\
        [agents.b]\ncommand = 'b'\n# the end\n";

    #[test]
    fn removed_agent_leaves_everything_else_as_it_was() {
        let without_a = without_agent(FILE, "a").unwrap();
        let expected = "# mine\nmcp_files = [\"x.json\"] # kept\n\n# the first\n\n# the second\n\
            [agents.b]\ncommand = 'b'\n# the end\n";
        assert_eq!(without_a, expected);
        let none = without_agent(&without_a, "b").unwrap();
        assert!(none.ends_with("# the second\n# the end\n"), "{none}");
        assert!(without_agent(&none, "b").unwrap_err().to_string().contains("no agent `b`"));
        for by_hand in ["agents.a.command = 'a'\n", "[agents]\na = { command = 'a' }\n"] {
            let why = without_agent(by_hand, "a").unwrap_err().to_string();
            assert!(why.contains("by hand"), "{by_hand}: {why}");
        }
    }

    #[test]
    fn comments_that_a_blank_line_separates_stay() {
        let file = "[agents.a]\n# how it is called\ncommand = 'a'\n# To do: try it\n# with two\n\n\
            args = []\n\n# Other settings\n\n[agents.a.config]\nmode = 'x'\n# last\n";
        let expected = "# To do: try it\n# with two\n\n\n# Other settings\n\n# last\n";
        assert_eq!(without_agent(file, "a").unwrap(), expected);
    }

    #[test]
    fn headers_in_texts_are_no_sections_and_others_are_found_in_every_form() {
        let description = "description = \"\"\"\n[agents.b]\n# no comment\n\n[other]\n\"\"\"\n";
        let file = format!(
            "[agents.a]\ncommand = 'a'\n{description}[ \"agents\" . b ] # x\ncommand = 'b'\n\
             [agents.'c.d']\ncommand = 'c'\n"
        );
        let without_a = without_agent(&file, "a").unwrap();
        assert_eq!(without_a, file[file.find("[ \"agents\"").unwrap()..]);
        let without_b = without_agent(&file, "b").unwrap();
        assert!(without_b.contains(description) && !without_b.contains("'b'"), "{without_b}");
        assert!(!without_agent(&file, "c.d").unwrap().contains("'c"));
    }

    #[test]
    fn fault_of_the_file_has_no_value() {
        let why = without_agent("[agents.a]\nkey = s3cret", "a").unwrap_err().to_string();
        assert!(why.starts_with("line 2, column 7: ") && !why.contains("s3cret"), "{why}");
    }
}
