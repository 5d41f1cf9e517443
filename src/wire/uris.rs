//! URIs with a meaning.
//!
//! Owns: the root channel's names, the URIs of chats, which clients compute too, those of contents
//! of changes, and the canonical form of a file's URI.
//! Never: knows which channels exist.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;
use percent_encoding::{percent_decode_str, percent_encode};

pub use ahp_types::common::ROOT_RESOURCE_URI as ROOT;

use crate::os::paths::{ESCAPED_IN_SEGMENT, HAS_DRIVES};

/// Prefix of the URIs of sessions that are not named by their provider.
pub const SESSION_SCHEME: &str = "ahp-session:";

/// Prefix of the encoded session URI in the URI of its default chat.
const DEFAULT_CHAT: &str = "ahp-chat://default/";

/// Returns whether a URI names the root channel. URI libraries vary its empty authority and path.
pub fn is_root(uri: &str) -> bool {
    uri == ROOT || matches!(uri, "ahp-root:" | "ahp-root:/")
}

/// Returns the URI of a session with this id.
pub fn session_uri(id: impl std::fmt::Display) -> String {
    format!("{SESSION_SCHEME}/{id}")
}

const AUTOMATION_SCHEME: &str = "ahp-automation:";
const AUTOMATION_RUN_SCHEME: &str = "ahp-automation-run:";

/// Returns whether a URI is that of an automation.
pub fn is_automation(uri: &str) -> bool {
    let path = uri.strip_prefix(AUTOMATION_SCHEME).and_then(|path| path.strip_prefix('/'));
    path.is_some_and(|id| !id.trim_matches('/').is_empty())
}

/// Returns the URI of a run of an automation.
pub fn automation_run_uri(id: &str) -> String {
    format!("{AUTOMATION_RUN_SCHEME}/{id}")
}

/// Returns whether a URI has the form of a channel of automations: of their list, or of a run.
pub fn is_of_automations(uri: &str) -> bool {
    is_automations(uri) || uri.starts_with(AUTOMATION_RUN_SCHEME)
}

/// URI of the list of automations.
pub const AUTOMATIONS: &str = "ahp-automations://";

/// Returns whether this is the URI of the list of automations, also as URI libraries write it.
pub fn is_automations(uri: &str) -> bool {
    matches!(uri, AUTOMATIONS | "ahp-automations:" | "ahp-automations:/")
}

/// Splits a session URI `<provider>:<path>` into the provider and `ahp-session:<path>`.
pub fn plain_session(uri: &str) -> Option<(&str, String)> {
    let (provider, path) = uri.split_once(':')?;
    (!provider.starts_with("ahp-")).then(|| (provider, format!("{SESSION_SCHEME}{path}")))
}

/// Returns the URI with `ahp-session:` in place of a provider, of a session or of a chat whose URI
/// contains that of a session; `None` if there is no other scheme in it.
pub fn plain_form(uri: &str) -> Option<String> {
    match session_of_chat(uri) {
        Some((before, session)) => plain_session(&session).map(|(_, plain)| chat_of(before, &plain)),
        None => plain_session(uri).map(|(_, plain)| plain),
    }
}

/// Escapes a name as a segment of a URI's path.
pub fn encode_segment(name: &str) -> String {
    percent_encode(name.as_bytes(), ESCAPED_IN_SEGMENT).to_string()
}

/// Returns the URI of a session's default chat, as clients compute it.
pub fn default_chat_of(session: &str) -> String {
    format!("{DEFAULT_CHAT}{}", URL_SAFE_NO_PAD.encode(session))
}

/// Returns whether a client may choose this URI for a chat: any but those of default chats.
pub fn may_name_a_chat(uri: &str) -> bool {
    uri.strip_prefix("ahp-chat:").is_some_and(|id| !id.trim_matches('/').is_empty())
        && !uri.starts_with(DEFAULT_CHAT)
}

