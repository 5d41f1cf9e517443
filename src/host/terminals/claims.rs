//! Claims on interactive terminals, and requests of clients for them.
//!
//! Owns: which claims are valid, who may use and claim a terminal, and the limits on input, sizes
//! and titles.
//! Never: creates or ends a terminal.

use ahp_types::actions::{ActionOrigin, StateAction, TerminalClaimedAction, TerminalResizedAction};
use ahp_types::state::TerminalClaim;

use crate::host::actions::Verdict;
use crate::host::channels::Terminal;
use crate::host::effects::{ChatKey, ConnectionId, Output, PtyCommand, ScreenSize, TerminalKey, TypedText};
use crate::host::ledger::Ledger;
use crate::host::refusal::Refusal;
use crate::host::terminals::{ptys, TITLE_BYTES_MAX};
use crate::host::Step;
use crate::wire::channels::ChannelKind;

const INPUT_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of input that a program has not read.
const PENDING_INPUT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of columns, and of rows, of a screen.
const SCREEN_MAX: u16 = 1000;

pub(super) fn screen_size(cols: i64, rows: i64) -> Result<ScreenSize, Refusal> {
    let read = |count: i64| u16::try_from(count).ok().filter(|count| (1..=SCREEN_MAX).contains(count));
    match (read(cols), read(rows)) {
        (Some(cols), Some(rows)) => Ok(ScreenSize { cols, rows }),
        _ => Err(Refusal::ScreenSize(SCREEN_MAX)),
    }
}

/// Validates a title: not too long, without control characters.
pub(super) fn check_title(title: &str) -> Result<(), Refusal> {
    if title.len() > TITLE_BYTES_MAX || title.chars().any(char::is_control) {
        return Err(Refusal::TerminalTitle(TITLE_BYTES_MAX));
    }
    Ok(())
}

pub(super) fn is_claimant_disconnected(ledger: &Ledger, key: TerminalKey) -> bool {
    match ledger.channels.terminals.get(&key).map(|terminal| &terminal.state.claim) {
        Some(TerminalClaim::Client(claim)) => !ledger.presence.can_speak(&claim.client_id),
        _ => false,
    }
}

/// Checks that a client may use a terminal: it has claimed the terminal, or a session has and the
/// client is subscribed.
pub(super) fn check_use(ledger: &Ledger, key: TerminalKey, client: &str) -> Result<(), Refusal> {
    let Some(terminal) = ledger.channels.terminals.known(key) else { return Ok(()) };
    let is_clients = |connection: &ConnectionId| {
        ledger.presence.connections.get(connection).is_some_and(|it| it.client_id.as_deref() == Some(client))
    };
    match &terminal.state.claim {
        TerminalClaim::Client(claim) if claim.client_id == client => Ok(()),
        TerminalClaim::Client(_) => Err(Refusal::ClaimedByOther),
        _ if terminal.channel.subscribers.iter().any(is_clients) => Ok(()),
        _ => Err(Refusal::NotSubscribed),
    }
}

pub(super) fn client_uses_pty(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: TerminalKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    if let StateAction::TerminalClaimed(claimed) = action {
        return claim_pty(ledger, step, key, claimed, origin);
    }
    check_use(ledger, key, &origin.client_id)?;
    let Some(terminal) = ledger.channels.terminals.known_mut(key) else {
        return Ok(Verdict::Unchanged);
    };
    let runs = terminal.runs();
    let Some(pty) = terminal.pty.as_mut() else { return Ok(Verdict::Unchanged) };
    match &action {
        StateAction::TerminalInput(_) | StateAction::TerminalResized(_) if !runs => {
            return Err(Refusal::ProgramEnded);
        }
        StateAction::TerminalInput(input) => {
            let bytes = input.data.len();
            if bytes > INPUT_BYTES_MAX {
                return Err(Refusal::InputTooLarge(INPUT_BYTES_MAX));
            }
            if pty.pending_input_bytes + bytes > PENDING_INPUT_BYTES_MAX {
                return Err(Refusal::InputUntaken(PENDING_INPUT_BYTES_MAX));
            }
            pty.pending_input_bytes += bytes;
            step.emit(Output::Pty(key, PtyCommand::Type(TypedText(input.data.clone()))));
            // Input changes no state, and is not sent to other clients.
            return Ok(Verdict::Unchanged);
        }
        StateAction::TerminalResized(TerminalResizedAction { cols, rows }) => {
            let size = screen_size(*cols, *rows)?;
            if (terminal.state.cols, terminal.state.rows) == (Some(*cols), Some(*rows)) {
                return Ok(Verdict::Unchanged);
            }
            step.emit(Output::Pty(key, PtyCommand::Resize(size)));
        }
        StateAction::TerminalTitleChanged(changed) => {
            check_title(&changed.title)?;
            // From now on, the program cannot change the title.
            pty.is_named = true;
            if terminal.state.title == changed.title {
                return Ok(Verdict::Unchanged);
            }
        }
        StateAction::TerminalCleared(_) if terminal.state.content.is_empty() => {
            return Ok(Verdict::Unchanged);
        }
        // The content part of the running line was removed.
        StateAction::TerminalCleared(_) => pty.line = None,
        _ => {}
    }
    ledger.sequence(step, key, action, Some(origin));
    ptys::send_terminal_list(ledger, step);
    Ok(Verdict::Done)
}

