//! Steps of automations that involve several owners.
//!
//! Owns: the session and the turn of a run, and their ends.
//! Never: decides that a run begins: it is recorded, and committed, before.

use ahp_types::actions::StateAction;
use ahp_types::commands::{CreateSessionParams, DisposeSessionParams};
use ahp_types::state::{AutomationRunLifecycle, AutomationSessionOrigin, Message, SessionOrigin};

use crate::host::actions::Verdict;
use crate::host::agents::conversations;
use crate::host::automations::runs::{self, Outcome};
use crate::host::catalogue::chats::reopen_session;
use crate::host::catalogue::sessions::{create_session, NewSession};
use crate::host::chats::turns::Ending;
use crate::host::chats::{pending, turns};
use crate::host::configuration::directories::are_checked;
use crate::host::configuration::selection;
use crate::host::effects::{AutomationRunKey, ChatKey, ConnectionId, Output, SessionKey, SessionOptions};
use crate::host::ledger::Ledger;
use crate::host::model::Session;
use crate::host::refusal::Refusal;
use crate::host::{Findings, Host, Step};
use crate::state::history::CompletedTurn;
use crate::wire::uris::{default_chat_of, session_uri};

use super::disposal::announce_session;

/// Connection of no client, for sessions that the host creates by itself.
const NOBODY: ConnectionId = ConnectionId(u32::MAX);

/// Begins a run that was recorded: creates its session and sends the message. If the agent has not
/// started before, a new session replaces the failed one.
pub(super) fn begin_run(host: &mut Host, step: &mut Step<'_>, key: AutomationRunKey, findings: Findings) {
    let Some((run, definition)) = runs::startable_run(&mut host.ledger, key) else { return };
    let template = definition.session;
    let directories = template.working_directories.as_deref().unwrap_or_default();
    if !are_checked(&findings, directories) {
        // The automation was changed since.
        return step.emit(Output::CheckDirectories(key, directories.to_vec()));
    }
    // Else the end of its failed session would cancel it.
    runs::stop_waiting(&mut host.ledger, key);
    let failed = run.sessions.into_iter().filter(|session| is_left_as_it_failed(&host.ledger, session));
    for channel in failed.collect::<Vec<_>>() {
        let failed = DisposeSessionParams { channel, meta: None };
        if let Err(error) = host.dispose_session(step, &failed) {
            tracing::warn!(%error, run = run.resource, "the failed session of a run cannot be disposed of");
        }
    }
    step.findings = findings;
    let params = CreateSessionParams {
        channel: session_uri(step.ids.fresh()),
        meta: None,
        provider: template.provider,
        working_directories: template.working_directories,
        config: template.config,
        active_client: None,
        progress_token: None,
    };
    let (uri, options) = (params.channel.clone(), SessionOptions::default());
    let made = create_session(&mut host.ledger, &host.agents, step, NOBODY, params, &options);
    let session = match made {
        Ok(made) => made.session,
        Err(error) => {
            let failed = Outcome::failed("sessionNotCreated", &error.message);
            return runs::end(&mut host.ledger, step, key, failed);
        }
    };
    if let Some(made) = host.ledger.channels.sessions.known_mut(session) {
        let (automation, run) = (run.automation, run.resource);
        let origin = SessionOrigin::Automation(AutomationSessionOrigin { automation, run });
        made.state.origin = Some(origin.clone());
        made.sent_summary.origin = Some(origin);
    }
    let Some(chat) = host.ledger.find_chat(&default_chat_of(&uri)) else {
        let failed = Outcome::failed("sessionNotCreated", "the session has no chat");
        return runs::end(&mut host.ledger, step, key, failed);
    };
    // The session is noted before its first message.
    runs::begin(&mut host.ledger, step, key, &uri, chat);
    let made = NewSession { session };
    announce_session(&mut host.ledger, &host.agents, &mut host.changes, step, made);
    let mut message = definition.message;
    message.model = message.model.or(template.model);
    message.agent = message.agent.or(template.agent);
    send_message_of_run(host, step, key, (session, chat), message);
}

