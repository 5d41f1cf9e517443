//! Settings of an ACP session: its options, and the modes and models of older agents, merged to one
//! setting per meaning.
//!
//! Owns: parsing settings from agents' messages, their schema for clients, and the requests that
//! change them.
//! Never: sends a request, or changes a value that the agent has neither reported nor accepted.

use ahp_types::common::JsonObject;
use ahp_types::state::{
    SessionConfigPropertySchema, SessionConfigSchema, SessionConfigState, SessionModelInfo,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};

use crate::host::effects::named_model;
use crate::wire::text;

/// Maximum number of settings per session, and of values per setting.
const SETTINGS_MAX: usize = 100;
const VALUES_MAX: usize = 1000;

/// Maximum length of a setting's id or value, in bytes. Truncated ones could not be sent back.
const NAME_BYTES_MAX: usize = 4096;

/// Ids of the mode and the model, for agents that have no ids for them.
pub const MODE: &str = "mode";
const MODEL: &str = "model";

/// Modes of Claude, Codex, Copilot, Gemini and Qwen Code in which they act without asking the user:
/// the alphanumeric characters of the ids, in lower case.
const UNASKED_MODES: [&str; 10] = [
    "acceptedits",
    "agentfullaccess",
    "auto",
    "autoedit",
    "autopilot",
    "bypasspermissions",
    "dangerfullaccess",
    "dontask",
    "fullaccess",
    "yolo",
];

/// Returns whether agents act without asking the user in a mode of this id.
pub fn is_unasked_mode(id: &str) -> bool {
    // Some ids are URLs.
    let name = id.rsplit(['#', '/']).next().unwrap_or(id);
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    UNASKED_MODES.contains(&letters.to_ascii_lowercase().as_str())
}

/// Explains, in a sentence, why an option does not have the requested value; `None` if it has it.
pub fn misfit(config: &SessionConfigState, id: &str, value: &Value) -> Option<String> {
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    let now = config.values.get(id);
    if now == Some(value) {
        return None;
    }
    let (Some(property), Some(now)) = (config.schema.properties.get(id), now) else {
        let known = list(&mut config.values.keys().map(|id| format!("`{id}`")));
        let known = if known.is_empty() { "none".to_owned() } else { known };
        return Some(format!("the agent has no option `{id}`; its options: {known}"));
    };
    let values = match &property.r#enum {
        Some(values) if !values.contains(value) => list(&mut values.iter().map(Value::to_string)),
        None if !value.is_boolean() => "true, false".to_owned(),
        _ => return Some(format!("the agent did not accept `{id}` = {value}; its value is still {now}")),
    };
    Some(format!("the option `{id}` does not allow {value}; allowed: {values}; its value is still {now}"))
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfferedOptions {
    settings: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq)]
