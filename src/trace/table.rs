//! Tables of what took how long, out of a trace or a log.
//!
//! Owns: reading both, pairing requests with answers, and the printed table.
//! Never: shows an id, or a word that is not the protocol's.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{bail, Context};
use serde_json::{json, Value};

use super::tracks::{Tracks, PROCESS};
use super::Stage;
use crate::shapes::{shown, Shape};

/// Maximum number of messages in the list of the slowest.
const SLOWEST_MAX: usize = 10;

/// Name of the member of a logged message that says when it was sent, and by whom.
const METADATA: &str = "_ahpLog";

/// Tracks of the messages of a log.
const CLIENT: &str = "client";
const HOST: &str = "host";

/// Times of a message, by stage, in microseconds.
#[derive(Debug, Default)]
struct MessageTimes {
    /// Number of the message's line: in the log, or among the lines that the client sent.
    line: u64,
    name: String,
    bytes: usize,
    stages: BTreeMap<&'static str, f64>,
}

impl MessageTimes {
    fn total(&self) -> f64 {
        self.stages.values().sum()
    }
}

/// Messages with their times.
#[derive(Debug, Default)]
pub(super) struct Timings {
    messages: Vec<MessageTimes>,
    stages: Vec<&'static str>,
    /// Number of requests without an answer.
    unanswered: usize,
    /// Set if the last line is incomplete, as after a crash or on a full disk.
    is_cut_off: bool,
    /// Trace events of a log, for a viewer.
    pub(super) events: Vec<Value>,
}

impl Timings {
    /// Reads a trace of this program, or a log of one message per line.
    ///
    /// # Errors
    /// When the text is neither.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        if text.trim_start().starts_with('[') {
            Self::of_trace(text)
        } else {
            Self::of_log(text)
        }
    }

    fn of_trace(text: &str) -> anyhow::Result<Self> {
        let stages = [Stage::In, Stage::Core, Stage::Stored].map(Stage::name);
        let mut timings = Self { stages: stages.to_vec(), ..Self::default() };
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_start_matches('[').trim_end_matches([',', ']']).trim();
            if line.is_empty() {
                continue;
            }
            let event = match serde_json::from_str::<Value>(line) {
                Ok(event) => event,
                Err(_) if is_cut_off(text, line) => {
                    timings.is_cut_off = true;
                    break;
                }
                Err(error) => bail!("line {} is no trace event (column {})", at + 1, error.column()),
            };
            let (details, took) = (&event["args"], event["dur"].as_f64().unwrap_or_default());
            let is = |stage: Stage| event["cat"] == stage.name();
            let number = details["line"].as_u64();
            if let (true, Some(number)) = (is(Stage::In), number) {
                places.insert(number, timings.messages.len());
                let name = event["name"].as_str().unwrap_or_default();
                let name: Vec<&str> = name.split(' ').map(shown).collect();
                let bytes = details["bytes"].as_u64().and_then(|it| usize::try_from(it).ok()).unwrap_or(0);
                timings.messages.push(MessageTimes {
                    line: number,
                    name: name.join(" "),
                    bytes,
                    ..MessageTimes::default()
                });
            }
            let numbers = number
                .into_iter()
                .chain(details["lines"].as_array().into_iter().flatten().filter_map(Value::as_u64));
            let stage = stages.into_iter().find(|stage| event["cat"] == *stage);
            for place in numbers.filter_map(|number| places.get(&number)) {
                if let Some(stage) = stage {
                    *timings.messages[*place].stages.entry(stage).or_default() += took;
                }
            }
        }
        Ok(timings)
    }

    /// Reads a log: a request takes until its answer.
    fn of_log(text: &str) -> anyhow::Result<Self> {
        const ANSWER: &str = "answer";
        let mut timings = Self { stages: vec![ANSWER], ..Self::default() };
        let mut asked: BTreeMap<(String, bool, String), usize> = BTreeMap::new();
        let mut begin = None;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = at + 1;
            let message = match serde_json::from_str::<Value>(line) {
                Ok(message) => message,
                Err(_) if is_cut_off(text, line) => {
                    timings.is_cut_off = true;
                    break;
                }
                Err(error) => bail!("line {number} is no logged message (column {})", error.column()),
            };
            let log = &message[METADATA];
            let is_from_client = match log["dir"].as_str() {
                Some("c2s") => true,
                Some("s2c") => false,
                _ => bail!("line {number}: `{METADATA}.dir` is neither `c2s` nor `s2c`"),
            };
            let time = log["ts"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
            let time = time.with_context(|| format!("line {number}: `{METADATA}.ts` is no time"))?;
            // Counted from the first line: a time since 1970 is too large for a precise number.
            let since = time.as_nanosecond() - *begin.get_or_insert(time.as_nanosecond());
            let micros = since as f64 / 1000.0;
            let bytes = log["byteLength"].as_u64().and_then(|it| usize::try_from(it).ok());
            let shape = Shape::of(&message, bytes.unwrap_or(line.len()));
            let connection = log["connectionId"].to_string();
            timings.events.push(
                json!({ "name": shape.name, "cat": if is_from_client { CLIENT } else { HOST }, "ph": "X",
                "ts": micros, "dur": 0, "pid": PROCESS,
                "args": { "bytes": shape.bytes, "channel": shape.channel } }),
            );
            if shape.is_answer {
                let key = (connection, !is_from_client, shape.id.unwrap_or_default());
                if let Some(place) = asked.remove(&key) {
                    let event = &mut timings.events[place];
                    let took = micros - event["ts"].as_f64().unwrap_or_default();
                    event["dur"] = took.into();
                    // Messages are in the same order as their events.
                    timings.messages[place].stages.insert(ANSWER, took);
                }
            } else if let Some(id) = shape.id {
                asked.insert((connection, is_from_client, id), timings.messages.len());
            }
            let name = format!("{}{}", if is_from_client { "> " } else { "< " }, shape.name);
            let (line, bytes) = (number as u64, shape.bytes);
            timings.messages.push(MessageTimes { line, name, bytes, ..MessageTimes::default() });
        }
        timings.unanswered = asked.len();
        timings.place_events();
        Ok(timings)
    }

    /// Puts the events of a log on tracks.
    fn place_events(&mut self) {
        let (mut tracks, mut introductions) = (Tracks::default(), Vec::new());
        self.events.sort_by(|some, other| begin_of(some).total_cmp(&begin_of(other)));
        for event in &mut self.events {
            let (from, lasts) = (begin_of(event), event["dur"].as_f64().unwrap_or_default());
            let name = if event["cat"] == CLIENT { CLIENT } else { HOST };
            let (track, introduction) = tracks.place(name, from, from + lasts);
            event["tid"] = track.into();
            introductions.extend(introduction);
        }
        self.events.append(&mut introductions);
    }

    /// Returns the table: a line for each kind of message, those that took longest first, and the
    /// slowest messages.
    pub(super) fn table(&self) -> String {
        let mut kinds: BTreeMap<&str, Vec<&MessageTimes>> = BTreeMap::new();
        for message in &self.messages {
            kinds.entry(&message.name).or_default().push(message);
        }
        let total = |all: &[&MessageTimes]| all.iter().map(|it| it.total()).sum::<f64>();
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by(|(_, some), (_, other)| total(other).total_cmp(&total(some)));
        let mut table = format!("{:<44} {:>7} {:>11}", "message", "count", "bytes");
        for stage in &self.stages {
            push(&mut table, format_args!(" {:>21}", format!("{stage}: median, max")));
        }
        table.push('\n');
        for (name, all) in kinds {
            let bytes: usize = all.iter().map(|message| message.bytes).sum();
            push(&mut table, format_args!("{name:<44} {:>7} {bytes:>11}", all.len()));
            for stage in &self.stages {
                let mut times: Vec<f64> = all.iter().filter_map(|it| it.stages.get(stage)).copied().collect();
                times.sort_by(f64::total_cmp);
                let shown = |at: usize| times.get(at).map_or_else(|| "–".to_owned(), |time| millis(*time));
                let (median, max) = (shown(times.len() / 2), shown(times.len().saturating_sub(1)));
                push(&mut table, format_args!(" {median:>10} {max:>10}"));
            }
            table.push('\n');
        }
        let mut slowest: Vec<&MessageTimes> = self.messages.iter().collect();
        slowest.retain(|message| !message.stages.is_empty());
        slowest.sort_by(|some, other| other.total().total_cmp(&some.total()));
        if !slowest.is_empty() {
            table += "\nslowest messages\n";
        }
        for message in slowest.into_iter().take(SLOWEST_MAX) {
            let stages = self.stages.iter().filter_map(|stage| Some((stage, message.stages.get(stage)?)));
            let stages: Vec<String> =
                stages.map(|(stage, time)| format!("{stage} {}", millis(*time))).collect();
            push(
                &mut table,
                format_args!("{:>7}  {:<44} {}\n", message.line, message.name, stages.join(", ")),
            );
        }
        if self.unanswered > 0 {
            push(&mut table, format_args!("\nrequests without an answer: {}\n", self.unanswered));
        }
        if self.is_cut_off {
            table += "\nthe last line is incomplete, and left out\n";
        }
        table
    }
}

