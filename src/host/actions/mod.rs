//! What clients may ask to be changed: the table, and the way of an action through it.
//!
//! Owns: the table of client-dispatchable actions of the root, session and chat channels, reading an
//! action, and the answer to its sender: the echo to all, a refusal with its reason, or an acknowledgement
//! of what changes nothing. The conditions are those of the tables "Server Validation of Client Actions"
//! on the session and chat channel pages of the specification, and of the rulings in the chapter.
//! Never: changes state other than through `sequence`; never lets a refused action have an effect.

mod answers;
mod chat;
mod session;
mod tools;

use ahp_types::actions::{ActionOrigin, StateAction};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::effects::{ChatKey, ConnectionId, Target};
use super::model::TitleBy;
use super::selection::Asked;
use super::{Host, Step};
use crate::wire::asides::Aside;
use crate::wire::errors::RpcError;
use crate::wire::methods::DispatchActionParams;
use crate::wire::rpc::nesting_fits;

/// A channel kind that an action belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The root channel.
    Root,
    /// A session's channel.
    Session,
    /// A chat's channel.
    Chat,
}

/// An action that the protocol lets clients dispatch.
#[derive(Debug, Clone, Copy)]
pub struct ClientAction {
    /// Its name on the wire.
    pub name: &'static str,
    /// Where it belongs.
    pub scope: Scope,
    /// Why it is refused whatever it says; none when it is served.
    pub not_served: Option<&'static str>,
    /// Why its payload does not parse, naming the member; none when it does.
    problem: fn(&Value) -> Option<String>,
}

/// Every client-dispatchable action of the root, session and chat channels.
pub fn client_actions() -> &'static [ClientAction] {
    TABLE
}

macro_rules! table {
    ($($scope:ident $name:literal => $payload:ident $(, refused: $reason:expr)?;)*) => {
        const TABLE: &[ClientAction] = &[$(ClientAction {
            name: $name,
            scope: Scope::$scope,
            not_served: table!(@reason $($reason)?),
            problem: problem_with::<ahp_types::actions::$payload>,
        }),*];
    };
    (@reason) => { None };
    (@reason $reason:expr) => { Some($reason) };
}

const NO_CONFIG: &str = "this host has no configuration of its own";
const NO_CUSTOMIZATIONS: &str = "no agent of this host offers customizations";
const NO_MCP_SERVERS: &str = "no agent of this host shows MCP servers of its own";

table! {
    Root "root/configChanged" => RootConfigChangedAction, refused: NO_CONFIG;

    Session "session/titleChanged" => SessionTitleChangedAction;
    Session "session/isReadChanged" => SessionIsReadChangedAction;
    Session "session/isArchivedChanged" => SessionIsArchivedChangedAction;
    Session "session/defaultChatChanged" => SessionDefaultChatChangedAction;
    Session "session/configChanged" => SessionConfigChangedAction;
    Session "session/activeClientSet" => SessionActiveClientSetAction;
    Session "session/activeClientRemoved" => SessionActiveClientRemovedAction;
    Session "session/workingDirectorySet" => SessionWorkingDirectorySetAction;
    Session "session/workingDirectoryRemoved" => SessionWorkingDirectoryRemovedAction;
    Session "session/workingDirectoryReplaced" => SessionWorkingDirectoryReplacedAction;
    Session "session/customizationToggled" => SessionCustomizationToggledAction, refused: NO_CUSTOMIZATIONS;
    Session "session/mcpServerStartRequested" => SessionMcpServerStartRequestedAction, refused: NO_MCP_SERVERS;
    Session "session/mcpServerStopRequested" => SessionMcpServerStopRequestedAction, refused: NO_MCP_SERVERS;
    Session "session/mcpServerBackgroundRequested" => SessionMcpServerBackgroundRequestedAction, refused: NO_MCP_SERVERS;

    Chat "chat/turnStarted" => ChatTurnStartedAction;
    Chat "chat/turnCancelled" => ChatTurnCancelledAction;
    Chat "chat/turnResume" => ChatTurnResumeAction;
    Chat "chat/truncated" => ChatTruncatedAction;
    Chat "chat/toolCallConfirmed" => ChatToolCallConfirmedAction;
    Chat "chat/toolCallResultConfirmed" => ChatToolCallResultConfirmedAction;
    Chat "chat/toolCallComplete" => ChatToolCallCompleteAction;
    Chat "chat/toolCallContentChanged" => ChatToolCallContentChangedAction;
    Chat "chat/inputAnswerChanged" => ChatInputAnswerChangedAction;
    Chat "chat/inputCompleted" => ChatInputCompletedAction;
    Chat "chat/pendingMessageSet" => ChatPendingMessageSetAction;
    Chat "chat/pendingMessageRemoved" => ChatPendingMessageRemovedAction;
    Chat "chat/queuedMessagesReordered" => ChatQueuedMessagesReorderedAction;
    Chat "chat/draftChanged" => ChatDraftChangedAction;
    Chat "chat/isReadChanged" => ChatIsReadChangedAction;
    Chat "chat/isArchivedChanged" => ChatIsArchivedChangedAction;
    Chat "chat/workingDirectorySet" => ChatWorkingDirectorySetAction;
    Chat "chat/workingDirectoryRemoved" => ChatWorkingDirectoryRemovedAction;
}

