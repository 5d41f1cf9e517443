//! Texts of the host for users, in their language.
//!
//! Owns: the table of labels, and the choice of a language for a locale.
//! Never: translates text of agents or users.
//!
//! To add a language, add a row with its BCP 47 tag, without a region unless two regions differ. A
//! locale without a row of its own uses the row of its longest matching prefix, else English.

use super::effects::PermissionKind;

/// Languages by tag, each with its labels for allowing a tool call once and always, and for
/// rejecting it once and always. The first language is the default.
const TABLE: [(&str, [&str; 4]); 4] = [
    ("en", ["Allow once", "Allow always", "Reject", "Reject always"]),
    ("de", ["Einmal erlauben", "Immer erlauben", "Ablehnen", "Immer ablehnen"]),
    ("es", ["Permitir una vez", "Permitir siempre", "Rechazar", "Rechazar siempre"]),
    ("fr", ["Autoriser une fois", "Toujours autoriser", "Refuser", "Toujours refuser"]),
];

/// Index of a language in the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Language(usize);

impl Language {
    /// Returns the language for a locale such as `de-AT`; English if none matches.
    pub(super) fn of(locale: &str) -> Self {
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
