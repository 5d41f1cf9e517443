//! Questions of an agent to the user: `elicitation/create`, in its two modes; and the permission
//! requests of Qwen Code that are questions.
//!
//! Owns: the answer that the agent gets, once for each request, whatever comes of the turn; asking
//! again when an answer is not what the agent's schema allows. `forms` has the questions that a
//! form is.
//! Never: accepts on the user's behalf, opens a URL, or asks outside of a turn.

use std::collections::BTreeMap;

use ahp_types::state::{
    ChatInputAnswer, ChatInputMultiSelectQuestion, ChatInputOption, ChatInputQuestion, ChatInputResponseKind,
    ChatInputSingleSelectQuestion,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Map, Value};
use uuid::Uuid;

use super::forms::{content, AnswerKind, AnswerRule, Form};
use super::AcpConversation;
use crate::backend::acp::calls::PermissionRequest;
use crate::backend::acp::errors::RequestError;
use crate::backend::acp::peer::AgentRequest;
use crate::host::effects::TurnEvent;

/// The method.
pub(super) const METHOD: &str = "elicitation/create";

/// Maximum number of answers to one request that are refused: a program may give the same one for
/// ever.
const REFUSALS_MAX: u32 = 3;

/// Marks a permission request of Qwen Code that is a question, in the `_meta` of its call.
const QWEN_KIND: &str = "qwenInteractionKind";

/// The questions of a turn that are open, by the ids that clients know.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<String, OpenQuestion>,
}

impl Questions {
    /// Returns whether no question is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[derive(Debug)]
struct OpenQuestion {
    request: AgentRequest,
    asking: ShownQuestion,
    wanted: WantedAnswer,
    /// Number of answers that were refused.
    refused: u32,
}

/// Answer that the agent waits for.
#[derive(Debug)]
enum WantedAnswer {
    /// Consent of the user to open a URL.
    Url,
    Form(Vec<AnswerRule>),
    /// The answers go with the decision about a permission.
    Permission {
        rules: Vec<AnswerRule>,
        approve: String,
        reject: Option<String>,
    },
}

/// Parameters of `elicitation/create`. Not the schema's type, which does not know the order of
/// fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Elicitation {
    mode: String,
    message: String,
    url: Option<String>,
    requested_schema: Option<Form>,
}

/// Question as the user is shown it.
#[derive(Debug, Clone)]
struct ShownQuestion {
    message: Option<String>,
    url: Option<String>,
    questions: Vec<ChatInputQuestion>,
}

