//! Keys of connections, channels and runs.
//!
//! Owns: the keys that the core, the store and the backends share.
//! Never: sends a key to a client, which knows channels by their URIs.

use crate::wire::channels::ChannelKind;

/// Key of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// Key of a channel in the log and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId {
    /// Kind of the channel.
    pub kind: ChannelKind,
    /// Key among channels of that kind.
    pub key: u64,
}

/// Defines the key type of each kind of channel: `Key of Kind, getter;`.
macro_rules! channel_keys {
    ($($(#[doc = $doc:literal])+ $Key:ident of $Kind:ident, $get:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Key(pub u64);

        impl From<u64> for $Key {
            fn from(key: u64) -> Self {
                Self(key)
            }
        }

        impl From<$Key> for ChannelId {
            fn from($Key(key): $Key) -> Self {
                Self { kind: ChannelKind::$Kind, key }
            }
        }

        impl ChannelId {
            /// Returns the key of the channel if it is of this kind.
            pub fn $get(self) -> Option<$Key> {
                (self.kind == ChannelKind::$Kind).then_some($Key(self.key))
            }
        }
    )+};
}
channel_keys! {
    /// Key of a chat, as the backends know it; never reused by one host.
    ChatKey of Chat, chat;
    /// Key of a session, as the store knows it; never reused by one store.
    SessionKey of Session, session;
    /// Key of the channel of a watch; never reused by one host.
    WatchKey of Watch, watch;
    /// Key of the channel of a terminal; never reused by one store.
    TerminalKey of Terminal, terminal;
    /// Key of the channel of a changeset, derived from its URI and therefore not stored.
    ChangesetKey of Changeset, changeset;
    /// Key of the annotations of a session, equal to the session's key and therefore not stored.
    AnnotationsKey of Annotations, annotations;
    /// Key of the channel of a canvas; never reused by one store.
    CanvasKey of Canvas, canvas;
    /// Key of the list of automations, of which there is one.
    AutomationsKey of Automations, automations;
    /// Key of the channel of an automation's run; never reused by one store.
    AutomationRunKey of AutomationRun, automation_run;
}

impl AutomationsKey {
    /// Key of the list.
    pub const LIST: Self = Self(0);
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

impl ChannelId {
    /// Id of the root channel.
    pub const ROOT: Self = Self { kind: ChannelKind::Root, key: 0 };

    /// Returns the session that the channel is, or whose key it shares.
    pub fn session_of_key(self) -> Option<SessionKey> {
        let has_it = matches!(self.kind, ChannelKind::Session | ChannelKind::Annotations);
        has_it.then_some(SessionKey(self.key))
    }
}

/// Attempt of an agent at a turn; a resumed turn runs under another id. Never reused by one host,
/// so that late events of a finished attempt are recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);
