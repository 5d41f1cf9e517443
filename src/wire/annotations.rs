//! How the channel of a session's annotations is called.
//!
//! Owns: its URI, which is that of the session with a word behind it, so that clients can compute
//! it; and which session the URI of one of a session's own channels names.
//! Never: knows which sessions there are.

use super::changesets::parse_changeset_uri;

/// Suffix to the URI of the session.
const ANNOTATIONS: &str = "/annotations";

/// The URI of the annotations of this session.
pub fn annotations_uri(session: &str) -> String {
    format!("{session}{ANNOTATIONS}")
}

/// The session whose annotations a URI names; none when it is no such URI.
pub fn parse_annotations_uri(uri: &str) -> Option<&str> {
    let session = uri.strip_suffix(ANNOTATIONS)?;
    let (_, id) = session.split_once(':')?;
    (!id.trim_matches('/').is_empty()).then_some(session)
}

/// The session that the URI of its annotations or of one of its changesets begins with.
pub fn session_of_subchannel(uri: &str) -> Option<&str> {
    parse_changeset_uri(uri).map(|(session, _)| session).or_else(|| parse_annotations_uri(uri))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uri_of_annotations_names_their_session() {
        for session in ["ahp-session:/s", "copilot:/s", "ahp-session:s", "ahp-session:/annotations"] {
            assert_eq!(parse_annotations_uri(&annotations_uri(session)), Some(session));
            assert_eq!(session_of_subchannel(&annotations_uri(session)), Some(session));
        }
        for none in ["ahp-session:/annotations", "x:///annotations", "/annotations", "annotations", "a:/s"] {
            assert_eq!(parse_annotations_uri(none), None, "{none}");
        }
        assert_eq!(session_of_subchannel("ahp-session:/s/changeset/session"), Some("ahp-session:/s"));
    }
}
