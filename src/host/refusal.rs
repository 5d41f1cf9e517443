//! Reasons for which the host refuses an action or request of a client.
//!
//! Owns: the table of refusals, each with a sentence for the client's developer, sent as
//! `rejectionReason` in the echo of an action, or after `invalid params:` in the error that answers
//! a request.
//! Never: decides that something is refused.

use ahp_types::state::ErrorInfo;

use crate::wire::text::{self, human_size};

/// Reason of a refusal; its `Display` is sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    // The action itself.
    #[error("`action` is nested deeper than {0} levels")]
    NestedTooDeeply(usize),
    /// Invalid JSON, or an object of another shape.
    #[error("`action` is not readable: {0}")]
    Unreadable(String),
    #[error("`action` has no `type`")]
    WithoutType,
    #[error("`{0}` is no known action")]
    UnknownAction(String),
    /// An action of the protocol that only hosts may send.
    #[error("`{0}` is not for clients to dispatch on this host")]
    NotForClients(String),
    #[error("`{name}` belongs on {on}, and this is {this}")]
    OtherKindOfChannel { name: String, on: &'static str, this: &'static str },
    /// Reason from the table of the kind's actions.
    #[error("{0}")]
    NotServed(&'static str),
    /// An action that clients may dispatch but this kind of channel does not support.
    #[error("not served on {0}")]
    NotServedOn(&'static str),
    #[error("`{name}`: {problem}")]
    Payload { name: String, problem: String },
    /// Invalid value of a member.
    #[error("`{member}`: {problem}")]
    Member { member: String, problem: String },
    #[error("`{0}` must not be empty")]
    EmptyId(&'static str),
    #[error("`{name}` must not be longer than {max} bytes")]
    LongId { name: &'static str, max: usize },

    // Targets of actions.
    #[error("the session cannot be read: {0}")]
    SessionUnreadable(String),
    #[error("nothing can be stored now: {0}")]
    NothingIsKept(String),
    #[error("the chat is gone")]
    ChatGone,
    #[error("there is no room for it: {what} has {there} bytes of {}", human_size(*max))]
    StateFull { what: &'static str, there: usize, max: usize },
    #[error("there is no room for it: the host's configuration has at most {0} values")]
    TooManyRootValues(usize),
    #[error("there is no room for it: the host's configuration has at most {}", human_size(*.0))]
    RootValuesTooLarge(usize),
    #[error("nothing else on the root channel can be changed by clients")]
    OnlyRootConfig,
    /// Input to the terminal of an agent's command, which accepts none.
    #[error("the terminal shows what a command of an agent prints: it {0}")]
    OutputOfAgent(&'static str),
    #[error("another client has the terminal")]
    ClaimedByOther,
    #[error("a session has the terminal: subscribe to it first")]
    NotSubscribed,
    #[error("the program in the terminal has ended")]
    ProgramEnded,
    #[error("at most {0} bytes are typed at once")]
    InputTooLarge(usize),
    #[error("the program in the terminal has not read what was typed: {0} bytes may wait")]
    InputUntaken(usize),
    #[error("a terminal has between 1 and {0} columns, and as many rows")]
    ScreenSize(u16),
    #[error("a terminal's title has at most {0} bytes, and no control characters")]
    TerminalTitle(usize),
    #[error("a client claims a terminal for itself or for a session, not for the client `{0}`")]
    ClaimOfOther(String),
    #[error("`{0}`, for which the terminal is claimed, is not there")]
    ClaimUnknown(String),
    #[error("`files` names none that is in the changeset")]
    NoSuchFiles,
    #[error("the changes of `files` are being computed; mark them when that is done")]
    ChangesPending,
    #[error("no such annotation: `{0}`")]
    NoSuchAnnotation(String),
    #[error("no such entry: `{0}`")]
    NoSuchEntry(String),
    #[error("`{0}` is the last entry: remove the annotation")]
    LastEntry(String),
    #[error("`range` begins before the file does, or ends before it begins")]
    NoSuchRange,
    #[error("an annotation has at least one entry")]
    WithoutEntries,
    #[error("two entries have the id `{0}`")]
    EntryTwice(String),
    #[error("nothing is said of the annotation: `origin`, `resource`, `range` or `resolved` is missing")]
    NothingUpdated,
    #[error("`origin.session` is `{0}`, and these are the annotations of another session")]
    OriginOfOtherSession(String),
    #[error("this session has {0} annotations already, the maximum")]
    TooManyAnnotations(usize),
    #[error("an annotation has at most {0} entries")]
    TooManyEntries(usize),
    #[error("the text of the entry `{id}` has more than {max} bytes")]
    EntryTooLarge { id: String, max: usize },
    #[error("there is no room for it: the annotations of a session have at most {}", human_size(*.0))]
    AnnotationsTooLarge(usize),
    #[error("no such customization that can be changed: `{0}`")]
    NoSuchCustomization(String),
    #[error(
        "`enablement` has the scopes `session`, `workspace` and `global`, each at most once, in this order"
    )]
    UnorderedScopes,
    #[error("`enablement` has a scope that this host does not know")]
    UnknownScope,
    #[error("`{0}` is not the first working directory of this session")]
    OtherWorkspace(String),
    #[error("there is no room for it: a customization is decided about in at most {0} workspaces")]
    TooManyWorkspaces(usize),
    #[error("there is no room for it: at most {0} customizations are decided about beyond their sessions")]
    TooManyDecisions(usize),
    #[error("there is no room for it: at most {0} plugins and their parts are decided about in a session")]
    TooManySessionDecisions(usize),
    #[error("the server `{0}` is switched off")]
    ServerIsOff(String),
    #[error("the server `{0}` cannot be used: its state has the error")]
    ServerIsUnusable(String),
    #[error("the server `{0}` does not delay messages")]
    ServerDoesNotBlock(String),
    #[error("a watch accepts no actions: files are changed by `resourceWrite` and related requests")]
    WatchesAreNotDispatchedTo,
    #[error("a canvas accepts no actions: its agent alone changes it")]
    CanvasesAreNotDispatchedTo,
    #[cfg(test)]
    #[error("the sample is gone")]
    SampleGone,

    // Turns.
    #[error("a turn `{0}` is known already and does not run twice")]
    TurnKnown(String),
    #[error("the turn `{0}` is running; queue the message or wait")]
    TurnRunsQueueInstead(String),
    #[error("the turn `{0}` is running")]
    TurnRuns(String),
    #[error("the running turn is `{runs}`, not `{named}`")]
    OtherTurnRuns { runs: String, named: String },
    #[error("no turn is running")]
    NoTurnRuns,
    #[error("no such turn: `{0}`")]
    NoSuchTurn(String),
    #[error("the error of turn `{0}` is not resumable")]
    NotResumable(String),
    #[error("the turn `{0}` did not fail")]
    DidNotFail(String),
    #[error("`{0}` is not the latest turn")]
    NotLatestTurn(String),

    // Pending messages and attachments.
    #[error("no such pending message: `{0}`")]
    NoSuchPending(String),
    #[error("the pending message `{0}` has been taken up already")]
    PendingTakenUp(String),
    #[error("a pending message of the other kind has the id `{0}`")]
    PendingOfOtherKind(String),
    #[error("this chat has {0} queued messages already, the maximum")]
    QueueFull(usize),
    #[error("no message is queued")]
    NothingQueued,
    #[error("{max} chats and annotations may be attached to a message, not {attached}")]
    TooManyAttached { max: usize, attached: usize },
    #[error("the attached chat `{chat}` cannot be read: {reason}")]
    AttachedUnreadable { chat: String, reason: String },
    #[error("the attached chat `{0}` is not there")]
    AttachedMissing(String),
    #[error("the attached annotations `{0}` are not there")]
    AttachedAnnotationsMissing(String),
    #[error("the attached chat `{chat}` has no completed turn `{turn}`")]
    AttachedTurnNotOver { turn: String, chat: String },
    #[error("the attachments of the queued messages of this chat have their maximum size")]
    AttachedFull,

    // Tool calls and questions.
    #[error("no such tool call: `{0}`")]
    NoSuchCall(String),
    #[error("tool call `{0}` does not wait for a permission")]
    NoPermissionWanted(String),
    #[error("tool call `{0}` has no result to confirm")]
    NoResultToConfirm(String),
    #[error("the input of this tool call cannot be edited")]
    InputNotEditable,
    #[error("the option `{0}` was not offered")]
    OptionNotOffered(String),
    #[error("the option `{option}` does not {} the call", if *.approved { "approve" } else { "deny" })]
    OptionSaysOtherwise { option: String, approved: bool },
    #[error("choose one of the options; none approves just this call")]
    OptionNeeded,
    #[error("tool call `{0}` runs on no client")]
    CallOnNoClient(String),
    #[error("tool call `{call}` runs on the client `{client}`")]
    CallOnOtherClient { call: String, client: String },
    #[error("tool call `{0}` does not run")]
    CallNotRunning(String),
    #[error("no open question `{0}`")]
    NoOpenQuestion(String),
    #[error("no such question: `{0}`")]
    NoSuchQuestion(String),
    #[error("the answer to `{0}` has no value of its question's kind")]
    AnswerOfOtherKind(String),
    #[error("the required question `{0}` has no submitted answer")]
    AnswerMissing(String),
    /// Refusal of an answer to a question that its client no longer shows; it is asked again.
    #[error("{0}; the question is asked again")]
    AskedAgain(Box<Refusal>),

    // Sessions.
    #[error("there is nothing to configure in this session")]
    NothingToConfigure,
    #[error("this session has no chat `{0}`")]
    NoChatOfSession(String),
    #[error("a session always has a default chat")]
    DefaultChatNeeded,
    #[error("a model or an agent is selected on a session's channel")]
    SelectsOnSessions,
    #[error("`clientId` must be this client's own, `{0}`")]
    NotItself(String),
    #[error("this client is not active in the session")]
    NotActive,
    #[error("{agent} needs a token for {resources}: authenticate first")]
    TokenNeeded { agent: String, resources: String },

    // Automations.
    #[error("{0}")]
    Automation(String),

    // Configuration.
    #[error("the agent `{agent}` has no model `{model}`")]
    NoSuchModel { agent: String, model: String },
    #[error("`{0}` is no setting of this agent")]
    NoSettingOfAgent(String),
    #[error("`{0}` is no setting of this model")]
    NoSettingOfModel(String),
    #[error("missing field `{0}`")]
    Missing(String),
    #[error("`{0}` cannot be changed")]
    Fixed(String),
    #[error("`{0}` cannot be changed in a session that is there already")]
    FixedInSession(String),
    /// A value that violates its schema; `why` names the violation.
    #[error("`{path}` {why}")]
    Value { path: String, why: String },

    // Directories.
    #[error("`{uri}` {why}")]
    Directory { uri: String, why: String },
    #[error("the agent `{0}` stays in the directory that its session was created with")]
    OneDirectory(String),
    #[error("the agent needs its first directory: it can be replaced, not removed")]
    FirstDirectoryNeeded,
    #[error("the agent stays in its first directory")]
    FirstDirectoryFixed,
    #[error("a chat needs a directory of its session: set another one before the last one is removed")]
    ChatNeedsDirectory,
    #[error("`{0}` is no working directory of this session")]
    NoDirectoryOfThisSession(String),
    #[error("`{0}` is no working directory of the session")]
    NoDirectoryOfSession(String),
    #[error("`{0}` is no working directory of the chat's session")]
    NoDirectoryOfChatsSession(String),
    #[error("`{0}` is a working directory already")]
    DirectoryThere(String),
}

/// Converts an error to the form sent to clients.
pub(super) fn error_info(error_type: String, message: &str) -> ErrorInfo {
    ErrorInfo { error_type, message: text::message(message), stack: None, meta: None }
}
