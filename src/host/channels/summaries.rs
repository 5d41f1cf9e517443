//! Summaries of sessions, made from the channels in memory.
//!
//! Owns: the part of a summary that depends on the session's chats.
//! Never: sends a summary.

use ahp_types::common::JsonObject;
use ahp_types::state::SessionSummary;
use serde_json::{json, Value};

use crate::host::catalogue::summary_of;
use crate::host::channels::Channels;
use crate::host::configuration::selection::{selection_of, IN_SUMMARY_BYTES_MAX};
use crate::host::effects::{ChatKey, SessionKey};
use crate::host::model::Session;
use crate::wire::rpc::to_json;
use crate::wire::selection::{Selection, SELECTED};
use crate::wire::uris::default_chat_of;

impl Channels {
    /// Returns a session's summary, including its selection.
    pub(crate) fn summary(&self, key: SessionKey) -> Option<SessionSummary> {
        let session = self.sessions.known(key)?;
        let summary =
            summary_of(&session.channel.uri, &session.state, &session.created_at, &session.modified_at);
        let changes = session.changes.clone();
        Some(SessionSummary { meta: self.selected_for_summary(key), changes, ..summary })
    }

    /// Returns the session's own chat: the first one, or the default chat if that was deleted.
    pub(crate) fn own_chat(&self, key: SessionKey) -> Option<ChatKey> {
        let session: &Session = self.sessions.known(key)?;
        let chat = |uri: &String| {
            let chat = self.by_uri.get(uri)?.chat()?;
            (self.chats.known(chat)?.session == key).then_some(chat)
        };
        let first = default_chat_of(&session.channel.uri);
        chat(&first).or_else(|| session.state.default_chat.as_ref().and_then(chat))
    }

    /// Returns the selection for the `_meta` of a session's summary; `None` if it is empty or
    /// large.
    pub(crate) fn selected_for_summary(&self, key: SessionKey) -> Option<JsonObject> {
        let Selection { model, agent } = self.selected_in(self.own_chat(key)?);
        let members = [("model", model), ("agent", agent)];
        let selected: JsonObject =
            members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let selected = Value::Object(selected);
        let fits = || to_json(&selected).len() <= IN_SUMMARY_BYTES_MAX;
        (selected != json!({}) && fits()).then(|| JsonObject::from_iter([(SELECTED.to_owned(), selected)]))
    }

    pub(crate) fn selected_in(&self, key: ChatKey) -> Selection {
        self.chats.known(key).map(|chat| selection_of(&chat.conversation)).unwrap_or_default()
    }
}
