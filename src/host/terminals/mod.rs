//! Terminals: output of the commands of agents, sent while they run and stored with their calls.
//!
//! Owns: creating and removing the channel of a terminal, its actions, and the changes that clients
//! may make.
//! Never: runs a command, or changes the call that shows it: `calls` does that, and gets the
//! content of the call from here.
//!
//! In reading order: this file (terminals of agents), `scrollback`, `ptys` and `claims` (shells of
//! clients), `commands` (lines that begin with `!`), `background`.
//!
//! A channel exists while its command runs or it has subscribers. The completed call stores the
//! exit status and the latest output. The channel is restored from the call under the same key, so
//! that a client that missed actions receives just those. If the call has no exit status, because
//! the host or the call ended before the command, clients receive a snapshot.

pub(super) mod background;
pub(super) mod claims;
pub(super) mod commands;
pub(super) mod ptys;
pub(super) mod scrollback;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ahp_types::actions::{
    ActionOrigin, ChatBackgroundWorkSetAction, StateAction, TerminalClaimedAction, TerminalClearedAction,
    TerminalDataAction, TerminalExitedAction,
};
use ahp_types::state::{
    BackgroundShellWork, BackgroundWork, ResponsePart, TerminalClaim, TerminalContentPart,
    TerminalExitedLifecycleState, TerminalLifecycleState, TerminalSessionClaim, TerminalState,
    TerminalUnclassifiedPart, ToolCallState, ToolResultContent, ToolResultTerminalContent, Turn,
};
use memchr::memmem;

use crate::host::actions::Verdict;
use crate::host::channels::{running_state, ReportedCommand, Terminal};
use crate::host::effects::{ChatKey, Command, TerminalEvent, TerminalKey};
use crate::host::ledger::Ledger;
use crate::host::model::{Channel, Session};
use crate::host::refusal::Refusal;
use crate::host::terminals::background::OF_AGENT;
use crate::host::Step;
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;
use crate::wire::channels::ChannelKind;
use crate::wire::terminals::{parse_terminal_uri, terminal_uri};
use crate::wire::text;
use crate::wire::tool_calls::tool_call_id;

pub(super) const TITLE_BYTES_MAX: usize = 1024;

pub(super) fn title_of_line(line: &str) -> String {
    text::first_bytes(&text::message(line), TITLE_BYTES_MAX).to_owned()
}

fn content_of(call: &ToolCallState) -> &[ToolResultContent] {
    let content = match call {
        ToolCallState::Running(call) => &call.content,
        ToolCallState::PendingResultConfirmation(call) => &call.content,
        ToolCallState::Completed(call) => &call.content,
        _ => &None,
    };
    content.as_deref().unwrap_or_default()
}

struct Shown<'a> {
    call: &'a str,
    block: &'a ToolResultTerminalContent,
    /// Text beside the terminal, for clients without support for terminals.
    text: Option<&'a str>,
}

/// Returns the call that shows the terminal of this URI, preferably one with the command's result.
fn shown_in<'a>(parts: &'a [ResponsePart], uri: &str) -> Option<Shown<'a>> {
    let mut all = parts.iter().filter_map(|part| {
        let ResponsePart::ToolCall(part) = part else { return None };
        let content = content_of(&part.tool_call);
        let (at, block) = content.iter().enumerate().find_map(|(at, content)| match content {
            ToolResultContent::Terminal(block) if block.resource == uri => Some((at, block)),
            _ => None,
        })?;
        let text = match content.get(at + 1) {
            Some(ToolResultContent::Text(text)) => Some(text.text.as_str()),
            _ => None,
        };
        Some(Shown { call: tool_call_id(&part.tool_call), block, text })
    });
    let first = all.next()?;
    if first.block.result.is_some() {
        return Some(first);
    }
    Some(all.find(|shown| shown.block.result.is_some()).unwrap_or(first))
}

/// Returns whether a call shows the terminal of this URI. An earlier turn that names it does: such
/// a URI is not found by chance.
fn is_shown(conversation: &Conversation, uri: &str) -> bool {
    let mut over = conversation.history().turns().iter().filter(|turn| turn.facts().terminals);
    let active = conversation.state().active_turn.as_ref();
    active.is_some_and(|turn| shown_in(&turn.response_parts, uri).is_some())
        || over.any(|turn| memmem::find(&turn.text(), uri.as_bytes()).is_some())
}

