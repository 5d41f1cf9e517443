//! Working directories of sessions and chats.
//!
//! Owns: interpreting the lookups of directories, changing the directories of sessions and chats
//! within the agent's capabilities, and notifying the agent.
//! Never: reads a file system; directories are looked up before the message is handled.

use std::collections::BTreeMap;

use ahp_types::actions::{
    ActionOrigin, ChatWorkingDirectoryRemovedAction, ChatWorkingDirectorySetAction,
    SessionWorkingDirectoryRemovedAction, SessionWorkingDirectoryReplacedAction,
    SessionWorkingDirectorySetAction, StateAction,
};
use ahp_types::state::MultipleWorkingDirectoriesCapability;

use crate::host::actions::Verdict;
use crate::host::agents::AgentRegistry;
use crate::host::effects::{ChatKey, Command};
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, SessionKey};
use crate::host::refusal::Refusal;
use crate::host::{catalogue, Step};
use crate::wire::uris::canonical_file;

/// Results of directory lookups, by URI; the error is the reason why a session cannot use the
/// directory.
pub type Findings = BTreeMap<String, Result<(), String>>;

/// Returns whether these directories were looked up, as far as they have URIs that can be.
pub(crate) fn are_checked(findings: &Findings, uris: &[String]) -> bool {
    uris.iter().filter_map(|uri| canonical(uri).ok()).all(|uri| findings.contains_key(&uri))
}

/// Returns the canonical URI of a directory that a session can use. Fails with the reason, for the
/// developer of the client, if it cannot.
pub(crate) fn usable_directory(findings: &Findings, uri: &str) -> Result<String, Refusal> {
    let directory = canonical(uri)?;
    match findings.get(&directory) {
        Some(Ok(())) => Ok(directory),
        Some(Err(why)) => Err(bad_directory(uri, why)),
        None => Err(bad_directory(uri, "was not checked before this request (a bug of the host)")),
    }
}

fn canonical(uri: &str) -> Result<String, Refusal> {
    canonical_file(uri).map_err(|why| bad_directory(uri, why))
}

fn bad_directory(uri: &str, why: impl ToString) -> Refusal {
    Refusal::Directory { uri: uri.to_owned(), why: why.to_string() }
}

fn directories_capability(
    ledger: &Ledger,
    agents: &AgentRegistry,
    key: SessionKey,
) -> Result<MultipleWorkingDirectoriesCapability, Refusal> {
    let provider = ledger.channels.sessions.known(key).map_or("", |session| session.state.provider.as_str());
    let agent = agents.of(provider);
    let capabilities = agent.and_then(|agent| agent.info.capabilities.as_ref());
    let several = capabilities.and_then(|capabilities| capabilities.multiple_working_directories.clone());
    several.ok_or_else(|| Refusal::OneDirectory(provider.to_owned()))
}

