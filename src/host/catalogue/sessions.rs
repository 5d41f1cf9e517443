//! Sessions. (`router::disposal` has the steps of `disposeSession` and `listSessions`.)
//!
//! Owns: creating sessions with their default chats, removing chats, and the pages of the list.
//! Never: opens a conversation: the router does, after the answer.

use ahp_types::commands::CreateSessionParams;
use ahp_types::state::{SessionActiveClient, SessionState};
use bytes::Bytes;

use crate::host::actions::ACTION_NESTING_MAX;
use crate::host::agents::progress::Opening;
use crate::host::agents::AgentRegistry;
use crate::host::catalogue::chats::Beginning;
use crate::host::catalogue::{ahead, row_of, Catalogue, FIRST_TITLE};
use crate::host::configuration::directories::usable_directory;
use crate::host::configuration::selection;
use crate::host::configuration::values::{check_complete, settings_of, shown};
use crate::host::cursors::CursorOf;
use crate::host::effects::{
    AgentDescription, ChatKey, ConnectionId, ListPosition, Listed, Page, SessionOptions,
};
use crate::host::ledger::Ledger;
use crate::host::limits::URI_BYTES_MAX;
use crate::host::model::{creating_session, empty_chat, Channel, Chat, Session, SessionKey};
use crate::host::terminals::ptys;
use crate::host::{
    annotations, canvases, catalogue, configuration, customizations, terminals, Findings, Step,
};
use crate::state::status::activity_of;
use crate::wire::annotations::annotations_uri;
use crate::wire::changesets::parse_changeset_uri;
use crate::wire::errors::RpcError;
use crate::wire::methods::ListSessionsParams;
use crate::wire::rpc::{nesting_fits, to_json, to_sorted_json};
use crate::wire::uris::{default_chat_of, is_root};

/// New session that was not announced yet.
#[derive(Debug)]
pub(in crate::host) struct NewSession {
    pub(in crate::host) session: SessionKey,
}

/// Returns whether a client may give a session this URI. Any scheme is allowed except those of
/// other channels; case is ignored because URI libraries convert schemes to lower case.
fn may_name_a_session(uri: &str) -> bool {
    let well_formed = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    };
    uri.split_once(':').is_some_and(|(scheme, path)| {
        let known = scheme.to_ascii_lowercase();
        well_formed(scheme)
            && !path.is_empty()
            && uri.len() <= URI_BYTES_MAX
            && (known == "ahp-session" || !known.starts_with("ahp-"))
    })
}

impl Catalogue {
    /// Replaces the sessions read from the store by those in memory, with their last sent
    /// summaries.
    pub(in crate::host) fn update_from_memory(&self, ledger: &Ledger, page: &Page, listed: &mut Listed) {
        let sessions = &ledger.channels.sessions;
        let is_known =
            |place: &ListPosition| sessions.contains_key(&place.key) || self.disposed.contains(place.key);
        listed.sessions.retain(|(place, _)| !is_known(place));
        let shown = sessions.iter().filter(|(_, session)| !session.ahead);
        let shown = shown.map(|(key, session)| {
            (
                ListPosition { modified_at: session.sent_summary.modified_at.clone(), key: *key },
                &session.sent_summary,
            )
        });
        let last = listed.next.as_ref();
        let on_page = shown.filter(|(place, _)| {
            page.after.as_ref().is_none_or(|after| place < after) && last.is_none_or(|last| place >= last)
        });
        listed.sessions.extend(on_page.map(|(place, shown)| (place, to_json(shown).into())));
        listed.sessions.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
        if listed.sessions.len() > page.limit {
            listed.sessions.truncate(page.limit);
            listed.next = listed.sessions.last().map(|(place, _)| place.clone());
        }
    }
}

/// Creates a session and its default chat, in `lifecycle: creating`.
pub(in crate::host) fn create_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &Step<'_>,
    connection: ConnectionId,
    mut params: CreateSessionParams,
    options: &SessionOptions,
) -> Result<NewSession, RpcError> {
    ledger.check_store()?;
    check_new_uri(ledger, &params.channel)?;
    let beginning = match &options.fork {
        Some(source) => catalogue::forks::beginning_from(ledger, source, &mut params)?,
        None => Beginning::default(),
    };
    create_session_with(ledger, agents, step, connection, params, options, beginning)
}

