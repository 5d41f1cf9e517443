//! In-memory state that is derived from each applied action; it causes no action of its own.
//!
//! Owns: keeping counts, selections and edits consistent with the states they are derived from, and
//! marking sessions whose summaries or changed files may be out of date.
//! Never: sequences anything.

use std::collections::BTreeSet;

use ahp_types::actions::StateAction;

use crate::host::channels::annotations_summary;
use crate::host::effects::{AnnotationsKey, ChannelId, ChatKey, SessionKey};
use crate::host::ledger::Ledger;
use crate::wire::channels::ChannelKind;

impl Ledger {
    /// Updates the state derived from a channel after an action was applied to it.
    pub(super) fn derive(&mut self, target: ChannelId, action: &StateAction) {
        match target.kind {
            ChannelKind::Chat => self.derive_from_chat(target.key.into(), action),
            ChannelKind::Annotations => self.count_annotations(target.key.into()),
            _ => {}
        }
    }

    fn derive_from_chat(&mut self, key: ChatKey, action: &StateAction) {
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        chat.note_previews(action);
        let session = chat.session;
        let offers = self.channels.sessions.known(session).map(|it| it.state.changesets.is_some());
        if let Some(has_files) = chat.note_edits(action, offers == Some(true)) {
            self.note_edited(session, has_files);
        }
        let selects = matches!(
            action,
            StateAction::ChatDraftChanged(_)
                | StateAction::ChatTurnStarted(_)
                | StateAction::ChatTruncated(_)
        );
        if selects {
            self.note_selection(session);
        }
    }

    /// Updates the selection in a session's summary from its chats.
    fn note_selection(&mut self, key: SessionKey) {
        let selected = self.channels.selected_for_summary(key);
        let Some(session) = self.channels.sessions.known_mut(key) else { return };
        if session.selected != selected {
            session.selected = selected;
            self.session_changed(key);
        }
    }

    /// Updates the annotation summary in a session's state.
    fn count_annotations(&mut self, key: AnnotationsKey) {
        let Some(annotations) = self.channels.annotations.known(key) else { return };
        let Some(session) = self.channels.sessions.known_mut(key.into()) else { return };
        session.state.annotations = Some(annotations_summary(&session.channel.uri, annotations.list()));
        // It is committed with the action on the annotations.
        session.channel.last_seq = self.head;
        self.session_changed(key.into());
    }

    /// Marks a session's row, and possibly its summary, as changed.
    pub(in crate::host) fn session_changed(&mut self, key: SessionKey) {
        self.changed.insert(key);
        self.mark_dirty(key.into());
    }

    pub(in crate::host) fn has_changed(&self, key: SessionKey) -> bool {
        self.changed.contains(&key)
    }

    pub(in crate::host) fn clear_change(&mut self, key: SessionKey) {
        self.changed.remove(&key);
    }

    pub(in crate::host) fn take_changed_sessions(&mut self) -> BTreeSet<SessionKey> {
        std::mem::take(&mut self.changed)
    }

    /// Marks a session's changesets as possibly out of date: their files if `has_files`, otherwise
    /// only whether a turn is running.
    pub(in crate::host) fn note_edited(&mut self, session: SessionKey, has_files: bool) {
        *self.edited.entry(session).or_default() |= has_files;
    }

    /// Removes and returns one session whose changesets may be out of date.
    pub(in crate::host) fn next_edited(&mut self) -> Option<(SessionKey, bool)> {
        self.edited.pop_first()
    }
}