/// Arrays and objects may be nested this deep in an action. Fewer than in a line: what an action puts into a
/// state lies up to seven levels deeper in a snapshot, and clients that read no more than
/// [`NESTING_MAX`](crate::wire::rpc::NESTING_MAX) levels must be able to read that too.
pub(super) const ACTION_NESTING_MAX: usize = 100;

/// Why an action is refused: one sentence for the developer of the client.
pub(in crate::host) type Refusal = String;

/// What becomes of an action that is not refused.
pub(in crate::host) enum Verdict {
    /// It was sequenced, with whatever follows from it.
    Done,
    /// It changes nothing (or nothing that its channel shows): its sender is told so, nobody else.
    Unchanged,
}

impl Host {
    /// Carries a client's action out, or tells the client why not.
    ///
    /// # Errors
    /// When `params` are not even an envelope. Everything that is wrong with the action itself is told by
    /// an echo with a `rejectionReason`.
    pub(super) fn dispatch_action(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        params: DispatchActionParams,
        aside: Option<&Aside>,
    ) -> Result<(), RpcError> {
        // "Server MUST silently ignore the action (no echo)": chat and session channel pages.
        let target = self.find(&params.channel);
        let unreadable = self.unreadable.get(&params.channel);
        if target.is_none() && unreadable.is_none() {
            tracing::debug!(channel = params.channel, "an action on an unknown channel was ignored");
            return Ok(());
        }
        let client_id = self.connections.get(&connection).and_then(|client| client.client_id.clone());
        let origin = ActionOrigin { client_id: client_id.unwrap_or_default(), client_seq: params.client_seq };
        let verdict = match (target, &self.failing) {
            (None, _) => {
                Err(format!("the session cannot be read: {}", unreadable.map_or("", String::as_str)))
            }
            (_, Some(failing)) => Err(format!("nothing can be kept now: {}", failing.reason)),
            (Some(target), None) => {
                let asked = Asked {
                    connection,
                    channel: params.channel.clone(),
                    action: params.action.clone(),
                    origin: origin.clone(),
                };
                self.carry_out(step, target, asked, aside)
            }
        };
        let mut answer = |refusal| {
            self.answer_action(step, connection, &params.channel, &params.action, &origin, refusal);
        };
        match &verdict {
            Ok(Verdict::Done) => {}
            Ok(Verdict::Unchanged) => answer(None),
            Err(refusal) => answer(Some(refusal.as_str())),
        }
        if let Some(Target::Chat(chat)) = target {
            self.end_if_too_large(step, chat);
        }
        // What a queue waited for may have come. Only now: an acknowledgement after what follows would put
        // a message back that was just taken up, where its sender applies it.
        if let (Some(Target::Chat(chat)), None) = (target, &self.failing) {
            self.take_next_queued(step, chat);
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        step: &mut Step<'_>,
        target: Target,
        asked: Asked,
        aside: Option<&Aside>,
    ) -> Result<Verdict, Refusal> {
        if let Some(Aside::Selects { change, for_all_chats }) = aside {
            return self.client_selects(step, target, asked, change, *for_all_chats);
        }
        let action = self.meant(target, &asked, aside)?;
        let origin = asked.origin;
        self.check_state_has_room(target, &action)?;
        match (target, action) {
            (Target::Session(key), action) => self.change_session(step, key, action, origin),
            // Real clients rename a chat this way, and a session, which they show by its default chat.
            (Target::Chat(key), StateAction::SessionTitleChanged(a)) => {
                self.name_chat(step, key, &a.title, TitleBy::User);
                let session = self.chats.get(&key).map(|chat| chat.session);
                if let Some(session) = session.filter(|_| self.is_default(key)) {
                    self.name_session(step, session, &a.title, TitleBy::User);
                }
                Ok(Verdict::Unchanged)
            }
            (Target::Chat(key), action) => self.change_chat_as_meant(step, key, action, origin, aside),
            (Target::Root, _) => Err("nothing on the root channel can be changed by clients".to_owned()),
        }
    }
}

impl Host {
    /// The action that a client dispatches, made of what it says, what that means besides, and the state now.
    fn meant(&self, target: Target, asked: &Asked, aside: Option<&Aside>) -> Result<StateAction, Refusal> {
        match (target, aside) {
            (Target::Session(key), Some(Aside::OffersTools(tools))) => {
                self.offer_of_tools(key, &asked.origin.client_id, tools)
            }
            (Target::Session(key), Some(Aside::KnowsOneClient)) => {
                let action = read_action(target, &asked.action, None)?;
                self.check_one_client(key, &asked.origin.client_id, &action)?;
                Ok(action)
            }
            (Target::Chat(key), Some(Aside::InRunningTurn)) => {
                let turn = self.chats.get(&key).and_then(|chat| chat.run.as_ref()).map(|run| &*run.turn_id);
                read_action(target, &asked.action, Some(turn.unwrap_or_default()))
            }
            _ => read_action(target, &asked.action, None),
        }
    }

