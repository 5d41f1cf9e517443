//! Queries of a program to its terminal.
//!
//! Any number of clients show a terminal, and each would answer, again after every reconnect.
//! Therefore the host answers a query once and does not pass it on. Some queries have no answer on
//! purpose: a program could have a title or a clipboard that it reads back typed into a shell.
//!
//! Owns: which sequences are queries, and their answers.
//! Never: changes the content of the terminal.

use super::screen::{Csi, ScreenModel};

const NAME: &str = concat!(env!("CARGO_PKG_NAME"), "(", env!("CARGO_PKG_VERSION"), ")");

/// Colours of text (and cursor) and of the background, as 0xRRGGBB.
const FOREGROUND: u32 = 0xcc_cccc;
const BACKGROUND: u32 = 0x1e_1e1e;

#[rustfmt::skip]
const PALETTE: [u32; 16] = [
    0x00_0000, 0xcd_0000, 0x00_cd00, 0xcd_cd00, 0x00_00ee, 0xcd_00cd, 0x00_cdcd, 0xe5_e5e5,
    0x7f_7f7f, 0xff_0000, 0x00_ff00, 0xff_ff00, 0x5c_5cff, 0xff_00ff, 0x00_ffff, 0xff_ffff,
];

/// Returns the answer to a sequence: empty for a query without an answer, `None` for no query.
pub fn reply_to_sequence(sequence: &[u8], screen: &ScreenModel) -> Option<String> {
    const ATTRIBUTES: &str = "\x1b[?62;22c";
    if sequence == b"\x1bZ" {
        return Some(ATTRIBUTES.to_owned());
    }
    let csi = Csi::of(sequence)?;
    let first = csi.number(0);
    let (row, col) = screen.position();
    let (rows, cols) = screen.size();
    let no_answer = || Some(String::new());
    match (csi.marker, csi.narrowed, csi.last) {
        (None, None, b'c') if first == 0 => Some(ATTRIBUTES.to_owned()),
        // Some programs assume more features for version numbers from 277 on.
        (Some(b'>'), None, b'c') if first == 0 => Some("\x1b[>0;276;0c".to_owned()),
        (Some(b'='), None, b'c') if first == 0 => Some("\x1bP!|00000000\x1b\\".to_owned()),
        (None, None, b'n') => match first {
            5 => Some("\x1b[0n".to_owned()),
            6 => Some(format!("\x1b[{row};{col}R")),
            _ => no_answer(),
        },
        (Some(b'?'), None, b'n') => match first {
            6 => Some(format!("\x1b[?{row};{col}R")),
            // The colour scheme is dark.
            996 => Some("\x1b[?997;1n".to_owned()),
            _ => no_answer(),
        },
        (Some(b'?'), Some(b'$'), b'p') => {
            let value = match (ScreenModel::knows(first), screen.is_set(first)) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => 2,
            };
            Some(format!("\x1b[?{first};{value}$y"))
        }
        (None, Some(b'$'), b'p') => Some(format!("\x1b[{first};0$y")),
        (Some(b'>'), None, b'q') if first == 0 => Some(format!("\x1bP>|{NAME}\x1b\\")),
        (None, None, b't') => match first {
            18 => Some(format!("\x1b[8;{rows};{cols}t")),
            19 => Some(format!("\x1b[9;{rows};{cols}t")),
            11 | 13..=17 | 20 | 21 => no_answer(),
            _ => None,
        },
        // Keyboard protocol flags: unsupported, as programs learn from the answer to a later query.
        (Some(b'?'), None, b'u')
        // Other reports on the screen, its parameters, marks and colours.
        | (None, None, b'x')
        | (Some(b'?'), None, b'm' | b'S')
        | (None, Some(b'$'), b'u' | b'w')
        | (None, Some(b'*'), b'y')
        | (None, Some(b'&'), b'u')
        | (None, Some(b'#'), b'R' | b'|') => no_answer(),
        _ => None,
    }
}

/// Returns the answer to a device control string, as [`reply_to_sequence`] does.
pub fn reply_to_device_string(content: &[u8]) -> Option<String> {
    match content.get(..2) {
        // Requests for a capability or a setting: neither is known.
        Some(b"+q") => Some("\x1bP0+r\x1b\\".to_owned()),
        Some(b"$q") => Some("\x1bP0$r\x1b\\".to_owned()),
        _ => None,
    }
}

/// Returns the answer to an operating system command, as [`reply_to_sequence`] does. The answer
/// ends with `end`, the terminator of the command.
pub fn reply_to_command(content: &[u8], end: &str) -> Option<String> {
    let content = String::from_utf8_lossy(content);
    let (number, rest) = content.split_once(';').unwrap_or((&content, ""));
    let mut values = rest.split(';');
    let asks = || rest.split(';').any(|value| value == "?");
    match number {
        "4" if asks() => {
            let mut answers = String::new();
            while let (Some(index), Some(value)) = (values.next(), values.next()) {
                if let (Ok(known), "?") = (index.parse::<u8>(), value) {
                    answers.push_str(&format!("\x1b]4;{known};{}{end}", in_hex(colour(known))));
                }
            }
            Some(answers)
        }
        "10" | "11" | "12" if asks() => {
            // Consecutive values are for consecutive numbers.
            let from = number.parse::<u8>().unwrap_or(10);
            let answers = values.zip(from..).filter(|(value, _)| *value == "?").map(|(_, number)| {
                let colour = match number {
                    10 | 12 => FOREGROUND,
                    11 => BACKGROUND,
                    _ => return String::new(),
                };
                format!("\x1b]{number};{}{end}", in_hex(colour))
            });
            Some(answers.collect())
        }
        "5" | "13" | "14" | "15" | "16" | "17" | "18" | "19" | "50" | "52" if asks() => Some(String::new()),
        "21" if rest.split(';').any(|value| value.ends_with("=?")) => Some(String::new()),
        "1337" => {
            let asks = ["ReportCellSize", "ReportVariable=", "Capabilities", "RequestUpload="];
            asks.iter().any(|asks| rest.starts_with(asks)).then(String::new)
        }
        _ => None,
    }
}