pub(crate) fn client_changes_directories(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: SessionKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let can = directories_capability(ledger, agents, key)?;
    let (fixed, replaceable) = (can.immutable_primary == Some(true), can.primary_replacement == Some(true));
    let now = directories_of(ledger, key);
    let place = |uri: &str| {
        let uri = canonical_file(uri).unwrap_or_else(|_| uri.to_owned());
        now.iter().position(|directory| *directory == uri)
    };
    let (action, gone, new) = match action {
        StateAction::SessionWorkingDirectorySet(a) => {
            let directory = usable_directory(&step.findings, &a.directory)?;
            if now.contains(&directory) {
                return same(&a.directory, &directory);
            }
            let set = SessionWorkingDirectorySetAction { directory };
            (StateAction::SessionWorkingDirectorySet(set), None, None)
        }
        StateAction::SessionWorkingDirectoryRemoved(a) => {
            let Some(at) = place(&a.directory) else { return Ok(Verdict::Unchanged) };
            if at == 0 && replaceable {
                return Err(Refusal::FirstDirectoryNeeded);
            }
            if at == 0 && fixed {
                return Err(Refusal::FirstDirectoryFixed);
            }
            let directory = now[at].clone();
            let removed = SessionWorkingDirectoryRemovedAction { directory: directory.clone() };
            (StateAction::SessionWorkingDirectoryRemoved(removed), Some(directory), None)
        }
        StateAction::SessionWorkingDirectoryReplaced(a) => {
            let Some(at) = place(&a.directory) else {
                return Err(Refusal::NoDirectoryOfThisSession(a.directory));
            };
            if at == 0 && !replaceable {
                return Err(Refusal::FirstDirectoryFixed);
            }
            let (directory, replacement) =
                (now[at].clone(), usable_directory(&step.findings, &a.replacement)?);
            if directory == replacement {
                return same(&a.replacement, &directory);
            }
            let (gone, new) = (Some(directory.clone()), Some(replacement.clone()));
            let replaced = SessionWorkingDirectoryReplacedAction { directory, replacement };
            (StateAction::SessionWorkingDirectoryReplaced(replaced), gone, new)
        }
        _ => return Err(Refusal::NotServedOn("a session's channel")),
    };
    let follow = gone.map(|gone| chats_using(ledger, key, &gone)).unwrap_or_default();
    for (chat, from_there) in &follow {
        // No action replaces a directory of a chat: those behind it are removed and set again.
        let removed = if new.is_some() { &from_there[..] } else { &from_there[..1] };
        for directory in removed {
            let removed = ChatWorkingDirectoryRemovedAction { directory: directory.clone() };
            let removed = StateAction::ChatWorkingDirectoryRemoved(removed);
            change_chats_directories(ledger, step, *chat, removed, None);
        }
    }
    ledger.sequence(step, key, action, Some(origin));
    ledger.session_changed(key);
    if let Some(new) = new {
        for (chat, from_there) in &follow {
            for directory in std::iter::once(&new).chain(&from_there[1..]).cloned() {
                let set = StateAction::ChatWorkingDirectorySet(ChatWorkingDirectorySetAction { directory });
                change_chats_directories(ledger, step, *chat, set, None);
            }
        }
    }
    for chat in ledger.channels.chats_in(key) {
        replace_lost_directories(ledger, step, chat);
        send_directories(ledger, step, chat);
    }
    Ok(Verdict::Done)
}

