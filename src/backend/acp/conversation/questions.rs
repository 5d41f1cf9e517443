//! What an agent asks the user: `elicitation/create`, in its two modes.
//!
//! Owns: the questions that a form is, in its order, and the answer that the agent gets, once for each request,
//! whatever comes of the turn.
//! Never: accepts on the user's behalf, opens a URL, or asks outside of a turn.

use std::collections::BTreeMap;
use std::fmt;

use ahp_types::state::{
    ChatInputAnswer, ChatInputAnswerValue, ChatInputBooleanQuestion, ChatInputMultiSelectQuestion,
    ChatInputNumberQuestion, ChatInputOption, ChatInputQuestion, ChatInputResponseKind,
    ChatInputSingleSelectQuestion, ChatInputTextQuestion,
};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{json, Map, Value};

use super::AcpConversation;
use crate::backend::acp::errors::RequestError;
use crate::backend::acp::peer::AgentRequest;
use crate::host::effects::TurnEvent;

/// The method.
pub(super) const METHOD: &str = "elicitation/create";

/// The questions of a turn that are open, by the ids that clients know.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<String, OpenQuestion>,
    /// How many there were.
    count: u64,
}

impl Questions {
    /// Whether the agent waits for no answer.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[derive(Debug)]
struct OpenQuestion {
    request: AgentRequest,
    wanted: WantedAnswer,
}

/// What is to be answered.
#[derive(Debug)]
enum WantedAnswer {
    /// That the user will open it.
    Url,
    Form {
        /// The fields that hold whole numbers.
        integers: Vec<String>,
    },
}

/// What is asked. Not the schema's type, which does not know the order of fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Elicitation {
    mode: String,
    message: String,
    url: Option<String>,
    requested_schema: Option<Form>,
}

#[derive(Debug, Deserialize)]
struct Form {
    title: Option<String>,
    description: Option<String>,
    #[serde(default)]
    properties: Fields,
    required: Option<Vec<String>>,
}

/// The fields of a form, in their order.
#[derive(Debug, Default)]
struct Fields(Vec<(String, Field)>);

/// A field of any type. Its schema is flat and small, and every type may say less than it could.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Field {
    r#type: String,
    title: Option<String>,
    description: Option<String>,
    default: Option<Value>,
    min_length: Option<i64>,
    max_length: Option<i64>,
    pattern: Option<String>,
    format: Option<String>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    min_items: Option<i64>,
    max_items: Option<i64>,
    items: Option<Choices>,
    #[serde(flatten)]
    choices: Choices,
}

/// What can be chosen, in the ways in which that is said.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Choices {
    r#enum: Option<Vec<String>>,
    enum_names: Option<Vec<String>>,
    one_of: Option<Vec<QuestionChoice>>,
    any_of: Option<Vec<QuestionChoice>>,
}

