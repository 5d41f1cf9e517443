//! Comparison of what a host sends with the lines that a transcript expects.
//!
//! A transcript fixes the order of all lines of the host, or, with `@ any-pace`, that of each
//! stream: the answer to a request, the messages of a channel. Such a line may also come earlier
//! than it is written, and several changes of a session's summary may be one.
//!
//! Owns: which received line is which expected one, what names stand for, and the text that a line
//! has in the rewritten transcript.
//! Never: waits for a line.

use std::collections::BTreeMap;

use serde_json::Value;

use super::differences::{Difference, FieldDifference};
use super::form::TranscriptLine;
use super::names::NameTable;
use super::naming::Naming;

/// Line that has not come yet.
#[derive(Debug)]
struct ExpectedLine {
    number: usize,
    text: String,
    message: Option<Value>,
    /// Line of a message of the same stream that came before, although it is expected later.
    overtaken_by: Option<usize>,
}

/// Notification of changed members of a session's summary, which a host sends when it likes.
const SUMMARY_CHANGED: &str = "root/sessionSummaryChanged";

/// Changes of a session's summary.
#[derive(Debug)]
struct SummaryChanges {
    /// Number of the last line.
    line: usize,
    /// Last message, with the last value of each changed member.
    message: Value,
}

/// Line that was received before anything expects it.
#[derive(Debug)]
struct EarlyLine {
    after: usize,
    text: String,
    message: Option<Value>,
}

/// Comparison of one conversation.
#[derive(Debug)]
pub(super) struct TranscriptComparison {
    /// Names and their values; `None` if the transcript has no names.
    pub(super) names: Option<NameTable>,
    naming: Naming,
    any_pace: bool,
    pending: Vec<ExpectedLine>,
    early: Vec<EarlyLine>,
    expected_summaries: Vec<SummaryChanges>,
    received_summaries: Vec<SummaryChanges>,
    /// Differences, in the order in which they were found.
    pub(super) differences: Vec<Difference>,
    /// New texts of expected lines, by their numbers. Lines that did not come are missing.
    pub(super) rewritten: BTreeMap<usize, String>,
    /// New lines, by the number of the line after which they stand.
    pub(super) added: BTreeMap<usize, Vec<String>>,
}

/// Returns the kind of a message, which says what it is about.
fn kind_of(message: Option<&Value>) -> String {
    let Some(message) = message else { return "no JSON".to_owned() };
    let action = &message["params"]["action"]["type"];
    match (message["method"].as_str(), action.as_str()) {
        (_, Some(action)) => format!("`{action}`"),
        (Some(method), None) => format!("`{method}`"),
        (None, None) => format!("answer to {}", message["id"]),
    }
}

