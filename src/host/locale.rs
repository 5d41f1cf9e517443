//! Texts of the host for people, in their language.
//!
//! Owns: the table of words, and which language of it a locale means.
//! Never: translates what agents or users say.
//!
//! To add a language, add a row to the table: its tag as BCP 47 has it, without a region unless two
//! regions differ. A locale that has no row of its own gets the row of the longest tag that it
//! begins with, else English.

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

/// A language of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Language(usize);

impl Language {
    /// Returns the language for a locale such as `de-AT`; English where there is none.
    pub(super) fn of(locale: &str) -> Self {
        // Some platforms write an underscore.
        let locale = locale.replace('_', "-");
        let mut tag = locale.as_str();
        loop {
            if let Some(at) = TABLE.iter().position(|words| words.tag.eq_ignore_ascii_case(tag)) {
                return Self(at);
            }
            match tag.rsplit_once('-') {
                Some((shorter, _)) => tag = shorter,
                None => return Self::default(),
            }
        }
    }

    /// Returns the label of an option by which a tool call is allowed or denied.
    pub(super) fn label_of(self, kind: PermissionKind) -> &'static str {
        let words = &TABLE[self.0];
        match kind {
            PermissionKind::AllowOnce => words.allow_once,
            PermissionKind::AllowAlways => words.allow_always,
            PermissionKind::RejectOnce => words.reject_once,
            PermissionKind::RejectAlways => words.reject_always,
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
            assert_eq!(TABLE[Language::of(locale).0].tag, tag, "{locale}");
        }
    }
}