/// Checks that a new session can have this URI.
pub(in crate::host) fn check_new_uri(ledger: &Ledger, uri: &str) -> Result<(), RpcError> {
    let is_known = |uri: &str| ledger.find(uri).is_some() || ledger.why_unreadable(uri).is_some();
    let taken = |uri: &str| is_known(uri) || is_root(uri);
    if taken(uri) || taken(&annotations_uri(uri)) {
        return Err(RpcError::session_already_exists(uri));
    }
    // The first chat of a session that was disposed of may be in another one.
    let chat = default_chat_of(uri);
    if taken(&chat) {
        return Err(RpcError::session_already_exists(&chat));
    }
    if parse_changeset_uri(uri).is_some() {
        return Err(RpcError::invalid_params("`channel`: a session cannot have the URI of a changeset"));
    }
    if !may_name_a_session(uri) {
        return Err(RpcError::invalid_params(
            "`channel`: a session's URI is `ahp-session:/<id>` or `<provider>:/<id>`, of at most 4,096 bytes",
        ));
    }
    Ok(())
}

/// Creates a session whose default chat begins like this, at a URI that was checked.
pub(in crate::host) fn create_session_with(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &Step<'_>,
    connection: ConnectionId,
    params: CreateSessionParams,
    options: &SessionOptions,
    mut beginning: Beginning,
) -> Result<NewSession, RpcError> {
    let uri = params.channel.clone();
    let chat_uri = default_chat_of(&uri);
    let agent = configuration::requests::find_agent(agents, params.provider.as_deref())?;
    agents.check_tokens(ledger, step, connection, agent)?;
    let directories = new_directories(&step.findings, agent, params.working_directories)?;
    let config = settings_of(agent, params.config.unwrap_or_default());
    check_complete(&agent.config, &config).map_err(RpcError::invalid_params)?;
    let shown_config = shown(&agent.config, &config, agents.settings_may_change(&agent.info.provider));
    if let Some(client) = &params.active_client {
        check_active_client(ledger, connection, client)?;
    }
    let provider = agent.info.provider.clone();
    beginning.draft = selection::first_draft(agents, &provider, &options.selection)?;

    let ahead = options.ahead && options.fork.is_none() && ahead::has_room(ledger);
    let now = step.timestamp();
    // The next number is that of the count of sessions, which is sent with the session itself.
    let born_at = ledger.head() + 1;
    let (session, chat) = (SessionKey(ledger.fresh_key()), ChatKey(ledger.fresh_key()));
    let empty = empty_chat(chat_uri.clone(), FIRST_TITLE, &now);
    let channel = Channel::new(chat_uri.clone(), born_at);
    let first = catalogue::chats::beginning_chat(ledger, channel, session, empty, beginning);
    let title_by = first.title_by;
    let row = row_of(first.conversation.state());
    let customizations = customizations::servers_of_new_session(ledger, &provider, directories.as_deref());
    let mut state = SessionState {
        config: shown_config,
        customizations,
        status: activity_of(row.status),
        ..creating_session(&uri, provider, directories, row)
    };
    state.active_clients.extend(params.active_client);
    ledger.channels.by_uri.insert(uri.clone(), session.into());
    ledger.channels.by_uri.insert(chat_uri, chat.into());
    let requesting_client = ledger.presence.client_of(connection).map(str::to_owned);
    let opening = params.progress_token.map(|token| Opening::new(token, connection));
    let first = Chat { requesting_client, opening, ..first };
    ledger.channels.chats.insert(chat, first);
    if !ahead {
        ledger.mark_dirty(session.into());
        ledger.mark_dirty(chat.into());
    }
    let used = ledger.uses();
    let channel = Channel::new(uri, born_at);
    let made = Session { used, ahead, ..Session::new(channel, state, (now.clone(), now), config, title_by) };
    ledger.channels.sessions.insert(session, made);
    annotations::add_annotations(ledger, session, Vec::new());
    Ok(NewSession { session })
}

fn check_active_client(
    ledger: &Ledger,
    connection: ConnectionId,
    client: &SessionActiveClient,
) -> Result<(), RpcError> {
    if ledger.presence.client_of(connection) != Some(&client.client_id) {
        return Err(RpcError::invalid_params(
            "`activeClient.clientId` must be the client id of this connection",
        ));
    }
    if !nesting_fits(&to_json(client), ACTION_NESTING_MAX) {
        return Err(RpcError::invalid_params(format_args!(
            "`activeClient` is nested deeper than {ACTION_NESTING_MAX} levels"
        )));
    }
    Ok(())
}

