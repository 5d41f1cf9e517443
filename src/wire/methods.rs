//! Methods that a client may call.
//!
//! Owns: the name and kind of each method, the reasons why some are not served, and the params that
//! differ from the types of `ahp-types`.
//! Never: handles a method (`host::router::requests` does).

use ahp_types::commands::Implementation;
use ahp_types::common::JsonObject;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::errors::RpcError;

/// Kind of a method: whether it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodKind {
    /// Answered once.
    Request,
    /// Never answered.
    Notification,
}

macro_rules! methods {
    ($($variant:ident = $name:literal, $kind:ident, $doc:literal;)*) => {
        /// A method that this host serves.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = $doc] $variant,)*
        }

        impl Method {
            /// Every served method, in the order of the table.
            pub const ALL: &'static [Method] = &[$(Method::$variant),*];

            /// Returns the served method with this name on the wire.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Method::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name on the wire.
            pub fn name(self) -> &'static str {
                match self {
                    $(Method::$variant => $name,)*
                }
            }

            /// Returns whether the protocol defines the method as a request or a notification.
            pub fn kind(self) -> MethodKind {
                match self {
                    $(Method::$variant => MethodKind::$kind,)*
                }
            }
        }
    };
}

methods! {
    Initialize = "initialize", Request, "Opens the connection and negotiates the version.";
    Reconnect = "reconnect", Request, "Opens the connection again and catches up.";
    Ping = "ping", Request, "Answers `null`, at any time.";
    Subscribe = "subscribe", Request, "Answers a snapshot and delivers what follows it.";
    Unsubscribe = "unsubscribe", Notification, "Stops the delivery of a channel.";
    FetchTurns = "fetchTurns", Request, "Loads older turns of a chat into the client's window.";
    CreateSession = "createSession", Request, "Creates a session under the client's URI.";
    DisposeSession = "disposeSession", Request, "Ends a session and everything in it.";
    CreateChat = "createChat", Request, "Opens another chat in a session.";
    DisposeChat = "disposeChat", Request, "Ends a chat.";
    MoveChat = "moveChat", Request, "Puts a chat elsewhere: in its session, in another one or in a new one.";
    ListSessions = "listSessions", Request, "Lists the sessions, newest first, in pages if asked.";
    Authenticate = "authenticate", Request, "Takes a token for a resource that an agent declares.";
    ResolveSessionConfig = "resolveSessionConfig", Request, "Answers what can be configured, and the defaults.";
    SessionConfigCompletions = "sessionConfigCompletions", Request, "Answers the values of a setting.";
    Completions = "completions", Request, "Answers what a message that is being typed may go on with.";
    ResourceRead = "resourceRead", Request, "Answers what is in a file of this machine.";
    ResourceList = "resourceList", Request, "Answers what is in a folder of this machine.";
    ResourceResolve = "resourceResolve", Request, "Answers what is known of a file or folder.";
    ResourceRequest = "resourceRequest", Request, "Answers whether a file or folder may be read or changed.";
    ResourceWrite = "resourceWrite", Request, "Writes a file, or a part of it.";
    ResourceMkdir = "resourceMkdir", Request, "Makes a folder.";
    ResourceMove = "resourceMove", Request, "Moves a file or a folder.";
    ResourceCopy = "resourceCopy", Request, "Copies a file or a folder.";
    ResourceDelete = "resourceDelete", Request, "Removes a file or a folder.";
    CreateResourceWatch = "createResourceWatch", Request, "Answers the channel on which changes of files are told.";
    CreateTerminal = "createTerminal", Request, "Starts a shell in a terminal under the client's URI.";
    DisposeTerminal = "disposeTerminal", Request, "Ends a terminal and what runs in it.";
    InvokeChangesetOperation = "invokeChangesetOperation", Request, "Reverts, restores or commits changes of files.";
    ListAutomationTriggerDefinitions = "listAutomationTriggerDefinitions", Request, "Lists the events that can start runs: none.";
    RunAutomation = "runAutomation", Request, "Starts a run of an automation.";
    FetchAutomationRuns = "fetchAutomationRuns", Request, "Loads older runs of an automation: none.";
    DispatchAction = "dispatchAction", Notification, "Asks for a state change.";
}

/// Methods that are served only if the operator's configuration says so, each with the reason why
/// it is not served otherwise.
pub const OPTIONAL: &[(&str, &str)] = &[
    ("listAutomationTriggerDefinitions", AUTOMATIONS_OFF),
    ("runAutomation", AUTOMATIONS_OFF),
    ("fetchAutomationRuns", AUTOMATIONS_OFF),
];

const AUTOMATIONS_OFF: &str = "automations are off";

/// Notifications outside of the protocol, ignored: VS Code 1.139.1 sends this one at each start.
pub const IGNORED: &[&str] = &["setClientManagedSettingsPermissions"];

/// Maximum length of a client id in bytes; ids are remembered, and sent with each action.
pub const CLIENT_ID_BYTES_MAX: usize = 1024;

/// Checks a client id, before anything is recorded of the client.
///
/// # Errors
/// When the id is empty or too long.
pub fn check_client_id(client_id: &str) -> Result<(), RpcError> {
    if client_id.is_empty() {
        return Err(RpcError::invalid_params("`clientId` must not be empty"));
    }
    if client_id.len() > CLIENT_ID_BYTES_MAX {
        return Err(RpcError::invalid_params(format_args!(
            "`clientId` must not be longer than {CLIENT_ID_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

/// Params of `initialize` without the version, which is negotiated before.
///
/// Here and in [`ReconnectParams`] and [`ListSessionsParams`], `channel` is not required: it can
/// only be the root channel, and real clients omit it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// Id that the client keeps over its reconnects.
    pub client_id: String,
    /// Name and version of the client software, for the log.
    pub client_info: Option<Implementation>,
    /// Language of the user, as a BCP 47 tag.
    pub locale: Option<String>,
    /// Channels to subscribe to in the same round trip.
    pub initial_subscriptions: Option<Vec<String>>,
}

/// Params of `reconnect`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReconnectParams {
    /// Client id of the earlier connection.
    pub client_id: String,
    /// Last `serverSeq` that the client has received.
    pub last_seen_server_seq: i64,
    /// Channels to subscribe to again.
    pub subscriptions: Vec<String>,
}

/// Params of `listSessions`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListSessionsParams {
    /// Maximum number of sessions; `None` for all.
    pub limit: Option<i64>,
    /// Cursor of the previous page; `None` for the first page.
    pub cursor: Option<String>,
}

/// Params of `resolveSessionConfig`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResolveConfigParams {
    /// Agent; `None` for the default one.
    pub provider: Option<String>,
    /// Values chosen so far.
    pub config: JsonObject,
}

/// Params of `sessionConfigCompletions`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigCompletionsParams {
    /// Agent; `None` for the default one.
    pub provider: Option<String>,
    /// Name of the setting.
    pub property: String,
    /// Text that the user has typed.
    pub query: Option<String>,
    /// `file:` URI of the folder that the session would work in.
    pub working_directory: Option<String>,
}

/// Params of `dispatchAction`, the action unparsed: an invalid one is echoed unchanged.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DispatchActionParams {
    /// URI of the channel to change.
    pub channel: String,
    /// Client's own number of the action.
    pub client_seq: i64,
    /// JSON text of the action.
    pub action: Box<RawValue>,
}
