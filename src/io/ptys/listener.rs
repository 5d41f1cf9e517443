//! Interpretation of a program's output.
//!
//! Owns: the order of text and events; removing the program's queries and the shell's reports from
//! the text that clients get; and the answers to the queries.
//! Never: reads or writes, or loses a byte of the clients' text.

use std::path::Path;

use super::integration::ShellSequences;
use super::questions::{reply_to_command, reply_to_device_string, reply_to_sequence};
use super::redactor::WordRedactor;
use super::scanner::{OutputScanner, Scanned};
use super::screen::ScreenModel;
use crate::files::uris::uri_of;
use crate::host::effects::{PtyEvent, ScreenSize};
use crate::os::paths::from_bytes;
use crate::os::shell;

/// Maximum length of a title, in bytes.
const TITLE_BYTES_MAX: usize = 1024;

/// Memory accounted for one event besides its own bytes, in bytes.
const EVENT_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPiece {
    /// Text, as bytes. The last character may continue in the next text.
    Text(Vec<u8>),
    Event(PtyEvent),
}

#[derive(Debug)]
pub struct PtyListener {
    scanner: OutputScanner,
    state: PtyListenerState,
}

#[derive(Debug)]
struct PtyListenerState {
    screen: ScreenModel,
    shell: ShellSequences,
    pending: Vec<OutputPiece>,
    pending_bytes: usize,
    answers: Vec<u8>,
    title: Option<String>,
    directory: Option<String>,
    redactor: Option<WordRedactor>,
}

impl PtyListener {
    /// Creates the listener. `nonce` authenticates the shell's reports; `None` without a script.
    pub fn new(size: ScreenSize, nonce: Option<String>) -> Self {
        let state = PtyListenerState {
            screen: ScreenModel::new(size),
            redactor: nonce.as_deref().map(WordRedactor::new),
            shell: ShellSequences::new(nonce),
            pending: Vec::new(),
            pending_bytes: 0,
            answers: Vec::new(),
            title: None,
            directory: None,
        };
        Self { scanner: OutputScanner::default(), state }
    }

    pub fn read_output(&mut self, bytes: &[u8]) {
        let Self { scanner, state } = self;
        scanner.scan(bytes, |piece| state.take(piece));
    }

    /// Ends the output: adds all bytes that were held back.
    pub fn finish(&mut self) {
        let Self { scanner, state } = self;
        scanner.finish(|piece| state.take(piece));
        state.show_held();
    }

    pub fn has_shell_integration(&self) -> bool {
        self.state.shell.is_authenticated()
    }

    pub fn resize(&mut self, size: ScreenSize) {
        self.state.screen.resize(size);
    }

    pub fn pending_bytes(&self) -> usize {
        self.state.pending_bytes
    }

    pub fn has_pending(&self) -> bool {
        !self.state.pending.is_empty() || self.state.directory.is_some()
    }

    /// Takes the pending output in its order. Only the latest directory is reported.
    pub fn take_pending(&mut self) -> Vec<OutputPiece> {
        self.state.pending_bytes = 0;
        let mut pending = std::mem::take(&mut self.state.pending);
        pending.extend(self.state.directory.take().map(PtyEvent::Directory).map(OutputPiece::Event));
        pending
    }

    /// Puts back text whose last character is incomplete.
    pub fn put_back(&mut self, text: Vec<u8>) {
        if !text.is_empty() {
            self.state.pending_bytes += text.len();
            self.state.pending.insert(0, OutputPiece::Text(text));
        }
    }

    pub fn take_answers(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.state.answers)
    }

    pub fn take_title(&mut self) -> Option<String> {
        self.state.title.take()
    }
}

impl PtyListenerState {
    fn take(&mut self, piece: Scanned<'_>) {
        match piece {
            Scanned::Text(text) => {
                self.screen.show(text);
                self.pass(text);
            }
            Scanned::Opaque(bytes) => self.pass(bytes),
            Scanned::Sequence(bytes) => match reply_to_sequence(bytes, &self.screen) {
                Some(answer) => self.answers.extend_from_slice(answer.as_bytes()),
                None => {
                    self.screen.obey(bytes);
                    self.pass(bytes);
                }
            },
            Scanned::Dcs { whole, content } => match reply_to_device_string(content) {
                Some(answer) => self.answers.extend_from_slice(answer.as_bytes()),
                None => self.pass(whole),
            },
            Scanned::Osc { whole, content } => {
                let end = if whole.ends_with(b"\x07") { "\x07" } else { "\x1b\\" };
                match reply_to_command(content, end) {
                    Some(answer) => self.answers.extend_from_slice(answer.as_bytes()),
                    None => self.receive_command(whole, content),
                }
            }
        }
    }