/// Returns the id and parts of the turn that shows the terminal of this URI: the first one with the
/// command's result, if any, which is the turn that opened the terminal or the next.
fn turn_showing(conversation: &Conversation, uri: &str) -> Option<(String, Vec<ResponsePart>)> {
    let has_result = |parts: &[ResponsePart]| shown_in(parts, uri).map(|shown| shown.block.result.is_some());
    let over = conversation.history().turns().iter();
    let naming = over.filter(|turn| turn.facts().terminals);
    let naming = naming.filter(|turn| memmem::find(&turn.text(), uri.as_bytes()).is_some());
    let over = naming.filter_map(CompletedTurn::read).map(|turn| (turn.id, turn.response_parts));
    let active = conversation.state().active_turn.iter();
    let active = active.map(|turn| (turn.id.clone(), turn.response_parts.clone()));
    let mut found = None;
    for turn in over.chain(active) {
        match has_result(&turn.1) {
            Some(true) => return Some(turn),
            Some(false) if found.is_none() => found = Some(turn),
            _ => {}
        }
    }
    found
}

fn terminals_in(turn: &mut Turn) -> impl Iterator<Item = &mut ToolResultTerminalContent> {
    let parts = turn.response_parts.iter_mut();
    let content = parts.filter_map(|part| match part {
        ResponsePart::ToolCall(part) => match &mut part.tool_call {
            ToolCallState::Completed(call) => call.content.as_mut(),
            _ => None,
        },
        _ => None,
    });
    content.flatten().filter_map(|content| match content {
        ToolResultContent::Terminal(block) => Some(block),
        _ => None,
    })
}

/// Evicts ended terminals without subscribers that can be restored, or that no call shows or will
/// show.
pub(super) fn settle_terminals(ledger: &mut Ledger, step: &mut Step<'_>) {
    if !ledger.take_touched(ChannelKind::Terminal) {
        return;
    }
    ptys::settle_ptys(ledger, step);
    let is_over = |it: &Terminal| !it.is_shell() && !it.runs() && it.channel.subscribers.is_empty();
    let over = ledger.channels.terminals.iter().filter(|(_, it)| is_over(it));
    let going = over.filter(|(_, it)| it.is_stored || !may_be_shown(ledger, it));
    for key in going.map(|(key, _)| *key).collect::<Vec<_>>() {
        let Some(terminal) = ledger.channels.terminals.remove(&key) else { continue };
        ledger.channels.by_uri.remove(&terminal.channel.uri);
        let chat = terminal.chat.and_then(|chat| ledger.channels.chats.known_mut(chat));
        if let (Some(chat), Some(command), true) = (chat, terminal.reported, terminal.is_stored) {
            chat.stored_terminals.insert(command.name, key);
        }
    }
}

pub(super) fn client_changes_terminal(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: TerminalKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let Some(terminal) = ledger.channels.terminals.known(key) else { return Ok(Verdict::Unchanged) };
    if terminal.pty.is_some() {
        return claims::client_uses_pty(ledger, step, key, action, origin);
    }
    Err(Refusal::OutputOfAgent(match action {
        StateAction::TerminalInput(_) => "reads nothing",
        StateAction::TerminalResized(_) => "has no size",
        StateAction::TerminalClaimed(claimed) => {
            return detach_command(ledger, step, key, claimed, origin);
        }
        StateAction::TerminalTitleChanged(_) => "is called by its command",
        _ => "is not cleared by clients",
    }))
}

pub(super) fn terminal_reports(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    chat: ChatKey,
    name: String,
    event: TerminalEvent,
) {
    let known = find_terminal(ledger, chat, &name);
    if let TerminalEvent::Opened { call, title, detaches } = event {
        if known.is_none() {
            open_terminal(ledger, step, chat, (name, call, title), detaches);
        }
        return;
    }
    let runs = |key: &TerminalKey| ledger.channels.terminals.get(key).is_some_and(Terminal::runs);
    let Some(key) = known.filter(runs) else {
        tracing::debug!(
            ?chat,
            name,
            "a report of a terminal was ignored: the terminal is unknown or has ended"
        );
        return;
    };
    let action = match event {
        TerminalEvent::Data(data) => StateAction::TerminalData(TerminalDataAction { data }),
        TerminalEvent::Cleared => {
            let Some(terminal) = ledger.channels.terminals.known_mut(key) else { return };
            terminal.is_cut = true;
            if terminal.state.content.is_empty() {
                return;
            }
            StateAction::TerminalCleared(TerminalClearedAction {})
        }
        TerminalEvent::Exited(exit_code) => {
            ledger.touch(ChannelKind::Terminal);
            StateAction::TerminalExited(TerminalExitedAction { exit_code })
        }
        TerminalEvent::Opened { .. } => return,
    };
    let ends = matches!(action, StateAction::TerminalExited(_));
    ledger.sequence(step, key, action, None);
    if ends {
        background::background_work_ended(ledger, step, key);
    }
}

