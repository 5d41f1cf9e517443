//! Errors that answer requests.
//!
//! Owns: the codes and messages, and the form of an error answer.
//! Never: contains a stack trace, a host path, or other information for the log.

use std::panic::Location;

use ahp_types::errors::{ahp_error_codes as ahp, json_rpc_error_codes as rpc};
use ahp_types::state::ProtectedResourceMetadata;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use super::methods::OPTIONAL;
use super::text;
use super::uris::ROOT;

/// JSON-RPC error object, the answer to a failed request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// JSON-RPC or AHP error code.
    pub code: i32,
    /// Sentence for the client's developer.
    pub message: String,
    /// Typed details, which the specification defines for some codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Names the resources that need a token, joined by "or" if none is required by itself.
pub fn needed(resources: &[ProtectedResourceMetadata]) -> String {
    let names: Vec<String> = resources.iter().map(|resource| format!("`{}`", resource.resource)).collect();
    let is_choice = resources.iter().all(|resource| resource.required == Some(false));
    names.join(if is_choice { " or " } else { " and " })
}

impl RpcError {
    fn new(code: i32, message: impl AsRef<str>) -> Self {
        Self { code, message: text::message(message.as_ref()), data: None }
    }

    /// Reports a line that is not JSON, not UTF-8, or nested too deeply.
    pub fn parse_error(detail: impl std::fmt::Display) -> Self {
        Self::new(rpc::PARSE_ERROR, format!("not valid JSON: {detail}"))
    }

    /// Returns whether the message itself is invalid, or its method is never served.
    pub fn is_about_the_message(&self) -> bool {
        [rpc::PARSE_ERROR, rpc::INVALID_REQUEST, rpc::METHOD_NOT_FOUND].contains(&self.code)
    }

    /// Reports JSON that is no request, or no valid one now.
    pub fn invalid_request(detail: impl AsRef<str>) -> Self {
        Self::new(rpc::INVALID_REQUEST, detail)
    }

    /// Reports a message before `initialize` or `reconnect`.
    pub fn not_initialized(method: &str) -> Self {
        Self::new(
            rpc::INVALID_REQUEST,
            format!("`{method}` before the handshake: send `initialize` or `reconnect` first"),
        )
    }

    /// Reports a method that is unknown or not served.
    pub fn method_not_found(method: &str) -> Self {
        let why = OPTIONAL.iter().find(|(name, _)| *name == method).map(|(_, why)| format!(": {why}"));
        let message = format!("method `{method}` is not served{}", why.unwrap_or_default());
        Self::new(rpc::METHOD_NOT_FOUND, message)
    }

    /// Reports invalid params; `detail` names the field.
    pub fn invalid_params(detail: impl std::fmt::Display) -> Self {
        Self::new(rpc::INVALID_PARAMS, format!("invalid params: {detail}"))
    }

    /// Reports a bug in this program. Logs the reason and the caller; clients do not get them.
    #[track_caller]
    pub fn internal(reason: impl std::fmt::Display) -> Self {
        tracing::error!(%reason, at = %Location::caller(), "bug in this program: a request cannot be answered");
        Self::new(rpc::INTERNAL_ERROR, "internal error; the log has the details")
    }

    /// Reports that the host cannot serve the request now, for a reason that the client may know.
    pub fn unavailable(reason: impl std::fmt::Display) -> Self {
        Self::new(rpc::INTERNAL_ERROR, format!("not possible now: {reason}"))
    }

    /// Reports a URI that names no channel.
    pub fn channel_not_found(channel: &str) -> Self {
        Self::new(ahp::SESSION_NOT_FOUND, format!("no channel `{channel}`"))
    }

    /// Reports a URI that names no readable resource.
    pub fn resource_not_found(uri: &str) -> Self {
        Self::new(ahp::NOT_FOUND, format!("there is no `{uri}`"))
    }

    /// Reports a `reconnect` of an unknown client. Real clients initialize after this error; after
    /// any other, they try again forever.
    pub fn unknown_client() -> Self {
        Self::new(ahp::NOT_FOUND, "the protocol version of this client id is not known: send `initialize`")
    }

    /// Reports a file or folder that the file system denies access to.
    pub fn permission_denied(uri: &str) -> Self {
        Self::denied(format!("the file system does not allow it: `{uri}`"))
    }

    fn denied(message: String) -> Self {
        Self { data: Some(json!({})), ..Self::new(ahp::PERMISSION_DENIED, message) }
    }

    /// Reports a terminal that this client may not have or end.
    pub fn terminal_denied(why: impl std::fmt::Display) -> Self {
        Self::denied(why.to_string())
    }

    /// Reports a file or folder that belongs to the host.
    pub fn own_file(uri: &str) -> Self {
        Self::denied(format!("`{uri}` belongs to the host itself"))
    }

