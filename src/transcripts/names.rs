//! Names in a transcript, which stand for values that differ from run to run.
//!
//! `${id-1}` stands for one value: the host sends it first, and later lines have it again.
//! `${time}`, without a number, stands for any value of its kind, `${$}` for a dollar sign. A text
//! that is one name may stand for a value that is no text.
//!
//! Owns: how a name is written, the values of names, and comparing values by them.
//! Never: chooses what gets a name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use serde_json::{Map, Number, Value};

use super::differences::FieldDifference;
use crate::files::uris::{path_of, uri_of};

/// Beginning of each name.
pub(super) const NAME_START: &str = "${";

/// Name of the dollar sign, so that a text can contain the beginning of a name.
pub(super) const DOLLAR: &str = "${$}";

/// Name of any point in time.
pub(super) const TIME: &str = "${time}";

/// Beginning of a URI whose path is encoded.
pub(super) const FILE_URI: &str = "file://";

/// Maximum number of keys that one comparison tries for those with names.
const CHOICES_MAX: usize = 10_000;

/// Part of a text.
#[derive(Debug, PartialEq, Eq)]
enum TextPart {
    Literal(String),
    Name(String),
}

/// Splits a text at its names.
fn parts_of(text: &str) -> Vec<TextPart> {
    let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
    while let Some((before, after)) = rest.split_once(NAME_START) {
        literal += before;
        let is_of_names = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
        match after.split_once('}') {
            Some(("$", after)) => {
                literal.push('$');
                rest = after;
            }
            Some((name, after)) if !name.is_empty() && name.chars().all(is_of_names) => {
                if !literal.is_empty() {
                    parts.push(TextPart::Literal(std::mem::take(&mut literal)));
                }
                parts.push(TextPart::Name(name.to_owned()));
                rest = after;
            }
            _ => {
                literal += NAME_START;
                rest = after;
            }
        }
    }
    literal += rest;
    if !literal.is_empty() {
        parts.push(TextPart::Literal(literal));
    }
    parts
}

/// Returns the kind and the number of a name that stands for one value; `None` for a name that
/// stands for any value.
pub(super) fn numbered(name: &str) -> Option<(&str, usize)> {
    let (kind, number) = name.rsplit_once('-')?;
    Some((kind, number.parse().ok()?))
}

/// Returns the numbered names in a text.
pub(super) fn numbered_names(text: &str) -> impl Iterator<Item = String> {
    parts_of(text).into_iter().filter_map(|part| match part {
        TextPart::Name(name) if numbered(&name).is_some() => Some(name),
        _ => None,
    })
}

/// Returns whether a text is a point in time.
pub(super) fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.parse::<jiff::Timestamp>().is_ok()
}

/// Values of names.
#[derive(Debug, Clone, Default)]
pub(super) struct NameTable {
    values: BTreeMap<String, Value>,
}

/// Result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Differences, in the order of the expected value.
    pub(super) fields: Vec<FieldDifference>,
    /// Values for names that had none.
    bound: Vec<(String, Value)>,
}

