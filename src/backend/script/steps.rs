//! Steps that print text, call a tool, ask, or wait.
//!
//! Owns: the reports of each of these steps, and their error messages.
//! Never: knows which step comes next.

use std::collections::BTreeMap;
use std::time::Duration;

use ahp_types::state::{
    ChatInputAnswer, ChatInputAnswerValue, ChatInputQuestion, ChatInputResponseKind, Message,
    ToolResultContent, ToolResultTextContent, UsageInfo,
};
use serde_json::Value;
use tokio::time::Instant;

use super::{number, ScriptAgent, ScriptReply, Stop, DELTA_BYTES_MAX, INPUT_PIECE_CHARS};
use crate::host::effects::{PermissionKind, PermissionOption, TextKind, ToolGate, ToolOutcome, TurnEvent};

#[derive(Clone, Copy)]
pub(super) enum Gate {
    None,
    Ask,
}

pub(super) const ALLOW_ALWAYS: &str = "allow-always";

impl ScriptAgent {
    pub(super) async fn sleep(&mut self, ms: u64) -> Result<(), Stop> {
        let deadline = Instant::now() + Duration::from_millis(ms);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                command = self.line.commands.recv() => { self.obey(command)?; }
            }
            self.echo_steering().await?;
        }
    }

    pub(super) async fn hang(&mut self) -> Result<(), Stop> {
        loop {
            let command = self.line.commands.recv().await;
            self.obey(command)?;
            self.echo_steering().await?;
        }
    }

    pub(super) async fn stream_words(&mut self, text: &str) -> Result<(), Stop> {
        if text.is_empty() {
            return Ok(());
        }
        self.report_turn(TurnEvent::Part(TextKind::Markdown, String::new())).await?;
        let mut words = text.split_inclusive(' ').peekable();
        while let Some(word) = words.next() {
            let event = TurnEvent::Text(TextKind::Markdown, word.to_owned());
            if words.peek().is_some() {
                self.report_turn(event).await?;
            } else {
                self.finish(event).await?;
            }
        }
        Ok(())
    }

    /// Streams digits that continue in each delta, so that lost or misplaced deltas are visible.
    pub(super) async fn stream(&mut self, rest: &str) -> Result<(), Stop> {
        let mut words = rest.split_whitespace();
        let count: usize = number("/stream COUNT", words.next().unwrap_or_default())?;
        let size: usize = number("/stream COUNT SIZE", words.next().unwrap_or_default())?;
        let delay_ms: u64 = words.next().map_or(Ok(0), |word| number("/stream COUNT SIZE DELAY_MS", word))?;
        if size > DELTA_BYTES_MAX {
            return Err(Stop::mistake(format!("/stream: SIZE is {DELTA_BYTES_MAX} at most")));
        }
        let digits: String = "0123456789".chars().cycle().take(size + 10).collect();
        self.report_turn(TurnEvent::Part(TextKind::Markdown, String::new())).await?;
        let mut start = 0;
        for number in 1..=count {
            let delta = digits[start..start + size].to_owned();
            let event = TurnEvent::Text(TextKind::Markdown, delta);
            if number < count {
                self.report_turn(event).await?;
            } else {
                self.finish(event).await?;
            }
            start = (start + size) % 10;
            if delay_ms > 0 {
                self.sleep(delay_ms).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn call(&mut self, rest: &str, gate: Gate, review: bool) -> Result<(), Stop> {
        let (name, input) = tool_and_input(rest)?;
        let id = self.begin_call(name, input).await?;
        let asks = matches!(gate, Gate::Ask) && !self.allows_all && !self.allowed.contains(name);
        let gate = match gate {
            Gate::None => ToolGate::Open,
            Gate::Ask if !asks => ToolGate::AllowedBefore,
            Gate::Ask => ToolGate::Ask(permission_options()),
        };
        self.ready(&id, name, input, gate).await?;
        if asks {
            let reply = self.reply_about(&id).await?;
            let ScriptReply::Permission { option, approved: true } = reply else { return Ok(()) };
            if option.as_deref() == Some(ALLOW_ALWAYS) {
                self.allowed.insert(name.to_owned());
            }
        }
        let content = text_content(input);
        self.report_turn(TurnEvent::ToolContent { id: id.clone(), content: content.clone() }).await?;
        let message = format!("Ran {name}").into();
        let outcome = ToolOutcome { success: true, message, content, error: None };
        let done = TurnEvent::ToolDone { id: id.clone(), outcome, review };
        if !review {
            return self.finish(done).await;
        }
        self.report_turn(done).await?;
        self.reply_about(&id).await.map(|_| ())
    }

    pub(super) async fn fail_call(&mut self, rest: &str) -> Result<(), Stop> {
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        if name.is_empty() {
            return Err(Stop::mistake("a tool call needs the NAME of a tool"));
        }
        let id = self.begin_call(name, "{}").await?;
        self.ready(&id, name, "{}", ToolGate::Open).await?;
        let outcome = ToolOutcome {
            success: false,
            message: format!("{name} failed").into(),
            content: text_content(text),
            error: Some(text.to_owned()),
        };
        self.finish(TurnEvent::ToolDone { id, outcome, review: false }).await
    }

    /// Starts a tool call and streams its input.
    pub(super) async fn begin_call(&mut self, name: &str, input: &str) -> Result<String, Stop> {
        let id = self.next_call();
        let (tool, display_name) = (name.to_owned(), name.to_owned());
        self.report_turn(TurnEvent::ToolStarted { id: id.clone(), name: tool, display_name }).await?;
        let characters: Vec<char> = input.chars().collect();
        for piece in characters.chunks(INPUT_PIECE_CHARS) {
            let delta = piece.iter().collect();
            self.report_turn(TurnEvent::ToolInput { id: id.clone(), delta }).await?;
        }
        Ok(id)
    }

    pub(super) async fn ready(
        &mut self,
        id: &str,
        name: &str,
        input: &str,
        gate: ToolGate,
    ) -> Result<(), Stop> {
        let message = format!("Run {name}").into();
        self.report_turn(TurnEvent::ToolReady { id: id.to_owned(), input: input.to_owned(), message, gate })
            .await
    }

    pub(super) async fn question(&mut self, rest: &str) -> Result<(), Stop> {
        let questions: Vec<ChatInputQuestion> = serde_json::from_str(rest)
            .map_err(|error| Stop::mistake(format!("/question: not an array of questions: {error}")))?;
        if let Some(ChatInputQuestion::Unknown(question)) =
            questions.iter().find(|question| matches!(question, ChatInputQuestion::Unknown(_)))
        {
            return Err(Stop::mistake(format!("/question: not a question: {question}")));
        }
        self.turn.calls += 1;
        let id = format!("question-{}", self.turn.calls);
        self.report_turn(TurnEvent::Question { id: id.clone(), message: None, url: None, questions }).await?;
        let ScriptReply::Answers { response, answers } = self.reply_about(&id).await? else { return Ok(()) };
        let text = match response {
            ChatInputResponseKind::Accept => {
                let answers: Vec<_> =
                    answers.iter().map(|(id, answer)| format!("{id}: {}", text_of_answer(answer))).collect();
                answers.join("\n")
            }
            ChatInputResponseKind::Decline => "(declined)".to_owned(),
            ChatInputResponseKind::Cancel => "(cancelled)".to_owned(),
        };
        self.finish(TurnEvent::Part(TextKind::Markdown, text)).await
    }

    pub(super) async fn usage(&mut self, rest: &str) -> Result<(), Stop> {
        let mut words = rest.split_whitespace();
        // Unsigned: counts are never negative.
        let input_tokens: u32 = number("/usage INPUT", words.next().unwrap_or_default())?;
        let output_tokens: u32 = number("/usage INPUT OUTPUT", words.next().unwrap_or_default())?;
        self.report_turn(TurnEvent::Usage(UsageInfo {
            input_tokens: Some(input_tokens.into()),
            output_tokens: Some(output_tokens.into()),
            model: None,
            cache_read_tokens: None,
            meta: None,
        }))
        .await
    }
}

pub(super) fn permission_options() -> Vec<PermissionOption> {
    let option = |id: &str, kind| PermissionOption { id: id.to_owned(), label: None, kind };
    vec![
        option("allow-once", PermissionKind::AllowOnce),
        option(ALLOW_ALWAYS, PermissionKind::AllowAlways),
        option("reject-once", PermissionKind::RejectOnce),
    ]
}

pub(super) fn text_content(text: &str) -> Vec<ToolResultContent> {
    vec![ToolResultContent::Text(ToolResultTextContent { text: text.to_owned() })]
}

/// Parses the name and the JSON input of a tool.
pub(super) fn tool_and_input(rest: &str) -> Result<(&str, &str), Stop> {
    let (name, input) = rest.split_once(' ').map_or((rest, "{}"), |(name, input)| (name, input.trim()));
    if name.is_empty() {
        return Err(Stop::mistake("a tool call needs the NAME of a tool"));
    }
    match serde_json::from_str::<Value>(input) {
        Ok(_) => Ok((name, input)),
        Err(error) => Err(Stop::mistake(format!("the input of tool `{name}` is not JSON: {error}"))),
    }
}

pub(super) fn text_of_answer(answer: &ChatInputAnswer) -> String {
    let value = match answer {
        ChatInputAnswer::Draft(answer) | ChatInputAnswer::Submitted(answer) => &answer.value,
        ChatInputAnswer::Skipped(_) => return "(skipped)".to_owned(),
    };
    match value {
        ChatInputAnswerValue::Text(value) => value.value.clone(),
        ChatInputAnswerValue::Number(value) => value.value.to_string(),
        ChatInputAnswerValue::Boolean(value) => value.value.to_string(),
        ChatInputAnswerValue::Selected(value) => {
            let freeform = value.freeform_values.iter().flatten();
            std::iter::once(&value.value).chain(freeform).cloned().collect::<Vec<_>>().join(", ")
        }
        ChatInputAnswerValue::SelectedMany(value) => value
            .value
            .iter()
            .chain(value.freeform_values.iter().flatten())
            .cloned()
            .collect::<Vec<_>>()
            .join(", "),
        ChatInputAnswerValue::Unknown(value) => value.to_string(),
    }
}

/// Returns the model and the agent that a message chose, as text.
pub(super) fn chosen_by(message: &Message) -> String {
    let mut chosen = Vec::new();
    if let Some(model) = &message.model {
        chosen.push(model.id.clone());
        let config: BTreeMap<_, _> = model.config.iter().flatten().collect();
        chosen.extend(config.iter().map(|(name, value)| format!("{name}: {value}")));
    }
    chosen.extend(message.agent.as_ref().map(|agent| agent.uri.clone()));
    if chosen.is_empty() {
        "(the default)".to_owned()
    } else {
        chosen.join(", ")
    }
}
