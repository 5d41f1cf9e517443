//! URIs of annotations.
//!
//! Owns: that URI, a suffix to the session's, which clients can compute.
//! Never: knows which sessions exist.

use super::changesets::parse_changeset_uri;

/// Suffix to the URI of the session.
const ANNOTATIONS: &str = "/annotations";

/// Returns the URI of the annotations of this session.
pub fn annotations_uri(session: &str) -> String {
    format!("{session}{ANNOTATIONS}")
}

/// Returns the session in the URI of its annotations; `None` for any other URI.
pub fn parse_annotations_uri(uri: &str) -> Option<&str> {
    let session = uri.strip_suffix(ANNOTATIONS)?;
    let (_, id) = session.split_once(':')?;
    (!id.trim_matches('/').is_empty()).then_some(session)
}

/// Returns the session in the URI of its annotations or of one of its changesets.
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