struct Setting {
    id: String,
    title: String,
    description: Option<String>,
    category: Option<String>,
    by: ChangedBy,
    /// Possible values; `None` for a boolean.
    values: Option<Vec<SettingChoice>>,
    current: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangedBy {
    Option,
    Mode,
    Model,
}

#[derive(Debug, Clone, PartialEq)]
struct SettingChoice {
    value: String,
    label: String,
    description: Option<String>,
}

/// Settings in the answer that starts or resumes a session.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Setup<'a> {
    #[serde(borrow, default)]
    config_options: Option<&'a RawValue>,
    #[serde(borrow, default)]
    modes: Option<&'a RawValue>,
    #[serde(borrow, default)]
    models: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawOption {
    id: String,
    name: Option<String>,
    description: Option<String>,
    category: Option<String>,
    r#type: String,
    current_value: Value,
    #[serde(default)]
    options: Vec<RawChoice>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawChoice {
    Group { name: String, options: Vec<RawChoice> },
    One { value: String, name: Option<String>, description: Option<String> },
    Unknown(serde::de::IgnoredAny),
}

/// Modes or models of a session.
#[derive(Deserialize)]
struct OlderSetting {
    #[serde(alias = "currentModeId", alias = "currentModelId")]
    current: String,
    #[serde(default, alias = "availableModes", alias = "availableModels")]
    available: Vec<OlderChoice>,
}

#[derive(Deserialize)]
struct OlderChoice {
    #[serde(alias = "modelId")]
    id: String,
    name: Option<String>,
    description: Option<String>,
}

impl OfferedOptions {
    pub fn take_session(&mut self, answer: &RawValue) {
        let Some(Setup { config_options, modes, models }) = read(answer.get()) else { return };
        self.take_older(ChangedBy::Mode, MODE, "Mode", modes);
        self.take_older(ChangedBy::Model, MODEL, "Model", models);
        if let Some(list) = config_options {
            self.take_list(list);
        }
    }

    fn take_older(&mut self, by: ChangedBy, id: &str, title: &str, reported: Option<&RawValue>) {
        let Some(OlderSetting { current, available }) = reported.and_then(|reported| read(reported.get()))
        else {
            return;
        };
        let values = available.into_iter().filter_map(|it| choice(it.id, it.name, it.description, None));
        let values: Vec<SettingChoice> = values.take(VALUES_MAX).collect();
        if !values.is_empty() && self.find(id).is_none() {
            self.settings.push(Setting {
                id: id.to_owned(),
                title: title.to_owned(),
                description: None,
                category: Some(id.to_owned()),
                by,
                values: Some(values),
                current: current.into(),
            });
        }
    }

    /// Replaces the options by the agent's current list. Modes are dropped if there are any
    /// options, since these include the mode; models are dropped if the options include the model.
    pub fn take_list(&mut self, list: &RawValue) {
        let Some(raw) = read::<Vec<&RawValue>>(list.get()) else {
            tracing::debug!("an agent's list of options cannot be read");
            return;
        };
        let read = raw.into_iter().filter_map(|option| setting(read(option.get())?));
        let listed: Vec<Setting> = read.take(SETTINGS_MAX).collect();
        let older = std::mem::take(&mut self.settings).into_iter().filter(|it| match it.by {
            ChangedBy::Option => false,
            ChangedBy::Mode => listed.is_empty(),
            ChangedBy::Model => !listed.iter().any(|it| it.means(MODEL)),
        });
        let older: Vec<Setting> = older.collect();
        for setting in listed.into_iter().chain(older) {
            if !self.settings.iter().any(|known| known.id == setting.id) {
                self.settings.push(setting);
            }
        }
    }

    /// Applies the agent's current mode; ignored if the mode setting does not list it.
    pub fn take_mode(&mut self, mode: &str) {
        let Some(at) = self.place_of(MODE) else { return };
        let setting = &mut self.settings[at];
        if setting.values.iter().flatten().any(|choice| choice.value == mode) {
            setting.current = mode.into();
        }
    }

    /// Returns whether a mode change (`by_mode`) or a list of options reports a setting's value.
    pub fn is_reported(&self, id: &str, by_mode: bool) -> bool {
        self.named(id).is_some_and(|setting| match setting.by {
            ChangedBy::Option => !by_mode || setting.means(MODE),
            ChangedBy::Mode => by_mode,
            ChangedBy::Model => false,
        })
    }

    pub fn take_value(&mut self, id: &str, value: &Value) {
        if let Some(setting) = self.settings.iter_mut().find(|setting| setting.id == id) {
            setting.current = value.clone();
        }
    }

    pub fn model(&self) -> Option<&str> {
        self.find(MODEL).map(|setting| setting.id.as_str())
    }

    pub fn value(&self, id: &str) -> Option<&Value> {
        self.named(id).map(|setting| &setting.current)
    }

    /// Returns whether the agent lists this value for a setting.
    pub fn offers(&self, id: &str, value: &Value) -> bool {
        self.named(id).is_some_and(|setting| match &setting.values {
            Some(values) => values.iter().any(|choice| value.as_str() == Some(&choice.value)),
            None => value.is_boolean(),
        })
    }

    /// Returns the setting ids in the order of changes: the model first, since others depend on it.
    pub fn in_order(&self) -> impl Iterator<Item = &str> {
        let first = self.model();
        let rest = self.settings.iter().map(|setting| setting.id.as_str());
        first.into_iter().chain(rest.filter(move |id| Some(*id) != first))
    }

    /// Returns the method and parameters that set a value; `None` for an unknown setting.
    pub fn request(&self, session: &str, id: &str, value: &Value) -> Option<(&'static str, Value)> {
        let setting = self.named(id)?;
        Some(match setting.by {
            ChangedBy::Mode => ("session/set_mode", json!({ "sessionId": session, "modeId": value })),
            ChangedBy::Model => ("session/set_model", json!({ "sessionId": session, "modelId": value })),
            ChangedBy::Option => {
                let mut params = json!({ "sessionId": session, "configId": id, "value": value });
                if setting.values.is_none() {
                    params["type"] = "boolean".into();
                }
                ("session/set_config_option", params)
            }
        })
    }

    pub fn values(&self) -> JsonObject {
        self.settings.iter().map(|setting| (setting.id.clone(), setting.current.clone())).collect()
    }

    /// Returns the schema of the settings for clients. The defaults are the operator's initial
    /// values in `starting` that the agent offers, else the current values; without `starting`,
    /// there are none.
    pub fn schema(&self, starting: Option<&JsonObject>) -> SessionConfigSchema {
        let default = |it: &Setting| {
            let set = starting?.get(&it.id).filter(|value| self.offers(&it.id, value));
            Some(set.unwrap_or(&it.current).clone())
        };
        let property = |it: &Setting| (it.id.clone(), it.property(default(it)));
        SessionConfigSchema {
            r#type: "object".to_owned(),
            properties: self.settings.iter().map(property).collect(),
            required: None,
        }
    }

    pub fn models(&self, provider: &str) -> Vec<SessionModelInfo> {
        let described = |it: &String| JsonObject::from_iter([("acp.description".to_owned(), json!(it))]);
        let model = |choice: &SettingChoice| SessionModelInfo {
            meta: choice.description.as_ref().map(described),
            ..named_model(&choice.value, provider, &choice.label)
        };
        self.find(MODEL).and_then(|model| model.values.as_ref()).into_iter().flatten().map(model).collect()
    }

    /// Finds the setting of a meaning: the first of that category, else the one with that id.
    fn place_of(&self, meaning: &str) -> Option<usize> {
        let by_category = |it: &Setting| it.values.is_some() && it.category.as_deref() == Some(meaning);
        let by_name = |it: &Setting| it.values.is_some() && it.id == meaning;
        self.settings.iter().position(by_category).or_else(|| self.settings.iter().position(by_name))
    }

    fn find(&self, meaning: &str) -> Option<&Setting> {
        self.place_of(meaning).map(|at| &self.settings[at])
    }

    fn named(&self, id: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.id == id)
    }
}

impl Setting {
    fn means(&self, meaning: &str) -> bool {
        self.values.is_some() && (self.category.as_deref() == Some(meaning) || self.id == meaning)
    }

