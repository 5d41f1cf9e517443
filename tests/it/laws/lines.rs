//! Checks that every line conforms to the protocol, with no surplus fields.
//!
//! Owns: reading a line that a client receives into the types of the protocol, and the proof that
//! those types hold all of it: written again, they give the same JSON.
//! Never: knows what was said before, beyond what kind of answer is awaited.

use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::commands::{
    FetchTurnsResult, InitializeResult, ListSessionsResult, MoveChatResult, ReconnectResult, SubscribeResult,
};
use ahp_types::messages::{JsonRpcError, JsonRpcErrorResponse, JsonRpcNotification, JsonRpcSuccessResponse};
use ahp_types::notifications::{
    ProgressParams, SessionAddedParams, SessionRemovedParams, SessionSummaryChangedParams,
};
use anyhow::{bail, ensure, Context, Result};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;

/// Request whose answer a client expects.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Initialize,
    Reconnect,
    Subscribe,
    Fetch,
    List,
    Move,
    /// Something that is answered with nothing.
    Nothing,
}

/// Parsed line of the host.
#[derive(Debug)]
pub enum Line {
    Action(Box<ActionEnvelope>),
    SessionAdded(SessionAddedParams),
    SessionRemoved(SessionRemovedParams),
    SummaryChanged(Box<SessionSummaryChangedParams>),
    Progress(ProgressParams),
    Initialized(InitializeResult),
    Reconnected(ReconnectResult),
    Subscribed(SubscribeResult),
    Listed(ListSessionsResult),
    Moved,
    Nothing,
    Error,
}

/// Parses a line, independently of pending requests.
pub fn parse(line: &[u8]) -> Result<Value> {
    let (last, rest) = line.split_last().context("an empty line")?;
    ensure!(*last == b'\n' && !rest.contains(&b'\n'), "not one line");
    serde_json::from_slice(line).context("not JSON")
}

/// The id of the request that a message answers.
pub fn answered(message: &Value) -> Option<u64> {
    message.get("method").is_none().then(|| message.get("id")?.as_u64()).flatten()
}

/// Reads a message that answers `asked`, if it answers anything.
pub fn read(message: &Value, asked: Option<&Asked>) -> Result<Line> {
    if message.get("method").is_some() {
        return read_notification(message);
    }
    if message.get("error").is_some() {
        if message["id"].is_null() {
            // An answer to a line that was no request, which the type of answers does not know.
            return exactly::<JsonRpcError>(&message["error"]).map(|_| Line::Error);
        }
        return exactly::<JsonRpcErrorResponse>(message).map(|_| Line::Error);
    }
    let result = exactly::<JsonRpcSuccessResponse>(message)?.result;
    Ok(match asked.context("an answer to nothing")? {
        Asked::Initialize => Line::Initialized(exactly(&result)?),
        Asked::Reconnect => Line::Reconnected(exactly(&result)?),
        Asked::Subscribe => Line::Subscribed(exactly(&result)?),
        Asked::List => Line::Listed(exactly(&result)?),
        Asked::Move => exactly::<MoveChatResult>(&result).map(|_| Line::Moved)?,
        Asked::Fetch => {
            exactly::<FetchTurnsResult>(&result)?;
            Line::Nothing
        }
        Asked::Nothing => {
            ensure!(result.is_null(), "nothing was to be answered, not {result}");
            Line::Nothing
        }
    })
}

fn read_notification(message: &Value) -> Result<Line> {
    let JsonRpcNotification { method, params, .. } = exactly(message)?;
    let params = params.context("no params")?;
    Ok(match method.as_str() {
        "action" if params.get("origin").is_some() => {
            // It may be an answer to its sender, which shows the action as it was said, whatever
            // that was.
            Line::Action(Box::new(serde_json::from_value(params)?))
        }
        "action" => Line::Action(Box::new(read_sequenced(&params)?)),
        "root/sessionAdded" => Line::SessionAdded(exactly(&params)?),
        "root/sessionRemoved" => Line::SessionRemoved(exactly(&params)?),
        "root/sessionSummaryChanged" => {
            let changed: SessionSummaryChangedParams = exactly(&params)?;
            let fixed = ["resource", "provider", "createdAt"].map(|name| params["changes"].get(name));
            ensure!(fixed == [None; 3], "what identifies a session changed: {params}");
            Line::SummaryChanged(Box::new(changed))
        }
        "root/progress" => Line::Progress(exactly(&params)?),
        other => bail!("an unknown notification: {other}"),
    })
}

/// An envelope of the sequence: of a known action.
pub fn read_sequenced(params: &Value) -> Result<ActionEnvelope> {
    ensure!(
        params.get("origin").is_none_or(Value::is_object),
        "`origin` must be left out or there: {params}"
    );
    let envelope: ActionEnvelope = exactly(params)?;
    ensure!(!matches!(envelope.action, StateAction::Unknown(_)), "an unknown action was sequenced: {params}");
    ensure!(envelope.rejection_reason.is_none(), "a refusal was sequenced: {params}");
    Ok(envelope)
}

/// Reads all of a value as `T`.
fn exactly<T: DeserializeOwned + Serialize>(value: &Value) -> Result<T> {
    let name = std::any::type_name::<T>();
    let read = T::deserialize(value).with_context(|| format!("no {name}: {value}"))?;
    let written = serde_json::to_value(&read)?;
    ensure!(written == *value, "{name} leaves something over:\n{value}\nbecomes\n{written}");
    Ok(read)
}