/// Returns the session in the URI of its default chat.
pub fn session_of_default_chat(chat: &str) -> Option<String> {
    let encoded = chat.strip_prefix(DEFAULT_CHAT)?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

/// Returns the session in the URI of a chat, and the text before it. Clients make the URIs of
/// further chats like those of default chats, with another authority.
pub fn session_of_chat(chat: &str) -> Option<(&str, String)> {
    let at = "ahp-chat://".len() + chat.strip_prefix("ahp-chat://")?.find('/')? + 1;
    let (before, encoded) = chat.split_at(at);
    Some((before, String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?))
}

/// Returns the URI of a chat with this session behind `before`.
pub fn chat_of(before: &str, session: &str) -> String {
    format!("{before}{}", URL_SAFE_NO_PAD.encode(session))
}

/// Prefix of the URI of a content.
const CONTENT: &str = "ahp-content:";

/// Returns the URI of a content of this chat. For display, it has the side and the path of the
/// file, which is a `file:` URI or has a slash first.
pub fn content_uri(chat: &str, id: &str, side: &str, file: &str) -> String {
    let path = file.strip_prefix("file://").unwrap_or(file);
    let path = if path.starts_with('/') { path } else { "/" };
    format!("{CONTENT}/{}.{id}/{side}{path}", URL_SAFE_NO_PAD.encode(chat))
}

/// Returns the chat and the id in the URI of a content, however its empty authority is written.
pub fn parse_content_uri(uri: &str) -> Option<(String, String)> {
    let name = uri.strip_prefix(CONTENT)?.trim_start_matches('/').split('/').next()?;
    let (chat, id) = name.split_once('.')?;
    Some((String::from_utf8(URL_SAFE_NO_PAD.decode(chat).ok()?).ok()?, id.to_owned()))
}

/// Returns the `file:` URI of the path in the URI of a content.
pub fn file_of_content(uri: &str) -> Option<String> {
    let path = uri.strip_prefix(CONTENT)?.trim_start_matches('/').splitn(3, '/').nth(2)?;
    Some(format!("file:///{path}"))
}

/// Returns the URI of a content with the path first, for clients that display it.
pub fn content_with_path_first(uri: &str) -> Option<String> {
    let mut parts = uri.strip_prefix(CONTENT)?.trim_start_matches('/').splitn(3, '/');
    let (name, side, path) = (parts.next()?, parts.next()?, parts.next()?);
    Some(format!("{CONTENT}/{path}?{name}/{side}"))
}

/// Reverts [`content_with_path_first`]. URI libraries escape more than necessary.
pub fn content_with_name_first(uri: &str) -> Option<String> {
    let (path, named) = uri.strip_prefix(CONTENT)?.split_once('?')?;
    let named = percent_decode_str(named).decode_utf8().ok()?;
    Some(format!("{CONTENT}/{named}/{}", path.trim_start_matches('/')))
}

/// Returns the part of a URI or path below a folder (empty for the folder); `None` if elsewhere.
pub fn rest_below<'a>(name: &'a str, folder: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(folder.trim_end_matches('/'))?;
    if rest.is_empty() {
        return Some(rest);
    }
    rest.strip_prefix('/')
}

/// Returns whether a path begins at a root; on Windows, at a drive or a share.
pub fn is_absolute_path(path: &str) -> bool {
    is_absolute(path, HAS_DRIVES)
}

fn is_absolute(path: &str, has_drives: bool) -> bool {
    match path.as_bytes() {
        [b'/', ..] if !has_drives => true,
        [letter, b':', b'\\' | b'/', ..] => has_drives && letter.is_ascii_alphabetic(),
        [b'\\' | b'/', b'\\' | b'/', ..] => has_drives,
        _ => false,
    }
}

