//! All processes that descend from this one, including those in other groups and sessions.
//!
//! A process can leave its group and its session, but not its parent. When its parent ends, it
//! becomes a child of the nearest ancestor that adopts orphans, as guards and the host do. All
//! descendants of an adopting process are therefore reachable through the lists of children in
//! `/proc`.
//!
//! Owns: adopting orphans, finding descendants, asking them to exit, and killing them even while
//! they start others and their parents end.
//! Never: signals a process that is not a descendant, or one that has reused a descendant's number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    getpid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal, set_child_subreaper,
    set_parent_process_death_signal, waitpid, Pid, PidfdFlags, RawPid, Signal, WaitOptions,
};

use super::unix::{kill_group, leave_group, ProcessTree, POLL_INTERVAL};
use super::EXIT_GRACE;

/// Time for a guard that is late: none, because the host finds what the guard has not ended yet.
pub(super) const LATE_GUARD_WITHIN: Duration = Duration::ZERO;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FoundProcess {
    number: RawPid,
    /// Start time, which distinguishes processes that have reused the number.
    started: u64,
}

#[derive(Debug, Clone, Copy)]
struct Stat {
    parent: RawPid,
    group: RawPid,
    started: u64,
}

impl Stat {
    fn of(process: RawPid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The preceding field is the name in parentheses, which may contain any characters.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ').skip(1);
        let mut next = || fields.next()?.parse::<RawPid>().ok();
        let (parent, group) = (next()?, next()?);
        Some(Self { parent, group, started: fields.nth(16)?.parse().ok()? })
    }
}

impl FoundProcess {
    fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.number) else { return };
        // The handle cannot pass to another process. (Old kernels have no such handles.)
        let handle = pidfd_open(pid, PidfdFlags::empty());
        if Stat::of(self.number).is_none_or(|stat| stat.started != self.started) {
            return;
        }
        let sent = match handle {
            Ok(handle) => pidfd_send_signal(handle, signal),
            Err(_) => kill_process(pid, signal),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a process that an agent started cannot be killed: it has ended meanwhile, or is another user's");
        }
    }
}

/// Source of the children of each process.
#[derive(Debug)]
enum Children {
    Listed,
    /// Snapshot of all processes, for kernels without such lists.
    Table(BTreeMap<RawPid, Vec<RawPid>>),
}

impl Children {
    /// Returns the kernel's lists, or else a new table.
    fn snapshot() -> Self {
        if Path::new("/proc/thread-self/children").exists() {
            Self::Listed
        } else {
            Self::table()
        }
    }

    fn table() -> Self {
        let mut table = BTreeMap::<RawPid, Vec<RawPid>>::new();
        for process in numbers_in(Path::new("/proc")) {
            if let Some(stat) = Stat::of(process) {
                table.entry(stat.parent).or_default().push(process);
            }
        }
        Self::Table(table)
    }

    fn of(&self, process: RawPid) -> Vec<RawPid> {
        match self {
            Self::Listed => {
                let tasks = format!("/proc/{process}/task");
                let lists = numbers_in(Path::new(&tasks))
                    .into_iter()
                    .map(|task| fs::read_to_string(format!("{tasks}/{task}/children")).unwrap_or_default());
                lists
                    .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
                    .collect()
            }
            Self::Table(table) => table.get(&process).cloned().unwrap_or_default(),
        }
    }
}

/// Returns the file names that are numbers.
fn numbers_in(folder: &Path) -> Vec<RawPid> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns whether `/proc` is mounted and shows the process numbers of our namespace.
fn can_be_found() -> bool {
    let ours = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    ours == Some(getpid().as_raw_pid())
}

fn ours(children: &Children) -> Vec<RawPid> {
    children.of(getpid().as_raw_pid())
}

/// Visits `top` and their descendants; calls `each` for a process before listing its children.
fn walk(top: impl Fn(&Children) -> Vec<RawPid>, mut each: impl FnMut(FoundProcess, Stat)) {
    let children = Children::snapshot();
    walk_by(&children, top(&children), &mut each);
}

fn walk_by(children: &Children, top: Vec<RawPid>, each: &mut impl FnMut(FoundProcess, Stat)) {
    let mut seen = BTreeSet::from([getpid().as_raw_pid()]);
    // Lists end with the newest process; it is visited first, because it may end soonest.
    let mut next = top;
    while let Some(number) = next.pop() {
        // A process that has reused a child's number has another parent.
        let Some(stat) = Stat::of(number).filter(|stat| seen.contains(&stat.parent)) else { continue };
        if seen.insert(number) {
            each(FoundProcess { number, started: stat.started }, stat);
            next.extend(children.of(number));
        }
    }
}

/// Asks all descendants to exit, except group `asked`, which was already asked.
fn terminate(asked: Pid) {
    walk(ours, |process, stat| {
        if stat.group != asked.as_raw_pid() {
            process.signal(Signal::TERM);
        }
    });
}

