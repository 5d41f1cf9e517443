//! The channel of a canvas: a page that an agent shows beside a chat.
//!
//! Owns: the channel type: the page's name and address.
//! Never: is stored, or lets clients change anything: it ends with the process.

use ahp::reducers::{apply_action_to_canvas, ReduceOutcome};
use ahp_types::actions::StateAction;
use ahp_types::state::{CanvasState, SnapshotState};

use crate::host::actions::ClientAction;
use crate::host::channels::{Channels, Kind, Table};
use crate::host::effects::{CanvasKey, ChatKey, SessionKey};
use crate::host::model::Channel;
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;

#[derive(Debug)]
pub(crate) struct Canvas {
    pub(crate) channel: Channel,
    pub(crate) state: CanvasState,
    pub(crate) chat: ChatKey,
}

impl Kind for Canvas {
    const KIND: ChannelKind = ChannelKind::Canvas;
    const LABEL: &'static str = "a canvas's channel";
    const ACTIONS: &'static [ClientAction] = &[];
    type Key = CanvasKey;
    type All = Table<CanvasKey, Self>;

    fn reduce(&mut self, action: &StateAction) -> ReduceOutcome {
        apply_action_to_canvas(&mut self.state, action)
    }

    fn snapshot(&self, _: CanvasKey, _: usize) -> Option<(SnapshotState, &[CompletedTurn])> {
        Some((SnapshotState::Canvas(Box::new(self.state.clone())), &[]))
    }

    fn session_of(channels: &Channels, key: CanvasKey) -> Option<SessionKey> {
        let canvas = channels.canvases.get(&key)?;
        channels.chats.get(&canvas.chat).map(|chat| chat.session)
    }

    /// Returns false: the address of a page may be secret, and is never stored.
    fn is_persistent(&self) -> bool {
        false
    }
}
