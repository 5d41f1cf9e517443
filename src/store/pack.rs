//! Packing of consecutive actions on one channel into the bytes of one row.
//!
//! Owns: packing lines, and unpacking them byte by byte as they were.
//! Never: interprets a line. An unusual line packs less well, but does not fail.
//!
//! Lines of a stream differ in a few words in the middle and in the number at their end. So a
//! packed line has the length of the prefix it shares with the line before it, its further bytes,
//! and a flag for the usual ending.

use bytes::Bytes;

use crate::host::effects::{ActionLine, ChannelId, Record};

/// Maximum number of actions in a row, which is removed, or damaged, as a whole.
const ACTIONS_MAX: u64 = 1024;

/// Size of a packed row at which it is full, in bytes.
const BYTES_MAX: usize = 64 << 10;

/// Size of a row's unpacked lines at which it is full, in bytes: they are unpacked together.
const LINE_BYTES_MAX: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Pack<'a> {
    pub(super) target: ChannelId,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) line_bytes: u64,
    pub(super) packed: Vec<u8>,
    /// Last line without its usual ending.
    before: &'a [u8],
}

impl<'a> Pack<'a> {
    fn of(target: ChannelId, line: &'a ActionLine) -> Self {
        let seq = line.server_seq;
        let mut pack = Self { target, first: seq, last: seq, line_bytes: 0, packed: Vec::new(), before: b"" };
        pack.append(line);
        pack
    }

    /// Appends an action, unless it belongs to another row.
    fn take(&mut self, target: ChannelId, line: &'a ActionLine) -> bool {
        let fits = target == self.target
            && line.server_seq == self.last + 1
            && line.server_seq - self.first < ACTIONS_MAX
            && self.packed.len() < BYTES_MAX
            && self.line_bytes < LINE_BYTES_MAX;
        if fits {
            self.append(line);
        }
        fits
    }

    fn append(&mut self, line: &'a ActionLine) {
        let (kept, ends_as_most) = match without_ending(&line.line, line.server_seq) {
            Some(kept) => (kept, true),
            None => (&line.line[..], false),
        };
        let shared = shared(self.before, kept);
        put(&mut self.packed, shared << 1 | usize::from(ends_as_most));
        put(&mut self.packed, kept.len() - shared);
        self.packed.extend_from_slice(&kept[shared..]);
        self.before = kept;
        self.last = line.server_seq;
        self.line_bytes += line.line.len() as u64;
    }
}

/// Returns the packed form of actions without lines.
pub(super) fn emptied(first: u64, last: u64) -> Vec<u8> {
    // Each shares no prefix with the one before it and has no bytes.
    let count = usize::try_from((last + 1).saturating_sub(first)).unwrap_or(usize::MAX);
    [0, 0].repeat(count.min(ACTIONS_MAX as usize))
}

/// Packs the actions among these records, in order.
pub(super) fn packs(records: &[Record]) -> Vec<Pack<'_>> {
    let mut packs: Vec<Pack<'_>> = Vec::new();
    for record in records {
        let Record::Action(target, line) = record else { continue };
        if !packs.last_mut().is_some_and(|pack| pack.take(*target, line)) {
            packs.push(Pack::of(*target, line));
        }
    }
    packs
}

/// Unpacks the actions from `first` to `last`; `None` if the bytes do not fit these numbers.
pub(super) fn unpack(first: u64, last: u64, mut packed: &[u8]) -> Option<Vec<ActionLine>> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let mut before = 0..0;
    for seq in first..=last {
        let (head, length) = (take_number(&mut packed)?, take_number(&mut packed)?);
        let (own, rest) = packed.split_at_checked(length)?;
        packed = rest;
        let (start, shared) = (bytes.len(), head >> 1);
        if shared > before.len() {
            return None;
        }
        bytes.extend_from_within(before.start..before.start + shared);
        bytes.extend_from_slice(own);
        before = start..bytes.len();
        if head & 1 == 1 {
            bytes.extend_from_slice(ending(seq).as_bytes());
        }
        ends.push(bytes.len());
    }
    if !packed.is_empty() {
        return None;
    }
    let (bytes, mut start) = (Bytes::from(bytes), 0);
    let lines = ends.into_iter().zip(first..).map(|(end, server_seq)| {
        let line = bytes.slice(std::mem::replace(&mut start, end)..end);
        ActionLine { line, server_seq, delta: None }
    });
    Some(lines.collect())
}

fn ending(seq: u64) -> String {
    format!(",\"serverSeq\":{seq}}}}}\n")
}

/// Removes [`ending`] from a line that has it. Formats nothing: each delta comes here.
fn without_ending(line: &[u8], mut seq: u64) -> Option<&[u8]> {
    let mut line = line.strip_suffix(b"}}\n")?;
    loop {
        line = line.strip_suffix(&[b'0' + (seq % 10) as u8])?;
        seq /= 10;
        if seq == 0 {
            return line.strip_suffix(b",\"serverSeq\":");
        }
    }
}

