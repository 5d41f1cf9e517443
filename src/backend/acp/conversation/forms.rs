//! Forms that agents have the user fill in: flat objects, described by a JSON schema.
//!
//! Owns: the question that each field is, in their order, and whether an answer is what the schema
//! allows.
//! Never: refuses a form for a field of a kind that nobody knows: such a field is asked for as a
//! text.

use std::collections::BTreeMap;
use std::fmt;

use ahp_types::state::{
    ChatInputAnswer, ChatInputAnswerValue, ChatInputBooleanQuestion, ChatInputMultiSelectQuestion,
    ChatInputNumberQuestion, ChatInputOption, ChatInputQuestion, ChatInputSingleSelectQuestion,
    ChatInputTextQuestion,
};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{json, Map, Value};

/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Follows the question for a field that is asked for as a text.
const AS_JSON: &str = "(as JSON, or as plain text)";

/// A form as the agent says it. Not the schema's type, which does not know the order of fields.
#[derive(Debug, Deserialize)]
pub(super) struct Form {
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    #[serde(default)]
    properties: Fields,
    required: Option<Vec<String>>,
}

/// Fields of a form, in their order.
#[derive(Debug, Default)]
struct Fields(Vec<(String, Value)>);

/// A field of any type that is known. Its schema is flat and small, and every type may say less
/// than it could.
#[derive(Debug, Default, Deserialize)]
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

/// Choices of a field, in each form in which a schema can list them.
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

impl Form {
    /// Returns the questions that the fields are, with what their answers must be.
    pub(super) fn questions(self) -> (Vec<ChatInputQuestion>, Vec<AnswerRule>) {
        let required = self.required.unwrap_or_default();
        let question = |(id, schema): (String, Value)| {
            let is_required = required.contains(&id);
            let known = Field::deserialize(&schema).ok();
            let known = known.and_then(|field| field.question(&id, is_required));
            known.unwrap_or_else(|| question_of_unknown(&id, &schema, is_required))
        };
        self.properties.0.into_iter().map(question).unzip()
    }
}

/// Returns the question for a field of a kind that is not known: for a text, with the whole schema
/// to read.
fn question_of_unknown(id: &str, schema: &Value, is_required: bool) -> (ChatInputQuestion, AnswerRule) {
    let text = |name: &str| schema.get(name).and_then(Value::as_str).map(str::to_owned);
    let (title, message) = words(id, text("title"), text("description"));
    let question = ChatInputQuestion::Text(ChatInputTextQuestion {
        id: id.to_owned(),
        title,
        message: format!("{message} {AS_JSON}\n\n{schema}"),
        required: is_required.then_some(true),
        format: None,
        min: None,
        max: None,
        default_value: schema.get("default").map(Value::to_string),
    });
    (question, AnswerRule { id: id.to_owned(), is_required, fits: AnswerKind::Anything })
}

/// Returns the title and the message of a question. It needs words; a title that is all that there
/// is need not be shown twice.
fn words(id: &str, title: Option<String>, description: Option<String>) -> (Option<String>, String) {
    match (title, description) {
        (title, Some(description)) => (title, description),
        (Some(title), None) => (None, title),
        (None, None) => (None, id.to_owned()),
    }
}

