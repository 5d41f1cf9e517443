//! One line and what it says: a request, a notification, a response, or a mistake.
//!
//! Owns: taking the envelope of JSON-RPC 2.0 apart by its members, the nesting limit, reading
//! params into types with the field named in the error, and putting answers together.
//! Never: knows a method's meaning. A line that is not JSON-RPC is a value
//! ([`Incoming::Malformed`]), never a failure of this module.

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

/// The id of a request: its text on the wire, echoed as it came (a string, or a number of any
/// size).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(IdText);

/// Text of an id. Nearly all are short: those are copied, without counting who shares their line.
#[derive(Clone, PartialEq, Eq, Hash)]
enum IdText {
    /// Length of the text, and the text, with zeros behind it.
    Short(u8, [u8; SHORT_ID_MAX]),
    /// A longer text.
    Long(Bytes),
}

/// Maximum length of a short id, in bytes: as much as fits beside `Bytes`.
const SHORT_ID_MAX: usize = 30;

impl RequestId {
    /// The id in a line; `text` is a part of it.
    fn in_line(line: &Bytes, text: &[u8]) -> Self {
        Self::short(text).unwrap_or_else(|| Self(IdText::Long(line.slice_ref(text))))
    }

    fn short(text: &[u8]) -> Option<Self> {
        let mut short = [0; SHORT_ID_MAX];
        short.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self(IdText::Short(u8::try_from(text.len()).ok()?, short)))
    }

    /// The JSON text.
    pub fn as_json(&self) -> &[u8] {
        match &self.0 {
            IdText::Short(length, text) => &text[..usize::from(*length)],
            IdText::Long(text) => text,
        }
    }

    /// An id of a request that no client has made: no JSON text, so no client can give the same.
    pub fn inner(number: u64) -> Self {
        let text = Bytes::from(format!("~{number}"));
        Self::in_line(&text, &text)
    }

    /// The number of a request that no client has made.
    pub fn inner_number(&self) -> Option<u64> {
        std::str::from_utf8(self.as_json().strip_prefix(b"~")?).ok()?.parse().ok()
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({})", self.as_json().escape_ascii())
    }
}

/// Params as they came, not read yet.
#[derive(Clone, Default, PartialEq)]
pub struct Params {
    json: Option<Bytes>,
}

/// There may be a token among them, so nothing of them is shown.
impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Params({} bytes)", self.json.as_ref().map_or(0, Bytes::len))
    }
}

impl Params {
    /// Params from JSON text.
    pub fn from_json(json: impl Into<Bytes>) -> Self {
        Self { json: Some(json.into()) }
    }

    /// Their JSON text; nothing when there are none.
    pub fn as_json(&self) -> &[u8] {
        self.json.as_deref().unwrap_or_default()
    }

    /// Reads them as `T`. `null` stands for none, as some libraries write it.
    ///
    /// # Errors
    /// `-32602`, naming the field that does not fit.
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

/// Reads JSON text as `T`; the error is a sentence that names the field.
pub fn read_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // Line and column count inside the params: of no use to the reader of a message.
        let mut cause = error.into_inner().to_string();
        if let Some(end) = cause.rfind(" at line ") {
            cause.truncate(end);
        }
        match path.as_str() {
            "." => cause,
            path => format!("`{path}`: {cause}"),
        }
    })
}

/// An answer of a client, as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientReply {
    /// Id of the request that it answers.
    pub id: Option<RequestId>,
    /// The result; JSON text.
    pub result: Option<Bytes>,
    /// The error; JSON text.
    pub error: Option<Bytes>,
}

/// Meaning of one line.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// To be answered once.
    Request {
        /// Echoed in the answer.
        id: RequestId,
        /// The method's name.
        method: MethodName,
        /// Params, unread.
        params: Params,
    },
    /// Not to be answered.
    Notification {
        /// The method's name.
        method: MethodName,
        /// Params, unread.
        params: Params,
    },
    /// An answer to something that was asked of the client, or not.
    Response(ClientReply),
    /// Not a message; the error is to be told.
    Malformed {
        /// The id, when there is one that can be echoed.
        id: Option<RequestId>,
        /// Error to answer with.
        error: RpcError,
    },
}

impl Incoming {
    /// Takes one line apart. Never fails: a bad line is [`Incoming::Malformed`].
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

