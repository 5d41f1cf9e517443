//! State that is derived in memory from each applied action; clients are not notified of it by
//! itself.
//!
//! Owns: keeping counts, selections and edits that others read equal to the states they are made
//! from, and the sessions whose summaries or changed files may be others than before.
//! Never: sequences anything.

use std::collections::BTreeSet;

use ahp_types::actions::StateAction;

use crate::host::channels::annotations_summary;
use crate::host::effects::{AnnotationsKey, ChannelId, ChatKey, SessionKey};
use crate::host::ledger::Ledger;
use crate::wire::channels::ChannelKind;

impl Ledger {
    /// Brings what is derived from a channel's state in line with it, behind this action.
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

    /// Brings what the summary of a session says of its selection in line with its chats.
    fn note_selection(&mut self, key: SessionKey) {
        let selected = self.channels.selected_for_summary(key);
        let Some(session) = self.channels.sessions.known_mut(key) else { return };
        if session.selected != selected {
            session.selected = selected;
            self.session_changed(key);
        }
    }

    /// Brings the number of annotations that a session shows in line with them.
    fn count_annotations(&mut self, key: AnnotationsKey) {
        let Some(annotations) = self.channels.annotations.known(key) else { return };
        let Some(session) = self.channels.sessions.known_mut(key.into()) else { return };
        session.state.annotations = Some(annotations_summary(&session.channel.uri, annotations.list()));
        self.session_changed(key.into());
    }

    /// Notes that something about a session has changed: its row and perhaps its summary.
    pub(in crate::host) fn session_changed(&mut self, key: SessionKey) {
        self.changed.insert(key);
        self.mark_dirty(key.into());
    }

    /// Returns whether a session has changed since changes were taken last.
    pub(in crate::host) fn has_changed(&self, key: SessionKey) -> bool {
        self.changed.contains(&key)
    }

    /// Forgets the change of a session that is gone.
    pub(in crate::host) fn clear_change(&mut self, key: SessionKey) {
        self.changed.remove(&key);
    }

    /// Takes the sessions that have changed.
    pub(in crate::host) fn take_changed_sessions(&mut self) -> BTreeSet<SessionKey> {
        std::mem::take(&mut self.changed)
    }

    /// Notes that the changes of a session may be others than before: which files they are of, if
    /// `has_files`, or whether a turn runs.
    pub(in crate::host) fn note_edited(&mut self, session: SessionKey, has_files: bool) {
        *self.edited.entry(session).or_default() |= has_files;
    }

    /// Takes one session out of those whose changes may be others than before.
    pub(in crate::host) fn next_edited(&mut self) -> Option<(SessionKey, bool)> {
        self.edited.pop_first()
    }
}