#[derive(Debug, Deserialize)]
struct QuestionChoice {
    r#const: String,
    title: Option<String>,
    description: Option<String>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl AcpConversation {
    /// Takes in a request for the user's answer.
    pub(super) fn asked_the_user(&mut self, request: AgentRequest, params: &RawValue) {
        let Some(run) = self.run.as_mut().filter(|run| run.goes_on()) else {
            return self.ear.answer(&request, Ok(cancelled()));
        };
        let asked = serde_json::from_str::<Elicitation>(params.get()).map_err(|error| error.to_string());
        match asked.and_then(Elicitation::put) {
            Ok((Asking { message, url, questions }, wanted)) => {
                run.questions.count += 1;
                let id = format!("question-{}", run.questions.count);
                run.questions.open.insert(id.clone(), OpenQuestion { request, wanted });
                self.tell(TurnEvent::Question { id, message, url, questions });
            }
            Err(error) => {
                tracing::warn!(
                    agent = self.agent.spec.name,
                    error,
                    "a question of the agent was refused: it is not understood"
                );
                self.ear.answer(&request, Err(RequestError::ParamsDoNotFit));
            }
        }
    }

    /// The user has answered, or will not.
    pub(super) fn answered_by_user(
        &mut self,
        id: &str,
        response: ChatInputResponseKind,
        answers: &BTreeMap<String, ChatInputAnswer>,
    ) {
        let Some(open) = self.run.as_mut().and_then(|run| run.questions.open.remove(id)) else { return };
        let answer = match (response, &open.wanted) {
            (ChatInputResponseKind::Accept, WantedAnswer::Form { integers }) => {
                json!({ "action": "accept", "content": content(answers, integers) })
            }
            (ChatInputResponseKind::Accept, WantedAnswer::Url) => json!({ "action": "accept" }),
            (ChatInputResponseKind::Decline, _) => json!({ "action": "decline" }),
            (ChatInputResponseKind::Cancel, _) => cancelled(),
        };
        self.ear.answer(&open.request, Ok(answer));
    }

    /// The agent does not want to know any more; false when it asked the user nothing by this request.
    pub(super) fn question_was_withdrawn(&mut self, request: &AgentRequest) -> bool {
        let Some(run) = &mut self.run else { return false };
        let asked = run.questions.open.iter().find(|(_, open)| open.request == *request);
        let Some(id) = asked.map(|(id, _)| id.clone()) else { return false };
        run.questions.open.remove(&id);
        self.ear.answer(request, Err(RequestError::Withdrawn));
        self.tell(TurnEvent::QuestionWithdrawn { id });
        true
    }

    /// Nobody will answer any more.
    pub(super) fn cancel_questions(&mut self) {
        let open = self.run.as_mut().map(|run| std::mem::take(&mut run.questions.open)).unwrap_or_default();
        for open in open.into_values() {
            self.ear.answer(&open.request, Ok(cancelled()));
        }
    }
}

/// The page that a request has the user open, and why, if it is such a request.
pub(in crate::backend::acp) fn page_to_open(method: &str, params: &RawValue) -> Option<(String, String)> {
    let asked: Elicitation = serde_json::from_str(params.get()).ok().filter(|_| method == METHOD)?;
    let url = asked.url.filter(|_| asked.mode == "url")?;
    Some((asked.message, url))
}

/// What a question is answered with that no user is shown.
pub(super) fn cancelled() -> Value {
    json!({ "action": "cancel" })
}

/// What the user is shown.
struct Asking {
    message: Option<String>,
    url: Option<String>,
    questions: Vec<ChatInputQuestion>,
}

impl Elicitation {
    /// How it is put to the user, and what is to be answered.
    fn put(self) -> Result<(Asking, WantedAnswer), String> {
        match self.mode.as_str() {
            "url" => {
                let url = self.url.ok_or("there is no URL")?;
                let asking = Asking { message: Some(self.message), url: Some(url), questions: Vec::new() };
                Ok((asking, WantedAnswer::Url))
            }
            "form" => {
                let form = self.requested_schema.ok_or("there is no schema")?;
                let required = form.required.unwrap_or_default();
                let (mut questions, mut integers) = (Vec::new(), Vec::new());
                for (id, field) in form.properties.0 {
                    let is_required = required.contains(&id).then_some(true);
                    if field.r#type == "integer" {
                        integers.push(id.clone());
                    }
                    questions.push(field.question(id, is_required)?);
                }
                let said = [Some(self.message), form.title, form.description];
                let said: Vec<String> = said.into_iter().flatten().filter(|it| !it.is_empty()).collect();
                let message = Some(said.join("\n\n")).filter(|message| !message.is_empty());
                Ok((Asking { message, url: None, questions }, WantedAnswer::Form { integers }))
            }
            mode => Err(format!("the mode `{mode}` was not offered")),
        }
    }
}

