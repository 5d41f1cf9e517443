//! Types of results and of notifications.
//!
//! Owns: which results and notifications are read by the types of the specification, and their
//! dates.
//! Never: judges a member that the types leave open.

use ahp_types::commands::{
    AuthenticateResult, CompletionsResult, CreateResourceWatchResult, ListSessionsResult,
    ResolveSessionConfigResult, ResourceListResult, ResourceReadResult, SessionConfigCompletionsResult,
};
use ahp_types::notifications::{SessionAddedParams, SessionRemovedParams, SessionSummaryChangedParams};
use jiff::civil::DateTime;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;

use super::client::quoted;
use super::stop::{broken, must, Judged};

/// Notification of a new session.
pub const SESSION_ADDED: &str = "root/sessionAdded";

/// Notification of a session that was disposed of.
pub const SESSION_REMOVED: &str = "root/sessionRemoved";

/// Notification of changes of a session's summary.
pub const SUMMARY_CHANGED: &str = "root/sessionSummaryChanged";

/// Checks that the result of a method has its type.
pub fn check_result(method: &str, result: &Value) -> Judged<()> {
    let fits = match method {
        "authenticate" => fits::<AuthenticateResult>(result),
        "completions" => fits::<CompletionsResult>(result),
        "createResourceWatch" => fits::<CreateResourceWatchResult>(result),
        "listSessions" => fits::<ListSessionsResult>(result),
        "resolveSessionConfig" => fits::<ResolveSessionConfigResult>(result),
        "resourceList" => fits::<ResourceListResult>(result),
        "resourceRead" => fits::<ResourceReadResult>(result),
        "sessionConfigCompletions" => fits::<SessionConfigCompletionsResult>(result),
        _ => Ok(()),
    };
    if let Err(why) = fits {
        return broken(format!("the result of `{method}` is no such result ({why}): {}", quoted(result)));
    }
    if method == "listSessions" {
        return result["items"].as_array().into_iter().flatten().try_for_each(check_dates);
    }
    Ok(())
}

/// Checks that the params of a notification about sessions have their type.
pub fn check_notice(method: &str, params: &Value) -> Judged<()> {
    let fits = match method {
        SESSION_ADDED => fits::<SessionAddedParams>(params),
        SESSION_REMOVED => fits::<SessionRemovedParams>(params),
        SUMMARY_CHANGED => fits::<SessionSummaryChangedParams>(params),
        _ => Ok(()),
    };
    if let Err(why) = fits {
        return broken(format!("`{method}` is no such notification ({why}): {}", quoted(params)));
    }
    match method {
        SESSION_ADDED => check_dates(&params["summary"]),
        SUMMARY_CHANGED => check_dates(&params["changes"]),
        _ => Ok(()),
    }
}

/// Checks that the dates of a summary are dates, as far as it has them.
fn check_dates(summary: &Value) -> Judged<()> {
    for name in ["createdAt", "modifiedAt"] {
        // ISO 8601 needs no offset.
        let is_date = |text: &str| text.parse::<Timestamp>().is_ok() || text.parse::<DateTime>().is_ok();
        let date = summary.get(name).and_then(Value::as_str);
        must!(date.is_none_or(is_date), "`{name}` of a session is no date: {}", quoted(summary));
    }
    Ok(())
}

/// Checks that a value has a type; otherwise returns the reason.
fn fits<T: DeserializeOwned + Serialize>(value: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    let read = serde_json::to_value(&read).map_err(|error| error.to_string())?;
    has_objects_of(&read, value).then_some(()).ok_or_else(|| "an array is where an object belongs".to_owned())
}

/// Returns whether a value has objects where the value that was read of it has them: an array with
/// the members in their order is read as an object, too.
fn has_objects_of(read: &Value, said: &Value) -> bool {
    match (read, said) {
        (Value::Object(read), Value::Object(said)) => {
            read.iter().all(|(name, read)| said.get(name).is_none_or(|said| has_objects_of(read, said)))
        }
        (Value::Object(_), _) => false,
        (Value::Array(read), Value::Array(said)) => {
            read.iter().zip(said).all(|(read, said)| has_objects_of(read, said))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_results_of_each_method_are_broken() {
        let right = [
            ("authenticate", json!({})),
            ("completions", json!({ "items": [] })),
            (
                "resolveSessionConfig",
                json!({ "schema": { "type": "object", "properties": {} }, "values": {} }),
            ),
            ("sessionConfigCompletions", json!({ "items": [{ "value": "v", "label": "l", "more": 1 }] })),
            ("listSessions", json!({ "items": [] })),
        ];
        for (method, result) in &right {
            assert!(check_result(method, result).is_ok(), "{method}: {result}");
        }
        let wrong = [json!(null), json!("garbage"), json!(5), json!(true), json!([]), json!([[]])];
        for method in right.iter().map(|(method, _)| method) {
            for result in &wrong {
                assert!(check_result(method, result).is_err(), "{method}: {result}");
            }
        }
        for (method, result) in [
            ("completions", json!({})),
            ("completions", json!({ "items": null })),
            ("completions", json!({ "items": [{ "insertText": "x" }] })),
            ("resolveSessionConfig", json!({ "values": {} })),
            (
                "resolveSessionConfig",
                json!({ "schema": { "type": "object", "properties": {} }, "values": null }),
            ),
            ("sessionConfigCompletions", json!({ "items": [["v", "l"]] })),
            ("sessionConfigCompletions", json!({ "items": [{ "value": 1, "label": "l" }] })),
            ("listSessions", json!({ "items": [{ "resource": "ahp-session:/s" }] })),
        ] {
            assert!(check_result(method, &result).is_err(), "{method}: {result}");
        }
    }

    #[test]
    fn dates_of_all_forms_of_the_standard_are_dates() {
        for date in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123+02:00", "2026-01-01T00:00:00"] {
            assert!(check_dates(&json!({ "createdAt": date })).is_ok(), "{date}");
        }
        assert!(check_dates(&json!({ "modifiedAt": "yesterday" })).is_err());
    }
}
