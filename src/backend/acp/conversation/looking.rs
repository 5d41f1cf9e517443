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
pub(super) enum Looking {
    NotYet,
    For(Pin<Box<dyn Future<Output = Vec<FileEdit>> + Send>>),
    Done,
}

impl Looking {
    /// Waits for the result of the search; for ever while there is none.
    pub(super) async fn found(&mut self) -> Vec<FileEdit> {
        match self {
            Self::For(looking) => looking.await,
            Self::NotYet | Self::Done => std::future::pending().await,
        }
    }
}

impl AcpConversation {
    /// Begins to find out what the first event that is to be reported needs; false when it needs
    /// nothing.
    pub(super) fn looks(&mut self) -> bool {
        let changes = match (self.pending.front(), &self.looking) {
            (Some(Event::Turn(_, event)), Looking::NotYet) => self.calls.changes(event),
            _ => None,
        };
        let Some((diffs, moment)) = changes else { return false };
        self.looking = Looking::For(Box::pin(edits::find(diffs, moment)));
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
