//! Model of a terminal's cursor and modes, as far as the answers to a program depend on them.
//!
//! The model has no cells: a screen of 1,000 by 1,000 needs no more memory than a small one, and
//! moving the cursor past text takes only as long as counting the text.
//!
//! Owns: the effect of text and sequences on the cursor, and the modes that programs set.
//! Never: stores the content of the screen, or answers.

use std::collections::BTreeSet;

use unicode_width::UnicodeWidthChar;

use crate::host::effects::ScreenSize;

/// Distance of tab stops, in columns.
const TAB: usize = 8;

/// Maximum number of modes remembered as set.
const MODES_MAX: usize = 64;

/// Modes: wrap lines, show the cursor, count positions from the top margin.
const WRAPS: u16 = 7;
const SHOWS_CURSOR: u16 = 25;
const FROM_MARGIN: u16 = 6;

/// Modes that select the alternate screen, for full-screen programs.
const OTHER_SCREEN: [u16; 3] = [47, 1047, 1049];

/// Modes whose state is reported to programs.
const KNOWN: [u16; 16] = [1, 6, 7, 9, 12, 25, 47, 66, 1000, 1002, 1003, 1004, 1006, 1047, 1049, 2004];

/// Parsed control sequence (CSI).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csi {
    /// Marker before the numbers, one of `<=>?`.
    pub marker: Option<u8>,
    /// Parameters; 0 for one that is left out.
    pub numbers: Vec<u16>,
    /// Intermediate byte behind the numbers.
    pub narrowed: Option<u8>,
    /// Final byte, which names the function.
    pub last: u8,
}

impl Csi {
    /// Parses a control sequence; `None` for another kind of sequence.
    pub fn of(sequence: &[u8]) -> Option<Self> {
        let (last, body) = sequence.strip_prefix(b"\x1b[")?.split_last()?;
        let (mut marker, mut narrowed, mut numbers) = (None, None, vec![0_u16]);
        for byte in body {
            match byte {
                b'<'..=b'?' => marker = Some(*byte),
                b'0'..=b'9' => {
                    if let Some(number) = numbers.last_mut() {
                        *number = number.saturating_mul(10).saturating_add(u16::from(byte - b'0'));
                    }
                }
                b';' | b':' => numbers.push(0),
                b' '..=b'/' => narrowed = Some(*byte),
                _ => {}
            }
        }
        Some(Self { marker, numbers, narrowed, last: *last })
    }

    pub fn number(&self, at: usize) -> u16 {
        self.numbers.get(at).copied().unwrap_or(0)
    }

    /// Returns the repeat count: the first parameter, at least 1.
    fn times(&self) -> usize {
        usize::from(self.number(0).max(1))
    }
}

/// Position of the cursor, counted from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    row: usize,
    col: usize,
    /// Set if the last column is full: the next character begins another row.
    is_past: bool,
}

/// Screen without its content.
#[derive(Debug)]
pub struct ScreenModel {
    cols: usize,
    rows: usize,
    cursor: Cursor,
    saved: Cursor,
    /// First and last row of the scrolling region.
    top: usize,
    bottom: usize,
    modes: BTreeSet<u16>,
    last_width: usize,
    /// Bytes of an incomplete character.
    begun: Vec<u8>,
}

impl ScreenModel {
    pub fn new(size: ScreenSize) -> Self {
        let (cols, rows) = (usize::from(size.cols.max(1)), usize::from(size.rows.max(1)));
        Self {
            cols,
            rows,
            cursor: Cursor::default(),
            saved: Cursor::default(),
            top: 0,
            bottom: rows - 1,
            modes: BTreeSet::from([WRAPS, SHOWS_CURSOR]),
            last_width: 1,
            begun: Vec::new(),
        }
    }

    /// Changes the size, and resets the margins.
    pub fn resize(&mut self, size: ScreenSize) {
        (self.cols, self.rows) = (usize::from(size.cols.max(1)), usize::from(size.rows.max(1)));
        (self.top, self.bottom) = (0, self.rows - 1);
        self.place(self.cursor.row, self.cursor.col);
    }

