//! URIs of changesets.
//!
//! Owns: that URI, made of the session's and the scope of changes, which clients can compute.
//! Never: knows which sessions and turns exist.

use percent_encoding::{percent_decode_str, utf8_percent_encode, AsciiSet, NON_ALPHANUMERIC};

/// Separator between the URI of the session and the scope of the changes.
const CHANGESET: &str = "/changeset/";

const SESSION: &str = "session";

const TURN: &str = "turn/";

const UNCOMMITTED: &str = "uncommitted";

const BRANCH: &str = "branch";

const COMPARE: &str = "compare/";

/// Characters of a turn's id that are escaped; clients escape the same ones in a template.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Scope of the changes in a changeset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangesetScope {
    /// All turns of the session.
    Session,
    /// Turn with this id.
    Turn(String),
    /// Uncommitted changes.
    Uncommitted,
    /// Changes of a branch.
    Branch,
    /// Changes between the ends of the turns with these ids.
    Compare(String, String),
}

/// Returns the URI of a changeset of this session.
pub fn changeset_uri(session: &str, scope: &ChangesetScope) -> String {
    match scope {
        ChangesetScope::Session => format!("{session}{CHANGESET}{SESSION}"),
        ChangesetScope::Turn(id) => format!("{session}{CHANGESET}{TURN}{}", utf8_percent_encode(id, ENCODED)),
        ChangesetScope::Uncommitted => format!("{session}{CHANGESET}{UNCOMMITTED}"),
        ChangesetScope::Branch => format!("{session}{CHANGESET}{BRANCH}"),
        ChangesetScope::Compare(one, other) => {
            let [one, other] = [one, other].map(|id| utf8_percent_encode(id, ENCODED));
            format!("{session}{CHANGESET}{COMPARE}{one}/{other}")
        }
    }
}

/// Returns the template of the URIs of this session's changesets of turns.
pub fn turn_template(session: &str) -> String {
    format!("{session}{CHANGESET}{TURN}{{turnId}}")
}

/// Returns the template of the URIs of this session's changesets between two turns.
pub fn compare_template(session: &str) -> String {
    format!("{session}{CHANGESET}{COMPARE}{{originalTurnId}}/{{modifiedTurnId}}")
}

/// Parses the URI of a changeset, to its session and scope; `None` for any other URI.
pub fn parse_changeset_uri(uri: &str) -> Option<(&str, ChangesetScope)> {
    let (session, scope) = uri.rsplit_once(CHANGESET)?;
    if session.is_empty() {
        return None;
    }
    let id = |encoded: &str| {
        let id = percent_decode_str(encoded).decode_utf8().ok()?.into_owned();
        (!id.is_empty()).then_some(id)
    };
    let scope = match scope {
        SESSION => ChangesetScope::Session,
        UNCOMMITTED => ChangesetScope::Uncommitted,
        BRANCH => ChangesetScope::Branch,
        scope => match scope.strip_prefix(COMPARE) {
            Some(turns) => {
                let (one, other) = turns.split_once('/')?;
                ChangesetScope::Compare(id(one)?, id(other)?)
            }
            None => ChangesetScope::Turn(id(scope.strip_prefix(TURN)?)?),
        },
    };
    Some((session, scope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_of_a_changeset_names_its_scope() {
        let session = "ahp-session:/s";
        for (scope, uri) in [
            (ChangesetScope::Session, "ahp-session:/s/changeset/session"),
            (ChangesetScope::Uncommitted, "ahp-session:/s/changeset/uncommitted"),
            (ChangesetScope::Branch, "ahp-session:/s/changeset/branch"),
            (
                ChangesetScope::Compare("a/b".to_owned(), "c".to_owned()),
                "ahp-session:/s/changeset/compare/a%2Fb/c",
            ),
            (ChangesetScope::Turn("t-1".to_owned()), "ahp-session:/s/changeset/turn/t-1"),
            (ChangesetScope::Turn("a b/\u{e4}".to_owned()), "ahp-session:/s/changeset/turn/a%20b%2F%C3%A4"),
        ] {
            assert_eq!(changeset_uri(session, &scope), uri);
            assert_eq!(parse_changeset_uri(uri), Some((session, scope)));
        }
        let raw = "copilot:/s/changeset/turn/a b/\u{e4}";
        assert_eq!(
            parse_changeset_uri(raw),
            Some(("copilot:/s", ChangesetScope::Turn("a b/\u{e4}".to_owned())))
        );
        assert_eq!(turn_template(session).replace("{turnId}", "t"), "ahp-session:/s/changeset/turn/t");
        for none in [
            "ahp-session:/s",
            "ahp-session:/s/changeset/",
            "ahp-session:/s/changeset/turn/",
            "ahp-session:/s/changeset/compare/a",
            "ahp-session:/s/changeset/compare/a/",
            "/changeset/session",
        ] {
            assert_eq!(parse_changeset_uri(none), None, "{none}");
        }
    }
}
