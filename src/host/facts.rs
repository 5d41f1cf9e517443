//! Facts: what has happened and others react to.
//!
//! Owns: the list of the facts. `router` names every reaction to each.
//! Never: holds more than keys.

use super::effects::ChatKey;

/// Something that has happened. Whoever does it pushes it to the step's facts; the router hands it
/// to those who care before it goes on.
#[derive(Debug)]
pub(super) enum Fact {
    /// A part of a running turn waits for the user, or for a client: a question, a tool call, a
    /// review.
    Waits { chat: ChatKey, id: String, is_question: bool },
    /// A turn of a chat is over.
    TurnEnded(ChatKey),
}
