//! Questions of an agent to the user: `elicitation/create`, in both modes, and the permission
//! requests of Qwen Code that are questions.
//!
//! Owns: answering each request once, however the turn ends; and asking again when an answer
//! violates the agent's schema. `forms` has the questions of a form.
//! Never: accepts on the user's behalf, opens a URL, or asks outside of a turn.

use std::collections::BTreeMap;

use ahp_types::state::{ChatInputAnswer, ChatInputOption, ChatInputResponseKind};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Map, Value};
use uuid::Uuid;

use super::forms::{content, AskedField, Form};
use super::AcpConversation;
use crate::backend::acp::calls::PermissionRequest;
use crate::backend::acp::errors::RequestError;
use crate::backend::acp::peer::AgentRequest;
use crate::host::effects::TurnEvent;

pub(super) const METHOD: &str = "elicitation/create";

/// Maximum number of refused answers to one request, since a program may repeat the same one.
const REFUSALS_MAX: u32 = 3;

/// Member of a call's `_meta` that marks a permission request of Qwen Code as a question.
const QWEN_KIND: &str = "qwenInteractionKind";

/// Open questions of a turn, by the ids that clients know.
pub(super) type Questions = BTreeMap<String, OpenQuestion>;

#[derive(Debug)]
pub(super) struct OpenQuestion {
    request: AgentRequest,
    asking: ShownQuestion,
    wanted: WantedAnswer,
    refused: u32,
}

/// Form of the answer that the agent expects.
#[derive(Debug)]
enum WantedAnswer {
    Elicitation,
    /// Answers are sent with the decision about a permission, by these options.
    Permission {
        approve: String,
        reject: Option<String>,
    },
}

/// Parameters of `elicitation/create`. The schema crate's type is not used because it loses the
/// order of fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Elicitation {
    mode: String,
    message: String,
    url: Option<String>,
    requested_schema: Option<Form>,
}

