//! Removal of a shell's word from the clients' output, since `set` and the like print all
//! variables.
//!
//! Owns: finding the word in output that arrives in pieces.
//! Never: holds back other bytes than a beginning of the word, or changes any other byte.

/// Number of leading bytes of the word that are never held back; the rest suffices as a secret.
const SHOWN: usize = 8;

#[derive(Debug)]
pub struct WordRedactor {
    word: Vec<u8>,
    /// Number of bytes at the end of the stream that match the beginning of the word.
    matched: usize,
    /// Number of those bytes that were returned.
    shown: usize,
}

impl WordRedactor {
    pub fn new(word: &str) -> Self {
        Self { word: word.as_bytes().to_vec(), matched: 0, shown: 0 }
    }

    /// Adds bytes to the stream; returns the bytes that may be shown now.
    pub fn redact(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(bytes.len() + self.matched);
        while let Some((&byte, behind)) = bytes.split_first() {
            if self.matched == 0 {
                let begins = self.word.first().and_then(|first| memchr::memchr(*first, bytes));
                let (before, rest) = bytes.split_at(begins.unwrap_or(bytes.len()));
                shown.extend_from_slice(before);
                bytes = rest;
                if !before.is_empty() {
                    continue;
                }
            }
            let came = [&self.word[..self.matched], &[byte]].concat();
            let matched =
                (0..=came.len()).rev().find(|count| came.ends_with(&self.word[..*count])).unwrap_or(0);
            if matched == self.word.len() {
                // The shown beginning of the word remains visible.
                self.matched = self.shown;
            } else {
                let before = came.len() - matched;
                let until = self.shown.max(before + SHOWN.min(matched));
                shown.extend_from_slice(&came[self.shown..until]);
                (self.matched, self.shown) = (matched, until - before);
            }
            bytes = behind;
        }
        shown
    }

    /// Returns the bytes that are held back. Those that complete the word are removed all the same.
    pub fn flush(&mut self) -> Vec<u8> {
        let held = self.word[self.shown..self.matched].to_vec();
        self.shown = self.matched;
        held
    }

    pub fn redacted(&self, text: &str) -> String {
        match std::str::from_utf8(&self.word) {
            Ok(word) if !word.is_empty() => text.replace(word, ""),
            _ => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORD: &str = "aabaaabaacaabaaabaad";
    const RANDOM: &str = "f00dcafe0123456789abcdef00112233";

    proptest! {
        #[test]
        fn word_is_removed_wherever_it_is_cut_and_all_else_is_shown(
            parts in prop::collection::vec(prop_oneof![
                Just(WORD.to_owned()), (0..WORD.len()).prop_map(|at| WORD[..at].to_owned()), "[abcd x]{0,9}",
            ], 0..12),
            length in 1..40_usize,
        ) {
            let all = parts.concat();
            let mut redactor = WordRedactor::new(WORD);
            let mut shown = Vec::new();
            for piece in all.as_bytes().chunks(length) {
                shown.extend(redactor.redact(piece));
            }
            shown.extend(redactor.flush());
            let expected = all.replace(WORD, &WORD[..SHOWN]);
            prop_assert_eq!(String::from_utf8(shown).unwrap(), expected);
        }

        /// Of a word that does not repeat its beginning, as a random one.
        #[test]
        fn word_is_removed_also_where_its_beginning_was_flushed(
            parts in prop::collection::vec(prop_oneof![
                Just(RANDOM.to_owned()), (0..RANDOM.len()).prop_map(|at| RANDOM[..at].to_owned()),
                (0..RANDOM.len()).prop_map(|at| RANDOM[at..].to_owned()), "[0-9a-f]{0,9}",
            ], 0..12),
            length in 1..40_usize,
        ) {
            let all = parts.concat();
            let mut redactor = WordRedactor::new(RANDOM);
            let mut shown = Vec::new();
            for piece in all.as_bytes().chunks(length) {
                shown.extend(redactor.redact(piece));
                shown.extend(redactor.flush());
            }
            let shown = String::from_utf8(shown).unwrap();
            prop_assert!(!shown.contains(RANDOM));
            prop_assert!(shown == all || all.contains(RANDOM));
        }
    }

    #[test]
    fn no_more_than_the_beginning_of_the_word_is_shown_and_typed_characters_at_once() {
        let mut redactor = WordRedactor::new(WORD);
        for byte in &WORD.as_bytes()[..SHOWN] {
            assert_eq!(redactor.redact(&[*byte]), [*byte]);
        }
        assert_eq!(redactor.redact(&WORD.as_bytes()[SHOWN..]), b"");
        assert_eq!(redactor.redact(b"x"), b"x");
    }
}
