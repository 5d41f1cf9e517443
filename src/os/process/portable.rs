//! Unix systems on which no process can adopt orphans.
//!
//! A guard marks the environment of its program. The host and the guard list all processes of the
//! system, and find those that descend from the guard, that bear the mark, or that share a group
//! with one of these. macOS hides the environment of its own programs, such as `/bin/sh`. One of
//! these that has left the group is lost if its parents have ended before anybody looks, and if
//! nothing else of the tree is in its group.
//!
//! Owns: finding and ending the processes of a guard.
//! Never: signals a process that has reused the number of another one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    getpid, kill_process, kill_process_group, test_kill_process, test_kill_process_group, Pid, RawPid, Signal,
};

use super::unix::{kill_group, leave_group, ProcessTree, POLL_INTERVAL};
use super::EXIT_GRACE;

/// Interval between searches that find nothing new.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

/// Number of searches that find nothing new after which the rest cannot be killed.
const SEARCHES_MAX: u32 = 25;

/// Maximum time for killing processes that start others all the time.
const KILL_WITHIN: Duration = Duration::from_secs(10);

/// Time for a guard that is late, which may have found more than the host would. It goes on if the
/// host exits meanwhile.
pub(super) const LATE_GUARD_WITHIN: Duration = KILL_WITHIN.saturating_add(EXIT_GRACE);

/// Option of `ps` that shows the environment after the command.
const WITH_ENVIRONMENT: &str = if cfg!(target_os = "linux") { "e" } else { "-E" };

/// Number of words of a start time, such as `Mon Jan  5 10:00:00 2026`.
const WORDS_OF_START: usize = 5;

/// Process, with its start time, which distinguishes it from others of the same number.
type FoundProcess = (RawPid, String);

#[derive(Debug)]
struct ListedProcess {
    parent: RawPid,
    group: RawPid,
    started: String,
    is_marked: bool,
}

/// Processes of a guard, as far as they were ever found.
#[derive(Debug)]
struct GuardedProcesses {
    guard: Pid,
    /// Processes that exist, with their groups.
    known: BTreeMap<FoundProcess, RawPid>,
    /// Groups of which others are members, too: this process and its parent.
    shared_groups: BTreeSet<RawPid>,
}

/// Returns false: a guard cannot adopt orphans.
pub(super) fn adopt_for_guard() -> bool {
    false
}

/// Returns false: the host cannot adopt orphans.
pub(super) fn adopt_for_host() -> bool {
    false
}

/// Does nothing: this process has no children but its own.
pub(super) fn kill_orphans(_is_guard: impl Fn(RawPid) -> bool) {}

/// Returns the environment variable that the processes of a guard inherit. Guards around this one
/// have others, so that each finds also the processes of the inner ones.
fn mark_of(guard: Pid) -> String {
    format!("AHP_SIDECAR_GUARD_{}", guard.as_raw_pid())
}

/// Marks a program that this guard starts, and all that it starts.
pub(super) fn mark(command: &mut Command) {
    command.env(mark_of(getpid()), "1");
}

/// Lists all processes of the system but `ps` and those that have ended; empty if it does not
/// report them.
fn listed(mark: &str) -> BTreeMap<RawPid, ListedProcess> {
    let mut ps = Command::new("/bin/ps");
    ps.args(["-A", "-ww"]);
    let columns = ["pid=", "ppid=", "pgid=", "stat=", "lstart=", "command="];
    ps.args(columns.iter().flat_map(|column| ["-o", column]));
    ps.arg(WITH_ENVIRONMENT);
    ps.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut output = Vec::new();
    let Ok(mut child) = ps.spawn() else { return BTreeMap::new() };
    let read = child.stdout.take().map(|mut stdout| stdout.read_to_end(&mut output));
    // A guard waits for all of its children on another thread, which may have reaped this one.
    child.wait().map(drop).unwrap_or_default();
    if let Some(Err(error)) = read {
        tracing::debug!(%error, "the processes of the system cannot be listed");
    }
    let marked = format!(" {mark}=");
    let output = String::from_utf8_lossy(&output);
    let mut all: BTreeMap<_, _> = output.lines().filter_map(|line| parse(line, &marked)).collect();
    RawPid::try_from(child.id()).ok().and_then(|own| all.remove(&own));
    all
}