fn claim_pty(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: TerminalKey,
    claimed: TerminalClaimedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    check_claim(ledger, &origin.client_id, &claimed.claim)?;
    let Some(terminal) = ledger.channels.terminals.known(key) else { return Ok(Verdict::Unchanged) };
    if terminal.chat.is_some() {
        return Err(Refusal::OutputOfAgent("belongs to its call"));
    }
    if !is_claimant_disconnected(ledger, key) {
        check_use(ledger, key, &origin.client_id)?;
    }
    if terminal.state.claim == claimed.claim {
        return Ok(Verdict::Unchanged);
    }
    ledger.sequence(step, key, StateAction::TerminalClaimed(claimed), Some(origin));
    ledger.touch(ChannelKind::Terminal);
    ptys::send_terminal_list(ledger, step);
    Ok(Verdict::Done)
}

pub(super) fn check_claim(ledger: &Ledger, client: &str, claim: &TerminalClaim) -> Result<(), Refusal> {
    match claim {
        TerminalClaim::Client(claim) if claim.client_id == client => Ok(()),
        TerminalClaim::Client(claim) => Err(Refusal::ClaimOfOther(claim.client_id.clone())),
        TerminalClaim::Session(claim) => {
            let unknown = |uri: &String| Refusal::ClaimUnknown(uri.clone());
            let session = ledger.find_session(&claim.session).ok_or_else(|| unknown(&claim.session))?;
            let chat = ledger.find_chat(&claim.chat).ok_or_else(|| unknown(&claim.chat))?;
            let is_in = ledger.channels.chats.known(chat).is_some_and(|chat| chat.session == session);
            if is_in {
                Ok(())
            } else {
                Err(Refusal::NoChatOfSession(claim.chat.clone()))
            }
        }
    }
}

pub(super) fn ptys_claimed_by(ledger: &Ledger, chat: ChatKey) -> Vec<TerminalKey> {
    let Some(uri) = ledger.channels.chats.known(chat).map(|chat| &chat.channel.uri) else {
        return Vec::new();
    };
    let is_held = |it: &Terminal| {
        let holds = matches!(&it.state.claim, TerminalClaim::Session(claim) if claim.chat == *uri);
        it.is_shell() && holds
    };
    let terminals = ledger.channels.terminals.iter();
    terminals.filter(|(_, terminal)| is_held(terminal)).map(|(key, _)| *key).collect()
}

/// Changes the claims on terminals for a chat that has moved to another session.
pub(super) fn transfer_ptys(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    let session = ledger.channels.chats.known(chat).map(|chat| chat.session);
    let session = session.and_then(|key| ledger.channels.sessions.known(key));
    let Some(session) = session.map(|session| session.channel.uri.clone()) else { return };
    for key in ptys_claimed_by(ledger, chat) {
        let claim = ledger.channels.terminals.known(key).map(|terminal| terminal.state.claim.clone());
        let Some(TerminalClaim::Session(mut claim)) = claim else { continue };
        claim.session.clone_from(&session);
        let claimed = TerminalClaimedAction { claim: TerminalClaim::Session(claim) };
        ledger.sequence(step, key, StateAction::TerminalClaimed(claimed), None);
    }
    ptys::send_terminal_list(ledger, step);
}
