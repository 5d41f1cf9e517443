//! Texts of the host for people, in their language.
//!
//! Owns: the table of words, and which language of it a locale means.
//! Never: translates what agents or users say.
//!
//! To add a language, add a row to the table: its tag as BCP 47 has it, without a region unless two
//! regions differ. A locale that has no row of its own gets the row of the longest tag that it
//! begins with, else English.

use super::effects::PermissionKind;

/// Tags of the languages, each with its words for allowing a tool call once and always, and for
/// rejecting it once and always. The first language is that of everybody else.
const TABLE: [(&str, [&str; 4]); 4] = [
    ("en", ["Allow once", "Allow always", "Reject", "Reject always"]),
    ("de", ["Einmal erlauben", "Immer erlauben", "Ablehnen", "Immer ablehnen"]),
    ("es", ["Permitir una vez", "Permitir siempre", "Rechazar", "Rechazar siempre"]),
    ("fr", ["Autoriser une fois", "Toujours autoriser", "Refuser", "Toujours refuser"]),
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
            if let Some(at) = TABLE.iter().position(|(known, _)| known.eq_ignore_ascii_case(tag)) {
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
        let (_, [allow_once, allow_always, reject_once, reject_always]) = TABLE[self.0];
        match kind {
            PermissionKind::AllowOnce => allow_once,
            PermissionKind::AllowAlways => allow_always,
            PermissionKind::RejectOnce => reject_once,
            PermissionKind::RejectAlways => reject_always,
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
            assert_eq!(TABLE[Language::of(locale).0].0, tag, "{locale}");
        }
    }
}