impl Field {
    /// Returns the question that the field is; `None` if its type is not known, or nothing can be
    /// chosen.
    fn question(self, name: &str, is_required: bool) -> Option<(ChatInputQuestion, AnswerRule)> {
        let choices = if self.r#type == "array" { self.items.unwrap_or_default() } else { self.choices };
        let options = choices.options(self.default.as_ref());
        let (title, mut message) = words(name, self.title, self.description);
        if let Some(pattern) = &self.pattern {
            message.push_str(&format!(" (must match `{pattern}`)"));
        }
        let (id, required) = (name.to_owned(), is_required.then_some(true));
        let default = self.default.unwrap_or_default();
        let ids = |options: &[ChatInputOption]| options.iter().map(|option| option.id.clone()).collect();
        let number = |id, title, message| ChatInputNumberQuestion {
            id,
            title,
            message,
            required,
            min: self.minimum,
            max: self.maximum,
            default_value: default.as_f64(),
        };
        let numbers = |is_whole| AnswerKind::Number { is_whole, min: self.minimum, max: self.maximum };
        let (question, fits) = match (self.r#type.as_str(), options) {
            ("string", Some(options)) => {
                let fits = AnswerKind::One { choices: ids(&options), is_free: false };
                let allow_freeform_input = Some(false);
                let question = ChatInputSingleSelectQuestion {
                    id,
                    title,
                    message,
                    required,
                    options,
                    allow_freeform_input,
                };
                (ChatInputQuestion::SingleSelect(question), fits)
            }
            ("string", None) => {
                let (min, max, format) = (self.min_length, self.max_length, self.format);
                let fits = AnswerKind::Text { min, max, pattern: self.pattern, format: format.clone() };
                let default_value = default.as_str().map(str::to_owned);
                let question =
                    ChatInputTextQuestion { id, title, message, required, format, min, max, default_value };
                (ChatInputQuestion::Text(question), fits)
            }
            ("number", _) => (ChatInputQuestion::Number(number(id, title, message)), numbers(false)),
            ("integer", _) => (ChatInputQuestion::Integer(number(id, title, message)), numbers(true)),
            ("boolean", _) => {
                let default_value = default.as_bool();
                let question = ChatInputBooleanQuestion { id, title, message, required, default_value };
                (ChatInputQuestion::Boolean(question), AnswerKind::Boolean)
            }
            ("array", Some(options)) => {
                let (min, max) = (self.min_items, self.max_items);
                let fits = AnswerKind::Many { choices: ids(&options), is_free: false, min, max };
                let question = ChatInputMultiSelectQuestion {
                    id,
                    title,
                    message,
                    required,
                    options,
                    allow_freeform_input: Some(false),
                    min,
                    max,
                };
                (ChatInputQuestion::MultiSelect(question), fits)
            }
            _ => return None,
        };
        Some((question, AnswerRule { id: name.to_owned(), is_required, fits }))
    }
}

