//! Updates: the program is replaced by another version while processes of it run.
//!
//! Owns: windows of one version at a host of another, and hosts whose file is replaced or removed.
//! Never: tests other layouts of the store (`layouts`), or other versions of the link (`windows`).
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{copy_program, program, window_on};
use crate::windows::{check_no_leftovers, host_of, Window};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A folder with a state folder and two versions of the program.
struct Versions {
    outer: TempDir,
    /// Version of the other program, as long as `VERSION`.
    other: String,
}

impl Versions {
    /// Copies the program as `ours` and, with another version in its bytes, as `other`.
    fn new() -> Self {
        let other: String = VERSION.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        let versions = Self { outer: TempDir::new().unwrap(), other };
        copy_program(&versions.path("ours"));
        let mut bytes = fs::read(program().get_program()).unwrap();
        let places: Vec<usize> = memchr::memmem::find_iter(&bytes, VERSION).collect();
        for place in places {
            bytes[place..place + VERSION.len()].copy_from_slice(versions.other.as_bytes());
        }
        copy_program(&versions.path("made"));
        fs::write(versions.path("made"), bytes).unwrap();
        // As `copy_program` says: what was open for writing here may be so in a child.
        let copied = Command::new("/bin/cp").arg(versions.path("made")).arg(versions.path("other")).status();
        assert!(copied.unwrap().success());
        let said = Command::new(versions.path("other")).arg("--version").output().unwrap().stdout;
        assert_eq!(String::from_utf8(said).unwrap(), format!("ahp-sidecar {}\n", versions.other));
        versions
    }

    fn path(&self, name: &str) -> PathBuf {
        self.outer.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// A window of the program with this name, which logs to a file.
    fn window(&self, name: &str, log: &str) -> Command {
        let plain = window_on(&self.state());
        let mut command = Command::new(self.path(name));
        command.args(plain.get_args()).args(["--log", "info"]).current_dir("/").env_clear();
        command.env("HOME", crate::support::NO_HOME).env("SHELL", "/bin/sh");
        command.stderr(Stdio::from(fs::File::create(self.path(log)).unwrap()));
        command
    }

    fn open(&self, name: &str, client: &str) -> Window {
        Window::of(self.window(name, client), client)
    }
}

/// Runs a command for the client, which the host starts by its own program; returns its output.
fn run(window: &mut Window, turn: &str) -> String {
    window.begin(turn, "!printf 'ran %s' here");
    let told = window.until("chat/turnComplete");
    let told: Vec<String> = told.iter().map(Value::to_string).collect();
    told.concat()
}

fn log(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn window_of_another_version_is_served_by_the_running_host() {
    let versions = Versions::new();
    for (first, second, served_by) in [("ours", "other", VERSION), ("other", "ours", &versions.other)] {
        let mut old = versions.open(first, "old");
        let host = host_of(&versions.state());
        let mut new = versions.open(second, "new");
        assert_eq!(host_of(&versions.state()), host);
        new.make_session();
        old.follow();
        new.begin("t", "hello");
        for window in [&mut old, &mut new] {
            window.until("chat/turnComplete");
        }
        assert_eq!(old.end(), Some(0));
        // The window that remains still has its host, although that is another version.
        assert!(run(&mut new, "u").contains("ran here"));
        assert_eq!(new.end(), Some(0));
        let said = log(&versions.path("new"));
        assert!(said.contains("another version") && said.contains(served_by), "{said}");
        assert!(!log(&versions.path("old")).contains("another version"));
        check_no_leftovers(&versions.state());
        fs::remove_dir_all(versions.state()).unwrap();
    }
}

#[test]
fn host_whose_program_is_replaced_works_until_the_new_one_takes_over() {
    let versions = Versions::new();
    let mut old = versions.open("ours", "old");
    old.make_session();
    assert!(run(&mut old, "before").contains("ran here"));

    // An update unlinks the old file before the new one is there.
    fs::remove_file(versions.path("ours")).unwrap();
    assert!(run(&mut old, "between").contains("ran here"));
    fs::rename(versions.path("other"), versions.path("ours")).unwrap();
    assert!(run(&mut old, "after").contains("ran here"));

    let mut new = versions.open("ours", "new");
    assert_eq!(new.follow()["result"]["snapshot"]["state"]["turns"].as_array().unwrap().len(), 3);
    assert_eq!(old.end(), Some(0));
    assert!(run(&mut new, "last").contains("ran here"));
    assert_eq!(new.end(), Some(0));

    let mut next = versions.open("ours", "next");
    assert_eq!(next.follow()["result"]["snapshot"]["state"]["turns"].as_array().unwrap().len(), 4);
    assert!(run(&mut next, "own").contains("ran here"));
    assert_eq!(next.end(), Some(0));
    let said = log(&versions.path("next"));
    assert!(!said.contains("another version"), "the host is of the new version: {said}");
    check_no_leftovers(&versions.state());
}
