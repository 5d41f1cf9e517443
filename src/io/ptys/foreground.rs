//! Program in the foreground of a terminal.
//!
//! Owns: what the terminal is called after it, where no program calls it something itself; and
//! whether it seems to wait for something to be typed.
//! Never: looks unless it is asked to: nothing runs while nothing is printed.

use std::os::fd::AsFd;

use rustix::process::Pid;
use rustix::termios::{tcgetattr, tcgetpgrp, LocalModes};

/// The program in front, as far as that is known.
#[derive(Debug, Default)]
pub struct Foreground {
    /// The group of processes that was in front when it was looked last.
    group: Option<Pid>,
    /// Name that was reported last; `None` before the first one, and once a program has set a
    /// title.
    told: Option<String>,
}

impl Foreground {
    /// The program in front has given the terminal a title: it stays as long as that is in front.
    pub fn is_called(&mut self, terminal: impl AsFd) {
        (self.group, self.told) = (tcgetpgrp(terminal).ok(), None);
    }

    /// Returns the name of the program in front, if that is another program than before and its
    /// name is new.
    pub fn refresh(&mut self, terminal: impl AsFd) -> Option<String> {
        let group = tcgetpgrp(terminal).ok()?;
        if self.group.replace(group) == Some(group) {
            return None;
        }
        let name = name_of(group)?;
        (self.told.replace(name.clone()).as_ref() != Some(&name)).then_some(name)
    }
}

/// The name of the program that leads a group.
fn name_of(group: Pid) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", group.as_raw_pid())).ok()?;
    let name: String = name.chars().filter(|char| !char.is_control()).collect();
    (!name.is_empty()).then_some(name)
}

/// Returns whether the program in front seems to wait for something to be typed: it reads
/// characters and not lines, or typed characters are not shown. A program that reads a line in the
/// usual way cannot be told from one that works.
pub fn seems_to_await_input(terminal: impl AsFd) -> bool {
    let modes = tcgetattr(terminal).map(|modes| modes.local_modes);
    modes.is_ok_and(|modes| !modes.contains(LocalModes::ICANON) || !modes.contains(LocalModes::ECHO))
}