impl Choices {
    /// Returns the options to choose from, the default ones recommended; `None` if any answer is
    /// allowed.
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

/// Rule for the answer to a question.
#[derive(Debug)]
pub(super) struct AnswerRule {
    pub(super) id: String,
    pub(super) is_required: bool,
    pub(super) fits: AnswerKind,
}

/// Values that fit a question.
#[derive(Debug)]
pub(super) enum AnswerKind {
    Text {
        min: Option<i64>,
        max: Option<i64>,
        pattern: Option<String>,
        format: Option<String>,
    },
    Number {
        is_whole: bool,
        min: Option<f64>,
        max: Option<f64>,
    },
    Boolean,
    One {
        choices: Vec<String>,
        is_free: bool,
    },
    Many {
        choices: Vec<String>,
        is_free: bool,
        min: Option<i64>,
        max: Option<i64>,
    },
    /// Any value, since its type is unknown: a text that is JSON stands for its value.
    Anything,
}

/// Returns the answers as the agent is given them.
///
/// # Errors
/// What is wrong with them, in a sentence for each.
pub(super) fn content(
    rules: &[AnswerRule],
    answers: &BTreeMap<String, ChatInputAnswer>,
) -> Result<Map<String, Value>, String> {
    let (mut content, mut wrong) = (Map::new(), Vec::new());
    for rule in rules {
        let answer = match answers.get(&rule.id) {
            Some(ChatInputAnswer::Submitted(answer)) => rule.fits.value(&answer.value, rule.is_required),
            _ => Ok(None),
        };
        match answer {
            Ok(Some(value)) => drop(content.insert(rule.id.clone(), value)),
            Ok(None) if rule.is_required => wrong.push(format!("`{}` must be answered.", rule.id)),
            Ok(None) => {}
            Err(why) => wrong.push(format!("The answer to `{}` {why}.", rule.id)),
        }
    }
    if wrong.is_empty() {
        return Ok(content);
    }
    Err(wrong.join("\n"))
}

impl AnswerKind {
    /// Returns the value that an answer is; `None` if it is empty where nothing need be said.
    fn value(&self, answer: &ChatInputAnswerValue, is_required: bool) -> Result<Option<Value>, String> {
        use ChatInputAnswerValue as Said;
        match (self, answer) {
            (Self::Text { min, max, pattern, format }, Said::Text(answer)) => {
                let text = &answer.value;
                match check_text(text, *min, *max, pattern.as_deref(), format.as_deref()) {
                    Err(_) if text.is_empty() && !is_required => Ok(None),
                    checked => checked.map(|()| Some(json!(text))),
                }
            }
            (Self::Number { is_whole, min, max }, Said::Number(answer)) => {
                let number = answer.value;
                check_range(number, *min, *max, "must be")?;
                match number {
                    _ if !is_whole => Ok(Some(json!(number))),
                    number if number.fract() != 0.0 => Err("must be a whole number".to_owned()),
                    // Whole, and no longer than what a number can be without losing its last
                    // digits.
                    #[allow(clippy::cast_possible_truncation)]
                    number => Ok(Some(json!(number as i64))),
                }
            }
            (Self::Boolean, Said::Boolean(answer)) => Ok(Some(json!(answer.value))),
            (Self::One { choices, is_free }, Said::Selected(answer)) => {
                let freely = answer.freeform_values.iter().flatten().find(|_| *is_free);
                let chosen = freely.unwrap_or(&answer.value);
                if freely.is_none() && !choices.contains(chosen) {
                    return Err(format!("must be one of {}", choices.join(", ")));
                }
                Ok(Some(json!(chosen)))
            }
            (Self::Many { choices, is_free, min, max }, Said::SelectedMany(answer)) => {
                let freely = answer.freeform_values.iter().flatten().filter(|_| *is_free);
                let chosen: Vec<&String> = answer.value.iter().chain(freely).collect();
                if chosen.is_empty() && !is_required {
                    return Ok(None);
                }
                if answer.value.iter().any(|chosen| !choices.contains(chosen)) {
                    return Err(format!("must be among {}", choices.join(", ")));
                }
                let bound = |bound: &Option<i64>| bound.map(|bound| bound as f64);
                check_range(chosen.len() as f64, bound(min), bound(max), "must have a number of choices of")?;
                Ok(Some(json!(chosen)))
            }
            (Self::Anything, Said::Text(answer)) if answer.value.is_empty() && !is_required => Ok(None),
            (Self::Anything, Said::Text(answer)) => {
                Ok(Some(serde_json::from_str(&answer.value).unwrap_or_else(|_| json!(answer.value))))
            }
            _ => Err("is of another kind than the question".to_owned()),
        }
    }
}

/// Checks that a number lies within bounds; `what` is what it is, for people.
fn check_range(number: f64, min: Option<f64>, max: Option<f64>, what: &str) -> Result<(), String> {
    match (min, max) {
        (Some(min), _) if number < min => Err(format!("{what} at least {min}")),
        (_, Some(max)) if number > max => Err(format!("{what} at most {max}")),
        _ => Ok(()),
    }
}

fn check_text(
    text: &str,
    min: Option<i64>,
    max: Option<i64>,
    pattern: Option<&str>,
    format: Option<&str>,
) -> Result<(), String> {
    let length = text.chars().count() as f64;
    let bound = |bound: Option<i64>| bound.map(|bound| bound as f64);
    check_range(length, bound(min), bound(max), "must have a length of")?;
    if let Some(pattern) = pattern {
        if matches(pattern, text) == Some(false) {
            return Err(format!("must match `{pattern}`"));
        }
    }
    let is_so = match format {
        Some("email") => text.split_once('@').is_some_and(|(name, host)| {
            !name.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace)
        }),
        Some("uri") => text.split_once(':').is_some_and(|(scheme, rest)| {
            let fits = |char: char| char.is_ascii_alphanumeric() || "+-.".contains(char);
            scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme.chars().all(fits)
                && !rest.is_empty()
        }),
        Some("date") => text.parse::<jiff::civil::Date>().is_ok(),
        Some("date-time") => text.parse::<jiff::Timestamp>().is_ok(),
        _ => true,
    };
    if is_so {
        return Ok(());
    }
    Err(format!("must be of the form `{}`", format.unwrap_or_default()))
}

