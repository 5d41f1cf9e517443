//! Interactive terminals: shells that clients request.
//!
//! Owns: creating and ending such a terminal, the events of its program, and the list of terminals
//! in the root state. Claims and requests of clients are in `claims`.
//! Never: starts a program or reads its output, which happens outside of the core; stores input or
//! output, which may be secret.
//!
//! A terminal is claimed by a client, or by a session, in which any subscribed client may type. A
//! terminal without a first subscriber, or whose client is disconnected, ends after a timeout. No
//! output survives the end of this process.

use std::time::Duration;

use ahp_types::actions::{
    RootTerminalsChangedAction, StateAction, TerminalCommandExecutedAction, TerminalCommandFinishedAction,
    TerminalExitedAction,
};
use ahp_types::commands::{CreateTerminalParams, DisposeTerminalParams};
use ahp_types::state::{TerminalClaim, TerminalInfo, TerminalState};

use crate::host::channels::{running_state, Pty, Terminal};
use crate::host::configuration::directories::{self, usable_directory};
use crate::host::effects::{
    ChannelId, ChatKey, ConnectionId, Frame, Output, PtyCommand, PtyLaunch, ScreenSize, TerminalKey, Timer,
};
use crate::host::ledger::Ledger;
use crate::host::limits::URI_BYTES_MAX;
use crate::host::model::Channel;
use crate::host::refusal::Refusal;
use crate::host::terminals::claims::{self, check_title, screen_size};
use crate::host::{terminals, Step};
use crate::wire::errors::RpcError;
use crate::wire::rpc::RequestId;
use crate::wire::terminals::{parse_terminal_uri, SCHEME};
use crate::wire::uris::is_root;
use crate::wire::watches::is_watch;

/// Maximum number of running programs in terminals that one client has requested.
const PTYS_PER_CLIENT_MAX: usize = 8;

/// Reason why no program is started in a terminal, for people.
const NO_TERMINALS: &str = "this host starts no shells for clients: it runs with `--no-terminals`";

/// Maximum number of terminals whose program has ended; beyond it the oldest are removed.
const ENDED_MAX: usize = 64;

/// Default screen size, in characters.
const SCREEN_COLS: i64 = 80;
const SCREEN_ROWS: i64 = 24;

/// Time limit for the first subscription to a new terminal.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct NewPty {
    state: TerminalState,
    uri: String,
    made_by: String,
    size: ScreenSize,
}

/// Returns whether a client may give a terminal this URI, which no scheme of the host reserves.
fn may_name_a_terminal(uri: &str) -> bool {
    let Some((scheme, path)) = uri.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let is_free = !scheme.to_ascii_lowercase().starts_with("ahp-") || uri.starts_with(SCHEME);
    is_scheme
        && is_free
        && !path.is_empty()
        && uri.len() <= URI_BYTES_MAX
        && parse_terminal_uri(uri).is_none()
}

pub(crate) fn new_terminal(
    ledger: &Ledger,
    step: &Step<'_>,
    connection: ConnectionId,
    params: CreateTerminalParams,
) -> Result<Box<NewPty>, RpcError> {
    ledger.check_store()?;
    if ledger.limits.ptys == 0 {
        return Err(RpcError::terminal_denied(NO_TERMINALS));
    }
    let client = ledger.presence.connections.get(&connection);
    let made_by = client.and_then(|client| client.client_id.clone()).unwrap_or_default();
    check_pty_limit(ledger, Some(&made_by)).map_err(RpcError::invalid_params)?;
    let uri = params.channel;
    if ledger.find(&uri).is_some() || ledger.why_unreadable(&uri).is_some() || is_root(&uri) || is_watch(&uri)
    {
        return Err(RpcError::already_exists(&uri));
    }
    if !may_name_a_terminal(&uri) {
        return Err(RpcError::invalid_params(
            "`channel`: a terminal's URI is `ahp-terminal:/<id>` or one of a scheme that does not begin with `ahp-`, of at most 4,096 bytes",
        ));
    }
    claims::check_claim(ledger, &made_by, &params.claim).map_err(|refusal| match &refusal {
        Refusal::ClaimOfOther(_) => RpcError::terminal_denied(format_args!("`claim`: {refusal}")),
        Refusal::ClaimUnknown(uri) => ledger.not_found(uri),
        _ => RpcError::invalid_params(format_args!("`claim`: {refusal}")),
    })?;
    let name = params.name.unwrap_or_default();
    check_title(&name).map_err(|refusal| RpcError::invalid_params(format_args!("`name`: {refusal}")))?;
    let (cols, rows) = (params.cols.unwrap_or(SCREEN_COLS), params.rows.unwrap_or(SCREEN_ROWS));
    let size = screen_size(cols, rows).map_err(RpcError::invalid_params)?;
    let cwd = match params.cwd {
        Some(uri) => Some(
            usable_directory(&step.findings, &uri)
                .map_err(|why| RpcError::invalid_params(format_args!("`cwd`: {why}")))?,
        ),
        None => directory_for(ledger, connection, &params.claim),
    };
    let (cols, rows) = (Some(cols), Some(rows));
    let state = TerminalState { cwd, cols, rows, ..running_state(name, params.claim, true) };
    Ok(Box::new(NewPty { state, uri, made_by, size }))
}

