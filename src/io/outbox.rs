//! Queue of lines to be written to a client.
//!
//! Owns: the order of lines; the count of queued bytes; delaying deltas as far as their client
//! permits; and merging deltas while the client reads too slowly, in memory that queues share.
//! Never: drops a line, reads a clock, or reorders lines; only lines without state overtake deltas.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::backlog::{Backlog, SharedDeltas, SharedLine};
use crate::host::effects::{DeltaRun, PartKey};
use crate::wire::action_lines::{DeltaLines, MergedDeltas};

/// Limits on queued output, in bytes, and on the time without progress.
#[derive(Debug, Clone, Copy)]
pub struct OutboxLimits {
    /// Queue size above which deltas of one part are merged.
    pub merge_above: usize,
    /// Queue size from which agents are not read.
    pub agents_above: usize,
    /// Queue size from which the input of its client is not read either.
    pub clients_above: usize,
    /// Maximum of all connections combined: queued output, and input that is not handled.
    pub total: usize,
    /// Maximum length of a merged line.
    pub merged_max: usize,
    /// Time after which a client that blocks agents without reading is cut off, if another reads.
    pub stall_limit: Duration,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self {
            merge_above: 256 << 10,
            agents_above: 64 << 20,
            clients_above: 256 << 20,
            total: 512 << 20,
            merged_max: 1 << 20,
            stall_limit: Duration::from_secs(30),
        }
    }
}

impl OutboxLimits {
    /// Returns the limits for this total of all connections. A single connection gets at most half
    /// of it, so that a client that is alone blocks the host instead of being disconnected.
    #[must_use]
    pub fn within(self, total: usize) -> Self {
        let of = |limit: usize| limit.min(total / 2);
        Self { agents_above: of(self.agents_above), clients_above: of(self.clients_above), total, ..self }
    }
}

#[derive(Debug)]
enum Queued {
    /// Line, or lines of deltas, of a queue that is below the merge limit.
    Lines(Bytes),
    /// Line that the backlog counts once for all queues.
    Shared(SharedLine),
    /// Merged deltas, which the backlog counts.
    Deltas(Box<SharedDeltas>),
}

impl Queued {
    fn len(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.len(),
            Self::Shared(shared) => shared.line().len(),
            Self::Deltas(deltas) => deltas.len(),
        }
    }

    /// Returns the length if the backlog counts the entry, else 0.
    fn shared_bytes(&self) -> usize {
        match self {
            Self::Lines(_) => 0,
            Self::Shared(_) | Self::Deltas(_) => self.len(),
        }
    }

    fn into_lines(self) -> Bytes {
        match self {
            Self::Lines(lines) => lines,
            Self::Shared(shared) => shared.line().clone(),
            Self::Deltas(deltas) => deltas.to_line(),
        }
    }
}

/// Output queue of one connection.
#[derive(Debug)]
pub struct Outbox {
    limits: OutboxLimits,
    backlog: Backlog,
    lines: VecDeque<Queued>,
    /// Index behind the last entry that is not a delta; [`Self::push_ahead`] inserts there.
    fixed: usize,
    /// Delayed deltas behind all other lines, one per part, in the order of their last change.
    held: Vec<HeldDeltas>,
    /// Deltas that are being merged, behind all lines.
    merging: Option<(PartKey, Box<SharedDeltas>)>,
    waiting: usize,
    /// Part of `waiting` that the backlog counts for all queues.
    shared: usize,
    /// Bytes that were taken and are not written yet.
    taken: usize,
    /// Bytes of a message that is still being written in pieces, and of the lines behind it.
    coming: usize,
    /// Bytes of answers since the queue was last empty, which its client has requested.
    asked: usize,
}

#[derive(Debug)]
struct HeldDeltas {
    part: PartKey,
    deltas: MergedDeltas,
    /// Deadline for sending them; `None` if it is beyond the range of the clock.
    due: Option<Instant>,
}

impl Outbox {
    /// Creates an empty queue that shares the memory of lines through this backlog.
    pub fn new(limits: OutboxLimits, backlog: Backlog) -> Self {
        Self {
            limits,
            backlog,
            lines: VecDeque::new(),
            fixed: 0,
            held: Vec::new(),
            merging: None,
            waiting: 0,
            shared: 0,
            taken: 0,
            coming: 0,
            asked: 0,
        }
    }

    /// Returns the number of bytes that are queued, expected, or taken and not written yet.
    pub fn bytes(&self) -> usize {
        self.unread() + self.coming
    }

