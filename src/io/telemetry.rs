//! Export of the log to clients, as OTLP/JSON.
//!
//! A record has the constant beginning of a log line, the module, and values that are numbers or
//! words of the protocols. All other text may be that of people, agents or files, and stays here.
//!
//! Owns: the streams of records, one per subscribed channel, and their bounds.
//! Never: logs, which would make records about records; or waits for a client.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{json, Value};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use crate::host::effects::ConnectionId;
use crate::shapes::shown;
use crate::sync::lock;

/// Maximum number of pending records of a stream; further ones are dropped and counted.
const RECORDS_MAX: usize = 1024;

/// Maximum size of pending records of a stream, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Maximum number of records in a notification.
const BATCH_MAX: usize = 100;

/// Time for which records are collected.
pub const COLLECTED_FOR: Duration = Duration::from_millis(200);

/// Severity that no record has: no client is subscribed.
const NOBODY: u8 = u8::MAX;

/// Severity of a warning.
const WARN: u8 = 13;

/// Prefix of the modules whose records are exported.
const OWN_MODULES: &str = "ahp_sidecar";

/// Streams of log records to clients.
#[derive(Debug, Clone, Default)]
pub struct LogExports(Arc<LogExportsState>);

#[derive(Debug)]
struct LogExportsState {
    /// Lowest severity that any stream exports, so that a line costs one load without streams.
    lowest: AtomicU8,
    streams: Mutex<Vec<LogStream>>,
    /// Notified when records become pending.
    pending: Notify,
    /// Time of all records, in nanoseconds since 1970; unset for the real time.
    fixed_time: OnceLock<i128>,
}

impl Default for LogExportsState {
    fn default() -> Self {
        Self {
            lowest: AtomicU8::new(NOBODY),
            streams: Mutex::default(),
            pending: Notify::new(),
            fixed_time: OnceLock::new(),
        }
    }
}

/// Records that are pending for a subscribed channel.
#[derive(Debug)]
struct LogStream {
    connection: ConnectionId,
    channel: String,
    lowest: u8,
    /// Records as JSON text, oldest first.
    records: VecDeque<Arc<str>>,
    bytes: usize,
    dropped: u64,
}

impl LogStream {
    fn push(&mut self, record: &Arc<str>) {
        if self.records.len() >= RECORDS_MAX || self.bytes + record.len() > BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.bytes += record.len();
        self.records.push_back(Arc::clone(record));
    }

    fn is_pending(&self) -> bool {
        !self.records.is_empty() || self.dropped > 0
    }
}

impl LogExports {
    /// Gives all records the same time, in milliseconds since 1970.
    pub fn fix_time(&self, unix_ms: i64) {
        self.0.fixed_time.get_or_init(|| i128::from(unix_ms) * 1_000_000);
    }

    /// Starts a stream of records from this severity on. A stream that exists goes on, in the
    /// newest spelling of the channel, so that a connection has at most one stream per level.
    pub fn subscribe(&self, connection: ConnectionId, channel: String, lowest: u8) {
        self.change(|streams| {
            match streams.iter_mut().find(|it| (it.connection, it.lowest) == (connection, lowest)) {
                Some(stream) => stream.channel = channel,
                None => {
                    let records = VecDeque::new();
                    streams.push(LogStream { connection, channel, lowest, records, bytes: 0, dropped: 0 });
                }
            }
        });
    }

    /// Ends the connection's stream of records from this severity on; `None` for all its streams.
    pub fn unsubscribe(&self, connection: ConnectionId, lowest: Option<u8>) {
        let ends = |it: &LogStream| {
            it.connection == connection && lowest.is_none_or(|severity| severity == it.lowest)
        };
        self.change(|streams| streams.retain(|stream| !ends(stream)));
    }

    /// Returns whether any client is subscribed.
    pub fn has_streams(&self) -> bool {
        self.0.lowest.load(Ordering::Acquire) != NOBODY
    }

    fn change(&self, change: impl FnOnce(&mut Vec<LogStream>)) {
        let mut streams = self.streams();
        change(&mut streams);
        let lowest = streams.iter().map(|stream| stream.lowest).min();
        self.0.lowest.store(lowest.unwrap_or(NOBODY), Ordering::Release);
    }

