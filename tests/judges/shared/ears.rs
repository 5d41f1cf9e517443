//! Every line that the host says is read, as whatever it must be.
//!
//! Owns: which request a line answers, and that all of it parses strictly.
//! Never: keeps a state.

use std::collections::BTreeMap;

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use super::official::Official;

/// Line of the host, parsed into the types of the crate.
#[derive(Debug)]
pub enum Heard {
    /// An action's envelope, and the channel that it is about.
    Action { channel: String, envelope: Value },
    /// Another notification.
    Notification { method: String, params: Value },
    /// The answer to a request: a result, or the code and message of an error.
    Answer { id: u64, result: std::result::Result<Value, (i64, String)> },
}

/// One connection's ears.
pub struct Ears {
    official: &'static dyn Official,
    asked: BTreeMap<u64, String>,
}

impl Ears {
    pub fn new(official: &'static dyn Official) -> Self {
        Self { official, asked: BTreeMap::new() }
    }

    /// Notes what is said, so that its answer is known as such.
    pub fn said(&mut self, line: &str) -> Result<()> {
        let message: Value = serde_json::from_str(line)?;
        if let (Some(id), Some(method)) = (message["id"].as_u64(), message["method"].as_str()) {
            self.asked.insert(id, method.to_owned());
        }
        Ok(())
    }

    /// Reads a line.
    pub fn hear(&mut self, line: &str) -> Result<Heard> {
        self.read(line).with_context(|| format!("the host says {line}"))
    }

    fn read(&mut self, line: &str) -> Result<Heard> {
        let message = self.official.reads_message(line)?;
        let raw: Value = serde_json::from_str(line)?;
        if let Some(method) = raw["method"].as_str() {
            ensure!(raw.get("id").is_none(), "nothing makes the host ask a client for anything");
            let params = self.official.reads_notification(method, &raw["params"])?;
            return Ok(match method {
                "action" => {
                    let channel = self.official.dialect().channel_of(&params);
                    Heard::Action { channel, envelope: params }
                }
                _ => Heard::Notification { method: method.to_owned(), params },
            });
        }
        // A null result next to an error parses as success, and hides the error.
        ensure!(raw.get("result").is_some() != raw.get("error").is_some(), "not one of result and error");
        let id = message["id"].as_u64().context("an answer without an id")?;
        let method = self.asked.remove(&id).context("an answer to nothing")?;
        let result = match raw.get("error") {
            None => Ok(self.official.reads_result(&method, &raw["result"])?),
            Some(error) => {
                let code = error["code"].as_i64().context("no code")?;
                Err((code, error["message"].as_str().unwrap_or_default().to_owned()))
            }
        };
        Ok(Heard::Answer { id, result })
    }

    /// Checks that every request was answered.
    pub fn check_all_answered(&self) -> Result<()> {
        ensure!(self.asked.is_empty(), "never answered: {:?}", self.asked);
        Ok(())
    }
}
