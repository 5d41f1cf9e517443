//! Unix systems on which no process can adopt orphans.
//!
//! A guard finds the processes of its group, and by the list of all processes those whose parents
//! lead to it. A process that has left the group is lost when its parent ends before the guard
//! looks.
//!
//! Owns: finding and ending the processes of a guard.
//! Never: signals a process that has reused the number of another one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    getpgid, getpid, getppid, kill_process, kill_process_group, setpgid, test_kill_process_group, Pid,
    RawPid, Signal,
};

use super::unix::ProcessTree;
use super::EXIT_GRACE;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Interval between searches for remaining descendants.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// Process, with its start time, which tells it from others of the same number.
type FoundProcess = (RawPid, String);

#[derive(Debug)]
struct ListedProcess {
    parent: RawPid,
    group: RawPid,
    started: String,
}

/// Descendants of this process outside of a group, as far as they were ever found.
#[derive(Debug, Default)]
struct Descendants {
    known: BTreeSet<FoundProcess>,
}

/// Returns false: a guard cannot adopt orphans.
pub(super) fn adopt_for_guard() -> bool {
    false
}

/// Returns false: the host cannot adopt orphans.
pub(super) fn adopt_for_host() -> bool {
    false
}

/// Does nothing: the host knows none of the processes that a killed guard has left.
pub(super) fn kill_orphans(_is_guard: impl Fn(RawPid) -> bool) {}

/// Lists all processes of the system; empty if it does not tell them.
fn listed() -> BTreeMap<RawPid, ListedProcess> {
    let mut ps = Command::new("/bin/ps");
    ps.args(["-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "lstart="]);
    ps.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut said = Vec::new();
    let Ok(mut child) = ps.spawn() else { return BTreeMap::new() };
    let read = child.stdout.take().map(|mut stdout| stdout.read_to_end(&mut said));
    // A guard waits for all of its children on another thread, which may have reaped this one.
    child.wait().map(drop).unwrap_or_default();
    if let Some(Err(error)) = read {
        tracing::debug!(%error, "the processes of the system cannot be listed");
    }
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let mut number = || words.next()?.parse().ok();
        let (process, parent, group) = (number()?, number()?, number()?);
        Some((process, ListedProcess { parent, group, started: words.collect::<Vec<_>>().join(" ") }))
    };
    let mut all: BTreeMap<_, _> = String::from_utf8_lossy(&said).lines().filter_map(parse).collect();
    RawPid::try_from(child.id()).ok().and_then(|own| all.remove(&own));
    all
}

impl Descendants {
    /// Finds descendants of this process, and of those that are known. Returns those that exist and
    /// are not in this group.
    fn refresh(&mut self, group: Pid) -> Vec<Pid> {
        let all = listed();
        let exists = |(process, started): &FoundProcess| {
            all.get(process).is_some_and(|listed| listed.started == *started)
        };
        self.known.retain(exists);
        let mut tree: BTreeSet<RawPid> = self.known.iter().map(|(process, _)| *process).collect();
        tree.insert(getpid().as_raw_pid());
        loop {
            let is_new = |(process, listed): &(&RawPid, &ListedProcess)| {
                tree.contains(&listed.parent) && !tree.contains(*process)
            };
            let new: Vec<RawPid> = all.iter().filter(is_new).map(|(process, _)| *process).collect();
            if new.is_empty() {
                break;
            }
            for process in new {
                tree.insert(process);
                if let Some(listed) = all.get(&process).filter(|listed| listed.group != group.as_raw_pid()) {
                    self.known.insert((process, listed.started.clone()));
                }
            }
        }
        self.known.iter().filter_map(|(process, _)| Pid::from_raw(*process)).collect()
    }
}

fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        if let Err(error) = kill_process(*process, signal) {
            tracing::debug!(%error, "a process of an agent has ended meanwhile, or is another user's");
        }
    }
}

/// Asks all processes to exit, and kills those that do not. Returns when none is found any more, or
/// the rest cannot be killed.
pub(super) fn end(tree: ProcessTree) {
    let mut descendants = Descendants::default();
    // Before the first signal: parents that exit would leave their children to the system.
    signal_all(&descendants.refresh(tree.group), Signal::TERM);
    // The guard leaves the group, if it can, to survive the signal and report the exit.
    let other = getppid().and_then(|host| getpgid(Some(host)).ok());
    let left = other.is_some_and(|other| setpgid(None, Some(other)).is_ok());
    for signal in [Signal::TERM, Signal::KILL] {
        if kill_process_group(tree.group, signal).is_err() {
            break;
        }
        let start = Instant::now();
        let mut is_empty = false;
        while start.elapsed() < EXIT_GRACE && !is_empty {
            thread::sleep(POLL_INTERVAL);
            is_empty = left && test_kill_process_group(tree.group).is_err();
        }
        if is_empty {
            break;
        }
    }
    let start = Instant::now();
    loop {
        let rest = descendants.refresh(tree.group);
        if rest.is_empty() || start.elapsed() > 2 * EXIT_GRACE {
            return;
        }
        // They had their time while the group had its own.
        signal_all(&rest, Signal::KILL);
        thread::sleep(SWEEP_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn descendants_in_other_groups_are_found_and_stay_known_as_orphans() {
        let script = "setsid sh -c 'echo; exec sleep 1000' & read line";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let mut descendants = Descendants::default();
        let ours = getpgid(None).unwrap();
        let found = descendants.refresh(ours);
        let of_shell = |process: &Pid| listed().get(&process.as_raw_pid()).map(|listed| listed.parent);
        let shell_id = RawPid::try_from(shell.id()).unwrap();
        let sleeper = *found.iter().find(|process| of_shell(process) == Some(shell_id)).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(descendants.refresh(ours).contains(&sleeper), "it is an orphan now");
        kill_process(sleeper, Signal::KILL).unwrap();
        while descendants.refresh(ours).contains(&sleeper) {
            thread::sleep(SWEEP_INTERVAL);
        }
    }
}