    fn receive_command(&mut self, whole: &[u8], content: &[u8]) {
        let text = String::from_utf8_lossy(content);
        let (number, rest) = text.split_once(';').unwrap_or((&text, ""));
        match number {
            "0" | "2" => {
                let title: String = rest.chars().filter(|char| !char.is_control()).collect();
                let title =
                    self.redactor.as_ref().map_or(title.clone(), |redactor| redactor.redacted(&title));
                self.title = Some(crate::wire::text::first_bytes(&title, TITLE_BYTES_MAX).to_owned());
            }
            "7" => self.directory = directory_of(rest).or(self.directory.take()),
            "133" => {
                if let Some(event) = self.shell.receive_generic(rest) {
                    self.add_event(event);
                }
            }
            "633" => {
                for event in self.shell.parse_osc_633(rest) {
                    match event {
                        PtyEvent::Directory(path) => {
                            let path = Path::new(&path);
                            self.directory =
                                path.is_absolute().then(|| uri_of(path)).or(self.directory.take());
                        }
                        event => self.add_event(event),
                    }
                }
                return;
            }
            _ => {}
        }
        self.pass(whole);
    }

    /// Adds an event behind all text before it. Where there is a word, only its shell sends events.
    fn add_event(&mut self, event: PtyEvent) {
        self.show_held();
        // `DetectsCommands` precedes the first report on commands.
        if self.shell.takes_first() && event != PtyEvent::DetectsCommands {
            self.pending.push(OutputPiece::Event(PtyEvent::DetectsCommands));
        }
        let bytes = if let PtyEvent::CommandBegun(line) = &event { line.len() } else { 0 };
        self.pending_bytes += EVENT_BYTES + bytes;
        self.pending.push(OutputPiece::Event(event));
    }

    fn pass(&mut self, bytes: &[u8]) {
        match &mut self.redactor {
            Some(redactor) => {
                let shown = redactor.redact(bytes);
                self.show(&shown);
            }
            None => self.show(bytes),
        }
    }

    fn show_held(&mut self) {
        let held = self.redactor.as_mut().map(WordRedactor::flush);
        self.show(&held.unwrap_or_default());
    }

    fn show(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.pending_bytes += bytes.len();
        match self.pending.last_mut() {
            Some(OutputPiece::Text(text)) => text.extend_from_slice(bytes),
            _ => self.pending.push(OutputPiece::Text(bytes.to_vec())),
        }
    }
}

