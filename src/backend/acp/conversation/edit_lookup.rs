//! Search for the changes of files that an event reports, before it is reported.
//!
//! Owns: one search at a time, for the event that is to be reported next.
//! Never: holds up a command, or an event that needs nothing.

use std::future::Future;
use std::pin::Pin;

use ahp_types::state::{FileEdit, ToolResultContent, ToolResultFileEditContent};

use super::AcpConversation;
use crate::backend::acp::edits;
use crate::host::effects::{CallExtras, Event, TurnEvent};

/// Finding out what the changes that are told with an event are changes of.
pub(super) enum EditLookup {
    Idle,
    Running(Pin<Box<dyn Future<Output = Vec<FileEdit>> + Send>>),
    Done,
}

impl EditLookup {
    /// Waits for the result of the search; for ever while there is none.
    pub(super) async fn found(&mut self) -> Vec<FileEdit> {
        match self {
            Self::Running(edit_lookup) => edit_lookup.await,
            Self::Idle | Self::Done => std::future::pending().await,
        }
    }
}

impl AcpConversation {
    /// Begins to find out what the first event that is to be reported needs; false when it needs
    /// nothing.
    pub(super) fn begin_lookup(&mut self) -> bool {
        let changes = match (self.pending.front(), &self.edit_lookup) {
            (Some(Event::Turn(_, event)), EditLookup::Idle) => self.calls.changes(event),
            _ => None,
        };
        let Some((diffs, phase)) = changes else { return false };
        self.edit_lookup = EditLookup::Running(Box::pin(edits::find(diffs, phase)));
        true
    }
}

/// An event, and the changes of files that it tells: in what a call has produced, behind what it
/// says itself, or besides its question.
pub(super) fn with_edits(event: Event, edits: Vec<FileEdit>) -> Event {
    let Event::Turn(run, event) = event else { return event };
    let (mut event, mut besides) = match event {
        TurnEvent::With(event, besides) => (*event, besides),
        event => (event, CallExtras::default()),
    };
    match &mut event {
        TurnEvent::ToolDone { outcome, .. } => outcome.content.extend(edits.into_iter().map(|edit| {
            let FileEdit { before, after, diff } = edit;
            ToolResultContent::FileEdit(ToolResultFileEditContent { before, after, diff })
        })),
        _ => besides.edits = edits,
    }
    let event =
        if besides == CallExtras::default() { event } else { TurnEvent::With(Box::new(event), besides) };
    Event::Turn(run, event)
}
