//! Front matter of a Markdown document: the members that customizations show.
//!
//! Owns: reading single members from the block between two lines `---` at the beginning.
//! Never: reads all of YAML: texts, flags and lists of texts are enough here, and what is anything
//! else is left out. Nor does it insist on YAML: many documents have `globs: *.ts` or a description
//! with a colon, which a parser of YAML refuses.

/// Maximum number of texts in a list.
const LIST_MAX: usize = 64;

/// Maximum length of a text in a list, in bytes.
const ITEM_BYTES_MAX: usize = 256;

/// Members of a front matter, each with its value and the indented lines below it.
#[derive(Debug, Default)]
pub(super) struct FrontMatter<'a>(Vec<(&'a str, &'a str, Vec<&'a str>)>);

impl<'a> FrontMatter<'a> {
    /// Reads the front matter of a document; empty if there is none.
    pub(super) fn of(document: &'a str) -> Self {
        let document = document.strip_prefix('\u{feff}').unwrap_or(document);
        let mut lines = document.lines();
        if lines.next().map(str::trim_end) != Some("---") {
            return Self::default();
        }
        let mut members: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for line in lines {
            if line.trim_end() == "---" {
                return Self(members);
            }
            // A comment between the lines of a list does not end it.
            if line.starts_with('#') {
                continue;
            }
            let is_below = line.starts_with([' ', '\t', '-']) || line.trim().is_empty();
            match (line.split_once(':'), members.last_mut()) {
                (_, Some(last)) if is_below => last.2.push(line.trim()),
                (Some((name, value)), _) if !is_below => {
                    members.push((name.trim(), without_comment(value), Vec::new()))
                }
                _ => {}
            }
        }
        // Without an end, it is no front matter.
        Self::default()
    }

    fn get(&self, name: &str) -> Option<&(&'a str, &'a str, Vec<&'a str>)> {
        self.0.iter().find(|member| member.0 == name)
    }

    /// Returns a text, which may have several lines.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let (_, value, below) = self.get(name)?;
        let text = if value.is_empty() || value.starts_with(['|', '>']) {
            below.join(" ").trim().to_owned()
        } else {
            unquoted(value).to_owned()
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// Returns a flag.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)?.1 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// Returns a list of texts, in one of three forms: `[a, b]`, `a, b`, which may be quoted as a
    /// whole, or a line each.
    pub(super) fn list(&self, name: &str) -> Option<Vec<String>> {
        let (_, value, below) = self.get(name)?;
        let items = match value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
            Some(items) => split(items),
            None => split(value).into_iter().flat_map(|item| split(unquoted(item))).collect(),
        };
        let below = below.iter().filter_map(|line| line.strip_prefix('-')).map(without_comment);
        let items = items.into_iter().chain(below).map(unquoted);
        let items = items.filter(|item| !item.is_empty() && item.len() <= ITEM_BYTES_MAX).take(LIST_MAX);
        Some(items.map(str::to_owned).collect::<Vec<_>>()).filter(|items| !items.is_empty())
    }
}

/// Returns the characters of a value outside of quotes, each with its offset and the character
/// before it.
fn outside_quotes(value: &str) -> impl Iterator<Item = (usize, char, char)> + '_ {
    let (mut quote, mut before) = (None, ' ');
    value.char_indices().filter_map(move |(at, character)| {
        // A backslash that is escaped escapes nothing.
        let escapes = character == '\\' && before != '\\';
        let before =
            std::mem::replace(&mut before, if character == '\\' && !escapes { ' ' } else { character });
        match quote {
            Some('"') if before == '\\' => None,
            Some(open) => {
                quote = quote.filter(|_| character != open);
                None
            }
            // Elsewhere, it is an apostrophe.
            None if matches!(character, '"' | '\'') && " \t,[{".contains(before) => {
                quote = Some(character);
                None
            }
            None => Some((at, before, character)),
        }
    })
}

/// Returns a trimmed value without the comment behind it.
fn without_comment(value: &str) -> &str {
    let mut outside = outside_quotes(value);
    let comment = outside.find(|(_, before, character)| *character == '#' && matches!(before, ' ' | '\t'));
    value[..comment.map_or(value.len(), |(at, ..)| at)].trim()
}

/// Splits a list at the commas outside of quotes and braces into its trimmed items.
fn split(list: &str) -> Vec<&str> {
    let (mut items, mut start, mut braces) = (Vec::new(), 0, 0_usize);
    for (at, _, character) in outside_quotes(list) {
        match character {
            '{' => braces += 1,
            '}' => braces = braces.saturating_sub(1),
            ',' if braces == 0 => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(list[start..].trim());
    items
}

fn unquoted(value: &str) -> &str {
    let between = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    between('"').or_else(|| between('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_front_matter_are_read_in_their_forms() {
        let matter = FrontMatter::of(
            "---\nname: \"a b\"\ndescription: >\n  one\n  two\nglobs: [\"*.rs\", src/**]\ntools:\n  - x\n- 'y'\n\
             alwaysApply: true\nother: {a: b}\nempty:\n---\nname: not this\n",
        );
        assert_eq!(matter.text("name").as_deref(), Some("a b"));
        assert_eq!(matter.text("description").as_deref(), Some("one two"));
        assert_eq!(matter.list("globs").unwrap(), ["*.rs", "src/**"]);
        assert_eq!(matter.list("tools").unwrap(), ["x", "y"]);
        assert_eq!((matter.flag("alwaysApply"), matter.flag("other")), (Some(true), None));
        assert_eq!((matter.text("empty"), matter.list("empty"), matter.text("none")), (None, None, None));
    }

    #[test]
    fn list_is_split_outside_of_quotes_and_braces_alone() {
        for (value, expected) in [
            (r#""**/*.ts,**/*.tsx""#, &["**/*.ts", "**/*.tsx"][..]),
            (r#""**/*.{ts,tsx}""#, &["**/*.{ts,tsx}"]),
            ("**/*.{ts,{js,mjs}}, 'src/**'", &["**/*.{ts,{js,mjs}}", "src/**"]),
            (r#""*.ts", "*.js""#, &["*.ts", "*.js"]),
            (r#"["a,b", "*.{c,d}", 'e'] # f, g"#, &["a,b", "*.{c,d}", "e"]),
            (r#""C:\\", b"#, &[r"C:\\", "b"]),
            ("don't, can't", &["don't", "can't"]),
            ("a} , b", &["a}", "b"]),
            ("\n  - \"a,b\" # c\n# d: e\n  - f", &["a,b", "f"]),
        ] {
            let document = format!("---\nglobs: {value}\n---\n");
            assert_eq!(FrontMatter::of(&document).list("globs").unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn comment_behind_a_value_is_no_part_of_it() {
        let matter = FrontMatter::of(
            "---\nalwaysApply: true # x\nname: \"a # b\" # c\ndescription: 'd' # it's\nmodel: e#f\nempty: # g\n---\n",
        );
        assert_eq!((matter.flag("alwaysApply"), matter.text("empty")), (Some(true), None));
        assert_eq!(matter.text("name").as_deref(), Some("a # b"));
        assert_eq!(matter.text("description").as_deref(), Some("d"));
        assert_eq!(matter.text("model").as_deref(), Some("e#f"));
    }

    #[test]
    fn text_without_front_matter_has_no_members() {
        for text in ["", "name: x", "---", "---\nname: x\n", "\n---\nname: x\n---\n", "--- x\nname: y\n---"] {
            assert!(FrontMatter::of(text).text("name").is_none(), "{text:?}");
        }
    }
}
