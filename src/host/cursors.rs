//! Cursors of paged lists: the list of sessions, and the turns of a chat.
//!
//! Owns: their format, which includes the kind of list, so that a foreign cursor is recognized.
//! Never: decides where a page begins or ends.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CursorOf {
    Sessions,
    Turns,
}

impl CursorOf {
    fn mark(self) -> &'static str {
        match self {
            Self::Sessions => "ahp-sidecar:sessions:",
            Self::Turns => "ahp-sidecar:turns:",
        }
    }

    /// Returns a cursor for a position.
    pub(super) fn write(self, place: std::fmt::Arguments<'_>) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}{place}", self.mark()))
    }

    /// Returns the position in a cursor; `None` if it is not a cursor of this list.
    pub(super) fn read(self, cursor: &str) -> Option<String> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        text.strip_prefix(self.mark()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_what_it_was_written_for_and_as_nothing_else() {
        let cursor = CursorOf::Turns.write(format_args!("{}:{}", 1, "t:2"));
        assert_eq!(CursorOf::Turns.read(&cursor).as_deref(), Some("1:t:2"));
        assert_eq!(CursorOf::Sessions.read(&cursor), None);
        for foreign in
            ["", "x", "%%%", &URL_SAFE_NO_PAD.encode("somebody's:1"), &URL_SAFE_NO_PAD.encode([255])]
        {
            assert_eq!(CursorOf::Turns.read(foreign), None, "{foreign}");
        }
    }
}