/// Returns whether a pattern is found in a text; `None` if the pattern cannot be understood, since
/// those of JSON schemas may be what no engine matches in linear time.
fn matches(pattern: &str, text: &str) -> Option<bool> {
    // What needs tables of Unicode's properties is not understood.
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    let config = Regex::config().nfa_size_limit(Some(PATTERN_BYTES_MAX)).utf8_empty(false);
    let regex = Regex::builder().configure(config).syntax(syntax).build(pattern).ok()?;
    Some(regex.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(properties: &Value, required: &[&str]) -> (Vec<ChatInputQuestion>, Vec<AnswerRule>) {
        let form = json!({ "properties": properties, "required": required }).to_string();
        serde_json::from_str::<Form>(&form).unwrap().questions()
    }

    fn content_of(rules: &[AnswerRule], answers: &Value) -> Result<Value, String> {
        let answers = answers.as_object().unwrap().iter().map(|(id, value)| {
            let kind = match value {
                Value::Number(_) => "number",
                Value::Bool(_) => "boolean",
                Value::Array(_) => "selected-many",
                Value::String(text) if text.starts_with('=') => "selected",
                _ => "text",
            };
            let value = value.as_str().map_or(value.clone(), |text| json!(text.trim_start_matches('=')));
            let answer = json!({ "state": "submitted", "value": { "kind": kind, "value": value } });
            (id.clone(), serde_json::from_value(answer).unwrap())
        });
        content(rules, &answers.collect()).map(Value::Object)
    }

    #[test]
    fn answer_that_the_schema_does_not_allow_is_refused_with_the_reason() {
        let properties = json!({
            "name": { "type": "string", "minLength": 2, "maxLength": 4, "pattern": "^\\w+$" },
            "mail": { "type": "string", "format": "email" },
            "page": { "type": "string", "format": "uri" },
            "day": { "type": "string", "format": "date" },
            "when": { "type": "string", "format": "date-time" },
            "count": { "type": "integer", "minimum": 1, "maximum": 5 },
            "ratio": { "type": "number", "minimum": 0.5 },
            "size": { "type": "string", "enum": ["s", "l"] },
            "tags": { "type": "array", "minItems": 1, "maxItems": 2, "items": { "enum": ["x", "y", "z"] } },
        });
        let (_, rules) = form(&properties, &["name"]);
        let good = json!({ "name": "abc", "mail": "a@b", "page": "x:y", "day": "2026-02-03",
            "when": "2026-02-03T04:05:06Z", "count": 3, "ratio": 0.5, "size": "=s", "tags": ["x", "y"] });
        let mut content = good.clone();
        content["size"] = "s".into();
        assert_eq!(content_of(&rules, &good), Ok(content));
        // What need not be answered may be empty.
        let few = json!({ "name": "abc", "mail": "", "tags": [] });
        assert_eq!(content_of(&rules, &few), Ok(json!({ "name": "abc" })));
        for (id, value, why) in [
            ("name", json!("a"), "must have a length of at least 2"),
            ("name", json!("abcde"), "must have a length of at most 4"),
            ("name", json!("a b"), "must match `^\\w+$`"),
            ("mail", json!("nobody"), "must be of the form `email`"),
            ("page", json!("no page"), "must be of the form `uri`"),
            ("day", json!("today"), "must be of the form `date`"),
            ("when", json!("2026-02-03"), "must be of the form `date-time`"),
            ("count", json!(0), "must be at least 1"),
            ("count", json!(6), "must be at most 5"),
            ("count", json!(1.5), "must be a whole number"),
            ("ratio", json!(0.25), "must be at least 0.5"),
            ("size", json!("=m"), "must be one of s, l"),
            ("tags", json!(["x", "q"]), "must be among x, y, z"),
            ("tags", json!(["x", "y", "z"]), "must have a number of choices of at most 2"),
            ("count", json!("many"), "is of another kind than the question"),
        ] {
            let mut answers = good.clone();
            answers[id] = value;
            assert_eq!(content_of(&rules, &answers), Err(format!("The answer to `{id}` {why}.")));
        }
        assert_eq!(content_of(&rules, &json!({})), Err("`name` must be answered.".to_owned()));
    }

    #[test]
    fn pattern_that_is_not_understood_refuses_nothing() {
        for pattern in ["(?=x)y", "[", r"\p{Greek}", "(a{1000}){1000}"] {
            assert_eq!(matches(pattern, "text"), None, "{pattern}");
        }
        assert_eq!((matches("^ä+$", "ää"), matches("^ä$", "a")), (Some(true), Some(false)));
    }

    #[test]
    fn field_of_unknown_kind_is_asked_for_as_text() {
        let properties = json!({
            "place": { "type": "object", "title": "Place", "properties": { "x": { "type": "number" } } },
            "either": { "type": ["string", "null"], "description": "This or that" },
            "list": { "type": "array", "items": { "type": "string" } },
            "level": { "type": "integer", "enum": [1, 2], "minimum": "low" },
            "odd": 7,
        });
        let (questions, rules) = form(&properties, &["place"]);
        assert_eq!(questions.len(), 5);
        let first = serde_json::to_value(&questions[0]).unwrap();
        let message = r#"Place (as JSON, or as plain text)

{"type":"object","title":"Place","properties":{"x":{"type":"number"}}}"#;
        assert_eq!(first, json!({ "kind": "text", "id": "place", "message": message, "required": true }));
        assert!(questions.iter().all(|question| matches!(question, ChatInputQuestion::Text(_))));
        let answers =
            json!({ "place": "{\"x\": 1}", "either": "this", "list": "[\"a\"]", "level": "2", "odd": "" });
        let content = json!({ "place": { "x": 1 }, "either": "this", "list": ["a"], "level": 2 });
        assert_eq!(content_of(&rules, &answers), Ok(content));
    }
}