fn send_message_of_run(
    host: &mut Host,
    step: &mut Step<'_>,
    key: AutomationRunKey,
    (session, chat): (SessionKey, ChatKey),
    message: Message,
) {
    match selection::check_message(&host.ledger, &host.agents, session, &message) {
        Ok(()) => {
            let turn_id = pending::fresh_turn_id(&host.ledger, step, chat);
            host.begin_turn(step, chat, turns::turn_started(turn_id, message, None), None, false);
        }
        Err(why) => {
            let failed = Outcome::failed("messageRefused", &why.to_string());
            runs::end(&mut host.ledger, step, key, failed);
        }
    }
}

/// Ends the run, if any, whose turn in this chat has ended.
pub(super) fn end_run_of(host: &mut Host, step: &mut Step<'_>, chat: ChatKey) {
    let Some(key) = runs::take_active(&mut host.ledger, chat) else { return };
    let session = host.ledger.channels.chats.known(chat).map(|chat| chat.session);
    let session = session.and_then(|session| host.ledger.channels.sessions.known(session));
    if session.is_some_and(Session::has_failed) && runs::retry_later(&mut host.ledger, step, key) {
        return;
    }
    let chat = host.ledger.channels.chats.known(chat);
    let turn = chat.and_then(|chat| chat.conversation.history().last()).and_then(CompletedTurn::read);
    let outcome = match Outcome::of_turn(turn) {
        Outcome::Cancelled if runs::are_over(&host.ledger) => Outcome::interrupted(),
        outcome => outcome,
    };
    runs::end(&mut host.ledger, step, key, outcome);
}

/// Returns whether a session of a run has failed, and no user has gone on in it.
fn is_left_as_it_failed(ledger: &Ledger, uri: &str) -> bool {
    let Some(key) = ledger.find_session(uri) else { return false };
    let is_unused = |chat: ChatKey| {
        let chat = ledger.channels.chats.known(chat);
        chat.is_some_and(|chat| chat.run.is_none() && chat.conversation.history().len() <= 1)
    };
    let session = ledger.channels.sessions.known(key);
    session.is_some_and(Session::has_failed) && ledger.channels.chats_in(key).into_iter().all(is_unused)
}

/// Cancels a run at the request of a client.
pub(super) fn cancel_run(
    host: &mut Host,
    step: &mut Step<'_>,
    key: AutomationRunKey,
    action: &StateAction,
) -> Result<Verdict, Refusal> {
    let Some(run) = host.ledger.channels.automation_runs.known(key) else {
        return Ok(Verdict::Unchanged);
    };
    let is_cancel = matches!(action, StateAction::AutomationRunCancelRequested(_));
    match (&run.state.lifecycle, runs::chat_of(&host.ledger, key)) {
        _ if !is_cancel => {}
        (AutomationRunLifecycle::Running(_), Some(chat)) => {
            host.end_turn(step, chat, Ending::Cancelled { meta: None }, None);
        }
        (lifecycle, _) if runs::is_active(lifecycle) => {
            runs::end(&mut host.ledger, step, key, Outcome::Cancelled);
        }
        _ => return Err(Refusal::Automation("the run has ended already".to_owned())),
    }
    Ok(Verdict::Unchanged)
}

/// Ends a run whose time is up, with its turn and its conversation.
pub(super) fn run_timed_out(host: &mut Host, step: &mut Step<'_>, key: AutomationRunKey) {
    let chat = runs::chat_of(&host.ledger, key);
    let failed = Outcome::failed("timeLimit", "the run has exceeded its time limit");
    runs::end(&mut host.ledger, step, key, failed);
    if let Some(chat) = chat {
        host.cancel_turn(step, chat);
        conversations::close_conversation(&mut host.ledger, step, chat);
        host.take_next_queued(step, chat);
        // Turns wait for a session that is being created, so its creation goes on.
        if let Some(session) = host.ledger.channels.chats.known(chat).map(|chat| chat.session) {
            reopen_session(&mut host.ledger, &host.agents, step, session);
        }
    }
}
