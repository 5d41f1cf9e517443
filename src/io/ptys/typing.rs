//! Queue of bytes to be written into a terminal.
//!
//! Owns: the order of typed bytes and of the host's answers, and which bytes are which.
//! Never: writes, or lets unread answers grow without a limit.

use std::collections::VecDeque;

/// Maximum size of the answers in the queue, in bytes; further answers are dropped.
const ANSWERS_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct InputQueue {
    bytes: VecDeque<u8>,
    /// Length of each piece in the queue, and whether clients have typed it.
    pieces: VecDeque<(usize, bool)>,
    answers_bytes: usize,
}

impl InputQueue {
    pub fn typed(&mut self, bytes: &[u8]) {
        self.put(bytes, true);
    }

    /// Queues an answer of the host, or drops it if too many answers are pending.
    pub fn answer(&mut self, bytes: &[u8]) {
        if self.answers_bytes + bytes.len() <= ANSWERS_BYTES_MAX {
            self.answers_bytes += bytes.len();
            self.put(bytes, false);
        }
    }

    fn put(&mut self, bytes: &[u8], of_client: bool) {
        if !bytes.is_empty() {
            self.bytes.extend(bytes);
            self.pieces.push_back((bytes.len(), of_client));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next bytes to be written, without removing them.
    pub fn next(&self) -> &[u8] {
        self.bytes.as_slices().0
    }

    /// Removes `count` written bytes; returns the number of those that clients have typed.
    pub fn written(&mut self, count: usize) -> usize {
        self.bytes.drain(..count.min(self.bytes.len()));
        let (mut left, mut of_clients) = (count, 0);
        while let Some((length, of_client)) = self.pieces.front_mut() {
            let done = left.min(*length);
            left -= done;
            *length -= done;
            if *of_client {
                of_clients += done;
            } else {
                self.answers_bytes -= done;
            }
            if *length > 0 {
                break;
            }
            self.pieces.pop_front();
        }
        of_clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_bytes_and_answers_keep_their_order_and_are_counted_separately() {
        let mut typing = InputQueue::default();
        typing.typed(b"abc");
        typing.answer(b"XY");
        typing.typed(b"d");
        assert_eq!(typing.bytes, *b"abcXYd");
        assert_eq!([typing.written(2), typing.written(2), typing.written(2)], [2, 1, 1]);
        assert!(typing.is_empty() && typing.pieces.is_empty() && typing.answers_bytes == 0);
    }

    #[test]
    fn unread_answers_are_bounded() {
        let mut typing = InputQueue::default();
        typing.answer(&vec![b'x'; ANSWERS_BYTES_MAX - 1]);
        typing.answer(b"ab");
        typing.answer(b"a");
        typing.answer(b"a");
        assert_eq!(typing.bytes.len(), ANSWERS_BYTES_MAX);
        typing.written(1);
        typing.answer(b"a");
        assert_eq!(typing.bytes.len(), ANSWERS_BYTES_MAX);
    }
}