    /// Returns the number of bytes that the client has still to read, without expected ones.
    pub fn unread(&self) -> usize {
        self.waiting + self.taken
    }

    /// Returns the part of [`Self::unread`] that the backlog does not count.
    pub fn own(&self) -> usize {
        self.unread() - self.shared
    }

    /// Returns whether there is room for reports of agents, with `coming` more bytes in flight.
    pub fn has_room_for_agents(&self, coming: usize) -> bool {
        self.bytes() + coming < self.limits.agents_above
    }

    /// Returns whether there is room for answers to clients, with `coming` more bytes in flight.
    pub fn has_room_for_clients(&self, coming: usize) -> bool {
        self.bytes() + coming < self.limits.clients_above
    }

    /// Returns when to disconnect a client that has not read since `progress` while another one
    /// reads. At once if more is queued, beyond the answers that it requested, than memory permits.
    pub fn stalls_at(&self, progress: Instant) -> Option<Instant> {
        // Expected bytes count only if earlier ones are unread: the client causes the delay.
        let waiting = if self.unread() > 0 { self.bytes() } else { 0 };
        if waiting >= self.limits.clients_above.saturating_add(self.asked) {
            return Some(progress);
        }
        let is_behind = waiting >= self.limits.agents_above;
        is_behind.then(|| progress.checked_add(self.limits.stall_limit)).flatten()
    }

    /// Returns when to drop a closing connection whose client has not read since `progress`.
    pub fn lingers_until(&self, progress: Instant) -> Option<Instant> {
        progress.checked_add(self.limits.stall_limit).filter(|_| self.unread() > 0)
    }

    /// Notes that this number of bytes will be queued.
    pub fn expect(&mut self, bytes: usize) {
        self.coming += bytes;
    }

    /// Notes that this number of expected bytes is queued now.
    pub fn expected_come(&mut self, bytes: usize) {
        self.coming = self.coming.saturating_sub(bytes);
    }

    /// Notes that this number of bytes answers a request of the client.
    pub fn note_answer(&mut self, bytes: usize) {
        self.asked += bytes;
    }

    /// Appends a line.
    pub fn push(&mut self, line: Bytes) {
        self.release();
        self.settle();
        self.waiting += line.len();
        let queued = self.queued(line);
        self.lines.push_back(queued);
        self.fixed = self.lines.len();
    }

    /// Appends deltas, which may be merged with those before.
    pub fn push_deltas(&mut self, run: DeltaRun) {
        self.release();
        self.enqueue(run.part, &run.lines, true);
    }

    /// Inserts a line that shows no state behind the last line that is not a delta.
    pub fn push_ahead(&mut self, line: Bytes) {
        self.waiting += line.len();
        // The line is in no other queue, so the backlog need not count it.
        self.lines.insert(self.fixed, Queued::Lines(line));
        self.fixed += 1;
    }

    /// Appends deltas that may be delayed and merged for this time; neither if it is zero.
    pub fn push_within(&mut self, run: DeltaRun, delay: Duration, now: Instant) {
        if delay.is_zero() {
            self.release();
            return self.enqueue(run.part, &run.lines, false);
        }
        if self.bytes() > self.limits.merge_above {
            // They are merged anyway, and shared with other queues.
            return self.push_deltas(run);
        }
        if let Some(at) = self.held.iter().position(|held| held.part == run.part) {
            let deltas = &mut self.held[at].deltas;
            let before = deltas.len();
            if deltas.append(&run.lines, self.limits.merged_max) {
                self.waiting += deltas.len() - before;
                // Deltas keep the order of their last change.
                self.held[at..].rotate_left(1);
                return;
            }
            self.release();
        }
        let deltas = MergedDeltas::new(&run.lines);
        self.waiting += deltas.len();
        self.held.push(HeldDeltas { part: run.part, deltas, due: now.checked_add(delay) });
    }

    /// Returns the next deadline of delayed deltas; `None` if there is none.
    pub fn due(&self) -> Option<Instant> {
        self.held.iter().filter_map(|held| held.due).min()
    }

    /// Queues all delayed deltas, so that their order is preserved.
    pub fn release(&mut self) {
        for HeldDeltas { part, deltas, .. } in std::mem::take(&mut self.held) {
            self.waiting -= deltas.len();
            self.enqueue(part, &deltas.into_lines(), true);
        }
    }