/// Returns the default directory of a shell: that of the session that claims it, or else the
/// directory where the client starts browsing.
fn directory_for(ledger: &Ledger, connection: ConnectionId, claim: &TerminalClaim) -> Option<String> {
    let of_session = match claim {
        TerminalClaim::Session(claim) => ledger.find_chat(&claim.chat),
        _ => None,
    };
    let of_session =
        of_session.and_then(|chat| directories::effective_directories(ledger, chat).into_iter().next());
    of_session.or_else(|| ledger.presence.connections.get(&connection)?.default_directory.clone())
}

/// Empties the terminal list that the previous process has sent, because clients that reconnect
/// retain their state and receive only the later actions.
pub(crate) fn announce_ended_terminals(ledger: &mut Ledger, step: &mut Step<'_>) {
    if std::mem::take(&mut ledger.channels.root.has_sent_terminals) && ledger.continues {
        let none = RootTerminalsChangedAction { terminals: Vec::new() };
        ledger.sequence(step, ChannelId::ROOT, StateAction::RootTerminalsChanged(none), None);
    }
}

/// Ends a terminal and its program for a client. Fails if another client has claimed it.
pub(crate) fn dispose_terminal(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    connection: ConnectionId,
    params: &DisposeTerminalParams,
) -> Result<(), RpcError> {
    let key = ledger.find(&params.channel).and_then(ChannelId::terminal);
    let found = key.and_then(|key| Some((key, ledger.channels.terminals.get(&key)?)));
    let Some((key, terminal)) = found else { return Err(RpcError::resource_not_found(&params.channel)) };
    if !terminal.is_shell() {
        return Err(RpcError::terminal_denied(
            "the terminal belongs to a tool call: it is removed with its chat, and cannot be disposed of",
        ));
    }
    let client = ledger.presence.client_of(connection).map(str::to_owned);
    if terminal.runs() && !claims::is_claimant_disconnected(ledger, key) {
        let may = claims::check_use(ledger, key, &client.unwrap_or_default());
        may.map_err(RpcError::terminal_denied)?;
    }
    remove_pty(ledger, step, key);
    Ok(())
}

/// Starts or stops the expiry timers of terminals whose clients have disconnected or reconnected.
pub(super) fn settle_ptys(ledger: &mut Ledger, step: &mut Step<'_>) {
    let keys: Vec<TerminalKey> = ledger.channels.terminals.keys().copied().collect();
    let grace = Duration::from_millis(ledger.limits.terminal_grace_ms);
    for key in keys {
        let is_gone = claims::is_claimant_disconnected(ledger, key);
        let terminal = ledger.channels.terminals.get(&key);
        let Some(pty) = terminal.and_then(|terminal| terminal.pty.as_ref()) else { continue };
        let time = match (is_gone, pty.expiry_timer) {
            (false, Some(_)) if pty.had_subscribers => None,
            (true, None) => {
                let number = ledger.fresh_key();
                step.emit(Output::Timer(Timer::Terminal(key, number), grace));
                Some(number)
            }
            (_, time) => time,
        };
        let terminal = ledger.channels.terminals.get_mut(&key);
        if let Some(pty) = terminal.and_then(|terminal| terminal.pty.as_mut()) {
            pty.expiry_timer = time;
        }
    }
}

/// Checks the limits on running programs: that of the host, and that of the client, if any.
pub(crate) fn check_pty_limit(ledger: &Ledger, client: Option<&str>) -> Result<(), String> {
    let max = ledger.limits.ptys;
    if max == 0 {
        return Err(NO_TERMINALS.to_owned());
    }
    let (mut all, mut of_client) = (0, 0);
    for terminal in ledger.channels.terminals.values().filter(|terminal| terminal.runs()) {
        let Some(pty) = &terminal.pty else { continue };
        all += 1;
        of_client += usize::from(client == Some(&pty.made_by));
    }
    if all >= max {
        return Err(format!("this host has {max} running terminals already, the maximum"));
    }
    if of_client >= PTYS_PER_CLIENT_MAX {
        let max = PTYS_PER_CLIENT_MAX;
        return Err(format!("this client has {max} running terminals already, the maximum"));
    }
    Ok(())
}

/// Creates a terminal. The client is answered when the shell has started.
pub(crate) fn create_terminal(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    connection: ConnectionId,
    id: RequestId,
    new: NewPty,
) {
    let key = TerminalKey(ledger.fresh_key());
    let number = ledger.fresh_key();
    let launch = PtyLaunch { command: None, directory: new.state.cwd.clone(), size: new.size };
    let pty = Pty {
        asked: Some((connection, id)),
        made_by: new.made_by,
        is_named: !new.state.title.is_empty(),
        expiry_timer: Some(number),
        ..Pty::default()
    };
    // A client's state under the same URI belongs to an earlier terminal.
    let channel = Channel::new(new.uri, ledger.head() + 1);
    let terminal = Terminal { pty: Some(pty), ..Terminal::new(channel, new.state) };
    terminals::add_terminal(ledger, key, terminal);
    step.emit(Output::Pty(key, PtyCommand::Start(launch)));
    step.emit(Output::Timer(Timer::Terminal(key, number), SUBSCRIBE_TIMEOUT));
}

