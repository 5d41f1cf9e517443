//! Forms that agents let the user fill in: flat objects, described by a JSON schema.
//!
//! Owns: the question for each field, in their order, and checking answers against the schema.
//! Never: refuses a form for a field of an unknown kind: such a field is requested as a text.

use std::collections::BTreeMap;

use ahp_types::state::{
    ChatInputAnswer, ChatInputAnswerValue, ChatInputOption, ChatInputQuestion, ChatInputTextQuestion,
};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use serde::Deserialize;
use serde_json::{json, Map, Value};

const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Suffix of the question for a field that is requested as a text.
const AS_JSON: &str = "(as JSON, or as plain text)";

/// Form as sent by the agent. The schema crate's type is not used because it loses the order of
/// fields.
#[derive(Debug, Deserialize)]
pub(super) struct Form {
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    #[serde(default)]
    properties: Map<String, Value>,
    required: Option<Vec<String>>,
}

/// Field of any known type, with the members of all types. Schemas are flat and small.
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

impl Form {
    pub(super) fn questions(self) -> Vec<AskedField> {
        let required = self.required.unwrap_or_default();
        let question = |(id, schema): (String, Value)| {
            let is_required = required.contains(&id);
            let known = Field::deserialize(&schema).ok();
            let known = known.and_then(|field| field.question(&id, is_required));
            known.unwrap_or_else(|| question_of_unknown(&id, &schema, is_required))
        };
        self.properties.into_iter().map(question).collect()
    }
}

/// Returns the question for a field of an unknown kind: for a text, with the whole schema shown.
fn question_of_unknown(id: &str, schema: &Value, is_required: bool) -> AskedField {
    let text = |name: &str| schema.get(name).and_then(Value::as_str).map(str::to_owned);
    let (title, message) = words(id, text("title"), text("description"));
    let question = json!({
        "kind": "text", "title": title, "message": format!("{message} {AS_JSON}\n\n{schema}"),
        "defaultValue": schema.get("default").map(Value::to_string),
    });
    AskedField { is_json: true, ..AskedField::new(id, is_required, question) }
}

/// Returns the title and the message of a question. The message must not be empty; a title alone
/// becomes the message, so that it is shown once.
fn words(id: &str, title: Option<String>, description: Option<String>) -> (Option<String>, String) {
    match (title, description) {
        (title, Some(description)) => (title, description),
        (Some(title), None) => (None, title),
        (None, None) => (None, id.to_owned()),
    }
}