/// Returns when an event begins, in microseconds.
fn begin_of(event: &Value) -> f64 {
    event["ts"].as_f64().unwrap_or_default()
}

/// Returns whether a line is the last one, and has no end.
fn is_cut_off(text: &str, line: &str) -> bool {
    text.ends_with(line) && text.lines().nth(1).is_some()
}

/// Appends to a text, which cannot fail.
fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).unwrap_or_default();
}

fn millis(micros: f64) -> String {
    format!("{:.3} ms", micros / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_read_as_requests_with_their_answers() {
        let entry = |message: &str, time: &str, direction: &str| {
            format!("{{{message},\"_ahpLog\":{{\"ts\":\"2026-01-01T00:00:{time}Z\",\"dir\":\"{direction}\",\"byteLength\":9}}}}")
        };
        let log = [
            entry(r#""id":1,"method":"ping""#, "00.000", "c2s"),
            entry(r#""id":1,"method":"s3cret""#, "00.001", "s2c"),
            entry(r#""id":1,"result":"s3cret""#, "00.250", "s2c"),
        ];
        let timings = Timings::read(&log.join("\n\n")).unwrap();
        let table = timings.table();
        assert!(table.contains("> ping") && table.contains("250.000 ms"), "{table}");
        assert_eq!(timings.messages[2].line, 5, "blank lines count");
        assert!(table.contains("< other") && table.contains("requests without an answer: 1"), "{table}");
        assert!(!table.contains("s3cret"), "{table}");
        assert_eq!(
            (&timings.events[0]["name"], timings.events[0]["dur"].as_f64()),
            (&json!("ping"), Some(250_000.0))
        );
        let torn = log.join("\n") + "\n" + &log[0][..20];
        let table = Timings::read(&torn).unwrap().table();
        assert!(
            table.contains("250.000 ms") && table.ends_with("the last line is incomplete, and left out\n")
        );
        for (text, why) in [("{}", "line 1: `_ahpLog.dir`"), ("[\nx\n", "line 2 is no trace event")] {
            let error = format!("{:#}", Timings::read(text).unwrap_err());
            assert!(error.starts_with(why), "{error}");
        }
    }
}