impl Field {
    fn question(self, id: String, required: Option<bool>) -> Result<ChatInputQuestion, String> {
        let choices = if self.r#type == "array" { self.items.unwrap_or_default() } else { self.choices };
        let options = choices.options(self.default.as_ref());
        // A question needs words; a title that is all that there is need not be shown twice.
        let (title, mut message) = match (self.title, self.description) {
            (title, Some(description)) => (title, description),
            (Some(title), None) => (None, title),
            (None, None) => (None, id.clone()),
        };
        if let Some(pattern) = self.pattern {
            message.push_str(&format!(" (must match `{pattern}`)"));
        }
        let default = self.default.unwrap_or_default();
        let number = |id, title, message| ChatInputNumberQuestion {
            id,
            title,
            message,
            required,
            min: self.minimum,
            max: self.maximum,
            default_value: default.as_f64(),
        };
        Ok(match (self.r#type.as_str(), options) {
            ("string", Some(options)) => ChatInputQuestion::SingleSelect(ChatInputSingleSelectQuestion {
                id,
                title,
                message,
                required,
                options,
                allow_freeform_input: Some(false),
            }),
            ("string", None) => ChatInputQuestion::Text(ChatInputTextQuestion {
                id,
                title,
                message,
                required,
                format: self.format,
                min: self.min_length,
                max: self.max_length,
                default_value: default.as_str().map(str::to_owned),
            }),
            ("number", _) => ChatInputQuestion::Number(number(id, title, message)),
            ("integer", _) => ChatInputQuestion::Integer(number(id, title, message)),
            ("boolean", _) => ChatInputQuestion::Boolean(ChatInputBooleanQuestion {
                id,
                title,
                message,
                required,
                default_value: default.as_bool(),
            }),
            ("array", Some(options)) => ChatInputQuestion::MultiSelect(ChatInputMultiSelectQuestion {
                id,
                title,
                message,
                required,
                options,
                allow_freeform_input: Some(false),
                min: self.min_items,
                max: self.max_items,
            }),
            (kind, _) => {
                return Err(format!("`{id}` is of the type `{kind}`, or has nothing to choose from"))
            }
        })
    }
}

impl Choices {
    /// What can be chosen; none when anything can be said. What is chosen if nothing is said is recommended.
    fn options(self, default: Option<&Value>) -> Option<Vec<ChatInputOption>> {
        let recommended = |id: &str| match default {
            Some(Value::String(default)) => (default == id).then_some(true),
            Some(Value::Array(defaults)) => defaults.iter().any(|default| default == id).then_some(true),
            _ => None,
        };
        if let Some(choices) = self.one_of.or(self.any_of) {
            let option = |choice: QuestionChoice| ChatInputOption {
                recommended: recommended(&choice.r#const),
                label: choice.title.unwrap_or_else(|| choice.r#const.clone()),
                id: choice.r#const,
                description: choice.description,
            };
            return Some(choices.into_iter().map(option).collect());
        }
        let mut names = self.enum_names.unwrap_or_default().into_iter();
        let option = |id: String| ChatInputOption {
            recommended: recommended(&id),
            label: names.next().unwrap_or_else(|| id.clone()),
            id,
            description: None,
        };
        self.r#enum.map(|values| values.into_iter().map(option).collect())
    }
}

/// The answers, as the agent is given them.
fn content(answers: &BTreeMap<String, ChatInputAnswer>, integers: &[String]) -> Value {
    let mut content = Map::new();
    for (id, answer) in answers {
        let ChatInputAnswer::Submitted(answer) = answer else { continue };
        let value = match &answer.value {
            ChatInputAnswerValue::Text(answer) => json!(answer.value),
            // Whole, and no longer than what a number can be without losing its last digits.
            #[allow(clippy::cast_possible_truncation)]
            ChatInputAnswerValue::Number(answer) if integers.contains(id) => json!(answer.value as i64),
            ChatInputAnswerValue::Number(answer) => json!(answer.value),
            ChatInputAnswerValue::Boolean(answer) => json!(answer.value),
            ChatInputAnswerValue::Selected(answer) => json!(answer.value),
            ChatInputAnswerValue::SelectedMany(answer) => json!(answer.value),
            ChatInputAnswerValue::Unknown(_) => continue,
        };
        content.insert(id.clone(), value);
    }
    Value::Object(content)
}
