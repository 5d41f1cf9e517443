//! The channels of the host.
//!
//! Owns: every channel, by its URI and by its kind.
//! Never: changes a state; that is in `sequence`.

mod root;

use std::collections::{BTreeMap, HashMap};

use super::effects::{ChatKey, Target};
use super::model::{Chat, Session, SessionKey};
pub(super) use root::Root;

/// Every channel that is in memory.
#[derive(Debug)]
pub(super) struct Channels {
    /// Each of them by its URI.
    pub(super) by_uri: HashMap<String, Target>,
    pub(super) root: Root,
    pub(super) sessions: BTreeMap<SessionKey, Session>,
    pub(super) chats: BTreeMap<ChatKey, Chat>,
}

impl Channels {
    /// Those of a host without sessions.
    pub(super) fn new(root: Root) -> Self {
        Self {
            by_uri: HashMap::from([(root.channel.uri.clone(), Target::Root)]),
            root,
            sessions: BTreeMap::new(),
            chats: BTreeMap::new(),
        }
    }
}