fn find_terminal(ledger: &Ledger, chat: ChatKey, name: &str) -> Option<TerminalKey> {
    let is_called = |it: &Terminal| it.reported.as_ref().is_some_and(|command| command.name == name);
    let mut terminals = ledger.channels.terminals.iter();
    terminals.find(|(_, it)| it.chat == Some(chat) && is_called(it)).map(|(key, _)| *key)
}

/// Opens a terminal with a name that a chat's agent uses, for a call and with a title.
fn open_terminal(
    ledger: &mut Ledger,
    step: &Step<'_>,
    key: ChatKey,
    (name, call, title): (String, String, String),
    detaches: bool,
) {
    let number = ledger.fresh_key();
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let Some(run) = &chat.run else { return };
    let claim = claim_of(ledger, key, Some(run.turn_id.clone()), Some(call));
    let state = running_state(title_of_line(&title), claim, false);
    // No client has an earlier state under the new URI.
    let channel = Channel::new(terminal_uri(&chat.channel.uri, number), ledger.head());
    let reported = Some(ReportedCommand { name, since: step.timestamp(), detaches });
    let terminal = Terminal { chat: Some(key), reported, ..Terminal::new(channel, state) };
    add_terminal(ledger, TerminalKey(number), terminal);
}

pub(super) fn add_terminal(ledger: &mut Ledger, key: TerminalKey, terminal: Terminal) {
    ledger.channels.by_uri.insert(terminal.channel.uri.clone(), key.into());
    ledger.channels.terminals.insert(key, terminal);
}

pub(super) fn claim_of(
    ledger: &Ledger,
    chat: ChatKey,
    turn_id: Option<String>,
    tool_call_id: Option<String>,
) -> TerminalClaim {
    let chat = ledger.channels.chats.known(chat);
    let session = chat.and_then(|chat| ledger.channels.sessions.known(chat.session));
    TerminalClaim::Session(TerminalSessionClaim {
        session: session.map(|session| session.channel.uri.clone()).unwrap_or_default(),
        chat: chat.map(|chat| chat.channel.uri.clone()).unwrap_or_default(),
        turn_id,
        tool_call_id,
    })
}

/// Replaces the agent's names of terminals by their URIs, and adds the results of ended commands.
/// An unknown name is removed; the text beside it stays.
pub(super) fn place_terminals(
    ledger: &Ledger,
    chat: ChatKey,
    mut content: Vec<ToolResultContent>,
) -> Vec<ToolResultContent> {
    content.retain_mut(|content| match content {
        ToolResultContent::Terminal(block) => place_terminal(ledger, chat, block),
        _ => true,
    });
    content
}

/// Fills in the URI and state of the terminal that a content names; returns false if it does not
/// exist.
fn place_terminal(ledger: &Ledger, chat: ChatKey, block: &mut ToolResultTerminalContent) -> bool {
    let by_uri = || ledger.channels.by_uri.get(&block.resource).and_then(|id| id.terminal());
    let called = find_terminal(ledger, chat, &block.resource);
    let of_chat = ledger.channels.chats.known(chat);
    let kept = of_chat.and_then(|chat| {
        let TerminalKey(number) = chat.stored_terminals.get(&block.resource)?;
        Some(terminal_uri(&chat.channel.uri, *number))
    });
    let kept_in_memory = || kept.as_ref().and_then(|uri| ledger.channels.by_uri.get(uri)?.terminal());
    let made_again;
    let key = called.or_else(by_uri).or_else(kept_in_memory);
    let terminal = match (key.and_then(|key| ledger.channels.terminals.get(&key)), &kept) {
        (Some(terminal), _) => terminal,
        (None, Some(uri)) => match terminal_shown(ledger, uri) {
            Some((_, terminal)) => {
                made_again = terminal;
                &made_again
            }
            None => return false,
        },
        // The resource is not a name of the agent, but the URI of another terminal.
        (None, None) => return block.resource.contains(':'),
    };
    block.resource.clone_from(&terminal.channel.uri);
    block.title.clone_from(&terminal.state.title);
    block.is_pty = terminal.state.is_pty;
    block.result = terminal.result();
    true
}

