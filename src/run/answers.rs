//! Answers to an agent's questions, from a file.
//!
//! Owns: the form of the file, and turning its values into the answers of a request.
//! Never: invents an answer.

use std::path::Path;

use ahp_types::state::{ChatInputOption, ChatInputQuestion, ChatInputRequest};
use anyhow::Context;
use serde_json::{json, Map, Value};

use crate::files::small;

/// Values by the ids or texts of questions.
#[derive(Debug, Default)]
pub struct Answers(Map<String, Value>);

impl Answers {
    /// Reads a file: a JSON object whose names are ids, titles or texts of questions.
    ///
    /// # Errors
    /// When it is no such file.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let context = || format!("`{}`", file.display());
        let text = small::open(file).and_then(small::read).with_context(context)?;
        Ok(Self(serde_json::from_str(&text).context("it is no JSON object").with_context(context)?))
    }

    /// Returns the protocol's answers to all questions of a request; `None` if a required one has
    /// none, or no question has one.
    pub fn to(&self, request: &ChatInputRequest) -> Option<Map<String, Value>> {
        let mut answers = Map::new();
        for question in request.questions.iter().flatten() {
            let (id, names, is_required) = named(question)?;
            let value = names.into_iter().flatten().find_map(|name| self.0.get(name));
            match value.and_then(|value| answer(question, value)) {
                Some(value) => {
                    answers.insert(id.to_owned(), json!({ "state": "submitted", "value": value }));
                }
                None if is_required => return None,
                None => {}
            }
        }
        Some(answers).filter(|answers| !answers.is_empty())
    }
}

/// Returns the id of a question, the names by which a file may call it, and whether it is required.
fn named(question: &ChatInputQuestion) -> Option<(&str, [Option<&str>; 3], bool)> {
    macro_rules! of {
        ($question:expr) => {{
            let question = $question;
            let names =
                [Some(question.id.as_str()), Some(question.message.as_str()), question.title.as_deref()];
            (question.id.as_str(), names, question.required == Some(true))
        }};
    }
    Some(match question {
        ChatInputQuestion::Text(question) => of!(question),
        ChatInputQuestion::Number(question) | ChatInputQuestion::Integer(question) => of!(question),
        ChatInputQuestion::Boolean(question) => of!(question),
        ChatInputQuestion::SingleSelect(question) => of!(question),
        ChatInputQuestion::MultiSelect(question) => of!(question),
        ChatInputQuestion::Unknown(_) => return None,
    })
}

/// Returns a value of the file as the value of an answer; `None` if it does not fit the question.
fn answer(question: &ChatInputQuestion, value: &Value) -> Option<Value> {
    match question {
        ChatInputQuestion::Text(_) => Some(json!({ "kind": "text", "value": text_of(value)? })),
        ChatInputQuestion::Number(_) | ChatInputQuestion::Integer(_) => {
            Some(json!({ "kind": "number", "value": value.as_f64()? }))
        }
        ChatInputQuestion::Boolean(_) => Some(json!({ "kind": "boolean", "value": value.as_bool()? })),
        ChatInputQuestion::SingleSelect(select) => {
            let chosen = text_of(value)?;
            Some(match option(&select.options, &chosen) {
                Some(id) => json!({ "kind": "selected", "value": id }),
                None => json!({ "kind": "text", "value": chosen }),
            })
        }
        ChatInputQuestion::MultiSelect(select) => {
            let chosen = match value {
                Value::Array(values) => values.iter().map(text_of).collect::<Option<Vec<_>>>()?,
                value => vec![text_of(value)?],
            };
            let (mut ids, mut free) = (Vec::new(), Vec::new());
            for name in chosen {
                match option(&select.options, &name) {
                    Some(id) => ids.push(id.to_owned()),
                    None => free.push(name),
                }
            }
            let mut answer = json!({ "kind": "selected-many", "value": ids });
            if !free.is_empty() {
                answer["freeformValues"] = json!(free);
            }
            Some(answer)
        }
        ChatInputQuestion::Unknown(_) => None,
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns the id of the option that is called so.
fn option<'a>(options: &'a [ChatInputOption], name: &str) -> Option<&'a str> {
    let named = options.iter().find(|option| option.id == name);
    named.or_else(|| options.iter().find(|option| option.label == name)).map(|option| option.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(file: Value, questions: Value) -> Option<Value> {
        let Value::Object(file) = file else { panic!("{file}") };
        let request = serde_json::from_value(json!({ "id": "r", "questions": questions })).unwrap();
        Answers(file).to(&request).map(Value::Object)
    }

    #[test]
    fn values_are_found_by_id_title_or_text_and_take_the_kind_of_the_question() {
        let options = json!([{ "id": "a", "label": "Apple" }, { "id": "b", "label": "Bean" }]);
        let found = answers(
            json!({ "name": 7, "Size?": 2.5, "Really": true, "one": "Bean", "many": ["Apple", "x"] }),
            json!([
                { "kind": "text", "id": "name", "message": "Who?" },
                { "kind": "number", "id": "size", "message": "Size?" },
                { "kind": "boolean", "id": "sure", "message": "Sure?", "title": "Really" },
                { "kind": "single-select", "id": "one", "message": "One", "options": options },
                { "kind": "multi-select", "id": "many", "message": "Many", "options": options },
                { "kind": "text", "id": "other", "message": "Else?" },
            ]),
        );
        let submitted = |value: Value| json!({ "state": "submitted", "value": value });
        let expected = json!({
            "name": submitted(json!({ "kind": "text", "value": "7" })),
            "size": submitted(json!({ "kind": "number", "value": 2.5 })),
            "sure": submitted(json!({ "kind": "boolean", "value": true })),
            "one": submitted(json!({ "kind": "selected", "value": "b" })),
            "many": submitted(json!({ "kind": "selected-many", "value": ["a"], "freeformValues": ["x"] })),
        });
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn request_without_an_answer_to_a_required_question_has_no_answers() {
        let question = json!([{ "kind": "text", "id": "name", "message": "Who?", "required": true },
            { "kind": "boolean", "id": "sure", "message": "Sure?" }]);
        assert_eq!(answers(json!({ "sure": true }), question.clone()), None);
        assert_eq!(
            answers(json!({ "name": "me", "sure": "no" }), question).unwrap().as_object().unwrap().len(),
            1
        );
        assert_eq!(
            answers(json!({ "x": 1 }), json!([{ "kind": "boolean", "id": "y", "message": "" }])),
            None
        );
    }
}