impl NameTable {
    /// Gives a name its value.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_owned(), value);
    }

    /// Gives names the values that a comparison has found.
    pub(super) fn bind(&mut self, compared: Compared) {
        for (name, value) in compared.bound {
            self.values.entry(name).or_insert(value);
        }
    }

    /// Returns the names with their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Compares a received value with the written one.
    pub(super) fn compare(&self, expected: &Value, received: &Value) -> Compared {
        let mut comparing = Comparing::new(Some(self));
        comparing.values(expected, received);
        comparing.compared
    }

    /// Replaces the names in a line of the client by their values. A folder that has no value yet
    /// is created below `folders`; a token that has none is called by its own name.
    ///
    /// # Errors
    /// When a name has no value.
    pub(super) fn fill(&mut self, line: &str, folders: &Path) -> anyhow::Result<String> {
        if !line.contains(NAME_START) {
            return Ok(line.to_owned());
        }
        let body = line.trim_end_matches(['\r', '\n']);
        let Ok(mut message) = serde_json::from_str::<Value>(body) else {
            return Ok(text_of(&self.filled(line, folders)?));
        };
        self.fill_value(&mut message, folders)?;
        Ok(message.to_string() + &line[body.len()..])
    }

    /// Replaces the names in bytes of the client by their values.
    ///
    /// # Errors
    /// When a name has no value.
    pub(super) fn fill_bytes(&mut self, bytes: &[u8], folders: &Path) -> anyhow::Result<Vec<u8>> {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return Ok(self.fill(text, folders)?.into_bytes());
        }
        let mut filled = Vec::new();
        for chunk in bytes.utf8_chunks() {
            filled.extend(text_of(&self.filled(chunk.valid(), folders)?).into_bytes());
            filled.extend(chunk.invalid());
        }
        Ok(filled)
    }

    fn fill_value(&mut self, value: &mut Value, folders: &Path) -> anyhow::Result<()> {
        match value {
            Value::String(text) if text.contains(NAME_START) => *value = self.filled(text, folders)?,
            Value::Array(items) => {
                for item in items {
                    self.fill_value(item, folders)?;
                }
            }
            Value::Object(members) => {
                let mut filled = Map::new();
                for (key, mut value) in std::mem::take(members) {
                    self.fill_value(&mut value, folders)?;
                    filled.insert(text_of(&self.filled(&key, folders)?), value);
                }
                *members = filled;
            }
            _ => {}
        }
        Ok(())
    }

    fn filled(&mut self, text: &str, folders: &Path) -> anyhow::Result<Value> {
        let parts = parts_of(text);
        if let [TextPart::Name(name)] = parts.as_slice() {
            return self.value_of(name, folders);
        }
        let mut filled = String::new();
        for part in parts {
            match part {
                TextPart::Literal(literal) => filled += &literal,
                TextPart::Name(name) => {
                    let value = self.value_of(&name, folders)?;
                    filled += &in_text(&value, filled.ends_with(FILE_URI));
                }
            }
        }
        Ok(filled.into())
    }

    fn value_of(&mut self, name: &str, folders: &Path) -> anyhow::Result<Value> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        let value = match numbered(name) {
            Some(("folder", _)) => {
                let folder = folders.join(name);
                fs::create_dir_all(&folder)
                    .with_context(|| format!("`{}` cannot be created", folder.display()))?;
                Value::from(folder.display().to_string())
            }
            Some(("token", _)) => name.into(),
            _ => bail!("`{NAME_START}{name}}}` has no value: no line of the host before has it"),
        };
        self.set(name, value.clone());
        Ok(value)
    }
}

/// Returns a value as part of a text.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns a value as part of a text; a path is encoded in a URI.
fn in_text(value: &Value, in_uri: bool) -> String {
    let text = text_of(value);
    let uri = in_uri.then(|| uri_of(Path::new(&text)));
    uri.and_then(|uri| uri.strip_prefix(FILE_URI).map(str::to_owned)).unwrap_or(text)
}

/// Returns the value of a part of a text; a path is decoded from a URI.
fn from_text(text: &str, in_uri: bool) -> Value {
    let path = in_uri.then(|| path_of(&format!("{FILE_URI}{text}")).ok()).flatten();
    path.map_or_else(|| text.to_owned(), |path: PathBuf| path.display().to_string()).into()
}

/// Returns whether two numbers are the same, however they are written. Whole numbers of up to 64
/// bits are exact, also beyond those that a floating-point number can hold.
fn are_equal(some: &Number, other: &Number) -> bool {
    let whole = |number: &Number| number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    match (whole(some), whole(other)) {
        (Some(some), Some(other)) => some == other,
        _ => some.as_f64() == other.as_f64(),
    }
}

/// Compares a received value with a written one that has no names.
pub(super) fn compare_literally(expected: &Value, received: &Value) -> Vec<FieldDifference> {
    let mut comparing = Comparing::new(None);
    comparing.values(expected, received);
    comparing.compared.fields
}

/// Comparison in progress.
struct Comparing<'a> {
    /// Values of names; `None` if nothing is a name.
    names: Option<&'a NameTable>,
    compared: Compared,
    /// Path of the compared values, such as `params.action.type`.
    path: String,
    /// Number of keys that are still tried for those with names.
    choices_left: usize,
}