/// Adds a change of a session's summary to those before it.
fn merge(all: &mut Vec<SummaryChanges>, line: usize, message: &Value) {
    let session = &message["params"]["session"];
    let Some(known) = all.iter_mut().find(|known| known.message["params"]["session"] == *session) else {
        return all.push(SummaryChanges { line, message: message.clone() });
    };
    known.line = line;
    let changes = known.message["params"]["changes"].as_object_mut();
    if let (Some(changes), Some(newer)) = (changes, message["params"]["changes"].as_object()) {
        changes.extend(newer.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
}

impl TranscriptComparison {
    pub(super) fn new(names: Option<NameTable>, naming: Naming, any_pace: bool) -> Self {
        Self {
            names,
            naming,
            any_pace,
            pending: Vec::new(),
            early: Vec::new(),
            expected_summaries: Vec::new(),
            received_summaries: Vec::new(),
            differences: Vec::new(),
            rewritten: BTreeMap::new(),
            added: BTreeMap::new(),
        }
    }

    /// Notes a line that the client sends.
    pub(super) fn note_said(&mut self, line: &str) {
        if let Some(names) = &self.names {
            self.naming.learn(names);
            self.naming.client_line(line);
        }
    }

    /// Expects a line from now on.
    pub(super) fn expect(&mut self, number: usize, text: &str) {
        let message = serde_json::from_str(text).ok();
        if let Some(message) = message.as_ref().filter(|message| self.may_be_merged(message)) {
            self.rewritten.insert(number, TranscriptLine::Host(text.to_owned()).to_string());
            return merge(&mut self.expected_summaries, number, message);
        }
        self.pending.push(ExpectedLine { number, text: text.to_owned(), message, overtaken_by: None });
        if self.any_pace {
            for early in std::mem::take(&mut self.early) {
                self.match_line(early);
            }
        }
    }

    /// Returns whether an expected line has not come yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns how many received lines nothing expects yet.
    pub(super) fn unexpected(&self) -> usize {
        let is_unexpected = |it: &&Difference| matches!(it, Difference::Unexpected { .. });
        self.early.len() + self.differences.iter().filter(is_unexpected).count()
    }

    /// Takes a line that came after this line of the transcript.
    pub(super) fn receive(&mut self, after: usize, text: String) {
        let message = serde_json::from_str(&text).ok();
        if let Some(message) = message.as_ref().filter(|message| self.may_be_merged(message)) {
            return merge(&mut self.received_summaries, after, message);
        }
        self.match_line(EarlyLine { after, text, message });
    }

    fn may_be_merged(&self, message: &Value) -> bool {
        self.any_pace && message["method"] == SUMMARY_CHANGED
    }

    /// Compares the last value of each member that both sides have changed.
    fn compare_summaries(&mut self) {
        for expected in std::mem::take(&mut self.expected_summaries) {
            let session = |of: &SummaryChanges| of.message["params"]["session"].clone();
            let is_same = |it: &&SummaryChanges| self.compare(&session(&expected), &session(it)).is_empty();
            let line = expected.line;
            let Some(received) = self.received_summaries.iter().find(is_same) else {
                self.rewritten.remove(&line);
                let text = expected.message.to_string();
                self.differences.push(Difference::Missing { line, text });
                continue;
            };
            let [mut wanted, mut message] = [&expected, received].map(|it| it.message.clone());
            let (all, others) = (&expected.message["params"]["changes"], received.message.clone());
            for (message, others) in [(&mut wanted, &others["params"]["changes"]), (&mut message, all)] {
                if let Some(changes) = message["params"]["changes"].as_object_mut() {
                    changes.retain(|name, _| others.get(name).is_some());
                }
            }
            let fields = self.compare(&wanted, &message);
            if !fields.is_empty() {
                let kind = kind_of(Some(&message));
                self.differences.push(Difference::Fields { line, kind, fields });
                let text = self.named(&others.to_string());
                self.rewritten.insert(line, TranscriptLine::Host(text).to_string());
            }
        }
    }

    fn match_line(&mut self, line: EarlyLine) {
        let same = self.pending.iter().position(|expected| self.differences_of(expected, &line).is_empty());
        let place = same.or_else(|| self.pending.iter().position(|expected| self.resembles(expected, &line)));
        let Some(place) = place else {
            if self.any_pace {
                self.early.push(line);
            } else {
                self.add(line);
            }
            return;
        };
        let mut expected = self.pending.remove(place);
        let fields = self.differences_of(&expected, &line);
        self.bind(&expected, &line);
        let is_same = fields.is_empty();
        if !is_same {
            let kind = kind_of(expected.message.as_ref());
            self.differences.push(Difference::Fields { line: expected.number, kind, fields });
        }
        if let Some(overtaken_by) = expected.overtaken_by.take() {
            self.differences.push(Difference::OutOfOrder { line: expected.number, overtaken_by });
        }
        for at in 0..place {
            if !self.any_pace || self.is_same_stream(&self.pending[at], &line) {
                self.pending[at].overtaken_by.get_or_insert(expected.number);
            }
        }
        let text = if is_same && self.names.is_some() { expected.text } else { self.named(&line.text) };
        let text = TranscriptLine::Host(text).to_string();
        if self.any_pace {
            self.rewritten.insert(expected.number, text);
        } else {
            self.added.entry(line.after).or_default().push(text);
        }
    }

    /// Ends the wait for the lines that are expected now. A transcript that fixes the order of all
    /// lines expects them no more.
    pub(super) fn settle(&mut self) {
        if !self.any_pace {
            self.give_up();
        }
    }

    /// Ends the comparison.
    pub(super) fn finish(&mut self) {
        self.give_up();
        self.compare_summaries();
        for line in std::mem::take(&mut self.early) {
            self.add(line);
        }
    }

    fn give_up(&mut self) {
        let missing = std::mem::take(&mut self.pending).into_iter();
        let missing = missing.map(|line| Difference::Missing { line: line.number, text: line.text });
        self.differences.extend(missing);
    }

    /// Adds a line that nothing expects.
    fn add(&mut self, line: EarlyLine) {
        let text = TranscriptLine::Host(self.named(&line.text)).to_string();
        self.differences.push(Difference::Unexpected { after: line.after, text: line.text });
        self.added.entry(line.after).or_default().push(text);
    }

    /// Returns a received line with names for what has one, or needs one.
    fn named(&mut self, text: &str) -> String {
        let Some(names) = &self.names else { return text.to_owned() };
        self.naming.learn(names);
        self.naming.host_line(text)
    }

    fn bind(&mut self, expected: &ExpectedLine, line: &EarlyLine) {
        if let (Some(names), Some(expected), Some(message)) =
            (&mut self.names, &expected.message, &line.message)
        {
            let compared = names.compare(expected, message);
            names.bind(compared);
        }
    }

    fn differences_of(&self, expected: &ExpectedLine, line: &EarlyLine) -> Vec<FieldDifference> {
        match (&expected.message, &line.message) {
            (Some(expected), Some(message)) => self.compare(expected, message),
            _ if expected.text == line.text => Vec::new(),
            _ => {
                let (expected, received) = (expected.text.as_str().into(), line.text.as_str().into());
                let (expected, received) = (Some(expected), Some(received));
                vec![FieldDifference { path: String::new(), expected, received }]
            }
        }
    }

    fn compare(&self, expected: &Value, received: &Value) -> Vec<FieldDifference> {
        match &self.names {
            Some(names) => names.compare(expected, received).fields,
            None => super::names::compare_literally(expected, received),
        }
    }

    /// Returns whether a line is probably the expected one, with differences.
    fn resembles(&self, expected: &ExpectedLine, line: &EarlyLine) -> bool {
        let (Some(wanted), Some(message)) = (&expected.message, &line.message) else {
            return expected.message.is_none() && line.message.is_none();
        };
        let is_answer = wanted.get("method").is_none();
        is_answer == message.get("method").is_none()
            && (is_answer || kind_of(Some(wanted)) == kind_of(Some(message)))
            && self.is_same_stream(expected, line)
    }

    /// Returns whether both lines answer one request, or are about one channel.
    fn is_same_stream(&self, expected: &ExpectedLine, line: &EarlyLine) -> bool {
        let (Some(expected), Some(message)) = (&expected.message, &line.message) else { return false };
        match (expected.get("method"), message.get("method")) {
            (None, None) => self.compare(&expected["id"], &message["id"]).is_empty(),
            (Some(_), Some(_)) => {
                self.compare(&expected["params"]["channel"], &message["params"]["channel"]).is_empty()
            }
            _ => false,
        }
    }
}