    /// Reports a file that must not be changed; `can_be_asked_for` if that may be granted.
    pub fn change_denied(uri: &str, can_be_asked_for: bool) -> Self {
        let mut error = Self::denied(format!("`{uri}` may not be changed"));
        if can_be_asked_for {
            error.data = Some(json!({ "request": { "channel": ROOT, "uri": uri, "write": true } }));
        }
        error
    }

    /// Reports a file that exists and must not be replaced.
    pub fn file_exists(uri: &str) -> Self {
        Self::new(ahp::ALREADY_EXISTS, format!("`{uri}` is there already"))
    }

    /// Makes the error from that of a client that serves the file; keeps codes that others know.
    pub fn of_client(uri: &str, error: Self) -> Self {
        let known =
            [rpc::INVALID_PARAMS, ahp::NOT_FOUND, ahp::PERMISSION_DENIED, ahp::ALREADY_EXISTS, ahp::CONFLICT];
        if !known.contains(&error.code) {
            return Self::unavailable(format_args!("`{uri}`: its client says: {}", error.message));
        }
        Self { data: error.data, ..Self::new(error.code, error.message) }
    }

    /// Reports a file whose version is not the expected one.
    pub fn conflict(uri: &str) -> Self {
        Self::new(ahp::CONFLICT, format!("`{uri}` has changed, or is gone"))
    }

    /// Reports uncommitted changes that cannot be committed in their present state.
    pub fn not_committed(why: &str) -> Self {
        Self::new(ahp::CONFLICT, format!("nothing is committed: {why}"))
    }

    /// Reports that no file could be reverted; `files` names each with the reason.
    pub fn files_have_changed(files: &str) -> Self {
        Self::new(ahp::CONFLICT, format!("all files stay as they are: {files}"))
    }

    /// Reports an interrupted revert; `files` names the unsure and skipped ones with the reasons.
    pub fn partly_reverted(files: &str) -> Self {
        Self::new(
            rpc::INTERNAL_ERROR,
            format!("some files may have been changed, and can be changed back: {files}"),
        )
    }

    /// Reports an agent that needs tokens for these resources.
    pub fn auth_required(agent: &str, resources: &[ProtectedResourceMetadata]) -> Self {
        let needed = needed(resources);
        Self {
            data: Some(json!({ "resources": resources })),
            ..Self::new(ahp::AUTH_REQUIRED, format!("{agent} needs a token for {needed}"))
        }
    }

    /// Reports an unknown agent.
    pub fn provider_not_found(provider: &str) -> Self {
        Self::new(ahp::PROVIDER_NOT_FOUND, format!("no agent provider `{provider}`"))
    }

    /// Reports a session URI that is in use.
    pub fn session_already_exists(session: &str) -> Self {
        Self::new(ahp::SESSION_ALREADY_EXISTS, format!("`{session}` is already in use"))
    }

    /// Reports a conversation of an agent that a session goes on with.
    pub fn session_goes_on_already(name: &str, session: &str) -> Self {
        let message = format!("the agent's session `{name}` goes on in `{session}` already");
        Self { data: Some(json!({ "session": session })), ..Self::new(ahp::SESSION_ALREADY_EXISTS, message) }
    }

    /// Reports a URI that is in use.
    pub fn already_exists(uri: &str) -> Self {
        Self::new(ahp::ALREADY_EXISTS, format!("`{uri}` is already in use"))
    }

    /// Reports a request that is refused while a turn runs in the chat.
    pub fn turn_in_progress(chat: &str) -> Self {
        Self::new(ahp::TURN_IN_PROGRESS, format!("a turn is running in `{chat}`: cancel it or wait"))
    }

    /// Reports that no offered protocol version is served.
    pub fn unsupported_protocol_version(supported: &[&str]) -> Self {
        Self {
            code: ahp::UNSUPPORTED_PROTOCOL_VERSION,
            message: format!(
                "none of the offered protocol versions is served; served are those compatible with {}",
                supported.join(", ")
            ),
            data: Some(json!({ "supportedVersions": supported })),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Captured log.
    #[derive(Clone, Default)]
    struct Logged(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Logged {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a result, and what was logged on the way to it.
    pub(crate) fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
        let logged = Logged::default();
        let writer = logged.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let result = tracing::subscriber::with_default(log, act);
        let logged = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
        (result, logged)
    }

    #[test]
    fn internal_error_logs_its_cause_and_does_not_send_it() {
        let (error, logged) = logged(|| RpcError::internal("the disk has melted"));
        assert_eq!(serde_json::to_string(&error).unwrap().find("melted"), None);
        assert!(logged.contains("ERROR") && logged.contains("the disk has melted"), "{logged}");
        assert!(logged.contains(file!()), "the place that found it: {logged}");
        assert_eq!(logged.lines().count(), 1, "{logged}");
    }
}
