//! Work that agents leave running in the background after the calls that started it.
//!
//! Owns: the list of that work in each chat, and its display as activity of an otherwise idle chat.
//! Never: runs or ends anything: `terminals` reports commands in terminals of the host, and the
//! agent reports work of its own.

use ahp_types::actions::{ChatBackgroundWorkRemovedAction, ChatBackgroundWorkSetAction, StateAction};
use ahp_types::state::{BackgroundShellWork, BackgroundWork};

use crate::host::effects::{BackgroundCommand, ChatKey, TerminalKey};
use crate::host::ledger::Ledger;
use crate::host::{catalogue, Step};

/// Prefix of the id of work that an agent has reported; the id of other work is the URI of its
/// terminal.
pub(super) const OF_AGENT: &str = "call:";

pub(super) fn background_work_ended(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey) {
    let Some(terminal) = ledger.channels.terminals.known(key) else { return };
    let Some(chat) = terminal.chat else { return };
    let id = terminal.channel.uri.clone();
    remove_background_work(ledger, step, chat, |work| *work == id);
}

pub(crate) fn background_work_reported(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    id: &str,
    command: Option<BackgroundCommand>,
) {
    let id = format!("{OF_AGENT}{id}");
    let Some(BackgroundCommand { label, line }) = command else {
        return remove_background_work(ledger, step, chat, |work| *work == id);
    };
    let started_at = step.timestamp();
    let work = BackgroundShellWork { id, label, started_at, meta: None, command: line, terminal: None };
    let work = BackgroundWork::Shell(work);
    let set = StateAction::ChatBackgroundWorkSet(ChatBackgroundWorkSetAction { work });
    ledger.sequence(step, chat, set, None);
    show_background_activity(ledger, step, chat);
}

pub(super) fn show_background_activity(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    if ledger.channels.chats.known(chat).is_some_and(|chat| chat.run.is_none() && !chat.opening_waits) {
        catalogue::set_activity(ledger, step, chat, None);
    }
}

/// Removes the background work of a chat, which ended with the previous process.
pub(crate) fn background_work_lost(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    remove_background_work(ledger, step, chat, |_| true);
}

pub(super) fn remove_background_work(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    is_over: impl Fn(&String) -> bool,
) {
    let Some(works) = ledger.channels.chats.known(chat) else { return };
    let works = works.conversation.state().background_work.iter().flatten();
    let ids = works.filter_map(|work| match work {
        BackgroundWork::Shell(work) => Some(work.id.clone()),
        _ => None,
    });
    let over: Vec<String> = ids.filter(is_over).collect();
    if over.is_empty() {
        return;
    }
    for id in over {
        let removed = StateAction::ChatBackgroundWorkRemoved(ChatBackgroundWorkRemovedAction { id });
        ledger.sequence(step, chat, removed, None);
    }
    show_background_activity(ledger, step, chat);
}
