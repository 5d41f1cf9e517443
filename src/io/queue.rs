//! Jobs of connections that wait for a thread or a process.
//!
//! Owns: their order (connections take turns, and the jobs of each stay in order), and their size.
//! Never: runs a job, or decides which jobs may run.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use crate::host::effects::ConnectionId;

/// Job in a [`FairQueue`].
pub trait QueuedJob {
    /// Returns the size of the job in memory, in bytes. It does not change.
    fn bytes(&self) -> usize;
}

/// Waiting jobs of all connections.
#[derive(Debug)]
pub struct FairQueue<J> {
    /// Jobs of each connection that has any, with their total size in bytes.
    queues: BTreeMap<ConnectionId, (VecDeque<J>, usize)>,
}

impl<J> Default for FairQueue<J> {
    fn default() -> Self {
        Self { queues: BTreeMap::new() }
    }
}

impl<J: QueuedJob> FairQueue<J> {
    /// Adds a job behind the others of its connection.
    pub fn push(&mut self, connection: ConnectionId, job: J) {
        let (jobs, bytes) = self.queues.entry(connection).or_default();
        *bytes += job.bytes();
        jobs.push_back(job);
    }

    /// Takes a job of the next connection after `last_served`, round robin, for whose jobs `choose`
    /// returns the position of one.
    pub fn take(
        &mut self,
        last_served: &mut Option<ConnectionId>,
        mut choose: impl FnMut(ConnectionId, &VecDeque<J>) -> Option<usize>,
    ) -> Option<J> {
        let behind = self.queues.range((last_served.map_or(Unbounded, Excluded), Unbounded));
        let before = self.queues.iter().take_while(|(connection, _)| Some(**connection) <= *last_served);
        let (connection, at) = behind
            .chain(before)
            .find_map(|(connection, (jobs, _))| Some((*connection, choose(*connection, jobs)?)))?;
        let (jobs, bytes) = self.queues.get_mut(&connection)?;
        let job = jobs.remove(at)?;
        *bytes -= job.bytes();
        if jobs.is_empty() {
            self.queues.remove(&connection);
        }
        *last_served = Some(connection);
        Some(job)
    }

    /// Drops the jobs of a connection for which `keeps` returns false.
    pub fn retain(&mut self, connection: ConnectionId, keeps: impl FnMut(&J) -> bool) {
        let Some((mut jobs, _)) = self.queues.remove(&connection) else { return };
        jobs.retain(keeps);
        jobs.into_iter().for_each(|job| self.push(connection, job));
    }

    /// Returns the jobs of a connection, in order.
    pub fn of(&self, connection: ConnectionId) -> impl Iterator<Item = &J> {
        self.queues.get(&connection).into_iter().flat_map(|(jobs, _)| jobs)
    }

    /// Returns the size of a connection's jobs, in bytes.
    pub fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.queues.get(&connection).map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the number of all jobs.
    pub fn count(&self) -> usize {
        self.queues.values().map(|(jobs, _)| jobs.len()).sum()
    }

    /// Returns the size of all jobs, in bytes.
    pub fn bytes(&self) -> usize {
        self.queues.values().map(|(_, bytes)| *bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueuedJob for &str {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn connections_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::default();
        let (one, two) = (ConnectionId(1), ConnectionId(2));
        for (connection, job) in [(one, "a"), (one, "bb"), (one, "b!"), (one, "c"), (two, "x"), (two, "y")] {
            queue.push(connection, job);
        }
        assert_eq!((queue.count(), queue.bytes_of(one), queue.bytes()), (6, 6, 8));
        queue.retain(one, |job| !job.ends_with('!'));
        let mut last = None;
        let mut next = |queue: &mut FairQueue<&'static str>, skipped| {
            queue.take(&mut last, |connection, _| (connection != skipped).then_some(0))
        };
        let nobody = ConnectionId(0);
        let taken: Vec<_> = (0..3).map_while(|_| next(&mut queue, nobody)).collect();
        assert_eq!(taken, ["a", "x", "bb"]);
        queue.push(two, "z");
        assert_eq!(next(&mut queue, two), Some("c"), "the turn passes to a connection with a ready job");
        assert_eq!(next(&mut queue, two), None);
        assert_eq!((next(&mut queue, one), next(&mut queue, one)), (Some("y"), Some("z")));
        assert_eq!((queue.count(), queue.bytes()), (0, 0));
    }
}