/// Kills `top` and all of their descendants, even while they start others and their parents end.
///
/// Each process is stopped when it is found, before its children are listed, and all are killed
/// once all are stopped. A process that was started in between is found by the next search, which
/// follows at once and has few processes to visit, so that no process can outrun it.
///
/// Calls `reap` before each search. Returns true if no process is left. Returns false if no new
/// process has appeared within `give_up_after`: the remaining ones cannot be killed, because they
/// belong to another user or the kernel holds them.
fn kill(top: impl Fn(&Children) -> Vec<RawPid>, mut reap: impl FnMut(), give_up_after: Duration) -> bool {
    let (mut stopped, mut none_before, mut last_new) = (BTreeSet::new(), false, Instant::now());
    loop {
        reap();
        let (mut found, mut new) = (Vec::new(), false);
        walk(&top, |process, _| {
            found.push(process);
            if stopped.insert(process) {
                process.signal(Signal::STOP);
                new = true;
            }
        });
        // A single list may omit a process while others in it end.
        if found.is_empty() && none_before {
            return true;
        }
        none_before = found.is_empty();
        for process in found {
            process.signal(Signal::KILL);
        }
        if new {
            last_new = Instant::now();
        } else if !none_before && last_new.elapsed() > give_up_after {
            return false;
        } else {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Makes a guard adopt orphaned descendants. Returns whether they can be found.
pub(super) fn adopt_for_guard() -> bool {
    // A guard that is stopped when the host dies must resume, to read the end of the lifeline.
    if set_parent_process_death_signal(Some(Signal::CONT)).is_err() {
        // Harmless: only the guarded program would stop the guard.
    }
    set_child_subreaper(Some(getpid())).is_ok() && can_be_found()
}

/// Makes the host adopt orphaned descendants, unless it has children already. Returns whether it
/// does.
pub(super) fn adopt_for_host() -> bool {
    let childless = can_be_found() && ours(&Children::snapshot()).is_empty();
    childless && set_child_subreaper(Some(getpid())).is_ok()
}

/// Does nothing: descendants are found by their parents.
pub(super) fn mark(_program: &mut Command) {}

/// Kills the group of a killed guard. The host has adopted its other processes.
pub(super) fn kill_tree(guard: Pid) {
    // Fails if the group is empty.
    kill_process_group(guard, Signal::KILL).unwrap_or_default();
}

/// Asks all processes of a guard to exit, and kills those that do not. Returns only if some of them
/// cannot be found or killed; otherwise the reaping thread ends the guard.
pub(super) fn end(tree: ProcessTree) {
    // Fails if the group is empty.
    kill_process_group(tree.group, Signal::TERM).unwrap_or_default();
    if tree.adopts {
        terminate(tree.group);
    }
    thread::sleep(EXIT_GRACE);
    let are_all_found = tree.adopts && can_be_found();
    if !are_all_found {
        // The host ends the remaining processes, as far as it finds them.
        leave_group();
        // The host waits for the guard only for a moment longer.
        kill_group(tree.group, EXIT_GRACE / 2);
    }
    if kill(ours, || (), EXIT_GRACE) && are_all_found {
        // The reaping thread exits once it has reaped all of them.
        loop {
            thread::park();
        }
    }
}

/// Kills all children of the host but its guards, with all of their descendants.
pub(super) fn kill_orphans(is_guard: impl Fn(RawPid) -> bool) {
    let left_behind = |children: &Children| {
        let mut all = ours(children);
        all.retain(|child| !is_guard(*child));
        all
    };
    let reap = || {
        for child in left_behind(&Children::snapshot()).into_iter().filter_map(Pid::from_raw) {
            // A process that still runs is found again by the next search.
            waitpid(Some(child), WaitOptions::NOHANG).map(drop).unwrap_or_default();
        }
    };
    if !kill(left_behind, reap, EXIT_GRACE) {
        tracing::warn!("a process that an agent started cannot be killed: it is still running");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use super::*;

    fn below(children: &Children, top: RawPid) -> BTreeSet<RawPid> {
        let mut found = BTreeSet::new();
        walk_by(children, vec![top], &mut |process, _| {
            found.insert(process.number);
        });
        found
    }

    #[test]
    fn descendants_are_found_with_and_without_the_kernels_lists_and_killed() {
        let script = "setsid sh -c 'sleep 1000 & sleep 1000 & echo; wait' & sleep 1000 & read line <&3; wait";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("exec 3<&0; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let top = RawPid::try_from(shell.id()).unwrap();
        assert!(can_be_found());
        while below(&Children::Listed, top).len() < 5 {
            thread::sleep(POLL_INTERVAL);
        }
        let all = below(&Children::Listed, top);
        assert_eq!(below(&Children::table(), top), all);
        // The test adopts no orphans. An unused process number has no descendants.
        assert!(below(&Children::Listed, RawPid::MAX).is_empty());
        let reaped = std::cell::RefCell::new(shell);
        let still = |_: &Children| reaped.borrow_mut().try_wait().unwrap().map_or(vec![top], |_| vec![]);
        assert!(kill(still, || (), Duration::from_secs(60)));
        let gone = |process: &RawPid| {
            let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        let start = Instant::now();
        while !all.iter().all(gone) {
            assert!(start.elapsed() < Duration::from_secs(60), "{all:?}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_process_that_has_the_number_of_another_one_is_left_alone() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let number = RawPid::try_from(child.id()).unwrap();
        let started = Stat::of(number).unwrap().started;
        FoundProcess { number, started: started - 1 }.signal(Signal::KILL);
        // Process 1 is no child of a visited process.
        walk_by(&Children::Listed, vec![1], &mut |process, _| panic!("{process:?}"));
        assert!(child.try_wait().unwrap().is_none());
        FoundProcess { number, started }.signal(Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }
}
