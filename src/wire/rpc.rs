//! JSON-RPC messages in lines.
//!
//! Owns: splitting the envelope of JSON-RPC 2.0 into members, the nesting limit, parsing params
//! with the field named in errors, and writing answers.
//! Never: fails at an invalid line, which is [`Incoming::Malformed`], or knows what a method means
//! but for `ping`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::Serialize;
use serde_json::Value;

use super::errors::RpcError;
use super::members::{visit_members, NESTING_MAX};
use super::methods::Method;

/// JSON text of a request's id (a string, or a number of any size), which is echoed unchanged.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(IdText);

/// Text of an id, copied, so that a pending request does not keep its line in memory. Nearly all
/// are short.
#[derive(Clone, PartialEq, Eq, Hash)]
enum IdText {
    /// Length of the text, and the text padded with zeros.
    Short(u8, [u8; SHORT_ID_MAX]),
    Long(Bytes),
}

/// Maximum length of a short id, in bytes: what fits beside `Bytes`.
const SHORT_ID_MAX: usize = 30;

impl RequestId {
    fn of(text: &[u8]) -> Self {
        Self::short(text).unwrap_or_else(|| Self(IdText::Long(Bytes::copy_from_slice(text))))
    }

    fn short(text: &[u8]) -> Option<Self> {
        let mut short = [0; SHORT_ID_MAX];
        short.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self(IdText::Short(u8::try_from(text.len()).ok()?, short)))
    }

    /// Returns the JSON text.
    pub fn as_json(&self) -> &[u8] {
        match &self.0 {
            IdText::Short(length, text) => &text[..usize::from(*length)],
            IdText::Long(text) => text,
        }
    }

    /// Makes the id of a request that no client has sent. It is not JSON, so no client can send it.
    pub fn inner(number: u64) -> Self {
        Self::of(format!("~{number}").as_bytes())
    }

    /// Returns the number of such an id.
    pub fn inner_number(&self) -> Option<u64> {
        std::str::from_utf8(self.as_json().strip_prefix(b"~")?).ok()?.parse().ok()
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({})", self.as_json().escape_ascii())
    }
}

/// Unparsed params.
#[derive(Clone, Default, PartialEq)]
pub struct Params {
    json: Option<Bytes>,
}

/// Shows only the length, because params may contain a token.
impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Params({} bytes)", self.json.as_ref().map_or(0, Bytes::len))
    }
}

impl Params {
    /// Makes params from JSON text.
    pub fn from_json(json: impl Into<Bytes>) -> Self {
        Self { json: Some(json.into()) }
    }

    /// Returns the JSON text; empty if there are no params.
    pub fn as_json(&self) -> &[u8] {
        self.json.as_deref().unwrap_or_default()
    }

    /// Parses the params as `T`. `null` means none, because some libraries write it.
    ///
    /// # Errors
    /// `-32602`, with the name of the invalid field.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let json: &[u8] = self.json.as_deref().filter(|json| *json != b"null").unwrap_or(b"{}");
        match json.first() {
            Some(b'{') => {}
            Some(b'[') => return Err(RpcError::invalid_params("`params` must be an object, not an array")),
            _ => return Err(RpcError::invalid_params("`params` must be an object")),
        }
        read_json(json).map_err(RpcError::invalid_params)
    }
}

/// Parses JSON text as `T`; the error is a sentence that names the field.
pub fn read_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    read_json_at(json).map_err(|TypeMismatch { path, cause }| match path {
        Some(path) => format!("`{path}`: {cause}"),
        None => cause,
    })
}

/// Reason for which JSON text is not of a type.
pub struct TypeMismatch {
    /// Path of the invalid member; `None` for the whole text.
    pub path: Option<String>,
    /// Reason, without a position in the text.
    pub cause: String,
}