/// Returns the URI, as the host spells it, of a shell's `file:` URI; `None` for another machine.
fn directory_of(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("file://")?;
    let (host, path) = rest.split_at(rest.find('/')?);
    if !["", "localhost", &*shell::host_name()].contains(&host) {
        return None;
    }
    let path: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    Some(uri_of(Path::new(&*from_bytes(&path))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: ScreenSize = ScreenSize { cols: 80, rows: 24 };

    /// Returns all pending output when `printed` arrives in pieces of `length` bytes, and the
    /// answers.
    fn pieces(nonce: Option<&str>, printed: &[u8], length: usize) -> (Vec<OutputPiece>, String) {
        let mut listener = PtyListener::new(SIZE, nonce.map(str::to_owned));
        for piece in printed.chunks(length) {
            listener.read_output(piece);
        }
        listener.finish();
        let answers = String::from_utf8(listener.take_answers()).unwrap();
        (listener.take_pending(), answers)
    }

    fn text(text: &str) -> OutputPiece {
        OutputPiece::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn questions_are_answered_once_and_kept_from_clients_wherever_they_are_cut() {
        let printed =
            b"ab\x1b[6nc\x1b]11;?\x07\x1b[c\x1bP$qm\x1b\\\x1b]52;c;?\x1b\\d\x1b[31m\x1b]52;c;aGk=\x07";
        let answers = "\x1b[1;3R\x1b]11;rgb:1e1e/1e1e/1e1e\x07\x1b[?62;22c\x1bP0$r\x1b\\";
        for length in 1..=printed.len() {
            let (pieces, answered) = pieces(None, printed, length);
            assert_eq!(pieces, [text("abcd\x1b[31m\x1b]52;c;aGk=\x07")], "{length}");
            assert_eq!(answered, answers);
        }
    }

    #[test]
    fn titles_and_directories_are_reported_and_shown() {
        let printed =
            b"\x1b]0;one\x07\x1b]2;tw\x01o\x07\x1b]7;file:///a%20b\x07\x1b]7;file://elsewhere/c\x07x";
        let mut listener = PtyListener::new(SIZE, None);
        printed.chunks(3).for_each(|piece| listener.read_output(piece));
        assert_eq!((listener.take_title().as_deref(), listener.take_title()), (Some("two"), None));
        let directory = OutputPiece::Event(PtyEvent::Directory("file:///a%20b".to_owned()));
        assert_eq!(listener.take_pending(), [OutputPiece::Text(printed.to_vec()), directory]);
    }

    #[test]
    fn a_title_that_is_too_long_is_cut() {
        for (bytes, expected) in
            [(TITLE_BYTES_MAX - 1, 1023), (TITLE_BYTES_MAX, 1024), (TITLE_BYTES_MAX + 1, 1024)]
        {
            let mut listener = PtyListener::new(SIZE, None);
            listener.read_output(format!("\x1b]0;{}\x07", "x".repeat(bytes)).as_bytes());
            assert_eq!(listener.take_title().map(|title| title.len()), Some(expected), "{bytes}");
        }
    }

    #[test]
    fn command_line_beyond_the_limit_is_reported_with_its_beginning() {
        for (bytes, expected) in [(15_999, 15_999), (16_000, 16_000), (16_001, 16_000)] {
            // Most of it escaped, as the scripts do.
            let line = format!("x{}", "\\x3b".repeat(bytes - 1));
            let printed = format!("\x1b]633;E;{line};{}\x07\x1b]633;C;{0}\x07", "w".repeat(32));
            let (pieces, _) = pieces(Some(&"w".repeat(32)), printed.as_bytes(), 4096);
            let begun = OutputPiece::Event(PtyEvent::CommandBegun(format!("x{}", ";".repeat(expected - 1))));
            assert_eq!(pieces.last(), Some(&begun), "{bytes}");
        }
    }

    #[test]
    fn shell_with_the_word_reports_its_commands() {
        let printed = b"\x1b]633;A;w\x07$ ls\r\n\x1b]633;E;ls \\x3b\\x0a\\\\;w\x07\x1b]633;C;w\x07a\x1b]633;D;0\x07\x1b]633;C\x07\
            \x1b]633;D;2;w\x07\x1b]633;P;Cwd=/x \\x3b;w\x07$ \x1b]133;C\x07";
        let (pieces, _) = pieces(Some("w"), printed, 7);
        let event = |event| OutputPiece::Event(event);
        let expected = [
            event(PtyEvent::DetectsCommands),
            text("$ ls\r\n"),
            event(PtyEvent::CommandBegun("ls ;\n\\".to_owned())),
            text("a"),
            event(PtyEvent::CommandDone(Some(2))),
            text("$ \x1b]133;C\x07"),
            event(PtyEvent::Directory("file:///x%20%3B".to_owned())),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn any_shell_reports_its_commands_without_a_word() {
        let printed = b"\x1b]133;A\x07$ \x1b]633;E;lie;x\x07\x1b]633;C\x07a\x1b]633;D\x07\x1b]133;D;1\x07";
        let (pieces, _) = pieces(None, printed, 100);
        let event = |event| OutputPiece::Event(event);
        let expected = [
            event(PtyEvent::DetectsCommands),
            text("\x1b]133;A\x07$ "),
            event(PtyEvent::CommandBegun(String::new())),
            text("a"),
            event(PtyEvent::CommandDone(None)),
            text("\x1b]133;D;1\x07"),
        ];
        assert_eq!(pieces, expected);
    }

    const WORD: &str = "f00dcafe0123456789abcdef00112233";

    #[test]
    fn text_that_may_be_the_word_is_shown_before_the_event_behind_it() {
        for count in 0..WORD.len() {
            let before = &WORD[..count];
            let printed = format!("$ {before}\x1b]633;E;true;{WORD}\x07\x1b]633;C;{WORD}\x07");
            let expected = [
                text(&format!("$ {before}")),
                OutputPiece::Event(PtyEvent::DetectsCommands),
                OutputPiece::Event(PtyEvent::CommandBegun("true".to_owned())),
            ];
            for length in 1..=printed.len() {
                let (pieces, _) = pieces(Some(WORD), printed.as_bytes(), length);
                assert_eq!(pieces, expected, "{count}, {length}");
            }
        }
    }

    /// Possible output: text, unterminated sequences, parts of the host's markers, and the word.
    fn printed() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::sample::select(vec![
                "\x1bP",
                "\x1bX",
                "\x1b^",
                "\x1b_",
                "\x1b]",
                "\x1b[",
                "\x1b(",
                "\x1b",
                "\x1b\\",
                "\x07",
                "\x18",
                "\x1a",
                "abc",
                "\x1bP+q",
                "\x1b]0;a",
                "\x1b]633;",
                ";",
                "C;",
                "\n",
                "\x1b[3",
                "ä",
            ])
            .prop_map(|piece| piece.as_bytes().to_vec()),
            Just(WORD.as_bytes().to_vec()),
            (0..WORD.len()).prop_map(|at| WORD.as_bytes()[at..].to_vec()),
            (0..50_usize).prop_map(|at| {
                let mark = format!("\x1b]633;D;0;{WORD}\x07");
                mark.as_bytes()[..at.min(mark.len())].to_vec()
            }),
            prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn mark_of_the_shell_is_recognized_behind_anything_and_its_word_never_shown(
            before in printed(), length in 1..20_usize,
        ) {
            let mut all = before;
            all.extend_from_slice(format!("\x1b]633;E;true;{WORD}\x07\x1b]633;C;{WORD}\x07").as_bytes());
            let (pieces, _) = pieces(Some(WORD), &all, length);
            prop_assert_eq!(pieces.last(), Some(&OutputPiece::Event(PtyEvent::CommandBegun("true".to_owned()))));
            let shown: Vec<u8> = pieces.iter().filter_map(|piece| match piece {
                OutputPiece::Text(text) => Some(text.clone()),
                OutputPiece::Event(_) => None,
            }).flatten().collect();
            prop_assert!(memchr::memmem::find(&shown, WORD.as_bytes()).is_none());
        }
    }
}