    fn enqueue(&mut self, part: PartKey, lines: &DeltaLines, may_merge: bool) {
        self.waiting += lines.lines().len();
        if self.bytes() <= self.limits.merge_above {
            self.settle();
            self.lines.push_back(Queued::Lines(lines.lines().clone()));
        } else if may_merge {
            self.merge(part, lines);
        } else {
            self.settle();
            for line in lines.each() {
                let queued = self.queued(line);
                self.lines.push_back(queued);
            }
        }
    }

    /// Makes an entry, which the backlog counts if this queue is above the merge limit.
    fn queued(&mut self, line: Bytes) -> Queued {
        if self.bytes() <= self.limits.merge_above {
            return Queued::Lines(line);
        }
        self.shared += line.len();
        Queued::Shared(self.backlog.line(line))
    }

    /// Takes entries from the front that fit into `bytes_max`, at least one unless none is queued.
    pub fn take(&mut self, bytes_max: usize) -> Vec<Bytes> {
        self.settle();
        let mut taken = Vec::new();
        let mut bytes = 0;
        while let Some(queued) = self.lines.pop_front() {
            if !taken.is_empty() && bytes + queued.len() > bytes_max {
                self.lines.push_front(queued);
                break;
            }
            bytes += queued.len();
            self.shared -= queued.shared_bytes();
            taken.push(queued.into_lines());
        }
        self.fixed = self.fixed.saturating_sub(taken.len());
        self.waiting -= bytes;
        self.taken += bytes;
        taken
    }

    /// Notes that this number of taken bytes is written.
    pub fn written(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_sub(bytes);
        if self.bytes() == 0 {
            self.asked = 0;
        }
    }

    /// Merges deltas, which `waiting` already counts in full, with those before.
    fn merge(&mut self, part: PartKey, lines: &DeltaLines) {
        if let Some((merging, deltas)) = &mut self.merging {
            let before = deltas.len();
            if *merging == part && deltas.append(lines, self.limits.merged_max) {
                self.waiting -= before + lines.lines().len() - deltas.len();
                self.shared += deltas.len() - before;
                return;
            }
        }
        self.settle();
        let deltas = self.backlog.merge(part, lines);
        self.waiting -= lines.lines().len() - deltas.len();
        self.shared += deltas.len();
        self.merging = Some((part, Box::new(deltas)));
    }

