//! Faults in the text of a configuration file, as sentences.
//!
//! Owns: where a fault is, and which words of a parser may be repeated.
//! Never: quotes a value of the file, which may be a key.

use toml::de::Error;

use crate::wire::text;

/// Words before the value that an error of a deserialiser quotes.
const WRONG: [&str; 3] = ["invalid type: ", "invalid value: ", "invalid length "];

/// Beginning of an error that quotes the name of a variant, which is a value.
const UNKNOWN_VARIANT: &str = "unknown variant";

/// Words before what is expected instead of a value.
const EXPECTED: &str = ", expected ";

/// Returns the fault in a text: its line, its column, and what is expected there.
pub fn of(text: &str, error: &Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {}", text::message(&without_value(error.message())))
}

/// Returns a message of the parser without the value that it quotes.
fn without_value(message: &str) -> String {
    let is_quoted = |char: char| ['"', '`'].contains(&char);
    let quotes = WRONG.iter().any(|words| message.starts_with(words)) || message.starts_with(UNKNOWN_VARIANT);
    // A value may have these words, too; those of the parser are the last ones.
    match message.rfind(EXPECTED).filter(|_| quotes) {
        Some(at) => {
            let kind = message[..at].split(is_quoted).next().unwrap_or_default().trim_end();
            format!("{kind}{}", &message[at..])
        }
        None if quotes => message.split(is_quoted).next().unwrap_or_default().trim_end().to_owned(),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Section {
        number: Option<f64>,
        list: Option<Vec<String>>,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        One,
    }

    #[test]
    fn fault_has_its_place_and_no_value_of_the_line() {
        for (text, fault) in [
            ("\nnumber = 's3cret'", "line 2, column 10: invalid type: string, expected f64"),
            ("list = 's3cret, expected x'", "line 1, column 8: invalid type: string, expected a sequence"),
            ("number = [['s3cret']]", "line 1, column 10: invalid type: sequence, expected f64"),
            ("list = [5]", "line 1, column 9: invalid type: integer, expected a string"),
            ("kind = 's3cret'", "line 1, column 8: unknown variant, expected `One`"),
            ("number = s3cret", "line 1, column 10: "),
            ("list = ['s3cret", "line 1, column "),
            ("ä = \"s3cret\"\nb = 'x' s3cret", "line 2, column "),
            ("nothing = 's3cret'", "line 1, column 1: unknown field `nothing`, expected one of"),
        ] {
            let message = of(text, &toml::from_str::<Section>(text).unwrap_err());
            assert!(message.starts_with(fault) && !message.contains("s3cret"), "{text}: {message}");
        }
    }
}