/// Parses a line of `ps`; `None` also if the process has ended.
fn parse(line: &str, marked: &str) -> Option<(RawPid, ListedProcess)> {
    let mut words = line.split_ascii_whitespace();
    let mut number = || words.next()?.parse().ok();
    let (process, parent, group) = (number()?, number()?, number()?);
    let has_ended = words.next()?.starts_with('Z');
    let started = words.take(WORDS_OF_START).collect::<Vec<_>>().join(" ");
    let is_marked = line.contains(marked);
    (!has_ended).then_some((process, ListedProcess { parent, group, started, is_marked }))
}

impl GuardedProcesses {
    /// Creates the list of the processes of a guard, for the guard itself or for its host.
    fn of(guard: Pid) -> Self {
        Self { guard, known: BTreeMap::new(), shared_groups: BTreeSet::new() }
    }

    /// Looks for the processes, except this one. Returns false if the system does not list any.
    fn refresh(&mut self) -> bool {
        let all = listed(&mark_of(self.guard));
        self.find_in(&all, getpid().as_raw_pid());
        !all.is_empty()
    }

    fn find_in(&mut self, all: &BTreeMap<RawPid, ListedProcess>, own: RawPid) {
        let exists = |(process, started): &FoundProcess| {
            all.get(process).is_some_and(|listed| listed.started == *started)
        };
        let mut found: BTreeSet<RawPid> =
            self.known.keys().filter(|process| exists(process)).map(|(process, _)| *process).collect();
        let mut parents = BTreeSet::from([self.guard.as_raw_pid()]);
        let mut groups = parents.clone();
        let ours = all.get(&own).into_iter().flat_map(|own| [Some(own), all.get(&own.parent)]).flatten();
        self.shared_groups = ours.map(|listed| listed.group).collect();
        loop {
            let before = found.len();
            for (process, listed) in all.iter().filter(|(process, _)| **process != own) {
                let is_related = parents.contains(&listed.parent) || groups.contains(&listed.group);
                if is_related || listed.is_marked || found.contains(process) {
                    found.insert(*process);
                    parents.insert(*process);
                    groups.extend(Some(listed.group).filter(|group| !self.shared_groups.contains(group)));
                }
            }
            // A process that is found for the first time may relate others to the tree.
            if found.len() == before {
                break;
            }
        }
        let known = all.iter().filter(|(process, _)| found.contains(process));
        self.known =
            known.map(|(process, listed)| ((*process, listed.started.clone()), listed.group)).collect();
    }

    /// Kills all processes, even while they start others and their parents end. Returns false if
    /// some cannot be killed, or the system does not list any.
    ///
    /// A group is stopped when a process in it is found for the first time, and killed once another
    /// search has found the children of that. Signals to a group reach also a process that was
    /// started meanwhile.
    fn kill(&mut self) -> bool {
        let mut seen: BTreeSet<FoundProcess> = self.known.keys().cloned().collect();
        let (start, mut had_new, mut without_new) = (Instant::now(), false, 0);
        while self.refresh() {
            // A single list may omit a process that was started while it was made.
            if self.known.is_empty() && !had_new {
                return true;
            }
            let mut new = BTreeSet::new();
            for (process, group) in &self.known {
                if seen.insert(process.clone()) {
                    new.insert(*group);
                }
            }
            for (process, group) in &self.known {
                let signal = if new.contains(group) { Signal::STOP } else { Signal::KILL };
                if self.shared_groups.contains(group) {
                    send(process, signal);
                } else if let Some(group) = Pid::from_raw(*group) {
                    // Fails if the group has ended meanwhile.
                    kill_process_group(group, signal).unwrap_or_default();
                }
            }
            had_new = !new.is_empty();
            without_new = if had_new { 0 } else { without_new + 1 };
            if without_new > SEARCHES_MAX || start.elapsed() > KILL_WITHIN {
                return false;
            }
            if without_new > 1 {
                thread::sleep(SWEEP_INTERVAL);
            }
        }
        false
    }

    /// Returns whether a process exists that was found, or another one in the guard's group, if the
    /// guard has left that.
    fn exist(&self, has_left: bool) -> bool {
        let exists = |(process, _): &FoundProcess| {
            Pid::from_raw(*process).is_some_and(|process| test_kill_process(process).is_ok())
        };
        self.known.keys().any(exists) || has_left && test_kill_process_group(self.guard).is_ok()
    }
}

fn send((process, _): &FoundProcess, signal: Signal) {
    if let Some(Err(error)) = Pid::from_raw(*process).map(|process| kill_process(process, signal)) {
        tracing::debug!(%error, "a process of an agent has ended meanwhile, or is another user's");
    }
}