impl Field {
    /// Returns the question for the field; `None` if its type is unknown, or if there are no
    /// options to choose from.
    fn question(self, id: &str, is_required: bool) -> Option<AskedField> {
        let choices = if self.r#type == "array" { self.items.unwrap_or_default() } else { self.choices };
        let options = choices.options(self.default.as_ref());
        let default = self.default.unwrap_or_default();
        let mut question = match (self.r#type.as_str(), options) {
            ("string", Some(options)) => {
                json!({ "kind": "single-select", "options": options, "allowFreeformInput": false })
            }
            ("string", None) => json!({
                "kind": "text", "min": self.min_length, "max": self.max_length, "format": self.format,
                "defaultValue": default.as_str(),
            }),
            (kind @ ("number" | "integer"), _) => json!({
                "kind": kind, "min": self.minimum, "max": self.maximum, "defaultValue": default.as_f64(),
            }),
            ("boolean", _) => json!({ "kind": "boolean", "defaultValue": default.as_bool() }),
            ("array", Some(options)) => json!({
                "kind": "multi-select", "options": options, "allowFreeformInput": false,
                "min": self.min_items, "max": self.max_items,
            }),
            _ => return None,
        };
        let (title, mut message) = words(id, self.title, self.description);
        if let Some(pattern) = &self.pattern {
            message.push_str(&format!(" (must match `{pattern}`)"));
        }
        (question["title"], question["message"]) = (json!(title), message.into());
        Some(AskedField { pattern: self.pattern, ..AskedField::new(id, is_required, question) })
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

/// Question, with the conditions for its answer beyond those in the question.
#[derive(Debug, Clone)]
pub(super) struct AskedField {
    id: String,
    is_required: bool,
    pub(super) question: ChatInputQuestion,
    pattern: Option<String>,
    /// Set if the type of the value is unknown: a text that is valid JSON represents that value.
    is_json: bool,
}

impl AskedField {
    pub(super) fn new(id: &str, is_required: bool, mut question: Value) -> Self {
        question["id"] = id.into();
        question["required"] = json!(is_required.then_some(true));
        // A kind that the type does not know is preserved unchanged.
        let question =
            ChatInputQuestion::deserialize(&question).unwrap_or(ChatInputQuestion::Unknown(question));
        Self { id: id.to_owned(), is_required, question, pattern: None, is_json: false }
    }

    /// Returns the value of an answer; `None` if an optional answer is empty.
    fn value(&self, answer: &ChatInputAnswerValue) -> Result<Option<Value>, String> {
        use {ChatInputAnswerValue as Answer, ChatInputQuestion as Asked};
        let ids = |options: &[ChatInputOption]| {
            options.iter().map(|option| option.id.as_str()).collect::<Vec<_>>().join(", ")
        };
        match (&self.question, answer) {
            (Asked::Text(_), Answer::Text(answer)) if self.is_json => {
                let value = || serde_json::from_str(&answer.value).unwrap_or_else(|_| json!(answer.value));
                Ok((self.is_required || !answer.value.is_empty()).then(value))
            }
            (Asked::Text(asked), Answer::Text(answer)) => match self.check_text(&answer.value, asked) {
                Err(_) if answer.value.is_empty() && !self.is_required => Ok(None),
                checked => checked.map(|()| Some(json!(answer.value))),
            },
            (Asked::Number(asked), Answer::Number(answer)) => {
                check_range(answer.value, asked.min, asked.max, "be", "")?;
                Ok(Some(json!(answer.value)))
            }
            (Asked::Integer(asked), Answer::Number(answer)) => {
                check_range(answer.value, asked.min, asked.max, "be", "")?;
                if answer.value.fract() != 0.0 {
                    return Err("must be a whole number".to_owned());
                }
                // The number is whole. `as` saturates at the bounds of the integer.
                #[allow(clippy::cast_possible_truncation)]
                Ok(Some(json!(answer.value as i64)))
            }
            (Asked::Boolean(_), Answer::Boolean(answer)) => Ok(Some(json!(answer.value))),
            (Asked::SingleSelect(asked), Answer::Selected(answer)) => {
                let is_free = asked.allow_freeform_input == Some(true);
                let freely = answer.freeform_values.iter().flatten().find(|_| is_free);
                let chosen = freely.unwrap_or(&answer.value);
                let is_offered = asked.options.iter().any(|option| option.id == *chosen);
                if chosen.is_empty() && !is_offered && !self.is_required {
                    return Ok(None);
                }
                if freely.is_none() && !is_offered {
                    return Err(format!("must be one of {}", ids(&asked.options)));
                }
                Ok(Some(json!(chosen)))
            }
            (Asked::MultiSelect(asked), Answer::SelectedMany(answer)) => {
                let is_free = asked.allow_freeform_input == Some(true);
                let freely = answer.freeform_values.iter().flatten().filter(|_| is_free);
                let chosen: Vec<&String> = answer.value.iter().chain(freely).collect();
                if chosen.is_empty() && !self.is_required {
                    return Ok(None);
                }
                if !answer.value.iter().all(|it| asked.options.iter().any(|option| option.id == *it)) {
                    return Err(format!("must be among {}", ids(&asked.options)));
                }
                let (min, max) = (bound(asked.min), bound(asked.max));
                check_range(chosen.len() as f64, min, max, "have", " choices")?;
                Ok(Some(json!(chosen)))
            }
            _ => Err("does not match the kind of the question".to_owned()),
        }
    }

    fn check_text(&self, text: &str, asked: &ChatInputTextQuestion) -> Result<(), String> {
        let length = text.chars().count() as f64;
        check_range(length, bound(asked.min), bound(asked.max), "have", " characters")?;
        if let Some(pattern) = self.pattern.as_ref().filter(|it| matches(it, text) == Some(false)) {
            return Err(format!("must match `{pattern}`"));
        }
        let format = asked.format.as_deref().unwrap_or_default();
        let is_so = match format {
            "email" => text.split_once('@').is_some_and(|(name, host)| {
                !name.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace)
            }),
            "uri" => text.split_once(':').is_some_and(|(scheme, rest)| {
                let fits = |char: char| char.is_ascii_alphanumeric() || "+-.".contains(char);
                scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                    && scheme.chars().all(fits)
                    && !rest.is_empty()
            }),
            "date" => text.parse::<jiff::civil::Date>().is_ok(),
            "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
            _ => true,
        };
        if is_so {
            return Ok(());
        }
        Err(format!("must have the format `{format}`"))
    }
}

fn bound(bound: Option<i64>) -> Option<f64> {
    bound.map(|bound| bound as f64)
}

/// Returns the answers in the form that the agent receives. Fails with the invalid answers, for
/// people.
pub(super) fn content(
    fields: &[AskedField],
    answers: &BTreeMap<String, ChatInputAnswer>,
) -> Result<Map<String, Value>, String> {
    let (mut content, mut wrong) = (Map::new(), Vec::new());
    for field in fields {
        let id = &field.id;
        let answer = match answers.get(id) {
            Some(ChatInputAnswer::Submitted(answer)) => field.value(&answer.value),
            _ => Ok(None),
        };
        match answer {
            Ok(Some(value)) => drop(content.insert(id.clone(), value)),
            Ok(None) if field.is_required => wrong.push(format!("`{id}` must be answered.")),
            Ok(None) => {}
            Err(why) => wrong.push(format!("The answer to `{id}` {why}.")),
        }
    }
    if wrong.is_empty() {
        return Ok(content);
    }
    Err(wrong.join("\n"))
}

/// Checks that a number lies within bounds; `verb` and `unit` describe the number, for people.
fn check_range(
    number: f64,
    min: Option<f64>,
    max: Option<f64>,
    verb: &str,
    unit: &str,
) -> Result<(), String> {
    match (min, max) {
        (Some(min), _) if number < min => Err(format!("must {verb} at least {min}{unit}")),
        (_, Some(max)) if number > max => Err(format!("must {verb} at most {max}{unit}")),
        _ => Ok(()),
    }
}

/// Returns whether a text contains a match of a pattern; `None` if the pattern is not supported,
/// since patterns of JSON schemas may be impossible to match in linear time.
fn matches(pattern: &str, text: &str) -> Option<bool> {
    // Patterns that name a property of Unicode, which needs tables, are not supported.
    if pattern.contains(r"\p") || pattern.contains(r"\P") {
        return None;
    }
    let config = Regex::config().nfa_size_limit(Some(PATTERN_BYTES_MAX)).utf8_empty(false);
    // Without tables, a pattern with `\w` or `\d` is matched on bytes, and means those of ASCII.
    let regex = [true, false].into_iter().find_map(|unicode| {
        let syntax = syntax::Config::new().unicode(unicode).utf8(false);
        Regex::builder().configure(config.clone()).syntax(syntax).build(pattern).ok()
    })?;
    Some(regex.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(properties: &Value, required: &[&str]) -> Vec<AskedField> {
        let form = json!({ "properties": properties, "required": required }).to_string();
        serde_json::from_str::<Form>(&form).unwrap().questions()
    }

    fn content_of(fields: &[AskedField], answers: &Value) -> Result<Value, String> {
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
        content(fields, &answers.collect()).map(Value::Object)
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
        let fields = form(&properties, &["name"]);
        let good = json!({ "name": "abc", "mail": "a@b", "page": "x:y", "day": "2026-02-03",
            "when": "2026-02-03T04:05:06Z", "count": 3, "ratio": 0.5, "size": "=s", "tags": ["x", "y"] });
        let mut content = good.clone();
        content["size"] = "s".into();
        assert_eq!(content_of(&fields, &good), Ok(content));
        // What need not be answered may be empty.
        let few = json!({ "name": "abc", "mail": "", "tags": [] });
        assert_eq!(content_of(&fields, &few), Ok(json!({ "name": "abc" })));
        for (id, value, why) in [
            ("name", json!("a"), "must have at least 2 characters"),
            ("name", json!("abcde"), "must have at most 4 characters"),
            ("name", json!("a b"), "must match `^\\w+$`"),
            ("mail", json!("nobody"), "must have the format `email`"),
            ("page", json!("no page"), "must have the format `uri`"),
            ("day", json!("today"), "must have the format `date`"),
            ("when", json!("2026-02-03"), "must have the format `date-time`"),
            ("count", json!(0), "must be at least 1"),
            ("count", json!(6), "must be at most 5"),
            ("count", json!(1.5), "must be a whole number"),
            ("ratio", json!(0.25), "must be at least 0.5"),
            ("size", json!("=m"), "must be one of s, l"),
            ("tags", json!(["x", "q"]), "must be among x, y, z"),
            ("tags", json!(["x", "y", "z"]), "must have at most 2 choices"),
            ("count", json!("many"), "does not match the kind of the question"),
        ] {
            let mut answers = good.clone();
            answers[id] = value;
            assert_eq!(content_of(&fields, &answers), Err(format!("The answer to `{id}` {why}.")));
        }
        assert_eq!(content_of(&fields, &json!({})), Err("`name` must be answered.".to_owned()));
    }

    #[test]
    fn choice_that_is_left_empty_is_no_answer_unless_it_is_required_or_offered() {
        let properties = json!({ "size": { "type": "string", "enum": ["s", "l"] } });
        let empty = json!({ "size": "=" });
        assert_eq!(content_of(&form(&properties, &[]), &empty), Ok(json!({})));
        let refused = "The answer to `size` must be one of s, l.".to_owned();
        assert_eq!(content_of(&form(&properties, &["size"]), &empty), Err(refused));
        let properties = json!({ "size": { "type": "string", "enum": ["", "l"] } });
        assert_eq!(content_of(&form(&properties, &[]), &empty), Ok(json!({ "size": "" })));
    }

    #[test]
    fn pattern_that_is_not_understood_refuses_nothing() {
        for pattern in ["(?=x)y", "[", r"\p{Greek}", "(a{1000}){1000}"] {
            assert_eq!(matches(pattern, "text"), None, "{pattern}");
        }
        assert_eq!((matches("^ä+$", "ää"), matches("^ä$", "a")), (Some(true), Some(false)));
    }

    #[test]
    fn dot_of_a_pattern_is_a_character_and_not_a_byte() {
        for (pattern, text, expected) in
            [("^.{3}$", "äöü", true), ("^[^x]$", "ä", true), ("^.{3}$", "ä", false), (r"^\w+$", "a_1", true)]
        {
            assert_eq!(matches(pattern, text), Some(expected), "{pattern}");
        }
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
        let fields = form(&properties, &["place"]);
        assert_eq!(fields.len(), 5);
        let first = serde_json::to_value(&fields[0].question).unwrap();
        let message = r#"Place (as JSON, or as plain text)

{"type":"object","title":"Place","properties":{"x":{"type":"number"}}}"#;
        assert_eq!(first, json!({ "kind": "text", "id": "place", "message": message, "required": true }));
        assert!(fields.iter().all(|field| matches!(field.question, ChatInputQuestion::Text(_))));
        let answers =
            json!({ "place": "{\"x\": 1}", "either": "this", "list": "[\"a\"]", "level": "2", "odd": "" });
        let content = json!({ "place": { "x": 1 }, "either": "this", "list": ["a"], "level": 2 });
        assert_eq!(content_of(&fields, &answers), Ok(content));
    }
}
