//! Printed form of a session, for people.
//!
//! Owns: its form.
//! Never: prints control characters of a terminal, or stops at unreadable data.

use std::io::Write;

use ahp_types::state::{Message, ResponsePart, SessionSummary, Turn};
use anyhow::{ensure, Context};

use super::up_to_date;
use crate::host::rows::ChatBody;
use crate::state::history::CompletedTurn;
use crate::store::archive::{Archive, Salvaged};
use crate::store::errors::StoreError;
use crate::wire::text::one_line;

/// Prints a session as far as it is readable.
pub(super) fn show(archive: &Archive, uri: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let key = archive.find(uri)?;
    let mut damage = 0;
    let entry = archive.list()?.into_iter().find(|entry| entry.key == key);
    let entry = entry.with_context(|| format!("the session {uri} is not in the list"))?;
    let summary: SessionSummary = serde_json::from_slice(&entry.summary)
        .with_context(|| format!("the summary of the session `{uri}` is invalid"))?;
    let place = if entry.removed_at.is_some() { ", in the trash" } else { "" };
    writeln!(out, "{}", one_line(&summary.title))?;
    let parts = [&summary.resource, &summary.provider, &summary.modified_at].map(|part| one_line(part));
    writeln!(out, "{}{place}", parts.join(", "))?;
    for chat in archive.salvage(key)? {
        let shown = match chat {
            Ok(chat) => show_chat(&chat, out, &mut damage),
            Err(error) => show_damage(error, out, &mut damage),
        };
        shown?;
    }
    out.flush()?;
    archive.check(key).with_context(|| format!("some content of {uri} cannot be read"))?;
    ensure!(damage == 0, "some content of {uri} is damaged and cannot be read");
    Ok(())
}

fn show_damage(error: impl std::fmt::Display, out: &mut dyn Write, damage: &mut u32) -> anyhow::Result<()> {
    *damage += 1;
    Ok(writeln!(out, "\n[not shown: {}]", one_line(&error.to_string()))?)
}

fn show_chat(salvaged: &Salvaged, out: &mut dyn Write, damage: &mut u32) -> anyhow::Result<()> {
    let ChatBody { state: chat, context_turns, steering_messages, .. } = match up_to_date(&salvaged.chat) {
        Ok(body) => body,
        Err(error) => {
            show_damage(format!("{error:#}"), out, damage)?;
            return show_turns(&salvaged.turns, out, damage);
        }
    };
    writeln!(out, "\n== {} ({})", one_line(&chat.title), one_line(&chat.resource))?;
    if context_turns > 0 {
        writeln!(out, "\n[goes on from {context_turns} turns of another chat]")?;
    }
    show_turns(salvaged.turns.get(context_turns..).unwrap_or_default(), out, damage)?;
    if let Some(error) = &salvaged.behind {
        show_damage(error, out, damage)?;
    }
    // Turns that have ended since the row was stored.
    for turn in &chat.turns {
        show_turn(turn, out)?;
    }
    if let Some(turn) = &chat.active_turn {
        writeln!(out, "\n-- {}, running", one_line(&turn.started_at))?;
        show_exchange(&turn.message, &turn.response_parts, out)?;
    }
    for waiting in chat.steering_message.iter().chain(&steering_messages) {
        writeln!(out, "\n-- steering\n{}", quoted(&waiting.message.text))?;
    }
    for waiting in chat.queued_messages.iter().flatten() {
        writeln!(out, "\n-- queued\n{}", quoted(&waiting.message.text))?;
    }
    if let Some(draft) = &chat.draft {
        writeln!(out, "\n-- draft\n{}", quoted(&draft.text))?;
    }
    Ok(())
}

fn show_turns(
    turns: &[Result<CompletedTurn, StoreError>],
    out: &mut dyn Write,
    damage: &mut u32,
) -> anyhow::Result<()> {
    for turn in turns {
        match turn {
            Ok(turn) => match serde_json::from_slice(&turn.text()) {
                Ok(turn) => show_turn(&turn, out)?,
                Err(error) => show_damage(error, out, damage)?,
            },
            Err(error) => show_damage(error, out, damage)?,
        }
    }
    Ok(())
}

fn show_turn(turn: &Turn, out: &mut dyn Write) -> anyhow::Result<()> {
    let state = serde_json::to_value(turn.state)?;
    let started = turn.started_at.as_deref().unwrap_or("some time");
    writeln!(out, "\n-- {}, {}", one_line(started), state.as_str().unwrap_or("ended"))?;
    show_exchange(&turn.message, &turn.response_parts, out)
}

fn show_exchange(message: &Message, parts: &[ResponsePart], out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", quoted(&message.text))?;
    for part in parts {
        writeln!(out, "{}", shown(part))?;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    let lines: Vec<String> = plain(text).lines().map(|line| format!("> {line}")).collect();
    lines.join("\n")
}

fn shown(part: &ResponsePart) -> String {
    let in_brackets = |what: &str, text: &str| format!("[{what}: {}]", plain(text.trim_end()));
    match part {
        ResponsePart::Markdown(part) => plain(&part.content),
        ResponsePart::Reasoning(part) => in_brackets("thinking", &part.content),
        ResponsePart::Error(part) => in_brackets("error", &part.error.message),
        ResponsePart::ToolCall(part) => {
            let call = serde_json::to_value(&part.tool_call).unwrap_or_default();
            let field = |name: &str| call[name].as_str().unwrap_or_default().to_owned();
            let input = field("toolInput");
            let name = format!("{} {input}", field("toolName"));
            in_brackets("tool", &format!("{}, {}", name.trim_end(), field("status")))
        }
        ResponsePart::InputRequest(part) => {
            let message = part.request.message.as_ref();
            in_brackets("question", message.map_or("", |message| message.as_str()))
        }
        other => {
            let kind = serde_json::to_value(other).unwrap_or_default();
            in_brackets("part", kind["kind"].as_str().unwrap_or("of an unknown kind"))
        }
    }
}

/// Replaces control characters that would affect a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}
