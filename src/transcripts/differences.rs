//! Differences between a transcript and what a host has sent, as a person reads them.
//!
//! Owns: their kinds and words, and the two forms of a report: text, and JUnit's XML.
//! Never: compares, prints or writes a file.

use std::fmt;

use serde_json::Value;

/// Maximum length of a shown value, in characters.
const SHOWN_CHARS: usize = 160;

/// Maximum length of a shown line, in characters.
const LINE_CHARS: usize = 400;

/// Difference in one field of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldDifference {
    /// Path of the field, such as `params.action.type`; empty for the whole message.
    pub path: String,
    /// Expected value; `None` if the field is not expected.
    pub expected: Option<Value>,
    /// Received value; `None` if the field is missing.
    pub received: Option<Value>,
}

impl FieldDifference {
    /// Returns whether two numbers differ, in a field of one of these names.
    pub fn is_of_numbers(&self, names: &[&str]) -> bool {
        let name = self.path.rsplit('.').next().unwrap_or_default();
        let are_numbers =
            [&self.expected, &self.received].iter().all(|it| it.as_ref().is_some_and(Value::is_number));
        are_numbers && names.contains(&name)
    }
}

impl fmt::Display for FieldDifference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<Value>| {
            value.as_ref().map_or("nothing".to_owned(), |value| shortened(&value.to_string(), SHOWN_CHARS))
        };
        let path = if self.path.is_empty() { "the message".to_owned() } else { harmless(&self.path) };
        write!(formatter, "{path}: expected {}, got {}", shown(&self.expected), shown(&self.received))
    }
}

/// Difference between a transcript and a conversation. Lines are counted from 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// A message came with other fields.
    Fields {
        /// Line of the expected message.
        line: usize,
        /// Kind of the message.
        kind: String,
        /// Fields that differ.
        fields: Vec<FieldDifference>,
    },
    /// A message did not come.
    Missing {
        /// Line of the expected message.
        line: usize,
        /// Expected message.
        text: String,
    },
    /// A message came that is not expected.
    Unexpected {
        /// Line of the transcript after which it came.
        after: usize,
        /// Received message.
        text: String,
    },
    /// A message came too late.
    OutOfOrder {
        /// Line of the message.
        line: usize,
        /// Line of a message that came before, and is expected later.
        overtaken_by: usize,
    },
    /// The host ended with another status.
    Exit {
        /// Line of the transcript.
        line: usize,
        /// Expected exit status.
        expected: i32,
        /// Exit status; -1 for a signal.
        received: i32,
    },
    /// The conversation could not go on.
    Stopped {
        /// Line of the transcript.
        line: usize,
        /// Reason, as a sentence.
        why: String,
    },
}

impl Difference {
    /// Counts lines from another beginning, this many lines later.
    pub(super) fn count_from(&mut self, before: usize) {
        let (Self::Fields { line, .. }
        | Self::Missing { line, .. }
        | Self::Unexpected { after: line, .. }
        | Self::Exit { line, .. }
        | Self::Stopped { line, .. }
        | Self::OutOfOrder { line, .. }) = self;
        *line = line.saturating_sub(before);
        if let Self::OutOfOrder { overtaken_by, .. } = self {
            *overtaken_by = overtaken_by.saturating_sub(before);
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fields { line, kind, fields } => {
                write!(formatter, "line {line}: {}", harmless(kind))?;
                fields.iter().try_for_each(|field| write!(formatter, "\n  {field}"))
            }
            Self::Missing { line, text } => {
                write!(
                    formatter,
                    "line {line}: expected, but not received\n  {}",
                    shortened(text, LINE_CHARS)
                )
            }
            Self::Unexpected { after, text } => {
                write!(
                    formatter,
                    "after line {after}: received, but not expected\n  {}",
                    shortened(text, LINE_CHARS)
                )
            }
            Self::OutOfOrder { line, overtaken_by } => {
                write!(formatter, "line {line}: received after the message of line {overtaken_by}")
            }
            Self::Exit { line, expected, received } => {
                write!(formatter, "line {line}: expected exit status {expected}, got {received}")
            }
            Self::Stopped { line, why } => write!(formatter, "line {line}: {}", harmless(why)),
        }
    }
}