    fn property(&self, default: Option<Value>) -> SessionConfigPropertySchema {
        // The current value is valid even if the agent does not list it.
        let unlisted = self
            .current
            .as_str()
            .filter(|current| self.values.iter().flatten().all(|choice| choice.value != **current));
        let unlisted = unlisted.map(|value| SettingChoice {
            value: value.to_owned(),
            label: text::message(value),
            description: None,
        });
        let choices = || self.values.iter().flatten().chain(&unlisted);
        let listed = self.values.is_some();
        let described = choices().any(|choice| choice.description.is_some());
        let description = |choice: &SettingChoice| choice.description.clone().unwrap_or_default();
        SessionConfigPropertySchema {
            r#type: if listed { "string" } else { "boolean" }.to_owned(),
            title: self.title.clone(),
            description: self.description.clone(),
            default,
            r#enum: listed.then(|| choices().map(|choice| choice.value.as_str().into()).collect()),
            enum_labels: listed.then(|| choices().map(|choice| choice.label.clone()).collect()),
            enum_descriptions: described.then(|| choices().map(description).collect()),
            read_only: None,
            items: None,
            min_items: None,
            max_items: None,
            properties: None,
            required: None,
            additional_properties: None,
            enum_dynamic: None,
            session_mutable: Some(true),
        }
    }
}

fn read<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    serde_json::from_str(json)
        .inspect_err(|error| tracing::debug!(%error, "an agent's description of its settings is invalid"))
        .ok()
}