/// Returns the canonical form of a `file:` URI: no authority, empty segments, `.` or `..`, and no
/// needless escapes; on Windows, the letter of the drive is small. Does not resolve symbolic links.
///
/// # Errors
/// The reason, to be printed behind the URI.
pub fn canonical_file(uri: &str) -> Result<String, &'static str> {
    canonical(uri, HAS_DRIVES)
}

fn canonical(uri: &str, has_drives: bool) -> Result<String, &'static str> {
    let (scheme, rest) = uri.split_once(':').ok_or("is no URI")?;
    if !scheme.eq_ignore_ascii_case("file") {
        return Err("is no `file:` URI");
    }
    if rest.contains(['?', '#']) {
        return Err("has a query or a fragment");
    }
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => {
            let (authority, _) = rest.split_once('/').ok_or("has no path")?;
            if !authority.is_empty() && !authority.eq_ignore_ascii_case("localhost") {
                return Err("is not on this machine");
            }
            &rest[authority.len()..]
        }
    };
    if !path.starts_with('/') {
        return Err("has no path that begins at the root");
    }
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    if bytes.contains(&0) {
        return Err("holds a NUL");
    }
    let mut segments: Vec<&[u8]> = Vec::new();
    let is_drive =
        |segment: &[u8]| has_drives && matches!(segment, [letter, b':'] if letter.is_ascii_alphabetic());
    for segment in bytes.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            // There is nothing above a drive.
            b".." if segments.len() == 1 && is_drive(segments[0]) => {}
            b".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let drive = segments.first().filter(|first| is_drive(first)).map(|drive| drive.to_ascii_lowercase());
    let is_drive_alone = drive.is_some() && segments.len() == 1;
    if let (Some(drive), Some(first)) = (&drive, segments.first_mut()) {
        *first = drive;
    }
    let segments: Vec<String> =
        segments.into_iter().map(|segment| percent_encode(segment, ESCAPED_IN_SEGMENT).to_string()).collect();
    Ok(format!("file:///{}{}", segments.join("/"), if is_drive_alone { "/" } else { "" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_below_a_folder_ends_at_a_whole_name() {
        for folder in ["file:///a", "file:///a/"] {
            for (uri, rest) in [("file:///a", Some("")), ("file:///a/b/c", Some("b/c")), ("file:///ab", None)]
            {
                assert_eq!(rest_below(uri, folder), rest, "{uri} {folder}");
            }
        }
    }

    #[test]
    fn a_file_has_one_spelling() {
        for uri in
            ["file:///a%20b/c", "file:/a%20b/c/", "FILE://localhost//a%20b/./c", "file:///x/../a b/%63/d/.."]
        {
            assert_eq!(canonical_file(uri).as_deref(), Ok("file:///a%20b/c"), "{uri}");
        }
        assert_eq!(canonical_file("file:///").as_deref(), Ok("file:///"));
        assert_eq!(canonical_file("file:///../..").as_deref(), Ok("file:///"));
        assert_eq!(canonical_file("file:///c%3A/%C3%A4%25").as_deref(), Ok("file:///c:/%C3%A4%25"));
        for none in
            ["", "/a", "http:///a", "file:a", "file://", "file://host/a", "file:///a?b", "file:///%00"]
        {
            assert!(canonical_file(none).is_err(), "{none}");
        }
    }

    #[test]
    fn path_that_begins_at_a_drive_or_a_share_is_absolute_where_there_are_drives() {
        for path in [r"C:\a", "c:/a", r"\\server\share\a", "//server/share"] {
            assert!(is_absolute(path, true), "{path}");
        }
        for path in ["", "a", r"\a", "/a", "C:a", "C:", r"1:\a", r"CC:\a"] {
            assert!(!is_absolute(path, true), "{path}");
        }
        assert!(is_absolute("/a", false) && is_absolute("//a", false) && is_absolute("/:/a", false));
        assert!(!is_absolute(r"C:\a", false) && !is_absolute(r"\\a", false) && !is_absolute("a", false));
    }

    #[test]
    fn drive_has_one_spelling_where_there_are_drives() {
        for uri in ["file:///c%3A/a%20b", "file:///C:/x/../a b", "file:/C%3a/a%20b/", "file:///c:/../a b"] {
            assert_eq!(canonical(uri, true).as_deref(), Ok("file:///c:/a%20b"), "{uri}");
        }
        for uri in ["file:///C:", "file:///c%3A/", "file:///c:/..", "file:///x/../C:/."] {
            assert_eq!(canonical(uri, true).as_deref(), Ok("file:///c:/"), "{uri}");
        }
        assert_eq!(canonical("file:///C:/D:/", true).as_deref(), Ok("file:///c:/D:"));
        assert_eq!(canonical("file:///CC:/", true).as_deref(), Ok("file:///CC:"));
        assert_eq!(canonical("file:///C:/..", false).as_deref(), Ok("file:///"));
        assert_eq!(canonical("file:///C:/x", false).as_deref(), Ok("file:///C:/x"));
    }

    #[test]
    fn uri_of_a_content_names_its_chat() {
        let uri = content_uri("ahp-chat:/1", "0a", "before", "/x/a%20b.txt");
        assert_eq!(uri, "ahp-content:/YWhwLWNoYXQ6LzE.0a/before/x/a%20b.txt");
        let named = Some(("ahp-chat:/1".to_owned(), "0a".to_owned()));
        for spelled in
            [uri.as_str(), "ahp-content:///YWhwLWNoYXQ6LzE.0a/after/y", "ahp-content:/YWhwLWNoYXQ6LzE.0a"]
        {
            assert_eq!(parse_content_uri(spelled), named, "{spelled}");
        }
        for none in ["ahp-content:", "ahp-content:/x/y", "ahp-content:/%.0a/y", "file:///YWhwLWNoYXQ6LzE.0a"]
        {
            assert_eq!(parse_content_uri(none), None, "{none}");
        }
    }

    #[test]
    fn a_content_is_the_same_with_its_path_first() {
        let uri = content_uri("ahp-chat:/1", "0a", "before", "/x/a%20b.txt");
        let shown = "ahp-content:/x/a%20b.txt?YWhwLWNoYXQ6LzE.0a/before";
        assert_eq!(content_with_path_first(&uri).as_deref(), Some(shown));
        for spelled in [shown, "ahp-content:///x/a%20b.txt?YWhwLWNoYXQ6LzE.0a%2Fbefore"] {
            assert_eq!(content_with_name_first(spelled).as_deref(), Some(uri.as_str()), "{spelled}");
        }
        assert_eq!(content_with_name_first(&uri), None);
        for none in ["file:///x/y/z", "ahp-content:/YWhwLWNoYXQ6LzE.0a"] {
            assert_eq!(content_with_path_first(none), None, "{none}");
        }
    }

    #[test]
    fn uri_of_a_default_chat_names_its_session() {
        assert_eq!(default_chat_of("ahp-session:/1"), "ahp-chat://default/YWhwLXNlc3Npb246LzE");
        assert_eq!(
            session_of_default_chat("ahp-chat://default/YWhwLXNlc3Npb246LzE").as_deref(),
            Some("ahp-session:/1")
        );
        let fork = "ahp-chat://9f/YWhwLXNlc3Npb246LzE";
        assert_eq!(session_of_chat(fork), Some(("ahp-chat://9f/", "ahp-session:/1".to_owned())));
        assert_eq!(chat_of("ahp-chat://9f/", "ahp-session:/1"), fork);
        for none in ["ahp-chat:/1", "ahp-chat://9f", "ahp-chat://9f/%", "ahp-chat://subagent/YWhw/1"] {
            assert_eq!(session_of_chat(none), None, "{none}");
        }
        assert_eq!(session_of_default_chat("ahp-chat:/1"), None);
        assert_eq!(session_of_default_chat("ahp-chat://default/%"), None);
    }
}
