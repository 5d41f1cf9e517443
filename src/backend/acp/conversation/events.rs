//! Events of a conversation that the host has not received yet.
//!
//! Owns: their order, and the file edits that are added to an event before it is reported.
//! Never: lets an event overtake another.

use std::collections::VecDeque;

use crate::backend::acp::calls::Calls;
use crate::backend::acp::edits::{with_edits, EditLookup};
use crate::backend::{ReportPermit, ReportSender};
use crate::host::effects::Event;

#[derive(Default)]
pub(super) struct EventQueue {
    /// Events to report, in order. The agent is not read while there are any.
    events: VecDeque<Event>,
    edit_lookup: EditLookup,
}

impl EventQueue {
    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn extend(&mut self, events: impl IntoIterator<Item = Event>) {
        self.events.extend(events);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Drops the events of turns.
    pub(super) fn drop_turn_events(&mut self) {
        self.events.retain(|event| !matches!(event, Event::Turn(..)));
        self.edit_lookup = EditLookup::Idle;
    }

    /// Returns whether an event can be reported now.
    pub(super) fn is_ready(&self) -> bool {
        !self.events.is_empty() && !self.edit_lookup.is_running()
    }

    /// Waits for the file edits of the next event, for ever if they are not being searched. Cancel
    /// safe.
    pub(super) async fn edits_found(&mut self) {
        let found = self.edit_lookup.found().await;
        self.edit_lookup = EditLookup::Done;
        if let Some(event) = self.events.pop_front() {
            self.events.push_front(with_edits(event, found));
        }
    }

    /// Reports events for which there is room, without another iteration of the loop. That suffices
    /// for most text.
    pub(super) fn report_what_there_is_room_for(&mut self, reports: &ReportSender, calls: &Calls) {
        while self.is_ready() {
            let Some(room) = reports.try_reserve() else { return };
            self.report_next(room, calls);
        }
    }

    /// Reports the next event, or begins the search for its file edits.
    pub(super) fn report_next(&mut self, room: ReportPermit<'_>, calls: &Calls) {
        let changes = match (self.events.front(), &self.edit_lookup) {
            (Some(Event::Turn(_, event)), EditLookup::Idle) => calls.changes(event),
            _ => None,
        };
        if let Some((diffs, phase)) = changes {
            self.edit_lookup = EditLookup::begin(diffs, phase);
            return;
        }
        self.edit_lookup = EditLookup::Idle;
        if let Some(event) = self.events.pop_front() {
            room.report(event);
        }
    }
}
