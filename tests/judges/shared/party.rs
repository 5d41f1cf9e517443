//! A client of one version, without a connection of its own.
//!
//! Owns: its requests and actions, written by the crate's types; taking in each line; and that each
//! action comes back once, under its own name.
//! Never: reads or writes: whoever drives it carries the lines.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::ears::{Ears, Heard};
use super::mirror::Mirror;
use super::official::Official;

/// The answer to a request: a result, or the code and message of an error.
pub type Answer = std::result::Result<Value, (i64, String)>;

pub struct Party {
    official: &'static dyn Official,
    ears: Ears,
    pub mirror: Mirror,
    pub client_id: String,
    last_request: u64,
    last_seq: i64,
    /// The actions that have not come back, and their types.
    pub unechoed: BTreeMap<i64, String>,
    /// The types of all actions and notifications that it has heard.
    pub heard: BTreeSet<String>,
    /// Why the newest refused actions were refused.
    refusals: Vec<String>,
    /// The session that it takes part in, and the channel on which its conversation is.
    pub session: String,
    pub conversation: String,
}

impl Party {
    pub fn new(official: &'static dyn Official, client_id: &str) -> Self {
        Self {
            official,
            ears: Ears::new(official),
            mirror: Mirror::new(official),
            client_id: client_id.to_owned(),
            last_request: 0,
            last_seq: 0,
            unechoed: BTreeMap::new(),
            heard: BTreeSet::new(),
            refusals: Vec::new(),
            session: String::new(),
            conversation: String::new(),
        }
    }

    pub fn dialect(&self) -> Dialect {
        self.official.dialect()
    }

    /// The channel of its session's annotations, where the version has it.
    pub fn annotations(&self) -> String {
        format!("{}/annotations", self.session)
    }

    /// Returns the client's mirror of its conversation.
    pub fn view(&self) -> Result<Value> {
        self.mirror.view(&self.conversation)
    }

    /// A request's line, and its number.
    pub fn request(&mut self, method: &str, params: &Value) -> Result<(u64, String)> {
        self.last_request += 1;
        let params = self.official.says(method, params)?;
        let line = json!({ "jsonrpc": "2.0", "id": self.last_request, "method": method, "params": params });
        let line = line.to_string();
        self.ears.said(&line)?;
        Ok((self.last_request, line))
    }

    /// The params with which it comes back.
    pub fn reconnect(&self) -> Result<Value> {
        let cursor = self.mirror.cursor;
        let more = json!({
            "clientId": self.client_id, "lastSeenServerSeq": cursor, "subscriptions": self.mirror.channels(),
        });
        Ok(self.dialect().params("reconnect", self.dialect().root(), more))
    }

    /// A notification's line.
    pub fn notify(&mut self, method: &str, params: &Value) -> Result<String> {
        let params = self.official.says(method, params)?;
        Ok(json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string())
    }

    /// The line that asks for a change.
    pub fn dispatch(&mut self, channel: &str, action: &Value) -> Result<String> {
        self.last_seq += 1;
        let params = self.dialect().dispatch(channel, self.last_seq, action);
        let name = action["type"].as_str().context("an action without a type")?;
        self.unechoed.insert(self.last_seq, name.to_owned());
        self.notify("dispatchAction", &params)
    }

    /// Takes a line in; returns what it answers.
    pub fn hear(&mut self, line: &str) -> Result<Option<(u64, Answer)>> {
        let heard = self.ears.hear(line)?;
        match &heard {
            Heard::Action { envelope, .. } => {
                self.heard.extend(envelope["action"]["type"].as_str().map(str::to_owned));
                self.hear_echo(envelope)?;
            }
            Heard::Notification { method, params } => {
                // 0.1.0 has all notifications in one.
                let wrapped = params["notification"]["type"].as_str();
                self.heard.insert(wrapped.unwrap_or(method).to_owned());
            }
            Heard::Answer { .. } => {}
        }
        self.mirror.hear(&heard).with_context(|| format!("by {line}"))?;
        Ok(match heard {
            Heard::Answer { id, result } => Some((id, result)),
            _ => None,
        })
    }

    /// Takes up what was missed. What it said just before is part of it.
    pub fn catch_up(&mut self, result: &Value) -> Result<()> {
        for envelope in result["actions"].as_array().into_iter().flatten() {
            self.hear_echo(envelope)?;
        }
        self.mirror.catch_up(result)
    }

    /// An action of its own has come back. It may have become several, all of which name it.
    fn hear_echo(&mut self, envelope: &Value) -> Result<()> {
        let origin = &envelope["origin"];
        if origin["clientId"] != *self.client_id {
            return Ok(());
        }
        let seq = origin["clientSeq"].as_i64().context("no clientSeq")?;
        let name = envelope["action"]["type"].as_str().unwrap_or_default();
        ensure!(seq <= self.last_seq, "nobody has said {seq}: {envelope}");
        if self.unechoed.get(&seq).is_some_and(|said| said == name) {
            self.unechoed.remove(&seq);
        }
        if let Some(reason) = envelope["rejectionReason"].as_str() {
            self.refusals.push(format!("{name}: {reason}"));
        }
        Ok(())
    }

    /// Checks that every dispatched action was echoed, once the host has received them all.
    pub fn check_all_echoed(&self) -> Result<()> {
        ensure!(self.unechoed.is_empty(), "never came back: {:?}", self.unechoed);
        Ok(())
    }

    /// Checks that every request was answered.
    pub fn check_all_answered(&self) -> Result<()> {
        self.ears.check_all_answered()
    }

    /// Why actions were refused since the last time that this was asked.
    pub fn refusals(&mut self) -> Vec<String> {
        std::mem::take(&mut self.refusals)
    }

    /// Takes up where its conversation is, once it holds its session.
    pub fn find_conversation(&mut self) -> Result<()> {
        self.conversation = if self.dialect().has_chats() {
            let session = self.mirror.view(&self.session)?;
            session["defaultChat"].as_str().context("a session without a default chat")?.to_owned()
        } else {
            self.session.clone()
        };
        Ok(())
    }
}