/// Parses JSON text as `T`; the error has the path of the invalid member.
pub fn read_json_at<T: DeserializeOwned>(json: &[u8]) -> Result<T, TypeMismatch> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = Some(error.path().to_string()).filter(|path| path != ".");
        // Line and column refer to the params, not to the line that the client sent.
        let mut cause = error.into_inner().to_string();
        if let Some(end) = cause.rfind(" at line ") {
            cause.truncate(end);
        }
        TypeMismatch { path, cause }
    })
}

/// Answer of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientReply {
    /// Id of the request that it answers.
    pub id: Option<RequestId>,
    /// JSON text of the result.
    pub result: Option<Bytes>,
    /// JSON text of the error.
    pub error: Option<Bytes>,
}

/// Message in a line.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// Message that must be answered once.
    Request {
        /// Id, echoed in the answer.
        id: RequestId,
        /// Name of the method.
        method: MethodName,
        /// Unparsed params.
        params: Params,
    },
    /// Message that must not be answered.
    Notification {
        /// Name of the method.
        method: MethodName,
        /// Unparsed params.
        params: Params,
    },
    /// Answer to a request of the host, or to none.
    Response(ClientReply),
    /// Invalid message, answered with an error.
    Malformed {
        /// Id to echo, if any.
        id: Option<RequestId>,
        /// Error to answer with.
        error: RpcError,
    },
}

impl Incoming {
    /// Parses a line. Never fails: an invalid line is [`Incoming::Malformed`].
    pub fn parse(line: &Bytes) -> Self {
        let mut members = MessageMembers::default();
        let is_object = visit_members(line, |name, value| {
            let member = match name.as_ref() {
                b"jsonrpc" => &mut members.jsonrpc,
                b"id" => &mut members.id,
                b"method" => &mut members.method,
                b"params" => &mut members.params,
                b"result" => &mut members.result,
                b"error" => &mut members.error,
                _ => return,
            };
            *member = Some(value);
        });
        if is_object {
            members.classify(line)
        } else {
            Self::Malformed { id: None, error: no_object(line) }
        }
    }

    /// Returns the size of the message in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let id_bytes = |id: &Option<RequestId>| id.as_ref().map_or(0, |id| id.as_json().len());
        match self {
            Self::Request { id, params, .. } => id.as_json().len() + params.as_json().len(),
            Self::Notification { params, .. } => params.as_json().len(),
            Self::Response(ClientReply { id, result, error }) => {
                id_bytes(id) + result.iter().chain(error).map(Bytes::len).sum::<usize>()
            }
            Self::Malformed { id, .. } => id_bytes(id),
        }
    }

    /// Returns whether the message contains no names that must be looked up, whatever its params.
    pub fn names_nothing(&self) -> bool {
        match self {
            Self::Request { method, .. } | Self::Notification { method, .. } => {
                method.served() == Some(Method::Ping)
            }
            Self::Response(_) | Self::Malformed { .. } => true,
        }
    }
}

#[cold]
fn no_object(line: &[u8]) -> RpcError {
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => return RpcError::parse_error(error),
    };
    if !nesting_fits(line, NESTING_MAX) {
        let why = format_args!("arrays and objects are nested deeper than {NESTING_MAX}");
        return RpcError::parse_error(why);
    }
    let first = text.trim_start().chars().next();
    let is_json = match first {
        Some('{') => serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text).map(|_| ()),
        _ => serde_json::from_str::<IgnoredAny>(text).map(|_| ()),
    };
    // An array, a number or a string is JSON, but no request.
    match (is_json, first) {
        (Err(error), _) => RpcError::parse_error(error),
        (Ok(()), Some('[')) => RpcError::invalid_request("batches are not served; send one request a line"),
        (Ok(()), _) => RpcError::invalid_request("a message must be a JSON object"),
    }
}

/// Size of a line up to which its parts share its memory, in bytes.
const LINE_BYTES_SHARED: usize = 4096;

/// Members of a JSON-RPC message, as JSON text; of a repeated member, the last one counts.
#[derive(Default)]
struct MessageMembers<'a> {
    jsonrpc: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
    method: Option<&'a [u8]>,
    params: Option<&'a [u8]>,
    result: Option<&'a [u8]>,
    error: Option<&'a [u8]>,
}