/// Returns the result of a `listSessions` that reads only memory: these sessions, or all.
pub(in crate::host) fn summaries_in_memory(ledger: &Ledger, uris: Option<&[String]>) -> Vec<u8> {
    let keys: Vec<SessionKey> = match uris {
        Some(uris) => uris.iter().filter_map(|uri| ledger.find_session(uri)).collect(),
        None => ledger.channels.sessions.keys().copied().collect(),
    };
    let summaries = keys.into_iter().filter_map(|key| ledger.channels.summary(key));
    listing_of(summaries.map(|summary| to_sorted_json(&summary)), None)
}

/// Returns the requested page of the list; all sessions if no limit is given.
pub(in crate::host) fn page_of(params: &ListSessionsParams) -> Result<Page, RpcError> {
    let limit = match params.limit {
        None => usize::MAX,
        Some(limit) => match usize::try_from(limit) {
            Ok(limit) if limit > 0 => limit,
            _ => return Err(RpcError::invalid_params("`limit` must be at least 1")),
        },
    };
    let after = match params.cursor.as_deref() {
        None => None,
        Some(cursor) => Some(read_cursor(cursor).ok_or_else(|| {
            RpcError::invalid_params("`cursor` was not issued by this host; omit it to get the first page")
        })?),
    };
    Ok(Page { after, limit })
}

pub(in crate::host) fn remove_chat(ledger: &mut Ledger, step: &mut Step<'_>, chat: ChatKey) {
    ptys::end_ptys_of(ledger, step, chat);
    terminals::remove_terminals_of(ledger, chat);
    canvases::remove_canvases_of(ledger, chat);
    if let Some(session) = ledger.channels.chats.known(chat).map(|chat| chat.session) {
        ledger.note_edited(session, true);
    }
    ledger.unlink(chat.into());
    ledger.channels.chats.remove(&chat);
}

/// Returns the directories of a new session, without duplicates.
pub(in crate::host) fn new_directories(
    findings: &Findings,
    agent: &AgentDescription,
    asked: Option<Vec<String>>,
) -> Result<Option<Vec<String>>, RpcError> {
    let Some(asked) = asked else { return Ok(None) };
    let mut directories: Vec<String> = Vec::with_capacity(asked.len());
    for uri in &asked {
        let directory = usable_directory(findings, uri)
            .map_err(|why| RpcError::invalid_params(format_args!("`workingDirectories`: {why}")))?;
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    let capabilities = agent.info.capabilities.as_ref();
    let several = capabilities.is_some_and(|can| can.multiple_working_directories.is_some());
    if directories.len() > 1 && !several {
        return Err(RpcError::invalid_params(format_args!(
            "`workingDirectories`: the agent `{}` supports only one working directory",
            agent.info.provider
        )));
    }
    Ok(Some(directories))
}

fn write_cursor(ListPosition { modified_at, key: SessionKey(number) }: &ListPosition) -> String {
    CursorOf::Sessions.write(format_args!("{modified_at}:{number}"))
}

fn read_cursor(cursor: &str) -> Option<ListPosition> {
    let place = CursorOf::Sessions.read(cursor)?;
    let (modified_at, number) = place.rsplit_once(':')?;
    Some(ListPosition { modified_at: modified_at.to_owned(), key: SessionKey(number.parse().ok()?) })
}

/// Returns the result of `listSessions` (JSON text) for a page.
pub fn listing(listed: &Listed) -> Bytes {
    listing_of(listed.sessions.iter().map(|(_, summary)| summary), listed.next.as_ref()).into()
}

/// Returns a page as JSON text, from the summaries as text. `next` is the position of its last
/// session; `None` if no more follow.
fn listing_of(summaries: impl Iterator<Item = impl AsRef<[u8]>>, next: Option<&ListPosition>) -> Vec<u8> {
    let mut result = b"{".to_vec();
    if let Some(place) = next {
        result.extend_from_slice(b"\"nextCursor\":");
        result.extend_from_slice(&to_json(&write_cursor(place)));
        result.push(b',');
    }
    result.extend_from_slice(b"\"items\":[");
    for (at, summary) in summaries.enumerate() {
        result.extend_from_slice(if at == 0 { b"" } else { b"," });
        result.extend_from_slice(summary.as_ref());
    }
    result.extend_from_slice(b"]}");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_the_place_that_it_was_made_of() {
        let place = ListPosition { modified_at: "2026-01-02T03:04:05.678Z".to_owned(), key: SessionKey(17) };
        assert_eq!(read_cursor(&write_cursor(&place)), Some(place));
        for foreign in ["", "x", &CursorOf::Turns.write(format_args!("2026:17"))] {
            assert_eq!(read_cursor(foreign), None, "{foreign}");
        }
    }
}