/// Returns the beginning of a text, with a mark if it is cut.
fn shortened(text: &str, chars: usize) -> String {
    let shown: String = text.chars().take(chars).collect();
    let cut = if shown.len() < text.len() { "…" } else { "" };
    harmless(&shown) + cut
}

/// Returns a text without what a terminal obeys, or what looks like another line: a host, or a
/// transcript, may have any.
fn harmless(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Report on one transcript.
#[derive(Debug, Default)]
pub struct TranscriptReport {
    /// Name of the transcript.
    pub name: String,
    /// Differences, in the order in which they were found.
    pub differences: Vec<Difference>,
    /// True if the transcript was rewritten to what the host said.
    pub rewritten: bool,
    /// Reason for which the transcript was not played, if so.
    pub error: Option<String>,
}

impl TranscriptReport {
    /// Returns whether the host said the same as the transcript.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty() && self.error.is_none()
    }

    /// Returns the report in one line.
    pub fn summary(&self) -> String {
        match (&self.error, self.differences.len()) {
            (Some(error), _) => harmless(error),
            (None, 0) if self.rewritten => "rewritten".to_owned(),
            (None, 0) => "same".to_owned(),
            (None, 1) => "1 difference".to_owned(),
            (None, several) => format!("{several} differences"),
        }
    }
}

impl fmt::Display for TranscriptReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: {}", harmless(&self.name), self.summary())?;
        for difference in &self.differences {
            writeln!(formatter, "  {}", difference.to_string().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

/// Returns reports as XML of JUnit: a test case per transcript.
pub fn junit(reports: &[TranscriptReport]) -> String {
    let count = |is: &dyn Fn(&TranscriptReport) -> bool| reports.iter().filter(|report| is(report)).count();
    let errors = count(&|report| report.error.is_some());
    let failures = count(&|report| report.error.is_none() && !report.is_same());
    let counts = format!("tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\"", reports.len());
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  \
         <testsuite name=\"ahp-sidecar replay\" {counts}>\n"
    );
    for report in reports {
        let name = escaped(&report.name);
        let element = if report.error.is_some() { "error" } else { "failure" };
        let case = format!("    <testcase classname=\"ahp-sidecar.replay\" name=\"{name}\"");
        if report.is_same() {
            xml += &format!("{case}/>\n");
            continue;
        }
        let (message, text) = (escaped(&report.summary()), escaped(&report.to_string()));
        xml +=
            &format!("{case}>\n      <{element} message=\"{message}\">{text}</{element}>\n    </testcase>\n");
    }
    xml + "  </testsuite>\n</testsuites>\n"
}

/// Returns a text for XML 1.0, in which most control characters are not allowed.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(char),
            _ if char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            _ => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_kinds_names_and_reasons_are_shown_harmless() {
        let evil = "a\u{1b}[2J\r\nb: same".to_owned();
        let field = FieldDifference { path: evil.clone(), expected: None, received: None };
        let kind = evil.clone();
        let differences = vec![
            Difference::Fields { line: 1, kind, fields: vec![field] },
            Difference::Stopped { line: 2, why: evil.clone() },
        ];
        let report = TranscriptReport { name: evil.clone(), differences, ..TranscriptReport::default() };
        let broken = TranscriptReport { error: Some(evil), ..TranscriptReport::default() };
        let shown = format!("{report}{broken}");
        assert_eq!(shown.lines().count(), 5, "{shown}");
        assert!(!shown.replace('\n', "").contains(char::is_control), "{shown}");
    }

    #[test]
    fn long_and_hostile_values_are_shown_short_and_harmless() {
        let long = Some(Value::from("\u{1b}[2J".repeat(100)));
        let field = FieldDifference { path: "a".to_owned(), expected: long, received: None };
        let shown = field.to_string();
        assert!(
            !shown.contains('\u{1b}') && shown.contains('…') && shown.ends_with("got nothing"),
            "{shown}"
        );
    }
}
