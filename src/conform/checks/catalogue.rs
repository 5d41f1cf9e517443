//! List of sessions, and the notifications that keep it fresh.
//!
//! Owns: the laws of what a list and the notifications say of a session.
//! Never: asks for more than the end of changes: a host may coalesce them.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::Timestamp;
use serde_json::{json, Value};

use super::subscriptions::title;
use crate::conform::bench::{Bench, BenchSession};
use crate::conform::client::{quoted, JudgeClient, ROOT};
use crate::conform::stop::{broken, must, not_offered, CheckStop, Judged};
use crate::conform::summaries::IDENTITY;
use crate::conform::types::SESSION_REMOVED;

/// Time in which lists and notifications must have caught up with a state.
const CATCHES_UP_WITHIN: Duration = Duration::from_secs(5);

/// Interval between the first two tries. It doubles, so that a reproduction is short.
const TRIES_AFTER: Duration = Duration::from_millis(100);

/// Maximum number of pages in a row that bring no session.
const EMPTY_PAGES_MAX: usize = 20;

/// Members that a list and the state of an idle session have in common.
const COMMON: [&str; 5] = ["provider", "title", "status", "workingDirectories", "defaultChat"];

/// Members of a summary whose last change must be what the list has.
const TOLD: [&str; 2] = ["title", "status"];

/// Returns the items of all pages of the list.
fn listed(client: &mut JudgeClient, limit: Option<usize>) -> Judged<Vec<Value>> {
    let mut items: Vec<Value> = Vec::new();
    let (mut known, mut cursor, mut empty) = (BTreeSet::new(), Value::Null, 0);
    loop {
        let mut params = json!({ "channel": ROOT });
        if let Some(limit) = limit {
            params["limit"] = json!(limit);
        }
        let is_first = cursor.is_null();
        if !is_first {
            params["cursor"] = cursor;
        }
        let result = match client.ask("listSessions", params)? {
            Ok(result) => result,
            Err(error) => {
                let of = if is_first { "" } else { " with the cursor of the page before" };
                return broken(format!("`listSessions`{of} is answered with {}", quoted(&error.error)));
            }
        };
        let page = result["items"].as_array().cloned().unwrap_or_default();
        let fresh = page.iter().filter(|item| known.insert(item["resource"].to_string())).count();
        items.extend(page);
        cursor = result["nextCursor"].clone();
        if cursor.is_null() {
            return Ok(items);
        }
        empty = if fresh == 0 { empty + 1 } else { 0 };
        must!(
            empty < EMPTY_PAGES_MAX,
            "the list has no end: {empty} pages in a row have no session that was not listed before"
        );
    }
}

/// Returns the one item of a list that is of this session.
fn item_of(items: &[Value], session: &str) -> Judged<Value> {
    let mut found = items.iter().filter(|item| item["resource"] == session);
    let Some(item) = found.next() else { return broken(format!("`{session}` is not listed")) };
    let again = found.count();
    must!(again == 0, "`{session}` is listed {} times", again + 1);
    Ok(item.clone())
}

/// Tries again until a law holds, or until the deadline; returns the last result.
fn caught_up(
    client: &mut JudgeClient,
    deadline: Instant,
    mut attempt: impl FnMut(&mut JudgeClient) -> Judged<()>,
) -> Judged<()> {
    let until = deadline.min(Instant::now() + CATCHES_UP_WITHIN);
    let mut interval = TRIES_AFTER;
    loop {
        match attempt(client) {
            Err(CheckStop::Broken(_)) if Instant::now() < until => thread::sleep(interval),
            judged => return judged,
        }
        interval *= 2;
        client.sync()?;
    }
}

/// Returns the second in which a date is.
fn second_of(date: &Value) -> Option<i64> {
    let text = date.as_str()?;
    let local = |time: DateTime| time.to_zoned(TimeZone::UTC).ok();
    let stamp = text.parse::<Timestamp>().ok();
    let stamp = stamp.or_else(|| Some(local(text.parse().ok()?)?.timestamp()))?;
    Some(stamp.as_second())
}

/// Checks that the list says of an idle session what its state says.
fn agrees(client: &mut JudgeClient, session: &str) -> Judged<()> {
    let item = item_of(&listed(client, None)?, session)?;
    let state = client.must_subscribe(session)?["state"].clone();
    for name in COMMON {
        let (listed, shown) = (item.get(name), state.get(name));
        let (Some(listed), Some(shown)) = (listed, shown) else { continue };
        must!(listed == shown, "the list has the `{name}` {listed} of `{session}`, its state {shown}");
    }
    let chats = |of: &Value| {
        let rows = of["chats"].as_array()?.iter();
        Some(rows.map(|row| row["resource"].clone()).collect::<Vec<Value>>())
    };
    if let (Some(listed), Some(shown)) = (chats(&item), chats(&state)) {
        must!(listed == shown, "the list has the chats {listed:?} of `{session}`, its state {shown:?}");
    }
    // Dates may be rounded.
    let modified = state["chats"].as_array().into_iter().flatten();
    let modified = modified.filter_map(|chat| second_of(&chat["modifiedAt"])).max();
    let is_recent = modified.is_none_or(|chat| second_of(&item["modifiedAt"]) >= Some(chat));
    must!(
        is_recent,
        "a chat was modified after its session, {}: {}",
        item["modifiedAt"],
        quoted(&state["chats"])
    );
    Ok(())
}

