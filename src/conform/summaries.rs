//! Summaries of sessions, as a client that follows the root channel holds them.
//!
//! Owns: what the notifications of one connection have said of sessions, and the laws that each
//! comes once and changes what can be changed.
//! Never: lists sessions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::client::quoted;
use super::stop::{must, Judged};
use super::types::{SESSION_ADDED, SESSION_REMOVED, SUMMARY_CHANGED};

/// Members of a summary that never change.
pub const IDENTITY: [&str; 3] = ["resource", "provider", "createdAt"];

/// Summary of a session, as notifications have said it.
#[derive(Debug, Clone)]
pub struct HeldSummary {
    /// Summary with all later changes.
    pub summary: Value,
    /// Names of the members that were changed.
    pub changed: BTreeSet<String>,
}

/// Summaries of the sessions that were announced on a connection.
#[derive(Debug, Default)]
pub struct HeldSummaries {
    /// Summaries by the URIs of the sessions.
    by_session: BTreeMap<String, HeldSummary>,
    /// Sessions that were removed, and not added again since.
    removed: BTreeSet<String>,
}

impl HeldSummaries {
    /// Applies a notification whose params have their type.
    pub fn take(&mut self, method: &str, params: &Value) -> Judged<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match method {
            SESSION_ADDED => {
                let session = text(&params["summary"]["resource"]);
                self.removed.remove(&session);
                let held = HeldSummary { summary: params["summary"].clone(), changed: BTreeSet::new() };
                let before = self.by_session.insert(session, held);
                must!(before.is_none(), "a session is added twice: {}", quoted(params));
            }
            SESSION_REMOVED => {
                let session = text(&params["session"]);
                self.by_session.remove(&session);
                must!(self.removed.insert(session), "a session is removed twice: {}", quoted(params));
            }
            SUMMARY_CHANGED => {
                let changes = &params["changes"];
                let fixed = IDENTITY.into_iter().find(|name| changes.get(name).is_some());
                must!(
                    fixed.is_none(),
                    "`{}` of a session never changes: {}",
                    fixed.unwrap_or_default(),
                    quoted(params)
                );
                let held = self.by_session.get_mut(&text(&params["session"]));
                let summary = held.map(|held| (held.summary.as_object_mut(), &mut held.changed));
                if let (Some((Some(summary), changed)), Some(changes)) = (summary, changes.as_object()) {
                    summary.extend(changes.clone());
                    changed.extend(changes.keys().cloned());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the summary of a session that was added and not removed.
    pub fn of(&self, session: &str) -> Option<&HeldSummary> {
        self.by_session.get(session)
    }
}
