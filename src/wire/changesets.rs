//! What the URI of a changeset says.
//!
//! Owns: that URI: it is that of the session, and behind it what the changes are of, so that clients can compute it.
//! Never: knows which sessions and turns there are.

use percent_encoding::{percent_decode_str, utf8_percent_encode, AsciiSet, NON_ALPHANUMERIC};

/// What stands between the URI of the session and what the changes are of.
const CHANGESET: &str = "/changeset/";

/// What stands for all that was changed in the session.
const SESSION: &str = "session";

/// What stands before the id of a turn.
const TURN: &str = "turn/";

/// What of the id of a turn is encoded, as clients encode it in a template.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What the changes in a changeset are of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangesetScope {
    /// All turns of a session.
    Session,
    /// The turn of this id.
    Turn(String),
}

/// The URI of a changeset of this session.
pub fn changeset_uri(session: &str, scope: &ChangesetScope) -> String {
    match scope {
        ChangesetScope::Session => format!("{session}{CHANGESET}{SESSION}"),
        ChangesetScope::Turn(id) => format!("{session}{CHANGESET}{TURN}{}", utf8_percent_encode(id, ENCODED)),
    }
}

/// The template of the URIs of the changesets of this session's turns.
pub fn turn_template(session: &str) -> String {
    format!("{session}{CHANGESET}{TURN}{{turnId}}")
}

/// The session that the URI of a changeset names, and what the changes are of; none when it is no such URI.
pub fn named_by_changeset(uri: &str) -> Option<(&str, ChangesetScope)> {
    let (session, scope) = uri.rsplit_once(CHANGESET)?;
    if session.is_empty() {
        return None;
    }
    if scope == SESSION {
        return Some((session, ChangesetScope::Session));
    }
    let id = percent_decode_str(scope.strip_prefix(TURN)?).decode_utf8().ok()?;
    (!id.is_empty()).then(|| (session, ChangesetScope::Turn(id.into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uri_of_a_changeset_says_what_the_changes_are_of() {
        let session = "ahp-session:/s";
        for (scope, uri) in [
            (ChangesetScope::Session, "ahp-session:/s/changeset/session"),
            (ChangesetScope::Turn("t-1".to_owned()), "ahp-session:/s/changeset/turn/t-1"),
            (ChangesetScope::Turn("a b/\u{e4}".to_owned()), "ahp-session:/s/changeset/turn/a%20b%2F%C3%A4"),
        ] {
            assert_eq!(changeset_uri(session, &scope), uri);
            assert_eq!(named_by_changeset(uri), Some((session, scope)));
        }
        let raw = "copilot:/s/changeset/turn/a b/\u{e4}";
        assert_eq!(
            named_by_changeset(raw),
            Some(("copilot:/s", ChangesetScope::Turn("a b/\u{e4}".to_owned())))
        );
        assert_eq!(turn_template(session).replace("{turnId}", "t"), "ahp-session:/s/changeset/turn/t");
        for none in [
            "ahp-session:/s",
            "ahp-session:/s/changeset/",
            "ahp-session:/s/changeset/turn/",
            "/changeset/session",
        ] {
            assert_eq!(named_by_changeset(none), None, "{none}");
        }
    }
}