    /// Returns whether it names nothing that might have to be looked up, whatever its params are.
    pub fn names_nothing(&self) -> bool {
        match self {
            Self::Request { method, .. } | Self::Notification { method, .. } => {
                method.served() == Some(Method::Ping)
            }
            Self::Response(_) | Self::Malformed { .. } => true,
        }
    }
}

/// Returns the error about a line that is no JSON object.
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
    // Told apart from bad JSON: an array, a number, a string … is JSON, but no request.
    match (is_json, first) {
        (Err(error), _) => RpcError::parse_error(error),
        (Ok(()), Some('[')) => RpcError::invalid_request("batches are not served; send one request a line"),
        (Ok(()), _) => RpcError::invalid_request("a message must be a JSON object"),
    }
}

/// The members of a message that mean something to JSON-RPC, as JSON text; of a repeated member the
/// last one counts.
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
        let slice = |text: &[u8]| line.slice_ref(text);
        // Only strings and numbers are ids; in an error about anything else the id is null.
        let is_id = |text: &&[u8]| matches!(text.first(), Some(b'"' | b'-' | b'0'..=b'9'));
        let id = self.id.filter(is_id).map(|text| RequestId::in_line(line, text));
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
    /// A method that this host serves.
    Served(Method),
    /// Any other name.
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

    /// Returns the name as it is on the wire.
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

/// Returns whether no array or object of a JSON text lies deeper than `levels_max`. Counts brackets
/// outside of strings only: whether they match is the parser's business.
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

/// A line that answers a request with `result` (JSON text).
pub fn result_line(id: &RequestId, result: &[u8]) -> Bytes {
    // Of exactly this length, so that it is not allocated again on its way into `Bytes`.
    let length =
        RESULT_HEAD.len() + id.as_json().len() + RESULT_MIDDLE.len() + result.len() + RESULT_TAIL.len();
    let mut line = Vec::with_capacity(length);
    begin_result(&mut line, id);
    line.extend_from_slice(result);
    line.extend_from_slice(RESULT_TAIL);
    line.into()
}

/// Writes the text of such a line before the result.
pub fn begin_result(line: &mut Vec<u8>, id: &RequestId) {
    line.extend_from_slice(RESULT_HEAD);
    line.extend_from_slice(id.as_json());
    line.extend_from_slice(RESULT_MIDDLE);
}

const RESULT_HEAD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";
const RESULT_MIDDLE: &[u8] = b",\"result\":";

/// Text of such a line behind the result.
pub const RESULT_TAIL: &[u8] = b"}\n";

/// A line that answers a request, or a line that was none, with an error.
pub fn error_line(id: Option<&RequestId>, error: &RpcError) -> Bytes {
    let mut line = Vec::with_capacity(160);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    line.extend_from_slice(id.map_or(b"null", RequestId::as_json));
    line.extend_from_slice(b",\"error\":");
    line.extend_from_slice(&to_json(error));
    line.extend_from_slice(b"}\n");
    line.into()
}

/// A line that asks a client for something, with `params` (JSON text).
pub fn request_line(number: u64, method: &str, params: &[u8]) -> Bytes {
    let mut line =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"{method}\",\"params\":").into_bytes();
    line.extend_from_slice(params);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// A line that notifies of `method` with `params` (JSON text).
pub fn notification_line(method: &str, params: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(params.len() + method.len() + 50);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    line.extend_from_slice(&to_json(method));
    line.extend_from_slice(b",\"params\":");
    line.extend_from_slice(params);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// The JSON text of a value, its members in the order of its type.
///
/// For types without `HashMap`s inside only; the others go through [`to_sorted_json`], so that the
/// same value always has the same bytes.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Serialising our own types cannot fail: no map with keys that are not strings, no failing
    // `Serialize`.
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
    // Nothing that is counted here can fail to be written.
    serde_json::to_writer(&mut count, value).unwrap_or_default();
    count.0
}

/// The JSON text of a value, its members sorted by name.
pub fn to_sorted_json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    sorted(serde_json::to_value(value).unwrap_or_default())
}

/// [`to_sorted_json`] of a value that is not needed any more.
pub fn sorted(value: impl Into<Value>) -> Vec<u8> {
    let mut value = value.into();
    value.sort_all_objects();
    to_json(&value)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::value::RawValue;

    use super::*;

    fn parse(line: &str) -> Incoming {
        Incoming::parse(&Bytes::copy_from_slice(line.as_bytes()))
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
    fn what_is_no_request_is_told_apart_from_what_is_no_json() {
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