/// Creates a session with a turn, if the agent takes one: a host may list it only then, which is
/// judged elsewhere.
fn used_session(bench: &mut Bench, client: &mut JudgeClient) -> Judged<BenchSession> {
    let session = bench.session(client)?;
    match bench.run_turn(client, &session) {
        Err(CheckStop::NotOffered(_)) => {}
        run => drop(run?),
    }
    Ok(session)
}

pub fn list(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[ROOT])?;
    let sessions = [bench.session(&mut client)?, bench.session(&mut client)?, bench.session(&mut client)?];
    let all = listed(&mut client, None)?;
    for session in &sessions {
        item_of(&all, &session.uri)?;
    }
    let [session, other, _] = &sessions;
    client.must_ask("disposeSession", json!({ "channel": session.uri }))?;
    let is_left = listed(&mut client, None)?.iter().any(|item| item["resource"] == session.uri);
    must!(!is_left, "`{}`, which was disposed of, is listed", session.uri);
    item_of(&listed(&mut client, None)?, &other.uri)?;
    client.compare(ROOT)
}

pub fn pages(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(used_session(bench, &mut client)?);
    }
    let all = listed(&mut client, None)?;
    // A host may make pages smaller, or list all at once.
    for limit in [1, 2] {
        let items = listed(&mut client, Some(limit.max(all.len() / 5)))?;
        for session in &sessions {
            item_of(&items, &session.uri)?;
        }
    }
    Ok(())
}

pub fn contents(bench: &mut Bench) -> Judged<()> {
    let mut client = bench.ready(&[])?;
    let session = used_session(bench, &mut client)?;
    let created = item_of(&listed(&mut client, None)?, &session.uri)?["createdAt"].clone();
    client.change(&session.uri, title("Listed"))?;
    let deadline = bench.deadline;
    caught_up(&mut client, deadline, |client| agrees(client, &session.uri))?;
    client.change(&session.uri, json!({ "type": "session/isReadChanged", "isRead": true }))?;
    caught_up(&mut client, deadline, |client| agrees(client, &session.uri))?;
    let now = item_of(&listed(&mut client, None)?, &session.uri)?["createdAt"].clone();
    must!(now == created, "the session was created at {created}, and later at {now}");
    Ok(())
}

/// Returns clients that follow the root channel: two, if the host has several.
fn two_of_root(bench: &mut Bench) -> Judged<Vec<JudgeClient>> {
    let mut clients = vec![bench.ready(&[ROOT])?];
    if bench.settings.plan.has_several_clients() {
        clients.push(bench.ready(&[ROOT])?);
    }
    Ok(clients)
}

/// Waits until each client was notified of a new session.
fn wait_for_added(clients: &mut [JudgeClient], session: &str) -> Judged<()> {
    for client in clients {
        // A turn has taken the messages that came before its end.
        while client.summaries.of(session).is_none() {
            client.next("`root/sessionAdded`")?;
        }
    }
    Ok(())
}

pub fn notices(bench: &mut Bench) -> Judged<()> {
    let mut clients = two_of_root(bench)?;
    let session = bench.session(&mut clients[0])?;
    wait_for_added(&mut clients, &session.uri)?;
    let item = item_of(&listed(&mut clients[0], None)?, &session.uri)?;
    for client in &clients {
        let told = client.summaries.of(&session.uri).map(|held| held.summary.clone()).unwrap_or_default();
        for name in IDENTITY {
            must!(
                told[name] == item[name],
                "`root/sessionAdded` has the `{name}` {} of `{}`, the list {}",
                told[name],
                session.uri,
                item[name]
            );
        }
    }
    clients[0].must_ask("disposeSession", json!({ "channel": session.uri }))?;
    for client in &mut clients {
        client.wait_for("`root/sessionRemoved`", |message| {
            message["method"] == SESSION_REMOVED && message["params"]["session"] == session.uri
        })?;
        // A second one ends the check.
        client.sync()?;
        client.sync()?;
    }
    Ok(())
}

/// Waits until a client was notified of a new title of a session; returns false at the end of the
/// time for that.
fn hears_of_title(client: &mut JudgeClient, session: &str) -> Judged<bool> {
    let until = Instant::now() + CATCHES_UP_WITHIN;
    let mut interval = TRIES_AFTER;
    loop {
        client.sync()?;
        if client.summaries.of(session).is_some_and(|held| held.changed.contains("title")) {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(interval);
        interval *= 2;
    }
}

pub fn summaries(bench: &mut Bench) -> Judged<()> {
    let mut clients = two_of_root(bench)?;
    let session = used_session(bench, &mut clients[0])?;
    wait_for_added(&mut clients, &session.uri)?;
    let deadline = bench.deadline;
    clients[0].change(&session.uri, title("Told"))?;
    for client in &mut clients {
        if !hears_of_title(client, &session.uri)? {
            // The specification wants it by a SHOULD.
            return not_offered("`root/sessionSummaryChanged` does not come when a title changes");
        }
    }
    match bench.run_turn(&mut clients[0], &session) {
        Err(CheckStop::NotOffered(_)) => {}
        run => drop(run?),
    }
    for client in &mut clients {
        caught_up(client, deadline, |client| {
            let item = item_of(&listed(client, None)?, &session.uri)?;
            let Some(held) = client.summaries.of(&session.uri) else {
                return broken(format!("`{}` was removed, and is listed", session.uri));
            };
            for name in TOLD.into_iter().filter(|name| held.changed.contains(*name)) {
                must!(
                    held.summary[name] == item[name],
                    "the last `root/sessionSummaryChanged` has the `{name}` {} of `{}`, the list {}",
                    held.summary[name],
                    session.uri,
                    item[name]
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}
