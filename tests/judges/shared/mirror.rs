//! Mirror of a client of one version: the states built by the reducers of its crate, and the list
//! of sessions.
//!
//! Owns: taking in what is heard, as the protocol tells a client to, and the law: what is held
//! equals what the host shows. A snapshot replaces what was held of a channel; everything that
//! comes after it is applied. Of a replay, what is newer than what was applied before.
//! Never: asks for anything by itself.

use std::collections::BTreeMap;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::dialect::V0_4_0;
use super::ears::Heard;
use super::masks::{self, ACTIVITY};
use super::official::{Held, Kind, Official};

/// A channel as it is held.
#[derive(Debug)]
struct Channel {
    held: Box<dyn Held>,
    /// The newest number that it is up to date with.
    seen: u64,
}

/// Client-side copy of all subscribed states and of the session list.
pub struct Mirror {
    official: &'static dyn Official,
    channels: BTreeMap<String, Channel>,
    /// The sessions' summaries, as notifications have changed them since they were listed.
    list: Option<BTreeMap<String, Value>>,
    /// The newest number that was heard.
    pub cursor: u64,
    /// Drops incoming messages, as on a connection lost without either side noticing.
    pub away: bool,
}

impl Mirror {
    pub fn new(official: &'static dyn Official) -> Self {
        Self { official, channels: BTreeMap::new(), list: None, cursor: 0, away: false }
    }

    /// A channel's state, as the crate's types write it; nothing when it is not held.
    pub fn view(&self, channel: &str) -> Result<Value> {
        self.channels.get(channel).map_or(Ok(Value::Null), |channel| channel.held.view())
    }

    /// The channels that are held.
    pub fn channels(&self) -> Vec<String> {
        self.channels.keys().cloned().collect()
    }

    /// Takes in what is heard, except for answers: only who asked knows what they mean.
    pub fn hear(&mut self, heard: &Heard) -> Result<()> {
        if self.away {
            return Ok(());
        }
        match heard {
            Heard::Action { channel, envelope } => self.act(channel, envelope),
            Heard::Notification { method, params } => self.note(method, params),
            Heard::Answer { .. } => Ok(()),
        }
    }

    fn act(&mut self, channel: &str, envelope: &Value) -> Result<()> {
        let seq = envelope["serverSeq"].as_u64().context("no number")?;
        self.cursor = self.cursor.max(seq);
        if envelope.get("rejectionReason").is_some_and(|reason| !reason.is_null()) {
            return Ok(());
        }
        let Some(channel) = self.channels.get_mut(channel) else { return Ok(()) };
        channel.seen = channel.seen.max(seq);
        channel.apply(envelope)
    }

