//! What the host itself says to people, in their language.
//!
//! Owns: the table of words, and which language of it a locale means.
//! Never: translates what agents or users say.
//!
//! To add a language, add a row to the table: its tag as BCP 47 has it, without a region unless two regions
//! differ. A locale that has no row of its own gets the row of the longest tag that it begins with, else
//! English.

use super::effects::PermissionKind;

/// A language, and its words for what can be decided about a tool call.
struct Words {
    tag: &'static str,
    allow_once: &'static str,
    allow_always: &'static str,
    reject_once: &'static str,
    reject_always: &'static str,
}

/// The languages; the first one is that of everybody else.
const TABLE: [Words; 4] = [
    Words {
        tag: "en",
        allow_once: "Allow once",
        allow_always: "Allow always",
        reject_once: "Reject",
        reject_always: "Reject always",
    },
    Words {
        tag: "de",
        allow_once: "Einmal erlauben",
        allow_always: "Immer erlauben",
        reject_once: "Ablehnen",
        reject_always: "Immer ablehnen",
    },
    Words {
        tag: "es",
        allow_once: "Permitir una vez",
        allow_always: "Permitir siempre",
        reject_once: "Rechazar",
        reject_always: "Rechazar siempre",
    },
    Words {
        tag: "fr",
        allow_once: "Autoriser une fois",
        allow_always: "Toujours autoriser",
        reject_once: "Refuser",
        reject_always: "Toujours refuser",
    },
];

/// What a decision about a tool call is called where this locale (a BCP 47 tag) is spoken.
pub(super) fn label_of(kind: PermissionKind, locale: Option<&str>) -> &'static str {
    let words = words_of(locale.unwrap_or_default());
    match kind {
        PermissionKind::AllowOnce => words.allow_once,
        PermissionKind::AllowAlways => words.allow_always,
        PermissionKind::RejectOnce => words.reject_once,
        PermissionKind::RejectAlways => words.reject_always,
    }
}

fn words_of(locale: &str) -> &'static Words {
    // Some platforms write an underscore.
    let locale = locale.to_ascii_lowercase().replace('_', "-");
    let mut tag = locale.as_str();
    loop {
        if let Some(words) = TABLE.iter().find(|words| words.tag.eq_ignore_ascii_case(tag)) {
            return words;
        }
        match tag.rsplit_once('-') {
            Some((shorter, _)) => tag = shorter,
            None => return &TABLE[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locale_means_the_language_that_it_begins_with() {
        for (locale, tag) in [
            ("de", "de"),
            ("de-AT", "de"),
            ("DE_ch", "de"),
            ("fr-Latn-CA", "fr"),
            ("es-419", "es"),
            ("en-US", "en"),
            ("den", "en"),
            ("ja", "en"),
            ("", "en"),
        ] {
            assert_eq!(words_of(locale).tag, tag, "{locale}");
        }
    }
}
