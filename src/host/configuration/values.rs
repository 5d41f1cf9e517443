//! Validation of configuration values against a schema.
//!
//! Owns: checking values, and filling in the defaults of the schema.
//! Never: stores or changes a configuration.

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentInfo, ModelSelection, RootConfigState, SessionConfigPropertySchema, SessionConfigSchema,
    SessionConfigState, SessionModelInfo,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::host::effects::{named_model, AgentDescription};
use crate::host::refusal::Refusal;

/// Returns the configuration of a session as clients see it, with defaults; `None` if the session
/// has no settings and will never have any.
pub(crate) fn shown(
    schema: &SessionConfigSchema,
    chosen: &JsonObject,
    may_change: bool,
) -> Option<SessionConfigState> {
    let is_something = !schema.properties.is_empty() || may_change;
    is_something.then(|| SessionConfigState { schema: schema.clone(), values: resolved(schema, chosen) })
}

/// Returns the chosen values, with the defaults of all others.
pub(crate) fn resolved(schema: &SessionConfigSchema, chosen: &JsonObject) -> JsonObject {
    let default = |(name, property): (&String, &SessionConfigPropertySchema)| {
        Some((name.clone(), property.default.clone()?))
    };
    let mut values: JsonObject = schema.properties.iter().filter_map(default).collect();
    values.extend(chosen.iter().map(|(name, value)| (name.clone(), value.clone())));
    values
}

/// Returns the values that the agent supports, and drops the others: real clients send settings of
/// their own with every session, whatever the agent, and could create none if that were refused.
pub(crate) fn settings_of(agent: &AgentDescription, mut values: JsonObject) -> JsonObject {
    values.retain(|name, value| {
        let fits = match agent.config.properties.get(name) {
            Some(property) => check(name, &json_of(property), value).is_ok(),
            None => agent.may_have_more_settings && is_json_scalar(value),
        };
        if !fits {
            // The value, which the reason may quote, does not belong in the log.
            let agent = &agent.info.provider;
            tracing::info!(
                agent,
                setting = name,
                "a setting was dropped: it does not fit the agent's schema"
            );
        }
        fits
    });
    values
}

/// Returns whether a value is valid for an unknown setting: a string, a number or a boolean.
fn is_json_scalar(value: &Value) -> bool {
    !(value.is_null() || value.is_array() || value.is_object())
}

/// Checks values against a schema; values may be missing. Fails with the first invalid value, in
/// the order of their names.
fn check_values(schema: &SessionConfigSchema, values: &JsonObject) -> Result<(), Refusal> {
    let mut names: Vec<&String> = values.keys().collect();
    names.sort_unstable();
    for name in names {
        let Some(property) = schema.properties.get(name) else {
            return Err(Refusal::NoSettingOfAgent(format!("config.{name}")));
        };
        if let Some(value) = values.get(name) {
            check(&format!("config.{name}"), &json_of(property), value)?;
        }
    }
    Ok(())
}

/// Checks that no required value of a new session is missing. Fails with the first missing one.
pub(crate) fn check_complete(schema: &SessionConfigSchema, values: &JsonObject) -> Result<(), Refusal> {
    match schema.required.iter().flatten().find(|name| !values.contains_key(*name)) {
        Some(name) => Err(Refusal::Missing(format!("config.{name}"))),
        None => Ok(()),
    }
}

/// Checks values to set, or to replace all others, in an existing session. Fails with the first
/// value that is invalid, missing or fixed for the session.
pub(crate) fn check_change(
    config: &SessionConfigState,
    values: &JsonObject,
    replaces: bool,
) -> Result<(), Refusal> {
    check_values(&config.schema, values)?;
    let mut names: Vec<&String> = values.keys().collect();
    if replaces {
        names.extend(config.values.keys());
        check_complete(&config.schema, values)?;
    }
    names.sort_unstable();
    for name in names {
        let property = config.schema.properties.get(name);
        let may = property.is_some_and(|it| it.session_mutable == Some(true) && it.read_only != Some(true));
        if !may && values.get(name) != config.values.get(name) {
            return Err(Refusal::FixedInSession(format!("config.{name}")));
        }
    }
    Ok(())
}