/// A permission request of Qwen Code that is a question.
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
    /// Takes in a request for the user's answer.
    pub(super) fn handle_elicitation(&mut self, request: AgentRequest, params: &RawValue) {
        if !self.run.as_ref().is_some_and(|run| run.goes_on()) {
            return self.receiver.answer(&request, Ok(cancelled()));
        }
        let asked = serde_json::from_str::<Elicitation>(params.get()).map_err(|error| error.to_string());
        match asked.and_then(Elicitation::put) {
            Ok((asking, wanted)) => self.ask(OpenQuestion { request, asking, wanted, refused: 0 }, None),
            Err(error) => {
                tracing::warn!(
                    agent = self.agent.spec.name,
                    error,
                    "a question of the agent was refused: it is not understood"
                );
                self.receiver.answer(&request, Err(RequestError::ParamsDoNotFit));
            }
        }
    }

    /// Takes in a permission request that is a question to the user; false when it is none.
    pub(super) fn permission_question(&mut self, request: &AgentRequest, params: &RawValue) -> bool {
        if !params.get().contains(QWEN_KIND) {
            return false;
        }
        let asked = serde_json::from_str::<QwenRequest>(params.get()).ok();
        let Some((asking, wanted)) = asked.and_then(QwenRequest::put) else { return false };
        let Ok(asks) = serde_json::from_str::<PermissionRequest>(params.get()) else { return false };
        let told = self.calls.updated(asks.into_call());
        self.send_call_events(told);
        self.ask(OpenQuestion { request: request.clone(), asking, wanted, refused: 0 }, None);
        true
    }

    /// Shows a question to the user, with what was wrong with the last answer to it.
    fn ask(&mut self, open: OpenQuestion, wrong: Option<&str>) {
        let Some(run) = &mut self.run else { return };
        // No other question has ever had it: a late answer to one of an earlier turn answers no
        // other.
        let id = format!("question-{}", Uuid::new_v4().simple());
        let ShownQuestion { message, url, questions } = open.asking.clone();
        let said: Vec<&str> = wrong.into_iter().chain(message.as_deref()).collect();
        let message = Some(said.join("\n\n")).filter(|message| !message.is_empty());
        run.questions.open.insert(id.clone(), open);
        self.tell(TurnEvent::Question { id, message, url, questions });
    }

    /// The user has answered, or will not.
    pub(super) fn answered_by_user(
        &mut self,
        id: &str,
        response: ChatInputResponseKind,
        answers: &BTreeMap<String, ChatInputAnswer>,
    ) {
        let Some(mut open) = self.run.as_mut().and_then(|run| run.questions.open.remove(id)) else { return };
        let answer = match open.wanted.answer(response, answers) {
            Ok(answer) => answer,
            Err(wrong) if open.refused < REFUSALS_MAX => {
                open.refused += 1;
                return self.ask(open, Some(&wrong));
            }
            Err(wrong) => {
                self.tell(TurnEvent::Notice(format!("The question was cancelled. {wrong}")));
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

    /// The agent does not want to know any more; false when it asked the user nothing by this
    /// request.
    pub(super) fn question_was_withdrawn(&mut self, request: &AgentRequest) -> bool {
        let Some(run) = &mut self.run else { return false };
        let asked = run.questions.open.iter().find(|(_, open)| open.request == *request);
        let Some(id) = asked.map(|(id, _)| id.clone()) else { return false };
        run.questions.open.remove(&id);
        self.receiver.answer(request, Err(RequestError::Withdrawn));
        self.tell(TurnEvent::QuestionWithdrawn { id });
        true
    }

    /// Cancels all open questions.
    pub(super) fn cancel_questions(&mut self) {
        let open = self.run.as_mut().map(|run| std::mem::take(&mut run.questions.open)).unwrap_or_default();
        for open in open.into_values() {
            self.receiver.answer(&open.request, Ok(open.wanted.cancelled()));
        }
    }
}

/// The page that a request has the user open, and why, if it is such a request.
pub(in crate::backend::acp) fn page_to_open(method: &str, params: &RawValue) -> Option<(String, String)> {
    let asked: Elicitation = serde_json::from_str(params.get()).ok().filter(|_| method == METHOD)?;
    let url = asked.url.filter(|_| asked.mode == "url")?;
    Some((asked.message, url))
}

/// Returns the answer to a question that no user is shown.
pub(super) fn cancelled() -> Value {
    json!({ "action": "cancel" })
}

impl WantedAnswer {
    /// Returns what the agent is answered.
    ///
    /// # Errors
    /// What is wrong with the user's answers.
    fn answer(
        &self,
        response: ChatInputResponseKind,
        answers: &BTreeMap<String, ChatInputAnswer>,
    ) -> Result<Value, String> {
        Ok(match (response, self) {
            (ChatInputResponseKind::Cancel, _) => self.cancelled(),
            (ChatInputResponseKind::Accept, Self::Url) => json!({ "action": "accept" }),
            (ChatInputResponseKind::Accept, Self::Form(rules)) => {
                json!({ "action": "accept", "content": content(rules, answers)? })
            }
            (ChatInputResponseKind::Decline, Self::Url | Self::Form(_)) => json!({ "action": "decline" }),
            (ChatInputResponseKind::Accept, Self::Permission { rules, approve, .. }) => {
                let answers: Map<String, Value> =
                    content(rules, answers)?.into_iter().map(|(id, value)| (id, in_words(&value))).collect();
                json!({ "outcome": { "outcome": "selected", "optionId": approve }, "answers": answers })
            }
            (ChatInputResponseKind::Decline, Self::Permission { reject: Some(reject), .. }) => {
                json!({ "outcome": { "outcome": "selected", "optionId": reject } })
            }
            (ChatInputResponseKind::Decline, Self::Permission { .. }) => self.cancelled(),
        })
    }

    fn cancelled(&self) -> Value {
        match self {
            Self::Permission { .. } => json!({ "outcome": { "outcome": "cancelled" } }),
            Self::Url | Self::Form(_) => cancelled(),
        }
    }
}

/// Returns a value as one text.
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
    /// How it is put to the user, and what is to be answered.
    fn put(self) -> Result<(ShownQuestion, WantedAnswer), String> {
        match self.mode.as_str() {
            "url" => {
                let url = self.url.ok_or("there is no URL")?;
                let asking =
                    ShownQuestion { message: Some(self.message), url: Some(url), questions: Vec::new() };
                Ok((asking, WantedAnswer::Url))
            }
            "form" => {
                let form = self.requested_schema.ok_or("there is no schema")?;
                let said = [Some(self.message), form.title.clone(), form.description.clone()];
                let said: Vec<String> = said.into_iter().flatten().filter(|it| !it.is_empty()).collect();
                let message = Some(said.join("\n\n")).filter(|message| !message.is_empty());
                let (questions, rules) = form.questions();
                Ok((ShownQuestion { message, url: None, questions }, WantedAnswer::Form(rules)))
            }
            mode => Err(format!("the mode `{mode}` was not offered")),
        }
    }
}

impl QwenRequest {
    /// How it is put to the user, and what is to be answered: each answer goes by the number of its
    /// question. `None` if it is another kind of request, or nothing could be answered.
    fn put(self) -> Option<(ShownQuestion, WantedAnswer)> {
        let QwenMeta { qwen_interaction_kind: kind, qwen_questions: asked } = self.tool_call.meta;
        let decision = |kind: &str| {
            let option = self.options.iter().find(|option| option.kind == kind);
            option.map(|option| option.option_id.clone())
        };
        let approve = decision("allow_once").filter(|_| kind == "user_question" && !asked.is_empty())?;
        let reject = decision("reject_once");
        let numbered = asked.into_iter().enumerate();
        let (questions, rules) = numbered.map(|(number, asked)| asked.put(number.to_string())).unzip();
        let asking = ShownQuestion { message: None, url: None, questions };
        Some((asking, WantedAnswer::Permission { rules, approve, reject }))
    }
}

impl QwenQuestion {
    fn put(self, id: String) -> (ChatInputQuestion, AnswerRule) {
        let Self { question: message, header: title, options, multi_select } = self;
        let choices = options.iter().map(|choice| choice.label.clone()).collect();
        let option = |choice: QwenChoice| ChatInputOption {
            id: choice.label.clone(),
            label: choice.label,
            description: choice.description,
            recommended: None,
        };
        let options = options.into_iter().map(option).collect();
        let (required, allow_freeform_input) = (Some(true), Some(true));
        let rule = |fits| AnswerRule { id: id.clone(), is_required: true, fits };
        if multi_select {
            let rule = rule(AnswerKind::Many { choices, is_free: true, min: None, max: None });
            let question = ChatInputMultiSelectQuestion {
                id,
                title,
                message,
                required,
                options,
                allow_freeform_input,
                min: None,
                max: None,
            };
            return (ChatInputQuestion::MultiSelect(question), rule);
        }
        let rule = rule(AnswerKind::One { choices, is_free: true });
        let question =
            ChatInputSingleSelectQuestion { id, title, message, required, options, allow_freeform_input };
        (ChatInputQuestion::SingleSelect(question), rule)
    }
}
