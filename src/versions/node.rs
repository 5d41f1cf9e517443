//! Locations of the pieces of a message, in every version.
//!
//! Owns: finding each session, chat, turn, part and so on in a state or an action, so that a
//! version defines how a turn differs without knowing where turns are.
//! Never: changes anything itself.

use serde_json::{Map, Value};

use crate::wire::channels::ChannelKind;

/// A JSON object.
pub type Object = Map<String, Value>;

/// Kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// State of the root channel.
    Root,
    /// Agent in the root state.
    Agent,
    /// State of a session's channel.
    Session,
    /// Session in the list and in notifications, or its changed members.
    SessionSummary,
    /// State of a chat's channel.
    Chat,
    /// Chat in its session's list, or its changed members.
    ChatSummary,
    /// Completed or running turn.
    Turn,
    /// User's message, sent or drafted.
    Message,
    /// Attachment of a message.
    Attachment,
    /// Part of an answer.
    Part,
    /// Tool call in a part.
    ToolCall,
    /// State of a terminal's channel, or a terminal in the root state.
    Terminal,
    /// State of the channel of a session's annotations.
    Annotations,
    /// Annotation of a place in a file, or an update of one.
    Annotation,
    /// State of the channel of all automations.
    Automations,
    /// Automation in their list.
    Automation,
    /// Definition of an automation.
    AutomationDefinition,
}

impl Node {
    /// Returns the kind of the state of a channel; `None` if it is the same in all versions.
    pub fn of_state(kind: ChannelKind) -> Option<Self> {
        match kind {
            ChannelKind::Root => Some(Self::Root),
            ChannelKind::Session => Some(Self::Session),
            ChannelKind::Chat => Some(Self::Chat),
            ChannelKind::Terminal => Some(Self::Terminal),
            ChannelKind::Annotations => Some(Self::Annotations),
            ChannelKind::Automations => Some(Self::Automations),
            // A new kind needs no line here, unless it differs in a version.
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }
}

/// Visits every piece inside of `object`, a `node`, the innermost first, and `object` last.
pub fn each(node: Node, object: &mut Object, visit: &mut dyn FnMut(Node, &mut Object)) {
    match node {
        Node::Root => {
            each_in(object, "agents", Node::Agent, visit);
            each_in(object, "terminals", Node::Terminal, visit);
        }
        Node::Session => {
            each_in(object, "summary", Node::SessionSummary, visit);
            each_in(object, "chats", Node::ChatSummary, visit);
            each_of_conversation(object, visit);
        }
        Node::Chat => each_of_conversation(object, visit),
        Node::Turn => {
            message_in(object, visit);
            each_in(object, "responseParts", Node::Part, visit);
        }
        Node::Message => each_in(object, "attachments", Node::Attachment, visit),
        Node::Part => each_in(object, "toolCall", Node::ToolCall, visit),
        Node::ToolCall => each_in(object, "userSuggestion", Node::Message, visit),
        Node::Annotations => each_in(object, "annotations", Node::Annotation, visit),
        Node::Automations => each_in(object, "entries", Node::Automation, visit),
        Node::Automation => each_in(object, "definition", Node::AutomationDefinition, visit),
        Node::Agent
        | Node::SessionSummary
        | Node::ChatSummary
        | Node::Attachment
        | Node::Terminal
        | Node::Annotation
        | Node::AutomationDefinition => {}
    }
    visit(node, object);
}

/// Calls `visit` with every piece inside of an action.
pub fn each_of_action(action: &mut Object, visit: &mut dyn FnMut(Node, &mut Object)) {
    let name = action.get("type").and_then(Value::as_str).unwrap_or_default();
    if name == "annotations/set" {
        return each_in(action, "annotation", Node::Annotation, visit);
    }
    if name == "automation/set" {
        return each_in(action, "automation", Node::Automation, visit);
    }
    match name.split_once('/').map_or("", |(_, name)| name) {
        "turnStarted" | "pendingMessageSet" => message_in(action, visit),
        "draftChanged" => each_in(action, "draft", Node::Message, visit),
        "toolCallConfirmed" => each_in(action, "userSuggestion", Node::Message, visit),
        "responsePart" | "error" => each_in(action, "part", Node::Part, visit),
        "turnsLoaded" => each_in(action, "turns", Node::Turn, visit),
        "chatAdded" => each_in(action, "summary", Node::ChatSummary, visit),
        "chatUpdated" => each_in(action, "changes", Node::ChatSummary, visit),
        "agentsChanged" => each_in(action, "agents", Node::Agent, visit),
        "terminalsChanged" => each_in(action, "terminals", Node::Terminal, visit),
        _ => {}
    }
}

fn each_of_conversation(state: &mut Object, visit: &mut dyn FnMut(Node, &mut Object)) {
    each_in(state, "turns", Node::Turn, visit);
    each_in(state, "activeTurn", Node::Turn, visit);
    each_in(state, "draft", Node::Message, visit);
    for member in ["steeringMessage", "queuedMessages"] {
        objects_in(state, member).for_each(|pending| message_in(pending, visit));
    }
}

/// Visits the user's message by its current and its former name.
fn message_in(object: &mut Object, visit: &mut dyn FnMut(Node, &mut Object)) {
    each_in(object, "message", Node::Message, visit);
    each_in(object, "userMessage", Node::Message, visit);
}

fn each_in(object: &mut Object, member: &str, node: Node, visit: &mut dyn FnMut(Node, &mut Object)) {
    objects_in(object, member).for_each(|object| each(node, object, visit));
}

/// Returns the object in a member, or the objects of the array in it.
pub fn objects_in<'a>(object: &'a mut Object, member: &str) -> impl Iterator<Item = &'a mut Object> {
    values_in(object, member).filter_map(Value::as_object_mut)
}