impl<'a> Comparing<'a> {
    fn new(names: Option<&'a NameTable>) -> Self {
        Self { names, compared: Compared::default(), path: String::new(), choices_left: CHOICES_MAX }
    }

    fn values(&mut self, expected: &Value, received: &Value) {
        match (expected, received) {
            (Value::Object(expected), Value::Object(received)) => self.members(expected, received),
            (Value::Array(expected), Value::Array(received)) => {
                for at in 0..expected.len().max(received.len()) {
                    self.below(&format!("[{at}]"), expected.get(at), received.get(at));
                }
            }
            (Value::Number(some), Value::Number(other)) if are_equal(some, other) => {}
            (Value::String(text), _) if self.has_names(text) => {
                if !self.text(text, received) {
                    self.differ(Some(expected), Some(received));
                }
            }
            _ if expected == received => {}
            _ => self.differ(Some(expected), Some(received)),
        }
    }

    fn members(&mut self, expected: &Map<String, Value>, received: &Map<String, Value>) {
        // Names in other members have their values before a key needs them.
        let (named, plain): (Vec<_>, Vec<_>) = expected.iter().partition(|(key, _)| self.has_names(key));
        for (key, value) in plain {
            self.below(&format!(".{key}"), Some(value), received.get(key));
        }
        let mut rest: Vec<(&String, &Value)> =
            received.iter().filter(|(key, _)| !expected.contains_key(*key)).collect();
        if self.assign(&named, &mut rest) {
            return;
        }
        // No choice fits: each key takes the first one of its form.
        for (key, value) in named {
            let place = rest.iter().position(|(other, _)| self.text(key, &Value::from(other.as_str())));
            let same = place.map(|place| rest.remove(place).1);
            self.below(&format!(".{key}"), Some(value), same);
        }
        for (key, value) in rest {
            self.below(&format!(".{key}"), None, Some(value));
        }
    }

    /// Gives each key with names a received one so that nothing differs, whatever the order of the
    /// members. Returns false, and changes nothing, if there is no such choice.
    fn assign(&mut self, named: &[(&String, &Value)], rest: &mut Vec<(&String, &Value)>) -> bool {
        let Some(((key, value), named)) = named.split_first() else { return rest.is_empty() };
        let (fields, bound) = (self.compared.fields.len(), self.compared.bound.len());
        for place in 0..rest.len() {
            if self.choices_left == 0 {
                return false;
            }
            self.choices_left -= 1;
            let (other, received) = rest.remove(place);
            if self.text(key, &Value::from(other.as_str())) {
                self.below("", Some(value), Some(received));
                if self.compared.fields.len() == fields && self.assign(named, rest) {
                    return true;
                }
            }
            rest.insert(place, (other, received));
            self.compared.fields.truncate(fields);
            self.compared.bound.truncate(bound);
        }
        false
    }

    fn below(&mut self, segment: &str, expected: Option<&Value>, received: Option<&Value>) {
        let length = self.path.len();
        self.path += if length == 0 { segment.trim_start_matches('.') } else { segment };
        match (expected, received) {
            (Some(expected), Some(received)) => self.values(expected, received),
            // A host leaves out a time that has not changed.
            (Some(Value::String(time)), None) | (None, Some(Value::String(time)))
                if self.names.is_some() && (time == TIME || is_time(time)) => {}
            _ => self.differ(expected, received),
        }
        self.path.truncate(length);
    }

    fn differ(&mut self, expected: Option<&Value>, received: Option<&Value>) {
        self.compared.fields.push(FieldDifference {
            path: self.path.clone(),
            expected: expected.cloned(),
            received: received.cloned(),
        });
    }

    /// Returns the value of a name, if it has one.
    fn known(&self, name: &str) -> Option<&Value> {
        let bound = self.compared.bound.iter().find(|(its, _)| its == name).map(|(_, value)| value);
        bound.or_else(|| self.names?.values.get(name))
    }

    fn has_names(&self, text: &str) -> bool {
        self.names.is_some() && text.contains(NAME_START)
    }

