//! Front matter of a Markdown document: the members that customizations show.
//!
//! Owns: reading single members from the block between two lines `---` at the beginning.
//! Never: reads all of YAML: texts, flags and lists of texts are enough here, and what is anything
//! else is left out.

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
            let is_below = line.starts_with([' ', '\t', '-']) || line.trim().is_empty();
            match (line.split_once(':'), members.last_mut()) {
                (_, Some(last)) if is_below => last.2.push(line.trim()),
                (Some((name, value)), _) if !is_below => {
                    members.push((name.trim(), value.trim(), Vec::new()))
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

    /// Returns a list of texts, in one of three forms: `[a, b]`, `a, b`, or a line each.
    pub(super) fn list(&self, name: &str) -> Option<Vec<String>> {
        let (_, value, below) = self.get(name)?;
        let value = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
        let items = value.split(',').chain(below.iter().filter_map(|line| line.strip_prefix('-')));
        let items = items.map(|item| unquoted(item.trim()));
        let items = items.filter(|item| !item.is_empty() && item.len() <= ITEM_BYTES_MAX).take(LIST_MAX);
        Some(items.map(str::to_owned).collect::<Vec<_>>()).filter(|items| !items.is_empty())
    }
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
    fn text_without_front_matter_has_no_members() {
        for text in ["", "name: x", "---", "---\nname: x\n", "\n---\nname: x\n---\n", "--- x\nname: y\n---"] {
            assert!(FrontMatter::of(text).text("name").is_none(), "{text:?}");
        }
    }
}
