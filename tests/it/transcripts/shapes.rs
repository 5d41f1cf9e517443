//! Checks that every line of a host conforms to the types of the protocol, with no surplus fields.
//!
//! Owns: parsing each line as its own type, and comparing it with what that type makes of it again.
//! Never: judges whether a line is the right one.

use std::collections::HashMap;
use std::fmt::Debug;

use ahp_sidecar::transcripts::form::{TranscriptFile, TranscriptLine};
use ahp_types::actions::ActionEnvelope;
use ahp_types::commands::{
    AuthenticateResult, CompletionsResult, CreateResourceWatchResult, FetchAutomationRunsResult,
    FetchTurnsResult, InitializeResult, InvokeChangesetOperationResult,
    ListAutomationTriggerDefinitionsResult, ListSessionsResult, MoveChatResult, ReconnectResult,
    ResolveSessionConfigResult, ResourceListParams, ResourceListResult, ResourceMoveParams,
    ResourceReadParams, ResourceReadResult, ResourceResolveParams, ResourceResolveResult,
    ResourceWriteParams, RunAutomationResult, SessionConfigCompletionsResult, SubscribeResult,
};
use ahp_types::messages::{JsonRpcError, JsonRpcMessage};
use ahp_types::notifications::{
    AuthRequiredParams, OtlpExportLogsParams, ProgressParams, SessionAddedParams, SessionRemovedParams,
    SessionSummaryChangedParams,
};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};

/// Every line of the host that is not what it should be: its number, and why.
pub fn check(transcript: &TranscriptFile) -> Vec<(usize, String)> {
    // The methods that were asked for, by the JSON text of the request's id.
    let mut asked: HashMap<String, String> = HashMap::new();
    let mut raw = Vec::new();
    let mut problems = Vec::new();
    for (at, step) in transcript.lines.iter().enumerate() {
        match step {
            TranscriptLine::Say(line) => {
                raw.extend_from_slice(line.as_bytes());
                raw.push(b'\n');
            }
            TranscriptLine::SayRaw(bytes) => raw.extend_from_slice(bytes),
            TranscriptLine::SayRepeat(count, bytes) => raw.extend(bytes.repeat(*count)),
            TranscriptLine::Host(line) => {
                for said in raw.split(|&byte| byte == b'\n') {
                    note_request(&mut asked, said);
                }
                raw.clear();
                if let Err(why) = check_line(line, &asked) {
                    problems.push((at + 1, why));
                }
            }
            _ => {}
        }
    }
    problems
}

fn note_request(asked: &mut HashMap<String, String>, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let members = serde_json::from_str::<HashMap<String, Box<RawValue>>>(text.trim_start_matches('\u{feff}'));
    let Ok(members) = members else { return };
    let method = members.get("method").and_then(|method| serde_json::from_str(method.get()).ok());
    if let (Some(id), Some(method)) = (members.get("id"), method) {
        asked.insert(id.get().to_owned(), method);
    }
}

/// Checks a request of the host to a client.
fn check_request(method: &str, params: &Value) -> Result<(), String> {
    match method {
        "resourceRead" => same::<ResourceReadParams>(params).map(drop),
        "resourceList" => same::<ResourceListParams>(params).map(drop),
        "resourceResolve" => same::<ResourceResolveParams>(params).map(drop),
        "resourceWrite" => same::<ResourceWriteParams>(params).map(drop),
        "resourceMove" => same::<ResourceMoveParams>(params).map(drop),
        _ => Err("the host asks for nothing else".to_owned()),
    }
}

fn check_line(line: &str, asked: &HashMap<String, String>) -> Result<(), String> {
    let message: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let members: HashMap<String, Box<RawValue>> =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let id = members.get("id").map_or("null", |id| id.get());
    // The type knows only ids that are numbers; others are told apart here.
    let mut with_plain_id = message.clone();
    if let Some(id) = with_plain_id.get_mut("id") {
        *id = json!(0);
    }
    match same::<JsonRpcMessage>(&with_plain_id)? {
        JsonRpcMessage::Request(request) => {
            check_request(&request.method, &request.params.ok_or("no params")?)
        }
        JsonRpcMessage::Notification(notification) => {
            let params = notification.params.ok_or("no params")?;
            check_notification(&notification.method, &params)
        }
        JsonRpcMessage::SuccessResponse(answer) => {
            let method = asked.get(id).ok_or("it answers nothing that was asked")?;
            check_result(method, &answer.result)
        }
        JsonRpcMessage::ErrorResponse(answer) => {
            if id != "null" && !asked.contains_key(id) {
                // A message without a method has an id too.
                if answer.error.code != ahp_types::errors::json_rpc_error_codes::INVALID_REQUEST {
                    return Err("it answers nothing that was asked".to_owned());
                }
            }
            same::<JsonRpcError>(&message["error"]).map(|_| ())
        }
    }
}