/// Returns the text in a member, or the texts of the array in it.
pub fn texts_in<'a>(object: &'a mut Object, member: &str) -> impl Iterator<Item = &'a mut String> {
    values_in(object, member).filter_map(|value| match value {
        Value::String(text) => Some(text),
        _ => None,
    })
}

fn values_in<'a>(object: &'a mut Object, member: &str) -> std::slice::IterMut<'a, Value> {
    match object.get_mut(member) {
        Some(Value::Array(values)) => values.iter_mut(),
        Some(value) => std::slice::from_mut(value).iter_mut(),
        None => [].iter_mut(),
    }
}

/// Returns the members of a JSON object; none for any other value.
pub fn members(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

/// Returns the text in a member.
pub fn text<'a>(object: &'a Object, member: &str) -> Option<&'a str> {
    object.get(member).and_then(Value::as_str)
}

/// Returns the text of a value that is plain text or Markdown.
pub fn plain_text(value: Option<&Value>) -> String {
    let text = value.and_then(|value| value.as_str().or_else(|| value.get("markdown")?.as_str()));
    text.unwrap_or_default().to_owned()
}

/// Renames a member, if it exists and the new name is free.
pub fn rename(object: &mut Object, from: &str, to: &str) {
    if object.contains_key(to) {
        return;
    }
    if let Some(value) = object.remove(from) {
        object.insert(to.to_owned(), value);
    }
}

/// Copies a member to a further name, if that is free.
pub fn alias(object: &mut Object, of: &str, name: &str) {
    if let Some(value) = object.get(of).filter(|_| !object.contains_key(name)).cloned() {
        object.insert(name.to_owned(), value);
    }
}

/// Retains the elements of an array member that satisfy `keep`.
pub fn retain(object: &mut Object, member: &str, keep: impl Fn(&Value) -> bool) {
    if let Some(Value::Array(elements)) = object.get_mut(member) {
        elements.retain(keep);
    }
}

/// Returns a copy of an object with these members only.
pub fn some_of(object: &Object, members: &[&str]) -> Object {
    let some = object.iter().filter(|(member, _)| members.contains(&member.as_str()));
    some.map(|(member, value)| (member.clone(), value.clone())).collect()
}
