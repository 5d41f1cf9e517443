//! Facts: events in the core to which other owners react.
//!
//! Owns: the list of the facts. `router` lists the reactions to each.
//! Never: holds more than keys.

use super::effects::{ChatKey, SessionKey};

/// Event in the core, pushed to the step's facts by its source. The router passes it to the
/// reacting owners before it continues.
#[derive(Debug)]
pub(super) enum Fact {
    /// A part of a running turn (question, tool call, review) has changed, and may wait for the
    /// user or a client.
    MayWait { chat: ChatKey, id: String, is_question: bool },
    /// The conversation of a chat, in a session with customizations, opens, is open or is closed.
    /// The chat may be gone, or in another session, since.
    ConversationChanged { chat: ChatKey, session: SessionKey },
    /// The plugins that active clients publish in a session may have changed. The session may be
    /// gone since.
    PluginsMayDiffer(SessionKey),
    /// A turn of a chat has ended.
    TurnEnded(ChatKey),
    /// The next queued message of a chat may start. A turn may end in the step in which it starts,
    /// so the next one starts in the loop over the facts: a call would recurse for each message.
    QueueMayContinue(ChatKey),
}