impl MessageMembers<'_> {
    fn classify(self, line: &Bytes) -> Incoming {
        // A small part of a long line must not keep the rest of it in memory.
        let slice = |text: &[u8]| match line.len() > LINE_BYTES_SHARED && text.len() < line.len() / 2 {
            true => Bytes::copy_from_slice(text),
            false => line.slice_ref(text),
        };
        // Only strings and numbers are ids. An error about another id has the id null.
        let is_id = |text: &&[u8]| matches!(text.first(), Some(b'"' | b'-' | b'0'..=b'9'));
        let id = self.id.filter(is_id).map(RequestId::of);
        let malformed = |id, why: &str| Incoming::Malformed { id, error: RpcError::invalid_request(why) };
        let method = match self.method {
            Some(text) => match MethodName::from_json(text) {
                Some(method) => method,
                None => return malformed(id, "`method` must be a string"),
            },
            None if self.result.is_some() || self.error.is_some() => {
                let (result, error) = (self.result.map(slice), self.error.map(slice));
                return Incoming::Response(ClientReply { id, result, error });
            }
            None => return malformed(id, "a message needs a `method`"),
        };
        if self.jsonrpc != Some(b"\"2.0\"") {
            return malformed(id, "`jsonrpc` must be \"2.0\"");
        }
        if self.result.is_some() || self.error.is_some() {
            return malformed(id, "a message has either a `method` or a `result` or `error`");
        }
        let params = Params { json: self.params.map(slice) };
        match (self.id, id) {
            (None, _) => Incoming::Notification { method, params },
            (Some(_), Some(id)) => Incoming::Request { id, method, params },
            (Some(_), None) => malformed(None, "`id` must be a string or a number"),
        }
    }
}

/// Name of a method in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MethodName {
    /// Method that this host serves.
    Served(Method),
    /// Name as received.
    Other(String),
}

impl MethodName {
    fn from_json(json: &[u8]) -> Option<Self> {
        match json {
            [b'"', name @ .., b'"'] if !name.contains(&b'\\') => {
                std::str::from_utf8(name).ok().map(Self::from)
            }
            _ => serde_json::from_slice::<String>(json).ok().map(Self::from),
        }
    }

    /// Returns the method, if it is served.
    pub fn served(&self) -> Option<Method> {
        match self {
            Self::Served(method) => Some(*method),
            Self::Other(_) => None,
        }
    }

    /// Returns the name on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Served(method) => method.name(),
            Self::Other(name) => name,
        }
    }
}

impl<T: Into<String> + AsRef<str>> From<T> for MethodName {
    fn from(name: T) -> Self {
        match Method::from_name(name.as_ref()) {
            Some(method) => Self::Served(method),
            None => Self::Other(name.into()),
        }
    }
}