/// Checks values to set, or to replace all others, in the host's configuration. Values that the
/// schema does not contain may be anything: real clients send settings of their own to every host.
/// Fails with the first value, in the order of their names, that is invalid or read-only.
pub(crate) fn check_root_change(
    config: &RootConfigState,
    values: &JsonObject,
    replaces: bool,
) -> Result<(), Refusal> {
    let mut properties: Vec<_> = config.schema.properties.iter().collect();
    properties.sort_unstable_by_key(|(name, _)| *name);
    for (name, property) in properties {
        let path = format!("config.{name}");
        let value = values.get(name);
        if let Some(value) = value {
            check(&path, &json_of(property), value)?;
        }
        let is_given = value.is_some() || replaces;
        if is_given && property.read_only == Some(true) && value != config.values.get(name) {
            return Err(Refusal::Fixed(path));
        }
    }
    let mut required = config.schema.required.iter().flatten().filter(|_| replaces);
    match required.find(|name| !values.contains_key(*name)) {
        Some(name) => Err(Refusal::Missing(format!("config.{name}"))),
        None => Ok(()),
    }
}

/// Id and name of the placeholder model of an agent whose models are unknown.
const PLACEHOLDER: (&str, &str) = ("default", "Default");

/// Returns the placeholder model of an agent: real clients do not offer an agent without models.
pub(crate) fn placeholder_model(provider: &str) -> SessionModelInfo {
    let (id, name) = PLACEHOLDER;
    named_model(id, provider, name)
}

fn models_are_unknown(agent: &AgentInfo) -> bool {
    matches!(agent.models.as_slice(), [only] if (only.id.as_str(), only.name.as_str()) == PLACEHOLDER)
}

/// Returns whether a selection names the placeholder model, also after real models have replaced
/// it, unless one of them has its id.
pub(crate) fn is_no_choice(agent: &AgentInfo, chosen: &ModelSelection) -> bool {
    let is_real = || agent.models.iter().any(|model| model.id == chosen.id);
    chosen.id == PLACEHOLDER.0 && (models_are_unknown(agent) || !is_real())
}

/// Checks that an agent has this model, and that its settings are valid. An agent whose models are
/// unknown accepts any.
pub(super) fn check_model(agent: &AgentInfo, chosen: &ModelSelection) -> Result<(), Refusal> {
    if models_are_unknown(agent) || is_no_choice(agent, chosen) {
        return Ok(());
    }
    let Some(model) = agent.models.iter().find(|model| model.id == chosen.id) else {
        return Err(Refusal::NoSuchModel { agent: agent.provider.clone(), model: chosen.id.clone() });
    };
    let mut values: Vec<_> = chosen.config.iter().flatten().collect();
    values.sort_unstable_by_key(|(name, _)| *name);
    values.into_iter().try_for_each(|(name, value)| {
        let property = model.config_schema.as_ref().and_then(|schema| schema.properties.get(name));
        let property = property.ok_or_else(|| Refusal::NoSettingOfModel(format!("model.config.{name}")))?;
        check(&format!("model.config.{name}"), &json_of(property), value)
    })
}

/// Returns a schema as JSON: the protocol has several types for equivalent schemas.
fn json_of(schema: &impl Serialize) -> Value {
    serde_json::to_value(schema).unwrap_or_default()
}