    pub fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Returns the cursor position from 1, and from the top margin if that mode is set.
    pub fn position(&self) -> (usize, usize) {
        let from = if self.is_set(FROM_MARGIN) { self.top } else { 0 };
        (self.cursor.row.saturating_sub(from) + 1, self.cursor.col + 1)
    }

    pub fn is_set(&self, mode: u16) -> bool {
        self.modes.contains(&mode)
    }

    /// Returns whether the terminal reports the state of a mode.
    pub fn knows(mode: u16) -> bool {
        KNOWN.contains(&mode)
    }

    pub fn show(&mut self, mut text: &[u8]) {
        while let Some(first) = text.first() {
            let is_plain = |byte: &u8| (b' '..=b'~').contains(byte);
            let plain = text.iter().position(|byte| !is_plain(byte)).unwrap_or(text.len());
            if plain > 0 {
                self.end_begun();
                self.advance(plain);
                self.last_width = 1;
                text = &text[plain..];
                continue;
            }
            if first.is_ascii() {
                self.end_begun();
                self.control(*first);
            } else {
                self.begin(*first);
            }
            text = &text[1..];
        }
    }

    /// Adds one byte of a non-ASCII character.
    fn begin(&mut self, byte: u8) {
        if byte & 0xC0 != 0x80 {
            self.end_begun();
        }
        self.begun.push(byte);
        match std::str::from_utf8(&self.begun) {
            Ok(text) => {
                let width = text.chars().next().and_then(UnicodeWidthChar::width).unwrap_or(0);
                self.begun.clear();
                self.put(width);
            }
            Err(error) if error.error_len().is_some() => self.end_begun(),
            Err(_) => {}
        }
    }

    /// Drops an incomplete or invalid character; one cell is shown in its place.
    fn end_begun(&mut self) {
        if !std::mem::take(&mut self.begun).is_empty() {
            self.put(1);
        }
    }

    fn put(&mut self, width: usize) {
        if width == 2 && self.cols > 1 {
            if !self.cursor.is_past && self.cursor.col + 2 > self.cols && self.is_set(WRAPS) {
                self.cursor.is_past = true;
            }
            self.advance(1);
            self.cursor.is_past = false;
        }
        if width > 0 {
            self.advance(1);
            self.last_width = width;
        }
    }

    /// Moves the cursor right by `cells`, wrapping lines if enabled.
    fn advance(&mut self, mut cells: usize) {
        while cells > 0 {
            if std::mem::take(&mut self.cursor.is_past) {
                self.line_feed();
                self.cursor.col = 0;
            }
            let free = self.cols - self.cursor.col.min(self.cols - 1);
            if cells < free {
                self.cursor.col += cells;
                return;
            }
            self.cursor.col = self.cols - 1;
            if !self.is_set(WRAPS) {
                return;
            }
            self.cursor.is_past = true;
            cells -= free;
        }
    }

    fn control(&mut self, byte: u8) {
        let Cursor { row, col, .. } = self.cursor;
        match byte {
            0x08 => self.place(row, col.saturating_sub(1)),
            b'\t' => self.place(row, (col / TAB + 1) * TAB),
            b'\n' | 0x0b | 0x0c => {
                self.cursor.is_past = false;
                self.line_feed();
            }
            b'\r' => self.place(row, 0),
            _ => {}
        }
    }

    fn line_feed(&mut self) {
        if self.cursor.row != self.bottom && self.cursor.row + 1 < self.rows {
            self.cursor.row += 1;
        }
    }

    fn place(&mut self, row: usize, col: usize) {
        self.cursor = Cursor { row: row.min(self.rows - 1), col: col.min(self.cols - 1), is_past: false };
    }

    /// Restores the saved cursor, limited to the screen, which may have become smaller since.
    fn restore(&mut self) {
        let Cursor { row, col, is_past } = self.saved;
        self.place(row, col);
        self.cursor.is_past = is_past && col + 1 == self.cols;
    }

