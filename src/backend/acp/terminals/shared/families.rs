//! Assignment of the guard's descendants to terminals.
//!
//! A child of the guard is the program of a terminal, or has lost its parents: then its number
//! tells it, and where that is not known any more, its session does. Whoever descends from a child
//! belongs where that does.
//!
//! Owns: which terminals there are, their numbers, and how their programs end.
//! Never: signals anybody.

use std::collections::BTreeMap;

use rustix::process::{wait, RawPid, WaitOptions, WaitStatus};
use tokio::sync::oneshot;

use super::marks::{limit_of, TerminalMark, TerminalMarks};
use crate::backend::acp::descendants::{ours, session_of, Children};

/// The families of all terminals.
#[derive(Debug)]
pub(super) struct ProcessTrees {
    marks: TerminalMarks,
    /// Session that the program of each terminal leads, `None` before the program has started.
    sessions: BTreeMap<TerminalMark, Option<RawPid>>,
    /// The programs that run, and where it is told how they end.
    programs: BTreeMap<RawPid, (TerminalMark, oneshot::Sender<WaitStatus>)>,
}

impl ProcessTrees {
    /// Creates the set of families, none yet; `None` where there are no numbers for them.
    pub(super) fn new() -> Option<Self> {
        Some(Self { marks: TerminalMarks::ours()?, sessions: BTreeMap::new(), programs: BTreeMap::new() })
    }

    /// A number for another one.
    pub(super) fn add(&mut self) -> Option<TerminalMark> {
        let sessions = &self.sessions;
        let mark = self.marks.next(|mark| sessions.contains_key(&mark))?;
        self.sessions.insert(mark, None);
        Some(mark)
    }

    /// The program of one was started; tells how it ends.
    pub(super) fn begun(&mut self, mark: TerminalMark, program: RawPid) -> oneshot::Receiver<WaitStatus> {
        let (tell, told) = oneshot::channel();
        self.sessions.insert(mark, Some(program));
        self.programs.insert(program, (mark, tell));
        told
    }

    /// Removes a family of which no process is left. Until then, no other family gets its number.
    pub(super) fn remove(&mut self, mark: TerminalMark) {
        self.sessions.remove(&mark);
    }

    /// Takes those away who have ended.
    pub(super) fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) => {
                    if let Some((_, tell)) = self.programs.remove(&child.as_raw_pid()) {
                        // Who ends the terminal already does not ask how.
                        tell.send(status).unwrap_or_default();
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Our children of this family; all of them when none is named.
    pub(super) fn children(&self, whose: Option<TerminalMark>, children: &Children) -> Vec<RawPid> {
        let mut all = ours(children);
        if whose.is_some() {
            all.retain(|child| self.family_of(*child) == whose);
        }
        all
    }

    fn family_of(&self, child: RawPid) -> Option<TerminalMark> {
        if let Some((mark, _)) = self.programs.get(&child) {
            return Some(*mark);
        }
        let marked = limit_of(child).and_then(|limit| self.sessions.keys().find(|mark| mark.has(limit)));
        marked.copied().or_else(|| {
            let session = session_of(child)?;
            self.sessions.iter().find(|(_, leader)| **leader == Some(session)).map(|(mark, _)| *mark)
        })
    }
}