/// Returns whether arrays and objects are nested at most `levels_max` deep. Counts brackets outside
/// of strings; the parser checks that they match.
pub fn nesting_fits(json: &[u8], levels_max: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > levels_max {
                    return false;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

/// Makes the line that answers a request with a result (JSON text).
pub fn result_line(id: &RequestId, result: &[u8]) -> Bytes {
    // The exact length avoids another allocation in the conversion to `Bytes`.
    let length =
        RESULT_HEAD.len() + id.as_json().len() + RESULT_MIDDLE.len() + result.len() + RESULT_TAIL.len();
    let mut line = Vec::with_capacity(length);
    begin_result(&mut line, id);
    line.extend_from_slice(result);
    line.extend_from_slice(RESULT_TAIL);
    line.into()
}

/// Writes the part of a result line before the result.
pub fn begin_result(line: &mut Vec<u8>, id: &RequestId) {
    line.extend_from_slice(RESULT_HEAD);
    line.extend_from_slice(id.as_json());
    line.extend_from_slice(RESULT_MIDDLE);
}

const RESULT_HEAD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";
const RESULT_MIDDLE: &[u8] = b",\"result\":";

/// Part of a result line behind the result.
pub const RESULT_TAIL: &[u8] = b"}\n";

/// Makes the line that answers a request, or an invalid line without an id, with an error.
pub fn error_line(id: Option<&RequestId>, error: &RpcError) -> Bytes {
    let mut line = Vec::with_capacity(160);
    line.extend_from_slice(RESULT_HEAD);
    line.extend_from_slice(id.map_or(b"null", RequestId::as_json));
    line.extend_from_slice(b",\"error\":");
    line.extend_from_slice(&to_json(error));
    line.extend_from_slice(RESULT_TAIL);
    line.into()
}

/// Makes the line of a request to a client, with its params (JSON text).
pub fn request_line(number: u64, method: &str, params: &[u8]) -> Bytes {
    let mut line =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"{method}\",\"params\":").into_bytes();
    line.extend_from_slice(params);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// Makes the line of a notification, with its params (JSON text).
pub fn notification_line(method: &str, params: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(params.len() + method.len() + 50);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    line.extend_from_slice(&to_json(method));
    line.extend_from_slice(b",\"params\":");
    line.extend_from_slice(params);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// Returns a value's JSON text, with members in the order of its type. Use [`to_sorted_json`] for
/// types with `HashMap`s, so that equal values have equal texts.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Our own types have only string keys and no failing `Serialize`.
    serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec())
}

/// Returns the length of a value's JSON text, in bytes.
pub fn json_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    struct ByteCounter(usize);
    impl Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = ByteCounter(0);
    // Counting cannot fail.
    serde_json::to_writer(&mut count, value).unwrap_or_default();
    count.0
}

/// Capacity for names and punctuation of a small value's JSON text, in bytes.
const SMALL_BYTES: usize = 256;

/// Returns a value's JSON text, with members sorted by name.
pub fn to_sorted_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    sorted(serde_json::to_value(value).unwrap_or_default())
}

/// Returns the text of [`to_sorted_json`], without a copy of the value.
pub fn sorted(value: impl Into<Value>) -> Vec<u8> {
    let mut value = value.into();
    value.sort_all_objects();
    // A large text is written without moving what is already written, and takes what it needs.
    let texts = text_bytes(&value);
    let mut json = Vec::with_capacity(texts + texts / 8 + SMALL_BYTES);
    match serde_json::to_writer(&mut json, &value) {
        Ok(()) => json,
        Err(_) => b"null".to_vec(),
    }
}

