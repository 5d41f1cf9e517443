//! Canvases: pages that an agent shows beside a chat.
//!
//! Owns: which canvases a chat has, their channels, and the limits for what agents report.
//! Never: stores or logs the address of a page, opens it, or lets clients change a canvas.
//!
//! Canvases end with the process. The address of a page is removed when its agent has ended; the
//! agent may show it again.

use ahp_types::actions::{CanvasStateChangedAction, ChatCanvasesChangedAction, StateAction};
use ahp_types::state::{CanvasReference, CanvasState};

use super::channels::Canvas;
use super::effects::{CanvasKey, ChatKey};
use super::ledger::Ledger;
use super::model::{Channel, Session};
use super::Step;
use crate::wire::canvases::{canvas_uri, is_page_url};

/// Maximum number of canvases of a chat; further ones are not shown.
const CANVASES_MAX: usize = 16;

/// Maximum length of the name of a canvas, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Id of the only kind of canvas that the host has: a page.
const PAGE: &str = "page";

/// Applies an agent's report on a canvas of this name: the address of its page; `None` if the
/// canvas is closed.
pub(super) fn canvas_reported(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    name: String,
    url: Option<String>,
) {
    let canvases = canvases_of(ledger, chat);
    let is_it = |key: &&CanvasKey| {
        ledger.channels.canvases.get(key).is_some_and(|canvas| canvas.state.instance_id == name)
    };
    match (canvases.iter().find(is_it).copied(), url) {
        (Some(key), Some(url)) if is_page_url(&url) => set_url(ledger, step, key, Some(url)),
        (Some(key), None) => close_canvas(ledger, step, chat, key),
        (None, Some(url))
            if is_page_url(&url) && name.len() <= NAME_BYTES_MAX && canvases.len() < CANVASES_MAX =>
        {
            open_canvas(ledger, step, chat, name, url);
        }
        _ => tracing::debug!(
            ?chat,
            "a report of a canvas was ignored: it is unknown, beyond the limit, or its address is invalid"
        ),
    }
}

fn open_canvas(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey, name: String, url: String) {
    let Some(session) = ledger.channels.chats.known(chat).map(|chat| chat.session) else { return };
    let Some(session) = ledger.channels.sessions.known(session) else { return };
    let state = CanvasState {
        extension_id: session.state.provider.clone(),
        extension_name: None,
        canvas_id: PAGE.to_owned(),
        title: Some(name.clone()),
        instance_id: name,
        status: None,
        url: Some(url),
    };
    // No client has an earlier state under the new URI.
    let channel = Channel::new(canvas_uri(&step.ids.fresh()), ledger.head());
    let key = CanvasKey(ledger.fresh_key());
    ledger.channels.by_uri.insert(channel.uri.clone(), key.into());
    ledger.channels.canvases.insert(key, Canvas { channel, state, chat });
    let canvases = canvases_of(ledger, chat);
    send_canvases(ledger, step, chat, &canvases);
}

fn close_canvas(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey, key: CanvasKey) {
    let mut canvases = canvases_of(ledger, chat);
    canvases.retain(|canvas| *canvas != key);
    send_canvases(ledger, step, chat, &canvases);
    remove_canvas(ledger, key);
}

fn set_url(ledger: &mut Ledger, step: &mut Step<'_>, key: CanvasKey, url: Option<String>) {
    let Some(canvas) = ledger.channels.canvases.known(key).filter(|canvas| canvas.state.url != url) else {
        return;
    };
    let canvas = CanvasState { url, ..canvas.state.clone() };
    let changed = StateAction::CanvasStateChanged(CanvasStateChangedAction { canvas });
    ledger.sequence(step, key, changed, None);
}

fn send_canvases(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey, canvases: &[CanvasKey]) {
    let uri = |key: &CanvasKey| Some(ledger.channels.canvases.get(key)?.channel.uri.clone());
    let canvases = canvases.iter().filter_map(uri).map(|resource| CanvasReference { resource });
    let canvases: Vec<CanvasReference> = canvases.collect();
    let canvases = (!canvases.is_empty()).then_some(canvases);
    let changed = StateAction::ChatCanvasesChanged(ChatCanvasesChangedAction { canvases });
    ledger.sequence(step, chat, changed, None);
}

/// Removes the addresses of the pages of an agent that has ended.
pub(super) fn agent_has_ended(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    for key in canvases_of(ledger, chat) {
        set_url(ledger, step, key, None);
    }
}

/// Removes the canvases of a loaded chat, which ended with the previous process.
pub(super) fn canvases_lost(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    let has_some =
        ledger.channels.chats.known(chat).is_some_and(|it| it.conversation.state().canvases.is_some());
    if has_some {
        send_canvases(ledger, step, chat, &[]);
    }
}

pub(super) fn remove_canvases_of(ledger: &mut Ledger, chat: ChatKey) {
    for key in canvases_of(ledger, chat) {
        remove_canvas(ledger, key);
    }
}

fn remove_canvas(ledger: &mut Ledger, key: CanvasKey) {
    ledger.unlink(key.into());
    ledger.channels.canvases.remove(&key);
}

/// Returns whether no chat of a session has canvases, which a session out of memory would lose.
pub(super) fn has_no_canvases(ledger: &Ledger, session: &Session) -> bool {
    ledger.channels.canvases.is_empty()
        || ledger.channels.chats_of(session).all(|chat| canvases_of(ledger, chat).is_empty())
}

/// Returns the canvases of a chat, in the order in which they were opened.
fn canvases_of(ledger: &Ledger, chat: ChatKey) -> Vec<CanvasKey> {
    let all = ledger.channels.canvases.iter().filter(|(_, canvas)| canvas.chat == chat);
    all.map(|(key, _)| *key).collect()
}