#[derive(Debug, Clone)]
struct ShownQuestion {
    message: Option<String>,
    /// Page that the user should open; `None` for a form.
    url: Option<String>,
    fields: Vec<AskedField>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QwenRequest {
    tool_call: QwenCall,
    options: Vec<QwenDecision>,
}

#[derive(Deserialize)]
struct QwenCall {
    #[serde(rename = "_meta")]
    meta: QwenMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QwenMeta {
    qwen_interaction_kind: String,
    qwen_questions: Vec<QwenQuestion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QwenQuestion {
    question: String,
    header: Option<String>,
    #[serde(default)]
    options: Vec<QwenChoice>,
    #[serde(default)]
    multi_select: bool,
}

#[derive(Deserialize)]
struct QwenChoice {
    label: String,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QwenDecision {
    option_id: String,
    kind: String,
}

impl AcpConversation {
    pub(super) fn handle_elicitation(&mut self, request: AgentRequest, params: &RawValue) {
        if !self.run.as_ref().is_some_and(|run| run.goes_on()) {
            return self.receiver.answer(&request, Ok(cancelled()));
        }
        let asked = serde_json::from_str::<Elicitation>(params.get()).map_err(|error| error.to_string());
        match asked.and_then(Elicitation::put) {
            Ok(asking) => {
                let wanted = WantedAnswer::Elicitation;
                self.ask(OpenQuestion { request, asking, wanted, refused: 0 }, None);
            }
            Err(error) => {
                tracing::warn!(
                    agent = self.agent.spec.name,
                    error,
                    "a question of the agent was rejected: its params are invalid"
                );
                self.receiver.answer(&request, Err(RequestError::ParamsDoNotFit));
            }
        }
    }

    /// Shows a permission request that is a question. Returns `false` if it is none.
    pub(super) fn permission_question(&mut self, request: &AgentRequest, params: &RawValue) -> bool {
        if !params.get().contains(QWEN_KIND) {
            return false;
        }
        let asked = serde_json::from_str::<QwenRequest>(params.get()).ok();
        let Some((asking, wanted)) = asked.and_then(QwenRequest::put) else { return false };
        let Ok(asks) = serde_json::from_str::<PermissionRequest>(params.get()) else { return false };
        let events = self.calls.updated(asks.tool_call);
        self.send_call_events(events);
        self.ask(OpenQuestion { request: request.clone(), asking, wanted, refused: 0 }, None);
        true
    }

    /// Shows a question to the user, with the problem of the previous answer.
    fn ask(&mut self, open: OpenQuestion, wrong: Option<&str>) {
        let Some(run) = &mut self.run else { return };
        // A fresh id, so that a late answer to an earlier question matches no other.
        let id = format!("question-{}", Uuid::new_v4().simple());
        let ShownQuestion { message, url, fields } = &open.asking;
        let (url, questions) = (url.clone(), fields.iter().map(|field| field.question.clone()).collect());
        let texts: Vec<&str> = wrong.into_iter().chain(message.as_deref()).collect();
        let message = Some(texts.join("\n\n")).filter(|message| !message.is_empty());
        run.questions.insert(id.clone(), open);
        self.queue_event(TurnEvent::Question { id, message, url, questions });
    }

    /// Handles the user's answer, or its absence.
    pub(super) fn answered_by_user(
        &mut self,
        id: &str,
        response: ChatInputResponseKind,
        answers: &BTreeMap<String, ChatInputAnswer>,
    ) {
        let Some(mut open) = self.run.as_mut().and_then(|run| run.questions.remove(id)) else { return };
        let answer = match open.answer(response, answers) {
            Ok(answer) => answer,
            Err(wrong) if open.refused < REFUSALS_MAX => {
                open.refused += 1;
                return self.ask(open, Some(&wrong));
            }
            Err(wrong) => {
                self.queue_event(TurnEvent::Notice(format!("The question was cancelled. {wrong}")));
                open.wanted.cancelled()
            }
        };
        if let (WantedAnswer::Permission { .. }, ChatInputResponseKind::Decline, Some(run)) =
            (&open.wanted, response, &mut self.run)
        {
            run.has_refused = true;
        }
        self.receiver.answer(&open.request, Ok(answer));
    }

    /// Withdraws a question. Returns `false` if it does not belong to this turn.
    pub(super) fn question_was_withdrawn(&mut self, request: &AgentRequest) -> bool {
        let Some(run) = &mut self.run else { return false };
        let asked = run.questions.iter().find(|(_, open)| open.request == *request);
        let Some(id) = asked.map(|(id, _)| id.clone()) else { return false };
        run.questions.remove(&id);
        self.receiver.answer(request, Err(RequestError::Withdrawn));
        self.queue_event(TurnEvent::QuestionWithdrawn { id });
        true
    }

    pub(super) fn cancel_questions(&mut self) {
        let open = self.run.as_mut().map(|run| std::mem::take(&mut run.questions)).unwrap_or_default();
        for open in open.into_values() {
            self.receiver.answer(&open.request, Ok(open.wanted.cancelled()));
        }
    }
}

/// Returns the page that a request asks the user to open, with the reason; `None` for other
/// requests.
pub(in crate::backend::acp) fn page_to_open(method: &str, params: &RawValue) -> Option<(String, String)> {
    let asked: Elicitation = serde_json::from_str(params.get()).ok().filter(|_| method == METHOD)?;
    let url = asked.url.filter(|_| asked.mode == "url")?;
    Some((asked.message, url))
}

/// Returns the answer to a question that was not shown to a user.
pub(super) fn cancelled() -> Value {
    json!({ "action": "cancel" })
}

impl OpenQuestion {
    /// Returns the answer to the agent, or the problem of the user's answers.
    fn answer(
        &self,
        response: ChatInputResponseKind,
        answers: &BTreeMap<String, ChatInputAnswer>,
    ) -> Result<Value, String> {
        use WantedAnswer::{Elicitation, Permission};
        let content = || content(&self.asking.fields, answers);
        Ok(match (response, &self.wanted) {
            (ChatInputResponseKind::Accept, Elicitation) if self.asking.url.is_some() => {
                json!({ "action": "accept" })
            }
            (ChatInputResponseKind::Accept, Elicitation) => {
                json!({ "action": "accept", "content": content()? })
            }
            (ChatInputResponseKind::Decline, Elicitation) => json!({ "action": "decline" }),
            (ChatInputResponseKind::Accept, Permission { approve, .. }) => {
                let answers: Map<String, Value> =
                    content()?.into_iter().map(|(id, value)| (id, in_words(&value))).collect();
                json!({ "outcome": { "outcome": "selected", "optionId": approve }, "answers": answers })
            }
            (ChatInputResponseKind::Decline, Permission { reject: Some(reject), .. }) => {
                json!({ "outcome": { "outcome": "selected", "optionId": reject } })
            }
            _ => self.wanted.cancelled(),
        })
    }
}

impl WantedAnswer {
    fn cancelled(&self) -> Value {
        match self {
            Self::Permission { .. } => json!({ "outcome": { "outcome": "cancelled" } }),
            Self::Elicitation => cancelled(),
        }
    }
}

/// Returns a value, with the elements of an array joined to one text.
fn in_words(value: &Value) -> Value {
    match value {
        Value::Array(values) => {
            let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            words.join(", ").into()
        }
        value => value.clone(),
    }
}

impl Elicitation {
    fn put(self) -> Result<ShownQuestion, String> {
        match self.mode.as_str() {
            "url" => {
                let url = Some(self.url.ok_or("there is no URL")?);
                Ok(ShownQuestion { message: Some(self.message), url, fields: Vec::new() })
            }
            "form" => {
                let form = self.requested_schema.ok_or("there is no schema")?;
                let texts = [Some(self.message), form.title.clone(), form.description.clone()];
                let texts: Vec<String> = texts.into_iter().flatten().filter(|it| !it.is_empty()).collect();
                let message = Some(texts.join("\n\n")).filter(|message| !message.is_empty());
                Ok(ShownQuestion { message, url: None, fields: form.questions() })
            }
            mode => Err(format!("the mode `{mode}` is not supported")),
        }
    }
}

impl QwenRequest {
    /// Returns the question as shown to the user, and the expected answer; answers are identified
    /// by the numbers of their questions. `None` if the request is of another kind or cannot be
    /// answered.
    fn put(self) -> Option<(ShownQuestion, WantedAnswer)> {
        let QwenMeta { qwen_interaction_kind: kind, qwen_questions: asked } = self.tool_call.meta;
        let decision = |kind: &str| {
            let option = self.options.iter().find(|option| option.kind == kind);
            option.map(|option| option.option_id.clone())
        };
        let approve = decision("allow_once").filter(|_| kind == "user_question" && !asked.is_empty())?;
        let reject = decision("reject_once");
        let fields = asked.into_iter().enumerate().map(|(number, asked)| asked.put(number)).collect();
        let asking = ShownQuestion { message: None, url: None, fields };
        Some((asking, WantedAnswer::Permission { approve, reject }))
    }
}

impl QwenQuestion {
    fn put(self, number: usize) -> AskedField {
        let option = |choice: QwenChoice| ChatInputOption {
            id: choice.label.clone(),
            label: choice.label,
            description: choice.description,
            recommended: None,
        };
        let options: Vec<ChatInputOption> = self.options.into_iter().map(option).collect();
        let question = json!({
            "kind": if self.multi_select { "multi-select" } else { "single-select" },
            "title": self.header, "message": self.question, "options": options, "allowFreeformInput": true,
        });
        AskedField::new(&number.to_string(), true, question)
    }
}