fn check(path: &str, schema: &Value, value: &Value) -> Result<(), Refusal> {
    let kind = schema["type"].as_str().unwrap_or_default();
    let fits = match kind {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !fits {
        return Err(unfit(path, format!("must be of type {kind}, not {}", type_name(value))));
    }
    // A dynamic list is only a sample of the allowed values.
    let allowed = schema["enum"].as_array().filter(|_| schema["enumDynamic"] != true);
    if let Some(allowed) = allowed.filter(|allowed| !allowed.contains(value)) {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        return Err(unfit(path, format!("must be one of {}, not {value}", allowed.join(", "))));
    }
    match value {
        Value::Array(items) => check_items(path, schema, items),
        Value::Object(members) => check_members(path, schema, members),
        _ => Ok(()),
    }
}

fn check_items(path: &str, schema: &Value, items: &[Value]) -> Result<(), Refusal> {
    let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let min = schema["minItems"].as_i64().unwrap_or(0);
    let max = schema["maxItems"].as_i64();
    if count < min || max.is_some_and(|max| count > max) {
        let wanted = max.map_or(format!("at least {min}"), |max| format!("{min} to {max}"));
        return Err(unfit(path, format!("has {count} items, not {wanted}")));
    }
    let Some(schema) = schema.get("items") else { return Ok(()) };
    items.iter().enumerate().try_for_each(|(at, item)| check(&format!("{path}[{at}]"), schema, item))
}

fn check_members(path: &str, schema: &Value, members: &Map<String, Value>) -> Result<(), Refusal> {
    let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = required.find(|name| !members.contains_key(*name)) {
        return Err(Refusal::Missing(format!("{path}.{name}")));
    }
    members.iter().try_for_each(|(name, member)| {
        let schema = schema["properties"].get(name).or(schema.get("additionalProperties"));
        schema.map_or(Ok(()), |schema| check(&format!("{path}.{name}"), schema, member))
    })
}

fn unfit(path: &str, why: String) -> Refusal {
    Refusal::Value { path: path.to_owned(), why }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(property: &Value, value: Value) -> Option<String> {
        let mut property = property.clone();
        property["title"] = json!("");
        let schema = json!({ "type": "object", "properties": { "x": property } });
        let schema = serde_json::from_value(schema).unwrap();
        check_values(&schema, &JsonObject::from_iter([("x".to_owned(), value)]))
            .err()
            .map(|why| why.to_string())
    }

    #[test]
    fn values_must_match_their_schema() {
        let list = json!({
            "type": "array", "minItems": 1, "maxItems": 2,
            "items": { "type": "string", "title": "", "enum": ["a", "b"] },
        });
        assert_eq!(problem(&list, json!(["a", "b"])), None);
        assert_eq!(
            problem(&list, json!("a")),
            Some("`config.x` must be of type array, not string".to_owned())
        );
        for (items, count) in [(json!([]), 0), (json!(["a", "a", "a"]), 3)] {
            let expected = format!("`config.x` has {count} items, not 1 to 2");
            assert_eq!(problem(&list, items), Some(expected));
        }
        let expected = "`config.x[1]` must be one of \"a\", \"b\", not \"c\"";
        assert_eq!(problem(&list, json!(["a", "c"])), Some(expected.to_owned()));
        let object = json!({
            "type": "object", "required": ["n"], "properties": { "n": { "type": "integer", "title": "" } },
            "additionalProperties": { "type": "boolean", "title": "" },
        });
        assert_eq!(problem(&object, json!({ "n": 1, "more": true })), None);
        assert_eq!(problem(&object, json!({})), Some("missing field `config.x.n`".to_owned()));
        let expected = "`config.x.n` must be of type integer, not number";
        assert_eq!(problem(&object, json!({ "n": 1.5 })), Some(expected.to_owned()));
        let expected = "`config.x.more` must be of type boolean, not null";
        assert_eq!(problem(&object, json!({ "n": 1, "more": null })), Some(expected.to_owned()));
    }

    #[test]
    fn the_hosts_values_fit_its_schema_and_others_are_anything() {
        let level = json!({ "type": "string", "title": "", "enum": ["low", "high"] });
        let fixed = json!({ "type": "boolean", "title": "", "readOnly": true });
        let config: RootConfigState = serde_json::from_value(json!({
            "schema": {
                "type": "object", "properties": { "level": level, "fixed": fixed }, "required": ["level"],
            },
            "values": { "level": "low", "fixed": true, "theirs": 1 },
        }))
        .unwrap();
        let problem = |values: Value, replaces| {
            let refused = check_root_change(&config, values.as_object().unwrap(), replaces).err();
            refused.map(|why| why.to_string()).unwrap_or_default()
        };
        assert_eq!(problem(json!({ "level": "high", "unknown": [null] }), false), "");
        assert_eq!(problem(json!({ "fixed": true }), false), "");
        assert_eq!(problem(json!({ "level": "high", "fixed": true }), true), "");
        assert!(problem(json!({ "level": "middle", "unknown": 1 }), false).starts_with("`config.level`"));
        assert_eq!(problem(json!({ "fixed": false }), false), "`config.fixed` cannot be changed");
        assert_eq!(problem(json!({ "level": "low" }), true), "`config.fixed` cannot be changed");
        assert_eq!(problem(json!({ "fixed": true }), true), "missing field `config.level`");
    }

    #[test]
    fn list_beyond_the_limit_allows_unlisted_values() {
        let listed = json!({ "type": "string", "enum": ["a"] });
        let mut some = listed.clone();
        some["enumDynamic"] = json!(true);
        assert!(problem(&listed, json!("b")).is_some());
        assert_eq!(problem(&some, json!("b")), None);
    }
}