    /// Places the cursor at a position that a program gives, which may count from the top margin.
    fn go(&mut self, row: usize, col: usize) {
        if self.is_set(FROM_MARGIN) {
            self.place((self.top + row).min(self.bottom), col);
        } else {
            self.place(row, col);
        }
    }

    /// Applies a sequence that moves the cursor or changes modes; ignores others.
    pub fn obey(&mut self, sequence: &[u8]) {
        self.end_begun();
        let Cursor { row, col, .. } = self.cursor;
        match sequence {
            b"\x1b7" => self.saved = self.cursor,
            b"\x1b8" => self.restore(),
            b"\x1bD" => self.line_feed(),
            b"\x1bE" => {
                self.place(row, 0);
                self.line_feed();
            }
            b"\x1bM" if row != self.top => self.place(row.saturating_sub(1), col),
            b"\x1bc" => self.start_over(),
            _ => {
                if let Some(csi) = Csi::of(sequence) {
                    self.obey_csi(&csi);
                }
            }
        }
    }

    fn start_over(&mut self) {
        let size = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        *self = Self::new(ScreenSize { cols: size(self.cols), rows: size(self.rows) });
    }

    fn obey_csi(&mut self, csi: &Csi) {
        let Cursor { row, col, .. } = self.cursor;
        let times = csi.times();
        let at = |number: usize| usize::from(csi.number(number).max(1)) - 1;
        // Movements that begin inside the margins end there.
        let up = || row.saturating_sub(times).max(if row >= self.top { self.top } else { 0 });
        let down = || (row + times).min(if row <= self.bottom { self.bottom } else { self.rows - 1 });
        match (csi.marker, csi.narrowed, csi.last) {
            (None, None, b'A') => self.place(up(), col),
            (None, None, b'B' | b'e') => self.place(down(), col),
            (None, None, b'C' | b'a') => self.place(row, col + times),
            (None, None, b'D') => self.place(row, col.saturating_sub(times)),
            (None, None, b'E') => self.place(down(), 0),
            (None, None, b'F') => self.place(up(), 0),
            (None, None, b'G' | b'`') => self.place(row, at(0)),
            (None, None, b'd') => self.go(at(0), col),
            (None, None, b'H' | b'f') => self.go(at(0), at(1)),
            (None, None, b'I') => self.place(row, (col / TAB + times) * TAB),
            (None, None, b'Z') => self.place(row, (col.div_ceil(TAB)).saturating_sub(times) * TAB),
            (None, None, b'L' | b'M') => self.place(row, 0),
            (None, None, b'b') => self.advance(times.min(usize::from(u16::MAX)) * self.last_width),
            (None, None, b's') => self.saved = self.cursor,
            (None, None, b'u') => self.restore(),
            (None, None, b'r') => {
                let bottom = usize::from(csi.number(1));
                let bottom = if bottom == 0 { self.rows } else { bottom.min(self.rows) } - 1;
                if at(0) < bottom {
                    (self.top, self.bottom) = (at(0), bottom);
                    self.go(0, 0);
                }
            }
            (None, Some(b'!'), b'p') => {
                (self.top, self.bottom) = (0, self.rows - 1);
                self.modes.remove(&FROM_MARGIN);
                self.modes.extend([WRAPS, SHOWS_CURSOR]);
            }
            (Some(b'?'), None, b'h') => csi.numbers.iter().for_each(|mode| self.set(*mode)),
            (Some(b'?'), None, b'l') => csi.numbers.iter().for_each(|mode| self.reset(*mode)),
            _ => {}
        }
    }

    fn set(&mut self, mode: u16) {
        if mode == 1049 || mode == 1048 {
            self.saved = self.cursor;
        }
        if self.modes.len() < MODES_MAX {
            self.modes.insert(mode);
        }
        if mode == FROM_MARGIN {
            self.go(0, 0);
        }
    }