/// Marks the terminals in a completed call as stored with it.
pub(super) fn mark_terminals_stored(ledger: &mut Ledger, content: &[ToolResultContent]) {
    for content in content {
        let ToolResultContent::Terminal(block) = content else { continue };
        let key = ledger.channels.by_uri.get(&block.resource).and_then(|id| id.terminal());
        let terminal = key.and_then(|key| ledger.channels.terminals.get_mut(&key));
        if let Some(terminal) = terminal.filter(|_| block.result.is_some()) {
            terminal.is_stored = true;
            ledger.touch(ChannelKind::Terminal);
        }
    }
}

fn terminals_of(ledger: &Ledger, chat: ChatKey) -> Vec<TerminalKey> {
    let terminals = ledger.channels.terminals.iter();
    terminals.filter(|(_, terminal)| terminal.chat == Some(chat)).map(|(key, _)| *key).collect()
}

/// Ends the terminals of an agent whose conversation is closed, and releases their names for the
/// next conversation.
pub(super) fn end_terminals_of(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    if let Some(chat) = ledger.channels.chats.known_mut(chat) {
        chat.stored_terminals.clear();
    }
    ledger.touch(ChannelKind::Terminal);
    background::remove_background_work(ledger, step, chat, |work| work.starts_with(OF_AGENT));
    for key in terminals_of(ledger, chat) {
        // Terminals with a pty belong to the user, not to the agent.
        let terminal = ledger.channels.terminals.known_mut(key).filter(|it| it.pty.is_none());
        let Some(terminal) = terminal else { continue };
        terminal.reported = None;
        if terminal.runs() {
            let action = StateAction::TerminalExited(TerminalExitedAction { exit_code: None });
            ledger.sequence(step, key, action, None);
            background::background_work_ended(ledger, step, key);
        }
    }
}

/// Changes the claims on the terminals of a chat that has moved to another session.
pub(super) fn transfer_terminals(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    for key in terminals_of(ledger, chat) {
        let claim = ledger.channels.terminals.known(key).map(|terminal| terminal.state.claim.clone());
        let Some(TerminalClaim::Session(before)) = claim else { continue };
        let claim = claim_of(ledger, chat, before.turn_id, before.tool_call_id);
        let claimed = StateAction::TerminalClaimed(TerminalClaimedAction { claim });
        ledger.sequence(step, key, claimed, None);
    }
    claims::transfer_ptys(ledger, step, chat);
}

/// Removes the terminals of a chat that is deleted or evicted.
pub(super) fn remove_terminals_of(ledger: &mut Ledger, chat: ChatKey) {
    for key in terminals_of(ledger, chat) {
        ledger.unlink(key.into());
        ledger.channels.terminals.remove(&key);
    }
}

pub(super) fn has_idle_terminals(ledger: &Ledger, session: &Session) -> bool {
    let chats: Vec<ChatKey> = ledger.channels.chats_of(session).collect();
    let mut terminals =
        ledger.channels.terminals.values().filter(|it| it.chat.is_some_and(|chat| chats.contains(&chat)));
    terminals.all(|terminal| !terminal.runs() && terminal.channel.subscribers.is_empty())
}

/// Returns whether a call shows a terminal, or the agent can still add it to one of the running
/// turn.
fn may_be_shown(ledger: &Ledger, terminal: &Terminal) -> bool {
    let Some(chat) = terminal.chat.and_then(|chat| ledger.channels.chats.known(chat)) else {
        return false;
    };
    (terminal.reported.is_some() && chat.run.is_some()) || is_shown(&chat.conversation, &terminal.channel.uri)
}

/// Restores the requested terminals that calls of chats in memory show.
pub(super) fn restore_terminals<'a>(ledger: &mut Ledger, uris: impl IntoIterator<Item = &'a String>) {
    for uri in uris {
        if ledger.find(uri).is_none() {
            if let Some((key, terminal)) = terminal_shown(ledger, uri) {
                add_terminal(ledger, key, terminal);
                ledger.touch(ChannelKind::Terminal);
            }
        }
    }
}