/// Returns the length of all strings in a value, without names, in bytes.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(members) => members.values().map(text_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    fn parse(line: &str) -> Incoming {
        Incoming::parse(&Bytes::copy_from_slice(line.as_bytes()))
    }

    #[test]
    fn long_id_does_not_keep_its_line_in_memory() {
        let uuid = "\"123e4567-e89b-12d3-a456-426614174000\"";
        let line = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{uuid},"method":"ping"}}"#));
        let Incoming::Request { id, .. } = Incoming::parse(&line) else { panic!("a request") };
        assert!(line.is_unique());
        assert_eq!(id.as_json(), uuid.as_bytes());
    }

    fn code_and_id(line: &str) -> (i32, Option<String>) {
        match parse(line) {
            Incoming::Malformed { id, error } => {
                (error.code, id.map(|id| String::from_utf8(id.as_json().to_vec()).unwrap()))
            }
            other => panic!("{line} was read as {other:?}"),
        }
    }

    #[test]
    fn json_of_a_large_text_takes_little_more_memory_than_its_length() {
        let line = "\u{e4} line of prose, and a quoted \"word\" now and then, as agents write it\n";
        for lines in [1, 1000, 15_000] {
            let json = to_sorted_json(&json!({ "b": [{ "c": line.repeat(lines) }], "a": 1 }));
            assert_eq!(json, to_json(&json!({ "a": 1, "b": [{ "c": line.repeat(lines) }] })));
            assert!(json.capacity() < json.len() * 5 / 4 + 2 * SMALL_BYTES, "{lines}: {}", json.capacity());
        }
    }

    #[test]
    fn ids_are_echoed_as_they_came() {
        for id in
            ["1", "-7", "\"a\\u0041\"", "1.0", "1e2", &"9".repeat(30), &"9".repeat(31), &"9".repeat(500)]
        {
            let Incoming::Request { id: read, .. } =
                parse(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#))
            else {
                panic!("{id} is a good id")
            };
            assert_eq!(read.as_json(), id.as_bytes());
        }
    }

    #[test]
    fn invalid_request_and_invalid_json_have_different_errors() {
        assert_eq!(code_and_id("{"), (-32700, None));
        assert_eq!(code_and_id("nonsense"), (-32700, None));
        assert_eq!(code_and_id(r#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#), (-32700, None));
        assert_eq!(code_and_id(r#"{"\ud800":1,"jsonrpc":"2.0","id":1,"method":"ping"}"#), (-32700, None));
        assert_eq!(code_and_id("[]"), (-32600, None));
        assert_eq!(code_and_id("1"), (-32600, None));
        assert_eq!(code_and_id(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), (-32600, None));
        assert_eq!(code_and_id(r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#), (-32600, None));
        assert_eq!(code_and_id(r#"{"jsonrpc":"2.0","id":"x"}"#), (-32600, Some("\"x\"".into())));
        assert_eq!(code_and_id(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#), (-32600, Some("1".into())));
        assert_eq!(code_and_id(r#"{"jsonrpc":"2.0","id":1,"method":5}"#), (-32600, Some("1".into())));
        assert_eq!(
            code_and_id(r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":1}"#),
            (-32600, Some("1".into()))
        );
        let not_utf8 = Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}");
        assert!(matches!(
            Incoming::parse(&not_utf8),
            Incoming::Malformed { id: None, error } if error.code == -32700
        ));
    }

    #[test]
    fn a_response_is_known_as_one() {
        let reply = |result: Option<&'static str>, error: Option<&'static str>| {
            let (result, error) = (result.map(Bytes::from), error.map(Bytes::from));
            Incoming::Response(ClientReply { id: RequestId::short(b"1"), result, error })
        };
        assert_eq!(parse(r#"{"jsonrpc":"2.0","id":1,"result":null}"#), reply(Some("null"), None));
        let error = r#"{"code":1,"message":""}"#;
        let line = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#;
        assert_eq!(parse(line), reply(None, Some(error)));
    }

    #[test]
    fn nesting_is_bounded_also_where_nobody_reads() {
        let nested = |depth: usize| {
            // The message itself is one level.
            let inner = format!("{}{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","nobody reads this":{inner}}}"#)
        };
        assert!(matches!(parse(&nested(126)), Incoming::Request { .. }));
        assert!(matches!(parse(&nested(127)), Incoming::Request { .. }));
        assert_eq!(code_and_id(&nested(128)), (-32700, None));
        // Brackets inside strings are no nesting.
        let text = format!(r#"{{"jsonrpc":"2.0","method":"ping","x":"\"{}"}}"#, "[".repeat(500));
        assert!(matches!(parse(&text), Incoming::Notification { .. }));
    }

    #[test]
    fn an_error_about_params_names_the_field() {
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wanted {
            #[allow(dead_code)]
            client_seq: i64,
            #[allow(dead_code)]
            raw: Box<RawValue>,
        }
        let read =
            |json: &str| Params::from_json(json.to_owned()).read::<Wanted>().map_err(|error| error.message);
        assert_eq!(read("{}").unwrap_err(), "invalid params: missing field `clientSeq`");
        assert_eq!(
            read(r#"{"clientSeq":"x"}"#).unwrap_err(),
            "invalid params: `clientSeq`: invalid type: string \"x\", expected i64"
        );
        assert_eq!(read("[]").unwrap_err(), "invalid params: `params` must be an object, not an array");
        assert_eq!(read(r#"{"clientSeq":1,"raw":{"b":1, "a":2}}"#).unwrap().raw.get(), r#"{"b":1, "a":2}"#);
    }
}