fn check_notification(method: &str, params: &Value) -> Result<(), String> {
    match method {
        "action" => {
            let mut params = params.clone();
            if params.get("rejectionReason").is_some() {
                // A refused action comes back as it was, whatever that was.
                let action: ActionEnvelope = read(&params)?;
                params["action"] = serde_json::to_value(action.action).map_err(|error| error.to_string())?;
                return same_but_unknown::<ActionEnvelope>(&params).map(|_| ());
            }
            same::<ActionEnvelope>(&params).map(|_| ())
        }
        "root/sessionAdded" => same::<SessionAddedParams>(params).map(|_| ()),
        "root/sessionRemoved" => same::<SessionRemovedParams>(params).map(|_| ()),
        "root/sessionSummaryChanged" => same::<SessionSummaryChangedParams>(params).map(|_| ()),
        "root/progress" => same::<ProgressParams>(params).map(|_| ()),
        "auth/required" => same::<AuthRequiredParams>(params).map(|_| ()),
        "otlp/exportLogs" => same::<OtlpExportLogsParams>(params).map(|_| ()),
        _ => Err(format!("an unknown notification: {method}")),
    }
}

fn check_result(method: &str, result: &Value) -> Result<(), String> {
    match method {
        "initialize" => same::<InitializeResult>(result).map(|_| ()),
        "reconnect" => same::<ReconnectResult>(result).map(|_| ()),
        "subscribe" => same::<SubscribeResult>(result).map(|_| ()),
        "listSessions" => same::<ListSessionsResult>(result).map(|_| ()),
        "runAutomation" => same::<RunAutomationResult>(result).map(|_| ()),
        "fetchAutomationRuns" => same::<FetchAutomationRunsResult>(result).map(|_| ()),
        "listAutomationTriggerDefinitions" => {
            same::<ListAutomationTriggerDefinitionsResult>(result).map(|_| ())
        }
        "authenticate" => same::<AuthenticateResult>(result).map(|_| ()),
        "moveChat" => same::<MoveChatResult>(result).map(|_| ()),
        "fetchTurns" => same::<FetchTurnsResult>(result).map(|_| ()),
        "resolveSessionConfig" => same::<ResolveSessionConfigResult>(result).map(|_| ()),
        "sessionConfigCompletions" => same::<SessionConfigCompletionsResult>(result).map(|_| ()),
        "completions" => same::<CompletionsResult>(result).map(|_| ()),
        "resourceRead" => same::<ResourceReadResult>(result).map(|_| ()),
        "resourceList" => same::<ResourceListResult>(result).map(|_| ()),
        "resourceResolve" => same::<ResourceResolveResult>(result).map(|_| ()),
        "createResourceWatch" => same::<CreateResourceWatchResult>(result).map(|_| ()),
        "invokeChangesetOperation" => same::<InvokeChangesetOperationResult>(result).map(|_| ()),
        "resourceWrite" | "resourceMkdir" | "resourceMove" | "resourceCopy" | "resourceDelete"
        | "resourceRequest"
            if *result == serde_json::json!({}) =>
        {
            Ok(())
        }
        "ping" | "createSession" | "disposeSession" | "createChat" | "disposeChat" | "createTerminal"
        | "disposeTerminal" | "unsubscribe" | "dispatchAction"
            if result.is_null() =>
        {
            Ok(())
        }
        _ => Err(format!("no result of {method}")),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

/// The value as a `T`, which must make the same value of it again and know everything in it.
fn same<T: DeserializeOwned + Serialize + Debug>(value: &Value) -> Result<T, String> {
    let read = same_but_unknown::<T>(value)?;
    // Variants for what a later version may bring are called so in all types, at any depth.
    if format!("{read:?}").contains("Unknown(") {
        return Err(format!("something in it is unknown: {read:?}"));
    }
    Ok(read)
}

fn same_but_unknown<T: DeserializeOwned + Serialize + Debug>(value: &Value) -> Result<T, String> {
    let read: T = read(value)?;
    let again = serde_json::to_value(&read).map_err(|error| error.to_string())?;
    if numbers_alike(&again) == numbers_alike(value) {
        Ok(read)
    } else {
        Err(format!("it is not all of its type, which makes {again} of it"))
    }
}

/// The value with 1 and 1.0 written alike: JSON does not tell them apart.
fn numbers_alike(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(numbers_alike).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), numbers_alike(value))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn surplus_and_unknown_values_are_reported() {
    let check = |line: &str| {
        let asked = HashMap::from([("1".to_owned(), "ping".to_owned())]);
        check_line(line, &asked)
    };
    let envelope = |action: &str, more: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"c","action":{action},"serverSeq":1{more}}}}}"#
        )
    };
    assert_eq!(check(r#"{"jsonrpc":"2.0","id":1,"result":null}"#), Ok(()));
    assert!(check(r#"{"jsonrpc":"2.0","id":2,"result":null}"#).is_err());
    assert!(check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).is_err());
    assert!(check(r#"{"jsonrpc":"2.0","id":1,"result":null,"more":1}"#).is_err());
    assert_eq!(check(&envelope(r#"{"type":"session/ready"}"#, "")), Ok(()));
    assert!(check(&envelope(r#"{"type":"session/ready","more":1}"#, "")).is_err());
    assert!(check(&envelope(r#"{"type":"session/ready"}"#, r#","origin":null"#)).is_err());
    assert!(check(&envelope(r#"{"type":"nobody/knows"}"#, "")).is_err());
    assert_eq!(check(&envelope(r#"{"type":"nobody/knows"}"#, r#","rejectionReason":"no""#)), Ok(()));
    let part = r#"{"type":"chat/responsePart","turnId":"t","part":{"kind":"nobodyKnows"}}"#;
    assert!(check(&envelope(part, "")).is_err());
}