    /// Returns whether a text with names stands for a value; gives names their values if so.
    fn text(&mut self, text: &str, received: &Value) -> bool {
        let parts = parts_of(text);
        if let [TextPart::Name(name)] = parts.as_slice() {
            return self.whole(name, received);
        }
        let Value::String(received) = received else { return false };
        let bound = self.compared.bound.len();
        let fits = self.pattern(&parts, received);
        if !fits {
            self.compared.bound.truncate(bound);
        }
        fits
    }

    fn whole(&mut self, name: &str, received: &Value) -> bool {
        if numbered(name).is_none() {
            return match name {
                "time" => received.is_number() || received.as_str().is_some_and(is_time),
                "number" => received.is_number(),
                _ => true,
            };
        }
        match self.known(name) {
            Some(known) => known == received,
            None => self.give(name, received.clone()),
        }
    }

    /// Gives a name its value; returns false if another name of its kind has this value.
    fn give(&mut self, name: &str, value: Value) -> bool {
        let kind_of = |name: &str| numbered(name).map(|(kind, _)| kind.to_owned());
        let kind = kind_of(name);
        let has_it = |other: &str, its: &Value| *its == value && kind_of(other) == kind;
        let known = self.names.is_some_and(|names| names.iter().any(|(other, its)| has_it(other, its)));
        if known || self.compared.bound.iter().any(|(other, its)| has_it(other, its)) {
            return false;
        }
        self.compared.bound.push((name.to_owned(), value));
        true
    }