    fn reset(&mut self, mode: u16) {
        let was_set = self.modes.remove(&mode);
        if mode == 1048 || (mode == 1049 && was_set) {
            self.restore();
        }
        if OTHER_SCREEN.contains(&mode) {
            self.modes.retain(|mode| !OTHER_SCREEN.contains(mode));
        }
        if mode == FROM_MARGIN {
            self.go(0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn screen(cols: u16, rows: u16) -> ScreenModel {
        ScreenModel::new(ScreenSize { cols, rows })
    }

    /// Returns the position of the cursor after this: text, and sequences between `<` and `>`.
    fn after(screen: &mut ScreenModel, printed: &str) -> (usize, usize) {
        for (at, piece) in printed.split(['<', '>']).enumerate() {
            match at % 2 {
                0 => screen.show(piece.as_bytes()),
                _ => screen.obey(format!("\x1b{piece}").as_bytes()),
            }
        }
        screen.position()
    }

    #[test]
    fn the_cursor_is_where_a_terminal_has_it() {
        for (printed, place) in [
            ("ab", (1, 3)),
            ("ab\ncd\re", (2, 2)),
            ("0123456789", (1, 10)),
            ("0123456789a", (2, 2)),
            ("0123456789\r\nb", (2, 2)),
            ("<[?7l>0123456789abc", (1, 10)),
            ("a\tb", (1, 10)),
            ("ab\u{8}\u{8}\u{8}", (1, 1)),
            ("ä€", (1, 3)),
            ("漢字", (1, 5)),
            ("012345678漢", (2, 3)),
            ("e\u{301}", (1, 2)),
            ("a\nb\nc\nd\ne\nf", (5, 7)),
            ("<[3;4H>", (3, 4)),
            ("<[99;99H>", (5, 10)),
            ("<[3;4H><[A><[2C>", (2, 6)),
            ("<[3;4H><[9D><[B>", (4, 1)),
            ("<[2;4r><[4;1H>\n\n", (4, 1)),
            ("<[2;4r><[?6h><[9;1H>", (3, 1)),
            ("<[2;4r><[2;1H><[5A>", (2, 1)),
            ("ab<7><[4;4H><8>", (1, 3)),
            ("ab<[?1049h><[4;4Hx><[?1049l>", (1, 3)),
            ("<[3;4H><M><M><M>", (1, 4)),
            ("x<[3b>", (1, 5)),
            ("<[3;4H><c>", (1, 1)),
            ("<[20G><[Z>", (1, 9)),
        ] {
            assert_eq!(after(&mut screen(10, 5), printed), place, "{printed:?}");
        }
    }

    #[test]
    fn half_a_character_is_waited_for() {
        let mut one = screen(10, 5);
        for byte in "漢a".bytes() {
            one.show(&[byte]);
        }
        assert_eq!(one.position(), (1, 4));
        one.show(&[0xff, 0xe6, b'b']);
        assert_eq!(one.position(), (1, 7), "what is no text has a place, too");
    }

    #[test]
    fn modes_are_known_and_a_screen_is_made_smaller() {
        let mut one = screen(10, 5);
        assert!(one.is_set(25) && one.is_set(7) && !one.is_set(2004));
        after(&mut one, "<[?2004;1h><[?25l><[5;10H>");
        assert!(one.is_set(2004) && one.is_set(1) && !one.is_set(25));
        after(&mut one, "<7>");
        one.resize(ScreenSize { cols: 4, rows: 2 });
        assert_eq!(one.position(), (2, 4));
        assert_eq!(after(&mut one, "<[1;1H><8>"), (2, 4));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_cursor_never_leaves_the_screen(
            printed in prop::collection::vec("[a漢\\n\\t\\r]{0,9}|<\\[\\??[0-9;]{0,6}[A-Za-z]>|<[78cDEM]>", 0..30),
            sizes in prop::collection::vec((1..12_u16, 1..6_u16), 1..4),
        ) {
            let mut one = screen(sizes[0].0, sizes[0].1);
            for (at, printed) in printed.iter().enumerate() {
                let (cols, rows) = sizes[at % sizes.len()];
                one.resize(ScreenSize { cols, rows });
                let (row, col) = after(&mut one, printed);
                prop_assert!((1..=usize::from(rows)).contains(&row) && (1..=usize::from(cols)).contains(&col), "{row} {col}");
            }
        }
    }
}