    fn change_chat_as_meant(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        mut action: StateAction,
        origin: ActionOrigin,
        aside: Option<&Aside>,
    ) -> Result<Verdict, Refusal> {
        let follows = aside == Some(&Aside::Follows);
        let pending = match &mut action {
            StateAction::ChatTurnStarted(action) if follows => {
                self.address(key, &mut action.message);
                None
            }
            StateAction::ChatTruncated(action) if aside == Some(&Aside::KeepsSelection) => {
                self.keep_selection(step, key, action);
                None
            }
            StateAction::ChatPendingMessageSet(action) => Some((action.id.clone(), follows)),
            StateAction::ChatPendingMessageRemoved(action) => Some((action.id.clone(), false)),
            _ => None,
        };
        let verdict = self.change_chat(step, key, action, origin)?;
        if let Some((id, follows)) = pending {
            self.let_follow(key, &id, follows);
        }
        Ok(verdict)
    }
}

/// Reads an action and checks that clients may dispatch it on this channel and that it is served. One
/// about a turn that does not say which is about `turn`, where there is such.
fn read_action(target: Target, raw: &RawValue, turn: Option<&str>) -> Result<StateAction, Refusal> {
    if !nesting_fits(raw.get().as_bytes(), ACTION_NESTING_MAX) {
        return Err(format!("`action` is nested deeper than {ACTION_NESTING_MAX} levels"));
    }
    let mut members: Map<String, Value> =
        serde_json::from_str(raw.get()).map_err(|error| format!("`action` is not readable: {error}"))?;
    let name = match members.get("type") {
        Some(Value::String(name)) => name.clone(),
        _ => return Err("`action` has no `type`".to_owned()),
    };
    let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
        return Err(match serde_json::from_value(Value::String(name.clone())) {
            Ok(ahp_types::actions::ActionType::Unknown(_)) | Err(_) => format!("`{name}` is no known action"),
            Ok(_) => format!("`{name}` is not for clients to dispatch on this host"),
        });
    };
    let scope = match target {
        Target::Root => Scope::Root,
        Target::Session(_) => Scope::Session,
        Target::Chat(_) => Scope::Chat,
    };
    let renames_chat = scope == Scope::Chat && name == "session/titleChanged";
    if entry.scope != scope && !renames_chat {
        let (belongs, here) = (entry.scope.name(), scope.name());
        return Err(format!("`{name}` belongs on {belongs}, and this is {here}"));
    }
    if let Some(reason) = entry.not_served {
        return Err(reason.to_owned());
    }
    if let Some(turn) = turn {
        members.entry("turnId").or_insert_with(|| Value::from(turn));
    }
    // These two are the host's clock's to say: it replaces them, so a client may leave them out.
    match name.as_str() {
        "chat/turnStarted" => members.entry("startedAt").or_insert_with(|| Value::from("")),
        "chat/turnCancelled" => members.entry("duration").or_insert_with(|| Value::from(0)),
        _ => &mut Value::Null,
    };
    let value = Value::Object(members);
    match StateAction::deserialize(&value) {
        Ok(StateAction::Unknown(_)) | Err(_) => {
            let problem = (entry.problem)(&value).unwrap_or_else(|| "its members do not fit".to_owned());
            Err(format!("`{name}`: {problem}"))
        }
        Ok(action) => Ok(action),
    }
}

fn problem_with<T: DeserializeOwned>(value: &Value) -> Option<String> {
    let error = serde_path_to_error::deserialize::<_, T>(value).err()?;
    let path = error.path().to_string();
    let cause = error.into_inner();
    Some(if path == "." { cause.to_string() } else { format!("`{path}`: {cause}") })
}

impl Scope {
    fn name(self) -> &'static str {
        match self {
            Self::Root => "the root channel",
            Self::Session => "a session's channel",
            Self::Chat => "a chat's channel",
        }
    }
}