    /// Moves the merged deltas into the queue of lines.
    fn settle(&mut self) {
        if let Some((_, deltas)) = self.merging.take() {
            self.lines.push_back(Queued::Deltas(deltas));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::RunId;

    const PART: PartKey = PartKey { run: RunId(1), part: 0 };
    const OTHER: PartKey = PartKey { run: RunId(1), part: 1 };
    const EAGER: OutboxLimits = OutboxLimits {
        merge_above: 0,
        agents_above: 100,
        clients_above: 200,
        total: usize::MAX,
        merged_max: 300,
        stall_limit: Duration::ZERO,
    };

    fn queue(limits: OutboxLimits) -> Outbox {
        Outbox::new(limits, Backlog::default())
    }

    fn delta(text: &str, server_seq: u32) -> Bytes {
        format!(
            r#"{{"params":{{"action":{{"type":"chat/delta","content":"{text}"}},"serverSeq":{server_seq}}}}}"#
        )
        .into()
    }

    fn run(line: Bytes, part: PartKey) -> DeltaRun {
        DeltaRun { part, first_seq: 0, lines: DeltaLines::read(line).unwrap() }
    }

    fn drain(outbox: &mut Outbox) -> Vec<Bytes> {
        let lines = outbox.take(usize::MAX);
        outbox.written(lines.iter().map(Bytes::len).sum());
        lines
    }

    #[test]
    fn expected_bytes_alone_disconnect_no_client() {
        let (mut outbox, now) = (queue(EAGER), Instant::now());
        outbox.expect(1000);
        assert_eq!((outbox.stalls_at(now), outbox.lingers_until(now)), (None, None));
        assert!(outbox.bytes() == 1000 && !outbox.has_room_for_clients(0), "it is on its way");
        outbox.expected_come(1000);
        outbox.push(vec![b'x'; 1000].into());
        assert_eq!(outbox.stalls_at(now), Some(now));
    }

    #[test]
    fn line_pushed_ahead_is_counted_by_its_own_queue() {
        let backlog = Backlog::default();
        let mut outbox = Outbox::new(EAGER, backlog.clone());
        for _ in 0..3 {
            outbox.push_ahead(Bytes::from_static(b"an answer"));
        }
        assert_eq!((outbox.own(), backlog.bytes()), (27, 0));
        assert_eq!((drain(&mut outbox).len(), outbox.bytes()), (3, 0));
    }

    #[test]
    fn deltas_of_one_part_merge_in_order() {
        let mut outbox = queue(EAGER);
        let other = Bytes::from_static(b"other");
        outbox.push_deltas(run(delta("a", 1), PART));
        outbox.push_deltas(run(delta("b", 2), PART));
        outbox.push_deltas(run(delta("c", 3), PART));
        outbox.push(other.clone());
        outbox.push_deltas(run(delta("d", 5), PART));
        outbox.push_deltas(run(delta("e", 6), OTHER));
        outbox.push_deltas(run(delta("f", 7), OTHER));
        let expected = vec![delta("abc", 3), other, delta("d", 5), delta("ef", 7)];
        assert_eq!(outbox.bytes(), expected.iter().map(Bytes::len).sum::<usize>());
        assert_eq!(drain(&mut outbox), expected);
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn line_pushed_ahead_overtakes_only_deltas() {
        let line = |text: &str| Bytes::from(text.to_owned());
        let mut outbox = queue(OutboxLimits { merge_above: 1000, ..EAGER });
        outbox.push_deltas(run(delta("a", 1), PART));
        outbox.push(line("fixed"));
        outbox.push_deltas(run(delta("b", 3), PART));
        outbox.push_within(run(delta("c", 4), OTHER), Duration::from_secs(1), Instant::now());
        outbox.push_ahead(line("first"));
        outbox.push_ahead(line("second"));
        assert_eq!(
            drain(&mut outbox),
            [delta("a", 1), line("fixed"), line("first"), line("second"), delta("b", 3)]
        );
        outbox.release();
        outbox.push_ahead(line("third"));
        assert_eq!(drain(&mut outbox), [line("third"), delta("c", 4)]);
        assert_eq!(outbox.bytes(), 0);
        // What is merged goes on behind it.
        let mut outbox = queue(EAGER);
        outbox.push_deltas(run(delta("a", 1), PART));
        outbox.push_deltas(run(delta("b", 2), PART));
        outbox.push_ahead(line("first"));
        outbox.push_deltas(run(delta("c", 3), PART));
        assert_eq!(drain(&mut outbox), [line("first"), delta("abc", 3)]);
        outbox.push_ahead(line("first"));
        outbox.push_deltas(run(delta("d", 4), PART));
        outbox.push_deltas(run(delta("e", 5), PART));
        assert_eq!(drain(&mut outbox), [line("first"), delta("de", 5)]);
    }

    #[test]
    fn delayed_deltas_merge_until_their_deadline() {
        let mut outbox = queue(OutboxLimits { merge_above: 1000, ..EAGER });
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let wait = Duration::from_millis(50);
        outbox.push_within(run(delta("a", 1), PART), wait, at(0));
        outbox.push_within(run(delta("x", 2), OTHER), wait, at(10));
        outbox.push_within(run(delta("b", 3), PART), wait, at(20));
        assert_eq!(
            (outbox.due(), outbox.bytes()),
            (Some(at(50)), delta("ab", 3).len() + delta("x", 2).len())
        );
        assert!(drain(&mut outbox).is_empty());
        outbox.release();
        assert_eq!((outbox.due(), drain(&mut outbox)), (None, vec![delta("x", 2), delta("ab", 3)]));
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn other_lines_release_delayed_deltas() {
        let other = Bytes::from_static(b"other");
        let mut outbox = queue(OutboxLimits { merge_above: 1000, ..EAGER });
        let now = Instant::now();
        outbox.push_within(run(delta("a", 1), PART), Duration::MAX, now);
        outbox.push_within(run(delta("b", 2), PART), Duration::MAX, now);
        assert_eq!(outbox.due(), None);
        outbox.push(other.clone());
        outbox.push_within(run(delta("c", 4), PART), Duration::MAX, now);
        outbox.push_deltas(run(delta("d", 5), OTHER));
        assert_eq!(drain(&mut outbox), vec![delta("ab", 2), other, delta("c", 4), delta("d", 5)]);
    }

    #[test]
    fn deltas_without_delay_are_never_merged() {
        let mut outbox = queue(EAGER);
        for server_seq in 1..=3 {
            outbox.push_within(run(delta("a", server_seq), PART), Duration::ZERO, Instant::now());
        }
        outbox.push_deltas(run(delta("b", 4), PART));
        assert_eq!(drain(&mut outbox).len(), 4);
    }

    #[test]
    fn delayed_deltas_stay_within_the_limit_of_a_line() {
        let mut outbox = queue(EAGER);
        let text = "x".repeat(100);
        for server_seq in 1..=9 {
            outbox.push_within(run(delta(&text, server_seq), PART), Duration::from_secs(1), Instant::now());
        }
        outbox.release();
        let lines = drain(&mut outbox);
        assert!(lines.iter().all(|line| line.len() <= EAGER.merged_max), "a line is too long");
        assert_eq!((lines.len(), outbox.bytes()), (5, 0));
    }

    #[test]
    fn line_that_is_being_written_is_not_merged() {
        let mut outbox = queue(EAGER);
        outbox.push_deltas(run(delta("a", 1), PART));
        assert_eq!(outbox.take(usize::MAX), vec![delta("a", 1)]);
        outbox.push_deltas(run(delta("b", 2), PART));
        assert_eq!(outbox.take(usize::MAX), vec![delta("b", 2)]);
    }

    #[test]
    fn merged_line_stays_within_its_limit() {
        let mut outbox = queue(EAGER);
        let text = "x".repeat(100);
        for server_seq in 1..=10 {
            outbox.push_deltas(run(delta(&text, server_seq), PART));
        }
        let lines = drain(&mut outbox);
        assert!(lines.iter().all(|line| line.len() <= EAGER.merged_max), "a line is too long");
        assert_eq!(lines.len(), 5, "two fit into one line, three do not");
        assert!(lines.last().unwrap().ends_with(b"\"serverSeq\":10}}"));
    }

    #[test]
    fn deltas_below_the_merge_limit_are_not_merged() {
        let mut outbox = queue(OutboxLimits { merge_above: 1000, ..EAGER });
        outbox.push_deltas(run(delta("a", 1), PART));
        outbox.push_deltas(run(delta("b", 2), PART));
        assert_eq!(drain(&mut outbox).len(), 2);
    }

    #[test]
    fn room_depends_on_all_unwritten_bytes() {
        let mut outbox = queue(EAGER);
        let push = |outbox: &mut Outbox, bytes: usize| outbox.push(Bytes::from(vec![0; bytes]));
        push(&mut outbox, 99);
        assert!(outbox.has_room_for_agents(0));
        let taken = outbox.take(usize::MAX);
        push(&mut outbox, 1);
        assert!(!outbox.has_room_for_agents(0) && outbox.has_room_for_clients(0));
        push(&mut outbox, 99);
        assert!(outbox.has_room_for_clients(0));
        push(&mut outbox, 1);
        assert!(!outbox.has_room_for_clients(0));
        outbox.written(taken.iter().map(Bytes::len).sum());
        assert!(outbox.has_room_for_clients(0) && !outbox.has_room_for_agents(0));
    }

    #[test]
    fn line_over_the_chunk_limit_is_taken_alone() {
        let mut outbox = queue(EAGER);
        outbox.push(Bytes::from(vec![0; 500]));
        outbox.push(Bytes::from(vec![0; 1]));
        assert_eq!(outbox.take(10).len(), 1);
        assert_eq!(outbox.take(10).len(), 1);
        assert!(outbox.take(10).is_empty());
    }

    #[test]
    fn lines_of_stalled_clients_are_in_memory_once() {
        let backlog = Backlog::default();
        let mut queues = [(); 8].map(|()| Outbox::new(EAGER, backlog.clone()));
        let other = Bytes::from("x".repeat(500));
        for server_seq in 0..40 {
            let line = delta(&"y".repeat(50), server_seq);
            for queue in &mut queues {
                queue.push_within(run(line.clone(), PART), Duration::from_millis(50), Instant::now());
            }
            if server_seq % 10 == 9 {
                queues.iter_mut().for_each(|queue| queue.push(other.clone()));
            }
        }
        let first = queues[0].bytes();
        assert!(first >= 40 * 50 + 4 * 500 && queues.iter().all(|queue| queue.bytes() == first));
        let own: usize = queues.iter().map(Outbox::own).sum();
        assert!(backlog.bytes() <= first && backlog.bytes() >= first * 3 / 4, "{}", backlog.bytes());
        assert!(own <= 8 * 200, "each has its first line for itself: {own}");
        let all = drain(&mut queues[0]);
        assert!(queues[1..].iter_mut().all(|queue| drain(queue) == all), "they are told the same");
        drop(queues);
        assert_eq!(backlog.bytes(), 0);
    }
}