    /// Keeps the list. 0.1.0 has all notifications in one.
    fn note(&mut self, method: &str, params: &Value) -> Result<()> {
        let (what, params) = match method {
            "notification" => {
                let wrapped = &params["notification"];
                (wrapped["type"].as_str().unwrap_or_default(), wrapped)
            }
            method => (method, params),
        };
        let Some(list) = &mut self.list else { return Ok(()) };
        match what.rsplit('/').next() {
            Some("sessionAdded") => {
                let summary = &params["summary"];
                let uri = summary["resource"].as_str().context("no resource")?.to_owned();
                ensure!(list.insert(uri, summary.clone()).is_none(), "a session was added twice: {params}");
            }
            Some("sessionRemoved") => {
                let uri = params["session"].as_str().context("no session")?;
                ensure!(list.remove(uri).is_some(), "an unknown session was removed: {params}");
            }
            Some("sessionSummaryChanged") => {
                let uri = params["session"].as_str().context("no session")?;
                let summary = list.get_mut(uri).context("the summary of an unknown session changed")?;
                let changes = params["changes"].as_object().context("no changes")?;
                let summary = summary.as_object_mut().context("no summary")?;
                summary.extend(changes.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a snapshot up.
    pub fn take(&mut self, snapshot: &Value) -> Result<()> {
        let resource = snapshot["resource"].as_str().context("no resource")?;
        let seen = snapshot["fromSeq"].as_u64().context("no number")?;
        self.cursor = self.cursor.max(seen);
        let held = self.official.holds(snapshot)?;
        self.channels.insert(resource.to_owned(), Channel { held, seen });
        Ok(())
    }

    /// A channel is not followed any more.
    pub fn leave(&mut self, channel: &str) {
        self.channels.remove(channel);
    }

    /// Takes up what was missed: the result of `reconnect`. Notifications are not said again.
    pub fn catch_up(&mut self, result: &Value) -> Result<()> {
        (self.away, self.list) = (false, None);
        match result["type"].as_str() {
            Some("replay") => {
                for envelope in result["actions"].as_array().into_iter().flatten() {
                    let uri = self.official.dialect().channel_of(envelope);
                    let seq = envelope["serverSeq"].as_u64().context("no number")?;
                    self.cursor = self.cursor.max(seq);
                    let Some(channel) = self.channels.get_mut(&uri) else { continue };
                    // What is loaded is no change: it comes with the number of the last one.
                    let loads = envelope["action"]["type"] == "chat/turnsLoaded";
                    if seq > channel.seen || (seq == channel.seen && loads) {
                        channel.apply(envelope).context("in a replay")?;
                    }
                }
                for envelope in result["actions"].as_array().into_iter().flatten() {
                    let uri = self.official.dialect().channel_of(envelope);
                    if let (Some(channel), Some(seq)) =
                        (self.channels.get_mut(&uri), envelope["serverSeq"].as_u64())
                    {
                        channel.seen = channel.seen.max(seq);
                    }
                }
                for missing in result["missing"].as_array().into_iter().flatten() {
                    self.leave(missing.as_str().unwrap_or_default());
                }
            }
            Some("snapshot") => {
                self.channels.clear();
                for snapshot in result["snapshots"].as_array().into_iter().flatten() {
                    self.take(snapshot)?;
                }
            }
            other => anyhow::bail!("neither replay nor snapshot: {other:?}"),
        }
        Ok(())
    }

    /// The law: what is held of a channel is what a fresh snapshot shows.
    ///
    /// Of a conversation with a window, the turns are the last ones of the host's. It was
    /// subscribed to for this without one, so that it has none any more.
    pub fn compare(&mut self, snapshot: &Value) -> Result<()> {
        let uri = snapshot["resource"].as_str().context("no resource")?;
        let Some(channel) = self.channels.get(uri) else { return Ok(()) };
        let fresh = self.official.holds(snapshot)?;
        ensure!(fresh.kind() == channel.held.kind(), "{uri} has become another kind of state");
        let (mut held, shown) = (channel.held.view()?, fresh.view()?);
        let is_window = held.get("turnsNextCursor").is_some();
        if is_window {
            complete(&mut held, &shown).with_context(|| format!("on {uri}"))?;
        }
        masks::compare(self.official.dialect(), fresh.kind(), &held, &shown)
            .with_context(|| format!("on {uri}"))?;
        if fresh.kind() == Kind::Chat {
            self.compare_row(uri, &shown).with_context(|| format!("on the row of {uri}"))?;
        }
        if is_window {
            self.take(snapshot)?;
        }
        Ok(())
    }

    /// Compares the fields of a chat that actions only carry in its row of the session.
    fn compare_row(&self, uri: &str, chat: &Value) -> Result<()> {
        for (session, channel) in &self.channels {
            let view = channel.held.view()?;
            let mut rows = view["chats"].as_array().into_iter().flatten();
            let Some(row) = rows.find(|row| row["resource"] == *uri) else { continue };
            // In 0.4.0 nothing changes a chat's activity, so that only its row says it.
            let says_activity = self.official.dialect() > V0_4_0;
            let activity = says_activity.then_some("activity");
            for name in ["title", "status", "modifiedAt"].into_iter().chain(activity) {
                masks::same(&row[name], &chat[name]).with_context(|| format!("{name}, in {session}"))?;
            }
        }
        Ok(())
    }

    /// The law of the list: what notifications have made of it is what is listed now.
    pub fn compare_list(&mut self, result: &Value) -> Result<()> {
        let items = result["items"].as_array().context("no items")?;
        let by_uri =
            items.iter().map(|item| (item["resource"].as_str().unwrap_or_default().to_owned(), item));
        let listed: BTreeMap<String, Value> = by_uri.map(|(uri, item)| (uri, plain(item))).collect();
        ensure!(listed.len() == items.len(), "a session is listed twice");
        if let Some(kept) = &self.list {
            ensure!(kept.keys().eq(listed.keys()), "kept are {:?}, listed {:?}", kept.keys(), listed.keys());
            for (uri, summary) in kept {
                masks::same(
                    &masks::of_list(self.official.dialect(), plain(summary), &listed[uri]),
                    &listed[uri],
                )
                .with_context(|| format!("the summary of {uri}"))?;
            }
        }
        let dialect = self.official.dialect();
        for (uri, summary) in &listed {
            let Some(session) = self.channels.get(uri) else { continue };
            let view = session.held.view()?;
            let title = dialect.session_member(&view, "title");
            masks::same(&title, &summary["title"]).with_context(|| format!("the title of {uri}"))?;
            let flags = |value: Value| value.as_u64().unwrap_or_default() & !ACTIVITY;
            let (held, shown) =
                (flags(dialect.session_member(&view, "status")), flags(summary["status"].clone()));
            ensure!(held == shown, "the flags of {uri}: it holds {held}, listed is {shown}");
            // What no action can take away is not taken away from the state either.
            let selected: &[&str] = if dialect <= V0_4_0 { &["model", "agent"] } else { &[] };
            for name in selected.iter().filter(|name| summary.get(**name).is_some()) {
                masks::same(&dialect.session_member(&view, name), &summary[*name])
                    .with_context(|| format!("the {name} of {uri}"))?;
            }
        }
        self.list = Some(listed);
        Ok(())
    }
}

impl Channel {
    fn apply(&mut self, envelope: &Value) -> Result<()> {
        let outcome = self.held.apply(&envelope["action"])?;
        // An answer to its sender alone may change nothing; anything else that is sent is for this
        // state.
        ensure!(matches!(outcome.as_str(), "Applied" | "NoOp"), "{outcome} by {envelope}");
        Ok(())
    }
}

/// Adds the turns that a window does not hold.
fn complete(held: &mut Value, shown: &Value) -> Result<()> {
    let all = shown["turns"].as_array().context("no turns")?;
    let window = held["turns"].as_array_mut().context("no turns")?;
    ensure!(window.len() < all.len(), "a cursor, but {} of {} turns", window.len(), all.len());
    window.splice(..0, all[..all.len() - window.len()].iter().cloned());
    held.as_object_mut().context("no state")?.remove("turnsNextCursor");
    Ok(())
}

/// A summary in which an empty activity is none, and an empty `_meta` too: a partial summary has no
/// other way to say so.
fn plain(summary: &Value) -> Value {
    let mut summary = summary.clone();
    if let Some(members) = summary.as_object_mut() {
        let is_none = |name: &str, value: &Value| match name {
            "activity" => *value == "",
            "_meta" => *value == json!({}),
            _ => false,
        };
        members.retain(|name, value| !is_none(name, value));
    }
    summary
}