/// Converts an option to a setting; `None` for an unknown kind, which keeps the agent's default.
fn setting(raw: RawOption) -> Option<Setting> {
    let values = match (raw.r#type.as_str(), &raw.current_value) {
        ("boolean", Value::Bool(_)) => None,
        ("select", Value::String(_)) => {
            let mut choices = Vec::new();
            flatten(raw.options, None, &mut choices);
            choices.truncate(VALUES_MAX);
            Some(choices)
        }
        _ => return None,
    };
    Some(Setting {
        title: text::message(raw.name.as_ref().unwrap_or(&raw.id)),
        description: raw.description.map(|description| text::message(&description)),
        category: raw.category,
        by: ChangedBy::Option,
        values,
        current: raw.current_value,
        id: Some(raw.id).filter(|id| id.len() <= NAME_BYTES_MAX)?,
    })
}

fn flatten(raw: Vec<RawChoice>, group: Option<&str>, choices: &mut Vec<SettingChoice>) {
    for raw in raw {
        match raw {
            RawChoice::Group { name, options } if group.is_none() => flatten(options, Some(&name), choices),
            RawChoice::One { value, name, description } => {
                choices.extend(choice(value, name, description, group));
            }
            RawChoice::Group { .. } | RawChoice::Unknown(_) => {}
        }
    }
}