    /// Takes an event of the log into all streams that it belongs to. `concerned` is the only
    /// connection that the event is for; `None` for all.
    pub fn note(&self, event: &Event<'_>, concerned: Option<u32>) {
        let meta = event.metadata();
        let (severity, name) = match *meta.level() {
            Level::TRACE => (1, "TRACE"),
            Level::DEBUG => (5, "DEBUG"),
            Level::INFO => (9, "INFO"),
            Level::WARN => (WARN, "WARN"),
            Level::ERROR => (17, "ERROR"),
        };
        if severity < self.0.lowest.load(Ordering::Acquire) || !meta.target().starts_with(OWN_MODULES) {
            return;
        }
        let mut shown = ShownEvent::default();
        event.record(&mut shown);
        shown.attributes.push(attribute("module", json!({ "stringValue": meta.target() })));
        self.push(severity, concerned, &self.record((severity, name), &shown.body, &shown.attributes));
    }

    /// Takes in that a repeated warning was written as a count.
    pub fn note_repetition(&self) {
        if WARN >= self.0.lowest.load(Ordering::Acquire) {
            self.push(WARN, None, &self.record((WARN, "WARN"), "an earlier warning is repeated", &[]));
        }
    }

    fn push(&self, severity: u8, concerned: Option<u32>, record: &Arc<str>) {
        let mut streams = self.streams();
        let wants = |it: &&mut LogStream| {
            it.lowest <= severity && concerned.is_none_or(|connection| connection == it.connection.0)
        };
        let mut is_new = false;
        for stream in streams.iter_mut().filter(wants) {
            is_new |= !stream.is_pending();
            stream.push(record);
        }
        if is_new {
            self.0.pending.notify_one();
        }
    }

    fn record(&self, (severity, name): (u8, &str), body: &str, attributes: &[Value]) -> Arc<str> {
        let now = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
        };
        let time = self.0.fixed_time.get().copied().unwrap_or_else(now).to_string();
        let record = json!({ "timeUnixNano": time, "observedTimeUnixNano": time, "severityNumber": severity,
            "severityText": name, "body": { "stringValue": body }, "attributes": attributes });
        record.to_string().into()
    }

    /// Waits until records become pending. Cancel safe.
    pub async fn pending(&self) {
        self.0.pending.notified().await;
    }

    /// Returns whether records are pending.
    pub fn are_pending(&self) -> bool {
        self.has_streams() && self.streams().iter().any(LogStream::is_pending)
    }

    /// Takes the next batch of a connection whose client has room for it: the connection, and the
    /// params of the notification as JSON text.
    pub fn take(&self, has_room: impl Fn(ConnectionId) -> bool) -> Option<(ConnectionId, String)> {
        let mut streams = self.streams();
        let stream = streams.iter_mut().find(|it| it.is_pending() && has_room(it.connection))?;
        let count = stream.records.len().min(BATCH_MAX);
        let mut records: Vec<Arc<str>> = stream.records.drain(..count).collect();
        stream.bytes -= records.iter().map(|record| record.len()).sum::<usize>();
        if stream.records.is_empty() && stream.dropped > 0 {
            let dropped = std::mem::take(&mut stream.dropped);
            let count = attribute("count", json!({ "intValue": dropped.to_string() }));
            let body = "records were dropped: the client has not read them in time";
            records.push(self.record((WARN, "WARN"), body, &[count]));
        }
        Some((stream.connection, params(&stream.channel, &records)))
    }

    fn streams(&self) -> MutexGuard<'_, Vec<LogStream>> {
        lock(&self.0.streams)
    }
}

fn attribute(key: &str, value: Value) -> Value {
    json!({ "key": key, "value": value })
}

/// Returns the params of a notification with these records.
fn params(channel: &str, records: &[Arc<str>]) -> String {
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let service = attribute("service.name", json!({ "stringValue": name }));
    let resource = json!({ "attributes": [service] });
    let scope = json!({ "name": name, "version": version });
    let (channel, records) = (json!(channel), records.join(","));
    format!(
        "{{\"channel\":{channel},\"payload\":{{\"resourceLogs\":[{{\"resource\":{resource},\
         \"scopeLogs\":[{{\"scope\":{scope},\"logRecords\":[{records}]}}]}}]}}}}"
    )
}

