//! Messages of an agent to the user about the conversation itself: notices, and compactions, by
//! which the agent sums up the conversation to free room in its context.
//!
//! Owns: the text of these messages, each shown once.
//! Never: adds them to the answer, or shows a summary before it is complete.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1::{
    CompactionStatus, CompactionSummaryChunk, CompactionUpdate, ContentBlock, Notice, NoticeSeverity,
};
use agent_client_protocol_schema::MaybeUndefined;
use ahp_types::common::JsonObject;

use super::AcpConversation;
use crate::backend::acp::{content, extra_meta};
use crate::host::effects::{CallExtras, TurnEvent};

const COMPACTIONS_MAX: usize = 16;

const SUMMARY_BYTES_MAX: usize = 64 << 10;

/// Activity shown to the user during a compaction.
const COMPACTING: &str = "Summarizing the conversation";

#[derive(Debug, Default)]
pub(super) struct Compactions {
    /// Summaries of the compactions in progress, by id.
    open: BTreeMap<String, String>,
    /// Id of the last completed compaction: some agents report the end twice.
    last_over: Option<String>,
}

impl Compactions {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the summary of a compaction; `None` if too many are in progress.
    fn summary(&mut self, id: &str) -> Option<&mut String> {
        if self.open.len() >= COMPACTIONS_MAX && !self.open.contains_key(id) {
            return None;
        }
        Some(self.open.entry(id.to_owned()).or_default())
    }
}

impl AcpConversation {
    pub(super) fn show_notice(&mut self, notice: Notice) {
        let mut text = notice.title;
        if let Some(description) = notice.description.filter(|description| !description.is_empty()) {
            text.push_str("\n\n");
            text.push_str(&description);
        }
        let severity = match notice.severity {
            NoticeSeverity::Warning => "warning".to_owned(),
            NoticeSeverity::Error => "error".to_owned(),
            NoticeSeverity::Other(other) => other,
            _ => "info".to_owned(),
        };
        let mut meta = JsonObject::new();
        extra_meta::put(&mut meta, extra_meta::SEVERITY, Some(severity));
        extra_meta::put(&mut meta, extra_meta::META, notice.meta);
        self.send_notice(text, meta);
    }

    pub(super) fn append_summary(&mut self, chunk: CompactionSummaryChunk) {
        let begins = self.run.as_ref().is_some_and(|run| run.compactions.open.is_empty());
        let Some(run) = &mut self.run else { return };
        if let Some(summary) = run.compactions.summary(&chunk.compaction_id.to_string()) {
            add(summary, chunk.content);
        }
        if begins {
            self.queue_event(TurnEvent::Activity(Some(COMPACTING.to_owned())));
        }
    }

    /// Applies the state of a compaction, which is shown when it is over.
    pub(super) fn update_compaction(&mut self, update: CompactionUpdate) {
        let Some(run) = &mut self.run else { return };
        let id = update.compaction_id.to_string();
        if run.compactions.last_over.as_ref() == Some(&id) {
            return;
        }
        if let Some(summary) = run.compactions.summary(&id) {
            match update.summary {
                MaybeUndefined::Value(blocks) => {
                    summary.clear();
                    blocks.into_iter().for_each(|block| add(summary, block));
                }
                MaybeUndefined::Null => summary.clear(),
                MaybeUndefined::Undefined => {}
            }
        }
        let mut text = match update.status {
            CompactionStatus::Completed => {
                "The conversation so far was summarized to free room in the model's context.".to_owned()
            }
            CompactionStatus::Failed => "The conversation so far could not be summarized.".to_owned(),
            CompactionStatus::Cancelled => {
                "The conversation so far was not summarized: the agent cancelled that.".to_owned()
            }
            _ => return self.queue_event(TurnEvent::Activity(Some(COMPACTING.to_owned()))),
        };
        let summary = run.compactions.open.remove(&id).unwrap_or_default();
        run.compactions.last_over = Some(id);
        let error = match update.error {
            MaybeUndefined::Value(error) => error,
            _ => String::new(),
        };
        for more in [error, summary].iter().filter(|more| !more.is_empty()) {
            text.push_str("\n\n");
            text.push_str(more);
        }
        let mut meta = JsonObject::new();
        if let MaybeUndefined::Value(reported) = update.meta {
            extra_meta::put(&mut meta, extra_meta::META, Some(reported));
        }
        self.queue_event(TurnEvent::Activity(None));
        self.send_notice(text, meta);
    }

    pub(super) fn send_notice(&mut self, text: String, meta: JsonObject) {
        if let Some(run) = &mut self.run {
            run.speaking = None;
        }
        self.queue_event(extra_meta::with(
            TurnEvent::Notice(text),
            CallExtras { meta, ..CallExtras::default() },
        ));
    }
}

/// Appends a piece to a summary, up to the size limit.
fn add(summary: &mut String, block: ContentBlock) {
    let text = content::markdown(block);
    summary.extend(text.chars().scan(summary.len(), |bytes, c| {
        *bytes += c.len_utf8();
        (*bytes <= SUMMARY_BYTES_MAX).then_some(c)
    }));
}