/// Length of the common prefix.
fn shared(a: &[u8], b: &[u8]) -> usize {
    const CHUNK: usize = 8;
    let chunks = a.as_chunks::<CHUNK>().0.iter().zip(b.as_chunks::<CHUNK>().0);
    let whole = CHUNK * chunks.take_while(|(a, b)| a == b).count();
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

/// Appends a number, seven bits per byte, the lowest first; each byte but the last has its highest
/// bit set.
fn put(packed: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        packed.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    packed.push(number as u8);
}

fn take_number(packed: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, rest) = packed.split_first()?;
        *packed = rest;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines_of(first: u64, texts: &[Vec<u8>]) -> Vec<ActionLine> {
        let line = |(text, server_seq): (&Vec<u8>, u64)| ActionLine {
            line: Bytes::copy_from_slice(text),
            server_seq,
            delta: None,
        };
        texts.iter().zip(first..).map(line).collect()
    }

    fn packed(lines: &[ActionLine]) -> Pack<'_> {
        let mut pack = Pack::of(ChannelId::ROOT, &lines[0]);
        assert!(lines[1..].iter().all(|line| pack.take(ChannelId::ROOT, line)));
        pack
    }

    /// Lines that share much and end as most do, and others.
    fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let head = prop_oneof![Just("x".repeat(40)), Just("x".repeat(70)), Just(String::new())];
        let tail = prop_oneof![Just(None), Just(Some(0)), Just(Some(1))];
        let line = (head, prop::collection::vec(any::<u8>(), 0..200), tail);
        prop::collection::vec(line, 1..20).prop_map(|lines| {
            let text = |(at, (head, own, tail)): (u64, (String, Vec<u8>, Option<u64>))| {
                let tail = tail.map(|off| ending(7 + at + off)).unwrap_or_default();
                [head.as_bytes(), &own, tail.as_bytes()].concat()
            };
            (0..).zip(lines).map(text).collect()
        })
    }

    proptest! {
        #[test]
        fn what_is_unpacked_is_what_was_packed(texts in texts()) {
            let lines = lines_of(7, &texts);
            let pack = packed(&lines);
            prop_assert_eq!((pack.first, pack.last), (7, 6 + lines.len() as u64));
            prop_assert_eq!(pack.line_bytes as usize, texts.iter().map(Vec::len).sum::<usize>());
            prop_assert_eq!(unpack(pack.first, pack.last, &pack.packed), Some(lines.clone()));
            prop_assert_eq!(unpack(pack.first, pack.last + 1, &pack.packed), None);
            prop_assert_eq!(unpack(pack.first, pack.last - 1, &pack.packed), None);
        }

        #[test]
        fn whatever_is_unpacked_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..100), last in 0..20_u64) {
            unpack(1, last, &bytes);
        }
    }

    #[test]
    fn what_streams_takes_little_more_than_its_own_text() {
        let line =
            |seq: u64| format!("{{\"channel\":\"ahp-chat:/x\",\"content\":\"{seq:020}\"}}{}", ending(seq));
        let texts: Vec<Vec<u8>> = (1..=100).map(|seq| line(seq).into_bytes()).collect();
        let lines = lines_of(1, &texts);
        assert!(packed(&lines).packed.len() < 100 * 24 + 100);
    }

    #[test]
    fn another_channel_a_hole_and_a_full_row_begin_a_new_one() {
        let texts = vec![vec![b'x'; 3]; 2000];
        let lines = lines_of(5, &texts);
        let mut pack = Pack::of(ChannelId::ROOT, &lines[0]);
        assert!(!pack.take(crate::host::effects::SessionKey(1).into(), &lines[1]));
        assert!(!pack.take(ChannelId::ROOT, &lines[2]), "a number is left out");
        let taken = lines[1..].iter().take_while(|line| pack.take(ChannelId::ROOT, line)).count();
        assert_eq!((taken as u64 + 1, pack.last), (ACTIONS_MAX, 4 + ACTIONS_MAX));
        let alike = lines_of(1, &vec![vec![b'x'; BYTES_MAX / 2]; 500]);
        let mut pack = Pack::of(ChannelId::ROOT, &alike[0]);
        let taken = alike[1..].iter().take_while(|line| pack.take(ChannelId::ROOT, line)).count();
        let most = LINE_BYTES_MAX / (BYTES_MAX as u64 / 2);
        assert_eq!(taken as u64 + 1, most, "lines that are packed small are unpacked together");
        let long = lines_of(1, &[vec![b'x'; BYTES_MAX], vec![b'y']]);
        assert!(!Pack::of(ChannelId::ROOT, &long[0]).take(ChannelId::ROOT, &long[1]));
    }
}