/// Parts of an event that may be exported.
#[derive(Debug, Default)]
struct ShownEvent {
    body: String,
    attributes: Vec<Value>,
}

impl Visit for ShownEvent {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attributes.push(attribute(field.name(), json!({ "intValue": value.to_string() })));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attributes.push(attribute(field.name(), json!({ "intValue": value.to_string() })));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attributes.push(attribute(field.name(), json!({ "boolValue": value })));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // Only a word of the protocols is known to be no text of anybody.
        if shown(value) == value {
            self.attributes.push(attribute(field.name(), json!({ "stringValue": value })));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let mut prefix = ConstantPrefix::default();
            // The error is that of `ConstantPrefix`, which ends the writing.
            if write!(prefix, "{value:?}").is_err() {
                prefix.text.push('…');
            }
            self.body = prefix.text;
        }
    }
}

/// First piece of a formatted text. Every message of this program begins with constant words (a
/// test holds that), which the standard library writes as one piece; values follow.
#[derive(Debug, Default)]
struct ConstantPrefix {
    text: String,
}

impl Write for ConstantPrefix {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if !self.text.is_empty() {
            return Err(fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: ConnectionId = ConnectionId(1);

    fn exports() -> LogExports {
        let exports = LogExports::default();
        exports.fix_time(1);
        exports.subscribe(READER, "ahp-otlp://logs/info".to_owned(), 9);
        exports
    }

    fn taken(exports: &LogExports) -> Vec<Value> {
        let taken = exports.take(|_| true);
        let params: Value = taken.map_or(Value::Null, |(_, params)| serde_json::from_str(&params).unwrap());
        let records = &params["payload"]["resourceLogs"][0]["scopeLogs"][0]["logRecords"];
        records.as_array().cloned().unwrap_or_default()
    }

    #[test]
    fn message_is_exported_up_to_its_first_value() {
        let beginning = |message: &dyn fmt::Debug| {
            let mut prefix = ConstantPrefix::default();
            let is_cut = write!(prefix, "{message:?}").is_err();
            (prefix.text, is_cut)
        };
        let secret = "s3cret".to_owned();
        assert_eq!(beginning(&format_args!("it is said: {secret}")), ("it is said: ".to_owned(), true));
        assert_eq!(beginning(&format_args!("all of it")), ("all of it".to_owned(), false));
    }

    #[test]
    fn records_beyond_the_limits_are_dropped_and_counted() {
        let exports = exports();
        let record = exports.record((9, "INFO"), "x", &[]);
        (0..RECORDS_MAX + 3).for_each(|_| exports.push(9, None, &record));
        assert!(exports.take(|_| false).is_none(), "a client that does not read gets none");
        let all: Vec<Value> = std::iter::repeat_with(|| taken(&exports))
            .take_while(|batch| !batch.is_empty())
            .inspect(|batch| assert!(batch.len() <= BATCH_MAX + 1))
            .flatten()
            .collect();
        assert_eq!(all.len(), RECORDS_MAX + 1);
        assert_eq!(all[RECORDS_MAX]["attributes"][0]["value"]["intValue"], "3");
        let large = exports.record((9, "INFO"), &"x".repeat(BYTES_MAX / 2), &[]);
        (0..2).for_each(|_| exports.push(9, None, &large));
        assert_eq!(taken(&exports).len(), 2, "the second one is only counted");
    }

    #[test]
    fn stream_has_records_of_its_level_and_connection() {
        let exports = exports();
        let record = exports.record((9, "INFO"), "x", &[]);
        exports.push(5, None, &record);
        exports.push(9, Some(2), &record);
        assert!(!exports.are_pending());
        exports.push(9, Some(1), &record);
        assert_eq!(taken(&exports).len(), 1);
        exports.push(9, None, &record);
        exports.unsubscribe(READER, None);
        assert!(!exports.are_pending());
        assert!(!exports.has_streams());
    }
}
