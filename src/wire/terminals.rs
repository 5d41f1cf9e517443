//! URIs of the host's own terminals, and limits on the size of a terminal.
//!
//! Owns: that URI, which contains the chat: the output is found as long as the chat exists.
//! Never: knows which terminals exist. Clients choose the URIs of the terminals that they create.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;

/// Prefix of the URI of a terminal.
pub const SCHEME: &str = "ahp-terminal:";

/// Prefix of a message that is a command to run.
pub const COMMAND_PREFIX: &str = "!";

/// Maximum scrollback of a terminal, in bytes; the oldest part is cut beyond it.
pub const SCROLLBACK_BYTES_MAX: usize = 256 << 10;

/// Size of the scrollback after a cut, in bytes.
pub const SCROLLBACK_BYTES_CUT: usize = 192 << 10;

/// Maximum output retained of an agent's finished command, in bytes.
pub const OUTPUT_BYTES_KEPT: usize = 64 << 10;

/// Returns the URI of a terminal of this chat.
pub fn terminal_uri(chat: &str, number: u64) -> String {
    format!("{SCHEME}/{}.{number}", URL_SAFE_NO_PAD.encode(chat))
}

/// Parses the URI of a host's own terminal, to its chat and number; `None` for any other URI. URI
/// libraries write an empty authority in several ways.
pub fn parse_terminal_uri(uri: &str) -> Option<(String, u64)> {
    let name = uri.strip_prefix(SCHEME)?.trim_start_matches('/');
    let (chat, number) = name.split_once('.')?;
    Some((String::from_utf8(URL_SAFE_NO_PAD.decode(chat).ok()?).ok()?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_of_a_terminal_names_its_chat_and_number() {
        let chat = "ahp-chat://default/YWhw_b246L3M";
        let uri = terminal_uri(chat, 17);
        assert_eq!(parse_terminal_uri(&uri), Some((chat.to_owned(), 17)));
        assert_eq!(parse_terminal_uri(&uri.replace(":/", ":///")), Some((chat.to_owned(), 17)));
        for foreign in
            ["ahp-terminal:/x", "ahp-terminal:/x.y", "agenthost-terminal:/YQ.1", "ahp-terminal:/%.1"]
        {
            assert_eq!(parse_terminal_uri(foreign), None, "{foreign}");
        }
    }
}