fn in_hex(colour: u32) -> String {
    let [_, red, green, blue] = colour.to_be_bytes();
    format!("rgb:{red:02x}{red:02x}/{green:02x}{green:02x}/{blue:02x}{blue:02x}")
}

/// Returns a colour of the palette: sixteen fixed colours, a colour cube, and shades of grey.
fn colour(index: u8) -> u32 {
    let of_cube = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
    match index {
        0..=15 => PALETTE[usize::from(index)],
        16..=231 => {
            let at = index - 16;
            u32::from_be_bytes([0, of_cube(at / 36), of_cube(at / 6 % 6), of_cube(at % 6)])
        }
        _ => u32::from(8 + 10 * (index - 232)) * 0x01_0101,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::ScreenSize;

    #[test]
    fn every_question_is_answered_as_a_terminal_does() {
        let mut screen = ScreenModel::new(ScreenSize { cols: 80, rows: 24 });
        screen.obey(b"\x1b[3;7H");
        screen.obey(b"\x1b[?2004h");
        for (asked, answer) in [
            ("\x1b[c", Some("\x1b[?62;22c")),
            ("\x1b[0c", Some("\x1b[?62;22c")),
            ("\x1bZ", Some("\x1b[?62;22c")),
            ("\x1b[>c", Some("\x1b[>0;276;0c")),
            ("\x1b[=c", Some("\x1bP!|00000000\x1b\\")),
            ("\x1b[5n", Some("\x1b[0n")),
            ("\x1b[6n", Some("\x1b[3;7R")),
            ("\x1b[?6n", Some("\x1b[?3;7R")),
            ("\x1b[?2004$p", Some("\x1b[?2004;1$y")),
            ("\x1b[?1049$p", Some("\x1b[?1049;2$y")),
            ("\x1b[?2026$p", Some("\x1b[?2026;0$y")),
            ("\x1b[4$p", Some("\x1b[4;0$y")),
            ("\x1b[>q", Some(concat!("\x1bP>|ahp-sidecar(", env!("CARGO_PKG_VERSION"), ")\x1b\\"))),
            ("\x1b[?u", Some("")),
            ("\x1b[18t", Some("\x1b[8;24;80t")),
            ("\x1b[21t", Some("")),
            // These ask nothing.
            ("\x1b[22;0t", None),
            ("\x1b[>4n", None),
            ("\x1b[>1u", None),
            ("\x1b[<u", None),
            ("\x1b[2 q", None),
            ("\x1b[m", None),
            ("\x1b[>4;2m", None),
            ("\x1b[?25h", None),
            ("\x1b[3;4H", None),
            ("\x1b(B", None),
        ] {
            assert_eq!(reply_to_sequence(asked.as_bytes(), &screen).as_deref(), answer, "{asked:?}");
        }
    }

    #[test]
    fn colours_are_answered_and_text_that_could_be_typed_back_is_not() {
        for (asked, answer) in [
            ("10;?", Some("\x1b]10;rgb:cccc/cccc/ccccE")),
            ("11;?", Some("\x1b]11;rgb:1e1e/1e1e/1e1eE")),
            ("10;?;?", Some("\x1b]10;rgb:cccc/cccc/ccccE\x1b]11;rgb:1e1e/1e1e/1e1eE")),
            ("12;?", Some("\x1b]12;rgb:cccc/cccc/ccccE")),
            ("4;1;?", Some("\x1b]4;1;rgb:cdcd/0000/0000E")),
            ("4;16;?;231;?", Some("\x1b]4;16;rgb:0000/0000/0000E\x1b]4;231;rgb:ffff/ffff/ffffE")),
            ("4;255;?", Some("\x1b]4;255;rgb:eeee/eeee/eeeeE")),
            ("4;256;?", Some("")),
            ("52;c;?", Some("")),
            ("52;c;aGk=", None),
            ("10;#ffffff", None),
            ("0;what?", None),
            ("0;?", None),
            ("8;;https://x/?", None),
        ] {
            assert_eq!(reply_to_command(asked.as_bytes(), "E").as_deref(), answer, "{asked:?}");
        }
        assert_eq!(reply_to_device_string(b"+q544e").as_deref(), Some("\x1bP0+r\x1b\\"));
        assert_eq!(reply_to_device_string(b"$qm").as_deref(), Some("\x1bP0$r\x1b\\"));
        assert_eq!(reply_to_device_string(b"q~"), None);
    }
}
