//! Keys of connections, channels and runs.
//!
//! Owns: the keys by which the core, the store and the backends name them.
//! Never: shown to a client, which knows channels by their URIs.

use crate::wire::channels::ChannelKind;

/// A client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// A chat, as the backends know it. Never given twice by one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChatKey(pub u64);

/// A session, as the store knows it. Never given twice by one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// The channel of a watch. Never given twice by one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchKey(pub u64);

impl From<u64> for WatchKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

/// The channel of a terminal. Never given twice by one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TerminalKey(pub u64);

impl From<u64> for TerminalKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

/// The channel of a changeset: the same for the same URI, so that it need not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangesetKey(pub u64);

impl From<u64> for ChangesetKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

/// The annotations of a session: they have the key of that session, so that it need not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AnnotationsKey(pub u64);

impl From<u64> for AnnotationsKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

impl From<SessionKey> for AnnotationsKey {
    fn from(SessionKey(key): SessionKey) -> Self {
        Self(key)
    }
}

impl From<AnnotationsKey> for SessionKey {
    fn from(AnnotationsKey(key): AnnotationsKey) -> Self {
        Self(key)
    }
}

/// A channel, as the log and the store know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId {
    /// Kind.
    pub kind: ChannelKind,
    /// Key among those of the kind.
    pub key: u64,
}

impl ChannelId {
    /// The root channel.
    pub const ROOT: Self = Self { kind: ChannelKind::Root, key: 0 };

    /// The session that it is, if it is one.
    pub fn session(self) -> Option<SessionKey> {
        (self.kind == ChannelKind::Session).then_some(SessionKey(self.key))
    }

    /// The session that it is or that has its key.
    pub fn session_of_key(self) -> Option<SessionKey> {
        let has_it = matches!(self.kind, ChannelKind::Session | ChannelKind::Annotations);
        has_it.then_some(SessionKey(self.key))
    }

    /// The annotations that it is, if it is such a channel.
    pub fn annotations(self) -> Option<AnnotationsKey> {
        (self.kind == ChannelKind::Annotations).then_some(AnnotationsKey(self.key))
    }

    /// The terminal that it is, if it is one.
    pub fn terminal(self) -> Option<TerminalKey> {
        (self.kind == ChannelKind::Terminal).then_some(TerminalKey(self.key))
    }

    /// The changeset that it is, if it is one.
    pub fn changeset(self) -> Option<ChangesetKey> {
        (self.kind == ChannelKind::Changeset).then_some(ChangesetKey(self.key))
    }

    /// The chat that it is, if it is one.
    pub fn chat(self) -> Option<ChatKey> {
        (self.kind == ChannelKind::Chat).then_some(ChatKey(self.key))
    }
}

impl From<u64> for SessionKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

impl From<u64> for ChatKey {
    fn from(key: u64) -> Self {
        Self(key)
    }
}

impl From<SessionKey> for ChannelId {
    fn from(SessionKey(key): SessionKey) -> Self {
        Self { kind: ChannelKind::Session, key }
    }
}

impl From<ChatKey> for ChannelId {
    fn from(ChatKey(key): ChatKey) -> Self {
        Self { kind: ChannelKind::Chat, key }
    }
}

/// One attempt of an agent at a turn: a turn that is resumed runs again under another id. Never
/// given twice by one host, so that what a finished attempt still says is known for what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);
