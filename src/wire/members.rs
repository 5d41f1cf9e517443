//! Members of a JSON object, found in one pass.
//!
//! Owns: deciding whether a text is a JSON object that `serde_json` accepts, with valid UTF-8 and
//! limited nesting; and splitting it into members.
//! Never: parses a value, or reports what is wrong with a text.

use std::borrow::Cow;

/// Maximum nesting of arrays and objects, the outermost one included: one bit for each level.
pub const NESTING_MAX: usize = 127;

/// Calls `each` with the name and text of every member, in order. Returns whether the text is an
/// object; if it is not, some members may have been visited before that is known.
pub fn visit_members<'a>(json: &'a [u8], each: impl FnMut(Cow<'a, [u8]>, &'a [u8])) -> bool {
    let mut scanner = Scanner { json, at: 0 };
    scanner.object(each).is_some() && (json.is_ascii() || std::str::from_utf8(json).is_ok())
}

/// Position in a text. Methods return `None` if the text is not JSON.
struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn object(&mut self, mut each: impl FnMut(Cow<'a, [u8]>, &'a [u8])) -> Option<()> {
        self.expect(b'{')?;
        if self.token()? == b'}' {
            self.at += 1;
        } else {
            loop {
                let name = self.name()?;
                self.token()?;
                let start = self.at;
                self.value()?;
                each(name, &self.json[start..self.at]);
                match self.next_token()? {
                    b',' => {}
                    b'}' => break,
                    _ => return None,
                }
            }
        }
        self.token().is_none().then_some(())
    }

    fn name(&mut self) -> Option<Cow<'a, [u8]>> {
        self.expect(b'"')?;
        let start = self.at;
        let has_escapes = self.string()?;
        let text = &self.json[start..self.at - 1];
        let name = if has_escapes {
            let name: String = serde_json::from_slice(&self.json[start - 1..self.at]).ok()?;
            Cow::Owned(name.into_bytes())
        } else {
            Cow::Borrowed(text)
        };
        self.expect(b':')?;
        Some(name)
    }

    fn skip_name(&mut self) -> Option<()> {
        self.expect(b'"')?;
        self.string()?;
        self.expect(b':')
    }

    /// Skips a value inside of the object.
    fn value(&mut self) -> Option<()> {
        // One bit for each level, set for objects; the innermost level is lowest.
        let (mut objects, mut depth) = (0u128, 1);
        loop {
            match self.next_token()? {
                b'"' => self.string().map(|_| ())?,
                open @ (b'{' | b'[') => {
                    if depth == NESTING_MAX {
                        return None;
                    }
                    let is_object = open == b'{';
                    if self.token()? == if is_object { b'}' } else { b']' } {
                        self.at += 1;
                    } else {
                        (objects, depth) = (objects << 1 | u128::from(is_object), depth + 1);
                        if is_object {
                            self.skip_name()?;
                        }
                        continue;
                    }
                }
                b't' => self.word(b"rue")?,
                b'f' => self.word(b"alse")?,
                b'n' => self.word(b"ull")?,
                first => self.number(first)?,
            }
            // A value has ended, and possibly those around it.
            loop {
                if depth == 1 {
                    return Some(());
                }
                let is_object = objects & 1 == 1;
                match self.next_token()? {
                    b',' => {
                        if is_object {
                            self.skip_name()?;
                        }
                        break;
                    }
                    b'}' if is_object => {}
                    b']' if !is_object => {}
                    _ => return None,
                }
                (objects, depth) = (objects >> 1, depth - 1);
            }
        }
    }

    /// Skips a string behind its opening quote. Returns whether it has escapes.
    fn string(&mut self) -> Option<bool> {
        let mut has_escapes = false;
        loop {
            while let Some(eight) = self.json[self.at..].first_chunk() {
                match plain_bytes(u64::from_le_bytes(*eight)) {
                    8 => self.at += 8,
                    plain => {
                        self.at += plain;
                        break;
                    }
                }
            }
            match self.byte()? {
                b'"' => return Some(has_escapes),
                b'\\' => {
                    has_escapes = true;
                    match self.byte()? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            let digits = self.json.get(self.at..self.at + 4)?;
                            digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                            self.at += 4;
                        }
                        _ => return None,
                    }
                }
                0..=0x1f => return None,
                _ => {}
            }
        }
    }

    /// Skips a number behind its first byte.
    fn number(&mut self, first: u8) -> Option<()> {
        match if first == b'-' { self.byte()? } else { first } {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        if self.json.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.byte()?.is_ascii_digit().then_some(())?;
            self.digits();
        }
        if let Some(b'e' | b'E') = self.json.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.json.get(self.at) {
                self.at += 1;
            }
            self.byte()?.is_ascii_digit().then_some(())?;
            self.digits();
        }
        Some(())
    }

    fn digits(&mut self) {
        while self.json.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn word(&mut self, rest: &[u8]) -> Option<()> {
        self.json[self.at..].starts_with(rest).then(|| self.at += rest.len())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.json.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Returns the next byte that is not white space, without taking it.
    fn token(&mut self) -> Option<u8> {
        loop {
            match *self.json.get(self.at)? {
                b' ' | b'\n' | b'\t' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Takes the next byte that is not white space.
    fn next_token(&mut self) -> Option<u8> {
        let token = self.token()?;
        self.at += 1;
        Some(token)
    }

    fn expect(&mut self, token: u8) -> Option<()> {
        (self.next_token()? == token).then_some(())
    }
}

/// Returns the number of bytes before the first quote, backslash or control character. The lowest
/// of the eight bytes is the first.
fn plain_bytes(eight: u64) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGHEST_BITS: u64 = ONES << 7;
    // Sets the highest bit of the first byte below `limit`, and perhaps of later ones.
    let below = |bytes: u64, limit: u64| bytes.wrapping_sub(ONES * limit) & !bytes;
    let is = |byte: u8| below(eight ^ (ONES * u64::from(byte)), 1);
    let special = (below(eight, 0x20) | is(b'"') | is(b'\\')) & HIGHEST_BITS;
    (special.trailing_zeros() / 8) as usize
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use proptest::prelude::*;
    use serde::de::{MapAccess, Visitor};
    use serde::{Deserialize, Deserializer};
    use serde_json::value::RawValue;
    use serde_json::Value;

    use super::*;
    use crate::wire::rpc::nesting_fits;

    /// Names and texts of members.
    type Members = Vec<(Vec<u8>, Vec<u8>)>;

    fn members(json: &[u8]) -> Option<Members> {
        let mut members = Members::new();
        visit_members(json, |name, text| members.push((name.into_owned(), text.to_owned())))
            .then_some(members)
    }

    /// Returns the members as `serde_json` finds them.
    fn members_of_serde(json: &[u8]) -> Option<Members> {
        struct Pairs(Members);
        impl<'de> Deserialize<'de> for Pairs {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(Pairs(Members::new()))
            }
        }
        impl<'de> Visitor<'de> for Pairs {
            type Value = Self;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<Self, M::Error> {
                while let Some((name, text)) = map.next_entry::<String, &RawValue>()? {
                    self.0.push((name.into_bytes(), text.get().into()));
                }
                Ok(self)
            }
        }
        let text = std::str::from_utf8(json).ok().filter(|_| nesting_fits(json, NESTING_MAX))?;
        serde_json::from_str::<Pairs>(text).ok().map(|pairs| pairs.0)
    }

    /// Texts of values, some of which are not JSON.
    const VALUES: &[&str] = &[
        "0",
        "-0",
        "12",
        "-3.25",
        "1e9",
        "1E+9",
        "0.5e-1",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e",
        "0x1",
        "NaN",
        "true",
        "false",
        "null",
        "nul",
        "truee",
        "[]",
        "{}",
        "[ ]",
        "{\t}",
        "[1,]",
        "{\"a\":1,}",
        "[1 2]",
        "\"\\u00e9\"",
        "\"\\ud800\"",
        "\"\\ud83d\\ude00\"",
        "\"\\u12g4\"",
        "\"\\u12\"",
        "\"\\x\"",
        "\"\\\"\"",
        "\"\\\\\"",
        "\"\t\"",
        "\"\u{7f}\"",
        "\"",
        "'a'",
        "",
    ];

    fn string() -> impl Strategy<Value = String> {
        "[ -~é\u{1F600}\n]{0,20}".prop_map(|text| Value::String(text).to_string())
    }

    fn value() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![3 => string(), 1 => prop::sample::select(VALUES).prop_map(str::to_owned)];
        leaf.prop_recursive(5, 30, 4, |inner| {
            let list =
                prop::collection::vec(inner.clone(), 0..4).prop_map(|all| format!("[{}]", all.join(" ,")));
            prop_oneof![list, object(inner)]
        })
    }

    fn object(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
        let name = prop_oneof![string(), Just("\"a\"".to_owned()), Just("\"\\u0061\\ud800\"".to_owned())];
        let member =
            (name, "[ \r\t]{0,1}", value).prop_map(|(name, space, value)| format!("{name}{space}:{value}"));
        prop::collection::vec(member, 0..5).prop_map(|all| format!("{{{}}}", all.join(", ")))
    }

    proptest! {
        #[test]
        fn members_are_those_that_serde_finds(
            object in object(value()),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>(), any::<bool>())),
        ) {
            let mut json = object.into_bytes();
            if let Some((at, byte, replaces)) = damage {
                let at = at.index(json.len());
                json.splice(at..at + usize::from(replaces), [byte]);
            }
            prop_assert_eq!(members(&json), members_of_serde(&json));
        }
    }

    #[test]
    fn values_are_those_that_serde_reads() {
        for value in VALUES {
            for json in
                [format!("{{\"a\":{value}}}"), format!(" {{\"a\":[{value}]\r\n}} "), format!("{value}x")]
            {
                assert_eq!(members(json.as_bytes()), members_of_serde(json.as_bytes()), "{json}");
            }
        }
    }

    #[test]
    fn string_of_any_length_ends_where_it_ends() {
        for length in 0..40 {
            for end in ["\"", "\\n\"", "\u{1}\"", "é\"", "\\", ""] {
                let json = format!("{{\"a\":\"{}{end}}}", "x".repeat(length));
                assert_eq!(members(json.as_bytes()), members_of_serde(json.as_bytes()), "{json}");
            }
        }
    }

    #[test]
    fn nesting_is_limited() {
        for depth in [126, 127, 128, 200] {
            let json = format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
            assert_eq!(members(json.as_bytes()).is_some(), depth <= NESTING_MAX, "{depth}");
            assert_eq!(members(json.as_bytes()), members_of_serde(json.as_bytes()));
        }
    }
}