    fn pattern(&mut self, parts: &[TextPart], received: &str) -> bool {
        let mut at = 0;
        for (place, part) in parts.iter().enumerate() {
            let rest = &received[at..];
            let taken = match part {
                TextPart::Literal(literal) if rest.starts_with(literal.as_str()) => literal.len(),
                TextPart::Literal(_) => return false,
                TextPart::Name(name) => {
                    let in_uri = received[..at].ends_with(FILE_URI);
                    let known = numbered(name).and_then(|_| self.known(name));
                    if let Some(known) = known.map(|known| in_text(known, in_uri)) {
                        if !rest.starts_with(&known) {
                            return false;
                        }
                        known.len()
                    } else {
                        let length = match parts.get(place + 1) {
                            Some(TextPart::Literal(next)) if place + 2 == parts.len() => {
                                rest.strip_suffix(next.as_str()).map(str::len)
                            }
                            Some(TextPart::Literal(next)) => rest.find(next.as_str()),
                            _ => Some(rest.len()),
                        };
                        let Some(length) = length else { return false };
                        if numbered(name).is_some() && !self.give(name, from_text(&rest[..length], in_uri)) {
                            return false;
                        }
                        length
                    }
                }
            };
            at += taken;
        }
        at == received.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(names: &NameTable, expected: Value, received: Value) -> Vec<String> {
        names.compare(&expected, &received).fields.iter().map(FieldDifference::to_string).collect()
    }

    #[test]
    fn name_stands_for_one_value_everywhere() {
        let mut names = NameTable::default();
        let expected =
            json!({ "id": "${id-1}", "uri": "a:/${id-1}/${id-2}", "n": "${seq-1}", "at": "${time}" });
        let received = json!({ "id": "x", "uri": "a:/x/y", "n": 7, "at": "2026-01-01T00:00:00.000Z" });
        let compared = names.compare(&expected, &received);
        assert!(compared.fields.is_empty(), "{compared:?}");
        names.bind(compared);
        let said = r#"{"n":"${seq-1}","${id-2}":"<${id-1}>","cost":"${$}{id-1}"}"#;
        let filled = names.fill(said, Path::new("/nowhere")).unwrap();
        assert_eq!(filled, r#"{"n":7,"y":"<x>","cost":"${id-1}"}"#);
        assert!(names.fill(r#""${id-3}""#, Path::new("/nowhere")).is_err());
        assert_eq!(
            fields(&names, json!(["${id-1}", "${time}", "a${id-2}"]), json!(["z", "now", "ay"])),
            [r#"[0]: expected "${id-1}", got "z""#, r#"[1]: expected "${time}", got "now""#]
        );
    }

    #[test]
    fn difference_names_the_field() {
        let names = NameTable::default();
        let expected = json!({ "a": { "b": [1, 2.0], "c": null, "d": "x" } });
        let received = json!({ "a": { "d": "x", "b": [1.0, 3, 4], "e": true } });
        assert_eq!(
            fields(&names, expected, received),
            [
                "a.b[1]: expected 2.0, got 3",
                "a.b[2]: expected nothing, got 4",
                "a.c: expected null, got nothing",
                "a.e: expected nothing, got true"
            ]
        );
    }

    #[test]
    fn time_may_be_left_out() {
        let (with, without) = (json!({ "at": "2026-01-01T00:00:00.000Z" }), json!({}));
        let names = NameTable::default();
        assert_eq!(fields(&names, json!({ "at": TIME }), without.clone()), [""; 0]);
        assert_eq!(fields(&names, without.clone(), with.clone()), [""; 0]);
        assert_eq!(compare_literally(&without, &with).len(), 1);
    }

    #[test]
    fn path_in_a_uri_is_the_folder_of_its_name() {
        let mut names = NameTable::default();
        let expected = json!(["file://${folder-1}/a", "${folder-1}"]);
        let compared = names.compare(&expected, &json!(["file:///some%20where/a", "/some where"]));
        assert!(compared.fields.is_empty(), "{compared:?}");
        names.bind(compared);
        let filled = names.fill(r#"["file://${folder-1}/b"]"#, Path::new("/nowhere")).unwrap();
        assert_eq!(filled, r#"["file:///some%20where/b"]"#);
    }

    #[test]
    fn whole_number_is_compared_exactly() {
        let names = NameTable::default();
        for (expected, received, same) in [
            ("9007199254740993", "9007199254740992", false),
            ("18446744073709551615", "18446744073709551614", false),
            ("-9223372036854775808", "-9223372036854775807", false),
            ("7", "7.0", true),
            ("1e2", "100", true),
        ] {
            let [expected, received] = [expected, received].map(|it| serde_json::from_str(it).unwrap());
            assert_eq!(fields(&names, expected, received).is_empty(), same);
        }
    }

    #[test]
    fn two_names_of_a_kind_never_stand_for_one_value() {
        let mut names = NameTable::default();
        assert_eq!(fields(&names, json!(["${id-1}", "${id-2}"]), json!(["x", "x"])).len(), 1);
        assert_eq!(fields(&names, json!(["${id-1}", "a${id-2}"]), json!(["x", "ax"])).len(), 1);
        assert_eq!(fields(&names, json!(["${id-1}", "${request-1}"]), json!([7, 7])), [""; 0]);
        names.bind(names.compare(&json!("${id-1}"), &json!("x")));
        assert_eq!(
            fields(&names, json!("${id-2}"), json!("x")),
            [r#"the message: expected "${id-2}", got "x""#]
        );
    }

    #[test]
    fn keys_with_names_are_found_in_any_order() {
        let names = NameTable::default();
        let expected = json!({ "${id-1}": { "n": 1 }, "${id-2}": "${id-1}", "last": "${id-2}" });
        let received = json!({ "y": "x", "last": "y", "x": { "n": 1 } });
        assert_eq!(fields(&names, expected.clone(), received), [""; 0]);
        let other = json!({ "y": "x", "last": "x", "x": { "n": 1 } });
        assert!(!fields(&names, expected, other).is_empty());
        // The first choice of the first key leaves nothing for the second one.
        let expected = json!({ "${id-1}": "${any}", "${id-2}": 5 });
        assert_eq!(fields(&names, expected, json!({ "a": 5, "b": 6 })), [""; 0]);
    }

    #[test]
    fn key_with_a_name_is_compared_by_its_value() {
        let names = NameTable::default();
        let expected = json!({ "${id-1}": 1, "b": "${id-1}" });
        assert_eq!(fields(&names, expected.clone(), json!({ "x": 1, "b": "x" })), [""; 0]);
        assert_eq!(
            fields(&names, expected, json!({ "x": 1, "b": "y" })),
            ["${id-1}: expected 1, got nothing", "x: expected nothing, got 1"]
        );
    }
}