/// Notes that a shell runs a line. If another line was running, its exit code is unknown.
pub(crate) fn line_started(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey, command_line: String) {
    line_ended(ledger, step, key, None);
    let terminal = ledger.channels.terminals.get_mut(&key);
    let Some(pty) = terminal.and_then(|terminal| terminal.pty.as_mut()) else { return };
    pty.lines += 1;
    let command_id = format!("cmd-{}", pty.lines);
    pty.line = Some((command_id.clone(), step.now.monotonic_ms));
    let timestamp = step.now.unix_ms;
    let executed = TerminalCommandExecutedAction { command_id, command_line, timestamp };
    ledger.sequence(step, key, StateAction::TerminalCommandExecuted(executed), None);
}

pub(crate) fn line_ended(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey, exit_code: Option<i64>) {
    let terminal = ledger.channels.terminals.get_mut(&key);
    let Some(pty) = terminal.and_then(|terminal| terminal.pty.as_mut()) else { return };
    let Some((command_id, since_ms)) = pty.line.take() else { return };
    let lasted_ms = i64::try_from(step.now.monotonic_ms.saturating_sub(since_ms)).unwrap_or(i64::MAX);
    let finished = TerminalCommandFinishedAction { command_id, exit_code, duration_ms: Some(lasted_ms) };
    ledger.sequence(step, key, StateAction::TerminalCommandFinished(finished), None);
}

/// Removes the oldest ended terminals above the limit.
pub(crate) fn evict_ended_ptys(ledger: &mut Ledger, step: &mut Step<'_>) {
    let ptys = ledger.channels.terminals.iter().filter(|(_, it)| it.is_shell());
    let ended: Vec<TerminalKey> = ptys.filter(|(_, it)| !it.runs()).map(|(key, _)| *key).collect();
    for key in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
        remove_pty(ledger, step, *key);
    }
}

/// Sends the list of terminals if it differs from the one last sent.
pub(crate) fn send_terminal_list(ledger: &mut Ledger, step: &mut Step<'_>) {
    let has_started = |it: &Terminal| it.pty.as_ref().is_some_and(|pty| pty.asked.is_none());
    let listed = ledger.channels.terminals.values().filter(|it| it.is_shell() && has_started(it));
    let terminals: Vec<TerminalInfo> = listed
        .map(|terminal| TerminalInfo {
            resource: terminal.channel.uri.clone(),
            title: terminal.state.title.clone(),
            claim: terminal.state.claim.clone(),
            lifecycle: terminal.state.lifecycle.clone(),
        })
        .collect();
    if ledger.channels.root.state.terminals.as_deref().unwrap_or_default() != terminals {
        let changed = StateAction::RootTerminalsChanged(RootTerminalsChangedAction { terminals });
        ledger.sequence(step, ChannelId::ROOT, changed, None);
    }
}

/// Returns whether a client, of this connection if it is named, waits for a shell to start.
pub(crate) fn are_starting(ledger: &Ledger, of: Option<ConnectionId>) -> bool {
    let asked = ledger.channels.terminals.values().filter_map(|it| it.pty.as_ref()?.asked.as_ref());
    asked.map(|(connection, _)| *connection).any(|connection| of.is_none_or(|of| of == connection))
}

pub(crate) fn remove_pty(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey) {
    let Some(terminal) = ledger.channels.terminals.get_mut(&key) else { return };
    let asked = terminal.pty.as_mut().and_then(|pty| pty.asked.take());
    end_program(ledger, step, key);
    if let Some((connection, id)) = asked {
        let error = RpcError::unavailable("the terminal was ended before its shell had started");
        step.emit(Output::Frame(connection, Frame::Error { id: Some(id), error }));
    }
    ledger.unlink(key.into());
    ledger.channels.terminals.remove(&key);
    send_terminal_list(ledger, step);
}

pub(super) fn end_program(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey) {
    if ledger.channels.terminals.get(&key).is_some_and(Terminal::runs) {
        step.emit(Output::Pty(key, PtyCommand::End));
        line_ended(ledger, step, key, None);
        let exited = StateAction::TerminalExited(TerminalExitedAction { exit_code: None });
        ledger.sequence(step, key, exited, None);
    }
}

/// Removes the terminals that are claimed for a chat, which is about to be deleted.
pub(crate) fn end_ptys_of(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    for key in claims::ptys_claimed_by(ledger, chat) {
        remove_pty(ledger, step, key);
    }
}

pub(crate) fn terminal_expired(ledger: &mut Ledger, step: &mut Step<'_>, key: TerminalKey, number: u64) {
    let terminal = ledger.channels.terminals.get(&key);
    let time = terminal.and_then(|terminal| terminal.pty.as_ref()?.expiry_timer);
    if time == Some(number) {
        remove_pty(ledger, step, key);
    }
}