fn terminal_shown(ledger: &Ledger, uri: &str) -> Option<(TerminalKey, Terminal)> {
    let (chat, number) = parse_terminal_uri(uri)?;
    let key = ledger.find_chat(&chat)?;
    let uri = terminal_uri(&ledger.channels.chats.known(key)?.channel.uri, number);
    let (turn, parts) = turn_showing(&ledger.channels.chats.known(key)?.conversation, &uri)?;
    let Shown { call, block, text } = shown_in(&parts, &uri)?;
    let result = block.result.as_ref();
    let output = result.and_then(|result| result.preview.as_deref()).or(text).unwrap_or_default();
    let part = TerminalUnclassifiedPart { value: output.to_owned() };
    let content = (!output.is_empty()).then_some(TerminalContentPart::Unclassified(part));
    let exited = TerminalExitedLifecycleState { exit_code: result.and_then(|result| result.exit_code) };
    let claim = claim_of(ledger, key, Some(turn), Some(call.to_owned()));
    let state = TerminalState {
        content: content.into_iter().collect(),
        lifecycle: TerminalLifecycleState::Exited(exited),
        is_pty: block.is_pty,
        ..running_state(block.title.clone(), claim, false)
    };
    // Without the exit status, actions sent before do not lead to this state.
    let session = ledger.channels.sessions.known(ledger.channels.chats.known(key)?.session)?;
    // Output of an interactive command was not logged, so it cannot be replayed either.
    let can_be_replayed = result.is_some() && block.is_pty != Some(true);
    let born_at = if can_be_replayed { session.channel.born_at } else { ledger.head() + 1 };
    let channel = Channel::new(uri, born_at);
    let is_cut = result.is_some_and(|result| result.truncated == Some(true));
    let terminal = Terminal { chat: Some(key), is_stored: true, is_cut, ..Terminal::new(channel, state) };
    Some((TerminalKey(number), terminal))
}

/// Gives ended terminals in the first turns of a forked chat URIs of its own, so that they exist as
/// long as that chat. Running commands keep their URI.
pub(super) fn copy_terminals(ledger: &mut Ledger, chat: &str, turns: &mut [CompletedTurn]) {
    // A terminal that several calls show gets one copy.
    let mut copies: BTreeMap<String, String> = BTreeMap::new();
    for turn in turns.iter_mut().filter(|turn| turn.facts().terminals) {
        let Some(mut read) = turn.read() else { continue };
        let mut is_changed = false;
        for block in terminals_in(&mut read) {
            let known = ledger.channels.by_uri.get(&block.resource).and_then(|id| id.terminal());
            let terminal = known.and_then(|key| ledger.channels.terminals.get(&key));
            if !terminal.is_some_and(Terminal::runs) && parse_terminal_uri(&block.resource).is_some() {
                let copy = copies.entry(block.resource.clone());
                block.resource = copy.or_insert_with(|| terminal_uri(chat, ledger.fresh_key())).clone();
                is_changed = true;
            }
        }
        if is_changed {
            *turn = CompletedTurn::of(&read);
        }
    }
}

/// Returns whether a turn equals one of another chat, except for the URIs that [`copy_terminals`]
/// has given its terminals.
pub(super) fn is_copy_of(turn: &CompletedTurn, original: &CompletedTurn) -> bool {
    let without_uris = |turn: &CompletedTurn| {
        let mut read = turn.read()?;
        let blocks = terminals_in(&mut read).filter(|it| parse_terminal_uri(&it.resource).is_some());
        blocks.for_each(|block| block.resource.clear());
        Some(read)
    };
    turn == original
        || (turn.id() == original.id()
            && turn.facts().terminals
            && without_uris(turn).is_some_and(|turn| without_uris(original) == Some(turn)))
}

/// Detaches a command from its call, which then need not wait for it: a client claims the terminal
/// for its chat, without a call.
fn detach_command(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: TerminalKey,
    claimed: TerminalClaimedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let Some(terminal) = ledger.channels.terminals.known(key) else { return Ok(Verdict::Unchanged) };
    let Some(chat) = terminal.chat else { return Ok(Verdict::Unchanged) };
    if claimed.claim != claim_of(ledger, chat, None, None) {
        return Err(Refusal::OutputOfAgent("belongs to its agent, and can be claimed for its chat"));
    }
    if terminal.state.claim == claimed.claim {
        return Ok(Verdict::Unchanged);
    }
    let Some(command) = terminal.reported.as_ref().filter(|_| terminal.runs()) else {
        return Err(Refusal::OutputOfAgent("has ended"));
    };
    if !command.detaches {
        return Err(Refusal::OutputOfAgent("does not go on without its call"));
    }
    let name = command.name.clone();
    let work = BackgroundWork::Shell(BackgroundShellWork {
        id: terminal.channel.uri.clone(),
        label: terminal.state.title.clone(),
        started_at: command.since.clone(),
        meta: None,
        command: terminal.state.title.clone(),
        terminal: Some(terminal.channel.uri.clone()),
    });
    ledger.sequence(step, key, StateAction::TerminalClaimed(claimed), Some(origin));
    let set = StateAction::ChatBackgroundWorkSet(ChatBackgroundWorkSetAction { work });
    ledger.sequence(step, chat, set, None);
    background::show_background_activity(ledger, step, chat);
    step.send_to_agent(chat, Command::Background { terminal: name });
    Ok(Verdict::Done)
}