/// Returns the directories of a new chat, if some of the session's were chosen for it. Fails with
/// the reason, for the developer of the client, if one cannot be used.
pub(crate) fn chosen_directories(
    ledger: &Ledger,
    agents: &AgentRegistry,
    session: SessionKey,
    chosen: Option<&[String]>,
) -> Result<Option<Vec<String>>, Refusal> {
    let Some(chosen) = chosen else { return Ok(None) };
    directories_capability(ledger, agents, session)?;
    let mut directories = Vec::new();
    for uri in chosen {
        let directory = canonical(uri)?;
        if !directories_of(ledger, session).contains(&directory) {
            return Err(Refusal::NoDirectoryOfSession(uri.clone()));
        }
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    if directories.is_empty() && !directories_of(ledger, session).is_empty() {
        return Err(Refusal::ChatNeedsDirectory);
    }
    Ok(Some(directories))
}

/// Applies a client's choice among the directories of a session for one of its chats.
pub(crate) fn client_chooses_directories(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let Some(session) = ledger.channels.chats.known(key).map(|chat| chat.session) else {
        return Ok(Verdict::Unchanged);
    };
    directories_capability(ledger, agents, session)?;
    let action = match action {
        StateAction::ChatWorkingDirectorySet(a) => {
            let directory = canonical(&a.directory)?;
            if !directories_of(ledger, session).contains(&directory) {
                return Err(Refusal::NoDirectoryOfChatsSession(a.directory));
            }
            if chosen_in(ledger, key).contains(&directory) {
                return same(&a.directory, &directory);
            }
            StateAction::ChatWorkingDirectorySet(ChatWorkingDirectorySetAction { directory })
        }
        StateAction::ChatWorkingDirectoryRemoved(a) => {
            let directory = canonical(&a.directory)?;
            if *chosen_in(ledger, key) == [directory.as_str()] {
                return Err(Refusal::ChatNeedsDirectory);
            }
            StateAction::ChatWorkingDirectoryRemoved(ChatWorkingDirectoryRemovedAction { directory })
        }
        _ => return Err(Refusal::NotServedOn("a chat's channel")),
    };
    if !change_chats_directories(ledger, step, key, action, Some(origin)) {
        return Ok(Verdict::Unchanged);
    }
    send_directories(ledger, step, key);
    Ok(Verdict::Done)
}

fn directories_of(ledger: &Ledger, key: SessionKey) -> &[String] {
    let session = ledger.channels.sessions.known(key);
    session.and_then(|session| session.state.working_directories.as_deref()).unwrap_or_default()
}

fn chosen_in(ledger: &Ledger, key: ChatKey) -> &[String] {
    let chat = ledger.channels.chats.known(key);
    chat.and_then(|chat| chat.conversation.state().working_directories.as_deref()).unwrap_or_default()
}

/// Returns the chats that have chosen a directory, each with its choice from this directory on.
fn chats_using(ledger: &Ledger, key: SessionKey, directory: &str) -> Vec<(ChatKey, Vec<String>)> {
    let from_there = |chat: ChatKey| {
        let chosen = chosen_in(ledger, chat);
        let at = chosen.iter().position(|one| one == directory)?;
        Some((chat, chosen[at..].to_vec()))
    };
    ledger.channels.chats_in(key).into_iter().filter_map(from_there).collect()
}

/// Removes the chosen directories of a chat that the session does not have.
pub(crate) fn retain_directories_of(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    session: SessionKey,
) {
    let there = directories_of(ledger, session);
    let gone: Vec<String> =
        chosen_in(ledger, key).iter().filter(|one| !there.contains(one)).cloned().collect();
    for directory in gone {
        let removed = ChatWorkingDirectoryRemovedAction { directory };
        let action = StateAction::ChatWorkingDirectoryRemoved(removed);
        change_chats_directories(ledger, step, key, action, None);
    }
}

/// Chooses the session's first directory for a chat whose chosen ones are all removed: an agent
/// without a directory would work in the host's own.
pub(crate) fn replace_lost_directories(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    if !chat.conversation.state().working_directories.as_ref().is_some_and(Vec::is_empty) {
        return;
    }
    let Some(directory) = directories_of(ledger, chat.session).first().cloned() else { return };
    let set = StateAction::ChatWorkingDirectorySet(ChatWorkingDirectorySetAction { directory });
    change_chats_directories(ledger, step, key, set, None);
}

/// Changes the choice of a chat, unless that has no effect.
fn change_chats_directories(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: StateAction,
    origin: Option<ActionOrigin>,
) -> bool {
    let changes =
        ledger.channels.chats.known(key).is_some_and(|chat| chat.conversation.would_change(&action));
    if changes {
        ledger.sequence(step, key, action, origin);
        catalogue::sync_chat(ledger, step, key);
    }
    changes
}

/// Returns the directories that a chat's agent uses: those chosen for the chat, or else all of the
/// session's. An imported chat may have an empty choice, which counts as none.
pub(crate) fn effective_directories(ledger: &Ledger, key: ChatKey) -> Vec<String> {
    let Some(chat) = ledger.channels.chats.known(key) else { return Vec::new() };
    match &chat.conversation.state().working_directories {
        Some(chosen) if !chosen.is_empty() => chosen.clone(),
        _ => directories_of(ledger, chat.session).to_vec(),
    }
}

/// Sends a chat's agent its working directories if they differ from those last sent and the
/// conversation is open.
pub(crate) fn send_directories(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let directories = effective_directories(ledger, key);
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open) else {
        return;
    };
    if chat.directories_sent != directories {
        chat.directories_sent.clone_from(&directories);
        step.send_to_agent(key, Command::WorkIn { directories });
    }
}

/// Acknowledges a directory that is already set. Refuses another spelling, which a client would
/// take for another directory.
fn same(asked: &str, directory: &str) -> Result<Verdict, Refusal> {
    if asked == directory {
        return Ok(Verdict::Unchanged);
    }
    Err(Refusal::DirectoryThere(directory.to_owned()))
}
