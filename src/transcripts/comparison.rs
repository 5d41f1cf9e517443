//! Comparison of what a host sends with the lines that a transcript expects.
//!
//! A transcript fixes the order of all lines of the host, or, with `@ any-pace`, that of each
//! stream: the answer to a request, the messages of a channel. Such a line may also come earlier
//! than it is written, and several changes of a session's summary may be one.
//!
//! Owns: which received line is which expected one, what names stand for, and the text that a line
//! has in the rewritten transcript.
//! Never: waits for a line.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::differences::{Difference, FieldDifference};
use super::form::TranscriptLine;
use super::names::{is_time, NameTable, TIME};
use super::naming::{Naming, SEQUENCE_FIELDS};

/// Line that has not come yet.
#[derive(Debug)]
struct ExpectedLine {
    number: usize,
    text: String,
    message: Option<Value>,
    /// Line of a message that came before, although it is expected later; only where the order of
    /// all lines is fixed.
    overtaken_by: Option<usize>,
}

/// Notification of changed members of a session's summary, which a host sends when it likes.
const SUMMARY_CHANGED: &str = "root/sessionSummaryChanged";

/// Changes of a session's summary.
#[derive(Debug)]
struct SummaryChanges {
    /// Numbers of the lines; of a received message, of the line before it.
    lines: Vec<usize>,
    /// Last message, with the last value of each changed member.
    message: Value,
    /// Number of changes of each member.
    counts: BTreeMap<String, usize>,
}

impl SummaryChanges {
    fn line(&self) -> usize {
        self.lines.last().copied().unwrap_or_default()
    }

    fn session(&self) -> &Value {
        &self.message["params"]["session"]
    }

    fn changes(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.message["params"]["changes"].as_object().into_iter().flatten()
    }

    /// Returns whether another run may have no such change: the member may be what it was before,
    /// or is a point in time.
    fn may_be_missing(&self, name: &str, value: &Value) -> bool {
        self.counts.get(name).is_some_and(|count| *count > 1)
            || value.as_str().is_some_and(|text| text == TIME || is_time(text))
    }

    /// Returns the message without the changes that this run alone may have.
    fn without_missing_in(&self, other: &Self) -> Value {
        let mut message = self.message.clone();
        if let Some(changes) = message["params"]["changes"].as_object_mut() {
            changes.retain(|name, value| {
                other.changes().any(|(its, _)| its == name) || !self.may_be_missing(name, value)
            });
        }
        message
    }

    fn may_all_be_missing(&self) -> bool {
        self.changes().all(|(name, value)| self.may_be_missing(name, value))
    }
}

/// Line that has come, and that its transcript expects.
#[derive(Debug)]
struct MatchedLine {
    number: usize,
    arrival: usize,
}

/// Lines that have come on one channel.
#[derive(Debug, Default)]
struct MatchedStream {
    lines: Vec<MatchedLine>,
    /// Largest number of a line; larger ones that come are in order.
    last: usize,
    /// Lines that came after one that is expected later.
    late: BTreeSet<usize>,
}

impl MatchedStream {
    /// Adds a line; returns each line that is late because of it, with the line that overtook it.
    fn add(&mut self, line: MatchedLine) -> Vec<(usize, usize)> {
        // Lines that were expected only later may have arrived in any order.
        let is_in_order = self.lines.last().is_none_or(|last| last.arrival < line.arrival)
            && self.last < line.number
            && self.late.is_empty();
        self.last = self.last.max(line.number);
        if is_in_order {
            self.lines.push(line);
            return Vec::new();
        }
        let others = self.lines.iter();
        let mut late: Vec<(usize, usize)> = others
            .filter(|other| (other.number < line.number) != (other.arrival < line.arrival))
            .map(|other| (other.number.min(line.number), other.number.max(line.number)))
            .collect();
        late.retain(|(number, _)| self.late.insert(*number));
        self.lines.push(line);
        late
    }

    /// Returns the lines in the order in which they came, each with the number of the line whose
    /// place it takes: none moves behind its own.
    fn places(mut self) -> Vec<(usize, usize)> {
        self.lines.sort_by_key(|line| line.arrival);
        let mut first = usize::MAX;
        let mut places: Vec<(usize, usize)> = Vec::new();
        for line in self.lines.iter().rev() {
            first = first.min(line.number);
            places.push((line.number, first));
        }
        places.reverse();
        places
    }
}

/// Line that was received before anything expects it.
#[derive(Debug)]
struct EarlyLine {
    after: usize,
    arrival: usize,
    text: String,
    message: Option<Value>,
    /// Set unless it has a lower number than an action before it.
    grows: bool,
}

/// Comparison of one conversation.
#[derive(Debug)]
pub(super) struct TranscriptComparison {
    /// Names and their values; `None` if the transcript has no names.
    pub(super) names: Option<NameTable>,
    naming: Naming,
    any_pace: bool,
    /// Highest number of an action that was received.
    last_number: i64,
    pending: Vec<ExpectedLine>,
    early: Vec<EarlyLine>,
    /// Number of lines received.
    received: usize,
    /// Order of each channel, by its URI as JSON, where only that is fixed.
    streams: BTreeMap<String, MatchedStream>,
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
    let place = all.iter().position(|known| known.session() == session);
    let place = place.unwrap_or_else(|| {
        all.push(SummaryChanges { lines: Vec::new(), message: message.clone(), counts: BTreeMap::new() });
        all.len() - 1
    });
    let known = &mut all[place];
    known.lines.push(line);
    let changes = known.message["params"]["changes"].as_object_mut();
    if let (Some(changes), Some(newer)) = (changes, message["params"]["changes"].as_object()) {
        for (name, value) in newer {
            *known.counts.entry(name.clone()).or_default() += 1;
            changes.insert(name.clone(), value.clone());
        }
    }
}

