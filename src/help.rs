//! `ahp-sidecar help TOPIC`: prints the chapters of documentation in the repository.
//!
//! Owns: the list of chapters, and which chapter or section a topic names.
//! Never: adds to the text of a chapter.

/// Chapter of the documentation.
#[derive(Debug)]
pub struct Chapter {
    /// Topic under which it is printed.
    pub topic: &'static str,
    /// Path in the repository.
    pub path: &'static str,
    /// Content, as Markdown.
    pub text: &'static str,
}

macro_rules! chapters {
    ($($topic:literal => $path:literal),* $(,)?) => {
        /// All chapters.
        pub const CHAPTERS: &[Chapter] =
            &[$(Chapter { topic: $topic, path: $path, text: include_str!(concat!("../", $path)) }),*];
    };
}

chapters! {
    "first-agent" => "src/backend/acp/FIRST_AGENT.md",
    "protocol" => "src/host/README.md",
    "files" => "src/host/FILES.md",
    "terminals" => "src/host/TERMINALS.md",
    "changes" => "src/host/CHANGES.md",
    "automations" => "src/host/automations/README.md",
    "examples" => "fixtures/demo/methods.txt",
    "versions" => "src/versions/README.md",
    "next" => "src/versions/NEXT.md",
    "agents" => "src/backend/acp/README.md",
    "adoption" => "src/backend/acp/ADOPTION.md",
    "mcp" => "src/backend/acp/SERVERS.md",
    "script" => "src/backend/README.md",
    "clients" => "src/io/README.md",
    "ci" => "src/run/README.md",
    "state" => "src/store/README.md",
    "transcripts" => "src/transcripts/README.md",
    "conform" => "src/conform/README.md",
    "diagnosis" => "src/trace/README.md",
}

/// Returns the chapter of this topic, or the section whose heading is the topic, in lower case and
/// with `-` for spaces. `None` for an unknown topic.
pub fn text_of(topic: &str) -> Option<&'static str> {
    let chapter = CHAPTERS.iter().find(|chapter| chapter.topic == topic).map(|chapter| chapter.text);
    let mut sections = CHAPTERS.iter().flat_map(sections);
    chapter.or_else(|| sections.find(|section| topic_of(section) == topic))
}

/// Returns the sections of a chapter, each from its heading to the next one.
fn sections(chapter: &Chapter) -> impl Iterator<Item = &'static str> {
    const HEADING: &str = "\n## ";
    let text = chapter.text;
    let starts: Vec<usize> = text.match_indices(HEADING).map(|(at, _)| at + 1).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([text.len()]).collect();
    starts.into_iter().zip(ends).map(move |(start, end)| &text[start..end])
}

fn topic_of(section: &str) -> String {
    let heading = section.lines().next().unwrap_or_default().trim_start_matches("## ").to_lowercase();
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || " -".contains(*char));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

/// Returns the list of topics: each chapter with its sections.
pub fn topics() -> String {
    let mut printed = "Topics, each a chapter with its sections:\n".to_owned();
    for chapter in CHAPTERS {
        let sections: Vec<String> = sections(chapter).map(topic_of).collect();
        printed += &format!("  {:<12} {}\n", chapter.topic, sections.join(", "));
    }
    printed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_chapter_and_every_section_can_be_printed() {
        let mut known = BTreeSet::new();
        for chapter in CHAPTERS {
            assert_eq!(text_of(chapter.topic), Some(chapter.text));
            known.insert(chapter.topic.to_owned());
        }
        let methods = text_of("methods").unwrap();
        assert!(methods.starts_with("## Methods\n") && methods.contains("`initialize`"), "{methods}");
        assert!(!methods.contains("\n## "), "{methods}");
        for (chapter, section) in
            CHAPTERS.iter().flat_map(|chapter| sections(chapter).map(move |it| (chapter, it)))
        {
            let topic = topic_of(section);
            // A name of both a chapter and a section selects the chapter.
            if topic != chapter.topic {
                assert!(known.insert(topic.clone()), "{topic} is the name of two");
                assert_eq!(text_of(&topic), Some(section));
            }
            assert!(topics().contains(&topic));
        }
        assert_eq!(text_of("nothing"), None);
    }
}