/// Kills the processes of a killed guard.
pub(super) fn kill_tree(guard: Pid) {
    // Stopped parents keep their children, which are found by them.
    kill_process_group(guard, Signal::STOP).unwrap_or_default();
    if !GuardedProcesses::of(guard).kill() {
        tracing::warn!("a process that an agent started cannot be killed: it is still running");
        // Fails if the group is empty.
        kill_process_group(guard, Signal::KILL).unwrap_or_default();
    }
}

/// Asks all processes of a guard to exit, and kills those that do not.
pub(super) fn end(tree: ProcessTree) {
    let mut processes = GuardedProcesses::of(tree.group);
    // Before the first signal: parents that exit would leave their children to the system.
    processes.refresh();
    for (process, _) in processes.known.iter().filter(|(_, group)| **group != tree.group.as_raw_pid()) {
        send(process, Signal::TERM);
    }
    let has_left = leave_group();
    kill_process_group(tree.group, Signal::TERM).unwrap_or_default();
    let start = Instant::now();
    while start.elapsed() < EXIT_GRACE && processes.exist(has_left) {
        thread::sleep(POLL_INTERVAL);
    }
    if !processes.kill() {
        kill_group(tree.group, KILL_WITHIN);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    /// Orphans exist until the system has reaped them.
    fn wait_until_none_exists(processes: &GuardedProcesses) {
        while processes.exist(false) {
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn descendants_in_other_groups_are_found_and_stay_known_as_orphans() {
        let script = "setsid sh -c 'echo; exec sleep 1000' & read line";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let shell_id = RawPid::try_from(shell.id()).unwrap();
        let mut processes = GuardedProcesses::of(Pid::from_child(&shell));
        assert!(processes.refresh());
        let listed_now = listed("");
        let is_child = |(process, _): &FoundProcess| {
            listed_now.get(process).is_some_and(|listed| listed.parent == shell_id)
        };
        let sleeper = processes.known.keys().find(|process| is_child(process)).unwrap().clone();
        shell.kill().unwrap();
        shell.wait().unwrap();
        processes.refresh();
        assert!(processes.known.contains_key(&sleeper), "it is an orphan now");
        assert!(processes.kill());
        wait_until_none_exists(&processes);
    }

    #[test]
    fn orphans_of_a_dead_guard_are_found_by_its_mark() {
        let mut guard = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = Pid::from_child(&guard);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "setsid sh -c 'echo; exec sleep 1000' &"]).env(mark_of(id), "1");
        let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        shell.wait().unwrap();
        guard.kill().unwrap();
        guard.wait().unwrap();
        let mut processes = GuardedProcesses::of(id);
        assert!(processes.refresh());
        assert_eq!(processes.known.len(), 1, "{processes:?}");
        kill_tree(id);
        wait_until_none_exists(&processes);
    }

    #[test]
    fn process_whose_environment_is_hidden_is_found_by_its_group() {
        let listed = [
            "   8     1     8 S    Mon Jan  5 10:00:00 2026 make",
            "   9     8     8 S    Mon Jan  5 10:00:00 2026 rustc",
            "  10     8    10 S    Mon Jan  5 10:00:00 2026 host PATH=/bin",
            "  20    10    10 S    Mon Jan  5 10:00:01 2026 guard, which has left its group",
            "  21     1    21 Ss   Mon Jan  5 10:00:02 2026 /bin/sh -c x",
            "  22    21    21 S+   Mon Jan  5 10:00:02 2026 node x A=1 AHP_SIDECAR_GUARD_20=1 B=2",
            "  23    21    21 Z    Mon Jan  5 10:00:02 2026 (sleep)",
            "  24     1    24 S    Mon Jan  5 10:00:02 2026 node AHP_SIDECAR_GUARD_201=1",
            "  25     1    20 S    Mon Jan  5 10:00:02 2026 sleep",
            "  26    10    10 S    Mon Jan  5 10:00:02 2026 git",
        ];
        let marked = format!(" {}=", mark_of(Pid::from_raw(20).unwrap()));
        let all = listed.iter().filter_map(|line| parse(line, &marked)).collect();
        let mut processes = GuardedProcesses::of(Pid::from_raw(20).unwrap());
        processes.find_in(&all, 10);
        let found: Vec<RawPid> = processes.known.keys().map(|(process, _)| *process).collect();
        assert_eq!(found, [21, 22, 25]);
        assert_eq!(processes.known.keys().next().unwrap().1, "Mon Jan 5 10:00:02 2026");
    }
}