/// Returns the channel of a message, as JSON; `None` for an answer, and for what is no message.
fn channel_of(message: Option<&Value>) -> Option<String> {
    let message = message.filter(|message| message.get("method").is_some())?;
    Some(message["params"]["channel"].to_string())
}

impl TranscriptComparison {
    pub(super) fn new(names: Option<NameTable>, naming: Naming, any_pace: bool) -> Self {
        Self {
            names,
            naming,
            any_pace,
            last_number: 0,
            pending: Vec::new(),
            early: Vec::new(),
            received: 0,
            streams: BTreeMap::new(),
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

    /// Returns whether an expected line before this one has not come yet.
    pub(super) fn is_waiting_before(&self, number: usize) -> bool {
        self.pending.iter().any(|line| line.number < number)
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
        self.received += 1;
        let number = message.as_ref().and_then(|it: &Value| it["params"]["serverSeq"].as_i64());
        let grows = number.is_none_or(|number| number >= self.last_number);
        self.last_number = self.last_number.max(number.unwrap_or_default());
        self.match_line(EarlyLine { after, arrival: self.received, text, message, grows });
    }

    fn may_be_merged(&self, message: &Value) -> bool {
        self.any_pace && message["method"] == SUMMARY_CHANGED
    }

    /// Compares the last value of each member. A member that has changed several times in one run
    /// may have kept its value in the other one, where the changes came as one.
    fn compare_summaries(&mut self) {
        for expected in std::mem::take(&mut self.expected_summaries) {
            let is_same = |it: &SummaryChanges| self.compare(expected.session(), it.session()).is_empty();
            let line = expected.line();
            let Some(place) = self.received_summaries.iter().position(is_same) else {
                if !expected.may_all_be_missing() {
                    expected.lines.iter().for_each(|line| drop(self.rewritten.remove(line)));
                    let text = expected.message.to_string();
                    self.differences.push(Difference::Missing { line, text });
                }
                continue;
            };
            let received = self.received_summaries.remove(place);
            let wanted = expected.without_missing_in(&received);
            let message = received.without_missing_in(&expected);
            let fields = self.compare(&wanted, &message);
            if !fields.is_empty() {
                let kind = kind_of(Some(&message));
                self.differences.push(Difference::Fields { line, kind, fields });
                expected.lines.iter().for_each(|line| drop(self.rewritten.remove(line)));
                let text = self.named(&received.message.to_string());
                self.rewritten.insert(line, TranscriptLine::Host(text).to_string());
            }
        }
        for received in std::mem::take(&mut self.received_summaries) {
            if !received.may_all_be_missing() {
                let (after, text) = (received.line(), received.message.to_string());
                self.add(EarlyLine { after, arrival: 0, text, message: None, grows: true });
            }
        }
    }

    /// Writes the lines of each channel in the order in which they came.
    fn reorder(&mut self) {
        for stream in std::mem::take(&mut self.streams).into_values().filter(|it| !it.late.is_empty()) {
            let places = stream.places().into_iter();
            let moved = places.map(|(number, place)| (place, self.rewritten.remove(&number)));
            for (place, text) in moved.collect::<Vec<_>>() {
                let Some(text) = text else { continue };
                let written = self.rewritten.entry(place).or_default();
                if !written.is_empty() {
                    written.push('\n');
                }
                *written += &text;
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
        if !self.any_pace {
            for earlier in &mut self.pending[..place] {
                earlier.overtaken_by.get_or_insert(expected.number);
            }
        } else if let Some(channel) = channel_of(line.message.as_ref()) {
            let matched = MatchedLine { number: expected.number, arrival: line.arrival };
            for (line, overtaken_by) in self.streams.entry(channel).or_default().add(matched) {
                self.differences.push(Difference::OutOfOrder { line, overtaken_by });
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
        self.reorder();
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
        let Some(names) = &mut self.names else { return };
        let compared = match (&expected.message, &line.message) {
            (Some(expected), Some(message)) => names.compare(expected, message),
            (None, None) => names.compare(&expected.text.as_str().into(), &line.text.as_str().into()),
            _ => return,
        };
        names.bind(compared);
    }

    fn differences_of(&self, expected: &ExpectedLine, line: &EarlyLine) -> Vec<FieldDifference> {
        match (&expected.message, &line.message) {
            (Some(expected), Some(message)) => {
                let mut fields = self.compare(expected, message);
                // All channels share the numbers, so another order of two of them shifts these.
                if self.any_pace && line.grows {
                    fields.retain(|field| !field.is_of_numbers(&SEQUENCE_FIELDS));
                }
                fields
            }
            (None, None) => self.compare(&expected.text.as_str().into(), &line.text.as_str().into()),
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
