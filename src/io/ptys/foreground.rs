//! Program in the foreground of a terminal.
//!
//! Owns: the default title of a terminal.
//! Never: polls by itself: an idle terminal costs nothing.

use crate::os::pty::{self, ForegroundGroup, Typing};

#[derive(Debug, Default)]
pub struct Foreground {
    /// Foreground process group at the last check.
    group: Option<ForegroundGroup>,
    /// Name of the program; `None` at first, and after a program has set a title.
    last_reported: Option<String>,
}

impl Foreground {
    /// Notes that the foreground program has set a title, which is kept while it is in the
    /// foreground.
    pub fn is_called(&mut self, terminal: &Typing) {
        (self.group, self.last_reported) = (pty::foreground(terminal), None);
    }

    /// Returns the name of the foreground program if both the program and its name have changed.
    pub fn refresh(&mut self, terminal: &Typing) -> Option<String> {
        let group = pty::foreground(terminal)?;
        if self.group.replace(group) == Some(group) {
            return None;
        }
        let name = name_of(group)?;
        (self.last_reported.replace(name.clone()).as_ref() != Some(&name)).then_some(name)
    }
}

fn name_of(group: ForegroundGroup) -> Option<String> {
    let name: String = pty::name_of(group)?.chars().filter(|char| !char.is_control()).collect();
    (!name.is_empty()).then_some(name)
}
