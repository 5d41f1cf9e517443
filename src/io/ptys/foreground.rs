//! Program in the foreground of a terminal.
//!
//! Owns: the default title of a terminal, and whether its program seems to wait for input.
//! Never: polls by itself: an idle terminal costs nothing.

use std::os::fd::AsFd;

use rustix::process::Pid;
use rustix::termios::{tcgetattr, tcgetpgrp, LocalModes};

#[derive(Debug, Default)]
pub struct Foreground {
    /// Foreground process group at the last check.
    group: Option<Pid>,
    /// Last reported name; `None` at first, and after a program has set a title.
    told: Option<String>,
}

impl Foreground {
    /// Notes that the foreground program has set a title, which is kept while it is in the
    /// foreground.
    pub fn is_called(&mut self, terminal: impl AsFd) {
        (self.group, self.told) = (tcgetpgrp(terminal).ok(), None);
    }

    /// Returns the name of the foreground program if both the program and its name have changed.
    pub fn refresh(&mut self, terminal: impl AsFd) -> Option<String> {
        let group = tcgetpgrp(terminal).ok()?;
        if self.group.replace(group) == Some(group) {
            return None;
        }
        let name = name_of(group)?;
        (self.told.replace(name.clone()).as_ref() != Some(&name)).then_some(name)
    }
}

fn name_of(group: Pid) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", group.as_raw_pid())).ok()?;
    let name: String = name.chars().filter(|char| !char.is_control()).collect();
    (!name.is_empty()).then_some(name)
}

/// Returns whether the foreground program seems to wait for input: it reads single characters, or
/// echo is off. A program that reads a line in the usual way cannot be told from one that works.
pub fn seems_to_await_input(terminal: impl AsFd) -> bool {
    let modes = tcgetattr(terminal).map(|modes| modes.local_modes);
    modes.is_ok_and(|modes| !modes.contains(LocalModes::ICANON) || !modes.contains(LocalModes::ECHO))
}
