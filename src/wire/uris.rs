//! Channel URIs whose spelling says something.
//!
//! Owns: the root channel's names, and the URI of a session's default chat, which clients compute too.
//! Never: knows which channels exist.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;

pub use ahp_types::common::ROOT_RESOURCE_URI as ROOT;

/// What stands before the encoded session URI in the URI of its default chat.
const DEFAULT_CHAT: &str = "ahp-chat://default/";

/// Whether this names the root channel. URI libraries write an empty authority and path in several ways.
pub fn is_root(uri: &str) -> bool {
    uri == ROOT || matches!(uri, "ahp-root:" | "ahp-root:/")
}

/// The URI of a session's first chat, as clients compute it from the session's.
pub fn default_chat_of(session: &str) -> String {
    format!("{DEFAULT_CHAT}{}", URL_SAFE_NO_PAD.encode(session))
}

/// Whether a client may give a chat this URI: any of the scheme of chats, but for what other sessions' first
/// chats are called.
pub fn may_name_a_chat(uri: &str) -> bool {
    uri.strip_prefix("ahp-chat:").is_some_and(|id| !id.trim_matches('/').is_empty())
        && !uri.starts_with(DEFAULT_CHAT)
}

/// The session whose default chat this is by its spelling.
pub fn session_of_default_chat(chat: &str) -> Option<String> {
    let encoded = chat.strip_prefix(DEFAULT_CHAT)?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_chat_tells_its_session() {
        assert_eq!(default_chat_of("ahp-session:/1"), "ahp-chat://default/YWhwLXNlc3Npb246LzE");
        assert_eq!(
            session_of_default_chat("ahp-chat://default/YWhwLXNlc3Npb246LzE").as_deref(),
            Some("ahp-session:/1")
        );
        assert_eq!(session_of_default_chat("ahp-chat:/1"), None);
        assert_eq!(session_of_default_chat("ahp-chat://default/%"), None);
    }
}