fn choice(
    value: String,
    name: Option<String>,
    description: Option<String>,
    group: Option<&str>,
) -> Option<SettingChoice> {
    let name = name.as_ref().unwrap_or(&value);
    let label = match group {
        Some(group) => text::message(&format!("{group}: {name}")),
        None => text::message(name),
    };
    let description = description.map(|description| text::message(&description));
    let description = description.filter(|description| !description.is_empty());
    (value.len() <= NAME_BYTES_MAX).then_some(SettingChoice { value, label, description })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &Value) -> Box<RawValue> {
        RawValue::from_string(json.to_string()).unwrap()
    }

    fn options(answer: &Value) -> OfferedOptions {
        let mut options = OfferedOptions::default();
        options.take_session(&raw(answer));
        options
    }

    fn choice_of(id: &str, category: Option<&str>, current: &str) -> Value {
        json!({ "id": id, "name": id, "category": category, "type": "select", "currentValue": current,
            "options": [{ "value": "a", "name": "A" }, { "value": "b", "name": "B" }] })
    }

    #[test]
    fn a_mode_and_a_model_are_found_by_what_they_are_for() {
        let modes = json!({ "currentModeId": "x", "availableModes": [{ "id": "x", "name": "X" }] });
        let models = json!({ "currentModelId": "y", "availableModels": [{ "modelId": "y", "name": "Y" }] });
        // pi reports its thinking level under `modes`, and has no mode option.
        let list =
            json!([choice_of("llm", Some("model"), "a"), choice_of("thought", Some("thought_level"), "b")]);
        let of_pi = options(&json!({ "modes": modes, "models": models, "configOptions": list }));
        assert_eq!(of_pi.in_order().collect::<Vec<_>>(), ["llm", "thought"]);
        assert_eq!(of_pi.model(), Some("llm"));
        // Only a model that is not among the options has a setting of its own.
        let list = json!([choice_of("effort", None, "a")]);
        let mixed = options(&json!({ "modes": modes, "models": models, "configOptions": list }));
        assert_eq!(mixed.in_order().collect::<Vec<_>>(), ["model", "effort"]);
        let (method, params) = mixed.request("s", "model", &json!("y")).unwrap();
        assert_eq!((method, params), ("session/set_model", json!({ "sessionId": "s", "modelId": "y" })));
        let older = options(&json!({ "modes": modes, "models": models, "configOptions": [] }));
        assert_eq!(older.in_order().collect::<Vec<_>>(), ["model", "mode"]);
    }

    #[test]
    fn a_value_that_is_not_listed_can_be_shown() {
        let options = options(&json!({ "configOptions": [choice_of("model", None, "mine")] }));
        let property = &options.schema(None).properties["model"];
        assert_eq!(property.r#enum, Some(vec!["a".into(), "b".into(), "mine".into()]));
        assert_eq!(property.enum_labels.as_ref().unwrap().last().unwrap(), "mine");
        assert_eq!(options.models("p").len(), 2);
    }

    #[test]
    fn starting_value_is_the_default_where_the_agent_has_it() {
        let options = options(
            &json!({ "configOptions": [choice_of("mode", None, "a"), choice_of("effort", None, "a")] }),
        );
        let starting =
            JsonObject::from_iter([("mode".to_owned(), json!("b")), ("effort".to_owned(), json!("c"))]);
        let default = |id: &str| options.schema(Some(&starting)).properties[id].default.clone();
        assert_eq!((default("mode"), default("effort")), (Some(json!("b")), Some(json!("a"))));
        let now = SessionConfigState { schema: options.schema(None), values: options.values() };
        assert_eq!(misfit(&now, "mode", &json!("a")), None);
        for (id, value, sentence) in [
            (
                "mode",
                json!("c"),
                "the option `mode` does not allow \"c\"; allowed: \"a\", \"b\"; its value is still \"a\"",
            ),
            ("mode", json!("b"), "the agent did not accept `mode` = \"b\"; its value is still \"a\""),
            ("speed", json!(true), "the agent has no option `speed`; its options: `mode`, `effort`"),
        ] {
            assert_eq!(misfit(&now, id, &value).as_deref(), Some(sentence));
        }
    }

    #[test]
    fn modes_that_do_not_ask_are_known_by_their_ids() {
        for id in [
            "acceptEdits",
            "bypassPermissions",
            "auto",
            "auto-edit",
            "YOLO",
            "agent-full-access",
            "https://example.org/session-modes#autopilot",
        ] {
            assert!(is_unasked_mode(id), "{id}");
        }
        for id in ["default", "plan", "read-only", "build", "https://example.org/auto#agent", ""] {
            assert!(!is_unasked_mode(id), "{id}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_left_out() {
        let mut options = options(&json!({ "configOptions": [
            choice_of("mode", None, "a"), choice_of("mode", None, "b"), 7, { "id": "x" },
            { "id": "dial", "name": "", "type": "dial", "currentValue": 1 },
            { "id": "odd", "name": "", "type": "boolean", "currentValue": "yes" },
        ] }));
        assert_eq!(options.values(), JsonObject::from_iter([("mode".to_owned(), json!("a"))]));
        options.take_mode("nowhere");
        assert_eq!(options.value("mode"), Some(&json!("a")));
        options.take_list(&raw(&json!({ "not": "a list" })));
        options.take_mode("b");
        assert_eq!(options.value("mode"), Some(&json!("b")));
        let none = super::OfferedOptions::default();
        assert_eq!(none.request("s", "mode", &json!("a")), None);
        let many: Vec<Value> = (0..150).map(|at| choice_of(&at.to_string(), None, "a")).collect();
        options.take_list(&raw(&json!(many)));
        assert_eq!(options.values().len(), SETTINGS_MAX);
    }
}
